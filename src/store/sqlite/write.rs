//! What a commit writes: the row first, which says whether it may.

use std::sync::Arc;

use rusqlite::{OptionalExtension as _, Row as Found};

use super::{
    failpoint,
    log_rows::{halves, pack},
    number, push,
    writer::Transaction,
};
use crate::{
    event::{Position, Seq},
    pb::v1::TaskState,
    store::{Commit, Expect, Full, IdempotencyRecord, Key, Refused, Row, Scope, log_codec::TaskIds},
};

/// In the number of a piece of log, that of its first event has so many bits.
pub(super) const SEQ_BITS: u32 = 28;

/// Where a row stands.
pub(super) struct RowPosition {
    pub(super) id: i64,
    pub(super) at: Position,
    state: i32,
    time: i64,
    open: bool,
}

/// The number of the piece of a log that begins with this event. There is none where a task has more than 2^28.
pub(super) fn piece(task: i64, first: Seq) -> rusqlite::Result<i64> {
    let seq = i64::try_from(first).ok().filter(|it| it >> SEQ_BITS == 0);
    seq.map(|it| task << SEQ_BITS | it).ok_or_else(|| too_large("a task has too many events"))
}

/// The number of the first event of a piece.
pub(super) fn first_of(piece: i64) -> Seq {
    number(piece & ((1 << SEQ_BITS) - 1))
}

/// Something is not as we write it.
pub(super) fn damaged(what: &'static str) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Blob, what.into())
}

