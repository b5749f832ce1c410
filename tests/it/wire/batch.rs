//! JSON-RPC batches (JSON-RPC 2.0, section 6): order and ids of responses, notifications, size limits.

use http::StatusCode;
use serde_json::{Value, json};

use super::support::*;

async fn post(url: &str, body: &str) -> (StatusCode, String) {
    let http = crate::bindings::http().post(format!("{url}/rpc"));
    let http = http.header("idempotency-key", "k").header("a2a-version", "1.0");
    let reply = http.json_body(body.to_owned()).send().await.unwrap();
    (reply.status(), reply.text().await.unwrap())
}

/// Returns a JSON-RPC call. A call without an id is a notification.
fn call(id: Option<&str>, method: &str, params: &str) -> String {
    let id = id.map(|id| format!(r#""id":{id},"#)).unwrap_or_default();
    format!(r#"{{"jsonrpc":"2.0",{id}"method":"{method}","params":{params}}}"#)
}

#[tokio::test]
async fn responses_are_in_the_order_of_the_calls() {
    let server = Server::start().await;
    let calls = [
        call(Some("1.50"), "GetTask", r#"{"id":"a"}"#),
        call(None, "GetTask", r#"{"id":"b"}"#),
        call(Some(r#""\u00e9""#), "GetTask", r#"{"id":"missing"}"#),
        call(None, "Nothing", "{}"),
        call(Some("null"), "Nothing", "{}"),
        call(Some("3"), "SendStreamingMessage", &send_json("m")),
        call(None, "SendStreamingMessage", &send_json("m")),
        call(Some("4"), "GetTask", r#"{"id":7}"#),
        call(Some("5"), "SendMessage", &send_json("m")),
        "7".to_owned(),
        "[]".to_owned(),
        r#"{"jsonrpc":"2.0","id":6}"#.to_owned(),
    ];
    let (status, text) = post(&server.url, &format!(" [{}]", calls.join(" , "))).await;
    assert_eq!(status, 200);
    assert!(text.starts_with(r#"[{"jsonrpc":"2.0","id":1.50,"result":{"id":"a""#), "{text}");
    assert!(text.contains(r#"{"jsonrpc":"2.0","id":"\u00e9","error":"#), "{text}");
    let responses: Vec<Value> = serde_json::from_str(&text).unwrap();
    let ids_and_codes: Vec<_> =
        responses.iter().map(|response| json!([response["id"], response["error"]["code"]])).collect();
    let expected = json!([
        [1.5, null],
        ["é", -32001],
        [null, -32601],
        [3, -32600],
        [4, -32602],
        [5, null],
        [null, -32600],
        [null, -32600],
        [6, -32600]
    ]);
    assert_eq!(Value::from(ids_and_codes), expected, "{text}");
    // Calls of a batch have the same request context as single calls, and each send has its own idempotency key.
    let calls = server.echo.calls.lock();
    let mut keys: Vec<_> = calls.iter().map(|call| call.idempotency_key.as_deref().unwrap()).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["k#0", "k#1", "k#2", "k#8"]);
    assert!(calls.iter().all(|call| call.peer.is_some()));
}

#[tokio::test]
async fn batch_of_notifications_has_no_response_body() {
    let server = Server::start().await;
    let calls = [call(None, "GetTask", r#"{"id":"a"}"#), call(None, "GetTask", r#"{"id":"missing"}"#)];
    assert_eq!(post(&server.url, &format!("[{}]", calls.join(","))).await, (StatusCode::NO_CONTENT, String::new()));
    assert_eq!(server.echo.calls.lock().len(), 2);
}

#[tokio::test]
async fn batch_over_the_decoded_size_limit_is_rejected() {
    let server = Server::start().await;
    let params = format!(r#"{{"id":"a","list":[null{}]}}"#, ",null".repeat(2000));
    let batch = |n: usize| format!("[{}]", vec![call(Some("1"), "GetTask", &params); n].join(","));
    let (_, text) = post(&server.url, &batch(64)).await;
    assert_eq!(serde_json::from_str::<Vec<Value>>(&text).unwrap().len(), 64);
    let params = params.replace("null", "{}");
    let batch = format!("[{}]", vec![call(Some("1"), "GetTask", &params); 64].join(","));
    let (status, text) = post(&server.url, &batch).await;
    let response: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (status.as_u16(), &response["error"]["data"][0]["metadata"]["limit"]),
        (413, &json!("decoded_bytes")),
        "{text}"
    );
}

#[tokio::test]
async fn invalid_batch_has_a_single_error_response() {
    let server = Server::start().await;
    let full = vec![call(Some("1"), "GetTask", r#"{"id":"a"}"#); 64].join(",");
    let (_, text) = post(&server.url, &format!("[{full}]")).await;
    assert_eq!(serde_json::from_str::<Vec<Value>>(&text).unwrap().len(), 64);
    server.echo.calls.lock().clear();
    let too_many = format!("[{full},1]");
    let broken = format!("[{full}");
    for (body, code) in [("[]", -32600), (" [ ] ", -32600), ("[1,", -32700), (&broken, -32700), (&too_many, -32600)] {
        let (status, text) = post(&server.url, body).await;
        let response: Value = serde_json::from_str(&text).unwrap();
        let ids_and_codes = (status.as_u16(), &response["id"], &response["error"]["code"]);
        assert_eq!(ids_and_codes, (200, &json!(null), &json!(code)), "{body}");
        assert_eq!(response["error"]["data"][0]["@type"], "type.googleapis.com/google.rpc.ErrorInfo");
        if body == too_many {
            assert_eq!(response["error"]["data"][0]["metadata"], json!({"limit": "batch_calls"}));
        }
    }
    assert!(server.echo.calls.lock().is_empty());
}

/// An error of the HTTP request is reported once for each call, with the call's id.
#[tokio::test]
async fn request_error_is_repeated_for_each_call() {
    let server = Server::start().await;
    let calls = [call(Some("1"), "GetTask", r#"{"id":"a"}"#), call(Some("2"), "Nothing", "{}")];
    let http = crate::bindings::http().post(format!("{}/rpc", server.url)).header("a2a-version", "9.9");
    let reply = http.json_body(format!("[{}]", calls.join(","))).send().await.unwrap();
    let responses = json(reply).await;
    let ids_and_codes: Vec<_> = responses
        .as_array()
        .unwrap()
        .iter()
        .map(|response| json!([response["id"], response["error"]["code"]]))
        .collect();
    assert_eq!(Value::from(ids_and_codes), json!([[1, -32009], [2, -32601]]));
    assert!(server.echo.calls.lock().is_empty());
}

#[tokio::test]
async fn size_of_batch_results_is_limited() {
    let mut settings = settings();
    settings.batch_bytes = 855;
    let server = Server::with(settings, a2a_service::transport::listener::ListenerSettings::default()).await;
    let id = "t".repeat(250);
    let calls: Vec<_> = (0..4).map(|n| call(Some(&n.to_string()), "GetTask", &format!(r#"{{"id":"{id}"}}"#))).collect();
    let last = call(Some("4"), "GetTask", r#"{"id":"small"}"#);
    let (status, text) = post(&server.url, &format!("[{},{last}]", calls.join(","))).await;
    let responses: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert_eq!((status, responses.len()), (StatusCode::OK, 5));
    let rejected: Vec<_> = responses.iter().map(|response| response["error"].is_object()).collect();
    assert_eq!(rejected, [false, false, true, true, false], "{text}");
    let error = &responses[2]["error"];
    assert!(error["message"].as_str().unwrap().contains("the results of the batch exceed"), "{error}");
    assert_eq!(error["data"][0]["metadata"]["limit"], "batch_bytes", "{error}");
}
