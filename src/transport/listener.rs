//! Connections: taken, guarded, served and drained. Our own loop, since `axum::serve` has no time for headers and waits
//! for streams for ever.

use std::{
    convert::Infallible,
    error::Error as StdError,
    io, mem,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
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

use super::{
    connection::{ConnectionState, CountedIo, OpenStream},
    peer_limit::PeerLimit,
    write_timeout::{StreamExecutor, observe},
};
use crate::clock;

/// How long nothing is accepted after the system said that it can't: out of descriptors, most often.
const PAUSE: Duration = Duration::from_millis(100);

/// Length of the queue of connections that wait to be accepted. The system cuts it to its own maximum
/// (`net.core.somaxconn` on Linux), which Tokio's default of 1024 stays below.
const BACKLOG: u32 = 65_535;

/// Minimum interval between two log lines about connections that are not accepted for the same cause.
const LOG_INTERVAL: Duration = Duration::from_secs(5);

/// An idle connection is looked at so often until it has been idle for too long.
const LOOKS: u32 = 8;

/// It is not looked at sooner than this, however short that is.
const SOON: Duration = Duration::from_millis(10);

/// Time in which a client of HTTP/2 can receive that its connection is closed (`GOAWAY`), and finish requests that it had
/// sent before.
const GOAWAY_GRACE: Duration = Duration::from_secs(1);

/// Default of `connection.idle`.
pub(crate) const CONNECTION_IDLE_TIMEOUT: Duration = Duration::from_secs(75);

/// How many connections there may be at a time, where nothing else is said.
pub(crate) const MAX_CONNECTIONS: usize = 10_000;

/// Default of [`ListenerSettings::write_timeout`].
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_mins(1);

/// What holds for every connection.
#[derive(Clone, Debug)]
pub struct ListenerSettings {
    /// So many at a time; more wait to be accepted.
    pub max_connections: usize,
    /// From the start of a connection to its first request, or to the preface of HTTP/2.
    pub opening_timeout: Duration,
    /// Idle timeout, or up to an eighth more: over HTTP/1 from the end of an answer to the head of the next request, over
    /// HTTP/2 without an open stream, whether pings are answered or not. Longer than what load balancers keep idle
    /// connections for, since one that we close first costs them a request. Zero: none.
    pub idle_timeout: Duration,
    /// Maximum number of connections per client address.
    pub peer_limit: PeerLimit,
    /// HTTP/2: how often the other end is asked whether it is still there, and how long it has to say so.
    pub ping_interval: Duration,
    /// HTTP/2: calls at a time on one connection.
    pub max_streams: u32,
    /// Time in which a client has to take 64 KiB of an answer that waits for it, or all of it if less waits. Otherwise the
    /// connection is closed, over HTTP/2 only the stream reset. Zero: no limit.
    pub write_timeout: Duration,
    /// How long a drain waits for what runs.
    pub grace_period: Duration,
}

impl Default for ListenerSettings {
    fn default() -> Self {
        Self {
            max_connections: MAX_CONNECTIONS,
            opening_timeout: Duration::from_secs(10),
            idle_timeout: CONNECTION_IDLE_TIMEOUT,
            peer_limit: PeerLimit::default(),
            ping_interval: Duration::from_secs(20),
            max_streams: 200,
            write_timeout: WRITE_TIMEOUT,
            grace_period: Duration::from_secs(30),
        }
    }
}

/// Listens on the first of these addresses that can be bound, as [`TcpListener::bind`] does, with the longest backlog
/// that the system allows.
///
/// # Errors
/// No address can be listened on.
pub(crate) async fn bind(addr: impl ToSocketAddrs) -> io::Result<TcpListener> {
    let mut failed = None;
    for addr in lookup_host(addr).await? {
        match listen(addr) {
            Ok(listener) => return Ok(listener),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the name has no address")))
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

/// Rate limit of a log line: the first at once, then at most one per [`LOG_INTERVAL`].
#[derive(Default)]
struct LogLimit {
    logged: Option<Instant>,
    /// Occurrences since the last line.
    count: u64,
}

impl LogLimit {
    /// Counts an occurrence. Returns the number of them since the last line if it is time for another.
    fn count(&mut self) -> Option<u64> {
        self.count = self.count.saturating_add(1);
        let due = self.logged.is_none_or(|logged| logged.elapsed() >= LOG_INTERVAL);
        due.then(|| mem::replace(self, Self { logged: Some(Instant::now()), count: 0 }).count)
    }
}

/// What answers on a connection: a [`HttpService`](super::Door), or layers around one.
pub trait ConnectionService<B>:
    Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send> + Clone + Send + 'static
{
}

impl<S, B> ConnectionService<B> for S where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send> + Clone + Send + 'static
{
}

/// Serves what connects, until `drain`. Then nothing more is accepted, what runs has its `grace`, and what is left after
/// it is cut off. Says whether nothing was.
pub async fn serve<S, B>(
    listener: TcpListener,
    service: S,
    settings: &ListenerSettings,
    drain: &CancellationToken,
) -> bool
where
    S: ConnectionService<B>,
    B: http_body::Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>> + Unpin + Send + 'static,
{
    let accept = move |cx: &mut Context<'_>| {
        listener.poll_accept(cx).map_ok(|(stream, peer)| {
            // Without it the second write of an answer waits for the client's delayed acknowledgement: 40 ms.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "TCP_NODELAY could not be set");
            }
            (stream, peer)
        })
    };
    serve_accepted(accept, service, settings, drain).await
}

/// The same for connections of any kind. `accept` is the loop's only source of them, and of errors.
pub async fn serve_accepted<A, I, S, B>(
    mut accept: A,
    service: S,
    settings: &ListenerSettings,
    drain: &CancellationToken,
) -> bool
where
    A: FnMut(&mut Context<'_>) -> Poll<io::Result<(I, SocketAddr)>>,
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: ConnectionService<B>,
    B: http_body::Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>> + Unpin + Send + 'static,
{
    let (running, cut) = (TaskTracker::new(), CancellationToken::new());
    let free = Arc::new(Semaphore::new(settings.max_connections.min(Semaphore::MAX_PERMITS)));
    let settings = Arc::new(settings.clone());
    let (mut errors, mut refusals) = (LogLimit::default(), LogLimit::default());
    loop {
        let next = async {
            let permit = Arc::clone(&free).acquire_owned().await.ok();
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
                let (drain, cut) = (drain.clone(), cut.clone());
                running.spawn(async move {
                    serve_until(io, Some(peer), service, &settings, (&drain, &cut)).await;
                    drop((permit, counted));
                });
            }
            // It was there and went away before we took it.
            Err(error) if gone(&error) => {}
            Err(error) => {
                if let Some(errors) = errors.count() {
                    tracing::error!(%error, errors, "connections cannot be accepted");
                }
                _ = timeout(PAUSE, drain.cancelled()).await;
            }
        }
    }
    // What would still be accepted is refused by the system from here on, and not left to wait.
    drop(accept);
    running.close();
    let settled = timeout(settings.grace_period, running.wait()).await.is_ok();
    if !settled {
        tracing::warn!(connections = running.len(), grace = ?settings.grace_period, "connections are cut off");
        cut.cancel();
        running.wait().await;
    }
    settled
}

fn gone(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Serves one connection in HTTP/1.1 or in HTTP/2 by prior knowledge, whichever it begins with. After `drain`, what runs
/// on it is finished and nothing more is begun.
pub async fn serve_connection<I, S, B>(
    io: I,
    peer: Option<SocketAddr>,
    service: S,
    settings: &ListenerSettings,
    drain: &CancellationToken,
) where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: ConnectionService<B>,
    B: http_body::Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>> + Unpin + Send + 'static,
{
    serve_until(io, peer, service, settings, (drain, &CancellationToken::new())).await;
}

/// What a connection is told while it is served.
enum ConnectionSignal {
    /// Nothing more is begun.
    Drain,
    /// It is over, whatever runs.
    Cut,
    /// It is time to look whether it says something.
    Look,
    /// Its client has sent too many control frames.
    Flooded,
    /// The client was sent `GOAWAY`, and had time to receive it.
    Close,
}

/// The same until `cut`, which comes after `drain`.
async fn serve_until<I, S, B>(
    io: I,
    peer: Option<SocketAddr>,
    service: S,
    settings: &ListenerSettings,
    (drain, cut): (&CancellationToken, &CancellationToken),
) where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: ConnectionService<B>,
    B: http_body::Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>> + Unpin + Send + 'static,
{
    let watch = Arc::new(ConnectionState::default());
    let io = CountedIo::new(io, Arc::clone(&watch), settings.write_timeout);
    let seen = Arc::clone(&watch);
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        seen.called();
        if let Some(peer) = peer {
            request.extensions_mut().insert(ConnectInfo(peer));
        }
        let (mut service, seen, open) = (service.clone(), Arc::clone(&seen), OpenStream::new(&seen));
        async move {
            std::future::poll_fn(|cx| service.poll_ready(cx)).await?;
            let response = service.call(request).await?;
            let (response, until) = observe(response.map(|body| Counted { body, _open: open }));
            seen.ends_at(until);
            Ok::<_, Infallible>(response)
        }
    });
    let builder = builder(settings);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(io), service));
    let wait = |(told, after)| async move {
        match told {
            ConnectionSignal::Drain => drain.cancelled().await,
            ConnectionSignal::Cut => cut.cancelled().await,
            ConnectionSignal::Look | ConnectionSignal::Flooded | ConnectionSignal::Close => {
                sleep_until(clock::after(Instant::now(), after)).await;
            }
        }
        told
    };
    // Each has a waker of its own, so that it costs nothing while the connection is busy.
    let mut tells: FuturesUnordered<_> =
        [(ConnectionSignal::Drain, Duration::ZERO), (ConnectionSignal::Look, settings.opening_timeout)]
            .into_iter()
            .map(wait)
            .collect();
    let (mut calls, mut quiet) = (0, 0);
    let mut flooded = false;
    loop {
        let told = tokio::select! {
            biased;
            served = connection.as_mut() => {
                if let Err(error) = served {
                    tracing::debug!(%error, "a connection ended");
                }
                return;
            }
            () = watch.flooded(), if !flooded => ConnectionSignal::Flooded,
            Some(told) = tells.next() => told,
        };
        match told {
            ConnectionSignal::Drain => {
                tells.push(wait((ConnectionSignal::Cut, Duration::ZERO)));
                connection.as_mut().graceful_shutdown();
            }
            ConnectionSignal::Cut => return,
            ConnectionSignal::Look if !watch.is_open() => {
                tracing::debug!("a connection said nothing");
                return;
            }
            // hyper has no way to say ENHANCE_YOUR_CALM, and so it is NO_ERROR. Nothing more is read meanwhile.
            ConnectionSignal::Flooded => {
                tracing::warn!(?peer, "connection closed: too many HTTP/2 control frames");
                flooded = true;
                connection.as_mut().graceful_shutdown();
                tells.push(wait((ConnectionSignal::Close, GOAWAY_GRACE)));
            }
            ConnectionSignal::Close if flooded || watch.is_idle() => return,
            // A request had been sent before the client could know. The connection ends with its answer.
            ConnectionSignal::Close => tells.push(wait((ConnectionSignal::Close, GOAWAY_GRACE))),
            ConnectionSignal::Look if settings.idle_timeout.is_zero() => {}
            ConnectionSignal::Look => {
                let before = mem::replace(&mut calls, watch.calls());
                quiet = if watch.is_idle() && calls == before { quiet + 1 } else { 0 };
                if quiet == LOOKS {
                    tracing::debug!("idle connection closed");
                    if !watch.is_http2() {
                        return;
                    }
                    connection.as_mut().graceful_shutdown();
                    tells.push(wait((ConnectionSignal::Close, GOAWAY_GRACE)));
                    continue;
                }
                tells.push(wait((ConnectionSignal::Look, (settings.idle_timeout / LOOKS).max(SOON))));
            }
        }
    }
}

