//! What is kept as bytes: pieces of logs, and tasks in two halves.

use bytes::{Buf, BufMut, Bytes};
use prost::{
    DecodeError, Message as _,
    encoding::{decode_varint, encode_varint, message, string},
};

use crate::{
    event::{Event, Mark, Position, Seq},
    pb::v1::Task,
};

/// The events of a commit: of each its mark, its fence, and it behind its length.
pub(super) fn pack(events: &[Event]) -> Vec<u8> {
    // A byte, and two numbers that are small.
    const AROUND: usize = 9;
    let mut bytes = Vec::with_capacity(events.iter().map(|it| it.weight() + AROUND).sum());
    for it in events {
        let proto = it.proto();
        bytes.put_u8(it.mark().to_byte());
        encode_varint(it.position().fence, &mut bytes);
        encode_varint(u64::try_from(proto.len()).unwrap_or(u64::MAX), &mut bytes);
        bytes.put_slice(proto);
    }
    bytes
}

/// The events of a commit, the first of which has this number; none where that is not what the bytes are.
pub(super) fn unpack(first: Seq, mut bytes: Bytes) -> Option<Vec<Event>> {
    let mut events = Vec::new();
    for seq in first.. {
        if !bytes.has_remaining() {
            break;
        }
        let mark = Mark::from_byte(bytes.get_u8());
        let fence = decode_varint(&mut bytes).ok()?;
        let length = usize::try_from(decode_varint(&mut bytes).ok()?).ok().filter(|it| *it <= bytes.len())?;
        events.push(Event::from_proto(Position { fence, seq }, mark, bytes.split_to(length)));
    }
    Some(events)
}

/// Whether an event adds to an artifact: its first byte tells, and nothing else of it need be read.
pub(super) fn is_of_artifact(event: &Event) -> bool {
    const ARTIFACT_UPDATE: u8 = 4 << 3 | 2;
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
            v1::{Artifact, Message, Part, TaskArtifactUpdateEvent, TaskStatus, stream_response::Payload},
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
        let bytes = pack(&events);
        let read = unpack(7, bytes.clone().into()).unwrap();
        let place = |it: &Event| (it.position(), it.mark(), it.proto().clone());
        assert!(read.iter().map(place).eq(events.iter().map(place)));
        assert_eq!(read.iter().map(is_of_artifact).collect::<Vec<_>>(), [false, false, true]);
        for length in 0..bytes.len() {
            let read = unpack(7, Bytes::copy_from_slice(&bytes[..length]));
            assert!(read.is_none_or(|it| it.len() < events.len()));
        }
    }
}
