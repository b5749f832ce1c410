//! Reads of a task: row, checkpoint, event log, and idempotency records.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use rusqlite::{CachedStatement, Connection, OptionalExtension as _, Row};

use super::{
    Event, Position, Scope, SendOutcome, Seq, StoredTask, Task, TaskIds, TaskKey, TaskState,
    values::{SEQ_BITS, damaged, first_seq, log_row_id, unsigned},
};
use crate::{
    protocol::{snapshot::Snapshot, task::apply_owned},
    store::{
        LogSummary, READ_BATCH, READ_BYTES, TaskHead, TurnRecord,
        log_codec::SealedLog,
        log_rows::{decode_events, decode_task, is_artifact_update, join_task},
        up_to_bytes,
    },
};

/// Columns that [`stored_task`] decodes.
const COLUMNS: &str = "t.seq, t.fence, t.context, t.state, t.time, t.open, t.taken, t.cancel, t.attempt, c.seq, c.task, c.artifacts, s.bytes, t.asked, t.whole, t.drained";

/// Tables of the columns.
const TABLES: &str =
    "task t LEFT JOIN checkpoint c ON c.id = t.id AND t.whole IS NULL LEFT JOIN saved s ON s.id = t.id";

/// Returns the row id of a task, if it exists.
pub(super) fn row_id(db: &Connection, key: &TaskKey) -> rusqlite::Result<Option<i64>> {
    let sql = "SELECT id FROM task WHERE scope = (SELECT id FROM scope WHERE owner = ? AND tenant = ?) AND key = ?";
    let (owner, tenant) = (&*key.scope().owner, &*key.scope().tenant);
    db.prepare_cached(sql)?.query_row((owner, tenant, key.id()), |row| row.get(0)).optional()
}

/// Reads the key of a task.
pub(super) fn key_of(db: &Connection, id: i64) -> rusqlite::Result<TaskKey> {
    let sql = "SELECT o.owner, o.tenant, t.key FROM task t JOIN scope o ON o.id = t.scope WHERE t.id = ?";
    db.prepare_cached(sql)?.query_row([id], |row| Ok(TaskKey::new(&Arc::new(scope(row)?), row.get_ref(2)?.as_str()?)))
}

/// Decodes the columns `owner` and `tenant`, which are the first ones.
pub(super) fn scope(row: &Row<'_>) -> rusqlite::Result<Scope> {
    Ok(Scope { owner: row.get_ref(0)?.as_str()?.into(), tenant: row.get_ref(1)?.as_str()?.into() })
}

/// Loads the row and the checkpoint of a task.
pub(super) fn load(db: &Connection, key: &TaskKey) -> rusqlite::Result<Option<StoredTask>> {
    static SQL: LazyLock<String> = LazyLock::new(|| {
        format!(
            "SELECT {COLUMNS} FROM {TABLES}
             WHERE t.scope = (SELECT id FROM scope WHERE owner = ? AND tenant = ?) AND t.key = ?"
        )
    });
    let (owner, tenant) = (&*key.scope().owner, &*key.scope().tenant);
    db.prepare_cached(&SQL)?.query_row((owner, tenant, key.id()), stored_task).optional()
}

/// Loads the row and the checkpoint of a task by its row id.
pub(super) fn load_row(db: &Connection, id: i64) -> rusqlite::Result<StoredTask> {
    static SQL: LazyLock<String> = LazyLock::new(|| format!("SELECT {COLUMNS} FROM {TABLES} WHERE t.id = ?"));
    db.prepare_cached(&SQL)?.query_row([id], stored_task)
}

