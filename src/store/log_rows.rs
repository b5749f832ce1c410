//! Encoding of the rows of SQL stores: the events of a commit, tasks in two columns, and short tasks in one.

use bytes::{Buf, BufMut, Bytes};
use prost::{
    DecodeError, Message as _,
    encoding::{decode_varint, encode_varint, encoded_len_varint, message, string},
};

use super::{
    Commit, Event, Expect, Position, Seq, Task,
    log_codec::{OpenLog, TaskIds, encode_sealed, to_u64},
};
use crate::protocol::event::EventFlags;

/// Protobuf keys of the fields of `StreamResponse` that hold an update.
const STATUS_UPDATE: u8 = 3 << 3 | 2;
const ARTIFACT_UPDATE: u8 = 4 << 3 | 2;

/// Protobuf keys of the ids in an update, which are its first fields.
const TASK_ID: u8 = 1 << 3 | 2;
const CONTEXT_ID: u8 = 2 << 3 | 2;

/// Flag in the byte of a mark: the ids of task and context are omitted from an update, since the row of the task has
/// them. The update then consists of its key and its other fields.
const WITHOUT_IDS: u8 = 1 << 7;

/// Maximum size in bytes of the log of a new task that serves as its own checkpoint: reading it is as fast as reading a
/// checkpoint, and it is written once.
pub(in crate::store) const MAX_INLINE_BYTES: usize = 2 << 10;

/// Encodes the events of a commit. Each event consists of its mark, its fence, its length in bytes, and its content.
pub(in crate::store) fn encode_events(events: &[Event], ids: TaskIds<'_>) -> Vec<u8> {
    // Estimate: a byte and two small varints.
    const OVERHEAD: usize = 9;
    let mut bytes = Vec::with_capacity(events.iter().map(|event| event.proto_len() + OVERHEAD).sum());
    for event in events {
        let (proto, mark) = (event.proto(), event.mark().to_byte());
        let (mark, key, rest) = match without_ids(proto, ids) {
            Some((key, rest)) => (mark | WITHOUT_IDS, key, rest),
            None => (mark, &[][..], &**proto),
        };
        bytes.put_u8(mark);
        encode_varint(event.position().fence, &mut bytes);
        encode_varint(to_u64(key.len() + rest.len()), &mut bytes);
        bytes.put_slice(key);
        bytes.put_slice(rest);
    }
    bytes
}

/// Returns the key of an update, and its fields after the ids of task and context. `None` if it is not an update, or has other
/// ids.
fn without_ids<'a>(proto: &'a [u8], ids: TaskIds<'_>) -> Option<(&'a [u8], &'a [u8])> {
    let (key, mut rest) =
        proto.split_at_checked(1).filter(|(key, _)| matches!(key, [STATUS_UPDATE | ARTIFACT_UPDATE]))?;
    let length = decode_varint(&mut rest).ok()?;
    if length != to_u64(rest.len()) {
        return None;
    }
    for (field, id) in [(TASK_ID, ids.id), (CONTEXT_ID, ids.context)] {
        // An encoder omits empty fields.
        if !id.is_empty() {
            rest = rest.strip_prefix(&[field])?;
            let length = decode_varint(&mut rest).ok()?;
            rest = if length == to_u64(id.len()) { rest.strip_prefix(id.as_bytes())? } else { return None };
        }
    }
    Some((key, rest))
}

/// Restores an update with its ids, in the encoding of a Protobuf encoder.
fn with_ids(stored: &[u8], ids: TaskIds<'_>) -> Option<Bytes> {
    let (key, rest) = stored.split_first()?;
    let fields = [(1, ids.id), (2, ids.context)].map(|(number, id)| {
        let mut field = Vec::new();
        if !id.is_empty() {
            string::encode(number, &id.to_owned(), &mut field);
        }
        field
    });
    let length = fields.iter().map(Vec::len).sum::<usize>() + rest.len();
    let mut proto = Vec::with_capacity(1 + encoded_len_varint(to_u64(length)) + length);
    proto.put_u8(*key);
    encode_varint(to_u64(length), &mut proto);
    for field in &fields {
        proto.put_slice(field);
    }
    proto.put_slice(rest);
    Some(proto.into())
}

