//! Parameters of the 0.3 JSON-RPC methods that differ from 1.0, and push configurations.

use std::collections::BTreeMap;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, IgnoredAny, MapAccess},
    ser::SerializeMap,
};

use super::{Array, Read, V03Json, Write, members, nested, optional, or_default, text};
use crate::protocol::{
    json::{Members, any, number},
    pb::{
        v1::{
            AgentCard, AuthenticationInfo, GetExtendedAgentCardRequest, ListTaskPushNotificationConfigsResponse,
            Message, SendMessageConfiguration, SendMessageRequest, Task, TaskPushNotificationConfig,
        },
        wkt::{Empty, Struct},
    },
    snapshot::Snapshot,
    v03::{card, message::returns_at_once, push_extras::PushExtras},
};

/// Members of the parameters of a send.
#[derive(Clone, Debug, Default)]
pub struct SendDraft {
    message: Option<Message>,
    message_id: String,
    configuration: Option<WithExtras<SendMessageConfiguration>>,
    metadata: Option<Struct>,
}

members! { SendDraft, "MessageSendParams" {
    1 "message" => message = nested;
    2 "configuration" => configuration = nested;
    3 "metadata" => metadata = any;
    // An example of 0.2 has the id of the message here.
    4 "messageId" "message_id" => message_id = or_default;
} }

/// Message of 1.0, and the members of its push configuration that 1.0 lacks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WithExtras<T> {
    /// The message.
    pub message: T,
    /// Members that it lacks.
    pub extras: PushExtras,
}

/// Separates an optional message from the members that it lacks.
fn split<T>(read: Option<WithExtras<T>>) -> (Option<T>, PushExtras) {
    let (message, extras) = read.map(|read| (read.message, read.extras)).unzip();
    (message, extras.unwrap_or_default())
}

impl V03Json for WithExtras<SendMessageRequest> {
    type Draft = SendDraft;

    fn finish<E: Error>(draft: SendDraft) -> Result<Self, E> {
        let SendDraft { mut message, message_id, configuration, metadata } = draft;
        if let Some(message) = message.as_mut().filter(|message| message.message_id.is_empty()) {
            message.message_id = message_id;
        }
        let (configuration, extras) = split(configuration);
        let message = SendMessageRequest { message, configuration, metadata, tenant: String::new() };
        Ok(Self { message, extras })
    }
}

impl Serialize for Write<'_, SendMessageRequest> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (request, mut map) = (self.0, serializer.serialize_map(None)?);
        optional(&mut map, "message", request.message.as_ref().map(Write))?;
        optional(&mut map, "configuration", request.configuration.as_ref().map(Write))?;
        optional(&mut map, "metadata", request.metadata.as_ref())?;
        map.end()
    }
}

/// Members of the configuration of a send.
#[derive(Clone, Debug, Default)]
pub struct ConfigurationDraft {
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

impl V03Json for WithExtras<SendMessageConfiguration> {
    type Draft = ConfigurationDraft;

    fn finish<E: Error>(draft: ConfigurationDraft) -> Result<Self, E> {
        let ConfigurationDraft { configuration, blocking, push } = draft;
        let return_immediately = returns_at_once(blocking, push.is_some());
        let (task_push_notification_config, extras) = split(push.map(|Push(read)| read));
        let message = SendMessageConfiguration { return_immediately, task_push_notification_config, ..configuration };
        Ok(Self { message, extras })
    }
}

impl Serialize for Write<'_, SendMessageConfiguration> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (configuration, mut map) = (self.0, serializer.serialize_map(None)?);
        let no_extras = PushExtras::default();
        let push = configuration.task_push_notification_config.as_ref();
        if !configuration.accepted_output_modes.is_empty() {
            map.serialize_entry("acceptedOutputModes", &configuration.accepted_output_modes)?;
        }
        optional(&mut map, "historyLength", configuration.history_length)?;
        let push = push.map(|config| WritePush(Webhook { config, extras: &no_extras }));
        optional(&mut map, "pushNotificationConfig", push)?;
        // Always written, because servers disagree about its default.
        map.serialize_entry("blocking", &!configuration.return_immediately)?;
        map.end()
    }
}

/// Push configuration without its task, and the members that 1.0 lacks.
#[derive(Clone, Debug)]
struct Push(WithExtras<TaskPushNotificationConfig>);

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

impl V03Json for Push {
    type Draft = PushDraft;

