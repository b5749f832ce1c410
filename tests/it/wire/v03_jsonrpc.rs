//! JSON-RPC methods of protocol 0.3, byte for byte: the request, the calls that the service of 1.0 receives, and the response.

use a2a_service::{call::Binding, protocol::Version};
use http::header;

use super::{
    support::{JsonBody as _, settings},
    v03_support::{CannedService, HI, TASK, call, config_json, config_now, events_json, post},
};
use crate::conformance::{Exemption, allow_undocumented};

const HI_V1: &str = r#"{"messageId":"m","role":"ROLE_USER","parts":[{"text":"hi"}]}"#;

#[tokio::test]
async fn methods_are_converted_in_both_directions() {
    allow_undocumented(Exemption::Requests);
    let (url, service) = &CannedService::serve(settings()).await;
    let answer = r#"{"message":{"messageId":"m","role":"user","parts":[{"text":"answer"}]}}"#;
    let configuration = concat!(
        r#"{"acceptedOutputModes":["text/plain"],"blocking":false,"historyLength":5,"#,
        r#""pushNotificationConfig":{"id":"p","url":"https://h.example","authentication":{"schemes":["Bearer"]}}}"#,
    );
    let configured = format!(r#"{{"message":{HI},"configuration":{configuration},"metadata":{{"k":1}}}}"#);
    let configuration_v1 = concat!(
        r#"{"acceptedOutputModes":["text/plain"],"taskPushNotificationConfig":{"id":"p","url":"https://h.example","#,
        r#""authentication":{"scheme":"Bearer"}},"historyLength":5,"returnImmediately":true}"#,
    );
    let message = concat!(
        r#"{"kind":"message","messageId":"m-2","contextId":"c","role":"agent","#,
        r#""parts":[{"kind":"text","text":"hi"}]}"#,
    );
    let list = r#"{"contextId":"c","status":"input-required","pageSize":50,"includeArtifacts":true}"#;
    let push = config_json("p");
    let one = |request: &str| vec![request.to_owned()];
    let get_task = r#"GetTask {"id":"t"}"#;
    for (method, params, requests, result) in [
        (
            "message/send",
            &*format!(r#"{{"message":{HI}}}"#),
            one(&format!(r#"SendMessage {{"message":{HI_V1}}}"#)),
            TASK,
        ),
        (
            "message/send",
            answer,
            one(&format!(r#"SendMessage {{"message":{}}}"#, HI_V1.replace("hi", "answer"))),
            message,
        ),
        (
            "message/send",
            &*configured,
            one(&format!(
                r#"SendMessage {{"message":{HI_V1},"configuration":{configuration_v1},"metadata":{{"k":1}}}}"#
            )),
            TASK,
        ),
        ("tasks/send", &*format!(r#"{{"message":{HI}}}"#), one(&format!(r#"SendMessage {{"message":{HI_V1}}}"#)), TASK),
        ("tasks/get", r#"{"id":"t","historyLength":3}"#, one(r#"GetTask {"id":"t","historyLength":3}"#), TASK),
        ("tasks/get", r#"{"id":"t","historyLength":0,"metadata":{}}"#, one(get_task), TASK),
        (
            "tasks/list",
            list,
            one(&format!("ListTasks {}", list.replace("input-required", "TASK_STATE_INPUT_REQUIRED"))),
            &*format!(r#"{{"tasks":[{TASK}],"totalSize":1,"pageSize":50,"nextPageToken":""}}"#),
        ),
        (
            "tasks/list",
            "null",
            one("ListTasks {}"),
            &*format!(r#"{{"tasks":[{TASK}],"totalSize":1,"pageSize":50,"nextPageToken":""}}"#),
        ),
        (
            "tasks/cancel",
            r#"{"id":"t","metadata":{"k":1}}"#,
            vec![get_task.to_owned(), r#"CancelTask {"id":"t","metadata":{"k":1}}"#.to_owned()],
            TASK,
        ),
        ("tasks/pushNotificationConfig/set", &push, one(&config_now("p")), &push),
        // A configuration without an id gets the default id of 0.3.
        (
            "tasks/pushNotificationConfig/set",
            r#"{"taskId":"t","pushNotificationConfig":{"url":"u"}}"#,
            one(r#"CreateTaskPushNotificationConfig {"id":"default","taskId":"t","url":"u"}"#),
            r#"{"taskId":"t","pushNotificationConfig":{"id":"default","url":"u"}}"#,
        ),
        (
            "tasks/pushNotificationConfig/get",
            r#"{"id":"t","pushNotificationConfigId":"q"}"#,
            one(r#"GetTaskPushNotificationConfig {"taskId":"t","id":"q"}"#),
            &*config_json("q"),
        ),
        (
            "tasks/pushNotificationConfig/get",
            r#"{"id":"t"}"#,
            vec![
                r#"ListTaskPushNotificationConfigs {"taskId":"t"}"#.to_owned(),
                r#"GetTaskPushNotificationConfig {"taskId":"t","id":"p"}"#.to_owned(),
            ],
            &push,
        ),
        (
            "tasks/pushNotificationConfig/list",
            r#"{"id":"t"}"#,
            vec![
                r#"ListTaskPushNotificationConfigs {"taskId":"t"}"#.to_owned(),
                r#"ListTaskPushNotificationConfigs {"taskId":"t","pageToken":"2"}"#.to_owned(),
            ],
            &*format!("[{push},{}]", config_json("q")),
        ),
        (
            "tasks/pushNotificationConfig/delete",
            r#"{"id":"t","pushNotificationConfigId":"p"}"#,
            one(r#"DeleteTaskPushNotificationConfig {"taskId":"t","id":"p"}"#),
            "null",
        ),
    ] {
        let reply = post(url, call(r#""r-1""#, method, params)).await;
        assert_eq!(reply.status(), 200);
        assert_eq!(reply.headers()[header::CONTENT_TYPE], "application/json");
        let expected = format!(r#"{{"jsonrpc":"2.0","id":"r-1","result":{result}}}"#);
        assert_eq!(reply.text().await.unwrap(), expected, "{method} {params}");
        assert_eq!(std::mem::take(&mut *service.requests.lock()), requests, "{method} {params}");
    }
    assert!(service.calls.lock().iter().all(|call| call.version == Version::V0_3 && call.binding == Binding::JsonRpc));
}

/// The methods take no parameters, so `params` may be missing.
#[tokio::test]
async fn extended_card_has_the_v03_form() {
    let (url, service) = &CannedService::serve(settings()).await;
    for method in ["agent/getAuthenticatedExtendedCard", "agent/authenticatedExtendedCard"] {
        let reply = post(url, format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"}}"#)).await.text().await.unwrap();
        let card = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"0.3.0","name":"N","#;
        assert!(reply.starts_with(card) && !reply.contains("supportedInterfaces"), "{reply}");
    }
    assert_eq!(*service.requests.lock(), ["GetExtendedAgentCard {}", "GetExtendedAgentCard {}"]);
}

/// A message requires an id (0.3, 6.4). An example of 0.2 has it outside of the message.
#[tokio::test]
async fn message_requires_an_id() {
    allow_undocumented(Exemption::Requests);
    let (url, service) = &CannedService::serve(settings()).await;
    for params in [
        r#"{"message":{"role":"user","parts":[{"text":"hi"}]}}"#,
        r#"{"message":{"role":"user","messageId":null,"parts":[{"text":"hi"}]}}"#,
    ] {
        for method in ["message/send", "message/stream", "tasks/send"] {
            let reply = post(url, call("1", method, params)).await.text().await.unwrap();
            let error = r#"{"code":-32602,"message":"Invalid method parameters: message.messageId: is required"}"#;
            assert_eq!(reply, format!(r#"{{"jsonrpc":"2.0","id":1,"error":{error}}}"#), "{method}");
        }
    }
    let params = r#"{"message":{"role":"user","parts":[{"text":"hi"}]},"messageId":"outside"}"#;
    post(url, call("1", "message/send", params)).await.text().await.unwrap();
    assert!(service.requests.lock().pop().unwrap().contains(r#""messageId":"outside""#));
}

#[tokio::test]
async fn active_extensions_are_in_the_v03_header() {
    let (url, service) = &CannedService::serve(settings()).await;
    let http = crate::bindings::http().post(url).header("x-a2a-extensions", "urn:e");
    let reply = http.json_body(call("1", "message/send", &format!(r#"{{"message":{HI}}}"#))).send().await.unwrap();
    assert_eq!(reply.headers()["x-a2a-extensions"], "urn:e");
    assert!(!reply.headers().contains_key("a2a-extensions"));
    assert_eq!(service.calls.lock()[0].extensions, ["urn:e"]);
}

#[tokio::test]
async fn stream_has_exact_bytes() {
    let (url, service) = &CannedService::serve(settings()).await;
    let sent = format!(r#"{{"message":{HI}}}"#);
    for (method, params, id) in [("message/stream", &*sent, r#""s""#), ("tasks/resubscribe", r#"{"id":"t"}"#, "1.50")] {
        let reply = post(url, call(id, method, params)).await;
        assert_eq!(reply.status(), 200);
        assert_eq!(reply.headers()[header::CONTENT_TYPE], "text/event-stream");
        assert_eq!(reply.headers()[header::CACHE_CONTROL], "no-cache");
        assert_eq!(reply.text().await.unwrap(), events_json(id), "{method}");
    }
    let requests = std::mem::take(&mut *service.requests.lock());
    assert_eq!(requests[0], format!(r#"SendStreamingMessage {{"message":{HI_V1}}}"#));
    assert_eq!(requests[1], r#"SubscribeToTask {"id":"t"}"#);
    // The service receives the cursor and decides what follows it.
    let http = crate::bindings::http().post(url).header("last-event-id", "t.1.2");
    http.json_body(call("1", "tasks/resubscribe", r#"{"id":"t"}"#)).send().await.unwrap();
    assert_eq!(service.calls.lock().pop().unwrap().cursor.unwrap().as_str(), "t.1.2");
}

#[tokio::test]
async fn error_after_the_first_event_ends_the_stream() {
    let (url, _) = &CannedService::serve(settings()).await;
    let stream = async |text: &str| {
        let params = format!(r#"{{"message":{}}}"#, HI.replace("hi", text));
        post(url, call("1", "message/stream", &params)).await.text().await.unwrap()
    };
    let first = events_json("1").split_inclusive("\n\n").next().unwrap().to_owned();
    let error = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"Task not found: t"}}"#;
    assert_eq!(stream("fail").await, format!("{first}event: error\ndata: {error}\n\n"));
    // An event without a counterpart in 0.3 is left out.
    let others: String = events_json("1").split_inclusive("\n\n").filter(|event| !event.contains("t.1.2\n")).collect();
    assert_eq!(stream("new").await, others);
}

/// Clients of a streaming method read only events, so an error is an event unless the parameters were invalid.
#[tokio::test]
async fn error_before_the_first_event_is_an_event() {
    let (url, _) = &CannedService::serve(settings()).await;
    let refused = format!(r#"{{"message":{}}}"#, HI.replace("hi", "refuse"));
    for (method, params, error) in [
        ("message/stream", &*refused, r#"{"code":-32004,"message":"This operation is not supported"}"#),
        ("tasks/resubscribe", r#"{"id":"missing"}"#, r#"{"code":-32001,"message":"Task not found: missing"}"#),
    ] {
        let reply = post(url, call("1", method, params)).await;
        assert_eq!(reply.headers()[header::CONTENT_TYPE], "text/event-stream");
        let expected = format!("event: error\ndata: {{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{error}}}\n\n");
        assert_eq!(reply.text().await.unwrap(), expected);
    }
    for (method, params) in [("message/stream", r#"{"message":7}"#), ("tasks/resubscribe", "{}")] {
        let reply = post(url, call("1", method, params)).await;
        assert_eq!(reply.headers()[header::CONTENT_TYPE], "application/json");
        assert!(reply.text().await.unwrap().contains("-32602"));
    }
}