/// Decodes [`COLUMNS`].
fn stored_task(row: &Row<'_>) -> rusqlite::Result<StoredTask> {
    let position = Position { seq: unsigned(row.get(0)?), fence: unsigned(row.get(1)?) };
    let state = TaskState::try_from(row.get::<_, i32>(3)?).map_err(|_| damaged("unknown task state"))?;
    let checkpoint = match (row.get_ref(14)?.as_blob_or_null()?, row.get::<_, Option<i64>>(9)?) {
        (Some(bytes), _) => Some((position.seq, sealed_log(bytes).snapshot().ok_or_else(undecodable)?)),
        (None, Some(seq)) => {
            let task = join_task(row.get_ref(10)?.as_blob()?, row.get_ref(11)?.as_blob()?);
            Some((unsigned(seq), Snapshot::from_proto(task)))
        }
        (None, None) => None,
    };
    let agent_state = row.get_ref(12)?.as_blob_or_null()?.map(Bytes::copy_from_slice);
    let turn_contexts = row.get_ref(13)?.as_blob_or_null()?.map(Bytes::copy_from_slice);
    let row = TaskHead {
        context: Arc::from(row.get_ref(2)?.as_str()?),
        seq: position.seq,
        state,
        time: row.get(4)?,
        open: row.get(5)?,
        delivered_seq: unsigned(row.get(6)?),
        cancel_requested: row.get(7)?,
        attempt: row.get(8)?,
        drained: row.get(15)?,
    };
    Ok(StoredTask { position, row, checkpoint, agent_state, turn_contexts, tail: Vec::new(), log: None })
}

/// Summary of the log of a task. SQLite determines the length of a blob without reading it.
pub(super) fn log_summary(db: &Connection, task: i64) -> rusqlite::Result<LogSummary> {
    let sql = "SELECT ifnull(sum(length(events)), 0) FROM log WHERE id >= ? AND id < ?";
    let range = (log_row_id(task, 0)?, log_row_id(task + 1, 0)?);
    let bytes: i64 = db.prepare_cached(sql)?.query_row(range, |row| row.get(0))?;
    let sql = "SELECT turn FROM log WHERE id >= ? AND id < ? AND turn IS NOT NULL ORDER BY id DESC LIMIT 1";
    let newest = db.prepare_cached(sql)?.query_row(range, |row| row.get::<_, Vec<u8>>(0)).optional()?;
    let newest = newest.and_then(|turns| TurnRecord::decode("", [&*turns])).unwrap_or_default();
    Ok(LogSummary {
        bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
        ended_turns: LogSummary::ended_turns(&newest),
    })
}

/// Returns the stored records of the turns of a task.
pub(super) fn turns(db: &Connection, task: i64) -> rusqlite::Result<Vec<TurnRecord>> {
    let sql = "SELECT turn FROM log WHERE id >= ? AND id < ? AND turn IS NOT NULL ORDER BY id";
    let mut log = db.prepare_cached(sql)?;
    let log = log.query_map((log_row_id(task, 0)?, log_row_id(task + 1, 0)?), |row| row.get::<_, Vec<u8>>(0))?;
    let mut stored = log.collect::<rusqlite::Result<Vec<_>>>()?;
    let (key, own): (String, Option<Vec<u8>>) = db
        .prepare_cached("SELECT key, turn FROM task WHERE id = ?")?
        .query_row([task], |row| Ok((row.get(0)?, row.get(1)?)))?;
    stored.extend(own);
    TurnRecord::decode(&key, stored.iter().map(Vec::as_slice)).ok_or_else(|| damaged("a turn can't be decoded"))
}

/// Size of the tasks of a context in bytes: of their logs, or of their checkpoints if the logs were deleted. Counting stops at
/// the task that reaches `max`. SQLite determines the length of a blob without reading it.
pub(super) fn context_bytes(db: &Connection, scope: &Scope, context: &str, max: usize) -> rusqlite::Result<usize> {
    static SQL: LazyLock<String> = LazyLock::new(|| {
        let (first, end) = (format!("t.id << {SEQ_BITS}"), format!("(t.id + 1) << {SEQ_BITS}"));
        format!(
            "SELECT coalesce(length(t.whole),
                (SELECT sum(length(events)) FROM log WHERE id >= ({first}) AND id < ({end})),
                (SELECT length(task) + length(artifacts) FROM checkpoint WHERE id = t.id), 0)
             FROM task t WHERE t.scope = (SELECT id FROM scope WHERE owner = ? AND tenant = ?) AND t.context = ?"
        )
    });
    let mut sizes = db.prepare_cached(&SQL)?;
    let mut sizes = sizes.query((&*scope.owner, &*scope.tenant, context))?;
    let mut sum: usize = 0;
    while sum < max
        && let Some(size) = sizes.next()?
    {
        sum = sum.saturating_add(usize::try_from(size.get::<_, i64>(0)?).unwrap_or(usize::MAX));
    }
    Ok(sum)
}

