//! Idempotent sends: a message with an idempotency key is delivered to the agent once, however often it is sent.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use a2a_service::{
    agent::{Turn, Updates},
    call::Call,
    error::ErrorKind,
    pb::v1::{Message, TaskState, send_message_response::Payload as Answer},
    service::{IdempotencySource, Service},
    store::{Store, memory::Memory},
};
use futures::future::join_all;
use tokio::time::Instant;

use super::support::*;
use crate::gate::{CommitOutcome, Gate};

fn stores() -> [Arc<dyn Store>; 2] {
    [Arc::new(Memory::default()), Gate::opened()]
}

/// Returns a client that sends with this idempotency key.
fn keyed(client: &Client, key: &str) -> Client {
    Client { call: Call { idempotency_key: Some(key.into()), ..client.call.clone() }, ..client.clone() }
}

/// Scripted agent with a count of the messages that were delivered to it.
fn counting(store: Arc<dyn Store>) -> (Bench, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&count);
    let bench = bench(store, move |turn: Turn, out: Updates| {
        counts.fetch_add(turn.messages().count(), Ordering::SeqCst);
        scripted(turn, out)
    });
    (bench, count)
}

#[tokio::test(start_paused = true)]
async fn concurrent_sends_with_one_key_yield_one_task() {
    for store in stores() {
        let (bench, count) = counting(store);
        let client = keyed(&bench, "k");
        let message = Message::user("work pass:1000 out:x done");
        let started = Instant::now();
        let tasks = join_all((0..100).map(|_| client.send(message.clone()))).await;
        assert_eq!(started.elapsed(), Duration::from_secs(1));
        let first = tasks[0].as_ref().unwrap();
        assert_eq!((first.state(), history_texts(first).len()), (TaskState::Completed, 1));
        assert!(tasks.iter().all(|task| task.as_ref().unwrap() == first));
        // Later sends get the task too: blocking, returning immediately and streaming.
        assert_eq!(&client.send(message.clone()).await.unwrap(), first);
        assert_eq!(&client.non_blocking().send(message.clone()).await.unwrap(), first);
        let events = remaining_events(&mut client.stream(message.clone()).await.unwrap()).await;
        assert_eq!((events.len(), task_in(&events[0])), (1, first));
        assert_eq!((count.load(Ordering::SeqCst), bench.states_by_id().await.len()), (1, 1));
        // Without the key, or of another owner or tenant, it is a new send.
        bench.send(message.clone()).await.unwrap();
        keyed(&bench.as_owner("bob"), "k").send(message.clone()).await.unwrap();
        keyed(&bench.in_tenant("blue"), "k").send(message).await.unwrap();
        assert_eq!(count.load(Ordering::SeqCst), 4);
        drop((client, tasks));
        bench.wait_until_evicted().await;
    }
}

#[tokio::test(start_paused = true)]
async fn different_message_with_the_same_key_is_a_conflict() {
    for store in stores() {
        let (bench, count) = counting(store);
        let client = keyed(&bench, "k");
        let message = Message::user("ask:what");
        let task = client.send(message.clone()).await.unwrap();
        let other = Message { message_id: "other".into(), ..message.clone() };
        for other in [other, follow_up(&task.id, "done"), Message::user("done")] {
            let error = client.send(other.clone()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::IdempotencyConflict);
            assert_eq!(error.metadata("taskId"), Some(&*task.id));
            assert_eq!(error_kind(client.stream(other).await), ErrorKind::IdempotencyConflict);
        }
        // The send configuration is not part of the compared message.
        assert_eq!(client.with_history(0).send(message.clone()).await.unwrap().history, []);
        assert_eq!(count.load(Ordering::SeqCst), 1);
        let long = keyed(&bench, &"k".repeat(256)).send(message).await.unwrap_err();
        assert_eq!((long.kind(), &*long.violations()[0].field), (ErrorKind::InvalidParams, "idempotency-key"));
    }
}

