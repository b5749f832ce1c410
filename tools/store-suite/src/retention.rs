//! Cases of retention and quotas: sweeps of tasks, logs, push configurations and idempotency keys, idle interrupted tasks,
//! and eviction at the limits of tasks.

use std::{sync::Arc, time::Duration};

use super::{
    Checked, StoreSuite, count, finished, keyed, load, position,
    writer::{TaskWriter, chunk, message, scope, status},
};
use a2a_service::{
    clock::Millis,
    pb::v1::{TaskPushNotificationConfig, TaskState},
    protocol::Version,
    store::{
        Commit, Committed, Full, IdempotencyRecord, ListQuery, PushConfig, Refused, Rejected, Retention, Scope,
        SweepResult, TaskHead, TaskKey,
    },
};

const NOT_IN_USE: &(dyn Fn(&TaskKey) -> bool + Send + Sync) = &|_| false;

pub(super) async fn expired_terminal_tasks_are_swept(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let mut writers = Vec::new();
    for n in 0..6 {
        for owner in ["ada", "bob"] {
            let mut task = TaskWriter::new(&scope(owner, ""), &format!("t-{n}"));
            task.commit(store, []).await??;
            // Every other task is terminal, since 1000, 3000 and 5000.
            let state = if n % 2 == 1 { TaskState::Completed } else { TaskState::Working };
            task.commit(store, [status(state, n * 1000)]).await??;
            writers.push(task);
        }
    }
    let policy = finished(2000);
    let sweep = async |now| store.sweep(&policy, now, NOT_IN_USE).await.map(|swept| swept.tasks);
    ensure_eq!(sweep(3000).await?, 0, "the bound is exclusive");
    ensure_eq!(store.sweep(&Retention::FOREVER, Millis::MAX, NOT_IN_USE).await?, SweepResult::default());
    ensure_eq!(sweep(5001).await?, 4);
    ensure_eq!(sweep(5001).await?, 0);
    for task in &writers {
        if ["t-1", "t-3"].contains(&task.key.id()) {
            ensure_eq!(position(store, &task.key).await?, None);
            ensure_eq!(store.events(&task.key, 0, 10, usize::MAX).await?, []);
        } else {
            task.check(store).await?;
        }
    }
    for owner in ["ada", "bob"] {
        let query = |state| ListQuery { scope: scope(owner, ""), limit: 10, state, ..ListQuery::default() };
        for (state, total) in [(None, 4), (Some(TaskState::Completed), 1), (Some(TaskState::Working), 3)] {
            let page = store.list(&query(state)).await?;
            ensure_eq!((page.total, count(page.tasks.len())), (total, total));
        }
    }
    Ok(())
}

/// More tasks than one step deletes, and more in use than one step reads.
pub(super) async fn tasks_in_use_are_swept_later(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let mut tasks: Vec<_> =
        (0..300).map(|number| TaskWriter::new(&scope("ada", ""), &format!("t-{number:03}"))).collect();
    let commits = tasks.iter().zip(0..).map(|(task, time)| task.next(store, [status(TaskState::Completed, time)]));
    let commits: Vec<_> = commits.collect();
    store.commit(commits.clone().into()).await?;
    tasks.iter_mut().zip(commits).for_each(|(task, commit)| task.record(commit));
    let in_use = |key: &TaskKey| ("t-010".."t-110").contains(&key.id());
    ensure_eq!(store.sweep(&finished(0), 250, &in_use).await?.tasks, 150);
    for (n, task) in tasks.iter().enumerate() {
        if (10..110).contains(&n) || n >= 250 {
            task.check(store).await?;
        } else {
            ensure_eq!(position(store, &task.key).await?, None);
        }
    }
    ensure_eq!(store.sweep(&finished(0), 300, NOT_IN_USE).await?.tasks, 150);
    let query = ListQuery { scope: scope("ada", ""), limit: 10, ..ListQuery::default() };
    ensure_eq!(store.list(&query).await?.total, 0);
    Ok(())
}

