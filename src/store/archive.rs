//! Exported tasks as JSON Lines: one task with all its data per line. The lines do not depend on the kind of store.

use std::{
    io::{self, BufRead, Write},
    sync::Arc,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    Event, Position, PushConfig, Scope, StoredTask, Task, TaskKey, TaskState, TurnRecord, Unavailable,
    log_codec::TaskIds,
    replay::{CheckedRow, Replay},
};
use crate::protocol::{
    event::EventFlags,
    pb::v1::{StreamResponse, TaskPushNotificationConfig},
    task::apply,
    version::Version,
};

/// Failure of an import.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImportError {
    /// A line is invalid, or its task exists already. Nothing was imported.
    #[error("{0}")]
    Rejected(String),
    /// The database can't be written. Nothing was imported.
    #[error("{}", .0.0)]
    Database(#[from] Unavailable),
    /// The commit has failed, or its response was lost.
    #[error("it is unknown whether the tasks were imported, `a2a admin list` shows it: {}", .0.0)]
    Unknown(Unavailable),
}

conversions! { ImportError: problem: String => Self::Rejected(problem); }

/// Version of the format.
const FORMAT: u32 = 1;

/// First line: the version of the format.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    a2a_tasks: u32,
}

/// Task with all its data.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::store) struct TaskLine {
    pub(in crate::store) owner: String,
    pub(in crate::store) tenant: String,
    pub(in crate::store) id: String,
    pub(in crate::store) context: String,
    pub(in crate::store) state: String,
    pub(in crate::store) time: i64,
    pub(in crate::store) seq: u64,
    pub(in crate::store) fence: u64,
    pub(in crate::store) open: bool,
    pub(in crate::store) taken: u64,
    pub(in crate::store) cancel: bool,
    pub(in crate::store) attempt: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(in crate::store) drained: u32,
    /// The log was deleted.
    pub(in crate::store) folded: bool,
    /// Present in a terminal state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::store) checkpoint: Option<Checkpoint>,
    pub(in crate::store) log: Vec<LogEntry>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::store) saved: Option<Blob>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::store) asked: Option<Blob>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::store) turn: Option<Blob>,
    pub(in crate::store) pushes: Vec<PushEntry>,
    pub(in crate::store) sends: Vec<SendEntry>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[derive(Debug, Serialize, Deserialize)]
pub(in crate::store) struct Checkpoint {
    pub(in crate::store) seq: u64,
    pub(in crate::store) task: Task,
}

#[derive(Debug, Serialize, Deserialize)]
pub(in crate::store) struct LogEntry {
    seq: u64,
    fence: u64,
    mark: u8,
    event: StreamResponse,
    /// Time and turns of the commit that begins with this event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::store) at: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::store) turn: Option<Blob>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(in crate::store) struct PushEntry {
    version: String,
    config: TaskPushNotificationConfig,
    beside: Blob,
    /// Last delivered event.
    pub(in crate::store) cursor: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(in crate::store) dead: Option<DeadEntry>,
}

/// Dead letter.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::store) struct DeadEntry {
    pub(in crate::store) time: i64,
    pub(in crate::store) reason: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub(in crate::store) struct SendEntry {
    pub(in crate::store) key: String,
    pub(in crate::store) hash: Blob,
    pub(in crate::store) time: i64,
    pub(in crate::store) seq: u64,
}

/// Opaque bytes, as base64 text.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(in crate::store) struct Blob(pub(in crate::store) Vec<u8>);

impl TryFrom<String> for Blob {
    type Error = base64::DecodeError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        STANDARD.decode(text).map(Self)
    }
}

conversions! { String: blob: Blob => STANDARD.encode(blob.0); }

/// Writes the first line.
pub(in crate::store) fn write_header(out: &mut dyn Write) -> io::Result<()> {
    write_json(out, &Header { a2a_tasks: FORMAT })
}

