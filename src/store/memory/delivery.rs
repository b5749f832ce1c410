//! Push configurations in memory, and the queue of their deliveries.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use async_trait::async_trait;

use super::{Full, Memory, SHARDS, Scope, TaskEntry, TaskKey, Unavailable};
use crate::{
    base::clock::Millis,
    protocol::event::Seq,
    store::{
        Delivery, DeliveryClaim, DeliveryCounts, DeliveryOutcome, DeliveryPage, DeliveryState, DeliveryToken, Lease,
        PushConfig, PushPage, PushQueue, PushTaskPage, PutResult, delivery::Effect, log_codec::to_u64, page::cut_page,
    },
};

/// Configurations of a task in the order of their serial numbers, so that a page can continue after the last number of the page
/// before it.
#[derive(Default)]
pub(super) struct PushConfigs {
    configs: Vec<StoredConfig>,
}

/// Configuration with the state of its delivery.
struct StoredConfig {
    /// Number in the order of the store, which identifies the configuration in the queue.
    serial: u64,
    config: Arc<PushConfig>,
    delivery: DeliveryState,
}

impl StoredConfig {
    /// Returns the delivery to this configuration of a task, whose last event is `seq`.
    fn of(&self, key: &TaskKey, seq: Seq) -> Delivery {
        let (config, state) = (Arc::clone(&self.config), self.delivery.clone());
        Delivery { key: key.clone(), config, seq, state }
    }
}

/// Order of the deliveries that have a time. The configurations have the state.
#[derive(Default)]
pub(super) struct DeliveryQueue {
    /// By the time at which they are due, and the serial number of the configuration.
    due: BTreeMap<(Millis, u64), TaskKey>,
    /// By the time at which they were given up.
    dead: BTreeMap<(Millis, u64), TaskKey>,
    last_serial: u64,
    last_claim: u64,
    /// Numbers of configurations per owner, including those that commits have reserved.
    counts: HashMap<Arc<str>, usize>,
}

impl TaskEntry {
    /// Returns the configurations of the task.
    fn configs(&self) -> impl Iterator<Item = &StoredConfig> {
        self.push.iter().flat_map(|push| &push.configs)
    }
}

impl PushConfigs {
    /// Stores a configuration. Replaces the one of the same id; adds one only while there are less than `max`, and the quota
    /// of the owner is not `full`. A new one gets the events after `cursor`.
    pub(super) fn put(
        &mut self,
        queue: &mut DeliveryQueue,
        config: Arc<PushConfig>,
        cursor: Seq,
        (max, full): (usize, Option<Full>),
    ) -> PutResult {
        if let Some(stored) = self.find_mut(&config.config.id) {
            stored.config = config;
            stored.delivery.replace();
            return PutResult::Replaced;
        }
        if self.configs.len() >= max {
            return PutResult::Full;
        }
        if let Some(full) = full {
            return PutResult::OwnerFull(full);
        }
        queue.last_serial += 1;
        let (serial, delivery) = (queue.last_serial, DeliveryState::new(cursor));
        self.configs.push(StoredConfig { serial, config, delivery });
        PutResult::Created
    }

    fn find_mut(&mut self, id: &str) -> Option<&mut StoredConfig> {
        self.configs.iter_mut().find(|stored| stored.config.config.id == id)
    }

    pub(super) fn get(&self, id: &str) -> Option<Arc<PushConfig>> {
        let stored = self.configs.iter().find(|stored| stored.config.config.id == id)?;
        Some(Arc::clone(&stored.config))
    }

    pub(super) fn page(&self, after: u64, limit: usize) -> PushPage {
        let start = self.configs.partition_point(|stored| stored.serial <= after);
        let rest = self.configs[start..].iter().map(|stored| (stored.serial, Arc::clone(&stored.config)));
        let (configs, next) = cut_page(rest.collect(), limit);
        PushPage { configs, next }
    }

    pub(super) fn delete(&mut self, id: &str) {
        self.configs.retain(|stored| stored.config.config.id != id);
    }

    /// Returns whether a configuration has still to get events of the task, whose last one is `seq`. Includes events that
    /// the queue has not been told of.
    pub(super) fn has_undelivered(&self, seq: Seq) -> bool {
        let is_undelivered = |state: &DeliveryState| state.is_pending() || (state.dead.is_none() && state.cursor < seq);
        self.configs.iter().any(|stored| is_undelivered(&stored.delivery))
    }
}

