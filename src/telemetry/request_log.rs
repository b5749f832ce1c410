//! Request log: request ids, and a log line per request with its status, duration, JSON-RPC method and error reason.

use std::{
    convert::Infallible,
    fmt,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll, ready},
};

use axum::extract::{ConnectInfo, OriginalUri};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, header, request::Parts};
use http_body::{Frame, SizeHint};
use tokio::time::Instant;
use tonic::Status;
use tonic_types::StatusExt as _;
use tracing::{Level, Span, field};

use crate::{
    call::REQUEST_ID,
    env::Ids,
    transport::{Body, CallOutcome, REQUEST_LOG, RequestClass, ResponseFuture},
};

/// Marks the values of headers with credentials as sensitive, so that `Debug` of a request hides them.
fn hide_credentials(headers: &mut HeaderMap) {
    for (name, value) in headers {
        let text = name.as_str();
        let is_secret = *name == header::AUTHORIZATION
            || *name == header::PROXY_AUTHORIZATION
            || *name == header::COOKIE
            || ["-key", "-token", "-secret", "-password", "-signature", "-authorization", "-credential"]
                .iter()
                .any(|ending| text.ends_with(ending));
        if is_secret {
            value.set_sensitive(true);
        }
    }
}

/// Returns the request id: the value of `X-Request-Id` if it is 1 to 128 visible ASCII characters, else a new UUID, which
/// replaces it.
fn request_id(headers: &mut HeaderMap, ids: &Ids) -> HeaderValue {
    let is_valid = |id: &&HeaderValue| (1..=128).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic);
    if let Some(id) = headers.get(REQUEST_ID).filter(is_valid) {
        return id.clone();
    }
    // Infallible: a UUID is a valid header value.
    let id = HeaderValue::try_from(ids.time_ordered()).unwrap_or(HeaderValue::from_static("unknown"));
    headers.insert(REQUEST_ID, id.clone());
    id
}

/// Passes a request on, and logs it: assigns it an id, which the response returns, and logs a line when the response body
/// has ended. Log lines in between are in a span with the id. Credentials are hidden from `Debug`.
pub(crate) fn logged(
    mut parts: Parts,
    class: RequestClass,
    ids: &Ids,
    next: impl FnOnce(Parts) -> ResponseFuture,
) -> LoggedResponse {
    hide_credentials(&mut parts.headers);
    let id = request_id(&mut parts.headers, ids);
    let enabled = tracing::enabled!(target: REQUEST_LOG, Level::INFO);
    let line = enabled.then(|| Box::new(RequestRecord::new(&parts, class, &id)));
    let entered = line.as_ref().map(|line| line.span.enter());
    let inner = next(parts);
    drop(entered);
    LoggedResponse { inner, id: Some(id), line }
}

/// Future of a response, with its line of the request log.
pub(crate) struct LoggedResponse {
    inner: ResponseFuture,
    /// Taken when the response is ready.
    id: Option<HeaderValue>,
    line: Option<Box<RequestRecord>>,
}

impl Future for LoggedResponse {
    type Output = Result<Response<LoggedBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { inner, id, line } = &mut *self;
        let entered = line.as_ref().map(|line| line.span.enter());
        let Ok(mut response) = ready!(inner.as_mut().poll(cx));
        drop(entered);
        if let Some(id) = id.take() {
            response.headers_mut().insert(REQUEST_ID, id);
        }
        let mut line = line.take();
        if let Some(line) = &mut line {
            if let Some(CallOutcome { method, reason }) = response.extensions_mut().remove() {
                (line.rpc_method, line.reason) = (method, reason.map(str::to_owned));
            }
            line.status = Some(response.status().as_u16());
            line.grpc_status(response.headers());
            line.is_complete = http_body::Body::is_end_stream(response.body());
        }
        Poll::Ready(Ok(response.map(|body| LoggedBody { body, line })))
    }
}

/// Response body that logs its line of the request log when it is dropped: after it was sent, or when the client has gone.
#[derive(Debug, Default)]
pub(crate) struct LoggedBody {
    body: Body,
    line: Option<Box<RequestRecord>>,
}

