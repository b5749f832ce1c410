//! Task storage: the trait [`Store`] with its parts [`TaskStore`], [`PushQueue`] and [`Maintenance`], their data types, and
//! the stores in [`memory`] and in [SQLite files](sqlite).
//!
//! A task consists of a row (its current status and position), an event log, and optionally a checkpoint: the whole task
//! after one of its events. The current task is the checkpoint with the later events applied. A store makes no decisions:
//! it commits a change atomically if the row is at the expected position, and refuses it otherwise.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;

pub use delivery::{
    DeadLetter, Delivery, DeliveryClaim, DeliveryOutcome, DeliveryPage, DeliveryState, DeliveryToken, EVENTS_PER_CLAIM,
    Lease, PushTaskPage, STORE_FULL,
};
pub use inspect::{Counts, Inspect, MAX_OWNERS, TaskFilter, TaskPage, TaskSummary};
pub use key::{Hashed, Key, KeyMap, Scope};
pub use page::PageToken;
pub use push_config::PushConfig;
pub use retention::{Retention, SweepResult};

pub use crate::clock::Millis;
use crate::{
    error::Error,
    event::{Event, Fence, Position, Seq},
    history::HistoryLimit,
    pb::v1::{Task, TaskState},
    snapshot::Snapshot,
    task,
};

mod delivery;
mod inspect;
pub mod key;
mod log_codec;
pub mod memory;
pub mod page;
mod push_config;
mod quota;
mod retention;
#[cfg(feature = "sqlite")]
pub mod sqlite;

/// Storage backend of a server: all that a database offers. Implemented by every type that implements its parts.
pub trait Store: TaskStore + PushQueue + Maintenance {}

impl<T: TaskStore + PushQueue + Maintenance> Store for T {}

/// Tasks, their logs, and the idempotency keys of their messages.
#[async_trait]
pub trait TaskStore: Send + Sync + 'static {
    /// Number of commits that the store can process concurrently. All commits of a task use the same lane.
    fn lanes(&self) -> usize {
        1
    }

    /// Fencing token of new tasks. Greater than that of any earlier opening. A task that is
    /// [claimed](Maintenance::claim) has the token of its claim.
    fn first_fence(&self) -> Fence;

    /// Returns the synchronous interface, if the store commits without waiting. The caller then commits directly, without
    /// a queue.
    fn immediate(&self) -> Option<&dyn Immediate> {
        None
    }

    /// Checks whether the quota admits another task of this owner. Called before an agent starts, so that most tasks over
    /// the quota never run. The check is advisory: tasks that start concurrently may still get [`Rejected::Full`].
    fn check_capacity(&self, _scope: &Scope) -> Result<(), Full> {
        Ok(())
    }

    /// Commits each element of a batch atomically, in one transaction where that is cheaper.
    ///
    /// Returns one outcome per commit, in order. A batch without a response may be committed again. A commit that the
    /// store can never take is [`Refused::Rejected`] and does not affect the others; [`Unavailable`] concerns all of them.
    async fn commit(&self, batch: Arc<[Commit]>) -> Result<Vec<Result<Committed, Refused>>, Unavailable>;

    /// Loads the row and the checkpoint of a task.
    async fn load(&self, key: &Key) -> Result<Option<StoredTask>, Unavailable>;

    /// Reads at most `limit` events after the sequence number `after`, in order. The event with which they have `max_bytes`
    /// ([`Event::approximate_size`]) is the last one.
    async fn events(&self, key: &Key, after: Seq, limit: usize, max_bytes: usize) -> Result<Vec<Event>, Unavailable>;

    /// Looks up an earlier send of an owner by its idempotency key.
    async fn find_send(&self, scope: &Arc<Scope>, key: &str) -> Result<Option<SendOutcome>, Unavailable>;

    /// Returns a page of an owner's tasks.
    async fn list(&self, query: &ListQuery) -> Result<ListPage, Unavailable>;

    /// Size of the stored event log of a task in bytes. Zero if the task does not exist or has no separate log.
    async fn log_bytes(&self, key: &Key) -> Result<usize, Unavailable>;

    /// Total size of the stored tasks of a context in bytes. Counting may stop at the task that reaches `max`.
    async fn context_bytes(&self, scope: &Arc<Scope>, context: &str, max: usize) -> Result<usize, Unavailable>;
}

