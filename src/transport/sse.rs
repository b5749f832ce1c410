//! Server-sent events (SSE): writes the `id:`, `event:` and `data:` lines of a stream and its keep-alive comments, and parses
//! them for clients.
//!
//! `id:` is the cursor of an event, which a client sends as `Last-Event-ID` to resume the stream.

use std::{
    fmt::Display,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Response, header};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_stream::Stream;
use tonic::Status;

use super::{body::Body, settings::Limits, write_timeout::WriteDeadline};
use crate::{
    clock,
    contract::{BoxStream, Frame, JsonLine},
    error::{Error, ErrorKind},
    event::Cursor,
};

/// Number of bytes at which ready events are written. Fewer are written if no event is ready.
const WRITE_SIZE: usize = 32 << 10;

/// Maximum size of a received event in bytes.
const MAX_EVENT: usize = 16 << 20;

const COMMENT: Bytes = Bytes::from_static(b": keep-alive\n\n");

/// Function that writes an item, or the error that ends the stream, as one line of JSON.
pub(crate) trait WriteData: Fn(&mut Vec<u8>, Result<&JsonLine, &Error>) + Send + Unpin + 'static {}

impl<F: Fn(&mut Vec<u8>, Result<&JsonLine, &Error>) + Send + Unpin + 'static> WriteData for F {}

/// `event:` line with the default name, which JSON-RPC of 0.3 sends.
pub(crate) const MESSAGE: &[u8] = b"event: message\n";

/// Builds the response of a stream. `event_line` is the `event:` line of each event, or empty. `resumes`: the client has
/// received events of this stream before.
pub(super) fn response(
    event_line: &'static [u8],
    items: BoxStream<Frame>,
    resumes: bool,
    headers: HeaderMap,
    limits: &Limits,
    write: impl WriteData,
) -> Response<Body> {
    let &Limits { keep_alive, stream_age, .. } = limits;
    let events = Events {
        event_line,
        items: Some(items),
        is_resumable: resumes,
        write,
        keep_alive,
        last_write: Instant::now(),
        timer: None,
    };
    let mut response = Response::new(Body::events(events));
    *response.headers_mut() = headers;
    if let Some(deadline) = WriteDeadline::after(stream_age) {
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

/// Parser of server-sent events (HTML standard, 9.2.6). Event names, comments and retry times are ignored.
#[derive(Debug)]
pub struct Reader<S> {
    chunks: S,
    buffer: BytesMut,
    /// Length of the prefix of the buffer that has no line end.
    searched: usize,
    /// The last line ended with CR, so that a following LF belongs to it.
    after_cr: bool,
    /// No bytes were parsed yet: they may begin with a byte order mark.
    at_start: bool,
    /// Last `id:`, which applies to all events until the next one.
    cursor: Option<Cursor>,
    data: Option<BytesMut>,
    /// The stream has ended.
    is_done: bool,
}

impl<S> Reader<S> {
    /// Creates a parser of chunks of a response body.
    pub fn new(chunks: S) -> Self {
        Self {
            chunks,
            buffer: BytesMut::new(),
            searched: 0,
            after_cr: false,
            at_start: true,
            cursor: None,
            data: None,
            is_done: false,
        }
    }

    /// Returns the next complete event in the buffer.
    fn next_event(&mut self) -> Option<Frame> {
        while let Some(line) = self.next_line() {
            if line.is_empty() {
                if let Some(data) = self.data.take() {
                    return Some(Frame { cursor: self.cursor.clone(), data: data.freeze().into() });
                }
                continue;
            }
            let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
            let (name, value) = line.split_at(colon);
            let value = value.strip_prefix(b":").unwrap_or(value);
            let value = value.strip_prefix(b" ").unwrap_or(value);
            match (name, &mut self.data) {
                (b"data", Some(data)) => {
                    data.extend_from_slice(b"\n");
                    data.extend_from_slice(value);
                }
                (b"data", data) => *data = Some(value.into()),
                (b"id", _) => self.cursor = std::str::from_utf8(value).ok().and_then(Cursor::from_text),
                _ => {}
            }
        }
        None
    }

    /// Returns the next complete line in the buffer without its end: LF, CR or CRLF.
    fn next_line(&mut self) -> Option<BytesMut> {
        const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";
        if let (true, Some(next)) = (self.after_cr, self.buffer.first()) {
            if *next == b'\n' {
                _ = self.buffer.split_to(1);
            }
            self.after_cr = false;
        }
        if self.at_start {
            if self.buffer.len() < BYTE_ORDER_MARK.len() && BYTE_ORDER_MARK.starts_with(&self.buffer) {
                return None;
            }
            self.at_start = false;
            if self.buffer.starts_with(BYTE_ORDER_MARK) {
                _ = self.buffer.split_to(BYTE_ORDER_MARK.len());
            }
        }
        let Some(end) = self.buffer[self.searched..].iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
            self.searched = self.buffer.len();
            return None;
        };
        let line = self.buffer.split_to(self.searched + end);
        self.after_cr = self.buffer.split_to(1).first() == Some(&b'\r');
        self.searched = 0;
        Some(line)
    }
}

impl<S, E> Stream for Reader<S>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
    E: Display,
{
    type Item = Result<Frame, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if self.is_done {
                return Poll::Ready(None);
            }
            if let Some(event) = self.next_event() {
                return Poll::Ready(Some(Ok(event)));
            }
            let error = if self.buffer.len() + self.data.as_ref().map_or(0, BytesMut::len) > MAX_EVENT {
                ErrorKind::InvalidAgentResponse.because(format!("the event exceeds the limit of {MAX_EVENT} bytes"))
            } else {
                match ready!(Pin::new(&mut self.chunks).poll_next(cx)) {
                    Some(Ok(chunk)) => {
                        self.buffer.extend_from_slice(&chunk);
                        continue;
                    }
                    Some(Err(error)) => ErrorKind::Unavailable.because(format!("the stream broke off: {error}")),
                    // An event without its final empty line is incomplete and is discarded.
                    None => {
                        self.is_done = true;
                        continue;
                    }
                }
            };
            self.is_done = true;
            return Poll::Ready(Some(Err(error.into())));
        }
    }
}
