//! Execution of turns: sends that wait for their turn, reads and lists of tasks, cancel, and graceful shutdown.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::future::Either;
use parking_lot::Mutex;
use prost::Message as _;
use tokio::{
    sync::{
        oneshot::{self, error::RecvError},
        watch,
    },
    task::JoinSet,
    time::{Instant, timeout},
};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

pub(crate) use self::limits::{RETRY_AFTER, limit_error, store_full};
pub(crate) use self::sweeper::end_idle;
use self::{
    cluster::Ownership,
    concurrency::{Permits, resize_reservation},
    contexts::Contexts,
    idempotency::KeyLocks,
    limits::memory_full,
    mail::SendRoute,
    recovery::Quarantine,
};
pub(crate) use self::{idempotency::IdempotencyKey, resubscribe::StreamStart};
pub use self::{idempotency::IdempotencySource, limits::Limits};
use crate::{
    base::{
        dependency::Dependency,
        faults::Fault,
        metric::{EngineGauges, LimitUse},
        sealing::SealingKey,
        sources::Sources,
    },
    engine::{
        agent::DynAgent,
        journal::{
            CommitFailure, EventsStart, Journal, LiveRef, LiveTask, Phase, Reader, TaskRole, TurnContext, TurnReply,
            WaitFailure, watch_commit, watch_events, watch_turn,
        },
    },
    protocol::{
        error::{Error, ErrorKind},
        event::Seq,
        history::HistoryLimit,
        pb::{
            v1::{Message, Task, TaskState},
            wkt::Struct,
        },
        response_budget::{Reservation, ResponseBudget},
        rpc::ClearedSecrets,
        snapshot::Snapshot,
        task::TaskLimits,
    },
    store::{ListPage, ListQuery, LogSummary, PushConfig, PutResult, Scope, Store, StoredTask, TaskKey, Unavailable},
};

mod cluster;
mod concurrency;
mod contexts;
mod follow_up;
mod idempotency;
mod limits;
mod mail;
mod recovery;
mod resubscribe;
mod start;
mod sweeper;
mod turn;

/// Time before the caller's deadline at which a reply is sent, so that it arrives in time. At most a tenth of the time left.
const REPLY_MARGIN: Duration = Duration::from_millis(100);

/// Maximum time that a call waits before its message is durable: for the recovery of tasks, for another send with its
/// idempotency key, and for the commit of the message once the time to wait for the turn is over.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time that a caller waits for a commit that does not depend on the agent: of a message with
/// `returnImmediately`, of a cancel, of an end of the task.
const COMMIT_WAIT: Duration = Duration::from_secs(30);

/// Maximum time that the reply to a send with `returnImmediately` waits for the agent's first update, once the message is
/// durable.
const FIRST_UPDATE_TIMEOUT: Duration = Duration::from_millis(500);

/// Maximum time that the reply to a send waits for memory: by then, clients that do not read have been disconnected. Other
/// calls of a JSON-RPC batch may have the memory until all of it is sent.
const REPLY_WAIT: Duration = Duration::from_mins(1);

/// Path of a push configuration in a send, as a prefix of its fields.
pub(crate) const PUSH_IN_SEND: &str = "configuration.taskPushNotificationConfig.";

/// Message to be sent to an agent, with its request context.
#[derive(Debug)]
pub(crate) struct SendRequest {
    pub(crate) scope: Arc<Scope>,
    pub(crate) message: Message,
    pub(crate) context: Box<TurnContext>,
    /// Push configuration of the request, without a task.
    pub(crate) push: Option<Box<PushConfig>>,
    /// Secrets that the push configuration clears.
    pub(crate) cleared: ClearedSecrets,
    /// Idempotency key, if the client sent one.
    pub(crate) idempotency_key: Option<Box<IdempotencyKey>>,
    /// Memory budget of the reply.
    pub(crate) responses: Option<ResponseBudget>,
}

/// Runs the turns of an agent, and serves the tasks in the journal and the store. Clones share their state.
#[derive(Clone)]
pub(crate) struct Execution(Arc<Shared>);

