//! Request context of a call: caller, protocol version, binding, extensions, deadline, idempotency key and cursor.
//!
//! On the wire these are service parameters (3.2.6): HTTP headers, or gRPC metadata of the same names. Their names, parsing
//! (server) and encoding (client) are defined here. The transport builds a [`Call`] once per request.

#[cfg(feature = "server")]
use std::borrow::Cow;
use std::{
    net::SocketAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicI32, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, header::USER_AGENT};
#[cfg(feature = "server")]
use percent_encoding::percent_decode_str;
use tokio::time::{Instant, timeout_at};

pub use self::client_certificate::ClientCertificate;
#[cfg(feature = "server")]
pub(crate) use self::principal::Validity;
pub use self::principal::{ADMIN, CARD_EXTENDED, PUSH_WRITE, Principal, SKILL_PREFIX, Scopes, TASKS_READ, TASKS_WRITE};
#[cfg(feature = "server")]
pub(crate) use crate::base::{
    owner_counts::{OwnerCounts, OwnerPermit, Reached},
    rate_limit::RateLimit,
};
use crate::{
    base::{
        clock,
        trace::{MAX_STATE, Parent, RequestTrace, Span, valid_parent},
    },
    protocol::{
        error::{Error, ErrorKind},
        event::Cursor,
        message::hops,
        pb::v1::TaskState,
        response_budget::{Reservation, ResponseBudget},
        version::Version,
    },
};

pub(crate) mod client_certificate;
pub(crate) mod principal;

/// `A2A-Version` (3.6.1).
pub const VERSION: HeaderName = HeaderName::from_static("a2a-version");
/// `A2A-Extensions` (3.2.6).
pub const EXTENSIONS: HeaderName = HeaderName::from_static("a2a-extensions");
/// `X-A2A-Extensions`, the name of the header before 1.0.
pub const EXTENSIONS_BEFORE: HeaderName = HeaderName::from_static("x-a2a-extensions");
/// `Last-Event-ID`: cursor after which a stream is resumed. Sent by the browser's `EventSource`, too.
pub const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// `Idempotency-Key`: identifies a send, so that a retry is not executed twice.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Maximum length of an idempotency key in bytes.
pub const MAX_IDEMPOTENCY_KEY_BYTES: usize = 255;
/// `X-Request-Id`: id of a request, assigned by the client, a proxy or this server.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// `traceparent` of W3C Trace Context.
pub const TRACE: HeaderName = HeaderName::from_static("traceparent");
/// `tracestate` of W3C Trace Context.
pub const TRACE_STATE: HeaderName = HeaderName::from_static("tracestate");
/// `grpc-timeout`: time that the caller waits. Accepted over every binding.
pub const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// `a2a-hops`: number of agents that have passed the message of a call on.
pub const HOPS: HeaderName = HeaderName::from_static("a2a-hops");

/// Binding over which a call was received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Binding {
    /// A function call in this process.
    #[default]
    InProcess,
    /// gRPC.
    Grpc,
    /// HTTP+JSON.
    Rest,
    /// JSON-RPC.
    JsonRpc,
}

impl Binding {
    /// Returns the name of the binding, as in the request log.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::InProcess => "in-process",
            Self::Grpc => "grpc",
            Self::Rest => "http",
            Self::JsonRpc => "jsonrpc",
        }
    }
}

/// Details of a call that become known while it is served, for the request log. Of the calls of a JSON-RPC batch, those of the
/// first one.
#[derive(Debug, Default)]
pub struct CallRecord {
    /// Name of the RPC.
    pub(crate) operation: OnceLock<&'static str>,
    /// Protocol version of the call.
    pub(crate) version: OnceLock<Version>,
    /// Id of the task.
    pub(crate) task: OnceLock<String>,
    /// State of the task, as the last one that the call knows.
    pub(crate) state: AtomicI32,
    /// Owner of the task.
    pub(crate) owner: OnceLock<Arc<str>>,
    /// Number of events that were sent on the stream.
    pub(crate) events: AtomicU64,
    /// Span of the request, in a server with a tracer.
    pub(crate) trace: Option<RequestTrace>,
    /// Span of the log lines of the request.
    pub(crate) log: Option<tracing::Span>,
    /// Record of the request of which the call is a part.
    pub(crate) batch: Option<Arc<Self>>,
}

