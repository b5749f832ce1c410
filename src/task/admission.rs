//! What may happen to a task next: which event is accepted, and which number it has.

use prost::{Message as _, encoding::string};

use crate::{
    check::MAX_ID_BYTES,
    event::Seq,
    pb::v1::{Artifact, Task, TaskArtifactUpdateEvent, TaskState, TaskStatus, stream_response::Payload},
};

/// What has been accepted of a task so far: all that the next event needs to know, and nothing that grows with what
/// the task holds.
#[derive(Clone, Debug)]
pub struct Admission {
    state: TaskState,
    seq: Seq,
    bounds: TaskLimits,
    /// Bytes of all events so far.
    bytes: usize,
    begun: Vec<FirstState>,
}

/// An artifact that an agent has begun.
#[derive(Clone, Debug)]
struct FirstState {
    id: Box<str>,
    /// Its size so far, encoded in protobuf.
    bytes: usize,
}

/// How much there may be of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskLimits {
    /// So many events, not counting those with which a turn ends.
    pub events: Seq,
    /// So many artifacts.
    pub artifacts: usize,
    /// Maximum size of an event, of a message that begins a task too. In bytes of protobuf, as all sizes here.
    pub event_bytes: usize,
    /// Maximum size of an artifact.
    pub artifact_bytes: usize,
    /// Maximum size of all events of a task together, not counting those with which a turn ends.
    pub task_bytes: usize,
}

impl Default for TaskLimits {
    /// As much as there is.
    fn default() -> Self {
        const MOST: usize = usize::MAX;
        Self { events: Seq::MAX, artifacts: MOST, event_bytes: MOST, artifact_bytes: MOST, task_bytes: MOST }
    }
}

/// Why an event is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
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
    /// The event is larger than an event may be.
    #[error("an event has at most {0} bytes")]
    EventBytes(usize),
    /// The artifact would be larger than an artifact may be.
    #[error("an artifact has at most {0} bytes")]
    ArtifactBytes(usize),
    /// The events of the task would be larger than they may be together.
    #[error("a task has at most {0} bytes")]
    TaskBytes(usize),
    /// The id of an artifact or of a message is longer than an identifier may be.
    #[error("an identifier has at most {0} bytes")]
    IdBytes(usize),
}

impl Violation {
    /// The name of the limit that was reached, if it was one.
    pub fn limit(self) -> Option<&'static str> {
        match self {
            Self::Ended | Self::State(..) => None,
            Self::Events(_) => Some("events"),
            Self::Artifacts(_) => Some("artifacts"),
            Self::EventBytes(_) => Some("event_bytes"),
            Self::ArtifactBytes(_) => Some("artifact_bytes"),
            Self::TaskBytes(_) => Some("task_bytes"),
            Self::IdBytes(_) => Some("id_bytes"),
        }
    }
}

impl Admission {
    /// Of a task after its event of this number.
    pub fn of(task: &Task, seq: Seq) -> Self {
        let artifacts = task.artifacts.iter();
        let begun =
            artifacts.map(|it| FirstState { id: it.artifact_id.as_str().into(), bytes: it.encoded_len() }).collect();
        Self { state: task.state(), seq, bounds: TaskLimits::default(), bytes: task.encoded_len(), begun }
    }

    /// Resets to the task at its event of this number. The bounds stay.
    pub fn rewind(&mut self, task: &Task, seq: Seq) {
        *self = Self { bounds: self.bounds, ..Self::of(task, seq) };
    }

    /// From now on there may be only so much of it.
    pub fn bound(&mut self, bounds: TaskLimits) {
        self.bounds = bounds;
    }

    /// Checks the first event of a task, which is not admitted like those that follow.
    pub fn check_first(&self) -> Result<(), Violation> {
        self.check_bytes(self.bytes, 0, false)
    }

    /// Sets the number of bytes in the log of a task that is loaded, which may be more than the task has.
    pub fn logged(&mut self, bytes: usize) {
        self.bytes = self.bytes.max(bytes);
    }

