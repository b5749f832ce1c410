//! What is read of a task: its row, its checkpoint, and its log.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, Row as Found};

use super::{
    bytes::{is_of_artifact, joined, unpack, whole},
    number,
    write::{damaged, first_of, piece},
};
use crate::{
    event::{Event, Position, Seq},
    pb::v1::{Task, TaskState},
    snapshot::Snapshot,
    store::{Key, Made, Row, Scope, Stored},
    task::apply,
};

/// The columns of [`stored`].
pub(super) const COLUMNS: &str = "t.seq, t.fence, t.context, t.state, t.time, t.open, t.taken, t.cancel, t.attempt, c.seq, c.task, c.artifacts, s.bytes, t.asked";

/// Where they come from.
pub(super) const TABLES: &str = "task t LEFT JOIN checkpoint c ON c.id = t.id LEFT JOIN saved s ON s.id = t.id";

/// The number of a task, if it is there.
pub(super) fn id(db: &Connection, key: &Key) -> rusqlite::Result<Option<i64>> {
    let sql = "SELECT id FROM task WHERE scope = (SELECT id FROM scope WHERE owner = ? AND tenant = ?) AND key = ?";
    let (owner, tenant) = (&*key.scope().owner, &*key.scope().tenant);
    db.prepare_cached(sql)?.query_row((owner, tenant, key.id()), |it| it.get(0)).optional()
}

/// A row and its checkpoint.
pub(super) fn load(db: &Connection, key: &Key) -> rusqlite::Result<Option<Stored>> {
    static SQL: LazyLock<String> = LazyLock::new(|| {
        format!(
            "SELECT {COLUMNS} FROM {TABLES}
             WHERE t.scope = (SELECT id FROM scope WHERE owner = ? AND tenant = ?) AND t.key = ?"
        )
    });
    let (owner, tenant) = (&*key.scope().owner, &*key.scope().tenant);
    db.prepare_cached(&SQL)?.query_row((owner, tenant, key.id()), stored).optional()
}

/// What these [columns](COLUMNS) say.
pub(super) fn stored(found: &Found<'_>) -> rusqlite::Result<Stored> {
    let at = Position { seq: number(found.get(0)?), fence: number(found.get(1)?) };
    let state = TaskState::try_from(found.get::<_, i32>(3)?).map_err(|_| damaged("a state that there is not"))?;
    let row = Row {
        context: Arc::from(found.get_ref(2)?.as_str()?),
        seq: at.seq,
        state,
        was: None,
        head: None,
        time: found.get(4)?,
        open: found.get(5)?,
        taken: number(found.get(6)?),
        cancel_requested: found.get(7)?,
        attempt: found.get(8)?,
    };
    let checkpoint = match found.get::<_, Option<i64>>(9)? {
        Some(seq) => {
            let task = joined(found.get_ref(10)?.as_blob()?, found.get_ref(11)?.as_blob()?);
            Some((number(seq), Snapshot::from_proto(task)))
        }
        None => None,
    };
    let saved = found.get_ref(12)?.as_blob_or_null()?.map(Bytes::copy_from_slice);
    let asked = found.get_ref(13)?.as_blob_or_null()?.map(Bytes::copy_from_slice);
    Ok(Stored { at, row, checkpoint, saved, asked })
}

/// What came of a send that had a key.
pub(super) fn sent(db: &Connection, scope: &Scope, key: &str) -> rusqlite::Result<Option<Made>> {
    let sql = "SELECT t.key, s.seq, s.hash FROM send s JOIN task t ON t.id = s.task
        WHERE s.scope = (SELECT id FROM scope WHERE owner = ? AND tenant = ?) AND s.key = ?";
    let made = |it: &Found<'_>| {
        let (task_id, hash) = (it.get_ref(0)?.as_str()?.into(), it.get_ref(2)?.as_blob()?.into());
        Ok(Made { task_id, seq: number(it.get(1)?), hash })
    };
    db.prepare_cached(sql)?.query_row((&*scope.owner, &*scope.tenant, key), made).optional()
}

/// A task from its halves.
pub(super) fn task(head: &[u8], artifacts: &[u8]) -> rusqlite::Result<Task> {
    whole(head, artifacts).map_err(|_| damaged("a task can't be read"))
}

/// The events of a task after one, at most so many.
pub(super) fn events(db: &Connection, task: i64, after: Seq, limit: usize) -> rusqlite::Result<Vec<Event>> {
    let mut events = Vec::new();
    // A number that no event can have comes after all that there are.
    let Ok(next) = piece(task, after.saturating_add(1)) else { return Ok(events) };
    let (first, end) = (piece(task, 0)?, piece(task + 1, 0)?);
    // From the piece on that has the next event: the last one that begins with it or before.
    let sql = "SELECT id, events FROM log
        WHERE id >= ifnull((SELECT max(id) FROM log WHERE id BETWEEN ?1 AND ?2), ?1) AND id < ?3 ORDER BY id";
    let mut found = db.prepare_cached(sql)?;
    let mut found = found.query((first, next, end))?;
    while events.len() < limit
        && let Some(it) = found.next()?
    {
        let bytes = Bytes::copy_from_slice(it.get_ref(1)?.as_blob()?);
        let piece = unpack(first_of(it.get(0)?), bytes).ok_or_else(|| damaged("a log can't be read"))?;
        let left = limit - events.len();
        events.extend(piece.into_iter().filter(|it| it.seq() > after).take(left));
    }
    Ok(events)
}

/// A task after its event of this number: its checkpoint, and what came after that. Artifacts that are not asked for are
/// not even read.
pub(super) fn task_at(db: &Connection, id: i64, until: Seq, artifacts: bool) -> rusqlite::Result<Task> {
    /// Events that are read at once.
    const STEP: usize = 256;
    let sql = if artifacts {
        "SELECT seq, task, artifacts FROM checkpoint WHERE id = ?"
    } else {
        "SELECT seq, task, x'' FROM checkpoint WHERE id = ?"
    };
    let checkpoint =
        |it: &Found<'_>| Ok((number(it.get(0)?), task(it.get_ref(1)?.as_blob()?, it.get_ref(2)?.as_blob()?)?));
    let found = db.prepare_cached(sql)?.query_row([id], checkpoint).optional()?;
    let (mut seq, mut task) = found.unwrap_or_default();
    while seq < until {
        let events = events(db, id, seq, STEP)?;
        seq = events.last().map(Event::seq).ok_or_else(|| damaged("a log ends before its row"))?;
        let shown = events.iter().filter(|it| artifacts || !is_of_artifact(it));
        shown.filter_map(Event::payload).for_each(|it| apply(&mut task, it));
    }
    if !artifacts {
        // A first event may have some.
        task.artifacts = Vec::new();
    }
    Ok(task)
}
