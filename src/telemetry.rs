//! The log: how it is written, and its line for each request.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    convert::Infallible,
    fmt,
    io::Write as _,
    net::SocketAddr,
    panic::PanicHookInfo,
    pin::Pin,
    sync::atomic::{AtomicUsize, Ordering},
    task::{Context, Poll, ready},
};

use axum::extract::{ConnectInfo, OriginalUri};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, header};
use http_body::{Frame, SizeHint};
use tokio::time::Instant;
use tonic::Status;
use tonic_types::StatusExt as _;
use tower_service::Service;
use tracing::{Event, Level, Span, Subscriber, field, level_filters::LevelFilter};
use tracing_subscriber::{
    EnvFilter,
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer},
    registry::LookupSpan,
};

use crate::{
    call::REQUEST_ID,
    config::Log,
    transport::{Body, RequestBody, ResponseFuture, binding},
};

pub(crate) mod wire_log;

/// What the lines of requests are filtered by.
const TARGET: &str = "a2a_service::request";

/// Writes the log to stderr, with a line for each panic.
pub(crate) fn init(log: Log, filter: EnvFilter) {
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false);
    match log {
        Log::Text => lines.map_event_format(|format| Escaped { format, json: false }).init(),
        Log::Json => {
            let lines = lines.json().flatten_event(true).with_span_list(false);
            lines.map_event_format(|format| Escaped { format, json: true }).init();
        }
    }
    std::panic::set_hook(Box::new(log_panic));
}

/// Logs a panic. The standard hook would write its message as it is, which may be what a client has sent.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let message = panic.payload_as_str().unwrap_or("no message");
    let location = panic.location().map(ToString::to_string);
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    tracing::error!(
        panic.message = message,
        panic.location = location,
        panic.backtrace = backtrace,
        "a thread panicked"
    );
}

/// Formats events as another format does, and escapes control characters wherever they are: in fields, spans and
/// messages. So what a client sends can neither begin a line of the log nor control a terminal.
struct Escaped<F> {
    format: F,
    /// The format writes JSON, which has its own form for a character that is escaped.
    json: bool,
}

impl<S, N, F> FormatEvent<S, N> for Escaped<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut line = String::new();
        self.format.format_event(context, Writer::new(&mut line), event)?;
        write_escaped(&mut writer, line.strip_suffix('\n').unwrap_or(&line), self.json)?;
        writer.write_str("\n")
    }
}

