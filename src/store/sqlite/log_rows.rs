//! What is kept as bytes: pieces of logs, and tasks in two halves.

use bytes::{Buf, BufMut, Bytes};
use prost::{
    DecodeError, Message as _,
    encoding::{decode_varint, encode_varint, encoded_len_varint, message, string},
};

use crate::{
    event::{Event, Mark, Position, Seq},
    pb::v1::Task,
    store::log_codec::TaskIds,
};

/// Keys of the fields of `StreamResponse` that hold an update.
const STATUS_UPDATE: u8 = 3 << 3 | 2;
const ARTIFACT_UPDATE: u8 = 4 << 3 | 2;

/// Keys of the ids in either update, which come first in it.
const TASK_ID: u8 = 1 << 3 | 2;
const CONTEXT_ID: u8 = 2 << 3 | 2;

/// Flag in the byte of a mark: the ids of task and context are left out of an update, since the row of the task has
/// them. The update then has its key and its other fields. Since version 5 of the tables.
const WITHOUT_IDS: u8 = 1 << 7;

/// The events of a commit: of each its mark, its fence, and it behind its length.
pub(super) fn pack(events: &[Event], names: TaskIds<'_>) -> Vec<u8> {
    // A byte, and two numbers that are small.
    const AROUND: usize = 9;
    let mut bytes = Vec::with_capacity(events.iter().map(|it| it.weight() + AROUND).sum());
    for it in events {
        let (proto, mark) = (it.proto(), it.mark().to_byte());
        let (mark, key, rest) = match without_ids(proto, names) {
            Some((key, rest)) => (mark | WITHOUT_IDS, key, rest),
            None => (mark, &[][..], &**proto),
        };
        bytes.put_u8(mark);
        encode_varint(it.position().fence, &mut bytes);
        encode_varint(length(key.len() + rest.len()), &mut bytes);
        bytes.put_slice(key);
        bytes.put_slice(rest);
    }
    bytes
}

fn length(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// The key of an update, and its fields after the ids of task and context; `None` for what is no update, and for one that has
/// other ids.
fn without_ids<'a>(proto: &'a [u8], names: TaskIds<'_>) -> Option<(&'a [u8], &'a [u8])> {
    let (key, mut rest) = proto.split_at_checked(1).filter(|it| matches!(it.0, [STATUS_UPDATE | ARTIFACT_UPDATE]))?;
    let update = decode_varint(&mut rest).ok()?;
    if update != length(rest.len()) {
        return None;
    }
    for (field, id) in [(TASK_ID, names.id), (CONTEXT_ID, names.context)] {
        // An encoder leaves out what is empty.
        if !id.is_empty() {
            rest = rest.strip_prefix(&[field])?;
            let there = decode_varint(&mut rest).ok()?;
            rest = if there == length(id.len()) { rest.strip_prefix(id.as_bytes())? } else { return None };
        }
    }
    Some((key, rest))
}

/// An update with its ids, as an encoder writes it.
fn with_ids(stored: &[u8], names: TaskIds<'_>) -> Option<Bytes> {
    let (key, rest) = stored.split_first()?;
    let ids = [(1, names.id), (2, names.context)].map(|(number, id)| {
        let mut field = Vec::new();
        if !id.is_empty() {
            string::encode(number, &id.to_owned(), &mut field);
        }
        field
    });
    let update = ids.iter().map(Vec::len).sum::<usize>() + rest.len();
    let mut proto = Vec::with_capacity(1 + encoded_len_varint(length(update)) + update);
    proto.put_u8(*key);
    encode_varint(length(update), &mut proto);
    for it in &ids {
        proto.put_slice(it);
    }
    proto.put_slice(rest);
    Some(proto.into())
}

/// The events of a commit, the first of which has this number; none where that is not what the bytes are.
pub(super) fn unpack(first: Seq, mut bytes: Bytes, names: TaskIds<'_>) -> Option<Vec<Event>> {
    let mut events = Vec::new();
    for seq in first.. {
        if !bytes.has_remaining() {
            break;
        }
        let bits = bytes.get_u8();
        let fence = decode_varint(&mut bytes).ok()?;
        let length = usize::try_from(decode_varint(&mut bytes).ok()?).ok().filter(|it| *it <= bytes.len())?;
        let stored = bytes.split_to(length);
        let proto = if bits & WITHOUT_IDS == 0 { stored } else { with_ids(&stored, names)? };
        events.push(Event::from_proto(Position { fence, seq }, Mark::from_byte(bits), proto));
    }
    Some(events)
}

/// Whether an event adds to an artifact: its first byte tells, and nothing else of it need be read.
pub(super) fn is_of_artifact(event: &Event) -> bool {
    event.proto().first() == Some(&ARTIFACT_UPDATE)
}

/// A task without its artifacts, and those. Protobuf takes what follows as more of the same message: both, one behind
/// the other, are the task.
pub(super) fn halves(task: &Task) -> [Vec<u8>; 2] {
    // All that there is: another field is another line here.
    let Task { id, context_id, status, artifacts, history, metadata } = task;
    let (mut head, mut rest) = (Vec::new(), Vec::new());
    string::encode(1, id, &mut head);
    string::encode(2, context_id, &mut head);
    if let Some(it) = status {
        message::encode(3, it, &mut head);
    }
    message::encode_repeated(5, history, &mut head);
    if let Some(it) = metadata {
        message::encode(6, it, &mut head);
    }
    message::encode_repeated(4, artifacts, &mut rest);
    [head, rest]
}

