//! `a2a admin` commands: list, show, stats, check, gc, backup, export, import, forget and push, with and without a running server.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use a2a_service::{
    pb::v1::{AuthenticationInfo, Message, TaskPushNotificationConfig, TaskState, stream_response::Payload},
    protocol::Version,
    store::{Commit, IdempotencyRecord, PushConfig, sqlite::Options},
};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::{
    program::{a2a, message, output, post, signal, started},
    store::{
        opened::OpenedStore,
        writer::{Writer, chunk, scope, status},
    },
};

fn admin(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = a2a(&[&["admin"], arguments].concat());
    command.env_remove("A2A_STORE").current_dir(directory);
    command
}

/// Runs a command; returns its exit code, standard output and standard error.
async fn run(directory: &Path, arguments: &[&str]) -> (i32, String, String) {
    let output = output(admin(directory, arguments)).await;
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Runs a command that succeeds; returns its standard output.
async fn succeed(directory: &Path, arguments: &[&str]) -> String {
    let (code, output, errors) = run(directory, arguments).await;
    assert_eq!(code, 0, "{output}{errors}");
    output
}

/// Runs a command that fails; returns its standard error.
async fn fail(directory: &Path, arguments: &[&str]) -> String {
    let (code, output, errors) = run(directory, arguments).await;
    assert!(code > 0, "{output}{errors}");
    errors
}

/// Creates a database with tasks of two owners in four states each, unused by any process.
pub(crate) async fn filled(directory: &Path) {
    let store = OpenedStore::sqlite(Options::default());
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
            // A random id may contain the name of an owner.
            let message = Message { message_id: "m".into(), ..Message::user("hello") };
            let begin = task.next([Payload::Message(message)]);
            task.write(Commit {
                sends,
                agent_state: Some("kept".into()),
                turn_contexts: Some("asked".into()),
                ..begin
            })
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
    let credentials = "secret-credentials".to_owned();
    let config = TaskPushNotificationConfig {
        id: "p".into(),
        url: "https://user:secret-password@a.example/hook".into(),
        token: "secret-token".into(),
        authentication: Some(AuthenticationInfo { scheme: "Bearer".into(), credentials }),
        ..Default::default()
    };
    Arc::new(PushConfig { config, version: Version::V0_3, extra: "\u{0}secret-beside".into() })
}

/// Tasks of an export by owner and id.
fn tasks(exported: &str) -> BTreeMap<(String, String), Value> {
    let mut lines = exported.lines();
    assert_eq!(lines.next(), Some(r#"{"a2a_tasks":1}"#));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let task = |line: &str| {
        let task: Value = serde_json::from_str(line).unwrap();
        ((text(&task["owner"]), text(&task["id"])), task)
    };
    lines.map(task).collect()
}

/// Starts a server on the database of a directory.
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
async fn read_only_commands_run_beside_a_server_and_writing_commands_do_not() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (server, url) = serve(directory).await;
    for (command, expected) in [
        (&["list"][..], "no tasks\n"),
        (&["push", "list"], "no deliveries\n"),
        (&["push", "list", "--dead"], "no dead letters\n"),
    ] {
        let (code, _, errors) = run(directory, command).await;
        assert_eq!((code, &*errors), (0, expected), "{command:?}");
        assert_eq!(run(directory, &[command, &["-ojsonl"]].concat()).await.2, "", "{command:?}");
    }
    let task = post(&format!("{url}/message:send"), &message("hello")).await["task"].clone();
    let id = task["id"].as_str().unwrap();
    let stats = succeed(directory, &["stats"]).await;
    assert!(stats.contains("\n1 task\n  1 TASK_STATE_COMPLETED\n"), "{stats}");
    assert!(
        stats.contains("  1 of \"\" in tenant \"\"\n") && stats.contains(" KiB (") && stats.contains(" B free)"),
        "{stats}"
    );
    assert_eq!(succeed(directory, &["check"]).await, "checked 1 task in a2a.db, no problems found\n");
    assert!(
        succeed(directory, &["gc", "--dry-run"]).await.starts_with("0 terminal tasks would be deleted from a2a.db\n")
    );
    let dry = succeed(directory, &["forget", "--owner", "", "--dry-run"]).await;
    assert_eq!(dry, "1 task of callers without a name would be deleted from a2a.db\n");
    assert!(succeed(directory, &["list"]).await.contains(id));
    assert!(succeed(directory, &["show", id]).await.contains("[user] hello"));
    let exported = tasks(&succeed(directory, &["export"]).await);
    assert_eq!(exported[&(String::new(), id.to_owned())]["checkpoint"]["task"], task);
    succeed(directory, &["backup", "copy.db"]).await;
    for (arguments, reason) in [
        (&["gc"][..], "does this by itself"),
        (&["import", "nothing"], "nothing"),
        (&["forget", "--owner", "", "--yes"], "stop it first"),
    ] {
        let errors = fail(directory, arguments).await;
        assert!(errors.contains(reason), "{errors}");
        if arguments[0] != "import" {
            assert!(errors.contains(&format!("is in use by process {}", server.id().unwrap())), "{errors}");
        }
    }
    // The server keeps running, and the copy has the state of the moment it was made.
    post(&format!("{url}/message:send"), &message("again")).await;
    end(server).await;
    assert_eq!(succeed(directory, &["check"]).await, "checked 2 tasks in a2a.db, no problems found\n");
    assert_eq!(
        succeed(directory, &["check", "--store", "sqlite:copy.db"]).await,
        "checked 1 task in copy.db, no problems found\n"
    );
    // The copy can be served.
    std::fs::remove_file(directory.join("a2a.db")).unwrap();
    std::fs::rename(directory.join("copy.db"), directory.join("a2a.db")).unwrap();
    let (server, url) = serve(directory).await;
    let found = crate::bindings::fetch(format!("{url}/tasks/{id}")).await.unwrap().bytes().await.unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&found).unwrap(), task);
    end(server).await;
}

