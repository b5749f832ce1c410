//! Durability over each binding: nothing is visible before its commit, and everything stored can be read.
//! store holds.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use a2a_service::{
    agent::{Agent, End, Error, Turn, Updates},
    call::Call,
    client,
    error::ErrorKind,
    event::{Ends, Event, Position},
    pb::{
        v1::{
            CancelTaskRequest, ListTasksRequest, Message, Part, SubscribeToTaskRequest, Task, TaskState, TaskStatus,
            a2a_service_server::A2aService, part::Content,
        },
        wkt::{Timestamp, value::Kind},
    },
    server::Server,
    store::{Commit, Expect, Scope, SyncStore as _, TaskHead, TaskKey, memory::Memory, sqlite::Options},
};
use tokio::time::{Instant, timeout};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

use crate::conformance::{Exemption, allow_undocumented};
use crate::{
    bindings::{Binding, each_binding, serve, server},
    gate::{CommitOutcome, Gate},
    program::message,
    scenarios::{
        assert_error_kind, get, next, remaining, request, send, send_payload, state, stream, subscribe, task_of, text,
    },
    store::opened::OpenedStore,
};

/// Wait for something that would otherwise happen immediately.
const MOMENT: Duration = Duration::from_millis(50);

async fn listed(agent: &dyn A2aService) -> Vec<Task> {
    let all = ListTasksRequest { include_artifacts: Some(true), ..ListTasksRequest::default() };
    agent.list_tasks(request(all)).await.unwrap().into_inner().tasks
}

async fn nothing_is_visible_before_its_commit(serve: Binding) {
    let gate = Gate::memory();
    let agent = serve(server().store(Arc::<Gate>::clone(&gate))).await;
    let (sending, streaming) = (Arc::clone(&agent), Arc::clone(&agent));
    let sent = tokio::spawn(async move { send(&*sending, text("", "/ask what?")).await });
    gate.wait_for_commit().await;
    assert!(listed(&*agent).await.is_empty());
    gate.queue(CommitOutcome::Pass);
    let asked = sent.await.unwrap();

    let mut events = subscribe(&*agent, &asked.id).await.unwrap();
    assert_eq!(task_of(&next(&mut events).await), &asked);
    let id = asked.id.clone();
    let follow_up = tokio::spawn(async move {
        let stream = stream(&*streaming, text(&id, "Rome")).await;
        remaining(stream).await
    });
    gate.wait_for_commit().await;
    // The agent has ended, and its last commit is blocked.
    assert!(timeout(MOMENT, async { next(&mut events).await }).await.is_err());
    assert_eq!(get(&*agent, &asked.id).await.unwrap(), asked);
    assert_eq!(listed(&*agent).await, std::slice::from_ref(&asked));
    assert!(!follow_up.is_finished());
    // During an outage the last durable state is served, and accepted work is kept.
    gate.queue(CommitOutcome::Fail);
    gate.wait_for_commit().await;
    assert_eq!(get(&*agent, &asked.id).await.unwrap(), asked);
    gate.open();
    let states: Vec<_> = remaining(events).await.iter().filter_map(state).collect();
    assert_eq!(states, [TaskState::Working, TaskState::Completed]);
    assert_eq!(follow_up.await.unwrap().last().and_then(state), Some(TaskState::Completed));
    assert_eq!(get(&*agent, &asked.id).await.unwrap().state(), TaskState::Completed);
}

each_binding!(
    nothing_is_visible_before_its_commit,
    not_in_v03_proto = "its proto file has no lists of tasks",
    one_server = "its store blocks commits"
);

/// Agent that counts without end.
struct Counting(Arc<AtomicU64>);

impl Agent for Counting {
    async fn run(&self, _: Turn, out: Updates) -> Result<End, Error> {
        out.working().await?;
        loop {
            self.0.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
        }
    }
}

/// An agent that ignores the cancellation is dropped after the grace period.
async fn canceled_agent_is_dropped_after_the_grace_period(serve: Binding) {
    let count = Arc::new(AtomicU64::new(0));
    let mut limits = a2a_service::service::Limits::default();
    limits.cancel_grace = MOMENT;
    let agent = serve(Server::new(Counting(Arc::clone(&count))).limits(limits)).await;
    let mut events = stream(&*agent, text("", "go")).await;
    let id = task_of(&next(&mut events).await).id.clone();
    assert_eq!(state(&next(&mut events).await), Some(TaskState::Working));
    let cancel = CancelTaskRequest { id, ..CancelTaskRequest::default() };
    let canceled = agent.cancel_task(request(cancel)).await.unwrap().into_inner().into_task().unwrap();
    assert_eq!(canceled.state(), TaskState::Canceled);
    let stopped_at = count.load(Ordering::SeqCst);
    assert!(stopped_at > 0);
    assert!(timeout(MOMENT, std::future::pending::<()>()).await.is_err());
    assert_eq!(count.load(Ordering::SeqCst), stopped_at);
}

