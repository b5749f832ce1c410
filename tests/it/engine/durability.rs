//! Durability: replies, reads and streams expose only committed events, also when commits fail, conflict or are unacknowledged.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use a2a_service::{
    agent::End,
    error::ErrorKind,
    event::{Ends, Event},
    pb::v1::{ListTasksRequest, Message, TaskState},
    store::Commit,
};
use a2a_store_suite::writer::{TaskWriter, scope};
use futures::{FutureExt as _, StreamExt as _, poll};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::support::*;
use crate::gate::{CommitOutcome, Gate};

#[tokio::test(start_paused = true)]
async fn new_task_is_invisible_before_its_commit() {
    let gate = Gate::memory();
    let ids: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = Arc::clone(&ids);
    let bench = bench(gate.store(), move |turn, out| {
        seen.lock().push(turn.task_id().to_owned());
        ask(turn, out)
    });
    let mut streamed = bench.stream(Message::user("ask")).await.unwrap();
    let mut blocking = Box::pin(bench.send(Message::user("ask")));
    let non_blocking = bench.non_blocking();
    let mut immediate = Box::pin(non_blocking.send(Message::user("ask")));
    assert!(poll!(&mut blocking).is_pending() && poll!(&mut immediate).is_pending());
    gate.wait_for_commit().await;
    run_ready_tasks().await;
    assert!(streamed.next().now_or_never().is_none());
    assert!(poll!(&mut blocking).is_pending() && poll!(&mut immediate).is_pending());
    assert_eq!(bench.states_by_id().await.len(), 0);
    let ids = ids.lock().clone();
    assert_eq!(ids.len(), 3);
    for id in &ids {
        assert_eq!(error_kind(bench.get(id).await), ErrorKind::TaskNotFound);
        assert_eq!(error_kind(bench.cancel(id).await), ErrorKind::TaskNotFound);
        assert_eq!(error_kind(bench.subscribe(id).await), ErrorKind::TaskNotFound);
        assert_eq!(error_kind(bench.send(follow_up(id, "more")).await), ErrorKind::TaskNotFound);
    }
    gate.open();
    let states = states(&remaining_events(&mut streamed).await);
    assert_eq!(states, [TaskState::Submitted, TaskState::Working, TaskState::InputRequired]);
    assert_eq!(blocking.await.unwrap().state(), TaskState::InputRequired);
    assert!(ids.contains(&immediate.await.unwrap().id));
    assert_eq!(bench.states_by_id().await.into_values().collect::<Vec<_>>(), [TaskState::InputRequired; 3]);
}

#[tokio::test(start_paused = true)]
async fn end_of_a_task_is_invisible_before_its_commit() {
    let gate = Gate::memory();
    let bench = bench(gate.store(), ask);
    gate.queue(CommitOutcome::Pass);
    let id = bench.send(Message::user("ask")).await.unwrap().id;
    let mut subscribed = bench.subscribe(&id).await.unwrap();
    assert_eq!(states(&ready_events(&mut subscribed)), [TaskState::InputRequired]);
    // The end is accepted, and its commit is blocked at the gate.
    let mut done = Box::pin(bench.send(follow_up(&id, "done")));
    assert!(poll!(&mut done).is_pending());
    gate.wait_for_commit().await;
    let mut streamed = Box::pin(bench.stream(follow_up(&id, "late")));
    let (mut sent, mut canceled) = (Box::pin(bench.send(follow_up(&id, "late"))), Box::pin(bench.cancel(&id)));
    for _ in 0..20 {
        run_ready_tasks().await;
        assert!(poll!(&mut done).is_pending() && poll!(&mut sent).is_pending());
        assert!(poll!(&mut canceled).is_pending() && poll!(&mut streamed).is_pending());
        assert_eq!(ready_events(&mut subscribed), []);
        assert_eq!(bench.state(&id).await, TaskState::InputRequired);
        assert_eq!(bench.states_by_id().await[&id], TaskState::InputRequired);
        assert_eq!(history_texts(&bench.get(&id).await.unwrap()), ["ask"]);
        sleep_ms(40).await;
    }
    gate.open();
    assert_eq!(done.await.unwrap().state(), TaskState::Completed);
    assert_eq!(error_kind(sent.await), ErrorKind::TaskEnded);
    assert_eq!(error_kind(streamed.await), ErrorKind::TaskEnded);
    assert_eq!(error_kind(canceled.await), ErrorKind::TaskNotCancelable);
    assert_eq!(states(&remaining_events(&mut subscribed).await), [TaskState::Working, TaskState::Completed]);
}

