//! Resuming streams after a cursor: no gap and no duplicate events; retried sends; marked gaps; maximum stream age.

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
use crate::conformance::{Exemption, allow_undocumented};
use crate::{
    bindings::{Binding, each_binding, serve, server},
    store::opened::OpenedStore,
};

/// Context of a request that asks for cursors, and resumes after one.
fn after(cursor: Option<&Cursor>) -> Call {
    Call { cursor: cursor.cloned(), extensions: vec![resume::URI.into()], ..Call::default() }
}

async fn stream_with(agent: &dyn A2aService, call: Call, sent: SendMessageRequest) -> Result<BoxStream<Event>, Error> {
    Ok(agent.send_streaming_message(call.request(sent)).await?.into_inner())
}

async fn subscribe_with(agent: &dyn A2aService, call: Call, id: &str) -> Result<BoxStream<Event>, Error> {
    let subscription = SubscribeToTaskRequest { id: id.into(), ..SubscribeToTaskRequest::default() };
    Ok(agent.subscribe_to_task(call.request(subscription)).await?.into_inner())
}

fn metadata(event: &Event) -> Option<&Struct> {
    match event.payload().unwrap() {
        Payload::Task(task) => task.metadata.as_ref(),
        Payload::Message(message) => message.metadata.as_ref(),
        Payload::StatusUpdate(update) => update.metadata.as_ref(),
        Payload::ArtifactUpdate(update) => update.metadata.as_ref(),
    }
}

