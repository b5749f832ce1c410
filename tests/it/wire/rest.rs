//! HTTP+JSON of 1.0: paths, queries, bodies, media types, headers and errors.

use a2a_service::contract::{BodyMapping, Dispatch as _};
use a2a_service::pb::v1::bindings::{Rpc, ServiceHandle};
use http::{Method, header};
use serde_json::{Value, json};

use super::support::*;
use crate::conformance::{Exemption, allow_undocumented};

const JSON: &str = "application/json";
const A2A_JSON: &str = "application/a2a+json";

async fn get(url: &str) -> (u16, Value) {
    let reply = crate::bindings::fetch(url).await.unwrap();
    (reply.status().as_u16(), json(reply).await)
}

async fn post(url: &str, content_type: &str, body: &str) -> (u16, Value) {
    let http = crate::bindings::http().post(url).header(header::CONTENT_TYPE, content_type);
    let reply = http.body(body.to_owned()).send().await.unwrap();
    (reply.status().as_u16(), json(reply).await)
}

#[test]
fn paths_route_to_rpcs() {
    let route = ServiceHandle::route("POST", &["tasks", "42"], "cancel").unwrap();
    assert_eq!((route.rpc, route.body, route.fields), (Rpc::CancelTask, BodyMapping::Whole, vec![("id", "42".into())]));
    let route = ServiceHandle::route("GET", &["acme", "tasks", "42"], "subscribe").unwrap();
    assert_eq!((route.rpc, route.fields), (Rpc::SubscribeToTask, vec![("tenant", "acme".into()), ("id", "42".into())]));
    // In the text of the specification, but not in its proto file.
    assert_eq!(ServiceHandle::route("POST", &["tasks", "42"], "subscribe").unwrap().rpc, Rpc::SubscribeToTask);
    let route = ServiceHandle::route("DELETE", &["acme", "tasks", "42", "pushNotificationConfigs", "7"], "").unwrap();
    assert_eq!(route.rpc, Rpc::DeleteTaskPushNotificationConfig);
    assert!(ServiceHandle::route("PUT", &["tasks"], "").is_none());
    assert_eq!(ServiceHandle::CUSTOM_VERBS, ["cancel", "send", "stream", "subscribe"]);
}

#[tokio::test]
async fn path_segments_may_have_colons_and_escapes() {
    allow_undocumented(Exemption::Parameters);
    let Server { url, .. } = &Server::start().await;
    for (path, id) in [
        ("urn:x:1", "urn:x:1"),
        ("a%3Ab", "a:b"),
        ("a%3Acancel", "a:cancel"),
        ("a%2Fb", "a/b"),
        ("a+b", "a+b"),
        ("%C3%BC", "ü"),
    ] {
        let (status, task) = get(&format!("{url}/tasks/{path}")).await;
        assert_eq!((status, &task["id"]), (200, &json!(id)), "{path}");
    }
    let (status, problem) = get(&format!("{url}/tasks/%FF")).await;
    assert_eq!((status, &problem["error"]["status"]), (400, &json!("INVALID_ARGUMENT")));
    let (_, task) = get(&format!("{url}/acme%20inc/tasks/t?historyLength=3&tenant=other&A2A-Version=1.0")).await;
    assert_eq!((&task["id"], &task["contextId"]), (&json!("t"), &json!("acme inc Some(3)")));
}

#[tokio::test]
async fn query_parameters_are_decoded_and_checked() {
    allow_undocumented(Exemption::Parameters);
    let Server { url, .. } = &Server::start().await;
    for query in [
        "contextId=c%2B1&pageSize=50&includeArtifacts=true&status=TASK_STATE_WORKING&lastEventId=x",
        "context_id=c%2B1&page_size=50&include_artifacts=true&status=2&statusTimestampAfter=",
        "context%49d=c%2b1&pageSize=%350&includeArtifacts=true&status=TASK_STATE_WORKING&x&y=1&y=2&=",
        "contextId=c%2B1&pageSize=50&includeArtifacts=true&status=2&status_timestamp_after=2026-01-01T00:00:00.5%2B02:00",
        "contextId=c%2B1&pageSize=50&includeArtifacts=true&status=2&lastUpdatedAfter=2026-01-01T00:00:00Z",
    ] {
        let (status, tasks) = get(&format!("{url}/tasks?{query}")).await;
        assert_eq!((status, &tasks["pageSize"]), (200, &json!(50)), "{query}: {tasks}");
        assert_eq!(tasks["nextPageToken"], "Some(true) c+1 Working", "{query}");
    }
    for (wrong, name) in [
        ("pageSize=ten", "pageSize"),
        ("page_size=1.5", "page_size"),
        ("pageSize=3000000000", "pageSize"),
        ("historyLength=-", "historyLength"),
        ("pageSize=1&pageSize=2", "pageSize"),
        ("pageSize=1&page_size=1", "page_size"),
        ("status=nonsense", "status"),
        ("status=99", "status"),
        ("includeArtifacts=maybe", "includeArtifacts"),
        ("include_artifacts=1", "include_artifacts"),
        ("statusTimestampAfter=yesterday", "statusTimestampAfter"),
        ("x=1&status_timestamp_after=2026-02-30T00:00:00Z", "status_timestamp_after"),
    ] {
        let (status, problem) = get(&format!("{url}/tasks?{wrong}")).await;
        let details = &problem["error"]["details"];
        assert_eq!((status, &details[0]["reason"]), (400, &json!("INVALID_PARAMS")), "{wrong}: {problem}");
        assert_eq!(details[1]["fieldViolations"][0]["field"], name, "{wrong}: {problem}");
    }
}

