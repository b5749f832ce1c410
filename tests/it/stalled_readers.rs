//! Stalled readers: they do not delay or cost other callers anything, and receive every event later.

use std::{fs, sync::Arc, time::Duration};

use a2a_service::{client, pb::v1::TaskState, store::sqlite::Options};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use crate::{
    bindings::{serve, server},
    scenarios::{get, next, output, remaining, send, state, stream, subscribe, task_of, text},
    store::opened::OpenedStore,
};

const EVENTS: usize = 10_000;
const STALLED: usize = 20;
const TIMEOUT: Duration = Duration::from_mins(1);

/// Resident memory of this process in MiB.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

/// HTTP+JSON subscription over a bare socket of which the first bytes have been read.
async fn subscription(url: &str, id: &str) -> (TcpStream, Vec<u8>) {
    let host = url.strip_prefix("http://").unwrap();
    // HTTP/1.0 replies have no chunk headers between the bytes.
    let mut socket = TcpStream::connect(host).await.unwrap();
    let head = format!("GET /tasks/{id}:subscribe HTTP/1.0\r\nhost: {host}\r\n\r\n");
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut read = vec![0; 512];
    let n = timeout(TIMEOUT, socket.read(&mut read)).await.unwrap().unwrap();
    read.truncate(n);
    assert!(read.starts_with(b"HTTP/1.0 200"), "{}", String::from_utf8_lossy(&read));
    (socket, read)
}

