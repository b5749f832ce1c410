//! Clients that come back by themselves, over each binding of both versions, before a proxy that cuts what they have: no
//! gap, nothing twice, and nothing done twice.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use a2a_service::{
    agent::{Agent, End, Error as Failure, Turn, Updates},
    auth::{Bearer, Token},
    call::Call,
    client::{self, Client, Retry},
    error::{Error, ErrorKind},
    event::Event,
    extension::resume,
    pb::v1::{
        CancelTaskRequest, Message, SendMessageConfiguration, SubscribeToTaskRequest, Task, TaskState,
        a2a_service_server::A2aService,
    },
    server::Server,
    service::Limits,
    store::sqlite::Options,
};
use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use tonic::Status;

use crate::{
    classic_client, classic_rpc_client,
    proxy::{
        Cut::{Breaks, Busy, Ends, Unanswered, Unheard, Within},
        Proxy,
    },
    scenarios::{configured, get, next, output, remaining, request, send, state, stream, subscribe, task_of, text},
    store::place::Opened,
    ways::{serve, server},
};

const PATIENCE: Duration = Duration::from_secs(30);

/// A binding of a version.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    Rest,
    JsonRpc,
    Grpc,
    ClassicRest,
    ClassicRpc,
    ClassicGrpc,
}

impl Way {
    fn plain(self, url: &str) -> Arc<dyn A2aService> {
        match self {
            Self::Rest => client::rest(url).unwrap(),
            Self::JsonRpc => client::json_rpc(&format!("{url}/rpc")).unwrap(),
            Self::Grpc => client::grpc(url).unwrap(),
            Self::ClassicRest => classic_client::rest(url),
            Self::ClassicRpc => classic_rpc_client::json_rpc(url),
            Self::ClassicGrpc => classic_client::grpc(url),
        }
    }

    /// One that comes back, soon.
    fn client(self, url: &str) -> Arc<dyn A2aService> {
        self.retrying(url, soon())
    }

    fn retrying(self, url: &str, retry: Retry) -> Arc<dyn A2aService> {
        let client = Client::new().retry(retry);
        match self {
            Self::Rest => client.rest(url).unwrap(),
            Self::JsonRpc => client.json_rpc(&format!("{url}/rpc")).unwrap(),
            Self::Grpc => client.grpc(url).unwrap(),
            Self::ClassicRest | Self::ClassicRpc | Self::ClassicGrpc => client.around(self.plain(url)),
        }
    }
}

fn soon() -> Retry {
    let mut retry = Retry::default();
    (retry.first, retry.longest) = (Duration::from_millis(1), Duration::from_millis(100));
    retry
}

/// A test for each of them.
macro_rules! each_binding {
    ($($test:ident)*) => { $(
        mod $test {
            use super::*;

            each_binding! { @ $test;
                rest Rest, json_rpc JsonRpc, grpc Grpc,
                classic_rest ClassicRest, classic_rpc ClassicRpc, classic_grpc ClassicGrpc
            }
        }
    )* };
    (@ $test:ident; $($name:ident $way:ident),*) => { $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            timeout(PATIENCE, super::$test(Way::$way)).await.unwrap();
        }
    )* };
}

each_binding! {
    a_stream_goes_on
    a_subscription_goes_on
    a_stream_that_the_server_ends_goes_on
    a_stream_goes_on_after_a_restart
    a_send_is_taken_once
    a_server_without_keys_is_told_once
    a_server_without_places_has_the_task
    a_server_that_keeps_its_places_to_itself
    a_task_that_has_ended_meanwhile_stands_for_the_rest
    a_stream_that_can_not_go_on_says_so
    a_turn_that_is_over_is_no_cut
    an_agent_that_goes_on_while_it_asks_is_listened_to
    a_subscription_lasts_until_its_task_ends
}

fn is_gap(event: &Event) -> bool {
    event.payload().is_some_and(resume::is_gap)
}

fn marked(event: &Event) -> bool {
    event.payload().and_then(resume::cursor).is_some()
}

/// What the log has behind an event, of a task that has ended.
async fn behind(agent: &dyn A2aService, event: &Event, id: &str) -> Vec<Event> {
    let call = Call { cursor: event.cursor().cloned(), ..Call::default() };
    let subscription = SubscribeToTaskRequest { id: id.to_owned(), ..SubscribeToTaskRequest::default() };
    remaining(agent.subscribe_to_task(call.request(subscription)).await.unwrap().into_inner()).await
}

