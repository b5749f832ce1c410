//! What classic JSON-RPC refuses, and how: numbers by cause, no `data`, and versions that are not served.

use a2a_service::{error::ErrorKind, protocol::Version, transport::Settings};
use serde_json::{Value, json};

use super::{
    classic_scripted::{HI, Scripted, TASK, call, post},
    support::{JsonBody as _, settings},
};

/// The error that a task of this id stands for.
pub(crate) fn kind(id: &str) -> Option<ErrorKind> {
    ErrorKind::ALL.get(id.strip_prefix("error-")?.parse::<usize>().ok()?).copied()
}

#[tokio::test]
async fn every_error_has_a_number_of_0_3_and_no_data() {
    let (url, _) = &Scripted::serve(settings()).await;
    for (n, kind) in ErrorKind::ALL.into_iter().enumerate() {
        let wire = kind.wire_for(Version::V0_3);
        let reply = post(url, call("0", "tasks/get", &format!(r#"{{"id":"error-{n}"}}"#))).await;
        let of_http = [401, 403, 405, 408, 413, 421, 429].contains(&wire.http);
        assert_eq!(reply.status(), if of_http { wire.http } else { 200 }, "{kind:?}");
        let error = format!(r#"{{"code":{},"message":"{}: why"}}"#, wire.json_rpc, wire.sentence);
        assert_eq!(reply.text().await.unwrap(), format!(r#"{{"jsonrpc":"2.0","id":0,"error":{error}}}"#), "{kind:?}");
    }
}

fn without_id(method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#)
}

/// Bad envelopes and bad parameters: as in 1.0, and in the terms of 0.3 as soon as the method tells that.
#[tokio::test]
async fn errors_are_told_apart() {
    let (url, service) = &Scripted::serve(settings()).await;
    let send = |message: &str| call("1", "message/send", &format!(r#"{{"message":{message},"messageId":"m"}}"#));
    let rows = [
        // Without an id, the method and its parameters are checked first.
        (r#"{"jsonrpc":"2.0","method":"tasks/nothing"}"#.to_owned(), json!(null), -32601, "tasks/nothing"),
        (
            r#"{"jsonrpc":"2.0","method":"message/send","params":{}}"#.into(),
            json!(null),
            -32602,
            "message: is required",
        ),
        (r#"{"jsonrpc":"2.0","method":"tasks/get","params":{}}"#.into(), json!(null), -32602, "id: is required"),
        (
            r#"{"jsonrpc":"2.0","method":"tasks/get","params":[]}"#.into(),
            json!(null),
            -32602,
            "invalid type: sequence, expected a TaskQueryParams as an object",
        ),
        (without_id("message/send", &format!(r#"{{"message":{HI}}}"#)), json!(null), -32600, "`id` is missing"),
        (without_id("message/stream", &format!(r#"{{"message":{HI}}}"#)), json!(null), -32600, "`id` is missing"),
        (without_id("tasks/get", r#"{"id":"t"}"#), json!(null), -32600, "`id` is missing"),
        (without_id("tasks/cancel", r#"{"id":"t"}"#), json!(null), -32600, "`id` is missing"),
        (without_id("tasks/resubscribe", r#"{"id":"t"}"#), json!(null), -32600, "`id` is missing"),
        (r#"{"jsonrpc":"1.0","id":0,"method":"message/send"}"#.into(), json!(0), -32600, "`jsonrpc` is not \"2.0\""),
        (r#"{"id":"a","method":"message/send"}"#.into(), json!("a"), -32600, "`jsonrpc` is not \"2.0\""),
        (
            r#"{"jsonrpc":"2.0","id":[],"method":"tasks/get"}"#.into(),
            json!(null),
            -32600,
            "`id` is not a string, a number or null",
        ),
        (call("1", "tasks/nothing", "{}"), json!(1), -32601, "tasks/nothing"),
        (call("1", "Message/Send", "{}"), json!(1), -32601, "Message/Send"),
        (call("null", "tasks/get", "{}"), json!(null), -32602, "id: is required"),
        (
            call("1", "tasks/get", "[]"),
            json!(1),
            -32602,
            "invalid type: sequence, expected a TaskQueryParams as an object",
        ),
        (
            call("1", "tasks/get", r#""t""#),
            json!(1),
            -32602,
            "invalid type: string \"t\", expected a TaskQueryParams as an object",
        ),
        (call("1", "tasks/get", r#"{"id":7}"#), json!(1), -32602, "id: invalid type: integer `7`, expected a string"),
        (call("1", "tasks/get", r#"{"id":"a","id":"b"}"#), json!(1), -32602, "id: `id` is given twice"),
        (call("1", "tasks/get", r#"{"id":"missing"}"#), json!(1), -32001, "missing"),
        (
            call("1", "tasks/list", r#"{"status":"paused"}"#),
            json!(1),
            -32602,
            r#"status: "paused" is not one of submitted, working, input-required, completed, canceled, failed, rejected, auth-required, unknown"#,
        ),
        (
            call("1", "message/send", r#"{"role":"user","parts":[]}"#),
            json!(1),
            -32602,
            "message: is required; a bare Message was sent, which belongs in params.message",
        ),
        (call("1", "message/send", "{}"), json!(1), -32602, "message: is required"),
        (send(r#"{"role":"system"}"#), json!(1), -32602, r#"message.role: "system" is not one of user, agent"#),
        (send(r#"{"parts":[{"text":"a"}]}"#), json!(1), -32602, "message.role: is required"),
        (send(r#"{"role":"user","parts":[]}"#), json!(1), -32602, "message.parts: is required"),
        (
            send(r#"{"role":"user","parts":[{"text":"a"},{}]}"#),
            json!(1),
            -32602,
            "message.parts[1]: must have one of text, file, data",
        ),
        (
            send(r#"{"parts":[{"kind":"file","file":{"bytes":"*"}}]}"#),
            json!(1),
            -32602,
            "message.parts[0].file.bytes: not base64: Invalid symbol 42, offset 0.",
        ),
        (
            send(r#"{"parts":[{"kind":"video"}]}"#),
            json!(1),
            -32602,
            "message.parts[0].kind: unknown variant `video`, expected one of `text`, `file`, `data`",
        ),
        (
            call("1", "message/send", r#"{"configuration":{"historyLength":"x"}}"#),
            json!(1),
            -32602,
            "configuration.historyLength: `x` is not a 32-bit integer",
        ),
        (
            call("1", "tasks/pushNotificationConfig/set", r#"{"taskId":"t"}"#),
            json!(1),
            -32602,
            "`pushNotificationConfig` is missing",
        ),
        (
            call("1", "tasks/pushNotificationConfig/set", r#"{"taskId":"t","pushNotificationConfig":{}}"#),
            json!(1),
            -32602,
            "pushNotificationConfig.url: is required",
        ),
        (
            call(
                "1",
                "message/send",
                &format!(r#"{{"message":{HI},"configuration":{{"pushNotificationConfig":{{}}}}}}"#),
            ),
            json!(1),
            -32602,
            "configuration.pushNotificationConfig.url: is required",
        ),
        (call("1", "tasks/pushNotificationConfig/get", "{}"), json!(1), -32602, "id: is required"),
        (call("1", "tasks/pushNotificationConfig/list", "{}"), json!(1), -32602, "id: is required"),
        (
            call("1", "tasks/pushNotificationConfig/delete", r#"{"id":"t"}"#),
            json!(1),
            -32602,
            "pushNotificationConfigId: is required",
        ),
    ];
    for (body, id, code, why) in rows {
        let reply: Value = serde_json::from_str(&post(url, &*body).await.text().await.unwrap()).unwrap();
        let error = reply["error"].as_object().unwrap_or_else(|| panic!("{body}: {reply}"));
        assert_eq!((&reply["id"], &error["code"]), (&id, &json!(code)), "{body}: {reply}");
        assert_eq!(error.keys().collect::<Vec<_>>(), ["code", "message"], "{body}");
        let message = error["message"].as_str().unwrap();
        assert_eq!(message.split_once(": ").unwrap().1, why, "{body}");
    }
    let asked: Vec<_> = service.calls.lock().iter().map(|it| it.binding).collect();
    assert_eq!(asked.len(), 1, "only what is missing was looked for");
}

#[tokio::test]
async fn batches() {
    let (url, service) = &Scripted::serve(settings()).await;
    let nameless = r#"{"jsonrpc":"2.0","method":"tasks/get","params":{"id":"t"}}"#;
    let calls = [
        call("1", "tasks/get", r#"{"id":"t"}"#),
        call(r#""2""#, "GetTask", r#"{"id":"missing"}"#),
        call("3", "tasks/get", r#"{"id":"missing"}"#),
        nameless.to_owned(),
        nameless.replace("tasks/get", "GetTask"),
        call("4", "tasks/resubscribe", r#"{"id":"t"}"#),
        call("5", "tasks/pushNotificationConfig/delete", r#"{"id":"t","pushNotificationConfigId":"p"}"#),
    ];
    let text = post(url, format!("[{}]", calls.join(","))).await.text().await.unwrap();
    assert!(text.starts_with(&format!(r#"[{{"jsonrpc":"2.0","id":1,"result":{TASK}}},"#)), "{text}");
    assert!(text.ends_with(r#",{"jsonrpc":"2.0","id":5,"result":null}]"#), "{text}");
    let answers: Vec<Value> = serde_json::from_str(&text).unwrap();
    let short: Vec<_> =
        answers.iter().map(|it| json!([it["id"], it["error"]["code"], it["error"]["data"].is_array()])).collect();
    let expected = json!([
        [1, null, false],
        ["2", -32001, true],
        [3, -32001, false],
        [null, -32600, false],
        [4, -32600, false],
        [5, null, false]
    ]);
    assert_eq!(Value::from(short), expected, "{text}");
    let versions: Vec<_> = service.calls.lock().iter().map(|it| it.version).collect();
    assert_eq!(versions.iter().filter(|it| **it == Version::V1_0).count(), 2);
    assert_eq!(versions.len(), 5);
}

/// The name of a method tells its version; a header can only be wrong.
#[tokio::test]
async fn versions() {
    let strict = Settings { strict_version: true, ..settings() };
    for settings in [settings(), strict] {
        let (url, _) = &Scripted::serve(settings).await;
        let ask = async |version: &str| {
            let http = reqwest::Client::new().post(url).header("a2a-version", version);
            http.json_body(call("1", "tasks/get", r#"{"id":"t"}"#)).send().await.unwrap().text().await.unwrap()
        };
        for version in ["", "0.3", "0.3.0", "0.2", "0.1", "1.0", "1.0.3"] {
            assert_eq!(ask(version).await, format!(r#"{{"jsonrpc":"2.0","id":1,"result":{TASK}}}"#), "{version}");
        }
        for version in ["2.0", "9.9", "one"] {
            let reply: Value = serde_json::from_str(&ask(version).await).unwrap();
            assert_eq!(reply["error"]["code"], -32600, "{version}: {reply}");
            assert!(reply["error"]["message"].as_str().unwrap().contains(version), "{reply}");
            assert!(reply["error"]["data"].is_null());
        }
    }
}

#[tokio::test]
async fn what_is_not_served_is_refused_in_its_own_terms() {
    let only = |version| Settings { protocols: [version].into_iter().collect(), ..settings() };
    let get = r#"{"id":"t"}"#;
    let (url, service) = &Scripted::serve(only(Version::V1_0)).await;
    let reply = post(url, call("1", "tasks/get", get)).await.text().await.unwrap();
    let error = r#"{"code":-32601,"message":"Method not found: protocol 0.3 is not served"}"#;
    assert_eq!(reply, format!(r#"{{"jsonrpc":"2.0","id":1,"error":{error}}}"#));
    assert!(service.calls.lock().is_empty());
    let reply = post(url, call("1", "GetTask", get)).await.text().await.unwrap();
    assert!(reply.contains("TASK_STATE_WORKING"), "{reply}");

    let (url, service) = &Scripted::serve(only(Version::V0_3)).await;
    let reply: Value = serde_json::from_str(&post(url, call("1", "GetTask", get)).await.text().await.unwrap()).unwrap();
    assert_eq!(reply["error"]["code"], -32009);
    assert_eq!(reply["error"]["data"][0]["metadata"], json!({"supportedVersions": "0.3"}));
    assert!(service.calls.lock().is_empty());
    let reply = post(url, call("1", "tasks/get", get)).await.text().await.unwrap();
    assert_eq!(reply, format!(r#"{{"jsonrpc":"2.0","id":1,"result":{TASK}}}"#));
}
