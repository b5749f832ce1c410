//! Parser of server-sent events (SSE).

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use futures_util::Stream;

use super::{
    bounded_body::{BodyError, MAX_WITHOUT_EVENT},
    decoding::BYTE_ORDER_MARK,
};

/// Returns a text without its byte order mark.
pub(crate) fn without_mark(text: &Bytes) -> Bytes {
    text.slice_ref(text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text))
}

fn is_json(line: &[u8]) -> bool {
    line.trim_ascii_start().starts_with(b"{")
}

/// Names of events that only keep the connection open.
const PINGS: [&str; 4] = ["ping", "heartbeat", "keepalive", "keep-alive"];

/// Data that ends a stream, as in the APIs of `OpenAI`.
const DONE: &[u8] = b"[DONE]";

/// Server-sent event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SseEvent {
    /// Id of the event or of an earlier one: an id applies to all events until the next one.
    pub id: Option<Bytes>,
    /// Name of the event. Empty if it has none.
    pub name: Bytes,
    /// Data, whose lines are joined with line feeds. Not blank.
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

/// Parser of server-sent events (HTML standard, 9.2.6). Comments, events without data and [`PINGS`] are ignored. The
/// stream ends after `[DONE]`.
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
    /// Bytes that are skipped if the next line begins with them: a byte order mark, or an LF after a CR.
    skipped: &'static [u8],
    /// Id of the last event so far, which may have no data.
    pub(crate) id: Option<Bytes>,
    /// Time in milliseconds after which the server asks for a reconnection.
    pub(crate) retry: Option<u64>,
    name: Bytes,
    data: Option<BytesMut>,
    /// The stream has ended with `[DONE]`.
    pub(crate) is_done: bool,
    /// Number of bytes since the last event that belong to none.
    ignored: usize,
    /// First line that is no field. One that is JSON takes precedence.
    invalid_line: Option<Bytes>,
    /// Number of lines that are no field.
    invalid_lines: usize,
}

/// Logs that lines were ignored.
impl<S> Drop for SseReader<S> {
    fn drop(&mut self) {
        if self.invalid_lines > 0 {
            tracing::warn!(lines = self.invalid_lines, "lines of an event stream ignored: they are no fields");
        }
    }
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
            skipped: BYTE_ORDER_MARK,
            id: None,
            retry: None,
            name: Bytes::new(),
            data: None,
            is_done: false,
            ignored: 0,
            invalid_line: None,
            invalid_lines: 0,
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

    /// Returns the first line so far that has no field, and is a JSON object or the beginning of one: an event without `data:`.
    pub fn json_line(&self) -> Option<&[u8]> {
        self.invalid_line().filter(|line| is_json(line))
    }

    /// Returns the next complete event in the buffer.
    fn next_event(&mut self) -> Option<SseEvent> {
        while !self.is_done
            && let Some(line) = self.next_line()
        {
            self.ignored += 1;
            if !line.is_empty() {
                self.add_line(line);
            } else if let Some(event) = self.take_event() {
                return Some(event);
            }
        }
        None
    }

