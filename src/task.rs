//! The task as a value: which state may follow which, and what an event does to it. Pure.

pub use self::{
    admission::{Admission, TaskLimits, Violation},
    chunk::{heft, join, joins},
};
use crate::pb::v1::{
    Artifact, Message, Task, TaskArtifactUpdateEvent, TaskState, TaskStatus, stream_response::Payload,
};

mod admission;
mod chunk;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pb::{
        v1::{Part, Role, TaskStatusUpdateEvent},
        wkt::{Struct, Value},
    };

    pub(super) const STATES: [TaskState; 9] = [
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

    pub(super) fn status(state: TaskState, said: Option<&str>) -> Payload {
        let message = said.map(Message::agent);
        let status = Some(TaskStatus { state: state.into(), message, timestamp: None });
        Payload::StatusUpdate(TaskStatusUpdateEvent { status, ..Default::default() })
    }

    pub(super) fn chunk(id: &str, text: &str, append: bool) -> TaskArtifactUpdateEvent {
        let artifact = Artifact { artifact_id: id.into(), parts: vec![Part::text(text)], ..Default::default() };
        TaskArtifactUpdateEvent { artifact: Some(artifact), append, ..Default::default() }
    }

    pub(super) fn task_in(state: TaskState) -> Task {
        Task { status: Some(TaskStatus { state: state.into(), ..Default::default() }), ..Default::default() }
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
        let mut ahead = Admission::of(&task, 1);
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
}
