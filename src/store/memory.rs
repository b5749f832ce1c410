//! Task store in memory, which keeps tasks in encoded form. The number of tasks is limited: a new task evicts the one that
//! reached its terminal state first. Other tasks are never evicted.

use std::{
    array,
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, atomic::AtomicU64},
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;

pub use self::cluster::{Cluster, Replica};
use self::{
    commit_log::CommitLog,
    delivery::{DeliveryQueue, PushConfigs},
    eviction::{EvictionRank, Evictions},
    index::Index,
};
use super::{
    Claim, Commit, Committed, Event, Fence, Full, InUse, Inspect, KeyMap, ListPage, ListQuery, LogSummary, Maintenance,
    Millis, PageToken, Position, Refused, Retention, Scope, SendOutcome, Seq, StoreUsage, StoredTask, SweepResult,
    SyncStore, Task, TaskHead, TaskKey, TaskStore, TurnRecord, Unavailable,
    log_codec::{OpenLog, SealedLog, TaskIds},
    page::read_page,
    quota::DEFAULT_MAX_PUSH_CONFIGS_PER_OWNER,
    up_to_bytes,
};
use crate::protocol::task;

mod cluster;
mod commit;
mod commit_log;
mod delivery;
mod eviction;
mod index;
mod inspect;
#[cfg(test)]
mod tests;

/// Number of shards. A map that grows blocks its shard, so shards should be small: 4,000 tasks each at a million tasks.
const SHARDS: usize = 256;

/// Default of the maximum number of tasks.
pub const DEFAULT_MAX_TASKS: usize = 2000;

/// Store in memory. Its contents are lost when the process ends.
pub struct Memory {
    /// Boxed entries, because a map that grows moves its values.
    shards: [Mutex<KeyMap<Box<TaskEntry>>>; SHARDS],
    /// Lock order: shard, index, evictions or deliveries.
    index: Mutex<BTreeMap<Arc<Scope>, Index>>,
    evictions: Mutex<Evictions>,
    deliveries: Mutex<DeliveryQueue>,
    max_tasks: usize,
    max_push_configs_per_owner: usize,
    /// Number of tasks that were created.
    created: AtomicU64,
}

struct TaskEntry {
    /// Number in the order of creation.
    number: u64,
    position: Position,
    row: TaskHead,
    agent_state: Option<Bytes>,
    turn_contexts: Option<Bytes>,
    /// Idempotency keys of its messages. Usually empty.
    idempotency_keys: Vec<Box<str>>,
    /// Boxed, because most tasks have none.
    push: Option<Box<PushConfigs>>,
    /// Position in the order of eviction, if the task is in a terminal state.
    eviction_rank: Option<EvictionRank>,
    log: EntryLog,
    commits: CommitLog,
}

/// Stored log of a task.
enum EntryLog {
    Open(OpenLog),
    Sealed(SealedLog),
}

impl Memory {
    /// Creates a store with a maximum number of tasks. At the limit, a new task evicts the one that reached its terminal
    /// state first. If there is none, the new task is refused.
    pub fn with_max_tasks(max_tasks: usize) -> Self {
        Self {
            shards: array::from_fn(|_| Mutex::default()),
            index: Mutex::default(),
            evictions: Mutex::new(Evictions::new(max_tasks, None)),
            deliveries: Mutex::default(),
            max_tasks,
            max_push_configs_per_owner: DEFAULT_MAX_PUSH_CONFIGS_PER_OWNER,
            created: AtomicU64::new(0),
        }
    }

    /// Sets the maximum number of tasks of one owner, over all tenants. At the limit, a new task evicts the owner's task that
    /// reached its terminal state first.
    #[must_use]
    pub fn with_max_tasks_per_owner(self, max: usize) -> Self {
        Self { evictions: Mutex::new(Evictions::new(self.max_tasks, Some(max))), ..self }
    }

    /// Sets the maximum number of push configurations of the tasks of one owner, over all tenants. 10 000 by default.
    #[must_use]
    pub fn with_max_push_configs_per_owner(self, max: usize) -> Self {
        Self { max_push_configs_per_owner: max, ..self }
    }

