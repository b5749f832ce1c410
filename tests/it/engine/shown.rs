//! Nothing is shown that is not durable, and what the answers of a store do.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use a2a_service::{
    agent::End,
    error::ErrorKind,
    event::{Ends, Event},
    pb::v1::{ListTasksRequest, Message, TaskState},
};
use futures::{FutureExt as _, StreamExt as _, poll};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::support::*;
use crate::gate::{Act, Gate};

#[tokio::test(start_paused = true)]
async fn nothing_of_a_new_task_shows_before_its_commit() {
    let gate = Gate::memory();
    let ids: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = Arc::clone(&ids);
    let bench = bench(gate.store(), move |turn, out| {
        seen.lock().push(turn.task_id().to_owned());
        ask(turn, out)
    });
    let mut streamed = bench.stream(Message::user("ask")).await.unwrap();
    let mut blocking = Box::pin(bench.send(Message::user("ask")));
    let hasty = bench.hasty();
    let mut immediate = Box::pin(hasty.send(Message::user("ask")));
    assert!(poll!(&mut blocking).is_pending() && poll!(&mut immediate).is_pending());
    gate.knock().await;
    settle().await;
    assert!(streamed.next().now_or_never().is_none());
    assert!(poll!(&mut blocking).is_pending() && poll!(&mut immediate).is_pending());
    assert_eq!(bench.listed().await.len(), 0);
    let ids = ids.lock().clone();
    assert_eq!(ids.len(), 3);
    for id in &ids {
        assert_eq!(kind(bench.get(id).await), ErrorKind::TaskNotFound);
        assert_eq!(kind(bench.cancel(id).await), ErrorKind::TaskNotFound);
        assert_eq!(kind(bench.subscribe(id).await), ErrorKind::TaskNotFound);
        assert_eq!(kind(bench.send(to(id, "more")).await), ErrorKind::TaskNotFound);
    }
    gate.open();
    let states = states(&rest(&mut streamed).await);
    assert_eq!(states, [TaskState::Submitted, TaskState::Working, TaskState::InputRequired]);
    assert_eq!(blocking.await.unwrap().state(), TaskState::InputRequired);
    assert!(ids.contains(&immediate.await.unwrap().id));
    assert_eq!(bench.listed().await.into_values().collect::<Vec<_>>(), [TaskState::InputRequired; 3]);
}

#[tokio::test(start_paused = true)]
async fn nothing_of_an_end_shows_before_its_commit() {
    let gate = Gate::memory();
    let bench = bench(gate.store(), ask);
    gate.tell(Act::Pass);
    let id = bench.send(Message::user("ask")).await.unwrap().id;
    let mut subscribed = bench.subscribe(&id).await.unwrap();
    assert_eq!(states(&ready(&mut subscribed)), [TaskState::InputRequired]);
    // The end is accepted, and stands at the gate.
    let mut done = Box::pin(bench.send(to(&id, "done")));
    assert!(poll!(&mut done).is_pending());
    gate.knock().await;
    let mut streamed = Box::pin(bench.stream(to(&id, "late")));
    let (mut sent, mut canceled) = (Box::pin(bench.send(to(&id, "late"))), Box::pin(bench.cancel(&id)));
    for _ in 0..20 {
        settle().await;
        assert!(poll!(&mut done).is_pending() && poll!(&mut sent).is_pending());
        assert!(poll!(&mut canceled).is_pending() && poll!(&mut streamed).is_pending());
        assert_eq!(ready(&mut subscribed), []);
        assert_eq!(bench.state(&id).await, TaskState::InputRequired);
        assert_eq!(bench.listed().await[&id], TaskState::InputRequired);
        assert_eq!(texts(&bench.get(&id).await.unwrap()), ["ask"]);
        pass(40).await;
    }
    gate.open();
    assert_eq!(done.await.unwrap().state(), TaskState::Completed);
    assert_eq!(kind(sent.await), ErrorKind::TaskEnded);
    assert_eq!(kind(streamed.await), ErrorKind::TaskEnded);
    assert_eq!(kind(canceled.await), ErrorKind::TaskNotCancelable);
    assert_eq!(states(&rest(&mut subscribed).await), [TaskState::Working, TaskState::Completed]);
}

