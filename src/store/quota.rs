//! Task quotas: numbers of stored tasks, in all and per owner, and the limits at which a new task evicts another one.

use std::{collections::HashMap, sync::Arc};

use super::Full;

/// Default of the maximum number of push configurations of one owner.
pub(super) const DEFAULT_MAX_PUSH_CONFIGS_PER_OWNER: usize = 10_000;

/// Numbers of tasks, and of those in a terminal state, which can be evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) tasks: usize,
    pub(super) terminal: usize,
}

/// Task counts with their limits.
#[derive(Debug, Default)]
pub(super) struct Quota {
    pub(super) max_tasks: usize,
    pub(super) max_tasks_per_owner: Option<usize>,
    pub(super) max_push_configs_per_owner: usize,
    /// Numbers of all tasks.
    pub(super) total: Count,
    /// Counts per owner, only if there is a limit per owner.
    pub(super) owners: HashMap<Arc<str>, Count>,
}

impl Quota {
    fn owner(&self, owner: &str) -> Count {
        self.owners.get(owner).copied().unwrap_or_default()
    }

    /// Returns the limit over all owners, or that of an owner, if it is reached.
    pub(super) fn full(&self, owner: Option<&str>) -> Option<Full> {
        match owner {
            None => (self.total.tasks >= self.max_tasks).then(|| Full::tasks(self.max_tasks)),
            Some(owner) => {
                let max = self.max_tasks_per_owner?;
                (self.owner(owner).tasks >= max).then(|| Full::per_owner(max))
            }
        }
    }

    /// Checks whether another task of this owner is admitted, after an eviction if necessary.
    pub(super) fn check(&self, owner: &str) -> Result<(), Full> {
        let owner_limit = self.full(Some(owner)).filter(|_| self.owner(owner).terminal == 0);
        owner_limit.or(self.full(None).filter(|_| self.total.terminal == 0)).map_or(Ok(()), Err)
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
        if self.max_tasks_per_owner.is_some() {
            let count = self.owners.entry(Arc::clone(owner)).or_default();
            update(count);
            if *count == Count::default() {
                self.owners.remove(owner);
            }
        }
    }
}
