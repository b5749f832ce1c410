//! What protocol 0.3 does otherwise than 1.0: a service around the service, with 1.0's messages on both sides.
//!
//! Sections are those of 0.3 where they begin with 0.3, and of 1.0 otherwise; "the proto" is `a2a.v1`. Where 0.3 leaves
//! something open, its first servers are what its clients were written against.
//!
//! | What | 0.3 | 1.0 | Where |
//! | --- | --- | --- | --- |
//! | No `configuration` | waits | waits (3.2.2) | the codecs |
//! | A `configuration` without `blocking`, in JSON-RPC | waits, as its first servers; with a push configuration in the message returns at once, as its example of one shows (0.3, 9.5) | `returnImmediately` is not said, and waits (3.2.2) | [`returns_at_once`] |
//! | A `configuration` without `blocking`, in gRPC and HTTP+JSON | returns at once: it is `false` of the proto, which clients print without its default values | the same | [`returns_at_once`] |
//! | `blocking: false` | returns at once | `returnImmediately: true` | [`returns_at_once`] |
//! | `historyLength` is 0 | sets no limit (the proto's comment) | shows none of it (3.2.4) | here |
//! | `historyLength` is negative | −32602 | −32602 (3.2.4) | the service |
//! | A message to a task that has ended | an error (0.3, 7.1), −32602 with its first servers | −32004 (3.1.1) | [`ErrorKind::wire_for`] |
//! | A `contextId` that is not the task's | −32602 with its first servers | left open (3.4.1), and −32602 | the service |
//! | A cancel of a canceled task | −32002 (0.3, 7.4 and 8.2) | the task: twice is once (3.3.1) | here |
//! | A stream of a task that has ended | the task, and JSON-RPC has `final` to say (0.3, 7.2.2 and 7.9; the proto's comment) | −32004 (3.1.6) | here |
//! | The end of a turn on a stream | `final`, and it is the last event (0.3, 7.2.2) | goes on in a subscription (3.1.6) | here |
//! | An error where a stream was asked for, in JSON-RPC | an event of the stream once the parameters are well, and any error where `Accept` is `text/event-stream`: its clients read nothing else there | an event where `Accept` is `text/event-stream`, except for JavaScript, whose SDK has better errors from a plain one; else a plain error (3.1.2) | here, and the door |
//! | `kind` of a message that is not `message`, a file with both `bytes` and `uri`, data that is a string, a number, a boolean or null | −32602 (0.3, 6.4 to 6.6); data that is an array is taken | | the codec |
//! | A message without an id | −32602, as one without a role or parts (0.3, 6.4); before 0.2 it gets one from us | −32602 | the codec |
//! | A stream that is refused with a time to come again | `Retry-After` of the stream, since an event has no room for it | of the answer | here |
//! | A push configuration without `id` | `default`, and the next one replaces it | the service names it (4.3.1) | here |
//! | A read of a push configuration without its `id` | `default`, else the one that has the task's, else the first (0.3, 7.6) | −32602 | here |
//! | No card for authenticated callers | −32007 (0.3, 8.2) | −32004, or −32007 where one is promised (3.1.11) | [`ErrorKind::wire_for`] |
//! | A required extension that was not asked for | is not insisted on, for want of an error that says so (0.3, 8.2); with `strict_extensions` it gets −32004 | −32008 (3.3.4) | [`extension`](crate::extension) |
//! | A version that is not served | −32600: it has no number for this (0.3, 8.2) | −32009 (3.6.2) | [`ErrorKind::wire_for`] |
//! | A limit that is reached | is named in the message: its clients read no details | is in the metadata of `ErrorInfo` | the errors |
//! | A body of JSON-RPC that is no call | is answered as one of 0.3 is, which both can read | only where it can be seen that it is 1.0 | the door |
//! | `data` of a JSON-RPC error | is not sent: its clients do not agree on what it is | an array of objects (9.5) | the codec |
//! | A request without an `id` | −32601 or −32602 where its method or its parameters are wrong, else −32600; nothing is done: no call of it is a notification (0.3, 6.11) | a notification (JSON-RPC 2.0, 4.1) | the codec |
//! | `canceled` | `TASK_STATE_CANCELLED` in the proto; both spellings are read everywhere | `TASK_STATE_CANCELED` | the codecs |
//! | `unknown` | a state like others (0.3, 6.3) | `TASK_STATE_UNSPECIFIED`, which no task comes into; as a filter it is none | the codecs |
//! | `stateTransitionHistory` | on the card (0.3, 5.5.2) | is gone | the card |
//! | `tenant` | is not there: the one without a name | is in every request (3.1) | the codecs |