/// A message is acknowledged after its own commit, so that no crash can lose it.
#[tokio::test(start_paused = true)]
async fn message_is_acknowledged_after_its_own_commit() {
    let gate = Gate::memory();
    let (bench, go) = paused_bench(gate.store());
    gate.queue(CommitOutcome::Pass);
    let id = bench.non_blocking().send(Message::user("ask")).await.unwrap().id;
    gate.wait_for_commit().await; // WORKING
    let (non_blocking, brief) = (bench.non_blocking(), bench.with_deadline(Duration::from_millis(10)));
    let mut accepted = Box::pin(non_blocking.send(follow_up(&id, "also")));
    let mut waited = Box::pin(brief.send(follow_up(&id, "this")));
    run_ready_tasks().await;
    assert!(poll!(&mut accepted).is_pending() && poll!(&mut waited).is_pending());
    gate.queue(CommitOutcome::Pass);
    run_ready_tasks().await;
    assert_eq!(bench.state(&id).await, TaskState::Working);
    assert!(poll!(&mut accepted).is_pending() && poll!(&mut waited).is_pending());
    gate.queue(CommitOutcome::Pass);
    assert_eq!(history_texts(&accepted.await.unwrap()), ["ask", "also"]);
    // By then the wait of the blocking sender has timed out, and it gets the unfinished task.
    sleep_ms(9).await;
    assert_eq!(history_texts(&waited.await.unwrap()), ["ask", "also", "this"]);
    gate.open();
    go.notify_one();
    run_ready_tasks().await;
    go.notify_one();
    run_ready_tasks().await;
    let task = bench.get(&id).await.unwrap();
    assert_eq!(
        (task.state(), history_texts(&task)),
        (TaskState::InputRequired, ["ask", "also", "this", "what?"].map(Into::into).into())
    );
}

#[tokio::test(start_paused = true)]
async fn last_durable_state_is_served_during_an_outage() {
    let gate = Gate::memory();
    let bench = bench(gate.store(), ask);
    gate.queue(CommitOutcome::Pass);
    let id = bench.send(Message::user("ask")).await.unwrap().id;
    let mut subscribed = bench.subscribe(&id).await.unwrap();
    assert_eq!(states(&ready_events(&mut subscribed)), [TaskState::InputRequired]);
    let mut done = Box::pin(bench.send(follow_up(&id, "done")));
    for _ in 0..12 {
        gate.queue(CommitOutcome::Fail);
        assert!(poll!(&mut done).is_pending());
        sleep_ms(400).await;
        assert_eq!(bench.state(&id).await, TaskState::InputRequired);
        assert_eq!(bench.states_by_id().await[&id], TaskState::InputRequired);
        assert_eq!(ready_events(&mut subscribed), []);
    }
    // New work is rejected with a retry hint by now; accepted work is kept.
    for refused in [bench.send(Message::user("ask")).await, bench.non_blocking().send(follow_up(&id, "more")).await] {
        let refused = refused.unwrap_err();
        assert_eq!((refused.kind(), refused.retry_after_seconds()), (ErrorKind::Unavailable, Some(1)));
    }
    let refused = bench.stream(Message::user("ask")).await.map(drop).unwrap_err();
    assert_eq!((refused.kind(), refused.retry_after_seconds()), (ErrorKind::Unavailable, Some(1)));
    gate.open();
    assert_eq!(done.await.unwrap().state(), TaskState::Completed);
    assert_eq!(states(&remaining_events(&mut subscribed).await), [TaskState::Working, TaskState::Completed]);
    assert_dense(&bench.log(&*gate, &id).await);
    assert_eq!(bench.send(Message::user("ask")).await.unwrap().state(), TaskState::InputRequired);
}

