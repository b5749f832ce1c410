//! Test client of a store that commits events of one task, and knows the expected content.

use std::sync::Arc;

use a2a_service::{
    clock::{self, Millis},
    event::{Ends, Event, Mark, Position},
    pb::v1::{
        Artifact, Message, Part, Task, TaskArtifactUpdateEvent, TaskState, TaskStatus, TaskStatusUpdateEvent,
        stream_response::Payload,
    },
    store::{Change, Commit, CompletedTask, EventRef, Expect, Key, Refused, Row, Scope, Store, memory::Memory},
    task,
};

use super::opened::OpenedStore;

pub(crate) fn scope(owner: &str, tenant: &str) -> Arc<Scope> {
    Arc::new(Scope { owner: owner.into(), tenant: tenant.into() })
}

pub(crate) fn status(state: TaskState, at: Millis) -> Payload {
    let message = state.is_interrupted().then(|| Message::agent("what?"));
    let status = Some(TaskStatus { state: state.into(), message, timestamp: Some(clock::timestamp(at)) });
    Payload::StatusUpdate(TaskStatusUpdateEvent { status, ..Default::default() })
}

pub(crate) fn chunk(id: &str, text: &str, append: bool) -> Payload {
    let artifact = Artifact { artifact_id: id.into(), parts: vec![Part::text(text)], ..Default::default() };
    Payload::ArtifactUpdate(TaskArtifactUpdateEvent { artifact: Some(artifact), append, ..Default::default() })
}

pub(crate) fn message(text: &str) -> Payload {
    Payload::Message(Message::user(text))
}

/// Sets the ids of the task in an event.
fn with_ids(task: &Task, mut payload: Payload) -> Payload {
    let ids = match &mut payload {
        Payload::StatusUpdate(update) => [&mut update.task_id, &mut update.context_id],
        Payload::ArtifactUpdate(update) => [&mut update.task_id, &mut update.context_id],
        Payload::Task(_) | Payload::Message(_) => return payload,
    };
    for (id, name) in ids.into_iter().zip([&task.id, &task.context_id]) {
        id.clone_from(name);
    }
    payload
}

/// Returns the completed task if the commit creates a terminal task and has no further data.
pub(crate) fn completed_task(commit: &Commit) -> Option<CompletedTask> {
    let Commit { key, expect, fence, row, events, checkpoint, agent_state: saved, turn_contexts: asked, sends, push } =
        commit;
    let task = Arc::clone(checkpoint.as_ref().filter(|task| *expect == Expect::New && task.state().is_terminal())?);
    if saved.is_some() || asked.is_some() || push.is_some() || !sends.is_empty() {
        return None;
    }
    let Some(Payload::Task(first)) = events[0].payload() else { return None };
    // The first event has the first message, as all sent tasks do.
    if !first.history.iter().eq(task.history.first()) {
        return None;
    }
    let event_ref = |event: &Event| match event.payload() {
        Some(Payload::StatusUpdate(_)) if event.ends() == Ends::Task => EventRef::Status { mark: event.mark() },
        Some(Payload::ArtifactUpdate(update)) if !update.append => {
            match task.artifacts.iter().position(|artifact| Some(artifact) == update.artifact.as_ref()) {
                Some(index) => EventRef::Artifact { mark: event.mark(), index, last: update.last_chunk },
                None => EventRef::Event(event.clone()),
            }
        }
        _ => EventRef::Event(event.clone()),
    };
    let (told, row) = (events[1..].iter().map(event_ref).collect(), Row { status_event: None, ..row.clone() });
    let began = clock::millis(first.status.as_ref()?.timestamp.as_ref()?);
    Some(CompletedTask { key: key.clone(), fence: *fence, row, submitted_at: began, task, events: told })
}

pub(crate) struct Writer {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) key: Key,
    pub(crate) task: Task,
    pub(crate) at: Position,
    pub(crate) log: Vec<Event>,
    pub(crate) time: Millis,
    /// Set once the store has deleted the log.
    pub(crate) folded: bool,
}

impl Writer {
    /// Writer of a task that does not exist yet.
    pub(crate) fn new(store: &OpenedStore, scope: &Arc<Scope>, id: &str) -> Self {
        Self::within(store, scope, id, "c-1", 0)
    }

    pub(crate) fn within(store: &OpenedStore, scope: &Arc<Scope>, id: &str, context: &str, at: Millis) -> Self {
        let status =
            TaskStatus { state: TaskState::Submitted.into(), message: None, timestamp: Some(clock::timestamp(at)) };
        let task = Task { id: id.into(), context_id: context.into(), status: Some(status), ..Task::default() };
        let key = Key::new(scope, id);
        Self {
            store: Arc::clone(&store.store),
            key,
            task,
            at: Position::default(),
            log: Vec::new(),
            time: at,
            folded: false,
        }
    }

