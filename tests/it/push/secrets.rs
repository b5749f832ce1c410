//! Secrets of push notifications: none is in a response, in a log line of any level, in the output of an administrator's
//! command, in an export without `--include-secrets`, or in `Debug` output.

use std::{path::Path, process::Stdio, sync::Arc};

use a2a_service::{
    call::Call,
    client::Client,
    pb::v1::{
        AuthenticationInfo, GetTaskPushNotificationConfigRequest, ListTaskPushNotificationConfigsRequest, Message,
        SendMessageConfiguration, SendMessageRequest, TaskPushNotificationConfig,
    },
    protocol::Version,
    push::{Algorithm, ClientCredentials, HostCredentials, PushOptions, Receiver, SigningKeys},
    server::Server,
    store::PushConfig,
};
use axum::{
    body::{Body, Bytes},
    response::Response,
};
use base64::{Engine as _, prelude::BASE64_STANDARD_NO_PAD};
use http::{HeaderMap, HeaderValue, Uri};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, Command},
    task::JoinHandle,
    time::timeout,
};

use super::{SOON, pause};
use crate::program::{a2a, output, signal};

const CALLER: &str = "caller-xyzzy-1f0e";
const TOKEN: &str = "token-xyzzy-2c4a";
const SIGNING_TOKEN: &str = "whsec_c2lnbmluZy14eXp6eS03YjEx";
const CREDENTIALS: &str = "credentials-xyzzy-3d8b";
const API_KEY: &str = "api-key-xyzzy-4e6c";
const HEADER: &str = "header-xyzzy-5f2d";
/// Secret of the server at a token endpoint.
const CLIENT_SECRET: &str = "client-secret-xyzzy-9d2e";
const ACCESS_TOKEN: &str = "access-token-xyzzy-af31";
/// Secret of requests that are rejected.
const REJECTED: &str = "rejected-xyzzy-7b3f";

/// Secret in a place where the server reads something else. The error repeats it to the caller.
const MISPLACED: &str = "misplaced-xyzzy-8c1d";

/// Secrets of stored configurations.
const STORED: [&str; 5] = [TOKEN, SIGNING_TOKEN, CREDENTIALS, API_KEY, HEADER];

/// Checks that a text has no secret, also not in base64.
fn check(name: &str, text: &str) {
    for secret in STORED.into_iter().chain([CALLER, CLIENT_SECRET, ACCESS_TOKEN, REJECTED, MISPLACED]) {
        assert!(!contains(text, secret), "{name} has {secret}: {}", around(text, secret));
    }
}

/// Checks that a text has no secret that the server made: signing keys and signed tokens.
fn check_made(name: &str, text: &str, made: &[String]) {
    for secret in made {
        assert!(!contains(text, secret), "{name} has {secret}: {}", around(text, secret));
    }
}

/// Returns the lines of private keys in PEM.
fn lines(pem: &str) -> Vec<String> {
    pem.lines().filter(|line| !line.is_empty() && !line.starts_with('-')).map(str::to_owned).collect()
}

/// Returns whether a text contains a secret, in plain text or in base64.
fn contains(text: &str, secret: &str) -> bool {
    let in_base64 = |offset: usize| {
        let bytes = [&[0; 2][..offset], secret.as_bytes()].concat();
        // The characters that depend on the secret alone.
        let (start, end) = ((offset * 8).div_ceil(6), bytes.len() * 8 / 6);
        text.contains(&BASE64_STANDARD_NO_PAD.encode(&bytes)[start..end])
    };
    text.contains(secret) || (0..3).any(in_base64)
}

/// Returns the first line with a secret.
fn around<'a>(text: &'a str, secret: &str) -> &'a str {
    text.lines().find(|line| contains(line, secret)).unwrap_or_default()
}

