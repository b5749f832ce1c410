//! Internal behaviour: migrations, query plans, group commit with rejected parts, and the size of the write-ahead log.

use std::pin::pin;

use futures::poll;
use rusqlite::OpenFlags;
use tokio::sync::oneshot;

use super::{transaction::WriteTransaction, *};
use crate::{
    protocol::{
        event::{Ends, Event, Position},
        pb::v1::{Message, Task, TaskState},
    },
    store::{Committed, Expect, Rejected, TaskHead},
};

const ONE: &str = "CREATE TABLE a(x INTEGER) STRICT; INSERT INTO a VALUES(1);";
const TWO: &str = "ALTER TABLE a ADD y TEXT; UPDATE a SET y = 'two';";
const BROKEN: &str = "UPDATE a SET x = 3; CREATE TABLE b(x INTEGER) STRICT; INSERT INTO nowhere VALUES(1);";

fn read_only(path: &Path) -> Connection {
    Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap()
}

fn version(db: &Connection) -> i32 {
    db.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
}

#[cfg(unix)]
#[test]
fn only_the_owner_can_read_the_files_of_a_store() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a2a.db");
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    let store = Sqlite::open(&path, Options::default()).unwrap();
    assert_eq!((mode(&path), mode(&file::wal_path(&path))), (0o600, 0o600));
    drop(store);
    let copy = directory.path().join("copy.db");
    Inspector::open(&path).unwrap().backup(&copy).unwrap();
    assert_eq!(mode(&copy), 0o600);
    let linked = directory.path().join("linked.db");
    std::os::unix::fs::symlink(directory.path().join("target.db"), &linked).unwrap();
    drop(Sqlite::open(&linked, Options::default()).unwrap());
    assert_eq!(mode(&linked), 0o600);
    // Permissions that an operator has set remain.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    drop(Sqlite::open(&path, Options::default()).unwrap());
    assert_eq!(mode(&path), 0o640);
}

#[test]
fn migration_copies_the_old_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let mut db = Connection::open(&path).unwrap();
    migrations::migrate(&mut db, &path, &[ONE]).unwrap();
    assert!(!directory.path().join("a.db.v1").exists(), "an empty file is not copied");
    // A failed migration has no effect and can be repeated.
    for _ in 0..2 {
        let failed = migrations::migrate(&mut db, &path, &[ONE, TWO, BROKEN]).unwrap_err().to_string();
        assert!(failed.contains("nowhere"), "{failed}");
        assert_eq!(version(&db), 1);
        assert_eq!(db.query_row("SELECT * FROM a", [], |row| Ok(row.as_ref().column_count())), Ok(1));
    }
    migrations::migrate(&mut db, &path, &[ONE, TWO]).unwrap();
    assert_eq!(version(&db), 2);
    assert_eq!(db.query_row("SELECT x, y FROM a", [], |row| <(i32, String)>::try_from(row)), Ok((1, "two".into())));
    let before = read_only(&directory.path().join("a.db.v1"));
    assert_eq!(version(&before), 1);
    assert_eq!(before.query_row("SELECT * FROM a", [], |row| row.get::<_, i32>(0)), Ok(1));
    assert!(before.query_row("SELECT y FROM a", [], |_| Ok(())).is_err());
    drop(before);
    // A database with the newest version is not copied.
    migrations::migrate(&mut db, &path, &[ONE, TWO]).unwrap();
    assert!(!directory.path().join("a.db.v2").exists());
    let newer = migrations::migrate(&mut db, &path, &[ONE]).unwrap_err();
    assert!(matches!(newer.problem, Problem::Newer { version: 2, newest: 1 }), "{newer}");
}

/// The time of a list does not depend on the number of tasks.
#[test]
fn queries_neither_scan_nor_sort() {
    let directory = tempfile::tempdir().unwrap();
    drop(open(&directory));
    let db = read_only(&directory.path().join("a.db"));
    let sweeps = [&sweep::OLDEST, &sweep::WITH_LOG, &sweep::WITH_PUSHES].map(|sql| String::clone(sql));
    let sweeps = sweeps.into_iter().chain([sweep::IDLE, sweep::SENDS].map(str::to_owned));
    let claim = write::UNFINISHED.to_owned();
    let deliveries = [delivery::DUE, delivery::TASKS].map(str::to_owned);
    let sweeps = sweeps.chain(deliveries);
    let log = "SELECT max(id) FROM log WHERE id BETWEEN 1 AND 2".to_owned();
    let crowd = "SELECT sum(tasks) FROM crowd WHERE scope = 1 AND context = 'a'".to_owned();
    for sql in list::QUERIES.iter().flatten().cloned().chain(sweeps).chain([claim, log, crowd]) {
        let mut plan = db.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let unbound = plan.parameter_count();
        (1..=unbound).for_each(|parameter| plan.raw_bind_parameter(parameter, 1).unwrap());
        let mut rows = plan.raw_query();
        while let Some(row) = rows.next().unwrap() {
            let step: String = row.get("detail").unwrap();
            assert!(!step.contains("TEMP B-TREE") && !step.starts_with("SCAN"), "{sql}: {step}");
        }
    }
}

