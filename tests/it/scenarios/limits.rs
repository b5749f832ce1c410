//! Everything is bounded, and who is refused at a bound is told which it is.

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
use crate::bindings::{Actor, each_binding, each_v03_binding, scenario};

fn limits(change: impl FnOnce(&mut Limits)) -> Limits {
    let mut limits = Limits::default();
    limits.wait = Some(Duration::from_millis(500));
    change(&mut limits);
    limits
}

fn limited(change: impl FnOnce(&mut Limits)) -> Server<Actor> {
    Server::new(Actor).limits(limits(change))
}

/// Refused at the limit of this name, for now.
fn busy(error: &Error, name: &str) {
    assert_error_kind(error, ErrorKind::ResourceExhausted);
    named(error, name);
    assert_eq!(error.retry_after_seconds(), Some(1), "{error}");
}

/// The error says which limit it is.
fn named(error: &Error, name: &str) {
    assert_eq!(error.metadata("limit"), Some(name), "{:?}", error.details());
}

async fn refused(agent: &dyn A2aService, sent: SendMessageRequest) -> Error {
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
    page.tasks.into_iter().map(|it| it.id).collect()
}

scenario!(a_message_has_so_many_parts, async |agent: &dyn A2aService| {
    let mut sent = text("", "1");
    let parts = &mut sent.message.as_mut().unwrap().parts;
    parts.resize(1000, Part::text("x"));
    assert_eq!(send(agent, sent.clone()).await.state(), TaskState::Completed);
    sent.message.as_mut().unwrap().parts.push(Part::text("x"));
    let error = refused(agent, sent).await;
    assert_error_kind(&error, ErrorKind::InvalidParams);
    named(&error, "parts");
    assert_eq!(fields(&error), ["message.parts"]);
    assert!(
        error.to_string().ends_with("message.parts: 1001 parts exceed the limit of 1000 (limits.parts)"),
        "{error}"
    );
});

scenario!(
    a_message_refers_to_so_many_tasks,
    not_in_v03_proto = "a message of its proto file refers to no tasks",
    async |agent: &dyn A2aService| {
        let mut sent = text("", "1");
        sent.message.as_mut().unwrap().reference_task_ids.resize(17, "t".into());
        let error = refused(agent, sent).await;
        named(&error, "references");
        assert_eq!(fields(&error), ["message.referenceTaskIds"]);
    }
);

/// Refused because of an identifier in this field.
fn too_long(error: &Error, field: &str) {
    assert_error_kind(error, ErrorKind::InvalidParams);
    named(error, "id_bytes");
    assert_eq!(fields(error), [field]);
    assert!(
        error.to_string().ends_with("has 257 bytes, which exceeds the limit of 256 (id_bytes); send a shorter one"),
        "{error}"
    );
}

scenario!(identifiers_of_a_message_have_a_maximum_length, async |agent: &dyn A2aService| {
    let (fits, longer) = ("i".repeat(256), "i".repeat(257));
    let changed = |change: &dyn Fn(&mut Message)| {
        let mut sent = text("", "hello");
        sent.message.as_mut().map(change);
        sent
    };
    let sent = changed(&|it| (it.context_id, it.message_id) = (fits.clone(), fits.clone()));
    assert_eq!(send(agent, sent).await.context_id, fits);
    for (field, sent) in [
        ("message.contextId", changed(&|it| it.context_id.clone_from(&longer))),
        ("message.messageId", changed(&|it| it.message_id.clone_from(&longer))),
        ("message.taskId", changed(&|it| it.task_id.clone_from(&longer))),
    ] {
        too_long(&refused(agent, sent).await, field);
    }
    let sent = changed(&|it| it.extensions = vec!["u".repeat(2048), "u".repeat(2049)]);
    let error = refused(agent, sent).await;
    named(&error, "uri_bytes");
    assert_eq!(fields(&error), ["message.extensions[1]"]);
});

