//! Who waits for a task, and for what of it.

use std::{
    mem,
    sync::Arc,
    task::{Context, Waker},
};

use tokio::sync::oneshot;

use crate::pb::v1::{Message, Task};

/// What somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// That there is a task.
    Shown,
    /// The end of the turn of this number, or that it needs something of its caller.
    Turn(u32),
    /// The end of the task.
    End,
}

/// What who waited is given.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// The task, as it was then.
    Task(Arc<Task>),
    /// There is no task: the agent answered with a message.
    Message(Box<Message>),
}

/// Whom to wake, once the lock is free.
#[derive(Default)]
#[must_use]
pub(crate) struct Wake {
    pub(super) wakers: Vec<Waker>,
    pub(super) answers: Vec<(oneshot::Sender<Answer>, Answer)>,
}

impl Wake {
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
    round: u64,
}

/// A place among wakers, good until they have been woken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    round: u64,
    at: usize,
}

impl Wakers {
    /// Puts the waker of who is polled on the list.
    pub(crate) fn register(&mut self, place: &mut Option<Place>, cx: &Context<'_>) {
        let known = place.filter(|it| it.round == self.round).and_then(|it| self.list.get_mut(it.at));
        if let Some(waker) = known {
            waker.clone_from(cx.waker());
        } else {
            *place = Some(Place { round: self.round, at: self.list.len() });
            self.list.push(cx.waker().clone());
        }
    }

    /// Takes all of them off the list.
    pub(super) fn take(&mut self, into: &mut Vec<Waker>) {
        self.round += 1;
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
