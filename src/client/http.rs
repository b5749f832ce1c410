//! HTTP clients of the JSON bindings: HTTP+JSON ([`RestBinding`]) and JSON-RPC ([`JsonRpc`]).
//!
//! Encodes a message as an HTTP request, and decodes the response into a message, an event stream or a gRPC status.

use std::{
    collections::HashMap,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use heck::ToLowerCamelCase as _;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Url, redirect::Policy};
use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};
use tokio::time::Instant;
use tokio_stream::StreamExt as _;
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataKey, MetadataMap, MetadataValue},
};
use tonic_types::{ErrorDetails, StatusExt as _};

#[cfg(feature = "cli")]
use super::A2aService;
use super::{BoxStream, Call, Cursor, Error, ErrorKind, Version, result_form::ResultForm};
#[cfg(feature = "cli")]
use crate::protocol::v03::pb::a2a_service_server::A2aService as V03Service;
use crate::{
    base::{
        bounded_body::{BodyError, BoundedBody},
        clock::{self, Clock},
        decoding::{self, content_encoding},
        name_lookup::http_client,
        network::is_loopback_host,
        retry::retry_after,
        sse::{SseError, SseEvent, SseReader, without_mark},
        stderr::escaped,
        surrogates::repaired,
    },
    protocol::{
        call::{IDEMPOTENCY_KEY, until_head},
        error::{DOMAIN, Wire, chain},
        json::{DecodedTooLarge, check_json},
        rpc::{Frame, HttpRule, Reply, Transport, brief},
    },
};

/// Characters that are percent-encoded in a path segment: all but the unreserved ones (RFC 3986, 2.3).
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const ACCEPT: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");

/// Maximum time from the head of a unary response to the end of its body.
const BODY: Duration = Duration::from_mins(1);

/// Maximum number of redirects of a request.
const MAX_REDIRECTS: usize = 5;

/// Message without members.
const EMPTY: Bytes = Bytes::from_static(b"{}");

/// Timeout for establishing a connection.
pub(super) const CONNECT: Duration = Duration::from_secs(10);

options! {
    /// Maximum sizes of what a client receives. A response beyond its limit fails with `InvalidAgentResponse`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct SizeLimits {
        /// Maximum size of an agent card or of a catalog in bytes. 4 MiB by default.
        pub card: usize = 4 << 20,
        /// Maximum size of a response in bytes. 16 MiB by default.
        pub response: usize = 16 << 20,
        /// Maximum size of an event of a stream in bytes. 16 MiB by default. Over gRPC, the limit of responses applies.
        pub event: usize = 16 << 20,
        /// Maximum number of bytes of a stream on one connection; a resumed stream starts at 0 again. 1 GiB by default.
        /// Not applied over gRPC.
        pub stream: u64 = 1 << 30,
    }
}

/// Sends HTTP requests for the JSON bindings and the agent card.
///
/// Implemented by functions from a request to a response, so that a test can give the bytes of a response:
///
/// ```
/// use a2a_service::{
///     bytes::Bytes,
///     client::{Client, HttpTransport},
///     error::Error,
///     http::{Request, Response},
/// };
///
/// async fn respond(_: Request<Bytes>) -> Result<Response<Bytes>, Error> {
///     Ok(Response::new(Bytes::from(r#"{"id": "1", "status": {"state": "TASK_STATE_COMPLETED"}}"#)))
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let agent = Client::builder().transport(respond).rest("http://agent.example")?;
/// # Ok(()) }
/// ```
#[tonic::async_trait]
pub trait HttpTransport: Send + Sync + 'static {
    /// Sends a request, and returns the response with its body as it arrives. Follows redirects at most within the origin.
    ///
    /// # Errors
    /// The connection fails before the head of the response is complete.
    async fn send(&self, request: http::Request<Bytes>) -> Result<http::Response<BoxStream<Bytes>>, Error>;
}