/// Decodes the events of a commit, the first of which has the sequence number `first`. Returns `None` if the bytes are
/// damaged.
pub(in crate::store) fn decode_events(first: Seq, mut bytes: Bytes, ids: TaskIds<'_>) -> Option<Vec<Event>> {
    let mut events = Vec::new();
    for seq in first.. {
        if !bytes.has_remaining() {
            break;
        }
        let bits = bytes.get_u8();
        let fence = decode_varint(&mut bytes).ok()?;
        let length = usize::try_from(decode_varint(&mut bytes).ok()?).ok().filter(|length| *length <= bytes.len())?;
        let stored = bytes.split_to(length);
        let proto = if bits & WITHOUT_IDS == 0 { stored } else { with_ids(&stored, ids)? };
        events.push(Event::from_proto(Position { fence, seq }, EventFlags::from_byte(bits), proto));
    }
    Some(events)
}

/// Returns whether an event is an artifact update, without decoding it.
pub(in crate::store) fn is_artifact_update(event: &Event) -> bool {
    event.proto().first() == Some(&ARTIFACT_UPDATE)
}

/// Encodes a task without its artifacts, and its artifacts. Protobuf merges concatenated messages: both together decode to
/// the task.
pub(in crate::store) fn split_task(task: &Task) -> [Vec<u8>; 2] {
    // Exhaustive, so that a new field does not get lost.
    let Task { id, context_id, status, artifacts, history, metadata } = task;
    let length: usize = artifacts.iter().map(|artifact| message::encoded_len(4, artifact)).sum();
    let (mut head, mut rest) = (Vec::new(), Vec::with_capacity(length));
    string::encode(1, id, &mut head);
    string::encode(2, context_id, &mut head);
    if let Some(status) = status {
        message::encode(3, status, &mut head);
    }
    message::encode_repeated(5, history, &mut head);
    if let Some(metadata) = metadata {
        message::encode(6, metadata, &mut head);
    }
    message::encode_repeated(4, artifacts, &mut rest);
    [head, rest]
}

/// Decodes a task from both parts, or without artifacts if `artifacts` is empty.
pub(in crate::store) fn decode_task(head: &[u8], artifacts: &[u8]) -> Result<Task, DecodeError> {
    Task::decode(head.chain(artifacts))
}

/// Joins both parts in the field order of a Protobuf encoder.
pub(in crate::store) fn join_task(head: &[u8], artifacts: &[u8]) -> Bytes {
    let (before, after) = head.split_at_checked(artifacts_offset(head)).unwrap_or((head, &[]));
    let mut bytes = Vec::with_capacity(head.len() + artifacts.len());
    for part in [before, artifacts, after] {
        bytes.put_slice(part);
    }
    bytes.into()
}

/// Offset in the head at which the artifacts belong, or its length if it can't be decoded.
fn artifacts_offset(head: &[u8]) -> usize {
    const ARTIFACTS: u8 = 4 << 3;
    let mut rest = head;
    // All fields with lower numbers are length-delimited.
    while let [..ARTIFACTS, value @ ..] = rest {
        let mut value = value;
        let length = decode_varint(&mut value).ok().and_then(|length| usize::try_from(length).ok());
        let Some(after) = length.and_then(|length| value.get(length..)) else { return head.len() };
        rest = after;
    }
    head.len() - rest.len()
}

/// Returns the task of a commit that creates it in a terminal state, and has no data in other columns or tables. Its request
/// contexts are not needed: nothing is sent for the task later.
pub(in crate::store) fn single_row_task(commit: &Commit) -> Option<&Task> {
    let Commit { expect, row, checkpoint, agent_state, sends, push, .. } = commit;
    let is_single_row = *expect == Expect::New
        && row.state.is_terminal()
        && row.drained == 0
        && agent_state.is_none()
        && sends.is_empty()
        && push.is_none();
    checkpoint.as_deref().filter(|_| is_single_row)
}

