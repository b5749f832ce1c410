//! Turns of tasks: who sends and waits, who asks for a task, and what ends a turn from outside.

use std::{sync::Arc, time::Duration};

use futures_util::future::Either;
use parking_lot::Mutex;
use prost::Message as _;
use tokio::{
    sync::{
        oneshot::{
            self,
            error::{RecvError, TryRecvError},
        },
        watch,
    },
    task::AbortHandle,
    time::timeout,
};
use tokio_util::task::TaskTracker;

pub use self::limits::Limits;
pub(crate) use self::sweeper::end_idle;
use self::{
    contexts::Contexts,
    idempotency::KeyLocks,
    limits::{Permits, full, has_read, limit},
    recovery::Quarantine,
    start::StartMode,
};
pub(crate) use self::{idempotency::IdempotencyKey, resubscribe::StreamStart};
use crate::{
    agent::Agent,
    error::{Error, ErrorKind},
    event::{Ends, Mark, Seq},
    history::HistoryLimit,
    journal::{
        Journal, LiveRef, Phase, Reader, TurnContext,
        live::{CommitFailure, Inner, Live},
        status_update,
        waiters::{TurnReply, WaitCondition},
    },
    pb::v1::{Message, Task, TaskState},
    response_budget::Reservation,
    snapshot::Snapshot,
    store::{Key, ListPage, ListQuery, PushConfig, Scope, Store, Unavailable},
    task::TaskLimits,
};

mod contexts;
mod idempotency;
mod limits;
mod push;
mod recovery;
mod resubscribe;
mod start;
mod sweeper;
mod turn;
mod turn_context;

/// What is kept back of a caller's time, so that the answer arrives before they give up.
const MARGIN: Duration = Duration::from_millis(100);

/// How long a caller who has waited for long enough waits for the store, which has not even taken their message in.
const PATIENCE: Duration = Duration::from_secs(5);

/// Maximum time that a caller waits for a commit where the agent has no part in it: of their message (`returnImmediately`),
/// of a cancel, of an end that is on its way to the store.
const COMMIT: Duration = Duration::from_secs(30);

/// Maximum time that the reply to a send with `returnImmediately` waits for the agent's first update, once the task has the
/// message.
const FIRST_UPDATE: Duration = Duration::from_millis(500);

/// A message, and what came with it.
#[derive(Debug)]
pub(crate) struct SendRequest {
    pub(crate) scope: Arc<Scope>,
    pub(crate) message: Message,
    pub(crate) asked: TurnContext,
    /// Where what happens to the task is to be sent. It has no task yet.
    pub(crate) push: Option<Box<PushConfig>>,
    /// What it is known by, if it may be repeated.
    pub(crate) name: Option<Box<IdempotencyKey>>,
}

/// The running of an agent.
pub(crate) struct Execution<A>(Arc<Parts<A>>);

struct Parts<A> {
    agent: A,
    journal: Arc<Journal>,
    limits: Limits,
    running: TaskTracker,
    permits: Permits,
    contexts: Contexts,
    turnstile: Arc<KeyLocks>,
    /// What ran when an earlier process ended has been seen to.
    recovered: watch::Sender<bool>,
    /// Tasks that could not be recovered.
    quarantine: Quarantine,
    /// Deletes what has been kept for long enough.
    keeping: Mutex<Option<AbortHandle>>,
}

impl<A: Agent> Execution<A> {
    pub(crate) fn new(agent: A, store: Arc<dyn Store>, limits: Limits) -> Self {
        let (journal, running, permits) = (Journal::new(store), TaskTracker::new(), Permits::new(&limits));
        // What is gone with its process leaves nothing behind.
        let lasts = journal.store().immediate().is_none();
        let recovered = watch::Sender::new(!lasts);
        let (turnstile, keeping, quarantine) = (Arc::default(), Mutex::default(), Quarantine::default());
        let contexts = Contexts::new(limits.context_bytes);
        let parts =
            Parts { agent, journal, limits, running, permits, contexts, turnstile, recovered, quarantine, keeping };
        let parts = Arc::new(parts);
        if lasts {
            tokio::spawn(Arc::clone(&parts).recover());
        }
        Self(parts)
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.0.limits
    }

