//! Classic JSON, read into the messages of 1.0.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, Visitor},
};

pub use self::params::{PushRegistration, V02Send};
use super::enum_names::EnumNames;
use crate::{
    json::{self, Members, any, bytes, not_one_of, number, quoted, value},
    pb::{
        v1::{
            Artifact, Message, Part, Role, SendMessageResponse, StreamResponse, Task, TaskArtifactUpdateEvent,
            TaskState, TaskStatus, TaskStatusUpdateEvent, part::Content, send_message_response::Payload as Answer,
            stream_response::Payload,
        },
        wkt::{Struct, Value, value::Kind},
    },
};

mod params;

/// A type of 1.0 that has another form in classic JSON.
pub trait Classic: Sized {
    /// What its members are read into, until all are there.
    type Draft: Members;

    /// Puts it together.
    fn finish<E: Error>(draft: Self::Draft) -> Result<Self, E>;
}

/// A message of 1.0, read from classic JSON.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Read<T>(pub T);

impl<'de, T: Classic> Deserialize<'de> for Read<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::finish(json::read::<T::Draft, D>(deserializer)?).map(Self)
    }
}

/// Says which members there are, what they are read into and how. Under each number, the first name is the one that 0.3
/// has, and the others are taken for it.
macro_rules! members {
    ($draft:ty, $name:literal { $($number:literal $first:literal $($other:literal)* => $($place:ident).+ = $read:expr;)* }) => {
        impl Members for $draft {
            const NAME: &'static str = $name;
            const FIELDS: &'static [(u32, &'static str)] = &[$(($number, $first)),*];

            fn field(name: &str) -> Option<u32> {
                Some(match name { $($first $(| $other)* => $number,)* _ => return None })
            }

            fn read<'de, A: MapAccess<'de>>(&mut self, field: u32, map: &mut A) -> Result<(), A::Error> {
                match field { $($number => self.$($place).+ = $read(map)?,)* _ => {} }
                Ok(())
            }
        }
    };
}

/// The same, for a message whose members are where 1.0 has them.
macro_rules! message {
    ($message:ty, $name:literal { $($members:tt)* }) => {
        members! { Plain<$message>, $name { $($members)* } }

        impl Classic for $message {
            type Draft = Plain<Self>;

            fn finish<E: Error>(draft: Plain<Self>) -> Result<Self, E> {
                Ok(draft.it)
            }
        }
    };
}

use {members, message};

/// A message that its members are read into as they come.
#[derive(Clone, Debug, Default)]
pub struct Plain<T> {
    it: T,
}

// Leaves. Null is a member that is not set.

fn plain<'de, T: Deserialize<'de> + Default, A: MapAccess<'de>>(map: &mut A) -> Result<T, A::Error> {
    Ok(any(map)?.unwrap_or_default())
}

fn one<'de, T: Classic, A: MapAccess<'de>>(map: &mut A) -> Result<Option<T>, A::Error> {
    Ok(any::<Read<T>, A>(map)?.map(|it| it.0))
}

fn many<'de, T: Classic, A: MapAccess<'de>>(map: &mut A) -> Result<Vec<T>, A::Error> {
    Ok(plain::<Vec<Read<T>>, A>(map)?.into_iter().map(|it| it.0).collect())
}

fn integer<'de, A: MapAccess<'de>>(map: &mut A) -> Result<i32, A::Error> {
    Ok(number(map)?.unwrap_or_default())
}

fn word<'de, W: EnumNames, A: MapAccess<'de>>(map: &mut A) -> Result<i32, A::Error> {
    struct Spelled<W>(i32, PhantomData<W>);

    impl<'de, W: EnumNames> Deserialize<'de> for Spelled<W> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_str(Self(0, PhantomData))
        }
    }

    impl<W: EnumNames> Visitor<'_> for Spelled<W> {
        type Value = Self;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "one of {}", W::VALUES.join(", "))
        }

        fn visit_str<E: Error>(self, word: &str) -> Result<Self, E> {
            let number = W::liberal(word).ok_or_else(|| E::custom(not_one_of(quoted(word), W::VALUES)))?;
            Ok(Self(number, PhantomData))
        }
    }

    Ok(any::<Spelled<W>, A>(map)?.map_or(0, |it| it.0))
}

fn state<'de, A: MapAccess<'de>>(map: &mut A) -> Result<i32, A::Error> {
    word::<TaskState, A>(map)
}

fn role<'de, A: MapAccess<'de>>(map: &mut A) -> Result<i32, A::Error> {
    word::<Role, A>(map)
}

// Messages and what is in them.

/// The members of a message.
#[derive(Clone, Debug, Default)]
pub struct MessageDraft {
    it: Message,
    kind: Option<MessageKind>,
}

/// The one `kind` that a message may have (0.3, 6.4).
#[derive(Clone, Copy, Debug)]
struct MessageKind;

impl<'de> Deserialize<'de> for MessageKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let kind = String::deserialize(deserializer)?;
        if kind == "message" { Ok(Self) } else { Err(D::Error::custom("is not `message`")) }
    }
}

