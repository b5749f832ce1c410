//! Cases of push configurations: they belong to their task, are listed in pages, limited, and deleted with the task.

use std::{sync::Arc, time::Duration};

use super::{
    Checked, Failure, StoreSuite, finished, given_up, position,
    writer::{TaskWriter, scope, status},
};
use a2a_service::{
    pb::v1::{TaskPushNotificationConfig, TaskState},
    protocol::Version,
    store::{Commit, Expect, Full, Lease, PushConfig, PushPage, PutResult, Refused, Rejected, Store, TaskKey},
};

fn push(id: &str, url: &str) -> Arc<PushConfig> {
    let config = TaskPushNotificationConfig { id: id.into(), url: url.into(), ..Default::default() };
    Arc::new(PushConfig { config, version: Version::V0_3, extra: format!("extra of {url}").into() })
}

async fn ids(store: &dyn Store, key: &TaskKey) -> Result<Option<Vec<String>>, Failure> {
    let Some(page) = store.list_push(key, 0, 100).await? else { return Ok(None) };
    ensure_eq!(page.next, None);
    Ok(Some(page.configs.iter().map(|stored| stored.config.id.clone()).collect()))
}

/// Returns a page of the configurations of a task that exists.
async fn list(store: &dyn Store, key: &TaskKey, after: u64, limit: usize) -> Result<PushPage, Failure> {
    store.list_push(key, after, limit).await?.ok_or_else(|| Failure::new(format!("task {} is missing", key.id())))
}

fn names(ids: &[&str]) -> Vec<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

pub(super) async fn push_configurations_belong_to_their_task(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let mut task = TaskWriter::new(&scope("ada", ""), "t-1");
    ensure_eq!(store.put_push(&task.key, push("a", "http://1"), 9).await?, PutResult::TaskNotFound);
    ensure_eq!(store.delete_push(&task.key, "a").await, Ok(false));
    ensure_eq!(store.list_push(&task.key, 0, 9).await, Ok(None));
    task.commit(store, []).await??;
    ensure_eq!(ids(store, &task.key).await?, Some(names(&[])));
    for (id, url, expected) in [
        ("a", "http://1", PutResult::Created),
        ("b", "http://2", PutResult::Created),
        // The limit applies to new configurations; a replaced one keeps its position.
        ("c", "http://3", PutResult::Full),
        ("a", "http://4", PutResult::Replaced),
    ] {
        ensure_eq!(store.put_push(&task.key, push(id, url), 2).await?, expected);
    }
    ensure_eq!(ids(store, &task.key).await?, Some(names(&["a", "b"])));
    // All members are stored.
    ensure_eq!(store.get_push(&task.key, "a").await?, Some(push("a", "http://4")));
    ensure_eq!(store.get_push(&task.key, "c").await?, None);
    // Configurations do not affect the task, and are kept when it is terminal.
    task.commit(store, [status(TaskState::Completed, 5)]).await??;
    task.check(store).await?;
    ensure_eq!(ids(store, &task.key).await?, Some(names(&["a", "b"])));
    // Other owners and tenants have no such task.
    for other in [scope("bob", ""), scope("ada", "blue"), scope("", "")] {
        let key = TaskKey::new(&other, "t-1");
        ensure_eq!(store.get_push(&key, "a").await?, None);
        ensure_eq!(ids(store, &key).await?, None);
        ensure_eq!(store.put_push(&key, push("x", "http://5"), 9).await?, PutResult::TaskNotFound);
        ensure_eq!(store.delete_push(&key, "a").await, Ok(false));
    }
    for _ in 0..2 {
        ensure_eq!(store.delete_push(&task.key, "a").await, Ok(true), "deletion is idempotent");
    }
    ensure_eq!(ids(store, &task.key).await?, Some(names(&["b"])));
    ensure_eq!(store.put_push(&task.key, push("a", "http://6"), 2).await?, PutResult::Created);
    ensure_eq!(ids(store, &task.key).await?, Some(names(&["b", "a"])), "it is a new configuration");
    Ok(())
}

pub(super) async fn push_configurations_are_listed_in_pages(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let mut task = TaskWriter::new(&scope("ada", ""), "t-1");
    task.commit(store, []).await??;
    let all: Vec<String> = (0..7).map(|number| format!("c-{}", 9 - number)).collect();
    for id in &all {
        store.put_push(&task.key, push(id, "http://h"), 9).await?;
    }
    for size in [1, 2, 3, 6, 7, 8] {
        let (mut after, mut seen) = (0, Vec::new());
        loop {
            let page = list(store, &task.key, after, size).await?;
            ensure!(page.configs.len() == size || page.next.is_none());
            seen.extend(page.configs.iter().map(|stored| stored.config.id.clone()));
            let Some(next) = page.next else { break };
            after = next;
        }
        ensure_eq!(seen, all, "{size} on a page");
    }
    ensure_eq!(list(store, &task.key, u64::MAX, 9).await?.configs, []);
    // Deletions between pages skip no other configuration.
    let first = list(store, &task.key, 0, 3).await?;
    for id in [&all[0], &all[2], &all[4]] {
        store.delete_push(&task.key, id).await?;
    }
    let second = list(store, &task.key, first.next.unwrap_or_default(), 9).await?;
    let second: Vec<_> = second.configs.iter().map(|stored| stored.config.id.clone()).collect();
    ensure_eq!(second, [&all[3], &all[5], &all[6]].map(String::clone));
    Ok(())
}

