//! The JSON-RPC 2.0 binding (section 9): methods by their proto names, streams as server-sent events.

use std::borrow::Cow;

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Response, StatusCode, request::Parts};
use serde::{Deserialize, Deserializer, de::IgnoredAny};
use serde_json::{json, value::RawValue};
use tonic::{Status, metadata::MetadataMap};

use super::{
    Limits, RequestBody,
    body::{self, Body},
    brief, explain, headers, media_type, respond, sse,
};
use crate::{
    error::{Error, ErrorKind},
    transport::transcode::{Binding, Params, Reply, Source},
};

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// An id is repeated in every event of a stream, so it may not be as long as a body.
const MAX_ID: usize = 1024;

/// Serves every method of a binding. The extensions of the request have its `Call` and nothing else.
pub(super) async fn answer<T: Binding, B: RequestBody>(
    binding: T,
    mut parts: Parts,
    body: B,
    limits: Limits,
) -> Response<Body> {
    let extensions = std::mem::take(&mut parts.extensions);
    let body = match read(&parts.headers, body, limits).await {
        Ok(body) => body,
        Err(error) => return failure("null", error.into()),
    };
    let Invocation { id, method, params } = match Invocation::read(&body) {
        Ok(invocation) => invocation,
        Err((id, error)) => return failure(id, error.into()),
    };
    let Some(rpc) = T::rpc(&method) else {
        return match id {
            Some(id) => failure(id, ErrorKind::MethodNotFound.because(brief(&method)).into()),
            // Nothing that we know, and so not a notification that we would have to keep silent about.
            None => failure("null", ErrorKind::InvalidRequest.because("`id` is missing").into()),
        };
    };
    let params = Params { source: Source::Json(Cow::Borrowed(params)), path: Vec::new() };
    // The headers stay outside: what a service may know of them is in the `Call`.
    let reply = binding.call(rpc, tonic::Request::from_parts(MetadataMap::new(), extensions, params)).await;
    let Some(id) = id else {
        // A notification is carried out, and never answered (JSON-RPC 2.0, section 4.1).
        let mut response = Response::new(Body::default());
        *response.status_mut() = StatusCode::NO_CONTENT;
        return response;
    };
    match reply {
        Ok(Reply::Unary(data, metadata)) => {
            let mut out = BytesMut::with_capacity(data.len() + id.len() + 48);
            result(&mut out, id, &data);
            respond(StatusCode::OK, headers(metadata), JSON, out.freeze())
        }
        Ok(Reply::Stream(items, metadata)) => {
            let id: Box<str> = id.into();
            let write = move |out: &mut BytesMut, item: Result<&[u8], &Error>| match item {
                Ok(data) => result(out, &id, data),
                Err(error) => out.put_slice(problem(&id, error).as_bytes()),
            };
            sse::response(items, headers(metadata), limits.keep_alive, write)
        }
        Err(status) => failure(id, status),
    }
}

async fn read<B: RequestBody>(headers: &HeaderMap, body: B, limits: Limits) -> Result<Bytes, Error> {
    let body = body::read(headers, body, limits.max_body, limits.patience).await?;
    match media_type(headers) {
        Some(it) if !is_json(it) => {
            Err(ErrorKind::ContentTypeNotSupported.because(format!("`{}` is not application/json", brief(it))))
        }
        _ => Ok(body),
    }
}

/// `application/json`, and whatever is JSON by its suffix, such as `application/a2a+json`.
fn is_json(media_type: &str) -> bool {
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
    /// As it is written; none makes it a notification.
    id: Option<&'a str>,
    method: Cow<'a, str>,
    params: &'a [u8],
}

impl<'a> Invocation<'a> {
    /// Reads a call. An error comes with the id that it is answered under.
    fn read(body: &'a [u8]) -> Result<Self, (&'a str, Error)> {
        let invalid = |id, reason: &'static str| Err((id, ErrorKind::InvalidRequest.because(reason)));
        // An array would else be taken for the members of an envelope in their order.
        if body.trim_ascii_start().first() == Some(&b'[') && serde_json::from_slice::<IgnoredAny>(body).is_ok() {
            return invalid("null", "batches are not supported");
        }
        let envelope = serde_json::from_slice::<Envelope<'_>>(body).map_err(|error| {
            // What has the wrong shape may not be JSON either, further on.
            let wrong = if error.is_data() && serde_json::from_slice::<IgnoredAny>(body).is_ok() {
                ErrorKind::InvalidRequest
            } else {
                ErrorKind::Parse
            };
            ("null", wrong.because(error.to_string()))
        })?;
        let id = envelope.id.map(RawValue::get);
        let known = id.unwrap_or("null");
        if known.starts_with(['{', '[', 't', 'f']) {
            return invalid("null", "`id` is neither text nor a number");
        }
        if known.len() > MAX_ID {
            let reason = format!("`id` has more than {MAX_ID} bytes");
            return Err(("null", ErrorKind::InvalidRequest.because(reason)));
        }
        let text = |it: &'a RawValue| serde_json::from_str::<Text<'_>>(it.get()).ok().map(|it| it.0);
        if envelope.jsonrpc.and_then(text).as_deref() != Some("2.0") {
            return invalid(known, "`jsonrpc` is not \"2.0\"");
        }
        match envelope.method.and_then(text) {
            Some(method) if !method.is_empty() => {
                Ok(Self { id, method, params: envelope.params.map_or(b"", |it| it.get().as_bytes()) })
            }
            _ => invalid(known, "`method` is missing, or not text"),
        }
    }
}

/// Puts a result that is JSON already into its envelope.
fn result(out: &mut BytesMut, id: &str, data: &[u8]) {
    // A message without members says nothing, which is null in JSON-RPC: other clients want the member, and none reads
    // an object there. All messages that say something have members that are always there.
    let data = if data == b"{}" { b"null" } else { data };
    for part in [br#"{"jsonrpc":"2.0","id":"#, id.as_bytes(), br#","result":"#, data, b"}"] {
        out.put_slice(part);
    }
}

fn problem(id: &str, error: &Error) -> String {
    // `data` is an array of objects: some clients can't read the answer otherwise (9.5).
    let error = json!({"code": error.wire().json_rpc, "message": error.to_string(), "data": error.details()});
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#)
}

/// Refuses a call. JSON-RPC has its own codes, and clients read no body under another status than 200; those excepted
/// that whatever stands between us and them has to understand.
pub(super) fn failure(id: &str, status: Status) -> Response<Body> {
    let (error, headers) = explain(status);
    let status = match error.wire().http {
        it @ (401 | 403 | 413 | 429) => StatusCode::from_u16(it).unwrap_or_default(),
        _ => StatusCode::OK,
    };
    respond(status, headers, JSON, problem(id, &error).into())
}
