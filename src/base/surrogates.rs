//! Escapes of surrogates in JSON texts. JSON writes a character beyond U+FFFF as two escapes (`\ud83d\ude00`), which some programs
//! cut into two texts, or of which they send only one.

use std::{borrow::Cow, ops::Range};

/// High surrogates, the first halves of characters.
const HIGH: Range<u16> = 0xD800..0xDC00;

/// Low surrogates, the second halves of characters.
const LOW: Range<u16> = 0xDC00..0xE000;

/// Length of an escape in bytes.
const ESCAPE: usize = 6;

/// Returns true if an escape of a surrogate in this range is at a position.
fn is_at(json: &str, position: usize, surrogates: Range<u16>) -> bool {
    let digits = json.get(position..position + ESCAPE).and_then(|escape| escape.strip_prefix("\\u"));
    digits.is_some_and(|digits| u16::from_str_radix(digits, 16).is_ok_and(|unit| surrogates.contains(&unit)))
}

/// Replaces surrogates that are no pair by U+FFFD in a JSON text, or in a part of one that begins and ends between characters.
pub(crate) fn replace_lone_surrogates(json: &str) -> Cow<'_, str> {
    let mut replaced = String::new();
    let (mut copied, mut position) = (0, 0);
    while let Some(found) = json.get(position..).and_then(|rest| rest.find('\\')) {
        position += found;
        let is_high = is_at(json, position, HIGH);
        if is_high && is_at(json, position + ESCAPE, LOW) {
            position += 2 * ESCAPE;
        } else if is_high || is_at(json, position, LOW) {
            replaced.push_str(&json[copied..position]);
            replaced.push_str("\\ufffd");
            position += ESCAPE;
            copied = position;
        } else {
            // The backslash, and the character that it escapes.
            position += 2;
        }
    }
    if copied == 0 { json.into() } else { (replaced + &json[copied..]).into() }
}

/// Returns a JSON text whose lone surrogates are [replaced](replace_lone_surrogates). `None` if it has none, or is not UTF-8.
pub(crate) fn repaired(json: &[u8]) -> Option<Vec<u8>> {
    let json = replace_lone_surrogates(str::from_utf8(json).ok()?);
    matches!(json, Cow::Owned(_)).then(|| json.into_owned().into())
}

/// Text that arrives in pieces, each the content of a JSON string. Surrogates at the ends of two pieces are joined.
#[derive(Debug, Default)]
pub(crate) struct TextPieces {
    /// High surrogate at the end of the last piece.
    pending: String,
}

impl TextPieces {
    /// Decodes the next piece.
    ///
    /// # Errors
    /// The piece is not the content of a JSON string.
    pub(crate) fn next(&mut self, piece: &str) -> serde_json::Result<String> {
        let mut joined = std::mem::take(&mut self.pending);
        joined.push_str(piece);
        if let Some(before) = joined.len().checked_sub(ESCAPE)
            && is_at(&joined, before, HIGH)
            // Otherwise the backslash itself is escaped.
            && joined[..before].bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 0
        {
            self.pending = joined.split_off(before);
        }
        decode(&joined)
    }

    /// Returns the rest at the end of the text: U+FFFD for a pending surrogate.
    pub(crate) fn finish(&mut self) -> &'static str {
        if std::mem::take(&mut self.pending).is_empty() { "" } else { "\u{fffd}" }
    }
}

/// Decodes the content of a JSON string.
///
/// # Errors
/// `content` has an invalid escape, or a character that has to be escaped.
pub(crate) fn decode(content: &str) -> serde_json::Result<String> {
    if content.contains('\\') {
        serde_json::from_str(&format!("\"{}\"", replace_lone_surrogates(content)))
    } else {
        Ok(content.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lone_surrogates_are_replaced() {
        for (json, expected) in [
            (r"a\ud83d\ude00b", "a😀b"),
            (r"\uD83D\uDE00", "😀"),
            (r"\ud83d", "\u{fffd}"),
            (r"\ude00", "\u{fffd}"),
            (r"x\ud83dy\ude00z", "x\u{fffd}y\u{fffd}z"),
            (r"\ud83d\ud83d\ude00", "\u{fffd}😀"),
            (r"\ude00\ud83d", "\u{fffd}\u{fffd}"),
            (r"\ud83d\n", "\u{fffd}\n"),
            (r"\ud83d\u0041", "\u{fffd}A"),
            (r"\\ud83d", r"\ud83d"),
            (r"\\\ud83d", "\\\u{fffd}"),
            (r"ä\u00e4\t", "ää\t"),
            ("", ""),
        ] {
            assert_eq!(decode(json).unwrap(), expected, "{json}");
            let object = format!(r#"{{"{json}":["{json}"]}}"#);
            let value: serde_json::Value = serde_json::from_str(&replace_lone_surrogates(&object)).unwrap();
            assert_eq!(value, serde_json::json!({ expected: [expected] }), "{json}");
        }
        assert!(matches!(replace_lone_surrogates(r#"{"a":"\ud83d\ude00\n"}"#), Cow::Borrowed(_)));
    }

    #[test]
    fn surrogates_are_joined_where_two_pieces_meet() {
        for (pieces, expected) in [
            (&[r"a\ud83d", r"\ude00b"][..], "a😀b"),
            (&[r"\ud83d", "", r"\ude00"], "😀"),
            (&[r"\ud83d", "x"], "\u{fffd}x"),
            (&[r"\ud83d", r"\ud83d", r"\ude00"], "\u{fffd}😀"),
            (&[r"\ud83d"], "\u{fffd}"),
            (&[r"\\ud83d", r"\ude00"], "\\ud83d\u{fffd}"),
            (&["a", "ä"], "aä"),
        ] {
            let mut text = TextPieces::default();
            let mut found: String = pieces.iter().map(|piece| text.next(piece).unwrap()).collect();
            found.push_str(text.finish());
            assert_eq!(found, expected, "{pieces:?}");
            assert_eq!(text.finish(), "");
        }
    }
}
