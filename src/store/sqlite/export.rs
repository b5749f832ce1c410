//! Tasks as lines of JSON, one for each with all that is kept of it: out of a file, and into another.

use std::{
    io::{BufRead, Write},
    sync::Arc,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, Row, named_params};
use serde::{Deserialize, Serialize};

use super::{
    Error, Sqlite, check,
    inspect::Inspector,
    log_rows::{halves, pack},
    number, push, read,
    write::{piece, refused, signed},
    writer::Transaction,
};
use crate::{
    event::{Event, Mark, Position},
    pb::v1::{StreamResponse, Task, TaskPushNotificationConfig, TaskState},
    protocol::Version,
    store::{Key, PushConfig, Scope, Unavailable, log_codec::TaskIds},
};

/// The layout of the lines; another one is another number.
const LAYOUT: u32 = 1;

/// So many events are a piece of a log.
const PIECE: usize = 64;

/// The first line: what the others are.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    a2a_tasks: u32,
}

/// A task.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
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
    /// Nothing is left of its log.
    folded: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    checkpoint: Option<Checkpoint>,
    log: Vec<Logged>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    saved: Option<Blob>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    asked: Option<Blob>,
    pushes: Vec<Push>,
    sends: Vec<Send>,
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
struct Logged {
    seq: u64,
    fence: u64,
    mark: u8,
    event: StreamResponse,
}

#[derive(Debug, Serialize, Deserialize)]
struct Push {
    version: String,
    config: TaskPushNotificationConfig,
    beside: Blob,
}

#[derive(Debug, Serialize, Deserialize)]
struct Send {
    key: String,
    hash: Blob,
    time: i64,
    seq: u64,
}

/// Bytes that nobody reads, in base64.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct Blob(Vec<u8>);

impl TryFrom<String> for Blob {
    type Error = base64::DecodeError;

    fn try_from(it: String) -> Result<Self, Self::Error> {
        STANDARD.decode(it).map(Self)
    }
}

impl From<Blob> for String {
    fn from(it: Blob) -> Self {
        STANDARD.encode(it.0)
    }
}

impl Inspector {
    /// Writes the tasks of one owner or of all, as they are at this moment, and says how many.
    pub(crate) fn export(&self, owner: Option<&str>, out: &mut dyn Write) -> Result<u64, Error> {
        self.read(|db| {
            let (written, mut tasks) = (|it: Result<(), _>| it.map_err(refused), 0);
            written(line(out, &Head { a2a_tasks: LAYOUT }))?;
            let sql = "SELECT task.id FROM task JOIN scope ON scope.id = task.scope
                WHERE ?1 IS NULL OR scope.owner = ?1 ORDER BY task.id";
            let mut all = db.prepare(sql)?;
            let mut all = all.query([owner])?;
            while let Some(it) = all.next()? {
                written(line(out, &exported(db, it.get(0)?)?))?;
                tasks += 1;
            }
            out.flush().map_err(refused)?;
            Ok(tasks)
        })
    }
}

fn line(out: &mut dyn Write, it: &impl Serialize) -> std::io::Result<()> {
    serde_json::to_writer(&mut *out, it)?;
    out.write_all(b"\n")
}

