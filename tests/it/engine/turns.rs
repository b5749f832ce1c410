//! Turns: message delivery, task states, deadlines, limits, failing agents and replies without a task.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use a2a_service::{
    agent::{self, Agent, End, Turn, Updates},
    error::{Error, ErrorKind},
    event::{Ends, Event},
    pb::v1::{
        ListTasksRequest, Message, Role, Task, TaskState, send_message_response::Payload as Answer,
        stream_response::Payload,
    },
    service::Limits,
    store::{Retention, Store, memory::Memory},
};
use futures::{FutureExt as _, StreamExt as _, poll};
use proptest::prelude::*;
use tokio::{sync::Notify, task::yield_now, time::timeout};

use super::support::*;
use crate::gate::Gate;

fn stores() -> [Arc<dyn Store>; 2] {
    [Arc::new(Memory::default()), Gate::opened()]
}

/// Boundary values of configurable durations, chosen to provoke arithmetic overflow.
fn extreme_duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        Just(Duration::ZERO),
        Just(Duration::from_nanos(1)),
        Just(Duration::from_secs(1)),
        Just(Duration::from_secs(u64::from(u32::MAX))),
        Just(Duration::from_secs(i64::MAX.unsigned_abs())),
        Just(Duration::MAX),
    ]
}

fn extreme_limits() -> impl Strategy<Value = Limits> {
    let durations = proptest::array::uniform7(extreme_duration());
    let count = || prop_oneof![Just(0_usize), Just(1), Just(usize::MAX)];
    (durations, count(), count(), count()).prop_map(|(durations, turns, streams, waiting)| {
        let mut limits = Limits::default();
        let wait;
        [
            limits.task_delay,
            limits.commit_interval,
            limits.turn_deadline,
            limits.turn_idle_timeout,
            limits.cancel_grace,
            wait,
            limits.stream_max_age,
        ] = durations;
        limits.send_timeout = Some(wait);
        (limits.turns, limits.turns_per_owner, limits.streams, limits.queued_messages) =
            (turns, turns, streams, waiting);
        (limits.queued_turns, limits.queued_turns_per_owner, limits.streams_per_owner) = (waiting, turns, streams);
        limits
    })
}

/// Maximum virtual time of a call: with extreme limits a call may last for years, with a sweep each second.
const MAX_WAIT: Duration = Duration::from_mins(10);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_configured_duration_or_count_makes_a_call_panic(
        limits in extreme_limits(),
        [every, window, grace] in proptest::array::uniform3(extreme_duration()),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async move {
            let bench = with_limits(Arc::new(Memory::default()), limits, scripted);
            let mut retention = Retention::FOREVER;
            (retention.interval, retention.finished, retention.idle) = (every, Some(window), Some(window));
            bench.service.start_retention(retention);
            // Allowed outcomes: served, still running after `MAX_WAIT`, or rejected at a limit. A panicking turn is none of these.
            let outcome = |result: Result<Task, Error>| match result {
                Ok(task) => assert!(matches!(task.state(), TaskState::Submitted | TaskState::Working)
                    || task.state().is_terminal(), "{task:?}"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}"),
            };
            if let Ok(sent) = timeout(MAX_WAIT, bench.send(Message::user("work pass:1 out:x done"))).await {
                outcome(sent);
            }
            let hanging = bench.non_blocking().send(Message::user("work hang")).await;
            if let Ok(task) = &hanging
                && let Ok(canceled) = timeout(MAX_WAIT, bench.cancel(&task.id)).await
            {
                match canceled.map_err(|error| error.kind()) {
                    Ok(task) => assert_eq!(task.state(), TaskState::Canceled),
                    Err(kind) => assert_eq!(kind, ErrorKind::TaskNotCancelable),
                }
            }
            outcome(hanging);
            match bench.stream(Message::user("work pass:1 done")).await {
                Ok(events) => assert_ne!(timeout(MAX_WAIT, events.count()).await, Ok(0)),
                Err(error) => assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}"),
            }
            _ = timeout(MAX_WAIT, bench.service.drain(grace)).await;
        });
    }
}

