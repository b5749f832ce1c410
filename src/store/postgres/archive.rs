//! Export and import of tasks, each in one transaction.

use std::io::{self, BufRead, Write};

use futures_util::future::try_join_all;
use prost::Message as _;
use uuid::Uuid;

use super::{
    Event, Postgres, PushConfig, Unavailable,
    connection::{Connection, Failure, Parameter},
    delivery::config,
    read::{self, COLUMNS, LOG_SUMMARY, WITH_LOG, undecodable},
    values::{key, scope_row, signed, signed_int, task_row, unsigned},
};
use crate::{
    base::clock::Clock,
    store::{
        ImportError,
        archive::{Blob, Checkpoint, DeadEntry, LogEntry, PushEntry, SendEntry, TaskLine, read_tasks, write_header},
        log_codec::SealedLog,
        log_rows::{decode_events, encode_events, encode_whole, split_task},
    },
};

/// Number of tasks that are found at once.
const TASKS: i64 = 256;

/// Number of log rows that are read and written at once.
const LOG_ROWS: i64 = 256;
const LOG_BATCH: usize = 64;

/// Maximum number of events in an imported log row, which is a commit.
const EVENTS_PER_ROW: usize = 1024;

/// Follows the beginning of a transaction: what reads an export or writes an import may be slow.
const PATIENT: &str = "; SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL statement_timeout = '60s'";

/// Inserts a task, and its checkpoint if there is one.
const INSERT: &str = r#"WITH c AS (
        INSERT INTO @checkpoint(tid, seq, head, artifacts) SELECT $1, $23, $24, $25 WHERE $24 IS NOT NULL
    )
    INSERT INTO @task(tid, scope, "time", fence, seq, taken, bytes, attempt, drained, pushes, state, open, cancel, folded, owner,
        tenant, id, context, asked, saved, turn, whole)
    VALUES($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22)"#;

conversions! {
    ImportError:
    failure: Failure => if failure.is_caused_by_values() {
        Self::Rejected(failure.to_string())
    } else {
        Self::Database(failure.into())
    };
}

impl Postgres {
    /// Writes a consistent snapshot of the tasks of one owner or of all. Returns their number, or the failure of `out`. Push
    /// configurations have their secrets only with `include_secrets`.
    pub(crate) async fn export(
        &self,
        owner: Option<&str>,
        include_secrets: bool,
        out: &mut dyn Write,
    ) -> Result<io::Result<u64>, Unavailable> {
        let db = self.background.pinned().await?;
        db.execute_script(&format!("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY{PATIENT}")).await?;
        let exported = export(&db, owner, include_secrets, out).await;
        drop(db.execute_script("ROLLBACK").await);
        Ok(exported?)
    }

    /// Imports the tasks of an export in one transaction. Imports none if one of them exists already or is invalid. Those with an
    /// open turn have no runner, so that a server claims them.
    pub(crate) async fn import(&self, lines: impl BufRead) -> Result<u64, ImportError> {
        let db = self.background.pinned().await?;
        db.execute_script(&format!("BEGIN{PATIENT}")).await?;
        let imported = import(&db, lines).await;
        if imported.is_ok() {
            db.execute_script("COMMIT").await.map_err(|failure| ImportError::Unknown(failure.into()))?;
        } else {
            drop(db.execute_script("ROLLBACK").await);
        }
        imported
    }
}

async fn export(
    db: &Connection,
    owner: Option<&str>,
    include_secrets: bool,
    out: &mut dyn Write,
) -> Result<io::Result<u64>, Failure> {
    let sql = "SELECT tid, number FROM @task WHERE number > $1 AND state >= 0 AND ($2 IS NULL OR owner = $2)
        ORDER BY number LIMIT $3";
    let (mut tasks, mut after, mut written) = (0, 0_i64, write_header(out));
    loop {
        let page = db.query(sql, &[&after, &owner, &TASKS]).await?;
        let Some(last) = page.last() else { return Ok(written.and_then(|()| out.flush()).map(|()| tasks)) };
        after = last.try_get("number")?;
        for row in page {
            let line = task_line(db, row.try_get("tid")?, include_secrets).await?;
            written = written.and_then(|()| line.write(out));
            if written.is_err() {
                return Ok(written.map(|()| tasks));
            }
            tasks += 1;
        }
    }
}