#[tokio::test]
async fn exported_tasks_can_be_imported_into_another_database() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (from, to) = (from.path(), to.path());
    filled(from).await;
    filled(to).await;
    let whole = succeed(from, &["export"]).await;
    assert_eq!(tasks(&whole).len(), 8);
    let export = ["export", "ada.jsonl", "--owner", "ada", "--include-secrets"];
    assert_eq!(succeed(from, &export).await, "exported 4 tasks to ada.jsonl\n");
    assert!(fail(from, &["export", "ada.jsonl"]).await.contains("ada.jsonl"), "an existing file is kept");
    let ada = std::fs::read_to_string(from.join("ada.jsonl")).unwrap();
    assert!(tasks(&ada).keys().all(|(owner, _)| owner == "ada"));
    std::fs::copy(from.join("ada.jsonl"), to.join("ada.jsonl")).unwrap();
    // Nothing is overwritten, and a rejected import leaves nothing behind.
    let errors = fail(to, &["import", "ada.jsonl"]).await;
    let expected = "error: nothing was imported into a2a.db: line 2: task old: the task exists already, of owner \"ada\" in \
                    tenant \"blue\"; remove the line, or import into another database\n";
    assert_eq!(errors, expected);
    assert_eq!(succeed(to, &["forget", "--owner", "ada", "--yes"]).await, "deleted 4 tasks from a2a.db\n");
    let (head, rest) = ada.split_once('\n').unwrap();
    let (first, rest) = rest.split_once('\n').unwrap();
    for (broken, reason) in [
        (format!("{head}\n{first}\n{first}\n"), "line 3: task old: the task exists already"),
        (
            format!("{head}\n{}\n", first.replace("\"seq\":3", "\"seq\":9")),
            "task old: log: the sequence numbers have a gap",
        ),
        (
            format!("{head}\n{}\n", first.replacen("TASK_STATE_COMPLETED", "TASK_STATE_FAILED", 1)),
            "the state of the row differs from the task",
        ),
        (format!("{head}\n{{}}\n"), "line 2: missing field"),
        (first.to_owned(), "line 1: not an export of this program"),
        ("{\"a2a_tasks\":9}\n".to_owned(), "supports format 1"),
    ] {
        std::fs::write(to.join("broken.jsonl"), broken).unwrap();
        let errors = fail(to, &["import", "broken.jsonl"]).await;
        assert!(errors.contains(reason), "{errors}");
    }
    assert_eq!(succeed(to, &["check"]).await, "checked 4 tasks in a2a.db, no problems found\n");
    assert_eq!(succeed(to, &["import", "ada.jsonl"]).await, "imported 4 tasks into a2a.db\n");
    assert_eq!(succeed(to, &["check"]).await, "checked 8 tasks in a2a.db, no problems found\n");
    let exported = succeed(to, &["export", "--owner", "ada", "--include-secrets"]).await;
    assert_eq!(tasks(&exported), tasks(&ada));
    assert!(!rest.is_empty());
    // A failed import creates no file and leaves no temporary file.
    let files = || {
        let names = std::fs::read_dir(to).unwrap().map(|entry| entry.unwrap().file_name());
        names.collect::<std::collections::BTreeSet<_>>()
    };
    let before = files();
    let (code, _, errors) = run(to, &["import", "broken.jsonl", "--store", "sqlite:new.db"]).await;
    assert!(
        code == 1 && errors.contains("nothing was written to new.db") && errors.contains("supports format 1"),
        "{errors}"
    );
    assert_eq!(files(), before);
    // SQLite would replay the write-ahead log of another file over the imported tasks.
    std::fs::write(to.join("old.db-wal"), "log").unwrap();
    let (code, _, errors) = run(to, &["import", "ada.jsonl", "--store", "sqlite:old.db"]).await;
    assert!(code == 1 && errors.contains("old.db-wal"), "{errors}");
    assert!(!to.join("old.db").exists() && !to.join("old.db.lock").exists());
    // Import into a file that does not exist.
    assert_eq!(
        succeed(to, &["import", "ada.jsonl", "--store", "sqlite:new.db"]).await,
        "imported 4 tasks into new.db\n"
    );
    assert_eq!(
        succeed(to, &["check", "--store", "sqlite:new.db"]).await,
        "checked 4 tasks in new.db, no problems found\n"
    );
    // An imported running task is recovered as after any start.
    let (server, _) = serve(to).await;
    end(server).await;
    assert_eq!(succeed(to, &["check"]).await, "checked 8 tasks in a2a.db, no problems found\n");
}

/// Secrets of push configurations are exported only on request. Deliveries keep their position, and dead letters.
#[tokio::test]
async fn export_has_no_secrets() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    filled(directory).await;
    let file = rusqlite::Connection::open(directory.join("a2a.db")).unwrap();
    let sql = "UPDATE push SET cursor = 2, due = NULL, dead = 7, reason = 'gone' WHERE task = 1";
    assert_eq!(file.execute(sql, []).unwrap(), 1);
    drop(file);
    let exported = succeed(directory, &["export"]).await;
    // Encoded bytes are decoded too.
    assert!(!exported.contains("secret") && !exported.contains("AHNlY3JldC"), "{exported}");
    let with_secrets = succeed(directory, &["export", "--include-secrets"]).await;
    for secret in ["secret-token", "secret-credentials", "user:secret-password@", "AHNlY3JldC1iZXNpZGU="] {
        assert_eq!(with_secrets.matches(secret).count(), 8, "{secret}");
    }
    let entry = |exported: &str| tasks(exported)[&("ada".to_owned(), "old".to_owned())]["pushes"][0].clone();
    let (pushes, all) = (entry(&exported), entry(&with_secrets));
    assert_eq!(pushes["config"]["url"], "https://a.example/hook");
    assert_eq!(pushes["config"]["authentication"]["scheme"], "Bearer");
    assert_eq!(pushes["config"]["id"], all["config"]["id"]);
    for entry in [&pushes, &all] {
        assert_eq!((&entry["cursor"], &entry["dead"]), (&json!(2), &json!({"time": 7, "reason": "gone"})));
    }
    for text in [exported, with_secrets] {
        std::fs::write(directory.join("tasks.jsonl"), &text).unwrap();
        succeed(directory, &["import", "tasks.jsonl", "--store", "sqlite:new.db"]).await;
        let imported = succeed(directory, &["export", "--store", "sqlite:new.db", "--include-secrets"]).await;
        assert_eq!(tasks(&imported), tasks(&text));
        std::fs::remove_file(directory.join("new.db")).unwrap();
    }
}