struct Shared {
    agent: Arc<dyn DynAgent>,
    /// Dependencies of the agent.
    dependencies: Arc<[Dependency]>,
    journal: Arc<Journal>,
    limits: Limits,
    running: TaskTracker,
    permits: Permits,
    contexts: Contexts,
    key_locks: Arc<KeyLocks>,
    /// True once the unfinished turns of an earlier process are recovered.
    recovered: watch::Sender<bool>,
    /// Tasks that could not be recovered.
    quarantine: Quarantine,
    /// Task that runs the retention sweeps.
    sweeper: Mutex<Option<AbortOnDropHandle<()>>>,
    /// Key for the secrets of messages whose turns other processes run.
    sealing: OnceLock<SealingKey>,
    /// Background work of a replica of a shared store.
    replica: Mutex<JoinSet<()>>,
}

impl Execution {
    pub(crate) fn new(agent: Arc<dyn DynAgent>, store: Arc<dyn Store>, limits: Limits, sources: Sources) -> Self {
        let journal = Journal::new(store, sources, limits.live_memory.clone());
        // A synchronous store does not outlive the process: there is nothing to recover.
        let (is_persistent, is_shared) = (journal.store().as_sync().is_none(), journal.is_shared());
        let parts = Arc::new(Shared {
            dependencies: agent.dyn_dependencies().into(),
            agent,
            journal,
            running: TaskTracker::new(),
            permits: Permits::new(&limits),
            contexts: Contexts::new(limits.context_bytes),
            limits,
            key_locks: Arc::default(),
            recovered: watch::Sender::new(!is_persistent || is_shared),
            quarantine: Quarantine::default(),
            sweeper: Mutex::default(),
            sealing: OnceLock::new(),
            replica: Mutex::default(),
        });
        if is_shared {
            parts.start_replica();
        } else if is_persistent {
            tokio::spawn(Arc::clone(&parts).recover());
        }
        Self(parts)
    }

    /// Sets the key for the secrets of messages whose turns other processes run.
    #[cfg(feature = "signing")]
    pub(crate) fn set_sealing_key(&self, key: Option<SealingKey>) {
        if let Some(key) = key {
            drop(self.0.sealing.set(key));
        }
    }

    /// Returns what the agent needs for its turns.
    pub(crate) fn dependencies(&self) -> &Arc<[Dependency]> {
        &self.0.dependencies
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.0.limits
    }

    pub(crate) fn journal(&self) -> &Arc<Journal> {
        &self.0.journal
    }

    /// Returns when the turn that processes the message has ended or is interrupted, with the task as it was then
    /// (3.2.2). Returns the current task earlier: shortly before the caller's deadline in `left`, or after
    /// [`Limits::send_timeout`] if that is set. Waits with a large task until there is memory for the reply.
    pub(crate) fn send(
        &self,
        mut request: SendRequest,
        left: Option<Duration>,
    ) -> impl Future<Output = Result<TurnReply, Error>> + Send {
        let reply_after = left.map(|left| left.saturating_sub(REPLY_MARGIN.min(left / 10)));
        let wait = [self.0.limits.send_timeout, reply_after].into_iter().flatten().min();
        let budget = request.responses.take();
        if !self.needs_route(&request) {
            return Either::Left(self.wait_for_turn(self.accept(request, None, watch_turn), (wait, left), budget));
        }
        Either::Right(Box::pin(async move {
            let (_owned, repeated) = match self.route(&mut request, left).await? {
                SendRoute::Recorded(key, seq) => return self.wait_for_earlier_send(&key, seq, wait).await,
                SendRoute::Here(owned, repeated) => (owned, repeated),
            };
            match self.wait_for_turn(self.accept(request, None, watch_turn), (wait, left), budget).await {
                Err(error) => {
                    let (key, seq) = self.find_duplicate(repeated, error).await?;
                    self.wait_for_earlier_send(&key, seq, wait).await
                }
                reply => reply,
            }
        }))
    }

