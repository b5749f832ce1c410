//! Lenient decoding of what other clients send, and the deadline of a blocking send.

use std::time::Duration;

use a2a_service::{
    agent::{self, End},
    pb::v1::{Message, Part, SendMessageRequest, SendMessageResponse, TaskState, part, send_message_response::Payload},
    server,
};
use http::header;
use prost::Message as _;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::support::*;
use crate::conformance::{CheckLayer, Exemption, allow_undocumented};

/// Members of a message as clients send them, and as the server returns them.
const SPELLINGS: [(&str, &str); 14] = [
    (r#""role":"ROLE_USER""#, ""),
    (r#""role":1"#, ""),
    (r#""role":"ROLE_USER","taskId":null,"contextId":null,"metadata":null,"extensions":null"#, ""),
    (r#""role":"ROLE_USER","kind":"message","unknown":{"a":[1]},"taskid":"x""#, ""),
    (r#""role":"ROLE_USER","context_id":"c""#, r#","contextId":"c""#),
    (r#""role":"ROLE_USER","contextId":"\u00fc\ud83d\ude00""#, r#","contextId":"ü😀""#),
    (r#""role":"ROLE_USER","contextId":"a\/b\"\\\u0001""#, r#","contextId":"a/b\"\\\u0001""#),
    (r#""role":"ROLE_USER","metadata":{"n":1.0,"z":null,"a":[]}"#, r#","metadata":{"n":1,"z":null,"a":[]}"#),
    (r#""role":"ROLE_USER","metadata":{}"#, r#","metadata":{}"#),
    (r#""role":"ROLE_USER","extensions":["urn:a"]"#, r#","extensions":["urn:a"]"#),
    (r#""role":"ROLE_USER","extensions":[]"#, ""),
    (r#""role":"ROLE_USER","reference_task_ids":["t"]"#, r#","referenceTaskIds":["t"]"#),
    (r#""role":"ROLE_USER","task_id":"","contextId":"""#, ""),
    (r#""role":"ROLE_AGENT""#, ""),
];

/// Parts as clients send them, and as the server returns them.
const PARTS: [(&str, &str); 13] = [
    (r#"{"text":"hi"}"#, r#"{"text":"hi"}"#),
    (r#"{"text":""}"#, r#"{"text":""}"#),
    (r#"{"kind":"text","text":"hi","metadata":null}"#, r#"{"text":"hi"}"#),
    (r#"{"data":null}"#, r#"{"data":null}"#),
    (r#"{"data":[1,"a",{"b":null}]}"#, r#"{"data":[1,"a",{"b":null}]}"#),
    (r#"{"text":null,"data":{}}"#, r#"{"data":{}}"#),
    (r#"{"text":"a","url":null,"raw":null}"#, r#"{"text":"a"}"#),
    (r#"{"raw":"/+8="}"#, r#"{"raw":"/+8="}"#),
    (r#"{"raw":"_-8"}"#, r#"{"raw":"/+8="}"#),
    (r#"{"raw":""}"#, r#"{"raw":""}"#),
    (
        r#"{"url":"https://a.example/ü","media_type":"text/html"}"#,
        r#"{"url":"https://a.example/ü","mediaType":"text/html"}"#,
    ),
    (r#"{"url":"x","filename":"f","mediaType":""}"#, r#"{"url":"x","filename":"f"}"#),
    (r#"{"media_type":"a/b","text":"é"}"#, r#"{"text":"é","mediaType":"a/b"}"#),
];

/// Parses JSON, so that comparison ignores the order of members.
fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[tokio::test]
async fn lenient_spellings_are_accepted() {
    allow_undocumented(Exemption::Requests);
    let Server { url, .. } = &Server::start().await;
    let http = crate::bindings::http();
    let members = SPELLINGS.map(|(written, read)| {
        let role = if written.contains("AGENT") { "ROLE_AGENT" } else { "ROLE_USER" };
        let parts = r#""parts":[{"text":"hi"}]"#;
        (
            format!(r#"{{"message_id":"m",{written},{parts}}}"#),
            format!(r#"{{"messageId":"m","role":"{role}"{read},{parts}}}"#),
        )
    });
    let parts = PARTS.map(|(written, read)| {
        let message = |part| format!(r#"{{"messageId":"m","role":"ROLE_USER","parts":[{part}]}}"#);
        (message(written), message(read))
    });
    for (written, read) in members.into_iter().chain(parts) {
        let configuration = r#""configuration":{"historyLength":"2","return_immediately":true,"blocking":true}"#;
        let params = format!(r#"{{"message":{written},{configuration},"unknown":1}}"#);
        let reply = http.post(format!("{url}/message:send")).json_body(params.clone()).send().await.unwrap();
        let text = reply.text().await.unwrap();
        assert_eq!(value(&text)["message"], value(&read), "{written}");
        assert!(!text.contains("_id") && !text.contains("\\u00f"), "camel case and unescaped text: {text}");
        let call = format!(r#"{{"params":{params},"method":"SendMessage","id":1,"jsonrpc":"2.0","extra":[]}}"#);
        let reply = http.post(format!("{url}/rpc")).json_body(call).send().await.unwrap();
        assert_eq!(json(reply).await["result"]["message"], value(&read), "{written}");
    }
}

/// A blocking send returns before its deadline, over every binding and whatever the agent does.
#[tokio::test]
async fn blocking_send_returns_before_its_deadline() {
    let agent = agent::from_fn(|_, out| async move {
        out.working().await?;
        std::future::pending::<()>().await;
        Ok(End::Completed(None))
    });
    let bound = server::Server::new(agent).layer(CheckLayer).bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", bound.addr());
    let served = tokio::spawn(bound.run_until(std::future::pending()));
    let start = Instant::now();

    let text = Part { content: Some(part::Content::Text("hi".into())), ..Part::default() };
    let message = Message { parts: vec![text], ..hello("m") };
    let request = SendMessageRequest { message: Some(message), ..SendMessageRequest::default() }.encode_to_vec();
    let frame = [&[0][..], &u32::try_from(request.len()).unwrap().to_be_bytes(), &request].concat();
    let http2 = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
    let grpc = http2.post(format!("{url}/lf.a2a.v1.A2AService/SendMessage"));
    let grpc = grpc.header(header::CONTENT_TYPE, "application/grpc").header("grpc-timeout", "300m").body(frame);
    let reply = grpc.send().await.unwrap().bytes().await.unwrap();
    let Some(Payload::Task(task)) = SendMessageResponse::decode(&reply[5..]).unwrap().payload else {
        panic!("no task")
    };
    assert_eq!(task.state(), TaskState::Working);

    let http = crate::bindings::http();
    let rest = http.post(format!("{url}/message:send")).header("grpc-timeout", "300000u").json_body(send_json("m"));
    assert_eq!(json(rest.send().await.unwrap()).await["task"]["status"]["state"], "TASK_STATE_WORKING");
    let call = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{}}}"#, send_json("m"));
    let rpc = http.post(format!("{url}/rpc")).header("grpc-timeout", "300m").json_body(format!("[{call},{call}]"));
    for answer in json(rpc.send().await.unwrap()).await.as_array().unwrap() {
        assert_eq!(answer["result"]["task"]["status"]["state"], json!("TASK_STATE_WORKING"));
    }
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    served.abort();
}
