//! Writer of one task, which knows the content that a store must have, and the payloads that the cases write.

use std::sync::Arc;

use super::{Failure, load};
use a2a_service::{
    clock::Millis,
    event::{Ends, Event, EventFlags, Position},
    pb::v1::{
        Artifact, Message, Part, Task, TaskArtifactUpdateEvent, TaskState, TaskStatus, TaskStatusUpdateEvent,
        stream_response::Payload,
    },
    store::{Acquired, Commit, Expect, Refused, Scope, Store, TaskHead, TaskKey, Unavailable},
    task,
};

/// Creates a scope.
pub fn scope(owner: &str, tenant: &str) -> Arc<Scope> {
    Arc::new(Scope { owner: owner.into(), tenant: tenant.into() })
}

/// Creates a status update, with a message if the state waits for the client.
pub fn status(state: TaskState, time: Millis) -> Payload {
    let message = state.is_interrupted().then(|| Message::agent("what?"));
    let status =
        Some(TaskStatus { state: state.into(), message, timestamp: Some(a2a_service::pb::wkt::timestamp(time)) });
    Payload::StatusUpdate(TaskStatusUpdateEvent { status, ..Default::default() })
}

/// Creates an artifact with one part of text, or an update that appends such a part to an artifact.
pub fn chunk(artifact_id: &str, text: &str, append: bool) -> Payload {
    let artifact = Artifact { artifact_id: artifact_id.into(), parts: vec![Part::text(text)], ..Default::default() };
    Payload::ArtifactUpdate(TaskArtifactUpdateEvent { artifact: Some(artifact), append, ..Default::default() })
}