/// Asserts a retryable rejection at the limit of this name.
fn refused_at(result: Result<Task, Error>, limit: &str) {
    let error = result.unwrap_err();
    assert_eq!((error.kind(), error.metadata("limit")), (ErrorKind::ResourceExhausted, Some(limit)), "{error}");
    assert!(error.retry_after_seconds().is_some());
}

#[tokio::test(start_paused = true)]
async fn turns_of_one_owner_leave_turns_to_others() {
    let most = Limits::default().turns_per_owner;
    let mut limits = Limits::default();
    limits.queued_turns = 0;
    let bench = with_limits(Arc::new(Memory::with_max_tasks(20_000)), limits, scripted);
    let ada = bench.non_blocking();
    let mut hanging = Vec::new();
    for n in 0..Limits::default().turns {
        let tenant = ada.in_tenant(if n % 2 == 0 { "" } else { "other" });
        match tenant.send(Message::user("work hang")).await {
            Ok(task) => hanging.push(task.id),
            result @ Err(_) => refused_at(result, "turns_per_owner"),
        }
    }
    assert_eq!(hanging.len(), most);
    assert_eq!(bench.as_owner("bob").send(Message::user("done")).await.unwrap().state(), TaskState::Completed);
    let waiting = bench.as_owner("bob").send(Message::user("ask:what?")).await.unwrap();
    assert_eq!(bench.as_owner("bob").send(follow_up(&waiting.id, "done")).await.unwrap().state(), TaskState::Completed);
    // An ended turn frees its capacity, for a follow-up too.
    assert_eq!(ada.cancel(&hanging[0]).await.unwrap().state(), TaskState::Canceled);
    let asked = bench.send(Message::user("ask:what?")).await.unwrap();
    ada.send(Message::user("work hang")).await.unwrap();
    refused_at(bench.send(follow_up(&asked.id, "done")).await, "turns_per_owner");
}

/// Each turn replaces the same artifact: the size of the task is constant, and its log grows.
#[tokio::test(start_paused = true)]
async fn bytes_of_a_log_are_counted_after_a_task_has_left_memory() {
    for store in stores() {
        let mut limits = Limits::default();
        limits.task_bytes = 10_000;
        let bench = with_limits(store, limits, |_, out| async move {
            out.artifact("").id("a").text("x".repeat(1000)).await?;
            Ok(End::input_required("more?"))
        });
        let task = bench.send(Message::user("begin")).await.unwrap();
        let mut turns = 1;
        let error = loop {
            bench.wait_until_evicted().await;
            match bench.send(follow_up(&task.id, &"y".repeat(100))).await {
                Ok(task) if task.state() == TaskState::InputRequired => turns += 1,
                Ok(task) => break status_text(&task),
                Err(error) => break error.to_string(),
            }
        };
        assert!((6..9).contains(&turns), "{turns} turns");
        assert!(error.contains("a task has at most 10000 bytes"), "{error}");
    }
}

/// Bytes of uncommitted updates are bounded.
#[tokio::test(start_paused = true)]
async fn uncommitted_bytes_of_an_agent_are_bounded() {
    let gate = Gate::memory();
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    let bench = bench(gate.store(), move |_, out| {
        let count = Arc::clone(&count);
        async move {
            for _ in 0..20 {
                out.artifact("large").text("x".repeat(1 << 20)).await?;
                count.fetch_add(1, Ordering::SeqCst);
            }
            Ok(End::Completed(None))
        }
    });
    let sending = bench.spawn_send(Message::user("begin"));
    gate.wait_for_commit().await;
    run_ready_tasks().await;
    assert_eq!(sent.load(Ordering::SeqCst), 4);
    gate.open();
    let task = sending.await.unwrap().unwrap();
    assert_eq!((task.state(), task.artifacts.len()), (TaskState::Completed, 20));
}

