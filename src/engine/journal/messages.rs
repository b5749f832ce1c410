//! Operations of callers on a live task: they begin it, add messages, cancel it, and wait for replies. Each is one
//! transition under the lock of the task.

use std::{collections::VecDeque, sync::Arc};

use tokio::{sync::oneshot, time::Instant};

use super::{
    LiveRef, Phase,
    failure::{CommitFailure, ERROR_ID},
    live::{LiveState, outcome_of},
    turn_context::TurnContext,
    turns::{AnsweredInterruption, MAX_MESSAGES_PER_TURN, QueuedMessage, Turns},
    waiters::{TurnReply, WaitCondition, Wakeups},
};
use crate::{
    base::clock::Millis,
    protocol::{
        event::{Ends, Event, EventFlags, Position, Seq},
        pb::{
            v1::{Message, Task, TaskState, stream_response::Payload},
            wkt::{Struct, millis},
        },
        task::{ContextBytes, LimitViolation},
    },
    store::IdempotencyRecord,
};

/// Idempotency key of a message, and the digest of its request.
pub(crate) type KeyDigest = (Box<str>, [u8; 16]);

/// Message for an existing task, with what is committed together with it.
pub(crate) struct NewMessage {
    pub(crate) message: Message,
    pub(crate) context: Box<TurnContext>,
    pub(crate) idempotency: Option<KeyDigest>,
    /// Number of the mail with the message. Zero for a message of a client of this process.
    pub(crate) mail: u64,
}

/// Message that was accepted.
pub(crate) struct AcceptedMessage<T> {
    /// Output of the [`Watch`].
    pub(crate) watched: T,
    /// Message and context of the turn that it starts. `None` if it waits for the next turn.
    pub(crate) first: Option<(Vec<Event>, Box<TurnContext>)>,
    /// Receiver that completes once the message and its idempotency key are durable, if it has one.
    pub(crate) recorded: Option<oneshot::Receiver<TurnReply>>,
}

/// Reason why a message is not accepted.
pub(crate) enum MessageRefusal {
    /// The server drains.
    Draining,
    /// The task has another writer.
    Lost,
    /// This process does not run the task, or ends that just now.
    NotRunner(Box<NewMessage>),
    /// The maximum number of messages waits for the next turn.
    QueueFull(usize),
    /// There is no memory for the message.
    MemoryFull,
    /// The message starts a turn, for which the caller needs a permit.
    NeedsTurn(Box<NewMessage>),
    /// The message exceeds a limit.
    Limit(LimitViolation),
    /// The task is in a terminal state. Completes once that is durable, if it is not.
    Ended(Option<oneshot::Receiver<TurnReply>>),
}

/// Reason why a waiter got no reply.
pub(crate) enum WaitFailure {
    /// A change was not committed.
    NotCommitted(CommitFailure),
    /// The task has another writer, or the server has stopped.
    Lost,
    /// The outcome is not known yet.
    Unknown {
        /// The task exists in the store.
        exists: bool,
    },
}

/// Task at the moment at which a message is accepted.
pub(crate) struct Acceptance<'a> {
    state: &'a mut LiveState,
    /// Number of turns that end before that of the message.
    turns_before: u32,
}

