//! Concurrency limits: permits of running turns, open streams and reads from the store. A turn without a permit waits in a queue.

use std::{
    collections::{VecDeque, hash_map::Entry},
    future::pending,
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

use super::limits::{Limits, RETRY_AFTER, limit_error};
use crate::protocol::{
    call::{OwnerCounts, OwnerPermit, Reached},
    error::Error,
    response_budget::Reservation,
};

/// Permits of running turns, open streams and reads from the store.
pub(super) struct Permits {
    turns: Arc<TurnQueue>,
    streams: Arc<OwnerCounts>,
    reads: Semaphore,
    page_bytes: usize,
}

/// Maximum number of tasks and pages that are read from the store at once. Each may have some MB, and more reads at once
/// would only wait for a processor.
const READS: usize = 4;

/// Memory reserved for a read, in pages of the maximum size: stored, decoded, and encoded form.
const PAGES_PER_READ: usize = 3;

/// Memory of a response, in multiples of its known size: stored, decoded, and encoded form.
const COPIES: usize = 3;

impl Permits {
    pub(super) fn new(limits: &Limits) -> Self {
        let turns = Arc::new(TurnQueue { limits: limits.clone(), state: Mutex::default() });
        let streams = OwnerCounts::new(limits.streams, limits.streams_per_owner);
        Self { turns, streams, reads: Semaphore::new(READS), page_bytes: limits.page_bytes }
    }

    /// Returns the numbers of running and of queued turns.
    pub(super) fn turns(&self) -> (usize, usize) {
        let state = self.turns.state.lock();
        (state.running, state.queue.len())
    }

    /// Returns the number of open streams, and its maximum.
    pub(super) fn streams(&self) -> (usize, usize) {
        self.streams.in_use()
    }

    /// Acquires the permit of a new turn, or a place in the queue.
    ///
    /// # Errors
    /// `ResourceExhausted` if neither is left.
    pub(super) fn turn(&self, owner: &Arc<str>) -> Result<TurnSlot, Error> {
        let Limits { turns, turns_per_owner, queued_turns, queued_turns_per_owner, .. } = self.turns.limits;
        let mut state = self.turns.state.lock();
        let own = state.owners.get(owner).copied().unwrap_or_default();
        if state.running < turns && own.running < turns_per_owner {
            return Ok(TurnSlot::Running(self.turns.run(&mut state, owner)));
        }
        let (name, running) = if state.running < turns {
            ("turns_per_owner", format!("{} of your turns are running", own.running))
        } else {
            ("turns", format!("{} turns are running", state.running))
        };
        // A queue without running turns would never end.
        let (name, why) = if [turns, turns_per_owner, queued_turns, queued_turns_per_owner].contains(&0) {
            (name, running)
        } else if state.queue.len() >= queued_turns {
            ("queued_turns", format!("{running} and {} wait", state.queue.len()))
        } else if own.queued >= queued_turns_per_owner {
            ("queued_turns_per_owner", format!("{running} and {} of yours wait", own.queued))
        } else {
            return Ok(TurnSlot::Queued(self.turns.enqueue(&mut state, owner, false)));
        };
        drop(state);
        let key = if name == "queued_turns_per_owner" { "queued_turns" } else { name };
        Err(limit_error(name, format!("{why}; retry later (limits.{key})")).retry_after(RETRY_AFTER))
    }

    /// Acquires the permit of a recovered turn, or a place in the queue. An earlier process has admitted it: it counts against
    /// the limit of its owner, but does not wait for that.
    pub(super) fn recovered_turn(&self, owner: &Arc<str>) -> TurnSlot {
        let mut state = self.turns.state.lock();
        if state.running < self.turns.limits.turns {
            return TurnSlot::Running(self.turns.run(&mut state, owner));
        }
        TurnSlot::Queued(self.turns.enqueue(&mut state, owner, true))
    }

    /// Waits for the permit of a read from the store, and then reserves memory.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::protocol::error::ErrorKind::Unavailable) if too much memory is in use.
    pub(super) async fn read(&self, memory: Option<&Reservation>) -> Result<Option<SemaphorePermit<'_>>, Error> {
        // The semaphore is never closed.
        let permit = self.reads.acquire().await.ok();
        if let Some(memory) = memory {
            memory.reserve_for_read(self.page_bytes.saturating_mul(PAGES_PER_READ))?;
        }
        Ok(permit)
    }

    /// Acquires the permit of a new stream.
    ///
    /// # Errors
    /// `ResourceExhausted` if none is left.
    pub(super) fn stream(&self, owner: &Arc<str>) -> Result<OwnerPermit, Error> {
        self.streams.acquire(owner).map_err(|reached| {
            let (name, why) = match reached {
                Reached::Total(max) => ("streams", format!("{max} streams are open")),
                Reached::Owner(max) => ("streams_per_owner", format!("{max} of your streams are open")),
            };
            limit_error(name, format!("{why}; close some or retry later (limits.streams)")).retry_after(RETRY_AFTER)
        })
    }
}

