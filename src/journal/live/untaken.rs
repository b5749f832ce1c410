//! What is pending and does not come to the store: because the server stops, or because the store is away, has no room, or
//! has another's.

use super::Inner;
use crate::{
    journal::wait::{Until, Wake},
    store::{Full, Refused},
};

/// Why the store has nothing of what was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Untaken {
    /// There was no room for the task.
    Full(Full),
    /// It has been away for too long.
    Away,
}

impl Inner {
    /// The server stops: who waits gets the task as it is, and streams are cut. Who waits for its end learns nothing, for
    /// there was none, and nor does whose message is not in it.
    pub(in crate::journal) fn stop(&mut self) -> Wake {
        let (mut wake, written) = (Wake::default(), self.watermark());
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

    /// The store does not take what is pending, and may yet: those who sent it wait no longer.
    pub(in crate::journal) fn put_off(&mut self) {
        let written = self.watermark();
        self.waiters.retain(|(until, _)| match until {
            Until::Written(_) => true,
            Until::Shown(_) | Until::Turn(..) | Until::End => until.said().is_some_and(|it| it <= written),
        });
    }

    /// The store has nothing of what is pending, and gets nothing of it: all is as the store has it.
    pub(in crate::journal) fn take_back(&mut self) -> Wake {
        self.queued = false;
        self.untaken = Some(Untaken::Away);
        self.lose()
    }

    /// The store has refused it.
    pub(in crate::journal) fn refuse(&mut self, why: &Refused) -> Wake {
        if let Refused::Full(it) = why {
            self.untaken = Some(Untaken::Full(*it));
        }
        self.lose()
    }

    /// Another has the task, or nobody. Who waits learns that it is gone, and not what came of it.
    fn lose(&mut self) -> Wake {
        let mut wake = Wake::default();
        (self.lost, self.in_flight) = (true, 0);
        self.pending.clear();
        self.waiters.clear();
        self.wake_all(&mut wake);
        wake
    }
}
