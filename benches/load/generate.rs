//! The calls: a closed loop on so many connections, for so long or so often. Each answer is looked at.

use std::{env, fmt, net::SocketAddr, str::FromStr};

use a2a_service::{
    call::Call,
    client,
    pb::v1::{GetTaskRequest, Message, SendMessageRequest, send_message_response::Payload},
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    runtime::Builder,
    task::JoinSet,
    time::{Duration, Instant},
};
use tokio_stream::StreamExt as _;

/// How many calls were answered.
pub(crate) struct Calls {
    pub(crate) answered: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Rest,
    JsonRpc,
    Grpc,
}

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// A send of so many bytes of text.
    Send(usize),
    /// A task that there is.
    Get,
    /// A stream of so many chunks, as they come.
    Stream(usize),
    /// The same, all at once, and each too long to be joined with another.
    Burst(usize),
}

impl Work {
    /// How many parts of a call are counted: the events of a stream.
    pub(crate) fn parts(self) -> u64 {
        match self {
            Self::Send(_) | Self::Get => 1,
            // The task, that it works, and that it is done.
            Self::Stream(chunks) | Self::Burst(chunks) => chunks as u64 + 3,
        }
    }

    fn text(self) -> String {
        match self {
            Self::Send(bytes) => "x".repeat(bytes),
            Self::Get => "x".repeat(64),
            Self::Stream(chunks) => chunks.to_string(),
            Self::Burst(chunks) => format!("!{chunks}"),
        }
    }

    fn streams(self) -> bool {
        matches!(self, Self::Stream(_) | Self::Burst(_))
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rest => "rest",
            Self::JsonRpc => "json-rpc",
            Self::Grpc => "grpc",
        })
    }
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Rest, Self::JsonRpc, Self::Grpc].into_iter().find(|it| it.to_string() == text).ok_or(text.to_owned())
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send(it) => write!(f, "send:{it}"),
            Self::Get => f.write_str("get:0"),
            Self::Stream(it) => write!(f, "stream:{it}"),
            Self::Burst(it) => write!(f, "burst:{it}"),
        }
    }
}

impl FromStr for Work {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, number) = text.split_once(':').ok_or(text)?;
        let number = number.parse().map_err(|_| text)?;
        Ok(match name {
            "send" => Self::Send(number),
            "get" => Self::Get,
            "stream" => Self::Stream(number),
            "burst" => Self::Burst(number),
            _ => return Err(text.to_owned()),
        })
    }
}

/// When a connection stops calling.
#[derive(Clone, Copy)]
enum Until {
    Time(Instant),
    Count(u64),
}

/// Calls a server, and prints how many calls it has answered.
pub(crate) fn run(arguments: &[String]) {
    let [addr, protocol, work, connections] = arguments else { panic!("ADDR PROTOCOL WORK CONNECTIONS") };
    let (addr, protocol): (SocketAddr, Protocol) = (addr.parse().unwrap(), protocol.parse().unwrap());
    let (work, connections): (Work, usize) = (work.parse().unwrap(), connections.parse().unwrap());
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let answered = runtime.block_on(async {
        let until = match (env::var("MILLIS"), env::var("COUNT")) {
            (Ok(millis), _) => Until::Time(Instant::now() + Duration::from_millis(millis.parse().unwrap())),
            (_, Ok(count)) => Until::Count(count.parse::<u64>().unwrap() / connections as u64),
            _ => panic!("MILLIS or COUNT says when to stop"),
        };
        let mut all = JoinSet::new();
        for _ in 0..connections {
            match protocol {
                Protocol::Grpc => all.spawn(grpc(addr, work, until)),
                Protocol::Rest | Protocol::JsonRpc => all.spawn(http(addr, protocol, work, until)),
            };
        }
        all.join_all().await.into_iter().sum::<u64>()
    });
    println!("{answered}");
}

impl Until {
    fn is_over(self, done: u64) -> bool {
        match self {
            Self::Time(end) => Instant::now() >= end,
            Self::Count(count) => done >= count,
        }
    }
}

fn message(text: &str) -> String {
    format!(
        r#"{{"messageId":"b0000000-0000-4000-8000-000000000000","role":"ROLE_USER","parts":[{{"text":"{text}"}}]}}"#
    )
}

