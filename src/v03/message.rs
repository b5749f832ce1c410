//! The messages of 0.3 (package `a2a.v1`) and of 1.0, each as the other: plain values, and no behaviour.
//!
//! What 0.3 can say comes back from it as it was. The rest is what this table has; it is lost on the way in its column,
//! or kept as it says.
//!
//! | What | 1.0 to 0.3 | 0.3 to 1.0 |
//! | --- | --- | --- |
//! | `Part.filename`, `Part.mediaType` of text and data | lost: only files have them | |
//! | `Part.data` that is no object | an object with it as `value`, and the part's metadata has `data_part_compat`, which SDKs have agreed on | such a one is unwrapped |
//! | `Part.metadata` that is empty, beside such data | becomes none | |
//! | `Part.raw` | its base64, as the bytes of the file, which `files` makes the file itself for some | what is base64 by its looks is decoded, and any other is taken as it is |
//! | `FilePart` and `DataPart` without a content | | a part without content, which is refused; data without a struct is `{}` |
//! | `Message.referenceTaskIds` | lost | |
//! | `TaskStatusUpdateEvent.final` | told by what the event ends, or by its state | lost: 1.0 closes the stream |
//! | a status's message that has neither id nor parts | | none: some clients print what is not set as empty |
//! | `historyLength` of 0 | becomes "as long as it is", since 0.3 has no word for none | 0 is "not said" |
//! | no configuration, and one that says nothing | one stays none; the other says `blocking` | one that says nothing does not block |
//! | a push configuration in a send: `tenant`, `taskId` | lost: the one of the message is meant | |
//! | `AuthenticationInfo` | its scheme is a list of one | the first is 1.0's and `beside` keeps the others; one without any is none |
//! | `TaskPushNotificationConfig.name`, `CreateTaskPushNotificationConfigRequest.config.name` | made of the ids | the ids are read from it, where `parent` and `configId` do not say them |
//! | `tenant` of any request | lost | none |
//! | `metadata` of a cancel | lost | none |
//! | `pageSize`, `totalSize` and the filters of a list of tasks | 0.3 has no such call in its proto | |
//!
//! Numbers of enums are the same in both, and one that is none of them goes through as it is: whoever checks it has it
//! in 1.0.

pub(crate) mod name;
mod part;
mod push;
mod request;

use crate::pb::{v1, v03};

/// Each of a list, as the other.
fn each<T, U: From<T>>(all: Vec<T>) -> Vec<U> {
    all.into_iter().map(U::from).collect()
}

impl From<v1::Message> for v03::Message {
    fn from(it: v1::Message) -> Self {
        let v1::Message { message_id, context_id, task_id, role, parts, metadata, extensions, reference_task_ids: _ } =
            it;
        Self { message_id, context_id, task_id, role, content: each(parts), metadata, extensions }
    }
}

impl From<v03::Message> for v1::Message {
    fn from(it: v03::Message) -> Self {
        let v03::Message { message_id, context_id, task_id, role, content, metadata, extensions } = it;
        let (parts, reference_task_ids) = (each(content), Vec::new());
        Self { message_id, context_id, task_id, role, parts, metadata, extensions, reference_task_ids }
    }
}

impl From<v1::Artifact> for v03::Artifact {
    fn from(it: v1::Artifact) -> Self {
        let v1::Artifact { artifact_id, name, description, parts, metadata, extensions } = it;
        Self { artifact_id, name, description, parts: each(parts), metadata, extensions }
    }
}

impl From<v03::Artifact> for v1::Artifact {
    fn from(it: v03::Artifact) -> Self {
        let v03::Artifact { artifact_id, name, description, parts, metadata, extensions } = it;
        Self { artifact_id, name, description, parts: each(parts), metadata, extensions }
    }
}

impl From<v1::TaskStatus> for v03::TaskStatus {
    fn from(it: v1::TaskStatus) -> Self {
        let v1::TaskStatus { state, message, timestamp } = it;
        Self { state, update: message.map(Into::into), timestamp }
    }
}

impl From<v03::TaskStatus> for v1::TaskStatus {
    fn from(it: v03::TaskStatus) -> Self {
        let v03::TaskStatus { state, update, timestamp } = it;
        let said = update.filter(|it| !it.message_id.is_empty() || !it.content.is_empty());
        Self { state, message: said.map(Into::into), timestamp }
    }
}

