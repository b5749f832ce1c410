//! Tasks in memory, as bytes. There are only so many: the one that ended first makes room for the next, and what has not
//! ended is never dropped.

use std::{array, collections::HashMap, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;

use self::{
    index::Index,
    push::Pushes,
    quota::{EndedSeq, Quota},
};
use super::{
    Change, Claim, Commit, Full, Immediate, InUse, Key, KeyMap, ListPage, ListQuery, Log, PageToken, PushConfig,
    PushPage, PutResult, Refused, Retention, Row, RunnerId, Scope, SendOutcome, Store, StoredTask, SweepResult,
    Unavailable,
    log_codec::{OpenLog, SealedLog, TaskIds},
    page::PageTasks,
};
use crate::{
    clock::Millis,
    event::{Event, Fence, Position, Seq},
    history,
    pb::v1::Task,
    task,
};

mod commit;
mod index;
mod push;
mod quota;
#[cfg(test)]
mod tests;

/// So many that the one that grows, while all who want it wait, is small: at a million tasks each has four thousand.
const SHARDS: usize = 256;

/// How many tasks are kept where nobody says.
pub const DEFAULT_MAX_TASKS: usize = 2000;

/// A store that forgets everything when its process ends.
pub struct Memory {
    /// Boxed, because a map that grows moves what it has.
    shards: [Mutex<KeyMap<Box<TaskEntry>>>; SHARDS],
    /// Its lock is taken under that of a shard, never the other way round.
    index: Mutex<HashMap<Arc<Scope>, Index>>,
    /// Its lock is taken last.
    room: Mutex<Quota>,
    max_tasks: usize,
    max_tasks_per_owner: Option<usize>,
}

struct TaskEntry {
    at: Position,
    row: Row,
    saved: Option<Bytes>,
    asked: Option<Bytes>,
    /// The keys of its sends. Most tasks have none.
    sends: Box<[Box<str>]>,
    /// Most tasks have none.
    push: Option<Box<Pushes>>,
    /// Its number among the tasks that have ended, if it has.
    ended: Option<EndedSeq>,
    log: Kind,
}

/// What is kept of a log.
enum Kind {
    Open(OpenLog),
    SealedLog(SealedLog),
}

impl Memory {
    /// A store of this many tasks at most. When there are as many, the one that ended first makes room for the next;
    /// where none has ended, the next is refused.
    pub fn with_max_tasks(max_tasks: usize) -> Self {
        Self {
            shards: array::from_fn(|_| Mutex::default()),
            index: Mutex::default(),
            room: Mutex::default(),
            max_tasks,
            max_tasks_per_owner: None,
        }
    }

    /// With so many tasks of an owner at most, in all tenants together. When there are as many, theirs that ended first
    /// makes room for the next.
    #[must_use]
    pub fn with_max_tasks_per_owner(self, most: usize) -> Self {
        Self { max_tasks_per_owner: Some(most), ..self }
    }

    /// How many tasks it has, and how many bytes of those that have ended.
    pub fn size(&self) -> (usize, usize) {
        let sizes: [(usize, usize); SHARDS] = array::from_fn(|it| {
            let shard = self.shards[it].lock();
            let bytes = |it: &TaskEntry| if let Kind::SealedLog(it) = &it.log { it.bytes().len() } else { 0 };
            (shard.len(), shard.values().map(|it| bytes(it)).sum())
        });
        sizes.iter().fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1))
    }

    fn with<T>(&self, key: &Key, read: impl FnOnce(&TaskEntry) -> T) -> Option<T> {
        self.shards[key.shard(SHARDS)].lock().get(key).map(|it| read(it))
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::with_max_tasks(DEFAULT_MAX_TASKS)
    }
}

