//! Several agents in one server: cards, bindings, tasks, catalog, authorization, restarts and the configuration file.

use std::{sync::Arc, time::Duration};

use a2a_service::{
    agent::{self, Agent, End, demo::Demo},
    auth::{AuthRequest, Authenticator, Principal, Scopes},
    call::{Binding, Call},
    client::{Client, Retry},
    error::{Error, ErrorKind},
    pb::v1::{AgentCard, ListTasksRequest, SendMessageRequest, TaskPushNotificationConfig, TaskState},
    protocol::Version,
    server::Server,
};
use http::HeaderName;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::Notify,
    time::timeout,
};
use tokio_stream::StreamExt as _;

use crate::{
    bindings::serve,
    program::{a2a, output, signal, started},
    scenarios::{request, text},
};

const TIMEOUT: Duration = Duration::from_secs(20);

fn shout() -> impl Agent {
    agent::from_fn(|turn, _| async move { Ok(End::Completed(Some(turn.text().to_uppercase().into()))) })
}

/// Server with the demo agent at the root, and another one.
fn two() -> Server {
    let second = Server::new(shout()).name("Shout").description("Answers loudly.").push(true);
    Server::new(Demo).push(true).catalog_name("demo").agent("shout", second)
}

async fn json_of(url: &str) -> Value {
    let response = crate::bindings::fetch(url).await.unwrap();
    assert_eq!(response.status(), 200, "{url}");
    serde_json::from_slice(&response.bytes().await.unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_agent_has_its_card_tasks_and_bindings() {
    let url = serve(two()).await;
    for (path, name, answer) in [("", "Demo", "hi"), ("/demo", "Demo", "hi"), ("/shout", "Shout", "HI")] {
        let mut texts = Vec::new();
        for version in [Version::V1_0, Version::V0_3] {
            for binding in [Binding::Grpc, Binding::Rest, Binding::JsonRpc] {
                // There are no tenants in 0.3.
                if (version, binding, path) == (Version::V0_3, Binding::Grpc, "/shout") {
                    continue;
                }
                let client = Client::builder().retry(Retry::default().attempts(0)).version(version).binding(binding);
                let client = client.connect(&format!("{url}{path}")).await.unwrap();
                assert_eq!(client.card().name, name, "{path} {version:?} {binding:?}");
                let sent = client.send("hi").await.unwrap();
                assert_eq!(sent.text(), answer, "{path} {version:?} {binding:?}");
                texts.push(sent.task().unwrap().id.clone());
            }
        }
        // Each binding finds the tasks of the others, and those of other agents are unknown.
        let own = Client::connect(&format!("{url}{path}")).await.unwrap();
        let other = Client::connect(&format!("{url}/{}", if name == "Demo" { "shout" } else { "demo" })).await.unwrap();
        for id in &texts {
            assert_eq!(own.get(id).await.unwrap().state(), TaskState::Completed);
            assert_eq!(other.get(id).await.unwrap_err().kind(), ErrorKind::TaskNotFound);
        }
    }
    let card: Value = json_of(&format!("{url}/shout/.well-known/agent-card.json")).await;
    let interfaces: Vec<_> = card["supportedInterfaces"].as_array().unwrap().iter().collect();
    let of = |binding: &str, version: &str| {
        let found =
            interfaces.iter().find(|one| one["protocolBinding"] == binding && one["protocolVersion"] == version);
        found.map(|one| (one["url"].clone(), one["tenant"].clone()))
    };
    assert_eq!(of("JSONRPC", "1.0"), Some((json!(format!("{url}/shout/rpc")), Value::Null)));
    assert_eq!(of("HTTP+JSON", "0.3"), Some((json!(format!("{url}/shout")), Value::Null)));
    assert_eq!(of("GRPC", "1.0"), Some((json!(url.trim_start_matches("http://")), json!("shout"))));
    assert_eq!(of("GRPC", "0.3"), None);
}

/// The tenant names the agent also over the other bindings of the root.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenant_names_the_agent() {
    let url = serve(two()).await;
    let client = Client::builder().retry(Retry::default().attempts(0));
    let agents = [client.grpc(&url), client.rest(&url), client.json_rpc(&format!("{url}/rpc"))];
    let mut tenants = Vec::new();
    for agent in agents.map(Result::unwrap) {
        let message = SendMessageRequest { tenant: "shout".into(), ..text("", "hi") };
        let sent = Client::from_service(Arc::clone(&agent)).send(message).await.unwrap();
        let task = sent.task().unwrap();
        assert_eq!(sent.text(), "HI");
        let config = TaskPushNotificationConfig {
            tenant: "shout".into(),
            id: "one".into(),
            task_id: task.id.clone(),
            url: "https://example.com/hook".into(),
            ..Default::default()
        };
        let created = agent.create_task_push_notification_config(request(config)).await.unwrap().into_inner();
        assert_eq!(created.id, "one");
        tenants.push(created.tenant);
    }
    // Over HTTP+JSON, the tenant is the path of the agent.
    assert_eq!(tenants, ["shout", "", "shout"]);
}

/// A client of an agent that was removed does not reach another one. The agent at the root has tenants below its own path.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenant_that_names_no_agent_is_rejected() {
    let only = Server::new(Demo).catalog_name("demo");
    for url in [serve(two()).await, serve(only).await] {
        let client = Client::builder().retry(Retry::default().attempts(0));
        let north = || SendMessageRequest { tenant: "north".into(), ..text("", "hi") };
        for agent in [client.grpc(&url), client.rest(&url), client.json_rpc(&format!("{url}/rpc"))] {
            let agent = Client::from_service(agent.unwrap());
            assert_eq!(agent.send(north()).await.unwrap_err().kind(), ErrorKind::MethodNotFound);
            let status = agent.service().send_streaming_message(request(north())).await.err().unwrap();
            assert_eq!(Error::from(status).kind(), ErrorKind::MethodNotFound);
        }
        for path in ["/north/tasks", "/north", "/north/.well-known/agent-card.json", "/v9/tasks"] {
            assert_eq!(crate::bindings::fetch(format!("{url}{path}")).await.unwrap().status(), 404, "{path}");
        }
        let own = client.rest(&format!("{url}/demo")).unwrap();
        let sent = Client::from_service(own).send(north()).await.unwrap();
        let id = &sent.task().unwrap().id;
        let status =
            async |path: &str| crate::bindings::fetch(format!("{url}{path}/tasks/{id}")).await.unwrap().status();
        assert_eq!((status("/demo/north").await.as_u16(), status("/demo").await.as_u16()), (200, 404));
    }
}

