//! What a store in a file promises beyond that: who may open it, what is there when it is opened again, and what happens
//! when there is no room for more, or when it is not what it should be.

use std::{fs, path::Path, sync::Arc, time::Duration};

use a2a_service::{
    event::Position,
    pb::v1::TaskState,
    store::{
        Change, Commit, Full, Key, ListQuery, Refused, Rejected, RunnerId, Store, Unavailable,
        memory::Memory,
        sqlite::{Durability, Error, Options, Sqlite},
    },
};

use super::{
    finished,
    place::{Opened, copy},
    writer::{Writer, chunk, concluded, message, scope, status},
};

const SOON: Duration = Duration::from_secs(1);

fn open(path: &Path) -> Result<Sqlite, Error> {
    Sqlite::open(path, Options::default())
}

/// How it was opened, and what that says where it can't be.
fn refused(path: &Path) -> String {
    open(path).unwrap_err().to_string()
}

#[tokio::test]
async fn what_was_written_is_there_again() {
    for durability in [Durability::Process, Durability::Power] {
        for killed in [false, true] {
            let mut options = Options::default();
            options.durability = durability;
            let store = Opened::sqlite(options);
            let (mut one, mut other) =
                (Writer::new(&store, &scope("ada", "blue"), "t-1"), Writer::new(&store, &scope("bob", ""), "t-1"));
            one.commit([chunk("a", "1", false), status(TaskState::Working, 5), message("hi")]).await.unwrap();
            other.commit([chunk("a", "1", false), status(TaskState::Completed, 5)]).await.unwrap();
            let fence = store.fence();
            [&mut one, &mut other].into_iter().for_each(Writer::leave);
            let store = if killed { store.killed() } else { store.again() };
            assert_eq!(store.fence(), fence + 1);
            for it in [&mut one, &mut other] {
                it.go_on(&store);
            }
            one.check().await;
            other.check().await;
            one.commit([chunk("a", "2", true), status(TaskState::Failed, 6)]).await.unwrap();
            one.check().await;
            let fences: Vec<_> = one.log.iter().map(|it| it.position().fence - fence).collect();
            assert_eq!(fences, [0, 0, 0, 0, 1, 1]);
            let query = ListQuery { scope: scope("ada", "blue"), limit: 9, ..ListQuery::default() };
            assert_eq!(store.list(&query).await.unwrap().total, 1);
        }
    }
}

#[tokio::test]
async fn a_file_that_was_closed_is_all_there_is() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory.path().join("a.db")).unwrap();
    store.check().await.unwrap();
    drop(store);
    let there = fs::read_dir(directory.path()).unwrap().map(|it| it.unwrap().file_name());
    let log = there.filter(|it| ["a.db-wal", "a.db-shm"].iter().any(|name| it == name));
    assert_eq!(log.count(), 0);
}

#[tokio::test]
async fn a_file_is_one_servers() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let first = open(&path).unwrap();
    let said = refused(&path);
    let expected = format!("a.db is in use by process {}, since 20", std::process::id());
    assert!(said.contains(&expected), "{said}");
    #[cfg(unix)]
    {
        // By another name too.
        std::os::unix::fs::symlink(&path, directory.path().join("b.db")).unwrap();
        assert!(refused(&directory.path().join("b.db")).contains(&expected));
    }
    // The one who has it does not mind.
    first.check().await.unwrap();
    drop(first);
    open(&path).unwrap();
}