/// What a list shows of a task.
fn listed(kept: &TaskEntry, key: &Key, query: &ListQuery) -> Task {
    match &kept.log {
        Kind::SealedLog(it) => {
            let mut task = it.task().unwrap_or_default();
            history::shorten(&mut task.history, query.history_limit());
            if !query.include_artifacts {
                task.artifacts = Vec::new();
            }
            task
        }
        Kind::Open(log) => {
            let (mut task, names) = (Task::default(), TaskIds { id: key.id(), context: &kept.row.context });
            let mut fold = |it: Event| {
                if let Some(it) = it.payload() {
                    task::apply(&mut task, it);
                }
            };
            if query.include_artifacts {
                log.events(0, names).for_each(&mut fold);
            } else {
                log.without_artifacts(names).for_each(&mut fold);
            }
            history::shorten(&mut task.history, query.history_limit());
            key.id().clone_into(&mut task.id);
            task
        }
    }
}

#[async_trait]
impl Store for Memory {
    fn fence(&self) -> Fence {
        1
    }

    fn check_capacity(&self, scope: &Scope) -> Result<(), Full> {
        self.has_room(scope)
    }

    fn immediate(&self) -> Option<&dyn Immediate> {
        Some(self)
    }

    async fn commit(&self, batch: Arc<[Commit]>) -> Result<Vec<Result<(), Refused>>, Unavailable> {
        Ok(batch.iter().map(|it| self.commit_now(it)).collect())
    }

    async fn commit_changes(&self, batch: Arc<[Change]>) -> Result<Vec<Result<(), Refused>>, Unavailable> {
        let write = |it: &Change| match it {
            Change::Commit(it) => self.commit_now(it),
            Change::CompletedTask(it) => self.commit_completed(it),
        };
        Ok(batch.iter().map(write).collect())
    }

    async fn load(&self, key: &Key) -> Result<Option<StoredTask>, Unavailable> {
        Ok(self.with(key, |TaskEntry { at, row, saved, asked, log, .. }| StoredTask {
            position: *at,
            row: row.clone(),
            agent_state: saved.clone(),
            turn_contexts: asked.clone(),
            checkpoint: match log {
                Kind::Open(_) => None,
                Kind::SealedLog(it) => it.snapshot().map(|it| (at.seq, it)),
            },
        }))
    }

    async fn events(&self, key: &Key, after: Seq, limit: usize) -> Result<Log, Unavailable> {
        let after = usize::try_from(after).unwrap_or(usize::MAX);
        let events = self.with(key, |it| {
            let names = TaskIds { id: key.id(), context: &it.row.context };
            match &it.log {
                Kind::Open(log) => log.events(after, names).take(limit).collect(),
                Kind::SealedLog(settled) => settled.events(after, names).take(limit).collect(),
            }
        });
        Ok(Log { events: events.unwrap_or_default() })
    }

    async fn find_send(&self, scope: &Arc<Scope>, key: &str) -> Result<Option<SendOutcome>, Unavailable> {
        Ok(self.index.lock().get(scope).and_then(|it| it.sends.get(key)).cloned())
    }

    async fn list(&self, query: &ListQuery) -> Result<ListPage, Unavailable> {
        let (total, keys) = {
            let index = self.index.lock();
            let Some(index) = index.get(&query.scope) else { return Ok(ListPage::default()) };
            let total = if query.context.is_none() && query.since.is_none() {
                index.total(query.state)
            } else {
                let all = ListQuery { after: None, ..query.clone() };
                index.find(&all).count()
            };
            let total = u64::try_from(total).unwrap_or(u64::MAX);
            // One more than fits on the page tells whether there is a next one.
            let keys = index.find(query).take(query.limit + 1).map(|(time, key)| (time, key.clone()));
            (total, keys.collect::<Vec<_>>())
        };
        let (mut page, mut last) = (PageTasks::new(query), None);
        for (at, (time, key)) in keys.iter().enumerate() {
            let fits =
                at < query.limit && self.with(key, |kept| listed(kept, key, query)).is_none_or(|task| page.push(task));
            if !fits {
                let next = last.map(|(time, key): (Millis, &Key)| PageToken { time, id: key.id().into() });
                return Ok(ListPage { tasks: page.into_tasks(), total, next });
            }
            last = Some((*time, key));
        }
        Ok(ListPage { tasks: page.into_tasks(), total, next: None })
    }