impl CallRecord {
    /// Sets the name of the RPC.
    pub(crate) fn operation(&self, name: &'static str) {
        self.operation.get_or_init(|| name);
        self.batch.iter().for_each(|batch| batch.operation(name));
    }

    /// Sets the protocol version and the owner.
    pub(crate) fn caller(&self, call: &Call) {
        self.version.get_or_init(|| call.version);
        self.batch.iter().for_each(|batch| batch.caller(call));
        if !call.owner.is_empty() {
            self.owner.get_or_init(|| Arc::clone(&call.owner));
        }
    }

    /// Begins the span of the request, if there is a tracer. The call then continues the trace of that span.
    #[cfg(feature = "server")]
    pub(crate) fn begin_span(&self, call: &mut Call) {
        let Some(trace) = &self.trace else { return };
        let caller = Parent::parse(call.trace.as_deref(), call.trace_state.as_deref());
        let Some((context, state)) = trace.begin(caller, call.principal.is_some()) else { return };
        if let Some(log) = &self.log {
            log.record("trace.id", tracing::field::display(context.trace_id()));
            log.record("span.id", tracing::field::display(context.span_id()));
        }
        (call.trace, call.trace_state) = (Some(context.to_header()), state);
    }

    /// Sets the agent and the ids of the message of a send.
    pub(crate) fn message(&self, agent: Option<&str>, ids: Option<(&str, &str)>) {
        let Some(trace) = &self.trace else { return };
        trace.with(|span| {
            span.set_some("gen_ai.agent.name", agent);
            if let Some((message, context)) = ids {
                span.set("a2a.message.id", message);
                span.set_some("gen_ai.conversation.id", Some(context).filter(|id| !id.is_empty()));
            }
        });
    }

    /// Counts an event of the stream.
    pub(crate) fn sent_event(&self) {
        if self.events.fetch_add(1, Ordering::Relaxed) == 0
            && let Some(trace) = &self.trace
        {
            trace.with(|span| span.event("first_event"));
        }
    }

    /// Sets the id of the task, unless it is empty or longer than 128 bytes.
    pub(crate) fn task(&self, id: Option<&str>) {
        if let Some(id) = id.filter(|id| (1..=128).contains(&id.len())) {
            self.task.get_or_init(|| id.to_owned());
            self.batch.iter().for_each(|batch| batch.task(Some(id)));
        }
    }

    /// Sets the state of the task, if it is known.
    pub(crate) fn state(&self, state: TaskState) {
        if state != TaskState::Unspecified {
            self.state.store(state.into(), Ordering::Relaxed);
        }
    }

    /// Sets the operation, the version and the task of a span, and its error. `is_fault`: of the server, not of the caller.
    #[cfg(feature = "server")]
    pub(crate) fn describe(&self, span: &mut Span, reason: Option<&str>, is_fault: bool) {
        if let Some(operation) = self.operation.get() {
            span.rename(*operation);
            span.set("a2a.method.name", *operation);
            span.set_some("a2a.protocol.version", self.version.get().map(|version| version.as_str()));
            span.set_some("a2a.task.id", self.task.get().map(String::as_str));
            let state = TaskState::try_from(self.state.load(Ordering::Relaxed)).unwrap_or_default();
            span.set_some("a2a.task.state", (state != TaskState::Unspecified).then(|| state.as_str_name()));
        }
        let kind = reason.and_then(ErrorKind::from_reason);
        let reason = kind.map(|kind| kind.wire().reason);
        if is_fault || kind.is_some_and(|kind| kind.wire().http >= 500) {
            span.fail(reason.unwrap_or("_OTHER"));
        } else {
            span.set_some("error.type", reason);
        }
    }
}

