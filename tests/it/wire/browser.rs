//! Response headers for browsers: CORS and security headers on every kind of response, and the checks of `Host` and `Origin`
//! behind proxies and with `public_url`.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use a2a_service::{
    agent::demo::Demo,
    auth::{Bearer, Token},
    server::Server,
    transport::AllowedOrigin,
};
use http::{HeaderMap, HeaderName, Method, StatusCode, header};
use reqwest::{RequestBuilder, Response};

use super::support::{JsonBody as _, json, send_json};
use crate::{
    bindings,
    conformance::{Exemption, allow_undocumented},
};

const APP: &str = "https://app.example";
const FOREIGN: &str = "https://evil.example";

/// Request headers of clients that a page can set: those of the protocol, of gRPC-Web, of tracing and of API keys.
const REQUEST_HEADERS: &str = "a2a-extensions,a2a-version,authorization,content-type,grpc-timeout,idempotency-key,\
    last-event-id,tenant-key,traceparent,tracestate,x-a2a-extensions,x-api-key,x-grpc-web,x-request-id,x-user-agent";

const CARD: &str = "/.well-known/agent-card.json";
const RPC: &str = r#"{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"missing"}}"#;
const STREAM: &str = r#"{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"/stream 3 1"}]}}"#;

/// Empty message in a frame of gRPC-Web.
const EMPTY_FRAME: [u8; 5] = [0; 5];

fn demo() -> Server {
    Server::new(Demo).authenticator(Bearer::new(Token::new("secret").unwrap()))
}

fn origins(texts: &[&str]) -> Vec<AllowedOrigin> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap())
}

fn varies_by_origin(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(header::VARY).iter().map(|line| line.to_str().unwrap());
    lines.flat_map(|line| line.split(", ")).any(|name| name == "origin")
}

/// A request of each binding that gets a response with a body, and its status.
fn calls(http: &reqwest::Client, base: &str) -> Vec<(RequestBuilder, u16)> {
    let url = |path: &str| format!("{base}{path}");
    let of_web = |content_type: &str, path: &str| {
        let path = url(&format!("/lf.a2a.v1.A2AService/{path}"));
        http.post(path).header(header::CONTENT_TYPE, content_type).body(EMPTY_FRAME.to_vec())
    };
    vec![
        (http.post(url("/message:send")).json_body(send_json("m")), 200),
        (http.post(url("/message:stream")).json_body(STREAM), 200),
        (http.get(url("/tasks")), 200),
        (http.get(url("/tasks/missing")), 404),
        (http.put(url("/tasks")), 405),
        (http.post(url("/message:send")).header(header::CONTENT_TYPE, "text/plain").body("{}"), 400),
        (http.post(url("/rpc")).json_body(RPC), 200),
        (http.get(url("/rpc")), 405),
        (http.post(url("/v1/message:send")).json_body("{}"), 400),
        (of_web("application/grpc-web+proto", "ListTasks"), 200),
        (of_web("application/grpc-web+proto", "GetTask"), 200),
        (http.get(url("/agent/authenticatedExtendedCard")), 404),
    ]
}

async fn send(request: RequestBuilder) -> (String, Response) {
    let response = request.send().await.unwrap();
    (format!("{} {}", response.url().path(), response.status()), response)
}

