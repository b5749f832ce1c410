//! Where logs are kept: what every store can do.
//!
//! A task is a row (where it stands), its events, and now and then a checkpoint: the task whole, after one of them.
//! Its state is the checkpoint and the events after it. A store decides nothing: it is told what to write and where
//! the row has to stand for that, and it writes all of it or refuses.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;

pub use completed::{CompletedTask, EventRef};
pub use idempotency::{IdempotencyRecord, SendOutcome};
pub use key::{Hashed, Key, KeyMap, Scope};
pub use page::Token;
pub use push::{PushConfig, PushPage, PutResult};
pub use retention::{Retention, Swept};

use crate::{
    error::Error,
    event::{Event, Fence, Position, Seq},
    pb::v1::{Task, TaskState},
    seam::Millis,
    snapshot::Snapshot,
    task::{self, HistoryLimit},
};

pub(crate) mod completed;
mod idempotency;
pub mod key;
mod log_codec;
pub mod memory;
pub mod page;
mod push;
mod retention;
pub mod sqlite;

/// A place for tasks.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Commits that may run side by side; a task always takes the same lane.
    fn lanes(&self) -> usize {
        1
    }

    /// What is written from now on carries this number, which no earlier opening of this store had.
    fn fence(&self) -> Fence;

    /// A store that commits without waiting does it in the caller: no queue, no hop.
    fn immediate(&self) -> Option<&dyn Immediate> {
        None
    }

    /// Whether there is room for another task of this owner. Asked before an agent begins, so that it need not be
    /// stopped by [`Refused::Full`]; tasks that begin at the same time are told apart by that alone.
    fn room(&self, _scope: &Scope) -> Result<(), Full> {
        Ok(())
    }

    /// Commits each task's part whole or not at all, together where that is cheaper. One outcome for each commit, in
    /// their order. The batch may be committed again, when no answer came. A commit that the store can never take is
    /// [`Refused::Rejected`] and does not affect the others; [`Unavailable`] means that the store takes none of them.
    async fn commit(&self, batch: Arc<[Commit]>) -> Result<Vec<Result<(), Refused>>, Unavailable>;

    /// The same, with tasks among them that are new and have ended. What the log of one repeats of it need not be kept
    /// twice.
    async fn change(&self, batch: Arc<[Change]>) -> Result<Vec<Result<(), Refused>>, Unavailable> {
        self.commit(batch.iter().map(Change::commit).collect()).await
    }

    /// A row and its checkpoint.
    async fn load(&self, key: &Key) -> Result<Option<Stored>, Unavailable>;

    /// The events after one, in their order, at most so many.
    async fn events(&self, key: &Key, after: Seq, limit: usize) -> Result<Log, Unavailable>;

    /// What came of the send of an owner that had this key, if there was one.
    async fn sent(&self, scope: &Arc<Scope>, key: &str) -> Result<Option<SendOutcome>, Unavailable>;

    /// A page of an owner's tasks.
    async fn list(&self, query: &ListQuery) -> Result<ListPage, Unavailable>;

    /// Keeps a push configuration with its task, in place of the one of the same id; of other ids, as long as the task
    /// has less than `most`.
    async fn put_push(&self, key: &Key, push: Arc<PushConfig>, most: usize) -> Result<PutResult, Unavailable>;

    /// One push configuration; none also where there is no such task.
    async fn get_push(&self, key: &Key, id: &str) -> Result<Option<Arc<PushConfig>>, Unavailable>;

    /// A task's push configurations after one of a page before, or from the first one on after 0. None where there is
    /// no such task.
    async fn list_push(&self, key: &Key, after: u64, limit: usize) -> Result<Option<PushPage>, Unavailable>;

    /// Deletes a push configuration, if it is there. Says whether the task is.
    async fn delete_push(&self, key: &Key, id: &str) -> Result<bool, Unavailable>;

    /// Claims unfinished turns that have no runner for `runner`: raises and commits their `attempt` and `fence`. A task
    /// that can't be read is returned as unreadable, once, and is not changed.
    async fn claim(&self, runner: RunnerId, limit: usize, lease: Duration) -> Result<Vec<Claim>, Unavailable>;

    /// Keeps what `runner` has claimed for another lease, and returns what it has lost.
    async fn renew(&self, _runner: RunnerId, _lease: Duration) -> Result<Vec<Key>, Unavailable> {
        Ok(Vec::new())
    }

    /// Passes a message or a cancel on to whoever runs the task. A store of one process has nobody else.
    async fn post(&self, _key: &Key, _command: &Command) -> Result<(), Unavailable> {
        Ok(())
    }

    /// Tasks that have waited for their clients since before this, the one that has waited longest first: at most `limit`
    /// after the first `skip`.
    async fn idle(&self, before: Millis, skip: usize, limit: usize) -> Result<Vec<Key>, Unavailable>;

    /// Deletes what need not be kept any longer, some at a time, so that commits do not wait for it. A task that is in
    /// use, by a reader of its log or otherwise, stays as it is.
    async fn sweep(&self, policy: &Retention, now: Millis, in_use: InUse<'_>) -> Result<Swept, Unavailable>;

    /// Whether it can be written to.
    async fn check(&self) -> Result<(), Unavailable>;

    /// Size of the log of a task in bytes, as it is kept. Zero for a task that is not there, or whose log is not kept apart
    /// from it.
    async fn log_bytes(&self, key: &Key) -> Result<usize, Unavailable>;

    /// Size of a context in bytes: of all its tasks together, as they are kept. The sum may end with the task that brings it
    /// to `most`.
    async fn context_bytes(&self, scope: &Arc<Scope>, context: &str, most: usize) -> Result<usize, Unavailable>;

    /// Diagnoses the data of a task that could not be read. Reads all of it.
    async fn damage(&self, _key: &Key) -> Result<Option<Damaged>, Unavailable> {
        Ok(None)
    }

    /// A fault of the store as a whole, for as long as it lasts, such as a deleted file. While there is one, the server
    /// accepts no new work. `None` if the store cannot have such a fault.
    fn fault(&self) -> Option<watch::Receiver<Option<Unavailable>>> {
        None
    }
}

