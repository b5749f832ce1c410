//! A2A client for remote agents over gRPC, HTTP+JSON and JSON-RPC, with retries and resumed streams.
//!
//! [`Client`] reads the agent card, selects an interface, and has a method for each operation. Below it, a remote agent
//! implements [`A2aService`], the trait that a local service implements too: [`ClientBuilder`] makes one for each binding.
//! [`rest`], [`json_rpc`] and [`grpc`] are the bindings of 1.0 without retries: each call is one request, and every failure
//! is returned.

pub mod blocking;
mod builder;
mod card;
mod catalog;
mod connect;
mod conversation;
mod credentials;
mod http;
mod outcome;
mod push;
mod result_form;
mod resume;
mod retry_policy;
mod retrying;
mod stream;
mod tls;
mod traced;
mod v03;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::TryStreamExt as _;
use parking_lot::RwLock;
use tokio_stream::{Stream, StreamExt as _};

#[cfg(feature = "signing")]
pub use self::builder::SignaturePolicy;
#[cfg(feature = "cli")]
pub(crate) use self::card::{Document, StoredCard};
pub(crate) use self::http::builder as http_builder;
#[cfg(feature = "cli")]
pub(crate) use self::http::{Observer, complete_url, shown_url};
#[cfg(feature = "server")]
pub(crate) use self::retrying::outbound_result;
pub use self::{
    builder::ClientBuilder,
    card::Interface,
    catalog::CatalogEntry,
    conversation::Conversation,
    http::{HttpTransport, SizeLimits},
    outcome::Outcome,
    push::PushConfigs,
    retry_policy::Retry,
    stream::{EventStream, StreamEvent},
};
use self::{
    retry_policy::Retries,
    stream::{another_task, check_message, check_state, check_task, without_id},
};
#[cfg(feature = "server")]
use crate::base::trace::Tracing;
use crate::{
    base::{clock, sources::Ids},
    protocol::{
        call::{Binding, Call},
        error::{Error, ErrorKind},
        event::{Cursor, Event},
        message::hops,
        pb::v1::{
            AgentCard, CancelTaskRequest, GetExtendedAgentCardRequest, GetTaskRequest, ListTasksRequest,
            ListTasksResponse, Message, SendMessageRequest, StreamResponse, SubscribeToTaskRequest, Task, TaskState,
            a2a_service_server::A2aService,
        },
        rpc::BoxStream,
        v03::card::Flows,
        version::Version,
    },
};

/// Number of times in a row that a task is read in a state that is unknown, before a wait for it fails.
const MAX_UNKNOWN: usize = 4;

/// Metadata of the error for a task in an unknown state.
const UNKNOWN_STATE: &str = "unknownState";

/// Initial polling interval while waiting for a task. It doubles up to the maximum backoff.
const POLL: Duration = Duration::from_secs(1);

/// Client of one agent: card, interface, and a method for each operation. Clones share connections.
///
/// ```
/// use a2a_service::{agent::demo::Demo, client::Client, server::Server};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = Server::new(Demo).bind("127.0.0.1:0").await?;
/// # let url = format!("http://{}", server.addr());
/// # tokio::spawn(server.run_until(std::future::pending()));
/// let agent = Client::connect(&url).await?;
/// let outcome = agent.send("Hello").await?;
/// println!("{}: {}", agent.card().name, outcome.text());
/// # assert!(!outcome.text().is_empty());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Client {
    agent: Arc<dyn A2aService>,
    interface: Option<Interface>,
    tenant: String,
    timeout: Option<Duration>,
    /// Context of all calls, without the deadline of the timeout.
    context: Call,
    /// OAuth flows of the card, by the names of their schemes.
    flows: Arc<BTreeMap<String, Flows>>,
    card: Arc<RwLock<Arc<AgentCard>>>,
}

debug_fields!(Client { interface });

