//! `a2a admin`, as who looks after a file finds it: beside a server that has it, and alone with it.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use a2a_service::{
    call::Version,
    pb::v1::{TaskPushNotificationConfig, TaskState},
    store::{Commit, IdempotencyRecord, PushConfig, sqlite::Options},
};
use serde_json::Value;
use tokio::process::{Child, Command};

use crate::{
    program::{a2a, message, output, post, signal, started},
    store::{
        place::Opened,
        writer::{Writer, chunk, message as said, scope, status},
    },
};

fn admin(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = a2a(&[&["admin"], arguments].concat());
    command.env_remove("A2A_STORE").current_dir(directory);
    command
}

/// The exit code, what was said, and what was wrong.
async fn run(directory: &Path, arguments: &[&str]) -> (i32, String, String) {
    let output = output(admin(directory, arguments)).await;
    let text = |it: Vec<u8>| String::from_utf8(it).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// What it says when it goes well.
async fn done(directory: &Path, arguments: &[&str]) -> String {
    let (code, said, wrong) = run(directory, arguments).await;
    assert_eq!(code, 0, "{said}{wrong}");
    said
}

/// What it says when it does not.
async fn refused(directory: &Path, arguments: &[&str]) -> String {
    let (code, said, wrong) = run(directory, arguments).await;
    assert!(code > 0, "{said}{wrong}");
    wrong
}

/// A file with a bit of everything, of two owners, that nobody has.
async fn filled(directory: &Path) {
    let store = Opened::sqlite(Options::default());
    let old = 1_000_000_000_000;
    for owner in ["ada", "bob"] {
        for (id, state, time) in [
            ("old", TaskState::Completed, old),
            ("asked", TaskState::InputRequired, old),
            ("runs", TaskState::Working, old),
            ("new", TaskState::Failed, i64::MAX / 1_000_000),
        ] {
            let mut task = Writer::within(&store, &scope(owner, "blue"), id, "c-1", old);
            let sends =
                vec![IdempotencyRecord { key: format!("key of {id}").into(), hash: [7; 16], seq: 1, time: old }];
            let begin = task.next([said("hello")]);
            task.write(Commit { sends, saved: Some("kept".into()), asked: Some("asked".into()), ..begin })
                .await
                .unwrap();
            task.commit([chunk("a", "1", false), chunk("a", "2", true)]).await.unwrap();
            store.put_push(&task.key, push(), 9).await.unwrap();
            task.commit([status(state, time)]).await.unwrap();
        }
    }
    let path = store.path().unwrap();
    let whole = rusqlite::Connection::open(path).unwrap();
    whole.execute("VACUUM INTO ?", [directory.join("a2a.db").to_str().unwrap()]).unwrap();
}

fn push() -> Arc<PushConfig> {
    let config = TaskPushNotificationConfig { id: "p".into(), url: "https://a.example".into(), ..Default::default() };
    Arc::new(PushConfig { config, version: Version::V0_3, beside: "\u{0}beside".into() })
}

/// The tasks of an export, by owner and id.
fn tasks(exported: &str) -> BTreeMap<(String, String), Value> {
    let mut lines = exported.lines();
    assert_eq!(lines.next(), Some(r#"{"a2a_tasks":1}"#));
    let text = |it: &Value| it.as_str().unwrap().to_owned();
    let task = |it: &str| {
        let it: Value = serde_json::from_str(it).unwrap();
        ((text(&it["owner"]), text(&it["id"])), it)
    };
    lines.map(task).collect()
}

/// A server that has the file of a directory.
async fn serve(directory: &Path) -> (Child, String) {
    let mut command = a2a(&["serve", "--listen", "127.0.0.1:0", "--log-filter", "warn"]);
    command.env_remove("A2A_STORE").current_dir(directory);
    started(command).await
}

async fn end(mut server: Child) {
    signal(&server, "-TERM");
    assert!(server.wait().await.unwrap().success());
}

#[tokio::test]
async fn what_only_reads_goes_beside_a_server_and_what_writes_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (server, url) = serve(directory).await;
    let task = post(&format!("{url}/message:send"), &message("hello")).await["task"].clone();
    let id = task["id"].as_str().unwrap();
    let stats = done(directory, &["stats"]).await;
    assert!(stats.contains("\n1 tasks\n  1 TASK_STATE_COMPLETED\n"), "{stats}");
    assert!(stats.contains("  1 of \"\" in tenant \"\"\n"), "{stats}");
    assert_eq!(done(directory, &["check"]).await, "checked 1 tasks, no problems found\n");
    assert!(done(directory, &["gc", "--dry-run"]).await.starts_with("0 terminal tasks would be deleted\n"));
    let exported = tasks(&done(directory, &["export"]).await);
    assert_eq!(exported[&(String::new(), id.to_owned())]["checkpoint"]["task"], task);
    done(directory, &["backup", "copy.db"]).await;
    for (arguments, why) in [
        (&["gc"][..], "does this by itself"),
        (&["import", "nothing"], "nothing"),
        (&["forget", "--owner", ""], "stop it first"),
    ] {
        let said = refused(directory, arguments).await;
        assert!(said.contains(why), "{said}");
        if arguments[0] != "import" {
            assert!(said.contains(&format!("is in use by process {}", server.id().unwrap())), "{said}");
        }
    }
    // The server goes on, and the copy is of the moment when it was made.
    post(&format!("{url}/message:send"), &message("again")).await;
    end(server).await;
    assert_eq!(done(directory, &["check"]).await, "checked 2 tasks, no problems found\n");
    assert_eq!(done(directory, &["check", "--store", "sqlite:copy.db"]).await, "checked 1 tasks, no problems found\n");
    // A copy is served like any other.
    std::fs::remove_file(directory.join("a2a.db")).unwrap();
    std::fs::rename(directory.join("copy.db"), directory.join("a2a.db")).unwrap();
    let (server, url) = serve(directory).await;
    let found = reqwest::get(format!("{url}/tasks/{id}")).await.unwrap().bytes().await.unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&found).unwrap(), task);
    end(server).await;
}

