//! Conversions of push notification configurations: 0.3 nests them under a resource name, 1.0 has one flat message.

use super::name::{self, ResourceName};
use crate::{
    error::Error,
    pb::{
        v1::{self, TaskPushNotificationConfig as Config},
        v03::{self, PushNotificationConfig},
    },
};

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
        let name = name::of_config(&config.task_id, &config.id);
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
        Self { parent: name::of_task(&config.task_id), config_id: config.id.clone(), config: Some(config.into()) }
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
        Self { configs: super::convert_all(configs), next_page_token }
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