#[tokio::test]
async fn unsupported_methods_of_a_path_are_rejected() {
    let Server { url, .. } = &Server::start().await;
    let http = crate::bindings::http();
    for (path, allow) in [
        ("/tasks", "GET, HEAD"),
        ("/tasks/", "GET, HEAD"),
        ("/tasks/t", "GET, HEAD"),
        ("/acme/tasks/urn:x:1", "GET, HEAD"),
        ("/tasks/t:cancel", "POST"),
        ("/tasks/urn:x:1:cancel/", "POST"),
        ("/tasks/t:subscribe", "GET, HEAD, POST"),
        ("/message:send", "POST"),
        ("/acme/message:stream", "POST"),
        ("/tasks/t/pushNotificationConfigs", "GET, HEAD, POST"),
        ("/tasks/t/pushNotificationConfigs/c", "DELETE, GET, HEAD"),
        ("/extendedAgentCard", "GET, HEAD"),
        ("/rpc", "POST"),
        ("/a2a/", "POST"),
        ("/", "POST"),
        ("/.well-known/agent-card.json", "GET, HEAD"),
        ("/.well-known/jwks.json", "GET, HEAD"),
        ("/.well-known/oauth-protected-resource", "GET, HEAD"),
        ("/healthz", "GET, HEAD"),
        ("/readyz", "GET, HEAD"),
    ] {
        for verb in [Method::PUT, Method::PATCH, Method::GET, Method::POST, Method::DELETE, Method::OPTIONS] {
            if allow.split(", ").any(|allowed| verb == allowed) {
                continue;
            }
            let reply = http.request(verb.clone(), format!("{url}{path}")).header("a2a-version", "1.0");
            let reply = reply.json_body("{}").send().await.unwrap();
            assert_eq!(reply.headers()[header::ALLOW], allow, "{verb} {path}");
            if verb == Method::OPTIONS {
                assert_eq!((reply.status().as_u16(), reply.text().await.unwrap().as_str()), (204, ""), "{path}");
                continue;
            }
            assert_eq!(reply.status(), 405, "{verb} {path}");
            let error = json(reply).await["error"].take();
            assert_eq!(error["message"], format!("Method not allowed: {verb} {path}"));
            let details = if error["details"].is_array() { &error["details"] } else { &error["data"] };
            assert_eq!(details[0]["reason"], "METHOD_NOT_ALLOWED", "{error}");
        }
    }
    let reply = http.request(Method::OPTIONS, format!("{url}/nothing")).send().await.unwrap();
    assert_eq!(reply.status(), 404);
}

/// A suffix that is not an action of the path is part of the id.
#[tokio::test]
async fn unknown_actions_are_part_of_the_id() {
    let Server { url, .. } = &Server::start().await;
    for id in ["a:send", "urn:x:stream", "a:cancelled", "a:"] {
        let (status, task) = get(&format!("{url}/tasks/{id}")).await;
        assert_eq!((status, &task["id"]), (200, &json!(id)));
    }
    for path in ["/message:cancel", "/message", "/message:", "/tasks:send", "/acme/x:send"] {
        let (status, problem) = post(&format!("{url}{path}"), JSON, "{}").await;
        assert_eq!((status, &problem["error"]["details"][0]["reason"]), (404, &json!("METHOD_NOT_FOUND")), "{path}");
    }
}

