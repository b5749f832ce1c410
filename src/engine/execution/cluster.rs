//! Work of a replica of a shared store: it renews its lease, declares others dead, claims their tasks, and follows the tasks that
//! others run. A task is acquired before it is changed.
//!
//! A replica that can't reach the store rejects new work once its lease has expired. It keeps its streams open.

use std::{
    collections::BTreeMap,
    mem,
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::{StreamExt as _, stream};
use tokio::time::{Instant, sleep_until, timeout};

use super::{
    ACCEPT_TIMEOUT, Execution, Shared, live_task, ownership_changed,
    recovery::{CLAIM_BATCH, CONCURRENCY},
    unavailable, unreadable,
};
use crate::{
    base::{faults::Fault, metric, retry::jittered},
    engine::journal::{Journal, LiveRef, Phase, Replica, TaskRole, Work, pause},
    protocol::{error::Error, event::Position, pb::wkt::millis},
    store::{
        Acquired, Advance, Claim, KeyMap, Load, Note, Renewal, ReplicaId, ReplicaInfo, SharedStore, StoredTask,
        TaskKey, Unavailable,
    },
};

/// Maximum interval between looks for dead replicas, and claims of their tasks. A quarter of it is random.
const CLAIM_INTERVAL: Duration = Duration::from_secs(2);

/// Shortest interval between polls of followers and posters, while something changes. It doubles with each poll in vain.
pub(super) const MIN_POLL: Duration = Duration::from_millis(50);

/// Longest interval between polls of followers and posters.
pub(super) const MAX_POLL: Duration = Duration::from_millis(500);

/// Interval between notes to the runner of a followed task.
const WATCH_INTERVAL: Duration = Duration::from_secs(30);

/// Maximum number of tasks that are followed by one query.
const FOLLOW_BATCH: usize = 256;

/// Version of the stored data.
const VERSION: u32 = 1;

/// Process that changes a task.
pub(super) enum Ownership {
    /// This process runs the task, or the task has ended.
    Here(LiveRef),
    /// Another replica runs it.
    Elsewhere,
}

impl Execution {
    /// Returns the task if this process runs it from now on. The only process of its store runs each task.
    pub(super) async fn own(&self, key: &TaskKey) -> Result<Ownership, Error> {
        if !self.0.journal.is_shared() {
            return self.load(key).await.map(Ownership::Here);
        }
        self.0.quarantine.check(key)?;
        let owned = timeout(ACCEPT_TIMEOUT, Box::pin(self.0.own(key))).await;
        match owned.map_err(|_| unavailable("the task is being acquired; retry later"))?? {
            Some(ownership) => Ok(ownership),
            None => self.load(key).await.map(Ownership::Here),
        }
    }

    /// Returns a task in memory once it is as the store has it.
    pub(super) async fn refresh(&self, live: LiveRef) -> Result<LiveRef, Error> {
        let journal = &self.0.journal;
        let Some((shared, replica)) = journal.shared() else { return Ok(live) };
        if let Some(at) = live.followed_position() {
            self.0.follow(shared, vec![(live.clone(), at)]).await?;
            return if live.is_lost() { Err(Error::task_not_found(live.key.id())) } else { Ok(live) };
        }
        if replica.has_lease() {
            let is_durable = match live.wait_for_accepted() {
                Some(committed) => matches!(timeout(ACCEPT_TIMEOUT, committed).await, Ok(Ok(_))),
                None => true,
            };
            if is_durable {
                return Ok(live);
            }
            if journal.is_store_unavailable() {
                return Err(unavailable("the task is being committed; retry later"));
            }
        }
        self.0.check_ownership(shared, live).await
    }
}

impl Shared {
    /// Starts the work of a replica. It ends with a drain, or once the execution is dropped.
    pub(super) fn start_replica(self: &Arc<Self>) {
        let parts = || (Arc::downgrade(self), Arc::clone(&self.journal));
        let mut work = self.replica.lock();
        work.spawn(renew_lease(parts()));
        work.spawn(claim_tasks(parts()));
        work.spawn(follow_tasks(parts()));
        work.spawn(read_mail(parts()));
        work.spawn(read_notes(parts()));
    }

    /// Returns the load of this replica.
    fn load(&self, phase: Phase) -> Load {
        let number = |turns: usize| u32::try_from(turns).unwrap_or(u32::MAX);
        let (running, _) = self.permits.turns();
        let free_turns = number(self.limits.turns.saturating_sub(running));
        Load { turns: number(running), free_turns, draining: phase > Phase::Open }
    }

    /// Hands the tasks of this replica over to others, because it stops.
    pub(super) async fn leave(&self) {
        let Some((shared, _)) = self.journal.shared() else { return };
        drop(mem::take(&mut *self.replica.lock()));
        match shared.leave().await {
            Ok(()) => shared.wake(None, Note::Free),
            Err(cause) => {
                tracing::warn!(error.cause = %cause, "tasks are claimed by others only once the lease has expired");
            }
        }
    }

    /// Acquires a task, unless this process runs it. `None` if the task has ended.
    async fn own(self: &Arc<Self>, key: &TaskKey) -> Result<Option<Ownership>, Error> {
        let journal = &self.journal;
        let Some((shared, replica)) = journal.shared() else { return Ok(None) };
        let _lock = replica.lock(key).await;
        if let Some(live) = journal.get(key) {
            live.wait_until_released().await;
            if live.is_owned() {
                return Ok(Some(Ownership::Here(live)));
            }
        }
        let unfinished = Unfinished(replica);
        let outcome = match shared.acquire(key).await? {
            Acquired::Owned(stored) => {
                let fence = stored.position.fence;
                replica.record_acquired(key, fence);
                let adopted = self.adopt(key, *stored).await;
                let live = adopted.inspect_err(|_| replica.queue_release(key.clone(), fence))?;
                Ok(Some(Ownership::Here(live)))
            }
            Acquired::Elsewhere(_) => Ok(Some(Ownership::Elsewhere)),
            Acquired::Ended => Ok(None),
            Acquired::NotFound => Err(Error::task_not_found(key.id())),
        };
        mem::forget(unfinished);
        outcome
    }

    /// Returns a task that this replica runs, as far as it knows: unless another one has claimed it, or has shown a change whose commit
    /// has no response here.
    async fn check_ownership(&self, shared: &dyn SharedStore, live: LiveRef) -> Result<LiveRef, Error> {
        let at = live.committed().map(|(_, at)| (live.key.clone(), at));
        let changes = shared.follow(at.as_slice()).await?;
        let Some((_, change)) = changes.first() else { return Ok(live) };
        match (change, live.committed()) {
            (Some(change), Some((_, at))) if change.position.fence == at.fence => {
                let is_newest = change.position.seq <= at.seq;
                if is_newest { Ok(live) } else { Err(unavailable("the task is being committed; retry later")) }
            }
            _ => {
                self.journal.drop_task(&live);
                Err(ownership_changed())
            }
        }
    }

    /// Brings a task that this replica has acquired into memory. Its open turn runs again, or the task ends.
    async fn adopt(self: &Arc<Self>, key: &TaskKey, stored: StoredTask) -> Result<LiveRef, Error> {
        let journal = &self.journal;
        if stored.row.open {
            let recovered = self.recover_task(key, stored, self.is_resumable()).await;
            return match recovered {
                Ok(live) => Ok(live),
                Err(cause) => Err(unreadable(&**journal.store(), key, cause).await),
            };
        }
        let (role, limits) = (TaskRole::Runner(stored.position.fence), self.limits.task_limits());
        let live = live_task(journal, key, role, stored, limits).await?;
        Ok(journal.put(key, live).await)
    }

    /// Claims tasks whose runners are dead, and turns without a runner, and recovers them.
    async fn claim_free(self: &Arc<Self>) -> Result<(), Unavailable> {
        let Some((shared, replica)) = self.journal.shared() else { return Ok(()) };
        if replica.may_have_orphans() {
            self.find_orphans(shared, replica).await.inspect_err(|_| replica.expect_orphans())?;
        }
        replica.set_claiming(true);
        let claimed = self.journal.store().claim(CLAIM_BATCH).await;
        match &claimed {
            Ok(claimed) if claimed.len() == CLAIM_BATCH => replica.free.notify_one(),
            Ok(_) => {}
            Err(_) => replica.expect_orphans(),
        }
        let count = u64::try_from(claimed.iter().flatten().count()).unwrap_or(0);
        metric::CLAIMED_TASKS.add(self.journal.agent(), &[], count);
        let resumable = self.is_resumable();
        let recover = async |(key, stored): Claim| {
            let _lock = replica.lock(&key).await;
            match &stored {
                // Only its mail is unread.
                Ok(stored) if !stored.row.open => replica.queue_mail(key),
                Ok(stored) if replica.is_reacquired(&key, stored.position.fence) => {}
                Ok(_) | Err(_) => self.try_recover_task((key, stored), resumable).await,
            }
        };
        let outcome = claimed.as_ref().map(drop).map_err(Clone::clone);
        stream::iter(claimed.into_iter().flatten()).for_each_concurrent(CONCURRENCY, recover).await;
        replica.set_claiming(false);
        outcome
    }

    /// Finds tasks that this replica runs without having them in memory, because an acquisition or a claim had no response.
    async fn find_orphans(&self, shared: &dyn SharedStore, replica: &Replica) -> Result<(), Unavailable> {
        let mut after = None;
        loop {
            let keys = shared.owned(after.as_ref(), CLAIM_BATCH).await?;
            let Some(last) = keys.last() else { return Ok(()) };
            after = Some(last.clone());
            let is_orphan = |key: &TaskKey| self.journal.get(key).is_none_or(|live| live.followed_position().is_some());
            keys.into_iter().filter(is_orphan).for_each(|key| replica.queue_mail(key));
        }
    }

    /// Applies what other processes have committed to tasks at these positions. Returns the runners of those that have changed.
    async fn follow(
        &self,
        shared: &dyn SharedStore,
        mut tasks: Vec<(LiveRef, Position)>,
    ) -> Result<Vec<(TaskKey, Option<ReplicaId>)>, Error> {
        let mut runners = Vec::new();
        while !tasks.is_empty() {
            let at: Vec<_> = tasks.iter().map(|(live, at)| (live.key.clone(), *at)).collect();
            let live: KeyMap<LiveRef> = tasks.drain(..).map(|(live, _)| (live.key.clone(), live)).collect();
            for (key, change) in shared.follow(&at).await? {
                let Some(live) = live.get(&key) else { continue };
                let Some(change) = change else {
                    self.journal.drop_task(live);
                    continue;
                };
                self.observe_lag(&change);
                match live.follow(&change) {
                    Some(true) => {}
                    Some(false) => tasks.extend(live.followed_position().map(|at| (live.clone(), at))),
                    None => self.reload(live).await?,
                }
                runners.push((key, change.runner));
            }
        }
        Ok(runners)
    }

    /// Records the age of the newest status that a follower gets.
    fn observe_lag(&self, change: &Advance) {
        if metric::is_enabled()
            && let Some(time) = change.events.iter().rev().find_map(|event| event.payload()?.status()?.timestamp)
        {
            let age = self.journal.sources().clock.millis().saturating_sub(millis(&time));
            metric::FOLLOW_LAG.observe(self.journal.agent(), &[], Duration::from_millis(age.try_into().unwrap_or(0)));
        }
    }

    /// Loads a followed task again, because a sweep has deleted events that it lacks.
    async fn reload(&self, live: &LiveRef) -> Result<(), Error> {
        let (journal, key) = (&self.journal, &live.key);
        match journal.store().load(key).await? {
            Some(stored) => {
                let loaded = live_task(journal, key, TaskRole::Follower, stored, self.limits.task_limits()).await?;
                drop(journal.put(key, loaded).await);
            }
            None => journal.drop_task(live),
        }
        Ok(())
    }
}

/// Acquisition in progress. If its caller stops waiting, or gets no response, the task is found again later.
struct Unfinished<'a>(&'a Replica);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.expect_orphans();
    }
}

