//! Where an event stands in the log of its task, and what is over with it.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
};

/// The number of an event in its task: 1, 2, 3 …, without a gap.
pub type Seq = u64;

/// Which opening of the store, or which claim of the task, wrote an event. It only grows.
pub type Fence = u64;

/// Where in the log of its task an event stands. The pair names one event for ever: where a crash took the end of a
/// log, its numbers come again, and under another fence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Who wrote it.
    pub fence: Fence,
    /// Its number.
    pub seq: Seq,
}

/// What a stream can be taken up again after: opaque to clients, the `id:` of a server-sent event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(Arc<str>);

/// What is over when an event was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ends {
    /// More will come.
    #[default]
    Nothing,
    /// The agent waits for its caller.
    Turn,
    /// There will be no event after this one.
    Task,
}

/// What the message of an event does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// An agent that goes on while its caller authorises something ends nothing by saying so.
    pub ends: Ends,
    /// It changes the task, and no stream carries it: a follow-up of the caller.
    pub hidden: bool,
}

impl Mark {
    /// An event that a stream carries, and that ends nothing.
    pub const NOTHING: Self = Self { ends: Ends::Nothing, hidden: false };
    /// An event that no stream carries.
    pub const HIDDEN: Self = Self { ends: Ends::Nothing, hidden: true };

    /// An event with which this is over.
    pub const fn ending(ends: Ends) -> Self {
        Self { ends, hidden: false }
    }

    /// As stores keep it.
    pub fn to_byte(self) -> u8 {
        let ends = match self.ends {
            Ends::Nothing => 0,
            Ends::Turn => 1,
            Ends::Task => 2,
        };
        ends | u8::from(self.hidden) << 2
    }

    /// As stores kept it.
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
    /// After an event of a task.
    pub fn new(task_id: &str, Position { fence, seq }: Position) -> Self {
        // Every streamed event has one: on the stack, so that it is made in one piece.
        let mut text = Stack { bytes: [0; 160], length: 0 };
        match write!(text, "{task_id}.{fence}.{seq}") {
            Ok(()) => Self(text.as_str().into()),
            Err(_) => Self(format!("{task_id}.{fence}.{seq}").into()),
        }
    }

    /// One that came from elsewhere, as it is. Refuses what would break out of its line.
    pub fn from_text(text: &str) -> Option<Self> {
        (!text.is_empty() && text.len() <= 256 && !text.contains(['\0', '\n', '\r'])).then(|| Self(text.into()))
    }

    /// The task and the place that one of ours is for.
    pub fn parts(&self) -> Option<(&str, Position)> {
        let (rest, seq) = self.0.rsplit_once('.')?;
        let (task_id, fence) = rest.rsplit_once('.')?;
        Some((task_id, Position { fence: fence.parse().ok()?, seq: seq.parse().ok()? }))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Text that is short.
struct Stack {
    bytes: [u8; 160],
    length: usize,
}

impl Stack {
    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

impl fmt::Write for Stack {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_a_byte() {
        for ends in [Ends::Nothing, Ends::Turn, Ends::Task] {
            for hidden in [false, true] {
                let mark = Mark { ends, hidden };
                assert_eq!(Mark::from_byte(mark.to_byte()), mark);
            }
        }
    }

    #[test]
    fn a_cursor_stays_on_its_line() {
        assert_eq!(Cursor::from_text("a\nid: b"), None);
        assert_eq!(Cursor::from_text("foreign").unwrap().parts(), None);
    }
}
