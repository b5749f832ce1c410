//! Conformance suite of stores, run over the memory store and the SQLite store with both durabilities.

mod contexts;
mod file;
mod fixture;
mod model;
pub(crate) mod opened;
mod paging;
mod push;
mod retention;
mod single_commit_tasks;
pub(crate) mod writer;

use std::{sync::Arc, time::Duration};

use a2a_service::{
    event::{Ends, Event, Mark, Position},
    pb::v1::TaskState,
    store::{
        Commit, Expect, Full, IdempotencyRecord, Key, ListQuery, Refused, Retention, Scope, SendOutcome, Store,
        memory::DEFAULT_MAX_TASKS,
        sqlite::{Durability, Options},
    },
};

use self::contexts::size_of_a_context_is_the_sum_of_its_tasks;
use self::opened::OpenedStore;
use self::paging::{page_ends_before_the_task_that_exceeds_its_bytes, pages_have_each_unchanged_task_once};
use self::push::{
    push_configuration_is_stored_with_the_first_commit, push_configurations_are_deleted_with_their_task,
    push_configurations_are_listed_in_pages, push_configurations_belong_to_their_task,
};
use self::retention::{
    evicted_owners_leave_no_rows, expired_terminal_tasks_are_swept, idempotency_key_can_expire_before_its_task,
    idle_interrupted_tasks_are_listed, log_can_expire_before_its_task, long_log_is_deleted_in_steps,
    push_configurations_can_expire_before_their_task, rejected_task_evicts_nothing, tasks_in_use_are_swept_later,
};
use self::single_commit_tasks::{
    batch_of_single_commit_tasks_has_one_outcome_each, single_commit_task_is_stored_whole,
};
use self::writer::{Writer, chunk, message, scope, status};

/// Expands the suite to one test per store and case. Each test opens an empty store with a maximum number of tasks.
macro_rules! each_store {
    ($($name:ident: $open:expr;)*) => {
        $(each_store!(@ $name, $open,
            row_has_the_position_of_its_last_commit,
            refused_commit_changes_nothing,
            idempotency_key_is_recorded_once,
            request_context_of_a_message_is_stored,
            batch_has_one_outcome_per_commit,
            batch_of_single_commit_tasks_has_one_outcome_each,
            row_can_change_without_an_event,
            saved_state_is_kept_until_replaced,
            log_can_be_read_from_every_position,
            stored_task_equals_its_folded_log,
            single_commit_task_is_stored_whole,
            expired_terminal_tasks_are_swept,
            tasks_in_use_are_swept_later,
            log_can_expire_before_its_task,
            long_log_is_deleted_in_steps,
            push_configurations_can_expire_before_their_task,
            idempotency_key_can_expire_before_its_task,
            idle_interrupted_tasks_are_listed,
            owners_and_tenants_are_isolated,
            push_configurations_belong_to_their_task,
            push_configurations_are_listed_in_pages,
            push_configurations_are_deleted_with_their_task,
            push_configuration_is_stored_with_the_first_commit,
            full_store_evicts_terminal_tasks,
            evicted_owners_leave_no_rows,
            rejected_task_evicts_nothing,
            totals_match_the_tasks,
            size_of_a_context_is_the_sum_of_its_tasks,
            pages_have_each_unchanged_task_once,
            page_ends_before_the_task_that_exceeds_its_bytes,
            store_agrees_with_the_model,
        );)*
    };
    (@ $name:ident, $open:expr, $($test:ident,)*) => {
        mod $name {
            use super::*;

            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                super::$test(&$open).await;
            })*
        }
    };
}

each_store! {
    memory: OpenedStore::memory;
    sqlite: |max_tasks| OpenedStore::sqlite(options(max_tasks));
    sqlite_power: |max_tasks| {
        let mut options = options(max_tasks);
        options.durability = Durability::Power;
        OpenedStore::sqlite(options)
    };
}

/// Opens an empty store with this maximum number of tasks.
type Open<'a> = &'a (dyn Fn(usize) -> OpenedStore + Sync);

fn options(max_tasks: usize) -> Options {
    let mut options = Options::default();
    options.max_tasks = max_tasks;
    options
}

/// Maximum number of tasks that no test reaches.
const MANY: usize = DEFAULT_MAX_TASKS;

