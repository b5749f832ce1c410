//! What is called, and how: the words between the processes of a bench, and the requests they stand for.

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

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// A send of so many bytes of text.
    Send(usize),
    /// A send of 64 bytes in protocol 0.3, which has a form of its own in JSON-RPC.
    Classic,
    /// A task that there is.
    Get,
    /// A stream of so many chunks, each in a poll of its own.
    Stream(usize),
    /// The same, of a server that writes together what comes within its pace.
    Paced(usize),
    /// All at once, and each too long to be joined with another.
    Burst(usize),
    /// So many events of one task, for all connections at once.
    Fan(usize),
    /// Subscriptions to one task, of which nothing comes after the first event.
    Idle,
    /// The same, of a task each.
    Own,
    /// A page of fifty of all tasks, or of those in a state of this number.
    List(usize),
    /// A page of fifty of a context.
    ListContext,
    /// So many events of a task that has ended, all but the first.
    Replay(usize),
    /// A send that fails.
    Fail,
}

/// A request that is sent again and again, of which a number may change.
pub(crate) struct Prepared {
    pub(crate) bytes: Vec<u8>,
    /// Of gRPC.
    pub(crate) method: &'static str,
    /// Where the number is.
    number: Option<usize>,
    /// The text that comes back.
    pub(crate) text: String,
}

/// What is sent where a text is short: sixty-four bytes, and a number among them.
pub(crate) const PING: &str = "ping 00000000 opqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijkl";
const DIGITS: std::ops::Range<usize> = 5..13;

impl Work {
    /// How many parts of a call are counted: what is said in a stream, each an event or joined to one.
    pub(crate) fn parts(self) -> u64 {
        match self {
            // The task, that it works, and that it is done.
            Self::Stream(chunks) | Self::Paced(chunks) | Self::Burst(chunks) => chunks as u64 + 3,
            // The rest had come before.
            Self::Fan(chunks) => chunks as u64 + 1,
            _ => 1,
        }
    }

    /// How often the text of a chunk is in all events: they may have been joined.
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
            Self::Send(_) | Self::Classic | Self::Get | Self::List(_) | Self::ListContext => PING.to_owned(),
        }
    }
}

impl Prepared {
    /// What this work sends again and again; `task` is what it is about, where it is about one.
    pub(crate) fn new(protocol: Protocol, work: Work, task: &str) -> Self {
        match work {
            Work::Get => Self::get(protocol, task),
            Work::Classic => Self::classic(),
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

    /// What followed after this cursor.
    pub(crate) fn replay(task: &str, cursor: &str) -> Self {
        let head = format!("GET /tasks/{task}:subscribe HTTP/1.1\r\nhost: a\r\nlast-event-id: {cursor}\r\n\r\n");
        Self::plain(head.into_bytes())
    }

    fn plain(bytes: Vec<u8>) -> Self {
        Self { bytes, method: "", number: None, text: String::new() }
    }

    fn classic() -> Self {
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

    /// Another number in its text, so that no answer can be that to another call.
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
    format!("{method} {path} HTTP/1.1\r\nhost: a\r\n\r\n").into_bytes()
}

fn post(path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
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
        [Self::Rest, Self::JsonRpc, Self::Grpc].into_iter().find(|it| it.to_string() == text).ok_or(text.to_owned())
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send(it) => write!(f, "send:{it}"),
            Self::Classic => f.write_str("classic:0"),
            Self::Get => f.write_str("get:0"),
            Self::Stream(it) => write!(f, "stream:{it}"),
            Self::Paced(it) => write!(f, "paced:{it}"),
            Self::Burst(it) => write!(f, "burst:{it}"),
            Self::Fan(it) => write!(f, "fan:{it}"),
            Self::Idle => f.write_str("idle:0"),
            Self::Own => f.write_str("own:0"),
            Self::List(it) => write!(f, "list:{it}"),
            Self::ListContext => f.write_str("context:0"),
            Self::Replay(it) => write!(f, "replay:{it}"),
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
            "classic" => Self::Classic,
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
