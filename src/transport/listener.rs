//! Connections: taken, guarded, served and drained. Our own loop, since `axum::serve` has no time for headers and waits
//! for streams for ever.

use std::{
    convert::Infallible,
    error::Error as StdError,
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::extract::ConnectInfo;
use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpListener,
    sync::Semaphore,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower_service::Service;

/// How long nothing is accepted after the system said that it can't: out of descriptors, most often.
const PAUSE: Duration = Duration::from_millis(100);

/// What an HTTP/2 client says first.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How many connections there may be at a time, where nothing else is said.
pub(crate) const MAX_CONNECTIONS: usize = 10_000;

/// What holds for every connection.
#[derive(Clone, Debug)]
pub struct Settings {
    /// So many at a time; more wait to be accepted.
    pub max_connections: usize,
    /// From the start of a connection to its first request, or to the preface of HTTP/2.
    pub opening: Duration,
    /// HTTP/1: from the end of an answer to the head of the next request. Longer than what load balancers keep idle
    /// connections for, since one that we close first costs them a request.
    pub idle: Duration,
    /// HTTP/2: how often the other end is asked whether it is still there, and how long it has to say so.
    pub ping: Duration,
    /// HTTP/2: calls at a time on one connection.
    pub max_streams: u32,
    /// How long a drain waits for what runs.
    pub grace: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_connections: MAX_CONNECTIONS,
            opening: Duration::from_secs(10),
            idle: Duration::from_secs(75),
            ping: Duration::from_secs(20),
            max_streams: 200,
            grace: Duration::from_secs(30),
        }
    }
}

/// What answers on a connection: a [`Door`](super::Door), or layers around one.
pub trait Answers<B>:
    Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send> + Clone + Send + 'static
{
}

impl<S, B> Answers<B> for S where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send> + Clone + Send + 'static
{
}

/// Serves what connects, until `drain`. Then nothing more is accepted, what runs has its `grace`, and what is left after
/// it is cut off. Says whether nothing was.
pub async fn serve<S, B>(listener: TcpListener, service: S, settings: &Settings, drain: &CancellationToken) -> bool
where
    S: Answers<B>,
    B: http_body::Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>> + Send + 'static,
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
    settings: &Settings,
    drain: &CancellationToken,
) -> bool
where
    A: FnMut(&mut Context<'_>) -> Poll<io::Result<(I, SocketAddr)>>,
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Answers<B>,
    B: http_body::Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>> + Send + 'static,
{
    let (running, cut) = (TaskTracker::new(), CancellationToken::new());
    let free = Arc::new(Semaphore::new(settings.max_connections));
    let settings = Arc::new(settings.clone());
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
                let (service, settings) = (service.clone(), Arc::clone(&settings));
                let (drain, cut) = (drain.clone(), cut.clone());
                running.spawn(async move {
                    serve_until(io, Some(peer), service, &settings, (&drain, &cut)).await;
                    drop(permit);
                });
            }
            // It was there and went away before we took it.
            Err(error) if gone(&error) => {}
            Err(error) => {
                tracing::error!(%error, "no connection can be accepted");
                _ = timeout(PAUSE, drain.cancelled()).await;
            }
        }
    }
    // What would still be accepted is refused by the system from here on, and not left to wait.
    drop(accept);
    running.close();
    let settled = timeout(settings.grace, running.wait()).await.is_ok();
    if !settled {
        tracing::warn!(connections = running.len(), grace = ?settings.grace, "connections are cut off");
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
    settings: &Settings,
    drain: &CancellationToken,
) where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Answers<B>,
    B: http_body::Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>> + Send + 'static,
{
    serve_until(io, peer, service, settings, (drain, &CancellationToken::new())).await;
}

/// What a connection is told while it is served.
enum Told {
    /// Nothing more is begun.
    Drain,
    /// It is over, whatever runs.
    Cut,
    /// It has had its time to say something.
    Opened,
}

