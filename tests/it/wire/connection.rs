//! Timeouts and limits of one connection, keep-alive, batching of events into writes, and the accept loop. The clock is
//! paused, so timeouts pass at once.

use std::{collections::VecDeque, io, sync::Arc, task::Poll, time::Duration};

use a2a_service::transport::listener::{self, serve_accepted, serve_connection};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::support::*;
use crate::conformance::{Exemption, allow_undocumented};

/// One connection to a server, without a socket.
struct Connection {
    io: DuplexStream,
    echo: Arc<Echo>,
}

impl Connection {
    fn open() -> Self {
        let echo = Arc::new(Echo::default());
        let service = http_service(&echo, settings());
        Self { io: connect(&service), echo }
    }

    async fn write(&mut self, text: &str) {
        self.io.write_all(text.as_bytes()).await.unwrap();
    }

    /// Reads until the bytes end with `end`.
    async fn read_until(&mut self, end: &str) -> String {
        let mut read = Vec::new();
        while !read.ends_with(end.as_bytes()) {
            read.push(self.io.read_u8().await.unwrap());
        }
        String::from_utf8(read).unwrap()
    }

    /// Reads a response with a `content-length`.
    async fn read_response(&mut self) -> String {
        let head = self.read_until("\r\n\r\n").await;
        let length = head.split("content-length: ").nth(1).expect(&head).split("\r\n").next().unwrap();
        let mut body = vec![0; length.parse().unwrap()];
        self.io.read_exact(&mut body).await.unwrap();
        head + &String::from_utf8(body).unwrap()
    }

    /// Waits until the server closes the connection, and returns the time that it took.
    async fn closes_after(mut self) -> Duration {
        let start = Instant::now();
        self.io.read_to_end(&mut Vec::new()).await.unwrap();
        start.elapsed()
    }
}

/// Connects to a service without a socket.
fn connect(service: &CheckedHttp) -> DuplexStream {
    let (io, far) = tokio::io::duplex(64 << 10);
    let service = service.clone();
    tokio::spawn(async move {
        serve_connection(far, None, service, &listener::ListenerSettings::default(), &CancellationToken::new()).await;
    });
    io
}

