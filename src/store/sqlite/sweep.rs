//! Deletion of tasks: retention sweeps of expired data, and evictions for the quota. Each step follows a partial index that
//! contains only candidates, and deletes a small batch per transaction, so that commits do not wait.

use std::{
    collections::HashSet,
    sync::{Arc, LazyLock, atomic::Ordering},
};

use rusqlite::{Connection, OptionalExtension as _, Params, Row};

use super::{
    InUse, Millis, Retention, Sqlite, SweepResult, TaskKey, TaskState, Unavailable, failpoint, read,
    transaction::{MAX_UNREADABLE, WriteTransaction},
    values::{is_corruption, is_damage, is_unreadable, log_row_id, unsigned},
};
use crate::store::{STORE_FULL, TurnRecord, log_rows::split_task, turn_record::MAX_TURNS};

/// Maximum number of tasks per transaction.
const TASK_BATCH: i64 = 64;

/// Maximum number of log rows or idempotency keys per transaction.
const ROW_BATCH: i64 = 1024;

/// Condition for terminal states. SQLite uses the partial indexes only for queries with this exact condition.
pub(super) const TERMINAL: &str = "state >= 3 AND state <= 7 AND state <> 6";

/// Condition for tasks without push notifications that became due at `?3` or later and are still to be delivered.
const NOT_KEPT: &str = "(pushes = 0 OR NOT EXISTS (
    SELECT 1 FROM push p WHERE p.task = task.id AND p.due IS NOT NULL AND p.pending >= ?3))";

/// Order and number of selected tasks.
const OLDEST_FIRST: &str = "ORDER BY time LIMIT ?2";

/// Selects tasks in a terminal state that meet a condition.
fn select_terminal(condition: &str) -> String {
    format!(
        "SELECT id, scope, key, time FROM task
         WHERE {TERMINAL} AND {condition} AND time < ?1 AND time >= ?4 AND {NOT_KEPT}"
    )
}

/// Selects tasks in a terminal state, oldest first, with and without a log: each group is sorted in the index.
pub(super) static OLDEST: LazyLock<String> = LazyLock::new(|| {
    let selects = ["folded = 0", "folded = 1"].map(select_terminal);
    format!("{} {OLDEST_FIRST}", selects.join(" UNION ALL "))
});

/// Selects the oldest task of an owner in a terminal state, except those in a JSON array and those that [`NOT_KEPT`]
/// excludes: the first one of each tenant and state, and the oldest of those.
static OLDEST_OF_OWNER: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT id FROM (
            SELECT (
                SELECT task.id FROM task WHERE task.scope = o.id AND task.state = s.column1
                AND task.id NOT IN (SELECT value FROM json_each(?2)) AND task.time >= ?4 AND {NOT_KEPT}
                ORDER BY task.time LIMIT 1
            ) AS first
            FROM scope o, (VALUES (3), (4), (5), (7)) s WHERE o.owner = ?1
        ) JOIN task ON id = first ORDER BY time LIMIT 1"
    )
});

/// Selects tasks in a terminal state that have a log.
pub(super) static WITH_LOG: LazyLock<String> =
    LazyLock::new(|| format!("{} {OLDEST_FIRST}", select_terminal("folded = 0")));

/// Condition for tasks without dead letters from `?1` or later.
const NO_NEW_DEAD_LETTER: &str = "NOT EXISTS (SELECT 1 FROM push d WHERE d.task = task.id AND d.dead >= ?1)";

/// Selects tasks in a terminal state that have or had push configurations, which can all be deleted.
pub(super) static WITH_PUSHES: LazyLock<String> = LazyLock::new(|| {
    let selected = select_terminal(&format!("pushes > 0 AND {NO_NEW_DEAD_LETTER}"));
    format!("{selected} {OLDEST_FIRST}")
});

/// Selects tasks that wait for their clients and have no turn.
pub(super) const IDLE: &str =
    "SELECT id, scope, key, time FROM task WHERE open = 0 AND state IN (6, 8) AND time < ?1 ORDER BY time LIMIT ?2";

