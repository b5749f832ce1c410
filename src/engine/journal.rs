//! Journal: the map of live tasks, and group commit of their pending events to the store.
//!
//! A task is assigned to a lane by its key. Each lane commits the changes of many tasks in one batch, with an outcome
//! per task. A synchronous store commits in the caller instead. Events become visible only once they are durable.

use std::{
    array, mem,
    ops::Deref,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard, RwLock};
use tokio::{
    sync::{OnceCell, Semaphore, SemaphorePermit, watch},
    task::AbortHandle,
    time::{Instant, sleep_until, timeout},
};

pub(crate) use self::replica::{Replica, Work};
use self::{
    commit_retry::CommitRetry,
    lane::Lane,
    live::{LastError, LiveState, apply_to_checkpoint},
    waiters::Wakeups,
};
pub(crate) use self::{
    failure::{CommitFailure, FailureReports, LIVE_BYTES, LimitExceeded},
    live::{LiveTask, TaskRole},
    messages::{
        AcceptedMessage, EventsStart, KeyDigest, MessageRefusal, NewMessage, WaitFailure, Watch, watch_commit,
        watch_events, watch_turn,
    },
    turn::{AgentPause, AgentStart, TurnResult, TurnStop, WaitsFor},
    turn_context::{StoredContexts, TurnContext, TurnTrace},
    turns::{LogReplay, MessageRef, MessageStage, QueuedMessage, TurnProgress, Turns},
    waiters::TurnReply,
};
pub use self::{
    memory::LiveMemory,
    reader::{Interrupted, Reader},
};
use crate::{
    base::{
        metric::{self, EngineGauges},
        sources::Sources,
    },
    protocol::{
        event::{Ends, Event},
        pb::v1::{Message, Role, TaskState, TaskStatus, TaskStatusUpdateEvent, stream_response::Payload},
        response_budget::ResponseBudget,
    },
    store::{Commit, Expect, KeyMap, Refused, Store, TaskKey, Unavailable, turn_record::created},
};

mod commit_retry;
mod failure;
mod follower;
mod lane;
mod live;
mod memory;
mod messages;
mod reader;
mod replica;
mod turn;
mod turn_context;
mod turns;
mod waiters;

const SHARDS: usize = 64;

/// Time after which an unacknowledged commit is abandoned where that is safe. Otherwise, waiting callers get an error
/// that the outcome is unknown, and the retries continue.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time after which that happens with a shared store: a caller has other servers to turn to.
const SHARED_COMMIT_TIMEOUT: Duration = Duration::from_millis(1500);

/// Time without success of the attempted commits after which the server rejects new work.
const DOWN_AFTER: Duration = Duration::from_secs(1);

/// Interval at which new waiting callers are failed while the store stays unavailable.
const FAIL_WAITERS_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of streams that read events from the store, and of tasks that are loaded, at once. More would only wait for a
/// processor, and need memory.
const READS: usize = 4;

/// Live tasks, and their commits to a store.
pub struct Journal {
    store: Arc<dyn Store>,
    sources: Sources,
    shards: [Mutex<KeyMap<Arc<Entry>>>; SHARDS],
    lanes: Vec<Lane>,
    runners: OnceLock<Vec<AbortHandle>>,
    outage: Mutex<Outage>,
    /// State of faults of the whole store, such as a deleted file.
    fault: Option<watch::Receiver<Option<Unavailable>>>,
    phase: RwLock<Phase>,
    /// Permits to read events and tasks from the store.
    reads: Semaphore,
    /// Permit of a lane to commit a huge change.
    huge_commits: Semaphore,
    /// Memory of the tasks in the map.
    memory: LiveMemory,
    /// Delivery of push notifications, and live feed of operators.
    observers: [OnceLock<Arc<dyn CommitObserver>>; 2],
    pub(crate) failure_reports: OnceLock<FailureReports>,
    /// Last turn that failed.
    last_error: Mutex<Option<LastError>>,
    /// State of this process as a replica, if others share the store.
    replica: Option<Box<Replica>>,
}

/// Observer of durable commits, such as the delivery of push notifications.
pub(crate) trait CommitObserver: Send + Sync {
    /// Called after each commit, and after a push configuration was stored, without locks. Must not block. `has_push`: the commit
    /// has marked the deliveries of the task, of which there are some.
    fn on_committed(&self, key: &TaskKey, has_new_config: bool, has_push: bool);

    /// Called after a push configuration was deleted. Must not block.
    fn on_push_deleted(&self, key: &TaskKey);
}

