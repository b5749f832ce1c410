//! What is wrong with a request of 0.3, and what each of its bindings says to it.

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

use super::{classic_scripted::HI, support::*};

/// What is refused, by the field that is to blame; nothing where it is none that can be named.
type Refused = Option<&'static str>;

/// What is taken, since there is nothing in it that could be read in two ways.
const TAKEN: Refused = None;

/// Parameters of a send that are JSON and no message, or one that lacks something: what JSON-RPC blames, and REST, which
/// is sent the same.
fn wrong_messages() -> Vec<(String, Refused, Refused)> {
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
        (user(r#""contextId":"a","contextId":"b""#), Some("message.contextId"), TAKEN),
        both(user(r#""contextId":"a","context_id":"b""#), "message.context_id"),
        // Its proto file has no such member, and nobody says what of it is to be.
        (user(r#""referenceTaskIds":[1]"#), Some("message.referenceTaskIds[0]"), TAKEN),
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
        // A member that ProtoJSON does not know.
        (parts(r#"[{"kind":"video","text":"a"}]"#), Some("message.parts[0].kind"), TAKEN),
        (parts(r#"[{"kind":"text","text":7}]"#), Some("message.parts[0].text"), Some("message.content[0].text")),
        (parts(r#"[{"kind":"file","file":{}}]"#), Some("message.parts[0].file"), Some("message.parts[0]")),
        (parts(r#"[{"kind":"file","file":7}]"#), Some("message.parts[0].file"), Some("message.content[0].file")),
        (
            parts(r#"[{"kind":"file","file":{"bytes":"no!"}}]"#),
            Some("message.parts[0].file.bytes"),
            Some("message.content[0].file.fileWithBytes"),
        ),
        both(parts(r#"[{"kind":"file","file":{"uri":"u","bytes":"YQ=="}}]"#), "message.parts[0].file"),
        (parts(r#"[{"kind":"file","file":{"uri":"","bytes":"YQ=="}}]"#), TAKEN, TAKEN),
        both(parts(r#"[{"kind":"data","data":7}]"#), "message.parts[0]"),
        both(parts(r#"[{"kind":"data","data":"text"}]"#), "message.parts[0]"),
        (parts(r#"[{"kind":"data","data":[7]}]"#), TAKEN, TAKEN),
        both(user(r#""kind":"task""#), "message.kind"),
        both(user(r#""kind":7"#), "message.kind"),
        (user(r#""kind":"message""#), TAKEN, TAKEN),
        (user(r#""kind":null"#), TAKEN, TAKEN),
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

async fn answer(reply: reqwest::Response) -> (u16, Value) {
    let status = reply.status().as_u16();
    // What is taken may be answered with a stream.
    let stream = reply.headers()[header::CONTENT_TYPE] != "application/json";
    (status, if stream { Value::Null } else { json(reply).await })
}

async fn rest(url: &str, body: impl Into<reqwest::Body>) -> (u16, Value) {
    let asked = reqwest::Client::new().post(url).header(header::CONTENT_TYPE, "application/json");
    answer(asked.body(body).send().await.unwrap()).await
}

async fn rpc(url: &str, body: impl Into<reqwest::Body>) -> (u16, Value) {
    answer(reqwest::Client::new().post(format!("{url}/rpc")).json_body(body).send().await.unwrap()).await
}

/// The field that an error of JSON-RPC blames first, which has to be all that tells it.
fn blamed(error: &Value) -> &str {
    assert_eq!(error.as_object().unwrap().keys().collect::<Vec<_>>(), ["code", "message"], "{error}");
    let text = error["message"].as_str().unwrap().split_once(": ").unwrap().1;
    text.split_once(": ").map(|it| it.0).filter(|it| !it.contains(' ')).unwrap_or_default()
}

#[tokio::test]
async fn a_message_that_is_wrong() {
    let server = Server::start().await;
    let mut differs = Vec::new();
    for (params, in_rpc, in_rest) in wrong_messages() {
        for (action, method) in [("send", "message/send"), ("stream", "message/stream")] {
            let body = format!(r#"{{"jsonrpc":"2.0","id":"é","method":"{method}","params":{params}}}"#);
            let (status, answer) = rpc(&server.url, body).await;
            let found = answer.get("error").map(blamed);
            if found != in_rpc {
                differs.push(format!("{method} {params}: {answer}, and not {in_rpc:?}"));
            }
            assert!(found.is_none() || (&answer["error"]["code"], &answer["id"]) == (&json!(-32602), &json!("é")));
            assert_eq!(status, 200);
            let (status, answer) = rest(&format!("{}/v1/message:{action}", server.url), params.clone()).await;
            let field = answer.pointer("/error/details/1/fieldViolations/0/field").map(|it| it.as_str().unwrap());
            let found = if status == 200 { TAKEN } else { Some(field.unwrap_or_default()) };
            if found != in_rest {
                differs.push(format!("REST {params}: {answer}, and not {in_rest:?}"));
            }
            assert!(status == 200 || (status == 400 && answer["type"] == "InvalidParamsError"), "{params}: {answer}");
        }
    }
    assert!(differs.is_empty(), "{}", differs.join("\n"));
}

/// A request that is no call is in 0.3, unless it can be seen that it is not: in 1.0 one has to say what one speaks
/// (3.6.2), and what 0.3 is told both can read.
#[tokio::test]
async fn bodies_that_are_no_call() {
    let settings = Settings { max_body: 4096, ..settings() };
    let server = Server::with(settings.clone(), listener::Settings::default()).await;
    let large = format!("[{}", " ".repeat(5000));
    let ask = async |url: &str, version: &str, body: &str| {
        let asked = reqwest::Client::new().post(format!("{url}/rpc")).header("a2a-version", version);
        json(asked.json_body(body.to_owned()).send().await.unwrap()).await
    };
    for (version, body, code, classic) in [
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
        // By the name of a method, whatever else is said.
        ("", r#"{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"#, -32700, false),
        ("1.0", r#"{"jsonrpc":"2.0","id":1,"method" : "tasks/get","params":{"#, -32700, true),
        ("1.0", r#"[{"jsonrpc":"2.0","id":1,"method":"tasks/get"},"#, -32700, true),
        ("", r#"{"jsonrpc":"1.0","id":1,"method":"GetTask"}"#, -32600, false),
        ("1.0", r#"{"jsonrpc":"1.0","id":1,"method":"tasks/get"}"#, -32600, true),
    ] {
        let answer = ask(&server.url, version, body).await;
        assert_eq!(answer["error"]["code"], code, "{version} {body}: {answer}");
        let data = &answer["error"]["data"];
        assert_eq!((data.is_null(), data.is_array()), (classic, !classic), "{version} {body}: {answer}");
        assert!(answer.get("id").is_some(), "{answer}");
    }
    // In a batch each for itself.
    let answers = ask(&server.url, "", r#"[7,{"jsonrpc":"2.0","id":1,"method":"Nothing"}]"#).await;
    assert!(answers[0]["error"]["data"].is_null() && answers[1]["error"]["data"].is_array(), "{answers}");
    // Where nobody speaks 0.3, nobody is answered in it.
    let current = Settings { protocols: [Version::V1_0].into_iter().collect(), ..settings };
    let current = Server::with(current, listener::Settings::default()).await;
    assert!(ask(&current.url, "", "{").await["error"]["data"].is_array());

    for body in NO_JSON.map(Bytes::from_static) {
        let (status, answer) = rest(&format!("{}/v1/message:send", server.url), body.clone()).await;
        let told = (status, &answer["type"], &answer["code"]);
        assert_eq!(told, (400, &json!("JSONParseError"), &json!(-32700)), "{body:?}: {answer}");
    }
    assert!(server.echo.calls.lock().is_empty());
}

/// A message as a frame.
fn frame(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], &length[..], message].concat()
}

#[tokio::test]
async fn grpc_says_the_same_in_its_own_terms() {
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
    let (params, request) = ("InvalidParamsError", "InvalidRequestError");
    for (path, frames, code, name, field) in [
        ("SendMessage", frame(&[]), Code::InvalidArgument, params, "message"),
        ("SendMessage", wrong(|it| it.message_id.clear()), Code::InvalidArgument, params, "message.messageId"),
        ("SendMessage", wrong(|it| it.role = 0), Code::InvalidArgument, params, "message.role"),
        ("SendMessage", wrong(|it| it.role = 7), Code::InvalidArgument, params, "message.role"),
        ("SendMessage", wrong(|it| it.content.clear()), Code::InvalidArgument, params, "message.parts"),
        (
            "SendStreamingMessage",
            wrong(|it| it.content.push(Part::default())),
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
        ("GetTask", vec![], Code::InvalidArgument, request, ""),
        ("GetTask", vec![0, 0, 0], Code::InvalidArgument, request, ""),
        ("GetTask", vec![0, 0, 0, 0, 9, 1], Code::InvalidArgument, request, ""),
        ("GetTask", vec![9, 0, 0, 0, 0], Code::Internal, "InternalError", ""),
        ("GetTask", vec![0, 0x7f, 0xff, 0xff, 0xff], Code::ResourceExhausted, request, ""),
        ("ListTasks", frame(&[]), Code::Unimplemented, "MethodNotFoundError", ""),
        ("gettask", frame(&[]), Code::Unimplemented, "MethodNotFoundError", ""),
        ("", frame(&[]), Code::Unimplemented, "MethodNotFoundError", ""),
    ] {
        let asked = http.post(format!("{}/a2a.v1.A2AService/{path}", server.url));
        let reply = asked.header(header::CONTENT_TYPE, "application/grpc").body(frames.clone()).send().await.unwrap();
        assert_eq!(reply.status(), 200);
        let status = Status::from_header_map(reply.headers()).unwrap();
        let blamed = Error::from(status.clone()).violations().first().map(|it| it.field.clone()).unwrap_or_default();
        let said = status.message().split(':').next().unwrap();
        assert_eq!((status.code(), said, blamed.as_str()), (code, name, field), "{path} {frames:?}: {status}");
    }
    assert!(server.echo.calls.lock().is_empty());
}
