//! What the outside can't see: how versions follow each other, what goes together, and along which index.

use std::pin::pin;

use futures::poll;
use rusqlite::OpenFlags;
use tokio::sync::oneshot;

use super::*;
use crate::{
    event::{Ends, Event, Position},
    pb::v1::{Message, Task, TaskState},
    store::{Expect, Rejected, Row},
};

const ONE: &str = "CREATE TABLE a(x INTEGER) STRICT; INSERT INTO a VALUES(1);";
const TWO: &str = "ALTER TABLE a ADD y TEXT; UPDATE a SET y = 'two';";
const BROKEN: &str = "UPDATE a SET x = 3; CREATE TABLE b(x INTEGER) STRICT; INSERT INTO nowhere VALUES(1);";

fn read_only(path: &Path) -> Connection {
    Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap()
}

fn version(db: &Connection) -> i32 {
    db.pragma_query_value(None, "user_version", |it| it.get(0)).unwrap()
}

#[test]
fn a_file_is_brought_to_the_newest_version_and_kept_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let mut db = Connection::open(&path).unwrap();
    schema::migrate(&mut db, &path, &[ONE]).unwrap();
    assert!(!directory.path().join("a.db.v1").exists(), "of nothing there is no copy");
    // One that fails has done nothing, and can be tried again.
    for _ in 0..2 {
        let failed = schema::migrate(&mut db, &path, &[ONE, TWO, BROKEN]).unwrap_err().to_string();
        assert!(failed.contains("nowhere"), "{failed}");
        assert_eq!(version(&db), 1);
        assert_eq!(db.query_row("SELECT * FROM a", [], |it| Ok(it.as_ref().column_count())), Ok(1));
    }
    schema::migrate(&mut db, &path, &[ONE, TWO]).unwrap();
    assert_eq!(version(&db), 2);
    assert_eq!(db.query_row("SELECT x, y FROM a", [], |it| <(i32, String)>::try_from(it)), Ok((1, "two".into())));
    let before = read_only(&directory.path().join("a.db.v1"));
    assert_eq!(version(&before), 1);
    assert_eq!(before.query_row("SELECT * FROM a", [], |it| it.get::<_, i32>(0)), Ok(1));
    assert!(before.query_row("SELECT y FROM a", [], |_| Ok(())).is_err());
    drop(before);
    // It is up to date.
    schema::migrate(&mut db, &path, &[ONE, TWO]).unwrap();
    assert!(!directory.path().join("a.db.v2").exists());
    let newer = schema::migrate(&mut db, &path, &[ONE]).unwrap_err();
    assert!(matches!(newer, Error::Newer { version: 2, newest: 1, .. }), "{newer}");
}

/// A list is as quick at a million tasks as at a hundred: it follows an index from its place on, and sorts nothing.
#[test]
fn nothing_is_scanned_or_sorted() {
    let directory = tempfile::tempdir().unwrap();
    drop(open(&directory));
    let db = read_only(&directory.path().join("a.db"));
    let sweeps = [&sweep::OLDEST, &sweep::WITH_LOG, &sweep::WITH_PUSHES].map(|it| String::clone(it));
    let sweeps = sweeps.into_iter().chain([sweep::IDLE, sweep::SENDS].map(str::to_owned));
    let claim = claim::OPEN.to_owned();
    let log = "SELECT max(id) FROM log WHERE id BETWEEN 1 AND 2".to_owned();
    let crowd = "SELECT sum(tasks) FROM crowd WHERE scope = 1 AND context = 'a'".to_owned();
    for sql in list::ALL.iter().flat_map(|it| it.iter().cloned()).chain(sweeps).chain([claim, log, crowd]) {
        let mut plan = db.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let unbound = plan.parameter_count();
        (1..=unbound).for_each(|it| plan.raw_bind_parameter(it, 1).unwrap());
        let mut rows = plan.raw_query();
        while let Some(it) = rows.next().unwrap() {
            let step: String = it.get("detail").unwrap();
            assert!(!step.contains("TEMP B-TREE") && !step.starts_with("SCAN"), "{sql}: {step}");
        }
    }
}

