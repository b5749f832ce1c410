//! Retention: sweeps of tasks, logs, push configurations and idempotency keys, idle interrupted tasks, and eviction at the
//! limits of tasks.

use std::{sync::Arc, time::Duration};

use a2a_service::{
    clock::Millis,
    pb::v1::{TaskPushNotificationConfig, TaskState},
    store::{
        Commit, Full, IdempotencyRecord, Key, ListQuery, PushConfig, Refused, Retention, Row, Scope, SweepResult,
        memory::Memory, sqlite::Options,
    },
};

use super::{
    MANY, Open, at, finished, keyed,
    opened::OpenedStore,
    writer::{Writer, chunk, message, scope, status},
};

const NOT_IN_USE: &(dyn Fn(&Key) -> bool + Send + Sync) = &|_| false;

pub(super) async fn expired_terminal_tasks_are_swept(open: Open<'_>) {
    let store = open(MANY);
    let mut writers = Vec::new();
    for n in 0..6 {
        for owner in ["ada", "bob"] {
            let mut task = Writer::new(&store, &scope(owner, ""), &format!("t-{n}"));
            task.commit([]).await.unwrap();
            // Every other task is terminal, since 1000, 3000 and 5000.
            let state = if n % 2 == 1 { TaskState::Completed } else { TaskState::Working };
            task.commit([status(state, n * 1000)]).await.unwrap();
            writers.push(task);
        }
    }
    let policy = finished(2000);
    let sweep = async |now| store.sweep(&policy, now, NOT_IN_USE).await.unwrap().tasks;
    assert_eq!(sweep(3000).await, 0, "the bound is exclusive");
    assert_eq!(store.sweep(&Retention::FOREVER, Millis::MAX, NOT_IN_USE).await.unwrap(), SweepResult::default());
    assert_eq!(sweep(5001).await, 4);
    assert_eq!(sweep(5001).await, 0);
    for task in &writers {
        if ["t-1", "t-3"].contains(&task.key.id()) {
            assert_eq!(at(&*store, &task.key).await, None);
            assert_eq!(store.events(&task.key, 0, 10).await.unwrap().events, []);
        } else {
            task.check().await;
        }
    }
    for owner in ["ada", "bob"] {
        let query = |state| ListQuery { scope: scope(owner, ""), limit: 10, state, ..ListQuery::default() };
        for (state, total) in [(None, 4), (Some(TaskState::Completed), 1), (Some(TaskState::Working), 3)] {
            let page = store.list(&query(state)).await.unwrap();
            assert_eq!((page.total, page.tasks.len()), (total, usize::try_from(total).unwrap()));
        }
    }
}

/// More tasks than one step deletes, and more in use than one step reads.
pub(super) async fn tasks_in_use_are_swept_later(open: Open<'_>) {
    let store = open(MANY);
    let mut tasks: Vec<_> =
        (0..300).map(|number| Writer::new(&store, &scope("ada", ""), &format!("t-{number:03}"))).collect();
    let commits = tasks.iter().zip(0..).map(|(task, time)| task.next([status(TaskState::Completed, time)]));
    let commits: Vec<_> = commits.collect();
    store.commit(commits.clone().into()).await.unwrap();
    tasks.iter_mut().zip(commits).for_each(|(task, commit)| task.record(commit));
    let in_use = |key: &Key| ("t-010".."t-110").contains(&key.id());
    assert_eq!(store.sweep(&finished(0), 250, &in_use).await.unwrap().tasks, 150);
    for (n, task) in tasks.iter().enumerate() {
        if (10..110).contains(&n) || n >= 250 {
            task.check().await;
        } else {
            assert_eq!(at(&*store, &task.key).await, None);
        }
    }
    assert_eq!(store.sweep(&finished(0), 300, NOT_IN_USE).await.unwrap().tasks, 150);
    let query = ListQuery { scope: scope("ada", ""), limit: 10, ..ListQuery::default() };
    assert_eq!(store.list(&query).await.unwrap().total, 0);
}

