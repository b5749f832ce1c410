//! SQLite store: locking, lost and foreign files, reopening, full disk, damage, counters, eviction.

use std::{fs, path::Path, sync::Arc};

use a2a_service::{
    bytes::Bytes,
    pb::v1::{TaskPushNotificationConfig, TaskState},
    protocol::Version,
    store::{
        Committed, DeliveryToken, Full, ListQuery, Maintenance as _, PushConfig, Refused, Rejected, Retention,
        STORE_FULL, TaskKey, TaskStore as _, Unavailable,
        memory::Memory,
        sqlite::{Durability, Error, Options, Sqlite},
    },
};

use super::{
    finished,
    opened::{OpenedStore, copy},
    writer::{Writer, chunk, message, scope, status},
};

fn open(path: &Path) -> Result<Sqlite, Error> {
    Sqlite::open(path, Options::default())
}

/// Returns the error of opening this path.
fn open_error(path: &Path) -> String {
    open(path).unwrap_err().to_string()
}

#[tokio::test]
async fn committed_tasks_survive_a_reopen() {
    for durability in [Durability::Process, Durability::Power] {
        for killed in [false, true] {
            let mut options = Options::default();
            options.durability = durability;
            let store = OpenedStore::sqlite(options);
            let (mut one, mut other) =
                (Writer::new(&store, &scope("ada", "blue"), "t-1"), Writer::new(&store, &scope("bob", ""), "t-1"));
            one.commit([chunk("a", "1", false), status(TaskState::Working, 5), message("hi")]).await.unwrap();
            other.commit([chunk("a", "1", false), status(TaskState::Completed, 5)]).await.unwrap();
            let fence = store.first_fence();
            [&mut one, &mut other].into_iter().for_each(Writer::release_store);
            let store = if killed { store.killed() } else { store.reopen() };
            assert_eq!(store.first_fence(), fence + 1);
            for task in [&mut one, &mut other] {
                task.use_store(&store);
            }
            one.check().await;
            other.check().await;
            one.commit([chunk("a", "2", true), status(TaskState::Failed, 6)]).await.unwrap();
            one.check().await;
            let fences: Vec<_> = one.log.iter().map(|event| event.position().fence - fence).collect();
            assert_eq!(fences, [0, 0, 0, 0, 1, 1]);
            let query = ListQuery { scope: scope("ada", "blue"), limit: 9, ..ListQuery::default() };
            assert_eq!(store.list(&query).await.unwrap().total, 1);
        }
    }
}

#[tokio::test]
async fn closed_store_is_a_single_file() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory.path().join("a.db")).unwrap();
    store.check().await.unwrap();
    drop(store);
    let names = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let log_files = names.filter(|file| ["a.db-wal", "a.db-shm"].iter().any(|name| file == name));
    assert_eq!(log_files.count(), 0);
}

#[tokio::test]
async fn file_is_locked_by_one_process() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let first = open(&path).unwrap();
    let error = open_error(&path);
    let expected = format!("a.db is in use by process {}, since 20", std::process::id());
    assert!(error.contains(&expected), "{error}");
    #[cfg(unix)]
    {
        // Through a symbolic link too.
        std::os::unix::fs::symlink(&path, directory.path().join("b.db")).unwrap();
        assert!(open_error(&directory.path().join("b.db")).contains(&expected));
    }
    #[cfg(target_os = "linux")]
    {
        // The lock file may be deleted, and the store is still locked.
        fs::remove_file(path.with_added_extension("lock")).unwrap();
        for _ in 0..2 {
            assert!(open_error(&path).contains("a.db is in use by another process"));
        }
        fs::remove_file(path.with_added_extension("lock")).unwrap();
    }
    // The owner is not affected.
    first.check().await.unwrap();
    drop(first);
    open(&path).unwrap();
}

