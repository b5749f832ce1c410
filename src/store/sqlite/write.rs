//! Writes of tasks: commits, which check the position of the row, insert or update it, and append the event log; and
//! claims of the unfinished turns that an earlier opening of the database left behind.

use std::{ops::Range, sync::Arc};

use rusqlite::{OptionalExtension as _, Row};

use super::{
    Claim, Commit, Damaged, Fence, Full, Position, Refused, Scope, StoredTask, TaskIds, TaskKey, TaskState, delivery,
    failpoint, read,
    transaction::WriteTransaction,
    values::{is_damage, is_unreadable, log_row_id, signed, unsigned},
};
use crate::{
    base::metric,
    store::{
        Expect, IdempotencyRecord, Rejected, TaskHead,
        log_codec::{self, OpenLog},
        log_rows::{MAX_INLINE_BYTES, encode_events, single_row_task, split_task},
        turn_record::created,
    },
};

/// Row id and indexed columns of a task.
pub(super) struct TaskRow {
    pub(super) id: i64,
    pub(super) position: Position,
    state: i32,
    time: i64,
    open: bool,
}

impl WriteTransaction<'_> {
    /// Writes a commit of a batch. If it is refused, it has no effect.
    pub(super) fn commit(&mut self, batch: &CommitBatch, n: usize) -> rusqlite::Result<Result<(), Refused>> {
        let CommitBatch { commits, bytes, encoded } = batch;
        let commit = &commits[n];
        let outcome = match &commit.expect {
            Expect::New => self.create_task(commit, encoded[n].clone().map(|range| &bytes[range])),
            Expect::At(position) => self.update_task(commit, *position),
        };
        failpoint::at("batch.task").and(outcome)
    }

    /// Creates a task. With `whole`, its row contains its checkpoint and its log.
    fn create_task(&mut self, commit: &Commit, whole: Option<&[u8]>) -> rusqlite::Result<Result<(), Refused>> {
        let Commit { key, row, .. } = commit;
        let scope = match self.admit(key, &commit.sends, commit.push.is_some())? {
            Ok(scope) => scope,
            Err(refused) => return Ok(Err(refused)),
        };
        let sql =
            "INSERT INTO task(scope, key, context, state, time, seq, fence, open, taken, cancel, attempt, drained,
                asked, whole, turn, pushes)
            VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0) ON CONFLICT(scope, key) DO NOTHING";
        let TaskHead { context, time, open, cancel_requested: cancel, attempt, drained, .. } = row;
        let (id, context, state) = (key.id(), &**context, i32::from(row.state));
        let (seq, fence, taken) = (signed(row.seq)?, signed(commit.fence)?, signed(row.delivered_seq)?);
        let asked = commit.turn_contexts.as_deref().filter(|_| whole.is_none());
        let turn = commit.turns.as_deref().filter(|_| row.state.is_terminal());
        let columns =
            (scope, id, context, state, time, seq, fence, open, taken, cancel, attempt, drained, asked, whole, turn);
        let inserted = self.db.prepare_cached(sql)?.execute(columns)?;
        if inserted == 0 {
            return Ok(Err(Refused::Stale(self.find(scope, key)?.map(|existing| existing.position))));
        }
        let task = self.db.last_insert_rowid();
        self.insert_sends(scope, task, &commit.sends)?;
        self.count_new_task(scope, task, key, row)?;
        if whole.is_none() {
            self.write_details(task, commit)?;
        }
        Ok(Ok(()))
    }

    /// Admits a new task: evicts others if the quota requires it. Returns the row id of the scope.
    fn admit(
        &mut self,
        key: &TaskKey,
        sends: &[IdempotencyRecord],
        has_push: bool,
    ) -> rusqlite::Result<Result<i64, Refused>> {
        let known = self.scope(key.scope())?;
        let owner = &key.scope().owner;
        let (is_full, max_push_configs) = {
            let quota = self.quota.lock();
            let is_full = quota.full(None).is_some() || quota.full(Some(owner)).is_some();
            (is_full, quota.max_push_configs_per_owner)
        };
        let push_full = if has_push { delivery::is_full_for(self.db, owner, max_push_configs)? } else { None };
        if let Some(scope) = known
            && (!sends.is_empty() || is_full || push_full.is_some())
        {
            // A retry of a committed change must not evict another task.
            if let Some(existing) = self.find(scope, key)? {
                return Ok(Err(Refused::Stale(Some(existing.position))));
            }
            if let Some(task_id) = self.find_duplicate(scope, sends)? {
                return Ok(Err(Refused::Rejected(Rejected::Duplicate { task_id })));
            }
        }
        if let Some(full) = push_full {
            return Ok(Err(Refused::Rejected(Rejected::Full(full))));
        }
        let evicted = match self.evict_for(owner)? {
            Ok(evicted) => evicted,
            Err(full) => return Ok(Err(Refused::Rejected(Rejected::Full(full)))),
        };
        // The scope of the new task stays.
        for scope in evicted.into_iter().filter(|scope| Some(*scope) != known) {
            self.delete_empty_scope(scope)?;
        }
        known.map_or_else(|| self.insert_scope(key.scope()), Ok).map(Ok)
    }

    /// Adds a new task to the counters.
    fn count_new_task(&mut self, scope: i64, task: i64, key: &TaskKey, row: &TaskHead) -> rusqlite::Result<()> {
        self.count_transition((scope, &row.context), None, Some(row.state.into()))?;
        self.detect_large_context((scope, &row.context), task)?;
        self.count_for_quota(&key.scope().owner, None, Some(row.state.is_terminal()));
        if row.state.is_terminal() {
            self.eviction_starts.lower(&key.scope().owner, row.time);
        }
        Ok(())
    }

    /// Evicts tasks for a new one of this owner: first the owner's, up to the owner's limit, and then any. Returns
    /// the scopes of the evicted tasks, or why the new task is refused; then nothing was evicted.
    ///
    /// A single eviction makes the new task acceptable to both limits: the number of tasks does not rise. If a limit was
    /// lowered below the number of stored tasks, two are evicted for each new task, so that the number falls.
    fn evict_for(&mut self, owner: &Arc<str>) -> rusqlite::Result<Result<Vec<i64>, Full>> {
        const MAX_EVICTIONS: usize = 2;
        let mut evicted = Vec::new();
        for owner in [Some(&**owner), None] {
            for _ in 0..MAX_EVICTIONS {
                let Some(full) = self.quota.lock().full(owner) else { break };
                match self.evict_oldest(owner)? {
                    Some(scope) => {
                        metric::STORE_EVICTED.add(None, &[full.limit], 1);
                        evicted.push(scope);
                    }
                    None if evicted.is_empty() => return Ok(Err(full)),
                    None => break,
                }
            }
        }
        Ok(Ok(evicted))
    }

    fn update_task(&mut self, commit: &Commit, expected: Position) -> rusqlite::Result<Result<(), Refused>> {
        let Commit { key, row, .. } = commit;
        let Some(scope) = self.scope(key.scope())? else { return Ok(Err(Refused::Stale(None))) };
        let Some(old) = self.find(scope, key)? else { return Ok(Err(Refused::Stale(None))) };
        if old.position != expected {
            return Ok(Err(Refused::Stale(Some(old.position))));
        }
        if let Some(task_id) = self.find_duplicate(scope, &commit.sends)? {
            return Ok(Err(Refused::Rejected(Rejected::Duplicate { task_id })));
        }
        self.update_row(&old, commit)?;
        self.insert_sends(scope, old.id, &commit.sends)?;
        let state = i32::from(row.state);
        if old.state != state {
            self.count_transition((scope, &row.context), Some(old.state), Some(state))?;
            let was_terminal = TaskState::try_from(old.state).is_ok_and(TaskState::is_terminal);
            self.count_for_quota(&key.scope().owner, Some(was_terminal), Some(row.state.is_terminal()));
        }
        self.write_details(old.id, commit)?;
        if row.state.is_terminal() {
            self.eviction_starts.lower(&key.scope().owner, row.time);
            self.db.prepare_cached("DELETE FROM saved WHERE id = ?")?.execute([old.id])?;
        }
        Ok(Ok(()))
    }

    /// Updates the row. Most commits change no indexed column: SQLite then updates no index.
    fn update_row(&self, old: &TaskRow, commit: &Commit) -> rusqlite::Result<()> {
        let TaskHead { seq, state, time, open, delivered_seq, cancel_requested, attempt, drained, .. } = &commit.row;
        let (seq, fence, delivered_seq) = (signed(*seq)?, signed(commit.fence)?, signed(*delivered_seq)?);
        if (old.state, old.time, old.open) == (i32::from(*state), *time, *open) {
            let sql =
                "UPDATE task SET seq = ?, fence = ?, taken = ?, cancel = ?, attempt = ?, drained = ? WHERE id = ?";
            let row = (seq, fence, delivered_seq, cancel_requested, attempt, drained, old.id);
            self.db.prepare_cached(sql)?.execute(row)?;
        } else {
            let sql = "UPDATE task SET seq = ?, fence = ?, taken = ?, cancel = ?, attempt = ?, drained = ?, state = ?,
                time = ?, open = ? WHERE id = ?";
            let state = i32::from(*state);
            let row = (seq, fence, delivered_seq, cancel_requested, attempt, drained, state, time, open, old.id);
            self.db.prepare_cached(sql)?.execute(row)?;
        }
        if let Some(contexts) = &commit.turn_contexts {
            self.db.prepare_cached("UPDATE task SET asked = ? WHERE id = ?")?.execute((&**contexts, old.id))?;
        }
        if let Some(turns) = commit.turns.as_deref().filter(|_| state.is_terminal()) {
            self.db.prepare_cached("UPDATE task SET turn = ? WHERE id = ?")?.execute((turns, old.id))?;
        }
        Ok(())
    }

    /// Returns the id of a task that has one of these idempotency keys.
    fn find_duplicate(&self, scope: i64, sends: &[IdempotencyRecord]) -> rusqlite::Result<Option<Box<str>>> {
        let sql = "SELECT t.key FROM send s JOIN task t ON t.id = s.task WHERE s.scope = ? AND s.key = ?";
        for send in sends {
            let found = self.db.prepare_cached(sql)?.query_row((scope, &*send.key), |row| row.get(0)).optional()?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn insert_sends(&self, scope: i64, task: i64, sends: &[IdempotencyRecord]) -> rusqlite::Result<()> {
        for IdempotencyRecord { key, hash, seq, time } in sends {
            let sql = "INSERT INTO send VALUES(?, ?, ?, ?, ?, ?)";
            self.db.prepare_cached(sql)?.execute((scope, &**key, hash, time, task, signed(*seq)?))?;
        }
        Ok(())
    }

    /// Writes the parts of a commit that are in other tables: events, checkpoint, agent state and push configuration.
    fn write_details(&mut self, id: i64, commit: &Commit) -> rusqlite::Result<()> {
        let mut is_short = false;
        if let Some(first) = commit.events.first() {
            let ids = TaskIds { id: commit.key.id(), context: &commit.row.context };
            let (sql, events) = ("INSERT INTO log VALUES(?, ?, ?, ?)", encode_events(&commit.events, ids));
            is_short = commit.expect == Expect::New && events.len() <= MAX_INLINE_BYTES;
            let at = commit.time.saturating_sub(created(commit.key.id())).max(0);
            let turns = commit.turns.as_deref().filter(|_| !commit.row.state.is_terminal());
            self.db.prepare_cached(sql)?.execute((log_row_id(id, first.seq())?, events, at, turns))?;
        }
        if let Some(task) = commit.checkpoint.as_ref().filter(|_| !is_short) {
            let sql = "INSERT OR REPLACE INTO checkpoint VALUES(?, ?, ?, ?)";
            let [head, artifacts] = split_task(task);
            let mut insert = self.db.prepare_cached(sql)?;
            insert.raw_bind_parameter(1, id)?;
            insert.raw_bind_parameter(2, signed(commit.row.seq)?)?;
            insert.raw_bind_parameter(3, head)?;
            // SQLite makes two copies. This one is dropped before the second.
            insert.raw_bind_parameter(4, artifacts)?;
            insert.raw_execute()?;
        }
        if let Some(state) = &commit.agent_state {
            self.db.prepare_cached("INSERT OR REPLACE INTO saved VALUES(?, ?)")?.execute((id, &**state))?;
        }
        if let Some(push) = &commit.push {
            // The caller has checked the limit.
            let cursor = commit.expected_position().map_or(0, |position| position.seq);
            delivery::put(self.db, id, push, cursor)?;
        }
        Ok(())
    }

    /// Finds the row of a task.
    pub(super) fn find(&self, scope: i64, key: &TaskKey) -> rusqlite::Result<Option<TaskRow>> {
        let sql = "SELECT id, seq, fence, state, time, open FROM task WHERE scope = ? AND key = ?";
        let task_row = |row: &Row<'_>| {
            let position = Position { seq: unsigned(row.get(1)?), fence: unsigned(row.get(2)?) };
            Ok(TaskRow { id: row.get(0)?, position, state: row.get(3)?, time: row.get(4)?, open: row.get(5)? })
        };
        self.db.prepare_cached(sql)?.query_row((scope, key.id()), task_row).optional()
    }

    /// Returns the row id of a scope, if it has a row.
    pub(super) fn scope(&mut self, scope: &Arc<Scope>) -> rusqlite::Result<Option<i64>> {
        if let Some(id) = self.scopes.get(scope) {
            return Ok(Some(*id));
        }
        let sql = "SELECT id FROM scope WHERE owner = ? AND tenant = ?";
        let found =
            self.db.prepare_cached(sql)?.query_row((&*scope.owner, &*scope.tenant), |row| row.get(0)).optional()?;
        if let Some(id) = found {
            self.scopes.insert(Arc::clone(scope), id);
        }
        Ok(found)
    }

    pub(super) fn insert_scope(&mut self, scope: &Arc<Scope>) -> rusqlite::Result<i64> {
        let sql = "INSERT INTO scope(owner, tenant) VALUES(?, ?)";
        self.db.prepare_cached(sql)?.execute((&*scope.owner, &*scope.tenant))?;
        let id = self.db.last_insert_rowid();
        self.scopes.insert(Arc::clone(scope), id);
        Ok(id)
    }
}

