//! Push configurations: scoped to their task, paged, limited, and deleted with the task.

use std::sync::Arc;

use a2a_service::{
    pb::v1::{TaskPushNotificationConfig, TaskState},
    protocol::Version,
    store::{Commit, Expect, Key, PushConfig, PutResult, Refused, Store},
};

use super::{
    MANY, Open, finished,
    writer::{Writer, scope, status},
};

fn push(id: &str, url: &str) -> Arc<PushConfig> {
    let config = TaskPushNotificationConfig { id: id.into(), url: url.into(), ..Default::default() };
    Arc::new(PushConfig { config, version: Version::V0_3, extra: format!("extra of {url}").into() })
}

async fn ids(store: &dyn Store, key: &Key) -> Option<Vec<String>> {
    let page = store.list_push(key, 0, 100).await.unwrap()?;
    assert_eq!(page.next, None);
    Some(page.configs.iter().map(|stored| stored.config.id.clone()).collect())
}

pub(super) async fn push_configurations_belong_to_their_task(open: Open<'_>) {
    let store = open(MANY);
    let mut task = Writer::new(&store, &scope("ada", ""), "t-1");
    assert_eq!(store.put_push(&task.key, push("a", "http://1"), 9).await.unwrap(), PutResult::TaskNotFound);
    assert_eq!(store.delete_push(&task.key, "a").await, Ok(false));
    assert_eq!(store.list_push(&task.key, 0, 9).await, Ok(None));
    task.commit([]).await.unwrap();
    assert_eq!(ids(&*store, &task.key).await.unwrap(), [""; 0]);
    for (id, url, expected) in [
        ("a", "http://1", PutResult::Created),
        ("b", "http://2", PutResult::Created),
        // The limit applies to new configurations; a replaced one keeps its position.
        ("c", "http://3", PutResult::Full),
        ("a", "http://4", PutResult::Replaced),
    ] {
        assert_eq!(store.put_push(&task.key, push(id, url), 2).await.unwrap(), expected);
    }
    assert_eq!(ids(&*store, &task.key).await.unwrap(), ["a", "b"]);
    // All members are stored.
    assert_eq!(store.get_push(&task.key, "a").await.unwrap(), Some(push("a", "http://4")));
    assert_eq!(store.get_push(&task.key, "c").await.unwrap(), None);
    // Configurations do not affect the task, and are kept when it is terminal.
    task.commit([status(TaskState::Completed, 5)]).await.unwrap();
    task.check().await;
    assert_eq!(ids(&*store, &task.key).await.unwrap(), ["a", "b"]);
    // Other owners and tenants have no such task.
    for other in [scope("bob", ""), scope("ada", "blue"), scope("", "")] {
        let key = Key::new(&other, "t-1");
        assert_eq!(store.get_push(&key, "a").await.unwrap(), None);
        assert_eq!(ids(&*store, &key).await, None);
        assert_eq!(store.put_push(&key, push("x", "http://5"), 9).await.unwrap(), PutResult::TaskNotFound);
        assert_eq!(store.delete_push(&key, "a").await, Ok(false));
    }
    for _ in 0..2 {
        assert_eq!(store.delete_push(&task.key, "a").await, Ok(true), "deletion is idempotent");
    }
    assert_eq!(ids(&*store, &task.key).await.unwrap(), ["b"]);
    assert_eq!(store.put_push(&task.key, push("a", "http://6"), 2).await.unwrap(), PutResult::Created);
    assert_eq!(ids(&*store, &task.key).await.unwrap(), ["b", "a"], "it is a new configuration");
}

pub(super) async fn push_configurations_are_listed_in_pages(open: Open<'_>) {
    let store = open(MANY);
    let mut task = Writer::new(&store, &scope("ada", ""), "t-1");
    task.commit([]).await.unwrap();
    let all: Vec<String> = (0..7).map(|number| format!("c-{}", 9 - number)).collect();
    for id in &all {
        store.put_push(&task.key, push(id, "http://h"), 9).await.unwrap();
    }
    for size in [1, 2, 3, 6, 7, 8] {
        let (mut after, mut seen) = (0, Vec::new());
        loop {
            let page = store.list_push(&task.key, after, size).await.unwrap().unwrap();
            assert!(page.configs.len() == size || page.next.is_none());
            seen.extend(page.configs.iter().map(|stored| stored.config.id.clone()));
            let Some(next) = page.next else { break };
            after = next;
        }
        assert_eq!(seen, all, "{size} on a page");
    }
    assert_eq!(store.list_push(&task.key, u64::MAX, 9).await.unwrap().unwrap().configs, []);
    // Deletions between pages skip no other configuration.
    let first = store.list_push(&task.key, 0, 3).await.unwrap().unwrap();
    for id in [&all[0], &all[2], &all[4]] {
        store.delete_push(&task.key, id).await.unwrap();
    }
    let second = store.list_push(&task.key, first.next.unwrap(), 9).await.unwrap().unwrap();
    let second: Vec<_> = second.configs.iter().map(|stored| stored.config.id.clone()).collect();
    assert_eq!(second, [&all[3], &all[5], &all[6]].map(String::clone));
}

pub(super) async fn push_configurations_are_deleted_with_their_task(open: Open<'_>) {
    let store = open(MANY);
    let mut task = Writer::new(&store, &scope("ada", ""), "t-1");
    task.commit([]).await.unwrap();
    store.put_push(&task.key, push("a", "http://h"), 9).await.unwrap();
    task.commit([status(TaskState::Failed, 5)]).await.unwrap();
    store.sweep(&finished(0), 100, &|_| false).await.unwrap();
    assert_eq!(ids(&*store, &task.key).await, None);
    // A new task with the id of a deleted one has no configurations.
    let mut recreated = Writer::new(&store, &scope("ada", ""), "t-1");
    recreated.commit([]).await.unwrap();
    assert_eq!(ids(&*store, &recreated.key).await.unwrap(), [""; 0]);
}

pub(super) async fn push_configuration_is_stored_with_the_first_commit(open: Open<'_>) {
    let store = open(MANY);
    let mut task = Writer::new(&store, &scope("ada", ""), "t-1");
    let begin = Commit { push: Some(push("a", "http://h")), ..task.next([]) };
    task.write(begin.clone()).await.unwrap();
    assert_eq!(store.get_push(&task.key, "a").await.unwrap(), begin.push);
    // A rejected commit stores no configuration.
    let late = Commit { push: Some(push("b", "http://h")), ..begin };
    assert_eq!(task.write(late.clone()).await, Err(Refused::Stale(Some(task.at))));
    let missing = Commit { key: Key::new(&scope("ada", ""), "t-2"), expect: Expect::At(task.at), ..late };
    assert_eq!(store.commit([missing].into()).await.unwrap(), [Err(Refused::Stale(None))]);
    assert_eq!(ids(&*store, &task.key).await.unwrap(), ["a"]);
    store.put_push(&task.key, push("b", "http://h"), 2).await.unwrap();
    assert_eq!(store.put_push(&task.key, push("c", "http://h"), 2).await.unwrap(), PutResult::Full);
}
