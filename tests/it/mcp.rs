//! MCP servers as others build them: sessions that end, older protocol versions, lists in pages, and servers that are away.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use a2a_service::{
    adapter::{McpServer, McpTransport, Openai, OpenaiOptions},
    agent::Agent,
    pb::v1::TaskState,
    testing::{ProbeOutcome, probe},
};
use axum::{Router, body::Body, extract::Request, response::Response, routing::any};
use futures_util::{StreamExt as _, stream};
use http::{StatusCode, header};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    net::TcpListener,
    time::{Instant, timeout},
};

#[cfg(unix)]
use crate::exec::eventually;
use crate::{
    bindings::{fetch, http, program},
    program::a2a,
};

const JSON: &str = "application/json";

/// Response of a scripted server: status, content type, session id and body.
type Reply = (u16, &'static str, Option<&'static str>, String);

/// Responses of a server to the requests with an id, by their method and session.
type Script = Arc<dyn Fn(&Value, &str) -> Reply + Send + Sync>;

/// Requests with an id that a server has received: methods, with what they are about, and sessions.
type Received = Arc<Mutex<Vec<String>>>;

fn router(script: Script) -> (Router, Received) {
    let received = Received::default();
    let log = Arc::clone(&received);
    let app = Router::new().route(
        "/mcp",
        any(move |request: Request| {
            let (script, log) = (Arc::clone(&script), Arc::clone(&log));
            async move {
                let empty = |status| Response::builder().status(status).body(Body::empty()).unwrap();
                if request.method() != http::Method::POST {
                    return empty(StatusCode::METHOD_NOT_ALLOWED);
                }
                let session = request.headers().get("mcp-session-id").map_or("-", |id| id.to_str().unwrap()).to_owned();
                let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
                let request: Value = serde_json::from_slice(&body).unwrap();
                if request.get("id").is_none() {
                    return empty(StatusCode::ACCEPTED);
                }
                let about = ["protocolVersion", "cursor", "name"].map(|name| request["params"][name].as_str());
                let about: Vec<&str> = about.into_iter().flatten().collect();
                let method = request["method"].as_str().unwrap();
                log.lock().unwrap().push(format!("{method} {} {session}", about.join(",")));
                let (status, media_type, session, body) = script(&request, &session);
                let mut response = Response::builder().status(status).header(header::CONTENT_TYPE, media_type);
                if let Some(session) = session {
                    response = response.header("mcp-session-id", session);
                }
                response.body(Body::from(body)).unwrap()
            }
        }),
    );
    (app, received)
}

/// Serves a script. Returns its URL, and the requests so far.
async fn serve(script: impl Fn(&Value, &str) -> Reply + Send + Sync + 'static) -> (String, Received) {
    let (app, received) = router(Arc::new(script));
    (format!("{}/mcp", program(app).await), received)
}

/// Usual response to a request.
fn usual(request: &Value) -> Reply {
    let result = match request["method"].as_str().unwrap() {
        "initialize" => json!({
            "protocolVersion": request["params"]["protocolVersion"],
            "capabilities": { "tools": {} },
            "serverInfo": { "name": "test", "version": "1" },
        }),
        "tools/list" => json!({ "tools": [tool("greet")] }),
        "tools/call" => json!({ "content": [{ "type": "text", "text": "hello" }] }),
        _ => json!({}),
    };
    result_of(request, &result)
}

fn tool(name: &str) -> Value {
    json!({ "name": name, "inputSchema": { "type": "object" } })
}

fn result_of(request: &Value, result: &Value) -> Reply {
    (200, JSON, None, json!({ "jsonrpc": "2.0", "id": request["id"], "result": result }).to_string())
}

/// Agent with the tools of a server. Its model calls `greet` once, and answers with the result.
async fn agent(server: McpServer) -> std::io::Result<Openai> {
    let completion = async |request: Request| {
        let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        let last = body["messages"].as_array().unwrap().last().unwrap();
        let message = if last["role"] == "tool" {
            json!({ "content": last["content"] })
        } else {
            json!({ "tool_calls": [{ "id": "c", "type": "function", "function": { "name": "greet", "arguments": "{}" } }] })
        };
        let choice = json!({ "finish_reason": "stop", "message": message });
        let body = json!({ "choices": [choice] }).to_string();
        Response::builder().header(header::CONTENT_TYPE, JSON).body(Body::from(body)).unwrap()
    };
    let url = program(Router::new().route("/chat/completions", any(completion))).await;
    Openai::new(&url, "tiny", OpenaiOptions::default()).unwrap().with_mcp(vec![server]).await
}

