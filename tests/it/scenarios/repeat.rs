//! Sends that come again because their sender does not know what became of them (3.3.1).

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use a2a_service::{
    agent::{Agent, End, Error as Failure, Turn, Updates},
    server::Server,
    service::Dedupe,
    store::sqlite::Options,
};
use futures::future::join_all;

use super::*;
use crate::{
    bindings::{each_binding, serve},
    store::place::Opened,
};

/// Counts what it is given, and asks for more until it is told that this is the last.
#[derive(Clone, Default)]
struct Counts(Arc<AtomicUsize>);

impl Agent for Counts {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Failure> {
        self.0.fetch_add(turn.messages().count(), Ordering::SeqCst);
        out.working().await?;
        tokio::task::yield_now().await;
        out.artifact("answer").text(turn.text()).await?;
        let is_last = turn.messages().any(|it| it.text().contains("last"));
        Ok(if is_last { End::Completed(None) } else { End::InputRequired(Message::agent("more?")) })
    }
}

fn keyed<T>(key: &str, message: T) -> Request<T> {
    Call { idempotency_key: Some(key.into()), ..Call::default() }.request(message)
}

async fn sent(agent: &dyn A2aService, key: &str, send: &SendMessageRequest) -> Result<Task, Error> {
    match agent.send_message(keyed(key, send.clone())).await?.into_inner().payload.unwrap() {
        Answer::Task(it) => Ok(it),
        Answer::Message(it) => panic!("a message in place of a task: {it:?}"),
    }
}

async fn streamed(agent: &dyn A2aService, key: &str, send: &SendMessageRequest) -> Result<Vec<Event>, Error> {
    Ok(remaining(agent.send_streaming_message(keyed(key, send.clone())).await?.into_inner()).await)
}

async fn a_send_is_taken_once(way: impl AsyncFn(Server<Counts>) -> Arc<dyn A2aService>) {
    let (counts, store) = (Counts::default(), Opened::sqlite(Options::default()));
    let agent = way(Server::new(counts.clone()).store(Arc::clone(&store.store))).await;
    let first = text("", "hello");
    // At once …
    let tasks = join_all((0..10).map(|_| sent(&*agent, "one", &first))).await;
    let task = tasks[0].as_ref().unwrap();
    assert!(tasks.iter().all(|it| it.as_ref().unwrap() == task));
    assert_eq!((output(task).as_str(), counts.0.load(Ordering::SeqCst)), ("hello", 1));
    let second = text(&task.id, "and this");
    let streams = join_all((0..10).map(|_| streamed(&*agent, "two", &second))).await;
    for it in &streams {
        let events = it.as_ref().unwrap();
        assert_eq!(task_of(&events[0]).id, task.id);
        assert_eq!(events.last().and_then(state), Some(TaskState::InputRequired));
    }
    assert_eq!(counts.0.load(Ordering::SeqCst), 2);
    let now = get(&*agent, &task.id).await.unwrap();
    assert_eq!(output(&now), "helloand this");
    // … and after the server was killed, whichever way it is asked for.
    let store = store.killed();
    let agent = way(Server::new(counts.clone()).store(Arc::clone(&store.store))).await;
    for (key, send) in [("one", &first), ("two", &second)] {
        assert_eq!(sent(&*agent, key, send).await.unwrap(), now);
        let events = streamed(&*agent, key, send).await.unwrap();
        assert_eq!((events.len(), task_of(&events[0])), (1, &now));
    }
    assert_eq!(counts.0.load(Ordering::SeqCst), 2);
    // Another message is none of these, and is not taken for one.
    for key in ["one", "two"] {
        let other = text(&task.id, "the last");
        assert_error_kind(&sent(&*agent, key, &other).await.unwrap_err(), ErrorKind::IdempotencyConflict);
        assert_error_kind(&streamed(&*agent, key, &other).await.unwrap_err(), ErrorKind::IdempotencyConflict);
    }
    // Two different ones at once are two.
    let (three, four) = (text(&task.id, "3"), text(&task.id, "4"));
    let (one, other) = tokio::join!(sent(&*agent, "three", &three), sent(&*agent, "four", &four));
    assert_eq!((one.unwrap().id, other.unwrap().id), (task.id.clone(), task.id.clone()));
    assert_eq!(counts.0.load(Ordering::SeqCst), 4);
}