/// After every event of a terminal and of an interrupted task, before and after a crash.
async fn stream_resumes_after_every_event(binding: Binding) {
    let mut store = OpenedStore::sqlite(Options::default());
    let agent = binding(server().resume(true).store(Arc::clone(&store.store))).await;
    let mut all = Vec::new();
    for command in ["/stream 5 1", "/ask what?"] {
        all.push(remaining(stream_with(&*agent, after(None), text("", command)).await.unwrap()).await);
    }
    let mut agent = agent;
    for killed in [false, true] {
        if killed {
            store = store.killed();
            agent = binding(server().resume(true).store(Arc::clone(&store.store))).await;
        }
        for (events, ends) in all.iter().zip([true, false]) {
            let id = &task_of(&events[0]).id;
            // No event follows the last one of an interrupted task yet.
            for n in 0..events.len() - usize::from(!ends) {
                let cursor = events[n].cursor().expect("each event has a cursor");
                let mut rest = subscribe_with(&*agent, after(Some(cursor)), id).await.unwrap();
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

each_binding!(stream_resumes_after_every_event, kinds());

/// The cursor `TASK.0.0` is before the first event: a subscription with it replays the whole log, also of a task that has ended.
async fn whole_log_is_replayed_from_its_start(binding: Binding) {
    let agent = binding(server().resume(true)).await;
    let events = remaining(stream_with(&*agent, after(None), text("", "/stream 5 1")).await.unwrap()).await;
    let id = &task_of(&events[0]).id;
    let start = Cursor::from_text(&format!("{id}.0.0")).unwrap();
    for _ in 0..2 {
        let replayed = remaining(subscribe_with(&*agent, after(Some(&start)), id).await.unwrap()).await;
        let cursors =
            |events: &[Event]| events.iter().map(|event| event.cursor().cloned().unwrap()).collect::<Vec<_>>();
        assert_eq!(cursors(&replayed), cursors(&events));
        assert_eq!(replayed, events);
    }
}

each_binding!(whole_log_is_replayed_from_its_start, kinds());

/// A resumed stream receives later events as an uninterrupted one does.
async fn resumed_stream_receives_later_events(binding: Binding) {
    let store = OpenedStore::sqlite(Options::default());
    let before = binding(server().resume(true).store(Arc::clone(&store.store))).await;
    let initial = remaining(stream_with(&*before, after(None), text("", "/ask what?")).await.unwrap()).await;
    let id = &task_of(&initial[0]).id;
    let store = store.killed();
    let agent = binding(server().resume(true).store(Arc::clone(&store.store))).await;
    let mut streams = Vec::new();
    for event in &initial {
        streams.push(subscribe_with(&*agent, after(event.cursor()), id).await.unwrap());
    }
    send(&*agent, text(id, "Rome")).await;
    for (n, events) in streams.into_iter().enumerate() {
        let events = remaining(events).await;
        assert_eq!(events[..initial.len() - n - 1], initial[n + 1..]);
        assert_eq!(events.last().and_then(state), Some(TaskState::Completed));
        let whole: Vec<_> = initial[..=n].iter().chain(&events).cloned().collect();
        let mut task = task_of(&whole[0]).clone();
        whole[1..].iter().filter_map(Event::payload).for_each(|payload| a2a_service::task::apply(&mut task, payload));
        let done = get(&*agent, id).await.unwrap();
        assert_eq!((output(&task), task.status), (output(&done), done.status));
    }
}

each_binding!(resumed_stream_receives_later_events, kinds(), not_at_0_3 = "a stream ends with the turn in 0.3");

/// Agent that counts its turns.
struct TurnCounter(Arc<AtomicUsize>);

impl Agent for TurnCounter {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Failure> {
        self.0.fetch_add(1, Ordering::SeqCst);
        out.working().await?;
        for word in turn.text().split_whitespace() {
            out.progress(word).await?;
            tokio::task::yield_now().await;
        }
        Ok(if turn.text() == "ask" { End::input_required("what?") } else { End::Completed(None) })
    }
}

/// Some clients resume a broken stream by repeating the send, because they know nothing of subscriptions.
async fn repeated_send_resumes_its_stream(binding: Binding) {
    let count = Arc::new(AtomicUsize::new(0));
    let store = OpenedStore::sqlite(Options::default());
    let agent =
        binding(Server::new(TurnCounter(Arc::clone(&count))).resume(true).store(Arc::clone(&store.store))).await;
    let first = text("", "ask");
    let initial = remaining(stream_with(&*agent, after(None), first.clone()).await.unwrap()).await;
    let id = task_of(&initial[0]).id.clone();
    let second = text(&id, "one two three");
    let follow_up_events = remaining(stream_with(&*agent, after(None), second.clone()).await.unwrap()).await;
    assert_eq!(count.load(Ordering::SeqCst), 2);
    for (sent, events) in [(&first, &initial), (&second, &follow_up_events)] {
        for n in 0..events.len() {
            let again = stream_with(&*agent, after(events[n].cursor()), sent.clone()).await.unwrap();
            assert_eq!(remaining(again).await, events[n + 1..], "only the turn of the send");
        }
    }
    // A stream that breaks before its first event: the client has only the cursor of the stream before.
    let again = stream_with(&*agent, after(initial.last().and_then(Event::cursor)), second.clone()).await.unwrap();
    let again = remaining(again).await;
    // The stream of a follow-up begins with the task as of its first event.
    assert_eq!((state(&again[0]), &again[1..]), (Some(TaskState::Working), &follow_up_events[1..]));
    // A stream that breaks during a turn.
    let third = text("", "one two three four five");
    let mut broken = stream_with(&*agent, after(None), third.clone()).await.unwrap();
    let mut seen = vec![next(&mut broken).await, next(&mut broken).await];
    drop(broken);
    let rest = stream_with(&*agent, after(seen[1].cursor()), third.clone()).await.unwrap();
    seen.extend(remaining(rest).await);
    let id = &task_of(&seen[0]).id;
    assert_eq!(seen.last().and_then(state), Some(TaskState::Completed));
    let whole = remaining(subscribe_with(&*agent, after(seen[0].cursor()), id).await.unwrap()).await;
    assert_eq!(whole, seen[1..]);
    // A send that is not a retry may be an undelivered message, so it is rejected instead of ignored.
    let (other, foreign) = (text("", "something else"), text("nowhere", "one"));
    for (sent, cursor) in [
        (&other, seen[1].cursor().cloned()),
        (&foreign, seen[1].cursor().cloned()),
        (&third, Cursor::from_text("what?")),
    ] {
        let error = stream_with(&*agent, after(cursor.as_ref()), sent.clone()).await.err().unwrap();
        assert_error_kind(&error, ErrorKind::InvalidParams);
        assert!(error.to_string().contains("Last-Event-ID"), "{error}");
    }
    let unknown_task = Cursor::from_text("nowhere.1.1");
    let error = stream_with(&*agent, after(unknown_task.as_ref()), third.clone()).await.err().unwrap();
    assert_error_kind(&error, ErrorKind::TaskNotFound);
    // A position that the log does not have: the stream has the current task.
    let lost = Cursor::from_text(&format!("{id}.1.99"));
    let again = remaining(stream_with(&*agent, after(lost.as_ref()), third.clone()).await.unwrap()).await;
    assert_eq!((again.len(), task_of(&again[0]).state()), (1, TaskState::Completed));
    assert!(resume::is_gap(again[0].payload().unwrap()));
    assert_eq!(count.load(Ordering::SeqCst), 3, "no message is delivered twice");
}

each_binding!(repeated_send_resumes_its_stream);

/// Missing events are reported to clients that request the extension.
async fn missing_events_are_marked_as_a_gap(binding: Binding) {
    let agent = binding(server().resume(true)).await;
    let initial = send(&*agent, text("", "/ask what?")).await;
    let mut cursors = Vec::new();
    for lost in [format!("{}.7.1", initial.id), format!("{}.1.99", initial.id), "another.1.1".into(), "?".into()] {
        let lost = Cursor::from_text(&lost);
        let mut events = subscribe_with(&*agent, after(lost.as_ref()), &initial.id).await.unwrap();
        let first = next(&mut events).await;
        assert!(resume::is_gap(first.payload().unwrap()), "{first:?}");
        assert_eq!(task_of(&first).state(), TaskState::InputRequired);
        cursors.extend(first.cursor().cloned());
        let plain = Call { cursor: lost, ..Call::default() };
        let mut unmarked = subscribe_with(&*agent, plain, &initial.id).await.unwrap();
        assert_eq!(metadata(&next(&mut unmarked).await), None, "clients without the extension get no cursors");
        let mut whole = subscribe_with(&*agent, after(None), &initial.id).await.unwrap();
        assert!(!resume::is_gap(next(&mut whole).await.payload().unwrap()));
    }
    // The cursor of the gap can be resumed after.
    let done = send(&*agent, text(&initial.id, "Rome")).await;
    for cursor in &cursors {
        let rest = remaining(subscribe_with(&*agent, after(Some(cursor)), &initial.id).await.unwrap()).await;
        assert_eq!(rest.last().and_then(state), Some(TaskState::Completed));
        assert!(rest.iter().all(|event| metadata(event).is_some() && !resume::is_gap(event.payload().unwrap())));
    }
    assert_eq!((cursors.len(), done.state()), (4, TaskState::Completed));
}

each_binding!(missing_events_are_marked_as_a_gap, kinds());

/// A stream that reaches its maximum age ends so that the client reconnects, even if a resumed stream received no event.
async fn stream_ends_at_its_maximum_age(binding: Binding) {
    let mut limits = Limits::default();
    limits.stream_max_age = Duration::from_millis(50);
    let agent = binding(server().resume(true).limits(limits)).await;
    let initial = send(&*agent, text("", "/ask what?")).await;
    let mut events = subscribe_with(&*agent, after(None), &initial.id).await.unwrap();
    let first = next(&mut events).await;
    assert_eq!(task_of(&first).state(), TaskState::InputRequired);
    for mut events in [events, subscribe_with(&*agent, after(first.cursor()), &initial.id).await.unwrap()] {
        // `EventSource` sees no error; gRPC returns a retryable one.
        if let Some(end) = events.next().await {
            assert_error_kind(&end.unwrap_err().into(), ErrorKind::Unavailable);
        }
        assert!(events.next().await.is_none());
    }
    assert_eq!(send(&*agent, text(&initial.id, "Rome")).await.state(), TaskState::Completed);
}

each_binding!(stream_ends_at_its_maximum_age);

/// The cursor is a header, or a query parameter for clients that cannot set headers, over every HTTP binding.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cursor_resumes_over_every_http_binding() {
    allow_undocumented(Exemption::Requests);
    let url = serve(server()).await;
    let http = crate::bindings::http();
    let post = async |path: &str, id: &str, body: String| {
        let request = http.post(format!("{url}{path}")).header("content-type", "application/json").body(body);
        let request = if id.is_empty() { request } else { request.header("last-event-id", id) };
        request.send().await.unwrap().text().await.unwrap()
    };
    let ids = |text: &str| -> Vec<String> {
        text.lines().filter_map(|line| line.strip_prefix("id: ")).map(str::to_owned).collect()
    };
    let rpc =
        |method: &str, params: String| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
    for (send, subscribe) in [
        (("/message:stream", ""), ("/tasks/ID:subscribe", "")),
        (("/rpc", "SendStreamingMessage"), ("/rpc", "SubscribeToTask")),
        (("/v1/message:stream", ""), ("/v1/tasks/ID:subscribe", "")),
        (("/rpc", "message/stream"), ("/rpc", "tasks/resubscribe")),
    ] {
        let is_v03 = send.0.starts_with("/v1") || send.1.contains('/');
        let (role, part) = if is_v03 {
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
        // An invalid cursor is rejected: ignoring it would deliver the message again.
        for unreadable in ["x".repeat(300).as_str(), "ü"] {
            let rejected = post(send.0, unreadable, message.clone()).await;
            assert!(rejected.contains("Last-Event-ID"), "{send:?}: {rejected}");
        }
    }
}
