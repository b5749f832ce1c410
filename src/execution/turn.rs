//! One turn: the agent is polled until it returns, or until something else ends it, and how it ended is written.

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

use prost::Message as _;
use serde_json::json;
use tokio::{
    task::coop::has_budget_remaining,
    time::{Instant, sleep_until},
};

use super::{Parts, limits::TurnPermit};
use crate::{
    agent::{self, Agent, End, Turn, Updates},
    clock,
    event::{Ends, Event, Mark},
    ids,
    journal::{
        LiveRef, Phase, TurnContext, complete_message,
        live::{Inner, LimitExceeded},
        status_update,
        turns::INBOX,
        waiters::{TurnReply, WakerRegistration},
    },
    pb::v1::{Message, Task, TaskState},
    report,
};

/// Why an agent is polled no more.
pub(super) enum TurnOutcome {
    /// It said how its turn ends.
    Returned(Result<End, agent::Error>),
    /// It panicked, with these words.
    Panicked(String),
    /// Its time is over.
    Deadline,
    /// It has said nothing for too long.
    Idle,
    /// Canceled, and it did not end by itself.
    Canceled,
    /// It said more than a task may have.
    LimitExceeded,
    /// The task has gone elsewhere, or the server stops: nothing is written.
    Left,
}

impl<A: Agent> Parts<A> {
    /// Runs a turn, and those that messages wait for.
    pub(super) async fn turns(
        self: Arc<Self>,
        held: LiveRef,
        mut messages: Vec<Event>,
        mut asked: TurnContext,
        permit: TurnPermit,
    ) {
        let mut permit = Some(permit);
        loop {
            let found = held.lock().found();
            let task = match found {
                Ok(it) => it,
                Err(end) => match end.await {
                    Ok(TurnReply::Task(it)) => it,
                    Ok(TurnReply::Message(_)) | Err(_) => return self.note_stop(&held),
                },
            };
            let task = held.lock().as_interrupted(task);
            let over = self.run(&held, task, messages, asked).await;
            match self.end(&held, over, &mut permit) {
                Some(next) => (messages, asked) = next,
                None => return,
            }
        }
    }

    /// Polls the agent, and sees to what may stop it. The agent is begun here, and in a box: what is given to a future is
    /// kept in it twice.
    fn run(
        &self,
        held: &LiveRef,
        task: Arc<Task>,
        messages: Vec<Event>,
        asked: TurnContext,
    ) -> impl Future<Output = TurnOutcome> + Send {
        let (number, attempt, heard) = {
            let inner = held.lock();
            (inner.turn, inner.attempt, inner.words)
        };
        let started = Instant::now();
        let (real_at, deadline) =
            (clock::after(started, self.limits.real_after), clock::after(started, self.limits.turn));
        let turn = Turn { held: held.clone(), task, messages, asked, attempt, deadline, text: OnceLock::new() };
        let updates = Updates { held: held.clone(), turn: number };
        // An agent may panic before there is a future.
        let begun = catch_unwind(AssertUnwindSafe(|| Box::pin(self.agent.run(turn, updates))));
        let times = TurnDeadlines { started, real_at, deadline };
        let silence = IdleTimer::new(self.limits.idle, heard, started);
        self.poll(held, begun, times, silence)
    }