fn at(url: &str) -> McpServer {
    McpServer::new("files", McpTransport::Url(url.to_owned(), None))
}

async fn send(agent: Openai) -> ProbeOutcome {
    probe(agent).send("Greet!").await.unwrap()
}

fn calls(received: &Received) -> Vec<String> {
    received.lock().unwrap().iter().filter(|line| line.starts_with("tools/call")).cloned().collect()
}

/// A server that has forgotten its sessions gets a new one, and the call once more (C1).
#[tokio::test]
async fn forgotten_sessions_are_renewed() {
    let null = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}"#;
    let own = r#"{"jsonrpc":"2.0","id":ID,"error":{"code":-32600,"message":"Bad Request: Session not found"}}"#;
    let unread = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"Internal error"}}"#;
    let uninitialized =
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: Server not initialized"}}"#;
    let text =
        r#"{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"No valid session ID provided"}}"#;
    for (status, media_type, body) in [
        (400, JSON, null),
        (404, JSON, null),
        (400, JSON, text),
        (400, JSON, own),
        (404, JSON, own),
        (200, JSON, own),
        (404, JSON, unread),
        (400, JSON, uninitialized),
        (404, JSON, r#"{"error":"Not Found"}"#),
        (404, "text/plain", "Not Found"),
        (404, "text/html", "<html>"),
        (404, "text/plain", ""),
        (400, "text/plain", "Bad Request: No valid session ID provided"),
        (400, JSON, r#"{"error":"unknown Session"}"#),
        (200, JSON, null),
        (200, JSON, r#"{"jsonrpc":"2.0","id":ID,"error":{"code":-32001,"message":"Session not found"}}"#),
        (200, JSON, r#"{"jsonrpc":"2.0","id":ID,"result":null,"error":{"code":-32001,"message":"session expired"}}"#),
    ] {
        let opened = Mutex::new(0);
        let (url, received) = serve(move |request, session| {
            let mut opened = opened.lock().unwrap();
            if request["method"] == "initialize" {
                *opened += 1;
                let (status, media_type, _, body) = usual(request);
                return (status, media_type, Some(if *opened == 1 { "s1" } else { "s2" }), body);
            }
            if request["method"] == "tools/call" && session == "s1" {
                return (status, media_type, None, body.replace("ID", &request["id"].to_string()));
            }
            usual(request)
        })
        .await;
        let outcome = send(agent(at(&url)).await.unwrap()).await;
        assert_eq!((outcome.state(), outcome.text().as_str()), (TaskState::Completed, "hello"), "{status} {body}");
        assert_eq!(calls(&received), ["tools/call greet s1", "tools/call greet s2"], "{status} {body}");
    }
}

/// An error that says nothing about the session ends the call at once. The call is not repeated: the tool may have run.
#[tokio::test]
async fn other_http_errors_end_the_call() {
    let null = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"Internal error"}}"#;
    let own = r#"{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"`path` is missing"}}"#;
    let taken = r#"{"jsonrpc":"2.0","id":ID,"error":{"code":-32000,"message":"payment already taken"}}"#;
    let with_bom =
        "\u{feff}{\"jsonrpc\":\"2.0\",\"id\":ID,\"error\":{\"code\":-32000,\"message\":\"payment already taken\"}}";
    let event = "data: {\"jsonrpc\":\"2.0\",\"id\":ID,\"error\":{\"code\":-32000,\"message\":\"taken\"}}\n\n";
    let half = r#"{"jsonrpc":"2.0","id":ID,"error":{"code":-32000,"message":"taken \ud83d"}}"#;
    let broken = r#"{"jsonrpc":"2.0","id":ID,"error":{"code":-32000,"message":"taken \ud8"}}"#;
    let text_id = r#"{"jsonrpc":"2.0","id":"ID","error":{"code":-32000,"message":"payment already taken"}}"#;
    let of_tool = r#"{"jsonrpc":"2.0","id":ID,"error":{"code":-32000,"message":"checkout session already paid"}}"#;
    let parameter = r#"{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"session not found"}}"#;
    let result = r#"{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"session not found"}]}}"#;
    let failed = "Error: the call of greet failed.";
    for (status, media_type, session, body, expected) in [
        (400, JSON, Some("s1"), taken, "Error: payment already taken"),
        (404, JSON, Some("s1"), taken, "Error: payment already taken"),
        (200, JSON, Some("s1"), taken, "Error: payment already taken"),
        (404, JSON, Some("s1"), text_id, "Error: payment already taken"),
        (404, JSON, Some("s1"), with_bom, "Error: payment already taken"),
        (404, JSON, Some("s1"), half, "Error: taken \u{fffd}"),
        (404, JSON, Some("s1"), broken, failed),
        (404, "text/event-stream", Some("s1"), event, failed),
        (404, JSON, Some("s1"), own, "Error: `path` is missing"),
        (400, JSON, Some("s1"), of_tool, "Error: checkout session already paid"),
        (200, JSON, Some("s1"), of_tool, "Error: checkout session already paid"),
        (404, JSON, Some("s1"), parameter, "Error: session not found"),
        (200, JSON, Some("s1"), parameter, "Error: session not found"),
        (200, JSON, Some("s1"), result, "session not found"),
        (404, JSON, Some("s1"), result, failed),
        (400, JSON, Some("s1"), result, failed),
        (404, JSON, Some("s1"), r#"{"id":ID,"error":"payment already taken"}"#, failed),
        (404, JSON, Some("s1"), r#"[{"id":ID,"error":{"message":"payment already taken"}}]"#, failed),
        (400, JSON, Some("s1"), r#"{"error":"the record was written"}"#, failed),
        (400, JSON, Some("s1"), null, "Error: Internal error"),
        (400, "text/html", Some("s1"), "", failed),
        (400, "text/plain", Some("s1"), "bad", failed),
        (500, JSON, Some("s1"), null, "Error: Internal error"),
        (200, JSON, Some("s1"), null, "Error: Internal error"),
        (503, "text/plain", Some("s1"), "busy", "Error: the call of greet failed."),
        (401, JSON, Some("s1"), "", "Error: the call of greet failed."),
        (400, JSON, Some("s1"), own, "Error: `path` is missing"),
        (400, JSON, None, null, "Error: Internal error"),
        (404, "text/plain", None, "", "Error: the call of greet failed."),
        (200, "text/html", Some("s1"), "<html>", "Error: the call of greet failed."),
        (200, JSON, Some("s1"), "{", "Error: the call of greet failed."),
    ] {
        let (url, received) = serve(move |request, _| match request["method"].as_str().unwrap() {
            "initialize" => {
                let (status, media_type, _, body) = usual(request);
                (status, media_type, session, body)
            }
            "tools/call" => (status, media_type, None, body.replace("ID", &request["id"].to_string())),
            _ => usual(request),
        })
        .await;
        let agent = agent(at(&url)).await.unwrap();
        let started = Instant::now();
        let outcome = send(agent).await;
        assert_eq!((outcome.state(), outcome.text().as_str()), (TaskState::Completed, expected), "{status} {body}");
        assert!(started.elapsed() < Duration::from_secs(20), "{status} {body}: it does not wait for its time limit");
        assert_eq!(calls(&received).len(), 1, "{status} {body}");
    }
}

/// A session that is refused again fails the call.
#[tokio::test]
async fn calls_are_repeated_once() {
    let (url, received) = serve(|request, _| match request["method"].as_str().unwrap() {
        "initialize" => {
            let (status, media_type, _, body) = usual(request);
            (status, media_type, Some("s1"), body)
        }
        "tools/call" => (400, JSON, None, r#"{"error":"Session not found"}"#.to_owned()),
        _ => usual(request),
    })
    .await;
    let outcome = send(agent(at(&url)).await.unwrap()).await;
    assert_eq!(outcome.text(), "Error: the call of greet failed.");
    assert_eq!(calls(&received).len(), 2);
}

/// `error` that is null counts as absent beside a result, from `initialize` on: in responses and events.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn null_errors_count_as_absent() {
    let with_null = |body: &str| body.replacen('{', r#"{"error":null,"#, 1);
    for is_stream in [false, true] {
        let (url, received) = serve(move |request, _| {
            let (status, media_type, session, body) = usual(request);
            match with_null(&body) {
                body if is_stream => (status, "text/event-stream", session, format!("data: {body}\n\n")),
                body => (status, media_type, session, body),
            }
        })
        .await;
        assert_eq!(send(agent(at(&url)).await.unwrap()).await.text(), "hello", "{is_stream}");
        assert_eq!(calls(&received).len(), 1, "{is_stream}");
    }
}

/// A stream of notifications that ends at once is opened again after a second, also if the server asks for no delay.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "the streams of a time are counted")]
async fn ended_streams_are_not_opened_again_at_once() {
    // A body that breaks off is an error, which has no `retry`.
    for is_broken in [false, true] {
        let (app, _) = router(Arc::new(|request, _| {
            let (status, media_type, _, body) = usual(request);
            (status, media_type, Some("s1"), body)
        }));
        let opened = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&opened);
        let ended = move |request: Request, next: axum::middleware::Next| {
            let count = Arc::clone(&count);
            async move {
                if request.method() != http::Method::GET {
                    return next.run(request).await;
                }
                count.fetch_add(1, Ordering::Relaxed);
                let event = async { Ok(bytes::Bytes::from_static(b"id: 1\nretry: 0\ndata:\n\n")) };
                let end = async move {
                    // After the event has arrived.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    if is_broken { Err(std::io::Error::other("broken")) } else { Ok(bytes::Bytes::new()) }
                };
                let body = Body::from_stream(stream::once(event).chain(stream::once(end)));
                Response::builder().header(header::CONTENT_TYPE, "text/event-stream").body(body).unwrap()
            }
        };
        let url = format!("{}/mcp", program(app.layer(axum::middleware::from_fn(ended))).await);
        let agent = agent(at(&url)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(2500)).await;
        let count = opened.load(Ordering::Relaxed);
        assert!((2..=4).contains(&count), "{is_broken}: {count}");
        assert_eq!(send(agent).await.text(), "hello");
    }
}

/// Events of a server arrive in pieces, with any line end.
#[tokio::test]
async fn results_as_events_are_read() {
    for (before, end) in [
        ("", "\n\n"),
        ("\u{feff}", "\r\n\r\n"),
        (": ping\n\nevent: message\nid: 1\n", "\r\r"),
        ("retry: 5\n", "\n\r\n"),
        ("retry: soon\n", "\n\n"),
        ("foo: x\n", "\n\n"),
        ("foo\n", "\n\n"),
        ("data\n\n", "\n\n"),
        ("id: 1\ndata: \n\nid: 2\nid: 3\n", "\n\n"),
        ("event: ping\ndata: x\n\n", "\n\n"),
        ("event: x\nevent: y\n", "\n\n"),
    ] {
        let between = before.trim_start_matches('\u{feff}');
        let (url, _) = serve(move |request, _| {
            let (status, media_type, session, body) = usual(request);
            if request["method"] != "tools/call" {
                return (status, media_type, session, body);
            }
            let notification =
                r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}"#;
            (
                200,
                "text/event-stream; charset=utf-8",
                None,
                format!("{before}data: {notification}{end}{between}data: {body}{end}"),
            )
        })
        .await;
        assert_eq!(send(agent(at(&url)).await.unwrap()).await.text(), "hello", "{before:?} {end:?}");
    }
    // The last event without its empty line.
    let (url, _) = serve(|request, _| {
        let (status, media_type, session, body) = usual(request);
        let body = if request["method"] == "tools/call" { format!("data: {body}") } else { body };
        (status, if body.starts_with("data") { "text/event-stream" } else { media_type }, session, body)
    })
    .await;
    assert_eq!(send(agent(at(&url)).await.unwrap()).await.text(), "hello");
    let (url, _) = serve(|request, _| match request["method"].as_str().unwrap() {
        "tools/call" => (200, "text/event-stream", None, format!("data: {}\n\n", "x".repeat(3 << 20))),
        _ => usual(request),
    })
    .await;
    let outcome = send(agent(at(&url).timeout(Duration::from_secs(2))).await.unwrap()).await;
    assert!(outcome.text().starts_with("Error: "), "{}", outcome.text());
}

/// A server that refuses our protocol version gets the newest one that both know, and one that answers with an older version is
/// taken at its word (C2).
#[tokio::test]
async fn protocol_versions_are_negotiated() {
    let refusal = |request: &Value, code: i32, data: &Value| {
        let error = json!({ "code": code, "message": "Unsupported protocol version", "data": data });
        json!({ "jsonrpc": "2.0", "id": request["id"], "error": error }).to_string()
    };
    for (status, supported, expected) in [
        (200, json!(["2025-06-18"]), "2025-06-18"),
        (400, json!(["2024-11-05", "2025-03-26", "1999-01-01"]), "2025-03-26"),
    ] {
        let (url, received) = serve(move |request, _| {
            let is_known = request["params"]["protocolVersion"] == expected;
            if request["method"] == "initialize" && !is_known {
                let data = json!({ "supported": supported, "requested": request["params"]["protocolVersion"] });
                return (status, JSON, None, refusal(request, -32602, &data));
            }
            usual(request)
        })
        .await;
        assert_eq!(send(agent(at(&url)).await.unwrap()).await.text(), "hello", "{expected}");
        let received = received.lock().unwrap();
        assert_eq!(received[..2], ["initialize 2025-11-25 -".to_owned(), format!("initialize {expected} -")]);
    }
    for version in ["2025-06-18", "2024-11-05", "2024-10-07"] {
        let (url, received) = serve(move |request, _| match request["method"].as_str().unwrap() {
            "initialize" => {
                let identity = json!({ "name": "test", "version": "1" });
                let result = json!({ "protocolVersion": version, "capabilities": {}, "serverInfo": identity });
                result_of(request, &result)
            }
            _ => usual(request),
        })
        .await;
        assert_eq!(send(agent(at(&url)).await.unwrap()).await.text(), "hello", "{version}");
        assert_eq!(received.lock().unwrap().iter().filter(|line| line.starts_with("initialize")).count(), 1);
    }
    // Errors that name versions in a text, or none: then the next older one is tried.
    for (status, media_type, error, tried) in [
        (
            200,
            JSON,
            r#"{"code":-32602,"message":"Unsupported protocol version: VERSION"}"#,
            &["2025-06-18", "2025-03-26"][..],
        ),
        (
            200,
            JSON,
            r#"{"code":-32602,"message":"Unsupported protocol version","data":{"supported":"2025-03-26"}}"#,
            &["2025-03-26"],
        ),
        (
            400,
            "text/plain",
            "Bad Request: Unsupported protocol version (supported versions: 2025-03-26)",
            &["2025-03-26"],
        ),
    ] {
        let (url, received) = serve(move |request, _| {
            let version = request["params"]["protocolVersion"].as_str().unwrap_or_default();
            if request["method"] != "initialize" || version == "2025-03-26" {
                return usual(request);
            }
            let error = error.replace("VERSION", version);
            let body = format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, request["id"]);
            (status, media_type, None, if media_type == JSON { body } else { error })
        })
        .await;
        assert_eq!(send(agent(at(&url)).await.unwrap()).await.text(), "hello", "{error}");
        let received = received.lock().unwrap();
        let expected: Vec<_> = tried.iter().map(|version| format!("initialize {version} -")).collect();
        assert_eq!(received[1..=tried.len()], expected, "{error}");
    }
    // No version in common: the server is not available, and is asked once more only at the next try.
    let (url, received) =
        serve(move |request, _| (200, JSON, None, refusal(request, -32602, &json!({ "supported": ["1999-01-01"] }))))
            .await;
    let agent = agent(at(&url)).await.unwrap();
    let states = agent.mcp_states();
    assert!(states[0].1.as_ref().unwrap_err().contains("Unsupported protocol version"), "{states:?}");
    assert_eq!(received.lock().unwrap().iter().filter(|line| line.starts_with("initialize")).count(), 1);
    assert_eq!(send(agent).await.state(), TaskState::Failed);
}

/// Commands negotiate too: each attempt starts the command. An `error` that is null counts as absent in their lines too.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_negotiate_protocol_versions() {
    const SERVER: &str = r#"
while read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case "$line" in
    *'"protocolVersion":"2025-03-26"'*) reply='"result":{"protocolVersion":"2025-03-26","capabilities":{},"serverInfo":{"name":"s","version":"1"}}' ;;
    *'"initialize"'*) reply='"error":{"code":-32602,"message":"Unsupported protocol version","data":{"supported":["2025-03-26"]}}' ;;
    *'"tools/list"'*) reply='"result":{"tools":[{"name":"greet","inputSchema":{"type":"object"}}]}' ;;
    *'"tools/call"'*) reply='"result":{"content":[{"type":"text","text":"hello"}]}' ;;
    *) continue ;;
  esac
  case "$reply" in *'"result"'*) reply='"error":null,'"$reply" ;; esac
  printf 'Listening\r\n{"jsonrpc":"2.0","id":%s,%s}\r\n' "$id" "$reply"
