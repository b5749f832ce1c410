//! Stored task counts per owner and state, and per state within large contexts, so that lists need not count rows. The quota
//! of a store is loaded from them.

use std::{
    collections::{HashMap, HashSet},
    mem,
    sync::Arc,
};

use rusqlite::{Connection, Row};

use super::{
    Quota,
    options::Options,
    sweep::TERMINAL,
    transaction::{Counters, WriteTransaction},
    values::unsigned,
};
use crate::{base::sources::mix, store::quota::Count};

/// Number of tasks from which a context has stored counts. Counting the rows of a smaller one is as fast as reading them.
const LARGE: i64 = 1024;

/// Average number of new tasks per check of whether their context has become large.
const CHECK_INTERVAL: u64 = 256;

/// Scope and id of a context.
pub(super) type ContextRef<'a> = (i64, &'a Arc<str>);

/// Loads the stored counts.
pub(super) fn load_quota(db: &Connection, options: &Options) -> rusqlite::Result<Quota> {
    let sums = format!("ifnull(sum(tasks), 0), ifnull(sum(iif({TERMINAL}, tasks, 0)), 0)");
    let count = |row: &Row<'_>, first: usize| {
        let size = |at| row.get(at).map(|n| usize::try_from(unsigned(n)).unwrap_or(usize::MAX));
        Ok(Count { tasks: size(first)?, terminal: size(first + 1)? })
    };
    let total = db.query_row(&format!("SELECT {sums} FROM total"), [], |row| count(row, 0))?;
    let mut owners = HashMap::new();
    if options.max_tasks_per_owner.is_some() {
        let sql = format!("SELECT o.owner, {sums} FROM total t JOIN scope o ON o.id = t.scope GROUP BY o.owner");
        let mut query = db.prepare(&sql)?;
        let counts = query.query_map([], |row| Ok((Arc::from(row.get_ref(0)?.as_str()?), count(row, 1)?)))?;
        owners = counts.collect::<rusqlite::Result<_>>()?;
    }
    let Options { max_tasks, max_tasks_per_owner, max_push_configs_per_owner, .. } = *options;
    Ok(Quota { max_tasks, max_tasks_per_owner, max_push_configs_per_owner, total, owners })
}

impl WriteTransaction<'_> {
    /// Counts a change of a task of this owner for the quota. The values say whether its state was and is terminal; `None`
    /// if it did not or does not exist.
    pub(super) fn count_for_quota(&mut self, owner: &Arc<str>, was: Option<bool>, is: Option<bool>) {
        self.quota.lock().count(owner, was, is);
        self.quota_changes.push((Arc::clone(owner), was, is));
    }

    /// Counts a state transition of a task. `from` is `None` for a new task, and `to` for a deleted one.
    pub(super) fn count_transition(
        &mut self,
        (scope, context): ContextRef<'_>,
        from: Option<i32>,
        to: Option<i32>,
    ) -> rusqlite::Result<()> {
        let key = (scope, Arc::clone(context));
        let large_contexts = self.large_contexts()?;
        let is_large = !large_contexts.is_empty() && large_contexts.contains(&key);
        for (state, delta) in [(from, -1), (to, 1)] {
            if let Some(state) = state {
                *self.counters.totals.entry((scope, state)).or_default() += delta;
                if is_large {
                    *self.counters.large_contexts.entry((scope, Arc::clone(context), state)).or_default() += delta;
                }
            }
        }
        Ok(())
    }

    /// Checks for one of [`CHECK_INTERVAL`] new tasks whether its context has become large. The tasks are selected by a hash
    /// of their row id, which clients can't choose, so that every large context is detected soon.
    pub(super) fn detect_large_context(&mut self, (scope, context): ContextRef<'_>, task: i64) -> rusqlite::Result<()> {
        let key = (scope, Arc::clone(context));
        if !mix(task.unsigned_abs()).is_multiple_of(CHECK_INTERVAL) || self.large_contexts()?.contains(&key) {
            return Ok(());
        }
        let sql = "SELECT count(*) FROM (SELECT 1 FROM task WHERE scope = ? AND context = ? LIMIT ?)";
        let count: i64 = self.db.prepare_cached(sql)?.query_row((scope, &**context, LARGE), |row| row.get(0))?;
        if count == LARGE {
            // Includes the changes of this transaction.
            let sql = "INSERT INTO crowd SELECT scope, context, state, count(*) FROM task
                WHERE scope = ? AND context = ? GROUP BY state";
            self.db.prepare_cached(sql)?.execute((scope, &**context))?;
            self.large_contexts()?.insert(key);
        }
        Ok(())
    }

    fn large_contexts(&mut self) -> rusqlite::Result<&mut HashSet<(i64, Arc<str>)>> {
        if self.large_contexts.is_none() {
            let mut query = self.db.prepare_cached("SELECT DISTINCT scope, context FROM crowd")?;
            let key = |row: &Row<'_>| Ok((row.get(0)?, Arc::from(row.get_ref(1)?.as_str()?)));
            *self.large_contexts = Some(query.query_map([], key)?.collect::<rusqlite::Result<_>>()?);
        }
        Ok(self.large_contexts.get_or_insert_default())
    }

    /// Writes the changes of the counters.
    pub(super) fn write_counters(&mut self) -> rusqlite::Result<()> {
        let Counters { totals, large_contexts } = mem::take(&mut self.counters);
        let sql = "INSERT INTO total VALUES(?1, ?2, ?3) ON CONFLICT DO UPDATE SET tasks = tasks + ?3";
        let mut update = self.db.prepare_cached(sql)?;
        for ((scope, state), delta) in totals.into_iter().filter(|(_, delta)| *delta != 0) {
            update.execute((scope, state, delta))?;
        }
        let sql = "INSERT INTO crowd VALUES(?1, ?2, ?3, ?4) ON CONFLICT DO UPDATE SET tasks = tasks + ?4";
        for ((scope, context, state), delta) in large_contexts.into_iter().filter(|(_, delta)| *delta != 0) {
            self.db.prepare_cached(sql)?.execute((scope, &*context, state, delta))?;
            if delta < 0 {
                // Without counts, the context is no longer large.
                let sql = "DELETE FROM crowd WHERE scope = ? AND context = ? AND state = ? AND tasks = 0";
                self.db.prepare_cached(sql)?.execute((scope, &*context, state))?;
            }
        }
        Ok(())
    }

    /// Deletes the counters of a scope without tasks.
    pub(super) fn delete_counters(&mut self, scope: i64) -> rusqlite::Result<()> {
        for table in ["total", "crowd"] {
            self.db.prepare_cached(&format!("DELETE FROM {table} WHERE scope = ?"))?.execute([scope])?;
        }
        // The remaining changes are those of deleted tasks.
        self.counters.totals.retain(|key, _| key.0 != scope);
        self.counters.large_contexts.retain(|key, _| key.0 != scope);
        self.large_contexts()?.retain(|key| key.0 != scope);
        Ok(())
    }
}
