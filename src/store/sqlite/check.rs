//! Integrity check of a database: SQLite's structures, references between tables, counters, and the log, checkpoint and row
//! of each task.

use bytes::Bytes;
use rusqlite::{Connection, Row, types::ValueRef};

use super::{
    Error,
    inspect::Inspector,
    log_rows::decode_events,
    read, unsigned,
    write::{first_seq, log_row_id},
};
use crate::{
    clock,
    event::{Ends, Event, Fence, Seq},
    pb::v1::{Task, TaskState},
    store::log_codec::TaskIds,
    task::apply,
};

/// Maximum number of reported problems.
const MAX_PROBLEMS: usize = 100;

/// Queries that find inconsistent rows, with the description of the problem and its columns.
const INCONSISTENCIES: [(&str, &str); 9] = [
    (
        "SELECT scope, state, count(*) FROM task GROUP BY scope, state
         EXCEPT SELECT scope, state, tasks FROM total",
        "wrong task count of an owner (owner, state, tasks)",
    ),
    (
        "SELECT scope, state, tasks FROM total WHERE tasks <> 0
         EXCEPT SELECT scope, state, count(*) FROM task GROUP BY scope, state",
        "task count of an owner without such tasks (owner, state, count)",
    ),
    (
        "SELECT task.scope, task.context, task.state || ': ' || count(*) FROM task
         WHERE (scope, context) IN (SELECT scope, context FROM crowd) GROUP BY task.scope, task.context, task.state
         EXCEPT SELECT scope, context, state || ': ' || tasks FROM crowd",
        "wrong task count of a context (owner, context, state and tasks)",
    ),
    (
        "SELECT scope, context, state || ': ' || tasks FROM crowd WHERE tasks <> 0
         EXCEPT SELECT scope, context, state || ': ' || count(*) FROM task GROUP BY scope, context, state",
        "task count of a context without such tasks (owner, context, state and count)",
    ),
    ("SELECT id, key, scope FROM task WHERE scope NOT IN (SELECT id FROM scope)", "task without an owner (task)"),
    (
        "SELECT DISTINCT id >> 28, '', '' FROM log WHERE id >> 28 NOT IN (SELECT id FROM task)",
        "log without a task (task)",
    ),
    (
        "SELECT id, '', '' FROM checkpoint WHERE id NOT IN (SELECT id FROM task)
         UNION ALL SELECT id, '', '' FROM saved WHERE id NOT IN (SELECT id FROM task)",
        "checkpoint or agent state without a task (task)",
    ),
    (
        "SELECT task, id, '' FROM push WHERE task NOT IN (SELECT id FROM task)",
        "push configuration without a task (task, configuration)",
    ),
    (
        "SELECT send.task, send.key, '' FROM send LEFT JOIN task ON task.id = send.task
         WHERE task.id IS NULL OR task.scope <> send.scope",
        "idempotency key without a task of its owner (task, key)",
    ),
];

impl Inspector {
    /// Checks the database. Returns a description of each problem, and the number of checked tasks.
    pub(crate) fn check(&self) -> Result<(Vec<String>, u64), Error> {
        self.read(|db| {
            let mut problems = Vec::new();
            let mut check = db.prepare(&format!("PRAGMA integrity_check({MAX_PROBLEMS})"))?;
            let reports = check.query_map([], |row| row.get::<_, String>(0))?.collect::<rusqlite::Result<Vec<_>>>()?;
            problems.extend(reports.into_iter().filter(|report| report != "ok"));
            for (sql, problem) in INCONSISTENCIES {
                let mut query = db.prepare(sql)?;
                let mut rows = query.query([])?;
                while let Some(row) = rows.next()? {
                    let column = |at| row.get_ref(at).ok().map(text).filter(|text| !text.is_empty());
                    let columns: Vec<_> = (0..3).filter_map(column).collect();
                    problems.push(format!("{problem}: {}", columns.join(", ")));
                }
            }
            let (mut query, mut tasks) = (db.prepare("SELECT id, key FROM task ORDER BY id")?, 0);
            let mut rows = query.query([])?;
            while let Some(row) = rows.next()?
                && problems.len() < MAX_PROBLEMS
            {
                tasks += 1;
                if let Some(problem) = check_task(db, row.get(0)?)? {
                    problems.push(format!("task {}: {problem}", text(row.get_ref(1)?)));
                }
            }
            problems.truncate(MAX_PROBLEMS);
            Ok((problems, tasks))
        })
    }
}

/// Formats a number or a text. Invalid UTF-8 is replaced.
fn text(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Text(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        ValueRef::Null | ValueRef::Real(_) | ValueRef::Blob(_) => String::new(),
    }
}

/// Replay of a log: applies its events to a task and checks their order.
struct Replay {
    /// Expected sequence number of the next event.
    next: Seq,
    /// Sequence number of the first event.
    first: Seq,
    fence: Fence,
    task: Task,
    ended: bool,
}

impl Replay {
    /// Starts the replay of a log with this first event.
    fn new(first: Seq) -> Self {
        Self { next: first, first, fence: 0, task: Task::default(), ended: false }
    }

