//! Published request and reply examples of protocols 0.2 and 0.3: each request gets the printed reply.

mod agent;
mod compare;
mod examples;

use std::time::Duration;

use a2a_service::{
    auth::{Bearer, Token},
    card::CardConfig,
    server::Server,
    service::{Limits, Modes},
};
use serde_json::{Value, json};

use self::{
    agent::ExampleAgent,
    compare::IdMap,
    examples::{Exchange, Scene},
};
use crate::bindings::serve;
use crate::conformance::{Exemption, allow_undocumented};

async fn post(url: &str, body: String) -> reqwest::Response {
    allow_undocumented(Exemption::Requests);
    let request = crate::bindings::http().post(url).header("content-type", "application/json");
    request.body(body).send().await.unwrap()
}

/// Returns the reply, or the data of the events of a stream.
async fn answer(url: &str, request: &Value) -> Value {
    let reply = post(url, request.to_string()).await;
    assert_eq!(reply.status(), 200);
    let content_type = reply.headers()["content-type"].to_str().unwrap().to_owned();
    let text = reply.text().await.unwrap();
    if content_type != "text/event-stream" {
        assert_eq!(content_type, "application/json");
        return serde_json::from_str(&text).unwrap();
    }
    let mut events = Vec::new();
    for event in text.split_terminator("\n\n") {
        let field = |name: &str| {
            let mut all = event.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            (all.next(), all.next())
        };
        let (Some(data), None) = field("data") else { panic!("an event must have one data line: {event}") };
        let data: Value = serde_json::from_str(data).unwrap();
        let failed = data.get("error").is_some();
        assert_eq!(field("event"), (Some(if failed { "error" } else { "message" }), None), "{event}");
        events.push(data);
    }
    Value::Array(events)
}

/// Printed reply with the documented differences applied.
fn expected(exchange: &Exchange) -> Value {
    let mut printed: Value = serde_json::from_str(exchange.answer).unwrap();
    for (pointer, value, reason) in exchange.differs {
        assert!(!reason.is_empty());
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        let parent = printed.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        let was = match *value {
            "" => parent.remove(name),
            value => parent.insert(name.to_owned(), serde_json::from_str(value).unwrap()),
        };
        assert!(was.is_some() || !value.is_empty(), "{pointer} is not printed");
    }
    printed
}

async fn play(scene: Scene, server: Server) {
    let url = format!("{}/rpc", serve(server).await);
    let mut ids = IdMap::default();
    for exchange in scene {
        let mut request: Value = serde_json::from_str(exchange.request).unwrap();
        ids.substitute(&mut request["params"]);
        let actual = answer(&url, &request).await;
        if let Err(difference) = ids.compare("", &expected(exchange), &actual) {
            panic!("{}: {difference}\n{actual:#}", exchange.from);
        }
    }
}

fn example_server(replies: bool) -> Server {
    // Disables coalescing: the sections of the paper are separate events.
    let mut limits = Limits::default();
    limits.commit_interval = Duration::ZERO;
    Server::new(ExampleAgent { replies }).limits(limits)
}

/// Expands to a test per scene.
macro_rules! scenes {
    ($($name:ident: $scene:ident on $server:expr;)*) => { $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            play(examples::$scene, $server).await;
        }
    )* };
}

scenes! {
    joke_example: JOKE on example_server(false);
    joke_example_without_a_task: JOKE_WITHOUT_A_TASK on example_server(true);
    paper_example: PAPER on example_server(false);
    flight_example: FLIGHT on example_server(false);
    report_example: REPORT on example_server(false).push(true).push_options(crate::bindings::no_names());
    faces_example: FACES on example_server(false);
    tickets_example: TICKETS on example_server(false);
    orders_example: ORDERS on example_server(false).push(true).push_options(crate::bindings::no_names());
    orders_example_without_a_task: ORDERS_WITHOUT_A_TASK on example_server(true);
    orders_example_canceled: ORDERS_CANCELED on example_server(false);
    orders_example_streamed: ORDERS_STREAMED on example_server(false);
    orders_example_with_an_error: ORDERS_ERROR on example_server(false);
    orders_example_with_a_push_configuration: ORDERS_PUSH on example_server(false).push(true).push_options(crate::bindings::no_names());
    extended_card_example: EXTENDED_CARD on example_server(false);
    researcher_example: RESEARCHER on example_server(false);
    python_types_example: REFERENCE on example_server(false);
    python_types_example_with_a_push_configuration: REFERENCE_PUSH on example_server(false).push(true).push_options(crate::bindings::no_names());
}

fn send(text: &str) -> Value {
    let message = json!({"role": "user", "parts": [{"kind": "text", "text": text}], "messageId": "m-1"});
    json!({"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": message}})
}

