//! The JSON-RPC 2.0 binding (section 9): methods by their proto names, streams as server-sent events. The methods of 0.3
//! come in on the same URLs and are told apart by their names; what they have in other forms is here too.

use std::{
    borrow::Cow,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use bytes::{BufMut as _, Bytes};
use futures_util::future::join_all;
use http::{Extensions, HeaderMap, HeaderValue, Response, StatusCode, header, request::Parts};
use serde::{Deserialize, Deserializer, de::IgnoredAny};
use serde_json::{json, value::RawValue};
use tonic::{Status, metadata::MetadataMap};

use super::{
    Made, RequestBody,
    body::{self, Body},
    brief,
    context::RequestedVersion,
    media_type, no_media_type,
    response::{explain, headers, hint_at_bare_message, respond, status},
    resumes,
    settings::Limits,
    sse,
};
use crate::{
    call::{Call, is_javascript},
    contract::{BoxStream, Dispatch, Frame, Line, Params, Reply, Request, Source},
    error::{Error, ErrorKind},
    json::check_json,
    protocol::Version,
    response_budget::{Reservation, ResponseBudget},
    transport::response::note,
};

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// An id is repeated in every event of a stream, so it may not be as long as a body.
const MAX_ID: usize = 1024;

/// More calls than these are not taken at once: each may be answered with a task of any size.
const MAX_BATCH: usize = 64;

/// The methods of each version. Those of 0.3 have a slash in their names, and those of 1.0 have none.
#[derive(Clone)]
pub(super) struct Methods<T, C> {
    pub(super) current: T,
    pub(super) classic: C,
    /// For calls of 0.3 without an id: does nothing, and returns the errors of their parameters, or that the id is
    /// missing.
    pub(super) classic_without_id: C,
}

/// The version that a method is of, by its name.
fn version_of(method: &str) -> Version {
    if method.contains('/') { Version::V0_3 } else { Version::V1_0 }
}

/// The version of what is no call, by the name of a method where one can be seen in it.
fn seen(body: &[u8]) -> Option<Version> {
    const MEMBER: &[u8] = br#""method""#;
    let at = body.windows(MEMBER.len()).position(|it| it == MEMBER)?;
    let after = body.get(at + MEMBER.len()..)?.trim_ascii_start().strip_prefix(b":")?;
    let method = after.trim_ascii_start().strip_prefix(b"\"")?.split(|it| *it == b'"').next()?;
    Some(if method.contains(&b'/') { Version::V0_3 } else { Version::V1_0 })
}

/// What is called.
#[derive(Clone, Copy)]
enum Rpc<T, C> {
    Current(T),
    Classic(C),
}

impl<T: Dispatch, C: Dispatch> Methods<T, C> {
    fn find(method: &str) -> Option<Rpc<T::Rpc, C::Rpc>> {
        match version_of(method) {
            Version::V1_0 => T::rpc(method).map(Rpc::Current),
            Version::V0_3 => C::rpc(method).map(Rpc::Classic),
        }
    }

    fn is_streaming(rpc: Rpc<T::Rpc, C::Rpc>) -> bool {
        match rpc {
            Rpc::Current(it) => T::is_streaming(it),
            Rpc::Classic(it) => C::is_streaming(it),
        }
    }

    fn is_silent(rpc: Rpc<T::Rpc, C::Rpc>) -> bool {
        match rpc {
            Rpc::Current(it) => T::is_silent(it),
            Rpc::Classic(it) => C::is_silent(it),
        }
    }

    fn is_read(rpc: Rpc<T::Rpc, C::Rpc>) -> bool {
        match rpc {
            Rpc::Current(it) => T::is_read(it),
            Rpc::Classic(it) => C::is_read(it),
        }
    }

    async fn call(&self, rpc: Rpc<T::Rpc, C::Rpc>, has_id: bool, request: Request<'_>) -> Result<Reply, Status> {
        let mut reply = match rpc {
            Rpc::Current(it) => self.current.call(it, request).await?,
            // What it holds while it works is larger than all else here, and is not for every call to make room for.
            Rpc::Classic(it) if has_id => Box::pin(self.classic.call(it, request)).await?,
            Rpc::Classic(it) => Box::pin(self.classic_without_id.call(it, request)).await?,
        };
        if let Reply::Unary(data, _) = &mut reply
            && Self::is_silent(rpc)
        {
            // Other clients want the member, and none reads an object there.
            *data = Bytes::from_static(b"null");
        }
        Ok(reply)
    }
}

/// Serves every method. The extensions of the request have its `Call`
/// and nothing else.
///
/// No `async fn`, which would keep what it is given twice.
pub(super) fn answer<T: Dispatch, C: Dispatch, B: RequestBody>(
    methods: Methods<T, C>,
    mut parts: Parts,
    body: B,
    limits: Limits,
    admitted: RequestedVersion,
    mut made: Made,
) -> impl Future<Output = Result<Response<Body>, Infallible>> + Send {
    let mut extensions = std::mem::take(&mut parts.extensions);
    let resumes = resumes(&extensions);
    let Parts { headers, .. } = parts;
    async move {
        let body = body::read(&headers, body, &limits).await;
        let body = match body.and_then(|it| if_json(&headers, it)) {
            Ok(body) => body,
            Err(error) => return Ok(made.finish(failure("null", admitted.presumed(), error.into()), true)),
        };
        if body.trim_ascii_start().first() == Some(&b'[') {
            let budget = Budget::new(limits.batch_bytes, made.unsent.clone());
            let (mut response, is_read) = Box::pin(batch(methods, &body, &extensions, admitted, budget)).await;
            note(&mut response, Some("batch"), None);
            return Ok(made.finish(response, is_read));
        }
        let (response, is_read) = match Invocation::read(&body, admitted.presumed()) {
            Ok(invocation) => {
                let rpc = Methods::<T, C>::find(&invocation.method);
                let is_read = rpc.is_some_and(Methods::<T, C>::is_read);
                if is_read && !rpc.is_some_and(Methods::<T, C>::is_streaming) {
                    made.reserve(&mut extensions);
                }
                let reply = invocation.call(&methods, rpc, extensions, admitted).await;
                let mut response = invocation.answer::<T, C>(reply, rpc, &headers, resumes, &limits);
                note(&mut response, Some(&brief(&invocation.method)), None);
                (response, is_read)
            }
            Err(Refusal { id, version, error }) => (failure(id, version, error.into()), true),
        };
        Ok(made.finish(response, is_read))
    }
}

/// Serves a batch (JSON-RPC 2.0, section 6). Its calls run concurrently, so that a waiting call does not delay the
/// others. The answers are in the order of the calls. A call whose result exceeds the budget is answered with an error.
/// Also returns whether none of the calls changes anything.
async fn batch<T: Dispatch, C: Dispatch>(
    methods: Methods<T, C>,
    body: &[u8],
    extensions: &Extensions,
    admitted: RequestedVersion,
    budget: Budget,
) -> (Response<Body>, bool) {
    let refuse = |error: Error| (failure("null", seen(body).unwrap_or(admitted.presumed()), error.into()), true);
    let calls = match serde_json::from_slice::<Vec<&RawValue>>(body) {
        Ok(calls) => calls,
        Err(error) => return refuse(ErrorKind::Parse.because(error.to_string())),
    };
    if calls.is_empty() {
        return refuse(ErrorKind::InvalidRequest.because("a batch without calls"));
    }
    if calls.len() > MAX_BATCH {
        let error = ErrorKind::InvalidRequest.because(format!("a batch may have up to {MAX_BATCH} calls"));
        return refuse(error.with("limit", MAX_BATCH.to_string()));
    }
    let mut is_read = true;
    let answers = calls.iter().enumerate().map(|(at, text)| {
        let extensions = for_entry(extensions, at);
        entry(&methods, text.get().as_bytes(), extensions, admitted.clone(), &budget)
    });
    let answers = join_all(answers).await;
    let length = |(answer, _): &(Option<(Bytes, HeaderMap)>, bool)| answer.as_ref().map_or(0, |it| it.0.len() + 1);
    let length = answers.iter().map(length).sum::<usize>() + 1;
    // The results count until they are joined, and so does what they are joined in.
    let joined = budget.unsent.reservation();
    joined.force(length);
    let (mut out, mut all) = (Vec::with_capacity(length), HeaderMap::new());
    for (answer, reads) in answers {
        is_read &= reads;
        let Some((answer, headers)) = answer else { continue };
        out.put_u8(if out.is_empty() { b'[' } else { b',' });
        out.put_slice(&answer);
        all.extend(headers);
    }
    if out.is_empty() {
        // Nothing but notifications.
        return (status(StatusCode::NO_CONTENT), is_read);
    }
    out.put_u8(b']');
    (respond(StatusCode::OK, all, JSON, out.into()), is_read)
}

/// Bytes that the results of a batch may have together.
struct Budget {
    left: AtomicUsize,
    max: usize,
    /// Budget for the results until they are joined.
    unsent: ResponseBudget,
}

impl Budget {
    fn new(max: usize, unsent: ResponseBudget) -> Self {
        Self { left: AtomicUsize::new(max), max, unsent }
    }

    /// Takes the bytes of a result, or refuses it. Only a read has a reservation, and is refused because of the memory that
    /// other answers have.
    fn take(&self, bytes: usize, reserved: Option<&Reservation>) -> Result<(), Error> {
        if let Some(reserved) = reserved {
            reserved.resize(bytes)?;
        }
        let taken = self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes));
        let why = || {
            let max = self.max;
            format!(
                "the results of the batch have more than {max} bytes with this one; call it alone (limits.batch_bytes)"
            )
        };
        taken.map(drop).map_err(|_| ErrorKind::ResourceExhausted.because(why()).with("limit", "batch_bytes"))
    }
}

