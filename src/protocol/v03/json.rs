//! JSON of 0.3 and 0.2 over JSON-RPC, read into 1.0 messages and written from them without an intermediate form.
//!
//! Objects carry a `kind`, states are in kebab case (`input-required`), and roles are `user` and `agent`. The other bindings
//! of 0.3 have ProtoJSON or protobuf instead. `build/v03.rs` generates the code for messages whose members are the fields of
//! the 1.0 message.
//!
//! Writing follows the schema of 0.3. Reading also accepts older forms and common mistakes: `type` instead of `kind`, or
//! neither; `data` instead of `bytes`; `cancelled`; data that is an array; snake case names; times without a zone; unknown
//! members. A member that 0.3 requires may be missing unless 1.0 needs it.
//!
//! Some 1.0 values have no representation in this format and do not survive a round trip:
//!
//! | 1.0 | Written | Read back |
//! | --- | --- | --- |
//! | `filename`, `mediaType` of text or data | omitted | unset |
//! | data that is not an object | `{"value": …}`, and `data_part_compat: true` in the metadata | unchanged |
//! | such data with empty metadata | as above | metadata is unset |
//! | data `{"value": …}` whose metadata already has the mark | unchanged | unwrapped, and the mark removed |
//! | part without content | empty text | empty text |
//! | role that is unset or unknown | `agent` | `agent` |
//! | state that is unknown | `unknown` | unset |
//! | task without a status, status update without a status, artifact update without an artifact | an empty status or artifact | an empty status or artifact |
//! | time with a precision below milliseconds | milliseconds | milliseconds |
//! | `tenant` | omitted | unset |
//! | authentication without a scheme | empty list of schemes | unset |
//!
//! In the other direction, `final` is not stored: it is derived from the event. The `headers` of a push configuration and its
//! `schemes` after the first are read into separate [push extras](super::push_extras).

use std::marker::PhantomData;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeSeed, Error, MapAccess},
    ser::SerializeMap,
};

pub(crate) use self::part::{BYTES_AND_URI, SCALAR};
pub use self::{
    params::{Webhook, WithExtras},
    part::PartDraft,
};
use crate::protocol::{
    json::{self, Members, any, not_one_of, quoted},
    pb::v1::{
        Artifact, Message, Role, SendMessageResponse, StreamResponse, Task, TaskArtifactUpdateEvent, TaskState,
        TaskStatus, TaskStatusUpdateEvent, send_message_response::Payload as Answer, stream_response::Payload,
    },
};

mod params;
mod part;

crate::protocol::messages::generated! {
    /// Messages whose members are the fields of the 1.0 message.
    pub mod fields {
        use super::*;

        include!(concat!(env!("OUT_DIR"), "/v03/json.rs"));
    }
}

/// 1.0 type that can be read from 0.3 JSON.
pub trait V03Json: Sized {
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

impl<'de, T: V03Json> Deserialize<'de> for Read<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::finish(json::read::<T::Draft, D>(deserializer)?).map(Self)
    }
}

/// Draft that is the message itself.
#[derive(Clone, Debug, Default)]
pub struct DirectDraft<T> {
    message: T,
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

use members;

// Readers of member values. Null is an unset member.

fn or_default<'de, T: Deserialize<'de> + Default, A: MapAccess<'de>>(map: &mut A) -> Result<T, A::Error> {
    Ok(any(map)?.unwrap_or_default())
}

fn nested<'de, T: V03Json, A: MapAccess<'de>>(map: &mut A) -> Result<Option<T>, A::Error> {
    Ok(any::<Read<T>, A>(map)?.map(|it| it.0))
}

fn nested_list<'de, T: V03Json, A: MapAccess<'de>>(map: &mut A) -> Result<Vec<T>, A::Error> {
    Ok(or_default::<Vec<Read<T>>, A>(map)?.into_iter().map(|it| it.0).collect())
}

fn enum_value<'de, W: EnumNames, A: MapAccess<'de>>(map: &mut A) -> Result<i32, A::Error> {
    struct Number<W>(i32, PhantomData<W>);

    impl<'de, W: EnumNames> Deserialize<'de> for Number<W> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let number = |name: &str| {
                let value = W::from_any_name(name).ok_or_else(|| not_one_of(quoted(name), &W::v03_names()))?;
                Ok::<_, String>(Self(value.into(), PhantomData))
            };
            json::from_text(deserializer, |f| write!(f, "one of {}", W::v03_names().join(", ")), number)
        }
    }

    Ok(any::<Number<W>, A>(map)?.map_or(0, |it| it.0))
}

/// Reads an enum value that only agents send: an unknown one is unspecified, with a warning once.
fn lenient_enum_value<'de, W: EnumNames, A: MapAccess<'de>>(map: &mut A) -> Result<i32, A::Error> {
    Ok(json::lenient_enum(map, |name| W::from_any_name(name).map(Into::into))?.unwrap_or_default())
}

/// `kind` of an object, which must have this value or be unset (0.3, 6.4).
struct Kind(&'static str);

impl<'de> DeserializeSeed<'de> for Kind {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        match Option::<String>::deserialize(deserializer)? {
            Some(kind) if kind != self.0 => Err(D::Error::custom(format_args!("must be `{}`", self.0))),
            Some(_) | None => Ok(()),
        }
    }
}

