//! How long a caller waits, and what they get when they have waited for long enough.

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
async fn who_has_to_authorise_is_told_while_the_agent_goes_on() {
    for store in stores() {
        let bench = bench(store, script);
        let started = Instant::now();
        let task = bench.send(Message::user("work auth:sign-here pass:3000 out:x done")).await.unwrap();
        assert_eq!((task.state(), said(&task)), (TaskState::AuthRequired, "sign-here".into()));
        assert_eq!(started.elapsed(), ms(0));
        let mut events = bench.subscribe(&task.id).await.unwrap();
        // A message that comes now is for the next turn; there is none, since this one ends the task.
        let late = bench.sending(to(&task.id, "done"));
        let seen = rest(&mut events).await;
        assert_eq!(states(&seen), [TaskState::AuthRequired, TaskState::Completed]);
        assert_eq!(started.elapsed(), ms(3000));
        assert_eq!(late.await.unwrap().unwrap().state(), TaskState::Completed);
        // A stream goes on too.
        let mut events = bench.stream(Message::user("auth:sign-here work done")).await.unwrap();
        let all = [TaskState::Submitted, TaskState::AuthRequired, TaskState::Working, TaskState::Completed];
        assert_eq!(states(&rest(&mut events).await), all);
    }
}

#[tokio::test(start_paused = true)]
async fn blocking_send_waits_for_the_end_of_its_turn_however_long_that_takes() {
    for store in stores() {
        let bench = bench(store, script);
        let started = Instant::now();
        let task = bench.send(Message::user("work pass:3500000 done")).await.unwrap();
        assert_eq!((task.state(), started.elapsed()), (TaskState::Completed, ms(3_500_000)));
        // The deadline of the turn is the last resort.
        let task = bench.send(Message::user("work hang")).await.unwrap();
        assert_eq!((task.state(), started.elapsed()), (TaskState::Failed, ms(3_500_000 + 3_600_000)));
    }
}