/// Writes to a deleted file would succeed, and be lost with the process.
#[cfg(unix)]
#[tokio::test]
async fn lost_or_replaced_file_makes_the_store_unavailable() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let store = open(&path).unwrap();
    store.check().await.unwrap();
    let mut fault = store.fault().unwrap();
    assert_eq!(*fault.borrow(), None);
    let backup = directory.path().join("b.db");
    fs::rename(&path, &backup).unwrap();
    // An idle store detects it, too.
    let Unavailable(reason) = fault.wait_for(Option::is_some).await.unwrap().clone().unwrap();
    assert!(reason.contains("a.db") && reason.contains("is missing or"), "{reason}");
    assert_eq!(store.check().await, Err(Unavailable(reason)));
    fs::copy(&backup, &path).unwrap();
    let Err(Unavailable(reason)) = store.check().await else { panic!("another file was accepted") };
    assert!(reason.contains("is another file"), "{reason}");
    let key = TaskKey::new(&scope("ada", ""), "t-1");
    let task = Writer::new(&OpenedStore::of(Arc::new(Memory::default())), key.scope(), "t-1").next([]);
    assert!(store.commit([task.clone()].into()).await.is_err(), "the commit must not be acknowledged");
    fs::rename(&backup, &path).unwrap();
    assert!(fault.wait_for(Option::is_none).await.is_ok());
    store.check().await.unwrap();
    assert_eq!(store.load(&key).await.unwrap().map(|stored| stored.position), None);
    assert_eq!(store.commit([task].into()).await.unwrap(), [Ok(Committed::default())]);
    // Without its write-ahead log, the latest commits would be lost with the process.
    let log = directory.path().join("a.db-wal");
    fs::rename(&log, directory.path().join("b.db-wal")).unwrap();
    assert!(fault.wait_for(Option::is_some).await.is_ok());
}

#[tokio::test]
async fn foreign_file_is_rejected_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("text"), "Not a database".repeat(1000)).unwrap();
    let other = rusqlite::Connection::open(path("other")).unwrap();
    other.execute_batch("CREATE TABLE cats(name)").unwrap();
    drop(other);
    for name in ["text", "other"] {
        let before = fs::read(path(name)).unwrap();
        let error = open_error(&path(name));
        assert!(error.ends_with("is not a database of this program"), "{error}");
        assert_eq!(fs::read(path(name)).unwrap(), before);
    }
    drop(open(&path("newer")).unwrap());
    let newer = rusqlite::Connection::open(path("newer")).unwrap();
    newer.pragma_update(None, "user_version", 77).unwrap();
    drop(newer);
    let error = open_error(&path("newer"));
    assert!(error.contains("has schema version 77, but this program supports versions up to "), "{error}");
    drop(open(&path("former")).unwrap());
    let former = rusqlite::Connection::open(path("former")).unwrap();
    former.pragma_update(None, "application_id", 0x4132_4154).unwrap();
    drop(former);
    let before = fs::read(path("former")).unwrap();
    let error = open_error(&path("former"));
    let expected = "former was written by a former build of this program; export it with that build (a2a admin export), and \
                    import it into a new database with this one (a2a admin import)";
    assert!(error.ends_with(expected), "{error}");
    assert_eq!(fs::read(path("former")).unwrap(), before);
    // An empty file is treated as a missing one.
    fs::write(path("empty"), "").unwrap();
    drop(open(&path("empty")).unwrap());
    assert!(open_error(&path("missing/a.db")).contains("missing"));
    let expected = if cfg!(target_os = "linux") { "Is a directory" } else { "the database can't be opened" };
    assert!(open_error(directory.path()).contains(expected), "{}", open_error(directory.path()));
}