/// The terminal task is left. The memory store keeps both together.
pub(super) async fn log_can_expire_before_its_task(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let ada = scope("ada", "");
    let [mut old, mut interrupted, mut young] = ["old", "interrupted", "young"].map(|id| TaskWriter::new(&ada, id));
    for task in [&mut old, &mut interrupted, &mut young] {
        task.commit(store, [chunk("a", "1", false)]).await??;
        task.commit(store, [chunk("a", "2", true), message("hi")]).await??;
    }
    old.commit(store, [status(TaskState::Failed, 5)]).await??;
    interrupted.commit(store, [status(TaskState::InputRequired, 5)]).await??;
    young.commit(store, [status(TaskState::Completed, 50)]).await??;
    let mut bare = TaskWriter::new(&ada, "bare");
    // Terminal without a checkpoint, which the sweep has to write.
    let end = bare.next(store, [chunk("a", "1", false), status(TaskState::Canceled, 6)]);
    bare.write(store, Commit { checkpoint: None, ..end }).await??;
    let mut policy = Retention::FOREVER;
    policy.logs = Some(Duration::from_millis(10));
    for folded in [2, 0] {
        let swept = store.sweep(&policy, 20, NOT_IN_USE).await?;
        ensure_eq!(
            swept,
            SweepResult { logs: if suite.has_separate_retention() { folded } else { 0 }, ..SweepResult::default() }
        );
    }
    if suite.has_separate_retention() {
        (old.is_log_deleted, bare.is_log_deleted) = (true, true);
    }
    for task in [&old, &interrupted, &young, &bare] {
        task.check(store).await?;
    }
    let query = ListQuery { scope: Arc::clone(&ada), limit: 10, include_artifacts: true, ..ListQuery::default() };
    let listed = store.list(&query).await?.tasks;
    ensure_eq!(listed.iter().map(|task| task.id.as_str()).collect::<Vec<_>>(), ["young", "bare", "old", "interrupted"]);
    ensure_eq!(listed[2], old.task);
    // The task is deleted later as any other.
    ensure_eq!(store.sweep(&finished(0), 20, NOT_IN_USE).await?.tasks, 2);
    ensure_eq!(position(store, &old.key).await?, None);
    interrupted.check(store).await?;
    Ok(())
}

/// A log of many rows is deleted in several steps.
pub(super) async fn long_log_is_deleted_in_steps(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let mut tasks = Vec::new();
    for id in ["t-1", "t-2"] {
        let mut task = TaskWriter::new(&scope("ada", ""), id);
        for n in 0..1500 {
            task.commit(store, [chunk("a", "x", n > 0)]).await??;
        }
        task.commit(store, [status(TaskState::Completed, 5)]).await??;
        tasks.push(task);
    }
    let mut policy = Retention::FOREVER;
    policy.logs = Some(Duration::ZERO);
    let swept = store.sweep(&policy, 20, NOT_IN_USE).await?;
    ensure_eq!(swept.logs, if suite.has_separate_retention() { 2 } else { 0 });
    for task in &mut tasks {
        task.is_log_deleted = suite.has_separate_retention();
        task.check(store).await?;
    }
    let mut one = TaskWriter::new(&scope("ada", ""), "t-3");
    for _ in 0..1100 {
        one.commit(store, [chunk("a", "x", true)]).await??;
    }
    one.commit(store, [status(TaskState::Completed, 5)]).await??;
    ensure_eq!(store.sweep(&finished(0), 20, NOT_IN_USE).await?.tasks, 3);
    ensure_eq!(store.events(&one.key, 0, 10, usize::MAX).await?, []);
    Ok(())
}

