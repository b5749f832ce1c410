//! Serialization of 1.0 messages to the JSON of 0.3 JSON-RPC, without copying them.

use serde::{Serialize, Serializer, ser::SerializeMap};

use super::enum_names::EnumNames as _;
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
    v03::{
        message::{WRAPPED_MARK, WRAPPED_VALUE},
        push_extras::PushExtras,
    },
};

/// Wrapper that serializes a 1.0 message as 0.3 JSON.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a, T>(pub &'a T);

/// Event of a stream with the `final` member of 0.3.
#[derive(Clone, Copy, Debug)]
pub struct FinalEvent<'a> {
    /// Payload of the event.
    pub payload: &'a Payload,
    /// True for the last event of the stream.
    pub last: bool,
}

/// Implements `Serialize` for a message as an object. Optional members that are unset are omitted.
macro_rules! object {
    ($message:ty, |$value:ident, $map:ident| $members:block) => {
        impl Serialize for Write<'_, $message> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let ($value, mut members) = (self.0, serializer.serialize_map(None)?);
                let $map = &mut members;
                $members
                members.end()
            }
        }
    };
}

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

fn list<M: SerializeMap, T: Serialize>(map: &mut M, name: &'static str, items: &[T]) -> Result<(), M::Error> {
    if items.is_empty() { Ok(()) } else { map.serialize_entry(name, items) }
}

fn messages<'a, M: SerializeMap, T>(map: &mut M, name: &'static str, items: &'a [T]) -> Result<(), M::Error>
where
    Write<'a, T>: Serialize,
{
    if items.is_empty() { Ok(()) } else { map.serialize_entry(name, &Array(items)) }
}

fn optional<M: SerializeMap, T: Serialize>(map: &mut M, name: &'static str, value: Option<T>) -> Result<(), M::Error> {
    value.map_or(Ok(()), |value| map.serialize_entry(name, &value))
}

object! { Message, |message, map| {
    map.serialize_entry("kind", "message")?;
    map.serialize_entry("messageId", &message.message_id)?;
    text(map, "contextId", &message.context_id)?;
    text(map, "taskId", &message.task_id)?;
    map.serialize_entry("role", Role::word(message.role))?;
    map.serialize_entry("parts", &Array(&message.parts))?;
    list(map, "referenceTaskIds", &message.reference_task_ids)?;
    list(map, "extensions", &message.extensions)?;
    optional(map, "metadata", message.metadata.as_ref())?;
} }

object! { Part, |part, map| {
    let metadata = part.metadata.as_ref();
    match &part.content {
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
            map.serialize_entry("file", &File(part))?;
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
    match &part.content {
        Some(Content::Data(data)) if !is_object(data) => map.serialize_entry("metadata", &Marked(metadata))?,
        Some(_) | None => optional(map, "metadata", metadata)?,
    }
} }

/// Returns whether data is an object, the only form that 0.3 allows.
fn is_object(data: &Value) -> bool {
    matches!(data.kind, Some(Kind::StructValue(_)))
}

/// `file` member of a part with raw bytes or a URL.
struct File<'a>(&'a Part);

impl Serialize for File<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (part, mut map) = (self.0, serializer.serialize_map(None)?);
        text(&mut map, "name", &part.filename)?;
        text(&mut map, "mimeType", &part.media_type)?;
        match &part.content {
            Some(Content::Raw(raw)) => map.serialize_entry("bytes", &Base64(raw))?,
            Some(Content::Url(url)) => map.serialize_entry("uri", url)?,
            Some(Content::Text(_) | Content::Data(_)) | None => {}
        }
        map.end()
    }
}

/// Object around data that is not an object.
struct Wrapped<'a>(&'a Value);

impl Serialize for Wrapped<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map([(WRAPPED_VALUE, self.0)])
    }
}

/// Metadata of wrapped data, with the mark.
struct Marked<'a>(Option<&'a Struct>);

impl Serialize for Marked<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in
            self.0.into_iter().flat_map(|metadata| &metadata.fields).filter(|(name, _)| *name != WRAPPED_MARK)
        {
            map.serialize_entry(name, value)?;
        }
        map.serialize_entry(WRAPPED_MARK, &true)?;
        map.end()
    }
}

object! { Artifact, |artifact, map| {
    map.serialize_entry("artifactId", &artifact.artifact_id)?;
    text(map, "name", &artifact.name)?;
    text(map, "description", &artifact.description)?;
    map.serialize_entry("parts", &Array(&artifact.parts))?;
    list(map, "extensions", &artifact.extensions)?;
    optional(map, "metadata", artifact.metadata.as_ref())?;
} }

object! { TaskStatus, |status, map| {
    map.serialize_entry("state", TaskState::word(status.state))?;
    optional(map, "message", status.message.as_ref().map(Write))?;
    optional(map, "timestamp", status.timestamp.as_ref())?;
} }

/// Writes the `status` member, which 0.3 requires and 1.0 does not.
fn status<M: SerializeMap>(map: &mut M, status: Option<&TaskStatus>) -> Result<(), M::Error> {
    let empty = TaskStatus { state: 0, message: None, timestamp: None };
    map.serialize_entry("status", &Write(status.unwrap_or(&empty)))
}

object! { Task, |task, map| {
    map.serialize_entry("kind", "task")?;
    map.serialize_entry("id", &task.id)?;
    map.serialize_entry("contextId", &task.context_id)?;
    status(map, task.status.as_ref())?;
    messages(map, "artifacts", &task.artifacts)?;
    messages(map, "history", &task.history)?;
    optional(map, "metadata", task.metadata.as_ref())?;
} }

