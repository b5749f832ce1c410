//! Tasks that ended before their first commit, and are kept whole.

use std::{sync::Arc, time::Duration};

use a2a_service::{
    history::{HistoryLimit, view},
    pb::v1::TaskState,
    store::{Change, Commit, Expect, ListQuery, Refused, Retention},
};

use super::{
    MANY, Open, at,
    writer::{Writer, chunk, concluded, scope, status},
};

pub(super) async fn a_task_that_has_ended_is_kept_whole(open: Open<'_>) {
    let store = open(2);
    let ada = scope("ada", "");
    let large = "x".repeat(5000);
    let mut tasks = ["short", "large"].map(|it| Writer::new(&store, &ada, it));
    for (task, text) in tasks.iter_mut().zip(["1", &large]) {
        // What is said of an artifact later is not what was said of it first.
        let work =
            [status(TaskState::Working, 1), chunk("a", text, false), chunk("b", "2", false), chunk("a", "3", true)];
        let commit = task.next(work.into_iter().chain([status(TaskState::Completed, 2)]));
        let whole = Change::CompletedTask(concluded(&commit).unwrap());
        assert_eq!(store.commit_changes([whole.clone()].into()).await.unwrap(), [Ok(())]);
        task.wrote(commit);
        task.check().await;
        assert_eq!(store.commit_changes([whole].into()).await.unwrap(), [Err(Refused::Stale(Some(task.at)))]);
        for after in 0..=task.at.seq + 1 {
            for limit in [1, 3, 9] {
                let events = store.events(&task.key, after, limit).await.unwrap().events;
                let rest = task.log.iter().filter(|it| it.seq() > after).take(limit);
                assert!(events.iter().eq(rest), "{events:?}");
            }
        }
        assert!(store.load(&task.key).await.unwrap().unwrap().checkpoint.is_some());
    }
    for artifacts in [true, false] {
        let query =
            ListQuery { scope: Arc::clone(&ada), limit: 9, include_artifacts: artifacts, ..ListQuery::default() };
        let listed = store.list(&query).await.unwrap().tasks;
        let shown = tasks.each_ref().map(|it| view(&it.task, HistoryLimit::default(), artifacts));
        assert_eq!(listed, [shown[0].clone(), shown[1].clone()]);
    }
    // Its log may go before it, and it goes when there is no room.
    let mut policy = Retention::FOREVER;
    policy.logs = Some(Duration::from_millis(10));
    let folded = store.sweep(&policy, 20, &|_| false).await.unwrap().logs;
    assert_eq!(folded, if store.lasts() { 2 } else { 0 });
    for it in &mut tasks {
        it.folded = store.lasts();
        it.check().await;
    }
    let mut next = Writer::new(&store, &ada, "next");
    next.commit([chunk("a", "1", false), chunk("b", "1", false), status(TaskState::Completed, 3)]).await.unwrap();
    next.check().await;
    let there = [at(&*store, &tasks[0].key).await, at(&*store, &tasks[1].key).await];
    assert_eq!(there.iter().flatten().count(), 1);
}

pub(super) async fn a_batch_of_tasks_that_have_ended_has_one_too(open: Open<'_>) {
    for most in [MANY, 20] {
        let store = open(most);
        let ended = |text: &str| [chunk("a", text, false), status(TaskState::Completed, 5)];
        let mut tasks: Vec<_> =
            (0..25).map(|it| Writer::new(&store, &scope("ada", ""), &format!("t-{it:02}"))).collect();
        tasks[7].commit(ended("before")).await.unwrap();
        let mut commits: Vec<_> = (0..25).map(|it| tasks[it].next(ended("whole"))).collect();
        commits[3] = tasks[3].next(ended(&"x".repeat(5000)));
        commits[7] = Commit { expect: Expect::New, ..commits[6].clone() };
        commits[7].key = tasks[7].key.clone();
        let mut batch: Vec<_> = commits.iter().map(|it| Change::CompletedTask(concluded(it).unwrap())).collect();
        // One that is not, and one that comes twice.
        commits[11] = tasks[11].next([]);
        batch[11] = Change::Commit(commits[11].clone());
        batch.push(batch[20].clone());
        let mut outcomes = store.commit_changes(batch.into()).await.unwrap();
        for ((task, commit), outcome) in tasks.iter_mut().zip(commits).zip(outcomes.drain(..25)) {
            match outcome {
                Ok(()) => task.wrote(commit),
                Err(why) => assert_eq!((task.key.id(), why), ("t-07", Refused::Stale(Some(task.at)))),
            }
        }
        assert_eq!(outcomes, [Err(Refused::Stale(Some(tasks[20].at)))]);
        assert!(tasks.iter().all(|it| it.at.seq > 0));
        let query = ListQuery { scope: scope("ada", ""), limit: 100, include_artifacts: true, ..ListQuery::default() };
        let page = store.list(&query).await.unwrap();
        assert_eq!(page.total, u64::try_from(most.min(25)).unwrap());
        assert_eq!(page.tasks.len(), most.min(25));
        for it in &tasks {
            if at(&*store, &it.key).await.is_some() {
                it.check().await;
            } else {
                assert!(most < 25, "{:?} is not there", it.key);
            }
        }
    }
}