each_binding!(canceled_agent_is_dropped_after_the_grace_period);

/// Stored values that no caller could have sent: unknown enum numbers and timestamps out of range.
async fn invalid_stored_values_can_be_read(serve: Binding) {
    allow_undocumented(Exemption::Responses);
    let data = |kind: Kind| Part { content: Some(Content::Data(kind.into())), ..Part::default() };
    let message = Message {
        message_id: "m".into(),
        role: 99,
        parts: vec![Part::default(), data(Kind::NumberValue(f64::NAN)), data(Kind::NumberValue(f64::INFINITY))],
        ..Message::default()
    };
    let timestamp = Some(Timestamp { seconds: i64::MAX, nanos: -5 });
    let stored = Task {
        id: "stored".into(),
        status: Some(TaskStatus { state: 99, timestamp, ..TaskStatus::default() }),
        history: vec![message],
        ..Task::default()
    };
    let memory = Arc::new(Memory::default());
    let position = Position { fence: 1, seq: 1 };
    let first = Event::from_task(position, Ends::Nothing, stored.clone().into());
    let row = TaskHead {
        context: "c".into(),
        seq: 1,
        state: TaskState::Unspecified,
        time: 0,
        open: false,
        delivered_seq: 1,
        cancel_requested: false,
        attempt: 1,
        drained: 0,
    };
    let (key, expect) = (TaskKey::new(&Arc::<Scope>::default(), "stored"), Expect::New);
    let commit = Commit {
        key,
        expect,
        fence: 1,
        row,
        events: vec![first],
        checkpoint: None,
        agent_state: None,
        turn_contexts: None,
        sends: Vec::new(),
        push: None,
        time: 0,
        turns: None,
        mail_read: 0,
    };
    memory.commit_sync(&commit).unwrap();

    let agent = serve(server().store(memory)).await;
    let task = get(&*agent, "stored").await.unwrap();
    assert_eq!((task.status.as_ref().unwrap().state, task.history[0].role), (99, 99));
    assert_eq!(task.history[0].parts.len(), 3);
    assert_eq!(listed(&*agent).await.len(), 1);
    assert_eq!(task_of(&next(&mut subscribe(&*agent, "stored").await.unwrap()).await).history.len(), 1);
}

each_binding!(
    invalid_stored_values_can_be_read,
    not_at_0_3 = "its proto file has no lists of tasks, and its JSON cannot express unknown values",
    one_server = "it writes to its store"
);

/// Commits are queued on the thread of the store, and nothing is visible before.
async fn file_store_behaves_like_the_memory_store(serve: Binding) {
    let opened = OpenedStore::sqlite(Options::default());
    let agent = serve(server().store(Arc::clone(&opened.store))).await;
    let asked = send(&*agent, text("", "/ask what?")).await;
    let mut events = subscribe(&*agent, &asked.id).await.unwrap();
    assert_eq!(task_of(&next(&mut events).await), &asked);
    let done = send(&*agent, text(&asked.id, "Rome")).await;
    assert_eq!(done.state(), TaskState::Completed);
    let states: Vec<_> = remaining(events).await.iter().filter_map(state).collect();
    assert_eq!(states, [TaskState::Working, TaskState::Completed]);
    assert_eq!(get(&*agent, &asked.id).await.unwrap(), done);
    assert_eq!(listed(&*agent).await, [done]);
}

each_binding!(
    file_store_behaves_like_the_memory_store,
    not_at_0_3 = "its proto file has no lists of tasks",
    one_server = "its store is a file"
);

/// Tasks that a client has seen survive a kill of the process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn observed_tasks_survive_a_kill() {
    let opened = OpenedStore::sqlite(Options::default());
    let agent = server().store(Arc::clone(&opened.store)).into_service();
    let mut seen = Vec::new();
    for content in ["hello", "/ask what?", "!burst 300", "/fail"] {
        seen.push(send(&*agent, text("", content)).await);
    }
    let left = opened.killed();
    let agent = server().store(Arc::clone(&left.store)).into_service();
    for task in &seen {
        assert_eq!(&get(&*agent, &task.id).await.unwrap(), task);
    }
    assert_eq!(listed(&*agent).await.len(), seen.len());
    // An interrupted task can be continued.
    let answered = send(&*agent, text(&seen[1].id, "Rome")).await;
    assert_eq!((answered.state(), answered.history.len()), (TaskState::Completed, seen[1].history.len() + 2));
    // A stream can be resumed.
    let cursor = events_of(&left, &seen[2]).await[100].cursor().cloned();
    let call = Call { cursor, ..Call::default() };
    let subscription = SubscribeToTaskRequest { id: seen[2].id.clone(), ..SubscribeToTaskRequest::default() };
    let rest = remaining(agent.subscribe_to_task(call.request(subscription)).await.unwrap().into_inner()).await;
    assert_eq!(rest, events_of(&left, &seen[2]).await[101..]);
}