object! { TaskArtifactUpdateEvent, |update, map| {
    map.serialize_entry("kind", "artifact-update")?;
    map.serialize_entry("taskId", &update.task_id)?;
    map.serialize_entry("contextId", &update.context_id)?;
    match &update.artifact {
        Some(artifact) => map.serialize_entry("artifact", &Write(artifact))?,
        None => map.serialize_entry("artifact", &Write(&Artifact::default()))?,
    }
    map.serialize_entry("append", &update.append)?;
    map.serialize_entry("lastChunk", &update.last_chunk)?;
    optional(map, "metadata", update.metadata.as_ref())?;
} }

impl Serialize for FinalEvent<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.payload {
            Payload::Task(task) => Write(task).serialize(serializer),
            Payload::Message(message) => Write(message).serialize(serializer),
            Payload::ArtifactUpdate(update) => Write(update).serialize(serializer),
            Payload::StatusUpdate(update) => {
                let TaskStatusUpdateEvent { task_id, context_id, status: task_status, metadata } = update;
                let mut map = serializer.serialize_map(None)?;
                map.serialize_entry("kind", "status-update")?;
                map.serialize_entry("taskId", task_id)?;
                map.serialize_entry("contextId", context_id)?;
                status(&mut map, task_status.as_ref())?;
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

object! { SendMessageRequest, |request, map| {
    optional(map, "message", request.message.as_ref().map(Write))?;
    optional(map, "configuration", request.configuration.as_ref().map(Write))?;
    optional(map, "metadata", request.metadata.as_ref())?;
} }

object! { SendMessageConfiguration, |configuration, map| {
    let no_extras = PushExtras::default();
    let push = configuration.task_push_notification_config.as_ref();
    list(map, "acceptedOutputModes", &configuration.accepted_output_modes)?;
    optional(map, "historyLength", configuration.history_length)?;
    optional(map, "pushNotificationConfig", push.map(|config| Push(Webhook { config, kept: &no_extras })))?;
    // Always written, because servers disagree about its default.
    map.serialize_entry("blocking", &!configuration.return_immediately)?;
} }

object! { GetTaskRequest, |request, map| {
    map.serialize_entry("id", &request.id)?;
    optional(map, "historyLength", request.history_length)?;
} }

object! { CancelTaskRequest, |request, map| {
    map.serialize_entry("id", &request.id)?;
    optional(map, "metadata", request.metadata.as_ref())?;
} }

object! { SubscribeToTaskRequest, |request, map| {
    map.serialize_entry("id", &request.id)?;
} }

object! { ListTasksRequest, |request, map| {
    text(map, "contextId", &request.context_id)?;
    optional(map, "status", (request.status != 0).then(|| TaskState::word(request.status)))?;
    optional(map, "pageSize", request.page_size)?;
    text(map, "pageToken", &request.page_token)?;
    optional(map, "historyLength", request.history_length)?;
    optional(map, "lastUpdatedAfter", request.status_timestamp_after.as_ref())?;
    optional(map, "includeArtifacts", request.include_artifacts)?;
} }

object! { ListTasksResponse, |page, map| {
    map.serialize_entry("tasks", &Array(&page.tasks))?;
    map.serialize_entry("totalSize", &page.total_size)?;
    map.serialize_entry("pageSize", &page.page_size)?;
    map.serialize_entry("nextPageToken", &page.next_page_token)?;
} }

object! { GetTaskPushNotificationConfigRequest, |request, map| {
    map.serialize_entry("id", &request.task_id)?;
    text(map, "pushNotificationConfigId", &request.id)?;
} }

object! { DeleteTaskPushNotificationConfigRequest, |request, map| {
    map.serialize_entry("id", &request.task_id)?;
    map.serialize_entry("pushNotificationConfigId", &request.id)?;
} }

object! { ListTaskPushNotificationConfigsRequest, |request, map| {
    map.serialize_entry("id", &request.task_id)?;
} }

impl Serialize for Write<'_, TaskPushNotificationConfig> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Webhook { config: self.0, kept: &PushExtras::default() }.serialize(serializer)
    }
}

/// Push configuration of a task with the members that 1.0 lacks.
#[derive(Clone, Copy, Debug)]
pub struct Webhook<'a> {
    /// The 1.0 configuration.
    pub config: &'a TaskPushNotificationConfig,
    /// Members that 1.0 lacks.
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

/// Push configuration without its task.
struct Push<'a>(Webhook<'a>);

impl Serialize for Push<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (Webhook { config, kept }, mut map) = (self.0, serializer.serialize_map(None)?);
        text(&mut map, "id", &config.id)?;
        map.serialize_entry("url", &config.url)?;
        text(&mut map, "token", &config.token)?;
        let authentication = config.authentication.as_ref().map(|info| Authentication(info, &kept.schemes));
        optional(&mut map, "authentication", authentication)?;
        if !kept.headers.is_empty() {
            map.serialize_entry("headers", &kept.headers)?;
        }
        map.end()
    }
}

/// Authentication for notifications: the scheme of 1.0, and the further schemes of 0.3.
struct Authentication<'a>(&'a AuthenticationInfo, &'a [String]);

impl Serialize for Authentication<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (Self(info, further_schemes), mut map) = (self, serializer.serialize_map(None)?);
        let first_scheme = Some(&info.scheme).filter(|scheme| !scheme.is_empty());
        let schemes: Vec<_> = first_scheme.into_iter().chain(*further_schemes).collect();
        map.serialize_entry("schemes", &schemes)?;
        text(&mut map, "credentials", &info.credentials)?;
        map.end()
    }
}

/// 0.3 has a plain array, without an object around it.
impl Serialize for Write<'_, ListTaskPushNotificationConfigsResponse> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Array(&self.0.configs).serialize(serializer)
    }
}
