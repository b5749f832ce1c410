//! Creation of a commit from the pending events of a task, and publication of its events once it is durable.
//!
//! If a new task without readers ends with its first commit, the content of its events is moved into the checkpoint,
//! and the events refer to it.

use std::{mem, sync::Arc};

use super::{Durable, LiveState, LiveTask, MIN_CHECKPOINT_BYTES};
use crate::{
    base::clock::{Clock, Millis},
    engine::journal::{
        turns::is_interrupted,
        waiters::{TurnReply, WaitCondition, Wakeups},
    },
    protocol::{
        event::{Ends, Event, Position, TaskRef},
        pb::{
            v1::{Task, TaskArtifactUpdateEvent, stream_response::Payload},
            wkt::millis,
        },
        task::{apply, apply_owned, is_joined},
    },
    store::{Commit, Expect, TaskHead},
};

impl LiveState {
    /// Returns whether there is anything to commit.
    pub(in crate::engine::journal) fn is_dirty(&self) -> bool {
        self.has_task
            && !self.is_lost
            && self.is_runner()
            && (self.accepted.row_changed || self.accepted.is_new || !self.accepted.pending.is_empty())
    }

    /// Returns whether anything is pending, queued or in flight.
    pub(in crate::engine::journal) fn has_uncommitted(&self) -> bool {
        self.queued || self.accepted.in_flight > 0 || self.is_dirty()
    }

    /// Returns whether events are in flight to the store.
    pub(in crate::engine::journal) fn has_events_in_flight(&self) -> bool {
        self.accepted.in_flight > 0
    }

    /// Returns whether no turn is running and everything accepted is durable: nothing happens until the next message.
    pub(in crate::engine::journal) fn is_idle(&self) -> bool {
        !self.turn.is_running && !self.has_uncommitted()
    }

    /// Creates a commit of everything pending. With `exclusive`, the lock is held until [`publish`](Self::publish), so
    /// that the committed task can be moved into the checkpoint instead of being copied.
    pub(in crate::engine::journal) fn take_commit(
        &mut self,
        live: &LiveTask,
        clock: &Clock,
        exclusive: bool,
    ) -> Commit {
        let mut events = mem::take(&mut self.accepted.pending);
        let (ends, whole) = (self.admission.state().is_terminal(), !ends_within(&events));
        if let Some(task) = self.accepted.initial_task.as_ref().filter(|_| mem::take(&mut self.accepted.is_new)) {
            let at = Position { fence: self.fence(), seq: 1 };
            let is_read = self.waiters.readers > 0;
            let submitted = if ends && whole && !is_read { Event::submitted(at, task) } else { None };
            let first = match submitted {
                Some(first) => first,
                None if exclusive || is_read || ends => Event::from_task(at, Ends::Nothing, Arc::clone(task)),
                // Without readers, the first event is encoded at once: the agent then is the sole owner of the task,
                // and changes it without copying.
                None => Event::encode_task(at, Ends::Nothing, task),
            };
            events.insert(0, first);
        }
        (self.accepted.in_flight, self.accepted.row_changed, self.accepted.oldest_pending_since) =
            (events.len(), false, None);
        self.accepted.bytes_sent = self.admission.bytes();
        if !exclusive && !ends {
            self.durable.bytes_since_checkpoint += events.iter().map(Event::proto_len).sum::<usize>();
        }
        // A synchronous store keeps the events themselves until the task ends.
        let due = self.is_checkpoint_due(ends, 0);
        let checkpoint = due.then(|| match (&self.durable.task, &self.accepted.initial_task) {
            (Some(_), _) if exclusive && whole => self.durable.task.take().unwrap_or_default(),
            (Some(task), _) => Arc::clone(task),
            (None, _) if whole => self.accepted.initial_task.take().unwrap_or_default(),
            (None, task) => task.clone().unwrap_or_default(),
        });
        if due {
            (self.durable.checkpoint_bytes, self.durable.bytes_since_checkpoint) =
                (self.durable.checkpoint_bytes + self.durable.bytes_since_checkpoint, 0);
        }
        let (row, status_time) = (self.row(live), self.accepted.status_time);
        let expect = self.durable.position.map_or(Expect::New, Expect::At);
        let is_whole = expect == Expect::New && ends;
        let time = if is_whole { status_time } else { clock.millis().max(status_time) };
        let turns = if events.is_empty() { None } else { self.take_turn_records(live.key.id(), is_whole) };
        let saved = mem::take(&mut self.accepted.agent_state_changed).then(|| self.turn.agent_state.clone()).flatten();
        Commit {
            key: live.key.clone(),
            expect,
            fence: self.fence(),
            row,
            events,
            checkpoint,
            agent_state: saved,
            turn_contexts: self.accepted.contexts.take_changed(),
            sends: mem::take(&mut self.accepted.idempotency_records),
            push: self.accepted.push.take(),
            time,
            turns,
            mail_read: self.accepted.mail_read,
        }
    }

