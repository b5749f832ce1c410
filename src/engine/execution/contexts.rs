//! Sizes of contexts, for `limits.context_bytes`: an LRU cache of contexts, which never evicts those with live tasks.
//!
//! The size of an uncached context is read from the store when a message arrives for it. A new task does not wait for
//! that.

use std::{collections::HashMap, mem, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Shared;
use crate::{
    engine::journal::LiveRef,
    protocol::{pb::v1::Message, task::ContextBytes},
    store::{Scope, TaskStore},
};

/// Number of contexts without live tasks whose sizes are cached; temporarily up to twice as many.
const CACHED: usize = 1024;

/// Maximum number of concurrent reads started by new tasks. Beyond it, the read is left to the next message.
const READS: usize = 64;

/// Maximum bytes of a new task besides its message: ids, state and time.
const OVERHEAD: usize = 1024;

/// Cache of the sizes of contexts.
pub(super) struct Contexts {
    /// Maximum size of a context in bytes.
    max: usize,
    cache: Mutex<Cache>,
    reads: Arc<Semaphore>,
}

/// Owner and tenant of a context, and its id.
type ContextKey = (Arc<Scope>, Arc<str>);

/// Contexts in approximate order of their last use: a full `recent` becomes `older`, whose contexts without live tasks are
/// dropped.
#[derive(Default)]
struct Cache {
    recent: HashMap<ContextKey, Arc<ContextBytes>>,
    older: HashMap<ContextKey, Arc<ContextBytes>>,
    /// Number of contexts in `recent` that were live at the last rotation.
    live: usize,
}

impl Cache {
    fn find(&mut self, key: &ContextKey) -> Option<Arc<ContextBytes>> {
        if let Some(size) = self.recent.get(key) {
            return Some(Arc::clone(size));
        }
        let (key, size) = self.older.remove_entry(key)?;
        self.insert(key, Arc::clone(&size));
        Some(size)
    }

    fn insert(&mut self, key: ContextKey, size: Arc<ContextBytes>) {
        if self.recent.len() >= self.live.saturating_add(CACHED) {
            let dropped = mem::replace(&mut self.older, mem::take(&mut self.recent));
            self.recent.extend(dropped.into_iter().filter(|(_, size)| Arc::strong_count(size) > 1));
            self.live = self.recent.len();
        }
        self.recent.insert(key, size);
    }
}

impl Contexts {
    pub(super) fn new(max: usize) -> Self {
        Self { max, cache: Mutex::default(), reads: Arc::new(Semaphore::new(READS)) }
    }

    /// Returns the maximum size of a context, or `None` if it is unlimited.
    fn limit(&self) -> Option<usize> {
        Some(self.max).filter(|max| *max < usize::MAX)
    }

    /// Returns the size of a context; marked as unread if it is not cached.
    fn find(&self, key: ContextKey) -> Arc<ContextBytes> {
        self.find_or_insert(key, ContextBytes::unread).0
    }

    /// Returns the size of a context. Creates it if it is not known, and returns whether it did.
    fn find_or_insert(&self, key: ContextKey, new: fn() -> ContextBytes) -> (Arc<ContextBytes>, bool) {
        let mut cache = self.cache.lock();
        if let Some(size) = cache.find(&key) {
            return (size, false);
        }
        let size = Arc::new(new());
        cache.insert(key, Arc::clone(&size));
        (size, true)
    }

    /// Registers the context of a task whose context id the server chose, so that the task is its only one. Called at the
    /// first pause of the agent: most tasks have ended before, and cost nothing here.
    pub(super) fn register(&self, live: &LiveRef) {
        if self.limit().is_none() || live.context_size().is_some() {
            return;
        }
        let key = (Arc::clone(live.key.scope()), Arc::clone(&live.context));
        let (size, is_first) = self.find_or_insert(key, ContextBytes::default);
        live.enter_context(size, is_first);
    }

    /// Returns the contexts whose size must be read again, because tasks were deleted, ordered by key.
    fn stale(&self) -> Vec<(ContextKey, Arc<ContextBytes>)> {
        let cache = self.cache.lock();
        let all = cache.recent.iter().chain(&cache.older);
        let due = all.filter(|(_, size)| size.is_due(self.max)).map(|(key, size)| (key.clone(), Arc::clone(size)));
        let mut due: Vec<_> = due.collect();
        due.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        due
    }
}

/// Existing or new context that the client chose for a new task.
pub(super) struct ChosenContext {
    key: ContextKey,
    pub(super) size: Arc<ContextBytes>,
}

impl Shared {
    /// Returns the context that the client chose for a new task. `None` if the server chooses it: that has no other task.
    pub(super) fn chosen_context(&self, scope: &Arc<Scope>, message: &Message) -> Option<ChosenContext> {
        self.contexts.limit()?;
        if message.context_id.is_empty() || !message.task_id.is_empty() {
            return None;
        }
        let key: ContextKey = (Arc::clone(scope), message.context_id.as_str().into());
        let size = self.contexts.find(key.clone());
        Some(ChosenContext { key, size })
    }

    /// Returns whether a new task with this message fits into its context, by the cached size. Otherwise the size must be
    /// read again before the message is rejected, because tasks may have been deleted.
    pub(super) fn fits_context(&self, chosen: &ChosenContext, message: &Message) -> bool {
        let bytes = prost::Message::encoded_len(message).saturating_add(OVERHEAD);
        chosen.size.get().saturating_add(bytes) <= self.contexts.max
    }

    /// Starts a read of the size of a context from the store, if that is due. The send does not wait for it.
    pub(super) fn start_size_read(&self, chosen: &ChosenContext) {
        if !chosen.size.is_due(self.contexts.max) {
            return;
        }
        let Ok(permit) = Arc::clone(&self.contexts.reads).try_acquire_owned() else { return };
        let (store, max) = (Arc::clone(self.journal.store()), self.contexts.max);
        let (key, size) = (chosen.key.clone(), Arc::clone(&chosen.size));
        drop(self.running.spawn(async move {
            let _permit: OwnedSemaphorePermit = permit;
            read_size(&*store, &key, &size, max).await;
        }));
    }

    /// Reads the size of a context from the store.
    pub(super) async fn read_context_size(&self, chosen: &ChosenContext) {
        read_size(&**self.journal.store(), &chosen.key, &chosen.size, self.contexts.max).await;
    }

    /// Counts a task in its context from now on. Reads the size of the context if it is not cached, or if it exceeds the
    /// limit with `bytes` more.
    pub(super) async fn enter_context(&self, live: &LiveRef, bytes: usize) {
        if self.contexts.limit().is_none() {
            return;
        }
        let key: ContextKey = (Arc::clone(live.key.scope()), Arc::clone(&live.context));
        let size = live.context_size().unwrap_or_else(|| self.contexts.find(key.clone()));
        let max = self.contexts.max;
        if size.is_due(max) || size.get().saturating_add(bytes) > max {
            read_size(&**self.journal.store(), &key, &size, max).await;
        }
        live.enter_context(size, false);
    }

    /// Reads the sizes of contexts again whose tasks may have been deleted, as far as that matters for the limit.
    pub(super) async fn refresh_contexts(&self) {
        for (key, size) in self.contexts.stale() {
            read_size(&**self.journal.store(), &key, &size, self.contexts.max).await;
        }
    }
}

/// Reads the size of a context, unless it was read just now. If the store is unavailable, the next message retries.
async fn read_size(store: &dyn TaskStore, (scope, context): &ContextKey, size: &ContextBytes, max: usize) {
    if let Err(cause) = size.refresh(store.context_bytes(scope, context, max)).await {
        tracing::debug!(error.cause = %cause, "size of a context can't be read");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: usize) -> ContextKey {
        (Arc::default(), format!("c-{n}").into())
    }

    #[test]
    fn live_contexts_and_recently_used_ones_stay_cached() {
        let contexts = Contexts::new(1000);
        let live: Vec<_> = (0..10).map(|n| contexts.find(key(n))).collect();
        for size in &live {
            size.add(1);
        }
        contexts.find(key(10)).add(1);
        for n in 11..10 * CACHED {
            assert_eq!(contexts.find(key(10)).get(), 1);
            drop(contexts.find(key(n)));
        }
        let count = {
            let cache = contexts.cache.lock();
            cache.recent.len() + cache.older.len()
        };
        assert!((CACHED..=2 * CACHED + 20).contains(&count), "{count}");
        for (n, size) in live.iter().enumerate() {
            assert!(Arc::ptr_eq(size, &contexts.find(key(n))), "{n}");
        }
        assert_eq!(contexts.find(key(11)).get(), 0, "evicted");
        drop(live);
        for n in 0..3 * CACHED {
            drop(contexts.find(key(20 * CACHED + n)));
        }
        assert_eq!(contexts.find(key(0)).get(), 0);
    }
}
