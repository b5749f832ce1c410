//! Randomized concurrent calls over a failing store: every observed task and event must be in the log.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use a2a_service::{
    error::{Error, ErrorKind},
    event::{Ends, Event},
    pb::v1::{Message, Task, TaskState, send_message_response, stream_response::Payload},
    service::Limits,
    store::{Store, memory::Memory, sqlite::Options},
    task,
};
use futures::StreamExt as _;
use parking_lot::Mutex;
use tokio::{task::yield_now, time::timeout};

use super::support::*;
use crate::{
    gate::{CommitOutcome, Gate},
    store::opened::OpenedStore,
};

/// Deterministic pseudo-random numbers (`SplitMix64`).
#[derive(Clone)]
struct Rng(u64);

impl Rng {
    /// Returns a number in `0..n`.
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let bits = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((bits ^ (bits >> 31)) % u64::try_from(n).unwrap()).unwrap()
    }

    fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        if items.is_empty() { None } else { items.get(self.below(items.len())) }
    }

    fn text(&mut self) -> String {
        const WORDS: [&str; 6] = ["work", "work:on", "out:x", "pass:3", "auth:in", "out:y"];
        const ENDS: [&str; 9] =
            ["done", "done:bye", "ask:what", "ask:more", "sign:in", "reject:no", "fail", "reply:hi", "hang"];
        let mut words: Vec<_> = (0..self.below(6)).map(|_| WORDS[self.below(6)]).collect();
        words.push(ENDS[self.below(9)]);
        words.join(" ")
    }
}

/// Everything that the clients observed.
#[derive(Default)]
struct Seen {
    ids: Mutex<Vec<String>>,
    tasks: Mutex<Vec<Task>>,
    streams: Mutex<Vec<Vec<Event>>>,
    /// Accepted messages: task id and message id.
    accepted: Mutex<Vec<(String, String)>>,
}

impl Seen {
    fn task(&self, task: Task) {
        self.id(&task.id);
        self.tasks.lock().push(task);
    }

    fn id(&self, id: &str) {
        let mut ids = self.ids.lock();
        if !ids.iter().any(|known| known == id) {
            ids.push(id.to_owned());
        }
    }
}

/// Returns whether a request may fail with this error while the store is unavailable or another writer owns the task.
fn is_expected(error: &Error) -> bool {
    let expected = [
        ErrorKind::Unavailable,
        ErrorKind::TaskEnded,
        ErrorKind::TaskNotCancelable,
        ErrorKind::TaskNotFound,
        ErrorKind::ResourceExhausted,
    ];
    expected.contains(&error.kind())
}

async fn read_events(mut events: Events, mut rng: Rng, seen: &Seen) {
    let (mut all, most) = (Vec::new(), if rng.below(4) == 0 { rng.below(5) } else { usize::MAX });
    while all.len() < most {
        // A task that waits for input may never end its stream.
        match timeout(Duration::from_millis(25), events.next()).await.unwrap_or(None) {
            Some(Ok(event)) => {
                if let Some(Payload::Task(task)) = event.payload() {
                    seen.id(&task.id);
                }
                all.push(event);
            }
            Some(Err(status)) => {
                assert_eq!(Error::from(status).kind(), ErrorKind::Unavailable);
                break;
            }
            None => break,
        }
        if rng.below(3) == 0 {
            yield_now().await;
        }
    }
    seen.streams.lock().push(all);
}