/// Nothing is missing, nothing came twice, and nothing has marks that nobody asked for.
async fn is_whole(agent: &dyn A2aService, seen: &[Event]) {
    let task = task_of(&seen[0]);
    assert_eq!(behind(agent, &seen[0], &task.id).await, seen[1..]);
    assert_eq!(seen.last().and_then(state), Some(TaskState::Completed));
    assert!(!seen.iter().any(|it| is_gap(it) || marked(it)));
    is_folded(agent, seen).await;
}

/// The last task that was given and what came behind it are the task.
async fn is_folded(agent: &dyn A2aService, seen: &[Event]) {
    let last = seen.iter().rposition(|it| it.whole().is_some()).unwrap();
    let mut task = task_of(&seen[last]).clone();
    seen[last + 1..].iter().filter_map(Event::payload).for_each(|it| a2a_service::task::apply(&mut task, it));
    let now = get(agent, &task.id).await.unwrap();
    assert_eq!((output(&task), task.state()), (output(&now), now.state()));
}

/// A proxy cuts a stream in each way there is, and each time it goes on.
async fn a_stream_goes_on(way: Way) {
    let url = serve(server().resume(true)).await;
    let proxy = Proxy::before(&url).await;
    proxy.cut([Ends(2), Breaks(1), Within(1), Unheard, Ends(0), Unanswered, Breaks(2), Busy, Within(0), Ends(1)]);
    let events = remaining(stream(&*way.client(&proxy.url), text("", "/stream 20 1")).await).await;
    assert_eq!((proxy.left(), proxy.calls()), (0, 11));
    is_whole(&*way.plain(&url), &events).await;
}

async fn a_subscription_goes_on(way: Way) {
    let url = serve(server().resume(true)).await;
    let (proxy, agent) = (Proxy::before(&url).await, way.plain(&url));
    let at_once = SendMessageConfiguration { return_immediately: true, ..SendMessageConfiguration::default() };
    let task = send(&*agent, configured(text("", "/stream 150 5"), at_once)).await;
    proxy.cut([Ends(0), Within(0), Ends(2), Unheard, Unanswered, Busy, Breaks(1), Within(2)]);
    let events = remaining(subscribe(&*way.client(&proxy.url), &task.id).await.unwrap()).await;
    assert_eq!(proxy.left(), 0);
    is_whole(&*agent, &events).await;
    // And behind the place that its caller names.
    proxy.cut([Ends(1), Breaks(3)]);
    assert_eq!(behind(&*way.client(&proxy.url), &events[0], &task.id).await, events[1..]);
}

/// Streams may be no older than this: over gRPC they end with an error, and else without.
async fn a_stream_that_the_server_ends_goes_on(way: Way) {
    let mut limits = Limits::default();
    limits.stream_age = Duration::from_millis(20);
    let url = serve(server().resume(true).limits(limits)).await;
    let proxy = Proxy::before(&url).await;
    let events = remaining(stream(&*way.client(&proxy.url), text("", "/stream 20 10")).await).await;
    assert!(proxy.calls() > 2);
    assert_eq!(events.last().and_then(state), Some(TaskState::Completed));
    is_folded(&*way.plain(&url), &events).await;
    assert!(!events.iter().any(is_gap));
}

/// Says which attempt it is, and never returns from the first.
#[derive(Clone)]
struct Stuck;

impl Agent for Stuck {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Failure> {
        out.artifact("log").id("log").appending().text(format!("[{}]", turn.attempt())).await?;
        if turn.attempt() == 1 {
            std::future::pending::<()>().await;
        }
        Ok(End::Completed(None))
    }

    fn resumable(&self) -> bool {
        true
    }
}

async fn a_stream_goes_on_after_a_restart(way: Way) {
    let store = Opened::sqlite(Options::default());
    let before = serve(Server::new(Stuck).resume(true).store(Arc::clone(&store.store))).await;
    let proxy = Proxy::before(&before).await;
    let mut events = stream(&*way.client(&proxy.url), text("", "go")).await;
    let mut seen = vec![next(&mut events).await];
    while output(&get(&*way.plain(&before), &task_of(&seen[0]).id).await.unwrap()) != "[1]" {
        seen.push(next(&mut events).await);
    }
    let store = store.killed();
    let after = serve(Server::new(Stuck).resume(true).store(Arc::clone(&store.store))).await;
    proxy.turn_to(&after);
    seen.extend(remaining(events).await);
    is_whole(&*way.plain(&after), &seen).await;
    assert_eq!(output(&get(&*way.plain(&after), &task_of(&seen[0]).id).await.unwrap()), "[1][2]");
}