/// Phase of the server's shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Serves requests.
    Open,
    /// Running turns may continue for a while; streams of idle tasks end.
    Draining,
    /// Stopped. Unfinished work of agents is abandoned, without an event.
    Stopped,
}

/// Outage of the store.
#[derive(Default)]
struct Outage {
    /// Start of the first commit attempt since the last successful one. Set also while a commit is in progress.
    since: Option<Instant>,
    /// Set once the outage is logged.
    is_logged: bool,
}

/// Entry of a task in the map. Its `live` is empty while one caller loads the task from the store.
struct Entry {
    key: TaskKey,
    journal: Arc<Journal>,
    live: OnceCell<LiveTask>,
    /// Number of references. Only increased from zero under the lock of the shard.
    holders: AtomicUsize,
}

/// Reference to a live task, held by turns, readers and the journal. The task leaves memory with its last reference.
pub(crate) struct LiveRef(Arc<Entry>);

impl Journal {
    /// Creates a journal over a store, and spawns its lanes unless the store is synchronous.
    pub fn new(store: Arc<dyn Store>, sources: Sources, memory: LiveMemory) -> Arc<Self> {
        let lanes: Vec<Lane> = (0..store.lanes().max(1)).map(|_| Lane::default()).collect();
        let fault = store.fault();
        let replica = store.shared().map(|shared| Box::new(Replica::new(shared.lease())));
        let journal = Arc::new(Self {
            store,
            sources,
            shards: array::from_fn(|_| Mutex::default()),
            lanes,
            runners: OnceLock::new(),
            outage: Mutex::default(),
            fault,
            phase: RwLock::new(Phase::Open),
            reads: Semaphore::new(READS),
            huge_commits: Semaphore::new(1),
            memory,
            observers: Default::default(),
            failure_reports: OnceLock::new(),
            last_error: Mutex::default(),
            replica,
        });
        if journal.store.as_sync().is_none() {
            let run = |lane| tokio::spawn(Arc::clone(&journal).run_lane(lane)).abort_handle();
            let watch =
                journal.fault.clone().map(|fault| tokio::spawn(Arc::clone(&journal).watch_fault(fault)).abort_handle());
            journal.runners.get_or_init(|| (0..journal.lanes.len()).map(run).chain(watch).collect());
        }
        journal
    }

    /// Returns the store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns the sources of time, ids and randomness.
    pub fn sources(&self) -> &Sources {
        &self.sources
    }

    /// Returns the name of the agent, in a server with several.
    pub(crate) fn agent(&self) -> Option<&Arc<str>> {
        self.failure_reports.get()?.agent.as_ref()
    }

    /// Returns the last turn that failed since the start.
    pub(crate) fn last_error(&self) -> Option<LastError> {
        self.last_error.lock().clone()
    }

    /// Returns the memory budget of the live tasks.
    pub(crate) fn memory(&self) -> &LiveMemory {
        &self.memory
    }

    /// Adds an observer of commits. Only the first two are used.
    pub(crate) fn observe(&self, observer: Arc<dyn CommitObserver>) {
        if let Some(free) = self.observers.iter().find(|slot| slot.get().is_none()) {
            drop(free.set(observer));
        }
    }

    /// Tells the observers of a commit, or of a push configuration that was stored for a task.
    pub(crate) fn tell_observer(&self, key: &TaskKey, has_new_config: bool, has_push: bool) {
        for observer in self.observers.iter().filter_map(OnceLock::get) {
            observer.on_committed(key, has_new_config, has_push);
        }
    }

    /// Tells the observers that a push configuration of a task was deleted.
    pub(crate) fn tell_observer_deleted(&self, key: &TaskKey) {
        for observer in self.observers.iter().filter_map(OnceLock::get) {
            observer.on_push_deleted(key);
        }
    }

    /// Aborts the lanes. Changes that are not committed by then are lost.
    pub fn stop(&self) {
        self.runners.get().into_iter().flatten().for_each(AbortHandle::abort);
        // These references keep the journal alive, and the journal keeps them.
        self.lanes.iter().for_each(Lane::clear);
    }

    /// Returns whether the store is unavailable: it has a fault, or commits have failed or hung for over a second.
    pub fn is_store_unavailable(&self) -> bool {
        self.has_fault() || self.is_down_for(DOWN_AFTER)
    }

    /// Returns whether the store has a fault, which retries do not resolve.
    fn has_fault(&self) -> bool {
        self.fault.as_ref().is_some_and(|fault| fault.borrow().is_some())
    }