#[tokio::test]
async fn push_deliveries_are_listed_retried_and_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    filled(directory).await;
    let due = || {
        let file = rusqlite::Connection::open(directory.join("a2a.db")).unwrap();
        let sql = "SELECT count(*) FROM push WHERE due IS NOT NULL";
        file.query_row(sql, [], |row| row.get::<_, u32>(0)).unwrap()
    };
    let file = rusqlite::Connection::open(directory.join("a2a.db")).unwrap();
    file.execute_batch(
        "UPDATE push SET cursor = 2, dead = 1700000000000, reason = 'status 404', attempts = 3 WHERE task <= 2;
         UPDATE push SET cursor = 2, due = 1700000000000, pending = 1600000000000, attempts = 1 WHERE task = 3;
         UPDATE push SET cursor = 2, due = 1700000000000, pending = 1, runner = 'r' WHERE task = 4;
         UPDATE push SET cursor = 5 WHERE task = 5;",
    )
    .unwrap();
    drop(file);
    let (server, _) = serve(directory).await;
    let list = succeed(directory, &["push", "list"]).await;
    let states: Vec<_> = list.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(states, ["dead", "dead", "waiting", "leased", "idle", "waiting", "waiting", "waiting"], "{list}");
    let dead = "dead task old config p of \"ada\" in tenant \"blue\": event 2 of 5, 3 failed attempts \
                given up 2023-11-14T22:13:20.000Z: status 404\n";
    assert!(list.starts_with(dead), "{list}");
    let dead = succeed(directory, &["push", "list", "--dead", "-ojsonl"]).await;
    let dead: Vec<Value> = dead.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(dead.iter().map(|delivery| &delivery["task"]).collect::<Vec<_>>(), ["old", "asked"]);
    let expected = json!({
        "task": "old", "config": "p", "owner": "ada", "tenant": "blue", "version": "0.3",
        "url": "https://a.example/hook", "state": "dead", "cursor": 2, "seq": 5, "failed_attempts": 3,
        "due": null, "pending_since": null, "lag_seconds": null, "runner": null, "given_up": "2023-11-14T22:13:20.000Z", "reason": "status 404",
    });
    assert_eq!(dead[0], expected);
    let shown = succeed(directory, &["push", "show", "runs", "--owner", "ada"]).await;
    for line in
        ["task: runs", "state: waiting", "due: 2023-11-14T22:13:20.000Z", "pending_since: 2020-09-13T12:26:40.000Z"]
    {
        assert!(shown.lines().any(|shown| shown == line), "{line}: {shown}");
    }
    assert!(!(list + &shown).contains("secret"), "{shown}");
    assert_eq!(succeed(directory, &["push", "show", "runs", "p", "-ojsonl"]).await.lines().count(), 2, "both owners");
    for arguments in [&["push", "show", "runs", "q"][..], &["push", "show", "old", "--owner", "eve"]] {
        assert!(fail(directory, arguments).await.contains("has no such delivery"), "{arguments:?}");
    }
    // Commands that write need the file for themselves, and a selection.
    for command in ["retry", "drop"] {
        assert!(fail(directory, &["push", command, "--dead"]).await.contains("a server is using the database"));
        assert!(fail(directory, &["push", command]).await.contains("required"));
    }
    end(server).await;
    let before = due();
    assert_eq!(
        succeed(directory, &["push", "retry", "old", "p", "--dead"]).await,
        "1 deliveries are due at once in a2a.db\n"
    );
    assert_eq!(due(), before + 1);
    let shown = succeed(directory, &["push", "show", "old", "--owner", "ada", "-ojsonl"]).await;
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((&shown["state"], &shown["cursor"]), (&json!("waiting"), &json!(2)));
    assert_eq!((&shown["failed_attempts"], &shown["reason"]), (&json!(0), &Value::Null));
    // A sweep keeps its task for a day.
    for (pending, deleted) in [(None, 1), (Some(1_600_000_000_000_i64), 2)] {
        if let Some(pending) = pending {
            let file = rusqlite::Connection::open(directory.join("a2a.db")).unwrap();
            file.execute("UPDATE push SET pending = ? WHERE task = 1", [pending]).unwrap();
        }
        let dry = succeed(directory, &["gc", "--dry-run"]).await;
        assert!(dry.starts_with(&format!("{deleted} terminal tasks would be deleted from a2a.db\n")), "{dry}");
    }
    let retried = succeed(directory, &["push", "retry", "--dead", "-ojsonl"]).await;
    let retried: Value = serde_json::from_str(&retried).unwrap();
    assert_eq!((&retried["task"], &retried["state"]), (&json!("asked"), &json!("dead")));
    assert_eq!(succeed(directory, &["push", "list", "--dead"]).await, "");
    assert_eq!(succeed(directory, &["push", "retry", "--dead"]).await, "0 deliveries are due at once in a2a.db\n");
    let dropped = succeed(directory, &["push", "drop", "old", "--owner", "ada"]).await;
    assert_eq!(dropped, "1 push configurations were deleted from a2a.db\n");
    assert_eq!(succeed(directory, &["push", "list"]).await.lines().count(), 7);
    // The deliveries of an owner are deleted with the owner.
    succeed(directory, &["forget", "--owner", "ada", "--yes"]).await;
    let list = succeed(directory, &["push", "list"]).await;
    assert!(list.lines().count() == 4 && !list.contains("ada"), "{list}");
    assert_eq!(succeed(directory, &["check"]).await, "checked 4 tasks in a2a.db, no problems found\n");
}

