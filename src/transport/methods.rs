//! Verbs of HTTP that ask about a path, or that it is not for.

use http::{HeaderValue, Response, StatusCode, header, request::Parts};
use http_body::Body as _;

use super::{Body, brief, refuse, response::status};
use crate::error::ErrorKind;

/// The answer to a verb that a path is not for.
pub(super) fn not_allowed(parts: &Parts, verbs: &'static str) -> Response<Body> {
    let line = format!("{} {}", parts.method, parts.uri.path());
    let mut response = refuse(parts, ErrorKind::VerbNotAllowed.because(brief(&line)));
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(verbs));
    response
}

/// What a HEAD is answered with: all that a GET would be, without the body. HTTP/2 would send it.
pub(super) fn without_body(mut response: Response<Body>) -> Response<Body> {
    if let Some(length) = response.body().size_hint().exact().filter(|it| *it > 0) {
        response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    }
    response.map(|_| Body::default())
}

/// What an OPTIONS is answered with: the verbs that there are. To ask for them is no error.
pub(super) fn only_allow(mut response: Response<Body>) -> Response<Body> {
    let Some(verbs) = response.headers_mut().remove(header::ALLOW) else { return response };
    let mut response = status(StatusCode::NO_CONTENT);
    response.headers_mut().insert(header::ALLOW, verbs);
    response
}
