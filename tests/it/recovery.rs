//! Recovery of turns that were interrupted by the end of the process: they are resumed, failed or canceled.

use std::{sync::Arc, time::Duration};

use a2a_service::{
    agent::{Agent, End, Error, Turn, Updates},
    auth::Principal,
    call::Call,
    error::ErrorKind,
    event::Event,
    pb::{
        v1::{
            AgentExtension, CancelTaskRequest, ListTasksRequest, Message, SendMessageConfiguration, SendMessageRequest,
            SubscribeToTaskRequest, Task, TaskState, a2a_service_server::A2aService, send_message_response,
        },
        wkt::{Struct, Value},
    },
    server::Server,
    service::{Limits, Service},
    store::{TaskKey, sqlite::Options},
};
use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

use crate::{
    bindings::serve,
    gate::Gate,
    scenarios::{
        assert_error_kind, configured, get, next, output, remaining, send, send_payload, state, status_text, stream,
        subscribe, task_of, text,
    },
    store::opened::OpenedStore,
};

const TIMEOUT: Duration = Duration::from_secs(20);

/// Agent that appends its attempt, messages and saved counter to an artifact, and returns only if `ends` is set.
#[derive(Clone)]
struct RecordingAgent {
    resumable: bool,
    ends: bool,
}

impl Agent for RecordingAgent {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Error> {
        let messages: Vec<_> = turn.messages().map(Message::text).collect();
        let saved: u32 = turn.saved().unwrap_or_default();
        let line = format!("[{} {} saved {saved}]", turn.attempt(), messages.join("+"));
        out.save(&(saved + 1)).await?;
        out.artifact("log").id("log").appending().text(line).await?;
        if turn.text() == "ask" {
            return Ok(End::input_required("what?"));
        }
        if !self.ends {
            std::future::pending::<()>().await;
        }
        Ok(match messages.last() {
            Some(text) if text.contains("last") => End::Completed(None),
            _ => End::input_required("more?"),
        })
    }

    fn resumable(&self) -> bool {
        self.resumable
    }
}

const NOT_RESUMABLE: RecordingAgent = RecordingAgent { resumable: false, ends: false };
const RESUMABLE: RecordingAgent = RecordingAgent { resumable: true, ends: false };
const ENDING: RecordingAgent = RecordingAgent { resumable: true, ends: true };

fn service(agent: RecordingAgent, store: &OpenedStore) -> Arc<dyn A2aService> {
    service_with_turns(agent, store, Limits::default().turns)
}

fn service_with_turns(agent: RecordingAgent, store: &OpenedStore, turns: usize) -> Arc<dyn A2aService> {
    let mut limits = Limits::default();
    limits.turns = turns;
    // Agents ignore the cancellation.
    limits.cancel_grace = Duration::from_hours(1);
    limits.send_timeout = Some(TIMEOUT);
    Server::new(agent).limits(limits).store(Arc::clone(&store.store)).into_service()
}

fn at_once(task_id: &str, content: &str) -> SendMessageRequest {
    let configuration = SendMessageConfiguration { return_immediately: true, ..Default::default() };
    configured(text(task_id, content), configuration)
}

/// Sends a message without waiting, and returns the task once its turn runs and has written this log.
async fn start_turn(agent: &dyn A2aService, task_id: &str, message: &str, log: &str) -> Task {
    let task = send(agent, at_once(task_id, message)).await;
    let mut events = subscribe(agent, &task.id).await.unwrap();
    let seen = async {
        loop {
            next(&mut events).await;
            let task = get(agent, &task.id).await.unwrap();
            if output(&task) == log {
                break task;
            }
        }
    };
    let task = get(agent, &task.id).await.unwrap();
    if output(&task) == log { task } else { timeout(TIMEOUT, seen).await.unwrap() }
}

