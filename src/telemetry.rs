//! The log: how it is written, and its line for each request.

use std::{
    convert::Infallible,
    fmt,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll, ready},
};

use axum::extract::{ConnectInfo, OriginalUri};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use http_body::{Frame, SizeHint};
use tokio::time::Instant;
use tonic::Status;
use tower_service::Service;
use tracing::{Level, Span, field};
use tracing_subscriber::EnvFilter;

use crate::{
    call::REQUEST_ID,
    config::Log,
    transport::{Answering, Body, RequestBody, binding},
};

pub(crate) mod wire;

/// What the lines of requests are filtered by.
const TARGET: &str = "a2a_service::request";

/// Writes the log to stderr from now on.
pub(crate) fn init(log: Log, filter: EnvFilter) {
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match log {
        Log::Text => lines.with_ansi(false).init(),
        Log::Json => lines.json().flatten_event(true).with_span_list(false).init(),
    }
}

/// A tower service that writes a line for each request when the answer of another is over, and gives what is logged
/// meanwhile the id of the request. Where nobody wants the line, it is as if it were not there.
#[derive(Clone, Debug)]
pub(crate) struct Traced<S>(S);

impl<S> Traced<S> {
    /// Watches over a service.
    pub(crate) fn new(inner: S) -> Self {
        Self(inner)
    }
}

impl<S, B> Service<Request<B>> for Traced<S>
where
    S: Service<Request<B>, Response = Response<Body>, Error = Infallible, Future = Answering>,
    B: RequestBody,
{
    type Response = Response<Watched>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Answer {
        let enabled = tracing::enabled!(target: TARGET, Level::INFO);
        let line = enabled.then(|| Box::new(Line::of(&mut request)));
        let entered = line.as_ref().map(|it| it.span.enter());
        let inner = self.0.call(request);
        drop(entered);
        Answer { inner, line }
    }
}

/// An answer as it is made, and what will be said of it.
pub(crate) struct Answer {
    inner: Answering,
    line: Option<Box<Line>>,
}

impl Future for Answer {
    type Output = Result<Response<Watched>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { inner, line } = &mut *self;
        let entered = line.as_ref().map(|it| it.span.enter());
        let Ok(response) = ready!(inner.as_mut().poll(cx));
        drop(entered);
        let mut line = line.take();
        if let Some(line) = &mut line {
            line.status = Some(response.status().as_u16());
            line.grpc_status(response.headers());
            line.whole = http_body::Body::is_end_stream(response.body());
        }
        Poll::Ready(Ok(response.map(|body| Watched { body, line })))
    }
}

/// The body of an answer. Whoever drops it has sent it, or never will.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    body: Body,
    line: Option<Box<Line>>,
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Self { body, line } = &mut *self;
        let Some(line) = line else { return Pin::new(body).poll_frame(cx) };
        let entered = line.span.enter();
        let frame = ready!(Pin::new(&mut *body).poll_frame(cx));
        drop(entered);
        match &frame {
            None => line.whole = true,
            Some(Ok(it)) => {
                if let Some(trailers) = it.trailers_ref() {
                    line.grpc_status(trailers);
                }
                line.whole = it.is_trailers() || http_body::Body::is_end_stream(body);
            }
            Some(Err(_)) => {}
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        http_body::Body::is_end_stream(&self.body)
    }

    fn size_hint(&self) -> SizeHint {
        http_body::Body::size_hint(&self.body)
    }
}

/// What is said of a request, once nothing more can be added.
struct Line {
    span: Span,
    start: Instant,
    system: &'static str,
    method: Method,
    path: String,
    peer: Option<SocketAddr>,
    id: String,
    status: Option<u16>,
    grpc_status: Option<u16>,
    /// The answer was there to its end.
    whole: bool,
}

impl Line {
    /// Gives the request an id where it came with none that can be written to a log.
    fn of<B>(request: &mut Request<B>) -> Self {
        let known = request.headers().get(REQUEST_ID).and_then(|it| it.to_str().ok());
        let known = known.filter(|it| (1..=128).contains(&it.len()) && it.bytes().all(|it| it.is_ascii_graphic()));
        let id = known.map_or_else(crate::seam::fresh_id, str::to_owned);
        if let Ok(id) = HeaderValue::from_str(&id) {
            request.headers_mut().insert(REQUEST_ID, id);
        }
        Self {
            span: tracing::info_span!(target: TARGET, "request", request.id = %id),
            start: Instant::now(),
            system: binding(request),
            method: request.method().clone(),
            path: request.extensions().get::<OriginalUri>().map_or(request.uri(), |it| &it.0).path().to_owned(),
            peer: request.extensions().get::<ConnectInfo<SocketAddr>>().map(|it| it.0),
            id,
            status: None,
            grpc_status: None,
            whole: false,
        }
    }

    fn grpc_status(&mut self, headers: &HeaderMap) {
        let code = headers.get(Status::GRPC_STATUS).and_then(|it| it.to_str().ok()?.parse().ok());
        self.grpc_status = code.or(self.grpc_status);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let Self { start, system, method, path, peer, id, status, grpc_status, whole, .. } = self;
        let millis = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
        let said = if *whole { "answered" } else { "broken off" };
        // The span's only field is here too.
        tracing::info!(
            target: TARGET,
            parent: None,
            {
                rpc.system = *system,
                http.method = method.as_str(),
                path = path.as_str(),
                status = *status,
                rpc.grpc.status_code = *grpc_status,
                duration_ms = millis,
                request.id = id.as_str(),
                peer = peer.as_ref().map(field::display),
            },
            "{said}"
        );
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("line", &self.line).finish_non_exhaustive()
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").field("id", &self.id).field("path", &self.path).finish_non_exhaustive()
    }
}