/// Batch of commits. Short tasks that end with their first commit are encoded in advance, by the caller instead of the
/// writer thread.
pub(super) struct CommitBatch {
    commits: Arc<[Commit]>,
    bytes: Vec<u8>,
    /// Ranges of the encoded tasks in `bytes`, one entry per commit.
    encoded: Vec<Option<Range<usize>>>,
}

impl CommitBatch {
    pub(super) fn new(commits: Arc<[Commit]>) -> Self {
        let (mut bytes, mut encoded) = (Vec::new(), Vec::with_capacity(commits.len()));
        for commit in &*commits {
            let start = bytes.len();
            let ids = TaskIds { id: commit.key.id(), context: &commit.row.context };
            let index = single_row_task(commit).and_then(|task| {
                let log = OpenLog::default();
                log_codec::encode_sealed(task, &log, &commit.events, ids, MAX_INLINE_BYTES, &mut bytes)
            });
            encoded.push(index.map(|_| start..bytes.len()));
        }
        Self { commits, bytes, encoded }
    }
}

/// Selects rows of unfinished turns of earlier openings, after a row.
pub(super) const UNFINISHED: &str =
    "SELECT id FROM task WHERE open = 1 AND fence < ?1 AND id > ?2 ORDER BY id LIMIT ?3";