async fn run_client(client: Client, mut rng: Rng, seen: Arc<Seen>) {
    for _ in 0..25 {
        for _ in 0..rng.below(8) {
            yield_now().await;
        }
        let id = rng.pick(&seen.ids.lock()).cloned();
        let (text, known) = (rng.text(), id.clone().unwrap_or_default());
        let message = if rng.below(3) == 0 { Message::user(text) } else { follow_up(&known, &text) };
        let accepted = (message.task_id.clone(), message.message_id.clone());
        let client = if rng.below(3) == 0 { client.non_blocking() } else { client.clone() };
        let refused = match rng.below(10) {
            0..4 => match client.send_payload(message).await {
                Ok(send_message_response::Payload::Task(task)) => {
                    seen.accepted.lock().push((task.id.clone(), accepted.1));
                    seen.task(task);
                    None
                }
                Ok(send_message_response::Payload::Message(message)) => {
                    assert_eq!((accepted.0.as_str(), message.text()), ("", "hi".into()));
                    None
                }
                Err(error) => Some(error),
            },
            4..6 => match client.stream(message).await {
                Ok(events) => {
                    read_events(events, rng.clone(), &seen).await;
                    None
                }
                Err(error) => Some(error),
            },
            6 => client.cancel(&known).await.map(|task| seen.task(task)).err(),
            7 => client.get(&known).await.map(|task| seen.task(task)).err(),
            8 => {
                let events = seen.streams.lock().last().and_then(|stream| stream.last().cloned());
                let cursor = events.as_ref().filter(|event| id_of_any(event) == Some(&known)).and_then(Event::cursor);
                match client.resume(&known, cursor).await {
                    Ok(events) => {
                        read_events(events, rng.clone(), &seen).await;
                        None
                    }
                    Err(error) => Some(error),
                }
            }
            _ => {
                let list =
                    a2a_service::pb::v1::ListTasksRequest { include_artifacts: Some(true), ..Default::default() };
                client.list(list).await.map(|page| page.tasks.into_iter().for_each(|task| seen.task(task))).err()
            }
        };
        if let Some(error) = refused.filter(|_| !known.is_empty()) {
            assert!(is_expected(&error), "{error}");
        }
    }
}

fn id_of_any(event: &Event) -> Option<&String> {
    match event.payload()? {
        Payload::Task(task) => Some(&task.id),
        Payload::StatusUpdate(update) => Some(&update.task_id),
        Payload::ArtifactUpdate(update) => Some(&update.task_id),
        Payload::Message(_) => None,
    }
}

/// Store of a round.
#[derive(Clone, Copy, PartialEq)]
enum StoreKind {
    /// Memory store, which commits on the caller's task.
    Memory,
    /// Memory store behind an open gate, which commits on a lane.
    Lane,
    /// Memory store behind a gate that fails at random.
    Failing,
    /// SQLite file behind a gate that fails at random.
    File,
}

