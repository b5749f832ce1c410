//! How many tasks there are, and how many there may be: of all owners, and of each.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use rusqlite::{Connection, Row};

use super::{Options, number, sweep::ENDED};
use crate::store::Full;

/// Tasks that are there, and those of them that have ended and may be asked to leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    tasks: usize,
    ended: usize,
}

/// How many there may be.
#[derive(Clone, Copy, Debug)]
struct Most {
    of_all: usize,
    of_each: Option<usize>,
}

/// The room that there is.
pub(super) struct Quota {
    all: Count,
    /// Where each may have only so many.
    owners: HashMap<Arc<str>, Count>,
    most: Most,
}

/// The room as a transaction sees it: nobody else does, until it is through.
pub(super) struct PendingQuota {
    room: Arc<Mutex<Quota>>,
    all: Count,
    owners: HashMap<Arc<str>, Count>,
    most: Most,
}

impl Quota {
    /// Counts what is there.
    pub(super) fn new(db: &Connection, options: &Options) -> rusqlite::Result<Self> {
        let most = Most { of_all: options.max_tasks, of_each: options.max_tasks_per_owner };
        let tasks = format!("ifnull(sum(tasks), 0), ifnull(sum(iif({ENDED}, tasks, 0)), 0)");
        let count = |it: &Row<'_>, at: usize| {
            let size = |at| it.get(at).map(|it| usize::try_from(number(it)).unwrap_or(usize::MAX));
            Ok(Count { tasks: size(at)?, ended: size(at + 1)? })
        };
        let all = db.query_row(&format!("SELECT {tasks} FROM total"), [], |it| count(it, 0))?;
        let mut owners = HashMap::new();
        if most.of_each.is_some() {
            let sql = format!("SELECT o.owner, {tasks} FROM total t JOIN scope o ON o.id = t.scope GROUP BY o.owner");
            let mut each = db.prepare(&sql)?;
            let each = each.query_map([], |it| Ok((Arc::from(it.get_ref(0)?.as_str()?), count(it, 1)?)))?;
            owners = each.collect::<rusqlite::Result<_>>()?;
        }
        Ok(Self { all, owners, most })
    }

    /// How many tasks there are.
    pub(super) fn tasks(&self) -> usize {
        self.all.tasks
    }

    /// Whether this owner may have another one.
    pub(super) fn takes(&self, owner: &str) -> Result<(), Full> {
        let Most { of_all, of_each } = self.most;
        let there = self.owners.get(owner).copied().unwrap_or_default();
        if let Some(most) = of_each.filter(|it| there.tasks >= *it && there.ended == 0) {
            return Err(Full::per_owner(most));
        }
        if self.all.tasks >= of_all && self.all.ended == 0 { Err(Full::tasks(of_all)) } else { Ok(()) }
    }
}

impl PendingQuota {
    pub(super) fn new(room: &Arc<Mutex<Quota>>) -> Self {
        let Quota { all, most, .. } = *room.lock();
        Self { room: Arc::clone(room), all, owners: HashMap::new(), most }
    }

    /// There are as many tasks as there may be.
    pub(super) fn is_full(&self) -> Option<Full> {
        (self.all.tasks >= self.most.of_all).then(|| Full::tasks(self.most.of_all))
    }

    /// There is room for so many more, of this owner.
    pub(super) fn has(&mut self, owner: &Arc<str>, more: usize) -> bool {
        let Most { of_all, of_each } = self.most;
        let fits = |there: usize, most: usize| most.checked_sub(there).is_some_and(|room| room >= more);
        fits(self.all.tasks, of_all) && of_each.is_none_or(|most| fits(self.of(owner).tasks, most))
    }

    /// This owner has as many as one may have.
    pub(super) fn is_full_for(&mut self, owner: &Arc<str>) -> Option<Full> {
        let most = self.most.of_each?;
        (self.of(owner).tasks >= most).then(|| Full::per_owner(most))
    }

    fn of(&mut self, owner: &Arc<str>) -> &mut Count {
        let room = &self.room;
        let there = || room.lock().owners.get(owner).copied().unwrap_or_default();
        self.owners.entry(Arc::clone(owner)).or_insert_with(there)
    }

    /// A task of this owner was there, and is: and whether it had ended, and has.
    pub(super) fn moved(&mut self, owner: &Arc<str>, was: Option<bool>, is: Option<bool>) {
        let change = |it: &mut Count| {
            it.tasks = it.tasks + usize::from(is.is_some()) - usize::from(was.is_some());
            it.ended = it.ended + usize::from(is == Some(true)) - usize::from(was == Some(true));
        };
        change(&mut self.all);
        if self.most.of_each.is_some() {
            change(self.of(owner));
        }
    }

    /// Tells the others.
    pub(super) fn show(self) {
        let mut room = self.room.lock();
        room.all = self.all;
        for (owner, count) in self.owners {
            if count == Count::default() {
                room.owners.remove(&owner);
            } else {
                room.owners.insert(owner, count);
            }
        }
    }
}
