//! Extension `hops`: the number of agents that have passed a message on, so that agents which call each other in a circle stop.
//!
//! A call has the count in the header, or gRPC metadata, `a2a-hops`, and its message in the member `urn:a2a-service:hops:v1` of its
//! metadata, which reaches the agent also where headers do not. The higher one counts; without both, it is zero. Messages that an
//! agent sends in a turn have the count of that turn and one. [`Client`](crate::client::Client) adds it to all messages that it
//! sends in the task of tokio in which the agent runs.
//!
//! Servers reject messages with a count above `limits.hops`, and a count that is not a whole number, also if the client does not
//! request the extension.

use super::{Kind, Message, Value};

/// URI of the extension, and name of the count in the metadata of a message.
pub const URI: &str = "urn:a2a-service:hops:v1";

/// Count in the place of one that is not a whole number.
pub(crate) const INVALID: u32 = u32::MAX;

tokio::task_local! {
    /// Count of the turn that is polled.
    static TURN: u32;
}

/// Parses the value of the header. Of several counts, which proxies join with commas, the highest counts.
pub(crate) fn parse(text: &str) -> u32 {
    text.split(',').map(|count| count.trim().parse().unwrap_or(INVALID)).max().unwrap_or(INVALID)
}

/// Returns the count in the metadata of a message.
pub(crate) fn of(message: &Message) -> u32 {
    match message.metadata.as_ref().and_then(|metadata| metadata.fields.get(URI)?.kind.as_ref()) {
        Some(Kind::NumberValue(count)) => parse(&count.to_string()),
        None | Some(Kind::NullValue(_)) => 0,
        Some(_) => INVALID,
    }
}

/// Sets the count in the metadata of a message, unless it has a higher one.
pub(crate) fn set(message: &mut Message, count: u32) {
    if count > of(message) {
        let value = Value { kind: Some(Kind::NumberValue(count.into())) };
        message.metadata.get_or_insert_default().fields.insert(URI.to_owned(), value);
    }
}

/// Runs a function as a part of a turn with this count.
pub(crate) fn in_turn<T>(count: u32, run: impl FnOnce() -> T) -> T {
    TURN.sync_scope(count, run)
}

/// Runs a future as a part of a turn with this count.
#[cfg(feature = "cli")]
pub(crate) fn turn<F: Future>(count: u32, run: F) -> impl Future<Output = F::Output> {
    TURN.scope(count, run)
}

/// Returns the count of messages that are sent now: that of the turn that is polled and one, or zero outside of turns.
pub(crate) fn of_next_message() -> u32 {
    TURN.try_with(|count| count.saturating_add(1)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(json: &str) -> Message {
        let metadata = format!(r#"{{"{URI}": {json}}}"#);
        Message { metadata: serde_json::from_str(&metadata).unwrap(), ..Message::user("hi") }
    }

    #[test]
    fn counts_that_are_no_whole_numbers_exceed_every_limit() {
        for (text, count) in [("0", 0), ("8", 8), (" 3 , 5", 5), ("3,", INVALID), ("-1", INVALID), ("1.5", INVALID)] {
            assert_eq!(parse(text), count, "{text:?}");
        }
        for text in ["", "x", "99999999999", "1e3", "\u{663}"] {
            assert_eq!(parse(text), INVALID, "{text:?}");
        }
        assert_eq!(of(&Message::user("hi")), 0);
        for (json, count) in [("0", 0), ("8", 8), ("8.0", 8), ("null", 0)] {
            assert_eq!(of(&message(json)), count, "{json}");
        }
        for json in ["-1", "1.5", "1e30", r#""8""#, "true", "[1]", "{}"] {
            assert_eq!(of(&message(json)), INVALID, "{json}");
        }
    }

    #[test]
    fn count_of_a_message_only_grows() {
        let mut sent = Message::user("hi");
        set(&mut sent, 0);
        assert_eq!(sent.metadata, None);
        for (count, expected) in [(2, 2), (1, 2), (3, 3)] {
            set(&mut sent, count);
            assert_eq!(of(&sent), expected);
        }
        let mut invalid = message("-1");
        set(&mut invalid, 3);
        assert_eq!(of(&invalid), INVALID);
    }

    #[test]
    fn messages_of_a_turn_have_the_next_count() {
        assert_eq!(of_next_message(), 0);
        let counts = in_turn(0, || (of_next_message(), in_turn(7, of_next_message), of_next_message()));
        assert_eq!((counts, of_next_message()), ((1, 8, 1), 0));
    }
}
