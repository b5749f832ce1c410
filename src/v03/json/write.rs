//! Classic JSON, written from the messages of 1.0, which are only borrowed.

use serde::{Serialize, Serializer, ser::SerializeMap};

use super::{
    enum_names::EnumNames as _,
    read::{MARK, VALUE},
};
use crate::{
    json::Base64,
    pb::{
        v1::{
            Artifact, AuthenticationInfo, CancelTaskRequest, DeleteTaskPushNotificationConfigRequest,
            GetTaskPushNotificationConfigRequest, GetTaskRequest, ListTaskPushNotificationConfigsRequest,
            ListTaskPushNotificationConfigsResponse, ListTasksRequest, ListTasksResponse, Message, Part, Role,
            SendMessageConfiguration, SendMessageRequest, SendMessageResponse, SubscribeToTaskRequest, Task,
            TaskArtifactUpdateEvent, TaskPushNotificationConfig, TaskState, TaskStatus, TaskStatusUpdateEvent,
            part::Content, send_message_response::Payload as Answer, stream_response::Payload,
        },
        wkt::{Struct, Value, value::Kind},
    },
    v03::push_extras::PushExtras,
};

/// A message of 1.0, to be written as classic JSON.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a, T>(pub &'a T);

/// What is on a stream, and whether anything comes after it: in 0.3 an event says so itself.
#[derive(Clone, Copy, Debug)]
pub struct FinalEvent<'a> {
    /// The event.
    pub payload: &'a Payload,
    /// It is the last.
    pub last: bool,
}

/// Writes an object. Members that are not required are left out where they are not set.
macro_rules! object {
    ($message:ty, |$it:ident, $map:ident| $members:block) => {
        impl Serialize for Write<'_, $message> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let ($it, mut members) = (self.0, serializer.serialize_map(None)?);
                let $map = &mut members;
                $members
                members.end()
            }
        }
    };
}

/// A list of what is written each by itself.
struct Each<'a, T>(&'a [T]);

impl<'a, T> Serialize for Each<'a, T>
where
    Write<'a, T>: Serialize,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(Write))
    }
}

fn text<M: SerializeMap>(map: &mut M, name: &'static str, it: &str) -> Result<(), M::Error> {
    if it.is_empty() { Ok(()) } else { map.serialize_entry(name, it) }
}

fn list<M: SerializeMap, T: Serialize>(map: &mut M, name: &'static str, it: &[T]) -> Result<(), M::Error> {
    if it.is_empty() { Ok(()) } else { map.serialize_entry(name, it) }
}

fn each<'a, M: SerializeMap, T>(map: &mut M, name: &'static str, it: &'a [T]) -> Result<(), M::Error>
where
    Write<'a, T>: Serialize,
{
    if it.is_empty() { Ok(()) } else { map.serialize_entry(name, &Each(it)) }
}

fn optional<M: SerializeMap, T: Serialize>(map: &mut M, name: &'static str, it: Option<T>) -> Result<(), M::Error> {
    it.map_or(Ok(()), |it| map.serialize_entry(name, &it))
}

object! { Message, |it, map| {
    map.serialize_entry("kind", "message")?;
    map.serialize_entry("messageId", &it.message_id)?;
    text(map, "contextId", &it.context_id)?;
    text(map, "taskId", &it.task_id)?;
    map.serialize_entry("role", Role::word(it.role))?;
    map.serialize_entry("parts", &Each(&it.parts))?;
    list(map, "referenceTaskIds", &it.reference_task_ids)?;
    list(map, "extensions", &it.extensions)?;
    optional(map, "metadata", it.metadata.as_ref())?;
} }

object! { Part, |it, map| {
    let metadata = it.metadata.as_ref();
    match &it.content {
        None => {
            map.serialize_entry("kind", "text")?;
            map.serialize_entry("text", "")?;
        }
        Some(Content::Text(text)) => {
            map.serialize_entry("kind", "text")?;
            map.serialize_entry("text", text)?;
        }
        Some(Content::Raw(_) | Content::Url(_)) => {
            map.serialize_entry("kind", "file")?;
            map.serialize_entry("file", &File(it))?;
        }
        Some(Content::Data(data)) => {
            map.serialize_entry("kind", "data")?;
            if is_object(data) {
                map.serialize_entry("data", data)?;
            } else {
                map.serialize_entry("data", &Wrapped(data))?;
            }
        }
    }
    match &it.content {
        Some(Content::Data(data)) if !is_object(data) => map.serialize_entry("metadata", &Marked(metadata))?,
        Some(_) | None => optional(map, "metadata", metadata)?,
    }
} }

