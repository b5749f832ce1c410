//! What is read of a task: its row, its checkpoint, and its log.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use rusqlite::{CachedStatement, Connection, OptionalExtension as _, Row as Found};

use super::{
    log_rows::{is_of_artifact, joined, unpack, whole},
    number,
    write::{SEQ_BITS, damaged, first_of, piece},
};
use crate::{
    event::{Event, Position, Seq},
    pb::v1::{Task, TaskState},
    snapshot::Snapshot,
    store::{
        Key, Row, Scope, SendOutcome, StoredTask,
        log_codec::{SealedLog, TaskIds},
    },
    task::absorb,
};

/// The columns of [`stored`].
const COLUMNS: &str = "t.seq, t.fence, t.context, t.state, t.time, t.open, t.taken, t.cancel, t.attempt, c.seq, c.task, c.artifacts, s.bytes, t.asked, t.whole, t.drained";

/// Where they come from.
const TABLES: &str =
    "task t LEFT JOIN checkpoint c ON c.id = t.id AND t.whole IS NULL LEFT JOIN saved s ON s.id = t.id";

/// The number of a task, if it is there.
pub(super) fn id(db: &Connection, key: &Key) -> rusqlite::Result<Option<i64>> {
    let sql = "SELECT id FROM task WHERE scope = (SELECT id FROM scope WHERE owner = ? AND tenant = ?) AND key = ?";
    let (owner, tenant) = (&*key.scope().owner, &*key.scope().tenant);
    db.prepare_cached(sql)?.query_row((owner, tenant, key.id()), |it| it.get(0)).optional()
}

/// A row and its checkpoint.
pub(super) fn load(db: &Connection, key: &Key) -> rusqlite::Result<Option<StoredTask>> {
    static SQL: LazyLock<String> = LazyLock::new(|| {
        format!(
            "SELECT {COLUMNS} FROM {TABLES}
             WHERE t.scope = (SELECT id FROM scope WHERE owner = ? AND tenant = ?) AND t.key = ?"
        )
    });
    let (owner, tenant) = (&*key.scope().owner, &*key.scope().tenant);
    db.prepare_cached(&SQL)?.query_row((owner, tenant, key.id()), stored).optional()
}

/// A row and its checkpoint, by the number of the task.
pub(super) fn row(db: &Connection, id: i64) -> rusqlite::Result<StoredTask> {
    static SQL: LazyLock<String> = LazyLock::new(|| format!("SELECT {COLUMNS} FROM {TABLES} WHERE t.id = ?"));
    db.prepare_cached(&SQL)?.query_row([id], stored)
}

/// What these [columns](COLUMNS) say.
fn stored(found: &Found<'_>) -> rusqlite::Result<StoredTask> {
    let at = Position { seq: number(found.get(0)?), fence: number(found.get(1)?) };
    let state = TaskState::try_from(found.get::<_, i32>(3)?).map_err(|_| damaged("a state that there is not"))?;
    let row = Row {
        context: Arc::from(found.get_ref(2)?.as_str()?),
        seq: at.seq,
        state,
        previous_state: None,
        status_event: None,
        time: found.get(4)?,
        open: found.get(5)?,
        delivered_seq: number(found.get(6)?),
        cancel_requested: found.get(7)?,
        attempt: found.get(8)?,
        drained: found.get(15)?,
    };
    let checkpoint = match (found.get_ref(14)?.as_blob_or_null()?, found.get::<_, Option<i64>>(9)?) {
        (Some(whole), _) => Some((at.seq, settled(whole).snapshot().ok_or_else(unreadable)?)),
        (None, Some(seq)) => {
            let task = joined(found.get_ref(10)?.as_blob()?, found.get_ref(11)?.as_blob()?);
            Some((number(seq), Snapshot::from_proto(task)))
        }
        (None, None) => None,
    };
    let saved = found.get_ref(12)?.as_blob_or_null()?.map(Bytes::copy_from_slice);
    let asked = found.get_ref(13)?.as_blob_or_null()?.map(Bytes::copy_from_slice);
    Ok(StoredTask { position: at, row, checkpoint, agent_state: saved, turn_contexts: asked })
}

