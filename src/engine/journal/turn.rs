//! Operations of the runner of a turn, and of its agent, on a live task. Each is one transition under the lock of the task.

use std::{mem, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::Either;
use parking_lot::MutexGuard;
use prost::Message as _;
use tokio::{
    sync::oneshot,
    task::coop::consume_budget,
    time::{Instant, timeout_at},
};

use super::{
    LiveRef, Phase,
    failure::{ERROR_ID, FailureReports, LimitExceeded},
    live::{LiveState, TurnFailure, outcome_of},
    memory::Waiting,
    turn_context::TurnContext,
    turns::MAX_MESSAGES_PER_TURN,
    waiters::{TurnReply, WaitCondition, Wakeups},
};
use crate::{
    base::{metric, stderr},
    protocol::{
        error::Error,
        event::{Ends, Event, EventFlags, Fence},
        message::secret::Secrets,
        pb::{
            v1::{Message, Part, Task, TaskState, part},
            wkt::Struct,
        },
    },
    store::turn_record::time_of,
};

/// Maximum time that pending updates of an agent that does not pause wait for their commit.
const MAX_PENDING: Duration = Duration::from_millis(1);

/// The turn accepts no more updates: it has ended, is canceled, or the server stops.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnEnded;

/// Reason why a turn stops before its agent has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TurnStop {
    /// The task has another writer, or the server has stopped: nothing is recorded.
    Abandoned,
    /// The turn exceeded a limit, or the store rejected its changes.
    LimitExceeded,
    /// The store rejected its message, which has ended the task.
    Ended,
    /// The task is canceled.
    Canceled,
}

/// Start of an agent.
pub(crate) struct AgentStart {
    /// Task as the agent gets it.
    pub(crate) task: Arc<Task>,
    /// Number of the turn.
    pub(crate) turn: u32,
    /// Number of this attempt to run it.
    pub(crate) attempt: u32,
    /// Fencing token of its events.
    pub(crate) fence: Fence,
    /// Number of updates before it.
    pub(crate) updates: u64,
    /// Time at which it is called.
    pub(crate) started: Instant,
    /// Span of the log lines of the turn.
    pub(crate) log: tracing::Span,
}

/// State of a turn while its agent waits.
pub(crate) struct AgentPause {
    /// There is a task. Before, the turn may still reply with a plain message.
    pub(crate) has_task: bool,
    /// There are changes to commit, or they were passed to the store just now.
    pub(crate) has_changes: bool,
    /// Reason for which the agent waits.
    pub(crate) waits_for: WaitsFor,
    /// Number of updates so far.
    pub(crate) updates: u64,
}

/// Reason for which the agent of a turn waits, as far as the task shows.
pub(crate) enum WaitsFor {
    /// Nothing that the task shows.
    Nothing,
    /// The store, which has too many uncommitted updates, or memory.
    Store,
    /// The client, from which the state of the task requests something.
    Client,
}

/// Result of a turn, as its runner reports it.
pub(crate) enum TurnResult {
    /// A message instead of a task; the final message of the task if there is one.
    Reply(Message),
    /// This state, with a message.
    Status(TaskState, Option<Message>),
    /// A failure for one of the [reasons](crate::store::turn_record::REASONS), with its cause for the log, and a message for the
    /// client. If there is no task yet, the call fails with the error instead.
    Failure(&'static str, String, Option<Message>, Option<Error>),
}

/// Runner of a turn.
impl LiveRef {
    /// Returns the task for the start of a turn, or a receiver to wait for first: the first turn gets the uncommitted task;
    /// later ones wait until the end of the turn before is durable.
    pub(crate) fn task_for_turn(&self) -> Result<Arc<Task>, oneshot::Receiver<TurnReply>> {
        let mut state = self.lock();
        match state.accepted.initial_task.as_ref().or(state.durable.task.as_ref()) {
            Some(task) if state.turn.ended + 1 >= state.turn.number => Ok(Arc::clone(task)),
            _ => {
                let before = state.turn.number.saturating_sub(1);
                Err(state.wait_for(WaitCondition::Turn(before, 0)))
            }
        }
    }

    /// Returns why a turn in the queue must stop, if it must.
    pub(crate) fn queued_turn_stop(&self) -> Option<TurnStop> {
        let state = self.lock();
        self.stop(&state).or_else(|| state.turn.cancel_requested.then_some(TurnStop::Canceled))
    }

