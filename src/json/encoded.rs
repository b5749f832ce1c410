//! Messages that are still in protobuf, written as JSON without being decoded: a task that a store has need not become
//! strings and lists for that.
//!
//! What is written is what the decoded message would write. That holds for what an encoder makes: fields in the order of
//! their numbers, each once, and none that we don't know. Protobuf allows for more, and whatever is found of that (or is
//! broken) is an error here, upon which [`write_encoded`] decodes the message after all.

use std::{fmt, marker::PhantomData};

use prost::encoding::decode_varint;
use serde::{
    Serialize, Serializer,
    ser::{Error, SerializeSeq as _},
};

use super::write_to;

/// A message that can be written from its bytes. `build/encoded.rs` writes one for each message that is kept in protobuf.
pub trait Transcode: Sized {
    /// Writes it, or the beginning of it and then an error.
    fn transcode<S: Serializer>(encoded: Encoded<'_, Self>, serializer: S) -> Result<S::Ok, S::Error>;
}

/// A message in protobuf, which is [written](Serialize) as its JSON, as far as it is encoded as we would.
pub struct Encoded<'a, T> {
    bytes: &'a [u8],
    depth: u32,
    of: PhantomData<T>,
}

/// What is left of the fields of a message.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
    /// The number of the next field and how it is encoded, as they are written before it.
    key: u32,
    depth: u32,
}

/// Repeated fields of one number.
pub struct Run<'a, T> {
    from: Fields<'a>,
    of: PhantomData<T>,
}

/// Messages in messages. prost reads a hundred, and what it does not read must not be written.
const MAX_DEPTH: u32 = 90;

/// How a field is encoded, which its key has in these bits; and behind a length.
const WIRE: u32 = 7;
const DELIMITED: u32 = 2;

/// There is no further field: no key is zero.
const END: u32 = 0;

/// No key that an encoder writes for a field of ours.
const ODD: u32 = u32::MAX;

/// Writes a message that is in protobuf behind what is there.
pub fn write_encoded<T>(out: &mut Vec<u8>, proto: &[u8]) -> Result<(), serde_json::Error>
where
    T: Transcode + prost::Message + Default + Serialize,
{
    let start = out.len();
    if write_to(out, &Encoded::<T>::new(proto)).is_ok() {
        return Ok(());
    }
    out.truncate(start);
    write_to(out, &T::decode(proto).map_err(Error::custom)?)
}

/// How many fields of a message are of this number, where all that it has are texts and messages.
pub fn count(proto: &[u8], number: u32) -> Option<usize> {
    let key = number << 3 | DELIMITED;
    let mut from = Encoded::<()>::new(proto).fields::<serde_json::Error>().ok()?;
    let mut count = 0;
    while from.key != END {
        count += usize::from(from.key == key);
        if from.key & WIRE != DELIMITED || from.bytes::<serde_json::Error>().is_err() {
            return None;
        }
    }
    Some(count)
}

/// What is encoded in another way than ours.
#[cold]
pub fn odd<E: Error>() -> E {
    E::custom("not encoded in the order of its fields")
}

/// Of a oneof there may be one arm.
pub fn once<E: Error>(chosen: &mut bool) -> Result<(), E> {
    if std::mem::replace(chosen, true) { Err(odd()) } else { Ok(()) }
}

impl<'a, T> Encoded<'a, T> {
    /// The bytes of a message.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, depth: 0, of: PhantomData }
    }

    /// Its fields.
    pub fn fields<E: Error>(&self) -> Result<Fields<'a>, E> {
        if self.depth > MAX_DEPTH {
            return Err(odd());
        }
        let mut fields = Fields { rest: self.bytes, key: END, depth: self.depth + 1 };
        fields.next();
        Ok(fields)
    }
}

impl<T> Default for Encoded<'_, T> {
    fn default() -> Self {
        Self::new(&[])
    }
}

impl<T> fmt::Debug for Encoded<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Encoded").field(&self.bytes).finish()
    }
}

impl<T: Transcode> Serialize for Encoded<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        T::transcode(Self { ..*self }, serializer)
    }
}

