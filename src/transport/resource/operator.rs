//! Operator API over HTTP, below `/operator`: its routes, and who may use them. Responses are never stored, and no page of another
//! origin can read them. `service/operator.rs` has their content.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header, request::Parts};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

pub(in crate::transport) use crate::transport::body::response::not_found;
use crate::{
    protocol::{Error, ErrorKind, Version, call::Principal},
    service::operator::{Access, Operator},
    transport::{
        NotReady, ReadinessCheck, RequestBody,
        body::{
            self, Body, BodyLimits,
            response::{respond as respond_with, status_response},
        },
        media_type::JSON,
        peer,
    },
};

/// Marks a request of a client on this machine to a server without authentication.
#[derive(Clone, Copy)]
pub(in crate::transport) struct LocalOperator;

/// Headers of proxies, besides those that begin with `x-forwarded`.
const PROXY_HEADERS: [HeaderName; 6] = [
    header::FORWARDED,
    header::VIA,
    HeaderName::from_static("x-real-ip"),
    HeaderName::from_static("x-client-ip"),
    HeaderName::from_static("true-client-ip"),
    HeaderName::from_static("cf-connecting-ip"),
];

/// Returns true if the connection of a request is from a loopback address, and no header says that a proxy has forwarded it. Many
/// proxies add no such header: what this opens may be seen by their clients.
pub(in crate::transport) fn is_from_this_machine(parts: &Parts) -> bool {
    let is_of_proxy = |name: &HeaderName| name.as_str().starts_with("x-forwarded") || PROXY_HEADERS.contains(name);
    peer(parts).is_some_and(|peer| peer.ip().to_canonical().is_loopback()) && !parts.headers.keys().any(is_of_proxy)
}

/// Responds to a request of an operator. `state` is the drain and the readiness of the server.
pub(in crate::transport) async fn respond<B: RequestBody>(
    operator: Arc<Operator>,
    state: (CancellationToken, ReadinessCheck),
    parts: Parts,
    body: B,
    limits: BodyLimits,
) -> Response<Body> {
    let body = body::read(&parts.headers, body, &limits, 0).await;
    let principal = parts.extensions.get::<Principal>();
    let is_local = parts.extensions.get::<LocalOperator>().is_some();
    let access = operator.access(&parts.headers, principal, is_local);
    let mut response = match (access, body) {
        (Ok(access), Ok(_)) => match route(&operator, state, access, &parts).await {
            Ok(value) => respond_with(StatusCode::OK, HeaderMap::new(), JSON, value.to_string().into()),
            Err(error) => status_response(error.into(), Version::V1_0),
        },
        (Err(error), _) | (_, Err(error)) => status_response(error.into(), Version::V1_0),
    };
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

async fn route(
    operator: &Operator,
    (drain, ready): (CancellationToken, ReadinessCheck),
    access: Access,
    parts: &Parts,
) -> Result<Value, Error> {
    let path = parts.uri.path().trim_start_matches("/operator").trim_matches('/');
    match path {
        "status" => {
            let ready = if drain.is_cancelled() { Err(NotReady::Draining) } else { ready().await };
            let reason = ready.err().map(|reason| reason.to_string());
            Ok(operator.status(access, drain.is_cancelled(), reason).await)
        }
        _ => Err(ErrorKind::MethodNotFound.because(format!("{} {}", parts.method, parts.uri.path()))),
    }
}
