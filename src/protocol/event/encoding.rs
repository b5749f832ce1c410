//! Encodings of an event: protobuf, ProtoJSON and SSE frames. Each is created on first use, and cached if the event is
//! shared.

use std::{any::Any, mem, sync::Arc};

use bytes::{BufMut, Bytes};
use prost::Message as _;
use serde::Serialize;

use super::{Cursor, Event, Origin, Payload, StreamResponse, Task, TaskArtifactUpdateEvent};
use crate::protocol::{
    json::{write_encoded, write_to},
    memory,
    messages::v1::Part,
};

impl Event {
    /// Returns the event in protobuf. Cached.
    pub fn proto(&self) -> &Bytes {
        if let Origin::Proto(proto) = &self.0.origin {
            return proto;
        }
        self.0.proto.get_or_init(|| {
            #[cfg(test)]
            tests::count_encoding(self, tests::PROTO);
            let mut proto = Vec::with_capacity(self.proto_len());
            self.encode_to(&mut proto);
            proto.into()
        })
    }

    /// Encodes the event without caching.
    fn encode_to(&self, out: &mut impl BufMut) {
        match &self.0.origin {
            Origin::Message(message) => message.encode_raw(out),
            Origin::Proto(proto) => out.put_slice(proto),
            Origin::Task(task) => prost::encoding::message::encode(1, &**task, out),
            Origin::Ref(..) => self.response().encode_raw(out),
        }
    }

    /// Returns the protobuf of an event that was created from it and has not been decoded.
    pub(super) fn encoded(&self) -> Option<&[u8]> {
        match &self.0.origin {
            Origin::Proto(proto) if self.0.message.get().is_none() => Some(proto),
            Origin::Proto(_) | Origin::Message(_) | Origin::Task(_) | Origin::Ref(..) => None,
        }
    }

    /// Returns the event in ProtoJSON, on one line. Cached.
    pub fn json(&self) -> &Bytes {
        self.0.json.get_or_init(|| {
            let mut json = Vec::with_capacity(self.line_length());
            self.encode_json(&mut json);
            json.into()
        })
    }

    /// Appends the event in ProtoJSON. Cached if the event is shared.
    pub(crate) fn write_json(&self, out: &mut Vec<u8>) {
        if self.0.json.get().is_none() && self.is_unshared() {
            self.encode_json(out);
        } else {
            out.extend_from_slice(self.json());
        }
    }

    fn encode_json(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let written = match &self.0.origin {
            Origin::Task(task) => write_to(out, &TaskEvent { task }),
            Origin::Message(_) | Origin::Proto(_) | Origin::Ref(..) => match self.encoded() {
                Some(proto) => write_encoded::<StreamResponse>(out, proto),
                None => write_to(out, self.response()),
            },
        };
        if written.is_err() {
            // Unreachable: members have names, and writing to memory does not fail.
            out.truncate(start);
            out.extend_from_slice(b"{}");
        }
        #[cfg(test)]
        tests::count_encoding(self, tests::JSON);
    }

    /// Returns the approximate length in ProtoJSON, in bytes.
    pub(crate) fn line_length(&self) -> usize {
        if let Some(json) = self.0.json.get() {
            return json.len();
        }
        // Names and quotes double the length of a small message in JSON; a large one hardly grows.
        let length = match self.decoded_payload() {
            Some(Payload::ArtifactUpdate(update)) => chunk_size(update) + 192,
            _ => self.proto_len(),
        };
        length + length.min(16 << 10) + 64
    }

    /// Returns the approximate size in memory, in bytes. It is cheap, and does not depend on what is cached.
    pub fn approximate_size(&self) -> usize {
        match &self.0.origin {
            Origin::Message(StreamResponse { payload: Some(Payload::ArtifactUpdate(update)) }) => {
                chunk_size(update) + update.artifact.as_ref().map_or(0, memory::of_artifact) + 192
            }
            Origin::Message(StreamResponse { payload: Some(payload) }) => self.proto_len() + memory::of_event(payload),
            Origin::Task(task) => self.proto_len() + memory::of_task(task),
            Origin::Message(_) | Origin::Proto(_) | Origin::Ref(..) => self.proto_len(),
        }
    }