/// Receiver that records the headers of all requests, and puts them and the body into its responses.
async fn webhooks() -> (String, Arc<Mutex<Vec<(String, HeaderMap)>>>) {
    let requests: Arc<Mutex<Vec<(String, HeaderMap)>>> = Arc::default();
    let seen = Arc::clone(&requests);
    let respond = move |uri: Uri, headers: HeaderMap, body: Bytes| {
        let path = uri.path().to_owned();
        let token = headers.get("a2a-notification-token").cloned().unwrap_or_else(|| CREDENTIALS.parse().unwrap());
        let location = format!("http://127.0.0.1/?{}", token.to_str().unwrap());
        let content = format!("{headers:?} {body:?} {TOKEN} {CREDENTIALS}");
        let response = match &*path {
            "/ok" => Response::builder().status(204),
            "/fails" => Response::builder().status(500).header("retry-after", token),
            "/moved" => Response::builder().status(302).header("location", location),
            _ => Response::builder().status(403).header("www-authenticate", token),
        };
        let mut response = response.body(Body::from(if path == "/ok" { String::new() } else { content })).unwrap();
        let reason = hyper::ext::ReasonPhrase::from_static(b"token-xyzzy-2c4a");
        response.extensions_mut().insert(reason);
        seen.lock().push((path, headers));
        std::future::ready(response)
    };
    (crate::bindings::program(axum::Router::new().fallback(respond)).await, requests)
}

/// Receiver that responds with something other than HTTP, which has a secret.
async fn malformed() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/malformed", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let mut request = vec![0; 64 << 10];
            _ = connection.read(&mut request).await;
            _ = connection.write_all(format!("{TOKEN} {CREDENTIALS}\r\n{request:?}\r\n\r\n").as_bytes()).await;
        }
    });
    url
}

/// Token endpoint with a path that returns a token, and one that rejects the client and repeats its credentials.
async fn token_endpoint() -> String {
    let respond = |uri: Uri, headers: HeaderMap, body: Bytes| {
        let (code, content) = match uri.path() {
            "/token" => (200, json!({ "access_token": ACCESS_TOKEN, "token_type": "Bearer", "expires_in": 3600 })),
            _ => (
                401,
                json!({ "error": CLIENT_SECRET, "error_description": format!("{headers:?} {body:?} {CLIENT_SECRET}") }),
            ),
        };
        std::future::ready(Response::builder().status(code).body(Body::from(content.to_string())).unwrap())
    };
    crate::bindings::program(axum::Router::new().fallback(respond)).await
}

/// Returns the value of `push.credentials` for the host of a URL.
fn credentials(url: &str, token_url: &str) -> String {
    let host = url.trim_start_matches("http://");
    format!("{host:?} = {{ token_url = {token_url:?}, client_id = \"a2a\", client_secret = {CLIENT_SECRET:?} }}")
}

/// Program whose whole output is recorded.
struct Program {
    child: Child,
    url: String,
    output: JoinHandle<String>,
    errors: JoinHandle<String>,
}

impl Program {
    async fn serve(directory: &Path, flags: &[&str], credentials: &str) -> Self {
        let mut command = a2a(&[&["serve", "--listen", "127.0.0.1:0"], flags].concat());
        command.env_remove("A2A_STORE").env("A2A_TOKEN", CALLER).env("A2A_PUSH_CREDENTIALS", credentials);
        command.current_dir(directory);
        Self::start(command).await
    }

    async fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::null()).spawn().unwrap();
        let (mut stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let mut start = Vec::new();
        while !start.contains(&b'\n') {
            timeout(SOON, stdout.read_buf(&mut start)).await.unwrap().unwrap();
        }
        let first = String::from_utf8(start.clone()).unwrap();
        let url = first.lines().next().unwrap().strip_prefix("listening on ").unwrap().to_owned();
        let output = tokio::spawn(async move {
            stdout.read_to_end(&mut start).await.unwrap();
            String::from_utf8(start).unwrap()
        });
        let errors = tokio::spawn(async move {
            let mut text = String::new();
            stderr.read_to_string(&mut text).await.unwrap();
            text
        });
        Self { child, url, output, errors }
    }

    /// Stops the program; returns its standard output and standard error.
    async fn stop(mut self) -> (String, String) {
        signal(&self.child, "-TERM");
        timeout(SOON, self.child.wait()).await.unwrap().unwrap();
        (self.output.await.unwrap(), self.errors.await.unwrap())
    }
}

/// Client that sends JSON and keeps all responses.
struct Caller {
    url: String,
    http: reqwest::Client,
    responses: Mutex<Vec<String>>,
}

impl Caller {
    async fn send(&self, method: &str, path: &str, body: Option<Value>) -> Value {
        let request = self.http.request(method.parse().unwrap(), format!("{}{path}", self.url)).bearer_auth(CALLER);
        let request = match body {
            Some(body) => request.header("content-type", "application/json").body(body.to_string()),
            None => request,
        };
        let response = request.send().await.unwrap();
        let headers = format!("{:?}", response.headers());
        let text = response.text().await.unwrap();
        self.responses.lock().extend([headers, text.clone()]);
        serde_json::from_str(&text).unwrap_or_default()
    }

