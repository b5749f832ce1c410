//! Running of a turn: polls the agent until it returns, is canceled, times out, panics or exceeds a limit, and records the
//! outcome.

use std::{
    any::Any,
    future::poll_fn,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::{Arc, OnceLock},
    task::{Poll, Waker},
    time::Duration,
};

use parking_lot::MutexGuard;
use prost::Message as _;
use tokio::{
    task::coop::has_budget_remaining,
    time::{Instant, sleep_until},
};

use super::{
    Shared,
    concurrency::{QueuedTurn, TurnPermit, TurnSlot},
};
use crate::{
    agent::{self, End, Turn, Updates},
    clock,
    event::{Ends, Event, Mark},
    journal::{
        LiveRef, Phase, TurnContext,
        live::{LimitExceeded, LiveState},
        turns::MAX_MESSAGES_PER_TURN,
        waiters::{TurnReply, WaitCondition},
    },
    message::secret::Secrets,
    pb::v1::{Message, Task, TaskState},
    report,
};

/// Future of a turn of an agent.
type AgentFuture<'a> = Pin<Box<dyn Future<Output = Result<End, agent::Error>> + Send + 'a>>;

/// Outcome of a turn.
pub(super) enum TurnOutcome {
    /// The agent returned.
    Returned(Result<End, agent::Error>),
    /// The agent panicked, with this message.
    Panicked(String),
    /// The turn exceeded its maximum duration.
    Deadline,
    /// The agent sent no update within the idle timeout.
    Idle,
    /// The turn was canceled, and the agent did not return within the grace period.
    Canceled,
    /// The turn exceeded a limit of the task, or the store rejected its changes.
    LimitExceeded,
    /// The task has another writer, or the server stops: nothing is recorded.
    Abandoned,
}

impl Shared {
    /// Runs a turn, and those of the messages that wait for it.
    pub(super) async fn turns(
        self: Arc<Self>,
        live: LiveRef,
        mut messages: Vec<Event>,
        mut context: TurnContext,
        slot: TurnSlot,
    ) {
        let mut permit = match slot {
            TurnSlot::Running(permit) => Some(permit),
            TurnSlot::Queued(turn) => Box::pin(self.wait_in_queue(&live, turn)).await,
        };
        if permit.is_none() || !self.begin(&live).await {
            return;
        }
        loop {
            let found = live.lock().task_for_turn();
            let task = match found {
                Ok(task) => task,
                Err(previous_end) => match previous_end.await {
                    Ok(TurnReply::Task(task)) => task,
                    Ok(TurnReply::Message(_)) | Err(_) => return self.record_drain(&live),
                },
            };
            let task = {
                let mut inner = live.lock();
                if self.is_abandoned(&inner) {
                    drop(inner);
                    return self.record_drain(&live);
                }
                inner.turn.begun = inner.turn.number;
                inner.with_answered_status(task)
            };
            let outcome = self.run(&live, task, messages, context).await;
            match self.end(&live, outcome, &mut permit) {
                Some(next) => (messages, context) = next,
                None => return,
            }
        }
    }

    /// Waits until a queued turn may run. Ends its task if it is canceled before. `None` if the turn does not run.
    async fn wait_in_queue(&self, live: &LiveRef, mut turn: QueuedTurn) -> Option<TurnPermit> {
        let mut control = pin!(live.control.notified());
        loop {
            // Before the state is read, so that no change of it is missed.
            control.as_mut().enable();
            {
                let inner = live.lock();
                if self.is_abandoned(&inner) {
                    drop(inner);
                    self.record_drain(live);
                    return None;
                }
                if inner.turn.exceeded.is_some() {
                    self.end_rejected(live, inner);
                    return None;
                }
                if inner.turn.cancel_requested {
                    drop(inner);
                    self.end(live, TurnOutcome::Canceled, &mut None);
                    return None;
                }
            }
            tokio::select! {
                permit = &mut turn => return Some(permit),
                () = &mut control => control.set(live.control.notified()),
            }
        }
    }

    /// Records the first attempt of a turn that waited in the queue, before the agent runs: a restart must not repeat it
    /// unless the agent is resumable. Returns false if the turn does not run.
    async fn begin(&self, live: &LiveRef) -> bool {
        let durable = {
            let mut inner = live.lock();
            if inner.turn.attempt > 0 {
                return true;
            }
            if self.is_abandoned(&inner) {
                return false;
            }
            if inner.turn.exceeded.is_some() {
                self.end_rejected(live, inner);
                return false;
            }
            (inner.turn.attempt, inner.accepted.row_changed) = (1, true);
            if inner.admission.state() != TaskState::Working {
                // At its event limit, the task keeps its state, and the turn fails at the agent's first update.
                drop(inner.accept(live.status_event(TaskState::Working, None), Mark::NOTHING));
            }
            let delivered = inner.turn.delivered_seq;
            let durable = inner.wait_for(WaitCondition::TurnBegun(delivered));
            self.journal.flush(live, inner);
            durable
        };
        let is_durable = durable.await.is_ok();
        if !is_durable {
            self.record_drain(live);
        }
        is_durable
    }

