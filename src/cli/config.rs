//! Server configuration: the table of all keys, with types and descriptions, and the values that they set.
//!
//! The configuration file, environment variables, command-line flags and the reference are derived from this table. Flags
//! override environment variables, and those override the file. No other module reads the environment.

use std::{collections::BTreeMap, fmt::Write as _, net::SocketAddr, path::PathBuf, time::Duration};

use toml::{Spanned, de::DeValue};

mod address;
mod load;
mod mcp;
mod secret;
mod store_path;
mod upstream_header;
mod value;
mod webhook_credentials;

pub(crate) use self::{
    address::{AgentUrl, DEFAULT_LISTEN},
    load::{
        Error, LoadedConfig, Origin,
        agents::AgentConfig,
        environment::{CLIENT_API_KEY_VARIABLE, CLIENT_SECRET_VARIABLE, CLIENT_TOKEN_VARIABLE, hops, metrics_export},
        load,
    },
    secret::{MIN_TOKEN, Sourced},
    store_path::{DatabaseUrl, StorePath},
    value::{
        AuthRequire, Certificate, ClusterWake, CommandFormat, CommandLine, HealthReady, OfferedExtension, SpanContent,
        Value,
    },
};
use self::{
    address::{BaseUrl, CollectorUrl, GrpcAddress, ListenAddresses, authority},
    mcp::McpServers,
    upstream_header::UpstreamHeader,
    value::{ByteSize, CardFile, Filter, OptionalTimeout, Ratio, Structure},
    webhook_credentials::WebhookHosts,
};
use crate::{
    agents::OpenaiOptions,
    cli::{log::LogFormat, show::wrapped},
    protocol::version::Protocols,
    server::{self, Console},
    service::{
        IdempotencySource, Limits, LiveMemory,
        auth::{CertificateName, Token},
        card::{CardConfig, ExtendedCardAccess, Network, ProtocolBinding, SkillConfig},
        push::{AllowedTarget, PushOptions},
    },
    store::{DEFAULT_LEASE, Retention, sqlite::Durability},
    transport::{self, AllowedHost, AllowedOrigin, FileBytes},
};

/// Default path of the SQLite file, in the working directory like `a2a.toml`: a copy of one directory has all of a server.
const DEFAULT_STORE_FILE: &str = "a2a.db";

/// Default of `limits.turns` if the agent is a command: the number of commands that run at the same time.
const COMMANDS: usize = 64;

/// Retention of push configurations, unless notifications are retried for longer.
const PUSH_RETENTION: Duration = Duration::from_hours(24);

/// Introduction of the reference.
const INTRODUCTION: &str = include_str!("config/introduction.md");

/// Agents that may have a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// The key applies to the whole server.
    Server,
    /// Each of several agents may override the key.
    Agent,
}

/// Declaration of a configuration key.
pub(crate) struct Setting {
    /// Name in the file, with a dot between table and key.
    pub(crate) name: &'static str,
    /// Shorthand in place of the table: `exec = "cat"` is `[exec] command`. The variable and the flag have this name.
    short: Option<&'static str>,
    scope: Scope,
    /// Description, as full sentences.
    pub(crate) description: &'static str,
    /// Type of the value, for the reference and the help.
    pub(crate) kind: &'static str,
    /// The value is redacted wherever it is printed.
    pub(crate) secret: bool,
    /// The value may be in a file, which the variable with the suffix `_FILE` names.
    is_file_allowed: bool,
    /// Value of the flag without an argument.
    pub(crate) value_without_argument: Option<&'static str>,
    read: fn(&mut Config, RawValue<'_, '_>) -> Result<(), String>,
    /// Formats the value of this key as TOML. Returns `None` if it is not set.
    pub(crate) show: fn(&Config) -> Option<String>,
}

/// Configured value before it is parsed: text of a variable or flag, TOML of the file, or the path of a file with the text.
#[derive(Clone, Copy)]
enum RawValue<'a, 't> {
    Text(&'a str),
    Toml(&'a Spanned<DeValue<'t>>),
    Path(&'a str),
}

impl RawValue<'_, '_> {
    fn read<T: Value>(self) -> Result<T, String> {
        match self {
            Self::Text(text) => T::read(text),
            Self::Toml(value) => T::from_toml(value),
            Self::Path(path) => T::from_file(path.as_ref()),
        }
    }
}

impl Setting {
    /// Returns the name of the environment variable: `A2A_TURN_DEADLINE` for `turn.deadline`.
    pub(crate) fn variable(&self) -> String {
        format!("A2A_{}", self.shortest_name().replace('.', "_").to_uppercase())
    }

    /// Returns the name of the variable with the path of a file that has the value, if the key allows that.
    fn file_variable(&self) -> Option<String> {
        self.is_file_allowed.then(|| format!("{}_FILE", self.variable()))
    }

    /// Returns the name of the flag without its leading dashes: `turn-deadline` for `turn.deadline`.
    pub(crate) fn flag(&self) -> String {
        self.shortest_name().replace(['.', '_'], "-")
    }

    /// Returns the table of the key. Empty for a key outside of tables.
    pub(crate) fn table(&self) -> &'static str {
        self.name.rsplit_once('.').map_or("", |(table, _)| table)
    }

    /// Returns the type, the default and the other names of the key, on one line.
    fn facts(&self, defaults: &Config) -> String {
        let default = (self.show)(defaults).map_or_else(|| "not set".to_owned(), |value| format!("`{value}`"));
        let scope = if self.scope == Scope::Agent { "; per agent" } else { "" };
        let short = self.short.map(|short| format!("; shorthand `{short}`")).unwrap_or_default();
        format!("{}; default: {default}{short}{scope}; `{}`, `--{}`", self.kind, self.variable(), self.flag())
    }

    fn shortest_name(&self) -> &'static str {
        self.short.unwrap_or(self.name)
    }
}

