//! `a2a doctor`: finds nothing in a sound agent, and each of the faults that are planted in one.

use std::{sync::Arc, time::Duration};

use a2a_service::{
    agent::{Agent, End, demo::Demo, from_fn},
    auth::{Bearer, Token},
    client::Client,
    pb::v1::ListTasksRequest,
    protocol::Protocols,
    push::PushOptions,
    server::{Server, Tls},
};
use axum::{
    body::{Body, Bytes, to_bytes},
    extract::Request,
    middleware::{Next, from_fn as layer_fn},
    response::Response,
};
use futures::future::{BoxFuture, join_all};
use http::{HeaderValue, Method, StatusCode, header};
use serde_json::{Value, json};
use tokio_stream::StreamExt as _;

use crate::program::{a2a, output};

/// Agent that answers at once or after a while, as the text says.
fn agent() -> impl Agent {
    from_fn(|turn, out| async move {
        out.working().await?;
        if turn.text() == "slow" {
            _ = tokio::time::timeout(Duration::from_millis(700), std::future::pending::<()>()).await;
        }
        out.artifact("echo").text(turn.text()).await?;
        Ok(End::completed("done"))
    })
}

fn server() -> Server {
    let push = PushOptions::default().allow(vec!["http://127.0.0.1".parse().unwrap()]);
    Server::new(agent()).name("Sound").description("Sound agent").push(true).push_options(push)
}

/// Something between the clients and the agent.
type Proxy = Arc<dyn Fn(Request, Next) -> BoxFuture<'static, Response> + Send + Sync>;

/// Serves an agent behind a proxy, and returns its URL.
async fn serve(server: Server, proxy: impl Into<Option<Proxy>>) -> String {
    let server = match proxy.into() {
        Some(proxy) => server.layer(layer_fn(move |request: Request, next: Next| proxy(request, next))),
        None => server,
    };
    let bound = server.bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", bound.addr());
    tokio::spawn(bound.run_until(std::future::pending()));
    url
}

/// Proxy that changes requests.
fn request(change: impl Fn(&mut Request) + Send + Sync + 'static) -> Proxy {
    let change = Arc::new(change);
    Arc::new(move |mut request, next| {
        change(&mut request);
        Box::pin(next.run(request))
    })
}

/// Proxy that changes responses to requests whose path contains a text.
fn response(path: &'static str, change: impl Fn(&mut Response) + Send + Sync + 'static) -> Proxy {
    let change = Arc::new(change);
    Arc::new(move |request, next| {
        let (change, applies) = (Arc::clone(&change), request.uri().path().contains(path));
        Box::pin(async move {
            let mut response = next.run(request).await;
            if applies {
                change(&mut response);
            }
            response
        })
    })
}

/// Proxy that changes JSON in responses to requests whose path contains a text. The response is complete before it is sent.
fn body(path: &'static str, change: impl Fn(&mut Value) + Send + Sync + 'static) -> Proxy {
    let change = Arc::new(change);
    Arc::new(move |request, next| {
        let (change, applies) = (Arc::clone(&change), request.uri().path().contains(path));
        Box::pin(async move {
            let response = next.run(request).await;
            if !applies {
                return response;
            }
            let (mut parts, body) = response.into_parts();
            let bytes = to_bytes(body, 1 << 20).await.unwrap();
            parts.headers.remove(header::CONTENT_LENGTH);
            let Ok(mut value) = serde_json::from_slice(&bytes) else {
                return Response::from_parts(parts, bytes.into());
            };
            change(&mut value);
            Response::from_parts(parts, value.to_string().into())
        })
    })
}

/// Runs `a2a doctor`, and returns its exit code and its checks.
async fn doctor(url: &str, arguments: &[&str]) -> (i32, Vec<Value>) {
    let output = output(a2a(&[&["doctor", url, "-o", "json"], arguments].concat())).await;
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    (output.status.code().unwrap(), report["checks"].as_array().unwrap().clone())
}

fn with_status<'a>(checks: &'a [Value], status: &str) -> Vec<&'a str> {
    checks.iter().filter(|check| check["status"] == status).map(|check| check["name"].as_str().unwrap()).collect()
}

