//! An event in the forms in which it is sent and kept: each is made when somebody first asks for it, and kept where
//! others may ask.

use std::{any::Any, mem, sync::Arc};

use bytes::{Buf, BufMut, Bytes};
use prost::{
    DecodeError, Message as _,
    encoding::{DecodeContext, WireType},
};
use serde::{Deserialize, Serialize, ser::SerializeStruct as _};
use tonic::Status;

use super::{Event, Origin, count};
use crate::{
    contract::{Frame, Item, Line, from_json},
    error::Error,
    json::{Measure, write_encoded, write_to},
    pb::v1::{StreamResponse, Task, stream_response::Payload},
    task::heft,
};

impl Event {
    /// This event in protobuf.
    pub fn proto(&self) -> &Bytes {
        if let Origin::Proto(it) = &self.0.origin {
            return it;
        }
        self.0.proto.get_or_init(|| {
            count::encoding(self, count::Form::Proto);
            let mut proto = Vec::with_capacity(self.weight());
            self.encode_to(&mut proto);
            proto.into()
        })
    }

    /// Encodes it anew, unless it is protobuf.
    fn encode_to(&self, out: &mut impl BufMut) {
        match &self.0.origin {
            Origin::Message(it) => it.encode_raw(out),
            Origin::Proto(it) => out.put_slice(it),
            Origin::Task(it) => prost::encoding::message::encode(1, &**it, out),
        }
    }

    /// What it is made of, where that is protobuf that nobody has decoded.
    pub(super) fn encoded(&self) -> Option<&[u8]> {
        match &self.0.origin {
            Origin::Proto(it) if self.0.message.get().is_none() => Some(it),
            Origin::Proto(_) | Origin::Message(_) | Origin::Task(_) => None,
        }
    }

    /// This event in ProtoJSON, on a line.
    pub fn json(&self) -> &Bytes {
        self.0.json.get_or_init(|| {
            let mut json = Vec::with_capacity(self.line_length());
            self.make_json(&mut json);
            json.into()
        })
    }

    /// Writes this event in ProtoJSON behind what is there. It is kept where others are there who may want it.
    pub(crate) fn write_json(&self, out: &mut Vec<u8>) {
        if self.0.json.get().is_none() && self.is_alone() {
            self.make_json(out);
        } else {
            out.extend_from_slice(self.json());
        }
    }

    fn make_json(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let written = match &self.0.origin {
            Origin::Task(it) => write_to(out, &Whole { task: it }),
            Origin::Message(_) | Origin::Proto(_) => match self.encoded() {
                Some(it) => write_encoded::<StreamResponse>(out, it),
                None => write_to(out, self.message()),
            },
        };
        if written.is_err() {
            // Members have names, and writing to memory does not fail: nothing is left that could.
            out.truncate(start);
            out.extend_from_slice(b"{}");
        }
        count::encoding(self, count::Form::Json);
    }

    /// About how long it is in ProtoJSON.
    pub(crate) fn line_length(&self) -> usize {
        if let Some(it) = self.0.json.get() {
            return it.len();
        }
        // Names and quotes make what is small twice as long in JSON, and what is large hardly longer.
        let weight = match self.known_payload() {
            Some(Payload::ArtifactUpdate(it)) => heft(it) + 192,
            _ => self.weight(),
        };
        weight + weight.min(16 << 10) + 64
    }

    /// Approximate size in bytes, cheap and always the same.
    pub(crate) fn approximate_size(&self) -> usize {
        match &self.0.origin {
            Origin::Message(StreamResponse { payload: Some(Payload::ArtifactUpdate(update)) }) => heft(update) + 192,
            Origin::Message(_) | Origin::Proto(_) | Origin::Task(_) => self.weight(),
        }
    }

    /// Nobody else has it: what is made of it need not be kept.
    fn is_alone(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// A place for its other forms, shared by all who read it as this is; what they are is for whoever makes them. There
    /// is one: who comes with another type gets a place that nobody shares.
    pub(crate) fn others<T: Any + Default + Send + Sync>(&self) -> Arc<T> {
        let place = self.0.others.get_or_init(|| Arc::<T>::default());
        Arc::downcast(Arc::clone(place)).unwrap_or_default()
    }

    /// How long it is in protobuf, which need not be made for that.
    pub fn weight(&self) -> usize {
        match &self.0.origin {
            Origin::Message(it) => *self.0.weight.get_or_init(|| it.encoded_len()),
            Origin::Proto(it) => it.len(),
            Origin::Task(it) => *self.0.weight.get_or_init(|| prost::encoding::message::encoded_len(1, &**it)),
        }
    }

    /// Writes it in protobuf to the beginning of `out`, which has room for its [`weight`](Self::weight).
    pub(crate) fn write_proto(&self, out: &mut impl BufMut) {
        match self.0.proto.get() {
            Some(it) => out.put_slice(it),
            None => self.encode_to(out),
        }
    }
}

/// A task as an event of a stream, borrowed.
struct Whole<'a> {
    task: &'a Task,
}

