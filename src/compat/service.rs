//! The service of 0.3, as its proto file has it, over that of 1.0: what both bindings of that file call.

use std::sync::Arc;

use tokio_stream::StreamExt as _;
use tonic::{Request, Response, Status, metadata::MetadataMap};

use super::event::Event;
use crate::{
    call::Version,
    error::Error,
    event,
    extension::ACTIVE,
    pb::{
        v1::{GetExtendedAgentCardRequest, a2a_service_server::A2aService as Service},
        v03::{
            AgentCard, CancelTaskRequest, CreateTaskPushNotificationConfigRequest,
            DeleteTaskPushNotificationConfigRequest, GetAgentCardRequest, GetTaskPushNotificationConfigRequest,
            GetTaskRequest, ListTaskPushNotificationConfigRequest, ListTaskPushNotificationConfigResponse,
            SendMessageRequest, SendMessageResponse, Task, TaskPushNotificationConfig, TaskSubscriptionRequest,
            a2a_service_server::A2aService,
        },
        wkt::Empty,
    },
    transport::transcode::BoxStream,
};

/// A service of 1.0, for callers of 0.3: messages are turned into each other, and errors have its numbers.
#[derive(Clone)]
pub struct V03(pub Arc<dyn Service>);

/// A request whose names are read.
fn read<Old, New: TryFrom<Old, Error = Error>>(request: Request<Old>) -> Result<Request<New>, Status> {
    let (metadata, extensions, message) = request.into_parts();
    let message = New::try_from(message).map_err(|it| it.into_status(Version::V0_3))?;
    Ok(Request::from_parts(metadata, extensions, message))
}

pub(super) fn answer<New, Old: From<New>>(reply: Result<Response<New>, Status>) -> Result<Response<Old>, Status> {
    reply.map(|it| told(it).map(Old::from)).map_err(refusal)
}

fn stream(reply: Result<Response<BoxStream<event::Event>>, Status>) -> Result<Response<BoxStream<Event>>, Status> {
    let events = |it: BoxStream<event::Event>| -> BoxStream<Event> {
        Box::pin(it.map(|it| it.map(Event::from).map_err(refusal)))
    };
    reply.map(|it| told(it).map(events)).map_err(refusal)
}

/// What was active is told under the name that 0.3 asks for it by.
fn told<T>(mut response: Response<T>) -> Response<T> {
    classic_names(response.metadata_mut());
    response
}

/// Gives what a service sends along the names that 0.3 has for it.
pub(crate) fn classic_names(metadata: &mut MetadataMap) {
    if let Some(it) = metadata.remove(ACTIVE) {
        metadata.insert("x-a2a-extensions", it);
    }
}

/// The same refusal, with the numbers of 0.3.
pub(crate) fn refusal(mut status: Status) -> Status {
    let metadata = std::mem::take(status.metadata_mut());
    let mut refusal = Error::from(status).into_status(Version::V0_3);
    *refusal.metadata_mut() = metadata;
    refusal
}

#[tonic::async_trait]
impl A2aService for V03 {
    async fn send_message(
        &self,
        request: Request<SendMessageRequest>,
    ) -> Result<Response<SendMessageResponse>, Status> {
        answer(self.0.send_message(request.map(Into::into)).await)
    }

    async fn send_streaming_message(
        &self,
        request: Request<SendMessageRequest>,
    ) -> Result<Response<BoxStream<Event>>, Status> {
        stream(self.0.send_streaming_message(request.map(Into::into)).await)
    }

    async fn get_task(&self, request: Request<GetTaskRequest>) -> Result<Response<Task>, Status> {
        answer(self.0.get_task(read(request)?).await)
    }

    async fn cancel_task(&self, request: Request<CancelTaskRequest>) -> Result<Response<Task>, Status> {
        answer(self.0.cancel_task(read(request)?).await)
    }

    async fn task_subscription(
        &self,
        request: Request<TaskSubscriptionRequest>,
    ) -> Result<Response<BoxStream<Event>>, Status> {
        stream(self.0.subscribe_to_task(read(request)?).await)
    }

    async fn create_task_push_notification_config(
        &self,
        request: Request<CreateTaskPushNotificationConfigRequest>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        answer(self.0.create_task_push_notification_config(read(request)?).await)
    }

    async fn get_task_push_notification_config(
        &self,
        request: Request<GetTaskPushNotificationConfigRequest>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        answer(self.0.get_task_push_notification_config(read(request)?).await)
    }

    async fn list_task_push_notification_config(
        &self,
        request: Request<ListTaskPushNotificationConfigRequest>,
    ) -> Result<Response<ListTaskPushNotificationConfigResponse>, Status> {
        answer(self.0.list_task_push_notification_configs(read(request)?).await)
    }

    async fn delete_task_push_notification_config(
        &self,
        request: Request<DeleteTaskPushNotificationConfigRequest>,
    ) -> Result<Response<Empty>, Status> {
        answer(self.0.delete_task_push_notification_config(read(request)?).await)
    }

    async fn get_agent_card(&self, request: Request<GetAgentCardRequest>) -> Result<Response<AgentCard>, Status> {
        let request = request.map(|GetAgentCardRequest {}| GetExtendedAgentCardRequest::default());
        answer(self.0.get_extended_agent_card(request).await)
    }
}

impl std::fmt::Debug for V03 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("V03")
    }
}
