//! What came with messages beside them, as text, for as long as they are not answered: a turn that is run again finds it.

use bytes::Bytes;

use super::Inner;
use crate::event::Seq;

/// How many bytes of it are kept of a task at most. What would be more is not kept.
const MOST: usize = 1 << 20;

/// What came with the message of this number.
pub(super) type StoredContext = (Seq, Box<str>);

impl Inner {
    /// Keeps what came with a message, in JSON.
    pub(crate) fn note(&mut self, seq: Seq, text: Box<str>) {
        let kept: usize = self.notes.iter().map(|it| it.1.len()).sum();
        if kept + text.len() <= MOST {
            self.notes.push((seq, text));
            self.write_notes();
        }
    }

    /// What came with the messages before this one is needed no more; and with any, where there is none.
    pub(crate) fn forget_notes(&mut self, before: Option<Seq>) {
        if self.notes.is_empty() {
            return;
        }
        let there = self.notes.len();
        self.notes.retain(|it| before.is_some_and(|before| it.0 >= before));
        if self.notes.len() < there {
            self.write_notes();
        }
    }

    /// For the next commit, as an array.
    fn write_notes(&mut self) {
        let notes: Vec<&str> = self.notes.iter().map(|it| &*it.1).collect();
        let text = if notes.is_empty() { String::new() } else { format!("[{}]", notes.join(",")) };
        self.asked = Some(Bytes::from(text));
    }
}
