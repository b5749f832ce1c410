//! A2A service of an agent: the implementation of the eleven RPCs of [`A2aService`] (3.1).
//!
//! The service validates requests against the configuration and delegates to the [execution](crate::engine::execution). It does not
//! depend on the binding of a call. Required fields have been [checked](crate::protocol::validate) before.

use std::{
    pin::Pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::{
    FutureExt as _,
    future::{Either, ready},
};
use tokio::{sync::watch, time::timeout};
use tonic::{Request, Response};

pub use self::media_types::Modes;
#[cfg(feature = "signing")]
use crate::base::sealing::SealingKey;
pub use crate::engine::{
    execution::{IdempotencySource, Limits},
    journal::LiveMemory,
};
#[cfg(feature = "push")]
use crate::service::push::{PushOptions, PushStats, delivery::DeliveryService};
use crate::{
    base::{
        clock::Millis,
        dependency::Dependency,
        metric::{EngineGauges, LimitUse},
        sources::Sources,
    },
    engine::{
        agent::{Agent, DynAgent},
        execution::{Execution, PUSH_IN_SEND, SendRequest},
        journal::{FailureReports, Journal, TurnContext, TurnReply, TurnTrace},
    },
    protocol::{
        call::{Call, CallRecord},
        error::{Error, ErrorKind},
        event::Event,
        history::HistoryLimit,
        pb::{
            v1::{
                AgentCard, CancelTaskRequest, DeleteTaskPushNotificationConfigRequest, GetExtendedAgentCardRequest,
                GetTaskPushNotificationConfigRequest, GetTaskRequest, ListTaskPushNotificationConfigsRequest,
                ListTaskPushNotificationConfigsResponse, ListTasksRequest, ListTasksResponse, SendMessageRequest,
                SendMessageResponse, SubscribeToTaskRequest, TaskPushNotificationConfig, TaskState,
                a2a_service_server::A2aService, send_message_response::Payload,
            },
            wkt::Empty,
        },
        rpc::{BoxStream, ServiceFuture, ServiceResult},
        snapshot::Snapshot,
    },
    service::wrappers::extended::Negotiated,
    store::{DeliveryCounts, ListQuery, PageToken, Retention, Scope, Store, StoreUsage, TaskKey},
};

pub mod auth;
mod call_limits;
pub mod card;
mod media_types;
mod message_limits;
pub(crate) mod operator;
#[cfg(feature = "push")]
pub mod push;
pub mod push_configs;
mod streams;
pub(crate) mod wrappers;

/// Default page size (3.1.4).
pub const DEFAULT_PAGE_SIZE: i32 = 50;

/// Maximum time that metrics and operators wait for a store.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);

/// Valid page sizes (3.1.4).
pub const PAGE_SIZES: std::ops::RangeInclusive<i32> = 1..=100;

/// Service of an agent, which all bindings share.
pub struct Service {
    execution: Execution,
    /// Scope of anonymous callers without a tenant. Shared, because most calls have it.
    anonymous: Arc<Scope>,
    calls: call_limits::CallLimits,
    gate: media_types::MediaTypeCheck,
    offers: Capabilities,
    default_key: IdempotencySource,
    extended_card: OnceLock<ExtendedCardSource>,
    dependencies: Arc<[Dependency]>,
    /// Delivery of push notifications, if it is offered.
    #[cfg(feature = "push")]
    delivery: Option<DeliveryService>,
}

/// Source of the extended card for a call.
pub(crate) type ExtendedCardSource =
    Arc<dyn Fn(Call) -> Pin<Box<dyn Future<Output = Result<AgentCard, Error>> + Send>> + Send + Sync>;

defaults! {
    /// Optional capabilities of the protocol (3.3.4). The card declares them, and the service rejects calls that need others.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Capabilities {
        /// Streaming of sends and subscriptions.
        pub streaming: bool = true,
        /// Push notification configurations.
        pub push: bool,
    }
}

