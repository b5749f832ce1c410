//! Task quotas: numbers of stored tasks, and their limits over all owners and per owner.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use rusqlite::{Connection, Row};

use super::{Options, sweep::TERMINAL, unsigned};
use crate::store::Full;

/// Numbers of tasks, and of those in a terminal state, which can be evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    tasks: usize,
    terminal: usize,
}

/// Maximum numbers of tasks.
#[derive(Clone, Copy, Debug)]
struct Limits {
    total: usize,
    per_owner: Option<usize>,
}

/// Committed task counts, with their limits.
pub(super) struct Quota {
    total: Count,
    /// Counts per owner, only if there is a limit per owner.
    owners: HashMap<Arc<str>, Count>,
    limits: Limits,
}

/// Task counts as a transaction sees them. Not visible to others until the transaction is committed.
pub(super) struct PendingQuota {
    committed: Arc<Mutex<Quota>>,
    total: Count,
    owners: HashMap<Arc<str>, Count>,
    limits: Limits,
}

impl Quota {
    /// Loads the stored counts.
    pub(super) fn load(db: &Connection, options: &Options) -> rusqlite::Result<Self> {
        let limits = Limits { total: options.max_tasks, per_owner: options.max_tasks_per_owner };
        let sums = format!("ifnull(sum(tasks), 0), ifnull(sum(iif({TERMINAL}, tasks, 0)), 0)");
        let count = |row: &Row<'_>, first: usize| {
            let size = |at| row.get(at).map(|n| usize::try_from(unsigned(n)).unwrap_or(usize::MAX));
            Ok(Count { tasks: size(first)?, terminal: size(first + 1)? })
        };
        let total = db.query_row(&format!("SELECT {sums} FROM total"), [], |row| count(row, 0))?;
        let mut owners = HashMap::new();
        if limits.per_owner.is_some() {
            let sql = format!("SELECT o.owner, {sums} FROM total t JOIN scope o ON o.id = t.scope GROUP BY o.owner");
            let mut query = db.prepare(&sql)?;
            let counts = query.query_map([], |row| Ok((Arc::from(row.get_ref(0)?.as_str()?), count(row, 1)?)))?;
            owners = counts.collect::<rusqlite::Result<_>>()?;
        }
        Ok(Self { total, owners, limits })
    }

    /// Number of tasks.
    pub(super) fn tasks(&self) -> usize {
        self.total.tasks
    }

    /// Checks whether another task of this owner is admitted, after an eviction if necessary.
    pub(super) fn check(&self, owner: &str) -> Result<(), Full> {
        let Limits { total, per_owner } = self.limits;
        let count = self.owners.get(owner).copied().unwrap_or_default();
        if let Some(max) = per_owner.filter(|max| count.tasks >= *max && count.terminal == 0) {
            return Err(Full::per_owner(max));
        }
        if self.total.tasks >= total && self.total.terminal == 0 { Err(Full::tasks(total)) } else { Ok(()) }
    }
}

impl PendingQuota {
    pub(super) fn new(committed: &Arc<Mutex<Quota>>) -> Self {
        let Quota { total, limits, .. } = *committed.lock();
        Self { committed: Arc::clone(committed), total, owners: HashMap::new(), limits }
    }

    /// Returns the limit over all owners if it is reached.
    pub(super) fn is_full(&self) -> Option<Full> {
        (self.total.tasks >= self.limits.total).then(|| Full::tasks(self.limits.total))
    }

    /// Returns whether `n` more tasks of this owner are within the limits without an eviction.
    pub(super) fn admits(&mut self, owner: &Arc<str>, n: usize) -> bool {
        let Limits { total, per_owner } = self.limits;
        let fits = |tasks: usize, max: usize| max.checked_sub(tasks).is_some_and(|free| free >= n);
        fits(self.total.tasks, total) && per_owner.is_none_or(|max| fits(self.owner(owner).tasks, max))
    }

    /// Returns the limit per owner if this owner has reached it.
    pub(super) fn is_full_for(&mut self, owner: &Arc<str>) -> Option<Full> {
        let max = self.limits.per_owner?;
        (self.owner(owner).tasks >= max).then(|| Full::per_owner(max))
    }

    fn owner(&mut self, owner: &Arc<str>) -> &mut Count {
        let committed = &self.committed;
        let load = || committed.lock().owners.get(owner).copied().unwrap_or_default();
        self.owners.entry(Arc::clone(owner)).or_insert_with(load)
    }

    /// Counts a change of a task of this owner. The values say whether its state was and is terminal; `None` if it did not
    /// or does not exist.
    pub(super) fn count(&mut self, owner: &Arc<str>, was_terminal: Option<bool>, is_terminal: Option<bool>) {
        let update = |count: &mut Count| {
            count.tasks = count.tasks + usize::from(is_terminal.is_some()) - usize::from(was_terminal.is_some());
            count.terminal =
                count.terminal + usize::from(is_terminal == Some(true)) - usize::from(was_terminal == Some(true));
        };
        update(&mut self.total);
        if self.limits.per_owner.is_some() {
            update(self.owner(owner));
        }
    }

    /// Makes the counts visible, after the commit.
    pub(super) fn publish(self) {
        let mut committed = self.committed.lock();
        committed.total = self.total;
        for (owner, count) in self.owners {
            if count == Count::default() {
                committed.owners.remove(&owner);
            } else {
                committed.owners.insert(owner, count);
            }
        }
    }
}
