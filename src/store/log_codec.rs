//! A log as bytes, and the task before it once that has ended. They are smaller than the messages, cost nothing to drop,
//! and leave the memory of what has been said to what is said next. Files have them too: what has been written once is
//! read as it was meant.

use std::{cell::LazyCell, sync::Arc};

use bytes::{Buf as _, BufMut, Bytes};
use prost::{
    Message as _,
    encoding::{decode_varint, encode_varint, encoded_len_varint},
};

use crate::{
    event::{Event, Fence, Mark, Position, Seq},
    pb::v1::{Artifact, Task, TaskArtifactUpdateEvent, TaskStatus, TaskStatusUpdateEvent, stream_response::Payload},
    seam::Millis,
    snapshot::Snapshot,
    store::{CompletedTask, EventRef, completed},
};

/// Every so many events, it is written down where the next one begins.
const STRIDE: usize = 64;

/// Whose log it is: what its events need not repeat.
#[derive(Clone, Copy)]
pub(in crate::store) struct LogNames<'a> {
    pub(in crate::store) id: &'a str,
    pub(in crate::store) context: &'a str,
}

/// The log of a task that goes on.
#[derive(Default)]
pub(in crate::store) struct OpenLog {
    /// Of each event its [`Mark`] and its [`Form`], then who wrote it, and the rest behind its length.
    bytes: Vec<u8>,
    /// Where each [`STRIDE`]th event is.
    index: Vec<usize>,
    count: usize,
}

/// A task that has ended, and its log.
pub(in crate::store) struct SealedLog {
    /// The task behind its length, and what its log was.
    bytes: Bytes,
    index: Box<[usize]>,
}

