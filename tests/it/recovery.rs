//! What becomes of the turns that the end of a process cut: nothing stays at work for ever.

use std::{sync::Arc, time::Duration};

use a2a_service::{
    agent::{Agent, End, Error, Turn, Updates},
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
    store::{Key, RunnerId, sqlite::Options},
};
use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

use crate::{
    gate::Gate,
    scenarios::{
        answer, configured, get, is, next, output, remaining, said, send, state, stream, subscribe, task_of, text,
    },
    store::place::Opened,
    ways::serve,
};

const PATIENCE: Duration = Duration::from_secs(20);

/// Says in an artifact who gave it what, how often it has begun, and what it knows; then it never returns, unless it may.
#[derive(Clone)]
struct Cut {
    resumable: bool,
    ends: bool,
}

impl Agent for Cut {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Error> {
        let heard: Vec<_> = turn.messages().map(Message::text).collect();
        let saved: u32 = turn.saved().unwrap_or_default();
        let line = format!("[{} {} saved {saved}]", turn.attempt(), heard.join("+"));
        out.save(&(saved + 1)).await?;
        out.artifact("log").id("log").appending().text(line).await?;
        if turn.text() == "ask" {
            return Ok(End::InputRequired(Message::agent("what?")));
        }
        if !self.ends {
            std::future::pending::<()>().await;
        }
        Ok(match heard.last() {
            Some(it) if it.contains("last") => End::Completed(None),
            _ => End::InputRequired(Message::agent("more?")),
        })
    }

    fn resumable(&self) -> bool {
        self.resumable
    }
}

const STUCK: Cut = Cut { resumable: false, ends: false };
const AGAIN: Cut = Cut { resumable: true, ends: false };
const ENDS: Cut = Cut { resumable: true, ends: true };

fn service(agent: Cut, store: &Opened) -> Arc<dyn A2aService> {
    let mut limits = Limits::default();
    // Whoever is told to stop does not.
    limits.cancel = Duration::from_hours(1);
    limits.wait = Some(PATIENCE);
    Server::new(agent).limits(limits).store(Arc::clone(&store.store)).into_service()
}

fn at_once(task_id: &str, said: &str) -> SendMessageRequest {
    let configuration = SendMessageConfiguration { return_immediately: true, ..Default::default() };
    configured(text(task_id, said), configuration)
}

/// A task whose agent is at work, and has said this for all to see.
async fn at_work(agent: &dyn A2aService, task_id: &str, message: &str, log: &str) -> Task {
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
    if output(&task) == log { task } else { timeout(PATIENCE, seen).await.unwrap() }
}