    async fn rpc(&self, method: &str, params: Value) -> Value {
        self.send("POST", "/rpc", Some(json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}))).await
    }
}

fn grpc_config(task_id: &str, url: &str) -> TaskPushNotificationConfig {
    TaskPushNotificationConfig {
        task_id: task_id.into(),
        id: "grpc".into(),
        url: url.into(),
        token: TOKEN.into(),
        authentication: Some(AuthenticationInfo { scheme: "ApiKey".into(), credentials: API_KEY.into() }),
        ..Default::default()
    }
}

/// Registers configurations over all bindings and versions, valid and rejected ones, and reads them.
async fn register(caller: &Caller, hooks: &str, malformed: &str, guarded: &[String]) -> String {
    let hook = |path: &str| format!("{hooks}{path}");
    let bearer = json!({"scheme": "Bearer", "credentials": CREDENTIALS});
    let message = |text: &str| json!({"messageId": uuid::Uuid::new_v4().to_string(), "role": "ROLE_USER", "parts": [{"text": text}]});
    // HTTP+JSON of 1.0, with sends.
    let mut task = String::new();
    for (path, token) in [("/ok", TOKEN), ("/fails", TOKEN), ("/moved", TOKEN), ("/forbidden", SIGNING_TOKEN)] {
        let push = json!({"id": "rest", "url": hook(path), "token": token, "authentication": bearer});
        let configuration = json!({"taskPushNotificationConfig": push});
        let sent = json!({"message": message("/ask What?"), "configuration": configuration});
        let reply = caller.send("POST", "/message:send", Some(sent)).await;
        task = reply["task"]["id"].as_str().unwrap_or_else(|| panic!("{reply}")).into();
    }
    // JSON-RPC of 1.0.
    let push = json!({"taskId": task, "id": "rpc", "url": hook("/ok"), "token": TOKEN, "authentication": bearer});
    assert!(caller.rpc("CreateTaskPushNotificationConfig", push).await["result"].is_object());
    let push = json!({"taskId": task, "id": "malformed", "url": malformed, "token": TOKEN, "authentication": bearer});
    assert!(caller.rpc("CreateTaskPushNotificationConfig", push).await["result"].is_object());
    let push = json!({"taskId": task, "id": "signed", "url": hook("/ok"), "authentication": {"scheme": "Bearer"}});
    assert!(caller.rpc("CreateTaskPushNotificationConfig", push).await["result"].is_object());
    for (index, url) in guarded.iter().enumerate() {
        let push = json!({"taskId": task, "id": format!("guarded{index}"), "url": format!("{url}/ok"), "token": TOKEN});
        assert!(caller.rpc("CreateTaskPushNotificationConfig", push).await["result"].is_object());
    }
    // JSON-RPC of 0.3, with headers of 0.2.
    let push = json!({
        "id": "classic", "url": hook("/ok"), "token": TOKEN, "headers": {"x-key": HEADER},
        "authentication": {"schemes": ["Bearer"], "credentials": CREDENTIALS},
    });
    let set = json!({"taskId": task, "pushNotificationConfig": push});
    assert!(caller.rpc("tasks/pushNotificationConfig/set", set).await["result"].is_object());
    // HTTP+JSON of 0.3.
    let push = json!({"id": "rest03", "url": hook("/ok"), "token": TOKEN, "authentication": {"schemes": ["Bearer"], "credentials": CREDENTIALS}});
    let name = format!("tasks/{task}/pushNotificationConfigs/rest03");
    let body = json!({"parent": format!("tasks/{task}"), "configId": "rest03", "config": {"name": name, "pushNotificationConfig": push}});
    let reply = caller.send("POST", &format!("/v1/tasks/{task}/pushNotificationConfigs"), Some(body)).await;
    assert!(reply["error"].is_null() && reply["pushNotificationConfig"].is_object(), "{reply}");
    // gRPC.
    let agent = Client::builder().bearer(CALLER).unwrap().grpc(&caller.url).unwrap();
    let config = grpc_config(&task, &hook("/ok"));
    let created = agent.create_task_push_notification_config(Call::default().request(config)).await.unwrap();
    let get = GetTaskPushNotificationConfigRequest { task_id: task.clone(), id: "grpc".into(), ..Default::default() };
    let got = agent.get_task_push_notification_config(Call::default().request(get)).await.unwrap();
    let list = ListTaskPushNotificationConfigsRequest { task_id: task.clone(), ..Default::default() };
    let listed = agent.list_task_push_notification_configs(Call::default().request(list)).await.unwrap();
    // `Debug` omits secrets; the encoding has all.
    let encoded = [created.get_ref(), got.get_ref()].map(|config| serde_json::to_string(config).unwrap());
    caller.responses.lock().extend(encoded);
    caller.responses.lock().push(serde_json::to_string(listed.get_ref()).unwrap());
    // Reads.
    for id in ["rpc", "classic", "rest03", "grpc"] {
        caller.rpc("tasks/pushNotificationConfig/get", json!({"id": task, "pushNotificationConfigId": id})).await;
        caller.send("GET", &format!("/tasks/{task}/pushNotificationConfigs/{id}"), None).await;
        caller.send("GET", &format!("/v1/tasks/{task}/pushNotificationConfigs/{id}"), None).await;
    }
    caller.send("GET", &format!("/tasks/{task}/pushNotificationConfigs"), None).await;
    caller.rpc("tasks/pushNotificationConfig/list", json!({"id": task})).await;
    // Rejected requests.
    for push in [
        json!({"url": format!("http://user:{REJECTED}@10.0.0.1/"), "token": REJECTED}),
        json!({"url": format!("http://user:{REJECTED}@:99999/"), "token": REJECTED}),
        json!({"url": format!("ftp://user:{REJECTED}@hooks.invalid/")}),
        json!({"url": hook("/ok"), "token": format!("{REJECTED}\r\nx: y")}),
        json!({"url": hook("/ok"), "authentication": {"scheme": "Bearer", "credentials": format!("{REJECTED}\n")}}),
        json!({"url": hook("/ok"), "authentication": {"scheme": "Bearer", "credentials": [REJECTED]}}),
        json!({"url": hook("/ok"), "token": {"nested": REJECTED}}),
        json!({"url": hook("/ok"), "token": format!("{REJECTED}{}", "x".repeat(1 << 16))}),
        json!({"url": hook("/ok"), "token": REJECTED, "authentication": MISPLACED}),
        json!({"url": hook("/ok"), "token": REJECTED, "headers": {"bad name": REJECTED}}),
    ] {
        let path = format!("/tasks/{task}/pushNotificationConfigs");
        let reply = caller.send("POST", &path, Some(push.clone())).await;
        caller.rpc("CreateTaskPushNotificationConfig", push.clone()).await;
        caller.rpc("tasks/pushNotificationConfig/set", json!({"taskId": task, "pushNotificationConfig": push})).await;
        assert!(reply["error"].is_object() || push["headers"].is_object(), "{push} {reply}");
    }
    caller.send("POST", &format!("/tasks?token={REJECTED}"), Some(json!({"token": REJECTED}))).await;
    for (header, value) in [("authorization", format!("Bearer {REJECTED}")), ("x-api-key", REJECTED.to_owned())] {
        let request = caller.http.get(format!("{}/tasks", caller.url)).header(header, value);
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 401);
        let text = response.text().await.unwrap();
        caller.responses.lock().push(text);
    }
    task
}