#[tokio::test]
async fn every_binding_and_error_has_cors_headers_for_allowed_origins() {
    allow_undocumented(Exemption::Requests);
    let base = bindings::serve(demo().cors_origins(origins(&[APP, "http://localhost:3000"])).body_bytes(4096)).await;
    let http = bindings::http();
    let mut requests = Vec::new();
    for (request, status) in calls(&http, &base) {
        requests.push((request.bearer_auth("secret"), status));
    }
    // Without credentials; as gRPC-Web, the status is in the headers.
    for (request, _) in calls(&http, &base) {
        let is_grpc = request.try_clone().unwrap().build().unwrap().url().path().contains("A2AService");
        requests.push((request, if is_grpc { 200 } else { 401 }));
    }
    let large = http.post(format!("{base}/message:send")).json_body(" ".repeat(5000));
    requests.push((large.bearer_auth("secret"), 413));
    for (request, status) in requests {
        let (name, response) = send(request.header("origin", APP).header("sec-fetch-site", "cross-site")).await;
        assert_eq!(response.status(), status, "{name}");
        let headers = response.headers();
        assert_eq!(text(headers, "access-control-allow-origin"), Some(APP), "{name}");
        assert!(varies_by_origin(headers), "{name}: {headers:?}");
        assert!(!headers.contains_key("access-control-allow-credentials"), "{name}");
        assert_eq!(text(headers, "cross-origin-resource-policy"), Some("cross-origin"), "{name}");
        let exposed: Vec<_> = text(headers, "access-control-expose-headers").unwrap().split(", ").collect();
        for expected in [
            "a2a-extensions",
            "a2a-version",
            "etag",
            "grpc-message",
            "grpc-status",
            "grpc-status-details-bin",
            "idempotency-key",
            "location",
            "retry-after",
            "www-authenticate",
            "x-a2a-extensions",
            "x-request-id",
        ] {
            assert!(exposed.contains(&expected), "{name}: {exposed:?}");
        }
        if status == 401 {
            assert!(headers.contains_key(header::WWW_AUTHENTICATE), "{name}");
        }
        drop(response);
    }
    // Responses to clients without an origin must not be cached for pages.
    for (request, _) in calls(&http, &base) {
        let (name, response) = send(request.bearer_auth("secret")).await;
        let headers = response.headers();
        assert!(
            varies_by_origin(headers) && !headers.contains_key("access-control-allow-origin"),
            "{name}: {headers:?}"
        );
        assert_eq!(text(headers, "cross-origin-resource-policy"), Some("same-origin"), "{name}");
    }
}

/// Limits per client reject a request before anything else is known about it.
#[tokio::test]
async fn pages_can_read_that_they_exceed_a_limit() {
    let server = demo().cors_origins(origins(&[APP])).failed_authentications(1);
    let trusting = server.trusted_proxies(["127.0.0.1".parse().unwrap()]).connections_per_peer(1);
    let base = bindings::serve(trusting).await;
    let http = bindings::http();
    let list = |client: &str, token: &str| {
        let request = http.get(format!("{base}/tasks")).header("x-forwarded-for", client).header("origin", APP);
        request.bearer_auth(token).send()
    };
    let check = |response: &Response| {
        assert_eq!(response.status(), 429);
        assert_eq!(text(response.headers(), "access-control-allow-origin"), Some(APP));
        assert!(response.headers().contains_key(header::RETRY_AFTER));
    };
    assert_eq!(list("192.0.2.1", "wrong").await.unwrap().status(), 401);
    check(&list("192.0.2.1", "wrong").await.unwrap());
    let slow = r#"{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"/slow 60"}]}}"#;
    let open = http.post(format!("{base}/message:stream")).header("x-forwarded-for", "192.0.2.2");
    let open = open.bearer_auth("secret").json_body(slow).send().await.unwrap();
    assert_eq!(open.status(), 200);
    check(&list("192.0.2.2", "secret").await.unwrap());
}

/// Invalid HTTP is rejected before the origin is checked.
#[tokio::test]
async fn pages_can_read_errors_of_http_framing() {
    let base = bindings::serve(demo().cors_origins(origins(&[APP]))).await;
    let address = base.strip_prefix("http://").unwrap().to_owned();
    let reply = tokio::task::spawn_blocking(move || {
        let mut io = TcpStream::connect(&address).unwrap();
        let head = format!(
            "POST /message:send HTTP/1.1\r\nhost: {address}\r\nhost: {address}\r\norigin: {APP}\r\ncontent-length: 2\r\n\
             connection: close\r\n\r\n{{}}"
        );
        io.write_all(head.as_bytes()).unwrap();
        let mut reply = String::new();
        io.read_to_string(&mut reply).unwrap();
        reply
    });
    let reply = reply.await.unwrap();
    assert!(reply.starts_with("HTTP/1.1 400 "), "{reply}");
    assert!(reply.contains(&format!("access-control-allow-origin: {APP}\r\n")), "{reply}");
}

