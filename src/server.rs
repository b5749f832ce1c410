//! Server builder: serves an agent over gRPC, HTTP+JSON and JSON-RPC, standalone or as a router in an axum program.
//!
//! [`Server`] collects the settings and assembles the service, its extensions and the layers around the transport.
//! [`BoundServer`] listens and drains; [`Handle`] does that for a server that is embedded in an axum program.

use std::{convert::Infallible, io, sync::Arc, time::Duration};

use axum::{extract::Request, response::IntoResponse, routing::Route};
use bytes::Bytes;
use http::HeaderName;
use tokio::{net::ToSocketAddrs, sync::watch};
use tower_layer::Layer;

pub use self::lifecycle::{BoundServer, Handle, Signals};
use self::{
    agents::PendingAgent,
    assembly::{Assembled, CardUpdates},
    lifecycle::{Render, listen},
};
pub(crate) use self::{agents::is_agent_name, assembly::HEALTH_INTERVAL};
#[cfg(feature = "signing")]
use crate::base::jws::SigningKey;
pub(crate) use crate::base::network::is_public;
#[cfg(feature = "push")]
use crate::service::push::PushOptions;
#[cfg(feature = "server-tls")]
pub use crate::transport::{ClientAuth, Tls, TlsError};
use crate::{
    base::{
        metric,
        sources::Sources,
        stderr::{self, ReportGuard},
        trace::Tracing,
    },
    engine::agent::{Agent, DynAgent},
    protocol::{
        Protocols,
        pb::v1::{AgentCard, a2a_service_server::A2aService},
    },
    service::{
        auth::{Authenticator, FAILURES, Policy, Token},
        card::{CardConfig, CardTemplate, ExtendedCard, ExtendedCardAccess, ExtendedCardSettings, Network},
        wrappers::extended::Extension,
    },
    store::{Retention, Store},
    transport::{
        CONNECTIONS_PER_PEER, MemoryBudgets, Settings,
        connection::listener::ListenerSettings,
        pipeline::{AddLayer, LayeredService},
    },
};
pub use crate::{
    service::{IdempotencySource, Limits, LiveMemory, Modes},
    transport::{AllowedHost, AllowedOrigin, FileBytes},
};

pub(crate) mod agents;
pub(crate) mod assembly;
pub(crate) mod catalog;
#[cfg(feature = "openapi")]
#[doc(hidden)]
pub mod documents;
pub(crate) mod lifecycle;
pub(crate) mod readiness;

/// Views of the console. The data that they show has access rules of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Console {
    /// There is no console.
    Off,
    /// Views of what a caller can use: conversations, the caller's tasks and the agent card.
    Developer,
    /// In addition, those of the operator API.
    Full,
}

/// Default grace period for running turns when the server stops.
pub(crate) const GRACE: Duration = Duration::from_secs(10);

/// Builder of a server for an agent.
///
/// ```no_run
/// use a2a_service::{agent::{self, End}, server::Server};
///
/// # async fn run() -> std::io::Result<()> {
/// let greeter = agent::from_fn(|turn, out| async move {
///     out.artifact("greeting").text(format!("Hello, {}!", turn.text())).await?;
///     Ok(End::Completed(None))
/// });
/// Server::new(greeter).name("Greeter").serve("127.0.0.1:8080").await
/// # }
/// ```
///
/// A clone has the agent of the original, and needs a [store](Self::store) of its own.
#[derive(Clone)]
#[must_use = "a server does nothing until it serves"]
pub struct Server {
    agent: Arc<dyn DynAgent>,
    card: CardTemplate,
    settings: Settings,
    connections_per_peer: usize,
    failed_authentications: usize,
    grace: Duration,
    report: bool,
    options: Options,
}

