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
//! | `Part.raw` | base64 text in `fileWithBytes`, or raw bytes for clients that expect them (`v03_file_bytes`) | valid base64 text is decoded; other bytes are taken as the file contents |
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

use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::resource_name::{self, ResourceName};
use crate::protocol::{
    error::Error,
    pb::{
        v1::{self, TaskPushNotificationConfig as Config, part::Content},
        v03::{self, DataPart, FilePart, PushNotificationConfig, file_part::File, part::Part as OldPart},
        wkt::{Struct, Value, value::Kind},
    },
};

crate::protocol::messages::generated! {
    /// Conversions of messages whose fields correspond.
    pub mod fields {
        use super::*;

        include!(concat!(env!("OUT_DIR"), "/v03/conversions.rs"));
    }
}

fn convert_all<T, U: From<T>>(items: Vec<T>) -> Vec<U> {
    items.into_iter().map(U::from).collect()
}

/// Returns whether a status update is the last one of its task.
fn is_final(update: &v1::TaskStatusUpdateEvent) -> bool {
    update.status.as_ref().is_some_and(|status| status.state().is_terminal())
}

/// Converts the message of a status. An empty one is unset: some clients print unset messages as empty ones.
fn status_message(message: Option<v03::Message>) -> Option<v1::Message> {
    message.filter(|message| !message.message_id.is_empty() || !message.content.is_empty()).map(Into::into)
}

// Parts: 0.3 has text, file and data parts, 1.0 has one message for all of them.

/// Metadata key that marks wrapped data: the data is an object whose [`WRAPPED_VALUE`] member is the 1.0 value. SDKs of
/// both versions use it.
pub(crate) const WRAPPED_MARK: &str = "data_part_compat";

/// Member of a wrapper object that holds the 1.0 value.
pub(crate) const WRAPPED_VALUE: &str = "value";

/// Unwraps marked data and removes the mark from `metadata`. Returns other data unchanged.
pub(crate) fn unwrap_data(data: Value, metadata: &mut Option<Struct>) -> Value {
    let is_marked = |metadata: &Struct| {
        metadata.fields.get(WRAPPED_MARK).is_some_and(|mark| mark.kind == Some(Kind::BoolValue(true)))
    };
    let Some(marked) = metadata.as_mut().filter(|metadata| is_marked(metadata)) else { return data };
    match data.kind {
        Some(Kind::StructValue(mut wrapper))
            if wrapper.fields.len() == 1 && wrapper.fields.contains_key(WRAPPED_VALUE) =>
        {
            marked.fields.remove(WRAPPED_MARK);
            if marked.fields.is_empty() {
                *metadata = None;
            }
            wrapper.fields.remove(WRAPPED_VALUE).unwrap_or_default()
        }
        kind => Value { kind },
    }
}

impl From<v1::Part> for v03::Part {
    fn from(part: v1::Part) -> Self {
        let v1::Part { content, mut metadata, filename: name, media_type: mime_type } = part;
        let part = match content {
            None => None,
            Some(Content::Text(text)) => Some(OldPart::Text(text)),
            Some(Content::Raw(raw)) => {
                let file = Some(File::FileWithBytes(STANDARD.encode(raw).into()));
                Some(OldPart::File(FilePart { mime_type, name, file }))
            }
            Some(Content::Url(url)) => {
                Some(OldPart::File(FilePart { mime_type, name, file: Some(File::FileWithUri(url)) }))
            }
            Some(Content::Data(Value { kind: Some(Kind::StructValue(data)) })) => {
                Some(OldPart::Data(DataPart { data: Some(data) }))
            }
            Some(Content::Data(value)) => {
                let mark = Value { kind: Some(Kind::BoolValue(true)) };
                metadata.get_or_insert_default().fields.insert(WRAPPED_MARK.to_owned(), mark);
                let data = Struct { fields: [(WRAPPED_VALUE.to_owned(), value)].into() };
                Some(OldPart::Data(DataPart { data: Some(data) }))
            }
        };
        Self { part, metadata }
    }
}

