//! Deserialization of 0.3 JSON-RPC JSON into 1.0 messages.

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
    v03::message::unwrap_data,
};

mod params;

/// 1.0 type that can be read from 0.3 JSON.
pub trait Classic: Sized {
    /// Members read so far. They may be in any order, so the type is built after all are read.
    type Draft: Members;

    /// Builds the type from its members.
    ///
    /// # Errors
    /// If members are missing or contradict each other.
    fn finish<E: Error>(draft: Self::Draft) -> Result<Self, E>;
}

/// Wrapper that deserializes a 1.0 type from 0.3 JSON.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Read<T>(pub T);

impl<'de, T: Classic> Deserialize<'de> for Read<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::finish(json::read::<T::Draft, D>(deserializer)?).map(Self)
    }
}

/// Implements [`Members`] for a draft: the number of each member, its names, the field that it is read into and the function
/// that reads it. The first name is that of 0.3; the others are accepted too.
macro_rules! members {
    ($draft:ty, $name:literal { $($number:literal $first:literal $($other:literal)* => $($field:ident).+ = $read:expr;)* }) => {
        impl Members for $draft {
            const NAME: &'static str = $name;
            const FIELDS: &'static [(u32, &'static str)] = &[$(($number, $first)),*];

            fn field(name: &str) -> Option<u32> {
                Some(match name { $($first $(| $other)* => $number,)* _ => return None })
            }

            fn read<'de, A: MapAccess<'de>>(&mut self, field: u32, map: &mut A) -> Result<(), A::Error> {
                match field { $($number => self.$($field).+ = $read(map)?,)* _ => {} }
                Ok(())
            }
        }
    };
}

/// Implements [`Classic`] for a message whose members are read directly into the fields of the 1.0 message.
macro_rules! message {
    ($message:ty, $name:literal { $($members:tt)* }) => {
        members! { DirectDraft<$message>, $name { $($members)* } }

        impl Classic for $message {
            type Draft = DirectDraft<Self>;

            fn finish<E: Error>(draft: DirectDraft<Self>) -> Result<Self, E> {
                Ok(draft.message)
            }
        }
    };
}

use {members, message};

/// Draft that is the message itself.
#[derive(Clone, Debug, Default)]
pub struct DirectDraft<T> {
    message: T,
}

// Readers of member values. Null is an unset member.

fn or_default<'de, T: Deserialize<'de> + Default, A: MapAccess<'de>>(map: &mut A) -> Result<T, A::Error> {
    Ok(any(map)?.unwrap_or_default())
}

fn nested<'de, T: Classic, A: MapAccess<'de>>(map: &mut A) -> Result<Option<T>, A::Error> {
    Ok(any::<Read<T>, A>(map)?.map(|it| it.0))
}

fn nested_list<'de, T: Classic, A: MapAccess<'de>>(map: &mut A) -> Result<Vec<T>, A::Error> {
    Ok(or_default::<Vec<Read<T>>, A>(map)?.into_iter().map(|it| it.0).collect())
}

fn integer<'de, A: MapAccess<'de>>(map: &mut A) -> Result<i32, A::Error> {
    Ok(number(map)?.unwrap_or_default())
}

fn enum_value<'de, W: EnumNames, A: MapAccess<'de>>(map: &mut A) -> Result<i32, A::Error> {
    struct Number<W>(i32, PhantomData<W>);

    impl<'de, W: EnumNames> Deserialize<'de> for Number<W> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_str(Self(0, PhantomData))
        }
    }

    impl<W: EnumNames> Visitor<'_> for Number<W> {
        type Value = Self;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "one of {}", W::VALUES.join(", "))
        }

        fn visit_str<E: Error>(self, name: &str) -> Result<Self, E> {
            let number = W::liberal(name).ok_or_else(|| E::custom(not_one_of(quoted(name), W::VALUES)))?;
            Ok(Self(number, PhantomData))
        }
    }

    Ok(any::<Number<W>, A>(map)?.map_or(0, |it| it.0))
}

fn state<'de, A: MapAccess<'de>>(map: &mut A) -> Result<i32, A::Error> {
    enum_value::<TaskState, A>(map)
}

