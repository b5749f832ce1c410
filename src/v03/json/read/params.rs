//! Parameters of the 0.3 JSON-RPC methods, and push configurations.

use std::collections::BTreeMap;

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess},
};

use super::{Classic, DirectDraft, Read, integer, members, message, nested, nested_list, or_default, state};
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

/// Members of the parameters of a send.
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
    1 "message" => message = nested;
    2 "configuration" => configuration = nested;
    3 "metadata" => metadata = any;
    // An example of 0.2 has the id of the message here.
    4 "messageId" "message_id" => message_id = or_default;
    // The context id and the task id before 0.2.
    5 "sessionId" "session_id" => session_id = or_default;
    6 "id" => task_id = or_default;
} }

impl Classic for SendMessageRequest {
    type Draft = SendDraft;

    fn finish<E: Error>(draft: SendDraft) -> Result<Self, E> {
        Ok(V02Send::finish::<E>(draft)?.send)
    }
}

/// Parameters of a send, in the form of 0.3 or of the versions before 0.2.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct V02Send {
    /// The 1.0 request.
    pub send: SendMessageRequest,
    /// Task id that the client chose, as before 0.2; the task may not exist. Otherwise empty.
    pub task_id: String,
    /// Members of the push configuration that 1.0 lacks.
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
        let (configuration, extras) = configuration.map(|read| (read.configuration, read.extras)).unzip();
        let send = SendMessageRequest { message, configuration, metadata, tenant: String::new() };
        Ok(Self { send, task_id, kept: extras.unwrap_or_default() })
    }
}

/// Configuration of a send, and the members of its push configuration that 1.0 lacks.
#[derive(Clone, Debug)]
struct Configuration {
    configuration: SendMessageConfiguration,
    extras: PushExtras,
}

/// Members of the configuration of a send.
#[derive(Clone, Debug, Default)]
struct ConfigurationDraft {
    configuration: SendMessageConfiguration,
    blocking: Option<bool>,
    push: Option<Push>,
}

members! { ConfigurationDraft, "MessageSendConfiguration" {
    1 "acceptedOutputModes" "accepted_output_modes" => configuration.accepted_output_modes = or_default;
    2 "historyLength" "history_length" => configuration.history_length = number;
    3 "pushNotificationConfig" "push_notification_config" "pushNotification" => push = nested;
    4 "blocking" => blocking = any;
} }

impl Classic for Configuration {
    type Draft = ConfigurationDraft;

    fn finish<E: Error>(draft: ConfigurationDraft) -> Result<Self, E> {
        let ConfigurationDraft { configuration, blocking, push } = draft;
        let return_immediately = returns_at_once(blocking, push.is_some());
        let (task_push_notification_config, extras) = push.map(|push| (push.config, push.extras)).unzip();
        let configuration =
            SendMessageConfiguration { return_immediately, task_push_notification_config, ..configuration };
        Ok(Self { configuration, extras: extras.unwrap_or_default() })
    }
}

message! { GetTaskRequest, "TaskQueryParams" {
    1 "id" => message.id = or_default;
    2 "historyLength" "history_length" => message.history_length = number;
} }

message! { CancelTaskRequest, "TaskIdParams" {
    1 "id" => message.id = or_default;
    2 "metadata" => message.metadata = any;
} }

message! { SubscribeToTaskRequest, "TaskIdParams" {
    1 "id" => message.id = or_default;
} }

message! { ListTasksRequest, "ListTasksParams" {
    1 "contextId" "context_id" => message.context_id = or_default;
    2 "status" => message.status = state;
    3 "pageSize" "page_size" => message.page_size = number;
    4 "pageToken" "page_token" => message.page_token = or_default;
    5 "historyLength" "history_length" => message.history_length = number;
    6 "statusTimestampAfter" "status_timestamp_after" "lastUpdatedAfter" "last_updated_after" => message.status_timestamp_after = any;
    7 "includeArtifacts" "include_artifacts" => message.include_artifacts = any;
} }

message! { ListTasksResponse, "ListTasksResult" {
    1 "tasks" => message.tasks = nested_list;
    2 "nextPageToken" "next_page_token" => message.next_page_token = or_default;
    3 "pageSize" "page_size" => message.page_size = integer;
    4 "totalSize" "total_size" => message.total_size = integer;
} }

message! { GetTaskPushNotificationConfigRequest, "GetTaskPushNotificationConfigParams" {
    1 "id" => message.task_id = or_default;
    2 "pushNotificationConfigId" "push_notification_config_id" => message.id = or_default;
} }

