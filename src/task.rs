//! The task as a value: which state may follow which, and what an event does to it. Pure.

use crate::{
    event::Seq,
    pb::v1::{Artifact, Message, Task, TaskArtifactUpdateEvent, TaskState, TaskStatus, stream_response::Payload},
};

impl Task {
    /// The state of its status.
    pub fn state(&self) -> TaskState {
        self.status.as_ref().map_or(TaskState::Unspecified, TaskStatus::state)
    }
}

impl TaskState {
    /// Nothing follows.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Canceled | Self::Rejected)
    }

    /// The agent needs something of its caller.
    pub fn is_interrupted(self) -> bool {
        matches!(self, Self::InputRequired | Self::AuthRequired)
    }

    /// Whether a task in this state may come into the other (4.1.3). An end is an end, nobody goes back to SUBMITTED,
    /// and UNSPECIFIED is no state to be in. All else is for the agent to say: it may be done without ever having
    /// said that it works, and refuse what it had begun.
    pub fn may_become(self, next: Self) -> bool {
        !self.is_terminal() && !matches!(next, Self::Submitted | Self::Unspecified)
    }
}

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

/// Does to a task what an event says. Costs what the event weighs, and not what the task does.
pub fn apply(task: &mut Task, payload: &Payload) {
    match payload {
        Payload::Task(it) => *task = it.clone(),
        // What the agent has said so far is part of the conversation, and comes before what is said next.
        Payload::Message(it) => {
            let said = task.status.as_mut().and_then(|it| it.message.take());
            task.history.extend(said.into_iter().chain([it.clone()]));
        }
        Payload::StatusUpdate(it) => {
            let said = task.status.take().and_then(|it| it.message);
            task.history.extend(said);
            task.status.clone_from(&it.status);
        }
        Payload::ArtifactUpdate(TaskArtifactUpdateEvent { artifact: Some(it), append, .. }) => {
            match task.artifacts.iter_mut().rfind(|old| old.artifact_id == it.artifact_id) {
                Some(old) if *append => extend(old, it),
                Some(old) => old.clone_from(it),
                None => task.artifacts.push(it.clone()),
            }
        }
        Payload::ArtifactUpdate(_) => {}
    }
}

/// The same where nobody else has what the event says: what can be is moved into the task.
pub(crate) fn absorb(task: &mut Task, payload: Payload) {
    match payload {
        Payload::Task(it) => *task = it,
        Payload::StatusUpdate(it) => {
            let said = task.status.take().and_then(|it| it.message);
            task.history.extend(said);
            task.status = it.status;
        }
        Payload::ArtifactUpdate(TaskArtifactUpdateEvent { artifact: Some(it), .. })
            if !task.artifacts.iter().any(|old| old.artifact_id == it.artifact_id) =>
        {
            task.artifacts.push(it);
        }
        it @ (Payload::Message(_) | Payload::ArtifactUpdate(_)) => apply(task, &it),
    }
}

/// Adds a chunk to an artifact: its parts behind the others, and of the rest what it says anew.
fn extend(artifact: &mut Artifact, chunk: &Artifact) {
    artifact.parts.extend_from_slice(&chunk.parts);
    for (old, new) in [(&mut artifact.name, &chunk.name), (&mut artifact.description, &chunk.description)] {
        if !new.is_empty() {
            old.clone_from(new);
        }
    }
    if let Some(metadata) = &chunk.metadata {
        let all = &mut artifact.metadata.get_or_insert_default().fields;
        all.extend(metadata.fields.iter().map(|(name, value)| (name.clone(), value.clone())));
    }
    for it in &chunk.extensions {
        if !artifact.extensions.contains(it) {
            artifact.extensions.push(it.clone());
        }
    }
}

/// Leaves the newest `length` messages of a history, which is all of it where no length is asked for (3.2.4).
pub fn shorten(history: &mut Vec<Message>, length: Option<usize>) {
    let surplus = length.map_or(0, |it| history.len().saturating_sub(it));
    history.drain(..surplus);
}

/// A task as a caller asked for it. What is not asked for is not copied.
pub fn view(task: &Task, history: Option<usize>, artifacts: bool) -> Task {
    let skip = history.map_or(0, |it| task.history.len().saturating_sub(it));
    Task {
        id: task.id.clone(),
        context_id: task.context_id.clone(),
        status: task.status.clone(),
        artifacts: if artifacts { task.artifacts.clone() } else { Vec::new() },
        history: task.history.get(skip..).unwrap_or_default().to_vec(),
        metadata: task.metadata.clone(),
    }
}

/// Puts one chunk behind another of the same artifact, before they have a number each: many small ones cost a log and
/// its readers more than they weigh. Says whether it did; else they must stay apart.
pub fn join(first: &mut TaskArtifactUpdateEvent, second: &mut TaskArtifactUpdateEvent) -> bool {
    let fits = second.append && !first.last_chunk && second.metadata.is_none();
    match (&mut first.artifact, &mut second.artifact) {
        (Some(old), Some(new)) if fits && old.artifact_id == new.artifact_id && is_bare(new) => {
            old.parts.append(&mut new.parts);
            first.last_chunk = second.last_chunk;
            true
        }
        _ => false,
    }
}

/// What a chunk weighs, as far as that tells small ones from large ones.
pub fn heft(chunk: &TaskArtifactUpdateEvent) -> usize {
    const FRAME: usize = 8;
    let parts = chunk.artifact.iter().flat_map(|it| &it.parts);
    parts.map(|it| it.as_text().map_or_else(|| prost::Message::encoded_len(it), str::len) + FRAME).sum()
}