#[tonic::async_trait]
impl<F, R> HttpTransport for F
where
    F: Fn(http::Request<Bytes>) -> R + Send + Sync + 'static,
    R: Future<Output = Result<http::Response<Bytes>, Error>> + Send,
{
    async fn send(&self, request: http::Request<Bytes>) -> Result<http::Response<BoxStream<Bytes>>, Error> {
        let once = |body: Bytes| -> BoxStream<Bytes> { Box::pin(tokio_stream::once(Ok(body))) };
        Ok(self(request).await?.map(once))
    }
}

/// Observer of the requests of a client, below retries and with all headers.
#[cfg(feature = "cli")]
#[derive(Clone, Copy)]
pub(crate) struct Observer {
    /// Wraps the network of the JSON bindings and of the card.
    pub(crate) http: fn(Arc<dyn HttpTransport>) -> Arc<dyn HttpTransport>,
    /// Wraps a gRPC interface of 1.0 at a URL.
    pub(crate) grpc: fn(&str, Arc<dyn A2aService>) -> Arc<dyn A2aService>,
    /// Wraps a gRPC interface of 0.3 at a URL.
    pub(crate) grpc_v03: fn(&str, Arc<dyn V03Service>) -> Arc<dyn V03Service>,
}

/// HTTP over TCP and TLS.
pub(super) struct Network(pub(super) reqwest::Client);

#[tonic::async_trait]
impl HttpTransport for Network {
    async fn send(&self, request: http::Request<Bytes>) -> Result<http::Response<BoxStream<Bytes>>, Error> {
        let request = request.try_into().map_err(transport_error)?;
        let mut received = self.0.execute(request).await.map_err(transport_error)?;
        let (status, headers) = (received.status(), std::mem::take(received.headers_mut()));
        let chunks = received.bytes_stream().map(|chunk| chunk.map_err(|error| transport_error(error).into()));
        let chunks: BoxStream<Bytes> = Box::pin(chunks);
        let mut response = http::Response::new(chunks);
        (*response.status_mut(), *response.headers_mut()) = (status, headers);
        Ok(response)
    }
}