impl Client {
    /// Returns the options of a client.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::new()
    }

    /// Reads the card of the agent at a URL, and selects the first interface of the card that this crate can call. If no
    /// connection to it can be established later, the next one is used.
    ///
    /// `url` is the URL of the card or the base URL of the agent: the card is then looked for below
    /// `/.well-known/agent-card.json` and, as in 0.2, `/.well-known/agent.json`. That of the host is used for a URL with a path
    /// if it has an interface at the path or below it. Without a scheme, `http://` is added for hosts of this machine and `https://` for
    /// others.
    ///
    /// # Errors
    /// `Unavailable` if no connection can be established, `InvalidAgentResponse` if there is no card, and
    /// `UnsupportedOperation` if the card has no interface that can be called.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder().connect(url).await
    }

    /// Reads a catalog of agents. See [`ClientBuilder::catalog`].
    ///
    /// # Errors
    /// As there.
    pub async fn catalog(url: &str) -> Result<Vec<CatalogEntry>, Error> {
        Self::builder().catalog(url).await
    }

    /// Returns a client of an agent in this process, or of one with another transport.
    pub fn from_service(agent: Arc<dyn A2aService>) -> Self {
        let card = Arc::new(RwLock::new(Arc::new(AgentCard::default())));
        let (tenant, context, flows) = (String::new(), Call::default(), Arc::default());
        Self { agent, interface: None, tenant, timeout: None, context, flows, card }
    }

    /// Returns this client with calls that continue a trace.
    #[cfg(feature = "cli")]
    pub(crate) fn with_trace(mut self, trace: String, state: Option<String>) -> Self {
        (self.context.trace, self.context.trace_state) = (Some(trace), state);
        self
    }

    /// Returns this client with another context of all calls, whose deadline replaces the timeout.
    pub(crate) fn with_context(&self, context: Call) -> Self {
        Self { context, timeout: None, ..self.clone() }
    }

    /// Card of the agent. Empty for a client [from a service](Self::from_service).
    pub fn card(&self) -> Arc<AgentCard> {
        Arc::clone(&self.card.read())
    }

    /// OAuth flows of the card, by the names of their security schemes. A scheme of the card in 1.0 has only one of its flows.
    pub fn oauth_flows(&self) -> &BTreeMap<String, Flows> {
        &self.flows
    }

    /// Interface of the card that is called first. None for a client [from a service](Self::from_service).
    pub fn interface(&self) -> Option<&Interface> {
        self.interface.as_ref()
    }

    /// The agent as the service trait, for operations with all their parameters. Requests need the
    /// [tenant](Interface::tenant) of the interface.
    pub fn service(&self) -> &Arc<dyn A2aService> {
        &self.agent
    }

    /// Tenant of all requests. Empty if there is none.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// Returns the context of the next call, with the hop count for the turn in which it is made.
    pub(crate) fn call(&self) -> Call {
        let deadline = self.timeout.map(|timeout| clock::after(tokio::time::Instant::now(), timeout));
        Call { deadline: deadline.or(self.context.deadline), hops: self.hops(), ..self.context.clone() }
    }

    /// Returns this client with spans of its calls, if there is a tracer.
    #[cfg(feature = "server")]
    pub(crate) fn traced(mut self, tracing: &Tracing) -> Self {
        let url = self.interface.as_ref().map(|interface| &*interface.url);
        self.agent = traced::Traced::wrap(self.agent, tracing, url);
        self
    }

    fn hops(&self) -> u32 {
        self.context.hops.max(hops::of_next_message())
    }

    /// Sends a message, and waits until the turn of the agent ends: until the task is terminal, or waits for input or
    /// authorization. A task that failed is an [`Outcome`], not an error.
    ///
    /// With `return_immediately` in the configuration of the request, returns the task as it is after the send. For a turn that may
    /// take longer than ten minutes, use that, a stream, or a timeout of the client: without one, a response has to begin in that time.
    ///
    /// # Errors
    /// The agent rejects the message, cannot be reached, or responds with something else than the protocol defines.
    pub async fn send(&self, message: impl Into<SendMessageRequest>) -> Result<Outcome, Error> {
        let request = self.complete(message.into());
        let task_id = request.message.as_ref().map(|message| message.task_id.clone()).unwrap_or_default();
        let returns_immediately =
            request.configuration.as_ref().is_some_and(|configuration| configuration.return_immediately);
        let call = self.call();
        let response = self.agent.send_message(call.clone().request(request)).await?.into_inner();
        let outcome = Outcome(response);
        outcome.task().map_or_else(|| outcome.message().map_or(Ok(()), check_message), check_task)?;
        if outcome.task().is_some_and(|task| task.id.is_empty()) {
            return Err(without_id());
        }
        if outcome.task().is_some_and(|task| !task_id.is_empty() && task.id != task_id) {
            return Err(another_task());
        }
        match outcome.task() {
            // A server may respond before the end of the turn, although the request asks it to wait.
            Some(task) if !returns_immediately && !task.state().is_settled() => {
                Ok(Outcome::from_task(self.with_context(call).wait(&task.id).await?))
            }
            _ if outcome.raw().payload.is_none() => {
                let reason = "the response to a send has neither a task nor a message";
                Err(ErrorKind::InvalidAgentResponse.because(reason))
            }
            _ => Ok(outcome),
        }
    }

    /// Sends a message, and returns the events of the turn as they happen. If the agent has no streams, sends it without,
    /// and returns the result as the only event.
    ///
    /// # Errors
    /// As [`send`](Self::send), if the stream does not begin. Later errors are items of the stream.
    pub async fn stream(&self, message: impl Into<SendMessageRequest>) -> Result<EventStream, Error> {
        if self.lacks_streams() {
            return Ok(EventStream::of_outcome(self.send(message).await?));
        }
        let request = self.complete(message.into());
        let task_id = request.message.as_ref().map(|message| message.task_id.clone()).unwrap_or_default();
        let call = self.call();
        let events = self.agent.send_streaming_message(call.clone().request(request)).await?;
        let call = Call { idempotency_key: None, ..call };
        Ok(EventStream::new(events.into_inner(), task_id, Some(self.with_context(call))))
    }

    /// Returns the events of a running task from now on, after a snapshot of the task.
    ///
    /// # Errors
    /// `TaskNotFound`, or `UnsupportedOperation` if the task is terminal (3.1.6).
    pub async fn subscribe(&self, task_id: &str) -> Result<EventStream, Error> {
        let call = self.call();
        let client = self.with_context(call.clone());
        self.events_of(task_id, call, Some(client)).await
    }

    /// Returns the events of a running task as the agent sends them.
    async fn events_of(&self, task_id: &str, call: Call, client: Option<Self>) -> Result<EventStream, Error> {
        let request = SubscribeToTaskRequest { tenant: self.tenant.clone(), id: required(task_id)? };
        let events = self.agent.subscribe_to_task(call.request(request)).await?;
        Ok(EventStream::new(events.into_inner(), task_id.to_owned(), client))
    }

    /// Returns the events of a task after the one with this cursor ([`EventStream::cursor`]), also those of a task that has
    /// ended meanwhile. If the agent no longer has them, the stream begins with a snapshot of the task.
    ///
    /// # Errors
    /// `InvalidParams` for a cursor that is empty, longer than 256 bytes or not one line. As [`subscribe`](Self::subscribe)
    /// with agents that have no cursors.
    pub async fn subscribe_after(&self, task_id: &str, cursor: &str) -> Result<EventStream, Error> {
        let invalid = || Error::invalid_field("cursor", "must be one line of at most 256 bytes");
        let call = Call { cursor: Some(Cursor::from_text(cursor).ok_or_else(invalid)?), ..self.call() };
        self.events_of(task_id, call, None).await
    }

    /// Begins a conversation: messages that share a context, and continue a task that waits for input.
    pub fn conversation(&self) -> Conversation {
        Conversation { client: self.clone(), context_id: String::new(), task_id: String::new() }
    }

    /// Returns a task with its whole history.
    ///
    /// # Errors
    /// `TaskNotFound`.
    pub async fn get(&self, task_id: &str) -> Result<Task, Error> {
        self.read(task_id, None).await
    }

    /// Returns a task with at most `messages` messages of its history.
    ///
    /// # Errors
    /// `TaskNotFound`, or `InvalidParams` for a negative number.
    pub async fn get_with_history(&self, task_id: &str, messages: i32) -> Result<Task, Error> {
        self.read(task_id, Some(messages)).await
    }

    async fn read(&self, task_id: &str, history_length: Option<i32>) -> Result<Task, Error> {
        let request = GetTaskRequest { tenant: self.tenant.clone(), id: required(task_id)?, history_length };
        with_id(self.agent.get_task(self.call().request(request)).await?.into_inner().into_task()?, task_id)
    }

    /// Waits until a task is terminal, or waits for input or authorization, and returns it.
    ///
    /// # Errors
    /// `TaskNotFound`, `DeadlineExceeded` after the timeout of the client, or `InvalidAgentResponse` if the task stays in a state that
    /// is unknown.
    pub async fn wait(&self, task_id: &str) -> Result<Task, Error> {
        self.wait_in_unknown(task_id, MAX_UNKNOWN).await
    }

    /// Waits as [`wait`](Self::wait), also for a task that is read in an unknown state up to this number of times in a row.
    pub(crate) async fn wait_in_unknown(&self, task_id: &str, max_unknown: usize) -> Result<Task, Error> {
        // The timeout is that of the wait, not of each of its calls.
        let call = self.call();
        let client = self.with_context(call.clone());
        let mut retries = Retries::new(&Retry::default().first(POLL).attempts(u32::MAX));
        let mut unknown = 0;
        loop {
            // Agents reject the subscription to a task that is terminal, and some that to one that waits.
            if !self.lacks_streams()
                && let Ok(mut events) = client.events_of(task_id, call.clone(), None).await
            {
                let ends_wait = |state: TaskState| state.is_settled() || state == TaskState::Unspecified;
                while let Some(Ok(event)) = events.next().await {
                    if event.state().is_some_and(ends_wait) {
                        break;
                    }
                }
            }
            let task = client.get(task_id).await?;
            if task.state().is_settled() {
                return Ok(task);
            }
            unknown = if task.state() == TaskState::Unspecified { unknown + 1 } else { 0 };
            if unknown == max_unknown {
                return Err(unknown_state(task_id));
            }
            if !retries.wait(&ErrorKind::Unavailable.error(), &call).await {
                return Err(ErrorKind::DeadlineExceeded.error());
            }
        }
    }

    /// Cancels a task, and returns it.
    ///
    /// # Errors
    /// `TaskNotFound`, or `TaskNotCancelable` if it is terminal.
    pub async fn cancel(&self, task_id: &str) -> Result<Task, Error> {
        let request = CancelTaskRequest { tenant: self.tenant.clone(), id: required(task_id)?, metadata: None };
        with_id(self.agent.cancel_task(self.call().request(request)).await?.into_inner().into_task()?, task_id)
    }

    /// Returns all tasks of the caller that match a request, the latest first, and reads further pages as needed.
    pub fn list(&self, request: ListTasksRequest) -> impl Stream<Item = Result<Task, Error>> + Send + Unpin + use<> {
        let tasks = self.list_pages(request).map_ok(|page| futures_util::stream::iter(page.tasks.into_iter().map(Ok)));
        tasks.try_flatten()
    }

    /// Returns the pages of [`list`](Self::list), each of which is read when it is needed.
    pub fn list_pages(
        &self,
        mut request: ListTasksRequest,
    ) -> impl Stream<Item = Result<ListTasksResponse, Error>> + Send + Unpin + use<> {
        if request.tenant.is_empty() {
            request.tenant.clone_from(&self.tenant);
        }
        let client = self.clone();
        Box::pin(futures_util::stream::try_unfold(Some(request), move |request| {
            let client = client.clone();
            async move {
                let Some(request) = request else { return Ok(None) };
                let page = client.agent.list_tasks(client.call().request(request.clone())).await?.into_inner();
                if page.tasks.iter().any(|task| task.id.is_empty()) {
                    return Err(without_id());
                }
                let token = page.next_page_token.clone();
                // A token that does not change would be an endless list.
                let is_last = token.is_empty() || token == request.page_token;
                let next = (!is_last).then_some(ListTasksRequest { page_token: token, ..request });
                Ok(Some((page, next)))
            }
        }))
    }

    /// Push notification configurations of a task.
    pub fn push(&self, task_id: impl Into<String>) -> PushConfigs {
        PushConfigs { client: self.clone(), task_id: task_id.into() }
    }

    /// Downloads the extended card, which then replaces the card of this client and its clones.
    ///
    /// # Errors
    /// `Unauthenticated`, or `UnsupportedOperation` if the agent has no extended card.
    pub async fn extended_card(&self) -> Result<Arc<AgentCard>, Error> {
        let request = GetExtendedAgentCardRequest { tenant: self.tenant.clone() };
        let card = self.agent.get_extended_agent_card(self.call().request(request)).await?.into_inner();
        let card = Arc::new(card);
        *self.card.write() = Arc::clone(&card);
        Ok(card)
    }

    /// Returns true if the card does not declare streaming.
    pub(crate) fn lacks_streams(&self) -> bool {
        let card = self.card.read();
        let streaming = card.capabilities.as_ref().and_then(|capabilities| capabilities.streaming);
        self.interface.is_some() && !streaming.unwrap_or_default()
    }

    /// Adds the hop count, and the tenant and the message id unless the request has them.
    fn complete(&self, mut request: SendMessageRequest) -> SendMessageRequest {
        if request.tenant.is_empty() {
            request.tenant.clone_from(&self.tenant);
        }
        if let Some(message) = &mut request.message {
            hops::set(message, self.hops());
            if message.message_id.is_empty() {
                message.message_id = Ids::default().random();
            }
        }
        request
    }
}

