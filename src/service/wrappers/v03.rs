//! Semantics of protocol 0.3 where they differ from 1.0: a layer around the 1.0 service, with 1.0 messages on both sides.
//!
//! Section numbers are those of 0.3 if prefixed with "0.3", otherwise those of 1.0. "The proto" is `a2a.v1`. Where 0.3 leaves
//! the behavior open, the server follows the first 0.3 servers, which its clients were written against.
//!
//! | Case | 0.3 | 1.0 | Implemented in |
//! | --- | --- | --- | --- |
//! | No `configuration` | blocks | blocks (3.2.2) | the codecs |
//! | `configuration` without `blocking`, in JSON-RPC | blocks, like the first 0.3 servers; with a push configuration returns at once, as in the example of 0.3 (0.3, 9.5) | unset `returnImmediately` blocks (3.2.2) | [`returns_at_once`](crate::protocol::v03::message::returns_at_once) |
//! | `configuration` without `blocking`, in gRPC and HTTP+JSON | returns at once: unset is `false` in the proto, and clients omit default values in JSON | unset `returnImmediately` blocks | [`returns_at_once`](crate::protocol::v03::message::returns_at_once) |
//! | `blocking: false` | returns at once | `returnImmediately: true` | [`returns_at_once`](crate::protocol::v03::message::returns_at_once) |
//! | `historyLength: 0` | no limit (comment in the proto) | no history (3.2.4) | the semantics layer |
//! | Negative `historyLength` | −32602 | −32602 (3.2.4) | the service |
//! | Message to a task in a terminal state | an error (0.3, 7.1): −32602, like the first 0.3 servers | −32004 (3.1.1) | [`ErrorKind::wire_for`] |
//! | `contextId` of another context than the task's | −32602, like the first 0.3 servers | unspecified (3.4.1): −32602 | the service |
//! | Cancel of a canceled task | −32002 (0.3, 7.4 and 8.2) | returns the task: cancel is idempotent (3.3.1) | the semantics layer |
//! | Subscription to a task in a terminal state | a stream of the task, followed in JSON-RPC by a status update with `final: true` (0.3, 7.2.2 and 7.9; comment in the proto) | −32004 (3.1.6) | the semantics layer |
//! | End of a turn | `final: true`, and the stream ends (0.3, 7.2.2) | a subscription continues (3.1.6) | the semantics layer |
//! | Error of a streaming request, in JSON-RPC | an SSE event once the parameters are valid; every error if `Accept` is `text/event-stream`, since clients read nothing else then | an SSE event if `Accept` is `text/event-stream`, except for JavaScript clients, whose SDK reports plain errors better; otherwise a plain error (3.1.2) | the semantics layer, the JSON-RPC transport |
//! | `kind` of a message other than `message`, a file with both `bytes` and `uri`, data that is a string, a number, a boolean or null | −32602 (0.3, 6.4 to 6.6); data that is an array is accepted | | the codecs |
//! | Message without an id | −32602, as without a role or parts (0.3, 6.4) | −32602 | the codecs |
//! | Rejected stream with a retry delay, in JSON-RPC | `Retry-After` in the head of the stream: an SSE event has no field for it | `Retry-After` of the error response | the semantics layer |
//! | Push configuration without an `id` | gets the id `default`; the next one replaces it | the service generates an id (4.3.1) | the semantics layer |
//! | Get of a push configuration without its `id` | the one named `default`, else the one named like the task, else the first (0.3, 7.6) | −32602 | the semantics layer |
//! | No extended agent card | −32007 (0.3, 8.2); over gRPC the public card, since `GetAgentCard` is the only RPC for either | −32004, or −32007 if the card announces one (3.1.11) | [`ErrorKind::wire_for`], the card |
//! | Methods and states in error messages | `message/send`, `canceled` (0.3, 6.3 and 7) | `SendMessage`, `TASK_STATE_CANCELED` | the errors |
//! | Required extension that the client does not activate | accepted, since 0.3 has no error code for it (0.3, 8.2); −32004 with `strict` | −32008 (3.3.4) | [`extension`](crate::service::wrappers::extended) |
//! | Unsupported protocol version | −32600: 0.3 has no error code for it (0.3, 8.2) | −32009 (3.6.2) | [`ErrorKind::wire_for`] |
//! | Exceeded limit | named in the error message: clients do not read details | named in the metadata of `ErrorInfo` | the errors |
//! | JSON-RPC body that is not a request | an error of 0.3, which clients of both versions can read | an error of 1.0 only if the request is recognizably 1.0 | the JSON-RPC transport |
//! | `data` of a JSON-RPC error | omitted: clients disagree about its type | an array of objects (9.5) | the codecs |
//! | Request without an `id` | −32601 or −32602 if the method or the parameters are invalid, else −32600; never executed, since 0.3 has no notifications (0.3, 6.11) | a notification (JSON-RPC 2.0, 4.1) | the codecs |
//! | State `canceled` | `TASK_STATE_CANCELLED` in the proto; both spellings are accepted everywhere | `TASK_STATE_CANCELED` | the codecs |
//! | State `unknown` | a state like any other (0.3, 6.3) | `TASK_STATE_UNSPECIFIED`, which no task has; ignored as a filter | the codecs |
//! | `stateTransitionHistory` | on the card (0.3, 5.5.2) | removed | the card |
//! | `tenant` | does not exist: requests use the unnamed tenant | in every request (3.1) | the codecs |