/// Returns the builder of an HTTP client whose requests and credentials reach only the origin of the configured URL. It follows
/// redirects within that origin that keep the method and the body. Any other one is the response.
pub(crate) fn builder() -> reqwest::ClientBuilder {
    let policy = Policy::custom(|attempt| {
        let keeps_request = matches!(attempt.status(), StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
        let (from, to) = (attempt.previous(), attempt.url().origin());
        let is_same_origin = from.iter().all(|url| url.origin() == to);
        if keeps_request && is_same_origin && from.len() <= MAX_REDIRECTS { attempt.follow() } else { attempt.stop() }
    });
    http_client().redirect(policy).connect_timeout(CONNECT)
}

/// HTTP client with its limits.
#[derive(Clone)]
pub(super) struct Http {
    pub(super) transport: Arc<dyn HttpTransport>,
    pub(super) limits: SizeLimits,
    /// Encoded query parameters of all calls, such as API keys. Not printed.
    pub(super) query: Arc<str>,
}

/// HTTP+JSON binding of a remote agent.
pub(super) struct RestBinding {
    http: Http,
    /// Base URL without a trailing slash and without its query, which is that of all calls.
    base: String,
    version: Version,
    /// The server subscribes by POST. The specification names both methods: POST in its text (11.3.2), GET in its proto file.
    subscribes_by_post: AtomicBool,
}

/// JSON-RPC binding of a remote agent.
pub(super) struct JsonRpc {
    http: Http,
    url: Url,
    version: Version,
    next_id: AtomicU64,
}

impl RestBinding {
    /// Creates the binding for the base URL of the agent's routes.
    ///
    /// # Errors
    /// The URL is invalid, or its scheme is not `http` or `https`.
    pub(super) fn new(mut http: Http, url: &str, version: Version) -> Result<Self, Error> {
        let mut url = parse(url)?;
        if let Some(query) = url.query().filter(|query| !query.is_empty()) {
            let separator = if http.query.is_empty() { "" } else { "&" };
            http.query = format!("{query}{separator}{}", http.query).into();
        }
        url.set_query(None);
        url.set_fragment(None);
        let base = url.as_str().trim_end_matches('/').to_owned();
        Ok(Self { http, base, version, subscribes_by_post: AtomicBool::new(false) })
    }
}

impl JsonRpc {
    /// Creates the binding for the URL of the agent's JSON-RPC endpoint.
    ///
    /// # Errors
    /// The URL is invalid, or its scheme is not `http` or `https`.
    pub(super) fn new(http: Http, url: &str, version: Version) -> Result<Self, Error> {
        Ok(Self { http, url: parse(url)?, version, next_id: AtomicU64::new(1) })
    }
}

/// Parses the URL of an agent.
pub(super) fn parse(url: &str) -> Result<Url, Error> {
    let invalid =
        |e: &str| ErrorKind::InvalidParams.because(format!("`{}` is not a valid agent URL: {e}", shown_url(url)));
    let parsed = Url::parse(url).map_err(|e| invalid(&e.to_string()))?;
    if matches!(parsed.scheme(), "http" | "https") {
        Ok(parsed)
    } else {
        Err(invalid("the scheme must be http or https"))
    }
}

/// Returns a URL without its user, query and fragment, which may be secrets.
pub(crate) fn shown_url(text: &str) -> String {
    let Ok(mut url) = Url::parse(text) else {
        let text = text.split(['?', '#']).next().unwrap_or_default();
        return text.rsplit('@').next().unwrap_or_default().to_owned();
    };
    // Fails only for URLs that can't have a user.
    _ = url.set_username("");
    _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.into()
}

/// Completes a URL without a scheme: `http` for hosts of this machine, else `https`.
pub(crate) fn complete_url(text: &str) -> Result<Url, Error> {
    let text = text.trim();
    if text.contains("://") {
        return parse(text);
    }
    let text = if text.starts_with(':') { format!("localhost{text}") } else { text.to_owned() };
    let is_local = Url::parse(&format!("http://{text}")).is_ok_and(|url| url.host_str().is_some_and(is_loopback_host));
    parse(&format!("{}://{text}", if is_local { "http" } else { "https" }))
}

#[tonic::async_trait]
impl Transport for RestBinding {
    async fn send(&self, rpc: &'static str, rule: HttpRule, request: Request<Value>) -> Result<Reply, Status> {
        let (call, message) = into_parts(request)?;
        let framing = Framing { id: None, form: ResultForm::of(rpc, self.version) };
        let HttpRule { verb, template, body } = rule;
        let (path, mut message) = expand(template, message)?;
        let url = format!("{}{path}", self.base);
        let (url, body) = match body {
            "*" => (url, Some(Value::Object(message).to_string())),
            "" => (with_query(url, &message)?, None),
            field => {
                let body = message.remove(&field.to_lower_camel_case()).unwrap_or_default();
                (with_query(url, &message)?, Some(body.to_string()))
            }
        };
        if template.ends_with(":subscribe") {
            return self.subscribe(call, &url, framing).await;
        }
        self.http.receive(call, to_request(verb, &url, body)?, framing).await
    }
}

impl RestBinding {
    /// Subscribes to a task by GET. If the server has no such route, tries POST, and keeps to it if that works. A missing task is
    /// no other case: the Go SDK takes GET for a read of the task `ID:subscribe`.
    async fn subscribe(&self, call: Call, url: &str, framing: Framing) -> Result<Reply, Status> {
        let by_post = to_request("POST", url, Some("{}".to_owned()))?;
        if self.subscribes_by_post.load(Ordering::Relaxed) {
            return self.http.receive(call, by_post, framing).await;
        }
        let response = self.http.call(&call, to_request("GET", url, None)?).await?;
        let lacks_route = has_no_route(response.status());
        let first = match self.http.decode(call.deadline, response, framing).await {
            Err(status) if lacks_route => status,
            result => return result,
        };
        let response = self.http.call(&call, by_post).await?;
        if has_no_route(response.status()) {
            return Err(first);
        }
        self.subscribes_by_post.store(true, Ordering::Relaxed);
        self.http.decode(call.deadline, response, framing).await
    }
}

/// Returns true for the status of a method that the server does not have at this URL.
fn has_no_route(status: StatusCode) -> bool {
    matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED)
}

