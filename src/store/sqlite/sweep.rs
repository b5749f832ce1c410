//! What goes: what has been kept for long enough, and tasks whose place is needed. Each step follows an index that has
//! only what is left to do, and takes some of it at a time.

use std::{
    collections::{BTreeSet, HashSet},
    sync::{Arc, LazyLock},
};

use rusqlite::{Connection, OptionalExtension as _, Row};

use super::{failpoint, is_corruption, is_damage, log_rows::halves, number, read, write::piece, writer::Transaction};
use crate::{
    clock::Millis,
    pb::v1::TaskState,
    store::{Key, Scope},
};

/// So many tasks go in one transaction, or pieces of their logs: commits wait for no more than that.
pub(super) const BATCH: i64 = 64;
const PIECES: i64 = 1024;

/// The states that are ends. The indexes have these words, and are used by who has them too.
pub(super) const ENDED: &str = "state >= 3 AND state <= 7 AND state <> 6";

/// Those that ended first: of those whose log is there, and of those whose log has gone, each in their order.
pub(super) static OLDEST: LazyLock<String> = LazyLock::new(|| {
    let each =
        [0, 1].map(|it| format!("SELECT id, scope, key, time FROM task WHERE {ENDED} AND folded = {it} AND time < ?1"));
    format!("{} ORDER BY time LIMIT ?2", each.join(" UNION ALL "))
});

/// Task of an owner that ended first, without those of a JSON array: of each tenant and state the first one, and of
/// those the first.
pub(super) const OLDEST_OF: &str = "SELECT id FROM (
        SELECT (
            SELECT t.id FROM task t WHERE t.scope = o.id AND t.state = s.column1
            AND t.id NOT IN (SELECT value FROM json_each(?2)) ORDER BY t.time LIMIT 1
        ) AS first
        FROM scope o, (VALUES (3), (4), (5), (7)) s WHERE o.owner = ?1
    ) JOIN task ON id = first ORDER BY time LIMIT 1";

/// Those of them whose log is there.
pub(super) static WITH_LOG: LazyLock<String> = LazyLock::new(|| {
    format!("SELECT id, scope, key FROM task WHERE {ENDED} AND folded = 0 AND time < ?1 ORDER BY time LIMIT ?2")
});

/// Those that have push configurations, or had them.
pub(super) static WITH_PUSHES: LazyLock<String> =
    LazyLock::new(|| format!("SELECT id FROM task WHERE pushes > 0 AND {ENDED} AND time < ? ORDER BY time LIMIT ?"));

/// Those that wait for their clients, and nobody works on.
pub(super) const IDLE: &str =
    "SELECT id, scope, key FROM task WHERE open = 0 AND state IN (6, 8) AND time < ?1 ORDER BY time LIMIT ?2";

/// How many there are of those.
pub(super) fn waiting() -> String {
    "SELECT count(*) FROM task WHERE open = 0 AND state IN (6, 8) AND time < ?".to_owned()
}

/// The keys of sends that were taken first.
pub(super) const SENDS: &str = "SELECT scope, key FROM send WHERE time < ? ORDER BY time LIMIT ?";

/// A task that may have to go.
pub(super) struct RetentionCandidate {
    pub(super) id: i64,
    pub(super) key: Key,
}

/// What came of a step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SweepStep {
    /// How many tasks it is done with.
    pub(super) tasks: u64,
    /// There was more to it than is done at a time.
    pub(super) more: bool,
}

/// Maximum number of unreadable tasks that evictions skip. With more of them, a full store rejects new tasks.
const MAX_UNREADABLE: usize = 1000;

/// Ended tasks that can't be read, by row. They are kept, and each is reported once.
#[derive(Debug, Default)]
pub(super) struct Unreadable(BTreeSet<i64>);

impl Unreadable {
    /// Adds a row, and reports it, unless there are too many to remember it.
    fn add(&mut self, db: &Connection, id: i64, cause: &rusqlite::Error) -> rusqlite::Result<()> {
        if self.0.len() >= MAX_UNREADABLE || !self.0.insert(id) {
            return Ok(());
        }
        // The key may be unreadable too.
        let sql = "SELECT CAST(key AS BLOB) FROM task WHERE id = ?";
        let key = db.prepare_cached(sql)?.query_row([id], |row| row.get::<_, Vec<u8>>(0))?;
        tracing::error!(
            task.row = id, task.id = %String::from_utf8_lossy(&key), error.cause = %cause,
            "ended task can't be read: it is kept, and skipped by evictions and sweeps; see `a2a admin check`"
        );
        Ok(())
    }