#[tokio::test]
async fn trailing_slash_is_ignored() {
    let Server { url, .. } = &Server::start().await;
    assert_eq!(get(&format!("{url}/tasks/?pageSize=7")).await.1["pageSize"], 7);
    assert_eq!(get(&format!("{url}/tasks/urn:x:1/")).await.1["id"], "urn:x:1");
    assert_eq!(get(&format!("{url}/acme/tasks/t/?historyLength=1")).await.1["contextId"], "acme Some(1)");
    assert_eq!(post(&format!("{url}/message:send/"), JSON, &send_json("m")).await.0, 200);
    let (_, problem) = post(&format!("{url}/tasks/urn:x:1:cancel/"), JSON, "").await;
    assert_eq!(problem["error"]["message"], "Task cannot be canceled: urn:x:1 false");
    // An empty id is not the list of tasks.
    let (status, problem) = get(&format!("{url}/tasks//")).await;
    assert_eq!((status, &problem["error"]["details"][1]["fieldViolations"][0]["field"]), (400, &json!("id")));
}

#[tokio::test]
async fn head_has_the_headers_of_get() {
    let Server { url, .. } = &Server::start().await;
    let http2 = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
    for http in [crate::bindings::http(), http2] {
        for (path, status) in
            [("/tasks/t", 200), ("/tasks/missing", 404), ("/tasks/t:subscribe", 200), ("/healthz", 200), ("/rpc", 405)]
        {
            let whole = http.get(format!("{url}{path}")).send().await.unwrap();
            let head = http.head(format!("{url}{path}")).send().await.unwrap();
            assert_eq!(head.status(), status, "{path}");
            if status == 405 {
                assert_eq!(head.headers()[header::ALLOW], "POST");
            } else {
                let length = |response: &reqwest::Response| response.headers().get(header::CONTENT_LENGTH).cloned();
                assert_eq!(
                    (length(&head), head.headers()[header::CONTENT_TYPE].clone()),
                    (length(&whole), whole.headers()[header::CONTENT_TYPE].clone())
                );
            }
            assert_eq!(head.text().await.unwrap(), "");
        }
    }
}

/// The content type of a request without a body is ignored.
#[tokio::test]
async fn content_type_without_a_body_is_ignored() {
    let Server { url, .. } = &Server::start().await;
    let http = crate::bindings::http();
    for content_type in ["text/html", "application/grpc", "application/grpc+proto", "application/xml", "?", ""] {
        let get = http.get(format!("{url}/tasks/t")).header(header::CONTENT_TYPE, content_type).send().await.unwrap();
        assert_eq!((get.status().as_u16(), json(get).await["id"].take()), (200, json!("t")), "{content_type}");
        if !content_type.starts_with("application/grpc") {
            let cancel = http.post(format!("{url}/tasks/t:cancel")).header(header::CONTENT_TYPE, content_type);
            let problem = json(cancel.send().await.unwrap()).await;
            assert_eq!(problem["error"]["details"][0]["reason"], "TASK_NOT_CANCELABLE", "{content_type}");
        }
    }
}

#[tokio::test]
async fn unknown_paths_are_not_found() {
    let Server { url, .. } = &Server::start().await;
    for path in ["/tasks/a/b/c", "/a/b/c/d/e/f/g/h/i/j", "/nothing", "/nothing/", "/.well-known/nothing"] {
        let (status, problem) = get(&format!("{url}{path}")).await;
        let error = &problem["error"];
        assert_eq!((status, &error["code"], &error["status"]), (404, &json!(404), &json!("UNIMPLEMENTED")), "{path}");
        assert_eq!(error["details"][0]["reason"], "METHOD_NOT_FOUND");
        assert_eq!(error["message"], format!("Method not found: GET {path}"));
    }
}

/// The error for a path with a slash in place of the colon names the right path.
#[tokio::test]
async fn error_for_a_slash_before_the_action_names_the_path() {
    let Server { url, .. } = &Server::start().await;
    for (path, hint) in [
        ("/message/send", "; use POST /message:send"),
        ("/blue/message/stream/", "; use POST /blue/message:stream"),
        ("/tasks/x/cancel", "; use POST /tasks/x:cancel"),
        ("/tasks/urn:x:1/subscribe", "; use GET /tasks/urn:x:1:subscribe"),
        ("/v1/message/send", "; use POST /v1/message:send"),
        ("/v1/tasks/x/cancel", "; use POST /v1/tasks/x:cancel"),
        ("/nothing/send", ""),
        ("/message/nothing", ""),
    ] {
        let (status, problem) = post(&format!("{url}{path}"), "application/json", "{}").await;
        let message = format!("Method not found: POST {path}{hint}");
        assert_eq!((status, &problem["error"]["message"]), (404, &json!(message)), "{path}");
    }
}

