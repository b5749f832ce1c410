//! Retention: expiry of tasks, logs and idempotency keys, and readers that are active meanwhile.

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
use crate::store::opened::OpenedStore;

const DAY: u64 = 24 * 60 * 60 * 1000;

/// Default retention, swept every hour.
fn policy() -> Retention {
    let mut policy = Retention::default();
    policy.interval = Duration::from_hours(1);
    policy
}

#[tokio::test(start_paused = true)]
async fn terminal_task_is_deleted_after_its_retention() {
    let bench = bench(Arc::new(Memory::default()), scripted);
    bench.service.start_retention(policy());
    let old = bench.send(Message::user("done")).await.unwrap().id;
    let runs = bench.non_blocking().send(Message::user("hang")).await.unwrap().id;
    sleep_ms(5 * DAY).await;
    let young = bench.as_owner("bob").send(Message::user("fail:so")).await.unwrap().id;
    sleep_ms(2 * DAY - 1).await;
    assert_eq!(bench.state(&old).await, TaskState::Completed);
    sleep_ms(DAY / 24 + 2).await;
    assert_eq!(error_kind(bench.get(&old).await), ErrorKind::TaskNotFound);
    assert_eq!(bench.states_by_id().await.into_keys().collect::<Vec<_>>(), [runs]);
    assert_eq!(bench.as_owner("bob").state(&young).await, TaskState::Failed);
}

/// Limits without a maximum age of streams.
fn unlimited_stream_age() -> Limits {
    let mut limits = Limits::default();
    limits.stream_max_age = Duration::ZERO;
    limits
}

/// A task that waits for input is canceled after its retention; its subscribers see the end, and later it is deleted.
#[tokio::test(start_paused = true)]
async fn unanswered_interrupted_task_is_canceled_after_its_retention() {
    let bench = with_limits(Arc::new(Memory::default()), unlimited_stream_age(), scripted);
    bench.service.start_retention(policy());
    let asked = bench.send(Message::user("ask:what")).await.unwrap().id;
    let answered = bench.send(Message::user("sign:here")).await.unwrap().id;
    let mut events = bench.subscribe(&asked).await.unwrap();
    assert_eq!(task_in(&next_event(&mut events).await).state(), TaskState::InputRequired);
    sleep_ms(20 * DAY).await;
    bench.send(follow_up(&answered, "ask:more")).await.unwrap();
    sleep_ms(10 * DAY - 1).await;
    assert_eq!(bench.state(&asked).await, TaskState::InputRequired);
    sleep_ms(DAY / 24 + 2).await;
    let last = remaining_events(&mut events).await;
    assert_eq!(states(&last), [TaskState::Canceled]);
    drop(events);
    let task = bench.get(&asked).await.unwrap();
    assert_eq!(
        (task.state(), &*status_text(&task)),
        (TaskState::Canceled, "The task was canceled because the client did not answer in time.")
    );
    assert_eq!(bench.state(&answered).await, TaskState::InputRequired);
    // From now on it is kept as long as any terminal task.
    assert_eq!(error_kind(bench.send(follow_up(&asked, "here")).await), ErrorKind::TaskEnded);
    sleep_ms(8 * DAY).await;
    assert_eq!(error_kind(bench.get(&asked).await), ErrorKind::TaskNotFound);
    bench.wait_until_evicted().await;
}

/// A sweep skips tasks that a stream reads.
#[tokio::test(start_paused = true)]
async fn task_with_a_reader_is_not_deleted() {
    let bench = with_limits(Arc::new(Memory::default()), unlimited_stream_age(), scripted);
    bench.service.start_retention(policy());
    let mut events = bench.stream(Message::user("out:1 out:2 out:3 done")).await.unwrap();
    let first = next_event(&mut events).await;
    let id = task_id(&first);
    sleep_ms(100 * DAY).await;
    assert_eq!(bench.state(&id).await, TaskState::Completed);
    let all: Vec<_> = std::iter::once(first).chain(remaining_events(&mut events).await).collect();
    assert_dense(&all);
    assert_eq!(states(&all).last(), Some(&TaskState::Completed));
    drop(events);
    sleep_ms(DAY).await;
    assert_eq!(error_kind(bench.get(&id).await), ErrorKind::TaskNotFound);
}

