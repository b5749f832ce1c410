//! Constructors and accessors of messages and parts.

use std::borrow::Cow;

use serde::Serialize;

use crate::{
    base::sources::Ids,
    protocol::{
        json::wkt::{Struct, Value, value::Kind},
        messages::v1::{Message, Part, Role, Task, TaskState, TaskStatus, part::Content},
    },
};

#[cfg(feature = "exec")]
pub(crate) mod file_name;
#[cfg_attr(not(feature = "server"), expect(unreachable_pub, reason = "its public path needs a server"))]
pub mod hops;
#[cfg(feature = "server")]
pub mod secret;
#[cfg(feature = "server")]
pub(crate) mod skill;
#[cfg(any(feature = "server", feature = "client"))]
pub(crate) mod task_id;

impl Message {
    /// Creates an agent message with one text part. The server fills in its ids.
    ///
    /// ```
    /// use a2a_service::pb::v1::Message;
    ///
    /// assert_eq!(Message::agent("Which city?").text(), "Which city?");
    /// ```
    pub fn agent(text: impl Into<String>) -> Self {
        Self { role: Role::Agent.into(), parts: vec![Part::text(text)], ..Self::default() }
    }

    /// Creates a user message with one text part and a new message id.
    pub fn user(text: impl Into<String>) -> Self {
        let (message_id, role) = (Ids::default().time_ordered(), Role::User.into());
        Self { message_id, role, parts: vec![Part::text(text)], ..Self::default() }
    }

    /// Appends a part.
    #[must_use]
    pub fn and(mut self, part: Part) -> Self {
        self.parts.push(part);
        self
    }

    /// Sets the metadata.
    ///
    /// # Errors
    /// The value does not serialize to a JSON object.
    pub fn with_metadata(mut self, metadata: &impl Serialize) -> Result<Self, serde_json::Error> {
        self.metadata = Some(json_object(metadata)?);
        Ok(self)
    }

    /// Sets a member of the metadata to a text.
    pub(crate) fn with_detail(mut self, name: &str, text: impl Into<String>) -> Self {
        let value = Value { kind: Some(Kind::StringValue(text.into())) };
        self.metadata.get_or_insert_default().fields.insert(name.to_owned(), value);
        self
    }

    /// Returns a member of the metadata that is a text.
    pub(crate) fn detail(&self, name: &str) -> Option<&str> {
        match &self.metadata.as_ref()?.fields.get(name)?.kind {
            Some(Kind::StringValue(text)) => Some(text),
            _ => None,
        }
    }

    /// Returns the concatenated text of the text parts.
    pub fn text(&self) -> String {
        self.texts().collect()
    }

    /// Returns the text of each text part.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(Part::as_text)
    }
}

conversions! {
    Message:
    /// Creates an agent message with one text part, as [`Message::agent`].
    text: &str => Self::agent(text);
    /// Creates an agent message with one text part, as [`Message::agent`].
    text: String => Self::agent(text);
}

impl Part {
    /// Creates a text part.
    pub fn text(text: impl Into<String>) -> Self {
        Content::Text(text.into()).into()
    }

    /// Creates a file part with inline content.
    pub fn bytes(bytes: impl Into<Vec<u8>>, media_type: impl Into<String>) -> Self {
        Self { media_type: media_type.into(), ..Content::Raw(bytes.into()).into() }
    }

    /// Creates a file part that refers to a URL.
    pub fn url(url: impl Into<String>, media_type: impl Into<String>) -> Self {
        Self { media_type: media_type.into(), ..Content::Url(url.into()).into() }
    }

    /// Creates a data part from any value that JSON can represent.
    ///
    /// # Errors
    /// The value can't be represented: a map key is not a string, or the nesting exceeds
    /// [`MAX_DEPTH`](crate::protocol::json::wkt::MAX_DEPTH).
    pub fn data(data: &impl Serialize) -> Result<Self, serde_json::Error> {
        Ok(Content::Data(serde_json::from_value(serde_json::to_value(data)?)?).into())
    }

    /// Sets the file name.
    #[must_use]
    pub fn named(mut self, filename: impl Into<String>) -> Self {
        self.filename = filename.into();
        self
    }

    /// Returns a readable form: the text, the data as JSON, or a line that describes the file.
    pub fn to_text(&self) -> Cow<'_, str> {
        let size = |bytes: usize| format!("{bytes} bytes");
        let content = match &self.content {
            Some(Content::Text(text)) => return text.into(),
            Some(Content::Data(value)) => return serde_json::to_string(value).unwrap_or_default().into(),
            Some(Content::Raw(bytes)) => size(bytes.len()),
            Some(Content::Url(url)) => url.clone(),
            None => return "".into(),
        };
        let fields = [&self.filename, &self.media_type, &content];
        let fields: Vec<&str> = fields.into_iter().map(String::as_str).filter(|field| !field.is_empty()).collect();
        // Control characters are replaced, so that a file name can't start a new line.
        format!("[file {}]", fields.join(", ").replace(char::is_control, " ")).into()
    }

    /// Returns the text of a text part.
    pub fn as_text(&self) -> Option<&str> {
        match &self.content {
            Some(Content::Text(text)) => Some(text),
            Some(Content::Raw(_) | Content::Url(_) | Content::Data(_)) | None => None,
        }
    }
}

conversions! { Part: content: Content => Self { content: Some(content), ..Self::default() }; }

/// Converts a value that serializes to a JSON object to metadata.
pub(crate) fn json_object(object: &impl Serialize) -> Result<Struct, serde_json::Error> {
    serde_json::from_value(serde_json::to_value(object)?)
}

impl Task {
    /// Returns the state of the task's status.
    pub fn state(&self) -> TaskState {
        self.status.as_ref().map_or(TaskState::Unspecified, TaskStatus::state)
    }
}

impl TaskState {
    /// Returns whether no other state can follow.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Canceled | Self::Rejected)
    }

    /// Returns whether the agent needs input or authorization from the client.
    pub fn is_interrupted(self) -> bool {
        matches!(self, Self::InputRequired | Self::AuthRequired)
    }

    /// Returns whether a task does not change by itself: it is terminal, or waits for the client.
    pub(crate) fn is_settled(self) -> bool {
        self.is_terminal() || self.is_interrupted()
    }

    /// Returns whether a task has ended without success.
    pub(crate) fn is_failure(self) -> bool {
        self.is_terminal() && self != Self::Completed
    }

    /// Returns whether a task may change from this state to `next` (4.1.3).
    ///
    /// Terminal states are final, and no task returns to SUBMITTED or becomes UNSPECIFIED. The agent decides on
    /// everything else: it may complete a task that never was WORKING, and reject one that was.
    pub fn can_become(self, next: Self) -> bool {
        !self.is_terminal() && !matches!(next, Self::Submitted | Self::Unspecified)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_part_has_a_readable_form() {
        let data = Part::data(&serde_json::json!({"a": [1, 2.5, null]})).unwrap();
        for (part, text) in [
            (Part::text("two\nlines"), "two\nlines"),
            (data, r#"{"a":[1,2.5,null]}"#),
            (Part::bytes("12345", "image/png").named("map.png"), "[file map.png, image/png, 5 bytes]"),
            (Part::bytes("", ""), "[file 0 bytes]"),
            (Part::url("https://e.example/a", "").named("a\n[b]"), "[file a [b], https://e.example/a]"),
            (Part::default(), ""),
        ] {
            assert_eq!(part.to_text(), text);
        }
    }
}