impl Capabilities {
    fn streaming(&self) -> Result<(), Error> {
        let why = "this agent does not stream; use SendMessage, or poll the task";
        if self.streaming { Ok(()) } else { Err(ErrorKind::StreamingNotSupported.because(why)) }
    }

    fn push(&self) -> Result<(), Error> {
        let why = "push notifications are disabled (push.enabled); stream or poll the task";
        if self.push { Ok(()) } else { Err(ErrorKind::PushNotificationNotSupported.because(why)) }
    }
}

impl Service {
    /// Creates the service of an agent with a store.
    pub fn new(agent: impl Agent, store: Arc<dyn Store>, limits: Limits) -> Self {
        Self::with_sources(Arc::new(agent), store, limits, Sources::default())
    }

    /// Creates the service of an agent with a store and the sources of time, ids and randomness.
    pub fn with_sources(agent: Arc<dyn DynAgent>, store: Arc<dyn Store>, limits: Limits, sources: Sources) -> Self {
        let calls = call_limits::CallLimits::new(&limits);
        let execution = Execution::new(agent, store, limits, sources);
        Self {
            calls,
            dependencies: Arc::clone(execution.dependencies()),
            execution,
            anonymous: Arc::default(),
            gate: media_types::MediaTypeCheck::default(),
            offers: Capabilities::default(),
            default_key: IdempotencySource::default(),
            extended_card: OnceLock::new(),
            #[cfg(feature = "push")]
            delivery: None,
        }
    }

    /// Starts the delivery of push notifications.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[cfg(feature = "push")]
    pub(crate) fn delivering(self, options: PushOptions) -> Self {
        let journal = self.execution.journal();
        let delivery = DeliveryService::start(Arc::clone(journal.store()), journal.sources().clone(), options);
        journal.observe(delivery.observer());
        Self { delivery: Some(delivery), ..self }
    }

    pub(crate) fn journal(&self) -> &Arc<Journal> {
        self.execution.journal()
    }

    /// Returns what the agent needs for its turns, and what the server needs for calls.
    pub(crate) fn dependencies(&self) -> &Arc<[Dependency]> {
        &self.dependencies
    }

    /// Adds what the server needs for calls.
    pub(crate) fn needing(self, more: Vec<Dependency>) -> Self {
        Self { dependencies: self.dependencies.iter().cloned().chain(more).collect(), ..self }
    }

    /// Returns a flag that becomes true when the unfinished turns of the last process have been recovered.
    pub(crate) fn recovered(&self) -> watch::Receiver<bool> {
        self.execution.recovered()
    }

    /// Sets the idempotency key of sends without an `Idempotency-Key`.
    #[must_use]
    pub fn idempotency_default_key(self, default_key: IdempotencySource) -> Self {
        Self { default_key, ..self }
    }

    /// Sets the secret key of the servers that share the store.
    #[cfg(feature = "signing")]
    #[doc(hidden)]
    #[must_use]
    pub fn cluster_key(self, key: &[u8; 32]) -> Self {
        self.execution.set_sealing_key(SealingKey::new(key));
        self
    }

    /// Sets the capabilities.
    #[must_use]
    pub fn offering(self, offers: Capabilities) -> Self {
        Self { offers, ..self }
    }

    /// Sets how failed turns are reported. A later call is ignored.
    #[must_use]
    pub(crate) fn report_failures(self, reports: FailureReports) -> Self {
        self.execution.journal().failure_reports.get_or_init(|| reports);
        self
    }

    /// Sets the source of the extended card. A later one is ignored.
    pub(crate) fn set_extended_card(&self, source: ExtendedCardSource) {
        self.extended_card.get_or_init(|| source);
    }

    /// Sets the constraints on messages. The media types are those of the agent's description.
    #[must_use]
    pub fn modes(self, modes: Modes, card: &AgentCard) -> Self {
        Self { gate: media_types::MediaTypeCheck::new(modes, card), ..self }
    }

