//! State of this process as a replica, one of several processes that share a store: its lease, tasks with mail to read or ownership to
//! release, and the replicas that follow its tasks. [`shared`](crate::store::shared) has the terms.

use std::{collections::BTreeSet, mem, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::{MutexGuard, Notify},
    time::Instant,
};

use super::{Journal, LiveRef, TaskRole, live::LiveState};
use crate::{
    base::faults::Fault,
    protocol::event::Fence,
    store::{Commit, Committed, KeyMap, Note, ReplicaId, SharedStore, TaskKey},
};

/// Time for which a request without a response may still take effect.
const LATE_REQUEST: Duration = Duration::from_secs(30);

/// Time for which a runner notifies a follower after its last [`Note::Watch`].
const WATCH_TIME: Duration = Duration::from_mins(1);

/// Number of locks for acquisitions of tasks.
const LOCKS: usize = 64;

/// State of this process as a replica.
pub(crate) struct Replica {
    lease: Duration,
    /// Time at which the last successful renewal of the lease was sent. `None` if the lease is lost.
    renewed: Mutex<Option<Instant>>,
    /// Time until which the replica may become the runner of tasks that are not in memory, because an acquisition or a claim had no
    /// response. `None`: none had.
    orphans_until: Mutex<Option<Instant>>,
    work: Mutex<Work>,
    /// Wakes the reader of mail, which also releases tasks.
    pub(crate) work_added: Notify,
    /// Wakes the pump of followers.
    pub(crate) progress: Notify,
    /// Wakes the claimer.
    pub(crate) free: Notify,
    /// Wakes the reader of notes, because the replica has a new id.
    pub(crate) joined: Notify,
    watchers: Mutex<KeyMap<Vec<(ReplicaId, Instant)>>>,
    /// Locks of acquisitions, by task.
    locks: [tokio::sync::Mutex<()>; LOCKS],
    /// Fences of the tasks that were acquired since a claim began. `None` if none is in progress.
    acquired: Mutex<Option<KeyMap<Fence>>>,
}

/// Work for the reader of mail.
#[derive(Default)]
pub(crate) struct Work {
    /// Tasks whose mail may be unread, or that this replica runs without having them in memory.
    pub(crate) mail: BTreeSet<TaskKey>,
    /// Tasks whose ownership ends, with its fence.
    pub(crate) releases: Vec<(TaskKey, Fence)>,
}

impl Replica {
    pub(super) fn new(lease: Duration) -> Self {
        Self {
            lease,
            // The store was opened just before.
            renewed: Mutex::new(Some(Instant::now())),
            orphans_until: Mutex::default(),
            work: Mutex::default(),
            work_added: Notify::new(),
            progress: Notify::new(),
            free: Notify::new(),
            joined: Notify::new(),
            watchers: Mutex::default(),
            locks: std::array::from_fn(|_| tokio::sync::Mutex::default()),
            acquired: Mutex::default(),
        }
    }

    /// Records that an acquisition or a claim had no response.
    pub(crate) fn expect_orphans(&self) {
        *self.orphans_until.lock() = Some(Instant::now() + LATE_REQUEST);
    }

    /// Returns true while the replica may become the runner of tasks that are not in memory.
    pub(crate) fn may_have_orphans(&self) -> bool {
        self.orphans_until.lock().is_some_and(|until| Instant::now() < until)
    }

    /// Records when the last successful renewal of the lease was sent, or that the lease is lost.
    pub(crate) fn set_renewed(&self, sent: Option<Instant>) {
        *self.renewed.lock() = sent;
    }

    /// Returns whether no other replica can have declared this one dead.
    pub(crate) fn has_lease(&self) -> bool {
        self.lease_age() < self.lease
    }

    /// Returns the time since the last renewal of the lease, and at least the lease if it is lost.
    pub(crate) fn lease_age(&self) -> Duration {
        self.renewed.lock().map_or(self.lease, |sent| sent.elapsed())
    }

    /// Returns the time between two renewals: three fit into the lease, and time for the last one to arrive.
    pub(crate) fn renewal_interval(&self) -> Duration {
        self.lease * 3 / 10
    }

