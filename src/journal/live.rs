//! A task in memory: what is accepted of it, what is shown of it, and who waits. One short lock, and no I/O.
//!
//! What is accepted is ahead of what is shown. In between, events are `pending`, then in flight to the store; once they
//! are durable, they are folded into what is shown, and the watermark goes up.

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
    agent::TurnContext,
    event::{Ends, Event, Fence, Mark, Position, Seq},
    pb::v1::{Message, Task, TaskArtifactUpdateEvent, TaskState, TaskStatus, stream_response::Payload},
    seam::{Millis, millis, timestamp},
    store::{IdempotencyRecord, Key, PushConfig, Stored},
    task::{Admission, TaskLimits, Violation, heft, join, joins},
};

mod commit;
mod commit_failure;
mod complete;
mod turn_contexts;

/// How many events an agent may be ahead of the store.
pub(crate) const BOUND: usize = 64;

/// Maximum number of bytes of pending events of an agent. One event may exceed it.
const BOUND_BYTES: usize = 4 << 20;

/// How many events are kept for readers that keep up; the others read the store.
pub(crate) const NEWEST: usize = 256;

/// Bytes of events that are kept for readers that keep up, by their approximate size. The last event is kept whatever it has.
pub(crate) const NEWEST_BYTES: usize = 256 << 10;

/// Chunks of an artifact are joined up to this many bytes.
const JOIN: usize = 1024;

/// Below this many bytes of events, no checkpoint pays.
const CHECKPOINT: usize = 16 * 1024;

/// A task in memory.
pub(crate) struct Live {
    pub(crate) key: Key,
    pub(crate) context: Arc<str>,
    inner: Mutex<Inner>,
}

#[expect(clippy::struct_excessive_bools, reason = "each may be so whatever the others are")]
pub(crate) struct Inner {
    /// What the next event must fit.
    pub(crate) ahead: Admission,
    fence: Fence,
    /// Accepted, and not yet taken to the store.
    pending: Vec<Event>,
    /// Before those comes the event with which the task begins, which is made when it is needed.
    begins: bool,
    /// What the last of them weighs, if others may be joined to it.
    joined: usize,
    /// Taken to the store, and not yet answered.
    in_flight: usize,
    /// Bytes of the events that were taken to the store, and of those that it has: of all that were accepted.
    bytes_taken: usize,
    bytes_durable: usize,
    /// The row changes without an event.
    pub(crate) touched: bool,
    /// The journal has it.
    pub(super) queued: bool,
    /// Its agent is being polled: what it says is taken to the store when it pauses, together.
    pub(crate) polled: bool,
    /// When there was first more than one pending event.
    oldest: Option<Instant>,
    /// There is a task. Before, its turn may still answer with a plain message.
    pub(crate) real: bool,
    /// Another writer has the task, or there was none: nothing is true of it any more.
    pub(crate) lost: bool,
    /// Why the store has not taken it, or what was sent to it last.
    pub(crate) untaken: Option<CommitFailure>,
    /// Number of changes that the store has rejected.
    rejections: u32,
    /// Limit that the turn has exceeded, or rejection of its changes by the store. Either ends the turn.
    pub(crate) exceeded: Option<LimitExceeded>,
    /// The server stops: nobody waits for anything any more.
    stopped: bool,
    /// How many events came too late.
    pub(crate) late: u64,
    /// How often its agent has said something.
    pub(crate) words: u64,

    /// What the row says, and will say.
    at: Option<Position>,
    counted: Option<TaskState>,
    head: Option<Event>,
    time: Millis,
    pub(crate) taken: Seq,
    pub(crate) cancel: bool,
    pub(crate) attempt: u32,
    pub(crate) drained: u32,
    saved: Option<Bytes>,
    unsaved: bool,
    /// What came with the messages that are not answered yet, where it is kept.
    notes: Vec<turn_contexts::StoredContext>,
    /// The same where it has changed, until a commit takes it along; empty where nothing did.
    pub(crate) asked: Option<Bytes>,
    /// The sends that have a key, until a commit takes them along.
    pub(crate) sends: Vec<IdempotencyRecord>,
    /// The push configuration that it begins with, until its first commit takes it along.
    push: Option<Arc<PushConfig>>,

    /// The task as committed; it is copied only where somebody still holds the last one.
    shown: Option<Arc<Task>>,
    /// The task as it began, until that is committed.
    base: Option<Arc<Task>>,
    /// The turns, as far as they are shown.
    pub(crate) turns: Turns,
    newest: VecDeque<Event>,
    /// Their approximate size.
    newest_bytes: usize,
    readers: usize,
    /// Bytes of events since the last checkpoint, and up to it.
    since: usize,
    last: usize,

