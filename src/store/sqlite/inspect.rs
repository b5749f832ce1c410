//! Read-only access to a database for the `admin` commands, also while a server uses it: statistics, preview of a retention
//! sweep, backup, and an integrity check of SQLite's structures, references between tables, counters, and the log, checkpoint
//! and row of each task.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use async_trait::async_trait;
use bytes::Bytes;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, Row, ToSql, types::ValueRef};

use super::{
    Inspect, Millis, Position, Retention, Seq, Sqlite, SweepResult, TaskIds, TaskState, Unavailable, delivery,
    error::Error,
    file::{BUSY_TIMEOUT, create_part, wal_path},
    migrations, read,
    sweep::{COUNT_IDLE, OLDEST, TERMINAL, WITH_LOG, WITH_PUSHES},
    usage,
    values::{damaged, first_seq, is_damage, log_row_id, signed, unsigned},
};
use crate::store::{
    Counts, DeliveryPage, DeliveryToken, FileUsage, InspectedTask, LoggedEvent, MAX_OWNERS, READ_BYTES, TaskFilter,
    TaskPage, TaskSummary,
    inspect::status_text,
    log_rows::decode_events,
    replay::{CheckedRow, Replay},
    turn_record::{created, error_id, error_key, time_of},
};

/// Read-only view of a database.
pub(crate) struct Inspector {
    path: PathBuf,
    pub(super) db: Connection,
}

/// Statistics of a database.
#[derive(Debug)]
pub(crate) struct Stats {
    /// Schema version.
    pub(crate) version: i32,
    /// Sizes of the files.
    pub(crate) files: FileUsage,
    /// Numbers of tasks, and of what belongs to them.
    pub(crate) counts: Counts,
}

/// Size of the stored data of a task `t`. SQLite determines the length of a blob without reading it.
const TASK_BYTES: &str = "coalesce(length(t.whole), 0)
    + coalesce((SELECT sum(length(events)) FROM log WHERE log.id >= (t.id << 28) AND log.id < ((t.id + 1) << 28)), 0)
    + coalesce((SELECT length(task) + length(artifacts) FROM checkpoint WHERE checkpoint.id = t.id), 0)";