/// Size of the log of a task in bytes. Of its pieces, SQLite reads no more than their lengths for that.
pub(super) fn log_bytes(db: &Connection, key: &Key) -> rusqlite::Result<usize> {
    let Some(task) = id(db, key)? else { return Ok(0) };
    let sql = "SELECT ifnull(sum(length(events)), 0) FROM log WHERE id >= ? AND id < ?";
    let range = (piece(task, 0)?, piece(task + 1, 0)?);
    let bytes: i64 = db.prepare_cached(sql)?.query_row(range, |it| it.get(0))?;
    Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// Size of the tasks of a context in bytes: of their logs, or of what is kept in place of those. The sum ends with the task
/// that brings it to `most`. Of what is counted, SQLite reads no more than the lengths.
pub(super) fn context_bytes(db: &Connection, scope: &Scope, context: &str, most: usize) -> rusqlite::Result<usize> {
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
    while sum < most
        && let Some(size) = sizes.next()?
    {
        sum = sum.saturating_add(usize::try_from(size.get::<_, i64>(0)?).unwrap_or(usize::MAX));
    }
    Ok(sum)
}

/// What came of a send that had a key.
pub(super) fn sent(db: &Connection, scope: &Scope, key: &str) -> rusqlite::Result<Option<SendOutcome>> {
    let sql = "SELECT t.key, s.seq, s.hash FROM send s JOIN task t ON t.id = s.task
        WHERE s.scope = (SELECT id FROM scope WHERE owner = ? AND tenant = ?) AND s.key = ?";
    let made = |it: &Found<'_>| {
        let (task_id, hash) = (it.get_ref(0)?.as_str()?.into(), it.get_ref(2)?.as_blob()?.into());
        Ok(SendOutcome { task_id, seq: number(it.get(1)?), hash })
    };
    db.prepare_cached(sql)?.query_row((&*scope.owner, &*scope.tenant, key), made).optional()
}

/// A task that stands in its row.
pub(super) fn settled(whole: &[u8]) -> SealedLog {
    SealedLog::from_bytes(Bytes::copy_from_slice(whole))
}

/// The events after one of a task that stands in its row, if this one does.
fn settled_events(db: &Connection, task: i64, after: Seq, limit: usize) -> rusqlite::Result<Option<Vec<Event>>> {
    let sql = "SELECT whole, key, context, seq FROM task WHERE id = ? AND whole IS NOT NULL";
    let read = |it: &Found<'_>| {
        let (whole, names) =
            (it.get_ref(0)?.as_blob()?, TaskIds { id: it.get_ref(1)?.as_str()?, context: it.get_ref(2)?.as_str()? });
        let before = usize::try_from(after).unwrap_or(usize::MAX);
        let events: Vec<_> = settled(whole).events(before, names).take(limit).collect();
        let is_all = events.len() == limit || events.last().map_or(after, Event::seq) >= number(it.get(3)?);
        if is_all { Ok(events) } else { Err(unreadable()) }
    };
    db.prepare_cached(sql)?.query_row([task], read).optional()
}

/// A task from its halves.
pub(super) fn task(head: &[u8], artifacts: &[u8]) -> rusqlite::Result<Task> {
    whole(head, artifacts).map_err(|_| damaged("a task can't be read"))
}

