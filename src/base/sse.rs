//! Parser of server-sent events (SSE).

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use futures_util::Stream;

use super::bounded_body::{BodyError, MAX_WITHOUT_EVENT};

/// Server-sent event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SseEvent {
    /// Id of the event or of an earlier one: an id applies to all events until the next one.
    pub id: Option<Bytes>,
    /// Data, whose lines are joined with line feeds.
    pub data: Bytes,
}

/// Error of a stream of server-sent events, after which it has ended.
#[derive(Debug, thiserror::Error)]
pub enum SseError<E> {
    /// Error of the stream of chunks.
    #[error("{0}")]
    Source(E),
    /// An event exceeds this number of bytes.
    #[error("an event is larger than {0} bytes")]
    TooLarge(usize),
    /// More than this number of bytes, such as comments, belong to no event.
    #[error("the stream has more than {0} bytes without an event")]
    WithoutEvent(usize),
}

impl<E> From<SseError<Self>> for BodyError<E> {
    fn from(error: SseError<Self>) -> Self {
        match error {
            SseError::Source(error) => error,
            SseError::TooLarge(max) => Self::TooLarge(max),
            SseError::WithoutEvent(max) => Self::WithoutEvent(max),
        }
    }
}

/// Parser of server-sent events (HTML standard, 9.2.6). Event names, comments and retry times are ignored.
#[derive(Debug)]
pub struct SseReader<S> {
    /// `None` after the end.
    chunks: Option<S>,
    /// Maximum size of an event in bytes.
    max_event: usize,
    /// An event at the end of the stream needs no empty line.
    accepts_unterminated: bool,
    buffer: BytesMut,
    /// Length of the prefix of the buffer that has no line end.
    searched: usize,
    /// The last line ended with CR, so that a following LF belongs to it.
    after_cr: bool,
    /// No bytes were parsed yet: they may begin with a byte order mark.
    at_start: bool,
    id: Option<Bytes>,
    data: Option<BytesMut>,
    /// Number of bytes since the last event with data that are no data.
    ignored: usize,
    /// First line that is no field.
    invalid_line: Option<Bytes>,
}

impl<S> SseReader<S> {
    /// Creates a parser of chunks of a response body, for events of at most `max_event` bytes.
    pub fn new(chunks: S, max_event: usize) -> Self {
        Self {
            chunks: Some(chunks),
            max_event,
            accepts_unterminated: false,
            buffer: BytesMut::new(),
            searched: 0,
            after_cr: false,
            at_start: true,
            id: None,
            data: None,
            ignored: 0,
            invalid_line: None,
        }
    }

    /// Accepts an event at the end of the stream without its empty line. Only for data whose end can be recognized, such as JSON
    /// objects: the stream may have been cut. By default, the event is discarded.
    #[must_use]
    pub fn accept_unterminated(mut self) -> Self {
        self.accepts_unterminated = true;
        self
    }

    /// Returns the first line so far that has no field of the format, for the log.
    pub fn invalid_line(&self) -> Option<&[u8]> {
        self.invalid_line.as_deref()
    }

    /// Returns the next complete event in the buffer.
    fn next_event(&mut self) -> Option<SseEvent> {
        while let Some(line) = self.next_line() {
            self.ignored += 1;
            if !line.is_empty() {
                self.add_line(line);
            } else if let Some(event) = self.take_event() {
                return Some(event);
            }
        }
        None
    }

    /// Returns the event at the end of the stream.
    fn last_event(&mut self) -> Option<SseEvent> {
        if !self.accepts_unterminated {
            return None;
        }
        let line = self.buffer.split();
        self.add_line(line);
        self.take_event()
    }

    fn take_event(&mut self) -> Option<SseEvent> {
        let data = self.data.take()?.freeze();
        if !data.trim_ascii().is_empty() {
            self.ignored = 0;
        }
        Some(SseEvent { id: self.id.clone(), data })
    }

