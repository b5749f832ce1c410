//! What of a file is kept, and for how long: sweeps, step by step, between which others write.

use super::{
    Sqlite,
    sweep::{self, BATCH, OLDEST, SENDS, SweepStep, WITH_LOG, WITH_PUSHES},
    writer::Transaction,
};
use crate::{
    clock::Millis,
    store::{InUse, Key, Retention, SweepResult, Unavailable},
};

/// What is done to some tasks that ended before a time.
type Step = fn(&mut Transaction<'_>, &[i64], Millis) -> rusqlite::Result<SweepStep>;

impl Sqlite {
    /// Tasks that have waited for their clients since before this, at most `limit` after the first `skip`.
    pub(super) async fn waiting(&self, before: Millis, skip: usize, limit: usize) -> Result<Vec<Key>, Unavailable> {
        let found = self.readers.run(move |it| sweep::due(it, sweep::IDLE, before, skip, limit)).await?;
        Ok(found.into_iter().map(|it| it.key).collect())
    }

    /// Does what is due.
    #[expect(clippy::redundant_closure_for_method_calls, reason = "a method by its name is of one transaction only")]
    pub(super) async fn keep(
        &self,
        policy: &Retention,
        now: Millis,
        in_use: InUse<'_>,
    ) -> Result<SweepResult, Unavailable> {
        let mut swept = SweepResult::default();
        if let Some(before) = Retention::cutoff(policy.finished, now) {
            swept.tasks = self.each(&OLDEST, |it, ids, before| it.sweep(ids, before), before, in_use).await?;
        }
        if let Some(before) = Retention::cutoff(policy.logs, now) {
            swept.logs = self.each(&WITH_LOG, |it, ids, before| it.fold(ids, before), before, in_use).await?;
        }
        if let Some(before) = Retention::cutoff(policy.push, now) {
            swept.push_configs = self.all(&WITH_PUSHES, |it, before| it.sweep_pushes(before), before).await?;
        }
        if let Some(before) = Retention::cutoff(policy.sends, now) {
            swept.idempotency_keys = self.all(SENDS, |it, before| it.sweep_sends(before), before).await?;
        }
        Ok(swept)
    }

    /// Takes a step with all that is due and not in use, some at a time.
    async fn each(&self, sql: &'static str, step: Step, before: Millis, in_use: InUse<'_>) -> Result<u64, Unavailable> {
        let (mut tasks, mut skip, batch) = (0, 0, usize::try_from(BATCH).unwrap_or(usize::MAX));
        loop {
            let mut found = self.readers.run(move |it| sweep::due(it, sql, before, skip, batch)).await?;
            let (all, is_last) = (found.len(), found.len() < batch);
            found.retain(|it| !in_use(&it.key));
            let ids: Vec<i64> = found.iter().map(|it| it.id).collect();
            let done = if ids.is_empty() {
                SweepStep::default()
            } else {
                self.writer.run(move |it| step(it, &ids, before)).await?
            };
            tasks += done.tasks;
            if !done.more {
                if is_last {
                    return Ok(tasks);
                }
                // Those that stay are passed.
                skip += all - usize::try_from(done.tasks).unwrap_or(all).min(all);
            }
        }
    }

    /// Takes a step as long as there is more to it. Where there is nothing, who writes hears nothing of it.
    async fn all(
        &self,
        sql: &'static str,
        step: fn(&mut Transaction<'_>, Millis) -> rusqlite::Result<(u64, bool)>,
        before: Millis,
    ) -> Result<u64, Unavailable> {
        if !self.readers.run(move |it| it.prepare_cached(sql)?.exists((before, 1))).await? {
            return Ok(0);
        }
        let mut gone = 0;
        loop {
            let (some, more) = self.writer.run(move |it| step(it, before)).await?;
            gone += some;
            if !more {
                return Ok(gone);
            }
        }
    }
}
