//! Remote agents as others build them, which differ from the specification: what they mean reaches the caller of the client, of the
//! gateway and of the command line, and what can't be understood is an error at once.

use std::{process::Stdio, sync::Arc, time::Duration};

use a2a_service::{
    adapter::Upstream,
    agent::{self, End},
    call::{Binding, Call},
    client::{Client, ClientBuilder, Outcome, Retry, StreamEvent},
    error::{Error, ErrorKind},
    event::resume,
    pb::v1::{AgentExtension, Part, SendMessageRequest, TaskState},
    protocol::Version,
    server::{Limits, Server},
};
use axum::{Router, extract::Request, response::IntoResponse as _};
use futures::future::join_all;
use http::{StatusCode, header};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt as _, time::timeout};
use tokio_stream::StreamExt as _;

use crate::{
    bindings::program,
    program::{a2a, output},
};

/// Time in which each call has an end: without retries, and without waiting for a task that has none.
pub(crate) const AT_ONCE: Duration = Duration::from_secs(5);

/// Result that stands for the response of a JSON-RPC call: its text, after `"result": ` or as the whole response.
type Answer = Arc<dyn Fn(&str) -> (u16, String) + Send + Sync>;

/// Remote agent that answers with given bytes.
pub(crate) struct Remote {
    pub(crate) url: String,
    /// JSON-RPC methods, or HTTP methods with path and query, of the calls so far.
    calls: Arc<Mutex<Vec<String>>>,
}

impl Remote {
    /// Serves a card, in which `URL` stands for the URL of the agent, and the answers to calls. `ID` in an answer stands for the id of
    /// the JSON-RPC request. An answer with `data:` is an event stream.
    pub(crate) async fn serve(card: &Value, answer: impl Fn(&str) -> (u16, String) + Send + Sync + 'static) -> Self {
        Self::serve_text(card.to_string(), answer).await
    }

    /// Serves a card that is given as text.
    pub(crate) async fn serve_text(
        card: String,
        answer: impl Fn(&str) -> (u16, String) + Send + Sync + 'static,
    ) -> Self {
        let (calls, answer): (_, Answer) = (Arc::<Mutex<Vec<String>>>::default(), Arc::new(answer));
        let seen = Arc::clone(&calls);
        let respond = move |request: Request| {
            let (seen, answer, card) = (Arc::clone(&seen), Arc::clone(&answer), card.clone());
            async move {
                let (head, body) = request.into_parts();
                if head.uri.path() == "/.well-known/agent-card.json" {
                    let host = head.headers[header::HOST].to_str().unwrap();
                    return card.replace("URL", &format!("http://{host}")).into_response();
                }
                let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
                let call: Value = serde_json::from_slice(&body).unwrap_or_default();
                let route = || format!("{} {}", head.method, head.uri);
                let method = call["method"].as_str().map_or_else(route, str::to_owned);
                seen.lock().push(method.clone());
                let (status, text) = answer(&method);
                let media_type = if text.starts_with("data:") { "text/event-stream" } else { "application/json" };
                let text = text.replace("ID", &call["id"].to_string());
                (StatusCode::from_u16(status).unwrap(), [(header::CONTENT_TYPE, media_type)], text).into_response()
            }
        };
        Self { url: program(Router::new().fallback(respond)).await, calls }
    }