pub(super) async fn push_configurations_can_expire_before_their_task(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let push = |id: &str| {
        let config = TaskPushNotificationConfig { id: id.into(), ..Default::default() };
        Arc::new(PushConfig { config, version: Version::V1_0, extra: "".into() })
    };
    let mut tasks = Vec::new();
    for (id, state, time) in [
        ("old", TaskState::Completed, 5),
        ("interrupted", TaskState::InputRequired, 5),
        ("young", TaskState::Failed, 50),
    ] {
        let mut task = TaskWriter::new(&scope("ada", ""), id);
        task.commit(store, []).await??;
        for id in ["a", "b"] {
            store.put_push(&task.key, push(id), 9).await?;
        }
        task.commit(store, [status(state, time)]).await??;
        tasks.push(task.key);
    }
    let mut policy = Retention::FOREVER;
    policy.push = Some(Duration::from_millis(10));
    // A store that marks deliveries in commits has undelivered events.
    policy.undelivered = Some(Duration::ZERO);
    let deleted = if suite.has_separate_retention() { 2 } else { 0 };
    ensure_eq!(
        store.sweep(&policy, 20, NOT_IN_USE).await?,
        SweepResult { push_configs: deleted, ..SweepResult::default() }
    );
    ensure_eq!(store.sweep(&policy, 20, NOT_IN_USE).await?, SweepResult::default());
    for (task, remaining) in tasks.iter().zip([2 - deleted, 2, 2]) {
        let page = store.list_push(task, 0, 9).await?.unwrap_or_default();
        ensure_eq!(count(page.configs.len()), remaining);
    }
    Ok(())
}

pub(super) async fn idempotency_key_can_expire_before_its_task(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let begin = |id: &str, key: &str, time| {
        let sends = keyed(key, 7, 1).into_iter().map(|record| IdempotencyRecord { time, ..record }).collect();
        let task = TaskWriter::within(&scope("ada", ""), id, "c-1", time);
        Commit { sends, ..task.next(store, []) }
    };
    let created = store.commit([begin("t-1", "one", 5), begin("t-2", "two", 50)].into()).await?;
    ensure!(created.iter().all(Result::is_ok));
    let mut policy = Retention::FOREVER;
    policy.idempotency_keys = Some(Duration::from_millis(10));
    let deleted = u64::from(suite.has_separate_retention());
    ensure_eq!(
        store.sweep(&policy, 20, NOT_IN_USE).await?,
        SweepResult { idempotency_keys: deleted, ..SweepResult::default() }
    );
    let repeated = store.commit([begin("t-3", "one", 60), begin("t-4", "two", 60)].into()).await?;
    let duplicate = |id: &str| Err(Refused::Rejected(Rejected::Duplicate { task_id: id.into() }));
    ensure_eq!(repeated, [if deleted > 0 { Ok(Committed::default()) } else { duplicate("t-1") }, duplicate("t-2")]);
    Ok(())
}

pub(super) async fn idle_interrupted_tasks_are_listed(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    for (id, state, time, open) in [
        ("late", TaskState::InputRequired, 9, false),
        ("early", TaskState::AuthRequired, 5, false),
        ("young", TaskState::InputRequired, 50, false),
        ("still runs", TaskState::AuthRequired, 5, true),
        ("working", TaskState::Working, 5, true),
        ("terminal", TaskState::Completed, 5, false),
    ] {
        let mut task = TaskWriter::new(&scope(id, "blue"), id);
        let commit = task.next(store, [status(state, time)]);
        task.write(store, Commit { row: TaskHead { open, ..commit.row }, ..commit }).await??;
    }
    let idle = async |before, limit| store.idle_tasks(before, 0, limit).await;
    let key = |id: &str| TaskKey::new(&scope(id, "blue"), id);
    ensure_eq!(idle(10, 9).await?, [key("early"), key("late")]);
    ensure_eq!(idle(10, 1).await?, [key("early")]);
    ensure_eq!(store.idle_tasks(10, 1, 9).await?, [key("late")]);
    ensure_eq!(store.idle_tasks(10, 2, 9).await?, []);
    ensure_eq!(idle(9, 9).await?, [key("early")]);
    ensure_eq!(idle(5, 9).await?, []);
    Ok(())
}