    /// Bytes of all events so far.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Maximum size of an event in bytes.
    pub fn max_event_bytes(&self) -> usize {
        self.bounds.event_bytes
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
    pub fn admit(&mut self, payload: &mut Payload, ends: bool) -> Result<Seq, Violation> {
        if self.state.is_terminal() {
            return Err(Violation::Ended);
        }
        if !ends && self.seq >= self.bounds.events {
            return Err(Violation::Events(self.bounds.events));
        }
        check_ids(payload)?;
        let bytes = weigh(payload);
        self.check_bytes(bytes, self.bytes, ends)?;
        match payload {
            Payload::StatusUpdate(it) => {
                let next = it.status.as_ref().map_or(TaskState::Unspecified, TaskStatus::state);
                if !self.state.may_become(next) {
                    return Err(Violation::State(self.state, next));
                }
                self.state = next;
            }
            Payload::ArtifactUpdate(TaskArtifactUpdateEvent { artifact: Some(it), append, .. }) => {
                let most = self.bounds.artifact_bytes;
                let fits = |bytes| if bytes > most { Err(Violation::ArtifactBytes(most)) } else { Ok(bytes) };
                if let Some(old) = begun(&mut self.begun, &it.artifact_id) {
                    let added = added_bytes(it, bytes);
                    old.bytes = fits(if *append { old.bytes.saturating_add(added) } else { bytes })?;
                } else {
                    if self.begun.len() >= self.bounds.artifacts {
                        return Err(Violation::Artifacts(self.bounds.artifacts));
                    }
                    self.begun.push(FirstState { id: it.artifact_id.as_str().into(), bytes: fits(bytes)? });
                    *append = false;
                }
            }
            Payload::ArtifactUpdate(_) | Payload::Message(_) | Payload::Task(_) => {}
        }
        self.bytes = self.bytes.saturating_add(bytes);
        self.seq += 1;
        Ok(self.seq)
    }

    fn check_bytes(&self, bytes: usize, before: usize, ends: bool) -> Result<(), Violation> {
        let TaskLimits { event_bytes, task_bytes, .. } = self.bounds;
        if bytes > event_bytes {
            Err(Violation::EventBytes(event_bytes))
        } else if !ends && before.saturating_add(bytes) > task_bytes {
            Err(Violation::TaskBytes(task_bytes))
        } else {
            Ok(())
        }
    }

    /// Counts parts of so many bytes that are joined to the last event, which is a chunk of this artifact; returns `false`,
    /// and counts nothing, where there may not be so much.
    pub fn grow(&mut self, artifact: &str, bytes: usize) -> bool {
        let TaskLimits { artifact_bytes, task_bytes, .. } = self.bounds;
        let total = self.bytes.saturating_add(bytes);
        let Some(old) = begun(&mut self.begun, artifact) else { return false };
        let grown = old.bytes.saturating_add(bytes);
        let fits = total <= task_bytes && grown <= artifact_bytes;
        if fits {
            (self.bytes, old.bytes) = (total, grown);
        }
        fits
    }
}

/// An artifact that was begun. The search is from behind, since an agent writes to its newest artifact.
fn begun<'a>(all: &'a mut [FirstState], id: &str) -> Option<&'a mut FirstState> {
    all.iter_mut().rev().find(|it| *it.id == *id)
}

/// Size of the payload of an event, without the ids of task and context, which stores need not repeat.
fn weigh(payload: &Payload) -> usize {
    match payload {
        Payload::Task(it) => it.encoded_len(),
        Payload::Message(it) => it.encoded_len(),
        Payload::StatusUpdate(it) => optional(it.status.as_ref()) + optional(it.metadata.as_ref()),
        Payload::ArtifactUpdate(it) => optional(it.artifact.as_ref()) + optional(it.metadata.as_ref()),
    }
}

fn optional(message: Option<&impl prost::Message>) -> usize {
    message.map_or(0, prost::Message::encoded_len)
}

/// Size that a chunk adds to its artifact, given the size of the chunk: without the id, which the artifact already has.
fn added_bytes(chunk: &Artifact, bytes: usize) -> usize {
    const ARTIFACT_ID: u32 = 1;
    bytes.saturating_sub(string::encoded_len(ARTIFACT_ID, &chunk.artifact_id))
}

