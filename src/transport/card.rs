//! The card as HTTP has it: for whom it was made, how long it holds, and whether the client has it already (8.6).

use std::net::SocketAddr;

use axum::extract::{ConnectInfo, OriginalUri};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header, request::Parts, uri};
use jiff::{
    Timestamp,
    fmt::rfc2822::{DateTimeParser, DateTimePrinter},
};

use super::{Body, base_path::PathPrefix, response::respond, rest};
use crate::{
    call::{self, Call},
    card::{
        AGENT_CARD, CardRequest, FORWARDED_HOST, FORWARDED_PORT, FORWARDED_PREFIX, FORWARDED_PROTO, JSON_RPC,
        WELL_KNOWN, WELL_KNOWN_BEFORE,
    },
    clock::Clock,
    error::Error,
    fingerprint::fingerprint,
    pb::v1::bindings::ServiceHandle,
    protocol::Version,
    v03,
};

/// Long enough that a client that calls often reads the card rarely, and short enough that one whose agent has moved is
/// not lost for long: to ask again whether it still holds costs next to nothing.
const CACHE: HeaderValue = HeaderValue::from_static("public, max-age=300");

/// Pages of other origins may read what everybody may: a tool in a browser that is pointed at an agent begins here.
const ANYBODY: HeaderValue = HeaderValue::from_static("*");

/// Collects what the card may depend on from a request.
fn card_request(parts: &Parts) -> CardRequest<'_> {
    let path = parts.uri.path();
    let whole = parts.extensions.get::<OriginalUri>().map_or(path, |it| it.0.path());
    let prefix = parts.extensions.get::<PathPrefix>().map(|it| &*it.0);
    let prefix = prefix.unwrap_or_else(|| whole.strip_suffix(path).unwrap_or_default());
    let path = card_below_json_rpc(path).unwrap_or(path);
    let header = parts.headers.get(header::HOST).and_then(|it| it.to_str().ok());
    let authority = parts.uri.authority().map(uri::Authority::as_str);
    let (host, target) =
        if parts.version >= http::Version::HTTP_2 { (authority.or(header), None) } else { (header, authority) };
    let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|it| it.0.ip());
    CardRequest { path, prefix, host, target, peer, query: parts.uri.query(), headers: &parts.headers }
}

/// When the server started, which is when its card became what it is.
pub(super) struct CardDates {
    time: Timestamp,
    text: Option<HeaderValue>,
}

impl CardDates {
    pub(super) fn now() -> Self {
        let time = Timestamp::from_second(Clock::new().millis().div_euclid(1000)).unwrap_or_default();
        let text = DateTimePrinter::new().timestamp_to_rfc9110_string(&time).ok();
        Self { time, text: text.and_then(|it| it.parse().ok()) }
    }
}

/// The card is for everybody: it has no `Call`, and no caller is asked who they are.
pub(super) fn respond_with_card(card: &super::CardSource, started: &CardDates, parts: &Parts) -> Response<Body> {
    let card = card(&card_request(parts));
    let tag = tag(&card);
    let mut headers = HeaderMap::new();
    let known = known(&parts.headers, &tag, started);
    // Hexadecimal digits in quotes are a value.
    if let Ok(tag) = HeaderValue::try_from(tag) {
        headers.insert(header::ETAG, tag);
    }
    headers.insert(header::CACHE_CONTROL, CACHE);
    headers.insert(header::VARY, vary());
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, ANYBODY);
    if let Some(text) = &started.text {
        headers.insert(header::LAST_MODIFIED, text.clone());
    }
    if known {
        let mut response = Response::new(Body::default());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        *response.headers_mut() = headers;
        return response;
    }
    if parts.method == Method::HEAD {
        headers.insert(header::CONTENT_LENGTH, card.len().into());
    }
    let body = if parts.method == Method::HEAD { Bytes::new() } else { card };
    respond(StatusCode::OK, headers, HeaderValue::from_static("application/json"), body)
}

/// The path of a card without the prefix of JSON-RPC: some clients request the card below the URL of the interface that
/// they are given.
pub(super) fn card_below_json_rpc(path: &str) -> Option<&str> {
    let below = [JSON_RPC, "/a2a"].iter().find_map(|it| path.strip_prefix(it))?;
    let known = matches!(below.strip_suffix('/').unwrap_or(below), WELL_KNOWN | WELL_KNOWN_BEFORE | AGENT_CARD);
    known.then_some(below)
}