impl http_body::Body for LoggedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Self { body, line } = &mut *self;
        let Some(line) = line else { return Pin::new(body).poll_frame(cx) };
        let entered = line.span.enter();
        let frame = ready!(Pin::new(&mut *body).poll_frame(cx));
        drop(entered);
        match &frame {
            None => line.is_complete = true,
            Some(Ok(frame)) => {
                if let Some(trailers) = frame.trailers_ref() {
                    line.grpc_status(trailers);
                }
                line.is_complete = frame.is_trailers() || http_body::Body::is_end_stream(body);
            }
            Some(Err(_)) => {}
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        http_body::Body::is_end_stream(&self.body)
    }

    fn size_hint(&self) -> SizeHint {
        http_body::Body::size_hint(&self.body)
    }
}

/// Line of the request log. Written when it is dropped.
struct RequestRecord {
    span: Span,
    start: Instant,
    system: &'static str,
    method: Method,
    path: String,
    peer: Option<SocketAddr>,
    id: String,
    status: Option<u16>,
    grpc_status: Option<u16>,
    /// JSON-RPC method as the client wrote it.
    rpc_method: Option<String>,
    /// `google.rpc.ErrorInfo.reason`.
    reason: Option<String>,
    /// The response body was sent to its end.
    is_complete: bool,
}

impl RequestRecord {
    fn new(parts: &Parts, class: RequestClass, id: &HeaderValue) -> Self {
        let id = id.to_str().unwrap_or_default().to_owned();
        Self {
            span: tracing::info_span!(target: REQUEST_LOG, "request", request.id = %id),
            start: Instant::now(),
            system: class.system(),
            method: parts.method.clone(),
            path: parts.extensions.get::<OriginalUri>().map_or(&parts.uri, |uri| &uri.0).path().to_owned(),
            peer: parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0),
            id,
            status: None,
            grpc_status: None,
            rpc_method: None,
            reason: None,
            is_complete: false,
        }
    }

    fn grpc_status(&mut self, headers: &HeaderMap) {
        let code = headers.get(Status::GRPC_STATUS).and_then(|value| value.to_str().ok()?.parse().ok());
        self.grpc_status = code.or(self.grpc_status);
        if code.is_some_and(|code| code != 0) {
            let details = Status::from_header_map(headers).map(|status| status.get_error_details());
            self.reason = details.and_then(|details| Some(details.error_info()?.reason.clone()));
        }
    }
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        let Self {
            start, system, method, path, peer, id, status, grpc_status, rpc_method, reason, is_complete, ..
        } = self;
        let millis = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
        let event = if *is_complete { "request completed" } else { "response aborted" };
        // No parent: the only field of the span is repeated here.
        tracing::info!(
            target: REQUEST_LOG,
            parent: None,
            {
                rpc.system = *system,
                http.method = method.as_str(),
                path = path.as_str(),
                status = *status,
                rpc.method = rpc_method.as_deref(),
                rpc.grpc.status_code = *grpc_status,
                error.reason = reason.as_deref(),
                duration_ms = millis,
                request.id = id.as_str(),
                peer = peer.as_ref().map(field::display),
            },
            "{event}"
        );
    }
}

impl fmt::Debug for LoggedResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoggedResponse").field("line", &self.line).finish_non_exhaustive()
    }
}

impl fmt::Debug for RequestRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestRecord").field("id", &self.id).field("path", &self.path).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_of_a_request_hides_credentials() {
        let mut request = http::Request::builder().uri("/tasks").header("accept", "text/plain");
        let secret = [
            "authorization",
            "proxy-authorization",
            "cookie",
            "x-api-key",
            "x-a2a-notification-token",
            "x-hub-signature",
        ];
        for name in secret {
            request = request.header(name, "s3cret");
        }
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        hide_credentials(&mut parts.headers);
        let debug = format!("{parts:?}");
        assert!(!debug.contains("s3cret") && debug.contains("text/plain") && debug.contains("x-api-key"), "{debug}");
        assert_eq!(parts.headers["cookie"], "s3cret", "the value itself is unchanged");
    }

    #[test]
    fn valid_request_id_is_kept_and_invalid_one_is_replaced() {
        let assigned = |id: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_str(id).unwrap());
            let id = request_id(&mut headers, &Ids::default());
            assert_eq!(headers[REQUEST_ID], id);
            id.to_str().unwrap().to_owned()
        };
        let longest = "r".repeat(128);
        assert_eq!((assigned("r-1"), assigned(&longest)), ("r-1".to_owned(), longest.clone()));
        for invalid in ["", "r 1", &format!("{longest}r")] {
            assert!(uuid::Uuid::parse_str(&assigned(invalid)).is_ok(), "{invalid}");
        }
    }
}
