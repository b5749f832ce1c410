//! Gateway of another A2A agent: states, artifacts and cancels over each binding, restarts, and upstream tasks that are lost.

use std::{fs, path::Path, process::Stdio, sync::Arc, time::Duration};

use a2a_service::{
    adapter::{GAP, Upstream},
    agent::{self, DynAgent, End, demo::Demo},
    auth::{Bearer, Token},
    card::CardConfig,
    client::{Client, Outcome, StreamEvent},
    pb::{
        v1::{ListTasksRequest, Message, Part, Role, SendMessageConfiguration, SendMessageRequest, TaskState},
        wkt::Struct,
    },
    server::{Limits, Server},
};
use axum::{
    Router,
    body::{Body, Bytes},
    response::IntoResponse as _,
    routing::{get, post},
};
use http::{HeaderMap, HeaderName, header};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    process::{Child, Command},
    time::timeout,
};
use tokio_stream::StreamExt as _;

use crate::{
    agent_kinds::until_first_chunk,
    bindings::{Binding, each_binding, program},
    program::{a2a, output, signal, started},
};

type Agent = Arc<dyn DynAgent>;

fn demo() -> Agent {
    Arc::new(Demo)
}

/// State, artifacts and status message of a task, without ids.
fn summary(outcome: &Outcome) -> (TaskState, Vec<(String, Vec<Part>)>, String) {
    let artifacts = outcome.artifacts().iter().map(|artifact| (artifact.name.clone(), artifact.parts.clone()));
    (outcome.state(), artifacts.collect(), outcome.text())
}

async fn gateway_behaves_as_its_agent(binding: Binding) {
    let direct = Client::from_service(binding(Server::new(demo())).await);
    let agent: Agent = Arc::new(Upstream::new(direct.clone()));
    let gateway = Client::from_service(binding(Server::new(agent)).await);
    for text in ["hello", "/stream 3 1", "/ask City?", "/auth", "/fail Broken.", "/reject No.", "/parts", "/panic"] {
        let (expected, found) = (direct.send(text).await.unwrap(), gateway.send(text).await.unwrap());
        let without_error_id = |text: String| text.split("error id").next().unwrap_or_default().to_owned();
        let (state, artifacts, text_of_direct) = summary(&expected);
        let (found_state, found_artifacts, text_of_gateway) = summary(&found);
        assert_eq!((found_state, found_artifacts), (state, artifacts), "{text}");
        assert_eq!(without_error_id(text_of_gateway), without_error_id(text_of_direct), "{text}");
        let ids = |outcome: &Outcome| outcome.task().map(|task| task.id.clone());
        assert_ne!(ids(&found), ids(&expected));
    }
    assert_eq!(gateway.send("/message Hi.").await.unwrap().text(), "Hi.");
    // The answer reaches the same upstream task.
    let asked = gateway.send("/ask City?").await.unwrap();
    let task = asked.task().unwrap();
    let answer = Message { task_id: task.id.clone(), ..Message::user("Lisbon") };
    let done =
        gateway.send(SendMessageRequest { message: Some(answer), ..SendMessageRequest::default() }).await.unwrap();
    assert_eq!((done.state(), done.text().as_str()), (TaskState::Completed, "Lisbon"));
    assert_eq!(done.artifacts()[0].name, "answer");
    // A cancel reaches the upstream task.
    let mut events = gateway.stream("/slow 60").await.unwrap();
    let mut id = String::new();
    while let Some(event) = events.next().await {
        let event = event.unwrap();
        if let StreamEvent::Task(task) = event {
            id = task.id;
        } else if let StreamEvent::Status(update) = event
            && update.status.is_some_and(|status| status.message.is_some())
        {
            break;
        }
    }
    assert_eq!(gateway.cancel(&id).await.unwrap().state(), TaskState::Canceled);
    let context = gateway.get(&id).await.unwrap().context_id;
    let query = ListTasksRequest { context_id: context, ..Default::default() };
    if let Some(Ok(upstream)) = direct.list(query).next().await {
        assert_eq!(upstream.state(), TaskState::Canceled);
    }
}

each_binding!(gateway_behaves_as_its_agent, one_server = "each agent has a store of its own");

/// Serves the demo agent with tasks in memory on an address, until the returned sender is dropped.
async fn serve_demo(address: &str) -> (String, tokio::sync::oneshot::Sender<()>) {
    let bound = Server::new(Demo).drain_grace(Duration::ZERO).bind(address).await.unwrap();
    let address = bound.addr().to_string();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    tokio::spawn(bound.run_until(async move { _ = stopped.await }));
    (address, stop)
}

