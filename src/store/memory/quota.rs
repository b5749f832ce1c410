//! Who has a place in memory, and who leaves for whom: the task that ended first goes, and none that has not.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use super::{Memory, SHARDS};
use crate::store::{Full, Key, Refused, Scope};

/// Number of a task that has ended, in the order in which they did.
pub(super) type EndedSeq = u64;

/// Counts of tasks, and the order in which those that have ended are evicted. Each operation takes logarithmic time.
#[derive(Default)]
pub(super) struct Quota {
    pub(super) tasks: usize,
    /// The tasks of each owner, if there is a limit per owner.
    owners: HashMap<Arc<str>, Owner>,
    pub(super) ended: BTreeMap<EndedSeq, Key>,
    next: EndedSeq,
}

/// Tasks of one owner, and the numbers of those that have ended.
#[derive(Default)]
struct Owner {
    tasks: usize,
    ended: BTreeSet<EndedSeq>,
}

impl Quota {
    /// Inserts a task that has ended.
    pub(super) fn end(&mut self, key: &Key) -> EndedSeq {
        let number = self.next;
        self.next += 1;
        self.ended.insert(number, key.clone());
        if let Some(it) = self.owners.get_mut(&key.scope().owner) {
            it.ended.insert(number);
        }
        number
    }

    /// Removes a task that has ended, and frees its place. `None` if that was done before.
    fn take(&mut self, number: EndedSeq) -> Option<Key> {
        let key = self.ended.remove(&number)?;
        if let Some(theirs) = self.owners.get_mut(&key.scope().owner) {
            theirs.ended.remove(&number);
        }
        self.subtract(&key.scope().owner);
        Some(key)
    }

    /// Number of tasks of an owner, and the number of the one of them that ended first.
    fn of(&self, owner: &str) -> (usize, Option<EndedSeq>) {
        self.owners.get(owner).map_or((0, None), |theirs| (theirs.tasks, theirs.ended.first().copied()))
    }

    fn add(&mut self, owner: &Arc<str>, is_limited: bool) {
        self.tasks += 1;
        if is_limited {
            self.owners.entry(Arc::clone(owner)).or_default().tasks += 1;
        }
    }

    fn subtract(&mut self, owner: &str) {
        self.tasks -= 1;
        if let Some(theirs) = self.owners.get_mut(owner) {
            theirs.tasks -= 1;
            if theirs.tasks == 0 {
                self.owners.remove(owner);
            }
        }
    }
}

impl Memory {
    /// Whether there is room for another task of theirs.
    pub(super) fn has_room(&self, scope: &Scope) -> Result<(), Full> {
        let room = self.room.lock();
        if let Some(most) = self.max_tasks_per_owner {
            let (tasks, ended) = room.owners.get(&scope.owner).map_or((0, 0), |it| (it.tasks, it.ended.len()));
            if tasks >= most && ended == 0 {
                return Err(Full::per_owner(most));
            }
        }
        if room.tasks < self.max_tasks || !room.ended.is_empty() { Ok(()) } else { Err(Full::tasks(self.max_tasks)) }
    }

    /// Takes a place for a task that begins: a free one, or that of a task that has ended, which is evicted. A task that
    /// is refused evicts nothing.
    pub(super) fn make_room(&self, key: &Key) -> Result<(), Refused> {
        let owner = &key.scope().owner;
        let evicted = {
            let mut room = self.room.lock();
            let (theirs, their_oldest) = room.of(owner);
            // There are never more tasks than the limits allow, so that one eviction is enough for both.
            let oldest = match self.max_tasks_per_owner {
                Some(most) if theirs >= most => Some(their_oldest.ok_or(Refused::Full(Full::per_owner(most)))?),
                _ if room.tasks < self.max_tasks => None,
                _ => {
                    let oldest = room.ended.first_key_value().map(|(number, _)| *number);
                    Some(oldest.ok_or(Refused::Full(Full::tasks(self.max_tasks)))?)
                }
            };
            let evicted = oldest.and_then(|number| room.take(number));
            room.add(owner, self.max_tasks_per_owner.is_some());
            evicted
        };
        if let Some(evicted) = evicted {
            // Its place is taken already.
            drop(self.forget(&evicted));
        }
        Ok(())
    }

    /// The place of this task is free.
    pub(super) fn free(&self, key: &Key) {
        self.room.lock().subtract(&key.scope().owner);
    }

    /// Deletes a task that has ended, unless it is gone already.
    pub(super) fn forget(&self, key: &Key) -> Option<impl Sized + use<>> {
        let mut shard = self.shards[key.shard(SHARDS)].lock();
        if !shard.get(key).is_some_and(|it| it.row.state.is_terminal()) {
            return None;
        }
        let kept = shard.remove(key)?;
        let mut all = self.index.lock();
        if let Some(index) = all.get_mut(key.scope()) {
            index.remove(key, &kept.row);
            for it in &kept.sends {
                index.sends.remove(it);
            }
            if index.is_empty() {
                all.remove(key.scope());
            }
        }
        drop(all);
        match kept.ended {
            // The place of an evicted task was freed before.
            Some(number) => drop(self.room.lock().take(number)),
            None => self.free(key),
        }
        // For the caller to drop, with the locks free.
        Some(kept)
    }
}