#[tokio::test(start_paused = true)]
async fn short_outage_is_not_reported() {
    let gate = Gate::memory();
    let bench = bench(gate.store(), ask);
    for _ in 0..3 {
        gate.queue(CommitOutcome::Fail);
    }
    gate.queue(CommitOutcome::Pass);
    let first = bench.send(Message::user("ask")).await.unwrap();
    gate.queue(CommitOutcome::Fail);
    let mut second = Box::pin(bench.send(Message::user("ask")));
    assert!(poll!(&mut second).is_pending());
    sleep_ms(900).await;
    gate.open();
    assert_eq!(bench.send(follow_up(&first.id, "done")).await.unwrap().state(), TaskState::Completed);
    assert_eq!(second.await.unwrap().state(), TaskState::InputRequired);
}

/// A commit was applied but not acknowledged; its retry recognises the own row instead of reporting another writer.
#[tokio::test(start_paused = true)]
async fn retry_of_an_applied_commit_succeeds() {
    let gate = Gate::memory();
    let bench = bench(gate.store(), ask);
    gate.queue(CommitOutcome::LoseReply);
    gate.queue(CommitOutcome::LoseReply);
    gate.queue(CommitOutcome::Pass);
    let id = bench.send(Message::user("ask")).await.unwrap().id;
    gate.queue(CommitOutcome::LoseReply);
    gate.queue(CommitOutcome::Fail);
    gate.queue(CommitOutcome::Pass);
    assert_eq!(bench.send(follow_up(&id, "done")).await.unwrap().state(), TaskState::Completed);
    assert_dense(&bench.log(&*gate, &id).await);
    assert_eq!(bench.states_by_id().await.len(), 1);
    bench.wait_until_evicted().await;
}

#[tokio::test(start_paused = true)]
async fn conflicting_writer_evicts_the_task() {
    let gate = Gate::memory();
    let guards = Arc::new(());
    let guard = Arc::clone(&guards);
    let bench = bench(gate.store(), move |turn, out| {
        let guard = Arc::clone(&guard);
        async move {
            if turn.text() != "hang" {
                return ask(turn, out).await;
            }
            out.working().await?;
            std::future::pending::<()>().await;
            drop(guard);
            Ok(End::Completed(None))
        }
    });
    gate.queue(CommitOutcome::Pass);
    let id = bench.send(Message::user("ask")).await.unwrap().id;
    let mut subscribed = bench.subscribe(&id).await.unwrap();
    assert_eq!(ready_events(&mut subscribed).len(), 1);
    gate.queue(CommitOutcome::Stale);
    assert_eq!(error_kind(bench.send(follow_up(&id, "hang")).await), ErrorKind::Unavailable);
    // Its streams are cut without an event, its agent is dropped, and the next access loads the stored state.
    assert!(subscribed.next().await.unwrap().is_err());
    assert!(subscribed.next().await.is_none());
    run_ready_tasks().await;
    assert_eq!(Arc::strong_count(&guards), 2);
    let task = bench.get(&id).await.unwrap();
    assert_eq!((task.state(), history_texts(&task)), (TaskState::InputRequired, vec!["ask".to_owned()]));
    assert_eq!(bench.log(&*gate, &id).await.len(), 3);
    gate.open();
    // Also while a subscriber still holds the evicted task.
    assert_eq!(bench.send(follow_up(&id, "done")).await.unwrap().state(), TaskState::Completed);
    drop(subscribed);
    assert_dense(&bench.log(&*gate, &id).await);
    bench.wait_until_evicted().await;
}

