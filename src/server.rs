//! Server builder: serves an agent over gRPC, HTTP+JSON and JSON-RPC, standalone or as a router in an axum program.
//!
//! [`Server`] collects the settings and builds the service, its extensions and the transport layers (authentication, origin
//! and host checks, request log). [`BoundServer`] listens and drains.

use std::{fmt, io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, ToSocketAddrs},
    sync::watch,
    time::timeout,
};

pub use self::{bound_server::BoundServer, signals::Signals};
use crate::{
    agent::Agent,
    auth::{Authenticator, Guard},
    card::{Card, CardConfig, CardRequest, JSON_RPC, Network},
    env::{Env, Ids},
    extension::{self, ExtendedService, Extension},
    journal::Journal,
    pb::v1::{a2a_service_server::A2aService, bindings::Checked},
    protocol::Protocols,
    report::{self, ReportGuard},
    service::{DefaultKey, Limits, Modes, Service},
    store::{Retention, Store, memory::Memory},
    telemetry::{
        request_log::RequestLog,
        wire_log::{WireLog, WireLogService},
    },
    transport::{
        AllowedHost, AllowedOrigin, BATCH_BYTES, BODY_BYTES, BODY_TIMEOUT, BasePath, CONNECTIONS_PER_PEER, FileBytes,
        HEALTH_WATCHES, HttpService, INCOMING_BYTES, KEEP_ALIVE, OUTGOING_BYTES, OriginGuard, OriginPolicy, Paths,
        PeerLimit, ReadinessCheck, RequestChecks, Settings,
        listener::{self, CONNECTION_IDLE_TIMEOUT, CONNECTIONS, WRITE_TIMEOUT},
    },
};

mod bound_server;
mod signals;

/// Default grace period for running turns when the server stops.
pub(crate) const GRACE: Duration = Duration::from_secs(10);

/// A service, and the service that callers see, with its extensions and checks.
type Built<A> = (Arc<Service<A>>, Arc<dyn A2aService>);

/// Tower layers around the transports, which each request passes before it is dispatched.
#[derive(Clone)]
struct Layers {
    authenticator: Option<Arc<dyn Authenticator>>,
    insecure: bool,
    log_wire: bool,
    origins: Arc<OriginPolicy>,
    peers: PeerLimit,
    paths: Arc<Paths>,
    /// Ids of requests.
    ids: Ids,
}

/// The transports with all [`Layers`].
type Layered = BasePath<RequestLog<WireLog<RequestChecks<OriginGuard<Guard<HttpService>>>>>>;

/// Returns true if an address is reachable from other machines.
pub(crate) fn is_public(addr: SocketAddr) -> bool {
    !addr.ip().to_canonical().is_loopback()
}