/// All that data may be in 0.3.
fn is_object(data: &Value) -> bool {
    matches!(data.kind, Some(Kind::StructValue(_)))
}

/// A part, as a file.
struct File<'a>(&'a Part);

impl Serialize for File<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (it, mut map) = (self.0, serializer.serialize_map(None)?);
        text(&mut map, "name", &it.filename)?;
        text(&mut map, "mimeType", &it.media_type)?;
        match &it.content {
            Some(Content::Raw(raw)) => map.serialize_entry("bytes", &Base64(raw))?,
            Some(Content::Url(url)) => map.serialize_entry("uri", url)?,
            Some(Content::Text(_) | Content::Data(_)) | None => {}
        }
        map.end()
    }
}

/// Data that is no object, in one.
struct Wrapped<'a>(&'a Value);

impl Serialize for Wrapped<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map([(VALUE, self.0)])
    }
}

/// The metadata of such data.
struct Marked<'a>(Option<&'a Struct>);

impl Serialize for Marked<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in self.0.into_iter().flat_map(|it| &it.fields).filter(|it| it.0 != MARK) {
            map.serialize_entry(name, value)?;
        }
        map.serialize_entry(MARK, &true)?;
        map.end()
    }
}

object! { Artifact, |it, map| {
    map.serialize_entry("artifactId", &it.artifact_id)?;
    text(map, "name", &it.name)?;
    text(map, "description", &it.description)?;
    map.serialize_entry("parts", &Each(&it.parts))?;
    list(map, "extensions", &it.extensions)?;
    optional(map, "metadata", it.metadata.as_ref())?;
} }

object! { TaskStatus, |it, map| {
    map.serialize_entry("state", TaskState::word(it.state))?;
    optional(map, "message", it.message.as_ref().map(Write))?;
    optional(map, "timestamp", it.timestamp.as_ref())?;
} }

/// A status, which 0.3 requires where 1.0 has room for none.
fn status<M: SerializeMap>(map: &mut M, it: Option<&TaskStatus>) -> Result<(), M::Error> {
    map.serialize_entry("status", &Write(it.unwrap_or(&TaskStatus { state: 0, message: None, timestamp: None })))
}

object! { Task, |it, map| {
    map.serialize_entry("kind", "task")?;
    map.serialize_entry("id", &it.id)?;
    map.serialize_entry("contextId", &it.context_id)?;
    status(map, it.status.as_ref())?;
    each(map, "artifacts", &it.artifacts)?;
    each(map, "history", &it.history)?;
    optional(map, "metadata", it.metadata.as_ref())?;
} }

object! { TaskArtifactUpdateEvent, |it, map| {
    map.serialize_entry("kind", "artifact-update")?;
    map.serialize_entry("taskId", &it.task_id)?;
    map.serialize_entry("contextId", &it.context_id)?;
    match &it.artifact {
        Some(it) => map.serialize_entry("artifact", &Write(it))?,
        None => map.serialize_entry("artifact", &Write(&Artifact::default()))?,
    }
    map.serialize_entry("append", &it.append)?;
    map.serialize_entry("lastChunk", &it.last_chunk)?;
    optional(map, "metadata", it.metadata.as_ref())?;
} }

impl Serialize for FinalEvent<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.payload {
            Payload::Task(it) => Write(it).serialize(serializer),
            Payload::Message(it) => Write(it).serialize(serializer),
            Payload::ArtifactUpdate(it) => Write(it).serialize(serializer),
            Payload::StatusUpdate(it) => {
                let TaskStatusUpdateEvent { task_id, context_id, status: of_task, metadata } = it;
                let mut map = serializer.serialize_map(None)?;
                map.serialize_entry("kind", "status-update")?;
                map.serialize_entry("taskId", task_id)?;
                map.serialize_entry("contextId", context_id)?;
                status(&mut map, of_task.as_ref())?;
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
            Some(Answer::Task(it)) => Write(it).serialize(serializer),
            Some(Answer::Message(it)) => Write(it).serialize(serializer),
            None => serializer.serialize_unit(),
        }
    }
}

object! { SendMessageRequest, |it, map| {
    optional(map, "message", it.message.as_ref().map(Write))?;
    optional(map, "configuration", it.configuration.as_ref().map(Write))?;
    optional(map, "metadata", it.metadata.as_ref())?;
} }