    /// Rows as a JSON array.
    fn json(&self) -> String {
        let rows: Vec<_> = self.0.iter().map(i64::to_string).collect();
        format!("[{}]", rows.join(","))
    }
}

/// A task that goes: one that has ended, where nobody says otherwise.
struct EvictionCandidate {
    id: i64,
    scope: i64,
    context: Arc<str>,
    state: i32,
    owner: Arc<str>,
}

/// Returns at most `limit` of the tasks that are due, after the first `skip`. A row that can't be read is skipped and
/// kept, such as one without an owner, and `a2a admin check` reports it.
pub(super) fn due(
    db: &Connection,
    sql: &str,
    before: Millis,
    skip: usize,
    limit: usize,
) -> rusqlite::Result<Vec<RetentionCandidate>> {
    let mut of = db.prepare_cached("SELECT owner, tenant FROM scope WHERE id = ?")?;
    let mut find = db.prepare_cached(sql)?;
    let found = find.query_map((before, -1), |it| {
        let scope = of.query_row([it.get::<_, i64>(1)?], |it| {
            Ok(Scope { owner: it.get_ref(0)?.as_str()?.into(), tenant: it.get_ref(1)?.as_str()?.into() })
        });
        Ok(RetentionCandidate { id: it.get(0)?, key: Key::new(&Arc::new(scope?), it.get_ref(2)?.as_str()?) })
    })?;
    let is_unreadable = |error: &_| is_damage(error) || *error == rusqlite::Error::QueryReturnedNoRows;
    found.filter(|due| !due.as_ref().is_err_and(is_unreadable)).skip(skip).take(limit).collect()
}

