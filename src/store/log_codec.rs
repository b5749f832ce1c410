//! Binary encoding of event logs, and of tasks in a terminal state with their logs.
//!
//! An encoded log is smaller than the decoded messages, and freeing it is cheap. Ids that the row has, and artifacts and
//! status that a sealed log's task has, are not repeated. SQLite files contain sealed logs, so the encoding must not change.

use std::cell::LazyCell;

use bytes::{Buf as _, BufMut, Bytes};
use prost::{
    Message as _,
    encoding::{decode_varint, encode_varint, encoded_len_varint},
};

use super::{Event, Millis, Position, Seq, Task};
use crate::protocol::{
    event::{EventFlags, TaskRef},
    pb::v1::{Artifact, TaskArtifactUpdateEvent, TaskStatus, TaskStatusUpdateEvent, stream_response::Payload},
    snapshot::Snapshot,
};

/// Number of events between two entries of the offset index.
const STRIDE: usize = 64;

/// Ids of the task of a log, which its encoded events omit.
#[derive(Clone, Copy)]
pub(in crate::store) struct TaskIds<'a> {
    pub(in crate::store) id: &'a str,
    pub(in crate::store) context: &'a str,
}

/// Growing log of a task that is not in a terminal state.
#[derive(Default)]
pub(in crate::store) struct OpenLog {
    /// For each event: a byte with its [`EventFlags`] and [`Form`], the fence, the length of the content, and the content.
    bytes: Vec<u8>,
    /// Offset of each [`STRIDE`]th event.
    index: Vec<usize>,
    count: usize,
}

/// Task in a terminal state, together with its complete log.
pub(in crate::store) struct SealedLog {
    /// Length of the task, the task, and the log.
    bytes: Bytes,
    index: Box<[usize]>,
}

