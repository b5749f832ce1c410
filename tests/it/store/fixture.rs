//! Migration of database files of released versions: opened, and equal to what was written.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use a2a_service::{
    event::Event,
    pb::v1::{TaskPushNotificationConfig, TaskState},
    protocol::Version,
    store::{
        Commit, Delivery, DeliveryOutcome, DeliveryState, DeliveryToken, Lease, ListQuery, PushConfig, Refused,
        Rejected, Store, TaskHead, TaskKey,
        sqlite::{Options, Sqlite},
    },
};
use serde_json::{Value, json};

use super::{
    keyed,
    opened::OpenedStore,
    writer::{Writer, chunk, message, scope, status},
};

/// Version of the tables that this program writes.
const VERSION: u32 = 2;

/// Owner, tenant and id of each task.
const TASKS: [(&str, &str, &str); 5] =
    [("ada", "", "ended"), ("ada", "", "asked"), ("bob", "blue", "running"), ("", "", "new"), ("bob", "", "whole")];

fn fixture(version: u32, ending: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/it/store/fixtures/{version}.{ending}"))
}

fn push(id: &str) -> Arc<PushConfig> {
    let config = TaskPushNotificationConfig { id: id.into(), url: "https://a.example".into(), ..Default::default() };
    Arc::new(PushConfig { config, version: Version::V0_3, extra: "beside".into() })
}

/// Writes tasks of every kind.
async fn fill(store: &OpenedStore) {
    let mut tasks = TASKS.map(|(owner, tenant, id)| Writer::new(store, &scope(owner, tenant), id));
    let [ended, asked, running, new, whole] = &mut tasks;
    let begin = Commit { sends: keyed("key", 7, 1), ..ended.next([message("hi")]) };
    ended.write(begin).await.unwrap();
    ended.commit([chunk("a", "1", false), chunk("a", "2", true)]).await.unwrap();
    ended.commit([chunk("b", "3", false), status(TaskState::Completed, 1_700_000_000_000)]).await.unwrap();
    asked.commit([message("hi"), status(TaskState::InputRequired, 1_700_000_001_000)]).await.unwrap();
    store.put_push(&asked.key, push("one"), 9).await.unwrap();
    store.put_push(&asked.key, push("two"), 9).await.unwrap();
    for n in 0..9 {
        let commit = running.next([chunk("a", &n.to_string(), n > 0)]);
        let row = TaskHead { drained: 2, ..commit.row };
        running.write(Commit { agent_state: Some(n.to_string().into()), row, ..commit }).await.unwrap();
    }
    // A delivery that failed, and a dead letter.
    asked.commit([message("more")]).await.unwrap();
    assert_eq!(store.mark_due(std::slice::from_ref(&asked.key), 1_700_000_001_500).await, Ok(2));
    let claims = store.claim_due(&Lease::new("runner", 1_700_000_001_500, Duration::from_mins(1)), 9).await.unwrap();
    assert_eq!(
        store.end_claim(&claims[0], DeliveryOutcome::Failed { next_attempt: 1_700_000_002_000, attempt: None }).await,
        Ok(true)
    );
    let given_up =
        DeliveryOutcome::GivenUp { reason: "gone".into(), now: 1_700_000_001_600, max_dead: 9, attempt: None };
    assert_eq!(store.end_claim(&claims[1], given_up).await, Ok(true));
    new.commit([]).await.unwrap();
    let working = status(TaskState::Working, 1_700_000_002_000);
    whole.commit([working, chunk("a", "1", false), status(TaskState::Failed, 1_700_000_003_000)]).await.unwrap();
}