#[tokio::test]
async fn gc_deletes_expired_data() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    filled(directory).await;
    let before = succeed(directory, &["export"]).await;
    let dry = succeed(directory, &["gc", "--dry-run"]).await;
    let expected = "2 terminal tasks would be deleted from a2a.db\n0 event logs of retained tasks would be deleted\n\
                    0 push configurations of retained tasks would be deleted\n\
                    6 idempotency keys of retained tasks would be deleted\n0 idle tasks would be canceled\n";
    assert_eq!(dry, expected);
    assert_eq!(succeed(directory, &["export"]).await, before, "a dry run changes nothing");
    assert_eq!(succeed(directory, &["gc"]).await, expected.replace("would be", "were"));
    assert_eq!(succeed(directory, &["check"]).await, "checked 6 tasks in a2a.db, no problems found\n");
    assert!(succeed(directory, &["gc"]).await.starts_with("0 terminal tasks"));
    let left = tasks(&succeed(directory, &["export"]).await);
    assert!(left.keys().all(|(_, id)| id != "old"));
    // A configured retention of 0 keeps tasks forever.
    std::fs::write(directory.join("a2a.toml"), "[retention]\nlogs = '0s'\nfinished = '0s'\n").unwrap();
    assert!(succeed(directory, &["gc", "--dry-run"]).await.starts_with("0 terminal tasks"));
}

/// Same outcome as the sweep of a running server.
#[tokio::test]
async fn gc_cancels_unanswered_tasks() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    filled(directory).await;
    // No turn of these tasks is running.
    let file = rusqlite::Connection::open(directory.join("a2a.db")).unwrap();
    assert_eq!(file.execute("UPDATE task SET open = 0 WHERE key = 'asked'", []).unwrap(), 2);
    drop(file);
    let expected = "\n2 idle tasks would be canceled\n";
    let dry = succeed(directory, &["gc", "--dry-run"]).await;
    assert!(dry.ends_with(expected), "{dry}");
    let output = succeed(directory, &["gc"]).await;
    assert!(output.ends_with(&expected.replace("would be", "were")), "{output}");
    assert_eq!(succeed(directory, &["check"]).await, "checked 6 tasks in a2a.db, no problems found\n");
    let dry = succeed(directory, &["gc", "--dry-run"]).await;
    assert!(dry.ends_with("\n0 idle tasks would be canceled\n"), "{dry}");
    let left = tasks(&succeed(directory, &["export"]).await);
    for owner in ["ada", "bob"] {
        let ended = &left[&(owner.to_owned(), "asked".to_owned())];
        assert_eq!(ended["state"], "TASK_STATE_CANCELED");
        let text = &ended["checkpoint"]["task"]["status"]["message"]["parts"][0]["text"];
        assert!(text.as_str().unwrap().contains("did not answer in time"), "{ended}");
    }
}

/// Without a terminal, nothing is deleted unless `--yes` is given: neither a named owner nor the callers without a name.
#[tokio::test]
async fn forget_requires_a_confirmation() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    filled(directory).await;
    let file = rusqlite::Connection::open(directory.join("a2a.db")).unwrap();
    file.execute("UPDATE scope SET owner = '' WHERE owner = 'bob'", []).unwrap();
    drop(file);
    let before = succeed(directory, &["export"]).await;
    for (owner, name) in [("ada", "owner \"ada\""), ("", "callers without a name"), ("eve", "owner \"eve\"")] {
        let (code, output, errors) = run(directory, &["forget", "--owner", owner]).await;
        assert_eq!((code, &*output), (2, ""), "{errors}");
        let expected = format!("nothing was deleted: confirm the deletion of all tasks of {name} with --yes");
        assert!(errors.contains(&expected), "{errors}");
        let tasks = if owner == "eve" { 0 } else { 4 };
        let dry = succeed(directory, &["forget", "--owner", owner, "--dry-run"]).await;
        assert_eq!(dry, format!("{tasks} tasks of {name} would be deleted from a2a.db\n"));
        let dry = succeed(directory, &["forget", "--owner", owner, "--dry-run", "-ojsonl"]).await;
        let dry: Value = serde_json::from_str(&dry).unwrap();
        assert_eq!(dry, json!({"owner": owner, "dry_run": true, "tasks": tasks}));
    }
    let (code, ..) = run(directory, &["forget", "--owner", "ada", "--dry-run", "--yes"]).await;
    assert_eq!(code, 2);
    assert_eq!(succeed(directory, &["export"]).await, before);
    let (code, deleted, errors) = run(directory, &["forget", "--owner", "", "--yes", "-ojsonl"]).await;
    assert_eq!(code, 0, "{errors}");
    let audited = errors.lines().find(|line| line.contains("a2a_service::audit")).expect(&errors);
    for field in ["event=administered", "operation=\"admin forget\"", "object=\"\"", "count=4", "user.id="] {
        assert!(audited.contains(field), "{audited}");
    }
    let deleted: Value = serde_json::from_str(&deleted).unwrap();
    assert_eq!(deleted, json!({"owner": "", "dry_run": false, "tasks": 4}));
    let left = tasks(&succeed(directory, &["export"]).await);
    assert!(left.len() == 4 && left.keys().all(|(owner, _)| owner == "ada"));
}