    /// Records the first attempt of a turn that waited in the queue, before the agent runs: a restart must not repeat it
    /// unless the agent is resumable. Returns a receiver that completes once that is durable, `None` if the turn had begun
    /// before, or why it does not run.
    pub(crate) fn begin_turn(&self) -> Result<Option<oneshot::Receiver<TurnReply>>, TurnStop> {
        let mut state = self.lock();
        if state.turn.attempt > 0 {
            return Ok(None);
        }
        if let Some(stop) = self.stop(&state) {
            return Err(stop);
        }
        (state.turn.attempt, state.accepted.row_changed) = (1, true);
        if state.admission.state() != TaskState::Working {
            // At its event limit, the task keeps its state, and the turn fails at the agent's first update.
            drop(state.accept(self.status_event(TaskState::Working, None), EventFlags::NOTHING));
        }
        let delivered = state.turn.delivered_seq;
        let durable = state.wait_for(WaitCondition::TurnBegun(delivered));
        self.journal().flush(self, state);
        Ok(Some(durable))
    }

    /// Records that the agent is called with this task. Returns `None` if the turn must not go on.
    pub(crate) fn start_agent(&self, task: Arc<Task>) -> Option<AgentStart> {
        let mut state = self.lock();
        if self.is_abandoned(&state) {
            return None;
        }
        state.turn.begun = state.turn.number;
        let started = state.record_begin();
        let (task, log) = (state.with_answered_status(task), state.log_span(self));
        let (turn, attempt, updates) = (state.turn.number, state.turn.attempt, state.turn.updates);
        Some(AgentStart { task, turn, attempt, fence: state.fence(), updates, started, log })
    }

    /// Begins a poll of the agent, whose updates are then committed together when it pauses. Returns whether a cancel is
    /// requested, or why the turn must stop.
    pub(crate) fn begin_poll(&self) -> Result<bool, TurnStop> {
        let mut state = self.lock();
        if let Some(stop) = self.stop(&state) {
            return Err(stop);
        }
        state.turn.agent_polled = true;
        Ok(state.turn.cancel_requested)
    }

    /// Ends a poll of the agent, which waits now. From then on, there is a task if `has_task`. With `commits`, pending
    /// changes are committed.
    pub(crate) fn end_poll(&self, has_task: bool, commits: bool) -> AgentPause {
        let mut state = self.lock();
        state.turn.agent_polled = false;
        state.has_task |= has_task;
        let pause = AgentPause {
            has_task: state.has_task,
            has_changes: state.is_dirty(),
            waits_for: if state.is_full() || state.charge.is_waiting() {
                WaitsFor::Store
            } else if state.admission.state().is_interrupted() {
                WaitsFor::Client
            } else {
                WaitsFor::Nothing
            },
            updates: state.turn.updates,
        };
        if pause.has_changes && commits {
            self.journal().flush(self, state);
        }
        pause
    }