/// Credentials can name a tenant of the agent at the root.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenant_of_the_caller_is_one_of_the_agent_at_the_root() {
    let agent = Client::from_service(two().into_service());
    let caller = |tenant: &str| Call::of_principal(Principal::new("ada").tenant(tenant));
    for (bound, tenant, expected) in [("north", "north", Ok("hi")), ("south", "north", Err(ErrorKind::MethodNotFound))]
    {
        let message = SendMessageRequest { tenant: tenant.into(), ..text("", "hi") };
        let sent = agent.service().send_message(caller(bound).request(message)).await;
        let sent = sent.map(|_| "hi").map_err(|status| Error::from(status).kind());
        assert_eq!(sent, expected, "{bound}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn catalog_lists_the_agents() {
    let url = serve(two()).await;
    let entries = Client::catalog(&url).await.unwrap();
    assert_eq!(entries.iter().map(|entry| &*entry.name).collect::<Vec<_>>(), ["Demo", "Shout"]);
    for (entry, answer) in entries.iter().zip(["hi", "HI"]) {
        let client = Client::builder().connect_entry(entry).await.unwrap();
        assert_eq!(client.send("hi").await.unwrap().text(), answer);
    }
    let catalog = json_of(&format!("{url}/.well-known/ai-catalog.json")).await;
    assert_eq!(catalog["specVersion"], "0.9");
    let shout = json!({
        "identifier": "urn:air:127.0.0.1:shout:a2a",
        "displayName": "Shout",
        "description": "Answers loudly.",
        "type": "application/a2a-agent-card+json",
        "url": format!("{url}/shout/.well-known/agent-card.json"),
    });
    assert_eq!(catalog["entries"][1], shout);
    let list = json_of(&format!("{url}/agents")).await;
    assert_eq!(list["agents"][0]["id"], "demo");
    assert_eq!(list["agents"][1]["url"], format!("{url}/shout"));
    assert_eq!(list["agents"][1]["cardUrl"], format!("{url}/shout/.well-known/agent-card.json"));
    // A server with one agent has a catalog too.
    let url = serve(Server::new(Demo)).await;
    let list = json_of(&format!("{url}/agents")).await;
    assert_eq!((&list["agents"][0]["name"], &list["agents"][1]), (&json!("Demo"), &Value::Null));
    assert_eq!(list["agents"][0]["cardUrl"], format!("{url}/.well-known/agent-card.json"));
    let head = crate::bindings::http().head(format!("{url}/agents")).send().await.unwrap();
    assert_eq!((head.status().as_u16(), head.headers()["content-type"].to_str().unwrap()), (200, "application/json"));
    let posted = crate::bindings::http().post(format!("{url}/agents")).send().await.unwrap();
    assert_eq!((posted.status().as_u16(), posted.headers()["allow"].to_str().unwrap()), (405, "GET, HEAD"));
}

/// Takes the scopes of a caller from its bearer token.
struct TokenIsScopes;

#[async_trait::async_trait]
impl Authenticator for TokenIsScopes {
    async fn authenticate(&self, request: &AuthRequest<'_>) -> Result<Option<Principal>, Error> {
        let value = request.headers.get("authorization").and_then(|value| value.to_str().ok());
        let Some(scopes) = value.and_then(|value| value.strip_prefix("Bearer ")) else {
            return Err(ErrorKind::Unauthenticated.because("no token").challenge("Bearer realm=\"a2a\""));
        };
        Ok(Some(Principal::new("ada").scopes(Scopes::only(scopes.split(',')))))
    }

    fn describe(&self, card: AgentCard) -> AgentCard {
        card.bearer()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_require_their_scopes() {
    let second = Server::new(shout()).name("Shout").require_scopes(["agent:shout"]);
    let url = serve(Server::new(Demo).authenticator(TokenIsScopes).agent("shout", second)).await;
    let plain = "tasks:read,tasks:write";
    let all = "tasks:read,tasks:write,agent:shout";
    let get = async |path: &str, token: Option<&str>| {
        let mut request = crate::bindings::http().get(format!("{url}{path}"));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.headers().clone(), response.text().await.unwrap())
    };
    for path in ["/agents", "/.well-known/ai-catalog.json"] {
        let (status, headers, _) = get(path, None).await;
        assert_eq!((status, headers.contains_key("www-authenticate")), (401, true), "{path}");
        let (status, headers, text) = get(path, Some(plain)).await;
        assert_eq!((status, text.contains("Demo"), text.contains("Shout")), (200, true, false), "{path}");
        assert_eq!(headers["cache-control"], "private, no-cache");
        assert!(!headers.contains_key("access-control-allow-origin"));
        let (_, _, text) = get(path, Some(all)).await;
        assert!(text.contains("Demo") && text.contains("Shout"), "{text}");
    }
    // The authenticator of the server applies to the other agent too.
    assert_eq!(get("/shout/tasks", None).await.0, 401);
    assert_eq!(get("/shout/tasks", Some(plain)).await.0, 403);
    assert_eq!(get("/shout/tasks", Some(all)).await.0, 200);
    for binding in [Binding::Grpc, Binding::Rest, Binding::JsonRpc] {
        let client = Client::builder().retry(Retry::default().attempts(0)).binding(binding);
        let lacking = client.clone().bearer(plain).unwrap().connect(&format!("{url}/shout")).await.unwrap();
        let error = lacking.send("hi").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{binding:?}");
        let client = client.bearer(all).unwrap().connect(&format!("{url}/shout")).await.unwrap();
        assert_eq!(client.send("hi").await.unwrap().text(), "HI", "{binding:?}");
    }
}

/// Without an authenticator, nobody has the scopes.
#[tokio::test]
async fn scopes_without_an_authenticator_reject_all_calls() {
    let agent = Server::new(Demo).require_scopes(["agent:demo"]).into_service();
    let error = Client::from_service(agent).send("hi").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated);
    assert!(error.to_string().contains("agent:demo"), "{error}");
}

/// Calls of the root pass its authenticator, and not that of the other agent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_with_its_own_authenticator_has_only_its_path() {
    let second = Server::new(shout()).name("Shout").authenticator(TokenIsScopes).protect_card(true);
    let url = serve(Server::new(Demo).agent("shout", second)).await;
    let client = Client::builder().retry(Retry::default().attempts(0));
    for agent in [client.grpc(&url), client.json_rpc(&format!("{url}/rpc"))].map(Result::unwrap) {
        let message = SendMessageRequest { tenant: "shout".into(), ..text("", "hi") };
        let error = Client::from_service(agent).send(message).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::MethodNotFound);
    }
    let error =
        Client::from_service(client.json_rpc(&format!("{url}/shout/rpc")).unwrap()).send("hi").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated);
    // The catalog does not show the protected card.
    assert_eq!(crate::bindings::fetch(format!("{url}/agents")).await.unwrap().status(), 401);
    assert_eq!(crate::bindings::fetch(format!("{url}/shout/agents")).await.unwrap().status(), 401);
}

