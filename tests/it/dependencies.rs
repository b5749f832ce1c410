//! Failures of what an agent needs: an upstream agent, an endpoint, a model, tool servers, a command. New work is refused before
//! a task exists, accepted work waits, the metrics and the log show it, and everything recovers without a restart.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use a2a_service::{
    client::{Client, StreamEvent},
    pb::v1::{ListTasksRequest, Message, SendMessageRequest, TaskState},
};
use axum::{Router, body::Body, extract::Request, response::Response, routing::any};
use futures_util::StreamExt as _;
use http::{StatusCode, header};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    net::TcpListener,
    process::Child,
    time::{Instant, interval},
};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

use crate::{
    bindings::{fetch, http, program},
    program::{a2a, output, signal, started},
};

const JSON: &str = "application/json";

/// Server that runs as the program, with the lines of its log.
struct Running {
    child: Child,
    url: String,
    log: Arc<Mutex<Vec<String>>>,
}

async fn serve(flags: &[&str]) -> Running {
    let mut command = a2a(&["serve", "--listen", "127.0.0.1:0"]);
    command.args(flags).env("PATH", "/usr/bin:/bin");
    let (mut child, url) = started(command).await;
    let log = Arc::<Mutex<Vec<String>>>::default();
    let (mut lines, written) = (BufReader::new(child.stderr.take().unwrap()).lines(), Arc::clone(&log));
    tokio::spawn(async move {
        while let Ok(Some(line)) = lines.next_line().await {
            written.lock().unwrap().push(line);
        }
    });
    Running { child, url, log }
}

impl Running {
    /// Sends a message. Returns the status, `Retry-After`, the time that it took, and the body.
    async fn send(&self, text: &str, task: &str) -> (StatusCode, Option<u64>, Duration, Value) {
        self.request(text, task, true).await
    }

    async fn request(&self, text: &str, task: &str, waits: bool) -> (StatusCode, Option<u64>, Duration, Value) {
        let message =
            json!({ "messageId": rand_id(), "role": "ROLE_USER", "taskId": task, "parts": [{ "text": text }] });
        let configuration = json!({ "returnImmediately": !waits });
        let body = json!({ "message": message, "configuration": configuration }).to_string();
        let start = Instant::now();
        let request = http().post(format!("{}/message:send", self.url)).header(header::CONTENT_TYPE, JSON).body(body);
        let reply = request.send().await.unwrap();
        let retry_after =
            reply.headers().get(header::RETRY_AFTER).map(|value| value.to_str().unwrap().parse().unwrap());
        let status = reply.status();
        let body: Value = serde_json::from_slice(&reply.bytes().await.unwrap()).unwrap();
        (status, retry_after, start.elapsed(), body)
    }

    /// Returns the values of a metric whose line has all of these texts.
    async fn metric(&self, name: &str, labels: &[&str]) -> Vec<f64> {
        let text = fetch(format!("{}/metrics", self.url)).await.unwrap().text().await.unwrap();
        let lines =
            text.lines().filter(|line| line.starts_with(name) && labels.iter().all(|label| line.contains(label)));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect()
    }

    /// Waits until a peer is up or down, at most for 35 s.
    async fn wait_for(&self, peer: &str, up: f64) {
        let peer = format!("peer=\"{peer}\"");
        let start = Instant::now();
        let mut ticks = interval(Duration::from_millis(50));
        while self.metric("a2a_dependency_up", &[&peer]).await != [up] {
            assert!(start.elapsed() < Duration::from_secs(35), "{peer} {up}: {:?}", self.log.lock().unwrap());
            ticks.tick().await;
        }
    }

    /// Waits until new work is refused, at most for 10 s. Returns the body of the reply.
    async fn wait_for_refusal(&self) -> Value {
        let start = Instant::now();
        let mut ticks = interval(Duration::from_millis(100));
        loop {
            let (status, retry_after, _, body) = self.request("hello", "", false).await;
            if status == StatusCode::SERVICE_UNAVAILABLE {
                assert!(retry_after.is_some_and(|seconds| (1..=30).contains(&seconds)), "{retry_after:?}");
                return body;
            }
            assert!(start.elapsed() < Duration::from_secs(10), "{body}");
            ticks.tick().await;
        }
    }

