//! Load generator: a closed loop on a number of connections, for a time or a number of calls. Every reply is checked.

use std::{
    io::Read as _,
    net::SocketAddr,
    panic, process,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

use a2a_service::pb::v1::{
    ListTasksResponse, SendMessageResponse, StreamResponse, Task, TaskState, send_message_response,
    stream_response::Payload,
};
use memchr::memmem::{self, Finder};
use prost::Message as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{
    net::TcpStream,
    runtime::Builder,
    sync::{Barrier, oneshot},
    task::JoinSet,
    time::{Duration, Instant},
};

use crate::{
    fill,
    http1::Http1,
    http2::Http2,
    process::cpu,
    servers,
    work::{Prepared, Protocol, Work},
};

/// Number of replies per entry of [`Report::worst`].
const STEP: u64 = 10_000;

/// Interval between replies that are parsed; the others are only searched.
const PARSED: u64 = 64;

/// Result of a run.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) calls: u64,
    pub(crate) seconds: f64,
    /// Processor time of the server and of the generator in seconds.
    pub(crate) server: f64,
    pub(crate) own: f64,
    /// Latency percentiles in milliseconds.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    /// Maximum latency of each [`STEP`] replies in milliseconds.
    pub(crate) worst: Vec<f64>,
    /// Bytes of a reply: a message or all events.
    pub(crate) bytes: usize,
}

/// Limit of a run.
#[derive(Clone, Copy)]
enum Until {
    After(Duration),
    Count(u64),
}

/// State shared by all connections.
struct Common {
    addr: SocketAddr,
    protocol: Protocol,
    work: Work,
    baseline: bool,
    warm: Duration,
    until: Until,
    ready: Barrier,
    go: Barrier,
    /// Number of replies on all connections.
    answered: AtomicU64,
}

enum Connection {
    Http1(Http1),
    Http2(Box<Http2>),
}

impl Connection {
    async fn open(addr: SocketAddr, protocol: Protocol) -> Self {
        let socket = TcpStream::connect(addr).await.unwrap();
        socket.set_nodelay(true).unwrap();
        match protocol {
            Protocol::Grpc => Self::Http2(Box::new(Http2::new(socket).await)),
            Protocol::Rest | Protocol::JsonRpc => Self::Http1(Http1::new(socket)),
        }
    }

    async fn call(&mut self, request: &Prepared) {
        match self {
            Self::Http1(connection) => connection.call(&request.bytes).await,
            Self::Http2(connection) => connection.call(request.method, &request.bytes).await,
        }
    }

    async fn message(&mut self) -> Option<&[u8]> {
        match self {
            Self::Http1(connection) => connection.message().await,
            Self::Http2(connection) => connection.message().await,
        }
    }
}

/// Calls a server and prints the report.
pub(crate) fn run(arguments: &[String]) {
    // A failed task ends the process instead of leaving others waiting.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        hook(info);
        process::exit(1);
    }));
    let [addr, server, protocol, work, connections, baseline, warm, until] = arguments else {
        panic!("ADDR PID PROTOCOL WORK CONNECTIONS BASELINE WARM UNTIL")
    };
    let (server, connections): (u32, usize) = (server.parse().unwrap(), connections.parse().unwrap());
    let count = until.strip_prefix('#').map(|count| Until::Count(count.parse::<u64>().unwrap() / connections as u64));
    let common = Common {
        addr: addr.parse().unwrap(),
        protocol: protocol.parse().unwrap(),
        work: work.parse().unwrap(),
        baseline: baseline.parse().unwrap(),
        warm: Duration::from_millis(warm.parse().unwrap()),
        until: count.unwrap_or_else(|| Until::After(Duration::from_millis(until.parse().unwrap()))),
        ready: Barrier::new(connections + 1),
        go: Barrier::new(connections + 1),
        answered: AtomicU64::new(0),
    };
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let report = runtime.block_on(measure(Arc::new(common), server, connections));
    println!("{}", serde_json::to_string(&report).unwrap());
}

