//! Changes that the store can never take: their task fails with the name of the limit, and nothing else is affected.

use std::sync::Arc;

use a2a_service::{
    agent::{self, End, Turn, Updates},
    call::Call,
    error::{Error, ErrorKind},
    pb::v1::{Message, Task, TaskState},
    service::Limits,
};
use futures::future::join;

use super::support::*;
use crate::gate::Gate;

/// Maximum size of a change in bytes of events, and the length of a text that exceeds it.
const LARGEST: usize = 2000;
const LONG: usize = 5000;

/// Writes a small or a large artifact, at once or after a second.
async fn write(turn: Turn, out: Updates) -> Result<End, agent::Error> {
    let text = turn.text();
    let large = "x".repeat(LONG);
    match text {
        "ask" => return Ok(End::input_required("what?")),
        "hang" => std::future::pending().await,
        "late" | "late ask" => {
            out.progress("so far").await?;
            sleep_ms(1000).await;
            out.artifact("large").text(large).await?;
        }
        "large" => out.artifact("large").text(large).await?,
        _ => out.artifact("small").text("small").await?,
    }
    match text {
        "late" => std::future::pending().await,
        "late ask" => Ok(End::input_required("more?")),
        _ => Ok(End::Completed(None)),
    }
}

fn limited_to(bytes: usize) -> (Arc<Gate>, Bench) {
    let gate = Gate::opened();
    gate.limit_change_size(bytes);
    let bench = bench(gate.store(), write);
    (gate, bench)
}

fn assert_failed(task: &Task, history: &[&str]) {
    assert_eq!(task.state(), TaskState::Failed, "{task:?}");
    assert!(status_text(task).contains("(limit store.max_size)"), "{}", status_text(task));
    assert_eq!(
        (history_texts(task), task.artifacts.len()),
        (history.iter().map(|text| (*text).to_owned()).collect(), 0)
    );
}

#[tokio::test(start_paused = true)]
async fn result_that_cannot_be_stored_fails_only_its_task() {
    let (gate, bench) = limited_to(LARGEST);
    let (large, small) = join(bench.send(Message::user("large")), bench.send(Message::user("small"))).await;
    let large = large.unwrap();
    assert_failed(&large, &["large"]);
    assert_eq!(bench.get(&large.id).await.unwrap(), large);
    assert_eq!(small.unwrap().state(), TaskState::Completed);
    // The message of a follow-up is kept when the result of its turn is not.
    let asked = bench.send(Message::user("ask")).await.unwrap();
    assert_failed(&bench.send(follow_up(&asked.id, "large")).await.unwrap(), &["ask", "what?", "large"]);
    let events = remaining_events(&mut bench.stream(Message::user("large")).await.unwrap()).await;
    assert_eq!(states(&events), [TaskState::Submitted, TaskState::Failed]);
    let asked = bench.send(Message::user("ask")).await.unwrap();
    let events = remaining_events(&mut bench.stream(follow_up(&asked.id, "large")).await.unwrap()).await;
    assert_eq!(states(&events).last(), Some(&TaskState::Failed));
    for id in bench.states_by_id().await.keys() {
        assert_dense(&bench.log(&*gate, id).await);
    }
    bench.wait_until_evicted().await;
}

/// The agent is stopped, and so is a turn that waits for the end of the one before it.
#[tokio::test(start_paused = true)]
async fn running_turn_is_stopped_when_its_change_is_rejected() {
    for text in ["late", "late ask"] {
        let (gate, bench) = limited_to(LARGEST);
        let first = bench.spawn_send(Message::user(text));
        run_ready_tasks().await;
        let id = bench.states_by_id().await.into_keys().next().unwrap();
        let mut events = bench.subscribe(&id).await.unwrap();
        let second = bench.spawn_send(follow_up(&id, "small"));
        for sent in [first, second] {
            assert_failed(&sent.await.unwrap().unwrap(), &[text, "so far", "small"]);
        }
        assert_eq!(states(&remaining_events(&mut events).await).last(), Some(&TaskState::Failed));
        drop(events);
        assert_dense(&bench.log(&*gate, &id).await);
        bench.wait_until_evicted().await;
    }
}

#[tokio::test(start_paused = true)]
async fn message_that_cannot_be_stored_is_rejected() {
    let (gate, bench) = limited_to(LARGEST);
    let long = "x".repeat(LONG);
    let keyed = |key: &str| Client {
        call: Call { idempotency_key: Some(key.into()), ..bench.call.clone() },
        ..bench.client.clone()
    };
    let refused = |result: Result<Task, Error>| {
        let error = result.unwrap_err();
        assert_eq!((error.kind(), error.retry_after_seconds()), (ErrorKind::ResourceExhausted, None), "{error}");
        assert!(error.to_string().contains("(store.max_size)"), "{error}");
    };
    for client in [keyed("new"), bench.client.clone(), bench.non_blocking()] {
        refused(client.send(Message::user(&long)).await);
    }
    assert!(bench.states_by_id().await.is_empty());
    // A keyed send is committed before its turn starts: the task is unchanged.
    let asked = bench.send(Message::user("ask")).await.unwrap();
    refused(keyed("more").send(follow_up(&asked.id, &long)).await);
    assert_eq!(bench.get(&asked.id).await.unwrap(), asked);
    // Without a key the turn has run, and its result is lost with the message.
    refused(bench.send(follow_up(&asked.id, &long)).await);
    assert_failed(&bench.get(&asked.id).await.unwrap(), &["ask", "what?"]);
    assert_dense(&bench.log(&*gate, &asked.id).await);
    bench.wait_until_evicted().await;
}

/// The turn does not wait for a place to fail.
#[tokio::test(start_paused = true)]
async fn queued_turn_fails_when_its_message_is_rejected() {
    let gate = Gate::opened();
    gate.limit_change_size(LARGEST);
    let mut limits = Limits::default();
    limits.turns = 1;
    let bench = with_limits(gate.store(), limits, write);
    let asked = bench.send(Message::user("ask")).await.unwrap();
    let running = bench.non_blocking().send(Message::user("hang")).await.unwrap();
    let rejected = bench.send(follow_up(&asked.id, &"x".repeat(LONG))).await;
    assert_eq!(error_kind(rejected), ErrorKind::ResourceExhausted);
    run_ready_tasks().await;
    assert_failed(&bench.get(&asked.id).await.unwrap(), &["ask", "what?"]);
    assert!(!bench.state(&running.id).await.is_terminal());
}

#[tokio::test(start_paused = true)]
async fn failure_that_cannot_be_stored_leaves_the_task_unchanged() {
    let (gate, bench) = limited_to(LARGEST);
    let sent = bench.spawn_send(Message::user("late"));
    run_ready_tasks().await;
    let id = bench.states_by_id().await.into_keys().next().unwrap();
    gate.limit_change_size(1);
    assert_eq!(error_kind(sent.await.unwrap()), ErrorKind::ResourceExhausted);
    bench.wait_until_evicted().await;
    assert_eq!(bench.state(&id).await, TaskState::Working);
    // Rejections, however many, do not make the store count as unavailable.
    for _ in 0..3 {
        assert_eq!(error_kind(bench.send(Message::user("small")).await), ErrorKind::ResourceExhausted);
        sleep_ms(1000).await;
    }
    gate.limit_change_size(LARGEST);
    assert_eq!(bench.send(Message::user("small")).await.unwrap().state(), TaskState::Completed);
}
