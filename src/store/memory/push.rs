//! The push configurations of a task in memory: they live in its row, and so they go when it goes.

use std::sync::Arc;

use super::{Memory, SHARDS};
use crate::store::{Key, PushConfig, PushPage, PutResult};

/// A task's configurations, by a number that only rises, so that a page goes on where the last one ended.
#[derive(Default)]
pub(super) struct Pushes {
    last: u64,
    all: Vec<(u64, Arc<PushConfig>)>,
}

impl Pushes {
    /// Keeps one, unless there are `most` already and none of its id.
    pub(super) fn put(&mut self, push: Arc<PushConfig>, most: usize) -> PutResult {
        if let Some(it) = self.all.iter_mut().find(|it| it.1.config.id == push.config.id) {
            it.1 = push;
            return PutResult::Replaced;
        }
        if self.all.len() >= most {
            return PutResult::Full;
        }
        self.last += 1;
        self.all.push((self.last, push));
        PutResult::Created
    }

    fn page(&self, after: u64, limit: usize) -> PushPage {
        let from = self.all.partition_point(|it| it.0 <= after);
        let rest = &self.all[from..];
        let page = &rest[..limit.min(rest.len())];
        let next = if page.len() < rest.len() { page.last().map(|it| it.0) } else { None };
        PushPage { configs: page.iter().map(|it| Arc::clone(&it.1)).collect(), next }
    }
}

impl Memory {
    pub(super) fn put(&self, key: &Key, push: Arc<PushConfig>, most: usize) -> PutResult {
        let mut shard = self.shards[key.shard(SHARDS)].lock();
        shard.get_mut(key).map_or(PutResult::TaskNotFound, |it| it.push.get_or_insert_default().put(push, most))
    }

    pub(super) fn push_of(&self, key: &Key, id: &str) -> Option<Arc<PushConfig>> {
        let found = self.with(key, |it| it.push.as_ref()?.all.iter().find(|it| it.1.config.id == id).cloned());
        found.flatten().map(|it| it.1)
    }

    pub(super) fn pushes_of(&self, key: &Key, after: u64, limit: usize) -> Option<PushPage> {
        self.with(key, |it| it.push.as_ref().map(|it| it.page(after, limit)).unwrap_or_default())
    }

    pub(super) fn delete(&self, key: &Key, id: &str) -> bool {
        let mut shard = self.shards[key.shard(SHARDS)].lock();
        let Some(kept) = shard.get_mut(key) else { return false };
        if let Some(it) = &mut kept.push {
            it.all.retain(|it| it.1.config.id != id);
        }
        true
    }
}