#[tokio::test]
async fn empty_bodies_are_accepted() {
    let Server { url, .. } = &Server::start().await;
    let cancel = format!("{url}/tasks/urn:x:1:cancel");
    for body in ["", "null", "{}", " \n", r#"{"metadata":null}"#, r#"{"id":"another"}"#] {
        let (status, problem) = post(&cancel, "application/json", body).await;
        assert_eq!((status, &problem["error"]["message"]), (400, &json!("Task cannot be canceled: urn:x:1 false")));
    }
    // The content type of an empty body is ignored.
    assert_eq!(post(&cancel, "text/plain", "").await.1["error"]["details"][0]["reason"], "TASK_NOT_CANCELABLE");
    let stream = crate::bindings::http().post(format!("{url}/tasks/t:subscribe")).json_body("{}").send().await.unwrap();
    assert_eq!(stream.headers()[header::CONTENT_TYPE], "text/event-stream");
    let stream = crate::bindings::fetch(format!("{url}/tasks/t:subscribe")).await.unwrap();
    assert_eq!(stream.headers()[header::CONTENT_TYPE], "text/event-stream");
}

#[tokio::test]
async fn media_types_are_negotiated() {
    let Server { url, .. } = &Server::start().await;
    let send = |content_type: &str, accept: &str| {
        let http = crate::bindings::http().post(format!("{url}/message:send")).body(send_json("m"));
        let mut http = http.header(header::CONTENT_TYPE, content_type);
        if !accept.is_empty() {
            http = http.header(header::ACCEPT, accept);
        }
        async { http.send().await.unwrap() }
    };
    for (content_type, accept, reply_type) in [
        (JSON, "", JSON),
        ("Application/JSON; charset=utf-8", "*/*", JSON),
        (A2A_JSON, "", A2A_JSON),
        ("application/A2A+json;v=1", "*/*", A2A_JSON),
        (A2A_JSON, JSON, JSON),
        (JSON, A2A_JSON, A2A_JSON),
        (JSON, "text/html, application/json;q=0.9, application/a2a+json;q=0.8", A2A_JSON),
    ] {
        let reply = send(content_type, accept).await;
        assert_eq!(
            (reply.status().as_u16(), &reply.headers()[header::CONTENT_TYPE]),
            (200, &reply_type.parse().unwrap())
        );
        assert_eq!(reply.text().await.unwrap(), format!(r#"{{"message":{}}}"#, hello_json("m")));
    }
    for wrong in ["text/plain", "application/x-www-form-urlencoded", "application/jsonx", "application/grpc-web+json"] {
        let reply = send(wrong, A2A_JSON).await;
        assert_eq!((reply.status().as_u16(), &reply.headers()[header::CONTENT_TYPE]), (400, &JSON.parse().unwrap()));
        let problem: Value = json(reply).await;
        assert_eq!(problem["error"]["details"][0]["reason"], "CONTENT_TYPE_NOT_SUPPORTED", "{problem}");
    }
    // A content type of gRPC-Web selects that binding on every path, as does one of gRPC.
    let reply = send("application/grpc-web+proto", A2A_JSON).await;
    assert_eq!(
        (reply.status().as_u16(), &reply.headers()[header::CONTENT_TYPE], &reply.headers()["grpc-status"]),
        (200, &"application/grpc-web+proto".parse().unwrap(), &"12".parse().unwrap())
    );
}

#[tokio::test]
async fn response_has_a_body_and_the_headers_of_the_service() {
    let Server { url, .. } = &Server::start().await;
    let reply =
        crate::bindings::http().post(format!("{url}/message:send")).json_body(send_json("m")).send().await.unwrap();
    assert_eq!(reply.headers()["a2a-extensions"], "https://example.com/ext");
    assert_ne!(reply.headers()[header::CONTENT_LENGTH], "7");
    assert!(!reply.headers().contains_key(header::TRANSFER_ENCODING));
    let config = format!("{url}/tasks/t/pushNotificationConfigs/c");
    let reply = crate::bindings::http().delete(config).send().await.unwrap();
    assert_eq!((reply.status().as_u16(), reply.text().await.unwrap().as_str()), (200, "{}"));
}

/// Active extensions are in the header that the request used for them, in either protocol version.
#[tokio::test]
async fn extensions_are_echoed_in_the_spelling_of_the_request() {
    const BOTH: [&str; 2] = ["a2a-extensions", "x-a2a-extensions"];
    let Server { url, .. } = &Server::start().await;
    let v03_send = r#"{"message":{"messageId":"m","role":"ROLE_USER","content":[{"text":"hi"}]}}"#;
    let rpc = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{}}}"#, send_json("m"));
    for (sent, other) in [(BOTH[0], BOTH[1]), (BOTH[1], BOTH[0])] {
        for (path, body) in [
            ("/message:send", send_json("m")),
            ("/message:stream", send_json("m")),
            ("/v1/message:send", v03_send.to_owned()),
            ("/rpc", rpc.clone()),
        ] {
            let http = crate::bindings::http().post(format!("{url}{path}")).header(sent, "https://example.com/ext");
            let reply = http.json_body(body).send().await.unwrap();
            assert_eq!(reply.headers()[sent], "https://example.com/ext", "{path}");
            assert!(!reply.headers().contains_key(other), "{path} {sent}");
        }
        let mut agent = a2a_service::pb::v1::a2a_service_client::A2aServiceClient::connect(url.clone()).await.unwrap();
        let mut request = tonic::Request::new(send("m"));
        request.metadata_mut().insert(sent, "https://example.com/ext".parse().unwrap());
        let reply = agent.send_message(request).await.unwrap();
        assert!(reply.metadata().contains_key(sent) && !reply.metadata().contains_key(other), "{sent}");
    }
}

