//! Models with a chat completions API as agents: requests, responses of each form, failures, conversations and tools.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use a2a_service::{
    adapter::{Approval, McpServer, McpTransport, Openai, OpenaiOptions},
    agent::Agent,
    auth::Principal,
    call::Call,
    client::{Client, Outcome, StreamEvent},
    pb::v1::{Message, Part, SendMessageConfiguration, SendMessageRequest, Task, TaskState},
    server::Server,
};
use axum::{
    Router,
    body::Body,
    extract::Request,
    response::Response,
    routing::{any, post},
};
use futures::StreamExt as _;
use http::{HeaderMap, StatusCode, header};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::Notify};

#[cfg(unix)]
use crate::exec::{eventually, is_running};
use crate::{
    agent_kinds::until_first_chunk,
    program::{a2a, output as finished, signal, started},
};

mod streams;

/// Response of the scripted endpoint.
#[derive(Clone)]
enum Reply {
    /// Status, content type and body.
    Fixed(u16, &'static str, String),
    /// Response with `Retry-After`.
    Busy(u16, &'static str),
    /// Stream that begins with these chunks and then sends nothing.
    Stalled(Vec<Value>),
    /// Stream that begins after a notification.
    Gated(Arc<Notify>, Vec<Value>),
    /// No response.
    Silent,
}

/// Requests that the endpoint has received.
#[derive(Clone, Default)]
struct Requests(Arc<Mutex<Vec<(HeaderMap, Value)>>>, Arc<Notify>);

impl Requests {
    /// Waits until a request was received.
    async fn received(&self) {
        let limit = Duration::from_secs(30);
        tokio::time::timeout(limit, self.1.notified()).await.expect("the endpoint gets a request");
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    fn body(&self, position: usize) -> Value {
        self.0.lock().unwrap()[position].1.clone()
    }

    /// Roles and contents of the messages of a request.
    fn messages(&self, position: usize) -> Vec<(String, Value)> {
        let body = self.body(position);
        let message = |message: &Value| (message["role"].as_str().unwrap().to_owned(), message["content"].clone());
        body["messages"].as_array().unwrap().iter().map(message).collect()
    }
}

/// Serves replies, the last one for all further requests. Returns the base URL of the API.
async fn endpoint(replies: Vec<Reply>) -> (String, Requests) {
    let requests = Requests::default();
    let (received, replies) = (requests.clone(), Arc::new(Mutex::new(VecDeque::from(replies))));
    let app = Router::new().route(
        "/v1/chat/completions",
        post(move |request: Request| {
            let (received, replies) = (received.clone(), Arc::clone(&replies));
            async move {
                let (parts, body) = request.into_parts();
                let body = axum::body::to_bytes(body, 1 << 24).await.unwrap();
                received.0.lock().unwrap().push((parts.headers, serde_json::from_slice(&body).unwrap()));
                received.1.notify_one();
                let reply = {
                    let mut replies = replies.lock().unwrap();
                    if replies.len() > 1 { replies.pop_front() } else { replies.front().cloned() }
                };
                respond(reply.unwrap()).await
            }
        }),
    );
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    (url, requests)
}

async fn respond(reply: Reply) -> Response {
    let response = |status: u16, content_type: &str| {
        Response::builder().status(StatusCode::from_u16(status).unwrap()).header(header::CONTENT_TYPE, content_type)
    };
    match reply {
        Reply::Fixed(status, content_type, body) => response(status, content_type).body(Body::from(body)).unwrap(),
        Reply::Busy(status, after) => {
            response(status, "text/plain").header(header::RETRY_AFTER, after).body(Body::from("busy")).unwrap()
        }
        Reply::Stalled(chunks) => {
            let first = futures::stream::iter([Ok::<_, io::Error>(lines(&chunks))]);
            let body = Body::from_stream(first.chain(futures::stream::pending()));
            response(200, "text/event-stream").body(body).unwrap()
        }
        Reply::Gated(gate, chunks) => {
            gate.notified().await;
            response(200, "text/event-stream").body(Body::from(lines(&chunks))).unwrap()
        }
        Reply::Silent => std::future::pending().await,
    }
}

fn lines(chunks: &[Value]) -> String {
    chunks.iter().flat_map(|chunk| ["data: ".to_owned(), chunk.to_string(), "\n\n".to_owned()]).collect()
}

fn text(text: &str) -> Value {
    json!({ "choices": [{ "index": 0, "delta": { "content": text } }] })
}

fn finish(reason: &str) -> Value {
    json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": reason }] })
}

fn call(id: &str, name: &str, arguments: &Value) -> Value {
    let function = json!({ "name": name, "arguments": arguments.to_string() });
    json!({ "choices": [{ "delta": { "tool_calls": [{ "index": 0, "id": id, "function": function }] } }] })
}

fn stream(chunks: &[Value]) -> Reply {
    Reply::Fixed(200, "text/event-stream", format!("{}data: [DONE]\n\n", lines(chunks)))
}

fn answer(answer: &str) -> Reply {
    stream(&[text(answer), finish("stop")])
}

fn client(agent: impl Agent) -> Client {
    Client::from_service(Server::new(agent).into_service())
}

/// Sends a text to an agent whose endpoint has these replies. Returns the task, and the requests.
async fn send(replies: Vec<Reply>, options: OpenaiOptions) -> (Task, Requests) {
    let (url, requests) = endpoint(replies).await;
    let outcome = client(Openai::new(&url, "tiny", options).unwrap()).send("hello").await.unwrap();
    (outcome.task().unwrap().clone(), requests)
}

fn status_text(task: &Task) -> String {
    task.status.iter().flat_map(|status| &status.message).map(Message::text).collect()
}

fn output(task: &Task) -> String {
    task.artifacts.iter().flat_map(|artifact| &artifact.parts).filter_map(Part::as_text).collect()
}

/// Metadata of the status message.
fn metadata(task: &Task) -> Value {
    let message = task.status.as_ref().and_then(|status| status.message.as_ref());
    serde_json::to_value(message.and_then(|message| message.metadata.as_ref())).unwrap()
}

fn message(text: &str, context: &str) -> SendMessageRequest {
    let message = Message { context_id: context.to_owned(), ..Message::user(text) };
    SendMessageRequest { message: Some(message), ..SendMessageRequest::default() }
}

fn reply(task: &Task, part: Part) -> SendMessageRequest {
    let message = Message { task_id: task.id.clone(), parts: vec![part], ..Message::user("") };
    SendMessageRequest { message: Some(message), ..SendMessageRequest::default() }
}

fn task(outcome: &Outcome) -> Task {
    outcome.task().unwrap().clone()
}

#[tokio::test]
async fn answer_is_streamed_with_its_usage() {
    let usage = json!({ "choices": [], "usage": { "prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11 } });
    let role = json!({ "choices": [{ "delta": { "role": "assistant", "content": "" } }], "usage": null });
    let chunks = [role, text("Hel"), text("lo!"), finish("stop"), usage];
    let parameters = json!({ "temperature": 0.5, "max_tokens": 7 }).as_object().unwrap().clone();
    let options = OpenaiOptions::default().key(Some("sesame".into())).system(Some("Be brief.".to_owned()));
    let (url, requests) = endpoint(vec![stream(&chunks)]).await;
    let agent = Openai::new(&url, "tiny", options.parameters(parameters)).unwrap();
    assert_eq!(agent.card().name, "tiny");
    assert_eq!(agent.card().default_input_modes, ["text/plain", "text/*", "application/json", "image/*"]);
    assert!(!serde_json::to_string(&agent.card()).unwrap().contains("Be brief."));
    let agent = client(agent);
    let mut events = agent.stream("hello").await.unwrap();
    let (mut artifact, mut last) = (String::new(), None);
    while let Some(event) = events.next().await {
        let event = event.unwrap();
        if let StreamEvent::Artifact(update) = event {
            artifact.extend(update.artifact.iter().flat_map(|artifact| &artifact.parts).filter_map(Part::as_text));
        } else if let StreamEvent::Status(update) = event {
            last = update.status;
        }
    }
    let found = Task { status: last, ..Task::default() };
    assert_eq!((found.state(), artifact.as_str()), (TaskState::Completed, "Hello!"));
    let expected = json!({ "usage": { "promptTokens": 9, "completionTokens": 2, "totalTokens": 11 } });
    assert_eq!(metadata(&found), expected);
    let sent = json!({
        "model": "tiny",
        "messages": [{ "role": "system", "content": "Be brief." }, { "role": "user", "content": "hello" }],
        "stream": true,
        "stream_options": { "include_usage": true },
        "temperature": 0.5,
        "max_tokens": 7,
    });
    assert_eq!(requests.body(0), sent);
    assert_eq!(requests.0.lock().unwrap()[0].0[header::AUTHORIZATION], "Bearer sesame");
}

#[tokio::test]
async fn responses_of_each_form_end_the_task() {
    let json = |value: Value| Reply::Fixed(200, "application/json; charset=utf-8", value.to_string());
    let events = |body: &str| Reply::Fixed(200, "text/event-stream", body.to_owned());
    let message = |content: &str, reason: &str| {
        let choice = json!({ "message": { "role": "assistant", "content": content }, "finish_reason": reason });
        json!({ "choices": [choice] })
    };
    let refusal = json!({ "choices": [{ "delta": { "refusal": "I can't." }, "finish_reason": "stop" }] });
    let cut = lines(&[text("Hi")]);
    let unseparated = lines(&[text("H"), text("i"), finish("stop")]).replace("\n\n", "\n");
    for (reply, state, artifact, status) in [
        (json(message("Hi", "stop")), TaskState::Completed, "Hi", ""),
        (json(message("Hi", "length")), TaskState::Completed, "Hi", "The answer is truncated"),
        (stream(&[text("Hi"), finish("length")]), TaskState::Completed, "Hi", "The answer is truncated"),
        (events(&lines(&[text("Hi"), finish("stop")])), TaskState::Completed, "Hi", ""),
        (events(&format!(": ping\n\n{cut}data:[DONE]\r\n")), TaskState::Completed, "Hi", ""),
        (events(&format!("{unseparated}data: [DONE]\n")), TaskState::Completed, "Hi", ""),
        (stream(&[text("Hi"), finish("content_filter")]), TaskState::Rejected, "Hi", "The content filter"),
        (stream(&[refusal]), TaskState::Rejected, "", "I can't."),
        (events(&cut), TaskState::Failed, "Hi", "was interrupted"),
        (events(""), TaskState::Failed, "", "was interrupted"),
        (events("data: {\"choices\":[]}\n\ndata: [DONE]\n\n"), TaskState::Failed, "", "has no answer"),
        (json(json!({})), TaskState::Failed, "", "has no answer"),
        (json(json!({ "choices": vec![json!({}); 300_000] })), TaskState::Failed, "", "is invalid"),
        (events(&lines(&[json!({ "choices": vec![json!({}); 300_000] })])), TaskState::Failed, "", "is invalid"),
        (events(&format!("{cut}data: <html>\n\n")), TaskState::Failed, "Hi", "is invalid"),
        (json(json!([1])), TaskState::Failed, "", "is invalid"),
        (json(json!({ "error": { "message": "secret" } })), TaskState::Failed, "", "reported an error"),
        (stream(&[text("Hi"), json!({ "error": "secret" })]), TaskState::Failed, "Hi", "reported an error"),
        (Reply::Fixed(200, "text/html; charset=utf-8", "<p>secret".to_owned()), TaskState::Failed, "", "a web page"),
        (Reply::Fixed(200, "text/plain", "secret".to_owned()), TaskState::Failed, "", "was interrupted"),
        (Reply::Fixed(401, "text/plain", "secret".to_owned()), TaskState::Failed, "", "rejects the credentials"),
        (Reply::Fixed(403, "text/plain", "secret".to_owned()), TaskState::Failed, "", "rejects the credentials"),
        (Reply::Fixed(404, "text/plain", "secret".to_owned()), TaskState::Failed, "", "(status 404)"),
        (Reply::Fixed(302, "text/plain", "secret".to_owned()), TaskState::Failed, "", "(status 302)"),
        (Reply::Fixed(501, "text/plain", "secret".to_owned()), TaskState::Failed, "", "(status 501)"),
        (Reply::Fixed(400, "text/plain", "context_length_exceeded".to_owned()), TaskState::Failed, "", "too long"),
        (Reply::Busy(429, "3600"), TaskState::Failed, "", "overloaded"),
        (Reply::Busy(429, "Fri, 31 Dec 9999 23:59:59 GMT"), TaskState::Failed, "", "overloaded"),
    ] {
        let options = OpenaiOptions::default().key(Some("secret-key".into()));
        let (found, requests) = send(vec![reply], options).await;
        let text = status_text(&found);
        assert_eq!((found.state(), output(&found).as_str()), (state, artifact), "{text}");
        assert!(text.contains(status) && text.is_empty() == status.is_empty(), "{text}");
        assert!(!text.contains("secret"), "{text}");
        assert_eq!(metadata(&found)["truncated"] == true, status.contains("truncated"));
        assert_eq!(requests.count(), 1, "{text}");
    }
}

#[tokio::test]
async fn overloaded_endpoint_gets_the_request_again() {
    let busy = Reply::Busy(503, "0");
    let (found, requests) = send(vec![busy, answer("Hi")], OpenaiOptions::default()).await;
    assert_eq!((found.state(), output(&found).as_str(), requests.count()), (TaskState::Completed, "Hi", 2));
    assert_eq!(requests.body(0), requests.body(1));
}

#[tokio::test]
async fn timeouts_and_limits_fail_the_task() {
    let soon = Duration::from_millis(100);
    let idle = OpenaiOptions::default().idle_timeout(soon);
    for (reply, options, expected) in [
        (Reply::Silent, idle.clone(), "did not respond in time"),
        (Reply::Stalled(vec![]), idle.clone(), "did not respond in time"),
        (Reply::Stalled(vec![text("Hi")]), idle, "did not respond in time"),
        (answer("more than ten bytes"), OpenaiOptions::default().output_bytes(10), "limits.task_bytes"),
    ] {
        let (found, _) = send(vec![reply], options).await;
        let text = status_text(&found);
        assert!(found.state() == TaskState::Failed && text.contains(expected), "{expected}: {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn unreachable_endpoint_and_secrets_are_not_named() {
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        format!("http://{}/sesame", listener.local_addr().unwrap())
    };
    let options = OpenaiOptions::default().key(Some("sesame".into())).system(Some("sesame".to_owned()));
    let agent = Openai::new(&closed, "tiny", options).unwrap();
    assert!(!format!("{agent:?}").contains("sesame"));
    let outcome = client(agent).send("hello").await.unwrap();
    assert_eq!(status_text(&task(&outcome)), "The model endpoint can't be reached.");
}

/// A cancel closes the connection, so that the endpoint stops.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancel_closes_the_connection() {
    let (guard, mut notice) = tokio::sync::mpsc::channel::<()>(1);
    let handler = post(move || {
        let guard = guard.clone();
        async move {
            let chunks = async_stream::stream! {
                let _guard = guard;
                yield Ok::<_, io::Error>(lines(&[text("Hi")]));
                std::future::pending::<()>().await;
            };
            let response = Response::builder().header(header::CONTENT_TYPE, "text/event-stream");
            response.body(Body::from_stream(chunks)).unwrap()
        }
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let app = Router::new().route("/chat/completions", handler);
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let agent = client(Openai::new(&url, "tiny", OpenaiOptions::default()).unwrap());
    let (id, _events) = until_first_chunk(&agent, "hello").await;
    assert_eq!(agent.cancel(&id).await.unwrap().state(), TaskState::Canceled);
    // Ends when the stream and the endpoint, which have the senders, are dropped.
    server.abort();
    tokio::time::timeout(Duration::from_secs(10), notice.recv()).await.expect("the connection is closed");
}

#[tokio::test]
async fn tasks_of_a_context_are_a_conversation() {
    let (url, requests) = endpoint(vec![answer("One"), answer("Two"), answer("Three")]).await;
    let agent = Openai::new(&url, "tiny", OpenaiOptions::default().history(3)).unwrap();
    let service = Server::new(agent).into_service();
    let agent = Client::from_service(Arc::clone(&service));
    let first = task(&agent.send("1?").await.unwrap());
    let context = first.context_id.as_str();
    let of = |role: &str, text: &str| (role.to_owned(), json!(text));
    let say = async |request: SendMessageRequest| {
        assert_eq!(task(&agent.send(request).await.unwrap()).state(), TaskState::Completed);
    };
    say(message("2?", context)).await;
    assert_eq!(requests.messages(1), [of("user", "1?"), of("assistant", "One"), of("user", "2?")]);
    // Two messages of the newest task fit, four of both do not.
    say(message("3?", context)).await;
    assert_eq!(requests.messages(2), [of("user", "2?"), of("assistant", "Two"), of("user", "3?")]);
    // Neither another context, nor another tenant, nor another owner has these messages.
    say(message("4?", "other")).await;
    assert_eq!(requests.messages(3), [of("user", "4?")]);
    say(SendMessageRequest { tenant: "other".to_owned(), ..message("5?", context) }).await;
    assert_eq!(requests.messages(4), [of("user", "5?")]);
    let call = Call::of_principal(Principal::new("bob"));
    service.send_message(call.request(message("6?", context))).await.unwrap();
    assert_eq!(requests.messages(5), [of("user", "6?")]);
}

#[tokio::test]
async fn images_are_sent_and_other_files_are_rejected() {
    let (url, requests) = endpoint(vec![answer("A cat")]).await;
    let agent = client(Openai::new(&url, "tiny", OpenaiOptions::default()).unwrap());
    let with = |part: Part| {
        let message = Message::user("Look").and(part);
        SendMessageRequest { message: Some(message), ..SendMessageRequest::default() }
    };
    let found = task(&agent.send(with(Part::bytes("\x01\x02", "image/png"))).await.unwrap());
    assert_eq!(output(&found), "A cat");
    let expected = json!([
        { "type": "text", "text": "Look" },
        { "type": "image_url", "image_url": { "url": "data:image/png;base64,AQI=" } },
    ]);
    assert_eq!(requests.messages(0), [("user".to_owned(), expected)]);
    let found = task(&agent.send(with(Part::bytes("%PDF", "application/pdf"))).await.unwrap());
    let text = status_text(&found);
    assert!(found.state() == TaskState::Rejected && text.contains("application/pdf"), "{text}");
    let at_url = || Part::url("http://127.0.0.1:1/cat.png", "image/png");
    let found = task(&agent.send(with(at_url())).await.unwrap());
    assert!(found.state() == TaskState::Rejected && status_text(&found).contains("images from URLs"));
    assert_eq!(requests.count(), 1);
    let (url, requests) = endpoint(vec![answer("A cat")]).await;
    let agent = client(Openai::new(&url, "tiny", OpenaiOptions::default().image_urls(true)).unwrap());
    assert_eq!(output(&task(&agent.send(with(at_url())).await.unwrap())), "A cat");
    let image = json!({ "type": "image_url", "image_url": { "url": "http://127.0.0.1:1/cat.png" } });
    assert_eq!(requests.messages(0), [("user".to_owned(), json!([{ "type": "text", "text": "Look" }, image]))]);
}

/// Starts the program with a model as its agent, and its tasks in a file.
async fn serve_model(url: &str, store: &str) -> (tokio::process::Child, String) {
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--openai", url, "--model", "tiny", "--store", store];
    let mut command = a2a(&arguments);
    command.args(["--log-filter", "error"]).env_remove("A2A_STORE").env("A2A_OPENAI_KEY", "sesame");
    started(command).await
}

/// Kills the server after its request and an event of the turn. Returns the task after a restart, and the number of requests.
async fn killed_and_restarted(replies: Vec<Reply>, reached: impl Fn(&StreamEvent) -> bool) -> (Task, usize) {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("a2a.db").display());
    let (api, requests) = endpoint(replies).await;
    let (mut server, url) = serve_model(&api, &store).await;
    let agent = Client::connect(&url).await.unwrap();
    let mut events = agent.stream("hello").await.unwrap();
    let mut id = String::new();
    while let Some(event) = events.next().await {
        let event = event.unwrap();
        let is_reached = reached(&event);
        if let StreamEvent::Task(task) = event {
            id = task.id;
        }
        if is_reached {
            break;
        }
    }
    requests.received().await;
    signal(&server, "-KILL");
    server.wait().await.unwrap();
    let (_server, url) = serve_model(&api, &store).await;
    let task = Client::connect(&url).await.unwrap().wait(&id).await.unwrap();
    assert_eq!(requests.0.lock().unwrap()[0].0[header::AUTHORIZATION], "Bearer sesame");
    (task, requests.count())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turn_runs_again_unless_its_answer_had_begun() {
    let is_artifact = |event: &StreamEvent| matches!(event, StreamEvent::Artifact(_));
    let begun = vec![Reply::Stalled(vec![text("Hi")]), answer("Hi")];
    let (found, count) = killed_and_restarted(begun, is_artifact).await;
    let status = status_text(&found);
    assert!(found.state() == TaskState::Failed && status.contains("Send the message again"), "{status}");
    assert_eq!((output(&found).as_str(), count), ("Hi", 1));
    let is_task = |event: &StreamEvent| matches!(event, StreamEvent::Task(_));
    let (found, count) = killed_and_restarted(vec![Reply::Silent, answer("Hi")], is_task).await;
    assert_eq!((found.state(), output(&found).as_str(), count), (TaskState::Completed, "Hi", 2));
}

/// Serves MCP over streamable HTTP, with answers in JSON. `answer` returns the result of a request.
async fn serve_mcp<F: Future<Output = Value> + Send>(
    answer: impl Fn(Value) -> F + Clone + Send + Sync + 'static,
) -> String {
    let app = Router::new().route(
        "/mcp",
        any(async move |request: Request| {
            let status = |status| Response::builder().status(status).body(Body::empty()).unwrap();
            if request.method() != http::Method::POST {
                return status(StatusCode::METHOD_NOT_ALLOWED);
            }
            let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
            let request: Value = serde_json::from_slice(&body).unwrap();
            let Some(id) = request.get("id").cloned() else { return status(StatusCode::ACCEPTED) };
            let body = json!({ "jsonrpc": "2.0", "id": id, "result": answer(request).await }).to_string();
            Response::builder().header(header::CONTENT_TYPE, "application/json").body(Body::from(body)).unwrap()
        }),
    );
    format!("{}/mcp", crate::bindings::program(app).await)
}

/// MCP server with the tools `add`, which needs numbers, and `fail`.
async fn mcp_server() -> (String, Arc<Mutex<Vec<Value>>>) {
    let calls: Arc<Mutex<Vec<Value>>> = Arc::default();
    let received = Arc::clone(&calls);
    let url = serve_mcp(move |request| {
        let result = mcp_result(&request, &received);
        async { result }
    });
    (url.await, calls)
}

pub(crate) fn mcp_result(request: &Value, calls: &Mutex<Vec<Value>>) -> Value {
    let content = |text: String| json!([{ "type": "text", "text": text }]);
    match request["method"].as_str().unwrap() {
        "initialize" => json!({
            "protocolVersion": "2025-06-18",
            "capabilities": { "tools": {} },
            "serverInfo": { "name": "test", "version": "1" },
        }),
        "tools/list" => {
            let schema = json!({ "type": "object", "properties": { "a": { "type": "number" } } });
            let tool =
                |name: &str| json!({ "name": name, "description": format!("Does {name}."), "inputSchema": schema });
            json!({ "tools": [tool("add"), tool("fail")] })
        }
        "tools/call" => {
            calls.lock().unwrap().push(request["params"].clone());
            match request["params"]["name"].as_str().unwrap() {
                "add" => {
                    let arguments = &request["params"]["arguments"];
                    let sum = arguments["a"].as_i64().unwrap() + arguments["b"].as_i64().unwrap();
                    json!({ "content": content(sum.to_string()) })
                }
                _ => json!({ "content": content("broken".to_owned()), "isError": true }),
            }
        }
        other => panic!("{other}"),
    }
}

/// Agent with the tools of a server.
async fn with_tools(replies: Vec<Reply>, approval: Approval) -> (Client, Requests, Arc<Mutex<Vec<Value>>>) {
    let ((url, requests), (mcp, calls)) = (endpoint(replies).await, mcp_server().await);
    let server = McpServer::new("math", McpTransport::Url(mcp, None)).approval(approval);
    let options = OpenaiOptions::default().tool_rounds(3);
    let agent = Openai::new(&url, "tiny", options).unwrap().with_mcp(vec![server]).await.unwrap();
    (client(agent), requests, calls)
}

fn add() -> Reply {
    stream(&[text("Let me see."), call("c1", "add", &json!({ "a": 2, "b": 3 })), finish("tool_calls")])
}

#[tokio::test]
async fn model_calls_tools_and_gets_their_results() {
    let fail = stream(&[call("c2", "fail", &json!({})), finish("tool_calls")]);
    let unknown = Reply::Fixed(
        200,
        "application/json",
        json!({ "choices": [{ "finish_reason": "tool_calls", "message": { "content": null, "tool_calls": [
            { "id": "c3", "type": "function", "function": { "name": "none", "arguments": "{}" } },
            { "id": "c4", "type": "function", "function": { "name": "add", "arguments": "2 + 3" } },
            { "id": "c5", "type": "function", "function": { "name": "add", "arguments": r#"{"a":{"b":1,"b":2},"b":3}"# } },
        ] } }] })
        .to_string(),
    );
    let (agent, requests, calls) = with_tools(vec![add(), fail, unknown, answer("5")], Approval::None).await;
    let mut events = agent.stream("2 + 3?").await.unwrap();
    let (mut found, mut progress) = (Task::default(), Vec::new());
    while let Some(event) = events.next().await {
        let event = event.unwrap();
        if let StreamEvent::Task(task) = event {
            found = *task;
        } else if let StreamEvent::Status(update) = event {
            found.status = update.status;
            progress.push(status_text(&found));
        }
    }
    let found = agent.get(&found.id).await.unwrap();
    assert_eq!((found.state(), output(&found).as_str()), (TaskState::Completed, "Let me see.\n\n5"));
    assert!(progress.iter().any(|text| text == "Running add"), "{progress:?}");
    let names: Vec<_> = calls.lock().unwrap().iter().map(|call| call["name"].clone()).collect();
    assert_eq!(names, ["add", "fail"]);
    let body = requests.body(0);
    assert_eq!(body["tools"][0]["function"]["name"], "add");
    assert_eq!(body["tools"][0]["function"]["parameters"]["properties"]["a"]["type"], "number");
    let body = requests.body(1);
    let function = json!({ "name": "add", "arguments": "{\"a\":2,\"b\":3}" });
    let calls = json!([{ "id": "c1", "type": "function", "function": function }]);
    assert_eq!(body["messages"][1], json!({ "role": "assistant", "content": "Let me see.", "tool_calls": calls }));
    assert_eq!(body["messages"][2], json!({ "role": "tool", "tool_call_id": "c1", "content": "5" }));
    let results: Vec<_> = requests.messages(3).into_iter().filter(|(role, _)| role == "tool").collect();
    let results: Vec<_> = results.iter().map(|(_, content)| content.as_str().unwrap()).collect();
    assert_eq!(results[..3], ["5", "Error: broken", "Error: there is no tool none."]);
    assert!(results[3].starts_with("Error: the arguments are not a JSON object"), "{results:?}");
    assert!(results[4].contains("\"b\" is given twice"), "{results:?}");
}

#[tokio::test]
async fn tool_calls_are_limited() {
    let (agent, requests, calls) = with_tools(vec![add()], Approval::None).await;
    let found = task(&agent.send("2 + 3?").await.unwrap());
    let text = status_text(&found);
    assert!(found.state() == TaskState::Failed && text.contains("called tools more than"), "{text}");
    assert_eq!((requests.count(), calls.lock().unwrap().len()), (4, 3));
    let large = |bytes| call("c1", "fail", &json!({ "text": "x".repeat(bytes) }));
    for (reply, options, expected) in [
        (large(1 << 20), OpenaiOptions::default(), "The tool calls of the model exceed 1048576 bytes."),
        (
            large(6000),
            OpenaiOptions::default().output_bytes(10_000),
            "The tool calls of this turn and their results exceed",
        ),
    ] {
        let ((url, requests), (mcp, _)) =
            (endpoint(vec![stream(&[reply, finish("tool_calls")])]).await, mcp_server().await);
        let server = McpServer::new("math", McpTransport::Url(mcp, None));
        let agent = Openai::new(&url, "tiny", options).unwrap().with_mcp(vec![server]).await.unwrap();
        let found = task(&client(agent).send("2 + 3?").await.unwrap());
        let text = status_text(&found);
        assert!(found.state() == TaskState::Failed && text.contains(expected), "{text}");
        assert!(requests.count() <= 2);
    }
}

/// Call of the tool with which the model asks.
fn asks(arguments: &Value) -> Reply {
    stream(&[call("call_1", "ask_user", arguments), finish("tool_calls")])
}

#[tokio::test]
async fn answers_of_the_client_are_the_results_of_questions() {
    let png = Part::bytes("\x01", "image/png");
    let image = json!([{ "type": "image_url", "image_url": { "url": "data:image/png;base64,AQ==" } }]);
    for (part, result, note) in [
        (Part::text("Rome"), "Rome", None),
        (Part::data(&json!({ "city": "Rome" })).unwrap(), "{\"city\":\"Rome\"}", None),
        (png, "The answer is in the next message of the user.", Some(image)),
    ] {
        let question = asks(&json!({ "question": " Which city? " }));
        let (url, requests) = endpoint(vec![question, answer("Sunny")]).await;
        let agent = Openai::new(&url, "tiny", OpenaiOptions::default().ask(true)).unwrap();
        assert!(agent.card().skills.is_empty());
        let agent = client(agent);
        let asked = task(&agent.send("weather?").await.unwrap());
        assert_eq!((asked.state(), status_text(&asked).as_str()), (TaskState::InputRequired, "Which city?"));
        assert_eq!(requests.body(0)["tools"][0]["function"]["name"], "ask_user");
        // A file that the model can't read leaves the question open.
        let unsupported = reply(&asked, Part::bytes("%PDF", "application/pdf"));
        let still = task(&agent.send(unsupported).await.unwrap());
        assert_eq!(still.state(), TaskState::InputRequired);
        assert!(status_text(&still).contains("application/pdf"), "{}", status_text(&still));
        let done = task(&agent.send(reply(&asked, part)).await.unwrap());
        assert_eq!((done.state(), output(&done).as_str()), (TaskState::Completed, "Sunny"));
        let sent = requests.body(1)["messages"].as_array().unwrap().clone();
        assert_eq!(sent[0], json!({ "role": "user", "content": "weather?" }));
        assert_eq!(sent[2], json!({ "role": "tool", "tool_call_id": "call_1", "content": result }));
        assert_eq!(sent.get(3).map(|message| &message["content"]), note.as_ref());
    }
}

#[tokio::test]
async fn questions_of_a_response_are_asked_one_after_the_other() {
    let question = |id: &str, index: u32, question: &str| {
        let function = json!({ "name": "ask_user", "arguments": json!({ "question": question }).to_string() });
        json!({ "choices": [{ "delta": { "tool_calls": [{ "index": index, "id": id, "function": function }] } }] })
    };
    let both = stream(&[question("c1", 0, "Which map?"), question("c2", 1, "Which city?"), finish("tool_calls")]);
    let again = asks(&json!({ "question": "Which country?" }));
    let (url, requests) = endpoint(vec![both, again, answer("Sunny")]).await;
    // Each turn has a limit of its own.
    let agent = client(Openai::new(&url, "tiny", OpenaiOptions::default().ask(true).tool_rounds(1)).unwrap());
    let mut asked = task(&agent.send("weather?").await.unwrap());
    for (question, part) in [
        ("Which map?", Part::bytes("\x01", "image/png")),
        ("Which city?", Part::text("Rome")),
        ("Which country?", Part::text("Italy")),
    ] {
        assert_eq!((asked.state(), status_text(&asked).as_str()), (TaskState::InputRequired, question));
        assert!(metadata(&asked)["question"].is_object() && metadata(&asked)["toolCall"].is_null());
        asked = task(&agent.send(reply(&asked, part)).await.unwrap());
    }
    assert_eq!((asked.state(), output(&asked).as_str()), (TaskState::Completed, "Sunny"));
    let roles: Vec<_> = requests.messages(1).into_iter().map(|(role, _)| role).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "tool", "user"], "the image follows the results");
    assert_eq!(requests.messages(1)[3].1, "Rome");
}

/// A message that was sent before the question is not its answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_before_a_question_are_no_answers() {
    let gate = Arc::new(Notify::new());
    let question = [call("call_1", "ask_user", &json!({ "question": "Which city?" })), finish("tool_calls")];
    let (url, requests) = endpoint(vec![Reply::Gated(Arc::clone(&gate), question.to_vec()), answer("Sunny")]).await;
    let agent = client(Openai::new(&url, "tiny", OpenaiOptions::default().ask(true)).unwrap());
    let mut events = agent.stream("weather?").await.unwrap();
    let Some(Ok(StreamEvent::Task(begun))) = events.next().await else { panic!("no task") };
    requests.received().await;
    let mut queued = reply(&begun, Part::text("Be brief."));
    queued.configuration = Some(SendMessageConfiguration { return_immediately: true, ..Default::default() });
    drop(agent.send(queued).await.unwrap());
    gate.notify_one();
    // The question is asked again in the turn of the other message.
    let asked = async {
        loop {
            let found = agent.get(&begun.id).await.unwrap();
            let count = found.history.iter().filter(|message| message.text() == "Which city?").count();
            if found.state() == TaskState::InputRequired && count == 1 {
                return found;
            }
            tokio::task::yield_now().await;
        }
    };
    let asked = tokio::time::timeout(Duration::from_secs(30), asked).await.expect("the question is asked again");
    assert_eq!((status_text(&asked).as_str(), requests.count()), ("Which city?", 1));
    let done = task(&agent.send(reply(&asked, Part::text("Rome"))).await.unwrap());
    assert_eq!((done.state(), output(&done).as_str()), (TaskState::Completed, "Sunny"));
    let results: Vec<_> = requests.messages(1).into_iter().skip(2).collect();
    assert_eq!(results, [("tool".to_owned(), json!("Rome")), ("user".to_owned(), json!("Be brief."))]);
}

#[tokio::test]
async fn calls_without_a_question_are_errors_for_the_model() {
    for arguments in [json!({}), json!({ "question": " " }), json!("Rome?")] {
        let (url, requests) = endpoint(vec![asks(&arguments), answer("Hi")]).await;
        let agent = client(Openai::new(&url, "tiny", OpenaiOptions::default().ask(true)).unwrap());
        assert_eq!(task(&agent.send("hello").await.unwrap()).state(), TaskState::Completed, "{arguments}");
        assert_eq!(requests.messages(1)[2].1, "Error: `question` is missing.");
    }
    // Without the option there is no such tool.
    let (url, requests) = endpoint(vec![asks(&json!({ "question": "x" })), answer("Hi")]).await;
    let agent = client(Openai::new(&url, "tiny", OpenaiOptions::default()).unwrap());
    assert_eq!(task(&agent.send("hello").await.unwrap()).state(), TaskState::Completed);
    assert!(requests.body(0).get("tools").is_none());
    assert_eq!(requests.messages(1)[2].1, "Error: there is no tool ask_user.");
}

#[tokio::test]
async fn calls_wait_for_their_approval() {
    let approve = |approve: bool| Part::data(&json!({ "approve": approve })).unwrap();
    let declined = "Error: the user has declined this call.";
    for (part, executed, result, note) in [
        (Part::text("Yes."), 1, "5", None),
        (approve(true), 1, "5", None),
        (Part::text("no"), 0, declined, None),
        (approve(false), 0, declined, None),
        (Part::text("Use 4 instead."), 0, declined, Some("Use 4 instead.")),
    ] {
        let approval = Approval::Tools(["add".to_owned()].into());
        let (agent, requests, calls) = with_tools(vec![add(), answer("Done")], approval).await;
        let asked = task(&agent.send("2 + 3?").await.unwrap());
        let question = "The model wants to call add with {\"a\":2,\"b\":3}. Answer yes or no.";
        assert_eq!((asked.state(), status_text(&asked).as_str()), (TaskState::InputRequired, question));
        let expected = json!({ "toolCall": { "id": "c1", "name": "add", "arguments": { "a": 2, "b": 3 } } });
        assert_eq!(metadata(&asked), expected);
        assert_eq!(calls.lock().unwrap().len(), 0);
        let done = task(&agent.send(reply(&asked, part.clone())).await.unwrap());
        assert_eq!((done.state(), output(&done).as_str()), (TaskState::Completed, "Let me see.\n\nDone"), "{part:?}");
        assert_eq!((done.artifacts.len(), calls.lock().unwrap().len()), (1, executed), "{part:?}");
        let messages = requests.messages(1);
        let mut expected = vec![
            ("user".to_owned(), json!("2 + 3?")),
            ("assistant".to_owned(), json!("Let me see.")),
            ("tool".to_owned(), json!(result)),
        ];
        expected.extend(note.map(|note| ("user".to_owned(), json!(note))));
        assert_eq!(messages, expected, "{part:?}");
    }
}

/// Configuration file with keys and prompts in files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_that_waits_for_its_approval_survives_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let ((api, requests), (mcp, calls)) = (endpoint(vec![add(), answer("Done")]).await, mcp_server().await);
    let (key, system) = (file("key", "sesame\n"), file("system", "Be brief."));
    let store = directory.path().join("a2a.db").display().to_string();
    let config = format!(
        "store = 'sqlite:{store}'\n[openai]\nurl = '{api}'\nmodel = 'tiny'\nkey = {{ file = '{key}' }}\nsystem = {{ file = '{system}' }}\n\
         [[openai.mcp]]\nname = 'math'\nurl = '{mcp}'\napprove = 'all'\n"
    );
    let config = file("a2a.toml", &config);
    let serve = async || {
        let mut command = a2a(&["serve", "--listen", "127.0.0.1:0", "--config", &config, "--log-filter", "error"]);
        command.env_remove("A2A_STORE");
        started(command).await
    };
    let (mut server, url) = serve().await;
    let agent = Client::connect(&url).await.unwrap();
    assert_eq!((agent.card().name.as_str(), agent.card().skills.len()), ("tiny", 2));
    let asked = task(&agent.send("2 + 3?").await.unwrap());
    assert_eq!((asked.state(), calls.lock().unwrap().len()), (TaskState::InputRequired, 0));
    signal(&server, "-KILL");
    server.wait().await.unwrap();
    let (_server, url) = serve().await;
    let done = task(&Client::connect(&url).await.unwrap().send(reply(&asked, Part::text("yes"))).await.unwrap());
    assert_eq!((done.state(), output(&done).as_str()), (TaskState::Completed, "Let me see.\n\nDone"));
    assert_eq!(calls.lock().unwrap().len(), 1);
    let roles: Vec<_> = requests.messages(1).into_iter().map(|(role, _)| role).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool"]);
    assert_eq!(requests.0.lock().unwrap()[1].0[header::AUTHORIZATION], "Bearer sesame");
}

#[tokio::test]
async fn incomplete_configuration_is_rejected_before_the_server_starts() {
    let url = "http://127.0.0.1:1/v1";
    for (arguments, expected) in [
        (&["--openai", url][..], "openai.model: is missing"),
        (&["--openai-ask"], "openai.url, which is not set"),
        (&["--openai", url, "--upstream", url], "several of exec.command, http.url, openai.url and upstream.url"),
        (&["--openai", url, "--model", "m", "--openai-parameters", "{ model = 'x' }"], "`model` is set by the agent"),
        (&["--openai", url, "--model", "m", "--openai-mcp", "[{ name = 'a', command = ['/no'] }]"], "(openai.mcp)"),
    ] {
        let mut command = a2a(&["serve", "--listen", "127.0.0.1:0"]);
        command.args(arguments);
        let done = finished(command).await;
        let text = String::from_utf8(done.stderr).unwrap();
        assert!(!done.status.success() && text.contains(expected), "{arguments:?}: {text}");
    }
}

#[tokio::test]
async fn names_of_tools_and_approvals_are_checked_at_the_start() {
    let (url, _) = endpoint(vec![answer("Hi")]).await;
    let ((first, _), (second, _)) = (mcp_server().await, mcp_server().await);
    let agent = || Openai::new(&url, "tiny", OpenaiOptions::default()).unwrap();
    let server = |name: &str, url: &str| McpServer::new(name, McpTransport::Url(url.to_owned(), None));
    let both = agent().with_mcp(vec![server("one", &first), server("two", &second)]).await.unwrap();
    let skills = both.card().skills;
    assert_eq!((skills[0].description.as_str(), &*skills[0].tags), ("Does add.", &["tool".to_owned()][..]));
    let ids: Vec<_> = skills.into_iter().map(|skill| skill.id).collect();
    assert_eq!(ids, ["one_add", "one_fail", "two_add", "two_fail"]);
    let misspelled = server("one", &first).approval(Approval::Tools(["ad".to_owned()].into()));
    let error = agent().with_mcp(vec![misspelled]).await.unwrap_err().to_string();
    assert_eq!(error, "one: approve: there is no tool `ad`; the server has add, fail");
}

/// MCP server over stdio that exits in the middle of its first call, after which it has the file `$STARTED`.
#[cfg(unix)]
const STDIO_SERVER: &str = r#"
while read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case "$line" in
    *'"initialize"'*) result='{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}' ;;
    *'"tools/list"'*) result='{"tools":[{"name":"greet","inputSchema":{"type":"object"}}]}' ;;
    *'"tools/call"'*)
      test -e "$STARTED" || { touch "$STARTED"; exit 1; }
      result='{"content":[{"type":"text","text":"hello"}]}' ;;
    *) continue ;;
  esac
  echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":$result}"
done
"#;

/// Ends after the first call, or has a result of a million numbers.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_that_exits_or_sends_too_much_is_started_again() {
    const NUMBERS: &str = r#"printf '{"jsonrpc":"2.0","id":%s,"result":{"content":[],"structuredContent":{"n":[0' "$id"
        yes ,0 | head -n 1000000 | tr -d '\n'
        echo ']}}}'
        continue;"#;
    for script in [STDIO_SERVER.to_owned(), STDIO_SERVER.replace("exit 1;", NUMBERS)] {
        second_call_succeeds(&script).await;
    }
}

#[cfg(unix)]
async fn second_call_succeeds(script: &str) {
    let directory = tempfile::tempdir().unwrap();
    let greet = |id: &str| stream(&[call(id, "greet", &json!({})), finish("tool_calls")]);
    let (url, requests) = endpoint(vec![greet("c1"), greet("c2"), answer("Done")]).await;
    let words = ["sh", "-c", script].map(str::to_owned).to_vec();
    let env = [("STARTED".to_owned(), directory.path().join("started").display().to_string())].into();
    let server = McpServer::new("greeter", McpTransport::Command(words, env)).timeout(Duration::from_secs(30));
    let agent = Openai::new(&url, "tiny", OpenaiOptions::default()).unwrap().with_mcp(vec![server]).await.unwrap();
    assert_eq!(task(&client(agent).send("Greet!").await.unwrap()).state(), TaskState::Completed);
    let results = requests.messages(2).into_iter().filter(|(role, _)| role == "tool");
    let results: Vec<_> = results.map(|(_, content)| content).collect();
    assert_eq!(results, ["Error: the call of greet failed.", "hello"]);
}

/// A command that hangs, or that floods its output, is ended, and started again for the next call.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_that_hangs_or_floods_is_started_again() {
    const NOTIFICATION: &str =
        r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}"#;
    let greet = |id: &str| stream(&[call(id, "greet", &json!({})), finish("tool_calls")]);
    for (misbehavior, result) in [
        ("sleep 1000".to_owned(), "Error: greet did not respond in time."),
        (format!("while :; do echo '{NOTIFICATION}'; done"), "Error: the call of greet failed."),
        ("yes".to_owned(), "Error: the call of greet failed."),
        ("tr '\\0' x </dev/zero".to_owned(), "Error: the call of greet failed."),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let started = directory.path().join("started");
        let (url, requests) = endpoint(vec![greet("c1"), greet("c2"), answer("Done")]).await;
        let script =
            STDIO_SERVER.replace(r#"touch "$STARTED"; exit 1"#, &format!(r#"echo $$ >"$STARTED"; {misbehavior}"#));
        let words = ["sh".to_owned(), "-c".to_owned(), script].to_vec();
        let env = [("STARTED".to_owned(), started.display().to_string())].into();
        let server = McpServer::new("greeter", McpTransport::Command(words, env)).timeout(Duration::from_secs(5));
        let server = server.guard(Some(env!("CARGO_BIN_EXE_a2a").into()));
        let agent = Openai::new(&url, "tiny", OpenaiOptions::default()).unwrap().with_mcp(vec![server]).await.unwrap();
        assert_eq!(task(&client(agent).send("Greet!").await.unwrap()).state(), TaskState::Completed);
        let results = requests.messages(2).into_iter().filter(|(role, _)| role == "tool");
        assert_eq!(results.map(|(_, content)| content).collect::<Vec<_>>(), [result, "hello"], "{misbehavior}");
        let id = std::fs::read_to_string(started).unwrap();
        eventually("the first process is ended", || !is_running(&id)).await;
    }
}