pub(super) async fn push_configurations_are_deleted_with_their_task(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let mut task = TaskWriter::new(&scope("ada", ""), "t-1");
    task.commit(store, []).await??;
    store.put_push(&task.key, push("a", "http://h"), 9).await?;
    task.commit(store, [status(TaskState::Failed, 5)]).await??;
    let policy = finished(0).undelivered(Some(Duration::ZERO));
    store.sweep(&policy, 100, &|_| false).await?;
    ensure_eq!(ids(store, &task.key).await?, None);
    // A new task with the id of a deleted one has no configurations.
    let mut recreated = TaskWriter::new(&scope("ada", ""), "t-1");
    recreated.commit(store, []).await??;
    ensure_eq!(ids(store, &recreated.key).await?, Some(names(&[])));
    Ok(())
}

/// The limit covers all tasks and tenants of an owner. What is deleted in any way counts no more.
pub(super) async fn push_configurations_per_owner_are_limited_over_all_tenants(suite: &StoreSuite) -> Checked {
    let opened = suite.open_setup(9, None, 3).await;
    let store = &*opened;
    let (ada, blue, bob) = (scope("ada", ""), scope("ada", "blue"), scope("bob", ""));
    let full = Full::push_configs_per_owner(3);
    let mut tasks: Vec<_> =
        [("t-1", &ada), ("t-2", &blue), ("t-3", &bob)].map(|(id, scope)| TaskWriter::new(scope, id)).into();
    for task in &mut tasks {
        task.commit(store, []).await??;
    }
    let keys: Vec<TaskKey> = tasks.iter().map(|task| task.key.clone()).collect();
    let put =
        async |store: &dyn Store, task: usize, id: &str| store.put_push(&keys[task], push(id, "http://h"), 9).await;
    for (task, id, expected) in [
        (0, "a", PutResult::Created),
        (1, "a", PutResult::Created),
        (1, "b", PutResult::Created),
        (0, "b", PutResult::OwnerFull(full)),
        (1, "c", PutResult::OwnerFull(full)),
        // A replaced one needs no capacity.
        (1, "b", PutResult::Replaced),
        (2, "a", PutResult::Created),
    ] {
        ensure_eq!(put(store, task, id).await?, expected);
    }
    ensure_eq!(store.check_push_capacity(&ada).await?, Err(full));
    ensure_eq!(store.check_push_capacity(&blue).await?, Err(full));
    ensure_eq!(store.check_push_capacity(&bob).await?, Ok(()));
    // A new task with a configuration is refused, and nothing of it is stored.
    let mut new = TaskWriter::new(&blue, "t-4");
    let begin = Commit { push: Some(push("a", "http://h")), ..new.next(store, []) };
    let refused = new.write(store, begin.clone()).await?;
    ensure_eq!(refused, Err(Refused::Rejected(Rejected::Full(full))));
    ensure_eq!(position(store, &new.key).await?, None);
    // The number is known after the store was reopened.
    let opened = opened.reopen().await;
    let store = &*opened;
    ensure_eq!(put(store, 0, "b").await?, PutResult::OwnerFull(full));
    // One is deleted, and the new task gets it.
    store.delete_push(&tasks[1].key, "a").await?;
    new.write(store, begin.clone()).await??;
    ensure_eq!(put(store, 0, "b").await?, PutResult::OwnerFull(full));
    // A retry of the commit is recognized although the limit is reached.
    ensure_eq!(new.write(store, begin).await?, Err(Refused::Stale(Some(new.at))));
    // Deleted with its task.
    new.commit(store, [status(TaskState::Completed, 5)]).await??;
    let policy = finished(0).undelivered(Some(Duration::ZERO));
    ensure_eq!(store.sweep(&policy, 100, &|_| false).await?.tasks, 1);
    ensure_eq!(put(store, 0, "b").await?, PutResult::Created);
    ensure_eq!(put(store, 0, "c").await?, PutResult::OwnerFull(full));
    // Deleted as a dead letter beyond its limit.
    tasks[0].commit(store, [status(TaskState::Working, 6)]).await??;
    store.mark_due(std::slice::from_ref(&tasks[0].key), 10).await?;
    for claim in store.claim_due(&Lease::new("r", 10, Duration::from_secs(1)), 9).await? {
        store.end_claim(&claim, given_up("gone", 10, 1)).await?;
    }
    ensure_eq!(put(store, 0, "c").await?, PutResult::Created);
    ensure_eq!(put(store, 0, "d").await?, PutResult::OwnerFull(full));
    Ok(())
}

pub(super) async fn push_configuration_is_stored_with_the_first_commit(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let mut task = TaskWriter::new(&scope("ada", ""), "t-1");
    let begin = Commit { push: Some(push("a", "http://h")), ..task.next(store, []) };
    task.write(store, begin.clone()).await??;
    ensure_eq!(store.get_push(&task.key, "a").await?, begin.push);
    // A rejected commit stores no configuration.
    let late = Commit { push: Some(push("b", "http://h")), ..begin };
    ensure_eq!(task.write(store, late.clone()).await?, Err(Refused::Stale(Some(task.at))));
    let missing = Commit { key: TaskKey::new(&scope("ada", ""), "t-2"), expect: Expect::At(task.at), ..late };
    ensure_eq!(store.commit([missing].into()).await?, [Err(Refused::Stale(None))]);
    ensure_eq!(ids(store, &task.key).await?, Some(names(&["a"])));
    store.put_push(&task.key, push("b", "http://h"), 2).await?;
    ensure_eq!(store.put_push(&task.key, push("c", "http://h"), 2).await?, PutResult::Full);
    Ok(())
}