/// What of an event is written: what its task does not tell.
#[derive(Clone, Copy)]
enum Form<'a> {
    Whole(&'a Event),
    Status(&'a TaskStatus),
    Artifact { artifact: &'a Artifact, append: bool, last: bool },
}

impl<'a> Form<'a> {
    /// In the bits that a mark leaves free.
    const WHOLE: u8 = 0;
    const STATUS: u8 = 1 << 3;
    const ARTIFACT: u8 = 2 << 3;
    /// Nothing but what the task tells: how it began.
    const BEGUN: u8 = 3 << 3;
    /// An artifact as the task has it.
    const OF_TASK: u8 = Self::BEGUN | Self::APPEND;
    /// The status of the task.
    const END: u8 = Self::BEGUN | Self::LAST;
    const FORMS: u8 = 3 << 3;
    const APPEND: u8 = 1 << 5;
    const LAST: u8 = 1 << 6;

    fn of(event: &'a Event, names: LogNames<'_>) -> Self {
        let ours = |task: &str, context: &str| task == names.id && context == names.context;
        match event.known_payload() {
            Some(Payload::StatusUpdate(TaskStatusUpdateEvent { task_id, context_id, status: Some(it), metadata }))
                if ours(task_id, context_id) && metadata.is_none() =>
            {
                Self::Status(it)
            }
            Some(Payload::ArtifactUpdate(TaskArtifactUpdateEvent {
                task_id,
                context_id,
                artifact: Some(artifact),
                append,
                last_chunk,
                metadata,
            })) if ours(task_id, context_id) && metadata.is_none() => {
                Self::Artifact { artifact, append: *append, last: *last_chunk }
            }
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
        }
    }

    fn length(self) -> usize {
        match self {
            Self::Whole(it) => it.weight(),
            Self::Status(it) => it.encoded_len(),
            Self::Artifact { artifact, .. } => artifact.encoded_len(),
        }
    }

    fn write(self, out: &mut impl BufMut) {
        match self {
            Self::Whole(it) => it.write_proto(out),
            Self::Status(it) => it.encode_raw(out),
            Self::Artifact { artifact, .. } => artifact.encode_raw(out),
        }
    }
}

/// A length, or another small number.
fn small(it: usize) -> u64 {
    u64::try_from(it).unwrap_or(u64::MAX)
}

/// Writes an event that the task tells, and the number that it takes for that.
fn bare(out: &mut impl BufMut, fence: Fence, bits: u8, number: Option<u64>) {
    out.put_u8(bits);
    encode_varint(fence, out);
    encode_varint(small(number.map_or(0, encoded_len_varint)), out);
    if let Some(it) = number {
        encode_varint(it, out);
    }
}

/// An event as it is written, and how long it is then.
struct Written<'a> {
    event: &'a Event,
    form: Form<'a>,
    length: usize,
    whole: usize,
}

impl<'a> Written<'a> {
    fn of(event: &'a Event, names: LogNames<'_>) -> Self {
        let form = Form::of(event, names);
        let length = form.length();
        let lengths = encoded_len_varint(event.position().fence) + encoded_len_varint(small(length));
        Self { event, form, length, whole: 1 + lengths + length }
    }

    fn write(&self, out: &mut impl BufMut) {
        out.put_u8(self.event.mark().to_byte() | self.form.bits());
        encode_varint(self.event.position().fence, out);
        encode_varint(small(self.length), out);
        self.form.write(out);
    }
}

impl OpenLog {
    pub(in crate::store) fn add(&mut self, events: &[Event], names: LogNames<'_>) {
        for it in events {
            let (written, at) = (Written::of(it, names), self.bytes.len());
            if self.count > 0 && self.count.is_multiple_of(STRIDE) {
                self.index.push(at);
            }
            self.count += 1;
            // To a slice: a buffer that could grow is asked at each byte of a number whether it does.
            self.bytes.resize(at + written.whole, 0);
            written.write(&mut &mut self.bytes[at..]);
        }
    }

    /// Size of the log in bytes.
    pub(in crate::store) fn length(&self) -> usize {
        self.bytes.len()
    }

    /// The events after that many, without a look at most of those before.
    pub(in crate::store) fn events(&self, after: usize, names: LogNames<'_>) -> impl Iterator<Item = Event> {
        read(&self.bytes, &self.index, after).filter_map(move |it| it.event(names))
    }

    /// The events that tell no artifact: most that do need not be read for that.
    pub(in crate::store) fn without_artifacts(&self, names: LogNames<'_>) -> impl Iterator<Item = Event> {
        let rest = read(&self.bytes, &self.index, 0).filter(|it| it.bits & Form::FORMS != Form::ARTIFACT);
        let events = rest.filter_map(move |it| it.event(names));
        events.filter(|it| !matches!(it.payload(), Some(Payload::ArtifactUpdate(_))))
    }
}

impl SealedLog {
    /// A task, its log so far, and the events with which it ends.
    pub(in crate::store) fn new(task: &Task, log: &OpenLog, events: &[Event], names: LogNames<'_>) -> Self {
        let of_task = task.encoded_len();
        let before = encoded_len_varint(small(of_task)) + of_task + log.bytes.len();
        let rest: Vec<_> = events.iter().map(|it| Written::of(it, names)).collect();
        let total = before + rest.iter().map(|it| it.whole).sum::<usize>();
        let mut bytes = vec![0; total];
        let mut out = bytes.as_mut_slice();
        encode_varint(small(of_task), &mut out);
        task.encode_raw(&mut out);
        let begin = total - out.len();
        out.put_slice(&log.bytes);
        let mut index = log.index.clone();
        for (n, it) in (log.count..).zip(&rest) {
            if n > 0 && n.is_multiple_of(STRIDE) {
                index.push(total - out.len() - begin);
            }
            it.write(&mut out);
        }
        Self { bytes: bytes.into(), index: index.into() }
    }

    /// A task that has just begun, and its log as the task tells it.
    pub(in crate::store) fn of(whole: &CompletedTask) -> Self {
        let mut bytes = Vec::new();
        write(whole, usize::MAX, &mut bytes);
        Self { bytes: bytes.into(), index: Box::default() }
    }

    /// What was written.
    pub(in crate::store) fn from_bytes(bytes: Bytes) -> Self {
        Self { bytes, index: Box::default() }
    }

    /// What is written of it, which is all where its events are few.
    pub(in crate::store) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The task as it ended.
    pub(in crate::store) fn task(&self) -> Option<Task> {
        Task::decode(self.split()?.0).ok()
    }

    /// The same, as it is kept.
    pub(in crate::store) fn snapshot(&self) -> Option<Snapshot> {
        self.split().map(|(task, _)| Snapshot::from_proto(self.bytes.slice_ref(task)))
    }

    fn split(&self) -> Option<(&[u8], &[u8])> {
        let mut rest = &*self.bytes;
        Some((take(&mut rest)?, rest))
    }

    /// The events after that many, without a look at most of those before.
    pub(in crate::store) fn events(&self, after: usize, names: LogNames<'_>) -> impl Iterator<Item = Event> {
        let (task, log) = self.split().unwrap_or_default();
        // Only what the log does not repeat is read from the task.
        let task = LazyCell::new(move || Task::decode(task).unwrap_or_default());
        read(log, &self.index, after).filter_map(move |it| match it.bits & Form::FORMS {
            Form::BEGUN => it.told(&task),
            _ => it.event(names),
        })
    }
}

/// Writes a task that has just begun, and its log as the task tells it, behind these bytes. Says whether it has, which it
/// does not where that is longer than this.
pub(in crate::store) fn write(whole: &CompletedTask, most: usize, bytes: &mut Vec<u8>) -> bool {
    let CompletedTask { key, fence, row, began, task, told } = whole;
    let (of_task, fence, names) = (task.encoded_len(), *fence, LogNames { id: key.id(), context: &row.context });
    let began = u64::try_from(*began).unwrap_or(0);
    let length = |number: Option<u64>| 2 + encoded_len_varint(fence) + number.map_or(0, encoded_len_varint);
    let lengths = told.iter().map(|it| match it {
        EventRef::Event(it) => Written::of(it, names).whole,
        EventRef::Artifact { index, .. } => length(Some(small(*index))),
        EventRef::Status { .. } => length(None),
    });
    let logged = length(Some(began)) + lengths.sum::<usize>();
    let (before, length) = (bytes.len(), encoded_len_varint(small(of_task)) + of_task + logged);
    if length > most {
        return false;
    }
    // To a slice: a buffer that could grow is asked at each byte of a number whether it does.
    bytes.resize(before + length, 0);
    let mut out = &mut bytes[before..];
    encode_varint(small(of_task), &mut out);
    task.encode_raw(&mut out);
    bare(&mut out, fence, Mark::NOTHING.to_byte() | Form::BEGUN, Some(began));
    for it in told {
        match it {
            EventRef::Artifact { mark, index, last } => {
                let last = if *last { Form::LAST } else { 0 };
                bare(&mut out, fence, mark.to_byte() | Form::OF_TASK | last, Some(small(*index)));
            }
            EventRef::Status { mark } => bare(&mut out, fence, mark.to_byte() | Form::END, None),
            EventRef::Event(it) => Written::of(it, names).write(&mut out),
        }
    }
    true
}

/// An event as it was written.
struct Read<'a> {
    bits: u8,
    position: Position,
    bytes: &'a [u8],
}