    /// Stops the service: rejects new work, waits up to `grace` for running turns, and interrupts the rest. It cancels no task.
    pub async fn drain(&self, grace: Duration) {
        self.execution.drain(grace).await;
        #[cfg(feature = "push")]
        if let Some(delivery) = &self.delivery {
            delivery.stop().await;
        }
    }

    /// Returns the counters of the delivery of push notifications, `None` if they are not offered.
    #[cfg(feature = "push")]
    pub(crate) async fn push_stats(&self) -> Result<Option<PushStats>, crate::store::Unavailable> {
        match &self.delivery {
            Some(delivery) => delivery.stats().await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns the state of the engine for the metrics.
    pub(crate) fn gauges(&self) -> EngineGauges {
        self.execution.gauges()
    }

    /// Returns the size of the store, and the use of the limits of the service. `None` if the store does not respond in time: the
    /// rest can still be read.
    pub(crate) async fn usage(&self) -> Option<(StoreUsage, Vec<LimitUse>)> {
        let store = timeout(STORE_TIMEOUT, self.journal().store().usage()).await.ok()?.ok()?;
        let limits = self.execution.limits_in_use().into_iter().chain([self.calls.in_use()]);
        let limits = limits.chain(store.limits_in_use()).collect();
        Some((store, limits))
    }

    /// Returns the numbers of deliveries, and the time since which the oldest one waits. `None` if the store does not respond in
    /// time.
    pub(crate) async fn pending_deliveries(&self) -> Option<(DeliveryCounts, Option<Millis>)> {
        let store = self.journal().store();
        let counts = timeout(STORE_TIMEOUT, store.delivery_counts()).await.ok()?.ok()?;
        Some((counts, timeout(STORE_TIMEOUT, store.oldest_pending()).await.ok()?.ok()?))
    }

    /// Returns the use of the memory for live tasks, which several services may share.
    pub(crate) fn live_memory_in_use(&self) -> LimitUse {
        self.execution.limits().live_memory.in_use()
    }

    /// Starts the periodic retention sweeps, which delete expired data and cancel idle tasks. Replaces an earlier policy.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start_retention(&self, policy: Retention) {
        self.execution.start_sweeper(policy);
    }

    /// Returns the number of tasks in memory: those that run, have readers, or have uncommitted changes.
    pub fn live_tasks(&self) -> usize {
        self.execution.journal().live_tasks()
    }

    /// Limit of the history of a task in a reply, given the number of messages that the caller asks for (3.2.4).
    fn history(&self, field: &str, length: Option<i32>) -> Result<HistoryLimit, Error> {
        Ok(HistoryLimit { messages: history_length(field, length)?, bytes: self.execution.limits().history_bytes })
    }

    fn scope(&self, call: &Call, tenant: &str) -> Arc<Scope> {
        if let Some(trace) = call.record.as_ref().and_then(|record| record.trace.as_ref()) {
            trace.with(|span| span.set_some("a2a.tenant", Some(tenant).filter(|tenant| !tenant.is_empty())));
        }
        if call.owner.is_empty() && tenant.is_empty() {
            return Arc::clone(&self.anonymous);
        }
        Arc::new(Scope { owner: Arc::clone(&call.owner), tenant: tenant.into() })
    }

    /// Tells the span of a call, if it is exported, the state of the task, and links the running or last turn in another trace.
    async fn trace_task(&self, record: Option<Arc<CallRecord>>, key: &TaskKey) {
        if let Some((record, trace)) = record.as_ref().and_then(|record| Some((record, record.trace.as_ref()?)))
            && trace.is_exported()
            && let Some((state, turn)) = self.execution.journal().traced_task(key).await
        {
            record.state(state);
            trace.with(|span| {
                if let (Some(own), Some(turn)) = (span.context(), turn)
                    && own.0[..16] != turn.0[..16]
                {
                    span.link("turn", turn);
                }
            });
        }
    }

    /// Returns the key of the task that a request names.
    fn key<T>(&self, request: &Request<T>, tenant: &str, id: &str) -> Result<TaskKey, Error> {
        let call = Call::of(request)?;
        call.check_deadline()?;
        Ok(TaskKey::new(&self.scope(call, tenant), id))
    }

    /// Validates a send. The referenced tasks are still missing ([`with_references`](Self::with_references)).
    fn validate_send(&self, request: Request<SendMessageRequest>) -> Result<(SendRequest, ReplyOptions), Error> {
        let call = Call::of(&request)?;
        call.check_deadline()?;
        let left = call.time_left();
        let scope = self.scope(call, &request.get_ref().tenant);
        let negotiated = request.extensions().get::<Negotiated>().is_some();
        let extensions = if negotiated { call.extensions.clone() } else { Vec::new() };
        let (principal, trace, forwarded) = (call.principal.clone(), call.trace.clone(), call.forwarded.clone());
        let (hops, binding, version) = (call.hops, Some(call.binding), Some(call.version));
        let state = call.trace_state.clone();
        let traced = state.map(|state| Box::new(TurnTrace { state: Some(state), ..TurnTrace::default() }));
        let responses = call.responses.clone();
        let idempotency_key = self.default_key.key(call, request.get_ref())?;
        self.gate.check(request.get_ref())?;
        let (_, mut request_extensions, body) = request.into_parts();
        let request_id = request_extensions.get_mut::<Call>().and_then(|call| call.request_id.take());
        let SendMessageRequest { message, configuration, metadata, .. } = body;
        let mut message = message.ok_or_else(|| Error::invalid_field("message", "is required"))?;
        message_limits::check(&message, metadata.as_ref(), self.execution.limits())?;
        // The idempotency key has been made of the message as it was sent.
        message_limits::count_hops(&mut message, hops, self.execution.limits())?;
        let configuration = configuration.unwrap_or_default();
        let push = configuration.task_push_notification_config;
        let push =
            push.map(|config| self.registered(PUSH_IN_SEND, config, &request_extensions).map(Box::new)).transpose()?;
        let history = self.history("configuration.historyLength", configuration.history_length)?;
        let accepted_output_modes = configuration.accepted_output_modes;
        let context = Box::new(TurnContext {
            principal,
            extensions,
            accepted_output_modes,
            metadata,
            trace,
            traced,
            binding,
            version,
            request_id,
            forwarded,
            ..TurnContext::default()
        });
        let has_references = !message.reference_task_ids.is_empty();
        let options = ReplyOptions { immediately: configuration.return_immediately, history, left, has_references };
        let cleared = request_extensions.get().copied().unwrap_or_default();
        Ok((SendRequest { scope, message, context, push, cleared, idempotency_key, responses }, options))
    }

    /// Sends the message. Returns at once, or when the turn has ended, as the caller wants.
    fn send(&self, send: SendRequest, options: ReplyOptions) -> impl Future<Output = Result<TurnReply, Error>> + Send {
        let ReplyOptions { immediately, left, .. } = options;
        if immediately {
            Either::Left(Box::pin(self.execution.start(send, left)))
        } else {
            Either::Right(self.execution.send(send, left))
        }
    }

    /// Adds the tasks that the message references (3.4.3). Tasks that do not exist, or that the caller may not read, are
    /// skipped: a reference is only a hint.
    async fn with_references(&self, mut send: SendRequest) -> Result<SendRequest, Error> {
        let (ids, max) = (&send.message.reference_task_ids, self.execution.limits().references);
        if ids.len() > max {
            let why = format!("{} ids exceed the limit of {max}", ids.len());
            return Err(Error::invalid_field("message.referenceTaskIds", why).limit("references"));
        }
        for id in ids {
            match self.execution.get(&TaskKey::new(&send.scope, id), None).await {
                Ok(task) => send.context.referenced.push(task.into_task()?),
                Err(error) if error.kind() == ErrorKind::TaskNotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(send)
    }
}

/// Options for the reply to a send.
#[derive(Clone, Copy)]
struct ReplyOptions {
    immediately: bool,
    history: HistoryLimit,
    /// Time until the caller's deadline.
    left: Option<Duration>,
    has_references: bool,
}

/// Validates a history length. `None` requests the whole history, and 0 no history (3.2.4).
fn history_length(field: &str, length: Option<i32>) -> Result<Option<usize>, Error> {
    let negative = |_| Error::invalid_field(field, "must not be negative");
    length.map(usize::try_from).transpose().map_err(negative)
}

/// Returns the maximum number of elements of a page.
fn page_limit(size: i32) -> Result<usize, Error> {
    let limit = usize::try_from(size).ok().filter(|_| PAGE_SIZES.contains(&size));
    limit.ok_or_else(|| Error::invalid_field("pageSize", format!("{size} is not between 1 and 100")))
}

fn query(call: &Call, scope: Arc<Scope>, request: &ListTasksRequest, limits: &Limits) -> Result<ListQuery, Error> {
    call.check_deadline()?;
    let size = request.page_size.unwrap_or(DEFAULT_PAGE_SIZE);
    let limit = page_limit(size)?;
    let mut query = ListQuery {
        scope,
        context: Some(request.context_id.as_str()).filter(|id| !id.is_empty()).map(Into::into),
        state: Some(request.status()).filter(|state| *state != TaskState::Unspecified),
        since: request.status_timestamp_after.as_ref().map(crate::protocol::pb::wkt::millis),
        after: None,
        limit,
        max_bytes: Some(limits.page_bytes),
        history_length: history_length("historyLength", request.history_length)?,
        history_bytes: Some(limits.history_bytes),
        include_artifacts: request.include_artifacts.unwrap_or_default(),
    };
    if !request.page_token.is_empty() {
        let token = PageToken::from_text(&request.page_token, &query);
        let why = "not a page token of this query; start again without one";
        query.after = Some(token.ok_or_else(|| Error::invalid_field("pageToken", why))?);
    }
    Ok(query)
}

#[tonic::async_trait]
impl A2aService for Service {
    /// Sends a message. Returns the task when the turn has ended or is interrupted (3.1.1, 3.2.2).
    ///
    /// No `async fn`: its future would store the request, too.
    fn send_message<'a, 'b>(&'a self, request: Request<SendMessageRequest>) -> ServiceFuture<'b, SendMessageResponse>
    where
        'a: 'b,
        Self: 'b,
    {
        let permit = match Call::of(&request).and_then(|call| self.calls.unary(call)) {
            Ok(permit) => permit,
            Err(error) => return Box::pin(ready(Err(error.into()))),
        };
        let (send, options) = match self.validate_send(request) {
            Ok(checked) => checked,
            Err(error) => return Box::pin(ready(Err(error.into()))),
        };
        let reply = if send.push.is_some() || options.has_references {
            // Boxed, so that the futures of other sends stay small.
            Either::Left(Box::pin(async move {
                if send.push.is_some() {
                    self.check_push_in_send(&send).await?;
                }
                let send = if options.has_references { self.with_references(send).await? } else { send };
                self.send(send, options).await
            }))
        } else {
            Either::Right(self.send(send, options))
        };
        Box::pin(reply.map(move |reply| {
            let payload = Some(match reply? {
                TurnReply::Task(task) => Payload::Task(Snapshot::from(task).shortened(options.history)?.into_task()?),
                TurnReply::Message(message) => Payload::Message(*message),
                TurnReply::Refused(error) => return Err(error.into()),
            });
            drop(permit);
            Ok(Response::new(SendMessageResponse { payload }))
        }))
    }

    /// Sends a message. The stream begins with the task, and has its events until the turn ends (3.1.2). With a cursor, the
    /// request resumes the stream of an earlier send after this event, and sends nothing.
    async fn send_streaming_message(&self, request: Request<SendMessageRequest>) -> ServiceResult<BoxStream<Event>> {
        self.calls.streaming(Call::of(&request)?)?;
        self.offers.streaming()?;
        let has_cursors = streams::is_resume_active(&request)?;
        let budget = Call::of(&request)?.responses.clone();
        if Call::of(&request)?.cursor.is_some() {
            return Ok(self.streamed(self.resume_stream(request).await?, has_cursors, budget));
        }
        let (mut send, ReplyOptions { history, has_references, .. }) = self.validate_send(request)?;
        if send.push.is_some() {
            Box::pin(self.check_push_in_send(&send)).await?;
        }
        if has_references {
            send = Box::pin(self.with_references(send)).await?;
        }
        Ok(self.streamed(self.execution.stream(send, history).await?, has_cursors, budget))
    }

    /// Returns the current task (3.1.3).
    ///
    /// No `async fn`: its future would store the request, too.
    fn get_task<'a, 'b>(&'a self, request: Request<GetTaskRequest>) -> ServiceFuture<'b, Snapshot>
    where
        'a: 'b,
        Self: 'b,
    {
        let check = || {
            let call = Call::of(&request)?;
            let permit = self.calls.unary(call)?;
            let GetTaskRequest { tenant, id, history_length } = request.get_ref();
            let key = self.key(&request, tenant, id)?;
            let history = self.history("historyLength", *history_length)?;
            Ok::<_, Error>((permit, key, history, call.memory.clone(), call.record.clone()))
        };
        let (permit, key, history, memory, record) = match check() {
            Ok(checked) => checked,
            Err(error) => return Box::pin(ready(Err(error.into()))),
        };
        Box::pin(async move {
            let task = self.execution.get(&key, memory.as_deref()).await?.shortened(history)?;
            drop(permit);
            self.trace_task(record, &key).await;
            Ok(Response::new(task))
        })
    }

    /// Lists the caller's tasks, newest status first. The page tokens stay valid when tasks change between two pages (3.1.4).
    async fn list_tasks(&self, request: Request<ListTasksRequest>) -> ServiceResult<ListTasksResponse> {
        let _permit = self.calls.unary(Call::of(&request)?)?;
        let call = Call::of(&request)?;
        let scope = self.scope(call, &request.get_ref().tenant);
        let query = query(call, scope, request.get_ref(), self.execution.limits())?;
        let page = self.execution.list(&query, call.memory.as_deref()).await?;
        Ok(Response::new(ListTasksResponse {
            tasks: page.tasks,
            next_page_token: page.next.map(|token| token.to_text(&query)).unwrap_or_default(),
            page_size: i32::try_from(query.limit).unwrap_or(i32::MAX),
            total_size: i32::try_from(page.total).unwrap_or(i32::MAX),
        }))
    }

    /// Cancels a task. Idempotent: returns a task that is canceled already (3.3.1).
    async fn cancel_task(&self, request: Request<CancelTaskRequest>) -> ServiceResult<Snapshot> {
        let _permit = self.calls.unary(Call::of(&request)?)?;
        let CancelTaskRequest { tenant, id, metadata } = request.get_ref();
        let key = self.key(&request, tenant, id)?;
        let metadata = metadata.clone().map(Box::new);
        let task = Snapshot::from(self.execution.cancel(&key, metadata).await?);
        self.trace_task(Call::of(&request)?.record.clone(), &key).await;
        Ok(Response::new(task.shortened(self.history("historyLength", None)?)?))
    }

    /// Subscribes to a task. The stream begins with the current task, or after the caller's cursor, and has its events until
    /// the task is in a terminal state (3.1.6).
    async fn subscribe_to_task(&self, request: Request<SubscribeToTaskRequest>) -> ServiceResult<BoxStream<Event>> {
        self.calls.streaming(Call::of(&request)?)?;
        self.offers.streaming()?;
        let SubscribeToTaskRequest { tenant, id } = request.get_ref();
        let key = self.key(&request, tenant, id)?;
        let history = self.history("historyLength", None)?;
        let reader = self.execution.subscribe(&key, streams::start(&request, id)?, history).await?;
        let budget = Call::of(&request)?.responses.clone();
        self.trace_task(Call::of(&request)?.record.clone(), &key).await;
        Ok(self.streamed(reader, streams::is_resume_active(&request)?, budget))
    }

    /// Stores a configuration with its task. Replaces one with the same id (3.1.7).
    async fn create_task_push_notification_config(
        &self,
        request: Request<TaskPushNotificationConfig>,
    ) -> ServiceResult<TaskPushNotificationConfig> {
        let TaskPushNotificationConfig { tenant, task_id, .. } = request.get_ref();
        let (_permit, key) = self.push_call(&request, tenant, task_id)?;
        let (_, extensions, config) = request.into_parts();
        let push = self.registered("", config, &extensions)?;
        let cleared = extensions.get().copied().unwrap_or_default();
        self.check_target(key.scope(), "", &push).await?;
        let (push, _) = self.execution.put_push(&key, push, cleared, "").await?;
        Ok(push_configs::response(&push))
    }

    /// Returns a configuration (3.1.8).
    async fn get_task_push_notification_config(
        &self,
        request: Request<GetTaskPushNotificationConfigRequest>,
    ) -> ServiceResult<TaskPushNotificationConfig> {
        let GetTaskPushNotificationConfigRequest { tenant, task_id, id } = request.get_ref();
        let (_permit, key) = self.push_call(&request, tenant, task_id)?;
        let found = self.execution.journal().store().get_push(&key, id).await.map_err(Error::from)?;
        // One error for a missing task, a missing configuration, and those of another owner (13.1).
        let missing = || {
            let why = format!("{task_id}, or it has no push notification configuration {id}");
            ErrorKind::TaskNotFound.because(why).with("taskId", task_id)
        };
        Ok(push_configs::response(&*found.ok_or_else(missing)?))
    }

    /// Lists the configurations of a task, oldest first (3.1.9).
    async fn list_task_push_notification_configs(
        &self,
        request: Request<ListTaskPushNotificationConfigsRequest>,
    ) -> ServiceResult<ListTaskPushNotificationConfigsResponse> {
        let ListTaskPushNotificationConfigsRequest { tenant, task_id, page_size, page_token } = request.get_ref();
        let (_permit, key) = self.push_call(&request, tenant, task_id)?;
        let limit = page_limit(if *page_size == 0 { DEFAULT_PAGE_SIZE } else { *page_size })?;
        let why = "not a page token of this list; start again without one";
        let after = push_configs::parse_token(page_token).ok_or_else(|| Error::invalid_field("pageToken", why))?;
        let page = self.execution.journal().store().list_push(&key, after, limit).await.map_err(Error::from)?;
        Ok(push_configs::page(&page.ok_or_else(|| Error::task_not_found(task_id))?))
    }

    /// Deletes a configuration. Idempotent: succeeds if it does not exist (3.1.10).
    async fn delete_task_push_notification_config(
        &self,
        request: Request<DeleteTaskPushNotificationConfigRequest>,
    ) -> ServiceResult<Empty> {
        let DeleteTaskPushNotificationConfigRequest { tenant, task_id, id } = request.get_ref();
        let (_permit, key) = self.push_call(&request, tenant, task_id)?;
        let is_known = self.execution.delete_push(&key, id).await?;
        if is_known { Ok(Response::new(Empty::default())) } else { Err(Error::task_not_found(task_id).into()) }
    }

    /// Returns the extended card for the caller (3.1.11), or an error if there is none (3.3.4).
    async fn get_extended_agent_card(&self, request: Request<GetExtendedAgentCardRequest>) -> ServiceResult<AgentCard> {
        let _permit = self.calls.unary(Call::of(&request)?)?;
        if let Some(source) = self.extended_card.get() {
            return Ok(Response::new(source(Call::of(&request)?.clone()).await?));
        }
        Err(card::extended::not_supported().into())
    }
}

debug_fields!(Service {});
