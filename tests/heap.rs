//! Bounds on heap allocations per request through a whole server. Counts are exact, so noise cannot affect them.
//!
//! The counter covers one thread. The server therefore runs on a thread and a current-thread runtime of its own, and the
//! client on another thread, over a socket. Growing a `Vec` counts as an allocation.

#![expect(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests may panic, and this one prints its measurements"
)]

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use a2a_service::{
    agent::{Agent, End, Error, Turn, Updates},
    call::Call,
    client,
    pb::v1::{Message, SendMessageRequest, a2a_service_server::A2aService},
    server::Server,
    service::Limits,
};
use tokio::runtime::Builder;
use tokio_stream::StreamExt as _;

const CALLS: usize = 1000;
const TEXT: &str = "ping 00000000 opqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijkl";

/// Agent that reports WORKING, echoes its text and makes this many additional allocations. If the text is a number, it
/// sends that many chunks, each in a poll of its own, as a model streams tokens.
struct Echo(usize);

impl Agent for Echo {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Error> {
        out.working().await?;
        let mut artifact = out.artifact("echo");
        let chunks = turn.text().parse::<usize>();
        for _ in 0..*chunks.as_ref().unwrap_or(&0) {
            tokio::task::yield_now().await;
            waste(self.0);
            artifact.text("token ").await?;
        }
        if chunks.is_err() {
            waste(self.0);
            artifact.last().text(turn.text()).await?;
        }
        Ok(End::Completed(None))
    }
}

fn waste(times: usize) {
    for n in 0..times {
        std::hint::black_box(Box::new(n));
    }
}

/// Allocations of a server during `CALLS` calls of a client, after as many calls of warm-up.
fn allocations(waste: usize, client: impl Fn(SocketAddr, usize)) -> f64 {
    let (started, addr) = mpsc::channel();
    let (done, mut phase) = tokio::sync::mpsc::unbounded_channel();
    let server = thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        // Commits every chunk separately.
        let mut limits = Limits::default();
        limits.commit_interval = Duration::ZERO;
        let bound = runtime.block_on(Server::new(Echo(waste)).limits(limits).bind("127.0.0.1:0")).unwrap();
        started.send(bound.addr()).unwrap();
        runtime.spawn(bound.run_until(std::future::pending()));
        runtime.block_on(phase.recv());
        allocation_counter::measure(|| {
            runtime.block_on(phase.recv());
        })
    });
    let addr = addr.recv().unwrap();
    // The first calls grow buffers, maps and the connection pool.
    client(addr, CALLS);
    done.send(()).unwrap();
    client(addr, CALLS);
    done.send(()).unwrap();
    server.join().unwrap().count_total as f64
}

/// Client of JSON-RPC sends. Each round opens its own connection, so that both rounds cost the same.
fn json_rpc(text: &str) -> impl Fn(SocketAddr, usize) {
    move |addr, calls| json_rpc_calls(addr, calls, text)
}

fn json_rpc_calls(addr: SocketAddr, calls: usize, text: &str) {
    let mut socket = BufReader::new(TcpStream::connect(addr).unwrap());
    socket.get_ref().set_nodelay(true).unwrap();
    let message = format!(
        r#"{{"messageId":"b0000000-0000-4000-8000-000000000000","role":"ROLE_USER","parts":[{{"text":"{text}"}}]}}"#
    );
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{{"message":{message}}}}}"#);
    let length = body.len();
    let head = format!(
        "POST /rpc HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    let request = head + &body;
    for _ in 0..calls {
        socket.get_mut().write_all(request.as_bytes()).unwrap();
        let (mut line, mut length) = (String::new(), 0);
        while line != "\r\n" {
            line.clear();
            socket.read_line(&mut line).unwrap();
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut reply = vec![0; length];
        socket.read_exact(&mut reply).unwrap();
        let reply = String::from_utf8(reply).unwrap();
        assert!(reply.contains("TASK_STATE_COMPLETED") && reply.contains(text), "{reply}");
    }
}

/// Client of one stream with this many chunks.
fn stream(connect: fn(&str) -> Arc<dyn A2aService>) -> impl Fn(SocketAddr, usize) {
    move |addr, chunks| {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let events = runtime.block_on(async {
            let client = connect(&format!("http://{addr}"));
            let message = Some(Message::user(chunks.to_string()));
            let request = SendMessageRequest { message, ..SendMessageRequest::default() };
            let events = client.send_streaming_message(Call::default().request(request)).await.unwrap();
            events.into_inner().fold(0, |count, event| event.map(|_| count + 1).unwrap()).await
        });
        assert_eq!(events, chunks + 3);
    }
}

fn grpc(addr: SocketAddr, calls: usize) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = client::grpc(&format!("http://{addr}")).unwrap();
        for _ in 0..calls {
            let request = SendMessageRequest { message: Some(Message::user(TEXT)), ..SendMessageRequest::default() };
            client.send_message(Call::default().request(request)).await.unwrap();
        }
    });
}

/// Asserts that the count is within the bound, and that one allocation more would exceed it. The bounds are the current
/// counts plus a half; the absolute limits are 90 for a JSON-RPC send, 120 for a gRPC send and 16 for an event.
fn bounded(name: &str, bound: f64, count: impl Fn(usize) -> f64) {
    let (measured, one_more) = (count(0), count(1));
    println!("allocations, {name}: {measured:.1}, with one more {one_more:.1}; bound {bound}");
    assert!(one_more - measured > 0.5, "{name}: the counter does not cover the agent");
    assert!(measured <= bound, "{name}: {measured} allocations exceed the bound of {bound}");
    assert!(one_more > bound, "{name}: the bound is loose and would hide another allocation");
}

#[test]
fn allocations_of_a_json_rpc_send() {
    bounded("a JSON-RPC send", 57.2, |waste| allocations(waste, json_rpc(TEXT)) / CALLS as f64);
}

/// The number of read chunks depends on the system, so this bound is not tight.
#[test]
fn allocations_of_a_large_json_rpc_send() {
    let text = TEXT.repeat(100_000 / TEXT.len());
    let calls = allocations(0, json_rpc(&text)) / CALLS as f64;
    println!("allocations, a JSON-RPC send of 100 kB: {calls:.1}");
    assert!(calls <= 200.0, "{calls} allocations: bodies must be read in large chunks");
}

#[test]
fn allocations_of_a_grpc_send() {
    bounded("a gRPC send", 59.3, |waste| allocations(waste, grpc) / CALLS as f64);
}

#[test]
fn allocations_of_a_streamed_event() {
    let event = |connect: fn(&str) -> Arc<dyn A2aService>, waste| {
        let few = allocations(waste, |addr, _| stream(connect)(addr, 1000));
        let many = allocations(waste, |addr, _| stream(connect)(addr, 3000));
        (many - few) / 2000.0
    };
    bounded("an event of a JSON-RPC stream", 8.5, |waste| {
        event(|url| client::json_rpc(&format!("{url}/rpc")).unwrap(), waste)
    });
    bounded("an event of a gRPC stream", 6.5, |waste| event(|url| client::grpc(url).unwrap(), waste));
}