/// Declares the keys, one per line: scope, name, optional shorthand, field of [`Config`], type, description. The type is that of
/// the field, or one that converts from it and into it.
macro_rules! keys {
    ($($scope:ident $name:literal $(| $short:literal)? => $($field:ident).+: $type:ty, $description:literal;)*) => {
        /// All keys, in the order of the reference.
        pub(crate) static KEYS: &[Setting] = &[$(Setting {
            name: $name,
            short: keys!(@short $($short)?),
            scope: Scope::$scope,
            description: $description,
            kind: <$type as Value>::KIND,
            secret: <$type as Value>::SECRET,
            is_file_allowed: <$type as Value>::FROM_FILE,
            value_without_argument: <$type as Value>::WITHOUT_ARGUMENT,
            read: |config, value| {
                config.$($field).+ = value.read::<$type>()?.into();
                Ok(())
            },
            show: |config| <$type>::from(config.$($field).+.clone()).show(),
        }),*];
    };
    (@short) => { None };
    (@short $short:literal) => { Some($short) };
}

keys! {
    Server "listen" => listen: ListenAddresses, "Addresses to listen on, each for all bindings. A port alone is one of 127.0.0.1. Port 0 picks a free port; the first line of output shows it.";
    Server "public_url" => public_url: Option<BaseUrl>, "Base URL at which clients reach this server, for the agent card. Everything is served below its path too, so that a proxy may keep the path or strip it. If not set, the card uses the URL of the request, or else the listen address.";
    Server "trusted_proxies" => trusted_proxies: Vec<Network>, "IP addresses and CIDR ranges of proxies whose `Forwarded` and `X-Forwarded-*` headers are trusted.";
    Server "allowed_hosts" => allowed_hosts: Vec<AllowedHost>, "Hosts that requests may name: `agent.example`, `agent.example:8080`, `*.agent.example`, or `*` for all. Loopback names, IP addresses, and the host of `public_url` are always allowed. Other hosts get 421, which protects against DNS rebinding. If not set, only servers on a loopback address check the host.";
    Server "cors_origins" => cors_origins: Vec<AllowedOrigin>, "Origins of web pages that may call this server, such as `https://app.example`, or `*` for all. The server's own origin is always allowed. Pages of other origins get 403, except for the agent card, the key set, API documents, pages and health checks. A page sends its credentials in a header: those that a browser adds by itself, such as cookies, are never shared with other origins (no `Access-Control-Allow-Credentials`).";
    Server "token" => token: Option<Sourced<Token>>, "Bearer token that callers send, required on every request except those for the agent card, the key set, API documents, pages and health checks.";
    Server "insecure" => insecure: bool, "Allows a non-loopback listen address without authentication. All callers then share one anonymous owner and see each other's tasks.";
    Server "protocols" => protocols: Protocols, "Protocol versions to serve: `1.0`, and `0.3`, which includes the parts of 0.2 that are identical. With both, the card for requests that do not name a version has the members of both.";
    Agent "strict" => strict: bool, "Rejects calls that the server tolerates otherwise: calls that do not name their protocol version, whose version is inferred from their form; callers of 0.3 that do not request an extension which the card requires; messages with a part whose media type is not on the card, and messages whose senders accept no output media type of the card. A message that names a skill of the card in `metadata.skillId` must fit the media types of that skill. A part without a media type has the default of its kind: `text/plain`, `application/json` or `application/octet-stream`.";
    Agent "extensions" => extensions: Vec<OfferedExtension>, "Protocol extensions to offer on the agent card: `resume` (`urn:a2a-service:resume:v1`) for cursors in the metadata of events, over gRPC too, and marks where events are missing; `secret_parts` (`urn:a2a-service:secret:v1`) for parts that only the agent may read. Marked parts are redacted in any case.";
    Agent "signing_keys" => signing_keys: Option<PathBuf>, "File with private keys in PKCS#8 PEM: P-256, Ed25519, or RSA. The first one signs the agent card and the tokens of push notifications. The public keys of all are at `/.well-known/jwks.json`. If not set, the card is not signed, and a key for notifications is generated and stored in a file next to that of the store, `a2a.db.keys.pem` for `a2a.db`. With a store in memory, each start generates another key. With a PostgreSQL database and `push.enabled`, it must be set.";
    Agent "idempotent" => idempotent: bool, "A turn of the agent may run twice: a turn that was interrupted by the end of the server runs again, and a request to an HTTP endpoint is repeated if its outcome is unknown or the endpoint is overloaded. Otherwise the task of an interrupted turn fails. An upstream agent decides by itself.";
    Agent "idempotency" => idempotency: IdempotencySource, "Idempotency key of a send: the header `Idempotency-Key` alone, or the message id if there is no header. A repeated send with the same key gets the result of the first one. A send with a key always has a task, even if the agent answers with a message.";
    Server "v03_file_bytes" => v03_file_bytes: FileBytes, "Encoding of file bytes for clients of 0.3 over gRPC and HTTP+JSON, whose SDKs disagree: base64, the raw bytes, or the encoding that the `User-Agent` of the client is known to expect.";
    Agent "send_timeout" => limits.send_timeout: Option<Duration>, "Timeout of a blocking send. When it expires, the client gets the task in its current state, such as `TASK_STATE_WORKING`, and has to poll or subscribe. If not set, a blocking send waits until the task is terminal or needs input or authorization, as the protocol demands; `turn.deadline` bounds that. Zero answers as soon as the message is stored. Set it below the timeout of a proxy that closes idle requests.";
    Server "idle_timeout" => connections.idle_timeout: Duration, "Idle timeout for connections: between two requests of HTTP/1.1, and without open streams of HTTP/2, even if pings are answered. Set it above the idle timeout of a load balancer in front of the server. Zero disables it.";
    Server "shutdown_grace" => connections.shutdown_grace: Duration, "Grace period for running turns and open requests when the server stops. Then they are interrupted; turns that were interrupted are recovered at the next start, or at once by another server of a PostgreSQL database.";
    Server "console" => console: Option<Console>, "Page at `/` for browsers, to talk to the agent and to see what it does: with all views, or `\"developer\"` without those of the operator API. The page has no data of its own: views show what the caller may read. `false` removes the page, and not the operator API. If not set, `true` if the listen address is a loopback address, and otherwise `\"developer\"`.";
    Server "docs" => docs: Option<bool>, "Enables the page `/docs`: Swagger UI with the OpenAPI documents. If not set, the page is enabled if the listen address is a loopback address.";
    Server "metrics_listen" => metrics_listen: Option<SocketAddr>, "Address that serves only `/metrics`, in the text format of Prometheus, and health checks. On a loopback address, its callers are not authenticated. If set, `/metrics` is served only there. Otherwise it is served on `listen`: to callers with the scope `admin`, or, if callers are not authenticated, on loopback addresses only.";
    Server "health.interval" => health.interval: Duration, "Interval between checks of what an agent needs for its turns while it is not used: its upstream agent, endpoint, model, tool servers or command. What is down is checked after 1, 2, 4 … 30 s. Zero checks only what is down.";
    Server "health.ready" => health.ready: HealthReady, "Readiness of the server, at `/readyz`: depends on the store alone, or also on the agents: not ready while every agent has lacked something that it needs for 30 s. Reads, streams and push notifications work without it.";
    Agent "exec.command" | "exec" => exec.command: Option<CommandLine>, "Command that is the agent: a program with its arguments, as text or as a list. It runs for each turn, reads the message from stdin, and its stdout becomes an artifact. For pipes and variables, write `sh -c '…'`. `limits.turns` is the number of commands that run at the same time.";
    Agent "exec.format" => exec.format: CommandFormat, "Format of stdin and stdout: text; a JSON object on each line, the turn on stdin, and events on stdout; or such lines of all turns for one command that keeps running.";
    Agent "exec.workspace" => exec.workspace: Option<PathBuf>, "Directory with a directory for each task, in which the command runs. They are not deleted. If not set, the command runs in the working directory of the server.";
    Agent "exec.env" => exec.env: Option<Structure<BTreeMap<String, String>>>, "Further environment variables of the command, by name. Those of the server are passed too, except for `A2A_…`, `PGPASSWORD`, `PGPASSFILE` and `OTEL_…_HEADERS`.";
    Agent "exec.memory" => exec.memory: Option<ByteSize>, "Maximum address space of each process of a command.";
    Agent "http.url" | "http" => http.url: Option<AgentUrl>, "URL of an endpoint that is the agent: each turn is a POST request, and the response has the events of the turn.";
    Agent "http.token" => http.token: Option<Sourced<Token>>, "Bearer token for the endpoint.";
    Agent "http.secret" => http.secret: Option<Sourced<Token>>, "Secret that signs the requests, as in Standard Webhooks.";
    Agent "openai.url" | "openai" => openai.url: Option<AgentUrl>, "Base URL of a chat completions API. The agent is then its model. Requests go to `/chat/completions` below the URL, such as `http://localhost:11434/v1`.";
    Agent "openai.model" => openai.model: Option<String>, "Name of the model. The agent has this name too unless `card.name` is set.";
    Agent "openai.key" => openai.key: Option<Sourced<Token>>, "Key of the API, which is sent as a bearer token.";
    Agent "openai.system" => openai.system: Option<Sourced<String>>, "System prompt. It is not on the agent card.";
    Agent "openai.parameters" => openai.parameters: Option<Structure<serde_json::Map<String, serde_json::Value>>>, "Further members of the requests, such as `temperature` and `max_tokens`. With `stream = false`, answers are not streamed.";
    Agent "openai.history" => openai.options.history: usize, "Maximum number of messages of earlier tasks of the context in a request. The newest tasks that fit into 4 MiB are sent. Zero: each task is a conversation of its own.";
    Agent "openai.image_urls" => openai.options.image_urls: bool, "Passes URLs of images on to the API, which loads them. Callers could then send an API in a private network to internal addresses. Otherwise, messages with such URLs are rejected.";
    Agent "openai.ask" => openai.options.ask: bool, "Offers the model a tool, `ask_user`, with which it asks the caller. The task then waits for the answer (`INPUT_REQUIRED`). The API and the model must support tools.";
    Agent "openai.mcp" => openai.mcp: McpServers, "MCP servers whose tools the model can call, up to 25 times in a turn: tables with `name`, and either `command` (a list of words) or `url` (streamable HTTP), and optionally `env` of a command, `token` of a URL, `timeout` of the start and of each call, `result_bytes`, and `approve`: a list of tools whose calls the client has to approve, or `\"all\"`. The tools are the skills of the card unless it has others.";
    Agent "upstream.url" | "upstream" => upstream.url: Option<AgentUrl>, "URL of another A2A agent, or of its card, to which all messages are passed. The card has its name, description and skills, and follows its changes every 5 minutes. With tasks in a file, the card is stored in a file next to it, `a2a.db.upstream.json` for `a2a.db`, and used if the agent can't be reached at the start.";
    Agent "upstream.token" => upstream.token: Option<Sourced<Token>>, "Bearer token for the agent at `upstream.url`. It is sent to the origin of that URL only.";
    Agent "upstream.forward" => upstream.forward: Vec<UpstreamHeader>, "Names of headers of callers that are passed on to the agent at `upstream.url`, such as `authorization`, in calls for their turns. They are sent to the origin of that URL only, take precedence over `upstream.token`, and are neither stored nor logged: a turn that is interrupted by the end of the server runs again without them.";
    Server "auth.tokens" => auth.tokens: Option<PathBuf>, "File with the tokens and API keys of callers, as hashes. `a2a token new` makes a token and the file. Changes take effect within a second. The card lists the kinds of tokens that the file has at the start.";
    Server "auth.require" => auth.require: AuthRequire, "Credentials that a request needs if there are several of `token`, `auth.tokens`, `auth.jwt` and `auth.mtls`: any of them, or all.";
    Server "auth.mtls" => auth.mtls: Option<CertificateName>, "Accepts client certificates as credentials: `uri` or `dns` is the type of the subject alternative name that identifies the caller and the owner of its tasks; `subject` is the distinguished name of the certificate, such as `CN=agent,O=Example`. Needs `tls.client_ca`.";
    Server "auth.mtls_names" => auth.mtls_names: Vec<String>, "Accepted names of client certificates. Empty: all that the authorities in `tls.client_ca` have certified.";
    Server "auth.mtls_scopes" => auth.mtls_scopes: Vec<String>, "Scopes of callers with a client certificate. Empty: all scopes.";
    Server "auth.jwt.issuer" => auth.jwt.issuer: Option<String>, "Issuer of JSON Web Tokens, whose tokens are then accepted as bearer tokens: their claim `iss`. Clocks may differ by a minute.";
    Server "auth.jwt.audience" => auth.jwt.audience: Vec<String>, "Audiences of the tokens, of which their claim `aud` must have one: the names of this server at the issuer.";
    Server "auth.jwt.jwks" => auth.jwt.jwks: Option<String>, "Public keys of the issuer: the URL or the file of a JSON Web Key Set. If not set, they are found by OpenID Connect Discovery.";
    Server "auth.jwt.owner_claim" => auth.jwt.owner_claim: String, "Claim with the owner of the tasks.";
    Server "auth.jwt.tenant_claim" => auth.jwt.tenant_claim: Option<String>, "Claim with the tenant to which the caller is bound. If set, tokens without it are rejected.";
    Server "auth.jwt.scope_claim" => auth.jwt.scope_claim: String, "Claim with the scopes of the caller, a text with spaces or a list; `scp` is read if there is no `scope`. A token without scopes permits nothing. Empty: all scopes for every token.";
    Server "tls.cert" => tls.cert: Option<Certificate>, "File with the certificate chain of the server in PEM. All addresses then have TLS 1.2 and 1.3. Changes of the files take effect within a second, for new connections. `self_signed` generates a certificate for `localhost`, loopback and listen addresses and the host of `public_url` at each start, for development: clients can't verify it.";
    Server "tls.key" => tls.key: Option<PathBuf>, "File with the private key of the certificate in PEM.";
    Server "tls.client_ca" => tls.client_ca: Option<PathBuf>, "File with the authorities of client certificates in PEM. Each client then needs a certificate, which restricts who can connect. It is optional only if `auth.mtls` is one of several schemes of which a request needs any (`auth.require`).";
    Server "log.format" | "log" => log.format: LogFormat, "Log format on stderr: short lines for people if stderr is a terminal, and otherwise text; text, which is `name=value` on a line for each event (logfmt); or a JSON object on each line.";
    Server "log.filter" => log.filter: Filter, "Log filter: a level for all targets, and levels for single ones, such as a crate or module. The variable `RUST_LOG` sets it too, unless `A2A_LOG_FILTER` is set.";
    Server "log.wire" => log.wire: bool, "Enables the wire log, under the target `a2a_service::wire`: each request as received, the call of 1.0 that it stands for, and the response. Credentials are redacted; message content is not.";
    Server "otlp.endpoint" => otlp.endpoint: Option<CollectorUrl>, "Base URL of a collector, such as `http://localhost:4318`, to which spans are exported by OTLP over HTTP. If not set, nothing is measured or sent. The variables `OTEL_EXPORTER_OTLP_ENDPOINT` and `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` set it too, unless this key is set; `OTEL_EXPORTER_OTLP_HEADERS` has headers such as credentials, `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` describe the server, and `OTEL_SDK_DISABLED=true` turns all off.";
    Server "otlp.sample" => otlp.sample: Ratio, "Ratio of the traces that begin here and are exported. A trace of a caller who is authenticated, on this machine or a trusted proxy is exported if that caller exports it. At most 500 traces per second. `OTEL_TRACES_SAMPLER` and `OTEL_TRACES_SAMPLER_ARG` set it too, unless this key is set.";
    Server "otlp.content" => otlp.content: SpanContent, "Contents in spans: none, or the messages and tool calls of models, up to 8 KiB each. Turns of messages with secret parts have none. Spans never have headers and credentials.";
    Agent "turn.deadline" => limits.turn_deadline: Duration, "Maximum duration of one turn; a turn that exceeds it fails. Zero fails every turn that does not end at once.";
    Agent "turn.idle_timeout" => limits.turn_idle_timeout: Duration, "Idle timeout of an agent: a turn without an update for this long fails. Waiting for authorization or for the store does not count. Zero disables it.";
    Agent "store.path" | "store" => store.path: StorePath, "Store of the tasks: a SQLite file, which is created if it does not exist; memory, which is lost when the process ends; or a PostgreSQL database, which several servers share, as a URL of libpq with one or more hosts. Its parameter `schema`, by default `a2a`, names the schema. A password is taken from `PGPASSWORD`, `PGPASSFILE` or `~/.pgpass` if the URL has none. The default is in the directory that systemd creates (`STATE_DIRECTORY`), or else in the working directory.";
    Agent "store.durability" => store.durability: Durability, "Failures that a commit to a file survives: the end of the process, or also a power failure, for which each commit waits for the disk.";
    Agent "store.max_size" => store.max_size: Option<ByteSize>, "Maximum size of the store's file. A task whose result exceeds it fails with the name of this limit; when the file is full, new work is rejected, as on a full disk. Deleted data frees capacity. The server does not start with a file that is already larger. If not set, only the disk limits it.";
    Agent "store.prepared" => store.prepared: bool, "Prepares statements, and sets timeouts of sessions. Set it to false if a pool such as PgBouncer shares connections between transactions, and set `statement_timeout` and `lock_timeout` in the database.";
    Agent "store.listen" => store.listen: Option<DatabaseUrl>, "URL of the database without such a pool, for the connection that receives notifications. If not set, a replica behind a pool polls.";
    Server "cluster.lease" => cluster.lease: Duration, "Time without a sign of life after which other servers of the same database take over the tasks of a server. At least 3 s.";
    Server "cluster.key" => cluster.key: Option<Sourced<Token>>, "Secret of all servers of a database, at least 32 characters. It encrypts secret parts and forwarded headers of messages for a turn that another server runs. If not set, such messages are rejected.";
    Server "cluster.wake" => cluster.wake: ClusterWake, "How servers learn what others did: by notifications of the database, or by polling alone: a stream at another server waits up to half a second, and a message or cancel there up to a second.";
    Agent "retention.finished" => retention.finished: OptionalTimeout, "Retention of a task after it has reached a terminal state. Zero keeps it until `limits.tasks` evicts it.";
    Agent "retention.idle" => retention.idle: OptionalTimeout, "Maximum time that a task waits for input or authorization from its client. Then it is canceled, and retained like any other task in a terminal state. Zero: no limit.";
    Agent "retention.logs" => retention.logs: OptionalTimeout, "Retention of the event log of a task in a file or a database, after the task has reached a terminal state. A stream that is resumed later begins with the final task. Zero keeps it as long as the task.";
    Agent "push.enabled" => push.enabled: bool, "Enables push notifications: configurations are stored with their tasks, and the events of the tasks are sent to the webhooks.";
    Agent "push.allow" => push.options.allow: Vec<AllowedTarget>, "Targets of push notifications that are accepted although they are internal, or have a port other than 443, 80, 8080 or 8443: networks, addresses and host names, such as `10.0.0.0/8`, `127.0.0.1:9000`, `hooks.internal` or `*.corp.example`. `*:9000` permits a port of public addresses. TLS is required, except for entries that begin with `http://`.";
    Agent "push.plain_json" => push.options.plain_json: bool, "Sends notifications of 1.0 with the content type `application/json` instead of `application/a2a+json`.";
    Agent "push.max_age" => push.options.max_age: OptionalTimeout, "Time for which attempts to send a notification are repeated. Then its configuration becomes a dead letter. Until then, the events are kept. Configurations are kept for 24 hours after the end of their task, or for this time if it is longer. Zero: no limit.";
    Agent "push.credentials" => push.credentials: WebhookHosts, "Credentials for webhooks whose configuration has none: a table for each host, `hooks.example.com` or `hooks.example.com:8443`, with `token_url`, `client_id` and `client_secret`, and optionally `scope`, `audience` and `resource`. The server requests an access token with the client credentials grant of OAuth 2.0 and sends it as `Authorization: Bearer`.";
    Agent "limits.body_bytes" => connections.body_bytes: ByteSize, "Maximum size of a request body, and of a message over gRPC. Larger requests get 413.";
    Server "limits.connections" => connections.count: usize, "Maximum number of open connections for each listen address; more wait to be accepted.";
    Server "limits.connections_per_peer" => connections.per_peer: usize, "Maximum number of connections per client address; further ones are closed. An IPv6 /64 network counts as one address. Loopback addresses and `trusted_proxies` have no limit: behind a proxy, the open requests of each forwarded client address are counted instead. Zero: no limit.";
    Server "limits.request_rate_per_peer" => connections.request_rate_per_peer: u32, "Maximum number of requests per second of a client address, with a burst of as many; further ones get 429 with `Retry-After`. A JSON-RPC batch is one request. An IPv6 /64 network counts as one address; behind `trusted_proxies`, the forwarded address counts. Zero: no limit.";
    Agent "limits.call_rate_per_owner" => limits.call_rate_per_owner: u32, "Maximum number of calls per second of one owner, over all tenants, with a burst of as many. Each call of a JSON-RPC batch counts. Callers without a name are not limited: use `limits.request_rate_per_peer`. Zero: no limit.";
    Server "limits.memory" => connections.memory: ByteSize, "Memory for requests, responses and live tasks of all connections and agents. A quarter is for request bodies that are being received: beyond it, requests are rejected with 503; bodies of more than 16 KiB already at seven eighths of it. Three eighths are for responses that are being made or wait for slow readers, with a quarter added to each for the allocator: beyond it, calls are rejected with 503 or `UNAVAILABLE`, except for health checks and the card. At half of that, a connection whose responses have more than an eighth of it is rejected, unless no other connection has any. Three eighths are for the events of tasks that run or are read, of which one owner can have three quarters; tasks of up to 16 KiB do not count. An agent whose output does not fit waits. Its turn fails if no memory that it can use is released for 30 s, or at once if too much output waits; messages and subscriptions that do not fit get 429. Minimum 1 MiB.";
    Agent "limits.tasks" => store.max_tasks: Option<usize>, "Maximum number of tasks in the store. At the limit, a new task evicts the task that reached its terminal state first; without one, it is rejected. If not set, 2000 in memory, and 1000000 elsewhere. In a PostgreSQL database, one server evicts for all, every few seconds; meanwhile the tasks may exceed the limit by a tenth and 64.";
    Agent "limits.tasks_per_owner" => store.max_tasks_per_owner: Option<usize>, "Maximum number of tasks of one owner, over all tenants. At the limit, a new task evicts the owner's task that reached its terminal state first; without one, it is rejected. Defaults to `limits.tasks`.";
    Agent "limits.turns" => turns: Option<usize>, "Maximum number of running turns, over all tasks. Messages that need another one wait (`limits.queued_turns`). If not set, 64 if the agent is a command, and 10000 otherwise.";
    Agent "limits.turns_per_owner" => limits.turns_per_owner: usize, "Maximum number of running turns of one task owner, over all tenants. Callers without a name share one owner.";
    Agent "limits.queued_turns" => limits.queued_turns: usize, "Maximum number of new turns that wait for a running one to end, over all owners, and half as many of one owner; a new task is SUBMITTED meanwhile. Beyond it, messages get 429. Zero: messages that need another turn at `limits.turns` or `limits.turns_per_owner` get 429.";
    Agent "limits.streams" => limits.streams: usize, "Maximum number of open streams, over all tasks. Further ones are rejected. Of one owner, half as many; of one task, a tenth. Twice as many calls that are not streams may be in progress, and as many as there are streams of one owner.";
    Agent "limits.task_bytes" => limits.task_bytes: ByteSize, "Maximum total size of all events of a task, including its client's messages: encoded in protobuf, plus the memory that their parts and values occupy if that exceeds 64 KiB. A turn that exceeds it fails, and further messages are rejected. An artifact may have half of it, and an event an eighth: an artifact chunk, a status with its message, a client's message. All tasks of a context may have eight times as much. Clients of gRPC accept events of 4 MiB unless configured otherwise.";
    Agent "limits.hops" => limits.hops: u32, "Maximum number of agents that have passed a message on: its hop count, in the header `a2a-hops` or in its metadata. Messages with a higher one are rejected, so that agents which call each other in a circle stop. Gateways pass the count on; commands and endpoints get it. Zero rejects the messages of agents.";
    Agent "card.file" => card.file: Option<CardFile>, "File with an agent card in JSON, of 1.0 or 0.3. Its values apply where the other keys of `card` are not set. `streaming = false` also rejects streaming calls. Interfaces of other origins are listed after the server's own. Security is that which the server checks: the server does not start if the file declares security and callers are not authenticated.";
    Agent "card.name" => card.name: Option<String>, "Name of the agent. Defaults to the agent's own value.";
    Agent "card.description" => card.description: Option<String>, "Description of the agent. Defaults to the agent's own value.";
    Agent "card.skills" => card.skills: Option<Structure<Vec<SkillConfig>>>, "Skills of the agent: tables with `id`, `name` and `description`, and optionally `tags`, `examples`, `input_modes` and `output_modes`. With `extended = true`, a skill is on the extended agent card only, and with `scope`, callers need that scope to see it there. Defaults to the agent's own value.";
    Agent "card.protected" => card.protected: bool, "Requires authentication for the agent card. Requests without valid credentials get 401.";
    Agent "card.extended" => card.extended: ExtendedCardAccess, "Callers who get the extended agent card: nobody; callers with the scope `card:extended`, even if nothing else requires credentials; or all.";
    Agent "card.grpc_url" => card.grpc_url: Option<GrpcAddress>, "Address of gRPC on the card, if it differs from that of the other bindings: `host:port`, optionally after `dns:///`, or a URL without a path.";
    Agent "card.bindings" => card.bindings: Vec<ProtocolBinding>, "Bindings that the card lists among the server's own interfaces: `JSONRPC`, `HTTP+JSON` and `GRPC`. The others are still served. Omit `GRPC` for clients of 0.3 that can't parse a bare `host:port`.";
}