    /// Returns whether commits have been attempted, but none has succeeded for longer than `time`.
    fn is_down_for(&self, time: Duration) -> bool {
        self.outage.lock().since.is_some_and(|since| since.elapsed() > time)
    }

    /// Returns the phase of the shutdown.
    pub fn phase(&self) -> Phase {
        *self.phase.read()
    }

    /// Enters a phase, and wakes all waiters of live tasks.
    pub fn enter_phase(&self, phase: Phase) {
        *self.phase.write() = phase;
        for task in self.all() {
            let mut inner = task.lock();
            if phase == Phase::Draining {
                inner.note_in_span("drain");
            }
            let wakeups = if phase == Phase::Stopped { inner.stop_waiting() } else { Wakeups::all() };
            drop(inner);
            task.send_wakeups(wakeups);
        }
    }

    /// Waits for memory for the events of a stream, and for the permit to read them from the store. They have `bytes`, or more
    /// by one event. Few streams read at once, so that they exceed the budget by few events.
    pub(crate) async fn permit_to_read(&self, budget: &ResponseBudget, bytes: usize) -> Option<SemaphorePermit<'_>> {
        loop {
            // Not while it has the permit, which a stream on another connection may use at once.
            budget.wait_for_room(bytes).await;
            // The semaphore is never closed.
            let permit = self.reads.acquire().await.ok();
            if budget.has_room(bytes) {
                return permit;
            }
        }
    }

    // Map of live tasks.

    /// Inserts a new task.
    pub(crate) fn insert(self: &Arc<Self>, live: LiveTask) -> LiveRef {
        let key = live.key.clone();
        let entry = Arc::new(Entry::new(&key, self, Some(live)));
        let task = entry.hold();
        self.shards[key.shard(SHARDS)].lock().insert(key, entry);
        task
    }

    /// Returns the task if it is in memory.
    pub(crate) fn get(&self, key: &TaskKey) -> Option<LiveRef> {
        let task = self.shards[key.shard(SHARDS)].lock().get(key).map(Entry::hold);
        task.filter(|task| task.0.live.initialized())
    }

    /// Returns the task, loading it with `load` if it is not in memory. Concurrent callers share one load. Few tasks are loaded
    /// at once, so that they exceed the budget by few.
    pub(crate) async fn get_or_load<E, F: Future<Output = Result<LiveTask, E>>>(
        self: &Arc<Self>,
        key: &TaskKey,
        load: impl FnOnce() -> F,
    ) -> Result<LiveRef, E> {
        let task = {
            let mut shard = self.shards[key.shard(SHARDS)].lock();
            shard.entry(key.clone()).or_insert_with(|| Arc::new(Entry::new(key, self, None))).hold()
        };
        let permitted = async || {
            // The semaphore is never closed.
            let _permit = self.reads.acquire().await.ok();
            load().await
        };
        task.0.live.get_or_try_init(permitted).await?;
        Ok(task)
    }

    /// Returns the number of tasks in memory.
    pub fn live_tasks(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Returns the state of the live tasks for the metrics, without the number of turns.
    pub(crate) fn gauges(&self) -> EngineGauges {
        let states = (1..).map_while(|number| TaskState::try_from(number).ok());
        let mut states: Vec<_> = states.map(|state| (state.as_str_name(), 0)).collect();
        let mut gauges = EngineGauges::default();
        for task in self.shards.iter().flat_map(loaded) {
            let inner = task.lock();
            gauges.queued_messages += inner.turn.inbox.len();
            gauges.uncommitted_tasks += usize::from(inner.has_uncommitted());
            let state = inner.admission.state().as_str_name();
            states.iter_mut().filter(|(name, _)| *name == state).for_each(|(_, count)| *count += 1);
        }
        gauges.live_tasks = states;
        gauges
    }

    /// Returns the tasks in memory, ordered by key.
    fn all(&self) -> Vec<LiveRef> {
        let mut tasks: Vec<LiveRef> = self.shards.iter().flat_map(loaded).collect();
        tasks.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        tasks
    }

    /// Removes an entry from the map under a condition, which is checked under the lock of the shard. The caller drops the result,
    /// so that the lock is not held meanwhile.
    fn remove_if(&self, entry: &Arc<Entry>, condition: impl FnOnce() -> bool) -> Option<Arc<Entry>> {
        let mut shard = self.shards[entry.key.shard(SHARDS)].lock();
        let is_mapped = shard.get(&entry.key).is_some_and(|mapped| Arc::ptr_eq(mapped, entry));
        if is_mapped && condition() { shard.remove(&entry.key) } else { None }
    }

    // Commits.

    /// Commits the pending changes of a task: in the caller if the store is synchronous, otherwise by the task's lane.
    fn flush(&self, task: &LiveRef, mut inner: MutexGuard<'_, LiveState>) {
        if !inner.is_dirty() || inner.queued {
            return;
        }
        let live: &LiveTask = task;
        let Some(store) = self.store.as_sync() else {
            inner.queued = true;
            drop(inner);
            return self.lanes[live.key.lane(self.lanes.len())].push(task.clone());
        };
        let (mut wakeups, mut is_committed) = (Wakeups::default(), false);
        let mut commit = inner.take_commit(live, &self.sources.clock, true);
        apply_to_checkpoint(&mut commit);
        match store.commit_sync(&commit) {
            Ok(()) => {
                self.count_tasks(&commit);
                inner.publish(&commit, &mut wakeups);
                inner.reuse_events(mem::take(&mut commit.events));
                is_committed = true;
            }
            Err(refusal) => {
                metric::COMMIT_FAILURES.add(None, &[failure_kind(&refusal)], 1);
                wakeups = self.drop_refused(task, &mut inner, &refusal);
            }
        }
        drop(inner);
        if is_committed {
            self.tell_observer(&commit.key, commit.push.is_some(), false);
        }
        drop(commit);
        live.send_wakeups(wakeups);
    }

    /// Drops the state of a task whose change the store has refused.
    fn drop_refused(&self, task: &LiveRef, inner: &mut LiveState, refusal: &Refused) -> Wakeups {
        // Removed from the map before waiters are woken: a new request must load the task from the store.
        drop(self.remove_if(&task.0, || true));
        if let (Some(replica), Refused::Rejected(_)) = (&self.replica, refusal) {
            // This replica may still run the task, whose turn has to be recovered.
            replica.queue_mail(task.key.clone());
        }
        inner.abandon_refused(refusal)
    }

    /// Commits and retries the changes of a lane. Runs until it is aborted.
    async fn run_lane(self: Arc<Self>, lane: usize) {
        let (mut retry, mut held) = (CommitRetry::default(), None);
        loop {
            tokio::select! {
                biased;
                () = sleep_until(retry.next_attempt()), if retry.is_active() => retry.retry_all(&self).await,
                batch = self.lanes[lane].next_batch(&self.huge_commits, &mut held) => {
                    let changes: Arc<[Commit]> = batch.iter().map(take_change).collect();
                    if self.commit(&batch, &changes, false).await.is_err() {
                        // A batch that has waited for another one has waited as long.
                        let since = self.outage.lock().since.unwrap_or_else(Instant::now);
                        retry.push(batch, &changes, since);
                    }
                }
            }
        }
    }

    /// Commits changes of tasks and applies the outcomes. Fails if the store is unavailable, in which case the outcome
    /// is unknown.
    async fn commit(&self, batch: &[LiveRef], changes: &Arc<[Commit]>, is_retry: bool) -> Result<(), ()> {
        let start = Instant::now();
        self.outage.lock().since.get_or_insert(start);
        let (mut change, mut wait) = (self.store.commit(Arc::clone(changes)), self.commit_timeout());
        let outcomes = loop {
            if let Ok(outcomes) = timeout(wait, &mut change).await {
                break outcomes;
            }
            self.fail_waiters(batch);
            wait = FAIL_WAITERS_INTERVAL;
        };
        match &outcomes {
            Ok(_) => {
                let bytes: usize = changes.iter().flat_map(|change| &change.events).map(Event::proto_len).sum();
                metric::COMMIT_DURATION.observe(None, &[], start.elapsed());
                metric::COMMIT_TASKS.observe(None, &[], metric::number(batch.len()));
                metric::COMMIT_BYTES.observe(None, &[], metric::number(bytes));
                self.end_outage();
            }
            Err(cause) => {
                let kind = if self.has_fault() { "fault" } else { "unavailable" };
                metric::COMMIT_FAILURES.add(None, &[kind], 1);
                if !mem::replace(&mut self.outage.lock().is_logged, true) {
                    tracing::warn!(error.cause = %cause, "store unavailable");
                }
            }
        }
        let mut spans = 0;
        for ((task, change), outcome) in batch.iter().zip(&**changes).zip(outcomes.map_err(drop)?) {
            let mut wakeups = Wakeups::default();
            let mut inner = task.lock();
            inner.queued = false;
            // The acknowledgement of an earlier attempt was lost: only this change can have written a row at its
            // position. Over a shared store, a change without events has none of its own.
            let has_position = self.replica.is_none() || !change.events.is_empty();
            let is_own =
                |refusal: &Refused| is_retry && has_position && *refusal == Refused::Stale(Some(change.position()));
            let (mut is_committed, mut has_push) = (false, false);
            match outcome {
                Err(refusal) if !is_own(&refusal) => {
                    metric::COMMIT_FAILURES.add(None, &[failure_kind(&refusal)], 1);
                    inner.record_commit(start.elapsed(), Some(failure_kind(&refusal)), (batch.len(), &mut spans));
                    let rejected = match &refusal {
                        Refused::Rejected(reason) => inner.reject(task, change, reason),
                        Refused::Stale(_) => None,
                    };
                    wakeups = rejected.unwrap_or_else(|| self.drop_refused(task, &mut inner, &refusal));
                }
                outcome => {
                    self.count_tasks(change);
                    inner.record_commit(start.elapsed(), None, (batch.len(), &mut spans));
                    inner.publish(change, &mut wakeups);
                    let committed = outcome.unwrap_or_default();
                    self.settle_ownership(&mut inner, change, committed);
                    has_push = committed.has_push;
                    is_committed = true;
                }
            }
            self.flush(task, inner);
            if is_committed {
                self.tell_observer(&change.key, change.push.is_some(), has_push);
            }
            task.send_wakeups(wakeups);
        }
        Ok(())
    }

    /// Counts the task of a durable commit, if it was created or has ended.
    fn count_tasks(&self, commit: &Commit) {
        if commit.expect == Expect::New {
            metric::TASKS_CREATED.add(self.agent(), &[], 1);
        }
        if metric::is_enabled() && commit.events.last().is_some_and(|event| event.ends() == Ends::Task) {
            let since = commit.row.time.saturating_sub(created(commit.key.id()));
            let duration = Duration::from_millis(u64::try_from(since).unwrap_or(0));
            let state = commit.row.state.as_str_name();
            metric::TASKS_ENDED.add(self.agent(), &[state], 1);
            metric::TASK_DURATION.observe(self.agent(), &[state], duration);
        }
    }

    /// Fails waiting senders and cancels with UNAVAILABLE, because the store does not answer: those of `batch` and of
    /// queued tasks even if their messages are not recorded, those of other tasks as in
    /// [`fail_recorded_waiters`](Self::fail_recorded_waiters).
    fn fail_waiters(&self, batch: &[LiveRef]) {
        let queued: Vec<LiveRef> = self.lanes.iter().flat_map(Lane::tasks).collect();
        batch.iter().chain(&queued).for_each(|task| task.lock().fail_waiters());
        self.fail_recorded_waiters();
    }

    /// Fails waiting senders and cancels of all tasks with UNAVAILABLE, since the store can't record their results.
    /// Turns continue. Messages that are not recorded yet are left to the retries of their own commits.
    fn fail_recorded_waiters(&self) {
        self.all().iter().for_each(|task| task.lock().fail_recorded_waiters());
    }

    fn commit_timeout(&self) -> Duration {
        if self.is_shared() { SHARED_COMMIT_TIMEOUT } else { COMMIT_TIMEOUT }
    }

    /// Fails waiting senders and cancels when a fault of the store lasts for [`COMMIT_TIMEOUT`]. Runs until it is
    /// aborted.
    async fn watch_fault(self: Arc<Self>, mut fault: watch::Receiver<Option<Unavailable>>) {
        while fault.wait_for(Option::is_some).await.is_ok() {
            let mut wait = COMMIT_TIMEOUT;
            loop {
                match timeout(wait, fault.wait_for(Option::is_none)).await {
                    Ok(Ok(_)) => break,
                    // The store was dropped.
                    Ok(Err(_)) => return,
                    Err(_) => self.fail_recorded_waiters(),
                }
                wait = FAIL_WAITERS_INTERVAL;
            }
        }
    }

    /// Ends the outage, because the store has committed a change or passed its check.
    fn end_outage(&self) {
        if mem::take(&mut *self.outage.lock()).is_logged {
            tracing::info!("store available again");
        }
    }

    /// Waits until every accepted change has been committed or abandoned.
    pub(crate) async fn wait_until_committed(&self) {
        const POLL_INTERVAL: Duration = Duration::from_millis(5);
        while self.store.as_sync().is_none() && self.all().iter().any(|task| task.lock().has_uncommitted()) {
            pause(POLL_INTERVAL).await;
        }
    }
}