/// Content of an encoded event.
#[derive(Clone, Copy)]
enum Form<'a> {
    Whole(&'a Event),
    Status(&'a TaskStatus),
    Artifact { artifact: &'a Artifact, append: bool, last: bool },
    Ref(TaskRef),
}

/// Codes of the forms, in the bits that a mark leaves free.
impl<'a> Form<'a> {
    const WHOLE: u8 = 0;
    const STATUS: u8 = 1 << 3;
    const ARTIFACT: u8 = 2 << 3;
    /// Reconstructed from the task of a sealed log: the submitted task.
    const SUBMITTED: u8 = 3 << 3;
    /// Reconstructed from the task: an artifact.
    const TASK_ARTIFACT: u8 = Self::SUBMITTED | Self::APPEND;
    /// Reconstructed from the task: the final status.
    const FINAL_STATUS: u8 = Self::SUBMITTED | Self::LAST;
    const FORMS: u8 = 3 << 3;
    const APPEND: u8 = 1 << 5;
    const LAST: u8 = 1 << 6;

    fn of(event: &'a Event, ids: TaskIds<'_>) -> Self {
        let is_own = |task: &str, context: &str| task == ids.id && context == ids.context;
        match event.decoded_payload() {
            Some(Payload::StatusUpdate(TaskStatusUpdateEvent {
                task_id,
                context_id,
                status: Some(status),
                metadata: None,
            })) if is_own(task_id, context_id) => Self::Status(status),
            Some(Payload::ArtifactUpdate(TaskArtifactUpdateEvent {
                task_id,
                context_id,
                artifact: Some(artifact),
                append,
                last_chunk,
                metadata: None,
            })) if is_own(task_id, context_id) => Self::Artifact { artifact, append: *append, last: *last_chunk },
            _ => Self::Whole(event),
        }
    }

    fn bits(self) -> u8 {
        match self {
            Self::Whole(_) => Self::WHOLE,
            Self::Status(_) => Self::STATUS,
            Self::Artifact { append, last, .. } => {
                Self::ARTIFACT | if append { Self::APPEND } else { 0 } | if last { Self::LAST } else { 0 }
            }
            Self::Ref(TaskRef::Submitted(_)) => Self::SUBMITTED,
            Self::Ref(TaskRef::Artifact { last, .. }) => Self::TASK_ARTIFACT | if last { Self::LAST } else { 0 },
            Self::Ref(TaskRef::Status) => Self::FINAL_STATUS,
        }
    }

    fn len(self) -> usize {
        match self {
            Self::Whole(event) => event.proto_len(),
            Self::Status(status) => status.encoded_len(),
            Self::Artifact { artifact, .. } => artifact.encoded_len(),
            Self::Ref(task_ref) => number(task_ref).map_or(0, encoded_len_varint),
        }
    }

    fn encode(self, out: &mut impl BufMut) {
        match self {
            Self::Whole(event) => event.write_proto(out),
            Self::Status(status) => status.encode_raw(out),
            Self::Artifact { artifact, .. } => artifact.encode_raw(out),
            Self::Ref(task_ref) => number(task_ref).into_iter().for_each(|number| encode_varint(number, out)),
        }
    }
}

pub(in crate::store) fn to_u64(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// Returns the number that an encoded reference needs.
fn number(task_ref: TaskRef) -> Option<u64> {
    match task_ref {
        TaskRef::Submitted(time) => Some(u64::try_from(time).unwrap_or(0)),
        TaskRef::Artifact { index, .. } => Some(to_u64(index)),
        TaskRef::Status => None,
    }
}

/// Event to be encoded, with its computed lengths in bytes.
struct Encoder<'a> {
    event: &'a Event,
    form: Form<'a>,
    content_len: usize,
    total_len: usize,
}

impl<'a> Encoder<'a> {
    fn new(event: &'a Event, form: Form<'a>) -> Self {
        let content_len = form.len();
        let numbers = encoded_len_varint(event.position().fence) + encoded_len_varint(to_u64(content_len));
        Self { event, form, content_len, total_len: 1 + numbers + content_len }
    }

    fn encode(&self, out: &mut impl BufMut) {
        out.put_u8(self.event.mark().to_byte() | self.form.bits());
        encode_varint(self.event.position().fence, out);
        encode_varint(to_u64(self.content_len), out);
        self.form.encode(out);
    }
}

impl OpenLog {
    pub(in crate::store) fn append(&mut self, events: &[Event], ids: TaskIds<'_>) {
        for event in events {
            let (encoder, offset) = (Encoder::new(event, Form::of(event, ids)), self.bytes.len());
            if self.count > 0 && self.count.is_multiple_of(STRIDE) {
                self.index.push(offset);
            }
            self.count += 1;
            // Encoding to a slice avoids a capacity check per byte of a varint.
            self.bytes.resize(offset + encoder.total_len, 0);
            encoder.encode(&mut &mut self.bytes[offset..]);
        }
    }

    /// Size of the log in bytes.
    pub(in crate::store) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Decodes the events after the first `after`. Starts at the nearest offset of the index.
    pub(in crate::store) fn events(&self, after: usize, ids: TaskIds<'_>) -> impl Iterator<Item = Event> {
        read(&self.bytes, &self.index, after).filter_map(move |stored| stored.decode(ids))
    }

    /// Decodes the events that are not artifact updates. Most artifact updates are skipped without decoding.
    pub(in crate::store) fn without_artifacts(&self, ids: TaskIds<'_>) -> impl Iterator<Item = Event> {
        let others = read(&self.bytes, &self.index, 0).filter(|stored| stored.bits & Form::FORMS != Form::ARTIFACT);
        let events = others.filter_map(move |stored| stored.decode(ids));
        events.filter(|event| !matches!(event.payload(), Some(Payload::ArtifactUpdate(_))))
    }
}

impl SealedLog {
    /// Seals a log: combines the task, the log so far, and the last events.
    pub(in crate::store) fn seal(task: &Task, log: &OpenLog, events: &[Event], ids: TaskIds<'_>) -> Self {
        let mut bytes = Vec::new();
        let index = encode_sealed(task, log, events, ids, usize::MAX, &mut bytes).unwrap_or_default();
        Self { bytes: bytes.into(), index: index.into() }
    }

    /// Wraps the bytes of a short log that were stored before.
    pub(in crate::store) fn from_bytes(bytes: Bytes) -> Self {
        Self { bytes, index: Box::default() }
    }

    /// Encoded task and log, without the index.
    pub(in crate::store) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Decodes the task.
    pub(in crate::store) fn task(&self) -> Option<Task> {
        Task::decode(self.split()?.0).ok()
    }

    /// Returns the task in its encoded form.
    pub(in crate::store) fn snapshot(&self) -> Option<Snapshot> {
        self.split().map(|(task, _)| Snapshot::from_proto(self.bytes.slice_ref(task)))
    }

    fn split(&self) -> Option<(&[u8], &[u8])> {
        let mut rest = &*self.bytes;
        Some((split_prefixed(&mut rest)?, rest))
    }

    /// Decodes the events after the first `after`. Starts at the nearest offset of the index.
    pub(in crate::store) fn events(&self, after: usize, ids: TaskIds<'_>) -> impl Iterator<Item = Event> {
        let (task, log) = self.split().unwrap_or_default();
        // The task is decoded only if an event refers to it.
        let task = LazyCell::new(move || Task::decode(task).unwrap_or_default());
        read(log, &self.index, after).filter_map(move |stored| match stored.bits & Form::FORMS {
            Form::SUBMITTED => stored.reconstruct(&task),
            _ => stored.decode(ids),
        })
    }
}

/// Appends a task in a terminal state to `bytes`, with its log so far and the last events, which refer to the task where
/// it contains them. Returns the offset index of the log, or `None`, and appends nothing, if it is longer than `max_len`
/// bytes.
pub(in crate::store) fn encode_sealed(
    task: &Task,
    log: &OpenLog,
    events: &[Event],
    ids: TaskIds<'_>,
    max_len: usize,
    bytes: &mut Vec<u8>,
) -> Option<Vec<usize>> {
    let task_len = task.encoded_len();
    let log_start = encoded_len_varint(to_u64(task_len)) + task_len;
    // Created twice, which spares every send a list.
    let form = |event| TaskRef::find(event, task).map_or_else(|| Form::of(event, ids), Form::Ref);
    let encoders = || events.iter().map(|event| Encoder::new(event, form(event)));
    let total_len = log_start + log.bytes.len() + encoders().map(|encoder| encoder.total_len).sum::<usize>();
    if total_len > max_len {
        return None;
    }
    let start = bytes.len();
    // Encoding to a slice avoids a capacity check per byte of a varint.
    bytes.resize(start + total_len, 0);
    let mut out = &mut bytes[start..];
    encode_varint(to_u64(task_len), &mut out);
    task.encode_raw(&mut out);
    out.put_slice(&log.bytes);
    let mut index = log.index.clone();
    for (n, encoder) in (log.count..).zip(encoders()) {
        if n > 0 && n.is_multiple_of(STRIDE) {
            index.push(total_len - out.len() - log_start);
        }
        encoder.encode(&mut out);
    }
    Some(index)
}

/// Encoded event in a log.
struct EncodedEvent<'a> {
    bits: u8,
    position: Position,
    content: &'a [u8],
}

fn read<'a>(log: &'a [u8], index: &[usize], after: usize) -> impl Iterator<Item = EncodedEvent<'a>> + use<'a> {
    let (first, offset) = match (after / STRIDE).min(index.len()) {
        0 => (0, 0),
        entry => (entry * STRIDE, index[entry - 1]),
    };
    let mut rest = log.get(offset..).unwrap_or_default();
    let seqs = Seq::try_from(first).unwrap_or(Seq::MAX).saturating_add(1)..;
    let next = move |seq: Seq| {
        let bits = rest.has_remaining().then(|| rest.get_u8())?;
        let position = Position { fence: decode_varint(&mut rest).ok()?, seq };
        Some(EncodedEvent { bits, position, content: split_prefixed(&mut rest)? })
    };
    seqs.map_while(next).skip(after - first)
}

