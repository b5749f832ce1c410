//! The store against a list of what should be there.

use std::{collections::HashMap, time::Duration};

use futures::{FutureExt as _, executor::block_on};
use proptest::prelude::*;

use super::*;
use crate::{
    clock::timestamp,
    event::{Ends, Mark},
    pb::v1::{
        Artifact, Message, Part, TaskArtifactUpdateEvent, TaskState, TaskStatus, TaskStatusUpdateEvent,
        stream_response::Payload,
    },
    store::{CompletedTask, EventRef, Expect, IdempotencyRecord},
};

const MAX: usize = 5;

#[derive(Clone, Debug)]
enum Step {
    /// A task of this owner in this context begins, perhaps by a send that has a key.
    Begin(u8, u8, Option<u8>),
    /// One of those that are there gets a status, at this time.
    Tell(prop::sample::Index, TaskState, u8),
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
        3 => (0..2_u8, 0..2_u8, proptest::option::of(0..4_u8)).prop_map(|it| Step::Begin(it.0, it.1, it.2)),
        4 => (any::<prop::sample::Index>(), state, 0..20_u8).prop_map(|it| Step::Tell(it.0, it.1, it.2)),
        1 => (0..20_u8).prop_map(Step::Sweep),
    ];
    proptest::collection::vec(step, 1..60)
}

/// A task as it should be.
#[derive(Clone, Debug)]
struct Expected {
    key: Key,
    context: String,
    send: Option<String>,
    state: TaskState,
    time: Millis,
    seq: Seq,
    /// Its place among those that have ended.
    ended: Option<usize>,
}

#[derive(Default)]
struct Model {
    rows: Vec<Expected>,
    begun: usize,
    ends: usize,
}

fn status(task_id: &str, context_id: &str, state: TaskState, time: Millis) -> Payload {
    let status = Some(TaskStatus { state: state.into(), message: None, timestamp: Some(timestamp(time)) });
    let (task_id, context_id) = (task_id.to_owned(), context_id.to_owned());
    Payload::StatusUpdate(TaskStatusUpdateEvent { task_id, context_id, status, metadata: None })
}

fn commit(row: &Expected, was: Option<TaskState>) -> Commit {
    let (id, fence) = (row.key.id(), 1);
    let position = Position { fence, seq: row.seq };
    let payload = match was {
        None => {
            let status = TaskStatus { state: row.state.into(), message: None, timestamp: Some(timestamp(row.time)) };
            let (id, context_id) = (id.to_owned(), row.context.clone());
            Payload::Task(Task { id, context_id, status: Some(status), ..Task::default() })
        }
        Some(_) => status(id, &row.context, row.state, row.time),
    };
    let event = Event::new(position, Mark::ending(Ends::Nothing), payload);
    let checkpoint = row.state.is_terminal().then(|| {
        let mut task = Task { id: id.to_owned(), context_id: row.context.clone(), ..Task::default() };
        task::apply(&mut task, event.payload().unwrap());
        Arc::new(task)
    });
    let expect = match was {
        None => Expect::New,
        Some(_) => Expect::At(Position { fence, seq: row.seq - 1 }),
    };
    let kept = Row {
        context: row.context.as_str().into(),
        seq: row.seq,
        state: row.state,
        previous_state: was,
        status_event: Some(event.clone()),
        time: row.time,
        open: !row.state.is_terminal(),
        delivered_seq: 1,
        cancel_requested: false,
        attempt: 1,
        drained: 0,
    };
    let send = row.send.as_deref().filter(|_| was.is_none());
    let sends =
        send.map(|it| IdempotencyRecord { key: it.into(), hash: [7; 16], seq: 1, time: 0 }).into_iter().collect();
    let (key, events) = (row.key.clone(), vec![event]);
    Commit {
        key,
        expect,
        fence,
        row: kept,
        events,
        checkpoint,
        agent_state: None,
        turn_contexts: None,
        sends,
        push: None,
    }
}

