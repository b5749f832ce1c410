//! Warnings of the program about requests: once for each process, and for each member.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::{io::AsyncReadExt as _, time::timeout};

use crate::{
    bindings::http,
    program::{a2a, signal, started},
};

async fn post(url: &str, body: &Value) -> Value {
    let request = http().post(url).header("content-type", "application/json").body(body.to_string());
    let reply = request.send().await.unwrap();
    assert_eq!(reply.status(), 200, "{body}");
    serde_json::from_slice(&reply.bytes().await.unwrap()).unwrap()
}

/// A 1.0 request with members of 0.3 is served as before, and the log says what to use (E3). Large numbers are rounded.
#[tokio::test]
async fn outdated_members_and_large_numbers_are_logged_once() {
    let (mut child, url) = started(a2a(&["serve", "--listen", "127.0.0.1:0", "--log-filter", "warn"])).await;
    let message = |part: Value| json!({ "messageId": "m", "role": "ROLE_USER", "parts": [part] });
    for _ in 0..3 {
        let text = json!({ "kind": "text", "text": "hello" });
        let configuration = json!({ "blocking": false, "pushNotificationConfig": { "url": "https://e.example" } });
        let mut outdated = json!({ "message": message(text), "configuration": configuration });
        outdated["message"]["kind"] = "message".into();
        let reply = post(&format!("{url}/message:send"), &outdated).await;
        assert_eq!(reply["task"]["status"]["state"], "TASK_STATE_COMPLETED", "it waits for the end");
        let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": outdated });
        assert_eq!(
            post(&format!("{url}/rpc"), &call).await["result"]["task"]["status"]["state"],
            "TASK_STATE_COMPLETED"
        );
        let file = json!({ "url": "https://e.example/a.png", "mime_type": "image/png", "name": "a.png" });
        post(&format!("{url}/message:send"), &json!({ "message": message(file) })).await;
        // The members of 0.3 are right in its own requests.
        let part = json!({ "kind": "text", "text": "hello" });
        let own = json!({ "kind": "message", "messageId": "m", "role": "user", "parts": [part] });
        let params = json!({ "message": own, "configuration": { "blocking": true } });
        post(&url, &json!({ "jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params })).await;
        post(&format!("{url}/v1/message:send"), &params).await;
        let numbers: Value = serde_json::from_str(r#"{"exact":9007199254740991,"large":9007199254740993}"#).unwrap();
        post(&format!("{url}/message:send"), &json!({ "message": message(json!({ "data": numbers })) })).await;
    }
    signal(&child, "-TERM");
    let mut log = String::new();
    let mut stderr = child.stderr.take().unwrap();
    timeout(Duration::from_secs(30), stderr.read_to_string(&mut log)).await.unwrap().unwrap();
    for (expected, hint) in [
        ("`blocking` of SendMessageConfiguration belongs to protocol 0.3", "`returnImmediately: true`"),
        ("`pushNotificationConfig` of SendMessageConfiguration belongs", "use `taskPushNotificationConfig`"),
        ("`kind` of Message belongs", "omit it"),
        ("`kind` of Part belongs", "omit it"),
        ("`mimeType` of Part belongs", "use `mediaType`"),
        ("`name` of Part belongs", "use `filename`"),
        ("a JSON number of 2^53 or more is rounded", "send such numbers as text"),
    ] {
        let lines: Vec<_> = log.lines().filter(|line| line.contains(expected)).collect();
        assert!(lines.len() == 1 && lines[0].contains(hint), "{expected}: {log}");
    }
    assert_eq!(log.matches("belongs to protocol 0.3").count(), 6, "{log}");
}

/// Members and numbers of usual requests are not logged.
#[tokio::test]
async fn usual_requests_are_not_logged() {
    let (mut child, url) = started(a2a(&["serve", "--listen", "127.0.0.1:0", "--log-filter", "warn"])).await;
    let parts = json!([{ "text": "hello", "metadata": { "kind": "x", "blocking": true } }, { "data": { "n": 9_007_199_254_740_991_u64 } }]);
    let message = json!({ "messageId": "m", "role": "ROLE_USER", "parts": parts, "unknown": 1 });
    let configuration = json!({ "returnImmediately": false });
    post(&format!("{url}/message:send"), &json!({ "message": message, "configuration": configuration })).await;
    signal(&child, "-TERM");
    let mut log = String::new();
    let mut stderr = child.stderr.take().unwrap();
    timeout(Duration::from_secs(30), stderr.read_to_string(&mut log)).await.unwrap().unwrap();
    assert_eq!(log, "");
}
