//! Resumption of broken streams, as far as the server stores the missing events.

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
    store::opened::OpenedStore,
};

each_client_kind! {
    broken_stream_is_resumed
    broken_subscription_is_resumed
    stream_over_its_maximum_age_is_resumed
    stream_is_resumed_after_a_restart
    stream_without_cursors_resumes_with_the_task
    stream_without_the_cursor_extension_is_resumed
    terminal_task_replaces_missing_events
    stream_fails_after_the_last_attempt
    end_of_the_turn_is_not_resumed
    stream_continues_after_auth_required
    subscription_is_resumed_until_the_task_is_terminal
}

/// The stream is resumed after every kind of failure.
async fn broken_stream_is_resumed(kind: ClientKind) {
    let url = serve(server().resume(true)).await;
    let proxy = Proxy::before(&url).await;
    proxy.cut([Ends(2), Breaks(1), Within(1), RequestLost, Ends(0), ReplyLost, Breaks(2), Busy, Within(0), Ends(1)]);
    let events = remaining(stream(&*kind.client(&proxy.url), text("", "/stream 20 1")).await).await;
    assert_eq!((proxy.left(), proxy.calls()), (0, 11));
    assert_complete(&*kind.plain(&url), &events).await;
}

async fn broken_subscription_is_resumed(kind: ClientKind) {
    let url = serve(server().resume(true)).await;
    let (proxy, agent) = (Proxy::before(&url).await, kind.plain(&url));
    let at_once = SendMessageConfiguration { return_immediately: true, ..SendMessageConfiguration::default() };
    let task = send(&*agent, configured(text("", "/stream 150 5"), at_once)).await;
    proxy.cut([Ends(0), Within(0), Ends(2), RequestLost, ReplyLost, Busy, Breaks(1), Within(2)]);
    let events = remaining(subscribe(&*kind.client(&proxy.url), &task.id).await.unwrap()).await;
    assert_eq!(proxy.left(), 0);
    assert_complete(&*agent, &events).await;
    // Also after a cursor that the caller names.
    proxy.cut([Ends(1), Breaks(3)]);
    assert_eq!(events_after(&*kind.client(&proxy.url), &events[0], &task.id).await, events[1..]);
}

/// A stream that reaches its maximum age ends with an error in gRPC, and without one elsewhere.
async fn stream_over_its_maximum_age_is_resumed(kind: ClientKind) {
    let mut limits = Limits::default();
    limits.stream_max_age = Duration::from_millis(20);
    let url = serve(server().resume(true).limits(limits)).await;
    let proxy = Proxy::before(&url).await;
    let events = remaining(stream(&*kind.client(&proxy.url), text("", "/stream 20 10")).await).await;
    assert!(proxy.calls() > 2);
    assert_eq!(events.last().and_then(state), Some(TaskState::Completed));
    assert_folds_to_task(&*kind.plain(&url), &events).await;
    assert!(!events.iter().any(is_gap));
}

/// Agent that outputs the number of the attempt, and hangs in the first.
#[derive(Clone)]
struct HangingAgent;

impl Agent for HangingAgent {
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

async fn stream_is_resumed_after_a_restart(kind: ClientKind) {
    let store = OpenedStore::sqlite(Options::default());
    let previous = serve(Server::new(HangingAgent).resume(true).store(Arc::clone(&store.store))).await;
    let proxy = Proxy::before(&previous).await;
    let mut events = stream(&*kind.client(&proxy.url), text("", "go")).await;
    let mut seen = vec![next(&mut events).await];
    while output(&get(&*kind.plain(&previous), &task_of(&seen[0]).id).await.unwrap()) != "[1]" {
        seen.push(next(&mut events).await);
    }
    let store = store.killed();
    let after = serve(Server::new(HangingAgent).resume(true).store(Arc::clone(&store.store))).await;
    proxy.switch_to(&after);
    seen.extend(remaining(events).await);
    assert_complete(&*kind.plain(&after), &seen).await;
    assert_eq!(output(&get(&*kind.plain(&after), &task_of(&seen[0]).id).await.unwrap()), "[1][2]");
}

async fn stream_without_cursors_resumes_with_the_task(kind: ClientKind) {
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
            Ok(events) => events,
            // A broken connection can lose the first events, and with them the task id to resume.
            Err(status) => {
                assert!(matches!((cut, Error::from(status).kind()), (Breaks(_), ErrorKind::Unavailable)), "{cut:?}");
                continue;
            }
        };
        let gaps: Vec<_> =
            events.iter().enumerate().filter(|(_, event)| is_gap(event)).map(|(index, _)| index).collect();
        assert_eq!(gaps.last().copied(), events.iter().rposition(|event| event.task().is_some()), "{cut:?}");
        assert_eq!((gaps.len(), proxy.left()), (2, 0), "{cut:?}: {gaps:?}");
        assert!(gaps[0] <= 2 && !events.iter().any(has_cursor_metadata));
        assert_eq!(events.last().and_then(state), Some(TaskState::Completed));
        assert_folds_to_task(&*kind.plain(&url), &events).await;
    }
}