fn post(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn seconds_rounded_up(duration: Duration) -> u64 {
    duration.as_millis().div_ceil(1000).try_into().unwrap()
}

#[tokio::test(start_paused = true)]
async fn connection_without_a_complete_head_is_closed() {
    for beginning in ["", "PRI * HTTP/2.0\r\n\r\nSM", "GET /tasks", "GET /tasks HTTP/1.1\r\nhost: a\r\nx"] {
        let mut connection = Connection::open();
        connection.write(beginning).await;
        let after = seconds_rounded_up(connection.closes_after().await);
        assert!((10..=11).contains(&after), "{beginning}: {after}");
    }
}

/// A byte a second does not extend the deadline of the head.
#[tokio::test(start_paused = true)]
async fn slowly_sent_head_is_closed() {
    let mut connection = Connection::open();
    let start = Instant::now();
    for byte in b"GET /tasks HTTP/1.1\r\nhost: a".iter().cycle() {
        tokio::time::advance(Duration::from_secs(1)).await;
        if connection.io.write_u8(*byte).await.is_err() {
            break;
        }
    }
    assert!((10..=12).contains(&seconds_rounded_up(start.elapsed())), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn idle_connection_is_closed_after_the_idle_timeout() {
    let mut connection = Connection::open();
    for _ in 0..2 {
        connection.write("GET /tasks/t HTTP/1.1\r\nhost: a\r\n\r\n").await;
        assert!(connection.read_response().await.starts_with("HTTP/1.1 200 OK\r\n"));
        assert!(timeout(Duration::from_mins(1), connection.io.read_u8()).await.is_err());
    }
    // The idle timeout is 75 s, checked at intervals.
    assert!((14..=25).contains(&seconds_rounded_up(connection.closes_after().await)));
}

#[tokio::test(start_paused = true)]
async fn slowly_sent_body_is_rejected() {
    for (path, code) in [("/rpc", "-32057"), ("/message:send", "REQUEST_TIMEOUT"), ("/v1/message:send", "-32057")] {
        let mut connection = Connection::open();
        let start = Instant::now();
        connection.write(&format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{{")).await;
        let reply = connection.read_response().await;
        assert!(reply.starts_with("HTTP/1.1 408 Request Timeout\r\n") && reply.contains(code), "{reply}");
        assert!(reply.contains("connection: close\r\n") && reply.contains("within 60s"), "{reply}");
        assert_eq!(seconds_rounded_up(start.elapsed()), 60);
    }
}

/// A client that sends `Expect: 100-continue` gets the error before it sends the body.
#[tokio::test(start_paused = true)]
async fn large_body_is_rejected_before_it_is_sent() {
    let mut connection = Connection::open();
    connection
        .write("POST /message:send HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 9000000\r\n\r\n")
        .await;
    let reply = connection.read_response().await;
    assert!(reply.starts_with("HTTP/1.1 413 Payload Too Large\r\n"), "{reply}");
    assert!(reply.contains(r#""reason":"PAYLOAD_TOO_LARGE""#) && reply.contains("1048576"), "{reply}");
}

#[tokio::test(start_paused = true)]
async fn http2_connection_that_does_not_answer_pings_is_closed() {
    let mut connection = Connection::open();
    connection.write("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    connection.io.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
    assert!((40..=41).contains(&seconds_rounded_up(connection.closes_after().await)));
}

#[tokio::test(start_paused = true)]
async fn idle_stream_has_keep_alive_comments() {
    let mut connection = Connection::open();
    let feed = connection.echo.feed();
    connection.write(&post("/message:stream", &send_json("feed"))).await;
    assert!(connection.read_until("\r\n\r\n").await.contains("content-type: text/event-stream\r\n"));
    let mut last = Instant::now();
    // Longer than the idle timeout.
    for _ in 0..25 {
        assert!(connection.read_until("\n\n").await.ends_with("\r\n: keep-alive\n\n"));
        assert_eq!(seconds_rounded_up(last.elapsed()), 4);
        last = Instant::now();
    }
    // An event postpones the next comment.
    tokio::time::advance(Duration::from_secs(3)).await;
    feed.send(Ok(event(hello("m"), 1))).unwrap();
    let read = connection.read_until("\n\n").await;
    assert!(read.ends_with(&format!("id: t.1.1\ndata: {}\n\n", event_json("m"))), "{read}");
    assert_eq!(seconds_rounded_up(last.elapsed()), 3);
    assert!(connection.read_until("\n\n").await.ends_with(": keep-alive\n\n"));
    assert_eq!(seconds_rounded_up(last.elapsed()), 7);
    drop(feed);
    assert!(connection.read_until("0\r\n\r\n").await.ends_with("\r\n0\r\n\r\n"));
}

/// The end of the input could be that of a half-closed connection.
#[tokio::test(start_paused = true)]
async fn disconnect_from_an_idle_stream_is_detected_by_the_next_comment() {
    let mut connection = Connection::open();
    let feed = connection.echo.feed();
    connection.write(&post("/message:stream", &send_json("feed"))).await;
    connection.read_until("\r\n\r\n").await;
    let start = Instant::now();
    drop(connection.io);
    feed.closed().await;
    assert_eq!(seconds_rounded_up(start.elapsed()), 4);
}

/// As `nc -N` does.
#[tokio::test(start_paused = true)]
async fn half_closed_connection_gets_its_response() {
    let mut connection = Connection::open();
    connection.write(&post("/message:send", &send_json("m"))).await;
    connection.io.shutdown().await.unwrap();
    let reply = connection.read_response().await;
    assert!(reply.starts_with("HTTP/1.1 200 OK\r\n"), "{reply}");

    // Of a stream, also after that time.
    let mut connection = Connection::open();
    let feed = connection.echo.feed();
    connection.write(&post("/message:stream", &send_json("feed"))).await;
    connection.io.shutdown().await.unwrap();
    connection.read_until("\r\n\r\n").await;
    for _ in 0..2 {
        connection.read_until(": keep-alive\n\n").await;
    }
    feed.send(Ok(event(hello("m"), 1))).unwrap();
    drop(feed);
    let read = connection.read_until("0\r\n\r\n").await;
    assert!(read.contains(&event_json("m")), "{read}");
}

#[tokio::test(start_paused = true)]
async fn request_can_arrive_during_the_previous_response() {
    let mut connection = Connection::open();
    let feed = connection.echo.feed();
    connection.write(&post("/message:stream", &send_json("feed"))).await;
    connection.read_until("\r\n\r\n").await;
    for part in ["GET /tasks/t HT", "TP/1.1\r\nhost: a\r\n\r\n"] {
        connection.write(part).await;
        connection.read_until(": keep-alive\n\n").await;
    }
    drop(feed);
    connection.read_until("0\r\n\r\n").await;
    assert!(connection.read_response().await.starts_with("HTTP/1.1 200 OK\r\n"));
}

/// Events that are ready are sent in one write, which is a chunk of HTTP/1.1.
#[tokio::test(start_paused = true)]
async fn ready_events_are_sent_in_one_write() {
    // The ids of the messages are too long.
    allow_undocumented(Exemption::Responses);
    let mut connection = Connection::open();
    let feed = connection.echo.feed();
    for seq in 1..=100 {
        feed.send(Ok(event(hello(&"m".repeat(1000)), seq))).unwrap();
    }
    drop(feed);
    connection.write(&post("/message:stream", &send_json("feed"))).await;
    connection.read_until("\r\n\r\n").await;
    let (mut events, mut sizes) = (0, vec![]);
    loop {
        let size = usize::from_str_radix(connection.read_until("\r\n").await.trim(), 16).unwrap();
        if size == 0 {
            break;
        }
        let mut chunk = vec![0; size + 2];
        connection.io.read_exact(&mut chunk).await.unwrap();
        events += String::from_utf8(chunk).unwrap().matches("data: ").count();
        sizes.push(size);
    }
    assert_eq!(events, 100);
    assert!(sizes.len() > 1 && sizes[0] >= 32 << 10 && sizes.iter().all(|size| *size < 36 << 10), "{sizes:?}");
}

/// Connections that the accept function of a test returns, in order.
type Backlog = Arc<Mutex<VecDeque<io::Result<DuplexStream>>>>;

/// Serves the backlog. The result is whether all connections ended within the grace period.
fn serve(
    backlog: &Backlog,
    settings: listener::ListenerSettings,
    drain: &CancellationToken,
) -> tokio::task::JoinHandle<bool> {
    let (backlog, drain) = (Arc::clone(backlog), drain.clone());
    let service = http_service(&Arc::default(), super::support::settings());
    let accept = move |_: &mut std::task::Context<'_>| match backlog.lock().pop_front() {
        Some(accepted) => Poll::Ready(accepted.map(|io| (io, ([127, 0, 0, 1], 9).into()))),
        None => Poll::Pending,
    };
    tokio::spawn(async move { serve_accepted(accept, service, &settings, &drain).await })
}

async fn get(io: &mut DuplexStream) -> io::Result<String> {
    io.write_all(b"GET /tasks/t HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await?;
    let mut reply = String::new();
    io.read_to_string(&mut reply).await.map(|_| reply)
}

/// A server without free file descriptors waits until it has some.
#[tokio::test(start_paused = true)]
async fn accept_errors_are_retried() {
    let (mut near, far) = tokio::io::duplex(64 << 10);
    let error = |kind| Err(io::Error::from(kind));
    let exhausted = || Err(io::Error::from_raw_os_error(24));
    let aborted = error(io::ErrorKind::ConnectionAborted);
    let backlog: Backlog = Arc::new(Mutex::new([exhausted(), aborted, exhausted(), Ok(far)].into()));
    let start = Instant::now();
    let drain = CancellationToken::new();
    let served = serve(&backlog, listener::ListenerSettings::default(), &drain);
    assert!(get(&mut near).await.unwrap().starts_with("HTTP/1.1 200 OK"));
    assert!((200..300).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    drain.cancel();
    assert!(served.await.unwrap());
}

/// More connections than Tokio's default backlog wait for a server that does not accept yet.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn listen_backlog_is_the_maximum_of_the_system() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const CONNECTIONS: usize = 1200;
    let somaxconn = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
    if somaxconn.trim().parse::<usize>().unwrap() < CONNECTIONS {
        return;
    }
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let bound = crate::bindings::server().bind("127.0.0.1:0").await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..CONNECTIONS {
        let connected = tokio::net::TcpStream::connect(bound.addr());
        waiting.push(timeout(Duration::from_secs(30), connected).await.expect("queue is full").unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn number_of_connections_is_limited() {
    let (mut first, far) = tokio::io::duplex(64 << 10);
    let (mut second, other) = tokio::io::duplex(64 << 10);
    let backlog: Backlog = Arc::new(Mutex::new([Ok(far), Ok(other)].into()));
    let drain = CancellationToken::new();
    let settings = listener::ListenerSettings { connections: 1, ..Default::default() };
    let served = serve(&backlog, settings, &drain);
    second.write_all(b"GET /tasks/t HTTP/1.1\r\n").await.unwrap();
    tokio::task::yield_now().await;
    assert_eq!(backlog.lock().len(), 1, "the second waits");
    assert!(get(&mut first).await.unwrap().starts_with("HTTP/1.1 200 OK"));
    second.write_all(b"host: a\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut reply = String::new();
    second.read_to_string(&mut reply).await.unwrap();
    assert!(reply.starts_with("HTTP/1.1 200 OK"));
    drain.cancel();
    assert!(served.await.unwrap());
}
