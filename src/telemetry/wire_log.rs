//! Wire log (`log.wire`): logs each request, the protocol 1.0 call that it maps to, and the response.
//!
//! For debugging, for example a migration between protocol versions; off by default. Credentials are redacted by the names
//! of headers and members, and long texts are truncated. Message content is not redacted.

use std::{
    fmt,
    pin::Pin,
    sync::atomic::{AtomicU64, Ordering},
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes, BytesMut};
use http::{HeaderMap, Response, header, request::Parts};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt as _, combinators::UnsyncBoxBody};
use tonic::Status;
use tracing::{Instrument as _, Span};

pub(crate) use self::called::WireLogService;
use self::text::{Media, headers, target, without_userinfo};
use crate::transport::{Body, RequestBody, ResponseFuture};

mod called;
mod text;

/// Log target of the wire log.
pub(crate) const TARGET: &str = "a2a_service::wire";

/// Number of the next request.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Maximum number of bytes of a body, or of an event of a stream, that are buffered for the log.
const MAX_BUFFERED: usize = 64 << 10;

/// Writes a line of the wire log.
macro_rules! line {
    ($span:expr, $($text:tt)*) => {
        tracing::info!(target: TARGET, parent: $span, $($text)*)
    };
}
use line;

/// Request body whose content is logged.
pub(crate) type RecordedBody = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// Passes a request on, and logs it and its response.
pub(crate) fn recorded<B: RequestBody>(
    parts: Parts,
    body: B,
    next: impl FnOnce(Parts, RecordedBody) -> ResponseFuture,
) -> ResponseFuture {
    // The number correlates the lines of one request.
    let span = tracing::info_span!(target: TARGET, "wire", call = NEXT.fetch_add(1, Ordering::Relaxed));
    line!(&span, "in: {} {} {}", parts.method, target(&parts.uri), headers(&parts.headers));
    let body = RecordingBody::new("in", &parts.headers, body.map_err(Into::into), span.clone());
    let response = span.in_scope(|| next(parts, body.boxed_unsync()));
    Box::pin(async move {
        let (parts, body) = response.instrument(span.clone()).await?.into_parts();
        line!(&span, "out: {} {}", parts.status.as_u16(), headers(&parts.headers));
        let body = RecordingBody::new("out", &parts.headers, body, span);
        Ok(Response::from_parts(parts, Body::events(body)))
    })
}

/// Body that buffers its data and logs it.
struct RecordingBody<B> {
    body: Pin<Box<B>>,
    /// `in` or `out`.
    direction: &'static str,
    media: Media,
    /// The first [`MAX_BUFFERED`] bytes since the last log line.
    buffer: BytesMut,
    /// Total number of bytes since the last log line.
    length: usize,
    span: Span,
}

impl<B> RecordingBody<B> {
    fn new(direction: &'static str, headers: &HeaderMap, body: B, span: Span) -> Self {
        let media = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        Self { body: Box::pin(body), direction, media: Media::of(media), buffer: BytesMut::new(), length: 0, span }
    }

    fn push(&mut self, data: &Bytes) {
        self.length = self.length.saturating_add(data.len());
        let capacity = MAX_BUFFERED.saturating_sub(self.buffer.len()).min(data.len());
        self.buffer.extend_from_slice(data.get(..capacity).unwrap_or_default());
    }

    /// Logs the buffered data and clears the buffer.
    fn flush(&mut self) {
        if self.length > 0 {
            line!(&self.span, "{}: {}", self.direction, self.media.show(&self.buffer, self.length));
        }
        (self.buffer, self.length) = (BytesMut::new(), 0);
    }
}

impl<B: http_body::Body<Data = Bytes>> http_body::Body for RecordingBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = &mut *self;
        let frame = ready!(this.body.as_mut().poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref().filter(|data| data.has_remaining()) {
                    this.push(data);
                }
                if let Some(trailers) = frame.trailers_ref() {
                    this.flush();
                    line!(&this.span, "{}: {}", this.direction, headers(trailers));
                }
                // Events are logged one by one, other bodies when they are complete.
                if this.media == Media::Events || this.body.is_end_stream() {
                    this.flush();
                }
            }
            Some(Err(_)) | None => this.flush(),
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

/// Logs the rest of a body that was not read to its end.
impl<B> Drop for RecordingBody<B> {
    fn drop(&mut self) {
        self.flush();
    }
}

impl<B> fmt::Debug for RecordingBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("RecordingBody");
        f.field("direction", &self.direction).field("length", &self.length).finish_non_exhaustive()
    }
}

/// Formats an error for the log: its kind and the message that the caller receives.
fn refusal(status: &Status) -> String {
    let error = crate::error::Error::from(status.clone());
    without_userinfo(&format!("{:?} {error}", error.kind())).into_owned()
}
