//! How a message comes to a turn: to that of a new task, to the next of one that is there, or to nobody.

use std::{
    future::{poll_fn, ready},
    pin::Pin,
    sync::Arc,
    task::{Context, Waker},
};

use futures_util::future::Either;
use tokio::sync::oneshot;

use super::{
    COMMIT, Execution, SendRequest, busy,
    contexts::Chosen,
    has_ended,
    idempotency::{IdempotencyKey, PendingSend},
    limits::{SOON, TurnPermit, full, limit},
    lost,
};
use crate::{
    agent::Agent,
    clock,
    error::Error,
    event::{Event, Mark},
    ids,
    journal::{
        LiveRef, Phase, TurnContext,
        live::{Inner, Live, QueuedMessage},
        status_update,
        turns::INBOX,
        waiters::WaitCondition,
    },
    pb::v1::{Message, Task, TaskState, TaskStatus, stream_response::Payload},
    store::Key,
    task::Violation,
};

/// Where a turn begins.
#[derive(Debug)]
pub(super) enum StartMode {
    /// In a task of its own.
    Apart,
    /// In a task of its own that signals when it has been polled for the first time. Dropped unsent if no turn begins.
    Signaled(oneshot::Sender<()>),
    /// Where the caller waits for its end, up to the agent's first pause. Many agents make none, and a task of their own
    /// would cost as much as they do.
    Here,
}

