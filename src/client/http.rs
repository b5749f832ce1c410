//! The clients of the JSON bindings: a message becomes a request of HTTP, and what comes back a message, a stream, or
//! the status that gRPC would have brought.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use heck::ToLowerCamelCase as _;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Client, ClientBuilder, RequestBuilder, Response, Url};
use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};
use tokio_stream::StreamExt as _;
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataKey, MetadataMap, MetadataValue},
};
use tonic_types::{ErrorDetails, StatusExt as _};

use super::{CONNECT, MAX_REPLY};
use crate::{
    call::{Call, IDEMPOTENCY_KEY},
    contract::{Frame, HttpRule, Reply, Transport},
    error::{DOMAIN, Error, ErrorKind, chain},
    transport::sse,
};

/// What is not encoded in a segment of a path (RFC 3986, 2.3).
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const ACCEPT: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");

/// A client that follows no redirect: what is sent to an agent is not for whoever it names.
pub fn client() -> Result<Client, Error> {
    builder().build().map_err(Error::internal)
}

/// The same, to be told more.
pub(super) fn builder() -> ClientBuilder {
    Client::builder().redirect(reqwest::redirect::Policy::none()).connect_timeout(CONNECT)
}

/// The HTTP+JSON binding of an agent.
#[derive(Debug)]
pub struct Rest {
    http: Client,
    /// Without a slash at its end.
    base: String,
}

/// The JSON-RPC binding of an agent.
#[derive(Debug)]
pub struct JsonRpc {
    http: Client,
    url: Url,
    next_id: AtomicU64,
}

impl Rest {
    /// An agent whose routes begin with `url`.
    pub fn new(http: Client, url: &str) -> Result<Self, Error> {
        Ok(Self { http, base: parse(url)?.as_str().trim_end_matches('/').to_owned() })
    }
}

impl JsonRpc {
    /// An agent that is called at `url`.
    pub fn new(http: Client, url: &str) -> Result<Self, Error> {
        Ok(Self { http, url: parse(url)?, next_id: AtomicU64::new(1) })
    }
}

fn parse(url: &str) -> Result<Url, Error> {
    let invalid = |e: &str| ErrorKind::InvalidParams.because(format!("`{url}` is no address of an agent: {e}"));
    let parsed = Url::parse(url).map_err(|e| invalid(&e.to_string()))?;
    if matches!(parsed.scheme(), "http" | "https") { Ok(parsed) } else { Err(invalid("it is not of HTTP")) }
}

#[tonic::async_trait]
impl Transport for Rest {
    async fn send(&self, _: &'static str, rule: HttpRule, request: Request<Value>) -> Result<Reply, Status> {
        let (call, message) = open(request)?;
        let HttpRule { verb, template, body } = rule;
        let (path, mut message) = expand(template, message)?;
        let url = format!("{}{path}", self.base);
        let verb = verb.parse().map_err(Error::internal)?;
        let request = match body {
            "*" => self.http.request(verb, url).body(Value::Object(message).to_string()),
            "" => self.http.request(verb, with_query(url, &message)?),
            field => {
                let body = message.remove(&field.to_lower_camel_case()).unwrap_or_default();
                self.http.request(verb, with_query(url, &message)?).body(body.to_string())
            }
        };
        let request = if body.is_empty() { request } else { request.header(header::CONTENT_TYPE, JSON) };
        receive(call, request, Form::Rest).await
    }
}

#[tonic::async_trait]
impl Transport for JsonRpc {
    async fn send(&self, method: &'static str, _: HttpRule, request: Request<Value>) -> Result<Reply, Status> {
        let (call, params) = open(request)?;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let body = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string();
        let request = self.http.post(self.url.clone()).header(header::CONTENT_TYPE, JSON).body(body);
        receive(call, request, Form::JsonRpc).await
    }
}

/// What comes with a call and may be sent on, and its message.
fn open(request: Request<Value>) -> Result<(Call, Map<String, Value>), Error> {
    let (_, mut extensions, message) = request.into_parts();
    let call = extensions.remove::<Call>().unwrap_or_default();
    call.in_time()?;
    let Value::Object(message) = message else { return Err(Error::internal("a message is an object")) };
    Ok((call, message))
}