/// Returns whether a header is a signed token.
fn is_json_web_token(value: &HeaderValue) -> bool {
    value.to_str().is_ok_and(|text| text.starts_with("Bearer ey") && text.matches('.').count() == 2)
}

/// Runs an administrator's command; returns its output.
async fn admin(directory: &Path, arguments: &[&str]) -> String {
    let mut command = a2a(&[&["admin"], arguments].concat());
    command.env_remove("A2A_STORE").env("A2A_TOKEN", CALLER).current_dir(directory);
    let output = output(command).await;
    assert!(output.status.success(), "{arguments:?} {output:?}");
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

#[tokio::test]
async fn no_output_of_the_program_has_a_secret() {
    for format in ["text", "json"] {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let ((hooks, requests), malformed) = (webhooks().await, malformed().await);
        let flags = ["--log", format, "--log-filter", "trace", "--log-wire=true"];
        let push = ["--push-enabled=true", "--push-allow", "http://127.0.0.1"];
        // Receivers for which the server has credentials, valid and rejected ones.
        let (endpoint, (accepting, accepted), (unreached, _)) =
            (token_endpoint().await, webhooks().await, webhooks().await);
        let (valid, rejected) = (format!("{endpoint}/token"), format!("{endpoint}/rejects"));
        let hosts = format!("{{ {}, {} }}", credentials(&accepting, &valid), credentials(&unreached, &rejected));
        let program = Program::serve(directory, &[&flags[..], &push].concat(), &hosts).await;
        let http = crate::bindings::http();
        let caller = Caller { url: program.url.clone(), http, responses: Mutex::default() };
        let task = register(&caller, &hooks, &malformed, &[accepting, unreached]).await;
        // Continues the task, so that all of its configurations have something to deliver.
        let message = json!({"messageId": "m", "role": "ROLE_USER", "taskId": task, "parts": [{"text": "done"}]});
        caller.send("POST", "/message:send", Some(json!({ "message": message }))).await;
        let delivered = async {
            loop {
                {
                    let requests = requests.lock();
                    let has = |name: &str, value: &str| {
                        requests.iter().any(|(_, headers)| headers.get(name).is_some_and(|it| it == value))
                    };
                    let count = |path: &str| requests.iter().filter(|(it, _)| it == path).count();
                    // The receivers need what nobody else may see.
                    let is_signed = |headers: &HeaderMap| headers.get("authorization").is_some_and(is_json_web_token);
                    let is_sent = requests.iter().any(|(_, headers)| is_signed(headers))
                        && has("a2a-notification-token", TOKEN)
                        && has("a2a-notification-token", SIGNING_TOKEN)
                        && has("authorization", &format!("Bearer {CREDENTIALS}"))
                        && has("x-api-key", API_KEY)
                        && has("x-key", HEADER);
                    let bearer = format!("Bearer {ACCESS_TOKEN}");
                    let is_bearer = |headers: &HeaderMap| headers.get("authorization").is_some_and(|it| *it == bearer);
                    let is_sent = is_sent && accepted.lock().iter().any(|(_, headers)| is_bearer(headers));
                    if is_sent && count("/fails") >= 2 && count("/moved") >= 1 && count("/forbidden") >= 1 {
                        return;
                    }
                }
                pause().await;
            }
        };
        timeout(SOON, delivered).await.unwrap_or_else(|_| panic!("{:#?}", requests.lock()));
        let (output, log) = program.stop().await;
        let mut made = lines(&std::fs::read_to_string(directory.join("a2a.db.keys.pem")).unwrap());
        assert!(made.len() >= 2, "{}", made.len());
        for (_, headers) in requests.lock().iter() {
            let token = headers.get("authorization").filter(|value| is_json_web_token(value));
            made.extend(token.and_then(|value| value.to_str().unwrap().rsplit('.').next()).map(str::to_owned));
        }
        for text in [&output, &log] {
            check_made("the output", text, &made);
        }
        for (index, response) in caller.responses.lock().iter().enumerate() {
            check(&format!("response {index}"), &response.replace(MISPLACED, ""));
        }
        check("standard output", &output);
        check("the log", &log);
        for expected in ["TRACE", "push delivery failed", "(hidden)", "given up"] {
            assert!(log.contains(expected), "{expected}");
        }
        administer(directory, &task, &made).await;
    }
}

/// Uses all commands that print something of configurations.
async fn administer(directory: &Path, task: &str, made: &[String]) {
    for command in [
        &["push", "list"][..],
        &["push", "list", "-ojsonl"],
        &["push", "list", "--dead", "-ojsonl"],
        &["push", "show", task],
        &["push", "show", task, "-ojsonl"],
        &["push", "retry", "--dead", "-ojsonl"],
        &["stats"],
        &["check"],
        &["gc", "--dry-run"],
        &["export"],
    ] {
        let printed = admin(directory, command).await;
        check(&command.join(" "), &printed);
        check_made(&command.join(" "), &printed, made);
    }
    let exported = admin(directory, &["export", "--include-secrets"]).await;
    for secret in STORED {
        assert!(contains(&exported, secret), "{secret} is missing");
    }
    for secret in [CALLER, CLIENT_SECRET, ACCESS_TOKEN] {
        assert!(!contains(&exported, secret), "{secret}");
    }
    check_made("the export", &exported, made);
    check("push drop", &admin(directory, &["push", "drop", task, "-ojsonl"]).await);
}

#[tokio::test]
async fn no_effective_configuration_has_a_secret() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = a2a(&["serve", "--print-config"]);
    let hosts = format!("{{ {} }}", credentials("http://hooks.example", "https://login.example/token"));
    command.env("A2A_TOKEN", CALLER).env("A2A_PUSH_CREDENTIALS", hosts).current_dir(directory.path());
    let printed = output(command).await;
    assert!(printed.status.success(), "{printed:?}");
    check("the configuration", &String::from_utf8([printed.stdout, printed.stderr].concat()).unwrap());
    let file = directory.path().join("keys.pem");
    std::fs::write(&file, format!("-----BEGIN PRIVATE KEY-----\n{REJECTED}\n-----END PRIVATE KEY-----\n")).unwrap();
    let invalid_token = format!("{REJECTED} {REJECTED}");
    for (variable, value, code) in [("A2A_TOKEN", &*invalid_token, 2), ("A2A_SIGNING_KEYS", file.to_str().unwrap(), 1)]
    {
        let mut command = a2a(&["serve", "--listen", "127.0.0.1:0", "--push-enabled=true", "--log-filter", "trace"]);
        command.env(variable, value).current_dir(directory.path());
        let failed = output(command).await;
        assert_eq!(failed.status.code(), Some(code), "{failed:?}");
        check(variable, &String::from_utf8([failed.stdout, failed.stderr].concat()).unwrap());
    }
}

