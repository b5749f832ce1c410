//! Operator API and `a2a status`: who may use them, the state of a server, tasks of all owners with a live feed, and deliveries.

use std::{net::SocketAddr, os::unix::fs::PermissionsExt as _, path::Path, time::Duration};

use a2a_service::{
    agent::demo::Demo,
    auth::{AuthRequest, Authenticator, Principal, Scopes, Token},
    error::{Error, ErrorKind},
    pb::v1::AgentCard,
    server::Server,
};
use axum::{Router, response::Html, routing::get};
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    net::TcpListener,
    time::timeout,
};

use crate::program::{a2a, message, output, post, signal, started};

const TIMEOUT: Duration = Duration::from_secs(30);

/// Paths of the operator API that show more than the state of the server.
const TASKS: [&str; 4] = ["/operator/tasks", "/operator/tasks/t", "/operator/tasks/t/events", "/operator/deliveries"];

/// Caller whose name, and perhaps scopes, are its token: `ada`, `ops:admin`, `bob:tasks:read,tasks:write`.
struct TokenIsCaller;

#[async_trait::async_trait]
impl Authenticator for TokenIsCaller {
    async fn authenticate(&self, request: &AuthRequest<'_>) -> Result<Option<Principal>, Error> {
        let value = request.headers.get("authorization").and_then(|value| value.to_str().ok());
        let Some(token) = value.and_then(|value| value.strip_prefix("Bearer ")) else {
            return Err(ErrorKind::Unauthenticated.because("no token").challenge("Bearer realm=\"a2a\""));
        };
        Ok(Some(match token.split_once(':') {
            Some((name, scopes)) => Principal::new(name).scopes(Scopes::only(scopes.split(','))),
            None => Principal::new(token),
        }))
    }

    fn describe(&self, card: AgentCard) -> AgentCard {
        card.bearer()
    }
}

async fn serve_at(server: Server, address: &str) -> SocketAddr {
    let bound = server.bind(address).await.unwrap();
    let address = bound.addr();
    tokio::spawn(bound.run_until(std::future::pending()));
    address
}

async fn serve(server: Server) -> String {
    format!("http://{}", serve_at(server, "127.0.0.1:0").await)
}

fn token(text: &str) -> Token {
    Token::new(text).unwrap()
}