    /// Returns whether a checkpoint is due after further events of so many bytes, or because the task `ends`.
    pub(super) fn is_checkpoint_due(&self, ends: bool, bytes: usize) -> bool {
        let Durable { bytes_since_checkpoint, checkpoint_bytes, .. } = self.durable;
        ends || bytes_since_checkpoint + bytes > checkpoint_bytes.max(MIN_CHECKPOINT_BYTES)
    }

    /// Returns the row of the task including pending changes.
    pub(super) fn row(&mut self, live: &LiveTask) -> TaskHead {
        let state = self.admission.state();
        TaskHead {
            context: Arc::clone(&live.context),
            seq: self.admission.seq(),
            state,
            time: self.accepted.status_time,
            open: !state.is_terminal() && (self.turn.is_running || !self.turn.inbox.is_empty()),
            delivered_seq: self.turn.delivered_seq,
            cancel_requested: self.turn.cancel_requested,
            attempt: self.turn.attempt,
            drained: self.turn.drained,
        }
    }

    /// Settles a durable commit, and makes its events visible. Collects wake-ups.
    pub(in crate::engine::journal) fn publish(&mut self, commit: &Commit, wakeups: &mut Wakeups) {
        (self.accepted.in_flight, self.durable.bytes) = (0, self.accepted.bytes_sent);
        self.durable.mail_read = commit.mail_read;
        self.admission.set_committed(self.accepted.bytes_sent);
        self.advance(commit.position(), &commit.events, commit.checkpoint.as_ref(), wakeups);
        self.reply_if(wakeups, |condition| condition.is_met_by(&commit.row));
    }

    /// Makes events visible that another process has committed, up to this position.
    pub(in crate::engine::journal) fn follow(&mut self, position: Position, events: &[Event], wakeups: &mut Wakeups) {
        for event in events {
            event.payload().into_iter().for_each(|payload| self.admission.follow(payload, event.seq()));
        }
        (self.accepted.bytes_sent, self.durable.bytes) = (self.admission.bytes(), self.admission.bytes());
        self.accepted.status_time = self.accepted.status_time.max(status_time(events));
        self.advance(position, events, None, wakeups);
        let memory = self.memory();
        self.charge.grow(memory);
    }

    /// Applies durable events to the committed task, or replaces it by a checkpoint that contains them, and raises the
    /// watermark to this position. Readers, the cache and waiters depend on nothing else.
    fn advance(&mut self, position: Position, events: &[Event], checkpoint: Option<&Arc<Task>>, wakeups: &mut Wakeups) {
        self.durable.position = Some(position);
        match checkpoint {
            Some(task) if !ends_within(events) => {
                self.durable.task = Some(Arc::clone(task));
                for event in events {
                    self.notify_waiters(event, wakeups);
                }
            }
            _ => {
                for event in events {
                    if event.seq() == 1 {
                        self.durable.task = self.accepted.initial_task.take();
                    } else if let (Some(task), Some(payload)) = (&mut self.durable.task, event.payload()) {
                        apply(Arc::make_mut(task), payload);
                    }
                    self.notify_waiters(event, wakeups);
                }
            }
        }
        self.cache_events(events);
        wakeups.changed = true;
    }

    /// Reuses the capacity of a list of committed events.
    pub(in crate::engine::journal) fn reuse_events(&mut self, mut events: Vec<Event>) {
        if self.accepted.pending.capacity() == 0 {
            events.clear();
            self.accepted.pending = events;
        }
    }

