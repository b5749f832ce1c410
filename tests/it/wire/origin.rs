//! Protection from web pages: DNS rebinding (`Host`), foreign origins (CORS), and requests without a preflight. Such requests
//! reach the agent over no transport.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use a2a_service::{
    agent::{Agent, End, Error, Turn, Updates},
    auth::{Bearer, Token},
    pb::{
        v1::{SendMessageRequest, a2a_service_client::A2aServiceClient},
        v03,
    },
    server::Server,
};
use http::{Method, StatusCode, header};
use reqwest::RequestBuilder;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tonic::{Code, transport::Endpoint};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use super::support::{JsonBody as _, hello, json as body_of, send_json};
use crate::{bindings::program, conformance::CheckLayer};

const CARD: &str = "/.well-known/agent-card.json";
const RPC: &str = r#"{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"hi"}]}}}"#;
const RPC_0_3: &str = r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"kind":"message","messageId":"m","role":"user","parts":[{"kind":"text","text":"hi"}]}}}"#;

/// A host name that only the clients of these tests resolve.
const EVIL: &str = "evil.example";

/// Agent that counts its turns.
#[derive(Clone, Default)]
struct Counting(Arc<AtomicUsize>);

impl Agent for Counting {
    async fn run(&self, _: Turn, _: Updates) -> Result<End, Error> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(End::Completed(None))
    }
}