/// Puts the fields of a path into it, and gives back what is left. A tenant is what a path begins with.
fn expand(template: &str, mut message: Map<String, Value>) -> Result<(String, Map<String, Value>), Error> {
    let mut path = String::new();
    let tenant = message.remove("tenant").and_then(|it| it.as_str().map(str::to_owned)).filter(|it| !it.is_empty());
    if let Some(tenant) = tenant {
        path.push('/');
        path.extend(segment("tenant", &tenant)?);
    }
    let mut rest = template;
    while let Some((literal, tail)) = rest.split_once('{') {
        let (variable, tail) = tail.split_once('}').ok_or_else(|| Error::internal("unclosed `{` in a template"))?;
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

/// Writes a value as its pattern has it: whole, or as the name of a resource such as `tasks/*`, where an id is what stands
/// before the next literal, and may have slashes of its own.
fn fill(path: &mut String, field: &str, pattern: &str, value: &str) -> Result<(), Error> {
    let mut rest = value;
    let mut segments = pattern.split('/').peekable();
    while let Some(it) = segments.next() {
        if it == "*" {
            let end = segments.peek().and_then(|next| rest.find(&format!("/{next}")));
            let (id, tail) = rest.split_at(end.unwrap_or(rest.len()));
            path.extend(segment(field, id)?);
            rest = tail.strip_prefix('/').unwrap_or(tail);
        } else {
            let tail = rest.strip_prefix(it).unwrap_or(rest);
            path.push_str(it);
            rest = tail.strip_prefix('/').unwrap_or(tail);
        }
        if segments.peek().is_some() {
            path.push('/');
        }
    }
    Ok(())
}

/// The parts of an encoded segment. Two names mean a place in a path, however they are encoded, and would call something
/// else; so would none, as what ends in a slash is what it is without.
fn segment<'a>(field: &str, value: &'a str) -> Result<impl Iterator<Item = &'a str>, Error> {
    if value.is_empty() {
        return Err(Error::invalid_field(field, "is required"));
    }
    if matches!(value, "." | "..") {
        return Err(Error::invalid_field(field, "can't be `.` or `..` in a path"));
    }
    Ok(utf8_percent_encode(value, SEGMENT))
}

/// Adds a message as a query, a parameter each member.
fn with_query(url: String, message: &Map<String, Value>) -> Result<String, Error> {
    let text = |it: &Value| it.as_str().map_or_else(|| it.to_string(), str::to_owned);
    let mut pairs = Vec::new();
    for (name, value) in message {
        let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        pairs.extend(values.iter().filter(|it| !it.is_null()).map(|it| (name, text(it))));
    }
    if pairs.is_empty() {
        return Ok(url);
    }
    let query = serde_html_form::to_string(&pairs).map_err(Error::internal)?;
    Ok(format!("{url}?{query}"))
}

/// How a binding wraps what it answers with.
#[derive(Clone, Copy)]
enum Form {
    Rest,
    JsonRpc,
}

async fn receive(call: Call, request: RequestBuilder, form: Form) -> Result<Reply, Status> {
    let request = request.header(header::ACCEPT, ACCEPT).headers(call.to_headers());
    let request = match call.time_left() {
        Some(left) => request.timeout(left),
        None => request,
    };
    let response = request.send().await.map_err(broken)?;
    let (status, headers) = (response.status(), response.headers().clone());
    let media_type = headers.get(header::CONTENT_TYPE).and_then(|it| it.to_str().ok()?.split(';').next());
    let is_stream = media_type.is_some_and(|it| it.trim().eq_ignore_ascii_case("text/event-stream"));
    if !is_stream || !status.is_success() {
        let data = whole(response).await?;
        let data = form.open(status, &headers, &data)?;
        return Ok(Reply::Unary(data, MetadataMap::from_headers(headers)));
    }
    let metadata = MetadataMap::from_headers(headers.clone());
    let chunks = Box::pin(response.bytes_stream().map(|it| it.map_err(|e| broken(e).to_string())));
    let frames = sse::Reader::new(chunks).map(move |frame| {
        let Frame { cursor, data } = frame?;
        Ok(Frame { cursor, data: form.open(status, &headers, data.bytes())?.into() })
    });
    Ok(Reply::Stream(Box::pin(frames), metadata))
}

/// An answer, which may be no longer than an agent's answers may be.
async fn whole(mut response: Response) -> Result<Bytes, Error> {
    let mut data = BytesMut::new();
    while let Some(chunk) = response.chunk().await.map_err(broken)? {
        data.extend_from_slice(&chunk);
        if data.len() > MAX_REPLY {
            return Err(ErrorKind::InvalidAgentResponse.because(format!("an answer of more than {MAX_REPLY} bytes")));
        }
    }
    Ok(data.freeze())
}

