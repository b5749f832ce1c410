//! Agent card over HTTP: paths, caching (`ETag`, `Last-Modified`, `Vary`), CORS, and the extended card of 0.2 (8.6).

use axum::extract::OriginalUri;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header, request::Parts, uri};
use jiff::{
    Timestamp,
    fmt::rfc2822::{DateTimeParser, DateTimePrinter},
};

use crate::{
    base::clock::Clock,
    protocol::{
        Error, Version,
        call::{self, Call},
        pb::v1::bindings::ServiceHandle,
        rpc::fingerprint,
        v03,
    },
    service::card::{FORWARDED_HOST, FORWARDED_PORT, FORWARDED_PREFIX, FORWARDED_PROTO, RequestOrigin},
    transport::{
        Body, Settings,
        body::response::{respond, status, status_response},
        classify::card_below_json_rpc,
        peer,
        pipeline::base_path::PathPrefix,
    },
};

/// A client that calls often rarely fetches the card, and one whose agent has moved recovers within 5 minutes. Revalidation
/// is cheap.
const CACHE_CONTROL: HeaderValue = HeaderValue::from_static("public, max-age=300");

/// The card is public, so pages of every origin may read it. Browser-based tools fetch it first.
const ANY_ORIGIN: HeaderValue = HeaderValue::from_static("*");

/// Collects the parts of a request that the card depends on.
pub(in crate::transport) fn card_request(parts: &Parts) -> RequestOrigin<'_> {
    let path = parts.uri.path();
    let whole = parts.extensions.get::<OriginalUri>().map_or(path, |uri| uri.0.path());
    let prefix = parts.extensions.get::<PathPrefix>().map(|prefix| &*prefix.path);
    let prefix = prefix.unwrap_or_else(|| whole.strip_suffix(path).unwrap_or_default());
    let path = card_below_json_rpc(path).unwrap_or(path);
    let header = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let authority = parts.uri.authority().map(uri::Authority::as_str);
    let (host, target) =
        if parts.version >= http::Version::HTTP_2 { (authority.or(header), None) } else { (header, authority) };
    let peer = peer(parts).map(|peer| peer.ip());
    RequestOrigin { path, prefix, host, target, peer, query: parts.uri.query(), headers: &parts.headers }
}

/// Returns the modification time of the card, which is the start of the server.
pub(in crate::transport) fn last_modified(clock: Clock) -> Option<HeaderValue> {
    let time = Timestamp::from_second(clock.millis().div_euclid(1000)).ok()?;
    DateTimePrinter::new().timestamp_to_rfc9110_string(&time).ok()?.parse().ok()
}

/// Card that requires authentication: only the caches of its callers may have it, and they have to revalidate it.
pub(in crate::transport) const PRIVATE_CACHE: HeaderValue = HeaderValue::from_static("private, no-cache");

/// Responds with the card. There is no `Call`: its content does not depend on the caller.
pub(in crate::transport) fn respond_with_card(
    settings: &Settings,
    last_modified: Option<&HeaderValue>,
    parts: &Parts,
) -> Response<Body> {
    let card = (settings.card)(&card_request(parts));
    let last_modified = last_modified.filter(|_| !settings.card_changes);
    let headers = last_modified.map(|date| (header::LAST_MODIFIED, date.clone())).into_iter().collect();
    respond_as_public_as_card(settings, card, parts, headers)
}

/// Responds with JSON that is as public as the card.
pub(super) fn respond_as_public_as_card(
    settings: &Settings,
    content: Bytes,
    parts: &Parts,
    mut headers: HeaderMap,
) -> Response<Body> {
    headers.insert(header::VARY, vary());
    let mut response = respond_with_public(content, "application/json", parts, headers);
    if settings.protects_card {
        response.headers_mut().remove(header::ACCESS_CONTROL_ALLOW_ORIGIN);
        response.headers_mut().insert(header::CACHE_CONTROL, PRIVATE_CACHE);
    }
    response
}

/// Responds with a public resource, or with 304 if the client has it already. Pages of every origin may read it. `headers` are
/// those that only this resource has.
pub(in crate::transport) fn respond_with_public(
    content: Bytes,
    content_type: &'static str,
    parts: &Parts,
    mut headers: HeaderMap,
) -> Response<Body> {
    headers.insert(header::CACHE_CONTROL, CACHE_CONTROL);
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, ANY_ORIGIN);
    respond_with_tag(content, content_type, parts, headers)
}

