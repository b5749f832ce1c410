//! Pending changes that are not committed: because the server stops, or because the store is unavailable, is full,
//! rejects them, or has a newer writer for the task.

use std::fmt;

use serde_json::json;

use super::Inner;
use crate::{
    agent::status_update,
    event::{Ends, Event, Mark, Seq},
    journal::{
        LiveRef,
        waiters::{WaitCondition, Wakeups},
    },
    pb::v1::{Message, TaskState, stream_response::Payload},
    seam::millis,
    store::{Change, Commit, Expect, Full, Key, Refused, Rejected},
    task::Violation,
};

/// Why the store has nothing of what was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CommitFailure {
    /// There was no room for the task.
    Full(Full),
    /// It has been away for too long.
    Away,
    /// The store rejected the change, because of the limit with this configuration key if there is one.
    Rejected(Option<&'static str>),
}

/// Limit that a turn has reached, which ends it.
#[derive(Clone, Debug)]
pub(crate) enum LimitExceeded {
    /// A limit of the task.
    Task(Violation),
    /// The store rejected the changes of the turn.
    Store(Rejected),
}

impl LimitExceeded {
    fn limit(&self) -> Option<&'static str> {
        match self {
            Self::Task(why) => why.limit(),
            Self::Store(why) => why.limit(),
        }
    }

    /// Returns the status message of a task that fails for this, and logs the failure.
    pub(crate) fn message(&self, key: &Key) -> Message {
        tracing::warn!(task.id = key.id(), error.kind = "limit", error.cause = %self, "an agent failed");
        match self.limit() {
            Some(limit) => Message::agent(format!("Agent execution failed (limit {limit}): {self}"))
                .with_metadata(&json!({ "limit": limit })),
            None => Message::agent(format!("Agent execution failed: {self}")),
        }
    }
}

impl fmt::Display for LimitExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Task(why) => why.fmt(f),
            Self::Store(why) => write!(f, "a part of its result can't be stored: {why}"),
        }
    }
}

impl Inner {
    /// The server stops: who waits gets the task as it is, and streams are cut. Who waits for its end learns nothing, for
    /// there was none, and nor does whose message is not in it.
    pub(in crate::journal) fn stop(&mut self) -> Wakeups {
        let (mut wake, written) = (Wakeups::default(), self.watermark());
        self.stopped = true;
        self.answer_if(&mut wake, |it| it.said().is_some_and(|it| it <= written));
        self.waiters.clear();
        self.wake_all(&mut wake);
        wake
    }

    /// The server has stopped.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// The store has not committed the pending changes, and may still do so: senders and cancels stop waiting, also
    /// those whose messages are not recorded.
    pub(in crate::journal) fn put_off(&mut self) {
        self.waiters.retain(|(until, _)| matches!(until, WaitCondition::Written(_) | WaitCondition::Turn(_, 0)));
    }

    /// The store is unavailable: senders whose messages are recorded, and cancels, stop waiting for the result.
    pub(in crate::journal) fn put_off_recorded(&mut self) {
        let written = self.watermark();
        self.waiters.retain(|(until, _)| match until {
            WaitCondition::Written(_) => true,
            // A turn that waits for the end of the one before it has no message.
            WaitCondition::Shown(seq) | WaitCondition::Turn(_, seq) => *seq == 0 || *seq > written,
            WaitCondition::End => false,
        });
    }

    /// The store has nothing of what is pending, and gets nothing of it: all is as the store has it.
    pub(in crate::journal) fn take_back(&mut self) -> Wakeups {
        self.queued = false;
        self.untaken = Some(CommitFailure::Away);
        self.lose()
    }

    /// The store has refused it.
    pub(in crate::journal) fn refuse(&mut self, why: &Refused) -> Wakeups {
        match why {
            Refused::Full(full) => self.untaken = Some(CommitFailure::Full(*full)),
            Refused::Rejected(why) => self.untaken = Some(CommitFailure::Rejected(why.limit())),
            Refused::Stale(_) | Refused::Duplicate { .. } => {}
        }
        self.lose()
    }

