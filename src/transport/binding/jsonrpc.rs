//! JSON-RPC 2.0 binding (section 9): envelopes, batches, notifications and streams as server-sent events.
//!
//! Methods of 1.0 and 0.3 share the URLs, and their names tell them apart: see [`version::of_json_rpc_method`].

use std::{
    borrow::Cow,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use bytes::{BufMut as _, Bytes};
use futures_util::{
    FutureExt as _,
    future::{Either, join_all, ready},
};
use http::{Extensions, HeaderMap, Response, StatusCode, header, request::Parts};
use serde::{Deserialize, Deserializer, de::IgnoredAny};
use serde_json::{json, value::RawValue};
use tonic::{Status, metadata::MetadataMap};

use super::{sse, v03::jsonrpc::V03Methods};
use crate::{
    protocol::{
        Error, ErrorKind, Version,
        call::{Call, is_javascript},
        pb::v1::bindings::{Rpc, ServiceHandle},
        response_budget::{Reservation, ResponseBudget},
        rpc::{BoxStream, Dispatch, Frame, JsonLine, ParamSource, Params, Reply, RpcTraits},
    },
    transport::{
        RequestBody, ResponseAccounting,
        body::{
            self, Body, BodyLimits,
            response::{error_parts, headers, hint_at_bare_message, record_outcome, respond, status},
        },
        brief,
        context::PendingChecks,
        is_resumption,
        media_type::{self, JSON, is_json},
        version,
    },
};

/// Maximum length of an id in bytes. Every event of a stream repeats it.
const MAX_ID: usize = 1024;

/// Services of both versions.
#[derive(Clone)]
pub(in crate::transport) struct Methods {
    pub(in crate::transport) v1: ServiceHandle,
    pub(in crate::transport) v03: V03Methods,
    /// For requests of 0.3 without an id: has no effect, and returns the errors of their parameters, or that the id is
    /// missing.
    pub(in crate::transport) v03_without_id: V03Methods,
}

/// Serves a request to the URL of JSON-RPC. The extensions of the request are its `Call` alone.
///
/// No `async fn`: its future would store the arguments twice.
pub(in crate::transport) fn serve<B: RequestBody>(
    methods: Methods,
    mut parts: Parts,
    body: B,
    limits: BodyLimits,
    checks: PendingChecks,
    mut accounting: ResponseAccounting,
) -> impl Future<Output = Result<Response<Body>, Infallible>> + Send {
    let mut extensions = std::mem::take(&mut parts.extensions);
    let resumes = is_resumption(&extensions);
    let Parts { headers, .. } = parts;
    async move {
        let body = body::read(&headers, body, &limits, 0).await;
        let body = match body.and_then(|body| media_type::checked_for_rpc(&headers, body)) {
            Ok(body) => body,
            Err(error) => {
                let response = status_response("null", checks.presumed_version(), error.into());
                return Ok(accounting.finish(response, true));
            }
        };
        if body.trim_ascii_start().first() == Some(&b'[') {
            let budget = BatchBudget::new(&limits, accounting.unsent.clone());
            let (mut response, is_read) = Box::pin(serve_batch(methods, &body, &extensions, checks, budget)).await;
            record_outcome(&mut response, Some("batch"), None);
            return Ok(accounting.finish(response, is_read));
        }
        let (response, is_read) = match Invocation::parse(&body, checks.presumed_version()) {
            Ok(invocation) => {
                let rpc = invocation.rpc();
                let traits = rpc.map(|(_, traits)| traits);
                let is_read = accounting.reserve_for(traits, &mut extensions);
                let reply = invocation.call(&methods, rpc, extensions, checks).await;
                let mut response = invocation.respond(reply, traits, &headers, resumes, &limits);
                record_outcome(&mut response, Some(&invocation.method), None);
                (response, is_read)
            }
            Err(InvalidRequest { id, version, error }) => (status_response(id, version, error.into()), true),
        };
        Ok(accounting.finish(response, is_read))
    }
}

/// Serves a batch (JSON-RPC 2.0, section 6). Its calls run concurrently, so that a waiting call does not delay the
/// others. The responses are in the order of the calls. A call whose result exceeds the budget gets an error.
/// Also returns true if none of the calls changes anything.
async fn serve_batch(
    methods: Methods,
    body: &[u8],
    extensions: &Extensions,
    checks: PendingChecks,
    budget: BatchBudget,
) -> (Response<Body>, bool) {
    let reject = |error: Error| {
        let version = version::of_invalid_json_rpc(body).unwrap_or(checks.presumed_version());
        (status_response("null", version, error.into()), true)
    };
    let calls = match serde_json::from_slice::<Vec<&RawValue>>(body) {
        Ok(calls) => calls,
        Err(error) => return reject(ErrorKind::Parse.because(error.to_string())),
    };
    if calls.is_empty() {
        return reject(ErrorKind::InvalidRequest.because("the batch is empty"));
    }
    let (count, max) = (calls.len(), budget.max_calls);
    if count > max {
        let why = format!("{count} calls exceed the limit of {max} in a batch");
        return reject(ErrorKind::InvalidRequest.because(why).limit("batch_calls"));
    }
    let mut is_read = true;
    let responses = calls.iter().enumerate().map(|(index, text)| {
        let extensions = extensions_of_entry(extensions, index);
        serve_entry(&methods, text.get().as_bytes(), extensions, checks.clone(), &budget)
    });
    let responses = join_all(responses).await;
    let length = responses.iter().filter_map(|(response, _)| response.as_ref()).map(|(text, _)| text.len() + 1);
    let length = length.sum::<usize>() + 1;
    // The joined response counts in addition to the single ones, which are alive until it is complete.
    let joined = budget.unsent.reservation();
    joined.add_unchecked(length);
    let (mut out, mut all_headers) = (Vec::with_capacity(length), HeaderMap::new());
    for (response, entry_is_read) in responses {
        is_read &= entry_is_read;
        let Some((text, headers)) = response else { continue };
        out.put_u8(if out.is_empty() { b'[' } else { b',' });
        out.put_slice(&text);
        all_headers.extend(headers);
    }
    if out.is_empty() {
        // All calls were notifications.
        return (status(StatusCode::NO_CONTENT), is_read);
    }
    out.put_u8(b']');
    (respond(StatusCode::OK, all_headers, JSON, out.into()), is_read)
}

/// Limits of a batch: number of calls, and number of bytes that their results may have together.
struct BatchBudget {
    max_calls: usize,
    left: AtomicUsize,
    max: usize,
    /// Budget for the results until they are joined.
    unsent: ResponseBudget,
}

impl BatchBudget {
    fn new(limits: &BodyLimits, unsent: ResponseBudget) -> Self {
        let (max_calls, max) = (limits.batch_calls, limits.batch_bytes);
        Self { max_calls, left: AtomicUsize::new(max), max, unsent }
    }

    /// Takes the bytes of a result from the budget. Only a read has a reservation in the budget of all responses, so only a
    /// read fails because of other responses.
    ///
    /// # Errors
    /// `ResourceExhausted`, or `Unavailable` from the reservation.
    fn take(&self, bytes: usize, reserved: Option<&Reservation>) -> Result<(), Error> {
        if let Some(reserved) = reserved {
            reserved.resize(bytes)?;
        }
        let taken = self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes));
        let reason = || {
            let max = self.max;
            format!("the results of the batch exceed {max} bytes; send this call on its own")
        };
        taken.map(drop).map_err(|_| ErrorKind::ResourceExhausted.because(reason()).limit("batch_bytes"))
    }
}

