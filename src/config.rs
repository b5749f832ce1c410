//! Server configuration: the table of all keys, with types, defaults and descriptions.
//!
//! The configuration file, environment variables, command-line flags and the reference are derived from this table. Flags
//! override environment variables, and those override the file. No other module reads the environment.

use std::{collections::BTreeMap, fmt::Write as _, net::SocketAddr, time::Duration};

use toml::{Spanned, de::DeValue};

mod agents;
mod environment;
mod load;
mod mcp;
mod upstream_header;
mod value;
mod webhook_credentials;

pub(crate) use self::{
    agents::AgentConfig,
    environment::{CLIENT_API_KEY_VARIABLE, CLIENT_SECRET_VARIABLE, CLIENT_TOKEN_VARIABLE},
    load::{Error, Loaded, load},
    value::{Agent, AgentUrl, AuthRequire, CommandFormat, CommandLine, FilePath, StorePath, Value},
};
use self::{
    mcp::McpServers,
    upstream_header::UpstreamHeader,
    value::{BaseUrl, ByteSize, CardFile, Filter, GrpcAddress, OptionalTimeout, Structure, UrlPath},
    webhook_credentials::WebhookHosts,
};
use crate::{
    adapter::OpenaiOptions,
    auth::{self, CertificateName, SigningAlgorithm, Token},
    card::{
        self, CapabilitiesConfig, CardConfig, ExtendedCardAccess, ExtendedSkillConfig, ExtensionConfig,
        InterfaceConfig, Network, ProtocolBinding, ProviderConfig, SchemesConfig, SkillConfig,
    },
    protocol::Protocols,
    push::{AllowedTarget, PushEvents, PushOptions, V03Payload},
    server,
    service::{DefaultKey, Limits, Modes},
    store::{Retention, sqlite::Durability},
    telemetry::log::LogFormat,
    transport::{self, AllowedHost, AllowedOrigin, ClientAuth, FileBytes},
    v03::card::{CardVersion, Requirement},
};

/// Default path of the SQLite file, in the working directory like `a2a.toml`: a copy of one directory has all of a server.
const DEFAULT_STORE_FILE: &str = "a2a.db";

/// Introduction of the reference.
const INTRODUCTION: &str = "\
# Configuration

Output of `a2a config reference`.

`a2a serve` reads the file that `--config` or `A2A_CONFIG` names, or else `a2a.toml` in the working directory if it exists.
Environment variables override the file, and flags override both. `a2a serve --print-config` prints the result with the
origin of each value. Unknown keys and invalid values are errors. Unknown variables with the prefix `A2A_` are warnings,
because other programs may use the prefix too.

A name with a dot is a key in a table: `turn.deadline` is `deadline` in `[turn]`, `A2A_TURN_DEADLINE` and `--turn-deadline`.
Former names of keys, variables and flags are accepted with a warning. A name and its former name together are an error.

An address is an IP address with a port. A port alone, such as `8080`, and `localhost:8080` are on `127.0.0.1`.

Each table `[[agents]]` of the file is one of several agents of the server. It has a `name`, optionally the `scopes` that callers
need, and keys of the tables `agent`, `cancel`, `card`, `exec`, `http`, `idempotency`, `limits`, `openai`, `push`, `retention`,
`secret_parts`, `send`, `store`, `turn` and `upstream`. They override those of the server for this agent.

A duration is a number with a unit, such as `500ms`, `10s`, `5m` or `1h`. A size is a number of bytes, optionally with a unit:
`64KiB`, `1MiB`. An empty variable counts as not set; for a secret, it is an error.
";

/// Declaration of a configuration key.
pub(crate) struct Key {
    /// Name in the file, with a dot between table and key.
    pub(crate) name: &'static str,
    /// Shorthand in place of the table: `agent = "demo"` is `[agent] kind`. The variable and the flag have this name.
    short: &'static [&'static str],
    /// Former names in the file, accepted with a warning, as are the variables and flags with these names.
    former: &'static [&'static str],
    /// Description, as full sentences.
    pub(crate) description: &'static str,
    /// Type of the value, for the reference and the help.
    pub(crate) kind: &'static str,
    /// The value is redacted wherever it is printed.
    pub(crate) secret: bool,
    /// Value of the flag without an argument.
    pub(crate) value_without_argument: Option<&'static str>,
    read: fn(&mut Config, RawValue<'_, '_>) -> Result<(), String>,
    show: fn(&Config) -> Option<String>,
}

/// Configured value before it is parsed: text of a variable or flag, or TOML of the file.
#[derive(Clone, Copy)]
enum RawValue<'a, 't> {
    Text(&'a str),
    Toml(&'a Spanned<DeValue<'t>>),
}

impl RawValue<'_, '_> {
    fn read<T: Value>(self) -> Result<T, String> {
        match self {
            Self::Text(text) => T::read(text),
            Self::Toml(value) => T::from_toml(value),
        }
    }
}

impl Key {
    /// Returns the name of the environment variable: `A2A_TURN_DEADLINE` for `turn.deadline`.
    pub(crate) fn variable(&self) -> String {
        variable(self.shortest_name())
    }

    /// Returns the former names of the environment variable.
    fn former_variables(&self) -> impl Iterator<Item = String> {
        let current = self.variable();
        self.former_short_names().map(variable).filter(move |former| *former != current)
    }

    /// Returns the name of the flag without its leading dashes: `turn-deadline` for `turn.deadline`.
    pub(crate) fn flag(&self) -> String {
        flag(self.shortest_name())
    }

    /// Returns the former names of the flag.
    pub(crate) fn former_flags(&self) -> impl Iterator<Item = String> {
        let current = self.flag();
        self.former_short_names().map(flag).filter(move |former| *former != current)
    }

    fn shortest_name(&self) -> &'static str {
        self.short.first().unwrap_or(&self.name)
    }

    /// Returns the former names of the variable and the flag. A shorthand has always been their name.
    fn former_short_names(&self) -> impl Iterator<Item = &'static str> {
        self.former.iter().copied().filter(|_| self.short.is_empty())
    }

    /// Formats the value of this key as TOML. Returns `None` if it is not set.
    pub(crate) fn show(&self, config: &Config) -> Option<String> {
        (self.show)(config)
    }
}

fn variable(name: &str) -> String {
    format!("A2A_{}", name.replace('.', "_").to_uppercase())
}

fn flag(name: &str) -> String {
    name.replace(['.', '_'], "-")
}

