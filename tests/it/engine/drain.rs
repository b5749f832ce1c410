//! The end of a server: what runs may end, what does not is left as it is, and nobody is canceled.

use std::{sync::Arc, time::Duration};

use a2a_service::{
    agent::{self, Agent, End, Turn, Updates},
    error::ErrorKind,
    pb::v1::{Message, TaskState},
    service::Limits,
    store::{Store, memory::Memory},
};
use futures::{FutureExt as _, StreamExt as _};
use tokio::{
    task::{JoinHandle, yield_now},
    time::Instant,
};

use super::support::*;
use crate::gate::{Act, Gate};

const GRACE: Duration = Duration::from_secs(5);

fn stores() -> [Arc<dyn Store>; 2] {
    [Arc::new(Memory::default()), Gate::opened()]
}

/// Begins a drain; when it is over, says how long that took.
async fn drain<A: Agent>(bench: &Bench<A>) -> JoinHandle<Duration> {
    let service = Arc::clone(&bench.service);
    let draining = tokio::spawn(async move {
        let started = Instant::now();
        service.drain(GRACE).await;
        started.elapsed()
    });
    yield_now().await;
    draining
}

#[tokio::test(start_paused = true)]
async fn what_runs_may_end_within_the_grace() {
    for store in stores() {
        let bench = bench(store, script);
        let sent = bench.sending(Message::user("work pass:1000 out:x done"));
        let asked = bench.sending(Message::user("work pass:2000 ask:what"));
        let mut streamed = bench.stream(Message::user("work pass:1000 out:x done")).await.unwrap();
        settle().await;
        let draining = drain(&bench).await;
        assert_eq!(sent.await.unwrap().unwrap().state(), TaskState::Completed);
        assert_eq!(states(&rest(&mut streamed).await).last(), Some(&TaskState::Completed));
        assert_eq!(asked.await.unwrap().unwrap().state(), TaskState::InputRequired);
        assert_eq!(draining.await.unwrap(), Duration::from_secs(2));
    }
}