impl Layers {
    /// Listens on an address. An address that is reachable from other machines needs an authenticator, or a server that
    /// is [insecure](Server::insecure).
    async fn listen(&self, addr: impl ToSocketAddrs) -> io::Result<(TcpListener, SocketAddr)> {
        let listener = listener::bind(addr).await?;
        let addr = listener.local_addr()?;
        if !is_public(addr) || self.authenticator.is_some() {
            return Ok((listener, addr));
        }
        if !self.insecure {
            let reason = format!(
                "{addr} is reachable from other machines and callers are not authenticated; set an authenticator \
                 (Server::authenticator), listen on 127.0.0.1 or [::1], or allow unauthenticated access \
                 (Server::insecure)"
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
        }
        let warning = "callers are not authenticated and see all tasks: no token is set";
        tracing::warn!(server.address = %addr, "{warning}");
        report::report(format_args!("warning: {warning} (server.address={addr})"));
        Ok((listener, addr))
    }

    /// Wraps the service for the connections of an address, or for a router whose address is unknown.
    fn around(&self, http: HttpService, bound: Option<SocketAddr>) -> Layered {
        let guarded = Guard::new(http, self.authenticator.clone());
        let guarded = OriginGuard::new(guarded, Arc::clone(&self.origins), bound);
        let checked = match bound {
            Some(_) => RequestChecks::new(guarded, self.peers.clone()),
            None => RequestChecks::mounted(guarded, self.peers.clone()),
        };
        BasePath::new(RequestLog::new(WireLog::new(checked, self.log_wire), self.ids.clone()), Arc::clone(&self.paths))
    }
}

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
#[must_use = "a server does nothing until it serves"]
#[expect(clippy::struct_excessive_bools, reason = "the settings are independent of each other")]
pub struct Server<A> {
    agent: A,
    card: Card,
    store: Option<Arc<dyn Store>>,
    limits: Limits,
    body_bytes: usize,
    keep_alive: Duration,
    body_timeout: Duration,
    incoming_bytes: usize,
    health_watches: usize,
    connections: usize,
    batch_bytes: usize,
    outgoing_bytes: usize,
    write_timeout: Duration,
    connections_per_peer: usize,
    connection_idle_timeout: Duration,
    grace: Duration,
    modes: Modes,
    extensions: Vec<Arc<dyn Extension>>,
    resume: bool,
    default_key: DefaultKey,
    strict_version: bool,
    strict_extensions: bool,
    insecure: bool,
    report: bool,
    protocols: Protocols,
    log_wire: bool,
    authenticator: Option<Arc<dyn Authenticator>>,
    retention: Retention,
    allowed_hosts: Vec<AllowedHost>,
    cors_origins: Vec<AllowedOrigin>,
    base_path: Option<String>,
    rpc_path: Option<String>,
    v03_file_bytes: FileBytes,
    env: Env,
}

impl<A: Agent> Server<A> {
    /// Creates a server for an agent, with the default settings and tasks in memory.
    pub fn new(agent: A) -> Self {
        let card = Card::new(agent.about());
        let limits = Limits::default();
        Self {
            agent,
            card,
            store: None,
            limits,
            body_bytes: BODY_BYTES,
            keep_alive: KEEP_ALIVE,
            body_timeout: BODY_TIMEOUT,
            incoming_bytes: INCOMING_BYTES,
            health_watches: HEALTH_WATCHES,
            connections: CONNECTIONS,
            batch_bytes: BATCH_BYTES,
            outgoing_bytes: OUTGOING_BYTES,
            write_timeout: WRITE_TIMEOUT,
            connections_per_peer: CONNECTIONS_PER_PEER,
            connection_idle_timeout: CONNECTION_IDLE_TIMEOUT,
            grace: GRACE,
            modes: Modes::default(),
            extensions: Vec::new(),
            resume: false,
            default_key: DefaultKey::default(),
            strict_version: false,
            strict_extensions: false,
            insecure: false,
            report: true,
            protocols: Protocols::default(),
            log_wire: false,
            authenticator: None,
            retention: Retention::default(),
            allowed_hosts: Vec::new(),
            cors_origins: Vec::new(),
            base_path: None,
            rpc_path: None,
            v03_file_bytes: FileBytes::default(),
            env: Env::default(),
        }
    }

    /// Name of the agent on the card.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.card.about.name = Some(name.into());
        self
    }

