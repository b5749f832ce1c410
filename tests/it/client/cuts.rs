//! Streams whose connection breaks: every event arrives exactly once, over each binding of both versions. The connection breaks
//! at every fifth byte, from a random one. The variable `CUTS` sets the distance in bytes, and `SEED` the first byte.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy},
    net::TcpStream,
};

use super::*;
use crate::crash::{number, seed};

/// Streams at the same time.
const PARALLEL: usize = 16;

const EXPECTED: [&str; 5] =
    ["task Submitted", "status Working", "chunk 1 of 2\n", "chunk 2 of 2\n", "status Completed"];

/// Cuts the first stream after some bytes.
struct Cut {
    http: reqwest::Client,
    after: usize,
    streams: AtomicUsize,
    /// Length of the first stream in bytes.
    length: Arc<AtomicUsize>,
}

#[tonic::async_trait]
impl HttpTransport for Cut {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<BoxStream<Bytes>>, Error> {
        let response = self.http.execute(request.try_into().unwrap()).await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        let is_stream = headers.get(header::CONTENT_TYPE).is_some_and(|media| media == "text/event-stream");
        let body = response.bytes().await.unwrap();
        let is_cut = is_stream && self.streams.fetch_add(1, Ordering::Relaxed) == 0;
        let chunks = if is_cut {
            self.length.store(body.len(), Ordering::Relaxed);
            let lost = ErrorKind::Unavailable.because("the connection was closed");
            vec![Ok(body.slice(..self.after.min(body.len()))), Err(lost.into())]
        } else {
            vec![Ok(body)]
        };
        let chunks: BoxStream<Bytes> = Box::pin(tokio_stream::iter(chunks));
        let mut response = Response::new(chunks);
        (*response.status_mut(), *response.headers_mut()) = (status, headers);
        Ok(response)
    }
}

/// Returns the URL of a proxy that breaks its first connection after this many bytes of the server, and counts those.
async fn cutting(server: String, after: usize, length: Arc<AtomicUsize>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let mut left = Some(after);
        while let Ok((client, _)) = listener.accept().await {
            let upstream = TcpStream::connect(&server).await.unwrap();
            let (mut client_reader, mut client_writer) = client.into_split();
            let (mut upstream_reader, mut upstream_writer) = upstream.into_split();
            tokio::spawn(async move { _ = copy(&mut client_reader, &mut upstream_writer).await });
            let (left, length) = (left.take(), Arc::clone(&length));
            tokio::spawn(async move {
                match left {
                    None => _ = copy(&mut upstream_reader, &mut client_writer).await,
                    Some(mut left) => {
                        let mut buffer = [0; 4096];
                        while let Ok(read @ 1..) = upstream_reader.read(&mut buffer).await {
                            length.fetch_add(read, Ordering::Relaxed);
                            let passed = read.min(left);
                            left -= passed;
                            if client_writer.write_all(&buffer[..passed]).await.is_err() || left == 0 {
                                break;
                            }
                        }
                    }
                }
            });
        }
    });
    url
}

async fn events_of(agent: Arc<dyn A2aService>) -> Vec<String> {
    let client = Client::from_service(agent);
    let events = match client.stream("/stream 2 0").await {
        // The question whether the agent supports idempotency keys was lost with the connection, too. The client can't know whether
        // the message arrived, and says so.
        Err(error) if error.kind() == ErrorKind::Unavailable => client.stream("/stream 2 0").await,
        events => events,
    };
    let mut events = events.unwrap();
    let mut found = Vec::new();
    while let Some(event) = events.next().await {
        match event.unwrap() {
            StreamEvent::Task(task) => {
                found.push(format!("task {:?}", task.state()));
                let parts = task.artifacts.iter().flat_map(|artifact| &artifact.parts);
                found.extend(parts.map(|part| part.as_text().unwrap().to_owned()));
            }
            StreamEvent::Status(update) => found.push(format!("status {:?}", update.status.unwrap().state())),
            // Chunks that are pending at the same time are one event.
            StreamEvent::Artifact(update) => {
                found.extend(update.artifact.unwrap().parts.iter().map(|part| part.as_text().unwrap().to_owned()));
            }
            event @ (StreamEvent::Message(_) | StreamEvent::Gap | _) => found.push(format!("{event:?}")),
        }
    }
    found
}