fn role<'de, A: MapAccess<'de>>(map: &mut A) -> Result<i32, A::Error> {
    enum_value::<Role, A>(map)
}

// Messages, parts, tasks and events.

/// Members of a message.
#[derive(Clone, Debug, Default)]
pub struct MessageDraft {
    message: Message,
    kind: Option<MessageKind>,
}

/// `kind` of a message, which must be `message` (0.3, 6.4).
#[derive(Clone, Copy, Debug)]
struct MessageKind;

impl<'de> Deserialize<'de> for MessageKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let kind = String::deserialize(deserializer)?;
        if kind == "message" { Ok(Self) } else { Err(D::Error::custom("must be `message`")) }
    }
}

members! { MessageDraft, "Message" {
    1 "messageId" "message_id" => message.message_id = or_default;
    2 "contextId" "context_id" => message.context_id = or_default;
    3 "taskId" "task_id" => message.task_id = or_default;
    4 "role" => message.role = role;
    5 "parts" => message.parts = nested_list;
    6 "metadata" => message.metadata = any;
    7 "extensions" => message.extensions = or_default;
    8 "referenceTaskIds" "reference_task_ids" => message.reference_task_ids = or_default;
    9 "kind" => kind = any;
} }

impl Classic for Message {
    type Draft = MessageDraft;

    fn finish<E: Error>(MessageDraft { message, kind: Some(MessageKind) | None }: MessageDraft) -> Result<Self, E> {
        Ok(message)
    }
}

/// Reason for rejecting data. 0.3 allows objects only (6.5.3); arrays are accepted, since SDKs send them.
pub(in crate::v03) const SCALAR: &str =
    "data is a string, a number, a boolean or null; put it in an object or an array";

/// Reason for rejecting a file (0.3, 6.6).
pub(in crate::v03) const BYTES_AND_URI: &str = "has both bytes and a uri; send one of them";

/// Members of a part of any kind.
#[derive(Clone, Debug, Default)]
pub struct PartDraft {
    kind: Option<PartKind>,
    old_kind: Option<PartKind>,
    text: Option<String>,
    file: Option<File>,
    data: Option<Value>,
    metadata: Option<Struct>,
}

/// `kind` of a part.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PartKind {
    Text,
    File,
    Data,
}

members! { PartDraft, "Part" {
    1 "kind" => kind = any;
    // The name of `kind` before 0.2.
    2 "type" => old_kind = any;
    3 "text" => text = any;
    4 "file" => file = nested;
    5 "data" => data = value;
    6 "metadata" => metadata = any;
} }

impl Classic for Part {
    type Draft = PartDraft;

