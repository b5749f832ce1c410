//! Memory budget of live tasks: the bytes of the events of all tasks in memory, over all agents that share the budget.
//!
//! A task of up to [`UNCOUNTED`] bytes does not count: the numbers of turns and streams bound them. An owner has a share of
//! the budget, and the rest is left to others. Updates of agents wait until they fit, messages and loads are rejected:
//! - Shared half: the counted tasks of an owner use half of its share together.
//! - Exclusive half: one task at a time uses the other half too, so that it can end and release its memory, instead of all
//!   tasks waiting for each other. The only counted task of an owner may use all of the share in any case.
//! - Failure: the turn of an update that waits fails if no memory that it can use is released for 30 s, because tasks wait for
//!   their clients, for example. It fails at once if too many bytes of its owner wait.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, futures::OwnedNotified},
    time::Instant,
};

use super::failure::LIVE_BYTES;
use crate::base::metric::LimitUse;

/// Bytes of a task that do not count. Larger tasks count in multiples of it, so that few events change the budget.
const UNCOUNTED: usize = 16 << 10;

/// Default size of the budget, in bytes.
const DEFAULT: usize = 192 << 20;

/// Maximum time that an update waits while no memory that it can use is released.
const MEMORY_WAIT: Duration = Duration::from_secs(30);

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
    /// Number of releases of memory.
    releases: u64,
    /// Owners whose tasks have counted bytes, or updates that wait.
    owners: foldhash::HashMap<Arc<str>, OwnerUse>,
}

#[derive(Clone, Copy, Default)]
struct OwnerUse {
    bytes: usize,
    /// Bytes of updates that wait.
    waiting: usize,
    /// A task [has the exclusive half](Charge::has_exclusive_half).
    exclusive_half_in_use: bool,
    /// [Number](Used::releases) of the last release by a task of the owner.
    last_release: u64,
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

    /// Returns the use of the budget.
    pub(crate) fn in_use(&self) -> LimitUse {
        LimitUse::new(LIVE_BYTES, self.0.used.lock().bytes, self.0.max)
    }

    /// Returns whether another task of an owner may have so many bytes.
    pub(crate) fn has_room(&self, owner: &str, bytes: usize) -> bool {
        let (used, more) = (self.0.used.lock(), counted(bytes));
        let own = used.owners.get(owner).copied().unwrap_or_default();
        more == 0 || self.fits_in_share(own.bytes, more, own.bytes == 0) && self.fits_in_total(used.bytes, more)
    }

    fn fits_in_total(&self, total: usize, more: usize) -> bool {
        total.saturating_add(more) <= self.0.max
    }

    /// Returns whether `more` bytes of an owner fit in its share, or in the shared half of it.
    fn fits_in_share(&self, own: usize, more: usize, is_whole: bool) -> bool {
        own.saturating_add(more) <= if is_whole { self.max_per_owner() } else { self.max_per_owner() / 2 }
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
    has_exclusive_half: bool,
    /// Shared with the updates of the task that wait for memory. Created for the first one.
    waits: Option<Arc<()>>,
}

/// Refusal of memory.
pub(super) struct Refusal {
    /// Completes at the next release.
    pub(super) released: OwnedNotified,
    /// [Number](Used::releases) of the last release of memory that the task could use.
    last_release: u64,
}

impl Charge {
    pub(super) fn new(memory: &LiveMemory, owner: &Arc<str>) -> Self {
        let budget = Some((memory.clone(), Arc::clone(owner)));
        Self { budget, bytes: 0, has_exclusive_half: false, waits: None }
    }

    /// Counts a task of so many bytes, unless they do not fit.
    pub(super) fn try_grow(&mut self, bytes: usize, may_take_exclusive_half: bool) -> Result<(), Refusal> {
        let Some((memory, owner)) = &self.budget else { return Ok(()) };
        let Some(more) = counted(bytes).checked_sub(self.bytes).filter(|more| *more > 0) else { return Ok(()) };
        // Before the check, so that no release is missed.
        let released = Arc::clone(&memory.0.released).notified_owned();
        let mut used = memory.0.used.lock();
        let own = used.owners.get(owner).copied().unwrap_or_default();
        let exceeds_shared_half = !memory.fits_in_share(own.bytes, more, false);
        let can_exceed = self.has_exclusive_half || may_take_exclusive_half && !own.exclusive_half_in_use;
        let is_alone = own.bytes == self.bytes;
        let is_share_full =
            exceeds_shared_half && !((can_exceed || is_alone) && memory.fits_in_share(own.bytes, more, true));
        if is_share_full || !memory.fits_in_total(used.bytes, more) {
            let last_release = if is_share_full { own.last_release } else { used.releases };
            return Err(Refusal { released, last_release });
        }
        self.has_exclusive_half |= exceeds_shared_half && can_exceed;
        used.add(owner, more, self.has_exclusive_half);
        self.bytes += more;
        Ok(())
    }