/// That a message is taken in is a promise too: a crash after it may not lose the message.
#[tokio::test(start_paused = true)]
async fn a_message_is_taken_in_when_its_own_commit_is_there() {
    let gate = Gate::memory();
    let go = Arc::new(Notify::new());
    let gone = Arc::clone(&go);
    let bench = bench(gate.store(), move |turn, out| {
        let go = Arc::clone(&gone);
        async move {
            out.working().await?;
            go.notified().await;
            ask(turn, out).await
        }
    });
    gate.tell(Act::Pass);
    let id = bench.hasty().send(Message::user("ask")).await.unwrap().id;
    gate.knock().await; // WORKING
    let (hasty, brief) = (bench.hasty(), bench.within(Duration::from_millis(10)));
    let mut taken = Box::pin(hasty.send(to(&id, "also")));
    let mut waited = Box::pin(brief.send(to(&id, "this")));
    settle().await;
    assert!(poll!(&mut taken).is_pending() && poll!(&mut waited).is_pending());
    gate.tell(Act::Pass);
    settle().await;
    assert_eq!(bench.state(&id).await, TaskState::Working);
    assert!(poll!(&mut taken).is_pending() && poll!(&mut waited).is_pending());
    gate.tell(Act::Pass);
    assert_eq!(texts(&taken.await.unwrap()), ["ask", "also"]);
    // The one who waits for the turn has waited for long enough by then, and the task is as it is.
    pass(9).await;
    assert_eq!(texts(&waited.await.unwrap()), ["ask", "also", "this"]);
    gate.open();
    go.notify_one();
    settle().await;
    go.notify_one();
    settle().await;
    let task = bench.get(&id).await.unwrap();
    assert_eq!(
        (task.state(), texts(&task)),
        (TaskState::InputRequired, ["ask", "also", "this", "what?"].map(Into::into).into())
    );
}

