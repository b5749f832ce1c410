//! Live task: in-memory state of a task behind one short lock, without I/O. It admits events, holds the committed task,
//! and tracks waiters and readers.
//!
//! Accepted events are `pending`, then in flight to the store. Once durable, they are applied to the committed task and
//! the watermark advances. Only committed state is visible to clients.

use std::{collections::VecDeque, mem, sync::Arc, task::Waker, time::Duration};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::oneshot, time::Instant};

pub(super) use self::commit::{fold, fold_bytes};
pub(crate) use self::commit_failure::{CommitFailure, LimitExceeded};
use super::{
    turns::Turns,
    waiters::{TurnReply, WaitCondition, WakerSlot, Wakers, Wakeups},
};
use crate::{
    clock::{Millis, millis, timestamp},
    event::{Ends, Event, Fence, Mark, Position, Seq, chunk_size},
    journal::TurnContext,
    pb::v1::{Message, Task, TaskArtifactUpdateEvent, TaskState, TaskStatus, stream_response::Payload},
    store::{IdempotencyRecord, Key, PushConfig, StoredTask},
    task::{Admission, ContextBytes, TaskLimits, Violation, join, joins},
};

mod commit;
mod commit_failure;
mod complete;
mod turn_contexts;

/// Maximum number of events of an agent that are accepted but not durable.
pub(crate) const BOUND: usize = 64;

/// Maximum bytes of events of an agent that are accepted but not durable. One event may exceed it.
const BOUND_BYTES: usize = 4 << 20;

/// Maximum number of events cached for readers. Slower readers read from the store.
pub(crate) const NEWEST: usize = 256;

/// Maximum approximate bytes of events cached for readers. One event may exceed it.
pub(crate) const NEWEST_BYTES: usize = 256 << 10;

/// Maximum size of joined chunks of an artifact, in bytes.
const JOIN: usize = 1024;

/// Minimum bytes of events between two checkpoints of a task.
const CHECKPOINT: usize = 16 * 1024;

/// A task in memory.
pub(crate) struct Live {
    pub(crate) key: Key,
    pub(crate) context: Arc<str>,
    inner: Mutex<Inner>,
}

/// Mutable state of a live task.
#[expect(clippy::struct_excessive_bools, reason = "independent flags")]
pub(crate) struct Inner {
    /// Admission state for the next event.
    pub(crate) ahead: Admission,
    fence: Fence,
    /// Accepted events that were not sent to the store.
    pending: Vec<Event>,
    /// Set until the first commit: the first event precedes `pending`, and is created with that commit.
    begins: bool,
    /// Bytes of the last pending chunk, including those joined to it.
    joined: usize,
    /// Number of events sent to the store and not acknowledged.
    in_flight: usize,
    /// Bytes of events sent to the store.
    bytes_taken: usize,
    /// Bytes of durable events.
    bytes_durable: usize,
    /// Set if the row has changes without an event.
    pub(crate) touched: bool,
    /// Set while the task is queued in its lane or its change is in flight.
    pub(super) queued: bool,
    /// Set while the agent is being polled. Its output is committed together when it pauses.
    pub(crate) polled: bool,
    /// Time at which there was first more than one pending event.
    oldest: Option<Instant>,
    /// Set once there is a task. Before, the turn may still reply with a plain message.
    pub(crate) real: bool,
    /// Set if the state is invalid: another writer has the task, or there never was one.
    pub(crate) lost: bool,
    /// Reason why the last change was not committed.
    pub(crate) untaken: Option<CommitFailure>,
    /// Number of changes that the store has rejected.
    rejections: u32,
    /// Limit that the turn has exceeded, or rejection of its changes by the store. Either ends the turn.
    pub(crate) exceeded: Option<LimitExceeded>,
    /// Set once the server has stopped. New waiters fail at once.
    stopped: bool,
    /// Number of events rejected by admission.
    pub(crate) late: u64,
    /// Number of updates from the agent.
    pub(crate) words: u64,