/// The error table on the page of the researcher example.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_the_researcher_example() {
    let mut modes = Modes::default();
    modes.require_text = true;
    let url = format!("{}/a2a", serve(example_server(false).modes(modes).body_bytes(4096)).await);
    let call = |method: &str, params: Value| {
        json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string()
    };
    let no_text = json!({"message": {"role": "user", "parts": [{"kind": "data", "data": {}}], "messageId": "m-1"}});
    for (case, body, http, code) in [
        ("a body that is not JSON", "{".to_owned(), 200, -32700),
        ("a body that is too large", send(&"x".repeat(5000)).to_string(), 413, -32600),
        ("not a request of JSON-RPC 2.0", json!({"id": 1, "method": "message/send"}).to_string(), 200, -32600),
        ("a request without an id", send("hi").to_string().replace(r#""id":1,"#, ""), 200, -32600),
        ("an unknown method", call("message/sing", json!({})), 200, -32601),
        ("no message", call("message/send", json!({})), 200, -32602),
        ("no part of text", call("message/send", no_text), 200, -32602),
        ("a missing task", call("tasks/get", json!({"id": "t"})), 200, -32001),
        ("nothing to cancel", call("tasks/cancel", json!({"id": "t"})), 200, -32001),
    ] {
        let reply = post(&url, body).await;
        assert_eq!(reply.status(), http, "{case}");
        let reply: Value = serde_json::from_slice(&reply.bytes().await.unwrap()).unwrap();
        let error = reply["error"].as_object().unwrap();
        assert_eq!(error["code"], code, "{case}");
        assert!(error["message"].is_string() && !error.contains_key("data"), "{case}: {error:?}");
        assert!(reply.get("result").is_none() && reply.get("id").is_some(), "{case}");
    }
    // A failing agent is a task state, not an error, and its cause is not exposed.
    let failed = answer(&url, &send("Raise")).await;
    assert_eq!(failed["result"]["status"]["state"], "failed");
    assert!(failed["result"]["status"]["message"]["parts"][0]["text"].is_string());
    assert!(!failed.to_string().contains("mat"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_of_the_researcher_example() {
    allow_undocumented(Exemption::Requests);
    let server = example_server(false).authenticator(Bearer::new(Token::new("sk-1").unwrap()));
    let url = serve(server).await;
    let url = format!("{url}/a2a");
    assert_eq!(post(&url, send("hello").to_string()).await.status(), 401);
    let request = crate::bindings::http().post(&url).bearer_auth("sk-1").header("content-type", "application/json");
    assert_eq!(request.body(send("hello").to_string()).send().await.unwrap().status(), 200);
}

/// JSON-RPC ids of the tutorial: text, integer or null, returned unchanged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_rpc_ids_are_returned_unchanged() {
    let url = format!("{}/rpc", serve(example_server(false)).await);
    for id in [json!("req-1"), json!(7), json!(0), Value::Null] {
        let mut request = send("hello");
        request["id"] = id.clone();
        let reply = answer(&url, &request).await;
        assert_eq!((&reply["id"], &reply["jsonrpc"]), (&id, &json!("2.0")));
        assert!(reply.get("result").is_some() && reply.get("error").is_none());
        // Members that the tutorial marks as required.
        for (pointer, value) in [("/kind", "task"), ("/status/state", "completed"), ("/history/0/kind", "message")] {
            assert_eq!(reply["result"].pointer(pointer).unwrap(), value);
        }
        assert!(reply["result"]["id"].is_string() && reply["result"]["contextId"].is_string());
    }
}

/// Card of the researcher example, at the paths used before one was specified.
#[tokio::test]
async fn card_of_the_researcher_example() {
    let no_streams: CardConfig = serde_json::from_value(json!({"capabilities": {"streaming": false}})).unwrap();
    let server = example_server(false).description("Research agent that summarizes topics").version("0.21.0");
    let url = serve(server.card(no_streams)).await;
    let printed = json!({
        "protocolVersion": "0.2.6", "name": "researcher", "description": "Research agent that summarizes topics", "url": "",
        "version": "0.21.0",
        "capabilities": {"streaming": false, "pushNotifications": false, "stateTransitionHistory": false},
        "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "summarize", "name": "summarize", "description": "Summarize a text", "tags": ["tool"]}],
    });
    for path in ["/.well-known/agent.json", "/.well-known/agent-card.json", "/agent-card"] {
        let reply = crate::bindings::fetch(format!("{url}{path}")).await.unwrap();
        assert_eq!(reply.status(), 200, "{path}");
        let card: Value = serde_json::from_slice(&reply.bytes().await.unwrap()).unwrap();
        for (name, printed) in printed.as_object().unwrap() {
            let expected = match name.as_str() {
                // The latest 0.x version that the card is written in.
                "protocolVersion" => json!("0.3.0"),
                // 0.3, 5.5: the URL is required.
                "url" => json!(format!("{url}/rpc")),
                _ => printed.clone(),
            };
            let actual = match name.as_str() {
                // The object also has members of 1.0.
                "capabilities" => only(&card[name], printed),
                _ => card[name].clone(),
            };
            assert_eq!(actual, expected, "{path}: {name}");
        }
    }
}

/// Members of an object that another object has too.
fn only(object: &Value, reference: &Value) -> Value {
    let has = |name: &String| reference.get(name).is_some();
    let members = object.as_object().unwrap().iter().filter(|(name, _)| has(name));
    members.map(|(name, value)| (name.clone(), value.clone())).collect()
}
