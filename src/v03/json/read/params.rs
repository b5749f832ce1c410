//! Parameters of calls in classic JSON, and the configurations of webhooks, which are parameters too.

use std::collections::BTreeMap;

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess},
};

use super::{Classic, Plain, Read, integer, many, members, message, one, plain, state};
use crate::{
    json::{Members, any, number},
    pb::{
        v1::{
            AuthenticationInfo, CancelTaskRequest, DeleteTaskPushNotificationConfigRequest,
            GetTaskPushNotificationConfigRequest, GetTaskRequest, ListTaskPushNotificationConfigsRequest,
            ListTaskPushNotificationConfigsResponse, ListTasksRequest, ListTasksResponse, Message,
            SendMessageConfiguration, SendMessageRequest, SubscribeToTaskRequest, TaskPushNotificationConfig,
        },
        wkt::Struct,
    },
    v03::{push_extras::PushExtras, semantics::returns_at_once},
};

/// The members of the parameters of a send.
#[derive(Clone, Debug, Default)]
pub struct SendDraft {
    message: Option<Message>,
    message_id: String,
    session_id: String,
    task_id: String,
    configuration: Option<Configuration>,
    metadata: Option<Struct>,
}

members! { SendDraft, "MessageSendParams" {
    1 "message" => message = one;
    2 "configuration" => configuration = one;
    3 "metadata" => metadata = any;
    // An example of 0.2 has it beside the message.
    4 "messageId" "message_id" => message_id = plain;
    // So a context and a task were called before 0.2.
    5 "sessionId" "session_id" => session_id = plain;
    6 "id" => task_id = plain;
} }

impl Classic for SendMessageRequest {
    type Draft = SendDraft;

    fn finish<E: Error>(draft: SendDraft) -> Result<Self, E> {
        Ok(V02Send::finish::<E>(draft)?.send)
    }
}

/// A send as it was before 0.2, when the client chose the id of its task.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct V02Send {
    /// What is sent.
    pub send: SendMessageRequest,
    /// The task that it is sent to, which may be there or not.
    pub task_id: String,
    /// What its webhook says beside.
    pub kept: PushExtras,
}

impl Classic for V02Send {
    type Draft = SendDraft;

    fn finish<E: Error>(draft: SendDraft) -> Result<Self, E> {
        let SendDraft { mut message, message_id, session_id, task_id, configuration, metadata } = draft;
        if let Some(message) = &mut message {
            if message.message_id.is_empty() {
                message.message_id = message_id;
            }
            if message.context_id.is_empty() {
                message.context_id = session_id;
            }
        }
        let (configuration, kept) = configuration.map(|it| (it.it, it.kept)).unzip();
        let send = SendMessageRequest { message, configuration, metadata, tenant: String::new() };
        Ok(Self { send, task_id, kept: kept.unwrap_or_default() })
    }
}

/// The configuration of a send, and what its webhook says beside.
#[derive(Clone, Debug)]
struct Configuration {
    it: SendMessageConfiguration,
    kept: PushExtras,
}

/// The members of that.
#[derive(Clone, Debug, Default)]
struct ConfigurationDraft {
    it: SendMessageConfiguration,
    blocking: Option<bool>,
    push: Option<Push>,
}

members! { ConfigurationDraft, "MessageSendConfiguration" {
    1 "acceptedOutputModes" "accepted_output_modes" => it.accepted_output_modes = plain;
    2 "historyLength" "history_length" => it.history_length = number;
    3 "pushNotificationConfig" "push_notification_config" "pushNotification" => push = one;
    4 "blocking" => blocking = any;
} }

impl Classic for Configuration {
    type Draft = ConfigurationDraft;

    fn finish<E: Error>(draft: ConfigurationDraft) -> Result<Self, E> {
        let ConfigurationDraft { it, blocking, push } = draft;
        let return_immediately = returns_at_once(blocking, push.is_some());
        let (task_push_notification_config, kept) = push.map(|it| (it.it, it.kept)).unzip();
        let it = SendMessageConfiguration { return_immediately, task_push_notification_config, ..it };
        Ok(Self { it, kept: kept.unwrap_or_default() })
    }
}

message! { GetTaskRequest, "TaskQueryParams" {
    1 "id" => it.id = plain;
    2 "historyLength" "history_length" => it.history_length = number;
} }

message! { CancelTaskRequest, "TaskIdParams" {
    1 "id" => it.id = plain;
    2 "metadata" => it.metadata = any;
} }

message! { SubscribeToTaskRequest, "TaskIdParams" {
    1 "id" => it.id = plain;
} }

message! { ListTasksRequest, "ListTasksParams" {
    1 "contextId" "context_id" => it.context_id = plain;
    2 "status" => it.status = state;
    3 "pageSize" "page_size" => it.page_size = number;
    4 "pageToken" "page_token" => it.page_token = plain;
    5 "historyLength" "history_length" => it.history_length = number;
    6 "statusTimestampAfter" "status_timestamp_after" "lastUpdatedAfter" "last_updated_after" => it.status_timestamp_after = any;
    7 "includeArtifacts" "include_artifacts" => it.include_artifacts = any;
} }

