//! Lifecycle of a server: the bound server, drain (graceful shutdown), and shutdown signals.

use std::{fmt, io, net::SocketAddr, sync::Arc, time::Duration};

use futures_util::future::join_all;
#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::{
    net::{TcpListener, ToSocketAddrs},
    sync::OnceCell,
};
use tokio_util::sync::CancellationToken;

use super::readiness::{readiness_check, with_agents, with_mounted};
use crate::{
    base::{dependency::Dependency, metric, network::is_public, stderr},
    protocol::pb::v1::TaskState,
    service::Service,
    store::{FileUsage, StoreUsage, turn_record::REASONS},
    transport::{
        HttpService, MemoryBudgets, MetricsSource, ReadinessCheck,
        connection::listener,
        pipeline::{LayeredService, MountedHttp, PipelineSettings},
    },
};
#[cfg(feature = "push")]
use crate::{service::push::PushStats, store::Unavailable};

/// Renders the recorded metrics in the text format of Prometheus.
pub(crate) type Render = Arc<dyn Fn() -> String + Send + Sync>;

/// Time after the grace period in which connections may send their remaining data.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Server that is bound to its address and not yet accepting connections.
#[must_use = "a bound server does nothing until run_until"]
pub struct BoundServer {
    pub(crate) addr: SocketAddr,
    pub(crate) http: HttpService,
    /// Listeners for all bindings, with their addresses. The first one has `addr`.
    pub(crate) listeners: Vec<(TcpListener, SocketAddr)>,
    /// Listener for metrics and health checks.
    pub(crate) metrics: Option<(TcpListener, SocketAddr)>,
    pub(crate) layers: Arc<PipelineSettings>,
    pub(crate) mounted: Arc<[MountedHttp]>,
    pub(crate) handle: Handle,
    pub(crate) settings: listener::ListenerSettings,
    pub(crate) scheme: &'static str,
}

impl BoundServer {
    /// Address of the first listener. Contains the actual port if port 0 was requested.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Base URL of the first listener: `http`, or `https` with TLS, and its address.
    pub fn url(&self) -> String {
        self.url_of(self.addr)
    }

    /// Base URL of an additional listener of this server.
    pub fn url_of(&self, addr: SocketAddr) -> String {
        format!("{}://{addr}", self.scheme)
    }

    /// Handle for readiness and drain.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Adds a listener for all bindings and returns its address. The page `/docs` is on all addresses or on none.
    ///
    /// # Errors
    /// The errors of [`Server::bind`](super::Server::bind).
    pub async fn add(&mut self, addr: impl ToSocketAddrs) -> io::Result<SocketAddr> {
        let (listener, addr) = listen(&self.layers, addr).await?;
        self.listeners.push((listener, addr));
        Ok(addr)
    }

    /// Serves [metrics](super::Server::metrics) on this address instead of the others, together with health checks only, and
    /// returns the address. On a loopback address, its callers are not authenticated.
    ///
    /// # Errors
    /// The errors of [`Server::bind`](super::Server::bind).
    pub async fn metrics(&mut self, addr: impl ToSocketAddrs) -> io::Result<SocketAddr> {
        let (listener, addr) = listen(&self.layers, addr).await?;
        self.metrics = Some((listener, addr));
        Ok(addr)
    }

    /// Serves until `stop` completes, then [drains](Handle::drain) and closes the remaining streams, which clients can
    /// resume later. Returns also after a drain by the [handle](Self::handle).
    pub async fn run_until(self, stop: impl Future<Output = ()>) {
        let Self { http, listeners, metrics, layers, mounted, handle, settings, .. } = self;
        let has_metrics_address = metrics.is_some();
        let operations = metrics.map(|(listener, addr)| {
            (listener, LayeredService::new(http.operations(), Arc::clone(&layers), Some(addr), Arc::default()))
        });
        let all = listeners.into_iter().map(|(listener, addr)| {
            let serves_metrics = !has_metrics_address && (layers.authenticator.is_some() || !is_public(addr));
            let http = if serves_metrics { http.clone() } else { http.without_metrics() };
            (listener, LayeredService::new(http, Arc::clone(&layers), Some(addr), Arc::clone(&mounted)))
        });
        let services: Vec<_> = all.chain(operations).collect();
        let connections = services.len().saturating_mul(settings.connections);
        metric::LIMIT_MAX.set(None, &["connections"], metric::number(connections));
        let draining = handle.0.draining.clone();
        // The service ends the remaining turns after the grace period; their last events still have to be sent.
        let grace_period = handle.0.grace.saturating_add(FLUSH_TIMEOUT);
        let settings = listener::ListenerSettings { grace_period, ..settings };
        let stopping = async {
            tokio::select! {
                biased;
                () = stop => {}
                () = draining.cancelled() => {}
            }
            handle.drain().await;
        };
        let serving =
            services.into_iter().map(|(listener, http)| listener::serve(listener, http, &settings, &draining));
        // `stopping` is polled first, so that it waits for the signal before the first response is sent.
        tokio::join!(stopping, join_all(serving));
    }
}

