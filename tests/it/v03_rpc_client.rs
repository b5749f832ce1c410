//! Client of JSON-RPC 0.3 that implements the service trait of 1.0, for use in scenarios.

use std::{sync::Arc, time::Duration};

use a2a_service::{
    call::Call,
    check::Violation,
    client::{self, http::JsonRpc},
    contract::{BoxStream, Frame, Reply, StreamItem as _, Transport as _},
    error::{Error, ErrorKind},
    event::Event,
    pb::{
        v1::{a2a_service_server::A2aService, bindings::Rpc, *},
        wkt::Empty,
    },
    protocol::Version,
    snapshot::Snapshot,
    v03::json::{Read, Write},
};
use serde::{Serialize, de::DeserializeOwned};
use tokio_stream::StreamExt as _;
use tonic::{Request, Response, Status, metadata::MetadataMap};

use crate::v03_client::{rename_extensions_header, to_v1_status};

pub(crate) fn json_rpc(url: &str) -> Arc<dyn A2aService> {
    let url = format!("{url}/rpc");
    Arc::new(V03RpcClient(JsonRpc::new(client::http::client().unwrap(), &url).unwrap()))
}

struct V03RpcClient(JsonRpc);

impl V03RpcClient {
    async fn send<T>(&self, method: &'static str, request: Request<T>) -> Result<Reply, Status>
    where
        for<'a> Write<'a, T>: Serialize,
    {
        let (metadata, mut extensions, message) = request.into_parts();
        extensions.get_mut::<Call>().unwrap().version = Version::V0_3;
        let params = serde_json::to_value(Write(&message)).unwrap();
        let request = Request::from_parts(metadata, extensions, params);
        // JSON-RPC ignores the HTTP rule.
        self.0.send(method, Rpc::SendMessage.http_rule(), request).await.map_err(|status| with_details(&status))
    }

    async fn unary<T, R>(&self, method: &'static str, request: Request<T>) -> Result<Response<R>, Status>
    where
        for<'a> Write<'a, T>: Serialize,
        Read<R>: DeserializeOwned,
    {
        let Reply::Unary(data, metadata) = self.send(method, request).await? else { panic!("reply is a stream") };
        let result = serde_json::from_slice::<Read<R>>(&data).unwrap_or_else(|e| panic!("{e}: {data:?}")).0;
        Ok(response(result, metadata))
    }

    async fn streaming<T>(
        &self,
        method: &'static str,
        request: Request<T>,
    ) -> Result<Response<BoxStream<Event>>, Status>
    where
        for<'a> Write<'a, T>: Serialize,
    {
        let Reply::Stream(frames, metadata) = self.send(method, request).await? else {
            panic!("reply is not a stream")
        };
        let mut frames = frames.map(|frame| frame.map_err(|status| with_details(&status))).peekable();
        // JSON-RPC reports a rejected stream as its first event, other bindings as the reply.
        if let Some(Err(status)) = frames.peek().await {
            return Err(status.clone());
        }
        Ok(response(Box::pin(frames.map(|frame| frame.and_then(event))), metadata))
    }
}

fn response<T>(message: T, metadata: MetadataMap) -> Response<T> {
    rename_extensions_header(Response::from_parts(metadata, message, tonic::Extensions::new()))
}

fn event(Frame { cursor, data }: Frame) -> Result<Event, Status> {
    let Read(message) = serde_json::from_slice::<Read<StreamResponse>>(data.bytes()).unwrap();
    Event::from_frame(Frame { cursor, data: serde_json::to_vec(&message).unwrap().into() })
}

/// Rewrites an error to the wording of 1.0, and restores the details that 0.3 has only in the text.
fn with_details(status: &Status) -> Status {
    let (kind, converted) = (Error::from(status.clone()).kind(), to_v1_status(status));
    let text = converted.message().strip_prefix(kind.wire().sentence).unwrap_or_default();
    let (limit, text) = match text.strip_prefix(" (limit ").and_then(|rest| rest.split_once(')')) {
        Some((limit, text)) => (Some(limit), text),
        None => (None, text),
    };
    let text = text.trim_start_matches(": ");
    let mut violations: Vec<Violation> = Vec::new();
    for part in text.split("; ").filter(|_| kind == ErrorKind::InvalidParams) {
        match (part.split_once(": ").filter(|(field, _)| !field.contains(' ')), violations.last_mut()) {
            (Some((field, description)), _) => {
                violations.push(Violation { field: v1_field(field), description: description.to_owned() });
            }
            (None, Some(last)) => last.description.extend(["; ", part]),
            (None, None) => {}
        }
    }
    let mut error = if violations.is_empty() { kind.because(text.to_owned()) } else { Error::invalid(violations) };
    if let Some(limit) = limit {
        error = error.with("limit", limit);
    }
    if kind == ErrorKind::TaskNotFound {
        error = error.with("taskId", text.split(", ").next().unwrap());
    }
    if kind == ErrorKind::ContentTypeNotSupported {
        error = error.with("field", text.split(": ").next().unwrap());
    }
    if let Some(after) = Error::from(converted).retry_after_seconds() {
        error = error.retry_after(Duration::from_secs(after));
    }
    let mut restored = Status::from(error);
    *restored.metadata_mut() = status.metadata().clone();
    restored
}

/// Returns the name in 1.0 of a push notification field of 0.3.
fn v1_field(field: &str) -> String {
    let field = field.replace("authentication.schemes", "authentication.scheme");
    match field.strip_prefix("pushNotificationConfig.") {
        Some(field) => field.to_owned(),
        None => field.replace(".pushNotificationConfig", ".taskPushNotificationConfig"),
    }
}

#[tonic::async_trait]
impl A2aService for V03RpcClient {
    async fn send_message(
        &self,
        request: Request<SendMessageRequest>,
    ) -> Result<Response<SendMessageResponse>, Status> {
        self.unary("message/send", request).await
    }

    async fn send_streaming_message(
        &self,
        request: Request<SendMessageRequest>,
    ) -> Result<Response<BoxStream<Event>>, Status> {
        self.streaming("message/stream", request).await
    }

    async fn get_task(&self, request: Request<GetTaskRequest>) -> Result<Response<Snapshot>, Status> {
        let task: Response<Task> = self.unary("tasks/get", request).await?;
        Ok(task.map(Snapshot::from))
    }

    async fn list_tasks(&self, request: Request<ListTasksRequest>) -> Result<Response<ListTasksResponse>, Status> {
        self.unary("tasks/list", request).await
    }

    async fn cancel_task(&self, request: Request<CancelTaskRequest>) -> Result<Response<Snapshot>, Status> {
        let task: Response<Task> = self.unary("tasks/cancel", request).await?;
        Ok(task.map(Snapshot::from))
    }

    async fn subscribe_to_task(
        &self,
        request: Request<SubscribeToTaskRequest>,
    ) -> Result<Response<BoxStream<Event>>, Status> {
        self.streaming("tasks/resubscribe", request).await
    }

    async fn create_task_push_notification_config(
        &self,
        request: Request<TaskPushNotificationConfig>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        self.unary("tasks/pushNotificationConfig/set", request).await
    }

    async fn get_task_push_notification_config(
        &self,
        request: Request<GetTaskPushNotificationConfigRequest>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        self.unary("tasks/pushNotificationConfig/get", request).await
    }

    async fn list_task_push_notification_configs(
        &self,
        request: Request<ListTaskPushNotificationConfigsRequest>,
    ) -> Result<Response<ListTaskPushNotificationConfigsResponse>, Status> {
        self.unary("tasks/pushNotificationConfig/list", request).await
    }

    async fn delete_task_push_notification_config(
        &self,
        request: Request<DeleteTaskPushNotificationConfigRequest>,
    ) -> Result<Response<Empty>, Status> {
        let reply = self.send("tasks/pushNotificationConfig/delete", request).await?;
        let Reply::Unary(_, metadata) = reply else { panic!("reply is a stream") };
        Ok(response(Empty {}, metadata))
    }

    async fn get_extended_agent_card(
        &self,
        _: Request<GetExtendedAgentCardRequest>,
    ) -> Result<Response<AgentCard>, Status> {
        panic!("0.3 has another card: the scenario must exclude it")
    }
}