#[tokio::test]
async fn full_store_is_unavailable_and_consistent() {
    let mut options = Options::default();
    options.max_bytes = Some(416 << 10);
    let store = OpenedStore::sqlite(options);
    let mut task = Writer::new(&store, &scope("ada", ""), "t-1");
    let mut other = Writer::new(&store, &scope("ada", ""), "t-2");
    let mut over = Writer::new(&store, &scope("ada", ""), "t-3");
    let large = "x".repeat(50 << 10);
    task.commit([]).await.unwrap();
    other.commit([]).await.unwrap();
    over.commit([chunk("a", &large, false), status(TaskState::Completed, 5)]).await.unwrap();
    store.check().await.unwrap();
    let reason = loop {
        let batch = [task.next([chunk("a", &large, false)]), other.next([message("hi")])];
        match store.commit(batch.clone().into()).await {
            Ok(outcomes) => assert!(outcomes.iter().all(Result::is_ok)),
            Err(Unavailable(reason)) => break reason,
        }
        let [one, two] = batch;
        task.record(one);
        other.record(two);
    };
    assert!(reason.contains("the disk or the database is full") && reason.contains("a2a.db"), "{reason}");
    assert_eq!(store.check().await, Err(Unavailable(reason)), "the store is unavailable even if smaller commits fit");
    let check = async || {
        // Stored tasks can be read.
        task.check().await;
        other.check().await;
    };
    check().await;
    // Small commits may still fit; once they do not, the store reports it itself.
    for n in 0.. {
        let task = Writer::new(&store, &scope("bob", ""), &format!("s-{n}"));
        if store.commit([task.next([chunk("a", &large[..8000], false)])].into()).await.is_err() {
            break;
        }
        store.check().await.unwrap();
    }
    let Err(Unavailable(reason)) = store.check().await else { panic!("a full store was reported as available") };
    assert!(reason.contains("the disk or the database is full"), "{reason}");
    check().await;
    // Writable again once a sweep freed space.
    assert_eq!(store.sweep(&finished(0), 100, &|_| false).await.unwrap().tasks, 1);
    store.check().await.unwrap();
    other.commit([chunk("a", &large, false)]).await.unwrap();
    other.check().await;
}

/// A change over the size of the store is rejected alone, in a batch or not, and on every retry.
#[tokio::test]
async fn change_over_the_store_size_is_rejected_alone() {
    let mut options = Options::default();
    options.max_bytes = Some(1 << 20);
    let store = OpenedStore::sqlite(options);
    let rejected = || Err(Refused::Rejected(Rejected::Size { limit: "store.max_size", max: 1 << 20 }));
    let large = "x".repeat(4 << 20);
    let mut tasks: Vec<_> = (0..8).map(|n| Writer::new(&store, &scope("ada", ""), &format!("t-{n}"))).collect();
    tasks[0].commit([]).await.unwrap();
    tasks[7].commit([]).await.unwrap();
    let end = || status(TaskState::Completed, 5);
    let batch = [
        tasks[0].next([chunk("a", "1", false)]),
        tasks[1].next([chunk("a", &large, false)]),
        tasks[2].next([]),
        tasks[3].next([chunk("a", &large, false), end()]),
        tasks[4].next([chunk("a", "1", false), end()]),
        tasks[5].next([end()]),
        tasks[6].next([chunk("a", &large, false), chunk("b", "1", false), end()]),
        tasks[7].next([chunk("a", &large, false)]),
    ];
    let outcomes = store.commit(batch.clone().into()).await.unwrap();
    let is_large = |n: usize| [1, 3, 6, 7].contains(&n);
    for (n, outcome) in outcomes.into_iter().enumerate() {
        assert_eq!(outcome.map(drop), if is_large(n) { rejected() } else { Ok(()) }, "{n}");
    }
    store.check().await.unwrap();
    for (n, (task, commit)) in tasks.iter_mut().zip(batch).enumerate() {
        if is_large(n) {
            for _ in 0..2 {
                assert_eq!(task.write(commit.clone()).await, rejected(), "{n}");
            }
        } else {
            task.record(commit);
        }
        if task.at.seq > 0 {
            task.check().await;
        } else {
            assert!(store.load(&task.key).await.unwrap().is_none(), "{n}: no part of the task is stored");
        }
        // A smaller change of the task is accepted.
        let more = if is_large(n) { task.commit([status(TaskState::Failed, 6)]).await } else { Ok(()) };
        assert_eq!(more, Ok(()));
    }
    tasks.iter_mut().for_each(Writer::release_store);
    let store = store.reopen();
    for task in &mut tasks {
        task.use_store(&store);
    }
    for task in &tasks {
        task.check().await;
    }
    let query = ListQuery { scope: scope("ada", ""), limit: 9, ..ListQuery::default() };
    assert_eq!(store.list(&query).await.unwrap().total, 8);
}

