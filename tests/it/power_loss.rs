//! Power loss and disk errors: acknowledged data survives a failure at every system call of a short run that writes.
//!
//! The server process is traced with strace; without strace these tests are skipped. The trace yields the disk contents
//! at each moment, and the bytes that had been sent on sockets, which are what a client may rely on.

mod disk;
mod trace;

use std::{path::Path, process::Stdio, time::Duration};

use a2a_service::{
    client,
    event::Cursor,
    pb::v1::{StreamResponse, Task},
    store::{
        TaskStore as _,
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
    crash::{MIGRATION_STEP, TestBed, seed},
    history::{Line, StoreContents},
    program::{a2a, signal, started},
    scenarios::{get, remaining, request, send, stream, text},
};

const TIMEOUT: Duration = Duration::from_mins(1);

/// Returns whether the prerequisites of these tests are missing.
#[expect(clippy::print_stdout, reason = "a skipped test must not look like a passed one")]
fn skipped() -> bool {
    let missing = !trace::is_available();
    if missing {
        println!("skipped: strace is missing or may not trace");
    }
    missing
}

/// Temporary directory in memory if possible, where a sync is cheap.
pub(crate) fn memory_directory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Returns the system calls of a server run, from its start to a clean exit, with this work in between.
async fn traced(
    directory: &Path,
    durability: &str,
    variables: &[(&str, &str)],
    work: impl AsyncFnOnce(String),
) -> Vec<(Call, usize)> {
    let into = tempfile::tempdir().unwrap();
    let into = into.path().join("trace");
    let store = format!("sqlite:{}", directory.join("a2a.db").display());
    let plain = a2a(&[]);
    let traced = trace::strace(&into);
    let mut command = Command::new(&traced[0]);
    command.args(&traced[1..]).arg(plain.as_std().get_program());
    command.args(["serve", "--listen", "127.0.0.1:0", "--log-filter", "error", "--store", &store]);
    command
        .args(["--store-durability", durability])
        .envs(variables.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    let (mut child, url) = started(command).await;
    work(url).await;
    let id = child.id().unwrap().to_string();
    signal(&child, "-TERM");
    assert_eq!(timeout(TIMEOUT, child.wait()).await.unwrap().unwrap().code(), Some(0));
    // strace exits a moment after the process that it traces.
    let whole = async {
        let mut beat = tokio::time::interval(Duration::from_millis(10));
        let last = || std::fs::read_to_string(&into).unwrap().lines().last().unwrap_or_default().to_owned();
        while !last().split_whitespace().eq([&*id, "+++", "exited", "with", "0", "+++"]) {
            beat.tick().await;
        }
    };
    timeout(TIMEOUT, whole).await.unwrap();
    trace::read(&into)
}

/// Performs a few sends and streams.
async fn send_and_stream(url: String) {
    let agent = client::rest(&url).unwrap();
    for _ in 0..2 {
        send(&*agent, text("", "hello")).await;
        let asked = send(&*agent, text("", "/ask what?")).await;
        assert!(remaining(stream(&*agent, text("", "/stream 8 2")).await).await.len() > 3);
        send(&*agent, text(&asked.id, "this")).await;
    }
}

/// Appends what a client has learnt from these bytes of a socket.
fn record_sent(bytes: &[u8], lines: &mut Vec<Line>) {
    fn json<T: DeserializeOwned>(text: &str) -> T {
        serde_json::Deserializer::from_str(text).into_iter().next().unwrap().unwrap()
    }
    let text = String::from_utf8_lossy(bytes);
    // At the start of a line, to exclude `x-request-id`.
    let mut events = text.match_indices("\nid: ").map(|(at, _)| at + 1).peekable();
    if events.peek().is_none()
        && let Some(at) = text.find(r#"{"task":{"#)
    {
        let task: Box<Task> = json(&text[at + r#"{"task":"#.len()..]);
        lines.push(Line::Reply { binding: "REST".into(), task });
    }
    for at in events {
        let (cursor, data) = text[at + 4..].split_once("\ndata: ").unwrap();
        let event: Box<StreamResponse> = json(data);
        // Each task has one stream.
        let cursor = Cursor::from_text(cursor).unwrap();
        let (task, at) = cursor.parts().unwrap();
        let stream = task.bytes().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        if at.seq == 1 {
            lines.push(Line::Stream { stream, binding: "REST".into(), after: None });
        }
        lines.push(Line::Event { stream, cursor: Some(cursor.as_str().to_owned()), event });
    }
}

/// Returns the inconsistencies of the files in themselves, and those between the files and the recorded lines.
async fn inconsistencies(directory: &Path, lines: &[Line]) -> (Vec<String>, Vec<String>) {
    let store = match Sqlite::open(&directory.join("a2a.db"), Options::default()) {
        Ok(store) => store,
        Err(error) => return (vec![format!("the file cannot be opened: {error}")], Vec::new()),
    };
    let contents = StoreContents::read_store(&store).await;
    let mut errors = contents.check(&[]);
    let cursor = |line: &Line| match line {
        Line::Event { cursor, .. } => cursor.as_deref().and_then(Cursor::from_text),
        Line::Reply { .. } | Line::Stream { .. } | Line::End { .. } => None,
    };
    // A fencing token must not be reused, even if the data written under it is lost.
    let reused = lines
        .iter()
        .filter_map(cursor)
        .any(|cursor| cursor.parts().is_some_and(|(_, at)| at.fence >= store.first_fence()));
    if reused {
        errors.push(format!("fencing token {} is reused", store.first_fence()));
    }
    (errors, contents.check(lines))
}

/// Checks the disk contents after every call that changes the disk: they are consistent, and where `has_all` is set they
/// contain everything that was sent. Returns how often something was missing that may be.
async fn fail_at_every_call(durability: &str, ends: &[(End, bool)]) -> usize {
    let mut rng = seed();
    let directory = memory_directory();
    let calls = traced(directory.path(), durability, &[], send_and_stream).await;
    let mut disk = Disk::new(directory.path());
    let (mut lines, mut moments, mut incomplete) = (Vec::new(), 0, 0);
    for (number, (call, before)) in calls.iter().enumerate() {
        if let Call::Send(bytes) = call {
            record_sent(bytes, &mut lines);
        } else if !disk.apply(number, call, *before) {
            continue;
        }
        for (end, has_all) in ends {
            let left = memory_directory();
            disk.write_remaining(*end, left.path(), &mut rng);
            let (errors, missing) = inconsistencies(left.path(), &lines).await;
            let all = calls.len();
            assert!(errors.is_empty(), "{end:?} after call {number} of {all}: {errors:?}");
            assert!(missing.is_empty() || !has_all, "{end:?} after call {number} of {all}: {missing:?}");
            incomplete += usize::from(!missing.is_empty());
        }
        moments += 1;
    }
    // The run had the expected size.
    let answers = lines.iter().filter(|line| matches!(line, Line::Reply { .. })).count();
    let events = lines.iter().filter(|line| matches!(line, Line::Event { .. })).count();
    assert!(answers == 6 && events > 6 && moments > 100, "{answers} answers, {events} events, {moments} moments");
    incomplete
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_data_survives_power_loss_with_durability_power() {
    if !skipped() {
        fail_at_every_call("power", &[(End::Forgotten, true), (End::Torn, true)]).await;
    }
}

/// With this durability a power loss may lose the most recent commits, and in this test it does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_data_survives_a_kill_with_durability_process() {
    if !skipped() {
        let ends = [(End::Killed, true), (End::Forgotten, false), (End::Torn, false)];
        assert!(fail_at_every_call("process", &ends).await > 0);
    }
}

/// The backup of an upgraded file is on the disk before any part of the file changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backup_is_durable_before_the_file_is_upgraded() {
    // A release build has no further migration.
    if skipped() || !cfg!(debug_assertions) {
        return;
    }
    let (mut rng, directory) = (seed(), memory_directory());
    let first = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/store/fixtures/1.db");
    std::fs::copy(&first, directory.path().join("a2a.db")).unwrap();
    let mut disk = Disk::of(directory.path());
    let calls = traced(directory.path(), "process", &[MIGRATION_STEP], async |_| {}).await;
    let version_and_tasks = |path: &Path| {
        let db = Connection::open(path).unwrap();
        let number = |sql| db.query_row(sql, [], |row| row.get::<_, i32>(0)).unwrap();
        (number("PRAGMA user_version"), number("SELECT count(*) FROM task"))
    };
    let (mut old, mut new) = (0, 0);
    for (number, (call, before)) in calls.iter().enumerate() {
        if !disk.apply(number, call, *before) {
            continue;
        }
        for end in [End::Forgotten, End::Torn] {
            let left = memory_directory();
            disk.write_remaining(end, left.path(), &mut rng);
            let (version, tasks) = version_and_tasks(&left.path().join("a2a.db"));
            assert_eq!(tasks, 5, "{end:?} after call {number}");
            if version == 1 {
                old += 1;
            } else {
                new += 1;
                assert_eq!(version_and_tasks(&left.path().join("a2a.db.v1")), (1, 5), "{end:?} after call {number}");
            }
        }
    }
    assert!(old > 10 && new > 10, "{old} {new}");
}

/// Injects errors into the system calls of a server until dropped.
struct FaultInjection {
    strace: Child,
    into: TempDir,
}

impl FaultInjection {
    async fn start(server: &Child, call: &str, error: &str, when: &str) -> Self {
        let into = tempfile::tempdir().unwrap();
        let mut command = Command::new("strace");
        command.args(["-f", "-p", &server.id().unwrap().to_string(), "-o"]).arg(into.path().join("trace"));
        command.args(["-e", &format!("trace={call}"), "-e", &format!("inject={call}:error={error}:when={when}")]);
        let mut strace = command.stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        // strace reports when it is attached to all threads.
        let mut lines = BufReader::new(strace.stderr.take().unwrap()).lines();
        let attached = timeout(TIMEOUT, lines.next_line()).await.unwrap().unwrap().unwrap();
        assert!(attached.contains("attached"), "{attached}");
        Self { strace, into }
    }

    /// Stops the injection and returns the number of failed calls.
    async fn end(mut self) -> usize {
        signal(&self.strace, "-INT");
        timeout(TIMEOUT, self.strace.wait()).await.unwrap().unwrap();
        let trace = std::fs::read_to_string(self.into.path().join("trace")).unwrap();
        trace.matches("(INJECTED)").count()
    }
}

/// Each write and sync of a send fails once: the failure is not reported, and nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_failed_write_or_sync_is_retried() {
    if skipped() {
        return;
    }
    let (bed, mut rng) = (TestBed::new(), seed());
    let (mut child, url) = bed.start(&[("A2A_STORE_DURABILITY", "power")]).await;
    let agent = client::rest(&url).unwrap();
    for (call, error, least) in [("pwrite64", "EIO", 3), ("pwrite64", "ENOSPC", 3), ("fsync", "EIO", 1)] {
        for n in 1.. {
            let injection = FaultInjection::start(&child, call, error, &n.to_string()).await;
            let task = timeout(TIMEOUT, send(&*agent, text("", "hello"))).await.unwrap();
            bed.history.record(&Line::Reply { binding: "REST".into(), task: Box::new(task) });
            if injection.end().await == 0 {
                assert!(n > least, "{call} is called {n} times");
                break;
            }
        }
    }
    signal(&child, "-KILL");
    child.wait().await.unwrap();
    bed.check(&mut rng).await;
}

/// While the disk is full or fails, sends are rejected and reads are served; afterwards the server recovers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_or_failing_disk_rejects_sends_until_it_recovers() {
    if skipped() {
        return;
    }
    for (call, error) in [("pwrite64", "ENOSPC"), ("fsync", "EIO")] {
        let (bed, mut rng) = (TestBed::new(), seed());
        // `store.max_size` must not be reported as the cause.
        let settings = [("A2A_STORE_DURABILITY", "power"), ("A2A_SEND_TIMEOUT", "1s"), ("A2A_STORE_MAX_SIZE", "1GiB")];
        let (mut child, url) = bed.start(&settings).await;
        let agent = client::rest(&url).unwrap();
        let record = |task: Task| bed.history.record(&Line::Reply { binding: "REST".into(), task: Box::new(task) });
        let stored = send(&*agent, text("", "hello")).await;
        let injection = FaultInjection::start(&child, call, error, "1+").await;
        let refused = timeout(TIMEOUT, agent.send_message(request(text("", "hello")))).await.unwrap();
        assert!(refused.is_err(), "{call} {error}: {refused:?}");
        assert_eq!(get(&*agent, &stored.id).await.unwrap(), stored);
        assert_eq!(crate::bindings::fetch(format!("{url}/readyz")).await.unwrap().status(), 503, "{call} {error}");
        assert_eq!(crate::bindings::fetch(format!("{url}/healthz")).await.unwrap().status(), 200);
        assert!(injection.end().await > 0);
        record(stored);
        let ready = async {
            let mut beat = tokio::time::interval(Duration::from_millis(50));
            while crate::bindings::fetch(format!("{url}/readyz")).await.unwrap().status() != 200 {
                beat.tick().await;
            }
        };
        timeout(TIMEOUT, ready).await.unwrap();
        record(timeout(TIMEOUT, send(&*agent, text("", "hello"))).await.unwrap());
        signal(&child, "-KILL");
        child.wait().await.unwrap();
        bed.check(&mut rng).await;
    }
}