#[tokio::test]
async fn tasks_are_listed_in_pages_and_shown_without_secrets() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    filled(directory).await;
    let ids = |page: &Value| {
        let id = |task: &Value| format!("{} of {}", task["id"].as_str().unwrap(), task["owner"].as_str().unwrap());
        page["tasks"].as_array().unwrap().iter().map(id).collect::<Vec<_>>()
    };
    let list = async |arguments: &[&str]| -> Value {
        let output = succeed(directory, &[&["list", "-ojsonl"], arguments].concat()).await;
        serde_json::from_str(&output).unwrap()
    };
    let all = list(&[]).await;
    assert_eq!((ids(&all).len(), &all["next_page_token"]), (8, &Value::Null));
    assert_eq!(ids(&all)[..2], ["new of bob", "runs of bob"]);
    let first = list(&["--owner", "ada", "--limit", "3"]).await;
    assert_eq!(ids(&first), ["new of ada", "runs of ada", "asked of ada"]);
    let next = first["next_page_token"].as_str().unwrap();
    let second = list(&["--owner", "ada", "--limit", "3", "--page-token", next]).await;
    assert_eq!((ids(&second), &second["next_page_token"]), (vec!["old of ada".to_owned()], &Value::Null));
    assert_eq!(ids(&list(&["--state", "working"]).await), ["runs of bob", "runs of ada"]);
    assert!(ids(&list(&["--tenant", "red"]).await).is_empty());
    assert_eq!(run(directory, &["list", "--limit", "1001"]).await.0, 2);

    let text = succeed(directory, &["list", "--owner", "ada", "--limit", "1"]).await;
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("ID ") && lines[1].starts_with("new  "), "{text}");
    assert!(lines[1].contains("  failed  ") && lines[1].ends_with("  \"ada\" (blue)"), "{text}");
    assert!(lines[2].starts_with("More tasks: --page-token "), "{text}");

    let shown = succeed(directory, &["show", "old", "-ojsonl"]).await;
    assert_eq!(shown.lines().count(), 2, "tasks of two owners have this id");
    let shown = succeed(directory, &["show", "old", "--owner", "ada", "-ojsonl"]).await;
    assert!(!shown.contains("secret"), "{shown}");
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((&shown["events"], &shown["state"]), (&json!(5), &json!("TASK_STATE_COMPLETED")));
    assert_eq!(shown["push_configs"][0]["url"], "https://a.example/hook");
    assert_eq!(shown["task"]["artifacts"][0]["parts"].as_array().unwrap().len(), 1, "its texts are one");
    assert!(shown["bytes"].as_u64().unwrap() > 20, "{shown}");
    let text = succeed(directory, &["show", "old", "--owner", "ada"]).await;
    for expected in ["Owner:    \"ada\"\n", "Events:   5\n", "Status:   completed", "  [p] https://a.example/hook\n"] {
        assert!(text.contains(expected), "{text}");
    }
    assert!(!text.contains("secret"), "{text}");
    assert!(fail(directory, &["show", "none"]).await.contains("has no task none"));
}

#[tokio::test]
async fn commands_print_json() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    filled(directory).await;
    let before = succeed(directory, &["export", "--owner", "ada"]).await;
    for (arguments, expected) in [
        (&["check"][..], json!({"tasks": 8, "problems": []})),
        (&["backup", "copy.db"], json!({"store": "a2a.db", "path": "copy.db"})),
        (&["export", "all.jsonl"], json!({"tasks": 8, "path": "all.jsonl"})),
        (&["import", "all.jsonl", "--store", "sqlite:new.db"], json!({"tasks": 8, "store": "new.db"})),
        (
            &["gc", "--dry-run"],
            json!({"dry_run": true, "tasks": 2, "logs": 0, "push_configs": 0, "idempotency_keys": 6, "canceled": 0}),
        ),
        (
            &["gc"],
            json!({"dry_run": false, "tasks": 2, "logs": 0, "push_configs": 0, "idempotency_keys": 6, "canceled": 0}),
        ),
    ] {
        let output = succeed(directory, &[arguments, &["-ojsonl"]].concat()).await;
        assert_eq!(serde_json::from_str::<Value>(&output).unwrap(), expected, "{arguments:?}");
    }
    let stats: Value = serde_json::from_str(&succeed(directory, &["stats", "-ojsonl"]).await).unwrap();
    assert_eq!((&stats["tasks"], &stats["states"]["TASK_STATE_WORKING"]), (&json!(6), &json!(2)));
    assert_eq!(stats["largest_owners"][0], json!({"owner": "ada", "tenant": "blue", "tasks": 3}));
    rusqlite::Connection::open(directory.join("a2a.db")).unwrap().execute("DELETE FROM log", []).unwrap();
    let (code, output, _) = run(directory, &["check", "-ojsonl"]).await;
    let damage: Value = serde_json::from_str(&output).unwrap();
    assert!(code == 1 && !damage["problems"].as_array().unwrap().is_empty(), "{output}");
    assert_eq!(tasks(&before).len(), 4);
}