impl Model {
    fn step(&mut self, store: &Memory, step: &Step) {
        match step.clone() {
            Step::Begin(owner, context, send) => {
                let scope = Arc::new(Scope { owner: format!("o{owner}").into(), tenant: "".into() });
                let key = Key::new(&scope, &format!("t{:03}", self.begun));
                self.begun += 1;
                let (context, send) = (format!("c{context}"), send.map(|it| it.to_string()));
                let row = Expected { key, context, send, state: TaskState::Submitted, time: 0, seq: 1, ended: None };
                let is_full = self.rows.len() == MAX;
                let oldest = self.rows.iter().filter(|it| it.ended.is_some()).min_by_key(|it| it.ended);
                let oldest = oldest.map(|it| it.key.clone());
                assert_eq!(store.check_capacity(row.key.scope()).is_ok(), !is_full || oldest.is_some());
                let written = store.commit_now(&commit(&row, None));
                let same = |it: &&Expected| it.key.scope() == row.key.scope() && it.send == row.send;
                if let Some(it) = self.rows.iter().find(same).filter(|_| row.send.is_some()) {
                    return assert_eq!(written, Err(Refused::Duplicate { task_id: it.key.id().into() }));
                }
                match (is_full, oldest) {
                    (true, None) => return assert_eq!(written, Err(Refused::Full(Full::tasks(MAX)))),
                    (true, Some(oldest)) => self.rows.retain(|it| it.key != oldest),
                    (false, _) => {}
                }
                assert_eq!(written, Ok(()));
                let again = store.commit_now(&commit(&row, None));
                assert_eq!(again, Err(Refused::Stale(Some(Position { fence: 1, seq: 1 }))));
                self.rows.push(row);
            }
            Step::Tell(which, state, time) => {
                let running: Vec<usize> = (0..self.rows.len()).filter(|it| self.rows[*it].ended.is_none()).collect();
                if running.is_empty() {
                    return;
                }
                let row = &mut self.rows[*which.get(&running)];
                let was = row.state;
                (row.state, row.time, row.seq) = (state, time.into(), row.seq + 1);
                if state.is_terminal() {
                    row.ended = Some(self.ends);
                    self.ends += 1;
                }
                assert_eq!(store.commit_now(&commit(row, Some(was))), Ok(()));
            }
            Step::Sweep(now) => {
                let policy = Retention { finished: Some(Duration::ZERO), ..Retention::FOREVER };
                let swept = block_on(store.sweep(&policy, now.into(), &|_| false)).unwrap();
                let before = self.rows.len();
                self.rows.retain(|it| it.ended.is_none() || it.time >= now.into());
                assert_eq!(usize::try_from(swept.tasks), Ok(before - self.rows.len()));
            }
        }
    }

