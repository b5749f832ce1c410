//! Test kit for agents, clients and servers.
//!
//! | To test | Use |
//! | --- | --- |
//! | an agent | [`probe`], which sends messages to it without a server |
//! | a client, or an agent that calls others | [`Script`], an agent that follows a script; [`serve`], a server without sockets |
//! | retries | [`FaultyTransport`], which loses, delays, repeats and cuts requests and responses |
//! | a server of the protocol | the crate `a2a-conformance-suite`, `tools/conformance-suite` in the repository |
//! | a store | the crate `a2a-store-suite`, `tools/store-suite` in the repository |
//!
//! `serve` and `FaultyTransport` need the crate feature `client`.

use std::sync::Arc;

use tokio_stream::StreamExt as _;

use crate::{
    engine::agent::Agent,
    protocol::{
        call::Call,
        error::Error,
        event::Event,
        pb::v1::{
            Artifact, CancelTaskRequest, Message, Part, SendMessageRequest, Task, TaskState,
            a2a_service_server::A2aService, bindings::ValidatedService, send_message_response,
        },
        rpc::BoxStream,
    },
    service::{Limits, Service},
    store::memory::Memory,
};

#[cfg(feature = "client")]
mod faulty_transport;
#[cfg(feature = "client")]
mod memory_server;
mod script;

pub use self::script::Script;
#[cfg(feature = "client")]
pub use self::{
    faulty_transport::{Fault, FaultyTransport},
    memory_server::{MemoryServer, MemoryTransport, serve},
};

/// Runs an agent with a store in memory, and otherwise like a server.
///
/// The agent uses the time of tokio: with `#[tokio::test(start_paused = true)]`, a wait of an hour takes no real time.
///
/// ```
/// use a2a_service::{agent::{self, End}, pb::v1::{Message, TaskState}, testing};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let probe = testing::probe(agent::from_fn(|turn, out| async move {
///     if turn.task().history.len() < 2 {
///         return Ok(End::input_required("Your name?"));
///     }
///     out.artifact("greeting").text(format!("Hello, {}!", turn.text())).await?;
///     Ok(End::Completed(None))
/// }));
/// let asked = probe.send("hi").await.unwrap();
/// assert_eq!(asked.state(), TaskState::InputRequired);
/// assert_eq!(asked.status_text(), "Your name?");
/// # });
/// ```
pub fn probe<A: Agent>(agent: A) -> Probe {
    let service = Service::new(agent, Arc::new(Memory::default()), Limits::default());
    Probe { service: Arc::new(ValidatedService(Arc::new(service))) }
}

/// Agent under test.
#[derive(Clone)]
pub struct Probe {
    service: Arc<dyn A2aService>,
}

/// Result of a message: a task, or a message of the agent.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeOutcome {
    /// The task, unless the agent answered with a message.
    pub task: Option<Task>,
    /// The message, if there is no task.
    pub message: Option<Message>,
}

impl Probe {
    /// Sends text as a new task.
    ///
    /// # Errors
    /// Errors that a server would return. A failure of the agent is not an error, but a task in state FAILED.
    pub async fn send(&self, text: &str) -> Result<ProbeOutcome, Error> {
        self.send_message(Message::user(text)).await
    }

    /// Sends text to an existing task.
    ///
    /// # Errors
    /// As [`send`](Self::send), and if the task is in a terminal state.
    pub async fn reply(&self, task: &ProbeOutcome, text: &str) -> Result<ProbeOutcome, Error> {
        let task_id = task.task.as_ref().map(|task| task.id.clone()).unwrap_or_default();
        self.send_message(Message { task_id, ..Message::user(text) }).await
    }

    /// Sends a message.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn send_message(&self, message: Message) -> Result<ProbeOutcome, Error> {
        let request = SendMessageRequest { message: Some(message), ..SendMessageRequest::default() };
        let response = self.service.send_message(Call::default().request(request)).await?;
        let (task, message) = match response.into_inner().payload {
            Some(send_message_response::Payload::Task(task)) => (Some(task), None),
            Some(send_message_response::Payload::Message(message)) => (None, Some(message)),
            None => (None, None),
        };
        Ok(ProbeOutcome { task, message })
    }

    /// Sends text as a new task, and returns all events until its turn has ended.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn stream(&self, text: &str) -> Result<Vec<Event>, Error> {
        Ok(self.open(text).await?.collect::<Result<_, _>>().await?)
    }

    async fn open(&self, text: &str) -> Result<BoxStream<Event>, Error> {
        let request = SendMessageRequest { message: Some(Message::user(text)), ..SendMessageRequest::default() };
        Ok(self.service.send_streaming_message(Call::default().request(request)).await?.into_inner())
    }

    /// Sends text as a new task, cancels it after the agent's first update, and returns the task.
    ///
    /// # Errors
    /// As [`send`](Self::send), and if the task can't be canceled.
    pub async fn cancel(&self, text: &str) -> Result<ProbeOutcome, Error> {
        let first: Vec<Event> = self.open(text).await?.take(2).collect::<Result<_, _>>().await?;
        let id = first.iter().find_map(Event::task).map(|task| task.id.clone()).unwrap_or_default();
        let request = CancelTaskRequest { id, ..CancelTaskRequest::default() };
        let task = self.service.cancel_task(Call::default().request(request)).await?.into_inner().into_task()?;
        Ok(ProbeOutcome { task: Some(task), message: None })
    }
}

impl ProbeOutcome {
    /// Returns the state of the task. UNSPECIFIED without a task.
    pub fn state(&self) -> TaskState {
        self.task.as_ref().map_or(TaskState::Unspecified, Task::state)
    }

    /// Returns the text of all artifacts, or of the message.
    pub fn text(&self) -> String {
        match (&self.task, &self.message) {
            (Some(task), _) => {
                task.artifacts.iter().flat_map(|artifact| &artifact.parts).filter_map(Part::as_text).collect()
            }
            (None, Some(message)) => message.text(),
            (None, None) => String::new(),
        }
    }

    /// Returns the text of the status message, or of the message.
    pub fn status_text(&self) -> String {
        let status = self.task.as_ref().and_then(|task| task.status.as_ref());
        let status = status.and_then(|status| status.message.as_ref());
        status.or(self.message.as_ref()).map(Message::text).unwrap_or_default()
    }

    /// Returns the artifact with a name.
    pub fn artifact(&self, name: &str) -> Option<&Artifact> {
        self.task.iter().flat_map(|task| &task.artifacts).find(|artifact| artifact.name == name)
    }
}

debug_fields!(Probe {});
