//! Lane: queue of tasks with changes to commit, and their batches.
//!
//! If not all changes fit in a batch, owners take turns, and so do the small and the large changes of an owner. A batch is
//! bounded in bytes, so that the next one, which has the changes of others, does not wait for long.

use std::{collections::VecDeque, mem, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::LiveRef;

/// Maximum number of tasks in a batch.
const MAX_BATCH: usize = 512;

/// Maximum bytes of the large changes in a batch. One change may exceed it.
const MAX_BATCH_BYTES: usize = 4 << 20;

/// Maximum size of a small change in bytes.
const SMALL: usize = 4 << 10;

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
    /// Earlier ones, by turns.
    waiting: foldhash::HashMap<Turn, VecDeque<LiveRef>>,
    /// Those that have waiting tasks, the next one first.
    turns: VecDeque<Turn>,
}

/// Owner of tasks, and whether their changes are small.
type Turn = (Arc<str>, bool);

impl Lane {
    /// Queues a task.
    pub(super) fn push(&self, task: LiveRef) {
        self.queue.lock().new.push(task);
        self.wake.notify_one();
    }

    /// Waits for queued tasks, and takes a batch of them.
    pub(super) async fn next_batch(&self) -> Vec<LiveRef> {
        loop {
            let batch = self.queue.lock().take_batch();
            if !batch.is_empty() {
                return batch;
            }
            self.wake.notified().await;
        }
    }

    /// Returns the queued tasks.
    pub(super) fn tasks(&self) -> Vec<LiveRef> {
        let Queue { new, waiting, turns } = &*self.queue.lock();
        turns.iter().filter_map(|turn| waiting.get(turn)).flatten().chain(new).cloned().collect()
    }

    /// Removes all tasks.
    pub(super) fn clear(&self) {
        let removed = mem::take(&mut *self.queue.lock());
        // Outside of the lock.
        drop(removed);
    }
}

impl Queue {
    fn take_batch(&mut self) -> Vec<LiveRef> {
        if self.turns.is_empty() && self.new.len() <= MAX_BATCH {
            let bytes: usize = self.new.iter().map(|task| task.lock().change_bytes()).sum();
            if bytes <= MAX_BATCH_BYTES {
                return mem::take(&mut self.new);
            }
        }
        for task in mem::take(&mut self.new) {
            let is_small = task.lock().change_bytes() <= SMALL;
            let turn = (Arc::clone(&task.key.scope().owner), is_small);
            let tasks = self.waiting.entry(turn.clone()).or_default();
            if tasks.is_empty() {
                self.turns.push_back(turn);
            }
            tasks.push_back(task);
        }
        let (mut batch, mut bytes, mut skipped) = (Vec::new(), 0, VecDeque::new());
        while batch.len() < MAX_BATCH
            && let Some(turn) = self.turns.pop_front()
        {
            let Some(tasks) = self.waiting.get_mut(&turn) else { continue };
            // It may have grown since it was queued.
            let more = tasks.front().map_or(0, |task| task.lock().change_bytes());
            if more > SMALL && bytes > 0 && bytes + more > MAX_BATCH_BYTES {
                skipped.push_back(turn);
                continue;
            }
            bytes += if more > SMALL { more } else { 0 };
            batch.extend(tasks.pop_front());
            if tasks.is_empty() {
                self.waiting.remove(&turn);
            } else {
                self.turns.push_back(turn);
            }
        }
        // The next batch begins with them.
        skipped.append(&mut self.turns);
        self.turns = skipped;
        batch
    }
}
