//! `google.protobuf` as ProtoJSON has it: a [`Timestamp`] is text, a [`Value`] is any JSON, and maps keep an order.
//!
//! Our own in place of pbjson-types, whose timestamps end in `+00:00`, whose `Struct` has the order of a `HashMap`, and
//! whose `Value` prints `1` as `1.0` and refuses integers from 2^53.

use std::{collections::BTreeMap, fmt, ops::RangeInclusive, str::FromStr};

use jiff::{SignedDuration, civil::DateTime, fmt::temporal::Pieces};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
    ser::SerializeStruct,
};

use crate::json;
pub use generated::*;

mod encoded;

#[expect(clippy::pedantic, missing_docs, reason = "generated")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/well_known/google.protobuf.rs"));
}

/// How deep JSON in a message may nest. An object takes three levels of protobuf, of which prost, like most readers,
/// takes a hundred in all: what is deeper could be stored, and never be read again. The messages around it have nine.
pub const MAX_DEPTH: usize = 28;

impl json::Measure for Empty {}

impl json::Measure for Timestamp {}

/// An entry of the map of an object.
struct Entry;

impl json::Measure for Entry {
    fn field(number: u32) -> Option<json::Nested> {
        (number == 2).then(json::Nested::value::<Value>)
    }
}

impl json::Measure for Struct {
    fn field(number: u32) -> Option<json::Nested> {
        (number == 1).then(json::Nested::member::<Entry>)
    }
}

impl json::Measure for Value {
    fn field(number: u32) -> Option<json::Nested> {
        match number {
            5 => Some(json::Nested::object::<Struct>()),
            6 => Some(json::Nested::message::<ListValue>()),
            _ => None,
        }
    }
}

impl json::Measure for ListValue {
    fn field(number: u32) -> Option<json::Nested> {
        (number == 1).then(json::Nested::message::<Value>)
    }
}

impl json::Members for Empty {
    const NAME: &'static str = "Empty";
    const FIELDS: &'static [(u32, &'static str)] = &[];

    fn field(_: &str) -> Option<u32> {
        None
    }

    fn read<'de, A: MapAccess<'de>>(&mut self, _: u32, _: &mut A) -> Result<(), A::Error> {
        Ok(())
    }
}

impl json::Message for Empty {
    fn write<M: SerializeStruct>(&self, _: &mut M) -> Result<(), M::Error> {
        Ok(())
    }
}

impl Serialize for Empty {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        json::write(self, serializer)
    }
}

impl<'de> Deserialize<'de> for Empty {
    /// Reads anything. Agents answer `{}` or null where there is nothing to say, and nothing in it could matter.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self {})
    }
}

// Timestamp: RFC 3339, printed in UTC with milliseconds (5.6.1).

/// 0001-01-01 and 9999-12-31 in seconds: what RFC 3339 can say. jiff's own `Timestamp` ends a day before, hence its
/// civil times here.
const SECONDS: RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

impl Timestamp {
    /// Always in the one form. A time that somebody stored and that has none is the nearest that has: a reply never
    /// fails over it.
    fn text(&self) -> [u8; 24] {
        let seconds = self.seconds.clamp(*SECONDS.start(), *SECONDS.end());
        let it = EPOCH.saturating_add(SignedDuration::from_secs(seconds));
        // Digit by digit, since it is in every event: the numbers of `write!` take ten times as long.
        let mut text = *b"0000-00-00T00:00:00.000Z";
        let mut put = |mut at: usize, number: i32| {
            let mut rest = number.unsigned_abs();
            while let (Some(digit), true) = (text.get_mut(at), rest > 0) {
                *digit = b'0' + u8::try_from(rest % 10).unwrap_or(0);
                (rest, at) = (rest / 10, at.wrapping_sub(1));
            }
        };
        put(3, it.year().into());
        put(6, it.month().into());
        put(9, it.day().into());
        put(12, it.hour().into());
        put(15, it.minute().into());
        put(18, it.second().into());
        put(22, self.nanos.clamp(0, 999_999_999) / 1_000_000);
        text
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(str::from_utf8(&self.text()).unwrap_or_default())
    }
}

impl FromStr for Timestamp {
    type Err = &'static str;

    /// Reads any offset, none at all (then it is UTC), and as many digits of a second as there are up to nine.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or("a timestamp is like 2025-11-09T10:30:00.000Z")
    }
}

