//! A server: an agent behind the door, and how it is put together.

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
    card::{Card, CardConfig, JSON_RPC, Network},
    extension::{self, ExtendedService, Extension},
    journal::Journal,
    pb::v1::{a2a_service_server::A2aService, bindings::Checked},
    service::{Dedupe, Limits, Modes, Service},
    store::{Retention, Store, memory::Memory},
    telemetry::{
        self, ReportGuard, RequestLog,
        wire_log::{WireLog, WireLogService},
    },
    transport::{
        AllowedHost, AllowedOrigin, BATCH_BYTES, BODY_TIMEOUT, BasePath, CONNECTIONS_PER_PEER, CardRequest, FileBytes,
        HEALTH_WATCHES, HttpService, KEEP_ALIVE, MAX_BODY, OriginGuard, OriginPolicy, Paths, PeerLimit, Protocols,
        RECEIVING_BYTES, Ready, RequestChecks, Settings, UNSENT_BYTES,
        listener::{self, IDLE, MAX_CONNECTIONS, WRITE_TIMEOUT},
    },
};

mod bound_server;
mod signals;

/// How long what runs may take to end when the server stops.
pub(crate) const GRACE: Duration = Duration::from_secs(10);

/// A service, and what callers have of it.
type Built<A> = (Arc<Service<A>>, Arc<dyn A2aService>);

/// Layers around the transports. Each request passes through them before it is dispatched.
#[derive(Clone)]
struct Layers {
    authenticator: Option<Arc<dyn Authenticator>>,
    insecure: bool,
    print_wire: bool,
    origins: Arc<OriginPolicy>,
    peers: PeerLimit,
    paths: Arc<Paths>,
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
            let why = format!(
                "{addr} can be reached from elsewhere, and callers are not authenticated; set an authenticator \
                 (Server::authenticator), listen on 127.0.0.1 or [::1], or serve everybody (Server::insecure)"
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        let why = "whoever reaches this server can use it, and see all tasks: no token is set";
        tracing::warn!(server.address = %addr, "{why}");
        telemetry::report(format_args!("warning: {why} (server.address={addr})"));
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
        BasePath::new(RequestLog::new(WireLog::new(checked, self.print_wire)), Arc::clone(&self.paths))
    }
}

/// A server that is being put together.
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
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub struct Server<A> {
    agent: A,
    card: Card,
    store: Option<Arc<dyn Store>>,
    limits: Limits,
    max_body: usize,
    keep_alive: Duration,
    body_timeout: Duration,
    receiving_bytes: usize,
    health_watches: usize,
    max_connections: usize,
    batch_bytes: usize,
    unsent_bytes: usize,
    write_timeout: Duration,
    connections_per_peer: usize,
    connection_idle: Duration,
    grace: Duration,
    modes: Modes,
    extensions: Vec<Arc<dyn Extension>>,
    resume: bool,
    dedupe: Dedupe,
    strict_version: bool,
    strict_extensions: bool,
    insecure: bool,
    report: bool,
    protocols: Protocols,
    print_wire: bool,
    authenticator: Option<Arc<dyn Authenticator>>,
    retention: Retention,
    allowed_hosts: Vec<AllowedHost>,
    cors_origins: Vec<AllowedOrigin>,
    base_path: Option<String>,
    rpc_path: Option<String>,
    v03_file_bytes: FileBytes,
}

impl<A: Agent> Server<A> {
    /// A server of this agent, with tasks in memory.
    pub fn new(agent: A) -> Self {
        let card = Card::new(agent.about());
        let limits = Limits::default();
        Self {
            agent,
            card,
            store: None,
            limits,
            max_body: MAX_BODY,
            keep_alive: KEEP_ALIVE,
            body_timeout: BODY_TIMEOUT,
            receiving_bytes: RECEIVING_BYTES,
            health_watches: HEALTH_WATCHES,
            max_connections: MAX_CONNECTIONS,
            batch_bytes: BATCH_BYTES,
            unsent_bytes: UNSENT_BYTES,
            write_timeout: WRITE_TIMEOUT,
            connections_per_peer: CONNECTIONS_PER_PEER,
            connection_idle: IDLE,
            grace: GRACE,
            modes: Modes::default(),
            extensions: Vec::new(),
            resume: false,
            dedupe: Dedupe::default(),
            strict_version: false,
            strict_extensions: false,
            insecure: false,
            report: true,
            protocols: Protocols::default(),
            print_wire: false,
            authenticator: None,
            retention: Retention::default(),
            allowed_hosts: Vec::new(),
            cors_origins: Vec::new(),
            base_path: None,
            rpc_path: None,
            v03_file_bytes: FileBytes::default(),
        }
    }

