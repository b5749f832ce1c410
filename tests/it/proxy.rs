//! TCP proxy between clients and a server that cuts requests and replies at chosen points.

use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header, request::Parts};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tower_service::Service as _;

/// Point at which a call is cut.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cut {
    /// The reply ends regularly after this many events.
    Ends(usize),
    /// The connection breaks after this many events.
    Breaks(usize),
    /// The reply ends regularly within the event after this many.
    Within(usize),
    /// The connection breaks before the request reaches the server.
    RequestLost,
    /// The server handles the request, and the connection breaks before the reply.
    ReplyLost,
    /// The proxy replies 503 itself, with a page.
    Busy,
}

pub(crate) struct Proxy {
    pub(crate) url: String,
    carrier: Arc<Carrier>,
}

struct Carrier {
    target: Mutex<(Channel, CancellationToken)>,
    /// Servers that get the requests in turn, instead of the target.
    replicas: Vec<Channel>,
    next: AtomicUsize,
    cuts: Mutex<VecDeque<Cut>>,
    /// Removes idempotency keys, cursors and extensions, like a server that does not support them.
    plain: bool,
    /// Number of sends and subscriptions.
    calls: AtomicUsize,
}

type Body = UnsyncBoxBody<Bytes, io::Error>;

fn channel(url: &str) -> (Channel, CancellationToken) {
    (Endpoint::from_shared(url.to_owned()).unwrap().connect_lazy(), CancellationToken::new())
}

impl Proxy {
    pub(crate) async fn before(url: &str) -> Self {
        Self::new(url, false, Vec::new()).await
    }

    /// Proxy in front of several servers: each request is sent to the next one, and repeated if that does not accept it.
    pub(crate) async fn before_all(urls: &[String]) -> Self {
        let replicas = urls.iter().map(|url| channel(url).0).collect();
        Self::new(&urls[0], false, replicas).await
    }

    /// Proxy in front of a server without idempotency keys and cursors.
    pub(crate) async fn before_plain(url: &str) -> Self {
        Self::new(url, true, Vec::new()).await
    }

    async fn new(url: &str, plain: bool, replicas: Vec<Channel>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let target = Mutex::new(channel(url));
        let (cuts, calls, next) = (Mutex::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        let carrier = Arc::new(Carrier { target, replicas, next, cuts, plain, calls });
        let shared = Arc::clone(&carrier);
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let carrier = Arc::clone(&shared);
                tokio::spawn(async move {
                    let service = service_fn(move |request| Arc::clone(&carrier).carry(request));
                    // Connection errors are intended.
                    drop(Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(connection), service).await);
                });
            }
        });
        Self { url: address, carrier }
    }

    /// Queues cuts for the next calls, one per call.
    pub(crate) fn cut(&self, cuts: impl IntoIterator<Item = Cut>) {
        self.carrier.cuts.lock().extend(cuts);
    }

    /// Number of cuts that are left.
    pub(crate) fn left(&self) -> usize {
        self.carrier.cuts.lock().len()
    }

    /// Number of sends and subscriptions so far.
    pub(crate) fn calls(&self) -> usize {
        self.carrier.calls.load(Ordering::SeqCst)
    }

    /// Breaks all connections and switches to another server.
    pub(crate) fn switch_to(&self, url: &str) {
        let (_, broken) = std::mem::replace(&mut *self.carrier.target.lock(), channel(url));
        broken.cancel();
    }
}

impl Carrier {
    async fn carry(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Body>, io::Error> {
        let (mut parts, body) = request.into_parts();
        let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
        let mut cut = None;
        if !only_reads(&parts, &body) {
            self.calls.fetch_add(1, Ordering::SeqCst);
            cut = self.cuts.lock().pop_front();
        }
        match cut {
            Some(Cut::RequestLost) => return Err(io::Error::other("connection cut before the request")),
            Some(Cut::Busy) => {
                let mut response =
                    Response::new(Full::from("<html>busy</html>").map_err(|never| match never {}).boxed_unsync());
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                return Ok(response);
            }
            _ => {}
        }
        for name in [header::HOST, header::CONNECTION, header::TRANSFER_ENCODING, header::CONTENT_LENGTH] {
            parts.headers.remove(name);
        }
        if self.plain {
            for name in ["idempotency-key", "last-event-id", "a2a-extensions", "x-a2a-extensions"] {
                parts.headers.remove(name);
            }
        }
        let (target, broken) = self.target.lock().clone();
        let answer = match &*self.replicas {
            [] => send(target, &parts, &body).await?,
            replicas => match self.balance(replicas, &parts, &body).await {
                Ok(answer) => answer,
                Err(error) => {
                    let mut response =
                        Response::new(Full::from(error.to_string()).map_err(|never| match never {}).boxed_unsync());
                    *response.status_mut() = StatusCode::BAD_GATEWAY;
                    return Ok(response);
                }
            },
        };
        if matches!(cut, Some(Cut::ReplyLost)) {
            // Reads a unary reply to its end, so that the server has finished.
            if !is_stream(answer.headers()) {
                drop(answer.collect().await);
            }
            return Err(io::Error::other("connection cut before the reply"));
        }
        let (parts, body) = answer.into_parts();
        let ids = self.plain && !is_grpc(&parts.headers);
        let mut response = Response::new(cut_off(body, cut, is_grpc(&parts.headers), ids, broken));
        (*response.status_mut(), *response.headers_mut()) = (parts.status, parts.headers);
        Ok(response)
    }
}

impl Carrier {
    /// Sends a request to the next server, and to others while it is rejected with 503 and can be repeated.
    async fn balance(
        &self,
        replicas: &[Channel],
        parts: &Parts,
        body: &Bytes,
    ) -> io::Result<Response<tonic::body::Body>> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let can_repeat = parts.method == Method::GET || parts.headers.contains_key("idempotency-key");
        let mut answer = Err(io::Error::other("no server"));
        for n in first..first + replicas.len() {
            answer = send(replicas[n % replicas.len()].clone(), parts, body).await;
            let is_rejected = answer.as_ref().map_or(true, |answer| answer.status() == StatusCode::SERVICE_UNAVAILABLE);
            if !(is_rejected && can_repeat) {
                break;
            }
        }
        answer
    }
}