#[tokio::test(start_paused = true)]
async fn who_has_waited_for_long_enough_gets_the_task_as_it_is() {
    for store in stores() {
        let mut limits = Limits::default();
        limits.wait = Some(ms(50_000));
        let bench = limited(store, limits, script);
        let started = Instant::now();
        let task = bench.send(Message::user("work pass:60000 done")).await.unwrap();
        assert_eq!((task.state(), started.elapsed()), (TaskState::Working, ms(50_000)));
        // And so does who sends a message that nobody takes in the meantime.
        let task = bench.send(to(&task.id, "also")).await.unwrap();
        assert_eq!((task.state(), started.elapsed()), (TaskState::Completed, ms(60_000)));
        // A stream has no such end.
        let mut events = bench.stream(Message::user("work pass:100000 done")).await.unwrap();
        assert_eq!(states(&rest(&mut events).await).last(), Some(&TaskState::Completed));
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_less_than_a_task_takes_to_be_one_gets_a_task() {
    for store in stores() {
        let mut limits = Limits::default();
        limits.wait = Some(ms(30));
        let bench = limited(store, limits, script);
        let started = Instant::now();
        let task = bench.send(Message::user("pass:60 reply:late")).await.unwrap();
        assert_eq!((task.state(), started.elapsed()), (TaskState::Submitted, ms(30)));
        let mut events = bench.subscribe(&task.id).await.unwrap();
        assert_eq!(states(&rest(&mut events).await), [TaskState::Submitted, TaskState::Completed]);
        assert_eq!((started.elapsed(), said(&bench.get(&task.id).await.unwrap())), (ms(60), "late".into()));
        // At the same moment, it is one of the two, and neither an error nor a wait.
        for _ in 0..20 {
            let started = Instant::now();
            match bench.answer(Message::user("pass:30 reply:now")).await.unwrap() {
                Answer::Task(it) => assert!([TaskState::Submitted, TaskState::Completed].contains(&it.state())),
                Answer::Message(it) => assert_eq!(it.text(), "now"),
            }
            assert_eq!(started.elapsed(), ms(30));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_agent_has_a_task_after_a_moment() {
    for store in stores() {
        let bench = bench(store, script);
        let started = Instant::now();
        let mut events = bench.stream(Message::user("pass:5000 done")).await.unwrap();
        assert_eq!(state_of(&next(&mut events).await), Some(TaskState::Submitted));
        assert_eq!(started.elapsed(), ms(100));
        assert_eq!(state_of(&next(&mut events).await), Some(TaskState::Completed));
        assert_eq!(started.elapsed(), ms(5000));
    }
}

#[tokio::test(start_paused = true)]
async fn who_does_not_wait_gets_a_task_at_once() {
    for store in stores() {
        let bench = bench(store, script);
        let (hasty, started) = (bench.hasty(), Instant::now());
        let task = hasty.send(Message::user("pass:50 ask:what")).await.unwrap();
        assert_eq!((task.state(), texts(&task).len()), (TaskState::Submitted, 1));
        let again = hasty.send(to(&task.id, "pass:50 done")).await.unwrap();
        assert_eq!((again.state(), texts(&again).len()), (TaskState::Submitted, 2));
        assert_eq!(started.elapsed(), ms(0));
        let mut events = bench.subscribe(&task.id).await.unwrap();
        let seen = states(&rest(&mut events).await);
        // The second message was there before the question: it answers it.
        let all = [TaskState::Submitted, TaskState::InputRequired, TaskState::Working, TaskState::Completed];
        assert_eq!(seen, all);
        assert_eq!(started.elapsed(), ms(100));
        // Asked for a task that waits for its caller.
        let task = bench.send(Message::user("ask:what")).await.unwrap();
        let task = hasty.send(to(&task.id, "hang")).await.unwrap();
        assert_eq!((task.state(), started.elapsed()), (TaskState::Working, ms(100)));
        assert_eq!(texts(&task), ["ask:what", "what", "hang"]);
    }
}

#[tokio::test(start_paused = true)]
async fn accepted_follow_up_sets_an_interrupted_task_to_working() {
    use TaskState::*;
    for store in stores() {
        for (question, interrupted) in [("ask:what", InputRequired), ("sign:here", AuthRequired)] {
            let bench = bench(Arc::clone(&store), |turn: Turn, out: Updates| async move {
                // An agent still sees the state that the message answers.
                out.save(&format!("{:?}", turn.task().state())).await?;
                script(turn, out).await
            });
            let id = bench.send(Message::user(question)).await.unwrap().id;
            let mut subscribed = bench.subscribe(&id).await.unwrap();
            assert_eq!(states(&ready(&mut subscribed)), [interrupted]);
            let accepted = bench.hasty().send(to(&id, "pass:50 done")).await.unwrap();
            assert_eq!((accepted.state(), bench.state(&id).await), (Working, Working));
            assert!(accepted.status.unwrap().message.is_none(), "the question is in the history");
            let seen = rest(&mut subscribed).await;
            assert_eq!(states(&seen), [Working, Completed]);
            dense(&bench.log(&*store, &id).await);
        }
        let bench = bench(Arc::clone(&store), script);
        // The stream of a follow-up begins with the task as it was accepted, and a plain WORKING is not said twice.
        for (text, expected) in [
            ("work done", vec![Working, Completed]),
            ("work:on done", vec![Working, Working, Completed]),
            ("out:x work done", vec![Working, Working, Completed]),
        ] {
            let id = bench.send(Message::user("ask:what")).await.unwrap().id;
            let mut events = bench.stream(to(&id, text)).await.unwrap();
            let seen = rest(&mut events).await;
            assert_eq!(states(&seen), expected, "{text}");
            assert_eq!(texts(task_of(&seen[0])), ["ask:what", "what", text]);
        }
        bench.empty().await;
    }
}

#[tokio::test(start_paused = true)]
async fn agent_sees_the_interrupted_state_that_its_turn_answers() {
    let run = |turn: Turn, out: Updates| async move {
        let state = format!("{:?}", turn.task().state());
        out.artifact(turn.text()).last().text(state).await?;
        Ok(End::InputRequired(Message::agent("more?")))
    };
    for store in stores() {
        let bench = bench(store, run);
        let task = bench.send(Message::user("first")).await.unwrap();
        let mut streamed = bench.stream(to(&task.id, "streamed")).await.unwrap();
        rest(&mut streamed).await;
        bench.hasty().send(to(&task.id, "hasty")).await.unwrap();
        let mut keyed = bench.client.clone();
        keyed.call.idempotency_key = Some("k".to_owned());
        let task = keyed.send(to(&task.id, "keyed")).await.unwrap();
        let told = |name: &str| {
            let artifact = task.artifacts.iter().find(|it| it.name == name).unwrap();
            artifact.parts[0].as_text().unwrap().to_owned()
        };
        assert_eq!(told("first"), "Submitted");
        for name in ["streamed", "hasty", "keyed"] {
            assert_eq!(told(name), "InputRequired", "{name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn first_update_of_the_agent_is_shown_by_the_reply_to_a_send_that_does_not_wait() {
    for store in stores() {
        let bench = bench(store, script);
        let hasty = bench.hasty();
        for (text, state) in [("work hang", TaskState::Working), ("ask:what", TaskState::InputRequired)] {
            let task = hasty.send(Message::user(text)).await.unwrap();
            assert_eq!(bench.state(&task.id).await, state, "{text}");
        }
        let started = Instant::now();
        let silent = hasty.send(Message::user("hang")).await.unwrap();
        assert_eq!((silent.state(), started.elapsed()), (TaskState::Submitted, ms(0)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_callers_own_deadline_bounds_the_wait() {
    for store in stores() {
        let bench = bench(store, script);
        for (time, waited, state) in [(2000, 1900, TaskState::Working), (50, 45, TaskState::Submitted)] {
            let started = Instant::now();
            let text = if time > 1000 { "work hang" } else { "hang" };
            let task = bench.within(ms(time)).send(Message::user(text)).await.unwrap();
            assert_eq!((task.state(), started.elapsed()), (state, ms(waited)));
        }
    }
    // A long one does not make us wait longer than we do.
    for store in stores() {
        let mut limits = Limits::default();
        limits.wait = Some(ms(50_000));
        let bench = limited(store, limits, script);
        let started = Instant::now();
        bench.within(Duration::from_secs(1000)).send(Message::user("hang")).await.unwrap();
        assert_eq!(started.elapsed(), ms(50_000));
    }
}

#[tokio::test(start_paused = true)]
async fn who_has_no_time_left_has_nothing_done_for_them() {
    let bench = bench(Arc::new(Memory::default()), script);
    let id = bench.send(Message::user("ask:what")).await.unwrap().id;
    let late = bench.within(ms(0));
    assert_eq!(kind(late.send(Message::user("done")).await), ErrorKind::DeadlineExceeded);
    assert_eq!(kind(late.stream(to(&id, "done")).await), ErrorKind::DeadlineExceeded);
    assert_eq!(kind(late.get(&id).await), ErrorKind::DeadlineExceeded);
    assert_eq!(kind(late.list(ListTasksRequest::default()).await), ErrorKind::DeadlineExceeded);
    assert_eq!(kind(late.cancel(&id).await), ErrorKind::DeadlineExceeded);
    assert_eq!(kind(late.subscribe(&id).await), ErrorKind::DeadlineExceeded);
    assert_eq!(bench.listed().await.into_values().collect::<Vec<_>>(), [TaskState::InputRequired]);
}

/// A store that does not answer keeps nobody longer than they wait, nor longer than a moment, and what they sent is not
/// forgotten for that.
#[tokio::test(start_paused = true)]
async fn nobody_waits_for_a_store_for_ever() {
    let gate = Gate::memory();
    let bench = bench(gate.store(), script);
    let (brief, hasty) = (bench.within(ms(3000)), bench.within(ms(3000)).hasty());
    let started = Instant::now();
    let unbounded = bench.sending(Message::user("ask:what"));
    for it in [brief.sending(Message::user("ask:what")), hasty.sending(Message::user("ask:what"))] {
        assert_eq!(kind(it.await.unwrap()), ErrorKind::Unavailable);
        assert_eq!(started.elapsed(), ms(3000));
    }
    // Nor does new work pile up before a store that does not answer.
    let refused = bench.send(Message::user("ask:what")).await.unwrap_err();
    assert_eq!((refused.kind(), refused.retry_after_seconds()), (ErrorKind::Unavailable, Some(1)));
    assert_eq!(started.elapsed(), ms(3000));
    assert_eq!(kind(unbounded.await.unwrap()), ErrorKind::Unavailable);
    assert_eq!(started.elapsed(), ms(5000));
    gate.open();
    settle().await;
    assert_eq!(bench.listed().await.into_values().collect::<Vec<_>>(), [TaskState::InputRequired; 3]);
    bench.empty().await;
}

/// An agent that hangs is found out before its time is over, and one that waits for its caller is left to.
#[tokio::test(start_paused = true)]
async fn who_says_nothing_for_too_long_has_failed() {
    for store in stores() {
        let mut limits = Limits::default();
        limits.idle = Duration::from_secs(10);
        limits.turn = Duration::from_mins(1);
        let bench = limited(store, limits, script);
        for (text, state, waited, why) in [
            ("hang", TaskState::Failed, 10_000, "(idle)"),
            ("work pass:9000 work pass:9000 out:x pass:9000 hang", TaskState::Failed, 28_000, "(idle)"),
            ("work pass:9999 work done", TaskState::Completed, 9999, ""),
            // All that is heard is not enough for ever.
            (&"work pass:9000 ".repeat(7), TaskState::Failed, 50_000, "(deadline)"),
        ] {
            let started = Instant::now();
            let task = bench.send(Message::user(text)).await.unwrap();
            let task = if task.state().is_terminal() {
                task
            } else {
                let mut events = bench.subscribe(&task.id).await.unwrap();
                rest(&mut events).await;
                bench.get(&task.id).await.unwrap()
            };
            let waited = if why == "(deadline)" { ms(60_000) } else { ms(waited) };
            assert_eq!((task.state(), started.elapsed()), (state, waited), "{text}");
            assert!(said(&task).contains(why), "{}", said(&task));
        }
        // Of a later turn, too, whatever the state of the one before.
        let id = bench.send(Message::user("ask:what")).await.unwrap().id;
        let started = Instant::now();
        let task = bench.send(to(&id, "hang")).await.unwrap();
        assert_eq!((task.state(), started.elapsed()), (TaskState::Failed, ms(10_000)));
        // It waits for its caller, and then it does not any more.
        let task = bench.send(Message::user("work auth:sign pass:30000 work pass:9000 done")).await.unwrap();
        assert_eq!(task.state(), TaskState::AuthRequired);
        let mut events = bench.subscribe(&task.id).await.unwrap();
        assert_eq!(states(&rest(&mut events).await).last(), Some(&TaskState::Completed));
    }
}

/// Nor has one that waits for a store, which is slow.
#[tokio::test(start_paused = true)]
async fn who_waits_for_the_store_is_not_silent() {
    let gate = Gate::memory();
    let mut limits = Limits::default();
    limits.idle = Duration::from_secs(1);
    let bench = limited(gate.store(), limits, |_: Turn, out: Updates| async move {
        for n in 0..200 {
            out.artifact(n.to_string()).text("x").await?;
        }
        Ok(End::Completed(None))
    });
    let mut streamed = bench.stream(Message::user("go")).await.unwrap();
    gate.knock().await;
    pass(30_000).await;
    gate.open();
    assert_eq!(states(&rest(&mut streamed).await).last(), Some(&TaskState::Completed));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_has_become_old_is_taken_up_where_it_was() {
    for store in stores() {
        let mut limits = Limits::default();
        limits.stream_age = Duration::from_secs(10);
        let bench = limited(store, limits, script);
        let started = Instant::now();
        let words = "work pass:4000 ".repeat(9);
        let mut events = bench.stream(Message::user(words + "done")).await.unwrap();
        let (mut seen, mut streams) = (Vec::new(), 1);
        loop {
            match events.next().await {
                Some(Ok(event)) => seen.push(event),
                Some(Err(cut)) => {
                    assert_eq!(a2a_service::error::Error::from(cut).kind(), ErrorKind::Unavailable);
                    assert_eq!(started.elapsed(), ms(10_000 * streams));
                    assert!(events.next().await.is_none());
                    let last = seen.last().unwrap();
                    events = bench.resume(&id_of(last), last.cursor()).await.unwrap();
                    streams += 1;
                }
                None => break,
            }
        }
        dense(&seen);
        assert_eq!((streams, states(&seen).last()), (4, Some(&TaskState::Completed)));
        // One that waits in silence ends as well, and what is idle is not in memory for ever.
        let id = bench.send(Message::user("ask:what")).await.unwrap().id;
        events = bench.subscribe(&id).await.unwrap();
        next(&mut events).await;
        assert!(events.next().await.unwrap().is_err());
        drop(events);
        bench.empty().await;
    }
}
