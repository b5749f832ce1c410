//! ProtoJSON: how messages are read and written. `build/message.rs` writes an `impl Message` for each; what they have in
//! common is here.
//!
//! Reading takes what ProtoJSON takes: both spellings of a name, null for a member that is not set, enums by name or
//! number, integers as text, either alphabet of base64, and members that we do not know. It refuses a member that is
//! given twice, as two readers would then see two messages.

use std::{fmt, marker::PhantomData};

use base64::{
    Engine as _,
    display::Base64Display,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose::STANDARD},
};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, Visitor},
    ser::SerializeStruct,
};

pub use self::{
    encoded::{Encoded, Fields, Odd, Transcode, count, member, once, write_encoded},
    size::{Measure, Nested, check_json, check_proto},
    writer::{close, put_text, write_to},
};
use crate::pb::wkt::Value;

mod encoded;
mod size;
mod writer;

/// What is read member by member.
pub trait Members: Default {
    /// Its name in the proto file.
    const NAME: &'static str;

    /// The numbers of its fields, all below 64, and their names in JSON.
    const FIELDS: &'static [(u32, &'static str)];

    /// The number of the field that a member is for.
    fn field(name: &str) -> Option<u32>;

    /// Reads the value of a field.
    fn read<'de, A: MapAccess<'de>>(&mut self, field: u32, map: &mut A) -> Result<(), A::Error>;
}

/// A message of the proto files, in ProtoJSON.
pub trait Message: Members {
    /// Writes the fields that are set, and those that are REQUIRED.
    fn write<M: SerializeStruct>(&self, members: &mut M) -> Result<(), M::Error>;
}

/// An enum, whose values are numbers in messages and names in JSON.
pub trait Enum {
    /// Its name in the proto file.
    const NAME: &'static str;

    /// Names of its values for an error message, without the unspecified one.
    const VALUES: &'static [&'static str];

    /// The name of a number, if it has one.
    fn name(number: i32) -> Option<&'static str>;

    /// The number of a name.
    fn number(name: &str) -> Option<i32>;
}

/// Reads a message.
pub fn read<'de, T: Members, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    let mut message = T::default();
    Merge(&mut message).deserialize(deserializer)?;
    Ok(message)
}

/// Writes a message.
pub fn write<T: Message, S: Serializer>(message: &T, serializer: S) -> Result<S::Ok, S::Error> {
    let mut members = serializer.serialize_struct(T::NAME, T::FIELDS.len())?;
    message.write(&mut members)?;
    members.end()
}

/// Reads members into a message that may have some already, so that path and body make one message without a tree.
#[derive(Debug)]
pub struct Merge<'a, T>(pub &'a mut T);

impl<'de, T: Members> DeserializeSeed<'de> for Merge<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, T: Members> Visitor<'de> for Merge<'_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a {} as an object", T::NAME)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = 0_u64;
        while let Some(field) = map.next_key_seed(Field::<T>(PhantomData))? {
            match field {
                None => _ = map.next_value::<IgnoredAny>()?,
                // Refused where its value stands, so that whoever keeps the path has it to its end.
                Some(field) if seen & (1 << field) != 0 => map.next_value_seed(Twice(name_of::<T>(field)))?,
                Some(field) => {
                    seen |= 1 << field;
                    self.0.read(field, &mut map)?;
                }
            }
        }
        Ok(())
    }
}

fn name_of<T: Members>(number: u32) -> &'static str {
    T::FIELDS.iter().find(|it| it.0 == number).map_or(T::NAME, |it| it.1)
}

/// The value of a member that there was before.
struct Twice(&'static str);

impl<'de> DeserializeSeed<'de> for Twice {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, _: D) -> Result<(), D::Error> {
        Err(D::Error::custom(format!("`{}` is given twice", self.0)))
    }
}

/// The name of a member, as the number of its field.
struct Field<T>(PhantomData<T>);

impl<'de, T: Members> DeserializeSeed<'de> for Field<T> {
    type Value = Option<u32>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<u32>, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl<T: Members> Visitor<'_> for Field<T> {
    type Value = Option<u32>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a member")
    }

    fn visit_str<E>(self, name: &str) -> Result<Option<u32>, E> {
        Ok(T::field(name))
    }
}

/// Reads the value of a member; None is null, here and in those below.
pub fn any<'de, T: Deserialize<'de>, A: MapAccess<'de>>(map: &mut A) -> Result<Option<T>, A::Error> {
    map.next_value()
}

/// Reads one of any JSON. Null is a value here, and so `{"data": null}` is a part that holds it.
pub fn value<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Option<Value>, A::Error> {
    map.next_value().map(Some)
}

/// Reads an integer.
pub fn number<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Option<i32>, A::Error> {
    Ok(map.next_value::<Option<Number>>()?.map(|it| it.0))
}

/// Reads a value of an enum.
pub fn name<'de, E: Enum, A: MapAccess<'de>>(map: &mut A) -> Result<Option<i32>, A::Error> {
    Ok(map.next_value::<Option<Name<E>>>()?.map(|it| it.0))
}

