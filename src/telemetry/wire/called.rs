//! The calls of 1.0 that the requests were, whichever version they came in, and how they were answered.

use std::{fmt, sync::Arc};

use serde::Serialize;
use tokio_stream::StreamExt as _;
use tonic::{Request, Response, Status};
use tracing::Span;

use super::{TARGET, line, refusal, text::message};
use crate::{
    event::Event,
    pb::{
        v1::{
            AgentCard, CancelTaskRequest, DeleteTaskPushNotificationConfigRequest, GetExtendedAgentCardRequest,
            GetTaskPushNotificationConfigRequest, GetTaskRequest, ListTaskPushNotificationConfigsRequest,
            ListTaskPushNotificationConfigsResponse, ListTasksRequest, ListTasksResponse, SendMessageRequest,
            SendMessageResponse, SubscribeToTaskRequest, TaskPushNotificationConfig, a2a_service_server::A2aService,
        },
        wkt::Empty,
    },
    snapshot::Snapshot,
    transport::transcode::BoxStream,
};

/// A service that writes down what it is asked, and what another answers.
pub(crate) struct Called(pub(crate) Arc<dyn A2aService>);

/// Writes a call down, and how it was answered.
async fn unary<Req: Serialize, Res: Serialize>(
    rpc: &'static str,
    request: Request<Req>,
    answer: impl AsyncFnOnce(Request<Req>) -> Result<Response<Res>, Status>,
) -> Result<Response<Res>, Status> {
    let span = Span::current();
    line!(&span, "call: {rpc} {}", message(request.get_ref()));
    let answer = answer(request).await;
    match &answer {
        Ok(response) => line!(&span, "answer: {rpc} {}", message(response.get_ref())),
        Err(status) => line!(&span, "answer: {rpc} {}", refusal(status)),
    }
    answer
}

/// The same, event by event.
async fn streaming<Req: Serialize>(
    rpc: &'static str,
    request: Request<Req>,
    answer: impl AsyncFnOnce(Request<Req>) -> Result<Response<BoxStream<Event>>, Status>,
) -> Result<Response<BoxStream<Event>>, Status> {
    let span = Span::current();
    line!(&span, "call: {rpc} {}", message(request.get_ref()));
    match answer(request).await {
        Ok(response) => Ok(response.map(|events| -> BoxStream<Event> {
            Box::pin(events.map(move |it| {
                match &it {
                    Ok(event) => line!(&span, "event: {rpc} {}", message(event)),
                    Err(status) => line!(&span, "event: {rpc} {}", refusal(status)),
                }
                it
            }))
        })),
        Err(status) => {
            line!(&span, "answer: {rpc} {}", refusal(&status));
            Err(status)
        }
    }
}

/// A method each: its name in Rust and in the protocol, what is asked, and what is answered.
macro_rules! called {
    ($($by:ident $rpc:ident $name:literal: $request:ty => $response:ty;)*) => {
        #[tonic::async_trait]
        impl A2aService for Called { $(
            async fn $rpc(&self, request: Request<$request>) -> Result<Response<$response>, Status> {
                $by($name, request, async |it| self.0.$rpc(it).await).await
            }
        )* }
    };
}

called! {
    unary send_message "SendMessage": SendMessageRequest => SendMessageResponse;
    streaming send_streaming_message "SendStreamingMessage": SendMessageRequest => BoxStream<Event>;
    unary get_task "GetTask": GetTaskRequest => Snapshot;
    unary list_tasks "ListTasks": ListTasksRequest => ListTasksResponse;
    unary cancel_task "CancelTask": CancelTaskRequest => Snapshot;
    streaming subscribe_to_task "SubscribeToTask": SubscribeToTaskRequest => BoxStream<Event>;
    unary create_task_push_notification_config "CreateTaskPushNotificationConfig": TaskPushNotificationConfig => TaskPushNotificationConfig;
    unary get_task_push_notification_config "GetTaskPushNotificationConfig": GetTaskPushNotificationConfigRequest => TaskPushNotificationConfig;
    unary list_task_push_notification_configs "ListTaskPushNotificationConfigs": ListTaskPushNotificationConfigsRequest => ListTaskPushNotificationConfigsResponse;
    unary delete_task_push_notification_config "DeleteTaskPushNotificationConfig": DeleteTaskPushNotificationConfigRequest => Empty;
    unary get_extended_agent_card "GetExtendedAgentCard": GetExtendedAgentCardRequest => AgentCard;
}

impl fmt::Debug for Called {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Called").finish_non_exhaustive()
    }
}