    async fn wait_for_turn(
        &self,
        started: impl Future<Output = Result<(LiveRef, (oneshot::Receiver<TurnReply>, Seq)), Error>>,
        (wait, left): (Option<Duration>, Option<Duration>),
        budget: Option<ResponseBudget>,
    ) -> Result<TurnReply, Error> {
        let start = Instant::now();
        let (live, (reply, seq)) = started.await?;
        let mut waiter = Waiter { live: &live, reply };
        if let Some(reply) = within(wait, &mut waiter.reply).await {
            let bytes = live.memory();
            if let Some(budget) = budget.filter(|budget| reply.is_ok() && !budget.has_room(bytes)) {
                let left = left.map(|left| left.saturating_sub(start.elapsed() + REPLY_MARGIN.min(left / 10)));
                let max = left.map_or(REPLY_WAIT, |left| left.min(REPLY_WAIT));
                // Until then, the task counts as live. Boxed, so that the futures of sends stay small.
                drop(Box::pin(timeout(max, budget.wait_for_room(bytes))).await);
            }
            return reply.map_err(|_| wait_error(&live));
        }
        let left = left.map_or(ACCEPT_TIMEOUT, |left| left.saturating_sub(wait.unwrap_or_default()));
        match live.task_including(seq) {
            Some(Ok(task)) => Ok(TurnReply::Task(task)),
            Some(Err(durable)) => self.wait_for_commit(&live, durable, left).await,
            None => self.wait_for_commit(&live, &mut waiter.reply, left).await,
        }
    }

    /// Returns when the message is durable in a task (`returnImmediately`), with the task at that event. Updates that the
    /// agent sends at once are durable by then too, so that a client that polls right after the reply sees them.
    pub(crate) async fn start(&self, mut request: SendRequest, left: Option<Duration>) -> Result<TurnReply, Error> {
        let (mut owned, mut repeated) = (None, None);
        if self.needs_route(&request) {
            match Box::pin(self.route(&mut request, left)).await? {
                SendRoute::Recorded(key, _) => return Ok(TurnReply::Task(self.get(&key, None).await?.into_shared()?)),
                SendRoute::Here(task, key) => (owned, repeated) = (task, key),
            }
        }
        let time = left.map_or(COMMIT_WAIT, |left| left.min(COMMIT_WAIT));
        let (signal, polled) = oneshot::channel();
        let (live, reply) = self.accept(request, Some(signal), watch_commit).await?;
        drop(owned);
        // Committed now, because the agent may run for long before its first pause.
        live.flush();
        let reply = match self.wait_for_commit(&live, reply, time).await {
            Err(error) => {
                let (key, _) = Box::pin(self.find_duplicate(repeated, error)).await?;
                return Ok(TurnReply::Task(self.get(&key, None).await?.into_shared()?));
            }
            Ok(reply) => reply,
        };
        // There is no signal if the agent blocks its thread, or if the message waits for another turn.
        let updates = async {
            if polled.await.is_ok()
                && let Some(durable) = live.wait_for_accepted()
            {
                drop(durable.await);
            }
        };
        drop(timeout(time.min(FIRST_UPDATE_TIMEOUT), updates).await);
        Ok(reply)
    }

    /// Waits for a reply that is sent once a commit is durable.
    ///
    /// # Errors
    /// The reason why there is no reply; UNAVAILABLE, with an unknown outcome, after `wait`.
    async fn wait_for_commit(
        &self,
        live: &LiveRef,
        reply: impl Future<Output = Result<TurnReply, RecvError>>,
        wait: Duration,
    ) -> Result<TurnReply, Error> {
        match timeout(wait, reply).await {
            Ok(reply) => reply.map_err(|_| wait_error(live)),
            Err(_) => Err(outcome_unknown()),
        }
    }

