//! The HTTP+JSON binding (section 11): routes from `google.api.http`, messages in ProtoJSON, streams as server-sent
//! events, errors as `google.rpc.Status`.

use std::{borrow::Cow, convert::Infallible};

use bytes::{BufMut as _, Bytes};
use http::{Extensions, HeaderMap, HeaderValue, Method, Response, StatusCode, header, request::Parts};
use percent_encoding::percent_decode_str;
use serde_json::value::RawValue;
use tonic::{
    Status,
    metadata::{MetadataMap, MetadataValue},
};

use super::{
    RequestBody,
    body::{self, Body},
    brief, is_resumption, media_type, missing_media_type,
    response::{error_parts, headers, hint_at_bare_message, respond},
    settings::Limits,
    sse,
};
use crate::{
    contract::{BodyMapping, Dispatch, JsonLine, ParamSource, Params, Reply, Request, Route},
    error::{Error, ErrorKind},
    json::check_json,
    protocol::Version,
    transport::response::record_outcome,
};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const A2A_JSON: HeaderValue = HeaderValue::from_static("application/a2a+json");

/// No route has more segments.
const SEGMENTS: usize = 8;

/// Serves every route of a binding, and answers in its terms to any other. The extensions of the request have its
/// `Call` and nothing else, where it was `admitted`.
///
/// No `async fn`, which would keep what it is given twice.
pub(super) fn serve<T: Dispatch, B: RequestBody>(
    binding: T,
    mut parts: Parts,
    body: B,
    limits: Limits,
    admitted: Result<(), Error>,
    version: Version,
) -> impl Future<Output = Result<Response<Body>, Infallible>> + Send {
    let extensions = std::mem::take(&mut parts.extensions);
    let resumes = is_resumption(&extensions);
    let route = route::<T>(&parts.method, parts.uri.path());
    let route = route.and_then(|it| admitted.map(|()| it).map_err(Status::from));
    async move {
        // A body that nobody asked for is read all the same: the next request stands behind it.
        let body = body::read(&parts.headers, body, &limits).await;
        let reply = match request(&parts, route, &body, extensions) {
            Ok((rpc, request)) => {
                let reply = binding.call(rpc, request).await;
                let sent = body.as_ref().map(|body| &body[..]).unwrap_or_default();
                reply.map_err(|status| hint_at_bare_message(status, sent, "message"))
            }
            Err(status) => Err(status),
        };
        Ok(match reply {
            Ok(Reply::Unary(data, metadata)) => {
                respond(StatusCode::OK, headers(metadata), reply_type(&parts.headers, version), data)
            }
            Ok(Reply::Stream(items, metadata)) => {
                let write = move |out: &mut Vec<u8>, item: Result<&JsonLine, &Error>| write(out, item, version);
                sse::response(b"", items, resumes, headers(metadata), &limits, write)
            }
            Err(status) => status_response(status, version),
        })
    }
}

/// What is called, and with what.
fn request<'a, R>(
    parts: &'a Parts,
    route: Result<Route<R>, Status>,
    body: &'a Result<Bytes, Error>,
    extensions: Extensions,
) -> Result<(R, Request<'a>), Status> {
    let Route { rpc, body: mapping, fields } = route?;
    let body = body.as_ref().map_err(Error::clone)?;
    check_json(body).map_err(Error::from)?;
    let source = match mapping {
        BodyMapping::None => ParamSource::Query(query(parts).into()),
        BodyMapping::Whole => ParamSource::Json(Cow::Borrowed(json(&parts.headers, body)?)),
        BodyMapping::Field(name) => ParamSource::Json(Cow::Owned(member(name, json(&parts.headers, body)?)?)),
        BodyMapping::Anywhere => ParamSource::Both(Cow::Borrowed(json(&parts.headers, body)?), query(parts)),
    };
    // The headers stay outside: what a service may know of them is in the `Call`.
    Ok((rpc, tonic::Request::from_parts(MetadataMap::new(), extensions, Params { source, path: fields })))
}

fn query(parts: &Parts) -> &str {
    parts.uri.query().unwrap_or_default()
}

/// What a request line stands for. A path that is for other verbs says for which (RFC 9110, 15.5.6).
fn route<T: Dispatch>(method: &Method, path: &str) -> Result<Route<T::Rpc>, Status> {
    // Whoever may GET may ask for the head of it (RFC 9110, 9.1).
    let verb = if *method == Method::HEAD { "GET" } else { method.as_str() };
    let line = || brief(&format!("{method} {path}"));
    let path = path.strip_suffix('/').unwrap_or(path);
    // What looks like an action and is none of this path is the end of an id.
    for (stem, action) in [action(path, T::CUSTOM_VERBS), (path, "")] {
        if let Some(route) = bound::<T>(verb, stem, action)? {
            return Ok(route);
        }
        let mut verbs = Vec::new();
        for verb in T::VERBS {
            if bound::<T>(verb, stem, action)?.is_some() {
                verbs.push(*verb);
            }
        }
        if !verbs.is_empty() {
            let mut status = Status::from(ErrorKind::VerbNotAllowed.because(line()));
            let verbs = verbs.join(", ").replace("GET", "GET, HEAD");
            // What is metadata here is a header there.
            if let Ok(verbs) = MetadataValue::try_from(verbs) {
                status.metadata_mut().insert("allow", verbs);
            }
            return Err(status);
        }
    }
    let hint = hint::<T>(path)?.map(|hint| format!("; use {hint}")).unwrap_or_default();
    Err(ErrorKind::MethodNotFound.because(line() + &hint).into())
}

