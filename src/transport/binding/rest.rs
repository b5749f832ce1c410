//! HTTP+JSON (REST) binding (section 11): routes from `google.api.http`, ProtoJSON messages, streams as server-sent events,
//! errors as `google.rpc.Status`.

use std::{borrow::Cow, convert::Infallible};

use bytes::{BufMut as _, Bytes};
use http::{Extensions, Method, Response, StatusCode, request::Parts};
use percent_encoding::percent_decode_str;
use serde_json::value::RawValue;
use tonic::{
    Status,
    metadata::{MetadataMap, MetadataValue},
};

use super::sse;
use crate::{
    protocol::{
        Error, ErrorKind, Version,
        json::check_json,
        rpc::{BodyMapping, Dispatch, JsonLine, ParamSource, Params, Reply, Request, Route},
    },
    transport::{
        RequestBody,
        body::{
            self, Body, BodyLimits,
            response::{headers, hint_at_bare_message, respond, status_response},
        },
        brief, is_resumption,
        media_type::{self, reply_type},
    },
};

/// Maximum number of path segments of a route.
const MAX_SEGMENTS: usize = 8;

/// Serves a REST request, and rejects unknown routes. `checked` is the result of the checks of version and deadline. The
/// extensions of the request are its `Call` alone.
///
/// No `async fn`: its future would store the arguments twice.
pub(in crate::transport) fn serve<T: Dispatch, B: RequestBody>(
    binding: T,
    mut parts: Parts,
    body: B,
    limits: BodyLimits,
    checked: Result<(), Error>,
    version: Version,
) -> impl Future<Output = Result<Response<Body>, Infallible>> + Send {
    let extensions = std::mem::take(&mut parts.extensions);
    let resumes = is_resumption(&extensions);
    let route = find_route::<T>(&parts.method, parts.uri.path());
    let route = route.and_then(|route| checked.map(|()| route).map_err(Status::from));
    async move {
        // A body is read even if the route has none: the next request of the connection follows it.
        let body = body::read(&parts.headers, body, &limits, 0).await;
        let reply = match build_request(&parts, route, &body, extensions) {
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

/// Builds the request of a route.
fn build_request<'a, R>(
    parts: &'a Parts,
    route: Result<Route<R>, Status>,
    body: &'a Result<Bytes, Error>,
    extensions: Extensions,
) -> Result<(R, Request<'a>), Status> {
    let Route { rpc, body: mapping, fields } = route?;
    let body = body.as_ref().map_err(Error::clone)?;
    check_json(body).map_err(Error::from)?;
    let query = parts.uri.query().unwrap_or_default();
    let source = match mapping {
        BodyMapping::None => ParamSource::Query(query.into()),
        BodyMapping::Whole => ParamSource::Json(Cow::Borrowed(media_type::checked_for_rest(&parts.headers, body)?)),
        BodyMapping::Field(name) => {
            ParamSource::Json(Cow::Owned(wrap_member(name, media_type::checked_for_rest(&parts.headers, body)?)?))
        }
        BodyMapping::Anywhere => {
            ParamSource::Both(Cow::Borrowed(media_type::checked_for_rest(&parts.headers, body)?), query)
        }
    };
    // The service gets no headers: its part of them is in the `Call`.
    Ok((rpc, tonic::Request::from_parts(MetadataMap::new(), extensions, Params { source, path: fields })))
}

/// Returns the name of the RPC of a request line.
pub(in crate::transport) fn operation<T: Dispatch>(method: &Method, path: &str) -> Option<&'static str> {
    find_route::<T>(method, path).ok().map(|route| T::name(route.rpc))
}

/// Finds the route of a request line. The error for a path with other methods lists them in `allow` (RFC 9110, 15.5.6).
fn find_route<T: Dispatch>(method: &Method, path: &str) -> Result<Route<T::Rpc>, Status> {
    // HEAD is supported wherever GET is (RFC 9110, 9.1).
    let verb = if *method == Method::HEAD { "GET" } else { method.as_str() };
    let request_line = || brief(&format!("{method} {path}"));
    let path = path.strip_suffix('/').unwrap_or(path);
    // A suffix that is no custom verb of this path is the end of an id.
    for (stem, custom_verb) in [split_custom_verb(path, T::CUSTOM_VERBS), (path, "")] {
        if let Some(route) = match_route::<T>(verb, stem, custom_verb)? {
            return Ok(route);
        }
        let mut verbs = Vec::new();
        for verb in T::VERBS {
            if match_route::<T>(verb, stem, custom_verb)?.is_some() {
                verbs.push(*verb);
            }
        }
        if !verbs.is_empty() {
            let mut status = Status::from(ErrorKind::VerbNotAllowed.because(request_line()));
            let verbs = verbs.join(", ").replace("GET", "GET, HEAD");
            // Metadata of a status is sent as headers.
            if let Ok(verbs) = MetadataValue::try_from(verbs) {
                status.metadata_mut().insert("allow", verbs);
            }
            return Err(status);
        }
    }
    let hint = hint::<T>(path)?.map(|hint| format!("; use {hint}")).unwrap_or_default();
    Err(ErrorKind::MethodNotFound.because(request_line() + &hint).into())
}

/// Suggests a route for a path with a slash before the custom verb: `/message:send` for `/message/send`.
fn hint<T: Dispatch>(path: &str) -> Result<Option<String>, Error> {
    let Some((stem, custom_verb)) = path.rsplit_once('/').filter(|(_, verb)| T::CUSTOM_VERBS.contains(verb)) else {
        return Ok(None);
    };
    for verb in T::VERBS {
        if match_route::<T>(verb, stem, custom_verb)?.is_some() {
            return Ok(Some(brief(&format!("{verb} {stem}:{custom_verb}"))));
        }
    }
    Ok(None)
}

/// Returns the route of an HTTP method, a path and a custom verb.
fn match_route<T: Dispatch>(verb: &str, path: &str, custom_verb: &str) -> Result<Option<Route<T::Rpc>>, Error> {
    let mut decoded: [Cow<'_, str>; MAX_SEGMENTS] = Default::default();
    let count = decode_segments(path, &mut decoded)?;
    let segments: [&str; MAX_SEGMENTS] = std::array::from_fn(|index| &*decoded[index]);
    Ok(segments.get(..count).and_then(|segments| T::route(verb, segments, custom_verb)))
}

/// Splits a path such as `/tasks/42:cancel` at its custom verb. Any other colon belongs to an id, such as `urn:x:1`, and so
/// does the encoded form `%3A`.
fn split_custom_verb<'a>(path: &'a str, custom_verbs: &[&str]) -> (&'a str, &'a str) {
    path.rsplit_once(':').filter(|(_, suffix)| custom_verbs.contains(suffix)).unwrap_or((path, ""))
}

/// Decodes the first segments of a path. Returns the number of all its segments.
fn decode_segments<'a>(path: &'a str, decoded: &mut [Cow<'a, str>; MAX_SEGMENTS]) -> Result<usize, Error> {
    let mut count = 0;
    for segment in path.strip_prefix('/').unwrap_or(path).split('/') {
        if let Some(slot) = decoded.get_mut(count) {
            let invalid = |_| Error::invalid_params("the path is not valid UTF-8");
            *slot = percent_decode_str(segment).decode_utf8().map_err(invalid)?;
        }
        count += 1;
    }
    Ok(count)
}

/// Wraps a body that is the value of one member in an object.
fn wrap_member(name: &str, body: &str) -> Result<String, Error> {
    // Parsed as one value, so that the text cannot add members to the object.
    let value: &RawValue = serde_json::from_str(body).map_err(|error| ErrorKind::Parse.because(error.to_string()))?;
    Ok(format!("{{\"{name}\":{value}}}"))
}

fn write(out: &mut Vec<u8>, item: Result<&JsonLine, &Error>, version: Version) {
    match item {
        Ok(line) => line.append_to(out),
        Err(error) => out.put_slice(error.problem_for(version).to_string().as_bytes()),
    }
}
