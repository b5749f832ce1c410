//! ProtoJSON: serialization and deserialization of messages. `build/message.rs` generates [`Members`] and [`Message`]
//! for each message; the shared code is here.
//!
//! Deserialization accepts everything that ProtoJSON does: both spellings of a name, null for an unset member, enums by
//! name or number, integers as text, both base64 alphabets, and unknown members. It rejects duplicate members, because
//! two readers could take different ones.

use std::{
    cell::Cell,
    convert::Infallible,
    fmt,
    marker::PhantomData,
    sync::{
        Once,
        atomic::{AtomicU32, Ordering},
    },
};

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

use self::wkt::{Timestamp, Value};
pub use self::{
    encoded::{Encoded, Fields, NotTranscodable, Transcode, count, member, once, put_text, write_encoded},
    size::{DecodedTooLarge, Measure, Nested, check_json, check_proto},
    writer::{close, write_to},
};

mod encoded;
mod size;
pub mod wkt;
mod writer;

/// A type that is deserialized member by member.
pub trait Members: Default {
    /// Name in the proto file.
    const NAME: &'static str;

    /// Field numbers, all below 64, and the JSON name of each.
    const FIELDS: &'static [(u32, &'static str)];

    /// Returns the field number for the name of a member.
    fn field(name: &str) -> Option<u32>;

    /// Deserializes the value of a field.
    fn read<'de, A: MapAccess<'de>>(&mut self, field: u32, map: &mut A) -> Result<(), A::Error>;

    /// Returns the members of which a message without content must have one. Its unknown members may be a content of another kind,
    /// without which the message would be taken for an empty one.
    fn missing_content(&self) -> Option<&'static str> {
        None
    }
}

/// A message of the proto files that is serialized to ProtoJSON.
pub trait Message: Members {
    /// Serializes the fields that are set or REQUIRED.
    fn write<M: SerializeStruct>(&self, members: &mut M) -> Result<(), M::Error>;
}

/// A protobuf enum: a number in messages, a name in JSON.
pub trait Enum {
    /// Name in the proto file.
    const NAME: &'static str;

    /// Names of the values for error messages, without the unspecified one.
    const VALUES: &'static [&'static str];

    /// Returns the name of a number, or `None` if it is unknown.
    fn name(number: i32) -> Option<&'static str>;

    /// Returns the number of a name, or `None` if it is unknown.
    fn number(name: &str) -> Option<i32>;
}

/// Deserializes a message.
pub fn read<'de, T: Members, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    let mut message = T::default();
    Merge(&mut message).deserialize(deserializer)?;
    Ok(message)
}

/// Serializes a message.
pub fn write<T: Message, S: Serializer>(message: &T, serializer: S) -> Result<S::Ok, S::Error> {
    let mut members = serializer.serialize_struct(T::NAME, T::FIELDS.len())?;
    message.write(&mut members)?;
    members.end()
}

/// Deserializes members into a message that may already have some: path and body of a request become one message
/// without an intermediate tree.
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
        let (mut seen, mut unknown) = (0_u64, None);
        while let Some(field) = map.next_key_seed(Field::<T>(PhantomData))? {
            match field {
                Err(name) if self.0.missing_content().is_some() => {
                    let value: serde_json::Value = map.next_value()?;
                    let kind = value.as_str().filter(|_| matches!(&*name, "kind" | "type")).map(Box::from);
                    unknown = kind.or(unknown).or(Some(name));
                }
                Err(_) => _ = map.next_value::<IgnoredAny>()?,
                // Fails while reading the value, so that the error path includes this member.
                Ok(field) if seen & (1 << field) != 0 => map.next_value_seed(Twice(name_of::<T>(field)))?,
                Ok(field) => {
                    seen |= 1 << field;
                    self.0.read(field, &mut map)?;
                }
            }
        }
        match self.0.missing_content().zip(unknown) {
            Some((known, kind)) => {
                Err(A::Error::custom(format!("must have one of {known}, but its kind is {}", quoted(&kind))))
            }
            None => Ok(()),
        }
    }
}