/// Checks that exactly one check, whose name ends with `expected`, has the status.
async fn finds(fault: &str, url: &str, arguments: &[&str], status: &str, expected: &str) {
    let (code, checks) = doctor(url, arguments).await;
    let found = with_status(&checks, status);
    assert!(found.len() == 1 && found[0].ends_with(expected), "{fault}: {checks:#?}");
    let check = checks.iter().find(|check| check["status"] == status).unwrap();
    assert!(!check["detail"].as_str().unwrap().is_empty() && check["remedy"].is_string(), "{fault}: {check}");
    let expected = match expected {
        _ if status == "warning" => 0,
        "dns" | "tcp" | "tls" | "card" => 3,
        _ => 1,
    };
    assert_eq!(code, expected, "{fault}");
}

const REST: [&str; 4] = ["--binding", "rest", "--protocol", "1.0"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sound_agents_have_no_failed_checks() {
    let url = serve(server(), None).await;
    let (code, checks) = doctor(&url, &[]).await;
    assert_eq!(
        (code, with_status(&checks, "failed"), with_status(&checks, "warning")),
        (0, vec![], vec![]),
        "{checks:#?}"
    );
    for check in ["authentication", "call", "send", "get", "stream", "cancel", "push"] {
        let count = checks.iter().filter(|one| one["name"].as_str().unwrap().ends_with(&format!(": {check}"))).count();
        assert_eq!(count, 6, "{check}: three bindings of two versions");
    }
    let guarded = serve(server().authenticator(Bearer::new(Token::new("sesame").unwrap())), None).await;
    let (code, checks) = doctor(&guarded, &["--token", "sesame"]).await;
    assert_eq!((code, with_status(&checks, "failed")), (0, vec![]), "{checks:#?}");
    let (code, checks) = doctor(&guarded, &["--no-send"]).await;
    assert_eq!((code, with_status(&checks, "failed")), (0, vec![]), "{checks:#?}");
}

/// Each interface is checked with the same address, to which notifications of the check before may still come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn push_is_checked_at_a_fixed_address() {
    let url = serve(server(), None).await;
    // Below the ports that other tests get from the system, since it is free between two checks.
    let is_free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let address = format!("127.0.0.1:{}", (21_000..25_000).find(is_free).unwrap());
    let (_, checks) = doctor(&url, &["--push-listen", &address]).await;
    let found: Vec<_> = checks.iter().filter(|one| one["name"].as_str().unwrap().ends_with(": push")).collect();
    assert_eq!(found.len(), 6, "{checks:#?}");
    assert!(found.iter().all(|one| one["status"] == "ok"), "{found:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreachable_agents_are_told_apart() {
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    finds("nothing listens", &closed, &[], "failed", "tcp").await;
    finds("the name has no address", "http://nothing.invalid", &[], "failed", "dns").await;
    let self_signed = server().tls(Tls::self_signed([]).unwrap());
    let url = serve(self_signed, None).await.replace("http:", "https:");
    finds("nobody has issued the certificate", &url, &[], "failed", "tls").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_cards_are_found() {
    let no_card = response("/.well-known/", |response| *response.status_mut() = StatusCode::NOT_FOUND);
    finds("no card", &serve(server(), no_card).await, &[], "failed", "card").await;
    let html = response("/.well-known/", |response| *response.body_mut() = Body::from("<html>"));
    finds("the card is HTML", &serve(server(), html).await, &[], "failed", "card").await;
    let plain = response("/.well-known/", |response| {
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    });
    finds("the card has another content type", &serve(server(), plain).await, &REST, "warning", "card").await;
    let nameless = body("/.well-known/", |card| _ = card.as_object_mut().unwrap().remove("defaultInputModes"));
    finds("the card lacks a member", &serve(server(), nameless).await, &REST, "failed", "card: schema").await;
    let elsewhere = body("/.well-known/", |card| card["supportedInterfaces"][1]["url"] = json!("http://127.0.0.1:9/"));
    finds("the URL is wrong", &serve(server(), elsewhere).await, &REST, "failed", "HTTP+JSON 1.0: call").await;
    let absent = body("/.well-known/", |card| {
        let url = card["supportedInterfaces"][0]["url"].as_str().unwrap().replace("/rpc", "/nothing");
        card["supportedInterfaces"][0]["url"] = json!(url);
    });
    let rpc = ["--binding", "jsonrpc", "--protocol", "1.0"];
    finds("the binding is absent", &serve(server(), absent).await, &rpc, "failed", "JSONRPC 1.0: call").await;
    let other_version = body("/.well-known/", |card| {
        let mut interface = card["supportedInterfaces"][0].clone();
        interface["protocolVersion"] = json!("0.3");
        card["supportedInterfaces"].as_array_mut().unwrap().push(interface);
    });
    let only_v1 = server().protocols([a2a_service::protocol::Version::V1_0].into_iter().collect::<Protocols>());
    let old = ["--binding", "jsonrpc", "--protocol", "0.3"];
    finds("the version is not served", &serve(only_v1, other_version).await, &old, "failed", "JSONRPC 0.3: call").await;
    let extended = body("/.well-known/", |card| card["capabilities"]["extendedAgentCard"] = json!(true));
    finds("no extended card", &serve(server(), extended).await, &REST, "failed", "extended card").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_authentication_are_found() {
    let guarded = || server().authenticator(Bearer::new(Token::new("sesame").unwrap()));
    let with_token = [&REST[..], &["--token", "sesame"]].concat();
    let bare = response("/tasks", |response| _ = response.headers_mut().remove(header::WWW_AUTHENTICATE));
    finds("no challenge", &serve(guarded(), bare).await, &with_token, "failed", "authentication").await;
    let forbidden = response("/tasks", |response| {
        if response.status() == StatusCode::UNAUTHORIZED {
            *response.status_mut() = StatusCode::FORBIDDEN;
        }
    });
    finds("403 without credentials", &serve(guarded(), forbidden).await, &with_token, "failed", "authentication").await;
    let dropped = request(|request| _ = request.headers_mut().remove(header::AUTHORIZATION));
    finds("a proxy drops credentials", &serve(guarded(), dropped).await, &with_token, "failed", "call").await;
    let pretended = body("/.well-known/", |card| {
        let scheme = json!({"type": "http", "scheme": "Bearer", "httpAuthSecurityScheme": {"scheme": "Bearer"}});
        card["securitySchemes"] = json!({"bearer": scheme});
        card["securityRequirements"] = json!([{"schemes": {"bearer": {"list": []}}}]);
    });
    finds("the agent is open", &serve(server(), pretended).await, &REST, "failed", "authentication").await;
    let foreign: Proxy = Arc::new(|request: Request, next: Next| -> BoxFuture<'static, Response> {
        Box::pin(async move {
            if request.method() != Method::OPTIONS {
                return next.run(request).await;
            }
            let response = Response::builder().header("access-control-allow-origin", &request.headers()["origin"]);
            response.header("access-control-allow-credentials", "true").body(Body::empty()).unwrap()
        })
    });
    finds("every page is allowed", &serve(server(), foreign).await, &REST, "failed", "cors").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_calls_are_found() {
    let unversioned = request(|request| _ = request.headers_mut().remove("a2a-version"));
    let other_id = body("/rpc", |response| response["id"] = json!(99));
    let rpc = ["--binding", "jsonrpc", "--protocol", "1.0"];
    let single = response("/message:stream", |response| {
        *response.body_mut() = Body::from(Bytes::from_static(b"{\"task\": {\"id\": \"1\"}}"));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response.headers_mut().remove(header::CONTENT_LENGTH);
    });
    let slow = [&REST[..], &["--message", "slow"]].concat();
    let buffered = body("/message:stream", |_| {});
    let forgetful = request(|request| _ = request.headers_mut().remove("last-event-id"));
    let unnotified: Proxy = Arc::new(|request, next| {
        Box::pin(async move {
            if !request.uri().path().contains("/message:send") {
                return next.run(request).await;
            }
            let (mut parts, body) = request.into_parts();
            let mut value: Value = serde_json::from_slice(&to_bytes(body, 1 << 20).await.unwrap()).unwrap();
            value["configuration"]
                .as_object_mut()
                .map(|configuration| configuration.remove("taskPushNotificationConfig"));
            parts.headers.remove(header::CONTENT_LENGTH);
            next.run(Request::from_parts(parts, value.to_string().into())).await
        })
    });
    let faults = [
        ("a proxy drops A2A-Version", unversioned, &REST[..], "HTTP+JSON 1.0: version"),
        ("the id is another", other_id, &rpc, "JSONRPC 1.0: call"),
        ("no events", single, &REST, "stream"),
        ("a proxy buffers", buffered, &slow, "stream"),
        ("a proxy drops Last-Event-ID", forgetful, &REST, "resume"),
        ("no notifications", unnotified, &REST, "push"),
    ];
    let checks = faults.map(async |(fault, proxy, arguments, expected): (&str, Proxy, &[&str], &str)| {
        finds(fault, &serve(server(), proxy).await, arguments, "failed", expected).await;
    });
    join_all(checks).await;
}

/// The agent does not get cancels: a proxy answers them with the task as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancel_without_effect_is_found() {
    let uncanceled = request(|request| {
        if let Some(path) = request.uri().path().strip_suffix(":cancel").map(str::to_owned) {
            *request.uri_mut() = path.parse().unwrap();
            *request.method_mut() = Method::GET;
            request.headers_mut().remove(header::CONTENT_LENGTH);
            request.headers_mut().remove(header::CONTENT_TYPE);
            *request.body_mut() = Body::empty();
        }
    });
    let slow = [&REST[..], &["--message", "slow"]].concat();
    finds("cancels have no effect", &serve(server(), uncanceled).await, &slow, "failed", "cancel").await;
}

/// Tasks that wait or run at the end of the checks are canceled, also those whose answer was not awaited, and push
/// configurations are deleted. What can't be canceled is named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_behind() {
    let push = PushOptions::default().allow(vec!["http://127.0.0.1".parse().unwrap()]);
    let demo = || Server::new(Demo).push(true).push_options(push.clone());
    let url = serve(demo(), None).await;
    let client = Client::connect(&url).await.unwrap();
    for (flags, code) in [(&["--message", "/ask City?"][..], 0), (&["--message", "/slow 60", "--timeout", "1s"], 1)] {
        let (found, checks) = doctor(&url, &[flags, &["--protocol", "1.0"]].concat()).await;
        assert_eq!(found, code, "{checks:#?}");
        let cleanups: Vec<_> =
            checks.iter().filter(|one| one["name"].as_str().unwrap().ends_with(": cleanup")).collect();
        assert!(cleanups.len() == 3 && cleanups.iter().all(|one| one["status"] == "ok"), "{cleanups:#?}");
    }
    let tasks: Vec<_> = client.list(ListTasksRequest::default()).collect().await;
    assert!(tasks.len() > 9, "{tasks:?}");
    for task in tasks {
        let task = task.unwrap();
        assert!(task.state().is_terminal(), "{task:?}");
        assert_eq!(client.push(&task.id).list().await.unwrap(), [], "{task:?}");
    }
    let refusing: Proxy = Arc::new(|request: Request, next: Next| {
        Box::pin(async move {
            let is_cancel = request.uri().path().ends_with(":cancel");
            let refused = Response::builder().status(StatusCode::NOT_IMPLEMENTED).body(Body::empty()).unwrap();
            if is_cancel { refused } else { next.run(request).await }
        })
    });
    let url = serve(demo(), refusing).await;
    let (_, checks) = doctor(&url, &[&REST[..], &["--message", "/ask City?"]].concat()).await;
    let cleanup = checks.iter().find(|one| one["name"].as_str().unwrap().ends_with(": cleanup")).unwrap();
    let detail = cleanup["detail"].as_str().unwrap();
    assert!(cleanup["status"] == "warning" && detail.starts_with("left at the agent: task "), "{cleanup}");
}

/// The report ends with a verdict, and with at most three faults to mend first, failures before warnings.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn report_ends_with_a_verdict_and_what_to_fix_first() {
    let text = async |url: &str, arguments: &[&str]| {
        let output = output(a2a(&[&["doctor", url], arguments].concat())).await;
        String::from_utf8(output.stdout).unwrap()
    };
    let url = serve(server(), None).await;
    let sound = text(&url, &REST).await;
    assert!(sound.lines().last().unwrap().starts_with("Verdict: sound ("), "{sound}");
    let faulty: Proxy = Arc::new(|mut request: Request, next: Next| {
        Box::pin(async move {
            request.headers_mut().remove("a2a-version");
            request.headers_mut().remove("last-event-id");
            let is_card = request.uri().path().contains("/.well-known/");
            let mut response = next.run(request).await;
            if is_card {
                response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
            }
            response
        })
    });
    let url = serve(server(), faulty).await;
    let report = text(&url, &REST).await;
    let (_, end) = report.split_once("\nVerdict: faulty (").unwrap();
    let named: Vec<_> = end.lines().skip(1).filter(|line| line.starts_with(|c: char| c.is_ascii_digit())).collect();
    let expected = ["1. HTTP+JSON 1.0: version: ", "2. HTTP+JSON 1.0: resume: ", "3. card: "];
    assert!(named.iter().zip(expected).all(|(fault, expected)| fault.starts_with(expected)), "{end}");
    assert_eq!((named.len(), end.matches("\n   -> ").count()), (3, 3), "{end}");
    assert!(report.lines().all(|line| line.chars().count() <= 80), "{report}");
    let guarded = serve(server().authenticator(Bearer::new(Token::new("sesame").unwrap())), None).await;
    assert!(text(&guarded, &REST).await.contains("Verdict: no call was checked"), "without credentials");
}
