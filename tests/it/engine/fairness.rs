//! Fairness between owners: their turns at the store, and the memory of their live tasks.

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
    pb::v1::{Message, TaskState},
    service::{Limits, LiveMemory},
};
use futures::future::join_all;
use tokio::{task::JoinHandle, time::Instant};

use super::support::*;
use crate::gate::{Changes, CommitOutcome, Gate};

const MIB: usize = 1 << 20;

/// Sends as many artifact chunks of 1 MiB as the message says, and then does what the rest of the message says.
async fn write(turn: Turn, out: Updates) -> Result<End, agent::Error> {
    let (chunks, rest) = turn.text().split_once(' ').unwrap_or((turn.text(), ""));
    let mut artifact = out.artifact("a");
    for _ in 0..chunks.parse()? {
        artifact.text("x".repeat(MIB)).await?;
    }
    match rest {
        "hang" => std::future::pending().await,
        "ask" => Ok(End::input_required("more?")),
        _ => Ok(End::Completed(None)),
    }
}

/// Limits with so many MiB for live tasks.
fn with_memory(mib: usize) -> Limits {
    Limits::default().live_memory(LiveMemory::new(mib * MIB))
}

fn assert_memory_full(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}");
    assert_eq!((error.metadata("limit"), error.retry_after_seconds()), (Some("live_bytes"), Some(1)));
    assert!(error.to_string().contains("limits.memory"), "{error}");
}

/// A thousand changes of an owner do not fit in a batch. Those of another owner, queued last, are in the next one.
#[tokio::test(start_paused = true)]
async fn owners_take_turns_at_the_store() {
    let gate = Gate::memory();
    let bench = bench(gate.store(), write);
    let (ada, bob) = (bench.non_blocking(), bench.as_owner("bob"));
    let mut sent = vec![ada.spawn_send(Message::user("0"))];
    gate.wait_for_commit().await;
    sent.extend((0..1200).map(|_| ada.spawn_send(Message::user("0"))));
    run_ready_tasks().await;
    sent.push(bob.spawn_send(Message::user("0")));
    run_ready_tasks().await;
    gate.queue(CommitOutcome::Pass);
    gate.queue(CommitOutcome::Pass);
    run_ready_tasks().await;
    assert!(sent.pop().unwrap().is_finished());
    gate.open();
    for sent in join_all(sent).await {
        sent.unwrap().unwrap();
    }
    let batches = gate.batches();
    assert!(batches[1].len() > 500 && batches[1].iter().any(|(owner, _)| **owner == *"bob"));
}

/// A batch is bounded in bytes, so that nothing waits for long, and small changes do not wait for the large ones of their owner.
#[tokio::test(start_paused = true)]
async fn batches_are_bounded_in_bytes() {
    let gate = Gate::memory();
    let bench = bench(gate.store(), write);
    let mut sent = vec![bench.spawn_send(Message::user("0"))];
    gate.wait_for_commit().await;
    sent.extend((0..15).map(|_| bench.spawn_send(Message::user("4"))));
    run_ready_tasks().await;
    let small = [bench.clone(), bench.as_owner("bob")].map(|client| client.spawn_send(Message::user("0")));
    run_ready_tasks().await;
    // That of the first task, one that is large, and the next one.
    for _ in 0..3 {
        gate.queue(CommitOutcome::Pass);
    }
    run_ready_tasks().await;
    assert!(small.iter().all(JoinHandle::is_finished));
    gate.open();
    for sent in join_all(sent).await {
        assert_eq!(sent.unwrap().unwrap().state(), TaskState::Completed);
    }
    let bytes = |batch: &Changes| batch.iter().map(|(_, bytes)| bytes).sum::<usize>();
    assert!(gate.batches().iter().all(|batch| bytes(batch) < 6 * MIB));
}

