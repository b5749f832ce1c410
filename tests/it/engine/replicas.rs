//! Several servers that share a store in memory: each serves every task, and takes over those of a server that stops.

use std::{sync::Arc, time::Duration};

use a2a_service::{
    agent::{self, Agent, End, Turn, Updates},
    base::faults::{Fault, Faults},
    call::Call,
    clock::Clock,
    error::ErrorKind,
    extension::secret,
    pb::v1::{Message, Part, Role, TaskState, a2a_service_server::A2aService, bindings::ValidatedService},
    service::{Limits, Service},
    sources::Sources,
    store::{
        Store,
        memory::{Cluster, Memory},
    },
};
use futures::StreamExt as _;
use tokio::{
    runtime::{Builder, Runtime},
    sync::Notify,
    time::timeout,
};

use super::support::{
    Bench, Client, assert_dense, error_kind, follow_up, history_texts, next_event, remaining_events, scripted,
    sleep_ms, state_in, states, status_text, task_id, with_sources,
};
use crate::gate::{CommitOutcome, Gate};

/// Wall clock at the start of a test.
const START: i64 = 1_800_000_000_000;

fn cluster() -> Cluster {
    cluster_with(Faults::default())
}

fn cluster_with(planted: Faults) -> Cluster {
    let clock = Clock::simulated(START);
    Cluster::with_faults(Memory::default(), move || clock.millis(), planted)
}

/// Sources of a server. Their random numbers are successors of the seed, so that near seeds would share some.
fn sources(seed: u64) -> Sources {
    Sources::simulated(seed << 32, START)
}

fn server(cluster: &Cluster, seed: u64, agent: impl Agent) -> (Bench, Arc<dyn Store>) {
    let store: Arc<dyn Store> = Arc::new(cluster.replica());
    let sources = sources(seed);
    (with_sources(Arc::clone(&store), Limits::default(), sources, agent), store)
}

fn server_with_key(cluster: &Cluster, seed: u64, key: u8, agent: impl Agent) -> Bench {
    let sources = sources(seed);
    let service = Service::with_sources(Arc::new(agent), Arc::new(cluster.replica()), Limits::default(), sources);
    let service = Arc::new(service.cluster_key(&[key; 32]));
    let api: Arc<dyn A2aService> = Arc::new(ValidatedService(Arc::<Service>::clone(&service)));
    Bench { service, client: Client { api, call: Call::by("ada"), tenant: String::new(), config: None } }
}

/// Returns `N` servers of the scripted agent.
fn servers<const N: usize>(cluster: &Cluster) -> [Bench; N] {
    std::array::from_fn(|n| server(cluster, u64::try_from(n).unwrap(), agent::from_fn(scripted)).0)
}

/// Returns the client of a server with an idempotency key.
fn with_key(bench: &Bench, key: &str) -> Client {
    let call = Call { idempotency_key: Some(key.into()), ..Call::by("ada") };
    Client { call, ..bench.client.clone() }
}

/// Agent that sets WORKING, waits, and then executes the commands of the message.
fn paused(go: &Arc<Notify>) -> impl Agent {
    let go = Arc::clone(go);
    agent::from_fn(move |turn: Turn, out: Updates| {
        let go = Arc::clone(&go);
        async move {
            out.working().await?;
            go.notified().await;
            scripted(turn, out).await
        }
    })
}

#[tokio::test(start_paused = true)]
async fn task_that_another_server_runs_is_streamed_read_and_followed_up() {
    let (cluster, go) = (cluster(), Arc::new(Notify::new()));
    let [(a, store), (b, _)] = [1, 2].map(|seed| server(&cluster, seed, paused(&go)));
    let mut stream = a.stream(Message::user("out:one ask:more?")).await.unwrap();
    let id = task_id(&next_event(&mut stream).await);
    let mut followed = b.subscribe(&id).await.unwrap();
    assert_eq!(task_id(&next_event(&mut followed).await), id);
    sleep_ms(50).await;
    assert_eq!(b.state(&id).await, TaskState::Working);
    let send = b.spawn_send(follow_up(&id, "out:two done"));
    sleep_ms(500).await;
    assert_eq!(history_texts(&a.get(&id).await.unwrap()).last().unwrap(), "out:two done");
    go.notify_one();
    sleep_ms(1000).await;
    go.notify_one();
    let task = send.await.unwrap().unwrap();
    assert_eq!((task.id.as_str(), task.state()), (id.as_str(), TaskState::Completed));
    let (seen, own) = (remaining_events(&mut followed).await, remaining_events(&mut stream).await);
    assert_eq!(states(&seen).last(), Some(&TaskState::Completed));
    assert_eq!(states(&own).last(), Some(&TaskState::InputRequired));
    for bench in [&a, &b] {
        assert_eq!(bench.get(&id).await.unwrap(), task);
    }
    assert_dense(&a.log(&*store, &id).await);
    assert_eq!(error_kind(b.send(follow_up(&id, "more")).await), ErrorKind::TaskEnded);
}

