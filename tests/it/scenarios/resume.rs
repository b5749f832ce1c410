//! Streams that broke: they go on behind the event that was seen last, without a gap and without anything twice.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use a2a_service::{
    agent::{Agent, End, Error as Failure, Turn, Updates},
    event::{Cursor, resume},
    pb::wkt::Struct,
    server::Server,
    service::Limits,
    store::sqlite::Options,
};

use super::*;
use crate::{
    bindings::{Actor, each_binding, serve, server},
    store::place::Opened,
};

/// A call of somebody who wants to know where each event stands, and comes back behind one.
fn after(cursor: Option<&Cursor>) -> Call {
    Call { cursor: cursor.cloned(), extensions: vec![resume::URI.into()], ..Call::default() }
}

async fn streamed(agent: &dyn A2aService, call: Call, sent: SendMessageRequest) -> Result<BoxStream<Event>, Error> {
    Ok(agent.send_streaming_message(call.request(sent)).await?.into_inner())
}

async fn subscribed(agent: &dyn A2aService, call: Call, id: &str) -> Result<BoxStream<Event>, Error> {
    let subscription = SubscribeToTaskRequest { id: id.into(), ..SubscribeToTaskRequest::default() };
    Ok(agent.subscribe_to_task(call.request(subscription)).await?.into_inner())
}

fn metadata(event: &Event) -> Option<&Struct> {
    match event.payload().unwrap() {
        Payload::Task(it) => it.metadata.as_ref(),
        Payload::Message(it) => it.metadata.as_ref(),
        Payload::StatusUpdate(it) => it.metadata.as_ref(),
        Payload::ArtifactUpdate(it) => it.metadata.as_ref(),
    }
}

/// From every event on, of a task that has ended and of one that goes on, before the server was killed and after that.
async fn every_stream_goes_on(way: impl AsyncFn(Server<Actor>) -> Arc<dyn A2aService>) {
    let mut store = Opened::sqlite(Options::default());
    let agent = way(server().resume(true).store(Arc::clone(&store.store))).await;
    let mut all = Vec::new();
    for said in ["/stream 5 1", "/ask what?"] {
        all.push(remaining(streamed(&*agent, after(None), text("", said)).await.unwrap()).await);
    }
    let mut agent = agent;
    for killed in [false, true] {
        if killed {
            store = store.killed();
            agent = way(server().resume(true).store(Arc::clone(&store.store))).await;
        }
        for (events, ends) in all.iter().zip([true, false]) {
            let id = &task_of(&events[0]).id;
            // Of what goes on nothing follows its last event, and there are clients who wait for a first one.
            for n in 0..events.len() - usize::from(!ends) {
                let cursor = events[n].cursor().expect("each can be taken up after");
                let mut rest = subscribed(&*agent, after(Some(cursor)), id).await.unwrap();
                for expected in &events[n + 1..] {
                    assert_eq!(next(&mut rest).await, *expected, "killed: {killed}, behind {cursor}");
                }
                if ends {
                    assert!(rest.next().await.is_none());
                }
            }
        }
    }
}

each_binding!(every_stream_goes_on);

/// What happens after it came back, it sees as who was there all the time.
async fn a_stream_goes_on_with_what_follows(way: impl AsyncFn(Server<Actor>) -> Arc<dyn A2aService>) {
    let store = Opened::sqlite(Options::default());
    let before = way(server().resume(true).store(Arc::clone(&store.store))).await;
    let begun = remaining(streamed(&*before, after(None), text("", "/ask what?")).await.unwrap()).await;
    let id = &task_of(&begun[0]).id;
    let store = store.killed();
    let agent = way(server().resume(true).store(Arc::clone(&store.store))).await;
    let mut streams = Vec::new();
    for it in &begun {
        streams.push(subscribed(&*agent, after(it.cursor()), id).await.unwrap());
    }
    send(&*agent, text(id, "Rome")).await;
    for (n, events) in streams.into_iter().enumerate() {
        let events = remaining(events).await;
        assert_eq!(events[..begun.len() - n - 1], begun[n + 1..]);
        assert_eq!(events.last().and_then(state), Some(TaskState::Completed));
        let whole: Vec<_> = begun[..=n].iter().chain(&events).cloned().collect();
        let mut task = task_of(&whole[0]).clone();
        whole[1..].iter().filter_map(Event::payload).for_each(|it| a2a_service::task::apply(&mut task, it));
        let done = get(&*agent, id).await.unwrap();
        assert_eq!((output(&task), task.status), (output(&done), done.status));
    }
}

each_binding!(a_stream_goes_on_with_what_follows, not_at_0_3 = "there a stream ends with a turn");

/// Counts how often it is asked for something, and answers when it may.
struct Counts(Arc<AtomicUsize>);

