//! Extension `secret`: parts that only the agent may read, such as a password that it asked for (`AUTH_REQUIRED`).
//!
//! A client marks a part of its message by `"urn:a2a-service:secret:v1": true` in the metadata of the part. The agent gets
//! the part in the next turn, once. Everything else has a redacted part in its place: the history, events, notifications,
//! logs, the store and its exports. Its text is `[redacted]`, and its metadata has only the mark. The content is in memory
//! until that turn ends; if the server stops before, the agent gets the redacted part, and has to ask again.
//!
//! Servers redact marked parts also if the client does not request the extension.

use std::fmt;

use super::{Content, Kind, Message, Part, Value};
use crate::protocol::messages::v1::AgentExtension;

/// URI of the extension, and name of the mark in the metadata of a part.
pub const URI: &str = "urn:a2a-service:secret:v1";

/// Text of a redacted part.
pub const REDACTED: &str = "[redacted]";

/// Returns the declaration on the agent card.
pub(crate) fn declaration() -> AgentExtension {
    AgentExtension {
        uri: URI.to_owned(),
        description:
            "Parts whose metadata has this URI with the value true are passed to the agent once, and redacted in the \
                      history, in events and in notifications."
                .to_owned(),
        ..AgentExtension::default()
    }
}

/// Returns true for a part that is marked as a secret.
fn is_secret(part: &Part) -> bool {
    let mark = part.metadata.as_ref().and_then(|metadata| metadata.fields.get(URI)?.kind.as_ref());
    matches!(mark, Some(Kind::BoolValue(true)))
}

/// Marks a part as a secret.
///
/// ```
/// use a2a_service::{extension::secret, pb::v1::{Message, Part}};
///
/// let message = Message::user("my password is").and(secret::mark(Part::text("hunter2")));
/// assert_eq!(message.parts.len(), 2);
/// ```
#[must_use]
pub fn mark(mut part: Part) -> Part {
    let mark = Value { kind: Some(Kind::BoolValue(true)) };
    part.metadata.get_or_insert_default().fields.insert(URI.to_owned(), mark);
    part
}

/// Redacts the marked parts of a message. Returns the message as it was, or `None` if it has no marked parts.
pub(crate) fn redact(message: &mut Message) -> Option<Message> {
    if !message.parts.iter().any(is_secret) {
        return None;
    }
    let original = message.clone();
    for part in message.parts.iter_mut().filter(|part| is_secret(part)) {
        *part = mark(Part { content: Some(Content::Text(REDACTED.to_owned())), ..Part::default() });
    }
    Some(original)
}

/// Messages as they were before their marked parts were redacted, for the turn that processes them. `Debug` does not show them.
#[derive(Clone, Default)]
pub(crate) struct Secrets(Vec<Message>);

impl From<Vec<Message>> for Secrets {
    fn from(originals: Vec<Message>) -> Self {
        Self(originals)
    }
}

impl Secrets {
    /// Redacts the marked parts of a message, and keeps the message as it was.
    pub(crate) fn take_from(&mut self, message: &mut Message) {
        self.0.extend(redact(message));
    }

    /// Returns whether no message was redacted.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the messages as they were.
    pub(crate) fn messages(&self) -> &[Message] {
        &self.0
    }

    /// Adds those of a later message.
    pub(crate) fn append(&mut self, later: Self) {
        self.0.extend(later.0);
    }

    /// Returns the messages of a turn that were redacted, each as it was, with its position. `messages` are those of the turn in
    /// the order in which they were received.
    pub(crate) fn restore<'a>(mut self, messages: impl Iterator<Item = &'a Message>) -> Vec<(usize, Message)> {
        let mut restored = Vec::new();
        for (position, message) in messages.enumerate() {
            if self.0.is_empty() {
                break;
            }
            let is_redacted = message.parts.iter().any(is_secret);
            let found = self.0.iter().position(|original| original.message_id == message.message_id);
            if let Some(found) = found.filter(|_| is_redacted) {
                let original = self.0.remove(found);
                restored.push((position, Message { parts: original.parts, ..message.clone() }));
            }
        }
        restored
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::json::wkt::Struct;

    #[test]
    fn only_marked_parts_are_redacted() {
        let secret =
            Part { filename: "key.pem".to_owned(), media_type: "text/x-key".to_owned(), ..Part::text("s3cret") };
        let sent = Message::user("public").and(mark(secret));
        let mut stored = sent.clone();
        assert_eq!(redact(&mut stored), Some(sent.clone()));
        assert_eq!((stored.parts.len(), &stored.parts[0]), (2, &sent.parts[0]));
        assert_eq!(stored.parts[1], mark(Part::text(REDACTED)));
        assert!(!format!("{stored:?}").contains("s3cret"));
        let again = stored.clone();
        redact(&mut stored);
        assert_eq!(stored, again);
    }

    #[test]
    fn messages_of_a_turn_are_restored_in_their_order() {
        let sent = |secret: &str| Message {
            message_id: "same".to_owned(),
            ..Message::user("p").and(mark(Part::text(secret)))
        };
        let (mut secrets, mut stored) =
            (Secrets::default(), vec![Message::user("plain"), sent("hunter1"), sent("hunter2")]);
        for message in &mut stored {
            secrets.take_from(message);
        }
        for message in &mut stored {
            message.task_id = "t".to_owned();
        }
        assert!(!format!("{secrets:?} {stored:?}").contains("hunter"));
        let expected = [(1, "hunter1"), (2, "hunter2")]
            .map(|(position, secret)| (position, Message { task_id: "t".to_owned(), ..sent(secret) }));
        assert_eq!(secrets.restore(stored.iter()), expected);
    }

    #[test]
    fn mark_has_to_be_true() {
        for kind in [Kind::BoolValue(false), Kind::StringValue("true".to_owned()), Kind::NumberValue(1.0)] {
            let fields = [(URI.to_owned(), Value { kind: Some(kind) })].into();
            let part = Part { metadata: Some(Struct { fields }), ..Part::text("text") };
            let mut message = Message::user("").and(part);
            assert_eq!(redact(&mut message), None);
        }
    }
}