    /// Position of the last durable event: the watermark.
    at: Option<Position>,
    /// State for which the store counts the task, including the change in flight.
    counted: Option<TaskState>,
    /// Event of the newest status, if uncommitted.
    head: Option<Event>,
    /// Time of the newest status.
    time: Millis,
    /// Last message given to a turn.
    pub(crate) taken: Seq,
    /// Set once a cancel is requested.
    pub(crate) cancel: bool,
    /// Number of attempts to run the newest turn.
    pub(crate) attempt: u32,
    /// Number of these attempts that a drain of the server interrupted.
    pub(crate) drained: u32,
    /// State saved by the agent for its next turn.
    saved: Option<Bytes>,
    /// Set while `saved` is uncommitted.
    unsaved: bool,
    /// Contexts of the messages that are not answered yet, if they are stored.
    notes: Vec<turn_contexts::StoredContext>,
    /// Changed contexts for the next commit, encoded; empty if there are none left.
    pub(crate) asked: Option<Bytes>,
    /// Idempotency records for the next commit.
    pub(crate) sends: Vec<IdempotencyRecord>,
    /// Push configuration for the first commit.
    push: Option<Arc<PushConfig>>,

    /// Committed task. Copied on write if it is shared.
    shown: Option<Arc<Task>>,
    /// Task at its first event, until that is durable.
    base: Option<Arc<Task>>,
    /// Turns as of the watermark.
    pub(crate) turns: Turns,
    /// Newest durable events, cached for readers.
    newest: VecDeque<Event>,
    /// Approximate bytes of `newest`.
    newest_bytes: usize,
    /// Number of readers.
    readers: usize,
    /// Bytes of events since the last checkpoint.
    since: usize,
    /// Bytes of events up to the last checkpoint.
    last: usize,

    /// Number of the newest turn.
    pub(crate) turn: u32,
    /// Set while the newest turn is running.
    pub(crate) running: bool,
    /// Number of turns whose end is durable.
    ended: u32,
    /// Interruption that the newest turn answers, if it answers one.
    pub(crate) superseded: Option<AnsweredInterruption>,
    /// Messages that wait for the next turn.
    pub(crate) inbox: VecDeque<QueuedMessage>,
    /// Message with which the turn replied instead of a task.
    reply: Option<Box<Message>>,
    /// Callers that wait for a condition.
    waiters: Vec<(WaitCondition, oneshot::Sender<TurnReply>)>,
    /// Wakers of readers, and of an agent that waits for the store.
    pub(crate) wakers: Wakers,
    /// Wakers of the runner and its agent, which wait for a cancel or a drain.
    pub(crate) control: Wakers,
}

/// Interrupted status (`INPUT_REQUIRED`, `AUTH_REQUIRED`) that WORKING replaced, because a turn took the message that
/// answers it.
#[derive(Clone, Debug)]
pub(crate) struct AnsweredInterruption {
    /// Interrupted status. Its message is in the history by then.
    pub(crate) status: TaskStatus,
    /// Number of the WORKING event that replaced it.
    pub(crate) seq: Seq,
}

/// A message that waits for a turn, with the context of its call.
#[derive(Debug)]
pub(crate) struct QueuedMessage {
    pub(crate) event: Event,
    pub(crate) context: TurnContext,
}

impl Live {
    /// Creates a new task.
    pub(crate) fn new(key: Key, fence: Fence, task: Task, time: Millis) -> Self {
        let context = task.context_id.as_str().into();
        let mut inner = Inner::empty(Admission::of(&task, 1), fence, time);
        inner.pending.reserve(4);
        (inner.base, inner.begins, inner.taken, inner.attempt) = (Some(Arc::new(task)), true, 1, 1);
        Self { key, context, inner: Mutex::new(inner) }
    }

    /// Creates a live task from its stored state.
    pub(crate) fn loaded(key: Key, fence: Fence, stored: StoredTask, task: Task) -> Self {
        let StoredTask { position: at, row, agent_state: saved, .. } = stored;
        let time = task.status.as_ref().and_then(|status| status.timestamp.as_ref()).map_or(row.time, millis);
        let mut inner = Inner::empty(Admission::of(&task, at.seq), fence, time);
        (inner.at, inner.shown, inner.real, inner.saved) = (Some(at), Some(Arc::new(task)), true, saved);
        inner.counted = Some(row.state);
        inner.turns = Turns::loaded(row.open);
        (inner.taken, inner.cancel) = (row.delivered_seq, row.cancel_requested);
        (inner.attempt, inner.drained) = (row.attempt, row.drained);
        Self { key, context: row.context, inner: Mutex::new(inner) }
    }