fn open(directory: &tempfile::TempDir) -> Sqlite {
    Sqlite::open(&directory.path().join("a.db"), Options::default()).unwrap()
}

/// Waiting jobs are combined into one transaction. If one of them fails, all of them do, and no other transaction.
#[tokio::test]
async fn waiting_jobs_are_committed_together_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let put = |transaction: &mut WriteTransaction<'_>| transaction.db.execute("INSERT INTO probe VALUES(x'00')", []);
    let fail = |transaction: &mut WriteTransaction<'_>| transaction.db.execute("INSERT INTO nowhere VALUES(1)", []);
    for fails in [true, false] {
        let (go, gone) = mpsc::channel::<()>();
        let (started, starting) = oneshot::channel();
        let mut first = pin!(store.writer.run_once(move |transaction| {
            put(transaction)?;
            _ = started.send(());
            // Blocks until the other jobs are queued.
            gone.recv().map_err(|_| rusqlite::Error::InvalidQuery)
        }));
        assert!(poll!(&mut first).is_pending());
        starting.await.unwrap();
        let (mut second, mut third) =
            (pin!(store.writer.run(put)), pin!(store.writer.run(if fails { fail } else { put })));
        assert!(poll!(&mut second).is_pending() && poll!(&mut third).is_pending());
        go.send(()).unwrap();
        first.await.unwrap();
        let outcomes = (second.await, third.await);
        let there = store.readers.run(|db| db.query_row("SELECT count(*) FROM probe", [], |row| row.get::<_, i32>(0)));
        let there = there.await.unwrap();
        if fails {
            assert!(outcomes.0.is_err() && outcomes.0 == outcomes.1, "{outcomes:?}");
            assert_eq!(there, 1);
        } else {
            assert_eq!((outcomes, there), ((Ok(1), Ok(1)), 4));
        }
    }
}

/// A change that can't be stored is rejected alone, without the other changes of its batch.
#[tokio::test]
async fn rejected_change_does_not_affect_other_changes() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { max_bytes: Some(1 << 20), ..Options::default() };
    let store = Sqlite::open(&directory.path().join("a.db"), options).unwrap();
    let put = |transaction: &mut WriteTransaction<'_>| transaction.db.execute("INSERT INTO probe VALUES(x'00')", []);
    let (go, gone) = mpsc::channel::<()>();
    let mut first = pin!(store.writer.run_once(move |_| gone.recv().map_err(|_| rusqlite::Error::InvalidQuery)));
    assert!(poll!(&mut first).is_pending());
    let begin = |id: &str, bytes| new_task(&store, id, bytes);
    let (mut second, mut third, mut fourth) = (
        pin!(store.writer.run(put)),
        pin!(store.commit([begin("a", 1), begin("b", 2 << 20), begin("c", 1)].into())),
        pin!(store.commit([begin("d", 2 << 20), begin("e", 1)].into())),
    );
    assert!(poll!(&mut second).is_pending() && poll!(&mut third).is_pending() && poll!(&mut fourth).is_pending());
    go.send(()).unwrap();
    first.await.unwrap();
    assert_eq!(second.await, Ok(1));
    let rejected = || Err(Refused::Rejected(Rejected::Size { limit: "store.max_size", max: 1 << 20 }));
    assert_eq!(third.await.unwrap(), [Ok(Committed::default()), rejected(), Ok(Committed::default())]);
    assert_eq!(fourth.await.unwrap(), [rejected(), Ok(Committed::default())]);
    let tasks = store.readers.run(|db| db.query_row("SELECT sum(tasks) FROM total", [], |row| row.get::<_, i32>(0)));
    assert_eq!((tasks.await, store.quota.lock().total.tasks), (Ok(3), 3));
    assert_eq!(store.health.recent_outcome(), Some(Ok(())));
}

/// A job that can't be written fails alone, without the changes and jobs of its transaction.
#[tokio::test]
async fn rejected_job_does_not_affect_other_jobs() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { max_bytes: Some(1 << 20), ..Options::default() };
    let store = Sqlite::open(&directory.path().join("a.db"), options).unwrap();
    let put = |transaction: &mut WriteTransaction<'_>| transaction.db.execute("INSERT INTO probe VALUES(x'00')", []);
    let rejected =
        |transaction: &mut WriteTransaction<'_>| transaction.db.execute("INSERT INTO probe VALUES('text')", []);
    let (go, gone) = mpsc::channel::<()>();
    let mut first = pin!(store.writer.run_once(move |_| gone.recv().map_err(|_| rusqlite::Error::InvalidQuery)));
    assert!(poll!(&mut first).is_pending());
    let begin = |id: &str, bytes| new_task(&store, id, bytes);
    let (mut before, mut fails, mut after, mut once) = (
        pin!(store.writer.run(put)),
        pin!(store.writer.run(rejected)),
        pin!(store.writer.run(put)),
        pin!(store.writer.run_once(put)),
    );
    let mut changes = pin!(store.commit([begin("a", 1), begin("b", 2 << 20)].into()));
    assert!(poll!(&mut before).is_pending() && poll!(&mut fails).is_pending() && poll!(&mut after).is_pending());
    assert!(poll!(&mut once).is_pending() && poll!(&mut changes).is_pending());
    go.send(()).unwrap();
    first.await.unwrap();
    assert_eq!((before.await, after.await, once.await), (Ok(1), Ok(1), Ok(1)));
    let Err(Unavailable(why)) = fails.await else { panic!("a text was accepted as a blob") };
    assert!(why.contains("probe"), "{why}");
    let too_large = Rejected::Size { limit: "store.max_size", max: 1 << 20 };
    assert_eq!(changes.await.unwrap(), [Ok(Committed::default()), Err(Refused::Rejected(too_large))]);
    let there = store.readers.run(|db| db.query_row("SELECT count(*) FROM probe", [], |row| row.get::<_, i32>(0)));
    assert_eq!((there.await, store.quota.lock().total.tasks), (Ok(3), 1));
    assert_eq!(store.health.recent_outcome(), Some(Ok(())));
}