done
"#;
    let words = ["sh", "-c", SERVER].map(str::to_owned).to_vec();
    let server = McpServer::new("files", McpTransport::Command(words, BTreeMap::new()));
    assert_eq!(send(agent(server).await.unwrap()).await.text(), "hello");
}

/// Lines of a command with a mark or half a character are messages, a broken one fails its call at once, and others are output.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_lines_of_commands_fail_their_calls() {
    const SERVER: &str = r#"
while read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case "$line" in
    *'"initialize"'*) reply='"result":{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"s","version":"1"}}}' ;;
    *'"tools/list"'*) reply='"result":{"tools":[{"name":"greet","inputSchema":{"type":"object"}}]}}' ;;
    *'"tools/call"'*) reply="$1" ;;
    *) continue ;;
  esac
  printf '\357\273\277{"jsonrpc":"2.0","id":%s,%s\n{"level":"info"}\n' "$id" "$reply"
done
"#;
    let started = Instant::now();
    for (reply, expected) in [
        (r#""result":{"content":[{"type":"text","text":"hello \ud83d"}]}}"#, "hello \u{fffd}"),
        (r#""result":{"content":[{"type":"text","text":"hel"#, "Error: the server sent a broken message: "),
        (r#""error":"boom\u0007"}"#, "Error: the server sent a broken message: "),
    ] {
        let words = ["sh", "-c", SERVER, "server", reply].map(str::to_owned).to_vec();
        let server = McpServer::new("files", McpTransport::Command(words, BTreeMap::new()));
        let text = send(agent(server.timeout(Duration::from_mins(1))).await.unwrap()).await.text();
        assert!(text.starts_with(expected) && text.len() < 400, "{reply}: {text}");
        assert_eq!(text.contains("\"jsonrpc\""), expected.starts_with("Error"), "{text}");
    }
    assert!(started.elapsed() < Duration::from_secs(30), "no call waits for its time limit");
}

/// Of tools with one name, the first one is used.
#[tokio::test]
async fn equal_names_of_tools_do_not_stop_the_start() {
    let (url, _) = serve(|request, _| match request["method"].as_str().unwrap() {
        "tools/list" => {
            let mut second = tool("greet");
            second["description"] = "second".into();
            result_of(request, &json!({ "tools": [tool("greet"), second, tool("a.b"), tool("a_b"), tool("c")] }))
        }
        _ => usual(request),
    })
    .await;
    let agent = agent(at(&url)).await.unwrap();
    let skills = agent.card().skills;
    assert_eq!(skills.iter().map(|skill| &*skill.id).collect::<Vec<_>>(), ["greet", "a_b", "c"]);
    assert_eq!(skills[0].description, "");
    assert_eq!(send(agent).await.text(), "hello");
}

/// Half a character in the result of a call is U+FFFD.
#[tokio::test]
async fn halves_of_characters_in_results_are_replaced() {
    for is_stream in [false, true] {
        let (url, _) = serve(move |request, _| {
            let (status, media_type, session, body) = usual(request);
            let body = body.replace("hello", r"hello \ud83d");
            if is_stream && request["method"] == "tools/call" {
                return (status, "text/event-stream", session, format!("data: {body}\n\n"));
            }
            (status, media_type, session, body)
        })
        .await;
        assert_eq!(send(agent(at(&url)).await.unwrap()).await.text(), "hello \u{fffd}", "{is_stream}");
    }
}

/// A tool or a content that can't be read leaves the others.
#[tokio::test]
async fn unreadable_tools_and_contents_are_left_out() {
    let text = json!({ "type": "text", "text": "hello" });
    for (tools, content, expected) in [
        (json!([{ "name": "bad" }, tool("greet"), { "name": "b", "inputSchema": null }]), json!([text]), "hello"),
        (
            json!([tool("greet"), 5]),
            json!([{ "type": "weird", "x": 1 }, text]),
            "[a content of type \"weird\" can't be shown]\nhello",
        ),
        (json!([tool("greet")]), text.clone(), "hello"),
        (json!([tool("greet")]), json!("hello"), "hello"),
    ] {
        for is_stream in [false, true] {
            let (tools, returned) = (tools.clone(), content.clone());
            let (url, _) = serve(move |request, _| {
                let (status, media_type, session, body) = match request["method"].as_str().unwrap() {
                    "tools/list" => result_of(request, &json!({ "tools": tools })),
                    "tools/call" => result_of(request, &json!({ "content": returned })),
                    _ => usual(request),
                };
                if is_stream {
                    return (status, "text/event-stream", session, format!("data: {body}\n\n"));
                }
                (status, media_type, session, body)
            })
            .await;
            let agent = agent(at(&url)).await.unwrap();
            assert_eq!(agent.mcp_states()[0].1, Ok(1), "{content}");
            assert_eq!(send(agent).await.text(), expected, "{content} {is_stream}");
        }
    }
    let (url, _) = serve(|request, _| match request["method"].as_str().unwrap() {
        "tools/list" => result_of(request, &json!({ "tools": null })),
        _ => usual(request),
    })
    .await;
    assert_eq!(agent(at(&url)).await.unwrap().mcp_states()[0].1, Ok(0));
}

/// A list ends at a page that the server refuses. A cursor may be a number.
#[tokio::test]
async fn refused_pages_end_a_list() {
    for (cursor, count) in [(json!(5), 2), (json!("x"), 1)] {
        let (url, received) = serve(move |request, _| {
            if request["method"] != "tools/list" {
                return usual(request);
            }
            match request["params"]["cursor"].as_str() {
                None => result_of(request, &json!({ "tools": [tool("greet")], "nextCursor": cursor })),
                Some("5") => result_of(request, &json!({ "tools": [tool("two")] })),
                Some(_) => {
                    let error = json!({ "code": -32602, "message": "Invalid cursor" });
                    let body = json!({ "jsonrpc": "2.0", "id": request["id"], "error": error });
                    (200, JSON, None, body.to_string())
                }
            }
        })
        .await;
        let agent = agent(at(&url)).await.unwrap();
        assert_eq!(agent.mcp_states()[0].1, Ok(count), "{:?}", received.lock().unwrap());
        assert_eq!(send(agent).await.text(), "hello");
    }
}

/// A server tells in an event that it has forgotten the session.
#[tokio::test]
async fn sessions_forgotten_in_an_event_are_renewed() {
    for (id, message, expected) in [
        ("null", "Session not found", &["s1", "s2"][..]),
        ("ID", "Session not found", &["s1", "s2"]),
        ("ID", "checkout session already paid", &["s1"]),
    ] {
        let opened = Mutex::new(0);
        let (url, received) = serve(move |request, session| {
            let mut opened = opened.lock().unwrap();
            if request["method"] == "initialize" {
                *opened += 1;
                let (status, media_type, _, body) = usual(request);
                return (status, media_type, Some(if *opened == 1 { "s1" } else { "s2" }), body);
            }
            let (_, _, _, mut body) = usual(request);
            if request["method"] == "tools/call" && session == "s1" {
                let id = id.replace("ID", &request["id"].to_string());
                body = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32001,"message":"{message}"}}}}"#);
            }
            (200, "text/event-stream", None, format!(": ping\n\ndata: {body}\n\n"))
        })
        .await;
        let outcome = send(agent(at(&url)).await.unwrap()).await;
        let text = if expected.len() == 2 { "hello" } else { "Error: checkout session already paid" };
        assert_eq!((outcome.state(), &*outcome.text()), (TaskState::Completed, text), "{id} {message}");
        let expected: Vec<_> = expected.iter().map(|session| format!("tools/call greet {session}")).collect();
        assert_eq!(calls(&received), expected, "{id} {message}");
    }
}

