//! A store whose commits wait for a word of the test, so that what is accepted and what is durable can be told apart.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use a2a_service::{
    event::{Fence, Seq},
    seam::Millis,
    store::{
        Change, Claim, Commit, InUse, Key, ListPage, ListQuery, Log, PushConfig, PushPage, PutResult, Refused,
        Rejected, Retention, RunnerId, Scope, SendOutcome, Store, Stored, Swept, Unavailable, memory::Memory,
    },
};
use parking_lot::Mutex;
use tokio::sync::watch;

/// What becomes of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// It is written.
    Pass,
    /// Nothing is written, and nobody knows.
    Fail,
    /// It is written, and nobody knows.
    LoseAnswer,
    /// Another writer was there before.
    Stale,
}

/// A store behind a gate, which is closed at first.
pub(crate) struct Gate {
    store: Arc<dyn Store>,
    acts: Mutex<VecDeque<Act>>,
    open: AtomicBool,
    failing: AtomicBool,
    blind: AtomicBool,
    unclaimed: AtomicBool,
    logs_read: AtomicUsize,
    largest: AtomicUsize,
    told: watch::Sender<()>,
    standing: watch::Sender<usize>,
}

impl Gate {
    /// Before this store, which has to be one that is asked in turn, or is made one by this.
    pub(crate) fn new(store: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self {
            store,
            acts: Mutex::default(),
            open: AtomicBool::new(false),
            failing: AtomicBool::new(false),
            blind: AtomicBool::new(false),
            unclaimed: AtomicBool::new(false),
            logs_read: AtomicUsize::new(0),
            largest: AtomicUsize::new(usize::MAX),
            told: watch::Sender::new(()),
            standing: watch::Sender::new(0),
        })
    }

    /// Before a store in memory.
    pub(crate) fn memory() -> Arc<Self> {
        Self::new(Arc::new(Memory::default()))
    }

    /// Before a store in memory, open.
    pub(crate) fn opened() -> Arc<Self> {
        let gate = Self::memory();
        gate.open();
        gate
    }

    /// This becomes of the next commit that nobody has said anything about.
    pub(crate) fn tell(&self, act: Act) {
        self.acts.lock().push_back(act);
        self.told.send_replace(());
    }

    /// Lets all through from now on.
    pub(crate) fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
        self.told.send_replace(());
    }

    /// Whether every commit fails that nobody has said anything else about.
    pub(crate) fn fail(&self, failing: bool) {
        self.failing.store(failing, Ordering::SeqCst);
        self.told.send_replace(());
    }

    /// This gate, as a store.
    pub(crate) fn store(self: &Arc<Self>) -> Arc<dyn Store> {
        let it: Arc<Self> = Arc::clone(self);
        it
    }

    /// Whether nothing can be read.
    pub(crate) fn blind(&self, blind: bool) {
        self.blind.store(blind, Ordering::SeqCst);
    }

    /// Rejects changes whose events have more bytes than this.
    pub(crate) fn limit(&self, bytes: usize) {
        self.largest.store(bytes, Ordering::SeqCst);
    }

    fn rejects(&self, change: &Change) -> bool {
        let size: usize = change.commit().events.iter().map(|event| event.proto().len()).sum();
        size > self.largest.load(Ordering::SeqCst)
    }

    /// Returns when a commit stands at the gate.
    pub(crate) async fn knock(&self) {
        self.standing.subscribe().wait_for(|it| *it > 0).await.unwrap();
    }

    /// Sets whether claims of unfinished turns fail.
    pub(crate) fn keep_unclaimed(&self, unclaimed: bool) {
        self.unclaimed.store(unclaimed, Ordering::SeqCst);
    }

    /// Number of reads of a piece of a log.
    pub(crate) fn logs_read(&self) -> usize {
        self.logs_read.load(Ordering::SeqCst)
    }

    fn see(&self) -> Result<(), Unavailable> {
        if self.blind.load(Ordering::SeqCst) { Err(Unavailable("blind".into())) } else { Ok(()) }
    }

    async fn act(&self) -> Act {
        let mut told = self.told.subscribe();
        self.standing.send_modify(|it| *it += 1);
        let act = loop {
            let failing = self.failing.load(Ordering::SeqCst);
            if self.open.load(Ordering::SeqCst) && !failing {
                break Act::Pass;
            }
            let act = self.acts.lock().pop_front();
            match act {
                Some(it) => break it,
                None if failing => break Act::Fail,
                None => told.changed().await.unwrap(),
            }
        };
        self.standing.send_modify(|it| *it -= 1);
        act
    }
}

