//! Calls for a task at other servers than the one that runs it: directly, and through each proxy.

use std::{sync::Arc, time::Duration};

use a2a_service::{
    call::Call,
    error::Error,
    event::{Ends, Event},
    pb::v1::{
        CancelTaskRequest, Message, SendMessageConfiguration, SendMessageRequest, Task, TaskState,
        a2a_service_server::A2aService, send_message_response::Payload as Answer,
    },
};
use futures::future::{BoxFuture, join_all};
use tokio::time::timeout;

use super::{Cluster, SERVERS};
use crate::{
    scenarios::{configured, get, next, output, remaining, request, send, stream, subscribe, task_of, text},
    workload::{Binding, bindings},
};

const TIMEOUT: Duration = Duration::from_secs(10);

/// Lease of the servers.
const LEASE: Duration = Duration::from_secs(10);

/// Clients of the servers A, B and C.
type Replicas = [Arc<dyn A2aService>; SERVERS];

#[expect(clippy::print_stdout, reason = "the output names what has passed")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_server_answers_for_any_task() {
    let Some(mut cluster) = Cluster::find("cases", LEASE).await else { return };
    cluster.use_resumable_agent().await;
    let mut servers: Vec<_> = (0..SERVERS).map(|number| cluster.server(number, &cluster.database)).collect();
    for server in &mut servers {
        server.start().await;
    }
    for server in &servers {
        server.wait_until_ready().await;
    }
    let direct = [0, 1, 2].map(|n: usize| bindings(&servers[n].url, &servers[n].url));
    let checks = (0..direct[0].len()).map(|binding| {
        let replicas = [0, 1, 2].map(|n: usize| Arc::clone(&direct[n][binding].1));
        check(direct[0][binding].0.to_owned(), replicas)
    });
    join_all(checks).await;
    println!("ok calls at other servers, {} bindings", direct[0].len());
    for balancer in &cluster.balancers {
        // Each request reaches another server.
        let checks = bindings(&balancer.url, &balancer.grpc).map(|Binding(name, client)| {
            check(format!("{name} through {}", balancer.name), [0, 1, 2].map(|_| Arc::clone(&client)))
        });
        join_all(checks).await;
        println!("ok calls through {}, {} bindings", balancer.name, direct[0].len());
    }
    assert_eq!(cluster.count("SELECT count(*) FROM @inbox WHERE error IS NULL").await, 0);
    for server in &mut servers {
        server.signal("-TERM");
        assert_eq!(server.ended().await, Some(0));
    }
}