/// What is written to it would be gone with the process, and nothing fails.
#[cfg(unix)]
#[tokio::test]
async fn a_file_that_is_gone_is_missed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let store = open(&path).unwrap();
    store.check().await.unwrap();
    let mut fault = store.fault().unwrap();
    assert_eq!(*fault.borrow(), None);
    let aside = directory.path().join("b.db");
    fs::rename(&path, &aside).unwrap();
    // Seen by a server that does nothing, too.
    let Unavailable(why) = fault.wait_for(Option::is_some).await.unwrap().clone().unwrap();
    assert!(why.contains("a.db") && why.contains("not there any more"), "{why}");
    assert_eq!(store.check().await, Err(Unavailable(why)));
    fs::copy(&aside, &path).unwrap();
    let Err(Unavailable(why)) = store.check().await else { panic!("it is another one") };
    assert!(why.contains("is another file"), "{why}");
    let key = Key::new(&scope("ada", ""), "t-1");
    let task = Writer::new(&Opened::of(Arc::new(Memory::default())), key.scope(), "t-1").next([]);
    assert!(store.commit([task.clone()].into()).await.is_err(), "nothing is acknowledged");
    fs::rename(&aside, &path).unwrap();
    assert!(fault.wait_for(Option::is_none).await.is_ok());
    store.check().await.unwrap();
    assert_eq!(store.load(&key).await.unwrap().map(|it| it.position), None);
    assert_eq!(store.commit([task].into()).await.unwrap(), [Ok(())]);
    // Without its log, what was committed last is lost with the process.
    let log = directory.path().join("a.db-wal");
    fs::rename(&log, directory.path().join("b.db-wal")).unwrap();
    assert!(fault.wait_for(Option::is_some).await.is_ok());
}

#[tokio::test]
async fn what_is_no_file_of_ours_is_left_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("text"), "What is this?".repeat(1000)).unwrap();
    let other = rusqlite::Connection::open(path("other")).unwrap();
    other.execute_batch("CREATE TABLE cats(name)").unwrap();
    drop(other);
    for name in ["text", "other"] {
        let before = fs::read(path(name)).unwrap();
        let said = refused(&path(name));
        assert!(said.ends_with("is no file of this program"), "{said}");
        assert_eq!(fs::read(path(name)).unwrap(), before);
    }
    drop(open(&path("newer")).unwrap());
    let newer = rusqlite::Connection::open(path("newer")).unwrap();
    newer.pragma_update(None, "user_version", 77).unwrap();
    drop(newer);
    let said = refused(&path("newer"));
    assert!(said.contains("has version 77 of the tables, and this program knows those up to "), "{said}");
    // An empty one is as good as none.
    fs::write(path("empty"), "").unwrap();
    drop(open(&path("empty")).unwrap());
    assert!(refused(&path("missing/a.db")).contains("missing"));
    assert!(refused(directory.path()).contains("can't be opened"), "{}", refused(directory.path()));
}

#[tokio::test]
async fn where_there_is_no_room_nothing_is_half_written() {
    let mut options = Options::default();
    options.max_bytes = Some(400 << 10);
    let store = Opened::sqlite(options);
    let mut task = Writer::new(&store, &scope("ada", ""), "t-1");
    let mut other = Writer::new(&store, &scope("ada", ""), "t-2");
    let mut over = Writer::new(&store, &scope("ada", ""), "t-3");
    let large = "x".repeat(50 << 10);
    task.commit([]).await.unwrap();
    other.commit([]).await.unwrap();
    over.commit([chunk("a", &large, false), status(TaskState::Completed, 5)]).await.unwrap();
    store.check().await.unwrap();
    let why = loop {
        let batch = [task.next([chunk("a", &large, false)]), other.next([message("hi")])];
        match store.commit(batch.clone().into()).await {
            Ok(outcomes) => assert_eq!(outcomes, [Ok(()), Ok(())]),
            Err(Unavailable(why)) => break why,
        }
        let [one, two] = batch;
        task.wrote(one);
        other.wrote(two);
    };
    assert!(why.contains("there is no room for more") && why.contains("a2a.db"), "{why}");
    assert_eq!(store.check().await, Err(Unavailable(why)), "that something smaller would fit is no comfort");
    let check = async || {
        // What was there is read.
        task.check().await;
        other.check().await;
    };
    check().await;
    // Small things may still fit; once they do not either, it says so itself.
    for n in 0.. {
        let task = Writer::new(&store, &scope("bob", ""), &format!("s-{n}"));
        if store.commit([task.next([chunk("a", &large[..8000], false)])].into()).await.is_err() {
            break;
        }
        store.check().await.unwrap();
    }
    let Err(Unavailable(why)) = store.check().await else { panic!("it is full") };
    assert!(why.contains("there is no room for more"), "{why}");
    check().await;
    // And when there is room again, it goes on.
    assert_eq!(store.sweep(&finished(0), 100, &|_| false).await.unwrap().tasks, 1);
    store.check().await.unwrap();
    other.commit([chunk("a", &large, false)]).await.unwrap();
    other.check().await;
}