fn request(protocol: Protocol, work: Work, task: &str) -> String {
    let message = format!(r#"{{"message":{}}}"#, message(&work.text()));
    let (path, body) = match (protocol, work) {
        (Protocol::Rest, Work::Get) => return format!("GET /tasks/{task} HTTP/1.1\r\nhost: a\r\n\r\n"),
        (Protocol::Rest, _) if work.streams() => ("/message:stream", message),
        (Protocol::Rest, _) => ("/message:send", message),
        (_, Work::Get) => {
            ("/rpc", format!(r#"{{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{{"id":"{task}"}}}}"#))
        }
        (_, _) => {
            let method = if work.streams() { "SendStreamingMessage" } else { "SendMessage" };
            ("/rpc", format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{message}}}"#))
        }
    };
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

async fn http(addr: SocketAddr, protocol: Protocol, work: Work, until: Until) -> u64 {
    let socket = TcpStream::connect(addr).await.unwrap();
    socket.set_nodelay(true).unwrap();
    let mut socket = BufReader::with_capacity(256 << 10, socket);
    let mut task = String::new();
    let mut reply = Vec::new();
    if work == Work::Get {
        socket.write_all(request(protocol, Work::Send(64), "").as_bytes()).await.unwrap();
        answer(&mut socket, &mut reply).await;
        let reply = String::from_utf8(reply.clone()).unwrap();
        let at = reply.find(r#""task":{"id":""#).unwrap() + r#""task":{"id":""#.len();
        reply[at..at + 36].clone_into(&mut task);
    }
    let (request, mut done) = (request(protocol, work, &task), 0);
    while !until.is_over(done) {
        socket.write_all(request.as_bytes()).await.unwrap();
        answer(&mut socket, &mut reply).await;
        if work.streams() {
            let events = reply.windows(6).filter(|it| *it == b"\ndata:").count() as u64;
            assert_eq!(events, work.parts());
        } else {
            assert!(reply.windows(10).any(|it| it == b"_COMPLETED"), "{}", String::from_utf8_lossy(&reply));
        }
        done += 1;
    }
    done
}

/// Reads an answer: of a length, or in chunks.
async fn answer(socket: &mut BufReader<TcpStream>, body: &mut Vec<u8>) {
    let (mut line, mut length) = (String::new(), None);
    while line != "\r\n" {
        line.clear();
        socket.read_line(&mut line).await.unwrap();
        if let Some(it) = line.strip_prefix("content-length: ") {
            length = Some(it.trim().parse::<usize>().unwrap());
        }
    }
    body.clear();
    if let Some(length) = length {
        body.resize(length, 0);
        socket.read_exact(body).await.unwrap();
        return;
    }
    loop {
        line.clear();
        socket.read_line(&mut line).await.unwrap();
        let length = usize::from_str_radix(line.trim(), 16).unwrap();
        let from = body.len();
        body.resize(from + length + 2, 0);
        socket.read_exact(&mut body[from..]).await.unwrap();
        body.truncate(from + length);
        if length == 0 {
            return;
        }
    }
}

async fn grpc(addr: SocketAddr, work: Work, until: Until) -> u64 {
    let client = client::grpc(&format!("http://{addr}")).unwrap();
    let send = |text: String| {
        let message = Message { message_id: "b0000000-0000-4000-8000-000000000000".to_owned(), ..Message::user(text) };
        Call::default().request(SendMessageRequest { message: Some(message), ..SendMessageRequest::default() })
    };
    let mut id = String::new();
    if work == Work::Get {
        let reply = client.send_message(send("x".repeat(64))).await.unwrap().into_inner();
        let Some(Payload::Task(task)) = reply.payload else { panic!("no task") };
        id = task.id;
    }
    let mut done = 0;
    while !until.is_over(done) {
        match work {
            Work::Get => {
                let get = GetTaskRequest { id: id.clone(), ..GetTaskRequest::default() };
                client.get_task(Call::default().request(get)).await.unwrap();
            }
            Work::Send(_) => {
                let reply = client.send_message(send(work.text())).await.unwrap().into_inner();
                assert!(matches!(reply.payload, Some(Payload::Task(it)) if it.artifacts.len() == 1));
            }
            Work::Stream(_) | Work::Burst(_) => {
                let events = client.send_streaming_message(send(work.text())).await.unwrap().into_inner();
                let count = events.fold(0, |count, it| it.map(|_| count + 1).unwrap()).await;
                assert_eq!(count, work.parts());
            }
        }
        done += 1;
    }
    done
}