    /// Replies to the waiters whose condition an event fulfils, with the task at that event.
    fn notify_waiters(&mut self, event: &Event, wakeups: &mut Wakeups) {
        let ends = event.ends();
        if ends != Ends::Nothing {
            self.turn.ended += 1;
        }
        self.durable.turns.apply(event, |event| is_interrupted(event.decoded_payload()));
        if self.waiters.conditions.is_empty() {
            return;
        }
        // `AUTH_REQUIRED` interrupts the turn for callers that wait, even if the agent continues (3.2.2).
        let is_interrupted = ends == Ends::Nothing && is_interrupted(event.decoded_payload());
        let ended = self.turn.ended;
        self.reply_if(wakeups, |condition| condition.is_met(event.seq(), ends, ended, is_interrupted));
    }

    /// Replies to the waiters whose condition matches, with the committed task.
    pub(in crate::engine::journal) fn reply_if(
        &mut self,
        wakeups: &mut Wakeups,
        is_met: impl Fn(&WaitCondition) -> bool,
    ) {
        let Some(task) = &self.durable.task else { return };
        let Some(first) = self.waiters.conditions.iter().position(|waiter| is_met(&waiter.0)) else { return };
        let met = self.waiters.conditions.extract_if(first.., |waiter| is_met(&waiter.0));
        let mut replies = met.map(|(_, sender)| (sender, TurnReply::Task(Arc::clone(task))));
        if wakeups.reply.is_none() {
            wakeups.reply = replies.next();
        }
        wakeups.replies.extend(replies);
    }
}

/// Applies the events of a commit to its checkpoint. If the first event refers to the checkpoint, the content of others
/// that the checkpoint then contains unchanged is moved, and they refer to it, too.
pub(in crate::engine::journal) fn apply_to_checkpoint(commit: &mut Commit) {
    let Some(checkpoint) = &mut commit.checkpoint else { return };
    let events = commit.events.as_mut_slice();
    let can_refer = events.first().is_some_and(Event::is_moved);
    let task = Arc::make_mut(checkpoint);
    for n in 0..events.len() {
        let Some((event, later)) = events[n..].split_first_mut() else { break };
        if event.seq() == 1 {
            continue;
        }
        let task_ref = if can_refer { task_ref(task, event, later) } else { None };
        match task_ref.and_then(|task_ref| event.move_out(task_ref)) {
            Some(payload) => apply_owned(task, payload),
            None => event.payload().into_iter().for_each(|payload| apply(task, payload)),
        }
    }
    if can_refer {
        for event in events {
            event.refer_to(checkpoint);
        }
    }
}

/// Returns the time of the newest status among events; the lowest one without any.
fn status_time(events: &[Event]) -> Millis {
    let time = |event: &Event| match event.payload()? {
        Payload::StatusUpdate(update) => update.status.as_ref()?.timestamp.as_ref().map(millis),
        Payload::Task(_) | Payload::Message(_) | Payload::ArtifactUpdate(_) => None,
    };
    events.iter().filter_map(time).max().unwrap_or(Millis::MIN)
}

/// Returns where the task contains an event after the later events, if they do not change its content.
fn task_ref(task: &Task, event: &Event, later: &[Event]) -> Option<TaskRef> {
    match event.decoded_payload()? {
        Payload::ArtifactUpdate(TaskArtifactUpdateEvent {
            artifact: Some(artifact),
            append: false,
            last_chunk: last,
            metadata: None,
            ..
        }) if is_joined(artifact)
            && !later.iter().any(|later| changes_artifact(later, &artifact.artifact_id))
            && !task.artifacts.iter().any(|old| old.artifact_id == artifact.artifact_id) =>
        {
            Some(TaskRef::Artifact { index: task.artifacts.len(), last: *last })
        }
        Payload::StatusUpdate(update) if update.metadata.is_none() && event.ends() == Ends::Task => {
            Some(TaskRef::Status)
        }
        Payload::Task(_) | Payload::Message(_) | Payload::StatusUpdate(_) | Payload::ArtifactUpdate(_) => None,
    }
}

/// Returns whether an event changes the artifact with this id.
fn changes_artifact(event: &Event, id: &str) -> bool {
    matches!(event.decoded_payload(), Some(Payload::ArtifactUpdate(update))
        if update.artifact.as_ref().is_some_and(|artifact| artifact.artifact_id == id))
}

