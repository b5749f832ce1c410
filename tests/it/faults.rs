//! What goes wrong at each place on the way of a commit: the process ends there, SQLite fails there, or it takes its time.
//! Whatever it is, what clients saw is there, and all that was begun comes to its end.

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
    clients::{Clients, Dice},
    killed::{Stage, seed},
    program::{output, signal},
    scenarios::{get, request, send, text},
};

const PATIENCE: Duration = Duration::from_mins(1);

const ACTS: [&str; 3] = ["abort", "error", "delay"];

/// What a child does not survive.
const ABORTED: i32 = 6;

/// Comes when the child says that it has come to the place.
fn happens(child: &mut Child) -> oneshot::Receiver<()> {
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let (happened, happens) = oneshot::channel();
    tokio::spawn(async move {
        let mut happened = Some(happened);
        while let Ok(Some(line)) = lines.next_line().await {
            if line.contains("a fault, as planned") {
                happened.take().map(|it| it.send(()));
            }
        }
    });
    happens
}

/// Sends so much that the log of SQLite must be put into its file, and does not end before that.
fn much(url: &str) -> JoinSet<()> {
    let mut all = JoinSet::new();
    for _ in 0..4 {
        let agent = client::grpc(url).unwrap();
        all.spawn(async move { while agent.send_message(request(text("", &"x".repeat(900_000)))).await.is_ok() {} });
    }
    all
}

/// Kills it, and returns when it is no more: until then the file is its own.
async fn end(mut child: Child) {
    signal(&child, "-KILL");
    timeout(PATIENCE, child.wait()).await.unwrap().unwrap();
}

/// Clients at work, until this happens for the `nth` time; then a while longer, where that is to be survived.
async fn happens_at_work(point: &str, act: &str, nth: usize, dice: &mut Dice) {
    let stage = Stage::new();
    let how = format!("{point}={act}@{nth}");
    if point == "claim" {
        cut(&stage, dice).await;
        if act == "abort" {
            // Perhaps before it says where it listens.
            let ended = output(stage.command(&[("FAULT_POINT", &how)])).await;
            assert_eq!(ended.status.signal(), Some(ABORTED), "{how}");
            stage.check(dice).await;
            return;
        }
    }
    let (mut child, url) = stage.start(&[("FAULT_POINT", &how)]).await;
    let happened = happens(&mut child);
    let clients = Clients::begin(&url, &stage.history, &stage.open, dice);
    if act == "abort" {
        clients.expect_the_end();
    }
    let much = point.starts_with("log").then(|| much(&url));
    timeout(PATIENCE, happened).await.unwrap_or_else(|_| panic!("{how} does not happen")).unwrap();
    drop(much);
    if act == "abort" {
        let status = timeout(PATIENCE, child.wait()).await.unwrap().unwrap();
        assert_eq!(status.signal(), Some(ABORTED), "{how}");
    } else {
        timeout(PATIENCE, stage.history.grown(100)).await.unwrap();
        clients.expect_the_end();
        signal(&child, "-KILL");
        timeout(PATIENCE, child.wait()).await.unwrap().unwrap();
    }
    clients.leave().await;
    stage.check(dice).await;
}

/// Leaves tasks behind at which somebody was at work.
async fn cut(stage: &Stage, dice: &mut Dice) {
    let (mut child, url) = stage.start(&[]).await;
    let agent = client::grpc(&url).unwrap();
    for _ in 0..3 {
        let mut events = agent.send_streaming_message(request(text("", "/hang"))).await.unwrap().into_inner();
        assert!(events.next().await.is_some());
    }
    let clients = Clients::begin(&url, &stage.history, &stage.open, dice);
    timeout(PATIENCE, stage.history.grown(100)).await.unwrap();
    clients.expect_the_end();
    signal(&child, "-KILL");
    timeout(PATIENCE, child.wait()).await.unwrap().unwrap();
    clients.leave().await;
}

macro_rules! at_work {
    ($($name:ident: $point:literal, $most:literal;)*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let mut dice = seed();
            for act in ACTS {
                let nth = 1 + dice.roll($most);
                happens_at_work($point, act, nth, &mut dice).await;
            }
        })*
    };
}

at_work! {
    before_a_transaction: "batch.begin", 100;
    between_the_tasks_of_one: "batch.task", 200;
    before_it_is_committed: "batch.commit", 100;
    after_it_is_committed_and_before_anybody_hears_of_it: "batch.answer", 100;
    before_the_log_is_put_into_the_file: "log.before", 1;
    after_the_log_is_put_into_the_file: "log.after", 1;
    before_the_rest_of_a_long_log_is: "log.rest", 1;
    while_what_was_cut_is_claimed: "claim", 3;
}