async fn round(number: u64, kind: StoreKind) {
    let mut rng = Rng(number);
    let file = (kind == StoreKind::File).then(|| OpenedStore::sqlite(Options::default()));
    let gate = file.as_ref().map_or_else(Gate::memory, |opened| Gate::new(Arc::clone(&opened.store)));
    let store: Arc<dyn Store> = if kind == StoreKind::Memory { Arc::new(Memory::default()) } else { gate.store() };
    if kind == StoreKind::Lane {
        gate.open();
    }
    let mut limits = Limits::default();
    (limits.turn_deadline, limits.send_timeout) = (Duration::from_millis(150), Some(Duration::from_millis(50)));
    (limits.cancel_grace, limits.queued_messages) = (Duration::from_millis(5), 4);
    limits.task_delay = Duration::from_millis(10);
    let bench = with_limits(Arc::clone(&store), limits, scripted);
    let seen = Arc::new(Seen::default());
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let rng = Rng(number ^ u64::try_from(rng.below(usize::MAX)).unwrap());
        callers.spawn(run_client(bench.client.clone(), rng, Arc::clone(&seen)));
    }
    while !callers.is_empty() {
        const OUTCOMES: [CommitOutcome; 8] = [
            CommitOutcome::Pass,
            CommitOutcome::Pass,
            CommitOutcome::Pass,
            CommitOutcome::Pass,
            CommitOutcome::Fail,
            CommitOutcome::LoseReply,
            CommitOutcome::LoseReply,
            CommitOutcome::Stale,
        ];
        for _ in 0..rng.below(20) {
            gate.queue(OUTCOMES[rng.below(OUTCOMES.len())]);
            yield_now().await;
        }
        sleep_ms(u64::try_from(rng.below(6)).unwrap()).await;
        while let Some(result) = callers.try_join_next() {
            result.unwrap();
        }
    }
    gate.open();
    // Turns that still run reach their deadline; then no task is in memory.
    sleep_ms(500).await;
    bench.wait_until_evicted().await;

    let (ids, mut folds) = (seen.ids.lock().clone(), BTreeMap::new());
    for id in &ids {
        let log = bench.log(&*store, id).await;
        assert_dense(&log);
        let (mut all, mut now) = (Vec::new(), Task::default());
        for event in &log {
            task::apply(&mut now, event.payload().unwrap());
            all.push(now.clone());
        }
        assert_eq!(bench.get(id).await.unwrap(), now);
        folds.insert(id.as_str(), (log, all));
    }
    for task in &*seen.tasks.lock() {
        let (_, all) = &folds[task.id.as_str()];
        assert!(all.contains(task), "not in the log: {task:?}");
    }
    for (task, message) in &*seen.accepted.lock() {
        let (_, all) = &folds[task.as_str()];
        let history = &all.last().unwrap().history;
        assert_eq!(
            history.iter().filter(|entry| entry.message_id == *message).count(),
            1,
            "{task} lost message {message}"
        );
    }
    for stream in &*seen.streams.lock() {
        assert!(stream.is_sorted_by(|a, b| a.seq() < b.seq()), "{stream:?}");
        for event in stream {
            let Some(id) = id_of_any(event) else { continue };
            let (log, all) = &folds[id.as_str()];
            let n = usize::try_from(event.seq()).unwrap() - 1;
            match event.payload() {
                Some(Payload::Task(task)) => assert_eq!(task, &all[n]),
                _ => assert_eq!((event, event.position(), event.mark()), (&log[n], log[n].position(), log[n].mark())),
            }
        }
        // Only hidden events may be missing between two consecutive events of a stream.
        for pair in stream.windows(2) {
            let (log, _) = &folds[id_of_any(&pair[0]).unwrap().as_str()];
            let between = log.iter().filter(|event| event.seq() > pair[0].seq() && event.seq() < pair[1].seq());
            assert!(between.clone().all(|event| event.mark().hidden), "{stream:?}");
        }
    }
    let ended: BTreeSet<_> =
        seen.tasks.lock().iter().filter(|task| task.state().is_terminal()).map(|task| task.id.clone()).collect();
    for id in ended {
        let (log, _) = &folds[id.as_str()];
        assert_eq!(log.iter().filter(|event| event.ends() == Ends::Task).count(), 1);
    }
    let unfinished = [TaskState::Submitted, TaskState::Working];
    let left = bench.all_states().await.into_iter().filter(|state| unfinished.contains(state)).count();
    // Only tasks claimed by a nonexistent other writer (`Stale`) stay unfinished.
    assert!(matches!(kind, StoreKind::Failing | StoreKind::File) || left == 0, "{left} tasks are unfinished");
}

#[tokio::test(start_paused = true)]
async fn observed_events_are_durable_over_a_failing_store() {
    for number in 0..30 {
        round(number, StoreKind::Failing).await;
    }
}

#[tokio::test(start_paused = true)]
async fn observed_events_are_durable_over_a_memory_store() {
    for number in 0..30 {
        round(number, StoreKind::Memory).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn observed_events_are_durable_on_two_threads() {
    tokio::join!(
        round(1, StoreKind::Memory),
        round(2, StoreKind::Lane),
        round(3, StoreKind::Lane),
        round(4, StoreKind::Memory)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn observed_events_are_durable_over_a_failing_file() {
    let kind = StoreKind::File;
    tokio::join!(round(5, kind), round(6, kind), round(7, kind), round(8, kind));
}