/// Each agent gets the headers that are forwarded to it, also if its tenant names it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_are_forwarded_to_their_agent_only() {
    let names = |turn: &agent::Turn| {
        let headers = turn.forwarded_headers();
        let mut names: Vec<_> =
            headers.iter().flat_map(|headers| headers.keys()).map(|name| name.as_str().to_owned()).collect();
        names.sort();
        names.join(" ")
    };
    let reporter = move || {
        agent::from_fn(move |turn, _| {
            let names = names(&turn);
            async move { Ok(End::Completed(Some(format!("[{names}]").into()))) }
        })
    };
    let server = Server::new(reporter()).forward_headers([HeaderName::from_static("x-first")]);
    let second = Server::new(reporter()).forward_headers([HeaderName::from_static("x-second")]);
    let url = serve(server.agent("second", second).agent("third", Server::new(reporter()))).await;
    let client = Client::builder().header("x-first", "1").unwrap().header("x-second", "2").unwrap();
    for agent in [client.grpc(&url), client.json_rpc(&format!("{url}/rpc"))].map(Result::unwrap) {
        for (tenant, expected) in [("", "[x-first]"), ("second", "[x-second]"), ("third", "[]")] {
            let message = SendMessageRequest { tenant: tenant.into(), ..text("", "hi") };
            assert_eq!(
                Client::from_service(Arc::clone(&agent)).send(message).await.unwrap().text(),
                expected,
                "{tenant}"
            );
        }
    }
    let at_path = client.json_rpc(&format!("{url}/second/rpc")).unwrap();
    assert_eq!(Client::from_service(at_path).send("hi").await.unwrap().text(), "[x-second]");
}

