//! Pages while tasks are created and change: an unchanged task is on exactly one page, and no task is on two. Limit of
//! bytes per page.

use std::{collections::BTreeMap, sync::Arc};

use a2a_service::{pb::v1::TaskState, store::ListQuery};

use super::{
    MANY, Open,
    writer::{Writer, chunk, scope, status},
};

const TASKS: usize = 300;

/// Initial time of all tasks.
const TIME: i64 = 1000;

pub(super) async fn pages_have_each_unchanged_task_once(open: Open<'_>) {
    for step in [0, 1] {
        let store = open(MANY);
        let ada = scope("ada", "");
        let mut tasks = Vec::new();
        for n in 0..TASKS {
            // Created in another order than that of the ids.
            let mut task = Writer::within(&store, &ada, &format!("t-{:03}", n * 7 % TASKS), "c-1", TIME);
            task.commit([]).await.unwrap();
            tasks.push(task);
        }
        let (mut seen, mut changed) = (BTreeMap::<String, usize>::new(), 0);
        let mut query = ListQuery { scope: Arc::clone(&ada), limit: 23, ..ListQuery::default() };
        for n in 0.. {
            let page = store.list(&query).await.unwrap();
            assert_eq!(page.total, u64::try_from(TASKS + n).unwrap());
            for task in page.tasks {
                *seen.entry(task.id).or_default() += 1;
            }
            query.after = page.next;
            if query.after.is_none() {
                break;
            }
            // One task is created and three change, in the same millisecond or later than all others.
            let now = TIME + step * i64::try_from(n).unwrap();
            Writer::within(&store, &ada, &format!("u-{n:03}"), "c-1", now).commit([]).await.unwrap();
            for _ in 0..3 {
                tasks[changed].commit([status(TaskState::Working, now)]).await.unwrap();
                changed += 5;
            }
        }
        let unchanged = tasks.iter().enumerate().filter(|(n, _)| n % 5 != 0 || *n >= changed);
        assert!(unchanged.map(|task| task.1.key.id()).all(|id| seen.get(id) == Some(&1)), "{step}");
        assert!(seen.values().all(|count| *count == 1), "{step}");
    }
}

pub(super) async fn page_ends_before_the_task_that_exceeds_its_bytes(open: Open<'_>) {
    let (store, ada) = (open(MANY), scope("ada", ""));
    // Open and terminal tasks, which are stored in different forms.
    for (n, size) in [100_000, 20_000, 20_000, 100_000, 10_000].into_iter().enumerate() {
        let time = TIME - i64::try_from(n).unwrap();
        let mut task = Writer::within(&store, &ada, &format!("t-{n}"), "c-1", time);
        let end = (n % 2 == 1).then(|| status(TaskState::Completed, time));
        task.commit([chunk("a", &"x".repeat(size), false)].into_iter().chain(end)).await.unwrap();
    }
    let mut query =
        ListQuery { scope: ada, limit: 4, max_bytes: Some(50_000), include_artifacts: true, ..ListQuery::default() };
    let mut pages = Vec::new();
    loop {
        let page = store.list(&query).await.unwrap();
        assert_eq!(page.total, 5);
        pages.push(page.tasks.into_iter().map(|task| task.id).collect::<Vec<_>>());
        query.after = page.next;
        if query.after.is_none() {
            break;
        }
    }
    assert_eq!(pages, [vec!["t-0"], vec!["t-1", "t-2"], vec!["t-3"], vec!["t-4"]]);

    query.include_artifacts = false;
    let page = store.list(&query).await.unwrap();
    assert_eq!(page.tasks.len(), 4, "omitted artifacts do not count");
}