/// Retention that deletes terminal tasks after this time and keeps everything else.
pub(crate) fn finished(millis: u64) -> Retention {
    let mut policy = Retention::FOREVER;
    policy.finished = Some(Duration::from_millis(millis));
    policy
}

async fn at(store: &dyn Store, key: &Key) -> Option<Position> {
    store.load(key).await.unwrap().map(|stored| stored.position)
}

async fn row_has_the_position_of_its_last_commit(open: Open<'_>) {
    let store = open(MANY);
    let mut task = Writer::new(&store, &scope("ada", ""), "t-1");
    assert_eq!(at(&*store, &task.key).await, None);
    task.commit([]).await.unwrap();
    assert_eq!(at(&*store, &task.key).await, Some(task.at));
    task.commit([status(TaskState::Working, 5), chunk("a", "x", false)]).await.unwrap();
    assert_eq!(at(&*store, &task.key).await, Some(Position { fence: store.fence(), seq: 3 }));
    let stored = store.load(&task.key).await.unwrap().unwrap();
    assert_eq!((stored.row.state, stored.row.time, stored.row.seq), (TaskState::Working, 5, 3));
    assert_eq!((&*stored.row.context, stored.row.open, stored.row.attempt), ("c-1", true, 1));
}

async fn refused_commit_changes_nothing(open: Open<'_>) {
    let store = open(MANY);
    let mut task = Writer::new(&store, &scope("ada", ""), "t-1");
    let begin = task.next([]);
    // The task does not exist.
    let missing = task.at_next(Position { fence: store.fence(), seq: 1 });
    assert_eq!(task.write(missing).await, Err(Refused::Stale(None)));
    assert_eq!(at(&*store, &task.key).await, None);
    assert_eq!(task.write(begin.clone()).await, Ok(()));
    // The task exists. A retry after a lost acknowledgement finds its own position.
    assert_eq!(task.write(begin).await, Err(Refused::Stale(Some(task.at))));
    let work = task.next([status(TaskState::Working, 5)]);
    for wrong in [
        Position { seq: task.at.seq - 1, ..task.at },
        Position { seq: task.at.seq + 1, ..task.at },
        Position { fence: task.at.fence + 1, ..task.at },
    ] {
        let commit = Commit { expect: Expect::At(wrong), ..work.clone() };
        assert_eq!(task.write(commit).await, Err(Refused::Stale(Some(task.at))));
    }
    task.check().await;
    let before = task.at;
    assert_eq!(task.write(work.clone()).await, Ok(()));
    assert_eq!(task.write(work).await, Err(Refused::Stale(Some(task.at))));
    assert_ne!(task.at, before);
    task.check().await;
    let query = ListQuery { scope: scope("ada", ""), limit: 10, ..ListQuery::default() };
    assert_eq!(store.list(&query).await.unwrap().total, 1);
}

/// Record of a send with this key and hash, which became event `seq`.
fn keyed(key: &str, hash_byte: u8, seq: u64) -> Vec<IdempotencyRecord> {
    vec![IdempotencyRecord { key: key.into(), hash: [hash_byte; 16], seq, time: 5 }]
}