fn name_of<T: Members>(number: u32) -> &'static str {
    T::FIELDS.iter().find(|field| field.0 == number).map_or(T::NAME, |field| field.1)
}

/// Value of a duplicate member. Deserializing it fails.
struct Twice(&'static str);

impl<'de> DeserializeSeed<'de> for Twice {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, _: D) -> Result<(), D::Error> {
        Err(D::Error::custom(format!("`{}` is given twice", self.0)))
    }
}

/// Deserializes a text with `parse`. `expected` describes it in the error for other JSON.
pub(crate) fn from_text<'de, T, E: fmt::Display, D: Deserializer<'de>>(
    deserializer: D,
    expected: impl Fn(&mut fmt::Formatter<'_>) -> fmt::Result,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, D::Error> {
    struct Text<F, P>(F, P);

    impl<T, E: fmt::Display, F, P> Visitor<'_> for Text<F, P>
    where
        F: Fn(&mut fmt::Formatter<'_>) -> fmt::Result,
        P: FnOnce(&str) -> Result<T, E>,
    {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            (self.0)(f)
        }

        fn visit_str<R: Error>(self, text: &str) -> Result<T, R> {
            (self.1)(text).map_err(R::custom)
        }
    }

    deserializer.deserialize_str(Text(expected, parse))
}

/// Name of a member, deserialized to the number of its field, or to itself if it is unknown.
struct Field<T>(PhantomData<T>);

impl<'de, T: Members> DeserializeSeed<'de> for Field<T> {
    type Value = Result<u32, Box<str>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        let field = |name: &str| {
            T::field(name).ok_or_else(|| {
                hint_at_outdated::<T>(name);
                name.into()
            })
        };
        from_text(deserializer, |f| f.write_str("the name of a member"), |name| Ok::<_, Infallible>(field(name)))
    }
}

/// Members that 1.0 has no longer, and which are ignored: message, its member in 0.3, another member by which the message is known as
/// that of 1.0, and what 1.0 has in place of it.
const OUTDATED: [(&str, &str, &str, &str); 10] = [
    (
        "SendMessageConfiguration",
        "blocking",
        "returnImmediately",
        "use `returnImmediately: true` for `blocking: false`",
    ),
    ("SendMessageConfiguration", "pushNotificationConfig", "returnImmediately", "use `taskPushNotificationConfig`"),
    ("SendMessageConfiguration", "pushNotification", "returnImmediately", "use `taskPushNotificationConfig`"),
    ("TaskPushNotificationConfig", "pushNotificationConfig", "url", "its members belong into the object around it"),
    ("AuthenticationInfo", "schemes", "scheme", "use `scheme`"),
    ("Message", "kind", "parts", "omit it"),
    ("Part", "kind", "mediaType", "omit it; the member with the content tells the kind"),
    ("Part", "file", "mediaType", "use `raw` or `url`, `filename` and `mediaType`"),
    ("Part", "mimeType", "mediaType", "use `mediaType`"),
    ("Part", "name", "mediaType", "use `filename`"),
];

thread_local! {
    /// The text that is decoded is a response: its reader can't change it.
    static IS_RESPONSE: Cell<bool> = const { Cell::new(false) };
}

/// Decodes a response without the hints for those who write requests.
pub(crate) fn without_hints<T>(decode: impl FnOnce() -> T) -> T {
    let before = IS_RESPONSE.replace(true);
    let decoded = decode();
    IS_RESPONSE.set(before);
    decoded
}

