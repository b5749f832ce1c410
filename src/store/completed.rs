//! A task that began and ended before its first commit: with it, its log need not repeat what it has.

use std::sync::Arc;

use super::{Commit, Expect, Key, Row};
use crate::{
    event::{Ends, Event, Fence, Mark, Position},
    pb::v1::{Task, TaskArtifactUpdateEvent, TaskState, TaskStatus, TaskStatusUpdateEvent, stream_response::Payload},
    seam::{Millis, timestamp},
};

/// A task that began and ended before its first commit.
#[derive(Clone, Debug)]
pub struct CompletedTask {
    /// The task.
    pub key: Key,
    /// Who writes.
    pub fence: Fence,
    /// What its row says. Its head is the last of the events.
    pub row: Row,
    /// When it was submitted: its first event is the task as it was then.
    pub began: Millis,
    /// The task as it ended.
    pub task: Arc<Task>,
    /// Its other events, in their order.
    pub told: Vec<EventRef>,
}

/// An event of a task that has ended, as the task tells it.
#[derive(Clone, Debug)]
pub enum EventRef {
    /// An artifact, as the task has it.
    Artifact {
        /// What its message does not tell.
        mark: Mark,
        /// Its place in the task.
        index: usize,
        /// There was said to be no more of it.
        last: bool,
    },
    /// The status of the task.
    Status {
        /// What its message does not tell.
        mark: Mark,
    },
    /// What the task does not tell as it was.
    Event(Event),
}

impl CompletedTask {
    /// The same as any commit.
    pub fn commit(&self) -> Commit {
        let mut events = Vec::with_capacity(self.told.len() + 1);
        let at = |seq| Position { fence: self.fence, seq };
        events.push(Event::task(at(1), Ends::Nothing, Arc::new(begun(&self.task, self.began))));
        for (seq, told) in (2..).zip(&self.told) {
            events.push(match told {
                EventRef::Artifact { mark, index, last } => {
                    Event::new(at(seq), *mark, artifact(&self.task, *index, *last))
                }
                EventRef::Status { mark } => Event::new(at(seq), *mark, status(&self.task)),
                EventRef::Event(it) => it.clone(),
            });
        }
        let row = Row { head: events.last().cloned(), ..self.row.clone() };
        Commit {
            key: self.key.clone(),
            expect: Expect::New,
            fence: self.fence,
            row,
            events,
            checkpoint: Some(Arc::clone(&self.task)),
            saved: None,
            asked: None,
            sends: Vec::new(),
            push: None,
        }
    }
}

/// A task as it began, by how it ended.
pub(crate) fn begun(task: &Task, began: Millis) -> Task {
    let status = TaskStatus { state: TaskState::Submitted.into(), message: None, timestamp: Some(timestamp(began)) };
    Task {
        id: task.id.clone(),
        context_id: task.context_id.clone(),
        status: Some(status),
        history: task.history.first().cloned().into_iter().collect(),
        ..Task::default()
    }
}

/// What was said of an artifact that a task has.
pub(crate) fn artifact(task: &Task, index: usize, last_chunk: bool) -> Payload {
    let artifact = task.artifacts.get(index).cloned();
    let (task_id, context_id) = (task.id.clone(), task.context_id.clone());
    Payload::ArtifactUpdate(TaskArtifactUpdateEvent { task_id, context_id, artifact, last_chunk, ..Default::default() })
}

/// What was said of a task at its end.
pub(crate) fn status(task: &Task) -> Payload {
    let (task_id, context_id) = (task.id.clone(), task.context_id.clone());
    Payload::StatusUpdate(TaskStatusUpdateEvent { task_id, context_id, status: task.status.clone(), metadata: None })
}
