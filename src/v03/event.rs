//! An event as 0.3 has it: in protobuf, in the ProtoJSON of that, and in classic JSON. Each form is made at most once,
//! however many read it.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use bytes::{Buf, BufMut, Bytes};
use prost::{
    DecodeError, Message as _,
    encoding::{DecodeContext, WireType},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tonic::Status;

use super::json::FinalEvent;
use crate::{
    contract::{Frame, Item, from_json, line, to_json},
    error::Error,
    event::{self, Cursor, Ends},
    json::Measure,
    pb::v03::{StreamResponse, stream_response::Payload},
};

/// What is made of an event of 1.0 for readers of 0.3, beside its forms of 1.0.
#[derive(Default)]
struct Forms {
    message: OnceLock<StreamResponse>,
    proto: OnceLock<Bytes>,
    json: OnceLock<Bytes>,
    classic: OnceLock<Bytes>,
}

/// The form in this place, which is made if nobody has made it yet.
fn once(place: &OnceLock<Bytes>, make: impl FnOnce() -> Result<Bytes, Error>) -> Result<Bytes, Error> {
    match place.get() {
        Some(it) => Ok(it.clone()),
        // Two who make it at the same time make the same.
        None => make().map(|made| place.get_or_init(|| made).clone()),
    }
}

/// An event as classic JSON-RPC sends it. One of a kind that came after 0.3 is none.
pub(super) fn classic(event: &event::Event) -> Result<Option<Frame>, Error> {
    let Some(payload) = event.payload() else { return Ok(None) };
    let make = || line(event.weight(), &FinalEvent { payload, last: event.ends() != Ends::Nothing });
    let data = once(&event.others::<Forms>().classic, make)?;
    Ok(Some(Frame { cursor: event.cursor().cloned(), data: data.into() }))
}

/// The item of the streams of 0.3.
#[derive(Clone, Default)]
pub struct Event {
    cursor: Option<Cursor>,
    /// What the forms are of; none where the message is all that there is.
    origin: Option<event::Event>,
    forms: Arc<Forms>,
}

impl Event {
    fn elsewhere(cursor: Option<Cursor>, message: StreamResponse) -> Self {
        let forms = Forms { message: OnceLock::from(message), ..Forms::default() };
        Self { cursor, origin: None, forms: Arc::new(forms) }
    }

    /// The message.
    pub fn message(&self) -> &StreamResponse {
        self.forms.message.get_or_init(|| self.origin.as_ref().map(message_of).unwrap_or_default())
    }

    fn proto(&self) -> &Bytes {
        self.forms.proto.get_or_init(|| self.message().encode_to_vec().into())
    }

    /// Changes the message for this reader alone.
    pub(super) fn edit(&mut self, change: impl FnOnce(&mut StreamResponse)) {
        let mut message = self.message().clone();
        change(&mut message);
        *self = Self::elsewhere(self.cursor.take(), message);
    }
}

/// `final` is true of the last event of a stream (0.3, 7.2.2), which is the one that a turn or its task ends with.
fn message_of(event: &event::Event) -> StreamResponse {
    let mut message = StreamResponse::from(event.message().clone());
    if let Some(Payload::StatusUpdate(it)) = &mut message.payload {
        it.r#final = event.ends() != Ends::Nothing;
    }
    message
}

impl From<event::Event> for Event {
    fn from(event: event::Event) -> Self {
        Self { cursor: event.cursor().cloned(), forms: event.others(), origin: Some(event) }
    }
}

impl From<Event> for event::Event {
    fn from(it: Event) -> Self {
        Self::elsewhere(it.cursor.clone(), it.message().clone().into())
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cursor == other.cursor && self.message() == other.message()
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("cursor", &self.cursor).field("message", self.message()).finish_non_exhaustive()
    }
}

/// Of replies, the decoded size is not bounded.
impl Measure for Event {}

impl prost::Message for Event {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        buf.put_slice(self.proto());
    }

    fn encoded_len(&self) -> usize {
        self.proto().len()
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        let mut message = self.message().clone();
        let merged = message.merge_field(tag, wire_type, buf, context);
        *self = Self::elsewhere(self.cursor.take(), message);
        merged
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.message().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        StreamResponse::deserialize(deserializer).map(|message| Self::elsewhere(None, message))
    }
}

impl Item for Event {
    fn frame(&self) -> Result<Frame, Error> {
        let data = once(&self.forms.json, || to_json(self.message()))?;
        Ok(Frame { cursor: self.cursor.clone(), data: data.into() })
    }

    fn from_frame(Frame { cursor, data }: Frame) -> Result<Self, Status> {
        Ok(Self::elsewhere(cursor, from_json(data.bytes())?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        event::{Mark, Position},
        pb::v1,
    };

    fn update(ends: Ends) -> event::Event {
        let status = Some(v1::TaskStatus { state: v1::TaskState::Working.into(), ..v1::TaskStatus::default() });
        let update = v1::TaskStatusUpdateEvent { task_id: "t".into(), status, ..v1::TaskStatusUpdateEvent::default() };
        let payload = v1::stream_response::Payload::StatusUpdate(update);
        event::Event::new(Position { fence: 1, seq: 1 }, Mark::ending(ends), payload)
    }

    /// A form that was made is the same bytes in the same place for the next reader.
    #[test]
    fn an_event_is_encoded_once_for_all_who_read_it() {
        let event = update(Ends::Nothing);
        let (one, other) = (Event::from(event.clone()), Event::from(event.clone()));
        let same = |one: &[u8], other: &[u8]| std::ptr::eq(one.as_ptr(), other.as_ptr());
        assert!(same(one.proto(), other.proto()));
        assert!(same(one.frame().unwrap().data.bytes(), other.frame().unwrap().data.bytes()));
        let classics = [&event, &event.clone()].map(|it| classic(it).unwrap().unwrap().data);
        assert!(same(classics[0].bytes(), classics[1].bytes()));
        // In 1.0 it is what it was.
        assert_eq!(event.json(), &serde_json::to_vec(event.message()).unwrap());
        assert_eq!(one.encode_to_vec(), one.message().encode_to_vec());
        assert_eq!(Event::decode(&*one.encode_to_vec()).unwrap().message(), one.message());
    }

    #[test]
    fn the_end_of_a_stream_is_final_in_every_form() {
        for (ends, last) in [(Ends::Nothing, false), (Ends::Turn, true), (Ends::Task, true)] {
            let event = update(ends);
            let classic = classic(&event).unwrap().unwrap().data;
            let classic: serde_json::Value = serde_json::from_slice(classic.bytes()).unwrap();
            assert_eq!(classic["final"], last, "{ends:?}");
            let Some(Payload::StatusUpdate(it)) = Event::from(event).message().payload.clone() else {
                panic!("no update")
            };
            assert_eq!(it.r#final, last, "{ends:?}");
        }
    }
}