/// Says nothing but parts.
fn is_bare(it: &Artifact) -> bool {
    it.name.is_empty() && it.description.is_empty() && it.metadata.is_none() && it.extensions.is_empty()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pb::{
        v1::{Part, Role, TaskStatusUpdateEvent},
        wkt::{Struct, Value},
    };

    const STATES: [TaskState; 9] = [
        TaskState::Unspecified,
        TaskState::Submitted,
        TaskState::Working,
        TaskState::InputRequired,
        TaskState::AuthRequired,
        TaskState::Completed,
        TaskState::Failed,
        TaskState::Canceled,
        TaskState::Rejected,
    ];

    fn status(state: TaskState, said: Option<&str>) -> Payload {
        let message = said.map(Message::agent);
        let status = Some(TaskStatus { state: state.into(), message, timestamp: None });
        Payload::StatusUpdate(TaskStatusUpdateEvent { status, ..Default::default() })
    }

    fn chunk(id: &str, text: &str, append: bool) -> TaskArtifactUpdateEvent {
        let artifact = Artifact { artifact_id: id.into(), parts: vec![Part::text(text)], ..Default::default() };
        TaskArtifactUpdateEvent { artifact: Some(artifact), append, ..Default::default() }
    }

    fn task_in(state: TaskState) -> Task {
        Task { status: Some(TaskStatus { state: state.into(), ..Default::default() }), ..Default::default() }
    }

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
    fn the_states_are_of_three_kinds() {
        for it in STATES {
            let terminal = [TaskState::Completed, TaskState::Failed, TaskState::Canceled, TaskState::Rejected];
            assert_eq!(it.is_terminal(), terminal.contains(&it));
            assert_eq!(it.is_interrupted(), [TaskState::InputRequired, TaskState::AuthRequired].contains(&it));
        }
    }

    #[test]
    fn an_artifact_is_one_whatever_became_of_it() {
        let mut task = task_in(TaskState::Working);
        let mut ahead = Ahead::of(&task, 1);
        let mut named = chunk("a", "3", true);
        let metadata = |n: f64| {
            let value = Value { kind: Some(crate::pb::wkt::value::Kind::NumberValue(n)) };
            Some(Struct { fields: [(format!("k{n}"), value)].into() })
        };
        if let Some(it) = &mut named.artifact {
            (it.name, it.metadata, it.extensions) = ("named".into(), metadata(1.0), vec!["urn:x".into()]);
        }
        let mut again = named.clone();
        if let Some(it) = &mut again.artifact {
            (it.name, it.metadata) = (String::new(), metadata(2.0));
        }
        let steps = [
            chunk("a", "1", false),
            chunk("a", "2", true),
            chunk("b", "x", false),
            named,
            again,
            // An append to what there is not creates it.
            chunk("c", "new", true),
            chunk("b", "y", false),
        ];
        for it in steps {
            let mut payload = Payload::ArtifactUpdate(it);
            ahead.admit(&mut payload, false).unwrap();
            if let Payload::ArtifactUpdate(it) = &payload {
                assert_eq!(it.append, it.artifact.as_ref().unwrap().artifact_id == "a" && ahead.seq() > 2);
            }
            apply(&mut task, &payload);
        }
        let texts: Vec<String> =
            task.artifacts.iter().map(|it| it.parts.iter().filter_map(Part::as_text).collect()).collect();
        assert_eq!(texts, ["1233", "y", "new"]);
        assert_eq!((task.artifacts[0].name.as_str(), task.artifacts[0].extensions.len()), ("named", 1));
        assert_eq!(task.artifacts[0].metadata.as_ref().unwrap().fields.len(), 2);
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

    #[test]
    fn what_was_said_on_the_way_is_history() {
        let mut task = task_in(TaskState::Submitted);
        let user = Message { role: Role::User.into(), ..Message::agent("hi") };
        for it in [
            Payload::Message(user),
            status(TaskState::Working, Some("on it")),
            status(TaskState::Working, None),
            status(TaskState::InputRequired, Some("what?")),
            Payload::Message(Message::user("this")),
            status(TaskState::Completed, Some("done")),
        ] {
            apply(&mut task, &it);
        }
        let said: Vec<_> = task.history.iter().map(Message::text).collect();
        assert_eq!(said, ["hi", "on it", "what?", "this"]);
        assert_eq!(task.status.as_ref().unwrap().message.as_ref().unwrap().text(), "done");
        for (length, left) in [(None, 4), (Some(0), 0), (Some(1), 1), (Some(9), 4)] {
            assert_eq!(view(&task, length, false).history.len(), left);
            let mut history = task.history.clone();
            shorten(&mut history, length);
            assert_eq!(history, view(&task, length, true).history);
        }
        assert_eq!(view(&task, Some(1), false).history[0].text(), "this");
    }

    proptest! {
        /// However chunks are cut into events, the artifact is the same.
        #[test]
        fn joining_changes_nothing_but_the_number_of_events(
            chunks in proptest::collection::vec(("[ab]", "[a-z]{0,3}", any::<bool>(), any::<bool>()), 1..20),
        ) {
            let all: Vec<_> = chunks.iter().map(|(id, text, append, last)| {
                TaskArtifactUpdateEvent { last_chunk: *last, ..chunk(id, text, *append) }
            }).collect();
            let fold = |events: &[TaskArtifactUpdateEvent]| {
                let mut task = task_in(TaskState::Working);
                for it in events {
                    apply(&mut task, &Payload::ArtifactUpdate(it.clone()));
                }
                task.artifacts
            };
            let mut joined: Vec<TaskArtifactUpdateEvent> = Vec::new();
            for it in &all {
                let mut it = it.clone();
                if !joined.last_mut().is_some_and(|first| join(first, &mut it)) {
                    joined.push(it);
                }
            }
            prop_assert!(joined.len() <= all.len());
            prop_assert_eq!(fold(&joined), fold(&all));
        }

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
