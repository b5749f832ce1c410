//! Content encodings of requests, of which none is supported (RFC 9110, 8.4).

use a2a_service::{client::Client, pb::v1::TaskState};
use http::header;
use prost::Message as _;

use super::support::*;
use crate::bindings::{http, server};

/// Requests over each binding of HTTP: path, content type and body.
fn requests() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let rpc = |method: &str, message: String| {
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{"message":{message}}}}}"#).into_bytes()
    };
    let v03 = r#"{"kind":"message","messageId":"m","role":"user","parts":[{"kind":"text","text":"hi"}]}"#;
    let framed = send("m").encode_to_vec();
    let framed = [&[0], &u32::try_from(framed.len()).unwrap().to_be_bytes()[..], &framed].concat();
    vec![
        ("/message:send", "application/json", send_json("m").into_bytes()),
        ("/rpc", "application/json", rpc("SendMessage", hello_json("m"))),
        ("/", "application/json", rpc("message/send", v03.to_owned())),
        ("/v1/message:send", "application/json", format!(r#"{{"message":{v03}}}"#).into_bytes()),
        ("/lf.a2a.v1.A2AService/SendMessage", "application/grpc-web+proto", framed),
    ]
}

#[tokio::test]
async fn encoded_bodies_are_rejected() {
    let bound = server().bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", bound.addr());
    tokio::spawn(bound.run_until(std::future::pending()));
    for (path, media_type, body) in requests() {
        let post = |encoding: &str| {
            let request = http().post(format!("{url}{path}")).header(header::CONTENT_TYPE, media_type);
            request.header(header::CONTENT_ENCODING, encoding).body(body.clone())
        };
        for encoding in ["gzip", "GZIP", "deflate", "br", "zstd", "identity, gzip", "gzip, identity", "x"] {
            let reply = post(encoding).send().await.unwrap();
            assert_eq!(reply.status(), 415, "{path}: {encoding}");
            let in_header =
                reply.headers().get("grpc-message").map_or_else(String::new, |text| text.to_str().unwrap().to_owned());
            let text = in_header + &reply.text().await.unwrap();
            assert!(text.replace("%20", " ").contains("is not supported"), "{path}: {text}");
            assert!(text.contains("content-encoding"), "{path}: {text}");
        }
        for encoding in ["identity", "Identity", "", "identity, identity"] {
            assert_eq!(post(encoding).send().await.unwrap().status(), 200, "{path}: {encoding}");
        }
    }
    // A request without a body has no encoding. The agent still answers, also over gRPC.
    let request = http().get(format!("{url}/tasks")).header(header::CONTENT_ENCODING, "gzip");
    assert_eq!(request.send().await.unwrap().status(), 200);
    let client = Client::builder().binding(a2a_service::call::Binding::Grpc).connect(&url).await.unwrap();
    let outcome = client.send("hello").await.unwrap();
    assert_eq!(outcome.task().map(a2a_service::pb::v1::Task::state), Some(TaskState::Completed));
}