fn read<'a>(log: &'a [u8], index: &[usize], after: usize) -> impl Iterator<Item = Read<'a>> + use<'a> {
    let (first, at) = match (after / STRIDE).min(index.len()) {
        0 => (0, 0),
        it => (it * STRIDE, index[it - 1]),
    };
    let mut rest = log.get(at..).unwrap_or_default();
    let seqs = Seq::try_from(first).unwrap_or(Seq::MAX).saturating_add(1)..;
    let next = move |seq: Seq| {
        let bits = rest.has_remaining().then(|| rest.get_u8())?;
        let position = Position { fence: decode_varint(&mut rest).ok()?, seq };
        Some(Read { bits, position, bytes: take(&mut rest)? })
    };
    seqs.map_while(next).skip(after - first)
}

/// What stands behind its length.
fn take<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(decode_varint(bytes).ok()?).ok()?;
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(taken)
}

impl Read<'_> {
    /// An event that the task tells.
    fn told(self, task: &Task) -> Option<Event> {
        let Self { bits, position, mut bytes } = self;
        let (mark, last) = (Mark::from_byte(bits), bits & Form::LAST != 0);
        Some(match bits & Form::OF_TASK {
            Form::OF_TASK => {
                let index = usize::try_from(decode_varint(&mut bytes).ok()?).ok()?;
                Event::new(position, mark, completed::artifact(task, index, last))
            }
            _ if last => Event::new(position, mark, completed::status(task)),
            _ => {
                let began = Millis::try_from(decode_varint(&mut bytes).ok()?).ok()?;
                Event::task(position, mark.ends, Arc::new(completed::begun(task, began)))
            }
        })
    }

    fn event(self, names: LogNames<'_>) -> Option<Event> {
        let Self { bits, position, bytes } = self;
        let mark = Mark::from_byte(bits);
        let (task_id, context_id) = (|| names.id.to_owned(), || names.context.to_owned());
        let payload = match bits & Form::FORMS {
            Form::STATUS => Payload::StatusUpdate(TaskStatusUpdateEvent {
                task_id: task_id(),
                context_id: context_id(),
                status: Some(TaskStatus::decode(bytes).ok()?),
                metadata: None,
            }),
            Form::ARTIFACT => Payload::ArtifactUpdate(TaskArtifactUpdateEvent {
                task_id: task_id(),
                context_id: context_id(),
                artifact: Some(Artifact::decode(bytes).ok()?),
                append: bits & Form::APPEND != 0,
                last_chunk: bits & Form::LAST != 0,
                metadata: None,
            }),
            _ => return Some(Event::from_proto(position, mark, Bytes::copy_from_slice(bytes))),
        };
        Some(Event::new(position, mark, payload))
    }
}