async fn idempotency_key_is_recorded_once(open: Open<'_>) {
    let store = open(MANY);
    let ada = scope("ada", "");
    let recorded =
        |id: &str, hash_byte: u8, seq| Some(SendOutcome { task_id: id.into(), seq, hash: Box::new([hash_byte; 16]) });
    let mut one = Writer::new(&store, &ada, "t-1");
    assert_eq!(store.find_send(&ada, "k").await.unwrap(), None);
    let first = Commit { sends: keyed("k", 7, 1), ..one.next([]) };
    assert_eq!(one.write(first.clone()).await, Ok(()));
    assert_eq!(store.find_send(&ada, "k").await.unwrap(), recorded("t-1", 7, 1));
    // Retry of a commit whose acknowledgement was lost.
    assert_eq!(one.write(first).await, Err(Refused::Stale(Some(one.at))));
    let mut other = Writer::new(&store, &ada, "t-2");
    let second = Commit { sends: keyed("k", 7, 1), ..other.next([]) };
    assert_eq!(other.write(second.clone()).await, Err(Refused::Duplicate { task_id: "t-1".into() }));
    assert_eq!(at(&*store, &other.key).await, None);
    // Another key, or the key of another owner or tenant, is another send.
    assert_eq!(other.write(Commit { sends: keyed("k2", 7, 1), ..second }).await, Ok(()));
    for scope in [scope("bob", ""), scope("ada", "blue")] {
        let mut foreign = Writer::new(&store, &scope, "t-3");
        let commit = Commit { sends: keyed("k", 8, 1), ..foreign.next([]) };
        assert_eq!(foreign.write(commit).await, Ok(()));
        assert_eq!(store.find_send(&scope, "k").await.unwrap(), recorded("t-3", 8, 1));
    }
    // A follow-up, then another one.
    let follow_up = Commit { sends: keyed("f", 9, 2), ..one.next([message("more")]) };
    assert_eq!(one.write(follow_up.clone()).await, Ok(()));
    assert_eq!(one.write(follow_up).await, Err(Refused::Stale(Some(one.at))));
    let mut sends = keyed("g", 1, 3);
    sends.extend(keyed("f", 9, 3));
    let refused = Commit { sends, ..one.next([message("more")]) };
    assert_eq!(one.write(refused).await, Err(Refused::Duplicate { task_id: "t-1".into() }));
    assert_eq!(store.find_send(&ada, "f").await.unwrap(), recorded("t-1", 9, 2));
    assert_eq!(store.find_send(&ada, "g").await.unwrap(), None);
    // The key is kept after the end of the task, until the task is swept.
    one.commit([status(TaskState::Completed, 5)]).await.unwrap();
    let mut repeated = Writer::new(&store, &ada, "t-4");
    let commit = Commit { sends: keyed("k", 7, 1), ..repeated.next([]) };
    assert_eq!(repeated.write(commit.clone()).await, Err(Refused::Duplicate { task_id: "t-1".into() }));
    store.sweep(&finished(0), 100, &|_| false).await.unwrap();
    assert_eq!(store.find_send(&ada, "f").await.unwrap(), None);
    assert_eq!(repeated.write(commit).await, Ok(()));
}

async fn request_context_of_a_message_is_stored(open: Open<'_>) {
    let store = open(MANY);
    let mut task = Writer::new(&store, &scope("ada", ""), "t-1");
    let asked = async |store: &dyn Store, key: &Key| store.load(key).await.unwrap().unwrap().turn_contexts;
    let first = Commit { turn_contexts: Some("one".into()), ..task.next([]) };
    task.write(first).await.unwrap();
    task.commit([message("hi")]).await.unwrap();
    task.release_store();
    let store = store.reopen();
    task.use_store(&store);
    let key = task.key.clone();
    assert_eq!(asked(&*store, &key).await.as_deref(), Some(&b"one"[..]));
    let later = Commit { turn_contexts: Some("".into()), ..task.next([message("hi")]) };
    task.write(later).await.unwrap();
    assert_eq!(asked(&*store, &key).await.as_deref(), Some(&b""[..]));
}

async fn batch_has_one_outcome_per_commit(open: Open<'_>) {
    let store = open(MANY);
    let mut writers: Vec<_> = (0..5).map(|n| Writer::new(&store, &scope("ada", ""), &format!("t-{n}"))).collect();
    let batch: Vec<_> = writers.iter().map(|writer| writer.next([])).collect();
    for writer in &mut writers[..2] {
        writer.commit([]).await.unwrap();
    }
    let outcomes = store.commit(batch.into()).await.unwrap();
    let stale = |writer: &Writer| Err(Refused::Stale(Some(writer.at)));
    assert_eq!(outcomes, [stale(&writers[0]), stale(&writers[1]), Ok(()), Ok(()), Ok(())]);
    assert_eq!(store.commit(Arc::from([])).await.unwrap(), []);
}

