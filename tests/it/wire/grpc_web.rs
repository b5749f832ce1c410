//! gRPC-Web as web pages call it: over HTTP/1.1, with trailers in the body, and as base64 in the text format.

use std::time::Duration;

use a2a_service::{
    auth::{Bearer, Token},
    call::Binding,
    pb::{
        v1::{
            GetTaskRequest, Message, Part, SendMessageRequest, SendMessageResponse, StreamResponse, Task,
            send_message_response,
        },
        v03,
    },
    protocol::Version,
    transport::{Settings, listener::ListenerSettings},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::{HeaderMap, HeaderName, Method, header};
use prost::Message as _;
use reqwest::RequestBuilder;
use tonic::{Code, Status};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus};
use tonic_types::StatusExt as _;

use super::support::*;
use crate::bindings;

const BINARY: &str = "application/grpc-web+proto";
const TEXT: &str = "application/grpc-web-text+proto";

/// Content types of requests, and those of their responses.
const TYPES: [(&str, &str); 5] = [
    ("application/grpc-web", BINARY),
    ("application/grpc-web+proto", BINARY),
    ("application/grpc-web-text", TEXT),
    ("application/grpc-web-text+proto", TEXT),
    ("Application/gRPC-Web+Proto; charset=utf-8", BINARY),
];

fn framed(message: &impl prost::Message) -> Vec<u8> {
    let length = u32::try_from(message.encoded_len()).unwrap();
    [&[0], &length.to_be_bytes()[..], &message.encode_to_vec()].concat()
}

/// Creates a call with the headers that the libraries of browsers send.
fn call(url: &str, path: &str, content_type: &str, message: &impl prost::Message) -> RequestBuilder {
    let body = framed(message);
    let body = if content_type.contains("-text") { BASE64_STANDARD.encode(body).into_bytes() } else { body };
    post(url, path, content_type).body(body)
}

fn post(url: &str, path: &str, content_type: &str) -> RequestBuilder {
    let request = bindings::http().post(format!("{url}{path}")).header(header::CONTENT_TYPE, content_type);
    request.header("x-grpc-web", "1").header("x-user-agent", "grpc-web-javascript/0.1")
}

/// Response to a call, decoded as browsers do it.
#[derive(Debug)]
struct Reply {
    headers: HeaderMap,
    messages: Vec<Vec<u8>>,
    trailers: Option<HeaderMap>,
}

impl Reply {
    async fn to(request: RequestBuilder) -> Self {
        let reply = request.send().await.unwrap();
        assert_eq!(reply.status(), 200, "{reply:?}");
        let headers = reply.headers().clone();
        let is_text = headers[header::CONTENT_TYPE] == TEXT;
        let body = reply.bytes().await.unwrap();
        let (messages, trailers) = frames(&if is_text { from_base64(&body) } else { body.to_vec() });
        Self { headers, messages, trailers }
    }

    /// Status in the trailers, or in the headers of a response without a body.
    fn status(&self) -> Status {
        let trailers = self.trailers.as_ref().unwrap_or(&self.headers);
        Status::from_header_map(trailers).unwrap_or_else(|| panic!("no status: {self:?}"))
    }

    /// Code and reason of an error that has details.
    fn error(&self) -> (Code, String) {
        let status = self.status();
        (status.code(), status.get_error_details().error_info().unwrap().reason.clone())
    }

    /// Messages of a successful call.
    fn decoded<M: prost::Message + Default>(&self) -> Vec<M> {
        assert_eq!(self.status().code(), Code::Ok, "{self:?}");
        self.messages.iter().map(|message| M::decode(&**message).unwrap()).collect()
    }
}

/// Decodes base64 whose padding may be anywhere: the server encodes each frame on its own.
fn from_base64(text: &[u8]) -> Vec<u8> {
    text.chunks(4).flat_map(|group| BASE64_STANDARD.decode(group).unwrap()).collect()
}

