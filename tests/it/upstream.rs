//! Gateway of another A2A agent: states, artifacts and cancels over each binding, restarts, and upstream tasks that are lost.

use std::{sync::Arc, time::Duration};

use a2a_service::{
    A2aService,
    adapter::{GAP, Upstream},
    agent::{DynAgent, End, demo::Demo},
    card::CardConfig,
    client::{Client, StreamEvent},
    pb::v1::{ListTasksRequest, Message, Part, Role, SendMessageConfiguration, SendMessageRequest, TaskState},
    server::Server,
};
use tokio::time::timeout;
use tokio_stream::StreamExt as _;

use crate::{
    bindings::each_binding,
    program::{a2a, signal, started},
};

type Agent = Arc<dyn DynAgent>;

fn demo() -> Agent {
    Arc::new(Demo)
}

/// State, artifacts and status message of a task, without ids.
fn summary(outcome: &a2a_service::client::Outcome) -> (TaskState, Vec<(String, Vec<Part>)>, String) {
    let artifacts = outcome.artifacts().iter().map(|artifact| (artifact.name.clone(), artifact.parts.clone()));
    (outcome.state(), artifacts.collect(), outcome.text())
}

async fn gateway_behaves_as_its_agent(binding: impl AsyncFn(Server<Agent>) -> Arc<dyn A2aService>) {
    let direct = Client::from_service(binding(Server::new(demo())).await);
    let agent: Agent = Arc::new(Upstream::new(direct.clone()));
    let gateway = Client::from_service(binding(Server::new(agent)).await);
    for text in ["hello", "/stream 3 1", "/ask City?", "/auth", "/fail Broken.", "/reject No.", "/parts", "/panic"] {
        let (expected, found) = (direct.send(text).await.unwrap(), gateway.send(text).await.unwrap());
        let without_error_id = |text: String| text.split("error id").next().unwrap_or_default().to_owned();
        let (state, artifacts, text_of_direct) = summary(&expected);
        let (found_state, found_artifacts, text_of_gateway) = summary(&found);
        assert_eq!((found_state, found_artifacts), (state, artifacts), "{text}");
        assert_eq!(without_error_id(text_of_gateway), without_error_id(text_of_direct), "{text}");
        let ids = |outcome: &a2a_service::client::Outcome| outcome.task().map(|task| task.id.clone());
        assert_ne!(ids(&found), ids(&expected));
    }
    assert_eq!(gateway.send("/message Hi.").await.unwrap().text(), "Hi.");
    // The answer reaches the same upstream task.
    let asked = gateway.send("/ask City?").await.unwrap();
    let task = asked.task().unwrap();
    let answer = Message { task_id: task.id.clone(), ..Message::user("Lisbon") };
    let done =
        gateway.send(SendMessageRequest { message: Some(answer), ..SendMessageRequest::default() }).await.unwrap();
    assert_eq!((done.state(), done.text().as_str()), (TaskState::Completed, "Lisbon"));
    assert_eq!(done.artifacts()[0].name, "answer");
    // A cancel reaches the upstream task.
    let mut events = gateway.stream("/slow 60").await.unwrap();
    let mut id = String::new();
    while let Some(event) = events.next().await {
        let event = event.unwrap();
        if let StreamEvent::Task(task) = event {
            id = task.id;
        } else if let StreamEvent::Status(update) = event
            && update.status.is_some_and(|status| status.message.is_some())
        {
            break;
        }
    }
    assert_eq!(gateway.cancel(&id).await.unwrap().state(), TaskState::Canceled);
    let context = gateway.get(&id).await.unwrap().context_id;
    let query = ListTasksRequest { context_id: context, ..Default::default() };
    if let Some(Ok(upstream)) = direct.list(query).next().await {
        assert_eq!(upstream.state(), TaskState::Canceled);
    }
}

each_binding!(gateway_behaves_as_its_agent);

/// Serves the demo agent with tasks in memory on an address, until the returned sender is dropped.
async fn serve_demo(address: &str) -> (String, tokio::sync::oneshot::Sender<()>) {
    let bound = Server::new(Demo).drain_grace(Duration::ZERO).bind(address).await.unwrap();
    let address = bound.addr().to_string();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    tokio::spawn(bound.run_until(async move { _ = stopped.await }));
    (address, stop)
}

/// Starts the program as a gateway, with tasks in a file.
async fn serve_gateway(url: &str, store: &str) -> (tokio::process::Child, String) {
    let mut command =
        a2a(&["serve", "--listen", "127.0.0.1:0", "--proxy", url, "--store", store, "--log-filter", "warn"]);
    command.env_remove("A2A_STORE");
    started(command).await
}

