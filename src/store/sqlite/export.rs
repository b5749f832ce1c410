//! Export and import of tasks as JSON Lines: one task with all its data per line. Also the deletion of an owner's data.

use std::{
    collections::HashMap,
    io::{self, BufRead, Write},
    sync::Arc,
};

use rusqlite::{Connection, named_params};
use tokio::sync::oneshot;

use super::{
    Event, Sqlite, Unavailable, delivery,
    error::Error,
    inspect::{Inspector, check_task},
    read,
    transaction::WriteTransaction,
    values::{damaged, first_seq, log_row_id, other_error, signed, unsigned},
};
use crate::store::{
    ImportError,
    archive::{self, Blob, Checkpoint, DeadEntry, LogEntry, PushEntry, SendEntry, TaskLine},
    log_rows::{encode_events, split_task},
};

/// Number of events per imported log row.
const EVENTS_PER_ROW: usize = 64;

impl Inspector {
    /// Writes a consistent snapshot of the tasks of one owner or of all. Returns their number, or the failure of `out`. Push
    /// configurations have their secrets only with `include_secrets`.
    pub(crate) fn export(
        &self,
        owner: Option<&str>,
        include_secrets: bool,
        out: &mut dyn Write,
    ) -> Result<io::Result<u64>, Error> {
        self.read(|db| {
            let (mut tasks, mut written) = (0, archive::write_header(out));
            let sql = "SELECT task.id FROM task JOIN scope ON scope.id = task.scope
                WHERE ?1 IS NULL OR scope.owner = ?1 ORDER BY task.id";
            let mut query = db.prepare(sql)?;
            let mut rows = query.query([owner])?;
            while written.is_ok()
                && let Some(row) = rows.next()?
            {
                written = task_line(db, row.get(0)?, include_secrets)?.write(out);
                tasks += 1;
            }
            Ok(written.and_then(|()| out.flush()).map(|()| tasks))
        })
    }
}