/// What somebody wanted can't be done.
pub(super) fn refused(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> rusqlite::Error {
    rusqlite::Error::ToSqlConversionFailure(why.into())
}

/// Something can't be written.
fn too_large(what: &'static str) -> rusqlite::Error {
    rusqlite::Error::ToSqlConversionFailure(what.into())
}

/// A log of so many bytes, all of which came at once, is its own checkpoint: it is read as soon as one, and written once.
pub(super) const SHORT: usize = 2 << 10;

impl Transaction<'_> {
    /// Writes a commit, or says why not: then it has changed nothing.
    pub(super) fn commit(&mut self, commit: &Commit) -> rusqlite::Result<Result<(), Refused>> {
        let outcome = match &commit.expect {
            Expect::New => self.begin(commit),
            Expect::At(at) => self.go_on(commit, *at),
        };
        failpoint::at("batch.task").and(outcome)
    }

    fn begin(&mut self, commit: &Commit) -> rusqlite::Result<Result<(), Refused>> {
        let Commit { key, row, .. } = commit;
        let scope = match self.admit(key, &commit.sends)? {
            Ok(it) => it,
            Err(why) => return Ok(Err(why)),
        };
        let sql =
            "INSERT INTO task(scope, key, context, state, time, seq, fence, open, taken, cancel, attempt, drained, asked, pushes)
            VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0) ON CONFLICT(scope, key) DO NOTHING";
        let (state, seq, fence, taken) =
            (i32::from(row.state), signed(row.seq)?, signed(commit.fence)?, signed(row.delivered_seq)?);
        let made = self.new_task.get(self.db, sql)?.execute((
            scope,
            key.id(),
            &*row.context,
            state,
            row.time,
            seq,
            fence,
            row.open,
            taken,
            row.cancel_requested,
            row.attempt,
            row.drained,
            commit.turn_contexts.as_deref(),
        ))?;
        if made == 0 {
            return Ok(Err(Refused::Stale(self.find(scope, key)?.map(|it| it.at))));
        }
        let task = self.db.last_insert_rowid();
        self.keep_sends(scope, task, &commit.sends)?;
        self.came(scope, task, key, row)?;
        self.put_down(task, commit)?;
        Ok(Ok(()))
    }

    /// Sees to it that there is room for a new task, and says whose number it has.
    pub(super) fn admit(&mut self, key: &Key, sends: &[IdempotencyRecord]) -> rusqlite::Result<Result<i64, Refused>> {
        let known = self.scope(key.scope())?;
        let owner = &key.scope().owner;
        let crowded = self.room.is_full().is_some() || self.room.is_full_for(owner).is_some();
        if let Some(scope) = known
            && (!sends.is_empty() || crowded)
        {
            // What was there before must not cost another task its place.
            if let Some(it) = self.find(scope, key)? {
                return Ok(Err(Refused::Stale(Some(it.at))));
            }
            if let Some(task_id) = self.sent(scope, sends)? {
                return Ok(Err(Refused::Duplicate { task_id }));
            }
        }
        let evicted = match self.make_room(owner)? {
            Ok(evicted) => evicted,
            Err(full) => return Ok(Err(Refused::Full(full))),
        };
        // The scope of the new task stays.
        for scope in evicted.into_iter().filter(|scope| Some(*scope) != known) {
            self.forget_scope(scope)?;
        }
        known.map_or_else(|| self.new_scope(key.scope()), Ok).map(Ok)
    }

    /// A new task is there.
    pub(super) fn came(&mut self, scope: i64, task: i64, key: &Key, row: &Row) -> rusqlite::Result<()> {
        self.moved((scope, &row.context), None, Some(row.state.into()))?;
        self.joined((scope, &row.context), task)?;
        self.room.moved(&key.scope().owner, None, Some(row.state.is_terminal()));
        Ok(())
    }

    /// Evicts tasks for a new one of this owner: their own where they have as many as they may, and then of all. Returns
    /// the scopes of the evicted tasks, or why the new task is refused; then nothing was evicted.
    ///
    /// One eviction makes the new task acceptable to both limits: the number of tasks does not rise. Where a limit was
    /// lowered below what is kept, two are evicted for each new task, so that the number falls.
    fn make_room(&mut self, owner: &Arc<str>) -> rusqlite::Result<Result<Vec<i64>, Full>> {
        const EACH: usize = 2;
        let mut evicted = Vec::new();
        for _ in 0..EACH {
            let Some(full) = self.room.is_full_for(owner) else { break };
            match self.evict_oldest_of(owner)? {
                Some(scope) => evicted.push(scope),
                None if evicted.is_empty() => return Ok(Err(full)),
                None => break,
            }
        }
        for _ in 0..EACH {
            let Some(full) = self.room.is_full() else { break };
            match self.evict_oldest()? {
                Some(scope) => evicted.push(scope),
                None if evicted.is_empty() => return Ok(Err(full)),
                None => break,
            }
        }
        Ok(Ok(evicted))
    }

    fn go_on(&mut self, commit: &Commit, expected: Position) -> rusqlite::Result<Result<(), Refused>> {
        let Commit { key, row, .. } = commit;
        let Some(scope) = self.scope(key.scope())? else { return Ok(Err(Refused::Stale(None))) };
        let Some(old) = self.find(scope, key)? else { return Ok(Err(Refused::Stale(None))) };
        if old.at != expected {
            return Ok(Err(Refused::Stale(Some(old.at))));
        }
        if let Some(task_id) = self.sent(scope, &commit.sends)? {
            return Ok(Err(Refused::Duplicate { task_id }));
        }
        self.update(&old, commit)?;
        self.keep_sends(scope, old.id, &commit.sends)?;
        let state = i32::from(row.state);
        if old.state != state {
            self.moved((scope, &row.context), Some(old.state), Some(state))?;
            let had_ended = TaskState::try_from(old.state).is_ok_and(TaskState::is_terminal);
            self.room.moved(&key.scope().owner, Some(had_ended), Some(row.state.is_terminal()));
        }
        self.put_down(old.id, commit)?;
        if row.state.is_terminal() {
            self.db.prepare_cached("DELETE FROM saved WHERE id = ?")?.execute([old.id])?;
        }
        Ok(Ok(()))
    }

    /// Most commits add to a log and change nothing that an index has: then none of them is touched.
    fn update(&self, old: &RowPosition, commit: &Commit) -> rusqlite::Result<()> {
        let Row { seq, state, time, open, delivered_seq: taken, cancel_requested, attempt, drained, .. } = &commit.row;
        let (seq, fence, taken) = (signed(*seq)?, signed(commit.fence)?, signed(*taken)?);
        if (old.state, old.time, old.open) == (i32::from(*state), *time, *open) {
            let sql =
                "UPDATE task SET seq = ?, fence = ?, taken = ?, cancel = ?, attempt = ?, drained = ? WHERE id = ?";
            let row = (seq, fence, taken, cancel_requested, attempt, drained, old.id);
            self.db.prepare_cached(sql)?.execute(row)?;
        } else {
            let sql = "UPDATE task SET seq = ?, fence = ?, taken = ?, cancel = ?, attempt = ?, drained = ?, state = ?,
                time = ?, open = ? WHERE id = ?";
            let state = i32::from(*state);
            let row = (seq, fence, taken, cancel_requested, attempt, drained, state, time, open, old.id);
            self.db.prepare_cached(sql)?.execute(row)?;
        }
        if let Some(it) = &commit.turn_contexts {
            self.db.prepare_cached("UPDATE task SET asked = ? WHERE id = ?")?.execute((&**it, old.id))?;
        }
        Ok(())
    }

    /// The task that has one of these sends already.
    fn sent(&self, scope: i64, sends: &[IdempotencyRecord]) -> rusqlite::Result<Option<Box<str>>> {
        let sql = "SELECT t.key FROM send s JOIN task t ON t.id = s.task WHERE s.scope = ? AND s.key = ?";
        for it in sends {
            let made = self.db.prepare_cached(sql)?.query_row((scope, &*it.key), |it| it.get(0)).optional()?;
            if made.is_some() {
                return Ok(made);
            }
        }
        Ok(None)
    }

    fn keep_sends(&self, scope: i64, task: i64, sends: &[IdempotencyRecord]) -> rusqlite::Result<()> {
        for IdempotencyRecord { key, hash, seq, time } in sends {
            let sql = "INSERT INTO send VALUES(?, ?, ?, ?, ?, ?)";
            self.db.prepare_cached(sql)?.execute((scope, &**key, hash, time, task, signed(*seq)?))?;
        }
        Ok(())
    }

    /// What is beside the row.
    fn put_down(&mut self, id: i64, commit: &Commit) -> rusqlite::Result<()> {
        let mut is_short = false;
        if let Some(first) = commit.events.first() {
            let (sql, events) = (
                "INSERT INTO log VALUES(?, ?)",
                pack(&commit.events, TaskIds { id: commit.key.id(), context: &commit.row.context }),
            );
            is_short = commit.expect == Expect::New && events.len() <= SHORT;
            self.new_piece.get(self.db, sql)?.execute((piece(id, first.seq())?, events))?;
        }
        if let Some(task) = commit.checkpoint.as_ref().filter(|_| !is_short) {
            let sql = "INSERT OR REPLACE INTO checkpoint VALUES(?, ?, ?, ?)";
            let [head, artifacts] = halves(task);
            self.db.prepare_cached(sql)?.execute((id, signed(commit.row.seq)?, head, artifacts))?;
        }
        if let Some(it) = &commit.agent_state {
            self.db.prepare_cached("INSERT OR REPLACE INTO saved VALUES(?, ?)")?.execute((id, &**it))?;
        }
        if let Some(it) = &commit.push {
            // Who sent it has counted those that there are.
            push::keep(self.db, id, it, usize::MAX)?;
        }
        Ok(())
    }

    /// Where a task stands.
    pub(super) fn find(&self, scope: i64, key: &Key) -> rusqlite::Result<Option<RowPosition>> {
        let sql = "SELECT id, seq, fence, state, time, open FROM task WHERE scope = ? AND key = ?";
        let place = |it: &Found<'_>| {
            let at = Position { seq: number(it.get(1)?), fence: number(it.get(2)?) };
            Ok(RowPosition { id: it.get(0)?, at, state: it.get(3)?, time: it.get(4)?, open: it.get(5)? })
        };
        self.db.prepare_cached(sql)?.query_row((scope, key.id()), place).optional()
    }

    /// The number of an owner, if there is anything of theirs.
    pub(super) fn scope(&mut self, scope: &Arc<Scope>) -> rusqlite::Result<Option<i64>> {
        if let Some(it) = self.scopes.get(scope) {
            return Ok(Some(*it));
        }
        let sql = "SELECT id FROM scope WHERE owner = ? AND tenant = ?";
        let found =
            self.db.prepare_cached(sql)?.query_row((&*scope.owner, &*scope.tenant), |it| it.get(0)).optional()?;
        if let Some(it) = found {
            self.scopes.insert(Arc::clone(scope), it);
        }
        Ok(found)
    }

    pub(super) fn new_scope(&mut self, scope: &Arc<Scope>) -> rusqlite::Result<i64> {
        let sql = "INSERT INTO scope(owner, tenant) VALUES(?, ?)";
        self.db.prepare_cached(sql)?.execute((&*scope.owner, &*scope.tenant))?;
        let id = self.db.last_insert_rowid();
        self.scopes.insert(Arc::clone(scope), id);
        Ok(id)
    }
}

/// A number as SQLite has them.
pub(super) fn signed(it: u64) -> rusqlite::Result<i64> {
    i64::try_from(it).map_err(|_| too_large("a number is too large"))
}
