//! Stream readers: slow, many, resumed, history lengths, unreadable stores and deleted logs.

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
    sync::{Notify, Semaphore},
    task::{JoinSet, yield_now},
};

use super::support::*;
use crate::gate::Gate;

const EVENTS: usize = 10_000;

fn stores() -> [Arc<dyn Store>; 2] {
    [Arc::new(Memory::default()), Gate::opened()]
}

/// Applies the events of a stream to the task in its first event, as a client does.
fn folded(events: &[Event]) -> Task {
    let mut task = task_in(&events[0]).clone();
    events[1..].iter().filter_map(Event::payload).for_each(|payload| task::apply(&mut task, payload));
    task
}

/// Returns whether the stream ended the task; panics if an event follows the end.
fn has_one_end(events: &[Event]) -> bool {
    let ends = events.iter().position(|event| event.ends() == Ends::Task);
    assert!(ends.is_none_or(|end| end + 1 == events.len()), "{events:?}");
    ends.is_some()
}

async fn write_chunks(turn: Turn, out: Updates) -> Result<End, agent::Error> {
    let mut answer = out.artifact("a").id("a");
    for n in 0..turn.text().parse()? {
        // Chunks of 1 KiB are not coalesced.
        answer.text(format!("{n:01024}")).await?;
    }
    Ok(End::Completed(None))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_reader_reads_the_whole_log_later() {
    for store in stores() {
        let bench = bench(store, write_chunks);
        let mut slow = bench.stream(Message::user((EVENTS - 2).to_string())).await.unwrap();
        let first = next_event(&mut slow).await;
        let id = task_id(&first);
        let mut fast = bench.resume(&id, first.cursor()).await.unwrap();
        let mut others = JoinSet::new();
        for _ in 0..10 {
            let mut events = bench.resume(&id, first.cursor()).await.unwrap();
            others.spawn(async move { remaining_events(&mut events).await.len() });
        }
        // The agent ends, other readers and a later one read everything, and other tasks are not delayed.
        assert_eq!(remaining_events(&mut fast).await.len(), EVENTS - 1);
        assert!(others.join_all().await.iter().all(|count| *count == EVENTS - 1));
        assert_eq!(bench.send(Message::user("1")).await.unwrap().state(), TaskState::Completed);
        let mut later = bench.resume(&id, first.cursor()).await.unwrap();
        assert_eq!(next_event(&mut later).await.seq(), 2);
        let all: Vec<_> = std::iter::once(first).chain(remaining_events(&mut slow).await).collect();
        assert_dense(&all);
        let task = folded(&all);
        assert_eq!(task, bench.get(&id).await.unwrap());
        let numbers = (0..EVENTS - 2).map(|n| format!("{n:01024}")).collect::<Vec<_>>().concat();
        assert!(task.artifacts[0].parts.iter().filter_map(Part::as_text).eq([numbers]));
        drop((slow, fast, later));
        bench.wait_until_evicted().await;
    }
}

/// A subscription that races with the end of the task either sees that end once or is rejected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscription_racing_with_the_end_sees_it_once() {
    for store in stores() {
        // Each turn ends after the test has allowed one more to end.
        let may_end = Arc::new(Semaphore::new(0));
        let bench = bench(store, {
            let may_end = Arc::clone(&may_end);
            move |turn: Turn, out: Updates| {
                let may_end = Arc::clone(&may_end);
                async move {
                    for n in 0..turn.text().parse()? {
                        yield_now().await;
                        out.progress(n.to_string()).await?;
                    }
                    may_end.acquire().await?.forget();
                    Ok(End::Completed(None))
                }
            }
        });
        let (mut late, mut early) = (0, 0);
        for n in 0..400 {
            let id = bench.non_blocking().send(Message::user((n % 20).to_string())).await.unwrap().id;
            // One in ten ends only after the subscription, one in ten before it. The others race.
            let subscribed = match n % 10 {
                0 => {
                    let subscribed = bench.subscribe(&id).await;
                    may_end.add_permits(1);
                    subscribed
                }
                race => {
                    may_end.add_permits(1);
                    while race == 1 && bench.state(&id).await != TaskState::Completed {
                        yield_now().await;
                    }
                    for _ in 0..n % 7 {
                        yield_now().await;
                    }
                    bench.subscribe(&id).await
                }
            };
            match subscribed {
                Ok(mut events) => {
                    let seen = remaining_events(&mut events).await;
                    assert!(has_one_end(&seen));
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
        assert!(early >= 40 && late >= 40, "{early} in time, {late} too late");
        bench.wait_until_evicted().await;
    }
}

/// The stream of a follow-up begins with the task and covers its turn, whatever state the task was in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn follow_up_stream_covers_its_whole_turn() {
    for store in stores() {
        let bench = bench(Arc::clone(&store), |turn: Turn, out: Updates| async move {
            for n in 0..turn.text().len() {
                yield_now().await;
                out.artifact("a").id("a").appending().text(format!("{}{n}", turn.text())).await?;
            }
            Ok(End::input_required("more?"))
        });
        for n in 0..200 {
            let id = bench.non_blocking().send(Message::user("x".repeat(n % 9))).await.unwrap().id;
            for _ in 0..n % 5 {
                yield_now().await;
            }
            let sent = bench.spawn_send(follow_up(&id, "y"));
            let mut streams =
                [bench.stream(follow_up(&id, "zz")).await.unwrap(), bench.stream(follow_up(&id, "q")).await.unwrap()];
            let [one, other] = &mut streams;
            let (one, other) = tokio::join!(remaining_events(one), remaining_events(other));
            drop(streams);
            sent.await.unwrap().unwrap();
            bench.wait_until_evicted().await;
            let log = bench.log(&*store, &id).await;
            assert_dense(&log);
            for (seen, text) in [(one, "zz"), (other, "q")] {
                // The first event is the task as of the message, which is its newest history entry.
                let (first, last) = (seen[0].seq(), seen.last().unwrap().seq());
                assert_eq!(history_texts(task_in(&seen[0])).last().map(String::as_str), Some(text));
                let before: Vec<_> = log.iter().filter(|event| event.seq() <= first).cloned().collect();
                assert_eq!(task_in(&seen[0]), &folded(&before));
                // Then all visible events until its turn ends; messages of other senders are hidden.
                let after =
                    log.iter().filter(|event| event.seq() > first && event.seq() <= last && !event.mark().hidden);
                assert!(seen[1..].iter().eq(after), "{seen:?}");
                let written = folded(&seen).artifacts;
                let mut written = written.iter().flat_map(|artifact| &artifact.parts).filter_map(Part::as_text);
                assert!(written.any(|chunk| chunk.contains(text)), "{seen:?}");
                assert!((1..=3).contains(&seen.iter().filter(|event| event.ends() == Ends::Turn).count()));
                assert_eq!(seen.last().map(Event::ends), Some(Ends::Turn));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn resumed_stream_continues_after_its_cursor() {
    for store in stores() {
        let bench = bench(store, scripted);
        let mut events = bench.stream(Message::user("work:one out:x ask:what")).await.unwrap();
        let first = remaining_events(&mut events).await;
        let id = task_id(&first[0]);
        for n in 0..first.len() {
            // The task is not terminal: the missed events, and then the live ones.
            let mut events = bench.resume(&id, first[n].cursor()).await.unwrap();
            assert_eq!(seqs(&ready_events(&mut events)), seqs(&first[n + 1..]));
        }
        let mut live = bench.resume(&id, first.last().unwrap().cursor()).await.unwrap();
        assert!(live.next().now_or_never().is_none());
        bench.send(follow_up(&id, "out:y done")).await.unwrap();
        // Event 5 is the hidden follow-up message.
        let seen = remaining_events(&mut live).await;
        assert_eq!((seqs(&seen), states(&seen)), (vec![6, 7, 8], vec![TaskState::Working, TaskState::Completed]));
        drop((events, live));
        bench.wait_until_evicted().await;
        let all: Vec<_> = first.into_iter().chain(seen).collect();
        for n in 0..all.len() {
            let mut events = bench.resume(&id, all[n].cursor()).await.unwrap();
            let seen = remaining_events(&mut events).await;
            assert_eq!(seen, all[n + 1..]);
            assert!(seen.iter().zip(&all[n + 1..]).all(|(a, b)| (a.position(), a.mark()) == (b.position(), b.mark())));
        }
        assert_eq!(error_kind(bench.subscribe(&id).await), ErrorKind::TaskEnded);
    }
}

#[tokio::test(start_paused = true)]
async fn invalid_cursor_is_answered_with_the_task() {
    for store in stores() {
        let bench = bench(store, scripted);
        let other = bench.send(Message::user("ask:what")).await.unwrap().id;
        let id = bench.send(Message::user("work ask:what")).await.unwrap().id;
        for ended in [false, true] {
            if ended {
                bench.send(follow_up(&id, "done")).await.unwrap();
            }
            let task = bench.get(&id).await.unwrap();
            for wrong in ["x", "1.2.3", "..", &format!("{other}.1.1"), &format!("{id}.7.2"), &format!("{id}.1.99")] {
                let cursor = a2a_service::event::Cursor::from_text(wrong).unwrap();
                let mut events = bench.resume(&id, Some(&cursor)).await.unwrap();
                let seen = if ended { remaining_events(&mut events).await } else { ready_events(&mut events) };
                assert_eq!(seen.len(), 1, "{wrong}");
                assert_eq!(task_in(&seen[0]), &task, "{wrong}");
                // The stream can be resumed from that event.
                let mut events = bench.resume(&id, seen[0].cursor()).await.unwrap();
                assert_eq!(ready_events(&mut events), []);
            }
        }
        bench.wait_until_evicted().await;
    }
}

#[tokio::test(start_paused = true)]
async fn history_length_limits_the_returned_history() {
    for store in stores() {
        let bench = bench(store, scripted);
        let id = bench.send(Message::user("work:a work:b ask:what")).await.unwrap().id;
        let all = ["work:a work:b ask:what", "a", "b", "what", "work:c ask:more"];
        let expected =
            |length: Option<usize>| all[length.map_or(0, |length| all.len().saturating_sub(length))..].to_vec();
        let task = bench.with_history(2).send(follow_up(&id, "work:c ask:more")).await.unwrap();
        assert_eq!(history_texts(&task), ["work:c ask:more", "c"]);
        let task = bench.with_history(0).non_blocking().send(Message::user("hang")).await.unwrap();
        assert_eq!(history_texts(&task), ["hang"], "`non_blocking` replaces the history length");
        for (length, asked) in
            [(None, None), (Some(0), Some(0)), (Some(1), Some(1)), (Some(3), Some(3)), (Some(50), Some(50))]
        {
            let client = bench.with_history(asked);
            let task = bench.get_with(&id, asked).await.unwrap();
            assert_eq!(history_texts(&task).len(), length.map_or(6, |length| length.min(6)), "{asked:?}");
            let listed = ListTasksRequest { history_length: asked, ..Default::default() };
            let listed = bench.list(listed).await.unwrap().tasks.into_iter().find(|task| task.id == id).unwrap();
            assert_eq!(listed.history, task.history, "{asked:?}");
            // A new task, blocking and streamed.
            let task = client.send(Message::user("work:a work:b done")).await.unwrap();
            assert_eq!(history_texts(&task).len(), length.map_or(3, |length| length.min(3)));
            let mut events = client.stream(Message::user("work:a done")).await.unwrap();
            let seen = remaining_events(&mut events).await;
            assert_eq!(history_texts(task_in(&seen[0])).len(), length.map_or(1, |length| length.min(1)));
            assert_eq!(states(&seen), [TaskState::Submitted, TaskState::Working, TaskState::Completed]);
            // A follow-up, streamed: the task as of its message.
            let own = bench.send(Message::user("work:a work:b ask:what")).await.unwrap().id;
            let mut events = client.stream(follow_up(&own, "work:c ask:more")).await.unwrap();
            let seen = remaining_events(&mut events).await;
            assert_eq!(history_texts(task_in(&seen[0])), expected(length), "{asked:?}");
            assert_eq!(states(&seen[1..]), [TaskState::Working, TaskState::InputRequired]);
        }
        for negative in [-1, i32::MIN] {
            let client = bench.with_history(negative);
            let list = ListTasksRequest { history_length: Some(negative), ..Default::default() };
            let before = bench.states_by_id().await.len();
            for (refused, field) in [
                (client.send(Message::user("done")).await.map(drop), "configuration.historyLength"),
                (client.stream(Message::user("done")).await.map(drop), "configuration.historyLength"),
                (bench.get_with(&id, negative).await.map(drop), "historyLength"),
                (bench.list(list).await.map(drop), "historyLength"),
            ] {
                let refused = refused.unwrap_err();
                assert_eq!((refused.kind(), refused.violations()[0].field.as_str()), (ErrorKind::InvalidParams, field));
            }
            assert_eq!(bench.states_by_id().await.len(), before, "nothing was run");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn unreadable_store_delays_readers() {
    let gate = Gate::opened();
    let bench = bench(gate.store(), write_chunks);
    let mut slow = bench.stream(Message::user("1000")).await.unwrap();
    let first = next_event(&mut slow).await;
    while bench.state(&task_id(&first)).await != TaskState::Completed {
        run_ready_tasks().await;
    }
    gate.fail_reads(true);
    let early = ready_events(&mut slow);
    sleep_ms(10_000).await;
    assert!(slow.next().now_or_never().is_none());
    gate.fail_reads(false);
    let all: Vec<_> = std::iter::once(first).chain(early).chain(remaining_events(&mut slow).await).collect();
    assert_eq!(all.len(), 1002);
    assert_dense(&all);
    // If the server drains first, the stream is cut.
    let mut slow = bench.stream(Message::user("1000")).await.unwrap();
    next_event(&mut slow).await;
    while bench.states_by_id().await.values().any(|state| *state != TaskState::Completed) {
        run_ready_tasks().await;
    }
    gate.fail_reads(true);
    ready_events(&mut slow);
    bench.service.drain(Duration::from_secs(1)).await;
    assert_eq!(Error::from(slow.next().await.unwrap().unwrap_err()).kind(), ErrorKind::Unavailable);
    assert!(slow.next().await.is_none());
}

/// A reader that has not finished before retention deletes the log receives the task instead.
#[tokio::test(start_paused = true)]
async fn reader_of_a_deleted_log_receives_the_task() {
    let store: Arc<dyn Store> = Arc::new(Memory::default());
    let bench = bench(Arc::clone(&store), write_chunks);
    let mut slow = bench.stream(Message::user("1000")).await.unwrap();
    let id = task_id(&next_event(&mut slow).await);
    while bench.state(&id).await != TaskState::Completed {
        run_ready_tasks().await;
    }
    let mut policy = Retention::FOREVER;
    policy.finished = Some(Duration::ZERO);
    let swept = store.sweep(&policy, i64::MAX, &|_| true).await.unwrap();
    assert_eq!(swept.tasks, 0, "a task in use is kept");
    let swept = store.sweep(&policy, i64::MAX, &|_| false).await.unwrap();
    assert_eq!(swept.tasks, 1);
    let read = remaining_events(&mut slow).await;
    let (last, before) = read.split_last().unwrap();
    assert_eq!((task_in(last).state(), task_in(last).artifacts.len(), last.seq()), (TaskState::Completed, 1, 1002));
    assert!(before.len() < 1000);
    drop(slow);
    bench.wait_until_evicted().await;
    assert_eq!(error_kind(bench.get(&id).await), ErrorKind::TaskNotFound);
}

/// A reader is woken by events of its own task.
#[tokio::test(start_paused = true)]
async fn each_reader_sees_each_event_before_the_next_update() {
    let (go, count) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
    let (signal, counter) = (Arc::clone(&go), Arc::clone(&count));
    let bench = bench(Arc::new(Memory::default()), move |_: Turn, out: Updates| {
        let (go, count) = (Arc::clone(&signal), Arc::clone(&counter));
        async move {
            for n in 0..100 {
                go.notified().await;
                out.progress(n.to_string()).await?;
                count.fetch_add(1, Ordering::SeqCst);
            }
            Ok(End::Completed(None))
        }
    });
    let id = bench.non_blocking().send(Message::user("go")).await.unwrap().id;
    let mut all = Vec::new();
    for _ in 0..10 {
        let mut events = bench.subscribe(&id).await.unwrap();
        next_event(&mut events).await;
        all.push(events);
    }
    for n in 0..100 {
        go.notify_one();
        for events in &mut all {
            assert_eq!(next_event(events).await.seq(), n + 2);
        }
        assert_eq!(count.load(Ordering::SeqCst), usize::try_from(n + 1).unwrap());
    }
    for events in &mut all {
        assert_eq!(states(&remaining_events(events).await), [TaskState::Completed]);
    }
}

#[tokio::test(start_paused = true)]
async fn stream_with_a_backlog_is_cut_at_its_maximum_age() {
    for store in stores() {
        let mut limits = Limits::default();
        limits.stream_max_age = Duration::from_secs(10);
        let bench = with_limits(store, limits, write_chunks);
        let mut slow = bench.stream(Message::user("1000")).await.unwrap();
        let first = next_event(&mut slow).await;
        let mut all = bench.resume(&task_id(&first), first.cursor()).await.unwrap();
        remaining_events(&mut all).await;
        next_event(&mut slow).await;
        sleep_ms(10_000).await;
        let cut = slow.next().await.unwrap().unwrap_err();
        assert_eq!(Error::from(cut).kind(), ErrorKind::Unavailable);
        assert!(slow.next().await.is_none());
    }
}