/// gRPC sends cursors only to clients that request the extension. The send is retried by its key and returns the task.
async fn stream_without_the_cursor_extension_is_resumed(kind: ClientKind) {
    let url = serve(server()).await;
    let proxy = Proxy::before(&url).await;
    proxy.cut([Ends(2), RequestLost, ReplyLost]);
    let events = remaining(stream(&*kind.client(&proxy.url), text("", "/stream 20 2")).await).await;
    let gaps: Vec<_> = events.iter().filter(|event| is_gap(event)).collect();
    let has_no_cursors = matches!(kind, ClientKind::Grpc | ClientKind::V03Grpc);
    assert_eq!((gaps.len(), proxy.left()), (usize::from(has_no_cursors), 0));
    assert!(gaps.iter().all(|event| event.task().is_some()));
    assert_folds_to_task(&*kind.plain(&url), &events).await;
    assert!(matches!(task_of(&events[0]).state(), TaskState::Submitted | TaskState::Working));
}

async fn terminal_task_replaces_missing_events(kind: ClientKind) {
    let url = serve(server()).await;
    let proxy = Proxy::before_plain(&url).await;
    proxy.cut([Ends(1)]);
    // All events arrive at once.
    let events = remaining(stream(&*kind.client(&proxy.url), text("", "!burst 3")).await).await;
    let last = &events[1..];
    assert!(last.first().is_some_and(is_gap), "{events:?}");
    assert_eq!(last.first().and_then(state), Some(TaskState::Completed));
    assert_folds_to_task(&*kind.plain(&url), &events).await;
}

async fn stream_fails_after_the_last_attempt(kind: ClientKind) {
    let url = serve(server().resume(true)).await;
    let proxy = Proxy::before(&url).await;
    let mut retry = short_backoff();
    retry.attempts = 2;
    proxy.cut([Ends(2), RequestLost, ReplyLost]);
    let events: Vec<_> =
        stream(&*kind.retrying(&proxy.url, retry), text("", "/stream 100 5")).await.collect::<Vec<_>>().await;
    let (last, previous): (&Result<Event, Status>, _) = events.split_last().unwrap();
    assert!((1..=2).contains(&previous.len()) && previous.iter().all(Result::is_ok), "{events:?}");
    assert_eq!(Error::from(last.clone().unwrap_err()).kind(), ErrorKind::Unavailable);
    assert_eq!(proxy.calls(), 3);
}

/// An interrupted task has ended its turn, so the stream is not resumed. A stream of a follow-up is resumed, although its
/// first task is still interrupted.
async fn end_of_the_turn_is_not_resumed(kind: ClientKind) {
    let url = serve(server().resume(true)).await;
    let proxy = Proxy::before(&url).await;
    let agent = kind.client(&proxy.url);
    let events = remaining(stream(&*agent, text("", "/ask what?")).await).await;
    assert_eq!(events.last().and_then(state), Some(TaskState::InputRequired));
    assert_eq!(proxy.calls(), 1);
    let task: &Task = task_of(&events[0]);
    proxy.cut([Ends(1), Breaks(1)]);
    let follow_up_events = remaining(stream(&*agent, text(&task.id, "Rome")).await).await;
    assert_eq!(follow_up_events.last().and_then(state), Some(TaskState::Completed));
    assert_eq!(events_after(&*kind.plain(&url), &follow_up_events[0], &task.id).await, follow_up_events[1..]);
}

/// `auth-required` does not end the turn (7.6.1).
async fn stream_continues_after_auth_required(kind: ClientKind) {
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

/// A subscription to an interrupted task is resumed until the task is terminal. In 0.3 it ends with the turn.
async fn subscription_is_resumed_until_the_task_is_terminal(kind: ClientKind) {
    let url = serve(server().resume(true)).await;
    let (proxy, direct) = (Proxy::before(&url).await, kind.plain(&url));
    let interrupted = send(&*direct, text("", "/ask what?")).await;
    proxy.cut([Ends(1), RequestLost, Ends(0)]);
    let mut events = subscribe(&*kind.client(&proxy.url), &interrupted.id).await.unwrap();
    let mut seen = vec![next(&mut events).await];
    assert_eq!(task_of(&seen[0]), &interrupted);
    if matches!(kind, ClientKind::V03Rest | ClientKind::V03Rpc) {
        return assert!(events.next().await.is_none());
    }
    let rest = tokio::spawn(remaining(events));
    send(&*direct, text(&interrupted.id, "Rome")).await;
    seen.extend(rest.await.unwrap());
    assert_complete(&*direct, &seen).await;
    assert_eq!(proxy.left(), 0);
}

/// A stream can end without an error during a turn. A stream resumed after the end of the turn receives no more events.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_is_resumed_after_auth_required() {
    timeout(TIMEOUT, resume_after_auth_required()).await.unwrap();
}

async fn resume_after_auth_required() {
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
        assert_eq!(events.last().and_then(state), Some(TaskState::AuthRequired), "the turn has ended");
    }
}
