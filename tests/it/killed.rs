//! A server that is killed again and again, while clients of every binding and both versions are at work: what they saw is
//! there, once and in its order, streams go on where they broke, and nothing is left at work.

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
    clients::{Clients, Dice, Open, settle},
    history::{self, History, Left, Line},
    program::{a2a, signal, started},
    scenarios::{remaining, send, stream, text},
    store::place::Opened,
    ways::server,
};

const PATIENCE: Duration = Duration::from_secs(30);

/// A number of the environment.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|it| it.parse().ok())
}

/// What is random in a run follows from this number, which is printed, and can be given.
#[expect(clippy::print_stdout, reason = "a run that fails is to be had again")]
pub(crate) fn seed() -> Dice {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = number("SEED").unwrap_or(now.as_secs());
    println!("SEED={seed}");
    Dice(seed)
}

/// A file of tasks, a server that has it now and then, and clients that remember what they saw.
pub(crate) struct Stage {
    directory: TempDir,
    pub(crate) history: Arc<History>,
    pub(crate) open: Arc<Open>,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("store")).unwrap();
        let history = Arc::new(History::new(&directory.path().join("history.jsonl")));
        Self { directory, history, open: Arc::default() }
    }

    /// Where the file of tasks is.
    pub(crate) fn store(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    pub(crate) async fn start(&self, variables: &[(&str, &str)]) -> (Child, String) {
        started(self.command(variables)).await
    }

    /// The server, which has these variables too.
    pub(crate) fn command(&self, variables: &[(&str, &str)]) -> Command {
        let store = format!("sqlite:{}", self.store().join("a2a.db").display());
        let mut command = a2a(&["serve", "--listen", "127.0.0.1:0", "--log-filter", "error", "--store", &store]);
        command.envs(variables.iter().copied());
        command
    }

    /// Starts it once more, lets all that is open come to its end, ends it, and holds what was seen against what is there.
    pub(crate) async fn check(&self, dice: &mut Dice) -> Left {
        let (mut child, url) = self.start(&[]).await;
        settle(&url, &self.history, &self.open, dice).await;
        signal(&child, "-TERM");
        assert_eq!(timeout(PATIENCE, child.wait()).await.unwrap().unwrap().code(), Some(0));
        let lines = history::read(&self.directory.path().join("history.jsonl"));
        let left = Left::read(&self.store()).await;
        let wrong = left.check(&lines);
        assert!(wrong.is_empty(), "{} things are wrong, the first of them: {}", wrong.len(), wrong[0]);
        assert_eq!(left.unsettled(), Vec::<&_>::new());
        left
    }
}

/// `KILLS=50` kills it more often, and `SEED` says when.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_clients_saw_outlives_every_kill() {
    let (stage, mut dice) = (Stage::new(), seed());
    for _ in 0..number("KILLS").unwrap_or(15) {
        let (mut child, url) = stage.start(&[]).await;
        let clients = Clients::begin(&url, &stage.history, &stage.open, &mut dice);
        timeout(PATIENCE, stage.history.grown(dice.roll(1500))).await.unwrap();
        clients.expect_the_end();
        signal(&child, "-KILL");
        timeout(PATIENCE, child.wait()).await.unwrap().unwrap();
        clients.leave().await;
    }
    assert!(stage.check(&mut dice).await.len() > 20);
}

/// Who checks notices what is wrong: each thing that may not be is done to a history that is right.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_is_noticed() {
    let opened = Opened::sqlite(Options::default());
    let agent = server().store(Arc::clone(&opened.store)).into_service();
    let events = remaining(stream(&*agent, text("", "/stream 6 0")).await).await;
    let task = send(&*agent, text("", "hello")).await;
    let line = |it: &Event| Line::Event {
        stream: 1,
        cursor: it.cursor().map(|it| it.as_str().to_owned()),
        event: Box::new(it.message().clone()),
    };
    let begin = |after: Option<&Event>| {
        let after = after.and_then(|it| it.cursor()).map(|it| it.as_str().to_owned());
        Line::Stream { stream: 1, door: "x".into(), after }
    };
    let left = Left::of(&*opened.store).await;
    let check = |begin: Line, events: Vec<Event>| {
        let lines: Vec<_> =
            [begin].into_iter().chain(events.iter().map(line)).chain([Line::End { stream: 1 }]).collect();
        left.check(&lines)
    };
    assert_eq!(left.len(), 2);
    assert_eq!(check(begin(None), events.clone()), Vec::<String>::new());
    assert!(events.len() > 4 && events.last().unwrap().ends() == Ends::Task, "{events:?}");
    for at in 0..events.len() {
        assert_eq!(check(begin(Some(&events[at])), events[at + 1..].to_vec()), Vec::<String>::new());
        // A gap, an event twice, two in the wrong order, and one that nobody said.
        let (mut gap, mut twice, mut order, mut other) =
            (events.clone(), events.clone(), events.clone(), events.clone());
        gap.remove(at);
        twice.insert(at, events[at].clone());
        order.swap(at, (at + 1) % events.len());
        let mut message = events[at].message().clone();
        match message.payload.as_mut().unwrap() {
            Payload::Task(it) => it.status.as_mut().unwrap().set_state(TaskState::Working),
            Payload::StatusUpdate(it) => it.status.as_mut().unwrap().set_state(TaskState::Canceled),
            Payload::ArtifactUpdate(it) => it.artifact.as_mut().unwrap().name = "another".into(),
            Payload::Message(it) => it.message_id.clear(),
        }
        other[at] = message.into();
        for it in [gap, twice, order, other] {
            assert_eq!(check(begin(None), it.clone()).len(), 1, "{at}: {it:?}");
        }
        if at > 0 {
            assert_eq!(
                check(begin(Some(&events[at - 1])), events[at + 1..].to_vec()).len(),
                usize::from(at + 1 < events.len())
            );
        }
    }
    let answer = |task| vec![Line::Answer { door: "x".into(), task: Box::new(task) }];
    assert_eq!(left.check(&answer(task.clone())), Vec::<String>::new());
    let mut lost = task.clone();
    lost.id.push('x');
    let mut other = task;
    other.artifacts.clear();
    other.history.clear();
    for it in [lost, other] {
        assert_eq!(left.check(&answer(it)).len(), 1);
    }
}
