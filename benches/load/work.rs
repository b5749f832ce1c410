//! Work of the load generator: its encoding in process arguments, and its requests.

use std::{fmt, str::FromStr};

use crate::{
    fill::SOME_CONTEXT,
    servers::{CHUNK, LONG},
};
use a2a_service::pb::v1::{GetTaskRequest, ListTasksRequest, Message, SendMessageRequest, SubscribeToTaskRequest};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Rest,
    JsonRpc,
    Grpc,
}

/// Kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Send of a text of this many bytes.
    Send(usize),
    /// Send of 64 bytes in protocol 0.3 over JSON-RPC.
    V03Send,
    /// Get of an existing task.
    Get,
    /// Stream of this many chunks, each in a poll of its own.
    Stream(usize),
    /// Stream of this many chunks, coalesced within `Limits::commit_interval`.
    Paced(usize),
    /// This many chunks in one poll, each too long to be coalesced.
    Burst(usize),
    /// Events of one task for all connections.
    Fan(usize),
    /// Subscriptions to one task without further events.
    Idle,
    /// Subscriptions to separate tasks without further events.
    Own,
    /// Page of fifty tasks, of all or of those in the state of this number.
    List(usize),
    /// Page of fifty tasks of a context.
    ListContext,
    /// Replay of this many events of a terminal task, except the first.
    Replay(usize),
    /// Send that fails.
    Fail,
}

/// Encoded request that is sent repeatedly, with a number in its text.
pub(crate) struct Prepared {
    pub(crate) bytes: Vec<u8>,
    /// gRPC method.
    pub(crate) method: &'static str,
    /// Offset of the number.
    number: Option<usize>,
    /// Text that the reply must contain.
    pub(crate) text: String,
}

/// Text of 64 bytes that contains a number.
pub(crate) const PING: &str = "ping 00000000 opqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijkl";
const DIGITS: std::ops::Range<usize> = 5..13;

impl Work {
    /// Number of updates of a call that the cost is divided by; updates may be coalesced.
    pub(crate) fn parts(self) -> u64 {
        match self {
            // Plus the task, WORKING and COMPLETED.
            Self::Stream(chunks) | Self::Paced(chunks) | Self::Burst(chunks) => chunks as u64 + 3,
            // The other events precede the start signal.
            Self::Fan(chunks) => chunks as u64 + 1,
            _ => 1,
        }
    }

    /// Number of occurrences of the chunk text in all events, however they are coalesced.
    pub(crate) fn chunks(self) -> usize {
        match self {
            Self::Stream(chunks) | Self::Paced(chunks) | Self::Fan(chunks) | Self::Replay(chunks) => chunks,
            Self::Burst(chunks) => chunks * LONG.len() / CHUNK.len(),
            _ => 0,
        }
    }

    pub(crate) fn streams(self) -> bool {
        use Work::{Burst, Fan, Idle, Own, Paced, Replay, Stream};
        matches!(self, Stream(_) | Paced(_) | Burst(_) | Fan(_) | Idle | Own | Replay(_))
    }

    fn text(self) -> String {
        match self {
            Self::Send(bytes) if bytes > PING.len() => format!("{PING}{}", "x".repeat(bytes - PING.len())),
            Self::Stream(chunks) | Self::Paced(chunks) | Self::Replay(chunks) => chunks.to_string(),
            Self::Burst(chunks) => format!("!{chunks}"),
            Self::Fan(chunks) => format!("~{chunks}"),
            Self::Idle | Self::Own => "?".to_owned(),
            Self::Fail => "fail".to_owned(),
            Self::Send(_) | Self::V03Send | Self::Get | Self::List(_) | Self::ListContext => PING.to_owned(),
        }
    }
}

impl Prepared {
    /// Request of this work. `task` is the task that it concerns, if any.
    pub(crate) fn new(protocol: Protocol, work: Work, task: &str) -> Self {
        match work {
            Work::Get => Self::get(protocol, task),
            Work::V03Send => Self::v03_send(),
            Work::List(state) => Self::list(protocol, state),
            Work::ListContext => Self::plain(head("GET", &format!("/tasks?pageSize=50&contextId={SOME_CONTEXT}"))),
            _ => Self::send(protocol, &work.text(), work.streams()),
        }
    }

    pub(crate) fn send(protocol: Protocol, text: &str, streams: bool) -> Self {
        let (bytes, method) = if protocol == Protocol::Grpc {
            let message_id = "b0000000-0000-4000-8000-000000000000".to_owned();
            let message = Some(Message { message_id, ..Message::user(text) });
            let request = SendMessageRequest { message, ..SendMessageRequest::default() };
            (framed(&request), if streams { "SendStreamingMessage" } else { "SendMessage" })
        } else {
            let message = format!(
                r#"{{"message":{{"messageId":"b0000000-0000-4000-8000-000000000000","role":"ROLE_USER","parts":[{{"text":"{text}"}}]}}}}"#
            );
            let (path, method) =
                if streams { ("/message:stream", "SendStreamingMessage") } else { ("/message:send", "SendMessage") };
            let bytes = if protocol == Protocol::Rest { post(path, &message) } else { call(method, &message) };
            (bytes, "")
        };
        Self::numbered(bytes, method, text)
    }

