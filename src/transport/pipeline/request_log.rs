//! Request log: a line per request with its status, duration, JSON-RPC method and error reason.

use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
};

use axum::extract::OriginalUri;
use bytes::Bytes;
use http::{HeaderValue, Method, Response, Version, header, header::USER_AGENT, request::Parts, uri::Authority};
use http_body::{Body as _, Frame};
use tokio::time::Instant;
use tracing::{Level, Span, field};

use crate::{
    base::{
        metric,
        sources::Ids,
        trace::{RequestTrace, TraceContext},
    },
    protocol::{
        call::{CallRecord, REQUEST_ID, TRACE},
        pb::v1::bindings::Rpc,
    },
    transport::{
        Body, BrowserHeaders, CallOutcome, REQUEST_LOG, RequestClass, RequestKind, ResponseFuture,
        body::observed::{BodyObserver, ObservedBody},
        grpc_web_trailers, hide_credentials, peer, request_id,
    },
};

/// Response body that is logged when it is dropped: after it was sent, or when the client has gone.
pub(crate) type LoggedBody = ObservedBody<Body, Box<RequestLine>>;

/// Passes a request on, and logs it: assigns it an id, which the response returns, and logs a line when the response body
/// has ended. Log lines in between are in a span with the id. With `trace`, the span of the trace ends then too. Credentials
/// are hidden from `Debug`. `browser` is added to the response.
pub(crate) fn logged(
    mut parts: Parts,
    class: RequestClass,
    ids: &Ids,
    is_metered: bool,
    browser: BrowserHeaders,
    trace: Option<RequestTrace>,
    next: impl FnOnce(Parts) -> ResponseFuture,
) -> LoggedResponse {
    hide_credentials(&mut parts.headers);
    let id = request_id(&mut parts.headers, ids);
    let enabled = tracing::enabled!(target: REQUEST_LOG, Level::INFO);
    let is_traced = trace.is_some();
    let line = (enabled || is_traced).then(|| {
        let incoming = parts.headers.get(TRACE).filter(|_| !is_traced);
        let incoming = incoming.and_then(|text| TraceContext::parse(text.to_str().ok()?));
        let span = tracing::info_span!(
            target: REQUEST_LOG,
            "request",
            request.id = %id.to_str().unwrap_or_default(),
            trace.id = incoming.as_ref().map(|context| field::display(context.trace_id())),
            span.id = field::Empty,
        );
        let log = is_traced.then(|| span.clone());
        Box::new(RequestLine {
            span,
            start: Instant::now(),
            class,
            method: parts.method.clone(),
            path: parts.extensions.get::<OriginalUri>().map_or(&parts.uri, |uri| &uri.0).path().to_owned(),
            peer: peer(&parts),
            id: id.clone(),
            incoming,
            status: None,
            outcome: CallOutcome::default(),
            record: Arc::new(CallRecord { trace, log, ..CallRecord::default() }),
            is_complete: false,
            http: parts.version,
            user_agent: parts.headers.get(USER_AGENT).filter(|_| is_traced).cloned(),
            authority: is_traced.then(|| authority(&parts)).flatten(),
        })
    });
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
            metric::RESPONSES.add(None, &[binding, response.status().as_str()], 1);
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
    class: RequestClass,
    method: Method,
    path: String,
    peer: Option<SocketAddr>,
    id: HeaderValue,
    /// Valid `traceparent` of a request without a span.
    incoming: Option<TraceContext>,
    status: Option<u16>,
    outcome: CallOutcome,
    record: Arc<CallRecord>,
    is_complete: bool,
    http: Version,
    user_agent: Option<HeaderValue>,
    /// Host and port that the client asks for.
    authority: Option<Authority>,
}

/// Returns the host and port that a request is for.
fn authority(parts: &Parts) -> Option<Authority> {
    let host = || parts.headers.get(header::HOST)?.to_str().ok()?.parse().ok();
    parts.uri.authority().cloned().or_else(host)
}