/// Writes text with its control characters escaped (C0, DEL, C1), and the separators and direction overrides of Unicode.
fn write_escaped(out: &mut impl fmt::Write, text: &str, json: bool) -> fmt::Result {
    let is_escaped = |c: char| {
        c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut rest = text;
    while let Some(at) = rest.find(is_escaped) {
        let (plain, tail) = rest.split_at(at);
        out.write_str(plain)?;
        let mut tail = tail.chars();
        match tail.next() {
            Some(c) if json => write!(out, "\\u{:04x}", u32::from(c))?,
            Some(c) => write!(out, "{}", c.escape_default())?,
            None => {}
        }
        rest = tail.as_str();
    }
    out.write_str(rest)
}

/// Number of servers that write errors to stderr while the program has no subscriber of `tracing`.
static REPORTING: AtomicUsize = AtomicUsize::new(0);

/// Lets [`report`] write to stderr as long as it lives.
#[derive(Debug)]
pub(crate) struct ReportGuard(());

impl ReportGuard {
    pub(crate) fn begin() -> Self {
        REPORTING.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for ReportGuard {
    fn drop(&mut self) {
        REPORTING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Writes a line to stderr in place of a log: in a program that never had a subscriber, neither a global one nor one of a
/// scope, and whose server [reports](Reporting).
pub(crate) fn report(line: fmt::Arguments<'_>) {
    let is_logged = || LevelFilter::current() != LevelFilter::OFF || tracing::dispatcher::has_been_set();
    if REPORTING.load(Ordering::Relaxed) == 0 || is_logged() {
        return;
    }
    let mut escaped = String::from("a2a-service: ");
    // Writing to memory does not fail, and a failure to write to stderr can't be reported.
    _ = write_escaped(&mut escaped, &line.to_string(), false);
    escaped.push('\n');
    drop(std::io::stderr().lock().write_all(escaped.as_bytes()));
}

/// Marks the values of headers that have credentials as sensitive, which `Debug` of a request then hides.
fn hide_credentials(headers: &mut HeaderMap) {
    for (name, value) in headers {
        let text = name.as_str();
        let is_secret = *name == header::AUTHORIZATION
            || *name == header::PROXY_AUTHORIZATION
            || *name == header::COOKIE
            || ["-key", "-token", "-secret", "-password", "-signature", "-authorization", "-credential"]
                .iter()
                .any(|ending| text.ends_with(ending));
        if is_secret {
            value.set_sensitive(true);
        }
    }
}

/// The id of a request: the one that it came with, if that is 1 to 128 visible characters of ASCII, else a new one.
fn request_id(headers: &mut HeaderMap) -> HeaderValue {
    let is_valid = |id: &&HeaderValue| (1..=128).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic);
    if let Some(id) = headers.get(REQUEST_ID).filter(is_valid) {
        return id.clone();
    }
    // A UUID is a valid value.
    let id = HeaderValue::try_from(crate::seam::fresh_id()).unwrap_or(HeaderValue::from_static("unknown"));
    headers.insert(REQUEST_ID, id.clone());
    id
}

/// Outcome of a call for its line in the request log, an extension of the response.
#[derive(Clone, Debug, Default)]
struct Outcome {
    method: Option<String>,
    reason: Option<&'static str>,
}

/// Notes the JSON-RPC method of a call, or the reason of its error, for its line of the log.
pub(crate) fn note(response: &mut Response<Body>, method: Option<&str>, reason: Option<&'static str>) {
    if !tracing::enabled!(target: TARGET, Level::INFO) {
        return;
    }
    let outcome = response.extensions_mut().get_or_insert_with(Outcome::default);
    outcome.method = method.map(str::to_owned).or(outcome.method.take());
    outcome.reason = reason.or(outcome.reason);
}

/// A tower service that assigns each request an id, which its response repeats, hides credentials from `Debug`, and
/// logs a line when the response has ended. Log lines in between have the id.
#[derive(Clone, Debug)]
pub(crate) struct RequestLog<S>(S);

impl<S> RequestLog<S> {
    /// Watches over a service.
    pub(crate) fn new(inner: S) -> Self {
        Self(inner)
    }
}

impl<S, B> Service<Request<B>> for RequestLog<S>
where
    S: Service<Request<B>, Response = Response<Body>, Error = Infallible, Future = ResponseFuture>,
    B: RequestBody,
{
    type Response = Response<LoggedBody>;
    type Error = Infallible;
    type Future = LoggedResponse;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> LoggedResponse {
        hide_credentials(request.headers_mut());
        let id = request_id(request.headers_mut());
        let enabled = tracing::enabled!(target: TARGET, Level::INFO);
        let line = enabled.then(|| Box::new(RequestRecord::of(&request, &id)));
        let entered = line.as_ref().map(|it| it.span.enter());
        let inner = self.0.call(request);
        drop(entered);
        LoggedResponse { inner, id: Some(id), line }
    }
}

/// An answer as it is made, and what will be said of it.
pub(crate) struct LoggedResponse {
    inner: ResponseFuture,
    /// Taken when the answer is ready.
    id: Option<HeaderValue>,
    line: Option<Box<RequestRecord>>,
}

impl Future for LoggedResponse {
    type Output = Result<Response<LoggedBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { inner, id, line } = &mut *self;
        let entered = line.as_ref().map(|it| it.span.enter());
        let Ok(mut response) = ready!(inner.as_mut().poll(cx));
        drop(entered);
        if let Some(id) = id.take() {
            response.headers_mut().insert(REQUEST_ID, id);
        }
        let mut line = line.take();
        if let Some(line) = &mut line {
            if let Some(Outcome { method, reason }) = response.extensions_mut().remove() {
                (line.rpc_method, line.reason) = (method, reason.map(str::to_owned));
            }
            line.status = Some(response.status().as_u16());
            line.grpc_status(response.headers());
            line.whole = http_body::Body::is_end_stream(response.body());
        }
        Poll::Ready(Ok(response.map(|body| LoggedBody { body, line })))
    }
}

/// The body of an answer. Whoever drops it has sent it, or never will.
#[derive(Debug, Default)]
pub(crate) struct LoggedBody {
    body: Body,
    line: Option<Box<RequestRecord>>,
}

impl http_body::Body for LoggedBody {
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
struct RequestRecord {
    span: Span,
    start: Instant,
    system: &'static str,
    method: Method,
    path: String,
    peer: Option<SocketAddr>,
    id: String,
    status: Option<u16>,
    grpc_status: Option<u16>,
    /// The method of JSON-RPC as the client wrote it.
    rpc_method: Option<String>,
    /// `google.rpc.ErrorInfo.reason`.
    reason: Option<String>,
    /// The answer was there to its end.
    whole: bool,
}

impl RequestRecord {
    fn of<B>(request: &Request<B>, id: &HeaderValue) -> Self {
        let id = id.to_str().unwrap_or_default().to_owned();
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
            rpc_method: None,
            reason: None,
            whole: false,
        }
    }

    fn grpc_status(&mut self, headers: &HeaderMap) {
        let code = headers.get(Status::GRPC_STATUS).and_then(|it| it.to_str().ok()?.parse().ok());
        self.grpc_status = code.or(self.grpc_status);
        if code.is_some_and(|code| code != 0) {
            let details = Status::from_header_map(headers).map(|status| status.get_error_details());
            self.reason = details.and_then(|details| Some(details.error_info()?.reason.clone()));
        }
    }
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        let Self { start, system, method, path, peer, id, status, grpc_status, rpc_method, reason, whole, .. } = self;
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
                rpc.method = rpc_method.as_deref(),
                rpc.grpc.status_code = *grpc_status,
                error.reason = reason.as_deref(),
                duration_ms = millis,
                request.id = id.as_str(),
                peer = peer.as_ref().map(field::display),
            },
            "{said}"
        );
    }
}