/// Each command is about the databases of all agents, or of the named one. Copies are in a directory.
#[tokio::test]
async fn commands_cover_all_agents() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let agents = "[[agents]]\nname = 'geo'\n[[agents]]\nname = 'math'\n[[agents]]\nname = 'brief'\nstore = 'memory'\n";
    std::fs::write(directory.join("a2a.toml"), agents).unwrap();
    let (server, url) = serve(directory).await;
    let mut ids = Vec::new();
    for agent in ["geo", "math", "math"] {
        let task = post(&format!("{url}/{agent}/message:send"), &message("hello")).await["task"].clone();
        ids.push(task["id"].as_str().unwrap().to_owned());
    }
    let checked = "agent geo, a2a.geo.db:\nchecked 1 task in a2a.geo.db, no problems found\n\
                   agent math, a2a.math.db:\nchecked 2 tasks in a2a.math.db, no problems found\n";
    let (code, output, notes) = run(directory, &["check"]).await;
    assert_eq!((code, &*output), (0, checked));
    assert_eq!(notes, "note: agent brief keeps its tasks in memory\n");
    assert!(notes.lines().all(|line| line.len() <= 100), "{notes}");
    let backed_up = "agent geo, a2a.geo.db:\nbacked up a2a.geo.db to all/geo.db\n\
                     agent math, a2a.math.db:\nbacked up a2a.math.db to all/math.db\n";
    assert_eq!(succeed(directory, &["backup", "all"]).await, backed_up);
    assert!(fail(directory, &["backup", "all"]).await.contains("all: File exists"));
    let exported = succeed(directory, &["export", "tasks", "-ojsonl"]).await;
    let exported: Vec<Value> = exported.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(exported[0], json!({"tasks": 1, "path": "tasks/geo.jsonl", "agent": "geo"}));
    assert_eq!(exported[1], json!({"tasks": 2, "path": "tasks/math.jsonl", "agent": "math"}));
    let list = succeed(directory, &["list"]).await;
    assert!(ids.iter().all(|id| list.contains(id)) && list.lines().all(|line| line.chars().count() <= 80), "{list}");
    assert!(!succeed(directory, &["list", "--agent", "geo"]).await.contains(&ids[1]));
    let shown = succeed(directory, &["show", &ids[1]]).await;
    assert!(shown.starts_with("agent math, a2a.math.db:\n") && !shown.contains("agent geo"), "{shown}");
    for (arguments, code, reason) in [
        (&["show", "none"][..], 1, "a2a.geo.db has no task none"),
        (&["export"], 2, "name a directory for their exports, or one of them with --agent"),
        (&["gc"], 1, "note: list, show, error, stats, check, backup, export"),
        (&["restore", "all"], 1, "nothing was restored: a2a.geo.db is in use; stop the server first"),
        (&["restore", "all/geo.db"], 2, "name one with --agent"),
        (&["import", "tasks"], 1, "stop it first"),
        (&["check", "--agent", "gap"], 2, "--agent: there is no agent gap in [geo, math, brief]"),
    ] {
        let (found, _, errors) = run(directory, arguments).await;
        assert!(found == code && errors.contains(reason), "{arguments:?}: {found} {errors}");
    }
    end(server).await;
    // Copies replace nothing.
    assert!(fail(directory, &["restore", "all"]).await.contains("a2a.geo.db exists; move it away"));
    assert!(fail(directory, &["import", "tasks"]).await.contains("the task exists already"));
    let clear =
        || ["geo", "math"].map(|agent| std::fs::remove_file(directory.join(format!("a2a.{agent}.db"))).unwrap());
    clear();
    std::fs::write(directory.join("all/other.db"), "").unwrap();
    let errors = fail(directory, &["restore", "all"]).await;
    assert!(errors.contains("all/other.db is of an agent that has no database here"), "{errors}");
    assert!(!directory.join("a2a.geo.db").exists(), "nothing is restored if one copy does not fit");
    std::fs::remove_file(directory.join("all/other.db")).unwrap();
    // Nothing is restored if a copy is damaged, a file of an old database is there, or its directory is missing.
    let geo = directory.join("a2a.geo.db");
    let content = std::fs::read(directory.join("all/math.db")).unwrap();
    let mut damaged = content.clone();
    damaged[4096..].fill(7);
    std::fs::write(directory.join("all/math.db"), damaged).unwrap();
    let errors = fail(directory, &["restore", "all"]).await;
    assert!(errors.contains("nothing was restored: ") && errors.contains("all/math.db") && !geo.exists(), "{errors}");
    std::fs::write(directory.join("all/math.db"), content).unwrap();
    std::fs::write(directory.join("a2a.math.db-wal"), "").unwrap();
    let errors = fail(directory, &["restore", "all"]).await;
    assert!(errors.contains("nothing was restored: a2a.math.db-wal exists") && !geo.exists(), "{errors}");
    std::fs::remove_file(directory.join("a2a.math.db-wal")).unwrap();
    let agents_elsewhere = agents.replace("name = 'math'", "name = 'math'\nstore = 'sqlite:none/math.db'");
    std::fs::write(directory.join("a2a.toml"), agents_elsewhere).unwrap();
    let errors = fail(directory, &["restore", "all"]).await;
    assert!(errors.contains("nothing was restored: ") && errors.contains("none/math.db") && !geo.exists(), "{errors}");
    // An agent without a copy is named.
    std::fs::write(directory.join("a2a.toml"), format!("{agents}[[agents]]\nname = 'new'\n")).unwrap();
    let errors = fail(directory, &["restore", "all/none"]).await;
    assert!(!errors.contains("has no copy"), "{errors}");
    std::fs::create_dir(directory.join("some")).unwrap();
    std::fs::copy(directory.join("all/geo.db"), directory.join("some/geo.db")).unwrap();
    let (code, _, notes) = run(directory, &["restore", "some"]).await;
    assert!(code == 0 && notes.contains("note: agent math has no copy in some\n"), "{notes}");
    assert!(notes.contains("agent new has no copy in some") && !notes.contains("agent geo has"), "{notes}");
    std::fs::remove_file(&geo).unwrap();
    std::fs::write(directory.join("a2a.toml"), agents).unwrap();
    let restored = succeed(directory, &["restore", "all"]).await;
    assert!(
        restored.contains("restored a2a.geo.db from all/geo.db\n") && restored.contains("all/math.db"),
        "{restored}"
    );
    assert_eq!(succeed(directory, &["check"]).await, checked);
    // Databases are imported one after the other.
    std::fs::remove_file(&geo).unwrap();
    let errors = fail(directory, &["import", "tasks"]).await;
    assert!(errors.contains("imported before: geo; then failed: nothing was imported into a2a.math.db"), "{errors}");
    clear();
    succeed(directory, &["import", "tasks"]).await;
    #[cfg(unix)]
    for (path, mode) in [("tasks", 0o700), ("tasks/geo.jsonl", 0o600), ("all", 0o700), ("all/geo.db", 0o600)] {
        let metadata = std::fs::metadata(directory.join(path)).unwrap();
        let found = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o777;
        assert_eq!(found, mode, "{path}");
    }
    assert_eq!(succeed(directory, &["check"]).await, checked);
    // A copy of one database, as servers with one agent have.
    std::fs::remove_file(directory.join("a2a.math.db")).unwrap();
    let restored = succeed(directory, &["restore", "all/math.db", "--agent", "math"]).await;
    assert_eq!(restored, "restored a2a.math.db from all/math.db\n");
    let (code, output, notes) = run(directory, &["check"]).await;
    assert_eq!((code, &*output), (0, checked));
    assert_eq!(notes, "note: agent brief keeps its tasks in memory\n", "no server is running");
    // A directory is no copy of one database.
    let (code, _, errors) = run(directory, &["restore", "all", "--store", "sqlite:new.db"]).await;
    assert!(code == 2 && errors.contains("is of an agent that has no database here"), "{errors}");
    assert_eq!(
        succeed(directory, &["restore", "all/geo.db", "--store", "sqlite:new.db"]).await,
        "restored new.db from all/geo.db\n"
    );
}

/// A damaged database does not keep the others from being checked.
#[tokio::test]
async fn all_agents_are_checked_after_damage() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    filled(directory).await;
    std::fs::copy(directory.join("a2a.db"), directory.join("a2a.b.db")).unwrap();
    std::fs::rename(directory.join("a2a.db"), directory.join("a2a.a.db")).unwrap();
    std::fs::write(
        directory.join("a2a.toml"),
        "[[agents]]\nname = 'a'\n[[agents]]\nname = 'b'\n[[agents]]\nname = 'c'\n",
    )
    .unwrap();
    rusqlite::Connection::open(directory.join("a2a.a.db")).unwrap().execute("DELETE FROM log", []).unwrap();
    let (code, output, errors) = run(directory, &["check"]).await;
    assert!(code == 1 && errors.contains("a2a.a.db is damaged; restore a backup"), "{errors}");
    assert!(errors.contains("note: agent c has no tasks yet: a2a.c.db does not exist\n"), "{errors}");
    assert!(output.ends_with("checked 8 tasks in a2a.b.db, no problems found\n"), "{output}");
}