    /// Returns the number of tasks, and the size in bytes of those in a terminal state.
    pub fn size(&self) -> (usize, usize) {
        let sizes: [(usize, usize); SHARDS] = array::from_fn(|n| {
            let shard = self.shards[n].lock();
            let sealed_bytes = |entry: &TaskEntry| match &entry.log {
                EntryLog::Sealed(log) => log.bytes().len(),
                EntryLog::Open(_) => 0,
            };
            (shard.len(), shard.values().map(|entry| sealed_bytes(entry)).sum())
        });
        sizes.iter().fold((0, 0), |sum, size| (sum.0 + size.0, sum.1 + size.1))
    }

    fn with<T>(&self, key: &TaskKey, read: impl FnOnce(&TaskEntry) -> T) -> Option<T> {
        self.shards[key.shard(SHARDS)].lock().get(key).map(|entry| read(entry))
    }

    fn with_mut<T>(&self, key: &TaskKey, change: impl FnOnce(&mut TaskEntry) -> T) -> Option<T> {
        self.shards[key.shard(SHARDS)].lock().get_mut(key).map(|entry| change(entry))
    }

    fn stored(&self, key: &TaskKey) -> Option<StoredTask> {
        self.with(key, |TaskEntry { position, row, agent_state, turn_contexts, log, .. }| StoredTask {
            position: *position,
            row: row.clone(),
            agent_state: agent_state.clone(),
            turn_contexts: turn_contexts.clone(),
            checkpoint: match log {
                EntryLog::Open(_) => None,
                EntryLog::Sealed(log) => log.snapshot().map(|snapshot| (position.seq, snapshot)),
            },
            tail: Vec::new(),
            log: None,
        })
    }

    fn earlier_send(&self, scope: &Arc<Scope>, key: &str) -> Option<SendOutcome> {
        self.index.lock().get(scope)?.sends.get(key).cloned()
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::with_max_tasks(DEFAULT_MAX_TASKS)
    }
}

/// Decodes events of a task, up to the one with which they have `max_bytes`.
fn logged_events(entry: &TaskEntry, key: &TaskKey, after: Seq, limit: usize, max_bytes: usize) -> Vec<Event> {
    let after = usize::try_from(after).unwrap_or(usize::MAX);
    let ids = TaskIds { id: key.id(), context: &entry.row.context };
    match &entry.log {
        EntryLog::Open(log) => up_to_bytes(log.events(after, ids).take(limit), max_bytes),
        EntryLog::Sealed(log) => up_to_bytes(log.events(after, ids).take(limit), max_bytes),
    }
}

/// Decodes a task for a list.
fn listed_task(entry: &TaskEntry, key: &TaskKey, query: &ListQuery) -> Task {
    let mut task = match &entry.log {
        EntryLog::Sealed(log) => log.task().unwrap_or_default(),
        EntryLog::Open(log) => {
            let ids = TaskIds { id: key.id(), context: &entry.row.context };
            let mut task = Task::default();
            let mut apply = |event: Event| event.payload().into_iter().for_each(|it| task::apply(&mut task, it));
            if query.include_artifacts {
                log.events(0, ids).for_each(&mut apply);
            } else {
                log.without_artifacts(ids).for_each(&mut apply);
            }
            task
        }
    };
    key.id().clone_into(&mut task.id);
    query.history_limit().truncate(&mut task.history);
    if !query.include_artifacts {
        task.artifacts = Vec::new();
    }
    task
}

#[async_trait]
impl TaskStore for Memory {
    fn first_fence(&self) -> Fence {
        1
    }

    fn check_capacity(&self, scope: &Scope) -> Result<(), Full> {
        self.evictions.lock().quota.check(&scope.owner)
    }

    fn as_sync(&self) -> Option<&dyn SyncStore> {
        Some(self)
    }

    async fn commit(&self, batch: Arc<[Commit]>) -> Result<Vec<Result<Committed, Refused>>, Unavailable> {
        Ok(batch.iter().map(|commit| self.commit_sync(commit).map(|()| Committed::default())).collect())
    }

    async fn load(&self, key: &TaskKey) -> Result<Option<StoredTask>, Unavailable> {
        Ok(self.stored(key))
    }