/// Declares the keys, one per line: name, optional shorthand and former name, field, type, default, description.
macro_rules! keys {
    ($($name:literal $(| $short:literal)? $(was $former:literal)? =>
        $field:ident: $type:ty = $default:expr, $description:literal;)*) => {
        /// Server configuration, one field per key.
        #[derive(Clone, Debug)]
        pub(crate) struct Config {
            $(#[doc = $description] pub(crate) $field: $type,)*
        }

        impl Default for Config {
            fn default() -> Self {
                Self { $($field: $default),* }
            }
        }

        /// All keys, in the order of the reference.
        pub(crate) static KEYS: &[Key] = &[$(Key {
            name: $name,
            short: &[$($short)?],
            former: &[$($former)?],
            description: $description,
            kind: <$type as Value>::KIND,
            secret: <$type as Value>::SECRET,
            value_without_argument: <$type as Value>::WITHOUT_ARGUMENT,
            read: |config, value| {
                config.$field = value.read()?;
                Ok(())
            },
            show: |config| config.$field.show(),
        }),*];
    };
}

keys! {
    "listen" => listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 8080)), "Address to listen on. A port alone is one of 127.0.0.1. Port 0 picks a free port; the first line of output shows it.";
    "grpc_listen" => grpc_listen: Option<SocketAddr> = None, "Additional address that serves gRPC only. `listen` serves gRPC too. Set `card.grpc_url` to advertise this address on the agent card.";
    "agent.kind" | "agent" => agent: Agent = Agent::Demo, "Agent to serve.";
    "agent.require_text" => require_text: bool = false, "Rejects messages that have no text part.";
    "exec.command" | "exec" => exec_command: Option<CommandLine> = None, "Command that is the agent, which is then `exec`: a program with its arguments. It runs for each turn, reads the message from stdin, and its stdout becomes an artifact.";
    "exec.shell" => exec_shell: bool = false, "Runs the command in a shell (`/bin/sh -c`), for pipes and variables. Messages are never part of the command.";
    "exec.format" => exec_format: CommandFormat = CommandFormat::Text, "Format of stdin and stdout: text, or a JSON object on each line: the turn on stdin, and events on stdout.";
    "exec.chunk" => exec_chunk: Option<String> = None, "Delimiter at which stdout is divided into the chunks of its artifact, such as a line feed. If not set, output is sent as it arrives.";
    "exec.persistent" => exec_persistent: bool = false, "Keeps the command running, and sends it all turns. Only with the format `json_lines`.";
    "exec.workspace" => exec_workspace: Option<FilePath> = None, "Directory with a directory for each task, in which the command runs. They are not deleted. If not set, the command runs in the working directory of the server.";
    "exec.env" => exec_env: Option<Structure<BTreeMap<String, String>>> = None, "Further environment variables of the command, by name. Those of the server are passed too, except for `A2A_…`.";
    "exec.concurrency" => exec_concurrency: usize = 64, "Maximum number of commands that run at the same time; further turns wait.";
    "exec.timeout" => exec_timeout: OptionalTimeout = OptionalTimeout(None), "Maximum duration of a command. Zero: `turn.deadline` alone applies.";
    "exec.output_bytes" => exec_output_bytes: ByteSize = ByteSize(64 << 20), "Maximum size of the stdout of a command, and of the files that it writes as artifacts. A turn that exceeds it fails.";
    "exec.memory" => exec_memory: Option<ByteSize> = None, "Maximum address space of each process of a command.";
    "exec.cpu_time" => exec_cpu_time: Option<Duration> = None, "Maximum processor time of each process of a command, in whole seconds.";
    "exec.processes" => exec_processes: Option<u64> = None, "Maximum number of processes of the user of the server, not only of the command. Has no effect for root.";
    "exec.resumable" => exec_resumable: bool = false, "Runs the command again for a turn that was interrupted by the end of the server. Otherwise its task fails.";
    "http.url" | "http" => http_url: Option<AgentUrl> = None, "URL of an endpoint that is the agent: each turn is a POST request, and the response has the events of the turn.";
    "http.token" => http_token: Option<Token> = None, "Bearer token for the endpoint. Prefer the environment variable: other users of the machine can see flags.";
    "http.secret" => http_secret: Option<Token> = None, "Secret that signs the requests, as in Standard Webhooks. Prefer the environment variable.";
    "http.idempotent" => http_idempotent: bool = false, "The endpoint may get a turn twice: a request is repeated if its outcome is unknown or the endpoint is overloaded, and a turn that was interrupted runs again.";
    "http.timeout" => http_timeout: OptionalTimeout = OptionalTimeout(None), "Maximum duration of a turn of the endpoint. Zero: `turn.deadline` alone applies.";
    "http.output_bytes" => http_output_bytes: ByteSize = ByteSize(64 << 20), "Maximum size of a response of the endpoint. A turn that exceeds it fails.";
    "openai.url" | "openai" => openai_url: Option<AgentUrl> = None, "Base URL of a chat completions API. The agent is then its model. Requests go to `/chat/completions` below the URL, such as `http://localhost:11434/v1`.";
    "openai.model" => openai_model: Option<String> = None, "Name of the model. The agent has this name too unless `card.name` is set.";
    "openai.key" => openai_key: Option<Token> = None, "Key of the API, which is sent as a bearer token. Prefer the environment variable or `openai.key_file`: other users of the machine can see flags.";
    "openai.key_file" => openai_key_file: Option<FilePath> = None, "File with the key of the API, instead of `openai.key`.";
    "openai.system" => openai_system: Option<String> = None, "System prompt. It is not on the agent card.";
    "openai.system_file" => openai_system_file: Option<FilePath> = None, "File with the system prompt, instead of `openai.system`.";
    "openai.parameters" => openai_parameters: Option<Structure<serde_json::Map<String, serde_json::Value>>> = None, "Further members of the requests, such as `temperature` and `max_tokens`. With `stream = false`, answers are not streamed.";
    "openai.history" => openai_history: usize = OpenaiOptions::default().history, "Maximum number of messages of earlier tasks of the context in a request. Zero: each task is a conversation of its own.";
    "openai.history_bytes" => openai_history_bytes: ByteSize = ByteSize(OpenaiOptions::default().history_bytes), "Maximum size of these messages. The newest tasks that fit are sent.";
    "openai.timeout" => openai_timeout: OptionalTimeout = OptionalTimeout(None), "Maximum duration of a turn of the model, including its tool calls. Zero: `turn.deadline` alone applies.";
    "openai.idle_timeout" => openai_idle_timeout: Duration = OpenaiOptions::default().idle_timeout, "Maximum time in which the API sends nothing, before and within a response. A turn that exceeds it fails.";
    "openai.output_bytes" => openai_output_bytes: ByteSize = ByteSize(OpenaiOptions::default().output_bytes), "Maximum size of a response of the API. A turn that exceeds it fails.";
    "openai.image_urls" => openai_image_urls: bool = false, "Passes URLs of images on to the API, which loads them. Callers could then send an API in a private network to internal addresses. Otherwise, messages with such URLs are rejected.";
    "openai.ask" => openai_ask: bool = false, "Offers the model a tool, `ask_user`, with which it asks the caller. The task then waits for the answer (`INPUT_REQUIRED`). The API and the model must support tools.";
    "openai.tool_rounds" => openai_tool_rounds: usize = OpenaiOptions::default().tool_rounds, "Maximum number of times that the model can call tools in a turn. A turn that exceeds it fails.";
    "openai.mcp" => openai_mcp: McpServers = McpServers::default(), "MCP servers whose tools the model can call: tables with `name`, and either `command` (a list of words) or `url` (streamable HTTP), and optionally `env` of a command, `token` of a URL, `timeout` of the start and of each call, `result_bytes`, and `approve`: a list of tools whose calls the client has to approve, or `\"all\"`. The tools are the skills of the card unless it has others.";
    "upstream.url" | "upstream" => upstream_url: Option<AgentUrl> = None, "URL of another A2A agent, or of its card, to which all messages are passed. The card has its name, description and skills.";
    "upstream.token" => upstream_token: Option<Token> = None, "Bearer token for the agent at `upstream.url`. It is sent to the origin of that URL only. Prefer the environment variable: other users of the machine can see flags.";
    "upstream.forward" => upstream_forward: Vec<UpstreamHeader> = Vec::new(), "Names of headers of callers that are passed on to the agent at `upstream.url`, such as `authorization`, in calls for their turns. They are sent to the origin of that URL only, take precedence over `upstream.token`, and are neither stored nor logged: a turn that is interrupted by the end of the server runs again without them.";
    "upstream.card_interval" => upstream_card_interval: OptionalTimeout = OptionalTimeout(Some(Duration::from_mins(5))), "Interval between downloads of the card of the agent at `upstream.url`, whose changes appear on the card of the server (minimum 1 s). With tasks in a file, the card is stored in a file next to it, `a2a.db.upstream.json` for `a2a.db`, and used if the agent can't be reached at the start. Zero: the card is downloaded at the start only.";
    "public_url" => public_url: Option<BaseUrl> = None, "Base URL at which clients reach this server, for the agent card. If not set, the card uses the URL of the request, or else the listen address.";
    "trusted_proxies" => trusted_proxies: Vec<Network> = Vec::new(), "IP addresses and CIDR ranges of proxies whose `Forwarded` and `X-Forwarded-*` headers are trusted.";
    "base_path" => base_path: Option<UrlPath> = None, "Path prefix below which everything is served in addition to the root, such as `/a2a/v1`. Defaults to the path of `public_url`. `/` serves the root only.";
    "rpc_path" => rpc_path: UrlPath = UrlPath(card::JSON_RPC.to_owned()), "Path of JSON-RPC below `public_url`, as listed on the agent card. `/rpc`, `/a2a` and `/` are always served too.";
    "allowed_hosts" => allowed_hosts: Vec<AllowedHost> = Vec::new(), "Hosts that requests may name: `agent.example`, `agent.example:8080`, `*.agent.example`, or `*` for all. Loopback names, IP addresses, and the hosts of `public_url` and `card.formats_by_host` are always allowed. Other hosts get 421, which protects against DNS rebinding. If not set, only servers on a loopback address check the host.";
    "cors.origins" => cors_origins: Vec<AllowedOrigin> = Vec::new(), "Origins of web pages that may call this server, such as `https://app.example`, or `*` for all. The server's own origin is always allowed. Pages of other origins get 403, except for the agent card, the key set, API documents and health checks. A page sends its credentials in a header: those that a browser adds by itself, such as cookies, are never shared with other origins (no `Access-Control-Allow-Credentials`).";
    "token" => token: Option<Token> = None, "Bearer token that callers send, required on every request except those for the agent card, the key set of push notifications, API documents and health checks. Prefer the environment variable: other users of the machine can see flags.";
    "auth.tokens" => auth_tokens: Option<FilePath> = None, "File with the tokens and API keys of callers, as hashes. `a2a token new` makes a token and the file. Changes take effect within a second. The card lists the kinds of tokens that the file has at the start.";
    "auth.require" => auth_require: AuthRequire = AuthRequire::Any, "Credentials that a request needs if there are several of `token`, `auth.tokens`, `auth.jwt` and `auth.mtls`: any of them, or all.";
    "auth.failures" => auth_failures: usize = auth::FAILURES, "Maximum number of failed authentications per minute and client address, as forwarded by `trusted_proxies`. Further ones get 429; valid credentials still pass. An IPv6 /64 network counts as one address. Zero: no limit.";
    "auth.jwt.issuer" => auth_jwt_issuer: Option<String> = None, "Issuer of JSON Web Tokens, whose tokens are then accepted as bearer tokens: their claim `iss`.";
    "auth.jwt.audience" => auth_jwt_audience: Vec<String> = Vec::new(), "Audiences of the tokens, of which their claim `aud` must have one: the names of this server at the issuer.";
    "auth.jwt.jwks" => auth_jwt_jwks: Option<String> = None, "Public keys of the issuer: the URL or the file of a JSON Web Key Set. If not set, they are found by OpenID Connect Discovery.";
    "auth.jwt.algorithms" => auth_jwt_algorithms: Vec<SigningAlgorithm> = SigningAlgorithm::ALL.to_vec(), "Accepted algorithms of the signatures.";
    "auth.jwt.leeway" => auth_jwt_leeway: Duration = Duration::from_mins(1), "Maximum difference between the clocks of the issuer and this server.";
    "auth.jwt.owner_claim" => auth_jwt_owner_claim: String = "sub".to_owned(), "Claim with the owner of the tasks.";
    "auth.jwt.tenant_claim" => auth_jwt_tenant_claim: Option<String> = None, "Claim with the tenant to which the caller is bound. If set, tokens without it are rejected.";
    "auth.jwt.scope_claim" => auth_jwt_scope_claim: String = "scope".to_owned(), "Claim with the scopes of the caller, a text with spaces or a list; `scp` is read if there is no `scope`. A token without scopes permits nothing. Empty: all scopes for every token.";
    "auth.mtls" => auth_mtls: Option<CertificateName> = None, "Accepts client certificates as credentials: `uri` or `dns` is the type of the subject alternative name that identifies the caller and the owner of its tasks; `subject` is the distinguished name of the certificate, such as `CN=agent,O=Example`. Needs `tls.client_ca`.";
    "auth.mtls_names" => auth_mtls_names: Vec<String> = Vec::new(), "Accepted names of client certificates. Empty: all that the authorities in `tls.client_ca` have certified.";
    "auth.mtls_scopes" => auth_mtls_scopes: Vec<String> = Vec::new(), "Scopes of callers with a client certificate. Empty: all scopes.";
    "tls.cert" => tls_cert: Option<FilePath> = None, "File with the certificate chain of the server in PEM. All addresses then have TLS 1.2 and 1.3. Changes of the files take effect within a second, for new connections.";
    "tls.key" => tls_key: Option<FilePath> = None, "File with the private key of the certificate in PEM.";
    "tls.client_ca" => tls_client_ca: Option<FilePath> = None, "File with the authorities of client certificates in PEM.";
    "tls.client_auth" => tls_client_auth: ClientAuth = ClientAuth::Required, "Use of client certificates, if `tls.client_ca` is set: off, verified if a client has one, or required. They restrict who can connect; with `auth.mtls`, they also say who the caller is.";
    "tls.self_signed" => tls_self_signed: bool = false, "Generates a certificate for `localhost` and loopback addresses at each start, for development: clients can't verify it.";
    "tls.hsts" => tls_hsts: OptionalTimeout = OptionalTimeout(None), "Time for which browsers use only https for this host (`Strict-Transport-Security`). Zero: not sent.";
    "insecure" => insecure: bool = false, "Allows a non-loopback listen address without authentication. All callers then share one anonymous owner and see each other's tasks.";
    "protocols" => protocols: Protocols = Protocols::default(), "Protocol versions to serve: `1.0`, and `0.3`, which includes the parts of 0.2 that are identical.";
    "log.format" | "log" => log_format: LogFormat = LogFormat::Text, "Log format on stderr.";
    "log.filter" was "log_filter" => log_filter: Filter = Filter::standard(), "Log filter: a level for all targets, and levels for single ones, such as a crate or module. The variable `RUST_LOG` sets it too, unless `A2A_LOG_FILTER` is set.";
    "log.wire" was "print_wire" => log_wire: bool = false, "Enables the wire log, under the target `a2a_service::wire`: each request as received, the call of 1.0 that it stands for, and the response. Credentials are redacted; message content is not.";
    "metrics.enabled" => metrics_enabled: bool = true, "Records metrics, and serves them at `/metrics` in the text format of Prometheus. If callers are authenticated, they need the scope `admin` for it.";
    "metrics.listen" => metrics_listen: Option<SocketAddr> = None, "Additional address that serves only `/metrics` and health checks. On a loopback address, its callers are not authenticated.";
    "docs.enabled" => docs_enabled: Option<bool> = None, "Enables the page `/docs`: Swagger UI with the OpenAPI documents. If not set, the page is enabled if `listen` is a loopback address.";
    "strict.version" was "strict_version" => strict_version: bool = false, "Rejects calls that do not name their protocol version, which the protocol treats as calls of 0.3. By default, the version is inferred from the form of the call.";
    "strict.extensions" was "strict_extensions" => strict_extensions: bool = false, "Rejects callers of 0.3 that do not request an extension that the card requires, as callers of 1.0 always are. Off by default, because 0.3 has no error for it.";
    "strict.media_types" was "strict_modes" => strict_media_types: bool = false, "Rejects messages with a part whose media type is not on the card, and messages whose senders accept no output media type of the card. A message that names a skill of the card in `metadata.skillId` must fit the media types of that skill. A part without a media type has the default of its kind: `text/plain`, `application/json` or `application/octet-stream`.";
    "v03.file_bytes" => v03_file_bytes: FileBytes = FileBytes::Auto, "Encoding of file bytes for clients of 0.3 over gRPC and HTTP+JSON, whose SDKs disagree: base64, the raw bytes, or the encoding that the `User-Agent` of the client is known to expect.";
    "idempotency.default_key" was "dedupe" => idempotency_default_key: DefaultKey = DefaultKey::Off, "Idempotency key of sends without an `Idempotency-Key`: none, or the message id. A repeated send with the same key gets the result of the first one. A send with a key always has a task, even if the agent answers with a message.";
    "send.timeout" was "wait" => send_timeout: Option<Duration> = Limits::default().send_timeout, "Timeout of a blocking send. When it expires, the client gets the task in its current state, such as `TASK_STATE_WORKING`, and has to poll or subscribe. If not set, a blocking send waits until the task is terminal or needs input or authorization, as the protocol demands; `turn.deadline` bounds that. Zero answers as soon as the message is stored. Set it below the timeout of a proxy that closes idle requests.";
    "turn.deadline" => turn_deadline: Duration = Limits::default().turn_deadline, "Maximum duration of one turn; a turn that exceeds it fails. Zero fails every turn that does not end at once.";
    "turn.idle_timeout" was "turn.idle" => turn_idle_timeout: Duration = Limits::default().turn_idle_timeout, "Idle timeout of an agent: a turn without an update for this long fails. Waiting for authorization or for the store does not count. Zero disables it.";
    "turn.commit_interval" was "turn.pace" => turn_commit_interval: Duration = Limits::default().commit_interval, "Minimum interval between two commits of a running turn; updates in between are batched. Zero commits at each pause of the agent.";
    "cancel.grace" => cancel_grace: Duration = Limits::default().cancel_grace, "Grace period in which a canceled agent can return by itself. Then it is stopped, and its task is canceled. Zero stops it at once.";
    "drain.grace" => drain_grace: Duration = server::GRACE, "Grace period for running turns and open requests when the server stops. Then they are interrupted; turns that were interrupted are recovered at the next start.";
    "stream.keep_alive" was "keep_alive" => stream_keep_alive: Duration = transport::KEEP_ALIVE, "Interval of keep-alive comments on a stream of server-sent events that has no events. Zero disables them.";
    "stream.write_timeout" => stream_write_timeout: Duration = transport::listener::WRITE_TIMEOUT, "Time in which a client has to take 64 KiB of a response that waits for it, or all of it if less waits. Otherwise the connection is closed; over HTTP/2, only the stream is reset. Zero disables it.";
    "stream.max_age" => stream_max_age: Duration = Limits::default().stream_max_age, "Maximum age of a stream. Then it ends, and its client can resume it. This includes streams whose clients do not read. Zero: no limit.";
    "stream.resume" => stream_resume: bool = false, "Enables the extension `urn:a2a-service:resume:v1` and lists it on the agent card. Clients that request it get the cursor for `Last-Event-ID` in the metadata of each event, over gRPC too, and a mark where events are missing.";
    "secret_parts.enabled" => secret_parts: bool = false, "Lists the extension `urn:a2a-service:secret:v1` on the agent card. Clients mark parts with it that only the agent may read, and that are redacted everywhere else. Marked parts are redacted in any case.";
    "connection.idle_timeout" was "connection.idle" => connection_idle_timeout: Duration = transport::listener::CONNECTION_IDLE_TIMEOUT, "Idle timeout for connections: between two requests of HTTP/1.1, and without open streams of HTTP/2, even if pings are answered. Set it above the idle timeout of a load balancer in front of the server. Zero disables it.";
    "store.path" | "store" was "store.place" => store_path: StorePath = StorePath::Sqlite(DEFAULT_STORE_FILE.into()), "Store of the tasks: a SQLite file, which is created if it does not exist, or memory, which is lost when the process ends.";
    "store.durability" => store_durability: Durability = Durability::Process, "Failures that a commit to a file survives: the end of the process, or also a power failure, for which each commit waits for the disk.";
    "store.max_size" => store_max_size: Option<ByteSize> = None, "Maximum size of the store's file. A task whose result exceeds it fails with the name of this limit; when the file is full, new work is rejected, as on a full disk. Deleted data frees capacity. The server does not start with a file that is already larger. If not set, only the disk limits it.";
    "retention.finished" => retention_finished: OptionalTimeout = OptionalTimeout(Retention::default().finished), "Retention of a task after it has reached a terminal state. Zero keeps it until `limits.tasks` evicts it.";
    "retention.idle" => retention_idle: OptionalTimeout = OptionalTimeout(Retention::default().idle), "Maximum time that a task waits for input or authorization from its client. Then it is canceled, and retained like any other task in a terminal state. Zero: no limit.";
    "retention.logs" => retention_logs: OptionalTimeout = OptionalTimeout(Retention::default().logs), "Retention of the event log of a task in a file, after the task has reached a terminal state. A stream that is resumed later begins with the final task. Zero keeps it as long as the task.";
    "retention.push" => retention_push: OptionalTimeout = OptionalTimeout(Retention::default().push), "Retention of the push notification configurations of a task in a file, after the task has reached a terminal state. Zero keeps them as long as the task.";
    "retention.idempotency_keys" was "retention.sends" => retention_idempotency_keys: OptionalTimeout = OptionalTimeout(Retention::default().idempotency_keys), "Retention of idempotency keys in a file, after the send. A send that is repeated later counts as a new one. Zero keeps them as long as the task.";
    "retention.interval" was "retention.every" => retention_interval: Duration = Retention::default().interval, "Interval between retention sweeps (minimum 1 s).";
    "push.enabled" => push_enabled: bool = false, "Enables push notifications: configurations are stored with their tasks, and the events of the tasks are sent to the webhooks.";
    "push.allow" => push_allow: Vec<AllowedTarget> = Vec::new(), "Targets of push notifications that are accepted although they are internal, or have a port other than `push.ports`: networks, addresses and host names, such as `10.0.0.0/8`, `127.0.0.1:9000`, `hooks.internal` or `*.corp.example`. TLS is required, except for entries that begin with `http://`.";
    "push.ports" => push_ports: Vec<u16> = PushOptions::default().ports, "Ports of the targets of push notifications. Other ports need an entry in `push.allow`.";
    "push.events" => push_events: PushEvents = PushEvents::All, "Events that are sent: all, new tasks and status updates, or only the update with which a task reaches a terminal state.";
    "push.v03_payload" => push_v03_payload: V03Payload = V03Payload::Task, "Payload for configurations that were registered in 0.3: the task as of the event, or the event.";
    "push.plain_json" => push_plain_json: bool = false, "Sends notifications of 1.0 with the content type `application/json` instead of `application/a2a+json`.";
    "push.timeout" => push_timeout: Duration = PushOptions::default().timeout, "Timeout of an attempt to send a notification.";
    "push.max_age" => push_max_age: OptionalTimeout = OptionalTimeout(PushOptions::default().max_age), "Time for which attempts to send a notification are repeated. Then its configuration becomes a dead letter. Until then, the events are kept. Zero: no limit.";
    "push.concurrency" => push_concurrency: usize = PushOptions::default().concurrency, "Maximum number of notifications that are sent at the same time.";
    "push.per_host" => push_per_host: usize = PushOptions::default().per_host, "Maximum number of notifications that are sent to one host at the same time.";
    "push.dead_letters" => push_dead_letters: usize = PushOptions::default().dead_letters, "Maximum number of dead letters; the oldest are deleted with their configurations.";
    "push.keys" => push_keys: Option<FilePath> = None, "File with the private keys that sign tokens of notifications, in PKCS#8 PEM: the first one signs, and the public keys of all are at `/.well-known/jwks.json`. If not set, a key is generated and stored in a file next to that of the store, `a2a.db.keys.pem` for `a2a.db`. With a store in memory, each start generates another key.";
    "push.issuer" => push_issuer: Option<String> = None, "Issuer of these tokens: their claim `iss`. Defaults to the origin of `public_url`, or else of `listen`.";
    "push.credentials" => push_credentials: WebhookHosts = WebhookHosts::default(), "Credentials for webhooks whose configuration has none: a table for each host, `hooks.example.com` or `hooks.example.com:8443`, with `token_url`, `client_id`, and `client_secret` or `client_secret_file`, and optionally `scope`, `audience` and `resource`. The server requests an access token with the client credentials grant of OAuth 2.0 and sends it as `Authorization: Bearer`. Prefer a file or the environment variable: other users of the machine can see flags.";
    "limits.body_bytes" was "max_body" => limits_body_bytes: ByteSize = ByteSize(transport::BODY_BYTES), "Maximum size of a request body, and of a message over gRPC. Larger requests get 413.";
    "limits.body_timeout" was "body_timeout" => limits_body_timeout: Duration = transport::BODY_TIMEOUT, "Timeout for receiving a request body, on every binding. Then the request gets 408, or `DEADLINE_EXCEEDED` over gRPC.";
    "limits.header_bytes" => limits_header_bytes: ByteSize = ByteSize(transport::listener::HEADER_BYTES), "Maximum size of the head of a request: its URI, and 32 bytes for each header in addition to name and value. A larger one gets 431.";
    "limits.connections" was "max_connections" => limits_connections: usize = transport::listener::CONNECTIONS, "Maximum number of open connections for each listen address; more wait to be accepted.";
    "limits.connections_per_peer" => limits_connections_per_peer: usize = transport::CONNECTIONS_PER_PEER, "Maximum number of connections per client address; further ones are closed. An IPv6 /64 network counts as one address. Loopback addresses and `trusted_proxies` have no limit: behind a proxy, the open requests of each forwarded client address are counted instead. Zero: no limit.";
    "limits.request_rate_per_peer" => limits_request_rate_per_peer: u32 = 0, "Maximum number of requests per second of a client address, with a burst of as many; further ones get 429 with `Retry-After`. A JSON-RPC batch is one request. An IPv6 /64 network counts as one address; behind `trusted_proxies`, the forwarded address counts. Zero: no limit.";
    "limits.calls" => limits_calls: usize = Limits::default().calls, "Maximum number of calls in progress that are not streams, over all owners. A blocking send is in progress until its turn ends.";
    "limits.calls_per_owner" => limits_calls_per_owner: usize = Limits::default().calls_per_owner, "Maximum number of calls in progress of one owner, over all tenants. Callers without a name share one owner.";
    "limits.call_rate_per_owner" => limits_call_rate_per_owner: u32 = Limits::default().call_rate_per_owner, "Maximum number of calls per second of one owner, over all tenants, with a burst of as many. Each call of a JSON-RPC batch counts. Callers without a name are not limited: use `limits.request_rate_per_peer`. Zero: no limit.";
    "limits.incoming_bytes" was "limits.receiving_bytes" => limits_incoming_bytes: ByteSize = ByteSize(transport::INCOMING_BYTES), "Maximum total size of the request bodies that are being received. Beyond it, requests are rejected with 503; bodies of more than 16 KiB already at seven eighths of it. Requests of gRPC's health service have a budget of 4 MiB of their own. Zero: no limit.";
    "limits.outgoing_bytes" was "limits.unsent_bytes" => limits_outgoing_bytes: ByteSize = ByteSize(transport::OUTGOING_BYTES), "Maximum total size of responses that are being made or wait for slow readers, with a quarter added to each for the allocator. Beyond it, calls are rejected with 503 or `UNAVAILABLE`, except for health checks and the card. At half of it, a connection whose responses have more than an eighth of it is rejected, unless no other connection has any.";
    "limits.health_watches" => limits_health_watches: usize = transport::HEALTH_WATCHES, "Maximum number of open `Watch` streams of gRPC's health service, over all clients. Zero rejects all.";
    "limits.tasks" was "max_tasks" => limits_tasks: Option<usize> = None, "Maximum number of tasks in the store. At the limit, a new task evicts the task that reached its terminal state first; without one, it is rejected. If not set, 2000 in memory, and 1000000 in a file.";
    "limits.tasks_per_owner" was "max_tasks_per_owner" => limits_tasks_per_owner: Option<usize> = None, "Maximum number of tasks of one owner, over all tenants. At the limit, a new task evicts the owner's task that reached its terminal state first; without one, it is rejected. Defaults to `limits.tasks`.";
    "limits.turns" => limits_turns: usize = Limits::default().turns, "Maximum number of running turns, over all tasks. Messages that need another one wait (`limits.queued_turns`).";
    "limits.turns_per_owner" => limits_turns_per_owner: usize = Limits::default().turns_per_owner, "Maximum number of running turns of one task owner, over all tenants. Callers without a name share one owner.";
    "limits.queued_turns" => limits_queued_turns: usize = Limits::default().queued_turns, "Maximum number of new turns that wait for a running one to end, over all owners; a new task is SUBMITTED meanwhile. Beyond it, messages get 429. Zero: messages that need another turn at `limits.turns` or `limits.turns_per_owner` get 429.";
    "limits.queued_turns_per_owner" => limits_queued_turns_per_owner: usize = Limits::default().queued_turns_per_owner, "Maximum number of new turns of one task owner that wait, over all tenants. Zero: as for `limits.queued_turns`.";
    "limits.streams" => limits_streams: usize = Limits::default().streams, "Maximum number of open streams, over all tasks. Further ones are rejected.";
    "limits.streams_per_owner" => limits_streams_per_owner: usize = Limits::default().streams_per_owner, "Maximum number of open streams of one owner, over all tenants. Callers without a name share one owner.";
    "limits.streams_per_task" was "limits.subscribers" => limits_streams_per_task: usize = Limits::default().streams_per_task, "Maximum number of open streams of one task. Further subscriptions are rejected; streaming sends are not.";
    "limits.queued_messages" was "limits.waiting" => limits_queued_messages: usize = Limits::default().queued_messages, "Maximum number of messages that wait for a task whose agent is busy; more are rejected. Zero rejects every message to an existing task.";
    "limits.push_configs_per_owner" => limits_push_configs_per_owner: usize = 10_000, "Maximum number of push notification configurations of the tasks of one owner, over all tenants.";
    "limits.push_configs" was "max_push_configs" => limits_push_configs: usize = Limits::default().push_configs, "Maximum number of push notification configurations per task.";
    "limits.parts" => limits_parts: usize = Limits::default().parts, "Maximum number of parts in a message.";
    "limits.references" => limits_references: usize = Limits::default().references, "Maximum number of tasks that a message may reference.";
    "limits.json_depth" => limits_json_depth: usize = Limits::default().json_depth, "Maximum nesting of lists and objects in `data` and `metadata` of a request. The default is also the upper bound: decoders of protobuf read no deeper messages.";
    "limits.events" => limits_events: u64 = Limits::default().events, "Maximum number of events of a task, including its client's messages. A turn that exceeds it fails.";
    "limits.artifacts" => limits_artifacts: usize = Limits::default().artifacts, "Maximum number of artifacts of a task. A turn that exceeds it fails.";
    "limits.event_bytes" => limits_event_bytes: ByteSize = ByteSize(Limits::default().event_bytes), "Maximum size of an event, encoded in protobuf: of an artifact chunk, of a status with its message, of a client's message. A turn that exceeds it fails. Clients of gRPC accept 4 MiB unless configured otherwise. Minimum 1 KiB.";
    "limits.artifact_bytes" => limits_artifact_bytes: ByteSize = ByteSize(Limits::default().artifact_bytes), "Maximum size of an artifact. A turn that exceeds it fails.";
    "limits.task_bytes" => limits_task_bytes: ByteSize = ByteSize(Limits::default().task_bytes), "Maximum total size of all events of a task, including its client's messages. A turn that exceeds it fails, and further messages are rejected.";
    "limits.context_bytes" => limits_context_bytes: ByteSize = ByteSize(Limits::default().context_bytes), "Maximum total size of the events of all tasks of a context. A turn that exceeds it fails, and further messages are rejected. The size of a context without live tasks is read from the store with its next message, and limits new tasks from then on. Deleted tasks do not count. Zero rejects all messages.";
    "limits.batch_calls" => limits_batch_calls: usize = transport::BATCH_CALLS, "Maximum number of calls in a JSON-RPC batch. A larger batch is rejected.";
    "limits.batch_bytes" => limits_batch_bytes: ByteSize = ByteSize(transport::BATCH_BYTES), "Maximum total size of the results of a JSON-RPC batch. A call whose result exceeds it gets an error.";
    "limits.page_bytes" => limits_page_bytes: ByteSize = ByteSize(Limits::default().page_bytes), "Maximum size of a page of `ListTasks`, encoded in protobuf. A page that reaches it ends early, with a token for the next page. A larger task gets a page of its own.";
    "limits.history_bytes" => limits_history_bytes: ByteSize = ByteSize(Limits::default().history_bytes), "Maximum size of the history of a task in a response, encoded in protobuf: the newest messages that fit, whatever `historyLength` requests. The newest message is always included; zero leaves that alone.";
    "card.file" => card_file: Option<CardFile> = None, "File with an agent card in JSON, of 1.0 or 0.3. Its name, description, version, provider, URLs, media types, skills, extensions and `streaming` apply where the other keys of `card` are not set. Its interfaces, security and signatures are not used: the server lists its own.";
    "card.name" => card_name: Option<String> = None, "Name of the agent. Defaults to the agent's own value.";
    "card.description" => card_description: Option<String> = None, "Description of the agent. Defaults to the agent's own value.";
    "card.version" => card_version: Option<String> = None, "Version of the agent. Defaults to the agent's own value.";
    "card.icon_url" => card_icon_url: Option<String> = None, "URL of the agent's icon. Defaults to the agent's own value.";
    "card.documentation_url" => card_documentation_url: Option<String> = None, "URL of the agent's documentation. Defaults to the agent's own value.";
    "card.provider" => card_provider: Option<Structure<ProviderConfig>> = None, "Provider of the agent: `organization` and `url`. Defaults to the agent's own value.";
    "card.input_modes" => card_input_modes: Option<Vec<String>> = None, "Media types that the agent accepts. Defaults to the agent's own value.";
    "card.output_modes" => card_output_modes: Option<Vec<String>> = None, "Media types that the agent produces. Defaults to the agent's own value.";
    "card.skills" => card_skills: Option<Structure<Vec<SkillConfig>>> = None, "Skills of the agent: tables with `id`, `name` and `description`, and optionally `tags`, `examples`, `input_modes` and `output_modes`. Defaults to the agent's own value.";
    "card.extensions" => card_extensions: Option<Structure<Vec<ExtensionConfig>>> = None, "Protocol extensions that the agent supports: tables with `uri`, and optionally `description`, `required` and `params`. Defaults to the agent's own value.";
    "card.interfaces" => card_interfaces: Option<Structure<Vec<InterfaceConfig>>> = None, "Additional interfaces of the agent, listed after the server's own: tables with `url` and `binding`, and optionally `tenant` and `version`.";
    "card.capabilities" => card_capabilities: Option<Structure<CapabilitiesConfig>> = None, "Capabilities on the card. `streaming = false` also rejects streaming calls. `state_transition_history = true` declares an agent that provides the history of its states, on cards of 0.3 only.";
    "card.security_schemes" => card_security_schemes: Option<Structure<SchemesConfig>> = None, "Security schemes by name, in the form of OpenAPI: tables with `type` and the members of that type. The program lists the schemes that it checks instead. It does not start with this key and without authentication.";
    "card.security" => card_security: Option<Structure<Vec<Requirement>>> = None, "Security requirements, of which a call has to meet one: tables with scopes by the name of a scheme in `card.security_schemes`.";
    "card.format" was "card.shape" => card_format: CardVersion = CardVersion::Merged, "Form of the card for requests that do not name a protocol version: that of 1.0, that of 0.3, or both merged into one document. If 0.3 is not served, always that of 1.0.";
    "card.formats_by_host" was "card.shapes" => card_formats_by_host: Option<Structure<BTreeMap<String, CardVersion>>> = None, "Form of the card by the requested host, as `\"host\" = \"1.0\"`. Overrides `card.format`.";
    "card.protected" => card_protected: bool = false, "Requires authentication for the agent card. Requests without valid credentials get 401.";
    "card.extended" => card_extended: ExtendedCardAccess = ExtendedCardAccess::Off, "Callers who get the extended agent card: nobody; callers with the scope `card:extended`, even if nothing else requires credentials; or all.";
    "card.extended_skills" => card_extended_skills: Option<Structure<Vec<ExtendedSkillConfig>>> = None, "Skills on the extended agent card only: tables as in `card.skills`, and optionally `scope`, which callers need to see the skill.";
    "card.signing_key" => card_signing_key: Option<FilePath> = None, "File with the private key that signs the agent card, in PKCS#8 PEM: P-256, Ed25519, or RSA. The public key is at `/.well-known/jwks.json`. If not set, the card is not signed.";
    "card.grpc_url" was "card.grpc" => card_grpc_url: Option<GrpcAddress> = None, "Address of gRPC on the card, if it differs from that of the other bindings: `host:port`, optionally after `dns:///`, or a URL without a path.";
    "card.grpc_url_v03" was "card.grpc_v03" => card_grpc_url_v03: Option<GrpcAddress> = None, "Address of gRPC on the card for clients of 0.3, some of which need a URL such as `https://agent.example:443`. Defaults to the address for 1.0.";
    "card.bindings" => card_bindings: Vec<ProtocolBinding> = ProtocolBinding::ALL.to_vec(), "Bindings that the card lists among the server's own interfaces of 1.0: `JSONRPC`, `HTTP+JSON` and `GRPC`. The others are still served.";
    "card.bindings_v03" => card_bindings_v03: Vec<ProtocolBinding> = ProtocolBinding::ALL.to_vec(), "Bindings that the card lists among the server's own interfaces of 0.3. Omit `GRPC` for clients that can't parse a bare `host:port`.";
}

