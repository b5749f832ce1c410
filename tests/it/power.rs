//! What was acknowledged is there, when the power fails and when the disk does: at every call of a short run that wrote.
//!
//! The server is the program itself, and its calls are seen by strace, without which these tests have nothing to say.
//! From them follows what a disk would have had at each moment, and what had left on a socket: the strictest of clients.

mod disk;
mod trace;

use std::{path::Path, process::Stdio, time::Duration};

use a2a_service::{
    client,
    event::Cursor,
    pb::v1::{StreamResponse, Task},
    store::{
        Store as _,
        sqlite::{Options, Sqlite},
    },
};
use rusqlite::Connection;
use serde::de::DeserializeOwned;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    time::timeout,
};

use self::{
    disk::{Disk, End},
    trace::Call,
};
use crate::{
    history::{Left, Line},
    killed::{Stage, seed},
    program::{a2a, signal, started},
    scenarios::{get, remaining, request, send, stream, text},
};

const PATIENCE: Duration = Duration::from_mins(1);

/// Whether what these tests need is there.
#[expect(clippy::print_stdout, reason = "who reads that it passed is to know that it did nothing")]
fn skipped() -> bool {
    let missing = !trace::can_be_had();
    if missing {
        println!("skipped: there is no strace that may trace");
    }
    missing
}

/// A directory where a sync costs nothing, if there is one.
fn memory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// The calls of a run from its start to a clean end, with this in between.
async fn traced(directory: &Path, durability: &str, work: impl AsyncFnOnce(String)) -> Vec<(Call, usize)> {
    let into = tempfile::tempdir().unwrap();
    let into = into.path().join("trace");
    let store = format!("sqlite:{}", directory.join("a2a.db").display());
    let plain = a2a(&[]);
    let traced = trace::strace(&into);
    let mut command = Command::new(&traced[0]);
    command.args(&traced[1..]).arg(plain.as_std().get_program());
    command.args(["serve", "--listen", "127.0.0.1:0", "--log-filter", "error", "--store", &store]);
    command.args(["--store-durability", durability]).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let (mut child, url) = started(command).await;
    work(url).await;
    let id = child.id().unwrap().to_string();
    signal(&child, "-TERM");
    assert_eq!(timeout(PATIENCE, child.wait()).await.unwrap().unwrap().code(), Some(0));
    // Who traces ends a moment later than what is traced.
    let whole = async {
        let mut beat = tokio::time::interval(Duration::from_millis(10));
        let last = || std::fs::read_to_string(&into).unwrap().lines().last().unwrap_or_default().to_owned();
        while !last().split_whitespace().eq([&*id, "+++", "exited", "with", "0", "+++"]) {
            beat.tick().await;
        }
    };
    timeout(PATIENCE, whole).await.unwrap();
    trace::read(&into)
}

/// Some sends and streams.
async fn some(url: String) {
    let agent = client::rest(&url).unwrap();
    for _ in 0..2 {
        send(&*agent, text("", "hello")).await;
        let asked = send(&*agent, text("", "/ask what?")).await;
        assert!(remaining(stream(&*agent, text("", "/stream 8 2")).await).await.len() > 3);
        send(&*agent, text(&asked.id, "this")).await;
    }
}