/// The terminal task is left. The memory store keeps both together.
pub(super) async fn log_can_expire_before_its_task(open: Open<'_>) {
    let store = open(MANY);
    let ada = scope("ada", "");
    let [mut old, mut interrupted, mut young] = ["old", "interrupted", "young"].map(|id| Writer::new(&store, &ada, id));
    for task in [&mut old, &mut interrupted, &mut young] {
        task.commit([chunk("a", "1", false)]).await.unwrap();
        task.commit([chunk("a", "2", true), message("hi")]).await.unwrap();
    }
    old.commit([status(TaskState::Failed, 5)]).await.unwrap();
    interrupted.commit([status(TaskState::InputRequired, 5)]).await.unwrap();
    young.commit([status(TaskState::Completed, 50)]).await.unwrap();
    let mut bare = Writer::new(&store, &ada, "bare");
    // Terminal without a checkpoint, which the sweep has to write.
    let end = bare.next([chunk("a", "1", false), status(TaskState::Canceled, 6)]);
    bare.write(Commit { checkpoint: None, ..end }).await.unwrap();
    let mut policy = Retention::FOREVER;
    policy.logs = Some(Duration::from_millis(10));
    for folded in [2, 0] {
        let swept = store.sweep(&policy, 20, NOT_IN_USE).await.unwrap();
        assert_eq!(
            swept,
            SweepResult { logs: if store.is_persistent() { folded } else { 0 }, ..SweepResult::default() }
        );
    }
    if store.is_persistent() {
        (old.folded, bare.folded) = (true, true);
    }
    for task in [&old, &interrupted, &young, &bare] {
        task.check().await;
    }
    let query = ListQuery { scope: Arc::clone(&ada), limit: 10, include_artifacts: true, ..ListQuery::default() };
    let listed = store.list(&query).await.unwrap().tasks;
    assert_eq!(listed.iter().map(|task| task.id.as_str()).collect::<Vec<_>>(), ["young", "bare", "old", "interrupted"]);
    assert_eq!(listed[2], old.task);
    // The task is deleted later as any other.
    assert_eq!(store.sweep(&finished(0), 20, NOT_IN_USE).await.unwrap().tasks, 2);
    assert_eq!(at(&*store, &old.key).await, None);
    interrupted.check().await;
}

/// A log of many rows is deleted in several steps.
pub(super) async fn long_log_is_deleted_in_steps(open: Open<'_>) {
    let store = open(MANY);
    let mut tasks = Vec::new();
    for id in ["t-1", "t-2"] {
        let mut task = Writer::new(&store, &scope("ada", ""), id);
        for n in 0..1500 {
            task.commit([chunk("a", "x", n > 0)]).await.unwrap();
        }
        task.commit([status(TaskState::Completed, 5)]).await.unwrap();
        tasks.push(task);
    }
    let mut policy = Retention::FOREVER;
    policy.logs = Some(Duration::ZERO);
    let swept = store.sweep(&policy, 20, NOT_IN_USE).await.unwrap();
    assert_eq!(swept.logs, if store.is_persistent() { 2 } else { 0 });
    for task in &mut tasks {
        task.folded = store.is_persistent();
        task.check().await;
    }
    let mut one = Writer::new(&store, &scope("ada", ""), "t-3");
    for _ in 0..1100 {
        one.commit([chunk("a", "x", true)]).await.unwrap();
    }
    one.commit([status(TaskState::Completed, 5)]).await.unwrap();
    assert_eq!(store.sweep(&finished(0), 20, NOT_IN_USE).await.unwrap().tasks, 3);
    assert_eq!(store.events(&one.key, 0, 10).await.unwrap().events, []);
}

