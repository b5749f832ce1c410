//! Changes that the store can never take: their task fails with the name of the limit, and nothing else is affected.

use std::sync::Arc;

use a2a_service::{
    agent::{self, Agent, End, Turn, Updates},
    call::Call,
    error::{Error, ErrorKind},
    pb::v1::{Message, Task, TaskState},
};
use futures::future::join;

use super::support::*;
use crate::gate::Gate;

/// Largest change in bytes of events, and a text that does not fit.
const LARGEST: usize = 2000;
const LONG: usize = 5000;

/// Writes a small or a large artifact, at once or after a second.
async fn write(turn: Turn, out: Updates) -> Result<End, agent::Error> {
    let text = turn.text();
    let large = "x".repeat(LONG);
    match text {
        "ask" => return Ok(End::InputRequired(Message::agent("what?"))),
        "late" | "late ask" => {
            out.progress("so far").await?;
            pass(1000).await;
            out.artifact("large").text(large).await?;
        }
        "large" => out.artifact("large").text(large).await?,
        _ => out.artifact("small").text("small").await?,
    }
    match text {
        "late" => std::future::pending().await,
        "late ask" => Ok(End::InputRequired(Message::agent("more?"))),
        _ => Ok(End::Completed(None)),
    }
}

fn limited_to(bytes: usize) -> (Arc<Gate>, Bench<impl Agent>) {
    let gate = Gate::opened();
    gate.limit(bytes);
    let bench = bench(gate.store(), write);
    (gate, bench)
}

fn failed(task: &Task, history: &[&str]) {
    assert_eq!(task.state(), TaskState::Failed, "{task:?}");
    assert!(said(task).contains("(limit store.max_size)"), "{}", said(task));
    assert_eq!((texts(task), task.artifacts.len()), (history.iter().map(|it| (*it).to_owned()).collect(), 0));
}

#[tokio::test(start_paused = true)]
async fn a_result_that_can_not_be_stored_fails_its_task_and_no_other() {
    let (gate, bench) = limited_to(LARGEST);
    let (large, small) = join(bench.send(Message::user("large")), bench.send(Message::user("small"))).await;
    let large = large.unwrap();
    failed(&large, &["large"]);
    assert_eq!(bench.get(&large.id).await.unwrap(), large);
    assert_eq!(small.unwrap().state(), TaskState::Completed);
    // Of a task that is there, the message stays that its turn was given.
    let asked = bench.send(Message::user("ask")).await.unwrap();
    failed(&bench.send(to(&asked.id, "large")).await.unwrap(), &["ask", "what?", "large"]);
    let events = rest(&mut bench.stream(Message::user("large")).await.unwrap()).await;
    assert_eq!(states(&events), [TaskState::Submitted, TaskState::Failed]);
    let asked = bench.send(Message::user("ask")).await.unwrap();
    let events = rest(&mut bench.stream(to(&asked.id, "large")).await.unwrap()).await;
    assert_eq!(states(&events).last(), Some(&TaskState::Failed));
    for id in bench.listed().await.keys() {
        dense(&bench.log(&*gate, id).await);
    }
    bench.empty().await;
}

/// The agent is stopped, and so is a turn that waits for the end of the one before it.
#[tokio::test(start_paused = true)]
async fn a_turn_that_runs_is_ended() {
    for text in ["late", "late ask"] {
        let (gate, bench) = limited_to(LARGEST);
        let first = bench.sending(Message::user(text));
        settle().await;
        let id = bench.listed().await.into_keys().next().unwrap();
        let mut events = bench.subscribe(&id).await.unwrap();
        let second = bench.sending(to(&id, "small"));
        for sent in [first, second] {
            failed(&sent.await.unwrap().unwrap(), &[text, "so far", "small"]);
        }
        assert_eq!(states(&rest(&mut events).await).last(), Some(&TaskState::Failed));
        drop(events);
        dense(&bench.log(&*gate, &id).await);
        bench.empty().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_can_not_be_stored_is_refused() {
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
    for client in [keyed("new"), bench.client.clone(), bench.hasty()] {
        refused(client.send(Message::user(&long)).await);
    }
    assert!(bench.listed().await.is_empty());
    // The turn has not begun: the task is as it was.
    let asked = bench.send(Message::user("ask")).await.unwrap();
    refused(keyed("more").send(to(&asked.id, &long)).await);
    assert_eq!(bench.get(&asked.id).await.unwrap(), asked);
    // It has run, and what came of it is lost with the message.
    refused(bench.send(to(&asked.id, &long)).await);
    failed(&bench.get(&asked.id).await.unwrap(), &["ask", "what?"]);
    dense(&bench.log(&*gate, &asked.id).await);
    bench.empty().await;
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_can_not_be_stored_leaves_the_task_as_it_is() {
    let (gate, bench) = limited_to(LARGEST);
    let sent = bench.sending(Message::user("late"));
    settle().await;
    let id = bench.listed().await.into_keys().next().unwrap();
    gate.limit(1);
    assert_eq!(kind(sent.await.unwrap()), ErrorKind::ResourceExhausted);
    bench.empty().await;
    assert_eq!(bench.state(&id).await, TaskState::Working);
    // The store is not taken for unavailable, however often that is tried.
    for _ in 0..3 {
        assert_eq!(kind(bench.send(Message::user("small")).await), ErrorKind::ResourceExhausted);
        pass(1000).await;
    }
    gate.limit(LARGEST);
    assert_eq!(bench.send(Message::user("small")).await.unwrap().state(), TaskState::Completed);
}