/// Where 0.2 has the card for authenticated callers: `{url}/../agent/authenticatedExtendedCard` of every URL of JSON-RPC
/// (0.2, 7.10), resolved as URLs are (RFC 3986, 5.2.4) or with its dots, as clients send it that resolve nothing.
pub(super) fn is_extended(path: &str) -> bool {
    let Some(base) = path.strip_suffix("/agent/authenticatedExtendedCard") else { return false };
    matches!(base.strip_suffix("/..").unwrap_or(base).trim_end_matches('/'), "" | JSON_RPC | "/a2a")
}

/// The card for authenticated callers, or why they have none, as the status says it.
pub(super) async fn respond_with_extended_card(
    service: &ServiceHandle,
    parts: &Parts,
    admitted: Result<(), Error>,
) -> Response<Body> {
    let call = || parts.extensions.get::<Call>().cloned().unwrap_or_default();
    let card = match admitted {
        Ok(()) => v03::card::extended(&*service.0, call()).await,
        Err(error) => Err(error),
    };
    match card {
        Ok(card) => {
            let headers = HeaderMap::from_iter([(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))]);
            respond(StatusCode::OK, headers, HeaderValue::from_static("application/json"), card.into())
        }
        Err(error) => rest::status_response(error.into(), Version::V0_3),
    }
}

/// What a browser is told that asks before it asks, since it has headers of ours to send.
pub(super) fn preflight() -> Response<Body> {
    let mut response = Response::new(Body::default());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let verbs = HeaderValue::from_static("GET, HEAD");
    let headers = response.headers_mut();
    headers.insert(header::ALLOW, verbs.clone());
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, ANYBODY);
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, verbs);
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, ANYBODY);
    response
}

/// Whether the client has this card. What it knows by name counts before what it knows by date (RFC 9110, 13.2.2).
fn known(headers: &HeaderMap, tag: &str, started: &CardDates) -> bool {
    if headers.contains_key(header::IF_NONE_MATCH) {
        let lines = headers.get_all(header::IF_NONE_MATCH).into_iter().filter_map(|it| it.to_str().ok());
        let mut tags = lines.flat_map(|it| it.split(',')).map(str::trim);
        return tags.any(|it| it == "*" || it.strip_prefix("W/").unwrap_or(it) == tag);
    }
    let since = headers.get(header::IF_MODIFIED_SINCE).and_then(|it| it.to_str().ok());
    let since = since.and_then(|it| DateTimeParser::new().parse_timestamp(it).ok());
    since.is_some_and(|it| started.time <= it)
}

/// A strong name of these bytes.
fn tag(bytes: &[u8]) -> String {
    format!("\"{:032x}\"", fingerprint(bytes))
}

/// What a card may differ by: the URL that was asked for, and the version of the protocol. Each name costs a cache a
/// variant at most, and one that is missing would give a client the URLs of another.
fn vary() -> HeaderValue {
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
    fn the_second_card_is_beside_json_rpc() {
        for base in ["", "/", "/..", "//..", "/rpc", "/rpc/", "/rpc/..", "/rpc//..", "/a2a/.."] {
            assert!(is_extended(&format!("{base}/agent/authenticatedExtendedCard")), "{base}");
        }
        for path in [
            "/agent",
            "/authenticatedExtendedCard",
            "/acme/agent/authenticatedExtendedCard",
            "/agent/authenticatedExtendedCard/x",
        ] {
            assert!(!is_extended(path), "{path}");
        }
    }

    #[test]
    fn a_card_is_below_the_url_of_json_rpc() {
        for base in ["/rpc", "/a2a"] {
            for path in [WELL_KNOWN, WELL_KNOWN_BEFORE, AGENT_CARD] {
                assert_eq!(card_below_json_rpc(&format!("{base}{path}")), Some(path));
            }
        }
        for path in [WELL_KNOWN, "/rpc", "/rpc/.well-known", "/rpcs/.well-known/agent-card.json", "/acme/agent-card"] {
            assert_eq!(card_below_json_rpc(path), None, "{path}");
        }
    }

    #[test]
    fn a_name_is_that_of_the_bytes() {
        // The test vectors of the draft (draft-eastlake-fnv).
        assert_eq!(tag(b""), "\"6c62272e07bb014262b821756295c58d\"");
        assert_eq!(tag(b"a"), "\"d228cb696f1a8caf78912b704e4a8964\"");
        assert_ne!(tag(b"ab"), tag(b"ba"));
    }
}
