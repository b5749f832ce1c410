//! Idempotent sends: retried sends are delivered to the agent once per idempotency key (specification 3.3.1).

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use a2a_service::{
    agent::{Agent, End, Error as Failure, Turn, Updates},
    server::Server,
    service::IdempotencySource,
    store::sqlite::Options,
};
use futures::future::join_all;

use super::*;
use crate::{
    bindings::{Actor, Binding, each_binding, serve},
    store::opened::OpenedStore,
};

/// Agent that counts messages.
#[derive(Clone)]
struct MessageCounter {
    count: Arc<AtomicUsize>,
    agent: Actor,
}

impl MessageCounter {
    fn new() -> Self {
        Self { count: Arc::default(), agent: Actor::new() }
    }

    fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }
}

impl Agent for MessageCounter {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Failure> {
        self.count.fetch_add(turn.messages().count(), Ordering::SeqCst);
        self.agent.run(turn, out).await
    }

    fn resumable(&self) -> bool {
        self.agent.resumable()
    }
}

fn keyed<T>(key: &str, message: T) -> Request<T> {
    Call { idempotency_key: Some(key.into()), ..Call::default() }.request(message)
}

async fn send_with_key(agent: &dyn A2aService, key: &str, send: &SendMessageRequest) -> Result<Task, Error> {
    match agent.send_message(keyed(key, send.clone())).await?.into_inner().payload.unwrap() {
        Answer::Task(task) => Ok(task),
        Answer::Message(message) => panic!("expected a task, got {message:?}"),
    }
}

async fn stream_with_key(agent: &dyn A2aService, key: &str, send: &SendMessageRequest) -> Result<Vec<Event>, Error> {
    Ok(remaining(agent.send_streaming_message(keyed(key, send.clone())).await?.into_inner()).await)
}

async fn retried_send_is_delivered_once(binding: Binding) {
    let (counter, store) = (MessageCounter::new(), OpenedStore::sqlite(Options::default()));
    let agent = binding(Server::new(counter.clone()).store(Arc::clone(&store.store))).await;
    let first = text("", "!more hello");
    // Simultaneous retries.
    let tasks = join_all((0..10).map(|_| send_with_key(&*agent, "one", &first))).await;
    let task = tasks[0].as_ref().unwrap();
    assert!(tasks.iter().all(|sent_task| sent_task.as_ref().unwrap() == task));
    assert_eq!((output(task).as_str(), counter.count()), ("hello", 1));
    let second = text(&task.id, "!more and this");
    let streams = join_all((0..10).map(|_| stream_with_key(&*agent, "two", &second))).await;
    for stream in &streams {
        let events = stream.as_ref().unwrap();
        assert_eq!(task_of(&events[0]).id, task.id);
        assert_eq!(events.last().and_then(state), Some(TaskState::InputRequired));
    }
    assert_eq!(counter.count(), 2);
    let latest = get(&*agent, &task.id).await.unwrap();
    // A model separates its answers.
    assert_eq!(output(&latest).replace("\n\n", ""), "helloand this");
    // Retries after a crash, streaming or not.
    let store = store.killed();
    let agent = binding(Server::new(counter.clone()).store(Arc::clone(&store.store))).await;
    for (key, send) in [("one", &first), ("two", &second)] {
        assert_eq!(send_with_key(&*agent, key, send).await.unwrap(), latest);
        let events = stream_with_key(&*agent, key, send).await.unwrap();
        assert_eq!((events.len(), task_of(&events[0])), (1, &latest));
    }
    assert_eq!(counter.count(), 2);
    // A different message with a used key is a conflict.
    for key in ["one", "two"] {
        let other = text(&task.id, "the last");
        assert_error_kind(&send_with_key(&*agent, key, &other).await.unwrap_err(), ErrorKind::IdempotencyConflict);
        assert_error_kind(&stream_with_key(&*agent, key, &other).await.unwrap_err(), ErrorKind::IdempotencyConflict);
    }
    // Simultaneous sends with different keys are both delivered.
    let (three, four) = (text(&task.id, "!more 3"), text(&task.id, "!more 4"));
    let (one, other) = tokio::join!(send_with_key(&*agent, "three", &three), send_with_key(&*agent, "four", &four));
    assert_eq!((one.unwrap().id, other.unwrap().id), (task.id.clone(), task.id.clone()));
    assert_eq!(counter.count(), 4);
}

