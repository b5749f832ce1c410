//! The client of one agent: card, selection of an interface, operations, credentials, limits, and lost connections.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use a2a_service::{
    A2aService, BoxStream,
    agent::demo::Demo,
    call::{Binding, Call},
    client::{self, Client, ClientBuilder, EventStream, HttpTransport, Retry, SizeLimits, StreamEvent},
    error::{Error, ErrorKind},
    pb::v1::{
        AgentCard, AgentInterface, ListTasksRequest, Part, SendMessageConfiguration, SendMessageRequest, TaskState,
    },
    protocol::Version,
    server::Server,
};
use axum::{Router, response::IntoResponse as _, routing::get};
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, header};
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_stream::StreamExt as _;
use tonic::Status;

use crate::bindings::no_names;

mod catalogs;
mod credentials;
mod cuts;
mod event_streams;
mod hostile;

const TIMEOUT: Duration = Duration::from_secs(20);

const ALL: [(Binding, Version); 6] = [
    (Binding::Rest, Version::V1_0),
    (Binding::JsonRpc, Version::V1_0),
    (Binding::Grpc, Version::V1_0),
    (Binding::Rest, Version::V0_3),
    (Binding::JsonRpc, Version::V0_3),
    (Binding::Grpc, Version::V0_3),
];

async fn demo() -> String {
    let server = Server::new(Demo).name("Demo").push(true).push_options(no_names()).bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", server.addr());
    tokio::spawn(server.run_until(std::future::pending()));
    url
}

fn quick() -> ClientBuilder {
    Client::builder().timeout(TIMEOUT).retry(Retry::default().first(Duration::from_millis(1)))
}

fn immediately(text: &str) -> SendMessageRequest {
    let configuration = SendMessageConfiguration { return_immediately: true, ..SendMessageConfiguration::default() };
    SendMessageRequest { configuration: Some(configuration), ..text.into() }
}

/// Text of all artifacts, and the last state.
async fn read(mut events: EventStream) -> (String, TaskState) {
    let (mut text, mut state) = (String::new(), TaskState::Unspecified);
    while let Some(event) = events.next().await {
        let event = event.unwrap();
        state = event.state().unwrap_or(state);
        if let StreamEvent::Artifact(update) = event {
            text.extend(update.artifact.unwrap().parts.iter().filter_map(Part::as_text));
        }
    }
    (text, state)
}

#[tokio::test]
async fn all_operations_work_over_each_binding_and_version() {
    let url = demo().await;
    for (binding, version) in ALL {
        let agent = quick().binding(binding).version(version).connect(&url).await.unwrap();
        let interface = agent.interface().unwrap();
        assert_eq!((interface.binding, interface.version), (binding, version));
        assert_eq!(agent.card().name, "Demo");
        let outcome = agent.send("Hello").await.unwrap();
        assert_eq!((outcome.text().as_str(), outcome.state(), outcome.error()), ("Hello", TaskState::Completed, None));
        let outcome = agent.send("/fail no such city").await.unwrap();
        assert_eq!(outcome.error().as_deref(), Some("no such city"));
        let outcome = agent.send("/message hi").await.unwrap();
        assert_eq!(outcome.text(), "hi");

        let streamed = read(agent.stream("/stream 2 1").await.unwrap()).await;
        assert_eq!(streamed, ("chunk 1 of 2\nchunk 2 of 2\n".to_owned(), TaskState::Completed));

        let mut conversation = agent.conversation();
        let asked = conversation.send("/ask Which city?").await.unwrap();
        assert_eq!((asked.state(), asked.text().as_str()), (TaskState::InputRequired, "Which city?"));
        assert_eq!(conversation.task_id(), asked.task().unwrap().id);
        let answered = conversation.send("Paris").await.unwrap();
        assert_eq!(
            (answered.text().as_str(), answered.task().unwrap().id == asked.task().unwrap().id),
            ("Paris", true)
        );
        assert!(conversation.task_id().is_empty() && !conversation.context_id().is_empty());
        let next = conversation.send("Hello").await.unwrap();
        assert_eq!(next.task().unwrap().context_id, asked.task().unwrap().context_id);

        let slow = agent.send(immediately("/slow 60")).await.unwrap();
        let id = slow.task().unwrap().id.clone();
        let events = agent.subscribe(&id).await.unwrap();
        let push = agent.push(&id);
        let config = push.create("https://hook.invalid/in").await.unwrap();
        assert_eq!(push.get(&config.id).await.unwrap().url, "https://hook.invalid/in");
        assert_eq!(push.list().await.unwrap().len(), 1);
        push.delete(&config.id).await.unwrap();
        assert_eq!(agent.cancel(&id).await.unwrap().state(), TaskState::Canceled);
        assert_eq!(read(events).await.1, TaskState::Canceled);
        assert_eq!(agent.wait(&id).await.unwrap().state(), TaskState::Canceled);
        let history = agent.get_with_history(&id, 0).await.unwrap().history;
        assert!(history.is_empty() || version == Version::V0_3, "in 0.3, zero is no limit");
        assert_eq!(agent.get("none").await.unwrap_err().kind(), ErrorKind::TaskNotFound);

        let all: Result<Vec<_>, Error> =
            agent.list(ListTasksRequest { page_size: Some(2), ..ListTasksRequest::default() }).collect().await;
        if version == Version::V0_3 && binding != Binding::JsonRpc {
            assert_eq!(all.unwrap_err().kind(), ErrorKind::UnsupportedOperation);
        } else {
            let all = all.unwrap();
            let ids: std::collections::BTreeSet<_> = all.iter().map(|task| &task.id).collect();
            assert!(ids.contains(&id) && ids.len() == all.len() && ids.len() >= 6, "{ids:?}");
        }
        // The demo has none. Over gRPC of 0.3, the call has the public card.
        let has_card = (version, binding) == (Version::V0_3, Binding::Grpc);
        assert_eq!(agent.extended_card().await.is_ok(), has_card, "{version:?} {binding:?}");
    }
}

