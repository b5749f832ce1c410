//! Sends that have a key: taken once, however often they come.

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
    service::{Dedupe, Service},
    store::{Store, memory::Memory},
};
use futures::future::join_all;
use tokio::time::Instant;

use super::support::*;
use crate::gate::{Act, Gate};

fn stores() -> [Arc<dyn Store>; 2] {
    [Arc::new(Memory::default()), Gate::opened()]
}

/// A caller who names what they send.
fn keyed(client: &Client, key: &str) -> Client {
    Client { call: Call { idempotency_key: Some(key.into()), ..client.call.clone() }, ..client.clone() }
}

/// An agent that counts how often it is asked, and does what it is told.
fn counting(store: Arc<dyn Store>) -> (Bench<impl a2a_service::agent::Agent>, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&count);
    let bench = bench(store, move |turn: Turn, out: Updates| {
        counts.fetch_add(turn.messages().count(), Ordering::SeqCst);
        script(turn, out)
    });
    (bench, count)
}

#[tokio::test(start_paused = true)]
async fn a_hundred_of_the_same_are_one() {
    for store in stores() {
        let (bench, count) = counting(store);
        let client = keyed(&bench, "k");
        let message = Message::user("work pass:1000 out:x done");
        let started = Instant::now();
        let tasks = join_all((0..100).map(|_| client.send(message.clone()))).await;
        assert_eq!(started.elapsed(), Duration::from_secs(1));
        let first = tasks[0].as_ref().unwrap();
        assert_eq!((first.state(), texts(first).len()), (TaskState::Completed, 1));
        assert!(tasks.iter().all(|it| it.as_ref().unwrap() == first));
        // And later on, in whatever way it is to be answered.
        assert_eq!(&client.send(message.clone()).await.unwrap(), first);
        assert_eq!(&client.hasty().send(message.clone()).await.unwrap(), first);
        let events = rest(&mut client.stream(message.clone()).await.unwrap()).await;
        assert_eq!((events.len(), task_of(&events[0])), (1, first));
        assert_eq!((count.load(Ordering::SeqCst), bench.listed().await.len()), (1, 1));
        // Without the key, it is another one; and so it is of somebody else, or somewhere else.
        bench.send(message.clone()).await.unwrap();
        keyed(&bench.by("bob"), "k").send(message.clone()).await.unwrap();
        keyed(&bench.in_tenant("blue"), "k").send(message).await.unwrap();
        assert_eq!(count.load(Ordering::SeqCst), 4);
        drop((client, tasks));
        bench.empty().await;
    }
}

#[tokio::test(start_paused = true)]
async fn another_message_under_a_key_is_a_conflict() {
    for store in stores() {
        let (bench, count) = counting(store);
        let client = keyed(&bench, "k");
        let message = Message::user("ask:what");
        let task = client.send(message.clone()).await.unwrap();
        let other = Message { message_id: "other".into(), ..message.clone() };
        for other in [other, to(&task.id, "done"), Message::user("done")] {
            let error = client.send(other.clone()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::IdempotencyConflict);
            assert_eq!(error.metadata("taskId"), Some(&*task.id));
            assert_eq!(kind(client.stream(other).await), ErrorKind::IdempotencyConflict);
        }
        // How it is to be answered is no part of what is sent.
        assert_eq!(client.with_history(0).send(message.clone()).await.unwrap().history, []);
        assert_eq!(count.load(Ordering::SeqCst), 1);
        let long = keyed(&bench, &"k".repeat(256)).send(message).await.unwrap_err();
        assert_eq!((long.kind(), &*long.violations()[0].field), (ErrorKind::InvalidParams, "idempotency-key"));
    }
}