/// Splits off bytes that follow their length.
fn split_prefixed<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(decode_varint(bytes).ok()?).ok()?;
    let (content, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(content)
}

impl EncodedEvent<'_> {
    /// Reconstructs an event from the task of its log.
    fn reconstruct(self, task: &Task) -> Option<Event> {
        let Self { bits, position, mut content } = self;
        let last = bits & Form::LAST != 0;
        let task_ref = match bits & Form::TASK_ARTIFACT {
            Form::TASK_ARTIFACT => {
                TaskRef::Artifact { index: usize::try_from(decode_varint(&mut content).ok()?).ok()?, last }
            }
            _ if last => TaskRef::Status,
            _ => TaskRef::Submitted(Millis::try_from(decode_varint(&mut content).ok()?).ok()?),
        };
        Some(Event::new(position, EventFlags::from_byte(bits), task_ref.payload(task)))
    }

    fn decode(self, ids: TaskIds<'_>) -> Option<Event> {
        let Self { bits, position, content } = self;
        let mark = EventFlags::from_byte(bits);
        let (task_id, context_id) = (|| ids.id.to_owned(), || ids.context.to_owned());
        let payload = match bits & Form::FORMS {
            Form::STATUS => Payload::StatusUpdate(TaskStatusUpdateEvent {
                task_id: task_id(),
                context_id: context_id(),
                status: Some(TaskStatus::decode(content).ok()?),
                metadata: None,
            }),
            Form::ARTIFACT => Payload::ArtifactUpdate(TaskArtifactUpdateEvent {
                task_id: task_id(),
                context_id: context_id(),
                artifact: Some(Artifact::decode(content).ok()?),
                append: bits & Form::APPEND != 0,
                last_chunk: bits & Form::LAST != 0,
                metadata: None,
            }),
            _ => return Some(Event::from_proto(position, mark, Bytes::copy_from_slice(content))),
        };
        Some(Event::new(position, mark, payload))
    }
}