    /// Description of the agent on the card, in a sentence or two.
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.card.about.description = Some(description.into());
        self
    }

    /// Version of the agent on the card. Not the protocol version.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.card.about.version = Some(version.into());
        self
    }

    /// Base URL of this server for clients, shown on the card. By default the URL of each request, as derived from its
    /// headers and those of [trusted proxies](Self::trusted_proxies).
    pub fn url(self, url: impl Into<String>) -> Self {
        self.map_card(|card| card.url(url))
    }

    /// Proxies whose `Forwarded` and `X-Forwarded-*` headers are trusted. A program that mounts the
    /// [router](Self::router) must provide peer addresses with axum's `into_make_service_with_connect_info`.
    pub fn trusted_proxies(self, proxies: impl IntoIterator<Item = Network>) -> Self {
        self.map_card(|card| card.trusted_proxies(proxies))
    }

    /// Path prefix, such as `/a2a/v1`, under which all routes are served in addition to the root. By default the path of
    /// the [URL](Self::url), so that a proxy may keep the prefix or strip it. Empty: the root only.
    pub fn base_path(mut self, path: impl Into<String>) -> Self {
        self.base_path = Some(format!("/{}", path.into().trim_matches('/')));
        self
    }

    /// Path of JSON-RPC below the server's URL, as shown on the card. `/rpc` by default; `/rpc` is always served.
    pub fn rpc_path(mut self, path: impl Into<String>) -> Self {
        self.rpc_path = Some(format!("/{}", path.into().trim_matches('/')));
        self
    }

    /// Encoding of file bytes for clients of 0.3 over gRPC and HTTP+JSON, on which the SDKs disagree. By default it
    /// depends on the `User-Agent`.
    pub fn v03_file_bytes(mut self, form: FileBytes) -> Self {
        self.v03_file_bytes = form;
        self
    }

    /// Host names accepted in `Host` or `:authority`, in addition to loopback names, IP addresses, the host of the
    /// [URL](Self::url) and those of [card formats](Card::format_for_host). Other hosts are rejected with 421 on every
    /// transport, as protection against DNS rebinding.
    ///
    /// By default only a server on a loopback address checks the host; with this setting, every server and a mounted
    /// [router](Self::router) does. `*` disables the check.
    pub fn allowed_hosts(mut self, hosts: impl IntoIterator<Item = AllowedHost>) -> Self {
        self.allowed_hosts = hosts.into_iter().collect();
        self
    }

    /// Origins of web pages that may call this server (CORS). Requests from other origins than these and the server's own
    /// are rejected with 403, except for the agent card and health checks. None by default.
    pub fn cors_origins(mut self, origins: impl IntoIterator<Item = AllowedOrigin>) -> Self {
        self.cors_origins = origins.into_iter().collect();
        self
    }

    /// Card fields that override those of the agent.
    pub fn card(self, config: CardConfig) -> Self {
        self.map_card(|card| card.configure(config))
    }

    /// Changes the card, for fields without a setting of their own: another gRPC address, security schemes.
    pub fn map_card(mut self, change: impl FnOnce(Card) -> Card) -> Self {
        self.card = change(self.card);
        self
    }

    /// Sources of time, ids and randomness. Those of the system by default; a simulation sets its own.
    pub fn env(mut self, env: Env) -> Self {
        self.env = env;
        self
    }

    /// Store for tasks. In memory by default.
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = Some(store);
        self
    }

    /// Retention periods of tasks, logs, push configurations and idempotency keys.
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// Limits and timeouts of tasks, turns and streams.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Requirements on the media types of messages and of accepted output.
    pub fn modes(mut self, modes: Modes) -> Self {
        self.modes = modes;
        self
    }

    /// Adds a protocol extension (4.6).
    pub fn extension(mut self, extension: impl Extension) -> Self {
        self.extensions.push(Arc::new(extension));
        self
    }

    /// Deduplication of sends without an `Idempotency-Key`. Off by default.
    pub fn idempotency_default_key(mut self, default_key: DefaultKey) -> Self {
        self.default_key = default_key;
        self
    }

    /// Offers the extension [`resume`](extension::resume): each event carries its cursor, over gRPC too, and a mark if
    /// events may be missing before it. Off by default.
    pub fn resume(mut self, offered: bool) -> Self {
        self.resume = offered;
        self
    }

    /// Maximum size of a request body in bytes. 1 MiB by default.
    pub fn body_bytes(mut self, bytes: usize) -> Self {
        self.body_bytes = bytes;
        self
    }

    /// Interval between keep-alive comments on an idle SSE stream. 15 s by default.
    pub fn keep_alive(mut self, period: Duration) -> Self {
        self.keep_alive = period;
        self
    }

    /// Maximum number of open connections; further ones wait to be accepted. 10 000 by default.
    pub fn connections(mut self, count: usize) -> Self {
        self.connections = count;
        self
    }

    /// Maximum total size of the results of a JSON-RPC batch in bytes. Calls whose results exceed it fail. 8 MiB by default.
    pub fn batch_bytes(mut self, bytes: usize) -> Self {
        self.batch_bytes = bytes;
        self
    }

    /// Maximum total size of responses that are being made or wait for slow readers, in bytes. Beyond it, calls are rejected
    /// as unavailable, except for health checks and the card. At half of it, a connection whose responses have more than an
    /// eighth of it is rejected, unless no other connection has any. 256 MiB by default.
    pub fn outgoing_bytes(mut self, bytes: usize) -> Self {
        self.outgoing_bytes = bytes;
        self
    }

    /// Time in which a client has to take 64 KiB of a response that waits for it, or all of it if less waits. Otherwise the
    /// connection is closed; over HTTP/2, only the stream is reset. 60 s by default, zero for no limit. A program that
    /// mounts the [router](Self::router) must enforce such a timeout itself.
    pub fn write_timeout(mut self, timeout: Duration) -> Self {
        self.write_timeout = timeout;
        self
    }

    /// Maximum number of connections per client address. An IPv6 /64 network counts as one address. 256 by default, 0 for
    /// no limit. Loopback addresses and [trusted proxies](Self::trusted_proxies) are exempt: behind a proxy, the open
    /// requests of the forwarded address are counted instead.
    pub fn connections_per_peer(mut self, count: usize) -> Self {
        self.connections_per_peer = count;
        self
    }

    /// Idle timeout for connections: between two requests over HTTP/1.1, and without open streams over HTTP/2. 75 s by
    /// default, zero for none.
    pub fn connection_idle_timeout(mut self, timeout: Duration) -> Self {
        self.connection_idle_timeout = timeout;
        self
    }

    /// Timeout for receiving the body of a request, over every binding. 1 min by default.
    pub fn body_timeout(mut self, timeout: Duration) -> Self {
        self.body_timeout = timeout;
        self
    }

    /// Maximum total size of the request bodies that are being received, in bytes. 256 MiB by default, 0 for no limit.
    /// Bodies of more than 16 KiB are already rejected at seven eighths of it. Requests of gRPC's health service have a
    /// budget of 4 MiB of their own.
    pub fn incoming_bytes(mut self, bytes: usize) -> Self {
        self.incoming_bytes = bytes;
        self
    }

    /// Maximum number of open `Watch` streams of gRPC's health service. 100 by default.
    pub fn health_watches(mut self, count: usize) -> Self {
        self.health_watches = count;
        self
    }

    /// Authentication of callers. Without it, all callers are one anonymous owner. Calls in process are not authenticated:
    /// their owner is in their [`Call`](crate::call::Call).
    ///
    /// ```
    /// use a2a_service::{agent::demo::Demo, auth::{Bearer, Token}, server::Server};
    ///
    /// let server = Server::new(Demo).authenticator(Bearer::new(Token::new("correct-horse")?));
    /// # Ok::<_, &str>(())
    /// ```
    pub fn authenticator(mut self, authenticator: impl Authenticator) -> Self {
        self.authenticator = Some(Arc::new(authenticator));
        self
    }

    /// Allows addresses that are reachable from other machines without an [authenticator](Self::authenticator). All callers
    /// are then one anonymous owner and see each other's tasks. Off by default: such an address is rejected.
    pub fn insecure(mut self, insecure: bool) -> Self {
        self.insecure = insecure;
        self
    }

    /// Makes [`serve`](Self::serve) write its address, and errors with their ids, to stderr while the program has no
    /// `tracing` subscriber. On by default. No subscriber is installed; one that the program sets takes over.
    pub fn report_to_stderr(mut self, report: bool) -> Self {
        self.report = report;
        self
    }

    /// Offers push notification configurations, which are stored with their tasks, and declares them on the card. Off by
    /// default.
    pub fn push(self, offered: bool) -> Self {
        self.map_card(|card| card.push(offered))
    }

    /// Grace period for running turns when the server stops. 10 s by default.
    pub fn drain_grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Rejects calls without a version header, which are calls of 0.3 (3.6.2). Off by default: their version is inferred
    /// from the method and the body.
    pub fn strict_version(mut self, strict: bool) -> Self {
        self.strict_version = strict;
        self
    }

    /// Rejects callers of 0.3 too, not only those of 1.0, if they do not request a [required](Extension::required)
    /// extension. The error is `UnsupportedOperation` and names the extension, because 0.3 has none of its own. Off by
    /// default.
    pub fn strict_extensions(mut self, strict: bool) -> Self {
        self.strict_extensions = strict;
        self
    }

    /// Protocol versions to serve. All by default.
    pub fn protocols(mut self, protocols: Protocols) -> Self {
        self.protocols = protocols;
        self
    }

    /// Logs each request, the 1.0 call that it maps to, and the response under the target `a2a_service::wire` at level
    /// `info`. Credentials are redacted by name; message content is not, so do not use this in production. Off by default.
    pub fn log_wire(mut self, enabled: bool) -> Self {
        self.log_wire = enabled;
        self
    }

    /// Returns the service without a transport, for calls in process.
    ///
    /// Must be called in a tokio runtime, as must the methods below.
    pub fn into_service(self) -> Arc<dyn A2aService> {
        let ((_, service), _) = self.build();
        service
    }

    /// Returns all bindings as a router, to be mounted in an axum program: as its fallback, gRPC included, or below a path
    /// for HTTP+JSON and JSON-RPC. The card then shows the host and path of its request.
    ///
    /// Dropping the router does not drain running turns; [`bind`](Self::bind) does.
    pub fn router(self) -> axum::Router {
        let layers = self.layers();
        let (_, make_http) = self.build();
        axum::Router::new().fallback_service(layers.around(make_http(None), None))
    }

    /// Listens without serving yet: the address is known, and connections wait to be accepted.
    ///
    /// # Errors
    /// Listening fails, or the address is reachable from other machines and callers are not authenticated (see
    /// [`insecure`](Self::insecure)).
    pub async fn bind(self, addr: impl ToSocketAddrs) -> io::Result<BoundServer<A>> {
        let (layers, grace) = (self.layers(), self.grace);
        let (listener, addr) = layers.listen(addr).await?;
        let settings = listener::ListenerSettings {
            connections: self.connections,
            idle_timeout: self.connection_idle_timeout,
            peer_limit: layers.peers.clone(),
            write_timeout: self.write_timeout,
            ..listener::ListenerSettings::default()
        };
        let ((service, _), make_http) = self.build();
        let http = make_http(Some(addr));
        let draining = http.drain().clone();
        Ok(BoundServer { listener, addr, http, grpc: None, layers, service, draining, settings, grace })
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
        report::report(format_args!("listening on http://{}", bound.addr()));
        bound.run_until(async move { signals.next().await }).await;
        Ok(())
    }

    fn layers(&self) -> Layers {
        let origins = OriginPolicy::new(&self.card, self.allowed_hosts.clone(), self.cors_origins.clone());
        let (authenticator, log_wire) = (self.authenticator.clone(), self.log_wire);
        let peers = PeerLimit::new(self.connections_per_peer, self.card.trusted().to_vec());
        let base = self.base_path.as_deref().or_else(|| self.card.address().path()).unwrap_or_default();
        let paths = Arc::new(Paths::new(base, self.rpc_path.as_deref().unwrap_or(JSON_RPC), self.protocols));
        let ids = self.env.ids.clone();
        Layers { authenticator, insecure: self.insecure, log_wire, origins: Arc::new(origins), peers, paths, ids }
    }

    fn build(self) -> (Built<A>, impl FnOnce(Option<SocketAddr>) -> HttpService) {
        let store = self.store.unwrap_or_else(|| Arc::new(Memory::default()));
        let mut card = self.card.protocols(self.protocols.iter());
        let service = Service::with_env(self.agent, store, self.limits, self.env.clone()).offering(card.offers());
        let service = Arc::new(service.modes(self.modes, &card.about).idempotency_default_key(self.default_key));
        service.start_retention(self.retention);
        let ready = readiness_check(Arc::clone(service.journal()), service.recovered());
        let mut inner: Arc<dyn A2aService> = Arc::<Service<A>>::clone(&service);
        if self.resume {
            card.about.extensions.push(extension::resume::declaration());
        }
        let extensions = extension::all(self.extensions, &mut card.about.extensions);
        if !extensions.is_empty() {
            inner = Arc::new(ExtendedService::new(inner, extensions).strict(self.strict_extensions));
        }
        let mut checked: Arc<dyn A2aService> = Arc::new(Checked(inner));
        if self.log_wire {
            checked = Arc::new(WireLogService(checked));
        }
        match &self.authenticator {
            Some(authenticator) => card = authenticator.describe(card),
            None if card.declares_security() => {
                tracing::warn!("agent card declares credentials, but no authenticator checks them");
            }
            None => {}
        }
        for warning in card.warnings() {
            tracing::warn!("{warning}");
        }
        if let Some(path) = &self.rpc_path {
            card = card.rpc_path(path);
        }
        let (body_bytes, keep_alive, stream_max_age) = (self.body_bytes, self.keep_alive, self.limits.stream_max_age);
        let (batch_bytes, outgoing_bytes) = (self.batch_bytes, self.outgoing_bytes);
        let (body_timeout, incoming_bytes, health_watches) =
            (self.body_timeout, self.incoming_bytes, self.health_watches);
        let (strict_version, protocols, v03_file_bytes) = (self.strict_version, self.protocols, self.v03_file_bytes);
        let (outer, env) = (Arc::clone(&checked), self.env);
        let make_http = move |addr: Option<SocketAddr>| {
            let card = match addr {
                Some(addr) => card.bound(addr),
                None => card,
            };
            let mut settings = Settings::new(Arc::new(move |request: &CardRequest<'_>| card.json(request)));
            (settings.body_bytes, settings.keep_alive, settings.stream_max_age) =
                (body_bytes, keep_alive, stream_max_age);
            (settings.batch_bytes, settings.outgoing_bytes) = (batch_bytes, outgoing_bytes);
            (settings.body_timeout, settings.incoming_bytes) = (body_timeout, incoming_bytes);
            settings.health_watches = health_watches;
            (settings.strict_version, settings.protocols) = (strict_version, protocols);
            (settings.readiness, settings.idempotency_keys, settings.v03_file_bytes) = (ready, true, v03_file_bytes);
            settings.env = env;
            HttpService::new(checked, settings)
        };
        ((service, outer), make_http)
    }
}

/// Readiness check: recovery has finished and the store is available.
fn readiness_check(journal: Arc<Journal>, recovered: watch::Receiver<bool>) -> ReadinessCheck {
    /// Timeout of the store check: a hanging disk may never respond, and probes have short timeouts.
    const CHECK_TIMEOUT: Duration = Duration::from_secs(2);
    Arc::new(move || {
        let (journal, is_recovered) = (Arc::clone(&journal), *recovered.borrow());
        Box::pin(async move {
            if !is_recovered {
                tracing::warn!("not ready: recovery of tasks from the last run has not finished");
                return false;
            }
            match timeout(CHECK_TIMEOUT, journal.store().check()).await {
                Ok(Ok(())) => !journal.is_store_unavailable(),
                Ok(Err(cause)) => {
                    tracing::warn!(error.cause = %cause, "not ready: store unavailable");
                    false
                }
                Err(_) => {
                    tracing::warn!(timeout = ?CHECK_TIMEOUT, "not ready: store check timed out");
                    false
                }
            }
        })
    })
}

impl<A> fmt::Debug for Server<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("card", &self.card).field("limits", &self.limits).finish_non_exhaustive()
    }
}