/// Request context of a call. The service rejects requests without one, so that no caller is anonymous by mistake.
#[derive(Clone, Debug, Default)]
pub struct Call {
    /// Owner of the tasks, derived from the principal. Empty for unauthenticated callers.
    pub owner: Arc<str>,
    /// Authenticated principal. `None` for anonymous callers, and for calls in process of a program that trusts itself.
    pub principal: Option<Arc<Principal>>,
    /// Protocol version of the call.
    pub version: Version,
    /// Binding over which the call was received.
    pub binding: Binding,
    /// URIs of the extensions that the caller requests, without duplicates.
    pub extensions: Vec<String>,
    /// Deadline of the caller.
    pub deadline: Option<Instant>,
    /// Idempotency key of a send.
    pub idempotency_key: Option<String>,
    /// Cursor after which a stream is resumed.
    pub cursor: Option<Cursor>,
    /// `traceparent`, if the request has a valid one. It is passed on to the agent and to webhooks.
    pub trace: Option<String>,
    /// `tracestate` of a request with a `traceparent`, if it has at most 512 bytes. It is passed on with that.
    pub trace_state: Option<String>,
    /// Number of agents that have passed the message on, by the header `a2a-hops`.
    pub hops: u32,
    /// Remote address of the connection.
    pub peer: Option<SocketAddr>,
    /// Base URL at which the client reaches the server, if the call may get an agent card.
    pub base_url: Option<Arc<str>>,
    /// Request id, if the request has a valid one.
    pub request_id: Option<String>,
    /// The caller expects the bytes of files raw, not in base64, in the protobuf messages of 0.3.
    pub plain_files: bool,
    /// Scope that the call requires instead of that of its RPC, because it is part of another operation.
    pub required_scope: Option<&'static str>,
    /// The path of the request names the agent, among several agents of a server. So its tenant does not.
    pub names_agent: bool,
    /// Attempts of a call of an agent, which the client reports.
    #[cfg(feature = "server")]
    #[doc(hidden)]
    pub attempts: Option<Arc<crate::base::dependency::Attempts>>,
    /// Part of an operation of which another part is counted against `limits.call_rate_per_owner`.
    pub is_counted: bool,
    /// Details of the call for the request log, if it is enabled.
    pub record: Option<Arc<CallRecord>>,
    /// Memory of the answer to a unary read, which is reserved before the store loads it. None for calls in process.
    pub memory: Option<Arc<Reservation>>,
    /// Memory budget of the events of a stream. None for calls in process.
    pub responses: Option<ResponseBudget>,
    /// Further headers that a client sends, such as credentials. Servers don't set it.
    pub headers: Option<Arc<HeaderMap>>,
    /// Headers of the request that its turn may pass on, such as credentials
    /// ([`Server::forward_headers`](crate::server::Server::forward_headers)). Their values are marked as sensitive, and are
    /// neither stored nor logged.
    pub forwarded: Option<Arc<HeaderMap>>,
}

impl Call {
    /// Creates the context of a call in process for a principal.
    pub fn of_principal(principal: Principal) -> Self {
        Self { owner: Arc::clone(&principal.owner), principal: Some(Arc::new(principal)), ..Self::default() }
    }

    /// Creates the context of a call in process for an owner.
    pub fn by(owner: &str) -> Self {
        Self { owner: owner.into(), ..Self::default() }
    }

    /// Parses the headers of a request. Invalid values are ignored, except for an invalid cursor, which becomes one that
    /// matches no log. The transport rejects an invalid deadline. The version is not parsed here: the transport needs it earlier,
    /// to classify the request.
    pub fn from_headers(headers: &HeaderMap, binding: Binding) -> Self {
        let mut call = Self { binding, ..Self::default() };
        // A single pass is faster than one lookup per header: most requests have few headers.
        for (name, value) in headers {
            let Some(text) = value.to_str().ok().filter(|text| !text.is_empty()) else {
                if name == LAST_EVENT_ID && !value.is_empty() {
                    call.cursor.get_or_insert_with(Cursor::invalid);
                }
                if name == HOPS {
                    call.hops = hops::INVALID;
                }
                continue;
            };
            match name {
                name if name == EXTENSIONS || name == EXTENSIONS_BEFORE => add_extensions(&mut call.extensions, text),
                name if name == TIMEOUT && call.deadline.is_none() => {
                    call.deadline = parse_timeout(text).and_then(|timeout| Instant::now().checked_add(timeout));
                }
                name if name == IDEMPOTENCY_KEY => _ = call.idempotency_key.get_or_insert_with(|| text.to_owned()),
                // An invalid cursor must not restart the stream from the beginning without a gap mark.
                name if name == LAST_EVENT_ID => {
                    call.cursor.get_or_insert_with(|| Cursor::from_text(text).unwrap_or_else(Cursor::invalid));
                }
                name if name == TRACE => {
                    call.trace = call.trace.or_else(|| valid_parent(text).map(str::to_owned));
                }
                name if name == TRACE_STATE => add_trace_state(&mut call.trace_state, text),
                name if name == REQUEST_ID && text.len() <= 128 => {
                    call.request_id.get_or_insert_with(|| text.to_owned());
                }
                name if name == HOPS => call.hops = call.hops.max(hops::parse(text)),
                name if name == USER_AGENT => call.plain_files = has_plain_files(text, headers.contains_key(VERSION)),
                _ => {}
            }
        }
        if call.trace.is_none() || call.trace_state.as_ref().is_some_and(|state| state.len() > MAX_STATE) {
            call.trace_state = None;
        }
        call
    }

