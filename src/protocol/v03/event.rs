//! Stream events in the formats of 0.3: `a2a.v1` protobuf, its ProtoJSON, and the JSON of 0.3 JSON-RPC; and `final`, which
//! marks the last event of a stream.
//!
//! Each encoding of an event is produced at most once and shared by all its subscribers.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use bytes::{BufMut, Bytes};
use futures_util::{FutureExt as _, stream};
use prost::Message as _;
use serde::{Serialize, Serializer};
use tokio::task::coop::unconstrained;
use tokio_stream::StreamExt as _;
use tonic::Status;

use super::json::FinalEvent;
use crate::protocol::{
    error::Error,
    event::{self, Cursor, Ends, EventFlags},
    pb::v03::{StreamResponse, stream_response::Payload},
    rpc::{BoxStream, Frame, StreamItem, encode_line, from_json, to_json},
};

/// Cached encodings of a 1.0 event for 0.3 subscribers, attached to that event.
#[derive(Default)]
struct Encodings {
    message: OnceLock<StreamResponse>,
    proto: OnceLock<Bytes>,
    json: OnceLock<Bytes>,
    json_rpc: OnceLock<Bytes>,
}

/// Returns the cached encoding, encoding the event first if the cache is empty.
fn cached(cache: &OnceLock<Bytes>, encode: impl FnOnce() -> Result<Bytes, Error>) -> Result<Bytes, Error> {
    match cache.get() {
        Some(encoded) => Ok(encoded.clone()),
        // Concurrent callers may both encode; the results are equal and the first one is kept.
        None => encode().map(|encoded| cache.get_or_init(|| encoded).clone()),
    }
}

/// Encodes an event for a 0.3 JSON-RPC stream. Returns `None` if the event has no payload of a known kind.
pub(crate) fn v03_frame(event: &event::Event) -> Result<Option<Frame>, Error> {
    let Some(payload) = event.payload() else { return Ok(None) };
    let encode = || encode_line(event.proto_len(), &FinalEvent { payload, last: event.ends() != Ends::Nothing });
    let data = cached(&event.version_cache::<Encodings>().json_rpc, encode)?;
    Ok(Some(Frame { cursor: event.cursor().cloned(), data: data.into() }))
}

/// Item of a 0.3 gRPC or HTTP+JSON stream: a `StreamResponse` of `a2a.v1` with its cursor.
#[derive(Clone, Default)]
pub struct Event {
    cursor: Option<Cursor>,
    /// The 1.0 event to convert, or `None` if `encodings.message` is set.
    origin: Option<event::Event>,
    encodings: Arc<Encodings>,
}

impl Event {
    fn from_message(cursor: Option<Cursor>, message: StreamResponse) -> Self {
        let encodings = Encodings { message: OnceLock::from(message), ..Encodings::default() };
        Self { cursor, origin: None, encodings: Arc::new(encodings) }
    }

    /// Returns the event as an `a2a.v1` message.
    pub fn message(&self) -> &StreamResponse {
        self.encodings.message.get_or_init(|| self.origin.as_ref().map(to_message).unwrap_or_default())
    }

    fn proto(&self) -> &Bytes {
        self.encodings.proto.get_or_init(|| self.message().encode_to_vec().into())
    }

    fn encode_proto(&self, buf: &mut impl BufMut) {
        buf.put_slice(self.proto());
    }

    fn proto_len(&self) -> usize {
        self.proto().len()
    }

    /// Changes the message of this event. Other subscribers of the 1.0 event are not affected, and the shared encodings are
    /// no longer used.
    pub(crate) fn edit<R>(&mut self, change: impl FnOnce(&mut StreamResponse) -> R) -> R {
        let mut message = self.message().clone();
        let changed = change(&mut message);
        *self = Self::from_message(self.cursor.take(), message);
        changed
    }
}

/// Converts a 1.0 event. `final` is true in the last event of a stream (0.3, 7.2.2), which ends a turn or the task.
fn to_message(event: &event::Event) -> StreamResponse {
    let mut message = StreamResponse::from(event.response().clone());
    if let Some(Payload::StatusUpdate(update)) = &mut message.payload {
        update.r#final = event.ends() != Ends::Nothing;
    }
    message
}

impl From<event::Event> for Event {
    fn from(event: event::Event) -> Self {
        Self { cursor: event.cursor().cloned(), encodings: event.version_cache(), origin: Some(event) }
    }
}

