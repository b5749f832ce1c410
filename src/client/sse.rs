//! Parser of server-sent events (SSE) in the responses of remote agents.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use tokio_stream::Stream;
use tonic::Status;

use crate::{contract::Frame, error::ErrorKind, event::Cursor};

/// Default maximum size of a received event in bytes.
pub(super) const MAX_EVENT: usize = 16 << 20;

/// Parser of server-sent events (HTML standard, 9.2.6). Event names, comments and retry times are ignored.
#[derive(Debug)]
pub struct SseReader<S> {
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
    /// Maximum size of an event in bytes.
    max_event: usize,
}

impl<S> SseReader<S> {
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
            max_event: MAX_EVENT,
        }
    }

    /// Sets the maximum size of an event in bytes. 16 MiB by default.
    #[must_use]
    pub fn max_event(mut self, bytes: usize) -> Self {
        self.max_event = bytes;
        self
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

impl<S> Stream for SseReader<S>
where
    S: Stream<Item = Result<Bytes, Status>> + Unpin,
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
            let error = if self.buffer.len() + self.data.as_ref().map_or(0, BytesMut::len) > self.max_event {
                let reason = format!("the event exceeds the limit of {} bytes (SizeLimits::event)", self.max_event);
                ErrorKind::InvalidAgentResponse.because(reason)
            } else {
                match ready!(Pin::new(&mut self.chunks).poll_next(cx)) {
                    Some(Ok(chunk)) => {
                        self.buffer.extend_from_slice(&chunk);
                        continue;
                    }
                    Some(Err(status)) => {
                        self.is_done = true;
                        return Poll::Ready(Some(Err(status)));
                    }
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
