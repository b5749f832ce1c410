//! Whether a file is what it should be: as SQLite sees it, and as we do.

use bytes::Bytes;
use rusqlite::{Connection, Row, types::ValueRef};

use super::{
    Error,
    inspect::Inspector,
    log_rows::unpack,
    number, read,
    write::{first_of, piece},
};
use crate::{
    clock,
    event::{Ends, Event, Fence, Seq},
    pb::v1::{Task, TaskState},
    store::log_codec::TaskIds,
    task::apply,
};

/// So much that is wrong is told; who has more, has all of it.
const TOLD: usize = 100;

/// What nobody has, and what is counted wrongly.
const NOTHING: [(&str, &str); 9] = [
    (
        "SELECT scope, state, count(*) FROM task GROUP BY scope, state
         EXCEPT SELECT scope, state, tasks FROM total",
        "tasks are counted wrongly (owner, state, tasks)",
    ),
    (
        "SELECT scope, state, tasks FROM total WHERE tasks <> 0
         EXCEPT SELECT scope, state, count(*) FROM task GROUP BY scope, state",
        "tasks are counted that are not there (owner, state, counted)",
    ),
    (
        "SELECT task.scope, task.context, task.state || ': ' || count(*) FROM task
         WHERE (scope, context) IN (SELECT scope, context FROM crowd) GROUP BY task.scope, task.context, task.state
         EXCEPT SELECT scope, context, state || ': ' || tasks FROM crowd",
        "tasks of a context are counted wrongly (owner, context, state and tasks)",
    ),
    (
        "SELECT scope, context, state || ': ' || tasks FROM crowd WHERE tasks <> 0
         EXCEPT SELECT scope, context, state || ': ' || count(*) FROM task GROUP BY scope, context, state",
        "tasks of a context are counted that are not there (owner, context, state and counted)",
    ),
    ("SELECT id, key, scope FROM task WHERE scope NOT IN (SELECT id FROM scope)", "a task is nobody's (task)"),
    (
        "SELECT DISTINCT id >> 28, '', '' FROM log WHERE id >> 28 NOT IN (SELECT id FROM task)",
        "a log is of no task (task)",
    ),
    (
        "SELECT id, '', '' FROM checkpoint WHERE id NOT IN (SELECT id FROM task)
         UNION ALL SELECT id, '', '' FROM saved WHERE id NOT IN (SELECT id FROM task)",
        "what is kept beside a task is of none (task)",
    ),
    (
        "SELECT task, id, '' FROM push WHERE task NOT IN (SELECT id FROM task)",
        "a push configuration is of no task (task, configuration)",
    ),
    (
        "SELECT send.task, send.key, '' FROM send LEFT JOIN task ON task.id = send.task
         WHERE task.id IS NULL OR task.scope <> send.scope",
        "the key of a send is of no task of its owner (task, key)",
    ),
];

impl Inspector {
    /// What is wrong with it, each thing in a sentence; and how many tasks there are.
    pub(crate) fn check(&self) -> Result<(Vec<String>, u64), Error> {
        self.read(|db| {
            let mut wrong = Vec::new();
            let mut pages = db.prepare(&format!("PRAGMA integrity_check({TOLD})"))?;
            let said = pages.query_map([], |it| it.get::<_, String>(0))?.collect::<rusqlite::Result<Vec<_>>>()?;
            wrong.extend(said.into_iter().filter(|it| it != "ok"));
            for (sql, what) in NOTHING {
                let mut found = db.prepare(sql)?;
                let mut found = found.query([])?;
                while let Some(it) = found.next()? {
                    let column = |at| it.get_ref(at).ok().map(|it| text(it)).filter(|it| !it.is_empty());
                    let which: Vec<_> = (0..3).filter_map(column).collect();
                    wrong.push(format!("{what}: {}", which.join(", ")));
                }
            }
            let (mut all, mut tasks) = (db.prepare("SELECT id, key FROM task ORDER BY id")?, 0);
            let mut all = all.query([])?;
            while let Some(it) = all.next()?
                && wrong.len() < TOLD
            {
                tasks += 1;
                if let Some(why) = task(db, it.get(0)?)? {
                    wrong.push(format!("task {}: {why}", text(it.get_ref(1)?)));
                }
            }
            wrong.truncate(TOLD);
            Ok((wrong, tasks))
        })
    }
}

/// A number or a text, as far as that is readable.
fn text(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Text(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        ValueRef::Null | ValueRef::Real(_) | ValueRef::Blob(_) => String::new(),
    }
}

/// A log as far as it has been read.
struct Replay {
    /// The number that comes next, and the first one that there was.
    next: Seq,
    first: Seq,
    fence: Fence,
    task: Task,
    ended: bool,
}

impl Replay {
    /// Of a log that begins with this event.
    fn new(first: Seq) -> Self {
        Self { next: first, first, fence: 0, task: Task::default(), ended: false }
    }