/// What came with a batch, for one of its calls. The key that it is known by again names the batch, and with the place in
/// it one send.
fn for_entry(extensions: &Extensions, at: usize) -> Extensions {
    let mut extensions = extensions.clone();
    if let Some(key) = extensions.get_mut::<Call>().and_then(|it| it.idempotency_key.as_mut()) {
        *key = format!("{key}#{at}");
    }
    extensions
}

/// Serves a call of a batch. Also returns whether it changes nothing. A notification has no answer, whatever its
/// outcome.
async fn entry<T: Dispatch, C: Dispatch>(
    methods: &Methods<T, C>,
    text: &[u8],
    mut extensions: Extensions,
    admitted: RequestedVersion,
    budget: &Budget,
) -> (Option<(Bytes, HeaderMap)>, bool) {
    let refused =
        |id: &str, version: Version, error: &Error| Some((problem(id, version, error).into(), HeaderMap::new()));
    let invocation = match Invocation::read(text, admitted.presumed()) {
        Ok(invocation) => invocation,
        Err(Refusal { id, version, error }) => return (refused(id, version, &error), true),
    };
    let (id, version) = (invocation.id, invocation.version);
    let rpc = Methods::<T, C>::find(&invocation.method);
    let is_read = rpc.is_none_or(Methods::<T, C>::is_read);
    let reserved = is_read.then(|| Arc::new(budget.unsent.reservation()));
    if let Some(call) = extensions.get_mut::<Call>() {
        call.memory.clone_from(&reserved);
    }
    let reply = match rpc {
        Some(rpc) if Methods::<T, C>::is_streaming(rpc) => {
            Err(ErrorKind::InvalidRequest.because("a stream can't be the answer to a call of a batch").into())
        }
        rpc => Box::pin(invocation.call(methods, rpc, extensions, admitted)).await,
    };
    let id = match (id, version) {
        (Some(id), _) => id,
        (None, Version::V1_0) => return (None, is_read),
        // It is no notification, and always refused.
        (None, Version::V0_3) => "null",
    };
    let answer = match reply {
        Ok(Reply::Unary(data, _)) if let Err(error) = budget.take(data.len(), reserved.as_deref()) => {
            refused(id, version, &error)
        }
        Ok(Reply::Unary(data, metadata)) => {
            let mut out = Vec::with_capacity(data.len() + id.len() + 48);
            result(&mut out, id, |out| out.extend_from_slice(&data));
            Some((budget.unsent.count(out.into()), headers(metadata)))
        }
        Ok(Reply::Stream(..)) => refused(id, version, &Error::internal("a stream in answer to a unary call")),
        Err(status) => refused(id, version, &explain(status).0),
    };
    (answer, is_read)
}