    /// Returns a stream of events from this message on, until its turn ends.
    pub(crate) async fn stream(&self, mut request: SendRequest, history: HistoryLimit) -> Result<Reader, Error> {
        let (mut owned, mut repeated) = (None, None);
        if self.needs_route(&request) {
            match Box::pin(self.route(&mut request, None)).await? {
                SendRoute::Recorded(key, seq) => return Box::pin(self.stream_earlier_send(&key, seq, history)).await,
                SendRoute::Here(task, key) => (owned, repeated) = (task, key),
            }
        }
        let permit = self.0.permits.stream(&request.scope.owner)?;
        let (live, EventsStart { committed, seq, turns }) = self.accept(request, None, watch_events).await?;
        let next = committed.as_ref().map_or(seq, |(_, at)| at + 1);
        drop(owned);
        let recorded = repeated.as_ref().and_then(|_| live.wait_for_accepted());
        let mut reader = Reader::new(live.clone(), next, Some(turns), permit).with_history(history);
        reader.snapshot = committed.map(|(task, _)| (task, seq));
        // Another replica may be the first to commit the key.
        if let Some(recorded) = recorded
            && recorded.await.is_err()
        {
            let (key, seq) = Box::pin(self.find_duplicate(repeated, wait_error(&live))).await?;
            drop(reader);
            return Box::pin(self.stream_earlier_send(&key, seq, history)).await;
        }
        Ok(reader)
    }

    /// Returns a flag that becomes true once the unfinished turns of an earlier process have been recovered.
    pub(crate) fn recovered(&self) -> watch::Receiver<bool> {
        self.0.recovered.subscribe()
    }

    /// Returns a task, loaded into memory.
    async fn load(&self, key: &TaskKey) -> Result<LiveRef, Error> {
        self.0.wait_for_recovery().await?;
        self.0.quarantine.check(key)?;
        let journal = &self.0.journal;
        let known = if journal.is_shared() { journal.get(key) } else { None };
        let live = load(journal, key, self.0.limits.task_limits()).await?;
        // A task that was loaded just now is the newest one.
        match known {
            Some(_) => Box::pin(self.refresh(live)).await,
            None => Ok(live),
        }
    }

    /// Returns the committed task. `memory` is the reservation for the response.
    pub(crate) async fn get(&self, key: &TaskKey, memory: Option<&Reservation>) -> Result<Snapshot, Error> {
        let journal = &self.0.journal;
        if let Some(live) = journal.get(key)
            && (journal.is_current(&live) || journal.has_fault_planted(Fault::ReadFollowerState))
        {
            return live
                .committed()
                .map(|(task, _)| Snapshot::from(task))
                .ok_or_else(|| Error::task_not_found(key.id()));
        }
        self.0.quarantine.check(key)?;
        let store = &**journal.store();
        let _permit = self.0.permits.read(memory).await?;
        let found = async {
            let Some(mut stored) = store.load(key).await? else { return Ok(None) };
            stored.load_snapshot(store, key).await.map(Some)
        };
        match found.await {
            Ok(found) => {
                let found = found.ok_or_else(|| Error::task_not_found(key.id()))?;
                resize_reservation(memory, found.encoded_len())?;
                Ok(found)
            }
            Err(cause) => Err(Box::pin(unreadable(store, key, cause)).await),
        }
    }

    /// Returns a page of stored tasks. `memory` is the reservation for the response.
    pub(crate) async fn list(&self, query: &ListQuery, memory: Option<&Reservation>) -> Result<ListPage, Error> {
        let _permit = self.0.permits.read(memory).await?;
        let page = self.0.journal.store().list(query).await?;
        resize_reservation(memory, page.tasks.iter().map(Task::encoded_len).sum())?;
        Ok(page)
    }

