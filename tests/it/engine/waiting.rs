//! Blocking sends: wait limits, caller deadlines, idle timeouts, and the reply when a wait ends early.

use std::{sync::Arc, time::Duration};

use a2a_service::{
    agent::{End, Turn, Updates},
    error::ErrorKind,
    pb::v1::{ListTasksRequest, Message, TaskState, send_message_response::Payload as Answer},
    service::Limits,
    store::{Store, memory::Memory},
};
use futures::StreamExt as _;
use tokio::time::Instant;

use super::support::*;
use crate::gate::Gate;

fn stores() -> [Arc<dyn Store>; 2] {
    [Arc::new(Memory::default()), Gate::opened()]
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[tokio::test(start_paused = true)]
async fn blocking_send_returns_at_auth_required_while_the_turn_continues() {
    for store in stores() {
        let bench = bench(store, scripted);
        let started = Instant::now();
        let task = bench.send(Message::user("work auth:sign-here pass:3000 out:x done")).await.unwrap();
        assert_eq!((task.state(), status_text(&task)), (TaskState::AuthRequired, "sign-here".into()));
        assert_eq!(started.elapsed(), ms(0));
        let mut events = bench.subscribe(&task.id).await.unwrap();
        // A message that arrives now is for the next turn; there is none, since this turn ends the task.
        let late = bench.spawn_send(follow_up(&task.id, "done"));
        let seen = remaining_events(&mut events).await;
        assert_eq!(states(&seen), [TaskState::AuthRequired, TaskState::Completed]);
        assert_eq!(started.elapsed(), ms(3000));
        assert_eq!(late.await.unwrap().unwrap().state(), TaskState::Completed);
        // A stream continues too.
        let mut events = bench.stream(Message::user("auth:sign-here work done")).await.unwrap();
        let all = [TaskState::Submitted, TaskState::AuthRequired, TaskState::Working, TaskState::Completed];
        assert_eq!(states(&remaining_events(&mut events).await), all);
    }
}

#[tokio::test(start_paused = true)]
async fn blocking_send_waits_for_the_end_of_its_turn_however_long_that_takes() {
    for store in stores() {
        let bench = bench(store, scripted);
        let started = Instant::now();
        let task = bench.send(Message::user("work pass:3500000 done")).await.unwrap();
        assert_eq!((task.state(), started.elapsed()), (TaskState::Completed, ms(3_500_000)));
        // The turn deadline bounds every wait.
        let task = bench.send(Message::user("work hang")).await.unwrap();
        assert_eq!((task.state(), started.elapsed()), (TaskState::Failed, ms(3_500_000 + 3_600_000)));
    }
}

#[tokio::test(start_paused = true)]
async fn wait_limit_returns_the_unfinished_task() {
    for store in stores() {
        let mut limits = Limits::default();
        limits.send_timeout = Some(ms(50_000));
        let bench = with_limits(store, limits, scripted);
        let started = Instant::now();
        let task = bench.send(Message::user("work pass:60000 done")).await.unwrap();
        assert_eq!((task.state(), started.elapsed()), (TaskState::Working, ms(50_000)));
        // The same for a follow-up that is pending.
        let task = bench.send(follow_up(&task.id, "also")).await.unwrap();
        assert_eq!((task.state(), started.elapsed()), (TaskState::Completed, ms(60_000)));
        // Streams are not bounded by `wait`.
        let mut events = bench.stream(Message::user("work pass:100000 done")).await.unwrap();
        assert_eq!(states(&remaining_events(&mut events).await).last(), Some(&TaskState::Completed));
    }
}

#[tokio::test(start_paused = true)]
async fn wait_shorter_than_task_creation_still_returns_a_task() {
    for store in stores() {
        let mut limits = Limits::default();
        limits.send_timeout = Some(ms(30));
        let bench = with_limits(store, limits, scripted);
        let started = Instant::now();
        let task = bench.send(Message::user("pass:60 reply:late")).await.unwrap();
        assert_eq!((task.state(), started.elapsed()), (TaskState::Submitted, ms(30)));
        let mut events = bench.subscribe(&task.id).await.unwrap();
        assert_eq!(states(&remaining_events(&mut events).await), [TaskState::Submitted, TaskState::Completed]);
        assert_eq!((started.elapsed(), status_text(&bench.get(&task.id).await.unwrap())), (ms(60), "late".into()));
        // If both happen in the same instant, the reply is one of the two, without an error or a longer wait.
        for _ in 0..20 {
            let started = Instant::now();
            match bench.send_payload(Message::user("pass:30 reply:now")).await.unwrap() {
                Answer::Task(task) => assert!([TaskState::Submitted, TaskState::Completed].contains(&task.state())),
                Answer::Message(message) => assert_eq!(message.text(), "now"),
            }
            assert_eq!(started.elapsed(), ms(30));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn task_is_created_after_100_ms_without_updates() {
    for store in stores() {
        let bench = bench(store, scripted);
        let started = Instant::now();
        let mut events = bench.stream(Message::user("pass:5000 done")).await.unwrap();
        assert_eq!(state_in(&next_event(&mut events).await), Some(TaskState::Submitted));
        assert_eq!(started.elapsed(), ms(100));
        assert_eq!(state_in(&next_event(&mut events).await), Some(TaskState::Completed));
        assert_eq!(started.elapsed(), ms(5000));
    }
}

#[tokio::test(start_paused = true)]
async fn returning_immediately_gets_a_task_at_once() {
    for store in stores() {
        let bench = bench(store, scripted);
        let (non_blocking, started) = (bench.non_blocking(), Instant::now());
        let task = non_blocking.send(Message::user("pass:50 ask:what")).await.unwrap();
        assert_eq!((task.state(), history_texts(&task).len()), (TaskState::Submitted, 1));
        let continued = non_blocking.send(follow_up(&task.id, "pass:50 done")).await.unwrap();
        assert_eq!((continued.state(), history_texts(&continued).len()), (TaskState::Submitted, 2));
        assert_eq!(started.elapsed(), ms(0));
        let mut events = bench.subscribe(&task.id).await.unwrap();
        let seen = states(&remaining_events(&mut events).await);
        // The second message arrived before the question and answers it.
        let all = [TaskState::Submitted, TaskState::InputRequired, TaskState::Working, TaskState::Completed];
        assert_eq!(seen, all);
        assert_eq!(started.elapsed(), ms(100));
        // A follow-up to a task that waits for input.
        let task = bench.send(Message::user("ask:what")).await.unwrap();
        let task = non_blocking.send(follow_up(&task.id, "hang")).await.unwrap();
        assert_eq!((task.state(), started.elapsed()), (TaskState::Working, ms(100)));
        assert_eq!(history_texts(&task), ["ask:what", "what", "hang"]);
    }
}

#[tokio::test(start_paused = true)]
async fn accepted_follow_up_sets_an_interrupted_task_to_working() {
    use TaskState::*;
    for store in stores() {
        for (question, interrupted) in [("ask:what", InputRequired), ("sign:here", AuthRequired)] {
            let bench = bench(Arc::clone(&store), |turn: Turn, out: Updates| async move {
                // The agent sees the state that the message answers.
                out.save(&format!("{:?}", turn.task().state())).await?;
                scripted(turn, out).await
            });
            let id = bench.send(Message::user(question)).await.unwrap().id;
            let mut subscribed = bench.subscribe(&id).await.unwrap();
            assert_eq!(states(&ready_events(&mut subscribed)), [interrupted]);
            let accepted = bench.non_blocking().send(follow_up(&id, "pass:50 done")).await.unwrap();
            assert_eq!((accepted.state(), bench.state(&id).await), (Working, Working));
            assert!(accepted.status.unwrap().message.is_none(), "the question is in the history");
            let seen = remaining_events(&mut subscribed).await;
            assert_eq!(states(&seen), [Working, Completed]);
            assert_dense(&bench.log(&*store, &id).await);
        }
        let bench = bench(Arc::clone(&store), scripted);
        // The stream of a follow-up begins with the task as accepted; a plain WORKING is not repeated.
        for (text, expected) in [
            ("work done", vec![Working, Completed]),
            ("work:on done", vec![Working, Working, Completed]),
            ("out:x work done", vec![Working, Working, Completed]),
        ] {
            let id = bench.send(Message::user("ask:what")).await.unwrap().id;
            let mut events = bench.stream(follow_up(&id, text)).await.unwrap();
            let seen = remaining_events(&mut events).await;
            assert_eq!(states(&seen), expected, "{text}");
            assert_eq!(history_texts(task_in(&seen[0])), ["ask:what", "what", text]);
        }
        bench.wait_until_evicted().await;
    }
}

#[tokio::test(start_paused = true)]
async fn agent_sees_the_interrupted_state_that_its_turn_answers() {
    let run = |turn: Turn, out: Updates| async move {
        let state = format!("{:?}", turn.task().state());
        out.artifact(turn.text()).last().text(state).await?;
        Ok(End::input_required("more?"))
    };
    for store in stores() {
        let bench = bench(store, run);
        let task = bench.send(Message::user("first")).await.unwrap();
        let mut streamed = bench.stream(follow_up(&task.id, "streamed")).await.unwrap();
        remaining_events(&mut streamed).await;
        bench.non_blocking().send(follow_up(&task.id, "non_blocking")).await.unwrap();
        let mut keyed = bench.client.clone();
        keyed.call.idempotency_key = Some("k".to_owned());
        let task = keyed.send(follow_up(&task.id, "keyed")).await.unwrap();
        let observed = |name: &str| {
            let artifact = task.artifacts.iter().find(|artifact| artifact.name == name).unwrap();
            artifact.parts[0].as_text().unwrap().to_owned()
        };
        assert_eq!(observed("first"), "Submitted");
        for name in ["streamed", "non_blocking", "keyed"] {
            assert_eq!(observed(name), "InputRequired", "{name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn reply_to_a_non_blocking_send_includes_the_first_update() {
    for store in stores() {
        let bench = bench(store, scripted);
        let non_blocking = bench.non_blocking();
        for (text, state) in [("work hang", TaskState::Working), ("ask:what", TaskState::InputRequired)] {
            let task = non_blocking.send(Message::user(text)).await.unwrap();
            assert_eq!(bench.state(&task.id).await, state, "{text}");
        }
        let started = Instant::now();
        let silent = non_blocking.send(Message::user("hang")).await.unwrap();
        assert_eq!((silent.state(), started.elapsed()), (TaskState::Submitted, ms(0)));
    }
}

#[tokio::test(start_paused = true)]
async fn deadline_of_the_caller_bounds_the_wait() {
    for store in stores() {
        let bench = bench(store, scripted);
        for (time, waited, state) in [(2000, 1900, TaskState::Working), (50, 45, TaskState::Submitted)] {
            let started = Instant::now();
            let text = if time > 1000 { "work hang" } else { "hang" };
            let task = bench.with_deadline(ms(time)).send(Message::user(text)).await.unwrap();
            assert_eq!((task.state(), started.elapsed()), (state, ms(waited)));
        }
    }
    // A long deadline does not extend the wait limit of the server.
    for store in stores() {
        let mut limits = Limits::default();
        limits.send_timeout = Some(ms(50_000));
        let bench = with_limits(store, limits, scripted);
        let started = Instant::now();
        bench.with_deadline(Duration::from_secs(1000)).send(Message::user("hang")).await.unwrap();
        assert_eq!(started.elapsed(), ms(50_000));
    }
}

#[tokio::test(start_paused = true)]
async fn expired_deadline_rejects_every_call() {
    let bench = bench(Arc::new(Memory::default()), scripted);
    let id = bench.send(Message::user("ask:what")).await.unwrap().id;
    let late = bench.with_deadline(ms(0));
    assert_eq!(error_kind(late.send(Message::user("done")).await), ErrorKind::DeadlineExceeded);
    assert_eq!(error_kind(late.stream(follow_up(&id, "done")).await), ErrorKind::DeadlineExceeded);
    assert_eq!(error_kind(late.get(&id).await), ErrorKind::DeadlineExceeded);
    assert_eq!(error_kind(late.list(ListTasksRequest::default()).await), ErrorKind::DeadlineExceeded);
    assert_eq!(error_kind(late.cancel(&id).await), ErrorKind::DeadlineExceeded);
    assert_eq!(error_kind(late.subscribe(&id).await), ErrorKind::DeadlineExceeded);
    assert_eq!(bench.states_by_id().await.into_values().collect::<Vec<_>>(), [TaskState::InputRequired]);
}

/// Sends to a store that does not respond fail at the deadline of the caller, or after 5 s; the messages are kept.
#[tokio::test(start_paused = true)]
async fn wait_for_an_unresponsive_store_is_bounded() {
    let gate = Gate::memory();
    let bench = bench(gate.store(), scripted);
    let (brief, non_blocking) = (bench.with_deadline(ms(3000)), bench.with_deadline(ms(3000)).non_blocking());
    let started = Instant::now();
    let unbounded = bench.spawn_send(Message::user("ask:what"));
    for sent in [brief.spawn_send(Message::user("ask:what")), non_blocking.spawn_send(Message::user("ask:what"))] {
        assert_eq!(error_kind(sent.await.unwrap()), ErrorKind::Unavailable);
        assert_eq!(started.elapsed(), ms(3000));
    }
    // New work is rejected while commits are not answered.
    let refused = bench.send(Message::user("ask:what")).await.unwrap_err();
    assert_eq!((refused.kind(), refused.retry_after_seconds()), (ErrorKind::Unavailable, Some(1)));
    assert_eq!(started.elapsed(), ms(3000));
    assert_eq!(error_kind(unbounded.await.unwrap()), ErrorKind::Unavailable);
    assert_eq!(started.elapsed(), ms(5000));
    gate.open();
    run_ready_tasks().await;
    assert_eq!(bench.states_by_id().await.into_values().collect::<Vec<_>>(), [TaskState::InputRequired; 3]);
    bench.wait_until_evicted().await;
}

/// A hanging agent fails at the idle timeout; time that it waits for its caller does not count.
#[tokio::test(start_paused = true)]
async fn silent_agent_fails_at_the_idle_timeout() {
    for store in stores() {
        let mut limits = Limits::default();
        limits.turn_idle_timeout = Duration::from_secs(10);
        limits.turn_deadline = Duration::from_mins(1);
        let bench = with_limits(store, limits, scripted);
        for (text, state, waited, reason) in [
            ("hang", TaskState::Failed, 10_000, "(idle)"),
            ("work pass:9000 work pass:9000 out:x pass:9000 hang", TaskState::Failed, 28_000, "(idle)"),
            ("work pass:9999 work done", TaskState::Completed, 9999, ""),
            // Updates do not extend the turn deadline.
            (&"work pass:9000 ".repeat(7), TaskState::Failed, 50_000, "(deadline)"),
        ] {
            let started = Instant::now();
            let task = bench.send(Message::user(text)).await.unwrap();
            let task = if task.state().is_terminal() {
                task
            } else {
                let mut events = bench.subscribe(&task.id).await.unwrap();
                remaining_events(&mut events).await;
                bench.get(&task.id).await.unwrap()
            };
            let waited = if reason == "(deadline)" { ms(60_000) } else { ms(waited) };
            assert_eq!((task.state(), started.elapsed()), (state, waited), "{text}");
            assert!(status_text(&task).contains(reason), "{}", status_text(&task));
        }
        // In a later turn too, whatever the state before it.
        let id = bench.send(Message::user("ask:what")).await.unwrap().id;
        let started = Instant::now();
        let task = bench.send(follow_up(&id, "hang")).await.unwrap();
        assert_eq!((task.state(), started.elapsed()), (TaskState::Failed, ms(10_000)));
        // The idle timeout applies again after the agent has stopped waiting for its caller.
        let task = bench.send(Message::user("work auth:sign pass:30000 work pass:9000 done")).await.unwrap();
        assert_eq!(task.state(), TaskState::AuthRequired);
        let mut events = bench.subscribe(&task.id).await.unwrap();
        assert_eq!(states(&remaining_events(&mut events).await).last(), Some(&TaskState::Completed));
    }
}

/// A canceled agent has its grace period, and its task is not failed for a timeout.
#[tokio::test(start_paused = true)]
async fn timeout_within_the_grace_period_of_a_cancel_does_not_fail_the_task() {
    for (idle, deadline, canceled_after) in [(10, 60, 14_000), (0, 10, 10_000)] {
        let mut limits = Limits::default();
        limits.turn_idle_timeout = Duration::from_secs(idle);
        limits.turn_deadline = Duration::from_secs(deadline);
        limits.cancel_grace = Duration::from_secs(5);
        let bench = with_limits(Arc::new(Memory::default()), limits, scripted);
        let started = Instant::now();
        let id = bench.non_blocking().send(Message::user("work hang")).await.unwrap().id;
        sleep_ms(9000).await;
        let task = bench.cancel(&id).await.unwrap();
        assert_eq!((task.state(), started.elapsed()), (TaskState::Canceled, ms(canceled_after)));
    }
}

/// Time that an agent waits for a slow store does not count as idle.
#[tokio::test(start_paused = true)]
async fn agent_waiting_for_the_store_is_not_idle() {
    let gate = Gate::memory();
    let mut limits = Limits::default();
    limits.turn_idle_timeout = Duration::from_secs(1);
    let bench = with_limits(gate.store(), limits, |_: Turn, out: Updates| async move {
        for n in 0..200 {
            out.artifact(n.to_string()).text("x").await?;
        }
        Ok(End::Completed(None))
    });
    let mut streamed = bench.stream(Message::user("go")).await.unwrap();
    gate.wait_for_commit().await;
    sleep_ms(30_000).await;
    gate.open();
    assert_eq!(states(&remaining_events(&mut streamed).await).last(), Some(&TaskState::Completed));
}

#[tokio::test(start_paused = true)]
async fn stream_cut_at_its_maximum_age_can_be_resumed() {
    for store in stores() {
        let mut limits = Limits::default();
        limits.stream_max_age = Duration::from_secs(10);
        let bench = with_limits(store, limits, scripted);
        let started = Instant::now();
        let words = "work pass:4000 ".repeat(9);
        let mut events = bench.stream(Message::user(words + "done")).await.unwrap();
        let (mut seen, mut streams) = (Vec::new(), 1);
        loop {
            match events.next().await {
                Some(Ok(event)) => seen.push(event),
                Some(Err(status)) => {
                    assert_eq!(a2a_service::error::Error::from(status).kind(), ErrorKind::Unavailable);
                    assert_eq!(started.elapsed(), ms(10_000 * streams));
                    assert!(events.next().await.is_none());
                    let last = seen.last().unwrap();
                    events = bench.resume(&task_id(last), last.cursor()).await.unwrap();
                    streams += 1;
                }
                None => break,
            }
        }
        assert_dense(&seen);
        assert_eq!((streams, states(&seen).last()), (4, Some(&TaskState::Completed)));
        // A stream without events is cut as well, and the idle task is evicted afterwards.
        let id = bench.send(Message::user("ask:what")).await.unwrap().id;
        events = bench.subscribe(&id).await.unwrap();
        next_event(&mut events).await;
        assert!(events.next().await.unwrap().is_err());
        drop(events);
        bench.wait_until_evicted().await;
    }
}
