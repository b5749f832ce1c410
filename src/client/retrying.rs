//! An agent that is called again where that is safe: its streams go on where they broke, and a send is taken once.
//!
//! What can be safe is decided here, once for all bindings and versions: it is a service around a service.

use std::sync::Arc;

use tonic::{Request, Response, Status, metadata::MetadataMap};

use super::{
    resume::{ResumingStream, StreamContext, StreamRequest},
    retry::{Backoff, Retry, passes},
};
use crate::{
    call::{Call, IDEMPOTENCY_KEY},
    contract::{BoxStream, ResponseFuture},
    error::Error,
    event::Event,
    extension::resume,
    pb::{
        v1::{
            AgentCard, CancelTaskRequest, DeleteTaskPushNotificationConfigRequest, GetExtendedAgentCardRequest,
            GetTaskPushNotificationConfigRequest, GetTaskRequest, ListTaskPushNotificationConfigsRequest,
            ListTaskPushNotificationConfigsResponse, ListTasksRequest, ListTasksResponse, SendMessageRequest,
            SendMessageResponse, SubscribeToTaskRequest, TaskPushNotificationConfig, a2a_service_server::A2aService,
        },
        wkt::Empty,
    },
    seam,
    snapshot::Snapshot,
};

/// An agent, and when it is called again.
#[derive(Clone)]
pub(super) struct Retrying {
    pub(super) agent: Arc<dyn A2aService>,
    pub(super) retry: Retry,
    /// Its streams say in the metadata of an event alone where they can be taken up.
    pub(super) marks: bool,
    /// Its subscriptions last until their tasks end (3.1.6); those of 0.3 end with a turn.
    pub(super) lasts: bool,
}

/// Whether a call may be made again of which nobody knows what became.
#[derive(Clone, Copy)]
enum Retryable<'a> {
    /// It changes nothing, or twice is once.
    Always,
    /// A send for this tenant: where the agent knows its key.
    Keyed(&'a str),
    /// Only one that never left.
    Never,
}

impl Retrying {
    /// Calls until there is an answer, or an error that stays.
    async fn call<Req: Clone + Send, Res>(
        &self,
        request: Request<Req>,
        safe: Retryable<'_>,
        rpc: impl for<'a> Fn(&'a dyn A2aService, Request<Req>) -> ResponseFuture<'a, Res> + Send + Sync,
    ) -> Result<Response<Res>, Status> {
        let (call, message) = parts(request);
        let mut backoff = Backoff::new(&self.retry);
        loop {
            match rpc(&*self.agent, call.clone().request(message.clone())).await {
                Ok(it) => return Ok(it),
                Err(status) => self.once_more(&mut backoff, &call, safe, status).await?,
            }
        }
    }

    /// Returns when the call can be made again; or gives the error back, because it can't.
    async fn once_more(
        &self,
        backoff: &mut Backoff,
        call: &Call,
        safe: Retryable<'_>,
        status: Status,
    ) -> Result<(), Status> {
        let error = Error::from(status.clone());
        let may_be = match safe {
            Retryable::Always => true,
            Retryable::Keyed(_) => error.is_unsent() || call.idempotency_key.is_some(),
            Retryable::Never => error.is_unsent(),
        };
        if !passes(&error) || !may_be || !backoff.wait(&error, call).await {
            return Err(status);
        }
        let (Retryable::Keyed(tenant), false) = (safe, error.is_unsent()) else { return Ok(()) };
        loop {
            let goes_on = match self.knows_keys(call, tenant).await {
                Ok(known) => return if known { Ok(()) } else { Err(status) },
                Err(away) => backoff.wait(&away, call).await,
            };
            if !goes_on {
                return Err(status);
            }
        }
    }

    /// Whether the agent knows what an `Idempotency-Key` is. Nothing in the protocol says that; an agent that sends the key
    /// back with the answer to a call that changes nothing, and can find nothing, has read it.
    pub(super) async fn knows_keys(&self, call: &Call, tenant: &str) -> Result<bool, Error> {
        if call.idempotency_key.is_none() {
            return Ok(false);
        }
        let nothing = GetTaskRequest { tenant: tenant.to_owned(), id: seam::random_id(), history_length: None };
        let probe = Call { cursor: None, ..call.clone() };
        match self.agent.get_task(probe.request(nothing)).await {
            Ok(answer) => Ok(echoes(answer.metadata(), call)),
            Err(status) if echoes(status.metadata(), call) => Ok(true),
            Err(status) => {
                let error = Error::from(status);
                if passes(&error) { Err(error) } else { Ok(false) }
            }
        }
    }

    /// What comes with a send.
    fn sent<T>(&self, mut request: Request<T>) -> Request<T> {
        let mut call = request.extensions_mut().remove::<Call>().unwrap_or_default();
        if self.retry.keys {
            call.idempotency_key.get_or_insert_with(seam::random_id);
        }
        request.extensions_mut().insert(call);
        request
    }

    /// A stream that goes on until it is at its end.
    async fn stream(&self, ask: StreamRequest, mut call: Call) -> Result<Response<BoxStream<Event>>, Status> {
        let unasked = self.marks && !call.extensions.iter().any(|it| it == resume::URI);
        if unasked {
            call.extensions.push(resume::URI.to_owned());
        }
        let opened = match &ask {
            StreamRequest::Send(message) => {
                let request = call.clone().request(SendMessageRequest::clone(message));
                let safe = Retryable::Keyed(&message.tenant);
                self.call(request, safe, |it, request| it.send_streaming_message(request)).await?
            }
            StreamRequest::Subscribe(message) | StreamRequest::Rest(message) => {
                let request = call.clone().request(message.clone());
                self.call(request, Retryable::Always, |it, request| it.subscribe_to_task(request)).await?
            }
        };
        let (metadata, events, extensions) = opened.into_parts();
        let known = StreamContext { keyed: echoes(&metadata, &call), unmarks: unasked };
        let stream = ResumingStream::new(self.clone(), ask, call, events, known);
        Ok(Response::from_parts(metadata, stream.into_stream(), extensions))
    }
}

