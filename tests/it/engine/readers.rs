//! Readers: slow ones, many, and those that come at any moment.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use a2a_service::{
    agent::{self, End, Turn, Updates},
    error::{Error, ErrorKind},
    event::{Ends, Event},
    pb::v1::{ListTasksRequest, Message, Part, Task, TaskState},
    service::Limits,
    store::{Retention, Store, memory::Memory},
    task,
};
use futures::{FutureExt as _, StreamExt as _};
use tokio::{
    sync::Notify,
    task::{JoinSet, yield_now},
};

use super::support::*;
use crate::gate::Gate;

const EVENTS: usize = 10_000;

fn stores() -> [Arc<dyn Store>; 2] {
    [Arc::new(Memory::default()), Gate::opened()]
}

/// What a caller makes of a stream: its first event is a task, and the others happen to that.
fn folded(events: &[Event]) -> Task {
    let mut task = task_of(&events[0]).clone();
    events[1..].iter().filter_map(Event::payload).for_each(|it| task::apply(&mut task, it));
    task
}

/// One end at most, and nothing behind it.
fn one_end(events: &[Event]) -> bool {
    let ends = events.iter().position(|it| it.ends() == Ends::Task);
    assert!(ends.is_none_or(|it| it + 1 == events.len()), "{events:?}");
    ends.is_some()
}

async fn burst(turn: Turn, out: Updates) -> Result<End, agent::Error> {
    let mut answer = out.artifact("a").id("a");
    for n in 0..turn.text().parse()? {
        // A KiB each, so that each is an event.
        answer.text(format!("{n:01024}")).await?;
    }
    Ok(End::Completed(None))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_stops_reads_all_of_it_later() {
    for store in stores() {
        let bench = bench(store, burst);
        let mut slow = bench.stream(Message::user((EVENTS - 2).to_string())).await.unwrap();
        let first = next(&mut slow).await;
        let id = id_of(&first);
        let mut fast = bench.resume(&id, first.cursor()).await.unwrap();
        let mut others = JoinSet::new();
        for _ in 0..10 {
            let mut events = bench.resume(&id, first.cursor()).await.unwrap();
            others.spawn(async move { rest(&mut events).await.len() });
        }
        // The agent ends, the others read, and so does who comes later; others' tasks are not in the way.
        assert_eq!(rest(&mut fast).await.len(), EVENTS - 1);
        assert!(others.join_all().await.iter().all(|it| *it == EVENTS - 1));
        assert_eq!(bench.send(Message::user("1")).await.unwrap().state(), TaskState::Completed);
        let mut later = bench.resume(&id, first.cursor()).await.unwrap();
        assert_eq!(next(&mut later).await.seq(), 2);
        let all: Vec<_> = std::iter::once(first).chain(rest(&mut slow).await).collect();
        dense(&all);
        let task = folded(&all);
        assert_eq!(task, bench.get(&id).await.unwrap());
        let said = task.artifacts[0].parts.iter().map(|it| it.as_text().unwrap().parse::<usize>().unwrap());
        assert!(said.eq(0..EVENTS - 2));
        drop((slow, fast, later));
        bench.empty().await;
    }
}

/// However a subscription and the end of a task meet: the one sees the other, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_subscribes_at_any_moment_sees_one_end() {
    for store in stores() {
        let bench = bench(store, |turn: Turn, out: Updates| async move {
            for n in 0..turn.text().parse()? {
                yield_now().await;
                out.progress(n.to_string()).await?;
            }
            Ok(End::Completed(None))
        });
        let (mut late, mut early) = (0, 0);
        for n in 0..400 {
            let id = bench.hasty().send(Message::user((n % 20).to_string())).await.unwrap().id;
            for _ in 0..n % 7 {
                yield_now().await;
            }
            match bench.subscribe(&id).await {
                Ok(mut events) => {
                    let seen = rest(&mut events).await;
                    assert!(one_end(&seen));
                    assert_eq!(folded(&seen), bench.get(&id).await.unwrap());
                    early += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::TaskEnded);
                    assert_eq!(bench.state(&id).await, TaskState::Completed);
                    late += 1;
                }
            }
        }
        assert!(early > 10, "{early} in time, {late} too late");
        bench.empty().await;
    }
}