/// Settings of a server that are off, empty, or those of a component by default.
#[derive(Clone, Default)]
#[expect(clippy::struct_excessive_bools, reason = "the settings are independent of each other")]
struct Options {
    card_updates: Option<CardUpdates>,
    extended_card: ExtendedCardSettings,
    store: Option<Arc<dyn Store>>,
    limits: Limits,
    connections: ListenerSettings,
    request_rate_per_peer: u32,
    extensions: Vec<Arc<dyn Extension>>,
    resume: bool,
    secret_parts: bool,
    default_key: IdempotencySource,
    #[cfg(feature = "signing")]
    cluster_key: Option<[u8; 32]>,
    strict_extensions: bool,
    modes: Modes,
    insecure: bool,
    log_wire: bool,
    expose_causes: bool,
    #[cfg(feature = "server-tls")]
    tls: Option<Tls>,
    metrics: Option<Render>,
    console: Option<Console>,
    docs: Option<bool>,
    authenticator: Option<Arc<dyn Authenticator>>,
    policy: Option<Arc<dyn Policy>>,
    scopes: Vec<String>,
    agents: Vec<PendingAgent>,
    /// Name of the agent in the catalog. Empty: `default`.
    catalog_name: String,
    /// Interval of the probes of what the agent needs. 30 s if it is not set.
    health_interval: Option<Duration>,
    ready_with_agents: bool,
    /// Calls are counted in the metrics of another server.
    is_metered: bool,
    tracing: Tracing,
    /// Name of the agent in metrics, if it is mounted on another server.
    agent_label: Option<Arc<str>>,
    /// Kind of the agent for operators: `exec`, `http` and others.
    agent_kind: Option<&'static str>,
    operator_token: Option<Token>,
    retention: Retention,
    allowed_hosts: Vec<AllowedHost>,
    cors_origins: Vec<AllowedOrigin>,
    base_path: Option<String>,
    /// Budgets of the server that this one is mounted on.
    budgets: Option<MemoryBudgets>,
    layers: Vec<AddLayer>,
    #[cfg(feature = "push")]
    push: PushOptions,
}

