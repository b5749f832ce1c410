//! Server-sent events of 1.0, byte for byte: the `id:` lines, headers, and errors before, during and at the end of a stream.

use a2a_service::{
    pb::v03::{self},
    v03::pb::a2a_service_client::A2aServiceClient,
};
use http::header;
use serde_json::{Value, json};
use tonic::Code;

use super::support::*;
use crate::conformance::{Exemption, allow_undocumented};

async fn stream(url: &str, message_id: &str) -> reqwest::Response {
    let http = crate::bindings::http().post(format!("{url}/message:stream"));
    http.json_body(send_json(message_id)).send().await.unwrap()
}

async fn call(url: &str, message_id: &str) -> reqwest::Response {
    let params = send_json(message_id);
    let body = format!(r#"{{"jsonrpc":"2.0","id":"7","method":"SendStreamingMessage","params":{params}}}"#);
    crate::bindings::http().post(format!("{url}/rpc")).json_body(body).send().await.unwrap()
}

/// Each binding has equal JSON, with the cursor before it and its own envelope around it.
#[tokio::test]
async fn stream_has_exact_bytes() {
    let Server { url, .. } = &Server::start().await;
    let data = event_json("m");
    for (reply, data) in [
        (stream(url, "m").await, data.clone()),
        (call(url, "m").await, format!(r#"{{"jsonrpc":"2.0","id":"7","result":{data}}}"#)),
    ] {
        assert_eq!(reply.status(), 200);
        assert_eq!(reply.headers()[header::CONTENT_TYPE], "text/event-stream");
        assert_eq!(reply.headers()[header::CACHE_CONTROL], "no-cache");
        assert_eq!(reply.headers()["x-accel-buffering"], "no");
        assert_eq!(reply.headers()["a2a-extensions"], "https://example.com/ext");
        assert_eq!(reply.text().await.unwrap(), format!("id: t.1.1\ndata: {data}\n\nid: t.1.2\ndata: {data}\n\n"));
    }
}

#[tokio::test]
async fn stream_over_http2_has_exact_bytes() {
    let server = Server::start().await;
    let http = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
    let reply = http.post(format!("{}/message:stream", server.url)).json_body(send_json("m")).send().await.unwrap();
    assert_eq!(reply.version(), http::Version::HTTP_2);
    let data = event_json("m");
    assert_eq!(reply.text().await.unwrap(), format!("id: t.1.1\ndata: {data}\n\nid: t.1.2\ndata: {data}\n\n"));
}

/// A stream that fails before its first event reports the error, because the client has no cursor to resume from.
#[tokio::test]
async fn unavailability_before_the_first_event_is_an_error_event() {
    allow_undocumented(Exemption::Requests);
    let Server { url, .. } = &Server::start().await;
    let v03_stream = async |path: &str, body: String| {
        let reply = crate::bindings::http().post(format!("{url}{path}")).json_body(body).send().await.unwrap();
        assert_eq!(reply.headers()[header::CONTENT_TYPE], "text/event-stream");
        reply.text().await.unwrap()
    };
    let error = |text: &str| -> Value {
        let data = text.strip_prefix("event: error\ndata: ").unwrap_or_else(|| panic!("{text}"));
        serde_json::from_str(data.strip_suffix("\n\n").unwrap()).unwrap()
    };
    assert_eq!(error(&stream(url, "away").await.text().await.unwrap())["error"]["code"], 503);
    let rpc = error(&call(url, "away").await.text().await.unwrap());
    assert_eq!((&rpc["error"]["code"], &rpc["error"]["data"][0]["reason"]), (&json!(-32053), &json!("UNAVAILABLE")));
    let message = r#"{"messageId":"away","role":"user","parts":[{"kind":"text","text":"hi"}]}"#;
    let rest = error(&v03_stream("/v1/message:stream", format!(r#"{{"message":{message}}}"#)).await);
    assert_eq!(
        (&rest["error"]["code"], &rest["code"], &rest["type"]),
        (&json!(503), &json!(-32053), &json!("ServerError"))
    );
    let call = format!(r#"{{"jsonrpc":"2.0","id":7,"method":"message/stream","params":{{"message":{message}}}}}"#);
    let expected = r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32053,"message":"Unavailable"}}"#;
    assert_eq!(v03_stream("/rpc", call).await, format!("event: error\ndata: {expected}\n\n"));
    let mut grpc = A2aServiceClient::connect(url.clone()).await.unwrap();
    let content = v03::Part { part: Some(v03::part::Part::Text("hi".into())), metadata: None };
    let message = v03::Message {
        message_id: "away".into(),
        role: v03::Role::User.into(),
        content: vec![content],
        ..Default::default()
    };
    let sent = v03::SendMessageRequest { request: Some(message), ..Default::default() };
    let status = grpc.send_streaming_message(sent).await.unwrap().into_inner().message().await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "ServerError: Unavailable"));
}

#[tokio::test]
async fn error_after_the_first_event_ends_the_stream() {
    let Server { url, .. } = &Server::start().await;
    let data = event_json("fail");
    let rest = stream(url, "fail").await.text().await.unwrap();
    let error = rest.strip_prefix(&format!("id: t.1.1\ndata: {data}\n\nevent: error\ndata: ")).expect(&rest);
    let error: Value = serde_json::from_str(error.strip_suffix("\n\n").unwrap()).unwrap();
    assert_eq!(error["error"]["details"][0]["reason"], "TASK_NOT_FOUND");

    let rpc = call(url, "fail").await.text().await.unwrap();
    let error = rpc.split_once("event: error\ndata: ").expect(&rpc).1;
    let error: Value = serde_json::from_str(error.strip_suffix("\n\n").unwrap()).unwrap();
    assert_eq!((&error["id"], &error["error"]["code"]), (&json!("7"), &json!(-32001)));
}

/// `EventSource` reconnects after the end of a stream, but not after an error.
#[tokio::test]
async fn draining_ends_the_stream_without_an_error() {
    let Server { url, .. } = &Server::start().await;
    let data = event_json("drain");
    assert_eq!(stream(url, "drain").await.text().await.unwrap(), format!("id: t.1.1\ndata: {data}\n\n"));
    let text = call(url, "drain").await.text().await.unwrap();
    assert!(text.ends_with("}\n\n") && !text.contains("error"), "{text}");
}

#[tokio::test]
async fn error_before_the_first_event_is_a_plain_response() {
    let Server { url, .. } = &Server::start().await;
    let reply = stream(url, "refuse").await;
    assert_eq!(reply.status(), 400);
    assert_eq!(reply.headers()[header::CONTENT_TYPE], "application/json");
    let reply = call(url, "refuse").await;
    assert_eq!(reply.headers()[header::CONTENT_TYPE], "application/json");
    assert_eq!(json(reply).await["error"]["code"], -32004);
}