    pub(crate) fn journal(&self) -> &Arc<Journal> {
        &self.0.journal
    }

    /// Returns when the turn that processes the message has ended or is interrupted, with the task as it was then
    /// (3.2.2). Returns the current task earlier: shortly before the caller's deadline in `left`, or after
    /// [`Limits::wait`] if that is set.
    pub(crate) fn send(
        &self,
        sent: SendRequest,
        left: Option<Duration>,
    ) -> impl Future<Output = Result<TurnReply, Error>> + Send {
        let answered_by = left.map(|left| left.saturating_sub(MARGIN.min(left / 10)));
        let wait = [self.0.limits.wait, answered_by].into_iter().flatten().min();
        if sent.name.is_none() {
            return Either::Left(self.wait_for_turn(self.begin(sent, StartMode::Here, watch_turn), wait, left));
        }
        let mut sent = sent;
        Either::Right(Box::pin(async move {
            if let Some((key, seq)) = self.before(&mut sent, left).await? {
                return self.answer_again(&key, seq, wait).await;
            }
            self.wait_for_turn(self.begin(sent, StartMode::Here, watch_turn), wait, left).await
        }))
    }

    async fn wait_for_turn(
        &self,
        begun: impl Future<Output = Result<(LiveRef, PendingReply), Error>>,
        wait: Option<Duration>,
        left: Option<Duration>,
    ) -> Result<TurnReply, Error> {
        let (held, (mut answer, seq)) = begun.await?;
        // Most often it is there, and needs no timer.
        match answer.try_recv() {
            Ok(answer) => return Ok(answer),
            Err(TryRecvError::Closed) => return Err(gone(&held)),
            Err(TryRecvError::Empty) => {}
        }
        let mut waiter = Waiter { held: &held, answer };
        if let Some(answer) = within(wait, &mut waiter.answer).await {
            return answer.map_err(|_| gone(&held));
        }
        let shown = {
            let mut inner = held.lock();
            if inner.lost {
                // Just now the agent has answered without a task, or the task has gone elsewhere.
                None
            } else {
                inner.real = true;
                if let Some((task, _)) = inner.shown().filter(|it| it.1.seq >= seq) {
                    return Ok(TurnReply::Task(Arc::clone(task)));
                }
                let shown = inner.wait(WaitCondition::Shown(seq));
                self.0.journal.flush(&held, inner);
                Some(shown)
            }
        };
        let left = left.map_or(PATIENCE, |left| left.saturating_sub(wait.unwrap_or_default()));
        match shown {
            Some(shown) => self.answer(&held, shown, left).await,
            None => self.answer(&held, &mut waiter.answer, left).await,
        }
    }

    /// Returns when the message is accepted in a task (`returnImmediately`), with the task as it was accepted. Updates
    /// that the agent sends at once are durable by then too, so that a client that polls right after the reply sees
    /// them.
    pub(crate) async fn start(&self, mut sent: SendRequest, left: Option<Duration>) -> Result<TurnReply, Error> {
        if sent.name.is_some()
            && let Some((key, _)) = Box::pin(self.before(&mut sent, left)).await?
        {
            return Ok(TurnReply::Task(self.get(&key, None).await?.into_shared()?));
        }
        let now = |inner: &mut Inner, _| {
            inner.real = true;
            inner.wait(WaitCondition::Shown(inner.ahead.seq()))
        };
        let time = left.map_or(COMMIT, |left| left.min(COMMIT));
        let (signal, polled) = oneshot::channel();
        let (held, answer) = self.begin(sent, StartMode::Signaled(signal), now).await?;
        // Its agent may take long until its first pause.
        self.0.journal.flush(&held, held.lock());
        let answer = self.answer(&held, answer, time).await?;
        // There is no signal if the agent blocks its thread, or if the message waits for another turn.
        let shown = async {
            if polled.await.is_ok() {
                let shown = held.lock().wait_for_accepted();
                if let Some(shown) = shown {
                    drop(shown.await);
                }
            }
        };
        drop(timeout(time.min(FIRST_UPDATE), shown).await);
        Ok(answer)
    }

