//! What may happen to a task next: which event is accepted, and which number it has.

use crate::{
    event::Seq,
    pb::v1::{Task, TaskArtifactUpdateEvent, TaskState, TaskStatus, stream_response::Payload},
};

/// What has been accepted of a task so far: all that the next event needs to know, and nothing that grows with what
/// the task holds.
#[derive(Clone, Debug)]
pub struct Ahead {
    state: TaskState,
    seq: Seq,
    bounds: Bounds,
    /// The ids of the artifacts so far.
    begun: Vec<Box<str>>,
}

/// How much there may be of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// So many events, not counting those with which a turn ends.
    pub events: Seq,
    /// So many artifacts.
    pub artifacts: usize,
}

impl Default for Bounds {
    /// As much as there is.
    fn default() -> Self {
        Self { events: Seq::MAX, artifacts: usize::MAX }
    }
}

/// Why an event is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Illegal {
    /// The first terminal state has won already.
    #[error("the task has ended")]
    Ended,
    /// No arrow leads there.
    #[error("a task does not go from {0:?} to {1:?}")]
    State(TaskState, TaskState),
    /// It has as many events as it may have.
    #[error("a task has at most {0} events")]
    Events(Seq),
    /// It has as many artifacts as it may have.
    #[error("a task has at most {0} artifacts")]
    Artifacts(usize),
}

impl Illegal {
    /// The name of the limit that was reached, if it was one.
    pub fn limit(self) -> Option<&'static str> {
        match self {
            Self::Ended | Self::State(..) => None,
            Self::Events(_) => Some("events"),
            Self::Artifacts(_) => Some("artifacts"),
        }
    }
}

impl Ahead {
    /// Of a task after its event of this number.
    pub fn of(task: &Task, seq: Seq) -> Self {
        let begun = task.artifacts.iter().map(|it| it.artifact_id.as_str().into()).collect();
        Self { state: task.state(), seq, bounds: Bounds::default(), begun }
    }

    /// From now on there may be only so much of it.
    pub fn bound(&mut self, bounds: Bounds) {
        self.bounds = bounds;
    }

    /// The state it is in.
    pub fn state(&self) -> TaskState {
        self.state
    }

    /// The number of its last event.
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// Accepts an event, or says why not. Its number is [`seq`](Self::seq) afterwards. One that `ends` a turn is
    /// accepted however many there are: what can't go on has to end.
    ///
    /// A chunk for an artifact that there is not begins it: `append` is taken back, so that every reader of the event
    /// does the same.
    pub fn admit(&mut self, payload: &mut Payload, ends: bool) -> Result<Seq, Illegal> {
        if self.state.is_terminal() {
            return Err(Illegal::Ended);
        }
        if !ends && self.seq >= self.bounds.events {
            return Err(Illegal::Events(self.bounds.events));
        }
        match payload {
            Payload::StatusUpdate(it) => {
                let next = it.status.as_ref().map_or(TaskState::Unspecified, TaskStatus::state);
                if !self.state.may_become(next) {
                    return Err(Illegal::State(self.state, next));
                }
                self.state = next;
            }
            Payload::ArtifactUpdate(TaskArtifactUpdateEvent { artifact: Some(it), append, .. }) => {
                // From behind: an agent writes to its newest artifact.
                if !self.begun.iter().rev().any(|id| **id == *it.artifact_id) {
                    if self.begun.len() >= self.bounds.artifacts {
                        return Err(Illegal::Artifacts(self.bounds.artifacts));
                    }
                    self.begun.push(it.artifact_id.as_str().into());
                    *append = false;
                }
            }
            Payload::ArtifactUpdate(_) | Payload::Message(_) | Payload::Task(_) => {}
        }
        self.seq += 1;
        Ok(self.seq)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::task::tests::{STATES, chunk, status, task_in};

    /// The drawing, arrow by arrow: a row for each state, and in it every state that may follow.
    #[test]
    fn the_arrows() {
        #[rustfmt::skip]
        let drawing = [
            //                            Uns    Sub    Wor   Inp   Aut   Com   Fai   Can   Rej
            (TaskState::Unspecified,   [false, false, true,  true,  true,  true,  true,  true,  true ]),
            (TaskState::Submitted,     [false, false, true,  true,  true,  true,  true,  true,  true ]),
            (TaskState::Working,       [false, false, true,  true,  true,  true,  true,  true,  true ]),
            (TaskState::InputRequired, [false, false, true,  true,  true,  true,  true,  true,  true ]),
            (TaskState::AuthRequired,  [false, false, true,  true,  true,  true,  true,  true,  true ]),
            (TaskState::Completed,     [false; 9]),
            (TaskState::Failed,        [false; 9]),
            (TaskState::Canceled,      [false; 9]),
            (TaskState::Rejected,      [false; 9]),
        ];
        for (from, row) in drawing {
            for (to, legal) in STATES.into_iter().zip(row) {
                assert_eq!(from.may_become(to), legal, "{from:?} to {to:?}");
                let mut ahead = Ahead::of(&task_in(from), 1);
                assert_eq!(ahead.admit(&mut status(to, None), false).is_ok(), legal, "{from:?} to {to:?}");
                assert_eq!((ahead.state(), ahead.seq()), if legal { (to, 2) } else { (from, 1) });
            }
        }
    }

    #[test]
    fn what_is_full_takes_nothing_but_an_end() {
        let bounds = Bounds { events: 4, artifacts: 2 };
        let mut ahead = Ahead::of(&task_in(TaskState::Working), 1);
        ahead.bound(bounds);
        let mut begin = |id: &str, ends| ahead.admit(&mut Payload::ArtifactUpdate(chunk(id, "x", true)), ends);
        assert_eq!((begin("a", false), begin("b", false)), (Ok(2), Ok(3)));
        assert_eq!(begin("c", false), Err(Illegal::Artifacts(2)));
        assert_eq!(begin("a", false), Ok(4), "those that are there go on");
        assert_eq!(begin("a", false), Err(Illegal::Events(4)));
        assert_eq!(ahead.admit(&mut status(TaskState::InputRequired, None), true), Ok(5));
        assert_eq!(ahead.admit(&mut status(TaskState::Working, None), false), Err(Illegal::Events(4)));
        assert_eq!(ahead.admit(&mut status(TaskState::Failed, None), true), Ok(6));
    }

    proptest! {
        /// No order of events leads out of an end, and every accepted one has the next number.
        #[test]
        fn nothing_leads_out_of_an_end(states in proptest::collection::vec(0..9_usize, 0..30)) {
            let mut ahead = Ahead::of(&task_in(TaskState::Submitted), 1);
            let (mut ended, mut accepted) = (None, 1);
            for it in states {
                if ahead.admit(&mut status(STATES[it], None), false).is_ok() {
                    accepted += 1;
                    prop_assert_eq!(ended, None);
                    ended = STATES[it].is_terminal().then_some(STATES[it]);
                }
                prop_assert_eq!(ahead.seq(), accepted);
            }
        }
    }
}
