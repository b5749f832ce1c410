//! Encoding of file bytes in the 0.3 proto messages: some clients send raw bytes, others base64. The server replies in the
//! encoding of the request.

use a2a_service::{
    pb::{
        v1,
        v03::{
            FilePart, Message, Part, SendMessageRequest, file_part::File, part::Part as Content, send_message_response,
            stream_response,
        },
    },
    transport::{FileBytes, Settings, listener},
    v03::pb::a2a_service_client::A2aServiceClient,
};
use http::header;
use tokio_stream::StreamExt as _;
use tonic::{Request, transport::Channel};

use super::support::*;
use crate::conformance::{Exemption, allow_undocumented};

/// Default `User-Agent` of an SDK, the protocol version that it sends, and whether it sends file bytes raw (not as base64).
const AGENTS: [(&str, Option<&str>, bool); 9] = [
    ("node", None, true),
    ("node", Some("0.3"), true),
    ("grpc-node-js/1.14.7", None, true),
    ("Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0", None, true),
    ("grpc-go/1.80.0", Some("0.3"), true),
    ("grpc-go/1.80.0", None, false),
    ("python-httpx/0.28.1", Some("0.3"), false),
    ("grpc-python-asyncio/1.85.1 grpc-c/53.0.0 (linux; chttp2)", None, false),
    ("Go-http-client/1.1", None, false),
];

/// Returns the file that the service received.
fn file_bytes(sent: v1::SendMessageRequest) -> Vec<u8> {
    match sent.message.unwrap().parts.remove(0).content {
        Some(v1::part::Content::Raw(bytes)) => bytes,
        other => panic!("{other:?}"),
    }
}

/// Returns a REST send whose message has this file.
fn body(file: &str) -> String {
    format!(r#"{{"message":{{"messageId":"m","role":"ROLE_USER","content":[{{"file":{{{file}}}}}]}}}}"#)
}

#[tokio::test]
async fn rest_replies_in_the_file_encoding_of_the_request() {
    allow_undocumented(Exemption::Requests);
    let server = Server::start().await;
    for (agent, version, raw) in AGENTS {
        for method in ["send", "stream"] {
            // `test` looks like base64.
            for (text, once, twice) in [("hello", "aGVsbG8=", "YUdWc2JHOD0="), ("test", "dGVzdA==", "ZEdWemRBPT0=")] {
                let encoded = if raw { once } else { twice };
                // The second member is the one of JSON-RPC, which has a single encoding.
                for file in [format!(r#""fileWithBytes":"{encoded}""#), format!(r#""bytes":"{once}""#)] {
                    let url = format!("{}/v1/message:{method}", server.url);
                    let http = crate::bindings::http().post(url).header(header::USER_AGENT, agent);
                    let http = version.into_iter().fold(http, |http, version| http.header("a2a-version", version));
                    let reply = http.json_body(body(&file)).send().await.unwrap().text().await.unwrap();
                    assert!(reply.contains(&format!(r#""fileWithBytes":"{encoded}""#)), "{agent}: {file}: {reply}");
                    if let Some(sent) = server.echo.sent.lock().pop() {
                        assert_eq!(file_bytes(sent), text.as_bytes(), "{agent}: {file}");
                    }
                }
            }
        }
    }
}

/// The setting overrides the `User-Agent`.
#[tokio::test]
async fn configured_file_encoding_overrides_the_user_agent() {
    for (encoding, encoded) in [(FileBytes::Base64, "YUdWc2JHOD0="), (FileBytes::Raw, "aGVsbG8=")] {
        let settings = Settings { v03_file_bytes: encoding, ..settings() };
        let server = Server::with(settings, listener::ListenerSettings::default()).await;
        for agent in ["node", "python-httpx/0.28.1"] {
            let http = crate::bindings::http().post(format!("{}/v1/message:send", server.url));
            let http =
                http.header(header::USER_AGENT, agent).json_body(body(&format!(r#""fileWithBytes":"{encoded}""#)));
            let reply = http.send().await.unwrap().text().await.unwrap();
            assert!(reply.contains(&format!(r#""fileWithBytes":"{encoded}""#)), "{agent}: {reply}");
            assert_eq!(file_bytes(server.echo.sent.lock().pop().unwrap()), b"hello", "{agent}");
        }
    }
}

#[tokio::test]
async fn grpc_replies_in_the_file_encoding_of_the_request() {
    let server = Server::start().await;
    for (agent, version, raw) in AGENTS {
        let channel = Channel::from_shared(server.url.clone()).unwrap().user_agent(agent).unwrap().connect_lazy();
        let mut client = A2aServiceClient::with_interceptor(channel, |mut request: Request<()>| {
            if let Some(version) = version {
                request.metadata_mut().insert("a2a-version", version.parse().unwrap());
            }
            Ok(request)
        });
        for (text, base64) in [("hello", "aGVsbG8="), ("test", "dGVzdA==")] {
            let encoded = if raw { text } else { base64 };
            let file = FilePart { file: Some(File::FileWithBytes(encoded.into())), ..FilePart::default() };
            let part = Part { part: Some(Content::File(file)), metadata: None };
            let message = Message { message_id: "m".into(), role: 1, content: vec![part], ..Message::default() };
            let request = SendMessageRequest { request: Some(message.clone()), ..SendMessageRequest::default() };
            let reply = client.send_message(request.clone()).await.unwrap().into_inner();
            assert_eq!(reply.payload, Some(send_message_response::Payload::Msg(message.clone())), "{agent}");
            assert_eq!(file_bytes(server.echo.sent.lock().pop().unwrap()), text.as_bytes(), "{agent}");
            let mut stream = client.send_streaming_message(request).await.unwrap().into_inner();
            let first = stream.next().await.unwrap().unwrap();
            let Some(stream_response::Payload::Msg(event)) = &first.message().payload else { panic!("{first:?}") };
            assert_eq!(event.content, message.content, "{agent}");
        }
    }
}