#[tokio::test(start_paused = true)]
async fn the_old_state_stands_while_the_store_is_away() {
    let gate = Gate::memory();
    let bench = bench(gate.store(), ask);
    gate.tell(Act::Pass);
    let id = bench.send(Message::user("ask")).await.unwrap().id;
    let mut subscribed = bench.subscribe(&id).await.unwrap();
    assert_eq!(states(&ready(&mut subscribed)), [TaskState::InputRequired]);
    let mut done = Box::pin(bench.send(to(&id, "done")));
    for _ in 0..12 {
        gate.tell(Act::Fail);
        assert!(poll!(&mut done).is_pending());
        pass(400).await;
        assert_eq!(bench.state(&id).await, TaskState::InputRequired);
        assert_eq!(bench.listed().await[&id], TaskState::InputRequired);
        assert_eq!(ready(&mut subscribed), []);
    }
    // New work is refused by now, with a hint when to come again; and what was accepted is not forgotten.
    for refused in [bench.send(Message::user("ask")).await, bench.hasty().send(to(&id, "more")).await] {
        let refused = refused.unwrap_err();
        assert_eq!((refused.kind(), refused.retry_after_seconds()), (ErrorKind::Unavailable, Some(1)));
    }
    let refused = bench.stream(Message::user("ask")).await.map(drop).unwrap_err();
    assert_eq!((refused.kind(), refused.retry_after_seconds()), (ErrorKind::Unavailable, Some(1)));
    gate.open();
    assert_eq!(done.await.unwrap().state(), TaskState::Completed);
    assert_eq!(states(&rest(&mut subscribed).await), [TaskState::Working, TaskState::Completed]);
    dense(&bench.log(&*gate, &id).await);
    assert_eq!(bench.send(Message::user("ask")).await.unwrap().state(), TaskState::InputRequired);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_was_away_for_a_moment_is_not_noticed() {
    let gate = Gate::memory();
    let bench = bench(gate.store(), ask);
    for _ in 0..3 {
        gate.tell(Act::Fail);
    }
    gate.tell(Act::Pass);
    let first = bench.send(Message::user("ask")).await.unwrap();
    gate.tell(Act::Fail);
    let mut second = Box::pin(bench.send(Message::user("ask")));
    assert!(poll!(&mut second).is_pending());
    pass(900).await;
    gate.open();
    assert_eq!(bench.send(to(&first.id, "done")).await.unwrap().state(), TaskState::Completed);
    assert_eq!(second.await.unwrap().state(), TaskState::InputRequired);
}

/// The commit came through, its answer did not: the second try finds its own row, and that is no other writer.
#[tokio::test(start_paused = true)]
async fn a_commit_that_came_through_unheard_is_our_own() {
    let gate = Gate::memory();
    let bench = bench(gate.store(), ask);
    gate.tell(Act::LoseAnswer);
    gate.tell(Act::LoseAnswer);
    gate.tell(Act::Pass);
    let id = bench.send(Message::user("ask")).await.unwrap().id;
    gate.tell(Act::LoseAnswer);
    gate.tell(Act::Fail);
    gate.tell(Act::Pass);
    assert_eq!(bench.send(to(&id, "done")).await.unwrap().state(), TaskState::Completed);
    dense(&bench.log(&*gate, &id).await);
    assert_eq!(bench.listed().await.len(), 1);
    bench.empty().await;
}

#[tokio::test(start_paused = true)]
async fn another_writer_takes_the_task_whole() {
    let gate = Gate::memory();
    let dropped = Arc::new(());
    let held = Arc::clone(&dropped);
    let bench = bench(gate.store(), move |turn, out| {
        let held = Arc::clone(&held);
        async move {
            if turn.text() != "hang" {
                return ask(turn, out).await;
            }
            out.working().await?;
            std::future::pending::<()>().await;
            drop(held);
            Ok(End::Completed(None))
        }
    });
    gate.tell(Act::Pass);
    let id = bench.send(Message::user("ask")).await.unwrap().id;
    let mut subscribed = bench.subscribe(&id).await.unwrap();
    assert_eq!(ready(&mut subscribed).len(), 1);
    gate.tell(Act::Stale);
    assert_eq!(kind(bench.send(to(&id, "hang")).await), ErrorKind::Unavailable);
    // Its stream is cut without an event, its agent dropped, and the next access loads what the store has.
    assert!(subscribed.next().await.unwrap().is_err());
    assert!(subscribed.next().await.is_none());
    settle().await;
    assert_eq!(Arc::strong_count(&dropped), 2);
    let task = bench.get(&id).await.unwrap();
    assert_eq!((task.state(), texts(&task)), (TaskState::InputRequired, vec!["ask".to_owned()]));
    assert_eq!(bench.log(&*gate, &id).await.len(), 3);
    gate.open();
    // Also while somebody still holds what was lost.
    assert_eq!(bench.send(to(&id, "done")).await.unwrap().state(), TaskState::Completed);
    drop(subscribed);
    dense(&bench.log(&*gate, &id).await);
    bench.empty().await;
}

/// A turn that waits for the end of the one before, which never comes, is not waited for.
#[tokio::test(start_paused = true)]
async fn a_turn_that_had_not_begun_goes_with_its_task() {
    let gate = Gate::memory();
    let runs = Arc::new(AtomicUsize::new(0));
    let (go, counted) = (Arc::new(Notify::new()), Arc::clone(&runs));
    let gone = Arc::clone(&go);
    let bench = bench(gate.store(), move |turn, out| {
        counted.fetch_add(1, Ordering::SeqCst);
        let go = Arc::clone(&gone);
        async move {
            out.working().await?;
            go.notified().await;
            ask(turn, out).await
        }
    });
    for polled in [true, false] {
        gate.tell(Act::Pass);
        let id = bench.hasty().send(Message::user("ask")).await.unwrap().id;
        gate.tell(Act::Pass);
        settle().await;
        go.notify_one();
        settle().await;
        gate.knock().await; // the end of the first turn
        let mut sent = Box::pin(bench.send(to(&id, "more")));
        let hasty = bench.hasty();
        let mut taken = Box::pin(hasty.send(to(&id, "more")));
        if polled {
            assert!(poll!(&mut sent).is_pending() && poll!(&mut taken).is_pending());
            settle().await;
            gate.tell(Act::Stale);
        } else {
            // The journal hears of it before the turn has a chance.
            gate.tell(Act::Stale);
            assert!(poll!(&mut sent).is_pending() && poll!(&mut taken).is_pending());
        }
        assert_eq!(kind(sent.await), ErrorKind::Unavailable);
        assert_eq!(kind(taken.await), ErrorKind::Unavailable);
        bench.empty().await;
    }
    let started = Instant::now();
    bench.service.drain(Duration::from_secs(10)).await;
    assert_eq!((started.elapsed(), runs.load(Ordering::SeqCst)), (Duration::ZERO, 2));
}

#[tokio::test(start_paused = true)]
async fn subscribed_while_the_end_is_on_its_way() {
    let gate = Gate::memory();
    let bench = bench(gate.store(), ask);
    gate.tell(Act::Pass);
    let id = bench.send(Message::user("ask")).await.unwrap().id;
    let done = bench.sending(to(&id, "done"));
    gate.knock().await;
    settle().await;
    let mut subscribed = bench.subscribe(&id).await.unwrap();
    gate.open();
    let events = rest(&mut subscribed).await;
    assert_eq!(states(&events), [TaskState::InputRequired, TaskState::Working, TaskState::Completed]);
    assert_eq!(events.iter().map(Event::ends).filter(|it| *it == Ends::Task).count(), 1);
    assert_eq!(events.len(), 4);
    done.await.unwrap().unwrap();
    let mut subscribed = Some(subscribed);
    for _ in 0..2 {
        // It has ended for all, in memory (a reader holds it) and out of it.
        assert_eq!(kind(bench.subscribe(&id).await), ErrorKind::TaskEnded);
        assert_eq!(kind(bench.send(to(&id, "more")).await), ErrorKind::TaskEnded);
        assert_eq!(kind(bench.cancel(&id).await), ErrorKind::TaskNotCancelable);
        drop(subscribed.take());
        bench.empty().await;
    }
    // With a cursor, what was missed of a task that has ended.
    let mut again = bench.resume(&id, events[1].cursor()).await.unwrap();
    assert_eq!(seqs(&rest(&mut again).await), [6, 7]);
}

#[tokio::test(start_paused = true)]
async fn who_reads_is_told_when_the_store_can_not_be_read() {
    let gate = Gate::opened();
    let bench = bench(gate.store(), ask);
    let id = bench.send(Message::user("ask")).await.unwrap().id;
    bench.empty().await;
    gate.blind(true);
    let list = bench.list(ListTasksRequest::default()).await.map(drop);
    for refused in [bench.get(&id).await.map(drop), list, bench.cancel(&id).await.map(drop)] {
        let refused = refused.unwrap_err();
        assert_eq!((refused.kind(), refused.retry_after_seconds()), (ErrorKind::Unavailable, Some(1)));
        assert!(!refused.to_string().contains("blind"), "{refused}");
    }
    gate.blind(false);
    assert_eq!(bench.send(to(&id, "done")).await.unwrap().state(), TaskState::Completed);
    bench.empty().await;
}

/// The store takes nothing: an agent waits at its bound, and nothing of what it said before is lost.
#[tokio::test(start_paused = true)]
async fn an_agent_is_not_far_ahead_of_the_store() {
    let gate = Gate::memory();
    let said = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&said);
    let bench = bench(gate.store(), move |_, out| {
        let said = Arc::clone(&counted);
        async move {
            for n in 0..500 {
                out.progress(n.to_string()).await?;
                said.fetch_add(1, Ordering::SeqCst);
            }
            Ok(End::Completed(None))
        }
    });
    let mut streamed = bench.stream(Message::user("go")).await.unwrap();
    settle().await;
    pass(2000).await;
    assert!(said.load(Ordering::SeqCst) <= 64);
    gate.open();
    dense(&rest(&mut streamed).await);
    assert_eq!(said.load(Ordering::SeqCst), 500);
}

