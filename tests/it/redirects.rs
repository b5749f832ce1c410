//! Redirects of models, HTTP endpoints, tool servers and A2A agents: followed within the origin, with 307 and 308.

use std::sync::{Arc, Mutex};

use a2a_service::{
    adapter::{HttpEndpoint, HttpOptions, McpServer, McpTransport, Openai, OpenaiOptions},
    agent::Agent,
    client::{Client, Retry},
    pb::v1::TaskState,
    server::Server,
};
use axum::{Router, body::Body, extract::Request, response::Response};
use http::{Method, StatusCode, header};
use serde_json::{Value, json};

use crate::{bindings::program, openai::mcp_result};

/// Paths and credentials of the requests that a server has received.
type Seen = Arc<Mutex<Vec<(String, String)>>>;

/// Response to a request below `/old/`: status and `Location`, in which `{path}` is the rest of its path.
#[derive(Clone)]
struct Redirect(StatusCode, String);

/// Serves `/new/…` and `/mcp/`, and redirects from `/old/…` and `/mcp`.
async fn serve(redirect: Redirect) -> (String, Seen) {
    let seen = Seen::default();
    let received = Arc::clone(&seen);
    let respond = move |request: Request| {
        let (Redirect(status, target), received) = (redirect.clone(), Arc::clone(&received));
        async move {
            let path = request.uri().path().to_owned();
            let credentials =
                request.headers().get(header::AUTHORIZATION).map(|value| value.to_str().unwrap().to_owned());
            received.lock().unwrap().push((path.clone(), credentials.unwrap_or_default()));
            let to = match path.as_str() {
                "/mcp" => Some(target.replace("new/{path}", "mcp/")),
                path => path.strip_prefix("/old/").map(|rest| target.replace("{path}", rest)),
            };
            match to {
                Some(to) => {
                    Response::builder().status(status).header(header::LOCATION, to).body(Body::empty()).unwrap()
                }
                None => answer(&path, request).await,
            }
        }
    };
    (program(Router::new().fallback(respond)).await, seen)
}

async fn answer(path: &str, request: Request) -> Response {
    let response = |media_type: &str, body: String| {
        Response::builder().header(header::CONTENT_TYPE, media_type).body(Body::from(body)).unwrap()
    };
    let status = |status| Response::builder().status(status).body(Body::empty()).unwrap();
    if request.method() != Method::POST {
        return status(StatusCode::METHOD_NOT_ALLOWED);
    }
    let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap();
    let task = json!({ "id": "t1", "contextId": "c1", "status": { "state": "TASK_STATE_COMPLETED" } });
    match path {
        "/new/chat/completions" => {
            let content = json!({ "choices": [{ "message": { "content": "Hi" }, "finish_reason": "stop" }] });
            response("application/json", content.to_string())
        }
        "/new/turn" => response("text/plain", "Hi".to_owned()),
        "/new/message:send" => response("application/json", json!({ "task": task }).to_string()),
        "/new/rpc" => {
            let reply = json!({ "jsonrpc": "2.0", "id": body["id"], "result": { "task": task } });
            response("application/json", reply.to_string())
        }
        "/mcp/" => {
            let Some(id) = body.get("id") else { return status(StatusCode::ACCEPTED) };
            let reply = json!({ "jsonrpc": "2.0", "id": id, "result": mcp_result(&body, &Mutex::default()) });
            response("application/json", reply.to_string())
        }
        _ => status(StatusCode::NOT_FOUND),
    }
}

/// Returns true if a message to an agent is completed.
async fn completes(agent: impl Agent) -> bool {
    let outcome = Client::from_service(Server::new(agent).into_service()).send("hello").await.unwrap();
    outcome.task().unwrap().state() == TaskState::Completed
}

/// Kinds of clients that follow redirects, by what they call.
const KINDS: [&str; 5] = ["model", "HTTP endpoint", "tool server", "HTTP+JSON", "JSON-RPC"];

/// Calls a server with credentials. Returns true if the call succeeds.
async fn call(kind: &str, url: &str) -> bool {
    let key = || Some("sesame".to_owned());
    let model = |url: &str| Openai::new(url, "tiny", OpenaiOptions::default().key(key().map(Into::into))).unwrap();
    let agent = Client::builder().bearer("sesame").unwrap().retry(Retry::never());
    match kind {
        "model" => completes(model(&format!("{url}/old"))).await,
        "HTTP endpoint" => {
            let options = HttpOptions::default().token(key().map(Into::into));
            completes(HttpEndpoint::new(&format!("{url}/old/turn"), options).unwrap()).await
        }
        "tool server" => {
            let server = McpServer::new("math", McpTransport::Url(format!("{url}/mcp"), key()));
            let connected = model(url).with_mcp(vec![server]).await;
            connected.is_ok_and(|agent| agent.card().skills.len() == 2)
        }
        "HTTP+JSON" => Client::from_service(agent.rest(&format!("{url}/old")).unwrap()).send("hello").await.is_ok(),
        "JSON-RPC" => {
            Client::from_service(agent.json_rpc(&format!("{url}/old/rpc")).unwrap()).send("hello").await.is_ok()
        }
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn redirects_within_the_origin_are_followed() {
    for status in [StatusCode::TEMPORARY_REDIRECT, StatusCode::PERMANENT_REDIRECT] {
        for kind in KINDS {
            let (url, seen) = serve(Redirect(status, "/new/{path}".to_owned())).await;
            assert!(call(kind, &url).await, "{kind}, {status}");
            let seen = seen.lock().unwrap();
            assert!(seen.len() >= 2 && seen.iter().all(|(_, credentials)| credentials == "Bearer sesame"), "{seen:?}");
        }
    }
}

/// A redirect with another status would become a GET without the body.
#[tokio::test]
async fn other_redirects_are_not_followed() {
    let (other, seen_by_other) = serve(Redirect(StatusCode::NOT_FOUND, String::new())).await;
    for (status, to) in [
        (StatusCode::MOVED_PERMANENTLY, "/new/{path}".to_owned()),
        (StatusCode::FOUND, "/new/{path}".to_owned()),
        (StatusCode::SEE_OTHER, "/new/{path}".to_owned()),
        (StatusCode::TEMPORARY_REDIRECT, format!("{other}/new/{{path}}")),
        (StatusCode::PERMANENT_REDIRECT, format!("{other}/new/{{path}}")),
        (StatusCode::TEMPORARY_REDIRECT, format!("{}/new/{{path}}", other.replace("http:", "https:"))),
        (StatusCode::TEMPORARY_REDIRECT, other.replace("http:", "")),
    ] {
        for kind in KINDS {
            let (url, seen) = serve(Redirect(status, to.clone())).await;
            assert!(!call(kind, &url).await, "{kind}, {status} to {to}");
            let seen = seen.lock().unwrap();
            assert!(seen.iter().all(|(path, _)| path.starts_with("/old/") || path == "/mcp"), "{kind}: {seen:?}");
        }
    }
    assert!(seen_by_other.lock().unwrap().is_empty());
}

#[tokio::test]
async fn number_of_redirects_is_limited() {
    for kind in ["model", "HTTP endpoint", "HTTP+JSON", "JSON-RPC"] {
        let (url, seen) = serve(Redirect(StatusCode::TEMPORARY_REDIRECT, "/old/{path}".to_owned())).await;
        assert!(!call(kind, &url).await, "{kind}");
        assert_eq!(seen.lock().unwrap().len(), 6, "{kind}: the request, and five redirects");
    }
}
