//! Lane: queue of tasks with changes to commit, and their batches.
//!
//! If not all changes fit in a batch, each owner has a queue of its small and one of its large changes, and batches take from
//! all queues in rotation. A batch is bounded in bytes, so that the next one, which has the changes of others, does not wait
//! for long. A huge change, such as the checkpoint of a large task, is committed alone, one at a time over all lanes, and
//! alternates with the batches of other changes.

use std::{collections::VecDeque, mem, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use super::LiveRef;

/// Maximum number of tasks in a batch.
const MAX_BATCH: usize = 512;

/// Maximum bytes of the large changes in a batch. One change may exceed it.
const MAX_BATCH_BYTES: usize = 4 << 20;

/// Maximum size of a small change, in bytes.
const MAX_SMALL: usize = 4 << 10;

/// Maximum size of a large change, in bytes. Larger ones are huge.
const MAX_LARGE: usize = 8 << 20;

/// Queue of tasks with changes to commit.
#[derive(Default)]
pub(super) struct Lane {
    queue: Mutex<Queue>,
    wake: Notify,
}

#[derive(Default)]
struct Queue {
    /// Tasks that were queued since the last batch.
    new: Vec<LiveRef>,
    /// Queued tasks by owner and size class.
    queues: foldhash::HashMap<QueueKey, VecDeque<LiveRef>>,
    /// Keys of the non-empty queues, next first.
    order: VecDeque<QueueKey>,
    /// The last batch was a huge change.
    was_huge: bool,
}

/// Owner of tasks, and whether their changes are small.
type QueueKey = (Arc<str>, bool);

impl Lane {
    /// Queues a task.
    pub(super) fn push(&self, task: LiveRef) {
        self.queue.lock().new.push(task);
        self.wake.notify_one();
    }

    /// Waits for queued tasks, and takes a batch of them. One whose change is huge is taken alone, with the permit of `huge`. The
    /// permit is `held` until the next batch is committed, so that no huge change of another lane precedes that.
    pub(super) async fn next_batch<'a>(
        &self,
        huge: &'a Semaphore,
        held: &mut Option<SemaphorePermit<'a>>,
    ) -> Vec<LiveRef> {
        let next = {
            let mut queue = self.queue.lock();
            if queue.was_huge { queue.take_batch(false) } else { None }
        };
        if let Some((batch, _)) = next {
            return batch;
        }
        *held = None;
        let mut permit = None;
        loop {
            permit = permit.or_else(|| huge.try_acquire().ok());
            let (batch, has_more) = {
                let mut queue = self.queue.lock();
                (queue.take_batch(permit.is_some()), !queue.order.is_empty())
            };
            match batch {
                Some((batch, is_huge)) => {
                    *held = permit.filter(|_| is_huge);
                    return batch;
                }
                None => permit = None,
            }
            tokio::select! {
                biased;
                () = self.wake.notified() => {}
                // The semaphore is never closed.
                next = huge.acquire(), if has_more => permit = next.ok(),
            }
        }
    }

    /// Returns the queued tasks.
    pub(super) fn tasks(&self) -> Vec<LiveRef> {
        let Queue { new, queues, order, .. } = &*self.queue.lock();
        order.iter().filter_map(|key| queues.get(key)).flatten().chain(new).cloned().collect()
    }

    /// Removes all tasks.
    pub(super) fn clear(&self) {
        let removed = mem::take(&mut *self.queue.lock());
        // Outside of the lock.
        drop(removed);
    }
}

impl Queue {
    /// Takes a batch, and returns whether it is a huge change. `None` if nothing waits, or only what may not be taken.
    fn take_batch(&mut self, may_take_huge: bool) -> Option<(Vec<LiveRef>, bool)> {
        if self.order.is_empty() && self.new.len() <= MAX_BATCH {
            let bytes: usize = self.new.iter().map(|task| task.lock().change_bytes()).sum();
            if bytes <= MAX_BATCH_BYTES {
                self.was_huge = false;
                return Some((mem::take(&mut self.new), false)).filter(|(batch, _)| !batch.is_empty());
            }
        }
        for task in mem::take(&mut self.new) {
            let is_small = task.lock().change_bytes() <= MAX_SMALL;
            let key = (Arc::clone(&task.key.scope().owner), is_small);
            let tasks = self.queues.entry(key.clone()).or_default();
            if tasks.is_empty() {
                self.order.push_back(key);
            }
            tasks.push_back(task);
        }
        let first = if may_take_huge && !self.was_huge { self.take_huge() } else { None };
        let mut batch = if first.is_none() { self.take_others() } else { Vec::new() };
        let huge = first.or_else(|| if may_take_huge && batch.is_empty() { self.take_huge() } else { None });
        self.was_huge = huge.is_some();
        batch.extend(huge);
        Some((batch, self.was_huge)).filter(|(batch, _)| !batch.is_empty())
    }

    /// Takes the next huge change.
    fn take_huge(&mut self) -> Option<LiveRef> {
        let at = self.order.iter().position(|key| self.next_bytes(key) > MAX_LARGE)?;
        let key = self.order.remove(at)?;
        self.take(key)
    }

    /// Takes changes that are not huge.
    fn take_others(&mut self) -> Vec<LiveRef> {
        let (mut batch, mut bytes, mut skipped) = (Vec::new(), 0, VecDeque::new());
        while batch.len() < MAX_BATCH
            && let Some(key) = self.order.pop_front()
        {
            // It may have grown since it was queued.
            let more = self.next_bytes(&key);
            if more > MAX_LARGE || more > MAX_SMALL && bytes > 0 && bytes + more > MAX_BATCH_BYTES {
                skipped.push_back(key);
            } else {
                bytes += if more > MAX_SMALL { more } else { 0 };
                batch.extend(self.take(key));
            }
        }
        // The next batch begins with them.
        skipped.append(&mut self.order);
        self.order = skipped;
        batch
    }

    /// Returns the size of the next change of a queue.
    fn next_bytes(&self, key: &QueueKey) -> usize {
        self.queues.get(key).and_then(VecDeque::front).map_or(0, |task| task.lock().change_bytes())
    }

    /// Takes the next task of a queue, whose key goes to the end of the order.
    fn take(&mut self, key: QueueKey) -> Option<LiveRef> {
        let tasks = self.queues.get_mut(&key)?;
        let task = tasks.pop_front();
        if tasks.is_empty() {
            self.queues.remove(&key);
        } else {
            self.order.push_back(key);
        }
        task
    }
}
