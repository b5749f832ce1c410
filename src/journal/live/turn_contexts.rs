//! Contexts of unanswered messages (principal, extensions, metadata and so on), encoded as JSON. They are stored with
//! the task, so that a turn that is run again after a restart has them.

use bytes::Bytes;

use super::LiveState;
use crate::event::Seq;

/// Maximum size of the contexts of a task in bytes. Contexts that exceed it are not stored.
const MAX_BYTES: usize = 1 << 20;

/// Sequence number of a message, and its context in JSON.
pub(super) type StoredContext = (Seq, Box<str>);

impl LiveState {
    /// Stores the context of a message, given in JSON.
    pub(crate) fn store_context(&mut self, seq: Seq, text: Box<str>) {
        let total: usize = self.accepted.contexts.iter().map(|context| context.1.len()).sum();
        if total + text.len() <= MAX_BYTES {
            self.accepted.contexts.push((seq, text));
            self.encode_contexts();
        }
    }

    /// Drops the contexts of messages before this one; with `None`, all.
    pub(crate) fn drop_contexts(&mut self, before: Option<Seq>) {
        if self.accepted.contexts.is_empty() {
            return;
        }
        let count = self.accepted.contexts.len();
        self.accepted.contexts.retain(|context| before.is_some_and(|before| context.0 >= before));
        if self.accepted.contexts.len() < count {
            self.encode_contexts();
        }
    }

    /// Encodes the contexts as a JSON array for the next commit. Empty if there are none.
    fn encode_contexts(&mut self) {
        let contexts: Vec<&str> = self.accepted.contexts.iter().map(|context| &*context.1).collect();
        let text = if contexts.is_empty() { String::new() } else { format!("[{}]", contexts.join(",")) };
        self.accepted.changed_contexts = Some(Bytes::from(text));
    }
}