    fn apply(&mut self, event: &Event) -> Result<(), String> {
        let position = event.position();
        if position.seq != self.next {
            return Err(format!("the log has event {} instead of {}", position.seq, self.next));
        }
        if position.fence < self.fence {
            return Err(format!("event {} has an older fence than the one before it", position.seq));
        }
        if self.ended {
            return Err(format!("event {} is after the final event", position.seq));
        }
        let payload = event.payload().ok_or_else(|| format!("event {} can't be decoded", position.seq))?;
        apply(&mut self.task, payload);
        (self.next, self.fence, self.ended) = (position.seq + 1, position.fence, event.ends() == Ends::Task);
        Ok(())
    }
}

/// Checks a task: its log has no gap and at most one final event, and matches the row and the checkpoint. Returns the first
/// problem.
pub(super) fn check_task(db: &Connection, id: i64) -> rusqlite::Result<Option<String>> {
    let checked = check_log(db, id).and_then(|checked| read::load_row(db, id).map(|_| checked));
    match checked {
        Ok(checked) => Ok(checked.err()),
        Err(error) if super::is_damage(&error) => Ok(Some(error.to_string())),
        Err(error) => Err(error),
    }
}

fn check_log(db: &Connection, id: i64) -> rusqlite::Result<Result<(), String>> {
    let sql = "SELECT t.seq, t.fence, t.state, t.time, t.folded, t.key, t.context, c.seq, t.whole
        FROM task t LEFT JOIN checkpoint c ON c.id = t.id WHERE t.id = ?";
    let columns = |row: &Row<'_>| {
        let checkpoint: Option<i64> = row.get(7)?;
        let numbers = (unsigned(row.get(0)?), unsigned(row.get(1)?), checkpoint.map(unsigned));
        Ok((
            numbers,
            row.get::<_, i32>(2)?,
            row.get::<_, i64>(3)?,
            row.get::<_, bool>(4)?,
            [row.get::<_, String>(5)?, row.get(6)?],
            row.get_ref(8)?.as_blob_or_null()?.map(read::sealed_log),
        ))
    };
    let ((seq, fence, checkpoint), state, time, without_log, [key, context], sealed) =
        db.prepare_cached(sql)?.query_row([id], columns)?;
    let is_terminal = TaskState::try_from(state).is_ok_and(TaskState::is_terminal);
    if checkpoint.is_some_and(|checkpoint| checkpoint > seq) {
        return Ok(Err("the checkpoint is after the position of the row".into()));
    }
    if sealed.is_some() && checkpoint.is_some() {
        return Ok(Err("there is a checkpoint although the row contains the task".into()));
    }
    let mut replay = None;
    let ids = TaskIds { id: &key, context: &context };
    if let Some(sealed) = &sealed {
        let replay = replay.insert(Replay::new(1));
        if let Err(problem) = sealed.events(0, ids).try_for_each(|event| replay.apply(&event)) {
            return Ok(Err(problem));
        }
    }
    let mut query = db.prepare_cached("SELECT id, events FROM log WHERE id >= ? AND id < ? ORDER BY id")?;
    let mut rows = query.query((log_row_id(id, 0)?, log_row_id(id + 1, 0)?))?;
    while let Some(row) = rows.next()? {
        let first = first_seq(row.get(0)?);
        let Some(events) = decode_events(first, Bytes::copy_from_slice(row.get_ref(1)?.as_blob()?), ids) else {
            return Ok(Err(format!("the log row that begins with event {first} can't be decoded")));
        };
        let replay = replay.get_or_insert_with(|| Replay::new(first));
        if let Err(problem) = events.iter().try_for_each(|event| replay.apply(event)) {
            return Ok(Err(problem));
        }
    }
    // With a complete checkpoint, a sweep may have deleted the log, or the start of it.
    let may_be_truncated = is_terminal && checkpoint == Some(seq);
    match &replay {
        None if !(without_log && may_be_truncated) => return Ok(Err("the log is missing".into())),
        Some(_) if without_log => {
            return Ok(Err("there is a log although the row says that it was deleted".into()));
        }
        Some(replay) if replay.next != seq + 1 => {
            return Ok(Err(format!("the log ends with event {}, but the row is at {seq}", replay.next - 1)));
        }
        Some(replay) if replay.fence > fence => return Ok(Err("the log has a newer fence than the row".into())),
        Some(replay) if replay.first != 1 && !may_be_truncated => {
            return Ok(Err("the start of the log is missing".into()));
        }
        Some(replay) if replay.ended != is_terminal => {
            return Ok(Err("the state of the row contradicts the final event of the log".into()));
        }
        Some(_) | None => {}
    }
    let task = read::TaskReader::new(db, true)?.read(id, seq)?;
    let status = task.status.clone().unwrap_or_default();
    if status.state != state {
        return Ok(Err("the state of the row differs from the task".into()));
    }
    if status.timestamp.as_ref().is_some_and(|timestamp| clock::millis(timestamp) != time) {
        return Ok(Err("the time of the row differs from the task".into()));
    }
    if task.id != key || task.context_id != context {
        return Ok(Err("the ids of the row differ from the task".into()));
    }
    if replay.is_some_and(|replay| replay.first == 1 && replay.task != task) {
        return Ok(Err("the checkpoint differs from the log".into()));
    }
    Ok(Ok(()))
}