/// Configuration of a server, or of one of its agents. Tables that a component has settings for have its type.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    pub(crate) listen: ListenAddresses,
    pub(crate) public_url: Option<BaseUrl>,
    pub(crate) trusted_proxies: Vec<Network>,
    pub(crate) allowed_hosts: Vec<AllowedHost>,
    pub(crate) cors_origins: Vec<AllowedOrigin>,
    pub(crate) token: Option<Sourced<Token>>,
    pub(crate) insecure: bool,
    pub(crate) protocols: Protocols,
    pub(crate) strict: bool,
    pub(crate) extensions: Vec<OfferedExtension>,
    pub(crate) signing_keys: Option<PathBuf>,
    pub(crate) idempotent: bool,
    pub(crate) idempotency: IdempotencySource,
    pub(crate) v03_file_bytes: FileBytes,
    pub(crate) console: Option<Console>,
    pub(crate) docs: Option<bool>,
    pub(crate) metrics_listen: Option<SocketAddr>,
    pub(crate) health: HealthConfig,
    pub(crate) exec: ExecConfig,
    pub(crate) http: HttpConfig,
    pub(crate) openai: OpenaiConfig,
    pub(crate) upstream: UpstreamConfig,
    pub(crate) auth: AuthConfig,
    pub(crate) tls: TlsConfig,
    pub(crate) log: LogConfig,
    pub(crate) otlp: OtlpConfig,
    pub(crate) store: StoreConfig,
    pub(crate) cluster: ClusterConfig,
    pub(crate) push: PushConfig,
    pub(crate) card: CardKeys,
    /// Without the values that derive from others: [`Config::limits`] has them.
    limits: Limits,
    turns: Option<usize>,
    /// As `limits`: [`Config::retention`].
    retention: Retention,
    pub(crate) connections: ConnectionConfig,
}