/// A sweep makes room in a full file: the deliveries that have waited longest are given up, with the logs of their tasks.
#[tokio::test]
async fn full_file_gives_up_the_oldest_deliveries() {
    let mut options = Options::default();
    options.max_bytes = Some(1 << 20);
    let store = &OpenedStore::sqlite(options);
    let text = "x".repeat(100 << 10);
    let mut tasks = Vec::new();
    for (id, now) in [("second", 20), ("first", 10), ("running", 5), ("used", 8)] {
        let mut task = Writer::new(store, &scope("ada", ""), id);
        task.commit([]).await.unwrap();
        for config in ["a", "b"] {
            let config = TaskPushNotificationConfig { id: config.into(), ..Default::default() };
            let push = PushConfig { config, version: Version::V1_0, extra: Bytes::new() };
            store.put_push(&task.key, Arc::new(push), 9).await.unwrap();
        }
        task.commit([chunk("a", &text, false)]).await.unwrap();
        if id != "running" {
            task.commit([status(TaskState::Completed, 9)]).await.unwrap();
        }
        assert_eq!(store.mark_due(std::slice::from_ref(&task.key), now).await, Ok(2));
        tasks.push(task);
    }
    let sweep = async || store.sweep(&Retention::FOREVER, 1000, &|key| key.id() == "used").await.unwrap().logs;
    let too_large = || Err(Refused::Rejected(Rejected::Size { limit: "store.max_size", max: 1 << 20 }));
    let commit = async |id: &str, bytes| {
        let task = Writer::new(store, &Arc::default(), id);
        store.commit([task.next([message(&"x".repeat(bytes))])].into()).await
    };
    // A change that is larger than the file makes no difference.
    assert_eq!(commit("huge", 2 << 20).await.unwrap(), [too_large()]);
    assert_eq!(sweep().await, 0);
    let mut n = 0;
    let refused = loop {
        let outcome = commit(&n.to_string(), 8 << 10).await;
        n += 1;
        match outcome.as_deref() {
            Ok([Ok(_)]) => assert!(n < 1000),
            _ => break outcome,
        }
    };
    assert!(refused.is_err() || refused == Ok(vec![too_large()]), "{refused:?}");
    for (given_up, task) in [(1, 1), (2, 0)] {
        assert_eq!(sweep().await, 1);
        tasks[task].is_log_deleted = true;
        let dead = store.deliveries(true, DeliveryToken::default(), 9).await.unwrap().deliveries;
        assert_eq!(dead.len(), 2 * given_up);
        for delivery in dead.iter().filter(|delivery| delivery.key == tasks[task].key) {
            let letter = delivery.state.dead.as_ref().unwrap();
            assert_eq!((letter.time, &*letter.reason, delivery.state.cursor), (1000, STORE_FULL, 1));
        }
        for task in &tasks {
            task.check().await;
        }
        assert_eq!(sweep().await, 0, "nothing was rejected since");
        assert_eq!(commit(&format!("new-{task}"), 64 << 10).await, Ok(vec![Ok(Committed::default())]));
        while commit(&n.to_string(), 8 << 10).await == Ok(vec![Ok(Committed::default())]) {
            n += 1;
        }
    }
    // Only the deliveries of the running task and of the one in use are left, and their logs stay.
    assert_eq!(sweep().await, 0);
    assert_eq!(store.next_due().await, Ok(Some(5)));
}

#[tokio::test]
async fn damage_is_reported_and_other_tasks_are_readable() {
    let store = OpenedStore::sqlite(Options::default());
    let mut tasks = Vec::new();
    for n in 0..40 {
        let mut task = Writer::new(&store, &scope("ada", ""), &format!("t-{n}"));
        task.commit([chunk("a", &"x".repeat(3000), false)]).await.unwrap();
        task.commit([status(TaskState::Completed, 5)]).await.unwrap();
        task.release_store();
        tasks.push(task);
    }
    let path = store.path().unwrap();
    let copied = tempfile::tempdir().unwrap();
    let closed = store.reopen();
    copy(path.parent().unwrap(), copied.path());
    drop(closed);
    let path = copied.path().join("a2a.db");
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2 / 4096 * 4096;
    bytes[middle..middle + 16_384].fill(0xa5);
    fs::write(&path, bytes).unwrap();

    let store = OpenedStore::of(Arc::new(open(&path).unwrap()));
    let (mut good, mut bad) = (0, 0);
    for task in &mut tasks {
        task.use_store(&store);
        match (store.load(&task.key).await, store.events(&task.key, 0, 100, usize::MAX).await) {
            (Ok(Some(_)), Ok(log)) if log == task.log => good += 1,
            (Ok(Some(_)), Ok(log)) => panic!("wrong events: {log:?}"),
            (_, Err(Unavailable(reason))) | (Err(Unavailable(reason)), _) => {
                assert!(reason.contains("the database is damaged"), "{reason}");
                bad += 1;
            }
            (Ok(None), _) => panic!("the task is missing"),
        }
    }
    assert!(good > 0 && bad > 0, "{good} {bad}");
    let Err(Unavailable(reason)) = store.check().await else { panic!("a damaged store was reported as available") };
    assert!(reason.contains("the database is damaged"), "{reason}");
}

