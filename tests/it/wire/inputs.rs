//! Invalid requests, and the error that each binding returns: its code, the reason, and the named field.

use a2a_service::pb::v1::*;
use bytes::Bytes;
use http::header;
use prost::Message as _;
use serde_json::{Value, json};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use super::support::*;

/// Reason of an error, and the field that it names, or an empty string.
type ReasonAndField = (&'static str, &'static str);

const PARAMS: &str = "INVALID_PARAMS";

/// Send parameters that are valid JSON but an invalid message. gRPC can only express those that protobuf can.
fn invalid_sends() -> Vec<(String, ReasonAndField)> {
    let part = |part: &str| format!(r#"{{"message":{{"messageId":"m","role":"ROLE_USER","parts":[{part}]}}}}"#);
    let message = |members: &str| format!(r#"{{"message":{{"messageId":"m","parts":[{{"text":"x"}}],{members}}}}}"#);
    let user = |members: &str| message(&format!(r#""role":"ROLE_USER",{members}"#));
    let send = |members: &str| format!(r#"{{"message":{},{members}}}"#, hello_json("m"));
    vec![
        ("[]".into(), (PARAMS, "")),
        ("7".into(), (PARAMS, "")),
        (r#""text""#.into(), (PARAMS, "")),
        ("{}".into(), (PARAMS, "message")),
        ("null".into(), (PARAMS, "message")),
        (r#"{"message":null}"#.into(), (PARAMS, "message")),
        (r#"{"message":[]}"#.into(), (PARAMS, "message")),
        (r#"{"message":{}}"#.into(), (PARAMS, "message.messageId")),
        (message(r#""contextId":"c""#), (PARAMS, "message.role")),
        (message(r#""role":"user""#), (PARAMS, "message.role")),
        (message(r#""role":7"#), (PARAMS, "message.role")),
        (message(r#""role":0"#), (PARAMS, "message.role")),
        (message(r#""role":"ROLE_UNSPECIFIED""#), (PARAMS, "message.role")),
        (message(r#""role":[]"#), (PARAMS, "message.role")),
        (user(r#""contextId":7"#), (PARAMS, "message.contextId")),
        (user(r#""contextId":"a","contextId":"b""#), (PARAMS, "message.contextId")),
        (user(r#""contextId":"a","context_id":"b""#), (PARAMS, "message.context_id")),
        (user(r#""metadata":[]"#), (PARAMS, "message.metadata")),
        (user(r#""extensions":"urn:a""#), (PARAMS, "message.extensions")),
        (user(r#""extensions":[1]"#), (PARAMS, "message.extensions[0]")),
        (r#"{"message":{"messageId":"m","role":"ROLE_USER"}}"#.into(), (PARAMS, "message.parts")),
        (r#"{"message":{"messageId":"m","role":"ROLE_USER","parts":{}}}"#.into(), (PARAMS, "message.parts")),
        (part(""), (PARAMS, "message.parts")),
        (part("{}"), (PARAMS, "message.parts[0]")),
        (part("null"), (PARAMS, "message.parts[0]")),
        (part(r#"{"text":"a"},{"url":"b","raw":"YQ=="}"#), (PARAMS, "message.parts[1]")),
        (part(r#"{"text":null}"#), (PARAMS, "message.parts[0]")),
        (part(r#"{"text":7}"#), (PARAMS, "message.parts[0].text")),
        (part(r#"{"raw":"no!"}"#), (PARAMS, "message.parts[0].raw")),
        (part(r#"{"kind":"text"}"#), (PARAMS, "message.parts[0]")),
        (send(r#""configuration":{"historyLength":1.5}"#), (PARAMS, "configuration.historyLength")),
        (send(r#""configuration":{"historyLength":"many"}"#), (PARAMS, "configuration.historyLength")),
        (send(r#""configuration":{"historyLength":3000000000}"#), (PARAMS, "configuration.historyLength")),
        (send(r#""configuration":{"returnImmediately":"yes"}"#), (PARAMS, "configuration.returnImmediately")),
        (
            send(r#""configuration":{"acceptedOutputModes":"text/plain"}"#),
            (PARAMS, "configuration.acceptedOutputModes"),
        ),
        (send(r#""configuration":7"#), (PARAMS, "configuration")),
        (send(r#""metadata":"x""#), (PARAMS, "metadata")),
        (send(r#""tenant":{}"#), (PARAMS, "tenant")),
    ]
}

/// Returns the reason in the details of an error, and the first field that it names.
fn reason_and_field(details: &Value) -> (String, String) {
    let text = |at: &str| details.pointer(at).and_then(Value::as_str).unwrap_or_default().to_owned();
    assert_eq!(text("/0/domain"), "a2a-protocol.org", "{details}");
    assert_eq!(text("/0/@type"), "type.googleapis.com/google.rpc.ErrorInfo");
    (text("/0/reason"), text("/1/fieldViolations/0/field"))
}

async fn rest(url: &str, body: impl Into<reqwest::Body>) -> (u16, Value) {
    let reply = crate::bindings::http().post(url).header(header::CONTENT_TYPE, "application/json").body(body);
    let reply = reply.send().await.unwrap();
    assert_eq!(reply.headers()[header::CONTENT_TYPE], "application/json");
    let status = reply.status().as_u16();
    let body = json(reply).await;
    let members: Vec<_> = body["error"].as_object().unwrap().keys().collect();
    assert_eq!(members, ["code", "details", "message", "status"], "{body}");
    assert_eq!(body["error"]["code"], status);
    (status, body["error"].clone())
}

async fn rpc(url: &str, body: impl Into<reqwest::Body>) -> (u16, Value) {
    let reply = crate::bindings::http().post(format!("{url}/rpc")).header("a2a-version", "1.0").json_body(body);
    let reply = reply.send().await.unwrap();
    assert_eq!(reply.headers()[header::CONTENT_TYPE], "application/json");
    (reply.status().as_u16(), json(reply).await)
}

#[tokio::test]
async fn invalid_messages_are_rejected_by_field() {
    let server = Server::start().await;
    for (params, (reason, field)) in invalid_sends() {
        let expected = (reason.to_owned(), field.to_owned());
        let mut sentences = Vec::new();
        for (action, method) in [("send", "SendMessage"), ("stream", "SendStreamingMessage")] {
            let (status, error) = rest(&format!("{}/message:{action}", server.url), params.clone()).await;
            assert_eq!((status, &error["status"]), (400, &json!("INVALID_ARGUMENT")), "{params}: {error}");
            assert_eq!(reason_and_field(&error["details"]), expected, "{params}: {error}");
            sentences.push(error["message"].clone());
            let body = format!(r#"{{"jsonrpc":"2.0","id":"é","method":"{method}","params":{params}}}"#);
            let (status, response) = rpc(&server.url, body).await;
            assert_eq!((status, &response["id"]), (200, &json!("é")));
            assert_eq!(response["error"]["code"], -32602, "{params}: {response}");
            assert_eq!(reason_and_field(&response["error"]["data"]), expected, "{params}: {response}");
            sentences.push(response["error"]["message"].clone());
        }
        sentences.dedup();
        assert_eq!(sentences.len(), 1, "{params}: {sentences:?}");
    }
    assert!(server.echo.calls.lock().is_empty());
}

/// A message that is not wrapped in a request is a common mistake; the error says where the message belongs.
#[tokio::test]
async fn error_for_a_bare_message_says_where_it_belongs() {
    let server = Server::start().await;
    let (bare, required) = (hello_json("m"), "Invalid parameters: message: is required");
    let (status, error) = rest(&format!("{}/message:send", server.url), bare.clone()).await;
    assert_eq!((status, reason_and_field(&error["details"])), (400, (PARAMS.to_owned(), "message".to_owned())));
    assert_eq!(error["message"], format!("{required}; a bare Message was sent, which belongs in message"));
    let belongs = format!("{required}; a bare Message was sent, which belongs in params.message");
    for (params, message) in [(&*bare, &*belongs), (r#"{"role":"ROLE_USER"}"#, &belongs), (r#"{"id":"m"}"#, required)] {
        let call = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"SendStreamingMessage","params":{params}}}"#);
        for (body, at) in [(call.clone(), "/error"), (format!("[{}]", call.replace("Streaming", "")), "/0/error")] {
            let (_, response) = rpc(&server.url, body).await;
            let error = response.pointer(at).unwrap();
            assert_eq!((&error["code"], &error["message"]), (&json!(-32602), &json!(message)), "{params}");
        }
    }
    assert!(server.echo.calls.lock().is_empty());
}

/// Bodies that are not JSON, or JSON that is not a JSON-RPC request.
#[tokio::test]
async fn bodies_that_are_not_json_rpc_requests_are_rejected() {
    let server = Server::start().await;
    let deep = format!("{}1{}", "[".repeat(300), "]".repeat(300));
    let utf16: Vec<u8> = "{}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let further = [r#"{"message":{"messageId":"a"#.into(), Bytes::from(utf16)];
    for body in NO_JSON.map(Bytes::from_static).into_iter().chain(further) {
        let (status, error) = rest(&format!("{}/message:send", server.url), body.clone()).await;
        assert_eq!((status, reason_and_field(&error["details"]).0.as_str()), (400, "PARSE_ERROR"), "{body:?}: {error}");
        // Wrapped in a call: only invalid UTF-8 still breaks the whole body.
        let call = [br#"{"jsonrpc":"2.0","id":1,"method":"GetTask","params":"#, &body[..], b"}"].concat();
        let call = if body == LATIN { call } else { body.to_vec() };
        let (status, response) = rpc(&server.url, call).await;
        assert_eq!(
            (status, &response["id"], &response["error"]["code"]),
            (200, &json!(null), &json!(-32700)),
            "{body:?}"
        );
        assert_eq!(reason_and_field(&response["error"]["data"]).0, "PARSE_ERROR");
    }
    for body in ["7", "true", "null", r#""x""#, "{}", &format!("[{deep}]"), r#"{"jsonrpc":2,"id":1}"#] {
        let (status, response) = rpc(&server.url, body.to_owned()).await;
        let error = if response.is_array() { &response[0]["error"] } else { &response["error"] };
        assert_eq!((status, &error["code"]), (200, &json!(-32600)), "{body}: {response}");
        assert_eq!(reason_and_field(&error["data"]).0, "INVALID_REQUEST");
    }
    assert!(server.echo.calls.lock().is_empty());
}

/// Sends frames to a gRPC path and returns the status.
async fn grpc(url: &str, path: &str, frames: impl Into<reqwest::Body>, headers: &[(&'static str, &str)]) -> Status {
    let http = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
    let request = http.post(format!("{url}{path}")).header(header::CONTENT_TYPE, "application/grpc");
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let reply = request.body(frames).send().await.unwrap();
    assert_eq!(
        (reply.status().as_u16(), &reply.headers()[header::CONTENT_TYPE]),
        (200, &"application/grpc".parse().unwrap())
    );
    Status::from_header_map(reply.headers()).unwrap()
}

/// Returns a message in a gRPC frame.
fn frame(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], &length[..], message].concat()
}

#[tokio::test]
async fn invalid_grpc_requests_are_rejected_by_field() {
    let server = Server::start().await;
    let url = &server.url;
    let service = "/lf.a2a.v1.A2AService";
    let wrong = |change: fn(&mut SendMessageRequest)| {
        let mut request = send("m");
        change(&mut request);
        frame(&request.encode_to_vec())
    };
    for (path, frames, code, (reason, field)) in [
        ("SendMessage", frame(&[]), Code::InvalidArgument, (PARAMS, "message")),
        (
            "SendMessage",
            wrong(|request| request.message = Some(Message::default())),
            Code::InvalidArgument,
            (PARAMS, "message.messageId"),
        ),
        (
            "SendMessage",
            wrong(|request| request.message.as_mut().unwrap().role = 0),
            Code::InvalidArgument,
            (PARAMS, "message.role"),
        ),
        (
            "SendMessage",
            wrong(|request| request.message.as_mut().unwrap().role = 7),
            Code::InvalidArgument,
            (PARAMS, "message.role"),
        ),
        (
            "SendMessage",
            wrong(|request| request.message.as_mut().unwrap().parts.clear()),
            Code::InvalidArgument,
            (PARAMS, "message.parts"),
        ),
        (
            "SendStreamingMessage",
            wrong(|request| request.message.as_mut().unwrap().parts[0] = Part::default()),
            Code::InvalidArgument,
            (PARAMS, "message.parts[0]"),
        ),
        ("GetTask", frame(&[]), Code::InvalidArgument, (PARAMS, "id")),
        ("GetTask", frame(&[0xff]), Code::InvalidArgument, (PARAMS, "")),
        ("GetTask", frame(&[0x0a, 0x02, 0xff, 0xfe]), Code::InvalidArgument, (PARAMS, "")),
        ("GetTask", vec![], Code::InvalidArgument, ("INVALID_REQUEST", "")),
        ("GetTask", vec![0, 0, 0], Code::InvalidArgument, ("INVALID_REQUEST", "")),
        ("GetTask", vec![0, 0, 0, 0, 9, 1], Code::InvalidArgument, ("INVALID_REQUEST", "")),
        ("GetTask", vec![9, 0, 0, 0, 0], Code::InvalidArgument, ("INVALID_REQUEST", "")),
        ("GetTask", vec![0, 0x7f, 0xff, 0xff, 0xff], Code::ResourceExhausted, ("PAYLOAD_TOO_LARGE", "")),
        ("Nothing", frame(&[]), Code::Unimplemented, ("METHOD_NOT_FOUND", "")),
        ("gettask", frame(&[]), Code::Unimplemented, ("METHOD_NOT_FOUND", "")),
        ("", frame(&[]), Code::Unimplemented, ("METHOD_NOT_FOUND", "")),
    ] {
        let status = grpc(url, &format!("{service}/{path}"), frames.clone(), &[]).await;
        let details = status.get_error_details();
        let named_field =
            details.bad_request().map(|bad_request| bad_request.field_violations[0].field.clone()).unwrap_or_default();
        let info = details.error_info().unwrap();
        assert_eq!(
            (status.code(), info.reason.as_str(), named_field.as_str()),
            (code, reason, field),
            "{path} {frames:?}: {status}"
        );
        assert_eq!(info.domain, "a2a-protocol.org");
    }
    for path in ["/", "/x", "/x.Y/Z", "/lf.a2a.v1.A2AService", "/lf.a2a.v1.A2AServices/GetTask", "/tasks/t"] {
        let status = grpc(url, path, frame(&[]), &[]).await;
        let reason = status.get_error_details().error_info().unwrap().reason.clone();
        assert_eq!((status.code(), reason.as_str()), (Code::Unimplemented, "METHOD_NOT_FOUND"), "{path}");
    }
    let status = grpc(url, &format!("{service}/GetTask"), frame(&[]), &[("grpc-encoding", "snappy")]).await;
    assert_eq!(status.code(), Code::Unimplemented, "the status that gRPC has for an unknown encoding");
    assert!(server.echo.calls.lock().is_empty());
}
