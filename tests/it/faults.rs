//! Fault injection at each step of a commit, sweep, upgrade and start: the process aborts, SQLite fails, or the step is
//! delayed. Everything that clients observed is durable, and all started work ends.

use std::{os::unix::process::ExitStatusExt as _, path::Path, time::Duration};

use a2a_service::{client, pb::v1::ListTasksRequest};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Child,
    sync::oneshot,
    task::JoinSet,
    time::{interval, timeout},
};

use tokio_stream::StreamExt as _;

use crate::{
    crash::{MIGRATION_STEP, TestBed, seed},
    program::{output, signal, try_started},
    scenarios::{get, request, send, text},
    workload::{Clients, Rng},
};

const TIMEOUT: Duration = Duration::from_mins(1);

const FAULTS: [&str; 3] = ["abort", "error", "delay"];

/// Signal number of an aborted process (`SIGABRT`).
const ABORTED: i32 = 6;

/// Resolves when the child reports that the fault was injected.
fn fault_injected(child: &mut Child) -> oneshot::Receiver<()> {
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let (sender, injected) = oneshot::channel();
    tokio::spawn(async move {
        let mut sender = Some(sender);
        while let Ok(Some(line)) = lines.next_line().await {
            if line.contains("planned fault injected") {
                sender.take().map(|sender| sender.send(()));
            }
        }
    });
    injected
}

/// Sends enough data to trigger a checkpoint of the write-ahead log, until this is dropped or the server fails.
fn fill_log(url: &str) -> JoinSet<()> {
    let mut all = JoinSet::new();
    for _ in 0..4 {
        let agent = client::grpc(url).unwrap();
        all.spawn(async move { while agent.send_message(request(text("", &"x".repeat(900_000)))).await.is_ok() {} });
    }
    all
}

/// Kills a server and waits until it has exited and released the file.
async fn kill(mut child: Child) {
    signal(&child, "-KILL");
    timeout(TIMEOUT, child.wait()).await.unwrap().unwrap();
}

/// Runs clients until the fault is injected for the `nth` time, and unless that aborts the server, a while longer.
async fn inject_under_load(point: &str, fault: &str, nth: usize, rng: &mut Rng) {
    let bed = TestBed::new();
    let spec = format!("{point}={fault}@{nth}");
    if point == "claim" {
        leave_running_tasks(&bed, rng).await;
    }
    let (mut child, url) = match try_started(bed.command(&[("FAULT_POINT", &spec)])).await {
        Ok(started) => started,
        // A start commits too, so the process may abort before it prints its address.
        Err(status) => {
            assert_eq!((fault, status.signal()), ("abort", Some(ABORTED)), "{spec}");
            bed.check(rng).await;
            return;
        }
    };
    let injected = fault_injected(&mut child);
    let clients = Clients::start(&url, &bed.history, &bed.unfinished, rng);
    if fault == "abort" {
        clients.expect_stop();
    }
    let load = point.starts_with("log").then(|| fill_log(&url));
    timeout(TIMEOUT, injected).await.unwrap_or_else(|_| panic!("{spec} was not injected")).unwrap();
    drop(load);
    if fault == "abort" {
        let status = timeout(TIMEOUT, child.wait()).await.unwrap().unwrap();
        assert_eq!(status.signal(), Some(ABORTED), "{spec}");
    } else {
        timeout(TIMEOUT, bed.history.grown(100)).await.unwrap();
        clients.expect_stop();
        signal(&child, "-KILL");
        timeout(TIMEOUT, child.wait()).await.unwrap().unwrap();
    }
    clients.join().await;
    bed.check(rng).await;
}

/// Leaves tasks with running turns behind.
async fn leave_running_tasks(bed: &TestBed, rng: &mut Rng) {
    let (mut child, url) = bed.start(&[]).await;
    let agent = client::grpc(&url).unwrap();
    for _ in 0..3 {
        let mut events = agent.send_streaming_message(request(text("", "/hang"))).await.unwrap().into_inner();
        assert!(events.next().await.is_some());
    }
    let clients = Clients::start(&url, &bed.history, &bed.unfinished, rng);
    timeout(TIMEOUT, bed.history.grown(100)).await.unwrap();
    clients.expect_stop();
    signal(&child, "-KILL");
    timeout(TIMEOUT, child.wait()).await.unwrap().unwrap();
    clients.join().await;
}

macro_rules! under_load {
    ($($name:ident: $point:literal, $most:literal;)*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let mut rng = seed();
            for fault in FAULTS {
                let nth = 1 + rng.below($most);
                inject_under_load($point, fault, nth, &mut rng).await;
            }
        })*
    };
}

under_load! {
    fault_before_a_transaction: "batch.begin", 100;
    fault_between_the_tasks_of_a_transaction: "batch.task", 200;
    fault_before_the_commit: "batch.commit", 100;
    fault_between_commit_and_acknowledgement: "batch.answer", 100;
    fault_before_a_checkpoint: "log.before", 1;
    fault_after_a_checkpoint: "log.after", 1;
    fault_before_the_rest_of_a_checkpoint: "log.rest", 1;
    fault_while_interrupted_turns_are_claimed: "claim", 3;
}