impl Inspector {
    /// Opens an existing database.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        Self::connect(path).map_err(|error| error.at(path))
    }

    fn connect(path: &Path) -> Result<Self, Error> {
        fs::metadata(path)?;
        // Recovering the write-ahead log of a killed server requires write access.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = Connection::open_with_flags(path, flags)?;
        db.busy_timeout(BUSY_TIMEOUT)?;
        db.pragma_update(None, "trusted_schema", false)?;
        db.pragma_update(None, "query_only", true)?;
        migrations::check_version(&db)?;
        Ok(Self { path: path.to_owned(), db })
    }

    /// Runs queries in a read transaction, which provides a consistent snapshot.
    pub(super) fn read<T>(&self, query: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, Error> {
        let transaction = self.db.unchecked_transaction();
        transaction.and_then(|transaction| query(&transaction)).map_err(|error| Error::from(error).at(&self.path))
    }

    /// Returns statistics of the database.
    pub(crate) fn stats(&self) -> Result<Stats, Error> {
        self.read(|db| {
            Ok(Stats {
                version: db.pragma_query_value(None, "user_version", |row| row.get(0))?,
                files: usage::files(db, &wal_path(&self.path), None)?,
                counts: counts(db)?,
            })
        })
    }

    /// Counts what a retention sweep would delete now, and the tasks that have waited too long for their clients.
    pub(crate) fn preview_sweep(&self, policy: &Retention, now: Millis) -> Result<(SweepResult, u64), Error> {
        self.read(|db| {
            let kept_since = Retention::cutoff(policy.undelivered, now).unwrap_or(Millis::MIN);
            // All rows that a sweep selects, of tasks that have ended since this time.
            let count = |retention, counted: String, since: Millis| match Retention::cutoff(retention, now) {
                Some(before) => {
                    let sql = format!("SELECT count(*) FROM {counted}");
                    db.query_row(&sql, (before, -1, kept_since, since), |row| row.get(0)).map(unsigned)
                }
                None => Ok(0),
            };
            let pushes = format!("push WHERE task IN (SELECT id FROM ({}))", *WITH_PUSHES);
            let sends = format!(
                "send JOIN task ON task.id = send.task WHERE send.time < ?1 AND NOT ({TERMINAL} AND task.time < ?4)"
            );
            // Data of a task that is deleted itself is not counted separately.
            let since = Retention::cutoff(policy.finished, now).unwrap_or(Millis::MIN);
            let result = SweepResult {
                tasks: count(policy.finished, format!("({})", *OLDEST), Millis::MIN)?,
                logs: count(policy.logs, format!("({})", *WITH_LOG), since)?,
                push_configs: count(policy.push, pushes, since)?,
                idempotency_keys: count(policy.idempotency_keys, sends, since)?,
            };
            let idle = Retention::cutoff(policy.idle, now);
            let idle = idle.map(|before| db.query_row(COUNT_IDLE, [before], |row| row.get(0)).map(unsigned));
            Ok((result, idle.transpose()?.unwrap_or(0)))
        })
    }

    /// Returns a page of tasks, the latest created first, of those that the filter selects.
    pub(crate) fn tasks(&self, filter: &TaskFilter, limit: usize) -> Result<TaskPage, Error> {
        self.read(|db| tasks(db, filter, limit))
    }

    /// Returns a task by its [number](crate::store::TaskSummary::number). `None` if it does not exist.
    pub(crate) fn task(&self, number: u64) -> Result<Option<InspectedTask>, Error> {
        self.read(|db| task(db, number))
    }

    /// Returns events of a task with their times.
    pub(crate) fn events(&self, number: u64, after: Seq, limit: usize) -> Result<Vec<LoggedEvent>, Error> {
        self.read(|db| events(db, number, after, limit))
    }

    /// Returns the number of tasks of an owner, in all tenants and states.
    pub(crate) fn count_tasks_of(&self, owner: &str) -> Result<u64, Error> {
        let sql = "SELECT count(*) FROM task JOIN scope ON scope.id = task.scope WHERE owner = ?";
        self.read(|db| db.query_row(sql, [owner], |row| row.get(0)).map(unsigned))
    }

    /// Returns a page of deliveries of push notifications.
    pub(crate) fn deliveries(
        &self,
        dead_only: bool,
        after: DeliveryToken,
        limit: usize,
    ) -> Result<DeliveryPage, Error> {
        self.read(|db| delivery::page(db, dead_only, after, limit))
    }

    /// Writes a consistent, compact copy to a path that must not exist.
    pub(crate) fn backup(&self, to: &Path) -> Result<(), Error> {
        let io_error = |cause: io::Error| Error::from(cause).at(to);
        if to.exists() {
            return Err(io_error(io::Error::new(io::ErrorKind::AlreadyExists, "the file exists already")));
        }
        let (part, text) = create_part(to).map_err(io_error)?;
        let failed = |error: rusqlite::Error| Error::from(error).at(&self.path);
        // `VACUUM INTO` writes the copy and only reads this database.
        self.db.pragma_update(None, "query_only", false).map_err(failed)?;
        let written = self.db.execute("VACUUM INTO ?", [text]);
        self.db.pragma_update(None, "query_only", true).map_err(failed)?;
        written.map_err(failed)?;
        fs::File::open(&part).and_then(|file| file.sync_all()).map_err(io_error)?;
        // A hard link, unlike a rename, does not replace a file that was created concurrently. Not all file systems have
        // hard links.
        match fs::hard_link(&part, to) {
            Ok(()) => fs::remove_file(&part),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
            Err(_) => fs::rename(&part, to),
        }
        .map_err(io_error)
    }
}

#[async_trait]
impl Inspect for Sqlite {
    async fn tasks(&self, filter: &TaskFilter, limit: usize) -> Result<TaskPage, Unavailable> {
        let filter = filter.clone();
        self.inspect(move |db| tasks(db, &filter, limit)).await
    }

    async fn task(&self, number: u64) -> Result<Option<InspectedTask>, Unavailable> {
        self.inspect(move |db| task(db, number)).await
    }

    async fn events(&self, number: u64, after: Seq, limit: usize) -> Result<Vec<LoggedEvent>, Unavailable> {
        self.inspect(move |db| events(db, number, after, limit)).await
    }

    async fn counts(&self) -> Result<Counts, Unavailable> {
        self.inspect(counts).await
    }
}

/// Counts of [`Inspect::counts`].
fn counts(db: &Connection) -> rusqlite::Result<Counts> {
    let count = |sql: &str| db.query_row(sql, [], |row| row.get(0)).map(unsigned);
    let sql = "SELECT owner, tenant, sum(tasks) FROM total JOIN scope ON scope.id = total.scope
        GROUP BY scope.id HAVING sum(tasks) > 0 ORDER BY 3 DESC, 1, 2";
    let mut owners = db.prepare(sql)?;
    let owners = owners.query_map([], |row| Ok((row.get(0)?, row.get(1)?, unsigned(row.get(2)?))))?;
    Ok(Counts {
        tasks: usage::tasks(db)?,
        owners: owners.take(MAX_OWNERS).collect::<rusqlite::Result<_>>()?,
        owner_count: count("SELECT count(*) FROM scope")?,
        without_log: count(&format!("SELECT count(*) FROM task WHERE {TERMINAL} AND folded = 1"))?,
        push_configs: count("SELECT count(*) FROM push")?,
        idempotency_keys: count("SELECT count(*) FROM send")?,
    })
}