/// Counts the tasks that [`IDLE`] selects.
pub(super) const COUNT_IDLE: &str = "SELECT count(*) FROM task WHERE open = 0 AND state IN (6, 8) AND time < ?";

/// Selects idempotency keys, oldest first.
pub(super) const SENDS: &str = "SELECT scope, key FROM send WHERE time < ? ORDER BY time LIMIT ?";

/// Task that may be deleted, unless it is in use.
pub(super) struct Candidate {
    id: i64,
    pub(super) key: TaskKey,
    /// Time at which the task reached its state.
    time: Millis,
}

/// Result of a step for a batch of tasks.
#[derive(Debug, Default)]
pub(super) struct StepResult {
    /// Completed tasks.
    completed: Vec<i64>,
    /// Number of tasks or push configurations that were deleted, or of tasks without their log.
    count: u64,
    /// The batch was not completed, because a task has many log rows.
    pub(super) incomplete: bool,
}

/// Bounds of the data that can be deleted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expiry {
    /// Tasks can be deleted that reached a terminal state before this time.
    before: Millis,
    /// Tasks are kept while push notifications that became due at this time or later are still to be delivered.
    kept_since: Millis,
}

impl Expiry {
    /// Any task in a terminal state, except those with undelivered push notifications.
    const DELIVERED: Self = Self { before: Millis::MAX, kept_since: Millis::MIN };
    /// Any task in a terminal state.
    pub(super) const ANY: Self = Self { before: Millis::MAX, kept_since: Millis::MAX };
}

