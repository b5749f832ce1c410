//! Interface of a store, in parts by who uses them, and a task as a store returns it.

use std::{mem, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{mpsc, watch};

use super::shared::DEFAULT_LEASE;
use super::{
    Advance, Commit, Committed, Damaged, Delivery, DeliveryClaim, DeliveryCounts, DeliveryOutcome, DeliveryPage,
    DeliveryToken, Event, Expect, Fence, Full, Inspect, Lease, ListPage, ListQuery, Load, Mail, Millis, Note, Position,
    Posted, PushConfig, PushPage, PushTaskPage, PutResult, Refused, Renewal, ReplicaId, ReplicaInfo, Retention, Scope,
    SendOutcome, Seq, StoreUsage, SweepResult, Task, TaskHead, TaskKey, TurnRecord, Unavailable,
};
#[cfg(doc)]
use super::{DeliveryState, MAX_MAIL, Rejected};
use crate::{
    base::faults::Faults,
    protocol::{error::Error, snapshot::Snapshot, task},
};

/// Maximum number of events per read of a log that is read as a whole.
pub(crate) const READ_BATCH: usize = 256;

/// Maximum approximate size of these events in bytes, exceeded by one event at most.
pub(crate) const READ_BYTES: usize = 1 << 20;

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
    fn as_sync(&self) -> Option<&dyn SyncStore> {
        None
    }

    /// Returns the operations of a store that several processes share. `None` if one process uses the store at a time.
    fn shared(&self) -> Option<&dyn SharedStore> {
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
    ///
    /// A [shared](Self::shared) store refuses as [`Refused::Stale`] what another replica than the runner of the task commits,
    /// and all commits of a replica that was declared dead. A new task that is open gets this replica as its runner.
    async fn commit(&self, batch: Arc<[Commit]>) -> Result<Vec<Result<Committed, Refused>>, Unavailable>;

    /// Loads the row and the checkpoint of a task.
    async fn load(&self, key: &TaskKey) -> Result<Option<StoredTask>, Unavailable>;

    /// Reads at most `limit` events after the sequence number `after`, in order. The event with which they have `max_bytes`
    /// ([`Event::approximate_size`]) is the last one.
    async fn events(
        &self,
        key: &TaskKey,
        after: Seq,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<Event>, Unavailable>;

    /// Looks up an earlier send of an owner by its idempotency key.
    async fn find_send(&self, scope: &Arc<Scope>, key: &str) -> Result<Option<SendOutcome>, Unavailable>;

    /// Returns a page of an owner's tasks.
    async fn list(&self, query: &ListQuery) -> Result<ListPage, Unavailable>;

    /// Returns the size of the stored event log of a task, and the number of its turns. Zero if the task does not exist or has
    /// no separate log.
    async fn log_summary(&self, key: &TaskKey) -> Result<LogSummary, Unavailable>;

    /// Total size of the stored tasks of a context in bytes. Counting may stop at the task that reaches `max`.
    async fn context_bytes(&self, scope: &Arc<Scope>, context: &str, max: usize) -> Result<usize, Unavailable>;
}

/// Push configurations of tasks, and the queue of their deliveries.
#[async_trait]
pub trait PushQueue: Send + Sync + 'static {
    /// Returns whether a [commit](TaskStore::commit) marks the deliveries of its task as [`mark_due`](Self::mark_due) does, at the
    /// [time](Commit::time) of the change. Otherwise, the caller marks them after the commit.
    fn marks_in_commit(&self) -> bool {
        false
    }

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
    async fn put_push(&self, key: &TaskKey, push: Arc<PushConfig>, max: usize) -> Result<PutResult, Unavailable>;

    /// Returns a push configuration, or `None` if it or its task does not exist.
    async fn get_push(&self, key: &TaskKey, id: &str) -> Result<Option<Arc<PushConfig>>, Unavailable>;

    /// Returns the push configurations of a task after the cursor `after` of an earlier page (0: from the first one), or
    /// `None` if the task does not exist.
    async fn list_push(&self, key: &TaskKey, after: u64, limit: usize) -> Result<Option<PushPage>, Unavailable>;

    /// Deletes a push configuration, if it exists. Returns whether its task exists.
    async fn delete_push(&self, key: &TaskKey, id: &str) -> Result<bool, Unavailable>;

    /// Marks the deliveries of tasks that have changed as due, except dead letters and those that are due or leased. Returns
    /// how many became due. A task that does not exist is ignored.
    async fn mark_due(&self, keys: &[TaskKey], now: Millis) -> Result<usize, Unavailable>;

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
    async fn undelivered_tasks(&self, keys: &[TaskKey]) -> Result<Vec<TaskKey>, Unavailable>;

    /// Returns a page of at most `limit` deliveries of all owners after the token of an earlier page (default: from the
    /// first one), either all or only dead letters.
    async fn deliveries(
        &self,
        dead_only: bool,
        after: DeliveryToken,
        limit: usize,
    ) -> Result<DeliveryPage, Unavailable>;

    /// Returns the deliveries of a task. None if it does not exist.
    async fn task_deliveries(&self, key: &TaskKey) -> Result<Vec<Delivery>, Unavailable>;

    /// Counts deliveries of all owners.
    async fn delivery_counts(&self) -> Result<DeliveryCounts, Unavailable>;

    /// Makes a dead letter, or a delivery that waits for its next attempt, due at once, with a new maximum age. Returns
    /// whether there is such a delivery.
    async fn retry_delivery(&self, key: &TaskKey, id: &str, now: Millis) -> Result<bool, Unavailable>;
}

/// Recovery, retention and health of a store.
#[async_trait]
pub trait Maintenance: Send + Sync + 'static {
    /// Claims at most `limit` unfinished turns of earlier openings: raises and commits their `fence`, and the `attempt` of
    /// turns that had begun. A task that can't be read is returned as damaged, once, and is not changed.
    ///
    /// In a [shared](TaskStore::shared) store: the tasks of dead replicas, of which some only have unread mail, and then open
    /// tasks without a runner, up to [`Load::free_turns`] of the last renewal. This replica becomes their runner.
    async fn claim(&self, limit: usize) -> Result<Vec<Claim>, Unavailable>;

    /// Returns tasks that have waited for their clients since before a time, longest wait first: at most `limit` after the
    /// first `skip`.
    async fn idle_tasks(&self, before: Millis, skip: usize, limit: usize) -> Result<Vec<TaskKey>, Unavailable>;

    /// Deletes expired data in small transactions, so that commits do not wait. A task that is in use is skipped, and so is
    /// one with deliveries that are due or leased, up to [`Retention::undelivered`]. A shared store skips tasks with a runner.
    async fn sweep(&self, policy: &Retention, now: Millis, in_use: InUse<'_>) -> Result<SweepResult, Unavailable>;

    /// Checks that the store can be written to.
    async fn check(&self) -> Result<(), Unavailable>;

    /// Returns the read access of operators, if the store has it.
    fn inspect(&self) -> Option<&dyn Inspect> {
        None
    }

    /// Returns the size of the store. Empty by default.
    async fn usage(&self) -> Result<StoreUsage, Unavailable> {
        Ok(StoreUsage::default())
    }

    /// Diagnoses the data of a task that could not be read. Reads all of it.
    async fn diagnose(&self, _key: &TaskKey) -> Result<Option<Damaged>, Unavailable> {
        Ok(None)
    }

    /// A persistent fault of the whole store, such as a deleted file. During a fault, the server accepts no new work.
    /// `None` if the store cannot have such a fault.
    fn fault(&self) -> Option<watch::Receiver<Option<Unavailable>>> {
        None
    }
}

/// Operations of a store that several processes share, each as a replica. The module [`shared`](super::shared) has the terms.
///
/// Only the commits keep tasks consistent, by comparing the runner, the fence and the sequence number. Leases decide when a
/// replica is declared dead and its tasks are claimed ([`Maintenance::claim`]), never whether a write is valid. The clock of
/// leases is that of the store. An operation without a response may be repeated.
#[async_trait]
pub trait SharedStore: Send + Sync {
    /// Returns the id of this replica. The opening of the store allocates it, and [`join`](Self::join) may replace it.
    fn replica(&self) -> ReplicaId;

    /// Time after its last renewal in which this replica is not declared dead. It is renewed three times as often.
    fn lease(&self) -> Duration {
        DEFAULT_LEASE
    }

    /// Describes this replica and renews its lease. Allocates another id if the replica was declared dead, or has left. Returns
    /// the id.
    async fn join(&self, info: &ReplicaInfo) -> Result<ReplicaId, Unavailable>;

    /// Renews the lease of this replica, and stores its load.
    async fn renew(&self, load: Load) -> Result<Renewal, Unavailable>;

    /// Declares the other replicas dead that have not renewed their leases for `older`. Returns them. Their commits are refused
    /// from now on, and their tasks can be claimed. Has no effect if this replica has not renewed its own lease for 2/5 of `older`.
    ///
    /// An outage of the store would make all replicas look dead. So a time of more than 2/5 of a [lease](Self::lease) in which no
    /// store was opened, and none has joined or renewed, does not count.
    async fn bury(&self, older: Duration) -> Result<Vec<ReplicaId>, Unavailable>;

    /// Makes this replica the runner of a task, and loads it: raises and commits its `fence`, and its `attempt` if an open turn
    /// had begun. [`Unavailable`] if this replica was declared dead.
    async fn acquire(&self, key: &TaskKey) -> Result<Acquired, Unavailable>;

    /// Returns at most `limit` of the tasks that this replica runs, after a task in an order of the store. A replica that got no
    /// response to a claim finds with it the tasks that it does not know, and acquires them again.
    async fn owned(&self, after: Option<&TaskKey>, limit: usize) -> Result<Vec<TaskKey>, Unavailable>;

    /// Ends the ownership of tasks that this replica runs with these fences. An open one becomes free to
    /// [claim](Maintenance::claim). One with unread mail keeps its runner, and so does one with another fence.
    async fn release(&self, tasks: &[(TaskKey, Fence)]) -> Result<(), Unavailable>;

    /// Stores a mail for the runner of a task. The commit with which the runner would end its ownership keeps it while there is
    /// unread mail ([`Committed::unread_mail`]). The caller wakes the runner.
    ///
    /// A task has at most [`MAX_MAIL`] mails. A rejected one is deleted after some time, and before that only with its task.
    async fn post(&self, key: &TaskKey, mail: &Mail) -> Result<Posted, Unavailable>;

    /// Returns unread mail of a task with its numbers, in their order: mail with numbers greater than `after` that was neither
    /// [read](Commit::mail_read) nor rejected. Returns some of it if it is large, so the caller asks again after the last one.
    async fn mail(&self, key: &TaskKey, after: u64) -> Result<Vec<(u64, Mail)>, Unavailable>;

    /// Rejects a mail of a task that this replica runs. The poster gets the error by [`rejection`](Self::rejection).
    async fn reject_mail(&self, key: &TaskKey, number: u64, error: &Error) -> Result<(), Unavailable>;

    /// Returns the error with which the runner rejected a mail, or `None` if it did not.
    async fn rejection(&self, key: &TaskKey, number: u64) -> Result<Option<Error>, Unavailable>;

    /// Returns at most `limit` of the tasks with unread mail that this replica runs.
    async fn unread(&self, limit: usize) -> Result<Vec<TaskKey>, Unavailable>;

    /// Returns those of the tasks that are not at these positions any more, with their changes: `None` for a task that does not
    /// exist.
    async fn follow(&self, at: &[(TaskKey, Position)]) -> Result<Vec<(TaskKey, Option<Advance>)>, Unavailable>;

    /// Makes this replica the only one that does a job, or renews that for `time`. Returns whether it is.
    async fn lead(&self, job: &'static str, time: Duration) -> Result<bool, Unavailable>;

    /// Declares this replica dead, since it stops: its tasks can be claimed at once.
    async fn leave(&self) -> Result<(), Unavailable>;

    /// Makes sure that a change without a response can't be committed later. Raises the fence of an existing task that is at the
    /// expected position and is not open, and ends its ownership unless it has unread mail. A task that should be new can't be
    /// created for an hour. Returns whether that was done, and the store has nothing of the change; repeating it then returns
    /// whether the task is new.
    async fn burn(&self, key: &TaskKey, expect: &Expect) -> Result<bool, Unavailable>;

    /// Sends a note to a replica, or to any other one that does not drain. Does not wait, and may lose the note.
    fn wake(&self, to: Option<ReplicaId>, note: Note);

    /// Opens the receiving side of [`wake`](Self::wake) for this replica, and closes an earlier one. It ends when the replica is
    /// declared dead.
    fn notes(&self) -> mpsc::Receiver<Note>;

    /// Returns the bugs that a test has planted.
    #[doc(hidden)]
    fn faults(&self) -> Faults {
        Faults::default()
    }
}

/// Outcome of an acquisition.
#[derive(Clone, Debug)]
pub enum Acquired {
    /// This replica is the runner of the task. Its mail may be unread.
    Owned(Box<StoredTask>),
    /// The task has another runner, which is alive.
    Elsewhere(ReplicaId),
    /// The task is in a terminal state.
    Ended,
    /// The task does not exist.
    NotFound,
}

/// Predicate that returns whether a task is in use, for example by a reader of its log.
pub type InUse<'a> = &'a (dyn Fn(&TaskKey) -> bool + Send + Sync);

/// Synchronous commits, for a store that never waits.
pub trait SyncStore {
    /// Commits a change of one task atomically. After [`Refused::Rejected`] the task is dropped from memory, and its
    /// senders get the reason.
    fn commit_sync(&self, commit: &Commit) -> Result<(), Refused>;
}

/// Row and checkpoint of a task, as loaded from a store.
#[derive(Clone, Debug)]
pub struct StoredTask {
    /// Position of the last event.
    pub position: Position,
    /// Contents of the row.
    pub row: TaskHead,
    /// The whole task after the event of this sequence number.
    pub checkpoint: Option<(Seq, Snapshot)>,
    /// State that the agent saved.
    pub agent_state: Option<Bytes>,
    /// Request contexts of the messages that still need a turn.
    pub turn_contexts: Option<Bytes>,
    /// Events after the checkpoint, in order, if they were read with the row. Further ones may follow up to the position.
    pub tail: Vec<Event>,
    /// Summary of the log ([`TaskStore::log_summary`]), if it was read with the row.
    pub log: Option<LogSummary>,
}

/// Summary of the log of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogSummary {
    /// Size of the log in bytes.
    pub bytes: usize,
    /// Number of turns whose end is in the log, as far as their records are.
    pub ended_turns: u32,
}

impl LogSummary {
    /// Returns the number of turns that have ended, given the records of the last commit with any, or of more.
    pub fn ended_turns(records: &[TurnRecord]) -> u32 {
        records.last().map_or(0, |last| last.number.saturating_sub(u32::from(last.outcome.is_none())))
    }
}

/// Claimed task with an unfinished turn, or the damage that prevents reading it.
pub type Claim = (TaskKey, Result<StoredTask, Damaged>);

impl StoredTask {
    /// Loads the current task: the checkpoint with the later events applied.
    pub async fn load_task(&mut self, store: &dyn TaskStore, key: &TaskKey) -> Result<Task, Unavailable> {
        self.load_snapshot(store, key).await?.into_task().map_err(|error| unreadable(key, &error))
    }

    /// Loads the current task as a snapshot. An up-to-date checkpoint is returned in its encoded form.
    pub async fn load_snapshot(&mut self, store: &dyn TaskStore, key: &TaskKey) -> Result<Snapshot, Unavailable> {
        let (seq, snapshot) = self.checkpoint.take().unwrap_or_default();
        if seq >= self.position.seq {
            return Ok(snapshot);
        }
        // Boxed, so that the futures of reads stay small.
        Box::pin(self.apply_log(store, key, seq, snapshot)).await
    }

    /// Applies the events after `seq` to a checkpoint.
    async fn apply_log(
        &mut self,
        store: &dyn TaskStore,
        key: &TaskKey,
        mut seq: Seq,
        snapshot: Snapshot,
    ) -> Result<Snapshot, Unavailable> {
        let mut task = snapshot.into_task().map_err(|error| unreadable(key, &error))?;
        let mut tail = mem::take(&mut self.tail);
        while seq < self.position.seq {
            let events = match mem::take(&mut tail) {
                tail if tail.is_empty() => store.events(key, seq, READ_BATCH, READ_BYTES).await?,
                tail => tail,
            };
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

fn unreadable(key: &TaskKey, cause: &Error) -> Unavailable {
    Unavailable(format!("task {} can't be read: {cause}", key.id()))
}