    async fn poll<F: Future<Output = Result<End, agent::Error>>>(
        &self,
        held: &LiveRef,
        begun: Result<Pin<Box<F>>, Box<dyn Any + Send>>,
        TurnDeadlines { started, real_at, deadline }: TurnDeadlines,
        mut silence: IdleTimer,
    ) -> TurnOutcome {
        let mut agent = match begun {
            Ok(it) => Some(it),
            Err(panic) => return TurnOutcome::Panicked(words(&*panic)),
        };
        let journal = &self.journal;
        let mut grace_ends = None;
        // When what the agent says may be written next.
        let mut open_at = started;
        let mut timer = pin!(sleep_until(real_at));
        // Who is woken by it: an agent that speaks often need not look at it each time.
        let mut armed: Option<Waker> = None;
        let mut waits = WakerRegistration::new(held, |it| &mut it.control);
        let mut is_counted = false;
        let over = poll_fn(|cx| {
            {
                let mut inner = held.lock();
                if inner.lost || journal.phase() == Phase::Stopped {
                    return Poll::Ready(TurnOutcome::Left);
                }
                if inner.exceeded.is_some() {
                    return Poll::Ready(TurnOutcome::LimitExceeded);
                }
                if inner.cancel && grace_ends.is_none() {
                    grace_ends = Some(clock::after(Instant::now(), self.limits.cancel));
                }
                waits.register(&mut inner, cx);
                inner.polled = true;
            }
            let poll = || agent.as_mut().map_or(Poll::Pending, |it| it.as_mut().poll(cx));
            match catch_unwind(AssertUnwindSafe(poll)) {
                Ok(Poll::Ready(it)) => return Poll::Ready(TurnOutcome::Returned(it)),
                Err(panic) => return Poll::Ready(TurnOutcome::Panicked(words(&*panic))),
                Ok(Poll::Pending) => {}
            }
            loop {
                let mut inner = held.lock();
                inner.polled = false;
                if !mem::replace(&mut is_counted, true) {
                    self.contexts.begin(held, &mut inner);
                }
                let now = Instant::now();
                inner.real |= now >= real_at;
                let mut next = if inner.real { deadline } else { real_at.min(deadline) };
                let silent_until = silence.heard(&inner, now);
                if inner.is_dirty() && now < open_at {
                    next = next.min(open_at);
                    drop(inner);
                } else if inner.is_dirty() {
                    open_at = clock::after(now, self.limits.pace);
                    journal.flush(held, inner);
                } else {
                    drop(inner);
                }
                if grace_ends.is_some_and(|it| it <= now) {
                    return Poll::Ready(TurnOutcome::Canceled);
                }
                if deadline <= now {
                    return Poll::Ready(TurnOutcome::Deadline);
                }
                if silent_until.is_some_and(|it| it <= now) {
                    return Poll::Ready(TurnOutcome::Idle);
                }
                let next = [grace_ends, silent_until].into_iter().flatten().fold(next, Instant::min);
                if timer.deadline() != next {
                    timer.as_mut().reset(next);
                } else if now < next && armed.as_ref().is_some_and(|it| it.will_wake(cx.waker())) {
                    return Poll::Pending;
                }
                if timer.as_mut().poll(cx).is_pending() {
                    // With its share of the thread used up, nothing has been looked at.
                    armed = has_budget_remaining().then(|| cx.waker().clone());
                    return Poll::Pending;
                }
            }
        })
        .await;
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| agent = None)) {
            // What it was to say it has said.
            let words = words(&*panic);
            tracing::warn!(task.id = held.key.id(), error.cause = words, "an agent panicked when it was dropped");
        }
        over
    }

    /// Writes how the turn ended, and says what the next one is given. Where there is none, the permit is given back
    /// before anybody learns of the end: who does may send at once.
    fn end(
        &self,
        held: &LiveRef,
        over: TurnOutcome,
        permit: &mut Option<TurnPermit>,
    ) -> Option<(Vec<Event>, TurnContext)> {
        let failed = |kind, cause: &str| (TaskState::Failed, Some(failure(held, kind, cause)));
        let mut inner = held.lock();
        inner.polled = false;
        if inner.lost || self.journal.phase() == Phase::Stopped {
            // An agent that was just told so may have returned for that.
            drop(inner);
            self.note_stop(held);
            return None;
        }
        let (state, message) = match over {
            TurnOutcome::Left => return None,
            _ if let Some(why) = &inner.exceeded => (TaskState::Failed, Some(why.message(&held.key))),
            TurnOutcome::Returned(Ok(End::Reply(message)))
                if !inner.real && message.encoded_len() <= inner.ahead.max_event_bytes() =>
            {
                let mut message = complete_message(message, "", &held.context);
                message.task_id.clear();
                let wake = inner.answer(message);
                drop(inner);
                drop(permit.take());
                held.fire(wake);
                return None;
            }
            TurnOutcome::Returned(Ok(End::Completed(it))) => (TaskState::Completed, it),
            TurnOutcome::Returned(Ok(End::Reply(it))) => (TaskState::Completed, Some(it)),
            TurnOutcome::Returned(Ok(End::Rejected(it))) => (TaskState::Rejected, Some(it)),
            // It asks a caller who has gone.
            TurnOutcome::Returned(Ok(End::InputRequired(_) | End::AuthRequired(_))) if inner.cancel => {
                (TaskState::Canceled, None)
            }
            TurnOutcome::Returned(Err(it)) if inner.cancel && it.is_stopped() => (TaskState::Canceled, None),
            TurnOutcome::Returned(Ok(End::InputRequired(it))) => (TaskState::InputRequired, Some(it)),
            TurnOutcome::Returned(Ok(End::AuthRequired(it))) => (TaskState::AuthRequired, Some(it)),
            TurnOutcome::Returned(Err(it)) => match it.said() {
                Some(said) => {
                    tracing::warn!(task.id = held.key.id(), error.cause = %it, "an agent failed, and said why");
                    (TaskState::Failed, Some(Message::agent(said)))
                }
                None => failed("error", &it.to_string()),
            },
            TurnOutcome::Canceled => (TaskState::Canceled, None),
            TurnOutcome::Panicked(words) => failed("panic", &words),
            TurnOutcome::Deadline => failed("deadline", "it did not return in time"),
            TurnOutcome::Idle => failed("idle", "it said nothing for too long"),
            TurnOutcome::LimitExceeded => failed("limit", "it said more than a task may have"),
        };
        let mut ends = if state.is_terminal() { Ends::Task } else { Ends::Turn };
        let mut ended = inner.push(status_update(held, state, message), Mark::ending(ends));
        if let Err(why) = ended
            && why.limit().is_some()
        {
            // The agent's last message is more than may be said.
            ends = Ends::Task;
            let status = status_update(held, TaskState::Failed, Some(LimitExceeded::Task(why).message(&held.key)));
            ended = inner.push(status, Mark::ending(ends));
        }
        if ended.is_err() {
            // Nobody else ends a task whose turn runs.
            tracing::error!(task.id = held.key.id(), "a turn ended after its task had");
        }
        inner.real = true;
        let waiting = if ends == Ends::Task { 0 } else { inner.inbox.len().min(INBOX) };
        let mut asked = TurnContext::default();
        let next: Vec<Event> = inner
            .inbox
            .drain(..waiting)
            .map(|it| {
                asked = it.asked;
                it.event
            })
            .collect();
        inner.forget_notes(next.last().map(Event::seq));
        if let Some(it) = next.last() {
            inner.turn += 1;
            (inner.taken, inner.attempt, inner.drained) = (it.seq(), 1, 0);
            inner.supersede(|| status_update(held, TaskState::Working, None));
        } else {
            inner.running = false;
            drop(permit.take());
        }
        self.journal.flush(held, inner);
        (!next.is_empty()).then_some((next, asked))
    }
}

