//! Live task: in-memory state of a task behind one short lock, without I/O. It admits events, holds the committed task,
//! and tracks waiters and readers.
//!
//! Accepted events are `pending`, then in flight to the store. Once durable, they are applied to the committed task and
//! the watermark advances. Only committed state is visible to clients.

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

pub(crate) use self::turn_record::LastError;
use self::turn_record::OpenTurn;
pub(super) use self::{
    commit::apply_to_checkpoint,
    turn_record::{TurnFailure, outcome_of},
};
use super::{
    failure::{CommitFailure, LimitExceeded},
    memory::{Charge, LiveMemory, Refusal},
    turn_context::MessageContexts,
    turns::{AnsweredInterruption, QueuedMessage, Turns, is_plain_working},
    waiters::{TurnReply, WaitCondition, Wakeups},
};
use crate::{
    base::clock::Millis,
    protocol::{
        event::{Ends, Event, EventFlags, Fence, Position, Seq, chunk_size},
        pb::{
            v1::{Task, TaskArtifactUpdateEvent, TaskStatus, stream_response::Payload},
            wkt::{Struct, millis, timestamp},
        },
        task::{Admission, ContextBytes, LimitViolation, TaskLimits, can_join, join_chunks},
    },
    store::{IdempotencyRecord, LogSummary, PushConfig, StoredTask, TaskKey, TurnRecord},
};

mod commit;
mod commit_failure;
mod turn_record;
mod turn_span;

/// Maximum number of events of an agent that are accepted but not durable.
const MAX_PENDING_EVENTS: usize = 64;

/// Maximum bytes of events of an agent that are accepted but not durable. One event may exceed it.
const MAX_PENDING_BYTES: usize = 4 << 20;

/// Maximum number of events cached for readers. Slower readers read from the store.
pub(super) const MAX_CACHED_EVENTS: usize = 256;

/// Maximum approximate bytes of events cached for readers. One event may exceed it.
pub(super) const MAX_CACHED_BYTES: usize = 256 << 10;

/// Maximum size of joined chunks of an artifact, in bytes.
const MAX_JOINED_BYTES: usize = 1024;

/// Minimum bytes of events between two checkpoints of a task.
const MIN_CHECKPOINT_BYTES: usize = 16 * 1024;

/// A task in memory.
pub(crate) struct LiveTask {
    pub(crate) key: TaskKey,
    pub(crate) context: Arc<str>,
    state: Mutex<LiveState>,
    /// Wakes readers, and an agent that waits for the store, after each commit and when the task is lost. Waiters must
    /// create their future before they release the lock under which they find nothing, so that they miss no change.
    /// Created for the first waiter.
    changed: OnceLock<Arc<Notify>>,
    /// Wakes the runner and its agent at a cancel, a drain or a limit. Waiters as for `changed`.
    pub(crate) control: Notify,
}

/// Role of this process for a task. Over a store that no other process uses, it runs every task in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskRole {
    /// Runs the turns of the task. Its events have this fencing token.
    Runner(Fence),
    /// A commit that ends the ownership of the task is in flight: until its outcome is known, nothing is accepted.
    Releasing(Fence),
    /// Follows the events that another process commits, and changes nothing.
    Follower,
}

/// Mutable state of a live task.
pub(super) struct LiveState {
    /// Admission state for the next event.
    pub(super) admission: Admission,
    /// Role of this process for the task.
    pub(super) role: TaskRole,
    /// Changes that are accepted and not durable.
    pub(super) accepted: Accepted,
    /// Committed state.
    pub(super) durable: Durable,
    /// Turns, and the messages that wait for them.
    pub(super) turn: TurnState,
    /// Callers, readers and agents that wait.
    pub(super) waiters: Waiters,
    /// Set once there is a task. Before, the turn may still reply with a plain message.
    pub(super) has_task: bool,
    /// Set if the state is invalid: another writer has the task, or there never was one.
    pub(super) is_lost: bool,
    /// Set while the task is queued in its lane or its change is in flight.
    pub(super) queued: bool,
    /// Reason why the last change was not committed.
    pub(super) commit_failure: Option<CommitFailure>,
    /// Number of changes that the store has rejected.
    rejections: u32,
    /// Memory of the task.
    pub(super) charge: Charge,
}