/// Whether a task is in use.
pub type InUse<'a> = &'a (dyn Fn(&Key) -> bool + Send + Sync);

/// A store that commits without waiting.
pub trait Immediate {
    /// Commits one task's part whole or not at all. After [`Refused::Rejected`] the task is dropped from memory, and its
    /// senders get the reason.
    fn commit_now(&self, commit: &Commit) -> Result<(), Refused>;

    /// Commits a task that is new and has ended. What its log repeats of it need not be kept twice.
    fn conclude(&self, whole: &CompletedTask) -> Result<(), Refused> {
        self.commit_now(&whole.commit())
    }
}

/// Everything that one task changes at once.
#[derive(Clone, Debug)]
pub struct Commit {
    /// The task.
    pub key: Key,
    /// Where its row has to stand.
    pub expect: Expect,
    /// Who writes.
    pub fence: Fence,
    /// What the row says from now on.
    pub row: Row,
    /// Without a gap. A store takes their bytes where it needs bytes, and the events themselves where it does not.
    pub events: Vec<Event>,
    /// The task after the last of the events: now and then, and at its end.
    pub checkpoint: Option<Arc<Task>>,
    /// What the agent keeps for its next turn, if that changed.
    pub saved: Option<Bytes>,
    /// What came with the messages that are still to be answered, beside them, if that changed; empty where nothing did.
    pub asked: Option<Bytes>,
    /// The sends whose messages are among the events, of those that have a key.
    pub sends: Vec<IdempotencyRecord>,
    /// The push configuration that the task was begun with.
    pub push: Option<Arc<PushConfig>>,
}

/// What is to be written of a task.
#[derive(Clone, Debug)]
pub enum Change {
    /// A part of it.
    Commit(Commit),
    /// All of it.
    CompletedTask(CompletedTask),
}

