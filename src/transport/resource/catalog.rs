//! Catalog of the agents of a server over HTTP: `/agents`, and the AI Catalog at `/.well-known/ai-catalog.json`. Its content is
//! made by the server (`server/catalog.rs`).

use http::{HeaderMap, HeaderValue, Response, header, request::Parts};

use super::card::{PRIVATE_CACHE, card_request, respond_with_public, vary};
use crate::{
    protocol::call::Principal,
    transport::{Body, CatalogSource, Settings, body::response::not_found, classify::AGENTS},
};

/// Media type of an AI Catalog.
const MEDIA_TYPE: &str = "application/ai-catalog+json";

/// Responds with the agents that the caller may use. Without a source, the resource does not exist.
pub(in crate::transport) fn respond_with_catalog(
    source: Option<&CatalogSource>,
    settings: &Settings,
    parts: &Parts,
) -> Response<Body> {
    let Some(source) = source else { return not_found(parts) };
    let principal = parts.extensions.get::<Principal>();
    let catalog = source(&card_request(parts), principal);
    let media_type = if parts.uri.path().starts_with(AGENTS) { "application/json" } else { MEDIA_TYPE };
    let headers = HeaderMap::from_iter([(header::VARY, vary())]);
    let mut response = respond_with_public(catalog, media_type, parts, headers);
    if settings.protects_catalog {
        response.headers_mut().remove(header::ACCESS_CONTROL_ALLOW_ORIGIN);
        response.headers_mut().insert(header::CACHE_CONTROL, PRIVATE_CACHE);
        response.headers_mut().append(header::VARY, HeaderValue::from_static("authorization"));
    }
    response
}
