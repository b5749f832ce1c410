//! Messages of a server over stdio: lines of limited size, also of their decoded size.

use futures_util::stream::{BoxStream, unfold};
use rmcp::{
    RoleClient,
    service::RxJsonRpcMessage,
    transport::async_rw::{JsonRpcMessageCodec, TransportWriter},
};
use tokio::{
    io::{AsyncRead, BufReader},
    process::ChildStdin,
};
use tokio_util::codec::FramedWrite;

use super::message;
use crate::{
    agents::turn_json::{Line, read_line},
    base::decoding,
    protocol::json::check_json,
};

/// Maximum size of a message in bytes.
const MAX_MESSAGE: usize = 16 << 20;

/// Message of a server.
type Received = RxJsonRpcMessage<RoleClient>;

/// Returns the transport of a command. It ends with the output, and at a message that is too large.
pub(super) fn transport(
    server: &str,
    stdout: impl AsyncRead + Send + Unpin + 'static,
    stdin: ChildStdin,
) -> (TransportWriter<RoleClient, ChildStdin>, BoxStream<'static, Received>) {
    let output = (BufReader::new(stdout), server.to_owned());
    let messages = unfold(output, async |(mut stdout, server)| {
        loop {
            let line = match read_line(&mut stdout, MAX_MESSAGE).await.ok()?? {
                Line::Whole(line) => line,
                Line::Cut(_) => {
                    tracing::warn!(mcp.server = server, "MCP server ended: a message exceeds {MAX_MESSAGE} bytes");
                    return None;
                }
            };
            match decoding::decode(line.len(), move || parse(&line)).await {
                Ok(Some(message)) => return Some((message, (stdout, server))),
                // A log line, or a notification of another protocol.
                Ok(None) => {}
                Err(why) => {
                    tracing::warn!(mcp.server = server, "MCP server ended: a message {why}");
                    return None;
                }
            }
        }
    });
    (FramedWrite::new(stdin, JsonRpcMessageCodec::default()), Box::pin(messages))
}

/// Decodes a message. `None` if it is none.
fn parse(line: &[u8]) -> Result<Option<Received>, String> {
    check_json(line).map_err(|error| error.to_string())?;
    Ok(message::parse(line).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoded_size_of_a_message_is_limited() {
        let result = |content: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"content":[{content}]}}}}"#);
        assert!(parse(result(r#"{"type":"text","text":"5"}"#).as_bytes()).unwrap().is_some());
        assert!(parse(b"Listening").unwrap().is_none());
        let numbers = vec!["0"; 300_000].join(",");
        let why = parse(result(&format!(r#"{{"type":"text","text":"","_meta":{{"n":[{numbers}]}}}}"#)).as_bytes());
        assert!(why.unwrap_err().contains("decoded_bytes"));
    }
}
