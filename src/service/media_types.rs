//! Media type checks of messages and of accepted output modes, against the media types on the agent card.

use std::collections::HashMap;

use crate::protocol::{
    error::{Error, ErrorKind},
    message::skill::skill_ids,
    pb::v1::{AgentCard, Message, Part, SendMessageRequest, part::Content},
};

options! {
    /// Constraints on messages. Off by default, because the media types on the card are a hint (4.4.1).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct Modes {
        /// Rejects messages with a part whose media type neither the agent nor any of its skills accepts, and messages
        /// whose senders accept none of their output media types. A message that names a skill of the card in
        /// `metadata.skillId` must fit the media types of that skill. Off by default.
        pub strict_media_types: bool,
        /// Rejects messages without a text part. Off by default.
        pub require_text: bool,
    }
}

/// Constraints on messages with the media types of the agent.
#[derive(Clone, Debug, Default)]
pub(super) struct MediaTypeCheck {
    modes: Modes,
    /// Media types of the agent and of all of its skills.
    all: MediaTypes,
    /// Media types of each skill, by its id.
    skills: HashMap<String, MediaTypes>,
}

/// Media types that are accepted, and those that are produced.
#[derive(Clone, Debug, Default)]
struct MediaTypes {
    input: Vec<String>,
    output: Vec<String>,
}

/// Default media type of an agent and of a text part.
const TEXT: &str = "text/plain";

impl MediaTypeCheck {
    /// Creates the check for an agent.
    pub(super) fn new(modes: Modes, card: &AgentCard) -> Self {
        if !modes.strict_media_types {
            return Self { modes, ..Self::default() };
        }
        let or_text = |modes: &[String]| if modes.is_empty() { vec![TEXT.to_owned()] } else { modes.to_vec() };
        let default =
            MediaTypes { input: or_text(&card.default_input_modes), output: or_text(&card.default_output_modes) };
        let mut all = default.clone();
        for skill in &card.skills {
            all.input.extend(skill.input_modes.iter().cloned());
            all.output.extend(skill.output_modes.iter().cloned());
        }
        // A skill without media types has those of the agent (4.4.5).
        let or_default = |own: &[String], default: &[String]| if own.is_empty() { default } else { own }.to_vec();
        let skills = card.skills.iter().map(|skill| {
            let input = or_default(&skill.input_modes, &default.input);
            (skill.id.clone(), MediaTypes { input, output: or_default(&skill.output_modes, &default.output) })
        });
        Self { modes, all, skills: skills.collect() }
    }

    /// Checks the message of a send, and the output media types that its sender accepts. A send that names a skill of the card
    /// is checked against the media types of that skill.
    ///
    /// # Errors
    /// A constraint is not met.
    pub(super) fn check(&self, send: &SendMessageRequest) -> Result<(), Error> {
        let Some(message) = &send.message else { return Ok(()) };
        if self.modes.require_text && message.texts().next().is_none() {
            return Err(Error::invalid_field("message.parts", "no text part; this agent requires one"));
        }
        if !self.modes.strict_media_types {
            return Ok(());
        }
        let mut named = skill_ids(send).into_iter().filter_map(|id| self.skills.get_key_value(id)).peekable();
        if named.peek().is_none() {
            return self.all.check(send, message, "");
        }
        named.try_for_each(|(id, types)| types.check(send, message, &format!(" by the skill {id}")))
    }
}