/// Sends are retried while the turn of the first message runs, and after both turns.
#[tokio::test(start_paused = true)]
async fn retried_follow_up_is_delivered_once() {
    for store in stores() {
        let (bench, count) = counting(store);
        let id = bench.send(Message::user("ask:what")).await.unwrap().id;
        let (one, two) = (follow_up(&id, "work pass:1000 ask:more"), follow_up(&id, "work pass:500 out:y ask:what"));
        let (first, second) = (keyed(&bench, "1"), keyed(&bench, "2"));
        // The first message is being processed, the second one is pending; both are retried.
        let mut all = vec![first.spawn_send(one.clone())];
        run_ready_tasks().await;
        all.push(second.spawn_send(two.clone()));
        run_ready_tasks().await;
        let mut retried = [first.stream(one.clone()).await.unwrap(), second.stream(two.clone()).await.unwrap()];
        all.extend([first.spawn_send(one.clone()), second.spawn_send(two.clone())]);
        let started = Instant::now();
        for (n, sent) in join_all(all).await.into_iter().enumerate() {
            let task = sent.unwrap().unwrap();
            assert_eq!((task.state(), status_text(&task)), (TaskState::InputRequired, ["more", "what"][n % 2].into()));
        }
        assert_eq!(started.elapsed(), Duration::from_millis(1500));
        // A retried stream ends with the turn of its message, like the original.
        let seen = [remaining_events(&mut retried[0]).await, remaining_events(&mut retried[1]).await];
        assert_eq!(states(&seen[0]), [TaskState::Working, TaskState::InputRequired]);
        let both = [TaskState::Working, TaskState::InputRequired, TaskState::Working, TaskState::InputRequired];
        assert_eq!(states(&seen[1]), both);
        // After both turns.
        for (client, message) in [(&first, &one), (&second, &two)] {
            let events = remaining_events(&mut client.stream(message.clone()).await.unwrap()).await;
            assert_eq!(states(&events), [TaskState::InputRequired]);
            assert_eq!(client.send(message.clone()).await.unwrap().id, id);
        }
        assert_eq!(started.elapsed(), Duration::from_millis(1500));
        let done = bench.send(follow_up(&id, "done")).await.unwrap();
        let history = history_texts(&done);
        assert_eq!(history.iter().filter(|text| text.starts_with("work")).count(), 2, "{history:?}");
        assert_eq!(count.load(Ordering::SeqCst), 4);
        // The task is terminal: retries return it, new messages are rejected each time.
        assert_eq!(first.send(one).await.unwrap().state(), TaskState::Completed);
        for _ in 0..2 {
            assert_eq!(error_kind(keyed(&bench, "3").send(follow_up(&id, "late")).await), ErrorKind::TaskEnded);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn retried_send_waits_like_the_original() {
    for store in stores() {
        let (bench, _) = counting(store);
        let client = keyed(&bench, "k");
        let started = Instant::now();
        let message = Message::user("work pass:1000 auth:sign pass:99000 done");
        let task = client.send(message.clone()).await.unwrap();
        assert_eq!((task.state(), started.elapsed()), (TaskState::AuthRequired, Duration::from_secs(1)));
        // The task still waits for authorization.
        let task = client.send(message.clone()).await.unwrap();
        assert_eq!((task.state(), started.elapsed()), (TaskState::AuthRequired, Duration::from_secs(1)));
        let message = Message::user("work pass:99000 done");
        let client = keyed(&bench, "l");
        client.non_blocking().send(message.clone()).await.unwrap();
        let task = client.with_deadline(Duration::from_secs(2)).send(message.clone()).await.unwrap();
        assert_eq!((task.state(), started.elapsed()), (TaskState::Working, Duration::from_millis(2900)));
        let task = client.send(message).await.unwrap();
        assert_eq!((task.state(), started.elapsed()), (TaskState::Completed, Duration::from_secs(100)));
    }
}

/// A message reply is recorded as a task, so that a retry can return it.
#[tokio::test(start_paused = true)]
async fn message_reply_to_a_keyed_send_becomes_a_task() {
    for store in stores() {
        let (bench, count) = counting(store);
        let client = keyed(&bench, "k");
        let message = Message::user("reply:hi");
        for _ in 0..2 {
            let task = client.send(message.clone()).await.unwrap();
            assert_eq!((task.state(), status_text(&task)), (TaskState::Completed, "hi".into()));
        }
        assert_eq!(count.load(Ordering::SeqCst), 1);
        assert!(matches!(bench.send_payload(message).await.unwrap(), Answer::Message(_)));
    }
}

/// The agent gets the message after its key is durable; otherwise a retry could deliver it twice.
#[tokio::test(start_paused = true)]
async fn key_is_durable_before_the_agent_starts() {
    let gate = Gate::memory();
    let (bench, count) = counting(gate.store());
    let client = keyed(&bench, "k");
    let message = Message::user("ask:what");
    let sent = client.spawn_send(message.clone());
    gate.wait_for_commit().await;
    run_ready_tasks().await;
    assert_eq!(count.load(Ordering::SeqCst), 0);
    // The sender disconnects and retries while the outcome of the commit is unknown.
    sent.abort();
    let retried = [client.spawn_send(message.clone()), client.spawn_send(message.clone())];
    run_ready_tasks().await;
    gate.queue(CommitOutcome::LoseReply);
    run_ready_tasks().await;
    assert!(retried.iter().all(|sent| !sent.is_finished()));
    gate.open();
    for sent in retried {
        assert_eq!(sent.await.unwrap().unwrap().state(), TaskState::InputRequired);
    }
    client.send(message).await.unwrap();
    assert_eq!((count.load(Ordering::SeqCst), bench.states_by_id().await.len()), (1, 1));
    // The same for a follow-up.
    let gate = Gate::memory();
    let (bench, count) = counting(gate.store());
    gate.queue(CommitOutcome::Pass);
    let id = bench.send(Message::user("ask:what")).await.unwrap().id;
    let client = keyed(&bench, "f");
    let sent = client.spawn_send(follow_up(&id, "ask:more"));
    gate.wait_for_commit().await;
    run_ready_tasks().await;
    assert_eq!(count.load(Ordering::SeqCst), 1);
    drop(sent);
    gate.queue(CommitOutcome::Fail);
    gate.queue(CommitOutcome::LoseReply);
    run_ready_tasks().await;
    gate.open();
    sleep_ms(5000).await;
    assert_eq!((count.load(Ordering::SeqCst), status_text(&bench.get(&id).await.unwrap())), (2, "more".into()));
    drop((client, bench));
}

/// The key of a rejected send is not recorded.
#[tokio::test(start_paused = true)]
async fn rejected_send_may_be_retried() {
    let store: Arc<dyn Store> = Arc::new(Memory::with_max_tasks(1));
    let (bench, count) = counting(store);
    let first = bench.send(Message::user("ask:what")).await.unwrap();
    let (client, message) = (keyed(&bench, "k"), Message::user("ask:more"));
    for _ in 0..2 {
        assert_eq!(error_kind(client.send(message.clone()).await), ErrorKind::ResourceExhausted);
    }
    bench.send(follow_up(&first.id, "done")).await.unwrap();
    let task = client.send(message.clone()).await.unwrap();
    assert_eq!(client.send(message).await.unwrap(), task);
    assert_eq!(count.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn message_id_is_the_default_key_if_configured() {
    for store in stores() {
        let count = Arc::new(AtomicUsize::new(0));
        let counts = Arc::clone(&count);
        let agent = a2a_service::agent::from_fn(move |turn: Turn, out: Updates| {
            counts.fetch_add(1, Ordering::SeqCst);
            scripted(turn, out)
        });
        let service = Service::new(agent, store, a2a_service::service::Limits::default())
            .idempotency_default_key(IdempotencySource::MessageId);
        let client = Client { api: Arc::new(service), call: Call::by("ada"), tenant: String::new(), config: None };
        let message = Message::user("ask:what");
        let task = client.send(message.clone()).await.unwrap();
        assert_eq!(client.send(message.clone()).await.unwrap(), task);
        let other = Message { message_id: message.message_id.clone(), ..Message::user("done") };
        assert_eq!(error_kind(client.send(other).await), ErrorKind::IdempotencyConflict);
        // An explicit key takes precedence, and is distinct from an equal message id.
        let named = keyed(&client, &message.message_id);
        assert_ne!(named.send(message).await.unwrap().id, task.id);
        assert_eq!(count.load(Ordering::SeqCst), 2);
    }
}

/// Several clients on two threads, each of which sends every message five times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_repeated_sends_are_each_delivered_once() {
    for store in stores() {
        let (bench, count) = counting(store);
        let id = bench.send(Message::user("ask:what")).await.unwrap().id;
        let sends = (0..20).flat_map(|n| {
            let (client, id) = (keyed(&bench, &n.to_string()), id.clone());
            let message = if n % 2 == 0 { Message::user("work done") } else { follow_up(&id, "work ask:what") };
            (0..5).map(move |_| client.spawn_send(message.clone())).collect::<Vec<_>>()
        });
        let sends: Vec<_> = sends.collect();
        for sent in sends {
            sent.await.unwrap().unwrap();
        }
        assert_eq!((count.load(Ordering::SeqCst), bench.states_by_id().await.len()), (21, 11));
        assert_eq!(
            history_texts(&bench.get(&id).await.unwrap()).iter().filter(|text| *text == "work ask:what").count(),
            10
        );
        bench.wait_until_evicted().await;
    }
}

/// With long logs before and after the message.
#[tokio::test(start_paused = true)]
async fn repeated_keyed_sends_do_not_read_the_log() {
    let gate = Gate::opened();
    let (bench, _) = counting(gate.store());
    let id = bench.send(Message::user(format!("{}ask:what", "work:on ".repeat(2000)))).await.unwrap().id;
    let client = keyed(&bench, "k");
    let message = follow_up(&id, &format!("{}pass:1000 ask:more", "work:on ".repeat(2000)));
    let sent = client.spawn_send(message.clone());
    sleep_ms(500).await;
    let (other, next) = (keyed(&bench, "other"), follow_up(&id, "ask:again"));
    let waiting = other.spawn_send(next.clone());
    run_ready_tasks().await;
    let before = gate.logs_read();
    // The turn of the first message runs, and the second message is pending.
    let mut streams = [client.stream(message.clone()).await.unwrap(), other.stream(next.clone()).await.unwrap()];
    let repeated = [client.spawn_send(message.clone()), other.spawn_send(next.clone())];
    run_ready_tasks().await;
    assert_eq!(gate.logs_read(), before);
    sleep_ms(1000).await;
    for (repeated, expected) in repeated.into_iter().zip(["more", "again"]) {
        assert_eq!(status_text(&repeated.await.unwrap().unwrap()), expected);
    }
    assert_eq!(status_text(&sent.await.unwrap().unwrap()), "more");
    assert_eq!(status_text(&waiting.await.unwrap().unwrap()), "again");
    let seen = [remaining_events(&mut streams[0]).await, remaining_events(&mut streams[1]).await];
    assert_eq!(states(&seen[0]), [TaskState::Working, TaskState::InputRequired]);
    assert_eq!(
        states(&seen[1]),
        [TaskState::Working, TaskState::InputRequired, TaskState::Working, TaskState::InputRequired]
    );
    // Both turns have ended; a subscriber keeps the task in memory.
    let _subscribed = bench.subscribe(&id).await.unwrap();
    let before = gate.logs_read();
    for (client, message) in [(&client, &message), (&other, &next)] {
        assert_eq!(status_text(&client.send(message.clone()).await.unwrap()), "again");
        let events = remaining_events(&mut client.stream(message.clone()).await.unwrap()).await;
        assert_eq!(states(&events), [TaskState::InputRequired]);
    }
    assert_eq!(gate.logs_read(), before);
}
