//! Model test: random commits, sweeps and restarts, compared with a plain map of tasks.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use a2a_service::{
    clock::Millis,
    event::Position,
    history::HistoryLimit,
    pb::v1::{Task, TaskState},
    store::{Commit, Expect, ListQuery, Refused, Retention, Scope, TaskHead, TaskKey},
};
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use tokio::runtime::Handle;

use super::{
    Open,
    opened::OpenedStore,
    writer::{Writer, chunk, message, scope, status},
};

#[derive(Clone, Debug)]
enum Step {
    /// Commits chunks and messages to a task, and a state at the end if there is one.
    Commit { task: usize, chunks: usize, messages: usize, state: Option<usize> },
    /// Repeats a commit.
    Repeat { task: usize },
    /// Commits at an old position, or creates a task that exists.
    Stale { task: usize },
    /// Advances the time.
    Advance(Millis),
    /// Sweeps terminal tasks and logs older than these times, except tasks that are in use.
    Sweep { finished: Option<u64>, logs: Option<u64>, in_use: Option<usize> },
    /// Reopens the store, cleanly or after a crash.
    Reopen { killed: bool },
}

const STATES: [TaskState; 8] = [
    TaskState::Working,
    TaskState::InputRequired,
    TaskState::AuthRequired,
    TaskState::Working,
    TaskState::Completed,
    TaskState::Failed,
    TaskState::Canceled,
    TaskState::Rejected,
];

const TASKS: usize = 12;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let task = || 0..TASKS;
    let state = proptest::option::of(0..STATES.len());
    let commit = (task(), 0..4_usize, 0..2_usize, state);
    let commit = commit.prop_map(|(task, chunks, messages, state)| Step::Commit { task, chunks, messages, state });
    let window = || proptest::option::of(0..20_u64);
    let sweep = (window(), window(), proptest::option::of(0..3_usize));
    let step = prop_oneof![
        12 => commit,
        1 => task().prop_map(|task| Step::Repeat { task }),
        2 => task().prop_map(|task| Step::Stale { task }),
        2 => (0..4_i64).prop_map(Step::Advance),
        1 => sweep.prop_map(|(finished, logs, in_use)| Step::Sweep { finished, logs, in_use }),
        1 => any::<bool>().prop_map(|killed| Step::Reopen { killed }),
    ];
    proptest::collection::vec(step, 1..120)
}

/// Expected tasks, and the current time.
struct Model {
    store: OpenedStore,
    tasks: BTreeMap<usize, Writer>,
    now: Millis,
    created: usize,
}

impl Model {
    fn scopes() -> [Arc<Scope>; 2] {
        [scope("ada", ""), scope("bob", "blue")]
    }

    fn task(&mut self, n: usize) -> &mut Writer {
        let (store, now, created) = (&self.store, self.now, &mut self.created);
        self.tasks.entry(n).or_insert_with(|| {
            *created += 1;
            let (scope, context) = (&Self::scopes()[n % 2], format!("c-{}", n % 3));
            Writer::within(store, scope, &format!("t-{n}-{created}"), &context, now)
        })
    }

    async fn step(&mut self, step: Step) {
        let now = self.now;
        match step {
            Step::Commit { task, chunks, messages, state } => {
                let task = self.task(task);
                if task.task.state().is_terminal() {
                    return;
                }
                let chunks = (0..chunks).map(|number| chunk(["a", "b"][number % 2], "text", number > 0));
                let messages = (0..messages).map(|_| message("hi"));
                let state = state.map(|state| status(STATES[state], now));
                let commit = task.next(chunks.chain(messages).chain(state));
                let open = !commit.row.state.is_terminal() && !commit.row.state.is_interrupted();
                task.write(Commit { row: TaskHead { open, ..commit.row }, ..commit }).await.unwrap();
            }
            Step::Repeat { task } => {
                let task = self.task(task);
                if !task.task.state().is_terminal() {
                    let commit = task.next([message("once")]);
                    let open = !commit.row.state.is_interrupted();
                    let commit = Commit { row: TaskHead { open, ..commit.row }, ..commit };
                    task.write(commit.clone()).await.unwrap();
                    assert_eq!(task.write(commit).await, Err(Refused::Stale(Some(task.at))));
                }
            }
            Step::Stale { task } => {
                let Some(task) = self.tasks.get_mut(&task) else { return };
                let commit = task.next([status(TaskState::Failed, now)]);
                let late = Position { seq: task.at.seq - 1, ..task.at };
                for expect in [Expect::New, Expect::At(late)] {
                    let commit = Commit { expect, ..commit.clone() };
                    assert_eq!(task.write(commit).await, Err(Refused::Stale(Some(task.at))));
                }
            }
            Step::Advance(time) => self.now += time,
            Step::Sweep { finished, logs, in_use } => {
                let deletes_logs = self.store.deletes_logs();
                let mut policy = Retention::FOREVER;
                (policy.finished, policy.logs) = (finished.map(Duration::from_millis), logs.map(Duration::from_millis));
                let used = |key: &TaskKey| in_use.is_some_and(|modulus| key.id().len() % 3 == modulus);
                let swept = self.store.sweep(&policy, now, &used).await.unwrap();
                let is_old = |task: &Writer, window: Option<u64>| {
                    task.task.state().is_terminal()
                        && window.is_some_and(|window| task.time < now - Millis::try_from(window).unwrap())
                        && !used(&task.key)
                };
                let before = self.tasks.len();
                self.tasks.retain(|_, task| !is_old(task, finished));
                assert_eq!(usize::try_from(swept.tasks), Ok(before - self.tasks.len()));
                let folded =
                    self.tasks.values_mut().filter(|task| deletes_logs && !task.is_log_deleted && is_old(task, logs));
                assert_eq!(usize::try_from(swept.logs), Ok(folded.map(|task| task.is_log_deleted = true).count()));
            }
            Step::Reopen { killed } => {
                let fence = self.store.first_fence();
                self.tasks.values_mut().for_each(Writer::release_store);
                let store = self.store.clone();
                self.store = OpenedStore::memory(0);
                self.store = if killed { store.killed() } else { store.reopen() };
                assert!(self.store.first_fence() > fence || !self.store.is_persistent());
                self.tasks.values_mut().for_each(|task| task.use_store(&self.store));
            }
        }
    }