    /// Counts a task of so many bytes, which may exceed the budget.
    pub(super) fn grow(&mut self, bytes: usize) {
        let Some((memory, owner)) = &self.budget else { return };
        if let Some(more) = counted(bytes).checked_sub(self.bytes).filter(|more| *more > 0) {
            memory.0.used.lock().add(owner, more, self.has_exclusive_half);
            self.bytes += more;
        }
    }

    /// Counts an update of so many bytes that waits for memory. `None` if too many bytes of the owner wait: half of its share.
    pub(super) fn wait(&mut self, bytes: usize) -> Option<Waiting> {
        let (memory, owner) = self.budget.as_ref()?;
        let mut used = memory.0.used.lock();
        let waiting = used.owners.get(owner).map_or(0, |own| own.waiting).saturating_add(bytes);
        if waiting > memory.max_per_owner() / 2 {
            return None;
        }
        used.change(owner, |own| own.waiting = waiting);
        let waits = Arc::clone(self.waits.get_or_insert_default());
        let (memory, owner, deadline) = (memory.clone(), Arc::clone(owner), Instant::now() + MEMORY_WAIT);
        drop(used);
        Some(Waiting { memory, owner, bytes, last_release: 0, deadline, _waits: waits })
    }

    /// Returns whether an update of the task waits for memory.
    pub(super) fn is_waiting(&self) -> bool {
        self.waits.as_ref().is_some_and(|waits| Arc::strong_count(waits) > 1)
    }

    /// Leaves the exclusive half to another task.
    pub(super) fn release_exclusive_half(&mut self) {
        if self.has_exclusive_half {
            self.release(0);
        }
    }

    fn release(&mut self, bytes: usize) {
        let Some((memory, owner)) = &self.budget else { return };
        let mut used = memory.0.used.lock();
        let release = used.releases + 1;
        (used.bytes, used.releases) = (used.bytes.saturating_sub(bytes), release);
        used.change(owner, |own| {
            (own.bytes, own.last_release) = (own.bytes.saturating_sub(bytes), release);
            own.exclusive_half_in_use &= !self.has_exclusive_half;
        });
        drop(used);
        (self.bytes, self.has_exclusive_half) = (self.bytes.saturating_sub(bytes), false);
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
    /// [Number](Used::releases) of the last release of memory that the update could use.
    last_release: u64,
    deadline: Instant,
    _waits: Arc<()>,
}

impl Waiting {
    /// Returns when the update fails: later than before if memory that it could use was released since the last refusal.
    pub(super) fn deadline(&mut self, refusal: &Refusal) -> Instant {
        if refusal.last_release > self.last_release {
            (self.last_release, self.deadline) = (refusal.last_release, Instant::now() + MEMORY_WAIT);
        }
        self.deadline
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.memory.0.used.lock().change(&self.owner, |own| own.waiting = own.waiting.saturating_sub(self.bytes));
    }
}

impl Used {
    fn add(&mut self, owner: &Arc<str>, bytes: usize, uses_exclusive_half: bool) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.change(owner, |own| {
            own.bytes = own.bytes.saturating_add(bytes);
            own.exclusive_half_in_use |= uses_exclusive_half;
        });
    }

    /// Changes the numbers of an owner. Without any bytes, it has no entry.
    fn change(&mut self, owner: &Arc<str>, change: impl FnOnce(&mut OwnerUse)) {
        let own = self.owners.entry(Arc::clone(owner)).or_default();
        change(own);
        if own.bytes == 0 && own.waiting == 0 {
            self.owners.remove(owner);
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
        assert!(grow(&mut second, 2), "it takes the exclusive half");
        assert!(first.try_grow(4 * UNCOUNTED, false).is_err());
        assert!(!grow(&mut first, 3) && !grow(&mut third, 2) && grow(&mut third, 1), "a small task does not count");
        assert!(grow(&mut second, 4) && !grow(&mut second, 5));
        let Err(Refusal { released, .. }) = first.try_grow(4 * UNCOUNTED, true) else { panic!("it fits") };
        let mut released = pin!(released);
        assert!(released.as_mut().now_or_never().is_none());
        drop(second);
        assert!(released.now_or_never().is_some());
        assert!(memory.has_room("bob", 6 * UNCOUNTED) && first.try_grow(6 * UNCOUNTED, false).is_ok());
        first.release_exclusive_half();
        assert!(!memory.has_room("ada", 2 * UNCOUNTED) && memory.has_room("ada", UNCOUNTED));
        drop((first, third));
        let used = memory.0.used.lock();
        assert_eq!((used.bytes, used.owners.len()), (0, 0));
    }

    #[test]
    fn updates_that_wait_are_bounded() {
        let memory = budget();
        let mut task = charge(&memory, "ada");
        let waiting = task.wait(2 * UNCOUNTED).unwrap();
        assert!(task.wait(2 * UNCOUNTED).is_none() && charge(&memory, "bob").wait(3 * UNCOUNTED).is_some());
        let other = task.wait(UNCOUNTED).unwrap();
        drop(waiting);
        assert!(task.wait(2 * UNCOUNTED).is_some());
        assert!(task.is_waiting());
        drop(other);
        assert!(!task.is_waiting());
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