impl Agent for Counts {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Failure> {
        self.0.fetch_add(1, Ordering::SeqCst);
        out.working().await?;
        for word in turn.text().split_whitespace() {
            out.progress(word).await?;
            tokio::task::yield_now().await;
        }
        Ok(if turn.text() == "ask" { End::InputRequired(Message::agent("what?")) } else { End::Completed(None) })
    }
}

/// A client that repeats its request when its stream broke, as those do that know nothing of subscriptions.
async fn a_send_that_is_repeated_is_not_sent_again(way: impl AsyncFn(Server<Counts>) -> Arc<dyn A2aService>) {
    let count = Arc::new(AtomicUsize::new(0));
    let store = Opened::sqlite(Options::default());
    let agent = way(Server::new(Counts(Arc::clone(&count))).resume(true).store(Arc::clone(&store.store))).await;
    let first = text("", "ask");
    let asked = remaining(streamed(&*agent, after(None), first.clone()).await.unwrap()).await;
    let id = task_of(&asked[0]).id.clone();
    let second = text(&id, "one two three");
    let answered = remaining(streamed(&*agent, after(None), second.clone()).await.unwrap()).await;
    assert_eq!(count.load(Ordering::SeqCst), 2);
    for (sent, events) in [(&first, &asked), (&second, &answered)] {
        for n in 0..events.len() {
            let again = streamed(&*agent, after(events[n].cursor()), sent.clone()).await.unwrap();
            assert_eq!(remaining(again).await, events[n + 1..], "its own turn, and no other");
        }
    }
    // A stream that breaks while the agent is at work.
    let third = text("", "one two three four five");
    let mut broken = streamed(&*agent, after(None), third.clone()).await.unwrap();
    let mut seen = vec![next(&mut broken).await, next(&mut broken).await];
    drop(broken);
    let rest = streamed(&*agent, after(seen[1].cursor()), third.clone()).await.unwrap();
    seen.extend(remaining(rest).await);
    let id = &task_of(&seen[0]).id;
    assert_eq!(seen.last().and_then(state), Some(TaskState::Completed));
    let whole = remaining(subscribed(&*agent, after(seen[0].cursor()), id).await.unwrap()).await;
    assert_eq!(whole, seen[1..]);
    // What is no repetition might be a message that nobody has: it is refused, and not swallowed.
    let (other, foreign) = (text("", "something else"), text("nowhere", "one"));
    for (sent, cursor) in [
        (&other, seen[1].cursor().cloned()),
        (&foreign, seen[1].cursor().cloned()),
        (&third, Cursor::from_text("what?")),
    ] {
        let error = streamed(&*agent, after(cursor.as_ref()), sent.clone()).await.err().unwrap();
        assert_error_kind(&error, ErrorKind::InvalidParams);
        assert!(error.to_string().contains("Last-Event-ID"), "{error}");
    }
    let nobodys = Cursor::from_text("nowhere.1.1");
    let error = streamed(&*agent, after(nobodys.as_ref()), third.clone()).await.err().unwrap();
    assert_error_kind(&error, ErrorKind::TaskNotFound);
    // A place that the log does not have: the task as it is.
    let lost = Cursor::from_text(&format!("{id}.1.99"));
    let again = remaining(streamed(&*agent, after(lost.as_ref()), third.clone()).await.unwrap()).await;
    assert_eq!((again.len(), task_of(&again[0]).state()), (1, TaskState::Completed));
    assert!(resume::is_gap(again[0].payload().unwrap()));
    assert_eq!(count.load(Ordering::SeqCst), 3, "nothing was sent twice");
}

each_binding!(a_send_that_is_repeated_is_not_sent_again);

/// What can't be made good is said, to whoever asks.
async fn a_gap_is_marked(way: impl AsyncFn(Server<Actor>) -> Arc<dyn A2aService>) {
    let agent = way(server().resume(true)).await;
    let asked = send(&*agent, text("", "/ask what?")).await;
    let mut cursors = Vec::new();
    for lost in [format!("{}.7.1", asked.id), format!("{}.1.99", asked.id), "elsewhere.1.1".into(), "?".into()] {
        let lost = Cursor::from_text(&lost);
        let mut events = subscribed(&*agent, after(lost.as_ref()), &asked.id).await.unwrap();
        let first = next(&mut events).await;
        assert!(resume::is_gap(first.payload().unwrap()), "{first:?}");
        assert_eq!(task_of(&first).state(), TaskState::InputRequired);
        cursors.extend(first.cursor().cloned());
        let plain = Call { cursor: lost, ..Call::default() };
        let mut unmarked = subscribed(&*agent, plain, &asked.id).await.unwrap();
        assert_eq!(metadata(&next(&mut unmarked).await), None, "who did not ask sees nothing of it");
        let mut whole = subscribed(&*agent, after(None), &asked.id).await.unwrap();
        assert!(!resume::is_gap(next(&mut whole).await.payload().unwrap()));
    }
    // From there on, one can go on without a gap.
    let done = send(&*agent, text(&asked.id, "Rome")).await;
    for it in &cursors {
        let rest = remaining(subscribed(&*agent, after(Some(it)), &asked.id).await.unwrap()).await;
        assert_eq!(rest.last().and_then(state), Some(TaskState::Completed));
        assert!(rest.iter().all(|it| metadata(it).is_some() && !resume::is_gap(it.payload().unwrap())));
    }
    assert_eq!((cursors.len(), done.state()), (4, TaskState::Completed));
}

