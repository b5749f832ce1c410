//! ProtoJSON of `google.protobuf` types written straight from encoded protobuf.

use super::{ListValue, Struct, Timestamp, Value, value::Kind};
use crate::json::{Encoded, Odd, Transcode, close, member, put_text};

/// Returns the key of a field with wire type varint; the functions below, those of 64-bit and length-delimited fields.
const fn number(field: u32) -> u32 {
    field << 3
}

const fn eight(field: u32) -> u32 {
    field << 3 | 1
}

const fn delimited(field: u32) -> u32 {
    field << 3 | 2
}

impl Transcode for Timestamp {
    fn transcode(encoded: Encoded<'_, Self>, out: &mut Vec<u8>) -> Result<(), Odd> {
        let mut from = encoded.fields()?;
        let seconds = if from.is_at(number(1)) { from.long()? } else { 0 };
        let nanos = if from.is_at(number(2)) { from.integer()? } else { 0 };
        from.end()?;
        member(out, b"", &Self { seconds, nanos })
    }
}

impl Transcode for Value {
    fn transcode(encoded: Encoded<'_, Self>, out: &mut Vec<u8>) -> Result<(), Odd> {
        let mut from = encoded.fields()?;
        if from.is_at(delimited(3)) {
            from.put_text(out, b"")?;
        } else if from.is_at(delimited(5)) {
            from.put_message::<Struct>(out, b"")?;
        } else if from.is_at(delimited(6)) {
            from.put_message::<ListValue>(out, b"")?;
        } else {
            let kind = if from.is_at(eight(2)) {
                Some(Kind::NumberValue(from.double()?))
            } else if from.is_at(number(4)) {
                Some(Kind::BoolValue(from.flag()?))
            } else if from.is_at(number(1)) {
                Some(Kind::NullValue(from.integer()?))
            } else {
                None
            };
            member(out, b"", &Self { kind })?;
        }
        // An encoder writes at most one arm of the oneof. After further fields, this fails and the message is decoded.
        from.end()
    }
}

impl Transcode for Struct {
    fn transcode(encoded: Encoded<'_, Self>, out: &mut Vec<u8>) -> Result<(), Odd> {
        let mut from = encoded.fields()?;
        let start = out.len();
        let mut last: Option<&[u8]> = None;
        while from.is_at(delimited(1)) {
            let mut entry = from.message::<Self>()?.fields()?;
            let name = if entry.is_at(delimited(1)) { entry.bytes()? } else { b"" };
            // An encoder of ordered maps writes each name once, in ascending order.
            if last.is_some_and(|last| last >= name) {
                return Err(Odd);
            }
            put_text(out, b",", name)?;
            out.push(b':');
            if entry.is_at(delimited(2)) {
                entry.put_message::<Value>(out, b"")?;
            } else {
                Encoded::<Value>::default().write(out)?;
            }
            entry.end()?;
            last = Some(name);
        }
        from.end()?;
        close(out, start, *b"{}");
        Ok(())
    }
}

impl Transcode for ListValue {
    fn transcode(encoded: Encoded<'_, Self>, out: &mut Vec<u8>) -> Result<(), Odd> {
        let mut from = encoded.fields()?;
        from.put_list::<Value>(delimited(1), out, b"")?;
        from.end()
    }
}