    /// Ends a turn in the queue whose message the store has rejected, unless the rejection has ended its task.
    fn end_rejected(&self, live: &LiveRef, inner: MutexGuard<'_, LiveState>) {
        let is_running = inner.turn.is_running;
        drop(inner);
        if is_running {
            self.end(live, TurnOutcome::LimitExceeded, &mut None);
        }
    }

    /// Starts the agent and polls it until the turn ends. The future of the agent is created here and boxed: a future stores
    /// its arguments twice.
    fn run(
        &self,
        live: &LiveRef,
        task: Arc<Task>,
        messages: Vec<Event>,
        mut context: TurnContext,
    ) -> impl Future<Output = TurnOutcome> + Send {
        let (number, attempt, updates) = {
            let inner = live.lock();
            (inner.turn.number, inner.turn.attempt, inner.turn.updates)
        };
        let started = Instant::now();
        let (real_at, deadline) =
            (clock::after(started, self.limits.task_delay), clock::after(started, self.limits.turn_deadline));
        let secrets = mem::take(&mut context.secrets);
        let mut turn = Turn {
            live: live.clone(),
            task,
            messages,
            originals: Vec::new(),
            context,
            attempt,
            deadline,
            text: OnceLock::new(),
        };
        turn.originals = secrets.restore(turn.stored_messages());
        let sender = Updates { live: live.clone(), turn: number, metadata: None };
        // The agent may panic before it returns a future.
        let started_agent = catch_unwind(AssertUnwindSafe(|| self.agent.dyn_run(turn, sender)));
        let deadlines = TurnDeadlines { started, real_at, deadline };
        let idle_timer = IdleTimer::new(self.limits.turn_idle_timeout, updates, started);
        self.poll(live, started_agent, deadlines, idle_timer)
    }

