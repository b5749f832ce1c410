//! Direct transcoding of stored protobuf to JSON: equal to the JSON of the decoded message, for every valid encoding.

use std::sync::LazyLock;

use a2a_service::{
    json::{Encoded, Transcode, write_encoded, write_to},
    pb::{
        DESCRIPTORS,
        v1::{StreamResponse, Task},
    },
};
use proptest::prelude::*;
use prost::Message;
use prost_reflect::{DescriptorPool, FieldDescriptor, Kind, MessageDescriptor};
use serde::Serialize;

static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| DescriptorPool::decode(DESCRIPTORS).unwrap());

fn descriptor(name: &str) -> MessageDescriptor {
    POOL.get_message_by_name(name).unwrap()
}

/// Sequence of random choices. After the last one it returns zeros, for which generated messages are short and plain.
struct Tape<'a>(&'a [u8]);

impl Tape<'_> {
    fn pick(&mut self, of: u8) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first % of
    }

    fn once_in(&mut self, times: u8) -> bool {
        self.pick(times) == times - 1
    }
}

/// Encodes a number, sometimes longer than necessary.
fn varint(tape: &mut Tape<'_>, mut number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let long = tape.once_in(60);
    while number > 0x7f {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0] | if long && out.len() < 9 { 0x80 } else { 0 });
    if out.last().unwrap() & 0x80 != 0 {
        out.push(0);
    }
    out
}

fn key(tape: &mut Tape<'_>, number: u32, wire: u64) -> Vec<u8> {
    varint(tape, u64::from(number) << 3 | wire)
}

fn delimited(tape: &mut Tape<'_>, number: u32, value: &[u8]) -> Vec<u8> {
    let (key, length) = (key(tape, number, 2), varint(tape, value.len().try_into().unwrap()));
    [&key, &length, value].concat()
}

fn number(tape: &mut Tape<'_>) -> u64 {
    [0, 1, 2, 3, 5, 8, 99, 1 << 31, 1 << 32, 1_762_684_200, u64::MAX, u64::MAX - 4][usize::from(tape.pick(12))]
}

/// Encodes a field with a random value.
fn field(tape: &mut Tape<'_>, field: &FieldDescriptor, depth: u32) -> Vec<u8> {
    let at = field.number();
    match field.kind() {
        Kind::String | Kind::Bytes => {
            let value: &[u8] = match tape.pick(40) {
                0 => b"",
                1..10 => b"a",
                10..20 => b"of some more letters than sixteen, and a \"quote\"",
                20..25 => "ünïcode\n\t\u{1f600}\u{2028}\u{7f}\u{0}".as_bytes(),
                25..30 => &[b'x'; 300],
                30 => b"\xff\xfe not UTF-8",
                _ => b"b",
            };
            delimited(tape, at, value)
        }
        Kind::Message(inner) => {
            let value = if depth == 0 { Vec::new() } else { message(tape, &inner, depth - 1) };
            delimited(tape, at, &value)
        }
        Kind::Double => {
            let all = [0.0, 1.0, -0.0, 1.5, 1e300, 9.3e18, f64::NAN, f64::NEG_INFINITY, 1e15 + 0.5];
            [key(tape, at, 1), all[usize::from(tape.pick(9))].to_le_bytes().to_vec()].concat()
        }
        Kind::Bool | Kind::Enum(_) | Kind::Int32 | Kind::Int64 => {
            let number = number(tape);
            [key(tape, at, 0), varint(tape, number)].concat()
        }
        kind @ (Kind::Float
        | Kind::Uint32
        | Kind::Uint64
        | Kind::Sint32
        | Kind::Sint64
        | Kind::Fixed32
        | Kind::Fixed64
        | Kind::Sfixed32
        | Kind::Sfixed64) => panic!("{kind:?}"),
    }
}

