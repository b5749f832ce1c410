//! What clients saw, as lines of JSON in a file, and the one place that says what must be true of it beside the store.

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
        Key, ListQuery, Scope, Store,
        sqlite::{Options, Sqlite},
    },
    task,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::store::place::copy;

/// Something that a client saw.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "saw", rename_all = "snake_case")]
pub(crate) enum Line {
    /// A task, in the answer to a call.
    Answer { door: String, task: Box<Task> },
    /// The beginning of a stream: after this cursor, or with the task as it is.
    Stream { stream: u64, door: String, after: Option<String> },
    /// An event of it, with its cursor where the binding has one.
    Event { stream: u64, cursor: Option<String>, event: Box<StreamResponse> },
    /// The end of it, as the server meant it.
    End { stream: u64 },
}

/// A file of lines, which grows.
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

    pub(crate) fn see(&self, line: &Line) {
        let mut text = serde_json::to_vec(line).unwrap();
        text.push(b'\n');
        self.file.lock().write_all(&text).unwrap();
        self.seen.send_modify(|it| *it += 1);
    }

    /// The number of a stream that begins.
    pub(crate) fn stream(&self, door: &str, after: Option<&Cursor>) -> u64 {
        let stream = self.streams.fetch_add(1, Ordering::Relaxed);
        let after = after.map(|it| it.as_str().to_owned());
        self.see(&Line::Stream { stream, door: door.to_owned(), after });
        stream
    }

    /// Returns when so many lines more are there.
    pub(crate) async fn grown(&self, by: usize) {
        let mut seen = self.seen.subscribe();
        let enough = *seen.borrow() + by;
        seen.wait_for(|it| *it >= enough).await.unwrap();
    }
}

/// The lines of a file.
pub(crate) fn read(path: &Path) -> Vec<Line> {
    fs::read_to_string(path).unwrap().lines().map(|it| serde_json::from_str(it).unwrap()).collect()
}

/// A store as it was left: each task's log, and what else it says of it.
pub(crate) struct Left {
    tasks: BTreeMap<String, Logged>,
    wrong: Vec<String>,
}

struct Logged {
    log: Vec<Event>,
    task: Task,
}

/// What a stream had.
#[derive(Default)]
struct Stream<'a> {
    door: &'a str,
    after: Option<Cursor>,
    events: Vec<(Option<Cursor>, &'a StreamResponse)>,
    ended: bool,
}

impl Left {
    /// Reads all that is in a file, of which the process that wrote it may have been killed: in a copy, so that nothing
    /// is changed.
    pub(crate) async fn read(directory: &Path) -> Self {
        let left = tempfile::tempdir().unwrap();
        copy(directory, left.path());
        let store = Sqlite::open(&left.path().join("a2a.db"), Options::default()).unwrap();
        Self::of(&store).await
    }

    pub(crate) async fn of(store: &dyn Store) -> Self {
        let mut it = Self { tasks: BTreeMap::new(), wrong: Vec::new() };
        let scope = Arc::<Scope>::default();
        let mut query = ListQuery { scope: Arc::clone(&scope), limit: 100, artifacts: true, ..ListQuery::default() };
        let mut states: HashMap<TaskState, u64> = HashMap::new();
        loop {
            let page = store.list(&query).await.unwrap();
            for listed in page.tasks {
                let key = Key::new(&scope, &listed.id);
                let Some(mut stored) = store.load(&key).await.unwrap() else {
                    it.wrong.push(format!("{} is listed, and is not there", listed.id));
                    continue;
                };
                let (at, state) = (stored.at, stored.row.state);
                *states.entry(state).or_default() += 1;
                let task = stored.task(store, &key).await.unwrap();
                let log = store.events(&key, 0, usize::MAX).await.unwrap().events;
                if (&listed, listed.state()) != (&task, state) {
                    it.wrong.push(format!("{listed:?} is listed, and is {task:?}, {state:?}"));
                }
                if !log.last().is_some_and(|it| is_after(at, it)) {
                    it.wrong.push(format!("{} stands at {at:?}, and its log ends with {:?}", task.id, log.last()));
                }
                it.tasks.insert(task.id.clone(), Logged { log, task });
            }
            query.after = page.next;
            if query.after.is_none() {
                break;
            }
        }
        for state in (1..=8).filter_map(|it| TaskState::try_from(it).ok()) {
            let query = ListQuery { scope: Arc::clone(&scope), state: Some(state), limit: 1, ..ListQuery::default() };
            let (total, there) = (store.list(&query).await.unwrap().total, states.get(&state).copied().unwrap_or(0));
            if total != there {
                it.wrong.push(format!("{total} tasks are said to be {state:?}, and {there} are"));
            }
        }
        it.logs();
        it
    }

    /// Each log by itself: without holes, and with one end.
    fn logs(&mut self) {
        let mut messages = HashSet::new();
        for (id, Logged { log, task }) in &self.tasks {
            let wrong = &mut self.wrong;
            let seqs = log.iter().map(Event::seq);
            if !seqs.eq(1..=u64::try_from(log.len()).unwrap()) {
                wrong.push(format!("{id}: the log has a hole: {log:?}"));
            }
            if log.windows(2).any(|it| it[0].position().fence > it[1].position().fence) {
                wrong.push(format!("{id}: an earlier opening wrote later: {log:?}"));
            }
            let ends = log.iter().position(|it| it.ends() == Ends::Task);
            if ends.is_some_and(|it| it + 1 != log.len()) || ends.is_some() != task.state().is_terminal() {
                wrong.push(format!("{id}: the log has not one end, which is its last: {log:?}"));
            }
            if &folded(log) != task {
                wrong.push(format!("{id}: it is {task:?}, and its log says {:?}", folded(log)));
            }
            for it in &task.history {
                if !messages.insert(&it.message_id) {
                    wrong.push(format!("{id}: a message is there twice: {it:?}"));
                }
            }
        }
    }