members! { MessageDraft, "Message" {
    1 "messageId" "message_id" => it.message_id = plain;
    2 "contextId" "context_id" => it.context_id = plain;
    3 "taskId" "task_id" => it.task_id = plain;
    4 "role" => it.role = role;
    5 "parts" => it.parts = many;
    6 "metadata" => it.metadata = any;
    7 "extensions" => it.extensions = plain;
    8 "referenceTaskIds" "reference_task_ids" => it.reference_task_ids = plain;
    9 "kind" => kind = any;
} }

impl Classic for Message {
    type Draft = MessageDraft;

    fn finish<E: Error>(MessageDraft { it, kind: Some(MessageKind) | None }: MessageDraft) -> Result<Self, E> {
        Ok(it)
    }
}

/// Reason for rejecting data. 0.3 has objects (6.5.3); arrays are accepted, since SDKs send them.
pub(in crate::v03) const SCALAR: &str =
    "data is a string, a number, a boolean or null; put it in an object or an array";

/// Why a file is refused (0.3, 6.6).
pub(in crate::v03) const BYTES_AND_URI: &str = "has both bytes and a uri; send one of them";

/// The members of a part of whichever kind.
#[derive(Clone, Debug, Default)]
pub struct PartDraft {
    kind: Option<PartKind>,
    before: Option<PartKind>,
    text: Option<String>,
    file: Option<File>,
    data: Option<Value>,
    metadata: Option<Struct>,
}

/// What a part says it is.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PartKind {
    Text,
    File,
    Data,
}

members! { PartDraft, "Part" {
    1 "kind" => kind = any;
    // So it was called before 0.2.
    2 "type" => before = any;
    3 "text" => text = any;
    4 "file" => file = one;
    5 "data" => data = value;
    6 "metadata" => metadata = any;
} }

impl Classic for Part {
    type Draft = PartDraft;

    fn finish<E: Error>(draft: PartDraft) -> Result<Self, E> {
        let PartDraft { kind, before, text, file, data, mut metadata } = draft;
        let null = data.as_ref().is_some_and(is_null);
        let told = match (&text, &file, &data) {
            (Some(_), None, None) => Some(PartKind::Text),
            (None, Some(_), None) => Some(PartKind::File),
            (Some(_), None, Some(_)) if null => Some(PartKind::Text),
            (None, Some(_), Some(_)) if null => Some(PartKind::File),
            (None, None, Some(_)) => Some(PartKind::Data),
            (None, None, None) => None,
            _ if kind.or(before).is_none() => return Err(E::custom("must have only one of text, file, data")),
            _ => None,
        };
        let content = match (kind.or(before).or(told), text, file, data) {
            (Some(PartKind::Text), Some(text), ..) => Content::Text(text),
            (Some(PartKind::File), _, Some(File(part)), _) => return Ok(Self { metadata, ..part }),
            (Some(PartKind::Data), .., Some(data)) if is_scalar(&data) => {
                return Err(E::custom(SCALAR));
            }
            (Some(PartKind::Data), .., Some(data)) => Content::Data(unwrapped(data, &mut metadata)),
            (Some(PartKind::Text), ..) => return Err(E::custom("has no `text`, which its kind is")),
            (Some(PartKind::File), ..) => return Err(E::custom("has no `file`, which its kind is")),
            (Some(PartKind::Data), ..) => return Err(E::custom("has no `data`, which its kind is")),
            (None, ..) => return Err(E::custom("must have one of text, file, data")),
        };
        Ok(Self { metadata, ..content.into() })
    }
}

fn is_null(value: &Value) -> bool {
    matches!(value.kind, None | Some(Kind::NullValue(_)))
}

fn is_scalar(value: &Value) -> bool {
    !matches!(value.kind, Some(Kind::StructValue(_) | Kind::ListValue(_)))
}

/// What marks data that is no object in 1.0, and stands in one here. All compatible implementations use this name.
pub(super) const MARK: &str = "data_part_compat";

/// The member that such data stands in.
pub(super) const VALUE: &str = "value";

/// Data without the object that was put around it, and its metadata without the mark of that.
fn unwrapped(data: Value, metadata: &mut Option<Struct>) -> Value {
    let marked = |it: &Struct| it.fields.get(MARK).is_some_and(|it| it.kind == Some(Kind::BoolValue(true)));
    let Some(fields) = metadata.as_mut().filter(|it| marked(it)).map(|it| &mut it.fields) else { return data };
    match data.kind {
        Some(Kind::StructValue(mut it)) if it.fields.len() == 1 && it.fields.contains_key(VALUE) => {
            fields.remove(MARK);
            if fields.is_empty() {
                *metadata = None;
            }
            it.fields.remove(VALUE).unwrap_or_default()
        }
        kind => Value { kind },
    }
}

/// A file, as the part of 1.0 that it is.
#[derive(Clone, Debug)]
struct File(Part);

/// The members of a file.
#[derive(Clone, Debug, Default)]
struct FileDraft {
    name: String,
    media_type: String,
    bytes: Option<Vec<u8>>,
    data: Option<Vec<u8>>,
    uri: Option<String>,
}