defaults! {
    /// Keys of connections and their requests.
    #[derive(Clone, Debug)]
    pub(crate) struct ConnectionConfig {
        pub(crate) idle_timeout: Duration = transport::connection::listener::CONNECTION_IDLE_TIMEOUT,
        pub(crate) shutdown_grace: Duration = server::GRACE,
        pub(crate) body_bytes: usize = transport::BODY_BYTES,
        pub(crate) count: usize = transport::connection::listener::CONNECTIONS,
        pub(crate) per_peer: usize = transport::CONNECTIONS_PER_PEER,
        pub(crate) request_rate_per_peer: u32,
        pub(crate) memory: usize = transport::MEMORY,
    }
}

defaults! {
    /// Table `health`.
    #[derive(Clone, Debug)]
    pub(crate) struct HealthConfig {
        pub(crate) interval: Duration = server::HEALTH_INTERVAL,
        pub(crate) ready: HealthReady,
    }
}

/// Table `exec`.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExecConfig {
    pub(crate) command: Option<CommandLine>,
    pub(crate) format: CommandFormat,
    pub(crate) workspace: Option<PathBuf>,
    pub(crate) env: Option<Structure<BTreeMap<String, String>>>,
    pub(crate) memory: Option<ByteSize>,
}

/// Table `http`.
#[derive(Clone, Debug, Default)]
pub(crate) struct HttpConfig {
    pub(crate) url: Option<AgentUrl>,
    pub(crate) token: Option<Sourced<Token>>,
    pub(crate) secret: Option<Sourced<Token>>,
}

