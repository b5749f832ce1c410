//! Hop counts: agents that call each other in a circle stop, over each binding and with each kind of agent that calls others.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use a2a_service::{
    A2aService,
    adapter::{HttpEndpoint, HttpOptions, Upstream},
    agent::{self, Agent, End, demo::Demo},
    call::Call,
    client::Client,
    error::{Error, ErrorKind},
    extension::hops,
    pb::{
        v1::{Message, SendMessageRequest, Task, TaskState, send_message_response::Payload},
        wkt::{Struct, Value, value::Kind},
    },
    server::{Limits, Server},
    store::memory::Memory,
};
use axum::{Router, routing::post};
use http::HeaderMap;
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;
use tokio_stream::StreamExt as _;

use crate::{
    bindings::{self, Binding, each_binding, program, scenario},
    program::{a2a, output, signal, started},
    scenarios::{get, text},
};

/// Sends a message whose call has a hop count.
async fn send(agent: &dyn A2aService, hops: u32, request: SendMessageRequest) -> Result<Task, Error> {
    let call = Call { hops, ..Call::default() };
    match agent.send_message(call.request(request)).await?.into_inner().payload {
        Some(Payload::Task(task)) => Ok(task),
        other => panic!("{other:?}"),
    }
}

/// Gateways of which each has the next one as its upstream agent, and the last one the first, with their tasks.
async fn circle(binding: Binding, length: usize) -> Vec<(Client, Arc<Memory>)> {
    let placeholder = Client::from_service(Server::new(Demo).into_service());
    let gateways: Vec<_> = (0..length).map(|_| Upstream::new(placeholder.clone())).collect();
    let mut circle = Vec::new();
    for gateway in &gateways {
        let store = Arc::new(Memory::default());
        let server = Server::new(gateway.clone()).store(Arc::<Memory>::clone(&store));
        circle.push((Client::from_service(binding(server).await), store));
    }
    for (n, gateway) in gateways.iter().enumerate() {
        gateway.set_client(circle[(n + 1) % length].0.clone());
    }
    circle
}

/// A circle of two gateways, and a gateway that is its own upstream agent. Both ended only with the memory of the machine.
async fn circle_of_gateways_ends_with_the_reason(binding: Binding) {
    for length in [2, 1] {
        let circle = circle(binding, length).await;
        let started = Instant::now();
        let failed = circle[0].0.send("hello").await.unwrap();
        let time = started.elapsed();
        let reason = failed.error().unwrap_or_default();
        assert_eq!(failed.state(), TaskState::Failed, "{failed:?}");
        assert!(reason.contains("a2a-hops: 9 exceeds the limit of 8 (limits.hops)"), "{reason}");
        let sizes = circle.iter().map(|(_, store)| store.size());
        let (tasks, bytes) = sizes.fold((0, 0), |sum, size| (sum.0 + size.0, sum.1 + size.1));
        // The message of the caller, and those of eight agents.
        assert_eq!(tasks, 9);
        assert!(bytes < 16 << 10 && time < Duration::from_secs(10), "{bytes} bytes in {time:?}");
    }
}

each_binding!(circle_of_gateways_ends_with_the_reason, one_server = "each agent has a store of its own");

fn with_hops(kind: Kind) -> SendMessageRequest {
    let fields = [(hops::URI.to_owned(), Value { kind: Some(kind) })].into();
    let message = Message { metadata: Some(Struct { fields }), ..Message::user("hello") };
    SendMessageRequest { message: Some(message), ..SendMessageRequest::default() }
}

/// Returns the count in the first message of a task.
fn stored(task: &Task) -> Option<f64> {
    let kind = task.history[0].metadata.as_ref()?.fields.get(hops::URI)?.kind.as_ref();
    if let Some(Kind::NumberValue(count)) = kind { Some(*count) } else { None }
}