/// Splits a body into messages and trailers.
fn frames(body: &[u8]) -> (Vec<Vec<u8>>, Option<HeaderMap>) {
    let (mut rest, mut messages, mut trailers) = (body, Vec::new(), None);
    while let Some((&[flags, a, b, c, d], frame)) = rest.split_first_chunk() {
        assert!(trailers.is_none(), "a frame after the trailers");
        let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap();
        let (frame, after) = frame.split_at(length);
        rest = after;
        if flags == 0 {
            messages.push(frame.to_vec());
            continue;
        }
        assert_eq!(flags, 0x80);
        let lines = str::from_utf8(frame).unwrap().split_terminator("\r\n").map(|line| line.split_once(':').unwrap());
        let lines = lines.map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.trim().parse().unwrap()));
        trailers = Some(lines.collect());
    }
    assert!(rest.is_empty(), "an incomplete frame");
    (messages, trailers)
}

fn v03_message(id: &str) -> v03::Message {
    let text = v03::Part { part: Some(v03::part::Part::Text("hi".into())), metadata: None };
    v03::Message { message_id: id.into(), role: v03::Role::User.into(), content: vec![text], ..Default::default() }
}

fn v03_send(id: &str) -> v03::SendMessageRequest {
    v03::SendMessageRequest { request: Some(v03_message(id)), ..Default::default() }
}

fn get(id: &str) -> GetTaskRequest {
    GetTaskRequest { id: id.into(), ..Default::default() }
}

const SEND: &str = "/lf.a2a.v1.A2AService/SendMessage";
const STREAM: &str = "/lf.a2a.v1.A2AService/SendStreamingMessage";
const GET: &str = "/lf.a2a.v1.A2AService/GetTask";
const V03_SEND: &str = "/a2a.v1.A2AService/SendMessage";
const V03_STREAM: &str = "/a2a.v1.A2AService/SendStreamingMessage";
const V03_GET: &str = "/a2a.v1.A2AService/GetTask";

#[tokio::test]
async fn unary_calls_of_each_content_type_and_version() {
    let server = Server::start().await;
    for (content_type, expected) in TYPES {
        let request = call(&server.url, SEND, content_type, &send("m")).header("a2a-extensions", "urn:a");
        let reply = Reply::to(request).await;
        assert_eq!(reply.headers[header::CONTENT_TYPE], expected, "{content_type}");
        assert_eq!(reply.headers["a2a-extensions"], "https://example.com/ext");
        let payload = Some(send_message_response::Payload::Message(hello("m")));
        assert_eq!(reply.decoded::<SendMessageResponse>(), [SendMessageResponse { payload }], "{content_type}");
        let call_of_v1 = server.echo.calls.lock().pop().unwrap();
        assert_eq!((call_of_v1.version, call_of_v1.binding), (Version::V1_0, Binding::Grpc));
        assert_eq!(call_of_v1.extensions, ["urn:a"]);

        let reply = Reply::to(call(&server.url, V03_SEND, content_type, &v03_send("m"))).await;
        assert_eq!(reply.headers[header::CONTENT_TYPE], expected, "{content_type}");
        let payload = Some(v03::send_message_response::Payload::Msg(v03_message("m")));
        assert_eq!(
            reply.decoded::<v03::SendMessageResponse>(),
            [v03::SendMessageResponse { payload }],
            "{content_type}"
        );
        assert_eq!(server.echo.calls.lock().pop().unwrap().version, Version::V0_3);
    }
    // The response may have another encoding than the request.
    for (content_type, accept) in [(BINARY, TEXT), (TEXT, BINARY)] {
        let reply = Reply::to(call(&server.url, GET, content_type, &get("t")).header(header::ACCEPT, accept)).await;
        assert_eq!(reply.headers[header::CONTENT_TYPE], accept);
        assert_eq!(reply.decoded::<Task>()[0].id, "t");
    }
}