impl DeliveryQueue {
    /// Adds the configurations of a task.
    fn insert(&mut self, key: &TaskKey, push: &PushConfigs) {
        for StoredConfig { serial, delivery, .. } in &push.configs {
            if let Some(dead) = &delivery.dead {
                self.dead.insert((dead.time, *serial), key.clone());
            } else if let Some(due) = delivery.due {
                self.due.insert((due, *serial), key.clone());
            }
        }
    }

    /// Returns the number of configurations.
    pub(super) fn len(&self) -> usize {
        self.counts.values().sum()
    }

    /// Returns the limit if the tasks of an owner have as many configurations, over all tenants.
    pub(super) fn is_full_for(&self, owner: &str, max: usize) -> Option<Full> {
        let count = self.counts.get(owner).copied().unwrap_or_default();
        (count >= max).then(|| Full::push_configs_per_owner(max))
    }

    /// Counts a change of the number of an owner's configurations.
    pub(super) fn count(&mut self, owner: &Arc<str>, before: usize, after: usize) {
        if before != after {
            let count = self.counts.entry(Arc::clone(owner)).or_default();
            *count = (*count + after).saturating_sub(before);
            if *count == 0 {
                self.counts.remove(owner);
            }
        }
    }

    /// Reserves a configuration of an owner for a commit.
    pub(super) fn reserve(&mut self, owner: &Arc<str>, max: usize) -> Result<(), Full> {
        self.is_full_for(owner, max).map_or(Ok(()), Err)?;
        self.count(owner, 0, 1);
        Ok(())
    }

    /// Removes a task of this owner with its configurations.
    pub(super) fn remove_task(&mut self, owner: &Arc<str>, push: &PushConfigs) {
        self.remove(push);
        self.count(owner, push.configs.len(), 0);
    }

    /// Removes the configurations of a task.
    fn remove(&mut self, push: &PushConfigs) {
        for StoredConfig { serial, delivery, .. } in &push.configs {
            if let Some(dead) = &delivery.dead {
                self.dead.remove(&(dead.time, *serial));
            } else if let Some(due) = delivery.due {
                self.due.remove(&(due, *serial));
            }
        }
    }
}

impl Memory {
    /// Changes the configurations of a task, and moves them in the queue and the task in the order of eviction.
    pub(super) fn change_push<T>(
        &self,
        key: &TaskKey,
        entry: &mut TaskEntry,
        change: impl FnOnce(&mut PushConfigs, &mut DeliveryQueue, Seq) -> T,
    ) -> T {
        let push = entry.push.get_or_insert_default();
        let result = {
            let mut queue = self.deliveries.lock();
            queue.remove(push);
            let before = push.configs.len();
            let result = change(push, &mut queue, entry.row.seq);
            queue.count(&key.scope().owner, before, push.configs.len());
            queue.insert(key, push);
            result
        };
        if let Some(rank) = &mut entry.eviction_rank {
            let rank_before = *rank;
            rank.has_undelivered = push.has_undelivered(entry.row.seq);
            if rank_before != *rank {
                self.evictions.lock().reorder(rank_before, *rank);
            }
        }
        result
    }

    /// Changes the configurations of a task that exists and has had some.
    fn with_push<T>(
        &self,
        key: &TaskKey,
        change: impl FnOnce(&mut PushConfigs, &mut DeliveryQueue, Seq) -> T,
    ) -> Option<T> {
        let mut shard = self.shards[key.shard(SHARDS)].lock();
        let entry = shard.get_mut(key).filter(|entry| entry.push.is_some())?;
        Some(self.change_push(key, entry, change))
    }

    /// Marks the deliveries of a task as due. Returns how many became due.
    pub(super) fn mark_task_due(&self, key: &TaskKey, now: Millis) -> usize {
        let mark = |push: &mut PushConfigs, _: &mut DeliveryQueue, seq| {
            push.configs.iter_mut().filter_map(|stored| stored.delivery.mark_due(seq, now).then_some(())).count()
        };
        self.with_push(key, mark).unwrap_or_default()
    }

    /// Tasks with configurations in the order of the first one after the token, with that configuration's serial number.
    fn tasks_with_push(&self, after: u64) -> BTreeMap<u64, TaskKey> {
        let mut found = BTreeMap::new();
        for shard in &self.shards {
            for (key, entry) in &*shard.lock() {
                let first = entry.configs().map(|stored| stored.serial).min();
                if let Some(first) = first.filter(|serial| *serial > after) {
                    found.insert(first, key.clone());
                }
            }
        }
        found
    }