    /// Returns whether this is the only reference, so that caching an encoding is pointless.
    fn is_unshared(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Returns the cache for encodings of another protocol version, shared by all readers of the event. There is one
    /// per event: with a second type `T`, callers get an unshared cache.
    pub(crate) fn version_cache<T: Any + Default + Send + Sync>(&self) -> Arc<T> {
        let cache = self.0.version_cache.get_or_init(|| Arc::<T>::default());
        Arc::downcast(Arc::clone(cache)).unwrap_or_default()
    }

    /// Cursor for a frame of a stream. The cursor of an event with a single reader is not cached.
    pub(crate) fn frame_cursor(&self) -> Option<Cursor> {
        match self.0.cursor.get() {
            Some(cursor) => cursor.clone(),
            None if self.is_unshared() => self.compute_cursor(),
            None => self.cursor().cloned(),
        }
    }

    /// Returns the encoded length in protobuf, in bytes, without encoding.
    pub fn proto_len(&self) -> usize {
        match &self.0.origin {
            Origin::Message(message) => *self.0.proto_len.get_or_init(|| message.encoded_len()),
            Origin::Proto(proto) => proto.len(),
            Origin::Task(task) => *self.0.proto_len.get_or_init(|| prost::encoding::message::encoded_len(1, &**task)),
            Origin::Ref(..) => *self.0.proto_len.get_or_init(|| self.response().encoded_len()),
        }
    }

    /// Appends the event in protobuf. `out` must have space for its [`proto_len`](Self::proto_len).
    pub(crate) fn write_proto(&self, out: &mut impl BufMut) {
        match self.0.proto.get() {
            Some(proto) => out.put_slice(proto),
            None => self.encode_to(out),
        }
    }
}

/// Returns the approximate size of a chunk in bytes, cheaply, to tell small chunks from large ones.
pub(crate) fn chunk_size(chunk: &TaskArtifactUpdateEvent) -> usize {
    const FRAME: usize = 8;
    let parts = chunk.artifact.iter().flat_map(|artifact| &artifact.parts);
    let size = |part: &Part| part.as_text().map_or_else(|| prost::Message::encoded_len(part), str::len);
    parts.map(|part| size(part) + FRAME).sum()
}

/// A borrowed task, serialized as an event of a stream.
#[derive(Serialize)]
struct TaskEvent<'a> {
    task: &'a Task,
}

wraps_message! { Event: StreamResponse }

impl Event {
    fn encode_proto(&self, buf: &mut impl BufMut) {
        if self.0.proto.get().is_none() && self.is_unshared() {
            #[cfg(test)]
            tests::count_encoding(self, tests::PROTO);
            self.encode_to(buf);
        } else {
            buf.put_slice(self.proto());
        }
    }

    fn edit<R>(&mut self, change: impl FnOnce(&mut StreamResponse) -> R) -> R {
        let inner = Arc::make_mut(&mut self.0);
        let mut message = mem::take(&mut inner.origin).into_message();
        inner.clear_caches();
        let changed = change(&mut message);
        inner.origin = Origin::Message(message);
        changed
    }
}

impl Serialize for Event {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.response().serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use std::{borrow::Cow, collections::BTreeMap, sync::OnceLock, time::Duration};

    use parking_lot::Mutex;
    use tokio::sync::Notify;
    use tokio_stream::StreamExt as _;
    use tonic::Request;

    use super::*;
    use crate::{
        engine::{
            agent::{self, End},
            execution::Limits,
        },
        protocol::{
            call::Call,
            event::{EventFlags, Position},
            pb::v1::{
                Message, SendMessageConfiguration, SendMessageRequest, SubscribeToTaskRequest, TaskStatusUpdateEvent,
                a2a_service_server::A2aService, send_message_response,
            },
            rpc::{ParamSource, Params, Reply, streaming},
        },
        service::Service,
        store::memory::Memory,
    };

    pub(super) const PROTO: usize = 0;
    pub(super) const JSON: usize = 1;

    /// Numbers of encodings of the artifact events of each task, in protobuf and in JSON.
    static ENCODINGS: Mutex<BTreeMap<String, [usize; 2]>> = Mutex::new(BTreeMap::new());

    pub(super) fn count_encoding(event: &Event, form: usize) {
        if let Some(Payload::ArtifactUpdate(update)) = event.payload() {
            ENCODINGS.lock().entry(update.task_id.clone()).or_default()[form] += 1;
        }
    }

    fn update(n: u64) -> Event {
        let update = TaskArtifactUpdateEvent { task_id: "t.1".into(), ..Default::default() };
        Event::new(Position { fence: 3, seq: n }, EventFlags::NOTHING, Payload::ArtifactUpdate(update))
    }

    #[test]
    fn encodings_equal_those_of_the_message() {
        let event = update(7);
        assert_eq!(event.proto(), &event.response().encode_to_vec());
        assert_eq!(event.json(), &serde_json::to_vec(event.response()).unwrap());
        assert_eq!(Event::decode(event.proto().clone()).unwrap(), event);
        let stored = Event::from_proto(event.position(), event.mark(), event.proto().clone());
        assert_eq!((stored.json(), stored.cursor()), (event.json(), event.cursor()));
        assert_eq!(event.cursor().map(Cursor::as_str), Some("t.1.3.7"));
        assert_eq!(event.cursor().and_then(Cursor::parts), Some(("t.1", Position { fence: 3, seq: 7 })));
    }

