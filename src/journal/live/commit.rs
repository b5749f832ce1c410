//! A task's way to the store and back: what is pending becomes a commit, and what is durable is shown.

use std::{mem, sync::Arc};

use super::{CHECKPOINT, Inner, Live};
use crate::{
    event::{Ends, Event, Position, Seq},
    journal::{
        turns::is_interrupted,
        waiters::{TurnReply, WaitCondition, Wakeups},
    },
    pb::v1::stream_response::Payload,
    store::{Commit, Expect, Row},
    task::{absorb, apply},
};

impl Inner {
    /// There is something that can be taken to the store.
    pub(crate) fn is_dirty(&self) -> bool {
        self.real && !self.lost && (self.touched || self.begins || !self.pending.is_empty())
    }

    /// Something has not been committed yet.
    pub(in crate::journal) fn is_unsettled(&self) -> bool {
        self.queued || self.in_flight > 0 || self.is_dirty()
    }

    /// No turn runs, and all that was said is shown: until somebody sends a message, nothing will happen.
    pub(in crate::journal) fn is_idle(&self) -> bool {
        !self.running && !self.is_unsettled()
    }

    /// With which event all is over that was sent, if it is.
    pub(crate) fn idle_at(&self) -> Option<Seq> {
        (self.is_idle() && self.inbox.is_empty()).then(|| self.watermark())
    }

    /// Takes what is pending to the store. `exclusive`: nobody can look before [`settle`](Self::settle), so that
    /// nothing has to be copied.
    pub(in crate::journal) fn prepare(&mut self, live: &Live, exclusive: bool) -> Commit {
        let mut events = mem::take(&mut self.pending);
        if let Some(task) = self.base.as_ref().filter(|_| mem::take(&mut self.begins)) {
            let at = Position { fence: self.fence, seq: 1 };
            // Where nobody reads it, as a store takes it: who has the task alone need not copy it to go on.
            let first = if exclusive || self.readers > 0 {
                Event::task(at, Ends::Nothing, Arc::clone(task))
            } else {
                Event::encoded_task(at, Ends::Nothing, task)
            };
            self.head.get_or_insert_with(|| first.clone());
            events.insert(0, first);
        }
        (self.in_flight, self.touched, self.oldest) = (events.len(), false, None);
        self.bytes_taken = self.ahead.bytes();
        let ends = self.ahead.state().is_terminal();
        if !exclusive {
            self.since += events.iter().map(Event::weight).sum::<usize>();
        }
        // A store that is immediate has the events themselves, until the end.
        let due = ends || self.since > self.last.max(CHECKPOINT);
        let whole = !ends_within(&events);
        let checkpoint = due.then(|| match (&self.shown, &self.base) {
            (Some(_), _) if exclusive && whole => self.shown.take().unwrap_or_default(),
            (Some(it), _) => Arc::clone(it),
            (None, _) if whole => self.base.take().unwrap_or_default(),
            (None, it) => it.clone().unwrap_or_default(),
        });
        if due {
            (self.last, self.since) = (self.last + self.since, 0);
        }
        let row = self.row(live);
        let expect = self.at.map_or(Expect::New, Expect::At);
        let saved = mem::take(&mut self.unsaved).then(|| self.saved.clone()).flatten();
        let (push, asked, sends) = (self.push.take(), self.asked.take(), mem::take(&mut self.sends));
        let key = live.key.clone();
        Commit { key, expect, fence: self.fence, row, events, checkpoint, saved, asked, sends, push }
    }

    /// What the row says with what is pending.
    pub(super) fn row(&mut self, live: &Live) -> Row {
        let state = self.ahead.state();
        Row {
            context: Arc::clone(&live.context),
            seq: self.ahead.seq(),
            state,
            was: self.counted.replace(state),
            head: self.head.take(),
            time: self.time,
            open: !state.is_terminal() && (self.running || !self.inbox.is_empty()),
            taken: self.taken,
            cancel_requested: self.cancel,
            attempt: self.attempt,
            drained: self.drained,
        }
    }