pub(super) async fn push_configurations_can_expire_before_their_task(open: Open<'_>) {
    let store = open(MANY);
    let push = |id: &str| {
        let config = TaskPushNotificationConfig { id: id.into(), ..Default::default() };
        Arc::new(PushConfig { config, version: a2a_service::protocol::Version::V1_0, extra: "".into() })
    };
    let mut tasks = Vec::new();
    for (id, state, time) in [
        ("old", TaskState::Completed, 5),
        ("interrupted", TaskState::InputRequired, 5),
        ("young", TaskState::Failed, 50),
    ] {
        let mut task = Writer::new(&store, &scope("ada", ""), id);
        task.commit([]).await.unwrap();
        for id in ["a", "b"] {
            store.put_push(&task.key, push(id), 9).await.unwrap();
        }
        task.commit([status(state, time)]).await.unwrap();
        tasks.push(task.key);
    }
    let mut policy = Retention::FOREVER;
    policy.push = Some(Duration::from_millis(10));
    let deleted = if store.is_persistent() { 2 } else { 0 };
    assert_eq!(
        store.sweep(&policy, 20, NOT_IN_USE).await.unwrap(),
        SweepResult { push_configs: deleted, ..SweepResult::default() }
    );
    assert_eq!(store.sweep(&policy, 20, NOT_IN_USE).await.unwrap(), SweepResult::default());
    for (task, remaining) in tasks.iter().zip([2 - deleted, 2, 2]) {
        let configs = store.list_push(task, 0, 9).await.unwrap().unwrap().configs;
        assert_eq!(u64::try_from(configs.len()), Ok(remaining));
    }
}

pub(super) async fn idempotency_key_can_expire_before_its_task(open: Open<'_>) {
    let store = open(MANY);
    let begin = |id: &str, key: &str, time| {
        let sends = keyed(key, 7, 1).into_iter().map(|record| IdempotencyRecord { time, ..record }).collect();
        let task = Writer::within(&store, &scope("ada", ""), id, "c-1", time);
        Commit { sends, ..task.next([]) }
    };
    let created = store.commit([begin("t-1", "one", 5), begin("t-2", "two", 50)].into()).await.unwrap();
    assert_eq!(created, [Ok(()), Ok(())]);
    let mut policy = Retention::FOREVER;
    policy.sends = Some(Duration::from_millis(10));
    let deleted = u64::from(store.is_persistent());
    assert_eq!(
        store.sweep(&policy, 20, NOT_IN_USE).await.unwrap(),
        SweepResult { idempotency_keys: deleted, ..SweepResult::default() }
    );
    let repeated = store.commit([begin("t-3", "one", 60), begin("t-4", "two", 60)].into()).await.unwrap();
    let duplicate = |id: &str| Err(Refused::Duplicate { task_id: id.into() });
    assert_eq!(repeated, [if deleted > 0 { Ok(()) } else { duplicate("t-1") }, duplicate("t-2")]);
}

pub(super) async fn idle_interrupted_tasks_are_listed(open: Open<'_>) {
    let store = open(MANY);
    for (id, state, time, open) in [
        ("late", TaskState::InputRequired, 9, false),
        ("early", TaskState::AuthRequired, 5, false),
        ("young", TaskState::InputRequired, 50, false),
        ("still runs", TaskState::AuthRequired, 5, true),
        ("working", TaskState::Working, 5, true),
        ("terminal", TaskState::Completed, 5, false),
    ] {
        let mut task = Writer::new(&store, &scope(id, "blue"), id);
        let commit = task.next([status(state, time)]);
        task.write(Commit { row: Row { open, ..commit.row }, ..commit }).await.unwrap();
    }
    let idle = async |before, limit| store.idle_tasks(before, 0, limit).await.unwrap();
    let key = |id: &str| Key::new(&scope(id, "blue"), id);
    assert_eq!(idle(10, 9).await, [key("early"), key("late")]);
    assert_eq!(idle(10, 1).await, [key("early")]);
    assert_eq!(store.idle_tasks(10, 1, 9).await.unwrap(), [key("late")]);
    assert_eq!(store.idle_tasks(10, 2, 9).await.unwrap(), []);
    assert_eq!(idle(9, 9).await, [key("early")]);
    assert_eq!(idle(5, 9).await, []);
}