    /// The number of the newest turn, whether it runs, and how many have ended for all to see.
    pub(crate) turn: u32,
    pub(crate) running: bool,
    ended: u32,
    /// Interruption that the newest turn answers, if it answers one.
    pub(crate) superseded: Option<AnsweredInterruption>,
    /// Messages for the next turn.
    pub(crate) inbox: VecDeque<QueuedMessage>,
    /// What the turn answered with instead of a task.
    reply: Option<Box<Message>>,
    waiters: Vec<(WaitCondition, oneshot::Sender<TurnReply>)>,
    /// Readers, and an agent that waits for the store.
    pub(crate) wakers: Wakers,
    /// Those who wait for a cancel or a drain: the runner, and its agent.
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

/// A message for a turn.
#[derive(Debug)]
pub(crate) struct QueuedMessage {
    pub(crate) event: Event,
    pub(crate) asked: TurnContext,
}

impl Live {
    /// A task that begins.
    pub(crate) fn new(key: Key, fence: Fence, task: Task, time: Millis) -> Self {
        let context = task.context_id.as_str().into();
        let mut inner = Inner::empty(Admission::of(&task, 1), fence, time);
        inner.pending.reserve(4);
        (inner.base, inner.begins, inner.taken, inner.attempt) = (Some(Arc::new(task)), true, 1, 1);
        Self { key, context, inner: Mutex::new(inner) }
    }

    /// A task that the store has.
    pub(crate) fn loaded(key: Key, fence: Fence, stored: Stored, task: Task) -> Self {
        let Stored { at, row, saved, .. } = stored;
        let time = task.status.as_ref().and_then(|it| it.timestamp.as_ref()).map_or(row.time, millis);
        let mut inner = Inner::empty(Admission::of(&task, at.seq), fence, time);
        (inner.at, inner.shown, inner.real, inner.saved) = (Some(at), Some(Arc::new(task)), true, saved);
        inner.counted = Some(row.state);
        inner.turns = Turns::loaded(row.open);
        (inner.taken, inner.cancel) = (row.taken, row.cancel_requested);
        (inner.attempt, inner.drained) = (row.attempt, row.drained);
        Self { key, context: row.context, inner: Mutex::new(inner) }
    }

    /// Sets the number of bytes in the log of a task that was loaded.
    pub(crate) fn logged(&mut self, bytes: usize) {
        let inner = self.inner.get_mut();
        inner.ahead.logged(bytes);
        (inner.bytes_taken, inner.bytes_durable) = (inner.ahead.bytes(), inner.ahead.bytes());
    }

    /// Returns true if the task is in a terminal state, as committed to the store.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.inner.get_mut().has_ended()
    }

    /// Checks the message that a task begins with against its bounds.
    pub(crate) fn check_first(&mut self) -> Result<(), Violation> {
        self.inner.get_mut().ahead.check_first()
    }

    /// From now on there may be only so much of it.
    pub(crate) fn bound(&mut self, bounds: TaskLimits) {
        self.inner.get_mut().ahead.bound(bounds);
    }

