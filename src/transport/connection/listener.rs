//! Accept loop: accepts connections, enforces connection limits and idle timeouts, serves them and drains on shutdown.
//!
//! `axum::serve` is not used: it has no header timeout, and its graceful shutdown waits for streams without limit.

use std::{
    convert::Infallible,
    error::Error as StdError,
    io, mem,
    net::SocketAddr,
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll},
    time::Duration,
};

use axum::extract::ConnectInfo;
use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpSocket, ToSocketAddrs, lookup_host},
    sync::Semaphore,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower_service::Service;

#[cfg(feature = "server-tls")]
use super::tls::{HANDSHAKE_TIMEOUT, MaybeTls, Tls, client_certificate};
use super::write_timeout::{StreamExecutor, observe};
use crate::{
    base::{clock, metric},
    protocol::call::ClientCertificate,
    transport::{
        connection::{ConnectionState, CountedIo, OpenStream},
        pipeline::peer_limit::PeerLimit,
    },
};

/// TLS that a server without the feature can't have.
#[cfg(not(feature = "server-tls"))]
type Tls = Infallible;

/// Pause after an error of accept, which is usually a lack of file descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// Length of the queue of connections that wait to be accepted. The system reduces it to its own maximum
/// (`net.core.somaxconn` on Linux). Tokio's default is 1024.
const BACKLOG: u32 = 65_535;

/// Minimum interval between two log lines about connections that are not accepted, per cause.
const LOG_INTERVAL: Duration = Duration::from_secs(5);

/// Number of checks within the idle timeout. A connection that is idle at this many checks in a row is closed.
const IDLE_CHECKS: u32 = 8;

/// Minimum interval between two checks.
const MIN_IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Time for a client of HTTP/2 to receive `GOAWAY`, and to complete requests that it sent before.
const GOAWAY_GRACE: Duration = Duration::from_secs(1);

/// Default of `idle_timeout`.
pub(crate) const CONNECTION_IDLE_TIMEOUT: Duration = Duration::from_secs(75);

/// Default of [`ListenerSettings::connections`].
pub(crate) const CONNECTIONS: usize = 10_000;

/// Default of [`ListenerSettings::write_timeout`].
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_mins(1);

/// Default of [`ListenerSettings::header_bytes`].
pub(crate) const HEADER_BYTES: usize = 32 << 10;

defaults! {
    /// Limits and timeouts of connections.
    #[derive(Clone, Debug)]
    pub struct ListenerSettings {
        /// Maximum number of open connections. Further ones wait in the queue of the system.
        pub connections: usize = CONNECTIONS,
        /// Maximum size of the head of a request in bytes. A head of more than twice this, and more than 64 KiB, is rejected before
        /// the request can be classified.
        pub header_bytes: usize = HEADER_BYTES,
        /// Timeout from the start of a connection to its first request, or to the end of the HTTP/2 preface.
        pub opening_timeout: Duration = Duration::from_secs(10),
        /// Idle timeout, exceeded by up to an eighth. HTTP/1: from the end of a response to the headers of the next request.
        /// HTTP/2: without an open stream, regardless of pings. It should be longer than that of a load balancer, whose requests
        /// fail if the server closes a connection first. Zero: none.
        pub idle_timeout: Duration = CONNECTION_IDLE_TIMEOUT,
        /// Maximum number of connections per client address.
        pub peer_limit: PeerLimit,
        /// HTTP/2: interval of keep-alive pings, and timeout of their acknowledgement.
        pub ping_interval: Duration = Duration::from_secs(20),
        /// HTTP/2: maximum number of concurrent streams per connection.
        pub max_streams: u32 = 200,
        /// Time in which a client has to receive 64 KiB of a pending response, or the rest if that is less. Otherwise the
        /// connection is closed; over HTTP/2 only the stream is reset. Zero: no limit.
        pub write_timeout: Duration = WRITE_TIMEOUT,
        /// HTTP/1: time in which a response has to begin after the client has ended its side of the connection. After that, and if a
        /// write fails, the client counts as disconnected, and the request is dropped. Zero: the end is a disconnect.
        pub half_close: Duration = Duration::from_secs(5),
        /// Time for running requests to end on drain.
        pub grace_period: Duration = Duration::from_secs(30),
        /// TLS of the connections.
        pub tls: Option<Tls>,
    }
}