/// Table `openai`.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenaiConfig {
    pub(crate) url: Option<AgentUrl>,
    pub(crate) model: Option<String>,
    pub(crate) key: Option<Sourced<Token>>,
    pub(crate) system: Option<Sourced<String>>,
    pub(crate) parameters: Option<Structure<serde_json::Map<String, serde_json::Value>>>,
    pub(crate) mcp: McpServers,
    /// The other options, without the values of the fields above.
    pub(crate) options: OpenaiOptions,
}

/// Table `upstream`.
#[derive(Clone, Debug, Default)]
pub(crate) struct UpstreamConfig {
    pub(crate) url: Option<AgentUrl>,
    pub(crate) token: Option<Sourced<Token>>,
    pub(crate) forward: Vec<UpstreamHeader>,
}

/// Table `auth`.
#[derive(Clone, Debug, Default)]
pub(crate) struct AuthConfig {
    pub(crate) tokens: Option<PathBuf>,
    pub(crate) require: AuthRequire,
    pub(crate) mtls: Option<CertificateName>,
    pub(crate) mtls_names: Vec<String>,
    pub(crate) mtls_scopes: Vec<String>,
    pub(crate) jwt: JwtConfig,
}

defaults! {
    /// Table `auth.jwt`.
    #[derive(Clone, Debug)]
    pub(crate) struct JwtConfig {
        pub(crate) issuer: Option<String>,
        pub(crate) audience: Vec<String>,
        pub(crate) jwks: Option<String>,
        pub(crate) owner_claim: String = "sub".to_owned(),
        pub(crate) tenant_claim: Option<String>,
        pub(crate) scope_claim: String = "scope".to_owned(),
    }
}