    /// Encodes the context as headers of a client request. The caller's identity is not part of it; credentials are, if
    /// they are in [`headers`](Self::headers).
    pub fn to_headers(&self) -> HeaderMap {
        let mut headers = self.headers.as_deref().cloned().unwrap_or_default();
        let mut set = |name: HeaderName, value: Option<&str>| {
            if let Some(value) = value.and_then(|value| HeaderValue::from_str(value).ok()) {
                headers.insert(name, value);
            }
        };
        set(VERSION, Some(self.version.as_str()));
        set(EXTENSIONS, Some(self.extensions.join(", ").as_str()).filter(|uris| !uris.is_empty()));
        set(LAST_EVENT_ID, self.cursor.as_ref().map(Cursor::as_str));
        set(IDEMPOTENCY_KEY, self.idempotency_key.as_deref());
        set(REQUEST_ID, self.request_id.as_deref());
        set(TRACE, self.trace.as_deref());
        set(TRACE_STATE, self.trace_state.as_deref());
        set(HOPS, Some(self.hops.to_string().as_str()).filter(|_| self.hops > 0));
        let left = self.time_left().map(|left| left.as_millis());
        // 8 digits at most, as gRPC defines.
        set(TIMEOUT, left.map(|millis| format!("{}m", millis.min(99_999_999))).as_deref());
        headers
    }

    /// Creates a request with this context.
    pub fn request<T>(self, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        request.extensions_mut().insert(self);
        request
    }

    /// Returns the context of a request.
    ///
    /// # Errors
    /// `Internal` if the request has none.
    pub fn of<T>(request: &tonic::Request<T>) -> Result<&Self, Error> {
        request.extensions().get().ok_or_else(|| Error::internal("request without a call context"))
    }

    /// Begins the span of a call that is a part of a request, if there is a tracer. The call then continues its trace, and has a
    /// record of its own, which is returned.
    #[cfg(feature = "server")]
    pub(crate) fn begin_part(&mut self) -> Option<Arc<CallRecord>> {
        let batch = Arc::clone(self.record.as_ref()?);
        let trace = batch.trace.as_ref()?.part(Parent::parse(self.trace.as_deref(), self.trace_state.as_deref()));
        if let Some((context, _)) = trace.begin(None, false) {
            self.trace = Some(context.to_header());
        }
        let record = Arc::new(CallRecord { trace: Some(trace), batch: Some(batch), ..CallRecord::default() });
        self.record = Some(Arc::clone(&record));
        Some(record)
    }

    /// Replaces all extensions of a request by this context.
    pub fn replace_extensions(self, extensions: &mut Extensions) {
        extensions.clear();
        extensions.insert(self);
    }

