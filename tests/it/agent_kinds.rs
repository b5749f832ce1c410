//! Agents without code for the scenarios: the behaviour of [`Actor`] as a command, as an HTTP endpoint, as a model, and as an
//! agent behind a gateway.

use std::{convert::Infallible, sync::Arc, time::Duration};

use a2a_service::{
    adapter::{HttpEndpoint, HttpOptions, Openai, OpenaiOptions, Upstream},
    agent::{DynAgent, demo},
    call::Binding,
    client::{Client, EventStream, StreamEvent},
    protocol::Version,
    server::Server,
};
use axum::{
    Router,
    body::{Body, Bytes},
    response::Response,
    routing::post,
};
use futures::{Stream, StreamExt as _, future::BoxFuture};
use serde_json::{Value, json};

use crate::bindings::{self, Actor};

tokio::task_local! {
    /// Agent that provides the behaviour of [`Actor`] in a test.
    static AGENT: Arc<dyn DynAgent>;
}

/// Runs a test in which an agent provides the behaviour of [`Actor`].
pub(crate) async fn with(agent: Arc<dyn DynAgent>, test: impl Future<Output = ()>) {
    AGENT.scope(agent, test).await;
}

/// Returns the agent that provides the behaviour of [`Actor`]. `None`: itself.
pub(crate) fn current() -> Option<Arc<dyn DynAgent>> {
    AGENT.try_with(Arc::clone).ok()
}

/// Creates an agent of a kind.
pub(crate) type Create = fn() -> BoxFuture<'static, Arc<dyn DynAgent>>;

/// Returns a command: the shell script `agent_kinds/agent.sh`.
#[cfg(unix)]
pub(crate) fn exec() -> BoxFuture<'static, Arc<dyn DynAgent>> {
    use a2a_service::adapter::{Exec, ExecFormat, ExecOptions};

    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/agent_kinds/agent.sh");
    let options = ExecOptions::default().format(ExecFormat::JsonLines).guard(Some(env!("CARGO_BIN_EXE_a2a").into()));
    let agent: Arc<dyn DynAgent> = Arc::new(Exec::new(["sh", script], options).unwrap());
    Box::pin(std::future::ready(agent))
}

/// Returns an HTTP endpoint in this process.
pub(crate) fn http() -> BoxFuture<'static, Arc<dyn DynAgent>> {
    Box::pin(async move {
        let agent: Arc<dyn DynAgent> =
            Arc::new(HttpEndpoint::new(&http_endpoint().await, HttpOptions::default()).unwrap());
        agent
    })
}

/// Serves the endpoint, and returns its URL.
pub(crate) async fn http_endpoint() -> String {
    let turn = async |body: Bytes| {
        let lines =
            events(serde_json::from_slice(&body).unwrap()).map(|event| Ok::<_, Infallible>(format!("{event}\n")));
        Response::builder().header("content-type", "application/x-ndjson").body(Body::from_stream(lines)).unwrap()
    };
    format!("{}/turn", bindings::program(Router::new().route("/turn", post(turn))).await)
}

/// Returns a model, whose endpoint is in this process.
pub(crate) fn openai() -> BoxFuture<'static, Arc<dyn DynAgent>> {
    let completion = async |body: Bytes| {
        let conversation = serde_json::from_slice::<Value>(&body).unwrap()["messages"].take();
        if matches!(command(&conversation).0.as_str(), "/fail" | "/panic" | "!error") {
            return Response::builder().status(400).body("the password is swordfish".into()).unwrap();
        }
        let events = answer(conversation).map(|chunk| Ok::<_, Infallible>(format!("data: {chunk}\n\n")));
        let events = events.chain(futures::stream::iter([Ok("data: [DONE]\n\n".to_owned())]));
        Response::builder().header("content-type", "text/event-stream").body(Body::from_stream(events)).unwrap()
    };
    Box::pin(async move {
        let url = bindings::program(Router::new().route("/chat/completions", post(completion))).await;
        let agent: Arc<dyn DynAgent> =
            Arc::new(Openai::new(&url, "model", OpenaiOptions::default().ask(true)).unwrap());
        agent
    })
}

/// Returns a gateway of a server, which is called over gRPC of 1.0.
pub(crate) fn upstream() -> BoxFuture<'static, Arc<dyn DynAgent>> {
    Box::pin(gateway(Binding::Grpc, Version::V1_0))
}