/// Reads a task with all its data.
async fn task_line(db: &Connection, tid: Uuid, include_secrets: bool) -> Result<TaskLine, Failure> {
    let sql = format!("SELECT {COLUMNS}, {LOG_SUMMARY}, t.folded, t.turn FROM @task t {} WHERE t.tid = $1", *WITH_LOG);
    let row = db.query_row(&sql, &[&tid]).await?.ok_or_else(|| Failure::damaged("a task has no row"))?;
    let stored = read::stored_task(&row)?;
    let (state, seq) = (stored.row.state, stored.position.seq);
    let mut line = TaskLine::new(&key(&row)?, stored).map_err(Failure::damaged)?;
    // A short log is its own checkpoint.
    if line.checkpoint.is_none() && state.is_terminal() {
        line.checkpoint = read::task(db, tid).await?.map(|task| Checkpoint { seq, task });
    }
    (line.folded, line.turn) = (row.try_get("folded")?, row.try_get::<_, Option<_>>("turn")?.map(Blob));
    let sql = "SELECT version, config, extra, cursor, dead, reason FROM @push WHERE tid = $1 ORDER BY number";
    for row in db.query(sql, &[&tid]).await? {
        let reason = row.try_get::<_, Option<_>>("reason")?.unwrap_or_default();
        let dead = row.try_get::<_, Option<_>>("dead")?.map(|time| DeadEntry { time, reason });
        line.pushes.push(PushEntry::new(config(&row)?, include_secrets, unsigned(&row, "cursor")?, dead));
    }
    let sql = r#"SELECT key, hash, "time", seq FROM @send WHERE tid = $1 ORDER BY "time", key"#;
    for row in db.query(sql, &[&tid]).await? {
        let (key, hash, time) = (row.try_get("key")?, Blob(row.try_get("hash")?), row.try_get("time")?);
        line.sends.push(SendEntry { key, hash, time, seq: unsigned(&row, "seq")? });
    }
    if let Some(whole) = row.try_get::<_, Option<Vec<u8>>>("whole")? {
        let events = SealedLog::from_bytes(whole.into());
        line.log = events.events(0, line.ids()).map(|event| LogEntry::new(&event, None, None)).collect();
    }
    let sql = "SELECT last, first, at, events, turn FROM @log WHERE tid = $1 AND last > $2 ORDER BY last LIMIT $3";
    let mut after = 0_i64;
    loop {
        let rows = db.query(sql, &[&tid, &after, &LOG_ROWS]).await?;
        let Some(last) = rows.last() else { return Ok(line) };
        after = last.try_get("last")?;
        for row in rows {
            let events = row.try_get::<_, Vec<u8>>("events")?.into();
            let events = decode_events(unsigned(&row, "first")?, events, line.ids()).ok_or_else(undecodable)?;
            // Of the first event.
            let (mut at, mut turn) = (Some(row.try_get("at")?), row.try_get::<_, Option<_>>("turn")?.map(Blob));
            line.log.extend(events.iter().map(|event| LogEntry::new(event, at.take(), turn.take())));
        }
    }
}

async fn import(db: &Connection, lines: impl BufRead) -> Result<u64, ImportError> {
    let mut tasks = 0;
    for line in read_tasks(lines) {
        let (n, line) = line?;
        import_task(db, &line).await.map_err(|error| {
            let ImportError::Rejected(problem) = error else { return error };
            format!("line {n}: task {}: {problem}", line.id).into()
        })?;
        tasks += 1;
    }
    Ok(tasks)
}