    #[test]
    fn event_from_protobuf_has_the_same_cursor_and_json() {
        let id = |id: &str| id.to_owned();
        let update = |task_id, context_id| TaskArtifactUpdateEvent { task_id, context_id, ..Default::default() };
        for task in ["", "t"] {
            let message = Message { message_id: id("m"), task_id: id(task), role: 2, ..Message::default() };
            for payload in [
                Payload::Task(Task { id: id(task), context_id: id("c"), ..Task::default() }),
                Payload::Message(message.clone()),
                Payload::Message(Message { context_id: id("c"), parts: vec![Part::text("x")], ..message }),
                Payload::StatusUpdate(TaskStatusUpdateEvent { task_id: id(task), ..Default::default() }),
                Payload::ArtifactUpdate(update(id(task), id("c"))),
            ] {
                let event = Event::new(Position { fence: 1, seq: 2 }, EventFlags::NOTHING, payload);
                let stored = Event::from_proto(event.position(), event.mark(), event.proto().clone());
                assert_eq!(stored.cursor(), event.cursor());
                assert_eq!(stored.json(), event.json());
            }
        }
    }

    #[test]
    fn merging_into_a_copy_leaves_the_original_unchanged() {
        let event = update(1);
        let (mut copy, before) = (event.clone(), event.proto().clone());
        let task = StreamResponse { payload: Some(Payload::Task(Task { id: "t2".into(), ..Default::default() })) };
        event.version_cache::<OnceLock<u8>>().set(7).unwrap();
        assert_eq!(copy.version_cache::<OnceLock<u8>>().get(), Some(&7), "the copy shares the cache");
        assert_eq!(copy.version_cache::<OnceLock<u16>>().get(), None);
        copy.merge(task.encode_to_vec().as_slice()).unwrap();
        assert_eq!(copy.version_cache::<OnceLock<u8>>().get(), None);
        assert_eq!(copy.response(), &task);
        assert_eq!(Event::decode(copy.proto().clone()).unwrap().into_response(), task);
        assert_eq!(event.proto(), &before);
    }

    #[tokio::test(start_paused = true)]
    async fn event_is_encoded_once_for_all_readers() {
        const EVENTS: usize = 1000;
        const READERS: usize = 100;
        let go = Arc::new(Notify::new());
        let gone = Arc::clone(&go);
        let agent = agent::from_fn(move |_, out| {
            let go = Arc::clone(&gone);
            async move {
                go.notified().await;
                let mut answer = out.artifact("a");
                for n in 0..EVENTS {
                    tokio::task::yield_now().await;
                    answer.text(n.to_string()).await?;
                }
                Ok(End::input_required("more?"))
            }
        });
        let limits = Limits { commit_interval: Duration::ZERO, ..Limits::default() };
        let service = Arc::new(Service::new(agent, Arc::new(Memory::default()), limits));
        let configuration = SendMessageConfiguration { return_immediately: true, ..Default::default() };
        let request = SendMessageRequest {
            message: Some(Message::user("go")),
            configuration: Some(configuration),
            ..Default::default()
        };
        let answer = service.send_message(Call::default().request(request)).await.unwrap().into_inner();
        let Some(send_message_response::Payload::Task(task)) = answer.payload else { panic!("no task") };
        let mut readers = tokio::task::JoinSet::new();
        for _ in 0..READERS {
            // A subscriber over JSON.
            let params = Params {
                source: ParamSource::Json(Cow::Owned(format!(r#"{{"id": "{}"}}"#, task.id))),
                path: Vec::new(),
            };
            let subscribe = |request: Request<SubscribeToTaskRequest>| service.subscribe_to_task(request);
            let reply = streaming(Call::default().request(params), subscribe).await.unwrap();
            let Reply::Stream(frames, _) = reply else { panic!("no stream") };
            readers.spawn(async move {
                let frames: Vec<_> =
                    frames.take(EVENTS + 2).map(|frame| frame.unwrap().data.bytes().clone()).collect().await;
                frames.iter().map(Bytes::len).sum::<usize>()
            });
            // A subscriber over gRPC.
            let request = SubscribeToTaskRequest { id: task.id.clone(), ..Default::default() };
            let events = service.subscribe_to_task(Call::default().request(request)).await.unwrap().into_inner();
            readers.spawn(async move {
                let events: Vec<_> = events.take(EVENTS + 2).map(Result::unwrap).collect().await;
                events.iter().map(|event| event.encode_to_vec().len()).sum()
            });
        }
        go.notify_one();
        let mut sizes = readers.join_all().await;
        sizes.sort_unstable();
        sizes.dedup();
        assert_eq!(sizes.len(), 2, "all readers of a binding read the same");
        assert_eq!(ENCODINGS.lock()[&task.id], [EVENTS; 2]);
    }
}
