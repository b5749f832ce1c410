//! References of events to the task in its terminal state, which contains their content.

use std::{mem, ptr, sync::Arc};

use super::{
    Event, EventFlags, Inner, Origin, Payload, Position, StreamResponse, Task, TaskArtifactUpdateEvent, TaskState,
    TaskStatus, TaskStatusUpdateEvent,
};
use crate::{
    base::clock::Millis,
    protocol::json::wkt::{millis, timestamp},
};

/// Location of an event's content in its task.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TaskRef {
    /// The task at its submission, at this time.
    Submitted(Millis),
    /// Update with an artifact exactly as the task contains it.
    Artifact { index: usize, last: bool },
    /// Update with the status of the task.
    Status,
}

impl TaskRef {
    /// Finds the content of an event in a task by comparing them. An event that refers to the task is not compared.
    pub(crate) fn find(event: &Event, task: &Task) -> Option<Self> {
        match &event.0.origin {
            Origin::Ref(task_ref, own) => {
                return own.as_ref().is_some_and(|own| ptr::eq(Arc::as_ptr(own), task)).then_some(*task_ref);
            }
            Origin::Task(first) => return submission_time(first, task).map(Self::Submitted),
            Origin::Message(_) | Origin::Proto(_) => {}
        }
        let is_own = |id: &str, context: &str| id == task.id && context == task.context_id;
        match event.decoded_payload()? {
            Payload::Task(first) => submission_time(first, task).map(Self::Submitted),
            Payload::StatusUpdate(TaskStatusUpdateEvent { task_id, context_id, status, metadata: None })
                if is_own(task_id, context_id) && *status == task.status =>
            {
                Some(Self::Status)
            }
            Payload::ArtifactUpdate(TaskArtifactUpdateEvent {
                task_id,
                context_id,
                artifact: Some(artifact),
                append: false,
                last_chunk,
                metadata: None,
            }) if is_own(task_id, context_id) => {
                let index = task.artifacts.iter().position(|own| own.artifact_id == artifact.artifact_id)?;
                (task.artifacts[index] == *artifact).then_some(Self::Artifact { index, last: *last_chunk })
            }
            Payload::Message(_) | Payload::StatusUpdate(_) | Payload::ArtifactUpdate(_) => None,
        }
    }

    /// Reconstructs the content from the task.
    pub(crate) fn payload(self, task: &Task) -> Payload {
        let (task_id, context_id) = (task.id.clone(), task.context_id.clone());
        match self {
            Self::Submitted(time) => Payload::Task(Task {
                id: task_id,
                context_id,
                status: Some(TaskStatus {
                    state: TaskState::Submitted.into(),
                    message: None,
                    timestamp: Some(timestamp(time)),
                }),
                history: task.history.first().cloned().into_iter().collect(),
                ..Task::default()
            }),
            Self::Artifact { index, last: last_chunk } => {
                let (artifact, append) = (task.artifacts.get(index).cloned(), false);
                let update =
                    TaskArtifactUpdateEvent { task_id, context_id, artifact, append, last_chunk, metadata: None };
                Payload::ArtifactUpdate(update)
            }
            Self::Status => {
                let status = task.status.clone();
                Payload::StatusUpdate(TaskStatusUpdateEvent { task_id, context_id, status, metadata: None })
            }
        }
    }

    pub(super) fn response(self, task: Option<&Task>) -> StreamResponse {
        StreamResponse { payload: task.map(|task| self.payload(task)) }
    }
}

/// Returns the time of submission if the task at its submission can be reconstructed from the task.
fn submission_time(first: &Task, task: &Task) -> Option<Millis> {
    // Exhaustive, so that a new field does not get lost.
    let Task { id, context_id, status: Some(status), artifacts, history, metadata: None } = first else { return None };
    let TaskStatus { state, message: None, timestamp: Some(time) } = status else { return None };
    let has_first_message =
        || if ptr::eq(first, task) { history.len() <= 1 } else { history.iter().eq(task.history.first()) };
    let is_submission = *state == i32::from(TaskState::Submitted)
        && (id, context_id) == (&task.id, &task.context_id)
        && artifacts.is_empty()
        && has_first_message();
    let time = Some(millis(time)).filter(|millis| *millis >= 0 && timestamp(*millis) == *time);
    time.filter(|_| is_submission)
}

