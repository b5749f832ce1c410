//! The one implementation of the contract: eleven methods, each a paragraph of the specification.
//!
//! It checks what only it can know, and asks the [execution](crate::execution). It knows nothing of the binding that a
//! call came over, and what it is given has been [checked](crate::check) for its required fields.

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::Either;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

pub use self::{idempotency::Dedupe, media_types::Modes};
pub use crate::execution::Limits;
use crate::{
    agent::{About, Agent, TurnContext},
    call::Call,
    contract::BoxStream,
    error::{Error, ErrorKind},
    event::Event,
    execution::{Execution, SendRequest},
    extension::Negotiated,
    journal::{Journal, waiters::TurnReply},
    pb::{
        v1::{
            AgentCard, CancelTaskRequest, DeleteTaskPushNotificationConfigRequest, GetExtendedAgentCardRequest,
            GetTaskPushNotificationConfigRequest, GetTaskRequest, ListTaskPushNotificationConfigsRequest,
            ListTaskPushNotificationConfigsResponse, ListTasksRequest, ListTasksResponse, SendMessageRequest,
            SendMessageResponse, SubscribeToTaskRequest, Task, TaskPushNotificationConfig, TaskState,
            a2a_service_server::A2aService, send_message_response::Payload,
        },
        wkt::Empty,
    },
    seam,
    snapshot::Snapshot,
    store::{Key, ListQuery, Retention, Scope, Store, Token},
    task,
};

mod idempotency;
mod media_types;
pub mod push;
mod streams;

/// How many tasks are on a page where nobody says (3.1.4).
const PAGE: i32 = 50;

/// How many tasks a page may have (3.1.4).
const PAGES: std::ops::RangeInclusive<i32> = 1..=100;

/// An agent as a service: what every door leads to.
pub struct Service<A> {
    execution: Execution<A>,
    /// The scope of callers without a name, which is most calls', made once.
    anonymous: Arc<Scope>,
    gate: media_types::MediaTypeCheck,
    offers: Capabilities,
    dedupe: Dedupe,
}

/// What is offered of what the protocol leaves to the agent: the card says it, and the service keeps to it (3.3.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Answers in streams.
    pub streaming: bool,
    /// Push notification configurations.
    pub push: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self { streaming: true, push: false }
    }
}

impl Capabilities {
    fn streaming(&self) -> Result<(), Error> {
        let why = "this agent answers in one piece; send the message without a stream, or poll the task";
        if self.streaming { Ok(()) } else { Err(ErrorKind::StreamingNotSupported.because(why)) }
    }

    fn push(&self) -> Result<(), Error> {
        if self.push { Ok(()) } else { Err(push::no_push()) }
    }
}

impl<A: Agent> Service<A> {
    /// An agent over a store.
    pub fn new(agent: A, store: Arc<dyn Store>, limits: Limits) -> Self {
        let (execution, anonymous) = (Execution::new(agent, store, limits), Arc::default());
        let (gate, offers, dedupe) =
            (media_types::MediaTypeCheck::default(), Capabilities::default(), Dedupe::default());
        Self { execution, anonymous, gate, offers, dedupe }
    }

    pub(crate) fn journal(&self) -> &Arc<Journal> {
        self.execution.journal()
    }

    /// Becomes true once the tasks of the last run have been recovered.
    pub(crate) fn recovered(&self) -> watch::Receiver<bool> {
        self.execution.recovered()
    }

    /// With this to make two sends the same one.
    #[must_use]
    pub fn dedupe(self, dedupe: Dedupe) -> Self {
        Self { dedupe, ..self }
    }

    /// With other offers.
    #[must_use]
    pub fn offering(self, offers: Capabilities) -> Self {
        Self { offers, ..self }
    }

    /// With what a message has to be, by the media types of this card.
    #[must_use]
    pub fn modes(self, modes: Modes, about: &About) -> Self {
        Self { gate: media_types::MediaTypeCheck::new(modes, about), ..self }
    }