fn preflight(http: &reqwest::Client, url: String, method: &str, origin: &str) -> RequestBuilder {
    let request = http.request(Method::OPTIONS, url).header("origin", origin);
    request.header("access-control-request-method", method).header("access-control-request-headers", REQUEST_HEADERS)
}

#[tokio::test]
async fn preflights_need_no_authentication_and_allow_the_headers_of_clients() {
    let base = bindings::serve(demo().cors_origins(origins(&[APP]))).await;
    let http = bindings::http();
    for (path, method) in [
        ("/message:send", "POST"),
        ("/message:stream", "POST"),
        ("/tasks/t:subscribe", "GET"),
        ("/tasks/t/pushNotificationConfigs/p", "DELETE"),
        ("/acme/tasks", "GET"),
        ("/v1/message:send", "POST"),
        ("/rpc", "POST"),
        ("/", "POST"),
        ("/lf.a2a.v1.A2AService/SendStreamingMessage", "POST"),
        ("/agent/authenticatedExtendedCard", "GET"),
        (CARD, "GET"),
    ] {
        let (name, response) = send(preflight(&http, format!("{base}{path}"), method, APP)).await;
        let headers = response.headers();
        assert_eq!(response.status(), StatusCode::NO_CONTENT, "{name}");
        assert_eq!(text(headers, "access-control-allow-origin"), Some(APP), "{name}");
        assert_eq!(text(headers, "access-control-allow-headers"), Some(REQUEST_HEADERS), "{name}");
        assert_eq!(text(headers, "access-control-max-age"), Some("600"), "{name}");
        assert!(varies_by_origin(headers), "{name}");
        assert!(!headers.contains_key("access-control-allow-credentials"), "{name}");
        let methods: Vec<_> = text(headers, "access-control-allow-methods").unwrap().split(", ").collect();
        assert_eq!(methods, ["GET", "HEAD", "POST", "DELETE", "OPTIONS"], "{name}");
        if path != CARD {
            let foreign = preflight(&http, format!("{base}{path}"), method, FOREIGN).send().await.unwrap();
            assert_eq!(foreign.status(), 403, "{name}");
            assert!(!foreign.headers().keys().any(|name| name.as_str().starts_with("access-control-")), "{name}");
        }
    }
    // Pages of other origins may read the card.
    let foreign = preflight(&http, format!("{base}{CARD}"), "GET", FOREIGN).send().await.unwrap();
    assert_eq!((foreign.status().as_u16(), text(foreign.headers(), "access-control-allow-origin")), (204, Some("*")));
}

#[tokio::test]
async fn every_origin_is_allowed_without_credentials() {
    allow_undocumented(Exemption::Requests);
    let base = bindings::serve(demo().cors_origins(origins(&["*"]))).await;
    let http = bindings::http();
    for origin in [FOREIGN, "null"] {
        let allowed = preflight(&http, format!("{base}/message:send"), "POST", origin);
        let mut requests = vec![allowed];
        requests.extend(calls(&http, &base).into_iter().map(|(request, _)| request.header("origin", origin)));
        for request in requests {
            let (name, response) = send(request).await;
            let headers = response.headers();
            assert_eq!(text(headers, "access-control-allow-origin"), Some("*"), "{name}");
            assert!(!varies_by_origin(headers), "{name}");
            assert!(!headers.contains_key("access-control-allow-credentials"), "{name}");
        }
    }
}

#[tokio::test]
async fn without_configured_origins_only_public_resources_have_cors_headers() {
    let base = bindings::serve(demo()).await;
    let http = bindings::http();
    for (request, _) in calls(&http, &base) {
        let (name, response) = send(request.bearer_auth("secret").header("origin", APP)).await;
        let headers = response.headers();
        assert!(!headers.keys().any(|name| name.as_str().starts_with("access-control-")), "{name}: {headers:?}");
        assert!(!varies_by_origin(headers), "{name}");
    }
    let card = http.get(format!("{base}{CARD}")).header("origin", APP).send().await.unwrap();
    assert_eq!(text(card.headers(), "access-control-allow-origin"), Some("*"));
    assert_eq!(text(card.headers(), "cross-origin-resource-policy"), Some("cross-origin"));
}

