//! A task that began and ends before anybody has seen it: what is said of it is moved into it, and its log is told by it.

use std::{mem, sync::Arc, vec::Drain};

use super::{Inner, Live};
use crate::{
    clock::millis,
    event::{Ends, Event, Position},
    journal::{
        turns::Turns,
        waiters::{TurnReply, Wakeups},
    },
    pb::v1::{Task, TaskArtifactUpdateEvent, stream_response::Payload},
    store::{CompletedTask, EventRef, Row},
    task::{absorb, apply},
};

impl Inner {
    /// The whole of a task that ends with what is pending, before its first commit. None where there is more to it than
    /// its events, or where somebody reads them.
    pub(in crate::journal) fn conclude(&mut self, live: &Live) -> Option<CompletedTask> {
        let whole = self.begins && self.real && !self.lost && self.ahead.state().is_terminal();
        if !whole || self.readers > 0 || self.push.is_some() || self.unsaved || !self.sends.is_empty() {
            return None;
        }
        let mut task = self.base.take()?;
        let began = task.status.as_ref().and_then(|it| it.timestamp.as_ref()).map(millis).unwrap_or_default();
        // The task tells it.
        let row = Row { status_event: None, ..self.row(live) };
        (self.begins, self.touched, self.oldest) = (false, false, None);
        let told = {
            // Nobody else has it: the agent that was given it has returned.
            let task = Arc::make_mut(&mut task);
            let mut rest = self.pending.drain(..);
            let mut told = Vec::with_capacity(rest.len());
            while let Some(event) = rest.next() {
                told.push(fold(task, event, &rest));
            }
            told
        };
        Some(CompletedTask { key: live.key.clone(), fence: self.fence, row, submitted_at: began, task, events: told })
    }

    /// It is durable: now it is shown, and whoever waited for anything of it has it.
    pub(in crate::journal) fn concluded(&mut self, it: &CompletedTask, wake: &mut Wakeups) {
        self.at = Some(Position { fence: it.fence, seq: it.row.seq });
        self.ended += 1;
        self.turns = Turns::default();
        let waiters = mem::take(&mut self.waiters).into_iter();
        wake.answers.extend(waiters.map(|(_, to)| (to, TurnReply::Task(Arc::clone(&it.task)))));
        self.shown = Some(Arc::clone(&it.task));
        self.wakers.take(&mut wake.wakers);
    }
}

/// Adds what an event says to the task, and says how the task then tells it: what it tells is moved and not copied.
fn fold(task: &mut Task, event: Event, rest: &Drain<'_, Event>) -> EventRef {
    let mark = event.mark();
    let told = match event.known_payload() {
        Some(Payload::ArtifactUpdate(TaskArtifactUpdateEvent {
            artifact: Some(it),
            append: false,
            last_chunk: last,
            metadata: None,
            ..
        })) if !rest.as_slice().iter().any(|later| writes(later, &it.artifact_id))
            && !task.artifacts.iter().any(|old| old.artifact_id == it.artifact_id) =>
        {
            Some(EventRef::Artifact { mark, index: task.artifacts.len(), last: *last })
        }
        Some(Payload::StatusUpdate(it)) if it.metadata.is_none() && mark.ends == Ends::Task => {
            Some(EventRef::Status { mark })
        }
        _ => None,
    };
    let event = match told {
        None => event,
        Some(told) => match event.into_payload() {
            Ok(it) => {
                absorb(task, it);
                return told;
            }
            Err(it) => it,
        },
    };
    event.payload().into_iter().for_each(|it| apply(task, it));
    EventRef::Event(event)
}

/// Whether an event says something of the artifact of this id.
fn writes(event: &Event, id: &str) -> bool {
    matches!(event.known_payload(), Some(Payload::ArtifactUpdate(it))
        if it.artifact.as_ref().is_some_and(|it| it.artifact_id == id))
}