/// Table `tls`.
#[derive(Clone, Debug, Default)]
pub(crate) struct TlsConfig {
    pub(crate) cert: Option<Certificate>,
    pub(crate) key: Option<PathBuf>,
    pub(crate) client_ca: Option<PathBuf>,
}

defaults! {
    /// Table `otlp`.
    #[derive(Clone, Debug)]
    pub(crate) struct OtlpConfig {
        pub(crate) endpoint: Option<CollectorUrl>,
        pub(crate) sample: Ratio = Ratio(1.0),
        pub(crate) content: SpanContent,
    }
}

/// Table `log`.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogConfig {
    pub(crate) format: LogFormat,
    pub(crate) filter: Filter,
    pub(crate) wire: bool,
}

defaults! {
    /// Table `store`, and the limits of tasks.
    #[derive(Clone, Debug)]
    pub(crate) struct StoreConfig {
        pub(crate) path: StorePath = StorePath::Sqlite(DEFAULT_STORE_FILE.into()),
        pub(crate) durability: Durability,
        pub(crate) max_size: Option<ByteSize>,
        pub(crate) prepared: bool = true,
        pub(crate) listen: Option<DatabaseUrl>,
        pub(crate) max_tasks: Option<usize>,
        pub(crate) max_tasks_per_owner: Option<usize>,
    }
}