/// Returns the content of the store as JSON.
async fn found(store: &dyn Store) -> Value {
    let mut all = Vec::new();
    for (owner, tenant, id) in TASKS {
        let key = TaskKey::new(&scope(owner, tenant), id);
        let mut stored = store.load(&key).await.unwrap().unwrap();
        let (at, row, saved) = (stored.position, stored.row.clone(), stored.agent_state.clone());
        let task = stored.load_task(store, &key).await.unwrap();
        let events = store.events(&key, 0, usize::MAX, usize::MAX).await.unwrap();
        let row_of = |event: &Event| {
            json!([event.position().fence, event.position().seq, event.mark().to_byte(), event.response()])
        };
        let pushes = store.list_push(&key, 0, 9).await.unwrap().unwrap().configs;
        let push = |stored: &Arc<PushConfig>| {
            json!([stored.config, stored.version.as_str(), String::from_utf8_lossy(&stored.extra)])
        };
        let all_deliveries = store.deliveries(false, DeliveryToken::default(), 9).await.unwrap().deliveries;
        let deliveries = all_deliveries.iter().filter(|delivery| delivery.key == key).map(delivery_state);
        all.push(json!({
            "at": [at.fence, at.seq],
            "row": [row.state.as_str_name(), row.time, row.open, row.delivered_seq, row.cancel_requested, row.attempt, &*row.context],
            "saved": saved.map(|state| String::from_utf8(state.to_vec()).unwrap()),
            "task": task,
            "events": events.iter().map(row_of).collect::<Vec<_>>(),
            "pushes": pushes.iter().map(push).collect::<Vec<_>>(),
            "drained": row.drained,
            "deliveries": deliveries.collect::<Vec<_>>(),
        }));
    }
    Value::from(all)
}

fn delivery_state(delivery: &Delivery) -> Value {
    let DeliveryState { cursor, end: _, due, attempts, pending_since, runner, claim, dead, last: _ } = &delivery.state;
    let dead = dead.as_ref().map(|dead| json!([dead.time, &*dead.reason]));
    json!([&delivery.config.config.id, cursor, due, attempts, pending_since, runner.as_deref(), claim, dead])
}

/// `FIXTURE=1 cargo test` writes the fixture of this version, which must not change once it is released.
#[tokio::test]
async fn files_of_every_version_can_be_opened() {
    if std::env::var_os("FIXTURE").is_some() {
        let store = OpenedStore::sqlite(Options::default());
        fill(&store).await;
        let text = serde_json::to_string_pretty(&found(&*store).await).unwrap();
        fs::write(fixture(VERSION, "json"), text + "\n").unwrap();
        let path = store.path().unwrap();
        let kept = tempfile::tempdir().unwrap();
        // Copied without a write-ahead log.
        let whole = rusqlite::Connection::open(path).unwrap();
        let into = kept.path().join("whole.db");
        whole.execute("VACUUM INTO ?", [into.to_str().unwrap()]).unwrap();
        fs::copy(into, fixture(VERSION, "db")).unwrap();
    }
    for version in 1..=VERSION {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a2a.db");
        fs::copy(fixture(version, "db"), &path).unwrap();
        let expected: Value = serde_json::from_slice(&fs::read(fixture(version, "json")).unwrap()).unwrap();
        let store = OpenedStore::of(Arc::new(Sqlite::open(&path, Options::default()).unwrap()));
        assert_eq!(found(&*store).await, expected, "version {version}");
        assert_eq!(store.first_fence(), 2);
        assert_eq!(path.with_extension(format!("db.v{version}")).exists(), version < VERSION);
        // The store continues to work.
        let query = ListQuery { scope: scope("ada", ""), limit: 9, ..ListQuery::default() };
        let page = store.list(&query).await.unwrap();
        let ids: Vec<_> = page.tasks.iter().map(|task| task.id.as_str()).collect();
        assert_eq!((page.total, ids), (2, vec!["asked", "ended"]));
        let reopened = Writer::new(&store, &scope("ada", ""), "again");
        let reopened = Commit { sends: keyed("key", 7, 1), ..reopened.next([]) };
        let refused = store.commit([reopened].into()).await.unwrap();
        assert_eq!(refused, [Err(Refused::Rejected(Rejected::Duplicate { task_id: "ended".into() }))]);
        let claimed = store.claim(9).await.unwrap();
        let claimed: Vec<_> = claimed.iter().map(|claim| claim.0.id()).collect();
        assert_eq!(claimed, ["asked", "running", "new"]);
    }
}