use std::sync::Arc;

use tonic::{Request, Response, Status};

use crate::protocol::{
    call::{Binding, Call, TASKS_READ, TASKS_WRITE},
    error::{Error, ErrorKind},
    event::{Ends, Event, EventFlags, Position},
    pb::{
        v1::{
            AgentCard, CancelTaskRequest, DeleteTaskPushNotificationConfigRequest, GetExtendedAgentCardRequest,
            GetTaskPushNotificationConfigRequest, GetTaskRequest, ListTaskPushNotificationConfigsRequest,
            ListTaskPushNotificationConfigsResponse, ListTasksRequest, ListTasksResponse, SendMessageRequest,
            SendMessageResponse, SubscribeToTaskRequest, Task, TaskPushNotificationConfig, TaskState,
            TaskStatusUpdateEvent, a2a_service_server::A2aService, stream_response::Payload,
        },
        wkt::Empty,
    },
    rpc::{BoxStream, ServiceResult},
    snapshot::Snapshot,
    v03::event::final_stream,
    version::Version,
};

/// Id of a push configuration that the client registers without one.
pub const DEFAULT_CONFIG: &str = "default";

/// Layer around a 1.0 service that applies the semantics of 0.3.
pub struct V03Service {
    service: Arc<dyn A2aService>,
}

impl V03Service {
    /// Wraps a 1.0 service.
    pub fn new(service: Arc<dyn A2aService>) -> Self {
        Self { service }
    }

    /// Returns the task, as part of an operation with the scope. Permissions and limits are those of the call.
    async fn get_task_for(&self, scope: &'static str, call: &Call, tenant: &str, id: &str) -> Result<Task, Status> {
        let request = GetTaskRequest { tenant: tenant.to_owned(), id: id.to_owned(), history_length: None };
        let call = Call { required_scope: Some(scope), record: None, ..call.clone() };
        Ok(self.service.get_task(call.request(request)).await?.into_inner().into_task()?)
    }

    /// Returns the stream for a subscription to a task in a terminal state: the task and, in JSON-RPC, its status again with
    /// `final`, which clients wait for.
    ///
    /// # Errors
    /// `error` if the task is not in a terminal state.
    async fn stream_of_terminal_task(
        &self,
        call: &Call,
        request: &SubscribeToTaskRequest,
        error: Status,
    ) -> Result<BoxStream<Event>, Status> {
        let task = self.get_task_for(TASKS_READ, call, &request.tenant, &request.id).await?;
        if !task.state().is_terminal() {
            return Err(error);
        }
        let update = (call.binding == Binding::JsonRpc).then(|| TaskStatusUpdateEvent {
            task_id: task.id.clone(),
            context_id: task.context_id.clone(),
            status: task.status.clone(),
            metadata: None,
        });
        let ends = if update.is_some() { Ends::Nothing } else { Ends::Task };
        let first = Event::from_task(Position::default(), ends, Arc::new(task));
        let last = update.map(|update| {
            Event::new(Position::default(), EventFlags::ending(Ends::Task), Payload::StatusUpdate(update))
        });
        Ok(Box::pin(tokio_stream::iter([Some(first), last].into_iter().flatten().map(Ok))))
    }
}

