//! Data types of stores that several processes share ([`SharedStore`](super::SharedStore)), and the terms of their protocol.
//!
//! Each process is a *replica* with an id that the store allocates. A task has at most one *runner*: the replica that runs its
//! turn and commits its changes. Other replicas that serve reads or streams of the task are its *followers*. A task has a runner
//! only while a turn is open or mail is unread; an idle task has none, and the replica that gets its next message acquires it.
//! A task that changes its runner gets a greater *fence*, so that commits of the earlier runner are refused. *Mail* is a message
//! or a cancel that another replica posts to the runner of a task.

use std::{fmt, time::Duration};

use bytes::Bytes;

use super::{Event, Position, TaskHead, TaskKey};

/// Time after the last renewal of a lease in which its replica is not declared dead, unless the store has another one.
pub(crate) const DEFAULT_LEASE: Duration = Duration::from_secs(10);

/// Returns the time since the last renewal after which a replica does not declare others dead, and after which an outage is assumed if
/// no other one has renewed either. Longer than the interval between renewals.
pub(crate) fn freshness(lease: Duration) -> Duration {
    lease * 2 / 5
}

/// Maximum number of mails of a task that the store keeps, including rejected ones.
pub const MAX_MAIL: usize = 256;

/// Replica: a process that uses the store. Allocated by the store when it is opened and by
/// [`join`](super::SharedStore::join), and never used twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReplicaId(pub u64);

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Description of a replica for operators, and for the choice of a format that all replicas can read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaInfo {
    /// Name of the replica, such as the host name. Need not be unique. Empty: the store may know one.
    pub name: Box<str>,
    /// Version of the stored data that the replica can read.
    pub version: u32,
}

/// Load of a replica, which each renewal of its lease reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Number of running turns.
    pub turns: u32,
    /// Number of further turns that the replica could run: a [claim](super::Maintenance::claim) returns at most so many free
    /// tasks.
    pub free_turns: u32,
    /// The replica drains: it is not woken for free turns.
    pub draining: bool,
}

/// Outcome of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The lease is renewed.
    Alive,
    /// Another replica has declared this one dead. Its commits are refused, and it has to join again.
    Lost,
}

/// Message or cancel that a replica posts to the runner of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mail {
    /// Message or cancel.
    pub kind: MailKind,
    /// Idempotency key: that of the client, or a unique one of the poster. The runner commits the
    /// [record](super::IdempotencyRecord) of a message, from which the poster learns its event.
    pub key: Box<str>,
    /// Digest of the request.
    pub hash: [u8; 16],
    /// Content in an encoding of the replicas, with encrypted secrets. The store does not read it.
    pub body: Bytes,
}

/// Kind of a mail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MailKind {
    /// Message of the client.
    Message,
    /// Cancel of the task. The store sets the flag of the row ([`TaskHead::cancel_requested`]) with the post.
    Cancel,
}

/// Outcome of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// The mail is stored.
    To {
        /// Runner of the task, which the poster wakes.
        runner: ReplicaId,
        /// Number of the mail: the first mail of a task has the number 1.
        number: u64,
    },
    /// The task has no runner, or does not exist: the caller [acquires](super::SharedStore::acquire) it instead.
    NoRunner,
    /// The task is in a terminal state.
    Ended,
    /// A message with the same idempotency key is committed, or a mail with that key is unread.
    Duplicate {
        /// Number of the mail. `None` if the message is committed.
        number: Option<u64>,
    },
    /// The task has [`MAX_MAIL`] mails.
    Full,
}

/// Change of a task that a follower has not seen.
#[derive(Clone, Debug)]
pub struct Advance {
    /// Position of the last event.
    pub position: Position,
    /// Contents of the row.
    pub row: TaskHead,
    /// Runner of the task, if it has one.
    pub runner: Option<ReplicaId>,
    /// Events after the position of the follower, in order. Not all of them if the last one is before the row: the follower
    /// asks again. None if only the row has changed, or if a sweep has deleted the log: then the follower loads the task.
    pub events: Vec<Event>,
}

/// Hint to a replica, which may be lost: replicas also poll.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The runner of the task has unread mail.
    Mail(TaskKey),
    /// A follower asks the runner of the task for [`Progress`](Self::Progress), for as long as the replicas agree on.
    Watch(TaskKey, ReplicaId),
    /// The task has advanced, or a mail of the replica was read or rejected.
    Progress(TaskKey),
    /// A turn has no runner.
    Free,
}
