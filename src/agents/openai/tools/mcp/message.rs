//! Messages of a server in JSON. A `result` or an `error` that is `null` counts as absent beside the other one. A tool, or a content of
//! the result of a call, that `rmcp` does not read is left out, so that the others remain.

use rmcp::model::{
    ContentBlock, CustomResult, ErrorData, JsonRpcError, JsonRpcResponse, JsonRpcVersion2_0, RequestId,
    ServerJsonRpcMessage, ServerResult, Tool,
};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Value, json};

use crate::{
    base::{stderr::escaped, surrogates::repaired},
    protocol::rpc::brief,
};

/// Response whose `result` or `error` is null, which `rmcp` does not read.
#[derive(Deserialize)]
struct Response {
    jsonrpc: JsonRpcVersion2_0,
    id: Option<RequestId>,
    result: Option<ServerResult>,
    error: Option<ErrorData>,
    method: Option<IgnoredAny>,
}

/// Decodes a message. Lone surrogates are replaced.
pub(super) fn parse(text: &[u8]) -> serde_json::Result<ServerJsonRpcMessage> {
    let parse = |text: &[u8]| serde_json::from_slice(text).or_else(|why| without_null(text).ok_or(why));
    let mut message = parse(text).or_else(|why| repaired(text).map_or(Err(why), |text| parse(&text)))?;
    if let ServerJsonRpcMessage::Response(JsonRpcResponse { result, .. }) = &mut message
        && let ServerResult::CustomResult(CustomResult(json)) = &mut *result
        && leave_out_unreadable(json)
        && let Ok(read) = ServerResult::deserialize(&*json)
    {
        *result = read;
    }
    Ok(message)
}

/// Returns the text of an event as `rmcp` reads it.
pub(super) fn readable(text: String) -> String {
    parse(text.as_bytes()).ok().and_then(|message| serde_json::to_string(&message).ok()).unwrap_or(text)
}

/// Removes from a list of tools, or from the result of a call, what keeps `rmcp` from reading it. Returns false for another result.
fn leave_out_unreadable(result: &mut Value) -> bool {
    let Some(members) = result.as_object_mut() else { return false };
    if let Some(cursor @ Value::Number(_)) = members.get_mut("nextCursor") {
        *cursor = cursor.to_string().into();
    }
    let name = if members.contains_key("tools") { "tools" } else { "content" };
    match (name, members.get_mut(name)) {
        ("tools", Some(Value::Array(tools))) => tools.retain(|tool| {
            let why = Tool::deserialize(tool).err();
            if let Some(why) = &why {
                let name = escaped(&brief(&tool["name"].to_string()));
                tracing::warn!("tool {name} of an MCP server ignored: {}", escaped(&brief(&why.to_string())));
            }
            why.is_none()
        }),
        ("tools", Some(tools @ Value::Null)) => *tools = json!([]),
        // A content in place of a list of them.
        (_, Some(content @ (Value::String(_) | Value::Object(_)))) => {
            *content =
                if content.is_object() { json!([content]) } else { json!([{ "type": "text", "text": content }]) };
        }
        (_, Some(Value::Array(blocks))) => {
            for block in blocks.iter_mut().filter(|block| ContentBlock::deserialize(&**block).is_err()) {
                let kind = brief(&block["type"].to_string());
                *block = json!({ "type": "text", "text": format!("[a content of type {kind} can't be shown]") });
            }
        }
        _ => return false,
    }
    true
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