    /// Sets the size of the log of a loaded task, in bytes.
    pub(crate) fn logged(&mut self, bytes: usize) {
        let inner = self.inner.get_mut();
        inner.ahead.logged(bytes);
        (inner.bytes_taken, inner.bytes_durable) = (inner.ahead.bytes(), inner.ahead.bytes());
    }

    /// Returns whether the committed task is in a terminal state.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.inner.get_mut().has_ended()
    }

    /// Sets the size of the context that the task counts in.
    pub(crate) fn enter_context(&mut self, context: Arc<ContextBytes>) {
        self.inner.get_mut().ahead.enter_context(context);
    }

    /// Checks the message that starts a task against the limits, and counts it in its context.
    pub(crate) fn check_first(&mut self) -> Result<(), Violation> {
        self.inner.get_mut().ahead.check_first()
    }

    /// Sets the limits of the task.
    pub(crate) fn bound(&mut self, bounds: TaskLimits) {
        self.inner.get_mut().ahead.bound(bounds);
    }

    /// Sets the push configuration with which the task starts.
    pub(crate) fn push_to(&mut self, push: Option<Arc<PushConfig>>) {
        self.inner.get_mut().push = push;
    }

    /// Locks the state.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Sends wake-ups and replies. Must be called without the lock.
    pub(crate) fn fire(&self, wakeups: Wakeups) {
        let emptied = wakeups.fire();
        if emptied.capacity() > 0 {
            self.lock().wakers.reuse(emptied);
        }
    }
}

impl Inner {
    fn empty(ahead: Admission, fence: Fence, time: Millis) -> Self {
        // The first message of a task comes from the client, and does not count as pending output of the agent.
        let bytes = ahead.bytes();
        Self {
            ahead,
            fence,
            pending: Vec::new(),
            begins: false,
            joined: 0,
            in_flight: 0,
            bytes_taken: bytes,
            bytes_durable: bytes,
            touched: false,
            queued: false,
            polled: false,
            oldest: None,
            real: false,
            lost: false,
            untaken: None,
            rejections: 0,
            exceeded: None,
            stopped: false,
            late: 0,
            words: 0,
            at: None,
            counted: None,
            head: None,
            time,
            taken: 0,
            cancel: false,
            attempt: 0,
            drained: 0,
            saved: None,
            unsaved: false,
            notes: Vec::new(),
            asked: None,
            sends: Vec::new(),
            push: None,
            shown: None,
            base: None,
            turns: Turns::default(),
            newest: VecDeque::new(),
            newest_bytes: 0,
            readers: 0,
            since: 0,
            last: 0,
            turn: 0,
            running: false,
            ended: 0,
            superseded: None,
            inbox: VecDeque::new(),
            reply: None,
            waiters: Vec::new(),
            wakers: Wakers::default(),
            control: Wakers::default(),
        }
    }

    // Acceptance of events.

    /// Accepts an event and assigns its sequence number, or rejects it. Every event passes here, so the first terminal
    /// state is final.
    pub(crate) fn push(&mut self, event: Event, mark: Mark) -> Result<Event, Violation> {
        let mut event = event;
        let Some(payload) = event.edit() else { return Ok(event) };
        if let Payload::ArtifactUpdate(chunk) = payload
            && self.join(chunk)
            && let Some(before) = self.pending.last()
        {
            return Ok(before.clone());
        }
        let seq = self.ahead.admit(payload, mark.ends != Ends::Nothing).inspect_err(|_| self.late += 1)?;
        let time = match payload {
            Payload::StatusUpdate(update) => update.status.as_mut().and_then(|status| monotonic(status, self.time)),
            Payload::Task(_) | Payload::Message(_) | Payload::ArtifactUpdate(_) => None,
        };
        event.place(Position { fence: self.fence, seq }, mark);
        if let Some(time) = time {
            (self.head, self.time) = (Some(event.clone()), time);
        }
        self.pending.push(event.clone());
        Ok(event)
    }