    /// What people call the agent.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.card.about.name = Some(name.into());
        self
    }

    /// What the agent is for, in a sentence or two.
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.card.about.description = Some(description.into());
        self
    }

    /// The agent's own version.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.card.about.version = Some(version.into());
        self
    }

    /// The URL at which clients reach this server, for the card. Where nothing is said, it is the one that they asked
    /// for, as far as the request and [proxies](Self::trusted_proxies) tell.
    pub fn url(self, url: impl Into<String>) -> Self {
        self.map_card(|it| it.url(url))
    }

    /// The proxies that are believed what they say of the URL that their clients asked for. A program that mounts the
    /// [router](Self::router) has to let it know who calls, by axum's `into_make_service_with_connect_info`.
    pub fn trusted_proxies(self, proxies: impl IntoIterator<Item = Network>) -> Self {
        self.map_card(|it| it.trusted_proxies(proxies))
    }

    /// Path below which everything is served too, beside the root: `/a2a/v1`. By default, the path of the
    /// [URL](Self::url), so that a proxy may leave paths as they are or take that one off. Empty: the root alone.
    pub fn base_path(mut self, path: impl Into<String>) -> Self {
        self.base_path = Some(format!("/{}", path.into().trim_matches('/')));
        self
    }

    /// Path of JSON-RPC below the URL of the server, which the card names. `/rpc` by default, which is served anyway.
    pub fn rpc_path(mut self, path: impl Into<String>) -> Self {
        self.rpc_path = Some(format!("/{}", path.into().trim_matches('/')));
        self
    }

    /// Form of the bytes of files for clients of 0.3 over gRPC and HTTP+JSON, whose SDKs disagree. By default, what the
    /// `User-Agent` of a client is known to expect.
    pub fn v03_file_bytes(mut self, form: FileBytes) -> Self {
        self.v03_file_bytes = form;
        self
    }

    /// Host names that requests may have in `Host` or `:authority`, beside loopback names, IP addresses, the host of the
    /// [URL](Self::url) and those of [shapes](Card::shape_at). Other names are refused with 421 on every transport, which
    /// protects against DNS rebinding.
    ///
    /// Without this, a server that is bound to a loopback address checks the host, and others and a mounted
    /// [router](Self::router) do not. With it, all of them do. `*` switches the check off.
    pub fn allowed_hosts(mut self, hosts: impl IntoIterator<Item = AllowedHost>) -> Self {
        self.allowed_hosts = hosts.into_iter().collect();
        self
    }

    /// Origins of web pages that may call this server, and read its answers (CORS). Pages of other origins than these and
    /// the server's own are refused with 403; they may read the agent card and health alone. None, by default.
    pub fn cors_origins(mut self, origins: impl IntoIterator<Item = AllowedOrigin>) -> Self {
        self.cors_origins = origins.into_iter().collect();
        self
    }

    /// What a configuration says of the agent, in place of what the agent says of itself.
    pub fn card(self, config: CardConfig) -> Self {
        self.map_card(|it| it.configure(config))
    }

    /// What else there is to say on the card: another address of gRPC, or which credentials a call takes.
    pub fn map_card(mut self, change: impl FnOnce(Card) -> Card) -> Self {
        self.card = change(self.card);
        self
    }

    /// Where tasks are kept.
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = Some(store);
        self
    }

    /// How long things are kept.
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// How long things may take.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// What a message has to be for the agent to see it.
    pub fn modes(mut self, modes: Modes) -> Self {
        self.modes = modes;
        self
    }

    /// With one extension of the protocol more (4.6).
    pub fn extension(mut self, extension: impl Extension) -> Self {
        self.extensions.push(Arc::new(extension));
        self
    }

    /// What makes two sends the same one, where their sender gives them no `Idempotency-Key`. Nothing, where nothing else is
    /// said.
    pub fn dedupe(mut self, dedupe: Dedupe) -> Self {
        self.dedupe = dedupe;
        self
    }

    /// Offers the extension [`resume`](extension::resume): who asks for it finds in each event where the stream can be
    /// taken up again, over gRPC too, and whether something is missing. Not offered, where nothing is said.
    pub fn resume(mut self, offered: bool) -> Self {
        self.resume = offered;
        self
    }

    /// How large a request may be, in bytes. 1 MiB, where nothing else is said.
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.max_body = bytes;
        self
    }

    /// After how long without an event a stream gets a sign of life. 15 s, where nothing else is said.
    pub fn keep_alive(mut self, period: Duration) -> Self {
        self.keep_alive = period;
        self
    }

    /// How many connections there may be at a time; more wait to be accepted. 10 000, where nothing else is said.
    pub fn max_connections(mut self, count: usize) -> Self {
        self.max_connections = count;
        self
    }

    /// Maximum size of the results of a JSON-RPC batch in bytes. A call whose result exceeds it is answered with an error.
    /// 8 MiB by default.
    pub fn batch_bytes(mut self, bytes: usize) -> Self {
        self.batch_bytes = bytes;
        self
    }

    /// Maximum size of all answers together that wait for slow readers, in bytes. While they have more, calls are refused as
    /// unavailable, except for health checks and the card. 256 MiB by default.
    pub fn unsent_bytes(mut self, bytes: usize) -> Self {
        self.unsent_bytes = bytes;
        self
    }

    /// Maximum time without write progress, while an answer waits for its client. Then the connection is closed; over
    /// HTTP/2, only the stream is reset. Zero disables it. 60 s by default. A program that mounts the
    /// [router](Self::router) has to enforce such a timeout itself.
    pub fn write_timeout(mut self, timeout: Duration) -> Self {
        self.write_timeout = timeout;
        self
    }

    /// Maximum number of connections per client address, of which an IPv6 /64 network is one. 256 by default, 0 for no
    /// limit. Loopback addresses and [trusted proxies](Self::trusted_proxies) have none: behind a proxy, the open
    /// requests of the address that it forwards are counted instead.
    pub fn connections_per_peer(mut self, count: usize) -> Self {
        self.connections_per_peer = count;
        self
    }

    /// Idle timeout for connections: between two requests of HTTP/1.1, and without open streams of HTTP/2. 75 s by
    /// default, zero for none.
    pub fn connection_idle(mut self, timeout: Duration) -> Self {
        self.connection_idle = timeout;
        self
    }

    /// Timeout for receiving the body of a request, over every binding. 1 min by default.
    pub fn body_timeout(mut self, timeout: Duration) -> Self {
        self.body_timeout = timeout;
        self
    }

    /// Maximum number of bytes in the request bodies that are being received, over all connections. 256 MiB by default,
    /// 0 for no limit. Bodies of more than 16 KiB are refused at seven eighths of it.
    pub fn receiving_bytes(mut self, bytes: usize) -> Self {
        self.receiving_bytes = bytes;
        self
    }

    /// Maximum number of open `Watch` streams of gRPC's health service. 100 by default.
    pub fn health_watches(mut self, count: usize) -> Self {
        self.health_watches = count;
        self
    }

    /// Who finds out who is calling. Where nobody does, all callers are one anonymous owner. Calls in process are not
    /// asked: they say it themselves, in their [`Call`](crate::call::Call).
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

    /// Allows listening on addresses that are reachable from other machines without an
    /// [authenticator](Self::authenticator). All callers are then one anonymous owner, and see each other's tasks. Off
    /// by default: such an address is rejected.
    pub fn insecure(mut self, insecure: bool) -> Self {
        self.insecure = insecure;
        self
    }

    /// Lets [`serve`](Self::serve) write its address, and errors with their ids, to stderr while the program has no
    /// subscriber of `tracing`. On by default. No subscriber is installed, and one that the program sets takes over.
    pub fn report_to_stderr(mut self, report: bool) -> Self {
        self.report = report;
        self
    }

    /// Takes push notification configurations, keeps them with their tasks, and says so on the card. They are not
    /// offered where nothing is said.
    pub fn push(self, offered: bool) -> Self {
        self.map_card(|it| it.push(offered))
    }

    /// How long what runs may take to end when the server stops. 10 s, where nothing else is said.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Refuses calls that do not say their version, as ones of 0.3 (3.6.2). Otherwise they are taken by their form.
    pub fn strict_version(mut self, strict: bool) -> Self {
        self.strict_version = strict;
        self
    }

    /// Rejects callers of 0.3 that do not ask for a [required](Extension::required) extension, as those of 1.0. 0.3 has no
    /// error of its own for this: they get one of an unsupported operation that names the extension. Off by default.
    pub fn strict_extensions(mut self, strict: bool) -> Self {
        self.strict_extensions = strict;
        self
    }

    /// Which versions of the protocol are spoken. All that there are, where nothing else is said.
    pub fn protocols(mut self, protocols: Protocols) -> Self {
        self.protocols = protocols;
        self
    }

    /// Writes to the log what passes the door: what came in, the call of 1.0 that it was, and what went out, as
    /// `a2a_service::wire` at the level of `info`. Credentials are hidden, as far as names tell them; what people say to
    /// each other is not, so this is for looking, and not for production. Off, where nothing else is said.
    pub fn print_wire(mut self, print: bool) -> Self {
        self.print_wire = print;
        self
    }

    /// The agent as a service, without a door: what a call in process is made to.
    ///
    /// Must be called in a tokio runtime, as all that follows.
    pub fn into_service(self) -> Arc<dyn A2aService> {
        let ((_, service), _) = self.build();
        service
    }

    /// All bindings as a router, to be mounted in another axum program: at its root, as its fallback, with gRPC, or
    /// below a path for HTTP+JSON and JSON-RPC. The card then names the host and the path that it was asked for at.
    ///
    /// Dropping the router leaves running turns to themselves; [`bind`](Self::bind) is what drains.
    pub fn router(self) -> axum::Router {
        let layers = self.layers();
        let (_, http) = self.build();
        axum::Router::new().fallback_service(layers.around(http(None), None))
    }

    /// Listens, and serves nothing yet: its address is known, and connections wait.
    ///
    /// # Errors
    /// The address can't be listened on, or it is reachable from other machines and callers are not authenticated:
    /// [`insecure`](Self::insecure).
    pub async fn bind(self, addr: impl ToSocketAddrs) -> io::Result<BoundServer<A>> {
        let (layers, grace) = (self.layers(), self.grace);
        let (listener, addr) = layers.listen(addr).await?;
        let settings = listener::Settings {
            max_connections: self.max_connections,
            idle: self.connection_idle,
            peers: layers.peers.clone(),
            write_timeout: self.write_timeout,
            ..listener::Settings::default()
        };
        let ((service, _), http) = self.build();
        let http = http(Some(addr));
        let draining = http.drain().clone();
        Ok(BoundServer { listener, addr, http, grpc: None, layers, service, draining, settings, grace })
    }

    /// Serves until Ctrl-C or SIGTERM, then drains. A whole program: where it has no subscriber of `tracing`, errors are
    /// written to [stderr](Self::report_to_stderr).
    ///
    /// # Errors
    /// The errors of [`bind`](Self::bind).
    pub async fn serve(self, addr: impl ToSocketAddrs) -> io::Result<()> {
        let _reporting = self.report.then(ReportGuard::begin);
        let bound = self.bind(addr).await?;
        let mut signals = Signals::listen();
        tracing::info!(server.address = %bound.addr(), "listening");
        telemetry::report(format_args!("listening on http://{}", bound.addr()));
        bound.run_until(async move { signals.next().await }).await;
        Ok(())
    }

    fn layers(&self) -> Layers {
        let origins = OriginPolicy::new(&self.card, self.allowed_hosts.clone(), self.cors_origins.clone());
        let (authenticator, print_wire) = (self.authenticator.clone(), self.print_wire);
        let peers = PeerLimit::new(self.connections_per_peer, self.card.trusted().to_vec());
        let base = self.base_path.as_deref().or_else(|| self.card.address().path()).unwrap_or_default();
        let paths = Arc::new(Paths::new(base, self.rpc_path.as_deref().unwrap_or(JSON_RPC), self.protocols));
        Layers { authenticator, insecure: self.insecure, print_wire, origins: Arc::new(origins), peers, paths }
    }

    fn build(self) -> (Built<A>, impl FnOnce(Option<SocketAddr>) -> HttpService) {
        let store = self.store.unwrap_or_else(|| Arc::new(Memory::default()));
        let mut card = self.card.protocols(self.protocols.iter());
        let service = Service::new(self.agent, store, self.limits).offering(card.offers());
        let service = Arc::new(service.modes(self.modes, &card.about).dedupe(self.dedupe));
        service.keep(self.retention);
        let ready = ready(Arc::clone(service.journal()), service.recovered());
        let mut inner: Arc<dyn A2aService> = Arc::<Service<A>>::clone(&service);
        if self.resume {
            card.about.extensions.push(extension::resume::declared());
        }
        let extensions = extension::all(self.extensions, &mut card.about.extensions);
        if !extensions.is_empty() {
            inner = Arc::new(ExtendedService::new(inner, extensions).strict(self.strict_extensions));
        }
        let mut checked: Arc<dyn A2aService> = Arc::new(Checked(inner));
        if self.print_wire {
            checked = Arc::new(WireLogService(checked));
        }
        match &self.authenticator {
            Some(it) => card = it.describe(card),
            None if card.declares_security() => {
                tracing::warn!("the agent card asks callers for credentials, and no authenticator checks them");
            }
            None => {}
        }
        for warning in card.warnings() {
            tracing::warn!("{warning}");
        }
        if let Some(path) = &self.rpc_path {
            card = card.rpc_path(path);
        }
        let (max_body, keep_alive, stream_age) = (self.max_body, self.keep_alive, self.limits.stream_age);
        let (batch_bytes, unsent_bytes) = (self.batch_bytes, self.unsent_bytes);
        let (patience, receiving_bytes, health_watches) =
            (self.body_timeout, self.receiving_bytes, self.health_watches);
        let (strict_version, protocols, v03_file_bytes) = (self.strict_version, self.protocols, self.v03_file_bytes);
        let outer = Arc::clone(&checked);
        let http = move |addr: Option<SocketAddr>| {
            let card = match addr {
                Some(addr) => card.bound(addr),
                None => card,
            };
            let mut settings = Settings::new(Arc::new(move |request: &CardRequest<'_>| card.json(request)));
            (settings.max_body, settings.keep_alive, settings.stream_age) = (max_body, keep_alive, stream_age);
            (settings.batch_bytes, settings.unsent_bytes) = (batch_bytes, unsent_bytes);
            (settings.patience, settings.receiving_bytes) = (patience, receiving_bytes);
            settings.health_watches = health_watches;
            (settings.strict_version, settings.protocols) = (strict_version, protocols);
            (settings.ready, settings.keys, settings.v03_file_bytes) = (ready, true, v03_file_bytes);
            HttpService::new(checked, settings)
        };
        ((service, outer), http)
    }
}

/// A server without a place for its tasks takes no work, nor does one that has not got over it yet.
fn ready(journal: Arc<Journal>, recovered: watch::Receiver<bool>) -> Ready {
    /// Who asks gives up soon, and a disk that hangs may take for ever.
    const PATIENCE: Duration = Duration::from_secs(2);
    Arc::new(move || {
        let (journal, is_recovered) = (Arc::clone(&journal), *recovered.borrow());
        Box::pin(async move {
            if !is_recovered {
                tracing::warn!("not ready: the tasks of the last run are still being recovered");
                return false;
            }
            match timeout(PATIENCE, journal.store().check()).await {
                Ok(Ok(())) => !journal.is_down(),
                Ok(Err(cause)) => {
                    tracing::warn!(error.cause = %cause, "not ready");
                    false
                }
                Err(_) => {
                    tracing::warn!("not ready: the store has not answered for {PATIENCE:?}");
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
