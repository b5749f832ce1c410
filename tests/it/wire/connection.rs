//! What a connection may do, and how long it may take over it. The clock is paused: a wait is over when nothing else
//! is left to do.

use std::{collections::VecDeque, io, sync::Arc, task::Poll, time::Duration};

use a2a_service::transport::{
    HttpService,
    listener::{self, serve_accepted, serve_connection},
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::support::*;

/// One connection to a server, without a socket.
struct Wire {
    io: DuplexStream,
    echo: Arc<Echo>,
}

impl Wire {
    fn open() -> Self {
        let echo = Arc::new(Echo::default());
        let door = HttpService::new(checked(&echo), settings());
        Self { io: connect(&door), echo }
    }

    async fn write(&mut self, text: &str) {
        self.io.write_all(text.as_bytes()).await.unwrap();
    }

    /// Reads up to the end of a text.
    async fn until(&mut self, end: &str) -> String {
        let mut read = Vec::new();
        while !read.ends_with(end.as_bytes()) {
            read.push(self.io.read_u8().await.unwrap());
        }
        String::from_utf8(read).unwrap()
    }

    /// Reads an answer that has a length.
    async fn reply(&mut self) -> String {
        let head = self.until("\r\n\r\n").await;
        let length = head.split("content-length: ").nth(1).expect(&head).split("\r\n").next().unwrap();
        let mut body = vec![0; length.parse().unwrap()];
        self.io.read_exact(&mut body).await.unwrap();
        head + &String::from_utf8(body).unwrap()
    }

    /// How long it takes until the other end closes.
    async fn closes_after(mut self) -> Duration {
        let start = Instant::now();
        self.io.read_to_end(&mut Vec::new()).await.unwrap();
        start.elapsed()
    }
}

/// A connection to a service, without a socket.
fn connect(door: &HttpService) -> DuplexStream {
    let (io, far) = tokio::io::duplex(64 << 10);
    let door = door.clone();
    tokio::spawn(async move {
        serve_connection(far, None, door, &listener::Settings::default(), &CancellationToken::new()).await;
    });
    io
}

fn post(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn about(duration: Duration) -> u64 {
    duration.as_millis().div_ceil(1000).try_into().unwrap()
}

#[tokio::test(start_paused = true)]
async fn who_says_nothing_is_let_go() {
    for beginning in ["", "PRI * HTTP/2.0\r\n\r\nSM", "GET /tasks", "GET /tasks HTTP/1.1\r\nhost: a\r\nx"] {
        let mut wire = Wire::open();
        wire.write(beginning).await;
        let after = about(wire.closes_after().await);
        assert!((10..=11).contains(&after), "{beginning}: {after}");
    }
}

/// Byte by byte is not fast enough either.
#[tokio::test(start_paused = true)]
async fn slow_heads_are_let_go() {
    let mut wire = Wire::open();
    let start = Instant::now();
    for byte in b"GET /tasks HTTP/1.1\r\nhost: a".iter().cycle() {
        tokio::time::advance(Duration::from_secs(1)).await;
        if wire.io.write_u8(*byte).await.is_err() {
            break;
        }
    }
    assert!((10..=12).contains(&about(start.elapsed())), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_kept_for_long() {
    let mut wire = Wire::open();
    for _ in 0..2 {
        wire.write("GET /tasks/t HTTP/1.1\r\nhost: a\r\n\r\n").await;
        assert!(wire.reply().await.starts_with("HTTP/1.1 200 OK\r\n"));
        assert!(timeout(Duration::from_mins(1), wire.io.read_u8()).await.is_err());
    }
    // Seventy-five seconds in all, and what lies between two looks.
    assert!((14..=25).contains(&about(wire.closes_after().await)));
}

#[tokio::test(start_paused = true)]
async fn a_slow_body_is_refused() {
    for (path, code) in [("/rpc", "-32057"), ("/message:send", "REQUEST_TIMEOUT"), ("/v1/message:send", "-32057")] {
        let mut wire = Wire::open();
        let start = Instant::now();
        wire.write(&format!("POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{{")).await;
        let reply = wire.reply().await;
        assert!(reply.starts_with("HTTP/1.1 408 Request Timeout\r\n") && reply.contains(code), "{reply}");
        assert!(reply.contains("connection: close\r\n") && reply.contains("within 60s (body_timeout)"), "{reply}");
        assert_eq!(about(start.elapsed()), 60);
    }
}

/// Who asks before sending is told at once.
#[tokio::test(start_paused = true)]
async fn a_large_body_is_refused_before_it_is_sent() {
    let mut wire = Wire::open();
    wire.write("POST /message:send HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 9000000\r\n\r\n")
        .await;
    let reply = wire.reply().await;
    assert!(reply.starts_with("HTTP/1.1 413 Payload Too Large\r\n"), "{reply}");
    assert!(reply.contains(r#""reason":"PAYLOAD_TOO_LARGE""#) && reply.contains("1048576"), "{reply}");
}

#[tokio::test(start_paused = true)]
async fn http2_that_does_not_answer_is_let_go() {
    let mut wire = Wire::open();
    wire.write("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    wire.io.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
    assert!((40..=41).contains(&about(wire.closes_after().await)));
}

#[tokio::test(start_paused = true)]
async fn silence_is_filled_with_comments() {
    let mut wire = Wire::open();
    let feed = wire.echo.feed();
    wire.write(&post("/message:stream", &send_json("feed"))).await;
    assert!(wire.until("\r\n\r\n").await.contains("content-type: text/event-stream\r\n"));
    let mut last = Instant::now();
    // For longer than a connection may be idle.
    for _ in 0..10 {
        assert!(wire.until("\n\n").await.ends_with("\r\n: keep-alive\n\n"));
        assert_eq!(about(last.elapsed()), 15);
        last = Instant::now();
    }
    // An event puts the next comment off.
    tokio::time::advance(Duration::from_secs(10)).await;
    feed.send(Ok(event(hello("m"), 1))).unwrap();
    let read = wire.until("\n\n").await;
    assert!(read.ends_with(&format!("id: t.1.1\ndata: {}\n\n", event_json("m"))), "{read}");
    assert_eq!(about(last.elapsed()), 10);
    assert!(wire.until("\n\n").await.ends_with(": keep-alive\n\n"));
    assert_eq!(about(last.elapsed()), 25);
    drop(feed);
    assert!(wire.until("0\r\n\r\n").await.ends_with("\r\n0\r\n\r\n"));
}

/// Also where nothing is written that could fail.
#[tokio::test(start_paused = true)]
async fn who_leaves_a_silent_stream_is_missed_at_once() {
    let mut wire = Wire::open();
    let feed = wire.echo.feed();
    wire.write(&post("/message:stream", &send_json("feed"))).await;
    wire.until("\r\n\r\n").await;
    let start = Instant::now();
    drop(wire.io);
    feed.closed().await;
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_request_may_come_before_the_answer_to_the_last_one_ends() {
    let mut wire = Wire::open();
    let feed = wire.echo.feed();
    wire.write(&post("/message:stream", &send_json("feed"))).await;
    wire.until("\r\n\r\n").await;
    for part in ["GET /tasks/t HT", "TP/1.1\r\nhost: a\r\n\r\n"] {
        wire.write(part).await;
        wire.until(": keep-alive\n\n").await;
    }
    drop(feed);
    wire.until("0\r\n\r\n").await;
    assert!(wire.reply().await.starts_with("HTTP/1.1 200 OK\r\n"));
}

/// All that is ready is one write: a chunk of HTTP/1.1.
#[tokio::test(start_paused = true)]
async fn what_is_ready_goes_out_together() {
    let mut wire = Wire::open();
    let feed = wire.echo.feed();
    for seq in 1..=100 {
        feed.send(Ok(event(hello(&"m".repeat(1000)), seq))).unwrap();
    }
    drop(feed);
    wire.write(&post("/message:stream", &send_json("feed"))).await;
    wire.until("\r\n\r\n").await;
    let (mut events, mut sizes) = (0, vec![]);
    loop {
        let size = usize::from_str_radix(wire.until("\r\n").await.trim(), 16).unwrap();
        if size == 0 {
            break;
        }
        let mut chunk = vec![0; size + 2];
        wire.io.read_exact(&mut chunk).await.unwrap();
        events += String::from_utf8(chunk).unwrap().matches("data: ").count();
        sizes.push(size);
    }
    assert_eq!(events, 100);
    assert!(sizes.len() > 1 && sizes[0] >= 32 << 10 && sizes.iter().all(|it| *it < 36 << 10), "{sizes:?}");
}

/// Connections that a test accepts.
type Backlog = Arc<Mutex<VecDeque<io::Result<DuplexStream>>>>;

/// Whether all that was left ended by itself.
fn serve(backlog: &Backlog, settings: listener::Settings, drain: &CancellationToken) -> tokio::task::JoinHandle<bool> {
    let (backlog, drain) = (Arc::clone(backlog), drain.clone());
    let door = HttpService::new(checked(&Arc::default()), super::support::settings());
    let accept = move |_: &mut std::task::Context<'_>| match backlog.lock().pop_front() {
        Some(it) => Poll::Ready(it.map(|it| (it, ([127, 0, 0, 1], 9).into()))),
        None => Poll::Pending,
    };
    tokio::spawn(async move { serve_accepted(accept, door, &settings, &drain).await })
}

async fn get(io: &mut DuplexStream) -> io::Result<String> {
    io.write_all(b"GET /tasks/t HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await?;
    let mut reply = String::new();
    io.read_to_string(&mut reply).await.map(|_| reply)
}

/// Out of descriptors, a server waits until it has some.
#[tokio::test(start_paused = true)]
async fn errors_of_accept_pass() {
    let (mut near, far) = tokio::io::duplex(64 << 10);
    let error = |kind| Err(io::Error::from(kind));
    let exhausted = || Err(io::Error::from_raw_os_error(24));
    let aborted = error(io::ErrorKind::ConnectionAborted);
    let backlog: Backlog = Arc::new(Mutex::new([exhausted(), aborted, exhausted(), Ok(far)].into()));
    let start = Instant::now();
    let drain = CancellationToken::new();
    let served = serve(&backlog, listener::Settings::default(), &drain);
    assert!(get(&mut near).await.unwrap().starts_with("HTTP/1.1 200 OK"));
    assert!((200..300).contains(&start.elapsed().as_millis()), "{:?}", start.elapsed());
    drain.cancel();
    assert!(served.await.unwrap());
}

/// More connections than Tokio's default backlog wait for a server that does not accept yet.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn backlog_is_as_long_as_the_system_allows() {
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
async fn connections_are_bounded() {
    let (mut first, far) = tokio::io::duplex(64 << 10);
    let (mut second, other) = tokio::io::duplex(64 << 10);
    let backlog: Backlog = Arc::new(Mutex::new([Ok(far), Ok(other)].into()));
    let drain = CancellationToken::new();
    let settings = listener::Settings { max_connections: 1, ..Default::default() };
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