#[tokio::test(start_paused = true)]
async fn stream_at_another_server_ends_with_the_task_and_one_that_never_polls_is_found() {
    for (planted, ends) in [(Faults::default(), true), (Faults::only(Fault::NeverPoll), false)] {
        let cluster = cluster_with(planted);
        let [a, b] = servers(&cluster);
        let task = a.non_blocking().send(Message::user("work pass:1000 out:one done")).await.unwrap();
        let stream = b.subscribe(&task.id).await.unwrap();
        let events = timeout(Duration::from_mins(1), stream.collect::<Vec<_>>()).await;
        assert_eq!(events.is_ok(), ends);
        assert_eq!(b.state(&task.id).await, TaskState::Completed);
    }
}

#[tokio::test(start_paused = true)]
async fn idle_task_runs_where_its_next_message_arrives() {
    move_a_task(&cluster()).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "stale read")]
async fn read_from_the_memory_of_a_follower_is_found() {
    move_a_task(&cluster_with(Faults::only(Fault::ReadFollowerState))).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "task ownership changed")]
async fn acquired_task_that_is_dropped_for_a_follower_is_found() {
    move_a_task(&cluster_with(Faults::only(Fault::KeepFollowerState))).await;
}

async fn move_a_task(cluster: &Cluster) {
    let [a, b, c] = servers(cluster);
    let task = a.send(Message::user("out:a ask:more?")).await.unwrap();
    // It stays in memory at the first server, as a follower.
    let mut stream = a.subscribe(&task.id).await.unwrap();
    next_event(&mut stream).await;
    for (n, bench) in [&b, &c, &a, &b].into_iter().enumerate() {
        let answered = bench.send(follow_up(&task.id, &format!("out:{n} ask:more?"))).await.unwrap();
        assert_eq!((answered.state(), answered.artifacts.len()), (TaskState::InputRequired, n + 2));
        for other in [&a, &b, &c] {
            assert_eq!(other.get(&task.id).await.unwrap(), answered, "stale read");
        }
    }
    assert_eq!(c.cancel(&task.id).await.unwrap().state(), TaskState::Canceled);
    assert_eq!(states(&remaining_events(&mut stream).await).last(), Some(&TaskState::Canceled));
}

#[tokio::test(start_paused = true)]
async fn cancel_reaches_the_server_that_runs_the_turn() {
    let cluster = cluster();
    let [a, b] = servers(&cluster);
    let task = a.non_blocking().send(Message::user("work hang")).await.unwrap();
    assert_eq!(b.cancel(&task.id).await.unwrap().state(), TaskState::Canceled);
    assert_eq!(a.state(&task.id).await, TaskState::Canceled);
    assert_eq!(error_kind(b.cancel("unknown").await), ErrorKind::TaskNotFound);
}

/// A commit takes effect, and its response is lost. So another server shows an event that the runner does not know to be stored.
#[tokio::test(start_paused = true)]
async fn stream_at_the_runner_does_not_begin_before_events_that_others_have_shown() {
    let (cluster, go) = (cluster(), Arc::new(Notify::new()));
    let gate = Gate::new(Arc::new(cluster.replica()));
    gate.open();
    let a = with_sources(gate.store(), Limits::default(), sources(1), paused(&go));
    let (b, _) = server(&cluster, 2, paused(&go));
    let task = a.non_blocking().send(Message::user("out:one hang")).await.unwrap();
    let mut shown = b.subscribe(&task.id).await.unwrap();
    while state_in(&next_event(&mut shown).await) != Some(TaskState::Working) {}
    gate.queue(CommitOutcome::LoseReply);
    gate.fail_commits(true);
    go.notify_one();
    let event = next_event(&mut shown).await;
    for _ in 0..3 {
        assert_eq!(error_kind(a.subscribe(&task.id).await), ErrorKind::Unavailable);
        assert_eq!(error_kind(a.resume(&task.id, event.cursor()).await), ErrorKind::Unavailable);
    }
    gate.fail_commits(false);
    sleep_ms(5000).await;
    let mut resumed = a.resume(&task.id, event.cursor()).await.unwrap();
    a.cancel(&task.id).await.unwrap();
    let rest = remaining_events(&mut resumed).await;
    assert_eq!((rest.len(), states(&rest)), (1, vec![TaskState::Canceled]));
    assert_eq!(remaining_events(&mut shown).await, rest);
}

