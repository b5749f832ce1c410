//! Changes of the role of a live task over a store that several processes share: it follows another runner, becomes the runner, and
//! releases its ownership with the commit that closes it.

use std::{convert::Infallible, future::ready, mem, sync::Arc};

use tokio::sync::oneshot;

use super::{
    Journal, LiveRef, LiveTask, TaskRole,
    live::LiveState,
    waiters::{TurnReply, WaitCondition, Wakeups},
};
use crate::{
    base::faults::Fault,
    protocol::{
        event::{Event, Fence, Position},
        pb::v1::Task,
    },
    store::{Advance, Commit, TaskKey},
};

impl Journal {
    /// Inserts a loaded task. If it is in memory already, that gets the loaded state, and keeps its readers and waiters.
    pub(crate) async fn put(self: &Arc<Self>, key: &TaskKey, live: LiveTask) -> LiveRef {
        let mut loaded = Some(live);
        let insert = || match loaded.take() {
            Some(live) => ready(Ok::<_, Infallible>(live)),
            None => unreachable!("a task is inserted once"),
        };
        let Ok(task) = self.get_or_load(key, insert).await;
        if let Some(live) = loaded.filter(|_| !self.has_fault_planted(Fault::KeepFollowerState)) {
            let mut loaded = live.into_state();
            let wakeups = task.lock().replace(&mut loaded);
            task.send_wakeups(wakeups);
        }
        task
    }
}

impl LiveRef {
    /// Returns whether this process may change the task: it runs the task, or the task has ended.
    pub(crate) fn is_owned(&self) -> bool {
        let state = self.lock();
        !state.is_lost && (state.is_runner() || state.has_ended())
    }

    /// Waits while the commit that ends the ownership of the task is in flight.
    pub(crate) async fn wait_until_released(&self) {
        loop {
            let changed = {
                let state = self.lock();
                if state.is_lost || !matches!(state.role, TaskRole::Releasing(_)) {
                    return;
                }
                self.changed().notified()
            };
            changed.await;
        }
    }

    /// Returns the position of a follower. `None` for another task.
    pub(crate) fn followed_position(&self) -> Option<Position> {
        let state = self.lock();
        let is_follower = state.role == TaskRole::Follower && !state.is_lost;
        state.committed().filter(|_| is_follower).map(|(_, at)| at)
    }

    /// Returns whether this process follows the open turn of another one. The turns in memory are not those of the log then.
    pub(crate) fn follows_turn(&self) -> bool {
        let state = self.lock();
        state.role == TaskRole::Follower && state.durable.is_open
    }

    /// Applies a change that another process has committed. Returns whether that is all of it; `None` if events are missing, so
    /// that the task has to be loaded.
    pub(crate) fn follow(&self, change: &Advance) -> Option<bool> {
        let mut state = self.lock();
        let Some((_, at)) = state.committed().filter(|_| state.role == TaskRole::Follower) else {
            return Some(true);
        };
        let new: Vec<Event> = change.events.iter().filter(|event| event.seq() > at.seq).cloned().collect();
        let last = new.last().map_or(at, Event::position);
        if new.first().is_some_and(|first| first.seq() != at.seq + 1) || new.is_empty() && change.position.seq > at.seq
        {
            return None;
        }
        let is_whole = last.seq == change.position.seq;
        if is_whole && change.position.fence < last.fence || last.seq > change.position.seq {
            // Older than what is known.
            return Some(true);
        }
        let mut wakeups = Wakeups::default();
        state.durable.is_open = !is_whole || change.row.open;
        state.follow(if is_whole { change.position } else { last }, &new, &mut wakeups);
        drop(state);
        self.send_wakeups(wakeups);
        Some(is_whole)
    }

