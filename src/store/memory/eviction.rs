//! Eviction from the store in memory: at the limit, the task that reached its terminal state first is deleted for a new one.
//! Tasks with undelivered push notifications are evicted last.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use super::{Memory, Refused, SHARDS, TaskEntry, TaskKey};
use crate::{
    base::metric,
    store::{Rejected, delivery::STORE_FULL, quota::Quota},
};

/// Position of a task in the order of eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EvictionRank {
    /// The task has undelivered push notifications: it is evicted after all others.
    pub(super) has_undelivered: bool,
    /// Number in the order in which tasks reached a terminal state.
    number: u64,
}

/// Task counts, and the order of eviction. Each operation takes logarithmic time.
pub(super) struct Evictions {
    pub(super) quota: Quota,
    pub(super) terminal: BTreeMap<EvictionRank, TaskKey>,
    /// Terminal tasks of each owner, only if there is a limit per owner.
    owners: Option<HashMap<Arc<str>, BTreeSet<EvictionRank>>>,
    next: u64,
}

impl Evictions {
    pub(super) fn new(max_tasks: usize, max_tasks_per_owner: Option<usize>) -> Self {
        let owners = max_tasks_per_owner.map(|_| HashMap::new());
        let quota = Quota { max_tasks, max_tasks_per_owner, ..Quota::default() };
        Self { quota, terminal: BTreeMap::new(), owners, next: 0 }
    }

    /// Records that a task reached a terminal state.
    pub(super) fn insert_terminal(&mut self, key: &TaskKey, has_undelivered: bool) -> EvictionRank {
        let rank = EvictionRank { has_undelivered, number: self.next };
        self.next += 1;
        self.insert(rank, key.clone());
        self.quota.count(&key.scope().owner, Some(false), Some(true));
        rank
    }

    fn insert(&mut self, rank: EvictionRank, key: TaskKey) {
        if let Some(owners) = &mut self.owners {
            owners.entry(Arc::clone(&key.scope().owner)).or_default().insert(rank);
        }
        self.terminal.insert(rank, key);
    }

    fn remove(&mut self, rank: EvictionRank) -> Option<TaskKey> {
        let key = self.terminal.remove(&rank)?;
        let owner = &key.scope().owner;
        if let Some(owners) = &mut self.owners
            && let Some(ranks) = owners.get_mut(owner)
        {
            ranks.remove(&rank);
            if ranks.is_empty() {
                owners.remove(owner);
            }
        }
        Some(key)
    }

    /// Moves a task in the order, unless it was removed.
    pub(super) fn reorder(&mut self, from: EvictionRank, to: EvictionRank) {
        if let Some(key) = self.remove(from) {
            self.insert(to, key);
        }
    }

    /// Removes a task in a terminal state. Returns `None` if it was removed before.
    fn remove_terminal(&mut self, rank: EvictionRank) -> Option<TaskKey> {
        let key = self.remove(rank)?;
        self.quota.count(&key.scope().owner, Some(true), None);
        Some(key)
    }

    /// First task of an owner in the order of eviction.
    fn first_of(&self, owner: &str) -> Option<EvictionRank> {
        self.owners.as_ref()?.get(owner)?.first().copied()
    }
}

impl Memory {
    /// Reserves quota for a new task. Evicts a task in a terminal state if necessary. A task that is refused evicts nothing.
    pub(super) fn reserve(&self, key: &TaskKey) -> Result<(), Refused> {
        let owner = &key.scope().owner;
        let evicted = {
            let mut evictions = self.evictions.lock();
            // The counts never exceed the limits, so that one eviction is enough for both.
            let (full, first) = if let Some(full) = evictions.quota.full(Some(owner)) {
                (Some(full), evictions.first_of(owner))
            } else if let Some(full) = evictions.quota.full(None) {
                (Some(full), evictions.terminal.first_key_value().map(|(rank, _)| *rank))
            } else {
                (None, None)
            };
            let evicted = match (full, first) {
                (None, _) => None,
                (Some(full), None) => return Err(Refused::Rejected(Rejected::Full(full))),
                (Some(full), Some(rank)) => evictions.remove_terminal(rank).map(|key| (rank, key, full.limit)),
            };
            evictions.quota.count(owner, None, Some(false));
            evicted
        };
        if let Some((rank, evicted, limit)) = evicted {
            metric::STORE_EVICTED.add(None, &[limit], 1);
            if rank.has_undelivered {
                tracing::warn!(
                    task.id = evicted.id(),
                    "push notifications dropped with their task: {STORE_FULL}, and all terminal tasks have undelivered ones"
                );
            }
            drop(self.delete_terminal(&evicted, |_| false));
        }
        Ok(())
    }

    /// Releases the quota of a task that is not in a terminal state.
    pub(super) fn release(&self, key: &TaskKey) {
        self.evictions.lock().quota.count(&key.scope().owner, Some(false), None);
    }

    /// Deletes a task in a terminal state, unless it must be kept. Returns `None` if it was not deleted or does not exist.
    /// The caller drops the result, so that no lock is held meanwhile.
    pub(super) fn delete_terminal(
        &self,
        key: &TaskKey,
        is_kept: impl FnOnce(&TaskEntry) -> bool,
    ) -> Option<Box<TaskEntry>> {
        let mut shard = self.shards[key.shard(SHARDS)].lock();
        if !shard.get(key).is_some_and(|entry| entry.row.state.is_terminal() && !is_kept(entry)) {
            return None;
        }
        let entry = shard.remove(key)?;
        self.remove_from_index(key, Some(&entry.row), entry.idempotency_keys.iter());
        if let Some(push) = &entry.push {
            self.deliveries.lock().remove_task(&key.scope().owner, push);
        }
        match entry.eviction_rank {
            // No effect for an evicted task, whose quota was released before.
            Some(rank) => drop(self.evictions.lock().remove_terminal(rank)),
            None => self.release(key),
        }
        Some(entry)
    }
}