    /// Sets an interrupted task to WORKING, with the event `working`, because a turn takes the messages that answer it.
    /// A polling client would otherwise take the old request for a new one. At its event limit, the task keeps its
    /// state, and the turn fails at the agent's first update.
    pub(crate) fn supersede(&mut self, working: impl FnOnce() -> Event) {
        let state = self.ahead.state();
        self.superseded = None;
        if state.is_interrupted() {
            let status = TaskStatus { state: state.into(), message: None, timestamp: Some(timestamp(self.time)) };
            let pushed = self.push(working(), Mark::NOTHING);
            self.superseded = pushed.ok().map(|event| AnsweredInterruption { status, seq: event.seq() });
        }
    }

    /// Returns the number of the message that was just accepted: the last event, or the one before the WORKING with
    /// which its turn starts.
    pub(crate) fn newest_message(&self) -> Seq {
        let accepted = self.ahead.seq();
        let begins_turn = self.superseded.as_ref().is_some_and(|superseded| superseded.seq == accepted);
        accepted - Seq::from(begins_turn)
    }

    /// Returns whether an event is a plain WORKING right after the one of [`supersede`](Self::supersede), and so
    /// redundant.
    pub(crate) fn repeats_working(&self, event: &Event) -> bool {
        self.superseded.as_ref().is_some_and(|superseded| superseded.seq == self.ahead.seq())
            && matches!(event.payload(), Some(Payload::StatusUpdate(update))
                if update.metadata.is_none() && update.status.as_ref().is_some_and(is_plain_working))
    }

    /// Joins a small chunk to the last pending event. Returns `false` if it must be a separate event. A pending event
    /// has not been read by anyone, so its content may still change.
    fn join(&mut self, chunk: &mut TaskArtifactUpdateEvent) -> bool {
        let heft = chunk_size(chunk);
        let fits = chunk.append && self.joined + heft <= JOIN && !self.ahead.state().is_terminal();
        let last = self.pending.last_mut().filter(|_| fits).and_then(Event::edit);
        let joined = match (last, &chunk.artifact) {
            (Some(Payload::ArtifactUpdate(last)), Some(artifact)) if joins(last, chunk) => {
                self.ahead.grow(&artifact.artifact_id, heft) && join(last, chunk)
            }
            _ => false,
        };
        self.joined = if joined { self.joined + heft } else { heft };
        joined
    }

    /// Returns whether the agent must wait for the store.
    pub(crate) fn is_full(&self) -> bool {
        let bytes = self.ahead.bytes().saturating_sub(self.bytes_durable);
        self.pending.len() + self.in_flight >= BOUND || bytes >= BOUND_BYTES
    }

    /// Returns whether there have been several pending events for longer than `time`.
    pub(crate) fn lingers(&mut self, time: Duration) -> bool {
        if self.pending.len() < 2 {
            return false;
        }
        let now = Instant::now();
        now.duration_since(*self.oldest.get_or_insert(now)) > time
    }

    /// Saves state of the agent for its next turn.
    pub(crate) fn save(&mut self, bytes: Bytes) {
        (self.saved, self.unsaved, self.touched) = (Some(bytes), true, true);
    }

    /// Returns the state that the agent saved.
    pub(crate) fn saved(&self) -> Option<Bytes> {
        self.saved.clone()
    }

    // Committed state.

    /// Returns the committed task and its position.
    pub(crate) fn shown(&self) -> Option<(&Arc<Task>, Position)> {
        Some((self.shown.as_ref()?, self.at?))
    }

    /// Returns the task for the start of a turn, or a receiver to wait for first. The first turn gets the uncommitted
    /// task; later ones wait until the end of the turn before is durable. See [`as_interrupted`](Self::as_interrupted).
    pub(crate) fn found(&mut self) -> Result<Arc<Task>, oneshot::Receiver<TurnReply>> {
        match self.base.as_ref().or(self.shown.as_ref()) {
            Some(task) if self.ended + 1 >= self.turn => Ok(Arc::clone(task)),
            _ => Err(self.wait(WaitCondition::Turn(self.turn.saturating_sub(1), 0))),
        }
    }

