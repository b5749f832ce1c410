//! Clients of this crate with foreign servers: error mapping, empty bodies, unexpected content types, streams.

use std::sync::Arc;

use a2a_service::{
    client,
    error::{Error, ErrorKind},
    pb::v1::{a2a_service_server::A2aService, *},
};
use axum::{Router, response::IntoResponse};
use http::{StatusCode, header};
use tokio_stream::StreamExt as _;
use tonic::Request;

use super::support::*;

/// Serves this response on every path, and returns a REST and a JSON-RPC client of it.
async fn agent(status: u16, content_type: &'static str, body: &str) -> [Arc<dyn A2aService>; 2] {
    let (status, body) = (StatusCode::from_u16(status).unwrap(), body.to_owned());
    let answer = move || async move { (status, [(header::CONTENT_TYPE, content_type)], body).into_response() };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/base/", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(answer)).await.unwrap() });
    [client::rest(&url).unwrap(), client::json_rpc(&url).unwrap()]
}

fn get() -> Request<GetTaskRequest> {
    Request::new(GetTaskRequest { id: "t".into(), ..Default::default() })
}

#[tokio::test]
async fn error_kind_is_taken_from_reason_then_code_then_status() {
    for (status, body, kind, message) in [
        (
            500,
            r#"{"error":{"code":404,"message":"gone","details":[{"@type":"x/google.rpc.ErrorInfo","reason":"TASK_NOT_FOUND"}]}}"#,
            ErrorKind::TaskNotFound,
            "gone",
        ),
        (
            400,
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"no task"}}"#,
            ErrorKind::TaskNotFound,
            "no task",
        ),
        (
            200,
            r#"{"jsonrpc":"2.0","id":"1","error":{"code":-32009,"message":"v","data":"text"}}"#,
            ErrorKind::VersionNotSupported,
            "v: text",
        ),
        (
            200,
            r#"{"error":{"code":-32602,"message":"bad","data":{"parseError":"x"}}}"#,
            ErrorKind::InvalidParams,
            "bad",
        ),
        (200, r#"{"error":{"code":403,"message":"no"}}"#, ErrorKind::PermissionDenied, "no"),
        (413, r#"{"error":{"code":-32600,"message":"large"}}"#, ErrorKind::TooLarge, "large"),
        (502, "<html>", ErrorKind::Unavailable, "Unavailable: HTTP 502 Bad Gateway"),
        (404, "", ErrorKind::MethodNotFound, "Method not found: HTTP 404 Not Found"),
        (302, "", ErrorKind::InvalidAgentResponse, "Invalid agent response type: HTTP 302 Found"),
        (500, "<html>", ErrorKind::InvalidAgentResponse, "Invalid agent response type: HTTP 500 Internal Server Error"),
        (500, r#"{"error":"oh"}"#, ErrorKind::Internal, "oh"),
        (
            401,
            r#"{"detail":"who?"}"#,
            ErrorKind::Unauthenticated,
            "Authentication required: HTTP 401 Unauthorized: who?",
        ),
    ] {
        for agent in agent(status, "application/json", body).await {
            let status = agent.get_task(get()).await.unwrap_err();
            assert_eq!((status.message(), status.code()), (message, kind.wire().grpc), "{body}");
            assert_eq!(Error::from(status).kind(), kind, "{body}");
        }
    }
}

#[tokio::test]
async fn empty_response_is_an_empty_message() {
    let request = || {
        let (task_id, id) = ("t".to_owned(), "c".to_owned());
        Request::new(DeleteTaskPushNotificationConfigRequest { task_id, id, ..Default::default() })
    };
    for (status, body) in [(204, ""), (200, ""), (200, "{}"), (200, r#"{"jsonrpc":"2.0","id":1,"result":null}"#)] {
        for agent in agent(status, "application/json", body).await {
            agent.delete_task_push_notification_config(request()).await.unwrap();
        }
    }
}

#[tokio::test]
async fn invalid_json_response_is_an_agent_error() {
    for (content_type, body) in [("text/html", "<html>"), ("application/json", "{"), ("application/json", "[]")] {
        for agent in agent(200, content_type, body).await {
            let error = Error::from(agent.get_task(get()).await.unwrap_err());
            assert_eq!(error.kind(), ErrorKind::InvalidAgentResponse, "{body}: {error}");
        }
    }
}

#[tokio::test]
async fn json_response_to_a_streaming_request_is_one_event() {
    let [rest, _] = agent(200, "application/json", &event_json("m")).await;
    let [_, rpc] = agent(200, "application/json", &format!(r#"{{"result":{}}}"#, event_json("m"))).await;
    for agent in [rest, rpc] {
        let stream = agent.send_streaming_message(Request::new(send("m"))).await.unwrap().into_inner();
        let events: Vec<_> = stream.map(Result::unwrap).collect().await;
        assert_eq!(events, [event(hello("m"), 1)]);
    }
    for agent in agent(200, "application/json", r#"{"error":{"code":-32004,"message":"no"}}"#).await {
        let error = agent.send_streaming_message(Request::new(send("m"))).await.map(|_| ()).unwrap_err();
        assert_eq!(Error::from(error).kind(), ErrorKind::UnsupportedOperation);
    }
}

#[tokio::test]
async fn stream_response_to_a_unary_request_is_an_agent_error() {
    for agent in agent(200, "text/event-stream", "data: {}\n\n").await {
        let error = Error::from(agent.get_task(get()).await.unwrap_err());
        assert_eq!(error.kind(), ErrorKind::InvalidAgentResponse);
    }
}

#[tokio::test]
async fn foreign_event_streams_are_read() {
    let pretty = serde_json::to_string_pretty(&serde_json::from_str::<serde_json::Value>(&event_json("m")).unwrap());
    let pretty = format!("data: {}\r\n", pretty.unwrap().replace('\n', "\r\ndata: "));
    let error =
        r#"{"error":{"code":404,"message":"gone","details":[{"@type":"ErrorInfo","reason":"TASK_NOT_FOUND"}]}}"#;
    let body = format!(": ping\r\n\r\nid: 7\r\nretry: 5\r\n{pretty}\r\nevent: error\r\ndata: {error}\r\n\r\n");
    let [rest, _] = agent(200, "Text/Event-Stream; charset=utf-8", &body).await;
    let mut stream = rest.send_streaming_message(Request::new(send("m"))).await.unwrap().into_inner();
    let first = stream.next().await.unwrap().unwrap();
    assert_eq!((first.cursor().map(ToString::to_string).as_deref(), &first), (Some("7"), &event(hello("m"), 1)));
    assert_eq!(Error::from(stream.next().await.unwrap().unwrap_err()).kind(), ErrorKind::TaskNotFound);
}

#[tokio::test]
async fn unreachable_server_is_unavailable() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    for agent in [client::rest(&url), client::json_rpc(&url), client::grpc(&url)] {
        let status = agent.unwrap().get_task(get()).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::Unavailable);
        assert!(!status.message().contains("http://"), "{status}");
    }
    for wrong in ["", "nowhere", "ftp://a"] {
        assert!(client::rest(wrong).is_err() && client::json_rpc(wrong).is_err());
    }
    assert!(client::grpc("").is_err());
}

/// The Go SDK subscribes by POST only, and takes GET for a read of a task with another id.
#[tokio::test]
async fn subscription_by_get_falls_back_to_post() {
    let details = serde_json::json!([{
        "@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "TASK_NOT_FOUND", "domain": "a2a-protocol.org"
    }]);
    let missing = serde_json::json!({"error": {"code": 404, "status": "NOT_FOUND", "message": "task not found", "details": details}});
    let route = axum::routing::get(async move || (StatusCode::NOT_FOUND, missing.to_string()))
        .post(async || ([(header::CONTENT_TYPE, "text/event-stream")], format!("data: {}\n\n", event_json("m"))));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let rest = client::rest(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let app = Router::new().route("/tasks/t:subscribe", route);
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    let subscribe = |id: &str| Request::new(SubscribeToTaskRequest { id: id.into(), ..Default::default() });
    let mut stream = rest.subscribe_to_task(subscribe("t")).await.unwrap().into_inner();
    assert_eq!(stream.next().await.unwrap().unwrap(), event(hello("m"), 1));
    let error = Error::from(rest.subscribe_to_task(subscribe("unknown")).await.err().unwrap());
    assert_eq!(error.kind(), ErrorKind::MethodNotFound);
}

/// `.` and `..` are path segments with a meaning, so they are rejected as ids.
#[tokio::test]
async fn ids_that_are_path_segments_are_rejected() {
    for id in [".", ".."] {
        let request = GetTaskRequest { id: id.into(), ..Default::default() };
        let error = client::rest("http://127.0.0.1:9").unwrap().get_task(Request::new(request)).await.unwrap_err();
        assert_eq!(Error::from(error).violations()[0].field, "id");
    }
}
