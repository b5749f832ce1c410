//! Limits of messages, tasks, contexts, turns, streams and stored tasks: requests over a limit are rejected with its name.

use std::{sync::Arc, time::Duration};

use a2a_service::{
    agent::{self, Agent, End, Turn, Updates},
    pb::v1::{CancelTaskRequest, ListTasksRequest, Part},
    server::Server,
    service::Limits,
    store::memory::Memory,
};
use futures::FutureExt as _;
use tokio::sync::Barrier;

use super::*;
use crate::bindings::{Actor, Binding, each_binding, each_v03_binding, scenario};

fn limits(change: impl FnOnce(&mut Limits)) -> Limits {
    let mut limits = Limits::default();
    limits.send_timeout = Some(Duration::from_millis(500));
    change(&mut limits);
    limits
}

fn limited(change: impl FnOnce(&mut Limits)) -> Server {
    Server::new(Actor::new()).limits(limits(change))
}

/// Asserts a temporary rejection at the limit of this name.
fn assert_busy(error: &Error, name: &str) {
    assert_error_kind(error, ErrorKind::ResourceExhausted);
    assert_limit(error, name);
    assert_eq!(error.retry_after_seconds(), Some(1), "{error}");
}

/// Asserts that the error names this limit.
fn assert_limit(error: &Error, name: &str) {
    assert_eq!(error.metadata("limit"), Some(name), "{:?}", error.details());
}

async fn rejected(agent: &dyn A2aService, sent: SendMessageRequest) -> Error {
    let error = send_payload(agent, sent.clone()).await.err().unwrap();
    let streamed: Error = agent.send_streaming_message(request(sent)).await.err().unwrap().into();
    assert_eq!((streamed.kind(), streamed.to_string()), (error.kind(), error.to_string()));
    error
}

async fn cancel(agent: &dyn A2aService, id: &str) {
    let cancel = CancelTaskRequest { id: id.into(), ..Default::default() };
    agent.cancel_task(request(cancel)).await.unwrap();
}

async fn list(agent: &dyn A2aService, query: ListTasksRequest) -> Vec<String> {
    let page = agent.list_tasks(request(query)).await.unwrap().into_inner();
    assert_eq!(usize::try_from(page.total_size), Ok(page.tasks.len()));
    page.tasks.into_iter().map(|task| task.id).collect()
}

scenario!(message_over_the_limit_of_parts_is_rejected, async |agent: &dyn A2aService| {
    let mut sent = text("", "1");
    let parts = &mut sent.message.as_mut().unwrap().parts;
    parts.resize(1000, Part::text("x"));
    assert_eq!(send(agent, sent.clone()).await.state(), TaskState::Completed);
    sent.message.as_mut().unwrap().parts.push(Part::text("x"));
    let error = rejected(agent, sent).await;
    assert_error_kind(&error, ErrorKind::InvalidParams);
    assert_limit(&error, "parts");
    assert_eq!(fields(&error), ["message.parts"]);
    assert!(error.to_string().ends_with("message.parts: 1001 parts exceed the limit of 1000"), "{error}");
});

scenario!(
    message_over_the_limit_of_references_is_rejected,
    not_in_v03_proto = "messages of its proto file have no task references",
    async |agent: &dyn A2aService| {
        let mut sent = text("", "1");
        sent.message.as_mut().unwrap().reference_task_ids.resize(17, "t".into());
        let error = rejected(agent, sent).await;
        assert_limit(&error, "references");
        assert_eq!(fields(&error), ["message.referenceTaskIds"]);
    }
);

/// Creates a request with JSON of a depth.
type Nested<'a> = Box<dyn Fn(usize) -> SendMessageRequest + 'a>;