/// Begins to follow the turn of a message for its sender, from the acceptance of the message on.
pub(crate) type Watch<T> = fn(Acceptance<'_>) -> T;

/// Start of the stream of a message.
pub(crate) struct EventsStart {
    /// Committed task before the message, and its last event. `None` for a new task.
    pub(crate) committed: Option<(Arc<Task>, Seq)>,
    /// Event at which the stream of a follow-up begins.
    pub(crate) seq: Seq,
    /// Number of turns that end before the stream does.
    pub(crate) turns: u32,
}

/// Waits until the turn of the message has ended or is interrupted. Returns the receiver of the reply, and the event number
/// of the message.
pub(crate) fn watch_turn(Acceptance { state, turns_before }: Acceptance<'_>) -> (oneshot::Receiver<TurnReply>, Seq) {
    let seq = state.newest_message();
    (state.wait_for(WaitCondition::Turn(state.turn.number + turns_before, seq)), seq)
}

/// Waits until the message is durable.
pub(crate) fn watch_commit(Acceptance { state, .. }: Acceptance<'_>) -> oneshot::Receiver<TurnReply> {
    state.has_task = true;
    state.wait_for(WaitCondition::Durable(state.admission.seq()))
}

/// Reads the events of the task. The caller creates the [`Reader`](super::Reader), which is attached already.
pub(crate) fn watch_events(Acceptance { state, turns_before }: Acceptance<'_>) -> EventsStart {
    state.waiters.readers += 1;
    let committed = state.committed().map(|(task, at)| (Arc::clone(task), at.seq));
    EventsStart { committed, seq: state.admission.seq(), turns: turns_before + 1 }
}

/// Messages.
impl LiveRef {
    /// Begins a new task with its first turn. Returns `None` if the server drains.
    pub(crate) fn begin_task<T>(
        &self,
        context: &mut TurnContext,
        idempotency: Option<KeyDigest>,
        is_queued: bool,
        watch: Watch<T>,
    ) -> Option<(T, Option<oneshot::Receiver<TurnReply>>)> {
        let mut state = self.lock();
        if self.journal().phase() > Phase::Open {
            return None;
        }
        (state.turn.is_running, state.turn.number) = (true, 1);
        if is_queued {
            (state.turn.attempt, state.has_task) = (0, true);
        }
        self.store_context(&mut state, 1, context);
        self.open_turn(&mut state, "new", Instant::now(), context);
        let recorded = idempotency.map(|key| self.record_key(&mut state, key, 1));
        let watched = watch(Acceptance { state: &mut state, turns_before: 0 });
        self.journal().flush(self, state);
        Some((watched, recorded))
    }

    /// Returns whether a message would start a turn.
    pub(crate) fn needs_turn(&self) -> bool {
        self.lock().needs_turn()
    }

    /// Adds a message to an existing task: starts a turn, or queues the message for the next one. `is_queued` says whether the
    /// turn that it may start waits for a permit; `None` if the caller has neither. At most `max_queued` messages wait.
    pub(crate) fn add_message<T>(
        &self,
        new: NewMessage,
        is_queued: Option<bool>,
        max_queued: usize,
        watch: Watch<T>,
    ) -> Result<AcceptedMessage<T>, MessageRefusal> {
        let mut state = self.lock();
        if self.journal().phase() > Phase::Open {
            return Err(MessageRefusal::Draining);
        }
        if state.is_lost {
            return Err(MessageRefusal::Lost);
        }
        if !state.is_runner() {
            let has_ended = state.has_ended();
            return Err(if has_ended { MessageRefusal::Ended(None) } else { MessageRefusal::NotRunner(Box::new(new)) });
        }
        let is_busy = state.turn.is_running && !state.admission.state().is_terminal();
        if is_busy && state.turn.inbox.len() >= max_queued {
            return Err(MessageRefusal::QueueFull(state.turn.inbox.len()));
        }
        let starts_turn = state.needs_turn();
        if starts_turn && is_queued.is_none() {
            return Err(MessageRefusal::NeedsTurn(Box::new(new)));
        }
        let NewMessage { message, mut context, idempotency, mail } = new;
        let event = Event::pending(Payload::Message(message));
        if state.reserve(event.approximate_size(), false).is_err() {
            return Err(MessageRefusal::MemoryFull);
        }
        let event = match state.accept(event, EventFlags::HIDDEN) {
            Ok(event) => event,
            Err(violation) if violation.limit().is_some() => return Err(MessageRefusal::Limit(violation)),
            Err(_) if state.has_ended() => return Err(MessageRefusal::Ended(None)),
            // The end of the task is not durable yet, and so not visible.
            Err(_) => return Err(MessageRefusal::Ended(Some(state.wait_for(WaitCondition::TaskEnd)))),
        };
        state.has_task = true;
        state.accepted.mail_read = state.accepted.mail_read.max(mail);
        let seq = event.seq();
        let recorded = idempotency.map(|key| self.record_key(&mut state, key, seq));
        self.store_context(&mut state, seq, &context);
        let waits = is_queued.unwrap_or_default();
        let first = if starts_turn {
            state.accepted.contexts.drop_before(Some(seq));
            state.turn.number += 1;
            (state.turn.is_running, state.turn.delivered_seq) = (true, seq);
            (state.turn.attempt, state.turn.drained) = (u32::from(!waits), 0);
            self.open_turn(&mut state, "follow_up", Instant::now(), &mut context);
            state.mark_working(|| self.status_event(TaskState::Working, None));
            Some((vec![event], context))
        } else {
            state.turn.inbox.push_back(QueuedMessage { event, context, accepted: Instant::now() });
            None
        };
        let turns_before = state.turn.inbox.len().div_ceil(MAX_MESSAGES_PER_TURN);
        let turns_before = u32::try_from(turns_before).unwrap_or(u32::MAX);
        let watched = watch(Acceptance { state: &mut state, turns_before });
        // The message of a queued turn must not be lost if the server stops before the turn begins. The message of another
        // one is committed together with the updates that the agent sends before its first pause.
        if first.is_none() || waits || recorded.is_some() {
            self.journal().flush(self, state);
        }
        Ok(AcceptedMessage { watched, first, recorded })
    }

    /// Stores the context of a message. If the store does not outlive the process, only one with a trace.
    fn store_context(&self, state: &mut LiveState, seq: Seq, context: &TurnContext) {
        if context.trace.is_some() || self.journal().store().as_sync().is_none() {
            state.accepted.contexts.add(seq, context);
        }
    }

    /// Adds the record of an idempotency key to the commit of its message, which is event `seq`. Returns a receiver that
    /// completes once that is durable.
    fn record_key(&self, state: &mut LiveState, (key, hash): KeyDigest, seq: Seq) -> oneshot::Receiver<TurnReply> {
        let time = self.journal().sources().clock.millis();
        state.accepted.idempotency_records.push(IdempotencyRecord { key, hash, seq, time });
        state.has_task = true;
        state.wait_for(WaitCondition::DurableForTurn(seq))
    }
}

/// Ends of a task without its agent.
impl LiveRef {
    /// Requests a cancel of the task. A task without a running turn is canceled at once. Returns the task if it was in a
    /// terminal state before, and otherwise a receiver that completes once its end is durable. `None` if the task has another
    /// writer, or the server has stopped. `mail` is the number of the mail with the request, or zero.
    pub(crate) fn request_cancel(
        &self,
        metadata: Option<Box<Struct>>,
        mail: u64,
    ) -> Option<Result<Arc<Task>, oneshot::Receiver<TurnReply>>> {
        let mut state = self.lock();
        if state.is_lost {
            return None;
        }
        if let Some((task, _)) = state.committed().filter(|(task, _)| task.state().is_terminal()) {
            return Some(Ok(Arc::clone(task)));
        }
        if self.journal().phase() == Phase::Stopped || !state.is_runner() {
            return None;
        }
        if mail > state.accepted.mail_read {
            (state.accepted.mail_read, state.accepted.row_changed) = (mail, true);
        }
        let ended = state.wait_for(WaitCondition::TaskEnd);
        if !state.admission.state().is_terminal() {
            // The row may contain the request already, from an earlier process.
            state.accepted.row_changed |= !state.turn.cancel_requested;
            state.turn.cancel_requested = true;
            state.note_in_span("cancel_requested");
            if state.turn.cancel_metadata.is_none() {
                state.turn.cancel_metadata = metadata;
            }
            if !state.turn.is_running {
                let status = self.status_event(TaskState::Canceled, None);
                // The task is not in a terminal state, as checked above, so the event is accepted.
                drop(state.accept(status, EventFlags::ending(Ends::Task)));
            }
        }
        self.journal().flush(self, state);
        self.send_wakeups(Wakeups::control());
        Some(Err(ended))
    }

    /// Cancels the task if it has waited for its client since before a time. Returns a receiver that completes once that is
    /// durable.
    pub(crate) fn cancel_idle(&self, before: Millis) -> Option<oneshot::Receiver<TurnReply>> {
        let mut state = self.lock();
        let is_idle = !state.is_lost
            && state.is_runner()
            && !state.turn.is_running
            && self.journal().phase() == Phase::Open
            && state.admission.state().is_interrupted()
            && state.committed().is_some_and(|(task, _)| {
                let time = task.status.as_ref().and_then(|status| status.timestamp.as_ref());
                time.is_some_and(|time| millis(time) < before)
            });
        let why = Message::agent("The task was canceled because the client did not answer in time.");
        let status = self.status_event(TaskState::Canceled, Some(why));
        if !is_idle || state.accept(status, EventFlags::ending(Ends::Task)).is_err() {
            return None;
        }
        let ended = state.wait_for(WaitCondition::TaskEnd);
        self.journal().flush(self, state);
        Some(ended)
    }

    /// Resumes the turn of an earlier process, given its context, the turns in the log, the interruption that the turn answers,
    /// and the messages that wait for the next one.
    pub(crate) fn resume_turn(
        &self,
        context: &mut TurnContext,
        turns: Turns,
        answered: Option<AnsweredInterruption>,
        waiting: VecDeque<QueuedMessage>,
    ) {
        let mut state = self.lock();
        (state.durable.turns, state.turn.answered) = (turns, answered.map(Box::new));
        state.turn.inbox.extend(waiting);
        state.turn.number += 1;
        state.turn.is_running = true;
        self.open_turn(&mut state, "recovered", Instant::now(), context);
    }

    /// Updates the row of a task of an earlier process whose log has no unfinished turn.
    pub(crate) fn close_turn(&self, turns: Turns) {
        let mut state = self.lock();
        (state.accepted.row_changed, state.durable.turns) = (true, turns);
        self.journal().flush(self, state);
    }

    /// Ends a task of an earlier process instead of its turn: as canceled, or as failed for this reason.
    pub(crate) fn end_unfinished(&self, context: &mut TurnContext, why: Option<String>) {
        let mut state = self.lock();
        state.turn.number += 1;
        self.open_turn(&mut state, "recovered", Instant::now(), context);
        let failure = why.map(|why| self.failure("error", why));
        let message = failure.as_ref().map(|failed| Message::agent(&*failed.cause).with_detail(ERROR_ID, &*failed.id));
        let state_at_end = if failure.is_some() { TaskState::Failed } else { TaskState::Canceled };
        self.close_record(&mut state, outcome_of(state_at_end), failure.as_ref());
        if state.accept(self.status_event(state_at_end, message), EventFlags::ending(Ends::Task)).is_err() {
            state.accepted.row_changed = true;
        }
        state.accepted.contexts.drop_before(None);
        self.journal().flush(self, state);
    }
}

/// Waiting, and reads of the committed task.
impl LiveRef {
    /// Commits the pending changes.
    pub(crate) fn flush(&self) {
        self.journal().flush(self, self.lock());
    }

    /// Returns the committed task and its position.
    pub(crate) fn committed(&self) -> Option<(Arc<Task>, Position)> {
        self.lock().committed().map(|(task, at)| (Arc::clone(task), at))
    }

    /// Returns the committed task if it includes event `seq`, and otherwise a receiver that completes once it does. From now
    /// on there is a task. `None` if there can't be: the agent has just replied without a task, or the task has another
    /// writer.
    pub(crate) fn task_including(&self, seq: Seq) -> Option<Result<Arc<Task>, oneshot::Receiver<TurnReply>>> {
        let mut state = self.lock();
        if state.is_lost {
            return None;
        }
        state.has_task = true;
        if let Some((task, _)) = state.committed().filter(|(_, at)| at.seq >= seq) {
            return Some(Ok(Arc::clone(task)));
        }
        let durable = state.wait_for(WaitCondition::Durable(seq));
        self.journal().flush(self, state);
        Some(Err(durable))
    }

    /// Returns a receiver that completes once everything accepted is durable, or `None` if it already is.
    pub(crate) fn wait_for_accepted(&self) -> Option<oneshot::Receiver<TurnReply>> {
        let mut state = self.lock();
        let accepted = state.admission.seq();
        (state.watermark() < accepted).then(|| state.wait_for(WaitCondition::Durable(accepted)))
    }

    /// Returns a receiver that completes once the end of the task is durable.
    pub(crate) fn wait_for_end(&self) -> oneshot::Receiver<TurnReply> {
        self.lock().wait_for(WaitCondition::TaskEnd)
    }

    /// Removes waiters whose receivers were dropped.
    pub(crate) fn remove_closed_waiters(&self) {
        self.lock().waiters.conditions.retain(|(_, sender)| !sender.is_closed());
    }

    /// Returns why a waiter got no reply.
    pub(crate) fn wait_failure(&self) -> WaitFailure {
        let state = self.lock();
        match state.commit_failure {
            Some(failure) => WaitFailure::NotCommitted(failure),
            None if state.is_lost || state.waiters.stopped => WaitFailure::Lost,
            None => WaitFailure::Unknown { exists: state.committed().is_some() },
        }
    }

    /// Adds a reader, for which the caller creates the [`Reader`](super::Reader).
    pub(crate) fn attach(&self) {
        self.lock().waiters.readers += 1;
    }

    /// Attaches a reader at the watermark. Returns the task at this position, the position, and the turns up to it. `None` if
    /// nothing is committed.
    pub(crate) fn attach_at_watermark(&self) -> Option<(Arc<Task>, Position, Turns)> {
        let mut state = self.lock();
        let (task, at) = state.committed().map(|(task, at)| (Arc::clone(task), at))?;
        state.waiters.readers += 1;
        Some((task, at, state.durable.turns.clone()))
    }

    /// Returns the number of readers.
    pub(crate) fn readers(&self) -> usize {
        self.lock().waiters.readers
    }

    /// Returns the last event if the task is idle and no message waits for a turn. The turns of a follower are those of its runner.
    pub(crate) fn idle_position(&self) -> Option<Seq> {
        let state = self.lock();
        let is_open = !state.is_runner() && state.durable.is_open;
        (!is_open && state.is_idle() && state.turn.inbox.is_empty()).then(|| state.watermark())
    }

    /// Returns the size of the context in which the task is counted.
    pub(crate) fn context_size(&self) -> Option<Arc<ContextBytes>> {
        self.lock().admission.context().cloned()
    }

    /// Counts the task in this context, unless it is counted in one. `is_first` says that the size does not include what the
    /// task has committed.
    pub(crate) fn enter_context(&self, size: Arc<ContextBytes>, is_first: bool) {
        self.lock().admission.enter_context(size, is_first);
    }

    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.lock().waiters.conditions.len()
    }
}
