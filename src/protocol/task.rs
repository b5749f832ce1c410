//! Task state machine: permitted state transitions, and the effect of an event on a task. Pure functions.

pub use self::{
    admission::{Admission, LimitViolation, TaskLimits},
    chunk::{can_join, join_chunks},
    context::ContextBytes,
};
use crate::protocol::{
    json::wkt::Struct,
    messages::v1::{Artifact, Part, Task, TaskArtifactUpdateEvent, part::Content, stream_response::Payload},
};

mod admission;
mod chunk;
mod context;

/// Applies an event to a task. The cost depends on the size of the event, not on that of the task.
///
/// Adjacent text parts of an artifact are joined, unless they have metadata, a file name or a media type: an artifact that was
/// sent in chunks has the parts of one that was sent whole.
pub fn apply(task: &mut Task, payload: &Payload) {
    match payload {
        Payload::Task(new) => *task = new.clone(),
        // The message of the current status moves to the history, before the new message.
        Payload::Message(message) => {
            let previous = task.status.as_mut().and_then(|status| status.message.take());
            task.history.extend(previous.into_iter().chain([message.clone()]));
        }
        Payload::StatusUpdate(update) => {
            let previous = task.status.take().and_then(|status| status.message);
            task.history.extend(previous);
            task.status.clone_from(&update.status);
            merge(&mut task.metadata, update.metadata.as_ref());
        }
        Payload::ArtifactUpdate(TaskArtifactUpdateEvent { artifact: Some(chunk), append, .. }) => {
            match task.artifacts.iter_mut().rfind(|old| old.artifact_id == chunk.artifact_id) {
                Some(old) if *append => extend(old, chunk),
                Some(old) => *old = with_joined_texts(chunk.clone()),
                None => task.artifacts.push(with_joined_texts(chunk.clone())),
            }
        }
        Payload::ArtifactUpdate(_) => {}
    }
}

/// Like [`apply`], but consumes the event, and moves its content into the task where possible.
pub(crate) fn apply_owned(task: &mut Task, payload: Payload) {
    match payload {
        Payload::Task(new) => *task = new,
        Payload::StatusUpdate(update) => {
            let previous = task.status.take().and_then(|status| status.message);
            task.history.extend(previous);
            task.status = update.status;
            merge(&mut task.metadata, update.metadata.as_ref());
        }
        Payload::ArtifactUpdate(TaskArtifactUpdateEvent { artifact: Some(artifact), .. })
            if !task.artifacts.iter().any(|old| old.artifact_id == artifact.artifact_id) =>
        {
            task.artifacts.push(with_joined_texts(artifact));
        }
        payload @ (Payload::Message(_) | Payload::ArtifactUpdate(_)) => apply(task, &payload),
    }
}

/// Appends a chunk to an artifact: adds parts, metadata and extensions, and replaces name and description if given.
fn extend(artifact: &mut Artifact, chunk: &Artifact) {
    for part in &chunk.parts {
        if !artifact.parts.last_mut().is_some_and(|last| join_text(last, part)) {
            artifact.parts.push(part.clone());
        }
    }
    for (old, new) in [(&mut artifact.name, &chunk.name), (&mut artifact.description, &chunk.description)] {
        if !new.is_empty() {
            old.clone_from(new);
        }
    }
    merge(&mut artifact.metadata, chunk.metadata.as_ref());
    for extension in &chunk.extensions {
        if !artifact.extensions.contains(extension) {
            artifact.extensions.push(extension.clone());
        }
    }
}

/// Adds the members of metadata, and replaces those with the same names.
fn merge(old: &mut Option<Struct>, new: Option<&Struct>) {
    if let Some(new) = new {
        let fields = &mut old.get_or_insert_default().fields;
        fields.extend(new.fields.iter().map(|(name, value)| (name.clone(), value.clone())));
    }
}

/// Joins the adjacent plain text parts of an artifact.
fn with_joined_texts(mut artifact: Artifact) -> Artifact {
    artifact.parts.dedup_by(|next, last| join_text(last, next));
    artifact
}