impl From<v03::Part> for v1::Part {
    fn from(part: v03::Part) -> Self {
        let v03::Part { part, mut metadata } = part;
        let (mut filename, mut media_type) = (String::new(), String::new());
        let content = match part {
            None => None,
            Some(OldPart::Text(text)) => Some(Content::Text(text)),
            Some(OldPart::File(FilePart { mime_type, name, file })) => {
                (filename, media_type) = (name, mime_type);
                file.map(|file| match file {
                    File::FileWithUri(uri) => Content::Url(uri),
                    // Most clients send base64 text, and some raw bytes, which are rarely valid base64.
                    File::FileWithBytes(bytes) => Content::Raw(STANDARD.decode(&bytes).unwrap_or(bytes)),
                })
            }
            Some(OldPart::Data(DataPart { data })) => {
                let data = Kind::StructValue(data.unwrap_or_default()).into();
                Some(Content::Data(unwrap_data(data, &mut metadata)))
            }
        };
        Self { content, metadata, filename, media_type }
    }
}

// Push notification configurations: 0.3 nests them under a resource name, 1.0 has one flat message.

impl From<v1::AuthenticationInfo> for v03::AuthenticationInfo {
    fn from(info: v1::AuthenticationInfo) -> Self {
        let v1::AuthenticationInfo { scheme, credentials } = info;
        Self { schemes: vec![scheme], credentials }
    }
}

/// Returns the first scheme with the credentials, or `None` if there is no scheme.
fn first_scheme(info: v03::AuthenticationInfo) -> Option<v1::AuthenticationInfo> {
    let v03::AuthenticationInfo { schemes, credentials } = info;
    Some(v1::AuthenticationInfo { scheme: schemes.into_iter().next()?, credentials })
}

impl From<Config> for PushNotificationConfig {
    fn from(config: Config) -> Self {
        let Config { tenant: _, id, task_id: _, url, token, authentication } = config;
        Self { id, url, token, authentication: authentication.map(Into::into) }
    }
}

/// `task_id` is left empty: a configuration in a send belongs to the task of the message.
impl From<PushNotificationConfig> for Config {
    fn from(config: PushNotificationConfig) -> Self {
        let PushNotificationConfig { id, url, token, authentication } = config;
        let (tenant, task_id) = (String::new(), String::new());
        Self { tenant, id, task_id, url, token, authentication: authentication.and_then(first_scheme) }
    }
}

impl From<Config> for v03::TaskPushNotificationConfig {
    fn from(config: Config) -> Self {
        let name = resource_name::of_config(&config.task_id, &config.id);
        Self { name, push_notification_config: Some(config.into()) }
    }
}

impl TryFrom<v03::TaskPushNotificationConfig> for Config {
    type Error = Error;

    fn try_from(config: v03::TaskPushNotificationConfig) -> Result<Self, Error> {
        let v03::TaskPushNotificationConfig { name, push_notification_config } = config;
        let (task_id, id) = ResourceName::config("name", &name)?;
        let config = Self::from(push_notification_config.unwrap_or_default());
        // The id in the name takes precedence: get and delete use it.
        let id = if id.is_empty() { config.id } else { id };
        Ok(Self { task_id, id, ..config })
    }
}

impl From<Config> for v03::CreateTaskPushNotificationConfigRequest {
    fn from(config: Config) -> Self {
        Self {
            parent: resource_name::of_task(&config.task_id),
            config_id: config.id.clone(),
            config: Some(config.into()),
        }
    }
}

impl TryFrom<v03::CreateTaskPushNotificationConfigRequest> for Config {
    type Error = Error;

    /// Takes the task id from `parent` (the path in HTTP+JSON), else from `config.name`. Takes the configuration id from
    /// `config_id`, else from the configuration, else from `config.name`.
    fn try_from(request: v03::CreateTaskPushNotificationConfigRequest) -> Result<Self, Error> {
        let v03::CreateTaskPushNotificationConfigRequest { parent, config_id, config } = request;
        let v03::TaskPushNotificationConfig { name, push_notification_config } = config.unwrap_or_default();
        let name = ResourceName::parse(&name);
        let task_id = match (parent.is_empty(), name) {
            (true, Some(name)) => name.task.to_owned(),
            _ => ResourceName::task("parent", &parent)?,
        };
        let config = Self::from(push_notification_config.unwrap_or_default());
        let id_in_name = name.map(|name| name.config.to_owned()).unwrap_or_default();
        let id = [config_id, config.id, id_in_name].into_iter().find(|id| !id.is_empty()).unwrap_or_default();
        Ok(Self { task_id, id, ..config })
    }
}

impl From<v1::ListTaskPushNotificationConfigsResponse> for v03::ListTaskPushNotificationConfigResponse {
    fn from(response: v1::ListTaskPushNotificationConfigsResponse) -> Self {
        let v1::ListTaskPushNotificationConfigsResponse { configs, next_page_token } = response;
        Self { configs: convert_all(configs), next_page_token }
    }
}