    /// Waits until no other caller acquires the task.
    pub(crate) async fn lock(&self, key: &TaskKey) -> MutexGuard<'_, ()> {
        self.locks[key.lane(LOCKS)].lock().await
    }

    /// Begins a claim of tasks, or ends it.
    pub(crate) fn set_claiming(&self, claims: bool) {
        *self.acquired.lock() = claims.then(KeyMap::default);
    }

    /// Records that a task was acquired.
    pub(crate) fn record_acquired(&self, key: &TaskKey, fence: Fence) {
        if let Some(acquired) = &mut *self.acquired.lock() {
            acquired.insert(key.clone(), fence);
        }
    }

    /// Returns whether a task was acquired after a claim that returned it with this fence.
    pub(crate) fn is_reacquired(&self, key: &TaskKey, fence: Fence) -> bool {
        self.acquired.lock().as_ref().and_then(|acquired| acquired.get(key)).is_some_and(|newer| *newer > fence)
    }

    /// Queues a task whose mail may be unread.
    pub(crate) fn queue_mail(&self, key: TaskKey) {
        self.work.lock().mail.insert(key);
        self.work_added.notify_one();
    }

    /// Queues the release of a task.
    pub(crate) fn queue_release(&self, key: TaskKey, fence: Fence) {
        self.work.lock().releases.push((key, fence));
        self.work_added.notify_one();
    }

    /// Takes the queued work.
    pub(crate) fn take_work(&self) -> Work {
        mem::take(&mut *self.work.lock())
    }

    /// Adds a replica that follows a task.
    pub(crate) fn watch(&self, key: TaskKey, follower: ReplicaId) {
        let (now, mut watchers) = (Instant::now(), self.watchers.lock());
        watchers.retain(|_, replicas| {
            replicas.retain(|(_, until)| *until > now);
            !replicas.is_empty()
        });
        let replicas = watchers.entry(key).or_default();
        replicas.retain(|(replica, _)| *replica != follower);
        replicas.push((follower, now + WATCH_TIME));
    }

    /// Notifies the followers of a task that it has advanced, or that its mail was processed.
    pub(crate) fn notify_followers(&self, shared: &dyn SharedStore, key: &TaskKey) {
        let (now, watchers) = (Instant::now(), self.watchers.lock());
        for (follower, _) in watchers.get(key).into_iter().flatten().filter(|(_, until)| *until > now) {
            shared.wake(Some(*follower), Note::Progress(key.clone()));
        }
    }
}

impl Journal {
    /// Returns the operations of a shared store, and the state of this process as its replica. `None` if no other process uses
    /// the store.
    pub(crate) fn shared(&self) -> Option<(&dyn SharedStore, &Replica)> {
        self.store.shared().zip(self.replica.as_deref())
    }

    /// Returns whether other processes share the store.
    pub(crate) fn is_shared(&self) -> bool {
        self.replica.is_some()
    }

    /// Returns whether a test has planted a bug.
    pub(crate) fn has_fault_planted(&self, fault: Fault) -> bool {
        self.shared().is_some_and(|(shared, _)| shared.faults().has(fault))
    }

    /// Returns whether the task in memory is the newest one: no other process can have changed it, and no change of this one is
    /// committed without being visible yet.
    pub(crate) fn is_current(&self, live: &LiveRef) -> bool {
        let Some(replica) = &self.replica else { return true };
        live.lock().has_newest() && replica.has_lease()
    }

    /// Settles the ownership of a task after a commit, and tells its followers.
    pub(super) fn settle_ownership(&self, inner: &mut LiveState, commit: &Commit, committed: Committed) {
        let Some((shared, replica)) = self.shared() else { return };
        inner.end_release(committed.unread_mail, commit.row.open);
        if committed.unread_mail {
            replica.queue_mail(commit.key.clone());
        }
        replica.notify_followers(shared, &commit.key);
    }

    /// Drops the tasks that this replica ran, because it was declared dead. Queued changes are refused by the store.
    pub(crate) fn lose_tasks(&self) {
        for task in self.all() {
            let inner = task.lock();
            if !inner.queued && inner.role != TaskRole::Follower && inner.committed().is_some() {
                self.drop_locked(&task, inner);
            }
        }
    }

    /// Drops a task that does not exist any more.
    pub(crate) fn drop_task(&self, task: &LiveRef) {
        self.drop_locked(task, task.lock());
    }

    fn drop_locked(&self, task: &LiveRef, mut inner: parking_lot::MutexGuard<'_, LiveState>) {
        drop(self.remove_if(&task.0, || true));
        let wakeups = inner.mark_lost();
        drop(inner);
        task.send_wakeups(wakeups);
    }

    /// Returns the tasks in memory whose readers or callers wait for changes of another process, ordered by key.
    pub(crate) fn followed(&self) -> Vec<LiveRef> {
        let mut tasks = self.all();
        tasks.retain(|task| task.lock().is_followed());
        tasks
    }
}