each_binding!(a_send_is_taken_once);

async fn the_id_of_a_message_may_be_its_key(way: impl AsyncFn(Server<Counts>) -> Arc<dyn A2aService>) {
    let counts = Counts::default();
    let agent = way(Server::new(counts.clone()).dedupe(Dedupe::MessageId)).await;
    let first = text("", "the last");
    let task = send(&*agent, first.clone()).await;
    assert_eq!(send(&*agent, first.clone()).await, task);
    let events = remaining(stream(&*agent, first.clone()).await).await;
    assert_eq!(task_of(&events[0]), &task);
    let id = first.message.unwrap().message_id;
    let mut other = text("", "something else");
    other.message.as_mut().unwrap().message_id = id;
    assert_error_kind(&send_payload(&*agent, other).await.unwrap_err(), ErrorKind::IdempotencyConflict);
    assert_eq!(counts.0.load(Ordering::SeqCst), 1);
}

each_binding!(the_id_of_a_message_may_be_its_key);

/// As it is on the wire: the header, and the error of each binding.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conflict_is_told_in_each_binding() {
    let url = serve(Server::new(Counts::default())).await;
    let http = reqwest::Client::new();
    let post = async |path: &str, key: &str, body: String| {
        let asked = http.post(format!("{url}{path}")).header("content-type", "application/json");
        let reply = asked.header("Idempotency-Key", key).body(body).send().await.unwrap();
        let status = reply.status().as_u16();
        let body = reply.bytes().await.unwrap();
        (status, serde_json::from_slice::<serde_json::Value>(&body).unwrap())
    };
    let message =
        |text: &str| format!(r#"{{"message":{{"messageId":"m","role":"ROLE_USER","parts":[{{"text":"{text}"}}]}}}}"#);
    let rpc = |text: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{}}}"#, message(text));
    let (status, made) = post("/message:send", "k", message("last")).await;
    assert_eq!(status, 200);
    // By another door, it is still the same send.
    let (_, again) = post("/rpc", "k", rpc("last")).await;
    assert_eq!(again["result"]["task"]["id"], made["task"]["id"]);
    let (status, refused) = post("/message:send", "k", message("other")).await;
    assert_eq!((status, &refused["error"]["status"]), (409, &"ALREADY_EXISTS".into()));
    assert_eq!(refused["error"]["details"][0]["reason"], "IDEMPOTENCY_CONFLICT");
    assert_eq!(refused["error"]["details"][0]["metadata"]["taskId"], made["task"]["id"]);
    let (status, refused) = post("/rpc", "k", rpc("other")).await;
    assert_eq!((status, &refused["error"]["code"]), (200, &(-32056).into()));
    let (status, refused) = post("/message:send", &"k".repeat(256), message("other")).await;
    assert_eq!(
        (status, &refused["error"]["details"][1]["fieldViolations"][0]["field"]),
        (400, &"idempotency-key".into())
    );
}

/// Whoever has a key can ask whether it is of any use here, in each binding of either version, without doing anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_comes_back_with_every_answer() {
    let url = serve(Server::new(Counts::default())).await;
    let http = reqwest::Client::new();
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
            let asked = match body.clone() {
                Some(it) => http.post(url).header("content-type", "application/json").body(it),
                None => http.get(url),
            };
            let asked = key.into_iter().fold(asked, |it, key| it.header("idempotency-key", key));
            let reply = asked.send().await.unwrap();
            assert_eq!(reply.headers().get("idempotency-key").and_then(|it| it.to_str().ok()), key, "{path}");
            assert!(reply.text().await.unwrap().contains("error"), "{path}");
        }
    }
}