/// Before it has a number, and after that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_it_is_opened() {
    let mut dice = seed();
    for point in ["open.fence", "open.done"] {
        for act in ACTS {
            let stage = Stage::new();
            cut(&stage, &mut dice).await;
            let how = format!("{point}={act}");
            if act == "delay" {
                let (child, url) = stage.start(&[("FAULT_POINT", &how)]).await;
                // Once what was cut has been recovered.
                let ready = async {
                    let mut beat = interval(Duration::from_millis(20));
                    while reqwest::get(format!("{url}/readyz")).await.unwrap().status() != 200 {
                        beat.tick().await;
                    }
                };
                timeout(PATIENCE, ready).await.unwrap();
                end(child).await;
            } else {
                let ended = output(stage.command(&[("FAULT_POINT", &how)])).await;
                let said = String::from_utf8(ended.stderr).unwrap();
                match act {
                    "abort" => assert_eq!(ended.status.signal(), Some(ABORTED), "{said}"),
                    _ => assert!(ended.status.code() == Some(1) && said.contains("can't keep tasks"), "{said}"),
                }
            }
            stage.check(&mut dice).await;
        }
    }
}

/// While a file of the first version is copied, before it is replaced by what it becomes, and after that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_its_tables_are_brought_to_a_newer_version() {
    let mut dice = seed();
    let first = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/store/fixtures/1.db");
    for point in ["copy.begin", "copy.made", "copy.done", "tables.commit"] {
        for act in ACTS {
            let stage = Stage::new();
            std::fs::copy(&first, stage.store().join("a2a.db")).unwrap();
            let how = format!("{point}={act}");
            if act == "delay" {
                end(stage.start(&[("FAULT_POINT", &how)]).await.0).await;
            } else {
                let ended = output(stage.command(&[("FAULT_POINT", &how)])).await;
                let said = String::from_utf8(ended.stderr).unwrap();
                match act {
                    "abort" => assert_eq!(ended.status.signal(), Some(ABORTED), "{how}: {said}"),
                    _ => assert!(ended.status.code() == Some(1) && said.contains("can't keep tasks"), "{how}: {said}"),
                }
            }
            // What ran when it was written is taken up.
            let (child, url) = stage.start(&[]).await;
            let agent = client::rest(&url).unwrap();
            let over = async { while !get(&*agent, "new").await.unwrap().state().is_terminal() {} };
            timeout(PATIENCE, over).await.unwrap();
            end(child).await;
            assert_eq!(stage.check(&mut dice).await.len(), 1, "{how}");
            // It is kept as it was.
            let before = rusqlite::Connection::open(stage.store().join("a2a.db.v1")).unwrap();
            let version = before.pragma_query_value(None, "user_version", |it| it.get::<_, i32>(0));
            assert_eq!(
                (version, before.query_row("SELECT count(*) FROM task", [], |it| it.get::<_, i32>(0))),
                (Ok(1), Ok(4))
            );
        }
    }
}

/// While what has been kept for long enough is deleted: what is deleted is so whole, and it goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_what_is_old_is_deleted() {
    let mut dice = seed();
    for act in ACTS {
        let stage = Stage::new();
        let how = format!("sweep={act}@{}", 1 + dice.roll(9));
        let soon = [("A2A_RETENTION_FINISHED", "1s"), ("A2A_RETENTION_EVERY", "1s"), ("FAULT_POINT", how.as_str())];
        let (mut child, url) = stage.start(&soon).await;
        let happened = happens(&mut child);
        let agent = client::rest(&url).unwrap();
        for _ in 0..20 {
            send(&*agent, text("", "hello")).await;
        }
        timeout(PATIENCE, happened).await.unwrap_or_else(|_| panic!("{how} does not happen")).unwrap();
        if act == "abort" {
            assert_eq!(timeout(PATIENCE, child.wait()).await.unwrap().unwrap().signal(), Some(ABORTED));
        } else {
            let gone = async {
                let mut beat = interval(Duration::from_millis(100));
                while agent.list_tasks(request(ListTasksRequest::default())).await.unwrap().into_inner().total_size > 0
                {
                    beat.tick().await;
                }
            };
            timeout(PATIENCE, gone).await.unwrap();
            signal(&child, "-KILL");
            child.wait().await.unwrap();
        }
        stage.check(&mut dice).await;
    }
}