/// Waits until the task satisfies a condition.
async fn wait_until(agent: &dyn A2aService, id: &str, condition: impl Fn(&Task) -> bool) -> Task {
    let task = async {
        loop {
            let task = get(agent, id).await.unwrap();
            if condition(&task) {
                break task;
            }
            tokio::task::yield_now().await;
        }
    };
    timeout(TIMEOUT, task).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_turn_of_a_non_resumable_agent_fails() {
    let store = OpenedStore::sqlite(Options::default());
    let agent = service(NOT_RESUMABLE, &store);
    let one = start_turn(&*agent, "", "go", "[1 go saved 0]").await;
    let other = start_turn(&*agent, "", "ask", "[1 ask saved 0]").await;
    let store = store.killed();
    let agent = service(NOT_RESUMABLE, &store);
    let failed = wait_until(&*agent, &one.id, |task| task.state() == TaskState::Failed).await;
    assert_eq!(status_text(&failed), "The server stopped while the agent was at work on this.");
    assert_eq!(output(&failed), output(&one), "artifacts are kept");
    // An interrupted task can be continued.
    let asked = get(&*agent, &other.id).await.unwrap();
    assert_eq!((asked.state(), status_text(&asked).as_str()), (TaskState::InputRequired, "what?"));
    start_turn(&*agent, &other.id, "this", "[1 ask saved 0][1 this saved 1]").await;
    // A second restart changes nothing.
    let agent = service(NOT_RESUMABLE, &store.killed());
    assert_eq!(get(&*agent, &one.id).await.unwrap(), failed);
}

/// A turn that waits for another one to end has not begun, so a restart does not interrupt it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queued_turns_run_after_a_restart_even_if_the_agent_is_not_resumable() {
    let mut store = OpenedStore::sqlite(Options::default());
    let mut agent = service_with_turns(NOT_RESUMABLE, &store, 1);
    let first = start_turn(&*agent, "", "go", "[1 go saved 0]").await;
    let (mut running, mut waiting) = (first.id, Vec::new());
    for _ in 0..2 {
        let queued = send(&*agent, at_once("", "go")).await;
        assert_eq!(queued.state(), TaskState::Submitted);
        waiting.push(queued.id);
    }
    while !waiting.is_empty() {
        store = store.killed();
        agent = service_with_turns(NOT_RESUMABLE, &store, 1);
        let failed = wait_until(&*agent, &running, |task| task.state() == TaskState::Failed).await;
        assert_eq!(output(&failed), "[1 go saved 0]");
        // Tasks are recovered concurrently, so either of them may be the next one.
        let next = async {
            loop {
                for (n, id) in waiting.iter().enumerate() {
                    if !get(&*agent, id).await.unwrap().artifacts.is_empty() {
                        return n;
                    }
                }
                tokio::task::yield_now().await;
            }
        };
        let next = timeout(TIMEOUT, next).await.unwrap();
        running = waiting.remove(next);
        let task = get(&*agent, &running).await.unwrap();
        assert_eq!((task.state(), output(&task).as_str()), (TaskState::Working, "[1 go saved 0]"));
        for id in &waiting {
            assert_eq!(get(&*agent, id).await.unwrap().state(), TaskState::Submitted);
        }
    }
    let store = store.killed();
    let agent = service_with_turns(NOT_RESUMABLE, &store, 1);
    wait_until(&*agent, &running, |task| task.state() == TaskState::Failed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queued_follow_up_runs_after_a_restart_even_if_the_agent_is_not_resumable() {
    let store = OpenedStore::sqlite(Options::default());
    let agent = service_with_turns(NOT_RESUMABLE, &store, 1);
    let asked = start_turn(&*agent, "", "ask", "[1 ask saved 0]").await;
    wait_until(&*agent, &asked.id, |task| task.state() == TaskState::InputRequired).await;
    let running = start_turn(&*agent, "", "go", "[1 go saved 0]").await;
    // A stream does not commit the message itself.
    drop(stream(&*agent, text(&asked.id, "this")).await);
    wait_until(&*agent, &asked.id, |task| task.history.iter().any(|message| message.text() == "this")).await;
    let store = store.killed();
    let agent = service_with_turns(NOT_RESUMABLE, &store, 1);
    wait_until(&*agent, &running.id, |task| task.state() == TaskState::Failed).await;
    wait_until(&*agent, &asked.id, |task| output(task) == "[1 ask saved 0][1 this saved 1]").await;
    // It has begun now.
    let store = store.killed();
    let agent = service_with_turns(NOT_RESUMABLE, &store, 1);
    wait_until(&*agent, &asked.id, |task| task.state() == TaskState::Failed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resumable_agent_is_run_again_with_messages_and_saved_state() {
    let store = OpenedStore::sqlite(Options::default());
    let agent = service(RESUMABLE, &store);
    let task = start_turn(&*agent, "", "ask", "[1 ask saved 0]").await;
    let id = task.id.as_str();
    start_turn(&*agent, id, "one", "[1 ask saved 0][1 one saved 1]").await;
    for content in ["two", "the last"] {
        send(&*agent, at_once(id, content)).await;
    }
    let store = store.killed();
    let agent = service(ENDING, &store);
    let done = wait_until(&*agent, id, |task| task.state().is_terminal()).await;
    assert_eq!(done.state(), TaskState::Completed);
    let log = "[1 ask saved 0][1 one saved 1][2 one saved 2][1 two+the last saved 3]";
    assert_eq!(output(&done), log);
    let history: Vec<_> = done.history.iter().map(Message::text).collect();
    assert_eq!(history, ["ask", "what?", "one", "two", "the last", "more?"]);
    // The log is continuous.
    let events = store.events(&key(id), 0, usize::MAX, usize::MAX).await.unwrap();
    let seqs: Vec<_> = events.iter().map(Event::seq).collect();
    assert_eq!(seqs, (1..=u64::try_from(events.len()).unwrap()).collect::<Vec<_>>());
    assert!(events.windows(2).all(|pair| pair[0].position().fence <= pair[1].position().fence));
}

fn key(id: &str) -> TaskKey {
    TaskKey::new(&Arc::default(), id)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turn_is_resumed_at_most_three_times() {
    let mut store = OpenedStore::sqlite(Options::default());
    let agent = service(RESUMABLE, &store);
    let mut log = "[1 go saved 0]".to_owned();
    let id = start_turn(&*agent, "", "go", &log).await.id;
    for attempt in 2..=3 {
        store = store.killed();
        let agent = service(RESUMABLE, &store);
        log = format!("{log}[{attempt} go saved {}]", attempt - 1);
        wait_until(&*agent, &id, |task| output(task) == log).await;
        assert_eq!(store.load(&key(&id)).await.unwrap().unwrap().row.attempt, attempt);
    }
    store = store.killed();
    let agent = service(RESUMABLE, &store);
    let failed = wait_until(&*agent, &id, |task| task.state() == TaskState::Failed).await;
    assert_eq!(
        (status_text(&failed).as_str(), output(&failed)),
        ("The server stopped 3 times while the agent was at work on this.", log)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recorded_cancel_request_is_completed_after_a_restart() {
    let store = OpenedStore::sqlite(Options::default());
    let agent = service(RESUMABLE, &store);
    let task = start_turn(&*agent, "", "go", "[1 go saved 0]").await;
    let cancel = CancelTaskRequest { id: task.id.clone(), ..CancelTaskRequest::default() };
    let canceling = Arc::clone(&agent);
    let canceled = tokio::spawn(async move { canceling.cancel_task(Call::default().request(cancel)).await });
    let asked = async {
        while !store.load(&key(&task.id)).await.unwrap().unwrap().row.cancel_requested {
            tokio::task::yield_now().await;
        }
    };
    timeout(TIMEOUT, asked).await.unwrap();
    assert_eq!(get(&*agent, &task.id).await.unwrap().state(), task.state());
    canceled.abort();
    let store = store.killed();
    let agent = service(RESUMABLE, &store);
    let task = wait_until(&*agent, &task.id, |current| current.state() != task.state()).await;
    assert_eq!((task.state(), output(&task).as_str()), (TaskState::Canceled, "[1 go saved 0]"));
}

/// After a restart has claimed a task and written nothing yet, reads show the task as the previous process left it; a
/// stream can be resumed from a cursor of that state and from the last stored event.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cursor_of_a_claimed_task_can_be_resumed() {
    let store = OpenedStore::sqlite(Options::default());
    let id = start_turn(&*service(NOT_RESUMABLE, &store), "", "go", "[1 go saved 0]").await.id;
    let store = store.killed();
    assert_eq!(store.claim(9).await.unwrap().len(), 1);
    let agent = service(NOT_RESUMABLE, &store);
    let first = next(&mut subscribe(&*agent, &id).await.unwrap()).await;
    assert_eq!(output(task_of(&first)), "[1 go saved 0]");
    // The last stored event has another cursor at the same position.
    let last = store.events(&key(&id), 0, usize::MAX, usize::MAX).await.unwrap().pop().unwrap();
    assert!(last.seq() == first.cursor().unwrap().parts().unwrap().1.seq && last.cursor() != first.cursor());
    let mut streams = Vec::new();
    for event in [&first, &last] {
        let call = Call { cursor: event.cursor().cloned(), ..Call::default() };
        let subscribe = SubscribeToTaskRequest { id: id.clone(), ..SubscribeToTaskRequest::default() };
        streams.push(agent.subscribe_to_task(call.request(subscribe)).await.unwrap().into_inner());
    }
    let cancel = CancelTaskRequest { id, ..CancelTaskRequest::default() };
    agent.cancel_task(Call::default().request(cancel)).await.unwrap();
    for rest in streams {
        let rest = timeout(TIMEOUT, remaining(rest)).await.unwrap();
        assert_eq!(rest.iter().map(state).collect::<Vec<_>>(), [Some(TaskState::Canceled)]);
    }
}

/// A message that arrives before its task was recovered waits for the recovery.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_during_recovery_gets_the_resumed_task() {
    let store = OpenedStore::sqlite(Options::default());
    let agent = service(RESUMABLE, &store);
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.push(start_turn(&*agent, "", "go", "[1 go saved 0]").await.id);
    }
    let store = store.killed();
    let agent = service(ENDING, &store);
    for id in ids {
        let sent = stream(&*agent, text(&id, "the last")).await;
        let events = timeout(TIMEOUT, remaining(sent)).await.unwrap();
        assert_eq!(task_of(&events[0]).id, id);
        assert_eq!(events.last().and_then(state), Some(TaskState::Completed));
        let done = get(&*agent, &id).await.unwrap();
        assert_eq!(output(&done), "[1 go saved 0][2 go saved 1][1 the last saved 2]");
    }
}

/// Agent that appends the request context of its turn to an artifact, and returns only if `ends` is set.
struct ContextAgent {
    ends: bool,
}

impl Agent for ContextAgent {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Error> {
        let metadata: Vec<_> = turn.metadata().iter().flat_map(|metadata| metadata.fields.keys()).cloned().collect();
        let (principal, modes) =
            (turn.principal().map_or("nobody", |principal| &principal.id), turn.accepted_output_modes().join("+"));
        let referenced: Vec<_> = turn.referenced().iter().map(status_text).collect();
        let (text, extensions) = (turn.text(), turn.extensions().join("+"));
        let line =
            format!("[{text}: {principal} {extensions} {modes} {} {}]", metadata.join("+"), referenced.join("+"));
        out.artifact("log").id("log").appending().text(line).await?;
        if text == "ask" {
            return Ok(End::input_required("what?"));
        }
        if !self.ends {
            std::future::pending::<()>().await;
        }
        Ok(if text == "last" { End::Completed(None) } else { End::input_required("more?") })
    }

    fn resumable(&self) -> bool {
        true
    }
}

/// A resumed turn has the request context of its message, and so has each pending message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resumed_turn_has_its_request_context() {
    const EXTENSION: &str = "urn:e";
    let store = OpenedStore::sqlite(Options::default());
    let serve = |ends, store: &OpenedStore| {
        let extension = AgentExtension { uri: EXTENSION.into(), ..AgentExtension::default() };
        Server::new(ContextAgent { ends }).extension(extension).store(Arc::clone(&store.store)).into_service()
    };
    let agent = serve(false, &store);
    let referenced = send(&*agent, text("", "ask")).await.id;
    let send_with_context = async |id: &str, text: &str, principal: Option<&str>| {
        let message =
            Message { task_id: id.into(), reference_task_ids: vec![referenced.clone()], ..Message::user(text) };
        let configuration = SendMessageConfiguration {
            return_immediately: true,
            accepted_output_modes: vec![format!("text/{text}")],
            ..SendMessageConfiguration::default()
        };
        let fields = [(text.to_owned(), Value::default())].into();
        let sent = SendMessageRequest {
            message: Some(message),
            configuration: Some(configuration),
            metadata: Some(Struct { fields }),
            ..SendMessageRequest::default()
        };
        let principal = principal.map(|name| {
            Principal::new(name).owner("").claims([("role".to_owned(), name.into())].into_iter().collect()).into()
        });
        let call = Call { principal, extensions: vec![EXTENSION.into()], ..Call::default() };
        match agent.send_message(call.request(sent)).await.unwrap().into_inner().payload.unwrap() {
            send_message_response::Payload::Task(task) => task.id,
            send_message_response::Payload::Message(message) => panic!("{message:?}"),
        }
    };
    let line = |text: &str, principal: &str| format!("[{text}: {principal} urn:e text/{text} {text} what?]");
    let new = send_with_context("", "first", Some("ada")).await;
    let asked = send(&*agent, text("", "ask")).await.id;
    send_with_context(&asked, "more", Some("bob")).await;
    send_with_context(&asked, "last", None).await;
    let has_output = |lines: String| move |task: &Task| output(task) == lines;
    wait_until(&*agent, &new, has_output(line("first", "ada"))).await;
    wait_until(&*agent, &asked, has_output(format!("[ask: nobody    ]{}", line("more", "bob")))).await;
    let store = store.killed();
    let agent = serve(true, &store);
    wait_until(&*agent, &new, has_output(line("first", "ada").repeat(2))).await;
    let lines = format!("[ask: nobody    ]{}{}", line("more", "bob").repeat(2), line("last", "nobody"));
    wait_until(&*agent, &asked, has_output(lines)).await;
    wait_until(&*agent, &asked, |task| task.state() == TaskState::Completed).await;
    wait_until(&*agent, &new, |task| task.state() == TaskState::InputRequired).await;
    // The context of an ended turn is deleted.
    for id in [&new, &asked] {
        let stored = store.load(&key(id)).await.unwrap().unwrap();
        assert_eq!(stored.turn_contexts.as_deref().unwrap_or_default(), b"");
    }
}

/// Turns that a drain leaves unfinished are resumed by the next start; the drain cancels none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_left_by_a_drain_are_resumed_at_the_next_start() {
    let store = OpenedStore::sqlite(Options::default());
    let draining = Service::new(RESUMABLE, Arc::clone(&store.store), Limits::default());
    let task = start_turn(&draining, "", "go", "[1 go saved 0]").await;
    let mut events = stream(&draining, text(&task.id, "the last")).await;
    let first = next(&mut events).await;
    draining.drain(Duration::from_millis(50)).await;
    // The stream is cut without a terminal event.
    assert!(events.next().await.unwrap().is_err());
    assert_eq!(get(&draining, &task.id).await.unwrap().state(), task.state());
    let store = store.killed();
    assert_eq!(store.load(&key(&task.id)).await.unwrap().unwrap().row.state, task.state());
    let agent = service(ENDING, &store);
    let call = Call { cursor: first.cursor().cloned(), ..Call::default() };
    let subscription = SubscribeToTaskRequest { id: task.id.clone(), ..SubscribeToTaskRequest::default() };
    let rest = agent.subscribe_to_task(call.request(subscription)).await.unwrap().into_inner();
    let rest = timeout(TIMEOUT, remaining(rest)).await.unwrap();
    assert!(rest.iter().filter_map(state).all(|state| state != TaskState::Canceled));
    assert_eq!(rest.last().and_then(state), Some(TaskState::Completed));
    assert_eq!(output(&get(&*agent, &task.id).await.unwrap()), "[1 go saved 0][2 go saved 1][1 the last saved 2]");
}

/// A stop of the server ends the running turn. Those that get its place at that moment have not begun.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_that_a_stop_takes_out_of_the_queue_run_at_the_next_start() {
    let store = OpenedStore::sqlite(Options::default());
    let mut limits = Limits::default();
    limits.turns = 2;
    let stopping = Service::new(NOT_RESUMABLE, Arc::clone(&store.store), limits);
    let mut running = Vec::new();
    for _ in 0..2 {
        running.push(start_turn(&stopping, "", "go", "[1 go saved 0]").await.id);
    }
    let mut waiting = Vec::new();
    for _ in 0..20 {
        waiting.push(send(&stopping, at_once("", "go")).await.id);
    }
    stopping.drain(Duration::ZERO).await;
    let store = store.killed();
    for id in &waiting {
        let row = store.load(&key(id)).await.unwrap().unwrap().row;
        assert_eq!((row.attempt, row.drained, row.open), (0, 0, true));
    }
    let agent = service(NOT_RESUMABLE, &store);
    for id in &running {
        wait_until(&*agent, id, |task| task.state() == TaskState::Failed).await;
    }
    for id in &waiting {
        wait_until(&*agent, id, |task| output(task) == "[1 go saved 0]").await;
    }
}

/// Graceful restarts do not count as crashes: interrupted turns are resumed each time, and three crashes still fail the
/// task.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn graceful_stops_do_not_count_as_attempts() {
    let mut store = OpenedStore::sqlite(Options::default());
    let mut agent = Service::new(RESUMABLE, Arc::clone(&store.store), Limits::default());
    let mut log = "[1 go saved 0]".to_owned();
    let id = start_turn(&agent, "", "go", &log).await.id;
    for drained in 1..=5 {
        agent.drain(Duration::from_millis(10)).await;
        store = store.killed();
        let row = store.load(&key(&id)).await.unwrap().unwrap().row;
        assert_eq!((row.attempt, row.drained, row.open, row.state), (drained, drained, true, TaskState::Submitted));
        agent = Service::new(RESUMABLE, Arc::clone(&store.store), Limits::default());
        // The agent still sees the attempt number.
        log = format!("{log}[{} go saved {drained}]", drained + 1);
        wait_until(&agent, &id, |task| output(task) == log).await;
    }
    for crashes in 1..=2 {
        store = store.killed();
        agent = Service::new(RESUMABLE, Arc::clone(&store.store), Limits::default());
        log = format!("{log}[{} go saved {}]", crashes + 6, crashes + 5);
        wait_until(&agent, &id, |task| output(task) == log).await;
    }
    store = store.killed();
    agent = Service::new(RESUMABLE, Arc::clone(&store.store), Limits::default());
    let failed = wait_until(&agent, &id, |task| task.state() == TaskState::Failed).await;
    assert_eq!(status_text(&failed), "The server stopped 3 times while the agent was at work on this.");
}