/// Encodes a field that the proto file does not have, or another wire type.
fn unknown(tape: &mut Tape<'_>) -> Vec<u8> {
    let at = [1, 3, 4, 9, 15, 16, 100, 1 << 20][usize::from(tape.pick(8))];
    match tape.pick(6) {
        0 => [key(tape, at, 0), vec![1]].concat(),
        1 => [key(tape, at, 1), vec![0; 8]].concat(),
        2 => delimited(tape, at, b"?"),
        3 => [key(tape, at, 3), key(tape, 1, 0), vec![7], key(tape, at, 4)].concat(),
        4 => [key(tape, at, 5), vec![0; 4]].concat(),
        _ => [key(tape, 0, 0), vec![1]].concat(),
    }
}

/// Encodes a message, mostly in canonical form and sometimes in another valid or invalid one.
fn message(tape: &mut Tape<'_>, of: &MessageDescriptor, depth: u32) -> Vec<u8> {
    let mut descriptors: Vec<_> = of.fields().collect();
    descriptors.sort_by_key(FieldDescriptor::number);
    let mut fields = Vec::new();
    let mut chosen = false;
    for field_descriptor in &descriptors {
        let is_arm = field_descriptor.containing_oneof().is_some();
        let wanted = tape.pick(2) == 1 && !(is_arm && chosen);
        chosen |= is_arm && wanted;
        let count = if wanted && field_descriptor.is_list() { 1 + tape.pick(3) } else { u8::from(wanted) };
        if field_descriptor.is_map() {
            // In key order, as the maps of this crate are.
            for name in ["", "a", "b", "c"].iter().take(usize::from(count) * (1 + usize::from(tape.pick(4)))) {
                let inner = descriptor("google.protobuf.Value");
                let value = if depth == 0 { Vec::new() } else { message(tape, &inner, depth - 1) };
                let (name, value) = (delimited(tape, 1, name.as_bytes()), delimited(tape, 2, &value));
                let entry = if tape.once_in(20) { [value, name] } else { [name, value] }.concat();
                fields.push(delimited(tape, field_descriptor.number(), &entry));
            }
        } else {
            fields.extend((0..count).map(|_| field(tape, field_descriptor, depth)));
        }
    }
    let anywhere = |tape: &mut Tape<'_>, fields: &[Vec<u8>]| {
        usize::from(tape.pick(u8::try_from(fields.len() + 1).unwrap_or(u8::MAX)))
    };
    match tape.pick(40) {
        // Repeats a field with another value, or sets another arm of a oneof.
        34 | 35 if !descriptors.is_empty() => {
            let field_descriptor = &descriptors[usize::from(tape.pick(u8::try_from(descriptors.len()).unwrap()))];
            let (at, again) = (anywhere(tape, &fields), field_or_entry(tape, field_descriptor, depth));
            fields.insert(at, again);
        }
        36 if !fields.is_empty() => {
            let (a, b) = (anywhere(tape, &fields[1..]), anywhere(tape, &fields[1..]));
            fields.swap(a, b);
        }
        37 => {
            let at = anywhere(tape, &fields);
            fields.insert(at, unknown(tape));
        }
        38 if !fields.is_empty() => {
            let at = anywhere(tape, &fields[1..]);
            fields[at].pop();
        }
        39 => fields.reverse(),
        _ => {}
    }
    fields.concat()
}

fn field_or_entry(tape: &mut Tape<'_>, descriptor: &FieldDescriptor, depth: u32) -> Vec<u8> {
    if descriptor.is_map() { delimited(tape, descriptor.number(), b"") } else { field(tape, descriptor, depth) }
}