/// Parts of the execution as its background tasks have them: without keeping it alive.
type Parts = (Weak<Shared>, Arc<Journal>);

/// Renews the lease of this replica.
async fn renew_lease((parts, journal): Parts) {
    let Some((shared, replica)) = journal.shared() else { return };
    let (mut is_joined, interval) = (false, replica.renewal_interval());
    while let Some(parts) = parts.upgrade() {
        let sent = Instant::now();
        let load = parts.load(journal.phase());
        drop(parts);
        let renewed = async {
            if is_joined {
                return shared.renew(load).await;
            }
            shared.join(&ReplicaInfo { name: Box::default(), version: VERSION }).await.map(|_| Renewal::Alive)
        };
        match timeout(interval, renewed).await {
            Ok(Ok(Renewal::Alive)) => {
                if !is_joined {
                    replica.joined.notify_one();
                }
                is_joined = true;
                replica.set_renewed(Some(sent));
                sleep_until(sent + interval).await;
            }
            Ok(Ok(Renewal::Lost)) => {
                tracing::warn!("another process declared this one dead; its tasks are claimed by others");
                replica.set_renewed(None);
                is_joined = false;
                journal.lose_tasks();
            }
            Ok(Err(_)) | Err(_) => sleep_until(sent + interval / 3).await,
        }
    }
}