/// A queued turn ends with its task when another writer takes over the task.
#[tokio::test(start_paused = true)]
async fn queued_turn_is_dropped_when_its_task_is_evicted() {
    let gate = Gate::memory();
    let runs = Arc::new(AtomicUsize::new(0));
    let (go, counted) = (Arc::new(Notify::new()), Arc::clone(&runs));
    let notified = Arc::clone(&go);
    let bench = bench(gate.store(), move |turn, out| {
        counted.fetch_add(1, Ordering::SeqCst);
        let go = Arc::clone(&notified);
        async move {
            out.working().await?;
            go.notified().await;
            ask(turn, out).await
        }
    });
    for polled in [true, false] {
        gate.queue(CommitOutcome::Pass);
        let id = bench.non_blocking().send(Message::user("ask")).await.unwrap().id;
        gate.queue(CommitOutcome::Pass);
        run_ready_tasks().await;
        go.notify_one();
        run_ready_tasks().await;
        gate.wait_for_commit().await; // the end of the first turn
        let mut sent = Box::pin(bench.send(follow_up(&id, "more")));
        let non_blocking = bench.non_blocking();
        let mut accepted = Box::pin(non_blocking.send(follow_up(&id, "more")));
        if polled {
            assert!(poll!(&mut sent).is_pending() && poll!(&mut accepted).is_pending());
            run_ready_tasks().await;
            gate.queue(CommitOutcome::Stale);
        } else {
            // The journal learns of the conflict before the turn is polled.
            gate.queue(CommitOutcome::Stale);
            assert!(poll!(&mut sent).is_pending() && poll!(&mut accepted).is_pending());
        }
        assert_eq!(error_kind(sent.await), ErrorKind::Unavailable);
        assert_eq!(error_kind(accepted.await), ErrorKind::Unavailable);
        bench.wait_until_evicted().await;
    }
    let started = Instant::now();
    bench.service.drain(Duration::from_secs(10)).await;
    assert_eq!((started.elapsed(), runs.load(Ordering::SeqCst)), (Duration::ZERO, 2));
}

#[tokio::test(start_paused = true)]
async fn subscription_during_the_final_commit_sees_one_end() {
    let gate = Gate::memory();
    let bench = bench(gate.store(), ask);
    gate.queue(CommitOutcome::Pass);
    let id = bench.send(Message::user("ask")).await.unwrap().id;
    let done = bench.spawn_send(follow_up(&id, "done"));
    gate.wait_for_commit().await;
    run_ready_tasks().await;
    let mut subscribed = bench.subscribe(&id).await.unwrap();
    gate.open();
    let events = remaining_events(&mut subscribed).await;
    assert_eq!(states(&events), [TaskState::InputRequired, TaskState::Working, TaskState::Completed]);
    assert_eq!(events.iter().map(Event::ends).filter(|ends| *ends == Ends::Task).count(), 1);
    assert_eq!(events.len(), 4);
    done.await.unwrap().unwrap();
    let mut subscribed = Some(subscribed);
    for _ in 0..2 {
        // Terminal for every request, while a reader holds the task in memory and after its eviction.
        assert_eq!(error_kind(bench.subscribe(&id).await), ErrorKind::TaskEnded);
        assert_eq!(error_kind(bench.send(follow_up(&id, "more")).await), ErrorKind::TaskEnded);
        assert_eq!(error_kind(bench.cancel(&id).await), ErrorKind::TaskNotCancelable);
        drop(subscribed.take());
        bench.wait_until_evicted().await;
    }
    // A cursor returns the events that were missed, also of a terminal task.
    let mut resumed = bench.resume(&id, events[1].cursor()).await.unwrap();
    assert_eq!(seqs(&remaining_events(&mut resumed).await), [6, 7]);
}

#[tokio::test(start_paused = true)]
async fn reads_are_unavailable_while_the_store_cannot_be_read() {
    let gate = Gate::opened();
    let bench = bench(gate.store(), ask);
    let id = bench.send(Message::user("ask")).await.unwrap().id;
    bench.wait_until_evicted().await;
    gate.fail_reads(true);
    let list = bench.list(ListTasksRequest::default()).await.map(drop);
    for refused in [bench.get(&id).await.map(drop), list, bench.cancel(&id).await.map(drop)] {
        let refused = refused.unwrap_err();
        assert_eq!((refused.kind(), refused.retry_after_seconds()), (ErrorKind::Unavailable, Some(1)));
        assert!(!refused.to_string().contains("by the test"), "{refused}");
    }
    gate.fail_reads(false);
    assert_eq!(bench.send(follow_up(&id, "done")).await.unwrap().state(), TaskState::Completed);
    bench.wait_until_evicted().await;
}

