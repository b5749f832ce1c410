//! From accepted to durable to shown: the map of live tasks, and group commit over lanes with an outcome for each task.

use std::{
    array,
    hash::BuildHasherDefault,
    mem,
    ops::Deref,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU8, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::{Notify, OnceCell, watch},
    task::AbortHandle,
    time::{Instant, sleep_until, timeout},
};

pub use self::reader::{Cut, Reader};
use self::{
    commit_retry::CommitRetry,
    live::{Inner, Live, fold, fold_bytes},
    waiters::Wakeups,
};
use crate::{
    seam::Clock,
    store::{Change, Key, KeyMap, Refused, Store, Unavailable},
};

mod commit_retry;
pub(crate) mod live;
mod reader;
pub(crate) mod turns;
pub(crate) mod waiters;

const SHARDS: usize = 64;

/// How many tasks a commit takes along.
const GROUP: usize = 512;

/// What the store has not taken for so long is taken back, where that can be done; else those who sent it are told.
const PATIENCE: Duration = Duration::from_secs(5);

/// A store that has been away for so long gets no new work.
const DOWN: Duration = Duration::from_secs(1);

/// Interval between two notifications of senders and cancels that wait for an unavailable store.
const TELL: Duration = Duration::from_secs(1);

/// The tasks in memory, and their way to the store.
pub struct Journal {
    store: Arc<dyn Store>,
    clock: Clock,
    shards: [Mutex<KeyMap<Arc<Entry>>>; SHARDS],
    lanes: Vec<Lane>,
    runners: OnceLock<Vec<AbortHandle>>,
    down: Mutex<Down>,
    /// A fault of the store as a whole.
    fault: Option<watch::Receiver<Option<Unavailable>>>,
    phase: AtomicU8,
}

/// How far the server's end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// It serves.
    Open,
    /// What runs may go on for a while; streams of what does not run end.
    Draining,
    /// Nothing goes on. What an agent left undone, it left undone: that is written nowhere.
    Stopped,
}

/// What is known of a store that is away.
#[derive(Default)]
struct Down {
    /// Since when no commit has come through, of those that were tried.
    since: Option<Instant>,
    /// The log says so.
    told: bool,
}

#[derive(Default)]
struct Lane {
    dirty: Mutex<Vec<LiveRef>>,
    wake: Notify,
}

/// A task's place in the map: empty while its one loader reads the store.
struct Entry {
    key: Key,
    journal: Arc<Journal>,
    live: OnceCell<Live>,
    /// How many hold it. Under the map's lock alone it becomes more than none.
    holders: AtomicUsize,
}

/// Whoever uses a live task holds it: turns, readers, the journal. When nobody does, it leaves memory.
pub(crate) struct LiveRef(Arc<Entry>);

impl Journal {
    /// Over a store.
    pub fn new(store: Arc<dyn Store>) -> Arc<Self> {
        let lanes: Vec<Lane> = (0..store.lanes().max(1)).map(|_| Lane::default()).collect();
        let fault = store.fault();
        let it = Arc::new(Self {
            store,
            clock: Clock::new(),
            shards: array::from_fn(|_| Mutex::new(KeyMap::with_hasher(BuildHasherDefault::new()))),
            lanes,
            runners: OnceLock::new(),
            down: Mutex::default(),
            fault,
            phase: AtomicU8::new(0),
        });
        if it.store.immediate().is_none() {
            let run = |lane| tokio::spawn(Arc::clone(&it).run(lane)).abort_handle();
            let watch = it.fault.clone().map(|fault| tokio::spawn(Arc::clone(&it).watch(fault)).abort_handle());
            it.runners.get_or_init(|| (0..it.lanes.len()).map(run).chain(watch).collect());
        }
        it
    }

    /// Where it keeps what is committed.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// What time it is.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Ends the lanes. What has not been committed by then will not be.
    pub fn stop(&self) {
        self.runners.get().into_iter().flatten().for_each(AbortHandle::abort);
        for lane in &self.lanes {
            // They hold the journal, which holds them.
            let left = mem::take(&mut *lane.dirty.lock());
            drop(left);
        }
    }