/// A change that does not fit is rejected by itself, whether it comes alone or with others, and again whenever it comes.
#[tokio::test]
async fn what_can_not_be_stored_is_rejected_alone() {
    let mut options = Options::default();
    options.max_bytes = Some(1 << 20);
    let store = Opened::sqlite(options);
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
    let whole = |it: &Commit| concluded(it).map_or_else(|| Change::Commit(it.clone()), Change::CompletedTask);
    let outcomes = store.commit_changes(batch.iter().map(whole).collect()).await.unwrap();
    let is_large = |n: usize| [1, 3, 6, 7].contains(&n);
    for (n, outcome) in outcomes.into_iter().enumerate() {
        assert_eq!(outcome, if is_large(n) { rejected() } else { Ok(()) }, "{n}");
    }
    store.check().await.unwrap();
    for (n, (task, commit)) in tasks.iter_mut().zip(batch).enumerate() {
        if is_large(n) {
            for _ in 0..2 {
                assert_eq!(task.write(commit.clone()).await, rejected(), "{n}");
            }
        } else {
            task.wrote(commit);
        }
        if task.at.seq > 0 {
            task.check().await;
        } else {
            assert!(store.load(&task.key).await.unwrap().is_none(), "nothing of {n} is there");
        }
        // What fits is taken from the same task.
        let more = if is_large(n) { task.commit([status(TaskState::Failed, 6)]).await } else { Ok(()) };
        assert_eq!(more, Ok(()));
    }
    tasks.iter_mut().for_each(Writer::leave);
    let store = store.again();
    for task in &mut tasks {
        task.go_on(&store);
    }
    for task in &tasks {
        task.check().await;
    }
    let query = ListQuery { scope: scope("ada", ""), limit: 9, ..ListQuery::default() };
    assert_eq!(store.list(&query).await.unwrap().total, 8);
}

#[tokio::test]
async fn damage_is_told_and_the_rest_is_served() {
    let store = Opened::sqlite(Options::default());
    let mut tasks = Vec::new();
    for n in 0..40 {
        let mut task = Writer::new(&store, &scope("ada", ""), &format!("t-{n}"));
        task.commit([chunk("a", &"x".repeat(3000), false)]).await.unwrap();
        task.commit([status(TaskState::Completed, 5)]).await.unwrap();
        task.leave();
        tasks.push(task);
    }
    let path = store.path().unwrap();
    let left = tempfile::tempdir().unwrap();
    let closed = store.again();
    copy(path.parent().unwrap(), left.path());
    drop(closed);
    let path = left.path().join("a2a.db");
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2 / 4096 * 4096;
    bytes[middle..middle + 16_384].fill(0xa5);
    fs::write(&path, bytes).unwrap();

    let store = Opened::of(Arc::new(open(&path).unwrap()));
    let (mut good, mut bad) = (0, 0);
    for task in &mut tasks {
        task.go_on(&store);
        match (store.load(&task.key).await, store.events(&task.key, 0, 100).await) {
            (Ok(Some(_)), Ok(log)) if log.events == task.log => good += 1,
            (Ok(Some(_)), Ok(log)) => panic!("{log:?} is not what was written"),
            (_, Err(Unavailable(why))) | (Err(Unavailable(why)), _) => {
                assert!(why.contains("it is damaged"), "{why}");
                bad += 1;
            }
            (Ok(None), _) => panic!("a task can't get lost"),
        }
    }
    assert!(good > 0 && bad > 0, "{good} {bad}");
    let Err(Unavailable(why)) = store.check().await else { panic!("it is damaged") };
    assert!(why.contains("it is damaged"), "{why}");
}