/// Returns the name of a refusal for the metrics.
fn failure_kind(refusal: &Refused) -> &'static str {
    match refusal {
        Refused::Stale(_) => "stale",
        Refused::Rejected(_) => "rejected",
    }
}

/// Returns the tasks of a shard that are in memory.
fn loaded(shard: &Mutex<KeyMap<Arc<Entry>>>) -> Vec<LiveRef> {
    shard.lock().values().filter(|entry| entry.live.initialized()).map(Entry::hold).collect()
}

/// Takes the pending changes of a task. Its checkpoint is updated outside of the lock, which is safe because only this
/// lane moves the committed state.
fn take_change(task: &LiveRef) -> Commit {
    let mut inner = task.lock();
    let mut commit = inner.take_commit(task, &task.journal().sources.clock, false);
    if task.journal().replica.is_some() {
        inner.begin_release(&commit);
    }
    drop(inner);
    apply_to_checkpoint(&mut commit);
    commit
}

/// Sleeps, to poll for a condition that has no notification.
pub(crate) async fn pause(time: Duration) {
    #[expect(clippy::disallowed_methods, reason = "the condition has no notification")]
    tokio::time::sleep(time).await;
}

impl Entry {
    fn new(key: &TaskKey, journal: &Arc<Journal>, live: Option<LiveTask>) -> Self {
        let (key, journal, live) = (key.clone(), Arc::clone(journal), OnceCell::new_with(live));
        Self { key, journal, live, holders: AtomicUsize::new(0) }
    }

