//! Client without a runtime: each call blocks its thread.

use std::sync::Arc;

use tokio::runtime::{Builder, Runtime};
use tokio_stream::StreamExt as _;

use super::{Outcome, StreamEvent};
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
        // One worker drives connections while no call is in progress.
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().map_err(Error::internal)?;
        let client = runtime.block_on(options.connect(url))?;
        Ok(Self { client, runtime: Arc::new(runtime) })
    }

    /// Card of the agent.
    pub fn card(&self) -> Arc<AgentCard> {
        self.client.card()
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

    /// Adds a push notification configuration to a task.
    ///
    /// # Errors
    /// As [`PushConfigs::create`](super::PushConfigs::create).
    pub fn push(
        &self,
        task_id: &str,
        config: impl Into<TaskPushNotificationConfig>,
    ) -> Result<TaskPushNotificationConfig, Error> {
        self.runtime.block_on(self.client.push(task_id).create(config))
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
