//! The examples that people have of protocol 0.2 and 0.3, sent as they are printed: what is printed as the answer is the
//! answer.

mod agent;
mod examples;
mod same;

use std::time::Duration;

use a2a_service::{
    auth::{Bearer, Token},
    card::CardConfig,
    server::Server,
    service::{Limits, Modes},
};
use serde_json::{Value, json};

use self::{
    agent::Player,
    examples::{Exchange, Scene},
    same::Names,
};
use crate::ways::serve;

async fn post(url: &str, body: String) -> reqwest::Response {
    let request = reqwest::Client::new().post(url).header("content-type", "application/json");
    request.body(body).send().await.unwrap()
}

/// The answer, or what the events of a stream carry, of which the form is that which is printed.
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
            let mut all = event.lines().filter_map(|it| it.strip_prefix(name)?.strip_prefix(": "));
            (all.next(), all.next())
        };
        let (Some(data), None) = field("data") else { panic!("not one line of data: {event}") };
        let data: Value = serde_json::from_str(data).unwrap();
        let failed = data.get("error").is_some();
        assert_eq!(field("event"), (Some(if failed { "error" } else { "message" }), None), "{event}");
        events.push(data);
    }
    Value::Array(events)
}

/// What is printed, with what differs in its place.
fn expected(exchange: &Exchange) -> Value {
    let mut printed: Value = serde_json::from_str(exchange.answer).unwrap();
    for (place, value, why) in exchange.differs {
        assert!(!why.is_empty());
        let (parent, name) = place.rsplit_once('/').unwrap();
        let parent = printed.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        let was = match *value {
            "" => parent.remove(name),
            value => parent.insert(name.to_owned(), serde_json::from_str(value).unwrap()),
        };
        assert!(was.is_some() || !value.is_empty(), "{place} is not printed");
    }
    printed
}

async fn play(scene: Scene, server: Server<Player>) {
    let url = format!("{}/rpc", serve(server).await);
    let mut names = Names::default();
    for exchange in scene {
        let mut request: Value = serde_json::from_str(exchange.request).unwrap();
        names.put_into(&mut request["params"]);
        let answered = answer(&url, &request).await;
        if let Err(why) = names.compare("", &expected(exchange), &answered) {
            panic!("{}: {why}\n{answered:#}", exchange.from);
        }
    }
}

fn player(replies: bool) -> Server<Player> {
    // The paper's sections come one by one there, and here without a pause.
    let mut limits = Limits::default();
    limits.pace = Duration::ZERO;
    Server::new(Player { replies }).limits(limits)
}

/// A test for each scene.
macro_rules! scenes {
    ($($name:ident: $scene:ident on $server:expr;)*) => { $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            play(examples::$scene, $server).await;
        }
    )* };
}

scenes! {
    a_joke: JOKE on player(false);
    a_joke_without_a_task: JOKE_WITHOUT_A_TASK on player(true);
    a_paper: PAPER on player(false);
    a_flight: FLIGHT on player(false);
    a_report: REPORT on player(false).push(true);
    faces: FACES on player(false);
    tickets: TICKETS on player(false);
    orders: ORDERS on player(false).push(true);
    orders_without_a_task: ORDERS_WITHOUT_A_TASK on player(true);
    orders_canceled: ORDERS_CANCELED on player(false);
    orders_streamed: ORDERS_STREAMED on player(false);
    orders_with_an_error: ORDERS_ERROR on player(false);
    orders_with_a_webhook: ORDERS_PUSH on player(false).push(true);
    an_extended_card: EXTENDED_CARD on player(false);
    a_researcher: RESEARCHER on player(false);
    a_reference: REFERENCE on player(false);
    a_reference_with_a_webhook: REFERENCE_PUSH on player(false).push(true);
}

fn send(text: &str) -> Value {
    let message = json!({"role": "user", "parts": [{"kind": "text", "text": text}], "messageId": "m-1"});
    json!({"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": message}})
}