/// What never became an answer. The address may have a credential in it.
fn broken(error: reqwest::Error) -> Error {
    let error = error.without_url();
    if error.is_timeout() && !error.is_connect() {
        return ErrorKind::DeadlineExceeded.error();
    }
    let broken = ErrorKind::Unavailable.because(chain(&error));
    if error.is_connect() { broken.unsent() } else { broken }
}

/// An answer, or an event, which is a result or an error.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    error: Option<Value>,
}

impl Form {
    /// The message in an answer or an event. An error may come with any status: some servers say 200 for all.
    fn open(self, status: StatusCode, headers: &HeaderMap, data: &Bytes) -> Result<Bytes, Status> {
        const NOTHING: Bytes = Bytes::from_static(b"{}");
        if data.trim_ascii().is_empty() && status.is_success() {
            return Ok(NOTHING);
        }
        let envelope = serde_json::from_slice::<Envelope<'_>>(data).ok();
        if let Some(error) = envelope.as_ref().and_then(|it| it.error.as_ref()) {
            return Err(failure(status, headers, error));
        }
        if !status.is_success() {
            return Err(failure(status, headers, &Value::Null));
        }
        match (self, envelope) {
            (Self::Rest, _) => Ok(data.clone()),
            (Self::JsonRpc, Some(Envelope { result: Some(result), .. })) => Ok(data.slice_ref(result.get().as_bytes())),
            // Null, or nothing at all.
            (Self::JsonRpc, Some(_)) => Ok(NOTHING),
            (Self::JsonRpc, None) => Err(ErrorKind::InvalidAgentResponse.because("it is not JSON-RPC").into()),
        }
    }
}

/// The status that gRPC would have brought. What an error is, is told by its reason, else by its code of JSON-RPC, else
/// by the status of HTTP.
fn failure(status: StatusCode, headers: &HeaderMap, error: &Value) -> Status {
    // HTTP+JSON has `details`, and JSON-RPC `data`; others put other things there.
    let details = ["details", "data"].into_iter().find_map(|it| error[it].as_array());
    let detail = |name: &str| {
        let of = |it: &&Value| it["@type"].as_str().is_some_and(|it| it.rsplit(['/', '.']).next() == Some(name));
        details.and_then(|it| it.iter().find(of))
    };
    let info = detail("ErrorInfo");
    // The same member is a code of JSON-RPC, or a status of HTTP.
    let code = error["code"].as_i64().and_then(|it| i32::try_from(it).ok());
    let http = code.and_then(|it| u16::try_from(it).ok()).unwrap_or(status.as_u16());
    let kind = info
        .and_then(|it| ErrorKind::from_reason(it["reason"].as_str()?))
        // This one has the code of another.
        .or_else(|| (status == StatusCode::PAYLOAD_TOO_LARGE).then_some(ErrorKind::TooLarge))
        .or_else(|| ErrorKind::from_json_rpc(code?))
        .unwrap_or_else(|| ErrorKind::from_http(http));

    let text = |it: &Value| it.as_str().map_or_else(|| it.to_string(), str::to_owned);
    let metadata = info.and_then(|it| it["metadata"].as_object()).into_iter().flatten();
    let metadata: HashMap<_, _> = metadata.map(|(name, it)| (name.clone(), text(it))).collect();
    let mut all = ErrorDetails::with_error_info(kind.wire().reason, DOMAIN, metadata);
    for it in detail("BadRequest").and_then(|it| it["fieldViolations"].as_array()).into_iter().flatten() {
        all.add_bad_request_violation(text(&it["field"]), text(&it["description"]));
    }
    let header = |name| headers.get(name).and_then(|it| it.to_str().ok());
    let delay = detail("RetryInfo").and_then(|it| it["retryDelay"].as_str()?.strip_suffix('s')?.parse().ok());
    let delay = delay.and_then(|it| Duration::try_from_secs_f64(it).ok());
    let after = || header(header::RETRY_AFTER)?.parse().ok().map(Duration::from_secs);
    if let Some(delay) = delay.or_else(after) {
        all.set_retry_info(Some(delay));
    }
    let message = match error["message"].as_str() {
        Some(message) => message.to_owned(),
        None => format!("{}: HTTP {status}", kind.wire().sentence),
    };
    let mut status = Status::with_error_details(kind.wire().grpc, message, all);
    for name in [header::WWW_AUTHENTICATE, IDEMPOTENCY_KEY] {
        let key = MetadataKey::from_bytes(name.as_str().as_bytes()).ok();
        let value = header(name).and_then(|it| MetadataValue::try_from(it).ok());
        if let (Some(key), Some(value)) = (key, value) {
            status.metadata_mut().insert::<MetadataKey<Ascii>>(key, value);
        }
    }
    status
}