    /// Returns whether a task may still get events for one of its configurations.
    fn may_get_events(entry: &TaskEntry) -> bool {
        let is_terminal = entry.row.state.is_terminal();
        let may_get = |state: &DeliveryState| state.dead.is_none() && (!is_terminal || state.is_pending());
        entry.configs().any(|stored| may_get(&stored.delivery))
    }

    /// Deletes the oldest dead letters with their configurations, so that at most `max` are left.
    fn limit_dead_letters(&self, max: usize) {
        let oldest: Vec<_> = {
            let queue = self.deliveries.lock();
            let surplus = queue.dead.len().saturating_sub(max);
            queue.dead.iter().take(surplus).map(|((_, serial), key)| (*serial, key.clone())).collect()
        };
        for (serial, key) in oldest {
            self.with_push(&key, |push, _, _| {
                push.configs.retain(|stored| stored.serial != serial || stored.delivery.dead.is_none());
            });
        }
    }

    /// Returns whether a sweep must keep a task because of undelivered events that became due at or after the cutoff.
    pub(super) fn is_kept_for_delivery(entry: &TaskEntry, cutoff: Option<Millis>) -> bool {
        entry.configs().any(|stored| stored.delivery.is_kept(cutoff))
    }
}

#[async_trait]
impl PushQueue for Memory {
    async fn put_push(&self, key: &TaskKey, push: Arc<PushConfig>, max: usize) -> Result<PutResult, Unavailable> {
        let mut shard = self.shards[key.shard(SHARDS)].lock();
        let Some(entry) = shard.get_mut(key) else { return Ok(PutResult::TaskNotFound) };
        Ok(self.change_push(key, entry, |configs, queue, seq| {
            let full = queue.is_full_for(&key.scope().owner, self.max_push_configs_per_owner);
            configs.put(queue, push, seq, (max, full))
        }))
    }

    async fn check_push_capacity(&self, scope: &Scope) -> Result<Result<(), Full>, Unavailable> {
        let full = self.deliveries.lock().is_full_for(&scope.owner, self.max_push_configs_per_owner);
        Ok(full.map_or(Ok(()), Err))
    }

    async fn get_push(&self, key: &TaskKey, id: &str) -> Result<Option<Arc<PushConfig>>, Unavailable> {
        Ok(self.with(key, |entry| entry.push.as_ref()?.get(id)).flatten())
    }

    async fn list_push(&self, key: &TaskKey, after: u64, limit: usize) -> Result<Option<PushPage>, Unavailable> {
        let page = |entry: &TaskEntry| entry.push.as_ref().map(|push| push.page(after, limit)).unwrap_or_default();
        Ok(self.with(key, page))
    }

    async fn delete_push(&self, key: &TaskKey, id: &str) -> Result<bool, Unavailable> {
        let mut shard = self.shards[key.shard(SHARDS)].lock();
        let Some(entry) = shard.get_mut(key) else { return Ok(false) };
        if entry.push.is_some() {
            self.change_push(key, entry, |configs, _, _| configs.delete(id));
        }
        Ok(true)
    }

    async fn mark_due(&self, keys: &[TaskKey], now: Millis) -> Result<usize, Unavailable> {
        Ok(keys.iter().map(|key| self.mark_task_due(key, now)).sum())
    }

    async fn mark_all_due(&self, now: Millis, after: DeliveryToken, limit: usize) -> Result<PushTaskPage, Unavailable> {
        let mut page = PushTaskPage::default();
        let mut last = after;
        for (n, (serial, key)) in self.tasks_with_push(after.0).into_iter().enumerate() {
            if n >= limit {
                page.next = Some(last);
                break;
            }
            last = DeliveryToken(serial, 0);
            _ = self.mark_task_due(&key, now);
            if self.with(&key, Self::may_get_events).unwrap_or(false) {
                page.keys.push(key);
            }
        }
        Ok(page)
    }

    async fn next_due(&self) -> Result<Option<Millis>, Unavailable> {
        Ok(self.deliveries.lock().due.first_key_value().map(|((due, _), _)| *due))
    }

    async fn oldest_pending(&self) -> Result<Option<Millis>, Unavailable> {
        let keys: Vec<TaskKey> = self.deliveries.lock().due.values().cloned().collect();
        let first = |entry: &TaskEntry| {
            let pending = entry.configs().map(|stored| &stored.delivery).filter(|delivery| delivery.is_pending());
            pending.filter_map(|delivery| delivery.pending_since).min()
        };
        Ok(keys.iter().filter_map(|key| self.with(key, first).flatten()).min())
    }

