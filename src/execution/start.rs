//! Start of turns: a message creates a task, starts a turn of an existing task, or waits for the next turn.

use std::{
    future::{poll_fn, ready},
    pin::Pin,
    sync::Arc,
};

use futures_util::future::Either;
use tokio::sync::oneshot;

use super::{
    COMMIT_WAIT, Execution, PUSH_IN_SEND, SendRequest,
    concurrency::TurnSlot,
    contexts::ChosenContext,
    idempotency::{IdempotencyKey, PendingSend},
    limits::{RETRY_AFTER, limit_error, store_full},
    not_accepting, ownership_changed, task_ended,
};
use crate::{
    agent::Agent,
    clock,
    error::Error,
    event::{Event, Mark, Seq},
    journal::{
        LiveRef, Phase, TurnContext,
        live::{LiveState, LiveTask, QueuedMessage},
        turns::MAX_MESSAGES_PER_TURN,
        waiters::WaitCondition,
    },
    pb::v1::{Message, Task, TaskState, TaskStatus, stream_response::Payload},
    store::Key,
    task::LimitViolation,
};

/// Signals that a new turn has been polled for the first time. Dropped unsent if no turn starts.
pub(super) type FirstPoll = oneshot::Sender<()>;

impl<A: Agent> Execution<A> {
    /// Accepts a message for a new turn or the next one. `watch` gets the task before that turn runs, and the number of turns
    /// before it. A new task is created before this returns, since values moved into a future are moved twice.
    pub(super) fn accept<'a, T: Send + Sync + 'a>(
        &'a self,
        mut request: SendRequest,
        first_poll: Option<FirstPoll>,
        watch: impl FnOnce(&mut LiveState, u32) -> T + Send + 'a,
    ) -> impl Future<Output = Result<(LiveRef, T), Error>> + Send + 'a {
        // Before anything is stored or visible. The idempotency key has been made of the whole message.
        request.context.secrets.take_from(&mut request.message);
        if !request.message.task_id.is_empty() {
            return Either::Right(Box::pin(Either::Left(self.follow_up(request, first_poll, watch))));
        }
        match self.0.chosen_context(&request.scope, &request.message) {
            Some(context) if !self.0.fits_context(&context, &request.message) => {
                Either::Right(Box::pin(Either::Right(async move {
                    self.0.read_context_size(&context).await;
                    self.create_task(request, Some(context), first_poll, watch)
                })))
            }
            context => Either::Left(ready(self.create_task(request, context, first_poll, watch))),
        }
    }

    /// Creates a task and starts its first turn.
    fn create_task<T>(
        &self,
        request: SendRequest,
        context: Option<ChosenContext>,
        first_poll: Option<FirstPoll>,
        watch: impl FnOnce(&mut LiveState, u32) -> T,
    ) -> Result<(LiveRef, T), Error> {
        self.check_accepting()?;
        let journal = &self.0.journal;
        let SendRequest { scope, mut message, context: turn_context, push, idempotency_key, .. } = request;
        let env = journal.env();
        let id = env.ids.time_ordered();
        if message.context_id.is_empty() {
            message.context_id = env.ids.time_ordered();
        }
        message.task_id.clone_from(&id);
        // Checked before the agent runs, whose work would be lost.
        journal.store().check_capacity(&scope).map_err(store_full)?;
        let slot = self.0.permits.turn(&scope.owner)?;
        let (key, now) = (Key::new(&scope, &id), env.clock.millis());
        let status =
            TaskStatus { state: TaskState::Submitted.into(), message: None, timestamp: Some(clock::timestamp(now)) };
        let context_id = message.context_id.clone();
        let task = Task { id, context_id, status: Some(status), history: vec![message], ..Task::default() };
        let push = push.map(|push| (*push).for_task(&key));
        let mut live = LiveTask::new(key, journal.store().fence(), task, now);
        live.set_limits(self.0.limits.task_limits());
        let is_chosen = context.is_some();
        let context = context.map(|context| {
            self.0.start_size_read(&context);
            context.into_size()
        });
        live.check_first(context).map_err(|violation| {
            let name = violation.limit().unwrap_or_default();
            let is_context_full = is_chosen && matches!(violation, LimitViolation::ContextBytes(_));
            let why = if is_context_full {
                format!("context {} accepts no more messages: {violation} (limit {name})", live.context)
            } else {
                format!("message: too large: {violation} (limit {name})")
            };
            limit_error(name, why)
        })?;
        live.set_push_config(push);
        let live = journal.insert(live);
        let mut inner = live.lock();
        self.check_phase()?;
        (inner.turn.is_running, inner.turn.number) = (true, 1);
        if slot.is_queued() {
            (inner.turn.attempt, inner.has_task) = (0, true);
        }
        self.store_context(&mut inner, 1, &turn_context);
        let send = idempotency_key.map(|key| PendingSend::new(*key, &mut inner, 1, now));
        let watched = watch(&mut inner, 0);
        journal.flush(&live, inner);
        self.run_after_commit(live.clone(), (Vec::new(), turn_context), slot, first_poll, send);
        Ok((live, watched))
    }

    /// Accepts a message for an existing task.
    async fn follow_up<T>(
        &self,
        request: SendRequest,
        first_poll: Option<FirstPoll>,
        watch: impl FnOnce(&mut LiveState, u32) -> T,
    ) -> Result<(LiveRef, T), Error> {
        self.check_accepting()?;
        let SendRequest { scope, mut message, context: turn_context, push, cleared, idempotency_key } = request;
        let key = Key::new(&scope, &message.task_id);
        let live = self.load(&key).await?;
        if !message.context_id.is_empty() && *message.context_id != *live.context {
            let why = format!("task {} is in context {}; send that or none", key.id(), live.context);
            return Err(Error::invalid_field("message.contextId", why));
        }
        message.context_id = (*live.context).to_owned();
        if !live.lock().has_ended() {
            self.0.enter_context(&live, prost::Message::encoded_len(&message)).await;
        }
        // Stored before the message, so that no event of its turn is missed.
        let created = match push.filter(|_| !live.lock().has_ended()) {
            Some(push) => self.put_push(&key, *push, cleared, PUSH_IN_SEND).await?.1,
            None => None,
        };
        let accepted = self.add_message(live, (message, turn_context, idempotency_key), first_poll, watch).await;
        if let (Err(_), Some(id)) = (&accepted, created) {
            self.delete_push(&key, &id).await?;
        }
        accepted
    }

    /// Adds a message to an existing task: starts a turn, or queues the message for the next one.
    async fn add_message<T>(
        &self,
        live: LiveRef,
        (message, context, idempotency_key): (Message, TurnContext, Option<Box<IdempotencyKey>>),
        first_poll: Option<FirstPoll>,
        watch: impl FnOnce(&mut LiveState, u32) -> T,
    ) -> Result<(LiveRef, T), Error> {
        let key = live.key.clone();
        let ended = {
            let mut inner = live.lock();
            self.check_phase()?;
            if inner.is_lost {
                return Err(ownership_changed());
            }
            let is_busy = inner.turn.is_running && !inner.admission.state().is_terminal();
            if is_busy && inner.turn.inbox.len() >= self.0.limits.queued_messages {
                let why = format!(
                    "{} messages wait for task {}; retry once it has answered (limits.queued_messages)",
                    inner.turn.inbox.len(),
                    key.id()
                );
                return Err(limit_error("queued_messages", why).retry_after(RETRY_AFTER));
            }
            let slot = if inner.turn.is_running || inner.admission.state().is_terminal() {
                None
            } else {
                Some(self.0.permits.turn(&key.scope().owner)?)
            };
            match inner.accept(Event::pending(Payload::Message(message)), Mark::HIDDEN) {
                Ok(event) => {
                    inner.has_task = true;
                    let (seq, now) = (event.seq(), self.0.journal.env().clock.millis());
                    let send = idempotency_key.map(|key| PendingSend::new(*key, &mut inner, seq, now));
                    self.store_context(&mut inner, seq, &context);
                    let mut first = None;
                    if let Some(slot) = slot {
                        inner.drop_contexts(Some(seq));
                        inner.turn.number += 1;
                        (inner.turn.is_running, inner.turn.delivered_seq) = (true, seq);
                        (inner.turn.attempt, inner.turn.drained) = (1, 0);
                        inner.mark_working(|| live.status_event(TaskState::Working, None));
                        first = Some((vec![event], context, slot));
                    } else {
                        inner.turn.inbox.push_back(QueuedMessage { event, context });
                    }
                    let turns_before =
                        u32::try_from(inner.turn.inbox.len().div_ceil(MAX_MESSAGES_PER_TURN)).unwrap_or(u32::MAX);
                    let watched = watch(&mut inner, turns_before);
                    if first.is_none() || send.is_some() {
                        self.0.journal.flush(&live, inner);
                    } else {
                        // Committed together with the updates that the agent sends before its first pause.
                        drop(inner);
                    }
                    if let Some((messages, context, slot)) = first {
                        self.run_after_commit(live.clone(), (messages, context), slot, first_poll, send);
                    } else {
                        self.release_after_commit(send);
                    }
                    return Ok((live, watched));
                }
                Err(violation) if violation.limit().is_some() => {
                    let name = violation.limit().unwrap_or_default();
                    let why = format!("task {} accepts no more messages: {violation}", key.id());
                    return Err(limit_error(name, why).with("taskId", key.id()));
                }
                Err(_) if inner.has_ended() => None,
                // The end of the task is not durable yet, and so not visible.
                Err(_) => Some(inner.wait_for(WaitCondition::TaskEnd)),
            }
        };
        if let Some(ended) = ended {
            self.wait_for_commit(&live, ended, COMMIT_WAIT).await?;
        }
        Err(task_ended(key.id()))
    }

    /// Stores the context of a message. If the store does not outlive the process, only one with a trace.
    fn store_context(&self, inner: &mut LiveState, seq: Seq, context: &TurnContext) {
        if context.trace.is_some() || self.0.journal.store().immediate().is_none() {
            inner.store_context(seq, context);
        }
    }

    /// Rejects work while the store is unavailable, and from the start of a drain.
    pub(super) fn check_accepting(&self) -> Result<(), Error> {
        if self.0.journal.is_store_unavailable() { Err(not_accepting()) } else { self.check_phase() }
    }

    /// Rejects work from the start of a drain. Called under the task's lock: a caller that holds it before
    /// [`Journal::enter_phase`](crate::journal::Journal::enter_phase) is woken by that, and a later one sees the phase.
    pub(super) fn check_phase(&self) -> Result<(), Error> {
        if self.0.journal.phase() > Phase::Open { Err(not_accepting()) } else { Ok(()) }
    }

    /// Runs a turn, and those of the messages that wait for it.
    pub(super) fn run(
        &self,
        live: LiveRef,
        (messages, context): (Vec<Event>, TurnContext),
        slot: TurnSlot,
        first_poll: Option<FirstPoll>,
    ) {
        // Boxed, because the runtime moves a spawned future several times, and this one is large.
        let turns = Box::pin(Arc::clone(&self.0).turns(live, messages, context, slot));
        // Not awaited by the caller: the turn continues if the caller disconnects.
        drop(self.0.running.spawn(signal_first_poll(turns, first_poll)));
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