/// Returns the extensions for a call of a batch. The idempotency key of the batch and the index identify a single send.
fn extensions_of_entry(extensions: &Extensions, index: usize) -> Extensions {
    let mut extensions = extensions.clone();
    if let Some(key) = extensions.get_mut::<Call>().and_then(|call| call.idempotency_key.as_mut()) {
        *key = format!("{key}#{index}");
    }
    extensions
}

/// Serves a call of a batch. Returns its response, `None` for a notification, and whether the call changes nothing.
async fn serve_entry(
    methods: &Methods,
    text: &[u8],
    mut extensions: Extensions,
    checks: PendingChecks,
    budget: &BatchBudget,
) -> (Option<(Bytes, HeaderMap)>, bool) {
    let rejected =
        |id: &str, version: Version, error: &Error| Some((error_envelope(id, version, error).into(), HeaderMap::new()));
    let invocation = match Invocation::parse(text, checks.presumed_version()) {
        Ok(invocation) => invocation,
        Err(InvalidRequest { id, version, error }) => return (rejected(id, version, &error), true),
    };
    let (id, version) = (invocation.id, invocation.version);
    let rpc = invocation.rpc();
    let is_read = rpc.is_none_or(|(_, traits)| traits.is_read);
    let reserved = is_read.then(|| Arc::new(budget.unsent.reservation()));
    let mut record = None;
    if let Some(call) = extensions.get_mut::<Call>() {
        call.memory.clone_from(&reserved);
        record = call.begin_part();
    }
    let reply = match rpc {
        Some((_, traits)) if traits.is_streaming => Err(ErrorKind::InvalidRequest
            .because("streaming methods are not supported in a batch; send the call on its own")
            .into()),
        rpc => Box::pin(invocation.call(methods, rpc, extensions, checks)).await,
    };
    if let Some(record) = record
        && let Some(trace) = &record.trace
    {
        let mut span = trace.take();
        let reason = reply.as_ref().err().map(|status| Error::from(status.clone()).kind().wire().reason);
        span.rename("POST");
        span.set("jsonrpc.request.id", id.unwrap_or_default());
        record.describe(&mut span, reason, false);
    }
    let id = match (id, version) {
        (Some(id), _) => id,
        (None, Version::V1_0) => return (None, is_read),
        // 0.3 has no notifications: the request is always rejected.
        (None, Version::V0_3) => "null",
    };
    let response = match reply {
        Ok(Reply::Unary(data, _)) if let Err(error) = budget.take(data.len(), reserved.as_deref()) => {
            rejected(id, version, &error)
        }
        Ok(Reply::Unary(data, metadata)) => {
            let text = result_envelope(id, &data);
            Some((budget.unsent.count(text, false), headers(metadata)))
        }
        Ok(Reply::Stream(..)) => rejected(id, version, &Error::internal("a unary call returned a stream")),
        Err(status) => rejected(id, version, &error_parts(status).0),
    };
    (response, is_read)
}