/// Cursors have any value, also an empty one. A list ends at a cursor that was sent before (C3).
#[tokio::test]
async fn cursors_are_followed_until_one_is_repeated() {
    for (next, names, pages) in [
        (&[Some(""), None][..], &["greet", "page1"][..], &["tools/list  -", "tools/list  -"][..]),
        (
            &[Some("a"), Some(""), Some("a")],
            &["greet", "page1", "page2"],
            &["tools/list  -", "tools/list a -", "tools/list  -"],
        ),
        (&[Some("0"), Some("0")], &["greet", "page1"], &["tools/list  -", "tools/list 0 -"]),
    ] {
        let count = Mutex::new(0);
        let (url, received) = serve(move |request, _| {
            if request["method"] != "tools/list" {
                return usual(request);
            }
            let mut count = count.lock().unwrap();
            let name = if *count == 0 { "greet".to_owned() } else { format!("page{count}") };
            let mut result = json!({ "tools": [tool(&name)] });
            if let Some(cursor) = next[*count] {
                result["nextCursor"] = cursor.into();
            }
            *count += 1;
            result_of(request, &result)
        })
        .await;
        let agent = agent(at(&url)).await.unwrap();
        let found: Vec<_> = agent.card().skills.into_iter().map(|skill| skill.id).collect();
        assert_eq!(found, names);
        let received = received.lock().unwrap();
        let lists: Vec<_> = received.iter().filter(|line| line.starts_with("tools/list")).collect();
        assert_eq!(lists, pages);
    }
    // A server without cursors sends its only page again.
    let (url, _) = serve(|request, _| match request["method"].as_str().unwrap() {
        "tools/list" => result_of(request, &json!({ "tools": [tool("greet")], "nextCursor": "" })),
        _ => usual(request),
    })
    .await;
    assert_eq!(send(agent(at(&url)).await.unwrap()).await.text(), "hello");
    // Endless lists are bounded.
    let count = Mutex::new(0);
    let (url, received) = serve(move |request, _| {
        let mut count = count.lock().unwrap();
        *count += 1;
        match request["method"].as_str().unwrap() {
            "tools/list" => result_of(request, &json!({ "tools": [], "nextCursor": count.to_string() })),
            _ => usual(request),
        }
    })
    .await;
    let states = agent(at(&url)).await.unwrap().mcp_states();
    assert!(states[0].1.as_ref().unwrap_err().contains("16 pages"), "{states:?}");
    assert_eq!(received.lock().unwrap().iter().filter(|line| line.starts_with("tools/list")).count(), 16);
}

