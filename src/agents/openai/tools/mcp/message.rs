//! Messages of a server in JSON. A `result` or an `error` that is `null` counts as absent beside the other one.

use rmcp::model::{
    ErrorData, JsonRpcError, JsonRpcResponse, JsonRpcVersion2_0, RequestId, ServerJsonRpcMessage, ServerResult,
};
use serde::{Deserialize, de::IgnoredAny};

/// Response whose `result` or `error` is null, which `rmcp` does not read.
#[derive(Deserialize)]
struct Response {
    jsonrpc: JsonRpcVersion2_0,
    id: Option<RequestId>,
    result: Option<ServerResult>,
    error: Option<ErrorData>,
    method: Option<IgnoredAny>,
}

/// Decodes a message.
pub(super) fn parse(text: &[u8]) -> serde_json::Result<ServerJsonRpcMessage> {
    serde_json::from_slice(text).or_else(|why| without_null(text).ok_or(why))
}

/// Returns the text of an event as `rmcp` reads it.
pub(super) fn readable(text: String) -> String {
    if !text.contains("null") || serde_json::from_str::<ServerJsonRpcMessage>(&text).is_ok() {
        return text;
    }
    without_null(text.as_bytes()).and_then(|message| serde_json::to_string(&message).ok()).unwrap_or(text)
}

fn without_null(text: &[u8]) -> Option<ServerJsonRpcMessage> {
    match serde_json::from_slice(text).ok()? {
        Response { jsonrpc, id: Some(id), result: Some(result), error: None, method: None } => {
            Some(ServerJsonRpcMessage::Response(JsonRpcResponse { jsonrpc, id, result }))
        }
        Response { id, result: None, error: Some(error), method: None, .. } => {
            Some(ServerJsonRpcMessage::Error(JsonRpcError::new(id, error)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_beside_a_result_or_an_error_counts_as_absent() {
        for (members, expected) in [
            (r#""id":1,"error":null,"result":{}"#, Some(r#""id":1,"result":{}"#)),
            (
                r#""id":1,"result":null,"error":{"code":1,"message":"m"}"#,
                Some(r#""id":1,"error":{"code":1,"message":"m"}"#),
            ),
            (r#""id":1,"result":{},"error":{"code":1,"message":"m"}"#, None),
            (r#""id":1,"error":null,"result":{},"result":{}"#, None),
            (r#""id":1,"method":"ping","error":null,"result":{}"#, None),
        ] {
            let [text, expected] = [Some(members), expected]
                .map(|members| members.map(|members| format!(r#"{{"jsonrpc":"2.0",{members}}}"#)));
            let text = text.unwrap();
            let parsed = parse(text.as_bytes()).ok().map(|message| serde_json::to_string(&message).unwrap());
            assert_eq!(parsed, expected, "{text}");
            assert_eq!(readable(text.clone()), expected.unwrap_or(text));
        }
    }
}