fn exported(db: &Connection, id: i64) -> rusqlite::Result<Line> {
    let blob = |it: &Row<'_>, at| Ok::<_, rusqlite::Error>(Blob(it.get(at)?));
    let sql = "SELECT version, config, beside, number FROM push WHERE task = ? ORDER BY number";
    let mut pushes = db.prepare_cached(sql)?;
    let pushes = pushes.query_map([id], |it| {
        let PushConfig { config, version, extra: beside } = &*push::config(it)?;
        Ok(Push { version: version.as_str().to_owned(), config: config.clone(), beside: Blob(beside.to_vec()) })
    })?;
    let mut sends = db.prepare_cached("SELECT key, hash, time, seq FROM send WHERE task = ? ORDER BY time, key")?;
    let sends = sends.query_map([id], |it| {
        Ok(Send { key: it.get(0)?, hash: blob(it, 1)?, time: it.get(2)?, seq: number(it.get(3)?) })
    })?;
    let logged = |it: &Event| {
        let Position { seq, fence } = it.position();
        Logged { seq, fence, mark: it.mark().to_byte(), event: it.message().clone() }
    };
    let log = read::events(db, id, 0, usize::MAX)?.iter().map(logged).collect();
    let saved = "SELECT bytes FROM saved WHERE id = ?";
    let saved = db.prepare_cached(saved)?.query_row([id], |it| blob(it, 0)).optional()?;
    let checkpoint = "SELECT seq, task, artifacts FROM checkpoint WHERE id = ?";
    let checkpoint = db.prepare_cached(checkpoint)?.query_row([id], |it| {
        let task = read::task(it.get_ref(1)?.as_blob()?, it.get_ref(2)?.as_blob()?)?;
        Ok(Checkpoint { seq: number(it.get(0)?), task })
    });
    let (checkpoint, pushes, sends) =
        (checkpoint.optional()?, pushes.collect::<rusqlite::Result<_>>()?, sends.collect::<rusqlite::Result<_>>()?);
    let sql = "SELECT o.owner, o.tenant, t.* FROM task t JOIN scope o ON o.id = t.scope WHERE t.id = ?";
    db.prepare_cached(sql)?.query_row([id], |it| {
        let state = TaskState::try_from(it.get::<_, i32>("state")?).unwrap_or_default();
        let seq = number(it.get("seq")?);
        // A short log is its own checkpoint. Who reads a line is to find what has ended in one piece.
        let checkpoint = match checkpoint {
            None if state.is_terminal() => Some(Checkpoint { seq, task: read::TaskRows::new(db, true)?.at(id, seq)? }),
            found => found,
        };
        Ok(Line {
            owner: it.get("owner")?,
            tenant: it.get("tenant")?,
            id: it.get("key")?,
            context: it.get("context")?,
            state: state.as_str_name().to_owned(),
            time: it.get("time")?,
            seq,
            fence: number(it.get("fence")?),
            open: it.get("open")?,
            taken: number(it.get("taken")?),
            cancel: it.get("cancel")?,
            attempt: it.get("attempt")?,
            drained: it.get("drained")?,
            folded: it.get("folded")?,
            checkpoint,
            log,
            saved,
            asked: it.get::<_, Option<_>>("asked")?.map(Blob),
            pushes,
            sends,
        })
    })
}

impl Sqlite {
    /// Takes the tasks of these lines, all or none: none where one of them is there already, or is not what a task is.
    pub(crate) async fn import(&self, lines: impl BufRead + std::marker::Send + 'static) -> Result<u64, Unavailable> {
        self.writer.run_once(move |it| it.import(lines)).await
    }

    /// Deletes all that is there of an owner, and what it was from the file. Says how many tasks.
    pub(crate) async fn forget(&self, owner: &str) -> Result<u64, Unavailable> {
        // What is deleted is overwritten.
        self.writer.run(|it| it.db.pragma_update(None, "secure_delete", true)).await?;
        let (owner, mut tasks): (Arc<str>, _) = (owner.into(), 0);
        loop {
            let whose = Arc::clone(&owner);
            let (some, more) = self.writer.run(move |it| it.forget_some_of(&whose)).await?;
            tasks += some;
            if !more {
                return Ok(tasks);
            }
        }
    }
}