/// Page of [`Inspect::tasks`].
fn tasks(db: &Connection, filter: &TaskFilter, limit: usize) -> rusqlite::Result<TaskPage> {
    let before = filter.before.and_then(|number| i64::try_from(number).ok()).unwrap_or(i64::MAX);
    let states: Vec<i32> = filter.states.iter().map(|state| (*state).into()).collect();
    let states = states.iter().map(i32::to_string).collect::<Vec<_>>().join(", ");
    let error = filter.error_id.as_deref().map(|id| error_key(id).unwrap_or_default());
    // Only the conditions that apply, so that SQLite finds the index for each.
    let mut conditions = vec!["t.id < :before".to_owned()];
    let mut parameters: Vec<(&str, &dyn ToSql)> = vec![(":before", &before)];
    let texts = [
        (":key", "t.key = :key", &filter.id),
        (":prefix", "substr(t.key, 1, length(:prefix)) = :prefix", &filter.id_prefix),
        (":owner", "o.owner = :owner", &filter.owner),
        (":tenant", "o.tenant = :tenant", &filter.tenant),
        (":context", "t.context = :context", &filter.context),
    ];
    for (name, condition, text) in &texts {
        if let Some(text) = text {
            conditions.push((*condition).to_owned());
            parameters.push((name, text));
        }
    }
    if filter.owner.is_some() && filter.tenant.is_some() {
        conditions.push("t.scope = (SELECT id FROM scope WHERE owner = :owner AND tenant = :tenant)".to_owned());
    }
    if !filter.states.is_empty() {
        conditions.push(format!("t.state IN ({states})"));
    }
    if let Some(error) = &error {
        conditions.push("substr(t.turn, 1, 1) = x'01' AND substr(t.turn, 2, 16) = :error".to_owned());
        parameters.push((":error", error));
    }
    // One row more than the limit shows whether there is a next page.
    let tasks = summaries(db, &conditions.join(" AND "), limit.saturating_add(1), &parameters)?;
    Ok(TaskPage::new(tasks, limit))
}

/// Returns the tasks that meet a condition, the latest created first.
fn summaries(
    db: &Connection,
    condition: &str,
    limit: usize,
    parameters: &[(&str, &dyn ToSql)],
) -> rusqlite::Result<Vec<TaskSummary>> {
    let sql = format!(
        "SELECT t.id, t.key, o.owner, o.tenant, t.context, t.state, t.time, t.seq, t.folded, {TASK_BYTES}, t.attempt,
            substr(t.turn, 1, 17), (SELECT count(*) FROM push WHERE push.task = t.id)
         FROM task t LEFT JOIN scope o ON o.id = t.scope WHERE {condition} ORDER BY t.id DESC LIMIT {limit}"
    );
    let (mut query, mut tasks) = (db.prepare(&sql)?, read::TaskReader::new(db, false)?);
    let summaries = query.query_map(parameters, |row| {
        let column = |at| row.get_ref(at).map(text);
        let (id, key, seq) = (row.get(0)?, column(1)?, unsigned(row.get(7)?));
        // Not the whole log.
        let status = if row.get(8)? {
            tasks.read(id, seq).map(|task| task.status)
        } else {
            let last = read::events(db, id, seq.saturating_sub(1), 1, usize::MAX);
            last.map(|last| last.first().and_then(|event| event.payload()?.status().cloned()))
        };
        let status_text = match status {
            Err(error) if is_damage(&error) => None,
            status => status_text(status?.as_ref()),
        };
        Ok(TaskSummary {
            number: unsigned(id),
            created: time_of(&key),
            id: key,
            owner: column(2)?,
            tenant: column(3)?,
            context: column(4)?,
            state: TaskState::try_from(row.get::<_, i32>(5)?).unwrap_or_default(),
            time: row.get(6)?,
            events: seq,
            has_log: !row.get::<_, bool>(8)?,
            bytes: unsigned(row.get(9)?),
            attempt: row.get(10)?,
            error_id: row.get_ref(11)?.as_blob_or_null()?.and_then(error_id),
            push_configs: unsigned(row.get(12)?),
            status_text,
        })
    })?;
    summaries.collect()
}