    /// What will be there as soon as the store has it.
    async fn answer(
        &self,
        held: &LiveRef,
        answer: impl Future<Output = Result<TurnReply, RecvError>>,
        wait: Duration,
    ) -> Result<TurnReply, Error> {
        match timeout(wait, answer).await {
            Ok(answer) => answer.map_err(|_| gone(held)),
            Err(_) => Err(unwritten()),
        }
    }

    /// What happens from this message on, until its turn ends.
    pub(crate) async fn stream(&self, mut sent: SendRequest, history: HistoryLimit) -> Result<Reader, Error> {
        if sent.name.is_some()
            && let Some((key, seq)) = Box::pin(self.before(&mut sent, None)).await?
        {
            return Box::pin(self.stream_of(&key, seq, history)).await;
        }
        let permit = self.0.permits.stream()?;
        let watch = |inner: &mut Inner, behind| {
            inner.attach();
            (inner.shown().map(|(task, at)| (Arc::clone(task), at.seq)), inner.ahead.seq(), behind + 1)
        };
        let (held, (shown, seq, turns)) = self.begin(sent, StartMode::Apart, watch).await?;
        let next = shown.as_ref().map_or(seq, |it| it.1 + 1);
        let reader = Reader::new(held, Arc::clone(&self.0.journal), next, Some(turns), permit).with_history(history);
        Ok(match shown {
            Some((task, _)) => reader.and_snapshot_at(task, seq),
            None => reader,
        })
    }

    /// Becomes true once the unfinished turns of an earlier process have been recovered.
    pub(crate) fn recovered(&self) -> watch::Receiver<bool> {
        self.0.recovered.subscribe()
    }

    async fn hold(&self, key: &Key) -> Result<LiveRef, Error> {
        self.0.recovered().await?;
        self.0.quarantine.check(key)?;
        hold(&self.0.journal, key, self.0.limits.bounds()).await
    }

    /// The task as it is shown. `memory` is what its answer may take.
    pub(crate) async fn get(&self, key: &Key, memory: Option<&Reservation>) -> Result<Snapshot, Error> {
        let journal = &self.0.journal;
        if let Some(held) = journal.find(key) {
            let shown = held.lock().shown().map(|it| Arc::clone(it.0));
            return shown.map(Snapshot::from).ok_or_else(|| Error::task_not_found(key.id()));
        }
        self.0.quarantine.check(key)?;
        let store = &**journal.store();
        let _permit = self.0.permits.read(memory).await?;
        let found = async {
            match store.load(key).await? {
                Some(mut stored) => stored.load_snapshot(store, key).await.map(Some),
                None => Ok(None),
            }
        };
        match found.await {
            Ok(found) => {
                let found = found.ok_or_else(|| Error::task_not_found(key.id()))?;
                has_read(memory, found.encoded_len())?;
                Ok(found)
            }
            Err(cause) => Err(unreadable(store, key, cause).await),
        }
    }

    /// A page of tasks, as the store has them. `memory` is what its answer may take.
    pub(crate) async fn list(&self, query: &ListQuery, memory: Option<&Reservation>) -> Result<ListPage, Error> {
        let _permit = self.0.permits.read(memory).await?;
        let page = self.0.journal.store().list(query).await?;
        has_read(memory, page.tasks.iter().map(Task::encoded_len).sum())?;
        Ok(page)
    }