conversions! { Event: message: StreamResponse => Self::from_message(None, message); }
conversions! { event::Event: event: Event => Self::from_remote(event.cursor.clone(), event.message().clone().into()); }

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

wraps_message! { Event: StreamResponse }

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.message().serialize(serializer)
    }
}

impl StreamItem for Event {
    fn frame(&self) -> Result<Frame, Error> {
        let data = cached(&self.encodings.json, || to_json(self.message()))?;
        Ok(Frame { cursor: self.cursor.clone(), data: data.into() })
    }

    fn from_frame(Frame { cursor, data }: Frame) -> Result<Self, Status> {
        Ok(Self::from_message(cursor, from_json(data.bytes())?))
    }
}

/// Stream whose last event, and no other, ends a turn or the task: that event is sent with `final` (0.3, 7.2.2).
///
/// `closes_at_turn_end` ends the stream at the end of a turn. The stream of a send may contain the end of an earlier turn,
/// so its source ends it instead.
pub(crate) fn final_stream(events: BoxStream<event::Event>, closes_at_turn_end: bool) -> BoxStream<event::Event> {
    // The second value is an item read ahead, to find out whether an event is the last one.
    let stream = stream::unfold(Some((events, None)), move |state| async move {
        let (mut events, next) = state?;
        let item = match next {
            Some(item) => item,
            None => events.next().await?,
        };
        let event = match item {
            Ok(event) if event.ends() != Ends::Nothing => event,
            item => return Some((item, Some((events, None)))),
        };
        if closes_at_turn_end || event.ends() == Ends::Task {
            return Some((Ok(event), None));
        }
        // An ended stream is ready immediately. Unconstrained, because an exhausted task budget would make it look pending.
        let next = match unconstrained(events.next()).now_or_never() {
            Some(None) => return Some((Ok(event), None)),
            next => next.flatten(),
        };
        // Not the last event: sent without its mark.
        let (position, payload) = (event.position(), event.into_response().payload);
        let event = payload.map(|payload| event::Event::new(position, EventFlags::NOTHING, payload));
        Some((Ok(event.unwrap_or_default()), Some((events, next))))
    });
    Box::pin(stream.fuse())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{event::Position, pb::v1};

    fn update(ends: Ends) -> event::Event {
        let status = Some(v1::TaskStatus { state: v1::TaskState::Working.into(), ..v1::TaskStatus::default() });
        let update = v1::TaskStatusUpdateEvent { task_id: "t".into(), status, ..v1::TaskStatusUpdateEvent::default() };
        let payload = v1::stream_response::Payload::StatusUpdate(update);
        event::Event::new(Position { fence: 1, seq: 1 }, EventFlags::ending(ends), payload)
    }

    #[test]
    fn subscribers_share_the_encodings_of_an_event() {
        let event = update(Ends::Nothing);
        let (first, second) = (Event::from(event.clone()), Event::from(event.clone()));
        let is_shared = |first: &[u8], second: &[u8]| std::ptr::eq(first.as_ptr(), second.as_ptr());
        assert!(is_shared(first.proto(), second.proto()));
        assert!(is_shared(first.frame().unwrap().data.bytes(), second.frame().unwrap().data.bytes()));
        let json_rpc = [&event, &event.clone()].map(|event| v03_frame(event).unwrap().unwrap().data);
        assert!(is_shared(json_rpc[0].bytes(), json_rpc[1].bytes()));
        // The 1.0 encoding is unaffected.
        assert_eq!(event.json(), &serde_json::to_vec(event.response()).unwrap());
        assert_eq!(first.encode_to_vec(), first.message().encode_to_vec());
        assert_eq!(Event::decode(&*first.encode_to_vec()).unwrap().message(), first.message());
    }

    #[test]
    fn last_event_of_a_stream_is_final_in_every_encoding() {
        for (ends, last) in [(Ends::Nothing, false), (Ends::Turn, true), (Ends::Task, true)] {
            let event = update(ends);
            let json_rpc = v03_frame(&event).unwrap().unwrap().data;
            let json_rpc: serde_json::Value = serde_json::from_slice(json_rpc.bytes()).unwrap();
            assert_eq!(json_rpc["final"], last, "{ends:?}");
            let Some(Payload::StatusUpdate(update)) = Event::from(event).message().payload.clone() else {
                panic!("no update")
            };
            assert_eq!(update.r#final, last, "{ends:?}");
        }
    }
}