/// Step of a sweep for a batch of tasks.
type Step = fn(&mut WriteTransaction<'_>, &[i64], Expiry) -> rusqlite::Result<StepResult>;

/// Task that is to be deleted. In a terminal state, unless all data of its owner is deleted.
struct DeletedTask {
    id: i64,
    scope: i64,
    context: Arc<str>,
    state: i32,
    owner: Arc<str>,
    /// Time at which it reached its state.
    time: Millis,
    /// Push notifications of the task are still to be delivered.
    has_undelivered: bool,
}

/// Returns at most `limit` candidates of a query, after the first `skip`. Unreadable rows are skipped, for example a task
/// without an owner, and `a2a admin check` reports them.
pub(super) fn candidates(
    db: &Connection,
    sql: &str,
    bounds: impl Params,
    skip: usize,
    limit: usize,
) -> rusqlite::Result<Vec<Candidate>> {
    let mut scope_query = db.prepare_cached("SELECT owner, tenant FROM scope WHERE id = ?")?;
    let mut query = db.prepare_cached(sql)?;
    let found = query.query_map(bounds, |row| {
        let scope = scope_query.query_row([row.get::<_, i64>(1)?], read::scope);
        let key = TaskKey::new(&Arc::new(scope?), row.get_ref(2)?.as_str()?);
        Ok(Candidate { id: row.get(0)?, key, time: row.get(3)? })
    })?;
    found.filter(|candidate| !candidate.as_ref().is_err_and(is_unreadable)).skip(skip).take(limit).collect()
}

impl Sqlite {
    /// Deletes all expired data.
    pub(super) async fn delete_expired(
        &self,
        policy: &Retention,
        now: Millis,
        in_use: InUse<'_>,
    ) -> Result<SweepResult, Unavailable> {
        let mut result = SweepResult::default();
        let kept_since = Retention::cutoff(policy.undelivered, now).unwrap_or(Millis::MIN);
        let expiry = |retention| Retention::cutoff(retention, now).map(|before| Expiry { before, kept_since });
        if let Some(expiry) = expiry(policy.finished) {
            let step: Step = |transaction, ids, expiry| transaction.delete_tasks(ids, expiry);
            result.tasks = self.sweep_tasks(&OLDEST, step, expiry, in_use).await?;
        }
        if let Some(expiry) = expiry(policy.logs) {
            let step: Step = |transaction, ids, expiry| transaction.delete_logs(ids, expiry);
            result.logs = self.sweep_tasks(&WITH_LOG, step, expiry, in_use).await?;
        }
        if let Some(expiry) = expiry(policy.push) {
            let step: Step = |transaction, ids, expiry| transaction.delete_push_configs(ids, expiry);
            result.push_configs = self.sweep_tasks(&WITH_PUSHES, step, expiry, &|_| false).await?;
        }
        if let Some(before) = Retention::cutoff(policy.idempotency_keys, now) {
            result.idempotency_keys = self.sweep_sends(before).await?;
        }
        if self.health.is_out_of_space.swap(false, Ordering::Relaxed) {
            result.logs += self.delete_undelivered_logs(now, in_use).await?;
        }
        Ok(result)
    }

    /// Applies a step to all candidates that are not in use, in batches. Returns the sum of its counts.
    async fn sweep_tasks(
        &self,
        sql: &'static str,
        step: Step,
        expiry: Expiry,
        in_use: InUse<'_>,
    ) -> Result<u64, Unavailable> {
        let (mut count, batch) = (0, usize::try_from(TASK_BATCH).unwrap_or(usize::MAX));
        // Each batch begins at the time of the last task of the batch before, so that no batch reads the tasks again that
        // the earlier ones left. `skip` is the number of those with that time.
        let (mut from, mut skip) = (Millis::MIN, 0);
        loop {
            let bounds = (expiry.before, -1, expiry.kept_since, from);
            let found = self.readers.run(move |db| candidates(db, sql, bounds, skip, batch)).await?;
            let Some(last) = found.last().map(|candidate| candidate.time) else { return Ok(count) };
            let candidates = found.iter().filter(|candidate| !in_use(&candidate.key));
            let ids: Vec<i64> = candidates.map(|candidate| candidate.id).collect();
            let result = if ids.is_empty() {
                StepResult::default()
            } else {
                self.writer.run(move |transaction| step(transaction, &ids, expiry)).await?
            };
            count += result.count;
            if !result.incomplete {
                if found.len() < batch {
                    return Ok(count);
                }
                // Completed tasks are no longer selected.
                let is_left = |it: &&Candidate| it.time == last && !result.completed.contains(&it.id);
                skip = if last == from { skip } else { 0 } + found.iter().filter(is_left).count();
                from = last;
            }
        }
    }

    /// Deletes idempotency keys from before a time. The writer is not involved if there are none.
    async fn sweep_sends(&self, before: Millis) -> Result<u64, Unavailable> {
        if !self.readers.run(move |db| db.prepare_cached(SENDS)?.exists((before, 1))).await? {
            return Ok(0);
        }
        let mut total = 0;
        loop {
            let (deleted, has_more) = self.writer.run(move |transaction| transaction.delete_sends(before)).await?;
            total += deleted;
            if !has_more {
                return Ok(total);
            }
        }
    }
}

impl WriteTransaction<'_> {
    /// Deletes those of the tasks that are expired. An unreadable one is skipped.
    fn delete_tasks(&mut self, ids: &[i64], expiry: Expiry) -> rusqlite::Result<StepResult> {
        let (mut scopes, mut result, mut budget) = (HashSet::new(), StepResult::default(), ROW_BATCH);
        for id in ids {
            let Some(task) = self.find_readable(*id, expiry)? else { continue };
            if !self.delete_log(*id, &mut budget)? {
                result.incomplete = true;
                break;
            }
            scopes.insert(task.scope);
            self.delete_task(&task)?;
            result.completed.push(*id);
            result.count += 1;
        }
        scopes.into_iter().try_for_each(|scope| self.delete_empty_scope(scope))?;
        Ok(result)
    }

    /// Deletes the logs of those of the tasks that are expired. An unreadable one is skipped.
    pub(super) fn delete_logs(&mut self, ids: &[i64], expiry: Expiry) -> rusqlite::Result<StepResult> {
        let (mut result, mut budget) = (StepResult::default(), ROW_BATCH);
        for id in ids {
            if self.find_readable(*id, expiry)?.is_none() {
                continue;
            }
            match self.complete_checkpoint(*id).and_then(|()| self.keep_turns(*id)) {
                Ok(()) => {}
                Err(error) if is_damage(&error) => {
                    tracing::warn!(error.cause = %error, "damaged log not deleted");
                    continue;
                }
                Err(error) => return Err(error),
            }
            if !self.delete_log(*id, &mut budget)? {
                result.incomplete = true;
                break;
            }
            self.db.prepare_cached("UPDATE task SET folded = 1, whole = NULL WHERE id = ?")?.execute([id])?;
            result.completed.push(*id);
            result.count += 1;
        }
        Ok(result)
    }

    /// Writes a checkpoint of the whole task, unless there is one.
    fn complete_checkpoint(&self, id: i64) -> rusqlite::Result<()> {
        let sql = "SELECT seq FROM task WHERE id = ?1 AND seq > ifnull((SELECT seq FROM checkpoint WHERE id = ?1), 0)";
        let seq: Option<i64> = self.db.prepare_cached(sql)?.query_row([id], |row| row.get(0)).optional()?;
        if let Some(seq) = seq {
            let [head, artifacts] = split_task(&read::TaskReader::new(self.db, true)?.read(id, unsigned(seq))?);
            let sql = "INSERT OR REPLACE INTO checkpoint VALUES(?, ?, ?, ?)";
            self.db.prepare_cached(sql)?.execute((id, seq, head, artifacts))?;
        }
        Ok(())
    }

    /// Moves the newest records of turns from a log to the row of its task.
    fn keep_turns(&self, id: i64) -> rusqlite::Result<()> {
        let turns = read::turns(self.db, id)?;
        let newest = &turns[turns.len().saturating_sub(MAX_TURNS)..];
        if newest.is_empty() {
            return Ok(());
        }
        let key = read::key_of(self.db, id)?;
        let encoded = TurnRecord::encode(key.id(), &newest.iter().map(|turn| (turn, false)).collect::<Vec<_>>());
        self.db.prepare_cached("UPDATE task SET turn = ? WHERE id = ?")?.execute((encoded, id))?;
        Ok(())
    }

    /// Deletes the rows of a log from its start, up to `budget`. Returns whether the log is deleted completely. A reader of a
    /// partially deleted log finds that its cursor does not exist.
    fn delete_log(&self, id: i64, budget: &mut i64) -> rusqlite::Result<bool> {
        let sql = "DELETE FROM log WHERE id IN (SELECT id FROM log WHERE id >= ? AND id < ? ORDER BY id LIMIT ?)";
        let deleted = self.db.prepare_cached(sql)?.execute((log_row_id(id, 0)?, log_row_id(id + 1, 0)?, *budget))?;
        *budget -= i64::try_from(deleted).unwrap_or(*budget);
        Ok(*budget > 0)
    }

    /// Deletes the push configurations of those of the tasks that are expired.
    fn delete_push_configs(&mut self, ids: &[i64], expiry: Expiry) -> rusqlite::Result<StepResult> {
        let mut result = StepResult::default();
        for id in ids {
            let Some(task) = self.find_readable(*id, expiry)? else { continue };
            let deleted = self.db.prepare_cached("DELETE FROM push WHERE task = ?")?.execute([id])?;
            self.eviction_starts.lower(&task.owner, task.time);
            self.db.prepare_cached("UPDATE task SET pushes = 0 WHERE id = ?")?.execute([id])?;
            result.count += u64::try_from(deleted).unwrap_or(u64::MAX);
            result.completed.push(*id);
        }
        Ok(result)
    }

    /// Deletes some idempotency keys from before a time. Returns their number, and whether there may be more.
    fn delete_sends(&mut self, before: Millis) -> rusqlite::Result<(u64, bool)> {
        let sql = format!("DELETE FROM send WHERE (scope, key) IN ({SENDS})");
        let deleted = self.db.prepare_cached(&sql)?.execute((before, ROW_BATCH))?;
        Ok((u64::try_from(deleted).unwrap_or(u64::MAX), i64::try_from(deleted) == Ok(ROW_BATCH)))
    }

    /// Evicts the readable task, of all or of an owner, that reached a terminal state first, if possible one without
    /// undelivered push notifications. Returns its scope, whose row stays, or `None` if there is no such task.
    pub(super) fn evict_oldest(&mut self, owner: Option<&str>) -> rusqlite::Result<Option<i64>> {
        let delivered = self.find_oldest(owner, Expiry::DELIVERED, self.eviction_starts.of(owner))?;
        self.eviction_starts.raise(owner, delivered.as_ref().map_or(Millis::MAX, |task| task.time));
        let oldest = match delivered {
            Some(task) => Some(task),
            None => self.find_oldest(owner, Expiry::ANY, Millis::MIN)?,
        };
        let Some(task) = oldest else { return Ok(None) };
        if task.has_undelivered {
            tracing::warn!(
                task.row = task.id,
                "push notifications dropped with their task: {STORE_FULL}, and all terminal tasks have undelivered ones"
            );
        }
        let mut unlimited = i64::MAX;
        self.delete_log(task.id, &mut unlimited)?;
        self.delete_task(&task)?;
        Ok(Some(task.scope))
    }

    fn find_oldest_of_all(&mut self, expiry: Expiry, from: Millis) -> rusqlite::Result<Option<DeletedTask>> {
        let db = self.db;
        let mut query = db.prepare_cached(&OLDEST)?;
        // Usually the first row is readable.
        let limit = i64::try_from(MAX_UNREADABLE).unwrap_or(i64::MAX).saturating_add(1);
        let mut ids = query.query_map((expiry.before, limit, expiry.kept_since, from), |row| row.get(0))?;
        while let Some(id) = ids.next().transpose()? {
            if let Some(task) = self.find_readable(id, expiry)? {
                return Ok(Some(task));
            }
        }
        Ok(None)
    }

    /// Finds the readable task, of all or of an owner, that reached a terminal state first, at or after a time.
    fn find_oldest(
        &mut self,
        owner: Option<&str>,
        expiry: Expiry,
        from: Millis,
    ) -> rusqlite::Result<Option<DeletedTask>> {
        let Some(owner) = owner else { return self.find_oldest_of_all(expiry, from) };
        loop {
            let skipped = self.unreadable.0.len();
            let mut query = self.db.prepare_cached(&OLDEST_OF_OWNER)?;
            let bounds = (owner, self.unreadable.to_json(), expiry.kept_since, from);
            let id = query.query_row(bounds, |row| row.get(0)).optional()?;
            let Some(id) = id else { return Ok(None) };
            if let Some(task) = self.find_readable(id, expiry)? {
                return Ok(Some(task));
            }
            if self.unreadable.0.len() == skipped {
                return Ok(None);
            }
        }
    }

    /// Finds a task that is expired and can be read. An unreadable one is reported once.
    fn find_readable(&mut self, id: i64, expiry: Expiry) -> rusqlite::Result<Option<DeletedTask>> {
        if self.unreadable.0.contains(&id) {
            return Ok(None);
        }
        match self.find_terminal(id, expiry) {
            // Corruption concerns the whole file.
            Err(error) if is_damage(&error) && !is_corruption(&error) => {
                self.unreadable.add(self.db, id, &error).map(|()| None)
            }
            found => found,
        }
    }

    /// Deletes some tasks of an owner, in any state. Returns their number, and whether there are more. The last call
    /// deletes the owner.
    pub(super) fn delete_some_of(&mut self, owner: &Arc<str>) -> rusqlite::Result<(u64, bool)> {
        let sql = "SELECT task.id, task.scope, context, state, time FROM task JOIN scope ON scope.id = task.scope
            WHERE owner = ? LIMIT ?";
        let mut query = self.db.prepare_cached(sql)?;
        let tasks = query.query_map((&**owner, TASK_BATCH), |row| {
            let (context, owner) = (Arc::from(row.get_ref(2)?.as_str()?), Arc::clone(owner));
            let (id, scope, state) = (row.get(0)?, row.get(1)?, row.get(3)?);
            Ok(DeletedTask { id, scope, context, state, owner, time: row.get(4)?, has_undelivered: false })
        })?;
        let tasks = tasks.collect::<rusqlite::Result<Vec<_>>>()?;
        let (mut deleted, mut budget) = (0, ROW_BATCH);
        for task in &tasks {
            if !self.delete_log(task.id, &mut budget)? {
                break;
            }
            self.delete_task(task)?;
            deleted += 1;
        }
        if tasks.is_empty() {
            let mut query = self.db.prepare_cached("SELECT id FROM scope WHERE owner = ?")?;
            let scopes = query.query_map([&**owner], |row| row.get(0))?.collect::<rusqlite::Result<Vec<_>>>()?;
            scopes.into_iter().try_for_each(|scope| self.delete_empty_scope(scope))?;
        }
        Ok((deleted, !tasks.is_empty()))
    }

    /// Finds a task that is expired.
    fn find_terminal(&self, id: i64, expiry: Expiry) -> rusqlite::Result<Option<DeletedTask>> {
        static SQL: LazyLock<String> = LazyLock::new(|| {
            format!(
                "SELECT scope, context, state, owner,
                    pushes > 0 AND EXISTS (SELECT 1 FROM push WHERE push.task = task.id AND push.due IS NOT NULL), time
                 FROM task LEFT JOIN scope ON scope.id = task.scope
                 WHERE task.id = ?1 AND {TERMINAL} AND time < ?2 AND {NOT_KEPT}"
            )
        });
        let task = |row: &Row<'_>| {
            // The owner is NULL where the row of its scope is missing: an unreadable value.
            let text = |at| Ok::<_, rusqlite::Error>(Arc::from(row.get_ref(at)?.as_str()?));
            let (context, owner) = (text(1)?, text(3)?);
            let (scope, state, has_undelivered, time) = (row.get(0)?, row.get(2)?, row.get(4)?, row.get(5)?);
            Ok(DeletedTask { id, scope, context, state, owner, time, has_undelivered })
        };
        self.db.prepare_cached(&SQL)?.query_row((id, expiry.before, expiry.kept_since), task).optional()
    }

    /// Deletes a task whose log is deleted.
    fn delete_task(&mut self, task: &DeletedTask) -> rusqlite::Result<()> {
        let id = task.id;
        for table in ["checkpoint", "saved", "task"] {
            self.db.prepare_cached(&format!("DELETE FROM {table} WHERE id = ?"))?.execute([id])?;
        }
        for table in ["push", "send"] {
            self.db.prepare_cached(&format!("DELETE FROM {table} WHERE task = ?"))?.execute([id])?;
        }
        failpoint::at("sweep")?;
        self.count_transition((task.scope, &task.context), Some(task.state), None)?;
        let was_terminal = TaskState::try_from(task.state).is_ok_and(TaskState::is_terminal);
        self.count_for_quota(&task.owner, Some(was_terminal), None);
        Ok(())
    }

    /// Deletes a scope and its counters, unless it has tasks.
    pub(super) fn delete_empty_scope(&mut self, scope: i64) -> rusqlite::Result<()> {
        let sql = "DELETE FROM scope WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM task WHERE scope = ?1)
            RETURNING owner, tenant";
        let deleted = self.db.prepare_cached(sql)?.query_row([scope], read::scope);
        if let Some(deleted) = deleted.optional()? {
            self.scopes.remove(&deleted);
            self.delete_counters(scope)?;
        }
        Ok(())
    }
}