/// The body of an answer, which counts as an open stream until it is dropped.
struct Counted<B> {
    body: B,
    _open: OpenStream,
}

impl<B: http_body::Body + Unpin> http_body::Body for Counted<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

fn builder(settings: &ListenerSettings) -> auto::Builder<StreamExecutor> {
    const BUFFER: usize = 64 << 10;
    const HEAD: u32 = 64 << 10;
    let mut builder = auto::Builder::new(StreamExecutor { timeout: settings.write_timeout });
    // Who closes their half, and who sends nothing more, is seen in [`CountedIo`] and above, where it costs a call less than
    // it does here: a timer, and a read of which nothing comes with a buffer for it.
    builder.http1().half_close(true).max_buf_size(BUFFER);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(settings.ping_interval)
        .keep_alive_timeout(settings.ping_interval)
        .max_concurrent_streams(settings.max_streams)
        // Streams that are opened and reset at once cost us more than their sender.
        .max_pending_accept_reset_streams(20)
        .max_local_error_reset_streams(100)
        .max_header_list_size(HEAD)
        .max_send_buf_size(BUFFER);
    builder
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn log_lines_have_a_count_and_an_interval() {
        let mut errors = LogLimit::default();
        assert_eq!(errors.count(), Some(1));
        for _ in 0..99 {
            assert_eq!(errors.count(), None);
        }
        tokio::time::advance(LOG_INTERVAL).await;
        assert_eq!((errors.count(), errors.count()), (Some(100), None));
    }
}
