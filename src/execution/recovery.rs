//! Recovery of turns that the end of an earlier process cut. A start runs them again, or fails their tasks.

use std::{
    collections::HashMap,
    convert::Infallible,
    future::ready,
    iter,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use futures_util::{FutureExt as _, StreamExt as _, stream};
use parking_lot::RwLock;

use super::{
    PATIENCE, Parts, away,
    turn::words,
    turn_context::{TurnContexts, message},
};
use crate::{
    agent::Agent,
    error::{Error, ErrorKind},
    event::{Ends, Event, Mark},
    ids,
    journal::{
        Phase,
        live::{Live, QueuedMessage},
        pause, status_update,
        turns::LogReplay,
    },
    pb::v1::{Message, TaskState},
    store::{Claim, Key, RunnerId, StoredTask, Unavailable},
};

/// Maximum number of times that a turn is begun, the first time included. Attempts that a graceful stop cut do not count.
const ATTEMPTS: u32 = 3;

/// Number of tasks that are claimed at a time, with their checkpoints in memory.
const CLAIM: usize = 64;

/// Number of tasks that are recovered at the same time.
const TOGETHER: usize = 16;

/// How many events are read at a time.
const STEP: usize = 256;

/// How long a claim is good for, in a store of several processes.
const LEASE: Duration = Duration::from_secs(30);

/// Initial delay before an unavailable store is asked again. It doubles with each attempt, up to a second.
const RETRY: Duration = Duration::from_millis(100);

/// Maximum number of attempts to read one task that can't be read although the store answers.
const TRIES: u32 = 5;

/// Tasks that could not be recovered, and the error id under which the log has the cause. Calls for these tasks get an
/// error until the next start, which tries to recover them again. Calls for other tasks are not affected.
#[derive(Debug, Default)]
pub(super) struct Quarantine(RwLock<HashMap<Key, Box<str>>>);

impl Quarantine {
    /// Maximum number of tasks that are listed here. Beyond it, only the store has the record that a task can't be
    /// read.
    const MOST: usize = 100_000;

    /// Refuses calls for a task that could not be recovered.
    pub(super) fn check(&self, key: &Key) -> Result<(), Error> {
        match self.0.read().get(key) {
            None => Ok(()),
            Some(id) => {
                let why = format!("task {} can't be recovered (error id {id})", key.id());
                Err(ErrorKind::Internal.because(why).with("errorId", &**id).with("taskId", key.id()))
            }
        }
    }

    fn add(&self, key: &Key, cause: &str) {
        let id = ids::fresh_id();
        tracing::error!(error.id = %id, task.id = key.id(), error.cause = cause, "a task can't be recovered until the next start");
        let mut all = self.0.write();
        if all.len() < Self::MOST {
            all.insert(key.clone(), id.into());
        }
    }
}

impl<A: Agent> Parts<A> {
    /// Returns when what an earlier process left has been seen to: before, nobody else may touch it.
    pub(super) async fn recovered(&self) -> Result<(), Error> {
        if *self.recovered.borrow() {
            return Ok(());
        }
        let mut recovered = self.recovered.subscribe();
        match tokio::time::timeout(PATIENCE, recovered.wait_for(|it| *it)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(away("the tasks of before are still being taken up; ask again")),
        }
    }

    /// Recovers all unfinished turns, a bounded number of tasks at a time to bound memory.
    pub(super) async fn recover(self: Arc<Self>) {
        let (store, runner) = (self.journal.store(), RunnerId(self.journal.store().fence()));
        let resumable = self.is_resumable();
        let (mut tasks, mut wait) = (0, RETRY);
        while self.journal.phase() < Phase::Stopped {
            match store.claim(runner, CLAIM, LEASE).await {
                Ok(claimed) if claimed.is_empty() => {
                    if tasks > 0 {
                        tracing::info!(tasks, "took up what ran when the last process ended");
                    }
                    self.recovered.send_replace(true);
                    return;
                }
                Ok(claimed) => {
                    (tasks, wait) = (tasks + claimed.len(), RETRY);
                    let take_up = |claim| self.try_take_up(claim, resumable);
                    stream::iter(claimed).for_each_concurrent(TOGETHER, take_up).await;
                }
                Err(cause) => {
                    if wait == RETRY {
                        tracing::warn!(error.cause = %cause, "what ran before can't be taken up yet");
                    }
                    pause(wait).await;
                    wait = (wait * 2).min(Duration::from_secs(1));
                }
            }
        }
    }

    /// Calls [`Agent::resumable`]. An agent that panics is not resumable.
    fn is_resumable(&self) -> bool {
        catch_unwind(AssertUnwindSafe(|| self.agent.resumable())).unwrap_or_else(|panic| {
            let cause = words(&*panic);
            tracing::error!(error.cause = cause, "Agent::resumable panicked; turns that were cut are not run again");
            false
        })
    }

    /// Recovers one task, or puts it into quarantine. Waits while the store does not answer.
    async fn try_take_up(self: &Arc<Self>, (key, stored): Claim, resumable: bool) {
        let stored = match stored {
            Ok(stored) => stored,
            Err(damaged) => return self.quarantine.add(&key, &damaged.to_string()),
        };
        let (store, mut tries) = (self.journal.store(), 0);
        while self.journal.phase() < Phase::Stopped {
            let taken = AssertUnwindSafe(self.take_up(&key, stored.clone(), resumable)).catch_unwind().await;
            let cause = match taken {
                Ok(Ok(())) => return,
                Ok(Err(cause)) => cause,
                Err(panic) => return self.quarantine.add(&key, &format!("a panic: {}", words(&*panic))),
            };
            if let Ok(Some(damaged)) = store.diagnose(&key).await {
                return self.quarantine.add(&key, &damaged.to_string());
            }
            tries += 1;
            if tries >= TRIES && store.check().await.is_ok() {
                return self.quarantine.add(&key, &cause.to_string());
            }
            pause(RETRY).await;
        }
    }

    async fn take_up(self: &Arc<Self>, key: &Key, mut stored: StoredTask, resumable: bool) -> Result<(), Unavailable> {
        let (canceled, attempt) = (stored.row.cancel_requested, stored.row.attempt);
        let counted = attempt.saturating_sub(stored.row.drained);
        let again = if !canceled && resumable && counted <= ATTEMPTS {
            let mut replay = self.replay(key, &stored).await?;
            let (runs, superseded) = (replay.is_running(), replay.superseded.take());
            Some((runs, replay.into_parts(), superseded))
        } else {
            None
        };
        let (notes, task) = (TurnContexts::of(&stored), stored.load_task(&**self.journal.store(), key).await?);
        let mut referenced = Vec::new();
        if let Some((true, (turn, waiting, _), _)) = &again {
            let first = if turn.is_empty() { task.history.first() } else { turn.last().and_then(message) };
            for it in iter::once(first).chain(waiting.iter().map(message)) {
                referenced.push(self.referenced(key, it).await?);
            }
        }
        let mut referenced = referenced.into_iter();
        let mut live = Live::loaded(key.clone(), self.journal.store().fence(), stored, task);
        live.bound(self.limits.bounds());
        live.logged(self.journal.store().log_bytes(key).await?);
        let Ok(held) = self.journal.hold(key, || ready(Ok::<_, Infallible>(live))).await;
        let mut inner = held.lock();
        match again {
            Some((true, (turn, waiting, turns), superseded)) => {
                (inner.turns, inner.superseded) = (turns, superseded);
                let number = turn.last().map_or(1, Event::seq);
                let asked = notes.asked(number, referenced.next().unwrap_or_default());
                let waiting = waiting.into_iter().zip(referenced);
                let waiting = waiting.map(|(event, it)| QueuedMessage { asked: notes.asked(event.seq(), it), event });
                inner.inbox.extend(waiting);
                notes.restore(&mut inner);
                inner.turn += 1;
                inner.running = true;
                drop(inner);
                tracing::info!(task.id = key.id(), attempt, "a turn is run again");
                let parts = Arc::clone(self);
                // There may be more of them than may run at once.
                drop(self.running.spawn(async move {
                    let Some(permit) = parts.permits.next_turn(&held.key.scope().owner).await else { return };
                    parts.enter_context(&held, 0).await;
                    parts.turns(held, turn, asked, permit).await;
                }));
                return Ok(());
            }
            // Nobody waits for anything: its row is to say so.
            Some((false, (.., turns), _)) => (inner.touched, inner.turns) = (true, turns),
            None => {
                let (state, message) = if canceled {
                    (TaskState::Canceled, None)
                } else {
                    (TaskState::Failed, Some(reason(resumable, counted)))
                };
                tracing::info!(task.id = key.id(), state = state.as_str_name(), "a turn was cut, and its task is over");
                let status = status_update(&held, state, message);
                if inner.push(status, Mark::ending(Ends::Task)).is_err() {
                    inner.touched = true;
                }
                notes.restore(&mut inner);
                inner.forget_notes(None);
            }
        }
        self.journal.flush(&held, inner);
        Ok(())
    }

    /// What its turn was given, and what waits for the next.
    async fn replay(&self, key: &Key, stored: &StoredTask) -> Result<LogReplay, Unavailable> {
        let (mut replay, mut seq) = (LogReplay::default(), 0);
        while seq < stored.position.seq {
            let log = self.journal.store().events(key, seq, STEP).await?;
            let last = log.events.last().map(Event::seq);
            seq = last.ok_or_else(|| Unavailable(format!("the log of task {} ends before its row", key.id())))?;
            log.events.into_iter().for_each(|it| replay.see(it));
        }
        Ok(replay)
    }
}

/// Why a task has failed whose turn was cut.
fn reason(resumable: bool, attempts: u32) -> Message {
    let why = if resumable {
        format!("The server stopped {} times while the agent was at work on this.", attempts.saturating_sub(1))
    } else {
        "The server stopped while the agent was at work on this.".to_owned()
    };
    Message::agent(why)
}