object! { SendMessageConfiguration, |it, map| {
    let nothing = PushExtras::default();
    list(map, "acceptedOutputModes", &it.accepted_output_modes)?;
    optional(map, "historyLength", it.history_length)?;
    optional(map, "pushNotificationConfig", it.task_push_notification_config.as_ref().map(|it| Push(Webhook { config: it, kept: &nothing })))?;
    // Always said, as what is meant without it depends on whom one asks.
    map.serialize_entry("blocking", &!it.return_immediately)?;
} }

object! { GetTaskRequest, |it, map| {
    map.serialize_entry("id", &it.id)?;
    optional(map, "historyLength", it.history_length)?;
} }

object! { CancelTaskRequest, |it, map| {
    map.serialize_entry("id", &it.id)?;
    optional(map, "metadata", it.metadata.as_ref())?;
} }

object! { SubscribeToTaskRequest, |it, map| {
    map.serialize_entry("id", &it.id)?;
} }

object! { ListTasksRequest, |it, map| {
    text(map, "contextId", &it.context_id)?;
    optional(map, "status", (it.status != 0).then(|| TaskState::word(it.status)))?;
    optional(map, "pageSize", it.page_size)?;
    text(map, "pageToken", &it.page_token)?;
    optional(map, "historyLength", it.history_length)?;
    optional(map, "lastUpdatedAfter", it.status_timestamp_after.as_ref())?;
    optional(map, "includeArtifacts", it.include_artifacts)?;
} }

object! { ListTasksResponse, |it, map| {
    map.serialize_entry("tasks", &Each(&it.tasks))?;
    map.serialize_entry("totalSize", &it.total_size)?;
    map.serialize_entry("pageSize", &it.page_size)?;
    map.serialize_entry("nextPageToken", &it.next_page_token)?;
} }

object! { GetTaskPushNotificationConfigRequest, |it, map| {
    map.serialize_entry("id", &it.task_id)?;
    text(map, "pushNotificationConfigId", &it.id)?;
} }

object! { DeleteTaskPushNotificationConfigRequest, |it, map| {
    map.serialize_entry("id", &it.task_id)?;
    map.serialize_entry("pushNotificationConfigId", &it.id)?;
} }

object! { ListTaskPushNotificationConfigsRequest, |it, map| {
    map.serialize_entry("id", &it.task_id)?;
} }

impl Serialize for Write<'_, TaskPushNotificationConfig> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Webhook { config: self.0, kept: &PushExtras::default() }.serialize(serializer)
    }
}

/// The configuration of a task's webhook, and what was said beside.
#[derive(Clone, Copy, Debug)]
pub struct Webhook<'a> {
    /// What 1.0 has of it.
    pub config: &'a TaskPushNotificationConfig,
    /// The rest.
    pub kept: &'a PushExtras,
}

impl Serialize for Webhook<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("taskId", &self.config.task_id)?;
        map.serialize_entry("pushNotificationConfig", &Push(*self))?;
        map.end()
    }
}

/// The same, without its task.
struct Push<'a>(Webhook<'a>);

impl Serialize for Push<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (Webhook { config: it, kept }, mut map) = (self.0, serializer.serialize_map(None)?);
        text(&mut map, "id", &it.id)?;
        map.serialize_entry("url", &it.url)?;
        text(&mut map, "token", &it.token)?;
        optional(&mut map, "authentication", it.authentication.as_ref().map(|it| Authentication(it, &kept.schemes)))?;
        if !kept.headers.is_empty() {
            map.serialize_entry("headers", &kept.headers)?;
        }
        map.end()
    }
}

/// How a webhook knows who calls it, and the schemes that 1.0 has no room for.
struct Authentication<'a>(&'a AuthenticationInfo, &'a [String]);

impl Serialize for Authentication<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (Self(it, further), mut map) = (self, serializer.serialize_map(None)?);
        let schemes: Vec<_> = Some(&it.scheme).filter(|it| !it.is_empty()).into_iter().chain(*further).collect();
        map.serialize_entry("schemes", &schemes)?;
        text(&mut map, "credentials", &it.credentials)?;
        map.end()
    }
}

/// A list, which 0.3 has without anything around it.
impl Serialize for Write<'_, ListTaskPushNotificationConfigsResponse> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Each(&self.0.configs).serialize(serializer)
    }
}