async fn row_can_change_without_an_event(open: Open<'_>) {
    let store = open(MANY);
    let mut task = Writer::new(&store, &scope("ada", ""), "t-1");
    task.commit([]).await.unwrap();
    let mut touch = task.next([]);
    (touch.row.cancel_requested, touch.row.delivered_seq, touch.row.open) = (true, 1, false);
    (touch.fence, touch.row.attempt) = (task.at.fence + 3, 2);
    assert_eq!(store.commit([touch.clone()].into()).await.unwrap(), [Ok(())]);
    let stored = store.load(&task.key).await.unwrap().unwrap();
    let row = &stored.row;
    assert_eq!((row.cancel_requested, row.delivered_seq, row.open, row.attempt), (true, 1, false, 2));
    assert_eq!(stored.position, Position { fence: touch.fence, seq: 1 });
    // A retry after a lost acknowledgement is recognised by its fencing token.
    assert_eq!(store.commit([touch].into()).await.unwrap(), [Err(Refused::Stale(Some(stored.position)))]);
    task.check().await;
}

async fn saved_state_is_kept_until_replaced(open: Open<'_>) {
    let store = open(MANY);
    let mut task = Writer::new(&store, &scope("ada", ""), "t-1");
    for (saved, expected) in [(None, None), (Some("a"), Some("a")), (None, Some("a")), (Some("b"), Some("b"))] {
        let commit = task.next([message("hi")]);
        let commit = Commit { agent_state: saved.map(|text: &str| text.to_owned().into()), ..commit };
        task.write(commit).await.unwrap();
        let stored = store.load(&task.key).await.unwrap().unwrap();
        assert_eq!(stored.agent_state.as_deref(), expected.map(str::as_bytes));
    }
}

async fn log_can_be_read_from_every_position(open: Open<'_>) {
    let store = open(MANY);
    for length in [1, 2, 63, 64, 65, 127, 128, 129, 200] {
        let mut task = Writer::new(&store, &scope("ada", ""), &format!("t-{length}"));
        task.commit([]).await.unwrap();
        while task.log.len() < length {
            // Commits of varying size.
            let left = (length - task.log.len()).min(1 + task.log.len() % 7);
            task.commit((0..left).map(|n| chunk("a", &"x".repeat(n * 40), n > 0))).await.unwrap();
        }
        for ended in [false, true] {
            if ended {
                task.commit([status(TaskState::Completed, 9)]).await.unwrap();
            }
            for after in (0..=task.log.len() + 2).filter(|n| *n < 4 || n % 64 < 3 || n % 64 > 61 || n % 29 == 0) {
                for limit in [1, 2, 63, 64, 65, 1000] {
                    let log = store.events(&task.key, u64::try_from(after).unwrap(), limit).await.unwrap().events;
                    let expected: Vec<_> = task.log.iter().skip(after).take(limit).collect();
                    assert!(log.iter().eq(expected.iter().copied()), "{limit} after {after} of {length}");
                    let fields = |event: &Event| (event.position(), event.mark(), event.proto().clone());
                    assert!(log.iter().map(fields).eq(expected.into_iter().map(fields)));
                }
            }
        }
    }
    let other = Key::new(&scope("ada", ""), "t-0");
    assert_eq!(store.events(&other, 0, 10).await.unwrap().events, []);
}

async fn stored_task_equals_its_folded_log(open: Open<'_>) {
    let store = open(MANY);
    let mut task = Writer::new(&store, &scope("ada", ""), "t-1");
    let work = status(TaskState::Working, 2);
    for payloads in [
        vec![],
        vec![work, chunk("a", "1", false), chunk("a", "2", true), message("more")],
        vec![status(TaskState::InputRequired, 3)],
        vec![message("here"), chunk("b", "3", false), status(TaskState::Rejected, 4)],
    ] {
        task.commit(payloads).await.unwrap();
        task.check().await;
    }
    // Marks are stored.
    let marks: Vec<Mark> = store.events(&task.key, 0, 100).await.unwrap().events.iter().map(Event::mark).collect();
    assert_eq!(marks.iter().filter(|mark| mark.hidden).count(), 2);
    assert_eq!(
        marks.iter().map(|mark| mark.ends).filter(|ends| *ends != Ends::Nothing).collect::<Vec<_>>(),
        [Ends::Turn, Ends::Task]
    );
}

