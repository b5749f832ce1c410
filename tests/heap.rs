//! How often a request asks for memory, through the whole of a server: noise can't move it, so it is a bound.
//!
//! The counter sees its own thread alone. So the server has a thread and a runtime of one thread to itself, and the
//! client is elsewhere and speaks over a socket. Growing a `Vec` counts as a call.

#![expect(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test may fail, and this one reports"
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

/// Says that it works, gives its text back, and asks for memory so many times more than it needs. With a number as its
/// text it says so many chunks, each in a poll of its own, as a model's tokens come.
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

/// Heap calls of a server while a client makes its calls, after the client has made a few.
fn heap_calls(waste: usize, client: impl Fn(SocketAddr, usize)) -> f64 {
    let (started, addr) = mpsc::channel();
    let (done, mut phase) = tokio::sync::mpsc::unbounded_channel();
    let server = thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        // An event for each chunk.
        let mut limits = Limits::default();
        limits.pace = Duration::ZERO;
        let bound = runtime.block_on(Server::new(Echo(waste)).limits(limits).bind("127.0.0.1:0")).unwrap();
        started.send(bound.addr()).unwrap();
        runtime.spawn(bound.run_until(std::future::pending()));
        runtime.block_on(phase.recv());
        allocation_counter::measure(|| {
            runtime.block_on(phase.recv());
        })
    });
    let addr = addr.recv().unwrap();
    // The first calls grow what the others use: buffers, maps, a pool of connections.
    client(addr, CALLS);
    done.send(()).unwrap();
    client(addr, CALLS);
    done.send(()).unwrap();
    server.join().unwrap().count_total as f64
}

/// One connection that is kept between the two rounds would be dropped with its client: each round has its own, and
/// that costs every round the same.
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
            if let Some(it) = line.strip_prefix("content-length: ") {
                length = it.trim().parse().unwrap();
            }
        }
        let mut reply = vec![0; length];
        socket.read_exact(&mut reply).unwrap();
        let reply = String::from_utf8(reply).unwrap();
        assert!(reply.contains("TASK_STATE_COMPLETED") && reply.contains(text), "{reply}");
    }
}

/// A stream of so many chunks, over the binding of this client.
fn stream(connect: fn(&str) -> Arc<dyn A2aService>) -> impl Fn(SocketAddr, usize) {
    move |addr, chunks| {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let events = runtime.block_on(async {
            let client = connect(&format!("http://{addr}"));
            let message = Some(Message::user(chunks.to_string()));
            let request = SendMessageRequest { message, ..SendMessageRequest::default() };
            let events = client.send_streaming_message(Call::default().request(request)).await.unwrap();
            events.into_inner().fold(0, |count, it| it.map(|_| count + 1).unwrap()).await
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

/// Fails where what was counted is over the bound, and where one call more would not be. The bounds are what it takes
/// today, and half a call: 90 for a JSON-RPC send, 120 for a gRPC send and 16 for an event are what it must never take.
fn bounded(name: &str, bound: f64, count: impl Fn(usize) -> f64) {
    let (ours, one_more) = (count(0), count(1));
    println!("heap calls, {name}: {ours:.1}, and with one more {one_more:.1}; at most {bound}");
    assert!(one_more - ours > 0.5, "{name}: the counter does not see the agent");
    assert!(ours <= bound, "{name}: {ours} heap calls, of at most {bound}");
    assert!(one_more > bound, "{name}: the bound is loose, and would hide a call more");
}

#[test]
fn heap_calls_of_a_json_rpc_send() {
    bounded("a JSON-RPC send", 62.3, |waste| heap_calls(waste, json_rpc(TEXT)) / CALLS as f64);
}

/// How many pieces it comes in is the system's to say, so this is a bound of what it must never take.
#[test]
fn heap_calls_of_a_large_json_rpc_send() {
    let text = TEXT.repeat(100_000 / TEXT.len());
    let calls = heap_calls(0, json_rpc(&text)) / CALLS as f64;
    println!("heap calls, a JSON-RPC send of 100 kB: {calls:.1}");
    assert!(calls <= 200.0, "{calls} heap calls: a body is to come in pieces of some length");
}

#[test]
fn heap_calls_of_a_grpc_send() {
    bounded("a gRPC send", 68.3, |waste| heap_calls(waste, grpc) / CALLS as f64);
}

#[test]
fn heap_calls_of_a_streamed_event() {
    let event = |connect: fn(&str) -> Arc<dyn A2aService>, waste| {
        let few = heap_calls(waste, |addr, _| stream(connect)(addr, 1000));
        let many = heap_calls(waste, |addr, _| stream(connect)(addr, 3000));
        (many - few) / 2000.0
    };
    bounded("an event of a JSON-RPC stream", 9.5, |waste| {
        event(|url| client::json_rpc(&format!("{url}/rpc")).unwrap(), waste)
    });
    bounded("an event of a gRPC stream", 7.5, |waste| event(|url| client::grpc(url).unwrap(), waste));
}