#[tokio::test]
async fn send_waits_for_tasks_of_agents_that_respond_early() {
    let url = demo().await;
    let agent = quick().connect(&url).await.unwrap();
    let started = agent.send(immediately("/slow 1")).await.unwrap();
    assert!(!started.state().is_terminal());
    assert_eq!(agent.wait(&started.task().unwrap().id).await.unwrap().state(), TaskState::Completed);
    let short = quick().timeout(Duration::from_millis(300)).connect(&url).await.unwrap();
    let slow = short.send(immediately("/slow 60")).await.unwrap();
    let late = short.wait(&slow.task().unwrap().id).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::DeadlineExceeded);
}

#[test]
fn blocking_client_has_the_same_calls() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let url = runtime.block_on(demo());
    let agent = client::blocking::Client::connect(&url).unwrap();
    assert_eq!(agent.send("Hello").unwrap().text(), "Hello");
    assert!(agent.stream("/stream 2 1").unwrap().map(Result::unwrap).count() >= 4);
    let id = agent.send(immediately("/slow 60")).unwrap().task().unwrap().id.clone();
    assert_eq!(agent.cancel(&id).unwrap().state(), TaskState::Canceled);
    assert!(agent.subscribe("none").is_err());
    assert_eq!(agent.list(ListTasksRequest::default()).unwrap().len(), 3);
    assert_eq!(agent.wait(&id).unwrap().state(), TaskState::Canceled);
    assert!(agent.get_with_history(&id, 0).unwrap().history.is_empty());
    assert_eq!((agent.interface().is_some(), agent.tenant(), &*agent.card().name), (true, "", "Demo"));
    assert!(agent.extended_card().is_err(), "the demo has no extended card");

    let push = agent.push(agent.send(immediately("/slow 60")).unwrap().task().unwrap().id.clone());
    let config = push.create("https://hook.invalid/in").unwrap();
    assert_eq!((push.get(&config.id).unwrap().url, push.list().unwrap().len()), (config.url, 1));
    push.delete(&config.id).unwrap();

    let mut conversation = agent.conversation();
    assert_eq!(conversation.send("/ask Which city?").unwrap().state(), TaskState::InputRequired);
    assert!(!conversation.task_id().is_empty());
    let mut count = 0;
    conversation.stream_with("Paris", |_| count += 1).unwrap();
    assert!(count > 1 && conversation.task_id().is_empty() && !conversation.context_id().is_empty());

    let same = client::blocking::Client::with_card(&quick(), AgentCard::clone(&agent.card()), Some(&url)).unwrap();
    assert_eq!(same.send("Hello").unwrap().text(), "Hello");
    let listed = client::blocking::Client::catalog(&quick(), &url).unwrap();
    assert_eq!(listed.iter().map(|entry| &*entry.name).collect::<Vec<_>>(), ["Demo"]);
}

