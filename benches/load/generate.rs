//! The calls: a closed loop on so many connections, for so long or so often. Each answer is looked at.

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

/// The worst of so many answers is a step.
const STEP: u64 = 10_000;

/// How many answers there are to one that is parsed, and not only searched.
const PARSED: u64 = 64;

/// What came of the calls.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) calls: u64,
    pub(crate) seconds: f64,
    /// Processor time of the server, in seconds, and our own.
    pub(crate) server: f64,
    pub(crate) own: f64,
    /// Milliseconds, of all calls.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    /// And of each [`STEP`] answers, the worst.
    pub(crate) worst: Vec<f64>,
    /// How long an answer was: a message, or all events.
    pub(crate) bytes: usize,
}

/// When a connection stops calling.
#[derive(Clone, Copy)]
enum Until {
    After(Duration),
    Count(u64),
}

/// What all connections share.
struct Common {
    addr: SocketAddr,
    protocol: Protocol,
    work: Work,
    floor: bool,
    warm: Duration,
    until: Until,
    ready: Barrier,
    go: Barrier,
    /// How many answers have come on all.
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
            Self::Http1(it) => it.call(&request.bytes).await,
            Self::Http2(it) => it.call(request.method, &request.bytes).await,
        }
    }

    async fn message(&mut self) -> Option<&[u8]> {
        match self {
            Self::Http1(it) => it.message().await,
            Self::Http2(it) => it.message().await,
        }
    }
}

/// Calls a server, and prints what came of it.
pub(crate) fn run(arguments: &[String]) {
    // One that fails is the end of all, and not left to be waited for.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |it| {
        hook(it);
        process::exit(1);
    }));
    let [addr, server, protocol, work, connections, floor, warm, until] = arguments else {
        panic!("ADDR PID PROTOCOL WORK CONNECTIONS FLOOR WARM UNTIL")
    };
    let (server, connections): (u32, usize) = (server.parse().unwrap(), connections.parse().unwrap());
    let count = until.strip_prefix('#').map(|it| Until::Count(it.parse::<u64>().unwrap() / connections as u64));
    let common = Common {
        addr: addr.parse().unwrap(),
        protocol: protocol.parse().unwrap(),
        work: work.parse().unwrap(),
        floor: floor.parse().unwrap(),
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
    // One task for all, where it is one.
    let shared = matches!(common.work, Work::Fan(_) | Work::Idle) && !common.floor;
    let owner = if shared { Some(begin(&common).await) } else { None };
    let task: Arc<str> = owner.as_ref().map_or("", |it| &*it.1).into();
    let mut all = JoinSet::new();
    for _ in 0..connections {
        let (common, task) = (Arc::clone(&common), Arc::clone(&task));
        if matches!(common.work, Work::Fan(_) | Work::Idle | Work::Own) {
            all.spawn(async move { listen(&common, &task).await });
        } else {
            all.spawn(async move { calls(&common).await });
        }
    }
    common.ready.wait().await;
    if matches!(common.work, Work::Idle | Work::Own) {
        // Whoever started us looks at the server, and ends us.
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
    let of = |part: usize| millis(times[times.len() * part / 1000]);
    (report.p50, report.p99, report.p999) = (of(500), of(990), of(999));
    report
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// What came on a connection: after how many answers on all, and how long it took.
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
        request = streamed(common, &mut connection, &request).await;
    }
    let mut done = Done { times: Vec::new(), bytes: 0 };
    let warm = Instant::now() + common.warm;
    while Instant::now() < warm {
        request.number(NUMBER.fetch_add(1, Ordering::Relaxed));
        done.bytes = answer(common, &mut connection, &request, 0).await;
    }
    common.ready.wait().await;
    common.go.wait().await;
    let start = Instant::now();
    loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        request.number(number);
        let before = Instant::now();
        done.bytes = answer(common, &mut connection, &request, number).await;
        done.times.push((common.answered.fetch_add(1, Ordering::Relaxed), before.elapsed()));
        let over = match common.until {
            Until::After(time) => start.elapsed() >= time,
            Until::Count(count) => done.times.len() as u64 >= count,
        };
        if over {
            return done;
        }
    }
}

/// Streams once, and says how what followed after the first event is read again.
async fn streamed(common: &Common, connection: &mut Connection, request: &Prepared) -> Prepared {
    connection.call(request).await;
    let event = connection.message().await.unwrap();
    let task = first(common.protocol, event).id;
    let text = String::from_utf8_lossy(event);
    let cursor = text.lines().find_map(|it| it.strip_prefix("id: ")).unwrap().to_owned();
    while connection.message().await.is_some() {}
    Prepared::replay(&task, &cursor)
}

/// Makes a call, looks at its answer, and says how long that was.
async fn answer(common: &Common, connection: &mut Connection, request: &Prepared, number: u64) -> usize {
    let Common { protocol, work, floor, .. } = *common;
    connection.call(request).await;
    if work.streams() {
        return follow(common, connection).await;
    }
    let message = connection.message().await.unwrap();
    let bytes = message.len();
    if !floor {
        look(protocol, work, message, &request.text, number.is_multiple_of(PARSED));
    }
    // A body has no end of its own.
    assert!(protocol != Protocol::Grpc || connection.message().await.is_none());
    bytes
}