setters! {
    Server:
    /// Encoding of file bytes for clients of 0.3 over gRPC and HTTP+JSON, on which the SDKs disagree. By default it
    /// depends on the `User-Agent`.
    pub v03_file_bytes => settings.v03_file_bytes: FileBytes;

    /// Requires authentication for the agent card: requests without valid credentials get 401. Off by default.
    pub protect_card => settings.protects_card: bool;

    /// Callers who get the extended agent card. Off by default, and then the agent card declares that there is none.
    pub extended_card_access => options.extended_card.access: ExtendedCardAccess;

    /// Sources of time, ids and randomness. Those of the system by default; a simulation sets its own.
    pub sources => settings.sources: Sources;

    /// Store for tasks. In memory by default.
    pub store => options.store: Arc<dyn Store>;

    /// Retention periods of tasks, logs, push configurations and idempotency keys.
    pub retention => options.retention: Retention;

    /// Limits and timeouts of tasks, turns and streams.
    pub limits => options.limits: Limits;

    /// Interval of probes of what the agent needs, such as an upstream agent, while it is not used. Zero disables them; what is down
    /// is probed in any case, with backoff. 30 s by default.
    pub health_interval => options.health_interval: Duration;

    /// The server is not [ready](crate::server::Handle::is_ready) either while every agent has lacked something that it needs for
    /// 30 s, such as its upstream agent. Off by default: reads, streams and notifications still work then.
    pub ready_with_agents => options.ready_with_agents: bool;

    /// Requirements on the media types of messages and of accepted output.
    pub modes => options.modes: Modes;

    /// Deduplication of sends without an `Idempotency-Key`. Off by default.
    pub idempotency_default_key => options.default_key: IdempotencySource;

    /// Secret key of all servers that share a [store](Self::store), of 32 random bytes. With it, secret parts and forwarded headers of
    /// a message are stored encrypted if another server runs the task. Without, such a message is rejected then.
    #[cfg(feature = "signing")]
    pub cluster_key => options.cluster_key: [u8; 32];

    /// Offers the extension [`resume`](crate::service::wrappers::extended::resume): each event carries its cursor, over gRPC too, and a mark if
    /// events may be missing before it. Off by default.
    pub resume => options.resume: bool;

    /// Lists the extension [`secret`](crate::service::wrappers::extended::secret) on the card: parts that only the agent may read. Off by
    /// default; marked parts are redacted in any case.
    pub secret_parts => options.secret_parts: bool;

    /// Maximum size of a request body in bytes. 1 MiB by default.
    pub body_bytes => settings.body_bytes: usize;

    /// Interval between keep-alive comments on an idle SSE stream. 4 s by default: the HTTP clients of SDKs have a timeout
    /// of 5 s.
    #[doc(hidden)]
    pub keep_alive => settings.keep_alive: Duration;

    /// Maximum number of open connections; further ones wait to be accepted. 10 000 by default.
    pub connections => options.connections.connections: usize;

    /// Maximum size of the head of a request in bytes: its URI, and 32 for each header in addition to name and value, as HTTP/2
    /// counts. A larger one is rejected with 431. 32 KiB by default.
    #[doc(hidden)]
    pub header_bytes => options.connections.header_bytes: usize;

    /// Maximum total size of responses that are being made or wait for slow readers, in bytes. Beyond it, calls are rejected
    /// as unavailable, except for health checks and the card. At half of it, a connection whose responses have more than an
    /// eighth of it is rejected, unless no other connection has any. A quarter is added to each response for the allocator.
    /// 192 MiB by default. Agents that are [mounted](Self::agent) on a server share its budget.
    pub outgoing_bytes => settings.outgoing_bytes: usize;

    /// Time in which a client has to take 64 KiB of a response that waits for it, or all of it if less waits. Otherwise the
    /// connection is closed; over HTTP/2, only the stream is reset. 60 s by default, zero for no limit. A program that
    /// mounts the [router](Self::router) must enforce such a timeout itself.
    #[doc(hidden)]
    pub write_timeout => options.connections.write_timeout: Duration;

    /// Maximum number of connections per client address. An IPv6 /64 network counts as one address. 256 by default, 0 for
    /// no limit. Loopback addresses and [trusted proxies](Self::trusted_proxies) are exempt: behind a proxy, the open
    /// requests of the forwarded address are counted instead.
    pub connections_per_peer => connections_per_peer: usize;

    /// Maximum number of requests per second of a client address, with a burst of as many; further ones get 429. A JSON-RPC
    /// batch is one request. An IPv6 /64 network counts as one address; behind trusted proxies, the forwarded address counts.
    /// Zero, the default: no limit.
    pub request_rate_per_peer => options.request_rate_per_peer: u32;

    /// Idle timeout for connections: between two requests over HTTP/1.1, and without open streams over HTTP/2. 75 s by
    /// default, zero for none.
    pub connection_idle_timeout => options.connections.idle_timeout: Duration;

    /// Maximum total size of the request bodies that are being received, in bytes. 128 MiB by default, 0 for no limit.
    /// Bodies of more than 16 KiB are already rejected at seven eighths of it. Requests of gRPC's health service have a
    /// budget of 4 MiB of their own. Agents that are [mounted](Self::agent) on a server share its budget.
    pub incoming_bytes => settings.incoming_bytes: usize;

    /// Maximum number of failed authentications per minute and client address. Further ones are rejected with 429; valid
    /// credentials still pass. An IPv6 /64 network counts as one address. 20 by default, 0 for no limit.
    #[doc(hidden)]
    pub failed_authentications => failed_authentications: usize;

    /// Allows addresses that are reachable from other machines without an [authenticator](Self::authenticator). All callers
    /// are then one anonymous owner and see each other's tasks. Off by default: such an address is rejected.
    pub insecure => options.insecure: bool;

    /// Makes [`serve`](Self::serve) write its address, and errors with their ids, to stderr while the program has no
    /// `tracing` subscriber. On by default. No subscriber is installed; one that the program sets takes over.
    pub report_to_stderr => report: bool;

    /// Delivery of push notifications, if they are [offered](Self::push).
    #[cfg(feature = "push")]
    pub push_options => options.push: PushOptions;

    /// Grace period for running turns when the server stops. 10 s by default.
    pub drain_grace => grace: Duration;

    /// Rejects calls without a version header, which are calls of 0.3 (3.6.2). Off by default: their version is inferred
    /// from the method and the body.
    pub strict_version => settings.strict_version: bool;

    /// Rejects callers of 0.3 too, not only those of 1.0, if they do not request a [required](Extension::required)
    /// extension. The error is `UnsupportedOperation` and names the extension, because 0.3 has none of its own. Off by
    /// default.
    pub strict_extensions => options.strict_extensions: bool;

    /// Protocol versions to serve. All by default.
    pub protocols => settings.protocols: Protocols;

    /// Views of the console, the page at `/` for browsers. By default all on a loopback address, and those for developers on
    /// another one or for a [router](Self::into_parts). The page needs the crate feature `console`.
    pub console => options.console: Console;

    /// Enables the page `/docs`: Swagger UI with the OpenAPI documents. By default, it is enabled on a loopback address, and
    /// disabled for a [router](Self::into_parts). The page needs the crate feature `docs`.
    pub docs => options.docs: bool;

    /// Logs each request, the 1.0 call that it maps to, and the response under the target `a2a_service::wire` at level
    /// `info`. Credentials are redacted by name; message content is not, so do not use this in production. Off by default.
    pub log_wire => options.log_wire: bool;

    /// Adds the causes of failed turns to the status messages of their tasks, for development: such as the stderr of a command.
    /// Clients see them, also later, because tasks are stored. Off by default: a status message has only the id of the error in the log.
    pub expose_causes => options.expose_causes: bool;

    /// Token with which an operator reads the state of the server, the tasks of all owners and the deliveries of push
    /// notifications, below the path `/operator`. Credentials that name the scope `admin` may do so too. None by default.
    pub operator_token => options.operator_token: Token;

    /// Kind of the agent, as operators see it: `exec`, `http`, `openai`, `upstream`, `demo`. `rust` by default.
    #[doc(hidden)]
    pub agent_kind => options.agent_kind: &'static str;

    /// Tracer for spans of calls, turns and outgoing requests.
    pub(crate) tracing => options.tracing: Tracing;
}