#[tonic::async_trait]
impl Transport for JsonRpc {
    async fn send(&self, method: &'static str, _: HttpRule, request: Request<Value>) -> Result<Reply, Status> {
        let (call, params) = into_parts(request)?;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string();
        let request = to_request("POST", self.url.as_str(), Some(body))?;
        let framing = Framing { id: Some(id), form: ResultForm::of(method, self.version) };
        self.http.receive(call, request, framing).await
    }
}

/// Splits a request into its context and the fields of its message. Fails if the deadline has passed.
fn into_parts(request: Request<Value>) -> Result<(Call, Map<String, Value>), Error> {
    let (_, mut extensions, message) = request.into_parts();
    let call = extensions.remove::<Call>().unwrap_or_default();
    call.check_deadline()?;
    let Value::Object(message) = message else {
        return Err(Error::internal("a request message must be a JSON object"));
    };
    Ok((call, message))
}

/// Expands the path template of an HTTP rule, and returns the remaining fields. The tenant is the first path segment.
fn expand(template: &str, mut message: Map<String, Value>) -> Result<(String, Map<String, Value>), Error> {
    let mut path = String::new();
    let tenant = message.remove("tenant").and_then(|tenant| tenant.as_str().map(str::to_owned));
    if let Some(tenant) = tenant.filter(|tenant| !tenant.is_empty()) {
        path.push('/');
        path.extend(segment("tenant", &tenant)?);
    }
    let mut rest = template;
    while let Some((literal, tail)) = rest.split_once('{') {
        let (variable, tail) =
            tail.split_once('}').ok_or_else(|| Error::internal("unclosed `{` in a path template"))?;
        let (field, pattern) = variable.split_once('=').unwrap_or((variable, "*"));
        let field = field.to_lower_camel_case();
        let value = message.remove(&field).unwrap_or_default();
        path.push_str(literal);
        fill(&mut path, &field, pattern, value.as_str().unwrap_or_default())?;
        rest = tail;
    }
    path.push_str(rest);
    Ok((path, message))
}

/// Appends a path variable by its pattern: `*`, or a resource name such as `tasks/*`. An id ends before the next literal of
/// the pattern and may itself contain slashes.
fn fill(path: &mut String, field: &str, pattern: &str, value: &str) -> Result<(), Error> {
    let mut rest = value;
    let mut segments = pattern.split('/').peekable();
    while let Some(literal) = segments.next() {
        if literal == "*" {
            let end = segments.peek().and_then(|next| rest.find(&format!("/{next}")));
            let (id, tail) = rest.split_at(end.unwrap_or(rest.len()));
            path.extend(segment(field, id)?);
            rest = tail.strip_prefix('/').unwrap_or(tail);
        } else {
            let tail = rest.strip_prefix(literal).unwrap_or(rest);
            path.push_str(literal);
            rest = tail.strip_prefix('/').unwrap_or(tail);
        }
        if segments.peek().is_some() {
            path.push('/');
        }
    }
    Ok(())
}

/// Percent-encodes a path segment. Rejects `.` and `..`, which are resolved even when encoded, and the empty segment:
/// either would address another resource.
fn segment<'a>(field: &str, value: &'a str) -> Result<impl Iterator<Item = &'a str>, Error> {
    if value.is_empty() {
        return Err(Error::invalid_field(field, "is required"));
    }
    if matches!(value, "." | "..") {
        return Err(Error::invalid_field(field, "must not be `.` or `..`"));
    }
    Ok(utf8_percent_encode(value, SEGMENT))
}

