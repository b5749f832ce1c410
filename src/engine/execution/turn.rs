//! Running of a turn: polls the agent until it returns, is canceled, times out, panics or exceeds a limit, and records the
//! outcome.

use std::{
    any::Any,
    future::poll_fn,
    mem,
    ops::ControlFlow,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::{Arc, OnceLock},
    task::{Poll, ready},
    time::Duration,
};

use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until},
};

use super::{
    Limits, Shared,
    concurrency::{QueuedTurn, TurnPermit, TurnSlot},
};
use crate::{
    base::{clock, metric, trace::TraceScope},
    engine::{
        agent::{self, End, Turn, Updates},
        journal::{AgentPause, AgentStart, LiveRef, TurnContext, TurnReply, TurnResult, TurnStop, WaitsFor},
    },
    protocol::{event::Event, message::hops, pb::v1::TaskState},
};

/// Signals that a new turn has been polled for the first time. Dropped unsent if no turn starts.
pub(super) type FirstPoll = oneshot::Sender<()>;

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
    /// The turn stopped before the agent returned: with [`TurnStop::Canceled`], because it did not do so within the grace
    /// period.
    Stopped(TurnStop),
}

impl Shared {
    /// Runs a turn, and those of the messages that wait for it.
    pub(super) async fn turns(
        self: Arc<Self>,
        live: LiveRef,
        mut messages: Vec<Event>,
        mut context: Box<TurnContext>,
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
            let task = match live.task_for_turn() {
                Ok(task) => task,
                Err(previous_end) => match previous_end.await {
                    Ok(TurnReply::Task(task)) => task,
                    Ok(TurnReply::Message(_) | TurnReply::Refused(_)) | Err(_) => return live.record_drain(),
                },
            };
            let Some(start) = live.start_agent(task) else { return live.record_drain() };
            let outcome = self.run(&live, start, messages, context).await;
            match end(&live, outcome, &mut permit) {
                Some(next) => (messages, context) = next,
                None => return,
            }
        }
    }

    /// Waits until a queued turn may run. Ends its task if it is canceled before. `None` if the turn does not run.
    async fn wait_in_queue(&self, live: &LiveRef, mut turn: QueuedTurn) -> Option<TurnPermit> {
        let (mut control, since) = (pin!(live.control.notified()), Instant::now());
        loop {
            // Before the state is read, so that no change of it is missed.
            control.as_mut().enable();
            if let Some(stop) = live.queued_turn_stop() {
                end(live, TurnOutcome::Stopped(stop), &mut None);
                return None;
            }
            tokio::select! {
                biased;
                permit = turn.permit() => {
                    metric::TURN_WAIT.observe(live.journal().agent(), &["turn"], since.elapsed());
                    return Some(permit);
                }
                () = &mut control => control.set(live.control.notified()),
            }
        }
    }

    /// Records the first attempt of a turn that waited in the queue, before the agent runs: a restart must not repeat it
    /// unless the agent is resumable. Returns false if the turn does not run.
    async fn begin(&self, live: &LiveRef) -> bool {
        match live.begin_turn() {
            Ok(None) => true,
            Ok(Some(durable)) => {
                let is_durable = durable.await.is_ok();
                if !is_durable {
                    live.record_drain();
                }
                is_durable
            }
            Err(stop) => {
                end(live, TurnOutcome::Stopped(stop), &mut None);
                false
            }
        }
    }

    /// Starts the agent and polls it until the turn ends. The future of the agent is created here and boxed: a future stores
    /// its arguments twice.
    fn run(
        &self,
        live: &LiveRef,
        AgentStart { task, turn: number, attempt, fence, updates, started, log }: AgentStart,
        messages: Vec<Event>,
        mut context: Box<TurnContext>,
    ) -> impl Future<Output = TurnOutcome> + Send {
        let timers = TurnTimers::start(&self.limits, updates, started);
        let secrets = mem::take(&mut context.secrets);
        let mut scope = context.traced.as_ref().map(|trace| trace.scope.clone()).unwrap_or_default();
        let mut turn = Turn {
            live: live.clone(),
            task,
            messages,
            originals: Vec::new(),
            context,
            number,
            attempt,
            fence,
            deadline: timers.deadline,
            text: OnceLock::new(),
        };
        turn.originals = secrets.restore(turn.stored_messages());
        // The agent may repeat a secret part anywhere.
        scope.tracing.has_content &= turn.originals.is_empty();
        let hops = turn.hops();
        let sender = Updates { live: live.clone(), turn: number, metadata: None };
        // The agent may panic before it returns a future.
        let started_agent = catch_unwind(AssertUnwindSafe(|| self.agent.dyn_run(turn, sender)));
        self.poll(live, started_agent, timers, (hops, scope, log))
    }

    /// Polls the agent until the turn ends. Commits its updates at its pauses, at most once per `commit_interval`.
    async fn poll(
        &self,
        live: &LiveRef,
        started_agent: Result<AgentFuture<'_>, Box<dyn Any + Send>>,
        mut timers: TurnTimers,
        (hops, scope, log): (u32, TraceScope, tracing::Span),
    ) -> TurnOutcome {
        let mut agent = match started_agent {
            Ok(future) => Some(future),
            Err(panic) => return TurnOutcome::Panicked(panic_message(&*panic)),
        };
        let mut alarm = pin!(sleep_until(timers.task_at));
        let mut control = pin!(live.control.notified());
        let mut is_registered = false;
        let outcome = poll_fn(|cx| {
            // A later cancel or drain wakes this turn. Before the state is read, so that no change of it is missed.
            while control.as_mut().poll(cx).is_ready() {
                control.set(live.control.notified());
            }
            match live.begin_poll() {
                Ok(is_canceled) => timers.set_canceled(is_canceled, &self.limits),
                Err(TurnStop::Ended) => return Poll::Ready(TurnOutcome::Stopped(TurnStop::LimitExceeded)),
                Err(stop) => return Poll::Ready(TurnOutcome::Stopped(stop)),
            }
            let poll = || agent.as_mut().map_or(Poll::Pending, |future| future.as_mut().poll(cx));
            let poll = || log.in_scope(|| scope.run(|| hops::in_turn(hops, poll)));
            match catch_unwind(AssertUnwindSafe(poll)) {
                Ok(Poll::Ready(result)) => return Poll::Ready(TurnOutcome::Returned(result)),
                Err(panic) => return Poll::Ready(TurnOutcome::Panicked(panic_message(&*panic))),
                Ok(Poll::Pending) => {}
            }
            if !mem::replace(&mut is_registered, true) {
                self.contexts.register(live);
            }
            loop {
                let now = Instant::now();
                let pause = live.end_poll(now >= timers.task_at, now >= timers.commit_at);
                match timers.next(&pause, now, &self.limits) {
                    ControlFlow::Continue(next) => {
                        if alarm.deadline() != next {
                            alarm.as_mut().reset(next);
                        }
                        ready!(alarm.as_mut().poll(cx));
                    }
                    ControlFlow::Break(outcome) => return Poll::Ready(outcome),
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
}

/// Records the outcome of a turn, and returns the messages of the next one. Without a next turn, the permit is released.
fn end(
    live: &LiveRef,
    outcome: TurnOutcome,
    permit: &mut Option<TurnPermit>,
) -> Option<(Vec<Event>, Box<TurnContext>)> {
    let failed = |kind, cause: &str| TurnResult::Failure(kind, cause.to_owned(), None, None);
    // A client that has canceled does not answer a request, and expects no failure.
    let (result, yields_to_cancel) = match outcome {
        TurnOutcome::Returned(Ok(end)) => match end {
            End::Reply(message) => (TurnResult::Reply(message), false),
            End::Completed(message) => (TurnResult::Status(TaskState::Completed, message), false),
            End::Rejected(message) => (TurnResult::Status(TaskState::Rejected, Some(message)), false),
            End::InputRequired(message) => (TurnResult::Status(TaskState::InputRequired, Some(message)), true),
            End::AuthRequired(message) => (TurnResult::Status(TaskState::AuthRequired, Some(message)), true),
        },
        TurnOutcome::Returned(Err(mut error)) => {
            let refusal = error.take_refusal();
            let reason = error.reason().unwrap_or(if error.message().is_some() { "agent" } else { "error" });
            (TurnResult::Failure(reason, error.to_string(), error.message().cloned(), refusal), error.is_stopped())
        }
        TurnOutcome::Panicked(cause) => (failed("panic", &cause), false),
        TurnOutcome::Deadline => (failed("deadline", "the turn exceeded its maximum duration (turn.deadline)"), true),
        TurnOutcome::Idle => {
            (failed("idle", "the agent sent no update within its idle timeout (turn.idle_timeout)"), true)
        }
        TurnOutcome::Stopped(TurnStop::Canceled) => (TurnResult::Status(TaskState::Canceled, None), false),
        TurnOutcome::Stopped(TurnStop::LimitExceeded) => {
            (failed("limit", "the turn exceeded a limit of the task"), false)
        }
        TurnOutcome::Stopped(TurnStop::Abandoned) => {
            live.record_drain();
            return None;
        }
        TurnOutcome::Stopped(TurnStop::Ended) => return None,
    };
    live.end_turn(result, yields_to_cancel, permit)
}

/// Timers of a turn.
struct TurnTimers {
    /// Time after which the turn has a task even without an update.
    task_at: Instant,
    deadline: Instant,
    /// End of the grace period, once the turn is canceled.
    grace_ends: Option<Instant>,
    /// Earliest time of the next commit.
    commit_at: Instant,
    /// Idle timeout, if there is one.
    idle_timeout: Option<Duration>,
    /// Number of updates before the turn.
    updates_before: u64,
    /// Number of updates at `idle_since`.
    updates: u64,
    idle_since: Instant,
}

impl TurnTimers {
    /// Returns the timers of a turn that has started, and before which there were `updates`.
    fn start(limits: &Limits, updates: u64, started: Instant) -> Self {
        let (task_at, deadline) =
            (clock::after(started, limits.task_delay), clock::after(started, limits.turn_deadline));
        Self {
            task_at,
            deadline,
            grace_ends: None,
            commit_at: started,
            idle_timeout: Some(limits.turn_idle_timeout).filter(|timeout| !timeout.is_zero()),
            updates_before: updates,
            updates,
            idle_since: started,
        }
    }

    /// Starts the grace period of a turn that is canceled.
    fn set_canceled(&mut self, is_canceled: bool, limits: &Limits) {
        if is_canceled && self.grace_ends.is_none() {
            self.grace_ends = Some(clock::after(Instant::now(), limits.cancel_grace));
        }
    }

    /// Returns the time of the next timer, or the outcome of the turn if one has expired that ends it.
    fn next(&mut self, pause: &AgentPause, now: Instant, limits: &Limits) -> ControlFlow<TurnOutcome, Instant> {
        // A canceled turn has its grace period.
        let idle_at = self.idle_at(pause, now).filter(|_| self.grace_ends.is_none());
        let has_expired = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if has_expired(self.grace_ends) {
            return ControlFlow::Break(TurnOutcome::Stopped(TurnStop::Canceled));
        }
        if self.deadline <= now {
            return ControlFlow::Break(TurnOutcome::Deadline);
        }
        if has_expired(idle_at) {
            return ControlFlow::Break(TurnOutcome::Idle);
        }
        let commit_at = Some(self.commit_at).filter(|at| pause.has_changes && now < *at);
        if pause.has_changes && commit_at.is_none() {
            self.commit_at = clock::after(now, limits.commit_interval);
        }
        let task_at = Some(self.task_at).filter(|_| !pause.has_task);
        let timers = [task_at, commit_at, self.grace_ends, idle_at];
        ControlFlow::Continue(timers.into_iter().flatten().fold(self.deadline, Instant::min))
    }

    /// Returns the time at which the idle timeout expires. An update restarts it, and so does waiting for the client or the store.
    fn idle_at(&mut self, pause: &AgentPause, now: Instant) -> Option<Instant> {
        let timeout = self.idle_timeout?;
        // Without an update of this turn, the state is that of the previous one.
        let waits = match pause.waits_for {
            WaitsFor::Nothing => false,
            WaitsFor::Store => true,
            WaitsFor::Client => pause.updates != self.updates_before,
        };
        if pause.updates != self.updates || waits {
            (self.updates, self.idle_since) = (pause.updates, now);
        }
        Some(clock::after(self.idle_since, timeout))
    }
}

/// Runs a future, and signals when it has been polled for the first time.
pub(super) async fn signal_first_poll<F: Future + Unpin>(
    mut future: F,
    mut first_poll: Option<FirstPoll>,
) -> F::Output {
    poll_fn(|cx| {
        let poll = Pin::new(&mut future).poll(cx);
        if let Some(first_poll) = first_poll.take() {
            // The caller may have stopped waiting.
            _ = first_poll.send(());
        }
        poll
    })
    .await
}

/// Returns the message of a panic.
pub(super) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic without a message".to_owned())
}