/// Reads a stream to its end: nothing is missing, and the last event says that the task is done.
async fn follow(common: &Common, connection: &mut Connection) -> usize {
    static CHUNK: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(servers::CHUNK));
    let Common { protocol, work, floor, .. } = *common;
    let (mut count, mut chunks, mut bytes, mut done) = (0, 0, 0, false);
    while let Some(message) = connection.message().await {
        (count, bytes) = (count + 1, bytes + message.len());
        if !floor {
            chunks += CHUNK.find_iter(message).count();
            done = ends(protocol, message);
        }
    }
    if floor {
        assert_eq!(count, work.parts(), "{work}");
    } else {
        assert!(chunks == work.chunks() && done, "{work}: {chunks} chunks, and done: {done}");
    }
    bytes
}

/// Whether an event says that the task is done.
fn ends(protocol: Protocol, message: &[u8]) -> bool {
    /// What a message begins with that tells a status.
    const STATUS: u8 = 3 << 3 | 2;
    match protocol {
        Protocol::Grpc if message[0] == STATUS => {
            let Some(Payload::StatusUpdate(it)) = StreamResponse::decode(message).unwrap().payload else {
                return false;
            };
            it.status.is_some_and(|it| it.state() == TaskState::Completed)
        }
        Protocol::Grpc => false,
        Protocol::Rest | Protocol::JsonRpc => memmem::find(message, b"_COMPLETED").is_some(),
    }
}

/// Looks whether this is the answer.
fn look(protocol: Protocol, work: Work, message: &[u8], text: &str, parse: bool) {
    match work {
        Work::Send(_) | Work::Get => {
            // In the history and in the artifact.
            let found = memmem::find_iter(message, text).count();
            assert_eq!(found, 2, "{}", String::from_utf8_lossy(message));
            if parse {
                let task = task_of(protocol, message);
                assert_eq!(task.state(), TaskState::Completed);
                assert_eq!(task.artifacts[0].parts[0].as_text(), Some(text));
            }
        }
        Work::Classic => {
            assert_eq!(memmem::find_iter(message, text).count(), 2, "{}", String::from_utf8_lossy(message));
            if parse {
                let answer: Value = serde_json::from_slice(message).unwrap();
                let task = &answer["result"];
                assert_eq!((&task["kind"], &task["status"]["state"]), (&"task".into(), &"completed".into()));
            }
        }
        Work::List(state) => {
            let list: ListTasksResponse = read(protocol, message, "");
            assert!(!list.tasks.is_empty() && list.page_size == 50);
            assert!(usize::try_from(list.total_size).unwrap() >= list.tasks.len());
            let state = i32::try_from(state).unwrap();
            assert!(list.tasks.iter().all(|it| state == 0 || i32::from(it.state()) == state));
        }
        Work::ListContext => {
            let list: ListTasksResponse = read(protocol, message, "");
            assert!(list.tasks.len() == 50 && list.tasks.iter().all(|it| it.context_id == fill::SOME_CONTEXT));
        }
        Work::Fail => assert_eq!(task_of(protocol, message).state(), TaskState::Failed),
        _ => unreachable!("it streams"),
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

/// The task in the answer to a send or a get.
fn task_of(protocol: Protocol, message: &[u8]) -> Task {
    let sent = |message| match SendMessageResponse::decode(message).ok()?.payload? {
        send_message_response::Payload::Task(it) => Some(it),
        send_message_response::Payload::Message(_) => None,
    };
    if let Some(it) = Some(message).filter(|_| protocol == Protocol::Grpc).and_then(sent) {
        return it;
    }
    read(protocol, message, "task")
}

/// The task that a stream begins with.
fn first(protocol: Protocol, message: &[u8]) -> Task {
    let data = memmem::find(message, b"data: ").map_or(message, |at| &message[at + 6..]);
    if protocol == Protocol::Grpc {
        let Some(Payload::Task(task)) = StreamResponse::decode(data).unwrap().payload else { panic!("no task") };
        return task;
    }
    read(protocol, data, "task")
}

/// Begins the task that all others listen to, and says which it is. Its own stream is held, and read by nobody.
async fn begin(common: &Common) -> (oneshot::Sender<()>, String) {
    let mut connection = Connection::open(common.addr, common.protocol).await;
    connection.call(&Prepared::new(common.protocol, common.work, "")).await;
    let id = first(common.protocol, connection.message().await.unwrap()).id;
    let (hold, dropped) = oneshot::channel();
    tokio::spawn(async move {
        tokio::select! {
            _ = dropped => {}
            () = async { while connection.message().await.is_some() {} } => {}
        }
    });
    (hold, id)
}

/// Listens to a task: the first event, and then all that comes until it is done.
async fn listen(common: &Common, task: &str) -> Done {
    let Common { protocol, work, floor, .. } = *common;
    let mut connection = Connection::open(common.addr, protocol).await;
    let own = floor || work == Work::Own;
    let request = if own { Prepared::new(protocol, work, "") } else { Prepared::subscribe(protocol, task) };
    connection.call(&request).await;
    let message = connection.message().await.unwrap();
    assert!(floor || !first(protocol, message).id.is_empty());
    common.ready.wait().await;
    common.go.wait().await;
    let before = Instant::now();
    let bytes = if matches!(work, Work::Fan(_)) { follow(common, &mut connection).await } else { 0 };
    Done { times: vec![(0, before.elapsed())], bytes }
}