#[tonic::async_trait]
impl Store for Gate {
    fn lanes(&self) -> usize {
        self.store.lanes()
    }

    fn fence(&self) -> Fence {
        self.store.fence()
    }

    async fn commit(&self, batch: Arc<[Commit]>) -> Result<Vec<Result<(), Refused>>, Unavailable> {
        self.change(batch.iter().cloned().map(Change::Commit).collect()).await
    }

    async fn change(&self, batch: Arc<[Change]>) -> Result<Vec<Result<(), Refused>>, Unavailable> {
        let act = self.act().await;
        match act {
            Act::Fail => return Err(Unavailable("told so".into())),
            Act::Stale => return Ok(batch.iter().map(|_| Err(Refused::Stale(None))).collect()),
            Act::Pass | Act::LoseAnswer => {}
        }
        if batch.iter().any(|change| self.rejects(change)) {
            let mut outcomes = Vec::new();
            for change in &*batch {
                outcomes.push(if self.rejects(change) {
                    Err(Refused::Rejected(Rejected::Size { limit: "store.max_size", most: 1 }))
                } else {
                    self.store.change([change.clone()].into()).await?.remove(0)
                });
            }
            return Ok(outcomes);
        }
        let outcomes = self.store.change(batch).await;
        if act == Act::LoseAnswer { Err(Unavailable("who knows".into())) } else { outcomes }
    }

    async fn load(&self, key: &Key) -> Result<Option<Stored>, Unavailable> {
        // As a store on disk does: others come in between.
        tokio::task::yield_now().await;
        self.see()?;
        self.store.load(key).await
    }

    async fn events(&self, key: &Key, after: Seq, limit: usize) -> Result<Log, Unavailable> {
        self.see()?;
        self.logs_read.fetch_add(1, Ordering::SeqCst);
        self.store.events(key, after, limit).await
    }

    async fn sent(&self, scope: &Arc<Scope>, key: &str) -> Result<Option<SendOutcome>, Unavailable> {
        self.see()?;
        self.store.sent(scope, key).await
    }

    async fn list(&self, query: &ListQuery) -> Result<ListPage, Unavailable> {
        self.see()?;
        self.store.list(query).await
    }

    async fn put_push(&self, key: &Key, push: Arc<PushConfig>, most: usize) -> Result<PutResult, Unavailable> {
        self.store.put_push(key, push, most).await
    }

    async fn get_push(&self, key: &Key, id: &str) -> Result<Option<Arc<PushConfig>>, Unavailable> {
        self.see()?;
        self.store.get_push(key, id).await
    }

    async fn list_push(&self, key: &Key, after: u64, limit: usize) -> Result<Option<PushPage>, Unavailable> {
        self.see()?;
        self.store.list_push(key, after, limit).await
    }

    async fn delete_push(&self, key: &Key, id: &str) -> Result<bool, Unavailable> {
        self.store.delete_push(key, id).await
    }

    async fn claim(&self, runner: RunnerId, limit: usize, lease: Duration) -> Result<Vec<Claim>, Unavailable> {
        if self.unclaimed.load(Ordering::SeqCst) {
            return Err(Unavailable("not yet".into()));
        }
        self.store.claim(runner, limit, lease).await
    }

    async fn idle(&self, before: Millis, skip: usize, limit: usize) -> Result<Vec<Key>, Unavailable> {
        self.see()?;
        self.store.idle(before, skip, limit).await
    }

    async fn sweep(&self, policy: &Retention, now: Millis, in_use: InUse<'_>) -> Result<Swept, Unavailable> {
        self.store.sweep(policy, now, in_use).await
    }

    async fn log_bytes(&self, key: &Key) -> Result<usize, Unavailable> {
        self.store.log_bytes(key).await
    }

    async fn check(&self) -> Result<(), Unavailable> {
        if self.failing.load(Ordering::SeqCst) { Err(Unavailable("told so".into())) } else { self.see() }
    }
}