fn unnamed() -> Error {
    ErrorKind::InvalidRequest.because("`id` is missing")
}

fn unknown(method: &str) -> Status {
    ErrorKind::MethodNotFound.because(brief(method)).into()
}

/// A body that calls itself JSON. An empty one is refused for that, whatever it calls itself.
fn if_json(headers: &HeaderMap, body: Bytes) -> Result<Bytes, Error> {
    match media_type(headers) {
        Some(it) if is_json(it) => Ok(check_json(&body).map(|()| body)?),
        Some(it) => Err(ErrorKind::ContentTypeNotSupported.because(format!("`{}` is not application/json", brief(it)))),
        None if body.is_empty() => Ok(body),
        None => Err(no_media_type()),
    }
}

/// `application/json`, and whatever is JSON by its suffix, such as `application/a2a+json`.
fn is_json(media_type: &str) -> bool {
    if media_type == "application/json" {
        return true;
    }
    let Some((kind, name)) = media_type.split_once('/') else { return false };
    let name = name.rsplit_once('+').map_or(name, |it| it.1);
    kind.eq_ignore_ascii_case("application") && name.eq_ignore_ascii_case("json")
}

/// What a call is wrapped in. Its members are only looked for here: one that is wrong need not hide the id.
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

/// Null is an id, and not the same as none.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'a RawValue>, D::Error> {
    Deserialize::deserialize(deserializer).map(Some)
}