fn parse(text: &str) -> Option<Timestamp> {
    let pieces = Pieces::parse(text).ok().filter(|it| it.time_zone_annotation().is_none())?;
    let offset = pieces.to_numeric_offset().map_or(0, |it| i64::from(it.seconds()));
    let since = pieces.date().to_datetime(pieces.time()?).duration_since(EPOCH);
    let (seconds, nanos) = match (since.as_secs(), since.subsec_nanos()) {
        (seconds, nanos @ ..0) => (seconds - 1, nanos + 1_000_000_000),
        it => it,
    };
    let seconds = seconds - offset;
    SECONDS.contains(&seconds).then_some(Timestamp { seconds, nanos })
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(str::from_utf8(&self.text()).unwrap_or_default())
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Timestamp;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a timestamp")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Timestamp, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

// Value, Struct and ListValue: any JSON.

impl Serialize for Value {
    /// Whole numbers are printed as such, `1` and not `1.0`. NaN and the infinities, which JSON has no word for, become
    /// null: ProtoJSON would have us fail, and with us every reply that such a number is in.
    #[expect(clippy::as_conversions, clippy::cast_possible_truncation, reason = "it is whole and in range")]
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use value::Kind;
        match &self.kind {
            None | Some(Kind::NullValue(_)) => serializer.serialize_unit(),
            Some(Kind::BoolValue(it)) => serializer.serialize_bool(*it),
            Some(Kind::NumberValue(it)) if !it.is_finite() => serializer.serialize_unit(),
            Some(Kind::NumberValue(it)) if it.fract() == 0.0 && it.abs() < 9.2e18 => {
                serializer.serialize_i64(*it as i64)
            }
            Some(Kind::NumberValue(it)) => serializer.serialize_f64(*it),
            Some(Kind::StringValue(it)) => serializer.serialize_str(it),
            Some(Kind::StructValue(it)) => it.serialize(serializer),
            Some(Kind::ListValue(it)) => it.serialize(serializer),
        }
    }
}

impl Serialize for Struct {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(&self.fields)
    }
}

impl Serialize for ListValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(&self.values)
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Nested(MAX_DEPTH).deserialize(deserializer)
    }
}

impl<'de> Deserialize<'de> for Struct {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Struct;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Struct, A::Error> {
                Nested(MAX_DEPTH).members(map)
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// A value that may hold values so many levels deep.
#[derive(Clone, Copy)]
struct Nested(usize);

impl Nested {
    fn inner<E: Error>(self) -> Result<Self, E> {
        self.0.checked_sub(1).map(Self).ok_or_else(|| E::custom(format!("JSON nested more than {MAX_DEPTH} deep")))
    }

    fn members<'de, A: MapAccess<'de>>(self, mut map: A) -> Result<Struct, A::Error> {
        let mut fields = BTreeMap::new();
        while let Some(name) = map.next_key()? {
            fields.insert(name, map.next_value_seed(self.inner()?)?);
        }
        Ok(Struct { fields })
    }
}

impl<'de> DeserializeSeed<'de> for Nested {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "a number of JSON is a double")]
impl<'de> Visitor<'de> for Nested {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(value::Kind::NullValue(0).into())
    }

    fn visit_bool<E: Error>(self, it: bool) -> Result<Value, E> {
        Ok(value::Kind::BoolValue(it).into())
    }

    fn visit_i64<E: Error>(self, it: i64) -> Result<Value, E> {
        Ok(value::Kind::NumberValue(it as f64).into())
    }

    fn visit_u64<E: Error>(self, it: u64) -> Result<Value, E> {
        Ok(value::Kind::NumberValue(it as f64).into())
    }

    fn visit_f64<E: Error>(self, it: f64) -> Result<Value, E> {
        Ok(value::Kind::NumberValue(it).into())
    }

    fn visit_str<E: Error>(self, it: &str) -> Result<Value, E> {
        self.visit_string(it.to_owned())
    }

    fn visit_string<E: Error>(self, it: String) -> Result<Value, E> {
        Ok(value::Kind::StringValue(it).into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(it) = seq.next_element_seed(self.inner()?)? {
            values.push(it);
        }
        Ok(value::Kind::ListValue(ListValue { values }).into())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Value, A::Error> {
        Ok(value::Kind::StructValue(self.members(map)?).into())
    }
}

impl From<value::Kind> for Value {
    fn from(kind: value::Kind) -> Self {
        Self { kind: Some(kind) }
    }
}