    /// Returns the committed task if it has ended, and otherwise a receiver that completes with its end.
    pub(crate) fn end_or_wait(&self) -> Result<Arc<Task>, oneshot::Receiver<TurnReply>> {
        let mut state = self.lock();
        match state.committed().filter(|(task, _)| task.state().is_terminal()) {
            Some((task, _)) => Ok(Arc::clone(task)),
            None => Err(state.wait_for(WaitCondition::TaskEnd)),
        }
    }

    /// Wakes readers and callers, which then check what they wait for.
    pub(crate) fn wake(&self) {
        self.send_wakeups(Wakeups { changed: true, ..Wakeups::default() });
    }

    /// Waits for the next change of the task.
    pub(crate) fn next_change(&self) -> tokio::sync::futures::OwnedNotified {
        Arc::clone(self.changed()).notified_owned()
    }

    /// Returns the number of the last mail that this process has accepted.
    pub(crate) fn mail_read(&self) -> u64 {
        self.lock().accepted.mail_read
    }

    /// Commits that mail up to this number is read. Returns false if this process does not run the task.
    pub(crate) fn skip_mail(&self, number: u64) -> bool {
        let mut state = self.lock();
        let is_runner = state.is_runner() && !state.is_lost;
        if is_runner {
            (state.accepted.mail_read, state.accepted.row_changed) = (number, true);
            self.journal().flush(self, state);
        }
        is_runner
    }
}

impl LiveState {
    /// Returns whether this process runs the task, and does not end that with a commit in flight.
    pub(super) fn is_runner(&self) -> bool {
        matches!(self.role, TaskRole::Runner(_))
    }

    /// Returns whether the committed task is that of the store, as far as this process can know.
    pub(super) fn has_newest(&self) -> bool {
        self.is_runner() && !self.is_lost && !self.has_events_in_flight()
    }

    /// Returns whether readers or callers wait for changes of another process.
    pub(super) fn is_followed(&self) -> bool {
        self.role == TaskRole::Follower
            && !self.is_lost
            && !self.has_ended()
            && (self.waiters.readers > 0 || !self.waiters.conditions.is_empty())
    }

    /// Returns the fence of a task whose ownership has to be released when it leaves memory.
    pub(super) fn unreleased(&self) -> Option<Fence> {
        let TaskRole::Runner(fence) = self.role else { return None };
        (!self.is_lost && self.committed().is_some()).then_some(fence)
    }

    /// Notes that a commit ends the ownership of the task, if it closes the task: until its outcome is known, nothing is
    /// accepted.
    pub(super) fn begin_release(&mut self, commit: &Commit) {
        if let TaskRole::Runner(fence) = self.role
            && !commit.row.open
        {
            self.role = TaskRole::Releasing(fence);
        }
    }

    /// Ends the ownership after a commit that releases it, unless mail is unread.
    pub(super) fn end_release(&mut self, is_kept: bool, is_open: bool) {
        if let TaskRole::Releasing(fence) = self.role {
            self.role = if is_kept { TaskRole::Runner(fence) } else { TaskRole::Follower };
            self.durable.is_open = is_open;
        }
    }

    /// Replaces the state by one that was loaded later. Keeps readers and waiters; the numbers of turns go on, so that updates
    /// of an earlier turn can't be taken for those of the next one. A follower replaces only an older one.
    fn replace(&mut self, loaded: &mut Self) -> Wakeups {
        if loaded.role == TaskRole::Follower
            && (self.role != TaskRole::Follower || self.watermark() >= loaded.watermark())
        {
            return Wakeups::default();
        }
        let number = self.turn.number.max(self.turn.ended);
        loaded.turn.earlier = loaded.turn.earlier.saturating_sub(number);
        (loaded.turn.number, loaded.turn.ended) = (number, number);
        loaded.waiters = mem::take(&mut self.waiters);
        let mut wakeups = Wakeups::all();
        mem::swap(self, loaded);
        if self.has_ended() {
            self.reply_if(&mut wakeups, |_| true);
        }
        wakeups
    }
}