fn write_json(out: &mut dyn Write, line: &impl Serialize) -> io::Result<()> {
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

/// Decodes the tasks of an export. Returns them with the numbers of their lines.
pub(in crate::store) fn read_tasks(lines: impl BufRead) -> impl Iterator<Item = Result<(u64, TaskLine), String>> {
    (1_u64..).zip(lines.lines()).filter_map(|(n, text)| {
        let line = text.map_err(|error| error.to_string()).and_then(|text| match n {
            1 => check_header(&text).map(|()| None),
            _ => serde_json::from_str(&text).map(|line| Some((n, line))).map_err(|error| error.to_string()),
        });
        line.map_err(|problem| format!("line {n}: {problem}")).transpose()
    })
}

impl TaskLine {
    /// Creates the line of a task with its newest checkpoint, and without its log and what else belongs to it.
    pub(in crate::store) fn new(key: &TaskKey, stored: StoredTask) -> Result<Self, &'static str> {
        let (StoredTask { position, row, checkpoint, agent_state, turn_contexts, .. }, scope) = (stored, key.scope());
        let checkpoint = checkpoint.map(|(seq, snapshot)| {
            let task = snapshot.into_task().map_err(|_| "a task can't be decoded")?;
            Ok::<_, &str>(Checkpoint { seq, task })
        });
        let blob = |bytes: Option<Bytes>| bytes.map(|bytes| Blob(bytes.into()));
        Ok(Self {
            owner: scope.owner.to_string(),
            tenant: scope.tenant.to_string(),
            id: key.id().to_owned(),
            context: row.context.to_string(),
            state: row.state.as_str_name().to_owned(),
            time: row.time,
            seq: position.seq,
            fence: position.fence,
            open: row.open,
            taken: row.delivered_seq,
            cancel: row.cancel_requested,
            attempt: row.attempt,
            drained: row.drained,
            folded: false,
            checkpoint: checkpoint.transpose()?,
            log: Vec::new(),
            saved: blob(agent_state),
            asked: blob(turn_contexts),
            turn: None,
            pushes: Vec::new(),
            sends: Vec::new(),
        })
    }

    pub(in crate::store) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        write_json(out, self)
    }

    pub(in crate::store) fn state(&self) -> Result<TaskState, String> {
        TaskState::from_str_name(&self.state).ok_or_else(|| format!("state: unknown state {}", self.state))
    }

    pub(in crate::store) fn key(&self) -> TaskKey {
        let scope = Scope { owner: self.owner.as_str().into(), tenant: self.tenant.as_str().into() };
        TaskKey::new(&Arc::new(scope), &self.id)
    }

    pub(in crate::store) fn ids(&self) -> TaskIds<'_> {
        TaskIds { id: &self.id, context: &self.context }
    }

    /// Error for a task that exists.
    pub(in crate::store) fn exists(&self) -> String {
        let Self { owner, tenant, .. } = self;
        let remedy = "remove the line, or import into another database";
        format!("the task exists already, of owner {owner:?} in tenant {tenant:?}; {remedy}")
    }

    /// Returns the events of the log.
    pub(in crate::store) fn events(&self) -> Result<Vec<Event>, String> {
        if self.log.windows(2).any(|pair| pair[0].seq.checked_add(1) != Some(pair[1].seq)) {
            return Err("log: the sequence numbers have a gap".to_owned());
        }
        let event = |LogEntry { seq, fence, mark, event, .. }: &LogEntry| {
            let payload = event.payload.clone().ok_or("log: an event is empty")?;
            Ok(Event::new(Position { fence: *fence, seq: *seq }, EventFlags::from_byte(*mark), payload))
        };
        self.log.iter().map(event).collect()
    }

    /// Divides the [events](Self::events) into rows of at most `max` events. Returns each with the entry that it begins with.
    pub(in crate::store) fn rows<'a>(
        &'a self,
        mut events: &'a [Event],
        max: usize,
    ) -> impl Iterator<Item = (&'a LogEntry, &'a [Event])> {
        // Events without a time belong to the commit before them, which may be long.
        let commits = self.log.chunk_by(|_, next| next.at.is_none() && next.turn.is_none());
        commits.flat_map(move |commit| commit.chunks(max)).filter_map(move |entries| {
            let (row, rest) = events.split_at_checked(entries.len())?;
            events = rest;
            Some((entries.first()?, row))
        })
    }

    /// Checks the log, the checkpoint and the row.
    pub(in crate::store) fn check(&self, events: &[Event]) -> Result<(), String> {
        let mut replay = events.first().map(|first| Replay::new(first.seq()));
        if let Some(replay) = &mut replay {
            events.iter().try_for_each(|event| replay.apply(event))?;
        }
        let row = CheckedRow {
            id: &self.id,
            context: &self.context,
            state: self.state()?.into(),
            time: self.time,
            position: Position { fence: self.fence, seq: self.seq },
            without_log: self.folded,
            checkpoint: self.checkpoint.as_ref().map(|checkpoint| checkpoint.seq),
        };
        row.check_log(replay.as_ref())?;
        let (seq, mut task) =
            self.checkpoint.as_ref().map_or_else(Default::default, |found| (found.seq, found.task.clone()));
        let later = events.iter().filter(|event| event.seq() > seq).filter_map(Event::payload);
        later.for_each(|payload| apply(&mut task, payload));
        row.check_task(&task, replay.as_ref())?;
        let turns = self.log.iter().filter_map(|entry| entry.turn.as_ref()).chain(&self.turn);
        let turns = TurnRecord::decode(&self.id, turns.map(|turn| &*turn.0));
        turns.map(drop).ok_or_else(|| "a turn can't be decoded".to_owned())
    }
}

impl LogEntry {
    pub(in crate::store) fn new(event: &Event, at: Option<i64>, turn: Option<Blob>) -> Self {
        let Position { seq, fence } = event.position();
        Self { seq, fence, mark: event.mark().to_byte(), event: event.response().clone(), at, turn }
    }
}

impl PushEntry {
    /// Exports a configuration, with or without its secrets.
    pub(in crate::store) fn new(
        stored: Arc<PushConfig>,
        include_secrets: bool,
        cursor: u64,
        dead: Option<DeadEntry>,
    ) -> Self {
        let PushConfig { config, version, extra } =
            if include_secrets { Arc::unwrap_or_clone(stored) } else { stored.without_secrets() };
        Self { version: version.as_str().to_owned(), config, beside: Blob(extra.to_vec()), cursor, dead }
    }

    pub(in crate::store) fn config(&self) -> Result<PushConfig, String> {
        let Self { version, config, beside, .. } = self;
        let known = Version::from_text(version);
        let version = known.ok_or_else(|| format!("pushes: unknown protocol version {version}"))?;
        Ok(PushConfig { config: config.clone(), version, extra: Bytes::copy_from_slice(&beside.0) })
    }
}

impl SendEntry {
    /// Error for a key that exists.
    pub(in crate::store) fn exists(&self) -> String {
        format!("sends: another message of the owner has the idempotency key {}", self.key)
    }

    pub(in crate::store) fn hash(&self) -> Result<[u8; 16], String> {
        let error = |_| format!("sends: the hash of the idempotency key {} does not have 16 bytes", self.key);
        self.hash.0.as_slice().try_into().map_err(error)
    }
}
