//! `a2a.v1.A2AService`, implemented on the 1.0 service. gRPC and HTTP+JSON of 0.3 call it.

use std::sync::Arc;

use tokio_stream::StreamExt as _;
use tonic::{Extensions, Request, Response, Status, metadata::MetadataMap};

use crate::{
    protocol::{
        Error, Version, event,
        pb::{
            v1::{self, GetExtendedAgentCardRequest, a2a_service_server::A2aService as Service},
            v03::{
                AgentCard, CancelTaskRequest, CreateTaskPushNotificationConfigRequest,
                DeleteTaskPushNotificationConfigRequest, GetAgentCardRequest, GetTaskPushNotificationConfigRequest,
                GetTaskRequest, ListTaskPushNotificationConfigRequest, ListTaskPushNotificationConfigResponse,
                SendMessageRequest, SendMessageResponse, Task, TaskPushNotificationConfig, TaskSubscriptionRequest,
            },
            wkt::Empty,
        },
        rpc::{BoxStream, ServiceResult},
        snapshot::{Snapshot, decoded},
        v03::{event::Event, file_encoding::FileEncoding, pb::a2a_service_server::A2aService, push_extras::PushExtras},
    },
    service::wrappers::extended::ACTIVE,
};

/// Adapter from the 1.0 service to `a2a.v1.A2AService`: converts requests, responses, events and error codes.
#[derive(Clone)]
pub(crate) struct GrpcService(pub(crate) Arc<dyn Service>);

/// Converts a request, parsing the resource names in it.
fn convert_request<Old, New: TryFrom<Old, Error = Error>>(request: Request<Old>) -> Result<Request<New>, Status> {
    let (metadata, extensions, message) = request.into_parts();
    let message = New::try_from(message).map_err(|error| error.into_status(Version::V0_3))?;
    Ok(Request::from_parts(metadata, extensions, message))
}

/// Converts a send, passing the members of its push configuration that 1.0 lacks as a request extension.
fn convert_send(request: Request<SendMessageRequest>) -> Result<Request<v1::SendMessageRequest>, Status> {
    let configuration = request.get_ref().configuration.as_ref();
    let extras = PushExtras::of(configuration.and_then(|configuration| configuration.push_notification.as_ref()));
    let mut request = request.map(Into::into);
    attach_extras(&extras, "configuration.pushNotification.", request.extensions_mut())?;
    Ok(request)
}

fn attach_extras(extras: &PushExtras, at: &str, extensions: &mut Extensions) -> Result<(), Status> {
    extras.put(at, extensions).map_err(|error| error.into_status(Version::V0_3))
}

/// Adds the stored further schemes to the push configuration of a response.
fn with_extras(mut response: Response<TaskPushNotificationConfig>) -> Response<TaskPushNotificationConfig> {
    let extras = PushExtras::public(response.extensions());
    extras.restore(response.get_mut());
    response
}

/// Converts a response, its metadata and its error.
pub(crate) fn convert_response<New, Old: From<New>>(reply: ServiceResult<New>) -> ServiceResult<Old> {
    reply.map(|response| rename_metadata(response).map(Old::from)).map_err(to_v03_status)
}

/// Converts a task response, decoding the task if necessary.
fn convert_task(reply: ServiceResult<Snapshot>) -> ServiceResult<Task> {
    convert_response(reply.and_then(|response| Ok(decoded(response)?)))
}

/// Converts a stream response and each of its events and errors.
fn convert_stream(
    files: FileEncoding,
    reply: ServiceResult<BoxStream<event::Event>>,
) -> ServiceResult<BoxStream<Event>> {
    let convert_events = |events: BoxStream<event::Event>| -> BoxStream<Event> {
        Box::pin(events.map(move |item| item.map(|event| files.write(Event::from(event))).map_err(to_v03_status)))
    };
    reply.map(|response| rename_metadata(response).map(convert_events)).map_err(to_v03_status)
}

