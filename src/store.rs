//! Task storage: the trait [`Store`] with its parts [`TaskStore`], [`PushQueue`] and [`Maintenance`], their data types, and
//! the stores in [`memory`], in [SQLite files](sqlite) and in PostgreSQL.
//!
//! A task consists of a row (its current status and position), an event log, and optionally a checkpoint: the whole task
//! after one of its events. The current task is the checkpoint with the later events applied. A store makes no decisions:
//! it commits a change atomically if the row is at the expected position, and refuses it otherwise.

use std::sync::Arc;

use bytes::Bytes;

#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) use archive::ImportError;
pub use delivery::{
    Attempt, DeadLetter, Delivery, DeliveryClaim, DeliveryCounts, DeliveryOutcome, DeliveryPage, DeliveryState,
    DeliveryToken, EVENTS_PER_CLAIM, Lease, PushTaskPage, STORE_FULL,
};
pub use inspect::{
    Counts, Inspect, InspectedTask, LoggedEvent, MAX_OWNERS, MAX_STATUS_TEXT, TaskFilter, TaskPage, TaskSummary,
};
pub use key::{KeyMap, Scope, TaskKey};
pub use page::{ListPage, ListQuery, PageToken};
pub use push_config::PushConfig;
pub use retention::{Retention, SweepResult};
#[cfg(feature = "cli")]
pub(crate) use shared::DEFAULT_LEASE;
pub use shared::{Advance, Load, MAX_MAIL, Mail, MailKind, Note, Posted, Renewal, ReplicaId, ReplicaInfo};
pub use traits::{
    Acquired, Claim, InUse, LogSummary, Maintenance, PushQueue, SharedStore, Store, StoredTask, SyncStore, TaskStore,
};
pub(crate) use traits::{READ_BATCH, READ_BYTES};
pub use turn_record::TurnRecord;
pub use usage::{FileUsage, StoreUsage};

pub use crate::base::clock::Millis;
use crate::protocol::{
    event::{Event, Fence, Position, Seq},
    pb::v1::{Task, TaskState},
};

#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod archive;
mod delivery;
mod inspect;
pub mod key;
mod log_codec;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod log_rows;
pub mod memory;
pub mod page;
#[cfg(feature = "postgres")]
pub mod postgres;
mod push_config;
mod quota;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod replay;
mod retention;
pub mod shared;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod traits;
pub mod turn_record;
mod usage;

/// Atomic change of one task.
#[derive(Clone, Debug)]
pub struct Commit {
    /// Key of the task.
    pub key: TaskKey,
    /// Required position of the row.
    pub expect: Expect,
    /// Fencing token of the writer.
    pub fence: Fence,
    /// New contents of the row.
    pub row: TaskHead,
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
    /// Time of the change. A short task that ends with its first commit may be stored without it.
    pub time: Millis,
    /// Records of the turns that begin or end with the change, as [`TurnRecord::encode`] writes them. Stored with the events,
    /// and the newest ones beyond the deletion of the log. An operator finds a task by the error id in them.
    pub turns: Option<Bytes>,
    /// Mail of the task up to this number is read with the change ([`SharedStore::mail`]). Smaller than before has no effect.
    pub mail_read: u64,
}

/// Outcome of a change that was committed. All false in a store that is not [shared](TaskStore::shared).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// The task has unread mail, so this replica is still its runner.
    pub unread_mail: bool,
    /// The task has push configurations.
    pub has_push: bool,
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
pub struct TaskHead {
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
