//! Wire log (`--log-wire`): content, redaction of secrets, and off by default.

use std::time::Duration;

use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader},
    time::timeout,
};

use crate::program::a2a;

/// Runs a server, sends the requests, and returns what the server logged.
async fn log_of(flags: &[&str], requests: &[(&str, &str, &str, String)]) -> String {
    let all = [&["serve", "--listen", "127.0.0.1:0", "--log-filter", "warn"], flags].concat();
    let mut child = a2a(&all).env("A2A_TOKEN", "sw0rdfish").spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = lines.next_line().await.unwrap().unwrap();
    let url = first.strip_prefix("listening on ").unwrap().to_owned();
    for (verb, path, content_type, body) in requests {
        let request = crate::bindings::http().request(verb.parse().unwrap(), format!("{url}{path}"));
        let request = request.bearer_auth("sw0rdfish").header("content-type", *content_type).body(body.clone());
        drop(request.send().await.unwrap().bytes().await.unwrap());
    }
    child.kill().await.unwrap();
    let mut log = String::new();
    let read = child.stderr.as_mut().unwrap().read_to_string(&mut log);
    timeout(Duration::from_secs(30), read).await.unwrap().unwrap();
    // Without the escapes of logfmt.
    log.replace(r#"\""#, "\"").replace(r"\\", r"\")
}

fn send(method: &str) -> String {
    let message = json!({"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "hello"}]});
    let push = json!({"taskPushNotificationConfig": {"url": "https://h.example/?k=sw0rdfish", "token": "sw0rdfish"}});
    let params = json!({"message": message, "configuration": push});
    json!({"jsonrpc": "2.0", "id": "r-1", "method": method, "params": params}).to_string()
}

#[tokio::test]
async fn wire_log_has_requests_and_replies_without_secrets() {
    let stream =
        json!({"message": {"messageId": "m-2", "role": "ROLE_USER", "parts": [{"text": "hello"}]}}).to_string();
    let log = log_of(
        &["--log-wire"],
        &[
            ("POST", "/rpc", "application/json", send("SendMessage")),
            ("POST", "/message:stream", "application/json", stream),
            ("POST", "/rpc", "application/json", "{\"token\": \"sw0rdfish\"".to_owned()),
            ("GET", "/tasks/t-1?token=sw0rdfish", "text/plain", String::new()),
            ("GET", "/tasks?tenant=a&api%5Fkey=sw0rdfish", "text/plain", String::new()),
            ("POST", "/rpc", "application/x-www-form-urlencoded", "api%5Fkey=sw0rdfish".to_owned()),
        ],
    )
    .await;
    assert!(!log.contains("sw0rdfish"), "{log}");
    for expected in [
        "in: POST /rpc [",
        "authorization: (hidden)",
        r#"in: {"id":"r-1","jsonrpc":"2.0","method":"SendMessage","params":{"#,
        r#""token":"(hidden)","url":"https://h.example/?(hidden)""#,
        r#"call: SendMessage {"configuration":{"#,
        "result: SendMessage PushNotificationNotSupported",
        "out: 200 [",
        r#"out: {"error":{"code":-32003,"#,
        "in: POST /message:stream [",
        r#"call: SendStreamingMessage {"message":{"messageId":"m-2","#,
        r#"event: SendStreamingMessage {"task":{"#,
        r#"data: {"task":{"#,
        "in: (21 bytes that are not JSON)",
        "in: GET /tasks/t-1?(hidden) [",
        "result: GetTask TaskNotFound Task not found: t-1",
        "out: 404 [",
    ] {
        assert!(log.contains(expected), "{expected} is missing in\n{log}");
    }
    // Each record is one line: no input can imitate another record.
    assert!(
        log.lines()
            .all(|line| line.contains(" level=INFO target=a2a_service::wire message=") && line.contains(" call=")),
        "{log}"
    );
}

#[tokio::test]
async fn wire_log_is_off_by_default() {
    let log = log_of(&[], &[("POST", "/rpc", "application/json", send("SendMessage"))]).await;
    assert_eq!(log, "");
}