/// Declares the replicas dead whose leases have expired.
async fn bury(journal: &Journal, shared: &dyn SharedStore) {
    match shared.bury(shared.lease()).await {
        Ok(dead) if dead.is_empty() => {}
        Ok(dead) => {
            tracing::warn!(replicas = ?dead, "replicas have not renewed their leases; their tasks are claimed");
            metric::DEAD_REPLICAS.add(journal.agent(), &[], u64::try_from(dead.len()).unwrap_or(0));
        }
        Err(cause) => tracing::debug!(error.cause = %cause, "expired leases can't be ended"),
    }
}

/// Declares replicas dead, and claims their tasks and turns without a runner.
async fn claim_tasks((parts, journal): Parts) {
    let Some((shared, replica)) = journal.shared() else { return };
    loop {
        let wait = CLAIM_INTERVAL / 2 + jittered(CLAIM_INTERVAL / 2, journal.sources().rng.next_u64());
        drop(timeout(wait, replica.free.notified()).await);
        let Some(parts) = parts.upgrade() else { return };
        bury(&journal, shared).await;
        if journal.phase() == Phase::Open && replica.has_lease() {
            drop(parts.claim_free().await);
        }
    }
}

/// Follows the tasks of other replicas that have readers or waiting callers here: by their notes, and by polling.
async fn follow_tasks((parts, journal): Parts) {
    let Some((shared, replica)) = journal.shared() else { return };
    let (mut wait, mut watched) = (MIN_POLL, BTreeMap::<TaskKey, (ReplicaId, Instant)>::new());
    loop {
        next_poll(shared, replica.progress.notified(), wait).await;
        let Some(parts) = parts.upgrade() else { return };
        let mut followed = journal.followed();
        watched.retain(|key, _| followed.binary_search_by(|live| live.key.cmp(key)).is_ok());
        wait = (wait * 2).min(MAX_POLL);
        while !followed.is_empty() {
            let rest = followed.split_off(followed.len().min(FOLLOW_BATCH));
            let tasks = followed.into_iter().filter_map(|live| live.followed_position().map(|at| (live, at))).collect();
            followed = rest;
            let Ok(runners) = parts.follow(shared, tasks).await else { break };
            for (key, runner) in runners {
                wait = MIN_POLL;
                let Some(runner) = runner.filter(|runner| *runner != shared.replica()) else { continue };
                let now = Instant::now();
                if watched.get(&key).is_none_or(|(known, at)| *known != runner || now - *at > WATCH_INTERVAL) {
                    shared.wake(Some(runner), Note::Watch(key.clone(), shared.replica()));
                    watched.insert(key, (runner, now));
                }
            }
        }
    }
}

