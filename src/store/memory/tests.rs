//! Property tests against a model, and tests of sealed logs and of the quota.

use std::{collections::HashMap, time::Duration};

use futures::{FutureExt as _, executor::block_on};
use proptest::prelude::*;
use prost::Message as _;

use super::*;
use crate::{
    protocol::{
        event::{Ends, EventFlags},
        json::wkt::{millis, timestamp},
        pb::v1::{
            Artifact, Message, Part, TaskArtifactUpdateEvent, TaskState, TaskStatus, TaskStatusUpdateEvent,
            stream_response::Payload,
        },
    },
    store::{Expect, IdempotencyRecord, Rejected},
};

const MAX: usize = 5;

#[derive(Clone, Debug)]
enum Step {
    /// Creates a task of an owner in a context, with an optional idempotency key.
    Create(u8, u8, Option<u8>),
    /// Sets the status of a task at a time.
    Update(prop::sample::Index, TaskState, u8),
    Sweep(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let state = prop::sample::select(vec![
        TaskState::Working,
        TaskState::InputRequired,
        TaskState::Completed,
        TaskState::Failed,
        TaskState::Canceled,
    ]);
    let step = prop_oneof![
        3 => (0..2_u8, 0..2_u8, proptest::option::of(0..4_u8)).prop_map(|(owner, context, send)| Step::Create(owner, context, send)),
        4 => (any::<prop::sample::Index>(), state, 0..20_u8).prop_map(|(task, state, time)| Step::Update(task, state, time)),
        1 => (0..20_u8).prop_map(Step::Sweep),
    ];
    proptest::collection::vec(step, 1..60)
}

/// Expected task.
#[derive(Clone, Debug)]
struct Expected {
    key: TaskKey,
    context: String,
    send: Option<String>,
    state: TaskState,
    time: Millis,
    seq: Seq,
    /// Number in the order in which tasks reached a terminal state.
    terminal_seq: Option<usize>,
}

#[derive(Default)]
struct Model {
    rows: Vec<Expected>,
    created: usize,
    terminal: usize,
}

fn status(task_id: &str, context_id: &str, state: TaskState, time: Millis) -> Payload {
    let status = Some(TaskStatus { state: state.into(), message: None, timestamp: Some(timestamp(time)) });
    let (task_id, context_id) = (task_id.to_owned(), context_id.to_owned());
    Payload::StatusUpdate(TaskStatusUpdateEvent { task_id, context_id, status, metadata: None })
}

fn commit(row: &Expected, previous: Option<TaskState>) -> Commit {
    let (id, fence) = (row.key.id(), 1);
    let position = Position { fence, seq: row.seq };
    let payload = match previous {
        None => {
            let status = TaskStatus { state: row.state.into(), message: None, timestamp: Some(timestamp(row.time)) };
            let (id, context_id) = (id.to_owned(), row.context.clone());
            Payload::Task(Task { id, context_id, status: Some(status), ..Task::default() })
        }
        Some(_) => status(id, &row.context, row.state, row.time),
    };
    let event = Event::new(position, EventFlags::ending(Ends::Nothing), payload);
    let checkpoint = row.state.is_terminal().then(|| {
        let mut task = Task { id: id.to_owned(), context_id: row.context.clone(), ..Task::default() };
        task::apply(&mut task, event.payload().unwrap());
        Arc::new(task)
    });
    let expect = match previous {
        None => Expect::New,
        Some(_) => Expect::At(Position { fence, seq: row.seq - 1 }),
    };
    let new_row = TaskHead {
        context: row.context.as_str().into(),
        seq: row.seq,
        state: row.state,
        time: row.time,
        open: !row.state.is_terminal(),
        delivered_seq: 1,
        cancel_requested: false,
        attempt: 1,
        drained: 0,
    };
    let send = row.send.as_deref().filter(|_| previous.is_none());
    let sends =
        send.map(|key| IdempotencyRecord { key: key.into(), hash: [7; 16], seq: 1, time: 0 }).into_iter().collect();
    let (key, events) = (row.key.clone(), vec![event]);
    Commit {
        key,
        expect,
        fence,
        row: new_row,
        events,
        checkpoint,
        agent_state: None,
        turn_contexts: None,
        sends,
        push: None,
        time: 0,
        turns: None,
        mail_read: 0,
    }
}

impl Model {
    fn step(&mut self, store: &Memory, step: &Step) {
        match step.clone() {
            Step::Create(owner, context, send) => {
                let scope = Arc::new(Scope { owner: format!("o{owner}").into(), tenant: "".into() });
                let key = TaskKey::new(&scope, &format!("t{:03}", self.created));
                self.created += 1;
                let (context, send) = (format!("c{context}"), send.map(|key| key.to_string()));
                let row =
                    Expected { key, context, send, state: TaskState::Submitted, time: 0, seq: 1, terminal_seq: None };
                let is_full = self.rows.len() == MAX;
                let oldest =
                    self.rows.iter().filter(|row| row.terminal_seq.is_some()).min_by_key(|row| row.terminal_seq);
                let oldest = oldest.map(|row| row.key.clone());
                assert_eq!(store.check_capacity(row.key.scope()).is_ok(), !is_full || oldest.is_some());
                let written = store.commit_sync(&commit(&row, None));
                let has_same_send = |other: &&Expected| other.key.scope() == row.key.scope() && other.send == row.send;
                if let Some(earlier) = self.rows.iter().find(has_same_send).filter(|_| row.send.is_some()) {
                    return assert_eq!(
                        written,
                        Err(Refused::Rejected(Rejected::Duplicate { task_id: earlier.key.id().into() }))
                    );
                }
                match (is_full, oldest) {
                    (true, None) => {
                        return assert_eq!(written, Err(Refused::Rejected(Rejected::Full(Full::tasks(MAX)))));
                    }
                    (true, Some(oldest)) => self.rows.retain(|row| row.key != oldest),
                    (false, _) => {}
                }
                assert_eq!(written, Ok(()));
                let repeated = store.commit_sync(&commit(&row, None));
                assert_eq!(repeated, Err(Refused::Stale(Some(Position { fence: 1, seq: 1 }))));
                self.rows.push(row);
            }
            Step::Update(which, state, time) => {
                let running: Vec<usize> =
                    (0..self.rows.len()).filter(|n| self.rows[*n].terminal_seq.is_none()).collect();
                if running.is_empty() {
                    return;
                }
                let row = &mut self.rows[*which.get(&running)];
                let previous = row.state;
                (row.state, row.time, row.seq) = (state, time.into(), row.seq + 1);
                if state.is_terminal() {
                    row.terminal_seq = Some(self.terminal);
                    self.terminal += 1;
                }
                assert_eq!(store.commit_sync(&commit(row, Some(previous))), Ok(()));
            }
            Step::Sweep(now) => {
                let policy = Retention { finished: Some(Duration::ZERO), ..Retention::FOREVER };
                let swept = block_on(store.sweep(&policy, now.into(), &|_| false)).unwrap();
                let before = self.rows.len();
                self.rows.retain(|row| row.terminal_seq.is_none() || row.time >= now.into());
                assert_eq!(usize::try_from(swept.tasks), Ok(before - self.rows.len()));
            }
        }
    }

