//! Messages of a server over stdio: lines of limited size, also of their decoded size. A broken message fails the calls that wait for
//! their response. Other lines are output for the log.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
};

use bytes::{Bytes, BytesMut};
use futures_util::stream::{BoxStream, unfold};
use parking_lot::Mutex;
use rmcp::{
    RoleClient,
    model::{ErrorData, JsonRpcError, RequestId, ServerJsonRpcMessage},
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::async_rw::JsonRpcMessageCodec,
};
use serde_json::Value;
use tokio::{
    io::{AsyncRead, BufReader},
    process::ChildStdin,
};
use tokio_util::codec::{self, FramedWrite};

use super::message;
use crate::{
    agents::turn_json::{Line, LogLimit, MAX_LOG_LINE, quoted, read_line},
    base::{
        decoding::{self, BYTE_ORDER_MARK},
        redaction::Secrets,
        stderr::escaped,
    },
    protocol::json::check_json,
};

/// Maximum size of a message in bytes.
const MAX_MESSAGE: usize = 16 << 20;

/// Maximum number of requests that may get the error of a broken message.
const MAX_PENDING: usize = 1024;

/// Message of a server.
type Received = RxJsonRpcMessage<RoleClient>;

/// Ids of the requests that have no response yet.
type Pending = Arc<Mutex<HashSet<RequestId>>>;

/// Line of a server.
#[derive(Debug)]
enum Parsed {
    Message(Box<Received>),
    /// Message that can't be read, or a part of one.
    Broken,
    /// Log line, or a notification of another protocol.
    Output,
    Blank,
}

/// Message to a server.
type Sent = TxJsonRpcMessage<RoleClient>;

/// Encoder of messages that keeps the ids of requests.
pub(super) struct Encoder {
    codec: JsonRpcMessageCodec<Sent>,
    pending: Pending,
}

impl codec::Encoder<Sent> for Encoder {
    type Error = <JsonRpcMessageCodec<Sent> as codec::Encoder<Sent>>::Error;

    fn encode(&mut self, message: Sent, buffer: &mut BytesMut) -> Result<(), Self::Error> {
        if let Sent::Request(request) = &message {
            let mut pending = self.pending.lock();
            // Requests that were given up.
            if pending.len() == MAX_PENDING {
                pending.clear();
            }
            pending.insert(request.id.clone());
        }
        self.codec.encode(message, buffer)
    }
}

/// Returns the transport of a command. It ends with the output, and at a message that is too large.
pub(super) fn transport(
    server: &str,
    stdout: impl AsyncRead + Send + Unpin + 'static,
    stdin: ChildStdin,
    secrets: Arc<Secrets>,
) -> (FramedWrite<ChildStdin, Encoder>, BoxStream<'static, Received>) {
    let pending = Pending::default();
    let (name, waiting) = (server.to_owned(), Arc::clone(&pending));
    let state = (BufReader::new(stdout), LogLimit::default(), VecDeque::new());
    let messages = unfold(state, move |(mut stdout, mut limit, mut failures)| {
        let (name, waiting, secrets) = (name.clone(), Arc::clone(&waiting), Arc::clone(&secrets));
        async move {
            loop {
                if let Some(failure) = failures.pop_front() {
                    return Some((failure, (stdout, limit, failures)));
                }
                let line = match read_line(&mut stdout, MAX_MESSAGE).await.ok()?? {
                    Line::Whole(line) => line,
                    Line::Cut(_) => {
                        tracing::warn!(mcp.server = name, "MCP server ended: a message exceeds {MAX_MESSAGE} bytes");
                        return None;
                    }
                };
                let line = Bytes::from(line);
                let encoded = line.clone();
                match decoding::decode(line.len(), move || parse(&encoded)).await {
                    Ok(Parsed::Message(message)) => {
                        if let Received::Response(response) = &*message {
                            waiting.lock().remove(&response.id);
                        } else if let Received::Error(JsonRpcError { id: Some(id), .. }) = &*message {
                            waiting.lock().remove(id);
                        }
                        return Some((*message, (stdout, limit, failures)));
                    }
                    Ok(Parsed::Broken) => {
                        let why =
                            secrets.redact(&format!("the server sent a broken message: {}", escaped(&quoted(&line))));
                        tracing::warn!(mcp.server = name, "{why}");
                        let failed = |id| JsonRpcError::new(Some(id), ErrorData::internal_error(why.clone(), None));
                        failures.extend(waiting.lock().drain().map(failed).map(ServerJsonRpcMessage::Error));
                    }
                    Ok(Parsed::Output) => {
                        let log = |line: &str| tracing::info!(mcp.server = name, "MCP server: {}", escaped(line));
                        let warn = |why: String| tracing::warn!(mcp.server = name, "{why}");
                        let text = String::from_utf8_lossy(line.get(..MAX_LOG_LINE).unwrap_or(&line));
                        limit.log(&secrets.redact(&text), log, warn);
                    }
                    Ok(Parsed::Blank) => {}
                    Err(why) => {
                        tracing::warn!(mcp.server = name, "MCP server ended: a message {why}");
                        return None;
                    }
                }
            }
        }
    });
    let encoder = Encoder { codec: JsonRpcMessageCodec::default(), pending };
    (FramedWrite::new(stdin, encoder), Box::pin(messages))
}