fn rename_metadata<T>(mut response: Response<T>) -> Response<T> {
    rename_extensions(response.metadata_mut());
    response
}

/// Renames response metadata to the names of 0.3: active extensions are in `X-A2A-Extensions`.
pub(crate) fn rename_extensions(metadata: &mut MetadataMap) {
    if let Some(extensions) = metadata.remove(ACTIVE) {
        metadata.insert("x-a2a-extensions", extensions);
    }
}

/// Converts an error status to the codes of 0.3, with its metadata unchanged.
pub(crate) fn to_v03_status(mut status: Status) -> Status {
    let metadata = std::mem::take(status.metadata_mut());
    let mut converted = Error::from(status).into_status(Version::V0_3);
    *converted.metadata_mut() = metadata;
    converted
}

#[tonic::async_trait]
impl A2aService for GrpcService {
    async fn send_message(&self, request: Request<SendMessageRequest>) -> ServiceResult<SendMessageResponse> {
        let files = FileEncoding::of(&request);
        files.reply(convert_response(self.0.send_message(convert_send(files.read(request))?).await))
    }

    async fn send_streaming_message(&self, request: Request<SendMessageRequest>) -> ServiceResult<BoxStream<Event>> {
        let files = FileEncoding::of(&request);
        convert_stream(files, self.0.send_streaming_message(convert_send(files.read(request))?).await)
    }

    async fn get_task(&self, request: Request<GetTaskRequest>) -> ServiceResult<Task> {
        FileEncoding::of(&request).reply(convert_task(self.0.get_task(convert_request(request)?).await))
    }

    async fn cancel_task(&self, request: Request<CancelTaskRequest>) -> ServiceResult<Task> {
        FileEncoding::of(&request).reply(convert_task(self.0.cancel_task(convert_request(request)?).await))
    }

    async fn task_subscription(&self, request: Request<TaskSubscriptionRequest>) -> ServiceResult<BoxStream<Event>> {
        convert_stream(FileEncoding::of(&request), self.0.subscribe_to_task(convert_request(request)?).await)
    }

    async fn create_task_push_notification_config(
        &self,
        request: Request<CreateTaskPushNotificationConfigRequest>,
    ) -> ServiceResult<TaskPushNotificationConfig> {
        let config = request.get_ref().config.as_ref();
        let extras = PushExtras::of(config.and_then(|config| config.push_notification_config.as_ref()));
        let mut request = convert_request(request)?;
        attach_extras(&extras, "config.pushNotificationConfig.", request.extensions_mut())?;
        convert_response(self.0.create_task_push_notification_config(request).await).map(with_extras)
    }

    async fn get_task_push_notification_config(
        &self,
        request: Request<GetTaskPushNotificationConfigRequest>,
    ) -> ServiceResult<TaskPushNotificationConfig> {
        convert_response(self.0.get_task_push_notification_config(convert_request(request)?).await).map(with_extras)
    }

    async fn list_task_push_notification_config(
        &self,
        request: Request<ListTaskPushNotificationConfigRequest>,
    ) -> ServiceResult<ListTaskPushNotificationConfigResponse> {
        let mut response: Response<ListTaskPushNotificationConfigResponse> =
            convert_response(self.0.list_task_push_notification_configs(convert_request(request)?).await)?;
        let all_extras = PushExtras::public_of_each(response.extensions());
        response.get_mut().configs.iter_mut().zip(all_extras).for_each(|(config, extras)| extras.restore(config));
        Ok(response)
    }

    async fn delete_task_push_notification_config(
        &self,
        request: Request<DeleteTaskPushNotificationConfigRequest>,
    ) -> ServiceResult<Empty> {
        convert_response(self.0.delete_task_push_notification_config(convert_request(request)?).await)
    }

    async fn get_agent_card(&self, request: Request<GetAgentCardRequest>) -> ServiceResult<AgentCard> {
        let request = request.map(|GetAgentCardRequest {}| GetExtendedAgentCardRequest::default());
        convert_response(self.0.get_extended_agent_card(request).await)
    }
}