#[tokio::test(start_paused = true)]
async fn drained_or_dropped_service_stops_sweeping() {
    let store: Arc<dyn Store> = Arc::new(Memory::default());
    let drained = bench(Arc::clone(&store), scripted);
    drained.service.start_retention(policy());
    let id = drained.send(Message::user("done")).await.unwrap().id;
    drained.service.drain(Duration::from_secs(1)).await;
    sleep_ms(100 * DAY).await;
    assert_eq!(drained.state(&id).await, TaskState::Completed);
    drop(drained);
    // The sweeper holds no reference to a dropped service.
    let dropped = bench(Arc::clone(&store), scripted);
    dropped.service.start_retention(policy());
    drop(dropped);
    sleep_ms(100 * DAY).await;
    assert_eq!(Arc::strong_count(&store), 1);
}

/// After its log was deleted, a stream is resumed with one event, the task, and then ends.
#[tokio::test]
async fn stream_resumes_with_the_task_after_its_log_was_deleted() {
    let opened = OpenedStore::sqlite(Options::default());
    let store = Arc::clone(&opened.store);
    let bench = bench(Arc::clone(&store), scripted);
    let streamed = remaining_events(&mut bench.stream(Message::user("out:1 out:2 done")).await.unwrap()).await;
    let id = task_id(&streamed[0]);
    let task = bench.get(&id).await.unwrap();
    let cursor = |index: usize| Cursor::new(&id, streamed[index].position());
    let last = streamed.len() - 1;
    for deleted in [false, true] {
        if deleted {
            bench.wait_until_evicted().await;
            let mut policy = Retention::FOREVER;
            policy.logs = Some(Duration::ZERO);
            assert_eq!(store.sweep(&policy, i64::MAX, &|_| false).await.unwrap().logs, 1);
        }
        for (from, missed) in streamed.iter().enumerate().take(last) {
            let mut events = bench.resume(&id, Some(&cursor(from))).await.unwrap();
            let events = remaining_events(&mut events).await;
            if deleted {
                assert_eq!(events.iter().map(task_in).collect::<Vec<_>>(), [&task], "after {}", missed.seq());
                assert_eq!(events[0].position(), streamed[last].position());
            } else {
                assert_eq!(seqs(&events), seqs(&streamed[from + 1..]));
            }
        }
        let mut events = bench.resume(&id, Some(&cursor(last))).await.unwrap();
        assert!(events.next().await.is_none(), "no event was missed");
    }
    assert_eq!(bench.get(&id).await.unwrap(), task);
    let all = ListTasksRequest { include_artifacts: Some(true), ..Default::default() };
    assert_eq!(bench.list(all).await.unwrap().tasks, [task]);
}

/// Idempotency keys are kept longer than logs.
#[tokio::test]
async fn retried_send_finds_its_task_after_the_log_was_deleted() {
    let opened = OpenedStore::sqlite(Options::default());
    let store = Arc::clone(&opened.store);
    let bench = bench(Arc::clone(&store), scripted);
    let mut client = bench.client.clone();
    client.call.idempotency_key = Some("k".into());
    let message = Message::user("out:1 out:2 done");
    let task = client.send(message.clone()).await.unwrap();
    bench.wait_until_evicted().await;
    let mut policy = Retention::FOREVER;
    policy.logs = Some(Duration::ZERO);
    assert_eq!(store.sweep(&policy, i64::MAX, &|_| false).await.unwrap().logs, 1);
    assert_eq!(client.send(message.clone()).await.unwrap(), task);
    let events = remaining_events(&mut client.stream(message.clone()).await.unwrap()).await;
    assert_eq!(events.iter().map(task_in).collect::<Vec<_>>(), [&task]);
    // After the key has expired, the send is a new one.
    policy.idempotency_keys = Some(Duration::ZERO);
    bench.wait_until_evicted().await;
    assert_eq!(store.sweep(&policy, i64::MAX, &|_| false).await.unwrap().idempotency_keys, 1);
    assert_ne!(client.send(message).await.unwrap().id, task.id);
}