    /// Serves an agent whose JSON-RPC interface has this result for each call. Streams have it as their only event.
    pub(crate) async fn of_result(version: &str, streams: bool, result: &Value) -> Self {
        let response = format!(r#"{{"jsonrpc": "2.0", "id": ID, "result": {result}}}"#);
        Self::serve(&card(version, streams), move |method| {
            let is_stream = method.to_ascii_lowercase().contains("stream");
            (200, if is_stream { format!("data: {response}\n\n") } else { response.clone() })
        })
        .await
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(&self.url).await.unwrap()
    }

    /// Sends a message to the agent directly and through a gateway. Returns both outcomes.
    pub(crate) async fn send(&self) -> [Result<Outcome, Error>; 2] {
        let client = self.client().await;
        let gateway = gateway(&client);
        let direct = timeout(AT_ONCE, client.send("Hello")).await.expect("no answer of the client");
        [direct, timeout(AT_ONCE, gateway.send("Hello")).await.expect("no answer of the gateway")]
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.calls.lock().clone()
    }

    fn count(&self, method: &str) -> usize {
        self.calls().iter().filter(|call| *call == method).count()
    }
}

pub(crate) fn gateway(client: &Client) -> Client {
    Client::from_service(Server::new(Upstream::new(client.clone())).into_service())
}

/// Card with a JSON-RPC interface.
pub(crate) fn card(version: &str, streams: bool) -> Value {
    let mut card = json!({
        "name": "Remote", "description": "Remote", "version": "1", "capabilities": {"streaming": streams},
        "defaultInputModes": [], "defaultOutputModes": [], "skills": []
    });
    if version == "1.0" {
        let interface = json!({"url": "URL/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"});
        card["supportedInterfaces"] = json!([interface]);
    } else {
        card["protocolVersion"] = "0.3.0".into();
        card["url"] = "URL/rpc".into();
    }
    card
}

/// Card with an HTTP+JSON interface at a URL.
pub(crate) fn rest_card(version: &str, url: &str) -> Value {
    let mut card = card(version, false);
    if version == "1.0" {
        card["supportedInterfaces"][0] = json!({"url": url, "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"});
    } else {
        card["url"] = url.into();
        card["preferredTransport"] = "HTTP+JSON".into();
    }
    card
}

/// Completed task with an artifact, as 1.0 or 0.3 writes it.
pub(crate) fn task(version: &str) -> Value {
    if version == "1.0" {
        let artifact = json!({"artifactId": "a", "parts": [{"text": "42"}]});
        return json!({"id": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_COMPLETED"}, "artifacts": [artifact]});
    }
    let artifact = json!({"artifactId": "a", "parts": [{"kind": "text", "text": "42"}]});
    json!({"kind": "task", "id": "t1", "contextId": "c1", "status": {"state": "completed"}, "artifacts": [artifact]})
}

fn message(version: &str) -> Value {
    if version == "1.0" {
        return json!({"messageId": "m1", "role": "ROLE_AGENT", "parts": [{"text": "42"}]});
    }
    json!({"kind": "message", "messageId": "m1", "role": "agent", "parts": [{"kind": "text", "text": "42"}]})
}

/// Runs the program. Returns its exit code, stdout and stderr.
pub(crate) async fn run(arguments: &[&str], stdin: &str) -> (i32, String, String) {
    let mut command = a2a(arguments);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).await.unwrap();
    let output = timeout(4 * AT_ONCE, child.wait_with_output()).await.expect("the program does not end").unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Wrapped and bare results of both versions, in interfaces of both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrapped_and_bare_results_are_read() {
    for interface in ["1.0", "0.3"] {
        for written in ["1.0", "0.3"] {
            let (task, message) = (task(written), message(written));
            for result in [json!({"task": task}), task, json!({"message": message}), message] {
                for streams in [false, true] {
                    let remote = Remote::of_result(interface, streams, &result).await;
                    for outcome in remote.send().await {
                        let outcome = outcome.unwrap();
                        let found = (outcome.state(), outcome.text());
                        assert_eq!(found, (TaskState::Completed, "42".to_owned()), "{interface} {streams} {result}");
                    }
                    assert!(remote.calls().iter().all(|call| !call.contains("esubscribe")), "{:?}", remote.calls());
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_line_prints_wrapped_and_bare_results() {
    let wrapped = json!({"task": task("0.3")});
    for (version, result) in [("0.3", wrapped), ("1.0", task("1.0"))] {
        let remote = Remote::of_result(version, true, &result).await;
        for command in ["send", "stream"] {
            let (code, stdout, stderr) = run(&[command, &remote.url, "Hello"], "").await;
            assert!(code == 0 && stdout.contains("42"), "{command} {version}: {stdout} {stderr}");
        }
        let (code, stdout, stderr) = run(&["chat", &remote.url], "Hello\n").await;
        assert!(code == 0 && stdout.contains("42"), "{version}: {stdout} {stderr}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn get_and_cancel_take_wrapped_tasks() {
    for version in ["1.0", "0.3"] {
        for result in [task(version), json!({"task": task(version)})] {
            let agent = Remote::of_result(version, false, &result).await.client().await;
            assert_eq!(agent.get("t1").await.unwrap().artifacts.len(), 1, "{result}");
            assert_eq!(agent.cancel("t1").await.unwrap().state(), TaskState::Completed, "{result}");
        }
    }
}

/// Nothing else is asked of an agent whose result has no id, over each binding and version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_without_an_id_are_invalid_at_once() {
    let states = json!({"state": "TASK_STATE_WORKING"});
    for result in [
        json!({"task": {"id": "", "status": states}}),
        json!({"task": {"status": states}}),
        json!({"kind": "task", "status": {"state": "working"}}),
        json!({"task": {}}),
        json!({"id": "", "status": states}),
        json!({}),
        json!(null),
    ] {
        for version in ["1.0", "0.3"] {
            for streams in [false, true] {
                let remote = Remote::of_result(version, streams, &result).await;
                let client = remote.client().await;
                let sent = timeout(AT_ONCE, client.send("Hello")).await.expect("no answer");
                assert_eq!(sent.unwrap_err().kind(), ErrorKind::InvalidAgentResponse, "{version} {result}");
                let streamed = async {
                    let mut events = client.stream("Hello").await?;
                    events.next().await.unwrap_or_else(|| Err(ErrorKind::Unavailable.error()))
                };
                let streamed = timeout(AT_ONCE, streamed).await.expect("no answer");
                let kind = streamed.unwrap_err().kind();
                assert_eq!(kind, ErrorKind::InvalidAgentResponse, "{version} {streams} {result}");
                assert_eq!(remote.calls().len(), 2, "{version} {streams} {result}: {:?}", remote.calls());
            }
            let rest = rest_card(version, "URL");
            let text = result.to_string();
            let remote = Remote::serve(&rest, move |_| (200, text.clone())).await;
            let sent = timeout(AT_ONCE, remote.client().await.send("Hello")).await.expect("no answer");
            assert_eq!(sent.unwrap_err().kind(), ErrorKind::InvalidAgentResponse, "{version} {result}");
            assert_eq!(remote.calls().len(), 1, "{version} {result}: {:?}", remote.calls());
        }
    }
    let remote = Remote::of_result("1.0", true, &json!({"statusUpdate": {"taskId": "", "status": states}})).await;
    let mut events = remote.client().await.stream("Hello").await.unwrap();
    let error = timeout(AT_ONCE, events.next()).await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidAgentResponse, "{error}");
    let asked = Remote::of_result("1.0", true, &task("1.0")).await;
    let client = asked.client().await;
    for error in [
        client.get("").await.map(drop).unwrap_err(),
        client.cancel("").await.map(drop).unwrap_err(),
        client.subscribe("").await.map(drop).unwrap_err(),
        client.push("").list().await.map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidParams, "{error}");
    }
    assert!(asked.calls().is_empty(), "{:?}", asked.calls());
}

/// Leniency does not let in what two readers could take for different things.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicate_members_of_results_are_refused() {
    let status = r#""status": {"state": "TASK_STATE_COMPLETED"}"#;
    for result in [
        format!(r#"{{"id": "t1", "id": "t2", {status}}}"#),
        format!(r#"{{"task": {{"id": "t1", "id": "t2", {status}}}}}"#),
        format!(r#"{{"task": {{"id": "t1", {status}}}, "task": {{"id": "t2", {status}}}}}"#),
        format!(r#"{{"kind": "task", "id": "t1", "id": "t2", {status}}}"#),
        format!(r#"{{"id": "t1", {status}, "metadata": {{"a": 1, "a": 2}}}}"#),
        format!(r#"{{"id": "t1", {status}, "artifacts": [{{"parts": [{{"data": {{"a": {{"b": 1, "b": 2}}}}}}]}}]}}"#),
    ] {
        for version in ["1.0", "0.3"] {
            let response = format!(r#"{{"jsonrpc": "2.0", "id": ID, "result": {result}}}"#);
            let remote = Remote::serve(&card(version, false), move |_| (200, response.clone())).await;
            let error = remote.client().await.send("Hello").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidAgentResponse, "{version} {result}: {error}");
        }
    }
    for (version, member) in [("1.0", r#""name": "Evil""#), ("0.3", r#""url": "http://127.0.0.1:1/""#)] {
        for member in [member, r#""skills": [], "capabilities": {"streaming": true, "streaming": false}"#] {
            let card = card(version, false).to_string();
            let twice = format!("{}, {member}}}", card.strip_suffix('}').unwrap());
            let router = Router::new().fallback(move || std::future::ready(twice.clone()));
            let error = Client::connect(&program(router).await).await.unwrap_err();
            assert!(error.to_string().contains("is given twice"), "{version} {member}: {error}");
        }
    }
}

/// A part of a kind that is unknown is no empty part, over each binding and version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_of_unknown_kinds_fail_the_call() {
    for (version, part, kind) in [
        ("1.0", json!({"video": {"uri": "x"}}), "video"),
        ("1.0", json!({"uri": "x", "kind": "video"}), "video"),
        ("1.0", json!({"type": "image_url", "image_url": {"url": "x"}}), "image_url"),
        ("1.0", json!({"kind": "file", "file": {"uri": "x"}}), "file"),
        ("1.0", json!({"text": null, "video": 1}), "video"),
        ("1.0", json!({"mediaType": "text/plain"}), "without content"),
        ("0.3", json!({"kind": "video", "uri": "x"}), "video"),
        ("0.3", json!({"video": {}}), "must have one of"),
    ] {
        let mut task = task(version);
        task["artifacts"][0]["parts"].as_array_mut().unwrap().push(part.clone());
        let mut message = message(version);
        message["parts"][0] = part;
        let status = json!({"state": if version == "1.0" { "TASK_STATE_COMPLETED" } else { "completed" }});
        let mut update = json!({"taskId": "t1", "contextId": "c1", "artifact": task["artifacts"][0].clone()});
        if version == "0.3" {
            update["kind"] = "artifact-update".into();
        }
        let mut asked = task.clone();
        asked["artifacts"] = json!([]);
        asked["status"] = json!({"state": status["state"], "message": message});
        for result in [task, message, update, asked] {
            for streams in [false, true] {
                let remote = if version == "1.0" || streams {
                    Remote::of_result(version, streams, &result).await
                } else {
                    // HTTP+JSON has other forms of the same messages.
                    let text = result.to_string();
                    Remote::serve(&rest_card("1.0", "URL"), move |_| (200, text.clone())).await
                };
                if !streams && result.get("taskId").is_some() {
                    continue;
                }
                let client = remote.client().await;
                let direct = async {
                    let mut events = client.stream("Hello").await?;
                    events.next().await.unwrap_or_else(|| Err(ErrorKind::Unavailable.error()))
                };
                let error = timeout(AT_ONCE, direct).await.unwrap().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidAgentResponse, "{version} {result}: {error}");
                assert!(error.to_string().contains(kind), "{version} {result}: {error}");
                let text = match timeout(AT_ONCE, gateway(&client).send("Hello")).await.unwrap() {
                    Ok(outcome) if outcome.state() == TaskState::Failed => outcome.text(),
                    Ok(outcome) => panic!("{version} {result}: {outcome:?}"),
                    Err(error) => error.to_string(),
                };
                assert!(text.contains(kind), "{version} {result}: {text}");
            }
        }
    }
    // Over gRPC, a kind that is unknown is a part without content.
    let empty = agent::from_fn(|_, out| async move {
        out.artifact("a").part(Part::default()).await?;
        Ok(End::Completed(None))
    });
    let bound = Server::new(empty).bind("127.0.0.1:0").await.unwrap();
    let url = bound.url();
    tokio::spawn(bound.run_until(std::future::pending()));
    for version in [Version::V1_0, Version::V0_3] {
        for binding in [Binding::Grpc, Binding::Rest] {
            let client = Client::builder().binding(binding).version(version).connect(&url).await.unwrap();
            let error = client.send("Hello").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidAgentResponse, "{version:?} {binding:?} {error}");
        }
    }
}

/// A list of interfaces that is empty, and other forms of versions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_cards_are_read() {
    let without = |mut card: Value, list: Value| {
        card["supportedInterfaces"] = list;
        card
    };
    let versions = |mut card: Value, version: Value| {
        card["protocolVersion"] = version.clone();
        if card["supportedInterfaces"].is_array() {
            card["supportedInterfaces"][0]["protocolVersion"] = version;
        }
        card
    };
    for (card, expected) in [
        (without(card("0.3", false), json!([])), "0.3"),
        (without(card("0.3", false), json!(null)), "0.3"),
        (versions(card("1.0", false), json!("v1.0")), "1.0"),
        (versions(card("1.0", false), json!(1.0)), "1.0"),
        (versions(card("1.0", false), json!(1)), "1.0"),
        (versions(card("0.3", false), json!("v0.3.0")), "0.3"),
        (versions(card("0.3", false), json!(0.3)), "0.3"),
    ] {
        let response = format!(r#"{{"jsonrpc": "2.0", "id": ID, "result": {}}}"#, json!({"task": task(expected)}));
        let remote = Remote::serve(&card, move |_| (200, response.clone())).await;
        let client = remote.client().await;
        assert_eq!(client.interface().unwrap().version.as_str(), expected, "{card}");
        assert_eq!(client.send("Hello").await.unwrap().text(), "42", "{card}");
    }
}

/// The query of an interface may have a secret.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_in_urls_of_interfaces_are_not_printed() {
    for (binding, code) in [("HTTP+JSON", 0), ("SOAP", 6)] {
        let mut card = rest_card("1.0", "URL/rest?code=sesame#sesame");
        card["supportedInterfaces"][0]["protocolBinding"] = binding.into();
        let text = json!({"task": task("1.0")}).to_string();
        let remote = Remote::serve(&card, move |_| (200, text.clone())).await;
        let (found, stdout, stderr) = run(&["send", &remote.url, "Hello", "-v"], "").await;
        let all = format!("{stdout}{stderr}");
        assert!(found == code && all.contains("/rest") && !all.contains("sesame"), "{stdout} {stderr}");
        let (_, stdout, stderr) = run(&["send", &format!("{}/x.json?key=sesame", remote.url), "Hello"], "").await;
        assert!(!stderr.contains("sesame"), "{stdout} {stderr}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interfaces_without_a_version_have_that_of_the_card() {
    for (of_card, expected) in [
        (json!("1.0"), Version::V1_0),
        (json!("1.0.1"), Version::V1_0),
        (json!(null), Version::V1_0),
        (json!(""), Version::V1_0),
        (json!("0.3.0"), Version::V0_3),
    ] {
        let mut card = card("1.0", false);
        card["protocolVersion"] = of_card.clone();
        card["supportedInterfaces"] = json!([{"protocolBinding": "JSONRPC", "url": "URL/rpc", "tenant": ""}]);
        let version = expected.as_str();
        let response = format!(r#"{{"jsonrpc": "2.0", "id": ID, "result": {}}}"#, json!({"task": task(version)}));
        let remote = Remote::serve(&card, move |_| (200, response.clone())).await;
        let client = remote.client().await;
        assert_eq!(client.interface().unwrap().version, expected, "{of_card}");
        assert_eq!(client.send("Hello").await.unwrap().text(), "42", "{of_card}");
        let method = if expected == Version::V1_0 { "SendMessage" } else { "message/send" };
        assert_eq!(remote.calls(), [method], "{of_card}");
    }
}

/// A card that the client takes is valid, with a warning.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_versions_of_a_card_are_warnings() {
    for (version, member) in [("1.0", "supportedInterfaces[0].protocolVersion"), ("0.3", "protocolVersion")] {
        let mut card = card(version, false);
        let parent = if version == "1.0" { &mut card["supportedInterfaces"][0] } else { &mut card };
        parent.as_object_mut().unwrap().remove("protocolVersion");
        let response = format!(r#"{{"jsonrpc": "2.0", "id": ID, "result": {}}}"#, task(version));
        let remote = Remote::serve(&card, move |_| (200, response.clone())).await;
        assert_eq!(remote.client().await.send("Hello").await.unwrap().text(), "42");
        let (code, stdout, stderr) = run(&["card", "validate", &remote.url], "").await;
        let expected = format!("{member} is missing ({version}); clients take the card\n");
        assert!(code == 0 && stdout.starts_with("valid ") && stdout.contains(&expected), "{stdout} {stderr}");
        let (_, stdout, _) = run(&["card", "validate", &remote.url, "-o", "json"], "").await;
        let review: Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!((&review["problems"], &review["warnings"][0]["path"]), (&json!([]), &json!(member)), "{review}");
    }
}

/// Agent whose stream has no artifact, although its task has one, as those on `FastA2A`.
async fn without_streamed_artifacts(version: &'static str) -> Remote {
    let response = |result: Value| format!(r#"{{"jsonrpc": "2.0", "id": ID, "result": {result}}}"#);
    let events = if version == "1.0" {
        [
            json!({"task": {"id": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_WORKING"}}}),
            json!({"statusUpdate": {"taskId": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_COMPLETED"}}}),
        ]
    } else {
        let end = json!({"state": "completed"});
        [
            json!({"kind": "task", "id": "t1", "contextId": "c1", "status": {"state": "working"}}),
            json!({"kind": "status-update", "taskId": "t1", "contextId": "c1", "status": end, "final": true}),
        ]
    };
    let events = events.map(|event| format!("data: {}\n\n", response(event))).concat();
    Remote::serve(&card(version, true), move |method| match method {
        "SendStreamingMessage" | "message/stream" => (200, events.clone()),
        _ => (200, response(task(version))),
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_without_artifacts_is_completed_by_the_stored_task() {
    for (version, get) in [("1.0", "GetTask"), ("0.3", "tasks/get")] {
        let remote = without_streamed_artifacts(version).await;
        let client = remote.client().await;
        let events: Vec<_> = client.stream("Hello").await.unwrap().map(Result::unwrap).collect().await;
        let [StreamEvent::Task(_), StreamEvent::Artifact(added), StreamEvent::Status(end)] = &*events else {
            panic!("{events:?}")
        };
        let parts = &added.artifact.as_ref().unwrap().parts;
        assert_eq!(parts.iter().filter_map(Part::as_text).collect::<String>(), "42");
        assert_eq!((end.status.as_ref().unwrap().state(), remote.count(get)), (TaskState::Completed, 1));
        let outcome = timeout(AT_ONCE, gateway(&client).send("Hello")).await.unwrap().unwrap();
        assert_eq!((outcome.state(), &*outcome.text(), outcome.artifacts().len()), (TaskState::Completed, "42", 1));
        assert_eq!(remote.count(get), 2);
        for (command, stdin) in [(&["stream", &remote.url, "Hello"][..], ""), (&["chat", &remote.url], "Hello\n")] {
            let (code, stdout, stderr) = run(command, stdin).await;
            assert!(code == 0 && stdout.contains("42"), "{command:?}: {stdout} {stderr}");
        }
        assert_eq!(remote.count(get), 4, "{:?}", remote.calls());
    }
    // A task with an artifact is not read.
    let remote = Remote::of_result("1.0", true, &json!({"task": task("1.0")})).await;
    let events: Vec<_> = remote.client().await.stream("Hello").await.unwrap().collect().await;
    assert_eq!((events.len(), remote.calls().len()), (1, 1));
}

/// An answer may be missing if the stored task can't be read, or is in another state. A stream with a message has an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_without_an_answer_fails_if_the_stored_task_does_not_confirm_it() {
    let missing = json!({"error": {"code": -32601, "message": "no"}});
    let working = json!({"result": {"id": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_WORKING"}}});
    for (state, has_message, stored, expected) in [
        ("COMPLETED", false, &missing, "the stream has no artifact, and the stored task can't be read: "),
        (
            "COMPLETED",
            false,
            &working,
            "the stream has no artifact, and the stored task has the state TASK_STATE_WORKING",
        ),
        ("COMPLETED", true, &missing, ""),
        ("COMPLETED", true, &working, ""),
        ("FAILED", false, &missing, ""),
    ] {
        let mut status = json!({"state": format!("TASK_STATE_{state}")});
        if has_message {
            status["message"] = message("1.0");
        }
        let end = json!({"statusUpdate": {"taskId": "t1", "contextId": "c1", "status": status}});
        let stream = format!("data: {}\n\n", json!({"jsonrpc": "2.0", "result": end}));
        let stored = stored.to_string();
        let remote = Remote::serve(&card("1.0", true), move |method| {
            (200, if method == "GetTask" { stored.clone() } else { stream.clone() })
        })
        .await;
        let is_failure = !expected.is_empty();
        match gateway(&remote.client().await).send("Hello").await {
            Ok(outcome) => {
                let has_failed = is_failure || state == "FAILED";
                let state = if has_failed { TaskState::Failed } else { TaskState::Completed };
                assert_eq!(outcome.state(), state, "{outcome:?}");
                assert!(outcome.text().contains(if has_message { "42" } else { expected }), "{outcome:?}");
            }
            Err(error) => assert!(is_failure && error.to_string().contains(expected), "{error}"),
        }
        for (command, stdin) in [(&["stream", &remote.url, "Hello"][..], ""), (&["chat", &remote.url], "Hello\n")] {
            let (code, stdout, stderr) = run(command, stdin).await;
            // A chat whose input is no terminal ends with the error.
            let expected_code = if is_failure { 6 } else { i32::from(state == "FAILED") };
            assert!(code == expected_code && stderr.contains(expected), "{command:?} {code}: {stdout} {stderr}");
            assert_eq!(stderr.contains("error: "), expected_code != 0, "{command:?}: {stderr}");
        }
    }
}

/// Artifacts that follow the end of their task in its stream are a part of the answer, whatever is stored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn artifacts_after_the_end_of_their_task_count() {
    let artifact = |text: &str| json!({"artifactId": "a", "parts": [{"text": text}]});
    let chunk = |text: &str, append: bool| json!({"artifactUpdate": {"taskId": "t1", "contextId": "c1", "artifact": artifact(text), "append": append}});
    let task = |state: &str, artifacts: Value| json!({"id": "t1", "contextId": "c1", "status": {"state": state}, "artifacts": artifacts});
    let status = |state: &str| json!({"statusUpdate": {"taskId": "t1", "contextId": "c1", "status": {"state": state}}});
    let (working, completed) = ("TASK_STATE_WORKING", "TASK_STATE_COMPLETED");
    for events in [
        vec![json!({"task": task(working, json!([]))}), status(completed), chunk("42", false)],
        vec![status(completed), chunk("42", false), status(completed)],
        vec![json!({"task": task(completed, json!([]))}), chunk("42", false)],
        vec![status(completed), json!({"task": task(completed, json!([artifact("42")]))})],
        vec![chunk("4", false), status(completed), chunk("2", true)],
    ] {
        for stored in [json!([]), json!([artifact("42")])] {
            let name = format!("{} {stored}", json!(events));
            let event = |event: &Value| format!("data: {}\n\n", json!({"jsonrpc": "2.0", "result": event}));
            let stream: String = events.iter().map(event).collect();
            let task = json!({"jsonrpc": "2.0", "result": task(completed, stored)}).to_string();
            let remote = Remote::serve(&card("1.0", true), move |method| {
                (200, if method == "GetTask" { task.clone() } else { stream.clone() })
            })
            .await;
            let outcome = gateway(&remote.client().await).send("Hello").await.unwrap();
            assert_eq!((outcome.state(), &*outcome.text()), (TaskState::Completed, "42"), "{name}");
            let (code, stdout, stderr) = run(&["chat", &remote.url], "Hello\n").await;
            assert_eq!((code, stdout.matches("42").count()), (0, 1), "{name}: {stdout} {stderr}");
            assert_eq!(remote.count("GetTask"), 0, "{name}");
        }
    }
}

/// Artifacts of earlier turns, with which a stream begins, are neither those of the turn nor repeated. If the agent does not answer, the
/// end is not passed on, since artifacts may be missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stored_artifacts_of_earlier_turns_are_not_repeated() {
    let artifact = |id: &str| json!({"artifactId": id, "parts": [{"text": id}]});
    let task = |state: &str, artifacts: &[Value]| json!({"id": "t1", "contextId": "c1", "status": {"state": state}, "artifacts": artifacts});
    let first = task("TASK_STATE_WORKING", &[artifact("old")]);
    let end = json!({"taskId": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_COMPLETED"}});
    let stream = [json!({"task": first}), json!({"statusUpdate": end})]
        .map(|event| format!("data: {}\n\n", json!({"jsonrpc": "2.0", "result": event})))
        .concat();
    for stored in [Some(task("TASK_STATE_COMPLETED", &[artifact("old"), artifact("new")])), None] {
        let answer = match &stored {
            Some(task) => (200, format!(r#"{{"jsonrpc": "2.0", "id": ID, "result": {task}}}"#)),
            None => (503, String::new()),
        };
        let stream = stream.clone();
        let remote =
            Remote::serve(
                &card("1.0", true),
                move |method| {
                    if method == "GetTask" { answer.clone() } else { (200, stream.clone()) }
                },
            )
            .await;
        let events: Vec<_> = remote.client().await.stream("More").await.unwrap().collect().await;
        match &*events {
            [Ok(StreamEvent::Task(_)), Ok(StreamEvent::Artifact(added)), Ok(StreamEvent::Status(_))] => {
                assert_eq!(added.artifact.as_ref().unwrap().artifact_id, "new");
                assert!(stored.is_some());
            }
            [Ok(StreamEvent::Task(_)), Err(error)] => {
                let has_no_answer = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::DeadlineExceeded);
                assert!(has_no_answer && stored.is_none(), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Streams that end before their task, of agents that send the same events again to a subscription, or send more after the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_are_replayed_end() {
    let status = |state: &str| json!({"statusUpdate": {"taskId": "t1", "contextId": "c1", "status": {"state": state}}});
    let artifact = json!({"artifactId": "a", "parts": [{"text": "42"}]});
    let chunk = json!({"artifactUpdate": {"taskId": "t1", "contextId": "c1", "artifact": artifact}});
    let [working, completed] = ["TASK_STATE_WORKING", "TASK_STATE_COMPLETED"].map(status);
    let stored =
        json!({"id": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_COMPLETED"}, "artifacts": [artifact]});
    for events in [
        vec![working.clone()],
        vec![status("TASK_STATE_PAUSED")],
        vec![working.clone(), completed.clone(), chunk.clone()],
        vec![chunk.clone(), completed.clone(), working.clone()],
        vec![
            json!({"artifactUpdate": {"taskId": "t1", "contextId": "c1", "artifact": {"artifactId": "a", "parts": []}}}),
            completed.clone(),
        ],
    ] {
        let name = json!(events).to_string();
        let response = |result: &Value| format!(r#"{{"jsonrpc": "2.0", "id": ID, "result": {result}}}"#);
        let stream = events.iter().map(|event| format!("data: {}\n\n", response(event))).collect::<Vec<_>>().concat();
        let task = response(&stored);
        let remote = Remote::serve(&card("1.0", true), move |method| {
            (200, if method == "GetTask" { task.clone() } else { stream.clone() })
        })
        .await;
        let client = remote.client().await;
        let sent = timeout(AT_ONCE, gateway(&client).send("Hello")).await.unwrap().unwrap();
        assert_eq!((sent.state(), &*sent.text()), (TaskState::Completed, "42"), "{name}");
        let (code, stdout, stderr) = run(&["chat", &remote.url], "Hello\n").await;
        assert_eq!((code, stdout.matches("42").count()), (0, 1), "{name}: {stdout} {stderr}");
        assert!(remote.calls().len() <= 6, "{name}: {:?}", remote.calls());
    }
}

/// The query of a base URL is that of each request, such as the code of an Azure Function.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn query_of_a_base_url_follows_the_path() {
    for (version, url, sent, read) in [
        ("1.0", "URL/rest?code=abc", "/rest/message:send?code=abc", "/rest/tasks/t1?historyLength=1&code=abc"),
        ("1.0", "URL/rest/?code=abc", "/rest/message:send?code=abc", "/rest/tasks/t1?historyLength=1&code=abc"),
        ("1.0", "URL?code=a%26b&x=1", "/message:send?code=a%26b&x=1", "/tasks/t1?historyLength=1&code=a%26b&x=1"),
        ("1.0", "URL/rest/", "/rest/message:send", "/rest/tasks/t1?historyLength=1"),
        ("1.0", "URL/rest?", "/rest/message:send", "/rest/tasks/t1?historyLength=1"),
        ("0.3", "URL/rest?code=abc", "/rest/v1/message:send?code=abc", "/rest/v1/tasks/t1?historyLength=1&code=abc"),
        ("0.3", "URL/rest/?code=abc", "/rest/v1/message:send?code=abc", "/rest/v1/tasks/t1?historyLength=1&code=abc"),
    ] {
        let remote = Remote::serve(&rest_card(version, url), |call| {
            let task = r#"{"id": "t1", "status": {"state": "TASK_STATE_COMPLETED"}}"#;
            (200, if call.starts_with("GET") { task.to_owned() } else { format!(r#"{{"task": {task}}}"#) })
        })
        .await;
        let client = remote.client().await;
        assert_eq!(client.send("Hello").await.unwrap().state(), TaskState::Completed);
        client.get_with_history("t1", 1).await.unwrap();
        assert_eq!(remote.calls(), [format!("POST {sent}"), format!("GET {read}")], "{version} {url}");
    }
    // JSON-RPC has the URL as it is.
    let mut card = card("0.3", false);
    card["url"] = "URL/rpc?code=abc".into();
    let response = format!(r#"{{"jsonrpc": "2.0", "id": ID, "result": {}}}"#, task("0.3"));
    let remote = Remote::serve(&card, move |_| (200, response.clone())).await;
    assert_eq!(remote.client().await.send("Hello").await.unwrap().text(), "42");
}

/// A task in a state of a later version of the protocol is not over, and nothing waits for it for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_states_are_unspecified_with_a_warning() {
    let check = async |(version, state): (&str, Value)| {
        let paused = json!({"id": "t1", "contextId": "c1", "status": {"state": state}});
        let wrapped = if version == "1.0" { json!({"task": paused}) } else { paused.clone() };
        let fails = async |streams| {
            let remote = Remote::of_result(version, streams, &wrapped).await;
            let client = remote.client().await;
            let task = client.get("t1").await.unwrap();
            assert_eq!((task.state(), task.state().is_terminal()), (TaskState::Unspecified, false));
            let started = tokio::time::Instant::now();
            let error = timeout(4 * AT_ONCE, client.send("Hello")).await.expect("waits for ever").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidAgentResponse, "{error}");
            assert!(error.to_string().contains("a state that this client does not know"), "{error}");
            assert!(started.elapsed() < 3 * AT_ONCE);
        };
        tokio::join!(fails(false), fails(true));
        let remote = Remote::of_result(version, true, &wrapped).await;
        let (code, stdout, stderr) = run(&["get", "task", &remote.url, "t1"], "").await;
        assert!(code == 0 && stdout.contains("t1"), "{stdout} {stderr}");
        assert_eq!(stderr.matches("warning: the agent sent a state that is unknown").count(), 1, "{stderr}");
        assert!(stderr.contains(&state.to_string()), "{stderr}");
        let (code, stdout, stderr) = run(&["stream", &remote.url, "Hello"], "").await;
        assert!(code == 6 && stderr.contains("a state that this client does not know"), "{stdout} {stderr}");
        assert_eq!(stderr.matches("warning: ").count(), 1, "{stderr}");
    };
    join_all([("1.0", json!("TASK_STATE_PAUSED")), ("0.3", json!("paused")), ("1.0", json!(9))].map(check)).await;
    // A gateway waits as for a task that is working: its turn has a time limit.
    let wait = async |streams| {
        let reads = Mutex::new(0);
        let remote = Remote::serve(&card("1.0", streams), move |method| {
            let mut reads = reads.lock();
            *reads += usize::from(method == "GetTask");
            let mut task = task("1.0");
            if *reads < 5 {
                task["status"]["state"] = "TASK_STATE_PAUSED".into();
                task["artifacts"] = json!([]);
            }
            let wrapped =
                json!({"jsonrpc": "2.0", "result": if method == "GetTask" { task } else { json!({"task": task}) }});
            (200, if method.contains("Stream") { format!("data: {wrapped}\n\n") } else { wrapped.to_string() })
        })
        .await;
        let gateway = gateway(&remote.client().await);
        let outcome = timeout(12 * AT_ONCE, gateway.send("Hello")).await.expect("waits for ever").unwrap();
        assert_eq!((outcome.state(), &*outcome.text()), (TaskState::Completed, "42"), "{streams}");
        assert_eq!((remote.count("GetTask"), remote.count("CancelTask")), (5, 0), "{streams}: {:?}", remote.calls());
    };
    tokio::join!(wait(false), wait(true));
    // Other spellings of known states.
    for (version, state, expected) in [
        ("1.0", "completed", TaskState::Completed),
        ("1.0", "input-required", TaskState::InputRequired),
        ("1.0", "TASK_STATE_CANCELLED", TaskState::Canceled),
        ("1.0", "Cancelled", TaskState::Canceled),
        ("0.3", "TASK_STATE_FAILED", TaskState::Failed),
        ("0.3", "cancelled", TaskState::Canceled),
    ] {
        let remote = Remote::of_result(version, false, &json!({"id": "t1", "status": {"state": state}})).await;
        assert_eq!(remote.client().await.get("t1").await.unwrap().state(), expected, "{version} {state}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_timestamps_do_not_refuse_the_response() {
    for (time, expected) in [
        (json!("2026-11-26T10:00:00.123456789012Z"), Some(123_456_789)),
        (json!("2026-11-26T10:00:00.1234567890+00:00"), Some(123_456_789)),
        (json!("2026-11-26t10:00:00.5z"), Some(500_000_000)),
        (json!("2026-11-26 10:00:00.5Z"), Some(500_000_000)),
        (json!("2026-11-26T12:00:00.5+02:00"), Some(500_000_000)),
        (json!("2026-11-26T10:00:00.5"), Some(500_000_000)),
        (json!("2026-11-26T10:00:00"), Some(0)),
        (json!("yesterday"), None),
        (json!(""), None),
        (json!(1_795_687_200), None),
        (json!(null), None),
    ] {
        for version in ["1.0", "0.3"] {
            let mut task = task(version);
            task["status"]["timestamp"] = time.clone();
            let remote = Remote::of_result(version, false, &task).await;
            for outcome in remote.send().await {
                assert_eq!(outcome.unwrap().text(), "42", "{version} {time}");
            }
            let found = remote.client().await.get("t1").await.unwrap().status.unwrap().timestamp;
            assert_eq!(found.as_ref().map(|time| time.nanos), expected, "{version} {time}");
            let seconds = found.map(|time| time.seconds);
            assert!(seconds.is_none_or(|seconds| seconds == 1_795_687_200), "{version} {time}: {seconds:?}");
        }
    }
    let mut late = task("1.0");
    late["status"]["timestamp"] = "yesterday".into();
    let remote = Remote::of_result("1.0", false, &late).await;
    let (code, stdout, stderr) = run(&["send", &remote.url, "Hello"], "").await;
    assert!(code == 0 && stdout.contains("42"), "{stdout} {stderr}");
    assert!(stderr.starts_with("warning: the agent sent a time that is none of RFC 3339"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_as_text_are_shown() {
    for (status, response, kind, text) in [
        (200, r#"{"jsonrpc": "2.0", "id": ID, "error": "plain string"}"#, ErrorKind::Internal, "plain string"),
        (200, r#"{"jsonrpc": "2.0", "id": ID, "error": {"message": "x y"}}"#, ErrorKind::Internal, "x y"),
        (200, r#"{"error": {"code": "-32001", "message": "gone"}}"#, ErrorKind::TaskNotFound, "gone"),
        (400, r#"{"error": "bad input"}"#, ErrorKind::InvalidParams, "bad input"),
        (200, r#"{"error": {}}"#, ErrorKind::Internal, "Internal error: the error {}"),
        (200, r#"{"error": ["a", {"message": "b"}]}"#, ErrorKind::Internal, "Internal error: a; b"),
        (200, r#"{"error": {"code": -32603, "message": "", "data": "boom"}}"#, ErrorKind::Internal, ": boom"),
        (
            200,
            r#"{"error": {"code": -1, "message": {"text": "x", "detail": "boom\n"}}}"#,
            ErrorKind::Internal,
            r": boom\n",
        ),
        (200, r#"{"error": 5}"#, ErrorKind::Internal, "Internal error: the error 5"),
        (200, r#"{"error": {"code": -32603}}"#, ErrorKind::Internal, r#"the error {"code":-32603}"#),
        (
            200,
            r#"{"error": {"code": -32603, "message": "Internal error", "data": "why\n"}}"#,
            ErrorKind::Internal,
            r"Internal error: why\n",
        ),
        (200, r#"{"id": ID.0, "error": {"code": -32001.0, "message": "gone"}}"#, ErrorKind::TaskNotFound, "gone"),
        (200, r#"{"error": {"code": -32603, "message": "cut \ud83d"}}"#, ErrorKind::Internal, "cut \u{fffd}"),
        (400, "boom", ErrorKind::InvalidAgentResponse, "HTTP 400 Bad Request: boom"),
        (400, r#""boom""#, ErrorKind::InvalidAgentResponse, "HTTP 400 Bad Request: boom"),
        (400, r#"{"message": "boom"}"#, ErrorKind::InvalidAgentResponse, "HTTP 400 Bad Request: boom"),
        (400, "<p>boom", ErrorKind::InvalidAgentResponse, "HTTP 400 Bad Request"),
        (200, r#"{"detail": "no quota"}"#, ErrorKind::InvalidAgentResponse, ": no quota"),
        (500, r#"{"detail": "no quota"}"#, ErrorKind::InvalidAgentResponse, "Internal Server Error: no quota"),
        (500, r#"{"title": "Oh", "status": 500}"#, ErrorKind::InvalidAgentResponse, "Internal Server Error: Oh"),
        (500, r#"["no", "quota"]"#, ErrorKind::InvalidAgentResponse, "Internal Server Error: no; quota"),
        (500, r#""no quota""#, ErrorKind::InvalidAgentResponse, "Internal Server Error: no quota"),
        (
            422,
            r#"{"detail": [{"type": "missing", "loc": ["body", "message", 0], "msg": "Field required"}, {"msg": "x"}]}"#,
            ErrorKind::InvalidAgentResponse,
            "HTTP 422 Unprocessable Entity: body.message.0: Field required; x",
        ),
    ] {
        for version in ["1.0", "0.3"] {
            let remote = Remote::serve(&card(version, false), move |_| (status, response.to_owned())).await;
            let error = remote.client().await.send("Hello").await.unwrap_err();
            assert_eq!(error.kind(), kind, "{version} {response}: {error}");
            assert!(error.to_string().ends_with(text), "{version} {response}: {error}");
        }
    }
    let plain = r#"{"jsonrpc": "2.0", "id": ID, "error": "plain string"}"#;
    let remote = Remote::serve(&card("0.3", true), move |_| (200, plain.to_owned())).await;
    let failed = gateway(&remote.client().await).send("Hello").await.unwrap();
    assert_eq!((failed.state(), &*failed.text()), (TaskState::Failed, "The upstream agent failed: plain string"));
    let (code, _, stderr) = run(&["send", &remote.url, "Hello"], "").await;
    assert!(code == 6 && stderr.contains("plain string"), "{stderr}");
    let response = format!(r#"{{"jsonrpc": "2.0", "id": ID, "error": null, "result": {}}}"#, task("0.3"));
    let remote = Remote::serve(&card("0.3", false), move |_| (200, response.clone())).await;
    for outcome in remote.send().await {
        assert_eq!(outcome.unwrap().text(), "42");
    }
}

/// Fails calls whose response is none of the protocol, with the codes of its version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway_fails_calls_whose_upstream_responds_invalidly() {
    for (streams, status, response) in [
        (false, 200, "<html>Welcome</html>"),
        (true, 200, "<html>Welcome</html>"),
        (false, 200, ""),
        (true, 200, ""),
        (true, 200, "[]"),
        (true, 200, r#"{"jsonrpc": "2.0", "id": ID, "result": {}}"#),
        (true, 200, r#"{"jsonrpc": "2.0", "id": ID, "result": {"task": {"status": {"state": "TASK_STATE_WORKING"}}}}"#),
        (true, 200, "data: {\"jsonrpc\": \"2.0\", \"id\": ID, \"result\": {}}\n\n"),
        (true, 200, "data: {\"jsonrpc\": \"2.0\", \"id\": ID, \"result\": {\"task\": {\"status\": {}}}}\n\n"),
        (true, 200, "data: nonsense\n\n"),
        (true, 404, "<html>Not here</html>"),
        (false, 500, "<html>Oh</html>"),
    ] {
        let remote = Remote::serve(&card("1.0", streams), move |_| (status, response.to_owned())).await;
        // As long as there is no task.
        let limits = Limits::default().task_delay(AT_ONCE);
        let server = Server::new(Upstream::new(remote.client().await)).limits(limits);
        let bound = server.bind("127.0.0.1:0").await.unwrap();
        let url = bound.url();
        tokio::spawn(bound.run_until(std::future::pending()));
        let post = async |path: &str, version: &str, body: Value| {
            let request = crate::bindings::http().post(format!("{url}{path}")).header("a2a-version", version);
            let sent = request.header("content-type", "application/json").body(body.to_string()).send();
            let response = timeout(AT_ONCE, sent).await.expect(response).unwrap();
            let status = response.status().as_u16();
            (status, response.text().await.unwrap())
        };
        let v1 = json!({"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Hello"}]});
        let v03 = json!({"messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "Hello"}]});
        for (version, method, message) in [
            ("1.0", "SendMessage", &v1),
            ("1.0", "SendStreamingMessage", &v1),
            ("0.3", "message/send", &v03),
            ("0.3", "message/stream", &v03),
        ] {
            let params = json!({"message": message});
            let call = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
            let (_, text) = post("/rpc", version, call).await;
            let json = text.lines().find_map(|line| line.strip_prefix("data:")).unwrap_or(&text);
            let found: Value = serde_json::from_str(json).unwrap_or_else(|_| panic!("{method} {response}: {text}"));
            assert_eq!(found["error"]["code"], -32006, "{method} {response}: {text}");
            let reason = found["error"]["message"].as_str().unwrap();
            assert!(reason.contains("of the upstream agent: "), "{method} {response}: {reason}");
        }
        let (found, text) = post("/message:send", "1.0", json!({"message": v1})).await;
        assert!(found == 500 && text.contains("INVALID_AGENT_RESPONSE"), "{response}: {found} {text}");
    }
}

/// A caller with an idempotency key has a task in any case, which says what is wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_of_a_gateway_says_that_its_upstream_responds_invalidly() {
    let remote = Remote::serve(&card("1.0", true), |_| (200, "<html>Welcome</html>".to_owned())).await;
    let gateway = gateway(&remote.client().await);
    let call = Call { idempotency_key: Some("key".into()), ..Call::default() };
    let sent = gateway.service().send_message(call.request(SendMessageRequest::from("Hello"))).await.unwrap();
    let Some(a2a_service::pb::v1::send_message_response::Payload::Task(task)) = sent.into_inner().payload else {
        panic!("no task")
    };
    let text = task.status.unwrap().message.unwrap().text();
    assert_eq!(text, "The upstream agent sent an invalid response: the response is not a JSON-RPC response.");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway_passes_extensions_and_metadata_of_its_agent_on() {
    let artifact = json!({"artifactId": "a", "extensions": ["urn:x"], "metadata": {"m": 1}, "parts": [{"text": "42"}]});
    let status = |state: &str| json!({"state": state});
    let events = [
        json!({"task": {"id": "t1", "contextId": "c1", "status": status("TASK_STATE_WORKING"), "metadata": {"task": "T-1"}}}),
        json!({"statusUpdate": {"taskId": "t1", "contextId": "c1", "status": status("TASK_STATE_WORKING"), "metadata": {"step": 1}}}),
        json!({"artifactUpdate": {"taskId": "t1", "contextId": "c1", "artifact": artifact, "metadata": {"chunk": 1}}}),
        json!({"statusUpdate": {"taskId": "t1", "contextId": "c1", "status": status("TASK_STATE_COMPLETED"), "metadata": {"cost": 2}}}),
    ];
    let event = |event: &Value| format!("data: {}\n\n", json!({"jsonrpc": "2.0", "result": event}));
    let stream: String = events.iter().map(event).collect();
    let remote = Remote::serve(&card("1.0", true), move |_| (200, stream.clone())).await;
    let gateway = gateway(&remote.client().await);
    let events: Vec<_> = gateway.stream("Hello").await.unwrap().map(Result::unwrap).collect().await;
    let mut seen = Vec::new();
    for event in &events {
        let metadata = if let StreamEvent::Status(update) = event {
            &update.metadata
        } else if let StreamEvent::Artifact(update) = event {
            &update.metadata
        } else {
            continue;
        };
        seen.extend(metadata.iter().flat_map(|metadata| metadata.fields.keys().cloned()));
    }
    assert_eq!(seen, ["task", "step", "chunk", "cost"], "{events:?}");
    let StreamEvent::Task(first) = &events[0] else { panic!("{events:?}") };
    let task = gateway.get(&first.id).await.unwrap();
    assert_eq!((task.state(), &*task.artifacts[0].extensions), (TaskState::Completed, &["urn:x".to_owned()][..]));
    assert!(task.artifacts[0].metadata.as_ref().unwrap().fields.contains_key("m"));
    // The metadata of status updates becomes that of the task.
    let metadata = task.metadata.unwrap_or_default();
    assert_eq!(metadata.fields.keys().collect::<Vec<_>>(), ["cost", "step", "task"]);
}

/// A required extension works through the gateway, over both versions of the protocol.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway_has_the_extensions_of_its_agent() {
    let seen = Arc::<Mutex<Vec<Vec<String>>>>::default();
    let record = Arc::clone(&seen);
    let recorder = agent::from_fn(move |turn, _| {
        record.lock().push(turn.extensions().to_vec());
        async { Ok(End::completed("done")) }
    });
    let extension = |uri: &str, required| AgentExtension { uri: uri.to_owned(), required, ..AgentExtension::default() };
    let serve = async |server: Server| {
        let bound = server.bind("127.0.0.1:0").await.unwrap();
        let url = bound.url();
        tokio::spawn(bound.run_until(std::future::pending()));
        url
    };
    let server = Server::new(recorder).resume(true).extension(extension("urn:must", true));
    let upstream = serve(server.extension(extension("urn:may", false))).await;
    let gateway = serve(Server::new(Upstream::new(Client::connect(&upstream).await.unwrap()))).await;
    let client = Client::connect(&gateway).await.unwrap();
    let card = client.card();
    let declared: Vec<_> =
        card.capabilities.as_ref().unwrap().extensions.iter().map(|one| (&*one.uri, one.required)).collect();
    assert_eq!(declared, [("urn:must", true), ("urn:may", false)]);
    assert_eq!(client.send("Hello").await.unwrap_err().kind(), ErrorKind::ExtensionSupportRequired);
    assert!(seen.lock().is_empty());
    for version in [Version::V1_0, Version::V0_3] {
        for (requested, expected) in
            [("urn:must", &["urn:must"][..]), ("urn:must, urn:may, urn:other", &["urn:must", "urn:may"])]
        {
            let name = if version == Version::V1_0 { "A2A-Extensions" } else { "X-A2A-Extensions" };
            let caller: ClientBuilder = Client::builder().version(version).header(name, requested).unwrap();
            let caller = caller.binding(Binding::JsonRpc).connect(&gateway).await.unwrap();
            let done = caller.send("Hello").await.unwrap();
            assert_eq!((done.state(), done.text()), (TaskState::Completed, "done".to_owned()), "{version:?}");
            let mut found = seen.lock().pop().unwrap();
            // The client of the gateway has cursors of its own.
            found.retain(|uri| uri != resume::URI);
            assert_eq!(found, expected, "{version:?} {requested}");
        }
    }
}

/// An agent without idempotency keys is asked once whether it has them, and a send that is retried says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn support_of_idempotency_keys_is_asked_for_once() {
    let remote = Remote::serve(&card("1.0", false), |_| (503, "busy".to_owned())).await;
    let error = timeout(AT_ONCE, remote.client().await.send("Hello")).await.expect("retries for long").unwrap_err();
    assert_eq!((error.kind(), remote.calls()), (ErrorKind::Unavailable, vec!["SendMessage".into(), "GetTask".into()]));
    let (code, _, stderr) = run(&["send", &remote.url, "Hello"], "").await;
    assert!(code == 3 && remote.count("GetTask") == 2, "{stderr} {:?}", remote.calls());

    // An agent that returns the key: its first response is lost.
    let answered = Arc::new(Mutex::new(false));
    let bound = Server::new(agent::from_fn(|_, _| async { Ok(End::completed("done")) }));
    let lost = axum::middleware::from_fn(move |request: Request, next: axum::middleware::Next| {
        let is_lost = request.uri().path() == "/rpc" && !std::mem::replace(&mut *answered.lock(), true);
        async move {
            let response = next.run(request).await;
            if is_lost { (StatusCode::BAD_GATEWAY, "lost").into_response() } else { response }
        }
    });
    let bound = bound.layer(lost).bind("127.0.0.1:0").await.unwrap();
    let url = bound.url();
    tokio::spawn(bound.run_until(std::future::pending()));
    let output = output(a2a(&["send", &url, "Hello", "--binding", "jsonrpc"])).await;
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    let expected = "warning: the send failed (Unavailable: ";
    assert!(stderr.starts_with(expected) && stderr.lines().count() == 1, "{stderr}");
    assert!(stderr.ends_with("it is repeated with its idempotency key, so that it runs once\n"), "{stderr}");
    let client = Client::builder().retry(Retry::never()).connect(&url).await.unwrap();
    let tasks: Vec<_> = client.list(a2a_service::pb::v1::ListTasksRequest::default()).collect().await;
    assert_eq!(tasks.len(), 1, "the message was delivered once");
}