/// The events of a task after one, at most so many.
pub(super) fn events(db: &Connection, task: i64, after: Seq, limit: usize) -> rusqlite::Result<Vec<Event>> {
    if let Some(events) = settled_events(db, task, after, limit)? {
        return Ok(events);
    }
    let mut events = Vec::new();
    // A number that no event can have comes after all that there are.
    let Ok(next) = piece(task, after.saturating_add(1)) else { return Ok(events) };
    let (first, end) = (piece(task, 0)?, piece(task + 1, 0)?);
    let (key, context) = db
        .prepare_cached("SELECT key, context FROM task WHERE id = ?")?
        .query_row([task], |it| Ok((it.get::<_, String>(0)?, it.get::<_, String>(1)?)))?;
    let names = TaskIds { id: &key, context: &context };
    // From the piece on that has the next event: the last one that begins with it or before.
    let sql = "SELECT id, events FROM log
        WHERE id >= ifnull((SELECT max(id) FROM log WHERE id BETWEEN ?1 AND ?2), ?1) AND id < ?3 ORDER BY id";
    let mut found = db.prepare_cached(sql)?;
    let mut found = found.query((first, next, end))?;
    while events.len() < limit
        && let Some(it) = found.next()?
    {
        let bytes = Bytes::copy_from_slice(it.get_ref(1)?.as_blob()?);
        let piece = unpack(first_of(it.get(0)?), bytes, names).ok_or_else(unreadable)?;
        let left = limit - events.len();
        events.extend(piece.into_iter().filter(|it| it.seq() > after).take(left));
    }
    Ok(events)
}

/// Tasks, one after the other, with or without their artifacts: those that are not asked for are not even read.
pub(super) struct TaskRows<'a> {
    db: &'a Connection,
    find: CachedStatement<'a>,
    artifacts: bool,
}

impl<'a> TaskRows<'a> {
    pub(super) fn new(db: &'a Connection, artifacts: bool) -> rusqlite::Result<Self> {
        // Where there is no checkpoint, the first piece of a log is most often all of it.
        static SQL: LazyLock<[String; 2]> = LazyLock::new(|| {
            ["x''", "c.artifacts"].map(|it| {
                format!(
                    "SELECT c.seq, c.task, {it}, l.events, t.whole, t.key, t.context FROM task t
                     LEFT JOIN checkpoint c ON c.id = t.id AND t.whole IS NULL
                     LEFT JOIN log l ON l.id = ?2 AND c.id IS NULL AND t.whole IS NULL WHERE t.id = ?1"
                )
            })
        });
        Ok(Self { db, find: db.prepare_cached(&SQL[usize::from(artifacts)])?, artifacts })
    }

    /// A task after its event of this number: its checkpoint, and what came after that.
    pub(super) fn at(&mut self, id: i64, until: Seq) -> rusqlite::Result<Task> {
        /// Events that are read at once.
        const STEP: usize = 256;
        let (mut seq, mut task) = (0, Task::default());
        let mut events = self.find.query_row((id, piece(id, 1)?), |it| {
            if let Some(whole) = it.get_ref(4)?.as_blob_or_null()? {
                (seq, task) = (until, settled(whole).task().ok_or_else(unreadable)?);
            } else if let Some(at) = it.get::<_, Option<i64>>(0)? {
                (seq, task) = (number(at), self::task(it.get_ref(1)?.as_blob()?, it.get_ref(2)?.as_blob()?)?);
            }
            let Some(piece) = it.get_ref(3)?.as_blob_or_null()? else { return Ok(Vec::new()) };
            let names = TaskIds { id: it.get_ref(5)?.as_str()?, context: it.get_ref(6)?.as_str()? };
            unpack(1, Bytes::copy_from_slice(piece), names).ok_or_else(unreadable)
        })?;
        loop {
            seq = events.last().map_or(seq, Event::seq);
            let shown = events.into_iter().filter(|it| self.artifacts || !is_of_artifact(it));
            shown.filter_map(|it| it.into_message().payload).for_each(|it| absorb(&mut task, it));
            if seq >= until {
                break;
            }
            events = self::events(self.db, id, seq, STEP)?;
            if events.is_empty() {
                return Err(damaged("a log ends before its row"));
            }
        }
        if !self.artifacts {
            // What is in one piece may have some.
            task.artifacts = Vec::new();
        }
        Ok(task)
    }
}

fn unreadable() -> rusqlite::Error {
    damaged("a log can't be read")
}