impl Change {
    /// The same as a commit.
    pub fn commit(&self) -> Commit {
        match self {
            Self::Commit(it) => it.clone(),
            Self::CompletedTask(it) => it.commit(),
        }
    }

    /// Where its row has to stand, if there has to be one.
    pub fn expected(&self) -> Option<Position> {
        match self {
            Self::Commit(Commit { expect: Expect::At(it), .. }) => Some(*it),
            Self::Commit(_) | Self::CompletedTask(_) => None,
        }
    }

    /// Where its row stands once this is written.
    pub fn position(&self) -> Position {
        let (row, fence) = match self {
            Self::Commit(it) => (&it.row, it.fence),
            Self::CompletedTask(it) => (&it.row, it.fence),
        };
        Position { seq: row.seq, fence }
    }
}

/// Where a row has to stand for a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// There is none.
    New,
    /// There.
    At(Position),
}

/// What a row says.
#[derive(Clone, Debug)]
pub struct Row {
    /// The context of the task.
    pub context: Arc<str>,
    /// The number of its last event.
    pub seq: Seq,
    /// Its state.
    pub state: TaskState,
    /// The state that this commit replaces, for the counters; none for a new task.
    pub was: Option<TaskState>,
    /// The event that tells the status, if this commit changes it.
    pub head: Option<Event>,
    /// The timestamp of the status.
    pub time: Millis,
    /// A turn runs, or messages wait for one: what recovery looks for. The state does not tell.
    pub open: bool,
    /// Messages up to this event have been given to a turn.
    pub taken: Seq,
    /// Somebody wants it canceled.
    pub cancel_requested: bool,
    /// How often its turn has been begun.
    pub attempt: u32,
    /// Number of those attempts that a graceful stop of the server cut.
    pub drained: u32,
}

/// A task as a store has it.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Its last event.
    pub at: Position,
    /// What the row says.
    pub row: Row,
    /// The task whole, after the event of this number.
    pub checkpoint: Option<(Seq, Snapshot)>,
    /// What its agent kept.
    pub saved: Option<Bytes>,
    /// What came with the messages that are still to be answered, beside them.
    pub asked: Option<Bytes>,
}

/// A piece of a log.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// In their order.
    pub events: Vec<Event>,
}

/// Why one task's part was not committed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The row is not where the commit expects it, and where it is.
    #[error("another writer was there")]
    Stale(Option<Position>),
    /// A send of the same key was taken before.
    #[error("task {task_id} has a send of the same key")]
    Duplicate {
        /// The task that has its message.
        task_id: Box<str>,
    },
    /// There is no room for another task, and none has ended that could make some.
    #[error(transparent)]
    Full(Full),
    /// The store can never take this change. A retry has the same result, and other changes are not affected.
    #[error(transparent)]
    Rejected(Rejected),
}

/// Reason why a store can never take a change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Rejected {
    /// The change does not fit into the rest of the maximum size of the store.
    #[error("it does not fit into the store, which may have {most} bytes")]
    Size {
        /// Configuration key of the limit.
        limit: &'static str,
        /// The limit in bytes.
        most: u64,
    },
    /// The store cannot represent the change: a value is too long, or violates a constraint. The text is for the log.
    #[error("the store can't represent it")]
    Invalid(Box<str>),
}

impl Rejected {
    /// Configuration key of the limit that the change exceeds, if it exceeds one.
    pub fn limit(&self) -> Option<&'static str> {
        match self {
            Self::Size { limit, .. } => Some(limit),
            Self::Invalid(_) => None,
        }
    }
}

/// There are as many tasks as there may be, and none of them has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{most} tasks are kept, of at most so many ({limit}), and none of them has ended")]
#[non_exhaustive]
pub struct Full {
    /// The name of the setting that says so.
    pub limit: &'static str,
    /// How many there may be.
    pub most: usize,
}

