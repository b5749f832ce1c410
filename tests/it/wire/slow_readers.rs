//! Slow readers: minimum rate, stalled streams and connections, and the budget of unsent bytes. The clock is paused, so
//! timeouts pass at once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

use a2a_service::{
    pb::v1::Part,
    transport::{
        Settings,
        listener::{self, serve_connection},
    },
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use h2::{
    Reason, RecvStream,
    client::{Builder, SendRequest},
};
use http::{HeaderMap, Request, Response, StatusCode};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::support::*;
use crate::conformance::{Exemption, allow_undocumented};

/// Larger than what HTTP/2 and the connection buffer.
const LARGE: usize = 600_000;

/// Opens a connection to a server without a socket, from an address of its own.
fn open(service: &CheckedHttp) -> DuplexStream {
    static PORT: AtomicU16 = AtomicU16::new(1);
    let peer = ([127, 0, 0, 1], PORT.fetch_add(1, Ordering::Relaxed)).into();
    let (io, far) = tokio::io::duplex(64 << 10);
    let service = service.clone();
    tokio::spawn(async move {
        serve_connection(far, Some(peer), service, &listener::ListenerSettings::default(), &CancellationToken::new())
            .await;
    });
    io
}

fn service(change: impl FnOnce(&mut Settings)) -> (CheckedHttp, Arc<Echo>) {
    let (mut settings, echo) = (settings(), Arc::new(Echo::default()));
    change(&mut settings);
    (http_service(&echo, settings), echo)
}

/// Client of HTTP/2 whose flow-control window admits a given number of bytes per response.
struct Client(SendRequest<Bytes>);

impl Client {
    async fn connect(service: &CheckedHttp, window: u32) -> Self {
        let mut builder = Builder::new();
        builder.initial_window_size(window).initial_connection_window_size(1 << 30);
        let (client, connection) = builder.handshake(open(service)).await.unwrap();
        tokio::spawn(connection);
        Self(client)
    }

    async fn call(&mut self, request: http::request::Builder, body: impl Into<Bytes>) -> Response<RecvStream> {
        let (request, body) = (request.body(()).unwrap(), body.into());
        let mut client = self.0.clone().ready().await.unwrap();
        let (response, mut stream) = client.send_request(request, body.is_empty()).unwrap();
        if !body.is_empty() {
            stream.send_data(body, true).unwrap();
        }
        response.await.unwrap()
    }

    async fn get(&mut self, path: &str) -> Response<RecvStream> {
        self.call(Request::get(format!("http://a{path}")), "").await
    }

    async fn post(&mut self, path: &str, media: &str, body: impl Into<Bytes>) -> Response<RecvStream> {
        self.call(Request::post(format!("http://a{path}")).header("content-type", media), body).await
    }
}

/// Reads a response to its end, and releases its capacity.
async fn read(body: &mut RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut read = Vec::new();
    while let Some(data) = body.data().await.transpose()? {
        body.flow_control().release_capacity(data.len()).unwrap();
        read.extend_from_slice(&data);
    }
    Ok(read)
}

/// Returns a message in a gRPC frame.
fn framed(message: &impl prost::Message) -> Bytes {
    let message = message.encode_to_vec();
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0][..], &length, &message].concat().into()
}