    /// Returns the number of lines of the log with a text.
    fn logged(&self, text: &str) -> usize {
        self.log.lock().unwrap().iter().filter(|line| line.contains(text)).count()
    }

    async fn health(&self, service: &str) -> Result<ServingStatus, tonic::Code> {
        let channel = tonic::transport::Endpoint::from_shared(self.url.clone()).unwrap().connect().await.unwrap();
        let request = HealthCheckRequest { service: service.to_owned() };
        let reply = HealthClient::new(channel).check(request).await;
        reply.map(|reply| reply.into_inner().status()).map_err(|status| status.code())
    }
}

fn rand_id() -> String {
    a2a_service::sources::Sources::default().ids.random()
}

fn state(body: &Value) -> &str {
    body["task"]["status"]["state"].as_str().unwrap_or_default()
}

/// Reserves an address at which nothing listens.
async fn unused_address() -> std::net::SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

async fn serve_at(address: std::net::SocketAddr, router: Router) {
    let listener = TcpListener::bind(address).await.unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_upstream_agent_is_refused_at_once_and_recovers_alone() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| format!("sqlite:{}", directory.path().join(name).display());
    let (upstream_store, store) = (file("upstream.db"), file("gateway.db"));
    let start = async |address: &str| {
        let mut command = a2a(&["serve", "--listen", address, "--store", &upstream_store]);
        command.env_remove("A2A_STORE");
        started(command).await
    };
    let (mut upstream, upstream_url) = start("127.0.0.1:0").await;
    let gateway = serve(&["--upstream", &upstream_url, "--store", &store, "--idempotent"]).await;
    let client = Client::connect(&gateway.url).await.unwrap();
    let asked = client.send("/ask City?").await.unwrap().task().unwrap().clone();
    assert_eq!(asked.state(), TaskState::InputRequired);
    assert_eq!(gateway.health("a2a.agent/default").await, Ok(ServingStatus::Serving));

    signal(&upstream, "-KILL");
    upstream.wait().await.unwrap();
    let accepted = {
        let (client, seen) = (client.clone(), Arc::<Mutex<Vec<String>>>::default());
        let log = Arc::clone(&seen);
        let send = tokio::spawn(async move {
            let (mut events, mut state) = (client.stream("hello").await.unwrap(), TaskState::Submitted);
            while let Some(event) = events.next().await {
                if let StreamEvent::Status(update) = event.unwrap() {
                    let status = update.status.unwrap();
                    state = status.state();
                    log.lock().unwrap().extend(status.message.map(|message| {
                        let metadata =
                            message.metadata.as_ref().is_some_and(|it| it.fields.contains_key("upstreamWaiting"));
                        format!("{} {metadata}", message.text())
                    }));
                }
            }
            state
        });
        (send, seen)
    };
    let killed = Instant::now();
    gateway.wait_for("upstream", 0.0).await;
    let refused = gateway.wait_for_refusal().await;
    assert!(killed.elapsed() < Duration::from_secs(10), "{:?}", killed.elapsed());
    assert!(refused.to_string().contains("the upstream agent can't be reached"), "{refused}");
    let tasks = async || {
        let tasks = client.list(ListTasksRequest::default());
        tasks.map(|task| task.unwrap().id).collect::<Vec<_>>().await.len()
    };
    let before = tasks().await;
    let mut fastest = Duration::MAX;
    for _ in 0..20 {
        let (status, retry_after, took, body) = gateway.send("hello", "").await;
        assert_eq!((status, retry_after.is_some()), (StatusCode::SERVICE_UNAVAILABLE, true), "{body}");
        assert!(body.to_string().contains("RetryInfo"), "{body}");
        fastest = fastest.min(took);
    }
    // The machine of a test may be busy for a moment.
    assert!(fastest < Duration::from_millis(50), "{fastest:?}");
    let (status, .., body) = gateway.send("Lisbon", &asked.id).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{body}");
    assert_eq!(client.get(&asked.id).await.unwrap().state(), TaskState::InputRequired);
    assert_eq!(tasks().await, before);
    assert_eq!(gateway.metric("a2a_dependency_breaker", &["upstream", "\"open\""]).await, [1.0]);
    assert!(gateway.metric("a2a_outbound_total", &["upstream", "rejected"]).await[0] >= 22.0);
    assert_eq!(gateway.logged("dependency down: the upstream agent"), 1);
    let ready = fetch(format!("{}/readyz?verbose", gateway.url)).await.unwrap();
    assert_eq!((ready.status(), ready.text().await.unwrap().lines().last()), (StatusCode::OK, Some("ok")));
    assert_eq!(gateway.health("a2a.agent/default").await, Ok(ServingStatus::NotServing));
    assert_eq!(gateway.health("").await, Ok(ServingStatus::Serving));
    assert_eq!(gateway.health("a2a.agent/other").await, Err(tonic::Code::NotFound));

    let (_upstream, _) = start(upstream_url.trim_start_matches("http://")).await;
    gateway.wait_for("upstream", 1.0).await;
    let (accepted, seen) = accepted;
    assert_eq!(accepted.await.unwrap(), TaskState::Completed);
    let waiting = |line: &&String| line.starts_with("Waiting for");
    assert_eq!(
        seen.lock().unwrap().iter().filter(waiting).collect::<Vec<_>>(),
        ["Waiting for the upstream agent. true"]
    );
    let answer = Message { task_id: asked.id.clone(), ..Message::user("Lisbon") };
    let done =
        client.send(SendMessageRequest { message: Some(answer), ..SendMessageRequest::default() }).await.unwrap();
    assert_eq!((done.state(), done.text().as_str()), (TaskState::Completed, "Lisbon"));
    assert_eq!(gateway.logged("dependency down"), 1);
    assert_eq!(gateway.logged("dependency up: the upstream agent"), 1);
    drop(gateway.child);
}

