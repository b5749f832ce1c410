//! Checks of HTTP framing that hyper does not make.

use http::{HeaderMap, Version, header, request::Parts};

use crate::protocol::error::{Error, ErrorKind};

/// Checks requirements of HTTP/1.1 that hyper does not check.
///
/// # Errors
/// `Host` is missing or there are several (RFC 9112, 3.2), or the body has a transfer coding other than `chunked`
/// (RFC 9112, 6.1).
pub(crate) fn check_framing(parts: &Parts) -> Result<(), Error> {
    if parts.version != Version::HTTP_11 {
        return Ok(());
    }
    match parts.headers.get_all(header::HOST).iter().count() {
        1 => {}
        0 => return Err(ErrorKind::InvalidRequest.because("Host: missing; HTTP/1.1 requires it")),
        _ => return Err(ErrorKind::InvalidRequest.because("Host: given more than once")),
    }
    if is_chunked_at_most(&parts.headers) {
        Ok(())
    } else {
        Err(ErrorKind::InvalidRequest.because("Transfer-Encoding: only `chunked` is supported"))
    }
}

/// Checks the size of the head of a request: its URI, and name, value and 32 bytes for each header (RFC 9113, 6.5.2).
///
/// # Errors
/// `TooLarge`.
pub(crate) fn check_head(parts: &Parts, max: usize) -> Result<(), Error> {
    let uri = parts.uri.path_and_query().map_or(0, |uri| uri.as_str().len());
    let headers = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32);
    let size = uri + headers.sum::<usize>();
    if size <= max {
        return Ok(());
    }
    let why = format!("the head of the request has {size} bytes, which exceeds the limit of {max}");
    Err(ErrorKind::TooLarge.because(why).with("limit", "header_bytes"))
}

/// Returns true if there is no transfer coding, or only `chunked`, once.
fn is_chunked_at_most(headers: &HeaderMap) -> bool {
    let mut lines = headers.get_all(header::TRANSFER_ENCODING).iter();
    let first = lines.next();
    first.is_none_or(|value| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked")) && lines.next().is_none()
}