#[tokio::test]
async fn streams_of_each_content_type_and_version() {
    let server = Server::start().await;
    for (content_type, expected) in TYPES {
        let reply = Reply::to(call(&server.url, STREAM, content_type, &send("m"))).await;
        assert_eq!(reply.headers[header::CONTENT_TYPE], expected);
        let events = [1, 2].map(|seq| event(hello("m"), seq).into_response());
        assert_eq!(reply.decoded::<StreamResponse>(), events, "{content_type}");

        let reply = Reply::to(call(&server.url, V03_STREAM, content_type, &v03_send("m"))).await;
        let events = reply.decoded::<v03::StreamResponse>();
        let message = v03::Message { task_id: "t".into(), ..v03_message("m") };
        let payload = Some(v03::stream_response::Payload::Msg(message));
        assert_eq!(events, vec![v03::StreamResponse { payload }; 2], "{content_type}");
    }
}

/// Each event is sent when it occurs.
#[tokio::test]
async fn events_are_sent_without_delay() {
    let server = Server::start().await;
    for content_type in [BINARY, TEXT] {
        let feed = server.echo.feed();
        let mut reply = call(&server.url, STREAM, content_type, &send("feed")).send().await.unwrap();
        let mut next = async || {
            let data = reply.chunk().await.unwrap().unwrap();
            frames(&if content_type == TEXT { from_base64(&data) } else { data.to_vec() })
        };
        for seq in [1, 2] {
            feed.send(Ok(event(hello("m"), seq))).unwrap();
            let (messages, trailers) = next().await;
            assert_eq!((messages.len(), trailers), (1, None), "{content_type}");
        }
        drop(feed);
        let (messages, trailers) = next().await;
        assert_eq!((messages.len(), &trailers.unwrap()["grpc-status"]), (0, &"0".parse().unwrap()));
        assert!(reply.chunk().await.unwrap().is_none());
    }
}

#[tokio::test]
async fn errors_have_details_in_headers_or_in_the_frame_of_trailers() {
    let server = Server::start().await;
    let not_found = (Code::NotFound, "TASK_NOT_FOUND".to_owned());
    let invalid = (Code::InvalidArgument, "INVALID_PARAMS".to_owned());
    for (content_type, expected) in TYPES {
        let call = |path: &str| call(&server.url, path, content_type, &get("missing"));
        let v03_get = v03::GetTaskRequest { name: "tasks/missing".into(), ..Default::default() };
        for request in [call(GET), self::call(&server.url, V03_GET, content_type, &v03_get)] {
            let reply = Reply::to(request).await;
            assert_eq!((reply.error(), &reply.trailers), (not_found.clone(), &None));
            assert_eq!(reply.headers[header::CONTENT_TYPE], expected);
        }
        let fail = [
            self::call(&server.url, STREAM, content_type, &send("fail")),
            self::call(&server.url, V03_STREAM, content_type, &v03_send("fail")),
        ];
        for request in fail {
            let reply = Reply::to(request).await;
            assert!(reply.trailers.is_some() && !reply.headers.contains_key("grpc-status"), "{reply:?}");
            assert_eq!((reply.messages.len(), reply.error()), (1, not_found.clone()));
        }
        let reply = Reply::to(self::call(&server.url, SEND, content_type, &SendMessageRequest::default())).await;
        assert_eq!(reply.error(), invalid);
        let details = reply.status().get_error_details();
        assert_eq!(details.bad_request().unwrap().field_violations[0].field, "message");
        // Errors before and outside of the service.
        for (request, error) in [
            (call("/x.Y/Z"), (Code::Unimplemented, "METHOD_NOT_FOUND")),
            (call("/lf.a2a.v1.A2AService/Nothing"), (Code::Unimplemented, "METHOD_NOT_FOUND")),
            (call(GET).header("grpc-timeout", "0n"), (Code::DeadlineExceeded, "DEADLINE_EXCEEDED")),
            (call(GET).header("a2a-version", "9.9"), (Code::FailedPrecondition, "VERSION_NOT_SUPPORTED")),
        ] {
            let reply = Reply::to(request).await;
            assert_eq!(reply.headers[header::CONTENT_TYPE], expected);
            assert_eq!(reply.error(), (error.0, error.1.to_owned()));
        }
    }
}

