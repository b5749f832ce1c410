//! What is not kept for ever: what goes by itself, who is told, and what somebody reads meanwhile.

use std::{sync::Arc, time::Duration};

use a2a_service::{
    error::ErrorKind,
    event::Cursor,
    pb::v1::{ListTasksRequest, Message, TaskState},
    service::Limits,
    store::{Retention, Store, memory::Memory, sqlite::Options},
};
use futures::StreamExt as _;

use super::support::*;
use crate::store::place::Opened;

const DAY: u64 = 24 * 60 * 60 * 1000;

/// As long as by default, and seen to each hour.
fn policy() -> Retention {
    let mut policy = Retention::default();
    policy.every = Duration::from_hours(1);
    policy
}

#[tokio::test(start_paused = true)]
async fn what_has_ended_is_deleted_after_a_while() {
    let bench = bench(Arc::new(Memory::default()), script);
    bench.service.keep(policy());
    let old = bench.send(Message::user("done")).await.unwrap().id;
    let runs = bench.hasty().send(Message::user("hang")).await.unwrap().id;
    pass(5 * DAY).await;
    let young = bench.by("bob").send(Message::user("fail:so")).await.unwrap().id;
    pass(2 * DAY - 1).await;
    assert_eq!(bench.state(&old).await, TaskState::Completed);
    pass(DAY / 24 + 2).await;
    assert_eq!(kind(bench.get(&old).await), ErrorKind::TaskNotFound);
    assert_eq!(bench.listed().await.into_keys().collect::<Vec<_>>(), [runs]);
    assert_eq!(bench.by("bob").state(&young).await, TaskState::Failed);
}

/// Streams may be as old as they like.
fn ageless() -> Limits {
    let mut limits = Limits::default();
    limits.stream_age = Duration::ZERO;
    limits
}

/// Who asks is not forgotten, and does not wait for ever either: whoever has the task sees that it is over, and so do
/// those who come later.
#[tokio::test(start_paused = true)]
async fn who_is_not_answered_ends() {
    let bench = limited(Arc::new(Memory::default()), ageless(), script);
    bench.service.keep(policy());
    let asked = bench.send(Message::user("ask:what")).await.unwrap().id;
    let answered = bench.send(Message::user("sign:here")).await.unwrap().id;
    let mut events = bench.subscribe(&asked).await.unwrap();
    assert_eq!(task_of(&next(&mut events).await).state(), TaskState::InputRequired);
    pass(20 * DAY).await;
    bench.send(to(&answered, "ask:more")).await.unwrap();
    pass(10 * DAY - 1).await;
    assert_eq!(bench.state(&asked).await, TaskState::InputRequired);
    pass(DAY / 24 + 2).await;
    let last = rest(&mut events).await;
    assert_eq!(states(&last), [TaskState::Canceled]);
    drop(events);
    let task = bench.get(&asked).await.unwrap();
    assert_eq!((task.state(), &*said(&task)), (TaskState::Canceled, "No answer came for so long that this is over."));
    assert_eq!(bench.state(&answered).await, TaskState::InputRequired);
    // From then on it is one that has ended.
    assert_eq!(kind(bench.send(to(&asked, "here")).await), ErrorKind::TaskEnded);
    pass(8 * DAY).await;
    assert_eq!(kind(bench.get(&asked).await), ErrorKind::TaskNotFound);
    bench.empty().await;
}

