//! Task quotas of the store in memory, and eviction of the task that reached its terminal state first.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use super::{Memory, SHARDS};
use crate::store::{Full, Key, Refused, Scope};

/// Number of a task in the order in which tasks reached a terminal state.
pub(super) type TerminalSeq = u64;

/// Task counts, and the order of eviction. Each operation takes logarithmic time.
#[derive(Default)]
pub(super) struct Quota {
    pub(super) tasks: usize,
    /// Tasks of each owner, only if there is a limit per owner.
    owners: HashMap<Arc<str>, OwnerTasks>,
    pub(super) terminal: BTreeMap<TerminalSeq, Key>,
    next: TerminalSeq,
}

/// Number of tasks of one owner, and those in a terminal state.
#[derive(Default)]
struct OwnerTasks {
    tasks: usize,
    terminal: BTreeSet<TerminalSeq>,
}

impl Quota {
    /// Records that a task reached a terminal state.
    pub(super) fn insert_terminal(&mut self, key: &Key) -> TerminalSeq {
        let seq = self.next;
        self.next += 1;
        self.terminal.insert(seq, key.clone());
        if let Some(owner) = self.owners.get_mut(&key.scope().owner) {
            owner.terminal.insert(seq);
        }
        seq
    }

    /// Removes a task in a terminal state. Returns `None` if it was removed before.
    fn remove_terminal(&mut self, seq: TerminalSeq) -> Option<Key> {
        let key = self.terminal.remove(&seq)?;
        if let Some(owner) = self.owners.get_mut(&key.scope().owner) {
            owner.terminal.remove(&seq);
        }
        self.subtract(&key.scope().owner);
        Some(key)
    }

    /// Number of tasks of an owner, and the first of them that reached a terminal state.
    fn owner(&self, owner: &str) -> (usize, Option<TerminalSeq>) {
        self.owners.get(owner).map_or((0, None), |owner| (owner.tasks, owner.terminal.first().copied()))
    }

    fn add(&mut self, owner: &Arc<str>, is_limited: bool) {
        self.tasks += 1;
        if is_limited {
            self.owners.entry(Arc::clone(owner)).or_default().tasks += 1;
        }
    }

    fn subtract(&mut self, owner: &str) {
        self.tasks -= 1;
        if let Some(counts) = self.owners.get_mut(owner) {
            counts.tasks -= 1;
            if counts.tasks == 0 {
                self.owners.remove(owner);
            }
        }
    }
}

impl Memory {
    /// Checks whether another task of an owner is admitted, after an eviction if necessary.
    pub(super) fn check_quota(&self, scope: &Scope) -> Result<(), Full> {
        let quota = self.quota.lock();
        if let Some(max) = self.max_tasks_per_owner {
            let (tasks, oldest) = quota.owner(&scope.owner);
            if tasks >= max && oldest.is_none() {
                return Err(Full::per_owner(max));
            }
        }
        let fits = quota.tasks < self.max_tasks || !quota.terminal.is_empty();
        if fits { Ok(()) } else { Err(Full::tasks(self.max_tasks)) }
    }

    /// Reserves quota for a new task. Evicts a task in a terminal state if necessary. A task that is refused evicts nothing.
    pub(super) fn reserve(&self, key: &Key) -> Result<(), Refused> {
        let owner = &key.scope().owner;
        let evicted = {
            let mut quota = self.quota.lock();
            let (owner_tasks, owner_oldest) = quota.owner(owner);
            // The counts never exceed the limits, so that one eviction is enough for both.
            let oldest = match self.max_tasks_per_owner {
                Some(max) if owner_tasks >= max => Some(owner_oldest.ok_or(Refused::Full(Full::per_owner(max)))?),
                _ if quota.tasks < self.max_tasks => None,
                _ => {
                    let oldest = quota.terminal.first_key_value().map(|(seq, _)| *seq);
                    Some(oldest.ok_or(Refused::Full(Full::tasks(self.max_tasks)))?)
                }
            };
            let evicted = oldest.and_then(|seq| quota.remove_terminal(seq));
            quota.add(owner, self.max_tasks_per_owner.is_some());
            evicted
        };
        if let Some(evicted) = evicted {
            drop(self.delete_terminal(&evicted));
        }
        Ok(())
    }

    /// Releases the quota of a task.
    pub(super) fn release(&self, key: &Key) {
        self.quota.lock().subtract(&key.scope().owner);
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
            Some(seq) => drop(self.quota.lock().remove_terminal(seq)),
            None => self.release(key),
        }
        Some(entry)
    }
}
