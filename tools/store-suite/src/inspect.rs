//! Cases of the reads for operators: tasks of all owners, and counts.

use std::{sync::Arc, time::Duration};

use super::{
    Checked, Failure, StoreSuite, count, keyed,
    writer::{TaskWriter, chunk, scope, status},
};
use a2a_service::{
    pb::v1::{TaskPushNotificationConfig, TaskState},
    protocol::Version,
    store::{Commit, Counts, Inspect, PushConfig, PutResult, Retention, Store, TaskFilter, TaskSummary},
};

fn inspect(store: &dyn Store) -> Result<&dyn Inspect, Failure> {
    store.inspect().ok_or_else(|| Failure::new("the store has no read access for operators".to_owned()))
}

fn push() -> Arc<PushConfig> {
    let config = TaskPushNotificationConfig { id: "p".into(), url: "http://p".into(), ..Default::default() };
    Arc::new(PushConfig { config, version: Version::V1_0, extra: a2a_service::bytes::Bytes::new() })
}

fn ids(tasks: &[TaskSummary]) -> Vec<&str> {
    tasks.iter().map(|task| task.id.as_str()).collect()
}

/// Tasks of several owners and tenants, two of which have the same id, in the order of their creation.
async fn tasks(store: &dyn Store) -> Result<Vec<TaskWriter>, Failure> {
    let mut tasks = Vec::new();
    for (owner, tenant, id, state) in [
        ("ada", "", "t-3", Some(TaskState::Completed)),
        ("ada", "blue", "t-1", None),
        ("bob", "", "t-1", Some(TaskState::Working)),
        ("ada", "", "t-2", Some(TaskState::Completed)),
    ] {
        let mut task = TaskWriter::within(&scope(owner, tenant), id, "c-7", 5);
        task.commit(store, [chunk("a", "x", false)]).await??;
        if let Some(state) = state {
            task.commit(store, [status(state, 9)]).await??;
        }
        tasks.push(task);
    }
    Ok(tasks)
}

pub(super) async fn tasks_of_all_owners_are_listed_newest_first(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let (tasks, inspect) = (tasks(store).await?, inspect(store)?);
    let all = inspect.tasks(&TaskFilter::default(), 9).await?;
    ensure_eq!((ids(&all.tasks), all.next), (vec!["t-2", "t-1", "t-1", "t-3"], None));
    for (task, summary) in tasks.iter().rev().zip(&all.tasks) {
        let owner = task.key.scope();
        ensure_eq!((summary.owner.as_str(), summary.tenant.as_str()), (&*owner.owner, &*owner.tenant));
        ensure_eq!((summary.context.as_str(), summary.state), ("c-7", task.task.state()));
        ensure_eq!((summary.time, summary.events, summary.has_log), (task.time, task.at.seq, true));
        ensure!(summary.bytes > 0, "{summary:?}");
    }
    let text = |text: &str| Some(text.to_owned());
    for (filter, expected) in [
        (TaskFilter { id: text("t-1"), ..TaskFilter::default() }, &["t-1", "t-1"][..]),
        (TaskFilter { owner: text("ada"), ..TaskFilter::default() }, &["t-2", "t-1", "t-3"]),
        (TaskFilter { owner: text("ada"), tenant: text(""), ..TaskFilter::default() }, &["t-2", "t-3"]),
        (TaskFilter { tenant: text("blue"), ..TaskFilter::default() }, &["t-1"]),
        (TaskFilter { states: vec![TaskState::Working], ..TaskFilter::default() }, &["t-1"]),
        (TaskFilter { id: text("t-1"), owner: text("eve"), ..TaskFilter::default() }, &[]),
    ] {
        ensure_eq!(ids(&inspect.tasks(&filter, 9).await?.tasks), expected, "with {filter:?}");
    }
    // Pages have each task once, also if the last one is full.
    let (mut filter, mut paged) = (TaskFilter::default(), Vec::new());
    loop {
        let page = inspect.tasks(&filter, 2).await?;
        ensure_eq!(page.tasks.len(), 2);
        paged.extend(page.tasks);
        match page.next {
            Some(next) => filter.before = Some(next),
            None => break,
        }
    }
    ensure_eq!(paged, all.tasks);
    Ok(())
}

pub(super) async fn inspected_task_has_its_contents(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let (tasks, inspect) = (tasks(store).await?, inspect(store)?);
    ensure_eq!(store.put_push(&tasks[1].key, push(), 9).await?, PutResult::Created);
    let page = inspect.tasks(&TaskFilter::default(), 9).await?;
    for (n, (task, summary)) in tasks.iter().rev().zip(&page.tasks).enumerate() {
        let Some(found) = inspect.task(summary.number).await? else {
            return Err(Failure::new(format!("{summary:?} is missing")));
        };
        ensure_eq!(found.task, task.task);
        ensure_eq!(found.push_configs, if n == 2 { vec![push()] } else { Vec::new() });
    }
    let last = page.tasks.iter().map(|task| task.number).max();
    ensure_eq!(inspect.task(last.unwrap_or_default() + 1).await?, None);
    Ok(())
}

pub(super) async fn counts_follow_the_tasks(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let inspect = inspect(store)?;
    ensure_eq!(inspect.counts().await?, Counts::default());
    let mut tasks = tasks(store).await?;
    ensure_eq!(store.put_push(&tasks[1].key, push(), 9).await?, PutResult::Created);
    let change = Commit { sends: keyed("k-1", 1, 4), ..tasks[2].next(store, [chunk("a", "y", true)]) };
    tasks[2].write(store, change).await??;
    let owners = |owners: &[(&str, &str, u64)]| {
        owners
            .iter()
            .map(|(owner, tenant, tasks)| ((*owner).to_owned(), (*tenant).to_owned(), *tasks))
            .collect::<Vec<_>>()
    };
    let counts = inspect.counts().await?;
    let states = [(TaskState::Submitted, 1), (TaskState::Working, 1), (TaskState::Completed, 2)];
    ensure_eq!(counts.tasks, states);
    ensure_eq!(counts.owners, owners(&[("ada", "", 2), ("ada", "blue", 1), ("bob", "", 1)]));
    ensure_eq!((counts.owner_count, counts.without_log), (3, 0));
    ensure_eq!((counts.push_configs, counts.idempotency_keys), (1, 1));
    let policy = Retention::FOREVER.finished(Some(Duration::from_millis(10)));
    let swept = store.sweep(&policy, 1000, &|_| false).await?;
    ensure_eq!(swept.tasks, count(2));
    let counts = inspect.counts().await?;
    ensure_eq!(counts.tasks, states[..2]);
    ensure_eq!(counts.owners, owners(&[("ada", "blue", 1), ("bob", "", 1)]));
    ensure_eq!((counts.owner_count, counts.push_configs, counts.idempotency_keys), (2, 1, 1));
    Ok(())
}