defaults! {
    /// Table `cluster`.
    #[derive(Clone, Debug)]
    pub(crate) struct ClusterConfig {
        pub(crate) lease: Duration = DEFAULT_LEASE,
        pub(crate) key: Option<Sourced<Token>>,
        pub(crate) wake: ClusterWake,
    }
}

/// Table `push`.
#[derive(Clone, Debug, Default)]
pub(crate) struct PushConfig {
    pub(crate) enabled: bool,
    pub(crate) credentials: WebhookHosts,
    /// The other options, without the value of the field above.
    pub(crate) options: PushOptions,
}

defaults! {
    /// Table `card`.
    #[derive(Clone, Debug)]
    pub(crate) struct CardKeys {
        pub(crate) file: Option<CardFile>,
        pub(crate) name: Option<String>,
        description: Option<String>,
        pub(crate) skills: Option<Structure<Vec<SkillConfig>>>,
        pub(crate) protected: bool,
        pub(crate) extended: ExtendedCardAccess,
        grpc_url: Option<GrpcAddress>,
        bindings: Vec<ProtocolBinding> = ProtocolBinding::ALL.to_vec(),
    }
}

impl Config {
    /// Returns true if callers are authenticated.
    pub(crate) fn has_authentication(&self) -> bool {
        self.has_other_authentication() || self.auth.mtls.is_some()
    }

    /// Returns true if callers can be authenticated without a client certificate.
    pub(crate) fn has_other_authentication(&self) -> bool {
        self.token.is_some() || self.auth.tokens.is_some() || self.auth.jwt.issuer.is_some()
    }

    /// Limits of the execution of turns.
    pub(crate) fn limits(&self) -> Limits {
        let usual = if self.exec.command.is_some() { COMMANDS } else { self.limits.turns };
        let live_memory = LiveMemory::new(self.connections.memory / 8 * 3);
        Limits { turns: self.turns.unwrap_or(usual), live_memory, ..self.limits.clone() }.derived()
    }

    /// Retention times of the store.
    pub(crate) fn retention(&self) -> Retention {
        let max_age = self.push.options.max_age;
        let push = max_age.map(|max_age| max_age.max(PUSH_RETENTION));
        let Retention { finished, idle, logs, interval, .. } = self.retention;
        // A short retention is not exceeded by a usual interval.
        let interval = [finished, idle, logs].into_iter().flatten().fold(interval, Duration::min);
        Retention { push, undelivered: max_age, interval, ..self.retention }
    }