/// Listens on the first of these addresses that can be bound, as [`TcpListener::bind`] does, with the longest backlog
/// that the system allows.
///
/// # Errors
/// None of the addresses can be bound.
pub(crate) async fn bind(addr: impl ToSocketAddrs) -> io::Result<TcpListener> {
    let mut failed = None;
    for addr in lookup_host(addr).await? {
        match listen(addr) {
            Ok(listener) => return Ok(listener),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the host name has no address")))
}

fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // On Windows this option would let another process take the port.
    if cfg!(not(windows)) {
        socket.set_reuseaddr(true)?;
    }
    socket.bind(addr)?;
    socket.listen(BACKLOG)
}

/// Rate limit of a log line: the first occurrence is logged immediately, then at most one per [`LOG_INTERVAL`].
#[derive(Default)]
struct LogLimit {
    logged: Option<Instant>,
    /// Occurrences since the last line.
    count: u64,
}

impl LogLimit {
    /// Counts an occurrence. Returns the number since the last line if another line is due.
    fn count(&mut self) -> Option<u64> {
        self.count = self.count.saturating_add(1);
        let due = self.logged.is_none_or(|logged| logged.elapsed() >= LOG_INTERVAL);
        due.then(|| mem::replace(self, Self { logged: Some(Instant::now()), count: 0 }).count)
    }
}

/// Service of a connection: an [`HttpService`](crate::transport::HttpService), or layers around one.
pub trait ConnectionService:
    Service<Request<Incoming>, Response = Response<Self::Body>, Error = Infallible, Future: Send> + Clone + Send + 'static
{
    /// Body of its responses.
    type Body: http_body::Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>> + Unpin + Send + 'static;
}

impl<S, B> ConnectionService for S
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send> + Clone + Send + 'static,
    B: http_body::Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>> + Unpin + Send + 'static,
{
    type Body = B;
}

/// Serves the connections of a listener until `drain`. Then no connection is accepted, and running requests have the grace
/// period to end, after which their connections are closed. Returns true if all ended within the grace period.
pub async fn serve(
    listener: TcpListener,
    service: impl ConnectionService,
    settings: &ListenerSettings,
    drain: &CancellationToken,
) -> bool {
    #[cfg(target_os = "linux")]
    let write_timeout = u32::try_from(settings.write_timeout.as_millis()).unwrap_or(u32::MAX);
    let accept = move |cx: &mut Context<'_>| {
        listener.poll_accept(cx).map_ok(|(stream, peer)| {
            // For the last 4 MB of a response, which the buffer of the system takes. An error leaves them there for longer.
            #[cfg(target_os = "linux")]
            rustix::net::sockopt::set_tcp_user_timeout(&stream, write_timeout).ok();
            // Otherwise the second write of a response waits for the delayed acknowledgement of the client, up to 40 ms.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "TCP_NODELAY not set");
            }
            (stream, peer)
        })
    };
    serve_accepted(accept, service, settings, drain).await
}

/// Serves the connections that `accept` returns, of any type: see [`serve`].
pub async fn serve_accepted<A, I>(
    mut accept: A,
    service: impl ConnectionService,
    settings: &ListenerSettings,
    drain: &CancellationToken,
) -> bool
where
    A: FnMut(&mut Context<'_>) -> Poll<io::Result<(I, SocketAddr)>>,
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (running, abort) = (TaskTracker::new(), CancellationToken::new());
    let permits = Arc::new(Semaphore::new(settings.connections.min(Semaphore::MAX_PERMITS)));
    let settings = Arc::new(settings.clone());
    let (mut errors, mut refusals) = (LogLimit::default(), LogLimit::default());
    loop {
        let next = async {
            let permit = Arc::clone(&permits).acquire_owned().await.ok();
            (std::future::poll_fn(&mut accept).await, permit)
        };
        let (accepted, permit) = tokio::select! {
            biased;
            () = drain.cancelled() => break,
            next = next => next,
        };
        match accepted {
            Ok((io, peer)) => {
                let counted = match settings.peer_limit.connect(peer) {
                    Ok(counted) => counted,
                    Err(error) => {
                        if let Some(connections) = refusals.count() {
                            tracing::warn!(%peer, connections, %error, "connection refused");
                        }
                        continue;
                    }
                };
                let (service, settings) = (service.clone(), Arc::clone(&settings));
                let (drain, abort) = (drain.clone(), abort.clone());
                running.spawn(async move {
                    let _open = OpenConnection::count();
                    #[cfg(feature = "server-tls")]
                    let Some(io) = secured(io, peer, &settings, &drain).await else { return };
                    #[cfg(feature = "server-tls")]
                    let certificate = client_certificate(&io);
                    #[cfg(not(feature = "server-tls"))]
                    let certificate = None;
                    serve_until(io, Some(peer), certificate, service, &settings, &drain, &abort).await;
                    drop((permit, counted));
                });
            }
            // The client disconnected before the connection was accepted.
            Err(error) if is_disconnect(&error) => {}
            Err(error) => {
                if let Some(errors) = errors.count() {
                    tracing::error!(%error, errors, "connections cannot be accepted");
                }
                _ = timeout(ACCEPT_BACKOFF, drain.cancelled()).await;
            }
        }
    }
    // Closes the listener, so that the system rejects further connections.
    drop(accept);
    running.close();
    let all_ended = timeout(settings.grace_period, running.wait()).await.is_ok();
    if !all_ended {
        tracing::warn!(connections = running.len(), grace = ?settings.grace_period, "grace period exceeded; closing connections");
        abort.cancel();
        running.wait().await;
    }
    all_ended
}

