//! Numbers of what is in progress, in total and by owner, such as calls and streams.

use std::{collections::hash_map::Entry, sync::Arc};

use parking_lot::Mutex;

/// Number of permits in use, in total and by owner, with a maximum for each.
#[derive(Debug)]
pub(crate) struct OwnerCounts {
    max: usize,
    max_per_owner: usize,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    total: usize,
    /// Permits of owners that have any.
    owners: foldhash::HashMap<Arc<str>, usize>,
}

/// Maximum that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    /// Maximum of all owners.
    Total(usize),
    /// Maximum of one owner.
    Owner(usize),
}

impl OwnerCounts {
    /// Creates the counts with these maxima.
    pub(crate) fn new(max: usize, max_per_owner: usize) -> Arc<Self> {
        Arc::new(Self { max, max_per_owner, used: Mutex::default() })
    }

    /// Returns the number of permits in use, and its maximum.
    pub(crate) fn in_use(&self) -> (usize, usize) {
        (self.used.lock().total, self.max)
    }

    /// Acquires a permit, which counts until it is dropped.
    ///
    /// # Errors
    /// The maximum that is reached.
    pub(crate) fn acquire(self: &Arc<Self>, owner: &Arc<str>) -> Result<OwnerPermit, Reached> {
        let mut used = self.used.lock();
        if used.total >= self.max {
            return Err(Reached::Total(self.max));
        }
        let entry = used.owners.entry(Arc::clone(owner));
        let count = if let Entry::Occupied(count) = &entry { *count.get() } else { 0 };
        if count >= self.max_per_owner {
            return Err(Reached::Owner(self.max_per_owner));
        }
        *entry.or_default() += 1;
        used.total += 1;
        Ok(OwnerPermit { owner: Arc::clone(owner), counts: Arc::clone(self) })
    }
}

/// Permit that counts until it is dropped.
#[derive(Debug)]
pub(crate) struct OwnerPermit {
    owner: Arc<str>,
    counts: Arc<OwnerCounts>,
}

impl Drop for OwnerPermit {
    fn drop(&mut self) {
        let mut used = self.counts.used.lock();
        used.total = used.total.saturating_sub(1);
        if let Entry::Occupied(mut count) = used.owners.entry(Arc::clone(&self.owner)) {
            *count.get_mut() = count.get().saturating_sub(1);
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_count_for_their_owner_and_in_total_until_they_are_dropped() {
        let counts = OwnerCounts::new(3, 2);
        let (ada, bob): (Arc<str>, Arc<str>) = ("ada".into(), "bob".into());
        let held = [counts.acquire(&ada).unwrap(), counts.acquire(&ada).unwrap()];
        assert_eq!(counts.acquire(&ada).unwrap_err(), Reached::Owner(2));
        let other = counts.acquire(&bob).unwrap();
        assert_eq!(counts.acquire(&bob).unwrap_err(), Reached::Total(3));
        drop(held);
        let held = counts.acquire(&bob).unwrap();
        drop((held, other));
        assert!(counts.used.lock().owners.is_empty());
        assert_eq!(OwnerCounts::new(3, 0).acquire(&ada).unwrap_err(), Reached::Owner(0));
    }
}
