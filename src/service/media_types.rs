//! Media type checks of messages and of accepted output modes, against the media types on the agent card.

use crate::{
    error::{Error, ErrorKind},
    pb::v1::AgentCard,
    pb::v1::{Message, Part, part::Content},
};

options! {
    /// Constraints on messages. Off by default, because the media types on the card are a hint (4.4.1).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct Modes {
        /// Rejects messages with a part whose media type neither the agent nor any of its skills accepts, and messages
        /// whose senders accept none of their output media types. Off by default.
        pub strict_media_types: bool,
        /// Rejects messages without a text part. Off by default.
        pub require_text: bool,
    }
}

/// Constraints on messages with the media types of the agent.
#[derive(Clone, Debug, Default)]
pub(super) struct MediaTypeCheck {
    modes: Modes,
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
        let all = |default: &[String], skills: &mut dyn Iterator<Item = &String>| {
            let mut all = default.to_vec();
            if all.is_empty() {
                all.push(TEXT.to_owned());
            }
            all.extend(skills.cloned());
            all
        };
        let input = all(&card.default_input_modes, &mut card.skills.iter().flat_map(|skill| &skill.input_modes));
        let output = all(&card.default_output_modes, &mut card.skills.iter().flat_map(|skill| &skill.output_modes));
        Self { modes, input, output }
    }

    /// Checks a message and the output media types that its sender accepts.
    ///
    /// # Errors
    /// A constraint is not met.
    pub(super) fn check(&self, message: &Message, accepted: &[String]) -> Result<(), Error> {
        if self.modes.require_text && message.texts().next().is_none() {
            return Err(Error::invalid_field("message.parts", "no text part; this agent requires one"));
        }
        if self.modes.strict_media_types {
            for (n, part) in message.parts.iter().enumerate() {
                let media_type = media_type(part);
                if !self.accepts(media_type) {
                    let (field, accepted) = (format!("message.parts[{n}]"), self.input.join(", "));
                    let why = format!("{field}: {media_type} is not accepted; send {accepted}");
                    return Err(ErrorKind::ContentTypeNotSupported.because(why).with("field", field));
                }
            }
            let is_produced = |media_type: &String| self.output.iter().any(|own| matches(own, media_type));
            if !accepted.is_empty() && !accepted.iter().any(is_produced) {
                let field = "configuration.acceptedOutputModes";
                let (accepted, produced) = (accepted.join(", "), self.output.join(", "));
                let why = format!("{field}: {accepted} is not produced; accept one of {produced}");
                return Err(ErrorKind::ContentTypeNotSupported.because(why).with("field", field));
            }
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
            assert_eq!(check(modes).accepts(media_type(&part)), is_accepted, "{modes:?} {part:?}");
        }
    }
}
