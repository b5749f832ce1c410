//! Push configurations of a task in memory. They are part of the task's entry, and deleted with it.

use std::sync::Arc;

use super::{Memory, SHARDS};
use crate::store::{Key, PushConfig, PushPage, PutResult};

/// Configurations of a task with their numbers. Numbers only rise, so that a page can continue after the last number of the
/// page before it.
#[derive(Default)]
pub(super) struct PushConfigs {
    last_number: u64,
    configs: Vec<(u64, Arc<PushConfig>)>,
}

impl PushConfigs {
    /// Stores a configuration. Replaces the one of the same id; adds one only while there are less than `max`.
    pub(super) fn put(&mut self, push: Arc<PushConfig>, max: usize) -> PutResult {
        if let Some((_, config)) = self.configs.iter_mut().find(|(_, config)| config.config.id == push.config.id) {
            *config = push;
            return PutResult::Replaced;
        }
        if self.configs.len() >= max {
            return PutResult::Full;
        }
        self.last_number += 1;
        self.configs.push((self.last_number, push));
        PutResult::Created
    }

    fn page(&self, after: u64, limit: usize) -> PushPage {
        let start = self.configs.partition_point(|(number, _)| *number <= after);
        let rest = &self.configs[start..];
        let page = &rest[..limit.min(rest.len())];
        let next = if page.len() < rest.len() { page.last().map(|(number, _)| *number) } else { None };
        PushPage { configs: page.iter().map(|(_, config)| Arc::clone(config)).collect(), next }
    }
}

impl Memory {
    pub(super) fn put_push_config(&self, key: &Key, push: Arc<PushConfig>, max: usize) -> PutResult {
        let mut shard = self.shards[key.shard(SHARDS)].lock();
        let Some(entry) = shard.get_mut(key) else { return PutResult::TaskNotFound };
        entry.push.get_or_insert_default().put(push, max)
    }

    pub(super) fn push_config(&self, key: &Key, id: &str) -> Option<Arc<PushConfig>> {
        let find = |push: &PushConfigs| push.configs.iter().find(|(_, config)| config.config.id == id).cloned();
        let found = self.with(key, |entry| find(entry.push.as_ref()?));
        found.flatten().map(|(_, config)| config)
    }

    pub(super) fn push_page(&self, key: &Key, after: u64, limit: usize) -> Option<PushPage> {
        self.with(key, |entry| entry.push.as_ref().map(|push| push.page(after, limit)).unwrap_or_default())
    }

    pub(super) fn delete_push_config(&self, key: &Key, id: &str) -> bool {
        let mut shard = self.shards[key.shard(SHARDS)].lock();
        let Some(entry) = shard.get_mut(key) else { return false };
        if let Some(push) = &mut entry.push {
            push.configs.retain(|(_, config)| config.config.id != id);
        }
        true
    }
}