/// Shrinks the reservation of a read to that of a response with this many bytes.
///
/// # Errors
/// [`ErrorKind::Unavailable`](crate::protocol::error::ErrorKind::Unavailable) if they exceed the budget.
pub(super) fn resize_reservation(memory: Option<&Reservation>, bytes: usize) -> Result<(), Error> {
    memory.map_or(Ok(()), |memory| memory.resize(bytes.saturating_mul(COPIES)))
}

/// Numbers of running turns, and the turns that wait for one of them to end, the oldest first.
///
/// While a permit is left, no turn waits that may have it: the first one whose owner is below its own limit gets it.
struct TurnQueue {
    limits: Limits,
    state: Mutex<TurnQueueState>,
}

#[derive(Default)]
struct TurnQueueState {
    running: usize,
    /// Owners with running or queued turns.
    owners: foldhash::HashMap<Arc<str>, OwnerTurns>,
    queue: VecDeque<QueuedOwner>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OwnerTurns {
    running: usize,
    queued: usize,
}

/// Entry of a turn in the queue.
struct QueuedOwner {
    owner: Arc<str>,
    /// An earlier process has admitted the turn.
    is_recovered: bool,
    permit: oneshot::Sender<TurnPermit>,
}

/// Permit of a running turn. It counts against all turns and against those of its owner until it is dropped.
pub(super) struct TurnPermit {
    owner: Arc<str>,
    turns: Arc<TurnQueue>,
}

/// Place of a turn: it may run, or waits in the queue.
pub(super) enum TurnSlot {
    Running(TurnPermit),
    Queued(QueuedTurn),
}

/// Place of a turn in the queue, until it is dropped.
pub(super) struct QueuedTurn {
    permit: oneshot::Receiver<TurnPermit>,
    turns: Arc<TurnQueue>,
}

impl TurnSlot {
    /// Returns true if the turn waits in the queue.
    pub(super) fn is_queued(&self) -> bool {
        matches!(self, Self::Queued(_))
    }
}

impl QueuedTurn {
    /// Waits for the permit.
    pub(super) async fn permit(&mut self) -> TurnPermit {
        match (&mut self.permit).await {
            Ok(permit) => permit,
            // Only the drop of this place removes its entry without a permit.
            Err(_) => pending().await,
        }
    }
}

impl Drop for QueuedTurn {
    fn drop(&mut self) {
        // A permit that was sent and not taken is released with the receiver.
        self.permit.close();
        drop(self.permit.try_recv());
        let mut state = self.turns.state.lock();
        let state = &mut *state;
        state.queue.retain(|entry| {
            let is_closed = entry.permit.is_closed();
            if is_closed {
                change(&mut state.owners, &entry.owner, |turns| turns.queued = turns.queued.saturating_sub(1));
            }
            !is_closed
        });
    }
}

impl Drop for TurnPermit {
    fn drop(&mut self) {
        let mut state = self.turns.state.lock();
        state.running = state.running.saturating_sub(1);
        change(&mut state.owners, &self.owner, |turns| turns.running = turns.running.saturating_sub(1));
        let next = self.turns.next(&mut state);
        drop(state);
        if let Some((permit, entry)) = next {
            // If the turn has left the queue in the meantime, this drops its permit, which goes to the next one.
            drop(entry.send(permit));
        }
    }
}

/// Changes the numbers of an owner. Without turns, it has no entry.
fn change(
    owners: &mut foldhash::HashMap<Arc<str>, OwnerTurns>,
    owner: &Arc<str>,
    change: impl FnOnce(&mut OwnerTurns),
) {
    let mut turns = match owners.entry(Arc::clone(owner)) {
        Entry::Occupied(turns) => turns,
        Entry::Vacant(none) => none.insert_entry(OwnerTurns::default()),
    };
    change(turns.get_mut());
    if *turns.get() == OwnerTurns::default() {
        turns.remove();
    }
}

impl TurnQueue {
    fn run(self: &Arc<Self>, state: &mut TurnQueueState, owner: &Arc<str>) -> TurnPermit {
        state.running = state.running.saturating_add(1);
        change(&mut state.owners, owner, |turns| turns.running = turns.running.saturating_add(1));
        TurnPermit { owner: Arc::clone(owner), turns: Arc::clone(self) }
    }