async fn owners_and_tenants_are_isolated(open: Open<'_>) {
    let store = open(MANY);
    let scopes = [scope("ada", ""), scope("ada", "blue"), scope("bob", ""), scope("", ""), scope("", "ada")];
    for (n, scope) in scopes.iter().enumerate() {
        let mut task = Writer::new(&store, scope, "t-1");
        task.commit([]).await.unwrap();
        task.commit([message(&n.to_string())]).await.unwrap();
    }
    for (n, scope) in scopes.iter().enumerate() {
        let key = Key::new(&Arc::new(Scope::clone(scope)), "t-1");
        let mut stored = store.load(&key).await.unwrap().unwrap();
        let task = stored.load_task(&*store, &key).await.unwrap();
        assert_eq!(task.history[0].text(), n.to_string());
        let query = ListQuery { scope: Arc::clone(scope), limit: 10, ..ListQuery::default() };
        let page = store.list(&query).await.unwrap();
        assert_eq!((page.total, page.tasks), (1, vec![task]));
    }
    store.check().await.unwrap();
}

async fn full_store_evicts_terminal_tasks(open: Open<'_>) {
    let store = open(3);
    let mut writers: Vec<_> = (0..3).map(|n| Writer::new(&store, &scope("ada", ""), &format!("t-{n}"))).collect();
    for writer in &mut writers {
        assert_eq!(store.check_capacity(&Scope::default()), Ok(()));
        writer.commit([]).await.unwrap();
    }
    assert_eq!(store.check_capacity(&Scope::default()), Err(Full::tasks(3)));
    let mut next = Writer::new(&store, &scope("bob", ""), "t-9");
    assert_eq!(next.commit([]).await, Err(Refused::Full(Full::tasks(3))));
    assert_eq!(at(&*store, &next.key).await, None);
    // The task that ended first is evicted; commits of existing tasks need no capacity.
    for (index, time) in [(2, 5), (0, 6)] {
        writers[index].commit([status(TaskState::Completed, time)]).await.unwrap();
    }
    assert_eq!(store.check_capacity(&Scope::default()), Ok(()));
    let begin = Writer::new(&store, &scope("ada", ""), "t-1").next([]);
    assert_eq!(store.commit([begin].into()).await.unwrap(), [Err(Refused::Stale(Some(writers[1].at)))]);
    assert_eq!(at(&*store, &writers[2].key).await, Some(writers[2].at));
    next.commit([]).await.unwrap();
    assert_eq!(at(&*store, &writers[2].key).await, None);
    let mut last = Writer::new(&store, &scope("bob", ""), "t-10");
    let two = [last.next([]), Writer::new(&store, &scope("bob", ""), "t-11").next([])];
    assert_eq!(store.commit(two.into()).await.unwrap(), [Ok(()), Err(Refused::Full(Full::tasks(3)))]);
    assert_eq!(at(&*store, &writers[0].key).await, None);
    last.at = at(&*store, &last.key).await.unwrap();
    for task in [&writers[1], &next] {
        task.check().await;
    }
    assert_eq!(store.check_capacity(&Scope::default()), Err(Full::tasks(3)));
}

async fn totals_match_the_tasks(open: Open<'_>) {
    let store = open(MANY);
    let states = [TaskState::Working, TaskState::InputRequired, TaskState::Completed, TaskState::Failed];
    let mut writers: Vec<_> = (0..40).map(|n| Writer::new(&store, &scope("ada", ""), &format!("t-{n}"))).collect();
    // All commits in one batch per round, through several states.
    for round in 0..3_usize {
        let batch: Vec<_> = writers
            .iter()
            .enumerate()
            .filter(|(_, writer)| !writer.task.state().is_terminal())
            .map(|(n, writer)| (n, writer.next((round > 0).then(|| status(states[(n + round) % 4], 5)))))
            .collect();
        let commits: Vec<_> = batch.iter().map(|entry| entry.1.clone()).collect();
        assert!(store.commit(commits.into()).await.unwrap().iter().all(Result::is_ok));
        for (n, commit) in batch {
            writers[n].record(commit);
        }
        for state in [None, Some(TaskState::Submitted)].into_iter().chain(states.map(Some)) {
            let query = ListQuery { scope: scope("ada", ""), state, limit: 7, ..ListQuery::default() };
            let expected =
                writers.iter().filter(|writer| state.is_none_or(|state| writer.task.state() == state)).count();
            assert_eq!(usize::try_from(store.list(&query).await.unwrap().total), Ok(expected), "{round} {state:?}");
        }
    }
}

async fn store_agrees_with_the_model(open: Open<'_>) {
    tokio::task::block_in_place(|| model::agrees(open));
}