/// Appends the fields of a message as query parameters. An array becomes a repeated parameter.
fn with_query(url: String, message: &Map<String, Value>) -> Result<String, Error> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut pairs = Vec::new();
    for (name, value) in message {
        let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        pairs.extend(values.iter().filter(|value| !value.is_null()).map(|value| (name, text(value))));
    }
    if pairs.is_empty() {
        return Ok(url);
    }
    let query = serde_html_form::to_string(&pairs).map_err(Error::internal)?;
    Ok(format!("{url}?{query}"))
}

/// Builds a request with a JSON body.
fn to_request(verb: &str, url: &str, body: Option<String>) -> Result<http::Request<Bytes>, Error> {
    let builder = http::Request::builder().method(verb).uri(url);
    let builder = if body.is_some() { builder.header(header::CONTENT_TYPE, JSON) } else { builder };
    let invalid = |e| ErrorKind::InvalidParams.because(format!("the URL of the request is invalid: {e}"));
    builder.body(body.unwrap_or_default().into()).map_err(invalid)
}

/// Envelope that a binding puts around the message in a response, and the form of that message.
#[derive(Clone, Copy)]
struct Framing {
    /// Id of the request, for JSON-RPC.
    id: Option<u64>,
    form: Option<ResultForm>,
}

impl Http {
    /// Sends a request, and waits for the head of the response until the deadline of the call.
    pub(super) async fn send(
        &self,
        call: &Call,
        request: http::Request<Bytes>,
    ) -> Result<http::Response<BoxStream<Bytes>>, Error> {
        let response = until_head(call.deadline, self.transport.send(request)).await??;
        if content_encoding(response.headers()).is_some() && response.status().is_success() {
            return Err(ErrorKind::InvalidAgentResponse.because(BodyError::<Status>::Encoded.to_string()));
        }
        Ok(response)
    }

    /// Sends a request and decodes its response.
    async fn receive(&self, call: Call, request: http::Request<Bytes>, framing: Framing) -> Result<Reply, Status> {
        let response = self.call(&call, request).await?;
        self.decode(call.deadline, response, framing).await
    }

    /// Sends the request of a call, with its headers and credentials.
    async fn call(
        &self,
        call: &Call,
        mut request: http::Request<Bytes>,
    ) -> Result<http::Response<BoxStream<Bytes>>, Error> {
        request.headers_mut().insert(header::ACCEPT, ACCEPT);
        request.headers_mut().extend(call.to_headers());
        if !self.query.is_empty() {
            let separator = if request.uri().query().is_some() { '&' } else { '?' };
            // The error would contain the URL.
            let invalid = |_| Error::invalid_field("api_key", "must fit a query parameter");
            *request.uri_mut() = format!("{}{separator}{}", request.uri(), self.query).parse().map_err(invalid)?;
        }
        self.send(call, request).await
    }

    /// Decodes the response of a call.
    async fn decode(
        &self,
        deadline: Option<Instant>,
        response: http::Response<BoxStream<Bytes>>,
        framing: Framing,
    ) -> Result<Reply, Status> {
        let (head, body) = response.into_parts();
        let (status, headers) = (head.status, head.headers);
        if status == StatusCode::PARTIAL_CONTENT {
            return Err(ErrorKind::InvalidAgentResponse.because("HTTP 206: a part of a body is no response").into());
        }
        let media_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()?.split(';').next());
        let is_stream = media_type.is_some_and(|media| media.trim().eq_ignore_ascii_case("text/event-stream"));
        if !is_stream || !status.is_success() {
            let data = read_body(body, self.limits.response, deadline).await?;
            let metadata = MetadataMap::from_headers(headers.clone());
            let message = framing.message(status, headers.into(), data.clone()).await?;
            let message = message.ok_or_else(|| {
                let found = text_of(&data).map_or_else(String::new, |text| format!(": {text}"));
                let reason = format!("the response has neither a task nor a message{found}");
                ErrorKind::InvalidAgentResponse.because(reason)
            })?;
            return Ok(Reply::Unary(message, metadata));
        }
        let metadata = MetadataMap::from_headers(headers.clone());
        let limit = usize::try_from(self.limits.stream).unwrap_or(usize::MAX);
        let chunks = Box::pin(BoundedBody::new(body, limit).deadline(deadline).into_stream());
        let headers = Arc::new(headers);
        let frames = SseReader::new(chunks, self.limits.event).then(move |event| {
            let headers = Arc::clone(&headers);
            async move {
                let SseEvent { id, data, .. } = event.map_err(|error| match error {
                    SseError::Source(error) => body_error(error, "SizeLimits::stream"),
                    // Such as a day of comments: the stream is resumed.
                    SseError::WithoutEvent(_) => ErrorKind::Unavailable.because(error.to_string()),
                    SseError::TooLarge(_) => {
                        ErrorKind::InvalidAgentResponse.because(format!("{error} (SizeLimits::event)"))
                    }
                })?;
                let cursor = id.and_then(|id| Cursor::from_text(std::str::from_utf8(&id).ok()?));
                // Later versions of the protocol may have events that this one ignores.
                let message = framing.message(status, headers, data).await?.unwrap_or(EMPTY);
                Ok::<_, Status>(Frame { cursor, data: message.into() })
            }
        });
        Ok(Reply::Stream(Box::pin(frames), metadata))
    }
}

