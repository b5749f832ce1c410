//! Ids of the tasks that requests and responses name.

use crate::protocol::{
    event::Event,
    json::wkt::Empty,
    messages::v1::{
        AgentCard, CancelTaskRequest, DeleteTaskPushNotificationConfigRequest, GetExtendedAgentCardRequest,
        GetTaskPushNotificationConfigRequest, GetTaskRequest, ListTaskPushNotificationConfigsRequest,
        ListTaskPushNotificationConfigsResponse, ListTasksRequest, ListTasksResponse, SendMessageRequest,
        SendMessageResponse, SubscribeToTaskRequest, TaskPushNotificationConfig, TaskState,
        send_message_response::Payload,
    },
    rpc::BoxStream,
    snapshot::Snapshot,
};

/// Request or response that may belong to a task.
pub(crate) trait OfTask {
    /// Returns the id of the task, if there is one. The task of a request may not exist.
    fn task_id(&self) -> Option<&str> {
        None
    }

    /// Returns the state of the task of a response to a send.
    fn task_state(&self) -> TaskState {
        TaskState::Unspecified
    }

    /// Returns the ids of the message of a send, and of its context, which may be empty.
    fn message_ids(&self) -> Option<(&str, &str)> {
        None
    }
}

macro_rules! of_task {
    ($($message:ty $(: $field:ident)?;)*) => { $(
        impl OfTask for $message {
            $(fn task_id(&self) -> Option<&str> {
                Some(&self.$field)
            })?
        }
    )* };
}

of_task! {
    GetTaskRequest: id;
    ListTasksRequest;
    CancelTaskRequest: id;
    SubscribeToTaskRequest: id;
    TaskPushNotificationConfig: task_id;
    GetTaskPushNotificationConfigRequest: task_id;
    ListTaskPushNotificationConfigsRequest: task_id;
    DeleteTaskPushNotificationConfigRequest: task_id;
    GetExtendedAgentCardRequest;
    ListTasksResponse;
    ListTaskPushNotificationConfigsResponse;
    AgentCard;
    Empty;
    Snapshot;
    BoxStream<Event>;
}

impl OfTask for SendMessageRequest {
    fn task_id(&self) -> Option<&str> {
        self.message.as_ref().map(|message| &*message.task_id)
    }

    fn message_ids(&self) -> Option<(&str, &str)> {
        self.message.as_ref().map(|message| (&*message.message_id, &*message.context_id))
    }
}

impl OfTask for SendMessageResponse {
    fn task_id(&self) -> Option<&str> {
        match &self.payload {
            Some(Payload::Task(task)) => Some(&task.id),
            Some(Payload::Message(_)) | None => None,
        }
    }

    fn task_state(&self) -> TaskState {
        match &self.payload {
            Some(Payload::Task(task)) => task.state(),
            Some(Payload::Message(_)) | None => TaskState::Unspecified,
        }
    }
}
