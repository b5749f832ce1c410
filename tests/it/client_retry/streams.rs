//! Streams that go on where they were cut, as far as the server has what is missing.

use std::{sync::Arc, time::Duration};

use a2a_service::{
    agent::{Agent, End, Error as Failure, Turn, Updates},
    error::{Error, ErrorKind},
    event::Event,
    pb::v1::{CancelTaskRequest, SendMessageConfiguration, Task, TaskState},
    server::Server,
    service::Limits,
    store::sqlite::Options,
};
use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use tonic::Status;

use super::{
    ClientKind, TIMEOUT, assert_complete, assert_folds_to_task, events_after, has_cursor_metadata, is_gap,
    short_backoff,
};
use crate::{
    bindings::{serve, server},
    proxy::{
        Cut::{Breaks, Busy, Ends, ReplyLost, RequestLost, Within},
        Proxy,
    },
    scenarios::{configured, get, next, output, remaining, request, send, state, stream, subscribe, task_of, text},
    store::place::Opened,
};

each_client_kind! {
    a_stream_goes_on
    a_subscription_goes_on
    a_stream_that_the_server_ends_goes_on
    a_stream_goes_on_after_a_restart
    a_server_without_places_has_the_task
    a_server_that_keeps_its_places_to_itself
    a_task_that_has_ended_meanwhile_stands_for_the_rest
    a_stream_that_can_not_go_on_says_so
    a_turn_that_is_over_is_no_cut
    an_agent_that_goes_on_while_it_asks_is_listened_to
    a_subscription_lasts_until_its_task_ends
}

/// A proxy cuts a stream in each kind there is, and each time it goes on.
async fn a_stream_goes_on(kind: ClientKind) {
    let url = serve(server().resume(true)).await;
    let proxy = Proxy::before(&url).await;
    proxy.cut([Ends(2), Breaks(1), Within(1), RequestLost, Ends(0), ReplyLost, Breaks(2), Busy, Within(0), Ends(1)]);
    let events = remaining(stream(&*kind.client(&proxy.url), text("", "/stream 20 1")).await).await;
    assert_eq!((proxy.left(), proxy.calls()), (0, 11));
    assert_complete(&*kind.plain(&url), &events).await;
}

async fn a_subscription_goes_on(kind: ClientKind) {
    let url = serve(server().resume(true)).await;
    let (proxy, agent) = (Proxy::before(&url).await, kind.plain(&url));
    let at_once = SendMessageConfiguration { return_immediately: true, ..SendMessageConfiguration::default() };
    let task = send(&*agent, configured(text("", "/stream 150 5"), at_once)).await;
    proxy.cut([Ends(0), Within(0), Ends(2), RequestLost, ReplyLost, Busy, Breaks(1), Within(2)]);
    let events = remaining(subscribe(&*kind.client(&proxy.url), &task.id).await.unwrap()).await;
    assert_eq!(proxy.left(), 0);
    assert_complete(&*agent, &events).await;
    // And behind the place that its caller names.
    proxy.cut([Ends(1), Breaks(3)]);
    assert_eq!(events_after(&*kind.client(&proxy.url), &events[0], &task.id).await, events[1..]);
}