/// An event whose content is moved into a task has none until [`refer_to`](Event::refer_to) is called.
impl Event {
    /// Creates the first event of a task that is still as it was submitted. Returns `None` if it can't be reconstructed
    /// from the task later.
    pub(crate) fn submitted(position: Position, task: &Task) -> Option<Self> {
        let time = submission_time(task, task).filter(|_| !task.history.is_empty())?;
        let (origin, mark) = (Origin::Ref(TaskRef::Submitted(time), None), Some(EventFlags::NOTHING));
        Some(Self(Arc::new(Inner { origin, position, mark, ..Inner::default() })))
    }

    /// Moves the content out of an event, for a task that will contain it there. Returns `None` if the event is shared or
    /// was not created from a message.
    pub(crate) fn move_out(&mut self, task_ref: TaskRef) -> Option<Payload> {
        let inner = Arc::get_mut(&mut self.0).filter(|inner| matches!(inner.origin, Origin::Message(_)))?;
        inner.clear_caches();
        mem::replace(&mut inner.origin, Origin::Ref(task_ref, None)).into_message().payload
    }

    /// Returns whether the content was moved out of the event, which does not refer to a task yet.
    pub(crate) fn is_moved(&self) -> bool {
        matches!(self.0.origin, Origin::Ref(_, None))
    }

    /// Makes an event whose content was moved refer to the task that contains it.
    pub(crate) fn refer_to(&mut self, owner: &Arc<Task>) {
        if let Some(inner) = Arc::get_mut(&mut self.0)
            && let Origin::Ref(_, task @ None) = &mut inner.origin
        {
            *task = Some(Arc::clone(owner));
            inner.clear_caches();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::messages::v1::{Artifact, Message, Part};

    fn status(state: TaskState, time: Millis) -> TaskStatus {
        TaskStatus { state: state.into(), message: None, timestamp: Some(timestamp(time)) }
    }

    /// Submitted task, its updates, and the task after them.
    fn history() -> (Task, [Payload; 2], Task) {
        let (task_id, context_id) = ("t".to_owned(), "c".to_owned());
        let first = Task {
            id: task_id.clone(),
            context_id: context_id.clone(),
            status: Some(status(TaskState::Submitted, 1234)),
            history: vec![Message::user("hello")],
            ..Task::default()
        };
        let artifact = Artifact { artifact_id: "a".into(), parts: vec![Part::text("one")], ..Artifact::default() };
        let last =
            Task { status: Some(status(TaskState::Completed, 5678)), artifacts: vec![artifact], ..first.clone() };
        let artifact = Payload::ArtifactUpdate(TaskArtifactUpdateEvent {
            task_id: task_id.clone(),
            context_id: context_id.clone(),
            artifact: last.artifacts.first().cloned(),
            append: false,
            last_chunk: true,
            metadata: None,
        });
        let update = TaskStatusUpdateEvent { task_id, context_id, status: last.status.clone(), metadata: None };
        (first, [artifact, Payload::StatusUpdate(update)], last)
    }

    #[test]
    fn event_that_refers_to_a_task_equals_the_event_before() {
        let at = |seq| Position { fence: 2, seq };
        let (first, payloads, last) = history();
        let [artifact, end] = payloads.map(|payload| Event::new(at(2), EventFlags::NOTHING, payload));
        let before =
            [Event::from_task(at(1), EventFlags::NOTHING.ends, Arc::new(first.clone())), artifact.clone(), end.clone()];
        let mut shared = artifact.clone();
        assert!(shared.move_out(TaskRef::Status).is_none());
        let own = |event: &Event| Event::new(event.position(), event.mark(), event.payload().unwrap().clone());
        let mut events = [Event::submitted(at(1), &first).unwrap(), own(&artifact), own(&end)];
        assert_eq!(
            events[1].move_out(TaskRef::Artifact { index: 0, last: true }).as_ref(),
            artifact.payload(),
            "moved content"
        );
        assert_eq!(events[2].move_out(TaskRef::Status).as_ref(), end.payload());
        let task = Arc::new(last);
        for event in &mut events {
            event.refer_to(&task);
        }
        for (event, before) in events.iter().zip(&before) {
            assert_eq!((event.position(), event.mark()), (before.position(), before.mark()));
            assert_eq!(event.proto_len(), before.proto_len());
            assert_eq!((event.proto(), event.json()), (before.proto(), before.json()));
            assert_eq!((event, event.cursor()), (before, before.cursor()));
            assert_eq!(&event.clone().into_response(), before.response());
            assert!(TaskRef::find(event, &task).is_some() && TaskRef::find(before, &task).is_some());
            // Another task with equal content may change.
            assert!(TaskRef::find(event, &Task::clone(&task)).is_none());
        }
    }
}