    /// The store has been away for longer than a moment: it refuses, does not answer, or has a fault.
    pub fn is_down(&self) -> bool {
        self.has_fault() || self.is_down_for(DOWN)
    }

    /// The store has a fault, which retries do not resolve.
    fn has_fault(&self) -> bool {
        self.fault.as_ref().is_some_and(|fault| fault.borrow().is_some())
    }

    /// Commits were attempted, and none has succeeded for this long.
    fn is_down_for(&self, time: Duration) -> bool {
        self.down.lock().since.is_some_and(|since| since.elapsed() > time)
    }

    /// How far the server's end has come.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::SeqCst) {
            0 => Phase::Open,
            1 => Phase::Draining,
            _ => Phase::Stopped,
        }
    }

    /// Goes on to the next phase, and tells whoever waits.
    pub fn enter(&self, phase: Phase) {
        let number = match phase {
            Phase::Open => 0,
            Phase::Draining => 1,
            Phase::Stopped => 2,
        };
        self.phase.store(number, Ordering::SeqCst);
        for held in self.all() {
            let mut inner = held.lock();
            let wake = if phase == Phase::Stopped { inner.stop() } else { inner.wake() };
            drop(inner);
            held.fire(wake);
        }
    }

    // The map.

    /// A task that begins.
    pub(crate) fn insert(self: &Arc<Self>, live: Live) -> LiveRef {
        let key = live.key.clone();
        let slot = Arc::new(Entry::new(&key, self, Some(live)));
        let held = slot.hold();
        self.shards[key.share(SHARDS)].lock().insert(key, slot);
        held
    }

    /// The task, if it is in memory.
    pub(crate) fn find(&self, key: &Key) -> Option<LiveRef> {
        let held = self.shards[key.share(SHARDS)].lock().get(key).map(Entry::hold);
        held.filter(|it| it.0.live.initialized())
    }

    /// The task, loaded by whoever comes first.
    pub(crate) async fn hold<E, F: Future<Output = Result<Live, E>>>(
        self: &Arc<Self>,
        key: &Key,
        load: impl FnOnce() -> F,
    ) -> Result<LiveRef, E> {
        let held = {
            let mut shard = self.shards[key.share(SHARDS)].lock();
            shard.entry(key.clone()).or_insert_with(|| Arc::new(Entry::new(key, self, None))).hold()
        };
        held.0.live.get_or_try_init(load).await?;
        Ok(held)
    }

    /// How many tasks are in memory.
    pub fn live_tasks(&self) -> usize {
        self.shards.iter().map(|it| it.lock().len()).sum()
    }

    fn all(&self) -> Vec<LiveRef> {
        let of = |it: &Mutex<KeyMap<Arc<Entry>>>| {
            it.lock().values().filter(|it| it.live.initialized()).map(Entry::hold).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of).collect()
    }

    fn remove(&self, slot: &Arc<Entry>) -> Option<Arc<Entry>> {
        let mut shard = self.shards[slot.key.share(SHARDS)].lock();
        if shard.get(&slot.key).is_some_and(|it| Arc::ptr_eq(it, slot)) { shard.remove(&slot.key) } else { None }
    }

    // Commits.

    /// Takes what is pending to the store: in the caller where that is immediate, else by the task's lane.
    pub(crate) fn flush(&self, held: &LiveRef, mut inner: MutexGuard<'_, Inner>) {
        if !inner.is_dirty() || inner.queued {
            return;
        }
        let live: &Live = held;
        let Some(store) = self.store.immediate() else {
            inner.queued = true;
            drop(inner);
            let lane = &self.lanes[live.key.share(self.lanes.len())];
            lane.dirty.lock().push(held.clone());
            return lane.wake.notify_one();
        };
        let mut wake = Wakeups::default();
        if let Some(whole) = inner.conclude(live) {
            match store.conclude(&whole) {
                Ok(()) => inner.concluded(&whole, &mut wake),
                Err(why) => wake = self.lose(held, &mut inner, &why),
            }
            drop(inner);
            drop(whole);
            return live.fire(wake);
        }
        let mut commit = inner.prepare(live, true);
        fold(&mut commit);
        match store.commit_now(&commit) {
            Ok(()) => {
                inner.settle(&commit, &mut wake);
                inner.reuse(mem::take(&mut commit.events));
            }
            Err(why) => wake = self.lose(held, &mut inner, &why),
        }
        drop(inner);
        drop(commit);
        live.fire(wake);
    }

    /// Drops what is in memory of a task that another writer has, or that there is no room for.
    fn lose(&self, held: &LiveRef, inner: &mut Inner, why: &Refused) -> Wakeups {
        // Out of the map first: whoever comes next loads what the store has.
        drop(self.remove(&held.0));
        inner.refuse(why)
    }

    async fn run(self: Arc<Self>, lane: usize) {
        let mut again = CommitRetry::default();
        loop {
            tokio::select! {
                biased;
                () = sleep_until(again.due()), if again.is_there_any() => again.try_all(&self).await,
                group = self.group(lane) => {
                    let changes: Arc<[Change]> = group.iter().map(change).collect();
                    if self.write(&group, &changes, false).await.is_err() {
                        again.failed(group, &changes);
                    }
                }
            }
        }
    }

    async fn group(&self, lane: usize) -> Vec<LiveRef> {
        let lane = &self.lanes[lane];
        loop {
            let taken = {
                let mut dirty = lane.dirty.lock();
                let rest = dirty.len().min(GROUP);
                let rest = dirty.split_off(rest);
                mem::replace(&mut *dirty, rest)
            };
            if !taken.is_empty() {
                return taken;
            }
            lane.wake.notified().await;
        }
    }

    async fn write(&self, group: &[LiveRef], changes: &Arc<[Change]>, again: bool) -> Result<(), ()> {
        self.down.lock().since.get_or_insert_with(Instant::now);
        let (mut change, mut wait) = (self.store.change(Arc::clone(changes)), PATIENCE);
        let outcomes = loop {
            if let Ok(outcomes) = timeout(wait, &mut change).await {
                break outcomes;
            }
            self.put_off(group);
            wait = TELL;
        };
        match &outcomes {
            Ok(_) => self.is_up(),
            Err(cause) if !mem::replace(&mut self.down.lock().told, true) => {
                tracing::warn!(error.cause = %cause, "the store is away");
            }
            Err(_) => {}
        }
        for ((held, change), outcome) in group.iter().zip(&**changes).zip(outcomes.map_err(drop)?) {
            let mut wake = Wakeups::default();
            let mut inner = held.lock();
            inner.queued = false;
            // The answer to an earlier try was lost: a row that stands where only this can have put it is ours.
            let is_ours = |why: &Refused| again && *why == Refused::Stale(Some(change.position()));
            match (outcome, change) {
                (Err(why), change) if !is_ours(&why) => {
                    let kept = match &why {
                        Refused::Rejected(why) => inner.reject(held, change, why),
                        Refused::Stale(_) | Refused::Duplicate { .. } | Refused::Full(_) => None,
                    };
                    wake = kept.unwrap_or_else(|| self.lose(held, &mut inner, &why));
                }
                (_, Change::Commit(it)) => inner.settle(it, &mut wake),
                (_, Change::CompletedTask(it)) => inner.concluded(it, &mut wake),
            }
            self.flush(held, inner);
            held.fire(wake);
        }
        Ok(())
    }

    /// The store does not answer: fails waiting senders and cancels, also those whose messages are not recorded.
    fn put_off(&self, group: &[LiveRef]) {
        let behind: Vec<LiveRef> = self.lanes.iter().flat_map(|it| it.dirty.lock().clone()).collect();
        group.iter().chain(&behind).for_each(|it| it.lock().put_off());
        self.put_off_recorded();
    }

    /// Fails waiting senders and cancels of all tasks with UNAVAILABLE, since the store can't record their results.
    /// Turns go on. Messages that are not recorded yet are left to the retries of their own commits.
    fn put_off_recorded(&self) {
        self.all().iter().for_each(|held| held.lock().put_off_recorded());
    }

    /// Fails waiting senders and cancels when a fault of the store has lasted for some time.
    async fn watch(self: Arc<Self>, mut fault: watch::Receiver<Option<Unavailable>>) {
        while fault.wait_for(Option::is_some).await.is_ok() {
            let mut wait = PATIENCE;
            loop {
                match timeout(wait, fault.wait_for(Option::is_none)).await {
                    Ok(Ok(_)) => break,
                    // The store has gone.
                    Ok(Err(_)) => return,
                    Err(_) => self.put_off_recorded(),
                }
                wait = TELL;
            }
        }
    }

    /// Lets new work probe the store, which may still be unavailable.
    fn probe(&self) {
        self.down.lock().since = None;
    }

    /// The store has taken something, or would.
    fn is_up(&self) {
        if mem::take(&mut *self.down.lock()).told {
            tracing::info!("the store is there again");
        }
    }

    /// Returns when all that was accepted has been committed, or that will not be.
    pub(crate) async fn settled(&self) {
        const LOOK: Duration = Duration::from_millis(5);
        while self.store.immediate().is_none() && self.all().iter().any(|it| it.lock().is_unsettled()) {
            pause(LOOK).await;
        }
    }
}