/// Sends messages while something is down, and again when it is there.
async fn is_refused_and_recovers(agent: Running, peer: &str, subject: &str, restore: impl AsyncFnOnce()) {
    agent.request("hello", "", false).await;
    agent.wait_for(peer, 0.0).await;
    let refused = agent.wait_for_refusal().await;
    assert!(refused.to_string().contains(&format!("{subject} can't be reached")), "{refused}");
    let sent = output(a2a(&["send", &agent.url, "hello", "--timeout", "1s"])).await;
    let errors = String::from_utf8(sent.stderr).unwrap();
    assert!(sent.status.code() == Some(3) && errors.contains("-> the server asks for a retry after "), "{errors}");
    assert_eq!(fetch(format!("{}/readyz", agent.url)).await.unwrap().status(), 200);
    restore().await;
    agent.wait_for(peer, 1.0).await;
    let (.., body) = agent.send("hello", "").await;
    assert_eq!(state(&body), "TASK_STATE_COMPLETED", "{body}");
    assert_eq!(agent.logged(&format!("dependency down: {subject}")), 1, "{:?}", agent.log.lock().unwrap());
    assert_eq!(agent.logged(&format!("dependency up: {subject}")), 1, "{:?}", agent.log.lock().unwrap());
    // With the address, and without the path. A command has none.
    for line in agent.log.lock().unwrap().iter().filter(|line| line.contains("message=\"dependency ")) {
        assert_eq!(line.contains(" address=127.0.0.1:"), peer != "exec", "{line}");
        assert!(!line.contains("http://") && !line.contains("down_s=0."), "{line}");
    }
    let status = fetch(format!("{}/metrics", agent.url)).await.unwrap().text().await.unwrap();
    assert!(status.contains(&format!("a2a_dependency_breaker{{state=\"closed\",peer=\"{peer}\"}} 1")), "{status}");
    assert_eq!(agent.logged("/metrics"), 0, "scrapes are routine");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_endpoint_is_refused_and_recovers() {
    let address = unused_address().await;
    let agent = serve(&["--http", &format!("http://{address}/turn")]).await;
    let (.., body) = agent.send("hello", "").await;
    assert!(body.to_string().contains("The endpoint of the agent can't be reached."), "{body}");
    let router = Router::new().route("/turn", any(async || "hello"));
    is_refused_and_recovers(agent, "http", "the endpoint of the agent", async || serve_at(address, router).await).await;
}

/// Model that calls the tool `greet` if it has one, and answers with its result.
pub(crate) fn model() -> Router {
    let completion = async |request: Request| {
        let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        let last = body["messages"].as_array().unwrap().last().unwrap();
        let call = json!([{ "id": "c", "type": "function", "function": { "name": "greet", "arguments": "{}" } }]);
        let message = match last["role"].as_str() {
            Some("tool") => json!({ "content": last["content"] }),
            _ if body.get("tools").is_some() => json!({ "tool_calls": call }),
            _ => json!({ "content": "hello" }),
        };
        let details = json!({ "cached_tokens": 3 });
        let usage = json!({ "prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": details });
        let body = json!({ "choices": [{ "finish_reason": "stop", "message": message }], "usage": usage }).to_string();
        Response::builder().header(header::CONTENT_TYPE, JSON).body(Body::from(body)).unwrap()
    };
    Router::new().route("/v1/chat/completions", any(completion))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_model_is_refused_and_recovers() {
    let address = unused_address().await;
    let agent = serve(&["--openai", &format!("http://{address}/v1"), "--model", "tiny"]).await;
    is_refused_and_recovers(agent, "model", "the model endpoint", async || serve_at(address, model()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_command_is_refused_and_recovers() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("agent.sh");
    let write = |path: &Path| {
        fs::write(path, "#!/bin/sh\ncat\n").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    write(&script);
    let agent = serve(&["--exec", script.to_str().unwrap()]).await;
    let (.., body) = agent.send("hello", "").await;
    assert_eq!(state(&body), "TASK_STATE_COMPLETED", "{body}");
    assert_eq!(agent.metric("a2a_exec_exits_total", &["code=\"0\""]).await, [1.0]);
    assert_eq!(agent.metric("a2a_exec_processes", &[]).await, [0.0]);
    // A message that does not fit into the environment of the command says nothing about the command.
    let message = json!({ "messageId": "nul\0", "role": "ROLE_USER", "parts": [{ "text": "hello" }] });
    let odd = http().post(format!("{}/message:send", agent.url)).header(header::CONTENT_TYPE, JSON);
    let odd = odd.body(json!({ "message": message }).to_string()).send().await.unwrap();
    assert!(odd.text().await.unwrap().contains("TASK_STATE_FAILED"));
    assert_eq!(agent.metric("a2a_dependency_up", &["exec"]).await, [1.0]);
    fs::remove_file(&script).unwrap();
    is_refused_and_recovers(agent, "exec", "the command of the agent", async || write(&script)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn absent_tool_server_is_refused_until_it_has_listed_its_tools() {
    let address = unused_address().await;
    let servers = format!("[{{ name = 'files', url = 'http://{address}/mcp' }}]");
    let model = format!("{}/v1", program(model()).await);
    let agent = serve(&["--openai", &model, "--model", "tiny", "--openai-mcp", &servers]).await;
    let reply = async |request: Request| {
        let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
        let request: Value = serde_json::from_slice(&body).unwrap_or_default();
        let result = match request["method"].as_str() {
            Some("initialize") => json!({
                "protocolVersion": request["params"]["protocolVersion"],
                "capabilities": { "tools": {} },
                "serverInfo": { "name": "test", "version": "1" },
            }),
            Some("tools/list") => json!({ "tools": [{ "name": "greet", "inputSchema": { "type": "object" } }] }),
            Some("tools/call") => json!({ "content": [{ "type": "text", "text": "hello" }] }),
            _ => json!({}),
        };
        let response = Response::builder().header(header::CONTENT_TYPE, JSON);
        if request.get("id").is_none() {
            return response.status(StatusCode::ACCEPTED).body(Body::empty()).unwrap();
        }
        let body = json!({ "jsonrpc": "2.0", "id": request["id"], "result": result }).to_string();
        response.body(Body::from(body)).unwrap()
    };
    let router = Router::new().route("/mcp", any(reply));
    let url = agent.url.clone();
    let restore = async || {
        serve_at(address, router).await;
        // The tools are requested as soon as a probe has succeeded.
        let client = Client::connect(&url).await.unwrap();
        let start = Instant::now();
        let mut ticks = interval(Duration::from_millis(100));
        while client.send("hello").await.is_err() {
            assert!(start.elapsed() < Duration::from_secs(35));
            ticks.tick().await;
        }
    };
    is_refused_and_recovers(agent, "mcp:files", "the MCP server files", restore).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_tool_command_is_restarted_and_a_broken_one_refuses_nothing() {
    const SERVER: &str = r#"
echo $$ > "$0.pid"
while read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case "$line" in
    *'"initialize"'*) reply='{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"s","version":"1"}}' ;;
    *'"tools/list"'*) reply='{"tools":[{"name":"greet","inputSchema":{"type":"object"}}]}' ;;
    *'"tools/call"'*) reply='{"content":[{"type":"text","text":"hello"}]}' ;;
    *) continue ;;
  esac
  printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$reply"
done
"#;
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("server.sh");
    fs::write(&script, SERVER).unwrap();
    let servers = format!("[{{ name = 'shell', command = ['sh', '{}'] }}]", script.display());
    let model = format!("{}/v1", program(model()).await);
    let agent = serve(&["--openai", &model, "--model", "tiny", "--openai-mcp", &servers]).await;
    let answer = async || {
        let (status, .., body) = agent.send("hello", "").await;
        assert_eq!((status, state(&body)), (StatusCode::OK, "TASK_STATE_COMPLETED"), "{body}");
        body["task"]["artifacts"][0]["parts"][0]["text"].as_str().unwrap().to_owned()
    };
    let kill = || {
        let id = fs::read_to_string(directory.path().join("server.sh.pid")).unwrap();
        assert!(std::process::Command::new("kill").args(["-KILL", id.trim()]).status().unwrap().success());
    };
    let wait_until_logged = async |text: &str| {
        let start = Instant::now();
        let mut ticks = interval(Duration::from_millis(20));
        while agent.logged(text) == 0 {
            assert!(start.elapsed() < Duration::from_secs(35), "{text}: {:?}", agent.log.lock().unwrap());
            ticks.tick().await;
        }
    };
    assert_eq!(answer().await, "hello");
    kill();
    wait_until_logged("dependency down: the MCP server shell").await;
    // A probe starts it again, without a message.
    wait_until_logged("dependency up: the MCP server shell").await;
    assert_eq!(answer().await, "hello");
    fs::rename(&script, script.with_extension("gone")).unwrap();
    kill();
    agent.wait_for("mcp:shell", 0.0).await;
    let start = Instant::now();
    while agent.metric("a2a_dependency_breaker", &["mcp:shell", "\"open\""]).await != [1.0] {
        assert!(start.elapsed() < Duration::from_secs(35), "{:?}", agent.log.lock().unwrap());
    }
    assert_eq!(answer().await, "Error: the server of greet is not available.");
    fs::rename(script.with_extension("gone"), &script).unwrap();
    agent.wait_for("mcp:shell", 1.0).await;
    assert_eq!(answer().await, "hello");
    // Two requests to the model for each of the four messages.
    let tokens =
        async |direction: &str, detail: &str| agent.metric("a2a_model_tokens_total", &[direction, detail]).await;
    assert_eq!([tokens("input", "\"all\"").await, tokens("input", "cache_read").await], [[56.0], [24.0]]);
    assert_eq!(tokens("output", "\"all\"").await, [16.0]);
    assert_eq!(agent.metric("a2a_tool_calls_total", &["shell", "\"ok\""]).await, [3.0]);
    assert_eq!(agent.metric("a2a_tool_calls_total", &["shell", "\"error\""]).await, [1.0]);
}

/// Tokens can't be checked without the keys of their issuer. That refuses no work by others, and shows like any dependency.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_issuer_of_tokens_is_down() {
    const TOKEN: &str = "eyJhbGciOiJFUzI1NiIsImtpZCI6IngifQ.e30.AAAA";
    let (issuer, metrics) = (format!("http://{}", unused_address().await), unused_address().await.to_string());
    let flags = ["--auth-jwt-issuer", &issuer, "--auth-jwt-audience", "agent", "--metrics-listen", &metrics];
    let agent = serve(&flags).await;
    let shown = async || fetch(format!("http://{metrics}/metrics")).await.unwrap().text().await.unwrap();
    assert!(shown().await.contains("a2a_dependency_up{peer=\"jwks\"} 1"), "not used yet");
    for _ in 0..2 {
        let read = http().get(format!("{}/tasks", agent.url)).bearer_auth(TOKEN).send().await.unwrap();
        assert_eq!(read.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
    let text = shown().await;
    assert!(text.contains("a2a_dependency_up{peer=\"jwks\"} 0"), "{text}");
    assert!(text.contains("a2a_outbound_total{result=\"connect\",peer=\"jwks\"} 1"), "{text}");
    assert_eq!(agent.logged("dependency down: the server of the public keys"), 1);
    assert_eq!(fetch(format!("{}/readyz", agent.url)).await.unwrap().status(), 200);
}

/// With `health.ready`, the server is not ready once each of its agents has lacked something for 30 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readiness_depends_on_the_agents_on_request() {
    let address = unused_address().await;
    let agent = serve(&["--http", &format!("http://{address}/turn"), "--health-ready", "agents"]).await;
    // Of a gateway, a message that was accepted before the breaker opened waits as long.
    let (mut upstream, upstream_url) = started(a2a(&["serve", "--listen", "127.0.0.1:0"])).await;
    let gateway = serve(&["--upstream", &upstream_url]).await;
    signal(&upstream, "-KILL");
    upstream.wait().await.unwrap();
    assert_eq!(gateway.request("hello", "", false).await.0, StatusCode::OK);
    let ready = async || fetch(format!("{}/readyz?verbose", agent.url)).await.unwrap();
    agent.request("hello", "", false).await;
    let start = Instant::now();
    assert_eq!(ready().await.status(), StatusCode::OK);
    let mut ticks = interval(Duration::from_millis(200));
    while ready().await.status() == StatusCode::OK {
        assert!(start.elapsed() < Duration::from_secs(50));
        ticks.tick().await;
    }
    assert!(start.elapsed() > Duration::from_secs(25), "{:?}", start.elapsed());
    let text = ready().await.text().await.unwrap();
    assert_eq!(text, "drain ok\nrecovery ok\nstore ok\ncommits ok\nagents failed\nno agent can do its work\n");
    let ended = ["outcome=\"failed\"", "reason=\"breaker_open\""];
    while gateway.metric("a2a_turns_ended_total", &ended).await != [1.0] {
        assert!(start.elapsed() < Duration::from_secs(50), "{:?}", gateway.log.lock().unwrap());
        ticks.tick().await;
    }
    assert_eq!(gateway.logged("reason=breaker_open"), 1, "{:?}", gateway.log.lock().unwrap());
    serve_at(address, Router::new().route("/turn", any(async || "hello"))).await;
    while ready().await.status() != StatusCode::OK {
        assert!(start.elapsed() < Duration::from_secs(90));
        ticks.tick().await;
    }
}