    /// Adds a reference. The caller must have one already, or hold the lock of the shard.
    fn hold(self: &Arc<Self>) -> LiveRef {
        self.holders.fetch_add(1, Ordering::AcqRel);
        LiveRef(Arc::clone(self))
    }
}

impl LiveRef {
    /// Returns the journal of the task.
    pub(crate) fn journal(&self) -> &Arc<Journal> {
        &self.0.journal
    }

    /// Creates a status update with the current time. Its message is [completed](Self::complete_message).
    pub(crate) fn status_event(&self, state: TaskState, message: Option<Message>) -> Event {
        let message = message.map(|message| self.complete_message(message));
        let timestamp = Some(crate::protocol::pb::wkt::timestamp(self.journal().sources().clock.millis()));
        Event::pending(Payload::StatusUpdate(TaskStatusUpdateEvent {
            task_id: self.key.id().to_owned(),
            context_id: (*self.context).to_owned(),
            status: Some(TaskStatus { state: state.into(), message, timestamp }),
            metadata: None,
        }))
    }

    /// Completes a message of the agent: sets its task and context, and its id and role if they are missing.
    pub(crate) fn complete_message(&self, mut message: Message) -> Message {
        if message.message_id.is_empty() {
            message.message_id = self.journal().sources().ids.time_ordered();
        }
        if message.role == 0 {
            message.role = Role::Agent.into();
        }
        (message.task_id, message.context_id) = (self.key.id().to_owned(), (*self.context).to_owned());
        message
    }
}

