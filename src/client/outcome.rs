//! Result of a send: a task or a message, with what most callers need from it.

use super::{Task, TaskState};
use crate::protocol::pb::v1::{Artifact, Message, Part, SendMessageResponse, send_message_response::Payload};

/// Result of a send: the task, or the message of an agent that keeps no task.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use = "the task may have failed"]
pub struct Outcome(pub(super) SendMessageResponse);

impl Outcome {
    pub(super) fn from_task(task: Task) -> Self {
        Self(SendMessageResponse { payload: Some(Payload::Task(task)) })
    }

    /// The task. `None` if the agent responded with a message.
    pub fn task(&self) -> Option<&Task> {
        match &self.0.payload {
            Some(Payload::Task(task)) => Some(task),
            Some(Payload::Message(_)) | None => None,
        }
    }

    /// The message of an agent that responded without a task.
    pub fn message(&self) -> Option<&Message> {
        match &self.0.payload {
            Some(Payload::Message(message)) => Some(message),
            Some(Payload::Task(_)) | None => None,
        }
    }

    /// State of the task. A message is `Completed`.
    pub fn state(&self) -> TaskState {
        self.task().map_or(TaskState::Completed, Task::state)
    }

    /// Artifacts of the task. Empty for a message.
    pub fn artifacts(&self) -> &[Artifact] {
        self.task().map_or(&[], |task| &task.artifacts)
    }

    /// Text of the answer: of the message, or of the artifacts, each on its own line. If there are none, that of the
    /// status, such as a question of the agent.
    pub fn text(&self) -> String {
        if let Some(message) = self.message() {
            return message.text();
        }
        let text = |artifact: &Artifact| artifact.parts.iter().filter_map(Part::as_text).collect::<String>();
        let texts: Vec<_> = self.artifacts().iter().map(text).filter(|text| !text.is_empty()).collect();
        if texts.is_empty() { self.status_text() } else { texts.join("\n") }
    }

    /// Text of the status message of a task that failed, was rejected or was canceled. `None` for other states.
    pub fn error(&self) -> Option<String> {
        self.state().is_failure().then(|| self.status_text())
    }

    /// The response of the agent, or an equal one if the task was waited for.
    pub fn raw(&self) -> &SendMessageResponse {
        &self.0
    }

    /// Returns the response of the agent.
    pub fn into_raw(self) -> SendMessageResponse {
        self.0
    }

    fn status_text(&self) -> String {
        let status = self.task().and_then(|task| task.status.as_ref());
        status.and_then(|status| status.message.as_ref()).map(Message::text).unwrap_or_default()
    }
}