impl Config {
    /// Returns true if callers are authenticated.
    pub(crate) fn has_authentication(&self) -> bool {
        let has_secrets = self.token.is_some() || self.auth_tokens.is_some();
        has_secrets || self.auth_jwt_issuer.is_some() || self.auth_mtls.is_some()
    }

    /// Limits of the execution of turns.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            turn_deadline: self.turn_deadline,
            turn_idle_timeout: self.turn_idle_timeout,
            stream_max_age: self.stream_max_age,
            commit_interval: self.turn_commit_interval,
            cancel_grace: self.cancel_grace,
            send_timeout: self.send_timeout,
            queued_messages: self.limits_queued_messages,
            parts: self.limits_parts,
            references: self.limits_references,
            json_depth: self.limits_json_depth,
            events: self.limits_events,
            artifacts: self.limits_artifacts,
            event_bytes: self.limits_event_bytes.0,
            artifact_bytes: self.limits_artifact_bytes.0,
            task_bytes: self.limits_task_bytes.0,
            context_bytes: self.limits_context_bytes.0,
            turns: self.limits_turns,
            turns_per_owner: self.limits_turns_per_owner,
            queued_turns: self.limits_queued_turns,
            queued_turns_per_owner: self.limits_queued_turns_per_owner,
            streams: self.limits_streams,
            streams_per_owner: self.limits_streams_per_owner,
            streams_per_task: self.limits_streams_per_task,
            calls: self.limits_calls,
            calls_per_owner: self.limits_calls_per_owner,
            call_rate_per_owner: self.limits_call_rate_per_owner,
            push_configs: self.limits_push_configs,
            page_bytes: self.limits_page_bytes.0,
            history_bytes: self.limits_history_bytes.0,
            ..Limits::default()
        }
    }

    /// Retention times of the store.
    pub(crate) fn retention(&self) -> Retention {
        let mut retention = Retention::FOREVER;
        (retention.finished, retention.idle) = (self.retention_finished.0, self.retention_idle.0);
        (retention.logs, retention.push) = (self.retention_logs.0, self.retention_push.0);
        retention.undelivered = self.push_max_age.0;
        (retention.idempotency_keys, retention.interval) = (self.retention_idempotency_keys.0, self.retention_interval);
        retention
    }

    /// Delivery of push notifications.
    pub(crate) fn push(&self) -> PushOptions {
        PushOptions {
            allow: self.push_allow.clone(),
            ports: self.push_ports.clone(),
            events: self.push_events,
            v03_payload: self.push_v03_payload,
            plain_json: self.push_plain_json,
            max_age: self.push_max_age.0,
            timeout: self.push_timeout,
            concurrency: self.push_concurrency,
            per_host: self.push_per_host,
            dead_letters: self.push_dead_letters,
            issuer: self.push_issuer.clone(),
            ..PushOptions::default()
        }
    }

    /// Constraints on the media types of messages.
    pub(crate) fn modes(&self) -> Modes {
        let mut modes = Modes::default();
        (modes.strict_media_types, modes.require_text) = (self.strict_media_types, self.require_text);
        modes
    }

    /// Agent card values that override the agent's own.
    pub(crate) fn card(&self) -> CardConfig {
        fn value<T: Clone>(structure: Option<&Structure<T>>) -> Option<T> {
            structure.map(|structure| structure.value.clone())
        }
        let file = self.card_file.as_ref().map(|file| file.card.clone()).unwrap_or_default();
        CardConfig {
            name: self.card_name.clone().or(file.name),
            description: self.card_description.clone().or(file.description),
            version: self.card_version.clone().or(file.version),
            provider: value(self.card_provider.as_ref()).or(file.provider),
            icon_url: self.card_icon_url.clone().or(file.icon_url),
            documentation_url: self.card_documentation_url.clone().or(file.documentation_url),
            input_modes: self.card_input_modes.clone().or(file.input_modes),
            output_modes: self.card_output_modes.clone().or(file.output_modes),
            skills: value(self.card_skills.as_ref()).or(file.skills),
            extensions: value(self.card_extensions.as_ref()).or(file.extensions),
            interfaces: value(self.card_interfaces.as_ref()).unwrap_or_default(),
            capabilities: value(self.card_capabilities.as_ref()).unwrap_or(file.capabilities),
            security_schemes: value(self.card_security_schemes.as_ref()).unwrap_or_default(),
            security: value(self.card_security.as_ref()).unwrap_or_default(),
            format: Some(self.card_format),
            formats_by_host: value(self.card_formats_by_host.as_ref()).unwrap_or_default(),
            grpc_url: self.card_grpc_url.as_ref().map(|address| address.0.clone()),
            grpc_url_v03: self.card_grpc_url_v03.as_ref().map(|address| address.0.clone()),
            bindings: Some(self.card_bindings.clone()),
            bindings_v03: Some(self.card_bindings_v03.clone()),
        }
    }
}