/// A closed pipe ends an export quietly, and a full device does not.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn failed_writes_are_reported_unless_the_pipe_is_closed() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    filled(directory).await;
    for arguments in [&["export"][..], &["list"], &["stats"]] {
        let mut command = admin(directory, arguments);
        command.stdout(std::fs::File::options().write(true).open("/dev/full").unwrap());
        let full = command.spawn().unwrap().wait_with_output().await.unwrap();
        let errors = String::from_utf8(full.stderr).unwrap();
        assert_eq!(full.status.code(), Some(1), "{errors}");
        assert!(errors.starts_with("error: cannot write to stdout: No space left on device"), "{errors}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = admin(directory, arguments);
        command.stdout(writer);
        let closed = command.spawn().unwrap().wait_with_output().await.unwrap();
        assert_eq!((closed.status.code(), &*closed.stderr), (Some(0), &b""[..]), "{arguments:?}");
    }
}

#[tokio::test]
async fn forget_deletes_all_data_of_an_owner() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    filled(directory).await;
    let bob = tasks(&succeed(directory, &["export", "--owner", "bob"]).await);
    let (code, printed, warned) = run(directory, &["forget", "--owner", "ada", "--yes"]).await;
    assert_eq!((code, &*printed), (0, "deleted 4 tasks from a2a.db\n"));
    assert!(warned.contains("backups of the database"), "{warned}");
    assert_eq!(tasks(&succeed(directory, &["export"]).await), bob);
    assert_eq!(succeed(directory, &["check"]).await, "checked 4 tasks in a2a.db, no problems found\n");
    let file = std::fs::read(directory.join("a2a.db")).unwrap();
    assert!(!file.windows(3).any(|bytes| bytes == b"ada"), "deleted data is overwritten");
    assert_eq!(succeed(directory, &["forget", "--owner", "ada", "--yes"]).await, "deleted 0 tasks from a2a.db\n");
    // The name is also removed if the owner has no tasks left.
    let owners = || {
        let file = rusqlite::Connection::open(directory.join("a2a.db")).unwrap();
        file.query_row("SELECT group_concat(owner) FROM scope", [], |row| row.get::<_, String>(0)).unwrap()
    };
    let file = rusqlite::Connection::open(directory.join("a2a.db")).unwrap();
    file.execute("INSERT INTO scope(owner, tenant) VALUES('eve', ''), ('eve', 'blue')", []).unwrap();
    drop(file);
    assert_eq!(owners(), "bob,eve,eve");
    assert_eq!(succeed(directory, &["forget", "--owner", "eve", "--yes"]).await, "deleted 0 tasks from a2a.db\n");
    assert_eq!(owners(), "bob");
}

/// The unreadable tasks exceed one batch.
#[tokio::test]
async fn gc_skips_unreadable_idle_tasks() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let store = OpenedStore::sqlite(Options::default());
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
    let output = succeed(directory, &["gc"]).await;
    assert!(output.ends_with("\n10 idle tasks were canceled\n"), "{output}");
}

/// Inconsistencies that SQLite does not detect.
#[tokio::test]
async fn check_reports_inconsistencies() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    for (damage, expected) in [
        (
            "DELETE FROM log WHERE id = (SELECT min(id) FROM log WHERE id >> 28 = 2)",
            "task asked: the start of the log is missing",
        ),
        (
            "DELETE FROM log WHERE id = (SELECT max(id) FROM log WHERE id >> 28 = 2)",
            "task asked: the log ends with event 4, but the row is at 5",
        ),
        ("DELETE FROM log WHERE id = 2 << 28 | 3", "task asked: the log has event 5 instead of 3"),
        ("UPDATE task SET state = 4 WHERE id = 1", "task old: the state of the row differs from the task"),
        ("UPDATE task SET time = 4 WHERE id = 1", "task old: the time of the row differs from the task"),
        ("UPDATE task SET attempt = -1 WHERE id = 1", "task old: Integer"),
        ("UPDATE task SET key = 'new name' WHERE id = 1", "task new name: the ids of the row differ from the task"),
        (
            "UPDATE task SET folded = 1 WHERE id = 1",
            "task old: there is a log although the row says that it was deleted",
        ),
        ("DELETE FROM log WHERE id >> 28 = 3", "task runs: the log is missing"),
        (
            "UPDATE log SET events = x'ff' WHERE id = 2 << 28 | 1",
            "the log row that begins with event 1 can't be decoded",
        ),
        (
            "UPDATE checkpoint SET task = CAST(task || x'3200' AS BLOB) WHERE id = 1",
            "task old: the checkpoint differs from the log",
        ),
        (
            "UPDATE total SET tasks = tasks + 1 WHERE state = 3",
            "wrong task count of an owner (owner, state, tasks): 1, 3, 1",
        ),
        (
            "INSERT INTO total VALUES(9, 1, 4)",
            "task count of an owner without such tasks (owner, state, count): 9, 1, 4",
        ),
        ("INSERT INTO crowd VALUES(1, 'c-1', 3, 7)", "wrong task count of a context"),
        ("INSERT INTO log(id, events) VALUES(99 << 28, x'')", "log without a task (task): 99"),
        (
            "INSERT INTO push(task, number, scope, id, version, config, beside, cursor)
             VALUES(99, 1, 0, 'p', '1.0', x'', x'', 0)",
            "push configuration without a task (task, configuration): 99, p",
        ),
        ("UPDATE push SET cursor = 9 WHERE task = 1", "invalid state of a delivery (task, configuration): 1, p"),
        ("UPDATE push SET due = 1 WHERE task = 1", "invalid state of a delivery (task, configuration): 1, p"),
        (
            "UPDATE send SET task = 99 WHERE task = 1",
            "idempotency key without a task of its owner (task, key): 99, key of old",
        ),
        ("DELETE FROM scope WHERE id = 2", "task without an owner (task): 5, old, 2"),
        ("UPDATE task SET context = CAST(x'ff' AS TEXT) WHERE id = 1", "task old: "),
        ("UPDATE task SET key = CAST(x'6fff' AS TEXT) WHERE id = 1", "task o\u{fffd}: "),
    ] {
        let path = directory.join("a2a.db");
        if path.exists() {
            std::fs::remove_file(&path).unwrap();
        }
        filled(directory).await;
        rusqlite::Connection::open(&path).unwrap().execute_batch(damage).unwrap();
        let (code, output, errors) = run(directory, &["check"]).await;
        assert_eq!(code, 1, "{damage}");
        assert!(output.contains(expected), "{damage}: {output}");
        assert!(errors.contains("is damaged; restore a backup"), "{errors}");
    }
}