/// The task of these halves, or without its artifacts where they are not given.
pub(super) fn whole(head: &[u8], artifacts: &[u8]) -> Result<Task, DecodeError> {
    Task::decode(head.chain(artifacts))
}

/// The same in protobuf, with the artifacts where an encoder would have them.
pub(super) fn joined(head: &[u8], artifacts: &[u8]) -> Bytes {
    let (before, after) = head.split_at_checked(before_artifacts(head)).unwrap_or((head, &[]));
    let mut bytes = Vec::with_capacity(head.len() + artifacts.len());
    for it in [before, artifacts, after] {
        bytes.put_slice(it);
    }
    bytes.into()
}

/// How much of a task's head comes before its artifacts; all of it, where that can't be read.
fn before_artifacts(head: &[u8]) -> usize {
    const ARTIFACTS: u8 = 4 << 3;
    let mut rest = head;
    // The fields of lower numbers are all behind their lengths.
    while let [..ARTIFACTS, value @ ..] = rest {
        let mut value = value;
        let length = decode_varint(&mut value).ok().and_then(|it| usize::try_from(it).ok());
        let Some(after) = length.and_then(|it| value.get(it..)) else { return head.len() };
        rest = after;
    }
    head.len() - rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
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
    fn a_task_is_its_halves() {
        let task = task();
        let [head, artifacts] = halves(&task);
        assert_eq!(whole(&head, &artifacts), Ok(task.clone()));
        assert_eq!(joined(&head, &artifacts), task.encode_to_vec());
        for length in 0..head.len() {
            // Nothing is made of what is broken that was not in it before.
            let head = &head[..length];
            if let Ok(task) = Task::decode(joined(head, &artifacts)) {
                assert_eq!(whole(head, &artifacts), Ok(task));
            }
        }
        assert_eq!(whole(&head, &[]), Ok(Task { artifacts: Vec::new(), ..task }));
        let [head, artifacts] = halves(&Task::default());
        assert_eq!(whole(&head, &artifacts), Ok(Task::default()));
    }

    #[test]
    fn a_piece_of_a_log_is_read_as_it_was() {
        let position = |seq| Position { fence: 300, seq };
        let update = |last_chunk| {
            let artifact = task().artifacts.pop();
            Payload::ArtifactUpdate(TaskArtifactUpdateEvent { artifact, last_chunk, ..Default::default() })
        };
        let events = [
            Event::task(position(7), Ends::Nothing, task().into()),
            Event::new(position(8), Mark::HIDDEN, Payload::Message(Message::user("more"))),
            Event::new(position(9), Mark::ending(Ends::Task), update(true)),
        ];
        let names = TaskIds { id: "t", context: "c" };
        let bytes = pack(&events, names);
        let read = unpack(7, bytes.clone().into(), names).unwrap();
        let place = |it: &Event| (it.position(), it.mark(), it.proto().clone());
        assert!(read.iter().map(place).eq(events.iter().map(place)));
        assert_eq!(read.iter().map(is_of_artifact).collect::<Vec<_>>(), [false, false, true]);
        for length in 0..bytes.len() {
            let read = unpack(7, Bytes::copy_from_slice(&bytes[..length]), names);
            assert!(read.is_none_or(|it| it.len() < events.len()));
        }
    }

    #[test]
    fn an_update_does_not_repeat_the_ids_of_its_row() {
        let long = "c".repeat(200);
        for (id, context) in [("t", "c"), ("t", ""), ("", "c"), ("", ""), ("t", long.as_str())] {
            let names = TaskIds { id, context };
            let (ours, other) = ((id.to_owned(), context.to_owned()), ("other".to_owned(), context.to_owned()));
            let update = |(task_id, context_id): (String, String)| {
                let artifact = task().artifacts.pop();
                let metadata = Some(Struct::default());
                let update = TaskArtifactUpdateEvent { task_id, context_id, artifact, metadata, ..Default::default() };
                Event::new(Position { fence: 1, seq: 1 }, Mark::NOTHING, Payload::ArtifactUpdate(update))
            };
            let status =
                TaskStatusUpdateEvent { task_id: ours.0.clone(), context_id: ours.1.clone(), ..Default::default() };
            let status = Payload::StatusUpdate(status);
            let status = Event::new(Position { fence: 1, seq: 2 }, Mark::ending(Ends::Turn), status);
            let events = [update(ours), status, update(other)];
            let stored = pack(&events, names);
            let repeated =
                stored.windows(context.len() + 2).filter(|it| it[0] == CONTEXT_ID && it[2..] == *context.as_bytes());
            assert!(context.len() < 2 || repeated.count() <= 1, "only what another task's row says is there");
            let read = unpack(1, stored.into(), names).unwrap();
            let protos = |all: &[Event]| all.iter().map(|it| (it.mark(), it.proto().clone())).collect::<Vec<_>>();
            assert_eq!(protos(&read), protos(&events));
        }
    }

    #[test]
    fn events_that_were_stored_with_their_ids_are_read() {
        let names = TaskIds { id: "t", context: "c" };
        let update = TaskStatusUpdateEvent { task_id: "t".into(), context_id: "c".into(), ..Default::default() };
        let event = Event::new(Position { fence: 1, seq: 1 }, Mark::NOTHING, Payload::StatusUpdate(update));
        let mut stored = vec![0, 1, u8::try_from(event.proto().len()).unwrap()];
        stored.extend_from_slice(event.proto());
        assert_eq!(unpack(1, stored.into(), names).unwrap()[0].proto(), event.proto());
    }
}
