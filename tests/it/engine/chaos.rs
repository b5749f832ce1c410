//! Everybody at once, over a store that fails at random: whatever anybody was shown, the log has it.

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
    gate::{Act, Gate},
    store::place::Opened,
};

/// Numbers that look random and are the same in each run.
#[derive(Clone)]
struct Dice(u64);

impl Dice {
    /// One of `0..n`.
    fn roll(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let it = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let it = (it ^ (it >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((it ^ (it >> 31)) % u64::try_from(n).unwrap()).unwrap()
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        if of.is_empty() { None } else { of.get(self.roll(of.len())) }
    }

    fn text(&mut self) -> String {
        const WORDS: [&str; 6] = ["work", "work:on", "out:x", "pass:3", "auth:in", "out:y"];
        const ENDS: [&str; 9] =
            ["done", "done:bye", "ask:what", "ask:more", "sign:in", "reject:no", "fail", "reply:hi", "hang"];
        let mut words: Vec<_> = (0..self.roll(6)).map(|_| WORDS[self.roll(6)]).collect();
        words.push(ENDS[self.roll(9)]);
        words.join(" ")
    }
}

/// What all callers together were shown.
#[derive(Default)]
struct Seen {
    ids: Mutex<Vec<String>>,
    tasks: Mutex<Vec<Task>>,
    streams: Mutex<Vec<Vec<Event>>>,
    /// Messages that were taken in: the task, and the id.
    taken: Mutex<Vec<(String, String)>>,
}

impl Seen {
    fn task(&self, task: Task) {
        self.id(&task.id);
        self.tasks.lock().push(task);
    }

    fn id(&self, id: &str) {
        let mut ids = self.ids.lock();
        if !ids.iter().any(|it| it == id) {
            ids.push(id.to_owned());
        }
    }
}

/// What a call may be refused with where the store is away, or takes the task away.
fn is_legal(error: &Error) -> bool {
    let may_be = [
        ErrorKind::Unavailable,
        ErrorKind::TaskEnded,
        ErrorKind::TaskNotCancelable,
        ErrorKind::TaskNotFound,
        ErrorKind::ResourceExhausted,
    ];
    may_be.contains(&error.kind())
}

async fn reads(mut events: Events, mut dice: Dice, seen: &Seen) {
    let (mut all, most) = (Vec::new(), if dice.roll(4) == 0 { dice.roll(5) } else { usize::MAX });
    while all.len() < most {
        // A task that waits for its caller may wait for ever.
        match timeout(Duration::from_millis(25), events.next()).await.unwrap_or(None) {
            Some(Ok(it)) => {
                if let Some(Payload::Task(task)) = it.payload() {
                    seen.id(&task.id);
                }
                all.push(it);
            }
            Some(Err(cut)) => {
                assert_eq!(Error::from(cut).kind(), ErrorKind::Unavailable);
                break;
            }
            None => break,
        }
        if dice.roll(3) == 0 {
            yield_now().await;
        }
    }
    seen.streams.lock().push(all);
}

async fn calls(client: Client, mut dice: Dice, seen: Arc<Seen>) {
    for _ in 0..25 {
        for _ in 0..dice.roll(8) {
            yield_now().await;
        }
        let id = dice.pick(&seen.ids.lock()).cloned();
        let (text, known) = (dice.text(), id.clone().unwrap_or_default());
        let message = if dice.roll(3) == 0 { Message::user(text) } else { to(&known, &text) };
        let taken = (message.task_id.clone(), message.message_id.clone());
        let client = if dice.roll(3) == 0 { client.hasty() } else { client.clone() };
        let refused = match dice.roll(10) {
            0..4 => match client.answer(message).await {
                Ok(send_message_response::Payload::Task(it)) => {
                    seen.taken.lock().push((it.id.clone(), taken.1));
                    seen.task(it);
                    None
                }
                Ok(send_message_response::Payload::Message(it)) => {
                    assert_eq!((taken.0.as_str(), it.text()), ("", "hi".into()));
                    None
                }
                Err(it) => Some(it),
            },
            4..6 => match client.stream(message).await {
                Ok(it) => {
                    reads(it, dice.clone(), &seen).await;
                    None
                }
                Err(it) => Some(it),
            },
            6 => client.cancel(&known).await.map(|it| seen.task(it)).err(),
            7 => client.get(&known).await.map(|it| seen.task(it)).err(),
            8 => {
                let events = seen.streams.lock().last().and_then(|it| it.last().cloned());
                let cursor = events.as_ref().filter(|it| id_of_any(it) == Some(&known)).and_then(Event::cursor);
                match client.resume(&known, cursor).await {
                    Ok(it) => {
                        reads(it, dice.clone(), &seen).await;
                        None
                    }
                    Err(it) => Some(it),
                }
            }
            _ => {
                let list =
                    a2a_service::pb::v1::ListTasksRequest { include_artifacts: Some(true), ..Default::default() };
                client.list(list).await.map(|it| it.tasks.into_iter().for_each(|it| seen.task(it))).err()
            }
        };
        if let Some(it) = refused.filter(|_| !known.is_empty()) {
            assert!(is_legal(&it), "{it}");
        }
    }
}

fn id_of_any(event: &Event) -> Option<&String> {
    match event.payload()? {
        Payload::Task(it) => Some(&it.id),
        Payload::StatusUpdate(it) => Some(&it.task_id),
        Payload::ArtifactUpdate(it) => Some(&it.task_id),
        Payload::Message(_) => None,
    }
}

/// Which store it is.
#[derive(Clone, Copy, PartialEq)]
enum Over {
    /// One that commits in the caller.
    Memory,
    /// One that is asked in turn.
    Lane,
    /// One that is asked in turn, and fails.
    Failing,
    /// One in a file, that fails too.
    File,
}

async fn round(number: u64, over: Over) {
    let mut dice = Dice(number);
    let file = (over == Over::File).then(|| Opened::sqlite(Options::default()));
    let gate = file.as_ref().map_or_else(Gate::memory, |it| Gate::new(Arc::clone(&it.store)));
    let store: Arc<dyn Store> = if over == Over::Memory { Arc::new(Memory::default()) } else { gate.store() };
    if over == Over::Lane {
        gate.open();
    }
    let mut limits = Limits::default();
    (limits.turn, limits.wait) = (Duration::from_millis(150), Some(Duration::from_millis(50)));
    (limits.cancel, limits.waiting) = (Duration::from_millis(5), 4);
    limits.real_after = Duration::from_millis(10);
    let bench = limited(Arc::clone(&store), limits, script);
    let seen = Arc::new(Seen::default());
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let dice = Dice(number ^ u64::try_from(dice.roll(usize::MAX)).unwrap());
        callers.spawn(calls(bench.client.clone(), dice, Arc::clone(&seen)));
    }
    while !callers.is_empty() {
        const ACTS: [Act; 8] =
            [Act::Pass, Act::Pass, Act::Pass, Act::Pass, Act::Fail, Act::LoseAnswer, Act::LoseAnswer, Act::Stale];
        for _ in 0..dice.roll(20) {
            gate.tell(ACTS[dice.roll(ACTS.len())]);
            yield_now().await;
        }
        pass(u64::try_from(dice.roll(6)).unwrap()).await;
        while let Some(it) = callers.try_join_next() {
            it.unwrap();
        }
    }
    gate.open();
    // What still runs comes to its deadline; and then nothing is in memory.
    pass(500).await;
    bench.empty().await;

    let (ids, mut folds) = (seen.ids.lock().clone(), BTreeMap::new());
    for id in &ids {
        let log = bench.log(&*store, id).await;
        dense(&log);
        let (mut all, mut now) = (Vec::new(), Task::default());
        for it in &log {
            task::apply(&mut now, it.payload().unwrap());
            all.push(now.clone());
        }
        assert_eq!(bench.get(id).await.unwrap(), now);
        folds.insert(id.as_str(), (log, all));
    }
    for it in &*seen.tasks.lock() {
        let (_, all) = &folds[it.id.as_str()];
        assert!(all.contains(it), "nobody wrote {it:?}");
    }
    for (task, id) in &*seen.taken.lock() {
        let (_, all) = &folds[task.as_str()];
        let history = &all.last().unwrap().history;
        assert_eq!(history.iter().filter(|it| it.message_id == *id).count(), 1, "{task} lost {id}");
    }
    for stream in &*seen.streams.lock() {
        assert!(stream.is_sorted_by(|a, b| a.seq() < b.seq()), "{stream:?}");
        for it in stream {
            let Some(id) = id_of_any(it) else { continue };
            let (log, all) = &folds[id.as_str()];
            let n = usize::try_from(it.seq()).unwrap() - 1;
            match it.payload() {
                Some(Payload::Task(task)) => assert_eq!(task, &all[n]),
                _ => assert_eq!((it, it.position(), it.mark()), (&log[n], log[n].position(), log[n].mark())),
            }
        }
        // Between two events that were shown, only hidden ones are missing.
        for pair in stream.windows(2) {
            let (log, _) = &folds[id_of_any(&pair[0]).unwrap().as_str()];
            let between = log.iter().filter(|it| it.seq() > pair[0].seq() && it.seq() < pair[1].seq());
            assert!(between.clone().all(|it| it.mark().hidden), "{stream:?}");
        }
    }
    let ended: BTreeSet<_> =
        seen.tasks.lock().iter().filter(|it| it.state().is_terminal()).map(|it| it.id.clone()).collect();
    for id in ended {
        let (log, _) = &folds[id.as_str()];
        assert_eq!(log.iter().filter(|it| it.ends() == Ends::Task).count(), 1);
    }
    let unfinished = [TaskState::Submitted, TaskState::Working];
    let left = bench.listed_all().await.into_iter().filter(|it| unfinished.contains(it)).count();
    // Only what was taken away by another writer, who is not there, is left behind.
    assert!(matches!(over, Over::Failing | Over::File) || left == 0, "{left} tasks are still on their way");
}

#[tokio::test(start_paused = true)]
async fn whatever_was_shown_was_written() {
    for number in 0..30 {
        round(number, Over::Failing).await;
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_was_shown_was_written_in_the_caller() {
    for number in 0..30 {
        round(number, Over::Memory).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_was_shown_on_two_threads_was_written() {
    tokio::join!(round(1, Over::Memory), round(2, Over::Lane), round(3, Over::Lane), round(4, Over::Memory));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_was_shown_of_a_file_was_written() {
    let over = Over::File;
    tokio::join!(round(5, over), round(6, over), round(7, over), round(8, over));
}