/// Returns whether the bytes, and their canonical encoding, are transcoded without decoding. `None` if they are invalid.
fn assert_transcoded<T: Transcode + Message + Default + Serialize>(proto: &[u8]) -> Option<[bool; 2]> {
    let (mut out, mut expected) = (b"before ".to_vec(), b"before ".to_vec());
    let written = write_encoded::<T>(&mut out, proto);
    let Ok(message) = T::decode(proto) else {
        assert!(written.is_err(), "{proto:?} is invalid");
        assert_eq!(out, expected, "no partial output");
        return None;
    };
    written.unwrap();
    write_to(&mut expected, &message).unwrap();
    assert_eq!(String::from_utf8(out).unwrap(), String::from_utf8(expected).unwrap(), "{proto:?}");
    Some([proto, &message.encode_to_vec()].map(|proto| Encoded::<T>::new(proto).write(&mut Vec::new()).is_ok()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn every_encoding_is_transcoded(choices in proptest::collection::vec(any::<u8>(), 0..600)) {
        let as_we_encode = [
            assert_transcoded::<Task>(&message(&mut Tape(&choices), &descriptor("lf.a2a.v1.Task"), 7)),
            assert_transcoded::<StreamResponse>(&message(&mut Tape(&choices), &descriptor("lf.a2a.v1.StreamResponse"), 7)),
        ];
        prop_assert!(as_we_encode.into_iter().flatten().all(|outcome| outcome[1]));
    }

    #[test]
    fn arbitrary_bytes_are_transcoded_or_rejected(bytes in proptest::collection::vec(prop_oneof![0_u8..60, any::<u8>()], 0..60)) {
        assert_transcoded::<Task>(&bytes);
    }
}

/// Encodings that protobuf permits, and whether they are transcoded directly.
#[test]
fn permitted_encodings_are_transcoded() {
    let task = |fields: &[&[u8]]| fields.concat();
    let part = |fields: &[&[u8]]| {
        let part = fields.concat();
        let parts = [&[0x2a, u8::try_from(part.len()).unwrap()], &*part].concat();
        [&[0x2a, u8::try_from(parts.len()).unwrap()], &*parts].concat()
    };
    let data = |value: &[u8]| part(&[&[0x22, u8::try_from(value.len()).unwrap()], value]);
    for (case, direct, proto, json) in [
        ("no fields", Some(true), vec![], r#"{"id":""}"#),
        ("in order", Some(true), task(&[b"\x0a\x01t", b"\x12\x01c"]), r#"{"id":"t","contextId":"c"}"#),
        ("out of order", Some(false), task(&[b"\x12\x01c", b"\x0a\x01t"]), r#"{"id":"t","contextId":"c"}"#),
        ("an explicit default", Some(true), task(&[b"\x0a\x01t", b"\x12\x00"]), r#"{"id":"t"}"#),
        ("a field set twice: the last value counts", Some(false), task(&[b"\x0a\x01t", b"\x0a\x01u"]), r#"{"id":"u"}"#),
        ("unknown", Some(false), task(&[b"\x0a\x01t", b"\x78\x01"]), r#"{"id":"t"}"#),
        ("an unknown group", Some(false), task(&[b"\x0a\x01t", b"\x7b\x08\x01\x7c"]), r#"{"id":"t"}"#),
        ("a longer key", Some(false), task(&[b"\x8a\x00\x01t"]), r#"{"id":"t"}"#),
        ("a longer length of nothing", Some(true), task(&[b"\x0a\x01t", b"\x12\x80\x00"]), r#"{"id":"t"}"#),
        ("a longer length", Some(true), task(&[b"\x0a\x81\x00t"]), r#"{"id":"t"}"#),
        ("a known field of another wire type", None, task(&[b"\x08\x01"]), ""),
        ("not UTF-8", None, task(&[b"\x0a\x01\xff"]), ""),
        ("cut off", None, task(&[b"\x0a\x05t"]), ""),
        ("a key of zero", None, task(&[b"\x0a\x01t", b"\x00\x01"]), ""),
        (
            "a message split into two fields",
            Some(false),
            task(&[b"\x1a\x02\x08\x02", b"\x1a\x04\x1a\x02\x08\x01"]),
            r#"{"id":"","status":{"state":"TASK_STATE_WORKING","timestamp":"1970-01-01T00:00:01.000Z"}}"#,
        ),
        (
            "an unknown negative enum number in ten bytes",
            Some(true),
            task(&[b"\x1a\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"]),
            r#"{"id":"","status":{"state":-1}}"#,
        ),
        (
            "interleaved lists",
            Some(false),
            task(&[b"\x22\x00", b"\x2a\x00", b"\x22\x03\x0a\x01b"]),
            r#"{"id":"","artifacts":[{"artifactId":"","parts":[]},{"artifactId":"b","parts":[]}],"history":[{"messageId":"","role":"ROLE_UNSPECIFIED","parts":[]}]}"#,
        ),
        (
            "an empty arm of a oneof",
            Some(true),
            part(&[b"\x0a\x00"]),
            r#"{"id":"","history":[{"messageId":"","role":"ROLE_UNSPECIFIED","parts":[{"text":""}]}]}"#,
        ),
        (
            "two arms of a oneof, in order",
            Some(false),
            part(&[b"\x0a\x01t", b"\x12\x01b"]),
            r#"{"id":"","history":[{"messageId":"","role":"ROLE_UNSPECIFIED","parts":[{"raw":"Yg=="}]}]}"#,
        ),
        (
            "a value without a kind",
            Some(true),
            data(b""),
            r#"{"id":"","history":[{"messageId":"","role":"ROLE_UNSPECIFIED","parts":[{"data":null}]}]}"#,
        ),
        (
            "a value with two kinds",
            Some(false),
            data(b"\x1a\x01x\x20\x01"),
            r#"{"id":"","history":[{"messageId":"","role":"ROLE_UNSPECIFIED","parts":[{"data":true}]}]}"#,
        ),
        (
            "members in order",
            Some(true),
            data(b"\x2a\x0c\x0a\x03\x0a\x01a\x0a\x05\x0a\x01b\x12\x00"),
            r#"{"id":"","history":[{"messageId":"","role":"ROLE_UNSPECIFIED","parts":[{"data":{"a":null,"b":null}}]}]}"#,
        ),
        (
            "members out of order, one of them twice",
            Some(false),
            data(b"\x2a\x15\x0a\x03\x0a\x01b\x0a\x03\x0a\x01a\x0a\x09\x0a\x01b\x12\x04\x1a\x02hi"),
            r#"{"id":"","history":[{"messageId":"","role":"ROLE_UNSPECIFIED","parts":[{"data":{"a":null,"b":"hi"}}]}]}"#,
        ),
    ] {
        assert_eq!(assert_transcoded::<Task>(&proto), direct.map(|is_direct| [is_direct, true]), "{case}");
        let mut out = Vec::new();
        assert_eq!(write_encoded::<Task>(&mut out, &proto).is_ok(), direct.is_some(), "{case}");
        assert_eq!(String::from_utf8(out).unwrap(), json, "{case}");
    }
}

/// Messages over the depth limit of the decoder are rejected; messages near the limit are decoded.
#[test]
fn depth_is_limited_as_in_the_decoder() {
    for depth in 1..120 {
        // Nested lists, each of two messages.
        let mut value = Vec::new();
        for _ in 0..depth {
            for key in [0x0a, 0x32] {
                value = delimited(&mut Tape(&[]), key >> 3, &value);
            }
        }
        let metadata = [b"\x0a\x01m".as_slice(), &delimited(&mut Tape(&[]), 2, &value)].concat();
        let metadata = delimited(&mut Tape(&[]), 1, &metadata);
        let direct = assert_transcoded::<Task>(&delimited(&mut Tape(&[]), 6, &metadata));
        assert_eq!(
            direct,
            if depth <= 43 {
                Some([true; 2])
            } else if depth <= 48 {
                Some([false; 2])
            } else {
                None
            },
            "{depth}"
        );
    }
}