impl RequestLine {
    /// Completes the span of the trace. Returns its context.
    fn complete(&self, trace: &RequestTrace) -> Option<TraceContext> {
        // Of a request that was rejected before its caller was known.
        trace.begin(None, false);
        let mut span = trace.take();
        let Self { method, outcome, record, .. } = self;
        let system = self.class.system();
        let is_batch = outcome.method.as_deref() == Some("batch");
        span.rename(method.as_str().to_owned());
        let is_fault = self.status.is_some_and(|status| status >= 500)
            || outcome.grpc_status.is_some_and(|code| matches!(code, 2 | 13 | 14 | 15));
        let calls = CallRecord::default();
        let call = if is_batch { &calls } else { &**record };
        call.describe(&mut span, outcome.reason.as_deref(), is_fault);
        if let Some(operation) = call.operation.get() {
            span.set_some("rpc.method", outcome.method.as_deref());
            let rule = Rpc::from_name(operation).filter(|_| system == "http").map(Rpc::http_rule);
            let route = rule.map_or_else(|| self.path.clone(), |rule| rule.template.replace("=*", ""));
            span.set("http.route", route);
        }
        span.set_some("server.address", self.authority.as_ref().map(Authority::host));
        span.set_some("server.port", self.authority.as_ref().and_then(Authority::port_u16));
        span.set_some("rpc.system.name", Some(system).filter(|system| *system != "http"));
        span.set("a2a_service.binding", system);
        span.set("a2a_service.request.id", self.id.to_str().unwrap_or_default());
        span.set("http.request.method", method.as_str());
        span.set_some("http.response.status_code", self.status);
        span.set_some("rpc.status_code", outcome.grpc_status.map(|code| code.to_string()));
        span.set("network.protocol.version", if self.http == Version::HTTP_2 { "2" } else { "1.1" });
        span.set_some("client.address", trace.client.map(|client| client.to_string()));
        let user_agent = self.user_agent.as_ref().and_then(|value| value.to_str().ok());
        span.set_some("user_agent.original", user_agent.and_then(|text| text.get(..text.len().min(128))));
        let events = record.events.load(Ordering::Relaxed);
        span.set_some("a2a_service.stream.events", (events > 0).then_some(events));
        if !self.is_complete {
            span.event("response aborted");
        }
        span.context()
    }
}

impl BodyObserver for Box<RequestLine> {
    fn span(&self) -> &Span {
        &self.span
    }

    fn observe(&mut self, frame: Option<&Frame<Bytes>>, is_end: bool) {
        if let Some(trailers) = frame.and_then(Frame::trailers_ref) {
            self.outcome.record_grpc(trailers);
        }
        // The trailers are a frame of data.
        if matches!(self.class.kind, RequestKind::GrpcWeb(_))
            && let Some(trailers) = frame.and_then(Frame::data_ref).and_then(|data| grpc_web_trailers(data))
        {
            self.outcome.record_grpc(&trailers);
        }
        self.is_complete |= is_end;
    }
}

impl Drop for RequestLine {
    fn drop(&mut self) {
        let own = self.record.trace.as_ref().and_then(|trace| self.complete(trace));
        let event = if self.is_complete { "request completed" } else { "response aborted" };
        // Prometheus and the console ask every few seconds.
        if matches!(self.class.kind, RequestKind::Metrics | RequestKind::Health) && self.status == Some(200) {
            let path = self.path.as_str();
            return tracing::debug!(target: REQUEST_LOG, parent: None, peer = self.peer.map(field::display), path, "polled");
        }
        // No parent: the only field of the span is repeated here.
        tracing::info!(
            target: REQUEST_LOG,
            parent: None,
            {
                rpc.system = self.class.system(),
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
                trace.id = own.as_ref().or(self.incoming.as_ref()).map(|context| field::display(context.trace_id())),
                span.id = own.as_ref().map(|context| field::display(context.span_id())),
                peer = self.peer.map(field::display),
            },
            "{event}"
        );
    }
}