    /// Returns the commit of these events; the first one creates the task.
    pub(crate) fn next(&self, payloads: impl IntoIterator<Item = Payload>) -> Commit {
        let fence = self.store.fence();
        let (mut task, mut events) = (self.task.clone(), Vec::new());
        let (was, mut row_time, mut head) = (self.task.state(), self.time, None);
        let is_new = self.at.seq == 0;
        if is_new {
            let first = Event::task(Position { fence, seq: 1 }, Ends::Nothing, task.clone().into());
            head = Some(first.clone());
            events.push(first);
        }
        for payload in payloads.into_iter().map(|payload| with_ids(&self.task, payload)) {
            let seq = self.at.seq + u64::try_from(events.len()).unwrap() + 1;
            task::apply(&mut task, &payload);
            let mark = match &payload {
                Payload::Message(_) => Mark::HIDDEN,
                Payload::StatusUpdate(_) if task.state().is_terminal() => Mark::ending(Ends::Task),
                Payload::StatusUpdate(_) if task.state().is_interrupted() => Mark::ending(Ends::Turn),
                Payload::StatusUpdate(_) | Payload::ArtifactUpdate(_) | Payload::Task(_) => Mark::NOTHING,
            };
            let event = Event::new(Position { fence, seq }, mark, payload);
            if let Some(Payload::StatusUpdate(update)) = event.payload() {
                let timestamp = update.status.as_ref().unwrap().timestamp.as_ref();
                (head, row_time) = (Some(event.clone()), clock::millis(timestamp.unwrap()));
            }
            events.push(event);
        }
        let seq = events.last().map_or(self.at.seq, Event::seq);
        let state = task.state();
        let row = Row {
            context: self.task.context_id.as_str().into(),
            seq,
            state,
            previous_state: (!is_new).then_some(was),
            status_event: head,
            time: row_time,
            open: !state.is_terminal(),
            delivered_seq: 0,
            cancel_requested: false,
            attempt: 1,
            drained: 0,
        };
        let expect = if is_new { Expect::New } else { Expect::At(self.at) };
        // Always for terminal tasks, and sometimes before.
        let checkpoint = (state.is_terminal() || seq % 5 == 4).then(|| Arc::new(task));
        let (key, sends) = (self.key.clone(), Vec::new());
        Commit {
            key,
            expect,
            fence,
            row,
            events,
            checkpoint,
            agent_state: None,
            turn_contexts: None,
            sends,
            push: None,
        }
    }

    /// Returns a commit that expects the row at this position.
    pub(crate) fn at_next(&self, at: Position) -> Commit {
        let commit = self.next([]);
        let row = Row { previous_state: Some(TaskState::Submitted), ..commit.row };
        Commit { expect: Expect::At(at), row, ..commit }
    }

    /// Writes a commit, and records its events on success. Every other single-commit task is written whole.
    pub(crate) async fn write(&mut self, commit: Commit) -> Result<(), Refused> {
        let whole = completed_task(&commit).filter(|_| commit.events.len().is_multiple_of(2));
        let change = whole.map_or_else(|| Change::Commit(commit.clone()), Change::CompletedTask);
        let outcome = self.store.commit_changes([change].into()).await.unwrap().remove(0);
        if outcome.is_ok() {
            self.record(commit);
        }
        outcome
    }

    /// Records a successful commit.
    pub(crate) fn record(&mut self, commit: Commit) {
        let new = commit.events.iter().filter(|event| event.seq() > 1).filter_map(Event::payload);
        new.for_each(|payload| task::apply(&mut self.task, payload));
        self.at = Position { fence: commit.fence, seq: commit.row.seq };
        self.time = commit.row.time;
        self.log.extend(commit.events);
    }

    pub(crate) async fn commit(&mut self, payloads: impl IntoIterator<Item = Payload>) -> Result<(), Refused> {
        let commit = self.next(payloads);
        self.write(commit).await
    }

    /// Releases the reference to the store.
    pub(crate) fn release_store(&mut self) {
        self.store = Arc::new(Memory::default());
    }

    /// Uses the reopened store.
    pub(crate) fn use_store(&mut self, store: &OpenedStore) {
        self.store = Arc::clone(&store.store);
    }

    /// Asserts that the store has what was written.
    pub(crate) async fn check(&self) {
        let mut stored = self.store.load(&self.key).await.unwrap().unwrap();
        assert_eq!((stored.position.seq, stored.row.seq), (self.at.seq, self.at.seq));
        assert_eq!((stored.row.state, stored.row.time), (self.task.state(), self.time));
        assert_eq!(stored.load_task(&*self.store, &self.key).await.unwrap(), self.task);
        let log = if self.folded { &[][..] } else { &self.log };
        assert_eq!(self.store.events(&self.key, 0, usize::MAX >> 1).await.unwrap().events, log);
    }
}