/// Owners whose last task was evicted.
#[tokio::test]
async fn evicted_owners_leave_no_rows() {
    let mut options = Options::default();
    options.max_tasks = 2;
    let store = OpenedStore::sqlite(options);
    let count = |table: &str| {
        let file = rusqlite::Connection::open(store.path().unwrap()).unwrap();
        file.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get::<_, i64>(0)).unwrap()
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
        assert!(count("scope") <= 2 && count("total") <= 4);
    }
    // A rejected task leaves no rows either.
    for (id, owner) in [("a", "bob"), ("b", "eve")] {
        Writer::new(&store, &scope(owner, ""), id).commit([]).await.unwrap();
    }
    let rejected = Writer::new(&store, &scope("cid", ""), "c").commit([]).await;
    assert_eq!((rejected, count("scope")), (Err(Refused::Rejected(Rejected::Full(Full::tasks(2)))), 2));
}

/// The totals of large contexts are maintained by commits, and not counted by lists.
#[tokio::test]
async fn totals_of_large_contexts_are_maintained() {
    let store = OpenedStore::sqlite(Options::default());
    let ada = scope("ada", "");
    let begin = |n: usize, context: &str| Writer::within(&store, &ada, &format!("{context}-{n}"), context, 5);
    // Enough that some of them are sampled with near certainty.
    let mut tasks: Vec<_> = (0..6000).map(|n| begin(n, "many")).chain((0..9).map(|n| begin(n, "few"))).collect();
    let counters = || {
        let file = rusqlite::Connection::open(store.path().unwrap()).unwrap();
        let mut all = file.prepare("SELECT context, state, tasks FROM crowd ORDER BY 1, 2").unwrap();
        let rows = all.query_map([], |row| <(String, i32, i64)>::try_from(row)).unwrap();
        rows.collect::<Result<Vec<_>, _>>().unwrap()
    };
    for round in 0..2 {
        for some in tasks.chunks_mut(500) {
            let state = |n: usize| if n.is_multiple_of(3) { TaskState::Completed } else { TaskState::Working };
            let commits = some.iter().enumerate().map(|(n, task)| task.next((round > 0).then(|| status(state(n), 7))));
            let commits: Vec<_> = commits.collect();
            assert!(store.commit(commits.clone().into()).await.unwrap().iter().all(Result::is_ok));
            some.iter_mut().zip(commits).for_each(|(task, commit)| task.record(commit));
        }
        let expected: &[(i32, i64)] = if round == 0 { &[(1, 6000)] } else { &[(2, 3996), (3, 2004)] };
        let expected: Vec<_> = expected.iter().map(|row| ("many".to_owned(), row.0, row.1)).collect();
        assert_eq!(counters(), expected);
    }
    let total = async |context: &str, state| {
        let context = Some(context.into());
        let query = ListQuery { scope: scope("ada", ""), context, state, limit: 1, ..ListQuery::default() };
        store.list(&query).await.unwrap().total
    };
    assert_eq!((total("many", None).await, total("few", None).await), (6000, 9));
    assert_eq!(
        (total("many", Some(TaskState::Completed)).await, total("many", Some(TaskState::Failed)).await),
        (2004, 0)
    );
    store.sweep(&finished(0), 100, &|_| false).await.unwrap();
    assert_eq!(counters(), [("many".to_owned(), 2, 3996)]);
    assert_eq!((total("many", None).await, total("many", Some(TaskState::Completed)).await), (3996, 0));
}

