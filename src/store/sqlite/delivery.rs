//! Push configurations, and the delivery queue of push notifications: marking, claims and outcomes. The state of a delivery
//! is in the row of its configuration. The numbers of the configurations of a task only rise, so that a page can continue
//! after the last number of the page before it.
//!
//! A delivery that is due is in a partial index, and so is a dead letter. The commits of agents change neither.

use std::sync::{Arc, LazyLock};

use async_trait::async_trait;
use bytes::Bytes;
use prost::Message as _;
use rusqlite::{Connection, OptionalExtension as _, Row};

use super::{
    Full, InUse, Millis, PushConfig, Scope, Seq, Sqlite, TaskKey, Unavailable, failpoint, read,
    sweep::{Expiry, TERMINAL},
    transaction::{EvictionStarts, WriteTransaction},
    values::{damaged, is_unreadable, signed, unsigned},
};
use crate::{
    protocol::{pb::v1::TaskPushNotificationConfig, version::Version},
    store::{
        Attempt, DeadLetter, Delivery, DeliveryClaim, DeliveryCounts, DeliveryOutcome, DeliveryPage, DeliveryState,
        DeliveryToken, Lease, PushPage, PushQueue, PushTaskPage, PutResult, STORE_FULL, delivery::Effect,
        page::cut_page,
    },
};

/// Maximum number of tasks that a transaction marks.
const TASK_BATCH: usize = 256;

/// Columns that [`state`] decodes.
const STATE: &str = "p.cursor, p.last, p.due, p.attempts, p.pending, p.runner, p.claim, p.dead, p.reason,
    p.tried, p.status, p.error";

/// Marks the deliveries of a task.
const MARK: &str = "UPDATE push SET due = ?2, pending = ifnull(pending, ?2)
    WHERE task = ?1 AND due IS NULL AND dead IS NULL AND cursor < (SELECT seq FROM task WHERE id = ?1)";

/// Selects deliveries that can be claimed.
pub(super) const DUE: &str = "SELECT task, number FROM push WHERE due <= ? ORDER BY due, task, number LIMIT ?";

/// Selects the delivery that is due first.
pub(super) const FIRST_DUE: &str = "SELECT due FROM push WHERE due IS NOT NULL ORDER BY due LIMIT 1";

/// Selects the time since which the oldest undelivered event is due.
pub(super) const OLDEST: &str = "SELECT min(pending) FROM push WHERE due IS NOT NULL";

/// Selects tasks with push configurations.
pub(super) const TASKS: &str = "SELECT DISTINCT task FROM push WHERE task > ? ORDER BY task LIMIT ?";

/// Selects the dead letters after the newest ones.
const OLD_DEAD_LETTERS: &str = "SELECT task, number FROM push WHERE dead IS NOT NULL
    ORDER BY dead DESC, task DESC, number DESC LIMIT -1 OFFSET ?";

/// Maximum number of logs that a sweep deletes because the file has its maximum size.
const MAX_DELETED_LOGS: usize = 64;

/// Fraction of the maximum size of the file: while so much is free, a sweep deletes no undelivered logs.
const FREE_SHARE: u64 = 64;

/// Selects tasks in a terminal state that have undelivered events and a separate log, longest due first.
static UNDELIVERED_LOGS: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT t.id FROM push p JOIN task t ON t.id = p.task
         WHERE p.due IS NOT NULL AND t.folded = 0 AND t.whole IS NULL AND {TERMINAL}
         GROUP BY t.id ORDER BY min(p.pending), t.id LIMIT ?"
    )
});

/// Returns the limit if the tasks of an owner have as many configurations, over all tenants.
pub(super) fn is_full_for(db: &Connection, owner: &str, max: usize) -> rusqlite::Result<Option<Full>> {
    let sql = "SELECT ifnull(sum(push_count), 0) FROM scope WHERE owner = ?";
    let count = db.prepare_cached(sql)?.query_row([owner], |row| row.get(0)).map(unsigned)?;
    Ok(usize::try_from(count).is_ok_and(|count| count >= max).then(|| Full::push_configs_per_owner(max)))
}

