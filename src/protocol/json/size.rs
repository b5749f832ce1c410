//! Limit on the memory that a received text or message takes once decoded, estimated before decoding. It applies to requests, and to
//! everything that agents, models, tool servers and remote agents send.
//!
//! Few bytes can decode to many: `[0,0,…]` takes about 24 times its length, and an empty part of a message about 100
//! times. Input is rejected undecoded if its estimate exceeds both [`FREE`] bytes and [`FACTOR`] times its length, or exceeds its
//! length by more than [`MAX_ADDED`]. Together with the limits on received bytes, this bounds memory.

use std::mem::size_of;

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// Decoded size in bytes that is always allowed.
const FREE: usize = 8 << 20;

/// Decoded bytes that are allowed per byte of the length.
const FACTOR: usize = 8;

/// Decoded bytes that are allowed in addition to the length: four times the default maximum of an event.
const MAX_ADDED: usize = 64 << 20;

/// Estimated bytes of a value in a growing list, or of the name of a member.
const VALUE: usize = 48;

/// Estimated bytes of an object: the first node of its map, or a message.
const OBJECT: usize = 640;

/// Estimated bytes of a member of an object in protobuf: its share of the map nodes after the first one.
const MEMBER: usize = 64;

/// Upper bound on decoded bytes per byte of JSON: an object takes at least three bytes, `{},`.
const MOST: usize = (OBJECT + VALUE) / 3 + 2;

/// Maximum nesting depth of messages that prost decodes.
const MAX_DEPTH: usize = 100;

/// Rejects a JSON text whose decoded size would exceed the limit.
pub fn check_json(text: &[u8]) -> Result<(), DecodedTooLarge> {
    // A text this short can't exceed the limit. This covers most texts.
    if text.len() <= FREE / MOST {
        return Ok(());
    }
    let mut left = Budget::of(text.len());
    if json(text, &mut left).is_some() { Ok(()) } else { Err(left.exceeded()) }
}

/// Rejects a protobuf message whose decoded size would exceed the limit.
pub fn check_proto<T: Measure>(proto: &[u8]) -> Result<(), DecodedTooLarge> {
    // The smallest nested message takes two bytes.
    if proto.len() <= FREE / OBJECT {
        return Ok(());
    }
    let mut left = Budget::of(proto.len());
    if measure::<T>(proto, 0, &mut left).is_some() { Ok(()) } else { Err(left.exceeded()) }
}

/// Error for input that would take too much memory once it is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("takes more than {max} bytes once decoded (decoded_bytes); send fewer values")]
pub struct DecodedTooLarge {
    /// Maximum decoded size in bytes.
    pub max: usize,
}

/// Remaining memory budget of decoded input, in bytes.
#[derive(Debug)]
struct Budget {
    left: usize,
    most: usize,
}

impl Budget {
    fn of(length: usize) -> Self {
        let most = FREE.max(length.saturating_mul(FACTOR).min(length.saturating_add(MAX_ADDED)));
        Self { left: most.saturating_sub(length), most }
    }

    /// Takes `bytes` from the budget. Returns `None` if less is left.
    fn take(&mut self, bytes: usize) -> Option<()> {
        self.left = self.left.checked_sub(bytes)?;
        Some(())
    }

    fn exceeded(self) -> DecodedTooLarge {
        DecodedTooLarge { max: self.most }
    }
}

/// Estimates a JSON text by its punctuation outside of strings. Validity is left to the decoder.
fn json(text: &[u8], left: &mut Budget) -> Option<()> {
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => {
                while let Some(byte) = bytes.next() {
                    match byte {
                        b'"' => break,
                        b'\\' => _ = bytes.next(),
                        _ => {}
                    }
                }
            }
            b'{' => left.take(OBJECT)?,
            b',' | b':' | b'[' => left.take(VALUE)?,
            _ => {}
        }
    }
    Some(())
}

/// A message whose decoded size can be estimated while it is encoded. `build/message.rs` generates this.
pub trait Measure {
    /// Returns the kind of the field with this number if its decoded value takes more memory than its encoded bytes.
    /// By default no field does.
    fn field(_number: u32) -> Option<Nested> {
        None
    }
}

/// Size in memory of the value of a field, and the estimate of its content.
#[derive(Clone, Copy, Debug)]
pub struct Nested {
    size: usize,
    measure: Option<Estimate>,
}

/// Takes the decoded size of an encoded message at some nesting depth from a budget.
type Estimate = fn(&[u8], usize, &mut Budget) -> Option<()>;

impl Nested {
    /// A message, possibly in a growing list.
    pub const fn message<T: Measure>() -> Self {
        Self { size: 2 * size_of::<T>(), measure: Some(measure::<T>) }
    }

    /// An object with arbitrary members.
    pub const fn object<T: Measure>() -> Self {
        Self { size: OBJECT, measure: Some(measure::<T>) }
    }

    /// A member of an object, with its value.
    pub const fn member<T: Measure>() -> Self {
        Self { size: MEMBER, measure: Some(measure::<T>) }
    }

    /// The value of a member. Its size is part of [`member`](Self::member).
    pub const fn value<T: Measure>() -> Self {
        Self { size: 0, measure: Some(measure::<T>) }
    }

    /// Entry of a map field. Its content is not measured.
    pub const fn entry() -> Self {
        Self { size: OBJECT, measure: None }
    }

    /// A string in a list.
    pub const fn text() -> Self {
        Self { size: VALUE, measure: None }
    }
}

