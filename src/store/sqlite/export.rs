//! Export and import of tasks as JSON Lines: one task with all its data per line. Also the deletion of an owner's data.

use std::{
    collections::HashMap,
    io::{BufRead, Write},
    sync::Arc,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, Row, named_params};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::{
    Event, Position, PushConfig, Scope, Sqlite, Task, TaskIds, TaskKey, TaskState, Unavailable, delivery,
    error::Error,
    inspect::{Inspector, check_task},
    log_rows::{encode_events, split_task},
    read,
    transaction::WriteTransaction,
    values::{first_seq, log_row_id, other_error, signed, unsigned},
};
use crate::protocol::{
    event::EventFlags,
    pb::v1::{StreamResponse, TaskPushNotificationConfig},
    version::Version,
};

/// Failure of an export.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExportError {
    /// The database can't be read.
    #[error(transparent)]
    Database(#[from] Error),
    /// The output can't be written.
    #[error("{0}")]
    Output(std::io::Error),
}

/// Failure of an import. Nothing was imported.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImportError {
    /// A line is invalid, or its task exists already.
    #[error("{0}")]
    Rejected(String),
    /// The database can't be written.
    #[error("{}", .0.0)]
    Database(#[from] Unavailable),
}

/// Version of the format.
const FORMAT: u32 = 1;

/// Number of events per imported log row.
const EVENTS_PER_ROW: usize = 64;

/// First line: the version of the format.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    a2a_tasks: u32,
}

/// Task with all its data.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TaskLine {
    owner: String,
    tenant: String,
    id: String,
    context: String,
    state: String,
    time: i64,
    seq: u64,
    fence: u64,
    open: bool,
    taken: u64,
    cancel: bool,
    attempt: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    drained: u32,
    /// The log was deleted.
    folded: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    checkpoint: Option<Checkpoint>,
    log: Vec<LogEntry>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    saved: Option<Blob>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    asked: Option<Blob>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    turn: Option<Blob>,
    pushes: Vec<PushEntry>,
    sends: Vec<SendEntry>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[derive(Debug, Serialize, Deserialize)]
struct Checkpoint {
    seq: u64,
    task: Task,
}

#[derive(Debug, Serialize, Deserialize)]
struct LogEntry {
    seq: u64,
    fence: u64,
    mark: u8,
    event: StreamResponse,
    /// Time and turns of the commit that begins with this event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    at: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    turn: Option<Blob>,
}

#[derive(Debug, Serialize, Deserialize)]
struct PushEntry {
    version: String,
    config: TaskPushNotificationConfig,
    beside: Blob,
    /// Last delivered event.
    cursor: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dead: Option<DeadEntry>,
}

/// Dead letter.
#[derive(Debug, Serialize, Deserialize)]
struct DeadEntry {
    time: i64,
    reason: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct SendEntry {
    key: String,
    hash: Blob,
    time: i64,
    seq: u64,
}

/// Opaque bytes, as base64 text.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct Blob(Vec<u8>);

impl TryFrom<String> for Blob {
    type Error = base64::DecodeError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        STANDARD.decode(text).map(Self)
    }
}

conversions! { String: blob: Blob => STANDARD.encode(blob.0); }

impl Inspector {
    /// Writes a consistent snapshot of the tasks of one owner or of all. Returns their number. Push configurations have their
    /// secrets only with `include_secrets`.
    pub(crate) fn export(
        &self,
        owner: Option<&str>,
        include_secrets: bool,
        out: &mut dyn Write,
    ) -> Result<u64, ExportError> {
        let mut failed = None;
        let exported = self.read(|db| {
            // The error is returned as it is, and not as one of SQLite.
            let mut written = |result: std::io::Result<()>| {
                result.map_err(|error| {
                    failed = Some(error);
                    other_error("the output can't be written")
                })
            };
            let mut tasks = 0;
            written(write_line(out, &Header { a2a_tasks: FORMAT }))?;
            let sql = "SELECT task.id FROM task JOIN scope ON scope.id = task.scope
                WHERE ?1 IS NULL OR scope.owner = ?1 ORDER BY task.id";
            let mut query = db.prepare(sql)?;
            let mut rows = query.query([owner])?;
            while let Some(row) = rows.next()? {
                written(write_line(out, &task_line(db, row.get(0)?, include_secrets)?))?;
                tasks += 1;
            }
            written(out.flush())?;
            Ok(tasks)
        });
        match failed {
            Some(error) => Err(ExportError::Output(error)),
            None => Ok(exported?),
        }
    }
}

