//! Waiters of a task: callers that wait for a commit or for the end of a turn, and wakers of readers and agents.

use std::{
    mem,
    sync::Arc,
    task::{Context, Waker},
};

use tokio::sync::oneshot;

use super::{LiveRef, live::LiveState};
use crate::{
    event::Seq,
    pb::v1::{Message, Task},
};

/// Condition for which a caller waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitCondition {
    /// The event with this number is durable: a task exists with its first event, and a message can't be lost once its
    /// own event is durable.
    Durable(Seq),
    /// Like `Durable`, but for a caller that continues the work: it is not failed while the store is unavailable.
    DurableForTurn(Seq),
    /// The turn with this number has ended or needs something from the client. Also the event number of the message that
    /// the turn answers; zero for a turn that waits for the end of the previous one.
    Turn(u32, Seq),
    /// The task has ended.
    TaskEnd,
}

impl WaitCondition {
    /// Returns the event whose outcome the caller waits for. `None` for a caller that waits for the end of the task.
    pub(super) fn event(&self) -> Option<Seq> {
        match self {
            Self::Durable(seq) | Self::DurableForTurn(seq) | Self::Turn(_, seq) => Some(*seq),
            Self::TaskEnd => None,
        }
    }
}

/// Result for which a caller waited.
#[derive(Clone, Debug)]
pub(crate) enum TurnReply {
    /// The task at that moment.
    Task(Arc<Task>),
    /// The agent replied with a message, and there is no task.
    Message(Box<Message>),
}

/// Wakers and replies to be sent once the lock of the task is released.
#[derive(Default)]
#[must_use]
pub(crate) struct Wakeups {
    pub(super) wakers: Vec<Waker>,
    pub(super) replies: Vec<(oneshot::Sender<TurnReply>, TurnReply)>,
}

impl Wakeups {
    /// Wakes and sends all. Returns the emptied list of wakers, so that its capacity is reused.
    pub(super) fn send(self) -> Vec<Waker> {
        let Self { mut wakers, replies } = self;
        for (sender, reply) in replies {
            // The receiver may have been dropped.
            drop(sender.send(reply));
        }
        wakers.drain(..).for_each(Waker::wake);
        wakers
    }
}

/// Wakers, with a slot per registration: a future that is polled twice is woken once.
#[derive(Default)]
pub(crate) struct Wakers {
    list: Vec<Waker>,
    /// Slots whose registrations were removed.
    free: Vec<usize>,
    /// Incremented when all wakers are taken, which invalidates older slots.
    round: u64,
}

/// Slot of a registered waker, valid until all wakers are taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WakerSlot {
    round: u64,
    at: usize,
}

impl Wakers {
    /// Registers the waker of `cx`, in the slot of an earlier registration if it is still valid.
    pub(crate) fn register(&mut self, slot: &mut Option<WakerSlot>, cx: &Context<'_>) {
        let known = slot.filter(|slot| slot.round == self.round).and_then(|slot| self.list.get_mut(slot.at));
        if let Some(waker) = known {
            waker.clone_from(cx.waker());
        } else {
            let at = self.free.pop().unwrap_or(self.list.len());
            *slot = Some(WakerSlot { round: self.round, at });
            match self.list.get_mut(at) {
                Some(free) => free.clone_from(cx.waker()),
                None => self.list.push(cx.waker().clone()),
            }
        }
    }

    /// Removes a registration, so that the list does not grow with registrations that are dropped before a wake-up. The
    /// caller drops the returned waker after releasing the lock.
    pub(super) fn remove(&mut self, slot: WakerSlot) -> Option<Waker> {
        if slot.round != self.round {
            return None;
        }
        if slot.at + 1 == self.list.len() {
            return self.list.pop();
        }
        let removed = mem::replace(self.list.get_mut(slot.at)?, Waker::noop().clone());
        self.free.push(slot.at);
        Some(removed)
    }

    /// Moves all wakers to `into`.
    pub(super) fn drain_into(&mut self, into: &mut Vec<Waker>) {
        self.round += 1;
        self.free.clear();
        if into.capacity() == 0 {
            mem::swap(&mut self.list, into);
        } else {
            into.append(&mut self.list);
        }
    }

    /// Reuses the capacity of an emptied list.
    pub(super) fn reuse(&mut self, list: Vec<Waker>) {
        if self.list.capacity() == 0 {
            self.list = list;
        }
    }
}

/// RAII registration of a waker with a task.
pub(crate) struct WakerRegistration<'a> {
    live: &'a LiveRef,
    list_of: fn(&mut LiveState) -> &mut Wakers,
    slot: Option<WakerSlot>,
}

impl<'a> WakerRegistration<'a> {
    pub(crate) fn new(live: &'a LiveRef, list_of: fn(&mut LiveState) -> &mut Wakers) -> Self {
        Self { live, list_of, slot: None }
    }

    /// Registers the waker of `cx`. `inner` must be that of the registration's task.
    pub(crate) fn register(&mut self, inner: &mut LiveState, cx: &Context<'_>) {
        (self.list_of)(inner).register(&mut self.slot, cx);
    }
}

impl Drop for WakerRegistration<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            let removed = (self.list_of)(&mut self.live.lock()).remove(slot);
            drop(removed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct Counts(AtomicUsize);

    impl std::task::Wake for Counts {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Polls a waiter this many times.
    fn wait(wakers: &mut Wakers, waiter: &Arc<Counts>, times: usize) -> Option<WakerSlot> {
        let (waker, mut slot) = (Waker::from(Arc::clone(waiter)), None);
        (0..times).for_each(|_| wakers.register(&mut slot, &Context::from_waker(&waker)));
        slot
    }

    fn wake(wakers: &mut Wakers) {
        let mut all = Vec::new();
        wakers.drain_into(&mut all);
        all.into_iter().for_each(Waker::wake);
    }

    #[test]
    fn waiters_polled_repeatedly_are_woken_once() {
        let (mut wakers, waiters) = (Wakers::default(), [(); 3].map(|()| Arc::new(Counts::default())));
        for waiter in &waiters {
            wait(&mut wakers, waiter, 5);
        }
        wake(&mut wakers);
        wake(&mut wakers);
        assert_eq!(waiters.map(|waiter| waiter.0.load(Ordering::SeqCst)), [1; 3]);
    }

    #[test]
    fn dropped_waiters_leave_neither_slots_nor_wakers() {
        let (mut wakers, remaining, dropped) =
            (Wakers::default(), Arc::new(Counts::default()), Arc::new(Counts::default()));
        let first = wait(&mut wakers, &dropped, 1);
        wait(&mut wakers, &remaining, 1);
        for n in 0..1000 {
            let mut slots = [(); 3].map(|()| wait(&mut wakers, &dropped, 1)).to_vec();
            for _ in 0..3 {
                drop(wakers.remove(slots.swap_remove(n % slots.len()).unwrap()));
            }
            assert!(wakers.list.len() <= 5, "{}", wakers.list.len());
        }
        drop(wakers.remove(first.unwrap()));
        assert_eq!(Arc::strong_count(&dropped), 1);
        // A slot is invalid after a wake-up.
        let old = wait(&mut wakers, &dropped, 1).unwrap();
        wake(&mut wakers);
        wait(&mut wakers, &remaining, 1);
        assert!(wakers.remove(old).is_none());
        wake(&mut wakers);
        assert_eq!((remaining.0.load(Ordering::SeqCst), dropped.0.load(Ordering::SeqCst)), (2, 1));
    }
}
