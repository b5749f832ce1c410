//! Completed tasks: tasks that reached a terminal state before their first commit. The stored log of such a task refers to
//! the task instead of repeating its status and artifacts.

use std::sync::Arc;

use super::{Commit, Expect, Key, Row};
use crate::{
    clock::{Millis, timestamp},
    event::{Ends, Event, Fence, Mark, Position},
    pb::v1::{Task, TaskArtifactUpdateEvent, TaskState, TaskStatus, TaskStatusUpdateEvent, stream_response::Payload},
};

/// Task that reached a terminal state before its first commit.
#[derive(Clone, Debug)]
pub struct CompletedTask {
    /// Key of the task.
    pub key: Key,
    /// Fencing token of the writer.
    pub fence: Fence,
    /// Contents of the row.
    pub row: Row,
    /// Time of submission. The first event is the task at that time.
    pub submitted_at: Millis,
    /// The task in its terminal state.
    pub task: Arc<Task>,
    /// Events after the first one, in order.
    pub events: Vec<EventRef>,
}

/// Event of a completed task, by reference to the task where the task contains it.
#[derive(Clone, Debug)]
pub enum EventRef {
    /// Update with an artifact exactly as the task contains it.
    Artifact {
        /// Mark of the event.
        mark: Mark,
        /// Index of the artifact in the task.
        index: usize,
        /// Value of `lastChunk`.
        last: bool,
    },
    /// Update with the final status of the task.
    Status {
        /// Mark of the event.
        mark: Mark,
    },
    /// Event that can't be reconstructed from the task.
    Event(Event),
}

impl CompletedTask {
    /// Converts the task to a commit with all events in full.
    pub fn to_commit(&self) -> Commit {
        let mut events = Vec::with_capacity(self.events.len() + 1);
        let at = |seq| Position { fence: self.fence, seq };
        events.push(Event::from_task(at(1), Ends::Nothing, Arc::new(submitted(&self.task, self.submitted_at))));
        for (seq, event_ref) in (2..).zip(&self.events) {
            events.push(match event_ref {
                EventRef::Artifact { mark, index, last } => {
                    Event::new(at(seq), *mark, artifact_update(&self.task, *index, *last))
                }
                EventRef::Status { mark } => Event::new(at(seq), *mark, status_update(&self.task)),
                EventRef::Event(event) => event.clone(),
            });
        }
        Commit {
            key: self.key.clone(),
            expect: Expect::New,
            fence: self.fence,
            row: self.row.clone(),
            events,
            checkpoint: Some(Arc::clone(&self.task)),
            agent_state: None,
            turn_contexts: None,
            sends: Vec::new(),
            push: None,
        }
    }
}

/// Reconstructs the task at the time of its submission.
pub(crate) fn submitted(task: &Task, time: Millis) -> Task {
    let status = TaskStatus { state: TaskState::Submitted.into(), message: None, timestamp: Some(timestamp(time)) };
    Task {
        id: task.id.clone(),
        context_id: task.context_id.clone(),
        status: Some(status),
        history: task.history.first().cloned().into_iter().collect(),
        ..Task::default()
    }
}

/// Reconstructs the update that added an artifact of the task.
pub(crate) fn artifact_update(task: &Task, index: usize, last_chunk: bool) -> Payload {
    let artifact = task.artifacts.get(index).cloned();
    let (task_id, context_id) = (task.id.clone(), task.context_id.clone());
    Payload::ArtifactUpdate(TaskArtifactUpdateEvent { task_id, context_id, artifact, last_chunk, ..Default::default() })
}

/// Reconstructs the update with the final status of the task.
pub(crate) fn status_update(task: &Task) -> Payload {
    let (task_id, context_id) = (task.id.clone(), task.context_id.clone());
    Payload::StatusUpdate(TaskStatusUpdateEvent { task_id, context_id, status: task.status.clone(), metadata: None })
}