async fn import_task(db: &Connection, line: &TaskLine) -> Result<(), ImportError> {
    let (key, state, events) = (line.key(), line.state()?, line.events()?);
    line.check(&events)?;
    let (tid, scope) = (task_row(&key), scope_row(key.scope()));
    let bytes = |blob: &Option<Blob>| blob.as_ref().map(|blob| blob.0.clone());
    let (checkpoint, task) = line.checkpoint.as_ref().map(|found| (found.seq, &found.task)).unzip();
    // A short task that ended with its first commit has no times.
    let is_single = state.is_terminal() && line.log.iter().all(|entry| entry.at.is_none() && entry.turn.is_none());
    let sealed = task.filter(|_| is_single && events.first().is_some_and(|first| first.seq() == 1));
    let whole = sealed.and_then(|task| encode_whole(task, &events, line.ids()));
    let (head, artifacts) = task.filter(|_| whole.is_none()).map(|task| split_task(task).into()).unzip();
    let (mut rows, mut at) = (Vec::new(), line.time);
    for (entry, events) in line.rows(&events, EVENTS_PER_ROW).filter(|_| whole.is_none()) {
        at = entry.at.unwrap_or(at);
        let [last, first] = [events.last(), events.first()].map(|event| signed(event.map_or(0, Event::seq)));
        rows.push((last, first, at, encode_events(events, line.ids()), bytes(&entry.turn)));
    }
    let size = match (&whole, &head, &artifacts) {
        (Some(whole), ..) => whole.len(),
        (None, Some(head), Some(artifacts)) if line.folded => head.len() + artifacts.len(),
        _ => rows.iter().map(|row| row.3.len()).sum(),
    };
    let TaskLine { time, open, cancel, folded, owner, tenant, id, context, .. } = line;
    let [fence, seq, taken] = [line.fence, line.seq, line.taken].map(signed);
    let (size, until, state) = (signed(size), checkpoint.map(signed), i16::try_from(i32::from(state)).unwrap_or(0));
    let pushes = u32::try_from(line.pushes.len()).unwrap_or(u32::MAX);
    let [attempt, drained, pushes] = [line.attempt, line.drained, pushes].map(signed_int);
    let [asked, saved, turn] = [&line.asked, &line.saved, &line.turn].map(bytes);
    let row: [&dyn Parameter; 25] = [
        &tid, &scope, time, &fence, &seq, &taken, &size, &attempt, &drained, &pushes, &state, open, cancel, folded,
        owner, tenant, id, context, &asked, &saved, &turn, &whole, &until, &head, &artifacts,
    ];
    db.query(INSERT, &row).await.map_err(|failure| match failure.constraint() {
        Some("task_pkey" | "checkpoint_pkey") => ImportError::Rejected(line.exists()),
        _ => failure.into(),
    })?;
    let sql = "INSERT INTO @log(tid, last, first, at, events, turn) VALUES($1, $2, $3, $4, $5, $6)";
    for rows in rows.chunks(LOG_BATCH) {
        // Pipelined.
        try_join_all(
            rows.iter().map(async |(last, first, at, events, turn)| {
                db.query(sql, &[&tid, last, first, at, events, turn]).await
            }),
        )
        .await?;
    }
    for entry in &line.pushes {
        let PushConfig { config, version, extra } = entry.config()?;
        let (time, reason) = entry.dead.as_ref().map(|dead| (dead.time, dead.reason.as_str())).unzip();
        let (config, cursor, extra) = (config, entry.cursor.min(line.seq), extra.to_vec());
        let due = (cursor < line.seq && time.is_none()).then(|| Clock::default().millis());
        let sql = "INSERT INTO @push(tid, id, scope, owner, version, config, extra, cursor, due, pending, dead, reason)
            VALUES($1, $2, $3, $4, $5, $6, $7, $8, $9, $9, $10, $11)";
        let (version, encoded) = (version.as_str(), config.encode_to_vec());
        let row: [&dyn Parameter; 11] =
            [&tid, &config.id, &scope, &line.owner, &version, &encoded, &extra, &signed(cursor), &due, &time, &reason];
        db.query(sql, &row).await?;
    }
    for entry in &line.sends {
        let (SendEntry { key, time, seq, .. }, hash) = (entry, entry.hash()?);
        let sql = r#"INSERT INTO @send(scope, key, hash, "time", tid, id, seq) VALUES($1, $2, $3, $4, $5, $6, $7)"#;
        let inserted = db.query(sql, &[&scope, key, &hash.as_slice(), time, &tid, &line.id, &signed(*seq)]).await;
        inserted.map_err(|failure| match failure.constraint() {
            Some(_) => ImportError::Rejected(entry.exists()),
            None => failure.into(),
        })?;
    }
    Ok(())
}