impl Transaction<'_> {
    fn import(&mut self, lines: impl BufRead) -> rusqlite::Result<u64> {
        let mut tasks = 0;
        for (n, text) in (1_u64..).zip(lines.lines()) {
            let wrong = |why: String| refused(format!("line {n}: {why}"));
            let text = text.map_err(|it| wrong(it.to_string()))?;
            if n == 1 {
                let head: Head = serde_json::from_str(&text).map_err(|_| wrong("these are no tasks of ours".into()))?;
                if head.a2a_tasks != LAYOUT {
                    return Err(wrong(format!(
                        "these are tasks in the form {}, and only {LAYOUT} is known",
                        head.a2a_tasks
                    )));
                }
                continue;
            }
            let line: Line = serde_json::from_str(&text).map_err(|it| wrong(it.to_string()))?;
            let id = line.id.clone();
            if let Some(why) = self.take(line)? {
                return Err(wrong(format!("task {id}: {why}")));
            }
            tasks += 1;
        }
        Ok(tasks)
    }

    /// Takes a task, or says why not.
    fn take(&mut self, line: Line) -> rusqlite::Result<Option<String>> {
        let Some(state) = TaskState::from_str_name(&line.state) else { return Ok(Some("it has no state".into())) };
        let key = Key::new(&Arc::new(Scope { owner: line.owner.into(), tenant: line.tenant.into() }), &line.id);
        let scope = match self.scope(key.scope())? {
            Some(it) => it,
            None => self.new_scope(key.scope())?,
        };
        if self.find(scope, &key)?.is_some() {
            return Ok(Some("it is there already".into()));
        }
        let sql = "INSERT INTO task(scope, key, context, state, time, seq, fence, open, taken, cancel, attempt, drained, pushes, folded, asked)
            VALUES(:scope, :key, :context, :state, :time, :seq, :fence, :open, :taken, :cancel, :attempt, :drained, 0, :folded, :asked)";
        self.db.prepare_cached(sql)?.execute(named_params! {
            ":scope": scope, ":key": key.id(), ":context": &line.context, ":state": i32::from(state), ":time": line.time,
            ":seq": signed(line.seq)?, ":fence": signed(line.fence)?, ":open": line.open, ":taken": signed(line.taken)?,
            ":cancel": line.cancel, ":attempt": line.attempt, ":drained": line.drained, ":folded": line.folded,
            ":asked": line.asked.map(|it| it.0),
        })?;
        let id = self.db.last_insert_rowid();
        if line.log.windows(2).any(|it| it[0].seq.checked_add(1) != Some(it[1].seq)) {
            return Ok(Some("its log has a hole".into()));
        }
        let names = TaskIds { id: key.id(), context: &line.context };
        for some in line.log.chunks(PIECE) {
            let event = |it: &Logged| {
                let payload = it.event.payload.clone()?;
                Some(Event::new(Position { fence: it.fence, seq: it.seq }, Mark::from_byte(it.mark), payload))
            };
            let Some(events) = some.iter().map(event).collect::<Option<Vec<_>>>() else {
                return Ok(Some("an event of its log says nothing".into()));
            };
            let first = piece(id, some.first().map_or(0, |it| it.seq))?;
            self.db.prepare_cached("INSERT INTO log VALUES(?, ?)")?.execute((first, pack(&events, names)))?;
        }
        if let Some(Checkpoint { seq, task }) = line.checkpoint {
            let [head, artifacts] = halves(&task);
            let sql = "INSERT INTO checkpoint VALUES(?, ?, ?, ?)";
            self.db.prepare_cached(sql)?.execute((id, signed(seq)?, head, artifacts))?;
        }
        if let Some(it) = line.saved {
            self.db.prepare_cached("INSERT INTO saved VALUES(?, ?)")?.execute((id, it.0))?;
        }
        for Push { version, config, beside } in line.pushes {
            let Some(version) = Version::from_text(&version) else {
                return Ok(Some("a push configuration is of a version that there is not".into()));
            };
            let config = PushConfig { config, version, extra: Bytes::from(beside.0) };
            push::keep(self.db, id, &config, usize::MAX)?;
        }
        for Send { key, hash, time, seq } in line.sends {
            let sql = "INSERT INTO send VALUES(?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING";
            let taken = self.db.prepare_cached(sql)?.execute((scope, &key, hash.0, time, id, signed(seq)?))?;
            if taken == 0 {
                return Ok(Some(format!("a send of its owner has the key {key} already")));
            }
        }
        // What is written from the next opening on is of another one than what was.
        self.db.prepare_cached("UPDATE opening SET fence = max(fence, ?)")?.execute([signed(line.fence)?])?;
        let context: Arc<str> = line.context.into();
        self.moved((scope, &context), None, Some(state.into()))?;
        self.joined((scope, &context), id)?;
        self.room.moved(&key.scope().owner, None, Some(state.is_terminal()));
        check::task(self.db, id)
    }
}
