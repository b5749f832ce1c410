//! The configuration: one table of keys, from which come the file, the environment, the flags and the reference.
//!
//! A file is overridden by the environment, and that by flags. Nothing else of the program reads the environment.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use toml::{Spanned, de::DeValue};

mod load;
mod reference;
mod value;

use self::value::{BaseUrl, ByteSize, Filter, GrpcAddress, OptionalTimeout, Structure, UrlPath};
pub(crate) use self::{
    load::{Error, Loaded, load},
    reference::reference,
    value::{Agent, Log, StorePath, Value},
};
use crate::{
    auth::Token,
    card::{
        self, CapabilitiesConfig, CardConfig, ExtensionConfig, InterfaceConfig, Network, ProtocolBinding,
        ProviderConfig, SchemesConfig, SkillConfig,
    },
    server,
    service::{Dedupe, Limits, Modes},
    store::{Retention, sqlite::Durability},
    transport::{self, AllowedHost, AllowedOrigin, FileBytes, Protocols},
    v03::card::{CardVersion, Requirement},
};

/// Where tasks are kept where nobody says: beside `a2a.toml`, in the directory where the server is started. So one
/// directory is one server, what belongs to it is seen there, and a copy of it is all that there is.
const FILE: &str = "a2a.db";

/// A key, as the file, the environment, the flags and the reference need it.
pub(crate) struct Key {
    /// With dots, as in `[table] key`.
    pub(crate) name: &'static str,
    /// What may be said in place of its table: `agent = "demo"` is `[agent] kind`. Variable and flag have this name.
    short: &'static [&'static str],
    /// What it is for.
    pub(crate) sentence: &'static str,
    /// What its value can be.
    pub(crate) kind: &'static str,
    /// Its value is shown to nobody.
    pub(crate) secret: bool,
    /// What the flag means that says nothing more.
    pub(crate) alone: Option<&'static str>,
    read: fn(&mut Config, Given<'_, '_>) -> Result<(), String>,
    show: fn(&Config) -> Option<String>,
}

/// A value as it was found.
#[derive(Clone, Copy)]
enum Given<'a, 't> {
    Text(&'a str),
    Toml(&'a Spanned<DeValue<'t>>),
}

impl Given<'_, '_> {
    fn read<T: Value>(self) -> Result<T, String> {
        match self {
            Self::Text(text) => T::read(text),
            Self::Toml(value) => T::from_toml(value),
        }
    }
}

impl Key {
    /// As a variable of the environment: `turn.deadline` is `A2A_TURN_DEADLINE`.
    pub(crate) fn variable(&self) -> String {
        format!("A2A_{}", self.brief().replace('.', "_").to_uppercase())
    }

    /// As a flag, without its dashes: `turn.deadline` is `turn-deadline`.
    pub(crate) fn flag(&self) -> String {
        self.brief().replace(['.', '_'], "-")
    }

    /// Its shortest name.
    fn brief(&self) -> &'static str {
        self.short.first().unwrap_or(&self.name)
    }

    /// The value of this key, as it would stand in the file. Nothing where it is not set.
    pub(crate) fn show(&self, config: &Config) -> Option<String> {
        (self.show)(config)
    }
}