/// The counters start again with the next message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn graceful_stops_are_counted_for_each_turn() {
    let store = OpenedStore::sqlite(Options::default());
    let draining = Service::new(RESUMABLE, Arc::clone(&store.store), Limits::default());
    let id = start_turn(&draining, "", "go", "[1 go saved 0]").await.id;
    draining.drain(Duration::ZERO).await;
    let store = store.killed();
    let agent = service(ENDING, &store);
    wait_until(&*agent, &id, |task| task.state() == TaskState::InputRequired).await;
    start_turn(&*agent, &id, "more", "[1 go saved 0][2 go saved 1][1 more saved 2]").await;
    let row = store.load(&key(&id)).await.unwrap().unwrap().row;
    assert_eq!((row.attempt, row.drained), (1, 0));
}

/// Calls for a task that could not be recovered fail with an `errorId`; other tasks are not affected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_tasks_do_not_block_recovery() {
    let store = OpenedStore::sqlite(Options::default());
    let agent = service(RESUMABLE, &store);
    let mut ids = Vec::new();
    for _ in 0..6 {
        ids.push(start_turn(&*agent, "", "go", "[1 go saved 0]").await.id);
    }
    let store = store.killed();
    let file = rusqlite::Connection::open(store.path().unwrap()).unwrap();
    let log = "(SELECT task.id FROM task WHERE key = ?1)";
    for (id, damage) in ids.iter().zip([
        "UPDATE task SET state = 77 WHERE key = ?1".to_owned(),
        "UPDATE task SET attempt = -1 WHERE key = ?1".to_owned(),
        format!("UPDATE log SET events = x'ffff' WHERE id >> 28 = {log}"),
        format!("DELETE FROM log WHERE id >> 28 = {log}"),
    ]) {
        assert!(file.execute(&damage, [id]).unwrap() > 0, "{damage}");
    }
    drop(file);
    let agent = service(ENDING, &store);
    for id in &ids[4..] {
        let done = send(&*agent, text(id, "the last")).await;
        assert_eq!(done.state(), TaskState::Completed);
        assert_eq!(output(&done), "[1 go saved 0][2 go saved 1][1 the last saved 2]");
    }
    for id in &ids[..4] {
        let cancel = CancelTaskRequest { id: id.clone(), ..CancelTaskRequest::default() };
        let mut errors = vec![
            get(&*agent, id).await.unwrap_err(),
            send_payload(&*agent, text(id, "more")).await.unwrap_err(),
            agent.cancel_task(Call::default().request(cancel)).await.unwrap_err().into(),
            subscribe(&*agent, id).await.err().unwrap(),
        ];
        let first = errors.remove(0);
        assert_error_kind(&first, ErrorKind::Internal);
        assert!(first.to_string().contains(id), "{first}");
        for error in errors {
            assert_error_kind(&error, ErrorKind::Internal);
            assert_eq!(error.metadata("errorId").unwrap(), first.metadata("errorId").unwrap());
        }
    }
    let listed = agent.list_tasks(Call::default().request(ListTasksRequest::default())).await.unwrap().into_inner();
    let mut listed: Vec<_> = listed.tasks.into_iter().map(|task| task.id).collect();
    listed.sort();
    assert_eq!(listed.iter().filter(|id| ids[4..].contains(id)).count(), 2);
    send(&*agent, text("", "ask")).await;
    store.check().await.unwrap();
}

