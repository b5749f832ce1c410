//! Eviction from the store in memory: the task that reached its terminal state first makes room for a new one at the limit.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use super::{Memory, SHARDS};
use crate::store::{Key, Refused, Rejected, quota::Quota};

/// Number of a task in the order in which tasks reached a terminal state.
pub(super) type TerminalSeq = u64;

/// Task counts, and the order of eviction. Each operation takes logarithmic time.
pub(super) struct Evictions {
    pub(super) quota: Quota,
    pub(super) terminal: BTreeMap<TerminalSeq, Key>,
    /// Terminal tasks of each owner, only if there is a limit per owner.
    owners: Option<HashMap<Arc<str>, BTreeSet<TerminalSeq>>>,
    next: TerminalSeq,
}

impl Evictions {
    pub(super) fn new(max_tasks: usize, max_tasks_per_owner: Option<usize>) -> Self {
        let owners = max_tasks_per_owner.map(|_| HashMap::new());
        Self { quota: Quota::new(max_tasks, max_tasks_per_owner), terminal: BTreeMap::new(), owners, next: 0 }
    }

    /// Records that a task reached a terminal state.
    pub(super) fn insert_terminal(&mut self, key: &Key) -> TerminalSeq {
        let (seq, owner) = (self.next, &key.scope().owner);
        self.next += 1;
        self.terminal.insert(seq, key.clone());
        if let Some(owners) = &mut self.owners {
            owners.entry(Arc::clone(owner)).or_default().insert(seq);
        }
        self.quota.count(owner, Some(false), Some(true));
        seq
    }

    /// Removes a task in a terminal state. Returns `None` if it was removed before.
    fn remove_terminal(&mut self, seq: TerminalSeq) -> Option<Key> {
        let key = self.terminal.remove(&seq)?;
        let owner = &key.scope().owner;
        if let Some(owners) = &mut self.owners
            && let Some(seqs) = owners.get_mut(owner)
        {
            seqs.remove(&seq);
            if seqs.is_empty() {
                owners.remove(owner);
            }
        }
        self.quota.count(owner, Some(true), None);
        Some(key)
    }

    /// Task of an owner that reached a terminal state first.
    fn oldest_of(&self, owner: &str) -> Option<TerminalSeq> {
        self.owners.as_ref()?.get(owner)?.first().copied()
    }
}

impl Memory {
    /// Reserves quota for a new task. Evicts a task in a terminal state if necessary. A task that is refused evicts nothing.
    pub(super) fn reserve(&self, key: &Key) -> Result<(), Refused> {
        let owner = &key.scope().owner;
        let evicted = {
            let mut evictions = self.evictions.lock();
            // The counts never exceed the limits, so that one eviction is enough for both.
            let oldest = if let Some(full) = evictions.quota.is_full_for(owner) {
                Some(evictions.oldest_of(owner).ok_or(Refused::Rejected(Rejected::Full(full)))?)
            } else if let Some(full) = evictions.quota.is_full() {
                let oldest = evictions.terminal.first_key_value().map(|(seq, _)| *seq);
                Some(oldest.ok_or(Refused::Rejected(Rejected::Full(full)))?)
            } else {
                None
            };
            let evicted = oldest.and_then(|seq| evictions.remove_terminal(seq));
            evictions.quota.count(owner, None, Some(false));
            evicted
        };
        if let Some(evicted) = evicted {
            drop(self.delete_terminal(&evicted));
        }
        Ok(())
    }

    /// Releases the quota of a task that is not in a terminal state.
    pub(super) fn release(&self, key: &Key) {
        self.evictions.lock().quota.count(&key.scope().owner, Some(false), None);
    }

    /// Deletes a task in a terminal state. Returns `None` if it does not exist. The caller drops the result, so that no lock
    /// is held meanwhile.
    pub(super) fn delete_terminal(&self, key: &Key) -> Option<impl Sized + use<>> {
        let mut shard = self.shards[key.shard(SHARDS)].lock();
        if !shard.get(key).is_some_and(|entry| entry.row.state.is_terminal()) {
            return None;
        }
        let entry = shard.remove(key)?;
        let mut indexes = self.index.lock();
        if let Some(index) = indexes.get_mut(key.scope()) {
            index.remove(key, &entry.row);
            for idempotency_key in &entry.idempotency_keys {
                index.sends.remove(idempotency_key);
            }
            if index.is_empty() {
                indexes.remove(key.scope());
            }
        }
        drop(indexes);
        match entry.terminal_seq {
            // No effect for an evicted task, whose quota was released before.
            Some(seq) => drop(self.evictions.lock().remove_terminal(seq)),
            None => self.release(key),
        }
        Some(entry)
    }
}