/// Decodes a line.
///
/// # Errors
/// The decoded message would be too large.
fn parse(line: &[u8]) -> Result<Parsed, String> {
    let line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line).trim_ascii();
    if line.is_empty() {
        return Ok(Parsed::Blank);
    }
    check_json(line).map_err(|error| error.to_string())?;
    if let Ok(message) = message::parse(line) {
        return Ok(Parsed::Message(Box::new(message)));
    }
    let is_broken = match serde_json::from_slice::<Value>(line) {
        Ok(json) => {
            let has = |name| json.get(name).is_some();
            !has("method") && (has("jsonrpc") || (has("id") && (has("result") || has("error"))))
        }
        Err(_) => String::from_utf8_lossy(line).contains("\"jsonrpc\""),
    };
    Ok(if is_broken { Parsed::Broken } else { Parsed::Output })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoded_size_of_a_message_is_limited() {
        let result = |content: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"content":[{content}]}}}}"#);
        assert!(matches!(parse(result(r#"{"type":"text","text":"5"}"#).as_bytes()), Ok(Parsed::Message(_))));
        let numbers = vec!["0"; 300_000].join(",");
        let why = parse(result(&format!(r#"{{"type":"text","text":"","_meta":{{"n":[{numbers}]}}}}"#)).as_bytes());
        assert!(why.unwrap_err().contains("decoded_bytes"));
    }

    #[test]
    fn lines_are_messages_broken_ones_or_output() {
        for (line, expected) in [
            ("\u{feff}{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\r\n", "message"),
            (r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"x\ud83d"}]}}"#, "message"),
            (r#"{"jsonrpc":"2.0","method":"notifications/other","params":{"a":1}}"#, "message"),
            (r#"{"jsonrpc":"2.0","id":1,"result":{}"#, "broken"),
            (r#"{"jsonrpc":"2.0","id":1,"result":{}}{"jsonrpc":"2.0","id":2,"result":{}}"#, "broken"),
            (r#"{"jsonrpc":"2.0","id":1,"id":2,"result":{}}"#, "broken"),
            (r#"{"jsonrpc":"2.0","id":1,"error":"boom"}"#, "broken"),
            (r#"{"id":1,"result":{}}"#, "broken"),
            (r#" "jsonrpc": "2.0","#, "broken"),
            ("Listening", "output"),
            (r#"{"level":"info"}"#, "output"),
            ("{'level': 'info'}", "output"),
            ("[1]", "output"),
            ("\u{feff} \r\n", "blank"),
        ] {
            let found = match parse(line.as_bytes()).unwrap() {
                Parsed::Message(_) => "message",
                Parsed::Broken => "broken",
                Parsed::Output => "output",
                Parsed::Blank => "blank",
            };
            assert_eq!(found, expected, "{line}");
        }
        assert!(matches!(parse(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"x\":\"\xff\"}}"), Ok(Parsed::Broken)));
    }
}
