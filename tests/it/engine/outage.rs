//! Store outages: pending changes are rolled back or reported as unknown, and service resumes when the store returns.

use std::{sync::Arc, time::Duration};

use a2a_service::{
    agent::{self, End, Turn, Updates},
    call::Call,
    error::{Error, ErrorKind},
    pb::v1::{Message, TaskState},
    service::Limits,
};
use futures::{FutureExt as _, StreamExt as _, poll};
use tokio::time::Instant;

use super::support::*;
use crate::gate::{CommitOutcome, Gate};

/// Asserts a retryable `Unavailable` error whose message ends with `ending`.
fn assert_unavailable(error: &Error, ending: &str) {
    assert_eq!((error.kind(), error.retry_after_seconds()), (ErrorKind::Unavailable, Some(1)), "{error}");
    assert!(error.to_string().ends_with(ending), "{error}");
}

/// Seconds after which waiting senders get an error.
const SOON: std::ops::Range<u64> = 5..7;

const NOTHING: &str = "nothing was recorded, but the agent may have run; retry later";
const UNKNOWN: &str = "the outcome is not recorded yet, but may still be; read the task before a retry";

#[tokio::test(start_paused = true)]
async fn unacknowledged_changes_are_rolled_back_after_the_limit() {
    let gate = Gate::opened();
    let running = Arc::new(());
    let counted = Arc::clone(&running);
    let bench = bench(gate.store(), move |turn: Turn, out: Updates| {
        let guard = Arc::clone(&counted);
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
    let asked = bench.send(Message::user("ask")).await.unwrap();
    let other = bench.send(Message::user("ask")).await.unwrap();
    gate.fail_commits(true);
    let started = Instant::now();
    let mut streamed = bench.stream(Message::user("hang")).await.unwrap();
    let followed = bench.stream(follow_up(&other.id, "hang")).await;
    let sends = [
        bench.spawn_send(Message::user("hang")),
        bench.spawn_send(Message::user("done")),
        bench.non_blocking().spawn_send(Message::user("hang")),
        bench.spawn_send(follow_up(&asked.id, "hang")),
        bench.non_blocking().spawn_send(follow_up(&asked.id, "more")),
    ];
    run_ready_tasks().await;
    assert_eq!(Arc::strong_count(&running), 2 + 5, "each of the five turns runs");
    for sent in sends {
        assert_unavailable(&sent.await.unwrap().unwrap_err(), NOTHING);
    }
    let waited = started.elapsed();
    assert!(SOON.contains(&waited.as_secs()), "{waited:?}");
    let cut: Error = streamed.next().await.unwrap().unwrap_err().into();
    assert_unavailable(&cut, NOTHING);
    let cut: Error = followed.unwrap().next().await.unwrap().unwrap_err().into();
    assert_unavailable(&cut, NOTHING);
    drop(streamed);
    bench.wait_until_evicted().await;
    assert_eq!(Arc::strong_count(&running), 2, "no rolled-back turn still runs");
    // Memory agrees with the store, and later requests load the stored state.
    assert_eq!(bench.get(&asked.id).await.unwrap(), asked);
    assert_eq!(bench.states_by_id().await.into_values().collect::<Vec<_>>(), [TaskState::InputRequired; 2]);
    gate.fail_commits(false);
    sleep_ms(5000).await;
    assert_eq!(bench.states_by_id().await.len(), 2);
    for task in [&asked, &other] {
        let done = bench.send(follow_up(&task.id, "done")).await.unwrap();
        assert_eq!(
            (done.state(), history_texts(&done)),
            (TaskState::Completed, ["ask", "what?", "done"].map(Into::into).into())
        );
        assert_dense(&bench.log(&*gate, &task.id).await);
    }
    bench.wait_until_evicted().await;
}

/// A turn that the store has recorded continues; its messages are kept.
#[tokio::test(start_paused = true)]
async fn recorded_turn_is_not_rolled_back() {
    let gate = Gate::opened();
    let (bench, go) = paused_bench(gate.store());
    let mut first = Box::pin(bench.send(Message::user("done")));
    assert!(poll!(&mut first).is_pending());
    run_ready_tasks().await;
    let id = bench.states_by_id().await.into_keys().next().unwrap();
    gate.fail_commits(true);
    let started = Instant::now();
    let also = bench.non_blocking().spawn_send(follow_up(&id, "also"));
    for sent in [also, bench.spawn_send(follow_up(&id, "this"))] {
        assert_unavailable(&sent.await.unwrap().unwrap_err(), UNKNOWN);
        let waited = started.elapsed();
        assert!(SOON.contains(&waited.as_secs()), "{waited:?}");
    }
    // A sender whose message is durable gets the error too: the result may not be recorded.
    assert_unavailable(&first.await.unwrap_err(), UNKNOWN);
    assert_eq!((bench.state(&id).await, history_texts(&bench.get(&id).await.unwrap()).len()), (TaskState::Working, 1));
    gate.fail_commits(false);
    go.notify_one();
    drop(remaining_events(&mut bench.subscribe(&id).await.unwrap()).await);
    assert_eq!(bench.state(&id).await, TaskState::Completed);
    assert_eq!(
        history_texts(&bench.get(&id).await.unwrap()),
        ["done", "also", "this"],
        "messages accepted during the outage are kept"
    );
    assert_dense(&bench.log(&*gate, &id).await);
    bench.wait_until_evicted().await;
}

/// The commit was applied although its acknowledgement was lost.
#[tokio::test(start_paused = true)]
async fn applied_but_unacknowledged_commit_is_not_rolled_back() {
    let gate = Gate::opened();
    gate.queue(CommitOutcome::LoseReply);
    gate.fail_commits(true);
    let bench = bench(gate.store(), ask);
    let sent = bench.spawn_send(Message::user("ask"));
    assert_unavailable(&sent.await.unwrap().unwrap_err(), UNKNOWN);
    sleep_ms(10_000).await;
    gate.fail_commits(false);
    sleep_ms(2000).await;
    let (id, state) = bench.states_by_id().await.into_iter().next().unwrap();
    assert_eq!(state, TaskState::InputRequired);
    assert_eq!(bench.send(follow_up(&id, "done")).await.unwrap().state(), TaskState::Completed);
    assert_dense(&bench.log(&*gate, &id).await);
    bench.wait_until_evicted().await;
}

/// Without reads, the store cannot prove that a commit was not applied.
#[tokio::test(start_paused = true)]
async fn commit_is_not_rolled_back_while_the_store_cannot_be_read() {
    let gate = Gate::opened();
    gate.fail_commits(true);
    gate.fail_reads(true);
    let bench = bench(gate.store(), ask);
    let sent = bench.spawn_send(Message::user("ask"));
    assert_unavailable(&sent.await.unwrap().unwrap_err(), UNKNOWN);
    gate.fail_commits(false);
    gate.fail_reads(false);
    sleep_ms(2000).await;
    assert_eq!(bench.states_by_id().await.into_values().collect::<Vec<_>>(), [TaskState::InputRequired]);
    bench.wait_until_evicted().await;
}

/// A draining server reports sends whose commit is pending as unavailable.
#[tokio::test(start_paused = true)]
async fn drain_fails_sends_that_are_not_durable() {
    let gate = Gate::opened();
    let bench = bench(gate.store(), |_: Turn, out: Updates| async move {
        out.working().await?;
        std::future::pending::<Result<End, agent::Error>>().await
    });
    let first = bench.spawn_send(Message::user("hang"));
    run_ready_tasks().await;
    let id = bench.states_by_id().await.into_keys().next().unwrap();
    gate.fail_commits(true);
    let late = [bench.spawn_send(follow_up(&id, "late")), bench.non_blocking().spawn_send(follow_up(&id, "late"))];
    run_ready_tasks().await;
    bench.service.drain(Duration::from_secs(1)).await;
    for sent in late {
        assert_eq!(error_kind(sent.await.unwrap()), ErrorKind::Unavailable);
    }
    let first = first.now_or_never().unwrap().unwrap().unwrap();
    assert_eq!((first.state(), history_texts(&first)), (TaskState::Working, vec!["hang".to_owned()]));
}

/// After a rollback the store is probed, and new work is accepted as soon as it recovers.
#[tokio::test(start_paused = true)]
async fn store_recovery_is_detected_by_probing() {
    let gate = Gate::opened();
    gate.fail_commits(true);
    let bench = bench(gate.store(), ask);
    assert_unavailable(&bench.send(Message::user("ask")).await.unwrap_err(), NOTHING);
    for _ in 0..20 {
        assert_eq!(error_kind(bench.send(Message::user("ask")).await), ErrorKind::Unavailable);
        sleep_ms(1000).await;
    }
    gate.fail_commits(false);
    sleep_ms(1000).await;
    assert_eq!(bench.send(Message::user("ask")).await.unwrap().state(), TaskState::InputRequired);
    // If health checks keep failing, new work is used as a probe after a minute.
    gate.fail_commits(true);
    assert_unavailable(&bench.send(Message::user("ask")).await.unwrap_err(), NOTHING);
    gate.fail_commits(false);
    gate.fail_reads(true);
    sleep_ms(55_000).await;
    assert_eq!(error_kind(bench.send(Message::user("ask")).await), ErrorKind::Unavailable);
    sleep_ms(10_000).await;
    assert_eq!(bench.send(Message::user("ask")).await.unwrap().state(), TaskState::InputRequired);
}

/// A waiting sender gets an error once the outage exceeds the limit, however long its turn takes; a short outage is not
/// reported.
#[tokio::test(start_paused = true)]
async fn long_outage_fails_waiting_senders_and_short_outage_does_not() {
    let gate = Gate::opened();
    let mut limits = Limits::default();
    limits.send_timeout = Some(Duration::from_hours(24));
    let bench = with_limits(gate.store(), limits, scripted);
    let hang = Message::user("work pass:60000 done");
    let keyed =
        Client { call: Call { idempotency_key: Some("key".into()), ..bench.call.clone() }, ..bench.client.clone() };
    let (first, keyed_send, repeated) =
        (bench.spawn_send(hang.clone()), keyed.spawn_send(hang.clone()), keyed.spawn_send(hang.clone()));
    run_ready_tasks().await;
    let mut sends = [first, keyed_send, repeated];
    gate.fail_commits(true);
    let late = bench.spawn_send(Message::user("work done"));
    sleep_ms(4000).await;
    gate.fail_commits(false);
    assert_eq!(late.await.unwrap().unwrap().state(), TaskState::Completed);
    sleep_ms(5000).await;
    assert!(sends.iter_mut().all(|sent| sent.now_or_never().is_none()), "senders still wait");
    gate.fail_commits(true);
    let started = Instant::now();
    assert_unavailable(&bench.send(Message::user("work done")).await.unwrap_err(), NOTHING);
    for sent in sends {
        let error = sent.await.unwrap().unwrap_err();
        assert_unavailable(&error, UNKNOWN);
        let waited = started.elapsed();
        assert!(SOON.contains(&waited.as_secs()), "{waited:?}");
    }
    gate.fail_commits(false);
    sleep_ms(60_000).await;
    assert_eq!(
        bench.states_by_id().await.into_values().collect::<Vec<_>>(),
        [TaskState::Completed; 3],
        "turns continue during the outage"
    );
    bench.wait_until_evicted().await;
}