/// The stream of a follow-up begins with its task and shows its turn, whatever the task did at that moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_a_follow_up_is_whole() {
    for store in stores() {
        let bench = bench(Arc::clone(&store), |turn: Turn, out: Updates| async move {
            for n in 0..turn.text().len() {
                yield_now().await;
                out.artifact("a").id("a").appending().text(format!("{}{n}", turn.text())).await?;
            }
            Ok(End::InputRequired(Message::agent("more?")))
        });
        for n in 0..200 {
            let id = bench.hasty().send(Message::user("x".repeat(n % 9))).await.unwrap().id;
            for _ in 0..n % 5 {
                yield_now().await;
            }
            let sent = bench.sending(to(&id, "y"));
            let mut streams = [bench.stream(to(&id, "zz")).await.unwrap(), bench.stream(to(&id, "q")).await.unwrap()];
            let [one, other] = &mut streams;
            let (one, other) = tokio::join!(rest(one), rest(other));
            drop(streams);
            sent.await.unwrap().unwrap();
            bench.empty().await;
            let log = bench.log(&*store, &id).await;
            dense(&log);
            for (seen, text) in [(one, "zz"), (other, "q")] {
                // The task as of its message, which is the newest that was said then.
                let (first, last) = (seen[0].seq(), seen.last().unwrap().seq());
                assert_eq!(texts(task_of(&seen[0])).last().map(String::as_str), Some(text));
                let before: Vec<_> = log.iter().filter(|it| it.seq() <= first).cloned().collect();
                assert_eq!(task_of(&seen[0]), &folded(&before));
                // Then all that happens until its turn ends, and not the messages of others.
                let after = log.iter().filter(|it| it.seq() > first && it.seq() <= last && !it.mark().hidden);
                assert!(seen[1..].iter().eq(after), "{seen:?}");
                let written = folded(&seen).artifacts;
                let mut written = written.iter().flat_map(|it| &it.parts).filter_map(Part::as_text);
                assert!(written.any(|it| it.contains(text)), "{seen:?}");
                assert!((1..=3).contains(&seen.iter().filter(|it| it.ends() == Ends::Turn).count()));
                assert_eq!(seen.last().map(Event::ends), Some(Ends::Turn));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_goes_on_after_its_cursor() {
    for store in stores() {
        let bench = bench(store, script);
        let mut events = bench.stream(Message::user("work:one out:x ask:what")).await.unwrap();
        let first = rest(&mut events).await;
        let id = id_of(&first[0]);
        for n in 0..first.len() {
            // Not ended: what came after, and then what will come.
            let mut events = bench.resume(&id, first[n].cursor()).await.unwrap();
            assert_eq!(seqs(&ready(&mut events)), seqs(&first[n + 1..]));
        }
        let mut live = bench.resume(&id, first.last().unwrap().cursor()).await.unwrap();
        assert!(live.next().now_or_never().is_none());
        bench.send(to(&id, "out:y done")).await.unwrap();
        // The follow-up has a number, and no stream carries it, but WORKING behind it.
        let seen = rest(&mut live).await;
        assert_eq!((seqs(&seen), states(&seen)), (vec![6, 7, 8], vec![TaskState::Working, TaskState::Completed]));
        drop((events, live));
        bench.empty().await;
        let all: Vec<_> = first.into_iter().chain(seen).collect();
        for n in 0..all.len() {
            let mut events = bench.resume(&id, all[n].cursor()).await.unwrap();
            let seen = rest(&mut events).await;
            assert_eq!(seen, all[n + 1..]);
            assert!(seen.iter().zip(&all[n + 1..]).all(|(a, b)| (a.position(), a.mark()) == (b.position(), b.mark())));
        }
        assert_eq!(kind(bench.subscribe(&id).await), ErrorKind::TaskEnded);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cursor_that_fits_no_log_is_answered_with_the_task() {
    for store in stores() {
        let bench = bench(store, script);
        let other = bench.send(Message::user("ask:what")).await.unwrap().id;
        let id = bench.send(Message::user("work ask:what")).await.unwrap().id;
        for ended in [false, true] {
            if ended {
                bench.send(to(&id, "done")).await.unwrap();
            }
            let task = bench.get(&id).await.unwrap();
            for wrong in ["x", "1.2.3", "..", &format!("{other}.1.1"), &format!("{id}.7.2"), &format!("{id}.1.99")] {
                let cursor = a2a_service::event::Cursor::from_text(wrong).unwrap();
                let mut events = bench.resume(&id, Some(&cursor)).await.unwrap();
                let seen = if ended { rest(&mut events).await } else { ready(&mut events) };
                assert_eq!(seen.len(), 1, "{wrong}");
                assert_eq!(task_of(&seen[0]), &task, "{wrong}");
                // From where one can go on.
                let mut events = bench.resume(&id, seen[0].cursor()).await.unwrap();
                assert_eq!(ready(&mut events), []);
            }
        }
        bench.empty().await;
    }
}

#[tokio::test(start_paused = true)]
async fn so_much_of_the_history_is_shown_as_is_asked_for() {
    for store in stores() {
        let bench = bench(store, script);
        let id = bench.send(Message::user("work:a work:b ask:what")).await.unwrap().id;
        let all = ["work:a work:b ask:what", "a", "b", "what", "work:c ask:more"];
        let shown = |length: Option<usize>| all[length.map_or(0, |it| all.len().saturating_sub(it))..].to_vec();
        let task = bench.with_history(2).send(to(&id, "work:c ask:more")).await.unwrap();
        assert_eq!(texts(&task), ["work:c ask:more", "c"]);
        let task = bench.with_history(0).hasty().send(Message::user("hang")).await.unwrap();
        assert_eq!(texts(&task), ["hang"], "asked again, in other words");
        for (length, asked) in
            [(None, None), (Some(0), Some(0)), (Some(1), Some(1)), (Some(3), Some(3)), (Some(50), Some(50))]
        {
            let client = bench.with_history(asked);
            let task = bench.get_with(&id, asked).await.unwrap();
            assert_eq!(texts(&task).len(), length.map_or(6, |it| it.min(6)), "{asked:?}");
            let listed = ListTasksRequest { history_length: asked, ..Default::default() };
            let listed = bench.list(listed).await.unwrap().tasks.into_iter().find(|it| it.id == id).unwrap();
            assert_eq!(listed.history, task.history, "{asked:?}");
            // A new task, blocking and streamed.
            let task = client.send(Message::user("work:a work:b done")).await.unwrap();
            assert_eq!(texts(&task).len(), length.map_or(3, |it| it.min(3)));
            let mut events = client.stream(Message::user("work:a done")).await.unwrap();
            let seen = rest(&mut events).await;
            assert_eq!(texts(task_of(&seen[0])).len(), length.map_or(1, |it| it.min(1)));
            assert_eq!(states(&seen), [TaskState::Submitted, TaskState::Working, TaskState::Completed]);
            // A follow-up, streamed: the task as of its message.
            let own = bench.send(Message::user("work:a work:b ask:what")).await.unwrap().id;
            let mut events = client.stream(to(&own, "work:c ask:more")).await.unwrap();
            let seen = rest(&mut events).await;
            assert_eq!(texts(task_of(&seen[0])), shown(length), "{asked:?}");
            assert_eq!(states(&seen[1..]), [TaskState::Working, TaskState::InputRequired]);
        }
        for negative in [-1, i32::MIN] {
            let client = bench.with_history(negative);
            let list = ListTasksRequest { history_length: Some(negative), ..Default::default() };
            let before = bench.listed().await.len();
            for (refused, field) in [
                (client.send(Message::user("done")).await.map(drop), "configuration.historyLength"),
                (client.stream(Message::user("done")).await.map(drop), "configuration.historyLength"),
                (bench.get_with(&id, negative).await.map(drop), "historyLength"),
                (bench.list(list).await.map(drop), "historyLength"),
            ] {
                let refused = refused.unwrap_err();
                assert_eq!((refused.kind(), refused.violations()[0].field.as_str()), (ErrorKind::InvalidParams, field));
            }
            assert_eq!(bench.listed().await.len(), before, "nothing was run");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_can_not_be_read_makes_a_reader_late() {
    let gate = Gate::opened();
    let bench = bench(gate.store(), burst);
    let mut slow = bench.stream(Message::user("1000")).await.unwrap();
    let first = next(&mut slow).await;
    while bench.state(&id_of(&first)).await != TaskState::Completed {
        settle().await;
    }
    gate.blind(true);
    let early = ready(&mut slow);
    pass(10_000).await;
    assert!(slow.next().now_or_never().is_none());
    gate.blind(false);
    let all: Vec<_> = std::iter::once(first).chain(early).chain(rest(&mut slow).await).collect();
    assert_eq!(all.len(), 1002);
    dense(&all);
    // Unless the server stops before: then it is cut, like all others.
    let mut slow = bench.stream(Message::user("1000")).await.unwrap();
    next(&mut slow).await;
    while bench.listed().await.values().any(|it| *it != TaskState::Completed) {
        settle().await;
    }
    gate.blind(true);
    ready(&mut slow);
    bench.service.drain(Duration::from_secs(1)).await;
    assert_eq!(Error::from(slow.next().await.unwrap().unwrap_err()).kind(), ErrorKind::Unavailable);
    assert!(slow.next().await.is_none());
}

/// Finished tasks are deleted after a while. Who has not read all of one by then, gets what became of it.
#[tokio::test(start_paused = true)]
async fn a_task_stands_in_for_its_log_that_was_deleted() {
    let store: Arc<dyn Store> = Arc::new(Memory::default());
    let bench = bench(Arc::clone(&store), burst);
    let mut slow = bench.stream(Message::user("1000")).await.unwrap();
    let id = id_of(&next(&mut slow).await);
    while bench.state(&id).await != TaskState::Completed {
        settle().await;
    }
    let mut policy = Retention::FOREVER;
    policy.finished = Some(Duration::ZERO);
    let swept = store.sweep(&policy, i64::MAX, &|_| true).await.unwrap();
    assert_eq!(swept.tasks, 0, "it is in use");
    let swept = store.sweep(&policy, i64::MAX, &|_| false).await.unwrap();
    assert_eq!(swept.tasks, 1);
    let read = rest(&mut slow).await;
    let (last, before) = read.split_last().unwrap();
    assert_eq!((task_of(last).state(), task_of(last).artifacts.len(), last.seq()), (TaskState::Completed, 1, 1002));
    assert!(before.len() < 1000);
    drop(slow);
    bench.empty().await;
    assert_eq!(kind(bench.get(&id).await), ErrorKind::TaskNotFound);
}

/// A reader is woken by what happens, not by what others do.
#[tokio::test(start_paused = true)]
async fn readers_and_agents_take_turns() {
    let (go, said) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
    let (ready, counted) = (Arc::clone(&go), Arc::clone(&said));
    let bench = bench(Arc::new(Memory::default()), move |_: Turn, out: Updates| {
        let (go, said) = (Arc::clone(&ready), Arc::clone(&counted));
        async move {
            for n in 0..100 {
                go.notified().await;
                out.progress(n.to_string()).await?;
                said.fetch_add(1, Ordering::SeqCst);
            }
            Ok(End::Completed(None))
        }
    });
    let id = bench.hasty().send(Message::user("go")).await.unwrap().id;
    let mut all = Vec::new();
    for _ in 0..10 {
        let mut events = bench.subscribe(&id).await.unwrap();
        next(&mut events).await;
        all.push(events);
    }
    for n in 0..100 {
        go.notify_one();
        for events in &mut all {
            assert_eq!(next(events).await.seq(), n + 2);
        }
        assert_eq!(said.load(Ordering::SeqCst), usize::try_from(n + 1).unwrap());
    }
    for events in &mut all {
        assert_eq!(states(&rest(events).await), [TaskState::Completed]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_never_without_an_event_ends_at_its_age() {
    for store in stores() {
        let mut limits = Limits::default();
        limits.stream_age = Duration::from_secs(10);
        let bench = limited(store, limits, burst);
        let mut slow = bench.stream(Message::user("1000")).await.unwrap();
        let first = next(&mut slow).await;
        let mut all = bench.resume(&id_of(&first), first.cursor()).await.unwrap();
        rest(&mut all).await;
        next(&mut slow).await;
        pass(10_000).await;
        let cut = slow.next().await.unwrap().unwrap_err();
        assert_eq!(Error::from(cut).kind(), ErrorKind::Unavailable);
        assert!(slow.next().await.is_none());
    }
}