async fn measure(common: Arc<Common>, server: u32, connections: usize) -> Report {
    // Some work shares one task between all connections.
    let shared = matches!(common.work, Work::Fan(_) | Work::Idle) && !common.baseline;
    let owner = if shared { Some(start_shared(&common).await) } else { None };
    let task: Arc<str> = owner.as_ref().map_or("", |shared| &*shared.1).into();
    let mut all = JoinSet::new();
    for _ in 0..connections {
        let (common, task) = (Arc::clone(&common), Arc::clone(&task));
        if matches!(common.work, Work::Fan(_) | Work::Idle | Work::Own) {
            all.spawn(async move { subscribe(&common, &task).await });
        } else {
            all.spawn(async move { calls(&common).await });
        }
    }
    common.ready.wait().await;
    if matches!(common.work, Work::Idle | Work::Own) {
        // The parent process measures the server, and then closes stdin.
        println!("{{}}");
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        process::exit(0);
    }
    let (before, own, start) = (cpu(server), cpu(process::id()), Instant::now());
    common.go.wait().await;
    if matches!(common.work, Work::Fan(_)) {
        let mut connection = Connection::open(common.addr, common.protocol).await;
        connection.call(&Prepared::send(common.protocol, "go", false)).await;
        assert!(connection.message().await.is_some());
    }
    let done = all.join_all().await;
    let seconds = start.elapsed().as_secs_f64();
    let mut report = Report {
        seconds,
        server: cpu(server).saturating_sub(before).as_secs_f64(),
        own: cpu(process::id()).saturating_sub(own).as_secs_f64(),
        bytes: done[0].bytes,
        ..Report::default()
    };
    let mut times = Vec::new();
    for one in done {
        for (at, time) in one.times {
            let step = usize::try_from(at / STEP).unwrap();
            report.worst.resize(report.worst.len().max(step + 1), 0.0);
            report.worst[step] = report.worst[step].max(millis(time));
            times.push(time);
        }
    }
    times.sort_unstable();
    report.calls = times.len() as u64;
    let percentile = |part: usize| millis(times[times.len() * part / 1000]);
    (report.p50, report.p99, report.p999) = (percentile(500), percentile(990), percentile(999));
    report
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Result of a connection: for each call the number of replies so far on all connections, and its latency.
struct Done {
    times: Vec<(u64, Duration)>,
    bytes: usize,
}

async fn calls(common: &Common) -> Done {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    let Common { protocol, work, .. } = *common;
    let mut connection = Connection::open(common.addr, protocol).await;
    let mut task = String::new();
    if work == Work::Get {
        connection.call(&Prepared::send(protocol, crate::work::PING, false)).await;
        task = task_of(protocol, connection.message().await.unwrap()).id;
    }
    let mut request = Prepared::new(protocol, work, &task);
    if let Work::Replay(_) = work {
        request = replay_request(common, &mut connection, &request).await;
    }
    let mut done = Done { times: Vec::new(), bytes: 0 };
    let warm = Instant::now() + common.warm;
    while Instant::now() < warm {
        request.number(NUMBER.fetch_add(1, Ordering::Relaxed));
        done.bytes = call_once(common, &mut connection, &request, 0).await;
    }
    common.ready.wait().await;
    common.go.wait().await;
    let start = Instant::now();
    loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        request.number(number);
        let before = Instant::now();
        done.bytes = call_once(common, &mut connection, &request, number).await;
        done.times.push((common.answered.fetch_add(1, Ordering::Relaxed), before.elapsed()));
        let finished = match common.until {
            Until::After(time) => start.elapsed() >= time,
            Until::Count(count) => done.times.len() as u64 >= count,
        };
        if finished {
            return done;
        }
    }
}

/// Runs a stream once, and returns the request that replays it after its first event.
async fn replay_request(common: &Common, connection: &mut Connection, request: &Prepared) -> Prepared {
    connection.call(request).await;
    let event = connection.message().await.unwrap();
    let task = first_task(common.protocol, event).id;
    let text = String::from_utf8_lossy(event);
    let cursor = text.lines().find_map(|line| line.strip_prefix("id: ")).unwrap().to_owned();
    while connection.message().await.is_some() {}
    Prepared::replay(&task, &cursor)
}

/// Makes a call, checks the reply and returns its length in bytes.
async fn call_once(common: &Common, connection: &mut Connection, request: &Prepared, number: u64) -> usize {
    let Common { protocol, work, baseline, .. } = *common;
    connection.call(request).await;
    if work.streams() {
        return follow(common, connection).await;
    }
    let message = connection.message().await.unwrap();
    let bytes = message.len();
    if !baseline {
        check(protocol, work, message, &request.text, number.is_multiple_of(PARSED));
    }
    // A body over HTTP/1.1 has no end marker.
    assert!(protocol != Protocol::Grpc || connection.message().await.is_none());
    bytes
}

/// Reads a stream to its end and checks that it is complete and ends with COMPLETED. Returns its length in bytes.
async fn follow(common: &Common, connection: &mut Connection) -> usize {
    static CHUNK: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(servers::CHUNK));
    let Common { protocol, work, baseline, .. } = *common;
    let (mut count, mut chunks, mut bytes, mut done) = (0, 0, 0, false);
    while let Some(message) = connection.message().await {
        (count, bytes) = (count + 1, bytes + message.len());
        if !baseline {
            chunks += CHUNK.find_iter(message).count();
            done = is_completed(protocol, message);
        }
    }
    if baseline {
        assert_eq!(count, work.parts(), "{work}");
    } else {
        assert!(chunks == work.chunks() && done, "{work}: {chunks} chunks, and done: {done}");
    }
    bytes
}

/// Returns whether an event reports that the task is completed.
fn is_completed(protocol: Protocol, message: &[u8]) -> bool {
    /// First byte of a message that has a status update.
    const STATUS: u8 = 3 << 3 | 2;
    match protocol {
        Protocol::Grpc if message[0] == STATUS => {
            let Some(Payload::StatusUpdate(update)) = StreamResponse::decode(message).unwrap().payload else {
                return false;
            };
            update.status.is_some_and(|status| status.state() == TaskState::Completed)
        }
        Protocol::Grpc => false,
        Protocol::Rest | Protocol::JsonRpc => memmem::find(message, b"_COMPLETED").is_some(),
    }
}