/// Performs the handshake of a connection, if the server has TLS. `None` if it fails, takes too long, or the server drains.
#[cfg(feature = "server-tls")]
async fn secured<I>(
    io: I,
    peer: SocketAddr,
    settings: &ListenerSettings,
    drain: &CancellationToken,
) -> Option<MaybeTls<I>>
where
    I: AsyncRead + AsyncWrite + Unpin,
{
    let Some(tls) = &settings.tls else { return Some(MaybeTls::Right(io)) };
    let handshake = tokio::select! {
        handshake = timeout(HANDSHAKE_TIMEOUT, tls.accept(io)) => handshake,
        () = drain.cancelled() => return None,
    };
    match handshake {
        Ok(Ok(stream)) => return Some(MaybeTls::Left(Box::new(stream))),
        Ok(Err(error)) => tracing::debug!(%peer, %error, "TLS handshake failed"),
        Err(_) => tracing::debug!(%peer, timeout = ?HANDSHAKE_TIMEOUT, "TLS handshake timed out"),
    }
    None
}

/// Guard that counts a connection in the metrics until it is dropped.
struct OpenConnection;

impl OpenConnection {
    fn count() -> Self {
        metric::add_connections(1);
        Self
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        metric::add_connections(-1);
    }
}

fn is_disconnect(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Serves one connection over HTTP/1.1, or over HTTP/2 if it begins with the preface. After `drain`, running requests are
/// completed, and no further ones are accepted.
pub async fn serve_connection(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Option<SocketAddr>,
    service: impl ConnectionService,
    settings: &ListenerSettings,
    drain: &CancellationToken,
) {
    serve_until(io, peer, None, service, settings, drain, &CancellationToken::new()).await;
}

/// Event for a connection while it is served.
enum ConnectionSignal {
    /// Complete running requests and accept no further ones.
    Drain,
    /// Close immediately.
    Abort,
    /// Check whether the connection is idle.
    CheckIdle,
    /// The client has sent too many control frames.
    Flooded,
    /// The client was sent `GOAWAY`, and had time to receive it.
    Close,
}

/// Serves one connection until it ends or `abort` is canceled, which happens after `drain`.
async fn serve_until(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Option<SocketAddr>,
    certificate: Option<ClientCertificate>,
    service: impl ConnectionService,
    settings: &ListenerSettings,
    drain: &CancellationToken,
    abort: &CancellationToken,
) {
    let state = Arc::new(ConnectionState::default());
    let io = CountedIo::new(io, Arc::clone(&state), settings.write_timeout, settings.half_close);
    let service_state = Arc::clone(&state);
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        service_state.request_received();
        if let Some(peer) = peer {
            request.extensions_mut().insert(ConnectInfo(peer));
        }
        if let Some(certificate) = &certificate {
            request.extensions_mut().insert(certificate.clone());
        }
        let (mut service, state, open) = (service.clone(), Arc::clone(&service_state), OpenStream::new(&service_state));
        async move {
            std::future::poll_fn(|cx| service.poll_ready(cx)).await?;
            let response = service.call(request).await?;
            let (response, deadline) = observe(response, open);
            *state.response_deadline.lock() = deadline;
            Ok::<_, Infallible>(response)
        }
    });
    let builder = builder(settings);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(io), service));
    let wait = |(signal, after)| async move {
        match signal {
            ConnectionSignal::Drain => drain.cancelled().await,
            ConnectionSignal::Abort => abort.cancelled().await,
            ConnectionSignal::CheckIdle | ConnectionSignal::Flooded | ConnectionSignal::Close => {
                sleep_until(clock::after(Instant::now(), after)).await;
            }
        }
        signal
    };
    // `FuturesUnordered` gives each its own waker, so that they are not polled with every event of the connection.
    let mut signals: FuturesUnordered<_> =
        [(ConnectionSignal::Drain, Duration::ZERO), (ConnectionSignal::CheckIdle, settings.opening_timeout)]
            .into_iter()
            .map(wait)
            .collect();
    let (mut activity, mut idle_checks) = (0, 0);
    let mut flooded = false;
    loop {
        let signal = tokio::select! {
            biased;
            served = connection.as_mut() => {
                if let Err(error) = served {
                    tracing::debug!(%error, "connection ended with an error");
                }
                return;
            }
            () = state.flooded(), if !flooded => ConnectionSignal::Flooded,
            Some(signal) = signals.next() => signal,
        };
        match signal {
            ConnectionSignal::Drain => {
                signals.push(wait((ConnectionSignal::Abort, Duration::ZERO)));
                connection.as_mut().graceful_shutdown();
            }
            ConnectionSignal::Abort => return,
            ConnectionSignal::CheckIdle if !state.is_open.load(Relaxed) => {
                tracing::debug!("connection closed: no request received");
                return;
            }
            // The error code is NO_ERROR, since hyper can't send ENHANCE_YOUR_CALM. No more input is read.
            ConnectionSignal::Flooded => {
                tracing::warn!(?peer, "connection closed: too many HTTP/2 control frames");
                flooded = true;
                connection.as_mut().graceful_shutdown();
                signals.push(wait((ConnectionSignal::Close, GOAWAY_GRACE)));
            }
            ConnectionSignal::Close if flooded || state.is_idle() => return,
            // The client sent a request before it received `GOAWAY`. The connection ends after its response.
            ConnectionSignal::Close => signals.push(wait((ConnectionSignal::Close, GOAWAY_GRACE))),
            ConnectionSignal::CheckIdle if settings.idle_timeout.is_zero() => {}
            ConnectionSignal::CheckIdle => {
                let before = mem::replace(&mut activity, state.activity.load(Relaxed));
                idle_checks = if state.is_idle() && activity == before { idle_checks + 1 } else { 0 };
                if idle_checks == IDLE_CHECKS {
                    tracing::debug!("idle connection closed");
                    if !state.is_http2() {
                        return;
                    }
                    connection.as_mut().graceful_shutdown();
                    signals.push(wait((ConnectionSignal::Close, GOAWAY_GRACE)));
                    continue;
                }
                signals.push(wait((
                    ConnectionSignal::CheckIdle,
                    (settings.idle_timeout / IDLE_CHECKS).max(MIN_IDLE_CHECK_INTERVAL),
                )));
            }
        }
    }
}