fn task_line(db: &Connection, id: i64, include_secrets: bool) -> rusqlite::Result<TaskLine> {
    let stored = read::load_row(db, id)?;
    let (state, seq) = (stored.row.state, stored.position.seq);
    let mut line = TaskLine::new(&read::key_of(db, id)?, stored).map_err(damaged)?;
    // A short log is its own checkpoint. A line has a checkpoint of every task in a terminal state.
    if line.checkpoint.is_none() && state.is_terminal() {
        line.checkpoint = Some(Checkpoint { seq, task: read::TaskReader::new(db, true)?.read(id, seq)? });
    }
    let mut row = db.prepare_cached("SELECT folded, turn FROM task WHERE id = ?")?;
    (line.folded, line.turn) = row.query_row([id], |row| Ok((row.get(0)?, row.get::<_, Option<_>>(1)?.map(Blob))))?;
    let sql = "SELECT version, config, beside, cursor, dead, reason FROM push WHERE task = ? ORDER BY number";
    let mut pushes = db.prepare_cached(sql)?;
    let pushes = pushes.query_map([id], |row| {
        let reason = row.get::<_, Option<_>>(5)?.unwrap_or_default();
        let dead = row.get::<_, Option<_>>(4)?.map(|time| DeadEntry { time, reason });
        Ok(PushEntry::new(delivery::config(row)?, include_secrets, unsigned(row.get(3)?), dead))
    })?;
    line.pushes = pushes.collect::<rusqlite::Result<_>>()?;
    let mut sends = db.prepare_cached("SELECT key, hash, time, seq FROM send WHERE task = ? ORDER BY time, key")?;
    let sends = sends.query_map([id], |row| {
        Ok(SendEntry { key: row.get(0)?, hash: Blob(row.get(1)?), time: row.get(2)?, seq: unsigned(row.get(3)?) })
    })?;
    line.sends = sends.collect::<rusqlite::Result<_>>()?;
    let mut rows = db.prepare_cached("SELECT id, at, turn FROM log WHERE id >= ? AND id < ? ORDER BY id")?;
    let rows = rows.query_map((log_row_id(id, 0)?, log_row_id(id + 1, 0)?), |row| {
        Ok((first_seq(row.get(0)?), (row.get(1)?, row.get::<_, Option<_>>(2)?.map(Blob))))
    })?;
    let mut rows = rows.collect::<rusqlite::Result<HashMap<u64, (Option<i64>, Option<Blob>)>>>()?;
    let log_entry = |event: &Event| {
        let (at, turn) = rows.remove(&event.seq()).unwrap_or_default();
        LogEntry::new(event, at, turn)
    };
    line.log = read::events(db, id, 0, usize::MAX, usize::MAX)?.iter().map(log_entry).collect();
    Ok(line)
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
        for line in archive::read_tasks(lines) {
            let (n, line) = line.map_err(other_error)?;
            self.import_task(&line).map_err(|error| {
                let rusqlite::Error::ToSqlConversionFailure(problem) = error else { return error };
                other_error(format!("line {n}: task {}: {problem}", line.id))
            })?;
            tasks += 1;
        }
        Ok(tasks)
    }

    /// Imports a task. Fails with [`other_error`] if it is invalid.
    fn import_task(&mut self, line: &TaskLine) -> rusqlite::Result<()> {
        let bytes = |blob: &Option<Blob>| blob.as_ref().map(|blob| blob.0.clone());
        let (state, key) = (line.state().map_err(other_error)?, line.key());
        let scope = match self.scope(key.scope())? {
            Some(scope) => scope,
            None => self.insert_scope(key.scope())?,
        };
        if self.find(scope, &key)?.is_some() {
            return Err(other_error(line.exists()));
        }
        let sql = "INSERT INTO task(scope, key, context, state, time, seq, fence, open, taken, cancel, attempt, drained, pushes, folded, asked, turn)
            VALUES(:scope, :key, :context, :state, :time, :seq, :fence, :open, :taken, :cancel, :attempt, :drained, 0, :folded, :asked, :turn)";
        self.db.prepare_cached(sql)?.execute(named_params! {
            ":scope": scope, ":key": key.id(), ":context": &line.context, ":state": i32::from(state), ":time": line.time,
            ":seq": signed(line.seq)?, ":fence": signed(line.fence)?, ":open": line.open, ":taken": signed(line.taken)?,
            ":cancel": line.cancel, ":attempt": line.attempt, ":drained": line.drained, ":folded": line.folded,
            ":asked": bytes(&line.asked), ":turn": bytes(&line.turn),
        })?;
        let id = self.db.last_insert_rowid();
        let events = line.events().map_err(other_error)?;
        for (entry, events) in line.rows(&events, EVENTS_PER_ROW) {
            let first = log_row_id(id, events.first().map_or(0, Event::seq))?;
            let sql = "INSERT INTO log VALUES(?, ?, ?, ?)";
            let row = (first, encode_events(events, line.ids()), entry.at, bytes(&entry.turn));
            self.db.prepare_cached(sql)?.execute(row)?;
        }
        if let Some(Checkpoint { seq, task }) = &line.checkpoint {
            let [head, artifacts] = split_task(task);
            let sql = "INSERT INTO checkpoint VALUES(?, ?, ?, ?)";
            self.db.prepare_cached(sql)?.execute((id, signed(*seq)?, head, artifacts))?;
        }
        if let Some(Blob(bytes)) = &line.saved {
            self.db.prepare_cached("INSERT INTO saved VALUES(?, ?)")?.execute((id, bytes))?;
        }
        for entry in &line.pushes {
            let config = entry.config().map_err(other_error)?;
            // An opening marks the events after the cursor as due.
            delivery::put(self.db, id, &config, entry.cursor.min(line.seq))?;
            if let Some(DeadEntry { time, reason }) = &entry.dead {
                let sql = "UPDATE push SET dead = ?, reason = ? WHERE task = ? AND id = ?";
                self.db.prepare_cached(sql)?.execute((time, reason, id, &config.config.id))?;
            }
        }
        for entry in &line.sends {
            let (SendEntry { key, time, seq, .. }, hash) = (entry, entry.hash().map_err(other_error)?);
            let sql = "INSERT INTO send VALUES(?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING";
            let inserted = self.db.prepare_cached(sql)?.execute((scope, key, hash, time, id, signed(*seq)?))?;
            if inserted == 0 {
                return Err(other_error(entry.exists()));
            }
        }
        // The fence of the next opening must be greater than any imported one.
        self.db.prepare_cached("UPDATE opening SET fence = max(fence, ?)")?.execute([signed(line.fence)?])?;
        let context: Arc<str> = line.context.as_str().into();
        self.count_transition((scope, &context), None, Some(state.into()))?;
        self.detect_large_context((scope, &context), id)?;
        self.count_for_quota(&key.scope().owner, None, Some(state.is_terminal()));
        self.eviction_starts.lower(&key.scope().owner, line.time);
        check_task(self.db, id)?.map_or(Ok(()), |problem| Err(other_error(problem)))
    }
}