    fn finish<E: Error>(draft: PartDraft) -> Result<Self, E> {
        let PartDraft { kind, old_kind, text, file, data, mut metadata } = draft;
        let declared_kind = kind.or(old_kind);
        let data_is_null = data.as_ref().is_some_and(is_null);
        let inferred_kind = match (&text, &file, &data) {
            (Some(_), None, None) => Some(PartKind::Text),
            (None, Some(_), None) => Some(PartKind::File),
            (Some(_), None, Some(_)) if data_is_null => Some(PartKind::Text),
            (None, Some(_), Some(_)) if data_is_null => Some(PartKind::File),
            (None, None, Some(_)) => Some(PartKind::Data),
            (None, None, None) => None,
            _ if declared_kind.is_none() => return Err(E::custom("must have only one of text, file, data")),
            _ => None,
        };
        let content = match (declared_kind.or(inferred_kind), text, file, data) {
            (Some(PartKind::Text), Some(text), ..) => Content::Text(text),
            (Some(PartKind::File), _, Some(File(part)), _) => return Ok(Self { metadata, ..part }),
            (Some(PartKind::Data), .., Some(data)) if is_scalar(&data) => {
                return Err(E::custom(SCALAR));
            }
            (Some(PartKind::Data), .., Some(data)) => Content::Data(unwrap_data(data, &mut metadata)),
            (Some(PartKind::Text), ..) => return Err(E::custom("must have `text`, since its kind is `text`")),
            (Some(PartKind::File), ..) => return Err(E::custom("must have `file`, since its kind is `file`")),
            (Some(PartKind::Data), ..) => return Err(E::custom("must have `data`, since its kind is `data`")),
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

/// 1.0 part that is read from a `file` member.
#[derive(Clone, Debug)]
struct File(Part);

/// Members of a file.
#[derive(Clone, Debug, Default)]
struct FileDraft {
    name: String,
    media_type: String,
    bytes: Option<Vec<u8>>,
    data: Option<Vec<u8>>,
    uri: Option<String>,
}

members! { FileDraft, "File" {
    1 "name" => name = or_default;
    2 "mimeType" "mime_type" => media_type = or_default;
    3 "bytes" => bytes = bytes;
    // The name in the examples of 0.2, though not in its schema.
    4 "data" => data = bytes;
    5 "uri" => uri = any;
} }

impl Classic for File {
    type Draft = FileDraft;

    /// Accepts both `bytes` and `uri` if one of them is empty, as some clients send them.
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
    1 "artifactId" "artifact_id" => message.artifact_id = or_default;
    2 "name" => message.name = or_default;
    3 "description" => message.description = or_default;
    4 "parts" => message.parts = nested_list;
    5 "metadata" => message.metadata = any;
    6 "extensions" => message.extensions = or_default;
} }

message! { TaskStatus, "TaskStatus" {
    1 "state" => message.state = state;
    2 "message" => message.message = nested;
    3 "timestamp" => message.timestamp = any;
} }

message! { Task, "Task" {
    1 "id" => message.id = or_default;
    2 "contextId" "context_id" => message.context_id = or_default;
    3 "status" => message.status = nested;
    4 "artifacts" => message.artifacts = nested_list;
    5 "history" => message.history = nested_list;
    6 "metadata" => message.metadata = any;
} }

/// Members of a task, a message, a status update or an artifact update. A member that several of them have has the same type in
/// each.
#[derive(Clone, Debug, Default)]
pub struct ResultDraft {
    kind: Option<ResultKind>,
    task: Task,
    message: Message,
    artifact: Option<Artifact>,
    append: bool,
    last_chunk: bool,
}

/// `kind` of a result or an event.
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
    2 "id" => task.id = or_default;
    3 "contextId" "context_id" => task.context_id = or_default;
    4 "status" => task.status = nested;
    5 "artifacts" => task.artifacts = nested_list;
    6 "history" => task.history = nested_list;
    7 "metadata" => task.metadata = any;
    8 "messageId" "message_id" => message.message_id = or_default;
    9 "taskId" "task_id" => message.task_id = or_default;
    10 "role" => message.role = role;
    11 "parts" => message.parts = nested_list;
    12 "extensions" => message.extensions = or_default;
    13 "referenceTaskIds" "reference_task_ids" => message.reference_task_ids = or_default;
    14 "artifact" => artifact = nested;
    15 "append" => append = or_default;
    16 "lastChunk" "last_chunk" => last_chunk = or_default;
} }

impl Classic for StreamResponse {
    type Draft = ResultDraft;

    fn finish<E: Error>(draft: ResultDraft) -> Result<Self, E> {
        let ResultDraft { kind, task, message, artifact, append, last_chunk } = draft;
        let inferred_kind = || match () {
            () if artifact.is_some() => ResultKind::ArtifactUpdate,
            () if !message.parts.is_empty() || !message.message_id.is_empty() => ResultKind::Message,
            () if !message.task_id.is_empty() => ResultKind::StatusUpdate,
            () => ResultKind::Task,
        };
        let kind = kind.unwrap_or_else(inferred_kind);
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
            Some(Payload::Task(task)) => Some(Answer::Task(task)),
            Some(Payload::Message(message)) => Some(Answer::Message(message)),
            Some(Payload::StatusUpdate(_) | Payload::ArtifactUpdate(_)) => {
                return Err(E::custom("expected a task or a message, found an event"));
            }
            None => None,
        };
        Ok(Self { payload })
    }
}