    /// Stores a configuration of a task, with the secrets of the one that it replaces unless it has or clears them. Also
    /// returns its id if it is new, `None` if it replaced one with that id. `prefix` is the path of its fields in the
    /// request.
    ///
    /// # Errors
    /// `InvalidParams` if it leaves out a secret, and its URL has another origin than that of the one it replaces.
    pub(crate) async fn put_push(
        &self,
        key: &TaskKey,
        mut push: PushConfig,
        cleared: ClearedSecrets,
        prefix: &str,
    ) -> Result<(Arc<PushConfig>, Option<String>), Error> {
        if let Some(stored) = self.0.journal.store().get_push(key, &push.config.id).await?
            && let Err(field) = push.keep_secrets(&stored, cleared)
        {
            let why = "must be sent again: the URL has another origin than that of the configuration with this id; or \
                       delete that configuration first";
            return Err(Error::invalid_field(format!("{prefix}{field}"), why));
        }
        let (push, max) = (push.for_task(key), self.0.limits.push_configs);
        let result = self.0.journal.store().put_push(key, Arc::clone(&push), max).await?;
        if matches!(result, PutResult::Created | PutResult::Replaced) {
            self.0.journal.tell_observer(key, true, false);
        }
        match result {
            PutResult::Created => {
                let id = push.config.id.clone();
                Ok((push, Some(id)))
            }
            PutResult::Replaced => Ok((push, None)),
            PutResult::TaskNotFound => Err(Error::task_not_found(key.id())),
            PutResult::OwnerFull(full) => Err(store_full(full)),
            PutResult::Full => {
                let why = format!("task {} has {max} push notification configurations; delete one first", key.id());
                Err(limit_error("push_configs", why).with("taskId", key.id()))
            }
        }
    }

    /// Deletes a configuration of a task, if it exists. Returns whether the task exists.
    pub(crate) async fn delete_push(&self, key: &TaskKey, id: &str) -> Result<bool, Error> {
        let is_known = self.0.journal.store().delete_push(key, id).await?;
        self.0.journal.tell_observer_deleted(key);
        Ok(is_known)
    }

    /// Cancels a task, and returns it once it is canceled. The agent gets the metadata of the request. A task that is
    /// already canceled is returned at once.
    ///
    /// # Errors
    /// `TaskNotCancelable` if the task is in another terminal state, or reaches one first.
    pub(crate) async fn cancel(&self, key: &TaskKey, metadata: Option<Box<Struct>>) -> Result<Arc<Task>, Error> {
        let (live, requested) = match self.own(key).await? {
            Ownership::Here(live) => {
                let requested = live.request_cancel(metadata, 0).ok_or_else(ownership_changed)?;
                (live, requested)
            }
            Ownership::Elsewhere => self.cancel_elsewhere(key, metadata).await?,
        };
        let ended = match requested {
            Ok(task) => return canceled(task),
            Err(ended) => ended,
        };
        match self.wait_for_commit(&live, ended, self.0.limits.cancel_grace.saturating_add(COMMIT_WAIT)).await? {
            TurnReply::Task(task) => canceled(task),
            TurnReply::Message(_) | TurnReply::Refused(_) => Err(Error::task_not_found(key.id())),
        }
    }

    /// Returns the state of the engine for the metrics.
    pub(crate) fn gauges(&self) -> EngineGauges {
        let (turns, queued_turns) = self.0.permits.turns();
        let lease_age = self.0.journal.shared().map(|(_, replica)| replica.lease_age());
        EngineGauges { turns, queued_turns, lease_age, ..self.0.journal.gauges() }
    }

    /// Returns the use of the limits of turns and streams.
    pub(crate) fn limits_in_use(&self) -> [LimitUse; 3] {
        let Limits { turns, queued_turns, .. } = self.0.limits;
        let (running, queued) = self.0.permits.turns();
        let (streams, max_streams) = self.0.permits.streams();
        [
            LimitUse::new("turns", running, turns),
            LimitUse::new("queued_turns", queued, queued_turns),
            LimitUse::new("streams", streams, max_streams),
        ]
    }

    /// Drains and stops: rejects new work from now on, waits up to `grace` for running turns, then abandons them.
    pub(crate) async fn drain(&self, grace: Duration) {
        /// Maximum time for turns to stop, and for the last commits, after `grace`.
        const STOP_TIMEOUT: Duration = Duration::from_secs(2);
        let Shared { journal, running, .. } = &*self.0;
        drop(self.0.sweeper.lock().take());
        running.close();
        journal.enter_phase(Phase::Draining);
        let ended = async {
            running.wait().await;
            // Callers that wait for the end of a turn get it once it is durable.
            journal.wait_until_committed().await;
        };
        // Turns that run on are stopped by the next phase.
        drop(timeout(grace, ended).await);
        journal.enter_phase(Phase::Stopped);
        drop(timeout(STOP_TIMEOUT, running.wait()).await);
        drop(timeout(STOP_TIMEOUT, journal.wait_until_committed()).await);
        drop(timeout(STOP_TIMEOUT, self.0.leave()).await);
        journal.stop();
    }
}