message! { DeleteTaskPushNotificationConfigRequest, "DeleteTaskPushNotificationConfigParams" {
    1 "id" => message.task_id = or_default;
    2 "pushNotificationConfigId" "push_notification_config_id" => message.id = or_default;
} }

message! { ListTaskPushNotificationConfigsRequest, "ListTaskPushNotificationConfigParams" {
    1 "id" => message.task_id = or_default;
} }

/// Push configuration without its task, and the members that 1.0 lacks.
#[derive(Clone, Debug)]
struct Push {
    config: TaskPushNotificationConfig,
    extras: PushExtras,
}

/// Members of a push configuration.
#[derive(Clone, Default)]
struct PushDraft {
    config: TaskPushNotificationConfig,
    authentication: Option<Authentication>,
    headers: BTreeMap<String, String>,
}

members! { PushDraft, "PushNotificationConfig" {
    1 "id" => config.id = or_default;
    2 "url" => config.url = or_default;
    3 "token" => config.token = or_default;
    4 "authentication" => authentication = nested;
    5 "headers" => headers = or_default;
} }

impl Classic for Push {
    type Draft = PushDraft;

    fn finish<E: Error>(PushDraft { config, authentication, headers }: PushDraft) -> Result<Self, E> {
        let (authentication, schemes) = authentication.map(|read| (read.first, read.further_schemes)).unzip();
        let config = TaskPushNotificationConfig { authentication: authentication.flatten(), ..config };
        Ok(Self { config, extras: PushExtras { schemes: schemes.unwrap_or_default(), headers } })
    }
}

/// Authentication for notifications: the first scheme with the credentials, and further schemes, which 1.0 lacks.
#[derive(Clone, Debug)]
struct Authentication {
    first: Option<AuthenticationInfo>,
    further_schemes: Vec<String>,
}

/// Members of the authentication.
#[derive(Clone, Default)]
struct AuthenticationDraft {
    schemes: Vec<String>,
    credentials: String,
}

members! { AuthenticationDraft, "PushNotificationAuthenticationInfo" {
    1 "schemes" => schemes = or_default;
    2 "credentials" => credentials = or_default;
} }

impl Classic for Authentication {
    type Draft = AuthenticationDraft;

    /// Ignores empty schemes. Without a scheme there is no authentication.
    fn finish<E: Error>(AuthenticationDraft { schemes, credentials }: AuthenticationDraft) -> Result<Self, E> {
        let mut schemes = schemes.into_iter().filter(|scheme| !scheme.is_empty());
        let first = schemes.next().map(|scheme| AuthenticationInfo { scheme, credentials });
        Ok(Self { first, further_schemes: schemes.collect() })
    }
}

/// Members of a push configuration with its task.
#[derive(Clone, Debug, Default)]
pub struct TaskPushDraft {
    task_id: String,
    push: Option<Push>,
}

members! { TaskPushDraft, "TaskPushNotificationConfig" {
    // `id` is the name before 0.2.
    1 "taskId" "task_id" "id" => task_id = or_default;
    2 "pushNotificationConfig" "push_notification_config" => push = nested;
} }

impl Classic for TaskPushNotificationConfig {
    type Draft = TaskPushDraft;

    fn finish<E: Error>(draft: TaskPushDraft) -> Result<Self, E> {
        Ok(PushRegistration::finish::<E>(draft)?.it)
    }
}

/// Push configuration with its task, and the members that 1.0 lacks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PushRegistration {
    /// The 1.0 configuration.
    pub it: TaskPushNotificationConfig,
    /// Members that 1.0 lacks.
    pub kept: PushExtras,
}

impl Classic for PushRegistration {
    type Draft = TaskPushDraft;

    fn finish<E: Error>(TaskPushDraft { task_id, push }: TaskPushDraft) -> Result<Self, E> {
        let Push { config, extras } = push.ok_or_else(|| E::custom("`pushNotificationConfig` is missing"))?;
        Ok(Self { it: TaskPushNotificationConfig { task_id, ..config }, kept: extras })
    }
}

/// 0.3 has a plain array, without an object around it.
impl<'de> Deserialize<'de> for Read<ListTaskPushNotificationConfigsResponse> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let configs = Option::<Vec<Read<TaskPushNotificationConfig>>>::deserialize(deserializer)?.unwrap_or_default();
        let configs = configs.into_iter().map(|it| it.0).collect();
        Ok(Self(ListTaskPushNotificationConfigsResponse { configs, ..Default::default() }))
    }
}