#[tokio::test(start_paused = true)]
async fn sends_with_one_idempotency_key_start_one_turn() {
    let cluster = cluster();
    let [a, b, c] = servers(&cluster);
    let message = || Message { message_id: "m".to_owned(), ..Message::user("pass:100 ask:more?") };
    let sends = [&a, &b].map(|bench| with_key(bench, "k").spawn_send(message()));
    let [one, two] = sends;
    let (one, two) = (one.await.unwrap().unwrap(), two.await.unwrap().unwrap());
    assert_eq!(one, two);
    assert_eq!(with_key(&c, "k").send(message()).await.unwrap(), one);
    // A follow-up that is retried at each server while the turn runs elsewhere.
    let message = || Message { message_id: "n".to_owned(), ..follow_up(&one.id, "pass:1000 done") };
    let sends = [&a, &b, &c].map(|bench| with_key(bench, "l").spawn_send(message()));
    for send in sends {
        let task = send.await.unwrap().unwrap();
        assert_eq!((task.state(), task.history.len()), (TaskState::Completed, 2 + 1), "{task:?}");
    }
    let mut streamed = with_key(&b, "l").stream(message()).await.unwrap();
    let events: Vec<_> = streamed.by_ref().collect().await;
    assert_eq!(events.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn secrets_reach_a_turn_elsewhere_only_encrypted() {
    let (cluster, go) = (cluster(), Arc::new(Notify::new()));
    let agent = || {
        let go = Arc::clone(&go);
        agent::from_fn(move |turn: Turn, out: Updates| {
            let go = Arc::clone(&go);
            async move {
                out.working().await?;
                if turn.text() == "go" {
                    go.notified().await;
                    return Ok(End::input_required("more?"));
                }
                Ok(if turn.text() == "hunter2" { End::completed("it is right") } else { End::completed("it is wrong") })
            }
        })
    };
    let [a, b] = [1, 2].map(|seed| server_with_key(&cluster, seed, 7, agent()));
    let (without, other) = (server(&cluster, 3, agent()).0, server_with_key(&cluster, 4, 8, agent()));
    let task = a.non_blocking().send(Message::user("go")).await.unwrap();
    let password =
        || Message { task_id: task.id.clone(), ..Message::default() }.and(secret::mark(Part::text("hunter2")));
    let password = || Message { role: Role::User.into(), message_id: "m".to_owned(), ..password() };
    assert_eq!(error_kind(without.send(password()).await), ErrorKind::Unavailable);
    assert_eq!(error_kind(other.send(password()).await), ErrorKind::Internal);
    let send = b.spawn_send(password());
    sleep_ms(1000).await;
    go.notify_one();
    let task = send.await.unwrap().unwrap();
    assert_eq!((task.state(), status_text(&task).as_str()), (TaskState::Completed, "it is right"));
    assert!(!format!("{:?}", history_texts(&task)).contains("hunter2"));
}

/// Agent that hangs at its first attempt, and completes at the next one.
fn second_attempt() -> impl Agent {
    struct Second;
    impl Agent for Second {
        fn resumable(&self) -> bool {
            true
        }

        async fn run(&self, turn: Turn, out: Updates) -> Result<End, agent::Error> {
            out.working().await?;
            if turn.attempt() == 1 {
                std::future::pending::<()>().await;
            }
            Ok(End::completed(format!("attempt {}", turn.attempt())))
        }
    }
    Second
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().start_paused(true).build().unwrap()
}

#[test]
fn turn_of_a_killed_server_is_taken_over() {
    let (killed, runtime) = (runtime(), runtime());
    let cluster = runtime.block_on(async { cluster() });
    let (b, store) = runtime.block_on(async { server(&cluster, 2, second_attempt()) });
    let id = killed.block_on(async {
        let (a, _) = server(&cluster, 1, second_attempt());
        let task = a.non_blocking().send(Message::user("go")).await.unwrap();
        sleep_ms(100).await;
        task.id
    });
    let (mut stream, sends) = runtime.block_on(async {
        let mut stream = b.subscribe(&id).await.unwrap();
        next_event(&mut stream).await;
        (stream, [b.spawn_send(follow_up(&id, "more")), with_key(&b, "k").spawn_send(follow_up(&id, "more"))])
    });
    drop(killed);
    runtime.block_on(async {
        let events = remaining_events(&mut stream).await;
        assert_eq!(states(&events).last(), Some(&TaskState::Completed));
        // The task ended before the messages were read.
        for send in sends {
            assert_eq!(error_kind(send.await.unwrap()), ErrorKind::TaskEnded);
        }
        let task = b.get(&id).await.unwrap();
        assert_eq!(task.state(), TaskState::Completed);
        assert_dense(&b.log(&*store, &id).await);
        let fences: Vec<_> = b.log(&*store, &id).await.iter().map(|event| event.position().fence).collect();
        assert!(fences.is_sorted() && fences.first() < fences.last(), "{fences:?}");
    });
}

#[tokio::test(start_paused = true)]
async fn drain_hands_turns_over_at_once() {
    let cluster = cluster();
    let [(a, _), (b, store)] = [1, 2].map(|seed| server(&cluster, seed, second_attempt()));
    let task = a.non_blocking().send(Message::user("go")).await.unwrap();
    sleep_ms(5000).await;
    a.service.drain(Duration::from_millis(100)).await;
    sleep_ms(3000).await;
    let ended = b.get(&task.id).await.unwrap();
    assert_eq!(ended.state(), TaskState::Completed);
    assert_dense(&b.log(&*store, &task.id).await);
}