#[tokio::test(start_paused = true)]
async fn task_states_follow_the_updates_of_the_agent() {
    use TaskState::*;
    let flows: [(&str, &[TaskState]); 8] = [
        ("done", &[Submitted, Completed]),
        ("work work:on work done:bye", &[Submitted, Working, Working, Working, Completed]),
        ("reject:no", &[Submitted, Rejected]),
        ("work reject:no", &[Submitted, Working, Rejected]),
        ("work fail", &[Submitted, Working, Failed]),
        ("auth:in work done", &[Submitted, AuthRequired, Working, Completed]),
        ("work ask:what", &[Submitted, Working, InputRequired]),
        ("sign:in", &[Submitted, AuthRequired]),
    ];
    for store in stores() {
        let bench = bench(store, scripted);
        for (text, expected) in flows {
            let mut events = bench.stream(Message::user(text)).await.unwrap();
            let seen = remaining_events(&mut events).await;
            assert_eq!(states(&seen), expected, "{text}");
            let task = bench.get(&task_id(&seen[0])).await.unwrap();
            assert_eq!(Some(&task.state()), expected.last());
            let time = task.status.unwrap().timestamp.unwrap();
            assert!(time.seconds > 1_700_000_000 && time.nanos % 1_000_000 == 0, "{time:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn history_is_in_conversation_order() {
    for store in stores() {
        let bench = bench(store, scripted);
        let asked = bench.send(Message::user("work:one ask:what")).await.unwrap();
        assert_eq!((asked.state(), status_text(&asked)), (TaskState::InputRequired, "what".into()));
        assert_eq!(history_texts(&asked), ["work:one ask:what", "one"]);
        let signed = bench.send(follow_up(&asked.id, "sign:in")).await.unwrap();
        assert_eq!((signed.state(), status_text(&signed)), (TaskState::AuthRequired, "in".into()));
        assert_eq!(history_texts(&signed), ["work:one ask:what", "one", "what", "sign:in"]);
        let done = bench.send(follow_up(&asked.id, "work:two done:bye")).await.unwrap();
        assert_eq!((done.state(), status_text(&done)), (TaskState::Completed, "bye".into()));
        let all = ["work:one ask:what", "one", "what", "sign:in", "in", "work:two done:bye", "two"];
        assert_eq!(history_texts(&done), all);
        let task = bench.get(&asked.id).await.unwrap();
        assert_eq!(task, done);
        for message in task.history.iter().chain(&task.status.unwrap().message) {
            assert_eq!((&message.task_id, &message.context_id), (&asked.id, &asked.context_id));
            assert!(!message.message_id.is_empty());
            let role = if message.text().contains(':') { Role::User } else { Role::Agent };
            assert_eq!(message.role(), role);
        }
        bench.wait_until_evicted().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_follow_ups_to_an_evicted_task_are_both_accepted() {
    for store in stores() {
        let bench = bench(Arc::clone(&store), scripted);
        for _ in 0..200 {
            let id = bench.send(Message::user("work ask:what")).await.unwrap().id;
            bench.wait_until_evicted().await;
            let (a, b) =
                (bench.spawn_send(follow_up(&id, "out:a ask:a")), bench.spawn_send(follow_up(&id, "out:b ask:b")));
            for (sent, text) in [(a, "out:a ask:a"), (b, "out:b ask:b")] {
                // Each reply contains the message of its own sender.
                let task = sent.await.unwrap().unwrap();
                assert!(history_texts(&task).iter().any(|entry| entry == text), "{task:?}");
            }
            let log = bench.log(&*store, &id).await;
            assert_dense(&log);
            assert_eq!(log.iter().filter(|event| event.mark().hidden).count(), 2);
        }
        bench.wait_until_evicted().await;
    }
}

#[tokio::test(start_paused = true)]
async fn each_sender_gets_the_task_of_its_own_turn() {
    for store in stores() {
        let (go, turns) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
        let (signal, counter) = (Arc::clone(&go), Arc::clone(&turns));
        let bench = bench(store, move |turn, out| {
            let (go, turns) = (Arc::clone(&signal), Arc::clone(&counter));
            async move {
                turns.fetch_add(1, Ordering::SeqCst);
                go.notified().await;
                let words: Vec<_> = turn.messages().map(Message::text).collect();
                assert!(words.len() <= 16);
                assert_eq!(turn.text(), words.join("\n"));
                assert_eq!(&turn.message().text(), words.last().unwrap());
                out.artifact(words.join("+")).last().text("x").await?;
                Ok(End::input_required("more?"))
            }
        });
        let id = bench.non_blocking().send(Message::user("0")).await.unwrap().id;
        let sends: Vec<_> = (1..=17).map(|n| bench.spawn_send(follow_up(&id, &n.to_string()))).collect();
        run_ready_tasks().await;
        let mut streamed = bench.stream(follow_up(&id, "s")).await.unwrap();
        for n in 0..3 {
            while turns.load(Ordering::SeqCst) <= n {
                yield_now().await;
            }
            go.notify_one();
        }
        // Turn 1 had "0", turn 2 the first sixteen pending messages, turn 3 the remaining ones.
        for (n, sent) in sends.into_iter().enumerate() {
            let task = sent.await.unwrap().unwrap();
            let names: Vec<_> = task.artifacts.iter().map(|artifact| artifact.name.as_str()).collect();
            let second = (1..=16).map(|n| n.to_string()).collect::<Vec<_>>().join("+");
            let all = ["0", second.as_str(), "17+s"];
            assert_eq!(names, all[..if n < 16 { 2 } else { 3 }], "{n}");
            assert_eq!(task.state(), TaskState::InputRequired);
        }
        let seen = remaining_events(&mut streamed).await;
        assert_eq!(states(&seen).last(), Some(&TaskState::InputRequired));
        assert_eq!(seen.iter().filter(|event| event.ends() == Ends::Turn).count(), 3);
        drop(streamed);
        bench.wait_until_evicted().await;
    }
}

/// The turn starts after its message was accepted; messages that arrive in between belong to the next turn.
#[tokio::test(start_paused = true)]
async fn first_turn_has_only_the_first_message() {
    let bench = bench(Arc::new(Memory::default()), |turn: Turn, out: Updates| async move {
        let history: Vec<_> = turn.history().map(Message::text).collect();
        out.artifact(turn.text()).last().text(history.join(",")).await?;
        Ok(End::input_required("more?"))
    });
    let non_blocking = bench.non_blocking();
    let mut first = Box::pin(non_blocking.send(Message::user("a")));
    assert!(poll!(&mut first).is_pending());
    // The turn has not been polled.
    let id = bench.states_by_id().await.into_keys().next().unwrap();
    let b = bench.send(follow_up(&id, "b")).await.unwrap();
    let c = bench.send(follow_up(&id, "c")).await.unwrap();
    let delivered = |task: &Task| task.artifacts.iter().map(|artifact| artifact.name.clone()).collect::<Vec<_>>();
    assert_eq!(
        (delivered(&b), delivered(&c)),
        (vec!["a".into(), "b".into()], vec!["a".into(), "b".into(), "c".into()])
    );
    // The history of a turn has everything before it, and not the messages that it answers.
    let before: Vec<_> = c.artifacts.iter().filter_map(|artifact| artifact.parts[0].as_text()).collect();
    assert_eq!(before[0], "b", "`b` was accepted before the turn started");
    assert_eq!(before[1..], ["a,more?", "a,b,more?,more?"]);
}

/// Agent with one failure mode per message text.
struct FaultyAgent;

struct PanicsOnDrop;

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

impl Agent for FaultyAgent {
    fn run(&self, turn: Turn, out: Updates) -> impl Future<Output = Result<End, agent::Error>> + Send {
        assert!(turn.text() != "early", "as told");
        async move {
            match turn.text() {
                "bomb" => {
                    let _guard = PanicsOnDrop;
                    std::future::pending().await
                }
                "leak" => {
                    tokio::spawn(async move {
                        sleep_ms(1000).await;
                        assert!(out.working().await.is_err());
                        assert!(out.artifact("late").text("x").await.is_err());
                        assert!(out.save(&1).await.is_err());
                    });
                    Ok(End::Completed(None))
                }
                _ => scripted(turn, out).await,
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn turn_of_a_faulty_agent_ends_once() {
    for store in stores() {
        let mut limits = Limits::default();
        limits.turn_deadline = Duration::from_mins(1);
        let bench = with_agent(Arc::clone(&store), limits, FaultyAgent);
        for (text, end, prefix) in [
            ("pass:150 reply:late", TaskState::Completed, "late"),
            ("work reply:late", TaskState::Completed, "late"),
            ("panic:as-told", TaskState::Failed, "Agent execution failed (panic): error id "),
            ("work panic:as-told", TaskState::Failed, "Agent execution failed (panic): error id "),
            ("early", TaskState::Failed, "Agent execution failed (panic): error id "),
            ("fail:secret", TaskState::Failed, "Agent execution failed: error id "),
            ("work say:sorry", TaskState::Failed, "sorry"),
            ("hang", TaskState::Failed, "Agent execution failed (deadline): error id "),
            ("work bomb", TaskState::Failed, "what is bomb?"),
            ("bomb", TaskState::Failed, "Agent execution failed (deadline): error id "),
            // AUTH_REQUIRED does not end the turn.
            ("auth:in pass:70 out:x", TaskState::Completed, ""),
            ("leak", TaskState::Completed, ""),
            ("done", TaskState::Completed, ""),
        ] {
            let mut events = bench.stream(Message::user(text)).await.unwrap();
            let seen = remaining_events(&mut events).await;
            assert_eq!(states(&seen).last(), Some(&end), "{text}");
            assert_eq!(seen.iter().filter(|event| event.ends() != Ends::Nothing).count(), 1, "{text}");
            let id = task_id(&seen[0]);
            let task = bench.get(&id).await.unwrap();
            let status = status_text(&task);
            let rest = status.strip_prefix(prefix).unwrap_or_else(|| panic!("{text}: {status}"));
            assert!(!status.contains("secret") && !status.contains("as-told"), "{status}");
            assert_eq!(rest.len(), if prefix.ends_with("id ") { 36 } else { 0 }, "{status}");
            assert_dense(&bench.log(&*store, &id).await);
            // A blocking send has the same outcome, except that it returns at AUTH_REQUIRED.
            let end = if text.starts_with("auth") { TaskState::AuthRequired } else { end };
            assert_eq!(bench.send(Message::user(text)).await.unwrap().state(), end, "{text}");
        }
        sleep_ms(2000).await;
        bench.wait_until_evicted().await;
    }
}

#[tokio::test(start_paused = true)]
async fn agent_may_reply_with_a_message_before_a_task_exists() {
    for store in stores() {
        let bench = bench(store, scripted);
        let sent = Message { context_id: "c-1".into(), ..Message::user("reply:hello") };
        for message in [sent.clone(), Message::user("pass:90 reply:hello")] {
            let Answer::Message(reply) = bench.send_payload(message.clone()).await.unwrap() else { panic!("a task") };
            assert_eq!((reply.text(), reply.role(), reply.task_id.as_str()), ("hello".into(), Role::Agent, ""));
            assert!(!reply.message_id.is_empty() && !reply.context_id.is_empty());
            if !message.context_id.is_empty() {
                assert_eq!(reply.context_id, "c-1");
            }
            let mut events = bench.stream(message).await.unwrap();
            let seen = remaining_events(&mut events).await;
            let [Some(Payload::Message(streamed))] = seen.iter().map(Event::payload).collect::<Vec<_>>()[..] else {
                panic!("{seen:?}")
            };
            assert_eq!((streamed.text(), streamed.task_id.as_str()), ("hello".into(), ""));
            assert_eq!(seen[0].cursor(), None);
        }
        assert_eq!(bench.states_by_id().await.len(), 0);
        // A send that returns immediately has created a task by then.
        let id = bench.non_blocking().send(Message::user("reply:hello")).await.unwrap().id;
        bench.wait_until_evicted().await;
        let task = bench.get(&id).await.unwrap();
        assert_eq!((task.state(), status_text(&task)), (TaskState::Completed, "hello".into()));
    }
}

#[tokio::test(start_paused = true)]
async fn pending_messages_of_a_task_are_bounded() {
    let mut limits = Limits::default();
    limits.queued_messages = 3;
    let go = Arc::new(Notify::new());
    let notified = Arc::clone(&go);
    let bench = with_limits(Arc::new(Memory::default()), limits, move |turn, out| {
        let go = Arc::clone(&notified);
        async move {
            go.notified().await;
            scripted(turn, out).await
        }
    });
    let id = bench.non_blocking().send(Message::user("done")).await.unwrap().id;
    let mut subscribed = bench.subscribe(&id).await.unwrap();
    let waiting: Vec<_> = (0..3).map(|_| bench.spawn_send(follow_up(&id, "done"))).collect();
    run_ready_tasks().await;
    let refused = bench.send(follow_up(&id, "done")).await.unwrap_err();
    assert_eq!((refused.kind(), refused.retry_after_seconds()), (ErrorKind::ResourceExhausted, Some(1)));
    assert!(refused.to_string().contains("3 messages"), "{refused}");
    assert_eq!(error_kind(bench.stream(follow_up(&id, "done")).await), ErrorKind::ResourceExhausted);
    go.notify_one();
    // The task ends first: the messages are in its history, and nothing follows its end.
    for sent in waiting {
        let task = sent.await.unwrap().unwrap();
        assert_eq!((task.state(), history_texts(&task).len()), (TaskState::Completed, 4));
    }
    // Still in memory with a full queue, and terminal.
    assert_eq!(error_kind(bench.send(follow_up(&id, "done")).await), ErrorKind::TaskEnded);
    assert_eq!(states(&remaining_events(&mut subscribed).await).last(), Some(&TaskState::Completed));
    drop(subscribed);
    bench.wait_until_evicted().await;
}

/// A task that can't record the begin of its turn, because it has its maximum number of events, leaves the queue too.
#[tokio::test(start_paused = true)]
async fn queued_turn_at_its_event_limit_releases_its_place() {
    for store in stores() {
        let mut limits = Limits::default();
        (limits.turns, limits.events) = (1, 2);
        let bench = with_limits(store, limits, scripted);
        let running = bench.non_blocking().send(Message::user("work hang")).await.unwrap().id;
        let queued = bench.non_blocking().send(Message::user("out:x done")).await.unwrap().id;
        bench.non_blocking().send(follow_up(&queued, "more")).await.unwrap();
        let last = bench.spawn_send(Message::user("done"));
        bench.cancel(&running).await.unwrap();
        let last = timeout(Duration::from_mins(1), last).await.expect("the queue has stopped").unwrap().unwrap();
        assert_eq!((last.state(), bench.state(&queued).await), (TaskState::Completed, TaskState::Failed));
        bench.wait_until_evicted().await;
    }
}

/// A turn that waits for the one before it gets the task at the end of that turn, not at an authorization in between.
#[tokio::test(start_paused = true)]
async fn turn_after_an_authorization_begins_with_the_last_status() {
    for store in stores() {
        let (go, seen) = (Arc::new(Notify::new()), Arc::new(parking_lot::Mutex::new(None)));
        let (notified, recorded) = (Arc::clone(&go), Arc::clone(&seen));
        let bench = bench(store, move |turn: Turn, out: Updates| {
            let (go, seen) = (Arc::clone(&notified), Arc::clone(&recorded));
            async move {
                if turn.text() == "next" {
                    let task = turn.task();
                    // The question moves to the history with the status WORKING of this turn, which may be durable or not.
                    let is_asked = history_texts(task).iter().chain([&status_text(task)]).any(|text| text == "what?");
                    *seen.lock() = Some((task.state(), is_asked, task.artifacts.len()));
                    return Ok(End::Completed(None));
                }
                out.working().await?;
                go.notified().await;
                out.auth_required(Message::agent("sign")).await?;
                out.artifact("out").last().text("x").await?;
                Ok(End::input_required("what?"))
            }
        });
        let id = bench.non_blocking().send(Message::user("first")).await.unwrap().id;
        let next = bench.spawn_send(follow_up(&id, "next"));
        run_ready_tasks().await;
        go.notify_one();
        assert_eq!(next.await.unwrap().unwrap().state(), TaskState::Completed);
        assert_eq!(seen.lock().take(), Some((TaskState::InputRequired, true, 1)));
    }
}

/// The limit concerns messages that wait for a busy agent: with zero, an idle task still accepts one.
#[tokio::test(start_paused = true)]
async fn idle_task_accepts_a_message_even_if_none_may_wait() {
    let mut limits = Limits::default();
    limits.queued_messages = 0;
    let bench = with_limits(Arc::new(Memory::default()), limits, scripted);
    let id = bench.send(Message::user("ask:what")).await.unwrap().id;
    let task = bench.non_blocking().send(follow_up(&id, "pass:50 ask:more")).await.unwrap();
    assert_eq!(history_texts(&task), ["ask:what", "what", "pass:50 ask:more"]);
    assert_eq!(error_kind(bench.send(follow_up(&id, "done")).await), ErrorKind::ResourceExhausted);
    sleep_ms(100).await;
    assert_eq!(bench.send(follow_up(&id, "done")).await.unwrap().state(), TaskState::Completed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disconnected_caller_does_not_cancel_its_turn() {
    for store in stores() {
        let bench = bench(store, |turn: Turn, out: Updates| async move {
            out.working().await?;
            for _ in 0..turn.text().len() {
                yield_now().await;
            }
            out.artifact("answer").last().text("x").await?;
            Ok(End::Completed(None))
        });
        for n in 0..1000 {
            let text = "x".repeat(n % 50);
            let mut events = bench.stream(Message::user(text.clone())).await.unwrap();
            next_event(&mut events).await;
            drop(events);
            // Accepted by its first poll, then dropped.
            drop(bench.send(Message::user(text)).now_or_never());
        }
        bench.wait_until_evicted().await;
        let request = ListTasksRequest { status: TaskState::Completed.into(), ..Default::default() };
        let page = bench.list(request).await.unwrap();
        assert_eq!(page.total_size, 2000);
        let task = bench.get(&page.tasks[0].id).await.unwrap();
        assert_eq!(task.artifacts.len(), 1);
    }
}

/// Dropped subscriptions leave no waker with a task that stays in memory.
#[tokio::test(start_paused = true)]
async fn dropped_subscriptions_leave_nothing_behind() {
    let bench = bench(Arc::new(Memory::default()), scripted);
    let id = bench.send(Message::user("ask:what")).await.unwrap().id;
    let mut stays = bench.subscribe(&id).await.unwrap();
    assert_eq!(ready_events(&mut stays).len(), 1);
    let mut others = Vec::new();
    for n in 0..1000 {
        let mut events = bench.subscribe(&id).await.unwrap();
        next_event(&mut events).await;
        assert!(events.next().now_or_never().is_none());
        if n % 100 == 0 {
            others.push(events);
        }
    }
    assert_eq!(bench.service.live_tasks(), 1);
    bench.send(follow_up(&id, "done")).await.unwrap();
    others.push(stays);
    for mut events in others {
        assert_eq!(states(&remaining_events(&mut events).await), [TaskState::Working, TaskState::Completed]);
    }
    bench.wait_until_evicted().await;
}