/// Numbers at the start of the chunks, in order of arrival.
fn numbers(text: &str) -> Vec<usize> {
    let marks = text.match_indices(r#""parts":[{"text":""#);
    let number = |(at, mark): (usize, &str)| text[at + mark.len()..].get(..6)?.parse().ok();
    marks.filter_map(number).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_readers_do_not_affect_others_and_receive_everything() {
    // Sequential, because the memory of the whole process is measured.
    stall_readers(OpenedStore::memory(2000)).await;
    stall_readers(OpenedStore::sqlite(Options::default())).await;
}

/// HTTP/2 client with this initial window size in bytes.
async fn http2(url: &str, window: u32) -> h2::client::SendRequest<bytes::Bytes> {
    let socket = TcpStream::connect(url.strip_prefix("http://").unwrap()).await.unwrap();
    let mut builder = h2::client::Builder::new();
    let (client, connection) = builder.initial_window_size(window).handshake(socket).await.unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_is_rejected_if_its_reply_exceeds_the_memory_budget() {
    for store in [OpenedStore::memory(2000), OpenedStore::sqlite(Options::default())] {
        for lists in [false, true] {
            // A server for each case: the connections of the one before are closed in the background.
            let url = serve(server().outgoing_bytes(10 << 20).store(Arc::clone(&store.store))).await;
            let agent = client::rest(&url).unwrap();
            // The text is in the history and in the artifact: 1.8 MB.
            let small = send(&*agent, text("", "x")).await.id;
            let large = send(&*agent, text("", &"x".repeat(900_000))).await.id;
            let path =
                if lists { "/tasks?includeArtifacts=true&pageSize=1".to_owned() } else { format!("/tasks/{large}") };
            let get = async |client: &h2::client::SendRequest<bytes::Bytes>, path: &str| {
                let mut client = client.clone().ready().await.unwrap();
                let request = http::Request::get(format!("{url}{path}")).body(()).unwrap();
                client.send_request(request, true).unwrap().0.await.unwrap()
            };
            let stalled = http2(&url, 0).await;
            let mut unread = Vec::new();
            for _ in 0..3 {
                let answer = get(&stalled, &path).await;
                assert_eq!(answer.status(), 200, "{path}");
                unread.push(answer);
            }
            // Unread replies hold 5.4 MB, and making a reply of 1.8 MB takes three copies of it.
            let refused = get(&stalled, &path).await;
            assert_eq!((refused.status().as_u16(), &refused.headers()["retry-after"]), (503, &"1".parse().unwrap()));
            let reader = http2(&url, 1 << 20).await;
            assert_eq!(get(&reader, &format!("/tasks/{small}")).await.status(), 200);
            drop((unread, stalled));
            timeout(TIMEOUT, async { while get(&reader, &path).await.status() != 200 {} }).await.unwrap();
        }
    }
}

/// Streams that begin with a large task, or with large events of the log, are served once those of other clients are closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_get_memory_once_others_are_closed() {
    for store in [OpenedStore::memory(2000), OpenedStore::sqlite(Options::default())] {
        let url = serve(server().outgoing_bytes(8 << 20).store(Arc::clone(&store.store))).await;
        let agent = client::rest(&url).unwrap();
        let asked = send(&*agent, text("", &format!("/ask {}", "x".repeat(900_000)))).await;
        let path = format!("/tasks/{}:subscribe", asked.id);
        let subscribe_with = async |client: &h2::client::SendRequest<bytes::Bytes>, cursor: Option<&str>| {
            let mut client = client.clone().ready().await.unwrap();
            let mut request = http::Request::get(format!("{url}{path}"));
            if let Some(cursor) = cursor {
                request = request.header("last-event-id", cursor);
            }
            client.send_request(request.body(()).unwrap(), true).unwrap().0.await.unwrap()
        };
        let reader = http2(&url, 16 << 20).await;
        let first_data = async |response: http::Response<h2::RecvStream>| {
            let mut body = response.into_body();
            let mut read = Vec::new();
            while !read.ends_with(b"\n\n") {
                let data = body.data().await.unwrap().unwrap();
                body.flow_control().release_capacity(data.len()).unwrap();
                read.extend_from_slice(&data);
            }
            String::from_utf8(read).unwrap()
        };
        let snapshot = first_data(subscribe_with(&reader, None).await).await;
        let cursor = snapshot.lines().find_map(|line| line.strip_prefix("id: ")).unwrap().to_owned();
        let (start, _) = cursor.rsplit_once('.').unwrap();
        let first = format!("{start}.1");
        for cursor in [None, Some(&*first)] {
            // Many connections, because one may not have all of the memory.
            let mut unread = Vec::new();
            for _ in 0..20 {
                let stalled = http2(&url, 0).await;
                let response = subscribe_with(&stalled, cursor).await;
                assert!(matches!(response.status().as_u16(), 200 | 503), "{}", response.status());
                unread.push((response, stalled));
            }
            let admitted = unread.iter().filter(|(response, _)| response.status() == 200).count();
            assert!(admitted >= 3, "{admitted} streams");
            drop(unread);
            let data = async {
                loop {
                    let response = subscribe_with(&reader, cursor).await;
                    if response.status() == 200 {
                        break first_data(response).await;
                    }
                }
            };
            let data = timeout(TIMEOUT, data).await.unwrap();
            assert!(data.contains("xxxx") && data.contains(&asked.id));
        }
    }
}

async fn stall_readers(store: OpenedStore) {
    // Readers stall for longer than the default write timeout on a slow machine.
    let server = server().store(Arc::clone(&store.store)).write_timeout(Duration::from_mins(30));
    // Without the check of each event for each reader.
    let bound = server.bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", bound.addr());
    tokio::spawn(bound.run_until(std::future::pending()));
    let agent = client::rest(&url).unwrap();
    let mut watched = stream(&*agent, text("", "!wait")).await;
    let id = task_of(&next(&mut watched).await).id.clone();
    let before = resident();
    let mut stalled = Vec::new();
    for _ in 0..STALLED {
        stalled.push(subscription(&url, &id).await);
    }
    // The waiting turn ends, and the next one writes the burst.
    let burst = send(&*agent, text(&id, &format!("!burst {EVENTS}"))).await;
    assert!(
        matches!(burst.state(), TaskState::InputRequired | TaskState::Working | TaskState::Completed),
        "{:?}",
        burst.state()
    );
    drop(watched);
    // Meanwhile another client subscribes, and other tasks run.
    let late = subscribe(&*agent, &id).await;
    for _ in 0..100 {
        assert_eq!(send(&*agent, text("", "hello")).await.state(), TaskState::Completed);
    }
    if let Ok(late) = late {
        assert_eq!(remaining(late).await.last().and_then(state), Some(TaskState::Completed));
    }
    let task = get(&*agent, &id).await.unwrap();
    assert_eq!((task.state(), output(&task).len()), (TaskState::Completed, EVENTS * 1024));
    // A copy of the events per reader would be four times as much.
    let grown = resident().saturating_sub(before);
    assert!(grown < 200, "memory grew by {grown} MiB with {STALLED} stalled readers");

    for (mut socket, mut read) in stalled {
        timeout(TIMEOUT, socket.read_to_end(&mut read)).await.unwrap().unwrap();
        let seen = numbers(&String::from_utf8(read).unwrap());
        assert_eq!(seen, (0..EVENTS).collect::<Vec<_>>());
    }
}
