//! Position of an event in the log of its task, the cursor to resume a stream after it, and its mark.

use std::{fmt, sync::Arc};

/// Sequence number of an event in its task: 1, 2, 3 …, without gaps.
pub type Seq = u64;

/// Fencing token of the store opening or task claim that wrote an event. It only grows.
pub type Fence = u64;

/// Position of an event in the log of its task. The pair is unique forever: sequence numbers that were lost in a crash
/// are reused only with a higher fence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Fencing token of the writer.
    pub fence: Fence,
    /// Sequence number.
    pub seq: Seq,
}

/// Cursor after which a stream is resumed: opaque to clients, the `id:` of a server-sent event, and its
/// `Last-Event-ID`.
#[derive(Clone)]
pub struct Cursor(Text);

/// Text of a cursor. Every streamed event has one, so short texts are stored inline.
#[derive(Clone)]
enum Text {
    Short(u8, [u8; SHORT]),
    Long(Arc<str>),
}

/// Bytes stored inline: enough for the 36-byte ids of this server, a fence, and some billions of events.
const SHORT: usize = 62;

/// End that an event marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ends {
    /// Neither the turn nor the task.
    #[default]
    Nothing,
    /// The turn: the agent waits for the client.
    Turn,
    /// The task: no event follows.
    Task,
}

/// Properties of an event that its message does not contain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventFlags {
    /// End that the event marks. `AUTH_REQUIRED` ends nothing if the agent continues while the client authorizes.
    pub ends: Ends,
    /// The event changes the task, but is on no stream: a follow-up message of the client.
    pub hidden: bool,
}

impl EventFlags {
    /// An event on streams that ends nothing.
    pub const NOTHING: Self = Self { ends: Ends::Nothing, hidden: false };
    /// An event that is on no stream and ends nothing.
    pub const HIDDEN: Self = Self { ends: Ends::Nothing, hidden: true };

    /// Creates the mark of an event on streams that ends the turn or the task.
    pub const fn ending(ends: Ends) -> Self {
        Self { ends, hidden: false }
    }

    /// Encodes the mark for a store.
    pub fn to_byte(self) -> u8 {
        let ends = match self.ends {
            Ends::Nothing => 0,
            Ends::Turn => 1,
            Ends::Task => 2,
        };
        ends | u8::from(self.hidden) << 2
    }

    /// Decodes a mark from a store.
    pub fn from_byte(byte: u8) -> Self {
        let ends = match byte & 3 {
            0 => Ends::Nothing,
            1 => Ends::Turn,
            _ => Ends::Task,
        };
        Self { ends, hidden: byte & 4 != 0 }
    }
}

impl Cursor {
    /// Creates the cursor of an event.
    pub fn new(task_id: &str, Position { fence, seq }: Position) -> Self {
        let (mut fence_text, mut seq_text) = (itoa::Buffer::new(), itoa::Buffer::new());
        let parts = [task_id, ".", fence_text.format(fence), ".", seq_text.format(seq)];
        let (mut text, mut length) = ([0; SHORT], 0);
        for part in parts.map(str::as_bytes) {
            match text.get_mut(length..length + part.len()) {
                Some(free) => free.copy_from_slice(part),
                None => return Self(Text::Long(format!("{task_id}.{fence}.{seq}").into())),
            }
            length += part.len();
        }
        Self(Text::Short(u8::try_from(length).unwrap_or(u8::MAX), text))
    }

    /// Wraps a cursor from another server. Returns `None` if it is empty, longer than 256 bytes, or not a single line.
    pub fn from_text(text: &str) -> Option<Self> {
        let is_valid = !text.is_empty() && text.len() <= 256 && !text.contains(['\0', '\n', '\r']);
        is_valid.then(|| Self(Text::Long(text.into())))
    }

    /// Returns a cursor that matches no log, for one that was received but is invalid.
    pub(crate) fn invalid() -> Self {
        Self(Text::Long("?".into()))
    }

    /// Splits a cursor of this server into task id and position. Returns `None` for any other.
    pub fn parts(&self) -> Option<(&str, Position)> {
        let (rest, seq) = self.as_str().rsplit_once('.')?;
        let (task_id, fence) = rest.rsplit_once('.')?;
        Some((task_id, Position { fence: fence.parse().ok()?, seq: seq.parse().ok()? }))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    /// Returns the text as bytes.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Text::Short(length, text) => text.get(..usize::from(*length)).unwrap_or_default(),
            Text::Long(text) => text.as_bytes(),
        }
    }
}

impl PartialEq for Cursor {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Cursor {}

impl fmt::Debug for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cursor").field(&self.as_str()).finish()
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mark_round_trips_through_a_byte() {
        for ends in [Ends::Nothing, Ends::Turn, Ends::Task] {
            for hidden in [false, true] {
                let mark = EventFlags { ends, hidden };
                assert_eq!(EventFlags::from_byte(mark.to_byte()), mark);
            }
        }
    }

    #[test]
    fn cursor_contains_task_id_and_position() {
        for id in ["t", &"long".repeat(60)] {
            for (fence, seq) in [(0, 0), (1, 9), (10, 1234), (u64::MAX, u64::MAX)] {
                let cursor = Cursor::new(id, Position { fence, seq });
                assert_eq!(cursor.as_str(), format!("{id}.{fence}.{seq}"));
            }
        }
    }

    #[test]
    fn cursor_is_a_single_line() {
        assert_eq!(Cursor::from_text("a\nid: b"), None);
        assert_eq!(Cursor::from_text("foreign").unwrap().parts(), None);
    }
}
