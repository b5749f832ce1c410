//! Tasks in memory, as bytes. There are only so many: the one that ended first makes room for the next, and what has not
//! ended is never dropped.

use std::{
    array,
    collections::{HashMap, HashSet, hash_map::Entry},
    sync::Arc,
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;

use self::{index::Index, push::Pushes, room::Room};
use super::{
    Commit, Concluded, Expect, Full, Immediate, InUse, Key, KeyMap, Keyed, ListPage, ListQuery, Log, Made, PushConfig,
    PushPage, Put, Refused, Retention, Row, RunnerId, Scope, Store, Stored, Swept, Token, Unavailable,
    settled::{Names, Running, Settled},
};
use crate::{
    event::{Event, Fence, Position, Seq},
    pb::v1::{Task, TaskState},
    seam::Millis,
    task,
};

mod index;
mod push;
mod room;
#[cfg(test)]
mod tests;

/// So many that the one that grows, while all who want it wait, is small: at a million tasks each has four thousand.
const SHARDS: usize = 256;

/// How many tasks are kept where nobody says.
pub const MAX_TASKS: usize = 2000;

/// A store that forgets everything when its process ends.
pub struct Memory {
    /// Boxed, because a map that grows moves what it has.
    shards: [Mutex<KeyMap<Box<Kept>>>; SHARDS],
    /// Its lock is taken under that of a shard, never the other way round.
    index: Mutex<HashMap<Arc<Scope>, Index>>,
    /// Its lock is taken last.
    room: Mutex<Room>,
    max_tasks: usize,
    max_tasks_per_owner: Option<usize>,
}

struct Kept {
    at: Position,
    row: Row,
    saved: Option<Bytes>,
    asked: Option<Bytes>,
    /// The keys of its sends. Most tasks have none.
    sends: Box<[Box<str>]>,
    /// Most tasks have none.
    push: Option<Box<Pushes>>,
    log: Kind,
}

/// What is kept of a log.
enum Kind {
    Open(Running),
    Settled(Settled),
}

impl Immediate for Memory {
    fn commit_now(&self, commit: &Commit) -> Result<(), Refused> {
        let is_new = commit.expect == Expect::New;
        // What was there before must not cost another task its place.
        if is_new && let Some(at) = self.with(&commit.key, |it| it.at) {
            return Err(Refused::Stale(Some(at)));
        }
        if !commit.sends.is_empty() {
            // One that was written before and whose answer was lost has its sends entered.
            if let Expect::At(then) = commit.expect
                && let at = self.with(&commit.key, |it| it.at)
                && at != Some(then)
            {
                return Err(Refused::Stale(at));
            }
            self.enter(commit)?;
        }
        let written = if is_new {
            self.make_room(&commit.key).and_then(|()| {
                let written = self.write(commit);
                if written.is_err() {
                    self.free(&commit.key);
                }
                written
            })
        } else {
            self.write(commit)
        };
        if written.is_err() && !commit.sends.is_empty() {
            self.leave(commit);
        }
        written
    }

    fn conclude(&self, whole: &Concluded) -> Result<(), Refused> {
        // What was there before must not cost another task its place.
        if let Some(at) = self.with(&whole.key, |it| it.at) {
            return Err(Refused::Stale(Some(at)));
        }
        self.make_room(&whole.key)?;
        let kept = self.keep(whole);
        if kept.is_err() {
            self.free(&whole.key);
        }
        kept
    }
}

impl Memory {
    /// Keeps a task that has ended and is not there.
    fn keep(&self, whole: &Concluded) -> Result<(), Refused> {
        let Concluded { key, fence, row, .. } = whole;
        let at = Position { fence: *fence, seq: row.seq };
        let log = Kind::Settled(Settled::of(whole));
        {
            let mut shard = self.shards[key.share(SHARDS)].lock();
            let Entry::Vacant(free) = shard.entry(key.clone()) else {
                return Err(Refused::Stale(shard.get(key).map(|it| it.at)));
            };
            let (kept, sends) = (row.clone(), Box::default());
            free.insert(Box::new(Kept { at, row: kept, saved: None, asked: None, sends, push: None, log }));
            self.index(key, row, None);
        }
        self.room.lock().ended.push_back(key.clone());
        Ok(())
    }

    /// Puts a task where lists find it. Under the lock of its shard, so that the index is never behind what a sweep sees
    /// of the row.
    fn index(&self, key: &Key, row: &Row, old: Option<(Millis, TaskState)>) {
        let mut index = self.index.lock();
        match index.get_mut(key.scope()) {
            Some(it) => it.place(key, row, old),
            None => index.entry(Arc::clone(key.scope())).or_default().place(key, row, old),
        }
    }

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

    fn write(&self, commit: &Commit) -> Result<(), Refused> {
        let Commit { key, expect, row, saved, asked, .. } = commit;
        let at = Position { fence: commit.fence, seq: row.seq };
        let mut shard = self.shards[key.share(SHARDS)].lock();
        let old = match (shard.entry(key.clone()), expect) {
            (Entry::Vacant(free), Expect::New) => {
                let log = Kind::Open(Running::default());
                let (saved, asked, sends) = (saved.clone(), asked.clone(), Box::default());
                let kept = Kept { at, row: row.clone(), saved, asked, sends, push: None, log };
                let kept = free.insert(Box::new(kept));
                note(kept, commit);
                register(kept, commit);
                write_log(kept, commit);
                None
            }
            (Entry::Occupied(it), Expect::At(then)) if it.get().at == *then => {
                let kept = it.into_mut();
                let old = (kept.row.time, kept.row.state);
                let head = row.head.clone().or_else(|| kept.row.head.take());
                (kept.at, kept.row) = (at, Row { head, ..row.clone() });
                if saved.is_some() {
                    kept.saved.clone_from(saved);
                }
                if asked.is_some() {
                    kept.asked.clone_from(asked);
                }
                note(kept, commit);
                register(kept, commit);
                write_log(kept, commit);
                Some(old)
            }
            (Entry::Occupied(it), _) => return Err(Refused::Stale(Some(it.get().at))),
            (Entry::Vacant(_), Expect::At(_)) => return Err(Refused::Stale(None)),
        };
        if old != Some((row.time, row.state)) {
            self.index(key, row, old);
        }
        if row.state.is_terminal() && row.was != Some(row.state) {
            self.room.lock().ended.push_back(key.clone());
        }
        Ok(())
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::with_max_tasks(MAX_TASKS)
    }
}

/// Notes the sends that came with what is committed, to forget them with the task.
fn note(kept: &mut Kept, commit: &Commit) {
    if !commit.sends.is_empty() {
        let new = commit.sends.iter().map(|it| it.key.clone());
        kept.sends = kept.sends.iter().cloned().chain(new).collect();
    }
}

/// A configuration that came with what is committed. Who sent it has counted those that there are.
fn register(kept: &mut Kept, commit: &Commit) {
    if let Some(it) = &commit.push {
        _ = kept.push.get_or_insert_default().put(Arc::clone(it), usize::MAX);
    }
}

/// What is said is written behind what was said; what has ended has its task before that.
fn write_log(kept: &mut Kept, commit: &Commit) {
    let Kind::Open(log) = &mut kept.log else { return };
    let (names, events) = (Names { id: commit.key.id(), context: &kept.row.context }, &commit.events);
    match (&commit.checkpoint, kept.row.state.is_terminal()) {
        (Some(task), true) => {
            kept.log = Kind::Settled(Settled::new(task, log, events, names));
            (kept.row.head, kept.saved, kept.asked) = (None, None, None);
        }
        _ => log.add(events, names),
    }
}

impl Memory {
    /// Enters the sends of a commit, unless one of them is there.
    fn enter(&self, commit: &Commit) -> Result<(), Refused> {
        let key = &commit.key;
        let mut all = self.index.lock();
        let there = all.get(key.scope()).and_then(|it| commit.sends.iter().find_map(|send| it.sends.get(&send.key)));
        if let Some(made) = there {
            return Err(Refused::Duplicate { task_id: made.task_id.clone() });
        }
        let index = all.entry(Arc::clone(key.scope())).or_default();
        for Keyed { key: send, hash, seq, .. } in &commit.sends {
            let made = Made { task_id: key.id().into(), seq: *seq, hash: Box::new(*hash) };
            index.sends.insert(send.clone(), made);
        }
        Ok(())
    }

    /// Takes sends back of which nothing came.
    fn leave(&self, commit: &Commit) {
        let mut all = self.index.lock();
        if let Some(index) = all.get_mut(commit.key.scope()) {
            for it in &commit.sends {
                index.sends.remove(&it.key);
            }
            if index.is_empty() {
                all.remove(commit.key.scope());
            }
        }
    }

    fn with<T>(&self, key: &Key, read: impl FnOnce(&Kept) -> T) -> Option<T> {
        self.shards[key.share(SHARDS)].lock().get(key).map(|it| read(it))
    }

    /// How many tasks it has, and how many bytes of those that have ended.
    pub fn size(&self) -> (usize, usize) {
        let sizes: [(usize, usize); SHARDS] = array::from_fn(|it| {
            let shard = self.shards[it].lock();
            let bytes = |it: &Kept| if let Kind::Settled(it) = &it.log { it.bytes().len() } else { 0 };
            (shard.len(), shard.values().map(|it| bytes(it)).sum())
        });
        sizes.iter().fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1))
    }
}