    async fn put_push(&self, key: &Key, push: Arc<PushConfig>, most: usize) -> Result<PutResult, Unavailable> {
        Ok(self.put(key, push, most))
    }

    async fn get_push(&self, key: &Key, id: &str) -> Result<Option<Arc<PushConfig>>, Unavailable> {
        Ok(self.push_of(key, id))
    }

    async fn list_push(&self, key: &Key, after: u64, limit: usize) -> Result<Option<PushPage>, Unavailable> {
        Ok(self.pushes_of(key, after, limit))
    }

    async fn delete_push(&self, key: &Key, id: &str) -> Result<bool, Unavailable> {
        Ok(self.delete(key, id))
    }

    async fn claim(&self, _: RunnerId, _: usize, _: std::time::Duration) -> Result<Vec<Claim>, Unavailable> {
        // Whatever ran when the process ended, its tasks ended with it.
        Ok(Vec::new())
    }

    async fn idle_tasks(&self, before: Millis, skip: usize, limit: usize) -> Result<Vec<Key>, Unavailable> {
        let mut asked: Vec<(Millis, Key)> = {
            let index = self.index.lock();
            index.values().flat_map(|it| it.asked(before)).cloned().collect()
        };
        asked.sort_unstable();
        asked.retain(|it| self.with(&it.1, |kept| !kept.row.open).unwrap_or(false));
        Ok(asked.into_iter().skip(skip).take(limit).map(|it| it.1).collect())
    }

    async fn sweep(&self, policy: &Retention, now: Millis, in_use: InUse<'_>) -> Result<SweepResult, Unavailable> {
        /// So many, and then it is others' turn.
        const BATCH: usize = 256;
        let Some(before) = Retention::cutoff(policy.finished, now) else { return Ok(SweepResult::default()) };
        let old: Vec<Key> = {
            let index = self.index.lock();
            index.values().flat_map(|it| it.ended(before)).cloned().collect()
        };
        let mut gone = 0;
        for some in old.chunks(BATCH) {
            gone += some.iter().filter(|it| !in_use(it) && self.forget(it).is_some()).count();
            tokio::task::yield_now().await;
        }
        Ok(SweepResult { tasks: u64::try_from(gone).unwrap_or(u64::MAX), ..SweepResult::default() })
    }

    async fn check(&self) -> Result<(), Unavailable> {
        Ok(())
    }

    async fn log_bytes(&self, key: &Key) -> Result<usize, Unavailable> {
        let bytes = self.with(key, |it| match &it.log {
            Kind::Open(log) => log.len(),
            Kind::SealedLog(_) => 0,
        });
        Ok(bytes.unwrap_or_default())
    }

    async fn context_bytes(&self, scope: &Arc<Scope>, context: &str, most: usize) -> Result<usize, Unavailable> {
        let query = ListQuery { scope: Arc::clone(scope), context: Some(context.into()), ..ListQuery::default() };
        let keys: Vec<Key> = {
            let index = self.index.lock();
            index.get(scope).map(|index| index.find(&query).map(|(_, key)| key.clone()).collect()).unwrap_or_default()
        };
        let mut sum: usize = 0;
        for key in &keys {
            let bytes = self.with(key, |kept| match &kept.log {
                Kind::Open(log) => log.len(),
                Kind::SealedLog(settled) => settled.bytes().len(),
            });
            sum = sum.saturating_add(bytes.unwrap_or_default());
            if sum >= most {
                break;
            }
        }
        Ok(sum)
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (tasks, bytes) = self.size();
        f.debug_struct("Memory").field("tasks", &tasks).field("bytes", &bytes).finish()
    }
}