    /// Asserts that the store has and lists the expected tasks.
    async fn check(&self) {
        for task in self.tasks.values() {
            task.check().await;
        }
        let is_idle = |task: &&Writer| task.task.state().is_interrupted() && task.time < self.now;
        let mut idle: Vec<_> = self.tasks.values().filter(is_idle).map(|task| task.key.clone()).collect();
        let mut found = self.store.idle_tasks(self.now, 0, usize::MAX).await.unwrap();
        idle.sort();
        found.sort();
        assert_eq!(found, idle);
        for scope in Self::scopes() {
            for context in [None, Some("c-0"), Some("c-1"), Some("c-9")] {
                for state in [None, Some(TaskState::Submitted), Some(TaskState::Working), Some(TaskState::Completed)] {
                    for since in [None, Some(self.now - 3), Some(self.now + 1)] {
                        let context = context.map(Into::into);
                        let scope = Arc::clone(&scope);
                        self.list(&ListQuery { scope, context, state, since, ..ListQuery::default() }).await;
                    }
                }
            }
        }
    }

    async fn list(&self, query: &ListQuery) {
        let matches = |task: &&Writer| {
            task.key.scope() == &query.scope
                && query.context.as_ref().is_none_or(|context| **context == *task.task.context_id)
                && query.state.is_none_or(|state| task.task.state() == state)
                && query.since.is_none_or(|since| task.time >= since)
        };
        let mut expected: Vec<_> = self.tasks.values().filter(matches).collect();
        expected.sort_by(|a, b| (b.time, b.key.id()).cmp(&(a.time, a.key.id())));
        for (limit, artifacts, history, history_bytes) in
            [(1, false, None, None), (5, true, Some(1), None), (100, true, None, None), (7, false, None, Some(100))]
        {
            let history_limit = HistoryLimit { messages: history, bytes: history_bytes.unwrap_or(usize::MAX) };
            let visible = |task: &&Writer| history_limit.copy_task(&task.task, artifacts);
            let expected: Vec<Task> = expected.iter().map(visible).collect();
            let (mut tasks, mut after) = (Vec::new(), None);
            loop {
                let query = ListQuery {
                    limit,
                    include_artifacts: artifacts,
                    history_length: history,
                    history_bytes,
                    after,
                    ..query.clone()
                };
                let page = self.store.list(&query).await.unwrap();
                assert_eq!(usize::try_from(page.total), Ok(expected.len()));
                assert!(page.tasks.len() <= limit && (page.next.is_none() || page.tasks.len() == limit));
                tasks.extend(page.tasks);
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(tasks, expected);
        }
    }
}

/// Asserts that the store agrees with the model over random steps, and that its totals are right.
pub(super) fn agrees(open: Open<'_>) {
    // A file takes longer to open.
    let cases = if open().deletes_logs() { 16 } else { 48 };
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let run = TestRunner::new(config).run(&steps(), |steps| {
        Handle::current().block_on(async {
            let mut model = Model { store: open(), tasks: BTreeMap::new(), now: 1000, created: 0 };
            for (n, step) in steps.into_iter().enumerate() {
                model.step(step).await;
                if n % 16 == 0 {
                    model.check().await;
                }
            }
            model.check().await;
        });
        Ok(())
    });
    if let Err(error) = run {
        panic!("{error}");
    }
}
