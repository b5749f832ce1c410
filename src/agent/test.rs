//! An agent without a server: what it does with a message, for its own tests.

use std::sync::Arc;

use tokio_stream::StreamExt as _;

use super::Agent;
use crate::{
    call::Call,
    error::Error,
    event::Event,
    pb::v1::{
        Artifact, CancelTaskRequest, Message, Part, SendMessageRequest, Task, TaskState,
        a2a_service_server::A2aService, bindings::Checked, send_message_response, stream_response::Payload,
    },
    service::{Limits, Service},
    store::memory::Memory,
};

/// Runs an agent over a store in memory, through the same engine as a server does.
///
/// Time is tokio's: under `#[tokio::test(start_paused = true)]` an agent that waits an hour is tested in no time.
///
/// ```
/// use a2a_service::{agent::{self, End}, pb::v1::{Message, TaskState}};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let probe = agent::test(agent::from_fn(|turn, out| async move {
///     if turn.task().history.len() < 2 {
///         return Ok(End::InputRequired(Message::agent("Your name?")));
///     }
///     out.artifact("greeting").text(format!("Hello, {}!", turn.text())).await?;
///     Ok(End::Completed(None))
/// }));
/// let asked = probe.send("hi").await.unwrap();
/// assert_eq!(asked.state(), TaskState::InputRequired);
/// assert_eq!(asked.said(), "Your name?");
/// # });
/// ```
pub fn test<A: Agent>(agent: A) -> Probe {
    Probe { service: Arc::new(Checked(Arc::new(Service::new(agent, Arc::new(Memory::default()), Limits::default())))) }
}

/// An agent that is being tested.
#[derive(Clone)]
pub struct Probe {
    service: Arc<dyn A2aService>,
}

/// What came of a message.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The task, unless the agent answered with a message.
    pub task: Option<Task>,
    /// The message, where there was no task.
    pub message: Option<Message>,
}

impl Probe {
    /// Sends text, as a new task.
    ///
    /// # Errors
    /// What a server would answer with. That an agent fails is none: its task then is in state FAILED.
    pub async fn send(&self, text: &str) -> Result<Outcome, Error> {
        self.send_message(Message::user(text)).await
    }

    /// Sends text to a task that waits for it.
    ///
    /// # Errors
    /// As [`send`](Self::send); a task that has ended takes no more.
    pub async fn reply(&self, task: &Outcome, text: &str) -> Result<Outcome, Error> {
        let task_id = task.task.as_ref().map(|it| it.id.clone()).unwrap_or_default();
        self.send_message(Message { task_id, ..Message::user(text) }).await
    }

    /// Sends a message.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn send_message(&self, message: Message) -> Result<Outcome, Error> {
        let request = SendMessageRequest { message: Some(message), ..SendMessageRequest::default() };
        let answer = self.service.send_message(Call::default().request(request)).await?;
        Ok(match answer.into_inner().payload {
            Some(send_message_response::Payload::Task(it)) => Outcome { task: Some(it), message: None },
            Some(send_message_response::Payload::Message(it)) => Outcome { task: None, message: Some(it) },
            None => Outcome { task: None, message: None },
        })
    }

    /// Sends text as a new task, and returns every event until its turn has ended.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn stream(&self, text: &str) -> Result<Vec<Event>, Error> {
        let request = SendMessageRequest { message: Some(Message::user(text)), ..SendMessageRequest::default() };
        let events = self.service.send_streaming_message(Call::default().request(request)).await?;
        let events: Result<Vec<_>, _> = events.into_inner().collect::<Vec<_>>().await.into_iter().collect();
        Ok(events?)
    }

    /// Sends text as a new task, cancels it once the agent has said something, and returns what became of it.
    ///
    /// # Errors
    /// As [`send`](Self::send), and that the task could not be canceled.
    pub async fn cancel(&self, text: &str) -> Result<Outcome, Error> {
        let request = SendMessageRequest { message: Some(Message::user(text)), ..SendMessageRequest::default() };
        let mut events = self.service.send_streaming_message(Call::default().request(request)).await?.into_inner();
        let (mut id, mut count) = (String::new(), 0);
        while count < 2 {
            let Some(event) = events.next().await.transpose()? else { break };
            if let Some(Payload::Task(it)) = event.payload() {
                id.clone_from(&it.id);
            }
            count += 1;
        }
        let request = CancelTaskRequest { id, ..CancelTaskRequest::default() };
        let task = self.service.cancel_task(Call::default().request(request)).await?.into_inner().into_task()?;
        Ok(Outcome { task: Some(task), message: None })
    }
}

impl Outcome {
    /// The state of the task; UNSPECIFIED where there is none.
    pub fn state(&self) -> TaskState {
        self.task.as_ref().map_or(TaskState::Unspecified, Task::state)
    }

    /// The text of all artifacts, or of the message.
    pub fn text(&self) -> String {
        match (&self.task, &self.message) {
            (Some(task), _) => task.artifacts.iter().flat_map(|it| &it.parts).filter_map(Part::as_text).collect(),
            (None, Some(message)) => message.text(),
            (None, None) => String::new(),
        }
    }

    /// What the agent said last: the message of the status, or the message.
    pub fn said(&self) -> String {
        let status = self.task.as_ref().and_then(|it| it.status.as_ref()).and_then(|it| it.message.as_ref());
        status.or(self.message.as_ref()).map(Message::text).unwrap_or_default()
    }

    /// The artifact of this name.
    pub fn artifact(&self, name: &str) -> Option<&Artifact> {
        self.task.iter().flat_map(|it| &it.artifacts).find(|it| it.name == name)
    }
}

impl std::fmt::Debug for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Probe").finish_non_exhaustive()
    }
}