impl Counting {
    fn turns(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// Serves on a local address until the end of the test, and returns the port.
async fn serve(listen: &str, server: Server) -> u16 {
    let bound = server.layer(CheckLayer).insecure(true).bind((listen, 0)).await.unwrap();
    let port = bound.addr().port();
    tokio::spawn(bound.run_until(std::future::pending()));
    port
}

/// Clients of HTTP/1.1 and HTTP/2 that resolve `name` to this machine, as after DNS rebinding.
fn clients(name: &str) -> [reqwest::Client; 2] {
    let addr = SocketAddr::from(([127, 0, 0, 1], 0));
    let client = || reqwest::Client::builder().resolve(name, addr);
    [client().build().unwrap(), client().http2_prior_knowledge().build().unwrap()]
}

/// A send over each HTTP transport, in both protocol versions.
fn sends(http: &reqwest::Client, base: &str) -> [RequestBuilder; 4] {
    let post = |path: &str, body: &str| http.post(format!("{base}{path}")).json_body(body.to_owned());
    let v03_send = r#"{"message":{"messageId":"m","role":"ROLE_USER","content":[{"text":"hi"}]}}"#;
    [
        post("/message:send", &send_json("m")).header("a2a-version", "1.0"),
        post("/rpc", RPC).header("a2a-version", "1.0"),
        post("/v1/message:send", v03_send),
        post("/rpc", RPC_0_3),
    ]
}

/// Status codes of sends over gRPC with this `:authority`, in both protocol versions.
async fn grpc_codes(port: u16, authority: &str, origin: Option<&'static str>) -> [Code; 2] {
    let channel = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
    let channel = channel.origin(format!("http://{authority}").parse().unwrap()).connect_lazy();
    let with_origin = move |mut request: tonic::Request<()>| {
        if let Some(origin) = origin {
            request.metadata_mut().insert("origin", origin.parse().unwrap());
        }
        Ok(request)
    };
    let mut agent = A2aServiceClient::with_interceptor(channel.clone(), with_origin);
    let sent = SendMessageRequest { message: Some(hello("m")), ..Default::default() };
    let v1 = agent.send_message(sent).await.map_or_else(|status| status.code(), |_| Code::Ok);
    let mut agent = a2a_service::v03::pb::a2a_service_client::A2aServiceClient::with_interceptor(channel, with_origin);
    let message = json!({"messageId": "m", "role": "ROLE_USER", "content": [{"text": "hi"}]});
    let sent = v03::SendMessageRequest { request: serde_json::from_value(message).unwrap(), ..Default::default() };
    [v1, agent.send_message(sent).await.map_or_else(|status| status.code(), |_| Code::Ok)]
}

async fn assert_rejected(request: RequestBuilder, status: u16, code: i32, setting: &str) {
    let reply = request.send().await.unwrap();
    let (url, found) = (reply.url().to_string(), reply.status().as_u16());
    assert!(!reply.headers().contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN), "{url}");
    let body = body_of(reply).await;
    let error = &body["error"];
    let message = error["message"].as_str().unwrap_or_default();
    assert!(found == status && message.contains(setting), "{url}: {found} {body}");
    assert!([json!(status), json!(code)].contains(&error["code"]), "{url}: {body}");
}

#[tokio::test]
async fn foreign_hosts_are_rejected_on_every_transport() {
    for listen in ["127.0.0.1", "::1"] {
        let agent = Counting::default();
        let port = serve(listen, Server::new(agent.clone())).await;
        if listen == "::1" {
            let own = clients("unused.example")[0].get(format!("http://[::1]:{port}{CARD}")).send().await.unwrap();
            assert_eq!(own.status(), 200);
            continue;
        }
        for http in clients(EVIL) {
            let base = format!("http://{EVIL}:{port}");
            for request in sends(&http, &base) {
                assert_rejected(request, 421, -32059, "allowed_hosts").await;
            }
            for path in [CARD, "/tasks", "/nothing"] {
                assert_rejected(http.get(format!("{base}{path}")), 421, -32059, "allowed_hosts").await;
            }
            assert_eq!(http.get(format!("{base}/healthz")).send().await.unwrap().status(), 200);
            assert_eq!(http.get(format!("{base}/readyz")).send().await.unwrap().status(), 200);
        }
        assert_eq!(grpc_codes(port, EVIL, None).await, [Code::FailedPrecondition; 2]);
        let health = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
        let health = health.origin(format!("http://{EVIL}").parse().unwrap()).connect_lazy();
        HealthClient::new(health).check(HealthCheckRequest::default()).await.unwrap();
        assert_eq!(agent.turns(), 0);
    }
}

#[tokio::test]
async fn loopback_hosts_are_accepted_on_every_transport() {
    let agent = Counting::default();
    let port = serve("127.0.0.1", Server::new(agent.clone())).await;
    for name in ["localhost", "a.localhost", "127.0.0.1"] {
        for http in clients(name) {
            for request in sends(&http, &format!("http://{name}:{port}")) {
                assert_eq!(request.send().await.unwrap().status(), 200, "{name}");
            }
        }
        assert_eq!(grpc_codes(port, name, None).await, [Code::Ok; 2]);
    }
    assert_eq!(agent.turns(), 3 * 10);
}

/// The authority of an absolute request target is checked as `Host` is (RFC 9112, 3.2.2), and does not affect the card.
#[tokio::test]
async fn authority_of_the_request_target_is_checked() {
    let port = serve("127.0.0.1", Server::new(Counting::default()).allowed_hosts(["a.example".parse().unwrap()])).await;
    let get = async |target: &str, host: &str| {
        let mut io = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let head = format!("GET {target}{CARD} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        io.write_all(head.as_bytes()).await.unwrap();
        let mut reply = String::new();
        io.read_to_string(&mut reply).await.unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        let body: Value = serde_json::from_str(body).unwrap();
        (head.split(' ').nth(1).unwrap().to_owned(), body["supportedInterfaces"][1]["url"].clone())
    };
    assert_eq!(get("http://evil.example", "127.0.0.1").await.0, "421");
    assert_eq!(get("http://127.0.0.1", "evil.example").await.0, "421");
    assert_eq!(get("http://a.example", "localhost:1").await, ("200".to_owned(), json!("http://localhost:1")));
    assert_eq!(get("", "a.example").await, ("200".to_owned(), json!("http://a.example")));
}

#[tokio::test]
async fn configured_hosts_are_accepted() {
    const OTHER: &str = "agent.example";
    let [http, _] = clients(OTHER);
    let status = async |listen: &str, server: Server| {
        let port = serve(listen, server).await;
        http.get(format!("http://{OTHER}:{port}/tasks")).send().await.unwrap().status().as_u16()
    };
    let server = || Server::new(Counting::default());
    assert_eq!(status("127.0.0.1", server()).await, 421);
    assert_eq!(status("127.0.0.1", server().url("https://agent.example/a")).await, 200);
    let allowed = |text: &str| server().allowed_hosts([text.parse().unwrap()]);
    for (text, expected) in [(OTHER, 200), ("*.example", 200), ("*", 200), ("agent.example:1", 421), ("b.example", 421)]
    {
        assert_eq!(status("127.0.0.1", allowed(text)).await, expected, "{text}");
        assert_eq!(status("0.0.0.0", allowed(text)).await, expected, "{text}");
    }
    // Non-loopback listeners, and routers, which have no address of their own, check hosts only if `allowed_hosts` is set.
    assert_eq!(status("0.0.0.0", server()).await, 200);
    for (router, expected) in [(server().router(), 200), (allowed("b.example").router(), 421)] {
        let port = program(router).await.rsplit_once(':').unwrap().1.to_owned();
        let reply = http.get(format!("http://{OTHER}:{port}/tasks")).send().await.unwrap();
        assert_eq!(reply.status(), expected);
    }
    // A host that a trusted proxy forwards.
    let trusting = server().trusted_proxies(["127.0.0.1".parse().unwrap()]);
    for (server, expected) in [(trusting, 200), (server(), 421)] {
        let url = format!("http://127.0.0.1:{}/tasks", serve("127.0.0.1", server).await);
        let request = http.get(url).header("host", OTHER).header("x-forwarded-host", OTHER);
        assert_eq!(request.send().await.unwrap().status(), expected);
    }
}

/// The listener for gRPC only has its own address and therefore its own check.
#[tokio::test]
async fn each_listener_checks_the_host_by_its_address() {
    let mut bound = Server::new(Counting::default()).insecure(true).bind("0.0.0.0:0").await.unwrap();
    let (port, grpc) = (bound.addr().port(), bound.add("127.0.0.1:0").await.unwrap().port());
    tokio::spawn(bound.run_until(std::future::pending()));
    assert_eq!(grpc_codes(port, EVIL, None).await, [Code::Ok; 2]);
    assert_eq!(grpc_codes(grpc, EVIL, None).await, [Code::FailedPrecondition; 2]);
    assert_eq!(grpc_codes(grpc, "localhost", None).await, [Code::Ok; 2]);
}

#[tokio::test]
async fn foreign_origins_are_rejected_on_every_transport() {
    let agent = Counting::default();
    let port = serve("127.0.0.1", Server::new(agent.clone())).await;
    let base = format!("http://127.0.0.1:{port}");
    let http = crate::bindings::http();
    for (name, value) in [
        ("origin", "https://evil.example"),
        ("origin", "null"),
        ("origin", "http://localhost:1"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
    ] {
        for request in sends(&http, &base) {
            assert_rejected(request.header(name, value), 403, -32058, "cors_origins").await;
        }
        // Requests without a body and reads too: a page can display a response that it cannot read.
        for request in [
            http.post(format!("{base}/tasks/t:cancel")),
            http.post(format!("{base}/tasks/t:subscribe")),
            http.get(format!("{base}/tasks")),
            http.request(Method::OPTIONS, format!("{base}/message:send")),
            http.get(format!("{base}/tasks/t:subscribe")).header("sec-fetch-mode", "navigate"),
            http.post(format!("{base}/rpc")).header("sec-fetch-mode", "navigate").json_body(RPC),
        ] {
            assert_rejected(request.header(name, value), 403, -32058, "cors_origins").await;
        }
        for path in [CARD, "/.well-known/agent.json", "/healthz", "/readyz"] {
            assert_eq!(http.get(format!("{base}{path}")).header(name, value).send().await.unwrap().status(), 200);
        }
        let navigation = http.get(format!("{base}/tasks")).header(name, value).header("sec-fetch-mode", "navigate");
        assert_eq!(navigation.send().await.unwrap().status(), 200);
    }
    assert_eq!(grpc_codes(port, "127.0.0.1", Some("https://evil.example")).await, [Code::PermissionDenied; 2]);
    assert_eq!(agent.turns(), 0);
    // The server's own origin, and addresses that a person types.
    let own = format!("http://127.0.0.1:{port}");
    for (name, value) in [("origin", own.as_str()), ("sec-fetch-site", "same-origin"), ("sec-fetch-site", "none")] {
        for request in sends(&http, &base) {
            assert_eq!(request.header(name, value).send().await.unwrap().status(), 200, "{name}: {value}");
        }
    }
    assert_eq!(agent.turns(), 3 * 4);
}

/// Pages of a configured origin get preflight responses, and may read responses.
#[tokio::test]
async fn configured_origins_may_send_and_read() {
    const APP: &str = "https://app.example";
    let agent = Counting::default();
    let server = Server::new(agent.clone()).cors_origins([APP.parse().unwrap()]);
    let token = Token::new("secret").unwrap();
    let base = format!("http://127.0.0.1:{}", serve("127.0.0.1", server.authenticator(Bearer::new(token))).await);
    let http = crate::bindings::http();
    let preflight = http.request(Method::OPTIONS, format!("{base}/message:send")).header("origin", APP);
    let preflight = preflight.header("access-control-request-method", "POST");
    let preflight = preflight.header("access-control-request-headers", "authorization,content-type,a2a-version");
    let reply = preflight.header("sec-fetch-site", "cross-site").send().await.unwrap();
    assert_eq!(reply.status(), 204, "a preflight has no token");
    let header = |name: &str| reply.headers()[name].to_str().unwrap().to_owned();
    assert_eq!(header("access-control-allow-origin"), APP);
    assert_eq!(header("access-control-allow-headers"), "authorization,content-type,a2a-version");
    assert!(header("access-control-allow-methods").split(", ").any(|method| method == "POST"));
    for (token, status) in [("secret", StatusCode::OK), ("wrong", StatusCode::UNAUTHORIZED)] {
        for request in sends(&http, &base) {
            let request = request.bearer_auth(token).header("origin", APP).header("sec-fetch-site", "cross-site");
            let reply = request.send().await.unwrap();
            assert_eq!(reply.status(), status);
            assert_eq!(reply.headers()[header::ACCESS_CONTROL_ALLOW_ORIGIN], APP);
            let vary = reply.headers().get_all(header::VARY).iter().any(|value| value == "origin");
            assert!(vary, "{:?}", reply.headers());
        }
    }
    assert_eq!(agent.turns(), 4);
    // Other origins are rejected.
    for request in sends(&http, &base) {
        assert_rejected(
            request.bearer_auth("secret").header("origin", "https://evil.example"),
            403,
            -32058,
            "cors_origins",
        )
        .await;
    }
    // Every page may read the card.
    let card = http.get(format!("{base}{CARD}")).header("origin", APP).send().await.unwrap();
    assert_eq!(card.headers()[header::ACCESS_CONTROL_ALLOW_ORIGIN], "*");
}

/// Browsers send requests without a preflight only if they have no content type, or one of text or forms.
#[tokio::test]
async fn body_without_a_json_content_type_is_rejected() {
    let agent = Counting::default();
    let base = format!("http://127.0.0.1:{}", serve("127.0.0.1", Server::new(agent.clone())).await);
    let http = crate::bindings::http();
    let v03_send = r#"{"message":{"messageId":"m","role":"ROLE_USER","content":[{"text":"hi"}]}}"#;
    for (path, body) in [
        ("/message:send", send_json("m")),
        ("/message:stream", send_json("m")),
        ("/rpc", RPC.to_owned()),
        ("/rpc", RPC_0_3.to_owned()),
        ("/v1/message:send", v03_send.to_owned()),
        ("/tasks/t:cancel", "{}".to_owned()),
    ] {
        let post = || http.post(format!("{base}{path}")).header("a2a-version", "1.0");
        let types =
            ["", "text/plain", "text/plain;charset=UTF-8", "application/x-www-form-urlencoded", "multipart/form-data"];
        for content_type in types {
            let request =
                if content_type.is_empty() { post() } else { post().header(header::CONTENT_TYPE, content_type) };
            let error = body_of(request.body(body.clone()).send().await.unwrap()).await["error"].take();
            let message = error["message"].as_str().unwrap_or_default();
            assert!(message.starts_with("Incompatible content types"), "{path} {content_type}: {error}");
            if content_type.is_empty() {
                assert!(message.contains("-H 'content-type: application/json'"), "{message}");
            }
        }
    }
    assert_eq!(agent.turns(), 0);
    // A request without a body needs no content type.
    let reply = body_of(http.post(format!("{base}/tasks/t:cancel")).send().await.unwrap()).await;
    assert_eq!(reply["error"]["details"][0]["reason"], "TASK_NOT_FOUND", "{reply}");
}