    fn finish<E: Error>(PushDraft { config, authentication, headers }: PushDraft) -> Result<Self, E> {
        let Authentication { schemes, credentials } = authentication.unwrap_or_default();
        // Without a scheme there is no authentication. 1.0 lacks further schemes.
        let mut schemes = schemes.into_iter().filter(|scheme| !scheme.is_empty());
        let authentication = schemes.next().map(|scheme| AuthenticationInfo { scheme, credentials });
        let message = TaskPushNotificationConfig { authentication, ..config };
        let extras = PushExtras { schemes: schemes.collect(), headers };
        Ok(Self(WithExtras { message, extras }))
    }
}

/// Authentication for notifications.
#[derive(Clone, Default)]
struct Authentication {
    schemes: Vec<String>,
    credentials: String,
}

members! { Authentication, "PushNotificationAuthenticationInfo" {
    1 "schemes" => schemes = or_default;
    2 "credentials" => credentials = or_default;
} }

impl V03Json for Authentication {
    type Draft = Self;

    fn finish<E: Error>(draft: Self) -> Result<Self, E> {
        Ok(draft)
    }
}

/// Members of a push configuration with its task.
#[derive(Clone, Debug, Default)]
pub struct TaskPushDraft {
    task_id: String,
    push: Option<Push>,
}

members! { TaskPushDraft, "TaskPushNotificationConfig" {
    1 "taskId" "task_id" => task_id = or_default;
    2 "pushNotificationConfig" "push_notification_config" => push = nested;
} }

impl V03Json for TaskPushNotificationConfig {
    type Draft = TaskPushDraft;

    fn finish<E: Error>(draft: TaskPushDraft) -> Result<Self, E> {
        Ok(WithExtras::<Self>::finish::<E>(draft)?.message)
    }
}

impl V03Json for WithExtras<TaskPushNotificationConfig> {
    type Draft = TaskPushDraft;

    fn finish<E: Error>(TaskPushDraft { task_id, push }: TaskPushDraft) -> Result<Self, E> {
        let Push(mut read) = push.ok_or_else(|| E::custom("`pushNotificationConfig` is missing"))?;
        read.message.task_id = task_id;
        Ok(read)
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

impl Serialize for Write<'_, TaskPushNotificationConfig> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Webhook { config: self.0, extras: &PushExtras::default() }.serialize(serializer)
    }
}

/// Push configuration of a task with the members that 1.0 lacks.
#[derive(Clone, Copy, Debug)]
pub struct Webhook<'a> {
    /// The 1.0 configuration.
    pub config: &'a TaskPushNotificationConfig,
    /// Members that 1.0 lacks.
    pub extras: &'a PushExtras,
}

impl Serialize for Webhook<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("taskId", &self.config.task_id)?;
        map.serialize_entry("pushNotificationConfig", &WritePush(*self))?;
        map.end()
    }
}

/// Push configuration without its task.
struct WritePush<'a>(Webhook<'a>);

impl Serialize for WritePush<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (Webhook { config, extras }, mut map) = (self.0, serializer.serialize_map(None)?);
        text(&mut map, "id", &config.id)?;
        map.serialize_entry("url", &config.url)?;
        text(&mut map, "token", &config.token)?;
        let authentication = config.authentication.as_ref().map(|info| WriteAuthentication(info, &extras.schemes));
        optional(&mut map, "authentication", authentication)?;
        if !extras.headers.is_empty() {
            map.serialize_entry("headers", &extras.headers)?;
        }
        map.end()
    }
}

/// Authentication for notifications: the scheme of 1.0, and the further schemes of 0.3.
struct WriteAuthentication<'a>(&'a AuthenticationInfo, &'a [String]);

impl Serialize for WriteAuthentication<'_> {
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

impl<'de> Deserialize<'de> for Read<Snapshot> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Read::<Task>::deserialize(deserializer).map(|Read(task)| Self(task.into()))
    }
}

/// Reads a result without content, which is `null`.
impl<'de> Deserialize<'de> for Read<Empty> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|IgnoredAny| Self(Empty {}))
    }
}

impl<'de> Deserialize<'de> for Read<AgentCard> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        card::from_any(serde_json::Value::deserialize(deserializer)?).map(Self).map_err(D::Error::custom)
    }
}

/// The method has no parameters.
impl Serialize for Write<'_, GetExtendedAgentCardRequest> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_map(Some(0))?.end()
    }
}