/// Responds with a resource and its entity tag, or with 304 if the client has it already.
pub(super) fn respond_with_tag(
    content: Bytes,
    content_type: &'static str,
    parts: &Parts,
    mut headers: HeaderMap,
) -> Response<Body> {
    // Always succeeds: the tag consists of hexadecimal digits in quotes.
    if let Ok(tag) = HeaderValue::try_from(entity_tag(&content)) {
        headers.insert(header::ETAG, tag);
    }
    if is_not_modified(&parts.headers, &headers) {
        let mut response = status(StatusCode::NOT_MODIFIED);
        *response.headers_mut() = headers;
        return response;
    }
    respond(StatusCode::OK, headers, HeaderValue::from_static(content_type), content)
}

/// Responds with the card for authenticated callers, or an error in the form of 0.3.
pub(in crate::transport) async fn respond_with_extended_card(
    service: &ServiceHandle,
    parts: &Parts,
    checked: Result<(), Error>,
) -> Response<Body> {
    let call = || parts.extensions.get::<Call>().cloned().unwrap_or_default();
    let card = match checked {
        Ok(()) => v03::card::extended(&*service.0, call()).await,
        Err(error) => Err(error),
    };
    match card {
        Ok(card) => {
            let headers = HeaderMap::from_iter([(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))]);
            respond(StatusCode::OK, headers, HeaderValue::from_static("application/json"), card.into())
        }
        Err(error) => status_response(error.into(), Version::V0_3),
    }
}

/// Responds to the CORS preflight of a browser, which is needed for custom headers such as `A2A-Version`.
pub(in crate::transport) fn preflight() -> Response<Body> {
    let mut response = status(StatusCode::NO_CONTENT);
    let verbs = HeaderValue::from_static("GET, HEAD");
    let headers = response.headers_mut();
    headers.insert(header::ALLOW, verbs.clone());
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, ANY_ORIGIN);
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, verbs);
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, ANY_ORIGIN);
    response
}

/// Returns true if the client has the resource with these headers already. `If-None-Match` takes precedence over
/// `If-Modified-Since` (RFC 9110, 13.2.2).
fn is_not_modified(request: &HeaderMap, resource: &HeaderMap) -> bool {
    if request.contains_key(header::IF_NONE_MATCH) {
        let lines = request.get_all(header::IF_NONE_MATCH).into_iter().filter_map(|line| line.to_str().ok());
        let mut tags = lines.flat_map(|line| line.split(',')).map(str::trim);
        let tag = resource.get(header::ETAG).and_then(|tag| tag.to_str().ok());
        return tags.any(|known| known == "*" || Some(known.strip_prefix("W/").unwrap_or(known)) == tag);
    }
    let date = |value: &HeaderValue| DateTimeParser::new().parse_timestamp(value.to_str().ok()?).ok();
    let since = request.get(header::IF_MODIFIED_SINCE).and_then(date);
    resource.get(header::LAST_MODIFIED).and_then(date).zip(since).is_some_and(|(modified, since)| modified <= since)
}

/// Returns a strong entity tag of these bytes.
fn entity_tag(bytes: &[u8]) -> String {
    format!("\"{:032x}\"", fingerprint(bytes))
}

/// Returns the `Vary` header of resources that depend on the requested URL and the protocol version, as the card does.
/// Without one of these names, a cache could return the URLs of another client's request.
pub(super) fn vary() -> HeaderValue {
    const NAMES: [HeaderName; 7] = [
        header::HOST,
        header::FORWARDED,
        FORWARDED_HOST,
        FORWARDED_PORT,
        FORWARDED_PREFIX,
        FORWARDED_PROTO,
        call::VERSION,
    ];
    HeaderValue::try_from(NAMES.each_ref().map(HeaderName::as_str).join(", ")).unwrap_or(HeaderValue::from_static("*"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entity_tag_is_the_hash_of_the_bytes() {
        // Test vectors of draft-eastlake-fnv.
        assert_eq!(entity_tag(b""), "\"6c62272e07bb014262b821756295c58d\"");
        assert_eq!(entity_tag(b"a"), "\"d228cb696f1a8caf78912b704e4a8964\"");
        assert_ne!(entity_tag(b"ab"), entity_tag(b"ba"));
    }
}