/// A log is not deleted under a reader.
#[tokio::test(start_paused = true)]
async fn what_is_read_stays_until_it_is_not() {
    let bench = limited(Arc::new(Memory::default()), ageless(), script);
    bench.service.keep(policy());
    let mut events = bench.stream(Message::user("out:1 out:2 out:3 done")).await.unwrap();
    let first = next(&mut events).await;
    let id = id_of(&first);
    pass(100 * DAY).await;
    assert_eq!(bench.state(&id).await, TaskState::Completed);
    let all: Vec<_> = std::iter::once(first).chain(rest(&mut events).await).collect();
    dense(&all);
    assert_eq!(states(&all).last(), Some(&TaskState::Completed));
    drop(events);
    pass(DAY).await;
    assert_eq!(kind(bench.get(&id).await), ErrorKind::TaskNotFound);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stops_deletes_nothing_more() {
    let store: Arc<dyn Store> = Arc::new(Memory::default());
    let drained = bench(Arc::clone(&store), script);
    drained.service.keep(policy());
    let id = drained.send(Message::user("done")).await.unwrap().id;
    drained.service.drain(Duration::from_secs(1)).await;
    pass(100 * DAY).await;
    assert_eq!(drained.state(&id).await, TaskState::Completed);
    drop(drained);
    // Nor does one that nobody has any more: it holds on to nothing.
    let gone = bench(Arc::clone(&store), script);
    gone.service.keep(policy());
    drop(gone);
    pass(100 * DAY).await;
    assert_eq!(Arc::strong_count(&store), 1);
}

/// Where a log has gone, the task stands for it: for who has missed something, once, and then the stream is over.
#[tokio::test]
async fn a_stream_is_taken_up_again_where_its_log_has_gone() {
    let opened = Opened::sqlite(Options::default());
    let store = Arc::clone(&opened.store);
    let bench = bench(Arc::clone(&store), script);
    let streamed = rest(&mut bench.stream(Message::user("out:1 out:2 done")).await.unwrap()).await;
    let id = id_of(&streamed[0]);
    let task = bench.get(&id).await.unwrap();
    let cursor = |it: usize| Cursor::new(&id, streamed[it].position());
    let last = streamed.len() - 1;
    for folded in [false, true] {
        if folded {
            bench.empty().await;
            let mut policy = Retention::FOREVER;
            policy.logs = Some(Duration::ZERO);
            assert_eq!(store.sweep(&policy, i64::MAX, &|_| false).await.unwrap().logs, 1);
        }
        for (from, missed) in streamed.iter().enumerate().take(last) {
            let mut events = bench.resume(&id, Some(&cursor(from))).await.unwrap();
            let events = rest(&mut events).await;
            if folded {
                assert_eq!(events.iter().map(task_of).collect::<Vec<_>>(), [&task], "after {}", missed.seq());
                assert_eq!(events[0].position(), streamed[last].position());
            } else {
                assert_eq!(seqs(&events), seqs(&streamed[from + 1..]));
            }
        }
        let mut events = bench.resume(&id, Some(&cursor(last))).await.unwrap();
        assert!(events.next().await.is_none(), "there was nothing more");
    }
    assert_eq!(bench.get(&id).await.unwrap(), task);
    let all = ListTasksRequest { include_artifacts: Some(true), ..Default::default() };
    assert_eq!(bench.list(all).await.unwrap().tasks, [task]);
}

/// The key of a send is kept for longer than the log of what came of it.
#[tokio::test]
async fn a_send_that_comes_again_finds_its_task_where_its_log_has_gone() {
    let opened = Opened::sqlite(Options::default());
    let store = Arc::clone(&opened.store);
    let bench = bench(Arc::clone(&store), script);
    let mut client = bench.client.clone();
    client.call.idempotency_key = Some("k".into());
    let message = Message::user("out:1 out:2 done");
    let task = client.send(message.clone()).await.unwrap();
    bench.empty().await;
    let mut policy = Retention::FOREVER;
    policy.logs = Some(Duration::ZERO);
    assert_eq!(store.sweep(&policy, i64::MAX, &|_| false).await.unwrap().logs, 1);
    assert_eq!(client.send(message.clone()).await.unwrap(), task);
    let events = rest(&mut client.stream(message.clone()).await.unwrap()).await;
    assert_eq!(events.iter().map(task_of).collect::<Vec<_>>(), [&task]);
    // And once that has gone too, it is another send.
    policy.sends = Some(Duration::ZERO);
    bench.empty().await;
    assert_eq!(store.sweep(&policy, i64::MAX, &|_| false).await.unwrap().sends, 1);
    assert_ne!(client.send(message).await.unwrap().id, task.id);
}