async fn send(mut channel: Channel, parts: &Parts, body: &Bytes) -> io::Result<Response<tonic::body::Body>> {
    std::future::poll_fn(|cx| channel.poll_ready(cx)).await.map_err(io::Error::other)?;
    let request = Request::from_parts(parts.clone(), tonic::body::Body::new(Full::new(body.clone())));
    channel.call(request).await.map_err(io::Error::other)
}

/// Copies a reply body up to the cut.
fn cut_off(
    mut body: tonic::body::Body,
    cut: Option<Cut>,
    grpc: bool,
    without_ids: bool,
    broken: CancellationToken,
) -> Body {
    let passed = async_stream::stream! {
        let mut all = Vec::new();
        loop {
            let frame = tokio::select! {
                biased;
                () = broken.cancelled() => Some(Err(io::Error::other("proxy switched to another server"))),
                frame = body.frame() => frame.map(|frame| frame.map_err(io::Error::other)),
            };
            let data = match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => data,
                Some(Ok(Err(trailers))) => { yield Ok(trailers); continue }
                Some(Err(error)) => { yield Err(error); return }
                None => return,
            };
            let data = if without_ids { without_id_lines(&data) } else { data };
            let before = all.len();
            all.extend_from_slice(&data);
            let Some(at) = cut.and_then(|cut| cut.at(&all, grpc)) else {
                yield Ok(Frame::data(data));
                continue
            };
            if at > before {
                yield Ok(Frame::data(data.slice(..at - before)));
            }
            if matches!(cut, Some(Cut::Breaks(_))) {
                // Waiting for the next frame makes it likely that the previous one was sent.
                drop(body.frame().await);
                yield Err(io::Error::other("connection cut within the reply"));
            }
            return
        }
    };
    StreamBody::new(passed).boxed_unsync()
}

impl Cut {
    /// Returns the offset of the cut if the body read so far contains it.
    fn at(self, body: &[u8], grpc: bool) -> Option<usize> {
        /// Bytes of the next event that are passed on; fewer than any event has.
        const PART: usize = 7;
        match self {
            Self::Ends(n) | Self::Breaks(n) => end_of_event(n, body, grpc),
            Self::Within(n) => end_of_event(n, body, grpc).map(|end| end + PART).filter(|at| *at <= body.len()),
            Self::RequestLost | Self::ReplyLost | Self::Busy => None,
        }
    }
}

/// Returns the offset of the end of the n-th event.
fn end_of_event(n: usize, body: &[u8], grpc: bool) -> Option<usize> {
    let mut at = 0;
    for _ in 0..n {
        let rest = body.get(at..)?;
        at += if grpc {
            let length = u32::from_be_bytes(rest.get(1..5)?.try_into().unwrap());
            5 + usize::try_from(length).unwrap()
        } else {
            memchr::memmem::find(rest, b"\n\n")? + 2
        };
    }
    (at <= body.len()).then_some(at)
}

/// Removes the `id:` lines of server-sent events.
fn without_id_lines(data: &Bytes) -> Bytes {
    data.split_inclusive(|byte| *byte == b'\n').filter(|line| !line.starts_with(b"id: ")).flatten().copied().collect()
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

fn is_stream(headers: &HeaderMap) -> bool {
    is_grpc(headers) || headers.get(header::CONTENT_TYPE).is_some_and(|value| value.as_bytes() == b"text/event-stream")
}

/// Returns whether a request reads a task, in any binding of either version.
fn only_reads(parts: &Parts, body: &[u8]) -> bool {
    let path = parts.uri.path();
    path.ends_with("/GetTask")
        || (parts.method == Method::GET && !path.ends_with(":subscribe"))
        || [&b"\"GetTask\""[..], b"\"tasks/get\""].iter().any(|method| memchr::memmem::find(body, method).is_some())
}
