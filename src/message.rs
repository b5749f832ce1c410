//! Messages and parts: how they are made, and how they are read.

use std::borrow::Cow;

use serde::Serialize;

use crate::pb::{
    v1::{Message, Part, Role, part::Content},
    wkt::{Value, value::Kind},
};

impl Message {
    /// A message of an agent, with one part of text. Who sends it fills in its ids.
    ///
    /// ```
    /// use a2a_service::pb::v1::Message;
    ///
    /// assert_eq!(Message::agent("Which city?").text(), "Which city?");
    /// ```
    pub fn agent(text: impl Into<String>) -> Self {
        Self { role: Role::Agent.into(), parts: vec![Part::text(text)], ..Self::default() }
    }

    /// A message of a user, with one part of text and an id of its own.
    pub fn user(text: impl Into<String>) -> Self {
        let (message_id, role) = (crate::seam::fresh_id(), Role::User.into());
        Self { message_id, role, parts: vec![Part::text(text)], ..Self::default() }
    }

    /// This message with a part more.
    #[must_use]
    pub fn and(mut self, part: Part) -> Self {
        self.parts.push(part);
        self
    }

    /// With metadata, which has to be a JSON object.
    #[must_use]
    pub(crate) fn with_metadata(mut self, metadata: &serde_json::Value) -> Self {
        if let Ok(Some(Kind::StructValue(it))) = json_value(metadata).map(|it| it.kind) {
            self.metadata = Some(it);
        }
        self
    }

    /// The text of its parts, one after the other.
    pub fn text(&self) -> String {
        self.texts().collect()
    }

    /// The text of each part that is text.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(Part::as_text)
    }
}

impl Part {
    /// Text.
    pub fn text(text: impl Into<String>) -> Self {
        Content::Text(text.into()).into()
    }

    /// A file that comes along.
    pub fn bytes(bytes: impl Into<Vec<u8>>, media_type: impl Into<String>) -> Self {
        Self { media_type: media_type.into(), ..Content::Raw(bytes.into()).into() }
    }

    /// A file that is elsewhere.
    pub fn url(url: impl Into<String>, media_type: impl Into<String>) -> Self {
        Self { media_type: media_type.into(), ..Content::Url(url.into()).into() }
    }

    /// Anything that JSON can hold.
    ///
    /// # Errors
    /// Where the value can't be JSON: keys that are not strings, or deeper than
    /// [`MAX_DEPTH`](crate::pb::wkt::MAX_DEPTH).
    pub fn data(data: &impl Serialize) -> Result<Self, serde_json::Error> {
        Ok(Content::Data(json_value(data)?).into())
    }

    /// The same part, as a file of this name.
    #[must_use]
    pub fn named(mut self, filename: impl Into<String>) -> Self {
        self.filename = filename.into();
        self
    }

    /// What there is to read of it: its text, its data as JSON, or a line that names the file.
    pub fn to_text(&self) -> Cow<'_, str> {
        let size = |it: usize| format!("{it} bytes");
        let place = match &self.content {
            Some(Content::Text(it)) => return it.into(),
            Some(Content::Data(it)) => return serde_json::to_string(it).unwrap_or_default().into(),
            Some(Content::Raw(it)) => size(it.len()),
            Some(Content::Url(it)) => it.clone(),
            None => return "".into(),
        };
        let all = [&self.filename, &self.media_type, &place];
        let all: Vec<&str> = all.into_iter().map(String::as_str).filter(|it| !it.is_empty()).collect();
        // A name is not to look like a line of its own.
        format!("[file {}]", all.join(", ").replace(char::is_control, " ")).into()
    }

    /// Its text, if it is text.
    pub fn as_text(&self) -> Option<&str> {
        match &self.content {
            Some(Content::Text(it)) => Some(it),
            Some(Content::Raw(_) | Content::Url(_) | Content::Data(_)) | None => None,
        }
    }
}

impl From<Content> for Part {
    fn from(content: Content) -> Self {
        Self { content: Some(content), ..Self::default() }
    }
}

/// JSON as the messages hold it.
pub(crate) fn json_value(data: &impl Serialize) -> Result<Value, serde_json::Error> {
    serde_json::from_value(serde_json::to_value(data)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_can_be_read() {
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