/// A server that is away does not keep the agent from starting. Its turns fail with the name of the server, until it is there.
#[cfg(unix)]
#[tokio::test]
async fn turns_fail_while_a_server_is_away() {
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let agent = agent(at(&format!("http://{address}/mcp"))).await.unwrap();
    assert!(agent.card().skills.is_empty());
    let outcome = send(agent.clone()).await;
    let expected = "The tools of the MCP server files are not available. Send the message again later.";
    assert_eq!((outcome.state(), outcome.status_text().as_str()), (TaskState::Failed, expected));
    let listener = TcpListener::bind(address).await.unwrap();
    let (app, _) = router(Arc::new(|request, _| usual(request)));
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    eventually("it is tried again", || agent.mcp_states()[0].1 == Ok(1)).await;
    assert_eq!(send(agent).await.text(), "hello");
}

/// A slow server delays a turn instead of the start.
#[tokio::test]
async fn turns_wait_for_slow_servers() {
    let (started, start) = tokio::sync::watch::channel(false);
    let (app, _) = router(Arc::new(|request, _| usual(request)));
    let slow = move |request: Request, next: axum::middleware::Next| {
        let mut start = start.clone();
        async move {
            _ = start.wait_for(|is_started| *is_started).await;
            next.run(request).await
        }
    };
    let url = format!("{}/mcp", program(app.layer(axum::middleware::from_fn(slow))).await);
    let agent = agent(at(&url)).await.unwrap();
    assert_eq!(agent.mcp_states()[0].1, Err("it has not responded yet".to_owned()));
    let turn = tokio::spawn(send(agent));
    tokio::task::yield_now().await;
    started.send(true).unwrap();
    assert_eq!(turn.await.unwrap().text(), "hello");
}