impl Serialize for Whole<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut it = serializer.serialize_struct("StreamResponse", 1)?;
        it.serialize_field("task", self.task)?;
        it.end()
    }
}

/// Of replies, the decoded size is not bounded.
impl Measure for Event {}

/// So that tonic's codec, and any tonic client, works on it.
impl prost::Message for Event {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        if self.0.proto.get().is_none() && self.is_alone() {
            count::encoding(self, count::Form::Proto);
            self.encode_to(buf);
        } else {
            buf.put_slice(self.proto());
        }
    }

    fn encoded_len(&self) -> usize {
        self.weight()
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        let inner = Arc::make_mut(&mut self.0);
        let mut message = mem::take(&mut inner.origin).into_message();
        inner.forget();
        let merged = message.merge_field(tag, wire_type, buf, context);
        inner.origin = Origin::Message(message);
        merged
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Serialize for Event {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.message().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        StreamResponse::deserialize(deserializer).map(Self::from)
    }
}

impl Item for Event {
    fn frame(&self) -> Result<Frame, Error> {
        // Of an event that one reader has, it is not kept.
        let cursor = match self.0.cursor.get() {
            Some(it) => it.clone(),
            None if self.is_alone() => self.make_cursor(),
            None => self.cursor().cloned(),
        };
        Ok(Frame { cursor, data: Line::Of(self.clone()) })
    }

    fn from_frame(Frame { cursor, data }: Frame) -> Result<Self, Status> {
        // Its bytes are not kept as `json`: they are not ours, and a line break in them would end our line of an event.
        Ok(Self::elsewhere(cursor, from_json(data.bytes())?))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use super::*;
    use crate::{
        event::{Cursor, Mark, Position},
        pb::v1::{Message, Part, TaskArtifactUpdateEvent, TaskStatusUpdateEvent},
    };

    fn update(n: u64) -> Event {
        let update = TaskArtifactUpdateEvent { task_id: "t.1".into(), ..Default::default() };
        Event::new(Position { fence: 3, seq: n }, Mark::NOTHING, Payload::ArtifactUpdate(update))
    }

    #[test]
    fn an_event_is_its_message_in_every_form() {
        let one = update(7);
        assert_eq!(one.proto(), &one.message().encode_to_vec());
        assert_eq!(one.json(), &serde_json::to_vec(one.message()).unwrap());
        assert_eq!(Event::decode(one.proto().clone()).unwrap(), one);
        let kept = Event::from_proto(one.position(), one.mark(), one.proto().clone());
        assert_eq!((kept.json(), kept.cursor()), (one.json(), one.cursor()));
        assert_eq!(one.cursor().map(Cursor::as_str), Some("t.1.3.7"));
        assert_eq!(one.cursor().and_then(Cursor::parts), Some(("t.1", Position { fence: 3, seq: 7 })));
    }

    #[test]
    fn an_event_as_it_is_kept_has_the_same_cursor_and_json() {
        let id = |it: &str| it.to_owned();
        let update = |task_id, context_id| TaskArtifactUpdateEvent { task_id, context_id, ..Default::default() };
        for task in ["", "t"] {
            let said = Message { message_id: id("m"), task_id: id(task), role: 2, ..Message::default() };
            for payload in [
                Payload::Task(Task { id: id(task), context_id: id("c"), ..Task::default() }),
                Payload::Message(said.clone()),
                Payload::Message(Message { context_id: id("c"), parts: vec![Part::text("x")], ..said }),
                Payload::StatusUpdate(TaskStatusUpdateEvent { task_id: id(task), ..Default::default() }),
                Payload::ArtifactUpdate(update(id(task), id("c"))),
            ] {
                let one = Event::new(Position { fence: 1, seq: 2 }, Mark::NOTHING, payload);
                let kept = Event::from_proto(one.position(), one.mark(), one.proto().clone());
                assert_eq!(kept.cursor(), one.cursor());
                assert_eq!(kept.json(), one.json());
            }
        }
    }

    #[test]
    fn a_copy_that_takes_in_more_is_another_event() {
        let one = update(1);
        let (mut more, before) = (one.clone(), one.proto().clone());
        let task = StreamResponse { payload: Some(Payload::Task(Task { id: "t2".into(), ..Default::default() })) };
        one.others::<OnceLock<u8>>().set(7).unwrap();
        assert_eq!(more.others::<OnceLock<u8>>().get(), Some(&7), "it is the same event");
        assert_eq!(more.others::<OnceLock<u16>>().get(), None);
        more.merge(task.encode_to_vec().as_slice()).unwrap();
        assert_eq!(more.others::<OnceLock<u8>>().get(), None);
        assert_eq!(more.message(), &task);
        assert_eq!(Event::decode(more.proto().clone()).unwrap().into_message(), task);
        assert_eq!(one.proto(), &before);
    }
}