/// Envelope of a request. Members may have any type here, so that a wrong one does not hide the id.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default)]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<&'a RawValue>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
}

/// Distinguishes `null`, which is an id, from an absent member.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'a RawValue>, D::Error> {
    Deserialize::deserialize(deserializer).map(Some)
}

/// JSON string, borrowed if it has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// A request, borrowed from its body.
struct Invocation<'a> {
    /// JSON text of the id. A request of 1.0 without one is a notification. 0.3 has no notifications.
    id: Option<&'a str>,
    method: Cow<'a, str>,
    version: Version,
    params: &'a str,
}

/// Error of a body that is not a valid request, with the id and the version of its response.
struct InvalidRequest<'a> {
    id: &'a str,
    version: Version,
    error: Error,
}

impl<'a> Invocation<'a> {
    /// Returns the RPC of the method, and how it is served. `None` for an unknown method.
    fn rpc(&self) -> Option<(Rpc, RpcTraits)> {
        match self.version {
            Version::V1_0 => ServiceHandle::rpc(&self.method).map(|rpc| (rpc, ServiceHandle::traits(rpc))),
            Version::V0_3 => V03Methods::rpc(&self.method).map(|rpc| (rpc, V03Methods::traits(rpc))),
        }
    }

    /// Completes the checks of a request and calls its RPC.
    fn call<'b>(
        &'b self,
        methods: &'b Methods,
        rpc: Option<(Rpc, RpcTraits)>,
        mut extensions: Extensions,
        checks: PendingChecks,
    ) -> impl Future<Output = Result<Reply, Status>> + Send {
        let rpc = rpc.ok_or_else(|| Status::from(ErrorKind::MethodNotFound.because(brief(&self.method))));
        let check = || {
            let call = extensions.get_mut().ok_or_else(|| Error::internal("request without a call context"))?;
            checks.complete(self.version, call)
        };
        let rpc = rpc.and_then(|rpc| Ok(check().map(|()| rpc)?));
        let params = Params { source: ParamSource::Json(Cow::Borrowed(self.params)), path: Vec::new() };
        // The service gets no headers: its part of them is in the `Call`.
        let request = tonic::Request::from_parts(MetadataMap::new(), extensions, params);
        let is_empty = rpc.as_ref().is_ok_and(|(_, traits)| traits.has_empty_response);
        let reply = match (rpc, self.version) {
            (Ok((rpc, _)), Version::V1_0) => Either::Left(methods.v1.call(rpc, request)),
            (Ok((rpc, _)), Version::V0_3) => {
                let service = if self.id.is_some() { &methods.v03 } else { &methods.v03_without_id };
                // The futures of 0.3 are larger than all else here. Boxed, they do not enlarge those of 1.0.
                Either::Right(Either::Left(Box::pin(service.call(rpc, request))))
            }
            (Err(status), _) => Either::Right(Either::Right(ready(Err(status)))),
        };
        reply.map(move |reply| match reply {
            // Some clients require the member `result`, and none reads an object from it.
            Ok(Reply::Unary(_, metadata)) if is_empty => Ok(Reply::Unary(Bytes::from_static(b"null"), metadata)),
            Ok(reply) => Ok(reply),
            Err(status) => Err(hint_at_bare_message(status, self.params.as_bytes(), "params.message")),
        })
    }

    /// Builds the HTTP response from the reply of an RPC.
    fn respond(
        &self,
        reply: Result<Reply, Status>,
        traits: Option<RpcTraits>,
        request_headers: &HeaderMap,
        resumes: bool,
        limits: &BodyLimits,
    ) -> Response<Body> {
        let version = self.version;
        let Some(id) = self.id else {
            let missing = ErrorKind::InvalidRequest.because("`id` is missing");
            return match (version, reply) {
                (Version::V0_3, Err(status)) => status_response("null", version, status),
                // A notification is executed and has no response (JSON-RPC 2.0, section 4.1). This does not apply to
                // unknown methods.
                (Version::V1_0, _) if traits.is_some() => status(StatusCode::NO_CONTENT),
                (Version::V1_0 | Version::V0_3, _) => status_response("null", version, missing.into()),
            };
        };
        match reply {
            Ok(Reply::Unary(data, metadata)) => {
                respond(StatusCode::OK, headers(metadata), JSON, result_envelope(id, &data))
            }
            Ok(Reply::Stream(items, metadata)) => self.stream(id, items, resumes, headers(metadata), limits),
            Err(status)
                if traits.is_some_and(|traits| traits.is_streaming) && wants_events(request_headers, version) =>
            {
                let (error, headers) = error_parts(status);
                if http_status(&error, version).is_some() {
                    return error_response(id, version, &error, headers);
                }
                let reason = error.wire_for(version).reason;
                // `resumes` is false, so that the error is also sent to a client that reconnects.
                let events = Box::pin(tokio_stream::once(Err(error.into())));
                let mut response = self.stream(id, events, false, headers, limits);
                record_outcome(&mut response, None, Some(reason));
                response
            }
            Err(status) => status_response(id, version, status),
        }
    }

    /// Builds a stream of server-sent events, each of which is a JSON-RPC response.
    fn stream(
        &self,
        id: &str,
        items: BoxStream<Frame>,
        resumes: bool,
        headers: HeaderMap,
        limits: &BodyLimits,
    ) -> Response<Body> {
        let (id, version): (Box<str>, _) = (id.into(), self.version);
        let write = move |out: &mut Vec<u8>, item: Result<&JsonLine, &Error>| match item {
            Ok(line) => write_result(out, &id, |out| line.append_to(out)),
            Err(error) => out.put_slice(error_envelope(&id, version, error).as_bytes()),
        };
        let event_line = if version == Version::V0_3 { sse::MESSAGE } else { b"" };
        sse::response(event_line, items, resumes, headers, limits, write)
    }

    /// Parses a request. The error of an invalid request has the version of its method, or the presumed version if there is
    /// no method.
    fn parse(body: &'a [u8], presumed: Version) -> Result<Self, InvalidRequest<'a>> {
        let without_id = |error| InvalidRequest {
            id: "null",
            version: version::of_invalid_json_rpc(body).unwrap_or(presumed),
            error,
        };
        // serde would read an array as the members of the envelope in their order.
        if body.first() == Some(&b'[') {
            return Err(without_id(ErrorKind::InvalidRequest.because("a batch must not contain a batch")));
        }
        // Validating UTF-8 once is faster than string by string.
        let text =
            std::str::from_utf8(body).map_err(|error| without_id(ErrorKind::Parse.because(error.to_string())))?;
        let envelope = serde_json::from_str::<Envelope<'_>>(text).map_err(|error| {
            // serde stops at the first member of a wrong type. The rest of the body may still be invalid JSON.
            let kind = if error.is_data() && serde_json::from_slice::<IgnoredAny>(body).is_ok() {
                ErrorKind::InvalidRequest
            } else {
                ErrorKind::Parse
            };
            without_id(kind.because(error.to_string()))
        })?;
        let text = |value: &'a RawValue| match unescaped(value.get()) {
            Some(text) => Some(Cow::Borrowed(text)),
            None => serde_json::from_str::<Text<'_>>(value.get()).ok().map(|text| text.0),
        };
        let method = envelope.method.and_then(text).filter(|method| !method.is_empty());
        let version = method.as_deref().map_or(presumed, version::of_json_rpc_method);
        let rejected = |id, error| Err(InvalidRequest { id, version, error });
        let invalid = |id, reason: &'static str| rejected(id, ErrorKind::InvalidRequest.because(reason));
        let id = envelope.id.map(RawValue::get);
        let known_id = id.unwrap_or("null");
        if known_id.starts_with(['{', '[', 't', 'f']) {
            return invalid("null", "`id` is not a string, a number or null");
        }
        if known_id.len() > MAX_ID {
            let reason = format!("`id` exceeds the limit of {MAX_ID} bytes");
            return rejected("null", ErrorKind::InvalidRequest.because(reason));
        }
        if !is_readable(known_id) {
            return invalid("null", "`id` is a number out of range, or a string with half of a surrogate pair");
        }
        if envelope.jsonrpc.and_then(text).as_deref() != Some("2.0") {
            return invalid(known_id, "`jsonrpc` is not \"2.0\"");
        }
        let Some(method) = method else { return invalid(known_id, "`method` is missing, or not a string") };
        Ok(Self { id, method, version, params: envelope.params.map_or("", RawValue::get) })
    }
}

