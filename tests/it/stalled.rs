//! Readers that stop reading: nobody else notices, and they miss nothing.

use std::{fs, sync::Arc, time::Duration};

use a2a_service::{client, pb::v1::TaskState, store::sqlite::Options};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use crate::{
    scenarios::{get, next, remaining, send, state, stream, subscribe, task_of, text},
    store::place::Opened,
    ways::{serve, server},
};

const EVENTS: usize = 10_000;
const STALLED: usize = 20;
const PATIENCE: Duration = Duration::from_mins(1);

/// Memory of this process, in MiB.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|it| it.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

/// A subscription of HTTP+JSON over a bare socket, of which the first bytes have been read.
async fn subscription(url: &str, id: &str) -> (TcpStream, Vec<u8>) {
    let host = url.strip_prefix("http://").unwrap();
    // 1.0 has no chunks, whose lengths would stand between the bytes.
    let mut socket = TcpStream::connect(host).await.unwrap();
    let head = format!("GET /tasks/{id}:subscribe HTTP/1.0\r\nhost: {host}\r\n\r\n");
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut read = vec![0; 512];
    let n = timeout(PATIENCE, socket.read(&mut read)).await.unwrap().unwrap();
    read.truncate(n);
    assert!(read.starts_with(b"HTTP/1.0 200"), "{}", String::from_utf8_lossy(&read));
    (socket, read)
}

/// The numbers that the chunks begin with, in the order in which they came.
fn numbers(text: &str) -> Vec<usize> {
    let marks = text.match_indices(r#""parts":[{"text":""#);
    let number = |(at, mark): (usize, &str)| text[at + mark.len()..].get(..6)?.parse().ok();
    marks.filter_map(number).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_stops_costs_nobody_anything_and_misses_nothing() {
    // One after the other: what they take is all that this process does.
    stops(Opened::memory(2000)).await;
    stops(Opened::sqlite(Options::default())).await;
}

/// A client of HTTP/2 that takes so many bytes of each answer before it has read them.
async fn http2(url: &str, window: u32) -> h2::client::SendRequest<bytes::Bytes> {
    let socket = TcpStream::connect(url.strip_prefix("http://").unwrap()).await.unwrap();
    let mut builder = h2::client::Builder::new();
    let (client, connection) = builder.initial_window_size(window).handshake(socket).await.unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_is_refused_before_it_is_made_if_its_memory_exceeds_the_budget() {
    for store in [Opened::memory(2000), Opened::sqlite(Options::default())] {
        let url = serve(server().unsent_bytes(8 << 20).store(Arc::clone(&store.store))).await;
        let agent = client::rest(&url).unwrap();
        // It has the text twice, in its history and as an artifact: 1.8 MB.
        let large = send(&*agent, text("", &"x".repeat(900_000))).await.id;
        let small = send(&*agent, text("", "x")).await.id;
        for path in [format!("/tasks/{large}"), "/tasks?includeArtifacts=true".to_owned()] {
            let get = async |client: &h2::client::SendRequest<bytes::Bytes>, path: &str| {
                let mut client = client.clone().ready().await.unwrap();
                let request = http::Request::get(format!("{url}{path}")).body(()).unwrap();
                client.send_request(request, true).unwrap().0.await.unwrap()
            };
            let stalled = http2(&url, 0).await;
            let mut held = Vec::new();
            for _ in 0..3 {
                let answer = get(&stalled, &path).await;
                assert_eq!(answer.status(), 200, "{path}");
                held.push(answer);
            }
            // 5.4 MB are held, and while an answer of 1.8 MB is made there are two copies of it.
            let refused = get(&stalled, &path).await;
            assert_eq!((refused.status().as_u16(), &refused.headers()["retry-after"]), (503, &"1".parse().unwrap()));
            let reader = http2(&url, 1 << 20).await;
            assert_eq!(get(&reader, &format!("/tasks/{small}")).await.status(), 200);
            drop((held, stalled));
            timeout(PATIENCE, async { while get(&reader, &path).await.status() != 200 {} }).await.unwrap();
        }
    }
}

async fn stops(store: Opened) {
    let url = serve(server().store(Arc::clone(&store.store))).await;
    let agent = client::rest(&url).unwrap();
    let mut watched = stream(&*agent, text("", "!wait")).await;
    let id = task_of(&next(&mut watched).await).id.clone();
    let before = resident();
    let mut stalled = Vec::new();
    for _ in 0..STALLED {
        stalled.push(subscription(&url, &id).await);
    }
    // The turn that waits ends, and the next one, which is the burst, begins.
    let burst = send(&*agent, text(&id, &format!("!burst {EVENTS}"))).await;
    assert!(
        matches!(burst.state(), TaskState::InputRequired | TaskState::Working | TaskState::Completed),
        "{:?}",
        burst.state()
    );
    drop(watched);
    // While it goes on: somebody else reads it from here on, and other tasks are done.
    let late = subscribe(&*agent, &id).await;
    for _ in 0..100 {
        assert_eq!(send(&*agent, text("", "hello")).await.state(), TaskState::Completed);
    }
    if let Ok(late) = late {
        assert_eq!(remaining(late).await.last().and_then(state), Some(TaskState::Completed));
    }
    let task = get(&*agent, &id).await.unwrap();
    assert_eq!((task.state(), task.artifacts[0].parts.len()), (TaskState::Completed, EVENTS));
    // A copy of the events for each of them would be four times as much.
    let grown = resident().saturating_sub(before);
    assert!(grown < 200, "{grown} MiB more, with {STALLED} readers that stopped");

    for (mut socket, mut read) in stalled {
        timeout(PATIENCE, socket.read_to_end(&mut read)).await.unwrap().unwrap();
        let seen = numbers(&String::from_utf8(read).unwrap());
        assert_eq!(seen, (0..EVENTS).collect::<Vec<_>>());
    }
}
