//! The service of 0.3, as its proto file has it, over that of 1.0: what both bindings of that file call.

use std::sync::Arc;

use tokio_stream::StreamExt as _;
use tonic::{Extensions, Request, Response, Status, metadata::MetadataMap};

use super::{event::Event, file_part::FileEncoding, push_extras::PushExtras};
use crate::{
    call::Version,
    contract::BoxStream,
    error::Error,
    event,
    extension::ACTIVE,
    pb::{
        v1::{self, GetExtendedAgentCardRequest, a2a_service_server::A2aService as Service},
        v03::{
            AgentCard, CancelTaskRequest, CreateTaskPushNotificationConfigRequest,
            DeleteTaskPushNotificationConfigRequest, GetAgentCardRequest, GetTaskPushNotificationConfigRequest,
            GetTaskRequest, ListTaskPushNotificationConfigRequest, ListTaskPushNotificationConfigResponse,
            SendMessageRequest, SendMessageResponse, Task, TaskPushNotificationConfig, TaskSubscriptionRequest,
            a2a_service_server::A2aService,
        },
        wkt::Empty,
    },
    snapshot::{Snapshot, decoded},
};

/// A service of 1.0, for callers of 0.3: messages are turned into each other, and errors have its numbers.
#[derive(Clone)]
pub struct GrpcService(pub Arc<dyn Service>);

/// A request whose names are read.
fn read<Old, New: TryFrom<Old, Error = Error>>(request: Request<Old>) -> Result<Request<New>, Status> {
    let (metadata, extensions, message) = request.into_parts();
    let message = New::try_from(message).map_err(|it| it.into_status(Version::V0_3))?;
    Ok(Request::from_parts(metadata, extensions, message))
}

/// A message that is sent. A configuration in it may say more than 1.0 has of it.
fn sent(request: Request<SendMessageRequest>) -> Result<Request<v1::SendMessageRequest>, Status> {
    let configuration = request.get_ref().configuration.as_ref();
    let further = PushExtras::of(configuration.and_then(|it| it.push_notification.as_ref()));
    let mut request = request.map(Into::into);
    put(&further, "configuration.pushNotification.", request.extensions_mut())?;
    Ok(request)
}

fn put(further: &PushExtras, at: &str, extensions: &mut Extensions) -> Result<(), Status> {
    further.put(at, extensions).map_err(|it| it.into_status(Version::V0_3))
}

/// A configuration with what was kept beside it.
fn restored(mut response: Response<TaskPushNotificationConfig>) -> Response<TaskPushNotificationConfig> {
    let kept = PushExtras::kept(response.extensions());
    kept.restore(response.get_mut());
    response
}

pub(super) fn answer<New, Old: From<New>>(reply: Result<Response<New>, Status>) -> Result<Response<Old>, Status> {
    reply.map(|it| told(it).map(Old::from)).map_err(refusal)
}

/// The same of a task, which may not have been decoded yet.
fn task(reply: Result<Response<Snapshot>, Status>) -> Result<Response<Task>, Status> {
    answer(reply.and_then(|it| Ok(decoded(it)?)))
}

fn stream(
    files: FileEncoding,
    reply: Result<Response<BoxStream<event::Event>>, Status>,
) -> Result<Response<BoxStream<Event>>, Status> {
    let events = |it: BoxStream<event::Event>| -> BoxStream<Event> {
        Box::pin(it.map(move |it| it.map(|it| files.write(Event::from(it))).map_err(refusal)))
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
impl A2aService for GrpcService {
    async fn send_message(
        &self,
        request: Request<SendMessageRequest>,
    ) -> Result<Response<SendMessageResponse>, Status> {
        let files = FileEncoding::of(&request);
        files.reply(answer(self.0.send_message(sent(files.read(request))?).await))
    }

    async fn send_streaming_message(
        &self,
        request: Request<SendMessageRequest>,
    ) -> Result<Response<BoxStream<Event>>, Status> {
        let files = FileEncoding::of(&request);
        stream(files, self.0.send_streaming_message(sent(files.read(request))?).await)
    }

    async fn get_task(&self, request: Request<GetTaskRequest>) -> Result<Response<Task>, Status> {
        FileEncoding::of(&request).reply(task(self.0.get_task(read(request)?).await))
    }

    async fn cancel_task(&self, request: Request<CancelTaskRequest>) -> Result<Response<Task>, Status> {
        FileEncoding::of(&request).reply(task(self.0.cancel_task(read(request)?).await))
    }

    async fn task_subscription(
        &self,
        request: Request<TaskSubscriptionRequest>,
    ) -> Result<Response<BoxStream<Event>>, Status> {
        stream(FileEncoding::of(&request), self.0.subscribe_to_task(read(request)?).await)
    }

    async fn create_task_push_notification_config(
        &self,
        request: Request<CreateTaskPushNotificationConfigRequest>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        let config = request.get_ref().config.as_ref().and_then(|it| it.push_notification_config.as_ref());
        let further = PushExtras::of(config);
        let mut request = read(request)?;
        put(&further, "config.pushNotificationConfig.", request.extensions_mut())?;
        answer(self.0.create_task_push_notification_config(request).await).map(restored)
    }

    async fn get_task_push_notification_config(
        &self,
        request: Request<GetTaskPushNotificationConfigRequest>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        answer(self.0.get_task_push_notification_config(read(request)?).await).map(restored)
    }

    async fn list_task_push_notification_config(
        &self,
        request: Request<ListTaskPushNotificationConfigRequest>,
    ) -> Result<Response<ListTaskPushNotificationConfigResponse>, Status> {
        let mut response: Response<ListTaskPushNotificationConfigResponse> =
            answer(self.0.list_task_push_notification_configs(read(request)?).await)?;
        let kept = PushExtras::kept_of_each(response.extensions());
        response.get_mut().configs.iter_mut().zip(kept).for_each(|(config, kept)| kept.restore(config));
        Ok(response)
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

impl std::fmt::Debug for GrpcService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("V03")
    }
}