    /// Records the result of a turn, and returns the messages of the next one. `yields` says that a requested cancel overrides
    /// the result. Without a next turn, `permit` is dropped before the end is visible, because the client may send the next
    /// message at once.
    pub(crate) fn end_turn<P>(
        &self,
        result: TurnResult,
        yields: bool,
        permit: &mut Option<P>,
    ) -> Option<(Vec<Event>, Box<TurnContext>)> {
        let mut state = self.lock();
        state.turn.agent_polled = false;
        if self.is_abandoned(&state) {
            // The agent may have returned because it saw the stop.
            self.drain_turn(state);
            return None;
        }
        let mut failure = None;
        let (status, message) = match result {
            _ if let Some(exceeded) = &state.turn.exceeded => {
                let failed = failure.insert(self.failure("limit", exceeded.to_string()));
                (TaskState::Failed, Some(exceeded.message(&failed.id)))
            }
            _ if yields && state.turn.cancel_requested => (TaskState::Canceled, None),
            TurnResult::Reply(message)
                if !state.has_task && message.encoded_len() <= state.admission.max_event_bytes() =>
            {
                let mut message = self.complete_message(message);
                message.task_id.clear();
                self.close_record(&mut state, "reply", None);
                return self.reply(state, TurnReply::Message(Box::new(message)), permit);
            }
            TurnResult::Failure(reason, cause, _, Some(refusal)) if !state.has_task => {
                let failed = self.failure(reason, cause);
                let refusal = refusal.with(ERROR_ID, failed.id.as_str());
                self.close_record(&mut state, "failed", Some(&failed));
                return self.reply(state, TurnReply::Refused(refusal), permit);
            }
            TurnResult::Reply(message) => (TaskState::Completed, Some(message)),
            TurnResult::Status(status, message) => (status, message),
            TurnResult::Failure(reason, cause, message, _) => {
                let failed = failure.insert(self.failure(reason, cause));
                (TaskState::Failed, Some(self.failure_message(failed, message)))
            }
        };
        let mut ends = if status.is_terminal() { Ends::Task } else { Ends::Turn };
        let mut ended = state.accept(self.status_event(status, message), EventFlags::ending(ends));
        if let Err(violation) = ended
            && violation.limit().is_some()
        {
            // The agent's last message exceeds a limit.
            ends = Ends::Task;
            let exceeded = LimitExceeded::Task(violation);
            let failed = failure.insert(self.failure("limit", exceeded.to_string()));
            let status = self.status_event(TaskState::Failed, Some(exceeded.message(&failed.id)));
            ended = state.accept(status, EventFlags::ending(ends));
        }
        let outcome = if failure.is_some() { "failed" } else { outcome_of(status) };
        self.close_record(&mut state, outcome, failure.as_ref());
        if ended.is_err() {
            // Only its running turn may end a task.
            tracing::error!(task.id = self.key.id(), "turn ended after its task");
        }
        state.has_task = true;
        let waiting = if ends == Ends::Task { 0 } else { state.turn.inbox.len().min(MAX_MESSAGES_PER_TURN) };
        let (mut context, mut secrets, mut first) = (None, Secrets::default(), None);
        let (is_traced, mut traces) = (self.journal().sources().tracing.is_on(), Vec::new());
        let next: Vec<Event> = state
            .turn
            .inbox
            .drain(..waiting)
            .map(|message| {
                metric::TURN_WAIT.observe(self.journal().agent(), &["message"], message.accepted.elapsed());
                first.get_or_insert(message.accepted);
                let context: &mut Box<TurnContext> = context.insert(message.context);
                if is_traced {
                    traces.push((context.trace.clone(), context.traced.clone()));
                }
                secrets.append(mem::take(&mut context.secrets));
                message.event
            })
            .collect();
        state.accepted.contexts.drop_before(next.last().map(Event::seq));
        if let Some(last) = next.last() {
            state.turn.number += 1;
            (state.turn.delivered_seq, state.turn.attempt, state.turn.drained) = (last.seq(), 1, 0);
            if let (Some(at), Some(context)) = (first, &mut context) {
                context.join_traces(traces);
                self.open_turn(&mut state, "follow_up", at, context);
            }
            state.mark_working(|| self.status_event(TaskState::Working, None));
        } else {
            state.turn.is_running = false;
            state.charge.release_exclusive_half();
            drop(permit.take());
        }
        self.journal().flush(self, state);
        let mut context = context?;
        context.secrets = secrets;
        Some((next, context))
    }

    /// Ends a turn with a reply instead of a task.
    fn reply<T, P>(&self, mut state: MutexGuard<'_, LiveState>, reply: TurnReply, permit: &mut Option<P>) -> Option<T> {
        let wakeups = state.reply_with(reply);
        drop(state);
        drop(permit.take());
        self.send_wakeups(wakeups);
        None
    }

    /// Waits until the end of the task is durable. Returns false if it does not end in this process: it has another writer, or the
    /// stop of the server has interrupted its turn.
    #[cfg(feature = "client")]
    pub(crate) async fn wait_until_ended(&self) -> bool {
        loop {
            let changed = {
                let state = self.lock();
                if state.has_ended() {
                    return true;
                }
                // An end that was accepted before the stop is still committed.
                let may_end = state.admission.state().is_terminal() && !state.is_lost;
                if self.is_abandoned(&state) && !may_end {
                    return false;
                }
                self.changed().notified()
            };
            changed.await;
        }
    }

    /// Records in the row of a task that a stop of the server interrupted its turn: the attempt does not count against the
    /// maximum, unlike one that a crash interrupted. A first attempt that did not get as far as the agent is none.
    pub(crate) fn record_drain(&self) {
        self.drain_turn(self.lock());
    }

