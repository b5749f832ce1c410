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

    /// Removes a task that has ended.
    fn take(&mut self, number: EndedSeq) -> Option<Key> {
        let key = self.ended.remove(&number)?;
        if let Some(it) = self.owners.get_mut(&key.scope().owner) {
            it.ended.remove(&number);
        }
        Some(key)
    }

    /// Removes the task that ended first.
    fn take_first(&mut self) -> Option<Key> {
        let number = *self.ended.first_key_value()?.0;
        self.take(number)
    }

    /// Removes the task of this owner that ended first.
    fn take_first_of(&mut self, owner: &str) -> Option<Key> {
        let number = *self.owners.get(owner)?.ended.first()?;
        self.take(number)
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

    /// Takes a place for a task that begins.
    pub(super) fn make_room(&self, key: &Key) -> Result<(), Refused> {
        let owner = &key.scope().owner;
        loop {
            let (oldest, full) = {
                let mut room = self.room.lock();
                let theirs = || room.owners.get(owner).map_or(0, |it| it.tasks);
                if let Some(most) = self.max_tasks_per_owner.filter(|it| theirs() >= *it) {
                    (room.take_first_of(owner), Full::per_owner(most))
                } else if room.tasks < self.max_tasks {
                    room.tasks += 1;
                    if self.max_tasks_per_owner.is_some() {
                        room.owners.entry(Arc::clone(owner)).or_default().tasks += 1;
                    }
                    return Ok(());
                } else {
                    (room.take_first(), Full::tasks(self.max_tasks))
                }
            };
            // Its place is free for whoever comes first, so it is looked at again.
            drop(self.forget(&oldest.ok_or(Refused::Full(full))?));
        }
    }

    /// The place of this task is free.
    pub(super) fn free(&self, key: &Key) {
        let mut room = self.room.lock();
        room.tasks -= 1;
        if let Some(it) = room.owners.get_mut(&key.scope().owner) {
            it.tasks -= 1;
            if it.tasks == 0 {
                room.owners.remove(&key.scope().owner);
            }
        }
    }

    /// Deletes a task that has ended, unless it is gone already.
    pub(super) fn forget(&self, key: &Key) -> Option<impl Sized + use<>> {
        let mut shard = self.shards[key.share(SHARDS)].lock();
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
        if let Some(number) = kept.ended {
            self.room.lock().take(number);
        }
        self.free(key);
        // For the caller to drop, with the locks free.
        Some(kept)
    }
}
