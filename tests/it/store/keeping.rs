//! What is kept for how long: what a sweep deletes, what it leaves, and who waits for an answer.

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
    place::Opened,
    writer::{Writer, chunk, message, scope, status},
};

const NOBODY: &(dyn Fn(&Key) -> bool + Send + Sync) = &|_| false;

pub(super) async fn what_is_old_and_over_is_swept(open: Open<'_>) {
    let store = open(MANY);
    let mut writers = Vec::new();
    for n in 0..6 {
        for owner in ["ada", "bob"] {
            let mut task = Writer::new(&store, &scope(owner, ""), &format!("t-{n}"));
            task.commit([]).await.unwrap();
            // Every other one has ended, at 1000, 3000 and 5000.
            let state = if n % 2 == 1 { TaskState::Completed } else { TaskState::Working };
            task.commit([status(state, n * 1000)]).await.unwrap();
            writers.push(task);
        }
    }
    let policy = finished(2000);
    let sweep = async |now| store.sweep(&policy, now, NOBODY).await.unwrap().tasks;
    assert_eq!(sweep(3000).await, 0, "what is just as old as that is not older");
    assert_eq!(store.sweep(&Retention::FOREVER, Millis::MAX, NOBODY).await.unwrap(), SweepResult::default());
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

/// However many there are: more than go at a time, and more than go at a time are in use.
pub(super) async fn what_is_in_use_is_swept_later(open: Open<'_>) {
    let store = open(MANY);
    let mut tasks: Vec<_> = (0..300).map(|it| Writer::new(&store, &scope("ada", ""), &format!("t-{it:03}"))).collect();
    let ended = tasks.iter().zip(0..).map(|(it, time)| it.next([status(TaskState::Completed, time)]));
    let ended: Vec<_> = ended.collect();
    store.commit(ended.clone().into()).await.unwrap();
    tasks.iter_mut().zip(ended).for_each(|(it, commit)| it.wrote(commit));
    let in_use = |it: &Key| ("t-010".."t-110").contains(&it.id());
    assert_eq!(store.sweep(&finished(0), 250, &in_use).await.unwrap().tasks, 150);
    for (n, it) in tasks.iter().enumerate() {
        if (10..110).contains(&n) || n >= 250 {
            it.check().await;
        } else {
            assert_eq!(at(&*store, &it.key).await, None);
        }
    }
    assert_eq!(store.sweep(&finished(0), 300, NOBODY).await.unwrap().tasks, 150);
    let query = ListQuery { scope: scope("ada", ""), limit: 10, ..ListQuery::default() };
    assert_eq!(store.list(&query).await.unwrap().total, 0);
}

/// What is left of it is the task as it ended. Memory keeps both together.
pub(super) async fn a_log_may_go_before_its_task(open: Open<'_>) {
    let store = open(MANY);
    let ada = scope("ada", "");
    let [mut old, mut asked, mut young] = ["old", "asked", "young"].map(|it| Writer::new(&store, &ada, it));
    for it in [&mut old, &mut asked, &mut young] {
        it.commit([chunk("a", "1", false)]).await.unwrap();
        it.commit([chunk("a", "2", true), message("hi")]).await.unwrap();
    }
    old.commit([status(TaskState::Failed, 5)]).await.unwrap();
    asked.commit([status(TaskState::InputRequired, 5)]).await.unwrap();
    young.commit([status(TaskState::Completed, 50)]).await.unwrap();
    let mut bare = Writer::new(&store, &ada, "bare");
    // It ended without a checkpoint, which it has to be given then.
    let end = bare.next([chunk("a", "1", false), status(TaskState::Canceled, 6)]);
    bare.write(Commit { checkpoint: None, ..end }).await.unwrap();
    let mut policy = Retention::FOREVER;
    policy.logs = Some(Duration::from_millis(10));
    for folded in [2, 0] {
        let swept = store.sweep(&policy, 20, NOBODY).await.unwrap();
        assert_eq!(swept, SweepResult { logs: if store.lasts() { folded } else { 0 }, ..SweepResult::default() });
    }
    if store.lasts() {
        (old.folded, bare.folded) = (true, true);
    }
    for it in [&old, &asked, &young, &bare] {
        it.check().await;
    }
    let query = ListQuery { scope: Arc::clone(&ada), limit: 10, include_artifacts: true, ..ListQuery::default() };
    let listed = store.list(&query).await.unwrap().tasks;
    assert_eq!(listed.iter().map(|it| it.id.as_str()).collect::<Vec<_>>(), ["young", "bare", "old", "asked"]);
    assert_eq!(listed[2], old.task);
    // It goes like any other.
    assert_eq!(store.sweep(&finished(0), 20, NOBODY).await.unwrap().tasks, 2);
    assert_eq!(at(&*store, &old.key).await, None);
    asked.check().await;
}

/// A log of many pieces takes several steps.
pub(super) async fn a_long_log_goes_too(open: Open<'_>) {
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
    let swept = store.sweep(&policy, 20, NOBODY).await.unwrap();
    assert_eq!(swept.logs, if store.lasts() { 2 } else { 0 });
    for it in &mut tasks {
        it.folded = store.lasts();
        it.check().await;
    }
    let mut one = Writer::new(&store, &scope("ada", ""), "t-3");
    for _ in 0..1100 {
        one.commit([chunk("a", "x", true)]).await.unwrap();
    }
    one.commit([status(TaskState::Completed, 5)]).await.unwrap();
    assert_eq!(store.sweep(&finished(0), 20, NOBODY).await.unwrap().tasks, 3);
    assert_eq!(store.events(&one.key, 0, 10).await.unwrap().events, []);
}

pub(super) async fn push_configurations_may_go_before_their_task(open: Open<'_>) {
    let store = open(MANY);
    let push = |id: &str| {
        let config = TaskPushNotificationConfig { id: id.into(), ..Default::default() };
        Arc::new(PushConfig { config, version: a2a_service::protocol::Version::V1_0, extra: "".into() })
    };
    let mut tasks = Vec::new();
    for (id, state, time) in
        [("old", TaskState::Completed, 5), ("asked", TaskState::InputRequired, 5), ("young", TaskState::Failed, 50)]
    {
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
    let gone = if store.lasts() { 2 } else { 0 };
    assert_eq!(
        store.sweep(&policy, 20, NOBODY).await.unwrap(),
        SweepResult { push_configs: gone, ..SweepResult::default() }
    );
    assert_eq!(store.sweep(&policy, 20, NOBODY).await.unwrap(), SweepResult::default());
    for (task, left) in tasks.iter().zip([2 - gone, 2, 2]) {
        let configs = store.list_push(task, 0, 9).await.unwrap().unwrap().configs;
        assert_eq!(u64::try_from(configs.len()), Ok(left));
    }
}

pub(super) async fn the_key_of_a_send_may_go_before_its_task(open: Open<'_>) {
    let store = open(MANY);
    let begin = |id: &str, key: &str, time| {
        let sends = keyed(key, 7, 1).into_iter().map(|it| IdempotencyRecord { time, ..it }).collect();
        let task = Writer::within(&store, &scope("ada", ""), id, "c-1", time);
        Commit { sends, ..task.next([]) }
    };
    let made = store.commit([begin("t-1", "one", 5), begin("t-2", "two", 50)].into()).await.unwrap();
    assert_eq!(made, [Ok(()), Ok(())]);
    let mut policy = Retention::FOREVER;
    policy.sends = Some(Duration::from_millis(10));
    let gone = u64::from(store.lasts());
    assert_eq!(
        store.sweep(&policy, 20, NOBODY).await.unwrap(),
        SweepResult { idempotency_keys: gone, ..SweepResult::default() }
    );
    let again = store.commit([begin("t-3", "one", 60), begin("t-4", "two", 60)].into()).await.unwrap();
    let duplicate = |id: &str| Err(Refused::Duplicate { task_id: id.into() });
    assert_eq!(again, [if gone > 0 { Ok(()) } else { duplicate("t-1") }, duplicate("t-2")]);
}

pub(super) async fn who_waits_for_an_answer_is_known(open: Open<'_>) {
    let store = open(MANY);
    for (id, state, time, open) in [
        ("late", TaskState::InputRequired, 9, false),
        ("early", TaskState::AuthRequired, 5, false),
        ("young", TaskState::InputRequired, 50, false),
        ("goes on", TaskState::AuthRequired, 5, true),
        ("works", TaskState::Working, 5, true),
        ("is over", TaskState::Completed, 5, false),
    ] {
        let mut task = Writer::new(&store, &scope(id, "blue"), id);
        let asks = task.next([status(state, time)]);
        task.write(Commit { row: Row { open, ..asks.row }, ..asks }).await.unwrap();
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
pub(super) async fn evicted_owners_leave_nothing_behind(open: Open<'_>) {
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
    // One that finds no place leaves nothing behind either.
    for (id, owner) in [("a", "bob"), ("b", "eve")] {
        Writer::new(&store, &scope(owner, ""), id).commit([]).await.unwrap();
    }
    let refused = Writer::new(&store, &scope("cid", ""), "c").commit([]).await;
    assert_eq!((refused, count("scope").unwrap_or(2)), (Err(Refused::Full(Full::tasks(2))), 2));
}

/// One owner's tasks are of all their tenants; nobody else's go for them.
#[tokio::test]
async fn an_owner_has_so_much_room() {
    let mut options = Options::default();
    (options.max_tasks, options.max_tasks_per_owner) = (6, Some(3));
    for mut store in
        [Opened::of(Arc::new(Memory::with_max_tasks(6).with_max_tasks_per_owner(3))), Opened::sqlite(options)]
    {
        let (ada, blue, bob) = (scope("ada", ""), scope("ada", "blue"), scope("bob", ""));
        let full = Full::per_owner(3);
        let mut tasks: Vec<_> = [("t-1", &ada), ("t-2", &blue), ("t-3", &ada), ("t-4", &bob)]
            .map(|(id, scope)| Writer::new(&store, scope, id))
            .into();
        for it in &mut tasks {
            it.commit([]).await.unwrap();
        }
        assert_eq!(
            (store.check_capacity(&ada), store.check_capacity(&blue), store.check_capacity(&bob)),
            (Err(full), Err(full), Ok(()))
        );
        for scope in [&ada, &blue] {
            let mut more = Writer::new(&store, scope, "t-9");
            assert_eq!(more.commit([]).await, Err(Refused::Full(full)));
        }
        // What is there already needs no room.
        let again = Writer::new(&store, &ada, "t-1").next([]);
        assert_eq!(store.commit([again].into()).await.unwrap(), [Err(Refused::Stale(Some(tasks[0].at)))]);
        // It is known too when the store is opened again.
        tasks.iter_mut().for_each(Writer::leave);
        store = store.again();
        for it in &mut tasks {
            it.go_on(&store);
        }
        assert_eq!((store.check_capacity(&ada), store.check_capacity(&bob)), (Err(full), Ok(())));
        // Theirs that ended first goes, in whichever tenant it was; not another one that ended before.
        tasks[3].commit([status(TaskState::Completed, 4)]).await.unwrap();
        tasks[1].commit([status(TaskState::Failed, 5)]).await.unwrap();
        tasks[0].commit([status(TaskState::Completed, 6)]).await.unwrap();
        for (id, gone) in [("t-5", 1), ("t-6", 0)] {
            assert_eq!(store.check_capacity(&ada), Ok(()));
            let mut more = Writer::new(&store, &ada, id);
            more.commit([]).await.unwrap();
            assert_eq!(at(&*store, &tasks[gone].key).await, None);
        }
        assert_eq!(store.check_capacity(&blue), Err(full));
        for it in &tasks[2..] {
            it.check().await;
        }
        // A sweep makes room as well.
        tasks[2].commit([status(TaskState::Completed, 7)]).await.unwrap();
        assert_eq!(store.sweep(&finished(0), 100, NOBODY).await.unwrap().tasks, 2);
        Writer::new(&store, &blue, "t-7").commit([]).await.unwrap();
        assert_eq!(store.check_capacity(&blue), Err(full));
    }
}

/// New tasks that come at the same time: each that is accepted evicts one, and none that is refused does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_many_tasks_are_evicted_as_are_accepted() {
    let mut options = Options::default();
    (options.max_tasks, options.max_tasks_per_owner) = (20, Some(8));
    for store in [Opened::of(Arc::new(Memory::with_max_tasks(20).with_max_tasks_per_owner(8))), Opened::sqlite(options)]
    {
        let owners = ["ada", "bob", "cid"].map(|owner| scope(owner, ""));
        let ids = |owner: &Scope, count: usize| (0..count).map(|n| format!("{}-{n}", owner.owner)).collect::<Vec<_>>();
        for (owner, count) in owners.iter().zip([8, 8, 4]) {
            for (id, n) in ids(owner, count).iter().zip(0..) {
                // Half of the tasks have ended.
                let end = (n % 2 == 0).then(|| status(TaskState::Completed, n));
                Writer::new(&store, owner, id).commit(end).await.unwrap();
            }
        }
        let mut begun = tokio::task::JoinSet::new();
        for n in 0..30 {
            let mut task = Writer::new(&store, &owners[n % 3], &format!("new-{n}"));
            begun.spawn(async move { task.commit([]).await });
        }
        let outcomes = begun.join_all().await;
        let accepted = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(()) | Err(Refused::Full(_)))), "{outcomes:?}");
        let (mut tasks, mut ended) = (0, 0);
        for owner in &owners {
            let query = |state| ListQuery { scope: Arc::clone(owner), limit: 1, state, ..ListQuery::default() };
            let theirs = store.list(&query(None)).await.unwrap().total;
            assert!(theirs <= 8, "{theirs}");
            tasks += theirs;
            ended += store.list(&query(Some(TaskState::Completed))).await.unwrap().total;
        }
        assert_eq!((tasks, accepted + usize::try_from(ended).unwrap()), (20, 10));
    }
}

/// A task that is refused because of one limit evicts nothing because of the other.
pub(super) async fn refused_task_evicts_nothing(open: Open<'_>) {
    let store = open(3);
    let ada = scope("ada", "");
    let mut tasks: Vec<_> = ["t-1", "t-2", "t-3"].map(|id| Writer::new(&store, &ada, id)).into();
    for task in &mut tasks {
        task.commit([]).await.unwrap();
    }
    assert_eq!(Writer::new(&store, &ada, "t-4").commit([]).await, Err(Refused::Full(Full::tasks(3))));
    tasks[1].commit([status(TaskState::Completed, 5)]).await.unwrap();
    // Refused for another reason than the limit.
    let duplicate = Writer::new(&store, &ada, "t-1").next([]);
    assert_eq!(store.commit([duplicate].into()).await.unwrap(), [Err(Refused::Stale(Some(tasks[0].at)))]);
    for task in &tasks {
        task.check().await;
    }
    Writer::new(&store, &ada, "t-4").commit([]).await.unwrap();
    assert_eq!(at(&*store, &tasks[1].key).await, None);
}