impl TryFrom<v03::ListTaskPushNotificationConfigResponse> for v1::ListTaskPushNotificationConfigsResponse {
    type Error = Error;

    fn try_from(response: v03::ListTaskPushNotificationConfigResponse) -> Result<Self, Error> {
        let v03::ListTaskPushNotificationConfigResponse { configs, next_page_token } = response;
        let configs = configs.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?;
        Ok(Self { configs, next_page_token })
    }
}

// Requests: resource names in 0.3 are ids in 1.0.

/// Returns `returnImmediately` of 1.0 for a send with a `configuration`. A send without one blocks in every binding.
///
/// `blocking` is `None` only in JSON-RPC: in gRPC and HTTP+JSON an unset `blocking` is `Some(false)`, since clients omit
/// default values. `push` is true if the configuration contains a push configuration: the client expects the result there.
pub(crate) const fn returns_at_once(blocking: Option<bool>, push: bool) -> bool {
    match blocking {
        Some(blocking) => !blocking,
        None => push,
    }
}

impl From<v1::SendMessageConfiguration> for v03::SendMessageConfiguration {
    fn from(configuration: v1::SendMessageConfiguration) -> Self {
        let v1::SendMessageConfiguration { accepted_output_modes, history_length, return_immediately, .. } =
            configuration;
        Self {
            accepted_output_modes,
            push_notification: configuration.task_push_notification_config.map(Into::into),
            history_length: history_length.unwrap_or_default(),
            blocking: !return_immediately,
        }
    }
}

impl From<v03::SendMessageConfiguration> for v1::SendMessageConfiguration {
    fn from(configuration: v03::SendMessageConfiguration) -> Self {
        let v03::SendMessageConfiguration { accepted_output_modes, push_notification, history_length, blocking } =
            configuration;
        Self {
            accepted_output_modes,
            return_immediately: returns_at_once(Some(blocking), push_notification.is_some()),
            task_push_notification_config: push_notification.map(Into::into),
            history_length: (history_length != 0).then_some(history_length),
        }
    }
}

/// Converts requests, in which 0.3 names tasks and push configurations by a resource name.
macro_rules! convert_requests {
    ($request:ident; $(
        $old:ident { $($old_field:ident: $to_old:expr,)+ } = $new:ident { $($new_field:ident: $to_new:expr,)+ }
    )+) => { $(
        impl From<v1::$new> for v03::$old {
            fn from($request: v1::$new) -> Self {
                Self { $($old_field: $to_old),+ }
            }
        }

        impl TryFrom<v03::$old> for v1::$new {
            type Error = Error;

            fn try_from($request: v03::$old) -> Result<Self, Error> {
                Ok(Self { $($new_field: $to_new,)+ ..Self::default() })
            }
        }
    )+ };
}

convert_requests! { request;
    GetTaskRequest {
        name: resource_name::of_task(&request.id),
        history_length: request.history_length.unwrap_or_default(),
    } = GetTaskRequest {
        id: ResourceName::task("name", &request.name)?,
        history_length: Some(request.history_length).filter(|length| *length != 0),
    }
    CancelTaskRequest { name: resource_name::of_task(&request.id), } = CancelTaskRequest {
        id: ResourceName::task("name", &request.name)?,
    }
    TaskSubscriptionRequest { name: resource_name::of_task(&request.id), } = SubscribeToTaskRequest {
        id: ResourceName::task("name", &request.name)?,
    }
    GetTaskPushNotificationConfigRequest {
        name: resource_name::of_config(&request.task_id, &request.id),
    } = GetTaskPushNotificationConfigRequest {
        task_id: ResourceName::config("name", &request.name)?.0,
        id: ResourceName::config("name", &request.name)?.1,
    }
    DeleteTaskPushNotificationConfigRequest {
        name: resource_name::of_config(&request.task_id, &request.id),
    } = DeleteTaskPushNotificationConfigRequest {
        task_id: ResourceName::config("name", &request.name)?.0,
        id: ResourceName::config("name", &request.name)?.1,
    }
    ListTaskPushNotificationConfigRequest {
        parent: resource_name::of_task(&request.task_id),
        page_size: request.page_size,
        page_token: request.page_token,
    } = ListTaskPushNotificationConfigsRequest {
        task_id: ResourceName::task("parent", &request.parent)?,
        page_size: request.page_size,
        page_token: request.page_token,
    }
}

#[cfg(test)]
mod tests;