each_binding!(retried_send_is_delivered_once, kinds());

async fn message_id_can_be_the_idempotency_key(binding: Binding) {
    let counter = MessageCounter::new();
    let agent = binding(Server::new(counter.clone()).idempotency_default_key(IdempotencySource::MessageId)).await;
    let first = text("", "the last");
    let task = send(&*agent, first.clone()).await;
    assert_eq!(send(&*agent, first.clone()).await, task);
    let events = remaining(stream(&*agent, first.clone()).await).await;
    assert_eq!(task_of(&events[0]), &task);
    let id = first.message.unwrap().message_id;
    let mut other = text("", "something else");
    other.message.as_mut().unwrap().message_id = id;
    assert_error_kind(&send_payload(&*agent, other.clone()).await.unwrap_err(), ErrorKind::IdempotencyConflict);
    // Not every store can have such a key.
    other.message.as_mut().unwrap().message_id.push('\0');
    assert_error_kind(&send_payload(&*agent, other).await.unwrap_err(), ErrorKind::InvalidParams);
    assert_eq!(counter.count(), 1);
}

each_binding!(message_id_can_be_the_idempotency_key, kinds());

/// Bytes on the wire: the header, and the error of each binding.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_conflict_has_the_error_of_each_binding() {
    let url = serve(Server::new(MessageCounter::new())).await;
    let http = crate::bindings::http();
    let post = async |path: &str, key: &str, body: String| {
        let request = http.post(format!("{url}{path}")).header("content-type", "application/json");
        let reply = request.header("Idempotency-Key", key).body(body).send().await.unwrap();
        let status = reply.status().as_u16();
        let body = reply.bytes().await.unwrap();
        (status, serde_json::from_slice::<serde_json::Value>(&body).unwrap())
    };
    let message =
        |text: &str| format!(r#"{{"message":{{"messageId":"m","role":"ROLE_USER","parts":[{{"text":"{text}"}}]}}}}"#);
    let rpc = |text: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{}}}"#, message(text));
    let (status, created) = post("/message:send", "k", message("last")).await;
    assert_eq!(status, 200);
    // The key is independent of the binding.
    let (_, retried) = post("/rpc", "k", rpc("last")).await;
    assert_eq!(retried["result"]["task"]["id"], created["task"]["id"]);
    let (status, rejected) = post("/message:send", "k", message("other")).await;
    assert_eq!((status, &rejected["error"]["status"]), (409, &"ALREADY_EXISTS".into()));
    assert_eq!(rejected["error"]["details"][0]["reason"], "IDEMPOTENCY_CONFLICT");
    assert_eq!(rejected["error"]["details"][0]["metadata"]["taskId"], created["task"]["id"]);
    let (status, rejected) = post("/rpc", "k", rpc("other")).await;
    assert_eq!((status, &rejected["error"]["code"]), (200, &(-32056).into()));
    let (status, rejected) = post("/message:send", &"k".repeat(256), message("other")).await;
    assert_eq!(
        (status, &rejected["error"]["details"][1]["fieldViolations"][0]["field"]),
        (400, &"idempotency-key".into())
    );
}

/// The echoed header tells a client, without side effects, that the server supports idempotency keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idempotency_key_is_echoed_with_every_response() {
    let url = serve(Server::new(MessageCounter::new())).await;
    let http = crate::bindings::http();
    let rpc = |method: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{"id":"nothing"}}}}"#);
    for (path, body) in [
        ("/tasks/nothing", None),
        ("/v1/tasks/nothing", None),
        ("/rpc", Some(rpc("GetTask"))),
        ("/rpc", Some(rpc("tasks/get"))),
        ("/rpc", Some(rpc("Nonsense"))),
        ("/rpc", Some("{".to_owned())),
    ] {
        for key in [None, Some("k 1")] {
            let url = format!("{url}{path}");
            let request = match body.clone() {
                Some(body) => http.post(url).header("content-type", "application/json").body(body),
                None => http.get(url),
            };
            let request = key.into_iter().fold(request, |request, key| request.header("idempotency-key", key));
            let reply = request.send().await.unwrap();
            assert_eq!(reply.headers().get("idempotency-key").and_then(|value| value.to_str().ok()), key, "{path}");
            assert!(reply.text().await.unwrap().contains("error"), "{path}");
        }
    }
}
