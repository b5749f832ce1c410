//! Request log: a line per request with its status, duration, JSON-RPC method and error reason.

use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum::extract::OriginalUri;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, request::Parts};
use http_body::{Body as _, Frame};
use tokio::time::Instant;
use tracing::{Level, Span, field};

use crate::{
    base::{metric, sources::Ids, trace::valid_parent},
    protocol::call::{CallRecord, REQUEST_ID, TRACE},
    transport::{
        Body, BrowserHeaders, CallOutcome, REQUEST_LOG, RequestClass, ResponseFuture,
        body::observed::{BodyObserver, ObservedBody},
        grpc_web_trailers, hide_credentials, peer, request_id,
    },
};

/// Response body that is logged when it is dropped: after it was sent, or when the client has gone.
pub(crate) type LoggedBody = ObservedBody<Body, Box<RequestLine>>;

/// Passes a request on, and logs it: assigns it an id, which the response returns, and logs a line when the response body
/// has ended. Log lines in between are in a span with the id. Credentials are hidden from `Debug`. `browser` is added to the
/// response.
pub(crate) fn logged(
    mut parts: Parts,
    class: RequestClass,
    ids: &Ids,
    is_metered: bool,
    browser: BrowserHeaders,
    next: impl FnOnce(Parts) -> ResponseFuture,
) -> LoggedResponse {
    hide_credentials(&mut parts.headers);
    let id = request_id(&mut parts.headers, ids);
    let enabled = tracing::enabled!(target: REQUEST_LOG, Level::INFO);
    let line = enabled.then(|| Box::new(RequestLine::new(&parts, class, &id)));
    if let Some(line) = &line {
        parts.extensions.insert(Arc::clone(&line.record));
    }
    let entered = line.as_ref().map(|line| line.span.enter());
    let inner = next(parts);
    drop(entered);
    LoggedResponse { inner, counted: is_metered.then(|| class.system()), id: Some(id), browser, line }
}

/// Future of a response, with its line of the request log.
pub(crate) struct LoggedResponse {
    inner: ResponseFuture,
    /// Label of the metrics, if there are any.
    counted: Option<&'static str>,
    /// Taken when the response is ready.
    id: Option<HeaderValue>,
    browser: BrowserHeaders,
    line: Option<Box<RequestLine>>,
}

impl Future for LoggedResponse {
    type Output = Result<Response<LoggedBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { inner, counted, id, browser, line } = &mut *self;
        let entered = line.as_ref().map(|line| line.span.enter());
        let Ok(mut response) = ready!(inner.as_mut().poll(cx));
        drop(entered);
        if let Some(binding) = counted {
            metric::count_response(binding, response.status());
        }
        if let Some(mut id) = id.take() {
            // The compression of HTTP/2 then does not keep an id that no later response has.
            id.set_sensitive(true);
            let headers = response.headers_mut();
            browser.add_to(headers);
            headers.insert(REQUEST_ID, id);
        }
        if let Some(line) = line {
            line.outcome = response.extensions_mut().remove().unwrap_or_default();
            line.outcome.record_grpc(response.headers());
            line.status = Some(response.status().as_u16());
            line.is_complete = response.body().is_end_stream();
        }
        Poll::Ready(Ok(response.map(|body| ObservedBody { body, observer: line.take() })))
    }
}

/// Line of the request log. Written when it is dropped.
pub(crate) struct RequestLine {
    span: Span,
    start: Instant,
    system: &'static str,
    /// The trailers are a frame of data.
    is_grpc_web: bool,
    method: Method,
    path: String,
    peer: Option<SocketAddr>,
    id: HeaderValue,
    /// Trace id of a valid `traceparent`.
    trace: Option<String>,
    status: Option<u16>,
    outcome: CallOutcome,
    record: Arc<CallRecord>,
    is_complete: bool,
}

impl RequestLine {
    fn new(parts: &Parts, class: RequestClass, id: &HeaderValue) -> Self {
        Self {
            span: tracing::info_span!(target: REQUEST_LOG, "request", request.id = %id.to_str().unwrap_or_default()),
            start: Instant::now(),
            system: class.system(),
            is_grpc_web: class.is_grpc_web(),
            method: parts.method.clone(),
            path: parts.extensions.get::<OriginalUri>().map_or(&parts.uri, |uri| &uri.0).path().to_owned(),
            peer: peer(parts),
            id: id.clone(),
            trace: trace_id(&parts.headers),
            status: None,
            outcome: CallOutcome::default(),
            record: Arc::default(),
            is_complete: false,
        }
    }
}

/// Returns the trace id of a `traceparent`, if it is valid.
fn trace_id(headers: &HeaderMap) -> Option<String> {
    let trace = valid_parent(headers.get(TRACE)?.to_str().ok()?)?;
    trace.split('-').nth(1).map(str::to_owned)
}

impl BodyObserver for Box<RequestLine> {
    fn span(&self) -> &Span {
        &self.span
    }

    fn observe(&mut self, frame: Option<&Frame<Bytes>>, is_end: bool) {
        if let Some(trailers) = frame.and_then(Frame::trailers_ref) {
            self.outcome.record_grpc(trailers);
        }
        if self.is_grpc_web
            && let Some(trailers) = frame.and_then(Frame::data_ref).and_then(|data| grpc_web_trailers(data))
        {
            self.outcome.record_grpc(&trailers);
        }
        self.is_complete |= is_end;
    }
}

impl Drop for RequestLine {
    fn drop(&mut self) {
        let event = if self.is_complete { "request completed" } else { "response aborted" };
        // No parent: the only field of the span is repeated here.
        tracing::info!(
            target: REQUEST_LOG,
            parent: None,
            {
                rpc.system = self.system,
                http.method = self.method.as_str(),
                path = self.path.as_str(),
                status = self.status,
                rpc.method = self.outcome.method.as_deref(),
                operation = self.record.operation.get(),
                version = self.record.version.get().map(|version| version.as_str()),
                task.id = self.record.task.get(),
                owner = self.record.owner.get().map(|owner| &**owner),
                rpc.grpc.status_code = self.outcome.grpc_status,
                error.reason = self.outcome.reason.as_deref(),
                duration_ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX),
                request.id = self.id.to_str().unwrap_or_default(),
                trace.id = self.trace.as_deref(),
                peer = self.peer.map(field::display),
            },
            "{event}"
        );
    }
}
