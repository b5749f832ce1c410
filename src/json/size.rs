//! Estimates of the memory that a request takes once it is decoded, made before it is decoded.
//!
//! Few bytes can decode to many: `[0,0,…]` takes about 24 times its length, and an empty part of a message about 100 times. A
//! request is refused undecoded if its estimate exceeds both [`FREE`] bytes and [`FACTOR`] times its length. So what requests
//! take in memory is bounded by how many of their bytes are taken at a time.

use std::mem::size_of;

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use crate::error::{Error, ErrorKind};

/// Decoded size in bytes that every request may have.
const FREE: usize = 8 << 20;

/// Decoded size that a request may have for each of its bytes.
const FACTOR: usize = 8;

/// Bytes of a value in a list that grows, or of the name of a member.
const VALUE: usize = 48;

/// Bytes of an object: the first node of its map, or a message.
const OBJECT: usize = 640;

/// Bytes of a member of an object in protobuf: its share of the nodes after the first one.
const MEMBER: usize = 64;

/// The most that one byte of JSON can decode to: an object takes at least three, `{},`.
const MOST: usize = (OBJECT + VALUE) / 3 + 2;

/// Messages within messages. prost decodes a hundred, and refuses more.
const MAX_DEPTH: usize = 100;

/// Refuses a request in JSON that would take too much memory once it is decoded.
pub fn check_json(text: &[u8]) -> Result<(), Error> {
    // A text this short can't exceed the limit, so most requests need no estimate.
    if text.len() <= FREE / MOST {
        return Ok(());
    }
    let mut left = Budget::of(text.len());
    if json(text, &mut left).is_some() { Ok(()) } else { Err(left.exceeded()) }
}

/// Refuses a message in protobuf that would take too much memory once it is decoded.
pub fn check_proto<T: Measure>(proto: &[u8]) -> Result<(), Error> {
    // The smallest message takes two bytes.
    if proto.len() <= FREE / OBJECT {
        return Ok(());
    }
    let mut left = Budget::of(proto.len());
    if measure::<T>(proto, 0, &mut left).is_some() { Ok(()) } else { Err(left.exceeded()) }
}

/// Remaining budget of memory for a decoded request.
#[derive(Debug)]
struct Budget {
    left: usize,
    most: usize,
}

impl Budget {
    fn of(length: usize) -> Self {
        let most = FREE.max(length.saturating_mul(FACTOR));
        Self { left: most.saturating_sub(length), most }
    }

    /// Takes an amount from the budget, or returns `None` if less is left.
    fn take(&mut self, bytes: usize) -> Option<()> {
        self.left = self.left.checked_sub(bytes)?;
        Some(())
    }

    fn exceeded(self) -> Error {
        let Self { most, .. } = self;
        let why = format!("it would take more than {most} bytes once decoded; send fewer values (limit decoded_bytes)");
        ErrorKind::TooLarge.because(why).with("limit", "decoded_bytes")
    }
}

/// Estimates a JSON text by its punctuation outside of strings. The decoder checks whether it is valid JSON.
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

/// A message whose decoded size can be estimated while it is in protobuf. `build/message.rs` writes one for each message.
pub trait Measure {
    /// Contents of the field with this number, if they take more memory than their encoded bytes. By default no field
    /// does; that holds for replies of remote agents.
    fn field(_number: u32) -> Option<Nested> {
        None
    }
}

/// Contents of a field: their size in memory, and how what is within them is measured.
#[derive(Clone, Copy, Debug)]
pub struct Nested {
    size: usize,
    measure: Option<Estimate>,
}

/// Takes the decoded size of a message at some depth from a budget.
type Estimate = fn(&[u8], usize, &mut Budget) -> Option<()>;

impl Nested {
    /// A message, perhaps in a list that grows.
    pub const fn message<T: Measure>() -> Self {
        Self { size: 2 * size_of::<T>(), measure: Some(measure::<T>) }
    }

    /// An object of any members.
    pub const fn object<T: Measure>() -> Self {
        Self { size: OBJECT, measure: Some(measure::<T>) }
    }

    /// A member of an object.
    pub const fn member<T: Measure>() -> Self {
        Self { size: MEMBER, measure: Some(measure::<T>) }
    }