/// A session over HTTP in which the server does not respond any more is replaced.
#[tokio::test]
async fn session_that_hangs_is_replaced() {
    let sessions = Arc::new(Mutex::new(0));
    let mcp = serve_mcp(move |request: Value| {
        let sessions = Arc::clone(&sessions);
        async move {
            let method = request["method"].as_str().unwrap();
            *sessions.lock().unwrap() += u32::from(method == "initialize");
            if *sessions.lock().unwrap() == 1 && matches!(method, "tools/call" | "ping") {
                return std::future::pending().await;
            }
            mcp_result(&request, &Mutex::default())
        }
    });
    let mcp = mcp.await;
    let (url, requests) = endpoint(vec![add(), add(), answer("5")]).await;
    let server = McpServer::new("math", McpTransport::Url(mcp, None)).timeout(Duration::from_secs(2));
    let agent = Openai::new(&url, "tiny", OpenaiOptions::default()).unwrap().with_mcp(vec![server]).await.unwrap();
    assert_eq!(task(&client(agent).send("2 + 3?").await.unwrap()).state(), TaskState::Completed);
    let results = requests.messages(2).into_iter().filter(|(role, _)| role == "tool");
    assert_eq!(results.map(|(_, content)| content).collect::<Vec<_>>(), ["Error: add did not respond in time.", "5"]);
}

