//! Client-side retries: a service wrapper that retries calls to a remote agent where that is safe.
//!
//! Decides for all bindings and versions which calls are idempotent. A send of unknown outcome is retried only if the
//! agent supports `Idempotency-Key`.

use std::sync::Arc;

use tonic::{Request, Response, Status, metadata::MetadataMap};

use super::{
    resume::{ResumingStream, StreamContext, StreamRequest},
    retry::{Backoff, Retry, passes},
};
use crate::{
    call::{Call, IDEMPOTENCY_KEY},
    contract::{BoxStream, ServiceFuture},
    env::Ids,
    error::Error,
    event::{Event, resume},
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
};

/// A remote agent with its retry policy.
#[derive(Clone)]
pub(super) struct Retrying {
    pub(super) agent: Arc<dyn A2aService>,
    pub(super) retry: Retry,
    /// Cursors of events arrive only in their metadata, through the extension `resume`.
    pub(super) marks: bool,
    /// Subscriptions last until the task is terminal (3.1.6). In 0.3 they end with a turn.
    pub(super) lasts: bool,
}

/// Idempotency of a call: decides if it may be retried when its outcome is unknown.
#[derive(Clone, Copy)]
enum Retryable<'a> {
    /// Read-only or idempotent.
    Always,
    /// A send for this tenant: idempotent if the agent supports its `Idempotency-Key`.
    Keyed(&'a str),
    /// Retried only if nothing was sent.
    Never,
}

impl Retrying {
    /// Calls until a response or a permanent error arrives, or the attempts are exhausted.
    async fn call<Req: Clone + Send, Res>(
        &self,
        request: Request<Req>,
        idempotency: Retryable<'_>,
        rpc: impl for<'a> Fn(&'a dyn A2aService, Request<Req>) -> ServiceFuture<'a, Res> + Send + Sync,
    ) -> Result<Response<Res>, Status> {
        let (call, message) = into_parts(request);
        let mut backoff = Backoff::new(&self.retry);
        loop {
            match rpc(&*self.agent, call.clone().request(message.clone())).await {
                Ok(response) => return Ok(response),
                Err(status) => self.wait_to_retry(&mut backoff, &call, idempotency, status).await?,
            }
        }
    }

    /// Waits until the call can be retried. Returns its error if it can't.
    async fn wait_to_retry(
        &self,
        backoff: &mut Backoff,
        call: &Call,
        idempotency: Retryable<'_>,
        status: Status,
    ) -> Result<(), Status> {
        let error = Error::from(status.clone());
        let may_retry = match idempotency {
            Retryable::Always => true,
            Retryable::Keyed(_) => error.is_unsent() || call.idempotency_key.is_some(),
            Retryable::Never => error.is_unsent(),
        };
        if !passes(&error) || !may_retry || !backoff.wait(&error, call).await {
            return Err(status);
        }
        let (Retryable::Keyed(tenant), false) = (idempotency, error.is_unsent()) else { return Ok(()) };
        loop {
            let may_probe_again = match self.knows_keys(call, tenant).await {
                Ok(supported) => return if supported { Ok(()) } else { Err(status) },
                Err(transient) => backoff.wait(&transient, call).await,
            };
            if !may_probe_again {
                return Err(status);
            }
        }
    }

    /// Returns true if the agent supports `Idempotency-Key`. The protocol has no way to declare that, so this probes it: an
    /// agent that returns the key in the response to `GetTask` of a random id has read it.
    ///
    /// # Errors
    /// The probe failed with a transient error.
    pub(super) async fn knows_keys(&self, call: &Call, tenant: &str) -> Result<bool, Error> {
        if call.idempotency_key.is_none() {
            return Ok(false);
        }
        let unknown_task =
            GetTaskRequest { tenant: tenant.to_owned(), id: Ids::default().random(), history_length: None };
        let probe = Call { cursor: None, ..call.clone() };
        match self.agent.get_task(probe.request(unknown_task)).await {
            Ok(response) => Ok(echoes_key(response.metadata(), call)),
            Err(status) if echoes_key(status.metadata(), call) => Ok(true),
            Err(status) => {
                let error = Error::from(status);
                if passes(&error) { Err(error) } else { Ok(false) }
            }
        }
    }

    /// Adds an idempotency key to a send that has none, if the retry policy says so.
    fn with_key<T>(&self, mut request: Request<T>) -> Request<T> {
        let mut call = request.extensions_mut().remove::<Call>().unwrap_or_default();
        if self.retry.keys {
            call.idempotency_key.get_or_insert_with(|| Ids::default().random());
        }
        request.extensions_mut().insert(call);
        request
    }

    /// Opens a stream that is resumed until its task or turn ends.
    async fn stream(&self, ask: StreamRequest, mut call: Call) -> Result<Response<BoxStream<Event>>, Status> {
        let adds_marks = self.marks && !call.extensions.iter().any(|uri| uri == resume::URI);
        if adds_marks {
            call.extensions.push(resume::URI.to_owned());
        }
        let opened = match &ask {
            StreamRequest::Send(message) => {
                let request = call.clone().request(SendMessageRequest::clone(message));
                let idempotency = Retryable::Keyed(&message.tenant);
                self.call(request, idempotency, |agent, request| agent.send_streaming_message(request)).await?
            }
            StreamRequest::Subscribe(message) | StreamRequest::Rest(message) => {
                let request = call.clone().request(message.clone());
                self.call(request, Retryable::Always, |agent, request| agent.subscribe_to_task(request)).await?
            }
        };
        let (metadata, events, extensions) = opened.into_parts();
        let known = StreamContext { keyed: echoes_key(&metadata, &call), unmarks: adds_marks };
        let stream = ResumingStream::new(self.clone(), ask, call, events, known);
        Ok(Response::from_parts(metadata, stream.into_stream(), extensions))
    }
}

