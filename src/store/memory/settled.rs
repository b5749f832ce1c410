//! A task that has ended, as bytes: the task, and behind it its log. They are smaller than the messages, and cost nothing
//! to drop.

use bytes::{Buf, BufMut, Bytes};
use prost::{
    Message as _,
    encoding::{decode_varint, encode_varint, encoded_len_varint},
};

use crate::{
    event::{Event, Mark, Position, Seq},
    pb::v1::{Artifact, Task, TaskArtifactUpdateEvent, TaskStatus, TaskStatusUpdateEvent, stream_response::Payload},
    store::Key,
};

/// Every so many events, it is written down where the next one begins.
const STRIDE: usize = 64;

/// Whose log it is: what its events need not repeat.
#[derive(Clone, Copy)]
pub(super) struct Names<'a> {
    pub(super) key: &'a Key,
    pub(super) context: &'a str,
}

/// A task and its log.
pub(super) struct Settled {
    /// Each behind its length. An event has its [`Mark`] and its [`Form`] before that.
    bytes: Bytes,
    /// Where each [`STRIDE`]th event is.
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
    const FORMS: u8 = 3 << 3;
    const APPEND: u8 = 1 << 5;
    const LAST: u8 = 1 << 6;

    fn of(event: &'a Event, names: Names<'_>) -> Self {
        let ours = |task: &str, context: &str| task == names.key.id() && context == names.context;
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

    fn write(self, out: &mut &mut [u8]) {
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

impl Settled {
    pub(super) fn new(task: &Task, events: &[Event], names: Names<'_>) -> Self {
        let of_task = task.encoded_len();
        let mut total = encoded_len_varint(small(of_task)) + of_task;
        let mut forms = Vec::with_capacity(events.len());
        for it in events {
            let form = Form::of(it, names);
            let length = form.length();
            let lengths = encoded_len_varint(it.position().fence) + encoded_len_varint(small(length));
            total += 1 + lengths + length;
            forms.push((form, length));
        }
        // To a slice and not to a buffer that could grow: it would be asked at each byte of a number whether it does.
        let mut bytes = vec![0; total];
        let mut out = bytes.as_mut_slice();
        encode_varint(small(of_task), &mut out);
        task.encode_raw(&mut out);
        let mut index = Vec::new();
        for (n, (it, (form, length))) in events.iter().zip(forms).enumerate() {
            if n > 0 && n % STRIDE == 0 {
                index.push(total - out.len());
            }
            out.put_u8(it.mark().to_byte() | form.bits());
            encode_varint(it.position().fence, &mut out);
            encode_varint(small(length), &mut out);
            form.write(&mut out);
        }
        Self { bytes: bytes.into(), index: index.into() }
    }

    /// How many bytes it is.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The task as it ended.
    pub(super) fn task(&self) -> Option<Task> {
        Task::decode(self.split()?.0).ok()
    }

    fn split(&self) -> Option<(Bytes, Bytes)> {
        let mut rest = self.bytes.clone();
        Some((take(&mut rest)?, rest))
    }

    /// The events after that many, without a look at most of those before.
    pub(super) fn events<'a>(&self, after: usize, names: Names<'a>) -> impl Iterator<Item = Event> + use<'a> {
        let (first, mut bytes) = match (after / STRIDE).min(self.index.len()) {
            0 => (0, self.split().unwrap_or_default().1),
            it => (it * STRIDE, self.bytes.slice(self.index[it - 1]..)),
        };
        let skipped = after - first;
        let seqs = Seq::try_from(first).unwrap_or(Seq::MAX).saturating_add(1)..;
        let event = move |seq: Seq| {
            let bits = bytes.has_remaining().then(|| bytes.get_u8())?;
            let position = Position { fence: decode_varint(&mut bytes).ok()?, seq };
            event(bits, position, take(&mut bytes)?, names)
        };
        seqs.map_while(event).skip(skipped)
    }
}

/// What stands behind its length.
fn take(bytes: &mut Bytes) -> Option<Bytes> {
    let length = usize::try_from(decode_varint(bytes).ok()?).ok().filter(|it| *it <= bytes.len())?;
    Some(bytes.split_to(length))
}

fn event(bits: u8, position: Position, bytes: Bytes, names: Names<'_>) -> Option<Event> {
    let mark = Mark::from_byte(bits);
    let (task_id, context_id) = (|| names.key.id().to_owned(), || names.context.to_owned());
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
        _ => return Some(Event::from_proto(position, mark, bytes)),
    };
    Some(Event::new(position, mark, payload))
}