/// A text in a list.
impl Transcode for String {
    fn transcode<S: Serializer>(encoded: Encoded<'_, Self>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(str::from_utf8(encoded.bytes).map_err(|_| odd())?)
    }
}

impl<'a> Fields<'a> {
    fn next(&mut self) {
        (self.key, self.rest) = match self.rest {
            [] => (END, [].as_slice()),
            [one @ 1..0x80, rest @ ..] => (u32::from(*one), rest),
            // The second byte of a number that is as short as it can be is not zero.
            [low, high @ 1..0x80, rest @ ..] => (u32::from(*low & 0x7f) | u32::from(*high) << 7, rest),
            rest => (ODD, rest),
        };
    }

    /// Whether the next field is of this number and encoding.
    pub fn is_at(&self, key: u32) -> bool {
        self.key == key
    }

    /// There must be none left.
    pub fn end<E: Error>(&self) -> Result<(), E> {
        if self.key == END { Ok(()) } else { Err(odd()) }
    }

    fn varint<E: Error>(&mut self) -> Result<u64, E> {
        match self.rest {
            [one @ ..0x80, rest @ ..] => {
                self.rest = rest;
                Ok(u64::from(*one))
            }
            _ => decode_varint(&mut self.rest).map_err(|_| odd()),
        }
    }

    fn delimited<E: Error>(&mut self) -> Result<&'a [u8], E> {
        let length = usize::try_from(self.varint::<E>()?).map_err(|_| odd())?;
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or_else(odd)?;
        self.rest = rest;
        Ok(bytes)
    }

    /// The field that is next, as bytes. This and those below go on to the one after it.
    pub fn bytes<E: Error>(&mut self) -> Result<&'a [u8], E> {
        let bytes = self.delimited()?;
        self.next();
        Ok(bytes)
    }

    /// As text.
    pub fn text<E: Error>(&mut self) -> Result<&'a str, E> {
        str::from_utf8(self.bytes()?).map_err(|_| odd())
    }

    /// As a message.
    pub fn message<T, E: Error>(&mut self) -> Result<Encoded<'a, T>, E> {
        Ok(Encoded { bytes: self.bytes()?, depth: self.depth, of: PhantomData })
    }

    /// As an integer.
    pub fn long<E: Error>(&mut self) -> Result<i64, E> {
        let number = self.varint()?;
        self.next();
        Ok(number.cast_signed())
    }

    /// As an integer of which the lower half counts, or as the number of an enum.
    pub fn integer<E: Error>(&mut self) -> Result<i32, E> {
        let [a, b, c, d, ..] = self.long()?.to_le_bytes();
        Ok(i32::from_le_bytes([a, b, c, d]))
    }

    /// As a bool.
    pub fn flag<E: Error>(&mut self) -> Result<bool, E> {
        Ok(self.long()? != 0)
    }

    /// As a floating point number.
    pub fn double<E: Error>(&mut self) -> Result<f64, E> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or_else(odd)?;
        self.rest = rest;
        self.next();
        Ok(f64::from_le_bytes(*bytes))
    }

    /// All fields from here on that are of this number, which is that of a list of texts or of messages.
    pub fn run<T, E: Error>(&mut self, key: u32) -> Result<Run<'a, T>, E> {
        let (begin, key_of_first) = (self.rest, self.key);
        if key_of_first != key {
            return Ok(Run { from: Fields { rest: &[], key: END, depth: self.depth }, of: PhantomData });
        }
        let mut end = begin.len();
        while self.key == key {
            self.delimited::<E>()?;
            end = begin.len() - self.rest.len();
            self.next();
        }
        let rest = begin.get(..end).unwrap_or_default();
        Ok(Run { from: Fields { rest, key, depth: self.depth }, of: PhantomData })
    }
}

impl<T> Run<'_, T> {
    /// There is none.
    pub fn is_empty(&self) -> bool {
        self.from.key == END
    }
}

impl<T> fmt::Debug for Run<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Run").field(&self.from).finish()
    }
}

impl<T: Transcode> Serialize for Run<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut elements = serializer.serialize_seq(None)?;
        let mut from = self.from;
        while from.key != END {
            elements.serialize_element(&from.message::<T, S::Error>()?)?;
        }
        elements.end()
    }
}