#[tokio::test]
async fn what_is_exported_can_be_imported_elsewhere() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (from, to) = (from.path(), to.path());
    filled(from).await;
    filled(to).await;
    let whole = done(from, &["export"]).await;
    assert_eq!(tasks(&whole).len(), 8);
    assert_eq!(done(from, &["export", "ada.jsonl", "--owner", "ada"]).await, "exported 4 tasks to ada.jsonl\n");
    assert!(refused(from, &["export", "ada.jsonl"]).await.contains("ada.jsonl"), "what is there stays");
    let ada = std::fs::read_to_string(from.join("ada.jsonl")).unwrap();
    assert!(tasks(&ada).keys().all(|it| it.0 == "ada"));
    std::fs::copy(from.join("ada.jsonl"), to.join("ada.jsonl")).unwrap();
    // Nothing is overwritten, and of what is refused nothing stays.
    let said = refused(to, &["import", "ada.jsonl"]).await;
    assert!(said.contains("line 2: task old: it is there already"), "{said}");
    assert_eq!(done(to, &["forget", "--owner", "ada"]).await, "deleted 4 tasks\n");
    let (head, rest) = ada.split_once('\n').unwrap();
    let (first, rest) = rest.split_once('\n').unwrap();
    for (broken, why) in [
        (format!("{head}\n{first}\n{first}\n"), "line 3: task old: it is there already"),
        (format!("{head}\n{}\n", first.replace("\"seq\":3", "\"seq\":9")), "task old: its log has a hole"),
        (
            format!("{head}\n{}\n", first.replacen("TASK_STATE_COMPLETED", "TASK_STATE_FAILED", 1)),
            "its row says another state",
        ),
        (format!("{head}\n{{}}\n"), "line 2: missing field"),
        (first.to_owned(), "line 1: these are no tasks of ours"),
        ("{\"a2a_tasks\":9}\n".to_owned(), "only 1 is known"),
    ] {
        std::fs::write(to.join("broken.jsonl"), broken).unwrap();
        let said = refused(to, &["import", "broken.jsonl"]).await;
        assert!(said.contains(why), "{said}");
    }
    assert_eq!(done(to, &["check"]).await, "checked 4 tasks, no problems found\n");
    assert_eq!(done(to, &["import", "ada.jsonl"]).await, "imported 4 tasks into a2a.db\n");
    assert_eq!(done(to, &["check"]).await, "checked 8 tasks, no problems found\n");
    assert_eq!(tasks(&done(to, &["export", "--owner", "ada"]).await), tasks(&ada));
    assert!(!rest.is_empty());
    // A failure makes no file, and leaves none of the temporary ones.
    let files = || {
        let names = std::fs::read_dir(to).unwrap().map(|entry| entry.unwrap().file_name());
        names.collect::<std::collections::BTreeSet<_>>()
    };
    let before = files();
    let (code, _, said) = run(to, &["import", "broken.jsonl", "--store", "sqlite:new.db"]).await;
    assert!(code == 1 && said.contains("nothing was written to new.db") && said.contains("only 1 is known"), "{said}");
    assert_eq!(files(), before);
    // SQLite would replay the log of another file over what is imported.
    std::fs::write(to.join("old.db-wal"), "log").unwrap();
    let (code, _, said) = run(to, &["import", "ada.jsonl", "--store", "sqlite:old.db"]).await;
    assert!(code == 1 && said.contains("old.db-wal"), "{said}");
    assert!(!to.join("old.db").exists() && !to.join("old.db.lock").exists());
    // Also into a file that is not there yet.
    assert_eq!(done(to, &["import", "ada.jsonl", "--store", "sqlite:new.db"]).await, "imported 4 tasks into new.db\n");
    assert_eq!(done(to, &["check", "--store", "sqlite:new.db"]).await, "checked 4 tasks, no problems found\n");
    // A task that ran goes on there, as after any start.
    let (server, _) = serve(to).await;
    end(server).await;
    assert_eq!(done(to, &["check"]).await, "checked 8 tasks, no problems found\n");
}