#[tokio::test]
async fn what_was_left_open_is_claimed_once() {
    let store = Opened::sqlite(Options::default());
    let mut writers = Vec::new();
    for (n, state) in
        [None, Some(TaskState::Working), Some(TaskState::Completed), Some(TaskState::Working)].iter().enumerate()
    {
        let mut task = Writer::new(&store, &scope("ada", "blue"), &format!("t-{n}"));
        task.commit(state.map(|it| status(it, 5))).await.unwrap();
        writers.push(task);
    }
    let runner = RunnerId(1);
    assert!(store.claim(runner, 9, SOON).await.unwrap().is_empty(), "it is this opening that runs them");
    writers.iter_mut().for_each(Writer::leave);
    let store = store.again();
    for it in &mut writers {
        it.go_on(&store);
    }
    // This one goes on before anybody claims it.
    writers[3].commit([message("hi")]).await.unwrap();
    let mut claimed = Vec::new();
    loop {
        let some = store.claim(runner, 1, SOON).await.unwrap();
        assert!(some.len() <= 1);
        if some.is_empty() {
            break;
        }
        claimed.extend(some);
    }
    let keys: Vec<_> = claimed.iter().map(|it| it.0.id()).collect();
    assert_eq!(keys, ["t-0", "t-1"]);
    for (key, stored) in claimed {
        let mut stored = stored.unwrap();
        let task = writers.iter_mut().find(|it| it.key.id() == key.id()).unwrap();
        assert_eq!(&*key.scope().tenant, "blue");
        assert_eq!((stored.row.attempt, stored.position.fence, stored.position.seq), (2, store.fence(), task.at.seq));
        assert_eq!(stored.load_task(&*store, &task.key).await.unwrap(), task.task);
        // Who had it before is too late.
        let late = task.commit([message("late")]).await;
        assert_eq!(late, Err(Refused::Stale(Some(stored.position))));
        task.at = Position { fence: store.fence(), ..task.at };
        task.commit([status(TaskState::Failed, 9)]).await.unwrap();
        task.check().await;
    }
    let owner = Key::new(&scope("ada", "blue"), "t-2");
    assert_eq!(store.load(&owner).await.unwrap().unwrap().row.attempt, 1);
}