#[tokio::test]
async fn errors_have_details_and_headers() {
    let Server { url, .. } = &Server::start().await;
    let (status, problem) = get(&format!("{url}/tasks/missing")).await;
    assert_eq!(status, 404);
    assert_eq!(
        problem,
        json!({"error": {"code": 404, "status": "NOT_FOUND", "message": "Task not found: missing", "details": [{
            "@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "TASK_NOT_FOUND",
            "domain": "a2a-protocol.org", "metadata": {"taskId": "missing"},
        }]}})
    );
    let reply = crate::bindings::fetch(format!("{url}/tasks/limited")).await.unwrap();
    assert_eq!((reply.status().as_u16(), &reply.headers()[header::RETRY_AFTER]), (429, &"2".parse().unwrap()));
    let reply = crate::bindings::fetch(format!("{url}/tasks/secret")).await.unwrap();
    assert_eq!(reply.status(), 401);
    assert_eq!(reply.headers()[header::WWW_AUTHENTICATE], "Bearer realm=\"a\"");
    // A method that the service does not implement.
    let (status, problem) = get(&format!("{url}/extendedAgentCard")).await;
    assert_eq!((status, &problem["error"]["details"][0]["reason"]), (404, &json!("METHOD_NOT_FOUND")));
}

#[tokio::test]
async fn invalid_body_is_named_by_field() {
    let Server { url, .. } = &Server::start().await;
    let send = format!("{url}/message:send");
    let (_, problem) = post(&send, "application/json", "{").await;
    assert_eq!(problem["error"]["details"][0]["reason"], "PARSE_ERROR");
    let (_, problem) = post(&send, "application/json", r#"{"message":{"role":"user"}}"#).await;
    assert_eq!(problem["error"]["details"][1]["fieldViolations"][0]["field"], "message.role");
    let (_, problem) = post(&send, "application/json", "").await;
    assert_eq!(problem["error"]["details"][1]["fieldViolations"][0]["field"], "message");
}

/// The service receives the request context, and no headers.
#[tokio::test]
async fn service_receives_the_request_context() {
    let server = Server::start().await;
    let http = crate::bindings::http().get(format!("{}/tasks/t", server.url));
    http.header("authorization", "Bearer x").header("x-request-id", "r1").send().await.unwrap();
    let call = server.echo.calls.lock().pop().unwrap();
    assert_eq!((call.binding, call.request_id.as_deref()), (a2a_service::call::Binding::Rest, Some("r1")));
    assert_eq!(call.cursor, None);
    assert_eq!((&*call.owner, call.peer.map(|peer| peer.ip().is_loopback())), ("", Some(true)));
}

#[tokio::test]
async fn cursor_is_a_header_or_a_query_parameter() {
    allow_undocumented(Exemption::Parameters);
    let server = Server::start().await;
    let url = format!("{}/tasks/t:subscribe?x=y&lastEventId=t.%31.2&lastEventId=z", server.url);
    for (header, expected) in [(None, "t.1.2"), (Some("t.3.4"), "t.3.4")] {
        let http = crate::bindings::http().get(&url);
        let http = header.into_iter().fold(http, |http, value| http.header("last-event-id", value));
        assert_eq!(http.send().await.unwrap().status(), 200);
        let call = server.echo.calls.lock().pop().unwrap();
        assert_eq!(call.cursor.unwrap().as_str(), expected);
    }
}
