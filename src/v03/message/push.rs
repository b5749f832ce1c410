//! Push configurations: nested in 0.3, under a name, and flat in 1.0.

use super::name::{self, ResourceName};
use crate::{
    error::Error,
    pb::{
        v1::{self, TaskPushNotificationConfig as Config},
        v03::{self, PushNotificationConfig},
    },
};

impl From<v1::AuthenticationInfo> for v03::AuthenticationInfo {
    fn from(it: v1::AuthenticationInfo) -> Self {
        let v1::AuthenticationInfo { scheme, credentials } = it;
        Self { schemes: vec![scheme], credentials }
    }
}

/// One without a scheme says nothing of how to authenticate.
fn authentication(it: v03::AuthenticationInfo) -> Option<v1::AuthenticationInfo> {
    let v03::AuthenticationInfo { schemes, credentials } = it;
    Some(v1::AuthenticationInfo { scheme: schemes.into_iter().next()?, credentials })
}

impl From<Config> for PushNotificationConfig {
    fn from(it: Config) -> Self {
        let Config { tenant: _, id, task_id: _, url, token, authentication } = it;
        Self { id, url, token, authentication: authentication.map(Into::into) }
    }
}

/// One that comes with a message, and so is of the task of that.
impl From<PushNotificationConfig> for Config {
    fn from(it: PushNotificationConfig) -> Self {
        let PushNotificationConfig { id, url, token, authentication: auth } = it;
        let (tenant, task_id) = (String::new(), String::new());
        Self { tenant, id, task_id, url, token, authentication: auth.and_then(authentication) }
    }
}

impl From<Config> for v03::TaskPushNotificationConfig {
    fn from(it: Config) -> Self {
        let name = name::of_config(&it.task_id, &it.id);
        Self { name, push_notification_config: Some(it.into()) }
    }
}

impl TryFrom<v03::TaskPushNotificationConfig> for Config {
    type Error = Error;

    fn try_from(it: v03::TaskPushNotificationConfig) -> Result<Self, Error> {
        let v03::TaskPushNotificationConfig { name, push_notification_config } = it;
        let (task_id, id) = ResourceName::config("name", &name)?;
        let config = Self::from(push_notification_config.unwrap_or_default());
        // Its name is what it is found by.
        let id = if id.is_empty() { config.id } else { id };
        Ok(Self { task_id, id, ..config })
    }
}

impl From<Config> for v03::CreateTaskPushNotificationConfigRequest {
    fn from(it: Config) -> Self {
        Self { parent: name::of_task(&it.task_id), config_id: it.id.clone(), config: Some(it.into()) }
    }
}

impl TryFrom<v03::CreateTaskPushNotificationConfigRequest> for Config {
    type Error = Error;

    /// The task is that of `parent`, which is the path in HTTP, else of the configuration's name; and so with the id.
    fn try_from(it: v03::CreateTaskPushNotificationConfigRequest) -> Result<Self, Error> {
        let v03::CreateTaskPushNotificationConfigRequest { parent, config_id, config } = it;
        let v03::TaskPushNotificationConfig { name, push_notification_config } = config.unwrap_or_default();
        let named = ResourceName::parse(&name);
        let task_id = match (parent.is_empty(), named) {
            (true, Some(it)) => it.task.to_owned(),
            _ => ResourceName::task("parent", &parent)?,
        };
        let config = Self::from(push_notification_config.unwrap_or_default());
        let named = named.map(|it| it.config.to_owned()).unwrap_or_default();
        let id = [config_id, config.id, named].into_iter().find(|it| !it.is_empty()).unwrap_or_default();
        Ok(Self { task_id, id, ..config })
    }
}

impl From<v1::ListTaskPushNotificationConfigsResponse> for v03::ListTaskPushNotificationConfigResponse {
    fn from(it: v1::ListTaskPushNotificationConfigsResponse) -> Self {
        let v1::ListTaskPushNotificationConfigsResponse { configs, next_page_token } = it;
        Self { configs: super::each(configs), next_page_token }
    }
}

impl TryFrom<v03::ListTaskPushNotificationConfigResponse> for v1::ListTaskPushNotificationConfigsResponse {
    type Error = Error;

    fn try_from(it: v03::ListTaskPushNotificationConfigResponse) -> Result<Self, Error> {
        let v03::ListTaskPushNotificationConfigResponse { configs, next_page_token } = it;
        let configs = configs.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?;
        Ok(Self { configs, next_page_token })
    }
}