    fn drain_turn(&self, mut state: MutexGuard<'_, LiveState>) {
        self.close_record(&mut state, "abandoned", None);
        let journal = self.journal();
        if journal.store().as_sync().is_none()
            && journal.phase() == Phase::Stopped
            && !state.is_lost
            && state.turn.is_running
            && state.turn.attempt > 0
        {
            if state.turn.attempt == 1 && state.turn.begun < state.turn.number {
                state.turn.attempt = 0;
            } else {
                state.turn.drained = state.turn.drained.saturating_add(1);
            }
            state.accepted.row_changed = true;
            journal.flush(self, state);
        }
    }

    /// Returns why a turn must stop, if it must.
    fn stop(&self, state: &LiveState) -> Option<TurnStop> {
        match &state.turn.exceeded {
            _ if self.is_abandoned(state) => Some(TurnStop::Abandoned),
            Some(_) if state.turn.is_running => Some(TurnStop::LimitExceeded),
            Some(_) => Some(TurnStop::Ended),
            None => None,
        }
    }

    /// Returns whether the turn of a task must not go on: the task has another writer, or the server has stopped.
    fn is_abandoned(&self, state: &LiveState) -> bool {
        state.is_lost || self.journal().phase() == Phase::Stopped
    }

    /// Returns the failure of a turn, with a new id of the line in the log.
    pub(super) fn failure(&self, reason: &'static str, cause: String) -> TurnFailure {
        TurnFailure { id: self.journal().sources().ids.time_ordered(), reason, cause }
    }

    /// Returns the status message of a failed turn, with the id of the line in the log that has the cause: the agent's, if there is
    /// one.
    fn failure_message(&self, failure: &mut TurnFailure, message: Option<Message>) -> Message {
        let reports = self.failure_reports();
        let TurnFailure { id, reason, cause } = failure;
        let exposed = reports.exposed(cause);
        let Some(mut message) = message else {
            let named = matches!(*reason, "panic" | "deadline" | "idle");
            let (kind, shown) = if named { (*reason, format!(" ({reason})")) } else { ("error", String::new()) };
            let task = self.key.id();
            stderr::report(format_args!(
                "turn failed: error.id={id} task.id={task} error.kind={kind} error.cause={cause}"
            ));
            let exposed = exposed.map(|cause| format!("\n{cause}")).unwrap_or_default();
            let text = format!("Agent execution failed{shown}: error id {id}{exposed}");
            return Message::agent(text).with_detail(ERROR_ID, &**id);
        };
        // An upstream agent that runs this program has logged the failure with its id.
        if let Some(known) = message.detail(ERROR_ID).filter(|known| time_of(known).is_some()) {
            known.clone_into(id);
        }
        // The cause has the text of the message, and perhaps more.
        if let Some(cause) = exposed.filter(|_| *cause != message.text()) {
            message.parts.retain(|part| !matches!(part.content, Some(part::Content::Text(_))));
            message.parts.insert(0, Part::text(cause));
        }
        message.with_detail(ERROR_ID, &**id)
    }

    fn failure_reports(&self) -> FailureReports {
        self.journal().failure_reports.get().cloned().unwrap_or_default()
    }
}

/// Agent of a turn.
impl LiveRef {
    /// Returns the state that the agent saved.
    pub(crate) fn agent_state(&self) -> Option<Bytes> {
        self.lock().turn.agent_state.clone()
    }

    /// Returns whether a cancel is requested.
    pub(crate) fn is_cancel_requested(&self) -> bool {
        self.lock().turn.cancel_requested
    }

    /// Returns the metadata of the first cancel request that has any.
    pub(crate) fn cancel_metadata(&self) -> Option<Struct> {
        self.lock().turn.cancel_metadata.as_deref().cloned()
    }

    /// Returns whether the task has another writer, or does not exist.
    pub(crate) fn is_lost(&self) -> bool {
        self.lock().is_lost
    }

    /// Returns the maximum size of an event.
    pub(crate) fn max_event_bytes(&self) -> usize {
        self.lock().admission.max_event_bytes()
    }

    /// Adds an event of turn number `turn`. This is no `async fn`, which would store the event twice in the future of each
    /// agent.
    pub(crate) fn push_update(&self, turn: u32, event: Event) -> impl Future<Output = Result<(), TurnEnded>> + Send {
        let (bytes, mut event) = (event.approximate_size(), Some(event));
        self.update(turn, bytes, move |state| match event.take() {
            Some(event) if state.repeats_working(&event) => Ok(()),
            Some(event) => state.accept(event, EventFlags::NOTHING).map(drop).map_err(|violation| {
                state.turn.exceeded = violation.limit().map(|_| LimitExceeded::Task(violation));
                TurnEnded
            }),
            None => Ok(()),
        })
    }