/// Makes a request, and returns status, headers and body. Headers that are a token only begin with `Bearer`.
async fn request(method: &str, url: &str, headers: &[(&str, &str)], body: &str) -> (u16, HeaderMap, String) {
    let mut request = crate::bindings::http().request(method.parse().unwrap(), url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    if !body.is_empty() {
        request = request.header("content-type", "application/json").body(body.to_owned());
    }
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    (status, headers, response.text().await.unwrap())
}

/// Reads JSON with the operator token `root`.
async fn read(url: &str) -> Value {
    let (status, _, body) = request("GET", url, &[("authorization", "Bearer root")], "").await;
    assert_eq!(status, 200, "{url}: {body}");
    serde_json::from_str(&body).unwrap()
}

/// Statuses of the state of a server, and of everything else, with these headers.
async fn statuses(url: &str, headers: &[(&str, &str)]) -> (u16, Vec<u16>) {
    let mut all = Vec::new();
    for path in TASKS {
        let (status, answered, body) = request("GET", &format!("{url}{path}"), headers, "").await;
        assert!(
            matches!(status, 401 | 403 | 421) || answered["cache-control"] == "no-store",
            "{path}: {answered:?} {body}"
        );
        assert!(!answered.contains_key("access-control-allow-origin"), "{path}: {answered:?}");
        all.push(status);
    }
    all.push(request("POST", &format!("{url}/operator/deliveries:retry"), headers, r#"{"dead":true}"#).await.0);
    (request("GET", &format!("{url}/operator/status"), headers, "").await.0, all)
}

#[tokio::test]
async fn only_admin_and_the_operator_token_read_more_than_counts() {
    let origins = || ["*".parse().unwrap()];
    let open = serve(Server::new(Demo).cors_origins(origins()).operator_token(token("root"))).await;
    let (status, headers, body) = request("GET", &format!("{open}/operator/status"), &[], "").await;
    let counts: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &counts["access"], &counts["totals"]["agents"]), (200, &json!("counts"), &json!(1)));
    assert_eq!(headers["cache-control"], "no-store");
    for hidden in ["agents", "limits", "store", "build"] {
        assert_eq!(counts[hidden], Value::Null, "{body}");
    }
    // The task `t` does not exist.
    let (none, full) = (vec![401; 5], vec![200, 404, 404, 200, 200]);
    let bearer = |text: &'static str| ("authorization", text);
    assert_eq!(statuses(&open, &[]).await, (200, none.clone()));
    for proxied in [("x-forwarded-for", "127.0.0.1"), ("forwarded", "for=127.0.0.1"), ("via", "1.1 proxy")] {
        assert_eq!(statuses(&open, &[proxied]).await, (401, none.clone()), "{proxied:?}");
    }
    assert_eq!(statuses(&open, &[bearer("Bearer other")]).await, (401, none.clone()));
    assert_eq!(statuses(&open, &[bearer("Bearer root")]).await, (200, full.clone()));
    // Another page gets nothing, although any origin may make calls.
    for foreign in [("origin", "https://evil.example"), ("sec-fetch-site", "cross-site")] {
        assert_eq!(statuses(&open, &[bearer("Bearer root"), foreign]).await, (403, vec![403; 5]), "{foreign:?}");
    }
    let preflight = [
        ("origin", "https://evil.example"),
        ("access-control-request-method", "GET"),
        ("access-control-request-headers", "authorization"),
    ];
    let (status, headers, _) = request("OPTIONS", &format!("{open}/operator/status"), &preflight, "").await;
    assert!(status == 403 && !headers.contains_key("access-control-allow-origin"), "{status} {headers:?}");
    assert_eq!(statuses(&open, &[bearer("Bearer root"), ("host", "evil.example")]).await, (421, vec![421; 5]));
    let own = open.replace("http://", "");
    assert_eq!(statuses(&open, &[bearer("Bearer root"), ("origin", &open), ("host", &own)]).await, (200, full.clone()));

    let public = serve_at(Server::new(Demo).insecure(true), "0.0.0.0:0").await.port();
    assert_eq!(statuses(&format!("http://127.0.0.1:{public}"), &[]).await, (401, none.clone()));

    let guarded = serve(Server::new(Demo).authenticator(TokenIsCaller).operator_token(token("root"))).await;
    assert_eq!(statuses(&guarded, &[]).await, (401, none));
    assert_eq!(statuses(&guarded, &[bearer("Bearer bob:tasks:read,tasks:write")]).await, (403, vec![403; 5]));
    // A caller to whom no scopes were given is no operator.
    assert_eq!(statuses(&guarded, &[bearer("Bearer ada")]).await, (200, vec![403; 5]));
    assert_eq!(statuses(&guarded, &[bearer("Bearer ops:admin")]).await, (200, full.clone()));
    assert_eq!(statuses(&guarded, &[bearer("Bearer root")]).await, (200, full));
    // The operator token is for nothing else.
    assert_eq!(
        request("GET", &format!("{open}/tasks"), &[bearer("Bearer root")], "").await.0,
        200,
        "callers are anonymous"
    );
    let (_, _, body) = request("GET", &format!("{guarded}/operator/status"), &[bearer("Bearer ada")], "").await;
    assert!(body.contains(r#""access":"status""#) && body.contains(r#""kind":"rust""#), "{body}");
}

#[tokio::test]
async fn metrics_of_a_router_without_authentication_are_for_this_machine() {
    let router = Server::new(Demo).metrics(|| "up 1\n".to_owned()).router();
    // Without the addresses of peers.
    let url = crate::bindings::program(router.clone()).await;
    assert_eq!(request("GET", &format!("{url}/metrics"), &[], "").await.0, 401);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await.unwrap() });
    assert_eq!(request("GET", &format!("{url}/metrics"), &[], "").await.0, 200);
    assert_eq!(request("GET", &format!("{url}/metrics"), &[("x-forwarded-for", "192.0.2.1")], "").await.0, 401);
}

#[tokio::test]
async fn operator_and_console_are_no_tenants() {
    let url = serve(Server::new(Demo).operator_token(token("root"))).await;
    for path in ["/console/tasks", "/operator/tasks/t/other", "/operator"] {
        assert_eq!(
            request("GET", &format!("{url}{path}"), &[("authorization", "Bearer root")], "").await.0,
            404,
            "{path}"
        );
    }
    let params = json!({"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {"tenant": "operator"}});
    let (_, _, body) = request("POST", &format!("{url}/rpc"), &[], &params.to_string()).await;
    assert!(body.contains("`operator` is a reserved name"), "{body}");
    let (status, headers, _) =
        request("POST", &format!("{url}/operator/status"), &[("authorization", "Bearer root")], "{}").await;
    assert_eq!((status, &headers["allow"]), (405, &"GET, HEAD".parse().unwrap()));
    let renamed = std::panic::catch_unwind(|| drop(Server::new(Demo).agent("console", Server::new(Demo))));
    assert!(renamed.is_err());
}

/// Sends a message as a caller, and returns the task.
async fn send(url: &str, caller: &str, text: &str) -> Value {
    let headers = [("authorization", &*format!("Bearer {caller}"))];
    let (status, _, body) = request("POST", &format!("{url}/message:send"), &headers, &message(text).to_string()).await;
    assert_eq!(status, 200, "{body}");
    serde_json::from_str::<Value>(&body).unwrap()["task"].take()
}

#[tokio::test]
async fn tasks_of_all_owners_are_listed_with_turns_and_events() {
    let server = Server::new(Demo).authenticator(TokenIsCaller).operator_token(token("root"));
    let url = serve(server.agent("other", Server::new(Demo)).catalog_name("first").base_path("/pre/fix")).await;
    let url = format!("{url}/pre/fix");
    let ada = send(&url, "ada", "hello").await;
    let bob = send(&url, "bob", "/fail").await;
    let third = send(&format!("{url}/other"), "ada", "/ask City?").await;
    let ids = |list: &Value| -> Vec<Value> {
        list["tasks"].as_array().unwrap().iter().map(|task| task["id"].clone()).collect()
    };
    let first = read(&format!("{url}/operator/tasks?limit=1")).await;
    assert_eq!(ids(&first), [bob["id"].clone()]);
    let mut next = first["next"].as_str().map(str::to_owned);
    let mut others = Vec::new();
    while let Some(token) = next {
        let page = read(&format!("{url}/operator/tasks?limit=1&before={token}")).await;
        others.extend(ids(&page));
        next = page["next"].as_str().map(str::to_owned);
    }
    assert_eq!(others, [ada["id"].clone(), third["id"].clone()]);
    for (query, expected) in [
        ("owner=bob", &bob),
        ("state=failed,working", &bob),
        ("state=TASK_STATE_COMPLETED", &ada),
        ("agent=other", &third),
        (&*format!("id={}&agent=first", &ada["id"].as_str().unwrap()), &ada),
        (&*format!("agent=first&context={}", ada["contextId"].as_str().unwrap()), &ada),
    ] {
        let found = read(&format!("{url}/operator/tasks?{query}")).await;
        assert_eq!(ids(&found), [expected["id"].clone()], "{query}");
    }
    let failed = read(&format!("{url}/operator/tasks?owner=bob")).await["tasks"][0].take();
    assert_eq!((&failed["state"], &failed["agent"]), (&json!("TASK_STATE_FAILED"), &json!("first")), "{failed}");
    let path = format!("{url}/operator/tasks/{}", bob["id"].as_str().unwrap());
    let shown = read(&path).await;
    assert_eq!((&shown["task"], &shown["snapshot"]["id"]), (&failed, &bob["id"]), "{shown}");
    assert_eq!((&shown["turns"][0]["outcome"], &shown["turns"][0]["binding"]), (&json!("failed"), &json!("http")));

    let log = read(&format!("{path}/events")).await;
    let events = log["events"].as_array().unwrap();
    assert!(events.len() >= 2 && log["next"].is_null() && log["has_log"] == true, "{log}");
    assert_eq!((&events[0]["seq"], &events[0]["wire"]["task"]["id"]), (&json!(1), &bob["id"]), "{log}");
    assert_eq!(events.last().unwrap()["ends"], "task");
    assert!(events[0]["time"].as_str().unwrap().ends_with('Z'), "{log}");
    let after = read(&format!("{path}/events?after=1&limit=1&form=0.3")).await;
    assert_eq!((&after["events"][0]["seq"], &after["events"][0]["wire"]["kind"]), (&json!(2), &json!("status-update")));
    let proto = read(&format!("{path}/events?limit=1&form=proto")).await;
    assert!(proto["events"][0]["wire"].as_str().unwrap().len() > 20 && proto["next"] == 1, "{proto}");

    let root = [("authorization", "Bearer root")];
    for (path, status, why) in [
        ("tasks?limit=1001", 400, "limit"),
        ("tasks?nothing=1", 400, "unknown field `nothing`"),
        ("tasks?state=odd", 400, "state"),
        ("tasks?before=7.", 400, "after"),
        ("tasks?after=0.odd", 400, "after"),
        ("tasks?after=0.1-2", 400, "after"),
        ("deliveries?after=0.1-odd", 400, "after"),
        ("tasks?agent=nobody", 400, "agent"),
        ("tasks/nobody", 404, "TASK_NOT_FOUND"),
    ] {
        let (found, _, body) = request("GET", &format!("{url}/operator/{path}"), &root, "").await;
        assert!(found == status && body.contains(why), "{path}: {found} {body}");
    }
    // Agents below a path have no operator API of their own.
    assert_eq!(request("GET", &format!("{url}/other/operator/status"), &root, "").await.0, 404);
    let status = read(&format!("{url}/operator/status")).await;
    assert_eq!((&status["agents"][0]["name"], &status["agents"][1]["name"]), (&json!("first"), &json!("other")));
    assert_eq!(status["totals"]["tasks"]["TASK_STATE_FAILED"], 1, "{status}");
    assert_eq!(status["agents"][0]["last_error"]["error_id"], failed["error_id"], "{status}");
}

#[tokio::test]
async fn limits_show_what_is_in_use() {
    let url = serve(Server::new(Demo).operator_token(token("root"))).await;
    for _ in 0..3 {
        let mut sent = message("/slow 60");
        sent["configuration"] = json!({"returnImmediately": true});
        assert_eq!(request("POST", &format!("{url}/message:send"), &[], &sent.to_string()).await.0, 200);
    }
    let turns = json!({"agent": "default", "name": "turns", "used": 3, "max": 10_000});
    let running = async {
        loop {
            let status = read(&format!("{url}/operator/status")).await;
            if status["limits"].as_array().unwrap().contains(&turns) {
                return status;
            }
        }
    };
    let status = timeout(TIMEOUT, running).await.unwrap();
    assert_eq!(status["totals"]["turns"], 3, "{status}");
}

/// Reads lines of a feed until there is one with this beginning.
async fn until(feed: &mut reqwest::Response, text: &mut String, beginning: &str) -> String {
    let found = async {
        loop {
            if let Some(end) = text.find("\n\n") {
                let event: String = text.drain(..end + 2).collect();
                if event.starts_with(beginning) {
                    return event;
                }
                continue;
            }
            let chunk = feed.chunk().await.unwrap().expect("the feed has ended");
            text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    };
    timeout(TIMEOUT, found).await.unwrap()
}

#[tokio::test]
async fn feed_has_the_tasks_that_change() {
    let server = Server::new(Demo).authenticator(TokenIsCaller).operator_token(token("root"));
    let bound = server.agent("other", Server::new(Demo)).bind("127.0.0.1:0").await.unwrap();
    let (url, handle) = (bound.url(), bound.handle());
    tokio::spawn(bound.run_until(std::future::pending()));
    let open = async |query: &str| {
        let request = crate::bindings::http().get(format!("{url}/operator/tasks{query}")).bearer_auth("root");
        request.header("accept", "text/event-stream").send().await.unwrap()
    };
    let (mut all, mut bobs) = (open("").await, open("?owner=bob").await);
    assert_eq!(all.headers()["content-type"], "text/event-stream");
    assert_eq!(all.headers()["cache-control"], "no-store");
    let (mut all_text, mut bobs_text) = Default::default();
    send(&url, "ada", "hello").await;
    let other = send(&format!("{url}/other"), "ada", "hello").await;
    let bob = send(&url, "bob", "hello").await;
    let event = until(&mut bobs, &mut bobs_text, "data: ").await;
    let task: Value = serde_json::from_str(&event["data: ".len()..]).unwrap();
    assert_eq!(
        (&task["id"], &task["owner"], &task["state"]),
        (&bob["id"], &json!("bob"), &json!("TASK_STATE_COMPLETED"))
    );
    let mut found = Vec::new();
    while found.len() < 3 {
        let event = until(&mut all, &mut all_text, "data: ").await;
        found.push(serde_json::from_str::<Value>(&event["data: ".len()..]).unwrap());
    }
    assert!(found.iter().any(|task| task["id"] == other["id"] && task["agent"] == "other"), "{found:?}");
    // One that does not read misses changes, and holds nobody up.
    let tasks = futures::future::join_all((0..4).map(|n| send(&url, "bob", ["/stream 400 0", "hello"][n % 2])));
    let mut feeds = vec![all, bobs];
    tasks.await;
    while feeds.len() < 16 {
        let feed = open("").await;
        assert_eq!(feed.status(), 200);
        feeds.push(feed);
    }
    let refused = open("").await;
    assert_eq!(refused.status(), 429);
    assert!(refused.text().await.unwrap().contains("16 feeds"));
    drop(feeds.split_off(1));
    // A feed ends with the server.
    let ended = async {
        handle.drain().await;
        while feeds[0].chunk().await.unwrap().is_some() {}
    };
    timeout(TIMEOUT, ended).await.unwrap();
}

/// `a2a status` finds the server by its database, and its exit code is the state.
#[tokio::test]
async fn status_finds_the_server_of_the_database() {
    let directory = tempfile::tempdir().unwrap();
    let in_directory = |arguments: &[&str]| {
        let mut command = a2a(arguments);
        command.env_remove("A2A_STORE").current_dir(directory.path());
        command
    };
    let missing = output(in_directory(&["status"])).await;
    assert_eq!(missing.status.code(), Some(3), "{missing:?}");
    let (mut server, url) =
        started(in_directory(&["serve", "--listen", "127.0.0.1:0", "--log-filter", "warn", "--shutdown-grace", "20s"]))
            .await;
    let file = directory.path().join("a2a.db.operator");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let token = std::fs::read_to_string(&file).unwrap();
    post(&format!("{url}/message:send"), &message("/fail")).await;
    let shown = output(in_directory(&["status"])).await;
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.status.success() && text.starts_with("ready, up ") && text.contains("default  demo"), "{text}");
    assert!(text.contains("last error of default") && text.contains("failed 1"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    for format in ["json", "jsonl"] {
        let shown = output(in_directory(&["status", &url, "-o", format])).await;
        let status: Value = serde_json::from_slice(&shown.stdout).unwrap();
        assert_eq!((&status["access"], &status["agents"][0]["kind"]), (&json!("full"), &json!("demo")), "{status}");
        assert!(
            status["store"]["bytes"].as_u64().unwrap() > 0 && status["store"]["commit_p99_ms"].is_number(),
            "{status}"
        );
    }
    // Others who could read the token may have used it.
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    let shown = output(in_directory(&["status"])).await;
    let errors = String::from_utf8(shown.stderr).unwrap();
    assert_eq!(
        (shown.status.code(), errors.contains("is not used, since other users can read it")),
        (Some(3), true),
        "{errors}"
    );
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    // From another directory, only what everybody on the machine may know.
    let mut elsewhere = a2a(&["status", &url, "-o", "json"]);
    elsewhere.current_dir("/");
    let status: Value = serde_json::from_slice(&output(elsewhere).await.stdout).unwrap();
    assert_eq!((&status["access"], &status["agents"]), (&json!("counts"), &Value::Null));
    // The token of the file is for its server.
    let (other, seen) = fake(json!({"access": "counts", "ready": true})).await;
    let shown = output(in_directory(&["status", &other])).await;
    assert!(
        shown.status.success() && seen.lock().iter().all(|headers| !headers.contains_key("authorization")),
        "{shown:?}"
    );

    signal(&server, "-TERM");
    drop(timeout(TIMEOUT, server.wait()).await.unwrap());
    assert_eq!(output(in_directory(&["status", &url])).await.status.code(), Some(3));
    assert!(!token.is_empty());
    // Removed at the end of a server that is not killed.
    let (mut server, _) = started(in_directory(&["serve", "--listen", "127.0.0.1:0", "--log-filter", "warn"])).await;
    assert!(file.exists());
    signal(&server, "-TERM");
    assert!(timeout(TIMEOUT, server.wait()).await.unwrap().unwrap().success());
    assert!(!file.exists() && Path::new("/").exists());
}

/// Serves a status at `/operator/status`, and records the headers of requests.
async fn fake(status: Value) -> (String, std::sync::Arc<parking_lot::Mutex<Vec<HeaderMap>>>) {
    let seen = std::sync::Arc::<parking_lot::Mutex<Vec<HeaderMap>>>::default();
    let record = std::sync::Arc::clone(&seen);
    let respond = move |headers: HeaderMap| async move {
        record.lock().push(headers);
        ([("content-type", "application/json")], status.to_string())
    };
    let router = Router::new()
        .route("/operator/status", get(respond))
        .fallback(|| async { (StatusCode::NOT_FOUND, Html("no")) });
    (crate::bindings::program(router).await, seen)
}

#[tokio::test]
async fn exit_code_of_status_says_that_a_dependency_is_down() {
    let down = json!({"peer": "upstream", "address": "10.0.0.7:9000", "state": "down", "failures": 3,
        "last_error": "connect", "last_error_time": "2026-11-27T20:09:30Z", "since": "2026-11-27T20:00:00Z"});
    let limits = json!([
        {"agent": "geo", "name": "live_bytes", "used": 5 << 20, "max": 192 << 20},
        {"agent": "geo", "name": "store.max_size", "used": 12_288, "max": null},
        {"agent": "geo", "name": "turns", "used": 1, "max": 10_000},
    ]);
    let agents = json!([{"name": "geo", "kind": "upstream", "turns": 1, "queued": 0, "breaker": "open", "dependencies": [down]}]);
    let totals =
        json!({"agents": 1, "dependencies_down": 1, "tasks": {"TASK_STATE_COMPLETED": 2}, "odd": ["\u{202e}"]});
    for (agents, named) in [(agents, "upstream of geo"), (Value::Null, "1 in total; an operator's token shows which")] {
        let (url, _) =
            fake(json!({"access": "full", "ready": true, "uptime_seconds": 90, "agents": agents, "totals": totals,
                "store": {"bytes": 4096, "free": 0, "wal": 123_456, "max": null}, "limits": limits}))
            .await;
        let shown = output(a2a(&["status", &url])).await;
        let (text, errors) = (String::from_utf8(shown.stdout).unwrap(), String::from_utf8(shown.stderr).unwrap());
        assert_eq!((shown.status.code(), &*errors), (Some(7), &*format!("error: a dependency is down: {named}\n")));
        let row = "geo    upstream  10.0.0.7:9000  down   11-27 20:00  connect 11-27 20:09\n";
        assert_eq!(text.contains(row), named == "upstream of geo", "{text}");
        assert!(text.contains("store   bytes 4096 B, free 0 B, wal 120 KiB\n"), "{text}");
        for row in [
            "live_bytes      5120 KiB  192 MiB\n",
            "store.max_size  12 KiB    none\n",
            "turns           1         10000\n",
        ] {
            assert!(text.contains(row), "{text}");
        }
        assert!(text.contains("tasks (completed 2)") && !text.contains('\u{202e}'), "{text}");
    }
    let none = output(a2a(&["status", "http://127.0.0.1:1"])).await;
    assert_eq!(none.status.code(), Some(3), "{none:?}");
    let (url, _) = fake(json!({})).await;
    let none = output(a2a(&["status", &format!("{url}/elsewhere")])).await;
    assert_eq!(none.status.code(), Some(3), "{none:?}");
}

#[tokio::test]
async fn reads_of_tasks_are_in_the_audit_log() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = a2a(&["serve", "--listen", "127.0.0.1:0", "--log", "json"]);
    command.env("A2A_STORE", format!("sqlite:{}", directory.path().join("a2a.db").display()));
    let (mut child, url) = started(command).await;
    let file = std::fs::read(directory.path().join("a2a.db.operator")).unwrap();
    let access: Value = serde_json::from_slice(&file).unwrap();
    let (secret, task) =
        (access["token"].as_str().unwrap(), post(&format!("{url}/message:send"), &message("hi")).await);
    let path = format!("/operator/tasks/{}", task["task"]["id"].as_str().unwrap());
    let headers = [("authorization", &*format!("Bearer {secret}")), ("x-request-id", "r-1")];
    assert_eq!(request("GET", &format!("{url}{path}"), &headers, "").await.0, 200);
    assert_eq!(request("GET", &format!("{url}/operator/status"), &headers, "").await.0, 200);
    signal(&child, "-TERM");
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut audited = Vec::new();
    while let Some(line) = timeout(TIMEOUT, lines.next_line()).await.unwrap().unwrap() {
        assert!(!line.contains(secret), "{line}");
        let line: Value = serde_json::from_str(&line).unwrap();
        audited.extend(Some(line).filter(|line| line["event"] == "operator_access"));
    }
    let [line] = &audited[..] else { panic!("{audited:#?}") };
    assert_eq!(
        (&line["operation"], &line["principal"], &line["request.id"]),
        (&json!(path), &json!("operator"), &json!("r-1"))
    );
}
