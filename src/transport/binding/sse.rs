//! Server-sent events (SSE): writes the `id:`, `event:` and `data:` lines of a stream, and its keep-alive
//! comments.
//!
//! `id:` is the cursor of an event, which a client sends as `Last-Event-ID` to resume the stream.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, header};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_stream::Stream;
use tonic::Status;

use crate::{
    base::clock,
    protocol::{
        Error, ErrorKind,
        rpc::{BoxStream, Frame, JsonLine},
    },
    transport::{Body, BodyLimits, WriteDeadline},
};

/// Number of bytes at which ready events are written. Fewer are written if no event is ready.
const WRITE_SIZE: usize = 32 << 10;

const COMMENT: Bytes = Bytes::from_static(b": keep-alive\n\n");

/// Function that writes an item, or the error that ends the stream, as one line of JSON.
pub(crate) trait WriteData: Fn(&mut Vec<u8>, Result<&JsonLine, &Error>) + Send + Unpin + 'static {}

impl<F: Fn(&mut Vec<u8>, Result<&JsonLine, &Error>) + Send + Unpin + 'static> WriteData for F {}

/// `event:` line with the default name, which JSON-RPC of 0.3 sends.
pub(crate) const MESSAGE: &[u8] = b"event: message\n";

/// Builds the response of a stream. `event_line` is the `event:` line of each event, or empty. `resumes`: the client has
/// received events of this stream before.
pub(in crate::transport) fn response(
    event_line: &'static [u8],
    items: BoxStream<Frame>,
    resumes: bool,
    headers: HeaderMap,
    limits: &BodyLimits,
    write: impl WriteData,
) -> Response<Body> {
    let &BodyLimits { keep_alive, stream_max_age, .. } = limits;
    let events = Events {
        event_line,
        items: Some(items),
        is_resumable: resumes,
        write,
        keep_alive,
        last_write: Instant::now(),
        timer: None,
    };
    event_stream(events, headers, stream_max_age)
}

/// Builds the response of a stream with this body of server-sent events.
pub(in crate::transport) fn event_stream(
    events: impl http_body::Body<Data = Bytes, Error = Status> + Send + 'static,
    headers: HeaderMap,
    max_age: Duration,
) -> Response<Body> {
    let mut response = Response::new(Body::events(events));
    *response.headers_mut() = headers;
    if let Some(deadline) = WriteDeadline::after(max_age) {
        response.extensions_mut().insert(deadline);
    }
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Disables the buffer of nginx, which delays events.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

/// Body of a stream: ready events are written together, and a comment after `keep_alive` without an event.
struct Events<W> {
    /// `event:` line of each event, or empty.
    event_line: &'static [u8],
    items: Option<BoxStream<Frame>>,
    /// The client has received an event, so it can resume the stream.
    is_resumable: bool,
    write: W,
    keep_alive: Duration,
    /// Time of the last event or comment.
    last_write: Instant,
    /// Created at the first wait and reset only when it fires, so that an event costs no timer operation.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<W: WriteData> http_body::Body for Events<W> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Status>>> {
        let mut out = Vec::new();
        while out.len() < WRITE_SIZE {
            let Some(items) = &mut self.items else { break };
            match items.as_mut().poll_next(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    // Unless more items are ready, the event is written without polling for another.
                    let is_last_ready = items.size_hint().0 == 0;
                    self.write_event(&mut out, &frame);
                    if is_last_ready {
                        break;
                    }
                }
                Poll::Ready(Some(Err(status))) => self.write_error(&mut out, status),
                Poll::Ready(None) => self.items = None,
                Poll::Pending if out.is_empty() => return self.poll_keep_alive(cx).map(|comment| Some(Ok(comment))),
                Poll::Pending => break,
            }
        }
        if out.is_empty() {
            return Poll::Ready(None);
        }
        self.last_write = Instant::now();
        Poll::Ready(Some(Ok(http_body::Frame::data(out.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.items.is_none()
    }
}

impl<W: WriteData> Events<W> {
    fn write_event(&mut self, out: &mut Vec<u8>, Frame { cursor, data }: &Frame) {
        self.is_resumable = true;
        // 128 bytes for the field names and the envelope.
        out.reserve(data.approx_len() + 128);
        if let Some(cursor) = cursor {
            for part in [b"id: ", cursor.as_bytes(), b"\n"] {
                out.extend_from_slice(part);
            }
        }
        out.extend_from_slice(self.event_line);
        out.extend_from_slice(b"data: ");
        (self.write)(out, Ok(data));
        out.extend_from_slice(b"\n\n");
    }

    /// Ends the stream with an event named `error`. For `Unavailable`, such as on shutdown, a resumable stream ends without
    /// one: an `EventSource` then reconnects with its cursor.
    fn write_error(&mut self, out: &mut Vec<u8>, status: Status) {
        self.items = None;
        let error = Error::from(status);
        if error.kind() != ErrorKind::Unavailable || !self.is_resumable {
            out.extend_from_slice(b"event: error\ndata: ");
            (self.write)(out, Err(&error));
            out.extend_from_slice(b"\n\n");
        }
    }

    /// Returns a comment after `keep_alive` without a write, since proxies close idle connections.
    fn poll_keep_alive(&mut self, cx: &mut Context<'_>) -> Poll<http_body::Frame<Bytes>> {
        if self.keep_alive.is_zero() {
            return Poll::Pending;
        }
        let mut due = clock::after(self.last_write, self.keep_alive);
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
        loop {
            ready!(timer.as_mut().poll(cx));
            let now = Instant::now();
            let is_due = due <= now;
            if is_due {
                self.last_write = now;
                due = clock::after(now, self.keep_alive);
            }
            timer.as_mut().reset(due);
            if is_due {
                return Poll::Ready(http_body::Frame::data(COMMENT));
            }
        }
    }
}