/// Before the fencing token is assigned, and after that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_while_the_file_is_opened() {
    let mut rng = seed();
    for point in ["open.fence", "open.done"] {
        for fault in FAULTS {
            let bed = TestBed::new();
            leave_running_tasks(&bed, &mut rng).await;
            let spec = format!("{point}={fault}");
            if fault == "delay" {
                let (child, url) = bed.start(&[("FAULT_POINT", &spec)]).await;
                // Ready after the interrupted turns have been recovered.
                let ready = async {
                    let mut beat = interval(Duration::from_millis(20));
                    while crate::bindings::fetch(format!("{url}/readyz")).await.unwrap().status() != 200 {
                        beat.tick().await;
                    }
                };
                timeout(TIMEOUT, ready).await.unwrap();
                kill(child).await;
            } else {
                let ended = output(bed.command(&[("FAULT_POINT", &spec)])).await;
                let errors = String::from_utf8(ended.stderr).unwrap();
                match fault {
                    "abort" => assert_eq!(ended.status.signal(), Some(ABORTED), "{errors}"),
                    _ => assert!(ended.status.code() == Some(1) && errors.contains("can't open the store"), "{errors}"),
                }
            }
            bed.check(&mut rng).await;
        }
    }
}

/// Faults before and after the copy of a version 1 file, and before and after the file is replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_while_the_schema_is_upgraded() {
    let mut rng = seed();
    let first = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/store/fixtures/1.db");
    for point in ["copy.begin", "copy.made", "copy.done", "tables.commit"] {
        for fault in FAULTS {
            let bed = TestBed::new();
            std::fs::copy(&first, bed.store().join("a2a.db")).unwrap();
            let spec = format!("{point}={fault}");
            if fault == "delay" {
                kill(bed.start(&[MIGRATION_STEP, ("FAULT_POINT", &spec)]).await.0).await;
            } else {
                let ended = output(bed.command(&[MIGRATION_STEP, ("FAULT_POINT", &spec)])).await;
                let errors = String::from_utf8(ended.stderr).unwrap();
                match fault {
                    "abort" => assert_eq!(ended.status.signal(), Some(ABORTED), "{spec}: {errors}"),
                    _ => assert!(
                        ended.status.code() == Some(1) && errors.contains("can't open the store"),
                        "{spec}: {errors}"
                    ),
                }
            }
            // The turn that was running when the file was written is recovered.
            let (child, url) = bed.start(&[MIGRATION_STEP]).await;
            let agent = client::rest(&url).unwrap();
            let ended = async { while !get(&*agent, "new").await.unwrap().state().is_terminal() {} };
            timeout(TIMEOUT, ended).await.unwrap();
            kill(child).await;
            // The program without this migration checks the data.
            let migrated = rusqlite::Connection::open(bed.store().join("a2a.db")).unwrap();
            assert_eq!(migrated.query_row("SELECT tasks FROM step", [], |row| row.get::<_, i32>(0)), Ok(5), "{spec}");
            migrated.execute_batch("DROP TABLE step; PRAGMA user_version = 2").unwrap();
            drop(migrated);
            assert_eq!(bed.check(&mut rng).await.len(), 1, "{spec}");
            // The backup has the old version.
            let before = rusqlite::Connection::open(bed.store().join("a2a.db.v1")).unwrap();
            let version = before.pragma_query_value(None, "user_version", |row| row.get::<_, i32>(0));
            assert_eq!(
                (version, before.query_row("SELECT count(*) FROM task", [], |row| row.get::<_, i32>(0))),
                (Ok(1), Ok(5))
            );
        }
    }
}

/// A sweep deletes each task completely or not at all, and continues after the fault.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_while_expired_tasks_are_deleted() {
    let mut rng = seed();
    for fault in FAULTS {
        let bed = TestBed::new();
        let spec = format!("sweep={fault}@{}", 1 + rng.below(9));
        let soon = [("A2A_RETENTION_FINISHED", "1s"), ("FAULT_POINT", spec.as_str())];
        let (mut child, url) = bed.start(&soon).await;
        let injected = fault_injected(&mut child);
        let agent = client::rest(&url).unwrap();
        for _ in 0..20 {
            send(&*agent, text("", "hello")).await;
        }
        timeout(TIMEOUT, injected).await.unwrap_or_else(|_| panic!("{spec} was not injected")).unwrap();
        if fault == "abort" {
            assert_eq!(timeout(TIMEOUT, child.wait()).await.unwrap().unwrap().signal(), Some(ABORTED));
        } else {
            let deleted = async {
                let mut beat = interval(Duration::from_millis(100));
                while agent.list_tasks(request(ListTasksRequest::default())).await.unwrap().into_inner().total_size > 0
                {
                    beat.tick().await;
                }
            };
            timeout(TIMEOUT, deleted).await.unwrap();
            signal(&child, "-KILL");
            child.wait().await.unwrap();
        }
        bed.check(&mut rng).await;
    }
}
