//! Commit of a new task that has already ended, in one piece: the payloads of its events are moved into the task, and its
//! log refers to the parts of the task instead of repeating them.

use std::{mem, sync::Arc, vec::Drain};

use super::{LiveState, LiveTask};
use crate::{
    clock::millis,
    event::{Ends, Event, Position},
    journal::{
        turns::Turns,
        waiters::{TurnReply, Wakeups},
    },
    pb::v1::{Task, TaskArtifactUpdateEvent, stream_response::Payload},
    store::{CompletedTask, EventRef},
    task::{absorb, apply},
};

impl LiveState {
    /// Returns the completed task if it ends with the pending events, before its first commit. `None` if it has readers, or
    /// state besides its events.
    pub(in crate::journal) fn complete(&mut self, live: &LiveTask) -> Option<CompletedTask> {
        let is_complete =
            self.accepted.is_new && self.has_task && !self.is_lost && self.admission.state().is_terminal();
        if !is_complete
            || self.waiters.readers > 0
            || self.accepted.push.is_some()
            || self.accepted.agent_state_changed
            || !self.accepted.idempotency_records.is_empty()
        {
            return None;
        }
        let mut task = self.accepted.initial_task.take()?;
        let submitted_at =
            task.status.as_ref().and_then(|status| status.timestamp.as_ref()).map(millis).unwrap_or_default();
        let row = self.row(live);
        (self.accepted.is_new, self.accepted.row_changed, self.accepted.oldest_pending_since) = (false, false, None);
        let events = {
            // Not copied: the agent, which held the other reference, has returned.
            let task = Arc::make_mut(&mut task);
            let mut rest = self.accepted.pending.drain(..);
            let mut events = Vec::with_capacity(rest.len());
            while let Some(event) = rest.next() {
                events.push(move_into(task, event, &rest));
            }
            events
        };
        Some(CompletedTask { key: live.key.clone(), fence: self.fence, row, submitted_at, task, events })
    }

    /// Makes a durable completed task visible, and collects replies to all waiters.
    pub(in crate::journal) fn publish_completed(&mut self, completed: &CompletedTask, wakeups: &mut Wakeups) {
        self.durable.position = Some(Position { fence: completed.fence, seq: completed.row.seq });
        self.turn.ended += 1;
        self.durable.turns = Turns::default();
        let waiters = mem::take(&mut self.waiters.conditions).into_iter();
        wakeups.replies.extend(waiters.map(|(_, sender)| (sender, TurnReply::Task(Arc::clone(&completed.task)))));
        self.durable.task = Some(Arc::clone(&completed.task));
        self.waiters.wakers.drain_into(&mut wakeups.wakers);
    }
}

/// Applies an event to the task, and returns its entry in the log. If the task then contains the payload as it is, the payload
/// is moved, and the entry refers to it.
fn move_into(task: &mut Task, event: Event, rest: &Drain<'_, Event>) -> EventRef {
    let mark = event.mark();
    let reference = match event.decoded_payload() {
        Some(Payload::ArtifactUpdate(TaskArtifactUpdateEvent {
            artifact: Some(artifact),
            append: false,
            last_chunk: last,
            metadata: None,
            ..
        })) if !rest.as_slice().iter().any(|later| changes_artifact(later, &artifact.artifact_id))
            && !task.artifacts.iter().any(|old| old.artifact_id == artifact.artifact_id) =>
        {
            Some(EventRef::Artifact { mark, index: task.artifacts.len(), last: *last })
        }
        Some(Payload::StatusUpdate(update)) if update.metadata.is_none() && mark.ends == Ends::Task => {
            Some(EventRef::Status { mark })
        }
        _ => None,
    };
    let event = match reference {
        None => event,
        Some(reference) => match event.into_payload() {
            Ok(payload) => {
                absorb(task, payload);
                return reference;
            }
            Err(event) => event,
        },
    };
    event.payload().into_iter().for_each(|payload| apply(task, payload));
    EventRef::Event(event)
}

/// Returns whether an event changes the artifact with this id.
fn changes_artifact(event: &Event, id: &str) -> bool {
    matches!(event.decoded_payload(), Some(Payload::ArtifactUpdate(update))
        if update.artifact.as_ref().is_some_and(|artifact| artifact.artifact_id == id))
}
