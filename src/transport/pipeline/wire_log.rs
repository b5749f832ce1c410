//! Wire log (`log.wire`): logs each request, the protocol 1.0 call that it maps to, and the response.
//!
//! For debugging, for example a migration between protocol versions; off by default. Credentials are redacted by the names
//! of headers and members, and long texts are truncated. Message content is not redacted.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Response, header, request::Parts};
use http_body::Frame;
use http_body_util::{BodyExt as _, combinators::UnsyncBoxBody};
use serde::Serialize;
use tokio_stream::StreamExt as _;
use tonic::{Request, Status};
use tracing::{Instrument as _, Span};

use self::redaction::{Media, headers, message, target, without_userinfo};
use crate::{
    protocol::{
        event::Event,
        pb::v1::{
            a2a_service_server::A2aService,
            bindings::{Rpc, each_rpc},
        },
        rpc::BoxStream,
    },
    transport::{
        Body, RequestBody, ResponseFuture,
        body::observed::{BodyObserver, ObservedBody},
    },
};

pub(crate) mod redaction;

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
    let record = BodyRecord::new("in", &parts.headers, span.clone());
    let body = ObservedBody { body: Box::pin(body.map_err(Into::into)), observer: Some(record) };
    let response = span.in_scope(|| next(parts, body.boxed_unsync()));
    Box::pin(async move {
        let (parts, body) = response.instrument(span.clone()).await?.into_parts();
        line!(&span, "out: {} {}", parts.status.as_u16(), headers(&parts.headers));
        let record = BodyRecord::new("out", &parts.headers, span);
        Ok(Response::from_parts(parts, Body::events(ObservedBody { body, observer: Some(record) })))
    })
}

/// Observer that logs the content of a body.
struct BodyRecord {
    /// `in` or `out`.
    direction: &'static str,
    media: Media,
    /// The first [`MAX_BUFFERED`] bytes since the last log line.
    buffer: BytesMut,
    /// Total number of bytes since the last log line.
    length: usize,
    span: Span,
}

impl BodyRecord {
    fn new(direction: &'static str, headers: &HeaderMap, span: Span) -> Self {
        let media = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        Self { direction, media: Media::of(media), buffer: BytesMut::new(), length: 0, span }
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

impl BodyObserver for BodyRecord {
    fn span(&self) -> &Span {
        &self.span
    }

    fn observe(&mut self, frame: Option<&Frame<Bytes>>, is_end: bool) {
        if let Some(data) = frame.and_then(Frame::data_ref) {
            self.push(data);
        }
        if let Some(trailers) = frame.and_then(Frame::trailers_ref) {
            self.flush();
            line!(&self.span, "{}: {}", self.direction, headers(trailers));
        }
        // Events are logged one by one, other bodies when they are complete.
        if self.media == Media::Events || is_end || frame.is_none() {
            self.flush();
        }
    }
}

/// Logs the rest of a body that was not read to its end.
impl Drop for BodyRecord {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Formats an error for the log: its kind and the message that the caller receives.
fn refusal(status: &Status) -> String {
    let error = crate::protocol::error::Error::from(status.clone());
    without_userinfo(&format!("{:?} {error}", error.kind())).into_owned()
}

/// Service wrapper that logs the calls to another service and their results.
pub(crate) struct WireLogService(pub(crate) Arc<dyn A2aService>);

/// Logs a unary call and its result.
async fn unary<Req: Serialize, Res: Serialize>(
    rpc: &'static str,
    request: Request<Req>,
    handler: impl AsyncFnOnce(Request<Req>) -> Result<tonic::Response<Res>, Status>,
) -> Result<tonic::Response<Res>, Status> {
    let span = Span::current();
    line!(&span, "call: {rpc} {}", message(request.get_ref()));
    let result = handler(request).await;
    match &result {
        Ok(response) => line!(&span, "result: {rpc} {}", message(response.get_ref())),
        Err(status) => line!(&span, "result: {rpc} {}", refusal(status)),
    }
    result
}

/// Logs a streaming call and its events.
async fn streaming<Req: Serialize>(
    rpc: &'static str,
    request: Request<Req>,
    handler: impl AsyncFnOnce(Request<Req>) -> Result<tonic::Response<BoxStream<Event>>, Status>,
) -> Result<tonic::Response<BoxStream<Event>>, Status> {
    let span = Span::current();
    line!(&span, "call: {rpc} {}", message(request.get_ref()));
    match handler(request).await {
        Ok(response) => Ok(response.map(|events| -> BoxStream<Event> {
            Box::pin(events.map(move |event| {
                match &event {
                    Ok(event) => line!(&span, "event: {rpc} {}", message(event)),
                    Err(status) => line!(&span, "event: {rpc} {}", refusal(status)),
                }
                event
            }))
        })),
        Err(status) => {
            line!(&span, "result: {rpc} {}", refusal(&status));
            Err(status)
        }
    }
}

macro_rules! logged {
    ($($kind:ident $method:ident $rpc:ident: $request:ty => $response:ty;)*) => {
        #[tonic::async_trait]
        impl A2aService for WireLogService { $(
            async fn $method(&self, request: Request<$request>) -> Result<tonic::Response<$response>, Status> {
                $kind(Rpc::$rpc.name(), request, async |request| self.0.$method(request).await).await
            }
        )* }
    };
}

each_rpc!(logged);

debug_fields!(WireLogService {});
