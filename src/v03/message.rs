//! Conversions between the messages of 0.3 (package `a2a.v1`) and of 1.0.
//!
//! A message that 0.3 can represent survives the round trip from 1.0 unchanged. The table lists the fields that do not,
//! and the fields with a different representation. An empty cell means that the direction does not apply.
//!
//! | Field | 1.0 to 0.3 | 0.3 to 1.0 |
//! | --- | --- | --- |
//! | `Part.filename` and `Part.mediaType` of text and data | dropped: only files have them | |
//! | `Part.data` that is not an object | wrapped in an object as `value`, and marked with `data_part_compat: true` in the metadata of the part, as the SDKs do | marked data is unwrapped and the mark removed |
//! | empty `Part.metadata` of such data | unset after the round trip | |
//! | `Part.raw` | base64 text in `fileWithBytes`, or raw bytes for clients that expect them (`v03.file_bytes`) | valid base64 text is decoded; other bytes are taken as the file contents |
//! | `FilePart` without a file, `DataPart` without a struct | | a part without content, which is rejected; the data `{}` |
//! | `Message.referenceTaskIds` | dropped | |
//! | `TaskStatusUpdateEvent.final` | true if the event ends a turn or the task, or, outside a stream, if its state is terminal | dropped: 1.0 closes the stream |
//! | `TaskStatus.message` without an id and without parts | | unset: some clients print unset messages as empty ones |
//! | `historyLength: 0` | unset, which means no limit: 0.3 cannot request an empty history | unset |
//! | `configuration` | stays unset if it is unset; otherwise `blocking` is set | an empty one does not block |
//! | `tenant` and `taskId` of a push configuration in a send | dropped: those of the message apply | |
//! | `AuthenticationInfo` | a list of one scheme | the first scheme; further ones are stored next to the configuration; unset if the list is empty |
//! | `TaskPushNotificationConfig.name`, `CreateTaskPushNotificationConfigRequest.config.name` | composed of the task id and the configuration id | parsed for ids that `parent` and `configId` do not give |
//! | `tenant` of a request | dropped | unset |
//! | `metadata` of a cancel request | dropped | unset |
//! | `ListTasks`: paging, `totalSize` and filters | not in the 0.3 proto | |
//!
//! Enum numbers are equal in both versions. Unknown numbers are passed on; the 1.0 service validates them.

pub(crate) mod name;
mod part;
mod push;
mod request;

use crate::pb::{v1, v03};

fn convert_all<T, U: From<T>>(items: Vec<T>) -> Vec<U> {
    items.into_iter().map(U::from).collect()
}

impl From<v1::Message> for v03::Message {
    fn from(message: v1::Message) -> Self {
        let v1::Message { message_id, context_id, task_id, role, parts, metadata, extensions, reference_task_ids: _ } =
            message;
        Self { message_id, context_id, task_id, role, content: convert_all(parts), metadata, extensions }
    }
}

impl From<v03::Message> for v1::Message {
    fn from(message: v03::Message) -> Self {
        let v03::Message { message_id, context_id, task_id, role, content, metadata, extensions } = message;
        let (parts, reference_task_ids) = (convert_all(content), Vec::new());
        Self { message_id, context_id, task_id, role, parts, metadata, extensions, reference_task_ids }
    }
}

impl From<v1::Artifact> for v03::Artifact {
    fn from(artifact: v1::Artifact) -> Self {
        let v1::Artifact { artifact_id, name, description, parts, metadata, extensions } = artifact;
        Self { artifact_id, name, description, parts: convert_all(parts), metadata, extensions }
    }
}

impl From<v03::Artifact> for v1::Artifact {
    fn from(artifact: v03::Artifact) -> Self {
        let v03::Artifact { artifact_id, name, description, parts, metadata, extensions } = artifact;
        Self { artifact_id, name, description, parts: convert_all(parts), metadata, extensions }
    }
}

impl From<v1::TaskStatus> for v03::TaskStatus {
    fn from(status: v1::TaskStatus) -> Self {
        let v1::TaskStatus { state, message, timestamp } = status;
        Self { state, update: message.map(Into::into), timestamp }
    }
}

impl From<v03::TaskStatus> for v1::TaskStatus {
    fn from(status: v03::TaskStatus) -> Self {
        let v03::TaskStatus { state, update, timestamp } = status;
        let message = update.filter(|message| !message.message_id.is_empty() || !message.content.is_empty());
        Self { state, message: message.map(Into::into), timestamp }
    }
}