/// Owners whose last task was evicted. In a file they are rows of a table.
pub(super) async fn evicted_owners_leave_no_rows(open: Open<'_>) {
    let store = open(2);
    let count = |table: &str| {
        let file = rusqlite::Connection::open(store.path()?).unwrap();
        Some(file.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get::<_, i64>(0)).unwrap())
    };
    for n in 0..50 {
        // Every other task is the next one of the same owner, and every third one is written whole.
        let owner = scope("ada", &format!("tenant-{}", n / 2));
        let mut task = Writer::new(&store, &owner, &format!("t-{n}"));
        let end = status(TaskState::Completed, n);
        if n % 3 == 0 {
            task.commit([end]).await.unwrap();
        } else {
            task.commit([]).await.unwrap();
            task.commit([end]).await.unwrap();
        }
        task.check().await;
        let query = ListQuery { scope: owner, limit: 9, ..ListQuery::default() };
        assert_eq!(store.list(&query).await.unwrap().total, u64::try_from(n % 2 + 1).unwrap());
        assert!(count("scope").is_none_or(|scopes| scopes <= 2) && count("total").is_none_or(|totals| totals <= 4));
    }
    // A rejected task leaves no rows either.
    for (id, owner) in [("a", "bob"), ("b", "eve")] {
        Writer::new(&store, &scope(owner, ""), id).commit([]).await.unwrap();
    }
    let rejected = Writer::new(&store, &scope("cid", ""), "c").commit([]).await;
    assert_eq!((rejected, count("scope").unwrap_or(2)), (Err(Refused::Full(Full::tasks(2))), 2));
}

/// The limit per owner covers all tenants, and eviction never affects other owners.
#[tokio::test]
async fn tasks_per_owner_are_limited_over_all_tenants() {
    let mut options = Options::default();
    (options.max_tasks, options.max_tasks_per_owner) = (6, Some(3));
    for mut store in
        [OpenedStore::of(Arc::new(Memory::with_max_tasks(6).with_max_tasks_per_owner(3))), OpenedStore::sqlite(options)]
    {
        let (ada, blue, bob) = (scope("ada", ""), scope("ada", "blue"), scope("bob", ""));
        let full = Full::per_owner(3);
        let mut tasks: Vec<_> = [("t-1", &ada), ("t-2", &blue), ("t-3", &ada), ("t-4", &bob)]
            .map(|(id, scope)| Writer::new(&store, scope, id))
            .into();
        for task in &mut tasks {
            task.commit([]).await.unwrap();
        }
        assert_eq!(
            (store.check_capacity(&ada), store.check_capacity(&blue), store.check_capacity(&bob)),
            (Err(full), Err(full), Ok(()))
        );
        for scope in [&ada, &blue] {
            let mut more = Writer::new(&store, scope, "t-9");
            assert_eq!(more.commit([]).await, Err(Refused::Full(full)));
        }
        // A task that exists needs no capacity.
        let existing = Writer::new(&store, &ada, "t-1").next([]);
        assert_eq!(store.commit([existing].into()).await.unwrap(), [Err(Refused::Stale(Some(tasks[0].at)))]);
        // The totals are known after the store was reopened.
        tasks.iter_mut().for_each(Writer::release_store);
        store = store.reopen();
        for task in &mut tasks {
            task.use_store(&store);
        }
        assert_eq!((store.check_capacity(&ada), store.check_capacity(&bob)), (Err(full), Ok(())));
        // The oldest terminal task of the owner is evicted, whatever its tenant, even if another owner has an older one.
        tasks[3].commit([status(TaskState::Completed, 4)]).await.unwrap();
        tasks[1].commit([status(TaskState::Failed, 5)]).await.unwrap();
        tasks[0].commit([status(TaskState::Completed, 6)]).await.unwrap();
        for (id, deleted) in [("t-5", 1), ("t-6", 0)] {
            assert_eq!(store.check_capacity(&ada), Ok(()));
            let mut more = Writer::new(&store, &ada, id);
            more.commit([]).await.unwrap();
            assert_eq!(at(&*store, &tasks[deleted].key).await, None);
        }
        assert_eq!(store.check_capacity(&blue), Err(full));
        for task in &tasks[2..] {
            task.check().await;
        }
        // A sweep frees capacity as well.
        tasks[2].commit([status(TaskState::Completed, 7)]).await.unwrap();
        assert_eq!(store.sweep(&finished(0), 100, NOT_IN_USE).await.unwrap().tasks, 2);
        Writer::new(&store, &blue, "t-7").commit([]).await.unwrap();
        assert_eq!(store.check_capacity(&blue), Err(full));
    }
}