/// What whoever was at the other end of a socket has seen with these bytes.
fn seen(bytes: &[u8], lines: &mut Vec<Line>) {
    fn json<T: DeserializeOwned>(text: &str) -> T {
        serde_json::Deserializer::from_str(text).into_iter().next().unwrap().unwrap()
    }
    let text = String::from_utf8_lossy(bytes);
    // At the beginning of a line: `x-request-id` is none.
    let mut events = text.match_indices("\nid: ").map(|(at, _)| at + 1).peekable();
    if events.peek().is_none()
        && let Some(at) = text.find(r#"{"task":{"#)
    {
        let task: Box<Task> = json(&text[at + r#"{"task":"#.len()..]);
        lines.push(Line::Answer { door: "REST".into(), task });
    }
    for at in events {
        let (cursor, data) = text[at + 4..].split_once("\ndata: ").unwrap();
        let event: Box<StreamResponse> = json(data);
        // There is one stream of each task.
        let cursor = Cursor::from_text(cursor).unwrap();
        let (task, at) = cursor.parts().unwrap();
        let stream = task.bytes().fold(0_u64, |sum, it| sum.wrapping_mul(31).wrapping_add(it.into()));
        if at.seq == 1 {
            lines.push(Line::Stream { stream, door: "REST".into(), after: None });
        }
        lines.push(Line::Event { stream, cursor: Some(cursor.as_str().to_owned()), event });
    }
}

/// What is wrong with what is left, in itself and beside what was seen.
async fn wrong(directory: &Path, lines: &[Line]) -> (Vec<String>, Vec<String>) {
    let store = match Sqlite::open(&directory.join("a2a.db"), Options::default()) {
        Ok(it) => it,
        Err(error) => return (vec![format!("it can't be opened: {error}")], Vec::new()),
    };
    let left = Left::of(&store).await;
    let mut wrong = left.check(&[]);
    let cursor = |line: &Line| match line {
        Line::Event { cursor, .. } => cursor.as_deref().and_then(Cursor::from_text),
        Line::Answer { .. } | Line::Stream { .. } | Line::End { .. } => None,
    };
    // Not even where it may forget what was written by it.
    let again = lines.iter().filter_map(cursor).any(|it| it.parts().is_some_and(|it| it.1.fence >= store.fence()));
    if again {
        wrong.push(format!("the number {} of an opening is given again", store.fence()));
    }
    (wrong, left.check(lines))
}

/// What is left at every call that changes what is on the disk, when that is the last: nothing is wrong in itself, and
/// where it is to have all that was seen, it has. Says how often anything was missing that need not be there.
async fn at_every_call(durability: &str, ends: &[(End, bool)]) -> usize {
    let mut dice = seed();
    let directory = memory();
    let calls = traced(directory.path(), durability, some).await;
    let mut disk = Disk::new(directory.path());
    let (mut lines, mut moments, mut forgotten) = (Vec::new(), 0, 0);
    for (number, (call, before)) in calls.iter().enumerate() {
        if let Call::Send(bytes) = call {
            seen(bytes, &mut lines);
        } else if !disk.apply(number, call, *before) {
            continue;
        }
        for (end, has_all) in ends {
            let left = memory();
            disk.left(*end, left.path(), &mut dice);
            let (wrong, missing) = wrong(left.path(), &lines).await;
            let all = calls.len();
            assert!(wrong.is_empty(), "{end:?} after call {number} of {all}: {wrong:?}");
            assert!(missing.is_empty() || !has_all, "{end:?} after call {number} of {all}: {missing:?}");
            forgotten += usize::from(!missing.is_empty());
        }
        moments += 1;
    }
    // The run was what it should be.
    let answers = lines.iter().filter(|it| matches!(it, Line::Answer { .. })).count();
    let events = lines.iter().filter(|it| matches!(it, Line::Event { .. })).count();
    assert!(answers == 6 && events > 6 && moments > 100, "{answers} answers, {events} events, {moments} moments");
    forgotten
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_outlives_the_power() {
    if !skipped() {
        at_every_call("power", &[(End::Forgotten, true), (End::Torn, true)]).await;
    }
}

/// Without its power the machine may forget the last moments, and nothing else; and here it does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_outlives_the_process() {
    if !skipped() {
        let ends = [(End::Killed, true), (End::Forgotten, false), (End::Torn, false)];
        assert!(at_every_call("process", &ends).await > 0);
    }
}

/// A file that is brought to a newer version is kept as it was: that copy is on the disk before anything of the file is new.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_is_there_before_its_file_changes() {
    if skipped() {
        return;
    }
    let (mut dice, directory) = (seed(), memory());
    let first = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/store/fixtures/1.db");
    std::fs::copy(&first, directory.path().join("a2a.db")).unwrap();
    let mut disk = Disk::of(directory.path());
    let calls = traced(directory.path(), "process", async |_| {}).await;
    let of = |path: &Path| {
        let db = Connection::open(path).unwrap();
        let number = |sql| db.query_row(sql, [], |it| it.get::<_, i32>(0)).unwrap();
        (number("PRAGMA user_version"), number("SELECT count(*) FROM task"))
    };
    let (mut old, mut new) = (0, 0);
    for (number, (call, before)) in calls.iter().enumerate() {
        if !disk.apply(number, call, *before) {
            continue;
        }
        for end in [End::Forgotten, End::Torn] {
            let left = memory();
            disk.left(end, left.path(), &mut dice);
            let (version, tasks) = of(&left.path().join("a2a.db"));
            assert_eq!(tasks, 4, "{end:?} after call {number}");
            if version == 1 {
                old += 1;
            } else {
                new += 1;
                assert_eq!(of(&left.path().join("a2a.db.v1")), (1, 4), "{end:?} after call {number}");
            }
        }
    }
    assert!(old > 10 && new > 10, "{old} {new}");
}

/// A server whose calls fail, from now on until this is dropped.
struct Failing {
    strace: Child,
    into: TempDir,
}

impl Failing {
    async fn begin(server: &Child, call: &str, error: &str, when: &str) -> Self {
        let into = tempfile::tempdir().unwrap();
        let mut command = Command::new("strace");
        command.args(["-f", "-p", &server.id().unwrap().to_string(), "-o"]).arg(into.path().join("trace"));
        command.args(["-e", &format!("trace={call}"), "-e", &format!("inject={call}:error={error}:when={when}")]);
        let mut strace = command.stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        // It says so once it has all threads.
        let mut lines = BufReader::new(strace.stderr.take().unwrap()).lines();
        let said = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().unwrap();
        assert!(said.contains("attached"), "{said}");
        Self { strace, into }
    }

    /// Lets go of it, and says how often a call has failed.
    async fn end(mut self) -> usize {
        signal(&self.strace, "-INT");
        timeout(PATIENCE, self.strace.wait()).await.unwrap().unwrap();
        let trace = std::fs::read_to_string(self.into.path().join("trace")).unwrap();
        trace.matches("(INJECTED)").count()
    }
}

/// Every call by which a send writes or syncs fails, one after the other: nobody hears of it, and nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_fails_once_is_made_up_for() {
    if skipped() {
        return;
    }
    let (stage, mut dice) = (Stage::new(), seed());
    let (mut child, url) = stage.start(&[("A2A_STORE_DURABILITY", "power")]).await;
    let agent = client::rest(&url).unwrap();
    for (call, error, least) in [("pwrite64", "EIO", 3), ("pwrite64", "ENOSPC", 3), ("fsync", "EIO", 1)] {
        for n in 1.. {
            let failing = Failing::begin(&child, call, error, &n.to_string()).await;
            let task = timeout(PATIENCE, send(&*agent, text("", "hello"))).await.unwrap();
            stage.history.see(&Line::Answer { door: "REST".into(), task: Box::new(task) });
            if failing.end().await == 0 {
                assert!(n > least, "{call} is called {n} times");
                break;
            }
        }
    }
    signal(&child, "-KILL");
    child.wait().await.unwrap();
    stage.check(&mut dice).await;
}

/// A disk that is full, or does not answer, for a while: who sends is told, what was there is read, and then it goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_takes_nothing_is_told_and_forgiven() {
    if skipped() {
        return;
    }
    for (call, error) in [("pwrite64", "ENOSPC"), ("fsync", "EIO")] {
        let (stage, mut dice) = (Stage::new(), seed());
        // A limit of the file is not taken for the reason.
        let settings = [("A2A_STORE_DURABILITY", "power"), ("A2A_WAIT", "1s"), ("A2A_STORE_MAX_SIZE", "1GiB")];
        let (mut child, url) = stage.start(&settings).await;
        let agent = client::rest(&url).unwrap();
        let see = |task: Task| stage.history.see(&Line::Answer { door: "REST".into(), task: Box::new(task) });
        let there = send(&*agent, text("", "hello")).await;
        let failing = Failing::begin(&child, call, error, "1+").await;
        let refused = timeout(PATIENCE, agent.send_message(request(text("", "hello")))).await.unwrap();
        assert!(refused.is_err(), "{call} {error}: {refused:?}");
        assert_eq!(get(&*agent, &there.id).await.unwrap(), there);
        assert_eq!(reqwest::get(format!("{url}/readyz")).await.unwrap().status(), 503, "{call} {error}");
        assert_eq!(reqwest::get(format!("{url}/healthz")).await.unwrap().status(), 200);
        assert!(failing.end().await > 0);
        see(there);
        let ready = async {
            let mut beat = tokio::time::interval(Duration::from_millis(50));
            while reqwest::get(format!("{url}/readyz")).await.unwrap().status() != 200 {
                beat.tick().await;
            }
        };
        timeout(PATIENCE, ready).await.unwrap();
        see(timeout(PATIENCE, send(&*agent, text("", "hello"))).await.unwrap());
        signal(&child, "-KILL");
        child.wait().await.unwrap();
        stage.check(&mut dice).await;
    }
}
