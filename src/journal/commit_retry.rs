//! What the store did not take: it is tried again, and when that was in vain for long enough, it is taken back.

use std::{mem, slice, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Journal, LiveRef, PATIENCE};
use crate::store::Change;

/// After this what is without an answer is tried again; then twice as late each time, up to a second.
const RETRY: Duration = Duration::from_millis(10);

/// A store that says for so long that it takes nothing is asked by new work.
const ASKED: Duration = Duration::from_mins(1);

/// What a lane has written and has no answer to.
pub(super) struct CommitRetry {
    changes: Vec<(LiveRef, Change, Instant)>,
    due: Instant,
    wait: Duration,
    /// All of them were taken back: nobody is left who would learn that the store is there again. It is asked until then.
    asked_until: Option<Instant>,
}

impl Default for CommitRetry {
    fn default() -> Self {
        Self { changes: Vec::new(), due: Instant::now(), wait: RETRY, asked_until: None }
    }
}

impl CommitRetry {
    pub(super) fn is_there_any(&self) -> bool {
        !self.changes.is_empty() || self.asked_until.is_some()
    }

    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// These were tried for the first time.
    pub(super) fn failed(&mut self, group: Vec<LiveRef>, changes: &[Change]) {
        let now = Instant::now();
        self.changes.extend(group.into_iter().zip(changes).map(|(it, change)| (it, change.clone(), now)));
        self.due = now + self.wait;
    }

    /// Tries them, one by one: what is wrong with one of them is not the others' misfortune.
    pub(super) async fn try_all(&mut self, journal: &Journal) {
        for (held, change, since) in mem::take(&mut self.changes) {
            let one = Arc::from([change]);
            if journal.write(slice::from_ref(&held), &one, true).await.is_ok() {
                self.asked_until = None;
                continue;
            }
            let expired = since.elapsed() >= PATIENCE;
            if (expired || journal.has_fault()) && take_back(journal, &held, &one[0], expired).await {
                self.asked_until = Some(Instant::now() + ASKED);
            } else {
                self.changes.push((held, one[0].clone(), since));
            }
        }
        if journal.is_down_for(PATIENCE) {
            journal.put_off_recorded();
        }
        if let (true, Some(until)) = (self.changes.is_empty(), self.asked_until) {
            if journal.store().check().await.is_ok() {
                journal.is_up();
                self.asked_until = None;
            } else if until <= Instant::now() {
                journal.probe();
                self.asked_until = None;
            }
        }
        self.wait = if self.is_there_any() { (self.wait * 2).min(Duration::from_secs(1)) } else { RETRY };
        self.due = Instant::now() + self.wait;
    }
}

/// Takes back a change, and says whether it did: where the store has nothing of it, and nobody is at work on what the store
/// has. Then nothing is half done, and who sent it may send it again. Of anything else its senders are told that it is not
/// written yet, once its time has `expired`.
async fn take_back(journal: &Journal, held: &LiveRef, change: &Change, expired: bool) -> bool {
    let there = journal.store().load(&held.key).await;
    let whole = match (there, change.expected()) {
        (Ok(None), None) => true,
        (Ok(Some(it)), Some(at)) => it.at == at && !it.row.open,
        (Ok(_) | Err(_), _) => false,
    };
    let mut inner = held.lock();
    if !whole {
        if expired {
            inner.put_off();
        }
        return false;
    }
    // Out of the map first: whoever comes next loads what the store has.
    drop(journal.remove(&held.0));
    let wake = inner.take_back();
    drop(inner);
    held.fire(wake);
    true
}