members! { FileDraft, "File" {
    1 "name" => name = plain;
    2 "mimeType" "mime_type" => media_type = plain;
    3 "bytes" => bytes = bytes;
    // The examples of 0.2 have it so, and not its schema.
    4 "data" => data = bytes;
    5 "uri" => uri = any;
} }

impl Classic for File {
    type Draft = FileDraft;

    /// Some give both, one of them empty, which is as good as none.
    fn finish<E: Error>(draft: FileDraft) -> Result<Self, E> {
        let FileDraft { name: filename, media_type, bytes, data, uri } = draft;
        let content = match (bytes.or(data), uri) {
            (Some(raw), Some(url)) if raw.is_empty() && !url.is_empty() => Content::Url(url),
            (Some(raw), Some(url)) if !raw.is_empty() && !url.is_empty() => return Err(E::custom(BYTES_AND_URI)),
            (Some(raw), _) => Content::Raw(raw),
            (None, Some(url)) => Content::Url(url),
            (None, None) => return Err(E::custom("must have one of bytes, uri")),
        };
        Ok(Self(Part { filename, media_type, ..content.into() }))
    }
}

message! { Artifact, "Artifact" {
    1 "artifactId" "artifact_id" => it.artifact_id = plain;
    2 "name" => it.name = plain;
    3 "description" => it.description = plain;
    4 "parts" => it.parts = many;
    5 "metadata" => it.metadata = any;
    6 "extensions" => it.extensions = plain;
} }

message! { TaskStatus, "TaskStatus" {
    1 "state" => it.state = state;
    2 "message" => it.message = one;
    3 "timestamp" => it.timestamp = any;
} }

message! { Task, "Task" {
    1 "id" => it.id = plain;
    2 "contextId" "context_id" => it.context_id = plain;
    3 "status" => it.status = one;
    4 "artifacts" => it.artifacts = many;
    5 "history" => it.history = many;
    6 "metadata" => it.metadata = any;
} }

/// The members of whatever is a result or an event, of which none is of two types.
#[derive(Clone, Debug, Default)]
pub struct ResultDraft {
    kind: Option<ResultKind>,
    task: Task,
    message: Message,
    artifact: Option<Artifact>,
    append: bool,
    last_chunk: bool,
}

/// What a result or an event says it is.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ResultKind {
    Task,
    Message,
    StatusUpdate,
    ArtifactUpdate,
}

members! { ResultDraft, "Task, Message or event" {
    1 "kind" => kind = any;
    2 "id" => task.id = plain;
    3 "contextId" "context_id" => task.context_id = plain;
    4 "status" => task.status = one;
    5 "artifacts" => task.artifacts = many;
    6 "history" => task.history = many;
    7 "metadata" => task.metadata = any;
    8 "messageId" "message_id" => message.message_id = plain;
    9 "taskId" "task_id" => message.task_id = plain;
    10 "role" => message.role = role;
    11 "parts" => message.parts = many;
    12 "extensions" => message.extensions = plain;
    13 "referenceTaskIds" "reference_task_ids" => message.reference_task_ids = plain;
    14 "artifact" => artifact = one;
    15 "append" => append = plain;
    16 "lastChunk" "last_chunk" => last_chunk = plain;
} }

impl Classic for StreamResponse {
    type Draft = ResultDraft;

    fn finish<E: Error>(draft: ResultDraft) -> Result<Self, E> {
        let ResultDraft { kind, task, message, artifact, append, last_chunk } = draft;
        let told = || match () {
            () if artifact.is_some() => ResultKind::ArtifactUpdate,
            () if !message.parts.is_empty() || !message.message_id.is_empty() => ResultKind::Message,
            () if !message.task_id.is_empty() => ResultKind::StatusUpdate,
            () => ResultKind::Task,
        };
        let kind = kind.unwrap_or_else(told);
        let (task_id, context_id, metadata) = (message.task_id, task.context_id, task.metadata);
        let payload = match kind {
            ResultKind::Task => Payload::Task(Task { context_id, metadata, ..task }),
            ResultKind::Message => Payload::Message(Message { task_id, context_id, metadata, ..message }),
            ResultKind::StatusUpdate => {
                Payload::StatusUpdate(TaskStatusUpdateEvent { task_id, context_id, status: task.status, metadata })
            }
            ResultKind::ArtifactUpdate => Payload::ArtifactUpdate(TaskArtifactUpdateEvent {
                task_id,
                context_id,
                artifact,
                append,
                last_chunk,
                metadata,
            }),
        };
        Ok(Self { payload: Some(payload) })
    }
}

impl Classic for SendMessageResponse {
    type Draft = ResultDraft;

    fn finish<E: Error>(draft: ResultDraft) -> Result<Self, E> {
        let payload = match StreamResponse::finish::<E>(draft)?.payload {
            Some(Payload::Task(it)) => Some(Answer::Task(it)),
            Some(Payload::Message(it)) => Some(Answer::Message(it)),
            Some(Payload::StatusUpdate(_) | Payload::ArtifactUpdate(_)) => {
                return Err(E::custom("an event in answer to a call"));
            }
            None => None,
        };
        Ok(Self { payload })
    }
}