fn write_line(out: &mut dyn Write, line: &impl Serialize) -> std::io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")
}

fn check_header(line: &str) -> Result<(), String> {
    match serde_json::from_str(line) {
        Ok(Header { a2a_tasks: FORMAT }) => Ok(()),
        Ok(Header { a2a_tasks }) => {
            Err(format!("export format {a2a_tasks} is not supported; this program supports format {FORMAT}"))
        }
        Err(_) => Err("not an export of this program".into()),
    }
}

fn task_line(db: &Connection, id: i64, include_secrets: bool) -> rusqlite::Result<TaskLine> {
    let blob = |row: &Row<'_>, at| Ok::<_, rusqlite::Error>(Blob(row.get(at)?));
    let sql = "SELECT version, config, beside, cursor, dead, reason FROM push WHERE task = ? ORDER BY number";
    let mut pushes = db.prepare_cached(sql)?;
    let pushes = pushes.query_map([id], |row| {
        let stored = delivery::config(row)?;
        let PushConfig { config, version, extra } =
            if include_secrets { Arc::unwrap_or_clone(stored) } else { stored.without_secrets() };
        let reason = row.get::<_, Option<String>>(5)?.unwrap_or_default();
        Ok(PushEntry {
            version: version.as_str().to_owned(),
            config,
            beside: Blob(extra.to_vec()),
            cursor: unsigned(row.get(3)?),
            dead: row.get::<_, Option<i64>>(4)?.map(|time| DeadEntry { time, reason }),
        })
    })?;
    let mut sends = db.prepare_cached("SELECT key, hash, time, seq FROM send WHERE task = ? ORDER BY time, key")?;
    let sends = sends.query_map([id], |row| {
        Ok(SendEntry { key: row.get(0)?, hash: blob(row, 1)?, time: row.get(2)?, seq: unsigned(row.get(3)?) })
    })?;
    let mut rows = db.prepare_cached("SELECT id, at, turn FROM log WHERE id >= ? AND id < ? ORDER BY id")?;
    let rows = rows.query_map((log_row_id(id, 0)?, log_row_id(id + 1, 0)?), |row| {
        Ok((first_seq(row.get(0)?), (row.get(1)?, row.get::<_, Option<_>>(2)?.map(Blob))))
    })?;
    let mut rows = rows.collect::<rusqlite::Result<HashMap<u64, (Option<i64>, Option<Blob>)>>>()?;
    let log_entry = |event: &Event| {
        let Position { seq, fence } = event.position();
        let (at, turn) = rows.remove(&seq).unwrap_or_default();
        LogEntry { seq, fence, mark: event.mark().to_byte(), event: event.response().clone(), at, turn }
    };
    let log = read::events(db, id, 0, usize::MAX, usize::MAX)?.iter().map(log_entry).collect();
    let saved = "SELECT bytes FROM saved WHERE id = ?";
    let saved = db.prepare_cached(saved)?.query_row([id], |row| blob(row, 0)).optional()?;
    let checkpoint = "SELECT seq, task, artifacts FROM checkpoint WHERE id = ?";
    let checkpoint = db.prepare_cached(checkpoint)?.query_row([id], |row| {
        let task = read::task(row.get_ref(1)?.as_blob()?, row.get_ref(2)?.as_blob()?)?;
        Ok(Checkpoint { seq: unsigned(row.get(0)?), task })
    });
    let (checkpoint, pushes, sends) =
        (checkpoint.optional()?, pushes.collect::<rusqlite::Result<_>>()?, sends.collect::<rusqlite::Result<_>>()?);
    let sql = "SELECT o.owner, o.tenant, t.* FROM task t JOIN scope o ON o.id = t.scope WHERE t.id = ?";
    db.prepare_cached(sql)?.query_row([id], |row| {
        let state = TaskState::try_from(row.get::<_, i32>("state")?).unwrap_or_default();
        let seq = unsigned(row.get("seq")?);
        // A short log is its own checkpoint. A line has a checkpoint of every task in a terminal state.
        let checkpoint = match checkpoint {
            None if state.is_terminal() => {
                Some(Checkpoint { seq, task: read::TaskReader::new(db, true)?.read(id, seq)? })
            }
            found => found,
        };
        Ok(TaskLine {
            owner: row.get("owner")?,
            tenant: row.get("tenant")?,
            id: row.get("key")?,
            context: row.get("context")?,
            state: state.as_str_name().to_owned(),
            time: row.get("time")?,
            seq,
            fence: unsigned(row.get("fence")?),
            open: row.get("open")?,
            taken: unsigned(row.get("taken")?),
            cancel: row.get("cancel")?,
            attempt: row.get("attempt")?,
            drained: row.get("drained")?,
            folded: row.get("folded")?,
            checkpoint,
            log,
            saved,
            asked: row.get::<_, Option<_>>("asked")?.map(Blob),
            turn: row.get::<_, Option<_>>("turn")?.map(Blob),
            pushes,
            sends,
        })
    })
}