/// The route that a path with a slash before the action means: `/message/send` is `/message:send`.
fn hint<T: Dispatch>(path: &str) -> Result<Option<String>, Error> {
    let Some((stem, action)) = path.rsplit_once('/').filter(|(_, action)| T::CUSTOM_VERBS.contains(action)) else {
        return Ok(None);
    };
    for verb in T::VERBS {
        if bound::<T>(verb, stem, action)?.is_some() {
            return Ok(Some(brief(&format!("{verb} {stem}:{action}"))));
        }
    }
    Ok(None)
}

/// What the protocol binds to a verb and a path.
fn bound<T: Dispatch>(verb: &str, path: &str, action: &str) -> Result<Option<Route<T::Rpc>>, Error> {
    let mut decoded: [Cow<'_, str>; SEGMENTS] = Default::default();
    let count = segments(path, &mut decoded)?;
    let segments: [&str; SEGMENTS] = std::array::from_fn(|at| &*decoded[at]);
    Ok(segments.get(..count).and_then(|it| T::route(verb, it, action)))
}

/// The action that follows a colon in the last segment of a path: `/tasks/42:cancel`. Any other colon belongs to an id,
/// such as `urn:x:1`, and so does one that is written `%3A`.
fn action<'a>(path: &'a str, actions: &[&str]) -> (&'a str, &'a str) {
    path.rsplit_once(':').filter(|it| actions.contains(&it.1)).unwrap_or((path, ""))
}

/// Decodes the segments of a path, and says how many there are. Of those that are too many none is decoded.
fn segments<'a>(path: &'a str, decoded: &mut [Cow<'a, str>; SEGMENTS]) -> Result<usize, Error> {
    let mut count = 0;
    for segment in path.strip_prefix('/').unwrap_or(path).split('/') {
        if let Some(place) = decoded.get_mut(count) {
            let wrong = |_| Error::invalid_params("the path is not in UTF-8");
            let plain = !segment.as_bytes().contains(&b'%');
            *place = if plain { segment.into() } else { percent_decode_str(segment).decode_utf8().map_err(wrong)? };
        }
        count += 1;
    }
    Ok(count)
}

/// Checks that the body has a JSON content type. The content type of an empty body is ignored.
fn json<'a>(headers: &HeaderMap, body: &'a Bytes) -> Result<&'a [u8], Error> {
    match media_type(headers) {
        None if !body.is_empty() => Err(missing_media_type()),
        Some(it) if !body.is_empty() && !is(it, &JSON) && !is(it, &A2A_JSON) => Err(ErrorKind::ContentTypeNotSupported
            .because(format!("`{}` is not taken, but application/json and application/a2a+json are", brief(it)))),
        _ => Ok(body),
    }
}

fn is(media_type: &str, json: &HeaderValue) -> bool {
    media_type.as_bytes().eq_ignore_ascii_case(json.as_bytes())
}

/// A body that is one field, as an object that has it.
fn member(name: &str, body: &[u8]) -> Result<Vec<u8>, Error> {
    // It has to be one value: text that is put between braces could else bring members of its own.
    let value: &RawValue = serde_json::from_slice(body).map_err(|e| ErrorKind::Parse.because(e.to_string()))?;
    Ok(format!("{{\"{name}\":{value}}}").into_bytes())
}

/// The type of a reply: what is asked for by name, ours before the general one; else that of the request. 0.3 has none
/// of its own.
fn reply_type(headers: &HeaderMap, version: Version) -> HeaderValue {
    if version == Version::V0_3 {
        return JSON;
    }
    let lines = headers.get_all(header::ACCEPT).into_iter().filter_map(|it| it.to_str().ok());
    let mut general = false;
    for range in lines.flat_map(|it| it.split(',')) {
        let name = range.split(';').next().unwrap_or_default().trim();
        if is(name, &A2A_JSON) {
            return A2A_JSON;
        }
        general |= is(name, &JSON);
    }
    if !general && media_type(headers).is_some_and(|it| is(it, &A2A_JSON)) { A2A_JSON } else { JSON }
}

/// Refuses a call. It is JSON by its general name, since a client of another make reads errors under no other.
pub(super) fn status_response(status: Status, version: Version) -> Response<Body> {
    let (error, headers) = error_parts(status);
    let wire = error.wire_for(version);
    let status = StatusCode::from_u16(wire.http).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = respond(status, headers, JSON, error.problem_for(version).to_string().into());
    record_outcome(&mut response, None, Some(wire.reason));
    response
}

fn write(out: &mut Vec<u8>, item: Result<&JsonLine, &Error>, version: Version) {
    match item {
        Ok(line) => line.append_to(out),
        Err(error) => out.put_slice(error.problem_for(version).to_string().as_bytes()),
    }
}