/// The end of a turn and what came after it are one commit, and with it the whole task is written down: who waited for
/// the turn gets the task as it was at its end all the same.
#[tokio::test(start_paused = true)]
async fn an_end_is_shown_as_it_was_also_when_more_is_written_with_it() {
    let gate = Gate::memory();
    let go = Arc::new(Notify::new());
    let gone = Arc::clone(&go);
    let bench = bench(gate.store(), move |turn, out| {
        let go = Arc::clone(&gone);
        async move {
            out.progress("one").await?;
            go.notified().await;
            out.progress("two").await?;
            go.notified().await;
            ask(turn, out).await
        }
    });
    gate.tell(Act::Pass);
    let sent = bench.sending(Message::user("ask"));
    settle().await;
    let id = bench.listed().await.into_keys().next().unwrap();
    go.notify_one();
    gate.knock().await;
    go.notify_one();
    settle().await;
    // The end of the turn has to wait for the commit before it, and a message comes behind it.
    let long = "x".repeat(20_000);
    let next = bench.sending(to(&id, &long));
    settle().await;
    assert!(!sent.is_finished());
    gate.tell(Act::Pass);
    gate.tell(Act::Pass);
    let task = sent.await.unwrap().unwrap();
    assert_eq!((task.state(), said(&task)), (TaskState::InputRequired, "what?".into()));
    assert_eq!(texts(&task), ["ask", "one", "two"]);
    assert_eq!(texts(&bench.get(&id).await.unwrap()), ["ask", "one", "two", "what?", &long]);
    gate.open();
    for _ in 0..2 {
        settle().await;
        go.notify_one();
    }
    assert_eq!(next.await.unwrap().unwrap().state(), TaskState::InputRequired);
    bench.empty().await;
}