impl From<v1::Task> for v03::Task {
    fn from(task: v1::Task) -> Self {
        let v1::Task { id, context_id, status, artifacts, history, metadata } = task;
        let (status, artifacts, history) = (status.map(Into::into), convert_all(artifacts), convert_all(history));
        Self { id, context_id, status, artifacts, history, metadata }
    }
}

impl From<v03::Task> for v1::Task {
    fn from(task: v03::Task) -> Self {
        let v03::Task { id, context_id, status, artifacts, history, metadata } = task;
        let (status, artifacts, history) = (status.map(Into::into), convert_all(artifacts), convert_all(history));
        Self { id, context_id, status, artifacts, history, metadata }
    }
}

impl From<v1::TaskStatusUpdateEvent> for v03::TaskStatusUpdateEvent {
    fn from(update: v1::TaskStatusUpdateEvent) -> Self {
        let v1::TaskStatusUpdateEvent { task_id, context_id, status, metadata } = update;
        let r#final = status.as_ref().is_some_and(|status| status.state().is_terminal());
        Self { task_id, context_id, status: status.map(Into::into), r#final, metadata }
    }
}

impl From<v03::TaskStatusUpdateEvent> for v1::TaskStatusUpdateEvent {
    fn from(update: v03::TaskStatusUpdateEvent) -> Self {
        let v03::TaskStatusUpdateEvent { task_id, context_id, status, r#final: _, metadata } = update;
        Self { task_id, context_id, status: status.map(Into::into), metadata }
    }
}

impl From<v1::TaskArtifactUpdateEvent> for v03::TaskArtifactUpdateEvent {
    fn from(update: v1::TaskArtifactUpdateEvent) -> Self {
        let v1::TaskArtifactUpdateEvent { task_id, context_id, artifact, append, last_chunk, metadata } = update;
        Self { task_id, context_id, artifact: artifact.map(Into::into), append, last_chunk, metadata }
    }
}

impl From<v03::TaskArtifactUpdateEvent> for v1::TaskArtifactUpdateEvent {
    fn from(update: v03::TaskArtifactUpdateEvent) -> Self {
        let v03::TaskArtifactUpdateEvent { task_id, context_id, artifact, append, last_chunk, metadata } = update;
        Self { task_id, context_id, artifact: artifact.map(Into::into), append, last_chunk, metadata }
    }
}

impl From<v1::SendMessageResponse> for v03::SendMessageResponse {
    fn from(response: v1::SendMessageResponse) -> Self {
        use v1::send_message_response::Payload as New;
        use v03::send_message_response::Payload as Old;
        let payload = response.payload.map(|payload| match payload {
            New::Task(task) => Old::Task(task.into()),
            New::Message(message) => Old::Msg(message.into()),
        });
        Self { payload }
    }
}

impl From<v03::SendMessageResponse> for v1::SendMessageResponse {
    fn from(response: v03::SendMessageResponse) -> Self {
        use v1::send_message_response::Payload as New;
        use v03::send_message_response::Payload as Old;
        let payload = response.payload.map(|payload| match payload {
            Old::Task(task) => New::Task(task.into()),
            Old::Msg(message) => New::Message(message.into()),
        });
        Self { payload }
    }
}

impl From<v1::StreamResponse> for v03::StreamResponse {
    fn from(response: v1::StreamResponse) -> Self {
        use v1::stream_response::Payload as New;
        use v03::stream_response::Payload as Old;
        let payload = response.payload.map(|payload| match payload {
            New::Task(task) => Old::Task(task.into()),
            New::Message(message) => Old::Msg(message.into()),
            New::StatusUpdate(update) => Old::StatusUpdate(update.into()),
            New::ArtifactUpdate(update) => Old::ArtifactUpdate(update.into()),
        });
        Self { payload }
    }
}

impl From<v03::StreamResponse> for v1::StreamResponse {
    fn from(response: v03::StreamResponse) -> Self {
        use v1::stream_response::Payload as New;
        use v03::stream_response::Payload as Old;
        let payload = response.payload.map(|payload| match payload {
            Old::Task(task) => New::Task(task.into()),
            Old::Msg(message) => New::Message(message.into()),
            Old::StatusUpdate(update) => New::StatusUpdate(update.into()),
            Old::ArtifactUpdate(update) => New::ArtifactUpdate(update.into()),
        });
        Self { payload }
    }
}

#[cfg(test)]
mod tests;