/// After a failed checkpoint, the last commits are only in the write-ahead log.
#[tokio::test]
async fn database_with_a_write_ahead_log_is_not_published() {
    let directory = tempfile::tempdir().unwrap();
    let [from, to] = ["from.db", "to.db"].map(|name| directory.path().join(name));
    let store = Sqlite::open(&from, Options::default()).unwrap();
    let reader = read_only(&from);
    reader.execute_batch("BEGIN; SELECT count(*) FROM task").unwrap();
    assert_eq!(store.commit([new_task(&store, "a", 1)].into()).await, Ok(vec![Ok(Committed::default())]));
    // An older snapshot in use prevents a complete checkpoint.
    drop(store);
    assert!(file::wal_path(&from).exists());
    let refused = publish(&from, &to).unwrap_err().to_string();
    assert!(refused.contains("to.db: the database could not be written completely"), "{refused}");
    let left = || std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(left().all(|name| name.to_str().unwrap().starts_with("from.db")));
    drop(reader);
    // The next opening completes the checkpoint.
    drop(Sqlite::open(&from, Options::default()).unwrap());
    publish(&from, &to).unwrap();
    assert_eq!(read_only(&to).query_row("SELECT key FROM task", [], |row| row.get::<_, String>(0)), Ok("a".into()));
}

/// Commit of a new task with a message of `bytes` bytes.
fn new_task(store: &Sqlite, id: &str, bytes: usize) -> Commit {
    let task = Task { id: id.into(), history: vec![Message::user("x".repeat(bytes))], ..Task::default() };
    let first = Event::from_task(Position { fence: store.fence, seq: 1 }, Ends::Nothing, task.into());
    let row = TaskHead {
        context: "c".into(),
        seq: 1,
        state: TaskState::Submitted,
        time: 0,
        open: true,
        delivered_seq: 1,
        cancel_requested: false,
        attempt: 1,
        drained: 0,
    };
    Commit {
        key: TaskKey::new(&Arc::default(), id),
        expect: Expect::New,
        fence: store.fence,
        row,
        events: vec![first],
        checkpoint: None,
        agent_state: None,
        turn_contexts: None,
        sends: Vec::new(),
        push: None,
        time: 0,
        turns: None,
        mail_read: 0,
    }
}

/// However often the server stops, a turn that waits in the queue has not begun.
#[tokio::test]
async fn claims_count_attempts_of_begun_turns_only() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let begun = new_task(&store, "begun", 1);
    let mut waiting = new_task(&store, "waiting", 1);
    waiting.row.attempt = 0;
    for commit in [begun, waiting] {
        store.commit([commit].into()).await.unwrap();
    }
    drop(store);
    for attempts in [[2, 0], [3, 0]] {
        let claimed = open(&directory).claim(9).await.unwrap();
        let claimed: Vec<_> = claimed.into_iter().map(|(key, task)| (key.id().to_owned(), task.unwrap())).collect();
        let ids: Vec<_> = claimed.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!(ids, ["begun", "waiting"]);
        assert_eq!([claimed[0].1.row.attempt, claimed[1].1.row.attempt], attempts);
    }
}

/// SQLite restarts the write-ahead log even under continuous load.
#[tokio::test]
async fn write_ahead_log_has_a_bounded_size() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let wal_bytes = || std::fs::metadata(directory.path().join("a.db-wal")).unwrap().len();
    let (mut largest, rounds) = (0, 80);
    for _ in 0..rounds {
        // Four at a time, so that a job is always waiting.
        let write = || {
            store.writer.run(|transaction| {
                transaction.db.execute("DELETE FROM probe", [])?;
                transaction.db.execute("INSERT INTO probe VALUES(zeroblob(4000000))", [])
            })
        };
        let (a, b, c, d) = tokio::join!(write(), write(), write(), write());
        assert_eq!([a, b, c, d], [const { Ok(1) }; 4]);
        largest = largest.max(wal_bytes());
    }
    // On a slow disk, more is written while a checkpoint runs. Without restarts, the file would have everything.
    let everything = rounds * 4 * 4_000_000;
    assert!(largest < everything / 2, "{largest} of {everything} bytes");
}