/// Returns a gateway of a server, which is called over JSON-RPC of 0.3.
pub(crate) fn upstream_v03() -> BoxFuture<'static, Arc<dyn DynAgent>> {
    Box::pin(gateway(Binding::JsonRpc, Version::V0_3))
}

async fn gateway(binding: Binding, version: Version) -> Arc<dyn DynAgent> {
    let url = bindings::serve(Server::new(Actor::new())).await;
    let client = Client::builder().binding(binding).version(version).connect(&url).await.unwrap();
    assert_eq!(client.interface().map(|interface| (interface.binding, interface.version)), Some((binding, version)));
    Arc::new(Upstream::new(client))
}

/// Sends a message, and reads events up to the first chunk of an artifact. Returns the id of the task, and further events.
pub(crate) async fn until_first_chunk(agent: &Client, text: &str) -> (String, EventStream) {
    let mut events = agent.stream(text).await.unwrap();
    let mut id = String::new();
    while let Some(event) = events.next().await {
        let event = event.unwrap();
        if let StreamEvent::Task(task) = event {
            id = task.id;
        } else if matches!(event, StreamEvent::Artifact(_)) {
            break;
        }
    }
    (id, events)
}

/// Returns the events of a turn of the endpoint.
fn events(turn: Value) -> impl Stream<Item = Value> {
    async_stream::stream! {
        let text = turn["text"].as_str().unwrap().to_owned();
        let (command, rest) = text.split_once(' ').unwrap_or((&text, ""));
        let state = turn["task"]["status"]["state"].as_str().unwrap_or_default();
        let asks = |message: &str| json!({"type": "ask", "message": message});
        let artifact = |name: &str, text: &str| json!({"type": "artifact", "name": name, "text": text, "last": true});
        let numbers: Vec<u64> = rest.split(' ').filter_map(|word| word.parse().ok()).collect();
        let number = |n: usize| numbers.get(n).copied().unwrap_or_default();
        match command {
            "!authorise" => yield json!({"type": "auth", "message": "Authorise this elsewhere."}),
            "!history" => {
                yield artifact("history", &history(&turn));
                yield asks("more?");
            }
            "!burst" => {
                for n in 0..number(0) {
                    yield json!({"type": "artifact", "name": "burst", "text": format!("{n:06} {}", "x".repeat(1017))});
                }
            }
            "!wait" => {
                yield json!({"type": "status"});
                yield asks("go on");
            }
            // Asks after this many milliseconds.
            "!later" => {
                yield json!({"type": "status"});
                pause(number(0)).await;
                yield asks("more?");
            }
            "!silent" => std::future::pending().await,
            "!done" => {
                yield json!({"type": "status", "message": "nearly"});
                yield json!({"type": "complete", "message": "done"});
            }
            "!more" => {
                yield json!({"type": "status"});
                yield json!({"type": "artifact", "text": rest});
                yield asks("more?");
            }
            "again" if state == "TASK_STATE_INPUT_REQUIRED" => yield asks("again?"),
            _ if state == "TASK_STATE_INPUT_REQUIRED" || state == "TASK_STATE_AUTH_REQUIRED" => {
                yield json!({"type": "status"});
                yield artifact(if state == "TASK_STATE_AUTH_REQUIRED" { "authorised" } else { "answer" }, &text);
            }
            "/help" => yield artifact("help", demo::HELP),
            "/stream" => {
                yield json!({"type": "status"});
                for n in 1..=number(0) {
                    if n > 1 {
                        pause(number(1)).await;
                    }
                    let text = format!("chunk {n} of {}\n", number(0));
                    yield json!({"type": "artifact", "name": "stream", "text": text, "last": n == number(0)});
                }
            }
            "/slow" => {
                yield json!({"type": "status", "message": format!("Working for {rest} s.")});
                pause(number(0) * 1000).await;
                yield artifact("slow", &format!("Worked for {rest} s."));
            }
            "/ask" => yield asks(rest),
            "/auth" => yield json!({"type": "auth", "message": "Authorise this elsewhere, then send any message."}),
            "/fail" => yield json!({"type": "fail", "message": rest}),
            "/reject" => yield json!({"type": "reject", "message": rest}),
            "/message" => yield json!({"type": "message", "message": rest}),
            "/parts" => {
                let parts = json!([
                    {"text": "A text part."},
                    {"raw": "QSByYXcgcGFydC4K", "mediaType": "text/plain", "filename": "raw.txt"},
                    {"url": "https://example.com/map.png", "mediaType": "image/png", "filename": "map.png"},
                    {"data": {"a": "data part", "numbers": [1, 2.5], "nothing": null}},
                ]);
                yield json!({"type": "artifact", "name": "parts", "parts": parts, "last": true});
            }
            // Not an event, as a failure of the endpoint.
            "/panic" | "!error" => yield json!("the password is swordfish"),
            "/hang" => {
                yield json!({"type": "status"});
                std::future::pending::<()>().await;
            }
            _ => yield artifact("echo", &text),
        }
    }
}