impl From<v1::Task> for v03::Task {
    fn from(it: v1::Task) -> Self {
        let v1::Task { id, context_id, status, artifacts, history, metadata } = it;
        let (status, artifacts, history) = (status.map(Into::into), each(artifacts), each(history));
        Self { id, context_id, status, artifacts, history, metadata }
    }
}

impl From<v03::Task> for v1::Task {
    fn from(it: v03::Task) -> Self {
        let v03::Task { id, context_id, status, artifacts, history, metadata } = it;
        let (status, artifacts, history) = (status.map(Into::into), each(artifacts), each(history));
        Self { id, context_id, status, artifacts, history, metadata }
    }
}

impl From<v1::TaskStatusUpdateEvent> for v03::TaskStatusUpdateEvent {
    fn from(it: v1::TaskStatusUpdateEvent) -> Self {
        let v1::TaskStatusUpdateEvent { task_id, context_id, status, metadata } = it;
        let r#final = status.as_ref().is_some_and(|it| it.state().is_terminal());
        Self { task_id, context_id, status: status.map(Into::into), r#final, metadata }
    }
}

impl From<v03::TaskStatusUpdateEvent> for v1::TaskStatusUpdateEvent {
    fn from(it: v03::TaskStatusUpdateEvent) -> Self {
        let v03::TaskStatusUpdateEvent { task_id, context_id, status, r#final: _, metadata } = it;
        Self { task_id, context_id, status: status.map(Into::into), metadata }
    }
}

impl From<v1::TaskArtifactUpdateEvent> for v03::TaskArtifactUpdateEvent {
    fn from(it: v1::TaskArtifactUpdateEvent) -> Self {
        let v1::TaskArtifactUpdateEvent { task_id, context_id, artifact, append, last_chunk, metadata } = it;
        Self { task_id, context_id, artifact: artifact.map(Into::into), append, last_chunk, metadata }
    }
}

impl From<v03::TaskArtifactUpdateEvent> for v1::TaskArtifactUpdateEvent {
    fn from(it: v03::TaskArtifactUpdateEvent) -> Self {
        let v03::TaskArtifactUpdateEvent { task_id, context_id, artifact, append, last_chunk, metadata } = it;
        Self { task_id, context_id, artifact: artifact.map(Into::into), append, last_chunk, metadata }
    }
}

impl From<v1::SendMessageResponse> for v03::SendMessageResponse {
    fn from(it: v1::SendMessageResponse) -> Self {
        use v1::send_message_response::Payload as New;
        use v03::send_message_response::Payload as Old;
        let payload = it.payload.map(|it| match it {
            New::Task(it) => Old::Task(it.into()),
            New::Message(it) => Old::Msg(it.into()),
        });
        Self { payload }
    }
}

impl From<v03::SendMessageResponse> for v1::SendMessageResponse {
    fn from(it: v03::SendMessageResponse) -> Self {
        use v1::send_message_response::Payload as New;
        use v03::send_message_response::Payload as Old;
        let payload = it.payload.map(|it| match it {
            Old::Task(it) => New::Task(it.into()),
            Old::Msg(it) => New::Message(it.into()),
        });
        Self { payload }
    }
}

impl From<v1::StreamResponse> for v03::StreamResponse {
    fn from(it: v1::StreamResponse) -> Self {
        use v1::stream_response::Payload as New;
        use v03::stream_response::Payload as Old;
        let payload = it.payload.map(|it| match it {
            New::Task(it) => Old::Task(it.into()),
            New::Message(it) => Old::Msg(it.into()),
            New::StatusUpdate(it) => Old::StatusUpdate(it.into()),
            New::ArtifactUpdate(it) => Old::ArtifactUpdate(it.into()),
        });
        Self { payload }
    }
}

impl From<v03::StreamResponse> for v1::StreamResponse {
    fn from(it: v03::StreamResponse) -> Self {
        use v1::stream_response::Payload as New;
        use v03::stream_response::Payload as Old;
        let payload = it.payload.map(|it| match it {
            Old::Task(it) => New::Task(it.into()),
            Old::Msg(it) => New::Message(it.into()),
            Old::StatusUpdate(it) => New::StatusUpdate(it.into()),
            Old::ArtifactUpdate(it) => New::ArtifactUpdate(it.into()),
        });
        Self { payload }
    }
}

#[cfg(test)]
mod tests;