/// Logs that a member of 0.3 is ignored in a message of 1.0, once for each.
fn hint_at_outdated<T: Members>(name: &str) {
    static LOGGED: AtomicU32 = AtomicU32::new(0);
    // Names have two spellings.
    let is_row =
        |row: &(&str, &str, &str, &str)| row.0 == T::NAME && row.1.eq_ignore_ascii_case(&name.replace('_', ""));
    let Some(position) = OUTDATED.iter().position(is_row).filter(|_| !IS_RESPONSE.get()) else { return };
    let (message, member, known, hint) = OUTDATED[position];
    let is_new = || LOGGED.fetch_or(1 << position, Ordering::Relaxed) & (1 << position) == 0;
    if T::FIELDS.iter().any(|field| field.1 == known) && is_new() {
        tracing::warn!("`{member}` of {message} belongs to protocol 0.3 and is ignored in 1.0: {hint}");
    }
}

/// Deserializes the value of a member; null is `None`. The functions below treat null alike, except [`value`].
pub fn any<'de, T: Deserialize<'de>, A: MapAccess<'de>>(map: &mut A) -> Result<Option<T>, A::Error> {
    map.next_value()
}

/// Deserializes a JSON value. Null is a value here: `{"data": null}` is a part that holds null.
pub fn value<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Option<Value>, A::Error> {
    map.next_value().map(Some)
}

/// Deserializes a 32-bit integer.
pub fn number<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Option<i32>, A::Error> {
    Ok(map.next_value::<Option<Number>>()?.map(|number| number.0))
}

/// Deserializes an enum value.
pub fn name<'de, E: Enum, A: MapAccess<'de>>(map: &mut A) -> Result<Option<i32>, A::Error> {
    Ok(map.next_value::<Option<Name<E>>>()?.map(|name| name.0))
}

/// Deserializes the state of a task that an agent sends. Other spellings are accepted, such as `completed`. A state that is unknown,
/// such as one of a later version of the protocol, is unspecified, with a warning once.
pub fn state<'de, E: Enum, A: MapAccess<'de>>(map: &mut A) -> Result<Option<i32>, A::Error> {
    lenient_enum(map, |text| {
        let name = || text.to_ascii_uppercase().replace('-', "_");
        E::number(text).or_else(|| E::number(&name())).or_else(|| E::number(&format!("TASK_STATE_{}", name())))
    })
}

/// Deserializes an enum value that an agent sends. A name for which `number` has none is unspecified, with a warning once.
pub(crate) fn lenient_enum<'de, A: MapAccess<'de>>(
    map: &mut A,
    number: impl FnOnce(&str) -> Option<i32>,
) -> Result<Option<i32>, A::Error> {
    static WARNED: Once = Once::new();
    let value: serde_json::Value = map.next_value()?;
    if value.is_null() {
        return Ok(None);
    }
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let found = number(&text).or_else(|| text.parse().ok());
    if found.is_none() {
        WARNED.call_once(|| {
            tracing::warn!("the agent sent a state that is unknown, and so unspecified: {}", quoted(&text));
        });
    }
    Ok(Some(found.unwrap_or_default()))
}

/// Deserializes a time that an agent sends. Digits past nanoseconds are dropped. What is no time is unset, with a warning once.
pub fn time<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Option<Timestamp>, A::Error> {
    static WARNED: Once = Once::new();
    let value: serde_json::Value = map.next_value()?;
    let time = value.as_str().and_then(Timestamp::from_long_text);
    if time.is_none() && !value.is_null() {
        WARNED.call_once(|| {
            tracing::warn!("the agent sent a time that is none of RFC 3339: {}", quoted(&value.to_string()));
        });
    }
    Ok(time)
}

/// Deserializes bytes from base64.
pub fn bytes<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Option<Vec<u8>>, A::Error> {
    Ok(map.next_value::<Option<Raw>>()?.map(|raw| raw.0))
}

/// Sets an arm of a oneof, unless another one is set. Null sets none. `arms` lists the arms for the error message.
pub fn arm<T, E: Error>(oneof: &mut Option<T>, arms: &str, value: Option<T>) -> Result<(), E> {
    match value.and_then(|value| oneof.replace(value)) {
        Some(_) => Err(E::custom(format!("must have only one of {arms}"))),
        None => Ok(()),
    }
}