fn card(interfaces: &[(&str, &str, &str)]) -> AgentCard {
    let interface = |(url, binding, tenant): &(&str, &str, &str)| AgentInterface {
        url: (*url).to_owned(),
        protocol_binding: (*binding).to_owned(),
        tenant: (*tenant).to_owned(),
        protocol_version: "1.0".to_owned(),
    };
    let mut card = AgentCard::new("Remote");
    card.supported_interfaces = interfaces.iter().map(interface).collect();
    card
}

#[tokio::test]
async fn next_interface_is_used_if_no_connection_can_be_established() {
    let url = demo().await;
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let closed = format!("http://{closed}");
    let card = card(&[(&closed, "JSONRPC", ""), (&closed, "GRPC", ""), (&url, "HTTP+JSON", "")]);
    for builder in [quick(), quick().retry(Retry::never())] {
        let agent = builder.with_card(card.clone(), None).unwrap();
        assert_eq!(agent.send("Hello").await.unwrap().text(), "Hello");
        assert_eq!(agent.send("again").await.unwrap().text(), "again");
    }
    let only = quick().binding(Binding::Grpc).retry(Retry::never()).with_card(card.clone(), None).unwrap();
    assert_eq!(only.send("Hello").await.unwrap_err().kind(), ErrorKind::Unavailable);
    let error = quick().version(Version::V0_3).with_card(card, None).unwrap_err();
    assert!(error.to_string().contains("JSONRPC 1.0"), "{error}");
}

#[tokio::test]
async fn tenant_of_the_interface_is_sent() {
    let url = demo().await;
    let tasks = async |agent: &Client| {
        let tasks: Vec<_> = agent.list(ListTasksRequest::default()).collect::<Result<_, _>>().await.unwrap();
        tasks.len()
    };
    for (binding, path) in [("HTTP+JSON", ""), ("JSONRPC", "/rpc"), ("GRPC", "")] {
        let of = |tenant: &str| quick().with_card(card(&[(&format!("{url}{path}"), binding, tenant)]), None).unwrap();
        let (red, blue) = (of("red"), of("blue"));
        let before = tasks(&red).await;
        assert_eq!(red.send("Hello").await.unwrap().text(), "Hello");
        assert_eq!((tasks(&red).await, tasks(&blue).await), (before + 1, 0), "{binding}");
    }
}

/// Serves documents by path, and records the headers of all requests.
async fn documents(documents: Vec<(&'static str, String)>) -> (String, Arc<Mutex<Vec<(String, HeaderMap)>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&seen);
    let respond = move |request: Request<axum::body::Body>| {
        let path = request.uri().path().to_owned();
        record.lock().push((path.clone(), request.headers().clone()));
        let found = documents.iter().find(|(known, _)| *known == path).map(|(_, text)| text.clone());
        async move {
            let has_tag = request.headers().get(header::IF_NONE_MATCH).is_some_and(|tag| tag == "\"v1\"");
            match found {
                Some(_) if has_tag => StatusCode::NOT_MODIFIED.into_response(),
                Some(text) => ([(header::ETAG, "\"v1\"")], text).into_response(),
                None => StatusCode::NOT_FOUND.into_response(),
            }
        }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(respond)).await.unwrap() });
    (url, seen)
}

