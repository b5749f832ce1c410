//! Limits of the execution, permits of running turns and streams, and the errors for exceeded limits.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use crate::{
    error::{Error, ErrorKind},
    response_budget::Reservation,
    store::Full,
    task::TaskLimits,
};

/// Retry delay of an error for a limit on what is in progress.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Lower bound of the maximum size of an event: the status of a failed turn has to fit.
const MIN_EVENT_BYTES: usize = 1024;

options! {
    /// Limits of the execution of turns: times, numbers and sizes. An error at a limit names it.
    #[derive(Clone, Copy, Debug)]
    #[non_exhaustive]
    pub struct Limits {
        /// Time after which a turn has a task, even if its agent has not sent an update. 100 ms by default.
        pub task_delay: Duration,
        /// Minimum interval between two commits of a running turn; updates in between are batched. Zero commits at each
        /// pause of the agent. 1 ms by default.
        pub commit_interval: Duration,
        /// Maximum duration of one turn. A turn that exceeds it fails. 1 h by default.
        pub turn_deadline: Duration,
        /// Idle timeout of an agent: a turn without an update for this long fails. Waiting for authorization or for the
        /// store does not count. Zero, the default, disables it.
        pub turn_idle_timeout: Duration,
        /// Grace period in which a canceled agent can return by itself. 5 s by default.
        pub cancel_grace: Duration,
        /// Timeout of a blocking send; the client then gets the current task, which is not terminal and may be
        /// SUBMITTED or WORKING. Unlimited by default: the send waits until the task is terminal or interrupted
        /// (3.2.2), and `turn_deadline` bounds that. Zero answers as soon as the message is stored.
        pub send_timeout: Option<Duration>,
        /// Maximum age of a stream. Then it ends, and its client can resume it. Zero: no limit. 24 h by default.
        pub stream_max_age: Duration,
        /// Maximum number of messages that wait for a task whose agent is busy. 256 by default.
        pub queued_messages: usize,
        /// Maximum number of parts in a message. 1000 by default.
        pub parts: usize,
        /// Maximum number of tasks that a message may reference. 16 by default.
        pub references: usize,
        /// Maximum number of events of a task, including its client's messages. A turn that exceeds it fails. 200 000
        /// by default.
        pub events: u64,
        /// Maximum number of artifacts of a task. A turn that exceeds it fails. 1000 by default.
        pub artifacts: usize,
        /// Maximum size of an event in bytes, encoded in protobuf: of an artifact chunk, of a status with its message,
        /// of a client's message. A turn that exceeds it fails. Clients of gRPC accept 4 MiB unless configured
        /// otherwise. 16 MiB by default; minimum 1 KiB.
        pub event_bytes: usize,
        /// Maximum size of an artifact in bytes. A turn that exceeds it fails. 64 MiB by default.
        pub artifact_bytes: usize,
        /// Maximum total size in bytes of all events of a task, including its client's messages. A turn that exceeds it
        /// fails, and further messages are rejected. 128 MiB by default.
        pub task_bytes: usize,
        /// Maximum total size in bytes of the events of all tasks of a context. A turn that exceeds it fails, and
        /// further messages are rejected. The size of a context without live tasks is read from the store with its next
        /// message, and limits new tasks from then on. It is read again before a message is rejected, once a second at
        /// most: deleted, evicted and expired tasks do not count. Events that end a turn are accepted beyond it. Zero
        /// rejects all messages, `usize::MAX` disables it. 1 GiB by default.
        pub context_bytes: usize,
        /// Maximum number of running turns, over all tasks. 10 000 by default.
        pub turns: usize,
        /// Maximum number of running turns of one task owner, over all tenants. Callers without a name share one owner.
        /// 5000 by default.
        pub turns_per_owner: usize,
        /// Maximum number of open streams, over all tasks. 10 000 by default.
        pub streams: usize,
        /// Maximum number of open streams of one task. Further subscriptions are rejected; streaming sends are not.
        /// 1000 by default.
        pub streams_per_task: usize,
        /// Maximum number of push notification configurations per task. 32 by default.
        pub push_configs: usize,
        /// Maximum size of a page of `ListTasks` in bytes, encoded in protobuf. A page that reaches it ends early, with
        /// a token for the next page. A larger task gets a page of its own. 8 MiB by default.
        pub page_bytes: usize,
        /// Maximum size of the history of a task in a response, in bytes, encoded in protobuf: the newest messages that
        /// fit, whatever `historyLength` requests. The newest message is always included; zero leaves that alone. 8 MiB
        /// by default.
        pub history_bytes: usize,
    }
}

impl Limits {
    /// Limits of a single task.
    pub(crate) fn task_limits(&self) -> TaskLimits {
        let Self { events, artifacts, artifact_bytes, task_bytes, context_bytes, .. } = *self;
        let event_bytes = self.event_bytes.max(MIN_EVENT_BYTES);
        TaskLimits { events, artifacts, event_bytes, artifact_bytes, task_bytes, context_bytes }
    }
}

impl Default for Limits {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            task_delay: Duration::from_millis(100),
            commit_interval: Duration::from_millis(1),
            turn_deadline: seconds(3600),
            turn_idle_timeout: Duration::ZERO,
            cancel_grace: seconds(5),
            send_timeout: None,
            stream_max_age: seconds(86_400),
            queued_messages: 256,
            parts: 1000,
            references: 16,
            events: 200_000,
            artifacts: 1000,
            event_bytes: 16 << 20,
            artifact_bytes: 64 << 20,
            task_bytes: 128 << 20,
            context_bytes: 1 << 30,
            turns: 10_000,
            turns_per_owner: 5000,
            streams: 10_000,
            streams_per_task: 1000,
            push_configs: 32,
            page_bytes: 8 << 20,
            history_bytes: 8 << 20,
        }
    }
}