impl MediaTypes {
    /// Checks a send. `whose` completes the errors.
    fn check(&self, send: &SendMessageRequest, message: &Message, whose: &str) -> Result<(), Error> {
        let refused =
            |field: &str, why: String| ErrorKind::ContentTypeNotSupported.because(why).with("field", field.to_owned());
        for (n, part) in message.parts.iter().enumerate() {
            let media_type = media_type(part);
            if !self.accepts(media_type) {
                let (field, accepted) = (format!("message.parts[{n}]"), self.input.join(", "));
                let why = format!("{field}: {media_type} is not accepted{whose}; send {accepted}");
                return Err(refused(&field, why));
            }
        }
        let accepted =
            send.configuration.as_ref().map_or(&[][..], |configuration| &configuration.accepted_output_modes);
        let is_produced = |media_type: &String| self.output.iter().any(|own| matches(own, media_type));
        if !accepted.is_empty() && !accepted.iter().any(is_produced) {
            let field = "configuration.acceptedOutputModes";
            let (accepted, produced) = (accepted.join(", "), self.output.join(", "));
            let why = format!("{field}: {accepted} is not produced{whose}; accept one of {produced}");
            return Err(refused(field, why));
        }
        Ok(())
    }

    fn accepts(&self, media_type: &str) -> bool {
        self.input.iter().any(|own| matches(own, media_type))
    }
}

/// Returns the media type of a part: the one that its sender names, or the default of its kind.
fn media_type(part: &Part) -> &str {
    if !part.media_type.is_empty() {
        return &part.media_type;
    }
    match part.content {
        Some(Content::Text(_)) => TEXT,
        Some(Content::Data(_)) => "application/json",
        // The default for unknown content (RFC 2046, 4.5.1).
        Some(Content::Raw(_) | Content::Url(_)) | None => "application/octet-stream",
    }
}

/// Returns true if two media types match, without their parameters and ignoring case. A `*` on either side matches all.
fn matches(one: &str, other: &str) -> bool {
    let halves = |media_type| {
        let name = str::split(media_type, ';').next().unwrap_or_default().trim();
        name.split_once('/').unwrap_or((name, "*"))
    };
    let same = |one: &str, other: &str| one == "*" || other == "*" || one.eq_ignore_ascii_case(other);
    let ((one, one_sub), (other, other_sub)) = (halves(one), halves(other));
    same(one, other) && same(one_sub, other_sub)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_types_match_by_name_and_wildcard() {
        for (one, other, expected) in [
            ("text/plain", "text/plain", true),
            ("text/plain", "Text/Plain; charset=utf-8", true),
            ("text/*", "text/csv", true),
            ("image/png", "image/*", true),
            ("*/*", "image/png", true),
            ("*", "image/png", true),
            ("text", "text/plain", true),
            ("text/plain", "text/csv", false),
            ("text/*", "image/png", false),
            ("application/json", "application/jsonl", false),
        ] {
            assert_eq!((matches(one, other), matches(other, one)), (expected, expected), "{one} {other}");
        }
    }

    #[test]
    fn parts_have_their_own_media_type_or_that_of_their_kind() {
        let check = |modes: &[&str]| {
            let card = AgentCard::default().modes(modes.iter().copied(), ["text/plain"]);
            MediaTypeCheck::new(Modes { strict_media_types: true, require_text: false }, &card)
        };
        let data = || Part::data(&1).unwrap();
        for (modes, part, is_accepted) in [
            (&[][..], Part::text("x"), true),
            (&[], data(), false),
            (&["application/json"], data(), true),
            (&["application/json"], Part::text("x"), false),
            (&["text/plain"], Part { media_type: "text/markdown".into(), ..Part::text("x") }, false),
            (&["text/*"], Part { media_type: "text/markdown".into(), ..Part::text("x") }, true),
            (&["application/json"], Part { media_type: "application/geo+json".into(), ..data() }, false),
            (&["text/markdown"], Part { media_type: "text/markdown".into(), ..Part::text("x") }, true),
            (&["image/*"], Part::bytes("x", "image/png"), true),
            (&["image/*"], Part::url("https://e.example", ""), false),
            (&["application/octet-stream"], Part::url("https://e.example", ""), true),
            (&["application/octet-stream"], Part::url("https://e.example", "image/png"), false),
        ] {
            assert_eq!(check(modes).all.accepts(media_type(&part)), is_accepted, "{modes:?} {part:?}");
        }
    }
}
