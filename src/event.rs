//! One event of a task, as log, store and streams share it.

use std::{
    any::Any,
    fmt, mem,
    sync::{Arc, OnceLock},
};

use bytes::{Buf, BufMut, Bytes};
use prost::{
    DecodeError, Message as _,
    encoding::{DecodeContext, WireType},
};
use serde::{Deserialize, Serialize, ser::SerializeStruct as _};
use tonic::Status;

pub use self::place::{Cursor, Ends, Fence, Mark, Position, Seq};
use crate::{
    error::Error,
    extension::resume,
    json::{Encoded, write_encoded, write_to},
    pb::v1::{StreamResponse, Task, TaskState, TaskStatus, stream_response::Payload},
    task::heft,
    transport::transcode::{Frame, Item, Line, from_json},
};

mod place;

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

    /// This event in protobuf.
    pub fn proto(&self) -> &Bytes {
        if let Origin::Proto(it) = &self.0.origin {
            return it;
        }
        self.0.proto.get_or_init(|| {
            count::encoding(self, count::Form::Proto);
            let mut proto = Vec::with_capacity(self.weight());
            self.encode_to(&mut proto);
            proto.into()
        })
    }

    /// Encodes it anew, unless it is protobuf.
    fn encode_to(&self, out: &mut impl BufMut) {
        match &self.0.origin {
            Origin::Message(it) => it.encode_raw(out),
            Origin::Proto(it) => out.put_slice(it),
            Origin::Task(it) => prost::encoding::message::encode(1, &**it, out),
        }
    }

    /// What it is made of, where that is protobuf that nobody has decoded.
    fn encoded(&self) -> Option<&[u8]> {
        match &self.0.origin {
            Origin::Proto(it) if self.0.message.get().is_none() => Some(it),
            Origin::Proto(_) | Origin::Message(_) | Origin::Task(_) => None,
        }
    }

    /// This event in ProtoJSON, on a line.
    pub fn json(&self) -> &Bytes {
        self.0.json.get_or_init(|| {
            let mut json = Vec::with_capacity(self.line_length());
            self.make_json(&mut json);
            json.into()
        })
    }

    /// Writes this event in ProtoJSON behind what is there. It is kept where others are there who may want it.
    pub(crate) fn write_json(&self, out: &mut Vec<u8>) {
        if self.0.json.get().is_none() && self.is_alone() {
            self.make_json(out);
        } else {
            out.extend_from_slice(self.json());
        }
    }

    fn make_json(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let written = match &self.0.origin {
            Origin::Task(it) => write_to(out, &Whole { task: it }),
            Origin::Message(_) | Origin::Proto(_) => match self.encoded() {
                Some(it) => write_encoded::<StreamResponse>(out, it),
                None => write_to(out, self.message()),
            },
        };
        if written.is_err() {
            // Members have names, and writing to memory does not fail: nothing is left that could.
            out.truncate(start);
            out.extend_from_slice(b"{}");
        }
        count::encoding(self, count::Form::Json);
    }

    /// About how long it is in ProtoJSON.
    pub(crate) fn line_length(&self) -> usize {
        if let Some(it) = self.0.json.get() {
            return it.len();
        }
        // Names and quotes make what is small twice as long in JSON, and what is large hardly longer.
        let weight = match self.known_payload() {
            Some(Payload::ArtifactUpdate(it)) => heft(it) + 192,
            _ => self.weight(),
        };
        weight + weight.min(16 << 10) + 64
    }

    /// Nobody else has it: what is made of it need not be kept.
    fn is_alone(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// A place for its other forms, shared by all who read it as this is; what they are is for whoever makes them. There
    /// is one: who comes with another type gets a place that nobody shares.
    pub(crate) fn others<T: Any + Default + Send + Sync>(&self) -> Arc<T> {
        let place = self.0.others.get_or_init(|| Arc::<T>::default());
        Arc::downcast(Arc::clone(place)).unwrap_or_default()
    }

    /// How long it is in protobuf, which need not be made for that.
    pub fn weight(&self) -> usize {
        match &self.0.origin {
            Origin::Message(it) => *self.0.weight.get_or_init(|| it.encoded_len()),
            Origin::Proto(it) => it.len(),
            Origin::Task(it) => *self.0.weight.get_or_init(|| prost::encoding::message::encoded_len(1, &**it)),
        }
    }

    /// Writes it in protobuf to the beginning of `out`, which has room for its [`weight`](Self::weight).
    pub(crate) fn write_proto(&self, out: &mut impl BufMut) {
        match self.0.proto.get() {
            Some(it) => out.put_slice(it),
            None => self.encode_to(out),
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

/// A task as an event of a stream, borrowed.
struct Whole<'a> {
    task: &'a Task,
}

impl Serialize for Whole<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut it = serializer.serialize_struct("StreamResponse", 1)?;
        it.serialize_field("task", self.task)?;
        it.end()
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

/// So that tonic's codec, and any tonic client, works on it.
impl prost::Message for Event {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        if self.0.proto.get().is_none() && self.is_alone() {
            count::encoding(self, count::Form::Proto);
            self.encode_to(buf);
        } else {
            buf.put_slice(self.proto());
        }
    }

    fn encoded_len(&self) -> usize {
        self.weight()
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        let inner = Arc::make_mut(&mut self.0);
        let mut message = mem::take(&mut inner.origin).into_message();
        inner.forget();
        let merged = message.merge_field(tag, wire_type, buf, context);
        inner.origin = Origin::Message(message);
        merged
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Serialize for Event {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.message().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        StreamResponse::deserialize(deserializer).map(Self::from)
    }
}

impl Item for Event {
    fn frame(&self) -> Result<Frame, Error> {
        // Of an event that one reader has, it is not kept.
        let cursor = match self.0.cursor.get() {
            Some(it) => it.clone(),
            None if self.is_alone() => self.make_cursor(),
            None => self.cursor().cloned(),
        };
        Ok(Frame { cursor, data: Line::Of(self.clone()) })
    }

    fn from_frame(Frame { cursor, data }: Frame) -> Result<Self, Status> {
        // Its bytes are not kept as `json`: they are not ours, and a line break in them would end our line of an event.
        Ok(Self::elsewhere(cursor, from_json(data.bytes())?))
    }
}

/// How often the events of a task were encoded, by form; in tests only.
pub(crate) mod count {
    use super::Event;

    #[derive(Clone, Copy)]
    pub(crate) enum Form {
        Proto,
        Json,
    }

    #[cfg(test)]
    static ENCODINGS: parking_lot::Mutex<std::collections::BTreeMap<String, [usize; 2]>> =
        parking_lot::Mutex::new(std::collections::BTreeMap::new());

    #[cfg(test)]
    pub(super) fn encoding(event: &Event, form: Form) {
        use crate::pb::v1::stream_response::Payload;
        if let Some(Payload::ArtifactUpdate(it)) = event.payload() {
            let mut all = ENCODINGS.lock();
            let counts = all.entry(it.task_id.clone()).or_default();
            match form {
                Form::Proto => counts[0] += 1,
                Form::Json => counts[1] += 1,
            }
        }
    }

    /// How often artifact events of a task were encoded in protobuf, and in JSON.
    #[cfg(test)]
    pub(crate) fn encodings(task_id: &str) -> [usize; 2] {
        ENCODINGS.lock().get(task_id).copied().unwrap_or_default()
    }

    #[cfg(not(test))]
    pub(super) const fn encoding(_: &Event, _: Form) {}
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::pb::v1::{Message, Part, TaskArtifactUpdateEvent, TaskStatus, TaskStatusUpdateEvent};

    fn update(n: u64) -> Event {
        let update = TaskArtifactUpdateEvent { task_id: "t.1".into(), ..Default::default() };
        Event::new(Position { fence: 3, seq: n }, Mark::NOTHING, Payload::ArtifactUpdate(update))
    }

    #[test]
    fn an_event_is_its_message_in_every_form() {
        let one = update(7);
        assert_eq!(one.proto(), &one.message().encode_to_vec());
        assert_eq!(one.json(), &serde_json::to_vec(one.message()).unwrap());
        assert_eq!(Event::decode(one.proto().clone()).unwrap(), one);
        let kept = Event::from_proto(one.position(), one.mark(), one.proto().clone());
        assert_eq!((kept.json(), kept.cursor()), (one.json(), one.cursor()));
        assert_eq!(one.cursor().map(Cursor::as_str), Some("t.1.3.7"));
        assert_eq!(one.cursor().and_then(Cursor::parts), Some(("t.1", Position { fence: 3, seq: 7 })));
    }

    #[test]
    fn an_event_as_it_is_kept_has_the_same_cursor_and_json() {
        let id = |it: &str| it.to_owned();
        let update = |task_id, context_id| TaskArtifactUpdateEvent { task_id, context_id, ..Default::default() };
        for task in ["", "t"] {
            let said = Message { message_id: id("m"), task_id: id(task), role: 2, ..Message::default() };
            for payload in [
                Payload::Task(Task { id: id(task), context_id: id("c"), ..Task::default() }),
                Payload::Message(said.clone()),
                Payload::Message(Message { context_id: id("c"), parts: vec![Part::text("x")], ..said }),
                Payload::StatusUpdate(TaskStatusUpdateEvent { task_id: id(task), ..Default::default() }),
                Payload::ArtifactUpdate(update(id(task), id("c"))),
            ] {
                let one = Event::new(Position { fence: 1, seq: 2 }, Mark::NOTHING, payload);
                let kept = Event::from_proto(one.position(), one.mark(), one.proto().clone());
                assert_eq!(kept.cursor(), one.cursor());
                assert_eq!(kept.json(), one.json());
            }
        }
    }

    #[test]
    fn a_copy_that_takes_in_more_is_another_event() {
        let one = update(1);
        let (mut more, before) = (one.clone(), one.proto().clone());
        let task = StreamResponse { payload: Some(Payload::Task(Task { id: "t2".into(), ..Default::default() })) };
        one.others::<OnceLock<u8>>().set(7).unwrap();
        assert_eq!(more.others::<OnceLock<u8>>().get(), Some(&7), "it is the same event");
        assert_eq!(more.others::<OnceLock<u16>>().get(), None);
        more.merge(task.encode_to_vec().as_slice()).unwrap();
        assert_eq!(more.others::<OnceLock<u8>>().get(), None);
        assert_eq!(more.message(), &task);
        assert_eq!(Event::decode(more.proto().clone()).unwrap().into_message(), task);
        assert_eq!(one.proto(), &before);
    }

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