/// Looks up a send by its idempotency key.
pub(super) fn find_send(db: &Connection, scope: &Scope, key: &str) -> rusqlite::Result<Option<SendOutcome>> {
    let sql = "SELECT t.key, s.seq, s.hash FROM send s JOIN task t ON t.id = s.task
        WHERE s.scope = (SELECT id FROM scope WHERE owner = ? AND tenant = ?) AND s.key = ?";
    let outcome = |row: &Row<'_>| {
        Ok(SendOutcome { task_id: row.get_ref(0)?.as_str()?.into(), seq: unsigned(row.get(1)?), hash: row.get(2)? })
    };
    db.prepare_cached(sql)?.query_row((&*scope.owner, &*scope.tenant, key), outcome).optional()
}

/// Wraps the column `whole`: a task in a terminal state with its log.
pub(super) fn sealed_log(bytes: &[u8]) -> SealedLog {
    SealedLog::from_bytes(Bytes::copy_from_slice(bytes))
}

/// Reads the events of a task that is stored as a sealed log in its row. Returns `None` for other tasks.
fn sealed_events(
    db: &Connection,
    task: i64,
    after: Seq,
    (limit, max_bytes): (usize, usize),
) -> rusqlite::Result<Option<Vec<Event>>> {
    let sql = "SELECT whole, key, context, seq FROM task WHERE id = ? AND whole IS NOT NULL";
    let events = |row: &Row<'_>| {
        let ids = TaskIds { id: row.get_ref(1)?.as_str()?, context: row.get_ref(2)?.as_str()? };
        let skip = usize::try_from(after).unwrap_or(usize::MAX);
        let log = sealed_log(row.get_ref(0)?.as_blob()?);
        let events = up_to_bytes(log.events(skip, ids).take(limit), max_bytes);
        let bytes: usize = events.iter().map(Event::approximate_size).sum();
        let is_complete = events.len() == limit
            || bytes >= max_bytes
            || events.last().map_or(after, Event::seq) >= unsigned(row.get(3)?);
        if is_complete { Ok(events) } else { Err(undecodable()) }
    };
    db.prepare_cached(sql)?.query_row([task], events).optional()
}

/// Reads at most `limit` events of a task after a sequence number, up to the one with which they have `max_bytes`.
pub(super) fn events(
    db: &Connection,
    task: i64,
    after: Seq,
    limit: usize,
    max_bytes: usize,
) -> rusqlite::Result<Vec<Event>> {
    if let Some(events) = sealed_events(db, task, after, (limit, max_bytes))? {
        return Ok(events);
    }
    let mut events = Vec::new();
    // A sequence number above the maximum is after all events.
    let Ok(next) = log_row_id(task, after.saturating_add(1)) else { return Ok(events) };
    let (first, end) = (log_row_id(task, 0)?, log_row_id(task + 1, 0)?);
    let (key, context) = db
        .prepare_cached("SELECT key, context FROM task WHERE id = ?")?
        .query_row([task], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))?;
    let ids = TaskIds { id: &key, context: &context };
    // Start at the last log row that begins at or before the next event.
    let sql = "SELECT id, events FROM log
        WHERE id >= ifnull((SELECT max(id) FROM log WHERE id BETWEEN ?1 AND ?2), ?1) AND id < ?3 ORDER BY id";
    let mut query = db.prepare_cached(sql)?;
    let mut rows = query.query((first, next, end))?;
    let mut bytes = 0;
    while events.len() < limit
        && (bytes < max_bytes || events.is_empty())
        && let Some(row) = rows.next()?
    {
        let encoded = Bytes::copy_from_slice(row.get_ref(1)?.as_blob()?);
        let decoded = decode_events(first_seq(row.get(0)?), encoded, ids).ok_or_else(undecodable)?;
        for event in decoded.into_iter().filter(|event| event.seq() > after) {
            if events.len() == limit || bytes >= max_bytes && !events.is_empty() {
                break;
            }
            bytes += event.approximate_size();
            events.push(event);
        }
    }
    Ok(events)
}