/// While nothing is committed, the agent is suspended at its bound, and no earlier update is lost.
#[tokio::test(start_paused = true)]
async fn uncommitted_updates_of_an_agent_are_bounded() {
    let gate = Gate::memory();
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let bench = bench(gate.store(), move |_, out| {
        let sent = Arc::clone(&counted);
        async move {
            for n in 0..500 {
                out.progress(n.to_string()).await?;
                sent.fetch_add(1, Ordering::SeqCst);
            }
            Ok(End::Completed(None))
        }
    });
    let mut streamed = bench.stream(Message::user("go")).await.unwrap();
    run_ready_tasks().await;
    sleep_ms(2000).await;
    assert!(sent.load(Ordering::SeqCst) <= 64);
    gate.open();
    assert_dense(&remaining_events(&mut streamed).await);
    assert_eq!(sent.load(Ordering::SeqCst), 500);
}

/// The end of a turn and the next message share a commit that includes a checkpoint; the sender still gets the task as
/// of the end of its turn.
#[tokio::test(start_paused = true)]
async fn reply_has_the_task_as_of_its_turn_when_later_events_share_the_commit() {
    let gate = Gate::memory();
    let go = Arc::new(Notify::new());
    let notified = Arc::clone(&go);
    let bench = bench(gate.store(), move |turn, out| {
        let go = Arc::clone(&notified);
        async move {
            out.progress("one").await?;
            go.notified().await;
            out.progress("two").await?;
            go.notified().await;
            ask(turn, out).await
        }
    });
    gate.queue(CommitOutcome::Pass);
    let sent = bench.spawn_send(Message::user("ask"));
    run_ready_tasks().await;
    let id = bench.states_by_id().await.into_keys().next().unwrap();
    go.notify_one();
    gate.wait_for_commit().await;
    go.notify_one();
    run_ready_tasks().await;
    // The end of the turn waits for the commit before it, and a message is queued behind it.
    let long = "x".repeat(20_000);
    let next = bench.spawn_send(follow_up(&id, &long));
    run_ready_tasks().await;
    assert!(!sent.is_finished());
    gate.queue(CommitOutcome::Pass);
    gate.queue(CommitOutcome::Pass);
    let task = sent.await.unwrap().unwrap();
    assert_eq!((task.state(), status_text(&task)), (TaskState::InputRequired, "what?".into()));
    assert_eq!(history_texts(&task), ["ask", "one", "two"]);
    assert_eq!(history_texts(&bench.get(&id).await.unwrap()), ["ask", "one", "two", "what?", &long]);
    gate.open();
    for _ in 0..2 {
        run_ready_tasks().await;
        go.notify_one();
    }
    assert_eq!(next.await.unwrap().unwrap().state(), TaskState::InputRequired);
    bench.wait_until_evicted().await;
}

/// Checks the fence of a recovered task: that of its claim differs from that of new tasks if several processes claim tasks of
/// one store.
#[tokio::test(start_paused = true)]
async fn recovered_task_has_the_fence_of_its_claim() {
    let gate = Gate::opened();
    let store = gate.store();
    let mut writer = TaskWriter::new(&scope("ada", ""), "t-1");
    writer.commit(&*store, []).await.unwrap().unwrap();
    let fence = store.first_fence() + 6;
    writer.write(&*store, Commit { fence, ..writer.next(&*store, []) }).await.unwrap().unwrap();
    let claimed = store.load(&writer.key).await.unwrap().unwrap();
    gate.queue_claim((writer.key.clone(), Ok(claimed)));
    let bench = bench(gate.store(), scripted);
    let created = bench.send(Message::user("go")).await.unwrap();
    bench.wait_until_evicted().await;
    let fences = |log: Vec<Event>| log.iter().map(|event| event.position().fence).collect::<Vec<_>>();
    let recovered = bench.log(&*store, "t-1").await;
    assert_eq!(states(&recovered), [TaskState::Submitted, TaskState::Failed]);
    assert_eq!(fences(recovered), [fence - 6, fence]);
    assert_eq!(store.load(&writer.key).await.unwrap().unwrap().position.fence, fence);
    assert!(fences(bench.log(&*store, &created.id).await).iter().all(|fence| *fence == store.first_fence()));
}