use std::{
    fmt,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use tokio::task::coop::unconstrained;
use tokio_stream::StreamExt as _;
use tonic::{Request, Response, Status};

use crate::{
    call::{Binding, Call, Version},
    contract::BoxStream,
    error::{Error, ErrorKind},
    event::{Ends, Event, Mark, Position},
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
    snapshot::Snapshot,
};

/// The id of a push configuration that came without one.
pub const DEFAULT_CONFIG: &str = "default";

/// What 1.0 has as `returnImmediately`, for a send of 0.3 that says this of `blocking`.
///
/// `push` tells whether the message brings a push configuration along, which is asking to be told later. JSON-RPC has
/// `None` where a configuration does not say it. gRPC and HTTP+JSON have `Some(false)` there: clients print the messages of
/// the proto without default values. Without any configuration a send waits on each of them, and this is not asked.
pub const fn returns_at_once(blocking: Option<bool>, push: bool) -> bool {
    match blocking {
        Some(blocking) => !blocking,
        None => push,
    }
}

/// A service as callers of 0.3 know it.
pub struct Semantics {
    service: Arc<dyn A2aService>,
}

impl Semantics {
    /// This service, for callers of 0.3.
    pub fn new(service: Arc<dyn A2aService>) -> Self {
        Self { service }
    }

    /// The task, of somebody who may be refused it.
    async fn task(&self, call: &Call, tenant: &str, id: &str) -> Result<Task, Status> {
        let request = GetTaskRequest { tenant: tenant.to_owned(), id: id.to_owned(), history_length: None };
        Ok(self.service.get_task(call.clone().request(request)).await?.into_inner().into_task()?)
    }

    /// A task that has ended, as a stream: the task, and for those who wait for `final` its status once more.
    async fn ended(
        &self,
        call: &Call,
        request: &SubscribeToTaskRequest,
        why: Status,
    ) -> Result<BoxStream<Event>, Status> {
        let task = self.task(call, &request.tenant, &request.id).await?;
        if !task.state().is_terminal() {
            return Err(why);
        }
        let last = (call.binding == Binding::JsonRpc).then(|| TaskStatusUpdateEvent {
            task_id: task.id.clone(),
            context_id: task.context_id.clone(),
            status: task.status.clone(),
            metadata: None,
        });
        let ends = if last.is_some() { Ends::Nothing } else { Ends::Task };
        let first = Event::task(Position::default(), ends, Arc::new(task));
        let last = last.map(|it| Event::new(Position::default(), Mark::ending(Ends::Task), Payload::StatusUpdate(it)));
        Ok(Box::pin(tokio_stream::iter([Some(first), last].into_iter().flatten().map(Ok))))
    }
}

/// Takes the call as one of 0.3, whatever it says of itself.
fn admit<T>(request: &mut Request<T>) {
    if let Some(call) = request.extensions_mut().get_mut::<Call>() {
        call.version = Version::V0_3;
    }
}

/// In 0.3, 0 sets no limit.
fn unlimit(length: &mut Option<i32>) {
    *length = length.filter(|it| *it != 0);
}

/// A refusal as the first and only item of the stream that was asked for. One of the parameters is not: a call that can't
/// be understood did not ask for a stream.
fn refused(binding: Binding, status: Status) -> Result<Response<BoxStream<Event>>, Status> {
    let plain = [ErrorKind::InvalidParams, ErrorKind::InvalidRequest, ErrorKind::Parse, ErrorKind::MethodNotFound];
    let error = Error::from(status);
    if binding != Binding::JsonRpc || plain.contains(&error.kind()) {
        return Err(error.into());
    }
    let again = error.retry_after_seconds();
    let mut response: Response<BoxStream<Event>> = Response::new(Box::pin(tokio_stream::once(Err(error.into()))));
    if let Some(seconds) = again {
        // An event has no room for it, and the head of the stream has.
        response.metadata_mut().insert("retry-after", seconds.into());
    }
    Ok(response)
}

#[tonic::async_trait]
impl A2aService for Semantics {
    async fn send_message(
        &self,
        mut request: Request<SendMessageRequest>,
    ) -> Result<Response<SendMessageResponse>, Status> {
        admit(&mut request);
        configure(request.get_mut());
        self.service.send_message(request).await
    }

    async fn send_streaming_message(
        &self,
        mut request: Request<SendMessageRequest>,
    ) -> Result<Response<BoxStream<Event>>, Status> {
        admit(&mut request);
        configure(request.get_mut());
        let binding = Call::of(&request)?.binding;
        match self.service.send_streaming_message(request).await {
            Ok(response) => Ok(response.map(|all| Finals::of(all, false))),
            Err(status) => refused(binding, status),
        }
    }

    async fn get_task(&self, mut request: Request<GetTaskRequest>) -> Result<Response<Snapshot>, Status> {
        admit(&mut request);
        unlimit(&mut request.get_mut().history_length);
        self.service.get_task(request).await
    }

    async fn list_tasks(&self, mut request: Request<ListTasksRequest>) -> Result<Response<ListTasksResponse>, Status> {
        admit(&mut request);
        unlimit(&mut request.get_mut().history_length);
        self.service.list_tasks(request).await
    }

    /// Two who cancel at the same time have both done it; who comes later is told that there is nothing left to cancel.
    async fn cancel_task(&self, mut request: Request<CancelTaskRequest>) -> Result<Response<Snapshot>, Status> {
        admit(&mut request);
        let CancelTaskRequest { tenant, id, .. } = request.get_ref();
        let task = self.task(Call::of(&request)?, tenant, id).await?;
        if task.state() == TaskState::Canceled {
            let why = format!("{id} is {}", TaskState::Canceled.as_str_name());
            return Err(ErrorKind::TaskNotCancelable.because(why).with("taskId", id).into());
        }
        self.service.cancel_task(request).await
    }

    async fn subscribe_to_task(
        &self,
        mut request: Request<SubscribeToTaskRequest>,
    ) -> Result<Response<BoxStream<Event>>, Status> {
        admit(&mut request);
        let (call, wanted) = (Call::of(&request)?.clone(), request.get_ref().clone());
        let refusal = match self.service.subscribe_to_task(request).await {
            Ok(response) => return Ok(response.map(|all| Finals::of(all, true))),
            Err(status) => Error::from(status),
        };
        if refusal.kind() != ErrorKind::TaskEnded {
            return refused(call.binding, refusal.into());
        }
        match self.ended(&call, &wanted, refusal.into()).await {
            Ok(events) => Ok(Response::new(events)),
            Err(status) => refused(call.binding, status),
        }
    }

    async fn create_task_push_notification_config(
        &self,
        mut request: Request<TaskPushNotificationConfig>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        admit(&mut request);
        name(request.get_mut());
        self.service.create_task_push_notification_config(request).await
    }

    async fn get_task_push_notification_config(
        &self,
        mut request: Request<GetTaskPushNotificationConfigRequest>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        admit(&mut request);
        let GetTaskPushNotificationConfigRequest { tenant, task_id, id } = request.get_ref();
        if !id.is_empty() {
            return self.service.get_task_push_notification_config(request).await;
        }
        let all = ListTaskPushNotificationConfigsRequest {
            tenant: tenant.clone(),
            task_id: task_id.clone(),
            ..ListTaskPushNotificationConfigsRequest::default()
        };
        let all = Call::of(&request)?.clone().request(all);
        let all = self.service.list_task_push_notification_configs(all).await?.into_inner().configs;
        let named = |id: &str| all.iter().position(|it| it.id == id);
        let place = named(DEFAULT_CONFIG).or_else(|| named(task_id)).unwrap_or_default();
        let none = || ErrorKind::TaskNotFound.because(format!("{task_id} has no push configuration"));
        // Read by itself, so that it comes with what is kept beside it.
        request.get_mut().id = all.into_iter().nth(place).ok_or_else(none)?.id;
        self.service.get_task_push_notification_config(request).await
    }

    async fn list_task_push_notification_configs(
        &self,
        mut request: Request<ListTaskPushNotificationConfigsRequest>,
    ) -> Result<Response<ListTaskPushNotificationConfigsResponse>, Status> {
        admit(&mut request);
        self.service.list_task_push_notification_configs(request).await
    }

    async fn delete_task_push_notification_config(
        &self,
        mut request: Request<DeleteTaskPushNotificationConfigRequest>,
    ) -> Result<Response<Empty>, Status> {
        admit(&mut request);
        self.service.delete_task_push_notification_config(request).await
    }

    async fn get_extended_agent_card(
        &self,
        mut request: Request<GetExtendedAgentCardRequest>,
    ) -> Result<Response<AgentCard>, Status> {
        admit(&mut request);
        self.service.get_extended_agent_card(request).await
    }
}

/// What a message says of how it is to be answered, as 1.0 has it.
fn configure(request: &mut SendMessageRequest) {
    if let Some(it) = &mut request.configuration {
        unlimit(&mut it.history_length);
        if let Some(it) = &mut it.task_push_notification_config {
            name(it);
        }
    }
}

fn name(config: &mut TaskPushNotificationConfig) {
    if config.id.is_empty() {
        DEFAULT_CONFIG.clone_into(&mut config.id);
    }
}

/// A stream of which an event that ends anything is the last.
struct Finals {
    all: BoxStream<Event>,
    /// It closes when a turn ends. A stream of a message may have turns before its own, and knows itself when to.
    closes: bool,
    /// What was looked ahead at.
    next: Option<Result<Event, Status>>,
    done: bool,
}

impl Finals {
    fn of(all: BoxStream<Event>, closes: bool) -> BoxStream<Event> {
        Box::pin(Self { all, closes, next: None, done: false })
    }
}

impl Stream for Finals {
    type Item = Result<Event, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.done {
            return Poll::Ready(None);
        }
        let item = match self.next.take() {
            Some(it) => Some(it),
            None => ready!(self.all.as_mut().poll_next(cx)),
        };
        let Some(Ok(event)) = item else { return Poll::Ready(item) };
        match event.ends() {
            Ends::Nothing => return Poll::Ready(Some(Ok(event))),
            Ends::Turn if !self.closes => {}
            Ends::Turn | Ends::Task => {
                self.done = true;
                return Poll::Ready(Some(Ok(event)));
            }
        }
        // A stream that is over says so at once, which must not depend on how much its reader has had of its share.
        match pin!(unconstrained(self.all.next())).poll(cx) {
            Poll::Ready(None) => {
                self.done = true;
                return Poll::Ready(Some(Ok(event)));
            }
            Poll::Ready(next) => self.next = next,
            Poll::Pending => {}
        }
        let (position, payload) = (event.position(), event.into_message().payload);
        let mark = Mark { ends: Ends::Nothing, hidden: false };
        Poll::Ready(Some(Ok(payload.map(|it| Event::new(position, mark, it)).unwrap_or_default())))
    }
}

impl fmt::Debug for Semantics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Legacy").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_blocking_is_turned_round() {
        for (blocking, push, at_once) in [
            (None, false, false),
            (None, true, true),
            (Some(true), false, false),
            (Some(true), true, false),
            (Some(false), false, true),
            (Some(false), true, true),
        ] {
            assert_eq!(returns_at_once(blocking, push), at_once, "{blocking:?} {push}");
        }
    }
}