    /// The value of a member, which is counted with it.
    pub const fn value<T: Measure>() -> Self {
        Self { size: 0, measure: Some(measure::<T>) }
    }

    /// A text in a list.
    pub const fn text() -> Self {
        Self { size: VALUE, measure: None }
    }
}

/// Takes the decoded size of a message from what is left, or returns `None` where it is more. What is malformed ends the
/// search: the decoder refuses it.
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
        let length = decode_varint(&mut rest).ok().and_then(|it| usize::try_from(it).ok());
        let Some((inner, after)) = length.and_then(|it| rest.split_at_checked(it)) else { break };
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
    use crate::pb::v1::{Message, Part, SendMessageRequest};

    fn request(message: Message) -> SendMessageRequest {
        SendMessageRequest { message: Some(message), ..SendMessageRequest::default() }
    }

    fn with_metadata(metadata: &str) -> SendMessageRequest {
        let metadata = Some(serde_json::from_str(metadata).unwrap());
        request(Message { metadata, ..Message::user("x") })
    }

    /// Returns whether a request is accepted, as JSON and as protobuf.
    fn taken(request: &SendMessageRequest) -> (bool, bool) {
        let (json, proto) = (serde_json::to_vec(request).unwrap(), request.encode_to_vec());
        let outcomes = (check_json(&json), check_proto::<SendMessageRequest>(&proto));
        for error in [outcomes.0.as_ref().err(), outcomes.1.as_ref().err()].into_iter().flatten() {
            assert_eq!((error.kind(), error.metadata("limit")), (ErrorKind::TooLarge, Some("decoded_bytes")));
        }
        (outcomes.0.is_ok(), outcomes.1.is_ok())
    }

    #[test]
    fn requests_of_many_small_values_are_refused() {
        let list = |value: &str, n: usize| format!(r#"{{"m":[{value}{}]}}"#, format!(",{value}").repeat(n - 1));
        assert_eq!(taken(&with_metadata(&list("0", 500_000))), (false, true), "in protobuf a number has 11 bytes");
        assert_eq!(taken(&with_metadata(&list("null", 500_000))), (false, false));
        assert_eq!(taken(&with_metadata(&list("{}", 300_000))), (false, false));
        assert_eq!(taken(&with_metadata(&list(r#"{"a":{"b":1}}"#, 20_000))), (false, false));
        let parts = vec![Part::default(); 340_000];
        assert_eq!(taken(&request(Message { parts, ..Message::user("") })), (false, false));
        let extensions = vec![String::new(); 300_000];
        assert_eq!(taken(&request(Message { extensions, ..Message::user("x") })), (false, false));
    }

    #[test]
    fn large_requests_of_common_content_are_taken() {
        for text in ["x".repeat(1 << 20), ",".repeat(1 << 20), "\\\"[{".repeat(1 << 18)] {
            assert_eq!(taken(&request(Message::user(text))), (true, true));
        }
        let number = |n: usize| format!("0.{:017}", n * 1_234_567);
        let numbers: Vec<_> = (0..50_000).map(number).collect();
        assert_eq!(taken(&with_metadata(&format!(r#"{{"embedding":[{}]}}"#, numbers.join(",")))), (true, true));
        let record = |n: usize| format!(r#"{{"id":{n},"name":"name of {n}","value":{n}.5}}"#);
        let records: Vec<_> = (0..8000).map(record).collect();
        assert_eq!(taken(&with_metadata(&format!(r#"{{"rows":[{}]}}"#, records.join(",")))), (true, true));
        let parts = (0..1000).map(|it| Part::text(it.to_string())).collect();
        assert_eq!(taken(&request(Message { parts, ..Message::user("") })), (true, true));
    }

    #[test]
    fn what_is_malformed_is_left_to_the_decoder() {
        let proto = request(Message::user("x".repeat(20_000))).encode_to_vec();
        for length in [13_200, 15_000, 20_000] {
            assert!(check_proto::<SendMessageRequest>(&proto[..length]).is_ok());
        }
        assert!(check_json(&vec![b'"'; 100_000]).is_ok());
    }
}