/// JSON of a request has the same limit over each binding, although gRPC could decode deeper values.
async fn deeply_nested_json_is_rejected(binding: Binding) {
    let lists = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    let object = |depth: usize| serde_json::from_str(&format!(r#"{{"a":{}}}"#, lists(depth - 1))).unwrap();
    let data = |depth: usize| Part::data(&serde_json::from_str::<serde_json::Value>(&lists(depth)).unwrap()).unwrap();
    let with = |change: &dyn Fn(&mut SendMessageRequest, &mut Message)| {
        let mut sent = text("", "1");
        let mut message = sent.message.take().unwrap();
        change(&mut sent, &mut message);
        SendMessageRequest { message: Some(message), ..sent }
    };
    let agent = binding(limited(|limits| limits.json_depth = 3)).await;
    let cases: [(&str, Nested<'_>); 4] = [
        ("message.metadata", Box::new(|depth| with(&|_, message| message.metadata = Some(object(depth))))),
        ("message.parts[1].data", Box::new(|depth| with(&|_, message| message.parts.push(data(depth))))),
        (
            "message.parts[0].metadata",
            Box::new(|depth| with(&|_, message| message.parts[0].metadata = Some(object(depth)))),
        ),
        ("metadata", Box::new(|depth| with(&|sent, _| sent.metadata = Some(object(depth))))),
    ];
    for (field, sent) in &cases {
        assert_eq!(send(&*agent, sent(3)).await.state(), TaskState::Completed, "{field}");
        let error = rejected(&*agent, sent(4)).await;
        assert_limit(&error, "json_depth");
        assert!(error.to_string().ends_with("is nested more than 3 deep"), "{field}: {error}");
    }
}

each_binding!(deeply_nested_json_is_rejected);

/// Asserts a rejection because of the identifier in this field.
fn assert_too_long(error: &Error, field: &str) {
    assert_error_kind(error, ErrorKind::InvalidParams);
    assert_limit(error, "id_bytes");
    assert_eq!(fields(error), [field]);
    assert!(
        error.to_string().ends_with("has 257 bytes, which exceeds the limit of 256 (id_bytes); send a shorter one"),
        "{error}"
    );
}

scenario!(long_identifiers_of_a_message_are_rejected, async |agent: &dyn A2aService| {
    let (fits, longer) = ("i".repeat(256), "i".repeat(257));
    let changed = |change: &dyn Fn(&mut Message)| {
        let mut sent = text("", "hello");
        sent.message.as_mut().map(change);
        sent
    };
    let sent = changed(&|message| (message.context_id, message.message_id) = (fits.clone(), fits.clone()));
    assert_eq!(send(agent, sent).await.context_id, fits);
    for (field, sent) in [
        ("message.contextId", changed(&|message| message.context_id.clone_from(&longer))),
        ("message.messageId", changed(&|message| message.message_id.clone_from(&longer))),
        ("message.taskId", changed(&|message| message.task_id.clone_from(&longer))),
    ] {
        assert_too_long(&rejected(agent, sent).await, field);
    }
    let sent = changed(&|message| message.extensions = vec!["u".repeat(2048), "u".repeat(2049)]);
    let error = rejected(agent, sent).await;
    assert_limit(&error, "uri_bytes");
    assert_eq!(fields(&error), ["message.extensions[1]"]);
});

scenario!(
    long_identifiers_of_1_0_are_rejected,
    not_at_0_3 = "messages of its proto file have no task references, and its requests have no tenant",
    async |agent: &dyn A2aService| {
        let longer = "i".repeat(257);
        let mut sent = text("", "hello");
        sent.tenant.clone_from(&longer);
        assert_too_long(&rejected(agent, sent).await, "tenant");
        let mut sent = text("", "hello");
        sent.message.as_mut().unwrap().reference_task_ids = vec!["t".into(), longer.clone()];
        assert_too_long(&rejected(agent, sent).await, "message.referenceTaskIds[1]");
        assert_too_long(&get(agent, &longer).await.err().unwrap(), "id");
        let query = ListTasksRequest { context_id: longer, ..Default::default() };
        assert_too_long(&agent.list_tasks(request(query)).await.err().unwrap().into(), "contextId");
    }
);

/// Agent that exceeds the limits of events and artifacts in different ways.
struct EventFlood;

impl Agent for EventFlood {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, agent::Error> {
        match turn.text() {
            "events" => {
                let mut artifact = out.artifact("many");
                for _ in 0..100 {
                    out.working().await?;
                    artifact.text("x").await?;
                }
            }
            "artifacts" => {
                for _ in 0..100 {
                    out.artifact("one").text("x").await?;
                }
            }
            // Ignores errors.
            "ignores errors" => {
                for _ in 0..100 {
                    out.working().await.unwrap_or_default();
                }
            }
            "never ends" => {
                while out.working().await.is_ok() {}
                std::future::pending::<()>().await;
            }
            "other tokio task" => {
                let other = tokio::spawn(async move { while out.working().await.is_ok() {} });
                other.await.unwrap();
                std::future::pending::<()>().await;
            }
            _ => return Ok(End::input_required("more?")),
        }
        Ok(End::Completed(None))
    }
}

async fn agent_over_the_limit_of_events_or_artifacts_fails(binding: Binding) {
    let limits = limits(|limits| (limits.events, limits.artifacts) = (20, 5));
    let agent = binding(Server::new(EventFlood).limits(limits)).await;
    for (command, limit, max) in [
        ("events", "events", "20 events"),
        ("artifacts", "artifacts", "5 artifacts"),
        ("ignores errors", "events", "20 events"),
        ("never ends", "events", "20 events"),
        ("other tokio task", "events", "20 events"),
    ] {
        let events = remaining(stream(&*agent, text("", command)).await).await;
        assert_eq!(state(events.last().unwrap()), Some(TaskState::Failed), "{command}");
        let task = get(&*agent, &task_of(&events[0]).id).await.unwrap();
        assert_eq!(status_text(&task), format!("Agent execution failed (limit {limit}): a task has at most {max}"));
        if limit == "events" {
            assert_eq!(events.len(), 21, "{command}: only the terminal event may exceed the limit");
        } else {
            assert_eq!((task.artifacts.len(), output(&task).as_str()), (5, "xxxxx"));
        }
    }
    // Messages count too: one over the limit is rejected, and the task continues.
    let interrupted = send(&*agent, text("", "ask")).await;
    let error = loop {
        match send_payload(&*agent, text(&interrupted.id, "ask")).await {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_error_kind(&error, ErrorKind::ResourceExhausted);
    assert_limit(&error, "events");
    assert!(error.to_string().ends_with("accepts no more messages: a task has at most 20 events"), "{error}");
    assert_eq!(get(&*agent, &interrupted.id).await.unwrap().state(), TaskState::InputRequired);
    cancel(&*agent, &interrupted.id).await;
}

each_binding!(agent_over_the_limit_of_events_or_artifacts_fails);

/// Agent that exceeds the limits of bytes in different ways.
struct ByteFlood;

impl Agent for ByteFlood {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, agent::Error> {
        let text = |bytes| "x".repeat(bytes);
        match turn.text() {
            "event" => out.artifact("large").text(text(2000)).await?,
            "artifact" => {
                let mut artifact = out.artifact("large");
                for _ in 0..4 {
                    artifact.text(text(900)).await?;
                }
            }
            "small chunks" => {
                let mut artifact = out.artifact("large");
                for _ in 0..400 {
                    artifact.text(text(10)).await?;
                }
            }
            "task" => {
                for _ in 0..6 {
                    out.progress(text(900)).await?;
                }
            }
            "id" => out.artifact("large").id("i".repeat(257)).text("x").await?,
            "state" => out.save(&text(2000)).await?,
            "end" => return Ok(End::completed(text(2000))),
            "question" => return Ok(End::input_required(text(2000))),
            "reply" => return Ok(End::reply(text(2000))),
            _ => return Ok(End::input_required("more?")),
        }
        Ok(End::Completed(None))
    }
}

async fn agent_over_a_limit_of_bytes_fails(binding: Binding) {
    let limits = limits(|limits| (limits.event_bytes, limits.artifact_bytes, limits.task_bytes) = (2000, 3000, 5000));
    let agent = binding(Server::new(ByteFlood).limits(limits)).await;
    for (command, limit, max) in [
        ("event", "event_bytes", "an event has at most 2000 bytes (limits.task_bytes)"),
        ("artifact", "artifact_bytes", "an artifact has at most 3000 bytes (limits.task_bytes)"),
        ("small chunks", "artifact_bytes", "an artifact has at most 3000 bytes (limits.task_bytes)"),
        ("task", "task_bytes", "a task has at most 5000 bytes (limits.task_bytes)"),
        ("id", "id_bytes", "an identifier has at most 256 bytes"),
        ("end", "event_bytes", "an event has at most 2000 bytes (limits.task_bytes)"),
        ("question", "event_bytes", "an event has at most 2000 bytes (limits.task_bytes)"),
        ("reply", "event_bytes", "an event has at most 2000 bytes (limits.task_bytes)"),
    ] {
        let task = send(&*agent, text("", command)).await;
        assert_eq!(task.state(), TaskState::Failed, "{command}");
        assert_eq!(status_text(&task), format!("Agent execution failed (limit {limit}): {max}"), "{command}");
        assert!(output(&task).len() <= 3000, "{command}");
    }
    assert_eq!(send(&*agent, text("", "state")).await.state(), TaskState::Failed);
    // Messages of clients count too: one over the limit is rejected, and the task continues.
    let large = "x".repeat(2000);
    assert_limit(&rejected(&*agent, text("", &large)).await, "event_bytes");
    let interrupted = send(&*agent, text("", "ask")).await;
    assert_limit(&rejected(&*agent, text(&interrupted.id, &large)).await, "event_bytes");
    let error = loop {
        match send_payload(&*agent, text(&interrupted.id, &large[..900])).await {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_error_kind(&error, ErrorKind::ResourceExhausted);
    assert_limit(&error, "task_bytes");
    assert!(
        error.to_string().ends_with("accepts no more messages: a task has at most 5000 bytes (limits.task_bytes)"),
        "{error}"
    );
    assert_eq!(get(&*agent, &interrupted.id).await.unwrap().state(), TaskState::InputRequired);
    cancel(&*agent, &interrupted.id).await;
}

each_binding!(agent_over_a_limit_of_bytes_fails);

/// Message that creates a task in this context.
fn in_context(context: &str, command: &str) -> SendMessageRequest {
    let mut sent = text("", command);
    context.clone_into(&mut sent.message.as_mut().unwrap().context_id);
    sent
}

async fn messages_over_the_limit_of_context_bytes_are_rejected(binding: Binding) {
    let agent = binding(Server::new(ByteFlood).limits(limits(|limits| limits.context_bytes = 5000))).await;
    // A task alone in its context, and tasks that share one.
    let alone = send(&*agent, text("", "task")).await;
    assert_eq!(
        status_text(&alone),
        "Agent execution failed (limit context_bytes): a context has at most 5000 bytes (limits.task_bytes)"
    );
    let interrupted = send(&*agent, text("", "ask")).await;
    let mut tasks = 0;
    while send_payload(&*agent, in_context(&interrupted.context_id, &"x".repeat(900))).await.is_ok() {
        tasks += 1;
        assert!(tasks < 10);
    }
    assert!(tasks > 1);
    let large = "x".repeat(1900);
    for sent in [in_context(&interrupted.context_id, &large), text(&interrupted.id, &large)] {
        let error = rejected(&*agent, sent).await;
        assert_error_kind(&error, ErrorKind::ResourceExhausted);
        assert_limit(&error, "context_bytes");
        assert!(
            error
                .to_string()
                .contains("accepts no more messages: a context has at most 5000 bytes (limits.task_bytes)"),
            "{error}"
        );
    }
    assert_eq!(get(&*agent, &interrupted.id).await.unwrap(), interrupted, "the task is unchanged");
    assert_eq!(send(&*agent, in_context("another", &large)).await.state(), TaskState::InputRequired);

    let agent = binding(Server::new(ByteFlood).limits(limits(|limits| limits.context_bytes = 0))).await;
    for sent in [text("", "ask"), in_context("another", "ask")] {
        assert_limit(&rejected(&*agent, sent).await, "context_bytes");
    }
}

each_binding!(
    messages_over_the_limit_of_context_bytes_are_rejected,
    one_server = "a server counts the tasks of others only when it reads the size of a context"
);

/// Asserts that a history is cut to the newest messages, within the limit of bytes or a single message.
fn assert_newest(task: &Task, whole: &[String], max: usize) {
    let texts: Vec<String> = task.history.iter().map(Message::text).collect();
    assert!(!texts.is_empty() && texts.len() < whole.len(), "{} messages", texts.len());
    assert_eq!(texts, whole[whole.len() - texts.len()..]);
    let bytes: usize = task.history.iter().map(prost::Message::encoded_len).sum();
    assert!(bytes <= max || texts.len() == 1, "{bytes} bytes");
}

/// Sends messages of 900 bytes to a task, and returns its id, the last reply, and the texts of its history.
async fn send_large_messages(agent: &dyn A2aService) -> (String, Task, Vec<String>) {
    let (mut task, mut whole) = (send(agent, text("", "ask")).await, vec!["ask".to_owned()]);
    for n in 0..4 {
        let large = format!("{n:0900}");
        task = send(agent, text(&task.id, &large)).await;
        whole.extend(["more?".to_owned(), large]);
    }
    (task.id.clone(), task, whole)
}

async fn history_in_a_reply_is_cut_to_the_limit_of_bytes(binding: Binding) {
    for (max, fits) in [(2700, 4), (0, 1)] {
        let agent = binding(Server::new(ByteFlood).limits(limits(|limits| limits.history_bytes = max))).await;
        let (id, sent, mut whole) = send_large_messages(&*agent).await;
        assert_newest(&sent, &whole, max);
        assert_eq!(sent.history.len(), fits);
        for (length, messages) in [(None, fits), (Some(100), fits), (Some(1), 1)] {
            let get = GetTaskRequest { id: id.clone(), history_length: length, ..GetTaskRequest::default() };
            let found = agent.get_task(request(get)).await.unwrap().into_inner().into_task().unwrap();
            assert_newest(&found, &whole, max);
            assert_eq!(found.history.len(), messages, "{length:?}");
        }
        let mut events = subscribe(&*agent, &id).await.unwrap();
        assert_newest(task_of(&next(&mut events).await), &whole, max);
        drop(events);
        let events = remaining(stream(&*agent, text(&id, &"y".repeat(900))).await).await;
        whole.extend(["more?".to_owned(), "y".repeat(900)]);
        assert_newest(task_of(&events[0]), &whole, max);
        whole.push("more?".to_owned());
        let cancel = CancelTaskRequest { id, ..CancelTaskRequest::default() };
        let canceled = agent.cancel_task(request(cancel)).await.unwrap().into_inner().into_task().unwrap();
        assert_newest(&canceled, &whole, max);
    }
}

each_binding!(history_in_a_reply_is_cut_to_the_limit_of_bytes);

async fn history_in_a_list_is_cut_to_the_limit_of_bytes(binding: Binding) {
    let agent = binding(Server::new(ByteFlood).limits(limits(|limits| limits.history_bytes = 2700))).await;
    let (id, _, whole) = send_large_messages(&*agent).await;
    for (length, messages) in [(None, 4), (Some(100), 4), (Some(1), 1)] {
        let query = ListTasksRequest { history_length: length, ..ListTasksRequest::default() };
        let page = agent.list_tasks(request(query)).await.unwrap().into_inner();
        let [task] = &page.tasks[..] else { panic!("{} tasks", page.tasks.len()) };
        assert_eq!((&task.id, task.history.len()), (&id, messages), "{length:?}");
        assert_newest(task, &whole, 2700);
    }
}

each_binding!(
    history_in_a_list_is_cut_to_the_limit_of_bytes,
    not_in_v03_proto = "its proto file has no lists of tasks"
);

/// Requests of few bytes that take much memory once decoded. In-process requests are not decoded.
mod request_over_the_decoded_size_limit_is_rejected {
    use a2a_service::pb::wkt::Struct;

    use super::*;

    async fn run(agent: &dyn A2aService) {
        let nulls = |n: usize| {
            let metadata: Struct = serde_json::from_value(serde_json::json!({"list": vec![(); n]})).unwrap();
            let mut sent = text("", "hello");
            sent.message.as_mut().unwrap().metadata = Some(metadata);
            sent
        };
        let error = rejected(agent, nulls(200_000)).await;
        assert_error_kind(&error, ErrorKind::TooLarge);
        assert_limit(&error, "decoded_bytes");
        assert_eq!(send(agent, nulls(10_000)).await.state(), TaskState::Completed);
    }

    fn test(binding: Binding) -> futures::future::LocalBoxFuture<'static, ()> {
        Box::pin(async move { run(&*binding(crate::bindings::server()).await).await })
    }

    crate::bindings::columns!(@ 0; grpc rest json_rpc v03_grpc v03_rest v03_rpc);
}

async fn maximum_durations_and_counts_are_accepted(binding: Binding) {
    const LONGEST: Duration = Duration::MAX;
    let mut limits = Limits::default();
    (limits.task_delay, limits.turn_deadline, limits.turn_idle_timeout) = (LONGEST, LONGEST, LONGEST);
    (limits.cancel_grace, limits.send_timeout, limits.stream_max_age) = (LONGEST, Some(LONGEST), LONGEST);
    let server =
        Server::new(Actor::new()).limits(limits).keep_alive(LONGEST).drain_grace(LONGEST).connections(usize::MAX);
    let agent = binding(server).await;
    assert_eq!(send(&*agent, text("", "hello")).await.state(), TaskState::Completed);
    let events = remaining(stream(&*agent, text("", "hello")).await).await;
    assert_eq!(state(events.last().unwrap()), Some(TaskState::Completed));
    let events = stream(&*agent, text("", "!authorise")).await;
    drop(events);
}

each_binding!(maximum_durations_and_counts_are_accepted);

async fn turns_over_the_limit_are_rejected(binding: Binding) {
    let agent = binding(limited(|limits| (limits.turns, limits.queued_turns) = (2, 0))).await;
    let interrupted = send(&*agent, text("", "/ask what?")).await;
    let mut running = Vec::new();
    for _ in 0..2 {
        let events = stream(&*agent, text("", "!authorise")).await;
        running.push(events);
    }
    let mut ids = Vec::new();
    for events in &mut running {
        ids.push(task_of(&next(events).await).id.clone());
    }
    for sent in [text("", "hello"), text(&interrupted.id, "this")] {
        assert_busy(&rejected(&*agent, sent).await, "turns");
    }
    assert_eq!(get(&*agent, &interrupted.id).await.unwrap(), interrupted, "the task is unchanged");
    // A message to a running turn waits, and needs no turn of its own yet.
    let waiting = SendMessageConfiguration { return_immediately: true, ..Default::default() };
    send(&*agent, configured(text(&ids[0], "and this"), waiting)).await;
    cancel(&*agent, &ids[0]).await;
    for n in 0..5 {
        // The permit of a turn is released before its end is reported.
        assert_eq!(output(&send(&*agent, text("", &format!("hello {n}"))).await), format!("hello {n}"));
        assert!(matches!(send_payload(&*agent, text("", "/message hi")).await.unwrap(), Answer::Message(_)));
    }
    cancel(&*agent, &ids[1]).await;
}

each_binding!(turns_over_the_limit_are_rejected, one_server = "the limit is that of one server");

/// Sends a message, and returns its task at once.
async fn start(agent: &dyn A2aService, sent: SendMessageRequest) -> Task {
    let immediately = SendMessageConfiguration { return_immediately: true, ..Default::default() };
    send(agent, configured(sent, immediately)).await
}

async fn turns_over_the_limit_wait_in_a_queue(binding: Binding) {
    let agent = binding(limited(|limits| (limits.turns, limits.queued_turns) = (1, 2))).await;
    let interrupted = send(&*agent, text("", "/ask what?")).await;
    let mut running = stream(&*agent, text("", "!authorise")).await;
    let running = task_of(&next(&mut running).await).id.clone();
    let queued = start(&*agent, text("", "hello")).await;
    assert_eq!(
        (queued.state(), get(&*agent, &queued.id).await.unwrap().state()),
        (TaskState::Submitted, queued.state())
    );
    let canceled = start(&*agent, text("", "never")).await;
    for sent in [text("", "too many"), text(&interrupted.id, "this")] {
        assert_busy(&rejected(&*agent, sent).await, "queued_turns");
    }
    assert_eq!(get(&*agent, &interrupted.id).await.unwrap(), interrupted, "the task is unchanged");
    // A canceled turn leaves the queue, and its agent does not run.
    cancel(&*agent, &canceled.id).await;
    let canceled = get(&*agent, &canceled.id).await.unwrap();
    assert_eq!((canceled.state(), canceled.artifacts.len()), (TaskState::Canceled, 0));
    start(&*agent, text(&interrupted.id, "this")).await;

    let events = subscribe(&*agent, &queued.id).await.unwrap();
    cancel(&*agent, &running).await;
    let states: Vec<_> = remaining(events).await.iter().filter_map(state).collect();
    assert_eq!(
        (states[..2].to_vec(), states.last()),
        (vec![TaskState::Submitted, TaskState::Working], Some(&TaskState::Completed))
    );
    assert_eq!(output(&get(&*agent, &queued.id).await.unwrap()), "hello");
    while !get(&*agent, &interrupted.id).await.unwrap().state().is_terminal() {
        tokio::task::yield_now().await;
    }
}

each_binding!(turns_over_the_limit_wait_in_a_queue, one_server = "the limit is that of one server");

async fn calls_over_the_limit_are_rejected(binding: Binding) {
    let cases: [(_, fn(&mut Limits)); 2] =
        [("calls", |limits| limits.calls = 2), ("calls_per_owner", |limits| limits.calls_per_owner = 2)];
    for (limit, set) in cases {
        let without_timeout = |limits: &mut Limits| {
            limits.send_timeout = None;
            set(limits);
        };
        let agent = binding(limited(without_timeout)).await;
        let mut events = stream(&*agent, text("", "!authorise")).await;
        let id = task_of(&next(&mut events).await).id.clone();
        let waiting = [(); 2].map(|()| {
            let agent = Arc::clone(&agent);
            // Rejected while the other call and a read below are in progress.
            tokio::spawn(async move { while send_payload(&*agent, text("", "!silent")).await.is_err() {} })
        });
        let error = async {
            loop {
                match get(&*agent, &id).await {
                    Ok(_) => tokio::task::yield_now().await,
                    Err(error) => break error,
                }
            }
        };
        let error = tokio::time::timeout(Duration::from_secs(20), error).await.expect("both calls are in progress");
        assert_busy(&error, limit);
        for call in waiting {
            call.abort();
            _ = call.await;
        }
        while let Err(error) = get(&*agent, &id).await {
            assert_busy(&error, limit);
            tokio::task::yield_now().await;
        }
    }
}

each_binding!(calls_over_the_limit_are_rejected, one_server = "the limit is that of one server");

async fn streams_of_an_owner_over_the_limit_are_rejected(binding: Binding) {
    let agent = binding(limited(|limits| limits.streams_per_owner = 1)).await;
    let mut events = stream(&*agent, text("", "!authorise")).await;
    let id = task_of(&next(&mut events).await).id.clone();
    assert_busy(&subscribe(&*agent, &id).await.err().unwrap(), "streams_per_owner");
    cancel(&*agent, &id).await;
    remaining(events).await;
    while let Err(error) = agent.send_streaming_message(request(text("", "hi"))).await {
        assert_busy(&error.into(), "streams_per_owner");
        tokio::task::yield_now().await;
    }
}

each_binding!(streams_of_an_owner_over_the_limit_are_rejected, one_server = "the limit is that of one server");

async fn streams_over_the_limit_are_rejected(binding: Binding) {
    let agent = binding(limited(|limits| (limits.streams, limits.streams_per_task) = (3, 2))).await;
    let mut events = stream(&*agent, text("", "!authorise")).await;
    let id = task_of(&next(&mut events).await).id.clone();
    let other = send(&*agent, text("", "/ask what?")).await;
    let mut second = subscribe(&*agent, &id).await.unwrap();
    next(&mut second).await;
    assert_busy(&subscribe(&*agent, &id).await.err().unwrap(), "streams_per_task");
    let mut third = subscribe(&*agent, &other.id).await.unwrap();
    next(&mut third).await;
    assert_busy(&subscribe(&*agent, &other.id).await.err().unwrap(), "streams");
    let error: Error = agent.send_streaming_message(request(text("", "hi"))).await.err().unwrap().into();
    assert_busy(&error, "streams");
    assert_eq!(
        send(&*agent, text("", "hi")).await.state(),
        TaskState::Completed,
        "non-streaming sends are not counted"
    );
    cancel(&*agent, &id).await;
    assert_eq!(state(remaining(events).await.last().unwrap()), Some(TaskState::Canceled));
    assert_eq!(state(remaining(second).await.last().unwrap()), Some(TaskState::Canceled));
    assert!(third.next().now_or_never().is_none(), "other streams continue");
    drop(third);
    // The server releases the permit once it notices the closed stream.
    while let Err(error) = agent.send_streaming_message(request(text("", "hi"))).await {
        assert_busy(&error.into(), "streams");
        tokio::task::yield_now().await;
    }
}

each_binding!(streams_over_the_limit_are_rejected, one_server = "the limit is that of one server");

/// Checks that a task was evicted. It can be read until its turn, which has replied, releases it.
async fn assert_evicted(agent: &dyn A2aService, id: &str) {
    let error = async {
        loop {
            if let Err(error) = get(agent, id).await {
                return error;
            }
            tokio::task::yield_now().await;
        }
    };
    let error = tokio::time::timeout(Duration::from_secs(10), error).await.expect("the task was not evicted");
    assert_error_kind(&error, ErrorKind::TaskNotFound);
}

async fn terminal_tasks_are_evicted_at_the_limit_of_tasks(binding: Binding) {
    let agent = binding(limited(|_| {}).store(Arc::new(Memory::with_max_tasks(3)))).await;
    let interrupted = send(&*agent, text("", "/ask what?")).await;
    let mut done = Vec::new();
    for n in 0..5 {
        done.push(send(&*agent, text("", &n.to_string())).await);
    }
    // The oldest terminal tasks were evicted, and are gone for every operation.
    for evicted in &done[..3] {
        assert_evicted(&*agent, &evicted.id).await;
        assert_error_kind(&subscribe(&*agent, &evicted.id).await.err().unwrap(), ErrorKind::TaskNotFound);
        assert_error_kind(
            &send_payload(&*agent, text(&evicted.id, "hi")).await.err().unwrap(),
            ErrorKind::TaskNotFound,
        );
    }
    let mut left = [done[4].id.as_str(), &done[3].id, &interrupted.id];
    left.sort_unstable();
    let mut listed = list(&*agent, ListTasksRequest::default()).await;
    listed.sort_unstable();
    assert_eq!(listed, left);
    let completed = ListTasksRequest { status: TaskState::Completed.into(), ..Default::default() };
    assert_eq!(list(&*agent, completed.clone()).await.len(), 2);
    assert_eq!(get(&*agent, &interrupted.id).await.unwrap(), interrupted, "interrupted tasks are not evicted");
    // Without terminal tasks, nothing can be evicted.
    let second = send(&*agent, text("", "/ask what?")).await;
    let third = send(&*agent, text("", "/ask what?")).await;
    assert_eq!(list(&*agent, completed).await.len(), 0);
    assert_busy(&rejected(&*agent, text("", "hello")).await, "tasks");
    assert_eq!(list(&*agent, ListTasksRequest::default()).await.len(), 3);
    // Stored tasks continue.
    assert_eq!(send(&*agent, text(&second.id, "this")).await.state(), TaskState::Completed);
    assert_eq!(send(&*agent, text("", "hello")).await.state(), TaskState::Completed);
    assert_evicted(&*agent, &second.id).await;
    assert_eq!(get(&*agent, &third.id).await.unwrap(), third);
}

each_binding!(
    terminal_tasks_are_evicted_at_the_limit_of_tasks,
    not_in_v03_proto = "its proto file has no lists of tasks",
    one_server = "its store has limits"
);

/// The limit covers all tenants of an owner.
async fn terminal_tasks_are_evicted_at_the_limit_per_owner(binding: Binding) {
    let store = Memory::with_max_tasks(9).with_max_tasks_per_owner(2);
    let agent = binding(limited(|_| {}).store(Arc::new(store))).await;
    let first = send(&*agent, text("", "hello")).await;
    let interrupted = send(&*agent, text("", "/ask what?")).await;
    send(&*agent, text("", "/ask what?")).await;
    assert_evicted(&*agent, &first.id).await;
    assert_busy(&rejected(&*agent, text("", "hello")).await, "tasks_per_owner");
    assert_eq!(send(&*agent, text(&interrupted.id, "this")).await.state(), TaskState::Completed);
    assert_eq!(send(&*agent, text("", "hello")).await.state(), TaskState::Completed);
    assert_evicted(&*agent, &interrupted.id).await;
}

each_binding!(terminal_tasks_are_evicted_at_the_limit_per_owner, one_server = "its store has limits");

/// Agent whose turns start in pairs.
struct PairedAgent(Barrier);

impl Agent for PairedAgent {
    async fn run(&self, _: Turn, out: Updates) -> Result<End, agent::Error> {
        self.0.wait().await;
        out.working().await?;
        std::future::pending().await
    }
}

/// Error of the second of two simultaneous tasks, for which only the store can tell that there is capacity for one.
async fn error_of_second(binding: Binding, streamed: bool) -> Error {
    let store = Arc::new(Memory::with_max_tasks(1));
    let limits = limits(|limits| limits.task_delay = Duration::from_secs(5));
    let agent = binding(Server::new(PairedAgent(Barrier::new(2))).limits(limits).store(store)).await;
    let send = async || -> Result<(), Error> {
        if !streamed {
            return send_payload(&*agent, text("", "hello")).await.map(drop);
        }
        let events = agent.send_streaming_message(request(text("", "hello"))).await?.into_inner();
        let first = events.take(1).collect::<Vec<_>>().await.remove(0);
        Ok(first.map(drop)?)
    };
    let outcomes = futures::future::join(send(), send()).await;
    match outcomes {
        (Ok(()), Err(error)) | (Err(error), Ok(())) => error,
        other => panic!("{other:?}"),
    }
}

async fn simultaneous_send_over_the_limit_of_tasks_is_rejected(binding: Binding) {
    assert_busy(&error_of_second(binding, false).await, "tasks");
}

each_binding!(simultaneous_send_over_the_limit_of_tasks_is_rejected, one_server = "its store has limits");

async fn simultaneous_stream_over_the_limit_of_tasks_is_rejected(binding: Binding) {
    assert_busy(&error_of_second(binding, true).await, "tasks");
}

each_binding!(
    simultaneous_stream_over_the_limit_of_tasks_is_rejected,
    not_in_v03_json_rpc = "an event has no `Retry-After`",
    one_server = "its store has limits"
);

async fn simultaneous_stream_in_v03_names_the_limit(binding: Binding) {
    let rejected = error_of_second(binding, true).await;
    assert_error_kind(&rejected, ErrorKind::ResourceExhausted);
    assert_limit(&rejected, "tasks");
}

each_v03_binding!(simultaneous_stream_in_v03_names_the_limit, one_server = "its store has limits");
