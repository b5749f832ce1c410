//! Retry of commits that the store did not acknowledge, with exponential backoff.
//!
//! The outcome of such a commit is unknown. Each task is retried on its own, so that one change can't block others.
//! After [`Journal::commit_timeout`], or at once if the store has a fault, a change is abandoned if that is safe (see
//! [`abandon`]). Otherwise waiting callers get an error that the outcome is unknown, and the retries continue.

use std::{mem, slice, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Journal, LiveRef};
use crate::{
    base::{faults::Fault, retry::Backoff},
    store::Commit,
};

/// Delays between retries, without jitter: few processes use the store.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(10), longest: Duration::from_secs(1) };

/// Time for which an unavailable store is probed after the last change was abandoned. After that, new work probes it.
const PROBE_FOR: Duration = Duration::from_mins(1);

/// Unacknowledged changes of a lane, and the schedule of their retries.
#[derive(Default)]
pub(super) struct CommitRetry {
    /// Task, change, and the beginning of the outage.
    changes: Vec<(LiveRef, Commit, Instant)>,
    next_attempt: Option<Instant>,
    /// Number of successive retries.
    retries: u32,
    /// Set once every change has been abandoned: the store is probed until then, so that its recovery is noticed.
    probe_until: Option<Instant>,
}

impl CommitRetry {
    /// Returns whether there is anything to retry or probe.
    pub(super) fn is_active(&self) -> bool {
        !self.changes.is_empty() || self.probe_until.is_some()
    }

    /// Returns the time of the next retry.
    pub(super) fn next_attempt(&self) -> Instant {
        self.next_attempt.unwrap_or_else(Instant::now)
    }

    /// Adds changes that were not acknowledged in an outage since this time.
    pub(super) fn push(&mut self, batch: Vec<LiveRef>, changes: &[Commit], since: Instant) {
        let next = Instant::now() + BACKOFF.without_jitter(self.retries);
        let planned = self.next_attempt.filter(|_| !self.changes.is_empty());
        self.next_attempt = Some(planned.map_or(next, |planned| planned.min(next)));
        self.changes.extend(batch.into_iter().zip(changes).map(|(task, change)| (task, change.clone(), since)));
    }

    /// Retries every change, one commit per task.
    pub(super) async fn retry_all(&mut self, journal: &Journal) {
        for (task, change, since) in mem::take(&mut self.changes) {
            let change = Arc::from([change]);
            if journal.commit(slice::from_ref(&task), &change, true).await.is_ok() {
                self.probe_until = None;
                continue;
            }
            let expired = since.elapsed() >= journal.commit_timeout();
            if (expired || journal.has_fault()) && abandon(journal, &task, &change[0], expired).await {
                self.probe_until = Some(Instant::now() + PROBE_FOR);
            } else {
                self.changes.push((task, change[0].clone(), since));
            }
        }
        if journal.is_down_for(journal.commit_timeout()) {
            journal.fail_recorded_waiters();
        }
        if let (true, Some(until)) = (self.changes.is_empty(), self.probe_until) {
            if journal.store().check().await.is_ok() {
                journal.end_outage();
                self.probe_until = None;
            } else if until <= Instant::now() {
                // Lets new work probe the store, which may still be unavailable.
                journal.outage.lock().since = None;
                self.probe_until = None;
            }
        }
        self.retries = if self.is_active() { self.retries.saturating_add(1) } else { 0 };
        let now = Instant::now();
        let next = now + BACKOFF.without_jitter(self.retries);
        let ends = self.changes.iter().map(|(.., since)| *since + journal.commit_timeout()).filter(|end| *end > now);
        self.next_attempt = Some(ends.fold(next, Instant::min));
    }
}

/// Abandons a change: drops the task from memory, so that the next access loads what the store has, and fails its
/// waiting senders, who may retry. Returns whether it did.
///
/// This is safe only if the store holds nothing of the change, and no turn is open in what it holds. Otherwise, once
/// `expired`, waiting callers get an error that the outcome is unknown.
async fn abandon(journal: &Journal, task: &LiveRef, change: &Commit, expired: bool) -> bool {
    let is_safe = is_absent(journal, task, change).await;
    let mut inner = task.lock();
    if !is_safe {
        if expired {
            inner.fail_waiters();
        }
        return false;
    }
    // Removed from the map before waiters are woken: a new request must load the task from the store.
    drop(journal.remove_if(&task.0, || true));
    let wakeups = inner.abandon();
    drop(inner);
    task.send_wakeups(wakeups);
    true
}

/// Returns whether the store holds nothing of a change, and no turn is open in what it holds. A connection of a shared store that
/// was cut may still commit the change later, unless the store is told not to.
async fn is_absent(journal: &Journal, task: &LiveRef, change: &Commit) -> bool {
    if let Some((shared, _)) = journal.shared()
        && !shared.faults().has(Fault::AbandonWithoutBurn)
    {
        return shared.burn(&task.key, &change.expect).await.unwrap_or(false);
    }
    let stored = journal.store().load(&task.key).await;
    match (stored, change.expected_position()) {
        (Ok(None), None) => true,
        (Ok(Some(stored)), Some(at)) => stored.position == at && !stored.row.open,
        (Ok(_) | Err(_), _) => false,
    }
}
