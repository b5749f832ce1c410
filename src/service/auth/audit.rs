//! Audit log: security-relevant events under one log target, with stable fields.
//!
//! Fields: `event`, `scheme`, `principal`, `owner`, `reason`, `peer`, `operation`, `request.id`; for the commands of
//! administrators also `object`, `count` and `user.id`. A field that an event lacks is left out. Secrets are in none.

use std::net::IpAddr;

use http::{HeaderMap, header};

use super::{CREDENTIALS, MISSING, SCHEME, mutual_tls};
use crate::{
    base::metric,
    protocol::{
        call::{Call, Principal},
        error::Error,
    },
};

/// Log target of the audit log.
pub(crate) const AUDIT: &str = "a2a_service::audit";

/// Logs that a request was not authenticated. `peer` is the address of the client.
pub(crate) fn authentication_failed(
    error: &Error,
    headers: &HeaderMap,
    operation: Option<&str>,
    peer: Option<IpAddr>,
    request_id: &str,
) {
    let scheme = error.metadata(SCHEME).or_else(|| scheme(headers));
    metric::AUTH_FAILURES.add(None, &[method(scheme), failure_class(error)], 1);
    tracing::warn!(
        target: AUDIT,
        event = "authentication_failed",
        scheme,
        operation,
        reason = error.to_string(),
        peer = peer.map(tracing::field::display),
        request.id = request_id,
    );
}

/// Returns the scheme of the credentials in `Authorization`. Other texts may be credentials without a scheme, and are not logged.
fn scheme(headers: &HeaderMap) -> Option<&'static str> {
    let (sent, _) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    ["basic", "bearer"].into_iter().find(|scheme| scheme.eq_ignore_ascii_case(sent))
}

/// Returns the label of a scheme in the metrics.
fn method(scheme: Option<&str>) -> &'static str {
    let known = [("bearer", "bearer"), ("basic", "basic"), (mutual_tls::NAME, "certificate")];
    let found = known.into_iter().find(|(name, _)| scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case(name)));
    found.map_or("other", |(_, label)| label)
}

/// Returns the label of the reason of a failure in the metrics.
fn failure_class(error: &Error) -> &'static str {
    match error.wire().http {
        401 if error.metadata(CREDENTIALS) == Some(MISSING) => "missing",
        401 => "invalid",
        403 => "forbidden",
        429 => "limited",
        503 => "unavailable",
        _ => "other",
    }
}

/// Logs that a principal lacks the permission for an operation.
pub(crate) fn permission_denied(principal: Option<&Principal>, call: Option<&Call>, operation: &str, error: &Error) {
    tracing::warn!(
        target: AUDIT,
        event = "permission_denied",
        principal = principal.map(|principal| &*principal.id),
        owner = principal.map(|principal| &*principal.owner),
        operation,
        reason = error.to_string(),
        peer = call.and_then(|call| call.peer).map(tracing::field::display),
        request.id = call.and_then(|call| call.request_id.as_deref()),
    );
}

/// Logs that an operator reads tasks or deliveries of all owners, or retries deliveries. `principal` is missing with the operator
/// token.
pub(crate) fn operator_access(
    operation: &str,
    principal: Option<&Principal>,
    peer: Option<IpAddr>,
    request_id: Option<&str>,
) {
    tracing::info!(
        target: AUDIT,
        event = "operator_access",
        principal = principal.map_or("operator", |principal| &*principal.id),
        operation,
        peer = peer.map(tracing::field::display),
        request.id = request_id,
    );
}

/// Logs the registration or the deletion of a push notification configuration.
pub(crate) fn push_changed(call: &Call, operation: &str) {
    let principal = call.principal.as_deref();
    tracing::info!(
        target: AUDIT,
        event = "push_configuration_changed",
        principal = principal.map(|principal| &*principal.id),
        owner = &*call.owner,
        operation,
        peer = call.peer.map(tracing::field::display),
        request.id = call.request_id.as_deref(),
    );
}

/// Logs that a token file was read again after a change.
#[cfg(feature = "auth")]
pub(crate) fn tokens_changed(path: &std::path::Path, count: usize) {
    tracing::info!(target: AUDIT, event = "tokens_changed", path = %path.display(), tokens = count);
}

/// Logs that a command of an administrator has changed or exported data: `count` tasks, tokens or push configurations. `object` is
/// the owner or the token that the command names. `user` is the number of the user of the operating system.
#[cfg(feature = "cli")]
pub(crate) fn administered(operation: &str, object: Option<&str>, count: u64, user: Option<u32>) {
    tracing::info!(target: AUDIT, event = "administered", operation, object, count, user.id = user);
}