#[tokio::test]
async fn output_of_a_listener_has_no_secrets() {
    // The command prints its environment.
    let mut command = a2a(&["listen", "--port", "0", "--token-env", "HOOK_TOKEN", "--forward", "env"]);
    command.env("HOOK_TOKEN", TOKEN).env("PATH", std::env::var("PATH").unwrap());
    let program = Program::start(command).await;
    let body = r#"{"statusUpdate":{"taskId":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}"#;
    for (id, token, expected) in [("1", TOKEN, 204), ("1", TOKEN, 204), ("2", REJECTED, 401), ("3", TOKEN, 204)] {
        let request = crate::bindings::http().post(&program.url).header("a2a-notification-token", token).body(body);
        let request = request.header("webhook-id", id).header("x-api-key", API_KEY).bearer_auth(CREDENTIALS);
        assert_eq!(request.send().await.unwrap().status(), expected);
    }
    let (output, errors) = program.stop().await;
    assert!(output.contains("A2A_TASK_ID=t") && errors.contains("the token is wrong"), "{output}{errors}");
    check("the output", &output);
    check("the log", &errors);
}

#[test]
fn debug_output_has_no_secrets() {
    let config = grpc_config("t", &format!("https://user:{CREDENTIALS}@hooks.invalid/{TOKEN}"));
    let extra = Bytes::from(json!({ "headers": { "x-key": HEADER } }).to_string());
    let stored = PushConfig { config: config.clone(), version: Version::V0_3, extra };
    let sent = SendMessageRequest {
        message: Some(Message::user("hello")),
        configuration: Some(SendMessageConfiguration {
            task_push_notification_config: Some(config.clone()),
            ..Default::default()
        }),
        ..Default::default()
    };
    let token = a2a_service::auth::Token::new(CALLER).unwrap();
    let bearer = a2a_service::auth::Bearer::new(token);
    let client = Client::builder().bearer(CALLER).unwrap();
    let keys = SigningKeys::generate(Algorithm::Es256).unwrap();
    let oauth = ClientCredentials::new("https://login.example/token", "a2a", CLIENT_SECRET).unwrap();
    let oauth_text = format!("{oauth:?}");
    let hosts = HostCredentials::default().host("hooks.example", oauth).unwrap();
    let options = PushOptions::default().keys(Some(keys.clone())).credentials(Some(Arc::new(hosts.clone())));
    let server = Server::new(super::Writer).authenticator(bearer.clone()).push_options(options.clone());
    let receiver = Receiver::new().token(TOKEN).token(SIGNING_TOKEN);
    let printed = format!(
        "{config:?} {config:#?} {:?} {stored:?} {sent:?} {bearer:?} {client:?} {server:?} {receiver:?} {keys:?} \
         {options:?} {oauth_text} {hosts:?}",
        config.authentication
    );
    check("Debug", &printed);
    check_made("Debug", &printed, &lines(&keys.to_pem().unwrap()));
}