    /// Returns when the task has ended, by this or otherwise. A task that is canceled already is given as it is.
    pub(crate) async fn cancel(&self, key: &Key) -> Result<Arc<Task>, Error> {
        let held = self.hold(key).await?;
        let answer = {
            let mut inner = held.lock();
            if inner.lost {
                return Err(lost());
            }
            if let Some((task, _)) = inner.shown().filter(|it| it.0.state().is_terminal()) {
                return canceled(Arc::clone(task));
            }
            if self.0.journal.phase() == Phase::Stopped {
                return Err(lost());
            }
            let answer = inner.wait(WaitCondition::End);
            if !inner.ahead.state().is_terminal() {
                // That it was canceled before its process ended, its row may say already.
                inner.touched |= !inner.cancel;
                inner.cancel = true;
                if !inner.running {
                    let status = status_update(&held, TaskState::Canceled, None);
                    // It has not ended, or the arm above would have said so.
                    drop(inner.push(status, Mark::ending(Ends::Task)));
                }
            }
            let wake = inner.fire_control();
            self.0.journal.flush(&held, inner);
            held.fire(wake);
            answer
        };
        match self.answer(&held, answer, self.0.limits.cancel.saturating_add(COMMIT)).await? {
            TurnReply::Task(it) => canceled(it),
            TurnReply::Message(_) => Err(Error::task_not_found(key.id())),
        }
    }

    /// Ends what runs: no new work from now on, `grace` for what there is, and then it is left as it is.
    pub(crate) async fn drain(&self, grace: Duration) {
        const LAST: Duration = Duration::from_secs(2);
        let Parts { journal, running, .. } = &*self.0;
        self.0.keep_no_more();
        running.close();
        journal.enter(Phase::Draining);
        let ended = async {
            running.wait().await;
            // Who waits for the end of a turn is to see it.
            journal.settled().await;
        };
        // Whoever has not ended by then is stopped by the next line.
        drop(timeout(grace, ended).await);
        journal.enter(Phase::Stopped);
        drop(timeout(LAST, running.wait()).await);
        drop(timeout(LAST, journal.settled()).await);
        journal.stop();
    }
}

/// Waits for an answer. The waiter is removed from its task when the caller stops waiting, or disconnects.
struct Waiter<'a> {
    held: &'a LiveRef,
    answer: oneshot::Receiver<TurnReply>,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.answer.close();
        self.held.lock().forget_waiters();
    }
}

/// Waits for a future, for `limit` at most where there is one.
async fn within<F: Future>(limit: Option<Duration>, future: F) -> Option<F::Output> {
    match limit {
        Some(limit) => timeout(limit, future).await.ok(),
        None => Some(future.await),
    }
}

/// The task, loaded by whoever comes first.
async fn hold(journal: &Arc<Journal>, key: &Key, bounds: TaskLimits) -> Result<LiveRef, Error> {
    let store = &**journal.store();
    let found = async || match store.load(key).await? {
        Some(mut stored) => {
            let task = stored.load_task(store, key).await?;
            Ok(Some((stored, task)))
        }
        None => Ok(None),
    };
    let load = async || match found().await {
        Ok(Some((stored, task))) => {
            let mut live = Live::loaded(key.clone(), store.fence(), stored, task);
            live.bound(bounds);
            if !live.has_ended() {
                live.logged(store.log_bytes(key).await?);
            }
            Ok(live)
        }
        Ok(None) => Err(Error::task_not_found(key.id())),
        Err(cause) => Err(unreadable(store, key, cause).await),
    };
    let held = journal.hold(key, load).await?;
    // A task that is not committed yet is not there yet.
    let known = held.lock().shown().is_some();
    if known { Ok(held) } else { Err(Error::task_not_found(key.id())) }
}

/// The error for the caller of a task that could not be read: INTERNAL if its data is damaged, which is permanent, and
/// UNAVAILABLE if the store does not answer.
async fn unreadable(store: &dyn Store, key: &Key, cause: Unavailable) -> Error {
    match store.diagnose(key).await {
        Ok(Some(damaged)) => ErrorKind::Internal.because(format!("task {} can't be read", key.id())).hide(damaged),
        Ok(None) | Err(_) => cause.into(),
    }
}

/// What is told of a turn that somebody waits for: how it ends, and which event its message is.
type PendingReply = (oneshot::Receiver<TurnReply>, Seq);