struct PanicsInResumable;

impl Agent for PanicsInResumable {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Error> {
        RESUMABLE.run(turn, out).await
    }

    fn resumable(&self) -> bool {
        panic!("resumable panics")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_whose_resumable_panics_is_not_resumable() {
    let store = OpenedStore::sqlite(Options::default());
    let id = start_turn(&*service(RESUMABLE, &store), "", "go", "[1 go saved 0]").await.id;
    let store = store.killed();
    let agent = Server::new(PanicsInResumable).store(Arc::clone(&store.store)).into_service();
    let failed = wait_until(&*agent, &id, |task| task.state() == TaskState::Failed).await;
    assert_eq!(status_text(&failed), "The server stopped while the agent was at work on this.");
    let refused = send_payload(&*agent, text(&id, "more")).await.unwrap_err();
    assert_error_kind(&refused, ErrorKind::TaskEnded);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readiness_waits_for_recovery() {
    let gate = Gate::opened();
    gate.fail_claims(true);
    let url = serve(Server::new(ENDING).store(gate.store())).await;
    let readyz = async || crate::bindings::fetch(format!("{url}/readyz")).await.unwrap().status().as_u16();
    let channel = tonic::transport::Channel::from_shared(url.clone()).unwrap().connect_lazy();
    let mut health = HealthClient::new(channel);
    let mut watch = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(watch.next().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    let checked = health.check(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!((checked.status(), readyz().await), (ServingStatus::NotServing, 503));
    gate.fail_claims(false);
    let serving = timeout(TIMEOUT, watch.next()).await.unwrap().unwrap().unwrap();
    assert_eq!((serving.status(), readyz().await), (ServingStatus::Serving, 200));
}

/// A send that was durable before a crash is not delivered a second time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retried_send_after_a_crash_returns_the_first_result() {
    let keyed = |key: &str, sent: &SendMessageRequest| {
        Call { idempotency_key: Some(key.into()), ..Call::default() }.request(sent.clone())
    };
    let task = |answer: Option<send_message_response::Payload>| match answer.unwrap() {
        send_message_response::Payload::Task(task) => task,
        send_message_response::Payload::Message(message) => panic!("unexpected message: {message:?}"),
    };
    for (before, after, state) in
        [(NOT_RESUMABLE, NOT_RESUMABLE, TaskState::Failed), (RESUMABLE, ENDING, TaskState::InputRequired)]
    {
        let store = OpenedStore::sqlite(Options::default());
        let agent = service(before, &store);
        let first = at_once("", "go");
        let made = task(agent.send_message(keyed("first", &first)).await.unwrap().into_inner().payload);
        wait_until(&*agent, &made.id, |task| output(task) == "[1 go saved 0]").await;
        // The turn of the follow-up has not started before the crash.
        let second = at_once(&made.id, "and this");
        agent.send_message(keyed("second", &second)).await.unwrap();
        let store = store.killed();
        let agent = service(after, &store);
        let waits = |sent: &SendMessageRequest| SendMessageRequest { configuration: None, ..sent.clone() };
        for (key, sent) in [("first", waits(&first)), ("second", waits(&second))] {
            let retried = agent.send_message(keyed(key, &sent)).await.unwrap().into_inner().payload;
            let retried = task(retried);
            assert_eq!(retried.id, made.id);
            // The turn of the second message may already run when the result of the first one is read.
            let is_next_running = key == "first" && retried.state() == TaskState::Working;
            assert!(retried.state() == state || is_next_running, "{key}: {:?}", retried.state());
        }
        let events = agent.send_streaming_message(keyed("second", &second)).await.unwrap().into_inner();
        let events = timeout(TIMEOUT, remaining(events)).await.unwrap();
        assert_eq!(task_of(&events[0]).id, made.id);
        let done = get(&*agent, &made.id).await.unwrap();
        let log = if state == TaskState::Failed {
            "[1 go saved 0]"
        } else {
            "[1 go saved 0][2 go saved 1][1 and this saved 2]"
        };
        assert_eq!((output(&done).as_str(), done.state()), (log, state));
        let delivered =
            done.history.iter().filter(|message| ["go", "and this"].contains(&message.text().as_str())).count();
        assert_eq!(delivered, 2);
    }
}