/// What there is to write of a task. What it adds to the task is told to that outside of the lock: only the task's lane
/// moves what is shown.
fn change(held: &LiveRef) -> Change {
    let mut commit = {
        let mut inner = held.lock();
        if let Some(whole) = inner.conclude(held) {
            return Change::CompletedTask(whole);
        }
        inner.prepare(held, false)
    };
    fold_bytes(&mut commit);
    Change::Commit(commit)
}

/// Waits for what gives no sign when it is there.
pub(crate) async fn pause(time: Duration) {
    #[expect(clippy::disallowed_methods, reason = "what is waited for gives no sign")]
    tokio::time::sleep(time).await;
}

impl Entry {
    fn new(key: &Key, journal: &Arc<Journal>, live: Option<Live>) -> Self {
        let (key, journal, live) = (key.clone(), Arc::clone(journal), OnceCell::new_with(live));
        Self { key, journal, live, holders: AtomicUsize::new(0) }
    }

    /// For whoever holds it already, or has the map's lock.
    fn hold(self: &Arc<Self>) -> LiveRef {
        self.holders.fetch_add(1, Ordering::AcqRel);
        LiveRef(Arc::clone(self))
    }
}

impl LiveRef {
    /// Where it is live.
    pub(crate) fn journal(&self) -> &Arc<Journal> {
        &self.0.journal
    }
}

impl Deref for LiveRef {
    type Target = Live;

    fn deref(&self) -> &Live {
        match self.0.live.get() {
            Some(it) => it,
            None => unreachable!("nobody is given it before it is loaded"),
        }
    }
}

impl Clone for LiveRef {
    fn clone(&self) -> Self {
        self.0.hold()
    }
}

impl Drop for LiveRef {
    /// Who lets go last, takes it off the map, unless somebody has found it there meanwhile.
    fn drop(&mut self) {
        let slot = &self.0;
        if slot.holders.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let gone = {
            let mut shard = slot.journal.shards[slot.key.share(SHARDS)].lock();
            let unused = slot.holders.load(Ordering::Acquire) == 0;
            let mapped = unused && shard.get(&slot.key).is_some_and(|it| Arc::ptr_eq(it, slot));
            if mapped { shard.remove_entry(&slot.key) } else { None }
        };
        drop(gone); // what is freed, is freed outside of the lock
    }
}

impl std::fmt::Debug for LiveRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Held").field(&self.0.key).finish()
    }
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal")
            .field("live", &self.live_tasks())
            .field("phase", &self.phase())
            .finish_non_exhaustive()
    }
}
