//! Sizes of contexts, for `limits.context_bytes`: of those that have live tasks, and of those that had some last.
//!
//! A context that has neither is read from the store when a message arrives for it. A new task does not wait for that.

use std::{collections::HashMap, mem, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Parts;
use crate::{
    journal::{LiveRef, live::Inner},
    pb::v1::Message,
    store::{Scope, Store},
    task::ContextBytes,
};

/// Number of contexts without live tasks whose sizes are kept. Up to twice as many for a while.
const KEPT: usize = 1024;

/// Maximum number of reads that new tasks start. A message that finds all in use leaves the read to the next message.
const READS: usize = 64;

/// Bytes that a task begins with besides its message: ids, a state and a time, at most.
const FRAME: usize = 1024;

/// Sizes of contexts.
pub(super) struct Contexts {
    /// Maximum size of a context.
    most: usize,
    known: Mutex<Known>,
    reads: Arc<Semaphore>,
}

/// A context of an owner in a tenant.
type Key = (Arc<Scope>, Arc<str>);

/// Contexts in the order of their last use, roughly: when `recent` is full, it becomes `older`, and what is not live of that
/// is dropped.
#[derive(Default)]
struct Known {
    recent: HashMap<Key, Arc<ContextBytes>>,
    older: HashMap<Key, Arc<ContextBytes>>,
    /// Number of contexts in `recent` that are live since the last rotation.
    live: usize,
}

impl Known {
    fn find(&mut self, key: &Key) -> Option<Arc<ContextBytes>> {
        if let Some(size) = self.recent.get(key) {
            return Some(Arc::clone(size));
        }
        let (key, size) = self.older.remove_entry(key)?;
        self.insert(key, Arc::clone(&size));
        Some(size)
    }

    fn insert(&mut self, key: Key, size: Arc<ContextBytes>) {
        if self.recent.len() >= self.live.saturating_add(KEPT) {
            let dropped = mem::replace(&mut self.older, mem::take(&mut self.recent));
            self.recent.extend(dropped.into_iter().filter(|(_, size)| Arc::strong_count(size) > 1));
            self.live = self.recent.len();
        }
        self.recent.insert(key, size);
    }
}

impl Contexts {
    pub(super) fn new(most: usize) -> Self {
        Self { most, known: Mutex::default(), reads: Arc::new(Semaphore::new(READS)) }
    }

    /// Maximum size of a context. `None` if it is unlimited.
    fn limit(&self) -> Option<usize> {
        Some(self.most).filter(|most| *most < usize::MAX)
    }

    /// Size of a context, which is read from the store unless it is known.
    fn find(&self, key: Key) -> Arc<ContextBytes> {
        let mut known = self.known.lock();
        known.find(&key).unwrap_or_else(|| {
            let size = Arc::new(ContextBytes::unread());
            known.insert(key, Arc::clone(&size));
            size
        })
    }

    /// Counts a task that is the first one of its context, since the server chose the name of that, and whose agent takes
    /// its time. Most tasks have ended before, and cost nothing here.
    pub(super) fn begin(&self, held: &LiveRef, inner: &mut Inner) {
        if self.limit().is_none() || inner.ahead.context().is_some() {
            return;
        }
        let key = (Arc::clone(held.key.scope()), Arc::clone(&held.context));
        let mut known = self.known.lock();
        let size = known.find(&key).unwrap_or_else(|| {
            let size = Arc::new(ContextBytes::default());
            size.add(inner.ahead.bytes());
            known.insert(key, Arc::clone(&size));
            size
        });
        inner.ahead.enter_context(size);
    }

    /// Contexts whose size is to be read again, because tasks were deleted.
    fn due(&self) -> Vec<(Key, Arc<ContextBytes>)> {
        let known = self.known.lock();
        let all = known.recent.iter().chain(&known.older);
        all.filter(|(_, size)| size.is_due(self.most)).map(|(key, size)| (key.clone(), Arc::clone(size))).collect()
    }
}

/// Context of a message that begins a task.
pub(super) struct Chosen {
    key: Key,
    size: Arc<ContextBytes>,
}

impl Chosen {
    pub(super) fn into_size(self) -> Arc<ContextBytes> {
        self.size
    }
}

impl<A> Parts<A> {
    /// The context that the sender of a new task has chosen. `None` if the server chooses it: that has no other task.
    pub(super) fn chosen_context(&self, scope: &Arc<Scope>, message: &Message) -> Option<Chosen> {
        self.contexts.limit()?;
        if message.context_id.is_empty() || !message.task_id.is_empty() {
            return None;
        }
        let key: Key = (Arc::clone(scope), message.context_id.as_str().into());
        let size = self.contexts.find(key.clone());
        Some(Chosen { key, size })
    }

    /// Returns true if a new task with this message fits into its context, as far as is known. If it does not, the size has
    /// to be read again before the message is refused: tasks may have been deleted.
    pub(super) fn has_room(&self, chosen: &Chosen, message: &Message) -> bool {
        let bytes = prost::Message::encoded_len(message).saturating_add(FRAME);
        chosen.size.get().saturating_add(bytes) <= self.contexts.most
    }

    /// Starts to read the size of a context from the store, if that is due. The send does not wait for it.
    pub(super) fn read_later(&self, chosen: &Chosen) {
        if !chosen.size.is_due(self.contexts.most) {
            return;
        }
        let Ok(permit) = Arc::clone(&self.contexts.reads).try_acquire_owned() else { return };
        let (store, most) = (Arc::clone(self.journal.store()), self.contexts.most);
        let (key, size) = (chosen.key.clone(), Arc::clone(&chosen.size));
        drop(self.running.spawn(async move {
            let _permit: OwnedSemaphorePermit = permit;
            read(&*store, &key, &size, most).await;
        }));
    }

    /// Reads the size of a context from the store.
    pub(super) async fn read_now(&self, chosen: &Chosen) {
        read(&**self.journal.store(), &chosen.key, &chosen.size, self.contexts.most).await;
    }

    /// Counts a task in its context from now on. Reads the size of the context if it is not known, or if this many bytes more
    /// would exceed the limit.
    pub(super) async fn enter_context(&self, held: &LiveRef, bytes: usize) {
        if self.contexts.limit().is_none() {
            return;
        }
        let key: Key = (Arc::clone(held.key.scope()), Arc::clone(&held.context));
        let entered = held.lock().ahead.context().cloned();
        let size = entered.unwrap_or_else(|| self.contexts.find(key.clone()));
        let most = self.contexts.most;
        if size.is_due(most) || size.get().saturating_add(bytes) > most {
            read(&**self.journal.store(), &key, &size, most).await;
        }
        held.lock().ahead.enter_context(size);
    }

    /// Reads the sizes of contexts again that tasks may have been deleted from, as far as that matters for the limit.
    pub(super) async fn read_contexts(&self) {
        for (key, size) in self.contexts.due() {
            read(&**self.journal.store(), &key, &size, self.contexts.most).await;
        }
    }
}

/// Reads the size of a context, unless that was done just now. If the store is unavailable, the next message has it read.
async fn read(store: &dyn Store, (scope, context): &Key, size: &ContextBytes, most: usize) {
    if let Err(cause) = size.refresh(store.context_bytes(scope, context, most)).await {
        tracing::debug!(error.cause = %cause, "the size of a context can't be read");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: usize) -> Key {
        (Arc::default(), format!("c-{n}").into())
    }

    #[test]
    fn sizes_of_contexts_are_kept_while_live_and_some_of_the_others() {
        let contexts = Contexts::new(1000);
        let live: Vec<_> = (0..10).map(|n| contexts.find(key(n))).collect();
        for size in &live {
            size.add(1);
        }
        contexts.find(key(10)).add(1);
        for n in 11..10 * KEPT {
            // Used again and again.
            assert_eq!(contexts.find(key(10)).get(), 1);
            drop(contexts.find(key(n)));
        }
        let count = {
            let known = contexts.known.lock();
            known.recent.len() + known.older.len()
        };
        assert!((KEPT..=2 * KEPT + 20).contains(&count), "{count}");
        for (n, size) in live.iter().enumerate() {
            assert!(Arc::ptr_eq(size, &contexts.find(key(n))), "{n}");
        }
        assert_eq!(contexts.find(key(11)).get(), 0, "this one is read again");
        drop(live);
        for n in 0..3 * KEPT {
            drop(contexts.find(key(20 * KEPT + n)));
        }
        assert_eq!(contexts.find(key(0)).get(), 0);
    }
}