/// Whether an answer has the key of its call.
fn echoes(metadata: &MetadataMap, call: &Call) -> bool {
    let key = metadata.get(IDEMPOTENCY_KEY.as_str()).and_then(|it| it.to_str().ok());
    key.is_some() && key == call.idempotency_key.as_deref()
}

fn parts<T>(request: Request<T>) -> (Call, T) {
    let (_, mut extensions, message) = request.into_parts();
    (extensions.remove::<Call>().unwrap_or_default(), message)
}

#[tonic::async_trait]
impl A2aService for Retrying {
    async fn send_message(
        &self,
        request: Request<SendMessageRequest>,
    ) -> Result<Response<SendMessageResponse>, Status> {
        let tenant = request.get_ref().tenant.clone();
        self.call(self.sent(request), Retryable::Keyed(&tenant), |it, request| it.send_message(request)).await
    }

    async fn send_streaming_message(
        &self,
        request: Request<SendMessageRequest>,
    ) -> Result<Response<BoxStream<Event>>, Status> {
        let (call, message) = parts(self.sent(request));
        self.stream(StreamRequest::Send(Box::new(message)), call).await
    }

    async fn get_task(&self, request: Request<GetTaskRequest>) -> Result<Response<Snapshot>, Status> {
        self.call(request, Retryable::Always, |it, request| it.get_task(request)).await
    }

    async fn list_tasks(&self, request: Request<ListTasksRequest>) -> Result<Response<ListTasksResponse>, Status> {
        self.call(request, Retryable::Always, |it, request| it.list_tasks(request)).await
    }

    /// Some agents refuse to cancel what is canceled (3.1.5), and others do not (3.3.1): whoever cancels twice can't tell
    /// which time it was.
    async fn cancel_task(&self, request: Request<CancelTaskRequest>) -> Result<Response<Snapshot>, Status> {
        self.call(request, Retryable::Never, |it, request| it.cancel_task(request)).await
    }

    async fn subscribe_to_task(
        &self,
        request: Request<SubscribeToTaskRequest>,
    ) -> Result<Response<BoxStream<Event>>, Status> {
        let (call, message) = parts(request);
        self.stream(StreamRequest::Subscribe(message), call).await
    }

    /// One without an id is another one each time (4.3.1).
    async fn create_task_push_notification_config(
        &self,
        request: Request<TaskPushNotificationConfig>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        self.call(request, Retryable::Never, |it, request| it.create_task_push_notification_config(request)).await
    }

    async fn get_task_push_notification_config(
        &self,
        request: Request<GetTaskPushNotificationConfigRequest>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        self.call(request, Retryable::Always, |it, request| it.get_task_push_notification_config(request)).await
    }

    async fn list_task_push_notification_configs(
        &self,
        request: Request<ListTaskPushNotificationConfigsRequest>,
    ) -> Result<Response<ListTaskPushNotificationConfigsResponse>, Status> {
        self.call(request, Retryable::Always, |it, request| it.list_task_push_notification_configs(request)).await
    }

    /// Deleted is deleted (3.1.10).
    async fn delete_task_push_notification_config(
        &self,
        request: Request<DeleteTaskPushNotificationConfigRequest>,
    ) -> Result<Response<Empty>, Status> {
        self.call(request, Retryable::Always, |it, request| it.delete_task_push_notification_config(request)).await
    }

    async fn get_extended_agent_card(
        &self,
        request: Request<GetExtendedAgentCardRequest>,
    ) -> Result<Response<AgentCard>, Status> {
        self.call(request, Retryable::Always, |it, request| it.get_extended_agent_card(request)).await
    }
}
