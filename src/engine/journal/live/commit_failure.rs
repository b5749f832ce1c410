//! Handling of pending changes that can't be committed: the server stops, or the store is unavailable, is full, rejects
//! them, or has a newer writer of the task.

use super::LiveState;
use crate::{
    engine::journal::{
        LiveRef,
        failure::{CommitFailure, LimitExceeded},
        waiters::{WaitCondition, Wakeups},
    },
    protocol::{
        event::{Ends, Event, EventFlags, Seq},
        json::wkt::millis,
        pb::v1::{TaskState, stream_response::Payload},
    },
    store::{Commit, Expect, Refused, Rejected},
};

impl LiveState {
    /// Stops waiting because the server stops. Callers whose message is durable get the task as it is; all others, and
    /// those that wait for the end of the task, get an error.
    pub(in crate::engine::journal) fn stop_waiting(&mut self) -> Wakeups {
        let (mut wakeups, durable) = (Wakeups::all(), self.watermark());
        self.waiters.stopped = true;
        self.reply_if(&mut wakeups, |condition| condition.event().is_some_and(|seq| seq <= durable));
        self.waiters.conditions.clear();
        wakeups
    }

    /// Fails waiting senders and cancels, even if their messages are not recorded. The pending changes may still be
    /// committed.
    pub(in crate::engine::journal) fn fail_waiters(&mut self) {
        self.waiters.conditions.retain(|(condition, _)| condition.continues_the_work());
    }

    /// Fails waiting cancels, and senders whose messages are recorded. The store is unavailable.
    pub(in crate::engine::journal) fn fail_recorded_waiters(&mut self) {
        let durable = self.watermark();
        self.waiters.conditions.retain(|(condition, _)| match condition {
            WaitCondition::DurableForTurn(_) | WaitCondition::TurnBegun(_) => true,
            // Zero: a turn that waits for the one before it has no message.
            WaitCondition::Durable(seq) | WaitCondition::Turn(_, seq) => *seq == 0 || *seq > durable,
            WaitCondition::TaskEnd => false,
        });
    }

    /// Abandons the pending changes, of which the store has and gets nothing. The task must be loaded again.
    pub(in crate::engine::journal) fn abandon(&mut self) -> Wakeups {
        self.queued = false;
        self.commit_failure = Some(CommitFailure::Unavailable);
        self.mark_lost()
    }

    /// Abandons the pending changes, because the store has refused them. The task must be loaded again.
    pub(in crate::engine::journal) fn abandon_refused(&mut self, refusal: &Refused) -> Wakeups {
        self.commit_failure = match refusal {
            Refused::Rejected(Rejected::Full(full)) => Some(CommitFailure::Full(*full)),
            // Another writer was first: the retry of the caller finds its result.
            Refused::Stale(_) => self.commit_failure,
            Refused::Rejected(Rejected::Duplicate { .. }) => Some(CommitFailure::Duplicate),
            Refused::Rejected(rejection) => Some(CommitFailure::Rejected(rejection.limit())),
        };
        self.mark_lost()
    }