    /// Saves state of the agent of turn number `turn`, for its next turn.
    pub(crate) async fn save_agent_state(&self, turn: u32, bytes: Bytes) -> Result<(), TurnEnded> {
        self.update(turn, bytes.len(), |state| {
            state.save_agent_state(bytes.clone());
            Ok(())
        })
        .await
    }

    /// Waits until everything accepted so far is committed.
    pub(crate) async fn commit_updates(&self, turn: u32) -> Result<(), TurnEnded> {
        let mut last = None;
        loop {
            let changed = {
                let state = self.lock();
                if self.has_turn_ended(&state, turn) {
                    return Err(TurnEnded);
                }
                // A commit includes everything accepted before. A later event may follow before the next check.
                let last = *last.get_or_insert(state.admission.seq());
                if state.watermark() > last || !state.has_uncommitted() {
                    return Ok(());
                }
                let changed = self.changed().notified();
                self.journal().flush(self, state);
                changed
            };
            changed.await;
        }
    }

    /// Fails turn number `turn`, unless it has ended, because there is no memory for an update.
    fn end_without_memory(&self, turn: u32) {
        let mut state = self.lock();
        if !self.has_turn_ended(&state, turn) {
            let max = self.journal().memory().max_per_owner();
            state.turn.exceeded = Some(LimitExceeded::Memory { max });
        }
        drop(state);
        self.send_wakeups(Wakeups::control());
    }

    /// Returns whether turn number `turn` accepts no more updates.
    fn has_turn_ended(&self, state: &LiveState, turn: u32) -> bool {
        self.is_abandoned(state)
            || state.turn.exceeded.is_some()
            || state.turn.cancel_requested
            || !state.turn.is_running
            || state.turn.number != turn
    }

    /// Applies an update of the agent with so many bytes as soon as there is capacity for pending events, and memory, unless
    /// the turn has ended.
    async fn update(
        &self,
        turn: u32,
        bytes: usize,
        mut update: impl FnMut(&mut LiveState) -> Result<(), TurnEnded>,
    ) -> Result<(), TurnEnded> {
        let mut waiting: Option<Box<Waiting>> = None;
        loop {
            // Yields to the runtime from time to time, even if the store never makes the agent wait.
            consume_budget().await;
            let changed = {
                let mut state = self.lock();
                if self.has_turn_ended(&state, turn) {
                    state.turn.rejected_events += 1;
                    return Err(TurnEnded);
                }
                state.has_task = true;
                let is_full = state.is_full();
                let reserved = if is_full { Ok(()) } else { state.reserve(bytes, true) };
                match reserved {
                    Ok(()) if is_full => {
                        let changed = self.changed().notified();
                        self.journal().flush(self, state);
                        Either::Left(changed)
                    }
                    Ok(()) => {
                        let result = update(&mut state);
                        state.turn.updates = state.turn.updates.wrapping_add(1);
                        if state.turn.exceeded.is_some() {
                            // Wakes the runner, which fails the turn.
                            drop(state);
                            self.send_wakeups(Wakeups::control());
                        } else if !state.turn.agent_polled || state.has_pending_longer_than(MAX_PENDING) {
                            // The runner flushes when the agent pauses. An agent that does not pause flushes here, once
                            // updates have been pending for too long.
                            self.journal().flush(self, state);
                        }
                        return result;
                    }
                    Err(refusal) => {
                        waiting = waiting.or_else(|| state.charge.wait(bytes).map(Box::new));
                        let Some(waiting) = &mut waiting else {
                            drop(state);
                            self.end_without_memory(turn);
                            continue;
                        };
                        let deadline = waiting.deadline(&refusal);
                        let control = self.control.notified();
                        self.journal().flush(self, state);
                        let released = async {
                            tokio::select! { biased; () = refusal.released => {}, () = control => {} }
                        };
                        // Boxed, so that the futures of agents stay small.
                        Either::Right(Box::pin(timeout_at(deadline, released)))
                    }
                }
            };
            match changed {
                Either::Left(changed) => changed.await,
                Either::Right(released) => {
                    if released.await.is_err() {
                        self.end_without_memory(turn);
                    }
                }
            }
        }
    }
}
