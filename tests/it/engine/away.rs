//! A store that takes nothing for long: who sent something hears of it, and nothing is half done.

use std::{sync::Arc, time::Duration};

use a2a_service::{
    agent::{self, End, Turn, Updates},
    call::Call,
    error::{Error, ErrorKind},
    pb::v1::{Message, TaskState},
    service::Limits,
};
use futures::{FutureExt as _, StreamExt as _, poll};
use tokio::{sync::Notify, time::Instant};

use super::support::*;
use crate::gate::{Act, Gate};

/// Refused for now: the end of what is said of it.
fn away(error: &Error, said: &str) {
    assert_eq!((error.kind(), error.retry_after_seconds()), (ErrorKind::Unavailable, Some(1)), "{error}");
    assert!(error.to_string().ends_with(said), "{error}");
}

/// After so many seconds.
const SOON: std::ops::Range<u64> = 5..7;

const NOTHING: &str = "nothing was recorded, but the agent may have run; try again";
const UNKNOWN: &str = "the outcome is not recorded yet, and may still be; read the task before this is sent again";

#[tokio::test(start_paused = true)]
async fn what_is_not_taken_for_too_long_is_taken_back() {
    let gate = Gate::opened();
    let works = Arc::new(());
    let work = Arc::clone(&works);
    let bench = bench(gate.store(), move |turn: Turn, out: Updates| {
        let work = Arc::clone(&work);
        async move {
            if turn.text() != "hang" {
                return ask(turn, out).await;
            }
            out.working().await?;
            std::future::pending::<()>().await;
            drop(work);
            Ok(End::Completed(None))
        }
    });
    let asked = bench.send(Message::user("ask")).await.unwrap();
    let other = bench.send(Message::user("ask")).await.unwrap();
    gate.fail(true);
    let started = Instant::now();
    let mut streamed = bench.stream(Message::user("hang")).await.unwrap();
    let followed = bench.stream(to(&other.id, "hang")).await;
    let sends = [
        bench.sending(Message::user("hang")),
        bench.sending(Message::user("done")),
        bench.hasty().sending(Message::user("hang")),
        bench.sending(to(&asked.id, "hang")),
        bench.hasty().sending(to(&asked.id, "more")),
    ];
    settle().await;
    assert_eq!(Arc::strong_count(&works), 2 + 5, "each is at work");
    for it in sends {
        away(&it.await.unwrap().unwrap_err(), NOTHING);
    }
    let waited = started.elapsed();
    assert!(SOON.contains(&waited.as_secs()), "{waited:?}");
    let cut: Error = streamed.next().await.unwrap().unwrap_err().into();
    away(&cut, NOTHING);
    let cut: Error = followed.unwrap().next().await.unwrap().unwrap_err().into();
    away(&cut, NOTHING);
    drop(streamed);
    bench.empty().await;
    assert_eq!(Arc::strong_count(&works), 2, "nobody is at work for nothing");
    // All is as the store has it, and what comes next finds it so.
    assert_eq!(bench.get(&asked.id).await.unwrap(), asked);
    assert_eq!(bench.listed().await.into_values().collect::<Vec<_>>(), [TaskState::InputRequired; 2]);
    gate.fail(false);
    pass(5000).await;
    assert_eq!(bench.listed().await.len(), 2);
    for it in [&asked, &other] {
        let done = bench.send(to(&it.id, "done")).await.unwrap();
        assert_eq!(
            (done.state(), texts(&done)),
            (TaskState::Completed, ["ask", "what?", "done"].map(Into::into).into())
        );
        dense(&bench.log(&*gate, &it.id).await);
    }
    bench.empty().await;
}

/// A turn that the store knows of goes on: that cannot be taken back.
#[tokio::test(start_paused = true)]
async fn what_runs_is_not_taken_back() {
    let gate = Gate::opened();
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
    let mut first = Box::pin(bench.send(Message::user("done")));
    assert!(poll!(&mut first).is_pending());
    settle().await;
    let id = bench.listed().await.into_keys().next().unwrap();
    gate.fail(true);
    let started = Instant::now();
    let also = bench.hasty().sending(to(&id, "also"));
    for it in [also, bench.sending(to(&id, "this"))] {
        away(&it.await.unwrap().unwrap_err(), UNKNOWN);
        let waited = started.elapsed();
        assert!(SOON.contains(&waited.as_secs()), "{waited:?}");
    }
    // A sender whose message is recorded gets the error too: the result may not be recorded.
    away(&first.await.unwrap_err(), UNKNOWN);
    assert_eq!((bench.state(&id).await, texts(&bench.get(&id).await.unwrap()).len()), (TaskState::Working, 1));
    gate.fail(false);
    go.notify_one();
    drop(rest(&mut bench.subscribe(&id).await.unwrap()).await);
    assert_eq!(bench.state(&id).await, TaskState::Completed);
    assert_eq!(texts(&bench.get(&id).await.unwrap()), ["done", "also", "this"], "and the messages are not lost");
    dense(&bench.log(&*gate, &id).await);
    bench.empty().await;
}