#[tokio::test]
async fn what_is_old_goes_when_it_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    filled(directory).await;
    let before = done(directory, &["export"]).await;
    let dry = done(directory, &["gc", "--dry-run"]).await;
    let expected = "2 terminal tasks would be deleted\n0 event logs of retained tasks would be deleted\n\
                    0 push configurations of retained tasks would be deleted\n\
                    6 idempotency keys of retained tasks would be deleted\n0 idle tasks would be canceled\n";
    assert_eq!(dry, expected);
    assert_eq!(done(directory, &["export"]).await, before, "nothing has gone");
    assert_eq!(done(directory, &["gc"]).await, expected.replace("would be", "were"));
    assert_eq!(done(directory, &["check"]).await, "checked 6 tasks, no problems found\n");
    assert!(done(directory, &["gc"]).await.starts_with("0 terminal tasks"));
    let left = tasks(&done(directory, &["export"]).await);
    assert!(left.keys().all(|it| it.1 != "old"));
    // Where the configuration says that it is kept for ever, it is.
    std::fs::write(directory.join("a2a.toml"), "[retention]\nlogs = '0s'\nfinished = '0s'\n").unwrap();
    assert!(done(directory, &["gc", "--dry-run"]).await.starts_with("0 terminal tasks"));
}

/// As a server ends them.
#[tokio::test]
async fn who_was_not_answered_for_too_long_ends_when_it_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    filled(directory).await;
    // Nobody is at work on them.
    let file = rusqlite::Connection::open(directory.join("a2a.db")).unwrap();
    assert_eq!(file.execute("UPDATE task SET open = 0 WHERE key = 'asked'", []).unwrap(), 2);
    drop(file);
    let said = "\n2 idle tasks would be canceled\n";
    let dry = done(directory, &["gc", "--dry-run"]).await;
    assert!(dry.ends_with(said), "{dry}");
    let told = done(directory, &["gc"]).await;
    assert!(told.ends_with(&said.replace("would be", "were")), "{told}");
    assert_eq!(done(directory, &["check"]).await, "checked 6 tasks, no problems found\n");
    let dry = done(directory, &["gc", "--dry-run"]).await;
    assert!(dry.ends_with("\n0 idle tasks would be canceled\n"), "{dry}");
    let left = tasks(&done(directory, &["export"]).await);
    for owner in ["ada", "bob"] {
        let ended = &left[&(owner.to_owned(), "asked".to_owned())];
        assert_eq!(ended["state"], "TASK_STATE_CANCELED");
        let why = &ended["checkpoint"]["task"]["status"]["message"]["parts"][0]["text"];
        assert!(why.as_str().unwrap().contains("No answer came"), "{ended}");
    }
}