/// Values of the security headers.
fn security(headers: &HeaderMap) -> [Option<&str>; 5] {
    let names = [
        header::X_CONTENT_TYPE_OPTIONS.as_str(),
        header::X_FRAME_OPTIONS.as_str(),
        header::REFERRER_POLICY.as_str(),
        "cross-origin-resource-policy",
        "cross-origin-opener-policy",
    ];
    let count = |name: &str| headers.get_all(name).iter().count();
    assert!(names.iter().all(|name| count(name) <= 1) && count("content-security-policy") <= 1, "{headers:?}");
    names.map(|name| text(headers, name))
}

#[tokio::test]
async fn every_response_has_security_headers() {
    allow_undocumented(Exemption::Requests);
    let base = bindings::serve(demo()).await;
    let http = bindings::http();
    let get = |path: &str| http.get(format!("{base}{path}"));
    let strict = "default-src 'none'; frame-ancestors 'none'";
    let mut requests: Vec<_> = calls(&http, &base).into_iter().map(|(request, _)| request).collect();
    requests.extend(calls(&http, &base).into_iter().map(|(request, _)| request.bearer_auth("secret")));
    requests.extend([
        get("/tasks").header("origin", FOREIGN),
        get("/tasks").header("host", "evil.example"),
        get("/nothing"),
        http.head(format!("{base}/tasks")),
        http.request(Method::OPTIONS, format!("{base}/message:send")),
    ]);
    for request in requests {
        let (name, response) = send(request).await;
        let headers = response.headers();
        let expected = [Some("nosniff"), None, None, Some("same-origin"), None];
        assert_eq!(security(headers), expected, "{name}");
        assert_eq!(text(headers, "content-security-policy"), Some(strict), "{name}");
    }
    for request in [get(CARD), get("/healthz"), get("/readyz")] {
        let (name, response) = send(request).await;
        assert_eq!(&security(response.headers())[..3], [Some("nosniff"), None, None], "{name}");
        assert_eq!(text(response.headers(), "content-security-policy"), Some(strict), "{name}");
    }
}

#[cfg(feature = "docs")]
#[tokio::test]
async fn docs_have_a_policy_of_their_own() {
    let base = bindings::serve(demo().docs(true)).await;
    let response = bindings::fetch(format!("{base}/docs/")).await.unwrap();
    let headers = response.headers();
    assert!(text(headers, "content-type").unwrap().starts_with("text/html"), "{headers:?}");
    let [nosniff, frame, referrer, _, opener] = security(headers);
    let expected = [Some("nosniff"), Some("DENY"), Some("no-referrer"), Some("same-origin")];
    assert_eq!([nosniff, frame, referrer, opener], expected);
    let policy = text(headers, "content-security-policy").unwrap();
    assert!(policy.contains("script-src 'self'") && policy.contains("frame-ancestors 'none'"), "{policy}");
}

/// gRPC needs none of the headers, which each call would pay for.
#[tokio::test]
async fn grpc_has_no_browser_headers() {
    let base = bindings::serve(demo().cors_origins(origins(&["*"]))).await;
    let http = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
    let request = http.post(format!("{base}/lf.a2a.v1.A2AService/GetTask")).header("te", "trailers");
    let request = request.header(header::CONTENT_TYPE, "application/grpc").body(EMPTY_FRAME.to_vec());
    let response = request.bearer_auth("secret").send().await.unwrap();
    let headers = response.headers();
    assert_eq!((security(headers), text(headers, "grpc-status")), ([None; 5], Some("3")), "{headers:?}");
    assert!(!headers.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN));
}

/// A layer of the program can respond with pages, and replace headers.
#[tokio::test]
async fn layers_of_the_program_keep_their_headers() {
    use axum::{extract::Request, middleware};
    let page = |request: Request, next: middleware::Next| async move {
        if request.uri().path() == "/page" {
            return axum::response::IntoResponse::into_response(axum::response::Html("<script src=a.js></script>"));
        }
        let mut response = next.run(request).await;
        response.headers_mut().insert(header::X_FRAME_OPTIONS, "SAMEORIGIN".parse().unwrap());
        response
    };
    let server = demo().cors_origins(origins(&[APP])).layer(middleware::from_fn(page));
    let base = bindings::program(server.router()).await;
    let http = bindings::http();
    let page = http.get(format!("{base}/page")).header("origin", APP).send().await.unwrap();
    assert_eq!(security(page.headers())[..3], [Some("nosniff"), None, None]);
    assert!(!page.headers().contains_key(header::CONTENT_SECURITY_POLICY));
    assert_eq!(text(page.headers(), "access-control-allow-origin"), Some(APP));
    let list = http.get(format!("{base}/tasks")).bearer_auth("secret").send().await.unwrap();
    assert_eq!(security(list.headers())[..3], [Some("nosniff"), Some("SAMEORIGIN"), None]);
}