/// Sends a message to a gateway, and kills it after the first chunk. Returns the id of the task.
async fn kill_in_the_middle(gateway: &mut tokio::process::Child, url: &str, text: &str) -> String {
    let agent = Client::connect(url).await.unwrap();
    let mut events = agent.stream(text).await.unwrap();
    let mut id = String::new();
    while let Some(event) = events.next().await {
        let event = event.unwrap();
        if let StreamEvent::Task(task) = event {
            id = task.id;
        } else if matches!(event, StreamEvent::Artifact(_)) {
            break;
        }
    }
    signal(gateway, "-KILL");
    gateway.wait().await.unwrap();
    id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_gateway_resumes_its_upstream_task() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("a2a.db").display());
    let (address, _stop) = serve_demo("127.0.0.1:0").await;
    let upstream = format!("http://{address}");
    let (mut gateway, url) = serve_gateway(&upstream, &store).await;
    let id = kill_in_the_middle(&mut gateway, &url, "/stream 40 50").await;
    let (_gateway, url) = serve_gateway(&upstream, &store).await;
    let agent = Client::connect(&url).await.unwrap();
    assert_eq!(agent.card().name, "Demo");
    let task = agent.wait(&id).await.unwrap();
    let direct = Client::connect(&upstream).await.unwrap();
    let originals: Vec<_> = direct.list(ListTasksRequest::default()).collect().await;
    assert_eq!(originals.len(), 1, "the message was sent once");
    let original = direct.get(&originals[0].as_ref().unwrap().id).await.unwrap();
    assert_eq!((task.state(), task.artifacts.len()), (TaskState::Completed, 1));
    let text =
        |task: &a2a_service::pb::v1::Task| task.artifacts[0].parts.iter().filter_map(Part::as_text).collect::<String>();
    assert_eq!(text(&task), text(&original));
    assert_eq!(text(&task).lines().count(), 40);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interruption_is_marked_as_a_gap() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("a2a.db").display());
    let (address, _stop) = serve_demo("127.0.0.1:0").await;
    let upstream = format!("http://{address}");
    let (mut gateway, url) = serve_gateway(&upstream, &store).await;
    let id = kill_in_the_middle(&mut gateway, &url, "/stream 60 50").await;
    let (_gateway, url) = serve_gateway(&upstream, &store).await;
    let agent = Client::connect(&url).await.unwrap();
    let mut events = agent.subscribe(&id).await.unwrap();
    let mut marked = false;
    while let Some(event) = events.next().await {
        if let StreamEvent::Status(update) = event.unwrap() {
            marked |= update.metadata.is_some_and(|metadata| metadata.fields.contains_key(GAP));
        }
    }
    let task = agent.get(&id).await.unwrap();
    assert_eq!(task.state(), TaskState::Completed);
    assert!(marked || task.history.iter().any(|message| message.text().contains("may be missing")), "{task:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_fails_if_the_upstream_agent_has_lost_it() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("a2a.db").display());
    let (address, stop) = serve_demo("127.0.0.1:0").await;
    let (mut gateway, url) = serve_gateway(&format!("http://{address}"), &store).await;
    let id = kill_in_the_middle(&mut gateway, &url, "/stream 1000 50").await;
    drop(stop);
    // The address is free once the server has ended. Its tasks were in memory.
    let (_, _stop) = loop {
        match tokio::net::TcpListener::bind(&address).await {
            Ok(listener) => {
                drop(listener);
                break serve_demo(&address).await;
            }
            Err(_) => tokio::task::yield_now().await,
        }
    };
    let (_gateway, url) = serve_gateway(&format!("http://{address}"), &store).await;
    let task = Client::connect(&url).await.unwrap().wait(&id).await.unwrap();
    assert_eq!(task.state(), TaskState::Failed);
    assert_eq!(task.status.unwrap().message.unwrap().text(), "The upstream agent has lost the task.");
}

/// A message that has reached the upstream agent is not sent again as the answer to its question.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn question_that_came_while_the_gateway_was_down_is_asked() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("a2a.db").display());
    let gate = Arc::new(tokio::sync::Notify::new());
    let opened = Arc::clone(&gate);
    let asking = a2a_service::agent::from_fn(move |turn, out| {
        let opened = Arc::clone(&opened);
        async move {
            out.artifact("heard").text(turn.text()).await?;
            opened.notified().await;
            Ok(End::input_required("Which city?"))
        }
    });
    let bound = Server::new(asking).bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("http://{}", bound.addr());
    tokio::spawn(bound.run_until(std::future::pending()));
    let (mut gateway, url) = serve_gateway(&upstream, &store).await;
    let id = kill_in_the_middle(&mut gateway, &url, "Plan a trip").await;
    gate.notify_one();
    let direct = Client::connect(&upstream).await.unwrap();
    let original = direct.list(ListTasksRequest::default()).next().await.unwrap().unwrap().id;
    assert_eq!(direct.wait(&original).await.unwrap().state(), TaskState::InputRequired);
    let (_gateway, url) = serve_gateway(&upstream, &store).await;
    let task = Client::connect(&url).await.unwrap().wait(&id).await.unwrap();
    assert_eq!((task.state(), task.artifacts.len()), (TaskState::InputRequired, 1));
    assert_eq!(task.status.unwrap().message.unwrap().text(), "Which city?");
    let users = direct.get(&original).await.unwrap().history;
    assert_eq!(users.iter().filter(|message| message.role() == Role::User).count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_without_streams_are_polled() {
    let mut card = CardConfig::default();
    card.capabilities.streaming = Some(false);
    let bound = Server::new(Demo).card(card).bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("http://{}", bound.addr());
    tokio::spawn(bound.run_until(std::future::pending()));
    let direct = Client::connect(&upstream).await.unwrap();
    let gateway = Client::from_service(Server::new(Upstream::new(direct.clone())).into_service());
    let done = gateway.send("hello").await.unwrap();
    assert_eq!((done.state(), done.text().as_str()), (TaskState::Completed, "hello"));
    let request = SendMessageRequest {
        message: Some(Message::user("/slow 60")),
        configuration: Some(SendMessageConfiguration { return_immediately: true, ..Default::default() }),
        ..SendMessageRequest::default()
    };
    let running = gateway.send(request).await.unwrap().task().unwrap().id.clone();
    let seen = async |condition: fn(&[TaskState]) -> bool| {
        let all = async || -> Vec<TaskState> {
            direct.list(ListTasksRequest::default()).map(|task| task.unwrap().state()).collect().await
        };
        let seen = async {
            while !condition(&all().await) {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(20), seen).await.unwrap();
    };
    // A turn that has not begun is canceled without the upstream agent.
    seen(|states| states.len() == 2).await;
    assert_eq!(gateway.cancel(&running).await.unwrap().state(), TaskState::Canceled);
    seen(|states| states.contains(&TaskState::Canceled)).await;
}