/// Reads the mail of the tasks that this replica runs, and releases those that have left memory.
async fn read_mail((parts, journal): Parts) {
    let Some((shared, replica)) = journal.shared() else { return };
    let (mut later, mut next_poll) = (Work::default(), Instant::now());
    loop {
        let is_poll = tokio::select! {
            biased;
            () = replica.work_added.notified() => false,
            () = sleep_until(next_poll) => true,
        };
        let Some(parts) = parts.upgrade() else { return };
        let mut work = replica.take_work();
        if is_poll {
            next_poll = Instant::now() + MAX_POLL;
            work.releases.append(&mut later.releases);
            work.mail.append(&mut later.mail);
            if !shared.faults().has(Fault::NeverPoll)
                && let Ok(unread) = shared.unread(CLAIM_BATCH).await
            {
                work.mail.extend(unread);
            }
        }
        if !work.releases.is_empty() && shared.release(&work.releases).await.is_err() {
            later.releases.append(&mut work.releases);
        }
        if journal.phase() > Phase::Open {
            // Another replica reads it.
            continue;
        }
        let execution = Execution(parts);
        let read = async |key: TaskKey| execution.read_mail(&key).await.is_err().then_some(key);
        let unread = stream::iter(work.mail).map(read).buffer_unordered(CONCURRENCY);
        later.mail.extend(unread.filter_map(std::future::ready).collect::<Vec<_>>().await);
    }
}

/// Receives the notes of other replicas.
async fn read_notes((parts, journal): Parts) {
    let Some((shared, replica)) = journal.shared() else { return };
    loop {
        let mut notes = shared.notes();
        loop {
            let note = tokio::select! {
                biased;
                () = replica.joined.notified() => break,
                note = notes.recv() => note,
            };
            match note {
                Some(Note::Mail(key)) => replica.queue_mail(key),
                Some(Note::Watch(key, follower)) => replica.watch(key, follower),
                Some(Note::Progress(key)) => {
                    replica.progress.notify_one();
                    if let (Some(live), Some(parts)) = (journal.get(&key), parts.upgrade()) {
                        live.wake();
                        // An operator has ended the ownership, or a follower has become the runner.
                        if live.is_owned() && !live.has_ended() {
                            drop(parts.check_ownership(shared, live).await);
                        }
                    }
                }
                Some(Note::Free) => replica.free.notify_one(),
                None => pause(MAX_POLL).await,
            }
            if parts.strong_count() == 0 {
                return;
            }
        }
    }
}

/// Waits for a notification, or for the time of the next poll.
pub(super) async fn next_poll(shared: &dyn SharedStore, notified: impl Future<Output = ()>, wait: Duration) {
    if shared.faults().has(Fault::NeverPoll) {
        return notified.await;
    }
    drop(timeout(wait, notified).await);
}