/// The limit per owner covers all tenants, and eviction never affects other owners.
pub(super) async fn tasks_per_owner_are_limited_over_all_tenants(suite: &StoreSuite) -> Checked {
    let opened = suite.open_with(6, Some(3)).await;
    let store = &*opened;
    let (ada, blue, bob) = (scope("ada", ""), scope("ada", "blue"), scope("bob", ""));
    let full = Full::per_owner(3);
    let mut tasks: Vec<_> = [("t-1", &ada), ("t-2", &blue), ("t-3", &ada), ("t-4", &bob)]
        .map(|(id, scope)| TaskWriter::new(scope, id))
        .into();
    for task in &mut tasks {
        task.commit(store, []).await??;
    }
    ensure_eq!(
        (store.check_capacity(&ada), store.check_capacity(&blue), store.check_capacity(&bob)),
        (Err(full), Err(full), Ok(()))
    );
    for scope in [&ada, &blue] {
        let mut more = TaskWriter::new(scope, "t-9");
        ensure_eq!(more.commit(store, []).await?, Err(Refused::Rejected(Rejected::Full(full))));
    }
    // A task that exists needs no capacity.
    let existing = TaskWriter::new(&ada, "t-1").next(store, []);
    ensure_eq!(store.commit([existing].into()).await?, [Err(Refused::Stale(Some(tasks[0].at)))]);
    // The totals are known after the store was reopened.
    let store = &*opened.reopen().await;
    ensure_eq!((store.check_capacity(&ada), store.check_capacity(&bob)), (Err(full), Ok(())));
    // The oldest terminal task of the owner is evicted, whatever its tenant, even if another owner has an older one.
    tasks[3].commit(store, [status(TaskState::Completed, 4)]).await??;
    tasks[1].commit(store, [status(TaskState::Failed, 5)]).await??;
    tasks[0].commit(store, [status(TaskState::Completed, 6)]).await??;
    for (id, deleted) in [("t-5", 1), ("t-6", 0)] {
        ensure_eq!(store.check_capacity(&ada), Ok(()));
        let mut more = TaskWriter::new(&ada, id);
        more.commit(store, []).await??;
        ensure_eq!(position(store, &tasks[deleted].key).await?, None);
    }
    ensure_eq!(store.check_capacity(&blue), Err(full));
    for task in &tasks[2..] {
        task.check(store).await?;
    }
    // A sweep frees capacity as well.
    tasks[2].commit(store, [status(TaskState::Completed, 7)]).await??;
    ensure_eq!(store.sweep(&finished(0), 100, NOT_IN_USE).await?.tasks, 2);
    TaskWriter::new(&blue, "t-7").commit(store, []).await??;
    ensure_eq!(store.check_capacity(&blue), Err(full));
    Ok(())
}

/// Simultaneous new tasks: each accepted task evicts one, and rejected tasks evict none.
pub(super) async fn each_accepted_task_evicts_one(suite: &StoreSuite) -> Checked {
    let opened = suite.open_with(20, Some(8)).await;
    let store = &*opened;
    let owners = ["ada", "bob", "cid"].map(|owner| scope(owner, ""));
    let ids = |owner: &Scope, count: usize| (0..count).map(|n| format!("{}-{n}", owner.owner)).collect::<Vec<_>>();
    for (owner, count) in owners.iter().zip([8, 8, 4]) {
        for (id, n) in ids(owner, count).iter().zip(0..) {
            // Half of the tasks are terminal.
            let end = (n % 2 == 0).then(|| status(TaskState::Completed, n));
            TaskWriter::new(owner, id).commit(store, end).await??;
        }
    }
    let mut commits = tokio::task::JoinSet::new();
    for n in 0..30 {
        let mut task = TaskWriter::new(&owners[n % 3], &format!("new-{n}"));
        let store = opened.shared();
        commits.spawn(async move { task.commit(&*store, []).await });
    }
    let outcomes = commits.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?;
    let accepted = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    ensure!(
        outcomes.iter().all(|outcome| matches!(outcome, Ok(()) | Err(Refused::Rejected(Rejected::Full(_))))),
        "{outcomes:?}"
    );
    let (mut tasks, mut ended) = (0, 0);
    for owner in &owners {
        let query = |state| ListQuery { scope: Arc::clone(owner), limit: 1, state, ..ListQuery::default() };
        let owned = store.list(&query(None)).await?.total;
        ensure!(owned <= 8, "{owned}");
        tasks += owned;
        ended += store.list(&query(Some(TaskState::Completed))).await?.total;
    }
    ensure_eq!((tasks, count(accepted) + ended), (20, 10));
    Ok(())
}

