use std::sync::LazyLock;

use futures_util::{FutureExt as _, stream};
use proptest::{prelude::*, sample::Index};
use serde_json::json;

use super::{
    chunk::{CallPiece, Members},
    *,
};
use crate::{agents::endpoint::client_builder, protocol::pb::v1::Message};

/// Names of the tools of the model.
const TOOLS: [&str; 3] = ["echo", "now", "get_weather"];

static MODEL: LazyLock<Endpoint> = LazyLock::new(|| Endpoint {
    client: client_builder().build().unwrap(),
    url: "http://127.0.0.1:1/".parse().unwrap(),
    key: None,
    dependency: Dependency::new("model", "model"),
    span_name: "chat m".into(),
    idle_timeout: Duration::from_mins(1),
    output_bytes: 1 << 24,
});

/// Receives a response whose body has these chunks. Returns its text, and the rest.
fn receive(chunks: Vec<Bytes>) -> Result<(String, Completion), Error> {
    let events: Events = SseReader::new(Box::pin(stream::iter(chunks.into_iter().map(Ok))), 1 << 24);
    let content = Content::Events(events.accept_unterminated());
    let (tools, received) = (TOOLS.to_vec(), Received::default());
    let mut stream = CompletionStream { endpoint: &MODEL, call: None, answer: None, content, tools, received };
    let received = async {
        let mut text = String::new();
        while let Some(piece) = stream.next().await? {
            text += &piece;
        }
        let completion = stream.into_completion(&text)?;
        Ok((text, completion))
    };
    // All chunks are there.
    received.now_or_never().unwrap()
}

/// Describes a response: its text, its calls, and the reason for its end, or else the error.
fn outcome(chunks: Vec<Bytes>) -> String {
    match receive(chunks) {
        Ok((text, completion)) => {
            let calls: Vec<_> =
                completion.calls.iter().map(|call| format!("{}:{}{}", call.id, call.name, call.arguments)).collect();
            let finish = completion.finish.map_or_else(|| "none".to_owned(), |finish| format!("{finish:?}"));
            format!("{text}{} | {} | {finish}", completion.refusal, calls.join(" "))
        }
        Err(error) => error.message().map(Message::text).unwrap_or_default(),
    }
}

/// Writes a stream of events. `+` begins a delta, `=` a reason for the end, and `{` or `[` other data; anything else is lines of an
/// event.
fn body(events: &[&str]) -> String {
    let event = |event: &&str| {
        let (kind, rest) = event.split_at(usize::from(!event.is_empty()));
        match kind {
            "+" => format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{rest}}}]}}\n\n"),
            "=" => format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{}},\"finish_reason\":{rest}}}]}}\n\n"),
            "{" | "[" => format!("data: {event}\n\n"),
            _ => format!("{event}\n\n"),
        }
    };
    events.iter().map(event).collect()
}

const INTERRUPTED: &str = "The response of the model endpoint was interrupted.";
const INVALID: &str = "The response of the model endpoint is invalid.";
const REPORTED: &str = "The model endpoint reported an error.";