/// Reads a body of at most `limit` bytes.
pub(super) async fn read_body(body: BoxStream<Bytes>, limit: usize, deadline: Option<Instant>) -> Result<Bytes, Error> {
    let longest = clock::after(Instant::now(), BODY);
    let deadline = deadline.map_or(longest, |deadline| deadline.min(longest));
    let body = BoundedBody::new(body, limit).deadline(Some(deadline)).all().await;
    body.map(|text| without_mark(&text)).map_err(|error| body_error(error, "SizeLimits"))
}

/// Converts an error of a body. `limit` is the option that limits its size.
fn body_error(error: BodyError<Status>, limit: &str) -> Error {
    match error {
        BodyError::Interrupted(status) => status.into(),
        BodyError::TooLarge(_) => ErrorKind::InvalidAgentResponse.because(format!("{error} ({limit})")),
        BodyError::WithoutEvent(_) | BodyError::Encoded => ErrorKind::InvalidAgentResponse.because(error.to_string()),
        BodyError::TimedOut => ErrorKind::DeadlineExceeded.error(),
    }
}

/// Converts a failure of the connection. The URL is removed, because it may contain credentials.
fn transport_error(error: reqwest::Error) -> Error {
    let error = error.without_url();
    if error.is_timeout() && !error.is_connect() {
        return ErrorKind::DeadlineExceeded.error();
    }
    let unavailable = ErrorKind::Unavailable.because(chain(&error));
    if error.is_connect() { unavailable.unsent() } else { unavailable }
}

/// JSON-RPC response or event, or an HTTP+JSON error body: a result or an error.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(default)]
    id: Value,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    error: Option<Value>,
}

impl Framing {
    /// Returns the message in a response or an event, which may be large. `None` if it should have a task or a message, and has none.
    async fn message(self, status: StatusCode, headers: Arc<HeaderMap>, data: Bytes) -> Result<Option<Bytes>, Status> {
        let length = data.len();
        let unwrap = move || {
            let message = self.unwrap_message(status, &headers, &data)?;
            match self.form {
                Some(form) => Ok(form.convert(&message)?),
                None => Ok(Some(message)),
            }
        };
        decoding::decode(length, unwrap).await
    }