impl<A> Parts<A> {
    /// Notes in the row of a task whose turn a stop of the server cut that this attempt does not count: only crashes do.
    pub(super) fn note_stop(&self, held: &LiveRef) {
        let mut inner = held.lock();
        let lasts = self.journal.store().immediate().is_none();
        if lasts && self.journal.phase() == Phase::Stopped && !inner.lost && inner.running {
            inner.drained = inner.drained.saturating_add(1);
            inner.touched = true;
            self.journal.flush(held, inner);
        }
    }
}

/// When a turn began, when a caller is told of its task though it has said nothing, and when it has to be over.
struct TurnDeadlines {
    started: Instant,
    real_at: Instant,
    deadline: Instant,
}

/// How long an agent may be silent.
struct IdleTimer {
    /// None where it may be for ever.
    most: Option<Duration>,
    /// How much was said before its turn.
    before: u64,
    words: u64,
    since: Instant,
}

impl IdleTimer {
    fn new(most: Duration, words: u64, since: Instant) -> Self {
        Self { most: Some(most).filter(|it| !it.is_zero()), before: words, words, since }
    }

    /// Until when it may go on, as long as nothing is heard. Who waits for their caller or for the store has a reason.
    fn heard(&mut self, inner: &Inner, now: Instant) -> Option<Instant> {
        let most = self.most?;
        // The state may be that of the turn before.
        let asks = inner.words != self.before && inner.ahead.state().is_interrupted();
        if inner.words != self.words || inner.is_full() || asks {
            (self.words, self.since) = (inner.words, now);
        }
        Some(clock::after(self.since, most))
    }
}

/// What the caller is told of a failure: its kind, and an id under which the log has the cause.
fn failure(held: &LiveRef, kind: &'static str, cause: &str) -> Message {
    let id = ids::fresh_id();
    tracing::warn!(error.id = %id, task.id = held.key.id(), error.kind = kind, error.cause = cause, "an agent failed");
    let task = held.key.id();
    report::report(format_args!("an agent failed: error.id={id} task.id={task} error.kind={kind} error.cause={cause}"));
    Message::agent(format!("Agent execution failed ({kind}): error id {id}")).with_metadata(&json!({"errorId": id}))
}

/// What a panic said.
pub(super) fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|it| (*it).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked without words".to_owned())
}
