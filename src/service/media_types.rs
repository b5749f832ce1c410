//! The media types of what is sent and of what comes back, for a server that holds its callers to those of the card.

use crate::{
    agent::About,
    error::{Error, ErrorKind},
    pb::v1::{Message, Part, part::Content},
};

/// What a message has to be for the agent to see it. All is taken where nothing is said: media types are a hint (4.4.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Modes {
    /// Refuses a message with a part of a media type that neither the agent nor any of its skills takes, and one whose
    /// sender takes nothing that they give. Off.
    pub strict_modes: bool,
    /// Refuses a message without a part of text. Off.
    pub require_text: bool,
}

/// The modes, and the media types that they are about.
#[derive(Clone, Debug, Default)]
pub(super) struct MediaTypeCheck {
    modes: Modes,
    input: Vec<String>,
    output: Vec<String>,
}

/// Media type of an agent and of a text part that name none.
const TEXT: &str = "text/plain";

impl MediaTypeCheck {
    /// For the agent of this card.
    pub(super) fn new(modes: Modes, about: &About) -> Self {
        if !modes.strict_modes {
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
        let input = all(&about.input_modes, &mut about.skills.iter().flat_map(|it| &it.input_modes));
        let output = all(&about.output_modes, &mut about.skills.iter().flat_map(|it| &it.output_modes));
        Self { modes, input, output }
    }

    /// Refuses what the agent is not to see.
    pub(super) fn check(&self, message: &Message, accepted: &[String]) -> Result<(), Error> {
        if self.modes.require_text && message.texts().next().is_none() {
            return Err(Error::invalid_field("message.parts", "has no part of text, which this agent needs"));
        }
        if self.modes.strict_modes {
            for (n, part) in message.parts.iter().enumerate() {
                let given = media_type(part);
                if !self.takes(given) {
                    let (at, takes) = (format!("message.parts[{n}]"), self.input.join(", "));
                    let why = format!("{at} is {given}, and this agent takes {takes}");
                    return Err(ErrorKind::ContentTypeNotSupported.because(why).with("field", at));
                }
            }
            if !accepted.is_empty() && !accepted.iter().any(|it| self.output.iter().any(|own| fits(own, it))) {
                let gives = self.output.join(", ");
                let at = "configuration.acceptedOutputModes";
                let why = format!("{at} is {}, and this agent gives {gives}", accepted.join(", "));
                return Err(ErrorKind::ContentTypeNotSupported.because(why).with("field", at));
            }
        }
        Ok(())
    }

    fn takes(&self, media_type: &str) -> bool {
        self.input.iter().any(|own| fits(own, media_type))
    }
}

/// Media type of a part: the one that its sender names, or the default of its kind.
fn media_type(part: &Part) -> &str {
    if !part.media_type.is_empty() {
        return &part.media_type;
    }
    match part.content {
        Some(Content::Text(_)) => TEXT,
        Some(Content::Data(_)) => "application/json",
        // Unnamed content is a sequence of bytes (RFC 2046, 4.5.1).
        Some(Content::Raw(_) | Content::Url(_)) | None => "application/octet-stream",
    }
}

/// Whether two media types may be the same. Parameters do not matter, nor does case; a `*` on either side is anything.
fn fits(one: &str, other: &str) -> bool {
    let halves = |it| {
        let name = str::split(it, ';').next().unwrap_or_default().trim();
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
    fn media_types_fit_by_their_names_and_wildcards() {
        for (one, other, fit) in [
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
            assert_eq!((fits(one, other), fits(other, one)), (fit, fit), "{one} {other}");
        }
    }

    #[test]
    fn a_part_is_what_it_is_called_or_what_it_is() {
        let gate = |modes: &[&str]| {
            let about = About::default().modes(modes.iter().copied(), ["text/plain"]);
            MediaTypeCheck::new(Modes { strict_modes: true, require_text: false }, &about)
        };
        let data = || Part::data(&1).unwrap();
        for (modes, part, taken) in [
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
            assert_eq!(gate(modes).takes(media_type(&part)), taken, "{modes:?} {part:?}");
        }
    }
}