#[tokio::test]
async fn an_owner_is_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    filled(directory).await;
    let bob = tasks(&done(directory, &["export", "--owner", "bob"]).await);
    let (code, said, warned) = run(directory, &["forget", "--owner", "ada"]).await;
    assert_eq!((code, &*said), (0, "deleted 4 tasks\n"));
    assert!(warned.contains("backups of the database"), "{warned}");
    assert_eq!(tasks(&done(directory, &["export"]).await), bob);
    assert_eq!(done(directory, &["check"]).await, "checked 4 tasks, no problems found\n");
    let file = std::fs::read(directory.join("a2a.db")).unwrap();
    assert!(!file.windows(3).any(|it| it == b"ada"), "what is deleted is overwritten");
    assert_eq!(done(directory, &["forget", "--owner", "ada"]).await, "deleted 0 tasks\n");
    // Also the name of one whose tasks had gone before.
    let owners = || {
        let file = rusqlite::Connection::open(directory.join("a2a.db")).unwrap();
        file.query_row("SELECT group_concat(owner) FROM scope", [], |row| row.get::<_, String>(0)).unwrap()
    };
    let file = rusqlite::Connection::open(directory.join("a2a.db")).unwrap();
    file.execute("INSERT INTO scope(owner, tenant) VALUES('eve', ''), ('eve', 'blue')", []).unwrap();
    drop(file);
    assert_eq!(owners(), "bob,eve,eve");
    assert_eq!(done(directory, &["forget", "--owner", "eve"]).await, "deleted 0 tasks\n");
    assert_eq!(owners(), "bob");
}

/// More unreadable tasks than one batch has.
#[tokio::test]
async fn idle_tasks_that_can_not_be_read_do_not_hold_up_others() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let store = Opened::sqlite(Options::default());
    for n in 0..140 {
        let mut task = Writer::within(&store, &scope("ada", ""), &format!("t-{n:03}"), "c-1", n);
        task.commit([]).await.unwrap();
        task.commit([status(TaskState::InputRequired, n)]).await.unwrap();
    }
    let whole = rusqlite::Connection::open(store.path().unwrap()).unwrap();
    whole.execute("UPDATE task SET open = 0", []).unwrap();
    whole.execute("VACUUM INTO ?", [directory.join("a2a.db").to_str().unwrap()]).unwrap();
    let file = rusqlite::Connection::open(directory.join("a2a.db")).unwrap();
    let damaged = "SELECT id FROM task ORDER BY time LIMIT 130";
    file.execute(&format!("UPDATE log SET events = x'ffff' WHERE id >> 28 IN ({damaged})"), []).unwrap();
    file.execute("UPDATE task SET key = CAST(x'ff' AS TEXT) WHERE key = 't-000'", []).unwrap();
    drop(file);
    let told = done(directory, &["gc"]).await;
    assert!(told.ends_with("\n10 idle tasks were canceled\n"), "{told}");
}

