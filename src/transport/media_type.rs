//! Media types of requests and responses of the JSON bindings: the check of `Content-Type`, and what `Accept` selects.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};

use super::brief;
use crate::{
    base::decoding::content_encoding,
    protocol::{Error, ErrorKind, Version, json::check_json},
};

pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json");
const A2A_JSON: HeaderValue = HeaderValue::from_static("application/a2a+json");

/// Returns the content type of a request without its parameters, or `?` if it is not text.
pub(super) fn of(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::CONTENT_TYPE)?;
    if value == JSON {
        return Some("application/json");
    }
    Some(value.to_str().unwrap_or("?").split(';').next().unwrap_or_default().trim())
}

/// Returns the media types of `Accept`, without their parameters.
pub(super) fn accepted(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(header::ACCEPT).into_iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(|range| range.split(';').next().unwrap_or_default().trim())
}

/// Checks that a body has no content encoding, such as gzip: none is decoded.
///
/// # Errors
/// `ContentTypeNotSupported` if it has one. The status is 415 for every binding.
pub(super) fn check_encoding(headers: &HeaderMap) -> Result<(), Error> {
    match content_encoding(headers) {
        None => Ok(()),
        Some(name) => {
            let name = String::from_utf8_lossy(name);
            let reason = format!("content-encoding: `{}` is not supported; send the body as it is", brief(&name));
            Err(ErrorKind::ContentTypeNotSupported.because(reason))
        }
    }
}

/// Returns the error for a body without a `Content-Type`. Browsers let every page send one without a preflight.
fn missing() -> Error {
    const HINT: &str = "content-type: missing; add `-H 'content-type: application/json'`";
    ErrorKind::ContentTypeNotSupported.because(HINT)
}

/// Returns a body as text. Checks that it has a JSON content type, which is ignored for an empty body.
pub(super) fn checked_for_rest<'a>(headers: &HeaderMap, body: &'a Bytes) -> Result<&'a str, Error> {
    match of(headers) {
        None if !body.is_empty() => Err(missing()),
        Some(name) if !body.is_empty() && !is(name, &JSON) && !is(name, &A2A_JSON) => {
            let name = brief(name);
            let reason = format!("content-type: `{name}` is not application/json or application/a2a+json");
            Err(ErrorKind::ContentTypeNotSupported.because(reason))
        }
        _ => str::from_utf8(body).map_err(|error| ErrorKind::Parse.because(error.to_string())),
    }
}

/// Checks that a body is JSON by its content type and its syntax. An empty body is accepted without a content type, and
/// rejected as invalid JSON later.
pub(super) fn checked_for_rpc(headers: &HeaderMap, body: Bytes) -> Result<Bytes, Error> {
    match of(headers) {
        Some(media_type) if is_json(media_type) => Ok(check_json(&body).map(|()| body)?),
        Some(media_type) => {
            let reason = format!("content-type: `{}` is not application/json", brief(media_type));
            Err(ErrorKind::ContentTypeNotSupported.because(reason))
        }
        None if body.is_empty() => Ok(body),
        None => Err(missing()),
    }
}

/// Returns true for `application/json` and media types with the suffix `+json`, such as `application/a2a+json`.
pub(super) fn is_json(media_type: &str) -> bool {
    if media_type == "application/json" {
        return true;
    }
    let Some((kind, subtype)) = media_type.split_once('/') else { return false };
    let format = subtype.rsplit_once('+').map_or(subtype, |(_, suffix)| suffix);
    kind.eq_ignore_ascii_case("application") && format.eq_ignore_ascii_case("json")
}

/// Returns the content type of a response: `application/a2a+json` if `Accept` names it, else JSON if `Accept` names that,
/// else the type of the request. 0.3 has only `application/json`.
pub(super) fn reply_type(headers: &HeaderMap, version: Version) -> HeaderValue {
    if version == Version::V0_3 {
        return JSON;
    }
    let mut accepts_json = false;
    for name in accepted(headers) {
        if is(name, &A2A_JSON) {
            return A2A_JSON;
        }
        accepts_json |= is(name, &JSON);
    }
    if !accepts_json && of(headers).is_some_and(|name| is(name, &A2A_JSON)) { A2A_JSON } else { JSON }
}

fn is(media_type: &str, expected: &HeaderValue) -> bool {
    media_type.as_bytes().eq_ignore_ascii_case(expected.as_bytes())
}