    fn add_line(&mut self, mut line: BytesMut) {
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let (name, value) = line.split_at(colon);
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        if name != b"data" || value.is_empty() {
            self.ignored += line.len();
        }
        match (name, &mut self.data) {
            (b"data", Some(data)) => {
                data.extend_from_slice(b"\n");
                data.extend_from_slice(value);
            }
            // Without a copy: an event may be large.
            (b"data", data) => {
                let start = line.len() - value.len();
                *data = Some(line.split_off(start));
            }
            // The standard ignores ids with NUL.
            (b"id", _) if value.contains(&0) => {}
            (b"id", _) => self.id = (!value.is_empty()).then(|| Bytes::copy_from_slice(value)),
            (b"" | b"event" | b"retry", _) => {}
            _ if self.invalid_line.is_none() => self.invalid_line = Some(line.freeze()),
            _ => {}
        }
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

impl<S, E> Stream for SseReader<S>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
{
    type Item = Result<SseEvent, SseError<E>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.chunks.is_none() {
            return Poll::Ready(None);
        }
        loop {
            if let Some(event) = self.next_event() {
                return Poll::Ready(Some(Ok(event)));
            }
            let end = if self.buffer.len() + self.data.as_ref().map_or(0, BytesMut::len) > self.max_event {
                Some(Err(SseError::TooLarge(self.max_event)))
            } else if self.ignored > MAX_WITHOUT_EVENT {
                Some(Err(SseError::WithoutEvent(MAX_WITHOUT_EVENT)))
            } else {
                let Some(chunks) = &mut self.chunks else { return Poll::Ready(None) };
                match ready!(Pin::new(chunks).poll_next(cx)) {
                    Some(Ok(chunk)) => {
                        self.buffer.extend_from_slice(&chunk);
                        continue;
                    }
                    Some(Err(error)) => Some(Err(SseError::Source(error))),
                    None => self.last_event().map(Ok),
                }
            };
            self.chunks = None;
            return Poll::Ready(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::{FutureExt as _, StreamExt as _, stream};

    use super::*;

    const MAX: usize = 16 << 20;

    fn reader(chunks: Vec<Bytes>) -> SseReader<impl Stream<Item = Result<Bytes, Infallible>> + Unpin> {
        SseReader::new(stream::iter(chunks.into_iter().map(Ok)), MAX)
    }

    fn read(reader: SseReader<impl Stream<Item = Result<Bytes, Infallible>> + Unpin>) -> Vec<(String, String)> {
        let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        let events = reader.map(|event| {
            let event = event.unwrap();
            (event.id.as_ref().map(text).unwrap_or_default(), text(&event.data))
        });
        // All chunks are there.
        events.collect::<Vec<_>>().now_or_never().unwrap()
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(id, data)| ((*id).to_owned(), (*data).to_owned())).collect()
    }

    /// Events are equal for every line ending and every split of the bytes.
    #[test]
    fn events_are_read_across_any_split() {
        let text = "\u{feff}id: ä\n: comment\ndata: one\n\ndata\n\ndata:two\ndata:  three\nunknown: x\n\n\n\
                    id: a\0b\nevent: error\nretry: 1\ndata: {}\n\nid\ndata: four\n\ndata: cut\ndata: off";
        let expected = pairs(&[("ä", "one"), ("ä", ""), ("ä", "two\n three"), ("ä", "{}"), ("", "four")]);
        let with_last = [&expected[..], &pairs(&[("", "cut\noff")])].concat();
        for end in ["\n", "\r\n", "\r"] {
            let bytes = Bytes::from(text.replace('\n', end));
            let check = |chunks: Vec<Bytes>, cut: &str| {
                assert_eq!(read(reader(chunks.clone())), expected, "{end:?} {cut}");
                assert_eq!(read(reader(chunks).accept_unterminated()), with_last, "{end:?} {cut}");
            };
            check(bytes.iter().map(|byte| Bytes::copy_from_slice(&[*byte])).collect(), "in single bytes");
            for at in 0..=bytes.len() {
                check(vec![bytes.slice(..at), bytes.slice(at..)], &format!("cut at {at}"));
            }
        }
    }

    #[test]
    fn unterminated_event_may_end_at_any_place() {
        for (text, expected) in
            [("data: a", "a"), ("data: a\n", "a"), ("data: a\r", "a"), ("data: a\n\n", "a"), ("data: a\r\n\r", "a")]
        {
            assert_eq!(read(reader(vec![text.into()]).accept_unterminated()), pairs(&[("", expected)]), "{text:?}");
        }
        for text in ["", "\n", "id: 1\n", ": a"] {
            assert_eq!(read(reader(vec![text.into()]).accept_unterminated()), [], "{text:?}");
        }
    }

    #[test]
    fn line_without_a_field_is_kept_for_the_log() {
        let mut events = reader(vec!["event: x\n: c\nid: 1\ndata: a\n\n{\"a\":1}\n<html>\n\n".into()]);
        assert!(events.next().now_or_never().unwrap().is_some() && events.invalid_line().is_none());
        assert!(events.next().now_or_never().unwrap().is_none());
        assert_eq!(events.invalid_line(), Some(&b"{\"a\":1}"[..]));
    }

    #[test]
    fn bytes_without_an_event_are_limited() {
        let comments = ":\n".repeat(MAX_WITHOUT_EVENT / 4);
        let text = format!("{comments}data: a\n\n{comments}");
        assert_eq!(read(reader(vec![text.clone().into(), text.into()])).len(), 2);
        for text in [": ping\n\n", ":", "id: 1\n\n", "data\n\n", "data:\n", "\r\n", "event: x\n"] {
            let chunk = Bytes::from(text.repeat(1000));
            let mut events = SseReader::new(stream::repeat_with(|| Ok::<_, Infallible>(chunk.clone())), 1 << 20);
            let (mut read, mut error) = (0, None);
            while let Some(event) = events.next().now_or_never().unwrap() {
                read += 1;
                error = event.err();
            }
            assert!(error.is_some() && read <= MAX_WITHOUT_EVENT, "{text:?}: {error:?}");
        }
    }

    #[test]
    fn size_of_an_event_is_limited() {
        let line = "x".repeat(5 << 20);
        assert_eq!(read(reader(vec![format!("data: {line}\n\n").into()]))[0].1, line);
        let line = format!("data: {}\n", "x".repeat(1000));
        for chunk in ["x".repeat(1 << 20), line.repeat(1000)] {
            let chunk = Bytes::from(chunk);
            let mut events = SseReader::new(stream::repeat_with(|| Ok::<_, Infallible>(chunk.clone())), MAX);
            let error = events.next().now_or_never().unwrap().unwrap().unwrap_err();
            assert!(matches!(error, SseError::TooLarge(MAX)), "{error}");
            assert!(events.next().now_or_never().unwrap().is_none());
        }
    }
}
