//! What is not kept for ever: every so often, what has been kept for long enough is deleted, and tasks whose clients do
//! not answer end.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::{Execution, Parts, hold};
use crate::{
    agent::Agent,
    clock::{self, Millis},
    error::Error,
    event::{Ends, Mark},
    journal::{Journal, Phase, status_update, waiters::WaitCondition},
    pb::v1::{Message, TaskState},
    store::{Key, Retention, SweepResult, Unavailable},
    task::TaskLimits,
};

/// Not more often than this, whatever is said.
const OFTEN: Duration = Duration::from_secs(1);

/// So many tasks are ended at a time.
const BATCH: usize = 64;

impl<A: Agent> Execution<A> {
    /// Sees to it from now on, until the server is about to stop or nobody has this any more.
    pub(crate) fn keep(&self, policy: Retention) {
        let parts = Arc::downgrade(&self.0);
        let keeping = async move {
            let every = policy.interval.max(OFTEN);
            let mut beat = interval_at(clock::after(Instant::now(), every), every);
            beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                beat.tick().await;
                let Some(parts) = parts.upgrade() else { return };
                let execution = Self(parts);
                if let Err(cause) = execution.sweep(&policy).await {
                    tracing::warn!(error.cause = %cause, "what has been kept for long enough can't be deleted yet");
                }
            }
        };
        // Whoever asks twice, means the second.
        let before = self.0.keeping.lock().replace(tokio::spawn(keeping).abort_handle());
        if let Some(it) = before {
            it.abort();
        }
    }

    /// Does what is due now.
    async fn sweep(&self, policy: &Retention) -> Result<(), Unavailable> {
        let journal = &self.0.journal;
        let now = journal.clock().millis();
        let canceled = match Retention::cutoff(policy.idle, now) {
            // What is still to be taken up is not known to be idle.
            Some(before) if self.0.recovered().await.is_ok() => {
                end_idle(journal, self.0.limits.bounds(), before).await?
            }
            Some(_) | None => 0,
        };
        let swept = journal.store().sweep(policy, now, &|it| journal.find(it).is_some()).await?;
        if canceled > 0 || swept != SweepResult::default() {
            let SweepResult { tasks, logs, push_configs: pushes, idempotency_keys: sends } = swept;
            tracing::info!(tasks, logs, pushes, sends, canceled, "deleted what was kept for long enough");
            self.0.read_contexts().await;
        }
        Ok(())
    }
}

/// Ends the tasks that have waited for their clients since before this. They are not deleted: clients can read how a
/// task ended for the retention time of ended tasks. A task that can't be read is skipped.
pub(crate) async fn end_idle(journal: &Arc<Journal>, bounds: TaskLimits, before: Millis) -> Result<usize, Unavailable> {
    let (mut ended, mut passed, mut unreadable) = (0, 0, None);
    loop {
        let idle = journal.store().idle_tasks(before, passed, BATCH).await?;
        let outcomes = join_all(idle.iter().map(|it| end_if_idle(journal, bounds, it, before))).await;
        for (key, outcome) in idle.iter().zip(outcomes) {
            match outcome {
                Ok(true) => ended += 1,
                // In use again.
                Ok(false) => passed += 1,
                Err(cause) => {
                    passed += 1;
                    let (_, _, tasks) = unreadable.get_or_insert((key.clone(), cause, 0_usize));
                    *tasks += 1;
                }
            }
        }
        if idle.len() < BATCH {
            break;
        }
    }
    if let Some((key, cause, tasks)) = unreadable {
        tracing::warn!(tasks, task.id = key.id(), error.cause = ?cause, "idle tasks could not be ended; the first of them");
    }
    Ok(ended)
}

async fn end_if_idle(journal: &Arc<Journal>, bounds: TaskLimits, key: &Key, before: Millis) -> Result<bool, Error> {
    let held = hold(journal, key, bounds).await?;
    let ended = {
        let mut inner = held.lock();
        let is_idle = !inner.lost
            && !inner.running
            && journal.phase() == Phase::Open
            && inner.ahead.state().is_interrupted()
            && inner.shown().is_some_and(|it| {
                let time = it.0.status.as_ref().and_then(|it| it.timestamp.as_ref()).map(clock::millis);
                time.is_some_and(|it| it < before)
            });
        let why = Message::agent("No answer came for so long that this is over.");
        let status = status_update(&held, TaskState::Canceled, Some(why));
        if !is_idle || inner.push(status, Mark::ending(Ends::Task)).is_err() {
            return Ok(false);
        }
        let ended = inner.wait(WaitCondition::End);
        journal.flush(&held, inner);
        ended
    };
    Ok(ended.await.is_ok())
}

impl<A> Parts<A> {
    /// Deletes nothing more.
    pub(super) fn keep_no_more(&self) {
        if let Some(it) = self.keeping.lock().take() {
            it.abort();
        }
    }
}