/// Returns the reference of all keys with their types, defaults and descriptions, in Markdown.
pub(crate) fn reference() -> String {
    let defaults = Config::default();
    let mut text = INTRODUCTION.to_owned();
    for key in KEYS {
        let default = key.show(&defaults).map_or_else(|| "not set".to_owned(), |value| format!("`{value}`"));
        let (name, kind, description) = (key.name, key.kind, key.description);
        let (variable, flag) = (key.variable(), key.flag());
        // Writing to memory does not fail.
        _ = write!(
            text,
            "\n## `{name}`\n\n{description}\n\n- {kind}; default: {default}\n- `{variable}`, `--{flag}`\n"
        );
        for short in key.short {
            _ = writeln!(text, "- shorthand: `{short} = {default}`", default = default.trim_matches('`'));
        }
        for former in key.former {
            _ = writeln!(text, "- formerly `{former}`");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_of_keys_are_unique() {
        let names = |key: &Key| [&[key.name], key.short, key.former].concat();
        for names in [
            KEYS.iter().flat_map(|key| key.former_variables().chain([key.variable()])).collect::<Vec<_>>(),
            KEYS.iter().flat_map(|key| key.former_flags().chain([key.flag()])).collect(),
            KEYS.iter().flat_map(names).map(str::to_owned).collect(),
        ] {
            let unique: BTreeSet<_> = names.iter().map(String::as_str).chain(["A2A_CONFIG", "config"]).collect();
            assert_eq!(unique.len(), names.len() + 2);
        }
        for key in KEYS {
            let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_');
            assert!(key.name.chars().all(is_allowed) && key.description.ends_with('.'), "{}", key.name);
        }
    }

    #[test]
    fn undelivered_notifications_are_retained_up_to_their_maximum_age() {
        let hour = OptionalTimeout(Some(Duration::from_hours(1)));
        let config = Config { push_max_age: hour, ..Config::default() };
        assert_eq!(config.retention().undelivered, hour.0);
    }

    #[test]
    fn printed_defaults_parse_to_equal_values() {
        let config = Config::default();
        for key in KEYS {
            let Some(printed) = key.show(&config) else { continue };
            let mut read = config.clone();
            let value = DeValue::parse(&printed).unwrap();
            (key.read)(&mut read, RawValue::Toml(&value)).unwrap();
            assert_eq!(key.show(&read), Some(printed), "{}", key.name);
        }
    }
}