    /// Compares rows, lists and counts with the model.
    fn check(&self, store: &Memory) {
        assert_eq!(store.size().0, self.rows.len());
        assert_eq!(store.evictions.lock().quota.total.tasks, self.rows.len());
        assert_eq!(
            store.evictions.lock().terminal.len(),
            self.rows.iter().filter(|row| row.terminal_seq.is_some()).count()
        );
        let mut scopes: HashMap<Arc<Scope>, Vec<&Expected>> = HashMap::new();
        for row in &self.rows {
            scopes.entry(Arc::clone(row.key.scope())).or_default().push(row);
            let stored = store.load(&row.key).now_or_never().unwrap().unwrap().unwrap();
            assert_eq!((stored.position.seq, stored.row.state, stored.row.time), (row.seq, row.state, row.time));
            let log = TaskStore::events(store, &row.key, 0, 100, usize::MAX).now_or_never().unwrap().unwrap();
            assert_eq!(u64::try_from(log.len()), Ok(row.seq));
        }
        assert_eq!(store.index.lock().len(), scopes.len(), "scopes without tasks are removed");
        for (scope, mut rows) in scopes {
            let sends = rows.iter().filter(|row| row.send.is_some()).count();
            assert_eq!(store.index.lock()[&scope].sends.len(), sends);
            assert_eq!(store.index.lock()[&scope].by_context.len(), rows.len());
            rows.sort_by_key(|row| std::cmp::Reverse((row.time, row.key.id())));
            let states = [None, Some(TaskState::Submitted), Some(TaskState::Working), Some(TaskState::Completed)];
            for (state, context) in
                states.into_iter().flat_map(|state| [(state, None), (state, Some("c0")), (state, Some("c1"))])
            {
                let matches = |row: &&&Expected| {
                    state.is_none_or(|state| row.state == state) && context.is_none_or(|context| row.context == context)
                };
                let ids: Vec<&str> = rows.iter().filter(matches).map(|row| row.key.id()).collect();
                let (mut query, mut seen) = (ListQuery { limit: 2, state, ..ListQuery::default() }, Vec::new());
                (query.scope, query.context) = (Arc::clone(&scope), context.map(Into::into));
                loop {
                    let page = store.list(&query).now_or_never().unwrap().unwrap();
                    assert_eq!(usize::try_from(page.total), Ok(ids.len()));
                    seen.extend(page.tasks.into_iter().map(|task| task.id));
                    let Some(next) = page.next else { break };
                    query.after = Some(next);
                }
                assert_eq!(seen, ids);
            }
        }
    }
}

proptest! {
    #[test]
    fn rows_lists_and_counts_match_the_model(steps in steps()) {
        let (store, mut model) = (Memory::with_max_tasks(MAX), Model::default());
        for step in steps {
            model.step(&store, &step);
            model.check(&store);
        }
    }
}

#[test]
fn concurrent_tasks_do_not_exceed_the_quota() {
    let store = Memory::with_max_tasks(MAX);
    let (threads, each) = (4, 50);
    std::thread::scope(|all| {
        for thread in 0..threads {
            let store = &store;
            all.spawn(move || {
                let scope = Arc::new(Scope { owner: format!("o{}", thread % 2).into(), tenant: "".into() });
                for n in 0..each {
                    let key = TaskKey::new(&scope, &format!("t{thread}-{n}"));
                    let (context, state, time) = ("c".to_owned(), TaskState::Submitted, n);
                    let mut row = Expected { key, context, send: None, state, time, seq: 1, terminal_seq: None };
                    if store.commit_sync(&commit(&row, None)).is_ok() {
                        (row.state, row.seq) = (TaskState::Completed, 2);
                        assert_eq!(store.commit_sync(&commit(&row, Some(TaskState::Submitted))), Ok(()));
                    }
                    assert!(store.evictions.lock().quota.total.tasks <= MAX);
                }
            });
        }
    });
    assert_eq!(store.size().0, MAX, "terminal tasks are kept until their quota is needed");
    let totals = store.index.lock().values().map(|index| index.count(None)).sum::<usize>();
    let evictions = store.evictions.lock();
    assert_eq!((totals, evictions.quota.total.tasks, evictions.terminal.len()), (5, MAX, MAX));
}

/// Commit of a new task that it ends. The first of the events follows the one that submits the task.
fn single_commit(key: &TaskKey, task: &Task, first: Task, payloads: Vec<(EventFlags, Payload)>) -> Commit {
    let at = |seq| Position { fence: 1, seq };
    let mut events = vec![Event::from_task(at(1), Ends::Nothing, Arc::new(first))];
    events.extend((2..).zip(payloads).map(|(seq, (mark, payload))| Event::new(at(seq), mark, payload)));
    let row = TaskHead {
        context: task.context_id.as_str().into(),
        seq: u64::try_from(events.len()).unwrap(),
        state: task.state(),
        time: task.status.as_ref().and_then(|status| status.timestamp.as_ref()).map(millis).unwrap(),
        open: false,
        delivered_seq: 1,
        cancel_requested: false,
        attempt: 1,
        drained: 0,
    };
    Commit {
        key: key.clone(),
        expect: Expect::New,
        fence: 1,
        row,
        events,
        checkpoint: Some(Arc::new(task.clone())),
        agent_state: None,
        turn_contexts: None,
        sends: Vec::new(),
        push: None,
        time: 0,
        turns: None,
        mail_read: 0,
    }
}

fn submitted(task: &Task, time: Millis) -> Task {
    let status = TaskStatus { state: TaskState::Submitted.into(), message: None, timestamp: Some(timestamp(time)) };
    let history = task.history.first().cloned().into_iter().collect();
    Task { status: Some(status), artifacts: Vec::new(), history, ..task.clone() }
}

/// The log of a task that ends with its first commit refers to the task, and has the committed events.
#[test]
fn log_of_a_single_commit_refers_to_its_task() {
    let named = |id: &str, text: &str| Artifact {
        artifact_id: id.to_owned(),
        parts: vec![Part::text(text)],
        ..Artifact::default()
    };
    let (one, two) = ("one ".repeat(50), "two and three ".repeat(50));
    let task = Task {
        id: "t".to_owned(),
        context_id: "c".to_owned(),
        status: Some(TaskStatus {
            state: TaskState::Failed.into(),
            message: Some(Message::agent("no ".repeat(50))),
            timestamp: Some(timestamp(7)),
        }),
        artifacts: vec![named("a", &one), named("b", &two)],
        history: vec![Message::user("hello ".repeat(50))],
        ..Task::default()
    };
    let update = |artifact: Artifact, append, last_chunk| TaskArtifactUpdateEvent {
        task_id: "t".to_owned(),
        context_id: "c".to_owned(),
        artifact: Some(artifact),
        append,
        last_chunk,
        metadata: None,
    };
    let end = TaskStatusUpdateEvent {
        task_id: "t".to_owned(),
        context_id: "c".to_owned(),
        status: task.status.clone(),
        metadata: None,
    };
    let payloads = || {
        vec![
            (EventFlags::NOTHING, status("t", "c", TaskState::Working, 5)),
            (EventFlags::NOTHING, Payload::ArtifactUpdate(update(named("a", &one), false, true))),
            (EventFlags::NOTHING, Payload::ArtifactUpdate(update(named("b", "two"), false, false))),
            (EventFlags::NOTHING, Payload::ArtifactUpdate(update(named("b", &two), false, false))),
            (EventFlags::ending(Ends::Task), Payload::StatusUpdate(end.clone())),
        ]
    };
    let (key, seq) = (TaskKey::new(&Arc::default(), "t"), 6);
    let stored = |commit: &Commit| {
        let store = Memory::with_max_tasks(1);
        store.commit_sync(commit).unwrap();
        for after in 0..=seq {
            let events = TaskStore::events(&store, &key, after, 10, usize::MAX).now_or_never().unwrap().unwrap();
            let expected = &commit.events[usize::try_from(after).unwrap()..];
            assert_eq!(format!("{events:?}"), format!("{expected:?}"));
        }
        let loaded = store.load(&key).now_or_never().unwrap().unwrap().unwrap();
        assert_eq!(loaded.position, Position { fence: 1, seq });
        assert_eq!(loaded.checkpoint.map(|(seq, task)| (seq, task.into_task().unwrap())), Some((seq, task.clone())));
        store
    };
    let short = single_commit(&key, &task, submitted(&task, 3), payloads());
    let store = stored(&short);
    assert!(store.size().1 < task.encoded_len() + 64, "{store:?}");
    // Events that the task does not contain exactly.
    let first = |change: &dyn Fn(&mut Task)| {
        let mut first = submitted(&task, 3);
        change(&mut first);
        single_commit(&key, &task, first, payloads())
    };
    let nanos = |task: &mut Task| task.status.as_mut().unwrap().timestamp.as_mut().unwrap().nanos += 1;
    stored(&first(&nanos));
    stored(&first(&|first| first.history.push(Message::user("more"))));
    stored(&first(&|first| first.metadata = Some(crate::protocol::pb::wkt::Struct::default())));
    let other = |at: usize, change: &dyn Fn(&mut Payload)| {
        let mut payloads = payloads();
        change(&mut payloads[at].1);
        single_commit(&key, &task, submitted(&task, 3), payloads)
    };
    let has_metadata = |payload: &mut Payload| {
        *crate::protocol::event::metadata_mut(payload) = Some(crate::protocol::pb::wkt::Struct::default());
    };
    stored(&other(1, &has_metadata));
    stored(&other(4, &has_metadata));
    stored(&other(1, &|payload| {
        let Payload::ArtifactUpdate(update) = payload else { panic!("{payload:?}") };
        update.append = true;
    }));
    let refused = store.commit_sync(&short).unwrap_err();
    assert_eq!(refused, Refused::Stale(Some(Position { fence: 1, seq })));
    assert_eq!(store.size().0, 1);
    // A new task evicts the terminal one.
    store.commit_sync(&Commit { key: TaskKey::new(&Arc::default(), "other"), ..short }).unwrap();
    assert_eq!(store.size().0, 1);
}

/// The tasks of each owner are evicted in the order in which they became terminal, whatever the order across owners. Tasks
/// that a sweep or another owner's eviction removed leave no entries.
#[test]
fn owner_quota_evicts_the_first_terminal_task() {
    let store = Memory::with_max_tasks(4).with_max_tasks_per_owner(2);
    let key = |owner: &str, id: &str| {
        let scope = Arc::new(Scope { owner: owner.into(), tenant: "".into() });
        TaskKey::new(&scope, id)
    };
    let end = |key: &TaskKey, time| {
        let status = TaskStatus { state: TaskState::Completed.into(), message: None, timestamp: Some(timestamp(time)) };
        let status = Some(status);
        let (id, context_id) = (key.id().to_owned(), "c".to_owned());
        let end = TaskStatusUpdateEvent {
            task_id: id.clone(),
            context_id: context_id.clone(),
            status: status.clone(),
            metadata: None,
        };
        let task = Task { id, context_id, status, ..Task::default() };
        let end = (EventFlags::ending(Ends::Task), Payload::StatusUpdate(end));
        store.commit_sync(&single_commit(key, &task, submitted(&task, time), vec![end]))
    };
    let exist = |keys: &[&TaskKey]| keys.iter().map(|key| store.with(key, |_| ()).is_some()).collect::<Vec<_>>();
    let (a, b) = (["a1", "a2", "a3", "a4"].map(|id| key("ada", id)), ["b1", "b2", "b3"].map(|id| key("bob", id)));
    // The status times differ from the order of the commits.
    for (key, time) in [(&a[0], 9), (&b[0], 8), (&a[1], 1), (&b[1], 2), (&a[2], 7)] {
        end(key, time).unwrap();
    }
    assert_eq!(exist(&[&a[0], &a[1], &a[2], &b[0], &b[1]]), [false, true, true, true, true]);
    let policy = Retention { finished: Some(Duration::from_millis(10)), ..Retention::FOREVER };
    // Expires tasks of both owners with a status time before 5.
    let swept = block_on(store.sweep(&policy, 15, &|_| false)).unwrap();
    assert_eq!((swept.tasks, exist(&[&a[2], &b[0]])), (2, vec![true, true]));
    for key in [&a[3], &b[2], &b[1]] {
        end(key, 20).unwrap();
    }
    assert_eq!(exist(&[&a[2], &a[3], &b[0], &b[1], &b[2]]), [true, true, false, true, true]);
    let evictions = store.evictions.lock();
    assert_eq!((evictions.quota.total.tasks, evictions.terminal.len()), (4, 4));
}