scenario!(
    identifiers_that_only_1_0_has_have_a_maximum_length,
    not_at_0_3 = "a message of its proto file refers to no tasks, and its requests have no tenant",
    async |agent: &dyn A2aService| {
        let longer = "i".repeat(257);
        let mut sent = text("", "hello");
        sent.tenant.clone_from(&longer);
        too_long(&refused(agent, sent).await, "tenant");
        let mut sent = text("", "hello");
        sent.message.as_mut().unwrap().reference_task_ids = vec!["t".into(), longer.clone()];
        too_long(&refused(agent, sent).await, "message.referenceTaskIds[1]");
        too_long(&get(agent, &longer).await.err().unwrap(), "id");
        let query = ListTasksRequest { context_id: longer, ..Default::default() };
        too_long(&agent.list_tasks(request(query)).await.err().unwrap().into(), "contextId");
    }
);

/// Says more than it may, each time in another way.
struct Talker;

impl Agent for Talker {
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
            // However it takes it.
            "deaf" => {
                for _ in 0..100 {
                    out.working().await.unwrap_or_default();
                }
            }
            "stuck" => {
                while out.working().await.is_ok() {}
                std::future::pending::<()>().await;
            }
            "elsewhere" => {
                let other = tokio::spawn(async move { while out.working().await.is_ok() {} });
                other.await.unwrap();
                std::future::pending::<()>().await;
            }
            _ => return Ok(End::InputRequired(Message::agent("more?"))),
        }
        Ok(End::Completed(None))
    }
}

async fn an_agent_that_says_too_much_fails(way: impl AsyncFn(Server<Talker>) -> Arc<dyn A2aService>) {
    let limits = limits(|it| (it.events, it.artifacts) = (20, 5));
    let agent = way(Server::new(Talker).limits(limits)).await;
    for (does, limit, most) in [
        ("events", "events", "20 events"),
        ("artifacts", "artifacts", "5 artifacts"),
        ("deaf", "events", "20 events"),
        ("stuck", "events", "20 events"),
        ("elsewhere", "events", "20 events"),
    ] {
        let events = remaining(stream(&*agent, text("", does)).await).await;
        assert_eq!(state(events.last().unwrap()), Some(TaskState::Failed), "{does}");
        let task = get(&*agent, &task_of(&events[0]).id).await.unwrap();
        assert_eq!(status_text(&task), format!("Agent execution failed (limit {limit}): a task has at most {most}"));
        if limit == "events" {
            assert_eq!(events.len(), 21, "{does}: its end is the one that may be more");
        } else {
            assert_eq!((task.artifacts.len(), output(&task).as_str()), (5, "xxxxx"));
        }
    }
    // Messages count too, and one that does not fit is refused and ends nothing.
    let asked = send(&*agent, text("", "ask")).await;
    let error = loop {
        match send_payload(&*agent, text(&asked.id, "ask")).await {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_error_kind(&error, ErrorKind::ResourceExhausted);
    named(&error, "events");
    assert!(error.to_string().ends_with("accepts no more messages: a task has at most 20 events"), "{error}");
    assert_eq!(get(&*agent, &asked.id).await.unwrap().state(), TaskState::InputRequired);
    cancel(&*agent, &asked.id).await;
}

each_binding!(an_agent_that_says_too_much_fails);

/// Sends more bytes than it may, each time in another way.
struct Large;

impl Agent for Large {
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
            "end" => return Ok(End::Completed(Some(Message::agent(text(2000))))),
            "question" => return Ok(End::InputRequired(Message::agent(text(2000)))),
            "reply" => return Ok(End::Reply(Message::agent(text(2000)))),
            _ => return Ok(End::InputRequired(Message::agent("more?"))),
        }
        Ok(End::Completed(None))
    }
}