/// The researcher's page has a table of what goes wrong, and what is said then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_researchers_errors() {
    let mut modes = Modes::default();
    modes.require_text = true;
    let url = format!("{}/a2a", serve(player(false).modes(modes).max_body(4096)).await);
    let call = |method: &str, params: Value| {
        json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string()
    };
    let no_text = json!({"message": {"role": "user", "parts": [{"kind": "data", "data": {}}], "messageId": "m-1"}});
    for (what, body, http, code) in [
        ("a body that is not JSON", "{".to_owned(), 200, -32700),
        ("a body that is too large", send(&"x".repeat(5000)).to_string(), 413, -32600),
        ("not a request of JSON-RPC 2.0", json!({"id": 1, "method": "message/send"}).to_string(), 200, -32600),
        ("a request without an id", send("hi").to_string().replace(r#""id":1,"#, ""), 200, -32600),
        ("a method that nobody knows", call("message/sing", json!({})), 200, -32601),
        ("no message", call("message/send", json!({})), 200, -32602),
        ("no part of text", call("message/send", no_text), 200, -32602),
        ("a task that is not there", call("tasks/get", json!({"id": "t"})), 200, -32001),
        ("nothing to cancel", call("tasks/cancel", json!({"id": "t"})), 200, -32001),
    ] {
        let reply = post(&url, body).await;
        assert_eq!(reply.status(), http, "{what}");
        let reply: Value = serde_json::from_slice(&reply.bytes().await.unwrap()).unwrap();
        let error = reply["error"].as_object().unwrap();
        assert_eq!(error["code"], code, "{what}");
        assert!(error["message"].is_string() && !error.contains_key("data"), "{what}: {error:?}");
        assert!(reply.get("result").is_none() && reply.get("id").is_some(), "{what}");
    }
    // An agent that fails is no error of the call, and what it fell over is not told.
    let failed = answer(&url, &send("Raise")).await;
    assert_eq!(failed["result"]["status"]["state"], "failed");
    assert!(failed["result"]["status"]["message"]["parts"][0]["text"].is_string());
    assert!(!failed.to_string().contains("mat"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_researchers_token() {
    let server = player(false).authenticator(Bearer::new(Token::new("sk-1").unwrap()));
    let url = serve(server).await;
    let url = format!("{url}/a2a");
    assert_eq!(post(&url, send("hello").to_string()).await.status(), 401);
    let request = reqwest::Client::new().post(&url).bearer_auth("sk-1").header("content-type", "application/json");
    assert_eq!(request.body(send("hello").to_string()).send().await.unwrap().status(), 200);
}

/// The tutorial's structures: an id is text, a whole number or null, and an answer has it as it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tutorials_ids() {
    let url = format!("{}/rpc", serve(player(false)).await);
    for id in [json!("req-1"), json!(7), json!(0), Value::Null] {
        let mut request = send("hello");
        request["id"] = id.clone();
        let reply = answer(&url, &request).await;
        assert_eq!((&reply["id"], &reply["jsonrpc"]), (&id, &json!("2.0")));
        assert!(reply.get("result").is_some() && reply.get("error").is_none());
        // Of its task, what the tutorial marks as required.
        for (place, value) in [("/kind", "task"), ("/status/state", "completed"), ("/history/0/kind", "message")] {
            assert_eq!(reply["result"].pointer(place).unwrap(), value);
        }
        assert!(reply["result"]["id"].is_string() && reply["result"]["contextId"].is_string());
    }
}

/// The researcher's card, where people looked for it before there was a path for it. The specification's own card is
/// among the tests of cards.
#[tokio::test]
async fn the_researchers_card() {
    let no_streams: CardConfig = serde_json::from_value(json!({"capabilities": {"streaming": false}})).unwrap();
    let server = player(false).description("Research agent that summarizes topics").version("0.21.0");
    let url = serve(server.card(no_streams)).await;
    let printed = json!({
        "protocolVersion": "0.2.6", "name": "researcher", "description": "Research agent that summarizes topics", "url": "",
        "version": "0.21.0",
        "capabilities": {"streaming": false, "pushNotifications": false, "stateTransitionHistory": false},
        "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "summarize", "name": "summarize", "description": "Summarize a text", "tags": ["tool"]}],
    });
    for path in ["/.well-known/agent.json", "/.well-known/agent-card.json", "/agent-card"] {
        let reply = reqwest::get(format!("{url}{path}")).await.unwrap();
        assert_eq!(reply.status(), 200, "{path}");
        let card: Value = serde_json::from_slice(&reply.bytes().await.unwrap()).unwrap();
        for (name, printed) in printed.as_object().unwrap() {
            let differs = match name.as_str() {
                // The last version of what it is written in.
                "protocolVersion" => json!("0.3.0"),
                // 0.3, 5.5: where it is reached, which has to be said.
                "url" => json!(format!("{url}/rpc")),
                _ => printed.clone(),
            };
            let shown = match name.as_str() {
                // Members that 1.0 has too.
                "capabilities" => only(&card[name], printed),
                _ => card[name].clone(),
            };
            assert_eq!(shown, differs, "{path}: {name}");
        }
    }
}

/// Of an object, the members that another one has.
fn only(of: &Value, others: &Value) -> Value {
    let has = |name: &String| others.get(name).is_some();
    of.as_object().unwrap().iter().filter(|it| has(it.0)).map(|it| (it.0.clone(), it.1.clone())).collect()
}