/// Replaces the configuration of the same id, if there is one.
fn replace(db: &Connection, task: i64, push: &PushConfig) -> rusqlite::Result<bool> {
    let PushConfig { config, version, extra } = push;
    let sql = "UPDATE push SET version = ?, config = ?, beside = ? WHERE task = ? AND id = ?";
    let row = (version.as_str(), config.encode_to_vec(), &**extra, task, &config.id);
    let replaced = db.prepare_cached(sql)?.execute(row)? > 0;
    if replaced && let Some((mut state, number, _)) = find(db, task, &config.id)? {
        state.replace();
        write_state(db, task, number, &state)?;
    }
    Ok(replaced)
}

/// Adds a configuration, which gets the events after `cursor`, or after the last one of the task.
fn add(db: &Connection, task: i64, push: &PushConfig, cursor: Option<Seq>) -> rusqlite::Result<()> {
    let PushConfig { config, version, extra } = push;
    db.prepare_cached("UPDATE task SET pushes = pushes + 1 WHERE id = ?")?.execute([task])?;
    let sql = "INSERT INTO push(task, scope, number, id, version, config, beside, cursor)
        SELECT id, scope, pushes, ?, ?, ?, ?, ifnull(?, seq) FROM task WHERE id = ?";
    let cursor = cursor.map(signed).transpose()?;
    let row = (&config.id, version.as_str(), config.encode_to_vec(), &**extra, cursor, task);
    db.prepare_cached(sql)?.execute(row).map(drop)
}

/// Stores a configuration, whatever their number. Replaces the one of the same id. A new one gets the events after `cursor`.
pub(super) fn put(db: &Connection, task: i64, push: &PushConfig, cursor: Seq) -> rusqlite::Result<()> {
    if replace(db, task, push)? { Ok(()) } else { add(db, task, push, Some(cursor)) }
}

/// Deletes a configuration, if it exists.
pub(super) fn delete(db: &Connection, task: i64, id: &str) -> rusqlite::Result<()> {
    db.prepare_cached("DELETE FROM push WHERE task = ? AND id = ?")?.execute((task, id)).map(drop)
}

/// Returns a configuration, or `None` if it or its task does not exist.
pub(super) fn get(db: &Connection, key: &TaskKey, id: &str) -> rusqlite::Result<Option<Arc<PushConfig>>> {
    let Some(task) = read::row_id(db, key)? else { return Ok(None) };
    let sql = "SELECT version, config, beside FROM push WHERE task = ? AND id = ?";
    db.prepare_cached(sql)?.query_row((task, id), config).optional()
}

/// Returns the configurations of a task after the number `after`.
fn page_configs(db: &Connection, task: i64, after: u64, limit: usize) -> rusqlite::Result<PushPage> {
    let sql = "SELECT version, config, beside, number FROM push WHERE task = ? AND number > ? ORDER BY number LIMIT ?";
    let mut query = db.prepare_cached(sql)?;
    // No number exceeds `i64::MAX`.
    let after = i64::try_from(after).unwrap_or(i64::MAX);
    // One row more than the limit shows whether there is a next page.
    let sql_limit = i64::try_from(limit.saturating_add(1)).unwrap_or(i64::MAX);
    let rows = query.query_map((task, after, sql_limit), |row| Ok((unsigned(row.get(3)?), config(row)?)))?;
    let (configs, next) = cut_page(rows.collect::<rusqlite::Result<_>>()?, limit);
    Ok(PushPage { configs, next })
}

/// Decodes the columns `version`, `config` and `beside`.
pub(super) fn config(row: &Row<'_>) -> rusqlite::Result<Arc<PushConfig>> {
    let version = row.get_ref(0)?.as_str()?;
    let version = Version::from_text(version).ok_or_else(|| damaged("unknown protocol version"))?;
    let config = TaskPushNotificationConfig::decode(row.get_ref(1)?.as_blob()?);
    let config = config.map_err(|_| damaged("a push configuration can't be decoded"))?;
    Ok(Arc::new(PushConfig { config, version, extra: row.get::<_, Vec<u8>>(2)?.into() }))
}

