//! Client without a runtime: each call blocks its thread.

use std::sync::Arc;

use tokio::runtime::{Builder, Runtime};
use tokio_stream::StreamExt as _;

use super::{CatalogEntry, Interface, Outcome, StreamEvent};
use crate::{
    error::Error,
    pb::v1::{AgentCard, ListTasksRequest, SendMessageRequest, Task, TaskPushNotificationConfig},
};

/// Client of one agent, for programs without an async runtime. It has a runtime of its own, on the threads that call it.
///
/// Must not be used within an async runtime, whose threads it would block.
///
/// ```no_run
/// use a2a_service::client::blocking::Client;
///
/// let agent = Client::connect("http://localhost:8080")?;
/// println!("{}", agent.send("Hello")?.text());
/// # Ok::<(), a2a_service::error::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    client: super::Client,
    runtime: Arc<Runtime>,
}

impl Client {
    /// Reads the card of the agent at a URL, as [`Client::connect`](super::Client::connect) does.
    ///
    /// # Errors
    /// As there.
    pub fn connect(url: &str) -> Result<Self, Error> {
        Self::with_options(&super::Client::builder(), url)
    }

    /// Reads the card of the agent at a URL with options.
    ///
    /// # Errors
    /// As [`Client::connect`](super::Client::connect).
    pub fn with_options(options: &super::ClientBuilder, url: &str) -> Result<Self, Error> {
        Self::on_runtime(async || options.connect(url).await)
    }

    /// Returns a client of the agent with this card, as [`ClientBuilder::with_card`](super::ClientBuilder::with_card) does.
    ///
    /// # Errors
    /// As there.
    pub fn with_card(options: &super::ClientBuilder, card: AgentCard, base: Option<&str>) -> Result<Self, Error> {
        Self::on_runtime(async || options.with_card(card, base))
    }

    /// Reads a catalog of agents, as [`ClientBuilder::catalog`](super::ClientBuilder::catalog) does.
    ///
    /// # Errors
    /// As there.
    pub fn catalog(options: &super::ClientBuilder, url: &str) -> Result<Vec<CatalogEntry>, Error> {
        runtime()?.block_on(options.catalog(url))
    }

    /// Returns a client of an agent in a catalog, as
    /// [`ClientBuilder::connect_entry`](super::ClientBuilder::connect_entry) does.
    ///
    /// # Errors
    /// As there.
    pub fn connect_entry(options: &super::ClientBuilder, entry: &CatalogEntry) -> Result<Self, Error> {
        Self::on_runtime(async || options.connect_entry(entry).await)
    }

    fn on_runtime(connect: impl AsyncFnOnce() -> Result<super::Client, Error>) -> Result<Self, Error> {
        let runtime = runtime()?;
        let client = runtime.block_on(connect())?;
        Ok(Self { client, runtime: Arc::new(runtime) })
    }

    /// Card of the agent.
    pub fn card(&self) -> Arc<AgentCard> {
        self.client.card()
    }

    /// Interface of the card that is called first.
    pub fn interface(&self) -> Option<&Interface> {
        self.client.interface()
    }

    /// Tenant of all requests. Empty if there is none.
    pub fn tenant(&self) -> &str {
        self.client.tenant()
    }

    /// The client with async methods.
    pub fn inner(&self) -> &super::Client {
        &self.client
    }

    /// Sends a message, and waits until the turn of the agent ends.
    ///
    /// # Errors
    /// As [`Client::send`](super::Client::send).
    pub fn send(&self, message: impl Into<SendMessageRequest>) -> Result<Outcome, Error> {
        self.runtime.block_on(self.client.send(message))
    }

    /// Sends a message, and returns the events of the turn as they happen.
    ///
    /// # Errors
    /// As [`Client::stream`](super::Client::stream).
    pub fn stream(&self, message: impl Into<SendMessageRequest>) -> Result<Events, Error> {
        let events = self.runtime.block_on(self.client.stream(message))?;
        Ok(Events { events, runtime: Arc::clone(&self.runtime) })
    }

    /// Returns the events of a running task from now on.
    ///
    /// # Errors
    /// As [`Client::subscribe`](super::Client::subscribe).
    pub fn subscribe(&self, task_id: &str) -> Result<Events, Error> {
        let events = self.runtime.block_on(self.client.subscribe(task_id))?;
        Ok(Events { events, runtime: Arc::clone(&self.runtime) })
    }

    /// Returns a task with its whole history.
    ///
    /// # Errors
    /// As [`Client::get`](super::Client::get).
    pub fn get(&self, task_id: &str) -> Result<Task, Error> {
        self.runtime.block_on(self.client.get(task_id))
    }

    /// Returns a task with at most `messages` messages of its history.
    ///
    /// # Errors
    /// As [`Client::get_with_history`](super::Client::get_with_history).
    pub fn get_with_history(&self, task_id: &str, messages: i32) -> Result<Task, Error> {
        self.runtime.block_on(self.client.get_with_history(task_id, messages))
    }

