//! Cases of task lists and sizes: totals, pages while tasks change, the limit of bytes per page, and context sizes.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    Checked, StoreSuite, count, finished,
    writer::{TaskWriter, chunk, scope, status},
};
use a2a_service::{
    pb::v1::TaskState,
    store::{ListQuery, Retention},
};

pub(super) async fn totals_match_the_tasks(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let states = [TaskState::Working, TaskState::InputRequired, TaskState::Completed, TaskState::Failed];
    let mut writers: Vec<_> = (0..40).map(|n| TaskWriter::new(&scope("ada", ""), &format!("t-{n}"))).collect();
    // All commits in one batch per round, through several states.
    for round in 0..3_usize {
        let batch: Vec<_> = writers
            .iter()
            .enumerate()
            .filter(|(_, writer)| !writer.task.state().is_terminal())
            .map(|(n, writer)| (n, writer.next(store, (round > 0).then(|| status(states[(n + round) % 4], 5)))))
            .collect();
        let commits: Vec<_> = batch.iter().map(|entry| entry.1.clone()).collect();
        ensure!(store.commit(commits.into()).await?.iter().all(Result::is_ok));
        for (n, commit) in batch {
            writers[n].record(commit);
        }
        for state in [None, Some(TaskState::Submitted)].into_iter().chain(states.map(Some)) {
            let query = ListQuery { scope: scope("ada", ""), state, limit: 7, ..ListQuery::default() };
            let expected =
                writers.iter().filter(|writer| state.is_none_or(|state| writer.task.state() == state)).count();
            ensure_eq!(usize::try_from(store.list(&query).await?.total), Ok(expected), "{round} {state:?}");
        }
    }
    Ok(())
}

/// Number of tasks that are listed in pages.
const TASKS: usize = 300;

/// Initial time of all tasks.
const TIME: i64 = 1000;

pub(super) async fn pages_have_each_unchanged_task_once(suite: &StoreSuite) -> Checked {
    for step in [0, 1] {
        let store = &*suite.open().await;
        let ada = scope("ada", "");
        let mut tasks = Vec::new();
        for n in 0..TASKS {
            // Created in another order than that of the ids.
            let mut task = TaskWriter::within(&ada, &format!("t-{:03}", n * 7 % TASKS), "c-1", TIME);
            task.commit(store, []).await??;
            tasks.push(task);
        }
        let (mut seen, mut changed) = (BTreeMap::<String, usize>::new(), 0);
        let mut query = ListQuery { scope: Arc::clone(&ada), limit: 23, ..ListQuery::default() };
        for (n, later) in (0..).zip(0_i64..) {
            let page = store.list(&query).await?;
            ensure_eq!(page.total, count(TASKS + n));
            for task in page.tasks {
                *seen.entry(task.id).or_default() += 1;
            }
            query.after = page.next;
            if query.after.is_none() {
                break;
            }
            // One task is created and three change, in the same millisecond or later than all others.
            let now = TIME + step * later;
            TaskWriter::within(&ada, &format!("u-{n:03}"), "c-1", now).commit(store, []).await??;
            for _ in 0..3 {
                tasks[changed].commit(store, [status(TaskState::Working, now)]).await??;
                changed += 5;
            }
        }
        let unchanged = tasks.iter().enumerate().filter(|(n, _)| n % 5 != 0 || *n >= changed);
        ensure!(unchanged.map(|task| task.1.key.id()).all(|id| seen.get(id) == Some(&1)), "{step}");
        ensure!(seen.values().all(|count| *count == 1), "{step}");
    }
    Ok(())
}