    /// Ends what runs: takes no new work, gives what there is `grace` to end by itself, and leaves the rest as it is.
    /// Nothing is canceled by this.
    pub async fn drain(&self, grace: Duration) {
        self.execution.drain(grace).await;
    }

    /// Keeps things for as long as this says, from now on: every so often what has been kept for long enough is deleted,
    /// and tasks whose clients do not answer end.
    ///
    /// Must be called in a tokio runtime.
    pub fn keep(&self, policy: Retention) {
        self.execution.keep(policy);
    }

    /// How many tasks are in memory: those that run, are read, or wait for the store.
    pub fn live_tasks(&self) -> usize {
        self.execution.journal().live_tasks()
    }

    fn scope(&self, call: &Call, tenant: &str) -> Arc<Scope> {
        if call.owner.is_empty() && tenant.is_empty() {
            return Arc::clone(&self.anonymous);
        }
        Arc::new(Scope { owner: Arc::clone(&call.owner), tenant: tenant.into() })
    }

    /// The key of a task that a request names.
    fn key<T>(&self, request: &Request<T>, tenant: &str, id: &str) -> Result<Key, Error> {
        let call = Call::of(request)?;
        call.in_time()?;
        Ok(Key::new(&self.scope(call, tenant), id))
    }

    /// What is sent, and how it is to be answered; without the tasks that the message refers to.
    fn sent(&self, request: Request<SendMessageRequest>) -> Result<(SendRequest, ReplyOptions), Error> {
        let call = Call::of(&request)?;
        call.in_time()?;
        let left = call.time_left();
        let scope = self.scope(call, &request.get_ref().tenant);
        let negotiated = request.extensions().get::<Negotiated>().is_some();
        let extensions = if negotiated { call.extensions.clone() } else { Vec::new() };
        let principal = call.principal.clone();
        let name = self.dedupe.name(call, request.get_ref())?;
        let (_, came_with, sent) = request.into_parts();
        let SendMessageRequest { message, configuration, metadata, .. } = sent;
        let message = message.ok_or_else(|| Error::invalid_field("message", "is required"))?;
        let (parts, most) = (message.parts.len(), self.execution.limits().parts);
        if parts > most {
            let why = format!("has {parts} parts, of at most {most}");
            return Err(Error::invalid_field("message.parts", why).with("limit", "parts"));
        }
        let configuration = configuration.unwrap_or_default();
        self.gate.check(&message, &configuration.accepted_output_modes)?;
        let push = configuration.task_push_notification_config;
        let push = push.map(|it| self.registered(push::IN_SEND, it, &came_with).map(Box::new)).transpose()?;
        let history = history("configuration.historyLength", configuration.history_length)?;
        let accepted_output_modes = configuration.accepted_output_modes;
        let asked = TurnContext { principal, extensions, accepted_output_modes, metadata, referenced: Vec::new() };
        let refers = !message.reference_task_ids.is_empty();
        let wanted = ReplyOptions { immediately: configuration.return_immediately, history, left, refers };
        Ok((SendRequest { scope, message, asked, push, name }, wanted))
    }

    /// The same with the tasks that the message refers to. Most refer to none.
    async fn refer(&self, mut sent: SendRequest) -> Result<SendRequest, Error> {
        sent.asked.referenced = self.referenced(&sent.scope, &sent.message.reference_task_ids).await?;
        Ok(sent)
    }

    /// What comes of a message.
    fn answer(
        &self,
        sent: SendRequest,
        wanted: &ReplyOptions,
    ) -> impl Future<Output = Result<TurnReply, Error>> + Send {
        let ReplyOptions { immediately, left, .. } = *wanted;
        if immediately {
            Either::Left(Box::pin(self.execution.start(sent, left)))
        } else {
            Either::Right(self.execution.send(sent, left))
        }
    }