/// Returns the command in the last message of a conversation with a model, and the rest of the message.
fn command(conversation: &Value) -> (String, String) {
    let last = conversation.as_array().unwrap().last().unwrap();
    let text = last["content"].as_str().unwrap_or("an image");
    let (command, rest) = text.split_once(' ').unwrap_or((text, ""));
    (command.to_owned(), rest.to_owned())
}

/// Returns the answer of the model: chunks of a chat completion.
fn answer(conversation: Value) -> impl Stream<Item = Value> {
    let delta = |delta: Value| json!({"choices": [{"delta": delta}]});
    let text = move |text: &str| delta(json!({"content": text}));
    let asks = move |question: &str| {
        let function = json!({"name": "ask_user", "arguments": json!({"question": question}).to_string()});
        delta(json!({"tool_calls": [{"index": 0, "id": "call", "function": function}]}))
    };
    async_stream::stream! {
        let (command, rest) = command(&conversation);
        let conversation = conversation.as_array().unwrap();
        let follows_question = conversation.last().unwrap()["role"] == "tool";
        let numbers: Vec<u64> = rest.split(' ').filter_map(|word| word.parse().ok()).collect();
        let number = |n: usize| numbers.get(n).copied().unwrap_or_default();
        match command.as_str() {
            "!history" => {
                let earlier = &conversation[..conversation.len() - 1];
                let texts: Vec<_> = earlier.iter().map(said).collect();
                yield text(&texts.join("|"));
                yield asks("more?");
            }
            "!burst" => {
                for n in 0..number(0) {
                    yield text(&format!("{n:06} {}", "x".repeat(1017)));
                }
            }
            "!wait" => yield asks("go on"),
            "!silent" | "/hang" => std::future::pending().await,
            "!done" => yield text("done"),
            "!more" => {
                yield text(&rest);
                yield asks("more?");
            }
            "again" if follows_question => yield asks("again?"),
            "/help" => yield text(demo::HELP),
            "/stream" => {
                for n in 1..=number(0) {
                    if n > 1 {
                        pause(number(1)).await;
                    }
                    yield text(&format!("chunk {n} of {}\n", number(0)));
                }
            }
            "/slow" => {
                pause(number(0) * 1000).await;
                yield text(&format!("Worked for {rest} s."));
            }
            "/ask" => yield asks(&rest),
            "/reject" => yield delta(json!({"refusal": rest})),
            _ if rest.is_empty() => yield text(&command),
            _ => yield text(&format!("{command} {rest}")),
        }
        let has_asked = matches!(command.as_str(), "!history" | "!wait" | "!more" | "/ask" | "again");
        let reason = if has_asked { "tool_calls" } else { "stop" };
        yield json!({"choices": [{"delta": {}, "finish_reason": reason}]});
    }
}

/// Returns the text of a message of a conversation with a model, or its question.
fn said(message: &Value) -> String {
    let question = |call: &Value| serde_json::from_str::<Value>(call["function"]["arguments"].as_str()?).ok();
    let asked = question(&message["tool_calls"][0]).map(|arguments| arguments["question"].clone());
    asked.as_ref().unwrap_or(&message["content"]).as_str().unwrap_or_default().to_owned()
}

/// Returns the messages of a task before the turn.
fn history(turn: &Value) -> String {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let new: Vec<Value> = list(&turn["messages"]).iter().map(|message| message["messageId"].clone()).collect();
    let earlier = list(&turn["task"]["history"]).into_iter().chain([turn["task"]["status"]["message"].clone()]);
    let earlier = earlier.filter(|message| message.is_object() && !new.contains(&message["messageId"]));
    let texts = earlier.map(|message| message["parts"][0]["text"].as_str().unwrap_or_default().to_owned());
    texts.collect::<Vec<_>>().join("|")
}

async fn pause(milliseconds: u64) {
    #[expect(clippy::disallowed_methods, reason = "the demo agent waits in real time")]
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
}
