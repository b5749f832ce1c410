//! History of client observations as JSON lines in a file, and the checker that compares it with the store.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs::{self, File},
    io::Write as _,
    path::Path,
    slice,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use a2a_service::{
    event::{Cursor, Ends, Event, Position},
    pb::v1::{StreamResponse, Task, TaskState, stream_response::Payload},
    store::{
        ListQuery, Scope, Store, TaskKey,
        sqlite::{Options, Sqlite},
    },
    task,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::store::opened::copy;

/// Observation of a client.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "saw", rename_all = "snake_case")]
pub(crate) enum Line {
    /// Task in the reply to a call.
    Reply { binding: String, task: Box<Task> },
    /// Start of a stream, after this cursor or with the whole task.
    Stream { stream: u64, binding: String, after: Option<String> },
    /// Event of a stream, with its cursor if the binding has one.
    Event { stream: u64, cursor: Option<String>, event: Box<StreamResponse> },
    /// Regular end of a stream.
    End { stream: u64 },
}

/// Append-only history file.
pub(crate) struct History {
    file: Mutex<File>,
    streams: AtomicU64,
    seen: watch::Sender<usize>,
}

impl History {
    pub(crate) fn new(path: &Path) -> Self {
        let file = Mutex::new(File::create(path).unwrap());
        Self { file, streams: AtomicU64::new(0), seen: watch::Sender::default() }
    }

    pub(crate) fn record(&self, line: &Line) {
        let mut text = serde_json::to_vec(line).unwrap();
        text.push(b'\n');
        self.file.lock().write_all(&text).unwrap();
        self.seen.send_modify(|count| *count += 1);
    }

    /// Records the start of a stream and returns its number.
    pub(crate) fn stream(&self, binding: &str, after: Option<&Cursor>) -> u64 {
        let stream = self.streams.fetch_add(1, Ordering::Relaxed);
        let after = after.map(|cursor| cursor.as_str().to_owned());
        self.record(&Line::Stream { stream, binding: binding.to_owned(), after });
        stream
    }

    /// Waits until this many more lines are recorded.
    pub(crate) async fn grown(&self, by: usize) {
        let mut seen = self.seen.subscribe();
        let enough = *seen.borrow() + by;
        seen.wait_for(|count| *count >= enough).await.unwrap();
    }
}

/// Reads the lines of a history file.
pub(crate) fn read(path: &Path) -> Vec<Line> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Contents of a store after a run: the log and state of each task, and inconsistencies found while reading.
pub(crate) struct StoreContents {
    pub(crate) tasks: BTreeMap<String, Logged>,
    errors: Vec<String>,
}

/// Task in the store.
pub(crate) struct Logged {
    pub(crate) log: Vec<Event>,
    pub(crate) task: Task,
}

/// Recorded stream.
#[derive(Default)]
struct Stream<'a> {
    binding: &'a str,
    after: Option<Cursor>,
    events: Vec<(Option<Cursor>, &'a StreamResponse)>,
    ended: bool,
}

impl StoreContents {
    /// Reads a copy of the files of a process that may have been killed, so that the original is not changed.
    pub(crate) async fn read(directory: &Path) -> Self {
        let left = tempfile::tempdir().unwrap();
        copy(directory, left.path());
        let store = Sqlite::open(&left.path().join("a2a.db"), Options::default()).unwrap();
        Self::read_store(&store).await
    }

    pub(crate) async fn read_store(store: &dyn Store) -> Self {
        let mut contents = Self { tasks: BTreeMap::new(), errors: Vec::new() };
        let scope = Arc::<Scope>::default();
        let mut query =
            ListQuery { scope: Arc::clone(&scope), limit: 100, include_artifacts: true, ..ListQuery::default() };
        let mut states: HashMap<TaskState, u64> = HashMap::new();
        loop {
            let page = store.list(&query).await.unwrap();
            for listed in page.tasks {
                let key = TaskKey::new(&scope, &listed.id);
                let Some(mut stored) = store.load(&key).await.unwrap() else {
                    contents.errors.push(format!("{} is listed, but cannot be loaded", listed.id));
                    continue;
                };
                let (at, state) = (stored.position, stored.row.state);
                *states.entry(state).or_default() += 1;
                let task = stored.load_task(store, &key).await.unwrap();
                let log = store.events(&key, 0, usize::MAX, usize::MAX).await.unwrap();
                if (&listed, listed.state()) != (&task, state) {
                    contents.errors.push(format!("{listed:?} is listed, but the task is {task:?}, {state:?}"));
                }
                if !log.last().is_some_and(|event| is_after(at, event)) {
                    contents.errors.push(format!("{} is at {at:?}, but its log ends with {:?}", task.id, log.last()));
                }
                contents.tasks.insert(task.id.clone(), Logged { log, task });
            }
            query.after = page.next;
            if query.after.is_none() {
                break;
            }
        }
        for state in (1..=8).filter_map(|state| TaskState::try_from(state).ok()) {
            let query = ListQuery { scope: Arc::clone(&scope), state: Some(state), limit: 1, ..ListQuery::default() };
            let (total, counted) = (store.list(&query).await.unwrap().total, states.get(&state).copied().unwrap_or(0));
            if total != counted {
                contents.errors.push(format!("total of {state:?} is {total}, but {counted} tasks have it"));
            }
        }
        contents.check_logs();
        contents
    }

    /// Checks each log by itself: consecutive sequence numbers, increasing fencing tokens, and one end.
    fn check_logs(&mut self) {
        let mut messages = HashSet::new();
        for (id, Logged { log, task }) in &self.tasks {
            let errors = &mut self.errors;
            let seqs = log.iter().map(Event::seq);
            if !seqs.eq(1..=u64::try_from(log.len()).unwrap()) {
                errors.push(format!("{id}: the log has a gap: {log:?}"));
            }
            if log.windows(2).any(|pair| pair[0].position().fence > pair[1].position().fence) {
                errors.push(format!("{id}: a fencing token decreases: {log:?}"));
            }
            let ends = log.iter().position(|event| event.ends() == Ends::Task);
            if ends.is_some_and(|end| end + 1 != log.len()) || ends.is_some() != task.state().is_terminal() {
                errors.push(format!("{id}: the end is missing, repeated or not the last event: {log:?}"));
            }
            if &folded(log) != task {
                errors.push(format!("{id}: the task is {task:?}, but its log yields {:?}", folded(log)));
            }
            for message in &task.history {
                if !messages.insert(&message.message_id) {
                    errors.push(format!("{id}: duplicate message: {message:?}"));
                }
            }
        }
    }

    /// Compares a history with the store; returns the contradictions, none if everything is consistent.
    pub(crate) fn check(&self, lines: &[Line]) -> Vec<String> {
        let mut errors = self.errors.clone();
        let mut streams: BTreeMap<u64, Stream<'_>> = BTreeMap::new();
        for line in lines {
            match line {
                Line::Reply { binding, task } => {
                    let known = self.tasks.get(&task.id).is_some_and(|logged| logged.had_state(task));
                    if !known {
                        errors.push(format!("{binding}: the log never yields the task of a reply: {task:?}"));
                    }
                }
                Line::Stream { stream, binding, after } => {
                    let after = after.as_deref().and_then(Cursor::from_text);
                    streams.insert(*stream, Stream { binding, after, ..Stream::default() });
                }
                Line::Event { stream, cursor, event } => {
                    let cursor = cursor.as_deref().and_then(Cursor::from_text);
                    streams.entry(*stream).or_default().events.push((cursor, event));
                }
                Line::End { stream } => streams.entry(*stream).or_default().ended = true,
            }
        }
        errors.extend(streams.values().filter_map(|stream| self.check_stream(stream).err()));
        errors
    }

    /// A stream must be a section of its log: it starts after its cursor, or with the task as of some event, and has each
    /// later visible event once.
    fn check_stream(&self, seen: &Stream<'_>) -> Result<(), String> {
        let Stream { binding, after, events, ended } = seen;
        // At 0.3, a subscription to a terminal task repeats its final status.
        let events = match &**events {
            [first, again] if binding.ends_with("0.3") && repeats_status(first.1, again.1) => slice::from_ref(first),
            events => events,
        };
        let failed = |reason: &str| Err(format!("{binding}: {reason}: after {after:?}: {events:?}"));
        let Some((_, first)) = events.first() else {
            return if *ended && after.is_none() { failed("empty stream") } else { Ok(()) };
        };
        let Some(Logged { log, .. }) = self.tasks.get(task_of(first)) else {
            return failed("stream of an unknown task");
        };
        let fits = |at: usize, rest: &[(Option<Cursor>, &StreamResponse)]| {
            let visible = log[at..].iter().filter(|event| !event.mark().hidden);
            visible.clone().count() >= rest.len()
                && visible.zip(rest).all(|(logged, (cursor, event))| {
                    logged.response() == *event && cursor.as_ref().is_none_or(|cursor| Some(cursor) == logged.cursor())
                })
        };
        let follows = match (after, &first.payload) {
            (Some(after), _) => {
                let at = after.parts().and_then(|(_, after)| log.iter().position(|event| is_after(after, event)));
                at.is_some_and(|index| fits(index + 1, events))
            }
            (None, Some(Payload::Task(task))) => {
                let mut was = Task::default();
                let fit = |(at, logged): (usize, &Event)| {
                    logged.payload().into_iter().for_each(|payload| task::apply(&mut was, payload));
                    let here = events[0]
                        .0
                        .as_ref()
                        .is_none_or(|cursor| cursor.parts().is_some_and(|(_, at)| is_after(at, logged)));
                    here && was == *task && fits(at + 1, &events[1..])
                };
                log.iter().enumerate().any(fit)
            }
            (None, _) => return failed("stream without its task as the first event"),
        };
        let last = events.last().map(|(_, event)| Event::from((*event).clone()));
        match last {
            _ if !follows => Err(format!("{binding}: after {after:?}: {events:?} is not a section of {log:?}")),
            Some(last) if *ended && last.ends() == Ends::Nothing => failed("stream ended too early"),
            _ => Ok(()),
        }
    }

    /// Tasks that still seem to have a running turn.
    pub(crate) fn unfinished(&self) -> Vec<&Task> {
        let finished = |task: &Task| task.state().is_terminal() || task.state().is_interrupted();
        self.tasks.values().map(|logged| &logged.task).filter(|task| !finished(task)).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.tasks.len()
    }
}

impl Logged {
    /// Returns whether the task had this state after some event.
    fn had_state(&self, task: &Task) -> bool {
        self.task == *task || self.positions(task).is_some()
    }

    /// Returns the sequence numbers of the first and the last event after which the task had this state.
    pub(crate) fn positions(&self, task: &Task) -> Option<(u64, u64)> {
        let (mut replayed, mut found) = (Task::default(), None);
        for event in &self.log {
            event.payload().into_iter().for_each(|payload| task::apply(&mut replayed, payload));
            if replayed == *task {
                found = Some((found.map_or(event.seq(), |(first, _)| first), event.seq()));
            }
        }
        found
    }
}

fn folded(log: &[Event]) -> Task {
    let mut task = Task::default();
    log.iter().filter_map(Event::payload).for_each(|payload| task::apply(&mut task, payload));
    task
}

/// Returns whether the position is that of this event, possibly under a later fencing token that has written nothing yet.
fn is_after(position: Position, event: &Event) -> bool {
    position.seq == event.seq() && position.fence >= event.position().fence
}

fn repeats_status(first: &StreamResponse, again: &StreamResponse) -> bool {
    match (&first.payload, &again.payload) {
        (Some(Payload::Task(task)), Some(Payload::StatusUpdate(again))) => {
            task.state().is_terminal() && task.status == again.status
        }
        _ => false,
    }
}

fn task_of(event: &StreamResponse) -> &str {
    match &event.payload {
        Some(Payload::Task(payload)) => &payload.id,
        Some(Payload::StatusUpdate(payload)) => &payload.task_id,
        Some(Payload::ArtifactUpdate(payload)) => &payload.task_id,
        Some(Payload::Message(payload)) => &payload.task_id,
        None => "",
    }
}