/// What SQLite does not know to be wrong, and we do.
#[tokio::test]
async fn what_is_wrong_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    for (damage, expected) in [
        (
            "DELETE FROM log WHERE id = (SELECT min(id) FROM log WHERE id >> 28 = 2)",
            "task asked: its log has no beginning",
        ),
        (
            "DELETE FROM log WHERE id = (SELECT max(id) FROM log WHERE id >> 28 = 2)",
            "task asked: its log ends with 4, and its row says 5",
        ),
        ("DELETE FROM log WHERE id = 2 << 28 | 3", "task asked: its log has 5 where 3 would come"),
        ("UPDATE task SET state = 4 WHERE id = 1", "task old: its row says another state"),
        ("UPDATE task SET time = 4 WHERE id = 1", "task old: its row says another time"),
        ("UPDATE task SET attempt = -1 WHERE id = 1", "task old: Integer"),
        ("UPDATE task SET key = 'new name' WHERE id = 1", "task new name: its row says another name"),
        ("UPDATE task SET folded = 1 WHERE id = 1", "task old: its log is there, and should not be"),
        ("DELETE FROM log WHERE id >> 28 = 3", "task runs: it has no log"),
        (
            "UPDATE log SET events = x'ff' WHERE id = 2 << 28 | 1",
            "the piece of its log that begins with 1 can't be read",
        ),
        (
            "UPDATE checkpoint SET task = CAST(task || x'3200' AS BLOB) WHERE id = 1",
            "task old: its checkpoint is not what its log says",
        ),
        (
            "UPDATE total SET tasks = tasks + 1 WHERE state = 3",
            "tasks are counted wrongly (owner, state, tasks): 1, 3, 1",
        ),
        ("INSERT INTO total VALUES(9, 1, 4)", "tasks are counted that are not there (owner, state, counted): 9, 1, 4"),
        ("INSERT INTO crowd VALUES(1, 'c-1', 3, 7)", "tasks of a context are counted wrongly"),
        ("INSERT INTO log VALUES(99 << 28, x'')", "a log is of no task (task): 99"),
        (
            "INSERT INTO push VALUES(99, 1, 'p', '1.0', x'', x'')",
            "a push configuration is of no task (task, configuration): 99, p",
        ),
        (
            "UPDATE send SET task = 99 WHERE task = 1",
            "the key of a send is of no task of its owner (task, key): 99, key of old",
        ),
        ("DELETE FROM scope WHERE id = 2", "a task is nobody's (task): 5, old, 2"),
        ("UPDATE task SET context = CAST(x'ff' AS TEXT) WHERE id = 1", "task old: "),
        ("UPDATE task SET key = CAST(x'6fff' AS TEXT) WHERE id = 1", "task o\u{fffd}: "),
    ] {
        let path = directory.join("a2a.db");
        if path.exists() {
            std::fs::remove_file(&path).unwrap();
        }
        filled(directory).await;
        rusqlite::Connection::open(&path).unwrap().execute_batch(damage).unwrap();
        let (code, said, wrong) = run(directory, &["check"]).await;
        assert_eq!(code, 1, "{damage}");
        assert!(said.contains(expected), "{damage}: {said}");
        assert!(wrong.contains("is damaged; restore a backup"), "{wrong}");
    }
}

#[tokio::test]
async fn what_is_no_file_of_tasks_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    for arguments in [&["stats"][..], &["gc"], &["forget", "--owner", "ada"], &["export"], &["backup", "copy.db"]] {
        let said = refused(directory, arguments).await;
        assert!(said.contains("a2a.db"), "{said}");
        assert_eq!(std::fs::read_dir(directory).unwrap().count(), 0, "{arguments:?} makes nothing");
    }
    let said = refused(directory, &["stats", "--store", "memory"]).await;
    assert!(said.contains("--store names a file"), "{said}");
    std::fs::write(directory.join("a2a.db"), "not a database, but something else that somebody needs").unwrap();
    for arguments in [&["stats"][..], &["gc"], &["check"]] {
        let said = refused(directory, arguments).await;
        assert!(said.contains("is no file of this program"), "{said}");
    }
    // One of an older version says so, and is brought up by who may write.
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/store/fixtures/1.db");
    std::fs::copy(fixture, directory.join("a2a.db")).unwrap();
    let said = refused(directory, &["stats"]).await;
    assert!(said.contains("has version 1 of the tables"), "{said}");
    done(directory, &["gc"]).await;
    done(directory, &["stats"]).await;
    let said = refused(directory, &["backup", "a2a.db"]).await;
    assert!(said.contains("a2a.db"), "what is there stays");
}

