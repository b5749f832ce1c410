//! Push notification configurations of a task.

use super::{Client, Error, ErrorKind, required};
use crate::protocol::pb::v1::{
    DeleteTaskPushNotificationConfigRequest, GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest, TaskPushNotificationConfig,
};

/// Maximum number of pages of a list.
const MAX_PAGES: usize = 100;

/// Push notification configurations of a task (4.3). Made by [`Client::push`].
#[derive(Clone, Debug)]
pub struct PushConfigs {
    pub(super) client: Client,
    pub(super) task_id: String,
}

impl PushConfigs {
    /// Adds a configuration: a URL, or one with a token, an id and authentication.
    ///
    /// # Errors
    /// `PushNotificationNotSupported`, `TaskNotFound`, or `InvalidParams` for a URL that the agent does not accept.
    pub async fn create(
        &self,
        config: impl Into<TaskPushNotificationConfig>,
    ) -> Result<TaskPushNotificationConfig, Error> {
        let mut config = config.into();
        config.task_id = required(&self.task_id)?;
        config.tenant.clone_from(&self.client.tenant);
        let request = self.client.call().request(config);
        Ok(self.client.agent.create_task_push_notification_config(request).await?.into_inner())
    }

    /// Returns a configuration.
    ///
    /// # Errors
    /// `TaskNotFound` if there is no such task or configuration.
    pub async fn get(&self, id: &str) -> Result<TaskPushNotificationConfig, Error> {
        let (tenant, task_id, id) = (self.client.tenant.clone(), required(&self.task_id)?, id.to_owned());
        let request = GetTaskPushNotificationConfigRequest { tenant, task_id, id };
        let request = self.client.call().request(request);
        Ok(self.client.agent.get_task_push_notification_config(request).await?.into_inner())
    }

    /// Returns all configurations.
    ///
    /// # Errors
    /// `TaskNotFound`.
    pub async fn list(&self) -> Result<Vec<TaskPushNotificationConfig>, Error> {
        let (mut all, mut page_token) = (Vec::new(), String::new());
        let call = self.client.call();
        for _ in 0..MAX_PAGES {
            let (tenant, task_id) = (self.client.tenant.clone(), required(&self.task_id)?);
            let request = ListTaskPushNotificationConfigsRequest {
                tenant,
                task_id,
                page_token: page_token.clone(),
                ..ListTaskPushNotificationConfigsRequest::default()
            };
            let request = call.clone().request(request);
            let page = self.client.agent.list_task_push_notification_configs(request).await?.into_inner();
            all.extend(page.configs);
            // A token that does not change would be an endless list.
            if page.next_page_token.is_empty() || page.next_page_token == page_token {
                return Ok(all);
            }
            page_token = page.next_page_token;
        }
        let reason = format!("the list of push configurations has more than {MAX_PAGES} pages");
        Err(ErrorKind::InvalidAgentResponse.because(reason))
    }

    /// Deletes a configuration.
    ///
    /// # Errors
    /// `TaskNotFound` if there is no such task.
    pub async fn delete(&self, id: &str) -> Result<(), Error> {
        let (tenant, task_id, id) = (self.client.tenant.clone(), required(&self.task_id)?, id.to_owned());
        let request = DeleteTaskPushNotificationConfigRequest { tenant, task_id, id };
        self.client.agent.delete_task_push_notification_config(self.client.call().request(request)).await?;
        Ok(())
    }
}

conversions! {
    TaskPushNotificationConfig:
    /// Creates a configuration with a URL.
    url: &str => Self { url: url.to_owned(), ..Self::default() };
}