    /// What happens to it is to be sent there.
    pub(crate) fn push_to(&mut self, push: Option<Arc<PushConfig>>) {
        self.inner.get_mut().push = push;
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Wakes who is to be woken, with the lock free.
    pub(crate) fn fire(&self, wake: Wakeups) {
        let emptied = wake.fire();
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

    // What is accepted.

    /// The one place where an event is accepted and numbered, or found to be too late. So it is here that the first
    /// terminal state wins.
    pub(crate) fn push(&mut self, event: Event, mark: Mark) -> Result<Event, Violation> {
        let mut event = event;
        let Some(payload) = event.edit() else { return Ok(event) };
        if let Payload::ArtifactUpdate(it) = payload
            && self.join(it)
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

    /// Sets an interrupted task to WORKING, because a turn takes the messages that answer it: a poller would take the old
    /// question for a new one. `working` is that event. A task at its event limit keeps its state, and the turn fails at the
    /// agent's first update.
    pub(crate) fn supersede(&mut self, working: impl FnOnce() -> Event) {
        let state = self.ahead.state();
        self.superseded = None;
        if state.is_interrupted() {
            let status = TaskStatus { state: state.into(), message: None, timestamp: Some(timestamp(self.time)) };
            let pushed = self.push(working(), Mark::NOTHING);
            self.superseded = pushed.ok().map(|event| AnsweredInterruption { status, seq: event.seq() });
        }
    }

    /// Returns the number of the message that was accepted last, right after it was: the last event, or the one before the
    /// WORKING with which its turn begins.
    pub(crate) fn newest_message(&self) -> Seq {
        let accepted = self.ahead.seq();
        let begins_turn = self.superseded.as_ref().is_some_and(|superseded| superseded.seq == accepted);
        accepted - Seq::from(begins_turn)
    }

    /// Returns true for a plain WORKING right after the one that [`supersede`](Self::supersede) made, which adds
    /// nothing.
    pub(crate) fn repeats_working(&self, event: &Event) -> bool {
        self.superseded.as_ref().is_some_and(|superseded| superseded.seq == self.ahead.seq())
            && matches!(event.payload(), Some(Payload::StatusUpdate(update))
                if update.metadata.is_none() && update.status.as_ref().is_some_and(is_plain_working))
    }

    /// Puts a small chunk behind the one before it, if that has not gone to the store yet: then nobody has seen that it
    /// had the number for itself. Leaves it as it is where it has to stay apart.
    fn join(&mut self, chunk: &mut TaskArtifactUpdateEvent) -> bool {
        let heft = heft(chunk);
        let fits = chunk.append && self.joined + heft <= JOIN && !self.ahead.state().is_terminal();
        let last = self.pending.last_mut().filter(|_| fits).and_then(Event::edit);
        let joined = match (last, &chunk.artifact) {
            (Some(Payload::ArtifactUpdate(it)), Some(artifact)) if joins(it, chunk) => {
                self.ahead.grow(&artifact.artifact_id, heft) && join(it, chunk)
            }
            _ => false,
        };
        self.joined = if joined { self.joined + heft } else { heft };
        joined
    }

    /// Whether an agent has to wait for the store.
    pub(crate) fn is_full(&self) -> bool {
        let bytes = self.ahead.bytes().saturating_sub(self.bytes_durable);
        self.pending.len() + self.in_flight >= BOUND || bytes >= BOUND_BYTES
    }

    /// Whether what is pending has been waiting for longer than this, since there was first more than one of it.
    pub(crate) fn lingers(&mut self, time: Duration) -> bool {
        if self.pending.len() < 2 {
            return false;
        }
        let now = Instant::now();
        now.duration_since(*self.oldest.get_or_insert(now)) > time
    }

    /// Keeps what an agent wants to find in its next turn.
    pub(crate) fn save(&mut self, bytes: Bytes) {
        (self.saved, self.unsaved, self.touched) = (Some(bytes), true, true);
    }

    /// What an agent kept.
    pub(crate) fn saved(&self) -> Option<Bytes> {
        self.saved.clone()
    }

    // What is shown.

    /// The task as all may see it, and up to where.
    pub(crate) fn shown(&self) -> Option<(&Arc<Task>, Position)> {
        Some((self.shown.as_ref()?, self.at?))
    }

    /// The task as a turn finds it: the first one, before anybody else sees it. A later one waits until the end of
    /// the turn before is shown. See [`as_interrupted`](Self::as_interrupted).
    pub(crate) fn found(&mut self) -> Result<Arc<Task>, oneshot::Receiver<TurnReply>> {
        match self.base.as_ref().or(self.shown.as_ref()) {
            Some(it) if self.ended + 1 >= self.turn => Ok(Arc::clone(it)),
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

    /// The number of the last event that is shown.
    pub(crate) fn watermark(&self) -> Seq {
        self.at.map_or(0, |it| it.seq)
    }

    /// Whether the end is shown.
    pub(crate) fn has_ended(&self) -> bool {
        self.shown.as_ref().is_some_and(|it| it.state().is_terminal())
    }

    /// Wakes readers, the runner and its agent.
    pub(super) fn wake(&mut self) -> Wakeups {
        let mut wake = Wakeups::default();
        self.wake_all(&mut wake);
        wake
    }

    /// The turn answered with a message, and there was no task.
    pub(crate) fn answer(&mut self, message: Message) -> Wakeups {
        let (mut wake, message) = (Wakeups::default(), Box::new(message));
        if self.readers == 0 && self.waiters.len() == 1 {
            let waiters = mem::take(&mut self.waiters).into_iter();
            wake.answers.extend(waiters.map(|(_, to)| to).zip([TurnReply::Message(message)]));
        } else {
            let waiters = mem::take(&mut self.waiters).into_iter();
            wake.answers.extend(waiters.map(|(_, to)| (to, TurnReply::Message(message.clone()))));
            self.reply = Some(message);
        }
        self.lost = true;
        self.pending.clear();
        self.begins = false;
        self.wakers.take(&mut wake.wakers);
        wake
    }

    /// What the turn answered with, for the stream of the send.
    pub(super) fn take_reply(&mut self) -> Option<Box<Message>> {
        self.reply.take()
    }

    fn wake_all(&mut self, wake: &mut Wakeups) {
        self.wakers.take(&mut wake.wakers);
        self.control.take(&mut wake.wakers);
    }

    /// Wakes the runner and its agent.
    pub(crate) fn fire_control(&mut self) -> Wakeups {
        let mut wake = Wakeups::default();
        self.control.take(&mut wake.wakers);
        wake
    }

    // Who waits, and who reads.

    /// From now on the newest events are kept for one reader more.
    pub(crate) fn attach(&mut self) {
        self.readers += 1;
    }

    /// Attaches a reader at the watermark. Returns the task at this position, the position, and the turns up to it.
    pub(crate) fn attach_at_watermark(&mut self) -> Option<(Arc<Task>, Position, Turns)> {
        let (task, at) = self.shown().map(|(task, at)| (Arc::clone(task), at))?;
        self.attach();
        Some((task, at, self.turns.clone()))
    }

    /// For how many readers.
    pub(crate) fn readers(&self) -> usize {
        self.readers
    }

    /// One reader less. Its waker is for the caller to drop, with the lock free.
    pub(super) fn detach(&mut self, place: Option<WakerSlot>) -> Option<Waker> {
        self.readers -= 1;
        place.and_then(|it| self.wakers.forget(it))
    }

    /// What is given when this is so. Nothing, at once, where nothing will come any more.
    pub(crate) fn wait(&mut self, until: WaitCondition) -> oneshot::Receiver<TurnReply> {
        let (to, answer) = oneshot::channel();
        if self.lost || self.stopped {
            return answer;
        }
        if self.waiters.len() == self.waiters.capacity() {
            self.waiters.retain(|it| !it.1.is_closed());
        }
        self.waiters.push((until, to));
        answer
    }

    /// Waits until all that has been accepted is shown. Returns `None` if it is.
    pub(crate) fn wait_for_accepted(&mut self) -> Option<oneshot::Receiver<TurnReply>> {
        let accepted = self.ahead.seq();
        (self.watermark() < accepted).then(|| self.wait(WaitCondition::Shown(accepted)))
    }

    /// Removes the waiters whose callers have stopped waiting.
    pub(crate) fn forget_waiters(&mut self) {
        self.waiters.retain(|(_, to)| !to.is_closed());
    }

    /// Keeps these events for readers, and the newest before them as far as they fit.
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

    /// Drops this many of the oldest cached events.
    fn forget_newest(&mut self, count: usize) {
        let dropped: usize = self.newest.drain(..count).map(|event| event.approximate_size()).sum();
        self.newest_bytes = if self.newest.is_empty() { 0 } else { self.newest_bytes.saturating_sub(dropped) };
    }

    /// Returns an event from memory and those that follow it, up to a number of events and about a number of bytes.
    /// Empty if it is older than the cached events. A sole reader removes them from memory: later readers read the
    /// store.
    pub(super) fn newest(
        &mut self,
        from: Seq,
        (limit, mut bytes): (usize, usize),
        rest: &mut VecDeque<Event>,
    ) -> Option<Event> {
        let first = self.newest.front()?.seq();
        let skip = usize::try_from(from.checked_sub(first)?).ok().filter(|it| *it < self.newest.len())?;
        let fits = |event: &&Event| {
            let fits = bytes > 0;
            bytes = bytes.saturating_sub(event.approximate_size());
            fits
        };
        let mut taken = self.newest.range(skip..).take(limit).take_while(fits).cloned();
        let event = taken.next();
        let before = rest.len();
        rest.extend(taken);
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

/// Returns true for WORKING without a message.
pub(super) fn is_plain_working(status: &TaskStatus) -> bool {
    status.state() == TaskState::Working && status.message.is_none()
}

/// Returns the time of a status, which becomes `last` if it is earlier: timestamps of a task do not run backwards when the
/// system's clock is set back.
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
    fn timestamps_of_a_task_do_not_run_backwards() {
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
            let told = update.status.as_ref().and_then(|status| status.timestamp.as_ref()).map(millis);
            assert_eq!((told, inner.time), (Some(expected), expected));
        }
    }
}