impl Sqlite {
    /// Imports the tasks of an export in one transaction. Imports none if one of them exists already or is invalid.
    pub(crate) async fn import(&self, lines: impl BufRead + Send + 'static) -> Result<u64, ImportError> {
        let (sender, mut problem) = oneshot::channel();
        let import = move |transaction: &mut WriteTransaction<'_>| {
            transaction.import(lines).inspect_err(|error| {
                if let rusqlite::Error::ToSqlConversionFailure(rejected) = error {
                    // Not received if the caller has gone.
                    _ = sender.send(rejected.to_string());
                }
            })
        };
        let imported = self.writer.run_once(import).await;
        imported.map_err(|error| problem.try_recv().map_or(ImportError::Database(error), ImportError::Rejected))
    }

    /// Deletes all data of an owner, and overwrites it in the file. Returns the number of deleted tasks.
    pub(crate) async fn forget(&self, owner: &str) -> Result<u64, Unavailable> {
        self.writer.run(|transaction| transaction.db.pragma_update(None, "secure_delete", true)).await?;
        let (owner, mut tasks): (Arc<str>, _) = (owner.into(), 0);
        loop {
            let owner = Arc::clone(&owner);
            let (deleted, has_more) = self.writer.run(move |transaction| transaction.delete_some_of(&owner)).await?;
            tasks += deleted;
            if !has_more {
                return Ok(tasks);
            }
        }
    }
}

