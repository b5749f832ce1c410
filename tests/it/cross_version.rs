//! Interoperation of versions and bindings: a task created over one can be read, streamed, continued and canceled over any
//! other.

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
        v03::{self},
    },
    server::Server,
    store::memory::Memory,
    v03::pb::a2a_service_client::A2aServiceClient,
};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tonic::Request;

use crate::conformance::{Exemption, allow_undocumented};
use crate::{
    auth::TrustNameHeader,
    bindings::{serve, server},
    scenarios::{
        assert_error_kind, configured, get, next, output, remaining, send, state, stream, subscribe, task_of, text,
    },
    v03_client,
};

type Binding = (&'static str, Arc<dyn A2aService>);

/// Clients of 0.3 of one server.
fn v03_bindings(url: &str) -> [Binding; 3] {
    [
        ("JSON-RPC 0.3", v03_client::json_rpc(url)),
        ("REST 0.3", v03_client::rest(url)),
        ("gRPC 0.3", v03_client::grpc(url)),
    ]
}

/// Clients of both versions of one server.
fn bindings(url: &str) -> Vec<Binding> {
    let current = [
        ("JSON-RPC 1.0", client::json_rpc(&format!("{url}/rpc")).unwrap()),
        ("REST 1.0", client::rest(url).unwrap()),
        ("gRPC 1.0", client::grpc(url).unwrap()),
    ];
    v03_bindings(url).into_iter().chain(current).collect()
}

/// All combinations of three bindings, of which each creates, streams or cancels the task.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_can_be_created_streamed_and_canceled_over_different_bindings() {
    let bindings = bindings(&serve(server()).await);
    let at_once = SendMessageConfiguration { return_immediately: true, ..SendMessageConfiguration::default() };
    for (created, creator) in &bindings {
        for (streamed, streamer) in &bindings {
            for (canceled, canceler) in &bindings {
                let context = format!("created over {created}, streamed over {streamed}, canceled over {canceled}");
                let task = send(&**creator, configured(text("", "/slow 30"), at_once.clone())).await;
                let mut events =
                    subscribe(&**streamer, &task.id).await.unwrap_or_else(|error| panic!("{context}: {error}"));
                let first = next(&mut events).await;
                assert_eq!(
                    (&task_of(&first).id, &task_of(&first).context_id),
                    (&task.id, &task.context_id),
                    "{context}"
                );
                assert_eq!(task_of(&first).history, task.history, "{context}");
                let cancel = CancelTaskRequest { id: task.id.clone(), ..CancelTaskRequest::default() };
                let ended = canceler
                    .cancel_task(Call::default().request(cancel))
                    .await
                    .unwrap()
                    .into_inner()
                    .into_task()
                    .unwrap();
                assert_eq!(ended.state(), TaskState::Canceled, "{context}");
                let rest = remaining(events).await;
                assert_eq!(rest.last().and_then(state), Some(TaskState::Canceled), "{context}");
                assert_eq!(get(&**creator, &task.id).await.unwrap(), ended, "{context}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conversation_continues_over_another_binding() {
    let bindings = bindings(&serve(server()).await);
    for (from, one) in &bindings {
        for (to, other) in &bindings {
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

/// A stream is resumed in either version, after the last event that was received.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cursor_is_valid_over_another_binding() {
    let bindings = bindings(&serve(server()).await);
    for (from, one) in &bindings {
        // gRPC accepts cursors, and returns none.
        if from.starts_with("gRPC") {
            continue;
        }
        let all = remaining(stream(&**one, text("", "!done")).await).await;
        let (cursor, expected) = (all[0].cursor().cloned(), &all[1..]);
        assert!(cursor.is_some() && !expected.is_empty(), "{from}");
        let id = task_of(&all[0]).id.clone();
        for (to, other) in &bindings {
            let call = Call { cursor: cursor.clone(), ..Call::default() };
            let rest = other.subscribe_to_task(call.request(subscription(&id))).await.unwrap().into_inner();
            assert_eq!(remaining(rest).await, expected, "{from}, {to}");
        }
    }
}

/// After a restart, a subscription returns the stored task, whether or not a turn is running.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscription_after_a_restart_returns_the_task() {
    let store = Arc::new(Memory::default());
    let before = server().store(Arc::<Memory>::clone(&store)).into_service();
    let asked = send(&*before, text("", "/ask which city?")).await;
    let ended = send(&*before, text("", "hello")).await;
    drop(before);
    let url = serve(server().store(store)).await;
    for (binding, agent) in v03_bindings(&url) {
        let mut events = subscribe(&*agent, &asked.id).await.unwrap();
        assert_eq!(task_of(&next(&mut events).await), &asked, "{binding}");
        // A terminal task is returned as if the subscription had existed before.
        let events = remaining(subscribe(&*agent, &ended.id).await.unwrap()).await;
        assert_eq!(task_of(&events[0]), &ended, "{binding}");
        assert_error_kind(&subscribe(&*agent, "nowhere").await.err().unwrap(), ErrorKind::TaskNotFound);
    }
}

/// A task of another owner reads as missing in 0.3 too (13.1).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_of_another_owner_reads_as_missing_at_0_3() {
    allow_undocumented(Exemption::Requests);
    let url = serve(server().authenticator(TrustNameHeader)).await;
    let http = crate::bindings::http();
    let post = async |name: &str, path: &str, body: &Value| {
        let request =
            http.post(format!("{url}{path}")).header("x-name", name).header("content-type", "application/json");
        request.body(body.to_string()).send().await.unwrap().text().await.unwrap()
    };
    let rpc = |method: &str, params: Value| json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    let message = json!({"messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "/ask what?"}]});
    let made: Value =
        serde_json::from_str(&post("ada", "/rpc", &rpc("message/send", json!({"message": message}))).await).unwrap();
    let id = made["result"]["id"].as_str().unwrap();
    for method in ["tasks/get", "tasks/cancel", "tasks/resubscribe"] {
        let (foreign, missing) = (
            post("bob", "/rpc", &rpc(method, json!({"id": id}))).await,
            post("bob", "/rpc", &rpc(method, json!({"id": "t-9"}))).await,
        );
        assert!(foreign.contains(r#""code":-32001"#), "{method}: {foreign}");
        assert_eq!(foreign.replace(id, "t-9"), missing, "{method}");
    }
    for action in ["cancel", "subscribe"] {
        let path = |id: &str| format!("/v1/tasks/{id}:{action}");
        let (foreign, missing) =
            (post("bob", &path(id), &json!({})).await, post("bob", &path("t-9"), &json!({})).await);
        assert!(foreign.contains("TaskNotFoundError"), "{action}: {foreign}");
        assert_eq!(foreign.replace(id, "t-9"), missing, "{action}");
    }
    let mut grpc = A2aServiceClient::connect(url.clone()).await.unwrap();
    let mut request = Request::new(v03::GetTaskRequest { name: format!("tasks/{id}"), ..Default::default() });
    request.metadata_mut().insert("x-name", "bob".parse().unwrap());
    let status = grpc.get_task(request).await.unwrap_err();
    assert_eq!(status.message(), format!("TaskNotFoundError: Task not found: {id}"));
    let seen = post("ada", "/rpc", &rpc("tasks/get", json!({"id": id}))).await;
    assert!(seen.contains("input-required"), "{seen}");
}

/// Lets the test decide when the agent ends.
#[derive(Default)]
struct Latch {
    started: Notify,
    release: Notify,
}

impl Latch {
    /// Awaits a send and lets the agent end: during the send if it blocks until then, otherwise after it.
    async fn release_after<T>(&self, waits: bool, sent: impl Future<Output = T>) -> T {
        let release = async {
            self.started.notified().await;
            self.release.notify_one();
        };
        if waits {
            return tokio::join!(sent, release).0;
        }
        let answer = sent.await;
        release.await;
        answer
    }
}

/// Agent that ends when the test releases it.
struct LatchedAgent(Arc<Latch>);

impl Agent for LatchedAgent {
    async fn run(&self, _: Turn, out: Updates) -> Result<End, agent::Error> {
        out.working().await?;
        self.0.started.notify_one();
        self.0.release.notified().await;
        Ok(End::Completed(None))
    }
}

/// At 0.3 a send blocks by default; with a push configuration it does not; an explicit `blocking` decides.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn send_of_0_3_blocks_unless_configured_otherwise() {
    allow_undocumented(Exemption::Requests);
    let latch = Arc::new(Latch::default());
    let url =
        serve(Server::new(LatchedAgent(Arc::clone(&latch))).push(true).push_options(crate::bindings::no_names())).await;
    let http = &crate::bindings::http();
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
        // The JSON of JSON-RPC over both bindings; ProtoJSON would omit `false`.
        let parts = json!([{"kind": "text", "text": "hi"}]);
        let message = json!({"kind": "message", "messageId": "m", "role": "user", "parts": parts});
        let params = json!({"message": message, "configuration": configuration});
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params});
        let state = latch.release_after(waits, post("/rpc", call, "/result/status/state")).await;
        assert_eq!(state == "completed", waits, "JSON-RPC: {configuration}: {state}");
        let mut body = params.clone();
        // The proto file has another name.
        if let Some(push) =
            body["configuration"].as_object_mut().and_then(|object| object.remove("pushNotificationConfig"))
        {
            body["configuration"]["pushNotification"] = push;
        }
        // A configuration without the field counts as one with `false`.
        let is_explicit = configuration.get("blocking").is_some_and(|blocking| !blocking.is_null());
        let waits = if configuration.is_object() && !is_explicit { false } else { waits };
        let state = latch.release_after(waits, post("/v1/message:send", body, "/task/status/state")).await;
        assert_eq!(state == "TASK_STATE_COMPLETED", waits, "REST: {configuration}: {state}");
    }

    // In protobuf, a configuration always has a value of `blocking`.
    let mut grpc = A2aServiceClient::connect(url.clone()).await.unwrap();
    let with_blocking = |blocking| Some(v03::SendMessageConfiguration { blocking, ..Default::default() });
    for (configuration, waits) in [(None, true), (with_blocking(true), true), (with_blocking(false), false)] {
        let content = vec![v03::Part { part: Some(v03::part::Part::Text("hi".into())), metadata: None }];
        let message =
            v03::Message { message_id: "m".into(), role: v03::Role::User.into(), content, ..Default::default() };
        let sent = v03::SendMessageRequest { request: Some(message), configuration, metadata: None };
        let reply = latch.release_after(waits, grpc.send_message(sent)).await.unwrap().into_inner();
        let Some(v03::send_message_response::Payload::Task(task)) = reply.payload else { panic!("{reply:?}") };
        let state = task.status.unwrap().state();
        assert_eq!(state == v03::TaskState::Completed, waits, "gRPC: {state:?}");
    }
}
