//! Invalid requests of protocol 0.3, and the error that JSON-RPC, REST and gRPC return for each.

use a2a_service::{
    error::Error,
    pb::v03::{GetTaskRequest, Message, Part, Role, SendMessageRequest, part},
    protocol::Version,
    transport::{Settings, listener},
};
use bytes::Bytes;
use http::header;
use prost::Message as _;
use serde_json::{Value, json};
use tonic::{Code, Status};

use super::{support::*, v03_support::HI};
use crate::conformance::{Exemption, allow_undocumented};

/// Field that the error names: `None` if the request is accepted, empty if the error names no field.
type RejectedField = Option<&'static str>;

/// Accepted, because the request is unambiguous.
const ACCEPTED: RejectedField = None;

/// Send parameters that are valid JSON but an invalid message, with the field named by JSON-RPC and by REST, which gets the
/// same body.
fn invalid_sends() -> Vec<(String, RejectedField, RejectedField)> {
    let message = |members: &str| {
        format!(r#"{{"message":{{"messageId":"m","parts":[{{"kind":"text","text":"x"}}],{members}}}}}"#)
    };
    let user = |members: &str| message(&format!(r#""role":"user",{members}"#));
    let parts = |parts: &str| format!(r#"{{"message":{{"messageId":"m","role":"user","parts":{parts}}}}}"#);
    let send = |members: &str| format!(r#"{{"message":{HI},{members}}}"#);
    let both = |params: String, field: &'static str| (params, Some(field), Some(field));
    vec![
        both("[]".into(), ""),
        both("7".into(), ""),
        both(r#""text""#.into(), ""),
        both("{}".into(), "message"),
        both("null".into(), "message"),
        both(r#"{"message":null}"#.into(), "message"),
        both(r#"{"message":[]}"#.into(), "message"),
        both(r#"{"message":7}"#.into(), "message"),
        both(r#"{"message":{}}"#.into(), "message.messageId"),
        both(r#"{"message":{"messageId":7}}"#.into(), "message.messageId"),
        both(r#"{"message":{"messageId":"","role":"user","parts":[{"text":"x"}]}}"#.into(), "message.messageId"),
        both(message(r#""contextId":"c""#), "message.role"),
        both(message(r#""role":"root""#), "message.role"),
        both(message(r#""role":7"#), "message.role"),
        both(message(r#""role":[]"#), "message.role"),
        both(message(r#""role":"""#), "message.role"),
        both(user(r#""contextId":7"#), "message.contextId"),
        both(user(r#""taskId":{}"#), "message.taskId"),
        both(user(r#""metadata":[]"#), "message.metadata"),
        both(user(r#""extensions":"urn:a""#), "message.extensions"),
        both(user(r#""extensions":[1]"#), "message.extensions[0]"),
        (user(r#""contextId":"a","contextId":"b""#), Some("message.contextId"), ACCEPTED),
        both(user(r#""contextId":"a","context_id":"b""#), "message.context_id"),
        // The proto file of 0.3 has no such member, so its type is undefined.
        (user(r#""referenceTaskIds":[1]"#), Some("message.referenceTaskIds[0]"), ACCEPTED),
        both(r#"{"message":{"messageId":"m","role":"user"}}"#.into(), "message.parts"),
        both(parts("[]"), "message.parts"),
        (parts("{}"), Some("message.parts"), Some("message.content")),
        both(parts("[{}]"), "message.parts[0]"),
        (parts("[null]"), Some("message.parts[0]"), Some("message.content[0]")),
        (parts("[7]"), Some("message.parts[0]"), Some("message.content[0]")),
        both(parts(r#"[{"kind":"text"}]"#), "message.parts[0]"),
        both(parts(r#"[{"kind":"text","text":null}]"#), "message.parts[0]"),
        both(parts(r#"[{"kind":"file"}]"#), "message.parts[0]"),
        both(parts(r#"[{"kind":"data"}]"#), "message.parts[0]"),
        (parts(r#"[{"text":"a","file":{"uri":"u"}}]"#), Some("message.parts[0]"), Some("message.content[0]")),
        // Unknown to ProtoJSON.
        (parts(r#"[{"kind":"video","text":"a"}]"#), Some("message.parts[0].kind"), ACCEPTED),
        (parts(r#"[{"kind":"text","text":7}]"#), Some("message.parts[0].text"), Some("message.content[0].text")),
        (parts(r#"[{"kind":"file","file":{}}]"#), Some("message.parts[0].file"), Some("message.parts[0]")),
        (parts(r#"[{"kind":"file","file":7}]"#), Some("message.parts[0].file"), Some("message.content[0].file")),
        (
            parts(r#"[{"kind":"file","file":{"bytes":"no!"}}]"#),
            Some("message.parts[0].file.bytes"),
            Some("message.content[0].file.fileWithBytes"),
        ),
        both(parts(r#"[{"kind":"file","file":{"uri":"u","bytes":"YQ=="}}]"#), "message.parts[0].file"),
        (parts(r#"[{"kind":"file","file":{"uri":"","bytes":"YQ=="}}]"#), ACCEPTED, ACCEPTED),
        both(parts(r#"[{"kind":"data","data":7}]"#), "message.parts[0]"),
        both(parts(r#"[{"kind":"data","data":"text"}]"#), "message.parts[0]"),
        (parts(r#"[{"kind":"data","data":[7]}]"#), ACCEPTED, ACCEPTED),
        both(user(r#""kind":"task""#), "message.kind"),
        both(user(r#""kind":7"#), "message.kind"),
        (user(r#""kind":"message""#), ACCEPTED, ACCEPTED),
        (user(r#""kind":null"#), ACCEPTED, ACCEPTED),
        (
            parts(r#"[{"kind":"text","text":"a","metadata":7}]"#),
            Some("message.parts[0].metadata"),
            Some("message.content[0].metadata"),
        ),
        both(send(r#""configuration":7"#), "configuration"),
        both(send(r#""configuration":{"historyLength":1.5}"#), "configuration.historyLength"),
        both(send(r#""configuration":{"historyLength":"many"}"#), "configuration.historyLength"),
        both(send(r#""configuration":{"historyLength":3000000000}"#), "configuration.historyLength"),
        both(send(r#""configuration":{"blocking":"yes"}"#), "configuration.blocking"),
        both(send(r#""configuration":{"blocking":1}"#), "configuration.blocking"),
        both(send(r#""configuration":{"acceptedOutputModes":"text/plain"}"#), "configuration.acceptedOutputModes"),
        both(send(r#""configuration":{"pushNotification":7}"#), "configuration.pushNotification"),
        (
            send(r#""configuration":{"pushNotification":{}}"#),
            Some("configuration.pushNotificationConfig.url"),
            Some("configuration.taskPushNotificationConfig.url"),
        ),
        both(send(r#""metadata":"x""#), "metadata"),
    ]
}

async fn status_and_body(reply: reqwest::Response) -> (u16, Value) {
    let status = reply.status().as_u16();
    // Accepted streaming requests are answered with a stream.
    let stream = reply.headers()[header::CONTENT_TYPE] != "application/json";
    (status, if stream { Value::Null } else { json(reply).await })
}

async fn rest(url: &str, body: impl Into<reqwest::Body>) -> (u16, Value) {
    let request = crate::bindings::http().post(url).header(header::CONTENT_TYPE, "application/json");
    status_and_body(request.body(body).send().await.unwrap()).await
}

async fn rpc(url: &str, body: impl Into<reqwest::Body>) -> (u16, Value) {
    status_and_body(crate::bindings::http().post(format!("{url}/rpc")).json_body(body).send().await.unwrap()).await
}

/// Returns the first field that a JSON-RPC error names. The message is the only source: such errors have no `data`.
fn named_field(error: &Value) -> &str {
    assert_eq!(error.as_object().unwrap().keys().collect::<Vec<_>>(), ["code", "message"], "{error}");
    let text = error["message"].as_str().unwrap().split_once(": ").unwrap().1;
    text.split_once(": ").map(|(field, _)| field).filter(|field| !field.contains(' ')).unwrap_or_default()
}

#[tokio::test]
async fn invalid_messages_are_rejected_by_field() {
    allow_undocumented(Exemption::Requests);
    let server = Server::start().await;
    let mut differences = Vec::new();
    for (params, rpc_field, rest_field) in invalid_sends() {
        for (action, method) in [("send", "message/send"), ("stream", "message/stream")] {
            let body = format!(r#"{{"jsonrpc":"2.0","id":"é","method":"{method}","params":{params}}}"#);
            let (status, response) = rpc(&server.url, body).await;
            let found = response.get("error").map(named_field);
            if found != rpc_field {
                differences.push(format!("{method} {params}: {response}, and not {rpc_field:?}"));
            }
            assert!(found.is_none() || (&response["error"]["code"], &response["id"]) == (&json!(-32602), &json!("é")));
            assert_eq!(status, 200);
            let (status, response) = rest(&format!("{}/v1/message:{action}", server.url), params.clone()).await;
            let field =
                response.pointer("/error/details/1/fieldViolations/0/field").map(|field| field.as_str().unwrap());
            let found = if status == 200 { ACCEPTED } else { Some(field.unwrap_or_default()) };
            if found != rest_field {
                differences.push(format!("REST {params}: {response}, and not {rest_field:?}"));
            }
            assert!(
                status == 200 || (status == 400 && response["type"] == "InvalidParamsError"),
                "{params}: {response}"
            );
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// A body that is not a JSON-RPC request is answered in the form of 0.3 unless the client states 1.0: 1.0 requires the version
/// header (3.6.2), and clients of both versions can read an error of 0.3.
#[tokio::test]
async fn bodies_that_are_not_json_rpc_requests_are_rejected() {
    let settings = Settings { body_bytes: 4096, ..settings() };
    let server = Server::with(settings.clone(), listener::ListenerSettings::default()).await;
    let large = format!("[{}", " ".repeat(5000));
    let post = async |url: &str, version: &str, body: &str| {
        let request = crate::bindings::http().post(format!("{url}/rpc")).header("a2a-version", version);
        json(request.json_body(body.to_owned()).send().await.unwrap()).await
    };
    for (version, body, code, is_v03) in [
        ("", "", -32700, true),
        ("", "{", -32700, true),
        ("", "}", -32700, true),
        ("", "NaN", -32700, true),
        ("", "{'a':1}", -32700, true),
        ("", "{} {}", -32700, true),
        ("", "[1,", -32700, true),
        ("0.3", "{", -32700, true),
        ("9.9", "{", -32700, true),
        ("1.0", "{", -32700, false),
        ("1.7", "{", -32700, false),
        ("", "[]", -32600, true),
        ("", "7", -32600, true),
        ("", "null", -32600, true),
        ("", r#""x""#, -32600, true),
        ("", "{}", -32600, true),
        ("", r#"{"jsonrpc":"2.0","id":1}"#, -32600, true),
        ("", r#"{"jsonrpc":"2.0","id":1,"method":""}"#, -32600, true),
        ("", r#"{"jsonrpc":"2.0","id":1,"method":7}"#, -32600, true),
        ("1.0", r#"{"jsonrpc":"2.0","id":1}"#, -32600, false),
        ("", &large, -32600, true),
        ("1.0", &large, -32600, false),
        // The method name takes precedence over the header.
        ("", r#"{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"#, -32700, false),
        ("1.0", r#"{"jsonrpc":"2.0","id":1,"method" : "tasks/get","params":{"#, -32700, true),
        ("1.0", r#"[{"jsonrpc":"2.0","id":1,"method":"tasks/get"},"#, -32700, true),
        ("", r#"{"jsonrpc":"1.0","id":1,"method":"GetTask"}"#, -32600, false),
        ("1.0", r#"{"jsonrpc":"1.0","id":1,"method":"tasks/get"}"#, -32600, true),
    ] {
        let response = post(&server.url, version, body).await;
        assert_eq!(response["error"]["code"], code, "{version} {body}: {response}");
        let data = &response["error"]["data"];
        assert_eq!((data.is_null(), data.is_array()), (is_v03, !is_v03), "{version} {body}: {response}");
        assert!(response.get("id").is_some(), "{response}");
    }
    // Each call of a batch has its own version.
    let answers = post(&server.url, "", r#"[7,{"jsonrpc":"2.0","id":1,"method":"Nothing"}]"#).await;
    assert!(answers[0]["error"]["data"].is_null() && answers[1]["error"]["data"].is_array(), "{answers}");
    // If 0.3 is not served, errors have the form of 1.0.
    let current = Settings { protocols: [Version::V1_0].into_iter().collect(), ..settings };
    let current = Server::with(current, listener::ListenerSettings::default()).await;
    assert!(post(&current.url, "", "{").await["error"]["data"].is_array());

    for body in NO_JSON.map(Bytes::from_static) {
        let (status, response) = rest(&format!("{}/v1/message:send", server.url), body.clone()).await;
        let found = (status, &response["type"], &response["code"]);
        assert_eq!(found, (400, &json!("JSONParseError"), &json!(-32700)), "{body:?}: {response}");
    }
    assert!(server.echo.calls.lock().is_empty());
}

/// Returns a message in a gRPC frame.
fn frame(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], &length[..], message].concat()
}

#[tokio::test]
async fn invalid_grpc_requests_are_rejected_by_field() {
    let server = Server::start().await;
    let http = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
    let wrong = |change: fn(&mut Message)| {
        let text = |text: &str| Part { part: Some(part::Part::Text(text.into())), metadata: None };
        let (message_id, role) = ("m".to_owned(), Role::User.into());
        let mut message = Message { message_id, role, content: vec![text("x")], ..Message::default() };
        change(&mut message);
        let request = SendMessageRequest { request: Some(message), ..SendMessageRequest::default() };
        frame(&request.encode_to_vec())
    };
    let named = |name: &str| frame(&GetTaskRequest { name: name.into(), history_length: 0 }.encode_to_vec());
    let (params, invalid_request) = ("InvalidParamsError", "InvalidRequestError");
    for (path, frames, code, name, field) in [
        ("SendMessage", frame(&[]), Code::InvalidArgument, params, "message"),
        (
            "SendMessage",
            wrong(|message| message.message_id.clear()),
            Code::InvalidArgument,
            params,
            "message.messageId",
        ),
        ("SendMessage", wrong(|message| message.role = 0), Code::InvalidArgument, params, "message.role"),
        ("SendMessage", wrong(|message| message.role = 7), Code::InvalidArgument, params, "message.role"),
        ("SendMessage", wrong(|message| message.content.clear()), Code::InvalidArgument, params, "message.parts"),
        (
            "SendStreamingMessage",
            wrong(|message| message.content.push(Part::default())),
            Code::InvalidArgument,
            params,
            "message.parts[1]",
        ),
        ("GetTask", frame(&[]), Code::InvalidArgument, params, "name"),
        ("GetTask", named("t"), Code::InvalidArgument, params, "name"),
        ("GetTask", named("tasks/"), Code::InvalidArgument, params, "name"),
        ("CancelTask", named("agents/t"), Code::InvalidArgument, params, "name"),
        ("TaskSubscription", named(""), Code::InvalidArgument, params, "name"),
        ("GetTaskPushNotificationConfig", named("pushNotificationConfigs/c"), Code::InvalidArgument, params, "name"),
        ("ListTaskPushNotificationConfig", named("x"), Code::InvalidArgument, params, "parent"),
        ("GetTask", frame(&[0xff]), Code::InvalidArgument, params, ""),
        ("GetTask", frame(&[0x0a, 0x02, 0xff, 0xfe]), Code::InvalidArgument, params, ""),
        ("GetTask", vec![], Code::InvalidArgument, invalid_request, ""),
        ("GetTask", vec![0, 0, 0], Code::InvalidArgument, invalid_request, ""),
        ("GetTask", vec![0, 0, 0, 0, 9, 1], Code::InvalidArgument, invalid_request, ""),
        ("GetTask", vec![9, 0, 0, 0, 0], Code::InvalidArgument, invalid_request, ""),
        ("GetTask", vec![0, 0x7f, 0xff, 0xff, 0xff], Code::ResourceExhausted, invalid_request, ""),
        ("ListTasks", frame(&[]), Code::Unimplemented, "MethodNotFoundError", ""),
        ("gettask", frame(&[]), Code::Unimplemented, "MethodNotFoundError", ""),
        ("", frame(&[]), Code::Unimplemented, "MethodNotFoundError", ""),
    ] {
        let request = http.post(format!("{}/a2a.v1.A2AService/{path}", server.url));
        let reply = request.header(header::CONTENT_TYPE, "application/grpc").body(frames.clone()).send().await.unwrap();
        assert_eq!(reply.status(), 200);
        let status = Status::from_header_map(reply.headers()).unwrap();
        let named_field = Error::from(status.clone())
            .violations()
            .first()
            .map(|violation| violation.field.clone())
            .unwrap_or_default();
        let found_name = status.message().split(':').next().unwrap();
        assert_eq!(
            (status.code(), found_name, named_field.as_str()),
            (code, name, field),
            "{path} {frames:?}: {status}"
        );
    }
    assert!(server.echo.calls.lock().is_empty());
}
