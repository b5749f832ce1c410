//! One task, whichever versions and bindings it is made, seen and ended by: both versions are of one service on one port.

use std::sync::Arc;

use a2a_service::{
    agent::{self, Agent, End, Turn, Updates},
    call::Call,
    client,
    error::ErrorKind,
    pb::{
        v1::{
            CancelTaskRequest, SendMessageConfiguration, SubscribeToTaskRequest, TaskState,
            a2a_service_server::A2aService,
        },
        v03::{self, a2a_service_client::A2aServiceClient},
    },
    server::Server,
    store::memory::Memory,
};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tonic::Request;

use crate::{
    auth::Gullible,
    classic_client, classic_rpc_client,
    scenarios::{configured, get, is, next, output, remaining, send, state, stream, subscribe, task_of, text},
    ways::{serve, server},
};

type Door = (&'static str, Arc<dyn A2aService>);

/// The ways into one server at 0.3.
fn classic(url: &str) -> [Door; 3] {
    [
        ("JSON-RPC 0.3", classic_rpc_client::json_rpc(url)),
        ("REST 0.3", classic_client::rest(url)),
        ("gRPC 0.3", classic_client::grpc(url)),
    ]
}

/// All ways into it.
fn doors(url: &str) -> Vec<Door> {
    let current = [
        ("JSON-RPC 1.0", client::json_rpc(&format!("{url}/rpc")).unwrap()),
        ("REST 1.0", client::rest(url).unwrap()),
        ("gRPC 1.0", client::grpc(url).unwrap()),
    ];
    classic(url).into_iter().chain(current).collect()
}

/// 0.3 over JSON-RPC, 1.0 over gRPC, 0.3 over REST; the reverse; and every other order of three.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_made_streamed_and_canceled() {
    let doors = doors(&serve(server()).await);
    let at_once = SendMessageConfiguration { return_immediately: true, ..SendMessageConfiguration::default() };
    for (made, maker) in &doors {
        for (streamed, streamer) in &doors {
            for (canceled, canceler) in &doors {
                let how = format!("made over {made}, streamed over {streamed}, canceled over {canceled}");
                let task = send(&**maker, configured(text("", "/slow 30"), at_once.clone())).await;
                let mut events = subscribe(&**streamer, &task.id).await.unwrap_or_else(|it| panic!("{how}: {it}"));
                let first = next(&mut events).await;
                assert_eq!((&task_of(&first).id, &task_of(&first).context_id), (&task.id, &task.context_id), "{how}");
                assert_eq!(task_of(&first).history, task.history, "{how}");
                let cancel = CancelTaskRequest { id: task.id.clone(), ..CancelTaskRequest::default() };
                let ended = canceler
                    .cancel_task(Call::default().request(cancel))
                    .await
                    .unwrap()
                    .into_inner()
                    .into_task()
                    .unwrap();
                assert_eq!(ended.state(), TaskState::Canceled, "{how}");
                let rest = remaining(events).await;
                assert_eq!(rest.last().and_then(state), Some(TaskState::Canceled), "{how}");
                assert_eq!(get(&**maker, &task.id).await.unwrap(), ended, "{how}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversation_goes_on_at_another_door() {
    let doors = doors(&serve(server()).await);
    for (from, one) in &doors {
        for (to, other) in &doors {
            let asked = send(&**one, text("", "/ask which city?")).await;
            assert_eq!(get(&**other, &asked.id).await.unwrap(), asked, "{from}, {to}");
            let done = send(&**other, text(&asked.id, "Rome")).await;
            assert_eq!((done.state(), output(&done).as_str()), (TaskState::Completed, "Rome"), "{from}, {to}");
            assert_eq!(get(&**one, &asked.id).await.unwrap(), done, "{from}, {to}");
        }
    }
}

fn subscription(id: &str) -> SubscribeToTaskRequest {
    SubscribeToTaskRequest { id: id.into(), ..SubscribeToTaskRequest::default() }
}

/// A stream of either version is taken up in the other, after the event that was seen last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cursor_holds_at_another_door() {
    let doors = doors(&serve(server()).await);
    for (from, one) in &doors {
        // gRPC takes cursors, and gives none.
        if from.starts_with("gRPC") {
            continue;
        }
        let all = remaining(stream(&**one, text("", "!done")).await).await;
        let (cursor, expected) = (all[0].cursor().cloned(), &all[1..]);
        assert!(cursor.is_some() && !expected.is_empty(), "{from}");
        let id = task_of(&all[0]).id.clone();
        for (to, other) in &doors {
            let call = Call { cursor: cursor.clone(), ..Call::default() };
            let rest = other.subscribe_to_task(call.request(subscription(&id))).await.unwrap().into_inner();
            assert_eq!(remaining(rest).await, expected, "{from}, {to}");
        }
    }
}

/// What a server that came up again knows of a task is the task, whether anybody works on it or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_after_a_restart_is_the_task() {
    let store = Arc::new(Memory::default());
    let before = server().store(Arc::<Memory>::clone(&store)).into_service();
    let asked = send(&*before, text("", "/ask which city?")).await;
    let ended = send(&*before, text("", "hello")).await;
    drop(before);
    let url = serve(server().store(store)).await;
    for (door, agent) in classic(&url) {
        let mut events = subscribe(&*agent, &asked.id).await.unwrap();
        assert_eq!(task_of(&next(&mut events).await), &asked, "{door}");
        // As if it had been there all the time.
        let events = remaining(subscribe(&*agent, &ended.id).await.unwrap()).await;
        assert_eq!(task_of(&events[0]), &ended, "{door}");
        is(&subscribe(&*agent, "nowhere").await.err().unwrap(), ErrorKind::TaskNotFound);
    }
}

/// A task of somebody else is one that is not there, in the words of 0.3 as well (13.1).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_task_is_not_there_at_0_3() {
    let url = serve(server().authenticator(Gullible)).await;
    let http = reqwest::Client::new();
    let ask = async |name: &str, path: &str, body: &Value| {
        let asked = http.post(format!("{url}{path}")).header("x-name", name).header("content-type", "application/json");
        asked.body(body.to_string()).send().await.unwrap().text().await.unwrap()
    };
    let rpc = |method: &str, params: Value| json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    let message = json!({"messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "/ask what?"}]});
    let made: Value =
        serde_json::from_str(&ask("ada", "/rpc", &rpc("message/send", json!({"message": message}))).await).unwrap();
    let id = made["result"]["id"].as_str().unwrap();
    for method in ["tasks/get", "tasks/cancel", "tasks/resubscribe"] {
        let (theirs, nobodys) = (
            ask("bob", "/rpc", &rpc(method, json!({"id": id}))).await,
            ask("bob", "/rpc", &rpc(method, json!({"id": "t-9"}))).await,
        );
        assert!(theirs.contains(r#""code":-32001"#), "{method}: {theirs}");
        assert_eq!(theirs.replace(id, "t-9"), nobodys, "{method}");
    }
    for action in ["cancel", "subscribe"] {
        let path = |id: &str| format!("/v1/tasks/{id}:{action}");
        let (theirs, nobodys) = (ask("bob", &path(id), &json!({})).await, ask("bob", &path("t-9"), &json!({})).await);
        assert!(theirs.contains("TaskNotFoundError"), "{action}: {theirs}");
        assert_eq!(theirs.replace(id, "t-9"), nobodys, "{action}");
    }
    let mut grpc = A2aServiceClient::connect(url.clone()).await.unwrap();
    let mut theirs = Request::new(v03::GetTaskRequest { name: format!("tasks/{id}"), ..Default::default() });
    theirs.metadata_mut().insert("x-name", "bob".parse().unwrap());
    let status = grpc.get_task(theirs).await.unwrap_err();
    assert_eq!(status.message(), format!("TaskNotFoundError: Task not found: {id}"));
    let seen = ask("ada", "/rpc", &rpc("tasks/get", json!({"id": id}))).await;
    assert!(seen.contains("input-required"), "{seen}");
}

/// Works until it is told that it has.
#[derive(Default)]
struct Gate {
    began: Notify,
    open: Notify,
}

impl Gate {
    /// Waits for what is sent, and lets the agent end: meanwhile if the send waits for that, and else when it has not.
    async fn pass<T>(&self, waits: bool, sent: impl Future<Output = T>) -> T {
        let open = async {
            self.began.notified().await;
            self.open.notify_one();
        };
        if waits {
            return tokio::join!(sent, open).0;
        }
        let answer = sent.await;
        open.await;
        answer
    }
}

/// An agent that ends when the test lets it.
struct Gated(Arc<Gate>);

impl Agent for Gated {
    async fn run(&self, _: Turn, out: Updates) -> Result<End, agent::Error> {
        out.working().await?;
        self.0.began.notify_one();
        self.0.open.notified().await;
        Ok(End::Completed(None))
    }
}

/// What is not said waits at 0.3; where there is somebody to tell, it need not; and what is said holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_send_of_0_3_waits_unless_it_says_otherwise() {
    let gate = Arc::new(Gate::default());
    let url = serve(Server::new(Gated(Arc::clone(&gate))).push(true)).await;
    let http = &reqwest::Client::new();
    let post = async |path: &str, body: Value, state: &str| {
        let asked = http.post(format!("{url}{path}")).header("content-type", "application/json");
        let reply = asked.body(body.to_string()).send().await.unwrap();
        let reply: Value = serde_json::from_slice(&reply.bytes().await.unwrap()).unwrap();
        reply.pointer(state).and_then(Value::as_str).unwrap_or_else(|| panic!("{body}: {reply}")).to_owned()
    };
    let push = json!({"url": "https://hook.example/"});
    for (configuration, waits) in [
        (Value::Null, true),
        (json!({}), true),
        (json!({"historyLength": 1}), true),
        (json!({"blocking": true}), true),
        (json!({"blocking": false}), false),
        (json!({"blocking": null}), true),
        (json!({"pushNotificationConfig": push}), false),
        (json!({"pushNotificationConfig": push, "blocking": true}), true),
        (json!({"pushNotificationConfig": push, "blocking": false}), false),
    ] {
        // The JSON of JSON-RPC, whichever way it comes: that of the proto file leaves out what is false.
        let parts = json!([{"kind": "text", "text": "hi"}]);
        let message = json!({"kind": "message", "messageId": "m", "role": "user", "parts": parts});
        let params = json!({"message": message, "configuration": configuration});
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params});
        let state = gate.pass(waits, post("/rpc", call, "/result/status/state")).await;
        assert_eq!(state == "completed", waits, "JSON-RPC: {configuration}: {state}");
        let mut body = params.clone();
        // Where the proto file calls it otherwise.
        if let Some(push) = body["configuration"].as_object_mut().and_then(|it| it.remove("pushNotificationConfig")) {
            body["configuration"]["pushNotification"] = push;
        }
        // A configuration without the field counts as one with `false`.
        let said = configuration.get("blocking").is_some_and(|it| !it.is_null());
        let waits = if configuration.is_object() && !said { false } else { waits };
        let state = gate.pass(waits, post("/v1/message:send", body, "/task/status/state")).await;
        assert_eq!(state == "TASK_STATE_COMPLETED", waits, "REST: {configuration}: {state}");
    }

    // In protobuf `blocking` is there wherever the configuration is.
    let mut grpc = A2aServiceClient::connect(url.clone()).await.unwrap();
    let of = |blocking| Some(v03::SendMessageConfiguration { blocking, ..Default::default() });
    for (configuration, waits) in [(None, true), (of(true), true), (of(false), false)] {
        let content = vec![v03::Part { part: Some(v03::part::Part::Text("hi".into())), metadata: None }];
        let message =
            v03::Message { message_id: "m".into(), role: v03::Role::User.into(), content, ..Default::default() };
        let sent = v03::SendMessageRequest { request: Some(message), configuration, metadata: None };
        let reply = gate.pass(waits, grpc.send_message(sent)).await.unwrap().into_inner();
        let Some(v03::send_message_response::Payload::Task(task)) = reply.payload else { panic!("{reply:?}") };
        let state = task.status.unwrap().state();
        assert_eq!(state == v03::TaskState::Completed, waits, "gRPC: {state:?}");
    }
}
