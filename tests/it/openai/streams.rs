//! Responses in the forms that endpoints send, each with its bytes.

use a2a_service::{adapter::OpenaiOptions, pb::v1::TaskState};
use serde_json::{Value, json};

use super::{Reply, Requests, answer, output, send, status_text};

/// Stream with these deltas, and a reason for its end.
fn deltas(deltas: &[&str], finish: &str) -> Reply {
    let event = |delta: &&str| format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{delta}}}]}}\n\n");
    let events: String = deltas.iter().map(event).collect();
    let end = format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"{finish}\"}}]}}\n\n");
    stream(&format!("{events}{end}data: [DONE]\n\n"))
}

fn stream(body: &str) -> Reply {
    Reply::Fixed(200, "text/event-stream", body.to_owned())
}

fn document(message: &Value, finish: &str) -> Reply {
    let body = json!({ "choices": [{ "index": 0, "message": message, "finish_reason": finish }] });
    Reply::Fixed(200, "application/json", body.to_string())
}

/// Sends a message to a model that calls a tool, and then answers. Returns the messages of the second request.
async fn after_calls(reply: Reply) -> (Value, Requests) {
    let (found, requests) = send(vec![reply, answer("Done")], OpenaiOptions::default()).await;
    assert_eq!((found.state(), requests.count()), (TaskState::Completed, 2), "{}", status_text(&found));
    (requests.body(1)["messages"].take(), requests)
}

fn echo(id: &str) -> Value {
    json!({ "id": id, "type": "function", "function": { "name": "echo", "arguments": "{\"text\":\"x\"}" } })
}

#[tokio::test]
async fn pieces_of_a_call_without_an_index_are_one_call() {
    let reply = deltas(
        &[
            r#"{"tool_calls":[{"id":"a","function":{"name":"echo","arguments":""}}]}"#,
            r#"{"tool_calls":[{"function":{"arguments":"{\"text\":"}}]}"#,
            r#"{"tool_calls":[{"function":{"arguments":"\"x\"}"}}]}"#,
        ],
        "tool_calls",
    );
    let (messages, _) = after_calls(reply).await;
    assert_eq!(messages[1], json!({ "role": "assistant", "content": null, "tool_calls": [echo("a")] }));
    assert_eq!(messages[2]["tool_call_id"], "a");
    assert_eq!(messages.as_array().unwrap().len(), 3, "one result");
}