/// Each line is a key: its name, perhaps a shorter one, the field, the type, the default, and a sentence.
macro_rules! keys {
    ($($name:literal $(| $short:literal)? => $field:ident: $type:ty = $default:expr, $sentence:literal;)*) => {
        /// What a server can be told.
        #[derive(Clone, Debug)]
        pub(crate) struct Config {
            $(#[doc = $sentence] pub(crate) $field: $type,)*
        }

        impl Default for Config {
            fn default() -> Self {
                Self { $($field: $default),* }
            }
        }

        /// Every key.
        pub(crate) static KEYS: &[Key] = &[$(Key {
            name: $name,
            short: &[$($short)?],
            sentence: $sentence,
            kind: <$type as Value>::KIND,
            secret: <$type as Value>::SECRET,
            alone: <$type as Value>::ALONE,
            read: |config, given| {
                config.$field = given.read()?;
                Ok(())
            },
            show: |config| config.$field.show(),
        }),*];
    };
}

keys! {
    "listen" => listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 8080)), "The address to listen on. Port 0 picks a free one, and the first line of the output says which.";
    "grpc_listen" => grpc_listen: Option<SocketAddr> = None, "Another address, for gRPC alone. The first one takes gRPC too, and the card names this one only where `card.grpc` says it.";
    "agent.kind" | "agent" => agent: Agent = Agent::Demo, "The agent to serve.";
    "agent.require_text" => require_text: bool = false, "Refuses messages without a part of text.";
    "public_url" => public_url: Option<BaseUrl> = None, "The URL at which clients reach this server, for the agent card. Where it is not set, the address that is listened on.";
    "trusted_proxies" => trusted_proxies: Vec<Network> = Vec::new(), "The proxies, as addresses or networks, that are believed what they say of the URL that their clients asked for.";
    "base_path" => base_path: Option<UrlPath> = None, "Path below which everything is served too, beside the root: `/a2a/v1`. Where it is not set, the path of `public_url`. `/`: the root alone.";
    "rpc_path" => rpc_path: UrlPath = UrlPath(card::JSON_RPC.to_owned()), "Path of JSON-RPC below `public_url`, which the card names. `/rpc`, `/a2a` and `/` are served anyway.";
    "allowed_hosts" => allowed_hosts: Vec<AllowedHost> = Vec::new(), "Host names that requests may name, beside loopback names, IP addresses, and the hosts of `public_url` and `card.shapes`: `agent.example`, `agent.example:8080`, `*.agent.example`, or `*` for all. Others get 421, against DNS rebinding. Without this key, the host is checked on a loopback address only.";
    "cors.origins" => cors_origins: Vec<AllowedOrigin> = Vec::new(), "Origins of web pages that may call this server, such as `https://app.example`, or `*` for all. Pages of other origins get 403, except for the card and health.";
    "token" => token: Option<Token> = None, "The bearer token that every call must bring. The agent card and health checks are for everybody. Other users of the machine may see a flag: prefer the variable.";
    "insecure" => insecure: bool = false, "Listens on an address that is not loopback though there is no token. All callers are then one anonymous owner, and see each other's tasks.";
    "log" => log: Log = Log::Text, "How the log is written, on stderr.";
    "log_filter" => log_filter: Filter = Filter::standard(), "What is logged, in directives of `tracing`. The variable `RUST_LOG` sets it too.";
    "protocols" => protocols: Protocols = Protocols::default(), "The versions of the protocol that are spoken: `1.0`, and `0.3` with what of 0.2 is the same.";
    "print_wire" => print_wire: bool = false, "Writes to the log what comes in, the call of 1.0 that it is, and what goes out, as `a2a_service::wire`. Credentials are hidden, messages are not.";
    "strict_version" => strict_version: bool = false, "Refuses calls that do not say their version of the protocol, as ones of 0.3. Otherwise they are taken by their form.";
    "v03.file_bytes" => v03_file_bytes: FileBytes = FileBytes::Auto, "Form of the bytes of files for clients of 0.3 over gRPC and HTTP+JSON, whose SDKs disagree: base64, the bytes themselves, or what the `User-Agent` of a client is known to expect.";
    "strict_extensions" => strict_extensions: bool = false, "Rejects callers of 0.3 that do not ask for an extension that the card requires, as it does callers of 1.0. Otherwise callers of 0.3 pass, since that version has no error for it.";
    "strict_modes" => strict_modes: bool = false, "Rejects messages with a part of a media type that is not on the card, and messages whose senders accept no output media type of the card. A part without a media type has the default of its kind: `text/plain`, `application/json` or `application/octet-stream`.";
    "dedupe" => dedupe: Dedupe = Dedupe::Off, "What makes two sends the same one, so that the second gets what came of the first: the `Idempotency-Key` that they come with, and with `message-id`, where there is none, the id of the message too. An agent that answers with a message then has a task for it.";
    "wait" => wait: Option<Duration> = Limits::default().wait, "Timeout of a blocking send. When it expires, the client gets the task in the state that it has by then, such as `TASK_STATE_WORKING`, and has to poll or subscribe for the rest. Where it is not set, a blocking send is answered when the task is terminal or needs input or authorisation, as the protocol demands; `turn.deadline` bounds that. Set it below the timeout of a proxy that closes silent requests.";
    "turn.deadline" => turn_deadline: Duration = Limits::default().turn, "How long an agent may work on one turn; then the turn has failed.";
    "turn.idle" => turn_idle: Duration = Limits::default().idle, "After how long without a word of its agent a turn has failed, unless the agent waits for its caller to authorise something. Zero: never.";
    "turn.pace" => turn_pace: Duration = Limits::default().pace, "What an agent says sooner than this after what was written last goes to the store and to streams with what it says next. Zero: at each pause of the agent.";
    "cancel.grace" => cancel_grace: Duration = Limits::default().cancel, "How long an agent that was canceled may take to end by itself.";
    "drain.grace" => drain_grace: Duration = server::GRACE, "How long what runs may take to end when the server stops.";
    "max_body" => max_body: ByteSize = ByteSize(transport::MAX_BODY), "How large a request may be.";
    "keep_alive" => keep_alive: Duration = transport::KEEP_ALIVE, "After how long without an event a stream gets a sign of life. Zero: never.";
    "stream.write_timeout" => stream_write_timeout: Duration = transport::listener::WRITE_TIMEOUT, "Maximum time in which a client takes nothing of an answer that waits for it. Then the connection is closed, over HTTP/2 only the stream reset. An answer goes out in pieces of 32 KiB, and the time is for each of them. Zero: no limit.";
    "stream.max_age" => stream_max_age: Duration = Limits::default().stream_age, "Maximum age of a stream. Then it ends, and its client resumes it; one that its client does not read is cut. Zero: no limit.";
    "stream.resume" => stream_resume: bool = false, "Offers the extension `urn:a2a-service:resume:v1`, and names it on the card: who asks for it finds in the metadata of each event the cursor that `Last-Event-ID` takes, over gRPC too, and whether events are missing.";
    "max_connections" => max_connections: usize = transport::listener::MAX_CONNECTIONS, "How many connections there may be at a time; more wait to be accepted.";
    "limits.connections_per_peer" => limits_connections_per_peer: usize = transport::CONNECTIONS_PER_PEER, "Maximum number of connections per client address; further ones are closed. An IPv6 /64 network counts as one address. Loopback addresses and `trusted_proxies` have no limit: behind a proxy, the open requests of the address that it forwards are counted instead. Zero: no limit.";
    "limits.receiving_bytes" => limits_receiving_bytes: ByteSize = ByteSize(transport::RECEIVING_BYTES), "Maximum size of the request bodies that are being received, of all connections together; at it further requests are refused (503). Bodies of more than 16 KiB are refused at seven eighths of it. Zero: no limit.";
    "limits.health_watches" => limits_health_watches: usize = transport::HEALTH_WATCHES, "Maximum number of open `Watch` streams of gRPC's health service, of all clients together. Zero refuses all.";
    "connection.idle" => connection_idle: Duration = transport::listener::IDLE, "Idle timeout for connections: between two requests of HTTP/1.1, and without open streams of HTTP/2, whether pings are answered or not. Longer than that of a load balancer before the server. Zero: none.";
    "body_timeout" => body_timeout: Duration = transport::BODY_TIMEOUT, "Timeout for receiving the body of a request, over every binding (408, over gRPC `DEADLINE_EXCEEDED`).";
    "max_tasks" => max_tasks: Option<usize> = None, "How many tasks are kept; the one that ended first makes room for the next. Where it is not set, 2000 in memory, and 1000000 in a file.";
    "max_tasks_per_owner" => max_tasks_per_owner: Option<usize> = None, "How many tasks are kept of one owner, in all tenants together; theirs that ended first makes room for the next. Where it is not set, as many as of all.";
    "store.place" | "store" => store: StorePath = StorePath::Sqlite(FILE.into()), "Where tasks are kept: in a file, which is made where there is none, or in memory, where they end with the process.";
    "store.durability" => store_durability: Durability = Durability::Process, "What a commit to a file survives: the end of the process, or also that the machine loses its power. Then each waits for the disk.";
    "store.max_size" => store_max_size: Option<ByteSize> = None, "Maximum size of the file. A task whose result would make it larger fails, with the name of this limit; when nothing fits any more, new work is refused, as where the disk is full. What is deleted makes room. A file that is larger already is an error at start. Where it is not set, as large as the disk lets it.";
    "retention.finished" => retention_finished: OptionalTimeout = OptionalTimeout(Retention::default().finished), "How long a task that has ended is kept, after its end. Zero: until its place is needed.";
    "retention.idle" => retention_idle: OptionalTimeout = OptionalTimeout(Retention::default().idle), "How long a task may wait for an answer of its client. Then it is canceled, and kept as one that has ended. Zero: for ever.";
    "retention.logs" => retention_logs: OptionalTimeout = OptionalTimeout(Retention::default().logs), "How long a file keeps the log of a task that has ended. From then on a stream that is taken up again begins with the task as it ended. Zero: as long as the task.";
    "retention.push" => retention_push: OptionalTimeout = OptionalTimeout(Retention::default().push), "How long a file keeps the push notification configurations of a task that has ended. Zero: as long as the task.";
    "retention.sends" => retention_sends: OptionalTimeout = OptionalTimeout(Retention::default().sends), "How long a file keeps the key of a send, by which the same send is known when it comes again. Zero: as long as the task.";
    "retention.every" => retention_every: Duration = Retention::default().every, "How often it is looked for what has been kept for long enough: each second at most.";
    "max_push_configs" => max_push_configs: usize = Limits::default().max_push_configs, "How many push notification configurations a task may have.";
    "push.enabled" => push_enabled: bool = false, "Takes push notification configurations and keeps them with their tasks. They are not delivered to yet.";
    "limits.waiting" => limits_waiting: usize = Limits::default().waiting, "How many messages may wait for a task whose agent is busy.";
    "limits.parts" => limits_parts: usize = Limits::default().parts, "How many parts a message may have.";
    "limits.references" => limits_references: usize = Limits::default().references, "How many tasks a message may refer to.";
    "limits.events" => limits_events: u64 = Limits::default().events, "How many events a task may have; the turn of an agent that says more fails.";
    "limits.artifacts" => limits_artifacts: usize = Limits::default().artifacts, "How many artifacts a task may have; the turn of an agent that begins another fails.";
    "limits.event_bytes" => limits_event_bytes: ByteSize = ByteSize(Limits::default().event_bytes), "Maximum size of an event, encoded in protobuf: of a chunk of an artifact, of a status with its message, of a message of a client. The turn of an agent that sends a larger one fails. Clients of gRPC take 4 MiB unless they say otherwise. 1KiB at least.";
    "limits.artifact_bytes" => limits_artifact_bytes: ByteSize = ByteSize(Limits::default().artifact_bytes), "Maximum size of an artifact; the turn of an agent that adds more to it fails.";
    "limits.task_bytes" => limits_task_bytes: ByteSize = ByteSize(Limits::default().task_bytes), "Maximum size of all events of a task, messages of its client included. The turn of an agent that says more fails, and further messages are refused.";
    "limits.turns" => limits_turns: usize = Limits::default().turns, "How many turns may run at once, of all tasks.";
    "limits.turns_per_owner" => limits_turns_per_owner: usize = Limits::default().turns_per_owner, "Maximum number of turns of one task owner that run at once, in all tenants together. Callers without a name share one owner.";
    "limits.streams" => limits_streams: usize = Limits::default().streams, "How many streams may be open at once, of all tasks.";
    "limits.subscribers" => limits_subscribers: usize = Limits::default().subscribers, "How many streams of a task may be open when another subscribes to it.";
    "limits.batch_bytes" => limits_batch_bytes: ByteSize = ByteSize(transport::BATCH_BYTES), "Maximum size of the results of a JSON-RPC batch. A call whose result exceeds it is answered with an error.";
    "limits.unsent_bytes" => limits_unsent_bytes: ByteSize = ByteSize(transport::UNSENT_BYTES), "Maximum size of all answers together that were made and wait for slow readers. While they have more, calls are refused with 503 or `UNAVAILABLE`, except for health checks and the card.";
    "limits.page_bytes" => limits_page_bytes: ByteSize = ByteSize(Limits::default().page_bytes), "Maximum size of a page of `ListTasks`, measured in protobuf. A page that reaches it ends early, with the token of the next page. A task larger than this has a page of its own.";
    "card.name" => card_name: Option<String> = None, "What people call the agent. Where it is not set, what the agent says.";
    "card.description" => card_description: Option<String> = None, "What the agent is for. Where it is not set, what the agent says.";
    "card.version" => card_version: Option<String> = None, "The agent's own version. Where it is not set, what the agent says.";
    "card.icon_url" => card_icon_url: Option<String> = None, "What the agent looks like. Where it is not set, what the agent says.";
    "card.documentation_url" => card_documentation_url: Option<String> = None, "Where people read more about the agent. Where it is not set, what the agent says.";
    "card.provider" => card_provider: Option<Structure<ProviderConfig>> = None, "Who runs the agent: `organization` and `url`. Where it is not set, what the agent says.";
    "card.input_modes" => card_input_modes: Option<Vec<String>> = None, "The media types that the agent takes. Where it is not set, what the agent says.";
    "card.output_modes" => card_output_modes: Option<Vec<String>> = None, "The media types that the agent gives. Where it is not set, what the agent says.";
    "card.skills" => card_skills: Option<Structure<Vec<SkillConfig>>> = None, "What the agent can do: tables with `id`, `name`, `description`, and `tags`, `examples`, `input_modes` and `output_modes`. Where it is not set, what the agent says.";
    "card.extensions" => card_extensions: Option<Structure<Vec<ExtensionConfig>>> = None, "The extensions that the agent knows: tables with `uri`, and `description`, `required` and `params`. Where it is not set, what the agent says.";
    "card.interfaces" => card_interfaces: Option<Structure<Vec<InterfaceConfig>>> = None, "Where else the agent is reached: tables with `url` and `binding`, and `tenant` and `version`.";
    "card.capabilities" => card_capabilities: Option<Structure<CapabilitiesConfig>> = None, "What is not to be offered, though the server could: `streaming = false`. And `state_transition_history = true` for an agent that tells that, which only 0.3 has a word for.";
    "card.security_schemes" => card_security_schemes: Option<Structure<SchemesConfig>> = None, "Ways to authenticate, by name, in the form of OpenAPI: tables with `type` and what that asks for. The program checks `token` alone, and the card then names that one; without `token` it refuses to start with this key.";
    "card.security" => card_security: Option<Structure<Vec<Requirement>>> = None, "Which of `card.security_schemes` a call takes, as one of these tables: scopes by the name of a scheme.";
    "card.shape" => card_shape: CardVersion = CardVersion::Merged, "The form of the card for readers who do not name a version: 1.0's, 0.3's, or both in one. Where 0.3 is not served, it is 1.0's.";
    "card.shapes" => card_shapes: Option<Structure<BTreeMap<String, CardVersion>>> = None, "The same by the host that is asked for, as `\"host\" = \"1.0\"`.";
    "card.grpc" => card_grpc: Option<GrpcAddress> = None, "Address of gRPC, if it is elsewhere than the rest: `host:port`, which may follow `dns:///`, or a URL without a path.";
    "card.grpc_v03" => card_grpc_v03: Option<GrpcAddress> = None, "Address of gRPC for clients of 0.3. Some of its readers need a URL such as `https://agent.example:443`. Where it is not set, that of 1.0.";
    "card.bindings" => card_bindings: Vec<ProtocolBinding> = ProtocolBinding::ALL.to_vec(), "Bindings among the server's own interfaces of 1.0: `JSONRPC`, `HTTP+JSON` and `GRPC`. What is left off the card is served all the same.";
    "card.bindings_v03" => card_bindings_v03: Vec<ProtocolBinding> = ProtocolBinding::ALL.to_vec(), "Bindings among the server's own interfaces of 0.3. Leave off `GRPC` for readers that can't parse a bare `host:port`.";
}