    /// Polls the agent until the turn ends. Commits its updates at its pauses, at most once per `commit_interval`.
    async fn poll(
        &self,
        live: &LiveRef,
        started_agent: Result<AgentFuture<'_>, Box<dyn Any + Send>>,
        TurnDeadlines { started, real_at, deadline }: TurnDeadlines,
        mut idle_timer: IdleTimer,
    ) -> TurnOutcome {
        let mut agent = match started_agent {
            Ok(future) => Some(future),
            Err(panic) => return TurnOutcome::Panicked(panic_message(&*panic)),
        };
        let journal = &self.journal;
        let mut grace_ends = None;
        // Earliest time of the next commit.
        let mut commit_at = started;
        let mut timer = pin!(sleep_until(real_at));
        // Waker that the timer has: it is not polled again for each update of the agent.
        let mut armed: Option<Waker> = None;
        let mut control = pin!(live.control.notified());
        let mut is_registered = false;
        let outcome = poll_fn(|cx| {
            {
                let mut inner = live.lock();
                if self.is_abandoned(&inner) {
                    return Poll::Ready(TurnOutcome::Abandoned);
                }
                if inner.turn.exceeded.is_some() {
                    return Poll::Ready(TurnOutcome::LimitExceeded);
                }
                if inner.turn.cancel_requested && grace_ends.is_none() {
                    grace_ends = Some(clock::after(Instant::now(), self.limits.cancel_grace));
                }
                // A later cancel or drain wakes this turn.
                while control.as_mut().poll(cx).is_ready() {
                    control.set(live.control.notified());
                }
                inner.turn.agent_polled = true;
            }
            let poll = || agent.as_mut().map_or(Poll::Pending, |future| future.as_mut().poll(cx));
            match catch_unwind(AssertUnwindSafe(poll)) {
                Ok(Poll::Ready(result)) => return Poll::Ready(TurnOutcome::Returned(result)),
                Err(panic) => return Poll::Ready(TurnOutcome::Panicked(panic_message(&*panic))),
                Ok(Poll::Pending) => {}
            }
            loop {
                let mut inner = live.lock();
                inner.turn.agent_polled = false;
                if !mem::replace(&mut is_registered, true) {
                    self.contexts.register(live, &mut inner);
                }
                let now = Instant::now();
                inner.has_task |= now >= real_at;
                let mut next = if inner.has_task { deadline } else { real_at.min(deadline) };
                // A canceled turn has its grace period.
                let idle_at = idle_timer.update(&inner, now).filter(|_| grace_ends.is_none());
                if inner.is_dirty() && now < commit_at {
                    next = next.min(commit_at);
                    drop(inner);
                } else if inner.is_dirty() {
                    commit_at = clock::after(now, self.limits.commit_interval);
                    journal.flush(live, inner);
                } else {
                    drop(inner);
                }
                if grace_ends.is_some_and(|end| end <= now) {
                    return Poll::Ready(TurnOutcome::Canceled);
                }
                if deadline <= now {
                    return Poll::Ready(TurnOutcome::Deadline);
                }
                if idle_at.is_some_and(|at| at <= now) {
                    return Poll::Ready(TurnOutcome::Idle);
                }
                let next = [grace_ends, idle_at].into_iter().flatten().fold(next, Instant::min);
                if timer.deadline() != next {
                    timer.as_mut().reset(next);
                } else if now < next && armed.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                    return Poll::Pending;
                }
                if timer.as_mut().poll(cx).is_pending() {
                    // Without coop budget, the timer has not registered the waker.
                    armed = has_budget_remaining().then(|| cx.waker().clone());
                    return Poll::Pending;
                }
            }
        })
        .await;
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| agent = None)) {
            // The outcome of the turn is already known.
            let cause = panic_message(&*panic);
            tracing::warn!(task.id = live.key.id(), error.cause = cause, "agent panicked when it was dropped");
        }
        outcome
    }

    /// Records the outcome of a turn, and returns the messages of the next one. Without a next turn, the permit is released
    /// before the end is visible, because the client may send the next message at once.
    fn end(
        &self,
        live: &LiveRef,
        outcome: TurnOutcome,
        permit: &mut Option<TurnPermit>,
    ) -> Option<(Vec<Event>, TurnContext)> {
        let failed = |kind, cause: &str| (TaskState::Failed, Some(failure(live, kind, cause)));
        let mut inner = live.lock();
        inner.turn.agent_polled = false;
        if self.is_abandoned(&inner) {
            // The agent may have returned because it saw the stop.
            drop(inner);
            self.record_drain(live);
            return None;
        }
        let (state, message) = match outcome {
            TurnOutcome::Abandoned => return None,
            _ if let Some(exceeded) = &inner.turn.exceeded => (TaskState::Failed, Some(exceeded.message(&live.key))),
            TurnOutcome::Returned(Ok(End::Reply(message)))
                if !inner.has_task && message.encoded_len() <= inner.admission.max_event_bytes() =>
            {
                let mut message = live.complete_message(message);
                message.task_id.clear();
                let wake = inner.reply_with(message);
                drop(inner);
                drop(permit.take());
                live.send_wakeups(wake);
                return None;
            }
            TurnOutcome::Returned(Ok(End::Completed(message))) => (TaskState::Completed, message),
            TurnOutcome::Returned(Ok(End::Reply(message))) => (TaskState::Completed, Some(message)),
            TurnOutcome::Returned(Ok(End::Rejected(message))) => (TaskState::Rejected, Some(message)),
            // The client has canceled, and will not answer the request.
            TurnOutcome::Returned(Ok(End::InputRequired(_) | End::AuthRequired(_))) if inner.turn.cancel_requested => {
                (TaskState::Canceled, None)
            }
            TurnOutcome::Returned(Err(error)) if inner.turn.cancel_requested && error.is_stopped() => {
                (TaskState::Canceled, None)
            }
            TurnOutcome::Returned(Ok(End::InputRequired(message))) => (TaskState::InputRequired, Some(message)),
            TurnOutcome::Returned(Ok(End::AuthRequired(message))) => (TaskState::AuthRequired, Some(message)),
            TurnOutcome::Returned(Err(error)) => match error.message() {
                Some(message) => {
                    tracing::warn!(task.id = live.key.id(), error.cause = %error, "turn failed with a message");
                    (TaskState::Failed, Some(message.clone()))
                }
                None => failed("error", &error.to_string()),
            },
            TurnOutcome::Canceled => (TaskState::Canceled, None),
            TurnOutcome::Deadline | TurnOutcome::Idle if inner.turn.cancel_requested => (TaskState::Canceled, None),
            TurnOutcome::Panicked(cause) => failed("panic", &cause),
            TurnOutcome::Deadline => failed("deadline", "the turn exceeded its maximum duration (turn.deadline)"),
            TurnOutcome::Idle => failed("idle", "the agent sent no update within its idle timeout (turn.idle_timeout)"),
            TurnOutcome::LimitExceeded => failed("limit", "the turn exceeded a limit of the task"),
        };
        let mut ends = if state.is_terminal() { Ends::Task } else { Ends::Turn };
        let mut ended = inner.accept(live.status_event(state, message), Mark::ending(ends));
        if let Err(violation) = ended
            && violation.limit().is_some()
        {
            // The agent's last message exceeds a limit.
            ends = Ends::Task;
            let status = live.status_event(TaskState::Failed, Some(LimitExceeded::Task(violation).message(&live.key)));
            ended = inner.accept(status, Mark::ending(ends));
        }
        if ended.is_err() {
            // Only its running turn may end a task.
            tracing::error!(task.id = live.key.id(), "turn ended after its task");
        }
        inner.has_task = true;
        let waiting = if ends == Ends::Task { 0 } else { inner.turn.inbox.len().min(MAX_MESSAGES_PER_TURN) };
        let (mut context, mut secrets) = (TurnContext::default(), Secrets::default());
        let next: Vec<Event> = inner
            .turn
            .inbox
            .drain(..waiting)
            .map(|message| {
                context = message.context;
                secrets.append(mem::take(&mut context.secrets));
                message.event
            })
            .collect();
        context.secrets = secrets;
        inner.drop_contexts(next.last().map(Event::seq));
        if let Some(last) = next.last() {
            inner.turn.number += 1;
            (inner.turn.delivered_seq, inner.turn.attempt, inner.turn.drained) = (last.seq(), 1, 0);
            inner.mark_working(|| live.status_event(TaskState::Working, None));
        } else {
            inner.turn.is_running = false;
            drop(permit.take());
        }
        self.journal.flush(live, inner);
        (!next.is_empty()).then_some((next, context))
    }
}

