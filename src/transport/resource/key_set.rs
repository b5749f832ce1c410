//! Public keys of the server over HTTP: the JSON Web Key Set at `/.well-known/jwks.json`, with which receivers verify the
//! signed tokens of push notifications.

use bytes::Bytes;
use http::{HeaderMap, Response, request::Parts};

use super::card::respond_with_public;
use crate::transport::{Body, body::response::not_found};

/// Responds with the key set, which is as public as the agent card. Without keys, the resource does not exist.
pub(in crate::transport) fn respond_with_key_set(key_set: Option<&Bytes>, parts: &Parts) -> Response<Body> {
    let Some(key_set) = key_set else { return not_found(parts) };
    respond_with_public(key_set.clone(), "application/json", parts, HeaderMap::new())
}