impl Full {
    /// Of all owners.
    pub const fn tasks(most: usize) -> Self {
        Self { limit: "max_tasks", most }
    }

    /// Of the one that asked.
    pub const fn per_owner(most: usize) -> Self {
        Self { limit: "max_tasks_per_owner", most }
    }
}

/// Nothing is known of what was to be written: it may be there or not. Nor of what was to be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store is unavailable: {0}")]
pub struct Unavailable(pub String);

/// The data of a task is damaged and can't be read. Other tasks are not affected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the data of the task is damaged: {0}")]
pub struct Damaged(pub String);

/// A task with an unfinished turn, as a claim finds it.
pub type Claim = (Key, Result<Stored, Damaged>);

/// Which tasks, from where on, and what of them.
#[derive(Clone, Debug, Default)]
pub struct ListQuery {
    /// Whose.
    pub scope: Arc<Scope>,
    /// In this context.
    pub context: Option<Box<str>>,
    /// In this state.
    pub state: Option<TaskState>,
    /// With a status of this time or later.
    pub since: Option<Millis>,
    /// Behind this one.
    pub after: Option<Token>,
    /// At most so many.
    pub limit: usize,
    /// Maximum size of the page in bytes of protobuf, unlimited if `None`. A page ends before the task that exceeds it, but
    /// has at least one task.
    pub bytes: Option<usize>,
    /// So many messages of their history; all where this says nothing.
    pub history: Option<usize>,
    /// Maximum size of the history of each task in bytes of protobuf, unlimited if `None`: the newest messages that fit, and
    /// at least one where `history` allows it.
    pub history_bytes: Option<usize>,
    /// With their artifacts.
    pub artifacts: bool,
}

impl ListQuery {
    /// Limit of the history of each task.
    pub(crate) fn history_limit(&self) -> HistoryLimit {
        HistoryLimit { messages: self.history, bytes: self.history_bytes.unwrap_or(usize::MAX) }
    }
}

/// A page of tasks: the newest status first, and of the same time the greatest id (3.1.4).
#[derive(Clone, Debug, Default)]
pub struct ListPage {
    /// What was asked for of each.
    pub tasks: Vec<Task>,
    /// How many tasks there are on all pages.
    pub total: u64,
    /// Where the next page begins.
    pub next: Option<Token>,
}

/// A process that runs turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RunnerId(pub u64);

/// What is passed on to whoever runs a task.
#[derive(Clone, Debug)]
pub enum Command {
    /// A follow-up, which its sender has committed under this number.
    Message(Seq),
    /// The task is to be canceled.
    Cancel,
}

impl Stored {
    /// The task: its checkpoint, and the events after that.
    pub async fn task(&mut self, store: &dyn Store, key: &Key) -> Result<Task, Unavailable> {
        self.snapshot(store, key).await?.into_task().map_err(|it| unreadable(key, &it))
    }

    /// The same; as the store has it, where no event came after its checkpoint.
    pub async fn snapshot(&mut self, store: &dyn Store, key: &Key) -> Result<Snapshot, Unavailable> {
        const STEP: usize = 256;
        let (mut seq, snapshot) = self.checkpoint.take().unwrap_or_default();
        if seq >= self.at.seq {
            return Ok(snapshot);
        }
        let mut task = snapshot.into_task().map_err(|it| unreadable(key, &it))?;
        while seq < self.at.seq {
            let log = store.events(key, seq, STEP).await?;
            let Some(last) = log.events.last() else {
                return Err(Unavailable(format!("the log of task {} ends before its row", key.id())));
            };
            seq = last.seq();
            // The log may have grown since the row was read.
            let events = log.events.iter().filter(|it| it.seq() <= self.at.seq);
            events.filter_map(Event::payload).for_each(|it| task::apply(&mut task, it));
        }
        Ok(task.into())
    }
}

fn unreadable(key: &Key, cause: &Error) -> Unavailable {
    Unavailable(format!("task {} can't be read: {cause}", key.id()))
}