async fn an_agent_that_sends_too_many_bytes_fails(way: impl AsyncFn(Server<Large>) -> Arc<dyn A2aService>) {
    let limits = limits(|it| (it.event_bytes, it.artifact_bytes, it.task_bytes) = (2000, 3000, 5000));
    let agent = way(Server::new(Large).limits(limits)).await;
    for (does, limit, most) in [
        ("event", "event_bytes", "an event has at most 2000 bytes"),
        ("artifact", "artifact_bytes", "an artifact has at most 3000 bytes"),
        ("small chunks", "artifact_bytes", "an artifact has at most 3000 bytes"),
        ("task", "task_bytes", "a task has at most 5000 bytes"),
        ("id", "id_bytes", "an identifier has at most 256 bytes"),
        ("end", "event_bytes", "an event has at most 2000 bytes"),
        ("question", "event_bytes", "an event has at most 2000 bytes"),
        ("reply", "event_bytes", "an event has at most 2000 bytes"),
    ] {
        let task = send(&*agent, text("", does)).await;
        assert_eq!(task.state(), TaskState::Failed, "{does}");
        assert_eq!(status_text(&task), format!("Agent execution failed (limit {limit}): {most}"), "{does}");
        assert!(output(&task).len() <= 3000, "{does}");
    }
    assert_eq!(send(&*agent, text("", "state")).await.state(), TaskState::Failed);
    // Messages of clients count too, and one that does not fit is refused and ends nothing.
    let large = "x".repeat(2000);
    named(&refused(&*agent, text("", &large)).await, "event_bytes");
    let asked = send(&*agent, text("", "ask")).await;
    named(&refused(&*agent, text(&asked.id, &large)).await, "event_bytes");
    let error = loop {
        match send_payload(&*agent, text(&asked.id, &large[..900])).await {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_error_kind(&error, ErrorKind::ResourceExhausted);
    named(&error, "task_bytes");
    assert!(error.to_string().ends_with("accepts no more messages: a task has at most 5000 bytes"), "{error}");
    assert_eq!(get(&*agent, &asked.id).await.unwrap().state(), TaskState::InputRequired);
    cancel(&*agent, &asked.id).await;
}

each_binding!(an_agent_that_sends_too_many_bytes_fails);

/// A message that begins a task in this context.
fn in_context(context: &str, words: &str) -> SendMessageRequest {
    let mut sent = text("", words);
    context.clone_into(&mut sent.message.as_mut().unwrap().context_id);
    sent
}

async fn a_context_has_so_many_bytes(way: impl AsyncFn(Server<Large>) -> Arc<dyn A2aService>) {
    let agent = way(Server::new(Large).limits(limits(|it| it.context_bytes = 5000))).await;
    // A task that has its context to itself, and tasks that share one.
    let alone = send(&*agent, text("", "task")).await;
    assert_eq!(status_text(&alone), "Agent execution failed (limit context_bytes): a context has at most 5000 bytes");
    let asked = send(&*agent, text("", "ask")).await;
    let mut tasks = 0;
    while send_payload(&*agent, in_context(&asked.context_id, &"x".repeat(900))).await.is_ok() {
        tasks += 1;
        assert!(tasks < 10);
    }
    assert!(tasks > 1);
    let large = "x".repeat(1900);
    for sent in [in_context(&asked.context_id, &large), text(&asked.id, &large)] {
        let error = refused(&*agent, sent).await;
        assert_error_kind(&error, ErrorKind::ResourceExhausted);
        named(&error, "context_bytes");
        assert!(error.to_string().contains("accepts no more messages: a context has at most 5000 bytes"), "{error}");
    }
    assert_eq!(get(&*agent, &asked.id).await.unwrap(), asked, "nothing was recorded");
    assert_eq!(send(&*agent, in_context("another", &large)).await.state(), TaskState::InputRequired);

    let agent = way(Server::new(Large).limits(limits(|it| it.context_bytes = 0))).await;
    for sent in [text("", "ask"), in_context("another", "ask")] {
        named(&refused(&*agent, sent).await, "context_bytes");
    }
}

each_binding!(a_context_has_so_many_bytes);

/// Expects the newest messages of a history, and fewer bytes of them than the limit.
fn is_newest(shown: &Task, whole: &[String], most: usize) {
    let texts: Vec<String> = shown.history.iter().map(Message::text).collect();
    assert!(!texts.is_empty() && texts.len() < whole.len(), "{} messages", texts.len());
    assert_eq!(texts, whole[whole.len() - texts.len()..]);
    let bytes: usize = shown.history.iter().map(prost::Message::encoded_len).sum();
    assert!(bytes <= most || texts.len() == 1, "{bytes} bytes");
}

/// Sends messages of 900 bytes to a task, and returns its id, the last reply, and the texts of its history.
async fn talk(agent: &dyn A2aService) -> (String, Task, Vec<String>) {
    let (mut task, mut whole) = (send(agent, text("", "ask")).await, vec!["ask".to_owned()]);
    for n in 0..4 {
        let large = format!("{n:0900}");
        task = send(agent, text(&task.id, &large)).await;
        whole.extend(["more?".to_owned(), large]);
    }
    (task.id.clone(), task, whole)
}

async fn history_in_a_reply_has_a_maximum_size(way: impl AsyncFn(Server<Large>) -> Arc<dyn A2aService>) {
    for (most, fits) in [(2700, 4), (0, 1)] {
        let agent = way(Server::new(Large).limits(limits(|it| it.history_bytes = most))).await;
        let (id, sent, mut whole) = talk(&*agent).await;
        is_newest(&sent, &whole, most);
        assert_eq!(sent.history.len(), fits);
        for (length, messages) in [(None, fits), (Some(100), fits), (Some(1), 1)] {
            let get = GetTaskRequest { id: id.clone(), history_length: length, ..GetTaskRequest::default() };
            let found = agent.get_task(request(get)).await.unwrap().into_inner().into_task().unwrap();
            is_newest(&found, &whole, most);
            assert_eq!(found.history.len(), messages, "{length:?}");
        }
        let mut events = subscribe(&*agent, &id).await.unwrap();
        is_newest(task_of(&next(&mut events).await), &whole, most);
        drop(events);
        let events = remaining(stream(&*agent, text(&id, &"y".repeat(900))).await).await;
        whole.extend(["more?".to_owned(), "y".repeat(900)]);
        is_newest(task_of(&events[0]), &whole, most);
        whole.push("more?".to_owned());
        let cancel = CancelTaskRequest { id, ..CancelTaskRequest::default() };
        let canceled = agent.cancel_task(request(cancel)).await.unwrap().into_inner().into_task().unwrap();
        is_newest(&canceled, &whole, most);
    }
}

each_binding!(history_in_a_reply_has_a_maximum_size);

async fn history_in_a_list_has_a_maximum_size(way: impl AsyncFn(Server<Large>) -> Arc<dyn A2aService>) {
    let agent = way(Server::new(Large).limits(limits(|it| it.history_bytes = 2700))).await;
    let (id, _, whole) = talk(&*agent).await;
    for (length, messages) in [(None, 4), (Some(100), 4), (Some(1), 1)] {
        let query = ListTasksRequest { history_length: length, ..ListTasksRequest::default() };
        let page = agent.list_tasks(request(query)).await.unwrap().into_inner();
        let [task] = &page.tasks[..] else { panic!("{} tasks", page.tasks.len()) };
        assert_eq!((&task.id, task.history.len()), (&id, messages), "{length:?}");
        is_newest(task, &whole, 2700);
    }
}

each_binding!(history_in_a_list_has_a_maximum_size, not_in_v03_proto = "its proto file has no lists of tasks");

/// Requests of few bytes that take much memory once decoded; a call in process is not decoded.
mod what_takes_too_much_once_decoded_is_refused {
    use a2a_service::pb::wkt::Struct;

    use super::*;

    async fn run(agent: &dyn A2aService) {
        let nulls = |n: usize| {
            let metadata: Struct = serde_json::from_value(serde_json::json!({"list": vec![(); n]})).unwrap();
            let mut sent = text("", "hello");
            sent.message.as_mut().unwrap().metadata = Some(metadata);
            sent
        };
        let error = refused(agent, nulls(200_000)).await;
        assert_error_kind(&error, ErrorKind::TooLarge);
        named(&error, "decoded_bytes");
        assert_eq!(send(agent, nulls(10_000)).await.state(), TaskState::Completed);
    }

    crate::bindings::columns!(
        @ tokio::test, way => async { run(&*way(crate::bindings::server()).await).await };
        grpc rest json_rpc v03_grpc v03_rest v03_rpc
    );
}

async fn the_longest_durations_and_highest_counts_are_taken(way: impl AsyncFn(Server<Actor>) -> Arc<dyn A2aService>) {
    const LONGEST: Duration = Duration::MAX;
    let mut limits = Limits::default();
    (limits.real_after, limits.turn, limits.idle) = (LONGEST, LONGEST, LONGEST);
    (limits.cancel, limits.wait, limits.stream_age) = (LONGEST, Some(LONGEST), LONGEST);
    let server = Server::new(Actor).limits(limits).keep_alive(LONGEST).grace(LONGEST).max_connections(usize::MAX);
    let agent = way(server).await;
    assert_eq!(send(&*agent, text("", "hello")).await.state(), TaskState::Completed);
    let events = remaining(stream(&*agent, text("", "hello")).await).await;
    assert_eq!(state(events.last().unwrap()), Some(TaskState::Completed));
    let events = stream(&*agent, text("", "!authorise")).await;
    drop(events);
}

each_binding!(the_longest_durations_and_highest_counts_are_taken);

async fn so_many_turns_run_at_once(way: impl AsyncFn(Server<Actor>) -> Arc<dyn A2aService>) {
    let agent = way(limited(|it| it.turns = 2)).await;
    let asked = send(&*agent, text("", "/ask what?")).await;
    let mut running = Vec::new();
    for _ in 0..2 {
        let events = stream(&*agent, text("", "!authorise")).await;
        running.push(events);
    }
    let mut ids = Vec::new();
    for it in &mut running {
        ids.push(task_of(&next(it).await).id.clone());
    }
    for sent in [text("", "hello"), text(&asked.id, "this")] {
        busy(&refused(&*agent, sent).await, "turns");
    }
    assert_eq!(get(&*agent, &asked.id).await.unwrap(), asked, "nothing was done");
    // A message to an agent that is busy needs no turn of its own yet.
    let waiting = SendMessageConfiguration { return_immediately: true, ..Default::default() };
    send(&*agent, configured(text(&ids[0], "and this"), waiting)).await;
    cancel(&*agent, &ids[0]).await;
    for n in 0..5 {
        // Who learns of the end of a turn finds its place free.
        assert_eq!(output(&send(&*agent, text("", &format!("hello {n}"))).await), format!("hello {n}"));
        assert!(matches!(send_payload(&*agent, text("", "/message hi")).await.unwrap(), Answer::Message(_)));
    }
    cancel(&*agent, &ids[1]).await;
}

each_binding!(so_many_turns_run_at_once);

async fn so_many_streams_are_open_at_once(way: impl AsyncFn(Server<Actor>) -> Arc<dyn A2aService>) {
    let agent = way(limited(|it| (it.streams, it.subscribers) = (3, 2))).await;
    let mut events = stream(&*agent, text("", "!authorise")).await;
    let id = task_of(&next(&mut events).await).id.clone();
    let other = send(&*agent, text("", "/ask what?")).await;
    let mut second = subscribe(&*agent, &id).await.unwrap();
    next(&mut second).await;
    busy(&subscribe(&*agent, &id).await.err().unwrap(), "subscribers");
    let mut third = subscribe(&*agent, &other.id).await.unwrap();
    next(&mut third).await;
    busy(&subscribe(&*agent, &other.id).await.err().unwrap(), "streams");
    let error: Error = agent.send_streaming_message(request(text("", "hi"))).await.err().unwrap().into();
    busy(&error, "streams");
    assert_eq!(send(&*agent, text("", "hi")).await.state(), TaskState::Completed, "a send has no stream");
    cancel(&*agent, &id).await;
    assert_eq!(state(remaining(events).await.last().unwrap()), Some(TaskState::Canceled));
    assert_eq!(state(remaining(second).await.last().unwrap()), Some(TaskState::Canceled));
    assert!(third.next().now_or_never().is_none(), "the others go on");
    drop(third);
    // The server learns of who has gone when it looks.
    while let Err(error) = agent.send_streaming_message(request(text("", "hi"))).await {
        busy(&error.into(), "streams");
        tokio::task::yield_now().await;
    }
}

each_binding!(so_many_streams_are_open_at_once);

async fn so_many_tasks_are_kept(way: impl AsyncFn(Server<Actor>) -> Arc<dyn A2aService>) {
    let agent = way(limited(|_| {}).store(Arc::new(Memory::with_max_tasks(3)))).await;
    let asked = send(&*agent, text("", "/ask what?")).await;
    let mut done = Vec::new();
    for n in 0..5 {
        done.push(send(&*agent, text("", &n.to_string())).await);
    }
    // Those that ended first made room, and are not there any more, to nobody.
    for gone in &done[..3] {
        assert_error_kind(&get(&*agent, &gone.id).await.err().unwrap(), ErrorKind::TaskNotFound);
        assert_error_kind(&subscribe(&*agent, &gone.id).await.err().unwrap(), ErrorKind::TaskNotFound);
        assert_error_kind(&send_payload(&*agent, text(&gone.id, "hi")).await.err().unwrap(), ErrorKind::TaskNotFound);
    }
    let mut left = [done[4].id.as_str(), &done[3].id, &asked.id];
    left.sort_unstable();
    let mut listed = list(&*agent, ListTasksRequest::default()).await;
    listed.sort_unstable();
    assert_eq!(listed, left);
    let completed = ListTasksRequest { status: TaskState::Completed.into(), ..Default::default() };
    assert_eq!(list(&*agent, completed.clone()).await.len(), 2);
    assert_eq!(get(&*agent, &asked.id).await.unwrap(), asked, "it waits for its caller");
    // Where none has ended, there is no room.
    let second = send(&*agent, text("", "/ask what?")).await;
    let third = send(&*agent, text("", "/ask what?")).await;
    assert_eq!(list(&*agent, completed).await.len(), 0);
    busy(&refused(&*agent, text("", "hello")).await, "max_tasks");
    assert_eq!(list(&*agent, ListTasksRequest::default()).await.len(), 3);
    // What is there goes on.
    assert_eq!(send(&*agent, text(&second.id, "this")).await.state(), TaskState::Completed);
    assert_eq!(send(&*agent, text("", "hello")).await.state(), TaskState::Completed);
    assert_error_kind(&get(&*agent, &second.id).await.err().unwrap(), ErrorKind::TaskNotFound);
    assert_eq!(get(&*agent, &third.id).await.unwrap(), third);
}

each_binding!(so_many_tasks_are_kept, not_in_v03_proto = "its proto file has no lists of tasks");

/// In each tenant of theirs, or in all: it is the same owner.
async fn so_many_tasks_are_kept_of_an_owner(way: impl AsyncFn(Server<Actor>) -> Arc<dyn A2aService>) {
    let store = Memory::with_max_tasks(9).with_max_tasks_per_owner(2);
    let agent = way(limited(|_| {}).store(Arc::new(store))).await;
    let first = send(&*agent, text("", "hello")).await;
    let asked = send(&*agent, text("", "/ask what?")).await;
    send(&*agent, text("", "/ask what?")).await;
    assert_error_kind(&get(&*agent, &first.id).await.err().unwrap(), ErrorKind::TaskNotFound);
    busy(&refused(&*agent, text("", "hello")).await, "max_tasks_per_owner");
    assert_eq!(send(&*agent, text(&asked.id, "this")).await.state(), TaskState::Completed);
    assert_eq!(send(&*agent, text("", "hello")).await.state(), TaskState::Completed);
    assert_error_kind(&get(&*agent, &asked.id).await.err().unwrap(), ErrorKind::TaskNotFound);
}

each_binding!(so_many_tasks_are_kept_of_an_owner);

/// Begins when two of it do.
struct Pair(Barrier);

impl Agent for Pair {
    async fn run(&self, _: Turn, out: Updates) -> Result<End, agent::Error> {
        self.0.wait().await;
        out.working().await?;
        std::future::pending().await
    }
}

/// Tasks that begin at the same time are told apart by the store.
async fn second(way: impl AsyncFn(Server<Pair>) -> Arc<dyn A2aService>, streamed: bool) -> Error {
    let store = Arc::new(Memory::with_max_tasks(1));
    let limits = limits(|it| it.real_after = Duration::from_secs(5));
    let agent = way(Server::new(Pair(Barrier::new(2))).limits(limits).store(store)).await;
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
        (Ok(()), Err(it)) | (Err(it), Ok(())) => it,
        it => panic!("{it:?}"),
    }
}

async fn who_comes_second_finds_no_room(way: impl AsyncFn(Server<Pair>) -> Arc<dyn A2aService>) {
    busy(&second(way, false).await, "max_tasks");
}

each_binding!(who_comes_second_finds_no_room);

async fn who_comes_second_has_no_stream(way: impl AsyncFn(Server<Pair>) -> Arc<dyn A2aService>) {
    busy(&second(way, true).await, "max_tasks");
}

each_binding!(who_comes_second_has_no_stream, not_in_v03_json_rpc = "an event can't say when to come again");

async fn who_comes_second_reads_why(way: impl AsyncFn(Server<Pair>) -> Arc<dyn A2aService>) {
    let refused = second(way, true).await;
    assert_error_kind(&refused, ErrorKind::ResourceExhausted);
    named(&refused, "max_tasks");
}

each_v03_binding!(who_comes_second_reads_why);