impl Server {
    /// Creates a server for an agent, with the default settings and tasks in memory.
    pub fn new(agent: impl Agent) -> Self {
        Self {
            card: CardTemplate::new(agent.card()),
            agent: Arc::new(agent),
            // The card is set when the server is assembled.
            settings: Settings { idempotency_keys: true, ..Settings::new(Arc::new(|_| Bytes::new())) },
            connections_per_peer: CONNECTIONS_PER_PEER,
            failed_authentications: FAILURES,
            grace: GRACE,
            report: true,
            options: Options::default(),
        }
    }

    /// Name of the agent on the card.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.card = self.card.declare(|card| AgentCard { name: name.into(), ..card });
        self
    }

    /// Description of the agent on the card, in a sentence or two.
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.card = self.card.declare(|card| card.describe(description));
        self
    }

    /// Version of the agent on the card. Not the protocol version.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.card = self.card.declare(|card| card.version(version));
        self
    }

    /// Base URL of this server for clients, shown on the card. By default the URL of each request, as derived from its
    /// headers and those of [trusted proxies](Self::trusted_proxies).
    pub fn url(self, url: impl Into<String>) -> Self {
        self.with_card(|card| card.url(url))
    }

    /// Proxies whose `Forwarded` and `X-Forwarded-*` headers are trusted. A program that mounts the
    /// [router](Self::router) must provide peer addresses with axum's `into_make_service_with_connect_info`.
    pub fn trusted_proxies(self, proxies: impl IntoIterator<Item = Network>) -> Self {
        self.with_card(|card| card.trusted_proxies(proxies))
    }

    /// Path prefix, such as `/a2a/v1`, under which all routes are served in addition to the root. By default the path of
    /// the [URL](Self::url), so that a proxy may keep the prefix or strip it. Empty: the root only.
    pub fn base_path(mut self, path: impl Into<String>) -> Self {
        self.options.base_path = Some(format!("/{}", path.into().trim_matches('/')));
        self
    }

    /// Host names accepted in `Host` or `:authority`, in addition to loopback names, IP addresses, the host of the
    /// [URL](Self::url). Other hosts are rejected with 421 on every transport, as protection against DNS rebinding.
    ///
    /// By default only a server on a loopback address checks the host; with this setting, every server and a mounted
    /// [router](Self::router) does. `*` disables the check.
    pub fn allowed_hosts(mut self, hosts: impl IntoIterator<Item = AllowedHost>) -> Self {
        self.options.allowed_hosts = hosts.into_iter().collect();
        self
    }

    /// Origins of web pages that may call this server (CORS). Requests from other origins than these and the server's own
    /// are rejected with 403, except for the agent card, the key set and health checks. None by default.
    pub fn cors_origins(mut self, origins: impl IntoIterator<Item = AllowedOrigin>) -> Self {
        self.options.cors_origins = origins.into_iter().collect();
        self
    }

    /// Card fields that override those of the agent.
    pub fn card(self, config: CardConfig) -> Self {
        self.with_card(|card| card.configure(config))
    }

    /// Changes the card of the agent, for fields without a setting of their own, such as security schemes. Fields of the
    /// server are ignored, as in [`Agent::card`].
    pub fn map_card(self, change: impl FnOnce(AgentCard) -> AgentCard) -> Self {
        self.with_card(|card| card.declare(change))
    }

    /// Newer cards of an agent whose card changes while it is served, such as a gateway of another agent. The first value is the
    /// card of the agent as of now ([`Agent::card`]). Fields that the configuration overrides remain, as do the extended card and
    /// the media types that messages are checked against.
    pub fn card_updates(mut self, updates: watch::Receiver<AgentCard>) -> Self {
        self.options.card_updates = Some(CardUpdates::new(updates));
        self
    }

    /// Source of the extended agent card (3.1.11). Its access becomes [guarded](ExtendedCardAccess::Guarded) if it is off.
    pub fn extended_card(mut self, provider: impl ExtendedCard) -> Self {
        self.options.extended_card.provider = Some(Arc::new(provider));
        if self.options.extended_card.access == ExtendedCardAccess::Off {
            self.options.extended_card.access = ExtendedCardAccess::Guarded;
        }
        self
    }

    /// Key that signs the agent card (8.4). The public key is at `/.well-known/jwks.json`. By default, the card is not signed.
    ///
    /// Each card is signed in the forms that the SDKs verify. Cards differ by the URL of the request, unless
    /// [`url`](Self::url) sets one; the last 64 are cached.
    #[cfg(feature = "signing")]
    pub fn sign_card(self, key: SigningKey) -> Self {
        self.with_card(|card| card.sign(key))
    }

    fn with_card(mut self, change: impl FnOnce(CardTemplate) -> CardTemplate) -> Self {
        self.card = change(self.card);
        self
    }

    /// Headers of requests that agents may pass on to other services, such as credentials
    /// ([`Turn::forwarded_headers`](crate::engine::agent::Turn::forwarded_headers)). They are kept in memory until the turn of the request
    /// ends. None by default.
    pub fn forward_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.settings.forward_headers = names.into_iter().collect();
        self
    }

    /// Adds a protocol extension (4.6).
    pub fn extension(mut self, extension: impl Extension) -> Self {
        self.options.extensions.push(Arc::new(extension));
        self
    }

    /// TLS of all listen addresses. A [router](Self::router) has that of its server.
    #[cfg(feature = "server-tls")]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.options.tls = Some(tls);
        self.with_card(CardTemplate::over_tls)
    }

    /// Authentication of callers. Without it, all callers are one anonymous owner. Calls in process are not authenticated:
    /// their owner is in their [`Call`](crate::protocol::call::Call).
    ///
    /// ```
    /// use a2a_service::{agent::demo::Demo, auth::{Bearer, Token}, server::Server};
    ///
    /// let server = Server::new(Demo).authenticator(Bearer::new(Token::new("correct-horse")?));
    /// # Ok::<_, &str>(())
    /// ```
    pub fn authenticator(mut self, authenticator: impl Authenticator) -> Self {
        self.options.authenticator = Some(Arc::new(authenticator));
        self
    }

    /// Authorization policy for calls, in addition to the scopes of the principals. By default, the scopes decide alone.
    pub fn policy(mut self, policy: impl Policy) -> Self {
        self.options.policy = Some(Arc::new(policy));
        self
    }

    /// Scopes that callers need for each call, in addition to the scope of the operation. The
    /// [catalog](Self::agent) lists the agent only for callers with them. None by default. Calls without a principal are
    /// rejected. The agent card is not protected by them, but by [`protect_card`](Self::protect_card).
    pub fn require_scopes<T: Into<String>>(mut self, scopes: impl IntoIterator<Item = T>) -> Self {
        self.options.scopes = scopes.into_iter().map(Into::into).collect();
        self
    }

    /// Name of this server's own agent in the catalog of agents, below which it is served too: at `/NAME`, and at the root.
    ///
    /// # Panics
    /// As [`agent`](Self::agent).
    pub fn catalog_name(mut self, name: &str) -> Self {
        self.check_agent_name(name);
        name.clone_into(&mut self.options.catalog_name);
        self.with_card(|card| card.also_at(&format!("/{name}")))
    }

    fn check_agent_name(&self, name: &str) {
        assert!(is_agent_name(name), "`{name}` is not a name of an agent: lower-case letters, digits, `-` and `_`");
        let is_new = self.options.catalog_name != name && self.options.agents.iter().all(|agent| *agent.name != *name);
        assert!(is_new, "there are two agents with the name `{name}`");
    }

    /// Serves another agent on the same addresses: over HTTP+JSON and JSON-RPC below the path `/NAME`, where its card is too,
    /// and over gRPC as the tenant `NAME`. The agent of this server stays at the root. `/agents` and
    /// `/.well-known/ai-catalog.json` list all of them.
    ///
    /// Each agent has its own tasks, store, limits and settings, and needs a store of its own. The authenticator of this server
    /// applies to agents without one, and its listen addresses, TLS, limits of connections and of requests per client
    /// address, and memory for requests and responses apply to all. Its policy, [layers](Self::layer), allowed hosts and origins, and trusted proxies do not: set them
    /// for each agent. An agent with its own authenticator has only its path. Over gRPC, and with a tenant at the root, the
    /// limits of requests are those of this server. A tenant at the root that names no agent is rejected: the agent of this server
    /// has tenants below [its own path](Self::catalog_name) and by credentials only.
    ///
    /// ```
    /// use a2a_service::{agent::{self, End}, server::Server};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
    /// let echo = agent::from_fn(|turn, _| async move { Ok(End::reply(turn.text())) });
    /// let shout = agent::from_fn(|turn, _| async move { Ok(End::reply(turn.text().to_uppercase())) });
    /// let server = Server::new(echo).name("Echo").agent("shout", Server::new(shout).name("Shout"));
    /// let bound = server.bind("127.0.0.1:0").await?;
    /// println!("the card of the second agent: {}/shout/.well-known/agent-card.json", bound.url());
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    /// The name is not made of lower-case letters, digits, `-` and `_`, is longer than 64 bytes, is that of another agent of
    /// this server, or is reserved for another resource, such as `tasks`. Or the other server has agents of its own.
    pub fn agent(mut self, name: &str, server: Self) -> Self {
        self.check_agent_name(name);
        assert!(
            server.options.agents.is_empty() && server.options.catalog_name.is_empty(),
            "the agent `{name}` has agents of its own"
        );
        self.options.agents.push(PendingAgent::new(name, server));
        self
    }

    /// Offers push notifications: their configurations are stored with their tasks, events are delivered to the webhooks, and
    /// the card declares it. Off by default.
    #[cfg(feature = "push")]
    pub fn push(self, offered: bool) -> Self {
        self.with_card(|card| card.push(offered))
    }

    /// Records the metrics of each call with the facade crate [`metrics`](https://docs.rs/metrics), and serves them at `/metrics`.
    /// `render` returns the metrics of the recorder that the program has installed. Off by default.
    ///
    /// With an [authenticator](Self::authenticator), `/metrics` requires the scope `admin`. Without one, it is served on loopback
    /// addresses only, and by a [router](Self::router) to clients on its machine, whose peer addresses the program must provide.
    /// [`BoundServer::metrics`] serves it on an address of its own instead.
    ///
    /// ```no_run
    /// # mod metrics_exporter_prometheus {
    /// #     pub struct PrometheusBuilder;
    /// #     impl PrometheusBuilder {
    /// #         pub fn new() -> Self { Self }
    /// #         pub fn install_recorder(self) -> std::io::Result<Self> { Ok(self) }
    /// #         pub fn render(&self) -> String { String::new() }
    /// #     }
    /// # }
    /// use a2a_service::{agent::demo::Demo, server::Server};
    /// use metrics_exporter_prometheus::PrometheusBuilder;
    ///
    /// let recorder = PrometheusBuilder::new().install_recorder()?;
    /// let server = Server::new(Demo).metrics(move || recorder.render());
    /// # Ok::<_, std::io::Error>(())
    /// ```
    pub fn metrics(mut self, render: impl Fn() -> String + Send + Sync + 'static) -> Self {
        metric::enable();
        self.options.metrics = Some(Arc::new(render));
        self
    }

    /// Makes spans of calls, turns and outgoing requests with a tracer of OpenTelemetry: those of one message are one trace, also
    /// over a restart. The `traceparent` of a caller is the parent if the caller is authenticated, on this machine or a [trusted
    /// proxy](Self::trusted_proxies), and otherwise linked. Agents get the context of the turn's span
    /// ([`Turn::trace`](crate::agent::Turn::trace)). No span has contents of messages. Agents that are [mounted](Self::agent) use
    /// the tracer of the server.
    ///
    /// ```
    /// use a2a_service::{agent::demo::Demo, opentelemetry::global, server::Server};
    ///
    /// let server = Server::new(Demo).tracer(global::tracer("my-agent"));
    /// ```
    #[cfg(feature = "trace")]
    pub fn tracer(self, tracer: opentelemetry::global::BoxedTracer) -> Self {
        self.tracing(Tracing::of(tracer))
    }

    /// Adds a tower layer around the server, as [`axum::Router::layer`] does. It sees every request before the checks of HTTP
    /// framing, the limit per client, host, origin and authentication. Its own responses have CORS headers too, and are in the
    /// request log. The last layer is the outermost one.
    ///
    /// ```
    /// use a2a_service::{agent::demo::Demo, server::Server};
    /// use axum::{extract::Request, middleware::{self, Next}};
    ///
    /// let server = Server::new(Demo).layer(middleware::from_fn(async |request: Request, next: Next| {
    ///     let mut response = next.run(request).await;
    ///     response.headers_mut().insert("x-served-by", "demo".parse().expect("valid header value"));
    ///     response
    /// }));
    /// ```
    pub fn layer<L>(mut self, layer: L) -> Self
    where
        L: Layer<Route> + Clone + Send + Sync + 'static,
        L::Service: tower_service::Service<Request, Response: IntoResponse, Error: Into<Infallible>, Future: Send>
            + Clone
            + Send
            + Sync
            + 'static,
    {
        self.options.layers.push(Arc::new(move |router| router.layer(layer.clone())));
        self
    }

    /// Returns the service without a transport, for calls in process.
    ///
    /// Must be called in a tokio runtime, as must the methods below.
    pub fn into_service(self) -> Arc<dyn A2aService> {
        self.assemble(None, None).service
    }

    /// Returns all bindings as a router, and a handle for readiness and drain, to embed the server in an axum program. The
    /// router is mounted as the fallback of that program, gRPC included, or below a path for HTTP+JSON and JSON-RPC. The
    /// card shows the host and path of its request.
    ///
    /// The program is responsible for its listen address: the address is not checked, as it is by [`bind`](Self::bind).
    ///
    /// ```
    /// use a2a_service::{agent::demo::Demo, server::Server};
    /// use axum::routing::get;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let stopped = async {};
    /// let (router, handle) = Server::new(Demo).into_parts();
    /// let app = axum::Router::new().route("/about", get(|| async { "An agent, and a page." })).fallback_service(router);
    /// let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    /// let shutdown = async move {
    ///     stopped.await; // for example `Signals::next`
    ///     handle.drain().await;
    /// };
    /// axum::serve(listener, app).with_graceful_shutdown(shutdown).await?;
    /// # Ok(()) }
    /// ```
    pub fn into_parts(self) -> (axum::Router, Handle) {
        let layers = Arc::new(self.layers());
        let Assembled { http, handle, mounted, .. } = self.assemble(None, Some(&layers));
        (axum::Router::new().fallback_service(LayeredService::new(http, layers, None, mounted)), handle)
    }

    /// Returns the router of [`into_parts`](Self::into_parts). Dropping it does not drain running turns.
    pub fn router(self) -> axum::Router {
        self.into_parts().0
    }

    /// Listens without serving yet: the address is known, and connections wait to be accepted.
    ///
    /// # Errors
    /// Listening fails, or the address is reachable from other machines and callers are not authenticated (see
    /// [`insecure`](Self::insecure)).
    pub async fn bind(self, addr: impl ToSocketAddrs) -> io::Result<BoundServer> {
        let layers = Arc::new(self.layers());
        let (listener, addr) = listen(&layers, addr).await?;
        let settings = ListenerSettings {
            peer_limit: layers.peers.clone(),
            #[cfg(feature = "server-tls")]
            tls: self.options.tls.clone(),
            ..self.options.connections.clone()
        };
        let scheme = if self.card.address().is_tls { "https" } else { "http" };
        let Assembled { http, handle, mounted, .. } = self.assemble(Some(addr), Some(&layers));
        let listeners = vec![(listener, addr)];
        Ok(BoundServer { addr, http, listeners, metrics: None, layers, mounted, handle, settings, scheme })
    }

    /// Serves until Ctrl-C or SIGTERM, then drains. Without a `tracing` subscriber, errors are written to
    /// [stderr](Self::report_to_stderr).
    ///
    /// # Errors
    /// The errors of [`bind`](Self::bind).
    pub async fn serve(self, addr: impl ToSocketAddrs) -> io::Result<()> {
        let _reporting = self.report.then(ReportGuard::begin);
        let bound = self.bind(addr).await?;
        let mut signals = Signals::listen();
        tracing::info!(server.address = %bound.addr(), "listening");
        stderr::report(format_args!("listening on {}", bound.url()));
        bound.run_until(async move { _ = signals.next().await }).await;
        Ok(())
    }
}

debug_fields!(Server { card, limits: options.limits });