impl Deref for LiveRef {
    type Target = LiveTask;

    fn deref(&self) -> &LiveTask {
        match self.0.live.get() {
            Some(live) => live,
            None => unreachable!("a reference is returned only after the task is loaded"),
        }
    }
}

impl Clone for LiveRef {
    fn clone(&self) -> Self {
        self.0.hold()
    }
}

impl Drop for LiveRef {
    /// Removes the task from the map with its last reference, unless a new one was created meanwhile.
    fn drop(&mut self) {
        let entry = &self.0;
        if entry.holders.fetch_sub(1, Ordering::AcqRel) == 1 {
            let removed = entry.journal.remove_if(entry, || entry.holders.load(Ordering::Acquire) == 0);
            if let (Some(replica), Some(entry)) = (&entry.journal.replica, removed)
                && let Some(fence) = entry.live.get().and_then(|live| live.lock().unreleased())
            {
                replica.queue_release(entry.key.clone(), fence);
            }
        }
    }
}

debug_fields!(Journal { phase });

#[cfg(test)]
mod tests {
    use super::Entry;

    /// glibc has no cache of freed blocks of more than 1032 bytes. The allocation of an entry has two reference counts.
    #[test]
    fn freed_task_fits_the_cache_of_the_allocator() {
        let size = size_of::<Entry>() + 2 * size_of::<usize>();
        assert!(size <= 1032, "{size} bytes");
    }
}
