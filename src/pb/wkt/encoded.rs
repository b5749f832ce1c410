//! `google.protobuf` as ProtoJSON has it, from bytes that nobody has decoded.

use serde::{
    Serialize as _, Serializer,
    ser::{SerializeMap as _, SerializeSeq as _},
};

use super::{ListValue, Struct, Timestamp, Value, value::Kind};
use crate::json::{Encoded, Transcode, odd};

/// Fields by their number and by how they are encoded: as a number, in eight bytes, or behind a length.
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
    fn transcode<S: Serializer>(encoded: Encoded<'_, Self>, serializer: S) -> Result<S::Ok, S::Error> {
        let mut from = encoded.fields::<S::Error>()?;
        let seconds = if from.is_at(number(1)) { from.long::<S::Error>()? } else { 0 };
        let nanos = if from.is_at(number(2)) { from.integer::<S::Error>()? } else { 0 };
        from.end::<S::Error>()?;
        Self { seconds, nanos }.serialize(serializer)
    }
}

impl Transcode for Value {
    fn transcode<S: Serializer>(encoded: Encoded<'_, Self>, serializer: S) -> Result<S::Ok, S::Error> {
        let mut from = encoded.fields::<S::Error>()?;
        // An arm may stand behind another, which it replaces: then there is something left.
        let kind = if from.is_at(delimited(3)) {
            let text = from.text::<S::Error>()?;
            from.end::<S::Error>()?;
            return serializer.serialize_str(text);
        } else if from.is_at(delimited(5)) {
            let object = from.message::<Struct, S::Error>()?;
            from.end::<S::Error>()?;
            return object.serialize(serializer);
        } else if from.is_at(delimited(6)) {
            let list = from.message::<ListValue, S::Error>()?;
            from.end::<S::Error>()?;
            return list.serialize(serializer);
        } else if from.is_at(eight(2)) {
            Some(Kind::NumberValue(from.double::<S::Error>()?))
        } else if from.is_at(number(4)) {
            Some(Kind::BoolValue(from.flag::<S::Error>()?))
        } else if from.is_at(number(1)) {
            Some(Kind::NullValue(from.integer::<S::Error>()?))
        } else {
            None
        };
        from.end::<S::Error>()?;
        Self { kind }.serialize(serializer)
    }
}

impl Transcode for Struct {
    fn transcode<S: Serializer>(encoded: Encoded<'_, Self>, serializer: S) -> Result<S::Ok, S::Error> {
        let mut from = encoded.fields::<S::Error>()?;
        let mut members = serializer.serialize_map(None)?;
        let mut last = None;
        while from.is_at(delimited(1)) {
            let mut entry = from.message::<Self, S::Error>()?.fields::<S::Error>()?;
            let name = if entry.is_at(delimited(1)) { entry.text::<S::Error>()? } else { "" };
            let value =
                if entry.is_at(delimited(2)) { entry.message::<Value, S::Error>()? } else { Encoded::default() };
            entry.end::<S::Error>()?;
            // Who comes later under the same name takes its place, and who comes too late has another.
            if last.is_some_and(|it| it >= name) {
                return Err(odd());
            }
            members.serialize_entry(name, &value)?;
            last = Some(name);
        }
        from.end::<S::Error>()?;
        members.end()
    }
}

impl Transcode for ListValue {
    fn transcode<S: Serializer>(encoded: Encoded<'_, Self>, serializer: S) -> Result<S::Ok, S::Error> {
        let mut from = encoded.fields::<S::Error>()?;
        let mut elements = serializer.serialize_seq(None)?;
        while from.is_at(delimited(1)) {
            elements.serialize_element(&from.message::<Value, S::Error>()?)?;
        }
        from.end::<S::Error>()?;
        elements.end()
    }
}