/// A request with a text of so many bytes to an agent, as the bytes of HTTP/1.1.
fn send_of(path: &str, text: usize) -> Vec<u8> {
    let text = "x".repeat(text);
    let body = json!({ "message": { "messageId": "m", "role": "ROLE_USER", "parts": [{ "text": text }] } }).to_string();
    let head = format!("POST {path}/message:send HTTP/1.1\r\nhost: localhost\r\na2a-version: 1.0\r\nconnection: close");
    format!("{head}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// Checks that there is one budget for requests and one for responses, over all agents. The paused clock advances when all
/// tasks wait.
#[tokio::test(start_paused = true)]
async fn agents_share_the_memory_for_requests_and_responses() {
    const BUDGET: usize = 1 << 20;
    let router = two().incoming_bytes(BUDGET).outgoing_bytes(BUDGET).router();
    let connect = || {
        let (near, far) = tokio::io::duplex(4096);
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(far), service));
        near
    };
    let call = async |path: &str, text: usize| {
        let (mut socket, mut reply) = (connect(), Vec::new());
        // The server does not read a request to its end that it rejects.
        _ = socket.write_all(&send_of(path, text)).await;
        _ = socket.read_to_end(&mut reply).await;
        String::from_utf8(reply).unwrap()
    };
    let rejected = |reply: &str| reply.starts_with("HTTP/1.1 503 ") && reply.contains("(limits.memory)");

    for (first, second) in [("", "/shout"), ("/shout", "")] {
        // A request that is not complete takes memory of requests to the other agent.
        let mut slow = connect();
        let request = send_of(first, BUDGET / 2);
        let (most, end) = request.split_at(request.len() - 10);
        slow.write_all(most).await.unwrap();
        assert!(timeout(TIMEOUT, slow.read_u8()).await.is_err(), "{first}: waits for the rest");
        let reply = call(second, BUDGET / 2).await;
        assert!(rejected(&reply), "{second}: {reply}");
        // So does a response that nobody reads.
        slow.write_all(end).await.unwrap();
        assert_eq!(slow.read_u8().await.unwrap(), b'H');
        let reply = call(second, BUDGET / 2).await;
        assert!(rejected(&reply), "{second}: {reply}");

        let mut reply = String::new();
        slow.read_to_string(&mut reply).await.unwrap();
        assert!(reply.starts_with("TTP/1.1 200 OK\r\n") && reply.len() > BUDGET / 2, "{first}: {}", reply.len());
        let reply = call(second, BUDGET / 2).await;
        assert!(reply.starts_with("HTTP/1.1 200 OK\r\n") && reply.len() > BUDGET / 2, "{second}: {}", reply.len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_waits_for_the_turns_of_all_agents() {
    let (begun, end) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (notify, wait) = (Arc::clone(&begun), Arc::clone(&end));
    let slow = agent::from_fn(move |_, _| {
        let (begun, end) = (Arc::clone(&notify), Arc::clone(&wait));
        async move {
            begun.notify_one();
            end.notified().await;
            Ok(End::Completed(None))
        }
    });
    let server = Server::new(Demo).drain_grace(TIMEOUT).agent("slow", Server::new(slow).drain_grace(TIMEOUT));
    let bound = server.bind("127.0.0.1:0").await.unwrap();
    let (url, handle) = (bound.url(), bound.handle());
    let running = tokio::spawn(bound.run_until(std::future::pending()));
    let client = Client::connect(&format!("{url}/slow")).await.unwrap();
    let sent = tokio::spawn(async move { client.send("hi").await });
    timeout(TIMEOUT, begun.notified()).await.unwrap();
    assert!(handle.is_ready().await);
    let drained = tokio::spawn({
        let handle = handle.clone();
        async move { handle.drain().await }
    });
    while handle.is_ready().await {
        tokio::task::yield_now().await;
    }
    assert!(!drained.is_finished());
    end.notify_one();
    timeout(TIMEOUT, drained).await.unwrap().unwrap();
    let outcome = timeout(TIMEOUT, sent).await.unwrap().unwrap().unwrap();
    assert_eq!(outcome.state(), TaskState::Completed);
    timeout(TIMEOUT, running).await.unwrap().unwrap();
}

#[test]
#[should_panic(expected = "two agents with the name `a`")]
fn names_are_unique() {
    drop(Server::new(Demo).catalog_name("a").agent("a", Server::new(Demo)));
}

#[test]
#[should_panic(expected = "the agent `a` has agents of its own")]
fn agents_have_no_agents() {
    drop(Server::new(Demo).agent("a", Server::new(Demo).agent("b", Server::new(Demo))));
}

#[test]
#[should_panic(expected = "`tasks` is not a name of an agent")]
fn names_of_resources_are_reserved() {
    drop(Server::new(Demo).agent("tasks", Server::new(Demo)));
}

const FILE: &str = "
listen = '127.0.0.1:0'
store = 'sqlite:tasks.db'
log.filter = 'warn'

[[agents]]
name = 'lines'
exec.command = '/usr/bin/wc -c'
card.description = 'Counts bytes.'

[[agents]]
name = 'demo'
limits.task_bytes = '1MiB'
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_serves_the_agents_of_its_file() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("a2a.toml"), FILE).unwrap();
    let command = |arguments: &[&str]| {
        let mut command = a2a(arguments);
        command.env_remove("A2A_STORE").current_dir(directory.path());
        command
    };
    let (mut server, url) = started(command(&["serve"])).await;
    let lines = Client::connect(&url).await.unwrap();
    assert_eq!((&*lines.card().name, &*lines.card().description), ("lines", "Counts bytes."));
    assert_eq!(lines.send("hello").await.unwrap().text().trim(), "5");
    let demo = Client::connect(&format!("{url}/demo")).await.unwrap();
    let sent = demo.send("hello").await.unwrap();
    assert_eq!((&*demo.card().name, &*sent.text()), ("demo", "hello"));
    let metrics = crate::bindings::fetch(format!("{url}/metrics")).await.unwrap().text().await.unwrap();
    for agent in ["lines", "demo"] {
        let label = format!("agent=\"{agent}\"");
        let calls = metrics.lines().filter(|line| line.starts_with("a2a_calls_total{") && line.contains(&label));
        assert_eq!(calls.map(|line| line.rsplit_once(' ').unwrap().1).collect::<Vec<_>>(), ["1"], "{metrics}");
    }
    let listed = output(command(&["discover", &url, "--catalog"])).await;
    let text = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.status.success() && text.contains("lines") && text.contains("demo"), "{text}");
    signal(&server, "-TERM");
    assert!(timeout(TIMEOUT, server.wait()).await.unwrap().unwrap().success());
    let stores = ["tasks.lines.db", "tasks.demo.db"].map(|name| directory.path().join(name).exists());
    assert_eq!((stores, directory.path().join("tasks.db").exists()), ([true, true], false));
    let (_server, url) = started(command(&["serve"])).await;
    let demo = Client::connect(&format!("{url}/demo")).await.unwrap();
    assert_eq!(demo.get(&sent.task().unwrap().id).await.unwrap().state(), TaskState::Completed);
    assert_eq!(demo.list(ListTasksRequest::default()).collect::<Vec<_>>().await.len(), 1);
    let printed = output(command(&["serve", "--print-config"])).await;
    let printed = String::from_utf8(printed.stdout).unwrap();
    let tables = printed.split("[[agents]]").skip(1).collect::<Vec<_>>();
    assert!(
        tables[0].contains("name = \"lines\"\n") && tables[0].contains("exec.command = \"/usr/bin/wc -c\""),
        "{printed}"
    );
    assert!(tables[1].contains("name = \"demo\"\n") && tables[1].contains("limits.task_bytes = \"1MiB\""), "{printed}");
    // Scopes that nobody has.
    let scopes = FILE.replace("name = 'demo'", "name = 'demo'\nscopes = ['agent:demo']");
    std::fs::write(directory.path().join("a2a.toml"), scopes).unwrap();
    let failed = output(command(&["serve"])).await;
    let error = String::from_utf8(failed.stderr).unwrap();
    assert_eq!(failed.status.code(), Some(2));
    assert!(error.contains("agents: the scopes of `demo` would not be checked; set auth.tokens"), "{error}");
}