/// Accepted changes of a task that are not durable: events, changes of the row, and what is committed with them.
#[derive(Default)]
pub(super) struct Accepted {
    /// Accepted events that were not sent to the store.
    pending: Vec<Event>,
    /// Set until the first commit: the first event precedes `pending`, and is created with that commit.
    is_new: bool,
    /// Task at its first event, until that is durable.
    pub(super) initial_task: Option<Arc<Task>>,
    /// Bytes of the last pending chunk, including those joined to it.
    joined_bytes: usize,
    /// Time at which there was first more than one pending event.
    oldest_pending_since: Option<Instant>,
    /// Set if the row has changes without an event.
    pub(super) row_changed: bool,
    /// Time of the newest status.
    pub(super) status_time: Millis,
    /// Contexts of the messages that are not answered yet.
    pub(super) contexts: MessageContexts,
    /// Idempotency records for the next commit.
    pub(super) idempotency_records: Vec<IdempotencyRecord>,
    /// Push configuration for the first commit.
    push: Option<Arc<PushConfig>>,
    /// Bytes of events sent to the store.
    bytes_sent: usize,
    /// Number of events sent to the store and not acknowledged.
    in_flight: usize,
    /// Number of the last accepted mail.
    pub(super) mail_read: u64,
    /// Set while `agent_state` is uncommitted.
    agent_state_changed: bool,
    /// Records of turns that have ended before the newest one, for the next commit, each with whether its beginning is stored.
    pub(super) ended_turns: Vec<(TurnRecord, bool)>,
}

/// Committed state of a task, which is visible to clients, and the cache of its newest events.
#[derive(Default)]
pub(super) struct Durable {
    /// Position of the last durable event: the watermark.
    position: Option<Position>,
    /// Committed task. Copied on write if it is shared.
    pub(super) task: Option<Arc<Task>>,
    /// Turns as of the watermark.
    pub(super) turns: Turns,
    /// Number of the last mail whose acceptance is durable.
    pub(super) mail_read: u64,
    /// The row has an open turn. Known only for a task that was loaded and is followed.
    pub(super) is_open: bool,
    /// Newest durable events, cached for readers.
    cache: VecDeque<Event>,
    /// Approximate bytes of `cache`.
    cache_bytes: usize,
    /// Bytes of durable events.
    bytes: usize,
    /// Bytes of events since the last checkpoint.
    bytes_since_checkpoint: usize,
    /// Bytes of events up to the last checkpoint.
    checkpoint_bytes: usize,
}

/// State of the turns of a task and of their agent.
#[derive(Default)]
pub(super) struct TurnState {
    /// Number of turns that had ended when the task was loaded.
    pub(super) earlier: u32,
    /// Number of the newest turn since the task was loaded.
    pub(super) number: u32,
    /// Number of the newest turn for which the agent has been called, in this process.
    pub(super) begun: u32,
    /// Set while the newest turn is running.
    pub(super) is_running: bool,
    /// Number of turns whose end is durable.
    pub(super) ended: u32,
    /// Record of the newest turn. Boxed, because glibc has no cache of freed blocks of more than 1032 bytes, and a live task would
    /// be one. `None`: there was no turn since the task was loaded.
    pub(super) open: Option<Box<OpenTurn>>,
    /// Interruption that the newest turn answers, if it answers one.
    pub(super) answered: Option<Box<AnsweredInterruption>>,
    /// Messages that wait for the next turn.
    pub(super) inbox: VecDeque<QueuedMessage>,
    /// Number of attempts to run the newest turn.
    pub(super) attempt: u32,
    /// Number of these attempts that a drain of the server interrupted.
    pub(super) drained: u32,
    /// Last message given to a turn.
    pub(super) delivered_seq: Seq,
    /// Set while the agent is being polled. Its output is committed together when it pauses.
    pub(super) agent_polled: bool,
    /// Set once a cancel is requested.
    pub(super) cancel_requested: bool,
    /// Metadata of the first cancel request that has any.
    pub(super) cancel_metadata: Option<Box<Struct>>,
    /// Limit that the turn has exceeded, or rejection of its changes by the store. Either ends the turn.
    pub(super) exceeded: Option<LimitExceeded>,
    /// Number of updates from the agent.
    pub(super) updates: u64,
    /// Number of events rejected by admission.
    pub(super) rejected_events: u64,
    /// State saved by the agent for its next turn.
    pub(super) agent_state: Option<Bytes>,
}

