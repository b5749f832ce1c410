//! Recovery at startup: turns that an earlier process left unfinished are run again, or their tasks fail.

use std::{
    collections::HashMap,
    iter,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use futures_util::{FutureExt as _, StreamExt as _, stream};
use parking_lot::RwLock;
use tokio::time::Instant;

use super::{ACCEPT_TIMEOUT, Shared, read_summary, turn::panic_message, unavailable};
use crate::{
    base::sources::Ids,
    engine::journal::{LiveRef, LiveTask, LogReplay, Phase, QueuedMessage, StoredContexts, TaskRole, pause},
    protocol::{
        error::{Error, ErrorKind},
        event::Event,
        pb::v1::{Message, Task},
    },
    store::{Claim, READ_BATCH, READ_BYTES, StoredTask, TaskKey, Unavailable},
};

/// Maximum number of attempts to run a turn, including the first. Attempts that a graceful stop interrupted do not count.
const ATTEMPTS: u32 = 3;

/// Number of tasks that are claimed at a time, with their checkpoints in memory.
pub(super) const CLAIM_BATCH: usize = 64;

/// Number of tasks that are recovered concurrently.
pub(super) const CONCURRENCY: usize = 16;

/// Initial delay between attempts while the store is unavailable. Doubles with each attempt, up to 1 s.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Maximum number of attempts to read a task that can't be read although the store answers.
const READ_ATTEMPTS: u32 = 5;

/// Tasks that could not be recovered, with the error id of the log line that has the cause. Calls for them get an error
/// until the next start, which retries their recovery.
#[derive(Debug, Default)]
pub(super) struct Quarantine(RwLock<HashMap<TaskKey, Box<str>>>);

impl Quarantine {
    /// Maximum number of tasks. Beyond it, only the damage in the store makes calls fail.
    const MAX: usize = 100_000;

    /// Rejects calls for a task that could not be recovered.
    pub(super) fn check(&self, key: &TaskKey) -> Result<(), Error> {
        match self.0.read().get(key) {
            None => Ok(()),
            Some(id) => {
                let why = format!("task {} can't be recovered (error id {id})", key.id());
                Err(ErrorKind::Internal.because(why).with("errorId", &**id).with("taskId", key.id()))
            }
        }
    }

    fn add(&self, key: &TaskKey, cause: &str, ids: &Ids) {
        let id = ids.time_ordered();
        tracing::error!(error.id = %id, task.id = key.id(), error.cause = cause, "task can't be recovered until the next start");
        let mut all = self.0.write();
        if all.len() < Self::MAX {
            all.insert(key.clone(), id.into());
        }
    }
}

impl Shared {
    /// Waits until all unfinished turns of an earlier process are recovered. Until then, only the recovery may change tasks.
    ///
    /// # Errors
    /// UNAVAILABLE after [`ACCEPT_TIMEOUT`].
    pub(super) async fn wait_for_recovery(&self) -> Result<(), Error> {
        if *self.recovered.borrow() {
            return Ok(());
        }
        let mut recovered = self.recovered.subscribe();
        match tokio::time::timeout(ACCEPT_TIMEOUT, recovered.wait_for(|recovered| *recovered)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(unavailable("tasks are being recovered after a restart; retry later")),
        }
    }

    /// Recovers all unfinished turns. The number of tasks at a time is bounded, and so is memory.
    pub(super) async fn recover(self: Arc<Self>) {
        let store = self.journal.store();
        let resumable = self.is_resumable();
        let (mut tasks, mut wait) = (0, RETRY_DELAY);
        while self.journal.phase() < Phase::Stopped {
            match store.claim(CLAIM_BATCH).await {
                Ok(claimed) if claimed.is_empty() => {
                    if tasks > 0 {
                        tracing::info!(tasks, "recovered unfinished tasks");
                    }
                    self.recovered.send_replace(true);
                    return;
                }
                Ok(claimed) => {
                    (tasks, wait) = (tasks + claimed.len(), RETRY_DELAY);
                    let recover = |claim| self.try_recover_task(claim, resumable);
                    stream::iter(claimed).for_each_concurrent(CONCURRENCY, recover).await;
                }
                Err(cause) => {
                    if wait == RETRY_DELAY {
                        tracing::warn!(error.cause = %cause, "recovery is waiting for the store");
                    }
                    pause(wait).await;
                    wait = (wait * 2).min(Duration::from_secs(1));
                }
            }
        }
    }

    /// Calls [`Agent::resumable`](crate::engine::agent::Agent::resumable). An agent that panics is not resumable.
    pub(super) fn is_resumable(&self) -> bool {
        catch_unwind(AssertUnwindSafe(|| self.agent.dyn_resumable())).unwrap_or_else(|panic| {
            let cause = panic_message(&*panic);
            tracing::error!(error.cause = cause, "Agent::resumable panicked; interrupted turns are not run again");
            false
        })
    }

    /// Recovers a task, or quarantines it. Waits while the store is unavailable.
    pub(super) async fn try_recover_task(self: &Arc<Self>, (key, stored): Claim, resumable: bool) {
        let quarantine = |cause: &str| self.quarantine.add(&key, cause, &self.journal.sources().ids);
        let stored = match stored {
            Ok(stored) => stored,
            Err(damaged) => return quarantine(&damaged.to_string()),
        };
        let (store, mut attempts) = (self.journal.store(), 0);
        while self.journal.phase() < Phase::Stopped {
            let outcome = AssertUnwindSafe(self.recover_task(&key, stored.clone(), resumable)).catch_unwind().await;
            let cause = match outcome {
                Ok(Ok(_)) => return,
                Ok(Err(cause)) => cause,
                Err(panic) => return quarantine(&format!("recovery panicked: {}", panic_message(&*panic))),
            };
            if let Ok(Some(damaged)) = store.diagnose(&key).await {
                return quarantine(&damaged.to_string());
            }
            if let Some((_, replica)) = self.journal.shared() {
                // It is acquired again later.
                replica.expect_orphans();
                return;
            }
            attempts += 1;
            if attempts >= READ_ATTEMPTS && store.check().await.is_ok() {
                return quarantine(&cause.to_string());
            }
            pause(RETRY_DELAY).await;
        }
    }

    /// Recovers a task: runs its turn again, or ends it as canceled or failed.
    pub(super) async fn recover_task(
        self: &Arc<Self>,
        key: &TaskKey,
        mut stored: StoredTask,
        resumable: bool,
    ) -> Result<LiveRef, Unavailable> {
        let (canceled, attempt) = (stored.row.cancel_requested, stored.row.attempt);
        let counted = attempt.saturating_sub(stored.row.drained);
        // The claim has counted this attempt, unless the turn waited in the queue.
        let is_first = attempt == 0;
        let replayed = if !canceled && (is_first || resumable && counted <= ATTEMPTS) {
            let mut replay = self.replay(key, &stored).await?;
            let (is_running, answered) = (replay.is_running(), replay.answered.take());
            Some((is_running, replay.into_parts(), answered))
        } else {
            None
        };
        let contexts = StoredContexts::decode(stored.turn_contexts.as_deref());
        let (log, store) = (stored.log, &**self.journal.store());
        let task = stored.load_task(store, key).await?;
        let mut referenced = Vec::new();
        if let Some((true, (turn, waiting, _), _)) = &replayed {
            let first = if turn.is_empty() { task.history.first() } else { turn.last().and_then(Event::message) };
            for message in iter::once(first).chain(waiting.iter().map(Event::message)) {
                referenced.push(self.referenced(key, message).await?);
            }
        }
        let mut referenced = referenced.into_iter();
        // The claim has set it.
        let role = TaskRole::Runner(stored.position.fence);
        let mut live = LiveTask::loaded(key.clone(), role, stored, task, self.limits.task_limits());
        live.set_log_summary(read_summary(log, store, key).await?);
        live.count_in(self.journal.memory());
        let live = self.journal.put(key, live).await;
        match replayed {
            Some((true, (turn, waiting, turns), answered)) => {
                let number = turn.last().map_or(1, Event::seq);
                let mut context = contexts.context(number, referenced.next().unwrap_or_default());
                let waiting = waiting.into_iter().zip(referenced);
                let waiting = waiting.map(|(event, referenced)| {
                    let context = contexts.context(event.seq(), referenced);
                    QueuedMessage { event, context, accepted: Instant::now() }
                });
                live.resume_turn(&mut context, turns, answered, waiting.collect());
                if is_first {
                    tracing::info!(task.id = key.id(), "running a turn that waited in the queue");
                } else {
                    tracing::info!(task.id = key.id(), attempt, "running an interrupted turn again");
                }
                let (parts, live) = (Arc::clone(self), live.clone());
                // Spawned, because there may be more turns than may run at once.
                drop(self.running.spawn(async move {
                    parts.enter_context(&live, 0).await;
                    let slot = parts.permits.recovered_turn(&live.key.scope().owner);
                    parts.turns(live, turn, context, slot).await;
                }));
            }
            // No turn is unfinished: only the row is updated.
            Some((false, (.., turns), _)) => live.close_turn(turns),
            None => {
                // The newest message whose context is stored is that of the turn.
                let mut context = contexts.last_context();
                live.end_unfinished(&mut context, (!canceled).then(|| failure_message(resumable, counted)));
            }
        }
        Ok(live)
    }

    /// Reads the log of a task: the messages of its newest turn, and those that wait for the next one.
    async fn replay(&self, key: &TaskKey, stored: &StoredTask) -> Result<LogReplay, Unavailable> {
        let (mut replay, mut seq) = (LogReplay::default(), 0);
        while seq < stored.position.seq {
            let events = self.journal.store().events(key, seq, READ_BATCH, READ_BYTES).await?;
            let last = events.last().map(Event::seq);
            seq = last.ok_or_else(|| Unavailable(format!("the log of task {} ends before its row", key.id())))?;
            for event in events {
                replay.apply(event);
            }
        }
        Ok(replay)
    }

    /// Loads the tasks that a message references. Damaged and missing tasks are omitted.
    pub(super) async fn referenced(&self, key: &TaskKey, message: Option<&Message>) -> Result<Vec<Task>, Unavailable> {
        let store = self.journal.store();
        let mut tasks = Vec::new();
        for id in message.iter().flat_map(|message| &message.reference_task_ids).take(self.limits.references) {
            let key = TaskKey::new(key.scope(), id);
            let found = async {
                let Some(mut stored) = store.load(&key).await? else { return Ok(None) };
                stored.load_task(&**store, &key).await.map(Some)
            };
            match found.await {
                Ok(found) => tasks.extend(found),
                Err(cause) if matches!(store.diagnose(&key).await, Ok(Some(_))) => {
                    tracing::warn!(task.id = key.id(), error.cause = %cause, "damaged task omitted from the referenced tasks");
                }
                Err(cause) => return Err(cause),
            }
        }
        Ok(tasks)
    }
}

/// Returns the status message of a task that fails because its turn was interrupted.
fn failure_message(resumable: bool, attempts: u32) -> String {
    if resumable {
        format!("The server stopped {} times while the agent was at work on this.", attempts.saturating_sub(1))
    } else {
        "The server stopped while the agent was at work on this.".to_owned()
    }
}
