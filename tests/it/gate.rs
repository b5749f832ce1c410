//! Store whose commits wait until the test decides their outcome; separates accepted from durable state.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use a2a_service::{
    clock::Millis,
    event::{Event, Fence, Seq},
    store::{
        Claim, Commit, Committed, Delivery, DeliveryClaim, DeliveryCounts, DeliveryOutcome, DeliveryPage,
        DeliveryToken, Full, InUse, Lease, ListPage, ListQuery, LogSummary, Maintenance, PushConfig, PushPage,
        PushQueue, PushTaskPage, PutResult, Refused, Rejected, Retention, Scope, SendOutcome, SharedStore, Store,
        StoredTask, SweepResult, TaskKey, TaskStore, Unavailable, memory::Memory,
    },
};
use parking_lot::Mutex;
use tokio::sync::watch;

/// Outcome of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommitOutcome {
    /// Applied and acknowledged.
    Pass,
    /// Not applied, without acknowledgement.
    Fail,
    /// Applied, without acknowledgement.
    LoseReply,
    /// Refused because another writer has changed the task.
    Stale,
}

/// Owner and bytes of the events of each change in a batch.
pub(crate) type Changes = Vec<(Arc<str>, usize)>;

/// Store that blocks commits until the gate is open or an outcome is queued; closed initially.
pub(crate) struct Gate {
    store: Arc<dyn Store>,
    outcomes: Mutex<VecDeque<CommitOutcome>>,
    open: AtomicBool,
    failing: AtomicBool,
    unreadable: AtomicBool,
    failing_claims: AtomicBool,
    claims: Mutex<Vec<Claim>>,
    logs_read: AtomicUsize,
    largest: AtomicUsize,
    batches: Mutex<Vec<Changes>>,
    updated: watch::Sender<()>,
    blocked: watch::Sender<usize>,
}

impl Gate {
    /// Closed gate in front of a store. Commits go through a lane even if the store itself commits synchronously.
    pub(crate) fn new(store: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self {
            store,
            outcomes: Mutex::default(),
            open: AtomicBool::new(false),
            failing: AtomicBool::new(false),
            unreadable: AtomicBool::new(false),
            failing_claims: AtomicBool::new(false),
            claims: Mutex::default(),
            logs_read: AtomicUsize::new(0),
            largest: AtomicUsize::new(usize::MAX),
            batches: Mutex::default(),
            updated: watch::Sender::new(()),
            blocked: watch::Sender::new(0),
        })
    }

    /// Closed gate in front of a memory store.
    pub(crate) fn memory() -> Arc<Self> {
        Self::new(Arc::new(Memory::default()))
    }

    /// Open gate in front of a memory store.
    pub(crate) fn opened() -> Arc<Self> {
        let gate = Self::memory();
        gate.open();
        gate
    }

    /// Queues the outcome of the next commit that has none.
    pub(crate) fn queue(&self, outcome: CommitOutcome) {
        self.outcomes.lock().push_back(outcome);
        self.updated.send_replace(());
    }

    /// Lets all commits pass from now on.
    pub(crate) fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
        self.updated.send_replace(());
    }

    /// Sets whether commits without a queued outcome fail.
    pub(crate) fn fail_commits(&self, failing: bool) {
        self.failing.store(failing, Ordering::SeqCst);
        self.updated.send_replace(());
    }

    /// Returns this gate as a store.
    pub(crate) fn store(self: &Arc<Self>) -> Arc<dyn Store> {
        let store: Arc<Self> = Arc::clone(self);
        store
    }

    /// Sets whether reads fail.
    pub(crate) fn fail_reads(&self, unreadable: bool) {
        self.unreadable.store(unreadable, Ordering::SeqCst);
    }

    /// Rejects changes whose events have more bytes than this.
    pub(crate) fn limit_change_size(&self, bytes: usize) {
        self.largest.store(bytes, Ordering::SeqCst);
    }

    fn rejects(&self, commit: &Commit) -> bool {
        event_bytes(commit) > self.largest.load(Ordering::SeqCst)
    }

    /// Returns the batches that were committed, in order.
    pub(crate) fn batches(&self) -> Vec<Changes> {
        self.batches.lock().clone()
    }

    /// Waits until a commit is blocked at the gate.
    pub(crate) async fn wait_for_commit(&self) {
        self.blocked.subscribe().wait_for(|blocked| *blocked > 0).await.unwrap();
    }

    /// Sets whether claims of unfinished turns fail.
    pub(crate) fn fail_claims(&self, failing_claims: bool) {
        self.failing_claims.store(failing_claims, Ordering::SeqCst);
    }

    /// Adds a task to those that the next claim returns.
    pub(crate) fn queue_claim(&self, claim: Claim) {
        self.claims.lock().push(claim);
    }

    /// Number of log reads.
    pub(crate) fn logs_read(&self) -> usize {
        self.logs_read.load(Ordering::SeqCst)
    }

    fn check_readable(&self) -> Result<(), Unavailable> {
        if self.unreadable.load(Ordering::SeqCst) { Err(Unavailable("read failed by the test".into())) } else { Ok(()) }
    }

    async fn next_outcome(&self) -> CommitOutcome {
        let mut updated = self.updated.subscribe();
        self.blocked.send_modify(|blocked| *blocked += 1);
        let outcome = loop {
            let failing = self.failing.load(Ordering::SeqCst);
            if self.open.load(Ordering::SeqCst) && !failing {
                break CommitOutcome::Pass;
            }
            let outcome = self.outcomes.lock().pop_front();
            match outcome {
                Some(outcome) => break outcome,
                None if failing => break CommitOutcome::Fail,
                None => updated.changed().await.unwrap(),
            }
        };
        self.blocked.send_modify(|blocked| *blocked -= 1);
        outcome
    }
}

