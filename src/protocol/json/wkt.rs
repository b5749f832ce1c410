//! Well-known types of `google.protobuf` in ProtoJSON: [`Timestamp`] as RFC 3339 text, [`Value`] as any JSON, maps in
//! key order.
//!
//! Replaces pbjson-types, whose timestamps end in `+00:00`, whose `Struct` has the order of a `HashMap`, and whose
//! `Value` prints `1` as `1.0` and rejects integers from 2^53.

use std::{
    collections::{BTreeMap, btree_map},
    fmt,
    ops::RangeInclusive,
    str::FromStr,
    sync::Once,
};

use jiff::{SignedDuration, civil::DateTime, fmt::temporal::Pieces};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
    ser::SerializeStruct,
};

use crate::{base::clock::Millis, protocol::json};
pub use generated::*;

#[expect(clippy::pedantic, missing_docs, reason = "generated")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/well_known/google.protobuf.rs"));
}

/// Maximum nesting depth of JSON in a message. An object takes three levels of protobuf, and prost, like most decoders,
/// reads at most 100. The enclosing messages take nine. Deeper JSON could be stored, but not read again.
pub const MAX_DEPTH: usize = 28;

impl json::Measure for Empty {}

impl json::Measure for Timestamp {}

/// Map entry of a `Struct`.
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

impl Serialize for Empty {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_struct("Empty", 0)?.end()
    }
}

impl<'de> Deserialize<'de> for Empty {
    /// Accepts any JSON: some agents send `{}` for an empty response and some null.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self {})
    }
}

// Timestamp: RFC 3339 in UTC with milliseconds (5.6.1).

/// Seconds from 0001-01-01 to 9999-12-31, the range of RFC 3339. The range of jiff's `Timestamp` ends a day earlier, so
/// its civil time is used.
const SECONDS: RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

impl Timestamp {
    /// Formats the timestamp. A stored time out of range is clamped, so that a reply never fails because of it.
    fn text(&self) -> [u8; 24] {
        let seconds = self.seconds.clamp(*SECONDS.start(), *SECONDS.end());
        let time = EPOCH.saturating_add(SignedDuration::from_secs(seconds));
        // Digit by digit, since every event has a timestamp: formatting with `write!` takes ten times as long.
        let mut text = *b"0000-00-00T00:00:00.000Z";
        let mut put = |mut at: usize, number: i32| {
            let mut rest = number.unsigned_abs();
            while let (Some(digit), true) = (text.get_mut(at), rest > 0) {
                *digit = b'0' + u8::try_from(rest % 10).unwrap_or(0);
                (rest, at) = (rest / 10, at.wrapping_sub(1));
            }
        };
        put(3, time.year().into());
        put(6, time.month().into());
        put(9, time.day().into());
        put(12, time.hour().into());
        put(15, time.minute().into());
        put(18, time.second().into());
        put(22, self.nanos.clamp(0, 999_999_999) / 1_000_000);
        text
    }
}

/// Converts to a protobuf timestamp.
pub fn timestamp(millis: Millis) -> Timestamp {
    let nanos = i32::try_from(millis.rem_euclid(1000) * 1_000_000).unwrap_or(0);
    Timestamp { seconds: millis.div_euclid(1000), nanos }
}

/// Converts a protobuf timestamp to milliseconds. Truncates finer fractions.
pub fn millis(time: &Timestamp) -> Millis {
    time.seconds.saturating_mul(1000).saturating_add(i64::from(time.nanos / 1_000_000))
}

/// Raises a time to `last` if it is earlier, and returns it: timestamps of a task do not go back when the system clock is set back.
pub(crate) fn raise(time: &mut Timestamp, last: Millis) -> Millis {
    let given = millis(time);
    if given < last {
        *time = timestamp(last);
    }
    given.max(last)
}

impl Timestamp {
    /// Parses a text whose seconds may have more digits than a timestamp, which are dropped.
    pub(super) fn from_long_text(text: &str) -> Option<Self> {
        let fraction = text.find(['.', ',']).map_or(text.len(), |point| point + 1);
        let (before, digits) = text.split_at(fraction);
        let length = digits.bytes().take_while(u8::is_ascii_digit).count();
        let kept = length.min(9);
        parse(&format!("{before}{}{}", &digits[..kept], &digits[length..]))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(str::from_utf8(&self.text()).unwrap_or_default())
    }
}

impl FromStr for Timestamp {
    type Err = &'static str;

    /// Accepts any offset, or none for UTC, and up to nine fractional digits of a second.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or("a timestamp is like 2025-11-09T10:30:00.000Z")
    }
}