fn builder(settings: &ListenerSettings) -> auto::Builder<StreamExecutor> {
    const MAX_BUFFER: usize = 64 << 10;
    // Larger than the limit, so that a request that exceeds it gets an error that says so.
    let head = settings.header_bytes.saturating_mul(2).max(MAX_BUFFER);
    let mut builder = auto::Builder::new(StreamExecutor { timeout: settings.write_timeout });
    // `CountedIo` and `serve_until` detect half-closed and idle connections. hyper's own detection would cost each request a timer,
    // and a read with a buffer.
    builder.http1().half_close(true).max_buf_size(head);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(settings.ping_interval)
        .keep_alive_timeout(settings.ping_interval)
        .max_concurrent_streams(settings.max_streams)
        // Streams that are opened and immediately reset cost the server more than the client.
        .max_pending_accept_reset_streams(20)
        .max_local_error_reset_streams(100)
        .max_header_list_size(u32::try_from(head).unwrap_or(u32::MAX))
        .max_send_buf_size(MAX_BUFFER);
    builder
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn log_lines_are_rate_limited_and_counted() {
        let mut errors = LogLimit::default();
        assert_eq!(errors.count(), Some(1));
        for _ in 0..99 {
            assert_eq!(errors.count(), None);
        }
        tokio::time::advance(LOG_INTERVAL).await;
        assert_eq!((errors.count(), errors.count()), (Some(100), None));
    }
}