/// Tasks of 3 MiB each, where an owner has 6 MiB: they end one after the other, and none fails.
#[tokio::test(start_paused = true)]
async fn agents_wait_for_the_memory_of_other_tasks() {
    let (held, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counted, highest) = (Arc::clone(&held), Arc::clone(&most));
    let bench = with_limits(Gate::opened().store(), with_memory(8), move |_, out| {
        let (held, most) = (Arc::clone(&counted), Arc::clone(&highest));
        async move {
            let mut artifact = out.artifact("a");
            for _ in 0..3 {
                artifact.text("x".repeat(MIB - 4096)).await?;
                most.fetch_max(held.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                sleep_ms(10).await;
            }
            held.fetch_sub(3, Ordering::SeqCst);
            Ok(End::Completed(None))
        }
    });
    let started = Instant::now();
    let sent = (0..4).map(|_| bench.spawn_send(Message::user("go")));
    for task in join_all(sent).await {
        assert_eq!(task.unwrap().unwrap().state(), TaskState::Completed);
    }
    assert_eq!(most.load(Ordering::SeqCst), 6);
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    bench.wait_until_evicted().await;
}

/// An owner whose tasks hold its memory gets errors that name the limit. Others are not affected.
#[tokio::test(start_paused = true)]
async fn turn_fails_if_no_memory_is_released() {
    let limits = with_memory(16).turn_idle_timeout(Duration::from_secs(10));
    let bench = with_limits(Gate::opened().store(), limits, write);
    let bob = bench.as_owner("bob");
    let (mut open, mut ids) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let mut stream = bench.stream(Message::user("4 ask")).await.unwrap();
        ids.push(task_id(&remaining_events(&mut stream).await[0]));
        // Keeps the task in memory.
        open.push(stream);
    }
    let started = Instant::now();
    let failed = bench.spawn_send(Message::user("8"));
    sleep_ms(20_000).await;
    // The share of its owner is full, so this release does not help.
    assert_eq!(bob.send(Message::user("3")).await.unwrap().state(), TaskState::Completed);
    let failed = failed.await.unwrap().unwrap();
    assert_eq!(failed.state(), TaskState::Failed);
    assert!(status_text(&failed).contains("limit live_bytes") && status_text(&failed).contains("limits.memory"));
    assert_eq!(started.elapsed().as_secs(), 30);
    assert_eq!(bench.send(Message::user("0")).await.unwrap().state(), TaskState::Completed);

    let large = "0 ".to_owned() + &"x".repeat(MIB);
    assert_memory_full(&bench.send(Message::user(&*large)).await.unwrap_err());
    assert_memory_full(&bench.send(follow_up(&ids[0], &large)).await.unwrap_err());
    assert_eq!(bob.send(Message::user(&*large)).await.unwrap().state(), TaskState::Completed);
    assert_eq!(bench.cancel(&ids[0]).await.unwrap().state(), TaskState::Canceled);
    drop(open);
    assert_eq!(bench.send(Message::user(&*large)).await.unwrap().state(), TaskState::Completed);
}

/// A task is not loaded if it does not fit.
#[tokio::test(start_paused = true)]
async fn stored_task_is_loaded_only_if_it_fits() {
    let bench = with_limits(Gate::opened().store(), with_memory(16), write);
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(bench.send(Message::user("5 ask")).await.unwrap().id);
        bench.wait_until_evicted().await;
    }
    let _open = bench.subscribe(&ids[0]).await.unwrap();
    assert_memory_full(&bench.subscribe(&ids[1]).await.err().unwrap());
    assert_memory_full(&bench.cancel(&ids[1]).await.unwrap_err());
    assert_eq!(bench.get(&ids[1]).await.unwrap().state(), TaskState::InputRequired);
}

/// A task that has more than half of its owner's share goes on if it is the only one, also after it has left memory.
#[tokio::test(start_paused = true)]
async fn large_task_may_use_the_whole_share() {
    let bench = with_limits(Gate::opened().store(), with_memory(8), write);
    let id = bench.send(Message::user("4 ask")).await.unwrap().id;
    bench.wait_until_evicted().await;
    let _open = bench.subscribe(&id).await.unwrap();
    assert_eq!(bench.send(follow_up(&id, "0 ask")).await.unwrap().state(), TaskState::InputRequired);
    assert_memory_full(&bench.send(Message::user("x".repeat(MIB))).await.unwrap_err());
    assert_eq!(bench.send(follow_up(&id, "0")).await.unwrap().state(), TaskState::Completed);
}
