//! Limits of connections and of what is received on them: idle HTTP/2, unfinished gRPC bodies, floods of control frames,
//! bytes of request bodies, connections per client address. The clock is paused, so that timeouts pass at once.

use std::{collections::VecDeque, net::SocketAddr, sync::Arc, task::Poll, time::Duration};

use a2a_service::{
    agent::demo::Demo,
    call::Call,
    card::Network,
    client,
    error::{Error, ErrorKind},
    pb::v1::GetTaskRequest,
    transport::{
        PeerLimit, Settings,
        listener::{self, serve_accepted, serve_connection},
    },
};
use bytes::{Bytes, BytesMut};
use h2::{
    RecvStream, SendStream,
    client::{ResponseFuture, SendRequest},
};
use http::{HeaderMap, HeaderName};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
    net::TcpStream,
    task::JoinHandle,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::Code;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use super::support::*;
use crate::{bindings, scenarios};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const GOAWAY: u8 = 7;

fn service(change: impl FnOnce(&mut Settings)) -> (CheckedHttp, Arc<Echo>) {
    let (mut settings, echo) = (settings(), Arc::new(Echo::default()));
    change(&mut settings);
    (http_service(&echo, settings), echo)
}

fn connect(service: &CheckedHttp) -> DuplexStream {
    let (io, far) = tokio::io::duplex(64 << 10);
    let service = service.clone();
    tokio::spawn(async move {
        serve_connection(far, None, service, &listener::ListenerSettings::default(), &CancellationToken::new()).await;
    });
    io
}

/// Connects a client of HTTP/2 that answers pings. The task ends when the server closes the connection.
async fn http2(service: &CheckedHttp) -> (SendRequest<Bytes>, JoinHandle<Result<(), h2::Error>>) {
    let (client, connection) = h2::client::handshake(connect(service)).await.unwrap();
    (client.ready().await.unwrap(), tokio::spawn(connection))
}

fn grpc(client: &mut SendRequest<Bytes>, path: &str) -> (ResponseFuture, SendStream<Bytes>) {
    let request = http::Request::post(format!("http://a{path}")).header("content-type", "application/grpc");
    client.send_request(request.body(()).unwrap(), false).unwrap()
}

fn seconds(start: Instant) -> u64 {
    start.elapsed().as_secs()
}

/// Reads until the other end closes, which may be with an error.
async fn rest(io: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
    let mut read = Vec::new();
    _ = io.read_to_end(&mut read).await;
    read
}

#[tokio::test(start_paused = true)]
async fn idle_http2_connection_is_closed_though_it_answers_pings() {
    let (service, echo) = service(|_| {});
    let (mut client, connection) = http2(&service).await;
    let feed = echo.feed();
    let request = http::Request::post("http://a/message:stream").header("content-type", "application/json");
    let (response, mut body) = client.send_request(request.body(()).unwrap(), false).unwrap();
    body.send_data(send_json("feed").into(), true).unwrap();
    let mut events = response.await.unwrap().into_body();
    // An open stream prevents the idle timeout, even without events.
    let open = async { while events.data().await.is_some() {} };
    assert!(timeout(Duration::from_mins(5), open).await.is_err());
    assert!(!connection.is_finished());

    drop(feed);
    while events.data().await.is_some() {}
    let start = Instant::now();
    connection.await.unwrap().unwrap();
    assert!((74..=86).contains(&seconds(start)), "{}", seconds(start));
    // The client received GOAWAY, and did not just see the connection end.
    assert!(client.ready().await.is_err_and(|error| !error.is_io()));
}