/// Hidden characters of a server are removed from what a model and a person see. A tool without a name is refused.
#[cfg(unix)]
#[tokio::test]
async fn names_and_descriptions_of_tools_are_checked() {
    let (url, _) = endpoint(vec![answer("Hi")]).await;
    let connect = async |tool: &str| {
        let script = STDIO_SERVER.replace(r#""name":"greet""#, tool);
        let server = McpServer::new(
            "greeter",
            McpTransport::Command(["sh", "-c", &script].map(str::to_owned).to_vec(), [].into()),
        );
        Openai::new(&url, "tiny", OpenaiOptions::default()).unwrap().with_mcp(vec![server]).await
    };
    let agent = connect("\"name\":\"gre\u{202e}et\",\"description\":\"Greets \u{2066}loudly\u{7f}.\"").await.unwrap();
    let skill = agent.card().skills.remove(0);
    assert_eq!((&*skill.name, &*skill.description), ("gre_et", "Greets loudly."));
    let error = connect(r#""name":" ""#).await.unwrap_err().to_string();
    assert_eq!(error, "greeter: a tool has no name");
}

/// A command has time to end by itself when its session ends. Its program is looked for in its own `PATH`.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_ends_by_itself_after_its_session() {
    use std::os::unix::fs::PermissionsExt as _;

    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("greeter"), format!("#!/bin/sh\n{STDIO_SERVER}\nsleep 0.2\necho bye > \"$ENDED\"\n")).unwrap();
    std::fs::set_permissions(path("greeter"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let (url, _) = endpoint(vec![answer("Hi")]).await;
    for guard in [None, Some(env!("CARGO_BIN_EXE_a2a").into())] {
        let ended = path(if guard.is_some() { "guarded" } else { "unguarded" });
        let search = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap());
        let env = [("PATH".to_owned(), search), ("ENDED".to_owned(), ended.display().to_string())].into();
        let server = McpServer::new("greeter", McpTransport::Command(vec!["greeter".to_owned()], env)).guard(guard);
        let agent = Openai::new(&url, "tiny", OpenaiOptions::default()).unwrap().with_mcp(vec![server]).await.unwrap();
        assert_eq!(agent.card().skills.len(), 1);
        drop(agent);
        eventually("the command ends by itself", || std::fs::read_to_string(&ended).is_ok_and(|text| text == "bye\n"))
            .await;
    }
}

/// A command that has started another process and ignores the end of stdin and SIGTERM ends with the server, even if the server
/// is killed.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_server_leaves_no_process_of_an_mcp_server() {
    const SERVER: &str = r#"
trap '' TERM
sleep 1000 &
echo "$! $$" > "$PIDS.new" && mv "$PIDS.new" "$PIDS"
while read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case "$line" in
    *'"initialize"'*) result='{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}' ;;
    *'"tools/list"'*) result='{"tools":[{"name":"greet","inputSchema":{"type":"object"}}]}' ;;
    *) continue ;;
  esac
  echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":$result}"
done
wait
"#;
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(path("server.sh"), SERVER).unwrap();
    let (url, _) = endpoint(vec![answer("Hi")]).await;
    let servers = format!(
        "[{{ name = 'greeter', command = ['sh', '{}'], env = {{ PIDS = '{}' }} }}]",
        path("server.sh"),
        path("pids")
    );
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--openai", &url, "--model", "tiny", "--openai-mcp", &servers];
    let mut command = a2a(&arguments);
    command.env("PATH", std::env::var_os("PATH").unwrap());
    let (mut server, _) = started(command).await;
    let pids = std::fs::read_to_string(path("pids")).unwrap();
    let pids: Vec<String> = pids.split_whitespace().map(str::to_owned).collect();
    assert!(pids.len() == 2 && pids.iter().all(|id| is_running(id)), "{pids:?}");
    server.kill().await.unwrap();
    for id in pids {
        eventually("the process ends", || !is_running(&id)).await;
    }
}