// Names of enum values.

/// Enum of 1.0 whose values have other names in 0.3 JSON.
pub(crate) trait EnumNames: Copy + Into<i32> + 'static {
    /// Values and their names. The last one is written for unknown numbers too, so that a stored value never fails a
    /// response.
    const NAMES: &'static [(Self, &'static str)];

    /// Prefix of the 1.0 names, converted to kebab case.
    const PREFIX: &'static str;

    /// Returns all names, for error messages.
    fn v03_names() -> Vec<&'static str> {
        Self::NAMES.iter().map(|(_, name)| *name).collect()
    }

    /// Returns the name of a number.
    fn v03_name(number: i32) -> &'static str {
        let known = Self::NAMES.iter().find(|(value, _)| (*value).into() == number);
        known.or(Self::NAMES.last()).map_or("", |(_, name)| name)
    }

    /// Returns the value with a name in any spelling: `input_required`, `WORKING`, `TASK_STATE_FAILED`.
    fn from_any_name(name: &str) -> Option<Self> {
        let named = |name: &str| Self::NAMES.iter().find(|row| row.1 == name).map(|(value, _)| *value);
        named(name).or_else(|| {
            let kebab_case = name.to_ascii_lowercase().replace('_', "-");
            match kebab_case.strip_prefix(Self::PREFIX).unwrap_or(&kebab_case) {
                // The specification has one `l`; some clients send two.
                "cancelled" => named("canceled"),
                "unspecified" => named("unknown"),
                name => named(name),
            }
        })
    }
}

impl EnumNames for TaskState {
    const NAMES: &'static [(Self, &'static str)] = &[
        (Self::Submitted, "submitted"),
        (Self::Working, "working"),
        (Self::InputRequired, "input-required"),
        (Self::Completed, "completed"),
        (Self::Canceled, "canceled"),
        (Self::Failed, "failed"),
        (Self::Rejected, "rejected"),
        (Self::AuthRequired, "auth-required"),
        (Self::Unspecified, "unknown"),
    ];
    const PREFIX: &'static str = "task-state-";
}

impl EnumNames for Role {
    const NAMES: &'static [(Self, &'static str)] = &[(Self::User, "user"), (Self::Agent, "agent")];
    const PREFIX: &'static str = "role-";
}

// Writers.

/// Wrapper that serializes a 1.0 message as 0.3 JSON.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a, T>(pub &'a T);

/// Array of messages that are each serialized with [`Write`].
struct Array<'a, T>(&'a [T]);

impl<'a, T> Serialize for Array<'a, T>
where
    Write<'a, T>: Serialize,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(Write))
    }
}

fn text<M: SerializeMap>(map: &mut M, name: &'static str, value: &str) -> Result<(), M::Error> {
    if value.is_empty() { Ok(()) } else { map.serialize_entry(name, value) }
}

fn optional<M: SerializeMap, T: Serialize>(map: &mut M, name: &'static str, value: Option<T>) -> Result<(), M::Error> {
    value.map_or(Ok(()), |value| map.serialize_entry(name, &value))
}

// Results and events.

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
    10 "role" => message.role = enum_value::<Role, _>;
    11 "parts" => message.parts = nested_list;
    12 "extensions" => message.extensions = or_default;
    13 "referenceTaskIds" "reference_task_ids" => message.reference_task_ids = or_default;
    14 "artifact" => artifact = nested;
    15 "append" => append = or_default;
    16 "lastChunk" "last_chunk" => last_chunk = or_default;
} }

impl V03Json for StreamResponse {
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

impl V03Json for SendMessageResponse {
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

/// Event of a stream with the `final` member of 0.3.
#[derive(Clone, Copy, Debug)]
pub struct FinalEvent<'a> {
    /// Payload of the event.
    pub payload: &'a Payload,
    /// True for the last event of the stream.
    pub last: bool,
}

/// Encodes an event for a push notification. `last` as in [`FinalEvent`].
#[cfg(feature = "push")]
pub(crate) fn push_payload(payload: &Payload, last: bool) -> Result<bytes::Bytes, crate::protocol::error::Error> {
    crate::protocol::rpc::encode_line(0, &FinalEvent { payload, last })
}

impl Serialize for FinalEvent<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.payload {
            Payload::Task(task) => Write(task).serialize(serializer),
            Payload::Message(message) => Write(message).serialize(serializer),
            Payload::ArtifactUpdate(update) => Write(update).serialize(serializer),
            Payload::StatusUpdate(update) => {
                let TaskStatusUpdateEvent { task_id, context_id, status, metadata } = update;
                let mut map = serializer.serialize_map(None)?;
                map.serialize_entry("kind", "status-update")?;
                map.serialize_entry("taskId", task_id)?;
                map.serialize_entry("contextId", context_id)?;
                map.serialize_entry("status", &Write(status.as_ref().unwrap_or(&TaskStatus::default())))?;
                map.serialize_entry("final", &self.last)?;
                optional(&mut map, "metadata", metadata.as_ref())?;
                map.end()
            }
        }
    }
}

impl Serialize for Write<'_, SendMessageResponse> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0.payload {
            Some(Answer::Task(task)) => Write(task).serialize(serializer),
            Some(Answer::Message(message)) => Write(message).serialize(serializer),
            None => serializer.serialize_unit(),
        }
    }
}