/// Counts what it is told.
#[derive(Clone, Default)]
struct Counts(Arc<AtomicUsize>);

impl Counts {
    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Agent for Counts {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Failure> {
        self.0.fetch_add(1, Ordering::SeqCst);
        out.artifact("answer").text(turn.text()).await?;
        Ok(match turn.text() {
            "ask" => End::InputRequired(Message::agent("what?")),
            _ => End::Completed(None),
        })
    }
}

async fn a_send_is_taken_once(way: Way) {
    let counts = Counts::default();
    let url = serve(Server::new(counts.clone()).resume(true)).await;
    let proxy = Proxy::before(&url).await;
    let agent = way.client(&proxy.url);
    proxy.cut([Unheard, Unanswered, Busy, Unanswered]);
    let task = send(&*agent, text("", "hello")).await;
    assert_eq!((output(&task).as_str(), task.state(), counts.count()), ("hello", TaskState::Completed, 1));
    proxy.cut([Busy, Unanswered, Unheard, Ends(0), Unanswered]);
    let events = remaining(stream(&*agent, text("", "there")).await).await;
    let task = get(&*agent, &task_of(&events[0]).id).await.unwrap();
    assert_eq!((output(&task).as_str(), counts.count()), ("there", 2));
    assert_eq!(events.last().and_then(state), Some(TaskState::Completed));
    // What two calls say alike is said twice.
    send(&*agent, text("", "hello")).await;
    assert_eq!((counts.count(), proxy.left()), (3, 0));
    // Who gives a key of their own means that one.
    let (mut tasks, message) = (Vec::new(), text("", "mine"));
    for _ in 0..2 {
        proxy.cut([Unanswered]);
        let mine = Call { idempotency_key: Some("mine".into()), ..Call::default() };
        tasks.push(agent.send_message(mine.request(message.clone())).await.unwrap().into_inner());
    }
    assert_eq!((&tasks[0], counts.count()), (&tasks[1], 4));
}

async fn a_server_without_keys_is_told_once(way: Way) {
    let counts = Counts::default();
    let url = serve(Server::new(counts.clone())).await;
    let proxy = Proxy::before_plain(&url).await;
    let agent = way.client(&proxy.url);
    for (n, cut) in [Unanswered, Unheard, Busy].into_iter().enumerate() {
        proxy.cut([cut, cut]);
        let sent = agent.send_message(request(text("", "hello"))).await;
        assert_eq!(Error::from(sent.unwrap_err()).kind(), ErrorKind::Unavailable, "{cut:?}");
        let status = match agent.send_streaming_message(request(text("", "hello"))).await {
            Ok(events) => events.into_inner().next().await.unwrap().unwrap_err(),
            Err(status) => status,
        };
        assert_eq!(Error::from(status).kind(), ErrorKind::Unavailable, "{cut:?}");
        assert_eq!((proxy.calls(), proxy.left()), (2 * n + 2, 0));
    }
    assert_eq!(counts.count(), 2, "of those that it heard");
    // Nobody knows what became of this one.
    proxy.cut([Ends(0)]);
    let mut events = stream(&*agent, text("", "hello")).await;
    assert_eq!(Error::from(events.next().await.unwrap().unwrap_err()).kind(), ErrorKind::Unavailable);
    assert!(events.next().await.is_none());
    assert_eq!((counts.count(), proxy.calls()), (3, 7));
}

async fn a_server_without_places_has_the_task(way: Way) {
    let url = serve(server()).await;
    for cut in [Ends(2), Breaks(2), Within(2)] {
        let proxy = Proxy::before_plain(&url).await;
        proxy.cut([cut, Unheard, Ends(1)]);
        let agent = way.client(&proxy.url);
        let events: Result<Vec<_>, _> = match agent.send_streaming_message(request(text("", "/stream 150 5"))).await {
            Ok(events) => events.into_inner().collect().await,
            Err(status) => Err(status),
        };
        let events = match events {
            Ok(it) => it,
            // What breaks may take with it what stood before that, and then there is no task to come back to.
            Err(status) => {
                assert!(matches!((cut, Error::from(status).kind()), (Breaks(_), ErrorKind::Unavailable)), "{cut:?}");
                continue;
            }
        };
        let gaps: Vec<_> = events.iter().enumerate().filter(|it| is_gap(it.1)).map(|it| it.0).collect();
        assert_eq!(gaps.last().copied(), events.iter().rposition(|it| it.whole().is_some()), "{cut:?}");
        assert_eq!((gaps.len(), proxy.left()), (2, 0), "{cut:?}: {gaps:?}");
        assert!(gaps[0] <= 2 && !events.iter().any(marked));
        assert_eq!(events.last().and_then(state), Some(TaskState::Completed));
        is_folded(&*way.plain(&url), &events).await;
    }
}

/// Over gRPC nobody is told where an event stands who may not ask; the send with its key is told what became of it anyway.
async fn a_server_that_keeps_its_places_to_itself(way: Way) {
    let url = serve(server()).await;
    let proxy = Proxy::before(&url).await;
    proxy.cut([Ends(2), Unheard, Unanswered]);
    let events = remaining(stream(&*way.client(&proxy.url), text("", "/stream 20 2")).await).await;
    let gaps: Vec<_> = events.iter().filter(|it| is_gap(it)).collect();
    let untold = matches!(way, Way::Grpc | Way::ClassicGrpc);
    assert_eq!((gaps.len(), proxy.left()), (usize::from(untold), 0));
    assert!(gaps.iter().all(|it| it.whole().is_some()));
    is_folded(&*way.plain(&url), &events).await;
    assert!(matches!(task_of(&events[0]).state(), TaskState::Submitted | TaskState::Working));
}

async fn a_task_that_has_ended_meanwhile_stands_for_the_rest(way: Way) {
    let url = serve(server()).await;
    let proxy = Proxy::before_plain(&url).await;
    proxy.cut([Ends(1)]);
    // All of it comes at once.
    let events = remaining(stream(&*way.client(&proxy.url), text("", "!burst 3")).await).await;
    let last = &events[1..];
    assert!(last.first().is_some_and(is_gap), "{events:?}");
    assert_eq!(last.first().and_then(state), Some(TaskState::Completed));
    is_folded(&*way.plain(&url), &events).await;
}

async fn a_stream_that_can_not_go_on_says_so(way: Way) {
    let url = serve(server().resume(true)).await;
    let proxy = Proxy::before(&url).await;
    let mut retry = soon();
    retry.attempts = 2;
    proxy.cut([Ends(2), Unheard, Unanswered]);
    let events: Vec<_> =
        stream(&*way.retrying(&proxy.url, retry), text("", "/stream 100 5")).await.collect::<Vec<_>>().await;
    let (last, before): (&Result<Event, Status>, _) = events.split_last().unwrap();
    assert!((1..=2).contains(&before.len()) && before.iter().all(Result::is_ok), "{events:?}");
    assert_eq!(Error::from(last.clone().unwrap_err()).kind(), ErrorKind::Unavailable);
    assert_eq!(proxy.calls(), 3);
}

/// An agent that asks has ended its turn; and who answers it gets what follows, although their stream begins with a task that
/// still looks as if it asked.
async fn a_turn_that_is_over_is_no_cut(way: Way) {
    let url = serve(server().resume(true)).await;
    let proxy = Proxy::before(&url).await;
    let agent = way.client(&proxy.url);
    let events = remaining(stream(&*agent, text("", "/ask what?")).await).await;
    assert_eq!(events.last().and_then(state), Some(TaskState::InputRequired));
    assert_eq!(proxy.calls(), 1);
    let task: &Task = task_of(&events[0]);
    proxy.cut([Ends(1), Breaks(1)]);
    let answered = remaining(stream(&*agent, text(&task.id, "Rome")).await).await;
    assert_eq!(answered.last().and_then(state), Some(TaskState::Completed));
    assert_eq!(behind(&*way.plain(&url), &answered[0], &task.id).await, answered[1..]);
}

/// It asks its caller to authorise something, and its turn is not over with that (7.6.1).
async fn an_agent_that_goes_on_while_it_asks_is_listened_to(way: Way) {
    let url = serve(server().resume(true)).await;
    let (proxy, direct) = (Proxy::before(&url).await, way.plain(&url));
    let mut events = stream(&*way.client(&proxy.url), text("", "!authorise")).await;
    let mut seen = vec![next(&mut events).await];
    while seen.last().and_then(state) != Some(TaskState::AuthRequired) {
        seen.push(next(&mut events).await);
    }
    proxy.turn_to(&url);
    let cancel = CancelTaskRequest { id: task_of(&seen[0]).id.clone(), ..CancelTaskRequest::default() };
    direct.cancel_task(request(cancel)).await.unwrap();
    seen.extend(remaining(events).await);
    assert_eq!(seen.last().and_then(state), Some(TaskState::Canceled));
    assert_eq!(behind(&*direct, &seen[0], &task_of(&seen[0]).id).await, seen[1..]);
}

/// A task that waits has not ended, however its stream ends: as that of a server that stops does. At 0.3 it is over with the
/// turn.
async fn a_subscription_lasts_until_its_task_ends(way: Way) {
    let url = serve(server().resume(true)).await;
    let (proxy, direct) = (Proxy::before(&url).await, way.plain(&url));
    let asked = send(&*direct, text("", "/ask what?")).await;
    proxy.cut([Ends(1), Unheard, Ends(0)]);
    let mut events = subscribe(&*way.client(&proxy.url), &asked.id).await.unwrap();
    let mut seen = vec![next(&mut events).await];
    assert_eq!(task_of(&seen[0]), &asked);
    if matches!(way, Way::ClassicRest | Way::ClassicRpc) {
        return assert!(events.next().await.is_none());
    }
    let rest = tokio::spawn(remaining(events));
    send(&*direct, text(&asked.id, "Rome")).await;
    seen.extend(rest.await.unwrap());
    is_whole(&*direct, &seen).await;
    assert_eq!(proxy.left(), 0);
}

/// A stream may end as if all were well while the agent goes on; and who asks for the rest of one whose agent has returned is
/// given nothing more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_authorised_meanwhile_is_listened_to() {
    timeout(PATIENCE, authorised_meanwhile()).await.unwrap();
}