each_binding!(a_gap_is_marked);

/// A stream that ends because it has become old ends in a way in which its client comes back, also where it is the one of
/// somebody who came back and saw nothing.
async fn an_old_stream_ends(way: impl AsyncFn(Server<Actor>) -> Arc<dyn A2aService>) {
    let mut limits = Limits::default();
    limits.stream_age = Duration::from_millis(50);
    let agent = way(server().resume(true).limits(limits)).await;
    let asked = send(&*agent, text("", "/ask what?")).await;
    let mut events = subscribed(&*agent, after(None), &asked.id).await.unwrap();
    let first = next(&mut events).await;
    assert_eq!(task_of(&first).state(), TaskState::InputRequired);
    for mut events in [events, subscribed(&*agent, after(first.cursor()), &asked.id).await.unwrap()] {
        // There is no error that an `EventSource` would see, and in gRPC there is one that says to come again.
        if let Some(end) = events.next().await {
            assert_error_kind(&end.unwrap_err().into(), ErrorKind::Unavailable);
        }
        assert!(events.next().await.is_none());
    }
    assert_eq!(send(&*agent, text(&asked.id, "Rome")).await.state(), TaskState::Completed);
}

each_binding!(an_old_stream_ends);

/// Where a stream goes on is a header, or a parameter where there can be none, of whatever is bound to HTTP.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_source_comes_back() {
    let url = serve(server()).await;
    let http = reqwest::Client::new();
    let post = async |path: &str, id: &str, body: String| {
        let asked = http.post(format!("{url}{path}")).header("content-type", "application/json").body(body);
        let asked = if id.is_empty() { asked } else { asked.header("last-event-id", id) };
        asked.send().await.unwrap().text().await.unwrap()
    };
    let ids = |text: &str| -> Vec<String> {
        text.lines().filter_map(|it| it.strip_prefix("id: ")).map(str::to_owned).collect()
    };
    let rpc =
        |method: &str, params: String| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
    for (send, subscribe) in [
        (("/message:stream", ""), ("/tasks/ID:subscribe", "")),
        (("/rpc", "SendStreamingMessage"), ("/rpc", "SubscribeToTask")),
        (("/v1/message:stream", ""), ("/v1/tasks/ID:subscribe", "")),
        (("/rpc", "message/stream"), ("/rpc", "tasks/resubscribe")),
    ] {
        let classic = send.0.starts_with("/v1") || send.1.contains('/');
        let (role, part) = if classic {
            ("user", r#"{"kind":"text","text":"/stream 3 1"}"#)
        } else {
            ("ROLE_USER", r#"{"text":"/stream 3 1"}"#)
        };
        let body = |method: &str, params: String| if method.is_empty() { params } else { rpc(method, params) };
        let message = format!(r#"{{"message":{{"messageId":"m","role":"{role}","parts":[{part}]}}}}"#);
        let message = body(send.1, message);
        let all = ids(&post(send.0, "", message.clone()).await);
        assert!(all.len() > 3, "{send:?}: {all:?}");
        let task = all[0].split('.').next().unwrap();
        for n in 0..all.len() {
            let path = subscribe.0.replace("ID", task);
            let subscription = body(subscribe.1, format!(r#"{{"id":"{task}"}}"#));
            assert_eq!(ids(&post(&path, &all[n], subscription.clone()).await), all[n + 1..], "{subscribe:?}");
            let path = format!("{path}?lastEventId={}", all[n]);
            assert_eq!(ids(&post(&path, "", subscription).await), all[n + 1..], "{subscribe:?}");
            let again = post(send.0, &all[n], message.clone()).await;
            assert_eq!(ids(&again), all[n + 1..], "{send:?}");
        }
        // What can't be read is not nothing: then the message would be sent again.
        for unreadable in ["x".repeat(300).as_str(), "ü"] {
            let refused = post(send.0, unreadable, message.clone()).await;
            assert!(refused.contains("Last-Event-ID"), "{send:?}: {refused}");
        }
    }
}