    async fn claim_due(&self, lease: &Lease, limit: usize) -> Result<Vec<DeliveryClaim>, Unavailable> {
        let due: Vec<_> = {
            let queue = self.deliveries.lock();
            let due = queue.due.iter().take_while(|((due, _), _)| *due <= lease.now).take(limit);
            due.map(|((_, serial), key)| (*serial, key.clone())).collect()
        };
        let claim = |(serial, key): (u64, TaskKey)| {
            let mut shard = self.shards[key.shard(SHARDS)].lock();
            let entry = shard.get_mut(&key).filter(|entry| entry.push.is_some())?;
            let turn_contexts = entry.turn_contexts.clone();
            self.change_push(&key, entry, |push, queue, seq| {
                let stored = push.configs.iter_mut().find(|stored| stored.serial == serial)?;
                // Another runner may have claimed it meanwhile.
                if !stored.delivery.is_due(lease.now) {
                    return None;
                }
                queue.last_claim += 1;
                let end = stored.delivery.lease(lease, queue.last_claim, seq);
                let DeliveryState { cursor, attempts, pending_since, claim, .. } = stored.delivery;
                let (config, pending_since) = (Arc::clone(&stored.config), pending_since.unwrap_or(lease.now));
                let key = key.clone();
                Some(DeliveryClaim { key, config, cursor, end, attempts, pending_since, turn_contexts, claim })
            })
        };
        Ok(due.into_iter().filter_map(claim).collect())
    }

    async fn end_claim(&self, claim: &DeliveryClaim, outcome: DeliveryOutcome) -> Result<bool, Unavailable> {
        let id = &claim.config.config.id;
        let ended = self.with_push(&claim.key, |push, _, seq| {
            let stored = push.find_mut(id)?;
            let is_replaced = stored.config != claim.config;
            let effect = stored.delivery.end_claim(claim.claim, is_replaced, seq, &outcome);
            if effect == Effect::Deleted {
                push.delete(id);
            }
            Some(effect != Effect::Stale)
        });
        if let Some(max) = outcome.max_dead() {
            self.limit_dead_letters(max);
        }
        Ok(ended.flatten().unwrap_or(false))
    }

    async fn release_deliveries(&self, runner: &str, now: Millis) -> Result<usize, Unavailable> {
        let waiting: BTreeSet<TaskKey> = self.deliveries.lock().due.values().cloned().collect();
        let is_leased = |stored: &&mut StoredConfig| stored.delivery.runner.as_deref() == Some(runner);
        let release = |push: &mut PushConfigs, _: &mut DeliveryQueue, _| {
            push.configs.iter_mut().filter(is_leased).map(|stored| stored.delivery.release(now)).count()
        };
        Ok(waiting.iter().filter_map(|key| self.with_push(key, release)).sum())
    }

    async fn undelivered_tasks(&self, keys: &[TaskKey]) -> Result<Vec<TaskKey>, Unavailable> {
        Ok(keys.iter().filter(|key| self.with(key, Self::may_get_events).unwrap_or(false)).cloned().collect())
    }

    async fn deliveries(
        &self,
        dead_only: bool,
        after: DeliveryToken,
        limit: usize,
    ) -> Result<DeliveryPage, Unavailable> {
        let mut found = BTreeMap::new();
        for shard in &self.shards {
            for (key, entry) in &*shard.lock() {
                let wanted = entry.configs().filter(|stored| stored.serial > after.0);
                for stored in wanted.filter(|stored| !dead_only || stored.delivery.dead.is_some()) {
                    found.insert(stored.serial, stored.of(key, entry.row.seq));
                }
            }
        }
        let rows = found.into_iter().map(|(serial, delivery)| (DeliveryToken(serial, 0), delivery)).collect();
        let (deliveries, next) = cut_page(rows, limit);
        Ok(DeliveryPage { deliveries, next })
    }

    async fn task_deliveries(&self, key: &TaskKey) -> Result<Vec<Delivery>, Unavailable> {
        let all = |entry: &TaskEntry| entry.configs().map(|stored| stored.of(key, entry.row.seq)).collect();
        Ok(self.with(key, all).unwrap_or_default())
    }

    async fn delivery_counts(&self) -> Result<DeliveryCounts, Unavailable> {
        let queue = self.deliveries.lock();
        Ok(DeliveryCounts { due: to_u64(queue.due.len()), dead: to_u64(queue.dead.len()) })
    }

    async fn retry_delivery(&self, key: &TaskKey, id: &str, now: Millis) -> Result<bool, Unavailable> {
        let retried =
            self.with_push(key, |push, _, seq| push.find_mut(id).is_some_and(|stored| stored.delivery.retry(seq, now)));
        Ok(retried.unwrap_or(false))
    }
}