async fn authorised_meanwhile() {
    for way in [Way::Rest, Way::JsonRpc, Way::Grpc] {
        let url = serve(server().resume(true)).await;
        let (proxy, direct) = (Proxy::before(&url).await, way.plain(&url));
        proxy.cut([Ends(2)]);
        let mut events = stream(&*way.client(&proxy.url), text("", "!authorise")).await;
        let mut seen = vec![next(&mut events).await, next(&mut events).await];
        assert_eq!(seen.last().and_then(state), Some(TaskState::AuthRequired));
        let rest = tokio::spawn(remaining(events));
        while proxy.calls() < 2 {
            tokio::task::yield_now().await;
        }
        let cancel = CancelTaskRequest { id: task_of(&seen[0]).id.clone(), ..CancelTaskRequest::default() };
        direct.cancel_task(request(cancel)).await.unwrap();
        seen.extend(rest.await.unwrap());
        assert_eq!(seen.last().and_then(state), Some(TaskState::Canceled));
        let events = remaining(stream(&*way.client(&proxy.url), text("", "/auth")).await).await;
        assert_eq!(events.last().and_then(state), Some(TaskState::AuthRequired), "its turn is over");
    }
}

/// Without a key, and before a server is there at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_never_left_is_sent_again() {
    for way in [Way::Rest, Way::JsonRpc, Way::Grpc] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        drop(listener);
        let url = format!("http://{addr}");
        let error = Error::from(way.plain(&url).send_message(request(text("", "hello"))).await.unwrap_err());
        assert!(error.is_unsent(), "{error:?}");
        let mut retry = soon();
        (retry.keys, retry.attempts) = (false, 100);
        let (agent, counts) = (way.retrying(&url, retry), Counts::default());
        let appears = async {
            tokio::task::yield_now().await;
            let bound = Server::new(counts.clone()).bind(addr).await.unwrap();
            tokio::spawn(bound.run_until(std::future::pending()));
        };
        let (task, ()) = tokio::join!(send(&*agent, text("", "hello")), appears);
        assert_eq!((task.state(), counts.count()), (TaskState::Completed, 1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_shown_to_the_agent_alone() {
    let url = serve(server().authenticator(Bearer::new(Token::new("sesame").unwrap()))).await;
    let client = Client::new().bearer("sesame").unwrap();
    for agent in [client.rest(&url), client.json_rpc(&format!("{url}/rpc")), client.grpc(&url)] {
        let task = send(&*agent.unwrap(), text("", "hello")).await;
        assert_eq!(task.state(), TaskState::Completed);
    }
    for agent in [client::rest(&url), client::json_rpc(&format!("{url}/rpc")), client::grpc(&url)] {
        let status = agent.unwrap().send_message(request(text("", "hello"))).await.unwrap_err();
        assert_eq!(Error::from(status).kind(), ErrorKind::Unauthenticated);
    }
    assert!(!format!("{client:?}").contains("sesame"));
    for wrong in ["", " ", "two\nlines"] {
        let error = Client::new().bearer(wrong).unwrap_err();
        assert!(!error.to_string().contains("lines"), "{error}");
    }
}