/// Waiter for a reply. Removed from its task when the caller stops waiting, or disconnects.
struct Waiter<'a> {
    live: &'a LiveRef,
    reply: oneshot::Receiver<TurnReply>,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.reply.close();
        self.live.remove_closed_waiters();
    }
}

/// Waits for a future, at most for `limit`. Returns `None` if that has elapsed.
async fn within<F: Future>(limit: Option<Duration>, future: F) -> Option<F::Output> {
    match limit {
        Some(limit) => timeout(limit, future).await.ok(),
        None => Some(future.await),
    }
}

/// Returns a task, loaded into memory. Concurrent callers share one load.
async fn load(journal: &Arc<Journal>, key: &TaskKey, bounds: TaskLimits) -> Result<LiveRef, Error> {
    let store = &**journal.store();
    let load = async || match store.load(key).await {
        Ok(Some(stored)) => {
            let role = if journal.is_shared() { TaskRole::Follower } else { TaskRole::Runner(store.first_fence()) };
            live_task(journal, key, role, stored, bounds).await
        }
        Ok(None) => Err(Error::task_not_found(key.id())),
        Err(cause) => Err(unreadable(store, key, cause).await),
    };
    let live = journal.get_or_load(key, load).await?;
    if live.committed().is_some() {
        return Ok(live);
    }
    // A task that is not committed is not visible. But if its commit has no response yet, a shared store may have it.
    if !journal.is_shared() {
        return Err(Error::task_not_found(key.id()));
    }
    if let Some(committed) = live.wait_for_accepted() {
        drop(timeout(ACCEPT_TIMEOUT, committed).await);
    }
    if live.committed().is_some() { Ok(live) } else { Err(outcome_unknown()) }
}

/// Creates a live task from a stored one, if there is memory for it.
async fn live_task(
    journal: &Journal,
    key: &TaskKey,
    role: TaskRole,
    mut stored: StoredTask,
    bounds: TaskLimits,
) -> Result<LiveTask, Error> {
    let store = &**journal.store();
    // Before it is decoded. Later events are counted then.
    let bytes = stored.checkpoint.as_ref().map_or(0, |(_, task)| task.encoded_len());
    if !journal.memory().has_room(&key.scope().owner, bytes) {
        return Err(memory_full(journal.memory()));
    }
    let log = stored.log;
    let task = match stored.load_task(store, key).await {
        Ok(task) => task,
        Err(cause) => return Err(unreadable(store, key, cause).await),
    };
    let mut live = LiveTask::loaded(key.clone(), role, stored, task, bounds);
    if !live.has_ended() {
        live.set_log_summary(read_summary(log, store, key).await?);
    }
    if live.try_count_in(journal.memory()) { Ok(live) } else { Err(memory_full(journal.memory())) }
}

/// Returns the summary of a log, and reads it unless it was read with the row of its task.
async fn read_summary(read: Option<LogSummary>, store: &dyn Store, key: &TaskKey) -> Result<LogSummary, Unavailable> {
    match read {
        Some(summary) => Ok(summary),
        None => store.log_summary(key).await,
    }
}

/// Returns the error for a task that could not be read: INTERNAL if its data is damaged, which is permanent, otherwise
/// UNAVAILABLE.
async fn unreadable(store: &dyn Store, key: &TaskKey, cause: Unavailable) -> Error {
    match store.diagnose(key).await {
        Ok(Some(damaged)) => ErrorKind::Internal.because(format!("task {} can't be read", key.id())).hide(damaged),
        Ok(None) | Err(_) => cause.into(),
    }
}