/// It is not known to be missing: it came through, and nobody heard of it.
#[tokio::test(start_paused = true)]
async fn what_is_there_unheard_is_not_taken_back() {
    let gate = Gate::opened();
    gate.tell(Act::LoseAnswer);
    gate.fail(true);
    let bench = bench(gate.store(), ask);
    let sent = bench.sending(Message::user("ask"));
    away(&sent.await.unwrap().unwrap_err(), UNKNOWN);
    pass(10_000).await;
    gate.fail(false);
    pass(2000).await;
    let (id, state) = bench.listed().await.into_iter().next().unwrap();
    assert_eq!(state, TaskState::InputRequired);
    assert_eq!(bench.send(to(&id, "done")).await.unwrap().state(), TaskState::Completed);
    dense(&bench.log(&*gate, &id).await);
    bench.empty().await;
}

/// Nor is anything taken back while nobody can say what is there.
#[tokio::test(start_paused = true)]
async fn what_can_not_be_looked_for_is_not_taken_back() {
    let gate = Gate::opened();
    gate.fail(true);
    gate.blind(true);
    let bench = bench(gate.store(), ask);
    let sent = bench.sending(Message::user("ask"));
    away(&sent.await.unwrap().unwrap_err(), UNKNOWN);
    gate.fail(false);
    gate.blind(false);
    pass(2000).await;
    assert_eq!(bench.listed().await.into_values().collect::<Vec<_>>(), [TaskState::InputRequired]);
    bench.empty().await;
}

/// A server that stops says of nothing that it is taken in which is not written.
#[tokio::test(start_paused = true)]
async fn who_is_not_written_when_the_server_stops_is_told() {
    let gate = Gate::opened();
    let bench = bench(gate.store(), |_: Turn, out: Updates| async move {
        out.working().await?;
        std::future::pending::<Result<End, agent::Error>>().await
    });
    let first = bench.sending(Message::user("hang"));
    settle().await;
    let id = bench.listed().await.into_keys().next().unwrap();
    gate.fail(true);
    let late = [bench.sending(to(&id, "late")), bench.hasty().sending(to(&id, "late"))];
    settle().await;
    bench.service.drain(Duration::from_secs(1)).await;
    for it in late {
        assert_eq!(kind(it.await.unwrap()), ErrorKind::Unavailable);
    }
    let first = first.now_or_never().unwrap().unwrap().unwrap();
    assert_eq!((first.state(), texts(&first)), (TaskState::Working, vec!["hang".to_owned()]));
}

/// Once all is taken back, the store is asked whether it is there again, and new work is taken as soon as it is.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_there_again_is_noticed() {
    let gate = Gate::opened();
    gate.fail(true);
    let bench = bench(gate.store(), ask);
    away(&bench.send(Message::user("ask")).await.unwrap_err(), NOTHING);
    for _ in 0..20 {
        assert_eq!(kind(bench.send(Message::user("ask")).await), ErrorKind::Unavailable);
        pass(1000).await;
    }
    gate.fail(false);
    pass(1000).await;
    assert_eq!(bench.send(Message::user("ask")).await.unwrap().state(), TaskState::InputRequired);
    // One that never says so is tried all the same.
    gate.fail(true);
    away(&bench.send(Message::user("ask")).await.unwrap_err(), NOTHING);
    gate.fail(false);
    gate.blind(true);
    pass(55_000).await;
    assert_eq!(kind(bench.send(Message::user("ask")).await), ErrorKind::Unavailable);
    pass(10_000).await;
    assert_eq!(bench.send(Message::user("ask")).await.unwrap().state(), TaskState::InputRequired);
}

/// However long a turn takes: what comes of it could not be recorded. A short outage is nothing to it.
#[tokio::test(start_paused = true)]
async fn a_sender_is_told_while_the_store_is_away() {
    let gate = Gate::opened();
    let mut limits = Limits::default();
    limits.wait = Some(Duration::from_hours(24));
    let bench = limited(gate.store(), limits, script);
    let hang = Message::user("work pass:60000 done");
    let keyed =
        Client { call: Call { idempotency_key: Some("key".into()), ..bench.call.clone() }, ..bench.client.clone() };
    let (first, named, repeated) =
        (bench.sending(hang.clone()), keyed.sending(hang.clone()), keyed.sending(hang.clone()));
    settle().await;
    let mut sends = [first, named, repeated];
    gate.fail(true);
    let late = bench.sending(Message::user("work done"));
    pass(4000).await;
    gate.fail(false);
    assert_eq!(late.await.unwrap().unwrap().state(), TaskState::Completed);
    pass(5000).await;
    assert!(sends.iter_mut().all(|sent| sent.now_or_never().is_none()), "they wait");
    gate.fail(true);
    let started = Instant::now();
    away(&bench.send(Message::user("work done")).await.unwrap_err(), NOTHING);
    for sent in sends {
        let error = sent.await.unwrap().unwrap_err();
        away(&error, UNKNOWN);
        let waited = started.elapsed();
        assert!(SOON.contains(&waited.as_secs()), "{waited:?}");
    }
    gate.fail(false);
    pass(60_000).await;
    assert_eq!(bench.listed().await.into_values().collect::<Vec<_>>(), [TaskState::Completed; 3], "the turns went on");
    bench.empty().await;
}