async fn check(name: String, replicas: Replicas) {
    let replicas = &replicas;
    let cases: [(_, BoxFuture<'_, ()>); 5] = [
        ("stream", Box::pin(stream_is_read_elsewhere(replicas))),
        ("cancel", Box::pin(task_is_canceled_elsewhere(replicas))),
        ("follow-up", Box::pin(message_is_taken_elsewhere(replicas))),
        ("next turn", Box::pin(next_turn_runs_elsewhere(replicas))),
        ("retry", Box::pin(retry_is_recognized_elsewhere(replicas))),
    ];
    for (case, check) in cases {
        assert!(timeout(TIMEOUT, check).await.is_ok(), "{name}, {case}: no end after {TIMEOUT:?}");
    }
}

async fn send_at_once(agent: &dyn A2aService, content: &str) -> Task {
    let at_once = SendMessageConfiguration { return_immediately: true, ..SendMessageConfiguration::default() };
    send(agent, configured(text("", content), at_once)).await
}

/// A subscription at B has the events of a task that runs on A, as they happen.
async fn stream_is_read_elsewhere([a, b, c]: &Replicas) {
    let mut events = stream(&**a, text("", "/stream 30 20")).await;
    let id = task_of(&next(&mut events).await).id.clone();
    let subscribed = subscribe(&**b, &id).await.unwrap();
    let (here, there) = tokio::join!(remaining(events), remaining(subscribed));
    assert!(!task_of(&there[0]).state().is_terminal() && there.len() > 3, "{there:?}");
    assert!([&here, &there].iter().all(|events| events.last().unwrap().ends() == Ends::Task), "{here:?} {there:?}");
    // All of both are in the same order.
    let tail = here[here.len().saturating_sub(there.len() - 1)..].iter().map(Event::response);
    let skipped = (there.len() - 1).saturating_sub(here.len());
    assert!(tail.eq(there[1 + skipped..].iter().map(Event::response)), "{here:?} {there:?}");
    let task = get(&**c, &id).await.unwrap();
    assert_eq!((task.state(), output(&task).lines().count()), (TaskState::Completed, 30));
}

async fn task_is_canceled_elsewhere([a, b, c]: &Replicas) {
    let id = send_at_once(&**a, "/slow 60").await.id;
    let subscribed = subscribe(&**b, &id).await.unwrap();
    let cancel = CancelTaskRequest { id: id.clone(), ..CancelTaskRequest::default() };
    let canceled = c.cancel_task(request(cancel)).await.unwrap().into_inner().into_task().unwrap();
    assert_eq!(canceled.state(), TaskState::Canceled);
    assert_eq!(remaining(subscribed).await.last().unwrap().ends(), Ends::Task);
    assert_eq!(get(&**a, &id).await.unwrap(), canceled);
}

/// A message at B waits for the turn that runs on A, and its answer is the response at B.
async fn message_is_taken_elsewhere([a, b, c]: &Replicas) {
    let id = send_at_once(&**a, "!later 300").await.id;
    let task = send(&**b, text(&id, "soon")).await;
    assert_eq!((task.state(), output(&task).as_str()), (TaskState::Completed, "soon"));
    assert_eq!(get(&**c, &id).await.unwrap(), task);
}

async fn next_turn_runs_elsewhere([a, b, c]: &Replicas) {
    let task = send(&**a, text("", "/ask which?")).await;
    assert_eq!(task.state(), TaskState::InputRequired);
    assert_eq!(get(&**c, &task.id).await.unwrap(), task);
    let answered = send(&**b, text(&task.id, "this")).await;
    assert_eq!((answered.state(), output(&answered).as_str()), (TaskState::Completed, "this"));
    assert_eq!(get(&**c, &task.id).await.unwrap(), answered);
}

/// Sends with one key, also at the same time, have one task and reach the agent once.
async fn retry_is_recognized_elsewhere([a, b, c]: &Replicas) {
    let key = Message::user("").message_id;
    let first = text("", "!more hello");
    let tasks = join_all([a, b, c].map(|agent| send_with_key(&**agent, &key, &first))).await;
    let task = tasks[0].as_ref().unwrap();
    assert!(tasks.iter().all(|sent| sent.as_ref().is_ok_and(|sent| sent.id == task.id)), "{tasks:?}");
    let (key, second) = (Message::user("").message_id, text(&task.id, "!more again"));
    let followed = join_all([b, c, a].map(|agent| send_with_key(&**agent, &key, &second))).await;
    assert!(followed.iter().all(|sent| sent.as_ref().is_ok_and(|sent| sent.id == task.id)), "{followed:?}");
    let known = get(&**b, &task.id).await.unwrap();
    assert_eq!((known.state(), output(&known).as_str()), (TaskState::InputRequired, "helloagain"), "{known:?}");
}

async fn send_with_key(agent: &dyn A2aService, key: &str, send: &SendMessageRequest) -> Result<Task, Error> {
    let keyed = Call { idempotency_key: Some(key.into()), ..Call::default() }.request(send.clone());
    match agent.send_message(keyed).await?.into_inner().payload.unwrap() {
        Answer::Task(task) => Ok(task),
        Answer::Message(message) => panic!("expected a task, got {message:?}"),
    }
}