/// Push configurations of tasks, and the queue of their deliveries.
#[async_trait]
pub trait PushQueue: Send + Sync + 'static {
    /// Checks whether the tasks of this owner may have another push configuration. Advisory as
    /// [`check_capacity`](TaskStore::check_capacity); a commit with a [push configuration](Commit::push) over the limit is
    /// refused with [`Rejected::Full`].
    async fn check_push_capacity(&self, _scope: &Scope) -> Result<Result<(), Full>, Unavailable> {
        Ok(Ok(()))
    }

    /// Stores a push configuration of a task. Replaces the one of the same id; adds one only while the task has less than
    /// `max`, and those of the owner have less than the limit of the store.
    ///
    /// A new configuration gets the events after the last one of the task; with the commit that creates a task
    /// ([`Commit::push`]), it gets all of them. A replaced one keeps the state of its delivery, except as
    /// [`DeliveryState::replace`] says; the caller then marks the task as due.
    async fn put_push(&self, key: &Key, push: Arc<PushConfig>, max: usize) -> Result<PutResult, Unavailable>;

    /// Returns a push configuration, or `None` if it or its task does not exist.
    async fn get_push(&self, key: &Key, id: &str) -> Result<Option<Arc<PushConfig>>, Unavailable>;

    /// Returns the push configurations of a task after the cursor `after` of an earlier page (0: from the first one), or
    /// `None` if the task does not exist.
    async fn list_push(&self, key: &Key, after: u64, limit: usize) -> Result<Option<PushPage>, Unavailable>;

    /// Deletes a push configuration, if it exists. Returns whether its task exists.
    async fn delete_push(&self, key: &Key, id: &str) -> Result<bool, Unavailable>;

    /// Marks the deliveries of tasks that have changed as due, except dead letters and those that are due or leased. Returns
    /// how many became due. A task that does not exist is ignored.
    async fn mark_due(&self, keys: &[Key], now: Millis) -> Result<usize, Unavailable>;

    /// Marks the deliveries of at most `limit` tasks with push configurations as [`mark_due`](Self::mark_due) does: those
    /// after the token of an earlier page (default: from the first one). Returns those of the tasks that may still get
    /// events. After an opening, this finds the events that were committed but not marked. A page may have fewer tasks, also
    /// none, and yet be followed by another one.
    async fn mark_all_due(&self, now: Millis, after: DeliveryToken, limit: usize) -> Result<PushTaskPage, Unavailable>;

    /// Returns the time at which the next delivery can be claimed, or a lease expires. May be in the past.
    async fn next_due(&self) -> Result<Option<Millis>, Unavailable>;

    /// Returns the time since which the oldest undelivered event is due, for the lag of the delivery. `None` if nothing is
    /// undelivered.
    async fn oldest_pending(&self) -> Result<Option<Millis>, Unavailable>;

    /// Claims at most `limit` deliveries that are due when the lease begins, longest due first. No other runner gets them until
    /// the lease has expired or an outcome is recorded. Returns fewer, also none, if other runners claim at the same time.
    async fn claim_due(&self, lease: &Lease, limit: usize) -> Result<Vec<DeliveryClaim>, Unavailable>;

    /// Records the outcome of a claim, as [`DeliveryOutcome`] describes. Returns whether the claim was the last one of its
    /// delivery, and had no outcome yet; otherwise nothing changes.
    async fn end_claim(&self, claim: &DeliveryClaim, outcome: DeliveryOutcome) -> Result<bool, Unavailable>;

    /// Ends all leases of a runner that stops: its deliveries are due at once. Returns how many there were.
    async fn release_deliveries(&self, runner: &str, now: Millis) -> Result<usize, Unavailable>;

    /// Returns those of the tasks that may still get events for a push configuration, as [`mark_all_due`](Self::mark_all_due)
    /// does.
    async fn undelivered_tasks(&self, keys: &[Key]) -> Result<Vec<Key>, Unavailable>;

    /// Returns a page of at most `limit` deliveries of all owners after the token of an earlier page (default: from the
    /// first one), either all or only dead letters.
    async fn deliveries(
        &self,
        dead_only: bool,
        after: DeliveryToken,
        limit: usize,
    ) -> Result<DeliveryPage, Unavailable>;

    /// Makes a dead letter, or a delivery that waits for its next attempt, due at once, with a new maximum age. Returns
    /// whether there is such a delivery.
    async fn retry_delivery(&self, key: &Key, id: &str, now: Millis) -> Result<bool, Unavailable>;
}

