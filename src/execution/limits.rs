//! How much there may be of everything, and what is said at a limit: its name, which is that of its setting.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use crate::{
    error::{Error, ErrorKind},
    store::Full,
    task::TaskLimits,
};

/// After this, what was refused at a limit may be taken.
pub(super) const SOON: Duration = Duration::from_secs(1);

/// Minimum of the maximum size of an event: the status that says why a turn failed has to fit.
const MIN_EVENT_BYTES: usize = 1024;

/// How long things may take, and how much there may be. Each error of these says the name of its limit.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// After this, a turn that has said nothing yet has a task all the same. 100 ms.
    pub real_after: Duration,
    /// What an agent says sooner than this after what was written last is written with what it says next: the first
    /// and the last of what it says at once, and of a burst all that came in so long. Zero writes at each pause that
    /// the agent makes. 1 ms.
    pub pace: Duration,
    /// After this, a turn has failed. One hour.
    pub turn: Duration,
    /// After so long without a word of its agent, a turn has failed. An agent that waits for its caller's authorisation, or
    /// for the store, may be silent. Zero, which is never.
    pub idle: Duration,
    /// How long an agent that was canceled may take to end by itself. 5 s.
    pub cancel: Duration,
    /// Timeout of a blocking send; the client then gets the task as it is, which is not terminal and may be SUBMITTED or
    /// WORKING. Unlimited by default: the send waits until the task is terminal or interrupted (3.2.2), and `turn` ends what
    /// never is. Zero answers as soon as the message is stored.
    pub wait: Option<Duration>,
    /// How old a stream gets. Then it is cut, and can be taken up again where it was. Zero is for ever. One day.
    pub stream_age: Duration,
    /// How many messages may wait for a task whose agent is busy. 256.
    pub waiting: usize,
    /// How many parts a message may have. 1000.
    pub parts: usize,
    /// How many tasks a message may refer to. 16.
    pub references: usize,
    /// How many events a task may have: what its agent says, and the messages that it is sent. The turn of an agent
    /// that says more fails. 200 000.
    pub events: u64,
    /// How many artifacts a task may have. The turn of an agent that begins another fails. 1000.
    pub artifacts: usize,
    /// Maximum size of an event in bytes, encoded in protobuf: of a chunk of an artifact, of a status with its message, and of a
    /// message of a client. The turn of an agent that sends a larger one fails. Clients of gRPC take 4 MiB unless they say
    /// otherwise. 16 MiB; 1 KiB at least.
    pub event_bytes: usize,
    /// Maximum size of an artifact in bytes. The turn of an agent that adds more to it fails. 64 MiB.
    pub artifact_bytes: usize,
    /// Maximum size of a task in bytes: of all its events, messages of its client included. The turn of an agent that says
    /// more fails, and further messages are refused. 128 MiB.
    pub task_bytes: usize,
    /// How many turns may run at once, of all tasks. 10 000.
    pub turns: usize,
    /// Maximum number of turns of one task owner that run at once, in all tenants together. Callers without a name share one
    /// owner. 5000.
    pub turns_per_owner: usize,
    /// How many streams may be open at once, of all tasks. 10 000.
    pub streams: usize,
    /// How many streams of a task may be open when another subscribes to it. 1000.
    pub subscribers: usize,
    /// How many push notification configurations a task may have. 32.
    pub max_push_configs: usize,
    /// Maximum size of a page of `ListTasks` in bytes of protobuf. A page that reaches it ends early, with the token of the
    /// next page; one task larger than this has a page of its own. 8 MiB.
    pub page_bytes: usize,
}

impl Limits {
    /// How much there may be of a task.
    pub(crate) fn bounds(&self) -> TaskLimits {
        let Self { events, artifacts, artifact_bytes, task_bytes, .. } = *self;
        let event_bytes = self.event_bytes.max(MIN_EVENT_BYTES);
        TaskLimits { events, artifacts, event_bytes, artifact_bytes, task_bytes }
    }
}

