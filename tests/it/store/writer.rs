//! Who writes a task into a store, event by event, and knows what has to be there.

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

use super::place::Opened;

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

/// What is said of this task.
fn of(task: &Task, mut payload: Payload) -> Payload {
    let ids = match &mut payload {
        Payload::StatusUpdate(it) => [&mut it.task_id, &mut it.context_id],
        Payload::ArtifactUpdate(it) => [&mut it.task_id, &mut it.context_id],
        Payload::Task(_) | Payload::Message(_) => return payload,
    };
    for (id, name) in ids.into_iter().zip([&task.id, &task.context_id]) {
        id.clone_from(name);
    }
    payload
}

/// The task whole, where a commit makes it and ends it, and there is nothing else to it.
pub(crate) fn concluded(commit: &Commit) -> Option<CompletedTask> {
    let Commit { key, expect, fence, row, events, checkpoint, agent_state: saved, turn_contexts: asked, sends, push } =
        commit;
    let task = Arc::clone(checkpoint.as_ref().filter(|it| *expect == Expect::New && it.state().is_terminal())?);
    if saved.is_some() || asked.is_some() || push.is_some() || !sends.is_empty() {
        return None;
    }
    let Some(Payload::Task(first)) = events[0].payload() else { return None };
    // It begins with its first message, as all do that are sent.
    if !first.history.iter().eq(task.history.first()) {
        return None;
    }
    let told = |it: &Event| match it.payload() {
        Some(Payload::StatusUpdate(_)) if it.ends() == Ends::Task => EventRef::Status { mark: it.mark() },
        Some(Payload::ArtifactUpdate(update)) if !update.append => {
            match task.artifacts.iter().position(|of| Some(of) == update.artifact.as_ref()) {
                Some(index) => EventRef::Artifact { mark: it.mark(), index, last: update.last_chunk },
                None => EventRef::Event(it.clone()),
            }
        }
        _ => EventRef::Event(it.clone()),
    };
    let (told, row) = (events[1..].iter().map(told).collect(), Row { status_event: None, ..row.clone() });
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
    /// The store keeps no log of it any more.
    pub(crate) folded: bool,
}

impl Writer {
    /// Of a task that is not there yet.
    pub(crate) fn new(store: &Opened, scope: &Arc<Scope>, id: &str) -> Self {
        Self::within(store, scope, id, "c-1", 0)
    }

    pub(crate) fn within(store: &Opened, scope: &Arc<Scope>, id: &str, context: &str, at: Millis) -> Self {
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

    /// The commit of these events; for a task that is not there yet, the one that makes it.
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
        for payload in payloads.into_iter().map(|it| of(&self.task, it)) {
            let seq = self.at.seq + u64::try_from(events.len()).unwrap() + 1;
            task::apply(&mut task, &payload);
            let mark = match &payload {
                Payload::Message(_) => Mark::HIDDEN,
                Payload::StatusUpdate(_) if task.state().is_terminal() => Mark::ending(Ends::Task),
                Payload::StatusUpdate(_) if task.state().is_interrupted() => Mark::ending(Ends::Turn),
                Payload::StatusUpdate(_) | Payload::ArtifactUpdate(_) | Payload::Task(_) => Mark::NOTHING,
            };
            let event = Event::new(Position { fence, seq }, mark, payload);
            if let Some(Payload::StatusUpdate(it)) = event.payload() {
                let timestamp = it.status.as_ref().unwrap().timestamp.as_ref();
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
        // Always at the end, and now and then before.
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

    /// A commit that expects the row to be there.
    pub(crate) fn at_next(&self, at: Position) -> Commit {
        let commit = self.next([]);
        let row = Row { previous_state: Some(TaskState::Submitted), ..commit.row };
        Commit { expect: Expect::At(at), row, ..commit }
    }

    /// Writes a commit, and remembers what it says if it came through. Every other task that ends with its first commit
    /// is written whole.
    pub(crate) async fn write(&mut self, commit: Commit) -> Result<(), Refused> {
        let whole = concluded(&commit).filter(|_| commit.events.len().is_multiple_of(2));
        let change = whole.map_or_else(|| Change::Commit(commit.clone()), Change::CompletedTask);
        let outcome = self.store.commit_changes([change].into()).await.unwrap().remove(0);
        if outcome.is_ok() {
            self.wrote(commit);
        }
        outcome
    }

    /// Remembers what has come through.
    pub(crate) fn wrote(&mut self, commit: Commit) {
        let new = commit.events.iter().filter(|it| it.seq() > 1).filter_map(Event::payload);
        new.for_each(|it| task::apply(&mut self.task, it));
        self.at = Position { fence: commit.fence, seq: commit.row.seq };
        self.time = commit.row.time;
        self.log.extend(commit.events);
    }

    pub(crate) async fn commit(&mut self, payloads: impl IntoIterator<Item = Payload>) -> Result<(), Refused> {
        let commit = self.next(payloads);
        self.write(commit).await
    }

    /// Lets go of the store.
    pub(crate) fn leave(&mut self) {
        self.store = Arc::new(Memory::default());
    }

    /// Goes on with the same store, which has been opened again.
    pub(crate) fn go_on(&mut self, store: &Opened) {
        self.store = Arc::clone(&store.store);
    }

    /// What the store has of it is what was written.
    pub(crate) async fn check(&self) {
        let mut stored = self.store.load(&self.key).await.unwrap().unwrap();
        assert_eq!((stored.position.seq, stored.row.seq), (self.at.seq, self.at.seq));
        assert_eq!((stored.row.state, stored.row.time), (self.task.state(), self.time));
        assert_eq!(stored.load_task(&*self.store, &self.key).await.unwrap(), self.task);
        let log = if self.folded { &[][..] } else { &self.log };
        assert_eq!(self.store.events(&self.key, 0, usize::MAX >> 1).await.unwrap().events, log);
    }
}