    /// Time until the deadline; zero if it has passed.
    pub fn time_left(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Checks that the deadline has not passed.
    ///
    /// # Errors
    /// `DeadlineExceeded`.
    pub fn check_deadline(&self) -> Result<(), Error> {
        match self.time_left() {
            Some(Duration::ZERO) => Err(ErrorKind::DeadlineExceeded.into()),
            _ => Ok(()),
        }
    }
}

/// Returns the value of `A2A-Version`: the first header line that is not empty, else the query parameter (3.6.1).
#[cfg(feature = "server")]
pub(crate) fn requested_version<'a>(query: Option<&'a str>, headers: &'a HeaderMap) -> Option<Cow<'a, str>> {
    let mut lines = headers.get_all(VERSION).into_iter().map(|line| line.to_str().unwrap_or("?").trim());
    let header = lines.find(|line| !line.is_empty()).map(Cow::Borrowed);
    header.or_else(|| query_parameter(query, VERSION.as_str()).filter(|value| !value.trim().is_empty()))
}

/// Returns a parameter of a query that stands for a header. The case of its name is ignored.
#[cfg(feature = "server")]
pub(crate) fn query_parameter<'a>(query: Option<&'a str>, name: &str) -> Option<Cow<'a, str>> {
    let mut pairs = query?.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(key, _)| key.eq_ignore_ascii_case(name))?;
    percent_decode_str(value).decode_utf8().ok()
}

/// Returns the headers with these names, marked as sensitive. `None` if there are none.
pub(crate) fn forwarded_headers(headers: &HeaderMap, names: &[HeaderName]) -> Option<Arc<HeaderMap>> {
    let mut forwarded = HeaderMap::new();
    for name in names {
        for value in headers.get_all(name) {
            let mut value = value.clone();
            value.set_sensitive(true);
            forwarded.append(name.clone(), value);
        }
    }
    (!forwarded.is_empty()).then(|| Arc::new(forwarded))
}

/// Returns the header in which a request lists extensions. `None` if it uses neither header, or both.
pub(crate) fn extensions_spelling(headers: &HeaderMap) -> Option<HeaderName> {
    match (headers.contains_key(EXTENSIONS), headers.contains_key(EXTENSIONS_BEFORE)) {
        (true, false) => Some(EXTENSIONS),
        (false, true) => Some(EXTENSIONS_BEFORE),
        (true, true) | (false, false) => None,
    }
}

/// Moves the extensions of a response from the other header to this one.
pub(crate) fn spell_extensions(headers: &mut HeaderMap, spelling: HeaderName) {
    let other = if spelling == EXTENSIONS { EXTENSIONS_BEFORE } else { EXTENSIONS };
    if let Some(active) = headers.remove(other) {
        headers.insert(spelling, active);
    }
}

/// Adds the extensions of a header line. The header may be repeated.
fn add_extensions(extensions: &mut Vec<String>, line: &str) {
    for uri in line.split(',').map(str::trim).filter(|uri| !uri.is_empty()) {
        if !extensions.iter().any(|known| known == uri) {
            extensions.push(uri.to_owned());
        }
    }
}

/// Adds the members of a `tracestate` line. The header may be repeated (W3C Trace Context, 3.3.1).
fn add_trace_state(state: &mut Option<String>, line: &str) {
    match state {
        None => *state = Some(line.to_owned()),
        Some(state) if state.len() <= MAX_STATE => state.extend([",", line]),
        Some(_) => {}
    }
}

/// Returns true for clients that expect raw file bytes in the protobuf messages of 0.3: SDKs for JavaScript, and the SDK for
/// Go since its version 2, the first one that sends `A2A-Version`.
fn has_plain_files(user_agent: &str, sends_version: bool) -> bool {
    is_javascript(user_agent) || products(user_agent).any(|product| product == "grpc-go" && sends_version)
}

/// Returns true for the `User-Agent` of a JavaScript runtime: Node, Deno, Bun or a browser.
pub(crate) fn is_javascript(user_agent: &str) -> bool {
    let is_runtime = |product| matches!(product, "node" | "undici" | "grpc-node-js" | "Deno" | "Bun" | "Mozilla");
    products(user_agent).any(is_runtime)
}

/// Product names of a `User-Agent`, without their versions.
fn products(user_agent: &str) -> impl Iterator<Item = &str> {
    user_agent.split_whitespace().map(|product| product.split_once('/').map_or(product, |(name, _)| name))
}

/// Maximum time to the head of a response. Interim responses (1xx) do not extend it.
pub(crate) const RESPONSE_HEAD: Duration = Duration::from_mins(10);