fn open(directory: &tempfile::TempDir) -> Sqlite {
    Sqlite::open(&directory.path().join("a.db"), Options::default()).unwrap()
}

/// What waits goes into one transaction, and one part that fails takes the others along, and nothing else.
#[tokio::test]
async fn what_waits_is_written_together_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let put = |it: &mut writer::Transaction<'_>| it.db.execute("INSERT INTO probe VALUES(x'00')", []);
    let fail = |it: &mut writer::Transaction<'_>| it.db.execute("INSERT INTO nowhere VALUES(1)", []);
    for fails in [true, false] {
        let (go, gone) = mpsc::channel::<()>();
        let (started, starting) = oneshot::channel();
        let mut first = pin!(store.writer.run_once(move |it| {
            put(it)?;
            _ = started.send(());
            // Until the others wait.
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
        let there = store.readers.run(|it| it.query_row("SELECT count(*) FROM probe", [], |it| it.get::<_, i32>(0)));
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
async fn what_waits_with_a_change_that_is_rejected_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { max_bytes: Some(1 << 20), ..Options::default() };
    let store = Sqlite::open(&directory.path().join("a.db"), options).unwrap();
    let put = |it: &mut writer::Transaction<'_>| it.db.execute("INSERT INTO probe VALUES(x'00')", []);
    let (go, gone) = mpsc::channel::<()>();
    let mut first = pin!(store.writer.run_once(move |_| gone.recv().map_err(|_| rusqlite::Error::InvalidQuery)));
    assert!(poll!(&mut first).is_pending());
    let begin = |id: &str, bytes| Change::Commit(begun(&store, id, bytes));
    let (mut second, mut third, mut fourth) = (
        pin!(store.writer.run(put)),
        pin!(store.commit_changes([begin("a", 1), begin("b", 2 << 20), begin("c", 1)].into())),
        pin!(store.commit_changes([begin("d", 2 << 20), begin("e", 1)].into())),
    );
    assert!(poll!(&mut second).is_pending() && poll!(&mut third).is_pending() && poll!(&mut fourth).is_pending());
    go.send(()).unwrap();
    first.await.unwrap();
    assert_eq!(second.await, Ok(1));
    let rejected = || Err(Refused::Rejected(Rejected::Size { limit: "store.max_size", max: 1 << 20 }));
    assert_eq!(third.await.unwrap(), [Ok(()), rejected(), Ok(())]);
    assert_eq!(fourth.await.unwrap(), [rejected(), Ok(())]);
    let tasks = store.readers.run(|it| it.query_row("SELECT sum(tasks) FROM total", [], |it| it.get::<_, i32>(0)));
    assert_eq!((tasks.await, store.room.lock().tasks()), (Ok(3), 3));
    assert_eq!(store.health.known(), Some(Ok(())));
}

/// A job that can't be written fails alone, without the changes and jobs of its transaction.
#[tokio::test]
async fn jobs_that_wait_with_one_that_is_rejected_are_written() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { max_bytes: Some(1 << 20), ..Options::default() };
    let store = Sqlite::open(&directory.path().join("a.db"), options).unwrap();
    let put = |pass: &mut writer::Transaction<'_>| pass.db.execute("INSERT INTO probe VALUES(x'00')", []);
    let rejected = |pass: &mut writer::Transaction<'_>| pass.db.execute("INSERT INTO probe VALUES('text')", []);
    let (go, gone) = mpsc::channel::<()>();
    let mut first = pin!(store.writer.run_once(move |_| gone.recv().map_err(|_| rusqlite::Error::InvalidQuery)));
    assert!(poll!(&mut first).is_pending());
    let begin = |id: &str, bytes| Change::Commit(begun(&store, id, bytes));
    let (mut before, mut fails, mut after, mut once) = (
        pin!(store.writer.run(put)),
        pin!(store.writer.run(rejected)),
        pin!(store.writer.run(put)),
        pin!(store.writer.run_once(put)),
    );
    let mut changes = pin!(store.commit_changes([begin("a", 1), begin("b", 2 << 20)].into()));
    assert!(poll!(&mut before).is_pending() && poll!(&mut fails).is_pending() && poll!(&mut after).is_pending());
    assert!(poll!(&mut once).is_pending() && poll!(&mut changes).is_pending());
    go.send(()).unwrap();
    first.await.unwrap();
    assert_eq!((before.await, after.await, once.await), (Ok(1), Ok(1), Ok(1)));
    let Err(Unavailable(why)) = fails.await else { panic!("a text is no blob") };
    assert!(why.contains("probe"), "{why}");
    let too_large = Rejected::Size { limit: "store.max_size", max: 1 << 20 };
    assert_eq!(changes.await.unwrap(), [Ok(()), Err(Refused::Rejected(too_large))]);
    let there = store.readers.run(|db| db.query_row("SELECT count(*) FROM probe", [], |row| row.get::<_, i32>(0)));
    assert_eq!((there.await, store.room.lock().tasks()), (Ok(3), 1));
    assert_eq!(store.health.known(), Some(Ok(())));
}

/// A file whose last commits are in its log only, as after a checkpoint that failed, is not published.
#[tokio::test]
async fn file_with_a_log_is_not_published() {
    let directory = tempfile::tempdir().unwrap();
    let [from, to] = ["from.db", "to.db"].map(|name| directory.path().join(name));
    let store = Sqlite::open(&from, Options::default()).unwrap();
    let moment = read_only(&from);
    moment.execute_batch("BEGIN; SELECT count(*) FROM task").unwrap();
    assert_eq!(store.commit_changes([Change::Commit(begun(&store, "a", 1))].into()).await, Ok(vec![Ok(())]));
    // The log can't be put into the file while somebody reads what was there before.
    drop(store);
    assert!(file::log_of(&from).exists());
    let refused = publish(&from, &to).unwrap_err().to_string();
    assert!(refused.contains("to.db: not all of it could be written"), "{refused}");
    let left = || std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(left().all(|name| name.to_str().unwrap().starts_with("from.db")));
    drop(moment);
    // Whoever opens the file next completes it.
    drop(Sqlite::open(&from, Options::default()).unwrap());
    publish(&from, &to).unwrap();
    assert_eq!(read_only(&to).query_row("SELECT key FROM task", [], |row| row.get::<_, String>(0)), Ok("a".into()));
}

/// The commit that makes a task, with a message of so many bytes.
fn begun(store: &Sqlite, id: &str, bytes: usize) -> Commit {
    let task = Task { id: id.into(), history: vec![Message::user("x".repeat(bytes))], ..Task::default() };
    let first = Event::task(Position { fence: store.fence, seq: 1 }, Ends::Nothing, task.into());
    let row = Row {
        context: "c".into(),
        seq: 1,
        state: TaskState::Submitted,
        previous_state: None,
        status_event: Some(first.clone()),
        time: 0,
        open: true,
        delivered_seq: 1,
        cancel_requested: false,
        attempt: 1,
        drained: 0,
    };
    Commit {
        key: Key::new(&Arc::default(), id),
        expect: Expect::New,
        fence: store.fence,
        row,
        events: vec![first],
        checkpoint: None,
        agent_state: None,
        turn_contexts: None,
        sends: Vec::new(),
        push: None,
    }
}

/// However long transactions follow each other, the log of SQLite begins anew now and then.
#[tokio::test]
async fn the_log_of_sqlite_does_not_grow_for_ever() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let log = || std::fs::metadata(directory.path().join("a.db-wal")).unwrap().len();
    let pages = u64::try_from(checkpoint::SHORT).unwrap();
    let mut largest = 0;
    for _ in 0..80 {
        // Four at a time, so that there is always one that waits.
        let write = || {
            store.writer.run(|it| {
                it.db.execute("DELETE FROM probe", [])?;
                it.db.execute("INSERT INTO probe VALUES(zeroblob(4000000))", [])
            })
        };
        let (a, b, c, d) = tokio::join!(write(), write(), write(), write());
        assert_eq!([a, b, c, d], [const { Ok(1) }; 4]);
        largest = largest.max(log());
    }
    assert!(largest < 3 * pages * 4096, "{largest} bytes of log");
}
