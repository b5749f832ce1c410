//! What passes the door, for people who move from one version of the protocol to another: what came in, the call of 1.0
//! that it was, and what went out, each on a line of the log.
//!
//! It is for looking, and off unless somebody asks for it. Credentials are hidden as well as names can tell, and what is
//! long is cut.

use std::{
    convert::Infallible,
    fmt,
    pin::Pin,
    sync::atomic::{AtomicU64, Ordering},
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes, BytesMut};
use http::{HeaderMap, Request, Response, header};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt as _, combinators::UnsyncBoxBody};
use tonic::Status;
use tower_service::Service;
use tracing::{Instrument as _, Span};
use tracing_subscriber::filter::{Directive, ParseError};

pub(crate) use self::called::WireLogService;
use self::text::{Media, headers, target, without_userinfo};
use crate::transport::{Body, RequestBody, ResponseFuture};

mod called;
mod text;

/// What the lines are filtered by.
const TARGET: &str = "a2a_service::wire";

/// The number of the next request.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// What lets the lines through a filter.
pub(crate) fn directive() -> Result<Directive, ParseError> {
    format!("{TARGET}=info").parse()
}

/// So much of a body is kept to be shown.
const KEPT: usize = 64 << 10;

/// Writes what was seen.
macro_rules! line {
    ($span:expr, $($text:tt)*) => {
        tracing::info!(target: TARGET, parent: $span, $($text)*)
    };
}
use line;

/// The body of a request that is looked at.
type RecordedBody = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// A tower service that writes what passes another to the log. Switched off, it is as if it were not there.
#[derive(Clone, Debug)]
pub(crate) struct WireLog<S> {
    inner: S,
    on: bool,
}

impl<S> WireLog<S> {
    /// Looks at a service, if it is on.
    pub(crate) fn new(inner: S, on: bool) -> Self {
        Self { inner, on }
    }
}

impl<S, B> Service<Request<B>> for WireLog<S>
where
    S: Service<Request<B>, Response = Response<Body>, Error = Infallible, Future = ResponseFuture>
        + Service<Request<RecordedBody>, Response = Response<Body>, Error = Infallible, Future = ResponseFuture>,
    B: RequestBody,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        <S as Service<Request<B>>>::poll_ready(&mut self.inner, cx)
    }

    fn call(&mut self, request: Request<B>) -> ResponseFuture {
        if !self.on {
            return self.inner.call(request);
        }
        // What belongs together has a number in common.
        let span = tracing::info_span!(target: TARGET, "wire", call = NEXT.fetch_add(1, Ordering::Relaxed));
        let (parts, body) = request.into_parts();
        line!(&span, "in: {} {} {}", parts.method, target(&parts.uri), headers(&parts.headers));
        let body = RecordingBody::new("in", &parts.headers, body.map_err(Into::into), span.clone());
        let entered = span.enter();
        let answering = self.inner.call(Request::from_parts(parts, body.boxed_unsync()));
        drop(entered);
        Box::pin(async move {
            let (parts, body) = answering.instrument(span.clone()).await?.into_parts();
            line!(&span, "out: {} {}", parts.status.as_u16(), headers(&parts.headers));
            let body = RecordingBody::new("out", &parts.headers, body, span);
            Ok(Response::from_parts(parts, Body::events(body)))
        })
    }
}

/// A body, and what was seen of it.
struct RecordingBody<B> {
    body: Pin<Box<B>>,
    way: &'static str,
    media: Media,
    kept: BytesMut,
    length: usize,
    span: Span,
}

impl<B> RecordingBody<B> {
    fn new(way: &'static str, headers: &HeaderMap, body: B, span: Span) -> Self {
        let media = headers.get(header::CONTENT_TYPE).and_then(|it| it.to_str().ok()).unwrap_or_default();
        Self { body: Box::pin(body), way, media: Media::of(media), kept: BytesMut::new(), length: 0, span }
    }

    fn see(&mut self, data: &Bytes) {
        self.length = self.length.saturating_add(data.len());
        let room = KEPT.saturating_sub(self.kept.len()).min(data.len());
        self.kept.extend_from_slice(data.get(..room).unwrap_or_default());
    }

    fn tell(&mut self) {
        if self.length > 0 {
            line!(&self.span, "{}: {}", self.way, self.media.show(&self.kept, self.length));
        }
        (self.kept, self.length) = (BytesMut::new(), 0);
    }
}

impl<B: http_body::Body<Data = Bytes>> http_body::Body for RecordingBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let it = &mut *self;
        let frame = ready!(it.body.as_mut().poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref().filter(|it| it.has_remaining()) {
                    it.see(data);
                }
                if let Some(trailers) = frame.trailers_ref() {
                    it.tell();
                    line!(&it.span, "{}: {}", it.way, headers(trailers));
                }
                // An event is sent when there is one; all else is shown when it is whole.
                if it.media == Media::Events || it.body.is_end_stream() {
                    it.tell();
                }
            }
            Some(Err(_)) | None => it.tell(),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A body that nobody reads to its end is shown as far as it came.
impl<B> Drop for RecordingBody<B> {
    fn drop(&mut self) {
        self.tell();
    }
}

impl<B> fmt::Debug for RecordingBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Looking").field("way", &self.way).field("length", &self.length).finish_non_exhaustive()
    }
}

/// An error as the log has it: its number and its sentence, which are for the caller anyway.
fn refusal(status: &Status) -> String {
    let error = crate::error::Error::from(status.clone());
    without_userinfo(&format!("{:?} {error}", error.kind())).into_owned()
}