impl fmt::Debug for LoggedResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("line", &self.line).finish_non_exhaustive()
    }
}

impl fmt::Debug for RequestRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").field("id", &self.id).field("path", &self.path).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::fmt::MakeWriter;

    use super::*;

    /// Output of a subscriber.
    #[derive(Clone, Default)]
    struct LogBuffer(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for LogBuffer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for LogBuffer {
        type Writer = Self;

        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    const HOSTILE: &str = "x\r\n2026-01-01 ERROR fake\u{1b}[31m\u{7f}\u{9b}31m\u{2028}\u{202e}\u{0}end";

    /// In a field, in its debug form, in the message, in an error and in a span.
    fn log() {
        let error = std::io::Error::other(HOSTILE);
        let cause: &dyn std::error::Error = &error;
        let span = tracing::error_span!("span", held = HOSTILE, shown = %HOSTILE);
        let _entered = span.enter();
        tracing::error!(plain = HOSTILE, debug = ?HOSTILE, shown = %HOSTILE, cause, "{HOSTILE}");
    }

    #[test]
    fn control_characters_are_escaped_in_every_place_of_the_text_log() {
        let written = LogBuffer::default();
        let lines = tracing_subscriber::fmt().with_writer(written.clone()).with_ansi(false);
        let lines = lines.map_event_format(|format| Escaped { format, json: false }).finish();
        tracing::subscriber::with_default(lines, log);
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        let line = text.strip_suffix('\n').unwrap();
        assert!(!line.contains(|c: char| c.is_control() || ('\u{2028}'..='\u{202e}').contains(&c)), "{line:?}");
        assert_eq!(line.matches("ERROR fake").count(), 7, "{line}");
        for escaped in [r"x\r\n2026", r"\u{1b}[31m", r"\u{7f}", r"\u{9b}31m", r"\u{2028}", r"\u{202e}", r"\u{0}end"] {
            assert!(line.contains(escaped), "{escaped} is not in {line}");
        }
    }

    #[test]
    fn control_characters_are_escaped_in_the_json_log() {
        let written = LogBuffer::default();
        let lines = tracing_subscriber::fmt().with_writer(written.clone()).json().flatten_event(true);
        let lines = lines.map_event_format(|format| Escaped { format, json: true }).finish();
        tracing::subscriber::with_default(lines, log);
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        let line = text.strip_suffix('\n').unwrap();
        assert!(!line.contains(|c: char| c.is_control() || ('\u{2028}'..='\u{202e}').contains(&c)), "{line:?}");
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(value["plain"], HOSTILE, "escaped, and the same text");
    }

    #[test]
    fn debug_of_a_request_hides_credentials() {
        let mut request = Request::builder().uri("/tasks").header("accept", "text/plain");
        let secret = [
            "authorization",
            "proxy-authorization",
            "cookie",
            "x-api-key",
            "x-a2a-notification-token",
            "x-hub-signature",
        ];
        for name in secret {
            request = request.header(name, "s3cret");
        }
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        hide_credentials(&mut parts.headers);
        let shown = format!("{parts:?}");
        assert!(!shown.contains("s3cret") && shown.contains("text/plain") && shown.contains("x-api-key"), "{shown}");
        assert_eq!(parts.headers["cookie"], "s3cret", "the value itself is as it was");
    }

    #[test]
    fn a_valid_request_id_is_kept_and_another_replaced() {
        let of = |id: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_str(id).unwrap());
            let given = request_id(&mut headers);
            assert_eq!(headers[REQUEST_ID], given);
            given.to_str().unwrap().to_owned()
        };
        let longest = "r".repeat(128);
        assert_eq!((of("r-1"), of(&longest)), ("r-1".to_owned(), longest.clone()));
        for invalid in ["", "r 1", &format!("{longest}r")] {
            assert!(uuid::Uuid::parse_str(&of(invalid)).is_ok(), "{invalid}");
        }
    }
}
