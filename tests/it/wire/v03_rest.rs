//! HTTP+JSON of protocol 0.3: accepted requests, paths, and exact response bytes.

use std::sync::Arc;

use a2a_service::{
    error::ErrorKind,
    pb::{
        v1::{AgentCard, AgentInterface, GetExtendedAgentCardRequest, a2a_service_server::A2aService},
        v03::GetAgentCardRequest,
    },
    protocol::Version,
    transport::{HttpService, Settings, listener},
    v03::pb::a2a_service_client::A2aServiceClient,
};
use http::{Method, header};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, transport::Channel};

use super::support::*;
use crate::conformance::{CheckedService, Exemption, allow_undocumented};

const HELLO: &str = r#"{"messageId":"m","role":"ROLE_USER","content":[{"text":"hi"}]}"#;

async fn get(url: &str) -> (u16, Value) {
    let reply = crate::bindings::fetch(url).await.unwrap();
    (reply.status().as_u16(), json(reply).await)
}

async fn post(url: &str, body: &str) -> (u16, Value) {
    let reply = crate::bindings::http().post(url).json_body(body.to_owned()).send().await.unwrap();
    (reply.status().as_u16(), json(reply).await)
}

#[tokio::test]
async fn message_is_answered_in_the_v03_dialect() {
    allow_undocumented(Exemption::Requests);
    let server = Server::start().await;
    for body in [
        format!(r#"{{"message":{HELLO}}}"#),
        r#"{"request":{"message_id":"m","role":"ROLE_USER","content":[{"text":"hi"}]},"configuration":{"accepted_output_modes":["a/b"]}}"#.into(),
        r#"{"message":{"kind":"message","messageId":"m","role":"user","parts":[{"kind":"text","text":"hi"}]},"unknown":1}"#.into(),
    ] {
        let http = crate::bindings::http().post(format!("{}/v1/message:send", server.url));
        // The media type of 1.0, unknown to 0.3.
        let http = http.header(header::ACCEPT, "application/a2a+json").header("x-a2a-extensions", "urn:a");
        let reply = http.json_body(body.clone()).send().await.unwrap();
        assert_eq!((reply.status().as_u16(), &reply.headers()[header::CONTENT_TYPE]), (200, &"application/json".parse().unwrap()));
        assert_eq!(reply.headers()["x-a2a-extensions"], "https://example.com/ext");
        assert!(!reply.headers().contains_key("a2a-extensions"));
        assert_eq!(reply.text().await.unwrap(), format!(r#"{{"message":{HELLO}}}"#), "{body}");
        let call = server.echo.calls.lock().pop().unwrap();
        assert_eq!((call.version, call.extensions), (Version::V0_3, vec!["urn:a".to_owned()]));
    }
}

#[tokio::test]
async fn parts_are_read_in_every_spelling_and_written_in_one() {
    allow_undocumented(Exemption::Requests);
    let Server { url, .. } = &Server::start().await;
    let twice = r#"{"file":{"fileWithBytes":"YUdWc2JHOD0=","mimeType":"text/plain","name":"a.txt"}}"#;
    for (part, expected) in [
        (r#"{"text":"hi","metadata":{"k":1}}"#, r#"{"text":"hi","metadata":{"k":1}}"#),
        (r#"{"kind":"text","text":"hi"}"#, r#"{"text":"hi"}"#),
        (twice, twice),
        (r#"{"file":{"file_with_bytes":"aGVsbG8=","mime_type":"text/plain","name":"a.txt"}}"#, twice),
        (r#"{"kind":"file","file":{"bytes":"aGVsbG8=","mimeType":"text/plain","name":"a.txt"}}"#, twice),
        (r#"{"file":{"fileWithUri":"https://x/y"}}"#, r#"{"file":{"fileWithUri":"https://x/y"}}"#),
        (r#"{"kind":"file","file":{"uri":"https://x/y"}}"#, r#"{"file":{"fileWithUri":"https://x/y"}}"#),
        (r#"{"file":{"file_with_uri":"","file_with_bytes":"_w"}}"#, r#"{"file":{"fileWithBytes":"L3c9PQ=="}}"#),
        (r#"{"data":{"data":{"a":[1,null]}}}"#, r#"{"data":{"data":{"a":[1,null]}}}"#),
        (r#"{"kind":"data","data":{"data":1}}"#, r#"{"data":{"data":{"data":1}}}"#),
        (r#"{"kind":"data","data":[1]}"#, r#"{"data":{"data":{"value":[1]}},"metadata":{"data_part_compat":true}}"#),
    ] {
        let body = format!(r#"{{"message":{{"messageId":"m","role":"user","content":[{part}]}}}}"#);
        let reply =
            crate::bindings::http().post(format!("{url}/v1/message:send")).json_body(body).send().await.unwrap();
        let expected = format!(r#"{{"message":{{"messageId":"m","role":"ROLE_USER","content":[{expected}]}}}}"#);
        let text = reply.text().await.unwrap();
        assert_eq!(text, expected, "{part}");
    }
}

/// `blocking` and `historyLength` as the service of 1.0 receives them.
#[tokio::test]
async fn configuration_without_blocking_returns_immediately() {
    allow_undocumented(Exemption::Requests);
    let server = Server::start().await;
    for (configuration, returns_immediately, length) in [
        ("{}", true, None),
        (r#"{"blocking":null}"#, true, None),
        (r#"{"blocking":true,"historyLength":0}"#, false, None),
        (r#"{"blocking":false,"history_length":2}"#, true, Some(2)),
        (r#"{"acceptedOutputModes":[],"historyLength":"3"}"#, true, Some(3)),
        (r#"{"pushNotification":{"url":"https://h"}}"#, true, None),
        (r#"{"push_notification":{"url":"https://h"},"blocking":true}"#, false, None),
    ] {
        let body = format!(r#"{{"message":{HELLO},"configuration":{configuration}}}"#);
        let (status, response) = post(&format!("{}/v1/message:send", server.url), &body).await;
        assert_eq!(status, 200, "{response}");
        let sent = server.echo.sent.lock().pop().unwrap().configuration.unwrap();
        assert_eq!((sent.return_immediately, sent.history_length), (returns_immediately, length), "{configuration}");
        let push = sent.task_push_notification_config.map(|config| config.url);
        assert_eq!(push.as_deref(), configuration.contains("https").then_some("https://h"));
    }
    for without in [String::new(), r#","configuration":null"#.to_owned()] {
        let body = format!(r#"{{"message":{HELLO}{without}}}"#);
        let (status, response) = post(&format!("{}/v1/message:send", server.url), &body).await;
        assert_eq!(status, 200, "{response}");
        let sent = server.echo.sent.lock().pop().unwrap();
        assert!(!sent.configuration.is_some_and(|configuration| configuration.return_immediately), "{body}");
    }
}

#[tokio::test]
async fn paths_of_the_text_and_of_the_proto_file_are_served() {
    allow_undocumented(Exemption::Parameters);
    let server = Server::start().await;
    let url = &server.url;
    for (path, context) in [
        ("/v1/tasks/urn:x:1", " None"),
        ("/v1/tasks/urn:x:1/", " None"),
        ("/v1/task/urn:x:1?historyLength=2", " Some(2)"),
        ("/v1/tasks/urn:x:1?history_length=0&tenant=acme", " None"),
    ] {
        let (status, task) = get(&format!("{url}{path}")).await;
        assert_eq!(
            (status, task),
            (200, json!({"id": "urn:x:1", "contextId": context, "status": {"state": "TASK_STATE_SUBMITTED"}})),
            "{path}"
        );
    }
    assert_eq!(get(&format!("{url}/v1/tasks/a%2Fb")).await.1["id"], "a/b");
    for body in ["", "{}", r#"{"name":"tasks/other"}"#] {
        let (status, problem) = post(&format!("{url}/v1/tasks/t:cancel"), body).await;
        assert_eq!((status, &problem["message"]), (409, &json!("Task cannot be canceled: t false")), "{body}");
    }
    for verb in [Method::GET, Method::POST] {
        let reply = crate::bindings::http().request(verb, format!("{url}/v1/tasks/t:subscribe")).send().await.unwrap();
        assert_eq!(reply.headers()[header::CONTENT_TYPE], "text/event-stream");
    }
    let (status, page) = get(&format!("{url}/v1/tasks?contextId=c&pageSize=7&tenant=acme")).await;
    assert_eq!((status, page), (200, json!({"tasks": [], "nextPageToken": "None c Unspecified"})));
    // A state by its name in JSON-RPC or in the proto file.
    for state in ["input-required", "input%2Drequired", "TASK_STATE_INPUT_REQUIRED", "INPUT_REQUIRED", "6"] {
        let (_, page) = get(&format!("{url}/v1/tasks?contextId=c&status={state}&pageSize=7")).await;
        assert_eq!(page["nextPageToken"], "None c InputRequired", "{state}: {page}");
    }
    let (status, problem) = get(&format!("{url}/v1/tasks?status=paused")).await;
    assert_eq!((status, &problem["type"]), (400, &json!("InvalidParamsError")), "{problem}");
    assert_eq!(problem["error"]["details"][1]["fieldViolations"][0]["field"], "status");

    let configs = format!("{url}/v1/tasks/t/pushNotificationConfigs");
    let hook = json!({"id": "c", "url": "https://example.com/hook"});
    let config = json!({"name": "tasks/t/pushNotificationConfigs/c", "pushNotificationConfig": hook});
    assert_eq!(get(&format!("{configs}/c")).await, (200, config));
    let (status, page) = get(&format!("{configs}?pageToken=next")).await;
    let push = json!({"id": "c", "url": "https://example.com/hook"});
    let config = json!({"name": "tasks/t/pushNotificationConfigs/c", "pushNotificationConfig": push});
    assert_eq!((status, page), (200, json!({"configs": [config], "nextPageToken": "next"})));
    let deleted = crate::bindings::http().delete(format!("{configs}/c")).send().await.unwrap();
    assert_eq!((deleted.status().as_u16(), deleted.text().await.unwrap().as_str()), (200, "{}"));
    assert_eq!(get(&format!("{url}/v1/card")).await.0, 404);
    for (verb, path, status) in [
        ("PUT", "/v1/tasks/t", 405),
        ("GET", "/v1/message:send", 405),
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1", 404),
    ] {
        let reply =
            crate::bindings::http().request(verb.parse().unwrap(), format!("{url}{path}")).send().await.unwrap();
        assert_eq!(reply.status(), status, "{verb} {path}");
    }
}

#[tokio::test]
async fn push_configuration_is_read_from_every_body_and_path() {
    // The document has the body of the proto file only.
    allow_undocumented(Exemption::Requests);
    let Server { url, .. } = &Server::start().await;
    let push = r#"{"id":"p","url":"https://h","token":"t","authentication":{"schemes":["Bearer"],"credentials":"x"}}"#;
    let expected = format!(r#"{{"name":"tasks/t/pushNotificationConfigs/p","pushNotificationConfig":{push}}}"#);
    for body in [
        format!(r#"{{"name":"tasks/t/pushNotificationConfigs/p","pushNotificationConfig":{push}}}"#),
        format!(r#"{{"parent":"tasks/x","configId":"p","config":{{"name":"n","pushNotificationConfig":{push}}}}}"#),
        format!(r#"{{"parent":"tasks/t","config_id":"p","config":{{"push_notification_config":{push}}}}}"#),
        format!(r#"{{"config":{push}}}"#),
        format!(r#"{{"taskId":"x","pushNotificationConfig":{push}}}"#),
        push.to_owned(),
    ] {
        for path in ["tasks", "task"] {
            let http = crate::bindings::http().post(format!("{url}/v1/{path}/t/pushNotificationConfigs"));
            let reply = http.json_body(body.clone()).send().await.unwrap();
            assert_eq!((reply.status().as_u16(), reply.text().await.unwrap()), (200, expected.clone()), "{body}");
        }
    }
    // Fields outside of `body: "config"` are in the query.
    for (query, body, id) in [
        ("configId=q", r#"{"pushNotificationConfig":{"url":"https://h"}}"#, "q"),
        ("config_id=q&x=y", r#"{"pushNotificationConfig":{"id":"p","url":"https://h"}}"#, "q"),
        ("configId=q", r#"{"configId":"p","config":{"pushNotificationConfig":{"url":"https://h"}}}"#, "p"),
        ("configId=", r#"{"url":"https://h"}"#, "default"),
    ] {
        let (_, config) = post(&format!("{url}/v1/tasks/t/pushNotificationConfigs?{query}"), body).await;
        assert_eq!(config["pushNotificationConfig"]["id"], id, "{query} {body}: {config}");
    }
    let (status, problem) = post(&format!("{url}/v1/tasks/t/pushNotificationConfigs"), "{}").await;
    assert_eq!((status, &problem["type"]), (400, &json!("InvalidParamsError")));
}

#[tokio::test]
async fn stream_has_exact_bytes() {
    let Server { url, .. } = &Server::start().await;
    let http = crate::bindings::http().post(format!("{url}/v1/message:stream"));
    let body = r#"{"message":{"messageId":"turn","role":"ROLE_USER","content":[{"text":"hi"}]}}"#;
    let reply = http.json_body(body).send().await.unwrap();
    assert_eq!(reply.headers()[header::CONTENT_TYPE], "text/event-stream");
    let expected = [
        r#"{"task":{"id":"t","contextId":"c","status":{"state":"TASK_STATE_SUBMITTED"}}}"#,
        r#"{"statusUpdate":{"taskId":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}"#,
        r#"{"artifactUpdate":{"taskId":"t","contextId":"c","artifact":{"artifactId":"a","parts":[{"text":"hi"}]},"lastChunk":true}}"#,
        r#"{"statusUpdate":{"taskId":"t","contextId":"c","status":{"state":"TASK_STATE_INPUT_REQUIRED"},"final":true}}"#,
    ];
    let expected: Vec<_> = (1..).zip(expected).map(|(n, data)| format!("id: t.1.{n}\ndata: {data}\n\n")).collect();
    assert_eq!(reply.text().await.unwrap(), expected.concat());
}

/// SDKs read the error from three different members.
#[tokio::test]
async fn error_has_exact_bytes() {
    allow_undocumented(Exemption::Errors);
    let Server { url, .. } = &Server::start().await;
    let info = r#"{"@type":"type.googleapis.com/google.rpc.ErrorInfo","domain":"a2a-protocol.org","metadata":{"taskId":"missing"},"reason":"TASK_NOT_FOUND"}"#;
    let body = crate::bindings::fetch(format!("{url}/v1/tasks/missing")).await.unwrap().text().await.unwrap();
    let expected = format!(
        r#"{{"code":-32001,"error":{{"TaskNotFoundError":true,"code":404,"details":[{info}],"message":"Task not found: missing","status":"NOT_FOUND"}},"message":"Task not found: missing","type":"TaskNotFoundError"}}"#
    );
    assert_eq!(body, expected);
    for (n, kind) in ErrorKind::ALL.into_iter().enumerate() {
        let wire = kind.wire_for(Version::V0_3);
        let (status, problem) = get(&format!("{url}/v1/tasks/error-{n}")).await;
        assert_eq!((status, &problem["code"]), (wire.http, &json!(wire.json_rpc)), "{kind:?}");
        assert_eq!((&problem["type"], &problem["error"]["code"]), (&json!(kind.v03_name()), &json!(wire.http)));
        assert_eq!(
            (&problem["message"], &problem["error"][kind.v03_name()]),
            (&json!(format!("{}: ü: why", wire.sentence)), &json!(true))
        );
    }
    // An error after the first event has the same form and ends the stream.
    let body = r#"{"message":{"messageId":"fail","role":"ROLE_USER","content":[{"text":"hi"}]}}"#;
    let http = crate::bindings::http().post(format!("{url}/v1/message:stream")).json_body(body);
    let text = http.send().await.unwrap().text().await.unwrap();
    let (_, error) = text.split_once("event: error\ndata: ").unwrap();
    let error: Value = serde_json::from_str(error.strip_suffix("\n\n").unwrap()).unwrap();
    assert_eq!((&error["code"], &error["type"]), (&json!(-32001), &json!("TaskNotFoundError")));
}

#[tokio::test]
async fn invalid_requests_are_rejected_by_field() {
    let server = Server::start().await;
    let send = format!("{}/v1/message:send", server.url);
    let part = |part: &str| format!(r#"{{"message":{{"messageId":"m","role":"user","content":[{part}]}}}}"#);
    for (body, name, field) in [
        ("{".to_owned(), "JSONParseError", ""),
        (r#"{"message":{"messageId":"m"}} x"#.to_owned(), "JSONParseError", ""),
        ("[]".to_owned(), "InvalidParamsError", ""),
        ("7".to_owned(), "InvalidParamsError", ""),
        (String::new(), "InvalidParamsError", "message"),
        ("null".to_owned(), "InvalidParamsError", "message"),
        (r#"{"message":[]}"#.to_owned(), "InvalidParamsError", "message"),
        (r#"{"message":{}}"#.to_owned(), "InvalidParamsError", "message.messageId"),
        (r#"{"message":{"messageId":"m","content":[{"text":"x"}]}}"#.to_owned(), "InvalidParamsError", "message.role"),
        (
            r#"{"message":{"messageId":"m","role":"root","content":[{"text":"x"}]}}"#.to_owned(),
            "InvalidParamsError",
            "message.role",
        ),
        (
            r#"{"message":{"messageId":"m","role":9,"content":[{"text":"x"}]}}"#.to_owned(),
            "InvalidParamsError",
            "message.role",
        ),
        (r#"{"message":{"messageId":"m","role":"user"}}"#.to_owned(), "InvalidParamsError", "message.parts"),
        (part("{}"), "InvalidParamsError", "message.parts[0]"),
        (part(r#"{"kind":"text"}"#), "InvalidParamsError", "message.parts[0]"),
        (part(r#"{"kind":"file","file":{}}"#), "InvalidParamsError", "message.parts[0]"),
        (part(r#"{"kind":"video","video":1}"#), "InvalidParamsError", "message.parts[0]"),
        (part(r#"{"text":7}"#), "InvalidParamsError", "message.content[0].text"),
        (part(r#"{"file":{"bytes":"no!"}}"#), "InvalidParamsError", "message.content[0].file.fileWithBytes"),
        (
            format!(r#"{{"message":{HELLO},"configuration":{{"blocking":"yes"}}}}"#),
            "InvalidParamsError",
            "configuration.blocking",
        ),
    ] {
        let (status, problem) = post(&send, &body).await;
        assert_eq!((status, &problem["type"]), (400, &json!(name)), "{body}: {problem}");
        let named_field = problem["error"]["details"][1]["fieldViolations"][0]["field"].as_str().unwrap_or_default();
        assert_eq!(named_field, field, "{body}: {problem}");
    }
    let reply =
        crate::bindings::http().post(&send).header(header::CONTENT_TYPE, "text/plain").body("{}").send().await.unwrap();
    assert_eq!((reply.status().as_u16(), json(reply).await["code"].take()), (415, json!(-32005)));
    let (status, problem) = get(&format!("{}/v1/tasks/%FF", server.url)).await;
    assert_eq!((status, &problem["type"]), (400, &json!("InvalidParamsError")));
    assert!(server.echo.calls.lock().is_empty());
}

/// The path states the version; the header matters only if it states 1.0 or an unknown version.
#[tokio::test]
async fn version_is_taken_from_the_path_unless_the_header_states_1_0() {
    allow_undocumented(Exemption::Parameters);
    let server =
        Server::with(Settings { strict_version: true, ..settings() }, listener::ListenerSettings::default()).await;
    let get = async |path: &str, version: &str| {
        let http = crate::bindings::http().get(format!("{}{path}", server.url)).header("a2a-version", version);
        let reply = http.send().await.unwrap();
        (reply.status().as_u16(), json(reply).await)
    };
    for version in ["", "0.3", "0.3.0", "0.2", "0.1", "0.2.6"] {
        assert_eq!(get("/v1/tasks/t", version).await.1["contextId"], " None", "{version}");
        assert_eq!(server.echo.calls.lock().pop().unwrap().version, Version::V0_3);
    }
    for version in ["2.0", "9.9", "one"] {
        let (status, problem) = get("/v1/tasks/t", version).await;
        assert_eq!((status, &problem["code"]), (400, &json!(-32600)), "{version}: {problem}");
    }
    // `v1` is a tenant of 1.0 if the client states version 1.0.
    assert_eq!(
        get("/v1/tasks/t", "1.0").await.1,
        json!({"id": "t", "contextId": "v1 None", "status": {"state": "TASK_STATE_SUBMITTED"}})
    );
    assert_eq!(get("/v1/tasks/t?A2A-Version=1.0", "").await.1["contextId"], "v1 None");
    assert_eq!(get("/v1/tasks/t", "1.7").await.1["error"]["details"][0]["reason"], "VERSION_NOT_SUPPORTED");
}

#[tokio::test]
async fn disabled_protocol_version_is_rejected() {
    allow_undocumented(Exemption::Responses);
    let only = async |version: Version| {
        let settings = Settings { protocols: [version].into_iter().collect(), ..settings() };
        Server::with(settings, listener::ListenerSettings::default()).await
    };
    let current = only(Version::V1_0).await;
    // Without 0.3, `v1` is an ordinary tenant.
    let (_, task) = get(&format!("{}/v1/tasks/t", current.url)).await;
    assert_eq!(task["contextId"], "v1 None");
    let (status, problem) =
        post(&format!("{}/v1/message:send", current.url), &format!(r#"{{"message":{HELLO}}}"#)).await;
    let info = &problem["error"]["details"][0];
    assert_eq!((status, &info["reason"]), (400, &json!("INVALID_PARAMS")), "a message of 0.3 is invalid in 1.0");
    assert_eq!(get(&format!("{}/tasks/t", current.url)).await.0, 200);

    let v03 = only(Version::V0_3).await;
    assert_eq!(get(&format!("{}/v1/tasks/t", v03.url)).await.0, 200);
    let (status, problem) = get(&format!("{}/tasks/t", v03.url)).await;
    let info = &problem["error"]["details"][0];
    assert_eq!((status, &info["reason"]), (400, &json!("VERSION_NOT_SUPPORTED")));
    assert_eq!(info["metadata"]["supportedVersions"], "0.3");
}

/// Service that has an extended card.
struct CardService;

#[tonic::async_trait]
impl A2aService for CardService {
    async fn get_extended_agent_card(
        &self,
        _: Request<GetExtendedAgentCardRequest>,
    ) -> Result<Response<AgentCard>, Status> {
        let interface = AgentInterface {
            url: "https://a.example/rpc".into(),
            protocol_binding: "JSONRPC".into(),
            protocol_version: "0.3".into(),
            ..AgentInterface::default()
        };
        let (name, supported_interfaces) = ("known".to_owned(), vec![interface]);
        Ok(Response::new(AgentCard { name, supported_interfaces, ..AgentCard::default() }))
    }
}

/// The card has one form in JSON, and a message in gRPC.
#[tokio::test]
async fn extended_card_has_the_v03_form() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let http_service = CheckedService(HttpService::new(Arc::new(CardService), settings()));
    let connections = listener::ListenerSettings::default();
    let served =
        tokio::spawn(
            async move { listener::serve(listener, http_service, &connections, &CancellationToken::new()).await },
        );
    let (status, card) = get(&format!("{url}/v1/card")).await;
    assert_eq!((status, &card["name"], &card["url"]), (200, &json!("known"), &json!("https://a.example/rpc")));
    assert_eq!((&card["protocolVersion"], &card["preferredTransport"]), (&json!("0.3.0"), &json!("JSONRPC")));
    assert!(card.get("supportedInterfaces").is_none() && card["skills"].is_array(), "{card}");
    let mut agent = A2aServiceClient::new(Channel::from_shared(url).unwrap().connect_lazy());
    let card = agent.get_agent_card(GetAgentCardRequest {}).await.unwrap().into_inner();
    assert_eq!(
        (card.name.as_str(), card.url.as_str(), &*card.protocol_version),
        ("known", "https://a.example/rpc", "0.3.0")
    );
    served.abort();
}