fn watch_turn(inner: &mut Inner, behind: u32) -> PendingReply {
    let seq = inner.newest_message();
    (inner.wait(WaitCondition::Turn(inner.turn + behind, seq)), seq)
}

fn canceled(task: Arc<Task>) -> Result<Arc<Task>, Error> {
    if task.state() == TaskState::Canceled {
        return Ok(task);
    }
    let why = format!("{} is {}", task.id, task.state().as_str_name());
    Err(ErrorKind::TaskNotCancelable.because(why).with("taskId", &*task.id))
}

fn has_ended(id: &str) -> Error {
    ErrorKind::TaskEnded.because(format!("task {id} has ended")).with("taskId", id)
}

/// Why nothing came of a task that somebody waited for.
fn gone(held: &LiveRef) -> Error {
    let inner = held.lock();
    match inner.untaken {
        Some(why) => untaken(why),
        None if inner.lost || inner.is_stopped() => lost(),
        None if inner.shown().is_some() => unwritten().with("taskId", held.key.id()),
        None => unwritten(),
    }
}

/// Why the store has nothing of what was sent.
pub(crate) fn untaken(why: CommitFailure) -> Error {
    match why {
        CommitFailure::Full(it) => full(it),
        CommitFailure::Away => {
            away("the store is unavailable, and nothing was recorded, but the agent may have run; try again")
        }
        CommitFailure::Rejected(Some(name)) => {
            let why =
                format!("the store has no room for this message or its result ({name}), and nothing was recorded");
            limit(name, why)
        }
        CommitFailure::Rejected(None) => {
            ErrorKind::Internal.because("the store can't take this message or its result, and nothing was recorded")
        }
    }
}

/// Another process has the task, or this one stops.
fn lost() -> Error {
    away("the task is on its way elsewhere; ask again")
}

/// The error for an operation whose outcome is unknown: the message, or its result, may still be committed or not.
fn unwritten() -> Error {
    away("the outcome is not recorded yet, and may still be; read the task before this is sent again")
}

/// The store is away, or the server is about to stop.
fn busy() -> Error {
    away("no new work is taken right now; try again")
}

fn away(why: &'static str) -> Error {
    ErrorKind::Unavailable.because(why).retry_after(Duration::from_secs(1))
}

impl From<Unavailable> for Error {
    fn from(cause: Unavailable) -> Self {
        ErrorKind::Unavailable.because("the store does not answer").hide(cause).retry_after(Duration::from_secs(1))
    }
}

impl<A> Clone for Execution<A> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<A> Drop for Parts<A> {
    fn drop(&mut self) {
        self.keep_no_more();
        self.journal.stop();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::{
        agent::{self, End},
        store::memory::Memory,
    };

    fn sent(scope: &Arc<Scope>, message: Message) -> SendRequest {
        SendRequest { scope: Arc::clone(scope), message, asked: TurnContext::default(), push: None, name: None }
    }

    #[tokio::test(start_paused = true)]
    async fn caller_that_disconnects_leaves_no_waiter_behind() {
        let agent = agent::from_fn(|_, out| async move {
            out.working().await?;
            std::future::pending::<Result<End, agent::Error>>().await
        });
        let (execution, scope) =
            (Execution::new(agent, Arc::new(Memory::default()), Limits::default()), Arc::default());
        let TurnReply::Task(task) = execution.start(sent(&scope, Message::user("go")), None).await.unwrap() else {
            panic!("a message")
        };
        let held = execution.hold(&Key::new(&scope, &task.id)).await.unwrap();
        assert_eq!(held.lock().waiting(), 0);
        for _ in 0..100 {
            let message = Message { task_id: task.id.clone(), ..Message::user("more") };
            let mut send = Box::pin(execution.send(sent(&scope, message), None));
            assert!((&mut send).now_or_never().is_none());
            assert_eq!(held.lock().waiting(), 1);
        }
        assert_eq!(held.lock().waiting(), 0);
        execution.drain(Duration::ZERO).await;
    }
}