/// Reads bytes.
pub fn bytes<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Option<Vec<u8>>, A::Error> {
    Ok(map.next_value::<Option<Raw>>()?.map(|it| it.0))
}

/// Sets an arm of a oneof, which is one of `arms`, unless one is set. An arm that is null is none.
pub fn arm<T, E: Error>(oneof: &mut Option<T>, arms: &str, value: Option<T>) -> Result<(), E> {
    match (oneof.is_some(), value) {
        (true, Some(_)) => Err(E::custom(format!("must have only one of {arms}"))),
        (_, None) => Ok(()),
        (false, value) => {
            *oneof = value;
            Ok(())
        }
    }
}

/// An integer, or one in a string, as large ones and those of a query are.
struct Number(i32);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Integer;
        impl Visitor<'_> for Integer {
            type Value = Number;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a 32-bit integer")
            }

            fn visit_i64<E: Error>(self, it: i64) -> Result<Number, E> {
                i32::try_from(it).map(Number).map_err(|_| E::custom(format!("{it} is not a 32-bit integer")))
            }

            fn visit_u64<E: Error>(self, it: u64) -> Result<Number, E> {
                i32::try_from(it).map(Number).map_err(|_| E::custom(format!("{it} is not a 32-bit integer")))
            }

            fn visit_f64<E: Error>(self, it: f64) -> Result<Number, E> {
                whole(it).map(Number).ok_or_else(|| E::custom(format!("{it} is not a 32-bit integer")))
            }

            fn visit_str<E: Error>(self, it: &str) -> Result<Number, E> {
                let number = it.parse().ok().or_else(|| whole(it.parse().ok()?));
                number.map(Number).ok_or_else(|| E::custom(format!("`{it}` is not a 32-bit integer")))
            }
        }
        deserializer.deserialize_any(Integer)
    }
}

/// `1.0` and `1e2` are integers too.
#[expect(clippy::as_conversions, clippy::cast_possible_truncation, reason = "it is whole and in range")]
fn whole(it: f64) -> Option<i32> {
    (it.fract() == 0.0 && (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&it)).then_some(it as i32)
}

/// A value of an enum. One without a name is printed as its number: a reply never fails over what somebody stored.
#[derive(Debug)]
pub struct Name<E>(i32, PhantomData<E>);

impl<E> From<i32> for Name<E> {
    fn from(number: i32) -> Self {
        Self(number, PhantomData)
    }
}

impl<E: Enum> Serialize for Name<E> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match E::name(self.0) {
            Some(name) => serializer.serialize_str(name),
            None => serializer.serialize_i32(self.0),
        }
    }
}

impl<'de, E: Enum> Deserialize<'de> for Name<E> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self(0, PhantomData))
    }
}

impl<E: Enum> Visitor<'_> for Name<E> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "one of {}", E::VALUES.join(", "))
    }

    fn visit_i64<R: Error>(self, it: i64) -> Result<Self, R> {
        i32::try_from(it).map(Self::from).map_err(|_| R::custom(not_one_of(it, E::VALUES)))
    }

    fn visit_u64<R: Error>(self, it: u64) -> Result<Self, R> {
        i32::try_from(it).map(Self::from).map_err(|_| R::custom(not_one_of(it, E::VALUES)))
    }

    /// In a query a number is text as well.
    fn visit_str<R: Error>(self, it: &str) -> Result<Self, R> {
        let number = E::number(it).or_else(|| it.parse().ok());
        number.map(Self::from).ok_or_else(|| R::custom(not_one_of(quoted(it), E::VALUES)))
    }
}

/// Error text for a value that an enum does not have, with those that it has.
pub(crate) fn not_one_of(value: impl fmt::Display, values: &[&str]) -> String {
    format!("{value} is not one of {}", values.join(", "))
}

/// The text of a rejected value in quotes, cut to 40 characters so that the allowed values stay readable.
pub(crate) fn quoted(text: &str) -> String {
    const LENGTH: usize = 40;
    match text.char_indices().nth(LENGTH) {
        Some((end, _)) => format!("{:?}", format!("{}…", &text[..end])),
        None => format!("{text:?}"),
    }
}

/// Bytes, to be written.
#[derive(Debug)]
pub struct Base64<'a>(pub &'a [u8]);

impl Serialize for Base64<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&Base64Display::new(self.0, &STANDARD))
    }
}

/// Bytes, as they are read.
struct Raw(Vec<u8>);

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
            .with_decode_padding_mode(DecodePaddingMode::Indifferent)
            .with_decode_allow_trailing_bits(true);
        const PLAIN: GeneralPurpose = GeneralPurpose::new(&base64::alphabet::STANDARD, LENIENT);
        const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&base64::alphabet::URL_SAFE, LENIENT);
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Raw;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes in base64")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Raw, E> {
                let engine = if text.contains(['-', '_']) { URL_SAFE } else { PLAIN };
                engine.decode(text).map(Raw).map_err(|e| E::custom(format!("not base64: {e}")))
            }
        }
        deserializer.deserialize_str(Text)
    }
}