    /// Returns the task with the status that the newest turn answers, if WORKING has replaced that status. Agents
    /// recognize by it that a message answers their question.
    pub(crate) fn as_interrupted(&self, mut task: Arc<Task>) -> Arc<Task> {
        if let Some(AnsweredInterruption { status, .. }) = &self.superseded
            && task.status.as_ref().is_some_and(is_plain_working)
        {
            Arc::make_mut(&mut task).status = Some(status.clone());
        }
        task
    }

    /// Returns the number of the last durable event.
    pub(crate) fn watermark(&self) -> Seq {
        self.at.map_or(0, |position| position.seq)
    }

    /// Returns whether the committed task is in a terminal state.
    pub(crate) fn has_ended(&self) -> bool {
        self.shown.as_ref().is_some_and(|task| task.state().is_terminal())
    }

    /// Returns wake-ups for readers, the runner and its agent.
    pub(super) fn wake(&mut self) -> Wakeups {
        let mut wakeups = Wakeups::default();
        self.wake_all(&mut wakeups);
        wakeups
    }

    /// Replies with a message instead of a task to all waiters, and to the stream of the send.
    pub(crate) fn answer(&mut self, message: Message) -> Wakeups {
        let (mut wakeups, message) = (Wakeups::default(), Box::new(message));
        if self.readers == 0 && self.waiters.len() == 1 {
            let waiters = mem::take(&mut self.waiters).into_iter();
            wakeups.answers.extend(waiters.map(|(_, sender)| sender).zip([TurnReply::Message(message)]));
        } else {
            let waiters = mem::take(&mut self.waiters).into_iter();
            wakeups.answers.extend(waiters.map(|(_, sender)| (sender, TurnReply::Message(message.clone()))));
            self.reply = Some(message);
        }
        self.lost = true;
        self.ahead.drop_task();
        self.pending.clear();
        self.begins = false;
        self.wakers.take(&mut wakeups.wakers);
        wakeups
    }

    /// Returns the message with which the turn replied, for the stream of the send.
    pub(super) fn take_reply(&mut self) -> Option<Box<Message>> {
        self.reply.take()
    }

    fn wake_all(&mut self, wakeups: &mut Wakeups) {
        self.wakers.take(&mut wakeups.wakers);
        self.control.take(&mut wakeups.wakers);
    }

    /// Returns wake-ups for the runner and its agent.
    pub(crate) fn fire_control(&mut self) -> Wakeups {
        let mut wakeups = Wakeups::default();
        self.control.take(&mut wakeups.wakers);
        wakeups
    }

    // Waiters and readers.

    /// Adds a reader. Events are cached while there are any.
    pub(crate) fn attach(&mut self) {
        self.readers += 1;
    }

    /// Attaches a reader at the watermark. Returns the task at this position, the position, and the turns up to it.
    pub(crate) fn attach_at_watermark(&mut self) -> Option<(Arc<Task>, Position, Turns)> {
        let (task, at) = self.shown().map(|(task, at)| (Arc::clone(task), at))?;
        self.attach();
        Some((task, at, self.turns.clone()))
    }

    /// Returns the number of readers.
    pub(crate) fn readers(&self) -> usize {
        self.readers
    }

    /// Removes a reader. The caller drops the returned waker after releasing the lock.
    pub(super) fn detach(&mut self, slot: Option<WakerSlot>) -> Option<Waker> {
        self.readers -= 1;
        slot.and_then(|slot| self.wakers.forget(slot))
    }

    /// Returns a receiver of the reply once a condition is met. It fails at once if the task is lost or the server
    /// stopped.
    pub(crate) fn wait(&mut self, condition: WaitCondition) -> oneshot::Receiver<TurnReply> {
        let (sender, receiver) = oneshot::channel();
        if self.lost || self.stopped {
            return receiver;
        }
        if self.waiters.len() == self.waiters.capacity() {
            self.waiters.retain(|waiter| !waiter.1.is_closed());
        }
        self.waiters.push((condition, sender));
        receiver
    }

    /// Returns a receiver that completes once everything accepted is durable, or `None` if it already is.
    pub(crate) fn wait_for_accepted(&mut self) -> Option<oneshot::Receiver<TurnReply>> {
        let accepted = self.ahead.seq();
        (self.watermark() < accepted).then(|| self.wait(WaitCondition::Shown(accepted)))
    }