/// The task, once this is so.
async fn when(agent: &dyn A2aService, id: &str, is: impl Fn(&Task) -> bool) -> Task {
    let task = async {
        loop {
            let task = get(agent, id).await.unwrap();
            if is(&task) {
                break task;
            }
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, task).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_whose_agent_can_not_begin_again_has_failed() {
    let store = Opened::sqlite(Options::default());
    let agent = service(STUCK, &store);
    let one = at_work(&*agent, "", "go", "[1 go saved 0]").await;
    let other = at_work(&*agent, "", "ask", "[1 ask saved 0]").await;
    let store = store.killed();
    let agent = service(STUCK, &store);
    let failed = when(&*agent, &one.id, |it| it.state() == TaskState::Failed).await;
    assert_eq!(said(&failed), "The server stopped while the agent was at work on this.");
    assert_eq!(output(&failed), output(&one), "what there was stays");
    // Whoever was asked something can answer.
    let asked = get(&*agent, &other.id).await.unwrap();
    assert_eq!((asked.state(), said(&asked).as_str()), (TaskState::InputRequired, "what?"));
    at_work(&*agent, &other.id, "this", "[1 ask saved 0][1 this saved 1]").await;
    // Once is enough.
    let agent = service(STUCK, &store.killed());
    assert_eq!(get(&*agent, &one.id).await.unwrap(), failed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_can_begins_again_with_what_it_had() {
    let store = Opened::sqlite(Options::default());
    let agent = service(AGAIN, &store);
    let task = at_work(&*agent, "", "ask", "[1 ask saved 0]").await;
    let id = task.id.as_str();
    at_work(&*agent, id, "one", "[1 ask saved 0][1 one saved 1]").await;
    for it in ["two", "the last"] {
        send(&*agent, at_once(id, it)).await;
    }
    let store = store.killed();
    let agent = service(ENDS, &store);
    let done = when(&*agent, id, |it| it.state().is_terminal()).await;
    assert_eq!(done.state(), TaskState::Completed);
    let log = "[1 ask saved 0][1 one saved 1][2 one saved 2][1 two+the last saved 3]";
    assert_eq!(output(&done), log);
    let history: Vec<_> = done.history.iter().map(Message::text).collect();
    assert_eq!(history, ["ask", "what?", "one", "two", "the last", "more?"]);
    // One log, from its first event to its last.
    let events = store.events(&key(id), 0, usize::MAX).await.unwrap().events;
    let seqs: Vec<_> = events.iter().map(Event::seq).collect();
    assert_eq!(seqs, (1..=u64::try_from(events.len()).unwrap()).collect::<Vec<_>>());
    assert!(events.windows(2).all(|it| it[0].position().fence <= it[1].position().fence));
}

fn key(id: &str) -> Key {
    Key::new(&Arc::default(), id)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_begins_three_times_and_not_for_ever() {
    let mut store = Opened::sqlite(Options::default());
    let agent = service(AGAIN, &store);
    let mut log = "[1 go saved 0]".to_owned();
    let id = at_work(&*agent, "", "go", &log).await.id;
    for attempt in 2..=3 {
        store = store.killed();
        let agent = service(AGAIN, &store);
        log = format!("{log}[{attempt} go saved {}]", attempt - 1);
        when(&*agent, &id, |it| output(it) == log).await;
        assert_eq!(store.load(&key(&id)).await.unwrap().unwrap().row.attempt, attempt);
    }
    store = store.killed();
    let agent = service(AGAIN, &store);
    let failed = when(&*agent, &id, |it| it.state() == TaskState::Failed).await;
    assert_eq!(
        (said(&failed).as_str(), output(&failed)),
        ("The server stopped 3 times while the agent was at work on this.", log)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_to_be_canceled_is() {
    let store = Opened::sqlite(Options::default());
    let agent = service(AGAIN, &store);
    let task = at_work(&*agent, "", "go", "[1 go saved 0]").await;
    let cancel = CancelTaskRequest { id: task.id.clone(), ..CancelTaskRequest::default() };
    let canceling = Arc::clone(&agent);
    let canceled = tokio::spawn(async move { canceling.cancel_task(Call::default().request(cancel)).await });
    let asked = async {
        while !store.load(&key(&task.id)).await.unwrap().unwrap().row.cancel_requested {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, asked).await.unwrap();
    assert_eq!(get(&*agent, &task.id).await.unwrap().state(), task.state());
    canceled.abort();
    let store = store.killed();
    let agent = service(AGAIN, &store);
    let task = when(&*agent, &task.id, |it| it.state() != task.state()).await;
    assert_eq!((task.state(), output(&task).as_str()), (TaskState::Canceled, "[1 go saved 0]"));
}

/// Whoever comes at once comes after what was left has been seen to, and sees what becomes of it.
/// An opening that has taken a task, and has written nothing of it yet, shows it as the last one left it: whoever was
/// shown that goes on from there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_shown_before_there_was_more_can_be_gone_on_from() {
    let store = Opened::sqlite(Options::default());
    let id = at_work(&*service(STUCK, &store), "", "go", "[1 go saved 0]").await.id;
    let store = store.killed();
    assert_eq!(store.claim(RunnerId(1), 9, Duration::ZERO).await.unwrap().len(), 1);
    let agent = service(STUCK, &store);
    let shown = next(&mut subscribe(&*agent, &id).await.unwrap()).await;
    assert_eq!(output(task_of(&shown)), "[1 go saved 0]");
    // And so does whoever had seen the last event.
    let last = store.events(&key(&id), 0, usize::MAX).await.unwrap().events.pop().unwrap();
    assert!(last.seq() == shown.cursor().unwrap().parts().unwrap().1.seq && last.cursor() != shown.cursor());
    let mut streams = Vec::new();
    for it in [&shown, &last] {
        let call = Call { cursor: it.cursor().cloned(), ..Call::default() };
        let subscribe = SubscribeToTaskRequest { id: id.clone(), ..SubscribeToTaskRequest::default() };
        streams.push(agent.subscribe_to_task(call.request(subscribe)).await.unwrap().into_inner());
    }
    let cancel = CancelTaskRequest { id, ..CancelTaskRequest::default() };
    agent.cancel_task(Call::default().request(cancel)).await.unwrap();
    for rest in streams {
        let rest = timeout(PATIENCE, remaining(rest)).await.unwrap();
        assert_eq!(rest.iter().map(state).collect::<Vec<_>>(), [Some(TaskState::Canceled)]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_comes_first_meets_a_task_that_goes_on() {
    let store = Opened::sqlite(Options::default());
    let agent = service(AGAIN, &store);
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.push(at_work(&*agent, "", "go", "[1 go saved 0]").await.id);
    }
    let store = store.killed();
    let agent = service(ENDS, &store);
    for id in ids {
        let sent = stream(&*agent, text(&id, "the last")).await;
        let events = timeout(PATIENCE, remaining(sent)).await.unwrap();
        assert_eq!(task_of(&events[0]).id, id);
        assert_eq!(events.last().and_then(state), Some(TaskState::Completed));
        let done = get(&*agent, &id).await.unwrap();
        assert_eq!(output(&done), "[1 go saved 0][2 go saved 1][1 the last saved 2]");
    }
}

/// Says what it knows of who asked, and then never returns, unless it may.
struct Knows {
    ends: bool,
}

impl Agent for Knows {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Error> {
        let metadata: Vec<_> = turn.metadata().iter().flat_map(|it| it.fields.keys()).cloned().collect();
        let (who, modes) = (turn.principal().unwrap_or("nobody"), turn.accepted_output_modes().join("+"));
        let referenced: Vec<_> = turn.referenced().iter().map(said).collect();
        let (text, extensions) = (turn.text(), turn.extensions().join("+"));
        let line = format!("[{text}: {who} {extensions} {modes} {} {}]", metadata.join("+"), referenced.join("+"));
        out.artifact("log").id("log").appending().text(line).await?;
        if text == "ask" {
            return Ok(End::InputRequired(Message::agent("what?")));
        }
        if !self.ends {
            std::future::pending::<()>().await;
        }
        Ok(if text == "last" { End::Completed(None) } else { End::InputRequired(Message::agent("more?")) })
    }

    fn resumable(&self) -> bool {
        true
    }
}

/// A turn that is run again has what came with its request, and so has each that waited for the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_is_run_again_knows_who_asked() {
    const EXTENSION: &str = "urn:e";
    let store = Opened::sqlite(Options::default());
    let serve = |ends, store: &Opened| {
        let extension = AgentExtension { uri: EXTENSION.into(), ..AgentExtension::default() };
        Server::new(Knows { ends }).extension(extension).store(Arc::clone(&store.store)).into_service()
    };
    let agent = serve(false, &store);
    let referenced = send(&*agent, text("", "ask")).await.id;
    let ask = async |id: &str, text: &str, who: Option<&str>| {
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
        let call = Call { principal: who.map(Into::into), extensions: vec![EXTENSION.into()], ..Call::default() };
        match agent.send_message(call.request(sent)).await.unwrap().into_inner().payload.unwrap() {
            send_message_response::Payload::Task(it) => it.id,
            send_message_response::Payload::Message(it) => panic!("{it:?}"),
        }
    };
    let line = |text: &str, who: &str| format!("[{text}: {who} urn:e text/{text} {text} what?]");
    let new = ask("", "first", Some("ada")).await;
    let asked = send(&*agent, text("", "ask")).await.id;
    ask(&asked, "more", Some("bob")).await;
    ask(&asked, "last", None).await;
    let begun = |lines: String| move |it: &Task| output(it) == lines;
    when(&*agent, &new, begun(line("first", "ada"))).await;
    when(&*agent, &asked, begun(format!("[ask: nobody    ]{}", line("more", "bob")))).await;
    let store = store.killed();
    let agent = serve(true, &store);
    when(&*agent, &new, begun(line("first", "ada").repeat(2))).await;
    let lines = format!("[ask: nobody    ]{}{}", line("more", "bob").repeat(2), line("last", "nobody"));
    when(&*agent, &asked, begun(lines)).await;
    when(&*agent, &asked, |it| it.state() == TaskState::Completed).await;
    when(&*agent, &new, |it| it.state() == TaskState::InputRequired).await;
    // What is answered needs it no more.
    for id in [&new, &asked] {
        let stored = store.load(&key(id)).await.unwrap().unwrap();
        assert_eq!(stored.asked.as_deref().unwrap_or_default(), b"");
    }
}

/// A server that is told to stop leaves what it has no time for to the next start, and cancels nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_drain_leaves_goes_on_at_the_next_start() {
    let store = Opened::sqlite(Options::default());
    let draining = Service::new(AGAIN, Arc::clone(&store.store), Limits::default());
    let task = at_work(&draining, "", "go", "[1 go saved 0]").await;
    let mut events = stream(&draining, text(&task.id, "the last")).await;
    let first = next(&mut events).await;
    draining.drain(Duration::from_millis(50)).await;
    // Its stream is cut, and not ended.
    assert!(events.next().await.unwrap().is_err());
    assert_eq!(get(&draining, &task.id).await.unwrap().state(), task.state());
    let store = store.killed();
    assert_eq!(store.load(&key(&task.id)).await.unwrap().unwrap().row.state, task.state());
    let agent = service(ENDS, &store);
    let call = Call { cursor: first.cursor().cloned(), ..Call::default() };
    let subscription = SubscribeToTaskRequest { id: task.id.clone(), ..SubscribeToTaskRequest::default() };
    let rest = agent.subscribe_to_task(call.request(subscription)).await.unwrap().into_inner();
    let rest = timeout(PATIENCE, remaining(rest)).await.unwrap();
    assert!(rest.iter().filter_map(state).all(|it| it != TaskState::Canceled));
    assert_eq!(rest.last().and_then(state), Some(TaskState::Completed));
    assert_eq!(output(&get(&*agent, &task.id).await.unwrap()), "[1 go saved 0][2 go saved 1][1 the last saved 2]");
}

/// Graceful restarts do not count as crashes: a turn that they cut is resumed each time, and three crashes are still
/// counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn graceful_stops_do_not_count_as_attempts() {
    let mut store = Opened::sqlite(Options::default());
    let mut agent = Service::new(AGAIN, Arc::clone(&store.store), Limits::default());
    let mut log = "[1 go saved 0]".to_owned();
    let id = at_work(&agent, "", "go", &log).await.id;
    for drained in 1..=5 {
        agent.drain(Duration::from_millis(10)).await;
        store = store.killed();
        let row = store.load(&key(&id)).await.unwrap().unwrap().row;
        assert_eq!((row.attempt, row.drained, row.open, row.state), (drained, drained, true, TaskState::Submitted));
        agent = Service::new(AGAIN, Arc::clone(&store.store), Limits::default());
        // The agent still learns that this is not the first time.
        log = format!("{log}[{} go saved {drained}]", drained + 1);
        when(&agent, &id, |task| output(task) == log).await;
    }
    for crashes in 1..=2 {
        store = store.killed();
        agent = Service::new(AGAIN, Arc::clone(&store.store), Limits::default());
        log = format!("{log}[{} go saved {}]", crashes + 6, crashes + 5);
        when(&agent, &id, |task| output(task) == log).await;
    }
    store = store.killed();
    agent = Service::new(AGAIN, Arc::clone(&store.store), Limits::default());
    let failed = when(&agent, &id, |task| task.state() == TaskState::Failed).await;
    assert_eq!(said(&failed), "The server stopped 3 times while the agent was at work on this.");
}

/// The next message has a count of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn graceful_stops_are_counted_for_each_turn() {
    let store = Opened::sqlite(Options::default());
    let draining = Service::new(AGAIN, Arc::clone(&store.store), Limits::default());
    let id = at_work(&draining, "", "go", "[1 go saved 0]").await.id;
    draining.drain(Duration::ZERO).await;
    let store = store.killed();
    let agent = service(ENDS, &store);
    when(&*agent, &id, |task| task.state() == TaskState::InputRequired).await;
    at_work(&*agent, &id, "more", "[1 go saved 0][2 go saved 1][1 more saved 2]").await;
    let row = store.load(&key(&id)).await.unwrap().unwrap().row;
    assert_eq!((row.attempt, row.drained), (1, 0));
}

/// Calls for a task that could not be recovered fail with an id of the log. Nobody else notices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_tasks_do_not_block_recovery() {
    let store = Opened::sqlite(Options::default());
    let agent = service(AGAIN, &store);
    let mut ids = Vec::new();
    for _ in 0..6 {
        ids.push(at_work(&*agent, "", "go", "[1 go saved 0]").await.id);
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
    let agent = service(ENDS, &store);
    for id in &ids[4..] {
        let done = send(&*agent, text(id, "the last")).await;
        assert_eq!(done.state(), TaskState::Completed);
        assert_eq!(output(&done), "[1 go saved 0][2 go saved 1][1 the last saved 2]");
    }
    for id in &ids[..4] {
        let cancel = CancelTaskRequest { id: id.clone(), ..CancelTaskRequest::default() };
        let mut errors = vec![
            get(&*agent, id).await.unwrap_err(),
            answer(&*agent, text(id, "more")).await.unwrap_err(),
            agent.cancel_task(Call::default().request(cancel)).await.unwrap_err().into(),
            subscribe(&*agent, id).await.err().unwrap(),
        ];
        let first = errors.remove(0);
        is(&first, ErrorKind::Internal);
        assert!(first.to_string().contains(id), "{first}");
        for error in errors {
            is(&error, ErrorKind::Internal);
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

struct Panics;

impl Agent for Panics {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Error> {
        AGAIN.run(turn, out).await
    }

    fn resumable(&self) -> bool {
        panic!("of no use")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_whose_resumable_panics_is_not_resumable() {
    let store = Opened::sqlite(Options::default());
    let id = at_work(&*service(AGAIN, &store), "", "go", "[1 go saved 0]").await.id;
    let store = store.killed();
    let agent = Server::new(Panics).store(Arc::clone(&store.store)).into_service();
    let failed = when(&*agent, &id, |task| task.state() == TaskState::Failed).await;
    assert_eq!(said(&failed), "The server stopped while the agent was at work on this.");
    let refused = answer(&*agent, text(&id, "more")).await.unwrap_err();
    is(&refused, ErrorKind::TaskEnded);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readiness_waits_for_recovery() {
    let gate = Gate::opened();
    gate.fail_claims(true);
    let url = serve(Server::new(ENDS).store(gate.store())).await;
    let readyz = async || reqwest::get(format!("{url}/readyz")).await.unwrap().status().as_u16();
    let channel = tonic::transport::Channel::from_shared(url.clone()).unwrap().connect_lazy();
    let mut health = HealthClient::new(channel);
    let mut watch = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(watch.next().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    let checked = health.check(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!((checked.status(), readyz().await), (ServingStatus::NotServing, 503));
    gate.fail_claims(false);
    let serving = timeout(PATIENCE, watch.next()).await.unwrap().unwrap().unwrap();
    assert_eq!((serving.status(), readyz().await), (ServingStatus::Serving, 200));
}

/// What was taken once is taken once: a crash between the two makes no second of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_send_that_comes_again_after_a_crash_meets_the_first_one() {
    let keyed = |key: &str, sent: &SendMessageRequest| {
        Call { idempotency_key: Some(key.into()), ..Call::default() }.request(sent.clone())
    };
    let task = |answer: Option<send_message_response::Payload>| match answer.unwrap() {
        send_message_response::Payload::Task(it) => it,
        send_message_response::Payload::Message(it) => panic!("{it:?}"),
    };
    for (before, after, state) in [(STUCK, STUCK, TaskState::Failed), (AGAIN, ENDS, TaskState::InputRequired)] {
        let store = Opened::sqlite(Options::default());
        let agent = service(before, &store);
        let first = at_once("", "go");
        let made = task(agent.send_message(keyed("first", &first)).await.unwrap().into_inner().payload);
        when(&*agent, &made.id, |it| output(it) == "[1 go saved 0]").await;
        // A follow-up waits for a turn that will not come any more.
        let second = at_once(&made.id, "and this");
        agent.send_message(keyed("second", &second)).await.unwrap();
        let store = store.killed();
        let agent = service(after, &store);
        let waits = |sent: &SendMessageRequest| SendMessageRequest { configuration: None, ..sent.clone() };
        for (key, sent) in [("first", waits(&first)), ("second", waits(&second))] {
            let again = agent.send_message(keyed(key, &sent)).await.unwrap().into_inner().payload;
            let again = task(again);
            assert_eq!((&again.id, again.state()), (&made.id, state));
        }
        let events = agent.send_streaming_message(keyed("second", &second)).await.unwrap().into_inner();
        let events = timeout(PATIENCE, remaining(events)).await.unwrap();
        assert_eq!(task_of(&events[0]).id, made.id);
        let done = get(&*agent, &made.id).await.unwrap();
        let log = if state == TaskState::Failed {
            "[1 go saved 0]"
        } else {
            "[1 go saved 0][2 go saved 1][1 and this saved 2]"
        };
        assert_eq!((output(&done).as_str(), done.state()), (log, state));
        let said = done.history.iter().filter(|it| ["go", "and this"].contains(&it.text().as_str())).count();
        assert_eq!(said, 2);
    }
}