/// Takes the decoded size of a message from the budget. Returns `None` if less is left. Malformed input ends the
/// estimate: the decoder rejects it.
fn measure<T: Measure>(proto: &[u8], depth: usize, left: &mut Budget) -> Option<()> {
    let mut rest = proto;
    while !rest.is_empty() && depth < MAX_DEPTH {
        let Ok((number, wire)) = decode_key(&mut rest) else { break };
        if wire != WireType::LengthDelimited {
            if skip_field(wire, number, &mut rest, DecodeContext::default()).is_err() {
                break;
            }
            continue;
        }
        let length = decode_varint(&mut rest).ok().and_then(|length| usize::try_from(length).ok());
        let Some((inner, after)) = length.and_then(|length| rest.split_at_checked(length)) else { break };
        rest = after;
        if let Some(Nested { size, measure }) = T::field(number) {
            left.take(size)?;
            if let Some(measure) = measure {
                measure(inner, depth + 1, left)?;
            }
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::protocol::{
        event::Event,
        pb::v1::{
            Artifact, Message, Part, SendMessageRequest, StreamResponse, Task, TaskArtifactUpdateEvent,
            stream_response::Payload,
        },
        snapshot::Snapshot,
    };

    fn request(message: Message) -> SendMessageRequest {
        SendMessageRequest { message: Some(message), ..SendMessageRequest::default() }
    }

    fn with_metadata(metadata: &str) -> SendMessageRequest {
        let metadata = Some(serde_json::from_str(metadata).unwrap());
        request(Message { metadata, ..Message::user("x") })
    }

    /// Returns whether a request is accepted, as JSON and as protobuf.
    fn is_accepted(request: &SendMessageRequest) -> (bool, bool) {
        let (json, proto) = (serde_json::to_vec(request).unwrap(), request.encode_to_vec());
        let outcomes = (check_json(&json), check_proto::<SendMessageRequest>(&proto));
        for error in [outcomes.0.as_ref().err(), outcomes.1.as_ref().err()].into_iter().flatten() {
            assert!(error.max >= FREE);
        }
        (outcomes.0.is_ok(), outcomes.1.is_ok())
    }

    #[test]
    fn requests_with_many_small_values_are_rejected() {
        let list = |value: &str, n: usize| format!(r#"{{"m":[{value}{}]}}"#, format!(",{value}").repeat(n - 1));
        assert_eq!(
            is_accepted(&with_metadata(&list("0", 500_000))),
            (false, true),
            "a number takes 11 bytes in protobuf"
        );
        assert_eq!(is_accepted(&with_metadata(&list("null", 500_000))), (false, false));
        assert_eq!(is_accepted(&with_metadata(&list("{}", 300_000))), (false, false));
        assert_eq!(is_accepted(&with_metadata(&list(r#"{"a":{"b":1}}"#, 20_000))), (false, false));
        let parts = vec![Part::default(); 340_000];
        assert_eq!(is_accepted(&request(Message { parts, ..Message::user("") })), (false, false));
        let extensions = vec![String::new(); 300_000];
        assert_eq!(is_accepted(&request(Message { extensions, ..Message::user("x") })), (false, false));
    }

    #[test]
    fn large_requests_with_common_content_are_accepted() {
        for text in ["x".repeat(1 << 20), ",".repeat(1 << 20), "\\\"[{".repeat(1 << 18)] {
            assert_eq!(is_accepted(&request(Message::user(text))), (true, true));
        }
        let number = |n: usize| format!("0.{:017}", n * 1_234_567);
        let numbers: Vec<_> = (0..50_000).map(number).collect();
        assert_eq!(is_accepted(&with_metadata(&format!(r#"{{"embedding":[{}]}}"#, numbers.join(",")))), (true, true));
        let record = |n: usize| format!(r#"{{"id":{n},"name":"name of {n}","value":{n}.5}}"#);
        let records: Vec<_> = (0..8000).map(record).collect();
        assert_eq!(is_accepted(&with_metadata(&format!(r#"{{"rows":[{}]}}"#, records.join(",")))), (true, true));
        let parts = (0..1000).map(|n: i32| Part::text(n.to_string())).collect();
        assert_eq!(is_accepted(&request(Message { parts, ..Message::user("") })), (true, true));
    }

    #[test]
    fn added_memory_of_long_texts_is_limited() {
        let numbers = |count: usize| format!("[{}1]", "1234567,".repeat(count));
        assert_eq!(check_json(numbers(1_000_000).as_bytes()), Ok(()));
        let long = numbers(2_000_000);
        assert_eq!(check_json(long.as_bytes()), Err(DecodedTooLarge { max: long.len() + MAX_ADDED }));
        assert_eq!(check_json(format!("[\"{}\"]", "x".repeat(20 << 20)).as_bytes()), Ok(()));
    }

    /// Events and tasks are decoded by hand-written code.
    #[test]
    fn answers_of_remote_agents_are_limited() {
        let artifact = Artifact { parts: vec![Part::default(); 340_000], ..Artifact::default() };
        let task = Task { artifacts: vec![artifact.clone()], ..Task::default() };
        assert!(check_proto::<Snapshot>(&task.encode_to_vec()).is_err());
        let update = TaskArtifactUpdateEvent { artifact: Some(artifact), ..TaskArtifactUpdateEvent::default() };
        let event = StreamResponse { payload: Some(Payload::ArtifactUpdate(update)) };
        assert!(check_proto::<Event>(&event.encode_to_vec()).is_err());
    }

    #[test]
    fn malformed_requests_are_left_to_the_decoder() {
        let proto = request(Message::user("x".repeat(20_000))).encode_to_vec();
        for length in [13_200, 15_000, 20_000] {
            assert!(check_proto::<SendMessageRequest>(&proto[..length]).is_ok());
        }
        assert!(check_json(&vec![b'"'; 100_000]).is_ok());
    }
}
