//! An agent of classic JSON-RPC as a service of 1.0: the other side of that door, for the scenarios to call.

use std::{sync::Arc, time::Duration};

use a2a_service::{
    call::{Call, Version},
    check::Violation,
    client::{self, http::JsonRpc},
    contract::{BoxStream, Frame, Item as _, Reply, Transport as _},
    error::{Error, ErrorKind},
    event::Event,
    pb::{
        v1::{a2a_service_server::A2aService, bindings::Rpc, *},
        wkt::Empty,
    },
    snapshot::Snapshot,
    v03::json::{Read, Write},
};
use serde::{Serialize, de::DeserializeOwned};
use tokio_stream::StreamExt as _;
use tonic::{Request, Response, Status, metadata::MetadataMap};

use crate::classic_client::{told, understood};

pub(crate) fn json_rpc(url: &str) -> Arc<dyn A2aService> {
    let url = format!("{url}/rpc");
    Arc::new(Classic(JsonRpc::new(client::http::client().unwrap(), &url).unwrap()))
}

struct Classic(JsonRpc);

impl Classic {
    async fn send<T>(&self, method: &'static str, request: Request<T>) -> Result<Reply, Status>
    where
        for<'a> Write<'a, T>: Serialize,
    {
        let (metadata, mut extensions, message) = request.into_parts();
        extensions.get_mut::<Call>().unwrap().version = Version::V0_3;
        let params = serde_json::to_value(Write(&message)).unwrap();
        let request = Request::from_parts(metadata, extensions, params);
        // Where it would stand in HTTP is nothing to JSON-RPC.
        self.0.send(method, Rpc::SendMessage.http_rule(), request).await.map_err(|it| named(&it))
    }

    async fn unary<T, R>(&self, method: &'static str, request: Request<T>) -> Result<Response<R>, Status>
    where
        for<'a> Write<'a, T>: Serialize,
        Read<R>: DeserializeOwned,
    {
        let Reply::Unary(data, metadata) = self.send(method, request).await? else { panic!("a stream") };
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
        let Reply::Stream(frames, metadata) = self.send(method, request).await? else { panic!("one answer") };
        let mut frames = frames.map(|it| it.map_err(|it| named(&it))).peekable();
        // A refusal is the first event there, and an answer elsewhere.
        if let Some(Err(refusal)) = frames.peek().await {
            return Err(refusal.clone());
        }
        Ok(response(Box::pin(frames.map(|it| it.and_then(event))), metadata))
    }
}

fn response<T>(message: T, metadata: MetadataMap) -> Response<T> {
    told(Response::from_parts(metadata, message, tonic::Extensions::new()))
}

fn event(Frame { cursor, data }: Frame) -> Result<Event, Status> {
    let Read(message) = serde_json::from_slice::<Read<StreamResponse>>(data.bytes()).unwrap();
    Event::from_frame(Frame { cursor, data: serde_json::to_vec(&message).unwrap().into() })
}

/// The same error in the words of 1.0, with the details that are in its text alone.
fn named(status: &Status) -> Status {
    let (kind, understood) = (Error::from(status.clone()).kind(), understood(status));
    let text = understood.message().strip_prefix(kind.wire().sentence).unwrap_or_default();
    let (limit, text) = match text.strip_prefix(" (limit ").and_then(|it| it.split_once(')')) {
        Some((limit, text)) => (Some(limit), text),
        None => (None, text),
    };
    let text = text.trim_start_matches(": ");
    let mut violations: Vec<Violation> = Vec::new();
    for it in text.split("; ").filter(|_| kind == ErrorKind::InvalidParams) {
        match (it.split_once(": ").filter(|it| !it.0.contains(' ')), violations.last_mut()) {
            (Some((field, why)), _) => {
                violations.push(Violation { field: current(field), description: why.to_owned() });
            }
            (None, Some(last)) => last.description.extend(["; ", it]),
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
        error = error.with("field", text.split(' ').next().unwrap());
    }
    if let Some(after) = Error::from(understood).retry_after_seconds() {
        error = error.retry_after(Duration::from_secs(after));
    }
    let mut named = Status::from(error);
    *named.metadata_mut() = status.metadata().clone();
    named
}

/// What a field of a webhook is called in 1.0.
fn current(field: &str) -> String {
    let field = field.replace("authentication.schemes", "authentication.scheme");
    match field.strip_prefix("pushNotificationConfig.") {
        Some(field) => field.to_owned(),
        None => field.replace(".pushNotificationConfig", ".taskPushNotificationConfig"),
    }
}

#[tonic::async_trait]
impl A2aService for Classic {
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
        let Reply::Unary(_, metadata) = reply else { panic!("a stream") };
        Ok(response(Empty {}, metadata))
    }

    async fn get_extended_agent_card(
        &self,
        _: Request<GetExtendedAgentCardRequest>,
    ) -> Result<Response<AgentCard>, Status> {
        panic!("the card of 0.3 is another: the scenario is to say so")
    }
}