async fn events_of(store: &OpenedStore, task: &Task) -> Vec<Event> {
    let key = TaskKey::new(&Arc::<Scope>::default(), &task.id);
    store.events(&key, 0, usize::MAX, usize::MAX).await.unwrap()
}

/// Readiness follows the store; liveness does not.
#[tokio::test]
async fn server_with_an_unavailable_store_is_not_ready() {
    let gate = Gate::opened();
    let url = serve(server().store(gate.store())).await;
    let get = async |path: &str| {
        let reply = crate::bindings::fetch(format!("{url}{path}")).await.unwrap();
        (reply.status().as_u16(), reply.text().await.unwrap())
    };
    let channel = tonic::transport::Endpoint::new(url.clone()).unwrap().connect_lazy();
    let mut health = HealthClient::new(channel);
    for (unavailable, expected, serving) in [
        (false, (200, "ok\n"), ServingStatus::Serving),
        (true, (503, "the store does not answer\n"), ServingStatus::NotServing),
        (false, (200, "ok\n"), ServingStatus::Serving),
    ] {
        gate.fail_reads(unavailable);
        assert_eq!(get("/readyz").await, (expected.0, expected.1.to_owned()));
        assert_eq!(get("/healthz").await, (200, "ok\n".to_owned()));
        let reply = health.check(HealthCheckRequest::default()).await.unwrap().into_inner();
        assert_eq!(reply.status(), serving);
    }
}

/// Simulates a failing disk by overwriting all pages of the file except the first while the server runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_with_a_corrupt_file_rejects_new_work() {
    const WITHIN: Duration = Duration::from_secs(2);
    let opened = OpenedStore::sqlite(Options::default());
    let agent = server().store(Arc::clone(&opened.store)).into_service();
    for n in 0..40 {
        send(&*agent, text("", &format!("{n} {}", "x".repeat(5000)))).await;
    }
    let asked = send(&*agent, text("", "/ask what?")).await;
    drop(agent);
    // A newly opened store has few cached pages.
    let opened = opened.closed().await;
    let url = serve(server().store(Arc::clone(&opened.store))).await;
    let ready = async || crate::bindings::fetch(format!("{url}/readyz")).await.unwrap().status().as_u16();
    // The server accepts connections before the recovery is complete.
    let is_ready = async { while ready().await != 200 {} };
    timeout(Duration::from_secs(30), is_ready).await.unwrap();
    let path = opened.path().unwrap();
    let pages = std::fs::metadata(&path).unwrap().len() / 4096 - 1;
    let mut file = std::fs::File::options().write(true).open(&path).unwrap();
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(4096)).unwrap();
    std::io::Write::write_all(&mut file, &vec![0xa5; usize::try_from(pages).unwrap() * 4096]).unwrap();

    let (rest, grpc) = (client::rest(&url).unwrap(), client::grpc(&url).unwrap());
    let began = Instant::now();
    let first = loop {
        match send_payload(&*rest, text("", "hello")).await {
            Err(error) if error.kind() == ErrorKind::Unavailable => break error,
            Ok(_) | Err(_) => assert!(began.elapsed() < WITHIN, "sends must be rejected"),
        }
    };
    assert!(began.elapsed() < WITHIN, "{:?}", began.elapsed());
    assert!(first.to_string().contains("the store is unavailable or the server is stopping"), "{first}");
    assert_eq!(ready().await, 503);
    let request = crate::bindings::http().post(format!("{url}/message:send"));
    let request = request.header("content-type", "application/json").body(message("hello").to_string());
    assert_eq!(request.send().await.unwrap().status(), 503);
    for agent in [&rest, &grpc] {
        for task in ["", asked.id.as_str()] {
            let began = Instant::now();
            assert_error_kind(&send_payload(&**agent, text(task, "hello")).await.unwrap_err(), ErrorKind::Unavailable);
            assert!(began.elapsed() < WITHIN, "{:?}", began.elapsed());
        }
    }
    assert_eq!(crate::bindings::fetch(format!("{url}/healthz")).await.unwrap().status(), 200);
}