/// Callers, readers and agents that wait for a task.
#[derive(Default)]
pub(super) struct Waiters {
    /// Callers that wait for a condition.
    pub(super) conditions: Vec<(WaitCondition, oneshot::Sender<TurnReply>)>,
    /// Number of readers. Events are cached while there are any.
    pub(super) readers: usize,
    /// Reply of the turn instead of a task, for the stream of the send.
    pub(super) reply: Option<TurnReply>,
    /// Set once the server has stopped. New waiters fail at once.
    pub(super) stopped: bool,
}

impl LiveTask {
    /// Creates a new task, which this process runs.
    pub(crate) fn new(key: TaskKey, fence: Fence, task: Task, time: Millis, limits: TaskLimits) -> Self {
        let context = task.context_id.as_str().into();
        let mut inner = LiveState::empty(Admission::new(&task, 1, limits), TaskRole::Runner(fence), time);
        inner.accepted.pending = Vec::with_capacity(4);
        (inner.accepted.initial_task, inner.accepted.is_new, inner.turn.delivered_seq, inner.turn.attempt) =
            (Some(Arc::new(task)), true, 1, 1);
        Self::from_state(key, context, inner)
    }

    /// Creates a live task from its stored state.
    pub(crate) fn loaded(key: TaskKey, role: TaskRole, stored: StoredTask, task: Task, limits: TaskLimits) -> Self {
        let StoredTask { position: at, row, agent_state: saved, turn_contexts, .. } = stored;
        let time = task.status.as_ref().and_then(|status| status.timestamp.as_ref()).map_or(row.time, millis);
        let mut inner = LiveState::empty(Admission::new(&task, at.seq, limits), role, time);
        (inner.durable.position, inner.durable.task, inner.has_task, inner.turn.agent_state) =
            (Some(at), Some(Arc::new(task)), true, saved);
        (inner.durable.turns, inner.durable.is_open) = (Turns::loaded(row.open), row.open);
        (inner.turn.delivered_seq, inner.turn.cancel_requested) = (row.delivered_seq, row.cancel_requested);
        (inner.turn.attempt, inner.turn.drained) = (row.attempt, row.drained);
        inner.accepted.contexts = MessageContexts::loaded(turn_contexts.as_deref());
        Self::from_state(key, row.context, inner)
    }

    fn from_state(key: TaskKey, context: Arc<str>, state: LiveState) -> Self {
        Self { key, context, state: Mutex::new(state), changed: OnceLock::new(), control: Notify::new() }
    }

    /// Returns the state of a loaded task.
    pub(super) fn into_state(self) -> LiveState {
        self.state.into_inner()
    }

    /// Sets the size of the log of a loaded task, and the number of its turns.
    pub(crate) fn set_log_summary(&mut self, LogSummary { bytes, ended_turns }: LogSummary) {
        let inner = self.state.get_mut();
        inner.turn.earlier = ended_turns;
        inner.admission.set_log_bytes(bytes);
        (inner.accepted.bytes_sent, inner.durable.bytes) = (inner.admission.bytes(), inner.admission.bytes());
    }