debug_fields!(BoundServer { addr });

/// Listens on an address. An address that is reachable from other machines needs an authenticator, or a server that is
/// [insecure](super::Server::insecure).
pub(crate) async fn listen(
    layers: &PipelineSettings,
    addr: impl ToSocketAddrs,
) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = listener::bind(addr).await?;
    let addr = listener.local_addr()?;
    if !is_public(addr) || layers.authenticator.is_some() {
        return Ok((listener, addr));
    }
    if !layers.insecure {
        let reason = format!(
            "{addr} is reachable from other machines and callers are not authenticated; set an authenticator \
             (Server::authenticator), listen on 127.0.0.1 or [::1], or allow unauthenticated access \
             (Server::insecure)"
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    }
    let warning = "callers are not authenticated and see all tasks: no token is set";
    tracing::warn!(server.address = %addr, "{warning}");
    stderr::report(format_args!("warning: {warning} (server.address={addr})"));
    Ok((listener, addr))
}

/// Handle of a server: readiness, and drain. Clones belong to the same server.
#[derive(Clone)]
pub struct Handle(Arc<HandleState>);

struct HandleState {
    readiness: ReadinessCheck,
    /// Canceled when the drain begins.
    draining: CancellationToken,
    grace: Duration,
    service: Arc<Service>,
    /// Name of the agent in metrics, if it has one.
    agent: Option<Arc<str>>,
    /// Handles of the agents that are mounted on this server.
    mounted: Vec<Handle>,
    drained: OnceCell<()>,
    /// Canceled when the drain is complete.
    stopped: CancellationToken,
}

impl Handle {
    /// Creates the handle of a service, and of the agents that are mounted on its server.
    /// `needs_agents`: the server is ready only while one of its agents can do its work.
    pub(crate) fn new(
        service: Arc<Service>,
        grace: Duration,
        agent: Option<Arc<str>>,
        mounted: Vec<Self>,
        needs_agents: bool,
    ) -> Self {
        let readiness = readiness_check(Arc::clone(service.journal()), service.recovered());
        let mut readiness = with_mounted(readiness, mounted.iter().map(Self::readiness).collect());
        if needs_agents {
            let all = std::iter::once(&service).chain(mounted.iter().map(|agent| &agent.0.service));
            readiness = with_agents(readiness, all.map(|service| Arc::clone(service.dependencies())).collect());
        }
        let (draining, drained, stopped) = (CancellationToken::new(), OnceCell::new(), CancellationToken::new());
        Self(Arc::new(HandleState { readiness, draining, grace, service, agent, mounted, drained, stopped }))
    }

    pub(crate) fn readiness(&self) -> ReadinessCheck {
        Arc::clone(&self.0.readiness)
    }

    /// Returns whether other processes share the store of an agent.
    pub(crate) fn is_replica(&self) -> bool {
        std::iter::once(self).chain(&self.0.mounted).any(|agent| agent.0.service.journal().is_shared())
    }

    pub(crate) fn draining(&self) -> CancellationToken {
        self.0.draining.clone()
    }

    /// Returns true if the server accepts work, as `/readyz` reports: tasks of an earlier process are recovered, the store
    /// is available, and no drain has begun.
    pub async fn is_ready(&self) -> bool {
        !self.0.draining.is_cancelled() && (self.0.readiness)().await.is_ok()
    }

    /// Returns the source of the metrics: records the gauges, and renders everything with this function.
    pub(crate) fn metrics(&self, render: Render, budgets: MemoryBudgets) -> MetricsSource {
        let handle = self.clone();
        Arc::new(move || {
            let (handle, render, budgets) = (handle.clone(), Arc::clone(&render), budgets.clone());
            Box::pin(async move {
                handle.record_gauges(&budgets).await;
                render()
            })
        })
    }