/// Changes the context of a call.
fn with_call<T>(mut request: Request<T>, change: impl FnOnce(&mut Call)) -> Request<T> {
    request.extensions_mut().get_mut().map(change);
    request
}

/// Marks the call as 0.3, overriding its `A2A-Version`.
fn of_v03<T>(request: Request<T>) -> Request<T> {
    with_call(request, |call| call.version = Version::V0_3)
}

/// Marks the call as part of an operation that is counted already.
fn counted<T>(request: Request<T>) -> Request<T> {
    with_call(request, |call| call.is_counted = true)
}

/// Unsets a history length of 0, which means no limit in 0.3.
fn without_zero(length: Option<i32>) -> Option<i32> {
    length.filter(|length| *length != 0)
}

/// Returns the error of a streaming request as the only item of its stream in JSON-RPC, and as a plain error otherwise.
///
/// Errors of the request itself are always plain: a client that sends invalid parameters may not expect a stream.
fn reject_stream(binding: Binding, status: Status) -> ServiceResult<BoxStream<Event>> {
    let plain = [ErrorKind::InvalidParams, ErrorKind::InvalidRequest, ErrorKind::Parse, ErrorKind::MethodNotFound];
    let error = Error::from(status);
    if binding != Binding::JsonRpc || plain.contains(&error.kind()) {
        return Err(error.into());
    }
    let retry_after = error.retry_after_seconds();
    let mut response: Response<BoxStream<Event>> = Response::new(Box::pin(tokio_stream::once(Err(error.into()))));
    if let Some(seconds) = retry_after {
        // An SSE event has no field for the delay.
        response.metadata_mut().insert("retry-after", seconds.into());
    }
    Ok(response)
}

#[tonic::async_trait]
impl A2aService for V03Service {
    async fn send_message(&self, request: Request<SendMessageRequest>) -> ServiceResult<SendMessageResponse> {
        self.service.send_message(of_v03(request).map(with_defaults)).await
    }

    async fn send_streaming_message(&self, request: Request<SendMessageRequest>) -> ServiceResult<BoxStream<Event>> {
        let request = of_v03(request).map(with_defaults);
        let binding = Call::of(&request)?.binding;
        match self.service.send_streaming_message(request).await {
            Ok(response) => Ok(response.map(|events| final_stream(events, false))),
            Err(status) => reject_stream(binding, status),
        }
    }

    async fn get_task(&self, mut request: Request<GetTaskRequest>) -> ServiceResult<Snapshot> {
        request.get_mut().history_length = without_zero(request.get_ref().history_length);
        self.service.get_task(of_v03(request)).await
    }

    async fn list_tasks(&self, mut request: Request<ListTasksRequest>) -> ServiceResult<ListTasksResponse> {
        request.get_mut().history_length = without_zero(request.get_ref().history_length);
        self.service.list_tasks(of_v03(request)).await
    }

    /// Rejects the cancel of a task that is canceled already. Of concurrent cancels, all may succeed.
    async fn cancel_task(&self, request: Request<CancelTaskRequest>) -> ServiceResult<Snapshot> {
        let request = of_v03(request);
        let CancelTaskRequest { tenant, id, .. } = request.get_ref();
        let task = self.get_task_for(TASKS_WRITE, Call::of(&request)?, tenant, id).await?;
        if task.state() == TaskState::Canceled {
            let reason = format!("{id} is {}", TaskState::Canceled.as_str_name());
            return Err(ErrorKind::TaskNotCancelable.because(reason).with("taskId", id).into());
        }
        self.service.cancel_task(counted(request)).await
    }