/// Signatures of Gemini 3, and reasoning: without them, the endpoint rejects the next request.
#[tokio::test]
async fn unknown_members_are_returned_within_the_turn() {
    let call = r#"{"index":0,"id":"a","function":{"name":"echo","arguments":"{\"text\":\"x\"}"},"extra_content":{"google":{"thought_signature":"SIG"}}}"#;
    let mut expected = echo("a");
    expected["extra_content"] = json!({ "google": { "thought_signature": "SIG" } });
    let (messages, _) = after_calls(deltas(&[&format!(r#"{{"tool_calls":[{call}]}}"#)], "tool_calls")).await;
    assert_eq!(messages[1]["tool_calls"], json!([expected]));
    let details = json!([{ "type": "reasoning.text", "text": "Hm", "signature": "SIG" }]);
    let message = json!({ "role": "assistant", "content": "Ok", "reasoning_content": "Hm", "reasoning_details": details,
        "refusal": null, "tool_calls": [expected] });
    let (messages, _) = after_calls(document(&message, "tool_calls")).await;
    let mut returned = message.clone();
    returned.as_object_mut().unwrap().remove("refusal");
    assert_eq!(messages[1], returned);
    let reply = deltas(
        &[
            r#"{"role":"assistant","reasoning_content":"H","reasoning_details":[{"text":"H"}]}"#,
            r#"{"reasoning_content":"m","reasoning_details":[{"text":"m"}]}"#,
            &format!(r#"{{"tool_calls":[{call}]}}"#),
        ],
        "tool_calls",
    );
    let (messages, _) = after_calls(reply).await;
    assert_eq!(messages[1]["reasoning_content"], "Hm");
    assert_eq!(messages[1]["reasoning_details"], json!([{ "text": "H" }, { "text": "m" }]));
}

#[tokio::test]
async fn arguments_may_be_an_object() {
    let call = r#"{"index":0,"id":"a","function":{"name":"echo","arguments":{"text":"x"}}}"#;
    let (messages, _) = after_calls(deltas(&[&format!(r#"{{"tool_calls":[{call}]}}"#)], "tool_calls")).await;
    assert_eq!(messages[1]["tool_calls"], json!([echo("a")]));
    let call = json!({ "id": "a", "function": { "name": "echo", "arguments": { "text": "x" } } });
    let (messages, _) = after_calls(document(&json!({ "tool_calls": [call] }), "stop")).await;
    assert_eq!(messages[1]["tool_calls"], json!([echo("a")]));
}

#[tokio::test]
async fn answers_of_each_form_are_whole_or_fail() {
    let thinking = r#"{"content":[{"type":"thinking","thinking":[{"type":"text","text":"Hm"}]}]}"#;
    let part = r#"{"content":[{"type":"text","text":"hi"}]}"#;
    let (hi, reasoning) = (r#"{"content":"hi"}"#, r#"{"reasoning_content":"Hm"}"#);
    let list = json!({ "content": [{ "type": "thinking", "thinking": "Hm" }, { "type": "text", "text": "hi" }] });
    let chunk = |delta: &str| format!("data: {{\"choices\":[{{\"delta\":{delta}}}]}}\n\n");
    let whole = format!("{}data: [DONE]\n\n", chunk(hi));
    let no_answer = "The model gave no answer";
    for (reply, state, text, status) in [
        (deltas(&[thinking, part], "stop"), TaskState::Completed, "hi", ""),
        (document(&list, "stop"), TaskState::Completed, "hi", ""),
        (deltas(&[r#"{"content":"par"}"#], "error"), TaskState::Failed, "par", "did not complete the answer"),
        (deltas(&[r#"{"content":"par"}"#], "abort"), TaskState::Failed, "par", "did not complete the answer"),
        (document(&json!({ "content": "par" }), "error"), TaskState::Failed, "par", "did not complete the answer"),
        (deltas(&["{\"content\":\"par\"}"], "tool_calls"), TaskState::Failed, "par", "announced tool calls"),
        (deltas(&["{\"content\":\"par\"}"], "length"), TaskState::Completed, "par", "The answer is truncated"),
        (stream(&format!("\u{feff}{whole}")), TaskState::Completed, "hi", ""),
        (stream(&format!("\u{feff}{}", whole.replace('\n', "\r"))), TaskState::Completed, "hi", ""),
        (
            Reply::Fixed(
                200,
                "application/json",
                "\u{feff}{\"choices\":[{\"message\":{\"content\":\"hi\"}}]}".to_owned(),
            ),
            TaskState::Completed,
            "hi",
            "",
        ),
        (
            stream(&format!("data: \n\n{}data: \n\nevent: ping\ndata: {{}}\n\ndata: [DONE]\n\n", chunk(hi))),
            TaskState::Completed,
            "hi",
            "",
        ),
        (deltas(&[reasoning], "stop"), TaskState::Failed, "", "The model gave no answer, only reasoning."),
        (deltas(&[thinking], "stop"), TaskState::Failed, "", "The model gave no answer, only reasoning."),
        (deltas(&[reasoning], "length"), TaskState::Failed, "", "no answer within the maximum number of tokens"),
        (document(&json!({ "content": null, "reasoning": "Hm" }), "stop"), TaskState::Failed, "", no_answer),
        (deltas(&["{\"content\":\"\"}"], "stop"), TaskState::Failed, "", no_answer),
        (deltas(&["{\"content\":\"\\n\\n\"}"], "stop"), TaskState::Failed, "\n\n", no_answer),
        (deltas(&[r#"{"refusal":"I can't."}"#], "stop"), TaskState::Rejected, "", "I can't."),
        (document(&json!({ "content": null, "refusal": "I can't." }), "stop"), TaskState::Rejected, "", "I can't."),
        (deltas(&[hi], "refusal"), TaskState::Rejected, "hi", "The content filter"),
        (
            stream(&format!("{}event: error\ndata: {{\"message\":\"x\"}}\n\ndata: [DONE]\n\n", chunk(hi))),
            TaskState::Failed,
            "hi",
            "reported an error",
        ),
        (stream(&chunk(hi)), TaskState::Failed, "hi", "was interrupted"),
        (
            stream(&format!("{}{{\"error\":{{\"message\":\"x\"}}}}\n\ndata: [DONE]\n\n", chunk(hi))),
            TaskState::Failed,
            "hi",
            "is invalid",
        ),
        (
            Reply::Fixed(
                200,
                "application/json",
                r#"{"choices":[{"message":{"content":"a"}}]}{"choices":[{"message":{"content":"b"}}]}"#.to_owned(),
            ),
            TaskState::Failed,
            "",
            "is invalid",
        ),
        (deltas(&[r#"{"content":"a\ud83d"}"#, r#"{"content":"\ude00"}"#], "stop"), TaskState::Completed, "a😀", ""),
    ] {
        let (found, _) = send(vec![reply], OpenaiOptions::default()).await;
        let found_status = status_text(&found);
        assert_eq!((found.state(), output(&found).as_str()), (state, text), "{found_status}");
        assert!(found_status.contains(status) && found_status.is_empty() == status.is_empty(), "{found_status}");
    }
}

/// A call after which the model says nothing more has no answer, although there was text before.
#[tokio::test]
async fn answer_after_the_results_may_not_be_missing() {
    let call = r#"{"content":"Let me see.","tool_calls":[{"id":"a","function":{"name":"echo","arguments":"{}"}}]}"#;
    let replies = vec![deltas(&[call], "tool_calls"), deltas(&[r#"{"content":""}"#], "stop")];
    let (found, requests) = send(replies, OpenaiOptions::default()).await;
    assert_eq!((found.state(), output(&found).as_str()), (TaskState::Failed, "Let me see."));
    assert_eq!((status_text(&found).as_str(), requests.count()), ("The model gave no answer.", 2));
}