    /// Returns the message in a response or an event. A body with an error is an error at any status: some servers always
    /// respond with 200.
    fn unwrap_message(self, status: StatusCode, headers: &HeaderMap, data: &Bytes) -> Result<Bytes, Status> {
        if data.trim_ascii().is_empty() && status.is_success() {
            return Ok(EMPTY);
        }
        let too_large =
            |error: DecodedTooLarge| ErrorKind::InvalidAgentResponse.because(format!("the response {error}"));
        check_json(data).map_err(too_large)?;
        let envelope = serde_json::from_slice::<Envelope<'_>>(data).ok();
        // The text of an error may be cut within a character. A result is not decoded here.
        let repaired = if envelope.is_none() { repaired(data) } else { None };
        let envelope = envelope.or_else(|| serde_json::from_slice(repaired.as_deref()?).ok());
        if let (Some(id), Some(Envelope { id: found, .. })) = (self.id, &envelope)
            // Some agents leave out the id of events and errors, or send it as text.
            && !found.is_null()
            && *found != id
            && found.as_str() != Some(&id.to_string())
            // `1.0` is `1`.
            && found.as_f64().map(|found| found.to_string()) != Some(id.to_string())
        {
            let reason = format!("the response has the id {found}, but the request has {id}");
            return Err(ErrorKind::InvalidAgentResponse.because(reason).into());
        }
        if let Some(error) = envelope.as_ref().and_then(|envelope| envelope.error.as_ref()) {
            return Err(error_status(status, headers, error, None));
        }
        if !status.is_success() {
            return Err(error_status(status, headers, &Value::Null, text_of(data)));
        }
        match (self.id, envelope) {
            (None, _) => Ok(data.clone()),
            (Some(_), Some(Envelope { result: Some(result), .. })) => Ok(data.slice_ref(result.get().as_bytes())),
            // The result is null or missing.
            (Some(_), Some(_)) => Ok(EMPTY),
            (Some(_), None) => {
                Err(ErrorKind::InvalidAgentResponse.because("the response is not a JSON-RPC response").into())
            }
        }
    }
}

