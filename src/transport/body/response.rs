//! HTTP responses: headers from gRPC metadata, headers of errors, and details for the request log.

use std::{borrow::Cow, error::Error as _};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header, request::Parts};
use serde::{Deserialize, de::IgnoredAny};
use tonic::{Status, metadata::MetadataMap};
use tonic_types::StatusExt as _;

use crate::{
    base::trace,
    protocol::{Error, ErrorKind, Version, validate::Violation},
    transport::{Body, brief, media_type::JSON},
};

/// Converts the response metadata of a service to headers.
pub(in crate::transport) fn headers(metadata: MetadataMap) -> HeaderMap {
    let mut headers = metadata.into_headers();
    if !headers.is_empty() {
        remove_framing(&mut headers);
        for name in [header::CONTENT_TYPE, Status::GRPC_STATUS, Status::GRPC_MESSAGE, Status::GRPC_STATUS_DETAILS] {
            headers.remove(name);
        }
    }
    headers
}

/// Removes headers that frame an HTTP message, such as `Content-Length`. A service that set one would break the response.
pub(in crate::transport) fn remove_framing(headers: &mut HeaderMap) {
    const FRAMING: [HeaderName; 9] = [
        header::CONTENT_LENGTH,
        header::CONTENT_ENCODING,
        header::TRANSFER_ENCODING,
        header::CONNECTION,
        header::UPGRADE,
        header::TRAILER,
        header::TE,
        header::DATE,
        HeaderName::from_static("keep-alive"),
    ];
    for name in FRAMING {
        headers.remove(name);
    }
}

/// Converts a status to its error and the headers of the error response: `Retry-After`, `WWW-Authenticate` and others.
pub(in crate::transport) fn error_parts(mut status: Status) -> (Error, HeaderMap) {
    let mut headers = headers(std::mem::take(status.metadata_mut()));
    let error = Error::from(status);
    if let Some(seconds) = error.retry_after_seconds() {
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    if error.kind() == ErrorKind::RequestTimeout {
        // RFC 9110, 15.5.9. Over HTTP/2, hyper removes it.
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    if let Some(challenge) = error.challenge_text().and_then(|text| HeaderValue::from_str(text).ok()) {
        headers.insert(header::WWW_AUTHENTICATE, challenge);
    }
    (error, headers)
}

/// Adds a hint to the error of a send whose parameters are a bare message, a common mistake: the message belongs in the
/// member `path`.
pub(in crate::transport) fn hint_at_bare_message(mut status: Status, params: &[u8], path: &str) -> Status {
    /// Members that identify a message. Only `message` is a member of a send.
    #[derive(Deserialize)]
    struct Sent {
        message: Option<IgnoredAny>,
        role: Option<IgnoredAny>,
        parts: Option<IgnoredAny>,
    }
    let error = status.source().and_then(|source| source.downcast_ref::<Error>());
    let is_missing = |violation: &Violation| violation.field == "message";
    let Some(error) = error.filter(|error| error.violations().iter().any(is_missing)) else { return status };
    let sent = serde_json::from_slice::<Sent>(params);
    if !sent.is_ok_and(|sent| sent.message.is_none() && (sent.role.is_some() || sent.parts.is_some())) {
        return status;
    }
    let description = format!("is required; a bare Message was sent, which belongs in {path}");
    let mut explained = Status::from(error.clone().explained("message", description));
    *explained.metadata_mut() = std::mem::take(status.metadata_mut());
    explained
}

/// Builds a response with a complete body.
pub(in crate::transport) fn respond(
    status: StatusCode,
    mut headers: HeaderMap,
    content_type: HeaderValue,
    data: Bytes,
) -> Response<Body> {
    headers.insert(header::CONTENT_TYPE, content_type);
    let mut response = Response::new(Body::from(data));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// Builds a response without a body.
pub(in crate::transport) fn status(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::default());
    *response.status_mut() = status;
    response
}

/// Builds the error response for a path that does not exist.
pub(in crate::transport) fn not_found(parts: &Parts) -> Response<Body> {
    let reason = format!("{} {}", parts.method, brief(parts.uri.path()));
    status_response(ErrorKind::MethodNotFound.because(reason).into(), Version::V1_0)
}

/// Builds the error response for a status. Its content type is `application/json`, since some clients parse errors of no
/// other type.
pub(in crate::transport) fn status_response(status: Status, version: Version) -> Response<Body> {
    let (error, headers) = error_parts(status);
    let wire = error.wire_for(version);
    let status = StatusCode::from_u16(wire.http).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = respond(status, headers, JSON, error.problem_for(version).to_string().into());
    record_outcome(&mut response, None, Some(wire.reason));
    response
}

/// `tracing` target of the request log.
pub(crate) const REQUEST_LOG: &str = "a2a_service::request";

/// Details of a call for its line in the request log, passed in the extensions of the response.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallOutcome {
    /// JSON-RPC method as the client wrote it.
    pub(crate) method: Option<String>,
    /// `google.rpc.ErrorInfo.reason`.
    pub(crate) reason: Option<Cow<'static, str>>,
    pub(crate) grpc_status: Option<u16>,
}

impl CallOutcome {
    /// Records the status in the headers or the trailers of a gRPC response.
    pub(crate) fn record_grpc(&mut self, headers: &HeaderMap) {
        let code = headers.get(Status::GRPC_STATUS).and_then(|value| value.to_str().ok()?.parse().ok());
        self.grpc_status = code.or(self.grpc_status);
        if code.is_some_and(|code| code != 0) {
            let details = Status::from_header_map(headers).map(|status| status.get_error_details());
            self.reason = details.and_then(|details| Some(details.error_info()?.reason.clone().into()));
        }
    }
}

/// Records the JSON-RPC method of a call, or the reason of its error, for its line in the request log.
pub(in crate::transport) fn record_outcome(
    response: &mut Response<Body>,
    method: Option<&str>,
    reason: Option<&'static str>,
) {
    if !tracing::enabled!(target: REQUEST_LOG, tracing::Level::INFO) && !trace::is_used() {
        return;
    }
    let outcome = response.extensions_mut().get_or_insert_with(CallOutcome::default);
    outcome.method = method.map(brief).or(outcome.method.take());
    outcome.reason = reason.map(Cow::Borrowed).or(outcome.reason.take());
}