/// Returns true if a task contains an artifact as it was sent, because it has no parts to join.
pub(crate) fn is_joined(artifact: &Artifact) -> bool {
    !artifact.parts.windows(2).any(|pair| pair.iter().all(is_plain_text))
}

/// Appends a part to the one before it if both are plain text. Returns whether they are.
fn join_text(last: &mut Part, next: &Part) -> bool {
    let are_plain = is_plain_text(last) && is_plain_text(next);
    if let (true, Some(Content::Text(text)), Some(more)) = (are_plain, &mut last.content, next.as_text()) {
        text.push_str(more);
    }
    are_plain
}

/// Returns true for a part with nothing but text.
fn is_plain_text(part: &Part) -> bool {
    let Part { content, metadata, filename, media_type } = part;
    let has_metadata = metadata.as_ref().is_some_and(|metadata| !metadata.fields.is_empty());
    matches!(content, Some(Content::Text(_))) && !has_metadata && filename.is_empty() && media_type.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::pb::{
        v1::{Part, Role, TaskState, TaskStatus, TaskStatusUpdateEvent},
        wkt::{Struct, Value},
    };
    use crate::protocol::{history::HistoryLimit, messages::v1::Message};

    pub(crate) const STATES: [TaskState; 9] = [
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

    pub(crate) fn status(state: TaskState, message: Option<&str>) -> Payload {
        let message = message.map(Message::agent);
        let status = Some(TaskStatus { state: state.into(), message, timestamp: None });
        Payload::StatusUpdate(TaskStatusUpdateEvent { status, ..Default::default() })
    }

    pub(crate) fn chunk(id: &str, text: &str, append: bool) -> TaskArtifactUpdateEvent {
        let artifact = Artifact { artifact_id: id.into(), parts: vec![Part::text(text)], ..Default::default() };
        TaskArtifactUpdateEvent { artifact: Some(artifact), append, ..Default::default() }
    }

    pub(crate) fn task_in(state: TaskState) -> Task {
        Task { status: Some(TaskStatus { state: state.into(), ..Default::default() }), ..Default::default() }
    }

    #[test]
    fn states_are_active_interrupted_or_terminal() {
        for state in STATES {
            let terminal = [TaskState::Completed, TaskState::Failed, TaskState::Canceled, TaskState::Rejected];
            assert_eq!(state.is_terminal(), terminal.contains(&state));
            assert_eq!(state.is_interrupted(), [TaskState::InputRequired, TaskState::AuthRequired].contains(&state));
        }
    }

    #[test]
    fn chunks_and_replacements_are_folded_into_an_artifact() {
        let mut task = task_in(TaskState::Working);
        let mut admission = Admission::new(&task, 1, TaskLimits::default());
        let mut named = chunk("a", "3", true);
        let metadata = |n: f64| {
            let value = Value { kind: Some(crate::protocol::pb::wkt::value::Kind::NumberValue(n)) };
            Some(Struct { fields: [(format!("k{n}"), value)].into() })
        };
        if let Some(artifact) = &mut named.artifact {
            (artifact.name, artifact.metadata, artifact.extensions) =
                ("named".into(), metadata(1.0), vec!["urn:x".into()]);
        }
        let mut renamed = named.clone();
        if let Some(artifact) = &mut renamed.artifact {
            (artifact.name, artifact.metadata) = (String::new(), metadata(2.0));
        }
        let steps = [
            chunk("a", "1", false),
            chunk("a", "2", true),
            chunk("b", "x", false),
            named,
            renamed,
            // Appending to an unknown artifact creates it.
            chunk("c", "new", true),
            chunk("b", "y", false),
        ];
        for update in steps {
            let mut payload = Payload::ArtifactUpdate(update);
            admission.admit(&mut payload, false).unwrap();
            if let Payload::ArtifactUpdate(update) = &payload {
                assert_eq!(update.append, update.artifact.as_ref().unwrap().artifact_id == "a" && admission.seq() > 2);
            }
            apply(&mut task, &payload);
        }
        let texts: Vec<String> =
            task.artifacts.iter().map(|artifact| artifact.parts.iter().filter_map(Part::as_text).collect()).collect();
        assert_eq!(texts, ["1233", "y", "new"]);
        assert_eq!((task.artifacts[0].name.as_str(), task.artifacts[0].extensions.len()), ("named", 1));
        assert_eq!(task.artifacts[0].metadata.as_ref().unwrap().fields.len(), 2);
    }

    #[test]
    fn adjacent_plain_texts_of_an_artifact_are_joined() {
        let typed = Part { media_type: "text/plain".into(), ..Part::text("typed") };
        let marked =
            Part { metadata: Some(Struct { fields: [("k".to_owned(), Value::default())].into() }), ..Part::text("m") };
        let sent = [
            vec![Part::text("a"), Part::text("b"), Part::text("c")],
            vec![Part::text("d"), typed.clone()],
            vec![Part::text("e"), Part::text(""), Part::text("f").named("f.txt"), Part::text("g")],
            vec![marked.clone(), Part::bytes(*b"x", ""), Part::text("h")],
            vec![Part { metadata: Some(Struct::default()), ..Part::text("i") }],
        ];
        let joined = [
            Part::text("abcd"),
            typed,
            Part::text("e"),
            Part::text("f").named("f.txt"),
            Part::text("g"),
            marked,
            Part::bytes(*b"x", ""),
            Part::text("hi"),
        ];
        let update = |parts: Vec<Part>, append| {
            let artifact = Some(Artifact { artifact_id: "a".into(), parts, ..Artifact::default() });
            Payload::ArtifactUpdate(TaskArtifactUpdateEvent { artifact, append, ..Default::default() })
        };
        let fold = |updates: &[Payload]| {
            let (mut task, mut owned) = (task_in(TaskState::Working), task_in(TaskState::Working));
            for update in updates {
                apply(&mut task, update);
                apply_owned(&mut owned, update.clone());
            }
            assert_eq!(task, owned);
            task.artifacts.remove(0)
        };
        let chunks: Vec<_> = sent.iter().enumerate().map(|(n, parts)| update(parts.clone(), n > 0)).collect();
        let whole = fold(&[update(sent.concat(), false)]);
        assert_eq!((&*whole.parts, &fold(&chunks)), (&joined[..], &whole));
        assert_eq!(fold(&[update(vec![Part::text("old")], false), update(sent.concat(), false)]), whole, "replaced");
        let is_sent = |parts: &[Part]| is_joined(&Artifact { parts: parts.to_vec(), ..Artifact::default() });
        assert_eq!(sent.each_ref().map(|parts| is_sent(parts)), [false, true, false, true, true]);
        assert!(is_joined(&whole) && is_joined(&Artifact::default()));
    }

    #[test]
    fn replaced_status_messages_move_to_the_history() {
        let mut task = task_in(TaskState::Submitted);
        let user = Message { role: Role::User.into(), ..Message::agent("hi") };
        for payload in [
            Payload::Message(user),
            status(TaskState::Working, Some("on it")),
            status(TaskState::Working, None),
            status(TaskState::InputRequired, Some("what?")),
            Payload::Message(Message::user("this")),
            status(TaskState::Completed, Some("done")),
        ] {
            apply(&mut task, &payload);
        }
        let texts: Vec<_> = task.history.iter().map(Message::text).collect();
        assert_eq!(texts, ["hi", "on it", "what?", "this"]);
        assert_eq!(task.status.as_ref().unwrap().message.as_ref().unwrap().text(), "done");
        for (length, left) in [(None, 4), (Some(0), 0), (Some(1), 1), (Some(9), 4)] {
            let limit = HistoryLimit { messages: length, ..HistoryLimit::default() };
            assert_eq!(limit.copy_task(&task, false).history.len(), left);
            let mut history = task.history.clone();
            limit.truncate(&mut history);
            assert_eq!(history, limit.copy_task(&task, true).history);
        }
        let newest = HistoryLimit { messages: Some(1), ..HistoryLimit::default() };
        assert_eq!(newest.copy_task(&task, false).history[0].text(), "this");
    }
}