/// However far it has come when it comes again.
#[tokio::test(start_paused = true)]
async fn a_follow_up_is_handed_to_the_agent_once() {
    for store in stores() {
        let (bench, count) = counting(store);
        let id = bench.send(Message::user("ask:what")).await.unwrap().id;
        let (one, two) = (to(&id, "work pass:1000 ask:more"), to(&id, "work pass:500 out:y ask:what"));
        let (first, second) = (keyed(&bench, "1"), keyed(&bench, "2"));
        // It is at work on the one, and the other waits, and both come again.
        let mut all = vec![first.sending(one.clone())];
        settle().await;
        all.push(second.sending(two.clone()));
        settle().await;
        let mut again = [first.stream(one.clone()).await.unwrap(), second.stream(two.clone()).await.unwrap()];
        all.extend([first.sending(one.clone()), second.sending(two.clone())]);
        let started = Instant::now();
        for (n, it) in join_all(all).await.into_iter().enumerate() {
            let task = it.unwrap().unwrap();
            assert_eq!((task.state(), said(&task)), (TaskState::InputRequired, ["more", "what"][n % 2].into()));
        }
        assert_eq!(started.elapsed(), Duration::from_millis(1500));
        // Each stream ends as the one that was there first would: with its turn.
        let seen = [rest(&mut again[0]).await, rest(&mut again[1]).await];
        assert_eq!(states(&seen[0]), [TaskState::Working, TaskState::InputRequired]);
        let both = [TaskState::Working, TaskState::InputRequired, TaskState::Working, TaskState::InputRequired];
        assert_eq!(states(&seen[1]), both);
        // Now that both are over.
        for (client, message) in [(&first, &one), (&second, &two)] {
            let events = rest(&mut client.stream(message.clone()).await.unwrap()).await;
            assert_eq!(states(&events), [TaskState::InputRequired]);
            assert_eq!(client.send(message.clone()).await.unwrap().id, id);
        }
        assert_eq!(started.elapsed(), Duration::from_millis(1500));
        let done = bench.send(to(&id, "done")).await.unwrap();
        let history = texts(&done);
        assert_eq!(history.iter().filter(|it| it.starts_with("work")).count(), 2, "{history:?}");
        assert_eq!(count.load(Ordering::SeqCst), 4);
        // The task has ended: what it was sent before is known, and what is new is refused, each time.
        assert_eq!(first.send(one).await.unwrap().state(), TaskState::Completed);
        for _ in 0..2 {
            assert_eq!(kind(keyed(&bench, "3").send(to(&id, "late")).await), ErrorKind::TaskEnded);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_comes_again_waits_as_who_was_first() {
    for store in stores() {
        let (bench, _) = counting(store);
        let client = keyed(&bench, "k");
        let started = Instant::now();
        let message = Message::user("work pass:1000 auth:sign pass:99000 done");
        let task = client.send(message.clone()).await.unwrap();
        assert_eq!((task.state(), started.elapsed()), (TaskState::AuthRequired, Duration::from_secs(1)));
        // It needs something still.
        let task = client.send(message.clone()).await.unwrap();
        assert_eq!((task.state(), started.elapsed()), (TaskState::AuthRequired, Duration::from_secs(1)));
        let message = Message::user("work pass:99000 done");
        let client = keyed(&bench, "l");
        client.hasty().send(message.clone()).await.unwrap();
        let task = client.within(Duration::from_secs(2)).send(message.clone()).await.unwrap();
        assert_eq!((task.state(), started.elapsed()), (TaskState::Working, Duration::from_millis(2900)));
        let task = client.send(message).await.unwrap();
        assert_eq!((task.state(), started.elapsed()), (TaskState::Completed, Duration::from_secs(100)));
    }
}

/// What could be answered without a task has one, so that there is something to come back to.
#[tokio::test(start_paused = true)]
async fn a_message_in_answer_is_that_of_a_task() {
    for store in stores() {
        let (bench, count) = counting(store);
        let client = keyed(&bench, "k");
        let message = Message::user("reply:hi");
        for _ in 0..2 {
            let task = client.send(message.clone()).await.unwrap();
            assert_eq!((task.state(), said(&task)), (TaskState::Completed, "hi".into()));
        }
        assert_eq!(count.load(Ordering::SeqCst), 1);
        assert!(matches!(bench.answer(message).await.unwrap(), Answer::Message(_)));
    }
}

/// The agent hears of it only when it is written, so that it is never heard of twice.
#[tokio::test(start_paused = true)]
async fn the_key_is_written_before_the_agent_begins() {
    let gate = Gate::memory();
    let (bench, count) = counting(gate.store());
    let client = keyed(&bench, "k");
    let message = Message::user("ask:what");
    let sent = client.sending(message.clone());
    gate.knock().await;
    settle().await;
    assert_eq!(count.load(Ordering::SeqCst), 0);
    // Who sent it goes, and comes again while nobody knows whether it is written.
    sent.abort();
    let again = [client.sending(message.clone()), client.sending(message.clone())];
    settle().await;
    gate.tell(Act::LoseAnswer);
    settle().await;
    assert!(again.iter().all(|it| !it.is_finished()));
    gate.open();
    for it in again {
        assert_eq!(it.await.unwrap().unwrap().state(), TaskState::InputRequired);
    }
    client.send(message).await.unwrap();
    assert_eq!((count.load(Ordering::SeqCst), bench.listed().await.len()), (1, 1));
    // The same of a follow-up.
    let gate = Gate::memory();
    let (bench, count) = counting(gate.store());
    gate.tell(Act::Pass);
    let id = bench.send(Message::user("ask:what")).await.unwrap().id;
    let client = keyed(&bench, "f");
    let sent = client.sending(to(&id, "ask:more"));
    gate.knock().await;
    settle().await;
    assert_eq!(count.load(Ordering::SeqCst), 1);
    drop(sent);
    gate.tell(Act::Fail);
    gate.tell(Act::LoseAnswer);
    settle().await;
    gate.open();
    pass(5000).await;
    assert_eq!((count.load(Ordering::SeqCst), said(&bench.get(&id).await.unwrap())), (2, "more".into()));
    drop((client, bench));
}

/// What could not be taken in is not known by its key.
#[tokio::test(start_paused = true)]
async fn what_was_refused_may_come_again() {
    let store: Arc<dyn Store> = Arc::new(Memory::with_max_tasks(1));
    let (bench, count) = counting(store);
    let first = bench.send(Message::user("ask:what")).await.unwrap();
    let (client, message) = (keyed(&bench, "k"), Message::user("ask:more"));
    for _ in 0..2 {
        assert_eq!(kind(client.send(message.clone()).await), ErrorKind::ResourceExhausted);
    }
    bench.send(to(&first.id, "done")).await.unwrap();
    let task = client.send(message.clone()).await.unwrap();
    assert_eq!(client.send(message).await.unwrap(), task);
    assert_eq!(count.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn the_id_of_a_message_is_a_key_where_that_is_said() {
    for store in stores() {
        let count = Arc::new(AtomicUsize::new(0));
        let counts = Arc::clone(&count);
        let agent = a2a_service::agent::from_fn(move |turn: Turn, out: Updates| {
            counts.fetch_add(1, Ordering::SeqCst);
            script(turn, out)
        });
        let service = Service::new(agent, store, a2a_service::service::Limits::default()).dedupe(Dedupe::MessageId);
        let client = Client { api: Arc::new(service), call: Call::by("ada"), tenant: String::new(), config: None };
        let message = Message::user("ask:what");
        let task = client.send(message.clone()).await.unwrap();
        assert_eq!(client.send(message.clone()).await.unwrap(), task);
        let other = Message { message_id: message.message_id.clone(), ..Message::user("done") };
        assert_eq!(kind(client.send(other).await), ErrorKind::IdempotencyConflict);
        // A key that is given is the one, and is none of a message.
        let named = keyed(&client, &message.message_id);
        assert_ne!(named.send(message).await.unwrap().id, task.id);
        assert_eq!(count.load(Ordering::SeqCst), 2);
    }
}

/// Many clients at once, on several threads, each of whom sends everything several times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_taken_twice_in_any_order() {
    for store in stores() {
        let (bench, count) = counting(store);
        let id = bench.send(Message::user("ask:what")).await.unwrap().id;
        let sends = (0..20).flat_map(|n| {
            let (client, id) = (keyed(&bench, &n.to_string()), id.clone());
            let message = if n % 2 == 0 { Message::user("work done") } else { to(&id, "work ask:what") };
            (0..5).map(move |_| client.sending(message.clone())).collect::<Vec<_>>()
        });
        let sends: Vec<_> = sends.collect();
        for it in sends {
            it.await.unwrap().unwrap();
        }
        assert_eq!((count.load(Ordering::SeqCst), bench.listed().await.len()), (21, 11));
        assert_eq!(texts(&bench.get(&id).await.unwrap()).iter().filter(|it| *it == "work ask:what").count(), 10);
        bench.empty().await;
    }
}

/// However long the log is, in front of the message and behind it.
#[tokio::test(start_paused = true)]
async fn repeated_keyed_sends_do_not_read_the_log() {
    let gate = Gate::opened();
    let (bench, _) = counting(gate.store());
    let id = bench.send(Message::user(format!("{}ask:what", "work:on ".repeat(2000)))).await.unwrap().id;
    let client = keyed(&bench, "k");
    let message = to(&id, &format!("{}pass:1000 ask:more", "work:on ".repeat(2000)));
    let sent = client.sending(message.clone());
    pass(500).await;
    let (other, next) = (keyed(&bench, "other"), to(&id, "ask:again"));
    let waiting = other.sending(next.clone());
    settle().await;
    let before = gate.logs_read();
    // Its turn runs, and the other message waits.
    let mut streams = [client.stream(message.clone()).await.unwrap(), other.stream(next.clone()).await.unwrap()];
    let repeated = [client.sending(message.clone()), other.sending(next.clone())];
    settle().await;
    assert_eq!(gate.logs_read(), before);
    pass(1000).await;
    for (repeated, expected) in repeated.into_iter().zip(["more", "again"]) {
        assert_eq!(said(&repeated.await.unwrap().unwrap()), expected);
    }
    assert_eq!(said(&sent.await.unwrap().unwrap()), "more");
    assert_eq!(said(&waiting.await.unwrap().unwrap()), "again");
    let seen = [rest(&mut streams[0]).await, rest(&mut streams[1]).await];
    assert_eq!(states(&seen[0]), [TaskState::Working, TaskState::InputRequired]);
    assert_eq!(
        states(&seen[1]),
        [TaskState::Working, TaskState::InputRequired, TaskState::Working, TaskState::InputRequired]
    );
    // Both turns are over. A subscriber keeps the task in memory.
    let _subscribed = bench.subscribe(&id).await.unwrap();
    let before = gate.logs_read();
    for (client, message) in [(&client, &message), (&other, &next)] {
        assert_eq!(said(&client.send(message.clone()).await.unwrap()), "again");
        let events = rest(&mut client.stream(message.clone()).await.unwrap()).await;
        assert_eq!(states(&events), [TaskState::InputRequired]);
    }
    assert_eq!(gate.logs_read(), before);
}