/// Starts the program as a gateway, with tasks in a file.
async fn serve_gateway(url: &str, store: &str) -> (Child, String) {
    started(gateway(url, store, &["--log-filter", "warn"])).await
}

/// Command of the program as a gateway, with tasks in a file.
fn gateway(url: &str, store: &str, flags: &[&str]) -> Command {
    let mut command = a2a(&["serve", "--listen", "127.0.0.1:0", "--proxy", url, "--store", store]);
    command.args(flags).env_remove("A2A_STORE");
    command
}

/// Sends a message to a gateway, and kills it after the first chunk. Returns the id of the task.
async fn kill_in_the_middle(gateway: &mut Child, url: &str, text: &str) -> String {
    kill_during_a_turn_of(&Client::connect(url).await.unwrap(), gateway, text).await
}

async fn kill_during_a_turn_of(agent: &Client, gateway: &mut Child, text: &str) -> String {
    let (id, _events) = until_first_chunk(agent, text).await;
    signal(gateway, "-KILL");
    gateway.wait().await.unwrap();
    id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_gateway_resumes_its_upstream_task() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("a2a.db").display());
    let (address, _stop) = serve_demo("127.0.0.1:0").await;
    let upstream = format!("http://{address}");
    let (mut gateway, url) = serve_gateway(&upstream, &store).await;
    let id = kill_in_the_middle(&mut gateway, &url, "/stream 40 50").await;
    let (_gateway, url) = serve_gateway(&upstream, &store).await;
    let agent = Client::connect(&url).await.unwrap();
    assert_eq!(agent.card().name, "Demo");
    let task = agent.wait(&id).await.unwrap();
    let direct = Client::connect(&upstream).await.unwrap();
    let originals: Vec<_> = direct.list(ListTasksRequest::default()).collect().await;
    assert_eq!(originals.len(), 1, "the message was sent once");
    let original = direct.get(&originals[0].as_ref().unwrap().id).await.unwrap();
    assert_eq!((task.state(), task.artifacts.len()), (TaskState::Completed, 1));
    let text =
        |task: &a2a_service::pb::v1::Task| task.artifacts[0].parts.iter().filter_map(Part::as_text).collect::<String>();
    assert_eq!(text(&task), text(&original));
    assert_eq!(text(&task).lines().count(), 40);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interruption_is_marked_as_a_gap() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("a2a.db").display());
    let (address, _stop) = serve_demo("127.0.0.1:0").await;
    let upstream = format!("http://{address}");
    let (mut gateway, url) = serve_gateway(&upstream, &store).await;
    let id = kill_in_the_middle(&mut gateway, &url, "/stream 60 50").await;
    let (_gateway, url) = serve_gateway(&upstream, &store).await;
    let agent = Client::connect(&url).await.unwrap();
    let mut events = agent.subscribe(&id).await.unwrap();
    let is_marked = |metadata: Option<&Struct>| metadata.is_some_and(|metadata| metadata.fields.contains_key(GAP));
    let mut marked = false;
    while let Some(event) = events.next().await {
        if let StreamEvent::Status(update) = event.unwrap() {
            let message = update.status.and_then(|status| status.message);
            marked |= message.is_some_and(|message| is_marked(message.metadata.as_ref()));
        }
    }
    let task = agent.get(&id).await.unwrap();
    assert_eq!(task.state(), TaskState::Completed);
    assert!(marked || task.history.iter().any(|message| is_marked(message.metadata.as_ref())), "{task:?}");
    assert!(!is_marked(task.metadata.as_ref()), "the task itself is whole");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_fails_if_the_upstream_agent_has_lost_it() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("a2a.db").display());
    let (address, stop) = serve_demo("127.0.0.1:0").await;
    let (mut gateway, url) = serve_gateway(&format!("http://{address}"), &store).await;
    let id = kill_in_the_middle(&mut gateway, &url, "/stream 1000 50").await;
    drop(stop);
    // The address is free once the server has ended. Its tasks were in memory.
    let (_, _stop) = loop {
        match tokio::net::TcpListener::bind(&address).await {
            Ok(listener) => {
                drop(listener);
                break serve_demo(&address).await;
            }
            Err(_) => tokio::task::yield_now().await,
        }
    };
    let (_gateway, url) = serve_gateway(&format!("http://{address}"), &store).await;
    let task = Client::connect(&url).await.unwrap().wait(&id).await.unwrap();
    assert_eq!(task.state(), TaskState::Failed);
    assert_eq!(task.status.unwrap().message.unwrap().text(), "The upstream agent has lost the task.");
}

