//! HTTP methods that every path has: `HEAD` as `GET` without a body, `OPTIONS`, and the 405 with `Allow` for the others.

use http::{HeaderValue, Response, StatusCode, header, request::Parts};
use http_body::Body as _;

use super::{Body, RequestClass, brief};
use crate::{protocol::error::ErrorKind, transport::body::response::status};

/// Builds the error response for an HTTP method that the path does not support, with `Allow`.
pub(super) fn not_allowed(class: RequestClass, parts: &Parts, allowed: &'static str) -> Response<Body> {
    let request_line = format!("{} {}", parts.method, parts.uri.path());
    let mut response = class.error_response(ErrorKind::VerbNotAllowed.because(brief(&request_line)));
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
    response
}

/// Converts the response of a GET to that of a HEAD: headers with `Content-Length`, no body. Over HTTP/2, hyper would send
/// a body.
pub(super) fn to_head(mut response: Response<Body>) -> Response<Body> {
    if let Some(length) = response.body().size_hint().exact().filter(|length| *length > 0) {
        response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    }
    response.map(|_| Body::default())
}

/// Converts a 405 response to that of an OPTIONS: 204 with `Allow`. Other responses are unchanged.
pub(super) fn to_options(mut response: Response<Body>) -> Response<Body> {
    let Some(allowed) = response.headers_mut().remove(header::ALLOW) else { return response };
    let mut response = status(StatusCode::NO_CONTENT);
    response.headers_mut().insert(header::ALLOW, allowed);
    response
}