/// Returns whether a turn or the task ends before the last event. Waiters for that turn must see the task as of its
/// end.
fn ends_within(events: &[Event]) -> bool {
    events.iter().rev().skip(1).any(|event| event.ends() != Ends::Nothing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::journal::TaskRole,
        protocol::{
            event::EventFlags,
            pb::v1::{Artifact, Message, Part, TaskState, TaskStatus, TaskStatusUpdateEvent},
            task::TaskLimits,
        },
        store::{StoredTask, TaskKey},
    };

    fn status(state: TaskState) -> Payload {
        let status = TaskStatus { state: state.into(), ..TaskStatus::default() };
        Payload::StatusUpdate(TaskStatusUpdateEvent { status: Some(status), ..TaskStatusUpdateEvent::default() })
    }

    fn chunk(text: &str, append: bool) -> Payload {
        let artifact = Artifact { artifact_id: "a".to_owned(), parts: vec![Part::text(text)], ..Artifact::default() };
        Payload::ArtifactUpdate(TaskArtifactUpdateEvent { artifact: Some(artifact), append, ..Default::default() })
    }

    fn commit(runner: &LiveTask) -> (Commit, Wakeups) {
        let (mut state, mut wakeups) = (runner.lock(), Wakeups::default());
        let mut commit = state.take_commit(runner, &Clock::default(), false);
        apply_to_checkpoint(&mut commit);
        state.publish(&commit, &mut wakeups);
        (commit, wakeups)
    }

    #[test]
    fn follower_of_a_log_equals_its_runner_after_each_event_and_accepts_nothing() {
        let (key, limits) = (TaskKey::new(&Arc::default(), "t"), TaskLimits::default());
        let runner = LiveTask::new(key.clone(), 7, Task { id: "t".to_owned(), ..Task::default() }, 0, limits);
        runner.lock().has_task = true;
        let (first, _) = commit(&runner);
        let stored = StoredTask {
            position: first.position(),
            row: first.row,
            checkpoint: None,
            agent_state: None,
            turn_contexts: None,
            tail: Vec::new(),
            log: None,
        };
        let task = runner.lock().durable.task.as_deref().cloned().unwrap();
        let follower = LiveTask::loaded(key, TaskRole::Follower, stored, task, limits);
        let mut ended = follower.lock().wait_for(WaitCondition::TaskEnd);
        for live in [&runner, &follower] {
            live.lock().waiters.readers = 1;
        }
        let (turn, end) = (EventFlags::ending(Ends::Turn), EventFlags::ending(Ends::Task));
        for (payload, mark) in [
            (status(TaskState::Working), EventFlags::NOTHING),
            (chunk("one", false), EventFlags::NOTHING),
            (chunk("two", true), EventFlags::NOTHING),
            (status(TaskState::InputRequired), turn),
            (Payload::Message(Message::user("more")), EventFlags::HIDDEN),
            (chunk("x".repeat(MIN_CHECKPOINT_BYTES).as_str(), true), EventFlags::NOTHING),
            (status(TaskState::AuthRequired), EventFlags::NOTHING),
            (status(TaskState::Completed), end),
        ] {
            assert!(follower.lock().accept(Event::pending(payload.clone()), mark).is_err());
            assert!(!follower.lock().is_dirty());
            runner.lock().accept(Event::pending(payload), mark).unwrap();
            let (change, _) = commit(&runner);
            let (runner, mut follower, mut wakeups) = (runner.lock(), follower.lock(), Wakeups::default());
            follower.follow(change.position(), &change.events, &mut wakeups);
            assert_eq!(follower.committed(), runner.committed());
            assert_eq!(follower.admission.state(), runner.admission.state());
            assert_eq!((follower.admission.seq(), follower.fence()), (runner.admission.seq(), 7));
            assert!(follower.memory() >= runner.memory() && follower.is_idle());
            let cached = |state: &LiveState| state.durable.cache.iter().map(Event::position).collect::<Vec<_>>();
            assert_eq!(cached(&follower), cached(&runner));
            assert!(wakeups.changed);
            for (sender, reply) in wakeups.reply.into_iter().chain(wakeups.replies) {
                _ = sender.send(reply);
            }
        }
        assert!(matches!(ended.try_recv(), Ok(TurnReply::Task(task)) if task.state() == TaskState::Completed));
    }
}