/// Semaphores of running turns, open streams and reads from the store.
pub(super) struct Permits {
    turns: Arc<Semaphore>,
    owners: Arc<OwnerTurns>,
    streams: Arc<Semaphore>,
    reads: Semaphore,
    limits: Limits,
}

/// Maximum number of tasks and pages that are read from the store at once. Each may have some MB, and more reads at once
/// would only wait for a processor.
const READS: usize = 4;

/// Memory reserved for a read, in pages of the maximum size: stored, decoded, and encoded form.
const PAGES_PER_READ: usize = 3;

/// Memory of a response, in multiples of its known size: stored, decoded, and encoded form.
const COPIES: usize = 3;

/// Number of running turns by task owner.
type OwnerTurns = Mutex<HashMap<Arc<str>, usize>>;

/// Permit of a running turn. It counts against all turns and against those of its owner until it is dropped.
pub(super) struct TurnPermit {
    _turn: OwnedSemaphorePermit,
    owner: Arc<str>,
    owners: Arc<OwnerTurns>,
}

impl Drop for TurnPermit {
    fn drop(&mut self) {
        if let Entry::Occupied(mut turns) = self.owners.lock().entry(Arc::clone(&self.owner)) {
            *turns.get_mut() = turns.get().saturating_sub(1);
            if *turns.get() == 0 {
                turns.remove();
            }
        }
    }
}

impl Permits {
    pub(super) fn new(limits: &Limits) -> Self {
        let semaphore = |limit: usize| Arc::new(Semaphore::new(limit.min(Semaphore::MAX_PERMITS)));
        let (turns, streams, reads) = (semaphore(limits.turns), semaphore(limits.streams), Semaphore::new(READS));
        Self { turns, owners: Arc::default(), streams, reads, limits: *limits }
    }

    /// Returns the number of running turns.
    pub(super) fn running_turns(&self) -> usize {
        self.limits.turns.min(Semaphore::MAX_PERMITS).saturating_sub(self.turns.available_permits())
    }

    /// Acquires the permit of a new turn.
    pub(super) fn turn(&self, owner: &Arc<str>) -> Result<TurnPermit, Error> {
        let turn = Arc::clone(&self.turns).try_acquire_owned().map_err(|_| {
            let why = format!("{} turns are running; retry later (limits.turns)", self.limits.turns);
            limit_error("turns", why).retry_after(RETRY_AFTER)
        })?;
        self.permit(turn, owner, self.limits.turns_per_owner)
    }

    /// Waits for the permit of a recovered turn. An earlier process has admitted it: it counts against the limit of its
    /// owner, but does not wait for that.
    pub(super) async fn wait_for_turn(&self, owner: &Arc<str>) -> Option<TurnPermit> {
        // The semaphore is never closed.
        let turn = Arc::clone(&self.turns).acquire_owned().await.ok()?;
        self.permit(turn, owner, usize::MAX).ok()
    }

    /// Counts a turn of an owner, unless there are `max` already.
    fn permit(&self, turn: OwnedSemaphorePermit, owner: &Arc<str>, max: usize) -> Result<TurnPermit, Error> {
        let mut owners = self.owners.lock();
        let running = owners.get(owner).copied().unwrap_or_default();
        if running >= max {
            let why = format!("{running} of your turns are running; retry later (limits.turns_per_owner)");
            return Err(limit_error("turns_per_owner", why).retry_after(RETRY_AFTER));
        }
        owners.insert(Arc::clone(owner), running.saturating_add(1));
        Ok(TurnPermit { _turn: turn, owner: Arc::clone(owner), owners: Arc::clone(&self.owners) })
    }

    /// Waits for the permit of a read from the store, and then reserves memory.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if too much memory is in use.
    pub(super) async fn read(&self, memory: Option<&Reservation>) -> Result<Option<SemaphorePermit<'_>>, Error> {
        // The semaphore is never closed.
        let permit = self.reads.acquire().await.ok();
        if let Some(memory) = memory {
            memory.reserve_for_read(self.limits.page_bytes.saturating_mul(PAGES_PER_READ))?;
        }
        Ok(permit)
    }

    /// Acquires the permit of a new stream.
    pub(super) fn stream(&self) -> Result<OwnedSemaphorePermit, Error> {
        Arc::clone(&self.streams).try_acquire_owned().map_err(|_| {
            let why = format!("{} streams are open; close some or retry later (limits.streams)", self.limits.streams);
            limit_error("streams", why).retry_after(RETRY_AFTER)
        })
    }
}

/// Shrinks the reservation of a read to that of a response with this many bytes.
///
/// # Errors
/// [`ErrorKind::Unavailable`] if they exceed the budget.
pub(super) fn resize_reservation(memory: Option<&Reservation>, bytes: usize) -> Result<(), Error> {
    memory.map_or(Ok(()), |memory| memory.resize(bytes.saturating_mul(COPIES)))
}

/// Returns the error for an exceeded limit, by the name of its setting.
pub(super) fn limit_error(name: &'static str, why: String) -> Error {
    ErrorKind::ResourceExhausted.because(why).with("limit", name)
}

/// Returns the error for a store at its maximum number of tasks, none of which can be evicted.
pub(crate) fn store_full(full: Full) -> Error {
    let Full { limit: name, max, .. } = full;
    if full.is_push() {
        let why = format!("your tasks have {max} push notification configurations; delete some first (limits.{name})");
        return limit_error(name, why);
    }
    let whose = if name == Full::per_owner(max).limit { " of your" } else { "" };
    let why = format!("{max}{whose} tasks are stored, and none has ended; retry later (limits.{name})");
    limit_error(name, why).retry_after(RETRY_AFTER)
}