    fn enqueue(self: &Arc<Self>, state: &mut TurnQueueState, owner: &Arc<str>, is_recovered: bool) -> QueuedTurn {
        let (sender, permit) = oneshot::channel();
        state.queue.push_back(QueuedOwner { owner: Arc::clone(owner), is_recovered, permit: sender });
        change(&mut state.owners, owner, |turns| turns.queued = turns.queued.saturating_add(1));
        QueuedTurn { permit, turns: Arc::clone(self) }
    }

    /// Takes the next turn that may run from the queue, with its permit.
    fn next(self: &Arc<Self>, state: &mut TurnQueueState) -> Option<(TurnPermit, oneshot::Sender<TurnPermit>)> {
        if state.running >= self.limits.turns {
            return None;
        }
        let may_run = |entry: &QueuedOwner| {
            let running = state.owners.get(&entry.owner).map_or(0, |turns| turns.running);
            entry.is_recovered || running < self.limits.turns_per_owner
        };
        let at = state.queue.iter().position(may_run)?;
        let QueuedOwner { owner, permit, .. } = state.queue.remove(at)?;
        change(&mut state.owners, &owner, |turns| turns.queued = turns.queued.saturating_sub(1));
        Some((self.run(state, &owner), permit))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn permits(set: impl FnOnce(&mut Limits)) -> Permits {
        let mut limits = Limits::default();
        set(&mut limits);
        Permits::new(&limits)
    }

    fn running(slot: TurnSlot) -> TurnPermit {
        match slot {
            TurnSlot::Running(permit) => permit,
            TurnSlot::Queued(_) => panic!("the turn waits"),
        }
    }

    fn queued(slot: TurnSlot) -> QueuedTurn {
        match slot {
            TurnSlot::Queued(turn) => turn,
            TurnSlot::Running(_) => panic!("the turn runs"),
        }
    }

    fn polled(turn: &mut QueuedTurn) -> Option<TurnPermit> {
        turn.permit().now_or_never()
    }

    #[test]
    fn queued_turns_run_in_order_and_pass_those_of_a_full_owner() {
        let permits = permits(|limits| (limits.turns, limits.turns_per_owner) = (3, 2));
        let (ada, bob): (Arc<str>, Arc<str>) = ("ada".into(), "bob".into());
        let first = running(permits.turn(&ada).unwrap());
        let second = running(permits.turn(&ada).unwrap());
        let mut third = queued(permits.turn(&ada).unwrap());
        let bobs = running(permits.turn(&bob).unwrap());
        let mut waiting = queued(permits.turn(&bob).unwrap());
        assert_eq!(permits.turns(), (3, 2));

        drop(bobs);
        let bobs = polled(&mut waiting).expect("ada has two turns");
        assert!(polled(&mut third).is_none());
        drop(first);
        let thirds = polled(&mut third).unwrap();
        assert_eq!(permits.turns(), (3, 0));
        drop((second, thirds, bobs, third, waiting));
        assert_eq!(permits.turns(), (0, 0));
        assert!(permits.turns.state.lock().owners.is_empty());
    }

    #[test]
    fn turn_that_leaves_the_queue_frees_its_place_and_its_permit() {
        let permits = permits(|limits| (limits.turns, limits.queued_turns) = (1, 2));
        let owner: Arc<str> = "ada".into();
        let first = running(permits.turn(&owner).unwrap());
        let (left, mut stays) = (queued(permits.turn(&owner).unwrap()), queued(permits.turn(&owner).unwrap()));
        assert_eq!(permits.turn(&owner).err().unwrap().metadata("limit"), Some("queued_turns"));
        drop(left);
        let granted = queued(permits.turn(&owner).unwrap());
        drop(first);
        let second = polled(&mut stays).unwrap();
        drop(second);
        // Granted, and dropped before it was polled.
        drop(granted);
        drop(running(permits.turn(&owner).unwrap()));
        drop(stays);
        assert_eq!(permits.turns(), (0, 0));
    }

    #[test]
    fn queue_is_bounded_in_total_and_by_owner() {
        let permits = permits(|limits| {
            (limits.turns, limits.queued_turns, limits.queued_turns_per_owner) = (1, 3, 2);
        });
        let owners: [Arc<str>; 2] = ["ada".into(), "bob".into()];
        let _first = running(permits.turn(&owners[0]).unwrap());
        let mut waiting = vec![permits.turn(&owners[0]).unwrap(), permits.turn(&owners[0]).unwrap()];
        assert_eq!(permits.turn(&owners[0]).err().unwrap().metadata("limit"), Some("queued_turns_per_owner"));
        waiting.push(permits.turn(&owners[1]).unwrap());
        let error = permits.turn(&owners[1]).err().unwrap();
        assert_eq!(error.metadata("limit"), Some("queued_turns"));
        assert!(error.retry_after_seconds().is_some());
        assert!(permits.recovered_turn(&owners[1]).is_queued(), "recovered turns have been admitted");
    }

    #[test]
    fn without_a_queue_the_error_names_the_limit_of_running_turns() {
        let permits = permits(|limits| (limits.turns, limits.turns_per_owner, limits.queued_turns) = (2, 1, 0));
        let owners: [Arc<str>; 3] = ["ada".into(), "bob".into(), "eve".into()];
        let _running = [permits.turn(&owners[0]).unwrap(), permits.turn(&owners[1]).unwrap()];
        assert_eq!(permits.turn(&owners[2]).err().unwrap().metadata("limit"), Some("turns"));
        let permits = permits_of_one();
        let _running = permits.turn(&owners[0]).unwrap();
        assert_eq!(permits.turn(&owners[0]).err().unwrap().metadata("limit"), Some("turns_per_owner"));
    }

    fn permits_of_one() -> Permits {
        permits(|limits| (limits.turns_per_owner, limits.queued_turns) = (1, 0))
    }

    #[test]
    fn streams_of_an_owner_leave_streams_to_others() {
        let permits = permits(|limits| (limits.streams, limits.streams_per_owner) = (2, 1));
        let owners: [Arc<str>; 3] = ["ada".into(), "bob".into(), "eve".into()];
        let _open = permits.stream(&owners[0]).unwrap();
        assert_eq!(permits.stream(&owners[0]).unwrap_err().metadata("limit"), Some("streams_per_owner"));
        let _other = permits.stream(&owners[1]).unwrap();
        assert_eq!(permits.stream(&owners[2]).unwrap_err().metadata("limit"), Some("streams"));
    }
}