scenario!(hop_count_is_limited, async |agent: &dyn A2aService| {
    let by_header = |hops| (text("", "hello"), hops);
    let by_metadata = |kind| (with_hops(kind), 0);
    let both = (with_hops(Kind::NumberValue(2.0)), 7);
    for ((request, hops), count) in [
        (by_header(0), None),
        (by_header(8), Some(8.0)),
        (by_metadata(Kind::NumberValue(8.0)), Some(8.0)),
        (by_metadata(Kind::NumberValue(0.0)), Some(0.0)),
        (both, Some(7.0)),
    ] {
        let id = send(agent, hops, request).await.unwrap().id;
        assert_eq!(stored(&get(agent, &id).await.unwrap()), count);
    }
    let too_many = "a2a-hops: 9 exceeds the limit of 8 (limits.hops)";
    let invalid = "a2a-hops: is not a whole number, and counts as more than 8 (limits.hops)";
    for ((request, hops), why) in [
        (by_header(9), too_many),
        (by_header(u32::MAX), invalid),
        (by_metadata(Kind::NumberValue(9.0)), too_many),
        (by_metadata(Kind::NumberValue(-1.0)), invalid),
        (by_metadata(Kind::NumberValue(1.5)), invalid),
        (by_metadata(Kind::StringValue("1".into())), invalid),
    ] {
        let call = Call { hops, ..Call::default() };
        let streamed = agent.send_streaming_message(call.request(request.clone())).await.err().unwrap();
        for error in [send(agent, hops, request).await.unwrap_err(), streamed.into()] {
            assert_eq!(error.kind(), ErrorKind::InvalidParams, "{error}");
            assert!(error.to_string().contains(why), "{error}");
        }
    }
});

/// Headers as others may send them. Rejected as a whole: a count that is ignored would never reach the limit.
#[tokio::test]
async fn malformed_hop_headers_are_rejected() {
    let url = bindings::serve(Server::new(Demo)).await;
    let body = json!({"message": {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "hello"}]}});
    for (value, status) in [("8", 200), ("0", 200), ("9", 400), ("-1", 400), ("1.5", 400), ("x", 400), ("", 400)] {
        let request = bindings::http().post(format!("{url}/message:send")).header("a2a-hops", value);
        let request = request.header("content-type", "application/json").body(body.to_string());
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), status, "{value:?}");
        let text = response.text().await.unwrap();
        assert_eq!(text.contains("limits.hops"), status == 400, "{text}");
    }
}

#[tokio::test]
async fn limit_of_hops_is_configurable() {
    for (limit, accepted, rejected) in [(0, 0, 1), (20, 20, 21), (u32::MAX, 1000, u32::MAX)] {
        let agent = Server::new(Demo).limits(Limits::default().hops(limit)).into_service();
        assert!(send(&*agent, accepted, text("", "hello")).await.is_ok(), "{limit}");
        let error = send(&*agent, rejected, text("", "hello")).await.unwrap_err();
        assert_eq!((error.kind(), error.metadata("limit")), (ErrorKind::InvalidParams, Some("hops")), "{limit}");
    }
}

/// Agent that records the hop count of its turns.
fn recorder() -> (impl Agent, Arc<AtomicU32>) {
    let seen = Arc::new(AtomicU32::new(u32::MAX));
    let recorded = Arc::clone(&seen);
    let agent = agent::from_fn(move |turn, _| {
        recorded.store(turn.hops(), Ordering::SeqCst);
        async { Ok(End::Completed(None)) }
    });
    (agent, seen)
}

/// Each call of a client in a turn has the count of the turn and one, also a stream and a conversation.
async fn client_in_a_turn_passes_the_count_on(binding: Binding) {
    let (inner, seen) = recorder();
    let inner = Client::from_service(binding(Server::new(inner)).await);
    let caller = inner.clone();
    let outer = agent::from_fn(move |turn, _| {
        let inner = caller.clone();
        async move {
            match turn.text() {
                "send" => drop(inner.send("hello").await?),
                "stream" => drop(inner.stream("hello").await?.collect::<Vec<_>>().await),
                _ => drop(inner.conversation().send("hello").await?),
            }
            Ok(End::Completed(None))
        }
    });
    let outer = Server::new(outer).into_service();
    for (words, hops, expected) in [("send", 0, 1), ("send", 7, 8), ("stream", 2, 3), ("conversation", 0, 1)] {
        let sent = send(&*outer, hops, text("", words)).await.unwrap();
        assert_eq!((sent.state(), seen.swap(u32::MAX, Ordering::SeqCst)), (TaskState::Completed, expected), "{words}");
    }
    assert_eq!(inner.send("hello").await.unwrap().state(), TaskState::Completed);
    assert_eq!(seen.load(Ordering::SeqCst), 0, "outside of a turn");
}

each_binding!(client_in_a_turn_passes_the_count_on);

/// A follow-up counts too: the turn has the highest count of its messages.
#[tokio::test]
async fn turn_has_the_highest_count_of_its_messages() {
    let counts: Arc<Mutex<Vec<u32>>> = Arc::default();
    let seen = Arc::clone(&counts);
    let agent = agent::from_fn(move |turn, _| {
        seen.lock().push(turn.hops());
        async { Ok(End::input_required("more?")) }
    });
    let agent = Server::new(agent).into_service();
    let mut id = String::new();
    for hops in [1, 5, 0] {
        id = send(&*agent, hops, text(&id, "hello")).await.unwrap().id;
    }
    assert_eq!(*counts.lock(), [1, 5, 0]);
}