    /// It is durable: now it is shown.
    pub(in crate::journal) fn settle(&mut self, commit: &Commit, wake: &mut Wakeups) {
        let Commit { events, checkpoint, row, fence, .. } = commit;
        (self.in_flight, self.bytes_durable) = (0, self.bytes_taken);
        self.at = Some(Position { fence: *fence, seq: row.seq });
        match checkpoint {
            Some(task) if !ends_within(events) => {
                self.shown = Some(Arc::clone(task));
                for it in events {
                    self.tell(it, wake);
                }
            }
            _ => {
                for it in events {
                    if it.seq() == 1 {
                        self.shown = self.base.take();
                    } else if let (Some(task), Some(payload)) = (&mut self.shown, it.payload()) {
                        apply(Arc::make_mut(task), payload);
                    }
                    self.tell(it, wake);
                }
            }
        }
        self.keep_newest(events);
        self.wakers.take(&mut wake.wakers);
    }

    /// Gives a list of events that have been settled a second use.
    pub(in crate::journal) fn reuse(&mut self, mut events: Vec<Event>) {
        if self.pending.capacity() == 0 {
            events.clear();
            self.pending = events;
        }
    }

    /// Each who waits gets the task as it is at the end that they wait for.
    fn tell(&mut self, event: &Event, wake: &mut Wakeups) {
        let ends = event.ends();
        if ends != Ends::Nothing {
            self.ended += 1;
        }
        self.turns.see(event, |event| is_interrupted(event.known_payload()));
        if self.waiters.is_empty() {
            return;
        }
        // An agent that goes on while its caller authorises something has interrupted its turn all the same (3.2.2).
        let interrupted = ends == Ends::Nothing && is_interrupted(event.known_payload());
        let over = self.ended + u32::from(interrupted);
        self.answer_if(wake, |until| match until {
            WaitCondition::Shown(it) | WaitCondition::Written(it) => *it <= event.seq(),
            WaitCondition::Turn(it, _) => ends == Ends::Task || *it <= over,
            WaitCondition::End => ends == Ends::Task,
        });
    }

    pub(super) fn answer_if(&mut self, wake: &mut Wakeups, due: impl Fn(&WaitCondition) -> bool) {
        let Some(task) = &self.shown else { return };
        let due = self.waiters.extract_if(.., |it| due(&it.0));
        wake.answers.extend(due.map(|(_, to)| (to, TurnReply::Task(Arc::clone(task)))));
    }
}

/// Folds into a checkpoint what its commit adds.
pub(in crate::journal) fn fold(commit: &mut Commit) {
    if let Some(task) = &mut commit.checkpoint {
        let task = Arc::make_mut(task);
        let events = commit.events.iter().filter(|it| it.seq() > 1);
        events.filter_map(Event::payload).for_each(|it| apply(task, it));
    }
}

/// The same for a store that takes bytes: an artifact is moved into the task that begins and ends with it.
pub(in crate::journal) fn fold_bytes(commit: &mut Commit) {
    if commit.expect != Expect::New {
        return fold(commit);
    }
    let Some(task) = &mut commit.checkpoint else { return };
    let task = Arc::make_mut(task);
    for it in commit.events.iter_mut().filter(|it| it.seq() > 1) {
        let is_artifact = matches!(it.known_payload(), Some(Payload::ArtifactUpdate(_)));
        match if is_artifact { it.take_payload() } else { None } {
            Some(payload) => absorb(task, payload),
            None => it.payload().into_iter().for_each(|it| apply(task, it)),
        }
    }
}

/// A turn ends before the last of these: who waits for it is to see the task as it was then.
fn ends_within(events: &[Event]) -> bool {
    events.iter().rev().skip(1).any(|it| it.ends() != Ends::Nothing)
}