#[tokio::test]
async fn commands_reject_missing_and_foreign_files() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    for arguments in
        [&["stats"][..], &["gc"], &["forget", "--owner", "ada", "--yes"], &["export"], &["backup", "copy.db"]]
    {
        let errors = fail(directory, arguments).await;
        assert!(errors.contains("a2a.db"), "{errors}");
        assert_eq!(std::fs::read_dir(directory).unwrap().count(), 0, "{arguments:?} creates no file");
    }
    let errors = fail(directory, &["stats", "--store", "memory"]).await;
    assert!(errors.contains("--store names a file"), "{errors}");
    std::fs::write(directory.join("a2a.db"), "not a database, but something else that somebody needs").unwrap();
    for arguments in [&["stats"][..], &["gc"], &["check"]] {
        let errors = fail(directory, arguments).await;
        assert!(errors.contains("is not a database of this program"), "{errors}");
    }
    let path = directory.join("a2a.db");
    std::fs::remove_file(&path).unwrap();
    filled(directory).await;
    // A file of an older schema version is reported; commands that write migrate it.
    let newer = async |arguments| {
        let mut command = admin(directory, arguments);
        command.env("MIGRATION_STEP", "CREATE TABLE step(n INTEGER) STRICT");
        let output = output(command).await;
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, errors) = newer(&["stats"]).await;
    assert!(code == Some(1) && errors.contains("has the old schema version 2"), "{errors}");
    for arguments in [&["gc"], &["stats"]] {
        let (code, errors) = newer(arguments).await;
        assert_eq!(code, Some(0), "{arguments:?}: {errors}");
    }
    // A file of a former build is rejected unchanged.
    let file = rusqlite::Connection::open(&path).unwrap();
    file.pragma_update(None, "application_id", 0x4132_4154).unwrap();
    drop(file);
    let before = std::fs::read(&path).unwrap();
    for arguments in [&["stats"][..], &["gc"], &["check"], &["export"]] {
        let errors = fail(directory, arguments).await;
        assert!(
            errors.contains("was written by a former build of this program; export it with that build"),
            "{errors}"
        );
    }
    assert_eq!(std::fs::read(&path).unwrap(), before);
    let errors = fail(directory, &["backup", "a2a.db"]).await;
    assert!(errors.contains("a2a.db"), "an existing file is kept");
}

/// A task that ended with its first commit is stored in its row.
#[tokio::test]
async fn check_reports_unreadable_terminal_tasks() {
    for (damage, expected) in [
        ("UPDATE task SET whole = x'ffff' WHERE key = 't-1'", "task t-1: "),
        ("UPDATE task SET context = CAST(x'ff' AS TEXT) WHERE key = 't-1'", "task t-1: "),
        ("UPDATE task SET key = CAST(x'74ff' AS TEXT) WHERE key = 't-1'", "task t\u{fffd}: "),
        ("UPDATE task SET scope = 99 WHERE key = 't-1'", "task without an owner (task): 2, t-1, 99"),
    ] {
        let store = OpenedStore::sqlite(Options::default());
        for n in 0..3 {
            Writer::new(&store, &scope("ada", ""), &format!("t-{n}"))
                .commit([status(TaskState::Completed, n)])
                .await
                .unwrap();
        }
        let store = store.reopen();
        let path = store.path().unwrap();
        rusqlite::Connection::open(&path).unwrap().execute_batch(damage).unwrap();
        let (code, printed, errors) = run(path.parent().unwrap(), &["check"]).await;
        assert!(code == 1 && printed.contains(expected), "{damage}: {printed}{errors}");
        assert!(!printed.contains("t-0") && !printed.contains("t-2"), "{damage}: {printed}");
    }
}

/// If the disk is full or fails, neither the file nor the auxiliary files of SQLite are left.
#[cfg(unix)]
#[tokio::test]
async fn failed_import_leaves_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let store = OpenedStore::sqlite(Options::default());
    let large = "x".repeat(100_000);
    for n in 0..30 {
        let mut task = Writer::new(&store, &scope("ada", ""), &format!("t-{n}"));
        task.commit([chunk("a", &large, false), status(TaskState::Completed, n)]).await.unwrap();
    }
    let exported = directory.join("tasks.jsonl");
    let from = store.path().unwrap();
    succeed(from.parent().unwrap(), &["export", exported.to_str().unwrap()]).await;
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
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(1) && errors.contains("nothing was written to new.db"),
            "{point}: {errors}"
        );
        assert_eq!(files(), before, "{point}");
    }
    // In blocks of 512 or 1024 bytes, depending on the shell: too few for the tables, for some tasks, and for the last task.
    for blocks in [4, 600, 2500] {
        let mut command = Command::new("sh");
        // Ignoring `SIGXFSZ` makes writes beyond the limit fail instead of ending the process.
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" admin \"$@\"");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_a2a")]).args(import);
        command.env_clear().env("PATH", "/usr/bin:/bin").current_dir(directory);
        let output = output(command).await;
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(1) && errors.contains("nothing was written to new.db"),
            "{blocks}: {errors}"
        );
        assert_eq!(files(), before, "{blocks}");
    }
    assert_eq!(succeed(directory, &import).await, "imported 30 tasks into new.db\n");
}