/// A text that is borrowed where nothing in it is escaped.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// A call, borrowed from its body.
struct Invocation<'a> {
    /// As it is written; none makes it a notification, which 0.3 has none of.
    id: Option<&'a str>,
    method: Cow<'a, str>,
    version: Version,
    params: &'a [u8],
}

/// Why a body is no call, under the id that it is answered under and in the terms of the version that it is of, or may be.
struct Refusal<'a> {
    id: &'a str,
    version: Version,
    error: Error,
}

impl<'a> Invocation<'a> {
    /// Carries a call out, if it is let in.
    fn call<T: Dispatch, C: Dispatch>(
        &self,
        methods: &Methods<T, C>,
        rpc: Option<Rpc<T::Rpc, C::Rpc>>,
        mut extensions: Extensions,
        admitted: RequestedVersion,
    ) -> impl Future<Output = Result<Reply, Status>> + Send {
        let rpc = rpc.ok_or_else(|| unknown(&self.method));
        let rpc = rpc.and_then(|it| Ok(admitted.enter(self.version, &mut extensions).map(|()| it)?));
        let params = Params { source: Source::Json(Cow::Borrowed(self.params)), path: Vec::new() };
        // The headers stay outside: what a service may know of them is in the `Call`.
        let request = tonic::Request::from_parts(MetadataMap::new(), extensions, params);
        let has_id = self.id.is_some();
        async move {
            let reply = methods.call(rpc?, has_id, request).await;
            reply.map_err(|status| hint_at_bare_message(status, self.params, "params.message"))
        }
    }

    /// Puts what came of a call into an answer.
    fn answer<T: Dispatch, C: Dispatch>(
        &self,
        reply: Result<Reply, Status>,
        rpc: Option<Rpc<T::Rpc, C::Rpc>>,
        came_with: &HeaderMap,
        resumes: bool,
        limits: &Limits,
    ) -> Response<Body> {
        let version = self.version;
        let Some(id) = self.id else {
            return match (version, reply) {
                // No call of 0.3 is a notification.
                (Version::V0_3, Err(status)) => failure("null", version, status),
                // A notification is carried out, and never answered (JSON-RPC 2.0, section 4.1). A call of nothing that we
                // know need not be one, and so we would not have to keep silent about it.
                (Version::V1_0, _) if rpc.is_some() => status(StatusCode::NO_CONTENT),
                (Version::V1_0 | Version::V0_3, _) => failure("null", version, unnamed().into()),
            };
        };
        match reply {
            Ok(Reply::Unary(data, metadata)) => {
                let mut out = Vec::with_capacity(data.len() + id.len() + 48);
                result(&mut out, id, |out| out.extend_from_slice(&data));
                respond(StatusCode::OK, headers(metadata), JSON, out.into())
            }
            Ok(Reply::Stream(items, metadata)) => self.stream(id, items, resumes, headers(metadata), limits),
            Err(status) if rpc.is_some_and(Methods::<T, C>::is_streaming) && wants_events(came_with, version) => {
                let (error, headers) = explain(status);
                if http_status(&error, version).is_some() {
                    return refuse(id, version, &error, headers);
                }
                let reason = error.wire_for(version).reason;
                // Sent in any case, also to a client that reconnects.
                let events = Box::pin(tokio_stream::once(Err(error.into())));
                let mut response = self.stream(id, events, false, headers, limits);
                note(&mut response, None, Some(reason));
                response
            }
            Err(status) => failure(id, version, status),
        }
    }

    /// Answers with server-sent events, each of which is a response of JSON-RPC.
    fn stream(
        &self,
        id: &str,
        items: BoxStream<Frame>,
        begun: bool,
        headers: HeaderMap,
        limits: &Limits,
    ) -> Response<Body> {
        let (id, version): (Box<str>, _) = (id.into(), self.version);
        let write = move |out: &mut Vec<u8>, item: Result<&Line, &Error>| match item {
            Ok(line) => result(out, &id, |out| line.put(out)),
            Err(error) => out.put_slice(problem(&id, version, error).as_bytes()),
        };
        let name = if version == Version::V0_3 { sse::MESSAGE } else { b"" };
        sse::response(name, items, begun, headers, limits, write)
    }

