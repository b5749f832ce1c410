//! Checks of HTTP framing and of the per-client request limit, before authentication and dispatch.

use std::{
    convert::Infallible,
    net::SocketAddr,
    task::{Context, Poll},
};

use axum::extract::ConnectInfo;
use http::{HeaderMap, Request, Response, StatusCode, Version, header, request::Parts};
use tower_service::Service;

use super::{Body, RequestBody, ResponseFuture, error_response, now, peer_limit::PeerLimit};
use crate::error::{Error, ErrorKind};

/// Tower service that checks requests before it passes them on to another.
#[derive(Clone, Debug)]
pub(crate) struct RequestChecks<S> {
    inner: S,
    peers: PeerLimit,
    framing: bool,
}

impl<S> RequestChecks<S> {
    /// Creates the checks in front of a service. Requests through trusted proxies are counted by client address.
    pub(crate) fn new(inner: S, peers: PeerLimit) -> Self {
        Self { inner, peers, framing: true }
    }

    /// Creates the checks without HTTP framing, for a service that is mounted in another server.
    pub(crate) fn mounted(inner: S, peers: PeerLimit) -> Self {
        Self { inner, peers, framing: false }
    }
}

impl<S, B> Service<Request<B>> for RequestChecks<S>
where
    S: Service<Request<B>, Response = Response<Body>, Error = Infallible, Future = ResponseFuture>,
    B: RequestBody,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> ResponseFuture {
        let (parts, body) = request.into_parts();
        let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0);
        if self.framing
            && let Err(error) = check_framing(&parts)
        {
            // The request is invalid HTTP, so the status is 400 whatever the binding uses for its errors.
            let mut response = error_response(&parts, error);
            *response.status_mut() = StatusCode::BAD_REQUEST;
            return now(response);
        }
        let permit = match self.peers.request(peer, &parts.headers) {
            Ok(permit) => permit,
            Err(error) => return now(error_response(&parts, error)),
        };
        let response = self.inner.call(Request::from_parts(parts, body));
        let Some(permit) = permit else { return response };
        Box::pin(async move {
            let response = response.await?;
            Ok(response.map(|body| body.with_permit(permit)))
        })
    }
}

/// Checks requirements of HTTP/1.1 that hyper does not check.
///
/// # Errors
/// `Host` is missing or there are several (RFC 9112, 3.2), or the body has a transfer coding other than `chunked`
/// (RFC 9112, 6.1).
fn check_framing(parts: &Parts) -> Result<(), Error> {
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

/// Returns true if there is no transfer coding, or only `chunked`, once.
fn is_chunked_at_most(headers: &HeaderMap) -> bool {
    let mut lines = headers.get_all(header::TRANSFER_ENCODING).iter();
    let first = lines.next();
    first.is_none_or(|value| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked")) && lines.next().is_none()
}
