//! Checks of HTTP framing that hyper does not make.

use http::{HeaderName, Version, header, request::Parts};

use crate::protocol::error::{Error, ErrorKind};

/// `Sec-Fetch-Site`, which only browsers send.
pub(super) const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Summary of the head of a request, by one pass over its headers. Most requests have none of the headers that need a check.
#[derive(Default)]
pub(crate) struct RequestHead {
    /// Size of the URI, and of name, value and 32 bytes for each header (RFC 9113, 6.5.2).
    bytes: usize,
    hosts: usize,
    credentials: usize,
    has_transfer_coding: bool,
    /// Has a header by which browsers name the page that sends a request.
    pub(super) names_page: bool,
}

impl RequestHead {
    pub(crate) fn of(parts: &Parts) -> Self {
        let bytes = parts.uri.path_and_query().map_or(0, |uri| uri.as_str().len());
        let mut head = Self { bytes, ..Self::default() };
        for (name, value) in &parts.headers {
            head.bytes += name.as_str().len() + value.len() + 32;
            head.hosts += usize::from(*name == header::HOST);
            head.credentials += usize::from(*name == header::AUTHORIZATION);
            head.has_transfer_coding |= *name == header::TRANSFER_ENCODING;
            head.names_page |= *name == header::ORIGIN || *name == SEC_FETCH_SITE;
        }
        head
    }

    /// Checks requirements of HTTP/1.1 that hyper does not check.
    ///
    /// # Errors
    /// `Host` is missing or there are several (RFC 9112, 3.2), or the body has a transfer coding other than `chunked`
    /// (RFC 9112, 6.1).
    pub(crate) fn check_framing(&self, parts: &Parts) -> Result<(), Error> {
        if parts.version != Version::HTTP_11 {
            return Ok(());
        }
        match self.hosts {
            1 => {}
            0 => return Err(ErrorKind::InvalidRequest.because("Host: missing; HTTP/1.1 requires it")),
            _ => return Err(ErrorKind::InvalidRequest.because("Host: given more than once")),
        }
        if !self.has_transfer_coding || is_chunked(parts) {
            Ok(())
        } else {
            Err(ErrorKind::InvalidRequest.because("Transfer-Encoding: only `chunked` is supported"))
        }
    }

    /// Checks that the request has the credentials of one caller: two recipients could read different ones.
    ///
    /// # Errors
    /// There are several `Authorization` headers (RFC 9110, 5.3 and 11.6.2).
    pub(crate) fn check_credentials(&self) -> Result<(), Error> {
        if self.credentials > 1 {
            return Err(ErrorKind::InvalidRequest.because("Authorization: given more than once"));
        }
        Ok(())
    }

    /// Checks the size of the head.
    ///
    /// # Errors
    /// `TooLarge`.
    pub(crate) fn check_size(&self, max: usize) -> Result<(), Error> {
        let size = self.bytes;
        if size <= max {
            return Ok(());
        }
        let why = format!("the head of the request has {size} bytes, which exceeds the limit of {max}");
        Err(ErrorKind::TooLarge.because(why).limit("header_bytes"))
    }
}

/// Returns true if the only transfer coding is `chunked`, once.
fn is_chunked(parts: &Parts) -> bool {
    let mut lines = parts.headers.get_all(header::TRANSFER_ENCODING).iter();
    let first = lines.next();
    first.is_some_and(|value| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked")) && lines.next().is_none()
}