conversions! {
    SendMessageRequest:
    /// Creates a request with a text message of the user.
    text: &str => Message::user(text).into();
    /// Creates a request with a text message of the user.
    text: String => Message::user(text).into();
    /// Creates a request with a message.
    message: Message => Self { message: Some(message), ..Self::default() };
}

/// Returns the id of a task to ask for.
fn required(id: &str) -> Result<String, Error> {
    if id.is_empty() { Err(Error::invalid_field("id", "is required")) } else { Ok(id.to_owned()) }
}

/// Returns the task of a response if it is the one with this id.
fn with_id(task: Task, id: &str) -> Result<Task, Error> {
    check_state(task.status.as_ref());
    check_task(&task)?;
    if task.id == id { Ok(task) } else { Err(if task.id.is_empty() { without_id() } else { another_task() }) }
}

/// Returns the error for a task that is in an unknown state for too long, or at the end of a stream.
fn unknown_state(id: &str) -> Error {
    let reason = format!("task {id} is in a state that this client does not know; read it later");
    ErrorKind::InvalidAgentResponse.because(reason).with(UNKNOWN_STATE, "true")
}

/// Returns true for the error of a stream that ended while its task is in an unknown state.
#[cfg(feature = "server")]
pub(crate) fn is_in_unknown_state(error: &Error) -> bool {
    error.metadata(UNKNOWN_STATE).is_some()
}

fn without_retries() -> ClientBuilder {
    Client::builder().retry(Retry::never())
}

/// Returns a remote agent that is called over HTTP+JSON, without retries. `url` is the base URL of its routes.
///
/// # Errors
/// The URL is invalid, or its scheme is not `http` or `https`.
pub fn rest(url: &str) -> Result<Arc<dyn A2aService>, Error> {
    without_retries().rest(url)
}

/// Returns a remote agent that is called over JSON-RPC at `url`, without retries.
///
/// # Errors
/// The URL is invalid, or its scheme is not `http` or `https`.
pub fn json_rpc(url: &str) -> Result<Arc<dyn A2aService>, Error> {
    without_retries().json_rpc(url)
}

/// Returns a remote agent that is called over gRPC, without retries. The connection is established at the first call, by
/// the tokio runtime in which this function is called.
///
/// # Errors
/// The URL is invalid.
pub fn grpc(url: &str) -> Result<Arc<dyn A2aService>, Error> {
    without_retries().grpc(url)
}
