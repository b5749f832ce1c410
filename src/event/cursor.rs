//! Where an event stands in the log of its task, and what is over with it.

use std::{fmt, sync::Arc};

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
#[derive(Clone)]
pub struct Cursor(Text);

/// Every streamed event has one, and most are short: those cost no memory of their own.
#[derive(Clone)]
enum Text {
    Short(u8, [u8; SHORT]),
    Long(Arc<str>),
}

/// As long as one of ours is, with room for some billions of events.
const SHORT: usize = 62;

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
        let (mut fence_text, mut seq_text) = ([0; 20], [0; 20]);
        let parts = [task_id.as_bytes(), b".", digits(&mut fence_text, fence), b".", digits(&mut seq_text, seq)];
        let (mut text, mut length) = ([0; SHORT], 0);
        for part in parts {
            match text.get_mut(length..length + part.len()) {
                Some(place) => place.copy_from_slice(part),
                None => return Self(Text::Long(format!("{task_id}.{fence}.{seq}").into())),
            }
            length += part.len();
        }
        Self(Text::Short(u8::try_from(length).unwrap_or(u8::MAX), text))
    }

    /// One that came from elsewhere, as it is. Refuses what would break out of its line.
    pub fn from_text(text: &str) -> Option<Self> {
        (!text.is_empty() && text.len() <= 256 && !text.contains(['\0', '\n', '\r']))
            .then(|| Self(Text::Long(text.into())))
    }

    /// One that came from elsewhere and can't be read: it is there, and fits no log.
    pub(crate) fn nowhere() -> Self {
        Self(Text::Long("?".into()))
    }

    /// The task and the place that one of ours is for.
    pub fn parts(&self) -> Option<(&str, Position)> {
        let (rest, seq) = self.as_str().rsplit_once('.')?;
        let (task_id, fence) = rest.rsplit_once('.')?;
        Some((task_id, Position { fence: fence.parse().ok()?, seq: seq.parse().ok()? }))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Text::Short(length, text) => {
                text.get(..usize::from(*length)).and_then(|it| str::from_utf8(it).ok()).unwrap_or_default()
            }
            Text::Long(it) => it,
        }
    }

    /// Its bytes.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Text::Short(length, text) => text.get(..usize::from(*length)).unwrap_or_default(),
            Text::Long(it) => it.as_bytes(),
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

/// A number in decimal.
fn digits(text: &mut [u8; 20], mut number: u64) -> &[u8] {
    let mut at = text.len();
    loop {
        at -= 1;
        text[at] = b'0' + u8::try_from(number % 10).unwrap_or(0);
        number /= 10;
        if number == 0 {
            return &text[at..];
        }
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
    fn a_mark_is_a_byte() {
        for ends in [Ends::Nothing, Ends::Turn, Ends::Task] {
            for hidden in [false, true] {
                let mark = Mark { ends, hidden };
                assert_eq!(Mark::from_byte(mark.to_byte()), mark);
            }
        }
    }

    #[test]
    fn a_cursor_is_the_task_and_the_place() {
        for id in ["t", &"long".repeat(60)] {
            for (fence, seq) in [(0, 0), (1, 9), (10, 1234), (u64::MAX, u64::MAX)] {
                let cursor = Cursor::new(id, Position { fence, seq });
                assert_eq!(cursor.as_str(), format!("{id}.{fence}.{seq}"));
            }
        }
    }

    #[test]
    fn a_cursor_stays_on_its_line() {
        assert_eq!(Cursor::from_text("a\nid: b"), None);
        assert_eq!(Cursor::from_text("foreign").unwrap().parts(), None);
    }
}