/// Returns true if no event is missing and none is repeated. Without cursors, a snapshot of the task after a gap replaces the
/// events before it.
fn is_complete(found: &[String], has_cursors: bool) -> bool {
    // A stream that breaks before its first event is opened again, with the task as it is then.
    if found == EXPECTED || is_rest(found) {
        return true;
    }
    let Some(gap) = found.iter().position(|event| event == "Gap").filter(|_| !has_cursors) else { return false };
    EXPECTED.starts_with(&found[..gap].iter().map(String::as_str).collect::<Vec<_>>()) && is_rest(&found[gap + 1..])
}

/// Returns true for a snapshot of the task and the events after it that have each chunk once, and the end.
fn is_rest(found: &[String]) -> bool {
    let Some((task, rest)) = found.split_first() else { return false };
    let (chunks, statuses): (Vec<_>, Vec<_>) = rest.iter().partition(|event| event.starts_with("chunk "));
    let ends = if task == "task Completed" {
        statuses.is_empty()
    } else {
        rest.last().is_some_and(|last| last == "status Completed")
    };
    // A snapshot has chunks of text that follow each other as one.
    let text: String = chunks.into_iter().map(String::as_str).collect();
    task.starts_with("task ") && ends && text == EXPECTED[2..4].concat()
}

/// Streams with cuts after numbers of bytes up to the length of a whole stream.
async fn assert_complete_after_each_cut<F: Future<Output = Vec<String>>>(
    name: &str,
    has_cursors: bool,
    length: impl Fn() -> usize,
    stream: impl Fn(usize) -> F,
) {
    assert_eq!(stream(usize::MAX).await, EXPECTED, "{name}");
    let distance = usize::try_from(number("CUTS").unwrap_or(5)).unwrap();
    let cuts = futures_util::stream::iter((seed().below(distance)..=length()).step_by(distance));
    let run = |after| {
        let stream = stream(after);
        async move { (after, stream.await) }
    };
    let all: Vec<_> = futures_util::StreamExt::collect(futures_util::StreamExt::buffer_unordered(
        futures_util::StreamExt::map(cuts, run),
        PARALLEL,
    ))
    .await;
    let mut whole = 0;
    for (after, found) in &all {
        assert!(is_complete(found, has_cursors), "{name} cut after {after} bytes: {found:?}");
        whole += usize::from(found == &EXPECTED);
    }
    assert!(!has_cursors || whole > all.len() / 2, "{name}: {whole} of {} streams have all events", all.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_is_complete_after_a_cut() {
    let (url, http) = (demo().await, crate::bindings::http());
    for (binding, version) in ALL.into_iter().filter(|(binding, _)| *binding != Binding::Grpc) {
        let length = Arc::new(AtomicUsize::new(0));
        let stream = |after| {
            let cut = Cut { http: http.clone(), after, streams: AtomicUsize::new(0), length: Arc::clone(&length) };
            let builder = quick().version(version).transport(cut);
            events_of(match binding {
                Binding::Rest => builder.rest(&url).unwrap(),
                Binding::JsonRpc | Binding::Grpc | Binding::InProcess => {
                    builder.json_rpc(&format!("{url}/rpc")).unwrap()
                }
            })
        };
        let name = format!("{binding:?} {version:?}");
        assert_complete_after_each_cut(&name, true, || length.load(Ordering::Relaxed), stream).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_is_complete_after_a_cut_over_grpc() {
    let server = Server::new(Demo).resume(true).bind("127.0.0.1:0").await.unwrap();
    let address = server.addr().to_string();
    tokio::spawn(server.run_until(std::future::pending()));
    for version in [Version::V1_0, Version::V0_3] {
        let length = Arc::new(AtomicUsize::new(0));
        let first = Arc::new(AtomicUsize::new(0));
        let stream = |after| {
            let (address, length) = (address.clone(), Arc::clone(if after == usize::MAX { &first } else { &length }));
            async move {
                let url = cutting(address, after, length).await;
                events_of(quick().version(version).grpc(&url).unwrap()).await
            }
        };
        let name = format!("gRPC {version:?}");
        assert_complete_after_each_cut(&name, version == Version::V1_0, || first.load(Ordering::Relaxed), stream).await;
    }
}