/// A task that is refused because of one limit evicts nothing because of the other.
pub(super) async fn rejected_task_evicts_nothing(suite: &StoreSuite) -> Checked {
    let store = &*suite.open_with(3, None).await;
    let ada = scope("ada", "");
    let mut tasks: Vec<_> = ["t-1", "t-2", "t-3"].map(|id| TaskWriter::new(&ada, id)).into();
    for task in &mut tasks {
        task.commit(store, []).await??;
    }
    ensure_eq!(
        TaskWriter::new(&ada, "t-4").commit(store, []).await?,
        Err(Refused::Rejected(Rejected::Full(Full::tasks(3))))
    );
    tasks[1].commit(store, [status(TaskState::Completed, 5)]).await??;
    // Rejected for another reason than the limit.
    let duplicate = TaskWriter::new(&ada, "t-1").next(store, []);
    ensure_eq!(store.commit([duplicate].into()).await?, [Err(Refused::Stale(Some(tasks[0].at)))]);
    for task in &tasks {
        task.check(store).await?;
    }
    TaskWriter::new(&ada, "t-4").commit(store, []).await??;
    ensure_eq!(position(store, &tasks[1].key).await?, None);
    Ok(())
}

pub(super) async fn full_store_evicts_terminal_tasks(suite: &StoreSuite) -> Checked {
    let store = &*suite.open_with(3, None).await;
    let mut writers: Vec<_> = (0..3).map(|n| TaskWriter::new(&scope("ada", ""), &format!("t-{n}"))).collect();
    for writer in &mut writers {
        ensure_eq!(store.check_capacity(&Scope::default()), Ok(()));
        writer.commit(store, []).await??;
    }
    ensure_eq!(store.check_capacity(&Scope::default()), Err(Full::tasks(3)));
    let mut next = TaskWriter::new(&scope("bob", ""), "t-9");
    ensure_eq!(next.commit(store, []).await?, Err(Refused::Rejected(Rejected::Full(Full::tasks(3)))));
    ensure_eq!(position(store, &next.key).await?, None);
    // The task that ended first is evicted; commits of existing tasks need no capacity.
    for (index, time) in [(2, 5), (0, 6)] {
        writers[index].commit(store, [status(TaskState::Completed, time)]).await??;
    }
    ensure_eq!(store.check_capacity(&Scope::default()), Ok(()));
    let begin = TaskWriter::new(&scope("ada", ""), "t-1").next(store, []);
    ensure_eq!(store.commit([begin].into()).await?, [Err(Refused::Stale(Some(writers[1].at)))]);
    ensure_eq!(position(store, &writers[2].key).await?, Some(writers[2].at));
    next.commit(store, []).await??;
    ensure_eq!(position(store, &writers[2].key).await?, None);
    let mut last = TaskWriter::new(&scope("bob", ""), "t-10");
    let two = [last.next(store, []), TaskWriter::new(&scope("bob", ""), "t-11").next(store, [])];
    ensure_eq!(
        store.commit(two.into()).await?,
        [Ok(Committed::default()), Err(Refused::Rejected(Rejected::Full(Full::tasks(3))))]
    );
    ensure_eq!(position(store, &writers[0].key).await?, None);
    last.at = load(store, &last.key).await?.position;
    for task in [&writers[1], &next] {
        task.check(store).await?;
    }
    ensure_eq!(store.check_capacity(&Scope::default()), Err(Full::tasks(3)));
    Ok(())
}