impl WriteTransaction<'_> {
    /// Imports tasks. Fails with [`other_error`] at the first invalid line.
    fn import(&mut self, lines: impl BufRead) -> rusqlite::Result<u64> {
        let mut tasks = 0;
        for (n, text) in (1_u64..).zip(lines.lines()) {
            let invalid = |problem: String| other_error(format!("line {n}: {problem}"));
            let text = text.map_err(|error| invalid(error.to_string()))?;
            if n == 1 {
                check_header(&text).map_err(invalid)?;
                continue;
            }
            let line: TaskLine = serde_json::from_str(&text).map_err(|error| invalid(error.to_string()))?;
            let id = line.id.clone();
            self.import_task(line).map_err(|error| {
                let rusqlite::Error::ToSqlConversionFailure(problem) = error else { return error };
                invalid(format!("task {id}: {problem}"))
            })?;
            tasks += 1;
        }
        Ok(tasks)
    }

    /// Imports a task. Fails with [`other_error`] if it is invalid.
    fn import_task(&mut self, line: TaskLine) -> rusqlite::Result<()> {
        let state = TaskState::from_str_name(&line.state);
        let state = state.ok_or_else(|| other_error(format!("state: unknown state {}", line.state)))?;
        let key = TaskKey::new(&Arc::new(Scope { owner: line.owner.into(), tenant: line.tenant.into() }), &line.id);
        let scope = match self.scope(key.scope())? {
            Some(scope) => scope,
            None => self.insert_scope(key.scope())?,
        };
        if self.find(scope, &key)?.is_some() {
            return Err(other_error(format!(
                "the task exists already, of owner {:?} in tenant {:?}; remove the line, or import into another database",
                key.scope().owner,
                key.scope().tenant
            )));
        }
        let sql = "INSERT INTO task(scope, key, context, state, time, seq, fence, open, taken, cancel, attempt, drained, pushes, folded, asked, turn)
            VALUES(:scope, :key, :context, :state, :time, :seq, :fence, :open, :taken, :cancel, :attempt, :drained, 0, :folded, :asked, :turn)";
        self.db.prepare_cached(sql)?.execute(named_params! {
            ":scope": scope, ":key": key.id(), ":context": &line.context, ":state": i32::from(state), ":time": line.time,
            ":seq": signed(line.seq)?, ":fence": signed(line.fence)?, ":open": line.open, ":taken": signed(line.taken)?,
            ":cancel": line.cancel, ":attempt": line.attempt, ":drained": line.drained, ":folded": line.folded,
            ":asked": line.asked.map(|blob| blob.0), ":turn": line.turn.map(|blob| blob.0),
        })?;
        let id = self.db.last_insert_rowid();
        if line.log.windows(2).any(|pair| pair[0].seq.checked_add(1) != Some(pair[1].seq)) {
            return Err(other_error("log: the sequence numbers have a gap"));
        }
        let ids = TaskIds { id: key.id(), context: &line.context };
        // Events without a time belong to the commit before them, which may be long.
        let commits = line.log.chunk_by(|_, next| next.at.is_none() && next.turn.is_none());
        for entries in commits.flat_map(|commit| commit.chunks(EVENTS_PER_ROW)) {
            let event = |entry: &LogEntry| {
                let payload = entry.event.payload.clone()?;
                let position = Position { fence: entry.fence, seq: entry.seq };
                Some(Event::new(position, EventFlags::from_byte(entry.mark), payload))
            };
            let events: Option<Vec<_>> = entries.iter().map(event).collect();
            let events = events.ok_or_else(|| other_error("log: an event is empty"))?;
            let first = log_row_id(id, entries.first().map_or(0, |entry| entry.seq))?;
            let (at, turn) = entries.first().map(|entry| (entry.at, entry.turn.as_ref())).unwrap_or_default();
            let (sql, events) = ("INSERT INTO log VALUES(?, ?, ?, ?)", encode_events(&events, ids));
            self.db.prepare_cached(sql)?.execute((first, events, at, turn.map(|blob| &*blob.0)))?;
        }
        if let Some(Checkpoint { seq, task }) = line.checkpoint {
            let [head, artifacts] = split_task(&task);
            let sql = "INSERT INTO checkpoint VALUES(?, ?, ?, ?)";
            self.db.prepare_cached(sql)?.execute((id, signed(seq)?, head, artifacts))?;
        }
        if let Some(Blob(bytes)) = line.saved {
            self.db.prepare_cached("INSERT INTO saved VALUES(?, ?)")?.execute((id, bytes))?;
        }
        for PushEntry { version, config, beside, cursor, dead } in line.pushes {
            let known = Version::from_text(&version);
            let version = known.ok_or_else(|| other_error(format!("pushes: unknown protocol version {version}")))?;
            let config = PushConfig { config, version, extra: Bytes::from(beside.0) };
            // An opening marks the events after the cursor as due.
            delivery::put(self.db, id, &config, cursor.min(line.seq))?;
            if let Some(DeadEntry { time, reason }) = dead {
                let sql = "UPDATE push SET dead = ?, reason = ? WHERE task = ? AND id = ?";
                self.db.prepare_cached(sql)?.execute((time, reason, id, &config.config.id))?;
            }
        }
        for SendEntry { key, hash: Blob(hash), time, seq } in line.sends {
            let Ok(hash) = <[u8; 16]>::try_from(hash) else {
                let why = format!("sends: the hash of the idempotency key {key} does not have 16 bytes");
                return Err(other_error(why));
            };
            let sql = "INSERT INTO send VALUES(?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING";
            let inserted = self.db.prepare_cached(sql)?.execute((scope, &key, hash, time, id, signed(seq)?))?;
            if inserted == 0 {
                let why = format!("sends: another message of the owner has the idempotency key {key}");
                return Err(other_error(why));
            }
        }
        // The fence of the next opening must be greater than any imported one.
        self.db.prepare_cached("UPDATE opening SET fence = max(fence, ?)")?.execute([signed(line.fence)?])?;
        let context: Arc<str> = line.context.into();
        self.count_transition((scope, &context), None, Some(state.into()))?;
        self.detect_large_context((scope, &context), id)?;
        self.count_for_quota(&key.scope().owner, None, Some(state.is_terminal()));
        self.eviction_starts.lower(&key.scope().owner, line.time);
        check_task(self.db, id)?.map_or(Ok(()), |problem| Err(other_error(problem)))
    }
}
