//! Waiters of a task: callers that wait for a commit or for the end of a turn, and wake-ups of readers and agents.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::{
    protocol::{
        error::Error,
        event::{Ends, Seq},
        pb::v1::{Message, Task},
    },
    store::TaskHead,
};

/// Condition for which a caller waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitCondition {
    /// The event with this number is durable: a task exists with its first event, and a message can't be lost once its
    /// own event is durable.
    Durable(Seq),
    /// Like `Durable`, but for a caller that continues the work: it is not failed while the store is unavailable.
    DurableForTurn(Seq),
    /// The begin of the turn that was given the messages up to this event is durable: the row has its first attempt. Not
    /// failed while the store is unavailable.
    TurnBegun(Seq),
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
            Self::TurnBegun(_) | Self::TaskEnd => None,
        }
    }

    /// Returns true for the runner of a turn, which waits while the store is unavailable.
    pub(super) fn continues_the_work(&self) -> bool {
        matches!(self, Self::DurableForTurn(_) | Self::TurnBegun(_) | Self::Turn(_, 0))
    }

    /// Returns true if a durable event fulfils the condition. `ended` is the number of turns that have ended, and
    /// `is_interrupted` tells whether the event interrupts the next one.
    pub(super) fn is_met(&self, event: Seq, ends: Ends, ended: u32, is_interrupted: bool) -> bool {
        match self {
            Self::Durable(seq) | Self::DurableForTurn(seq) => *seq <= event,
            // An interrupted turn goes on: the next one has to wait for its end.
            Self::Turn(turn, 0) => ends == Ends::Task || *turn <= ended,
            Self::Turn(turn, _) => ends == Ends::Task || *turn <= ended + u32::from(is_interrupted),
            Self::TurnBegun(_) => false,
            Self::TaskEnd => ends == Ends::Task,
        }
    }

    /// Returns true if a durable row fulfils the condition.
    pub(super) fn is_met_by(&self, row: &TaskHead) -> bool {
        matches!(self, Self::TurnBegun(seq) if *seq <= row.delivered_seq && row.attempt > 0)
    }
}

/// Result for which a caller waited.
#[derive(Clone, Debug)]
pub(crate) enum TurnReply {
    /// The task at that moment.
    Task(Arc<Task>),
    /// The agent replied with a message, and there is no task.
    Message(Box<Message>),
    /// The call failed, and there is no task.
    Refused(Error),
}

/// Wake-ups and replies to be sent once the lock of the task is released.
#[derive(Debug, Default)]
#[must_use]
pub(super) struct Wakeups {
    /// Wakes readers, and an agent that waits for the store.
    pub(super) changed: bool,
    /// Wakes the runner and its agent, which wait for a cancel or a drain.
    pub(super) control: bool,
    /// Reply to the first caller. Most turns have one.
    pub(super) reply: Option<(oneshot::Sender<TurnReply>, TurnReply)>,
    /// Replies to further callers.
    pub(super) replies: Vec<(oneshot::Sender<TurnReply>, TurnReply)>,
}

impl Wakeups {
    /// Returns wake-ups for readers, the runner and its agent.
    pub(super) fn all() -> Self {
        Self { changed: true, control: true, ..Self::default() }
    }

    /// Returns wake-ups for the runner and its agent.
    pub(super) fn control() -> Self {
        Self { control: true, ..Self::default() }
    }
}