    /// Drops a change that the store can never commit, with all that was accepted after it, and fails the task: at
    /// once, or by the running turn. The messages at the beginning of the change are kept, unless it has nothing else
    /// or was rejected before; senders of other messages get the error. Returns `None` if nothing can be kept: the task
    /// is then as committed to the store.
    pub(in crate::journal) fn reject(&mut self, held: &LiveRef, change: &Change, why: &Rejected) -> Option<Wakeups> {
        let Commit { expect, events, mut sends, asked, saved, push, .. } = change.commit();
        tracing::warn!(task.id = held.key.id(), error.cause = ?why, "store rejected a change");
        let (begins, is_first) = (expect == Expect::New, self.rejections == 0);
        self.rejections += 1;
        let messages = events.iter().skip(usize::from(begins)).take_while(|event| is_message(event)).cloned();
        let mut kept: Vec<Event> = messages.collect();
        let has_more = kept.len() + usize::from(begins) < events.len() || saved.is_some();
        if !is_first || !has_more {
            kept.clear();
        }
        let (task, first) = if begins {
            (events.first().and_then(Event::whole).cloned().map(Into::into), 1)
        } else {
            (self.shown.clone(), self.watermark())
        };
        let (task, last) = (task?, kept.last().map_or(first, Event::seq));
        // A turn that begins once its message is written.
        let unbegun =
            self.waiters.iter().any(|(until, _)| *until == WaitCondition::Written(self.taken) && self.taken > last);
        if self.rejections > 2 || begins && !(is_first && has_more) || unbegun && !has_more {
            return None;
        }
        let dropped = events.iter().chain(&self.pending).filter(|event| event.seq() > last && is_message(event));
        let dropped: Vec<Seq> = dropped.map(Event::seq).collect();
        self.ahead.rewind(&task, last);
        self.counted = self.shown.as_ref().map(|task| task.state());
        self.time = task.status.as_ref().and_then(|status| status.timestamp.as_ref()).map_or(self.time, millis);
        if begins {
            (self.base, self.begins, self.push) = (Some(task), true, push);
        }
        sends.retain(|send| send.seq <= last);
        (self.pending, self.sends, self.asked) = (kept, sends, asked.filter(|_| is_first));
        (self.head, self.joined, self.in_flight, self.oldest) = (None, 0, 0, None);
        (self.touched, self.unsaved, self.taken) = (false, false, self.taken.min(last));
        self.inbox.retain(|waiting| waiting.event.seq() <= last);
        self.superseded = None;
        // Callers that wait for an event of the agent get the failure instead.
        self.waiters.retain_mut(|(until, _)| match until {
            WaitCondition::Shown(seq) if *seq > last && !dropped.contains(seq) => {
                *seq = last + 1;
                true
            }
            WaitCondition::Shown(seq) | WaitCondition::Written(seq) | WaitCondition::Turn(_, seq) => *seq <= last,
            WaitCondition::End => true,
        });
        self.untaken = Some(CommitFailure::Rejected(why.limit()));
        let why = LimitExceeded::Store(why.clone());
        if !self.running || unbegun || self.ended + 1 < self.turn {
            self.fail(held, &why, last);
        }
        self.exceeded = Some(why);
        Some(self.wake())
    }

    /// Fails a task that has no running turn.
    fn fail(&mut self, held: &LiveRef, why: &LimitExceeded, last: Seq) {
        self.running = false;
        self.inbox.clear();
        // Of a turn that would have begun after the one that was dropped.
        self.waiters.retain(|(until, _)| !matches!(until, WaitCondition::Turn(_, 0)));
        let status = status_update(held, TaskState::Failed, Some(why.message(&held.key)));
        if self.push(status, Mark::ending(Ends::Task)).is_err() {
            tracing::error!(task.id = held.key.id(), event = last, "a task can't fail that has ended");
        }
        self.forget_notes(None);
    }

    /// Another has the task, or nobody. Who waits learns that it is gone, and not what came of it.
    fn lose(&mut self) -> Wakeups {
        let mut wake = Wakeups::default();
        (self.lost, self.in_flight) = (true, 0);
        self.pending.clear();
        self.waiters.clear();
        self.wake_all(&mut wake);
        wake
    }
}

fn is_message(event: &Event) -> bool {
    matches!(event.payload(), Some(Payload::Message(_)))
}