/// Recovery, retention and health of a store.
#[async_trait]
pub trait Maintenance: Send + Sync + 'static {
    /// Claims at most `limit` unfinished turns of earlier openings: raises and commits their `fence`, and the `attempt` of
    /// turns that had begun. A task that can't be read is returned as damaged, once, and is not changed.
    async fn claim(&self, limit: usize) -> Result<Vec<Claim>, Unavailable>;

    /// Returns tasks that have waited for their clients since before a time, longest wait first: at most `limit` after the
    /// first `skip`.
    async fn idle_tasks(&self, before: Millis, skip: usize, limit: usize) -> Result<Vec<Key>, Unavailable>;

    /// Deletes expired data in small transactions, so that commits do not wait. A task that is in use is skipped, and so is
    /// one with deliveries that are due or leased, up to [`Retention::undelivered`].
    async fn sweep(&self, policy: &Retention, now: Millis, in_use: InUse<'_>) -> Result<SweepResult, Unavailable>;

    /// Checks that the store can be written to.
    async fn check(&self) -> Result<(), Unavailable>;

    /// Returns the read access of operators, if the store has it.
    fn inspect(&self) -> Option<&dyn Inspect> {
        None
    }

    /// Diagnoses the data of a task that could not be read. Reads all of it.
    async fn diagnose(&self, _key: &Key) -> Result<Option<Damaged>, Unavailable> {
        Ok(None)
    }

    /// A persistent fault of the whole store, such as a deleted file. During a fault, the server accepts no new work.
    /// `None` if the store cannot have such a fault.
    fn fault(&self) -> Option<watch::Receiver<Option<Unavailable>>> {
        None
    }
}

/// Predicate that returns whether a task is in use, for example by a reader of its log.
pub type InUse<'a> = &'a (dyn Fn(&Key) -> bool + Send + Sync);

/// Synchronous commits, for a store that never waits.
pub trait Immediate {
    /// Commits a change of one task atomically. After [`Refused::Rejected`] the task is dropped from memory, and its
    /// senders get the reason.
    fn commit_now(&self, commit: &Commit) -> Result<(), Refused>;
}

/// Atomic change of one task.
#[derive(Clone, Debug)]
pub struct Commit {
    /// Key of the task.
    pub key: Key,
    /// Required position of the row.
    pub expect: Expect,
    /// Fencing token of the writer.
    pub fence: Fence,
    /// New contents of the row.
    pub row: Row,
    /// New events, numbered without gaps. A store may omit from its log what the checkpoint contains.
    pub events: Vec<Event>,
    /// The task after the last of the events. Present occasionally, and in a terminal state.
    pub checkpoint: Option<Arc<Task>>,
    /// State that the agent saves for its next turn, if it changed.
    pub agent_state: Option<Bytes>,
    /// Request contexts of the messages that still need a turn, and the trace of the last one, if they changed. Empty if
    /// there are none.
    pub turn_contexts: Option<Bytes>,
    /// Idempotency records of the messages among the events.
    pub sends: Vec<IdempotencyRecord>,
    /// Push configuration that the task was created with.
    pub push: Option<Arc<PushConfig>>,
}

impl Commit {
    /// Position that the row must have, or `None` if the task must not exist yet.
    pub fn expected_position(&self) -> Option<Position> {
        match self.expect {
            Expect::At(position) => Some(position),
            Expect::New => None,
        }
    }

    /// Position of the row after this change.
    pub fn position(&self) -> Position {
        Position { seq: self.row.seq, fence: self.fence }
    }
}

/// Precondition of a commit on the row of the task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The task does not exist.
    New,
    /// The row is at this position.
    At(Position),
}

/// Current status and position of a task.
#[derive(Clone, Debug)]
pub struct Row {
    /// Context of the task.
    pub context: Arc<str>,
    /// Sequence number of the last event.
    pub seq: Seq,
    /// State of the task.
    pub state: TaskState,
    /// Timestamp of the status.
    pub time: Millis,
    /// A turn is running, or messages are waiting for one: recovery searches for these rows. Independent of the state.
    pub open: bool,
    /// Messages up to this sequence number have been delivered to a turn.
    pub delivered_seq: Seq,
    /// A cancel of the task was requested.
    pub cancel_requested: bool,
    /// Number of attempts at the current turn. 0 while it waits to begin.
    pub attempt: u32,
    /// Number of those attempts that a graceful shutdown of the server interrupted.
    pub drained: u32,
}