    /// Counts the task in a memory budget, if it fits.
    pub(crate) fn try_count_in(&mut self, memory: &LiveMemory) -> bool {
        let inner = self.state.get_mut();
        inner.charge = Charge::new(memory, &self.key.scope().owner);
        inner.reserve(0, false).is_ok()
    }

    /// Counts the task in a memory budget, which it may exceed.
    pub(crate) fn count_in(&mut self, memory: &LiveMemory) {
        let inner = self.state.get_mut();
        inner.charge = Charge::new(memory, &self.key.scope().owner);
        let bytes = inner.memory();
        inner.charge.grow(bytes);
    }

    /// Returns whether the committed task is in a terminal state.
    pub(crate) fn has_ended(&self) -> bool {
        self.lock().has_ended()
    }

    /// Checks the message that starts a task against the limits, and counts it in its context if that may have other tasks.
    pub(crate) fn check_first(&mut self, context: Option<Arc<ContextBytes>>) -> Result<(), LimitViolation> {
        self.state.get_mut().admission.check_first(context)
    }

    /// Sets the push configuration with which the task starts.
    pub(crate) fn set_push_config(&mut self, push: Option<Arc<PushConfig>>) {
        self.state.get_mut().accepted.push = push;
    }

    /// Returns the memory of the task in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.lock().memory()
    }

    /// Locks the state.
    pub(super) fn lock(&self) -> MutexGuard<'_, LiveState> {
        self.state.lock()
    }

    /// Returns the notification of readers, and of an agent that waits for the store.
    pub(super) fn changed(&self) -> &Arc<Notify> {
        self.changed.get_or_init(Arc::default)
    }

    /// Sends wake-ups and replies. Must be called without the lock.
    pub(super) fn send_wakeups(&self, wakeups: Wakeups) {
        let Wakeups { changed, control, reply, replies } = wakeups;
        for (sender, reply) in reply.into_iter().chain(replies) {
            // The receiver may have been dropped.
            drop(sender.send(reply));
        }
        if changed && let Some(waiting) = self.changed.get() {
            waiting.notify_waiters();
        }
        if control {
            self.control.notify_waiters();
        }
    }
}

impl LiveState {
    fn empty(admission: Admission, role: TaskRole, time: Millis) -> Self {
        // The first message of a task comes from the client, and does not count as pending output of the agent.
        let bytes = admission.bytes();
        Self {
            admission,
            role,
            accepted: Accepted { status_time: time, bytes_sent: bytes, ..Accepted::default() },
            durable: Durable { bytes, ..Durable::default() },
            turn: TurnState::default(),
            waiters: Waiters::default(),
            has_task: false,
            is_lost: false,
            queued: false,
            commit_failure: None,
            rejections: 0,
            charge: Charge::default(),
        }
    }

    /// Returns the fencing token of new events; of a follower, that of the last durable one.
    pub(super) fn fence(&self) -> Fence {
        match self.role {
            TaskRole::Runner(fence) | TaskRole::Releasing(fence) => fence,
            TaskRole::Follower => self.durable.position.map_or(0, |position| position.fence),
        }
    }

    // Acceptance of events.