/// Rejects ids chosen by an agent that exceed the maximum length.
fn check_ids(payload: &Payload) -> Result<(), Violation> {
    let id = match payload {
        Payload::ArtifactUpdate(it) => it.artifact.as_ref().map(|it| &it.artifact_id),
        Payload::StatusUpdate(it) => it.status.as_ref().and_then(|it| it.message.as_ref()).map(|it| &it.message_id),
        Payload::Message(it) => Some(&it.message_id),
        Payload::Task(_) => None,
    };
    match id {
        Some(id) if id.len() > MAX_ID_BYTES => Err(Violation::IdBytes(MAX_ID_BYTES)),
        Some(_) | None => Ok(()),
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
                let mut ahead = Admission::of(&task_in(from), 1);
                assert_eq!(ahead.admit(&mut status(to, None), false).is_ok(), legal, "{from:?} to {to:?}");
                assert_eq!((ahead.state(), ahead.seq()), if legal { (to, 2) } else { (from, 1) });
            }
        }
    }

    #[test]
    fn what_is_full_takes_nothing_but_an_end() {
        let bounds = TaskLimits { events: 4, artifacts: 2, ..TaskLimits::default() };
        let mut ahead = Admission::of(&task_in(TaskState::Working), 1);
        ahead.bound(bounds);
        let mut begin = |id: &str, ends| ahead.admit(&mut Payload::ArtifactUpdate(chunk(id, "x", true)), ends);
        assert_eq!((begin("a", false), begin("b", false)), (Ok(2), Ok(3)));
        assert_eq!(begin("c", false), Err(Violation::Artifacts(2)));
        assert_eq!(begin("a", false), Ok(4), "those that are there go on");
        assert_eq!(begin("a", false), Err(Violation::Events(4)));
        assert_eq!(ahead.admit(&mut status(TaskState::InputRequired, None), true), Ok(5));
        assert_eq!(ahead.admit(&mut status(TaskState::Working, None), false), Err(Violation::Events(4)));
        assert_eq!(ahead.admit(&mut status(TaskState::Failed, None), true), Ok(6));
    }

    #[test]
    fn bytes_are_counted_by_event_artifact_and_task() {
        let text = |id: &str, bytes: usize, append| Payload::ArtifactUpdate(chunk(id, &"x".repeat(bytes), append));
        let bounds = TaskLimits { event_bytes: 100, artifact_bytes: 150, task_bytes: 360, ..TaskLimits::default() };
        let mut ahead = Admission::of(&task_in(TaskState::Working), 1);
        ahead.bound(bounds);
        assert_eq!(ahead.admit(&mut text("a", 100, false), false), Err(Violation::EventBytes(100)));
        assert_eq!(ahead.admit(&mut text("a", 80, false), false), Ok(2));
        assert_eq!(ahead.admit(&mut text("a", 80, true), false), Err(Violation::ArtifactBytes(150)));
        // One that takes the place of the old one is as large as it is, and the log has both.
        assert_eq!(ahead.admit(&mut text("a", 80, false), false), Ok(3));
        assert_eq!(ahead.admit(&mut text("a", 40, true), false), Ok(4));
        assert!(!ahead.grow("a", 40) && ahead.grow("a", 4));
        assert_eq!(ahead.admit(&mut text("b", 80, false), false), Ok(5));
        let said = "x".repeat(80);
        assert_eq!(ahead.admit(&mut status(TaskState::Working, Some(&said)), false), Err(Violation::TaskBytes(360)));
        assert_eq!((ahead.state(), ahead.seq()), (TaskState::Working, 5), "what is refused changes nothing");
        assert!(!ahead.grow("b", 60), "the task would be too large");
        // What can't go on has to end, but not by whatever it likes.
        let endless = "x".repeat(100);
        let mut end = |said: &str| ahead.admit(&mut status(TaskState::Failed, Some(said)), true);
        assert_eq!((end(&endless), end(&said)), (Err(Violation::EventBytes(100)), Ok(6)));
    }

    #[test]
    fn a_task_that_is_loaded_has_the_bytes_that_it_had() {
        let mut task = task_in(TaskState::Working);
        let mut ahead = Admission::of(&task, 1);
        for (id, append) in [("a", false), ("a", true), ("b", false), ("a", false), ("b", true)] {
            let mut payload = Payload::ArtifactUpdate(chunk(id, "text of a chunk", append));
            ahead.admit(&mut payload, false).unwrap();
            crate::task::apply(&mut task, &payload);
        }
        let loaded = Admission::of(&task, ahead.seq());
        let sizes = |it: &Admission| it.begun.iter().map(|it| (it.id.clone(), it.bytes)).collect::<Vec<_>>();
        assert_eq!(sizes(&loaded), sizes(&ahead));
        assert!(loaded.bytes() < ahead.bytes(), "the log is longer than the task, and stores say how long");
    }

    #[test]
    fn ids_that_agents_choose_have_a_maximum_length() {
        let id = "i".repeat(MAX_ID_BYTES + 1);
        let mut ahead = Admission::of(&task_in(TaskState::Working), 1);
        let named = crate::pb::v1::Message { message_id: id.clone(), ..crate::pb::v1::Message::agent("x") };
        let mut said = status(TaskState::Working, Some("x"));
        if let Payload::StatusUpdate(it) = &mut said {
            it.status.as_mut().unwrap().message = Some(named.clone());
        }
        for mut payload in [Payload::ArtifactUpdate(chunk(&id, "x", false)), said, Payload::Message(named)] {
            assert_eq!(ahead.admit(&mut payload, false), Err(Violation::IdBytes(MAX_ID_BYTES)));
        }
        assert_eq!(ahead.admit(&mut Payload::ArtifactUpdate(chunk(&id[1..], "x", false)), false), Ok(2));
    }

    proptest! {
        /// No order of events leads out of an end, and every accepted one has the next number.
        #[test]
        fn nothing_leads_out_of_an_end(states in proptest::collection::vec(0..9_usize, 0..30)) {
            let mut ahead = Admission::of(&task_in(TaskState::Submitted), 1);
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