/// The client caused the error, so it is not INTERNAL.
#[tokio::test]
async fn invalid_bodies_are_invalid_arguments() {
    let server = Server::start().await;
    let message = framed(&get("t"));
    let text = BASE64_STANDARD.encode(&message);
    let invalid = [
        (TEXT, "!!!!".into()),
        (TEXT, text.as_bytes()[..5].to_vec()),
        (TEXT, text.as_bytes()[..8].to_vec()),
        (TEXT, message.clone()),
        (TEXT, Vec::new()),
        (BINARY, message[..6].to_vec()),
        (BINARY, Vec::new()),
        (BINARY, vec![0, 0, 0, 0, 1, 0xff]),
        // Invalid flags, a compressed message, and a frame of trailers.
        (BINARY, [&[8], &message[1..]].concat()),
        (BINARY, [&[1], &message[1..]].concat()),
        (BINARY, [&[0x80], &message[1..]].concat()),
        // Further frames.
        (BINARY, message.repeat(2)),
        (BINARY, [&message[..], &[0x80, 0, 0, 0, 0]].concat()),
        (TEXT, BASE64_STANDARD.encode(message.repeat(2)).into_bytes()),
    ];
    for (content_type, body) in invalid {
        let reply = Reply::to(post(&server.url, GET, content_type).body(body.clone())).await;
        assert_eq!(reply.error().0, Code::InvalidArgument, "{content_type} {body:?}: {reply:?}");
        assert_eq!(reply.headers[header::CONTENT_TYPE], content_type);
    }
    let other = call(&server.url, GET, "application/grpc-web+json", &get("t")).send().await.unwrap();
    assert!(other.status().is_client_error() && other.headers()[header::CONTENT_TYPE] != BINARY, "{other:?}");
    assert!(server.echo.calls.lock().is_empty());
}

/// The limits apply to the decoded bytes.
#[tokio::test]
async fn limits_of_grpc_apply() {
    let (body_bytes, body_timeout) = (4096, Duration::from_millis(200));
    let server = Server::with(Settings { body_bytes, body_timeout, ..settings() }, ListenerSettings::default()).await;
    for content_type in [BINARY, TEXT] {
        let sized = |size: usize| {
            let request = |length: usize| {
                let message = Message { parts: vec![Part::text("x".repeat(length))], ..hello("m") };
                SendMessageRequest { message: Some(message), ..Default::default() }
            };
            let request = request(3000 + size - request(3000).encoded_len());
            assert_eq!(request.encoded_len(), size);
            call(&server.url, SEND, content_type, &request)
        };
        assert_eq!(Reply::to(sized(body_bytes)).await.decoded::<SendMessageResponse>().len(), 1);
        let reply = Reply::to(sized(body_bytes + 1)).await;
        assert_eq!(reply.error(), (Code::ResourceExhausted, "PAYLOAD_TOO_LARGE".to_owned()), "{content_type}");
        assert_eq!(reply.headers[header::CONTENT_TYPE], content_type);

        let never = tokio_stream::pending::<Result<Vec<u8>, std::io::Error>>();
        let slow = post(&server.url, SEND, content_type).body(reqwest::Body::wrap_stream(never));
        let reply = Reply::to(slow).await;
        assert_eq!(reply.error(), (Code::DeadlineExceeded, "REQUEST_TIMEOUT".to_owned()));
        assert_eq!(reply.headers[header::CONTENT_TYPE], content_type);
    }

    let server = Server::with(Settings { outgoing_bytes: 200, ..settings() }, ListenerSettings::default()).await;
    for content_type in [BINARY, TEXT] {
        let reply = Reply::to(call(&server.url, GET, content_type, &get("large"))).await;
        assert_eq!(
            (reply.status().code(), &reply.headers[header::CONTENT_TYPE]),
            (Code::Unavailable, &content_type.parse().unwrap())
        );
    }
}

