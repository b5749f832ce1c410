//! Events of a task, as stored in its log and sent on streams.

use std::{
    any::Any,
    fmt,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use prost::Message as _;

pub use self::cursor::{Cursor, Ends, EventFlags, Fence, Position, Seq};
pub(crate) use self::{encoding::chunk_size, task_ref::TaskRef};
use crate::protocol::{
    json::{Encoded, wkt::Struct},
    messages::v1::{
        Message, StreamResponse, Task, TaskArtifactUpdateEvent, TaskState, TaskStatus, TaskStatusUpdateEvent,
        stream_response::Payload,
    },
};

mod cursor;
mod encoding;
pub mod resume;
mod task_ref;

/// An event of a task, shared by all its readers. It is encoded at most once in each format while it is shared.
///
/// Streams of the service trait carry this type instead of a prost struct, so that a hundred subscribers share one
/// allocation and one encoding. An event starts as a decoded message, as protobuf or as a shared task; other
/// representations are created on first use.
#[derive(Clone, Default)]
pub struct Event(Arc<Inner>);

#[derive(Clone, Default)]
struct Inner {
    origin: Origin,
    position: Position,
    /// `None` for an event of a remote agent, of which only the message is known.
    mark: Option<EventFlags>,
    proto_len: OnceLock<usize>,
    cursor: OnceLock<Option<Cursor>>,
    /// Caches of representations other than the origin.
    message: OnceLock<Box<StreamResponse>>,
    proto: OnceLock<Bytes>,
    json: OnceLock<Bytes>,
    /// Cache for an encoding of another protocol version; see `Event::version_cache`.
    version_cache: OnceLock<Arc<dyn Any + Send + Sync>>,
}

/// Initial representation of an event.
#[derive(Clone)]
#[expect(clippy::large_enum_variant, reason = "most are messages, and boxing each would cost more")]
enum Origin {
    Message(StreamResponse),
    Proto(Bytes),
    Task(Arc<Task>),
    /// Part of a task, which is absent only while the content is moved into it.
    Ref(TaskRef, Option<Arc<Task>>),
}

impl Default for Origin {
    fn default() -> Self {
        Self::Message(StreamResponse::default())
    }
}

impl Inner {
    /// Invalidates the caches before the message changes.
    fn clear_caches(&mut self) {
        // Most events have none when they change, which is faster to check than to write.
        let is_encoded = self.proto_len.get().is_some() || self.proto.get().is_some() || self.json.get().is_some();
        let is_decoded = self.message.get().is_some() || self.version_cache.get().is_some();
        if is_encoded || is_decoded || self.cursor.get().is_some() {
            (self.proto_len, self.cursor) = (OnceLock::new(), OnceLock::new());
            (self.message, self.proto, self.json) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
            self.version_cache = OnceLock::new();
        }
    }
}

/// Decodes a message. Does not fail: the bytes are our own encoding, or were validated by `merge_field`.
fn read(proto: &Bytes) -> StreamResponse {
    StreamResponse::decode(&**proto).unwrap_or_default()
}

impl Event {
    /// Creates an event with its position in the log and its mark.
    pub fn new(position: Position, mark: EventFlags, payload: Payload) -> Self {
        Self(Arc::new(Inner { origin: Origin::of(payload), position, mark: Some(mark), ..Inner::default() }))
    }

    /// Creates an event that is not in a log yet.
    pub(crate) fn pending(payload: Payload) -> Self {
        Self(Arc::new(Inner { origin: Origin::of(payload), ..Inner::default() }))
    }

    /// Creates an event from the protobuf that a store holds.
    pub fn from_proto(position: Position, mark: EventFlags, proto: Bytes) -> Self {
        Self(Arc::new(Inner { origin: Origin::Proto(proto), position, mark: Some(mark), ..Inner::default() }))
    }

    /// Creates an event received from a remote agent.
    pub(crate) fn from_remote(cursor: Option<Cursor>, message: StreamResponse) -> Self {
        // Without a cursor of its own, the event may have one in its metadata (`resume`).
        let cursor = cursor.map_or_else(OnceLock::new, |cursor| OnceLock::from(Some(cursor)));
        let origin = Origin::Message(message);
        Self(Arc::new(Inner { origin, cursor, ..Inner::default() }))
    }

    /// Creates an event that carries a whole task: the first event of a task, or a snapshot.
    pub fn from_task(position: Position, ends: Ends, task: Arc<Task>) -> Self {
        let mark = Some(EventFlags { ends, hidden: false });
        Self(Arc::new(Inner { origin: Origin::Task(task), position, mark, ..Inner::default() }))
    }

    /// Creates an event from a borrowed task, which is encoded at once.
    pub(crate) fn encode_task(position: Position, ends: Ends, task: &Task) -> Self {
        let mut proto = vec![0; prost::encoding::message::encoded_len(1, task)];
        prost::encoding::message::encode(1, task, &mut proto.as_mut_slice());
        Self::from_proto(position, EventFlags { ends, hidden: false }, proto.into())
    }

    /// Returns the position in the log. Zero for an event of a remote agent, and before the event is in a log.
    pub fn position(&self) -> Position {
        self.0.position
    }

    /// Returns the sequence number of the event in its task.
    pub fn seq(&self) -> Seq {
        self.0.position.seq
    }

    /// Returns the mark. For an event of a remote agent, it is derived from the task state.
    pub fn mark(&self) -> EventFlags {
        self.0.mark.unwrap_or_else(|| EventFlags { ends: end_by_state(self.payload()), hidden: false })
    }

    /// Returns what the event ends: nothing, the turn or the task.
    pub fn ends(&self) -> Ends {
        self.mark().ends
    }

    /// Returns the cursor to resume a stream after this event. `None` for an event that is not in a log, and for one
    /// that a remote agent sent without a cursor.
    pub fn cursor(&self) -> Option<&Cursor> {
        self.0.cursor.get_or_init(|| self.compute_cursor()).as_ref()
    }

    fn compute_cursor(&self) -> Option<Cursor> {
        if self.0.mark.is_none() {
            // A remote agent may send the cursor in the metadata; over gRPC there is nowhere else.
            return resume::cursor(self.payload()?);
        }
        let id = self.task_id()?;
        (self.seq() > 0).then(|| Cursor::new(id, self.position()))
    }

    /// Returns the id of the task, without decoding the event. Empty for a message without a task.
    pub(crate) fn task_id(&self) -> Option<&str> {
        if let Some(id) = self.encoded().and_then(task_id) {
            return Some(id);
        }
        if let Some(task) = self.task() {
            return Some(&task.id);
        }
        self.payload().map(Payload::task_id)
    }

    /// Returns the payload. `None` for an event of a remote agent with an unknown kind of payload.
    pub fn payload(&self) -> Option<&Payload> {
        self.response().payload.as_ref()
    }

    /// Returns the event as a response of the protocol.
    pub fn response(&self) -> &StreamResponse {
        match &self.0.origin {
            Origin::Message(message) => message,
            Origin::Proto(proto) => self.0.message.get_or_init(|| Box::new(read(proto))),
            Origin::Task(task) => self.0.message.get_or_init(|| {
                let payload = Some(Payload::Task(Task::clone(task)));
                Box::new(StreamResponse { payload })
            }),
            Origin::Ref(task_ref, task) => self.0.message.get_or_init(|| Box::new(task_ref.response(task.as_deref()))),
        }
    }

    /// Returns the task of an event that was made from one.
    pub(crate) fn shared_task(&self) -> Option<&Task> {
        match &self.0.origin {
            Origin::Task(task) => Some(task),
            Origin::Message(_) | Origin::Proto(_) | Origin::Ref(..) => None,
        }
    }

    /// Returns the task of an event that carries a whole one. A shared task is not copied.
    pub fn task(&self) -> Option<&Task> {
        if let Origin::Task(task) = &self.0.origin {
            return Some(task);
        }
        if let Payload::Task(task) = self.payload()? { Some(task) } else { None }
    }

    /// Returns the message, if the event is one.
    pub fn message(&self) -> Option<&Message> {
        if let Payload::Message(message) = self.payload()? { Some(message) } else { None }
    }

    /// Returns the status update, if the event is one.
    pub fn status_update(&self) -> Option<&TaskStatusUpdateEvent> {
        if let Payload::StatusUpdate(update) = self.payload()? { Some(update) } else { None }
    }

    /// Returns the artifact update, if the event is one.
    pub fn artifact_update(&self) -> Option<&TaskArtifactUpdateEvent> {
        if let Payload::ArtifactUpdate(update) = self.payload()? { Some(update) } else { None }
    }

    /// Returns the payload if it is already decoded. `None` for an event that was created from a task.
    pub(crate) fn decoded_payload(&self) -> Option<&Payload> {
        match &self.0.origin {
            Origin::Message(message) => message.payload.as_ref(),
            Origin::Proto(_) | Origin::Task(_) | Origin::Ref(..) => self.0.message.get()?.payload.as_ref(),
        }
    }

    /// Returns the payload for modification. `None` if the event is shared or was not created from a message.
    pub(crate) fn payload_mut(&mut self) -> Option<&mut Payload> {
        let inner = Arc::get_mut(&mut self.0)?;
        inner.clear_caches();
        match &mut inner.origin {
            Origin::Message(message) => message.payload.as_mut(),
            Origin::Proto(_) | Origin::Task(_) | Origin::Ref(..) => None,
        }
    }

    /// Sets the position and mark of an event. Does nothing if the event is shared.
    pub(crate) fn set_position(&mut self, position: Position, mark: EventFlags) {
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            (inner.position, inner.mark) = (position, Some(mark));
        }
    }

    /// Returns the event as a response of the protocol. It is copied if the event is shared.
    pub fn into_response(self) -> StreamResponse {
        match Arc::try_unwrap(self.0) {
            Ok(inner) => inner.origin.into_message(),
            Err(shared) => Self(shared).response().clone(),
        }
    }
}

