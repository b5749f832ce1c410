//! What a start does with the turns that the last end cut: it runs them again, or ends their tasks.

use std::{convert::Infallible, future::ready, iter, sync::Arc, time::Duration};

use super::{
    PATIENCE, Parts,
    asked::{Notes, message},
    away,
};
use crate::{
    agent::{Agent, status_update},
    error::Error,
    event::{Ends, Event, Mark},
    journal::{
        Phase,
        live::{Live, Waiting},
        pause,
        replay::Replay,
    },
    pb::v1::{Message, TaskState},
    store::{Key, RunnerId, Stored, Unavailable},
};

/// How often a turn is begun, the first time included.
const ATTEMPTS: u32 = 3;

/// How many tasks are claimed at a time.
const CLAIM: usize = 256;

/// How many events are read at a time.
const STEP: usize = 256;

/// How long a claim is good for, in a store of several processes.
const LEASE: Duration = Duration::from_secs(30);

/// After this the store is asked again, where it did not answer.
const RETRY: Duration = Duration::from_millis(100);

/// How often it is asked for one task, which may be one that can't be read any more.
const TRIES: u32 = 5;

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

    /// Takes up whatever is there to be.
    pub(super) async fn recover(self: Arc<Self>) {
        let (store, runner) = (self.journal.store(), RunnerId(self.journal.store().fence()));
        let mut tasks = 0;
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
                    tasks += claimed.len();
                    for (key, stored) in claimed {
                        self.try_take_up(&key, &stored).await;
                    }
                }
                Err(cause) => {
                    tracing::warn!(error.cause = %cause, "what ran before can't be taken up yet");
                    pause(RETRY).await;
                }
            }
        }
    }

    async fn try_take_up(self: &Arc<Self>, key: &Key, stored: &Stored) {
        for n in 1.. {
            match self.take_up(key, stored.clone()).await {
                Ok(()) => return,
                Err(cause) if n == TRIES => {
                    // The next start tries again.
                    return tracing::error!(task.id = key.id(), error.cause = %cause, "a task can't be taken up");
                }
                Err(_) => pause(RETRY).await,
            }
        }
    }

    async fn take_up(self: &Arc<Self>, key: &Key, mut stored: Stored) -> Result<(), Unavailable> {
        let (canceled, attempt) = (stored.row.cancel_requested, stored.row.attempt);
        let resumable = self.agent.resumable();
        let again =
            if !canceled && resumable && attempt <= ATTEMPTS { Some(self.replay(key, &stored).await?) } else { None };
        let (notes, task) = (Notes::of(&stored), stored.task(&**self.journal.store(), key).await?);
        let mut referenced = Vec::new();
        if let Some(Replay { running: true, turn, waiting }) = &again {
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
            Some(Replay { running: true, turn, waiting }) => {
                let number = turn.last().map_or(1, Event::seq);
                let asked = notes.asked(number, referenced.next().unwrap_or_default());
                let waiting = waiting.into_iter().zip(referenced);
                let waiting = waiting.map(|(event, it)| Waiting { asked: notes.asked(event.seq(), it), event });
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
                    parts.turns(held, turn, asked, permit).await;
                }));
                return Ok(());
            }
            // Nobody waits for anything: its row is to say so.
            Some(_) => inner.touched = true,
            None => {
                let (state, message) = if canceled {
                    (TaskState::Canceled, None)
                } else {
                    (TaskState::Failed, Some(reason(resumable, attempt)))
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
    async fn replay(&self, key: &Key, stored: &Stored) -> Result<Replay, Unavailable> {
        let (mut replay, mut seq) = (Replay::default(), 0);
        while seq < stored.at.seq {
            let log = self.journal.store().events(key, seq, STEP).await?;
            let last = log.events.last().map(Event::seq);
            seq = last.ok_or_else(|| Unavailable(format!("the log of task {} ends before its row", key.id())))?;
            log.events.into_iter().for_each(|it| replay.see(it));
        }
        Ok(replay)
    }
}

/// Why a task has failed whose turn was cut.
fn reason(resumable: bool, attempt: u32) -> Message {
    let why = if resumable {
        format!("The server stopped {} times while the agent was at work on this.", attempt.saturating_sub(1))
    } else {
        "The server stopped while the agent was at work on this.".to_owned()
    };
    Message::agent(why)
}