/// Creates a message of the client.
pub fn message(text: &str) -> Payload {
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

/// Writer of one task.
#[derive(Clone, Debug)]
pub struct TaskWriter {
    /// Key of the task.
    pub key: TaskKey,
    /// Expected task.
    pub task: Task,
    /// Expected position of the row. Sequence number 0 before the task exists.
    pub at: Position,
    /// Expected log.
    pub log: Vec<Event>,
    /// Expected timestamp of the status.
    pub time: Millis,
    /// Set once the store has deleted the log.
    pub is_log_deleted: bool,
}

impl TaskWriter {
    /// Creates the writer of a task that does not exist yet.
    pub fn new(scope: &Arc<Scope>, id: &str) -> Self {
        Self::within(scope, id, "c-1", 0)
    }

    /// Creates the writer of a task of this context, which is submitted at this time.
    pub fn within(scope: &Arc<Scope>, id: &str, context: &str, time: Millis) -> Self {
        let timestamp = Some(a2a_service::pb::wkt::timestamp(time));
        let status = TaskStatus { state: TaskState::Submitted.into(), message: None, timestamp };
        let task = Task { id: id.into(), context_id: context.into(), status: Some(status), ..Task::default() };
        let (key, at, log) = (TaskKey::new(scope, id), Position::default(), Vec::new());
        Self { key, task, at, log, time, is_log_deleted: false }
    }

    /// Creates the commit of these payloads, with the fence of the store. The first commit creates the task.
    pub fn next(&self, store: &dyn Store, payloads: impl IntoIterator<Item = Payload>) -> Commit {
        let fence = store.first_fence().max(self.at.fence);
        let (mut task, mut events, mut time) = (self.task.clone(), Vec::new(), self.time);
        let (is_new, mut seq) = (self.at.seq == 0, self.at.seq);
        if is_new {
            seq += 1;
            events.push(Event::from_task(Position { fence, seq }, Ends::Nothing, task.clone().into()));
        }
        for payload in payloads.into_iter().map(|payload| with_ids(&self.task, payload)) {
            seq += 1;
            task::apply(&mut task, &payload);
            let mark = match &payload {
                Payload::Message(_) => EventFlags::HIDDEN,
                Payload::StatusUpdate(_) if task.state().is_terminal() => EventFlags::ending(Ends::Task),
                Payload::StatusUpdate(_) if task.state().is_interrupted() => EventFlags::ending(Ends::Turn),
                Payload::StatusUpdate(_) | Payload::ArtifactUpdate(_) | Payload::Task(_) => EventFlags::NOTHING,
            };
            if let Payload::StatusUpdate(TaskStatusUpdateEvent { status: Some(status), .. }) = &payload {
                time = status.timestamp.as_ref().map_or(time, a2a_service::pb::wkt::millis);
            }
            events.push(Event::new(Position { fence, seq }, mark, payload));
        }
        let state = task.state();
        let row = TaskHead {
            context: self.task.context_id.as_str().into(),
            seq,
            state,
            time,
            open: !state.is_terminal(),
            delivered_seq: 0,
            cancel_requested: false,
            attempt: 1,
            drained: 0,
        };
        Commit {
            key: self.key.clone(),
            expect: if is_new { Expect::New } else { Expect::At(self.at) },
            fence,
            row,
            events,
            // Always for terminal tasks, and sometimes before.
            checkpoint: (state.is_terminal() || seq % 5 == 4).then(|| Arc::new(task)),
            agent_state: None,
            turn_contexts: None,
            sends: Vec::new(),
            push: None,
            time: 0,
            turns: None,
            mail_read: 0,
        }
    }

    /// Commits these payloads.
    ///
    /// # Errors
    /// As [`TaskStore::commit`](a2a_service::store::TaskStore::commit).
    pub async fn commit(
        &mut self,
        store: &dyn Store,
        payloads: impl IntoIterator<Item = Payload>,
    ) -> Result<Result<(), Refused>, Unavailable> {
        let commit = self.next(store, payloads);
        self.write(store, commit).await
    }

    /// Writes a commit, and records it on success. A [shared](a2a_service::store::TaskStore::shared) store then has an idle task
    /// acquired, so that this writer can continue.
    ///
    /// # Errors
    /// As [`TaskStore::commit`](a2a_service::store::TaskStore::commit).
    pub async fn write(&mut self, store: &dyn Store, commit: Commit) -> Result<Result<(), Refused>, Unavailable> {
        let outcomes = store.commit([commit.clone()].into()).await?;
        let outcome = outcomes.into_iter().next();
        let outcome = outcome.ok_or_else(|| Unavailable("a commit has no outcome".to_owned()))?;
        if outcome.is_ok() {
            let is_idle = !commit.row.open && !commit.row.state.is_terminal();
            self.record(commit);
            if let Some(shared) = store.shared().filter(|_| is_idle)
                && let Acquired::Owned(stored) = shared.acquire(&self.key).await?
            {
                self.at = stored.position;
            }
        }
        Ok(outcome.map(drop))
    }

    /// Records a successful commit.
    pub fn record(&mut self, commit: Commit) {
        let new = commit.events.iter().filter(|event| event.seq() > 1).filter_map(Event::payload);
        new.for_each(|payload| task::apply(&mut self.task, payload));
        self.at = Position { fence: commit.fence, seq: commit.row.seq };
        self.time = commit.row.time;
        self.log.extend(commit.events);
    }

    /// Checks that the store has what was written.
    ///
    /// # Errors
    /// The row, the task or the log differs, or the store is unavailable.
    pub async fn check(&self, store: &dyn Store) -> Result<(), Failure> {
        let mut stored = load(store, &self.key).await?;
        ensure_eq!((stored.position.seq, stored.row.seq), (self.at.seq, self.at.seq));
        ensure_eq!((stored.row.state, stored.row.time), (self.task.state(), self.time));
        ensure_eq!(stored.load_task(store, &self.key).await?, self.task);
        let log = if self.is_log_deleted { &[][..] } else { &self.log };
        ensure_eq!(store.events(&self.key, 0, usize::MAX >> 1, usize::MAX).await?, log);
        Ok(())
    }
}
