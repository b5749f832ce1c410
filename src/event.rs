//! One event of a task, as log, store and streams share it.

use std::{
    any::Any,
    fmt, mem,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use prost::Message as _;

pub use self::cursor::{Cursor, Ends, Fence, Mark, Position, Seq};
use crate::{
    extension::resume,
    json::Encoded,
    pb::v1::{StreamResponse, Task, TaskState, TaskStatus, stream_response::Payload},
};

pub(crate) mod count;
mod cursor;
mod encoding;

/// An event: shared by all who read it, and encoded at most once in each form.
///
/// It is the item of the contract's streams, and the only message there that is not a plain prost struct: a hundred
/// subscribers cost a hundred counts of a reference, not a hundred copies and encodings. It begins as a message, as
/// protobuf or as a task that others have too, and whatever else is asked for is made on first use.
#[derive(Clone, Default)]
pub struct Event(Arc<Inner>);

#[derive(Clone, Default)]
struct Inner {
    origin: Origin,
    position: Position,
    /// None for an event from elsewhere, of which only the message is known.
    mark: Option<Mark>,
    weight: OnceLock<usize>,
    cursor: OnceLock<Option<Cursor>>,
    /// What was made of the origin, where that is another form.
    message: OnceLock<Box<StreamResponse>>,
    proto: OnceLock<Bytes>,
    json: OnceLock<Bytes>,
    /// What whoever sends it in another form has made of it.
    others: OnceLock<Arc<dyn Any + Send + Sync>>,
}

/// What an event began as.
#[derive(Clone)]
#[expect(clippy::large_enum_variant, reason = "most are a message, and a box of its own would cost each of them more")]
enum Origin {
    Message(StreamResponse),
    Proto(Bytes),
    Task(Arc<Task>),
}

impl Default for Origin {
    fn default() -> Self {
        Self::Message(StreamResponse::default())
    }
}

impl Inner {
    /// What was made of the message as it was is not of the message as it will be.
    fn forget(&mut self) {
        (self.weight, self.cursor) = (OnceLock::new(), OnceLock::new());
        (self.message, self.proto, self.json) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        self.others = OnceLock::new();
    }
}

/// What we encoded ourselves can be read; bytes from elsewhere came through `merge_field`, which read them.
fn read(proto: &Bytes) -> StreamResponse {
    StreamResponse::decode(&**proto).unwrap_or_default()
}

impl Event {
    /// An event of ours, of which the log knows where it stands and what it ends.
    pub fn new(position: Position, mark: Mark, payload: Payload) -> Self {
        Self(Arc::new(Inner { origin: Origin::of(payload), position, mark: Some(mark), ..Inner::default() }))
    }

    /// An event that no log has yet.
    pub(crate) fn said(payload: Payload) -> Self {
        Self(Arc::new(Inner { origin: Origin::of(payload), ..Inner::default() }))
    }

    /// An event of ours, as a store kept it.
    pub fn from_proto(position: Position, mark: Mark, proto: Bytes) -> Self {
        Self(Arc::new(Inner { origin: Origin::Proto(proto), position, mark: Some(mark), ..Inner::default() }))
    }

    /// An event from elsewhere.
    pub(crate) fn elsewhere(cursor: Option<Cursor>, message: StreamResponse) -> Self {
        // One that came without may have it in its metadata.
        let cursor = cursor.map_or_else(OnceLock::new, |it| OnceLock::from(Some(it)));
        let origin = Origin::Message(message);
        Self(Arc::new(Inner { origin, cursor, ..Inner::default() }))
    }

    /// A whole task: its first event, or a snapshot.
    pub fn task(position: Position, ends: Ends, task: Arc<Task>) -> Self {
        let mark = Some(Mark { ends, hidden: false });
        Self(Arc::new(Inner { origin: Origin::Task(task), position, mark, ..Inner::default() }))
    }

    /// The same of a task that is only borrowed.
    pub(crate) fn encoded_task(position: Position, ends: Ends, task: &Task) -> Self {
        let mut proto = vec![0; prost::encoding::message::encoded_len(1, task)];
        prost::encoding::message::encode(1, task, &mut proto.as_mut_slice());
        Self::from_proto(position, Mark { ends, hidden: false }, proto.into())
    }

    /// Where it stands; zeros for an event from elsewhere, and for one that no log has.
    pub fn position(&self) -> Position {
        self.0.position
    }

    /// Its number in its task.
    pub fn seq(&self) -> Seq {
        self.0.position.seq
    }

    /// What its message does not tell. For an event from elsewhere, what its state suggests.
    pub fn mark(&self) -> Mark {
        self.0.mark.unwrap_or_else(|| Mark { ends: suggested(self.payload()), hidden: false })
    }

    /// What is over with it.
    pub fn ends(&self) -> Ends {
        self.mark().ends
    }

    /// None for an event that no log has, and for one from elsewhere that came without.
    pub fn cursor(&self) -> Option<&Cursor> {
        self.0.cursor.get_or_init(|| self.make_cursor()).as_ref()
    }

    fn make_cursor(&self) -> Option<Cursor> {
        if self.0.mark.is_none() {
            // What came from elsewhere over gRPC says it in its metadata, if it says it.
            return resume::cursor(self.payload()?);
        }
        let of = |id: &str| (self.seq() > 0).then(|| Cursor::new(id, self.position()));
        if let Some(id) = self.encoded().and_then(task_id) {
            return of(id);
        }
        if let Some(it) = self.whole() {
            return of(&it.id);
        }
        match self.payload()? {
            Payload::Task(it) => of(&it.id),
            Payload::StatusUpdate(it) => of(&it.task_id),
            Payload::ArtifactUpdate(it) => of(&it.task_id),
            Payload::Message(it) => of(&it.task_id),
        }
    }

    /// The message; an event that an agent elsewhere sent may have none that we know.
    pub fn payload(&self) -> Option<&Payload> {
        self.message().payload.as_ref()
    }

    /// The message.
    pub fn message(&self) -> &StreamResponse {
        match &self.0.origin {
            Origin::Message(it) => it,
            Origin::Proto(it) => self.0.message.get_or_init(|| Box::new(read(it))),
            Origin::Task(it) => self.0.message.get_or_init(|| {
                let payload = Some(Payload::Task(Task::clone(it)));
                Box::new(StreamResponse { payload })
            }),
        }
    }

    /// The task, of an event that is a whole one; it is not copied where others have it too.
    pub fn whole(&self) -> Option<&Task> {
        if let Origin::Task(it) = &self.0.origin {
            return Some(it);
        }
        match self.payload() {
            Some(Payload::Task(it)) => Some(it),
            Some(Payload::StatusUpdate(_) | Payload::ArtifactUpdate(_) | Payload::Message(_)) | None => None,
        }
    }

    /// Its payload, where that need not be made first: of an event that is a whole task it must.
    pub(crate) fn known_payload(&self) -> Option<&Payload> {
        match &self.0.origin {
            Origin::Message(it) => it.payload.as_ref(),
            Origin::Proto(_) | Origin::Task(_) => self.0.message.get()?.payload.as_ref(),
        }
    }

    /// The payload, to be changed, of an event that nobody else has seen.
    pub(crate) fn edit(&mut self) -> Option<&mut Payload> {
        let inner = Arc::get_mut(&mut self.0)?;
        inner.forget();
        match &mut inner.origin {
            Origin::Message(it) => it.payload.as_mut(),
            Origin::Proto(_) | Origin::Task(_) => None,
        }
    }

    /// Gives an event that nobody else has seen its place in a log.
    pub(crate) fn place(&mut self, position: Position, mark: Mark) {
        if let Some(it) = Arc::get_mut(&mut self.0) {
            (it.position, it.mark) = (position, Some(mark));
        }
    }

    /// The payload of an event that began as its message, and that nobody else has; else the event as it is.
    pub(crate) fn into_payload(self) -> Result<Payload, Self> {
        match Arc::try_unwrap(self.0) {
            Ok(Inner { origin: Origin::Message(StreamResponse { payload: Some(it) }), .. }) => Ok(it),
            Ok(it) => Err(Self(Arc::new(it))),
            Err(it) => Err(Self(it)),
        }
    }

    /// Takes the payload out of an event that began as its message, and that nobody else has: from then on it is the
    /// bytes that a log takes.
    pub(crate) fn take_payload(&mut self) -> Option<Payload> {
        if Arc::get_mut(&mut self.0).is_none_or(|it| !matches!(it.origin, Origin::Message(_))) {
            return None;
        }
        let proto = Origin::Proto(self.proto().clone());
        let inner = Arc::get_mut(&mut self.0)?;
        inner.forget();
        mem::replace(&mut inner.origin, proto).into_message().payload
    }

    /// The message alone, which is copied where others still read this event.
    pub fn into_message(self) -> StreamResponse {
        Arc::try_unwrap(self.0).map_or_else(|it| Self(it).message().clone(), |it| it.origin.into_message())
    }
}

impl Origin {
    fn of(payload: Payload) -> Self {
        Self::Message(StreamResponse { payload: Some(payload) })
    }

    fn into_message(self) -> StreamResponse {
        match self {
            Self::Message(it) => it,
            Self::Proto(it) => read(&it),
            Self::Task(it) => StreamResponse { payload: Some(Payload::Task(Arc::unwrap_or_clone(it))) },
        }
    }
}

/// The task that an event is of, as we encode it.
fn task_id(proto: &[u8]) -> Option<&str> {
    const MESSAGE: u32 = 2 << 3 | 2;
    let mut from = Encoded::<StreamResponse>::new(proto).fields().ok()?;
    // Its own id of a task, and that of its task in an update; a message has others before it.
    let key = if from.is_at(MESSAGE) { 3 << 3 | 2 } else { 1 << 3 | 2 };
    let mut fields = from.message::<StreamResponse>().ok()?.fields().ok()?;
    fields.find(key).ok()?;
    str::from_utf8(fields.bytes().ok()?).ok()
}

/// What the state of a message suggests is over.
fn suggested(payload: Option<&Payload>) -> Ends {
    let status = match payload {
        Some(Payload::Task(it)) => it.status.as_ref(),
        Some(Payload::StatusUpdate(it)) => it.status.as_ref(),
        Some(Payload::Message(_)) => return Ends::Task,
        Some(Payload::ArtifactUpdate(_)) | None => None,
    };
    match status.map_or(TaskState::Unspecified, TaskStatus::state) {
        TaskState::Completed | TaskState::Failed | TaskState::Canceled | TaskState::Rejected => Ends::Task,
        TaskState::InputRequired | TaskState::AuthRequired => Ends::Turn,
        TaskState::Unspecified | TaskState::Submitted | TaskState::Working => Ends::Nothing,
    }
}

impl From<StreamResponse> for Event {
    fn from(message: StreamResponse) -> Self {
        Self(Arc::new(Inner { origin: Origin::Message(message), ..Inner::default() }))
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.message() == other.message()
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position { fence, seq } = self.0.position;
        write!(f, "{fence}.{seq} {:?} {:?}", self.0.mark, self.message())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pb::v1::TaskStatusUpdateEvent;

    #[test]
    fn the_state_of_an_event_from_elsewhere_suggests_what_ends() {
        for (state, ends) in [
            (TaskState::Working, Ends::Nothing),
            (TaskState::InputRequired, Ends::Turn),
            (TaskState::Canceled, Ends::Task),
        ] {
            let status = Some(TaskStatus { state: state.into(), ..Default::default() });
            let update = TaskStatusUpdateEvent { status, ..Default::default() };
            let event = Event::from(StreamResponse { payload: Some(Payload::StatusUpdate(update)) });
            assert_eq!(event.ends(), ends, "{state:?}");
        }
    }
}
