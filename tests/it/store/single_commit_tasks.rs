//! Tasks whose first commit is terminal, which are stored whole.

use std::{sync::Arc, time::Duration};

use a2a_service::{
    history::{HistoryLimit, view},
    pb::v1::TaskState,
    store::{Change, Commit, Expect, ListQuery, Refused, Retention},
};

use super::{
    MANY, Open, at,
    writer::{Writer, chunk, completed_task, scope, status},
};

pub(super) async fn single_commit_task_is_stored_whole(open: Open<'_>) {
    let store = open(2);
    let ada = scope("ada", "");
    let large = "x".repeat(5000);
    let mut tasks = ["short", "large"].map(|id| Writer::new(&store, &ada, id));
    for (task, text) in tasks.iter_mut().zip(["1", &large]) {
        // A later chunk of an artifact is another event than the first.
        let work =
            [status(TaskState::Working, 1), chunk("a", text, false), chunk("b", "2", false), chunk("a", "3", true)];
        let commit = task.next(work.into_iter().chain([status(TaskState::Completed, 2)]));
        let whole = Change::CompletedTask(completed_task(&commit).unwrap());
        assert_eq!(store.commit_changes([whole.clone()].into()).await.unwrap(), [Ok(())]);
        task.record(commit);
        task.check().await;
        assert_eq!(store.commit_changes([whole].into()).await.unwrap(), [Err(Refused::Stale(Some(task.at)))]);
        for after in 0..=task.at.seq + 1 {
            for limit in [1, 3, 9] {
                let events = store.events(&task.key, after, limit).await.unwrap().events;
                let rest = task.log.iter().filter(|event| event.seq() > after).take(limit);
                assert!(events.iter().eq(rest), "{events:?}");
            }
        }
        assert!(store.load(&task.key).await.unwrap().unwrap().checkpoint.is_some());
    }
    for artifacts in [true, false] {
        let query =
            ListQuery { scope: Arc::clone(&ada), limit: 9, include_artifacts: artifacts, ..ListQuery::default() };
        let listed = store.list(&query).await.unwrap().tasks;
        let expected = tasks.each_ref().map(|task| view(&task.task, HistoryLimit::default(), artifacts));
        assert_eq!(listed, [expected[0].clone(), expected[1].clone()]);
    }
    // Its log can expire first, and the task is evicted at the limit of tasks.
    let mut policy = Retention::FOREVER;
    policy.logs = Some(Duration::from_millis(10));
    let folded = store.sweep(&policy, 20, &|_| false).await.unwrap().logs;
    assert_eq!(folded, if store.is_persistent() { 2 } else { 0 });
    for task in &mut tasks {
        task.folded = store.is_persistent();
        task.check().await;
    }
    let mut next = Writer::new(&store, &ada, "next");
    next.commit([chunk("a", "1", false), chunk("b", "1", false), status(TaskState::Completed, 3)]).await.unwrap();
    next.check().await;
    let positions = [at(&*store, &tasks[0].key).await, at(&*store, &tasks[1].key).await];
    assert_eq!(positions.iter().flatten().count(), 1);
}

pub(super) async fn batch_of_single_commit_tasks_has_one_outcome_each(open: Open<'_>) {
    for max in [MANY, 20] {
        let store = open(max);
        let work = |text: &str| [chunk("a", text, false), status(TaskState::Completed, 5)];
        let mut tasks: Vec<_> =
            (0..25).map(|number| Writer::new(&store, &scope("ada", ""), &format!("t-{number:02}"))).collect();
        tasks[7].commit(work("before")).await.unwrap();
        let mut commits: Vec<_> = (0..25).map(|number| tasks[number].next(work("whole"))).collect();
        commits[3] = tasks[3].next(work(&"x".repeat(5000)));
        commits[7] = Commit { expect: Expect::New, ..commits[6].clone() };
        commits[7].key = tasks[7].key.clone();
        let mut batch: Vec<_> =
            commits.iter().map(|commit| Change::CompletedTask(completed_task(commit).unwrap())).collect();
        // One task that is not terminal, and one duplicate.
        commits[11] = tasks[11].next([]);
        batch[11] = Change::Commit(commits[11].clone());
        batch.push(batch[20].clone());
        let mut outcomes = store.commit_changes(batch.into()).await.unwrap();
        for ((task, commit), outcome) in tasks.iter_mut().zip(commits).zip(outcomes.drain(..25)) {
            match outcome {
                Ok(()) => task.record(commit),
                Err(error) => assert_eq!((task.key.id(), error), ("t-07", Refused::Stale(Some(task.at)))),
            }
        }
        assert_eq!(outcomes, [Err(Refused::Stale(Some(tasks[20].at)))]);
        assert!(tasks.iter().all(|task| task.at.seq > 0));
        let query = ListQuery { scope: scope("ada", ""), limit: 100, include_artifacts: true, ..ListQuery::default() };
        let page = store.list(&query).await.unwrap();
        assert_eq!(page.total, u64::try_from(max.min(25)).unwrap());
        assert_eq!(page.tasks.len(), max.min(25));
        for task in &tasks {
            if at(&*store, &task.key).await.is_some() {
                task.check().await;
            } else {
                assert!(max < 25, "{:?} is missing", task.key);
            }
        }
    }
}