/// Checks a reply.
fn check(protocol: Protocol, work: Work, message: &[u8], text: &str, parse: bool) {
    match work {
        Work::Send(_) | Work::Get => {
            // The text occurs in the history and in the artifact.
            let found = memmem::find_iter(message, text).count();
            assert_eq!(found, 2, "{}", String::from_utf8_lossy(message));
            if parse {
                let task = task_of(protocol, message);
                assert_eq!(task.state(), TaskState::Completed);
                assert_eq!(task.artifacts[0].parts[0].as_text(), Some(text));
            }
        }
        Work::V03Send => {
            assert_eq!(memmem::find_iter(message, text).count(), 2, "{}", String::from_utf8_lossy(message));
            if parse {
                let reply: Value = serde_json::from_slice(message).unwrap();
                let task = &reply["result"];
                assert_eq!((&task["kind"], &task["status"]["state"]), (&"task".into(), &"completed".into()));
            }
        }
        Work::List(state) => {
            let list: ListTasksResponse = read(protocol, message, "");
            assert!(!list.tasks.is_empty() && list.page_size == 50);
            assert!(usize::try_from(list.total_size).unwrap() >= list.tasks.len());
            let state = i32::try_from(state).unwrap();
            assert!(list.tasks.iter().all(|task| state == 0 || i32::from(task.state()) == state));
        }
        Work::ListContext => {
            let list: ListTasksResponse = read(protocol, message, "");
            assert!(list.tasks.len() == 50 && list.tasks.iter().all(|task| task.context_id == fill::SOME_CONTEXT));
        }
        Work::Fail => assert_eq!(task_of(protocol, message).state(), TaskState::Failed),
        _ => unreachable!("streaming work has no unary reply"),
    }
}

fn read<T: prost::Message + Default + serde::de::DeserializeOwned>(
    protocol: Protocol,
    message: &[u8],
    member: &str,
) -> T {
    let value = match protocol {
        Protocol::Grpc => return T::decode(message).unwrap(),
        Protocol::Rest => serde_json::from_slice::<Value>(message).unwrap(),
        Protocol::JsonRpc => serde_json::from_slice::<Value>(message).unwrap()["result"].take(),
    };
    let value = if member.is_empty() { value } else { value.get(member).cloned().unwrap_or(value) };
    serde_json::from_value(value).unwrap()
}

/// Task in the reply to a send or get.
fn task_of(protocol: Protocol, message: &[u8]) -> Task {
    let sent = |message| match SendMessageResponse::decode(message).ok()?.payload? {
        send_message_response::Payload::Task(task) => Some(task),
        send_message_response::Payload::Message(_) => None,
    };
    if let Some(task) = Some(message).filter(|_| protocol == Protocol::Grpc).and_then(sent) {
        return task;
    }
    read(protocol, message, "task")
}

/// Task in the first event of a stream.
fn first_task(protocol: Protocol, message: &[u8]) -> Task {
    let data = memmem::find(message, b"data: ").map_or(message, |at| &message[at + 6..]);
    if protocol == Protocol::Grpc {
        let Some(Payload::Task(task)) = StreamResponse::decode(data).unwrap().payload else {
            panic!("first event has no task")
        };
        return task;
    }
    read(protocol, data, "task")
}

/// Starts the task that all connections subscribe to, and returns its id. Its own stream is kept open and drained.
async fn start_shared(common: &Common) -> (oneshot::Sender<()>, String) {
    let mut connection = Connection::open(common.addr, common.protocol).await;
    connection.call(&Prepared::new(common.protocol, common.work, "")).await;
    let id = first_task(common.protocol, connection.message().await.unwrap()).id;
    let (hold, dropped) = oneshot::channel();
    tokio::spawn(async move {
        tokio::select! {
            _ = dropped => {}
            () = async { while connection.message().await.is_some() {} } => {}
        }
    });
    (hold, id)
}

/// Subscribes to a task: reads the first event, and after the start signal all others.
async fn subscribe(common: &Common, task: &str) -> Done {
    let Common { protocol, work, baseline, .. } = *common;
    let mut connection = Connection::open(common.addr, protocol).await;
    let own = baseline || work == Work::Own;
    let request = if own { Prepared::new(protocol, work, "") } else { Prepared::subscribe(protocol, task) };
    connection.call(&request).await;
    let message = connection.message().await.unwrap();
    assert!(baseline || !first_task(protocol, message).id.is_empty());
    common.ready.wait().await;
    common.go.wait().await;
    let before = Instant::now();
    let bytes = if matches!(work, Work::Fan(_)) { follow(common, &mut connection).await } else { 0 };
    Done { times: vec![(0, before.elapsed())], bytes }
}