/// Variants of streams, with the outcome of each.
const VARIANTS: &[(&str, &[&str], &str)] = &[
    ("text", &[r#"+{"content":"h"}"#, r#"+{"content":"i"}"#, r#"="stop""#, "[DONE]"], "hi |  | Stop"),
    ("empty texts", &[r#"+{"role":"assistant","content":""}"#, r#"+{"content":"hi"}"#, r#"="stop""#], "hi |  | Stop"),
    (
        "null members",
        &[
            r#"{"choices":[{"index":null,"delta":{"content":"hi","tool_calls":null,"refusal":null},"finish_reason":null}],
data: "usage":null,"error":null}"#,
            r#"{"choices":[{"delta":null,"finish_reason":"stop"}]}"#,
        ],
        "hi |  | Stop",
    ),
    (
        "unknown members",
        &[r#"{"id":1,"x":{"y":[1e999]},"choices":[{"delta":{"content":"hi"},"z":2}]}"#, r#"="stop""#],
        "hi |  | Stop",
    ),
    (
        "index as text",
        &[r#"{"choices":[{"index":"0","delta":{"content":"hi"},"finish_reason":"stop"}]}"#],
        "hi |  | Stop",
    ),
    (
        "index as a float",
        &[r#"{"choices":[{"index":0.0,"delta":{"content":"hi"},"finish_reason":"stop"}]}"#],
        "hi |  | Stop",
    ),
    (
        "other answers",
        &[r#"{"choices":[{"index":1,"delta":{"content":"no"}},{"delta":{"content":"hi"},"finish_reason":"stop"}]}"#],
        "hi |  | Stop",
    ),
    (
        "message in place of a delta",
        &[r#"{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}"#],
        "hi |  | Stop",
    ),
    (
        "messages with all that came before",
        &[
            r#"{"choices":[{"message":{"content":"Hel"}}]}"#,
            r#"{"choices":[{"message":{"content":"Hello"}}]}"#,
            r#"{"choices":[{"message":{"content":"Hello"},"finish_reason":"stop"}]}"#,
        ],
        "Hello |  | Stop",
    ),
    (
        "messages after a role, with all that came before",
        &[
            r#"+{"role":"assistant"}"#,
            r#"{"choices":[{"message":{"content":"Hel","refusal":"No"}}]}"#,
            r#"{"choices":[{"message":{"content":"Hello","refusal":"No."},"finish_reason":"stop"}]}"#,
        ],
        "HelloNo. |  | Stop",
    ),
    (
        "pieces that begin alike as messages",
        &[
            r#"{"choices":[{"message":{"content":"ha"}}]}"#,
            r#"{"choices":[{"message":{"content":", "}}]}"#,
            r#"{"choices":[{"message":{"content":"ha, ha"},"finish_reason":"stop"}]}"#,
        ],
        "ha, ha, ha |  | Stop",
    ),
    (
        "call in the form before there were several",
        &[
            r#"+{"function_call":{"name":"echo","arguments":""}}"#,
            r#"+{"function_call":{"arguments":"{\"a\":"}}"#,
            r#"+{"function_call":{"arguments":"1}"}}"#,
            r#"="function_call""#,
        ],
        r#" | call_0:echo{"a":1} | Calls"#,
    ),
    (
        "call in both forms",
        &[
            r#"{"choices":[{"message":{"tool_calls":[{"id":"a","function":{"name":"now"}}],"function_call":{"name":"now"}},
data: "finish_reason":"stop"}]}"#,
        ],
        " | a:now | Stop",
    ),
    (
        "pieces as messages",
        &[
            r#"{"choices":[{"message":{"content":"h"}}]}"#,
            r#"{"choices":[{"message":{"content":"i"},"finish_reason":"stop"}]}"#,
        ],
        "hi |  | Stop",
    ),
    (
        "whole message at the end",
        &[
            r#"+{"content":"h","reasoning_content":"Hm"}"#,
            r#"+{"content":"i","tool_calls":[{"id":"a","function":{"name":"now","arguments":"{}"}}]}"#,
            r#"{"choices":[{"message":{"content":"hi","reasoning_content":"Hm","tool_calls":[{"id":"b","function":{"name":"now"}}]},
data: "finish_reason":"stop"}]}"#,
        ],
        "hi | a:now{} | Stop",
    ),
    (
        "whole message after a role",
        &[
            r#"+{"role":"assistant","content":""}"#,
            r#"{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}"#,
        ],
        "hi |  | Stop",
    ),
    (
        "list of parts",
        &[r#"+{"content":[{"type":"text","text":"h"},{"type":"text","text":"i"}]}"#, r#"="stop""#],
        "hi |  | Stop",
    ),
    ("list of texts", &[r#"+{"content":["h","i",null]}"#, r#"="stop""#], "hi |  | Stop"),
    ("part in place of a list", &[r#"+{"content":{"type":"text","text":"hi"}}"#, r#"="stop""#], "hi |  | Stop"),
    (
        "thinking",
        &[
            r#"+{"content":[{"type":"thinking","thinking":[{"type":"text","text":"Hm"}]}]}"#,
            r#"+{"content":[{"type":"text","text":"hi"},{"type":"reference","reference_ids":[1]}]}"#,
            r#"="stop""#,
        ],
        "hi |  | Stop",
    ),
    (
        "image in the content",
        &[r#"+{"content":[{"type":"image_url","image_url":{"url":"x"}}]}"#, r#"="stop""#],
        INVALID,
    ),
    ("number as the content", &[r#"+{"content":7}"#, r#"="stop""#], INVALID),
    (
        "character in two texts",
        &[r#"+{"content":"a\ud83d"}"#, r#"+{"content":"\ude00b"}"#, r#"="stop""#],
        "a😀b |  | Stop",
    ),
    (
        "character in two texts with others between",
        &[
            r#"+{"content":"\ud83d"}"#,
            r#"+{"content":""}"#,
            "{\"choices\":[]}",
            r#"+{"content":"\ude00"}"#,
            r#"="stop""#,
        ],
        "😀 |  | Stop",
    ),
    ("half of a character", &[r#"+{"content":"a\ude00b\ud83dc"}"#, r#"="stop""#], "a\u{fffd}b\u{fffd}c |  | Stop"),
    ("half of a character at the end", &[r#"+{"content":"a\ud83d"}"#, r#"="stop""#], "a\u{fffd} |  | Stop"),
    ("half of a character elsewhere", &[r#"+{"content":"hi","x":["\ud83d"]}"#, r#"="stop""#], "hi |  | Stop"),
    ("no end marker", &[r#"+{"content":"hi"}"#, r#"="stop""#], "hi |  | Stop"),
    ("end marker without a reason", &[r#"+{"content":"hi"}"#, "[DONE]"], "hi |  | none"),
    ("neither reason nor end marker", &[r#"+{"content":"hi"}"#], INTERRUPTED),
    ("blank reasons", &[r#"="""#, r#"="null""#, "=null", r#"+{"content":"hi"}"#], INTERRUPTED),
    ("reason in capitals", &[r#"+{"content":"hi"}"#, r#"="STOP""#], "hi |  | Stop"),
    ("other reasons of an end", &[r#"+{"content":"hi"}"#, r#"="eos_token""#], "hi |  | Stop"),
    ("reason of a failure", &[r#"+{"content":"par"}"#, r#"="error""#, "[DONE]"], "par |  | Failed(\"error\")"),
    ("failure before another reason", &[r#"="abort""#, r#"="stop""#], " |  | Failed(\"abort\")"),
    ("reason that is no text", &[r#"={"type":"stop"}"#], " |  | Failed(\"{\\\"type\\\":\\\"stop\\\"}\")"),
    ("maximum number of tokens", &[r#"+{"content":"hi"}"#, r#"="length""#], "hi |  | Length"),
    ("filter", &[r#"+{"content":"hi"}"#, r#"="content_filter""#], "hi |  | Filtered"),
    ("refusal", &[r#"+{"refusal":"I ca"}"#, r#"+{"refusal":"n't."}"#, r#"="stop""#], "I can't. |  | Stop"),
    ("refusal as a part", &[r#"+{"content":[{"type":"refusal","refusal":"No."}]}"#, r#"="stop""#], "No. |  | Stop"),
    ("no choice", &["{\"choices\":[]}", "[DONE]"], "The response of the model endpoint has no answer."),
    ("error", &[r#"+{"content":"hi"}"#, r#"{"error":{"message":"overloaded"}}"#, "[DONE]"], REPORTED),
    ("error as text", &[r#"+{"content":"hi"}"#, r#"{"error":"overloaded"}"#, "[DONE]"], REPORTED),
    (
        "error beside a choice",
        &[r#"{"error":{"code":502},"choices":[{"delta":{"content":""},"finish_reason":"stop"}]}"#],
        REPORTED,
    ),
    ("error of a choice", &[r#"{"choices":[{"error":{"code":502},"delta":{},"finish_reason":"stop"}]}"#], REPORTED),
    (
        "error as a kind",
        &[r#"+{"content":"hi"}"#, r#"{"object":"error","message":"x","type":"Bad"}"#, "[DONE]"],
        REPORTED,
    ),
    ("event named error", &[r#"+{"content":"hi"}"#, "event: error\ndata: {\"message\":\"x\"}", "[DONE]"], REPORTED),
    ("error without content", &[r#"{"error":{},"choices":[{"delta":{"content":"hi"}}]}"#, "[DONE]"], "hi |  | none"),
    (
        "pings and empty data",
        &[": OK", "data: ", "event: ping\ndata: {}", r#"{"type":"ping"}"#, r#"+{"content":"hi"}"#, "data:", "[DONE]"],
        "hi |  | none",
    ),
    ("unknown chunk without a reason", &[r#"+{"content":"par"}"#, r#"{"status":"failed"}"#, "[DONE]"], INTERRUPTED),
    ("unknown chunk", &[r#"{"status":"queued"}"#, r#"+{"content":"hi"}"#, r#"="stop""#], "hi |  | Stop"),
    (
        "chunks on the lines of an event",
        &[
            "data: {\"choices\":[{\"delta\":{\"content\":\"h\"}}]}\ndata: {\"choices\":[{\"delta\":{\"content\":\"i\"}}]}\ndata: [DONE]",
        ],
        "hi |  | none",
    ),
    (
        "whole message on the lines of an event",
        &[
            "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\ndata: {\"choices\":[{\"message\":{\"content\":\"hi\"}}]}\ndata: [DONE]",
        ],
        "hi |  | none",
    ),
    ("no JSON", &[r#"+{"content":"hi"}"#, "data: <html>"], INVALID),
    ("member given twice", &[r#"+{"content":"a","content":"b"}"#, r#"="stop""#], INVALID),
    ("no object", &["[1]"], INVALID),
    (
        "calls by index",
        &[
            r#"+{"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"echo","arguments":""}}]}"#,
            r#"+{"tool_calls":[{"index":0,"function":{"arguments":"{\"te"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"type":"function","function":{"name":null,"arguments":"xt\":1}"}}]}"#,
            r#"+{"tool_calls":[{"index":1,"id":"b","function":{"name":"now","arguments":"{}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | a:echo{\"text\":1} b:now{} | Calls",
    ),
    (
        "interleaved calls",
        &[
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo"}},{"index":1,"id":"b","function":{"name":"now"}}]}"#,
            r#"+{"tool_calls":[{"index":1,"function":{"arguments":"{"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"function":{"arguments":"{\"a\":1}"}}]}"#,
            r#"+{"tool_calls":[{"index":1,"function":{"arguments":"}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | a:echo{\"a\":1} b:now{} | Calls",
    ),
    (
        "no index",
        &[
            r#"+{"tool_calls":[{"id":"a","function":{"name":"echo","arguments":""}}]}"#,
            r#"+{"tool_calls":[{"function":{"arguments":"{\"text\":"}}]}"#,
            r#"+{"tool_calls":[{"function":{"arguments":"\"x\"}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | a:echo{\"text\":\"x\"} | Calls",
    ),
    (
        "index that repeats with another id",
        &[
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":"{\"a\""}}]}"#,
            r#"+{"tool_calls":[{"index":0,"function":{"arguments":":1}"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"id":"b","function":{"name":"echo","arguments":"{\"b\""}}]}"#,
            r#"+{"tool_calls":[{"index":0,"function":{"arguments":":2}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | a:echo{\"a\":1} b:echo{\"b\":2} | Calls",
    ),
    (
        "index of a call as text and float",
        &[
            r#"+{"tool_calls":[{"index":"0","id":"a","function":{"name":"echo"}},{"index":1.0,"id":"b","function":{"name":"now"}}]}"#,
            r#"+{"tool_calls":[{"index":0.0,"function":{"arguments":"{}"}},{"index":"1","function":{"arguments":"{}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | a:echo{} b:now{} | Calls",
    ),
    (
        "interleaved calls by id",
        &[
            r#"+{"tool_calls":[{"index":null,"id":"a","function":{"name":"echo","arguments":"{"}}]}"#,
            r#"+{"tool_calls":[{"id":"b","function":{"name":"echo","arguments":"{\"b\""}}]}"#,
            r#"+{"tool_calls":[{"id":"a","function":{"arguments":"}"}}]}"#,
            r#"+{"tool_calls":[{"id":"b","function":{"arguments":":2}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | a:echo{} b:echo{\"b\":2} | Calls",
    ),
    (
        "equal ids with different indexes",
        &[
            r#"+{"tool_calls":[{"index":0,"id":"x","function":{"name":"echo","arguments":"{"}}]}"#,
            r#"+{"tool_calls":[{"index":1,"id":"x","function":{"name":"now","arguments":"{}"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"id":"x","function":{"arguments":"}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | x:echo{} x:now{} | Calls",
    ),
    (
        "calls by order",
        &[
            r#"+{"tool_calls":[{"function":{"name":"echo","arguments":""}},{"function":{"name":"echo","arguments":""}}]}"#,
            r#"+{"tool_calls":[{"function":{"arguments":"{\"a\":"}},{"function":{"arguments":"{"}}]}"#,
            r#"+{"tool_calls":[{"function":{"arguments":"1}"}},{"function":{"arguments":"}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | call_0:echo{\"a\":1} call_1:echo{} | Calls",
    ),
    (
        "whole calls without ids",
        &[
            r#"+{"tool_calls":[{"function":{"name":"now"}},{"function":{"name":"now"}}]}"#,
            r#"+{"tool_calls":[{"function":{"name":"echo","arguments":"{}"}},{"function":{"name":"echo","arguments":"{}"}}]}"#,
            r#"+{"tool_calls":[{"function":{"name":"now"}}]}"#,
            r#"="stop""#,
        ],
        " | call_0:now call_1:now call_2:echo{} call_3:echo{} call_4:now | Stop",
    ),
    (
        "name in each piece",
        &[
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":""}}]}"#,
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":"{\"a\""}}]}"#,
            r#"+{"tool_calls":[{"index":0,"function":{"name":"echo","arguments":":1}"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"function":{"name":"echo","arguments":""}}]}"#,
            r#"="tool_calls""#,
        ],
        " | a:echo{\"a\":1} | Calls",
    ),
    (
        "name in each piece without index and id",
        &[
            r#"+{"tool_calls":[{"function":{"name":"echo","arguments":""}}]}"#,
            r#"+{"tool_calls":[{"function":{"name":"echo","arguments":"{\"a\""}}]}"#,
            r#"+{"tool_calls":[{"function":{"name":"echo","arguments":":1}"}}]}"#,
            r#"+{"tool_calls":[{"function":{"name":"echo","arguments":"{}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | call_0:echo{\"a\":1} call_1:echo{} | Calls",
    ),
    (
        "name in pieces",
        &[
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"get_"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"function":{"name":"wea"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"function":{"name":"ther","arguments":"{}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | a:get_weather{} | Calls",
    ),
    (
        "name that grows",
        &[
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"get_"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"get_weather","arguments":"{}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | a:get_weather{} | Calls",
    ),
    (
        "equal index without ids",
        &[
            r#"+{"tool_calls":[{"index":0,"function":{"name":"now","arguments":"{}"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"function":{"name":"echo","arguments":"{}"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"function":{"name":"echo","arguments":"{\"a\":1}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | call_0:now{} call_1:echo{} call_2:echo{\"a\":1} | Calls",
    ),
    (
        "index that counts pieces",
        &[
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":"{\"a\""}}]}"#,
            r#"+{"tool_calls":[{"index":1,"function":{"arguments":":"}}]}"#,
            r#"+{"tool_calls":[{"index":2,"function":{"arguments":"1}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | a:echo{\"a\":1} | Calls",
    ),
    (
        "index that counts pieces, and the whole arguments at the end",
        &[
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":"{\"a\":1}"}}]}"#,
            r#"+{"tool_calls":[{"index":1,"function":{"arguments":"{\"a\":1}"}}]}"#,
            r#"+{"tool_calls":[{"index":2,"function":{"arguments":""}}]}"#,
            r#"+{"tool_calls":[{"index":3,"function":{"arguments":"\n"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | a:echo{\"a\":1}\n | Calls",
    ),
    (
        "further index without a name",
        &[
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"now","arguments":"{}"}}]}"#,
            r#"+{"tool_calls":[{"index":1,"function":{"arguments":"{\"a\":1}"}}]}"#,
            r#"="tool_calls""#,
        ],
        "The model called a tool without a name.",
    ),
    (
        "opening brace in a string",
        &[
            r#"+{"tool_calls":[{"function":{"name":"echo","arguments":"{\"t\":\"{\"}"}}]}"#,
            r#"+{"tool_calls":[{"function":{"name":"echo","arguments":"{\"t\":\"b\"}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | call_0:echo{\"t\":\"{\"} call_1:echo{\"t\":\"b\"} | Calls",
    ),
    (
        "space between whole calls",
        &[
            r#"+{"tool_calls":[{"function":{"name":"echo","arguments":"{}\n "}}]}"#,
            r#"+{"tool_calls":[{"function":{"name":"echo","arguments":"{}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | call_0:echo{}\n  call_1:echo{} | Calls",
    ),
    (
        "closing brace in a string",
        &[
            r#"+{"tool_calls":[{"function":{"name":"echo","arguments":"{\"t\":\"}"}}]}"#,
            r#"+{"tool_calls":[{"function":{"name":"echo","arguments":"b\\"}}]}"#,
            r#"+{"tool_calls":[{"function":{"name":"echo","arguments":"\"}"}}]}"#,
            r#"+{"tool_calls":[{"function":{"name":"echo","arguments":"\u0022}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | call_0:echo{\"t\":\"}b\\\"}\"} | Calls",
    ),
    (
        "other id in each piece",
        &[
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":""}}]}"#,
            r#"+{"tool_calls":[{"index":0,"id":"b","function":{"arguments":"{"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"id":"c","function":{"name":"","arguments":"}"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"id":"d","function":{"arguments":""}}]}"#,
            r#"="tool_calls""#,
        ],
        " | a:echo{} | Calls",
    ),
    (
        "id after the name",
        &[
            r#"+{"tool_calls":[{"index":0,"function":{"name":"echo"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"id":7,"function":{"arguments":"{}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | 7:echo{} | Calls",
    ),
    (
        "arguments as an object",
        &[
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":{"text": "x\ud83d"}}}]}"#,
            r#"+{"tool_calls":[{"index":1,"id":"b","function":{"name":"now","arguments":null}}]}"#,
            r#"="tool_calls""#,
        ],
        " | a:echo{\"text\": \"x\\ufffd\"} b:now | Calls",
    ),
    (
        "character in two pieces of arguments",
        &[
            r#"+{"tool_calls":[{"id":"a","function":{"name":"echo","arguments":"{\"a\":\"\ud83d"}}]}"#,
            r#"+{"tool_calls":[{"function":{"arguments":"\ude00\"}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | a:echo{\"a\":\"😀\"} | Calls",
    ),
    (
        "arguments that are repeated at the end",
        &[
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":"{\"a\":1"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"function":{"arguments":"}"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":"{\"a\":1}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | a:echo{\"a\":1} | Calls",
    ),
    (
        "whole arguments at the end in another form",
        &[
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":"{\"a\":"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":"{\"a\": 1}"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":{"a":1}}}]}"#,
            r#"="tool_calls""#,
        ],
        " | a:echo{\"a\":1} | Calls",
    ),
    (
        "whole arguments at the end without a name",
        &[
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":"{\"a\":"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}"#,
            r#"+{"tool_calls":[{"id":"a","function":{"arguments":"{ \"a\":1}"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"function":{"arguments":"{\"a\":1}\n"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | a:echo{\"a\":1} | Calls",
    ),
    (
        "whole arguments at the end in pieces",
        &[
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":"{\"a\":"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":"{\"a\""}}]}"#,
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":": 1}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | a:echo{\"a\":1} | Calls",
    ),
    (
        "whole arguments at the end with another index",
        &[
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":"{\"a\":"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}"#,
            r#"+{"tool_calls":[{"index":1,"id":"a","function":{"name":"echo","arguments":"{\"a\": 1}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | a:echo{\"a\":1} | Calls",
    ),
    (
        "whole arguments at the end without an id",
        &[
            r#"+{"tool_calls":[{"index":0,"function":{"name":"echo","arguments":"{\"a\":"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"function":{"name":"echo","arguments":"{\"a\": 1}"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"function":{"name":"echo","arguments":{"a":1}}}]}"#,
            r#"="tool_calls""#,
        ],
        " | call_0:echo{\"a\":1} | Calls",
    ),
    (
        "whole arguments in another order of members",
        &[
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":"{\"a\":1,\"b\":2}"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":"{\"b\":2,\"a\":1}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | a:echo{\"a\":1,\"b\":2} | Calls",
    ),
    (
        "other whole arguments with the same id",
        &[
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":"{\"a\":"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":"{\"a\":2}"}}]}"#,
            r#"="tool_calls""#,
        ],
        "The model endpoint sent different arguments for the same tool call.",
    ),
    (
        "other whole arguments with the same id and no index",
        &[
            r#"+{"tool_calls":[{"id":"a","function":{"name":"echo","arguments":"{\"a\":1}"}}]}"#,
            r#"+{"tool_calls":[{"id":"a","function":{"name":"echo","arguments":"{\"a\":2}"}}]}"#,
            r#"="tool_calls""#,
        ],
        "The model endpoint sent different arguments for the same tool call.",
    ),
    (
        "other whole arguments without a name",
        &[
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":"{\"a\":"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"function":{"arguments":"{\"a\":2}"}}]}"#,
            r#"="tool_calls""#,
        ],
        "The model endpoint sent different arguments for the same tool call.",
    ),
    (
        "brace after whole arguments",
        &[
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":"{\"a\":"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"function":{"arguments":"}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | a:echo{\"a\":1}} | Calls",
    ),
    (
        "arguments that grow",
        &[
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":"{\"a\""}}]}"#,
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":"{\"a\":1"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":"{\"a\":1}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | a:echo{\"a\":1} | Calls",
    ),
    (
        "whole arguments after a part of them",
        &[
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":"{\"a\""}}]}"#,
            r#"+{"tool_calls":[{"index":0,"function":{"arguments":":1"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"function":{"arguments":"{\"a\":1}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | a:echo{\"a\":1} | Calls",
    ),
    (
        "object in an object that begins as it does",
        &[
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":"{\"a\":"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"function":{"arguments":"{\"a\":1}}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | a:echo{\"a\":{\"a\":1}} | Calls",
    ),
    (
        "empty object before the arguments",
        &[
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":{}}}]}"#,
            r#"+{"tool_calls":[{"index":0,"function":{"arguments":"{\"t\":1}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | a:echo{\"t\":1} | Calls",
    ),
    (
        "empty text before the arguments",
        &[
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":"{}"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"function":{"arguments":"{\"t\":1}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | a:echo{\"t\":1} | Calls",
    ),
    (
        "empty object before pieces of the arguments",
        &[
            r#"+{"tool_calls":[{"id":"a","function":{"name":"echo","arguments":" { }\n"}}]}"#,
            r#"+{"tool_calls":[{"id":"a","function":{"name":"echo","arguments":"{\"t\":"}}]}"#,
            r#"+{"tool_calls":[{"id":"a","function":{"arguments":"1}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | a:echo{\"t\":1} | Calls",
    ),
    (
        "empty object before arguments with the name and no id",
        &[
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":{}}}]}"#,
            r#"+{"tool_calls":[{"index":0,"function":{"name":"echo","arguments":"{\"t\":1}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | a:echo{\"t\":1} | Calls",
    ),
    (
        "brace at the end of a piece",
        &[
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":"{\"text\":\"a}"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"function":{"name":"echo","arguments":"b\"}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | a:echo{\"text\":\"a}b\"} | Calls",
    ),
    (
        "brace as a text in a call by order",
        &[
            r#"+{"tool_calls":[{"function":{"name":"echo","arguments":"{\"text\":\"}\"}"}}]}"#,
            r#"+{"tool_calls":[{"function":{"name":"echo","arguments":"{\"text\":\"2\"}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | call_0:echo{\"text\":\"}\"} call_1:echo{\"text\":\"2\"} | Calls",
    ),
    (
        "line end after equal arguments with other ids",
        &[
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":"{\"a\":1}\n"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"id":"b","function":{"name":"echo","arguments":"{\"a\":1}\n"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | a:echo{\"a\":1}\n b:echo{\"a\":1}\n | Calls",
    ),
    (
        "brace as a text that is repeated",
        &[
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":"{\"t\":\"}\"}"}}]}"#,
            r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":"{\"t\":\"}\"}"}}]}"#,
            r#"="tool_calls""#,
        ],
        " | a:echo{\"t\":\"}\"} | Calls",
    ),
    (
        "call in place of a list",
        &[r#"+{"tool_calls":{"id":"a","function":{"name":"now","arguments":"{}"}}}"#, r#"="stop""#],
        " | a:now{} | Stop",
    ),
    (
        "call without a name",
        &[r#"+{"tool_calls":[{"index":0,"id":"a","function":{"arguments":"{}"}}]}"#, r#"="tool_calls""#],
        "The model called a tool without a name.",
    ),
    ("announced calls", &[r#"+{"content":"Let me see."}"#, r#"="tool_calls""#], "Let me see. |  | Calls"),
];

/// Each variant has one outcome, with each line end, with and without a byte order mark, and however its bytes are cut.
#[test]
fn variants_of_responses_are_read() {
    for (name, events, expected) in VARIANTS {
        let text = body(events);
        for (end, mark) in
            [("\n", ""), ("\r\n", ""), ("\r", ""), ("\n", "\u{feff}"), ("\r\n", "\u{feff}"), ("\r", "\u{feff}")]
        {
            let bytes = Bytes::from(format!("{mark}{}", text.replace('\n', end)));
            let check = |chunks, cut: &str| assert_eq!(outcome(chunks), *expected, "{name}, {end:?} {mark:?} {cut}");
            check(vec![bytes.clone()], "at once");
            check(bytes.iter().map(|byte| Bytes::copy_from_slice(&[*byte])).collect(), "in single bytes");
            for at in (0..bytes.len()).step_by(7) {
                check(vec![bytes.slice(..at), bytes.slice(at..)], &format!("cut at {at}"));
            }
        }
    }
}

/// Content of a JSON string with each character beyond ASCII escaped, in pieces of these numbers of escapes.
fn pieces(text: &str, lengths: &[usize]) -> Vec<String> {
    let mut units: Vec<String> = text
        .encode_utf16()
        .map(|unit| match char::from_u32(unit.into()) {
            Some(c) if c.is_ascii_alphanumeric() || c == ' ' => c.to_string(),
            _ => format!("\\u{unit:04x}"),
        })
        .collect();
    let mut pieces = Vec::new();
    for length in lengths.iter().cycle() {
        if units.is_empty() {
            return pieces;
        }
        pieces.push(units.drain(..units.len().min(*length)).collect());
    }
    pieces
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_response_is_the_same_however_it_is_cut(
        text in ".{0,20}",
        arguments in prop::collection::vec(".{0,10}", 0..4),
        lengths in prop::collection::vec(1_usize..6, 1..4),
        order in prop::collection::vec(any::<Index>(), 1..8),
        end in prop::sample::select(vec!["\n", "\r\n", "\r"]),
        has_mark in any::<bool>(),
        has_index in any::<bool>(),
        cuts in prop::collection::vec(any::<Index>(), 0..12),
    ) {
        let arguments: Vec<_> = arguments.iter().map(|text| json!({ "text": text }).to_string()).collect();
        let content = |piece: &String| format!(r#"+{{"content":"{piece}"}}"#);
        // Events of the text and of each call, the next one last.
        let mut sources = vec![pieces(&text, &lengths).iter().rev().map(content).collect::<Vec<_>>()];
        for (id, arguments) in arguments.iter().enumerate() {
            let call = |members: String| format!(r#"+{{"tool_calls":[{{{members}}}]}}"#);
            let (first, key) = if has_index {
                (format!(r#""index":{id},"id":"{id}""#), format!(r#""index":{id}"#))
            } else {
                (format!(r#""id":"{id}""#), format!(r#""id":"{id}""#))
            };
            let piece = |piece: &String| call(format!(r#"{key},"function":{{"arguments":"{piece}"}}"#));
            let mut events: Vec<_> = pieces(arguments, &lengths).iter().rev().map(piece).collect();
            events.push(call(format!(r#"{first},"function":{{"name":"echo"}}"#)));
            sources.push(events);
        }
        let mut events = Vec::new();
        for index in order.iter().cycle() {
            sources.retain(|source| !source.is_empty());
            if sources.is_empty() {
                break;
            }
            let source = index.index(sources.len());
            events.extend(sources[source].pop());
        }
        let events: Vec<_> = events.iter().map(String::as_str).chain(["=\"stop\"", "[DONE]"]).collect();
        let mark = if has_mark { "\u{feff}" } else { "" };
        let bytes = Bytes::from(format!("{mark}{}", body(&events).replace('\n', end)));
        let mut positions: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        positions.extend([0, bytes.len()]);
        positions.sort_unstable();
        let chunks = positions.windows(2).map(|ends| bytes.slice(ends[0]..ends[1])).collect();
        let (found, completion) = receive(chunks).unwrap();
        prop_assert_eq!(found, text);
        let mut found = completion.calls;
        found.sort_by(|a, b| a.id.cmp(&b.id));
        prop_assert_eq!(found.into_iter().map(|call| call.arguments).collect::<Vec<_>>(), arguments);
    }
}

/// Members that are not known are returned to the endpoint as they are.
#[test]
fn unknown_members_are_part_of_the_next_request() {
    let message = |events: &[&str]| receive(vec![body(events).into()]).unwrap().1.message;
    let function = |name: &str| json!({ "name": name, "arguments": "{}" });
    let signed = message(&[
        r#"+{"tool_calls":[{"index":0,"id":"a","function":{"name":"echo","arguments":"{}"},
data: "extra_content":{"google":{"thought_signature":"SIG"}}}]}"#,
        r#"+{"tool_calls":[{"index":0,"extra_content":{},"function":{"arguments":"","x":12345678901234567890}}]}"#,
        r#"="tool_calls""#,
    ]);
    let mut call = json!({ "id": "a", "type": "function", "function": function("echo"),
        "extra_content": { "google": { "thought_signature": "SIG" } } });
    call["function"]["x"] = 12_345_678_901_234_567_890_u64.into();
    assert_eq!(signed, json!({ "role": "assistant", "content": null, "tool_calls": [call] }));
    let reasoned = message(&[
        r#"+{"role":"assistant","reasoning_content":"Hm\ud83d","reasoning_details":[]}"#,
        r#"+{"reasoning_content":"\ude00, so","reasoning_details":[{"type":"reasoning.text","text":"Hm"}],"n":1}"#,
        r#"+{"reasoning_content":null,"reasoning_details":[{"type":"reasoning.encrypted"}],"n":2,"o":{"a":[]}}"#,
        r#"+{"content":"Ok","annotations":[ ],"tool_calls":[{"id":"a","function":{"name":"now","arguments":"{}"}}],"o":{"b":1}}"#,
        r#"="tool_calls""#,
    ]);
    let expected = json!({
        "role": "assistant",
        "content": "Ok",
        "tool_calls": [{ "id": "a", "type": "function", "function": function("now") }],
        "reasoning_content": "Hm😀, so",
        "reasoning_details": [{ "type": "reasoning.text", "text": "Hm" }, { "type": "reasoning.encrypted" }],
        "annotations": [],
        "n": 2,
        "o": { "a": [], "b": 1 },
    });
    assert_eq!(reasoned, expected);
    let repeated = message(&[
        r#"+{"model":"m","reasoning":"ha","part":"SI","x":{"google":{"signature":"S","n":null,"o":{"p":[1]}}},"y":"","z":{"a":1}}"#,
        r#"+{"model":"m","reasoning":"ha","part":"G","x":{"google":{}},"y":{},"z":{"a":null,"b":[2]}}"#,
        r#"+{"model":"m","reasoning":"!","part":"SIG","x":{"google":{"signature":"S","o":{"p":[2],"q":"}"}}},"y":{"b":2},"z":3}"#,
        r#"+{"tool_calls":[{"index":0,"id":"a","thought_signature":"SIG","function":{"name":"now","arguments":"{","z":"Z"}}]}"#,
        r#"+{"tool_calls":[{"index":0,"id":"a","thought_signature":"SIG","function":{"name":"now","arguments":"}","z":"Z"}}]}"#,
        r#"="tool_calls""#,
    ]);
    let mut call = json!({ "id": "a", "type": "function", "thought_signature": "SIG", "function": function("now") });
    call["function"]["z"] = "Z".into();
    let expected = json!({
        "role": "assistant",
        "content": null,
        "tool_calls": [call],
        "model": "m",
        "reasoning": "haha!",
        "part": "SIG",
        "x": { "google": { "signature": "S", "n": null, "o": { "p": [1, 2], "q": "}" } } },
        "y": { "b": 2 },
        "z": 3,
    });
    assert_eq!(repeated, expected);
}

#[test]
fn usage_is_stored_between_turns() {
    let usage: Usage = serde_json::from_str(r#"{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}"#).unwrap();
    assert_eq!(usage, Usage { prompt: 9, completion: 2, total: 11, ..Usage::default() });
    let stored = serde_json::to_string(&usage).unwrap();
    assert_eq!(stored, r#"{"promptTokens":9,"completionTokens":2,"totalTokens":11}"#);
    assert_eq!(serde_json::from_str::<Usage>(&stored).unwrap(), usage);
}

fn chunk(json: &str) -> Chunk {
    Chunk::read(serde_json::from_str(json).unwrap()).unwrap()
}

#[test]
fn odd_numbers_of_usage_are_ignored() {
    let usage = |usage: &str| chunk(&format!(r#"{{"usage":{usage}}}"#)).usage;
    for number in ["9", "9.0", "\"9\"", "\" 9.00\""] {
        let found = usage(&format!(r#"{{"prompt_tokens":{number},"details":{{"a":null}}}}"#));
        assert_eq!(found, Some(Usage { prompt: 9, ..Usage::default() }), "{number}");
    }
    for odd in ["-1", "9.5", "1e999", "\"x\"", "null", "[]", "{}", "99999999999999999999", "\"\""] {
        let found = usage(&format!(r#"{{"prompt_tokens":{odd},"total_tokens":11}}"#));
        assert_eq!(found, Some(Usage { total: 11, ..Usage::default() }), "{odd}");
    }
    for odd in ["null", "7", "true", "\"x\"", r#"{"prompt_tokens":1,"prompt_tokens":2}"#] {
        assert_eq!(usage(odd), None, "{odd}");
    }
    assert_eq!(chunk("{}").usage, None);
}

#[test]
fn size_of_tool_calls_is_limited() {
    let piece =
        |arguments: usize, id: String| CallPiece { arguments: Some("x".repeat(arguments)), id, ..CallPiece::default() };
    let mut calls = Calls::default();
    let count = (0..100).take_while(|_| calls.add(vec![piece(100_000, String::new())], &[]).is_ok()).count();
    assert_eq!(count, 10);
    let members: Members = serde_json::from_str(&format!(r#"{{"a":"{}"}}"#, "x".repeat(1 << 20))).unwrap();
    assert!(Calls::default().add(vec![CallPiece { members, ..CallPiece::default() }], &[]).is_err());
    let mut calls = Calls::default();
    let named = |id: usize| CallPiece { name: "now".to_owned(), ..piece(0, id.to_string()) };
    assert_eq!((0..100).take_while(|id| calls.add(vec![named(*id)], &[]).is_ok()).count(), 64);
    for arguments in [format!("[{}1]", "{},".repeat(200_000)), r#"{"to":{"a":1,"a":2}}"#.to_owned()] {
        assert!(ToolCall { arguments, ..ToolCall::default() }.arguments().is_string());
    }
}

/// Members whose values take much memory, each of which is allowed in a chunk.
#[test]
fn decoded_size_of_unknown_members_is_limited() {
    let call = r#"+{"tool_calls":[{"id":"a","function":{"name":"now","arguments":"{}"}}]}"#;
    let objects = format!(r#"+{{"x":[{}{{}}]}}"#, "{},".repeat(10_000));
    let mut events = vec![objects.as_str(); 20];
    events.extend([call, r#"="tool_calls""#]);
    assert!(receive(vec![body(&events).into()]).is_err());
    assert!(receive(vec![body(&events[19..]).into()]).is_ok());
}