impl Transaction<'_> {
    /// Deletes these, if they ended before this. One that can't be read is kept.
    pub(super) fn sweep(&mut self, ids: &[i64], before: Millis) -> rusqlite::Result<SweepStep> {
        let (mut scopes, mut done, mut left) = (HashSet::new(), SweepStep::default(), PIECES);
        for id in ids {
            let Some(it) = self.readable(*id, before)? else { continue };
            if !self.clear_log(*id, &mut left)? {
                done.more = true;
                break;
            }
            scopes.insert(it.scope);
            self.forget(&it)?;
            done.tasks += 1;
        }
        // Of the owners too, once there is nothing of theirs.
        scopes.into_iter().try_for_each(|it| self.forget_scope(it))?;
        Ok(done)
    }

    /// Deletes the logs of these, if they ended before this. One that can't be read is kept.
    pub(super) fn fold(&mut self, ids: &[i64], before: Millis) -> rusqlite::Result<SweepStep> {
        let (mut done, mut left) = (SweepStep::default(), PIECES);
        for id in ids {
            if self.readable(*id, before)?.is_none() {
                continue;
            }
            match self.complete(*id) {
                Ok(()) => {}
                // It stays as it is, and is in nobody's way.
                Err(error) if is_damage(&error) => {
                    tracing::warn!(error.cause = %error, "a log can't be folded");
                    continue;
                }
                Err(error) => return Err(error),
            }
            if !self.clear_log(*id, &mut left)? {
                done.more = true;
                break;
            }
            self.db.prepare_cached("UPDATE task SET folded = 1, whole = NULL WHERE id = ?")?.execute([id])?;
            done.tasks += 1;
        }
        Ok(done)
    }

    /// Sees to it that the checkpoint of a task that has ended is all of it, as it is where its end came with one.
    fn complete(&self, id: i64) -> rusqlite::Result<()> {
        let sql = "SELECT seq FROM task WHERE id = ?1 AND seq > ifnull((SELECT seq FROM checkpoint WHERE id = ?1), 0)";
        let seq: Option<i64> = self.db.prepare_cached(sql)?.query_row([id], |it| it.get(0)).optional()?;
        if let Some(seq) = seq {
            let [head, artifacts] = halves(&read::TaskRows::new(self.db, true)?.at(id, number(seq))?);
            let sql = "INSERT OR REPLACE INTO checkpoint VALUES(?, ?, ?, ?)";
            self.db.prepare_cached(sql)?.execute((id, seq, head, artifacts))?;
        }
        Ok(())
    }

    /// Deletes a log, as far as it has no more pieces than are left to be deleted. Whether that is all of it: who reads
    /// one whose beginning has gone, finds that their place is not there.
    fn clear_log(&self, id: i64, left: &mut i64) -> rusqlite::Result<bool> {
        let sql = "DELETE FROM log WHERE id IN (SELECT id FROM log WHERE id >= ? AND id < ? ORDER BY id LIMIT ?)";
        let cleared = self.db.prepare_cached(sql)?.execute((piece(id, 0)?, piece(id + 1, 0)?, *left))?;
        *left -= i64::try_from(cleared).unwrap_or(*left);
        Ok(*left > 0)
    }

    /// Deletes the push configurations of some tasks that ended before this, and says how many there were, and whether
    /// there may be more.
    pub(super) fn sweep_pushes(&mut self, before: Millis) -> rusqlite::Result<(u64, bool)> {
        let mut find = self.db.prepare_cached(&WITH_PUSHES)?;
        let ids = find.query_map((before, BATCH), |it| it.get(0))?.collect::<rusqlite::Result<Vec<i64>>>()?;
        let mut gone = 0;
        for id in &ids {
            gone += self.db.prepare_cached("DELETE FROM push WHERE task = ?")?.execute([id])?;
            self.db.prepare_cached("UPDATE task SET pushes = 0 WHERE id = ?")?.execute([id])?;
        }
        Ok((u64::try_from(gone).unwrap_or(u64::MAX), i64::try_from(ids.len()) == Ok(BATCH)))
    }

    /// Deletes some keys of sends that were taken before this, and says how many, and whether there may be more.
    pub(super) fn sweep_sends(&mut self, before: Millis) -> rusqlite::Result<(u64, bool)> {
        let sql = format!("DELETE FROM send WHERE (scope, key) IN ({SENDS})");
        let gone = self.db.prepare_cached(&sql)?.execute((before, PIECES))?;
        Ok((u64::try_from(gone).unwrap_or(u64::MAX), i64::try_from(gone) == Ok(PIECES)))
    }

    /// Evicts the task that ended first, of those that can be read. Returns its scope, whose row stays, or `None` if there
    /// is no such task.
    pub(super) fn evict_oldest(&mut self) -> rusqlite::Result<Option<i64>> {
        let db = self.db;
        let mut find = db.prepare_cached(&OLDEST)?;
        // Most often the first row is the one.
        let limit = i64::try_from(MAX_UNREADABLE).unwrap_or(i64::MAX).saturating_add(1);
        let mut ids = find.query_map((Millis::MAX, limit), |row| row.get(0))?;
        let mut oldest = None;
        while oldest.is_none()
            && let Some(id) = ids.next().transpose()?
        {
            oldest = self.readable(id, Millis::MAX)?;
        }
        drop(ids);
        oldest.map(|task| self.evict(&task)).transpose()
    }

    /// Evicts the task of this owner that ended first, of those that can be read. Returns its scope, whose row stays, or
    /// `None` if there is no such task.
    pub(super) fn evict_oldest_of(&mut self, owner: &str) -> rusqlite::Result<Option<i64>> {
        loop {
            let skipped = self.unreadable.0.len();
            let mut find = self.db.prepare_cached(OLDEST_OF)?;
            let id = find.query_row((owner, self.unreadable.json()), |row| row.get(0)).optional()?;
            let Some(id) = id else { return Ok(None) };
            if let Some(task) = self.readable(id, Millis::MAX)? {
                return self.evict(&task).map(Some);
            }
            if self.unreadable.0.len() == skipped {
                return Ok(None);
            }
        }
    }

    /// Deletes a task to make room for another one. Returns its scope.
    fn evict(&mut self, task: &EvictionCandidate) -> rusqlite::Result<i64> {
        let mut all = i64::MAX;
        self.clear_log(task.id, &mut all)?;
        self.forget(task)?;
        Ok(task.scope)
    }

    /// A task, if it ended before this and can be read. One that can't be read is reported once.
    fn readable(&mut self, id: i64, before: Millis) -> rusqlite::Result<Option<EvictionCandidate>> {
        if self.unreadable.0.contains(&id) {
            return Ok(None);
        }
        match self.ended(id, before) {
            // Corruption concerns the whole file.
            Err(error) if is_damage(&error) && !is_corruption(&error) => {
                self.unreadable.add(self.db, id, &error).map(|()| None)
            }
            found => found,
        }
    }

    /// Deletes some of an owner's tasks, in any state. Returns how many, and whether there are more. The last call
    /// deletes the owner's name.
    pub(super) fn forget_some_of(&mut self, owner: &Arc<str>) -> rusqlite::Result<(u64, bool)> {
        let sql = "SELECT task.id, task.scope, context, state FROM task JOIN scope ON scope.id = task.scope
            WHERE owner = ? LIMIT ?";
        let mut find = self.db.prepare_cached(sql)?;
        let some = find.query_map((&**owner, BATCH), |it| {
            let (context, owner) = (Arc::from(it.get_ref(2)?.as_str()?), Arc::clone(owner));
            Ok(EvictionCandidate { id: it.get(0)?, scope: it.get(1)?, context, state: it.get(3)?, owner })
        })?;
        let some = some.collect::<rusqlite::Result<Vec<_>>>()?;
        let (mut gone, mut left) = (0, PIECES);
        for it in &some {
            if !self.clear_log(it.id, &mut left)? {
                break;
            }
            self.forget(it)?;
            gone += 1;
        }
        if some.is_empty() {
            self.forget_scopes_of(owner)?;
        }
        Ok((gone, !some.is_empty()))
    }

    /// A task, if it ended before this.
    fn ended(&self, id: i64, before: Millis) -> rusqlite::Result<Option<EvictionCandidate>> {
        static SQL: LazyLock<String> = LazyLock::new(|| {
            format!(
                "SELECT scope, context, state, owner FROM task LEFT JOIN scope ON scope.id = task.scope
                 WHERE task.id = ? AND {ENDED} AND time < ?"
            )
        });
        let ended = |it: &Row<'_>| {
            // The owner is NULL where the row of its scope is missing: an unreadable value.
            let text = |at| Ok::<_, rusqlite::Error>(Arc::from(it.get_ref(at)?.as_str()?));
            Ok(EvictionCandidate { id, scope: it.get(0)?, context: text(1)?, state: it.get(2)?, owner: text(3)? })
        };
        self.db.prepare_cached(&SQL)?.query_row((id, before), ended).optional()
    }

    /// Deletes a task whose log has gone.
    fn forget(&mut self, ended: &EvictionCandidate) -> rusqlite::Result<()> {
        let id = ended.id;
        for table in ["checkpoint", "saved", "task"] {
            self.db.prepare_cached(&format!("DELETE FROM {table} WHERE id = ?"))?.execute([id])?;
        }
        for table in ["push", "send"] {
            self.db.prepare_cached(&format!("DELETE FROM {table} WHERE task = ?"))?.execute([id])?;
        }
        failpoint::at("sweep")?;
        self.moved((ended.scope, &ended.context), Some(ended.state), None)?;
        let had_ended = TaskState::try_from(ended.state).is_ok_and(TaskState::is_terminal);
        self.room.moved(&ended.owner, Some(had_ended), None);
        Ok(())
    }

    /// Deletes the rows of an owner, in all tenants, who has no tasks.
    fn forget_scopes_of(&mut self, owner: &str) -> rusqlite::Result<()> {
        let mut find = self.db.prepare_cached("SELECT id FROM scope WHERE owner = ?")?;
        let scopes = find.query_map([owner], |it| it.get(0))?.collect::<rusqlite::Result<Vec<_>>>()?;
        scopes.into_iter().try_for_each(|scope| self.forget_scope(scope))
    }

    /// Deletes the row of an owner in a tenant, unless there is a task of theirs.
    pub(super) fn forget_scope(&mut self, scope: i64) -> rusqlite::Result<()> {
        let sql = "DELETE FROM scope WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM task WHERE scope = ?1)
            RETURNING owner, tenant";
        let deleted = self.db.prepare_cached(sql)?.query_row([scope], |row| {
            Ok(Scope { owner: row.get_ref(0)?.as_str()?.into(), tenant: row.get_ref(1)?.as_str()?.into() })
        });
        if let Some(deleted) = deleted.optional()? {
            self.scopes.remove(&deleted);
            self.uncount(scope)?;
        }
        Ok(())
    }
}
