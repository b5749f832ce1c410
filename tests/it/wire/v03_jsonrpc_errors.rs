//! JSON-RPC errors of protocol 0.3: codes by cause, no `data`, batches, and versions that are not served.

use a2a_service::{error::ErrorKind, protocol::Version, transport::Settings};
use serde_json::{Value, json};

use super::{
    support::{JsonBody as _, settings},
    v03_support::{CannedService, HI, TASK, call, post},
};
use crate::conformance::{Exemption, allow_undocumented};

/// Error kind that a task id such as `error-3` stands for.
pub(crate) fn kind(id: &str) -> Option<ErrorKind> {
    ErrorKind::ALL.get(id.strip_prefix("error-")?.parse::<usize>().ok()?).copied()
}

#[tokio::test]
async fn every_error_has_a_v03_code_and_no_data() {
    allow_undocumented(Exemption::Errors);
    let (url, _) = &CannedService::serve(settings()).await;
    for (n, kind) in ErrorKind::ALL.into_iter().enumerate() {
        let wire = kind.wire_for(Version::V0_3);
        let reply = post(url, call("0", "tasks/get", &format!(r#"{{"id":"error-{n}"}}"#))).await;
        let has_http_status = [401, 403, 405, 408, 413, 421, 429].contains(&wire.http);
        assert_eq!(reply.status(), if has_http_status { wire.http } else { 200 }, "{kind:?}");
        let error = format!(r#"{{"code":{},"message":"{}: why"}}"#, wire.json_rpc, wire.sentence);
        assert_eq!(reply.text().await.unwrap(), format!(r#"{{"jsonrpc":"2.0","id":0,"error":{error}}}"#), "{kind:?}");
    }
}

fn without_id(method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#)
}

/// Invalid envelopes and parameters; errors have the form of 0.3 once the method name states it.
#[tokio::test]
async fn invalid_requests_have_distinct_codes_and_messages() {
    let (url, service) = &CannedService::serve(settings()).await;
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
        // Methods before 0.2.
        (call("1", "tasks/sendSubscribe", "{}"), json!(1), -32601, "tasks/sendSubscribe"),
        (call("1", "tasks/pushNotification/set", "{}"), json!(1), -32601, "tasks/pushNotification/set"),
        (call("1", "tasks/pushNotification/get", "{}"), json!(1), -32601, "tasks/pushNotification/get"),
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
    for (body, id, code, detail) in rows {
        let reply: Value = serde_json::from_str(&post(url, &*body).await.text().await.unwrap()).unwrap();
        let error = reply["error"].as_object().unwrap_or_else(|| panic!("{body}: {reply}"));
        assert_eq!((&reply["id"], &error["code"]), (&id, &json!(code)), "{body}: {reply}");
        assert_eq!(error.keys().collect::<Vec<_>>(), ["code", "message"], "{body}");
        let message = error["message"].as_str().unwrap();
        assert_eq!(message.split_once(": ").unwrap().1, detail, "{body}");
    }
    let bindings: Vec<_> = service.calls.lock().iter().map(|call| call.binding).collect();
    assert_eq!(bindings.len(), 1, "only the request for the missing task reaches the service");
}

#[tokio::test]
async fn batch_mixes_calls_of_both_versions() {
    let (url, service) = &CannedService::serve(settings()).await;
    let notification = r#"{"jsonrpc":"2.0","method":"tasks/get","params":{"id":"t"}}"#;
    let calls = [
        call("1", "tasks/get", r#"{"id":"t"}"#),
        call(r#""2""#, "GetTask", r#"{"id":"missing"}"#),
        call("3", "tasks/get", r#"{"id":"missing"}"#),
        notification.to_owned(),
        notification.replace("tasks/get", "GetTask"),
        call("4", "tasks/resubscribe", r#"{"id":"t"}"#),
        call("5", "tasks/pushNotificationConfig/delete", r#"{"id":"t","pushNotificationConfigId":"p"}"#),
    ];
    let text = post(url, format!("[{}]", calls.join(","))).await.text().await.unwrap();
    assert!(text.starts_with(&format!(r#"[{{"jsonrpc":"2.0","id":1,"result":{TASK}}},"#)), "{text}");
    assert!(text.ends_with(r#",{"jsonrpc":"2.0","id":5,"result":null}]"#), "{text}");
    let responses: Vec<Value> = serde_json::from_str(&text).unwrap();
    let summary: Vec<_> = responses
        .iter()
        .map(|response| json!([response["id"], response["error"]["code"], response["error"]["data"].is_array()]))
        .collect();
    let expected = json!([
        [1, null, false],
        ["2", -32001, true],
        [3, -32001, false],
        [null, -32600, false],
        [4, -32600, false],
        [5, null, false]
    ]);
    assert_eq!(Value::from(summary), expected, "{text}");
    let versions: Vec<_> = service.calls.lock().iter().map(|call| call.version).collect();
    assert_eq!(versions.iter().filter(|version| **version == Version::V1_0).count(), 2);
    assert_eq!(versions.len(), 5);
}

/// The method name states the version; only an unknown version in the header is an error.
#[tokio::test]
async fn version_is_taken_from_the_method_name() {
    let strict = Settings { strict_version: true, ..settings() };
    for settings in [settings(), strict] {
        let (url, _) = &CannedService::serve(settings).await;
        let get = async |version: &str| {
            let http = crate::bindings::http().post(url).header("a2a-version", version);
            http.json_body(call("1", "tasks/get", r#"{"id":"t"}"#)).send().await.unwrap().text().await.unwrap()
        };
        for version in ["", "0.3", "0.3.0", "0.2", "0.1", "1.0", "1.0.3"] {
            assert_eq!(get(version).await, format!(r#"{{"jsonrpc":"2.0","id":1,"result":{TASK}}}"#), "{version}");
        }
        for version in ["2.0", "9.9", "one"] {
            let reply: Value = serde_json::from_str(&get(version).await).unwrap();
            assert_eq!(reply["error"]["code"], -32600, "{version}: {reply}");
            assert!(reply["error"]["message"].as_str().unwrap().contains(version), "{reply}");
            assert!(reply["error"]["data"].is_null());
        }
    }
}

#[tokio::test]
async fn disabled_protocol_version_is_rejected() {
    let only = |version| Settings { protocols: [version].into_iter().collect(), ..settings() };
    let params = r#"{"id":"t"}"#;
    let (url, service) = &CannedService::serve(only(Version::V1_0)).await;
    let reply = post(url, call("1", "tasks/get", params)).await.text().await.unwrap();
    let error = r#"{"code":-32601,"message":"Method not found: protocol 0.3 is not served"}"#;
    assert_eq!(reply, format!(r#"{{"jsonrpc":"2.0","id":1,"error":{error}}}"#));
    assert!(service.calls.lock().is_empty());
    let reply = post(url, call("1", "GetTask", params)).await.text().await.unwrap();
    assert!(reply.contains("TASK_STATE_WORKING"), "{reply}");

    let (url, service) = &CannedService::serve(only(Version::V0_3)).await;
    let reply: Value =
        serde_json::from_str(&post(url, call("1", "GetTask", params)).await.text().await.unwrap()).unwrap();
    assert_eq!(reply["error"]["code"], -32009);
    assert_eq!(reply["error"]["data"][0]["metadata"], json!({"supportedVersions": "0.3"}));
    assert!(service.calls.lock().is_empty());
    let reply = post(url, call("1", "tasks/get", params)).await.text().await.unwrap();
    assert_eq!(reply, format!(r#"{{"jsonrpc":"2.0","id":1,"result":{TASK}}}"#));
}