/// A full store of terminal tasks, the oldest of which cannot be read.
#[tokio::test]
async fn eviction_skips_unreadable_tasks() {
    for damage in [
        "UPDATE task SET context = CAST(x'ff' AS TEXT) WHERE key = 't-0'",
        "UPDATE task SET scope = 99 WHERE key = 't-0'",
    ] {
        for per_owner in [None, Some(3)] {
            let mut options = Options::default();
            (options.max_tasks, options.max_tasks_per_owner) = (3, per_owner);
            let store = OpenedStore::sqlite(options);
            let ada = scope("ada", "");
            let end = |n: i64| status(TaskState::Completed, n);
            for n in 0..3 {
                Writer::new(&store, &ada, &format!("t-{n}")).commit([end(n)]).await.unwrap();
            }
            let file = rusqlite::Connection::open(store.path().unwrap()).unwrap();
            assert_eq!(file.execute(damage, []).unwrap(), 1);
            let task_keys = || {
                let mut keys = file.prepare("SELECT key FROM task ORDER BY time").unwrap();
                let keys = keys.query_map([], |row| row.get::<_, String>(0)).unwrap();
                keys.collect::<Result<Vec<_>, _>>().unwrap()
            };
            for n in 3..6 {
                let mut task = Writer::new(&store, &ada, &format!("t-{n}"));
                if n % 2 == 0 {
                    task.commit([end(n)]).await.unwrap();
                } else {
                    task.commit([]).await.unwrap();
                    task.commit([end(n)]).await.unwrap();
                }
                task.check().await;
                assert_eq!(task_keys(), ["t-0".to_owned(), format!("t-{}", n - 1), format!("t-{n}")], "{damage}");
            }
            // Sweeps skip it too, and nothing is evicted once no other task is terminal.
            assert_eq!(store.sweep(&finished(0), 100, &|_| false).await.unwrap().tasks, 2, "{damage}");
            for id in ["a", "b"] {
                Writer::new(&store, &ada, id).commit([]).await.unwrap();
            }
            let rejected = Writer::new(&store, &ada, "c").commit([]).await;
            assert!(matches!(rejected, Err(Refused::Rejected(Rejected::Full(_)))), "{rejected:?}");
            assert_eq!(task_keys(), ["a", "b", "t-0"], "{damage}");
            store.check().await.unwrap();
        }
    }
}

/// The limit of tasks is lower than the number of stored tasks.
#[tokio::test]
async fn task_is_evicted_only_for_an_accepted_one() {
    let options = |max_tasks| {
        let mut options = Options::default();
        (options.max_tasks, options.max_tasks_per_owner) = (max_tasks, Some(2));
        options
    };
    let store = OpenedStore::sqlite(options(9));
    let (ada, bob) = (scope("ada", ""), scope("bob", ""));
    for (id, owner) in [("open", &ada), ("bob-1", &bob), ("bob-2", &bob)] {
        Writer::new(&store, owner, id).commit([]).await.unwrap();
    }
    Writer::new(&store, &ada, "ended").commit([status(TaskState::Completed, 5)]).await.unwrap();
    let store = store.reopen_with(options(2));
    let tasks = || {
        let file = rusqlite::Connection::open(store.path().unwrap()).unwrap();
        let mut keys = file.prepare("SELECT key FROM task ORDER BY key").unwrap();
        keys.query_map([], |row| row.get::<_, String>(0)).unwrap().collect::<Result<Vec<_>, _>>().unwrap()
    };
    assert_eq!((store.check_capacity(&ada), store.check_capacity(&bob)), (Ok(()), Err(Full::per_owner(2))));
    let rejected = Writer::new(&store, &bob, "bob-3").commit([]).await;
    assert_eq!(rejected, Err(Refused::Rejected(Rejected::Full(Full::per_owner(2)))));
    assert_eq!(tasks(), ["bob-1", "bob-2", "ended", "open"]);
    // Evicts a task of its owner, which counts for both limits.
    Writer::new(&store, &ada, "new").commit([]).await.unwrap();
    assert_eq!(tasks(), ["bob-1", "bob-2", "new", "open"]);
    let rejected = Writer::new(&store, &scope("eve", ""), "eve-1").commit([]).await;
    assert_eq!(rejected, Err(Refused::Rejected(Rejected::Full(Full::tasks(2)))));
    assert_eq!(tasks(), ["bob-1", "bob-2", "new", "open"]);
}
