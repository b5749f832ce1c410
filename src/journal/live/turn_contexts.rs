//! Contexts of unanswered messages (principal, extensions, metadata and so on), encoded as JSON. They are stored with
//! the task, so that a turn that is run again after a restart has them.

use bytes::Bytes;

use super::Inner;
use crate::event::Seq;

/// Maximum size of the contexts of a task in bytes. Contexts that exceed it are not stored.
const MAX_BYTES: usize = 1 << 20;

/// Sequence number of a message, and its context in JSON.
pub(super) type StoredContext = (Seq, Box<str>);

impl Inner {
    /// Stores the context of a message, given in JSON.
    pub(crate) fn note(&mut self, seq: Seq, text: Box<str>) {
        let total: usize = self.notes.iter().map(|context| context.1.len()).sum();
        if total + text.len() <= MAX_BYTES {
            self.notes.push((seq, text));
            self.write_notes();
        }
    }

    /// Drops the contexts of messages before this one; with `None`, all.
    pub(crate) fn forget_notes(&mut self, before: Option<Seq>) {
        if self.notes.is_empty() {
            return;
        }
        let count = self.notes.len();
        self.notes.retain(|context| before.is_some_and(|before| context.0 >= before));
        if self.notes.len() < count {
            self.write_notes();
        }
    }

    /// Encodes the contexts as a JSON array for the next commit. Empty if there are none.
    fn write_notes(&mut self) {
        let notes: Vec<&str> = self.notes.iter().map(|context| &*context.1).collect();
        let text = if notes.is_empty() { String::new() } else { format!("[{}]", notes.join(",")) };
        self.asked = Some(Bytes::from(text));
    }
}