    /// Waits until a task is terminal, or waits for input or authorization, and returns it.
    ///
    /// # Errors
    /// As [`Client::wait`](super::Client::wait).
    pub fn wait(&self, task_id: &str) -> Result<Task, Error> {
        self.runtime.block_on(self.client.wait(task_id))
    }

    /// Cancels a task, and returns it.
    ///
    /// # Errors
    /// As [`Client::cancel`](super::Client::cancel).
    pub fn cancel(&self, task_id: &str) -> Result<Task, Error> {
        self.runtime.block_on(self.client.cancel(task_id))
    }

    /// Returns all tasks of the caller that match a request, the latest first.
    ///
    /// # Errors
    /// As [`Client::list`](super::Client::list).
    pub fn list(&self, request: ListTasksRequest) -> Result<Vec<Task>, Error> {
        self.runtime.block_on(self.client.list(request).collect())
    }

    /// Push notification configurations of a task.
    pub fn push(&self, task_id: impl Into<String>) -> PushConfigs {
        PushConfigs { configs: self.client.push(task_id), runtime: Arc::clone(&self.runtime) }
    }

    /// Downloads the extended card, which then replaces the card of this client and its clones.
    ///
    /// # Errors
    /// As [`Client::extended_card`](super::Client::extended_card).
    pub fn extended_card(&self) -> Result<Arc<AgentCard>, Error> {
        self.runtime.block_on(self.client.extended_card())
    }

    /// Begins a conversation: messages that share a context, and continue a task that waits for input.
    pub fn conversation(&self) -> Conversation {
        Conversation { conversation: self.client.conversation(), runtime: Arc::clone(&self.runtime) }
    }
}

/// Returns a runtime. One worker drives connections while no call is in progress.
fn runtime() -> Result<Runtime, Error> {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().map_err(Error::internal)
}

/// Push notification configurations of a task (4.3). Made by [`Client::push`].
#[derive(Clone, Debug)]
pub struct PushConfigs {
    configs: super::PushConfigs,
    runtime: Arc<Runtime>,
}

impl PushConfigs {
    /// Adds a configuration: a URL, or one with a token, an id and authentication.
    ///
    /// # Errors
    /// As [`PushConfigs::create`](super::PushConfigs::create).
    pub fn create(&self, config: impl Into<TaskPushNotificationConfig>) -> Result<TaskPushNotificationConfig, Error> {
        self.runtime.block_on(self.configs.create(config))
    }

    /// Returns a configuration.
    ///
    /// # Errors
    /// `TaskNotFound` if there is no such task or configuration.
    pub fn get(&self, id: &str) -> Result<TaskPushNotificationConfig, Error> {
        self.runtime.block_on(self.configs.get(id))
    }

    /// Returns all configurations.
    ///
    /// # Errors
    /// `TaskNotFound`.
    pub fn list(&self) -> Result<Vec<TaskPushNotificationConfig>, Error> {
        self.runtime.block_on(self.configs.list())
    }

    /// Deletes a configuration.
    ///
    /// # Errors
    /// `TaskNotFound` if there is no such task.
    pub fn delete(&self, id: &str) -> Result<(), Error> {
        self.runtime.block_on(self.configs.delete(id))
    }
}

/// Messages of one context. Made by [`Client::conversation`].
#[derive(Clone, Debug)]
pub struct Conversation {
    conversation: super::Conversation,
    runtime: Arc<Runtime>,
}

impl Conversation {
    /// Continues an existing context.
    #[must_use]
    pub fn with_context(self, context_id: impl Into<String>) -> Self {
        Self { conversation: self.conversation.with_context(context_id), ..self }
    }

    /// Continues an existing task.
    #[must_use]
    pub fn with_task(self, task_id: impl Into<String>) -> Self {
        Self { conversation: self.conversation.with_task(task_id), ..self }
    }

    /// Id of the context. Empty before the first answer.
    pub fn context_id(&self) -> &str {
        self.conversation.context_id()
    }

    /// Id of the task that the next message continues. Empty if it begins a new one.
    pub fn task_id(&self) -> &str {
        self.conversation.task_id()
    }

    /// Sends the next message, and waits for the end of the turn.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub fn send(&mut self, message: impl Into<SendMessageRequest>) -> Result<Outcome, Error> {
        self.runtime.block_on(self.conversation.send(message))
    }

    /// Sends the next message, and calls a function with each event.
    ///
    /// # Errors
    /// As [`Client::stream`].
    pub fn stream_with(
        &mut self,
        message: impl Into<SendMessageRequest>,
        on_event: impl FnMut(&StreamEvent),
    ) -> Result<(), Error> {
        self.runtime.block_on(self.conversation.stream_with(message, on_event))
    }
}

/// Events of a stream, as an iterator that blocks.
#[derive(Debug)]
pub struct Events {
    events: super::EventStream,
    runtime: Arc<Runtime>,
}

impl Iterator for Events {
    type Item = Result<StreamEvent, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.runtime.block_on(self.events.next())
    }
}