/// Decodes the columns [`STATE`], which begin at `first`.
fn state(row: &Row<'_>, first: usize) -> rusqlite::Result<DeliveryState> {
    let reason = row.get::<_, Option<Box<str>>>(first + 8)?.unwrap_or_default();
    let (status, error) = (row.get(first + 10)?, row.get(first + 11)?);
    Ok(DeliveryState {
        cursor: unsigned(row.get(first)?),
        end: row.get::<_, Option<i64>>(first + 1)?.map(unsigned),
        due: row.get(first + 2)?,
        attempts: row.get(first + 3)?,
        pending_since: row.get(first + 4)?,
        runner: row.get(first + 5)?,
        claim: unsigned(row.get(first + 6)?),
        dead: row.get::<_, Option<_>>(first + 7)?.map(|time| DeadLetter { time, reason }),
        last: row.get::<_, Option<_>>(first + 9)?.map(|time| Attempt { time, status, error }),
    })
}

/// Reads the state of the delivery of a configuration, its number, and the last event of the task.
fn find(db: &Connection, task: i64, id: &str) -> rusqlite::Result<Option<(DeliveryState, i64, Seq)>> {
    let sql = format!(
        "SELECT {STATE}, p.number, t.seq FROM push p JOIN task t ON t.id = p.task WHERE p.task = ? AND p.id = ?"
    );
    let columns = |row: &Row<'_>| Ok((state(row, 0)?, row.get(12)?, unsigned(row.get(13)?)));
    db.prepare_cached(&sql)?.query_row((task, id), columns).optional()
}

/// Writes the state of a delivery.
fn write_state(db: &Connection, task: i64, number: i64, state: &DeliveryState) -> rusqlite::Result<()> {
    let DeliveryState { cursor, end, due, attempts, pending_since: pending, runner, claim, dead, last } = state;
    let (time, reason) = dead.as_ref().map(|dead| (dead.time, &*dead.reason)).unzip();
    let sql =
        "UPDATE push SET cursor = ?, last = ?, due = ?, attempts = ?, pending = ?, runner = ?, claim = ?, dead = ?, reason = ?,
        tried = ?, status = ?, error = ? WHERE task = ? AND number = ?";
    let (cursor, end, claim, runner) =
        (signed(*cursor)?, end.map(signed).transpose()?, signed(*claim)?, runner.as_deref());
    let (tried, status) = last.as_ref().map(|last| (last.time, last.status)).unzip();
    let error = last.as_ref().and_then(|last| last.error.as_deref());
    let row = (cursor, end, due, attempts, pending, runner, claim, time, reason, tried, status, error, task, number);
    db.prepare_cached(sql)?.execute(row).map(drop)
}

/// Marks the deliveries of tasks. Returns how many became due.
fn mark(db: &Connection, keys: &[TaskKey], now: Millis) -> rusqlite::Result<usize> {
    let mut marked = 0;
    for key in keys {
        if let Some(task) = read::row_id(db, key)? {
            marked += db.prepare_cached(MARK)?.execute((task, now))?;
        }
    }
    failpoint::at("push.mark")?;
    Ok(marked)
}

