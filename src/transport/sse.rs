//! Server-sent events: streams of JSON over HTTP, written by REST and JSON-RPC and read by the clients of both.

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

/// What is ready goes out in writes of about so many bytes.
const WRITE: usize = 32 << 10;

/// An event that has not ended after so many bytes is refused.
const MAX_EVENT: usize = 16 << 20;

const COMMENT: Bytes = Bytes::from_static(b": keep-alive\n\n");

/// Writes an item, or an error in its place, as one line of JSON.
pub(crate) trait Write: Fn(&mut Vec<u8>, Result<&JsonLine, &Error>) + Send + Unpin + 'static {}

impl<F: Fn(&mut Vec<u8>, Result<&JsonLine, &Error>) + Send + Unpin + 'static> Write for F {}

/// The line that names an event as one without a name is called, which 0.3 over JSON-RPC says.
pub(crate) const MESSAGE: &[u8] = b"event: message\n";

/// Answers with a stream. `name` is the line that names each event, if anything does; `begun` says that its reader has
/// had events of it before.
pub(super) fn response(
    name: &'static [u8],
    items: BoxStream<Frame>,
    begun: bool,
    headers: HeaderMap,
    limits: &Limits,
    write: impl Write,
) -> Response<Body> {
    let &Limits { keep_alive, stream_age, .. } = limits;
    let events = Events { name, items: Some(items), begun, write, keep_alive, spoke: Instant::now(), timer: None };
    let mut response = Response::new(Body::events(events));
    *response.headers_mut() = headers;
    if let Some(until) = WriteDeadline::after(stream_age) {
        response.extensions_mut().insert(until);
    }
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // nginx would keep events back until it has a buffer full of them.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

/// A stream as a body: all that is ready goes out in one write, and a comment where nothing is for long.
struct Events<W> {
    /// The line that names an event, if there is one.
    name: &'static [u8],
    items: Option<BoxStream<Frame>>,
    /// There was an event, after which the stream can be taken up.
    begun: bool,
    write: W,
    keep_alive: Duration,
    /// When something was written last.
    spoke: Instant,
    /// Made when there is first something to wait for, and moved only when it fires: an event costs it nothing.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<W: Write> http_body::Body for Events<W> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Status>>> {
        let mut out = Vec::new();
        while out.len() < WRITE {
            let Some(items) = &mut self.items else { break };
            match items.as_mut().poll_next(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    // Where it is not known that there is more, whoever writes this comes for it.
                    let is_alone = items.size_hint().0 == 0;
                    self.event(&mut out, &frame);
                    if is_alone {
                        break;
                    }
                }
                Poll::Ready(Some(Err(status))) => self.last(&mut out, status),
                Poll::Ready(None) => self.items = None,
                Poll::Pending if out.is_empty() => return self.poll_silence(cx).map(|it| Some(Ok(it))),
                Poll::Pending => break,
            }
        }
        if out.is_empty() {
            return Poll::Ready(None);
        }
        self.spoke = Instant::now();
        Poll::Ready(Some(Ok(http_body::Frame::data(out.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.items.is_none()
    }
}

impl<W: Write> Events<W> {
    fn event(&mut self, out: &mut Vec<u8>, Frame { cursor, data }: &Frame) {
        self.begun = true;
        // And what is around a line.
        out.reserve(data.approx_len() + 128);
        if let Some(cursor) = cursor {
            for part in [b"id: ", cursor.as_bytes(), b"\n"] {
                out.extend_from_slice(part);
            }
        }
        out.extend_from_slice(self.name);
        out.extend_from_slice(b"data: ");
        (self.write)(out, Ok(data));
        out.extend_from_slice(b"\n\n");
    }

    /// An error is the last event, and says so in its name. A server that goes away ends a stream that has begun without
    /// one: an `EventSource` takes an end for a reason to come again, with the cursor it has.
    fn last(&mut self, out: &mut Vec<u8>, status: Status) {
        self.items = None;
        let error = Error::from(status);
        if error.kind() != ErrorKind::Unavailable || !self.begun {
            out.extend_from_slice(b"event: error\ndata: ");
            (self.write)(out, Err(&error));
            out.extend_from_slice(b"\n\n");
        }
    }

    /// Proxies close what is silent for long, so it isn't.
    fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<http_body::Frame<Bytes>> {
        if self.keep_alive.is_zero() {
            return Poll::Pending;
        }
        let mut due = clock::after(self.spoke, self.keep_alive);
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
        loop {
            ready!(timer.as_mut().poll(cx));
            let now = Instant::now();
            let silent = due <= now;
            if silent {
                self.spoke = now;
                due = clock::after(now, self.keep_alive);
            }
            timer.as_mut().reset(due);
            if silent {
                return Poll::Ready(http_body::Frame::data(COMMENT));
            }
        }
    }
}

/// Reads bytes as events, as the standard of HTML says. The names of events, comments and retry times are left aside.
#[derive(Debug)]
pub struct Reader<S> {
    chunks: S,
    buffer: BytesMut,
    /// How much of the buffer has no end of a line.
    searched: usize,
    /// The last line ended in CR, so that an LF is its second half.
    after_cr: bool,
    /// Nothing was read yet: what is first may be a byte order mark.
    fresh: bool,
    /// Stays what it was until an event has another.
    cursor: Option<Cursor>,
    data: Option<BytesMut>,
    over: bool,
}

impl<S> Reader<S> {
    /// Reads what comes.
    pub fn new(chunks: S) -> Self {
        Self {
            chunks,
            buffer: BytesMut::new(),
            searched: 0,
            after_cr: false,
            fresh: true,
            cursor: None,
            data: None,
            over: false,
        }
    }

    /// The next event in the buffer, if it is there whole.
    fn event(&mut self) -> Option<Frame> {
        while let Some(line) = self.line() {
            if line.is_empty() {
                if let Some(data) = self.data.take() {
                    return Some(Frame { cursor: self.cursor.clone(), data: data.freeze().into() });
                }
                continue;
            }
            let colon = line.iter().position(|it| *it == b':').unwrap_or(line.len());
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

    /// The next line in the buffer, without its end: LF, CR, or both.
    fn line(&mut self) -> Option<BytesMut> {
        const MARK: &[u8] = b"\xEF\xBB\xBF";
        if let (true, Some(next)) = (self.after_cr, self.buffer.first()) {
            if *next == b'\n' {
                _ = self.buffer.split_to(1);
            }
            self.after_cr = false;
        }
        if self.fresh {
            if self.buffer.len() < MARK.len() && MARK.starts_with(&self.buffer) {
                return None;
            }
            self.fresh = false;
            if self.buffer.starts_with(MARK) {
                _ = self.buffer.split_to(MARK.len());
            }
        }
        let Some(end) = self.buffer[self.searched..].iter().position(|it| matches!(it, b'\n' | b'\r')) else {
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
            if self.over {
                return Poll::Ready(None);
            }
            if let Some(event) = self.event() {
                return Poll::Ready(Some(Ok(event)));
            }
            let error = if self.buffer.len() + self.data.as_ref().map_or(0, BytesMut::len) > MAX_EVENT {
                ErrorKind::InvalidAgentResponse.because(format!("an event of more than {MAX_EVENT} bytes"))
            } else {
                match ready!(Pin::new(&mut self.chunks).poll_next(cx)) {
                    Some(Ok(chunk)) => {
                        self.buffer.extend_from_slice(&chunk);
                        continue;
                    }
                    Some(Err(e)) => ErrorKind::Unavailable.because(format!("the stream broke off: {e}")),
                    // An event without its empty line was cut off, and does not count.
                    None => {
                        self.over = true;
                        continue;
                    }
                }
            };
            self.over = true;
            return Poll::Ready(Some(Err(error.into())));
        }
    }
}