fn event_bytes(commit: &Commit) -> usize {
    commit.events.iter().map(|event| event.proto().len()).sum()
}

#[tonic::async_trait]
impl TaskStore for Gate {
    fn lanes(&self) -> usize {
        self.store.lanes()
    }

    fn first_fence(&self) -> Fence {
        self.store.first_fence()
    }

    fn shared(&self) -> Option<&dyn SharedStore> {
        self.store.shared()
    }

    async fn commit(&self, batch: Arc<[Commit]>) -> Result<Vec<Result<Committed, Refused>>, Unavailable> {
        let outcome = self.next_outcome().await;
        let changes = batch.iter().map(|commit| (Arc::clone(&commit.key.scope().owner), event_bytes(commit)));
        self.batches.lock().push(changes.collect());
        match outcome {
            CommitOutcome::Fail => return Err(Unavailable("commit failed by the test".into())),
            CommitOutcome::Stale => return Ok(batch.iter().map(|_| Err(Refused::Stale(None))).collect()),
            CommitOutcome::Pass | CommitOutcome::LoseReply => {}
        }
        if batch.iter().any(|change| self.rejects(change)) {
            let mut outcomes = Vec::new();
            for change in &*batch {
                outcomes.push(if self.rejects(change) {
                    Err(Refused::Rejected(Rejected::Size { limit: "store.max_size", max: 1 }))
                } else {
                    self.store.commit([change.clone()].into()).await?.remove(0)
                });
            }
            return Ok(outcomes);
        }
        let outcomes = self.store.commit(batch).await;
        if outcome == CommitOutcome::LoseReply {
            Err(Unavailable("acknowledgement lost by the test".into()))
        } else {
            outcomes
        }
    }

    async fn load(&self, key: &TaskKey) -> Result<Option<StoredTask>, Unavailable> {
        // Suspends like a store on disk, so that other tasks run in between.
        tokio::task::yield_now().await;
        self.check_readable()?;
        self.store.load(key).await
    }

    async fn events(
        &self,
        key: &TaskKey,
        after: Seq,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<Event>, Unavailable> {
        self.check_readable()?;
        self.logs_read.fetch_add(1, Ordering::SeqCst);
        self.store.events(key, after, limit, max_bytes).await
    }

    async fn find_send(&self, scope: &Arc<Scope>, key: &str) -> Result<Option<SendOutcome>, Unavailable> {
        self.check_readable()?;
        self.store.find_send(scope, key).await
    }

    async fn list(&self, query: &ListQuery) -> Result<ListPage, Unavailable> {
        self.check_readable()?;
        self.store.list(query).await
    }

    async fn log_summary(&self, key: &TaskKey) -> Result<LogSummary, Unavailable> {
        self.store.log_summary(key).await
    }

    async fn context_bytes(&self, scope: &Arc<Scope>, context: &str, most: usize) -> Result<usize, Unavailable> {
        self.store.context_bytes(scope, context, most).await
    }
}

#[tonic::async_trait]
impl PushQueue for Gate {
    async fn put_push(&self, key: &TaskKey, push: Arc<PushConfig>, most: usize) -> Result<PutResult, Unavailable> {
        self.store.put_push(key, push, most).await
    }

