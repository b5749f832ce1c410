//! Client of protocol 0.3 over gRPC and HTTP+JSON that implements the service trait of 1.0, for use in scenarios.

use std::sync::Arc;

use a2a_service::{
    call::Call,
    client::{self, http::Rest},
    contract::{BoxStream, HttpRule, Remote, Reply, Transport},
    error::Error,
    event::Event,
    pb::{
        v1::{a2a_service_server::A2aService, *},
        wkt::Empty,
    },
    protocol::Version,
    snapshot::Snapshot,
    v03::{
        event::Event as V03Event,
        pb::{a2a_service_client::A2aServiceClient, a2a_service_server},
    },
};
use tokio_stream::StreamExt as _;
use tonic::{Request, Response, Status, transport::Endpoint};

pub(crate) fn grpc(url: &str) -> Arc<dyn A2aService> {
    let channel = Endpoint::from_shared(url.to_owned()).unwrap().connect_lazy();
    Arc::new(V03Client(Arc::new(A2aServiceClient::new(channel))))
}

pub(crate) fn rest(url: &str) -> Arc<dyn A2aService> {
    let rest = Rest::new(client::http::client().unwrap(), url).unwrap();
    Arc::new(V03Client(Arc::new(Remote(Explicit(rest)))))
}

/// Sends `blocking: false` explicitly, which ProtoJSON would omit.
struct Explicit(Rest);

#[tonic::async_trait]
impl Transport for Explicit {
    async fn send(
        &self,
        rpc: &'static str,
        rule: HttpRule,
        mut request: Request<serde_json::Value>,
    ) -> Result<Reply, Status> {
        if let Some(configuration) =
            request.get_mut().get_mut("configuration").and_then(serde_json::Value::as_object_mut)
        {
            configuration.entry("blocking").or_insert(false.into());
        }
        self.0.send(rpc, rule, request).await
    }
}

struct V03Client(Arc<dyn a2a_service_server::A2aService>);

/// Converts a request to 0.3 and sets the version of its context.
fn to_v03<New, Old: From<New>>(request: Request<New>) -> Request<Old> {
    let mut request = request.map(Old::from);
    request.extensions_mut().get_mut::<Call>().unwrap().version = Version::V0_3;
    request
}

fn from_v03<Old, New>(reply: Result<Response<Old>, Status>) -> Result<Response<New>, Status>
where
    New: TryFrom<Old, Error: std::fmt::Debug>,
{
    reply
        .map(|response| rename_extensions_header(response).map(|message| New::try_from(message).unwrap()))
        .map_err(|status| to_v1_status(&status))
}

fn events(reply: Result<Response<BoxStream<V03Event>>, Status>) -> Result<Response<BoxStream<Event>>, Status> {
    let events = |stream: BoxStream<V03Event>| -> BoxStream<Event> {
        Box::pin(stream.map(|item| item.map(Event::from).map_err(|status| to_v1_status(&status))))
    };
    reply.map(|response| rename_extensions_header(response).map(events)).map_err(|status| to_v1_status(&status))
}

pub(crate) fn rename_extensions_header<T>(mut response: Response<T>) -> Response<T> {
    if let Some(value) = response.metadata_mut().remove("x-a2a-extensions") {
        response.metadata_mut().insert("a2a-extensions", value);
    }
    response
}

/// Rewrites the message of an error from the wording of 0.3 to that of 1.0.
pub(crate) fn to_v1_status(status: &Status) -> Status {
    let kind = Error::from(status.clone()).kind();
    let message = status.message();
    let message = message.strip_prefix(&format!("{}: ", kind.v03_name())).unwrap_or(message);
    let (old, new) = (kind.wire_for(Version::V0_3).sentence, kind.wire().sentence);
    let message = message.strip_prefix(old).map_or_else(|| message.to_owned(), |rest| format!("{new}{rest}"));
    let (details, metadata) = (status.details().to_vec().into(), status.metadata().clone());
    Status::with_details_and_metadata(status.code(), message, details, metadata)
}

#[tonic::async_trait]
impl A2aService for V03Client {
    async fn send_message(
        &self,
        request: Request<SendMessageRequest>,
    ) -> Result<Response<SendMessageResponse>, Status> {
        from_v03(self.0.send_message(to_v03(request)).await)
    }

    async fn send_streaming_message(
        &self,
        request: Request<SendMessageRequest>,
    ) -> Result<Response<BoxStream<Event>>, Status> {
        events(self.0.send_streaming_message(to_v03(request)).await)
    }

    async fn get_task(&self, request: Request<GetTaskRequest>) -> Result<Response<Snapshot>, Status> {
        let task: Response<Task> = from_v03(self.0.get_task(to_v03(request)).await)?;
        Ok(task.map(Snapshot::from))
    }

    async fn list_tasks(&self, _: Request<ListTasksRequest>) -> Result<Response<ListTasksResponse>, Status> {
        panic!("0.3 has no ListTasks in its proto file: the scenario must exclude it")
    }

    async fn cancel_task(&self, request: Request<CancelTaskRequest>) -> Result<Response<Snapshot>, Status> {
        let task: Response<Task> = from_v03(self.0.cancel_task(to_v03(request)).await)?;
        Ok(task.map(Snapshot::from))
    }

    async fn subscribe_to_task(
        &self,
        request: Request<SubscribeToTaskRequest>,
    ) -> Result<Response<BoxStream<Event>>, Status> {
        events(self.0.task_subscription(to_v03(request)).await)
    }

    async fn create_task_push_notification_config(
        &self,
        request: Request<TaskPushNotificationConfig>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        from_v03(self.0.create_task_push_notification_config(to_v03(request)).await)
    }

    async fn get_task_push_notification_config(
        &self,
        request: Request<GetTaskPushNotificationConfigRequest>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        from_v03(self.0.get_task_push_notification_config(to_v03(request)).await)
    }

    async fn list_task_push_notification_configs(
        &self,
        request: Request<ListTaskPushNotificationConfigsRequest>,
    ) -> Result<Response<ListTaskPushNotificationConfigsResponse>, Status> {
        from_v03(self.0.list_task_push_notification_config(to_v03(request)).await)
    }

    async fn delete_task_push_notification_config(
        &self,
        request: Request<DeleteTaskPushNotificationConfigRequest>,
    ) -> Result<Response<Empty>, Status> {
        from_v03(self.0.delete_task_push_notification_config(to_v03(request)).await)
    }

    async fn get_extended_agent_card(
        &self,
        _: Request<GetExtendedAgentCardRequest>,
    ) -> Result<Response<AgentCard>, Status> {
        panic!("0.3 has another card: the scenario must exclude it")
    }
}