/// Row and checkpoint of a task, as loaded from a store.
#[derive(Clone, Debug)]
pub struct StoredTask {
    /// Position of the last event.
    pub position: Position,
    /// Contents of the row.
    pub row: Row,
    /// The whole task after the event of this sequence number.
    pub checkpoint: Option<(Seq, Snapshot)>,
    /// State that the agent saved.
    pub agent_state: Option<Bytes>,
    /// Request contexts of the messages that still need a turn.
    pub turn_contexts: Option<Bytes>,
}

/// Idempotency key of a message, committed together with the message. Stored with the task of the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyRecord {
    /// Key chosen by the client, unique per owner.
    pub key: Box<str>,
    /// Digest of the request. A request with the same key and another digest is a conflict.
    pub hash: [u8; 16],
    /// Event of the message, or of the task that the message created.
    pub seq: Seq,
    /// Time at which the message was accepted.
    pub time: Millis,
}

/// Outcome of an earlier send with an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendOutcome {
    /// Task that contains the message.
    pub task_id: Box<str>,
    /// Event of the message, or of the task that the message created.
    pub seq: Seq,
    /// Digest of the request.
    pub hash: [u8; 16],
}

/// Result of storing a push configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutResult {
    /// The configuration was added.
    Created,
    /// The configuration of the same id was replaced.
    Replaced,
    /// The task does not exist.
    TaskNotFound,
    /// The task has the maximum number of configurations.
    Full,
    /// The tasks of the owner have the maximum number of configurations.
    OwnerFull(Full),
}

/// Page of push configurations, in the order in which their ids were first stored.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PushPage {
    /// Configurations of the page.
    pub configs: Vec<Arc<PushConfig>>,
    /// Cursor of the next page, if there is one.
    pub next: Option<u64>,
}

/// State of a task after a successful commit, if the commit shows it. A store with one runner leaves all of it false.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// Another process has posted messages for the task that its runner has not read yet.
    pub unread_mail: bool,
    /// Another process has requested a cancel of the task.
    pub cancel: bool,
    /// The task has push configurations, whose deliveries the commit has marked as due.
    pub has_push: bool,
}

/// Reason why a change of one task was not committed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The row is not at the expected position but at this one. `None` if the task does not exist.
    #[error("another writer changed the task")]
    Stale(Option<Position>),
    /// The store can't take this change. A retry has the same result, and other changes are not affected.
    #[error(transparent)]
    Rejected(Rejected),
}

/// Reason why a store can't take a change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Rejected {
    /// A message with the same idempotency key was committed before.
    #[error("task {task_id} has a message with the same idempotency key")]
    Duplicate {
        /// Task of that message.
        task_id: Box<str>,
    },
    /// The quota of tasks is exhausted, and no task can be evicted.
    #[error(transparent)]
    Full(Full),
    /// The change exceeds the remaining capacity of the store.
    #[error("the change does not fit into the maximum size of the store of {max} bytes ({limit})")]
    Size {
        /// Configuration key of the limit.
        limit: &'static str,
        /// The limit in bytes.
        max: u64,
    },
    /// The store cannot represent the change: a value is too long, or violates a constraint. The text is for the log.
    #[error("the store can't represent the change")]
    Invalid(Box<str>),
}

impl Rejected {
    /// Configuration key of the limit that the change exceeds, if it exceeds one.
    pub fn limit(&self) -> Option<&'static str> {
        match self {
            Self::Full(Full { limit, .. }) | Self::Size { limit, .. } => Some(limit),
            Self::Duplicate { .. } | Self::Invalid(_) => None,
        }
    }
}

/// Exhausted quota: the maximum number of tasks exists, and none of them is in a terminal state, or the maximum number of
/// push configurations exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.reason())]
#[non_exhaustive]
pub struct Full {
    /// Name of the limit, below `limits` in the configuration.
    pub limit: &'static str,
    /// Maximum number of tasks or push configurations.
    pub max: usize,
}

/// Name of the limit of push configurations per owner.
const PUSH_CONFIGS_PER_OWNER: &str = "push_configs_per_owner";

impl Full {
    /// Quota over all owners.
    pub const fn tasks(max: usize) -> Self {
        Self { limit: "tasks", max }
    }

    /// Quota of one owner.
    pub const fn per_owner(max: usize) -> Self {
        Self { limit: "tasks_per_owner", max }
    }

    /// Quota of the push configurations of one owner.
    pub const fn push_configs_per_owner(max: usize) -> Self {
        Self { limit: PUSH_CONFIGS_PER_OWNER, max }
    }

    /// Returns whether the quota is one of push configurations.
    pub(crate) fn is_push(&self) -> bool {
        self.limit == PUSH_CONFIGS_PER_OWNER
    }