    /// Reads a call. What is none is refused in the version that can be seen in it, else in the one that is presumed.
    fn read(body: &'a [u8], presumed: Version) -> Result<Self, Refusal<'a>> {
        let early = |error| Refusal { id: "null", version: seen(body).unwrap_or(presumed), error };
        // An array would else be taken for the members of an envelope in their order.
        if body.first() == Some(&b'[') {
            return Err(early(ErrorKind::InvalidRequest.because("a batch in a batch")));
        }
        // Looked at as a whole, which is faster than text by text.
        let text = std::str::from_utf8(body).map_err(|e| early(ErrorKind::Parse.because(e.to_string())))?;
        let envelope = serde_json::from_str::<Envelope<'_>>(text).map_err(|error| {
            // What has the wrong shape may not be JSON either, further on.
            let wrong = if error.is_data() && serde_json::from_slice::<IgnoredAny>(body).is_ok() {
                ErrorKind::InvalidRequest
            } else {
                ErrorKind::Parse
            };
            early(wrong.because(error.to_string()))
        })?;
        let text = |it: &'a RawValue| match plain(it.get()) {
            Some(it) => Some(Cow::Borrowed(it)),
            None => serde_json::from_str::<Text<'_>>(it.get()).ok().map(|it| it.0),
        };
        let method = envelope.method.and_then(text).filter(|it| !it.is_empty());
        let version = method.as_deref().map_or(presumed, version_of);
        let refused = |id, error| Err(Refusal { id, version, error });
        let invalid = |id, reason: &'static str| refused(id, ErrorKind::InvalidRequest.because(reason));
        let id = envelope.id.map(RawValue::get);
        let known = id.unwrap_or("null");
        if known.starts_with(['{', '[', 't', 'f']) {
            return invalid("null", "`id` is neither text nor a number");
        }
        if known.len() > MAX_ID {
            let reason = format!("`id` has more than {MAX_ID} bytes");
            return refused("null", ErrorKind::InvalidRequest.because(reason));
        }
        if envelope.jsonrpc.and_then(text).as_deref() != Some("2.0") {
            return invalid(known, "`jsonrpc` is not \"2.0\"");
        }
        let Some(method) = method else { return invalid(known, "`method` is missing, or not text") };
        Ok(Self { id, method, version, params: envelope.params.map_or(b"", |it| it.get().as_bytes()) })
    }
}

/// What is between the quotes of a text in which nothing is escaped, as most are.
fn plain(json: &str) -> Option<&str> {
    let text = json.strip_prefix('"')?.strip_suffix('"')?;
    if text.bytes().any(|it| it == b'\\') { None } else { Some(text) }
}

/// Puts a result that is JSON already into its envelope.
fn result(out: &mut Vec<u8>, id: &str, put: impl FnOnce(&mut Vec<u8>)) {
    for part in [br#"{"jsonrpc":"2.0","id":"#, id.as_bytes(), br#","result":"#] {
        out.put_slice(part);
    }
    put(out);
    out.put_u8(b'}');
}

fn problem(id: &str, version: Version, error: &Error) -> String {
    let (code, message) = (error.wire_for(version).json_rpc, error.message_for(version));
    let error = match version {
        // `data` is an array of objects: some clients can't read the answer otherwise (9.5).
        Version::V1_0 => json!({"code": code, "message": message, "data": error.details()}),
        // Some of its clients read an object there and others an array, and all of them read nothing.
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

/// Rejects a call.
pub(super) fn failure(id: &str, version: Version, status: Status) -> Response<Body> {
    let (error, headers) = explain(status);
    refuse(id, version, &error, headers)
}

fn refuse(id: &str, version: Version, error: &Error, headers: HeaderMap) -> Response<Body> {
    let status = http_status(error, version).unwrap_or(StatusCode::OK);
    let mut response = respond(status, headers, JSON, problem(id, version, error).into());
    note(&mut response, None, Some(error.wire_for(version).reason));
    response
}

/// Returns true if an error before a stream is sent as its only event: if `Accept` names `text/event-stream`, and not
/// JSON too. The SDKs for Go (2.3) and those for 0.3 read nothing else there. The SDK for JavaScript at 1.0 throws the
/// typed error for a plain response, and for an event a different error with the typed one as its cause.
fn wants_events(headers: &HeaderMap, version: Version) -> bool {
    let lines = headers.get_all(header::ACCEPT).into_iter().filter_map(|it| it.to_str().ok());
    let (mut events, mut json) = (false, false);
    for range in lines.flat_map(|line| line.split(',')) {
        let name = range.split(';').next().unwrap_or_default().trim();
        events |= name.eq_ignore_ascii_case("text/event-stream");
        json |= is_json(name);
    }
    let agent = headers.get(header::USER_AGENT).and_then(|it| it.to_str().ok()).unwrap_or_default();
    events && !json && (version == Version::V0_3 || !is_javascript(agent))
}