    /// The tasks that a message refers to (3.4.3). One that is gone, or not the caller's, is a hint that leads nowhere
    /// and no reason to refuse the message.
    async fn referenced(&self, scope: &Arc<Scope>, ids: &[String]) -> Result<Vec<Task>, Error> {
        let most = self.execution.limits().references;
        if ids.len() > most {
            let why = format!("has {} ids, of at most {most}", ids.len());
            return Err(Error::invalid_field("message.referenceTaskIds", why).with("limit", "references"));
        }
        let mut tasks = Vec::with_capacity(ids.len());
        for id in ids {
            match self.execution.get(&Key::new(scope, id)).await {
                Ok(it) => tasks.push(it.into_task()?),
                Err(error) if error.kind() == ErrorKind::TaskNotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(tasks)
    }
}

/// How a send is to be answered.
struct ReplyOptions {
    immediately: bool,
    history: Option<usize>,
    /// How long the caller waits.
    left: Option<Duration>,
    /// The message refers to tasks.
    refers: bool,
}

/// A length of history that a caller asks for: none is all of it, and 0 is none (3.2.4).
fn history(field: &str, length: Option<i32>) -> Result<Option<usize>, Error> {
    let negative = |_| Error::invalid_field(field, "must not be negative");
    length.map(usize::try_from).transpose().map_err(negative)
}

/// A task for its caller. It is taken whole where nobody else holds it.
fn shown(task: Arc<Task>, history: Option<usize>) -> Task {
    match Arc::try_unwrap(task) {
        Ok(mut task) => {
            task::shorten(&mut task.history, history);
            task
        }
        Err(task) => task::view(&task, history, true),
    }
}

fn query(call: &Call, scope: Arc<Scope>, request: &ListTasksRequest, limits: &Limits) -> Result<ListQuery, Error> {
    call.in_time()?;
    let size = request.page_size.unwrap_or(PAGE);
    let limit = usize::try_from(size).ok().filter(|_| PAGES.contains(&size));
    let limit = limit.ok_or_else(|| Error::invalid_field("pageSize", format!("is {size}, and must be 1 to 100")))?;
    let mut query = ListQuery {
        scope,
        context: Some(request.context_id.as_str()).filter(|it| !it.is_empty()).map(Into::into),
        state: Some(request.status()).filter(|it| *it != TaskState::Unspecified),
        since: request.status_timestamp_after.as_ref().map(seam::millis),
        after: None,
        limit,
        bytes: Some(limits.page_bytes),
        history: history("historyLength", request.history_length)?,
        artifacts: request.include_artifacts.unwrap_or_default(),
    };
    if !request.page_token.is_empty() {
        let token = Token::from_text(&request.page_token, &query);
        let why = "is not a token that was given for this query; begin again without one";
        query.after = Some(token.ok_or_else(|| Error::invalid_field("pageToken", why))?);
    }
    Ok(query)
}

#[tonic::async_trait]
impl<A: Agent> A2aService for Service<A> {
    /// Answers when the turn has ended or needs something, with the task as it was then (3.1.1, 3.2.2).
    async fn send_message(
        &self,
        request: Request<SendMessageRequest>,
    ) -> Result<Response<SendMessageResponse>, Status> {
        let (sent, wanted) = self.sent(request)?;
        let history = wanted.history;
        // What is looked at before it is moved is kept for as long as this lasts.
        let answer = if wanted.refers {
            Box::pin(async { self.answer(self.refer(sent).await?, &wanted).await }).await?
        } else {
            self.answer(sent, &wanted).await?
        };
        let payload = Some(match answer {
            TurnReply::Task(task) => Payload::Task(shown(task, history)),
            TurnReply::Message(it) => Payload::Message(*it),
        });
        Ok(Response::new(SendMessageResponse { payload }))
    }

    /// Begins with the task, then carries what happens to it until the turn ends (3.1.2). With a cursor it is the same send
    /// once more, of somebody whose stream broke: then it sends nothing, and goes on behind the event that they saw last.
    async fn send_streaming_message(
        &self,
        request: Request<SendMessageRequest>,
    ) -> Result<Response<BoxStream<Event>>, Status> {
        self.offers.streaming()?;
        let marks = streams::marks(&request)?;
        if Call::of(&request)?.cursor.is_some() {
            return Ok(self.streamed(self.stream_again(request).await?, marks));
        }
        let (mut sent, ReplyOptions { history, refers, .. }) = self.sent(request)?;
        if refers {
            sent = Box::pin(self.refer(sent)).await?;
        }
        Ok(self.streamed(self.execution.stream(sent, history).await?, marks))
    }

    /// The task as it is (3.1.3).
    async fn get_task(&self, request: Request<GetTaskRequest>) -> Result<Response<Snapshot>, Status> {
        let GetTaskRequest { tenant, id, history_length } = request.get_ref();
        let key = self.key(&request, tenant, id)?;
        let history = history("historyLength", *history_length)?;
        Ok(Response::new(self.execution.get(&key).await?.shortened(history)?))
    }

    /// The caller's tasks, the newest status first, by a cursor that survives changes between two pages (3.1.4).
    async fn list_tasks(&self, request: Request<ListTasksRequest>) -> Result<Response<ListTasksResponse>, Status> {
        let call = Call::of(&request)?;
        let scope = self.scope(call, &request.get_ref().tenant);
        let query = query(call, scope, request.get_ref(), self.execution.limits())?;
        let page = self.execution.list(&query).await?;
        Ok(Response::new(ListTasksResponse {
            tasks: page.tasks,
            next_page_token: page.next.map(|it| it.to_text(&query)).unwrap_or_default(),
            page_size: i32::try_from(query.limit).unwrap_or(i32::MAX),
            total_size: i32::try_from(page.total).unwrap_or(i32::MAX),
        }))
    }

    /// Stops the agent. A task that is canceled already is answered as it is: asking twice is no mistake (3.3.1).
    async fn cancel_task(&self, request: Request<CancelTaskRequest>) -> Result<Response<Snapshot>, Status> {
        let CancelTaskRequest { tenant, id, .. } = request.get_ref();
        let key = self.key(&request, tenant, id)?;
        Ok(Response::new(self.execution.cancel(&key).await?.into()))
    }

    /// Begins with the task as it is, then carries what happens to it until it ends (3.1.6); or goes on behind the
    /// event that the caller saw last.
    async fn subscribe_to_task(
        &self,
        request: Request<SubscribeToTaskRequest>,
    ) -> Result<Response<BoxStream<Event>>, Status> {
        self.offers.streaming()?;
        let SubscribeToTaskRequest { tenant, id } = request.get_ref();
        let key = self.key(&request, tenant, id)?;
        let reader = self.execution.subscribe(&key, streams::place(&request, id)?).await?;
        Ok(self.streamed(reader, streams::marks(&request)?))
    }

    /// Keeps a configuration with its task, which lasts as long as the task; one of the same id is replaced (3.1.7).
    async fn create_task_push_notification_config(
        &self,
        request: Request<TaskPushNotificationConfig>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        Ok(self.create_push(request).await?)
    }

    /// A configuration as it was registered (3.1.8).
    async fn get_task_push_notification_config(
        &self,
        request: Request<GetTaskPushNotificationConfigRequest>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        Ok(self.get_push(request).await?)
    }

    /// The configurations of a task, the oldest first (3.1.9).
    async fn list_task_push_notification_configs(
        &self,
        request: Request<ListTaskPushNotificationConfigsRequest>,
    ) -> Result<Response<ListTaskPushNotificationConfigsResponse>, Status> {
        Ok(self.list_push(request).await?)
    }

    /// Deletes a configuration. One that is not there is deleted already (3.1.10).
    async fn delete_task_push_notification_config(
        &self,
        request: Request<DeleteTaskPushNotificationConfigRequest>,
    ) -> Result<Response<Empty>, Status> {
        Ok(self.delete_push(request).await?)
    }

    /// Not offered: there is nobody to show more to while nobody can say who they are (3.1.11, 3.3.4).
    async fn get_extended_agent_card(
        &self,
        _: Request<GetExtendedAgentCardRequest>,
    ) -> Result<Response<AgentCard>, Status> {
        let why = "this agent has no card beside its public one, at /.well-known/agent-card.json";
        Err(ErrorKind::ExtendedCardNotSupported.because(why).into())
    }
}

impl<A> fmt::Debug for Service<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").finish_non_exhaustive()
    }
}