    fn reason(&self) -> String {
        let Self { limit, max } = self;
        if self.is_push() {
            return format!("{max} push notification configurations reach the limit of an owner");
        }
        format!("{max} tasks reach the limit of stored tasks (limits.{limit}), and none of them is in a terminal state")
    }
}

/// Failure of the whole store. The outcome of a write is unknown: it may have been committed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store is unavailable: {0}")]
pub struct Unavailable(pub String);

/// Damage to the data of one task, which can't be read. Other tasks are not affected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the data of the task is damaged: {0}")]
pub struct Damaged(pub String);

/// Claimed task with an unfinished turn, or the damage that prevents reading it.
pub type Claim = (Key, Result<StoredTask, Damaged>);

/// Filter, start and contents of a page of tasks.
#[derive(Clone, Debug, Default)]
pub struct ListQuery {
    /// Owner and tenant of the tasks.
    pub scope: Arc<Scope>,
    /// Only tasks of this context.
    pub context: Option<Box<str>>,
    /// Only tasks in this state.
    pub state: Option<TaskState>,
    /// Only tasks with a status timestamp at or after this time.
    pub since: Option<Millis>,
    /// Start after this task.
    pub after: Option<PageToken>,
    /// Maximum number of tasks on the page.
    pub limit: usize,
    /// Maximum size of the page in bytes of protobuf, unlimited if `None`. A page ends before the task that exceeds it, but
    /// has at least one task.
    pub max_bytes: Option<usize>,
    /// Maximum number of messages in the history of each task, unlimited if `None`.
    pub history_length: Option<usize>,
    /// Maximum size of the history of each task in bytes of protobuf, unlimited if `None`: the newest messages that fit, and
    /// at least one unless `history_length` is 0.
    pub history_bytes: Option<usize>,
    /// Include the artifacts of each task.
    pub include_artifacts: bool,
}

impl ListQuery {
    /// Limit of the history of each task.
    pub(crate) fn history_limit(&self) -> HistoryLimit {
        HistoryLimit { messages: self.history_length, bytes: self.history_bytes.unwrap_or(usize::MAX) }
    }
}

/// Page of tasks in descending order of status timestamp and id (3.1.4).
#[derive(Clone, Debug, Default)]
pub struct ListPage {
    /// Tasks, with the parts that the query selects.
    pub tasks: Vec<Task>,
    /// Number of tasks on all pages.
    pub total: u64,
    /// Start of the next page, if there is one.
    pub next: Option<PageToken>,
}

impl StoredTask {
    /// Loads the current task: the checkpoint with the later events applied.
    pub async fn load_task(&mut self, store: &dyn TaskStore, key: &Key) -> Result<Task, Unavailable> {
        self.load_snapshot(store, key).await?.into_task().map_err(|error| unreadable(key, &error))
    }

    /// Loads the current task as a snapshot. An up-to-date checkpoint is returned in its encoded form.
    pub async fn load_snapshot(&mut self, store: &dyn TaskStore, key: &Key) -> Result<Snapshot, Unavailable> {
        const BATCH: usize = 256;
        const BATCH_BYTES: usize = 1 << 20;
        let (mut seq, snapshot) = self.checkpoint.take().unwrap_or_default();
        if seq >= self.position.seq {
            return Ok(snapshot);
        }
        let mut task = snapshot.into_task().map_err(|error| unreadable(key, &error))?;
        while seq < self.position.seq {
            let events = store.events(key, seq, BATCH, BATCH_BYTES).await?;
            let Some(last) = events.last() else {
                return Err(Unavailable(format!(
                    "task {}: the event log ends before the position of the row",
                    key.id()
                )));
            };
            seq = last.seq();
            // The log may have grown since the row was read.
            let events = events.iter().filter(|event| event.seq() <= self.position.seq);
            events.filter_map(Event::payload).for_each(|payload| task::apply(&mut task, payload));
        }
        Ok(task.into())
    }
}

/// Takes events until they have `max_bytes`.
fn up_to_bytes(events: impl Iterator<Item = Event>, max_bytes: usize) -> Vec<Event> {
    let (mut bytes, mut taken) = (0, Vec::new());
    for event in events {
        bytes += event.approximate_size();
        taken.push(event);
        if bytes >= max_bytes {
            break;
        }
    }
    taken
}

fn unreadable(key: &Key, cause: &Error) -> Unavailable {
    Unavailable(format!("task {} can't be read: {cause}", key.id()))
}