/// Returns the task of a cancel, or an error if it is in another terminal state.
fn canceled(task: Arc<Task>) -> Result<Arc<Task>, Error> {
    if task.state() == TaskState::Canceled {
        return Ok(task);
    }
    let why = format!("task {} is {}", task.id, task.state().as_str_name());
    Err(ErrorKind::TaskNotCancelable.because(why).with("taskId", &*task.id))
}

fn task_ended(id: &str) -> Error {
    ErrorKind::TaskEnded.because(format!("task {id} is in a terminal state")).with("taskId", id)
}

/// Returns the error for a waiter of a task that got no reply.
fn wait_error(live: &LiveRef) -> Error {
    match live.wait_failure() {
        WaitFailure::NotCommitted(failure) => commit_error(failure),
        WaitFailure::Lost => ownership_changed(),
        WaitFailure::Unknown { exists: true } => outcome_unknown().with("taskId", live.key.id()),
        WaitFailure::Unknown { exists: false } => outcome_unknown(),
    }
}

/// Returns the error for a message or result that was not committed.
pub(crate) fn commit_error(failure: CommitFailure) -> Error {
    match failure {
        CommitFailure::Full(limit) => store_full(limit),
        CommitFailure::Duplicate => {
            unavailable("a message with this idempotency key was recorded by another process; retry the request")
        }
        CommitFailure::Unavailable => {
            unavailable("the store is unavailable; nothing was recorded, but the agent may have run; retry later")
        }
        CommitFailure::Rejected(Some(name)) => limit_error(
            name,
            format!("the message or its result exceeds the limit of the store ({name}); nothing was recorded"),
        ),
        CommitFailure::Rejected(None) => {
            ErrorKind::Internal.because("the store rejected the message or its result; nothing was recorded")
        }
    }
}

/// Returns the error for a task that has another writer, or whose server stops.
fn ownership_changed() -> Error {
    unavailable("task ownership changed; retry the request")
}

/// Returns the error for an operation with an unknown outcome: the message, or its result, may still be committed.
fn outcome_unknown() -> Error {
    unavailable("the outcome is not recorded yet, but may still be; read the task before a retry")
}

/// Returns the error for new work while the store is unavailable or the server drains.
fn not_accepting() -> Error {
    unavailable("the store is unavailable or the server is stopping; retry later")
}

/// Returns an UNAVAILABLE error with a retry delay.
fn unavailable(why: &'static str) -> Error {
    ErrorKind::Unavailable.because(why).retry_after(Duration::from_secs(1))
}

impl From<Unavailable> for Error {
    fn from(cause: Unavailable) -> Self {
        ErrorKind::Unavailable.because("the store does not answer").hide(cause).retry_after(Duration::from_secs(1))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.journal.stop();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::{
        engine::agent::{self, End},
        store::memory::Memory,
    };

    fn sent(scope: &Arc<Scope>, message: Message) -> SendRequest {
        SendRequest {
            scope: Arc::clone(scope),
            message,
            context: Box::default(),
            push: None,
            cleared: ClearedSecrets::default(),
            idempotency_key: None,
            responses: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn disconnected_caller_leaves_no_waiter() {
        let agent = agent::from_fn(|_, out| async move {
            out.working().await?;
            std::future::pending::<Result<End, agent::Error>>().await
        });
        let (execution, scope) = (
            Execution::new(Arc::new(agent), Arc::new(Memory::default()), Limits::default(), Sources::default()),
            Arc::default(),
        );
        let TurnReply::Task(task) = execution.start(sent(&scope, Message::user("go")), None).await.unwrap() else {
            panic!("reply is a message")
        };
        let live = execution.load(&TaskKey::new(&scope, &task.id)).await.unwrap();
        assert_eq!(live.waiting(), 0);
        for _ in 0..100 {
            let message = Message { task_id: task.id.clone(), ..Message::user("more") };
            let mut send = Box::pin(execution.send(sent(&scope, message), None));
            assert!((&mut send).now_or_never().is_none());
            assert_eq!(live.waiting(), 1);
        }
        assert_eq!(live.waiting(), 0);
        execution.drain(Duration::ZERO).await;
    }
}
