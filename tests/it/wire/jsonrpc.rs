//! JSON-RPC of 1.0: envelopes, ids, error codes, notifications, HTTP statuses, errors of streaming methods.

use http::header;
use serde_json::{Value, json};

use super::support::*;

async fn post(url: &str, body: &str) -> Value {
    let reply =
        crate::bindings::http().post(format!("{url}/rpc")).header("a2a-version", "1.0").json_body(body.to_owned());
    let reply = reply.send().await.unwrap();
    assert_eq!(
        (reply.status().as_u16(), &reply.headers()[header::CONTENT_TYPE]),
        (200, &"application/json".parse().unwrap())
    );
    json(reply).await
}

#[tokio::test]
async fn invalid_requests_have_distinct_codes() {
    let Server { url, .. } = &Server::start().await;
    let long = format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"GetTask"}}"#, "x".repeat(2000));
    for (body, id, code) in [
        (r#"{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"t"}"#, json!(null), -32700),
        ("", json!(null), -32700),
        ("\u{7f}", json!(null), -32700),
        ("{} {}", json!(null), -32700),
        ("[1,", json!(null), -32700),
        ("[]", json!(null), -32600),
        ("7", json!(null), -32600),
        (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"GetTask"}"#, json!(null), -32600),
        (r#"{"jsonrpc":"2.0","id":1}"#, json!(1), -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":""}"#, json!(1), -32600),
        (r#"{"jsonrpc":"2.0","id":"a","method":7}"#, json!("a"), -32600),
        (r#"{"jsonrpc":"1.0","id":0,"method":"GetTask"}"#, json!(0), -32600),
        (r#"{"id":null,"method":"GetTask"}"#, json!(null), -32600),
        (r#"{"jsonrpc":"2.0","id":{},"method":"GetTask"}"#, json!(null), -32600),
        (r#"{"jsonrpc":"2.0","id":[1],"method":"GetTask"}"#, json!(null), -32600),
        (r#"{"jsonrpc":"2.0","id":true,"method":"GetTask"}"#, json!(null), -32600),
        (r#"{"jsonrpc":"2.0","id":1e9991,"method":"GetTask"}"#, json!(null), -32600),
        (r#"{"jsonrpc":"2.0","id":"\ud800","method":"GetTask"}"#, json!(null), -32600),
        (&long, json!(null), -32600),
        (r#"{"jsonrpc":"2.0","method":"nothing"}"#, json!(null), -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":"Nothing"}"#, json!(1), -32601),
        (r#"{"jsonrpc":"2.0","id":1,"method":"getTask"}"#, json!(1), -32601),
        (r#"{"jsonrpc":"2.0","id":1,"method":"GetTask","params":[1]}"#, json!(1), -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"GetTask","params":"t"}"#, json!(1), -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":1}}"#, json!(1), -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"GetTask"}"#, json!(1), -32602),
        (r#"{"jsonrpc":"2.0","id":null,"method":"GetTask","params":null}"#, json!(null), -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"missing"}}"#, json!(1), -32001),
        (r#"{"jsonrpc":"2.0","id":1,"method":"GetExtendedAgentCard"}"#, json!(1), -32601),
    ] {
        let reply = post(url, body).await;
        assert_eq!((&reply["error"]["code"], &reply["id"]), (&json!(code), &id), "{body}: {reply}");
        let keys: Vec<_> = reply.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["error", "id", "jsonrpc"]);
        assert!(reply["error"]["data"].as_array().unwrap().iter().all(|detail| detail["@type"].is_string()), "{reply}");
    }
}

#[tokio::test]
async fn ids_are_echoed_byte_for_byte() {
    let Server { url, .. } = &Server::start().await;
    for id in ["1", "-0", "1.50", "1e3", "123456789012345678901234567890", r#""a\"b""#, r#""\u00e9""#, r#""""#, "null"]
    {
        let body = format!(r#"{{"id" : {id} ,"jsonrpc":"2.0","method":"Get\u0054ask","params":{{"id":"t"}}}}"#);
        let reply = crate::bindings::http().post(format!("{url}/")).json_body(body).send().await.unwrap();
        let text = reply.text().await.unwrap();
        assert!(text.starts_with(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"id":"t""#)), "{text}");
    }
}

#[tokio::test]
async fn every_path_and_json_media_type_is_accepted() {
    let Server { url, .. } = &Server::start().await;
    let post = |path: &str, content_type: &str| {
        let body = r#"{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"t"}}"#;
        let http = crate::bindings::http().post(format!("{url}{path}")).header(header::CONTENT_TYPE, content_type);
        async move { json(http.body(body).send().await.unwrap()).await }
    };
    for path in ["/", "/rpc", "/a2a"] {
        assert_eq!(post(path, "application/json; charset=utf-8").await["result"]["id"], "t", "{path}");
    }
    for good in ["application/a2a+json", "Application/vnd.x+JSON"] {
        assert_eq!(post("/rpc", good).await["result"]["id"], "t", "{good}");
    }
    for wrong in ["text/plain", "application/xml", "text/json", "json"] {
        let reply = post("/rpc", wrong).await;
        assert_eq!((&reply["error"]["code"], &reply["id"]), (&json!(-32005), &json!(null)), "{wrong}: {reply}");
    }
}

/// JSON-RPC requires `result`, and many clients expect null rather than an empty object.
#[tokio::test]
async fn empty_result_is_null() {
    let Server { url, .. } = &Server::start().await;
    let body =
        r#"{"jsonrpc":"2.0","id":1,"method":"DeleteTaskPushNotificationConfig","params":{"taskId":"t","id":"c"}}"#;
    let reply = crate::bindings::http().post(format!("{url}/rpc")).json_body(body).send().await.unwrap();
    assert_eq!(reply.text().await.unwrap(), r#"{"jsonrpc":"2.0","id":1,"result":null}"#);
}

/// An object without members means an empty list, which clients read members of.
#[tokio::test]
async fn result_with_empty_lists_is_an_object() {
    let Server { url, .. } = &Server::start().await;
    let body =
        r#"{"jsonrpc":"2.0","id":1,"method":"ListTaskPushNotificationConfigs","params":{"taskId":"no webhooks"}}"#;
    let reply = crate::bindings::http().post(format!("{url}/rpc")).json_body(body).send().await.unwrap();
    assert_eq!(reply.text().await.unwrap(), r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
    let reply = crate::bindings::fetch(format!("{url}/tasks/no%20webhooks/pushNotificationConfigs")).await.unwrap();
    assert_eq!(reply.text().await.unwrap(), "{}");
}

#[tokio::test]
async fn notification_is_executed_without_a_response_body() {
    let server = Server::start().await;
    for (method, params) in [
        ("SendMessage", send_json("m")),
        ("SendStreamingMessage", send_json("m")),
        ("GetTask", r#"{"id":"missing"}"#.into()),
    ] {
        let body = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#);
        let reply = crate::bindings::http().post(format!("{}/rpc", server.url)).json_body(body).send().await.unwrap();
        assert_eq!(reply.status(), 204);
        assert_eq!(reply.text().await.unwrap(), "");
        assert!(server.echo.calls.lock().pop().is_some(), "{method}");
    }
}

/// Statuses that proxies and clients act on without reading the body.
#[tokio::test]
async fn some_errors_have_an_http_status() {
    let Server { url, .. } = &Server::start().await;
    for (id, status, code) in [("limited", 429, -32052), ("secret", 401, -32050), ("forbidden", 403, -32051)] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{{"id":"{id}"}}}}"#);
        let reply = crate::bindings::http().post(format!("{url}/rpc")).json_body(body).send().await.unwrap();
        assert_eq!(reply.status(), status);
        assert_eq!(reply.headers().contains_key(header::RETRY_AFTER), status == 429);
        assert_eq!(reply.headers().contains_key(header::WWW_AUTHENTICATE), status == 401);
        let reply: Value = json(reply).await;
        assert_eq!((&reply["id"], &reply["error"]["code"]), (&json!(1), &json!(code)));
    }
}

#[tokio::test]
async fn invalid_params_are_named_by_field() {
    let Server { url, .. } = &Server::start().await;
    let parts = r#"{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"x"},{"text":"a","url":"b"}]}}"#;
    let wrong = [
        (parts, "message.parts[1]"),
        (r#"{"message":{"role":"user"}}"#, "message.role"),
        (r#"{"configuration":{"historyLength":1.5}}"#, "configuration.historyLength"),
        ("{}", "message"),
    ];
    for (params, field) in wrong {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{params}}}"#);
        let reply = post(url, &body).await;
        assert_eq!(reply["error"]["data"][1]["fieldViolations"][0]["field"], field, "{reply}");
    }
}

/// Some SDKs read only events after they requested a stream.
#[tokio::test]
async fn error_of_a_streaming_method_is_an_event_if_only_events_are_accepted() {
    let Server { url, .. } = &Server::start().await;
    let rejected_send = send_json("refuse");
    let v03_send = r#"{"message":{"kind":"message","messageId":"refuse","role":"user","parts":[{"text":"x"}]}}"#;
    let events = "text/event-stream";
    let rows = [
        ("SendStreamingMessage", rejected_send.as_str(), Some(events), "Go-http-client/1.1", Some(-32004)),
        ("SendStreamingMessage", "{}", Some("Text/Event-Stream;q=0.9"), "python-httpx/0.28", Some(-32602)),
        ("SubscribeToTask", r#"{"id":"missing"}"#, Some(events), "", Some(-32001)),
        // The SDK of Node reports a plain error better.
        ("SendStreamingMessage", &rejected_send, Some(events), "node", None),
        ("SendStreamingMessage", &rejected_send, Some("application/json, text/event-stream"), "", None),
        ("SendStreamingMessage", &rejected_send, Some("*/*"), "", None),
        ("SendStreamingMessage", &rejected_send, None, "", None),
        ("SendMessage", "{}", Some(events), "", None),
        ("Nothing", "{}", Some(events), "", None),
        // All SDKs of 0.3 read only events.
        ("message/stream", "{}", Some(events), "node", Some(-32602)),
        ("message/stream", "{}", Some("*/*"), "node", None),
        ("message/stream", v03_send, None, "", Some(-32004)),
    ];
    for (method, params, accept, agent, event) in rows {
        let body = format!(r#"{{"jsonrpc":"2.0","id":"é","method":"{method}","params":{params}}}"#);
        let mut http = crate::bindings::http().post(format!("{url}/rpc")).header(header::USER_AGENT, agent);
        if let Some(accept) = accept {
            http = http.header(header::ACCEPT, accept);
        }
        let reply = http.json_body(body).send().await.unwrap();
        let row = format!("{method} {params} {accept:?} {agent}");
        assert_eq!(reply.status(), 200, "{row}");
        let is_stream = reply.headers()[header::CONTENT_TYPE] == events;
        assert_eq!(is_stream, event.is_some(), "{row}");
        let text = reply.text().await.unwrap();
        let data = if is_stream {
            let (name, data) = text.split_once('\n').unwrap();
            assert_eq!((name, text.matches("data:").count()), ("event: error", 1), "{row}: {text}");
            data.strip_prefix("data: ").and_then(|data| data.strip_suffix("\n\n")).unwrap()
        } else {
            &text
        };
        let response: Value = serde_json::from_str(data).unwrap();
        assert_eq!((&response["id"], &response["jsonrpc"]), (&json!("é"), &json!("2.0")), "{row}");
        let code = response["error"]["code"].as_i64().unwrap();
        assert!(event.is_none_or(|expected| expected == code), "{row}: {text}");
    }
}

/// Errors that proxies act on are not sent as events, whatever the client accepts.
#[tokio::test]
async fn error_with_an_http_status_is_not_an_event() {
    let Server { url, .. } = &Server::start().await;
    for (id, status) in [("limited", 429), ("secret", 401), ("forbidden", 403)] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"SubscribeToTask","params":{{"id":"{id}"}}}}"#);
        let http = crate::bindings::http().post(format!("{url}/rpc")).header(header::ACCEPT, "text/event-stream");
        let reply = http.json_body(body).send().await.unwrap();
        assert_eq!(reply.status(), status);
        assert_eq!(reply.headers()[header::CONTENT_TYPE], "application/json");
        assert_eq!(json(reply).await["id"], 1);
    }
}
