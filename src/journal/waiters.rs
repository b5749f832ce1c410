//! Who waits for a task, and for what of it.

use std::{
    mem,
    sync::Arc,
    task::{Context, Waker},
};

use tokio::sync::oneshot;

use super::{LiveRef, live::Inner};
use crate::{
    event::Seq,
    pb::v1::{Message, Task},
};

/// What somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitCondition {
    /// That the event of this number is shown. A task is there when its first one is, and a message that was taken in
    /// is not lost any more when its own is.
    Shown(Seq),
    /// The same, for those who go on with it: they are not told anything else meanwhile.
    Written(Seq),
    /// The end of the turn of this number, or that it needs something of its caller; and which event the message is that
    /// is answered by that.
    Turn(u32, Seq),
    /// The end of the task.
    End,
}

impl WaitCondition {
    /// The event of which somebody waits to learn what came of it. Of who waits for the end of the task there is none.
    pub(super) fn said(&self) -> Option<Seq> {
        match self {
            Self::Shown(seq) | Self::Written(seq) | Self::Turn(_, seq) => Some(*seq),
            Self::End => None,
        }
    }
}

/// What who waited is given.
#[derive(Clone, Debug)]
pub(crate) enum TurnReply {
    /// The task, as it was then.
    Task(Arc<Task>),
    /// There is no task: the agent answered with a message.
    Message(Box<Message>),
}

/// Whom to wake, once the lock is free.
#[derive(Default)]
#[must_use]
pub(crate) struct Wakeups {
    pub(super) wakers: Vec<Waker>,
    pub(super) answers: Vec<(oneshot::Sender<TurnReply>, TurnReply)>,
}

impl Wakeups {
    /// Wakes, and gives the emptied list back for its capacity.
    pub(super) fn fire(self) -> Vec<Waker> {
        let Self { mut wakers, answers } = self;
        for (to, answer) in answers {
            // Who waited may have gone.
            drop(to.send(answer));
        }
        wakers.drain(..).for_each(Waker::wake);
        wakers
    }
}

/// Wakers with a place for each who waits, so that who is polled twice is not woken twice.
#[derive(Default)]
pub(crate) struct Wakers {
    list: Vec<Waker>,
    /// Places on the list whose owners have gone.
    free: Vec<usize>,
    round: u64,
}

/// A place among wakers, good until they have been woken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WakerSlot {
    round: u64,
    at: usize,
}

impl Wakers {
    /// Puts the waker of who is polled on the list.
    pub(crate) fn register(&mut self, place: &mut Option<WakerSlot>, cx: &Context<'_>) {
        let known = place.filter(|it| it.round == self.round).and_then(|it| self.list.get_mut(it.at));
        if let Some(waker) = known {
            waker.clone_from(cx.waker());
        } else {
            let at = self.free.pop().unwrap_or(self.list.len());
            *place = Some(WakerSlot { round: self.round, at });
            match self.list.get_mut(at) {
                Some(free) => free.clone_from(cx.waker()),
                None => self.list.push(cx.waker().clone()),
            }
        }
    }

    /// Takes one off the list whose owner has gone: where many come and go before anything happens, the list does not
    /// grow with them. The waker is for the caller to drop, with the lock free.
    pub(super) fn forget(&mut self, place: WakerSlot) -> Option<Waker> {
        if place.round != self.round {
            return None;
        }
        if place.at + 1 == self.list.len() {
            return self.list.pop();
        }
        let gone = mem::replace(self.list.get_mut(place.at)?, Waker::noop().clone());
        self.free.push(place.at);
        Some(gone)
    }

    /// Takes all of them off the list.
    pub(super) fn take(&mut self, into: &mut Vec<Waker>) {
        self.round += 1;
        self.free.clear();
        if into.capacity() == 0 {
            mem::swap(&mut self.list, into);
        } else {
            into.append(&mut self.list);
        }
    }

    /// Gives a list that has been emptied a second use.
    pub(super) fn reuse(&mut self, list: Vec<Waker>) {
        if self.list.capacity() == 0 {
            self.list = list;
        }
    }
}

/// Somebody who waits among the wakers of a task, for as long as they wait.
pub(crate) struct WakerRegistration<'a> {
    held: &'a LiveRef,
    among: fn(&mut Inner) -> &mut Wakers,
    place: Option<WakerSlot>,
}

impl<'a> WakerRegistration<'a> {
    pub(crate) fn new(held: &'a LiveRef, among: fn(&mut Inner) -> &mut Wakers) -> Self {
        Self { held, among, place: None }
    }

    /// Puts the waker of who is polled on the list. `inner` is that of the task.
    pub(crate) fn register(&mut self, inner: &mut Inner, cx: &Context<'_>) {
        // Who is asked again in any case need not be woken.
        if cx.waker().will_wake(Waker::noop()) {
            return;
        }
        (self.among)(inner).register(&mut self.place, cx);
    }
}

impl Drop for WakerRegistration<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let gone = (self.among)(&mut self.held.lock()).forget(place);
            drop(gone);
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

    /// Registers one who waits, as often as they are polled.
    fn wait(wakers: &mut Wakers, who: &Arc<Counts>, times: usize) -> Option<WakerSlot> {
        let (waker, mut place) = (Waker::from(Arc::clone(who)), None);
        (0..times).for_each(|_| wakers.register(&mut place, &Context::from_waker(&waker)));
        place
    }

    fn wake(wakers: &mut Wakers) {
        let mut all = Vec::new();
        wakers.take(&mut all);
        all.into_iter().for_each(Waker::wake);
    }

    #[test]
    fn each_is_woken_once_however_often_they_were_polled() {
        let (mut wakers, who) = (Wakers::default(), [(); 3].map(|()| Arc::new(Counts::default())));
        for it in &who {
            wait(&mut wakers, it, 5);
        }
        wake(&mut wakers);
        wake(&mut wakers);
        assert_eq!(who.map(|it| it.0.load(Ordering::SeqCst)), [1; 3]);
    }

    #[test]
    fn who_goes_leaves_neither_a_place_nor_a_waker() {
        let (mut wakers, stays, goes) = (Wakers::default(), Arc::new(Counts::default()), Arc::new(Counts::default()));
        let first = wait(&mut wakers, &goes, 1);
        wait(&mut wakers, &stays, 1);
        for n in 0..1000 {
            let mut places = [(); 3].map(|()| wait(&mut wakers, &goes, 1)).to_vec();
            for _ in 0..3 {
                drop(wakers.forget(places.swap_remove(n % places.len()).unwrap()));
            }
            assert!(wakers.list.len() <= 5, "{}", wakers.list.len());
        }
        drop(wakers.forget(first.unwrap()));
        assert_eq!(Arc::strong_count(&goes), 1);
        // A place of a round that is over is nobody's.
        let old = wait(&mut wakers, &goes, 1).unwrap();
        wake(&mut wakers);
        wait(&mut wakers, &stays, 1);
        assert!(wakers.forget(old).is_none());
        wake(&mut wakers);
        assert_eq!((stays.0.load(Ordering::SeqCst), goes.0.load(Ordering::SeqCst)), (2, 1));
    }
}