    /// Agent card values that override the agent's own. The interfaces are those that are not of the server itself.
    pub(crate) fn card(&self) -> CardConfig {
        let CardKeys { file, name, description, skills, grpc_url, bindings, .. } = &self.card;
        let mut file = file.as_ref().map(|file| file.card.clone()).unwrap_or_default();
        let own = self.origins();
        file.interfaces.retain(|interface| authority(&interface.url).is_none_or(|found| !own.contains(&found)));
        CardConfig {
            name: name.clone().or(file.name),
            description: description.clone().or(file.description),
            skills: skills.as_ref().map(|skills| skills.value.clone()).or(file.skills),
            grpc_url: grpc_url.as_ref().map(|address| address.0.clone()),
            bindings: Some(bindings.clone()),
            ..file
        }
    }

    /// Returns the `host:port` of the server's own interfaces, as far as the configuration has them.
    fn origins(&self) -> Vec<String> {
        let public = self.public_url.iter().filter_map(|url| authority(&url.0));
        let grpc = self.card.grpc_url.iter().filter_map(|address| authority(&address.0));
        public.chain(grpc).chain(self.listen.0.iter().map(SocketAddr::to_string)).collect()
    }
}

/// Returns the reference of all keys with their types, defaults and descriptions, in Markdown.
pub(crate) fn reference() -> String {
    let defaults = Config::default();
    let entry = |key: &Setting| format!("\n## `{}`\n\n{}\n\n- {}\n", key.name, key.description, key.facts(&defaults));
    INTRODUCTION.to_owned() + &KEYS.iter().map(entry).collect::<String>()
}

/// Returns the entries of a table or of a key in the reference as plain text; without a name, the names of all keys. `None` if
/// there is no such table or key.
pub(crate) fn help(name: Option<&str>) -> Option<String> {
    let Some(name) = name else {
        let mut text =
            "Keys of `a2a.toml` by their tables. `a2a help config TABLE` describes those of a table.\n\n".to_owned();
        for keys in KEYS.chunk_by(|a, b| a.table() == b.table()) {
            let (table, prefix) = (keys[0].table(), keys[0].table().len());
            let names: Vec<_> = keys.iter().map(|key| key.name[prefix..].trim_start_matches('.')).collect();
            // Writing to memory does not fail.
            _ = writeln!(text, "{table:<10} {}", wrapped(&names.join(", "), 11));
        }
        return Some(text);
    };
    let defaults = Config::default();
    let is_meant = |key: &&Setting| key.table() == name || key.name == name || key.short == Some(name);
    let entry = |key: &Setting| {
        let [description, facts] = [key.description, &*key.facts(&defaults)].map(|text| wrapped(text, 2));
        format!("{}\n  {description}\n  {facts}\n", key.name)
    };
    let entries: Vec<_> = KEYS.iter().filter(is_meant).map(entry).collect();
    (!entries.is_empty()).then(|| entries.join("\n"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_of_keys_are_unique() {
        for names in [
            KEYS.iter().flat_map(|key| key.file_variable().into_iter().chain([key.variable()])).collect::<Vec<_>>(),
            KEYS.iter().map(Setting::flag).collect(),
            KEYS.iter().flat_map(|key| key.short.into_iter().chain([key.name])).map(str::to_owned).collect(),
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
    fn there_are_at_most_102_keys() {
        assert!(KEYS.len() <= 102, "{}", KEYS.len());
    }

    #[test]
    fn undelivered_notifications_are_retained_up_to_their_maximum_age() {
        let retention = |hours: Option<u64>| {
            let mut config = Config::default();
            config.push.options.max_age = hours.map(Duration::from_hours);
            let Retention { undelivered, push, .. } = config.retention();
            [undelivered, push].map(|time| time.map(|time| time.as_secs() / 3600))
        };
        assert_eq!(retention(Some(1)), [Some(1), Some(24)]);
        assert_eq!(retention(Some(48)), [Some(48), Some(48)]);
        assert_eq!(retention(None), [None, None]);
    }

    #[test]
    fn limits_derive_from_others_and_from_the_kind_of_the_agent() {
        let mut config = Config::default();
        assert_eq!(format!("{:?}", config.limits()), format!("{:?}", Limits::default()));
        config.exec.command = CommandLine::read("cat").ok();
        (config.limits.streams, config.limits.task_bytes) = (30, 8 << 20);
        let limits = config.limits();
        assert_eq!((limits.turns, limits.calls, limits.streams_per_task, limits.event_bytes), (64, 60, 3, 1 << 20));
        config.turns = Some(7);
        assert_eq!(config.limits().turns, 7);
    }

    #[test]
    fn interfaces_in_a_card_file_are_those_of_other_origins() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let urls = [
            "https://A.example/rpc",
            "http://a.example/rpc",
            "a.example:443",
            "dns:///127.0.0.1:8080",
            "https://b.example/a2a",
        ];
        let interfaces =
            urls.map(|url| serde_json::json!({ "url": url, "protocolBinding": "X", "protocolVersion": "1.0" }));
        let card = serde_json::json!({ "name": "A", "supportedInterfaces": interfaces });
        std::fs::write(file.path(), card.to_string()).unwrap();
        let mut config = Config { public_url: BaseUrl::read("https://a.example").ok(), ..Config::default() };
        config.card.file = CardFile::read(file.path().to_str().unwrap()).ok();
        let found = config.card().interfaces.into_iter().map(|interface| interface.url).collect::<Vec<_>>();
        assert_eq!(found, ["http://a.example/rpc", "https://b.example/a2a"]);
    }

    #[test]
    fn printed_defaults_parse_to_equal_values() {
        let config = Config::default();
        for key in KEYS {
            let Some(printed) = (key.show)(&config) else { continue };
            let mut read = config.clone();
            let value = DeValue::parse(&printed).unwrap();
            (key.read)(&mut read, RawValue::Toml(&value)).unwrap();
            assert_eq!((key.show)(&read), Some(printed), "{}", key.name);
        }
    }
}