impl Shared {
    /// Returns whether the turn of a task must not go on: the task has another writer, or the server has stopped.
    fn is_abandoned(&self, inner: &LiveState) -> bool {
        inner.is_lost || self.journal.phase() == Phase::Stopped
    }

    /// Records in the row of a task that a stop of the server interrupted its turn: the attempt does not count against the
    /// maximum, unlike one that a crash interrupted. A first attempt that did not get as far as the agent is none.
    pub(super) fn record_drain(&self, live: &LiveRef) {
        let mut inner = live.lock();
        let is_persistent = self.journal.store().immediate().is_none();
        if is_persistent
            && self.journal.phase() == Phase::Stopped
            && !inner.is_lost
            && inner.turn.is_running
            && inner.turn.attempt > 0
        {
            if inner.turn.attempt == 1 && inner.turn.begun < inner.turn.number {
                inner.turn.attempt = 0;
            } else {
                inner.turn.drained = inner.turn.drained.saturating_add(1);
            }
            inner.accepted.row_changed = true;
            self.journal.flush(live, inner);
        }
    }
}

/// Start of a turn, time after which it has a task even without an update, and its deadline.
struct TurnDeadlines {
    started: Instant,
    real_at: Instant,
    deadline: Instant,
}

/// Idle timeout of an agent.
struct IdleTimer {
    /// `None` if there is no timeout.
    timeout: Option<Duration>,
    /// Number of updates before the turn.
    before: u64,
    /// Number of updates at `since`.
    updates: u64,
    since: Instant,
}

impl IdleTimer {
    fn new(timeout: Duration, updates: u64, since: Instant) -> Self {
        Self { timeout: Some(timeout).filter(|timeout| !timeout.is_zero()), before: updates, updates, since }
    }

    /// Returns the time at which the timeout expires. An update restarts it, and so does waiting for the client or the store.
    fn update(&mut self, inner: &LiveState, now: Instant) -> Option<Instant> {
        let timeout = self.timeout?;
        // Without an update of this turn, the state is that of the previous one.
        let waits_for_client = inner.turn.updates != self.before && inner.admission.state().is_interrupted();
        if inner.turn.updates != self.updates || inner.is_full() || waits_for_client {
            (self.updates, self.since) = (inner.turn.updates, now);
        }
        Some(clock::after(self.since, timeout))
    }
}

/// Returns the status message of a failed turn, with the id of the log line that has the cause.
fn failure(live: &LiveRef, kind: &'static str, cause: &str) -> Message {
    let id = live.journal().env().ids.time_ordered();
    tracing::warn!(error.id = %id, task.id = live.key.id(), error.kind = kind, error.cause = cause, "turn failed");
    let task = live.key.id();
    report::report(format_args!("turn failed: error.id={id} task.id={task} error.kind={kind} error.cause={cause}"));
    Message::agent(format!("Agent execution failed ({kind}): error id {id}")).with_detail("errorId", id)
}

/// Returns the message of a panic.
pub(super) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic without a message".to_owned())
}