/// What a list shows of a task.
fn listed(kept: &Kept, key: &Key, query: &ListQuery) -> Task {
    match &kept.log {
        Kind::Settled(it) => {
            let mut task = it.task().unwrap_or_default();
            task::shorten(&mut task.history, query.history);
            if !query.artifacts {
                task.artifacts = Vec::new();
            }
            task
        }
        Kind::Open(log) => {
            let (mut task, names) = (Task::default(), Names { id: key.id(), context: &kept.row.context });
            let mut fold = |it: Event| {
                if let Some(it) = it.payload() {
                    task::apply(&mut task, it);
                }
            };
            if query.artifacts {
                log.events(0, names).for_each(&mut fold);
            } else {
                log.without_artifacts(names).for_each(&mut fold);
            }
            task::shorten(&mut task.history, query.history);
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

    fn room(&self, scope: &Scope) -> Result<(), Full> {
        self.has_room(scope)
    }

    fn immediate(&self) -> Option<&dyn Immediate> {
        Some(self)
    }

    async fn commit(&self, batch: Arc<[Commit]>) -> Result<Vec<Result<(), Refused>>, Unavailable> {
        Ok(batch.iter().map(|it| self.commit_now(it)).collect())
    }

    async fn load(&self, key: &Key) -> Result<Option<Stored>, Unavailable> {
        Ok(self.with(key, |Kept { at, row, saved, asked, log, .. }| Stored {
            at: *at,
            row: row.clone(),
            saved: saved.clone(),
            asked: asked.clone(),
            checkpoint: match log {
                Kind::Open(_) => None,
                Kind::Settled(it) => it.snapshot().map(|it| (at.seq, it)),
            },
        }))
    }

    async fn events(&self, key: &Key, after: Seq, limit: usize) -> Result<Log, Unavailable> {
        let after = usize::try_from(after).unwrap_or(usize::MAX);
        let events = self.with(key, |it| {
            let names = Names { id: key.id(), context: &it.row.context };
            match &it.log {
                Kind::Open(log) => log.events(after, names).take(limit).collect(),
                Kind::Settled(settled) => settled.events(after, names).take(limit).collect(),
            }
        });
        Ok(Log { events: events.unwrap_or_default() })
    }

    async fn sent(&self, scope: &Arc<Scope>, key: &str) -> Result<Option<Made>, Unavailable> {
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
        let next = if keys.len() > query.limit { keys[..query.limit].last() } else { None };
        let next = next.map(|(time, key)| Token { time: *time, id: key.id().into() });
        let page = keys.iter().take(query.limit);
        let tasks = page.filter_map(|(_, key)| self.with(key, |it| listed(it, key, query))).collect();
        Ok(ListPage { tasks, total, next })
    }

    async fn put_push(&self, key: &Key, push: Arc<PushConfig>, most: usize) -> Result<Put, Unavailable> {
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

    async fn claim(&self, _: RunnerId, _: usize, _: std::time::Duration) -> Result<Vec<(Key, Stored)>, Unavailable> {
        // Whatever ran when the process ended, its tasks ended with it.
        Ok(Vec::new())
    }

    async fn idle(&self, before: Millis, limit: usize) -> Result<Vec<Key>, Unavailable> {
        let mut asked: Vec<(Millis, Key)> = {
            let index = self.index.lock();
            index.values().flat_map(|it| it.asked(before)).cloned().collect()
        };
        asked.sort_unstable();
        asked.retain(|it| self.with(&it.1, |kept| !kept.row.open).unwrap_or(false));
        asked.truncate(limit);
        Ok(asked.into_iter().map(|it| it.1).collect())
    }

    async fn sweep(&self, policy: &Retention, now: Millis, in_use: InUse<'_>) -> Result<Swept, Unavailable> {
        /// So many, and then it is others' turn.
        const BATCH: usize = 256;
        let Some(before) = Retention::before(policy.finished, now) else { return Ok(Swept::default()) };
        let old: Vec<Key> = {
            let index = self.index.lock();
            index.values().flat_map(|it| it.ended(before)).cloned().collect()
        };
        let mut gone = HashSet::new();
        for some in old.chunks(BATCH) {
            gone.extend(some.iter().filter(|it| !in_use(it) && self.forget(it).is_some()));
            tokio::task::yield_now().await;
        }
        if !gone.is_empty() {
            self.room.lock().ended.retain(|it| !gone.contains(it));
        }
        Ok(Swept { tasks: u64::try_from(gone.len()).unwrap_or(u64::MAX), ..Swept::default() })
    }

    async fn check(&self) -> Result<(), Unavailable> {
        Ok(())
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (tasks, bytes) = self.size();
        f.debug_struct("Memory").field("tasks", &tasks).field("bytes", &bytes).finish()
    }
}