    /// What is not as it should be with what clients saw; nothing where all is well.
    pub(crate) fn check(&self, lines: &[Line]) -> Vec<String> {
        let mut wrong = self.wrong.clone();
        let mut streams: BTreeMap<u64, Stream<'_>> = BTreeMap::new();
        for line in lines {
            match line {
                Line::Answer { door, task } => {
                    let there = self.tasks.get(&task.id).is_some_and(|it| it.was(task));
                    if !there {
                        wrong.push(format!("{door}: an answer that no log tells: {task:?}"));
                    }
                }
                Line::Stream { stream, door, after } => {
                    let after = after.as_deref().and_then(Cursor::from_text);
                    streams.insert(*stream, Stream { door, after, ..Stream::default() });
                }
                Line::Event { stream, cursor, event } => {
                    let cursor = cursor.as_deref().and_then(Cursor::from_text);
                    streams.entry(*stream).or_default().events.push((cursor, event));
                }
                Line::End { stream } => streams.entry(*stream).or_default().ended = true,
            }
        }
        wrong.extend(streams.values().filter_map(|it| self.stream(it).err()));
        wrong
    }

    /// A stream is a piece of its log: it begins where it was asked to, or with the task as it was after some event, and
    /// has each event after that which is not hidden, once.
    fn stream(&self, seen: &Stream<'_>) -> Result<(), String> {
        let Stream { door, after, events, ended } = seen;
        // Whoever comes to a task of 0.3 that is over is told once more that it is.
        let events = match &**events {
            [first, again] if door.ends_with("0.3") && tells_again(first.1, again.1) => slice::from_ref(first),
            events => events,
        };
        let failed = |why: &str| Err(format!("{door}: {why}: after {after:?}: {events:?}"));
        let Some((_, first)) = events.first() else {
            return if *ended && after.is_none() { failed("a stream of nothing") } else { Ok(()) };
        };
        let Some(Logged { log, .. }) = self.tasks.get(task_of(first)) else {
            return failed("a stream of a task that there is not");
        };
        let fits = |at: usize, rest: &[(Option<Cursor>, &StreamResponse)]| {
            let shown = log[at..].iter().filter(|it| !it.mark().hidden);
            shown.clone().count() >= rest.len()
                && shown.zip(rest).all(|(logged, (cursor, it))| {
                    logged.message() == *it && cursor.as_ref().is_none_or(|it| Some(it) == logged.cursor())
                })
        };
        let follows = match (after, &first.payload) {
            (Some(after), _) => {
                let at = after.parts().and_then(|(_, after)| log.iter().position(|it| is_after(after, it)));
                at.is_some_and(|it| fits(it + 1, events))
            }
            (None, Some(Payload::Task(task))) => {
                let mut was = Task::default();
                let fit = |(at, logged): (usize, &Event)| {
                    logged.payload().into_iter().for_each(|it| task::apply(&mut was, it));
                    let here =
                        events[0].0.as_ref().is_none_or(|it| it.parts().is_some_and(|it| is_after(it.1, logged)));
                    here && was == *task && fits(at + 1, &events[1..])
                };
                log.iter().enumerate().any(fit)
            }
            (None, _) => return failed("a stream that does not begin with its task"),
        };
        let last = events.last().map(|it| Event::from(it.1.clone()));
        match last {
            _ if !follows => Err(format!("{door}: after {after:?}: {events:?} is no piece of {log:?}")),
            Some(last) if *ended && last.ends() == Ends::Nothing => failed("a stream that ends too early"),
            _ => Ok(()),
        }
    }

    /// Tasks at which somebody still seems to be at work.
    pub(crate) fn unsettled(&self) -> Vec<&Task> {
        let settled = |it: &Task| it.state().is_terminal() || it.state().is_interrupted();
        self.tasks.values().map(|it| &it.task).filter(|it| !settled(it)).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.tasks.len()
    }
}

impl Logged {
    /// Whether it was this at some time.
    fn was(&self, task: &Task) -> bool {
        let mut was = Task::default();
        self.task == *task
            || self.log.iter().filter_map(Event::payload).any(|it| {
                task::apply(&mut was, it);
                was == *task
            })
    }
}

fn folded(log: &[Event]) -> Task {
    let mut task = Task::default();
    log.iter().filter_map(Event::payload).for_each(|it| task::apply(&mut task, it));
    task
}

/// Whether this place is after this event: of that opening, or of a later one that had not yet written more.
fn is_after(place: Position, event: &Event) -> bool {
    place.seq == event.seq() && place.fence >= event.position().fence
}

fn tells_again(first: &StreamResponse, again: &StreamResponse) -> bool {
    match (&first.payload, &again.payload) {
        (Some(Payload::Task(it)), Some(Payload::StatusUpdate(again))) => {
            it.state().is_terminal() && it.status == again.status
        }
        _ => false,
    }
}

fn task_of(event: &StreamResponse) -> &str {
    match &event.payload {
        Some(Payload::Task(it)) => &it.id,
        Some(Payload::StatusUpdate(it)) => &it.task_id,
        Some(Payload::ArtifactUpdate(it)) => &it.task_id,
        Some(Payload::Message(it)) => &it.task_id,
        None => "",
    }
}
