//! Retention sweeper: periodically deletes expired data, and cancels tasks whose clients do not answer.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::task::AbortOnDropHandle;

use super::{Execution, cluster::Ownership, load};
use crate::{
    base::{
        clock::{self, Millis},
        metric,
    },
    engine::journal::{Journal, LiveRef},
    protocol::{error::Error, task::TaskLimits},
    store::{Retention, SweepResult, TaskKey, Unavailable},
};

/// Minimum interval between two sweeps.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// Number of idle tasks that are canceled at a time.
const BATCH: usize = 64;

impl Execution {
    /// Starts the sweeps, replacing an earlier sweeper. They run until a drain, or until the execution is dropped.
    pub(crate) fn start_sweeper(&self, policy: Retention) {
        let parts = Arc::downgrade(&self.0);
        let sweeps = async move {
            let every = policy.interval.max(MIN_INTERVAL);
            let mut ticks = interval_at(clock::after(Instant::now(), every), every);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let Some(parts) = parts.upgrade() else { return };
                let execution = Self(parts);
                if let Err(cause) = execution.sweep(&policy).await {
                    tracing::warn!(error.cause = %cause, "retention sweep failed");
                }
            }
        };
        *self.0.sweeper.lock() = Some(AbortOnDropHandle::new(tokio::spawn(sweeps)));
    }

    /// Runs one sweep.
    async fn sweep(&self, policy: &Retention) -> Result<(), Unavailable> {
        let (journal, started) = (&self.0.journal, Instant::now());
        if let Some((shared, _)) = journal.shared()
            && !shared.lead("sweep", policy.interval.max(MIN_INTERVAL) * 2).await?
        {
            // Another replica does it.
            return Ok(());
        }
        let now = journal.sources().clock.millis();
        let canceled = match Retention::cutoff(policy.idle, now) {
            // Before the recovery, tasks with unfinished turns look idle.
            Some(before) if self.0.wait_for_recovery().await.is_ok() => {
                let own = |key: TaskKey| {
                    let execution = self.clone();
                    async move {
                        match execution.own(&key).await? {
                            Ownership::Here(live) => Ok(Some(live)),
                            Ownership::Elsewhere => Ok(None),
                        }
                    }
                };
                end_idle_tasks(journal, before, own).await?
            }
            Some(_) | None => 0,
        };
        let swept = journal.store().sweep(policy, now, &|key| journal.get(key).is_some()).await?;
        let SweepResult { tasks, logs, push_configs, idempotency_keys } = swept;
        metric::SWEEP_DURATION.observe(None, &[], started.elapsed());
        for (what, count) in [("tasks", tasks), ("logs", logs), ("push", push_configs), ("keys", idempotency_keys)] {
            metric::SWEEP_DELETED.add(None, &[what], count);
        }
        if canceled > 0 || swept != SweepResult::default() {
            tracing::info!(
                tasks,
                logs,
                push_configs,
                idempotency_keys,
                canceled,
                "retention sweep deleted expired data"
            );
            self.0.refresh_contexts().await;
        }
        Ok(())
    }
}

/// Cancels the tasks that have waited for their clients since before this time. They are not deleted: clients can read them
/// for the retention time of ended tasks. A task that can't be read is skipped.
pub(crate) async fn end_idle(journal: &Arc<Journal>, bounds: TaskLimits, before: Millis) -> Result<usize, Unavailable> {
    let load = |key: TaskKey| {
        let journal = Arc::clone(journal);
        async move { load(&journal, &key, bounds).await.map(Some) }
    };
    end_idle_tasks(journal, before, load).await
}

/// Cancels idle tasks, which it gets from `own`. That has none for a task which another process runs.
async fn end_idle_tasks<F: Future<Output = Result<Option<LiveRef>, Error>>>(
    journal: &Journal,
    before: Millis,
    own: impl Fn(TaskKey) -> F,
) -> Result<usize, Unavailable> {
    let (mut ended, mut skipped, mut unreadable) = (0, 0, None);
    loop {
        let idle = journal.store().idle_tasks(before, skipped, BATCH).await?;
        let outcomes = join_all(idle.iter().map(|key| end_if_idle(own(key.clone()), before))).await;
        for (key, outcome) in idle.iter().zip(outcomes) {
            match outcome {
                Ok(true) => ended += 1,
                // The client has answered in the meantime.
                Ok(false) => skipped += 1,
                Err(cause) => {
                    skipped += 1;
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
        tracing::warn!(tasks, task.id = key.id(), error.cause = ?cause, "idle tasks can't be canceled; the first is logged");
    }
    Ok(ended)
}

/// Cancels a task if it still waits for its client. Returns whether it did.
async fn end_if_idle(own: impl Future<Output = Result<Option<LiveRef>, Error>>, before: Millis) -> Result<bool, Error> {
    let Some(live) = own.await? else { return Ok(false) };
    match live.cancel_idle(before) {
        Some(ended) => Ok(ended.await.is_ok()),
        None => Ok(false),
    }
}