message! { ListTasksResponse, "ListTasksResult" {
    1 "tasks" => it.tasks = many;
    2 "nextPageToken" "next_page_token" => it.next_page_token = plain;
    3 "pageSize" "page_size" => it.page_size = integer;
    4 "totalSize" "total_size" => it.total_size = integer;
} }

message! { GetTaskPushNotificationConfigRequest, "GetTaskPushNotificationConfigParams" {
    1 "id" => it.task_id = plain;
    2 "pushNotificationConfigId" "push_notification_config_id" => it.id = plain;
} }

message! { DeleteTaskPushNotificationConfigRequest, "DeleteTaskPushNotificationConfigParams" {
    1 "id" => it.task_id = plain;
    2 "pushNotificationConfigId" "push_notification_config_id" => it.id = plain;
} }

message! { ListTaskPushNotificationConfigsRequest, "ListTaskPushNotificationConfigParams" {
    1 "id" => it.task_id = plain;
} }

/// The configuration of a webhook, without its task.
#[derive(Clone, Debug)]
struct Push {
    it: TaskPushNotificationConfig,
    kept: PushExtras,
}

/// The members of such a configuration.
#[derive(Clone, Default)]
struct PushDraft {
    it: TaskPushNotificationConfig,
    authentication: Option<Authentication>,
    headers: BTreeMap<String, String>,
}

members! { PushDraft, "PushNotificationConfig" {
    1 "id" => it.id = plain;
    2 "url" => it.url = plain;
    3 "token" => it.token = plain;
    4 "authentication" => authentication = one;
    5 "headers" => headers = plain;
} }

impl Classic for Push {
    type Draft = PushDraft;

    fn finish<E: Error>(PushDraft { it, authentication, headers }: PushDraft) -> Result<Self, E> {
        let (authentication, schemes) = authentication.map(|it| (it.first, it.further)).unzip();
        let it = TaskPushNotificationConfig { authentication: authentication.flatten(), ..it };
        Ok(Self { it, kept: PushExtras { schemes: schemes.unwrap_or_default(), headers } })
    }
}

/// How a webhook knows who calls it, if that is said; in 1.0 there is one way.
#[derive(Clone, Debug)]
struct Authentication {
    first: Option<AuthenticationInfo>,
    further: Vec<String>,
}

/// The members of that.
#[derive(Clone, Default)]
struct AuthenticationDraft {
    schemes: Vec<String>,
    credentials: String,
}

members! { AuthenticationDraft, "PushNotificationAuthenticationInfo" {
    1 "schemes" => schemes = plain;
    2 "credentials" => credentials = plain;
} }

impl Classic for Authentication {
    type Draft = AuthenticationDraft;

    /// A list of no scheme is as good as none, and 1.0 has room for one.
    fn finish<E: Error>(AuthenticationDraft { schemes, credentials }: AuthenticationDraft) -> Result<Self, E> {
        let mut schemes = schemes.into_iter().filter(|it| !it.is_empty());
        let first = schemes.next().map(|scheme| AuthenticationInfo { scheme, credentials });
        Ok(Self { first, further: schemes.collect() })
    }
}

/// The members of the configuration of a task's webhook.
#[derive(Clone, Debug, Default)]
pub struct TaskPushDraft {
    task_id: String,
    push: Option<Push>,
}

members! { TaskPushDraft, "TaskPushNotificationConfig" {
    // It was `id` before 0.2.
    1 "taskId" "task_id" "id" => task_id = plain;
    2 "pushNotificationConfig" "push_notification_config" => push = one;
} }

impl Classic for TaskPushNotificationConfig {
    type Draft = TaskPushDraft;

    fn finish<E: Error>(draft: TaskPushDraft) -> Result<Self, E> {
        Ok(PushRegistration::finish::<E>(draft)?.it)
    }
}

/// The configuration of a task's webhook, and what is said beside.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PushRegistration {
    /// What 1.0 has of it.
    pub it: TaskPushNotificationConfig,
    /// The rest.
    pub kept: PushExtras,
}

impl Classic for PushRegistration {
    type Draft = TaskPushDraft;

    fn finish<E: Error>(TaskPushDraft { task_id, push }: TaskPushDraft) -> Result<Self, E> {
        let Push { it, kept } = push.ok_or_else(|| E::custom("`pushNotificationConfig` is missing"))?;
        Ok(Self { it: TaskPushNotificationConfig { task_id, ..it }, kept })
    }
}

/// A list, which 0.3 has without anything around it.
impl<'de> Deserialize<'de> for Read<ListTaskPushNotificationConfigsResponse> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let configs = Option::<Vec<Read<TaskPushNotificationConfig>>>::deserialize(deserializer)?.unwrap_or_default();
        let configs = configs.into_iter().map(|it| it.0).collect();
        Ok(Self(ListTaskPushNotificationConfigsResponse { configs, ..Default::default() }))
    }
}