#[tokio::test(start_paused = true)]
async fn unfinished_grpc_bodies_time_out() {
    let (service, _) = service(|_| {});
    for path in ["/grpc.health.v1.Health/Check", "/lf.a2a.v1.A2AService/GetTask", "/a2a.v1.A2AService/GetTask"] {
        // No bytes, part of the prefix, and a whole message without the end of the stream.
        for sent in [&b""[..], &[0, 0, 0], &[0, 0, 0, 0, 0]] {
            let (mut client, _connection) = http2(&service).await;
            let start = Instant::now();
            let (response, mut body) = grpc(&mut client, path);
            body.send_data(Bytes::copy_from_slice(sent), false).unwrap();
            let response = response.await.unwrap();
            let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
            assert_eq!(header("grpc-status"), "4", "{path} {sent:?}: {response:?}");
            assert!(header("grpc-message").contains("within%2060s"), "{path}: {response:?}");
            assert_eq!(seconds(start), 60, "{path} {sent:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn grpc_frames_that_state_too_much_are_rejected_before_the_rest_arrives() {
    let (service, _) = service(|_| {});
    for path in
        ["/lf.a2a.v1.A2AService/GetTask", "/lf.a2a.v1.A2AService/SendStreamingMessage", "/a2a.v1.A2AService/GetTask"]
    {
        let (mut client, _connection) = http2(&service).await;
        let start = Instant::now();
        let (response, mut body) = grpc(&mut client, path);
        body.send_data(Bytes::from_static(b"\0\x40\0\0\0xxx"), false).unwrap();
        let response = response.await.unwrap();
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(header("grpc-status"), "8", "{path}: {response:?}");
        assert!(header("grpc-message").contains("limits.body_bytes"), "{path}: {response:?}");
        assert_eq!(seconds(start), 0, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn unfinished_health_checks_do_not_block_other_requests() {
    const CHECK: &str = "/grpc.health.v1.Health/Check";
    let (service, _) = service(|settings| settings.incoming_bytes = 64 << 10);
    let mut half = BytesMut::from(&[0, 0, 0, 4, 0][..]);
    half.resize(1000, 0);
    let (mut client, _connection) = http2(&service).await;
    let mut pending = Vec::new();
    for _ in 0..100 {
        client = client.ready().await.unwrap();
        let (response, mut body) = grpc(&mut client, CHECK);
        body.send_data(half.clone().freeze(), false).unwrap();
        pending.push((response, body));
    }
    assert!(timeout(Duration::from_secs(1), &mut pending[99].0).await.is_err(), "all of them wait");
    assert!(exchange(&service, &padded(8 << 10)).await.starts_with("HTTP/1.1 200 OK\r\n"));
    let (response, mut body) = grpc(&mut client, CHECK);
    body.send_data(Bytes::from_static(&[0, 0, 0, 0, 0]), true).unwrap();
    assert!(!response.await.unwrap().headers().contains_key("grpc-status"));
}

#[tokio::test(start_paused = true)]
async fn health_checks_over_1_kib_are_rejected() {
    let (service, _) = service(|_| {});
    let (mut client, _connection) = http2(&service).await;
    for (length, code) in [(1024, "5"), (1025, "8")] {
        // The name of an unknown service.
        let name = prost::Message::encode_to_vec(&HealthCheckRequest { service: "s".repeat(length - 3) });
        assert_eq!(name.len(), length);
        let (response, mut body) = grpc(&mut client, "/grpc.health.v1.Health/Check");
        let prefix = u32::try_from(length).unwrap().to_be_bytes();
        body.send_data([&[0][..], &prefix, &name].concat().into(), true).unwrap();
        assert_eq!(response.await.unwrap().headers()["grpc-status"], code, "{length}");
    }
}

async fn drained(mut body: RecvStream) {
    while body.data().await.is_some_and(|data| data.is_ok()) {}
}

#[tokio::test(start_paused = true)]
async fn reflection_streams_have_an_idle_timeout_and_a_maximum_age() {
    let (service, _) = service(|_| {});
    let list_services = || Bytes::from_static(&[0, 0, 0, 0, 2, 0x3a, 0]);
    for (messages, expected) in [(1, 60), (3, 160), (usize::MAX, 600)] {
        let (mut client, _connection) = http2(&service).await;
        let start = Instant::now();
        let (response, mut body) = grpc(&mut client, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo");
        body.send_data(list_services(), false).unwrap();
        let mut ended = tokio::spawn(async move { drained(response.await.unwrap().into_body()).await });
        let mut sent = 1;
        while timeout(Duration::from_secs(50), &mut ended).await.is_err() {
            if sent < messages {
                body.send_data(list_services(), false).unwrap();
                sent += 1;
            }
        }
        assert_eq!(seconds(start), expected, "{messages}");
    }
}

#[tokio::test(start_paused = true)]
async fn control_frame_floods_end_with_goaway() {
    for (name, frame) in [
        ("SETTINGS", &[0, 0, 0, 4, 0, 0, 0, 0, 0][..]),
        ("PING", &[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]),
        ("PRIORITY", &[0, 0, 5, 2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]),
        ("WINDOW_UPDATE", &[0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
        ("unknown", &[0, 0, 1, 77, 0, 0, 0, 0, 0, 0]),
    ] {
        let (service, _) = service(|_| {});
        let (mut read, mut write) = tokio::io::split(connect(&service));
        let start = Instant::now();
        let frames = [PREFACE, &frame.repeat(50_000)].concat();
        let flood = tokio::spawn(async move { write.write_all(&frames).await });
        let read = timeout(Duration::from_secs(30), rest(&mut read)).await.expect(name);
        assert!(flood.await.unwrap().is_err(), "{name}: not all of it was read");
        assert!(seconds(start) <= 2, "{name}: {}", seconds(start));
        let mut kinds = Vec::new();
        let mut frames = &read[..];
        while let [a, b, c, kind, _, _, _, _, _, rest @ ..] = frames {
            kinds.push(*kind);
            frames = rest.get(usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c)..).unwrap_or_default();
        }
        assert!(kinds.contains(&GOAWAY), "{name}: {kinds:?}");
    }
}

#[tokio::test]
async fn number_of_health_watches_is_limited() {
    let settings = Settings { health_watches: 2, ..settings() };
    let server = Server::with(settings, listener::ListenerSettings::default()).await;
    let channel = tonic::transport::Channel::from_shared(server.url.clone()).unwrap().connect_lazy();
    let mut health = HealthClient::new(channel);
    let mut watches = Vec::new();
    for _ in 0..2 {
        watches.push(health.watch(HealthCheckRequest::default()).await.unwrap());
    }
    let error = health.watch(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted);
    assert!(error.message().contains("more than 2 open Watch streams"), "{error}");
    health.check(HealthCheckRequest::default()).await.unwrap();
    watches.pop();
    // The server releases the permit once it notices the closed stream.
    while health.watch(HealthCheckRequest::default()).await.is_err() {
        tokio::task::yield_now().await;
    }
}

fn padded(length: usize) -> String {
    let mut body = send_json("m");
    body.push_str(&" ".repeat(length - body.len()));
    format!(
        "POST /message:send HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

async fn exchange(service: &CheckedHttp, request: &str) -> String {
    let mut io = connect(service);
    io.write_all(request.as_bytes()).await.unwrap();
    String::from_utf8(rest(&mut io).await).unwrap()
}

#[tokio::test(start_paused = true)]
async fn bytes_being_received_are_limited_over_all_connections() {
    let (service, _) = service(|settings| settings.incoming_bytes = 160 << 10);
    let mut slow = connect(&service);
    let large = padded(140 << 10);
    slow.write_all(&large.as_bytes()[..130 << 10]).await.unwrap();
    assert!(timeout(Duration::from_secs(1), slow.read_u8()).await.is_err());

    let reply = exchange(&service, &padded(20 << 10)).await;
    assert!(reply.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{reply}");
    assert!(
        reply.contains("retry-after: 1\r\n") && reply.contains("more than 163840") && reply.contains("(limits.memory)"),
        "{reply}"
    );
    let (mut client, _connection) = http2(&service).await;
    let (response, mut body) = grpc(&mut client, "/lf.a2a.v1.A2AService/GetTask");
    let mut message = BytesMut::from(&[0, 0, 0, 80, 0][..]);
    message.resize(5 + (20 << 10), 0);
    body.send_data(message.freeze(), true).unwrap();
    let response = response.await.unwrap();
    assert_eq!(response.headers()["grpc-status"], "14", "{response:?}");
    // Small requests still have a share.
    assert!(exchange(&service, &padded(8 << 10)).await.starts_with("HTTP/1.1 200 OK\r\n"));

    slow.write_all(&large.as_bytes()[130 << 10..]).await.unwrap();
    assert!(rest(&mut slow).await.starts_with(b"HTTP/1.1 200 OK\r\n"));
    assert!(exchange(&service, &padded(20 << 10)).await.starts_with("HTTP/1.1 200 OK\r\n"));
}

#[tokio::test(start_paused = true)]
async fn connections_per_address_are_limited() {
    let (service, _) = service(|_| {});
    let backlog: Arc<Mutex<VecDeque<(DuplexStream, SocketAddr)>>> = Arc::default();
    let open = |ip: &str| {
        let (near, far) = tokio::io::duplex(64 << 10);
        backlog.lock().push_back((far, format!("{ip}:9").parse().unwrap()));
        near
    };
    let mut near: Vec<_> = ["192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2"].into_iter().map(open).collect();
    near.extend((0..5).map(|_| open("127.0.0.1")));
    let accept = {
        let backlog = Arc::clone(&backlog);
        move |_: &mut std::task::Context<'_>| {
            backlog.lock().pop_front().map_or(Poll::Pending, |accepted| Poll::Ready(Ok(accepted)))
        }
    };
    let settings = listener::ListenerSettings { peer_limit: PeerLimit::new(2, 0, Vec::new()), ..Default::default() };
    tokio::spawn(async move { serve_accepted(accept, service, &settings, &CancellationToken::new()).await });
    for (number, io) in near.iter_mut().enumerate() {
        _ = io.write_all(b"GET /tasks/t HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await;
        let reply = rest(io).await;
        assert_eq!(reply.is_empty(), number == 2, "{number}: {}", String::from_utf8_lossy(&reply));
    }
}

/// Behind a proxy, open requests are counted per client, by the forwarded address.
#[tokio::test]
async fn requests_per_client_behind_a_proxy_are_limited() {
    let proxy: Network = "127.0.0.1".parse().unwrap();
    let url = bindings::serve(bindings::server().connections_per_peer(1).trusted_proxies([proxy])).await;
    let agent = client::rest(&url).unwrap();
    let http = bindings::http();
    let mut watched = scenarios::stream(&*agent, scenarios::text("", "!wait")).await;
    let id = scenarios::task_of(&scenarios::next(&mut watched).await).id.clone();
    let get = |path: &str, client: &'static str| http.get(format!("{url}{path}")).header("x-forwarded-for", client);
    let events = get(&format!("/tasks/{id}:subscribe"), "192.0.2.1").send().await.unwrap();
    assert_eq!(events.status(), 200);

    let refused = get("/tasks", "192.0.2.9, 192.0.2.1").send().await.unwrap();
    assert_eq!((refused.status().as_u16(), &refused.headers()["retry-after"]), (429, &"1".parse().unwrap()));
    assert!(refused.text().await.unwrap().contains("limits.connections_per_peer"));
    for client in ["192.0.2.2", "127.0.0.1"] {
        assert_eq!(get("/tasks", client).send().await.unwrap().status(), 200, "{client}");
    }
    drop(events);
    while get("/tasks", "192.0.2.1").send().await.unwrap().status() == 429 {
        tokio::task::yield_now().await;
    }
}

/// RFC 9112, 3.2 and 6.1.
#[tokio::test]
async fn host_and_transfer_encoding_are_checked() {
    let url = bindings::serve(bindings::server()).await;
    let body = send_json("m");
    let chunked = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let send = "POST /message:send HTTP/1.1\r\ncontent-type: application/json\r\nconnection: close\r\n";
    let get = |path: &str, version: &str, lines: &str| {
        format!("GET {path} HTTP/1.{version}\r\nconnection: close\r\n{lines}\r\n")
    };
    let mut requests = vec![
        (format!("{send}host: localhost\r\ntransfer-encoding: chunked\r\n\r\n{chunked}"), 200),
        (format!("{send}host: localhost\r\ntransfer-encoding: Chunked\r\n\r\n{chunked}"), 200),
        (format!("{send}host: localhost\r\ntransfer-encoding: gzip, chunked\r\n\r\n{chunked}"), 400),
        (
            format!("{send}host: localhost\r\ntransfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n{chunked}"),
            400,
        ),
        (format!("{send}host: localhost\r\ntransfer-encoding: gzip\r\n\r\n{chunked}"), 400),
        (format!("{send}transfer-encoding: chunked\r\n\r\n{chunked}"), 400),
        ("POST /rpc HTTP/1.1\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}".to_owned(), 400),
        ("POST /x HTTP/1.1\r\nconnection: close\r\ncontent-type: application/grpc\r\n\r\n".to_owned(), 400),
    ];
    for path in ["/tasks", "/healthz", "/.well-known/agent-card.json"] {
        requests.extend([
            (get(path, "1", "host: localhost\r\n"), 200),
            (get(path, "1", ""), 400),
            (get(path, "1", "host: localhost\r\nhost: localhost\r\n"), 400),
            (get(path, "0", ""), 200),
        ]);
    }
    for (request, status) in requests {
        let mut socket = TcpStream::connect(url.strip_prefix("http://").unwrap()).await.unwrap();
        socket.write_all(request.as_bytes()).await.unwrap();
        let reply = String::from_utf8(rest(&mut socket).await).unwrap();
        assert_eq!(reply.split(' ').nth(1), Some(&*status.to_string()), "{request}\n{reply}");
        // Errors that hyper detects have no body.
        let explained = reply.contains("Host: ")
            || reply.contains("grpc-message: ")
            || reply.contains("only `chunked` is supported");
        assert!(status == 200 || explained || reply.ends_with("\r\n\r\n"), "{request}\n{reply}");
    }
}

/// A request whose head exceeds the limit is rejected in the form of its binding, and the error names the limit. The status
/// over HTTP is 431, which API documents do not list.
#[tokio::test]
async fn large_head_is_rejected_over_every_binding() {
    let server = a2a_service::server::Server::new(Demo).header_bytes(6000);
    let bound = server.bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", bound.addr());
    tokio::spawn(bound.run_until(std::future::pending()));
    for (name, agent) in [
        ("gRPC", client::grpc(&url).unwrap()),
        ("HTTP+JSON", client::rest(&url).unwrap()),
        ("JSON-RPC", client::json_rpc(&format!("{url}/rpc")).unwrap()),
        ("gRPC of 0.3", crate::v03_client::grpc(&url)),
        ("HTTP+JSON of 0.3", crate::v03_client::rest(&url)),
        ("JSON-RPC of 0.3", crate::v03_client::json_rpc(&url)),
    ] {
        let get = |length: usize| {
            let value = "x".repeat(length).parse().unwrap();
            let headers = HeaderMap::from_iter([(HeaderName::from_static("x-large"), value)]);
            let call = Call { headers: Some(Arc::new(headers)), ..Call::default() };
            let (id, agent) = ("missing".to_owned(), Arc::clone(&agent));
            let request = call.request(GetTaskRequest { id, ..GetTaskRequest::default() });
            async move { Error::from(agent.get_task(request).await.unwrap_err()) }
        };
        assert_eq!(get(1000).await.kind(), ErrorKind::TaskNotFound, "{name}");
        let error = get(8000).await;
        assert!(error.to_string().contains("the head of the request has"), "{name}: {error}");
    }
    for (length, status) in [(8000, 431), (200_000, 431), (1000, 200)] {
        let request = bindings::http().get(format!("{url}/tasks")).header("x-large", "x".repeat(length));
        let response = request.header("a2a-version", "1.0").send().await.unwrap();
        assert_eq!(response.status().as_u16(), status, "{length}");
    }
}