/// A message that has reached the upstream agent is not sent again as the answer to its question.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn question_that_came_while_the_gateway_was_down_is_asked() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("a2a.db").display());
    let gate = Arc::new(tokio::sync::Notify::new());
    let opened = Arc::clone(&gate);
    let asking = agent::from_fn(move |turn, out| {
        let opened = Arc::clone(&opened);
        async move {
            out.artifact("heard").text(turn.text()).await?;
            opened.notified().await;
            Ok(End::input_required("Which city?"))
        }
    });
    let bound = Server::new(asking).bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("http://{}", bound.addr());
    tokio::spawn(bound.run_until(std::future::pending()));
    let (mut gateway, url) = serve_gateway(&upstream, &store).await;
    let id = kill_in_the_middle(&mut gateway, &url, "Plan a trip").await;
    gate.notify_one();
    let direct = Client::connect(&upstream).await.unwrap();
    let original = direct.list(ListTasksRequest::default()).next().await.unwrap().unwrap().id;
    assert_eq!(direct.wait(&original).await.unwrap().state(), TaskState::InputRequired);
    let (_gateway, url) = serve_gateway(&upstream, &store).await;
    let task = Client::connect(&url).await.unwrap().wait(&id).await.unwrap();
    assert_eq!((task.state(), task.artifacts.len()), (TaskState::InputRequired, 1));
    assert_eq!(task.status.unwrap().message.unwrap().text(), "Which city?");
    let users = direct.get(&original).await.unwrap().history;
    assert_eq!(users.iter().filter(|message| message.role() == Role::User).count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_without_streams_are_polled() {
    let mut card = CardConfig::default();
    card.capabilities.streaming = Some(false);
    let bound = Server::new(Demo).card(card).bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("http://{}", bound.addr());
    tokio::spawn(bound.run_until(std::future::pending()));
    let direct = Client::connect(&upstream).await.unwrap();
    let gateway = Client::from_service(Server::new(Upstream::new(direct.clone())).into_service());
    let done = gateway.send("hello").await.unwrap();
    assert_eq!((done.state(), done.text().as_str()), (TaskState::Completed, "hello"));
    let request = SendMessageRequest {
        message: Some(Message::user("/slow 60")),
        configuration: Some(SendMessageConfiguration { return_immediately: true, ..Default::default() }),
        ..SendMessageRequest::default()
    };
    let running = gateway.send(request).await.unwrap().task().unwrap().id.clone();
    let seen = async |condition: fn(&[TaskState]) -> bool| {
        let all = async || -> Vec<TaskState> {
            direct.list(ListTasksRequest::default()).map(|task| task.unwrap().state()).collect().await
        };
        let seen = async {
            while !condition(&all().await) {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(20), seen).await.unwrap();
    };
    // A turn that has not begun is canceled without the upstream agent.
    seen(|states| states.len() == 2).await;
    assert_eq!(gateway.cancel(&running).await.unwrap().state(), TaskState::Canceled);
    seen(|states| states.contains(&TaskState::Canceled)).await;
}

/// Tasks of an agent.
async fn states(agent: &Client) -> Vec<TaskState> {
    agent.list(ListTasksRequest::default()).map(|task| task.unwrap().state()).collect().await
}

/// The upstream task ends with each end of a turn that is not its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upstream_task_is_canceled_when_the_turn_ends_by_a_limit() {
    let (short, limits) = (Duration::from_millis(300), Limits::default);
    for (text, limits) in [
        ("/slow 60", limits().turn_deadline(short)),
        ("/slow 60", limits().turn_idle_timeout(short)),
        ("/stream 1000 20", limits().events(10)),
        ("/stream 1000 20 1000", limits().artifact_bytes(5000)),
    ] {
        let direct = Client::from_service(Server::new(demo()).into_service());
        let gateway = Server::new(Upstream::new(direct.clone())).limits(limits);
        let failed = Client::from_service(gateway.into_service()).send(text).await.unwrap();
        assert_eq!(failed.state(), TaskState::Failed, "{text}");
        let canceled = async {
            while states(&direct).await != [TaskState::Canceled] {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(20), canceled).await.expect(text);
    }
}

/// A turn that a shutdown interrupts is recovered, and needs its upstream task.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upstream_task_outlives_a_shutdown_of_the_gateway() {
    let direct = Client::from_service(Server::new(demo()).into_service());
    let gateway = Server::new(Upstream::new(direct.clone())).drain_grace(Duration::ZERO);
    let bound = gateway.bind("127.0.0.1:0").await.unwrap();
    let (url, handle) = (bound.url(), bound.handle());
    let running = tokio::spawn(bound.run_until(std::future::pending()));
    let (_, _events) = until_first_chunk(&Client::connect(&url).await.unwrap(), "/stream 1000 20").await;
    handle.drain().await;
    timeout(Duration::from_secs(20), running).await.unwrap().unwrap();
    assert_eq!(states(&direct).await, [TaskState::Working]);
}

/// Returns true if a file of a directory has a text.
fn has_text(directory: &Path, text: &str) -> bool {
    fs::read_dir(directory).unwrap().any(|file| {
        let bytes = fs::read(file.unwrap().path()).unwrap();
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    })
}

/// Headers of callers reach the agent only if they are configured, instead of the token of the gateway, and are neither stored nor
/// logged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn configured_headers_of_callers_are_forwarded() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("a2a.db").display());
    let received: Arc<Mutex<Vec<Option<HeaderMap>>>> = Arc::default();
    let seen = Arc::clone(&received);
    let recorder = agent::from_fn(move |turn, _| {
        seen.lock().push(turn.forwarded_headers().map(|headers| (**headers).clone()));
        async { Ok(End::input_required("more?")) }
    });
    let names = [header::AUTHORIZATION, HeaderName::from_static("x-user"), HeaderName::from_static("x-other")];
    let bound = Server::new(recorder).forward_headers(names).bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("http://{}", bound.addr());
    tokio::spawn(bound.run_until(std::future::pending()));
    let caller = Client::builder().authorization("Bearer swordfish").unwrap().header("x-user", "mackerel").unwrap();
    let caller = caller.header("x-other", "herring").unwrap();
    let ask = async |flags: &[&str]| {
        let log = directory.path().join("log");
        let mut command = gateway(&upstream, &store, flags);
        command.stderr(Stdio::from(fs::File::create(&log).unwrap())).env("A2A_UPSTREAM_TOKEN", "lighthouse");
        let (mut gateway, url) = started(command).await;
        let agent = caller.connect(&url).await.unwrap();
        let mut conversation = agent.conversation();
        for _ in 0..2 {
            assert_eq!(conversation.send("hello").await.unwrap().state(), TaskState::InputRequired);
        }
        let log = fs::read_to_string(log).unwrap();
        for secret in ["swordfish", "mackerel", "herring"] {
            assert!(!has_text(directory.path(), secret), "{secret}");
        }
        signal(&gateway, "-TERM");
        gateway.wait().await.unwrap();
        for secret in ["swordfish", "mackerel", "herring"] {
            assert!(!has_text(directory.path(), secret), "{secret}");
        }
        log
    };
    let log = ask(&["--upstream-forward", "authorization,X-User", "--log-filter", "trace", "--log-wire"]).await;
    assert!(log.contains("TRACE") && log.contains("authorization"), "{log}");
    ask(&["--log-filter", "warn"]).await;
    let received = received.lock();
    let authorization = |headers: &HeaderMap| headers["authorization"].to_str().unwrap().to_owned();
    let found: Vec<_> = received.iter().flatten().map(|headers| (authorization(headers), headers.len())).collect();
    let forwarded = ("Bearer swordfish".to_owned(), 2);
    let own = ("Bearer lighthouse".to_owned(), 1);
    assert_eq!(found, [forwarded.clone(), forwarded, own.clone(), own]);
    assert_eq!(received[0].as_ref().unwrap()["x-user"], "mackerel");
}