#[tokio::test(start_paused = true)]
async fn what_does_not_end_is_left_as_it_is() {
    for store in stores() {
        let held = Arc::new(());
        let holds = Arc::clone(&held);
        let bench = bench(Arc::clone(&store), move |turn: Turn, out: Updates| {
            let held = Arc::clone(&holds);
            async move {
                let end = script(turn, out).await;
                drop(held);
                end
            }
        });
        let sent = bench.sending(Message::user("work hang"));
        // This one says nothing more after its message, and that one had not even a task yet.
        let silent = bench.hasty().send(Message::user("hang")).await.unwrap().id;
        let mut streamed = bench.stream(Message::user("work:on hang")).await.unwrap();
        settle().await;
        let id = id_of(&next(&mut streamed).await);
        let waiting = bench.sending(to(&id, "done"));
        settle().await;
        let before = bench.log(&*store, &id).await;
        let draining = drain(&bench).await;
        let left = sent.await.unwrap().unwrap();
        assert_eq!(left.state(), TaskState::Working);
        assert_eq!(waiting.await.unwrap().unwrap().state(), TaskState::Working);
        // No event of an end: the stream is cut, and can be taken up elsewhere.
        assert_eq!(state_of(&next(&mut streamed).await), Some(TaskState::Working));
        let cut = a2a_service::error::Error::from(streamed.next().await.unwrap().unwrap_err());
        assert_eq!(cut.kind(), ErrorKind::Unavailable);
        assert!(streamed.next().await.is_none());
        assert_eq!(draining.await.unwrap(), GRACE);
        assert_eq!(Arc::strong_count(&held), 2, "an agent goes on");
        assert_eq!(bench.log(&*store, &id).await, before);
        let listed = bench.listed().await;
        assert_eq!(
            (listed[&id], listed[&silent], listed[&left.id]),
            (TaskState::Working, TaskState::Submitted, TaskState::Working)
        );
        drop(streamed);
        bench.empty().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_without_a_task_leaves_none() {
    let bench = bench(Gate::opened(), script);
    let sends: Vec<_> = (0..3).map(|_| bench.sending(Message::user("hang"))).collect();
    settle().await;
    bench.service.drain(Duration::from_millis(50)).await;
    for it in sends {
        let refused = it.await.unwrap().unwrap_err();
        assert_eq!((refused.kind(), refused.retry_after_seconds()), (ErrorKind::Unavailable, Some(1)));
    }
    assert_eq!(bench.listed().await.len(), 0);
    bench.empty().await;
}

#[tokio::test(start_paused = true)]
async fn streams_of_tasks_that_wait_are_cut_at_once() {
    for store in stores() {
        let bench = bench(store, script);
        let id = bench.send(Message::user("ask:what")).await.unwrap().id;
        let busy = bench.hasty().send(Message::user("work pass:1000 ask:what")).await.unwrap().id;
        let (mut idle, mut runs) = (bench.subscribe(&id).await.unwrap(), bench.subscribe(&busy).await.unwrap());
        assert_eq!(states(&ready(&mut idle)), [TaskState::InputRequired]);
        settle().await;
        let (started, draining) = (Instant::now(), drain(&bench).await);
        assert!(idle.next().await.unwrap().is_err());
        assert_eq!(started.elapsed(), Duration::ZERO);
        // The other one sees the end of its turn first.
        let seen: Vec<_> =
            runs.by_ref().take_while(|it| std::future::ready(it.is_ok())).map(Result::unwrap).collect().await;
        assert_eq!(states(&seen).last(), Some(&TaskState::InputRequired));
        assert_eq!(draining.await.unwrap(), Duration::from_secs(1));
    }
}

#[tokio::test(start_paused = true)]
async fn no_new_work_is_taken_but_all_can_be_read() {
    let mut limits = Limits::default();
    limits.cancel = Duration::from_secs(1);
    for store in stores() {
        let bench = limited(store, limits, script);
        let id = bench.send(Message::user("ask:what")).await.unwrap().id;
        let runs = bench.hasty().send(Message::user("work hang")).await.unwrap().id;
        let stops = bench.hasty().send(Message::user("work hang")).await.unwrap().id;
        settle().await;
        let draining = drain(&bench).await;
        for _ in 0..2 {
            let hasty = bench.hasty();
            for refused in [
                bench.send(Message::user("done")).await.map(drop),
                bench.send(to(&id, "done")).await.map(drop),
                hasty.send(to(&runs, "done")).await.map(drop),
                bench.stream(Message::user("done")).await.map(drop),
            ] {
                let refused = refused.unwrap_err();
                assert_eq!((refused.kind(), refused.retry_after_seconds()), (ErrorKind::Unavailable, Some(1)));
            }
            assert_eq!(bench.state(&id).await, TaskState::InputRequired);
            assert_eq!(bench.listed().await.len(), 3);
            // Who subscribes sees where it stands, and is sent elsewhere.
            let mut events = bench.subscribe(&id).await.unwrap();
            assert_eq!(state_of(&next(&mut events).await), Some(TaskState::InputRequired));
            assert!(events.next().await.unwrap().is_err());
            if !draining.is_finished() {
                // While agents run, they can be stopped.
                assert_eq!(bench.cancel(&stops).await.unwrap().state(), TaskState::Canceled);
                assert!(!draining.is_finished());
                pass(10_000).await;
            }
        }
        // Nobody would see to it now.
        let started = Instant::now();
        assert_eq!(kind(bench.cancel(&runs).await), ErrorKind::Unavailable);
        assert_eq!(started.elapsed(), Duration::ZERO);
        assert_eq!(bench.state(&runs).await, TaskState::Working);
        bench.empty().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_hears_of_it() {
    let bench = bench(Arc::new(Memory::default()), |turn: Turn, out: Updates| async move {
        out.working().await?;
        turn.draining().await;
        out.save(&"half").await?;
        Ok::<_, agent::Error>(End::InputRequired(Message::agent("say when")))
    });
    let sent = bench.sending(Message::user("go"));
    settle().await;
    assert_eq!(drain(&bench).await.await.unwrap(), Duration::ZERO);
    assert_eq!(sent.await.unwrap().unwrap().state(), TaskState::InputRequired);
}

/// What an agent has said is on its way to the store when the server is told to stop.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_turn_is_written_and_seen() {
    let gate = Gate::memory();
    let bench = bench(gate.store(), script);
    let sent = bench.sending(Message::user("work pass:1000 ask:what"));
    gate.tell(Act::Pass);
    settle().await;
    let id = bench.listed().await.into_keys().next().unwrap();
    let mut events = bench.subscribe(&id).await.unwrap();
    assert_eq!(states(&ready(&mut events)), [TaskState::Working]);
    pass(1000).await;
    gate.knock().await;
    let draining = drain(&bench).await;
    // Its turn is over, and its end is not there yet.
    settle().await;
    assert!(events.next().now_or_never().is_none());
    assert!(!sent.is_finished() && !draining.is_finished());
    gate.open();
    assert_eq!(state_of(&next(&mut events).await), Some(TaskState::InputRequired));
    assert_eq!(sent.await.unwrap().unwrap().state(), TaskState::InputRequired);
    assert!(events.next().await.unwrap().is_err());
    draining.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_waits_when_the_server_stops_is_still_done() {
    let gate = Gate::memory();
    let bench = bench(gate.store(), script);
    // The task, and WORKING, which its reply waits for.
    gate.tell(Act::Pass);
    gate.tell(Act::Pass);
    let id = bench.hasty().send(Message::user("work pass:1000 ask:what")).await.unwrap().id;
    settle().await;
    let mut events = bench.subscribe(&id).await.unwrap();
    assert_eq!(states(&ready(&mut events)), [TaskState::Working]);
    let sent = bench.sending(to(&id, "done"));
    settle().await;
    gate.tell(Act::Pass);
    pass(990).await;
    gate.tell(Act::Fail);
    pass(10).await;
    let canceling = tokio::spawn({
        let (client, id) = (bench.client.clone(), id.clone());
        async move { client.cancel(&id).await }
    });
    let draining = drain(&bench).await;
    // Its turns are over, and their end is not there yet.
    settle().await;
    assert!(events.next().now_or_never().is_none());
    assert!(!sent.is_finished() && !canceling.is_finished() && !draining.is_finished());
    gate.open();
    let all = [TaskState::InputRequired, TaskState::Working, TaskState::Completed];
    assert_eq!(states(&rest(&mut events).await), all);
    draining.await.unwrap();
    assert_eq!(sent.await.unwrap().unwrap().state(), TaskState::Completed);
    assert_eq!(kind(canceling.await.unwrap()), ErrorKind::TaskNotCancelable);
}

/// The end of the task was on its way when the server had no more time to wait for it: who asked for it to be canceled
/// can't be told what became of it.
#[tokio::test(start_paused = true)]
async fn who_cancels_is_not_told_what_did_not_happen() {
    let gate = Gate::memory();
    let bench = bench(gate.store(), script);
    gate.tell(Act::Pass);
    let id = bench.hasty().send(Message::user("work hang")).await.unwrap().id;
    gate.tell(Act::Pass);
    settle().await;
    let canceling = tokio::spawn({
        let (client, id) = (bench.client.clone(), id.clone());
        async move { client.cancel(&id).await }
    });
    settle().await;
    bench.service.drain(Duration::from_secs(1)).await;
    assert_eq!(kind(canceling.await.unwrap()), ErrorKind::Unavailable);
    assert_eq!(bench.state(&id).await, TaskState::Working);
}

/// A leaked word after the stop is not written.
#[tokio::test(start_paused = true)]
async fn nothing_is_written_after_the_stop() {
    let store: Arc<dyn Store> = Arc::new(Memory::default());
    let bench = bench(Arc::clone(&store), |_: Turn, out: Updates| async move {
        out.working().await?;
        tokio::spawn(async move {
            pass(20_000).await;
            assert!(out.working().await.is_err());
        });
        std::future::pending().await
    });
    let sent = bench.sending(Message::user("go"));
    settle().await;
    assert_eq!(drain(&bench).await.await.unwrap(), GRACE);
    let id = sent.await.unwrap().unwrap().id;
    pass(30_000).await;
    assert_eq!(bench.log(&*store, &id).await.len(), 2);
    bench.empty().await;
}

/// An agent that is told to stop in the middle of a word has not failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_fails_because_the_server_stops() {
    for n in 0..100 {
        let bench = bench(Arc::new(Memory::default()), |_: Turn, out: Updates| async move {
            loop {
                out.working().await?;
                yield_now().await;
            }
        });
        for _ in 0..3 {
            bench.hasty().send(Message::user("go")).await.unwrap();
        }
        for _ in 0..n % 10 {
            yield_now().await;
        }
        bench.service.drain(Duration::ZERO).await;
        for state in bench.listed().await.into_values() {
            assert!([TaskState::Submitted, TaskState::Working].contains(&state), "{state:?}");
        }
        bench.empty().await;
    }
}