/// Encodes a short task in a terminal state together with its log. `None` if it is longer than [`MAX_INLINE_BYTES`].
pub(in crate::store) fn encode_whole(task: &Task, events: &[Event], ids: TaskIds<'_>) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let sealed = encode_sealed(task, &OpenLog::default(), events, ids, MAX_INLINE_BYTES, &mut bytes);
    sealed.map(|_| bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{
        event::Ends,
        pb::{
            v1::{
                Artifact, Message, Part, TaskArtifactUpdateEvent, TaskStatus, TaskStatusUpdateEvent,
                stream_response::Payload,
            },
            wkt::Struct,
        },
    };

    fn task() -> Task {
        let artifact =
            |id: &str| Artifact { artifact_id: id.into(), parts: vec![Part::text("x")], ..Artifact::default() };
        Task {
            id: "t".into(),
            context_id: "c".into(),
            status: Some(TaskStatus { state: 2, message: Some(Message::agent("hm")), timestamp: None }),
            artifacts: vec![artifact("a"), artifact("b")],
            history: vec![Message::user("hi"), Message::user("there")],
            metadata: Some(Struct::default()),
        }
    }

    #[test]
    fn split_task_decodes_to_the_task() {
        let task = task();
        let [head, artifacts] = split_task(&task);
        assert_eq!(decode_task(&head, &artifacts), Ok(task.clone()));
        assert_eq!(join_task(&head, &artifacts), task.encode_to_vec());
        for length in 0..head.len() {
            // Joining truncated data must not change its meaning.
            let head = &head[..length];
            if let Ok(task) = Task::decode(join_task(head, &artifacts)) {
                assert_eq!(decode_task(head, &artifacts), Ok(task));
            }
        }
        assert_eq!(decode_task(&head, &[]), Ok(Task { artifacts: Vec::new(), ..task }));
        let [head, artifacts] = split_task(&Task::default());
        assert_eq!(decode_task(&head, &artifacts), Ok(Task::default()));
    }

    #[test]
    fn log_row_round_trips() {
        let position = |seq| Position { fence: 300, seq };
        let update = |last_chunk| {
            let artifact = task().artifacts.pop();
            Payload::ArtifactUpdate(TaskArtifactUpdateEvent { artifact, last_chunk, ..Default::default() })
        };
        let events = [
            Event::from_task(position(7), Ends::Nothing, task().into()),
            Event::new(position(8), EventFlags::HIDDEN, Payload::Message(Message::user("more"))),
            Event::new(position(9), EventFlags::ending(Ends::Task), update(true)),
        ];
        let ids = TaskIds { id: "t", context: "c" };
        let bytes = encode_events(&events, ids);
        let read = decode_events(7, bytes.clone().into(), ids).unwrap();
        let parts = |event: &Event| (event.position(), event.mark(), event.proto().clone());
        assert!(read.iter().map(parts).eq(events.iter().map(parts)));
        assert_eq!(read.iter().map(is_artifact_update).collect::<Vec<_>>(), [false, false, true]);
        for length in 0..bytes.len() {
            let read = decode_events(7, Bytes::copy_from_slice(&bytes[..length]), ids);
            assert!(read.is_none_or(|read| read.len() < events.len()));
        }
    }

    #[test]
    fn update_omits_the_ids_of_its_row() {
        let long = "c".repeat(200);
        for (id, context) in [("t", "c"), ("t", ""), ("", "c"), ("", ""), ("t", long.as_str())] {
            let ids = TaskIds { id, context };
            let (own, other) = ((id.to_owned(), context.to_owned()), ("other".to_owned(), context.to_owned()));
            let update = |(task_id, context_id): (String, String)| {
                let artifact = task().artifacts.pop();
                let metadata = Some(Struct::default());
                let update = TaskArtifactUpdateEvent { task_id, context_id, artifact, metadata, ..Default::default() };
                Event::new(Position { fence: 1, seq: 1 }, EventFlags::NOTHING, Payload::ArtifactUpdate(update))
            };
            let status =
                TaskStatusUpdateEvent { task_id: own.0.clone(), context_id: own.1.clone(), ..Default::default() };
            let status = Payload::StatusUpdate(status);
            let status = Event::new(Position { fence: 1, seq: 2 }, EventFlags::ending(Ends::Turn), status);
            let events = [update(own), status, update(other)];
            let stored = encode_events(&events, ids);
            let repeated = stored
                .windows(context.len() + 2)
                .filter(|window| window[0] == CONTEXT_ID && window[2..] == *context.as_bytes());
            assert!(
                context.len() < 2 || repeated.count() <= 1,
                "only the update with another task id contains the context id"
            );
            let read = decode_events(1, stored.into(), ids).unwrap();
            let protos =
                |all: &[Event]| all.iter().map(|event| (event.mark(), event.proto().clone())).collect::<Vec<_>>();
            assert_eq!(protos(&read), protos(&events));
        }
    }
}
