//! Who has a place in memory, and who leaves for whom: the task that ended first goes, and none that has not.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use super::{Memory, SHARDS};
use crate::store::{Full, Key, Refused, Scope};

/// Who is there, and who may be asked to leave.
#[derive(Default)]
pub(super) struct Room {
    pub(super) tasks: usize,
    /// How many of whom, where each may have only so many.
    owners: HashMap<Arc<str>, usize>,
    /// In the order in which they ended.
    pub(super) ended: VecDeque<Key>,
}

impl Memory {
    /// Whether there is room for another task of theirs.
    pub(super) fn has_room(&self, scope: &Scope) -> Result<(), Full> {
        let room = self.room.lock();
        if let Some(most) = self.max_tasks_per_owner {
            let theirs = room.owners.get(&scope.owner).copied().unwrap_or_default();
            if theirs >= most && !room.ended.iter().any(|it| it.scope().owner == scope.owner) {
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
                let theirs = || room.owners.get(owner).copied().unwrap_or_default();
                if let Some(most) = self.max_tasks_per_owner.filter(|it| theirs() >= *it) {
                    let first = room.ended.iter().position(|it| it.scope().owner == *owner);
                    (first.and_then(|it| room.ended.remove(it)), Full::per_owner(most))
                } else if room.tasks < self.max_tasks {
                    room.tasks += 1;
                    if self.max_tasks_per_owner.is_some() {
                        *room.owners.entry(Arc::clone(owner)).or_default() += 1;
                    }
                    return Ok(());
                } else {
                    (room.ended.pop_front(), Full::tasks(self.max_tasks))
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
            *it -= 1;
            if *it == 0 {
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
        self.free(key);
        // For the caller to drop, with the locks free.
        Some(kept)
    }
}
