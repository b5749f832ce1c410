//! Memory budget of live tasks: what the events of all tasks in memory have, of all agents that share the budget.
//!
//! A task of up to [`UNCOUNTED`] bytes does not count: the numbers of turns and streams bound them. An update that makes a
//! task larger waits until there is room, and messages are rejected. An owner has a share, so that the rest is left to
//! others. The tasks of an owner fill half of its share together. The other half is for one of them at a time, so that it can
//! reach its end and release its memory, instead of all tasks waiting for each other. If that does not help, because tasks
//! wait for their clients, the turns that wait fail after a time. They also fail if too many bytes wait.

use std::{collections::hash_map::Entry, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{Notify, futures::OwnedNotified};

/// Bytes of a task that do not count. Larger tasks count in multiples of it, so that few events change the budget.
const UNCOUNTED: usize = 16 << 10;

/// Default size of the budget, in bytes.
const DEFAULT: usize = 192 << 20;

/// Memory budget of live tasks. Clones share it.
#[derive(Clone)]
pub struct LiveMemory(Arc<Budget>);

struct Budget {
    max: usize,
    used: Mutex<Used>,
    /// Wakes agents that wait for memory.
    released: Arc<Notify>,
}

#[derive(Default)]
struct Used {
    bytes: usize,
    /// Owners whose tasks have counted bytes.
    owners: foldhash::HashMap<Arc<str>, OwnerUse>,
}

#[derive(Clone, Copy, Default)]
struct OwnerUse {
    bytes: usize,
    /// Bytes of updates that wait.
    waiting: usize,
    /// A task [leads](Charge::leads).
    is_led: bool,
}

impl LiveMemory {
    /// Creates a budget of `max` bytes. One owner can have three quarters of it.
    pub fn new(max: usize) -> Self {
        Self(Arc::new(Budget { max, used: Mutex::default(), released: Arc::default() }))
    }

    /// Maximum number of bytes of one owner.
    pub(crate) fn max_per_owner(&self) -> usize {
        self.0.max - self.0.max / 4
    }

    /// Returns whether another task of an owner may have so many bytes.
    pub(crate) fn has_room(&self, owner: &str, bytes: usize) -> bool {
        let (used, more) = (self.0.used.lock(), counted(bytes));
        let own = used.owners.get(owner).copied().unwrap_or_default();
        more == 0 || self.fits(used.bytes, own.bytes, more, false)
    }

    /// Returns whether `more` bytes of an owner fit. With `leads`, they may have the half of the share that is for one task.
    fn fits(&self, total: usize, own: usize, more: usize, leads: bool) -> bool {
        let share = if leads { self.max_per_owner() } else { self.max_per_owner() / 2 };
        total.saturating_add(more) <= self.0.max && own.saturating_add(more) <= share
    }
}

impl Default for LiveMemory {
    fn default() -> Self {
        Self::new(DEFAULT)
    }
}

debug_fields!(LiveMemory { max: 0.max });

/// Memory of a live task, until it is dropped. By default it is not counted.
#[derive(Default)]
pub(super) struct Charge {
    budget: Option<(LiveMemory, Arc<str>)>,
    bytes: usize,
    /// The task has the half of its owner's share that is for one task at a time.
    leads: bool,
    /// Set while an update of the task waits for memory.
    pub(super) is_waiting: bool,
}

impl Charge {
    pub(super) fn new(memory: &LiveMemory, owner: &Arc<str>) -> Self {
        Self { budget: Some((memory.clone(), Arc::clone(owner))), ..Self::default() }
    }

    /// Counts a task of so many bytes, unless they do not fit. With `may_lead`, it may become the one that may use all of the
    /// share of its owner. Fails with a future of the next release.
    pub(super) fn try_grow(&mut self, bytes: usize, may_lead: bool) -> Result<(), OwnedNotified> {
        let Some((memory, owner)) = &self.budget else { return Ok(()) };
        let Some(more) = counted(bytes).checked_sub(self.bytes).filter(|more| *more > 0) else { return Ok(()) };
        // Before the check, so that no release is missed.
        let released = Arc::clone(&memory.0.released).notified_owned();
        let mut used = memory.0.used.lock();
        let own = used.owners.get(owner).copied().unwrap_or_default();
        if !memory.fits(used.bytes, own.bytes, more, false) {
            let can_lead = self.leads || may_lead && !own.is_led;
            if !can_lead || !memory.fits(used.bytes, own.bytes, more, true) {
                return Err(released);
            }
            self.leads = true;
        }
        used.add(owner, more, self.leads);
        self.bytes += more;
        Ok(())
    }

    /// Counts a task of so many bytes, which may exceed the budget.
    pub(super) fn grow(&mut self, bytes: usize) {
        let Some((memory, owner)) = &self.budget else { return };
        if let Some(more) = counted(bytes).checked_sub(self.bytes).filter(|more| *more > 0) {
            memory.0.used.lock().add(owner, more, self.leads);
            self.bytes += more;
        }
    }

    /// Counts an update of so many bytes that waits for memory. `None` if too many bytes of the owner wait: half of its share.
    pub(super) fn wait(&self, bytes: usize) -> Option<Waiting> {
        let (memory, owner) = self.budget.as_ref()?;
        let mut used = memory.0.used.lock();
        let waiting = used.owners.get(owner).map_or(0, |own| own.waiting).saturating_add(bytes);
        if waiting > memory.max_per_owner() / 2 {
            return None;
        }
        used.change(owner, |own| own.waiting = waiting);
        Some(Waiting { memory: memory.clone(), owner: Arc::clone(owner), bytes })
    }

    /// Leaves the half of the share that is for one task to another one.
    pub(super) fn stop_leading(&mut self) {
        if self.leads {
            self.release(0);
        }
    }

    fn release(&mut self, bytes: usize) {
        let Some((memory, owner)) = &self.budget else { return };
        let mut used = memory.0.used.lock();
        used.bytes = used.bytes.saturating_sub(bytes);
        used.change(owner, |own| {
            own.bytes = own.bytes.saturating_sub(bytes);
            own.is_led &= !self.leads;
        });
        drop(used);
        (self.bytes, self.leads) = (self.bytes.saturating_sub(bytes), false);
        memory.0.released.notify_waiters();
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.release(self.bytes);
        }
    }
}