/// Forwarded credentials do not survive a restart: the agent rejects the calls of the recovered turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recovered_turn_has_no_forwarded_credentials() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("a2a.db").display());
    let server = Server::new(Demo).authenticator(Bearer::new(Token::new("swordfish").unwrap()));
    let bound = server.bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("http://{}", bound.addr());
    tokio::spawn(bound.run_until(std::future::pending()));
    let forwarding = || gateway(&upstream, &store, &["--upstream-forward", "authorization", "--log-filter", "warn"]);
    let (mut running, url) = started(forwarding()).await;
    let anonymous = Client::connect(&url).await.unwrap().send("hello").await.unwrap();
    assert_eq!(anonymous.text(), "The upstream agent requires other credentials.");
    let agent = Client::builder().bearer("swordfish").unwrap().connect(&url).await.unwrap();
    let id = kill_during_a_turn_of(&agent, &mut running, "/stream 1000 50").await;
    let (_gateway, url) = started(forwarding()).await;
    let task = Client::connect(&url).await.unwrap().wait(&id).await.unwrap();
    assert_eq!(task.state(), TaskState::Failed);
    let status = task.status.unwrap().message.unwrap();
    assert_eq!(status.text(), "The upstream agent requires other credentials.");
}

/// A gateway whose agent can't be reached starts with the card of an earlier start, and takes over the card of the agent when it
/// can be reached again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway_starts_while_its_agent_is_down() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("a2a.db").display());
    let serve = async |name: &str, address: &str| {
        let bound = Server::new(Demo).name(name).drain_grace(Duration::ZERO).bind(address).await?;
        let address = bound.addr().to_string();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let running = tokio::spawn(bound.run_until(async move { _ = stopped.await }));
        std::io::Result::Ok((address, stop, running))
    };
    let (address, stop, running) = serve("First", "127.0.0.1:0").await.unwrap();
    let upstream = format!("http://{address}");
    let start = || gateway(&upstream, &store, &["--card-description", "Ours."]);
    let (mut first, url) = started(start()).await;
    assert_eq!(Client::connect(&url).await.unwrap().card().name, "First");
    signal(&first, "-KILL");
    first.wait().await.unwrap();
    drop(stop);
    running.await.unwrap();
    let elsewhere = format!("sqlite:{}", directory.path().join("other.db").display());
    let failed = output(gateway(&upstream, &elsewhere, &[])).await;
    let errors = String::from_utf8(failed.stderr).unwrap();
    assert!(!failed.status.success() && errors.contains(&upstream) && errors.contains("upstream.url"), "{errors}");
    let (_second, url) = started(start()).await;
    let card = async || Client::connect(&url).await.unwrap().card();
    assert_eq!((&*card().await.name, &*card().await.description), ("First", "Ours."));
    let (_, _stop, _running) = serve("Second", &address).await.unwrap();
    let mut interval = tokio::time::interval(Duration::from_millis(50));
    while card().await.name != "Second" {
        interval.tick().await;
    }
    assert_eq!(card().await.description, "Ours.");
    let agent = Client::connect(&url).await.unwrap();
    assert_eq!(agent.send("hello").await.unwrap().text(), "hello");
    assert!(fs::read_to_string(directory.path().join("a2a.db.upstream.json")).unwrap().contains("Second"));
}