    async fn record_gauges(&self, budgets: &MemoryBudgets) {
        #[cfg(feature = "push")]
        let mut due = 0;
        for Self(state) in std::iter::once(self).chain(&self.0.mounted) {
            let agent = state.agent.as_ref();
            state.service.gauges().record(agent);
            // The first failure of a kind is an increase from zero.
            for reason in &REASONS[1..] {
                metric::TURNS_ENDED.add(agent, &["failed", reason], 0);
            }
            if let Some((store, limits)) = state.service.usage().await {
                record_store(agent, &store);
                for limit in limits {
                    limit.record(agent);
                }
            }
            #[cfg(feature = "push")]
            if let Some((counts, _)) = state.service.pending_deliveries().await {
                due += counts.due;
            }
            state.service.dependencies().iter().for_each(Dependency::record);
        }
        for limit in budgets.in_use().iter().chain([&self.0.service.live_memory_in_use()]) {
            limit.record(None);
        }
        metric::READY.set(None, &[], u8::from(self.is_ready().await));
        metric::DRAINING.set(None, &[], u8::from(self.0.draining.is_cancelled()));
        metric::record_process();
        #[cfg(feature = "push")]
        if let Ok(Some(PushStats { successes, failures, dead_letters, lag, .. })) = self.push_stats().await {
            metric::PUSH_ATTEMPTS.count(None, &["success"], successes);
            metric::PUSH_ATTEMPTS.count(None, &["failure"], failures);
            metric::PUSH_DEAD_LETTERS.count(None, &[], dead_letters);
            metric::PUSH_LAG.set(None, &[], lag);
            metric::PUSH_DUE.set(None, &[], metric::number(due));
        }
    }

    /// Returns the counters of the delivery of push notifications since the start, and its lag. `None` if the server does not
    /// offer them.
    ///
    /// # Errors
    /// The store, which knows the lag, is unavailable.
    #[cfg(feature = "push")]
    pub async fn push_stats(&self) -> Result<Option<PushStats>, Unavailable> {
        let mut all = self.0.service.push_stats().await?;
        for agent in &self.0.mounted {
            if let Some(stats) = agent.0.service.push_stats().await? {
                all.get_or_insert_default().add(stats);
            }
        }
        Ok(all)
    }

    /// Drains the server: rejects new calls, waits for running turns up to the [grace period](super::Server::drain_grace), and
    /// interrupts the rest. No task is canceled. Returns when the drain is complete, also if another call has begun it.
    pub async fn drain(&self) {
        let all = || std::iter::once(self).chain(&self.0.mounted);
        for agent in all() {
            agent.0.draining.cancel();
        }
        let drained = async |agent: &Self| {
            agent.0.drained.get_or_init(|| agent.0.service.drain(agent.0.grace)).await;
            agent.0.stopped.cancel();
        };
        join_all(all().map(drained)).await;
    }

    /// Waits until a drain is complete.
    pub async fn wait(&self) {
        self.0.stopped.cancelled().await;
    }
}

/// Records the size of a store.
fn record_store(agent: Option<&Arc<str>>, usage: &StoreUsage) {
    for state in (1..).map_while(|number| TaskState::try_from(number).ok()) {
        let count = usage.tasks.iter().find_map(|(found, count)| (*found == state).then_some(*count));
        metric::STORE_TASKS.set(agent, &[state.as_str_name()], metric::number(count.unwrap_or(0)));
    }
    if let Some(FileUsage { database, free, log, .. }) = usage.files {
        for (file, bytes) in [("db", database), ("wal", log), ("free", free)] {
            metric::STORE_BYTES.set(agent, &[file], metric::number(bytes));
        }
    }
    if let Some(connections) = usage.connections {
        metric::STORE_CONNECTIONS.set(agent, &[], metric::number(connections));
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("is_draining", &self.0.draining.is_cancelled()).finish_non_exhaustive()
    }
}

/// Listener for Ctrl-C and SIGTERM. Replaces their default action, which ends the process, and misses none.
pub struct Signals {
    #[cfg(unix)]
    interrupted: Option<Signal>,
    #[cfg(unix)]
    terminated: Option<Signal>,
}

impl Signals {
    /// Starts to listen. Must be called in a tokio runtime.
    #[cfg(unix)]
    pub fn listen() -> Self {
        // If registration fails, the signal keeps its default action.
        Self { interrupted: signal(SignalKind::interrupt()).ok(), terminated: signal(SignalKind::terminate()).ok() }
    }

    /// Starts to listen. Must be called in a tokio runtime.
    #[cfg(not(unix))]
    pub fn listen() -> Self {
        Self {}
    }

    /// Waits for the next signal. Returns the exit code of a process that it ends, as shells report it.
    #[cfg(unix)]
    pub async fn next(&mut self) -> i32 {
        async fn next(signal: Option<&mut Signal>) {
            match signal {
                Some(signal) => drop(signal.recv().await),
                None => std::future::pending().await,
            }
        }
        tokio::select! {
            () = next(self.interrupted.as_mut()) => 130,
            () = next(self.terminated.as_mut()) => 143,
        }
    }

    /// Waits for the next signal. Returns the exit code of a process that it ends.
    #[cfg(not(unix))]
    pub async fn next(&mut self) -> i32 {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        130
    }
}

debug_fields!(Signals {});