impl Origin {
    fn of(payload: Payload) -> Self {
        Self::Message(StreamResponse { payload: Some(payload) })
    }

    fn into_message(self) -> StreamResponse {
        match self {
            Self::Message(message) => message,
            Self::Proto(proto) => read(&proto),
            Self::Task(task) => StreamResponse { payload: Some(Payload::Task(Arc::unwrap_or_clone(task))) },
            Self::Ref(task_ref, task) => task_ref.response(task.as_deref()),
        }
    }
}

/// Returns the task id of an event in protobuf, without decoding the event.
fn task_id(proto: &[u8]) -> Option<&str> {
    const MESSAGE: u32 = 2 << 3 | 2;
    let mut from = Encoded::<StreamResponse>::new(proto).fields().ok()?;
    // A message has its task id in field 3; a task its own id, and an update its task id, in field 1.
    let key = if from.is_at(MESSAGE) { 3 << 3 | 2 } else { 1 << 3 | 2 };
    let mut fields = from.message::<StreamResponse>().ok()?.fields().ok()?;
    fields.find(key).ok()?;
    str::from_utf8(fields.bytes().ok()?).ok()
}

/// Derives what an event of a remote agent ends from its task state.
fn end_by_state(payload: Option<&Payload>) -> Ends {
    let state = payload.and_then(Payload::status).map_or(TaskState::Unspecified, TaskStatus::state);
    match payload {
        Some(Payload::Message(_)) => Ends::Task,
        _ if state.is_terminal() => Ends::Task,
        _ if state.is_interrupted() => Ends::Turn,
        _ => Ends::Nothing,
    }
}

