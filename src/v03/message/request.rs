//! Conversions of requests: resource names to ids, and the configuration of a send.

use super::name::{self, ResourceName};
use crate::{
    error::Error,
    pb::{v1, v03},
    v03::semantics::returns_at_once,
};

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

impl From<v1::SendMessageRequest> for v03::SendMessageRequest {
    fn from(request: v1::SendMessageRequest) -> Self {
        let v1::SendMessageRequest { tenant: _, message, configuration, metadata } = request;
        Self { request: message.map(Into::into), configuration: configuration.map(Into::into), metadata }
    }
}

impl From<v03::SendMessageRequest> for v1::SendMessageRequest {
    fn from(request: v03::SendMessageRequest) -> Self {
        let v03::SendMessageRequest { request: message, configuration, metadata } = request;
        let (message, configuration) = (message.map(Into::into), configuration.map(Into::into));
        Self { tenant: String::new(), message, configuration, metadata }
    }
}

impl From<v1::GetTaskRequest> for v03::GetTaskRequest {
    fn from(request: v1::GetTaskRequest) -> Self {
        Self { name: name::of_task(&request.id), history_length: request.history_length.unwrap_or_default() }
    }
}

impl TryFrom<v03::GetTaskRequest> for v1::GetTaskRequest {
    type Error = Error;

    fn try_from(request: v03::GetTaskRequest) -> Result<Self, Error> {
        let history_length = (request.history_length != 0).then_some(request.history_length);
        Ok(Self { tenant: String::new(), id: ResourceName::task("name", &request.name)?, history_length })
    }
}

impl From<v1::CancelTaskRequest> for v03::CancelTaskRequest {
    fn from(request: v1::CancelTaskRequest) -> Self {
        Self { name: name::of_task(&request.id) }
    }
}

impl TryFrom<v03::CancelTaskRequest> for v1::CancelTaskRequest {
    type Error = Error;

    fn try_from(request: v03::CancelTaskRequest) -> Result<Self, Error> {
        Ok(Self { tenant: String::new(), id: ResourceName::task("name", &request.name)?, metadata: None })
    }
}

impl From<v1::SubscribeToTaskRequest> for v03::TaskSubscriptionRequest {
    fn from(request: v1::SubscribeToTaskRequest) -> Self {
        Self { name: name::of_task(&request.id) }
    }
}

impl TryFrom<v03::TaskSubscriptionRequest> for v1::SubscribeToTaskRequest {
    type Error = Error;

    fn try_from(request: v03::TaskSubscriptionRequest) -> Result<Self, Error> {
        Ok(Self { tenant: String::new(), id: ResourceName::task("name", &request.name)? })
    }
}

/// Conversions of a request whose only field names a push configuration.
macro_rules! push_config_request {
    ($($request:ident),*) => { $(
        impl From<v1::$request> for v03::$request {
            fn from(request: v1::$request) -> Self {
                Self { name: name::of_config(&request.task_id, &request.id) }
            }
        }

        impl TryFrom<v03::$request> for v1::$request {
            type Error = Error;

            fn try_from(request: v03::$request) -> Result<Self, Error> {
                let (task_id, id) = ResourceName::config("name", &request.name)?;
                Ok(Self { tenant: String::new(), task_id, id })
            }
        }
    )* };
}

push_config_request!(GetTaskPushNotificationConfigRequest, DeleteTaskPushNotificationConfigRequest);

impl From<v1::ListTaskPushNotificationConfigsRequest> for v03::ListTaskPushNotificationConfigRequest {
    fn from(request: v1::ListTaskPushNotificationConfigsRequest) -> Self {
        let v1::ListTaskPushNotificationConfigsRequest { tenant: _, task_id, page_size, page_token } = request;
        Self { parent: name::of_task(&task_id), page_size, page_token }
    }
}

impl TryFrom<v03::ListTaskPushNotificationConfigRequest> for v1::ListTaskPushNotificationConfigsRequest {
    type Error = Error;

    fn try_from(request: v03::ListTaskPushNotificationConfigRequest) -> Result<Self, Error> {
        let v03::ListTaskPushNotificationConfigRequest { parent, page_size, page_token } = request;
        Ok(Self { tenant: String::new(), task_id: ResourceName::task("parent", &parent)?, page_size, page_token })
    }
}