/// Reads the current state of several tasks, with or without their artifacts. Artifacts in checkpoints are not read unless
/// they are requested.
pub(super) struct TaskReader<'a> {
    db: &'a Connection,
    query: CachedStatement<'a>,
    include_artifacts: bool,
}

impl<'a> TaskReader<'a> {
    pub(super) fn new(db: &'a Connection, include_artifacts: bool) -> rusqlite::Result<Self> {
        // Without a checkpoint, the first log row usually is the whole log.
        static SQL: LazyLock<[String; 2]> = LazyLock::new(|| {
            ["x''", "c.artifacts"].map(|artifacts| {
                format!(
                    "SELECT c.seq, c.task, {artifacts}, l.events, t.whole, t.key, t.context FROM task t
                     LEFT JOIN checkpoint c ON c.id = t.id AND t.whole IS NULL
                     LEFT JOIN log l ON l.id = ?2 AND c.id IS NULL AND t.whole IS NULL WHERE t.id = ?1"
                )
            })
        });
        let query = db.prepare_cached(&SQL[usize::from(include_artifacts)])?;
        Ok(Self { db, query, include_artifacts })
    }

    /// Reads a task as of the event `until`: the checkpoint with the later events applied.
    pub(super) fn read(&mut self, id: i64, until: Seq) -> rusqlite::Result<Task> {
        let (mut seq, mut task) = (0, Task::default());
        let mut events = self.query.query_row((id, log_row_id(id, 1)?), |row| {
            if let Some(bytes) = row.get_ref(4)?.as_blob_or_null()? {
                (seq, task) = (until, sealed_log(bytes).task().ok_or_else(undecodable)?);
            } else if let Some(checkpoint) = row.get::<_, Option<i64>>(0)? {
                let decoded = decode_task(row.get_ref(1)?.as_blob()?, row.get_ref(2)?.as_blob()?);
                (seq, task) = (unsigned(checkpoint), decoded.map_err(|_| damaged("a task can't be decoded"))?);
            }
            let Some(bytes) = row.get_ref(3)?.as_blob_or_null()? else { return Ok(Vec::new()) };
            let ids = TaskIds { id: row.get_ref(5)?.as_str()?, context: row.get_ref(6)?.as_str()? };
            decode_events(1, Bytes::copy_from_slice(bytes), ids).ok_or_else(undecodable)
        })?;
        loop {
            seq = events.last().map_or(seq, Event::seq);
            let selected = events.into_iter().filter(|event| self.include_artifacts || !is_artifact_update(event));
            let payloads = selected.filter_map(|event| event.into_response().payload);
            payloads.for_each(|payload| apply_owned(&mut task, payload));
            if seq >= until {
                break;
            }
            events = self::events(self.db, id, seq, READ_BATCH, READ_BYTES)?;
            if events.is_empty() {
                return Err(damaged("the log of a task ends before the position of its row"));
            }
        }
        if !self.include_artifacts {
            // A sealed log and the first event of a task may contain artifacts.
            task.artifacts = Vec::new();
        }
        Ok(task)
    }
}

fn undecodable() -> rusqlite::Error {
    damaged("a log can't be decoded")
}