#[tokio::test]
async fn cards_of_all_versions_are_found_and_cached() {
    let old = json!({"name": "Old", "url": "/rpc", "version": "1", "skills": [], "capabilities": {}}).to_string();
    let (url, seen) = documents(vec![("/.well-known/agent.json", old)]).await;
    let builder = quick();
    for _ in 0..2 {
        let agent = builder.connect(&url).await.unwrap();
        let interface = agent.interface().unwrap();
        assert_eq!((interface.binding, interface.version), (Binding::JsonRpc, Version::V0_3));
        assert_eq!(interface.url, format!("{url}/rpc"));
    }
    let paths: Vec<_> = seen.lock().iter().map(|(path, _)| path.clone()).collect();
    assert_eq!(paths, ["/.well-known/agent-card.json", "/.well-known/agent.json"].repeat(2));
    assert_eq!(seen.lock()[3].1[header::IF_NONE_MATCH], "\"v1\"");
    let error = quick().connect(&format!("{url}/other.json")).await.unwrap_err();
    assert!(error.to_string().contains("/other.json"), "{error}");
    // The card of the host is that of an endpoint which it names, and of no other path.
    for path in ["/rpc", "/rpc/", "/rpc/v1"] {
        let agent = quick().connect(&format!("{url}{path}")).await.unwrap();
        assert_eq!(agent.interface().unwrap().url, format!("{url}/rpc"));
    }
    for path in ["/rp", "/rpc/other"] {
        let error = quick().connect(&format!("{url}{path}")).await.unwrap_err().to_string();
        assert!(error.contains(&format!("no agent card at {url}: {path}/.well-known/")), "{error}");
        assert!(error.ends_with(&format!("the card of an agent without an interface at {path}")), "{error}");
    }
    // The invalid card of the agent itself is the problem.
    let card = json!({"name": "Other", "url": "/rpc", "version": "1", "skills": []}).to_string();
    let invalid = json!({"name": "Mine", "skills": 1}).to_string();
    let well_known = "/.well-known/agent-card.json";
    let (url, _) = documents(vec![("/mine/.well-known/agent-card.json", invalid), (well_known, card)]).await;
    let error = quick().connect(&format!("{url}/mine")).await.unwrap_err().to_string();
    assert!(error.contains("/mine/.well-known/agent-card.json") && error.contains("expected a sequence"), "{error}");
}

#[tokio::test]
async fn credentials_do_not_leave_their_origin() {
    let (other, seen) = documents(vec![]).await;
    let foreign = serde_json::to_string(&card(&[(&other, "HTTP+JSON", "")])).unwrap();
    let (url, _) = documents(vec![("/.well-known/agent-card.json", foreign.clone())]).await;
    let refused = quick().bearer("sesame").unwrap().connect(&url).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unauthenticated);
    assert!(refused.to_string().contains(&other) && !refused.to_string().contains("sesame"), "{refused}");
    assert!(quick().connect(&url).await.is_ok());
    let trusting = quick().bearer("sesame").unwrap().trust_origin(&other).unwrap().connect(&url).await.unwrap();
    assert!(seen.lock().is_empty());
    assert!(trusting.send("Hello").await.is_err());
    assert_eq!(seen.lock()[0].1[header::AUTHORIZATION], "Bearer sesame");
    assert!(!format!("{trusting:?} {:?}", quick().bearer("sesame").unwrap()).contains("sesame"));

    // Redirects of the card and of calls are not followed.
    seen.lock().clear();
    let to = format!("{other}/stolen");
    let redirect = move || async move { (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, to)]).into_response() };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let redirecting = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(redirect)).await.unwrap() });
    let builder = quick().bearer("sesame").unwrap();
    let error = builder.connect(&redirecting).await.unwrap_err();
    assert!(error.to_string().contains("redirects to"), "{error}");
    let called = builder.with_card(card(&[(&redirecting, "HTTP+JSON", "")]), Some(&redirecting)).unwrap();
    assert!(called.send("Hello").await.is_err());
    assert!(seen.lock().is_empty());
}

/// Responds to each request with these bytes, without an end if they repeat.
struct Given {
    content_type: &'static str,
    body: Bytes,
    is_endless: bool,
}

#[tonic::async_trait]
impl HttpTransport for Given {
    async fn send(&self, _: Request<Bytes>) -> Result<Response<BoxStream<Bytes>>, Error> {
        let body = self.body.clone();
        let chunks: BoxStream<Bytes> = if self.is_endless {
            Box::pin(tokio_stream::iter(std::iter::repeat_with(move || Ok(body.clone()))))
        } else {
            Box::pin(tokio_stream::once(Ok(body)))
        };
        Ok(Response::builder().header(header::CONTENT_TYPE, self.content_type).body(chunks).unwrap())
    }
}