/// The tasks of a context that has many are not counted for a list, but as they come, change and go.
#[tokio::test]
async fn a_context_that_has_many_knows_how_many() {
    let store = Opened::sqlite(Options::default());
    let ada = scope("ada", "");
    let begin = |n: usize, context: &str| Writer::within(&store, &ada, &format!("{context}-{n}"), context, 5);
    // So many that it is all but impossible that none of them has been asked.
    let mut tasks: Vec<_> = (0..6000).map(|n| begin(n, "many")).chain((0..9).map(|n| begin(n, "few"))).collect();
    let kept = || {
        let file = rusqlite::Connection::open(store.path().unwrap()).unwrap();
        let mut all = file.prepare("SELECT context, state, tasks FROM crowd ORDER BY 1, 2").unwrap();
        let rows = all.query_map([], |it| <(String, i32, i64)>::try_from(it)).unwrap();
        rows.collect::<Result<Vec<_>, _>>().unwrap()
    };
    for round in 0..2 {
        for some in tasks.chunks_mut(500) {
            let state = |n: usize| if n.is_multiple_of(3) { TaskState::Completed } else { TaskState::Working };
            let commits = some.iter().enumerate().map(|(n, it)| it.next((round > 0).then(|| status(state(n), 7))));
            let commits: Vec<_> = commits.collect();
            assert!(store.commit(commits.clone().into()).await.unwrap().iter().all(Result::is_ok));
            some.iter_mut().zip(commits).for_each(|(it, commit)| it.wrote(commit));
        }
        let expected: &[(i32, i64)] = if round == 0 { &[(1, 6000)] } else { &[(2, 3996), (3, 2004)] };
        let expected: Vec<_> = expected.iter().map(|it| ("many".to_owned(), it.0, it.1)).collect();
        assert_eq!(kept(), expected);
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
    assert_eq!(kept(), [("many".to_owned(), 2, 3996)]);
    assert_eq!((total("many", None).await, total("many", Some(TaskState::Completed)).await), (3996, 0));
}

/// A store that is full of tasks that have ended, the first of which can't be read.
#[tokio::test]
async fn eviction_skips_tasks_that_can_not_be_read() {
    for damage in [
        "UPDATE task SET context = CAST(x'ff' AS TEXT) WHERE key = 't-0'",
        "UPDATE task SET scope = 99 WHERE key = 't-0'",
    ] {
        for per_owner in [None, Some(3)] {
            let mut options = Options::default();
            (options.max_tasks, options.max_tasks_per_owner) = (3, per_owner);
            let store = Opened::sqlite(options);
            let ada = scope("ada", "");
            let end = |n: i64| status(TaskState::Completed, n);
            for n in 0..3 {
                Writer::new(&store, &ada, &format!("t-{n}")).commit([end(n)]).await.unwrap();
            }
            let file = rusqlite::Connection::open(store.path().unwrap()).unwrap();
            assert_eq!(file.execute(damage, []).unwrap(), 1);
            let left = || {
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
                assert_eq!(left(), ["t-0".to_owned(), format!("t-{}", n - 1), format!("t-{n}")], "{damage}");
            }
            // Sweeps skip it too, and nothing else is evicted once no other task has ended.
            assert_eq!(store.sweep(&finished(0), 100, &|_| false).await.unwrap().tasks, 2, "{damage}");
            for id in ["a", "b"] {
                Writer::new(&store, &ada, id).commit([]).await.unwrap();
            }
            let refused = Writer::new(&store, &ada, "c").commit([]).await;
            assert!(matches!(refused, Err(Refused::Full(_))), "{refused:?}");
            assert_eq!(left(), ["a", "b", "t-0"], "{damage}");
            store.check().await.unwrap();
        }
    }
}

/// The limit of all tasks was lowered below what is kept.
#[tokio::test]
async fn task_is_evicted_only_for_one_that_is_accepted() {
    let options = |max_tasks| {
        let mut options = Options::default();
        (options.max_tasks, options.max_tasks_per_owner) = (max_tasks, Some(2));
        options
    };
    let store = Opened::sqlite(options(9));
    let (ada, bob) = (scope("ada", ""), scope("bob", ""));
    for (id, owner) in [("open", &ada), ("bob-1", &bob), ("bob-2", &bob)] {
        Writer::new(&store, owner, id).commit([]).await.unwrap();
    }
    Writer::new(&store, &ada, "ended").commit([status(TaskState::Completed, 5)]).await.unwrap();
    let store = store.again_with(options(2));
    let tasks = || {
        let file = rusqlite::Connection::open(store.path().unwrap()).unwrap();
        let mut keys = file.prepare("SELECT key FROM task ORDER BY key").unwrap();
        keys.query_map([], |row| row.get::<_, String>(0)).unwrap().collect::<Result<Vec<_>, _>>().unwrap()
    };
    assert_eq!((store.check_capacity(&ada), store.check_capacity(&bob)), (Ok(()), Err(Full::per_owner(2))));
    let refused = Writer::new(&store, &bob, "bob-3").commit([]).await;
    assert_eq!(refused, Err(Refused::Full(Full::per_owner(2))));
    assert_eq!(tasks(), ["bob-1", "bob-2", "ended", "open"]);
    // Takes the place of the task of its owner, and counts as one eviction for both limits.
    Writer::new(&store, &ada, "new").commit([]).await.unwrap();
    assert_eq!(tasks(), ["bob-1", "bob-2", "new", "open"]);
    let refused = Writer::new(&store, &scope("eve", ""), "eve-1").commit([]).await;
    assert_eq!(refused, Err(Refused::Full(Full::tasks(2))));
    assert_eq!(tasks(), ["bob-1", "bob-2", "new", "open"]);
}