/// Returns the text of an error in the forms of common frameworks: a text, a list of errors, or an object with the text as a member.
/// `FastAPI` has a list in `detail`, in which each error has the path of a member (`loc`).
fn error_text(error: &Value) -> Option<String> {
    let text = match error {
        Value::String(text) => text.clone(),
        Value::Array(errors) => errors.iter().filter_map(error_text).collect::<Vec<_>>().join("; "),
        Value::Object(members) => {
            let names = ["message", "msg", "detail", "error", "title", "data", "result"];
            let text = names.iter().find_map(|name| error_text(members.get(*name)?))?;
            let path = members.get("loc").and_then(Value::as_array).into_iter().flatten();
            let path: Vec<_> = path.map(|name| name.as_str().map_or_else(|| name.to_string(), str::to_owned)).collect();
            if path.is_empty() { text } else { format!("{}: {text}", path.join(".")) }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => return None,
    };
    (!text.is_empty()).then_some(text)
}

/// Returns the beginning of the text of an error in a body that is none of the protocol: in JSON, or a text that is no page.
fn text_of(body: &[u8]) -> Option<String> {
    const MAX: usize = 64 << 10;
    let body = str::from_utf8(body).ok().filter(|body| body.len() <= MAX)?.trim();
    let text = match serde_json::from_str(body) {
        Ok(body) => error_text(&body)?,
        Err(_) if body.is_empty() || body.starts_with(['<', '{', '[']) => return None,
        Err(_) => body.to_owned(),
    };
    Some(brief(&escaped(&text)))
}

/// Returns true if the JSON-RPC code of a kind has its meaning in an error without a reason. Servers define those from -32099 to
/// -32010 as they like: with ours, the message begins as that of the kind does.
fn is_standard(kind: ErrorKind, error: &Value) -> bool {
    let Wire { json_rpc, sentence, .. } = kind.wire();
    !(-32099..=-32010).contains(&json_rpc) || error["message"].as_str().is_some_and(|text| text.starts_with(sentence))
}

/// Converts an error response to the gRPC status with the same meaning. The kind of the error follows from its reason, else
/// from its JSON-RPC code, else from the HTTP status. `text` is that of a body without an error of the protocol.
fn error_status(status: StatusCode, headers: &HeaderMap, error: &Value, text: Option<String>) -> Status {
    // `details` in HTTP+JSON, `data` in JSON-RPC. Other servers may use either member for something else.
    let details = ["details", "data"].into_iter().find_map(|member| error[member].as_array());
    let detail = |name: &str| {
        let has_name =
            |detail: &&Value| detail["@type"].as_str().is_some_and(|url| url.rsplit(['/', '.']).next() == Some(name));
        details.and_then(|details| details.iter().find(has_name))
    };
    let info = detail("ErrorInfo");
    // `code` is a JSON-RPC code or an HTTP status. Some agents send it as text, or as `-32001.0`.
    let code = &error["code"];
    let code = code.as_str().map_or_else(|| code.as_f64().map(|code| code.to_string()), |code| Some(code.to_owned()));
    let code = code.and_then(|code| code.parse::<i32>().ok());
    let http = code.and_then(|code| u16::try_from(code).ok()).unwrap_or(status.as_u16());
    let kind = info
        .and_then(|info| ErrorKind::from_reason(info["reason"].as_str()?))
        // `TooLarge` shares its JSON-RPC code with `InvalidRequest`.
        .or_else(|| (status == StatusCode::PAYLOAD_TOO_LARGE).then_some(ErrorKind::TooLarge))
        .or_else(|| ErrorKind::from_json_rpc(code?).filter(|kind| is_standard(*kind, error)))
        .unwrap_or_else(|| ErrorKind::from_http(http));
    // Such as a page of another server.
    let is_foreign = error.is_null() && matches!(kind, ErrorKind::Internal | ErrorKind::InvalidParams);
    let kind = if is_foreign { ErrorKind::InvalidAgentResponse } else { kind };

    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let metadata = info.and_then(|info| info["metadata"].as_object()).into_iter().flatten();
    let mut metadata: HashMap<_, _> = metadata.map(|(name, value)| (name.clone(), plain(value))).collect();
    // The agent may define codes of its own.
    metadata.remove("code");
    let own_code = code.filter(|code| *code < 0 && *code != kind.wire().json_rpc);
    metadata.extend(own_code.map(|code| ("code".to_owned(), code.to_string())));
    let mut status_details = ErrorDetails::with_error_info(kind.wire().reason, DOMAIN, metadata);
    let violations = detail("BadRequest").and_then(|bad_request| bad_request["fieldViolations"].as_array());
    for violation in violations.into_iter().flatten() {
        status_details.add_bad_request_violation(plain(&violation["field"]), plain(&violation["description"]));
    }
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let delay = detail("RetryInfo").and_then(|info| info["retryDelay"].as_str()?.strip_suffix('s')?.parse().ok());
    let delay = delay.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    if let Some(delay) = delay.or_else(|| retry_after(headers, Clock::default().millis())) {
        status_details.set_retry_info(Some(delay));
    }
    // Some agents send a text in place of the error.
    let own = error.as_str().or_else(|| error["message"].as_str()).filter(|text| !text.is_empty());
    // Others have the reason in `data`, beside a general sentence.
    let data = error["data"].as_str().filter(|data| !own.is_some_and(|own| own.contains(data)) && !data.is_empty());
    let shown = || {
        let unreadable = || (!error.is_null()).then(|| format!("the error {error}"));
        let found = text.or_else(|| Some(brief(&escaped(&error_text(error).or_else(unreadable)?))));
        let found = found.map_or_else(String::new, |text| format!(": {text}"));
        // An error in a response of another status is that of the agent.
        let status = if status.is_success() { String::new() } else { format!(": HTTP {status}") };
        format!("{}{status}{found}", kind.wire().sentence)
    };
    let message = match (own, data) {
        (Some(own), Some(data)) => format!("{own}: {}", brief(&escaped(data))),
        (own, _) => own.map_or_else(shown, str::to_owned),
    };
    let mut status = Status::with_error_details(kind.wire().grpc, message, status_details);
    for name in [header::WWW_AUTHENTICATE, IDEMPOTENCY_KEY] {
        let key = MetadataKey::from_bytes(name.as_str().as_bytes()).ok();
        let value = header(name).and_then(|value| MetadataValue::try_from(value).ok());
        if let (Some(key), Some(value)) = (key, value) {
            status.metadata_mut().insert::<MetadataKey<Ascii>>(key, value);
        }
    }
    status
}