/// Returns true for an id that clients can parse in a response: JSON permits numbers and escapes that most parsers reject.
fn is_readable(id: &str) -> bool {
    match id.as_bytes().first() {
        Some(b'"') => unescaped(id).is_some() || serde_json::from_str::<Text<'_>>(id).is_ok(),
        Some(b'n') => true,
        _ => id.parse().is_ok_and(f64::is_finite),
    }
}

/// Returns the content of a JSON string without escapes. `None` for other values.
fn unescaped(json: &str) -> Option<&str> {
    let text = json.strip_prefix('"')?.strip_suffix('"')?;
    if text.as_bytes().contains(&b'\\') { None } else { Some(text) }
}

/// Parts of the response to a request before and after its id.
const RESULT: [&[u8]; 2] = [br#"{"jsonrpc":"2.0","id":"#, br#","result":"#];

/// Writes the response to a request, with the result that `write` writes as JSON.
fn write_result(out: &mut Vec<u8>, id: &str, write: impl FnOnce(&mut Vec<u8>)) {
    for part in [RESULT[0], id.as_bytes(), RESULT[1]] {
        out.put_slice(part);
    }
    write(out);
    out.put_u8(b'}');
}

/// Encodes the response to a request with this result, which is JSON.
fn result_envelope(id: &str, result: &[u8]) -> Bytes {
    // The exact size, so that the conversion needs no allocation.
    let mut out = Vec::with_capacity(RESULT[0].len() + id.len() + RESULT[1].len() + result.len() + 1);
    write_result(&mut out, id, |out| out.extend_from_slice(result));
    out.into()
}

/// Encodes the response to a request with this error.
fn error_envelope(id: &str, version: Version, error: &Error) -> String {
    let (code, message) = (error.wire_for(version).json_rpc, error.message_for(version));
    let error = match version {
        // `data` is an array of objects: some clients can't parse other forms (9.5).
        Version::V1_0 => json!({"code": code, "message": message, "data": error.details()}),
        // Some clients of 0.3 expect an object in `data`, others an array. All accept its absence.
        Version::V0_3 => json!({"code": code, "message": message}),
    };
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#)
}

/// HTTP status of an error that proxies and HTTP clients have to understand. All other errors have 200: JSON-RPC has its
/// own codes, and clients read no body under another status.
fn http_status(error: &Error, version: Version) -> Option<StatusCode> {
    match error.wire_for(version).http {
        status @ (401 | 403 | 405 | 408 | 413 | 421 | 429) => StatusCode::from_u16(status).ok(),
        _ => None,
    }
}

/// Builds the error response for a status.
pub(in crate::transport) fn status_response(id: &str, version: Version, status: Status) -> Response<Body> {
    let (error, headers) = error_parts(status);
    error_response(id, version, &error, headers)
}

fn error_response(id: &str, version: Version, error: &Error, headers: HeaderMap) -> Response<Body> {
    let status = http_status(error, version).unwrap_or(StatusCode::OK);
    let mut response = respond(status, headers, JSON, error_envelope(id, version, error).into());
    record_outcome(&mut response, None, Some(error.wire_for(version).reason));
    response
}

/// Returns true if an error before a stream is sent as its only event: if `Accept` names `text/event-stream`, and not
/// JSON too. The SDKs for Go (2.4) and those for 0.3 read nothing else there. The SDK for JavaScript at 1.0 throws the
/// typed error for a plain response, and for an event a different error with the typed one as its cause.
fn wants_events(headers: &HeaderMap, version: Version) -> bool {
    let (mut events, mut json) = (false, false);
    for name in media_type::accepted(headers) {
        events |= name.eq_ignore_ascii_case("text/event-stream");
        json |= is_json(name);
    }
    let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or_default();
    events && !json && (version == Version::V0_3 || !is_javascript(agent))
}