impl Config {
    /// How long things may take, and how much there may be.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            turn: self.turn_deadline,
            idle: self.turn_idle,
            stream_age: self.stream_max_age,
            pace: self.turn_pace,
            cancel: self.cancel_grace,
            wait: self.wait,
            waiting: self.limits_waiting,
            parts: self.limits_parts,
            references: self.limits_references,
            events: self.limits_events,
            artifacts: self.limits_artifacts,
            event_bytes: self.limits_event_bytes.0,
            artifact_bytes: self.limits_artifact_bytes.0,
            task_bytes: self.limits_task_bytes.0,
            turns: self.limits_turns,
            turns_per_owner: self.limits_turns_per_owner,
            streams: self.limits_streams,
            subscribers: self.limits_subscribers,
            max_push_configs: self.max_push_configs,
            page_bytes: self.limits_page_bytes.0,
            ..Limits::default()
        }
    }

    /// How long things are kept.
    pub(crate) fn retention(&self) -> Retention {
        let mut retention = Retention::FOREVER;
        (retention.finished, retention.idle) = (self.retention_finished.0, self.retention_idle.0);
        (retention.logs, retention.push) = (self.retention_logs.0, self.retention_push.0);
        (retention.sends, retention.every) = (self.retention_sends.0, self.retention_every);
        retention
    }

    /// What a message has to be.
    pub(crate) fn modes(&self) -> Modes {
        let mut modes = Modes::default();
        (modes.strict_modes, modes.require_text) = (self.strict_modes, self.require_text);
        modes
    }

    /// What the operator says of the agent.
    pub(crate) fn card(&self) -> CardConfig {
        fn value<T: Clone>(of: Option<&Structure<T>>) -> Option<T> {
            of.map(|it| it.value.clone())
        }
        CardConfig {
            name: self.card_name.clone(),
            description: self.card_description.clone(),
            version: self.card_version.clone(),
            provider: value(self.card_provider.as_ref()),
            icon_url: self.card_icon_url.clone(),
            documentation_url: self.card_documentation_url.clone(),
            input_modes: self.card_input_modes.clone(),
            output_modes: self.card_output_modes.clone(),
            skills: value(self.card_skills.as_ref()),
            extensions: value(self.card_extensions.as_ref()),
            interfaces: value(self.card_interfaces.as_ref()).unwrap_or_default(),
            capabilities: value(self.card_capabilities.as_ref()).unwrap_or_default(),
            security_schemes: value(self.card_security_schemes.as_ref()).unwrap_or_default(),
            security: value(self.card_security.as_ref()).unwrap_or_default(),
            shape: Some(self.card_shape),
            shapes: value(self.card_shapes.as_ref()).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_key_has_a_name_of_its_own_everywhere() {
        for names in [Key::variable, Key::flag] {
            let names: BTreeSet<_> = KEYS.iter().map(names).chain(["A2A_CONFIG".into(), "config".into()]).collect();
            assert_eq!(names.len(), KEYS.len() + 2);
        }
        for key in KEYS {
            let plain = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit() || matches!(it, '.' | '_');
            assert!(key.name.chars().all(plain) && key.sentence.ends_with('.'), "{}", key.name);
        }
    }

    #[test]
    fn what_is_shown_of_a_default_is_read_as_the_same() {
        let config = Config::default();
        for key in KEYS {
            let Some(shown) = key.show(&config) else { continue };
            let mut read = config.clone();
            let value = DeValue::parse(&shown).unwrap();
            (key.read)(&mut read, Given::Toml(&value)).unwrap();
            assert_eq!(key.show(&read), Some(shown), "{}", key.name);
        }
    }
}
