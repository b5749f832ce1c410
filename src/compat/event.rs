//! An event of a stream as 0.3 has it, and what the stream can be taken up after.

use bytes::{Buf, BufMut};
use prost::{
    DecodeError,
    encoding::{DecodeContext, WireType},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tonic::Status;

use crate::{
    error::Error,
    event::{self, Cursor, Ends},
    pb::v03::{StreamResponse, stream_response::Payload},
    transport::transcode::{Frame, Item, from_json, to_json},
};

/// The item of the streams of 0.3.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Event {
    cursor: Option<Cursor>,
    message: StreamResponse,
}

impl Event {
    /// The message.
    pub const fn message(&self) -> &StreamResponse {
        &self.message
    }

    pub(super) const fn message_mut(&mut self) -> &mut StreamResponse {
        &mut self.message
    }
}

/// `final` is true of the last event of a stream (0.3, 7.2.2), which is the one that a turn or its task ends with.
impl From<event::Event> for Event {
    fn from(event: event::Event) -> Self {
        let (cursor, last) = (event.cursor().cloned(), event.ends() != Ends::Nothing);
        let mut message = StreamResponse::from(event.into_message());
        if let Some(Payload::StatusUpdate(it)) = &mut message.payload {
            it.r#final = last;
        }
        Self { cursor, message }
    }
}

impl From<Event> for event::Event {
    fn from(Event { cursor, message }: Event) -> Self {
        Self::elsewhere(cursor, message.into())
    }
}

impl prost::Message for Event {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        self.message.encode_raw(buf);
    }

    fn encoded_len(&self) -> usize {
        self.message.encoded_len()
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        self.message.merge_field(tag, wire_type, buf, context)
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.message.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        StreamResponse::deserialize(deserializer).map(|message| Self { cursor: None, message })
    }
}

impl Item for Event {
    fn frame(&self) -> Result<Frame, Error> {
        Ok(Frame { cursor: self.cursor.clone(), data: to_json(&self.message)?.into() })
    }

    fn from_frame(Frame { cursor, data }: Frame) -> Result<Self, Status> {
        Ok(Self { cursor, message: from_json(data.bytes())? })
    }
}
