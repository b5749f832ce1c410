//! OAuth 2.0 Protected Resource Metadata (RFC 9728): tells a client without a valid token which issuers have them.

use bytes::Bytes;
use http::{HeaderMap, Response, request::Parts};
use serde_json::json;

use super::card::{card_request, respond_with_public};
use crate::{
    protocol::{
        call::{ADMIN, CARD_EXTENDED, PUSH_WRITE, TASKS_READ, TASKS_WRITE},
        error::{BEARER, Error},
    },
    transport::{Body, ProtectedResource, body::response::not_found, classify::PROTECTED_RESOURCE},
};

impl ProtectedResource {
    /// Adds the URL of the metadata to the challenge for a bearer token (`resource_metadata`, RFC 9728, 5.1).
    pub(in crate::transport) fn challenge(&self, error: Error, parts: &Parts) -> Error {
        let challenge = error.challenge_text().filter(|challenge| challenge.contains(BEARER)).map(str::to_owned);
        let Some((challenge, url)) = challenge.zip(self.url(parts)) else { return error };
        error.challenge(challenge.replacen(BEARER, &format!("{BEARER}, resource_metadata=\"{url}\""), 1))
    }

    /// Returns the URL of the metadata for the client of a request. `None` if the URL of the server is unknown.
    fn url(&self, parts: &Parts) -> Option<String> {
        let base = (self.base_url)(&card_request(parts))?;
        // A URL with characters that end the parameter of a challenge is not one that a client could use.
        Some(format!("{}{PROTECTED_RESOURCE}", base.trim_end_matches('/'))).filter(|url| !url.contains(['"', '\\']))
    }

    fn document(&self, parts: &Parts) -> Option<Bytes> {
        let resource = (self.base_url)(&card_request(parts))?;
        let document = json!({
            "resource": resource,
            "authorization_servers": self.issuers,
            "scopes_supported": [TASKS_READ, TASKS_WRITE, PUSH_WRITE, CARD_EXTENDED, ADMIN],
            "bearer_methods_supported": ["header"],
        });
        Some(document.to_string().into())
    }
}

/// Responds with the metadata, which is as public as the agent card. Without an issuer, the resource does not exist.
pub(in crate::transport) fn respond_with_metadata(
    resource: Option<&ProtectedResource>,
    parts: &Parts,
) -> Response<Body> {
    let Some(document) = resource.and_then(|resource| resource.document(parts)) else { return not_found(parts) };
    respond_with_public(document, "application/json", parts, HeaderMap::new())
}