    fn take_event(&mut self) -> Option<SseEvent> {
        let name = std::mem::take(&mut self.name);
        let mut data = self.data.take()?.freeze();
        // Some servers put no empty line between their events, which are then one event with several lines of data.
        let before = data.trim_ascii_end().strip_suffix(DONE);
        let before = before.filter(|before| before.ends_with(b"\n") || before.trim_ascii().is_empty()).map(<[u8]>::len);
        if let Some(end) = before {
            self.is_done = true;
            data.truncate(end);
        }
        let is_ping = PINGS.iter().any(|ping| name.eq_ignore_ascii_case(ping.as_bytes()));
        if is_ping || data.trim_ascii().is_empty() {
            self.ignored += data.len();
            return None;
        }
        self.ignored = 0;
        Some(SseEvent { id: self.id.clone(), name, data })
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
            (b"event", _) => self.name = Bytes::copy_from_slice(value),
            // The standard ignores a time that is no number.
            (b"retry", _) => self.retry = str::from_utf8(value).ok().and_then(|time| time.parse().ok()).or(self.retry),
            (b"", _) => {}
            _ => {
                self.invalid_lines += 1;
                if self.invalid_line.is_none() || (is_json(&line) && self.json_line().is_none()) {
                    self.invalid_line = Some(line.freeze());
                }
            }
        }
    }

    /// Returns the next complete line in the buffer without its end: LF, CR or CRLF.
    fn next_line(&mut self) -> Option<BytesMut> {
        if self.buffer.len() < self.skipped.len() && self.skipped.starts_with(&self.buffer) {
            return None;
        }
        if self.buffer.starts_with(self.skipped) {
            _ = self.buffer.split_to(self.skipped.len());
        }
        self.skipped = b"";
        let Some(end) = self.buffer[self.searched..].iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
            self.searched = self.buffer.len();
            return None;
        };
        let line = self.buffer.split_to(self.searched + end);
        if self.buffer.split_to(1).first() == Some(&b'\r') {
            self.skipped = b"\n";
        }
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
            let end = if self.is_done {
                None
            } else if self.buffer.len() + self.data.as_ref().map_or(0, BytesMut::len) > self.max_event {
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
                    None if self.accepts_unterminated => {
                        let line = self.buffer.split();
                        self.add_line(line);
                        self.take_event().map(Ok)
                    }
                    None => None,
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
    use proptest::{prelude::*, sample::Index};

    use super::*;

    const MAX: usize = 16 << 20;

    fn reader(chunks: Vec<Bytes>) -> SseReader<impl Stream<Item = Result<Bytes, Infallible>> + Unpin> {
        SseReader::new(stream::iter(chunks.into_iter().map(Ok)), MAX)
    }

    /// Reads events as id, name and data.
    fn read(reader: SseReader<impl Stream<Item = Result<Bytes, Infallible>> + Unpin>) -> Vec<[String; 3]> {
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        let events = reader.map(|event| {
            let event = event.unwrap();
            [event.id.as_ref().map(text).unwrap_or_default(), text(&event.name), text(&event.data)]
        });
        // All chunks are there.
        events.collect::<Vec<_>>().now_or_never().unwrap()
    }

    fn events(events: &[[&str; 3]]) -> Vec<[String; 3]> {
        events.iter().map(|event| event.map(str::to_owned)).collect()
    }

    /// Checks the events of bytes that arrive at once, as single bytes, and cut at each position.
    fn check_splits(bytes: &Bytes, check: impl Fn(Vec<Bytes>, &str)) {
        check(bytes.iter().map(|byte| Bytes::copy_from_slice(&[*byte])).collect(), "in single bytes");
        for at in 0..=bytes.len() {
            check(vec![bytes.slice(..at), bytes.slice(at..)], &format!("cut at {at}"));
        }
    }

    /// Events are equal for every line ending and every split of the bytes.
    #[test]
    fn events_are_read_across_any_split() {
        let text = "\u{feff}id: ä\n: comment\ndata: one\n\ndata\n\ndata:two\ndata:  three\nunknown: x\n\n\n\
                    id: a\0b\nevent: error\nretry: 1\ndata: {}\n\nid\ndata: four\n\ndata: cut\ndata: off";
        let expected = events(&[["ä", "", "one"], ["ä", "", "two\n three"], ["ä", "error", "{}"], ["", "", "four"]]);
        let with_last = [&expected[..], &events(&[["", "", "cut\noff"]])].concat();
        for end in ["\n", "\r\n", "\r"] {
            check_splits(&Bytes::from(text.replace('\n', end)), |chunks, cut| {
                assert_eq!(read(reader(chunks.clone())), expected, "{end:?} {cut}");
                assert_eq!(read(reader(chunks).accept_unterminated()), with_last, "{end:?} {cut}");
            });
        }
    }

    /// The first line in JSON without `data:`, the last valid time, and the last id.
    #[test]
    fn lines_beside_events_are_known() {
        for (text, line, retry, id) in [
            ("data: a\n\n{\"b\":1}\n\n{\"c\":1}\n", Some("{\"b\":1}"), None, None),
            ("foo\nx\n {\"b", Some(" {\"b"), None, None),
            ("foo\n<html>\ndata: {}\n\n", None, None, None),
            ("retry: 5\nretry: soon\nid: 1\ndata: \n\n", None, Some(5), Some(&b"1"[..])),
        ] {
            check_splits(&Bytes::from(text), |chunks, cut| {
                let mut reader = reader(chunks).accept_unterminated();
                while reader.next().now_or_never().unwrap().is_some() {}
                assert_eq!(reader.json_line(), line.map(str::as_bytes), "{text:?}, {cut}");
                assert_eq!((reader.retry, reader.id.as_deref()), (retry, id), "{text:?}, {cut}");
            });
        }
    }

    /// Variants of streams, each with the data of its events.
    const VARIANTS: [(&str, &str, &[&str]); 38] = [
        ("nothing", "", &[]),
        ("LF", "data: a\n\ndata: b\n\n", &["a", "b"]),
        ("CRLF", "data: a\r\n\r\ndata: b\r\n\r\n", &["a", "b"]),
        ("CR", "data: a\r\rdata: b\r\r", &["a", "b"]),
        ("LF, then CRLF", "data: a\n\r\ndata: b\n\r\n", &["a", "b"]),
        ("CRLF, then CR", "data: a\r\n\rdata: b\r\n\r", &["a", "b"]),
        ("CR, then CRLF", "data: a\r\r\ndata: b\r\r\n", &["a", "b"]),
        ("each line end once", "data: a\r\ndata: b\rdata: c\n\n", &["a\nb\nc"]),
        ("byte order mark", "\u{feff}data: a\n\n", &["a"]),
        ("byte order mark and CRLF", "\u{feff}data: a\r\n\r\n", &["a"]),
        ("byte order mark and CR", "\u{feff}data: a\r\r", &["a"]),
        ("byte order mark and an empty line", "\u{feff}\n\ndata: a\n\n", &["a"]),
        ("second byte order mark", "\u{feff}\u{feff}data: a\n\ndata: b\n\n", &["b"]),
        ("byte order mark in the data", "data: \u{feff}a\n\n", &["\u{feff}a"]),
        ("only a byte order mark", "\u{feff}", &[]),
        ("several lines of data", "data: {\ndata:  \"a\": 1\ndata: }\n\n", &["{\n \"a\": 1\n}"]),
        ("no space", "data:a\n\n", &["a"]),
        ("two spaces", "data:  a\n\n", &[" a"]),
        ("tab", "data:\ta\n\n", &["\ta"]),
        ("colon in the data", "data: a: b\n\n", &["a: b"]),
        ("comment", ": ping - 2026-11-26\n\ndata: a\n\n", &["a"]),
        ("comment in an event", "data: a\n: x\ndata: b\n\n", &["a\nb"]),
        ("empty data", "data: \n\ndata: a\n\ndata:\n\n", &["a"]),
        ("empty data without a colon", "data\n\ndata: a\n\n", &["a"]),
        ("blank data of several lines", "data:  \ndata:\n\ndata: a\n\n", &["a"]),
        ("empty line of data", "data: a\ndata:\ndata: b\n\n", &["a\n\nb"]),
        ("event without data", "event: x\n\ndata: a\n\n", &["a"]),
        ("ping", "event: ping\ndata: {\"type\": \"ping\"}\n\ndata: a\n\n", &["a"]),
        ("ping with the name last", "data: x\nevent: PING\n\ndata: a\n\n", &["a"]),
        ("other names of pings", "event: heartbeat\ndata: {}\n\nevent:keep-alive\ndata: 1\n\ndata: a\n\n", &["a"]),
        ("end marker", "data: a\n\ndata: [DONE]\n\ndata: b\n\n", &["a"]),
        ("end marker with spaces", "data: a\n\ndata:   [DONE] \n\ndata: b\n\n", &["a"]),
        ("end marker without an empty line", "data: a\ndata: b\ndata: [DONE]\n\ndata: c\n\n", &["a\nb\n"]),
        ("text of the end marker", "data: a [DONE]\n\ndata: \"[DONE]\"\n\n", &["a [DONE]", "\"[DONE]\""]),
        ("unknown field", "foo: x\nDATA: b\ndata : c\ndata: a\n\n", &["a"]),
        ("line that is no field", "<html>\ndata: a\n\n", &["a"]),
        ("retry time", "retry: 10\ndata: a\n\n", &["a"]),
        ("event without its empty line", "data: a\n\ndata: b\n", &["a"]),
    ];

    #[test]
    fn variants_of_streams_are_read() {
        for (name, text, expected) in VARIANTS {
            check_splits(&Bytes::from(text), |chunks, cut| {
                let found: Vec<_> = read(reader(chunks)).into_iter().map(|[_, _, data]| data).collect();
                assert_eq!(found, expected, "{name}, {cut}");
            });
        }
        let cut_character = Bytes::from_static(b"data: \xf0\x9f\n\ndata: \xff\n\n");
        check_splits(&cut_character, |chunks, cut| {
            assert_eq!(read(reader(chunks)), events(&[["", "", "\u{fffd}"], ["", "", "\u{fffd}"]]), "{cut}");
        });
    }

    #[test]
    fn end_of_a_stream_is_known() {
        for (text, is_done) in [
            ("data: a\n\ndata: [DONE]\n\n", true),
            ("data: a\ndata: [DONE]", true),
            ("data: [DONE]\n", true),
            ("event: ping\ndata: [DONE]\n\n", true),
            ("data: a\n\n", false),
            ("data: a[DONE]\n\n", false),
        ] {
            let mut events = reader(vec![text.into()]).accept_unterminated();
            while events.next().now_or_never().unwrap().is_some() {}
            assert_eq!(events.is_done, is_done, "{text:?}");
        }
    }

    /// Id and name of an event, and its lines of data, each with the number of its line end.
    type SentEvent = ([Option<String>; 2], Vec<(String, u8)>);

    fn event() -> impl Strategy<Value = SentEvent> {
        let name = proptest::option::of("[a-z]{1,3}");
        // Neither a line end, nor blank, nor the end marker.
        let data = prop::collection::vec(("x[^\r\n]{0,6}", 0_u8..6), 1..4);
        (name.clone(), name, data).prop_map(|(id, name, data)| ([id, name], data))
    }

    /// Writes events with a line end for each line, which is one of three, and with comments.
    fn write(events: &[SentEvent], has_mark: bool) -> Vec<u8> {
        let mut text = String::from(if has_mark { "\u{feff}" } else { "" });
        for ([id, name], data) in events {
            let end = |number: u8| ["\n", "\r\n", "\r"][usize::from(number % 3)];
            // The last line of an event decides about that of its empty line.
            let last = data.last().map_or(0, |(_, number)| number / 2);
            for (field, value) in [("id", id), ("event", name)] {
                text.extend(value.iter().flat_map(|value| [field, ": ", value.as_str(), end(last)]));
            }
            for (line, number) in data {
                let comment = if *number > 2 { ": x\n" } else { "" };
                text.extend([comment, "data: ", line.as_str(), end(*number)]);
            }
            // A CR and an LF would be one line end.
            let is_after_cr = text.ends_with('\r');
            text.push_str(if is_after_cr && last % 3 == 0 { "\r" } else { end(last) });
        }
        text.into_bytes()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_stream_has_the_same_events_however_it_is_cut(
            sent in prop::collection::vec(event(), 0..6),
            has_mark in any::<bool>(),
            cuts in prop::collection::vec(any::<Index>(), 0..8),
        ) {
            let bytes = Bytes::from(write(&sent, has_mark));
            let mut positions: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            positions.extend([0, bytes.len()]);
            positions.sort_unstable();
            let chunks = positions.windows(2).map(|ends| bytes.slice(ends[0]..ends[1])).collect();
            let mut id = String::new();
            let expected: Vec<_> = sent.into_iter().map(|([own_id, name], data)| {
                id = own_id.unwrap_or_else(|| id.clone());
                let data: Vec<_> = data.into_iter().map(|(line, _)| line).collect();
                [id.clone(), name.unwrap_or_default(), data.join("\n")]
            }).collect();
            prop_assert_eq!(read(reader(chunks)), expected);
        }
    }

    #[test]
    fn unterminated_event_may_end_at_any_place() {
        for (text, expected) in
            [("data: a", "a"), ("data: a\n", "a"), ("data: a\r", "a"), ("data: a\n\n", "a"), ("data: a\r\n\r", "a")]
        {
            let found = read(reader(vec![text.into()]).accept_unterminated());
            assert_eq!(found, events(&[["", "", expected]]), "{text:?}");
        }
        for text in ["", "\n", "id: 1\n", ": a"] {
            assert_eq!(read(reader(vec![text.into()]).accept_unterminated()), events(&[]), "{text:?}");
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
        let pings = ["event: ping\ndata: {}\n\n", "data:    \n\n", ": ping\n\n"];
        for text in [":", "id: 1\n\n", "data\n\n", "data:\n", "\r\n", "event: x\n"].into_iter().chain(pings) {
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
        assert_eq!(read(reader(vec![format!("data: {line}\n\n").into()]))[0][2], line);
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