impl<A: Agent> Execution<A> {
    /// Gives the message to a turn, new or next. `watch` sees the task before that turn can do anything, and learns how
    /// many turns come before it. A new one has begun when this returns: what is moved into a future is moved twice.
    pub(super) fn begin<'a, T: Send + Sync + 'a>(
        &'a self,
        sent: SendRequest,
        begin: StartMode,
        watch: impl FnOnce(&mut Inner, u32) -> T + Send + 'a,
    ) -> impl Future<Output = Result<(LiveRef, T), Error>> + Send + 'a {
        if !sent.message.task_id.is_empty() {
            return Either::Right(Box::pin(Either::Left(self.follow_up(sent, begin, watch))));
        }
        match self.0.chosen_context(&sent.scope, &sent.message) {
            Some(context) if !self.0.has_room(&context, &sent.message) => {
                Either::Right(Box::pin(Either::Right(async move {
                    self.0.read_now(&context).await;
                    self.begin_new(sent, Some(context), begin, watch)
                })))
            }
            context => Either::Left(ready(self.begin_new(sent, context, begin, watch))),
        }
    }

    fn begin_new<T>(
        &self,
        sent: SendRequest,
        context: Option<Chosen>,
        begin: StartMode,
        watch: impl FnOnce(&mut Inner, u32) -> T,
    ) -> Result<(LiveRef, T), Error> {
        self.takes_work()?;
        let journal = &self.0.journal;
        let SendRequest { scope, mut message, asked, push, name } = sent;
        let id = ids::fresh_id();
        if message.context_id.is_empty() {
            message.context_id = ids::fresh_id();
        }
        message.task_id.clone_from(&id);
        // Before the agent does anything that it would have done for nothing.
        journal.store().check_capacity(&scope).map_err(full)?;
        let permit = self.0.permits.turn(&scope.owner)?;
        let (key, now) = (Key::new(&scope, &id), journal.clock().millis());
        let status =
            TaskStatus { state: TaskState::Submitted.into(), message: None, timestamp: Some(clock::timestamp(now)) };
        let context_id = message.context_id.clone();
        let task = Task { id, context_id, status: Some(status), history: vec![message], ..Task::default() };
        let push = push.map(|it| (*it).of(&key));
        let mut live = Live::new(key, journal.store().fence(), task, now);
        live.bound(self.0.limits.bounds());
        let is_chosen = context.is_some();
        if let Some(context) = context {
            self.0.read_later(&context);
            live.enter_context(context.into_size());
        }
        live.check_first().map_err(|why| {
            let name = why.limit().unwrap_or_default();
            let is_context_full = is_chosen && matches!(why, Violation::ContextBytes(_));
            let why = if is_context_full {
                format!("context {} takes no more messages: {why} (limit {name})", live.context)
            } else {
                format!("the message is too large: {why} (limit {name})")
            };
            limit(name, why)
        })?;
        live.push_to(push);
        let held = journal.insert(live);
        let mut inner = held.lock();
        self.goes_on()?;
        (inner.running, inner.turn) = (true, 1);
        self.note(&mut inner, 1, &asked);
        let taken = name.map(|it| PendingSend::new(*it, &mut inner, 1, now));
        let seen = watch(&mut inner, 0);
        journal.flush(&held, inner);
        self.run_once(held.clone(), (Vec::new(), asked), permit, begin, taken);
        Ok((held, seen))
    }

    async fn follow_up<T>(
        &self,
        sent: SendRequest,
        begin: StartMode,
        watch: impl FnOnce(&mut Inner, u32) -> T,
    ) -> Result<(LiveRef, T), Error> {
        self.takes_work()?;
        let SendRequest { scope, mut message, asked, push, name } = sent;
        let key = Key::new(&scope, &message.task_id);
        let held = self.hold(&key).await?;
        if !message.context_id.is_empty() && *message.context_id != *held.context {
            let why = format!("is not that of task {}, which is in {}", key.id(), held.context);
            return Err(Error::invalid_field("message.contextId", why));
        }
        message.context_id = (*held.context).to_owned();
        if !held.lock().has_ended() {
            self.0.enter_context(&held, prost::Message::encoded_len(&message)).await;
        }
        // Before the message, so that nothing that comes of it is missed.
        let made = match push.filter(|_| !held.lock().has_ended()) {
            Some(push) => self.put_push(&key, *push).await?.1,
            None => None,
        };
        let taken = self.take_in(held, (message, asked, name), begin, watch).await;
        if let (Err(_), Some(id)) = (&taken, made) {
            self.0.journal.store().delete_push(&key, &id).await?;
        }
        taken
    }

    /// Gives a message to a task that is there.
    async fn take_in<T>(
        &self,
        held: LiveRef,
        (message, asked, name): (Message, TurnContext, Option<Box<IdempotencyKey>>),
        begin: StartMode,
        watch: impl FnOnce(&mut Inner, u32) -> T,
    ) -> Result<(LiveRef, T), Error> {
        let key = held.key.clone();
        let ended = {
            let mut inner = held.lock();
            self.goes_on()?;
            if inner.lost {
                return Err(lost());
            }
            if inner.inbox.len() >= self.0.limits.waiting && !inner.ahead.state().is_terminal() {
                let why = format!(
                    "{} messages wait for task {}; send again when it has answered",
                    inner.inbox.len(),
                    key.id()
                );
                return Err(limit("waiting", why).retry_after(SOON));
            }
            let permit = if inner.running || inner.ahead.state().is_terminal() {
                None
            } else {
                Some(self.0.permits.turn(&key.scope().owner)?)
            };
            match inner.push(Event::said(Payload::Message(message)), Mark::HIDDEN) {
                Ok(event) => {
                    inner.real = true;
                    let (seq, now) = (event.seq(), self.0.journal.clock().millis());
                    let taken = name.map(|it| PendingSend::new(*it, &mut inner, seq, now));
                    self.note(&mut inner, seq, &asked);
                    let mut first = None;
                    if let Some(permit) = permit {
                        inner.turn += 1;
                        (inner.running, inner.taken) = (true, seq);
                        (inner.attempt, inner.drained) = (1, 0);
                        inner.supersede(|| status_update(&held, TaskState::Working, None));
                        first = Some((vec![event], asked, permit));
                    } else {
                        inner.inbox.push_back(QueuedMessage { event, asked });
                    }
                    let behind = u32::try_from(inner.inbox.len().div_ceil(INBOX)).unwrap_or(u32::MAX);
                    let seen = watch(&mut inner, behind);
                    if first.is_none() || taken.is_some() {
                        self.0.journal.flush(&held, inner);
                    } else {
                        // It goes to the store with what the agent says until its first pause.
                        drop(inner);
                    }
                    if let Some((messages, asked, permit)) = first {
                        self.run_once(held.clone(), (messages, asked), permit, begin, taken);
                    } else {
                        self.pass_once(taken);
                    }
                    return Ok((held, seen));
                }
                Err(why) if why.limit().is_some() => {
                    let name = why.limit().unwrap_or_default();
                    let why = format!("task {} takes no more messages: {why}", key.id());
                    return Err(limit(name, why).with("taskId", key.id()));
                }
                Err(_) if inner.has_ended() => None,
                // It has ended, and nobody may know that yet.
                Err(_) => Some(inner.wait(WaitCondition::End)),
            }
        };
        if let Some(ended) = ended {
            self.answer(&held, ended, COMMIT).await?;
        }
        Err(has_ended(key.id()))
    }

    /// Refuses work that would have to wait for the store, and once the server is about to stop.
    pub(super) fn takes_work(&self) -> Result<(), Error> {
        if self.0.journal.is_down() { Err(busy()) } else { self.goes_on() }
    }

    /// Refuses work once the server is about to stop. Asked under the task's lock: who has it before
    /// [`Journal::enter`](crate::journal::Journal::enter) is told by that, and who has it after sees the phase.
    pub(super) fn goes_on(&self) -> Result<(), Error> {
        if self.0.journal.phase() > Phase::Open { Err(busy()) } else { Ok(()) }
    }

    pub(super) fn run(
        &self,
        held: LiveRef,
        (messages, asked): (Vec<Event>, TurnContext),
        permit: TurnPermit,
        begin: StartMode,
    ) {
        // In a box, since the runtime moves what it runs several times, and this is large.
        let mut turns = Box::pin(Arc::clone(&self.0).turns(held, messages, asked, permit));
        // Nobody waits for it here: a caller who leaves takes nothing with them.
        match begin {
            // The runtime polls it again in any case, so that a no-op waker suffices.
            StartMode::Here if turns.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() => {}
            StartMode::Here | StartMode::Apart => drop(self.0.running.spawn(turns)),
            StartMode::Signaled(polled) => drop(self.0.running.spawn(signaled(turns, polled))),
        }
    }
}

/// Runs a future, and signals when it has been polled for the first time.
pub(super) async fn signaled<F: Future + Unpin>(mut future: F, polled: oneshot::Sender<()>) -> F::Output {
    let mut polled = Some(polled);
    poll_fn(|cx| {
        let poll = Pin::new(&mut future).poll(cx);
        if let Some(polled) = polled.take() {
            // The caller may have stopped waiting.
            _ = polled.send(());
        }
        poll
    })
    .await
}