/// Streams may be no older than this: over gRPC they end with an error, and else without.
async fn a_stream_that_the_server_ends_goes_on(kind: ClientKind) {
    let mut limits = Limits::default();
    limits.stream_age = Duration::from_millis(20);
    let url = serve(server().resume(true).limits(limits)).await;
    let proxy = Proxy::before(&url).await;
    let events = remaining(stream(&*kind.client(&proxy.url), text("", "/stream 20 10")).await).await;
    assert!(proxy.calls() > 2);
    assert_eq!(events.last().and_then(state), Some(TaskState::Completed));
    assert_folds_to_task(&*kind.plain(&url), &events).await;
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

async fn a_stream_goes_on_after_a_restart(kind: ClientKind) {
    let store = Opened::sqlite(Options::default());
    let before = serve(Server::new(Stuck).resume(true).store(Arc::clone(&store.store))).await;
    let proxy = Proxy::before(&before).await;
    let mut events = stream(&*kind.client(&proxy.url), text("", "go")).await;
    let mut seen = vec![next(&mut events).await];
    while output(&get(&*kind.plain(&before), &task_of(&seen[0]).id).await.unwrap()) != "[1]" {
        seen.push(next(&mut events).await);
    }
    let store = store.killed();
    let after = serve(Server::new(Stuck).resume(true).store(Arc::clone(&store.store))).await;
    proxy.switch_to(&after);
    seen.extend(remaining(events).await);
    assert_complete(&*kind.plain(&after), &seen).await;
    assert_eq!(output(&get(&*kind.plain(&after), &task_of(&seen[0]).id).await.unwrap()), "[1][2]");
}

async fn a_server_without_places_has_the_task(kind: ClientKind) {
    let url = serve(server()).await;
    for cut in [Ends(2), Breaks(2), Within(2)] {
        let proxy = Proxy::before_plain(&url).await;
        proxy.cut([cut, RequestLost, Ends(1)]);
        let agent = kind.client(&proxy.url);
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
        assert_eq!(gaps.last().copied(), events.iter().rposition(|it| it.as_task().is_some()), "{cut:?}");
        assert_eq!((gaps.len(), proxy.left()), (2, 0), "{cut:?}: {gaps:?}");
        assert!(gaps[0] <= 2 && !events.iter().any(has_cursor_metadata));
        assert_eq!(events.last().and_then(state), Some(TaskState::Completed));
        assert_folds_to_task(&*kind.plain(&url), &events).await;
    }
}

/// Over gRPC nobody is told where an event stands who may not ask; the send with its key is told what became of it anyway.
async fn a_server_that_keeps_its_places_to_itself(kind: ClientKind) {
    let url = serve(server()).await;
    let proxy = Proxy::before(&url).await;
    proxy.cut([Ends(2), RequestLost, ReplyLost]);
    let events = remaining(stream(&*kind.client(&proxy.url), text("", "/stream 20 2")).await).await;
    let gaps: Vec<_> = events.iter().filter(|it| is_gap(it)).collect();
    let untold = matches!(kind, ClientKind::Grpc | ClientKind::V03Grpc);
    assert_eq!((gaps.len(), proxy.left()), (usize::from(untold), 0));
    assert!(gaps.iter().all(|it| it.as_task().is_some()));
    assert_folds_to_task(&*kind.plain(&url), &events).await;
    assert!(matches!(task_of(&events[0]).state(), TaskState::Submitted | TaskState::Working));
}

async fn a_task_that_has_ended_meanwhile_stands_for_the_rest(kind: ClientKind) {
    let url = serve(server()).await;
    let proxy = Proxy::before_plain(&url).await;
    proxy.cut([Ends(1)]);
    // All of it comes at once.
    let events = remaining(stream(&*kind.client(&proxy.url), text("", "!burst 3")).await).await;
    let last = &events[1..];
    assert!(last.first().is_some_and(is_gap), "{events:?}");
    assert_eq!(last.first().and_then(state), Some(TaskState::Completed));
    assert_folds_to_task(&*kind.plain(&url), &events).await;
}

async fn a_stream_that_can_not_go_on_says_so(kind: ClientKind) {
    let url = serve(server().resume(true)).await;
    let proxy = Proxy::before(&url).await;
    let mut retry = short_backoff();
    retry.attempts = 2;
    proxy.cut([Ends(2), RequestLost, ReplyLost]);
    let events: Vec<_> =
        stream(&*kind.retrying(&proxy.url, retry), text("", "/stream 100 5")).await.collect::<Vec<_>>().await;
    let (last, before): (&Result<Event, Status>, _) = events.split_last().unwrap();
    assert!((1..=2).contains(&before.len()) && before.iter().all(Result::is_ok), "{events:?}");
    assert_eq!(Error::from(last.clone().unwrap_err()).kind(), ErrorKind::Unavailable);
    assert_eq!(proxy.calls(), 3);
}

/// An agent that asks has ended its turn; and who answers it gets what follows, although their stream begins with a task that
/// still looks as if it asked.
async fn a_turn_that_is_over_is_no_cut(kind: ClientKind) {
    let url = serve(server().resume(true)).await;
    let proxy = Proxy::before(&url).await;
    let agent = kind.client(&proxy.url);
    let events = remaining(stream(&*agent, text("", "/ask what?")).await).await;
    assert_eq!(events.last().and_then(state), Some(TaskState::InputRequired));
    assert_eq!(proxy.calls(), 1);
    let task: &Task = task_of(&events[0]);
    proxy.cut([Ends(1), Breaks(1)]);
    let answered = remaining(stream(&*agent, text(&task.id, "Rome")).await).await;
    assert_eq!(answered.last().and_then(state), Some(TaskState::Completed));
    assert_eq!(events_after(&*kind.plain(&url), &answered[0], &task.id).await, answered[1..]);
}

/// It asks its caller to authorise something, and its turn is not over with that (7.6.1).
async fn an_agent_that_goes_on_while_it_asks_is_listened_to(kind: ClientKind) {
    let url = serve(server().resume(true)).await;
    let (proxy, direct) = (Proxy::before(&url).await, kind.plain(&url));
    let mut events = stream(&*kind.client(&proxy.url), text("", "!authorise")).await;
    let mut seen = vec![next(&mut events).await];
    while seen.last().and_then(state) != Some(TaskState::AuthRequired) {
        seen.push(next(&mut events).await);
    }
    proxy.switch_to(&url);
    let cancel = CancelTaskRequest { id: task_of(&seen[0]).id.clone(), ..CancelTaskRequest::default() };
    direct.cancel_task(request(cancel)).await.unwrap();
    seen.extend(remaining(events).await);
    assert_eq!(seen.last().and_then(state), Some(TaskState::Canceled));
    assert_eq!(events_after(&*direct, &seen[0], &task_of(&seen[0]).id).await, seen[1..]);
}

/// A task that waits has not ended, however its stream ends: as that of a server that stops does. At 0.3 it is over with the
/// turn.
async fn a_subscription_lasts_until_its_task_ends(kind: ClientKind) {
    let url = serve(server().resume(true)).await;
    let (proxy, direct) = (Proxy::before(&url).await, kind.plain(&url));
    let asked = send(&*direct, text("", "/ask what?")).await;
    proxy.cut([Ends(1), RequestLost, Ends(0)]);
    let mut events = subscribe(&*kind.client(&proxy.url), &asked.id).await.unwrap();
    let mut seen = vec![next(&mut events).await];
    assert_eq!(task_of(&seen[0]), &asked);
    if matches!(kind, ClientKind::V03Rest | ClientKind::V03Rpc) {
        return assert!(events.next().await.is_none());
    }
    let rest = tokio::spawn(remaining(events));
    send(&*direct, text(&asked.id, "Rome")).await;
    seen.extend(rest.await.unwrap());
    assert_complete(&*direct, &seen).await;
    assert_eq!(proxy.left(), 0);
}

/// A stream may end as if all were well while the agent goes on; and who asks for the rest of one whose agent has returned is
/// given nothing more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_authorised_meanwhile_is_listened_to() {
    timeout(TIMEOUT, authorised_meanwhile()).await.unwrap();
}

async fn authorised_meanwhile() {
    for kind in [ClientKind::Rest, ClientKind::JsonRpc, ClientKind::Grpc] {
        let url = serve(server().resume(true)).await;
        let (proxy, direct) = (Proxy::before(&url).await, kind.plain(&url));
        proxy.cut([Ends(2)]);
        let mut events = stream(&*kind.client(&proxy.url), text("", "!authorise")).await;
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
        let events = remaining(stream(&*kind.client(&proxy.url), text("", "/auth")).await).await;
        assert_eq!(events.last().and_then(state), Some(TaskState::AuthRequired), "its turn is over");
    }
}
