//! What answers over HTTP are made of, whichever binding they are for.

use std::error::Error as _;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use serde::{Deserialize, de::IgnoredAny};
use tonic::{Status, metadata::MetadataMap};

use super::Body;
use crate::{
    check::Violation,
    error::{Error, ErrorKind},
};

/// What a service sends along becomes headers.
pub(super) fn headers(metadata: MetadataMap) -> HeaderMap {
    let mut headers = metadata.into_headers();
    if !headers.is_empty() {
        keep_framing(&mut headers);
        for name in [header::CONTENT_TYPE, Status::GRPC_STATUS, Status::GRPC_MESSAGE, Status::GRPC_STATUS_DETAILS] {
            headers.remove(name);
        }
    }
    headers
}

/// How an answer is to be read is for HTTP to say, and for no service: another length than it has would break it.
pub(super) fn keep_framing(headers: &mut HeaderMap) {
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

/// The error in a status, and what goes beside it.
pub(super) fn explain(mut status: Status) -> (Error, HeaderMap) {
    let mut headers = headers(std::mem::take(status.metadata_mut()));
    let error = Error::from(status);
    if let Some(seconds) = error.retry_after_seconds() {
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    if error.kind() == ErrorKind::RequestTimeout {
        // RFC 9110, 15.5.9. Over HTTP/2, hyper takes it off again.
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    if let Some(challenge) = error.challenge_text().and_then(|it| HeaderValue::from_str(it).ok()) {
        headers.insert(header::WWW_AUTHENTICATE, challenge);
    }
    (error, headers)
}

/// Adds a hint to the error of a send whose parameters are the message itself, a common mistake: the member `message`
/// belongs at `place`.
pub(super) fn hint_at_bare_message(mut status: Status, params: &[u8], place: &str) -> Status {
    /// Members by which a message is recognized. None of them is one of a send.
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
    let description = format!("is required; a bare Message was sent, which belongs in {place}");
    let mut explained = Status::from(error.clone().explained("message", description));
    *explained.metadata_mut() = std::mem::take(status.metadata_mut());
    explained
}

/// An answer of one piece.
pub(super) fn respond(
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

/// An answer that has a status and no body.
pub(super) fn status(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::default());
    *response.status_mut() = status;
    response
}

/// `tracing` target of the request log.
pub(crate) const REQUEST_LOG: &str = "a2a_service::request";

/// Details of a call for its line in the request log, passed in the extensions of the response.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallOutcome {
    pub(crate) method: Option<String>,
    pub(crate) reason: Option<&'static str>,
}

/// Records the JSON-RPC method of a call, or the reason of its error, for its line in the request log.
pub(super) fn note(response: &mut Response<Body>, method: Option<&str>, reason: Option<&'static str>) {
    if !tracing::enabled!(target: REQUEST_LOG, tracing::Level::INFO) {
        return;
    }
    let outcome = response.extensions_mut().get_or_insert_with(CallOutcome::default);
    outcome.method = method.map(str::to_owned).or(outcome.method.take());
    outcome.reason = reason.or(outcome.reason);
}