/// Serves a JSON-RPC agent of 0.3 with the task `t`, and returns its URL. Its first stream has a task and a chunk, and ends before
/// the turn. `resubscribed` are the events of the next one, and `task` is the member of the response to a get.
async fn serve_interrupted(resubscribed: Vec<Value>, task: (&'static str, Value)) -> String {
    let begun = json!({"kind": "task", "id": "t", "contextId": "c", "status": {"state": "working"}});
    let rpc = async move |body: Bytes| {
        let call: Value = serde_json::from_slice(&body).unwrap();
        let response = |name: &str, value: &Value| json!({"jsonrpc": "2.0", "id": call["id"], name: value}).to_string();
        let events = match call["method"].as_str().unwrap() {
            "message/stream" => vec![begun, chunk(1)],
            "tasks/resubscribe" => resubscribed,
            _ => return Body::from(response(task.0, &task.1)).into_response(),
        };
        let events: Vec<_> = events.iter().map(|event| format!("data: {}\n\n", response("result", event))).collect();
        ([(header::CONTENT_TYPE, "text/event-stream")], events.concat()).into_response()
    };
    let card = json!({
        "name": "Old", "description": "", "version": "1", "protocolVersion": "0.3.0", "url": "/", "preferredTransport": "JSONRPC",
        "capabilities": {"streaming": true}, "defaultInputModes": [], "defaultOutputModes": [], "skills": []
    });
    let card = get(async move || Body::from(card.to_string()).into_response());
    program(Router::new().route("/.well-known/agent-card.json", card).route("/", post(rpc))).await
}

/// Chunk of the artifact of the task `t`.
fn chunk(n: u32) -> Value {
    let artifact = json!({"artifactId": "a", "parts": [{"kind": "text", "text": n.to_string()}]});
    json!({"kind": "artifact-update", "taskId": "t", "contextId": "c", "artifact": artifact, "append": n > 1})
}

/// Sends a message to a gateway of the agent at a URL.
async fn send_behind_a_gateway(url: &str) -> Outcome {
    let upstream = Upstream::new(Client::connect(url).await.unwrap());
    Client::from_service(Server::new(upstream).into_service()).send("hello").await.unwrap()
}

/// Chunks that an interrupted stream has missed are read at the end of the turn, if the agent's subscriptions begin without the
/// task, as those of the Python SDK of 0.3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_missed_by_an_interrupted_stream_are_read_at_the_end() {
    let status = json!({"state": "completed"});
    let end = json!({"kind": "status-update", "taskId": "t", "contextId": "c", "status": status, "final": true});
    let parts: Value = (1..=3).map(|n| json!({"kind": "text", "text": n.to_string()})).collect();
    let artifacts = json!([{"artifactId": "a", "parts": parts}]);
    let whole = json!({"kind": "task", "id": "t", "contextId": "c", "status": status, "artifacts": artifacts});
    // The Python SDK of 1.0 sometimes repeats events that the task at the beginning of a subscription has already.
    let snapshot = json!({"kind": "task", "id": "t", "contextId": "c", "status": {"state": "working"}, "artifacts": [
        {"artifactId": "a", "parts": [{"kind": "text", "text": "1"}, {"kind": "text", "text": "2"}]}
    ]});
    let lost = json!({"code": -32601, "message": "Method not found"});
    let repeated = vec![snapshot.clone(), chunk(2), chunk(3), end.clone()];
    for (events, found) in [
        (vec![chunk(3), end.clone()], ("result", whole.clone())),
        (repeated, ("result", whole)),
        // Without a task to read, its events are all there is.
        (vec![snapshot, chunk(3), end], ("error", lost)),
    ] {
        let done = send_behind_a_gateway(&serve_interrupted(events.clone(), found).await).await;
        assert_eq!((done.state(), done.text().as_str()), (TaskState::Completed, "123"), "{events:?}: {done:?}");
    }
}