pub(super) async fn page_ends_before_the_task_that_exceeds_its_bytes(suite: &StoreSuite) -> Checked {
    let (store, ada) = (&*suite.open().await, scope("ada", ""));
    // Open and terminal tasks, which are stored in different forms.
    for (n, size) in (0..).zip([100_000, 20_000, 20_000, 100_000, 10_000]) {
        let time = TIME - n;
        let mut task = TaskWriter::within(&ada, &format!("t-{n}"), "c-1", time);
        let end = (n % 2 == 1).then(|| status(TaskState::Completed, time));
        task.commit(store, [chunk("a", &"x".repeat(size), false)].into_iter().chain(end)).await??;
    }
    let mut query =
        ListQuery { scope: ada, limit: 4, max_bytes: Some(50_000), include_artifacts: true, ..ListQuery::default() };
    let mut pages = Vec::new();
    loop {
        let page = store.list(&query).await?;
        ensure_eq!(page.total, 5);
        pages.push(page.tasks.into_iter().map(|task| task.id).collect::<Vec<_>>());
        query.after = page.next;
        if query.after.is_none() {
            break;
        }
    }
    ensure_eq!(pages, [vec!["t-0"], vec!["t-1", "t-2"], vec!["t-3"], vec!["t-4"]]);

    query.include_artifacts = false;
    let page = store.list(&query).await?;
    ensure_eq!(page.tasks.len(), 4, "omitted artifacts do not count");
    Ok(())
}

pub(super) async fn size_of_a_context_is_the_sum_of_its_tasks(suite: &StoreSuite) -> Checked {
    let (store, ada, bob) = (&*suite.open().await, scope("ada", ""), scope("bob", ""));
    let size = async |scope, context| store.context_bytes(scope, context, usize::MAX).await;
    ensure_eq!(size(&ada, "c-1").await?, 0);
    let text = "x".repeat(5000);
    let mut open_task = TaskWriter::within(&ada, "open", "c-1", 5);
    open_task.commit(store, [chunk("a", &text, false)]).await??;
    let first = size(&ada, "c-1").await?;
    ensure!((5000..5500).contains(&first), "{first}");
    // A log counts all its events, not the folded artifact.
    open_task.commit(store, [chunk("a", &text, false)]).await??;
    let open_size = size(&ada, "c-1").await?;
    ensure!((10_000..10_500).contains(&open_size), "{open_size}");
    ensure_eq!(store.log_summary(&open_task.key).await?.bytes, open_size);

    // Single-commit tasks are stored in other forms, small and large.
    let mut sizes = vec![open_size];
    for (id, bytes) in [("short", 100), ("long", 5000)] {
        let mut task = TaskWriter::within(&ada, id, "c-1", 6);
        task.commit(store, [chunk("a", &text[..bytes], false), status(TaskState::Completed, 6)]).await??;
        let all = size(&ada, "c-1").await?;
        let added = all - sizes.iter().sum::<usize>();
        ensure!((bytes..2 * bytes + 500).contains(&added), "{id}: {added}");
        sizes.push(added);
    }
    let all = sizes.iter().sum::<usize>();
    for (scope, context) in [(&ada, "c-2"), (&bob, "c-1")] {
        let mut other = TaskWriter::within(scope, &format!("other-{context}"), context, 7);
        other.commit(store, [chunk("a", &text, false)]).await??;
        ensure!((5000..5500).contains(&size(scope, context).await?));
    }
    ensure_eq!(size(&ada, "c-1").await?, all);
    let some = store.context_bytes(&ada, "c-1", 1).await?;
    ensure!(
        some == all || sizes.contains(&some),
        "the sum may end with the task that brings it to the maximum: {some}"
    );

    // A task without its log has the size of what remains, and none once it is deleted.
    let mut logs = Retention::FOREVER;
    logs.logs = finished(1).finished;
    store.sweep(&logs, 1000, &|_| false).await?;
    let folded = size(&ada, "c-1").await?;
    ensure!((open_size + 5100..=all).contains(&folded), "{folded} of {all}");
    store.sweep(&finished(1), 1000, &|_| false).await?;
    ensure_eq!(size(&ada, "c-1").await?, open_size);
    Ok(())
}
