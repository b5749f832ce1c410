//! An agent of protocol 0.3 as a service of 1.0: the other side of the doors of 0.3, for the scenarios to call.

use std::sync::Arc;

use a2a_service::{
    call::{Call, Version},
    client::{self, http::Rest},
    contract::{BoxStream, HttpRule, Remote, Reply, Transport},
    error::Error,
    event::Event,
    pb::{
        v1::{a2a_service_server::A2aService, *},
        v03::{a2a_service_client::A2aServiceClient, a2a_service_server},
        wkt::Empty,
    },
    snapshot::Snapshot,
    v03::event::Event as ClassicEvent,
};
use tokio_stream::StreamExt as _;
use tonic::{Request, Response, Status, transport::Endpoint};

pub(crate) fn grpc(url: &str) -> Arc<dyn A2aService> {
    let channel = Endpoint::from_shared(url.to_owned()).unwrap().connect_lazy();
    Arc::new(Classic(Arc::new(A2aServiceClient::new(channel))))
}

pub(crate) fn rest(url: &str) -> Arc<dyn A2aService> {
    let rest = Rest::new(client::http::client().unwrap(), url).unwrap();
    Arc::new(Classic(Arc::new(Remote(Explicit(rest)))))
}

/// Says that it does not block, where ProtoJSON would leave it out.
struct Explicit(Rest);

#[tonic::async_trait]
impl Transport for Explicit {
    async fn send(
        &self,
        rpc: &'static str,
        rule: HttpRule,
        mut request: Request<serde_json::Value>,
    ) -> Result<Reply, Status> {
        if let Some(it) = request.get_mut()["configuration"].as_object_mut() {
            it.entry("blocking").or_insert(false.into());
        }
        self.0.send(rpc, rule, request).await
    }
}

struct Classic(Arc<dyn a2a_service_server::A2aService>);

/// The request in 0.3, and said to be.
fn write<New, Old: From<New>>(request: Request<New>) -> Request<Old> {
    let mut request = request.map(Old::from);
    request.extensions_mut().get_mut::<Call>().unwrap().version = Version::V0_3;
    request
}

fn read<Old, New>(reply: Result<Response<Old>, Status>) -> Result<Response<New>, Status>
where
    New: TryFrom<Old, Error: std::fmt::Debug>,
{
    reply.map(|it| told(it).map(|it| New::try_from(it).unwrap())).map_err(|it| understood(&it))
}

fn events(reply: Result<Response<BoxStream<ClassicEvent>>, Status>) -> Result<Response<BoxStream<Event>>, Status> {
    let events = |it: BoxStream<ClassicEvent>| -> BoxStream<Event> {
        Box::pin(it.map(|it| it.map(Event::from).map_err(|it| understood(&it))))
    };
    reply.map(|it| told(it).map(events)).map_err(|it| understood(&it))
}

pub(crate) fn told<T>(mut response: Response<T>) -> Response<T> {
    if let Some(it) = response.metadata_mut().remove("x-a2a-extensions") {
        response.metadata_mut().insert("a2a-extensions", it);
    }
    response
}

/// The same error without its name, in the words of 1.0.
pub(crate) fn understood(status: &Status) -> Status {
    let kind = Error::from(status.clone()).kind();
    let message = status.message();
    let message = message.strip_prefix(&format!("{}: ", kind.classic_name())).unwrap_or(message);
    let (old, new) = (kind.wire_for(Version::V0_3).sentence, kind.wire().sentence);
    let message = message.strip_prefix(old).map_or_else(|| message.to_owned(), |it| format!("{new}{it}"));
    let (details, metadata) = (status.details().to_vec().into(), status.metadata().clone());
    Status::with_details_and_metadata(status.code(), message, details, metadata)
}

#[tonic::async_trait]
impl A2aService for Classic {
    async fn send_message(
        &self,
        request: Request<SendMessageRequest>,
    ) -> Result<Response<SendMessageResponse>, Status> {
        read(self.0.send_message(write(request)).await)
    }

    async fn send_streaming_message(
        &self,
        request: Request<SendMessageRequest>,
    ) -> Result<Response<BoxStream<Event>>, Status> {
        events(self.0.send_streaming_message(write(request)).await)
    }

    async fn get_task(&self, request: Request<GetTaskRequest>) -> Result<Response<Snapshot>, Status> {
        let task: Response<Task> = read(self.0.get_task(write(request)).await)?;
        Ok(task.map(Snapshot::from))
    }

    async fn list_tasks(&self, _: Request<ListTasksRequest>) -> Result<Response<ListTasksResponse>, Status> {
        panic!("0.3 has no lists of tasks in its proto file: the scenario is to say so")
    }

    async fn cancel_task(&self, request: Request<CancelTaskRequest>) -> Result<Response<Snapshot>, Status> {
        let task: Response<Task> = read(self.0.cancel_task(write(request)).await)?;
        Ok(task.map(Snapshot::from))
    }

    async fn subscribe_to_task(
        &self,
        request: Request<SubscribeToTaskRequest>,
    ) -> Result<Response<BoxStream<Event>>, Status> {
        events(self.0.task_subscription(write(request)).await)
    }

    async fn create_task_push_notification_config(
        &self,
        request: Request<TaskPushNotificationConfig>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        read(self.0.create_task_push_notification_config(write(request)).await)
    }

    async fn get_task_push_notification_config(
        &self,
        request: Request<GetTaskPushNotificationConfigRequest>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        read(self.0.get_task_push_notification_config(write(request)).await)
    }

    async fn list_task_push_notification_configs(
        &self,
        request: Request<ListTaskPushNotificationConfigsRequest>,
    ) -> Result<Response<ListTaskPushNotificationConfigsResponse>, Status> {
        read(self.0.list_task_push_notification_config(write(request)).await)
    }

    async fn delete_task_push_notification_config(
        &self,
        request: Request<DeleteTaskPushNotificationConfigRequest>,
    ) -> Result<Response<Empty>, Status> {
        read(self.0.delete_task_push_notification_config(write(request)).await)
    }

    async fn get_extended_agent_card(
        &self,
        _: Request<GetExtendedAgentCardRequest>,
    ) -> Result<Response<AgentCard>, Status> {
        panic!("the card of 0.3 is another: the scenario is to say so")
    }
}