    /// Rows, lists and totals say the same.
    fn check(&self, store: &Memory) {
        assert_eq!(store.size().0, self.rows.len());
        assert_eq!(store.room.lock().tasks, self.rows.len());
        assert_eq!(store.room.lock().ended.len(), self.rows.iter().filter(|it| it.ended.is_some()).count());
        let mut scopes: HashMap<Arc<Scope>, Vec<&Expected>> = HashMap::new();
        for row in &self.rows {
            scopes.entry(Arc::clone(row.key.scope())).or_default().push(row);
            let stored = store.load(&row.key).now_or_never().unwrap().unwrap().unwrap();
            assert_eq!((stored.position.seq, stored.row.state, stored.row.time), (row.seq, row.state, row.time));
            let log = store.events(&row.key, 0, 100).now_or_never().unwrap().unwrap();
            assert_eq!(u64::try_from(log.events.len()), Ok(row.seq));
        }
        assert_eq!(store.index.lock().len(), scopes.len(), "owners of nothing are forgotten");
        for (scope, mut rows) in scopes {
            let sends = rows.iter().filter(|it| it.send.is_some()).count();
            assert_eq!(store.index.lock()[&scope].sends.len(), sends);
            assert_eq!(store.index.lock()[&scope].by_context.len(), rows.len());
            rows.sort_by_key(|it| std::cmp::Reverse((it.time, it.key.id())));
            let states = [None, Some(TaskState::Submitted), Some(TaskState::Working), Some(TaskState::Completed)];
            for (state, context) in states.into_iter().flat_map(|it| [(it, None), (it, Some("c0")), (it, Some("c1"))]) {
                let fits = |it: &&&Expected| {
                    state.is_none_or(|state| it.state == state) && context.is_none_or(|context| it.context == context)
                };
                let ids: Vec<&str> = rows.iter().filter(fits).map(|it| it.key.id()).collect();
                let (mut query, mut seen) = (ListQuery { limit: 2, state, ..ListQuery::default() }, Vec::new());
                (query.scope, query.context) = (Arc::clone(&scope), context.map(Into::into));
                loop {
                    let page = store.list(&query).now_or_never().unwrap().unwrap();
                    assert_eq!(usize::try_from(page.total), Ok(ids.len()));
                    seen.extend(page.tasks.into_iter().map(|it| it.id));
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
    fn rows_lists_and_totals_agree_whatever_made_room(steps in steps()) {
        let (store, mut model) = (Memory::with_max_tasks(MAX), Model::default());
        for it in steps {
            model.step(&store, &it);
            model.check(&store);
        }
    }
}

#[test]
fn tasks_that_begin_at_once_do_not_take_the_same_place() {
    let store = Memory::with_max_tasks(MAX);
    let (threads, each) = (4, 50);
    std::thread::scope(|all| {
        for thread in 0..threads {
            let store = &store;
            all.spawn(move || {
                let scope = Arc::new(Scope { owner: format!("o{}", thread % 2).into(), tenant: "".into() });
                for n in 0..each {
                    let key = Key::new(&scope, &format!("t{thread}-{n}"));
                    let (context, state, time) = ("c".to_owned(), TaskState::Submitted, n);
                    let mut row = Expected { key, context, send: None, state, time, seq: 1, ended: None };
                    if store.commit_now(&commit(&row, None)).is_ok() {
                        (row.state, row.seq) = (TaskState::Completed, 2);
                        assert_eq!(store.commit_now(&commit(&row, Some(TaskState::Submitted))), Ok(()));
                    }
                    assert!(store.room.lock().tasks <= MAX);
                }
            });
        }
    });
    assert_eq!(store.size().0, MAX, "what has ended is kept until its place is needed");
    let totals = store.index.lock().values().map(|it| it.total(None)).sum::<usize>();
    let room = store.room.lock();
    assert_eq!((totals, room.tasks, room.ended.len()), (5, MAX, MAX));
}

/// A task that has ended when it is first committed, and whose log is told by it, reads as if it had been committed in
/// full.
#[test]
fn what_a_task_tells_of_its_log_is_its_log() {
    let (context, seq) = (Arc::from("c"), 6);
    let named = |id: &str, text: &str| Artifact {
        artifact_id: id.to_owned(),
        parts: vec![Part::text(text)],
        ..Artifact::default()
    };
    let task = Task {
        id: "t".to_owned(),
        context_id: "c".to_owned(),
        status: Some(TaskStatus {
            state: TaskState::Failed.into(),
            message: Some(Message::agent("no")),
            timestamp: Some(timestamp(7)),
        }),
        artifacts: vec![named("a", "one"), named("b", "two and three")],
        history: vec![Message::user("hello")],
        ..Task::default()
    };
    let at = |seq| Position { fence: 1, seq };
    let working = Event::new(at(2), Mark::NOTHING, status("t", "c", TaskState::Working, 5));
    let update = TaskArtifactUpdateEvent {
        task_id: "t".to_owned(),
        context_id: "c".to_owned(),
        artifact: Some(named("b", "two")),
        ..TaskArtifactUpdateEvent::default()
    };
    let told = vec![
        EventRef::Event(working),
        EventRef::Artifact { mark: Mark::NOTHING, index: 0, last: true },
        EventRef::Event(Event::new(at(4), Mark::NOTHING, Payload::ArtifactUpdate(update))),
        EventRef::Artifact { mark: Mark::NOTHING, index: 1, last: false },
        EventRef::Status { mark: Mark::ending(Ends::Task) },
    ];
    let row = Row {
        context,
        seq,
        state: TaskState::Failed,
        previous_state: None,
        status_event: None,
        time: 7,
        open: false,
        delivered_seq: 1,
        cancel_requested: false,
        attempt: 1,
        drained: 0,
    };
    let key = Key::new(&Arc::default(), "t");
    let whole = CompletedTask { key: key.clone(), fence: 1, row, submitted_at: 3, task: Arc::new(task), events: told };
    let (short, long) = (Memory::with_max_tasks(1), Memory::with_max_tasks(1));
    short.commit_completed(&whole).unwrap();
    long.commit_now(&whole.to_commit()).unwrap();
    assert!(short.size().1 < long.size().1, "{short:?} {long:?}");
    for after in 0..=seq {
        let events = [&short, &long].map(|it| it.events(&key, after, 10).now_or_never().unwrap().unwrap().events);
        assert_eq!(events[0].len(), usize::try_from(seq - after).unwrap());
        assert_eq!(format!("{:?}", events[0]), format!("{:?}", events[1]));
    }
    let loaded = [&short, &long].map(|it| it.load(&key).now_or_never().unwrap().unwrap().unwrap());
    let [first, second] =
        loaded.each_ref().map(|it| it.checkpoint.clone().map(|(seq, task)| (seq, task.into_task().unwrap())));
    assert_eq!(first, second);
    assert!(first.is_some());
    assert_eq!(loaded[0].position, loaded[1].position);
    assert!(short.commit_completed(&whole).is_err_and(|it| it == Refused::Stale(Some(at(seq)))));
    assert_eq!(short.size().0, 1);
    // What is not there yet takes the place of what has ended.
    let other = CompletedTask { key: Key::new(&Arc::default(), "other"), ..whole };
    short.commit_completed(&other).unwrap();
    assert_eq!(short.size().0, 1);
}

/// The tasks of each owner are evicted in the order in which they ended, whatever the order across owners. Tasks that a
/// sweep or another owner's eviction removed leave no entries.
#[test]
fn the_quota_of_an_owner_evicts_what_ended_first() {
    let store = Memory::with_max_tasks(4).with_max_tasks_per_owner(2);
    let key = |owner: &str, id: &str| {
        let scope = Arc::new(Scope { owner: owner.into(), tenant: "".into() });
        Key::new(&scope, id)
    };
    let end = |key: &Key, time| {
        let (state, context) = (TaskState::Completed, "c".into());
        let status = Some(TaskStatus { state: state.into(), message: None, timestamp: Some(timestamp(time)) });
        let task = Arc::new(Task { id: key.id().into(), context_id: "c".into(), status, ..Task::default() });
        let row = Row {
            context,
            seq: 2,
            state,
            previous_state: None,
            status_event: None,
            time,
            open: false,
            delivered_seq: 1,
            cancel_requested: false,
            attempt: 1,
            drained: 0,
        };
        let told = vec![EventRef::Status { mark: Mark::ending(Ends::Task) }];
        store.commit_completed(&CompletedTask {
            key: key.clone(),
            fence: 1,
            row,
            submitted_at: time,
            task,
            events: told,
        })
    };
    let there = |keys: &[&Key]| keys.iter().map(|it| store.with(it, |_| ()).is_some()).collect::<Vec<_>>();
    let (a, b) = (["a1", "a2", "a3", "a4"].map(|it| key("ada", it)), ["b1", "b2", "b3"].map(|it| key("bob", it)));
    // The times are not in the order of the ends.
    for (key, time) in [(&a[0], 9), (&b[0], 8), (&a[1], 1), (&b[1], 2), (&a[2], 7)] {
        end(key, time).unwrap();
    }
    assert_eq!(there(&[&a[0], &a[1], &a[2], &b[0], &b[1]]), [false, true, true, true, true]);
    let policy = Retention { finished: Some(Duration::from_millis(10)), ..Retention::FOREVER };
    // Of both owners goes what ended before 5.
    let swept = block_on(store.sweep(&policy, 15, &|_| false)).unwrap();
    assert_eq!((swept.tasks, there(&[&a[2], &b[0]])), (2, vec![true, true]));
    for key in [&a[3], &b[2], &b[1]] {
        end(key, 20).unwrap();
    }
    assert_eq!(there(&[&a[2], &a[3], &b[0], &b[1], &b[2]]), [true, true, false, true, true]);
    let room = store.room.lock();
    assert_eq!((room.tasks, room.ended.len()), (4, 4));
}
