//! Limit of the history of a task in a reply: `historyLength` (3.2.4) and bytes.

use prost::Message as _;

use crate::protocol::messages::v1::{Message, Task};

/// Maximum history of a task in a reply. Of a longer one, the reply has the most recent messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryLimit {
    /// Maximum number of messages, unlimited if `None` (3.2.4).
    pub messages: Option<usize>,
    /// Maximum size of the messages together, in bytes of protobuf. The newest message may exceed it.
    pub bytes: usize,
}

impl Default for HistoryLimit {
    /// Returns no limit.
    fn default() -> Self {
        Self { messages: None, bytes: usize::MAX }
    }
}

impl HistoryLimit {
    /// Returns true if a history of so many messages with so many bytes together is within the limit.
    pub(crate) fn fits(self, messages: usize, bytes: usize) -> bool {
        self.messages.is_none_or(|most| messages <= most) && (messages <= 1 || bytes <= self.bytes)
    }

    /// Returns the number of messages at the beginning of a history that exceed the limit.
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

    /// Removes the oldest messages of a history that exceed the limit.
    pub fn truncate(self, history: &mut Vec<Message>) {
        let surplus = self.surplus(history);
        history.drain(..surplus);
    }

    /// Returns a copy of a task with the newest messages of its history within the limit, and with artifacts if requested.
    pub fn copy_task(self, task: &Task, artifacts: bool) -> Task {
        let skip = self.surplus(&task.history);
        Task {
            id: task.id.clone(),
            context_id: task.context_id.clone(),
            status: task.status.clone(),
            artifacts: if artifacts { task.artifacts.clone() } else { Vec::new() },
            history: task.history.get(skip..).unwrap_or_default().to_vec(),
            metadata: task.metadata.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_has_the_newest_messages_that_fit_into_its_bytes() {
        let history: Vec<Message> = ["0", "1", "2", "3"].map(Message::user).into();
        let each = history[0].encoded_len();
        assert!(history.iter().all(|message| message.encoded_len() == each));
        for (messages, bytes, left) in [
            (None, usize::MAX, 4),
            (None, 4 * each, 4),
            (None, 4 * each - 1, 3),
            (None, 2 * each, 2),
            (None, each, 1),
            (None, each - 1, 1),
            (None, 0, 1),
            (Some(3), 4 * each, 3),
            (Some(3), 2 * each + 1, 2),
            (Some(1), 0, 1),
            (Some(0), 0, 0),
            (Some(0), usize::MAX, 0),
        ] {
            let limit = HistoryLimit { messages, bytes };
            let mut kept = history.clone();
            limit.truncate(&mut kept);
            assert_eq!(kept, history[4 - left..], "{limit:?}");
            assert_eq!(limit.fits(4, 4 * each), left == 4, "{limit:?}");
        }
        HistoryLimit { messages: None, bytes: 0 }.truncate(&mut Vec::new());
        // A small message after a large one does not bring the large one back, and an older one is never kept without it.
        let mixed = vec![Message::user("0"), Message::user("x".repeat(1000)), Message::user("2")];
        let mut kept = mixed.clone();
        HistoryLimit { messages: None, bytes: 500 }.truncate(&mut kept);
        assert_eq!(kept, mixed[2..]);
    }
}
