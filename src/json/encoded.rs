//! Messages that are still in protobuf, written as JSON without being decoded: a task that a store has need not become
//! strings and lists for that.
//!
//! What is written is what the decoded message would write. That holds for what an encoder makes: fields in the order of
//! their numbers, each once, and none that we don't know. Protobuf allows for more, and whatever is found of that (or is
//! broken) is [`Odd`] here, upon which [`write_encoded`] decodes the message after all.

use std::{fmt, marker::PhantomData, mem};

use prost::encoding::decode_varint;
use serde::{Serialize, ser::Error as _};

use super::{close, put_text, write_to};

/// A message that can be written from its bytes. `build/encoded.rs` writes one for each message that is kept in protobuf.
pub trait Transcode: Sized {
    /// Writes it behind what is there, or some of it and then nothing more.
    fn transcode(encoded: Encoded<'_, Self>, out: &mut Vec<u8>) -> Result<(), Odd>;
}

/// A message in protobuf.
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

/// Encoded in another way than ours, or broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Odd;

/// Messages in messages. prost reads a hundred, and what it does not read must not be written.
const MAX_DEPTH: u32 = 90;

/// How a field is encoded, which its key has in these bits; and behind a length.
const WIRE: u32 = 7;
const DELIMITED: u32 = 2;

/// There is no further field: no key is zero.
const END: u32 = 0;

/// No key that an encoder writes for a field of ours.
const OTHER: u32 = u32::MAX;

/// Writes a message that is in protobuf behind what is there.
pub fn write_encoded<T>(out: &mut Vec<u8>, proto: &[u8]) -> Result<(), serde_json::Error>
where
    T: Transcode + prost::Message + Default + Serialize,
{
    let start = out.len();
    if Encoded::<T>::new(proto).write(out).is_ok() {
        return Ok(());
    }
    out.truncate(start);
    write_to(out, &T::decode(proto).map_err(serde_json::Error::custom)?)
}

/// How many fields of a message are of this number, where all that it has are texts and messages.
pub fn count(proto: &[u8], number: u32) -> Option<usize> {
    let key = number << 3 | DELIMITED;
    let mut from = Encoded::<()>::new(proto).fields().ok()?;
    let mut count = 0;
    while from.key != END {
        count += usize::from(from.key == key);
        if from.key & WIRE != DELIMITED || from.bytes().is_err() {
            return None;
        }
    }
    Some(count)
}

/// Of a oneof there may be one arm.
pub fn once(chosen: &mut bool) -> Result<(), Odd> {
    if mem::replace(chosen, true) { Err(Odd) } else { Ok(()) }
}

/// Writes what is no message behind a comma and its name.
pub fn member(out: &mut Vec<u8>, name: &[u8], value: &impl Serialize) -> Result<(), Odd> {
    out.extend_from_slice(name);
    write_to(out, value).map_err(|_| Odd)
}

impl<'a, T> Encoded<'a, T> {
    /// The bytes of a message.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, depth: 0, of: PhantomData }
    }

    /// Its fields.
    #[inline]
    pub fn fields(&self) -> Result<Fields<'a>, Odd> {
        if self.depth > MAX_DEPTH {
            return Err(Odd);
        }
        let mut fields = Fields { rest: self.bytes, key: END, depth: self.depth + 1 };
        fields.next();
        Ok(fields)
    }
}

impl<T: Transcode> Encoded<'_, T> {
    /// Writes it behind what is there, or some of it and then nothing more.
    pub fn write(self, out: &mut Vec<u8>) -> Result<(), Odd> {
        T::transcode(self, out)
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

/// A text in a list.
impl Transcode for String {
    fn transcode(encoded: Encoded<'_, Self>, out: &mut Vec<u8>) -> Result<(), Odd> {
        put_text(out, b"", encoded.bytes)
    }
}

impl<'a> Fields<'a> {
    #[inline]
    fn next(&mut self) {
        (self.key, self.rest) = match self.rest {
            [] => (END, [].as_slice()),
            [one @ 1..0x80, rest @ ..] => (u32::from(*one), rest),
            // The second byte of a number that is as short as it can be is not zero.
            [low, high @ 1..0x80, rest @ ..] => (u32::from(*low & 0x7f) | u32::from(*high) << 7, rest),
            rest => (OTHER, rest),
        };
    }

    /// Whether the next field is of this number and encoding.
    #[inline]
    pub fn is_at(&self, key: u32) -> bool {
        self.key == key
    }

    /// Goes on to this field, over such as stand behind their lengths.
    pub fn find(&mut self, key: u32) -> Result<(), Odd> {
        while self.key != key {
            if self.key > key || self.key & WIRE != DELIMITED {
                return Err(Odd);
            }
            self.bytes()?;
        }
        Ok(())
    }

    /// There must be none left.
    #[inline]
    pub fn end(&self) -> Result<(), Odd> {
        if self.key == END { Ok(()) } else { Err(Odd) }
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, Odd> {
        match self.rest {
            [one @ ..0x80, rest @ ..] => {
                self.rest = rest;
                Ok(u64::from(*one))
            }
            _ => decode_varint(&mut self.rest).map_err(|_| Odd),
        }
    }

    /// The field that is next, as bytes. This and those below go on to the one after it.
    #[inline]
    pub fn bytes(&mut self) -> Result<&'a [u8], Odd> {
        let length = usize::try_from(self.varint()?).map_err(|_| Odd)?;
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(Odd)?;
        self.rest = rest;
        self.next();
        Ok(bytes)
    }

    /// As a message.
    #[inline]
    pub fn message<T>(&mut self) -> Result<Encoded<'a, T>, Odd> {
        Ok(Encoded { bytes: self.bytes()?, depth: self.depth, of: PhantomData })
    }

    /// As an integer.
    pub fn long(&mut self) -> Result<i64, Odd> {
        let number = self.varint()?;
        self.next();
        Ok(number.cast_signed())
    }

    /// As an integer of which the lower half counts, or as the number of an enum.
    pub fn integer(&mut self) -> Result<i32, Odd> {
        let [a, b, c, d, ..] = self.long()?.to_le_bytes();
        Ok(i32::from_le_bytes([a, b, c, d]))
    }

    /// As a bool.
    pub fn flag(&mut self) -> Result<bool, Odd> {
        Ok(self.long()? != 0)
    }

    /// As a floating point number.
    pub fn double(&mut self) -> Result<f64, Odd> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(Odd)?;
        self.rest = rest;
        self.next();
        Ok(f64::from_le_bytes(*bytes))
    }

    /// Writes a text behind a comma and its name.
    #[inline]
    pub fn put_text(&mut self, out: &mut Vec<u8>, name: &[u8]) -> Result<(), Odd> {
        put_text(out, name, self.bytes()?)
    }

    /// Writes a message behind a comma and its name.
    #[inline]
    pub fn put_message<T: Transcode>(&mut self, out: &mut Vec<u8>, name: &[u8]) -> Result<(), Odd> {
        out.extend_from_slice(name);
        self.message::<T>()?.write(out)
    }

    /// Writes a list of all fields from here on that are of this number, behind a comma and its name.
    pub fn put_list<T: Transcode>(&mut self, key: u32, out: &mut Vec<u8>, name: &[u8]) -> Result<(), Odd> {
        out.extend_from_slice(name);
        let start = out.len();
        while self.key == key {
            out.push(b',');
            self.message::<T>()?.write(out)?;
        }
        close(out, start, *b"[]");
        Ok(())
    }
}
