//! How long a caller waits, and what they get when they have waited for long enough.

use std::{sync::Arc, time::Duration};

use a2a_service::{
    error::ErrorKind,
    pb::v1::{ListTasksRequest, Message, TaskState, send_message_response::Payload as Answer},
    service::Limits,
    store::{Store, memory::Memory},
};
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
async fn who_has_waited_for_long_enough_gets_the_task_as_it_is() {
    for store in stores() {
        let bench = bench(store, script);
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
        limits.wait = ms(30);
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
        assert_eq!(seen, [TaskState::Submitted, TaskState::InputRequired, TaskState::Completed]);
        assert_eq!(started.elapsed(), ms(100));
        // Asked for a task that waits for its caller.
        let task = bench.send(Message::user("ask:what")).await.unwrap();
        let task = hasty.send(to(&task.id, "hang")).await.unwrap();
        assert_eq!((task.state(), started.elapsed()), (TaskState::InputRequired, ms(100)));
        assert_eq!(texts(&task), ["ask:what", "what", "hang"]);
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
        // A long one does not make us wait longer than we do.
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

/// A store that does not answer keeps nobody longer than they wait, and what they sent is not forgotten for that.
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
    assert_eq!(started.elapsed(), ms(55_000));
    gate.open();
    settle().await;
    assert_eq!(bench.listed().await.into_values().collect::<Vec<_>>(), [TaskState::InputRequired; 3]);
    bench.empty().await;
}