/// The same until `cut`, which comes after `drain`.
async fn serve_until<I, S, B>(
    io: I,
    peer: Option<SocketAddr>,
    service: S,
    settings: &Settings,
    (drain, cut): (&CancellationToken, &CancellationToken),
) where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Answers<B>,
    B: http_body::Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>> + Send + 'static,
{
    let open = Arc::new(AtomicBool::new(false));
    let io = Guarded { io, open: Arc::clone(&open), matched: Some(0), joins: false };
    let opened = Arc::clone(&open);
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        opened.store(true, Ordering::Relaxed);
        if let Some(peer) = peer {
            request.extensions_mut().insert(ConnectInfo(peer));
        }
        let mut service = service.clone();
        async move {
            std::future::poll_fn(|cx| service.poll_ready(cx)).await?;
            service.call(request).await
        }
    });
    let builder = builder(settings);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(io), service));
    let opening = Instant::now() + settings.opening;
    let wait = |told| async move {
        match told {
            Told::Drain => drain.cancelled().await,
            Told::Cut => cut.cancelled().await,
            Told::Opened => sleep_until(opening).await,
        }
        told
    };
    // Each has a waker of its own, so that it costs nothing while the connection is busy.
    let mut tells: FuturesUnordered<_> = [Told::Drain, Told::Opened].into_iter().map(wait).collect();
    loop {
        let told = tokio::select! {
            biased;
            served = connection.as_mut() => {
                if let Err(error) = served {
                    tracing::debug!(%error, "a connection ended");
                }
                return;
            }
            Some(told) = tells.next() => told,
        };
        match told {
            Told::Drain => {
                tells.push(wait(Told::Cut));
                connection.as_mut().graceful_shutdown();
            }
            Told::Cut => return,
            Told::Opened if open.load(Ordering::Relaxed) => {}
            Told::Opened => {
                tracing::debug!("a connection said nothing");
                return;
            }
        }
    }
}

fn builder(settings: &Settings) -> auto::Builder<TokioExecutor> {
    const BUFFER: usize = 64 << 10;
    const HEAD: u32 = 64 << 10;
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(settings.idle).max_buf_size(BUFFER);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(settings.ping)
        .keep_alive_timeout(settings.ping)
        .max_concurrent_streams(settings.max_streams)
        // Streams that are opened and reset at once cost us more than their sender.
        .max_pending_accept_reset_streams(20)
        .max_local_error_reset_streams(100)
        .max_header_list_size(HEAD)
        .max_send_buf_size(BUFFER);
    builder
}

/// A connection that notes when its client has begun with HTTP/2, which is not seen from outside: somebody who connects
/// and waits is let go, and so is one who stops in the middle of the preface.
struct Guarded<I> {
    io: I,
    open: Arc<AtomicBool>,
    /// How much of the preface was read, and nothing else.
    matched: Option<usize>,
    /// It speaks HTTP/2, and nothing was written to it yet. Whoever writes it asks at the beginning whether pieces may
    /// stay apart; told that they may not, it puts what is up to 1 KiB, the headers before it and the trailers after it
    /// into one write, where it else makes two. Larger pieces are for a vectored write all the same.
    joins: bool,
}

impl<I> Guarded<I> {
    fn look(&mut self, read: &[u8]) {
        let Some(matched) = self.matched else { return };
        let expected = &PREFACE[matched..];
        let common = expected.len().min(read.len());
        let same = read.get(..common) == expected.get(..common);
        self.matched = same.then_some(matched + common).filter(|it| *it < PREFACE.len());
        if same && self.matched.is_none() {
            self.open.store(true, Ordering::Relaxed);
            self.joins = true;
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Guarded<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(cx, buf);
        if self.matched.is_some() {
            self.look(&buf.filled()[before..]);
        }
        polled
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Guarded<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.joins = false;
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.joins = false;
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        !self.joins && self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