    /// Subscription after this cursor.
    pub(crate) fn replay(task: &str, cursor: &str) -> Self {
        let head =
            format!("GET /tasks/{task}:subscribe HTTP/1.1\r\nhost: localhost\r\nlast-event-id: {cursor}\r\n\r\n");
        Self::plain(head.into_bytes())
    }

    fn plain(bytes: Vec<u8>) -> Self {
        Self { bytes, method: "", number: None, text: String::new() }
    }

    fn v03_send() -> Self {
        let message = format!(
            r#"{{"message":{{"kind":"message","messageId":"b0000000-0000-4000-8000-000000000000","role":"user","parts":[{{"kind":"text","text":"{PING}"}}]}}}}"#
        );
        Self::numbered(call("message/send", &message), "", PING)
    }

    fn numbered(bytes: Vec<u8>, method: &'static str, text: &str) -> Self {
        let number = memchr::memmem::find(&bytes, &PING.as_bytes()[..DIGITS.end]).map(|at| at + DIGITS.start);
        Self { bytes, method, number, text: text.to_owned() }
    }

    fn get(protocol: Protocol, task: &str) -> Self {
        let bytes = match protocol {
            Protocol::Rest => head("GET", &format!("/tasks/{task}")),
            Protocol::JsonRpc => call("GetTask", &format!(r#"{{"id":"{task}"}}"#)),
            Protocol::Grpc => framed(&GetTaskRequest { id: task.to_owned(), ..GetTaskRequest::default() }),
        };
        Self { bytes, method: "GetTask", number: None, text: PING.to_owned() }
    }

    fn list(protocol: Protocol, state: usize) -> Self {
        let bytes = match protocol {
            Protocol::Rest => head("GET", &format!("/tasks?pageSize=50&status={state}")),
            Protocol::JsonRpc => call("ListTasks", &format!(r#"{{"pageSize":50,"status":{state}}}"#)),
            Protocol::Grpc => framed(&ListTasksRequest {
                page_size: Some(50),
                status: i32::try_from(state).unwrap(),
                ..ListTasksRequest::default()
            }),
        };
        Self { bytes, method: "ListTasks", number: None, text: String::new() }
    }

    pub(crate) fn subscribe(protocol: Protocol, task: &str) -> Self {
        let bytes = match protocol {
            Protocol::Rest => head("GET", &format!("/tasks/{task}:subscribe")),
            Protocol::JsonRpc => call("SubscribeToTask", &format!(r#"{{"id":"{task}"}}"#)),
            Protocol::Grpc => framed(&SubscribeToTaskRequest { id: task.to_owned(), tenant: String::new() }),
        };
        Self { bytes, method: "SubscribeToTask", number: None, text: String::new() }
    }

    /// Sets the number in the text, so that each reply can be matched to its call.
    pub(crate) fn number(&mut self, number: u64) {
        let Some(at) = self.number else { return };
        let mut rest = number;
        for n in (0..DIGITS.len()).rev() {
            self.bytes[at + n] = b'0' + u8::try_from(rest % 10).unwrap();
            rest /= 10;
        }
        let digits = std::str::from_utf8(&self.bytes[at..at + DIGITS.len()]).unwrap();
        self.text.replace_range(DIGITS, digits);
    }
}

fn framed(message: &impl prost::Message) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend_from_slice(&u32::try_from(message.encoded_len()).unwrap().to_be_bytes());
    message.encode(&mut bytes).unwrap();
    bytes
}

fn head(method: &str, path: &str) -> Vec<u8> {
    format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").into_bytes()
}

fn post(path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

fn call(method: &str, params: &str) -> Vec<u8> {
    post("/rpc", &format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#))
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rest => "REST",
            Self::JsonRpc => "JSON-RPC",
            Self::Grpc => "gRPC",
        })
    }
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Rest, Self::JsonRpc, Self::Grpc]
            .into_iter()
            .find(|protocol| protocol.to_string() == text)
            .ok_or(text.to_owned())
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send(bytes) => write!(f, "send:{bytes}"),
            Self::V03Send => f.write_str("v03-send:0"),
            Self::Get => f.write_str("get:0"),
            Self::Stream(chunks) => write!(f, "stream:{chunks}"),
            Self::Paced(chunks) => write!(f, "paced:{chunks}"),
            Self::Burst(chunks) => write!(f, "burst:{chunks}"),
            Self::Fan(events) => write!(f, "fan:{events}"),
            Self::Idle => f.write_str("idle:0"),
            Self::Own => f.write_str("own:0"),
            Self::List(state) => write!(f, "list:{state}"),
            Self::ListContext => f.write_str("context:0"),
            Self::Replay(events) => write!(f, "replay:{events}"),
            Self::Fail => f.write_str("fail:0"),
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
            "v03-send" => Self::V03Send,
            "get" => Self::Get,
            "stream" => Self::Stream(number),
            "paced" => Self::Paced(number),
            "burst" => Self::Burst(number),
            "fan" => Self::Fan(number),
            "idle" => Self::Idle,
            "own" => Self::Own,
            "list" => Self::List(number),
            "context" => Self::ListContext,
            "replay" => Self::Replay(number),
            "fail" => Self::Fail,
            _ => return Err(text.to_owned()),
        })
    }
}