/// Task of [`Inspect::task`].
fn task(db: &Connection, number: u64) -> rusqlite::Result<Option<InspectedTask>> {
    let id = signed(number)?;
    let Some(summary) = summaries(db, "t.id = :id", 1, &[(":id", &id)])?.pop() else { return Ok(None) };
    let task = read::TaskReader::new(db, true)?.read(id, summary.events)?;
    let mut pushes = db.prepare("SELECT version, config, beside FROM push WHERE task = ? ORDER BY number")?;
    let pushes = pushes.query_map([id], delivery::config)?;
    let push_configs = pushes.collect::<rusqlite::Result<_>>()?;
    Ok(Some(InspectedTask { summary, task, push_configs, turns: read::turns(db, id)? }))
}

/// Events of [`Inspect::events`].
fn events(db: &Connection, number: u64, after: Seq, limit: usize) -> rusqlite::Result<Vec<LoggedEvent>> {
    let id = signed(number)?;
    let sql = "SELECT key, CASE WHEN whole IS NOT NULL THEN time END FROM task WHERE id = ? AND folded = 0";
    let found = db.query_row(sql, [id], |row| Ok((row.get::<_, String>(0)?, row.get::<_, Option<Millis>>(1)?)));
    let Some((key, ended)) = found.optional()? else { return Ok(Vec::new()) };
    // The last log row that begins at or before an event has the time of its commit.
    let mut commit = db.prepare_cached("SELECT at, id FROM log WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT 1")?;
    let events = read::events(db, id, after, limit, READ_BYTES)?.into_iter().map(|event| {
        let rows = (log_row_id(id, 0)?, log_row_id(id, event.seq())?);
        let found = commit.query_row(rows, |row| Ok((row.get::<_, Option<Millis>>(0)?, row.get::<_, i64>(1)?)));
        let (at, row) = found.optional()?.unzip();
        let time = ended.or(at.flatten().map(|at| created(&key).saturating_add(at)));
        let commit = row.and_then(|row| row.try_into().ok()).or(ended.and(Some(0)));
        Ok(LoggedEvent { event, time, commit })
    });
    events.collect()
}

/// Maximum number of reported problems.
const MAX_PROBLEMS: usize = 100;

/// Queries that find inconsistent rows, with the description of the problem and its columns.
const INCONSISTENCIES: [(&str, &str); 10] = [
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
        "SELECT push.task, push.id, '' FROM push JOIN task ON task.id = push.task
         WHERE cursor > seq OR (due IS NOT NULL AND (pending IS NULL OR dead IS NOT NULL))",
        "invalid state of a delivery (task, configuration)",
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

/// Checks a task: its log has no gap and at most one final event, and matches the row and the checkpoint. Returns the first
/// problem.
pub(super) fn check_task(db: &Connection, id: i64) -> rusqlite::Result<Option<String>> {
    let checked = check_log(db, id).and_then(|()| read::load_row(db, id)).and_then(|_| read::turns(db, id));
    match checked {
        Err(rusqlite::Error::FromSqlConversionFailure(_, _, problem)) => Ok(Some(problem.to_string())),
        Err(error) if is_damage(&error) => Ok(Some(error.to_string())),
        checked => checked.map(|_| None),
    }
}

/// Fails with [damage](is_damage) if there is a problem.
fn check_log(db: &Connection, id: i64) -> rusqlite::Result<()> {
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
    if sealed.is_some() && checkpoint.is_some() {
        return Err(damaged("there is a checkpoint although the row contains the task"));
    }
    let mut replay = None;
    let ids = TaskIds { id: &key, context: &context };
    if let Some(sealed) = &sealed {
        let replay = replay.insert(Replay::new(1));
        sealed.events(0, ids).try_for_each(|event| replay.apply(&event)).map_err(damaged)?;
    }
    let mut query = db.prepare_cached("SELECT id, events FROM log WHERE id >= ? AND id < ? ORDER BY id")?;
    let mut rows = query.query((log_row_id(id, 0)?, log_row_id(id + 1, 0)?))?;
    while let Some(row) = rows.next()? {
        let first = first_seq(row.get(0)?);
        let Some(events) = decode_events(first, Bytes::copy_from_slice(row.get_ref(1)?.as_blob()?), ids) else {
            return Err(damaged(format!("the log row that begins with event {first} can't be decoded")));
        };
        let replay = replay.get_or_insert_with(|| Replay::new(first));
        events.iter().try_for_each(|event| replay.apply(event)).map_err(damaged)?;
    }
    let position = Position { fence, seq };
    let row = CheckedRow { id: &key, context: &context, state, time, position, without_log, checkpoint };
    row.check_log(replay.as_ref()).map_err(damaged)?;
    let task = read::TaskReader::new(db, true)?.read(id, seq)?;
    row.check_task(&task, replay.as_ref()).map_err(damaged)
}