    /// Accepts an event and assigns its sequence number, or rejects it. Every event passes here, so the first terminal
    /// state is final. A follower accepts nothing.
    pub(super) fn accept(&mut self, event: Event, mark: EventFlags) -> Result<Event, LimitViolation> {
        let TaskRole::Runner(fence) = self.role else { return Err(LimitViolation::Terminal) };
        let mut event = event;
        let Some(payload) = event.payload_mut() else { return Ok(event) };
        if let Payload::ArtifactUpdate(chunk) = payload
            && self.join_to_last(chunk)
            && let Some(before) = self.accepted.pending.last()
        {
            return Ok(before.clone());
        }
        let seq = self
            .admission
            .admit(payload, mark.ends != Ends::Nothing)
            .inspect_err(|_| self.turn.rejected_events += 1)?;
        let time = match payload {
            Payload::StatusUpdate(update) => {
                let time = update.status.as_mut().and_then(|status| status.timestamp.as_mut());
                time.map(|time| crate::protocol::pb::wkt::raise(time, self.accepted.status_time))
            }
            Payload::Task(_) | Payload::Message(_) | Payload::ArtifactUpdate(_) => None,
        };
        event.set_position(Position { fence, seq }, mark);
        if let Some(time) = time {
            self.accepted.status_time = time;
        }
        self.accepted.pending.push(event.clone());
        // Its size was known approximately, or it may exceed the budget.
        let memory = self.memory();
        self.charge.grow(memory);
        Ok(event)
    }

    /// Returns the memory of the task in bytes: its events, those that are cached for readers, and the state of its agent.
    fn memory(&self) -> usize {
        self.admission.bytes() + self.durable.cache_bytes + self.turn.agent_state.as_ref().map_or(0, Bytes::len)
    }

    /// Counts `bytes` that are to be added, if they fit.
    pub(super) fn reserve(&mut self, bytes: usize, may_take_exclusive_half: bool) -> Result<(), Refusal> {
        let bytes = self.memory().saturating_add(bytes);
        self.charge.try_grow(bytes, may_take_exclusive_half)
    }

    /// Sets an interrupted task to WORKING, with the event `working`, because a turn takes the messages that answer it.
    /// A polling client would otherwise take the old request for a new one. At its event limit, the task keeps its
    /// state, and the turn fails at the agent's first update.
    pub(super) fn mark_working(&mut self, working: impl FnOnce() -> Event) {
        let state = self.admission.state();
        self.turn.answered = None;
        if state.is_interrupted() {
            let status = TaskStatus {
                state: state.into(),
                message: None,
                timestamp: Some(timestamp(self.accepted.status_time)),
            };
            let pushed = self.accept(working(), EventFlags::NOTHING);
            self.turn.answered = pushed.ok().map(|event| AnsweredInterruption { status, seq: event.seq() }.into());
        }
    }

    /// Returns the number of the message that was just accepted: the last event, or the one before the WORKING with
    /// which its turn starts.
    pub(super) fn newest_message(&self) -> Seq {
        let accepted = self.admission.seq();
        let begins_turn = self.turn.answered.as_ref().is_some_and(|answered| answered.seq == accepted);
        accepted - Seq::from(begins_turn)
    }

    /// Returns whether an event is a plain WORKING right after the one of [`mark_working`](Self::mark_working), and so
    /// redundant.
    pub(super) fn repeats_working(&self, event: &Event) -> bool {
        self.turn.answered.as_ref().is_some_and(|answered| answered.seq == self.admission.seq())
            && matches!(event.payload(), Some(Payload::StatusUpdate(update))
                if update.metadata.is_none() && update.status.as_ref().is_some_and(is_plain_working))
    }

    /// Returns whether a message starts a turn, instead of waiting for one.
    pub(super) fn needs_turn(&self) -> bool {
        !self.turn.is_running && !self.admission.state().is_terminal()
    }

    /// Joins a small chunk to the last pending event. Returns `false` if it must be a separate event. A pending event
    /// has not been read by anyone, so its content may still change.
    fn join_to_last(&mut self, chunk: &mut TaskArtifactUpdateEvent) -> bool {
        let added = chunk_size(chunk);
        let fits = chunk.append
            && self.accepted.joined_bytes + added <= MAX_JOINED_BYTES
            && !self.admission.state().is_terminal();
        let last = self.accepted.pending.last_mut().filter(|_| fits).and_then(Event::payload_mut);
        let joined = match (last, &chunk.artifact) {
            (Some(Payload::ArtifactUpdate(last)), Some(artifact)) if can_join(last, chunk) => {
                self.admission.admit_joined(&artifact.artifact_id, &artifact.parts, added) && join_chunks(last, chunk)
            }
            _ => false,
        };
        self.accepted.joined_bytes = if joined { self.accepted.joined_bytes + added } else { added };
        joined
    }