/// An integer as a number or a string: large integers and those in a query are strings.
struct Number(i32);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Integer;
        impl Visitor<'_> for Integer {
            type Value = Number;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a 32-bit integer")
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Number, E> {
                i32::try_from(number).map(Number).map_err(|_| E::custom(format!("{number} is not a 32-bit integer")))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Number, E> {
                i32::try_from(number).map(Number).map_err(|_| E::custom(format!("{number} is not a 32-bit integer")))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Number, E> {
                whole(number).map(Number).ok_or_else(|| E::custom(format!("{number} is not a 32-bit integer")))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Number, E> {
                let number = text.parse().ok().or_else(|| whole(text.parse().ok()?));
                number.map(Number).ok_or_else(|| E::custom(format!("`{text}` is not a 32-bit integer")))
            }
        }
        deserializer.deserialize_any(Integer)
    }
}

/// Converts a whole number in range to an integer: `1.0` and `1e2` are integers too.
#[expect(clippy::as_conversions, clippy::cast_possible_truncation, reason = "whole and in range")]
fn whole(number: f64) -> Option<i32> {
    let is_integer = number.fract() == 0.0 && (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&number);
    is_integer.then_some(number as i32)
}

/// An enum value by its name. A stored value without a name is written as its number, so that a reply never fails
/// because of it.
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

    fn visit_i64<R: Error>(self, number: i64) -> Result<Self, R> {
        i32::try_from(number).map(Self::from).map_err(|_| R::custom(not_one_of(number, E::VALUES)))
    }

    fn visit_u64<R: Error>(self, number: u64) -> Result<Self, R> {
        i32::try_from(number).map(Self::from).map_err(|_| R::custom(not_one_of(number, E::VALUES)))
    }

    /// Accepts a name, or a number as text: a query has only text.
    fn visit_str<R: Error>(self, text: &str) -> Result<Self, R> {
        let number = E::number(text).or_else(|| text.parse().ok());
        number.map(Self::from).ok_or_else(|| R::custom(not_one_of(quoted(text), E::VALUES)))
    }
}

/// Returns the error message for an unknown enum value; it lists the known ones.
pub(crate) fn not_one_of(value: impl fmt::Display, values: &[&str]) -> String {
    format!("{value} is not one of {}", values.join(", "))
}

/// Returns true for null, and for an empty text, array or object.
pub(crate) fn is_empty(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::Null => true,
        serde_json::Value::Bool(_) | serde_json::Value::Number(_) => false,
        serde_json::Value::String(text) => text.is_empty(),
        serde_json::Value::Array(items) => items.is_empty(),
        serde_json::Value::Object(members) => members.is_empty(),
    }
}

/// Quotes a rejected value and truncates it to 40 characters, so that the allowed values stay readable.
pub(crate) fn quoted(text: &str) -> String {
    const LENGTH: usize = 40;
    match text.char_indices().nth(LENGTH) {
        Some((end, _)) => format!("{:?}", format!("{}…", &text[..end])),
        None => format!("{text:?}"),
    }
}

/// Bytes serialized as base64.
#[derive(Debug)]
pub struct Base64<'a>(pub &'a [u8]);

impl Serialize for Base64<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&Base64Display::new(self.0, &STANDARD))
    }
}

/// Bytes deserialized from base64 in either alphabet, with or without padding.
struct Raw(Vec<u8>);

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
            .with_decode_padding_mode(DecodePaddingMode::Indifferent)
            .with_decode_allow_trailing_bits(true);
        const PLAIN: GeneralPurpose = GeneralPurpose::new(&base64::alphabet::STANDARD, LENIENT);
        const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&base64::alphabet::URL_SAFE, LENIENT);
        let decode = |text: &str| {
            let engine = if text.contains(['-', '_']) { URL_SAFE } else { PLAIN };
            engine.decode(text).map(Self).map_err(|e| format!("not base64: {e}"))
        };
        from_text(deserializer, |f| f.write_str("bytes in base64"), decode)
    }
}
