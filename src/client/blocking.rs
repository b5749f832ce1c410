//! Client without a runtime: each call blocks its thread.

use std::{ops::Deref, sync::Arc};

use tokio::runtime::{Builder, Runtime};
use tokio_stream::StreamExt as _;

use super::{AgentCard, CatalogEntry, Error, Outcome, SendMessageRequest, StreamEvent, Task};
use crate::protocol::pb::v1::{ListTasksRequest, TaskPushNotificationConfig};

/// Declares methods that block: name, parameters, and result of the method with the same name that waits.
macro_rules! blocking {
    ($type:ident: $($(#[$attribute:meta])* $name:ident($($parameter:ident: $of:ty),*) -> $result:ty;)+) => {
        /// Methods that block.
        impl $type { $(
            $(#[$attribute])*
            pub fn $name(&self, $($parameter: $of),*) -> Result<$result, Error> {
                self.runtime.block_on(self.inner.$name($($parameter),*))
            }
        )+ }
    };
}

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
pub type Client = Blocking<super::Client>;

/// A client, or a part of one, whose calls block. It dereferences to the one with async methods, for methods that do not wait.
#[derive(Clone, Debug)]
pub struct Blocking<T> {
    inner: T,
    runtime: Arc<Runtime>,
}

impl<T> Deref for Blocking<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> Blocking<T> {
    fn with<U>(&self, inner: U) -> Blocking<U> {
        Blocking { inner, runtime: Arc::clone(&self.runtime) }
    }
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
        let inner = runtime.block_on(connect())?;
        Ok(Self { inner, runtime: Arc::new(runtime) })
    }

    /// Sends a message, and returns the events of the turn as they happen.
    ///
    /// # Errors
    /// As [`Client::stream`](super::Client::stream).
    pub fn stream(&self, message: impl Into<SendMessageRequest>) -> Result<Events, Error> {
        self.runtime.block_on(self.inner.stream(message)).map(|events| self.with(events))
    }

    /// Returns the events of a running task from now on.
    ///
    /// # Errors
    /// As [`Client::subscribe`](super::Client::subscribe).
    pub fn subscribe(&self, task_id: &str) -> Result<Events, Error> {
        self.runtime.block_on(self.inner.subscribe(task_id)).map(|events| self.with(events))
    }

    /// Returns all tasks of the caller that match a request, the latest first.
    ///
    /// # Errors
    /// As [`Client::list`](super::Client::list).
    pub fn list(&self, request: ListTasksRequest) -> Result<Vec<Task>, Error> {
        self.runtime.block_on(self.inner.list(request).collect())
    }

    /// Push notification configurations of a task.
    pub fn push(&self, task_id: impl Into<String>) -> PushConfigs {
        self.with(self.inner.push(task_id))
    }

    /// Begins a conversation: messages that share a context, and continue a task that waits for input.
    pub fn conversation(&self) -> Conversation {
        self.with(self.inner.conversation())
    }
}

blocking! {
    Client:
    /// Sends a message, and waits until the turn of the agent ends.
    ///
    /// # Errors
    /// As [`Client::send`](super::Client::send).
    send(message: impl Into<SendMessageRequest>) -> Outcome;

    /// Returns a task with its whole history.
    ///
    /// # Errors
    /// As [`Client::get`](super::Client::get).
    get(task_id: &str) -> Task;

    /// Returns a task with at most `messages` messages of its history.
    ///
    /// # Errors
    /// As [`Client::get_with_history`](super::Client::get_with_history).
    get_with_history(task_id: &str, messages: i32) -> Task;

    /// Waits until a task is terminal, or waits for input or authorization, and returns it.
    ///
    /// # Errors
    /// As [`Client::wait`](super::Client::wait).
    wait(task_id: &str) -> Task;

    /// Cancels a task, and returns it.
    ///
    /// # Errors
    /// As [`Client::cancel`](super::Client::cancel).
    cancel(task_id: &str) -> Task;

    /// Downloads the extended card, which then replaces the card of this client and its clones.
    ///
    /// # Errors
    /// As [`Client::extended_card`](super::Client::extended_card).
    extended_card() -> Arc<AgentCard>;
}

/// Returns a runtime. One worker drives connections while no call is in progress.
fn runtime() -> Result<Runtime, Error> {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().map_err(Error::internal)
}

/// Push notification configurations of a task (4.3). Made by [`Client::push`].
pub type PushConfigs = Blocking<super::PushConfigs>;

blocking! {
    PushConfigs:
    /// Adds a configuration: a URL, or one with a token, an id and authentication.
    ///
    /// # Errors
    /// As [`PushConfigs::create`](super::PushConfigs::create).
    create(config: impl Into<TaskPushNotificationConfig>) -> TaskPushNotificationConfig;

    /// Returns a configuration.
    ///
    /// # Errors
    /// `TaskNotFound` if there is no such task or configuration.
    get(id: &str) -> TaskPushNotificationConfig;

    /// Returns all configurations.
    ///
    /// # Errors
    /// `TaskNotFound`.
    list() -> Vec<TaskPushNotificationConfig>;

    /// Deletes a configuration.
    ///
    /// # Errors
    /// `TaskNotFound` if there is no such task.
    delete(id: &str) -> ();
}

/// Messages of one context. Made by [`Client::conversation`].
pub type Conversation = Blocking<super::Conversation>;

impl Conversation {
    /// Continues an existing context.
    #[must_use]
    pub fn with_context(self, context_id: impl Into<String>) -> Self {
        Self { inner: self.inner.with_context(context_id), ..self }
    }

    /// Continues an existing task.
    #[must_use]
    pub fn with_task(self, task_id: impl Into<String>) -> Self {
        Self { inner: self.inner.with_task(task_id), ..self }
    }

    /// Sends the next message, and waits for the end of the turn.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub fn send(&mut self, message: impl Into<SendMessageRequest>) -> Result<Outcome, Error> {
        self.runtime.block_on(self.inner.send(message))
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
        self.runtime.block_on(self.inner.stream_with(message, on_event))
    }
}

/// Events of a stream, as an iterator that blocks.
pub type Events = Blocking<super::EventStream>;

impl Iterator for Events {
    type Item = Result<StreamEvent, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.runtime.block_on(self.inner.next())
    }
}