#[tokio::test]
async fn endpoint_gets_the_next_count() {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let received = Arc::clone(&seen);
    let endpoint = post(async move |headers: HeaderMap, body: String| {
        let turn: serde_json::Value = serde_json::from_str(&body).unwrap();
        received.lock().push(format!("{}, {}", headers["a2a-hops"].to_str().unwrap(), turn["hops"]));
        "done"
    });
    let url = program(Router::new().route("/", endpoint)).await;
    let agent = Server::new(HttpEndpoint::new(&url, HttpOptions::default()).unwrap()).into_service();
    for hops in [0, 7] {
        send(&*agent, hops, text("", "hello")).await.unwrap();
    }
    assert_eq!(*seen.lock(), ["1, 0", "8, 7"]);
}

/// A command has the count of its turn, and the program passes it on with one more.
#[tokio::test]
async fn program_passes_the_count_of_its_turn_on() {
    let (agent, seen) = recorder();
    let url = bindings::serve(Server::new(agent)).await;
    for (hops, binding, expected) in [("0", "rest", 1), ("7", "grpc", 8), ("3", "jsonrpc", 4)] {
        for command in ["send", "stream"] {
            let mut program = a2a(&[command, &url, "hello", "--binding", binding]);
            program.env("A2A_HOPS", hops);
            assert!(output(program).await.status.success());
            assert_eq!(seen.swap(u32::MAX, Ordering::SeqCst), expected, "{command} {hops}");
        }
    }
    for hops in ["8", "-1", ""] {
        let mut program = a2a(&["send", &url, "hello"]);
        program.env("A2A_HOPS", hops);
        let refused = output(program).await;
        let errors = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && errors.contains("limits.hops"), "{errors}");
    }
}

/// The count survives the end of the server, here that of a command.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recovered_turn_has_its_count() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("a2a.db").display());
    let command = r#"sh -c 'echo "$A2A_HOPS $A2A_ATTEMPT."; test "$A2A_ATTEMPT" = 2 || sleep 60'"#;
    let serve = || {
        let mut command = a2a(&["serve", "--listen", "127.0.0.1:0", "--idempotent=true", "--exec", command]);
        command.env("A2A_STORE", &store).env("PATH", std::env::var_os("PATH").unwrap());
        started(command)
    };
    let (mut server, url) = serve().await;
    let agent = a2a_service::client::rest(&url).unwrap();
    let mut events = agent
        .send_streaming_message(Call { hops: 3, ..Call::default() }.request(text("", "hello")))
        .await
        .unwrap()
        .into_inner();
    let id = events.next().await.unwrap().unwrap().task().unwrap().id.clone();
    while events.next().await.unwrap().unwrap().artifact_update().is_none() {}
    signal(&server, "-KILL");
    server.wait().await.unwrap();
    let (_server, url) = serve().await;
    let task = Client::connect(&url).await.unwrap().wait(&id).await.unwrap();
    let output = crate::scenarios::output(&task);
    assert!(task.state() == TaskState::Completed && output.ends_with("3 2."), "{task:?}");
}

/// A gateway whose upstream agent is itself does not start.
#[tokio::test]
async fn gateway_of_itself_does_not_start() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let own = listener.local_addr().unwrap();
    drop(listener);
    // Another agent whose card names the gateway.
    let card = json!({
        "name": "Mirror", "description": "", "version": "1", "capabilities": {}, "skills": [], "defaultInputModes": [],
        "defaultOutputModes": [],
        "supportedInterfaces": [{"url": format!("http://{own}/rpc"), "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]
    });
    let card = axum::routing::get(async move || card.to_string());
    let mirror = program(Router::new().route("/.well-known/agent-card.json", card)).await;
    for (upstream, flags) in [
        (format!("http://{own}"), &[][..]),
        (format!("localhost:{}", own.port()), &[]),
        (
            "https://agents.example/a2a/.well-known/agent-card.json".to_owned(),
            &["--public-url", "https://agents.example/a2a"],
        ),
        (mirror, &[]),
    ] {
        let listen = own.to_string();
        let refused = output(a2a(&[&["serve", "--listen", &listen, "--upstream", &upstream], flags].concat())).await;
        let errors = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(2), "{upstream}: {errors}");
        assert!(errors.contains("upstream.url: the agent at http") && errors.contains("is this server"), "{errors}");
    }
}