conversions! {
    Event:
    message: StreamResponse => Self(Arc::new(Inner { origin: Origin::Message(message), ..Inner::default() }));
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.response() == other.response()
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position { fence, seq } = self.0.position;
        write!(f, "{fence}.{seq} {:?} {:?}", self.0.mark, self.response())
    }
}

impl Payload {
    /// Returns the id of the task. Empty for a message without a task.
    pub(crate) fn task_id(&self) -> &str {
        match self {
            Self::Task(task) => &task.id,
            Self::StatusUpdate(update) => &update.task_id,
            Self::ArtifactUpdate(update) => &update.task_id,
            Self::Message(message) => &message.task_id,
        }
    }

    /// Returns the status of a task or of a status update.
    pub(crate) fn status(&self) -> Option<&TaskStatus> {
        match self {
            Self::Task(task) => task.status.as_ref(),
            Self::StatusUpdate(update) => update.status.as_ref(),
            Self::Message(_) | Self::ArtifactUpdate(_) => None,
        }
    }
}

pub(crate) fn metadata_mut(payload: &mut Payload) -> &mut Option<Struct> {
    match payload {
        Payload::Task(task) => &mut task.metadata,
        Payload::Message(message) => &mut message.metadata,
        Payload::StatusUpdate(update) => &mut update.metadata,
        Payload::ArtifactUpdate(update) => &mut update.metadata,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::pb::v1::TaskStatusUpdateEvent;

    #[test]
    fn state_of_a_remote_event_determines_what_it_ends() {
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