    async fn events(
        &self,
        key: &TaskKey,
        after: Seq,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<Event>, Unavailable> {
        Ok(self.with(key, |entry| logged_events(entry, key, after, limit, max_bytes)).unwrap_or_default())
    }

    async fn find_send(&self, scope: &Arc<Scope>, key: &str) -> Result<Option<SendOutcome>, Unavailable> {
        Ok(self.earlier_send(scope, key))
    }

    async fn list(&self, query: &ListQuery) -> Result<ListPage, Unavailable> {
        let (total, keys) = {
            let index = self.index.lock();
            let Some(index) = index.get(&query.scope) else { return Ok(ListPage::default()) };
            let total = if query.context.is_none() && query.since.is_none() {
                index.count(query.state)
            } else {
                let all = ListQuery { after: None, ..query.clone() };
                index.find(&all).count()
            };
            let total = u64::try_from(total).unwrap_or(u64::MAX);
            // One key more than the limit shows whether there is a next page.
            let row = |(time, key): (Millis, &TaskKey)| (PageToken { time, id: key.id().into() }, key.clone());
            (total, index.find(query).take(query.limit + 1).map(row).collect())
        };
        let read = |key: TaskKey| self.with(&key, |entry| listed_task(entry, &key, query));
        let Ok((tasks, next)) = read_page(query, keys, |_, key| Ok::<_, Infallible>(read(key)));
        Ok(ListPage { tasks, total, next })
    }

    async fn log_summary(&self, key: &TaskKey) -> Result<LogSummary, Unavailable> {
        let summary = self.with(key, |entry| LogSummary {
            bytes: match &entry.log {
                EntryLog::Open(log) => log.len(),
                EntryLog::Sealed(_) => 0,
            },
            ended_turns: LogSummary::ended_turns(&entry.commits.turns(key.id())),
        });
        Ok(summary.unwrap_or_default())
    }

    async fn context_bytes(&self, scope: &Arc<Scope>, context: &str, max: usize) -> Result<usize, Unavailable> {
        let query = ListQuery { scope: Arc::clone(scope), context: Some(context.into()), ..ListQuery::default() };
        let keys: Vec<TaskKey> = {
            let index = self.index.lock();
            index.get(scope).map(|index| index.find(&query).map(|(_, key)| key.clone()).collect()).unwrap_or_default()
        };
        let mut sum: usize = 0;
        for key in &keys {
            let bytes = self.with(key, |entry| match &entry.log {
                EntryLog::Open(log) => log.len(),
                EntryLog::Sealed(log) => log.bytes().len(),
            });
            sum = sum.saturating_add(bytes.unwrap_or_default());
            if sum >= max {
                break;
            }
        }
        Ok(sum)
    }
}

#[async_trait]
impl Maintenance for Memory {
    async fn claim(&self, _: usize) -> Result<Vec<Claim>, Unavailable> {
        // Unfinished turns do not survive the process.
        Ok(Vec::new())
    }

    async fn idle_tasks(&self, before: Millis, skip: usize, limit: usize) -> Result<Vec<TaskKey>, Unavailable> {
        let mut interrupted: Vec<(Millis, TaskKey)> = {
            let index = self.index.lock();
            index.values().flat_map(|index| index.interrupted(before)).cloned().collect()
        };
        interrupted.sort_unstable();
        interrupted.retain(|(_, key)| self.with(key, |entry| !entry.row.open).unwrap_or(false));
        Ok(interrupted.into_iter().skip(skip).take(limit).map(|(_, key)| key).collect())
    }

    async fn sweep(&self, policy: &Retention, now: Millis, in_use: InUse<'_>) -> Result<SweepResult, Unavailable> {
        /// Number of tasks after which the sweep yields to other work.
        const BATCH: usize = 256;
        let Some(before) = Retention::cutoff(policy.finished, now) else { return Ok(SweepResult::default()) };
        let mut expired: Vec<TaskKey> = {
            let index = self.index.lock();
            index.values().flat_map(|index| index.terminal(before)).cloned().collect()
        };
        expired.sort_unstable();
        let kept_since = Retention::cutoff(policy.undelivered, now);
        let is_kept = |entry: &TaskEntry| Self::is_kept_for_delivery(entry, kept_since);
        let mut deleted = 0;
        for batch in expired.chunks(BATCH) {
            deleted += batch.iter().filter(|key| !in_use(key) && self.delete_terminal(key, is_kept).is_some()).count();
            tokio::task::yield_now().await;
        }
        Ok(SweepResult { tasks: u64::try_from(deleted).unwrap_or(u64::MAX), ..SweepResult::default() })
    }

    async fn check(&self) -> Result<(), Unavailable> {
        Ok(())
    }

    async fn usage(&self) -> Result<StoreUsage, Unavailable> {
        let max_tasks = u64::try_from(self.max_tasks).ok();
        Ok(StoreUsage { tasks: self.counts().await?.tasks, max_tasks, ..StoreUsage::default() })
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }
}

debug_fields!(Memory { max_tasks });