    async fn check_push_capacity(&self, scope: &Scope) -> Result<Result<(), Full>, Unavailable> {
        self.store.check_push_capacity(scope).await
    }

    async fn get_push(&self, key: &TaskKey, id: &str) -> Result<Option<Arc<PushConfig>>, Unavailable> {
        self.check_readable()?;
        self.store.get_push(key, id).await
    }

    async fn list_push(&self, key: &TaskKey, after: u64, limit: usize) -> Result<Option<PushPage>, Unavailable> {
        self.check_readable()?;
        self.store.list_push(key, after, limit).await
    }

    async fn delete_push(&self, key: &TaskKey, id: &str) -> Result<bool, Unavailable> {
        self.store.delete_push(key, id).await
    }

    async fn mark_due(&self, keys: &[TaskKey], now: Millis) -> Result<usize, Unavailable> {
        self.store.mark_due(keys, now).await
    }

    async fn mark_all_due(&self, now: Millis, after: DeliveryToken, limit: usize) -> Result<PushTaskPage, Unavailable> {
        self.store.mark_all_due(now, after, limit).await
    }

    async fn next_due(&self) -> Result<Option<Millis>, Unavailable> {
        self.check_readable()?;
        self.store.next_due().await
    }

    async fn oldest_pending(&self) -> Result<Option<Millis>, Unavailable> {
        self.check_readable()?;
        self.store.oldest_pending().await
    }

    async fn claim_due(&self, lease: &Lease, limit: usize) -> Result<Vec<DeliveryClaim>, Unavailable> {
        self.store.claim_due(lease, limit).await
    }

    async fn end_claim(&self, claim: &DeliveryClaim, outcome: DeliveryOutcome) -> Result<bool, Unavailable> {
        self.store.end_claim(claim, outcome).await
    }

    async fn release_deliveries(&self, runner: &str, now: Millis) -> Result<usize, Unavailable> {
        self.store.release_deliveries(runner, now).await
    }

    async fn undelivered_tasks(&self, keys: &[TaskKey]) -> Result<Vec<TaskKey>, Unavailable> {
        self.store.undelivered_tasks(keys).await
    }

    async fn deliveries(
        &self,
        dead_only: bool,
        after: DeliveryToken,
        limit: usize,
    ) -> Result<DeliveryPage, Unavailable> {
        self.check_readable()?;
        self.store.deliveries(dead_only, after, limit).await
    }

    async fn task_deliveries(&self, key: &TaskKey) -> Result<Vec<Delivery>, Unavailable> {
        self.store.task_deliveries(key).await
    }

    async fn delivery_counts(&self) -> Result<DeliveryCounts, Unavailable> {
        self.store.delivery_counts().await
    }

    async fn retry_delivery(&self, key: &TaskKey, id: &str, now: Millis) -> Result<bool, Unavailable> {
        self.store.retry_delivery(key, id, now).await
    }
}

#[tonic::async_trait]
impl Maintenance for Gate {
    async fn claim(&self, limit: usize) -> Result<Vec<Claim>, Unavailable> {
        if self.failing_claims.load(Ordering::SeqCst) {
            return Err(Unavailable("claim failed by the test".into()));
        }
        let mut claimed = std::mem::take(&mut *self.claims.lock());
        claimed.extend(self.store.claim(limit).await?);
        Ok(claimed)
    }

    async fn idle_tasks(&self, before: Millis, skip: usize, limit: usize) -> Result<Vec<TaskKey>, Unavailable> {
        self.check_readable()?;
        self.store.idle_tasks(before, skip, limit).await
    }

    async fn sweep(&self, policy: &Retention, now: Millis, in_use: InUse<'_>) -> Result<SweepResult, Unavailable> {
        self.store.sweep(policy, now, in_use).await
    }

    async fn check(&self) -> Result<(), Unavailable> {
        if self.failing.load(Ordering::SeqCst) {
            Err(Unavailable("commit failed by the test".into()))
        } else {
            self.check_readable()
        }
    }
}
