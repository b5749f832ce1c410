//! Check of the requests and responses of tests against the documents in `openapi/`.
//!
//! [`CheckedService`] and [`CheckLayer`] surround the server under test and see every exchange over HTTP+JSON and JSON-RPC. A
//! violation panics in the task of the connection, so that the connection breaks and the test fails. It is also recorded for
//! [`assert_no_violations`], since a test may expect broken connections.
//!
//! Of HTTP+JSON, the check covers the status, the content type and the body of a response: JSON, or each event of a stream. Of
//! JSON-RPC, it covers the envelope, the result and the error of each response. A request is checked if it has succeeded, of
//! HTTP+JSON with its query and headers: requests that are invalid on purpose have errors as responses. The server also accepts
//! requests that the documents do not describe: tests of those declare it by [`allow_undocumented`].

use std::{
    convert::Infallible,
    error::Error as StdError,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum::body::Body;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::runtime;
use tower_layer::Layer;
use tower_service::Service;

use self::exchange::{BodyCheck, Exchange};

mod documents;
mod exchange;

/// Parts of messages that a test exempts from the check: bodies, and what accompanies them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exemption {
    /// Requests in a form that the server accepts and the documents do not describe.
    Requests,
    /// Responses of a service or store with invalid data, or of a server that does not serve 0.3.
    Responses,
    /// Parameters in a form that the server accepts and the documents do not describe.
    Parameters,
    /// Errors of a service that returns any error to any call: their bodies have the schema of errors, but their statuses,
    /// reasons and codes are not those of the operation or method.
    Errors,
}

/// Maximum number of bytes of a body, or of an event, that is checked.
const MAX_CHECKED_BYTES: usize = 256 << 10;

/// Violations, with the runtime of their test.
static VIOLATIONS: Mutex<Vec<(runtime::Id, String)>> = Mutex::new(Vec::new());

/// Exemptions, with the runtime of their test.
static EXEMPTIONS: Mutex<Vec<(runtime::Id, Exemption)>> = Mutex::new(Vec::new());

/// Exempts parts of messages from the check until the end of the current test. Statuses and content types are checked.
pub(crate) fn allow_undocumented(exemption: Exemption) {
    EXEMPTIONS.lock().push((runtime::Handle::current().id(), exemption));
}

fn is_exempt(exemption: Exemption) -> bool {
    EXEMPTIONS.lock().contains(&(runtime::Handle::current().id(), exemption))
}

/// Fails if there were violations in the runtime of the current test.
pub(crate) fn assert_no_violations() {
    let runtime = runtime::Handle::current().id();
    let found: Vec<_> = VIOLATIONS.lock().iter().filter(|row| row.0 == runtime).map(|row| row.1.clone()).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Records a violation, and fails.
fn violated(violation: &str) -> ! {
    VIOLATIONS.lock().push((runtime::Handle::current().id(), violation.to_owned()));
    panic!("{violation}")
}

/// Layer that checks what a server receives and sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckLayer;

impl<S> Layer<S> for CheckLayer {
    type Service = CheckedService<S>;

    fn layer(&self, inner: S) -> CheckedService<S> {
        CheckedService(inner)
    }
}

/// Service whose requests and responses are checked.
#[derive(Clone, Debug)]
pub(crate) struct CheckedService<S>(pub(crate) S);

impl<S, B, R> Service<Request<B>> for CheckedService<S>
where
    S: Service<Request<Body>, Response = Response<R>, Error = Infallible, Future: Send + 'static>,
    B: HttpBody<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>> + Send + 'static,
    R: HttpBody<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>> + Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (parts, body) = request.into_parts();
        let body = Body::new(body);
        let Some(exchange) = Exchange::of(&parts) else {
            let response = self.0.call(Request::from_parts(parts, body));
            return Box::pin(async { response.await.map(|response| response.map(Body::new)) });
        };
        let sent = Arc::new(Mutex::new(Recorded { is_complete: body.is_end_stream(), ..Recorded::default() }));
        let body = Body::new(RecordedBody { inner: body, sent: Arc::clone(&sent) });
        let response = self.0.call(Request::from_parts(parts, body));
        Box::pin(async move {
            let (parts, body) = response.await?.into_parts();
            let check = exchange.check_head(&parts, &sent);
            let mut body = CheckedBody { inner: Body::new(body), check };
            body.check_end();
            Ok(Response::from_parts(parts, Body::new(body)))
        })
    }
}

/// Bytes of a body, up to a limit.
#[derive(Debug, Default)]
struct Recorded {
    bytes: Vec<u8>,
    is_complete: bool,
    exceeds_limit: bool,
}

impl Recorded {
    fn add(&mut self, data: &[u8]) {
        self.exceeds_limit |= self.bytes.len() + data.len() > MAX_CHECKED_BYTES;
        if !self.exceeds_limit {
            self.bytes.extend_from_slice(data);
        }
    }

    /// Returns the whole body. `None` if it is longer than the limit, or its end is not known yet.
    fn whole(&self) -> Option<&[u8]> {
        (self.is_complete && !self.exceeds_limit).then_some(&self.bytes)
    }
}

/// Body of a request that is recorded while the server reads it.
struct RecordedBody {
    inner: Body,
    sent: Arc<Mutex<Recorded>>,
}

impl HttpBody for RecordedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        let mut sent = self.sent.lock();
        match &frame {
            Some(Ok(frame)) => {
                sent.add(frame.data_ref().map(|data| &data[..]).unwrap_or_default());
                sent.is_complete = self.inner.is_end_stream();
            }
            Some(Err(_)) => sent.exceeds_limit = true,
            None => sent.is_complete = true,
        }
        drop(sent);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Body of a response that is checked while the client reads it.
struct CheckedBody {
    inner: Body,
    /// Check of the rest of the body.
    check: Option<BodyCheck>,
}

impl CheckedBody {
    /// Checks the whole body once its end is known.
    fn check_end(&mut self) {
        if self.inner.is_end_stream()
            && let Some(check) = self.check.take()
        {
            check.end();
        }
    }
}

impl HttpBody for CheckedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if let (Some(data), Some(check)) = (frame.data_ref(), &mut self.check) {
                    check.data(data);
                }
                self.check_end();
            }
            Some(Err(_)) => self.check = None,
            None => {
                if let Some(check) = self.check.take() {
                    check.end();
                }
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