    fn see(&mut self, event: &Event) -> Result<(), String> {
        let at = event.position();
        if at.seq != self.next {
            return Err(format!("its log has {} where {} would come", at.seq, self.next));
        }
        if at.fence < self.fence {
            return Err(format!("event {} was written by who had lost it", at.seq));
        }
        if self.ended {
            return Err(format!("event {} comes after its end", at.seq));
        }
        let payload = event.payload().ok_or_else(|| format!("event {} can't be read", at.seq))?;
        apply(&mut self.task, payload);
        (self.next, self.fence, self.ended) = (at.seq + 1, at.fence, event.ends() == Ends::Task);
        Ok(())
    }
}

/// What is wrong with a task: its log has no hole and one end at most, and its row and its checkpoint say what that does.
pub(super) fn task(db: &Connection, id: i64) -> rusqlite::Result<Option<String>> {
    let found = of_task(db, id).and_then(|found| read::row(db, id).map(|_| found));
    match found {
        Ok(found) => Ok(found.err()),
        Err(error) if super::is_damage(&error) => Ok(Some(error.to_string())),
        Err(error) => Err(error),
    }
}

fn of_task(db: &Connection, id: i64) -> rusqlite::Result<Result<(), String>> {
    let sql = "SELECT t.seq, t.fence, t.state, t.time, t.folded, t.key, t.context, c.seq, t.whole
        FROM task t LEFT JOIN checkpoint c ON c.id = t.id WHERE t.id = ?";
    let row = |it: &Row<'_>| {
        let checkpoint: Option<i64> = it.get(7)?;
        let place = (number(it.get(0)?), number(it.get(1)?), checkpoint.map(number));
        Ok((
            place,
            it.get::<_, i32>(2)?,
            it.get::<_, i64>(3)?,
            it.get::<_, bool>(4)?,
            [it.get::<_, String>(5)?, it.get(6)?],
            it.get_ref(8)?.as_blob_or_null()?.map(read::settled),
        ))
    };
    let ((seq, fence, checkpoint), state, time, folded, [key, context], whole) =
        db.prepare_cached(sql)?.query_row([id], row)?;
    let ended = TaskState::try_from(state).is_ok_and(TaskState::is_terminal);
    if checkpoint.is_some_and(|it| it > seq) {
        return Ok(Err("its checkpoint is ahead of its row".into()));
    }
    if whole.is_some() && checkpoint.is_some() {
        return Ok(Err("it has a checkpoint beside what stands in its row".into()));
    }
    let mut replay = None;
    let names = TaskIds { id: &key, context: &context };
    if let Some(it) = &whole {
        let replay = replay.insert(Replay::new(1));
        if let Err(why) = it.events(0, names).try_for_each(|it| replay.see(&it)) {
            return Ok(Err(why));
        }
    }
    let mut log = db.prepare_cached("SELECT id, events FROM log WHERE id >= ? AND id < ? ORDER BY id")?;
    let mut log = log.query((piece(id, 0)?, piece(id + 1, 0)?))?;
    while let Some(it) = log.next()? {
        let first = first_of(it.get(0)?);
        let Some(events) = unpack(first, Bytes::copy_from_slice(it.get_ref(1)?.as_blob()?), names) else {
            return Ok(Err(format!("the piece of its log that begins with {first} can't be read")));
        };
        let replay = replay.get_or_insert_with(|| Replay::new(first));
        if let Err(why) = events.iter().try_for_each(|it| replay.see(it)) {
            return Ok(Err(why));
        }
    }
    // What has ended may have lost its log, and the first of it sooner than the last.
    let may_be_short = ended && checkpoint == Some(seq);
    match &replay {
        None if !(folded && may_be_short) => return Ok(Err("it has no log".into())),
        Some(_) if folded => return Ok(Err("its log is there, and should not be".into())),
        Some(it) if it.next != seq + 1 => {
            return Ok(Err(format!("its log ends with {}, and its row says {seq}", it.next - 1)));
        }
        Some(it) if it.fence > fence => return Ok(Err("its log is ahead of its row".into())),
        Some(it) if it.first != 1 && !may_be_short => return Ok(Err("its log has no beginning".into())),
        Some(it) if it.ended != ended => return Ok(Err("its row and its log do not agree on its end".into())),
        Some(_) | None => {}
    }
    let task = read::TaskRows::new(db, true)?.at(id, seq)?;
    let status = task.status.clone().unwrap_or_default();
    if status.state != state {
        return Ok(Err("its row says another state".into()));
    }
    if status.timestamp.as_ref().is_some_and(|it| clock::millis(it) != time) {
        return Ok(Err("its row says another time".into()));
    }
    if task.id != key || task.context_id != context {
        return Ok(Err("its row says another name".into()));
    }
    if replay.is_some_and(|it| it.first == 1 && it.task != task) {
        return Ok(Err("its checkpoint is not what its log says".into()));
    }
    Ok(Ok(()))
}