fn parse(text: &str) -> Option<Timestamp> {
    let pieces = Pieces::parse(text).ok().filter(|pieces| pieces.time_zone_annotation().is_none())?;
    let offset = pieces.to_numeric_offset().map_or(0, |offset| i64::from(offset.seconds()));
    let since = pieces.date().to_datetime(pieces.time()?).duration_since(EPOCH);
    let (seconds, nanos) = match (since.as_secs(), since.subsec_nanos()) {
        (seconds, nanos @ ..0) => (seconds - 1, nanos + 1_000_000_000),
        whole => whole,
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
        json::from_text(deserializer, |f| f.write_str("a timestamp"), str::parse)
    }
}

// Value, Struct and ListValue: any JSON.

impl Serialize for Value {
    /// Writes whole numbers as such, `1` and not `1.0`. NaN and the infinities, which JSON can't represent, become
    /// null: ProtoJSON prescribes an error, but every reply that contains such a number would fail.
    #[expect(clippy::as_conversions, clippy::cast_possible_truncation, reason = "whole and in range")]
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use value::Kind;
        match &self.kind {
            None | Some(Kind::NullValue(_)) => serializer.serialize_unit(),
            Some(Kind::BoolValue(value)) => serializer.serialize_bool(*value),
            Some(Kind::NumberValue(value)) if !value.is_finite() => serializer.serialize_unit(),
            Some(Kind::NumberValue(value)) if value.fract() == 0.0 && value.abs() < 9.2e18 => {
                serializer.serialize_i64(*value as i64)
            }
            Some(Kind::NumberValue(value)) => serializer.serialize_f64(*value),
            Some(Kind::StringValue(value)) => serializer.serialize_str(value),
            Some(Kind::StructValue(value)) => value.serialize(serializer),
            Some(Kind::ListValue(value)) => value.serialize(serializer),
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

impl Value {
    /// Returns true if lists and objects are nested more than `levels` deep in this value.
    pub fn is_deeper_than(&self, levels: usize) -> bool {
        match &self.kind {
            Some(value::Kind::StructValue(object)) => object.is_deeper_than(levels),
            Some(value::Kind::ListValue(list)) => {
                levels.checked_sub(1).is_none_or(|left| list.values.iter().any(|value| value.is_deeper_than(left)))
            }
            _ => false,
        }
    }
}

impl Struct {
    /// Returns true if lists and objects are nested more than `levels` deep, this object included.
    pub fn is_deeper_than(&self, levels: usize) -> bool {
        levels.checked_sub(1).is_none_or(|left| self.fields.values().any(|value| value.is_deeper_than(left)))
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

/// Checks that a text is JSON in which no object has a member twice: two readers could take different ones.
pub(crate) fn check_unique(json: &[u8]) -> serde_json::Result<()> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    Nested(usize::MAX).deserialize(&mut deserializer)?;
    deserializer.end()
}

/// Reader of a JSON value with this many levels of nesting left.
#[derive(Clone, Copy)]
struct Nested(usize);

impl Nested {
    fn inner<E: Error>(self) -> Result<Self, E> {
        self.0.checked_sub(1).map(Self).ok_or_else(|| E::custom(format!("JSON nested more than {MAX_DEPTH} deep")))
    }

    fn members<'de, A: MapAccess<'de>>(self, mut map: A) -> Result<Struct, A::Error> {
        let mut fields = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            let value = map.next_value_seed(self.inner()?)?;
            match fields.entry(name) {
                btree_map::Entry::Vacant(member) => _ = member.insert(value),
                btree_map::Entry::Occupied(member) => {
                    return Err(A::Error::custom(format!("{} is given twice", json::quoted(member.key()))));
                }
            }
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

/// 2^53, from which doubles do not have all integers.
const INEXACT: f64 = 9_007_199_254_740_992.0;

/// The process has logged that a number was rounded.
static WARNED: Once = Once::new();

#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "JSON numbers are doubles")]
impl<'de> Visitor<'de> for Nested {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(value::Kind::NullValue(0).into())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value::Kind::BoolValue(value).into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        self.visit_f64(value as f64)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        self.visit_f64(value as f64)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        // Otherwise the value is only checked.
        if value.abs() >= INEXACT && self.0 <= MAX_DEPTH {
            WARNED.call_once(|| {
                tracing::warn!(
                    "a JSON number of 2^53 or more is rounded, as in other software; send such numbers as text"
                );
            });
        }
        Ok(value::Kind::NumberValue(value).into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        self.visit_string(value.to_owned())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(value::Kind::StringValue(value).into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = seq.next_element_seed(self.inner()?)? {
            values.push(value);
        }
        Ok(value::Kind::ListValue(ListValue { values }).into())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Value, A::Error> {
        Ok(value::Kind::StructValue(self.members(map)?).into())
    }
}

conversions! { Value: kind: value::Kind => Self { kind: Some(kind) }; }