    /// Returns whether the agent must wait for the store.
    pub(super) fn is_full(&self) -> bool {
        let bytes = self.admission.bytes().saturating_sub(self.durable.bytes);
        self.accepted.pending.len() + self.accepted.in_flight >= MAX_PENDING_EVENTS || bytes >= MAX_PENDING_BYTES
    }

    /// Returns the size of the changes to be committed, with that of the checkpoint if one is due, in bytes.
    pub(super) fn change_bytes(&self) -> usize {
        let events = self.admission.bytes().saturating_sub(self.accepted.bytes_sent);
        let ends = self.admission.state().is_terminal();
        events + if self.is_checkpoint_due(ends, events) { self.admission.bytes() } else { 0 }
    }

    /// Returns whether there have been several pending events for longer than `time`.
    pub(super) fn has_pending_longer_than(&mut self, time: Duration) -> bool {
        if self.accepted.pending.len() < 2 {
            return false;
        }
        let now = Instant::now();
        now.duration_since(*self.accepted.oldest_pending_since.get_or_insert(now)) > time
    }

    /// Saves state of the agent for its next turn.
    pub(super) fn save_agent_state(&mut self, bytes: Bytes) {
        (self.turn.agent_state, self.accepted.agent_state_changed, self.accepted.row_changed) =
            (Some(bytes), true, true);
    }

    // Committed state.

    /// Returns the committed task and its position.
    pub(super) fn committed(&self) -> Option<(&Arc<Task>, Position)> {
        Some((self.durable.task.as_ref()?, self.durable.position?))
    }

    /// Returns the task with the status that the newest turn answers, if WORKING has replaced that status. Agents
    /// recognize by it that a message answers their question.
    pub(super) fn with_answered_status(&self, mut task: Arc<Task>) -> Arc<Task> {
        if let Some(AnsweredInterruption { status, .. }) = self.turn.answered.as_deref()
            && task.status.as_ref().is_some_and(is_plain_working)
        {
            Arc::make_mut(&mut task).status = Some(status.clone());
        }
        task
    }

    /// Returns the number of the last durable event.
    pub(super) fn watermark(&self) -> Seq {
        self.durable.position.map_or(0, |position| position.seq)
    }

    /// Returns whether the committed task is in a terminal state.
    pub(super) fn has_ended(&self) -> bool {
        self.durable.task.as_ref().is_some_and(|task| task.state().is_terminal())
    }

    /// Sends a reply instead of a task to all waiters, and to the stream of the send.
    pub(super) fn reply_with(&mut self, reply: TurnReply) -> Wakeups {
        let mut wakeups = Wakeups::default();
        let waiters = mem::take(&mut self.waiters.conditions);
        if self.waiters.readers == 0 && waiters.len() == 1 {
            wakeups.replies.extend(waiters.into_iter().map(|(_, sender)| sender).zip([reply]));
        } else {
            wakeups.replies.extend(waiters.into_iter().map(|(_, sender)| (sender, reply.clone())));
            self.waiters.reply = Some(reply);
        }
        self.is_lost = true;
        self.admission.drop_task();
        self.accepted.pending.clear();
        self.accepted.is_new = false;
        wakeups.changed = true;
        wakeups
    }

    // Waiters and readers.

    /// Returns a receiver of the reply once a condition is met. It fails at once if the task is lost or the server
    /// stopped.
    pub(super) fn wait_for(&mut self, condition: WaitCondition) -> oneshot::Receiver<TurnReply> {
        let (sender, receiver) = oneshot::channel();
        if self.is_lost || self.waiters.stopped {
            return receiver;
        }
        if self.waiters.conditions.len() == self.waiters.conditions.capacity() {
            self.waiters.conditions.retain(|waiter| !waiter.1.is_closed());
        }
        self.waiters.conditions.push((condition, sender));
        receiver
    }

