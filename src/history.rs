//! Limit of the history of a task in a reply: `historyLength` (3.2.4) and bytes.

use prost::Message as _;

use crate::proto::v1::{Message, Task};

/// Maximum history of a task in a reply. Of a longer one, the reply has the most recent messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryLimit {
    /// Maximum number of messages, unlimited if `None` (3.2.4).
    pub messages: Option<usize>,
    /// Maximum size of the messages together, in bytes of protobuf. The newest message may exceed it.
    pub bytes: usize,
}

impl Default for HistoryLimit {
    /// No limit.
    fn default() -> Self {
        Self { messages: None, bytes: usize::MAX }
    }
}

impl HistoryLimit {
    /// Returns true if a history of so many messages with so many bytes together is within the limit.
    pub(crate) fn fits(self, messages: usize, bytes: usize) -> bool {
        self.messages.is_none_or(|most| messages <= most) && (messages <= 1 || bytes <= self.bytes)
    }

    /// Number of messages at the beginning of a history that exceed the limit.
    pub(crate) fn surplus(self, history: &[Message]) -> usize {
        let most = self.messages.map_or(history.len(), |most| most.min(history.len()));
        // Most histories have one message, which is not measured.
        if most <= 1 || self.bytes == usize::MAX {
            return history.len() - most;
        }
        let mut left = self.bytes;
        let kept = history.iter().rev().take(most).enumerate().take_while(|(age, message)| {
            let rest = left.checked_sub(message.encoded_len());
            left = rest.unwrap_or(0);
            rest.is_some() || *age == 0
        });
        history.len() - kept.count()
    }
}

/// Truncates a history to its newest messages within the limit.
pub fn shorten(history: &mut Vec<Message>, limit: HistoryLimit) {
    let surplus = limit.surplus(history);
    history.drain(..surplus);
}

/// Returns a copy of a task with the newest messages of its history within the limit, and with artifacts if requested.
pub fn view(task: &Task, history: HistoryLimit, artifacts: bool) -> Task {
    let skip = history.surplus(&task.history);
    Task {
        id: task.id.clone(),
        context_id: task.context_id.clone(),
        status: task.status.clone(),
        artifacts: if artifacts { task.artifacts.clone() } else { Vec::new() },
        history: task.history.get(skip..).unwrap_or_default().to_vec(),
        metadata: task.metadata.clone(),
    }
}
