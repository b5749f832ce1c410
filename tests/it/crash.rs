//! Crash recovery under load: a server is killed repeatedly while clients of every binding and both versions are active.
//! Everything they observed is durable, once and in order, streams resume, and no turn is left running.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use a2a_service::{
    event::{Ends, Event},
    pb::v1::{TaskState, stream_response::Payload},
    store::sqlite::Options,
};
use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    time::timeout,
};

use crate::{
    bindings::server,
    history::{self, History, Line, StoreContents},
    program::{a2a, signal, started},
    scenarios::{remaining, send, stream, text},
    store::opened::OpenedStore,
    workload::{Clients, Rng, Unfinished, finish_all},
};

const TIMEOUT: Duration = Duration::from_secs(30);

/// Reads a number from the environment.
pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

/// Random numbers with a seed that is printed, and that the environment variable `SEED` sets.
#[expect(clippy::print_stdout, reason = "the seed is needed to reproduce a failure")]
pub(crate) fn seed() -> Rng {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = number("SEED").unwrap_or(now.as_secs());
    println!("SEED={seed}");
    Rng(seed)
}

/// Variable with a further migration for the program, in debug builds.
pub(crate) const MIGRATION_STEP: (&str, &str) =
    ("MIGRATION_STEP", "CREATE TABLE step(tasks INTEGER) STRICT; INSERT INTO step SELECT count(*) FROM task");

/// Database, the server that uses it, and the history of its clients.
pub(crate) struct TestBed {
    directory: TempDir,
    pub(crate) history: Arc<History>,
    pub(crate) unfinished: Arc<Unfinished>,
}

impl TestBed {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("store")).unwrap();
        let history = Arc::new(History::new(&directory.path().join("history.jsonl")));
        Self { directory, history, unfinished: Arc::default() }
    }

    /// Directory of the database.
    pub(crate) fn store(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    pub(crate) async fn start(&self, variables: &[(&str, &str)]) -> (Child, String) {
        started(self.command(variables)).await
    }

    /// Command of the server with additional environment variables.
    pub(crate) fn command(&self, variables: &[(&str, &str)]) -> Command {
        let store = format!("sqlite:{}", self.store().join("a2a.db").display());
        let mut command = a2a(&["serve", "--listen", "127.0.0.1:0", "--log-filter", "error", "--store", &store]);
        command.envs(variables.iter().copied());
        command
    }

    /// Restarts the server, finishes all work, stops it, and compares the history with the store.
    pub(crate) async fn check(&self, rng: &mut Rng) -> StoreContents {
        let (mut child, url) = self.start(&[]).await;
        finish_all(&url, &self.history, &self.unfinished, rng).await;
        signal(&child, "-TERM");
        assert_eq!(timeout(TIMEOUT, child.wait()).await.unwrap().unwrap().code(), Some(0));
        let lines = history::read(&self.directory.path().join("history.jsonl"));
        let contents = StoreContents::read(&self.store()).await;
        let errors = contents.check(&lines);
        assert!(errors.is_empty(), "{} inconsistencies, the first: {}", errors.len(), errors[0]);
        assert_eq!(contents.unfinished(), Vec::<&_>::new());
        contents
    }
}

/// `KILLS` sets the number of kills, `SEED` their times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_observations_survive_every_kill() {
    let (bed, mut rng) = (TestBed::new(), seed());
    for _ in 0..number("KILLS").unwrap_or(5) {
        let (mut child, url) = bed.start(&[]).await;
        let clients = Clients::start(&url, &bed.history, &bed.unfinished, &mut rng);
        timeout(TIMEOUT, bed.history.grown(rng.below(1500))).await.unwrap();
        clients.expect_stop();
        signal(&child, "-KILL");
        timeout(TIMEOUT, child.wait()).await.unwrap().unwrap();
        clients.join().await;
    }
    assert!(bed.check(&mut rng).await.len() > 20);
}

/// Checks the checker: each kind of corruption of a correct history is detected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_checker_detects_inconsistencies() {
    let opened = OpenedStore::sqlite(Options::default());
    let agent = server().store(Arc::clone(&opened.store)).into_service();
    let events = remaining(stream(&*agent, text("", "/stream 6 0")).await).await;
    let task = send(&*agent, text("", "hello")).await;
    let line = |event: &Event| Line::Event {
        stream: 1,
        cursor: event.cursor().map(|cursor| cursor.as_str().to_owned()),
        event: Box::new(event.response().clone()),
    };
    let begin = |after: Option<&Event>| {
        let after = after.and_then(|event| event.cursor()).map(|cursor| cursor.as_str().to_owned());
        Line::Stream { stream: 1, binding: "x".into(), after }
    };
    let contents = StoreContents::read_store(&*opened.store).await;
    let check = |begin: Line, events: Vec<Event>| {
        let lines: Vec<_> =
            [begin].into_iter().chain(events.iter().map(line)).chain([Line::End { stream: 1 }]).collect();
        contents.check(&lines)
    };
    assert_eq!(contents.len(), 2);
    assert_eq!(check(begin(None), events.clone()), Vec::<String>::new());
    assert!(events.len() > 4 && events.last().unwrap().ends() == Ends::Task, "{events:?}");
    for at in 0..events.len() {
        assert_eq!(check(begin(Some(&events[at])), events[at + 1..].to_vec()), Vec::<String>::new());
        // A gap, a duplicate, a wrong order, and an event that was never sent.
        let (mut gap, mut twice, mut order, mut other) =
            (events.clone(), events.clone(), events.clone(), events.clone());
        gap.remove(at);
        twice.insert(at, events[at].clone());
        order.swap(at, (at + 1) % events.len());
        let mut message = events[at].response().clone();
        match message.payload.as_mut().unwrap() {
            Payload::Task(task) => task.status.as_mut().unwrap().set_state(TaskState::Working),
            Payload::StatusUpdate(update) => update.status.as_mut().unwrap().set_state(TaskState::Canceled),
            Payload::ArtifactUpdate(update) => update.artifact.as_mut().unwrap().name = "another".into(),
            Payload::Message(message) => message.message_id.clear(),
        }
        other[at] = message.into();
        for events in [gap, twice, order, other] {
            assert_eq!(check(begin(None), events.clone()).len(), 1, "{at}: {events:?}");
        }
        if at > 0 {
            assert_eq!(
                check(begin(Some(&events[at - 1])), events[at + 1..].to_vec()).len(),
                usize::from(at + 1 < events.len())
            );
        }
    }
    let reply = |task| vec![Line::Reply { binding: "x".into(), task: Box::new(task) }];
    assert_eq!(contents.check(&reply(task.clone())), Vec::<String>::new());
    let mut lost = task.clone();
    lost.id.push('x');
    let mut other = task;
    other.artifacts.clear();
    other.history.clear();
    for task in [lost, other] {
        assert_eq!(contents.check(&reply(task)).len(), 1);
    }
}