/// Simultaneous new tasks: each accepted task evicts one, and rejected tasks evict none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_accepted_task_evicts_one() {
    let mut options = Options::default();
    (options.max_tasks, options.max_tasks_per_owner) = (20, Some(8));
    for store in [
        OpenedStore::of(Arc::new(Memory::with_max_tasks(20).with_max_tasks_per_owner(8))),
        OpenedStore::sqlite(options),
    ] {
        let owners = ["ada", "bob", "cid"].map(|owner| scope(owner, ""));
        let ids = |owner: &Scope, count: usize| (0..count).map(|n| format!("{}-{n}", owner.owner)).collect::<Vec<_>>();
        for (owner, count) in owners.iter().zip([8, 8, 4]) {
            for (id, n) in ids(owner, count).iter().zip(0..) {
                // Half of the tasks are terminal.
                let end = (n % 2 == 0).then(|| status(TaskState::Completed, n));
                Writer::new(&store, owner, id).commit(end).await.unwrap();
            }
        }
        let mut commits = tokio::task::JoinSet::new();
        for n in 0..30 {
            let mut task = Writer::new(&store, &owners[n % 3], &format!("new-{n}"));
            commits.spawn(async move { task.commit([]).await });
        }
        let outcomes = commits.join_all().await;
        let accepted = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(()) | Err(Refused::Full(_)))), "{outcomes:?}");
        let (mut tasks, mut ended) = (0, 0);
        for owner in &owners {
            let query = |state| ListQuery { scope: Arc::clone(owner), limit: 1, state, ..ListQuery::default() };
            let owned = store.list(&query(None)).await.unwrap().total;
            assert!(owned <= 8, "{owned}");
            tasks += owned;
            ended += store.list(&query(Some(TaskState::Completed))).await.unwrap().total;
        }
        assert_eq!((tasks, accepted + usize::try_from(ended).unwrap()), (20, 10));
    }
}

/// A task that is refused because of one limit evicts nothing because of the other.
pub(super) async fn rejected_task_evicts_nothing(open: Open<'_>) {
    let store = open(3);
    let ada = scope("ada", "");
    let mut tasks: Vec<_> = ["t-1", "t-2", "t-3"].map(|id| Writer::new(&store, &ada, id)).into();
    for task in &mut tasks {
        task.commit([]).await.unwrap();
    }
    assert_eq!(Writer::new(&store, &ada, "t-4").commit([]).await, Err(Refused::Full(Full::tasks(3))));
    tasks[1].commit([status(TaskState::Completed, 5)]).await.unwrap();
    // Rejected for another reason than the limit.
    let duplicate = Writer::new(&store, &ada, "t-1").next([]);
    assert_eq!(store.commit([duplicate].into()).await.unwrap(), [Err(Refused::Stale(Some(tasks[0].at)))]);
    for task in &tasks {
        task.check().await;
    }
    Writer::new(&store, &ada, "t-4").commit([]).await.unwrap();
    assert_eq!(at(&*store, &tasks[1].key).await, None);
}