    /// Drops a change that the store can never commit, and everything accepted after it. Fails the task: at once, or
    /// through the running turn.
    ///
    /// Messages at the beginning of the change are kept, unless there is nothing else in it or a change was rejected
    /// before. Senders of dropped messages get the error. Returns `None` if nothing can be kept: the task is then as
    /// committed.
    pub(in crate::engine::journal) fn reject(
        &mut self,
        live: &LiveRef,
        commit: &Commit,
        rejection: &Rejected,
    ) -> Option<Wakeups> {
        if matches!(rejection, Rejected::Full(_) | Rejected::Duplicate { .. }) {
            return None;
        }
        let Commit { expect, events, mut sends, turn_contexts: asked, agent_state: saved, push, .. } = commit.clone();
        tracing::warn!(task.id = live.key.id(), error.cause = ?rejection, "store rejected a change");
        // The ownership has not ended with the change.
        self.end_release(true, true);
        let (begins, is_first) = (expect == Expect::New, self.rejections == 0);
        self.rejections += 1;
        let messages = events.iter().skip(usize::from(begins)).take_while(|event| is_message(event)).cloned();
        let mut kept: Vec<Event> = messages.collect();
        let has_more = kept.len() + usize::from(begins) < events.len() || saved.is_some();
        if !is_first || !has_more {
            kept.clear();
        }
        let (task, first) = if begins {
            (events.first().and_then(Event::task).cloned().map(Into::into), 1)
        } else {
            (self.durable.task.clone(), self.watermark())
        };
        let (task, last) = (task?, kept.last().map_or(first, Event::seq));
        // A turn that was to begin once its message is durable.
        let delivered = self.turn.delivered_seq;
        let (start, begin) = (WaitCondition::DurableForTurn(delivered), WaitCondition::TurnBegun(delivered));
        let is_unstarted = self.waiters.conditions.iter().any(|(condition, _)| match condition {
            condition if *condition == start => delivered > last,
            condition => *condition == begin,
        });
        if self.rejections > 2 || begins && !(is_first && has_more) || is_unstarted && !has_more && delivered > last {
            return None;
        }
        let dropped =
            events.iter().chain(&self.accepted.pending).filter(|event| event.seq() > last && is_message(event));
        let dropped: Vec<Seq> = dropped.map(Event::seq).collect();
        self.admission.reset_to(&task, last);
        self.accepted.status_time =
            task.status.as_ref().and_then(|status| status.timestamp.as_ref()).map_or(self.accepted.status_time, millis);
        if begins {
            (self.accepted.initial_task, self.accepted.is_new, self.accepted.push) = (Some(task), true, push);
        }
        sends.retain(|send| send.seq <= last);
        (self.accepted.pending, self.accepted.idempotency_records) = (kept, sends);
        self.accepted.contexts.reset_to(last, is_first && asked.is_some());
        (self.accepted.joined_bytes, self.accepted.in_flight, self.accepted.oldest_pending_since) = (0, 0, None);
        (self.accepted.row_changed, self.accepted.agent_state_changed, self.turn.delivered_seq) =
            (false, false, self.turn.delivered_seq.min(last));
        self.accepted.mail_read = self.durable.mail_read;
        self.forget_stored_turn();
        self.turn.inbox.retain(|message| message.event.seq() <= last);
        self.turn.answered = None;
        // Callers that wait for a dropped event of the agent wait for the failure instead.
        self.waiters.conditions.retain_mut(|(condition, _)| match condition {
            WaitCondition::Durable(seq) if *seq > last && !dropped.contains(seq) => {
                *seq = last + 1;
                true
            }
            WaitCondition::Durable(seq) | WaitCondition::DurableForTurn(seq) | WaitCondition::Turn(_, seq) => {
                *seq <= last
            }
            WaitCondition::TurnBegun(_) => false,
            WaitCondition::TaskEnd => true,
        });
        self.commit_failure = Some(CommitFailure::Rejected(rejection.limit()));
        let exceeded = LimitExceeded::Store(rejection.clone());
        if !self.turn.is_running || is_unstarted || self.turn.ended + 1 < self.turn.number {
            self.fail(live, &exceeded, last);
        }
        self.turn.exceeded = Some(exceeded);
        Some(Wakeups::all())
    }

    /// Fails a task without a running turn. `last` is its last event.
    fn fail(&mut self, live: &LiveRef, exceeded: &LimitExceeded, last: Seq) {
        self.turn.is_running = false;
        self.turn.inbox.clear();
        // Callers of a turn that was to begin after the dropped one.
        self.waiters.conditions.retain(|(condition, _)| !matches!(condition, WaitCondition::Turn(_, 0)));
        let failure = live.failure("limit", exceeded.to_string());
        let status = live.status_event(TaskState::Failed, Some(exceeded.message(&failure.id)));
        live.close_record(self, "failed", Some(&failure));
        if self.accept(status, EventFlags::ending(Ends::Task)).is_err() {
            tracing::error!(task.id = live.key.id(), event = last, "task is in a terminal state and can't fail");
        }
        self.accepted.contexts.drop_before(None);
    }

    /// Marks the task as lost: it has another writer, or does not exist. Waiters get an error, and readers are woken.
    pub(in crate::engine::journal) fn mark_lost(&mut self) -> Wakeups {
        (self.is_lost, self.accepted.in_flight) = (true, 0);
        self.admission.drop_events();
        self.accepted.pending.clear();
        self.waiters.conditions.clear();
        Wakeups::all()
    }
}

/// Returns whether an event is a follow-up message of the client.
fn is_message(event: &Event) -> bool {
    matches!(event.payload(), Some(Payload::Message(_)))
}
