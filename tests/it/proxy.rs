//! A proxy between clients and a server, which cuts what it carries at places that a test chooses.

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

/// Where a call is cut.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cut {
    /// The answer ends behind so many events, as if all were well.
    Ends(usize),
    /// The connection breaks there.
    Breaks(usize),
    /// The answer ends within the event that follows.
    Within(usize),
    /// The request was sent, and the server never heard of it.
    Unheard,
    /// The server did what it was told, and could not say so.
    Unanswered,
    /// Somebody before the server has no time.
    Busy,
}

pub(crate) struct Proxy {
    pub(crate) url: String,
    carrier: Arc<Carrier>,
}

struct Carrier {
    to: Mutex<(Channel, CancellationToken)>,
    cuts: Mutex<VecDeque<Cut>>,
    /// The server does not hear of keys and cursors, and nobody hears of them from it: as with one that has none.
    plain: bool,
    /// Calls of those that may be cut.
    calls: AtomicUsize,
}

type Body = UnsyncBoxBody<Bytes, io::Error>;

fn channel(url: &str) -> (Channel, CancellationToken) {
    (Endpoint::from_shared(url.to_owned()).unwrap().connect_lazy(), CancellationToken::new())
}

impl Proxy {
    pub(crate) async fn before(url: &str) -> Self {
        Self::new(url, false).await
    }

    /// Before a server that knows neither keys nor cursors.
    pub(crate) async fn before_plain(url: &str) -> Self {
        Self::new(url, true).await
    }

    async fn new(url: &str, plain: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let here = format!("http://{}", listener.local_addr().unwrap());
        let to = Mutex::new(channel(url));
        let carrier = Arc::new(Carrier { to, cuts: Mutex::default(), plain, calls: AtomicUsize::new(0) });
        let carriers = Arc::clone(&carrier);
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let carrier = Arc::clone(&carriers);
                tokio::spawn(async move {
                    let service = service_fn(move |request| Arc::clone(&carrier).carry(request));
                    // What breaks is meant to.
                    drop(Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(connection), service).await);
                });
            }
        });
        Self { url: here, carrier }
    }

    /// The next calls are cut like this, one after the other.
    pub(crate) fn cut(&self, cuts: impl IntoIterator<Item = Cut>) {
        self.carrier.cuts.lock().extend(cuts);
    }

    /// How many cuts nobody has come to.
    pub(crate) fn left(&self) -> usize {
        self.carrier.cuts.lock().len()
    }

    /// How many sends and subscriptions have come.
    pub(crate) fn calls(&self) -> usize {
        self.carrier.calls.load(Ordering::SeqCst)
    }

    /// Breaks all that is open, and goes to another server from here on.
    pub(crate) fn turn_to(&self, url: &str) {
        let (_, broken) = std::mem::replace(&mut *self.carrier.to.lock(), channel(url));
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
            Some(Cut::Unheard) => return Err(io::Error::other("unheard")),
            Some(Cut::Busy) => {
                let mut response = Response::new(Full::from("busy").map_err(|it| match it {}).boxed_unsync());
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
        let (mut channel, broken) = self.to.lock().clone();
        std::future::poll_fn(|cx| channel.poll_ready(cx)).await.map_err(io::Error::other)?;
        let request = Request::from_parts(parts, tonic::body::Body::new(Full::new(body)));
        let answer = channel.call(request).await.map_err(io::Error::other)?;
        if matches!(cut, Some(Cut::Unanswered)) {
            // It has said all that it had to say of what was not a stream.
            if !is_stream(answer.headers()) {
                drop(answer.collect().await);
            }
            return Err(io::Error::other("unanswered"));
        }
        let (parts, body) = answer.into_parts();
        let ids = self.plain && !is_grpc(&parts.headers);
        let mut response = Response::new(cut_off(body, cut, is_grpc(&parts.headers), ids, broken));
        (*response.status_mut(), *response.headers_mut()) = (parts.status, parts.headers);
        Ok(response)
    }
}

/// Passes a body on as far as it is to come.
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
                () = broken.cancelled() => Some(Err(io::Error::other("broken"))),
                it = body.frame() => it.map(|it| it.map_err(io::Error::other)),
            };
            let data = match frame.map(|it| it.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => data,
                Some(Ok(Err(trailers))) => { yield Ok(trailers); continue }
                Some(Err(error)) => { yield Err(error); return }
                None => return,
            };
            let data = if without_ids { strip(&data) } else { data };
            let before = all.len();
            all.extend_from_slice(&data);
            let Some(at) = cut.and_then(|it| it.at(&all, grpc)) else {
                yield Ok(Frame::data(data));
                continue
            };
            if at > before {
                yield Ok(Frame::data(data.slice(..at - before)));
            }
            if matches!(cut, Some(Cut::Breaks(_))) {
                // What stands before it has mostly gone out when there is more.
                drop(body.frame().await);
                yield Err(io::Error::other("cut"));
            }
            return
        }
    };
    StreamBody::new(passed).boxed_unsync()
}

impl Cut {
    /// Where a body is cut, once so much of it has come.
    fn at(self, body: &[u8], grpc: bool) -> Option<usize> {
        /// Of an event of either form, and less than one.
        const PART: usize = 7;
        match self {
            Self::Ends(n) | Self::Breaks(n) => behind(n, body, grpc),
            Self::Within(n) => behind(n, body, grpc).map(|it| it + PART).filter(|it| *it <= body.len()),
            Self::Unheard | Self::Unanswered | Self::Busy => None,
        }
    }
}

/// Where the n-th event ends.
fn behind(n: usize, body: &[u8], grpc: bool) -> Option<usize> {
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

/// Events without their `id:` lines.
fn strip(data: &Bytes) -> Bytes {
    data.split_inclusive(|it| *it == b'\n').filter(|it| !it.starts_with(b"id: ")).flatten().copied().collect()
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|it| it.as_bytes().starts_with(b"application/grpc"))
}

fn is_stream(headers: &HeaderMap) -> bool {
    is_grpc(headers) || headers.get(header::CONTENT_TYPE).is_some_and(|it| it.as_bytes() == b"text/event-stream")
}

/// A read of a task, in any binding of either version.
fn only_reads(parts: &Parts, body: &[u8]) -> bool {
    let path = parts.uri.path();
    path.ends_with("/GetTask")
        || (parts.method == Method::GET && !path.ends_with(":subscribe"))
        || [&b"\"GetTask\""[..], b"\"tasks/get\""].iter().any(|it| memchr::memmem::find(body, it).is_some())
}