/// Events and responses of another task are an error, and not taken for the own ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_fails_if_the_agent_responds_with_another_task() {
    let status = json!({"state": "completed"});
    let end = |task: &str, context: &str| json!({"kind": "status-update", "taskId": task, "contextId": context, "status": status, "final": true});
    let mut foreign = chunk(2);
    foreign["taskId"] = "other".into();
    let task = |id: &str| json!({"kind": "task", "id": id, "contextId": "c", "status": status});
    for (events, found) in [
        (vec![foreign, end("t", "c")], task("t")),
        (vec![end("other", "c")], task("t")),
        (vec![end("t", "other")], task("t")),
        (vec![task("other")], task("t")),
        (vec![chunk(2), end("t", "c")], task("other")),
    ] {
        let failed = send_behind_a_gateway(&serve_interrupted(events.clone(), ("result", found)).await).await;
        assert_eq!(failed.state(), TaskState::Failed, "{events:?}");
        let expected = "The upstream agent sent an invalid response: the agent responded with another task or context.";
        assert_eq!(failed.error().as_deref(), Some(expected), "{events:?}");
        let has_both = events.len() == 2 && events[0]["taskId"] == "t";
        assert_eq!(failed.artifacts()[0].parts, [Part::text(if has_both { "12" } else { "1" })]);
    }
}

/// Some agents end the stream of a task that they do not have, instead of rejecting the subscription.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_fails_if_the_streams_of_a_lost_task_are_empty() {
    let end = json!({"kind": "status-update", "taskId": "t", "contextId": "c", "status": {"state": "completed"}, "final": true});
    // The Python SDK of 1.0 has an internal error for it while it starts.
    for (events, code) in [(vec![], -32001), (vec![end], -32603)] {
        let lost = json!({"code": code, "message": "Task not found"});
        let failed = send_behind_a_gateway(&serve_interrupted(events, ("error", lost)).await).await;
        assert_eq!(failed.state(), TaskState::Failed);
        assert_eq!(failed.error().as_deref(), Some("The upstream agent has lost the task."), "{code}");
    }
}