/// Returns true if the metadata of a response contains the idempotency key of its call.
fn echoes_key(metadata: &MetadataMap, call: &Call) -> bool {
    let key = metadata.get(IDEMPOTENCY_KEY.as_str()).and_then(|value| value.to_str().ok());
    key.is_some() && key == call.idempotency_key.as_deref()
}

fn into_parts<T>(request: Request<T>) -> (Call, T) {
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
        let idempotency = Retryable::Keyed(&tenant);
        self.call(self.with_key(request), idempotency, |agent, request| agent.send_message(request)).await
    }

    async fn send_streaming_message(
        &self,
        request: Request<SendMessageRequest>,
    ) -> Result<Response<BoxStream<Event>>, Status> {
        let (call, message) = into_parts(self.with_key(request));
        self.stream(StreamRequest::Send(Box::new(message)), call).await
    }

    async fn get_task(&self, request: Request<GetTaskRequest>) -> Result<Response<Snapshot>, Status> {
        self.call(request, Retryable::Always, |agent, request| agent.get_task(request)).await
    }

    async fn list_tasks(&self, request: Request<ListTasksRequest>) -> Result<Response<ListTasksResponse>, Status> {
        self.call(request, Retryable::Always, |agent, request| agent.list_tasks(request)).await
    }

    /// Never retried: some agents reject the cancellation of a canceled task (3.1.5) and others accept it (3.3.1), so the
    /// result of a retry would be ambiguous.
    async fn cancel_task(&self, request: Request<CancelTaskRequest>) -> Result<Response<Snapshot>, Status> {
        self.call(request, Retryable::Never, |agent, request| agent.cancel_task(request)).await
    }

    async fn subscribe_to_task(
        &self,
        request: Request<SubscribeToTaskRequest>,
    ) -> Result<Response<BoxStream<Event>>, Status> {
        let (call, message) = into_parts(request);
        self.stream(StreamRequest::Subscribe(message), call).await
    }

    /// Never retried: without an id, each call creates another configuration (4.3.1).
    async fn create_task_push_notification_config(
        &self,
        request: Request<TaskPushNotificationConfig>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        self.call(request, Retryable::Never, |agent, request| agent.create_task_push_notification_config(request)).await
    }

    async fn get_task_push_notification_config(
        &self,
        request: Request<GetTaskPushNotificationConfigRequest>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        self.call(request, Retryable::Always, |agent, request| agent.get_task_push_notification_config(request)).await
    }

    async fn list_task_push_notification_configs(
        &self,
        request: Request<ListTaskPushNotificationConfigsRequest>,
    ) -> Result<Response<ListTaskPushNotificationConfigsResponse>, Status> {
        self.call(request, Retryable::Always, |agent, request| agent.list_task_push_notification_configs(request)).await
    }

    /// Idempotent (3.1.10).
    async fn delete_task_push_notification_config(
        &self,
        request: Request<DeleteTaskPushNotificationConfigRequest>,
    ) -> Result<Response<Empty>, Status> {
        self.call(request, Retryable::Always, |agent, request| agent.delete_task_push_notification_config(request))
            .await
    }

    async fn get_extended_agent_card(
        &self,
        request: Request<GetExtendedAgentCardRequest>,
    ) -> Result<Response<AgentCard>, Status> {
        self.call(request, Retryable::Always, |agent, request| agent.get_extended_agent_card(request)).await
    }
}