    async fn subscribe_to_task(&self, request: Request<SubscribeToTaskRequest>) -> ServiceResult<BoxStream<Event>> {
        let request = of_v03(request);
        let (mut call, subscription) = (Call::of(&request)?.clone(), request.get_ref().clone());
        let error = match self.service.subscribe_to_task(request).await {
            Ok(response) => return Ok(response.map(|events| final_stream(events, true))),
            Err(status) => Error::from(status),
        };
        if error.kind() != ErrorKind::TaskEnded {
            return reject_stream(call.binding, error.into());
        }
        call.is_counted = true;
        match self.stream_of_terminal_task(&call, &subscription, error.into()).await {
            Ok(events) => Ok(Response::new(events)),
            Err(status) => reject_stream(call.binding, status),
        }
    }

    async fn create_task_push_notification_config(
        &self,
        mut request: Request<TaskPushNotificationConfig>,
    ) -> ServiceResult<TaskPushNotificationConfig> {
        set_default_id(request.get_mut());
        self.service.create_task_push_notification_config(of_v03(request)).await
    }

    async fn get_task_push_notification_config(
        &self,
        request: Request<GetTaskPushNotificationConfigRequest>,
    ) -> ServiceResult<TaskPushNotificationConfig> {
        let mut request = of_v03(request);
        let GetTaskPushNotificationConfigRequest { tenant, task_id, id } = request.get_ref();
        if !id.is_empty() {
            return self.service.get_task_push_notification_config(request).await;
        }
        let list = ListTaskPushNotificationConfigsRequest {
            tenant: tenant.clone(),
            task_id: task_id.clone(),
            ..ListTaskPushNotificationConfigsRequest::default()
        };
        let list = Call::of(&request)?.clone().request(list);
        let configs = self.service.list_task_push_notification_configs(list).await?.into_inner().configs;
        let index_of = |id: &str| configs.iter().position(|config| config.id == id);
        let index = index_of(DEFAULT_CONFIG).or_else(|| index_of(task_id)).unwrap_or_default();
        let not_found = || ErrorKind::TaskNotFound.because(format!("{task_id} has no push configuration"));
        // Read again by its id, since the response then carries the members that 1.0 lacks.
        request.get_mut().id = configs.into_iter().nth(index).ok_or_else(not_found)?.id;
        let request = counted(request);
        self.service.get_task_push_notification_config(request).await
    }

    async fn list_task_push_notification_configs(
        &self,
        request: Request<ListTaskPushNotificationConfigsRequest>,
    ) -> ServiceResult<ListTaskPushNotificationConfigsResponse> {
        self.service.list_task_push_notification_configs(of_v03(request)).await
    }

    async fn delete_task_push_notification_config(
        &self,
        request: Request<DeleteTaskPushNotificationConfigRequest>,
    ) -> ServiceResult<Empty> {
        self.service.delete_task_push_notification_config(of_v03(request)).await
    }

    async fn get_extended_agent_card(&self, request: Request<GetExtendedAgentCardRequest>) -> ServiceResult<AgentCard> {
        self.service.get_extended_agent_card(of_v03(request)).await
    }
}

/// Applies the defaults of 0.3 to the configuration of a send.
fn with_defaults(mut request: SendMessageRequest) -> SendMessageRequest {
    if let Some(configuration) = &mut request.configuration {
        configuration.history_length = without_zero(configuration.history_length);
        if let Some(config) = &mut configuration.task_push_notification_config {
            set_default_id(config);
        }
    }
    request
}

fn set_default_id(config: &mut TaskPushNotificationConfig) {
    if config.id.is_empty() {
        DEFAULT_CONFIG.clone_into(&mut config.id);
    }
}

debug_fields!(V03Service {});

#[cfg(test)]
mod tests {
    use crate::protocol::v03::message::returns_at_once;

    #[test]
    fn send_blocks_unless_blocking_is_false_or_unset_with_a_push_configuration() {
        for (blocking, push, immediate) in [
            (None, false, false),
            (None, true, true),
            (Some(true), false, false),
            (Some(true), true, false),
            (Some(false), false, true),
            (Some(false), true, true),
        ] {
            assert_eq!(returns_at_once(blocking, push), immediate, "{blocking:?} {push}");
        }
    }
}