    /// Removes waiters whose receivers were dropped.
    pub(crate) fn forget_waiters(&mut self) {
        self.waiters.retain(|(_, sender)| !sender.is_closed());
    }

    /// Caches durable events for readers, and evicts the oldest ones beyond the limits.
    pub(super) fn keep_newest(&mut self, events: &[Event]) {
        if self.readers == 0 {
            self.newest.clear();
            self.newest_bytes = 0;
            return;
        }
        self.newest.extend(events.iter().cloned());
        self.newest_bytes += events.iter().map(Event::approximate_size).sum::<usize>();
        let mut surplus = self.newest.len().saturating_sub(NEWEST);
        let mut bytes: usize = self.newest.range(..surplus).map(Event::approximate_size).sum();
        while self.newest_bytes.saturating_sub(bytes) > NEWEST_BYTES && surplus + 1 < self.newest.len() {
            bytes += self.newest[surplus].approximate_size();
            surplus += 1;
        }
        self.forget_newest(surplus);
    }

    /// Evicts the oldest cached events.
    fn forget_newest(&mut self, count: usize) {
        let dropped: usize = self.newest.drain(..count).map(|event| event.approximate_size()).sum();
        self.newest_bytes = if self.newest.is_empty() { 0 } else { self.newest_bytes.saturating_sub(dropped) };
    }

    /// Returns the event `from` from the cache, and appends those that follow to `rest`, up to `limit` events and about
    /// `bytes` bytes. Returns `None` if the event is older than the cache. A sole reader evicts what it reads: later
    /// readers read from the store.
    pub(super) fn newest(
        &mut self,
        from: Seq,
        (limit, mut bytes): (usize, usize),
        rest: &mut VecDeque<Event>,
    ) -> Option<Event> {
        let first = self.newest.front()?.seq();
        let skip = usize::try_from(from.checked_sub(first)?).ok().filter(|skip| *skip < self.newest.len())?;
        let fits = |event: &&Event| {
            let fits = bytes > 0;
            bytes = bytes.saturating_sub(event.approximate_size());
            fits
        };
        let mut events = self.newest.range(skip..).take(limit).take_while(fits).cloned();
        let event = events.next();
        let before = rest.len();
        rest.extend(events);
        if self.readers == 1 {
            self.forget_newest(skip + 1 + rest.len() - before);
        }
        event
    }

    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.waiters.len()
    }

    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.newest.len()
    }
}

/// Returns whether a status is WORKING without a message.
pub(super) fn is_plain_working(status: &TaskStatus) -> bool {
    status.state() == TaskState::Working && status.message.is_none()
}

/// Returns the time of a status, raised to `last` if it is earlier: timestamps of a task do not go back when the system
/// clock is set back.
fn monotonic(status: &mut TaskStatus, last: Millis) -> Option<Millis> {
    let time = millis(status.timestamp.as_ref()?);
    if time < last {
        status.timestamp = Some(timestamp(last));
    }
    Some(time.max(last))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::pb::v1::TaskStatusUpdateEvent;

    #[test]
    fn timestamps_of_a_task_do_not_go_back() {
        let status = |state: TaskState, time| TaskStatus {
            state: state.into(),
            timestamp: Some(timestamp(time)),
            ..TaskStatus::default()
        };
        let task = Task { status: Some(status(TaskState::Submitted, 5000)), ..Task::default() };
        let live = Live::new(Key::new(&Arc::default(), "t"), 1, task, 5000);
        let mut inner = live.lock();
        for (time, expected) in [(6000, 6000), (1000, 6000), (7000, 7000)] {
            let status = Some(status(TaskState::Working, time));
            let update = TaskStatusUpdateEvent { status, ..TaskStatusUpdateEvent::default() };
            let event = inner.push(Event::said(Payload::StatusUpdate(update)), Mark::NOTHING).unwrap();
            let Some(Payload::StatusUpdate(update)) = event.payload() else { panic!("{event:?}") };
            let actual = update.status.as_ref().and_then(|status| status.timestamp.as_ref()).map(millis);
            assert_eq!((actual, inner.time), (Some(expected), expected));
        }
    }
}