impl Default for Limits {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self {
            real_after: Duration::from_millis(100),
            pace: Duration::from_millis(1),
            turn: s(3600),
            idle: Duration::ZERO,
            cancel: s(5),
            wait: None,
            stream_age: s(86_400),
            waiting: 256,
            parts: 1000,
            references: 16,
            events: 200_000,
            artifacts: 1000,
            event_bytes: 16 << 20,
            artifact_bytes: 64 << 20,
            task_bytes: 128 << 20,
            turns: 10_000,
            turns_per_owner: 5000,
            streams: 10_000,
            subscribers: 1000,
            max_push_configs: 32,
            page_bytes: 8 << 20,
        }
    }
}

/// What may be had by so many at once, until it is dropped.
pub(super) struct Permits {
    turns: Arc<Semaphore>,
    owners: Arc<OwnerTurns>,
    streams: Arc<Semaphore>,
    reads: Semaphore,
    limits: Limits,
}

/// Maximum number of tasks and pages that are read from the store at once. Each may have some MB, which nothing counts before it
/// is encoded; more at once would only wait for a processor.
const READS: usize = 4;

/// Number of running turns of each task owner that has any.
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
        let of = |limit: usize| Arc::new(Semaphore::new(limit.min(Semaphore::MAX_PERMITS)));
        let (turns, streams, reads) = (of(limits.turns), of(limits.streams), Semaphore::new(READS));
        Self { turns, owners: Arc::default(), streams, reads, limits: *limits }
    }

    /// Of a turn that begins.
    pub(super) fn turn(&self, owner: &Arc<str>) -> Result<TurnPermit, Error> {
        let turn = Arc::clone(&self.turns).try_acquire_owned().map_err(|_| {
            let why = format!("{} turns run, of at most so many at once; try again", self.limits.turns);
            limit("turns", why).retry_after(SOON)
        })?;
        self.permit(turn, owner, self.limits.turns_per_owner)
    }

    /// Of a turn that may wait until another has ended. An earlier process has admitted it, so the limit of its owner does
    /// not hold it up, but it counts.
    pub(super) async fn next_turn(&self, owner: &Arc<str>) -> Option<TurnPermit> {
        // They are never closed.
        let turn = Arc::clone(&self.turns).acquire_owned().await.ok()?;
        self.permit(turn, owner, usize::MAX).ok()
    }

    /// Counts a turn of an owner who may have `most`.
    fn permit(&self, turn: OwnedSemaphorePermit, owner: &Arc<str>, most: usize) -> Result<TurnPermit, Error> {
        let mut owners = self.owners.lock();
        let running = owners.get(owner).copied().unwrap_or_default();
        if running >= most {
            let why = format!("{running} turns of yours run, of at most {most} at once; try again");
            return Err(limit("turns_per_owner", why).retry_after(SOON));
        }
        owners.insert(Arc::clone(owner), running.saturating_add(1));
        Ok(TurnPermit { _turn: turn, owner: Arc::clone(owner), owners: Arc::clone(&self.owners) })
    }

    /// Of a read from the store, which waits for the reads before it.
    pub(super) async fn read(&self) -> Option<SemaphorePermit<'_>> {
        // They are never closed.
        self.reads.acquire().await.ok()
    }

    /// Of a stream that begins.
    pub(super) fn stream(&self) -> Result<OwnedSemaphorePermit, Error> {
        Arc::clone(&self.streams).try_acquire_owned().map_err(|_| {
            let why = format!("{} streams are open, of at most so many at once; try again", self.limits.streams);
            limit("streams", why).retry_after(SOON)
        })
    }
}

/// What there may be so much of, by the name that it has in the settings.
pub(super) fn limit(name: &'static str, why: String) -> Error {
    ErrorKind::ResourceExhausted.because(why).with("limit", name)
}

/// Nothing that the store keeps has ended, and could make room.
pub(super) fn full(Full { limit: name, most, .. }: Full) -> Error {
    let whose = if name == Full::per_owner(most).limit { " of yours" } else { "" };
    let why = format!("{most} tasks{whose} are kept, of at most so many, and none of them has ended; try again");
    limit(name, why).retry_after(SOON)
}