    /// Caches durable events for readers, and evicts the oldest ones beyond the limits.
    pub(super) fn cache_events(&mut self, events: &[Event]) {
        if self.waiters.readers == 0 {
            self.durable.cache.clear();
            self.durable.cache_bytes = 0;
            return;
        }
        self.durable.cache.extend(events.iter().cloned());
        self.durable.cache_bytes += events.iter().map(Event::approximate_size).sum::<usize>();
        let mut surplus = self.durable.cache.len().saturating_sub(MAX_CACHED_EVENTS);
        let mut bytes: usize = self.durable.cache.range(..surplus).map(Event::approximate_size).sum();
        while self.durable.cache_bytes.saturating_sub(bytes) > MAX_CACHED_BYTES
            && surplus + 1 < self.durable.cache.len()
        {
            bytes += self.durable.cache[surplus].approximate_size();
            surplus += 1;
        }
        self.evict(surplus);
    }

    /// Evicts the oldest cached events.
    fn evict(&mut self, count: usize) {
        let dropped: usize = self.durable.cache.drain(..count).map(|event| event.approximate_size()).sum();
        self.durable.cache_bytes =
            if self.durable.cache.is_empty() { 0 } else { self.durable.cache_bytes.saturating_sub(dropped) };
    }

    /// Returns the event `from` from the cache, and appends those that follow to `rest`, up to `limit` events and about
    /// `bytes` bytes. Returns `None` if the event is older than the cache. A sole reader evicts what it reads: later
    /// readers read from the store.
    pub(super) fn read_cache(
        &mut self,
        from: Seq,
        (limit, mut bytes): (usize, usize),
        rest: &mut VecDeque<Event>,
    ) -> Option<Event> {
        let first = self.durable.cache.front()?.seq();
        let skip = usize::try_from(from.checked_sub(first)?).ok().filter(|skip| *skip < self.durable.cache.len())?;
        let fits = |event: &&Event| {
            let fits = bytes > 0;
            bytes = bytes.saturating_sub(event.approximate_size());
            fits
        };
        let mut events = self.durable.cache.range(skip..).take(limit).take_while(fits).cloned();
        let event = events.next();
        let before = rest.len();
        rest.extend(events);
        if self.waiters.readers == 1 {
            self.evict(skip + 1 + rest.len() - before);
        }
        event
    }

    #[cfg(test)]
    pub(super) fn cached_events(&self) -> usize {
        self.durable.cache.len()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::protocol::pb::v1::{TaskState, TaskStatusUpdateEvent};

    #[test]
    fn timestamps_of_a_task_do_not_go_back() {
        let status = |state: TaskState, time| TaskStatus {
            state: state.into(),
            timestamp: Some(timestamp(time)),
            ..TaskStatus::default()
        };
        let task = Task { status: Some(status(TaskState::Submitted, 5000)), ..Task::default() };
        let live = LiveTask::new(TaskKey::new(&Arc::default(), "t"), 1, task, 5000, TaskLimits::default());
        let mut inner = live.lock();
        for (time, expected) in [(6000, 6000), (1000, 6000), (7000, 7000)] {
            let status = Some(status(TaskState::Working, time));
            let update = TaskStatusUpdateEvent { status, ..TaskStatusUpdateEvent::default() };
            let event = inner.accept(Event::pending(Payload::StatusUpdate(update)), EventFlags::NOTHING).unwrap();
            let Some(Payload::StatusUpdate(update)) = event.payload() else { panic!("{event:?}") };
            let actual = update.status.as_ref().and_then(|status| status.timestamp.as_ref()).map(millis);
            assert_eq!((actual, inner.accepted.status_time), (Some(expected), expected));
        }
    }
}