/// Update that waits for memory, until it is dropped.
pub(super) struct Waiting {
    memory: LiveMemory,
    owner: Arc<str>,
    bytes: usize,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.memory.0.used.lock().change(&self.owner, |own| own.waiting = own.waiting.saturating_sub(self.bytes));
    }
}

impl Used {
    fn add(&mut self, owner: &Arc<str>, bytes: usize, leads: bool) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.change(owner, |own| {
            (own.bytes, own.is_led) = (own.bytes.saturating_add(bytes), own.is_led || leads);
        });
    }

    /// Changes the numbers of an owner. Without any bytes, it has no entry.
    fn change(&mut self, owner: &Arc<str>, change: impl FnOnce(&mut OwnerUse)) {
        let mut own = match self.owners.entry(Arc::clone(owner)) {
            Entry::Occupied(own) => own,
            Entry::Vacant(none) => none.insert_entry(OwnerUse::default()),
        };
        change(own.get_mut());
        if own.get().bytes == 0 && own.get().waiting == 0 {
            own.remove();
        }
    }
}

/// Returns the bytes that count of a task with so many.
fn counted(bytes: usize) -> usize {
    if bytes <= UNCOUNTED { 0 } else { bytes.checked_next_multiple_of(UNCOUNTED).unwrap_or(usize::MAX) }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt as _;

    use super::*;

    /// Budget of 8 units, 6 of them for one owner: 3 for all of its tasks, and all for one of them.
    fn budget() -> LiveMemory {
        LiveMemory::new(8 * UNCOUNTED)
    }

    fn charge(memory: &LiveMemory, owner: &str) -> Charge {
        Charge::new(memory, &owner.into())
    }

    fn grow(charge: &mut Charge, units: usize) -> bool {
        charge.try_grow(units * UNCOUNTED, true).is_ok()
    }

    #[test]
    fn one_task_of_an_owner_may_have_all_of_its_share() {
        let memory = budget();
        let [mut first, mut second, mut third] = [(); 3].map(|()| charge(&memory, "ada"));
        assert!(grow(&mut first, 2) && !grow(&mut second, 7));
        assert!(first.try_grow(4 * UNCOUNTED, false).is_err());
        assert!(grow(&mut second, 2), "it leads");
        assert!(!grow(&mut first, 3) && !grow(&mut third, 2) && grow(&mut third, 1), "a small task does not count");
        assert!(grow(&mut second, 4) && !grow(&mut second, 5));
        let mut released = pin!(first.try_grow(4 * UNCOUNTED, true).unwrap_err());
        assert!(released.as_mut().now_or_never().is_none());
        drop(second);
        assert!(released.now_or_never().is_some());
        assert!(grow(&mut first, 6));
        first.stop_leading();
        assert!(!memory.has_room("ada", 2 * UNCOUNTED) && memory.has_room("ada", UNCOUNTED));
        drop((first, third));
        let used = memory.0.used.lock();
        assert_eq!((used.bytes, used.owners.len()), (0, 0));
    }

    #[test]
    fn updates_that_wait_are_bounded() {
        let memory = budget();
        let task = charge(&memory, "ada");
        let waiting = task.wait(2 * UNCOUNTED).unwrap();
        assert!(task.wait(2 * UNCOUNTED).is_none() && charge(&memory, "bob").wait(3 * UNCOUNTED).is_some());
        let other = task.wait(UNCOUNTED).unwrap();
        drop(waiting);
        assert!(task.wait(2 * UNCOUNTED).is_some());
        drop(other);
        assert_eq!(memory.0.used.lock().owners.len(), 0);
    }

    #[test]
    fn owner_leaves_memory_to_others() {
        let memory = budget();
        let [mut large, mut other] = ["ada", "bob"].map(|owner| charge(&memory, owner));
        assert!(grow(&mut large, 6) && !grow(&mut large, 7));
        assert!(memory.has_room("bob", 2 * UNCOUNTED) && !memory.has_room("bob", 3 * UNCOUNTED));
        assert!(grow(&mut other, 2) && !grow(&mut other, 3));
        // Events that are not from the agent, and those that end its turn.
        other.grow(4 * UNCOUNTED);
        assert_eq!(memory.0.used.lock().bytes, 10 * UNCOUNTED);
    }
}