/// Status of a list of tasks with these headers, and the reason of its error.
async fn status(base: &str, headers: &[(&'static str, &str)]) -> (u16, String) {
    let headers = headers.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
    let request = bindings::http().get(format!("{base}/tasks")).bearer_auth("secret");
    let response = request.headers(headers.collect()).send().await.unwrap();
    let status = response.status().as_u16();
    let body = json(response).await;
    (status, body["error"]["details"][0]["reason"].as_str().unwrap_or_default().to_owned())
}

fn accepted() -> (u16, String) {
    (200, String::new())
}

fn foreign_origin() -> (u16, String) {
    (403, "ORIGIN_NOT_ALLOWED".to_owned())
}

fn unknown_host() -> (u16, String) {
    (421, "MISDIRECTED_REQUEST".to_owned())
}

#[tokio::test]
async fn host_and_origin_are_checked_with_a_public_url() {
    let base = bindings::serve(demo().url("https://agent.example/a2a")).await;
    let own = ("host", "agent.example");
    assert_eq!(status(&base, &[own]).await, accepted());
    assert_eq!(status(&base, &[own, ("origin", "https://agent.example")]).await, accepted());
    assert_eq!(status(&base, &[("origin", "https://agent.example")]).await, accepted(), "by its address");
    for origin in ["https://evil.example", "http://other.example", "https://agent.example:8443", "null"] {
        assert_eq!(status(&base, &[own, ("origin", origin)]).await, foreign_origin(), "{origin}");
    }
    assert_eq!(status(&base, &[own, ("sec-fetch-site", "cross-site")]).await, foreign_origin());
    for host in ["evil.example", "agent.example.evil.example", "sub.agent.example"] {
        assert_eq!(status(&base, &[("host", host)]).await, unknown_host(), "{host}");
        let rebound = [("host", host), ("origin", &*format!("http://{host}"))];
        assert_eq!(status(&base, &rebound).await, unknown_host(), "{host}");
    }
}

#[tokio::test]
async fn host_and_origin_are_checked_behind_a_trusted_proxy() {
    let server = || demo().trusted_proxies(["127.0.0.1".parse().unwrap()]);
    let base = bindings::serve(server()).await;
    let forwarded =
        [("x-forwarded-for", "192.0.2.1"), ("x-forwarded-host", "agent.example"), ("x-forwarded-proto", "https")];
    let with = |more: &[(&'static str, &'static str)]| [&forwarded[..], more].concat();
    assert_eq!(status(&base, &forwarded).await, accepted());
    assert_eq!(status(&base, &with(&[("origin", "https://agent.example")])).await, accepted());
    for foreign in ["https://evil.example", "http://agent.example", "https://agent.example:8443", "null"] {
        assert_eq!(status(&base, &with(&[("origin", foreign)])).await, foreign_origin(), "{foreign}");
    }
    assert_eq!(status(&base, &with(&[("sec-fetch-site", "same-site")])).await, foreign_origin());
    // Requests that did not pass the proxy.
    assert_eq!(status(&base, &[("host", "evil.example")]).await, unknown_host());
    // The URL of the program takes precedence: the proxy may forward no host.
    let base = bindings::serve(server().url("https://public.example")).await;
    let inner = [("host", "public.example"), ("x-forwarded-for", "192.0.2.1"), ("origin", "https://public.example")];
    assert_eq!(status(&base, &inner).await, accepted());
    assert_eq!(status(&base, &[inner[0], inner[1], ("origin", FOREIGN)]).await, foreign_origin());
}