#[tokio::test]
async fn authentication_and_origins_are_checked() {
    const APP: &str = "https://app.example";
    const PAGE_HEADERS: &str = "authorization,content-type,grpc-timeout,x-grpc-web,x-user-agent";
    let server = bindings::server().authenticator(Bearer::new(Token::new("sesame").unwrap()));
    let url = bindings::serve(server.cors_origins([APP.parse().unwrap()])).await;
    let preflight = |origin: &'static str| {
        let request = bindings::http().request(Method::OPTIONS, format!("{url}{GET}")).header("origin", origin);
        let request = request.header("access-control-request-method", "POST");
        request.header("access-control-request-headers", PAGE_HEADERS).send()
    };
    let allowed = preflight(APP).await.unwrap();
    assert_eq!(
        (allowed.status().as_u16(), &allowed.headers()["access-control-allow-origin"]),
        (204, &APP.parse().unwrap())
    );
    assert_eq!(allowed.headers()["access-control-allow-headers"], PAGE_HEADERS);
    let foreign = preflight("https://evil.example").await.unwrap();
    assert!(foreign.status() == 403 && !foreign.headers().contains_key("access-control-allow-origin"), "{foreign:?}");

    for (content_type, expected) in TYPES {
        let call = |path: &str| call(&url, path, content_type, &get("missing"));
        for (request, error) in [
            (call(GET), (Code::Unauthenticated, "UNAUTHENTICATED")),
            (call(GET).bearer_auth("wrong"), (Code::Unauthenticated, "UNAUTHENTICATED")),
            (call(V03_GET), (Code::Unauthenticated, "UNAUTHENTICATED")),
            (
                call(GET).header("origin", "https://evil.example").bearer_auth("sesame"),
                (Code::PermissionDenied, "ORIGIN_NOT_ALLOWED"),
            ),
            (
                call(GET).header("sec-fetch-site", "cross-site").bearer_auth("sesame"),
                (Code::PermissionDenied, "ORIGIN_NOT_ALLOWED"),
            ),
            (
                call(GET).header("host", "evil.example").bearer_auth("sesame"),
                (Code::FailedPrecondition, "MISDIRECTED_REQUEST"),
            ),
        ] {
            let reply = Reply::to(request).await;
            assert_eq!(
                (reply.error().0, &reply.headers[header::CONTENT_TYPE]),
                (error.0, &expected.parse().unwrap()),
                "{reply:?}"
            );
            assert_eq!(reply.error().1, error.1);
            assert!(!reply.headers.contains_key("access-control-allow-origin"), "{reply:?}");
        }
        let own = call(GET).header("origin", &url).header("sec-fetch-site", "same-origin").bearer_auth("sesame");
        let app = call(GET).header("origin", APP).header("sec-fetch-site", "cross-site").bearer_auth("sesame");
        for (request, origin) in [(own, None), (app, Some(APP))] {
            let reply = Reply::to(request).await;
            assert_eq!(reply.error(), (Code::NotFound, "TASK_NOT_FOUND".to_owned()));
            let header = |name: &str| reply.headers.get(name).map(|value| value.to_str().unwrap());
            assert_eq!(header("access-control-allow-origin"), origin);
            let exposed = header("access-control-expose-headers").unwrap_or_default();
            for name in ["grpc-status", "grpc-message", "grpc-status-details-bin"] {
                assert_eq!(exposed.split(", ").any(|exposed| exposed == name), origin.is_some(), "{exposed}");
            }
        }
        // A rejected page of an allowed origin can read why.
        let reply = Reply::to(call(GET).header("origin", APP)).await;
        assert_eq!(
            (reply.error().0, &reply.headers["access-control-allow-origin"]),
            (Code::Unauthenticated, &APP.parse().unwrap())
        );
        // Health checks are public.
        let health = HealthCheckRequest::default();
        let reply = Reply::to(self::call(&url, "/grpc.health.v1.Health/Check", content_type, &health)).await;
        assert_eq!(reply.decoded::<HealthCheckResponse>()[0].status(), ServingStatus::Serving);
    }
}