/// A task that ended with its first commit stands in its row.
#[tokio::test]
async fn check_reports_ended_tasks_that_can_not_be_read() {
    for (damage, expected) in [
        ("UPDATE task SET whole = x'ffff' WHERE key = 't-1'", "task t-1: "),
        ("UPDATE task SET context = CAST(x'ff' AS TEXT) WHERE key = 't-1'", "task t-1: "),
        ("UPDATE task SET key = CAST(x'74ff' AS TEXT) WHERE key = 't-1'", "task t\u{fffd}: "),
        ("UPDATE task SET scope = 99 WHERE key = 't-1'", "a task is nobody's (task): 2, t-1, 99"),
    ] {
        let store = Opened::sqlite(Options::default());
        for n in 0..3 {
            Writer::new(&store, &scope("ada", ""), &format!("t-{n}"))
                .commit([status(TaskState::Completed, n)])
                .await
                .unwrap();
        }
        let store = store.again();
        let path = store.path().unwrap();
        rusqlite::Connection::open(&path).unwrap().execute_batch(damage).unwrap();
        let (code, said, wrong) = run(path.parent().unwrap(), &["check"]).await;
        assert!(code == 1 && said.contains(expected), "{damage}: {said}{wrong}");
        assert!(!said.contains("t-0") && !said.contains("t-2"), "{damage}: {said}");
    }
}

/// The disk is full, or fails: neither the file is there nor what SQLite keeps beside it.
#[cfg(unix)]
#[tokio::test]
async fn import_that_can_not_be_written_leaves_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let store = Opened::sqlite(Options::default());
    let large = "x".repeat(100_000);
    for n in 0..30 {
        let mut task = Writer::new(&store, &scope("ada", ""), &format!("t-{n}"));
        task.commit([chunk("a", &large, false), status(TaskState::Completed, n)]).await.unwrap();
    }
    let exported = directory.join("tasks.jsonl");
    let from = store.path().unwrap();
    done(from.parent().unwrap(), &["export", exported.to_str().unwrap()]).await;
    let files = || {
        let names = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
        names.collect::<std::collections::BTreeSet<_>>()
    };
    let before = files();
    let import = ["import", "tasks.jsonl", "--store", "sqlite:new.db"];
    for point in ["tables.commit", "open.fence", "open.done", "batch.begin", "batch.commit", "batch.answer"] {
        let mut command = admin(directory, &import);
        command.env("FAULT_POINT", format!("{point}=error"));
        let output = output(command).await;
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && said.contains("nothing was written to new.db"), "{point}: {said}");
        assert_eq!(files(), before, "{point}");
    }
    // In blocks of 512 or 1024 bytes: not even the tables, the tables and some of the tasks, all but the last of them.
    for blocks in [4, 600, 2500] {
        let mut command = Command::new("sh");
        // A file that becomes too large fails to be written, and does not end the process.
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" admin \"$@\"");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_a2a")]).args(import);
        command.env_clear().env("PATH", "/usr/bin:/bin").current_dir(directory);
        let output = output(command).await;
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && said.contains("nothing was written to new.db"), "{blocks}: {said}");
        assert_eq!(files(), before, "{blocks}");
    }
    assert_eq!(done(directory, &import).await, "30 tasks were taken into new.db\n");
}