/// Marks the deliveries of some tasks after a row, and returns those that may still get events. A task whose key can't be
/// read is skipped.
fn mark_page(db: &Connection, now: Millis, after: DeliveryToken, limit: usize) -> rusqlite::Result<PushTaskPage> {
    let (limit, mut page) = (limit.clamp(1, TASK_BATCH), PushTaskPage::default());
    let sql_limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut query = db.prepare_cached(TASKS)?;
    let tasks = query.query_map((signed(after.0)?, sql_limit), |row| row.get(0))?;
    let tasks = tasks.collect::<rusqlite::Result<Vec<i64>>>()?;
    for task in &tasks {
        db.prepare_cached(MARK)?.execute((task, now))?;
        if may_get_events(db, *task)? {
            match read::key_of(db, *task) {
                Ok(key) => page.keys.push(key),
                Err(error) if is_unreadable(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
    page.next = tasks.last().filter(|_| tasks.len() == limit).map(|task| DeliveryToken(unsigned(*task), 0));
    Ok(page)
}

/// Returns whether a task may still get events for one of its configurations.
fn may_get_events(db: &Connection, task: i64) -> rusqlite::Result<bool> {
    let sql = format!(
        "SELECT 1 FROM push p JOIN task ON task.id = p.task
         WHERE p.task = ? AND p.dead IS NULL AND (p.due IS NOT NULL OR NOT ({TERMINAL}))"
    );
    db.prepare_cached(&sql)?.exists([task])
}

/// Returns those of the tasks that may still get events for one of their configurations.
fn undelivered_tasks(db: &Connection, keys: &[TaskKey]) -> rusqlite::Result<Vec<TaskKey>> {
    let mut undelivered = Vec::new();
    for key in keys {
        if let Some(task) = read::row_id(db, key)?
            && may_get_events(db, task)?
        {
            undelivered.push(key.clone());
        }
    }
    Ok(undelivered)
}

/// Columns of a delivery that [`delivery`] decodes, and their tables.
static DELIVERY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT p.version, p.config, p.beside, {STATE}, p.task, p.number, t.seq
         FROM push p JOIN task t ON t.id = p.task"
    )
});

/// Decodes the columns [`DELIVERY`].
fn delivery(db: &Connection, row: &Row<'_>) -> rusqlite::Result<(DeliveryToken, Delivery)> {
    let (task, number): (i64, i64) = (row.get(15)?, row.get(16)?);
    let (config, state, seq) = (config(row)?, state(row, 3)?, unsigned(row.get(17)?));
    let token = DeliveryToken(unsigned(task), unsigned(number));
    Ok((token, Delivery { key: read::key_of(db, task)?, config, seq, state }))
}

/// Reads a delivery that is due, and the time since when.
fn read_due(db: &Connection, task: i64, number: i64) -> rusqlite::Result<(Delivery, Millis)> {
    let sql = format!("{} WHERE p.task = ? AND p.number = ?", *DELIVERY);
    let (_, found) = db.prepare_cached(&sql)?.query_row((task, number), |row| delivery(db, row))?;
    let since = found.state.pending_since.ok_or_else(|| damaged("a delivery is due without a time"))?;
    Ok((found, since))
}

/// Returns a page of deliveries.
pub(super) fn page(
    db: &Connection,
    dead_only: bool,
    after: DeliveryToken,
    limit: usize,
) -> rusqlite::Result<DeliveryPage> {
    let condition = if dead_only { "AND p.dead IS NOT NULL" } else { "" };
    let sql = format!("{} WHERE (p.task, p.number) > (?, ?) {condition} ORDER BY p.task, p.number LIMIT ?", *DELIVERY);
    let mut query = db.prepare_cached(&sql)?;
    // One row more than the limit shows whether there is a next page.
    let sql_limit = i64::try_from(limit.saturating_add(1)).unwrap_or(i64::MAX);
    let rows = query.query_map((signed(after.0)?, signed(after.1)?, sql_limit), |row| delivery(db, row))?;
    let (deliveries, next) = cut_page(rows.collect::<rusqlite::Result<_>>()?, limit);
    Ok(DeliveryPage { deliveries, next })
}

#[async_trait]
impl PushQueue for Sqlite {
    async fn put_push(&self, key: &TaskKey, push: Arc<PushConfig>, max: usize) -> Result<PutResult, Unavailable> {
        let key = key.clone();
        self.writer
            .run(move |transaction| {
                let Some(task) = read::row_id(transaction.db, &key)? else { return Ok(PutResult::TaskNotFound) };
                let (db, max_per_owner) = (transaction.db, transaction.quota.lock().max_push_configs_per_owner);
                if replace(db, task, &push)? {
                    return Ok(PutResult::Replaced);
                }
                let sql = "SELECT count(*) FROM push WHERE task = ?";
                let count = db.prepare_cached(sql)?.query_row([task], |row| row.get(0)).map(unsigned)?;
                if usize::try_from(count).is_ok_and(|count| count >= max) {
                    return Ok(PutResult::Full);
                }
                if let Some(full) = is_full_for(db, &key.scope().owner, max_per_owner)? {
                    return Ok(PutResult::OwnerFull(full));
                }
                add(db, task, &push, None).map(|()| PutResult::Created)
            })
            .await
    }

    async fn check_push_capacity(&self, scope: &Scope) -> Result<Result<(), Full>, Unavailable> {
        let (owner, max) = (Arc::clone(&scope.owner), self.quota.lock().max_push_configs_per_owner);
        let full = self.readers.run(move |db| is_full_for(db, &owner, max)).await?;
        Ok(full.map_or(Ok(()), Err))
    }

    async fn get_push(&self, key: &TaskKey, id: &str) -> Result<Option<Arc<PushConfig>>, Unavailable> {
        let (key, id) = (key.clone(), id.to_owned());
        self.readers.run(move |db| get(db, &key, &id)).await
    }

    async fn list_push(&self, key: &TaskKey, after: u64, limit: usize) -> Result<Option<PushPage>, Unavailable> {
        self.read_task(key, move |db, task| page_configs(db, task, after, limit)).await
    }

    async fn delete_push(&self, key: &TaskKey, id: &str) -> Result<bool, Unavailable> {
        let (key, id) = (key.clone(), id.to_owned());
        self.writer
            .run(move |transaction| {
                let Some(task) = read::row_id(transaction.db, &key)? else { return Ok(false) };
                delete(transaction.db, task, &id)?;
                transaction.allow_eviction(task, &key)?;
                Ok(true)
            })
            .await
    }

    async fn mark_due(&self, keys: &[TaskKey], now: Millis) -> Result<usize, Unavailable> {
        let mut marked = 0;
        for keys in keys.chunks(TASK_BATCH) {
            let keys: Box<[TaskKey]> = keys.into();
            marked += self.writer.run(move |transaction| mark(transaction.db, &keys, now)).await?;
        }
        Ok(marked)
    }

    async fn mark_all_due(&self, now: Millis, after: DeliveryToken, limit: usize) -> Result<PushTaskPage, Unavailable> {
        self.writer.run(move |transaction| mark_page(transaction.db, now, after, limit)).await
    }

    async fn next_due(&self) -> Result<Option<Millis>, Unavailable> {
        self.readers.run(|db| db.prepare_cached(FIRST_DUE)?.query_row([], |row| row.get(0)).optional()).await
    }

    async fn oldest_pending(&self) -> Result<Option<Millis>, Unavailable> {
        self.readers.run(|db| db.prepare_cached(OLDEST)?.query_row([], |row| row.get(0))).await
    }

    async fn claim_due(&self, lease: &Lease, limit: usize) -> Result<Vec<DeliveryClaim>, Unavailable> {
        let lease = lease.clone();
        self.writer.run(move |transaction| transaction.claim_deliveries(&lease, limit)).await
    }

    async fn end_claim(&self, claim: &DeliveryClaim, outcome: DeliveryOutcome) -> Result<bool, Unavailable> {
        let DeliveryClaim { key, config, claim, .. } = claim.clone();
        self.writer
            .run(move |transaction| {
                let id = &config.config.id;
                let is_replaced = get(transaction.db, &key, id)?.is_some_and(|stored| stored != config);
                let mut effect = Effect::Stale;
                transaction.change_delivery(&key, id, |state, seq| {
                    effect = state.end_claim(claim, is_replaced, seq, &outcome);
                    effect == Effect::Recorded
                })?;
                if effect == Effect::Deleted
                    && let Some(task) = read::row_id(transaction.db, &key)?
                {
                    delete(transaction.db, task, id)?;
                    transaction.allow_eviction(task, &key)?;
                }
                if let Some(max) = outcome.max_dead() {
                    let sql = format!("DELETE FROM push WHERE (task, number) IN ({OLD_DEAD_LETTERS})");
                    transaction.db.prepare_cached(&sql)?.execute([i64::try_from(max).unwrap_or(i64::MAX)])?;
                }
                Ok(effect != Effect::Stale)
            })
            .await
    }

    async fn release_deliveries(&self, runner: &str, now: Millis) -> Result<usize, Unavailable> {
        let runner: Box<str> = runner.into();
        let sql = "UPDATE push SET runner = NULL, due = ? WHERE due IS NOT NULL AND runner = ?";
        self.writer.run(move |transaction| transaction.db.prepare_cached(sql)?.execute((now, &*runner))).await
    }

    async fn undelivered_tasks(&self, keys: &[TaskKey]) -> Result<Vec<TaskKey>, Unavailable> {
        let keys: Box<[TaskKey]> = keys.into();
        self.readers.run(move |db| undelivered_tasks(db, &keys)).await
    }

    async fn deliveries(
        &self,
        dead_only: bool,
        after: DeliveryToken,
        limit: usize,
    ) -> Result<DeliveryPage, Unavailable> {
        self.readers.run(move |db| page(db, dead_only, after, limit)).await
    }

    async fn task_deliveries(&self, key: &TaskKey) -> Result<Vec<Delivery>, Unavailable> {
        let found = self.read_task(key, |db, task| {
            let mut query = db.prepare_cached(&format!("{} WHERE p.task = ? ORDER BY p.number", *DELIVERY))?;
            query.query_map([task], |row| Ok(delivery(db, row)?.1))?.collect()
        });
        Ok(found.await?.unwrap_or_default())
    }

    async fn delivery_counts(&self) -> Result<DeliveryCounts, Unavailable> {
        // Each from its index.
        let sql = "SELECT (SELECT count(*) FROM push WHERE due IS NOT NULL),
            (SELECT count(*) FROM push WHERE dead IS NOT NULL)";
        let counts = |row: &Row<'_>| Ok(DeliveryCounts { due: unsigned(row.get(0)?), dead: unsigned(row.get(1)?) });
        self.readers.run(move |db| db.prepare_cached(sql)?.query_row([], counts)).await
    }

    async fn retry_delivery(&self, key: &TaskKey, id: &str, now: Millis) -> Result<bool, Unavailable> {
        let (key, id) = (key.clone(), id.to_owned());
        self.writer
            .run(move |transaction| transaction.change_delivery(&key, &id, |state, seq| state.retry(seq, now)))
            .await
    }
}

impl Sqlite {
    /// Makes dead letters of the deliveries that have waited longest, and deletes the logs of their tasks: until a part of a
    /// file that has its maximum size is free. Tasks that are not in a terminal state need their logs. Returns the number of
    /// deleted logs.
    pub(super) async fn delete_undelivered_logs(&self, now: Millis, in_use: InUse<'_>) -> Result<u64, Unavailable> {
        let limit = i64::try_from(MAX_DELETED_LOGS).unwrap_or(i64::MAX);
        let found = self.readers.run(move |db| {
            let mut query = db.prepare_cached(&UNDELIVERED_LOGS)?;
            let tasks = query.query_map([limit], |row| row.get(0))?;
            tasks.map(|task| task.map(|task| (task, read::key_of(db, task).ok()))).collect::<rusqlite::Result<Vec<_>>>()
        });
        let mut deleted = 0;
        for (task, key) in found.await? {
            let Some(key) = key.filter(|key| !in_use(key)) else { continue };
            if self.writer.run(|transaction| has_free_space(transaction.db)).await? {
                break;
            }
            while self.writer.run(move |transaction| transaction.give_up_log(task, now)).await? {}
            tracing::warn!(
                task.id = key.id(),
                "push notifications given up and event log deleted: {STORE_FULL} (store.max_size)"
            );
            deleted += 1;
        }
        Ok(deleted)
    }
}

/// Returns whether a part of the maximum size of the file is free. Only the connection of the writer knows that size.
fn has_free_space(db: &Connection) -> rusqlite::Result<bool> {
    let pragma = |name| db.pragma_query_value(None, name, |row| row.get(0)).map(unsigned);
    let (max_pages, pages) = (pragma("max_page_count")?, pragma("page_count")?);
    Ok(max_pages.saturating_sub(pages) + pragma("freelist_count")? >= max_pages / FREE_SHARE)
}

impl WriteTransaction<'_> {
    /// Changes the state of a delivery. `change` returns whether it did.
    fn change_delivery(
        &mut self,
        key: &TaskKey,
        id: &str,
        change: impl FnOnce(&mut DeliveryState, Seq) -> bool,
    ) -> rusqlite::Result<bool> {
        let db = self.db;
        let Some(task) = read::row_id(db, key)? else { return Ok(false) };
        let Some((mut state, number, seq)) = find(db, task, id)? else { return Ok(false) };
        let changed = change(&mut state, seq);
        if changed {
            write_state(db, task, number, &state)?;
            failpoint::at("push.state")?;
            if !state.is_pending() {
                self.allow_eviction(task, key)?;
            }
        }
        Ok(changed)
    }

    /// Lets evictions find a task whose deliveries may all have ended.
    pub(super) fn allow_eviction(&mut self, task: i64, key: &TaskKey) -> rusqlite::Result<()> {
        let sql = "SELECT time FROM task WHERE id = ?";
        let time = self.db.prepare_cached(sql)?.query_row([task], |row| row.get(0))?;
        self.eviction_starts.lower(&key.scope().owner, time);
        Ok(())
    }

    /// Claims deliveries. One that can't be read becomes a dead letter.
    fn claim_deliveries(&mut self, lease: &Lease, limit: usize) -> rusqlite::Result<Vec<DeliveryClaim>> {
        let (db, now) = (self.db, lease.now);
        let mut query = db.prepare_cached(DUE)?;
        let due =
            query.query_map((now, i64::try_from(limit).unwrap_or(i64::MAX)), |row| <(i64, i64)>::try_from(row))?;
        let due = due.collect::<rusqlite::Result<Vec<_>>>()?;
        if due.is_empty() {
            return Ok(Vec::new());
        }
        let sql = "UPDATE opening SET claims = claims + ? RETURNING claims";
        let count = u64::try_from(due.len()).unwrap_or(u64::MAX);
        let last: u64 = db.prepare_cached(sql)?.query_row([signed(count)?], |row| row.get(0)).map(unsigned)?;
        let mut claims = Vec::with_capacity(due.len());
        for ((task, number), claim) in due.into_iter().zip(last - count + 1..) {
            let (Delivery { key, config, seq, mut state }, pending_since) = match read_due(db, task, number) {
                Ok(found) => found,
                Err(error) if is_unreadable(&error) => {
                    tracing::error!(
                        task.row = task, push.number = number, error.cause = %error,
                        "push configuration can't be read: its delivery is given up"
                    );
                    let sql =
                        "UPDATE push SET due = NULL, runner = NULL, dead = ?, reason = ? WHERE task = ? AND number = ?";
                    let reason = "the configuration can't be read";
                    db.prepare_cached(sql)?.execute((now, reason, task, number))?;
                    *self.eviction_starts = EvictionStarts::default();
                    continue;
                }
                Err(error) => return Err(error),
            };
            let end = state.lease(lease, claim, seq);
            write_state(db, task, number, &state)?;
            failpoint::at("push.claim")?;
            let DeliveryState { cursor, attempts, .. } = state;
            let sql = "SELECT asked FROM task WHERE id = ?";
            let turn_contexts: Option<Vec<u8>> = db.prepare_cached(sql)?.query_row([task], |row| row.get(0))?;
            let turn_contexts = turn_contexts.map(Bytes::from);
            claims.push(DeliveryClaim { key, config, cursor, end, attempts, pending_since, turn_contexts, claim });
        }
        Ok(claims)
    }

    /// Makes dead letters of the deliveries of a task in a terminal state, and deletes some rows of its log. Returns whether
    /// there are more.
    fn give_up_log(&mut self, task: i64, now: Millis) -> rusqlite::Result<bool> {
        let sql = "UPDATE push SET due = NULL, runner = NULL, dead = ?, reason = ? WHERE task = ? AND due IS NOT NULL";
        self.db.prepare_cached(sql)?.execute((now, STORE_FULL, task))?;
        *self.eviction_starts = EvictionStarts::default();
        self.delete_logs(&[task], Expiry::ANY).map(|result| result.incomplete)
    }
}