/// Claims of unfinished turns.
impl WriteTransaction<'_> {
    /// Claims at most `limit` rows after a row for the opening with this fence. No other process has the file open,
    /// so that no other process runs these turns. Also returns the last row that was examined.
    ///
    /// A row that can't be read does not fail the claims of others. It is returned unchanged, and not counted as an
    /// attempt.
    pub(super) fn claim(&mut self, fence: Fence, after: i64, limit: usize) -> rusqlite::Result<(Vec<Claim>, i64)> {
        let (mut claims, mut last) = (Vec::new(), after);
        // Skipped rows do not count against the limit.
        while claims.len() < limit {
            let ids = self.open_rows(fence, last, limit - claims.len())?;
            if ids.is_empty() {
                break;
            }
            for id in ids {
                last = id;
                let key = match read::key_of(self.db, id) {
                    Ok(key) => key,
                    Err(error) if is_unreadable(&error) => {
                        tracing::error!(
                            task.row = id, error.cause = %error,
                            "unfinished task without a readable key skipped; see `a2a admin check`"
                        );
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                let claimed = match self.claim_row(fence, id) {
                    Ok(stored) => Ok(stored),
                    Err(error) if is_damage(&error) => Err(Damaged(error.to_string())),
                    Err(error) => return Err(error),
                };
                failpoint::at("claim")?;
                claims.push((key, claimed));
            }
        }
        Ok((claims, last))
    }

    fn open_rows(&self, fence: Fence, after: i64, limit: usize) -> rusqlite::Result<Vec<i64>> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut query = self.db.prepare_cached(UNFINISHED)?;
        query.query_map((signed(fence)?, after, limit), |row| row.get(0))?.collect()
    }

    fn claim_row(&self, fence: Fence, id: i64) -> rusqlite::Result<StoredTask> {
        let mut stored = read::load_row(self.db, id)?;
        stored.position.fence = fence;
        if stored.row.attempt > 0 {
            stored.row.attempt = stored.row.attempt.saturating_add(1);
        }
        let sql = "UPDATE task SET fence = ?, attempt = ? WHERE id = ?";
        self.db.prepare_cached(sql)?.execute((signed(fence)?, stored.row.attempt, id))?;
        Ok(stored)
    }
}