/// The program starts without its tool servers, says so, and is ready.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_starts_without_its_tool_servers() {
    let servers = "[{ name = 'files', url = 'http://127.0.0.1:1/mcp' }, { name = 'shell', command = ['/bin/false'] }]";
    let arguments = ["--openai", "http://127.0.0.1:1/v1", "--model", "tiny", "--openai-mcp", servers];
    let mut child = a2a(&[&["serve", "--listen", "127.0.0.1:0"][..], &arguments].concat()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut printed = Vec::new();
    while !printed.iter().any(|line: &String| line.starts_with("Ctrl-C")) {
        printed.push(timeout(Duration::from_secs(30), lines.next_line()).await.unwrap().unwrap().unwrap());
    }
    for name in ["files", "shell"] {
        let expected = format!("MCP server {name}: not available, turns fail until a retry succeeds: ");
        let reason = printed.iter().find_map(|line| line.strip_prefix(&expected)).unwrap();
        assert!(!reason.contains("::"), "the cause has no type of Rust: {reason}");
    }
    let url = printed[0].strip_prefix("listening on ").unwrap();
    assert_eq!(fetch(format!("{url}/readyz")).await.unwrap().status(), 200);
    let body = r#"{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"hi"}]}}"#;
    let reply = http().post(format!("{url}/message:send")).header(header::CONTENT_TYPE, JSON).body(body).send().await;
    let text = reply.unwrap().text().await.unwrap();
    assert!(text.contains("TASK_STATE_FAILED") && text.contains("The tools of the MCP server files"), "{text}");
}