/// A send whose echoed response has slightly more than `bytes` bytes.
fn sized(bytes: usize) -> String {
    send_json("m").replace(r#""text":"hi""#, &format!(r#""text":"{}""#, "x".repeat(bytes)))
}

async fn sleep(time: Duration) {
    #[expect(clippy::disallowed_methods, reason = "the clock is paused")]
    tokio::time::sleep(time).await;
}

fn seconds(since: Instant) -> u64 {
    since.elapsed().as_millis().div_ceil(1000).try_into().unwrap()
}

#[tokio::test(start_paused = true)]
async fn stalled_stream_is_reset_without_its_connection() {
    const GRPC: &str = "/lf.a2a.v1.A2AService/SendMessage";
    let (service, echo) = service(|_| {});
    for size in [10, 3000, LARGE] {
        let mut idle_client = Client::connect(&service, 1000).await;
        let mut client = Client::connect(&service, 0).await;
        let feed = echo.feed();
        let mut idle = idle_client.post("/message:stream", "application/json", send_json("feed")).await.into_body();
        let mut grpc = send("m");
        grpc.message.as_mut().unwrap().parts[0] = Part::text("x".repeat(size));
        let start = Instant::now();
        let mut responses = Vec::new();
        for (path, media, body) in [
            ("/message:send", "application/json", Bytes::from(sized(size))),
            ("/message:stream", "application/json", Bytes::from(sized(size))),
            (GRPC, "application/grpc", framed(&grpc)),
        ] {
            responses.push((path, client.post(path, media, body.clone()).await));
            if size > 1000 {
                // Reads what the window admits, and never widens it.
                responses.push((path, idle_client.post(path, media, body).await));
            }
        }
        for (path, response) in responses {
            assert_eq!(response.status(), 200, "{path}");
            let mut body = response.into_body();
            let error = loop {
                match body.data().await.unwrap() {
                    Ok(data) => assert!(data.len() <= 1000),
                    Err(error) => break error,
                }
            };
            assert_eq!(error.reason(), Some(Reason::CANCEL), "{path}");
            assert!((60..=61).contains(&seconds(start)), "{path}: {}", seconds(start));
        }
        // A stream with nothing to send is not stalled.
        feed.send(Ok(event(hello("late"), 1))).unwrap();
        drop(feed);
        let read = String::from_utf8(read(&mut idle).await.unwrap()).unwrap();
        assert!(read.contains(r#""messageId":"late""#), "{read}");
    }
}

#[tokio::test(start_paused = true)]
async fn slow_reader_of_http2_gets_the_whole_response() {
    let (service, _) = service(|_| {});
    let mut client = Client::connect(&service, 32_768).await;
    let mut body = client.post("/message:send", "application/json", sized(LARGE)).await.into_body();
    let (start, mut length) = (Instant::now(), 0);
    while let Some(data) = body.data().await {
        let data = data.unwrap();
        length += data.len();
        sleep(Duration::from_secs(10)).await;
        body.flow_control().release_capacity(data.len()).unwrap();
    }
    assert!(length > LARGE && body.trailers().await.unwrap().is_none());
    assert!(seconds(start) > 300);
}

#[tokio::test(start_paused = true)]
async fn reader_of_http2_below_the_minimum_rate_is_reset() {
    let (service, _) = service(|_| {});
    let mut client = Client::connect(&service, 16_384).await;
    let mut body = client.post("/message:send", "application/json", sized(LARGE)).await.into_body();
    let mut length = 0;
    // 39 KiB per minute.
    let error = loop {
        match body.data().await.unwrap() {
            Ok(data) => {
                length += data.len();
                body.flow_control().release_capacity(data.len()).unwrap();
            }
            Err(error) => break error,
        }
        sleep(Duration::from_secs(25)).await;
    };
    assert_eq!(error.reason(), Some(Reason::CANCEL));
    assert!(length < LARGE / 2, "{length}");
}

#[tokio::test(start_paused = true)]
async fn reader_of_http1_below_the_minimum_rate_is_closed() {
    for (bytes_per_second, is_read) in [(1000, false), (2000, true)] {
        let (service, _) = service(|_| {});
        let (mut io, body) = (open(&service), sized(LARGE));
        let head = format!(
            "POST /message:send HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        io.write_all((head + &body).as_bytes()).await.unwrap();
        let (mut length, mut read) = (0, vec![0; bytes_per_second]);
        loop {
            let n = io.read(&mut read).await.unwrap();
            length += n;
            if n == 0 {
                break;
            }
            sleep(Duration::from_secs(1)).await;
        }
        assert!(length > 64 << 10, "{length}");
        assert_eq!(length > LARGE, is_read, "{bytes_per_second}: {length}");
    }
}

#[tokio::test(start_paused = true)]
async fn unread_stream_ends_at_its_maximum_age() {
    // The ids of the messages are too long.
    allow_undocumented(Exemption::Responses);
    let (service, echo) = service(|settings| settings.stream_max_age = Duration::from_secs(10));
    for window in [0, 1000] {
        let mut client = Client::connect(&service, window).await;
        let feed = echo.feed();
        for n in 1..100 {
            feed.send(Ok(event(hello(&"m".repeat(1000)), n))).unwrap();
        }
        let start = Instant::now();
        let mut body = client.post("/message:stream", "application/json", send_json("feed")).await.into_body();
        while body.data().await.unwrap().is_ok() {}
        assert!((10..=11).contains(&seconds(start)), "{}", seconds(start));
        assert!(feed.is_closed(), "the stream is dropped");
    }
}

#[tokio::test(start_paused = true)]
async fn unread_http1_connection_is_closed() {
    for (age, path, expected) in [(0, "/message:send", 60), (10, "/message:send", 60), (10, "/message:stream", 10)] {
        let (service, _) = service(|settings| settings.stream_max_age = Duration::from_secs(age));
        let (mut io, body) = (open(&service), sized(LARGE));
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let start = Instant::now();
        io.write_all((head + &body).as_bytes()).await.unwrap();
        // The last successful write is after the server closed.
        while io.write_all(b"x").await.is_ok() {
            sleep(Duration::from_millis(100)).await;
        }
        assert!((expected..=expected + 1).contains(&seconds(start)), "{path}: {}", seconds(start));
        let mut read = Vec::new();
        io.read_to_end(&mut read).await.unwrap();
        assert!(read.starts_with(b"HTTP/1.1 200") && read.len() < LARGE, "{}", read.len());
    }
}

fn is_unavailable(status: StatusCode, headers: &HeaderMap) -> bool {
    status == 503 && headers["retry-after"] == "1"
}

#[tokio::test(start_paused = true)]
async fn requests_are_rejected_while_slow_readers_hold_the_budget() {
    const LIST: &str = "/lf.a2a.v1.A2AService/ListTasks";
    const CHECK: &str = "/grpc.health.v1.Health/Check";
    let (service, echo) = service(|settings| settings.outgoing_bytes = 100_000);
    let mut slow = Client::connect(&service, 0).await;
    let mut client = Client::connect(&service, 1 << 20).await;
    let held = slow.post("/message:send", "application/json", sized(150_000)).await;
    assert_eq!(held.status(), 200);
    let calls = echo.calls.lock().len();

    let (parts, mut body) = client.get("/tasks/a").await.into_parts();
    assert!(is_unavailable(parts.status, &parts.headers), "{parts:?}");
    let text = String::from_utf8(read(&mut body).await.unwrap()).unwrap();
    assert!(text.contains("(limits.memory)") && text.contains("UNAVAILABLE"), "{text}");
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"ListTasks"}"#;
    let (parts, mut body) = client.post("/rpc", "application/json", call).await.into_parts();
    assert!(is_unavailable(parts.status, &parts.headers), "{parts:?}");
    let error: Value = serde_json::from_slice(&read(&mut body).await.unwrap()).unwrap();
    assert!(error["error"]["message"].as_str().unwrap().contains("(limits.memory)"), "{error}");
    let rejected = client.post(LIST, "application/grpc", framed(&())).await;
    assert_eq!(rejected.headers()["grpc-status"], "14");
    assert_eq!(echo.calls.lock().len(), calls);

    // Needed most when the server is overloaded.
    for path in ["/.well-known/agent-card.json", "/healthz", "/readyz"] {
        assert_eq!(client.get(path).await.status(), 200, "{path}");
    }
    let healthy = client.post(CHECK, "application/grpc", framed(&())).await;
    assert!(!healthy.headers().contains_key("grpc-status"), "{healthy:?}");

    drop(held);
    while client.get("/tasks/a").await.status() != 200 {
        tokio::task::yield_now().await;
    }
}

/// Responses in base64 are copies, which are counted too.
#[tokio::test(start_paused = true)]
async fn unsent_grpc_web_responses_hold_the_budget() {
    for content_type in ["application/grpc-web", "application/grpc-web-text"] {
        let (service, _) = service(|settings| settings.outgoing_bytes = 100_000);
        let (mut slow, mut client) = (Client::connect(&service, 0).await, Client::connect(&service, 1 << 20).await);
        let mut request = send("m");
        request.message.as_mut().unwrap().parts = vec![Part::text("x".repeat(150_000))];
        let body = framed(&request);
        let body = if content_type.ends_with("text") { BASE64_STANDARD.encode(body).into() } else { body };
        let held = slow.post("/lf.a2a.v1.A2AService/SendMessage", content_type, body).await;
        assert_eq!(held.headers()["content-type"], format!("{content_type}+proto"));
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        let (parts, _) = client.get("/tasks/a").await.into_parts();
        assert!(is_unavailable(parts.status, &parts.headers), "{content_type}: {parts:?}");

        drop(held);
        while client.get("/tasks/a").await.status() != 200 {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn slow_connection_uses_at_most_half_of_a_shared_budget() {
    let (service, _) = service(|settings| settings.outgoing_bytes = 1_000_000);
    let (mut slow, mut other) = (Client::connect(&service, 0).await, Client::connect(&service, 0).await);
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(slow.post("/message:send", "application/json", sized(150_000)).await);
    }
    // One connection may use the whole budget while no other uses any.
    assert_eq!(slow.get("/tasks/a").await.status(), 200);
    held.push(other.post("/message:send", "application/json", sized(10_000)).await);
    let (parts, _) = slow.get("/tasks/a").await.into_parts();
    assert!(is_unavailable(parts.status, &parts.headers), "{parts:?}");
    let mut reader = Client::connect(&service, 1 << 20).await;
    assert_eq!(reader.get("/tasks/a").await.status(), 200);
    assert_eq!(other.get("/tasks/a").await.status(), 200);

    drop(held);
    while slow.get("/tasks/a").await.status() != 200 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn read_over_the_budget_is_rejected_and_a_send_is_answered() {
    let (service, _) = service(|settings| settings.outgoing_bytes = 200);
    let mut client = Client::connect(&service, 1 << 20).await;
    let (parts, _) = client.get("/tasks/large").await.into_parts();
    assert!(is_unavailable(parts.status, &parts.headers), "{parts:?}");
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"large"}}"#;
    let (parts, _) = client.post("/rpc", "application/json", call).await.into_parts();
    assert!(is_unavailable(parts.status, &parts.headers), "{parts:?}");
    let get = a2a_service::pb::v1::GetTaskRequest { id: "large".to_owned(), ..Default::default() };
    let rejected = client.post("/lf.a2a.v1.A2AService/GetTask", "application/grpc", framed(&get)).await;
    assert_eq!(rejected.headers()["grpc-status"], "14");
    let (parts, mut body) = client.post("/message:send", "application/json", sized(8000)).await.into_parts();
    assert_eq!(parts.status, 200);
    assert!(read(&mut body).await.unwrap().len() > 8000);
}