/// Waits for the head of a response, at most until the deadline of a call.
///
/// # Errors
/// `DeadlineExceeded`.
pub(crate) async fn until_head<T>(deadline: Option<Instant>, response: impl Future<Output = T>) -> Result<T, Error> {
    within(Some(deadline.unwrap_or_else(|| clock::after(Instant::now(), RESPONSE_HEAD))), response).await
}

/// Waits for a future, at most until the deadline of a call.
///
/// # Errors
/// `DeadlineExceeded`.
pub(crate) async fn within<T>(deadline: Option<Instant>, future: impl Future<Output = T>) -> Result<T, Error> {
    match deadline {
        Some(deadline) => timeout_at(deadline, future).await.map_err(|_| ErrorKind::DeadlineExceeded.error()),
        None => Ok(future.await),
    }
}

/// Parses `grpc-timeout`: up to eight digits, and a unit.
fn parse_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let n: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(n * 3600)),
        "M" => Some(Duration::from_secs(n * 60)),
        "S" => Some(Duration::from_secs(n)),
        "m" => Some(Duration::from_millis(n)),
        "u" => Some(Duration::from_micros(n)),
        "n" => Some(Duration::from_nanos(n)),
        _ => None,
    }
}

/// Fields of a configuration that other protocol versions have and 1.0 does not, encoded by the codec of that version. An
/// extension of the request that creates the configuration, and of the response that returns it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PushExtra(pub Bytes);

/// [`PushExtra`] of each configuration in a list response, in order. An extension of that response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllPushExtras(pub Vec<PushExtra>);

// Redacted, because the fields may be secrets.
debug_fields!(PushExtra {});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_timeout_is_digits_and_a_unit() {
        assert_eq!(parse_timeout("1500m"), Some(Duration::from_millis(1500)));
        assert_eq!(parse_timeout("2H"), Some(Duration::from_hours(2)));
        for text in ["", "m", "1", "123456789S", "-1S", "1x", "é"] {
            assert_eq!(parse_timeout(text), None, "{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn headers_of_client_are_parsed_by_server() {
        let call = Call {
            extensions: vec!["https://example.com/a".into(), "urn:b".into()],
            deadline: Some(Instant::now() + Duration::from_secs(3)),
            idempotency_key: Some("k".into()),
            cursor: Cursor::from_text("t.1.2"),
            request_id: Some("r".into()),
            trace: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into()),
            trace_state: Some("a=1,b=2".into()),
            hops: 3,
            ..Call::by("ada")
        };
        let read = Call::from_headers(&call.to_headers(), Binding::Rest);
        assert_eq!((read.extensions, read.idempotency_key), (call.extensions, call.idempotency_key));
        assert_eq!((read.cursor, read.deadline, read.request_id), (call.cursor, call.deadline, call.request_id));
        assert_eq!((read.trace, read.trace_state, read.hops), (call.trace, call.trace_state, call.hops));
        assert!(!Call::default().to_headers().contains_key(HOPS));
        assert_eq!(&*read.owner, "", "a client can't set its owner");
    }

    #[test]
    fn highest_hop_count_counts_and_an_invalid_one_exceeds_all() {
        for (values, hops) in [
            (&[][..], 0),
            (&["3"], 3),
            (&["3", "5", "4"], 5),
            (&["3", ""], hops::INVALID),
            (&["-1"], hops::INVALID),
            (&["\u{e9}"], hops::INVALID),
        ] {
            let values = values.iter().map(|value| (HOPS, HeaderValue::from_bytes(value.as_bytes()).unwrap()));
            let mut headers = HeaderMap::new();
            values.for_each(|(name, value)| _ = headers.append(name, value));
            assert_eq!(Call::from_headers(&headers, Binding::Grpc).hops, hops);
        }
    }

    #[test]
    fn both_extension_headers_are_merged_without_duplicates() {
        let mut headers = HeaderMap::new();
        headers.append("a2a-extensions", HeaderValue::from_static("urn:a, urn:b"));
        headers.append("a2a-extensions", HeaderValue::from_static("urn:b,,urn:c"));
        headers.append("x-a2a-extensions", HeaderValue::from_static("urn:d"));
        assert_eq!(Call::from_headers(&headers, Binding::Rest).extensions, ["urn:a", "urn:b", "urn:c", "urn:d"]);
    }
}
