//! Graceful shutdown: running turns get a grace period, unfinished tasks keep their state, and no task is canceled.

use std::{sync::Arc, time::Duration};

use a2a_service::{
    agent::{self, End, Turn, Updates},
    error::ErrorKind,
    pb::v1::{Message, TaskState},
    service::Limits,
    store::{Scope, Store, TaskKey, TaskStore as _, memory::Memory},
};
use futures::{FutureExt as _, StreamExt as _};
use tokio::{
    task::{JoinHandle, yield_now},
    time::Instant,
};

use super::support::*;
use crate::gate::{CommitOutcome, Gate};

const GRACE: Duration = Duration::from_secs(5);

fn stores() -> [Arc<dyn Store>; 2] {
    [Arc::new(Memory::default()), Gate::opened()]
}

/// Starts a drain and returns a handle to its duration.
async fn drain(bench: &Bench) -> JoinHandle<Duration> {
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
async fn running_turns_may_end_within_the_grace_period() {
    for store in stores() {
        let bench = bench(store, scripted);
        let sent = bench.spawn_send(Message::user("work pass:1000 out:x done"));
        let asked = bench.spawn_send(Message::user("work pass:2000 ask:what"));
        let mut streamed = bench.stream(Message::user("work pass:1000 out:x done")).await.unwrap();
        run_ready_tasks().await;
        let draining = drain(&bench).await;
        assert_eq!(sent.await.unwrap().unwrap().state(), TaskState::Completed);
        assert_eq!(states(&remaining_events(&mut streamed).await).last(), Some(&TaskState::Completed));
        assert_eq!(asked.await.unwrap().unwrap().state(), TaskState::InputRequired);
        assert_eq!(draining.await.unwrap(), Duration::from_secs(2));
    }
}

#[tokio::test(start_paused = true)]
async fn unfinished_turns_keep_their_durable_state_after_the_grace_period() {
    for store in stores() {
        let guard = Arc::new(());
        let counted = Arc::clone(&guard);
        let bench = bench(Arc::clone(&store), move |turn: Turn, out: Updates| {
            let guard = Arc::clone(&counted);
            async move {
                let end = scripted(turn, out).await;
                drop(guard);
                end
            }
        });
        let sent = bench.spawn_send(Message::user("work hang"));
        // This agent sends no update.
        let silent = bench.non_blocking().send(Message::user("hang")).await.unwrap().id;
        let mut streamed = bench.stream(Message::user("work:on hang")).await.unwrap();
        run_ready_tasks().await;
        let id = task_id(&next_event(&mut streamed).await);
        let waiting = bench.spawn_send(follow_up(&id, "done"));
        run_ready_tasks().await;
        let before = bench.log(&*store, &id).await;
        let draining = drain(&bench).await;
        let left = sent.await.unwrap().unwrap();
        assert_eq!(left.state(), TaskState::Working);
        assert_eq!(waiting.await.unwrap().unwrap().state(), TaskState::Working);
        // The stream is cut without a terminal event, so that the client can resume it on another server.
        assert_eq!(state_in(&next_event(&mut streamed).await), Some(TaskState::Working));
        let cut = a2a_service::error::Error::from(streamed.next().await.unwrap().unwrap_err());
        assert_eq!(cut.kind(), ErrorKind::Unavailable);
        assert!(streamed.next().await.is_none());
        assert_eq!(draining.await.unwrap(), GRACE);
        assert_eq!(Arc::strong_count(&guard), 2, "no agent still runs");
        assert_eq!(bench.log(&*store, &id).await, before);
        let listed = bench.states_by_id().await;
        assert_eq!(
            (listed[&id], listed[&silent], listed[&left.id]),
            (TaskState::Working, TaskState::Submitted, TaskState::Working)
        );
        drop(streamed);
        bench.wait_until_evicted().await;
    }
}

#[tokio::test(start_paused = true)]
async fn turn_without_a_durable_task_leaves_no_task() {
    let bench = bench(Gate::opened(), scripted);
    let sends: Vec<_> = (0..3).map(|_| bench.spawn_send(Message::user("hang"))).collect();
    run_ready_tasks().await;
    bench.service.drain(Duration::from_millis(50)).await;
    for sent in sends {
        let refused = sent.await.unwrap().unwrap_err();
        assert_eq!((refused.kind(), refused.retry_after_seconds()), (ErrorKind::Unavailable, Some(1)));
    }
    assert_eq!(bench.states_by_id().await.len(), 0);
    bench.wait_until_evicted().await;
}

#[tokio::test(start_paused = true)]
async fn streams_of_idle_tasks_are_cut_at_once() {
    for store in stores() {
        let bench = bench(store, scripted);
        let id = bench.send(Message::user("ask:what")).await.unwrap().id;
        let busy = bench.non_blocking().send(Message::user("work pass:1000 ask:what")).await.unwrap().id;
        let (mut idle, mut runs) = (bench.subscribe(&id).await.unwrap(), bench.subscribe(&busy).await.unwrap());
        assert_eq!(states(&ready_events(&mut idle)), [TaskState::InputRequired]);
        run_ready_tasks().await;
        let (started, draining) = (Instant::now(), drain(&bench).await);
        assert!(idle.next().await.unwrap().is_err());
        assert_eq!(started.elapsed(), Duration::ZERO);
        // The stream of the running task receives the end of its turn first.
        let seen: Vec<_> =
            runs.by_ref().take_while(|result| std::future::ready(result.is_ok())).map(Result::unwrap).collect().await;
        assert_eq!(states(&seen).last(), Some(&TaskState::InputRequired));
        assert_eq!(draining.await.unwrap(), Duration::from_secs(1));
    }
}

#[tokio::test(start_paused = true)]
async fn drain_rejects_new_work_and_serves_reads() {
    let mut limits = Limits::default();
    limits.cancel_grace = Duration::from_secs(1);
    for store in stores() {
        let bench = with_limits(store, limits.clone(), scripted);
        let id = bench.send(Message::user("ask:what")).await.unwrap().id;
        let runs = bench.non_blocking().send(Message::user("work hang")).await.unwrap().id;
        let stops = bench.non_blocking().send(Message::user("work hang")).await.unwrap().id;
        run_ready_tasks().await;
        let draining = drain(&bench).await;
        for _ in 0..2 {
            let non_blocking = bench.non_blocking();
            for refused in [
                bench.send(Message::user("done")).await.map(drop),
                bench.send(follow_up(&id, "done")).await.map(drop),
                non_blocking.send(follow_up(&runs, "done")).await.map(drop),
                bench.stream(Message::user("done")).await.map(drop),
            ] {
                let refused = refused.unwrap_err();
                assert_eq!((refused.kind(), refused.retry_after_seconds()), (ErrorKind::Unavailable, Some(1)));
            }
            assert_eq!(bench.state(&id).await, TaskState::InputRequired);
            assert_eq!(bench.states_by_id().await.len(), 3);
            // A subscriber receives the current task, and then the stream is cut.
            let mut events = bench.subscribe(&id).await.unwrap();
            assert_eq!(state_in(&next_event(&mut events).await), Some(TaskState::InputRequired));
            assert!(events.next().await.unwrap().is_err());
            if !draining.is_finished() {
                // Running tasks can still be canceled.
                assert_eq!(bench.cancel(&stops).await.unwrap().state(), TaskState::Canceled);
                assert!(!draining.is_finished());
                sleep_ms(10_000).await;
            }
        }
        // After the drain no agent could act on a cancel request.
        let started = Instant::now();
        assert_eq!(error_kind(bench.cancel(&runs).await), ErrorKind::Unavailable);
        assert_eq!(started.elapsed(), Duration::ZERO);
        assert_eq!(bench.state(&runs).await, TaskState::Working);
        bench.wait_until_evicted().await;
    }
}

#[tokio::test(start_paused = true)]
async fn agent_is_notified_of_the_drain() {
    let bench = bench(Arc::new(Memory::default()), |turn: Turn, out: Updates| async move {
        out.working().await?;
        turn.draining().await;
        out.save(&"half").await?;
        Ok::<_, agent::Error>(End::input_required("say when"))
    });
    let sent = bench.spawn_send(Message::user("go"));
    run_ready_tasks().await;
    assert_eq!(drain(&bench).await.await.unwrap(), Duration::ZERO);
    assert_eq!(sent.await.unwrap().unwrap().state(), TaskState::InputRequired);
}

/// The last update of the agent is being committed when the drain starts.
#[tokio::test(start_paused = true)]
async fn drain_waits_for_the_commit_of_a_finished_turn() {
    let gate = Gate::memory();
    let bench = bench(gate.store(), scripted);
    let sent = bench.spawn_send(Message::user("work pass:1000 ask:what"));
    gate.queue(CommitOutcome::Pass);
    run_ready_tasks().await;
    let id = bench.states_by_id().await.into_keys().next().unwrap();
    let mut events = bench.subscribe(&id).await.unwrap();
    assert_eq!(states(&ready_events(&mut events)), [TaskState::Working]);
    sleep_ms(1000).await;
    gate.wait_for_commit().await;
    let draining = drain(&bench).await;
    // The turn has ended, and its end is not durable.
    run_ready_tasks().await;
    assert!(events.next().now_or_never().is_none());
    assert!(!sent.is_finished() && !draining.is_finished());
    gate.open();
    assert_eq!(state_in(&next_event(&mut events).await), Some(TaskState::InputRequired));
    assert_eq!(sent.await.unwrap().unwrap().state(), TaskState::InputRequired);
    assert!(events.next().await.unwrap().is_err());
    draining.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn pending_follow_up_is_processed_during_drain() {
    let gate = Gate::memory();
    let bench = bench(gate.store(), scripted);
    // Commits of the task and of WORKING, which the reply waits for.
    gate.queue(CommitOutcome::Pass);
    gate.queue(CommitOutcome::Pass);
    let id = bench.non_blocking().send(Message::user("work pass:1000 ask:what")).await.unwrap().id;
    run_ready_tasks().await;
    let mut events = bench.subscribe(&id).await.unwrap();
    assert_eq!(states(&ready_events(&mut events)), [TaskState::Working]);
    let sent = bench.spawn_send(follow_up(&id, "done"));
    run_ready_tasks().await;
    gate.queue(CommitOutcome::Pass);
    sleep_ms(990).await;
    gate.queue(CommitOutcome::Fail);
    sleep_ms(10).await;
    let canceling = tokio::spawn({
        let (client, id) = (bench.client.clone(), id.clone());
        async move { client.cancel(&id).await }
    });
    let draining = drain(&bench).await;
    // The turns have ended, and their end is not durable.
    run_ready_tasks().await;
    assert!(events.next().now_or_never().is_none());
    assert!(!sent.is_finished() && !canceling.is_finished() && !draining.is_finished());
    gate.open();
    let all = [TaskState::InputRequired, TaskState::Working, TaskState::Completed];
    assert_eq!(states(&remaining_events(&mut events).await), all);
    draining.await.unwrap();
    assert_eq!(sent.await.unwrap().unwrap().state(), TaskState::Completed);
    assert_eq!(error_kind(canceling.await.unwrap()), ErrorKind::TaskNotCancelable);
}

/// The terminal state was being committed when the grace period ended: the outcome of the cancel is unknown.
#[tokio::test(start_paused = true)]
async fn cancel_with_unknown_outcome_is_unavailable_after_drain() {
    let gate = Gate::memory();
    let bench = bench(gate.store(), scripted);
    gate.queue(CommitOutcome::Pass);
    let id = bench.non_blocking().send(Message::user("work hang")).await.unwrap().id;
    gate.queue(CommitOutcome::Pass);
    run_ready_tasks().await;
    let canceling = tokio::spawn({
        let (client, id) = (bench.client.clone(), id.clone());
        async move { client.cancel(&id).await }
    });
    run_ready_tasks().await;
    bench.service.drain(Duration::from_secs(1)).await;
    assert_eq!(error_kind(canceling.await.unwrap()), ErrorKind::Unavailable);
    assert_eq!(bench.state(&id).await, TaskState::Working);
}

/// An update that a leaked handle sends after the drain is rejected.
#[tokio::test(start_paused = true)]
async fn nothing_is_committed_after_the_drain() {
    let store: Arc<dyn Store> = Arc::new(Memory::default());
    let bench = bench(Arc::clone(&store), |_: Turn, out: Updates| async move {
        out.working().await?;
        tokio::spawn(async move {
            sleep_ms(20_000).await;
            assert!(out.working().await.is_err());
        });
        std::future::pending().await
    });
    let sent = bench.spawn_send(Message::user("go"));
    run_ready_tasks().await;
    assert_eq!(drain(&bench).await.await.unwrap(), GRACE);
    let id = sent.await.unwrap().unwrap().id;
    sleep_ms(30_000).await;
    assert_eq!(bench.log(&*store, &id).await.len(), 2);
    bench.wait_until_evicted().await;
}

/// Drains the server, and lets all commits pass only after the stop. Returns the number of attempts of each open turn, and
/// of those that the stop has interrupted.
async fn attempts_after_a_late_commit(bench: &Bench, gate: &Gate) -> Vec<(u32, u32)> {
    let draining = drain(bench).await;
    sleep_ms(5500).await;
    assert!(!draining.is_finished());
    gate.open();
    draining.await.unwrap();
    let scope = Arc::new(Scope { owner: Arc::clone(&bench.call.owner), tenant: "".into() });
    let mut attempts = Vec::new();
    for id in bench.states_by_id().await.into_keys() {
        let row = gate.load(&TaskKey::new(&scope, &id)).await.unwrap().unwrap().row;
        if row.open {
            attempts.push((row.attempt, row.drained));
        }
    }
    attempts
}

/// The turn gets its place within the grace period, and the store acknowledges its begin after the stop.
#[tokio::test(start_paused = true)]
async fn queued_turn_whose_begin_is_recorded_after_the_stop_has_no_attempt() {
    let gate = Gate::memory();
    let mut limits = Limits::default();
    limits.turns = 1;
    let bench = with_limits(gate.store(), limits, scripted);
    // Commits of the first task and of WORKING, and of the second task.
    for _ in 0..3 {
        gate.queue(CommitOutcome::Pass);
    }
    bench.non_blocking().send(Message::user("work pass:1000 done")).await.unwrap();
    run_ready_tasks().await;
    bench.non_blocking().send(Message::user("work hang")).await.unwrap();
    assert_eq!(attempts_after_a_late_commit(&bench, &gate).await, [(0, 0)]);
    assert_eq!(bench.states_by_id().await.len(), 2);
}

/// The turn of a send with an idempotency key begins once its message is durable.
#[tokio::test(start_paused = true)]
async fn turn_whose_message_is_recorded_after_the_stop_has_no_attempt() {
    let gate = Gate::memory();
    let bench = bench(gate.store(), scripted);
    let mut keyed = bench.client.clone();
    keyed.call.idempotency_key = Some("key".to_owned());
    let sending = tokio::spawn(async move { keyed.non_blocking().send(Message::user("work hang")).await });
    run_ready_tasks().await;
    assert_eq!(attempts_after_a_late_commit(&bench, &gate).await, [(0, 0)]);
    assert_eq!(error_kind(sending.await.unwrap()), ErrorKind::Unavailable);
}

/// An agent whose update is interrupted by the drain has not failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_fails_no_task() {
    for n in 0..100 {
        let bench = bench(Arc::new(Memory::default()), |_: Turn, out: Updates| async move {
            loop {
                out.working().await?;
                yield_now().await;
            }
        });
        for _ in 0..3 {
            bench.non_blocking().send(Message::user("go")).await.unwrap();
        }
        for _ in 0..n % 10 {
            yield_now().await;
        }
        bench.service.drain(Duration::ZERO).await;
        for state in bench.states_by_id().await.into_values() {
            assert!([TaskState::Submitted, TaskState::Working].contains(&state), "{state:?}");
        }
        bench.wait_until_evicted().await;
    }
}
