//! Task ownership and contexts: context ids, and tasks of other owners and tenants that read as missing.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use a2a_service::{
    error::{Error, ErrorKind},
    pb::v1::{ListTasksRequest, Message, Task, TaskState},
    service::Limits,
    store::{Store, memory::Memory},
};

use super::support::*;
use crate::gate::Gate;

fn stores() -> [Arc<dyn Store>; 2] {
    [Arc::new(Memory::default()), Gate::opened()]
}

fn in_context(context: &str, text: &str) -> Message {
    Message { context_id: context.to_owned(), ..Message::user(text) }
}

#[tokio::test(start_paused = true)]
async fn message_without_context_gets_a_new_context() {
    let bench = bench(Arc::new(Memory::default()), scripted);
    let one = bench.send(Message::user("out:x ask:what")).await.unwrap();
    let two = bench.send(Message::user("ask:what")).await.unwrap();
    let anonymous = bench.as_owner("").send(Message::user("ask:what")).await.unwrap();
    let other = bench.as_owner("").send(Message::user("ask:what")).await.unwrap();
    let mut all = vec![one.context_id, two.context_id, anonymous.context_id, other.context_id];
    assert!(all.iter().all(|context| !context.is_empty()));
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn tasks_of_one_context_share_no_history_or_artifacts() {
    for store in stores() {
        let bench = bench(store, scripted);
        let one = bench.send(in_context("c-1", "work:a out:x ask:what")).await.unwrap();
        let two = bench.send(in_context("c-1", "ask:what")).await.unwrap();
        assert_eq!((one.context_id.as_str(), two.context_id.as_str()), ("c-1", "c-1"));
        assert_ne!(one.id, two.id);
        assert_eq!((history_texts(&two), two.artifacts.len(), &two.metadata), (vec!["ask:what".to_owned()], 0, &None));
        assert_eq!(two.history[0].context_id, "c-1");
        let continued = bench.send(Message { task_id: one.id.clone(), ..in_context("c-1", "ask:more") }).await.unwrap();
        assert_eq!((continued.id, continued.context_id.as_str()), (one.id, "c-1"));
        let listed = bench.list(ListTasksRequest { context_id: "c-1".into(), ..Default::default() }).await.unwrap();
        assert_eq!(listed.total_size, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn follow_up_with_another_context_id_is_rejected() {
    for store in stores() {
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&runs);
        let bench = bench(store, move |turn, out| {
            counted.fetch_add(1, Ordering::SeqCst);
            scripted(turn, out)
        });
        let task = bench.send(in_context("c-1", "ask:what")).await.unwrap();
        let message = Message { task_id: task.id.clone(), ..in_context("c-2", "done") };
        for refused in [
            bench.send(message.clone()).await.map(drop),
            bench.non_blocking().send(message.clone()).await.map(drop),
            bench.stream(message.clone()).await.map(drop),
        ] {
            let refused = refused.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidParams);
            assert_eq!(refused.violations()[0].field, "message.contextId");
        }
        assert_eq!(runs.load(Ordering::SeqCst), 1);
        // For a missing task, no context mismatch is reported.
        let message = Message { task_id: "t-9".into(), ..message };
        assert_eq!(error_kind(bench.send(message).await), ErrorKind::TaskNotFound);
    }
}

#[tokio::test(start_paused = true)]
async fn message_to_a_terminal_task_is_rejected() {
    for store in stores() {
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&runs);
        let bench = bench(store, move |turn, out| {
            counted.fetch_add(1, Ordering::SeqCst);
            scripted(turn, out)
        });
        for (n, text) in ["done", "reject:no", "fail"].into_iter().enumerate() {
            let task = bench.send(Message::user(text)).await.unwrap();
            for refused in [
                bench.send(follow_up(&task.id, "more")).await.map(drop),
                bench.non_blocking().send(follow_up(&task.id, "more")).await.map(drop),
                bench.stream(follow_up(&task.id, "more")).await.map(drop),
                bench.subscribe(&task.id).await.map(drop),
            ] {
                let refused = refused.unwrap_err();
                assert_eq!((refused.kind(), refused.wire().reason), (ErrorKind::TaskEnded, "UNSUPPORTED_OPERATION"));
                assert_eq!(refused.wire().json_rpc, -32004);
            }
            assert_eq!(bench.get(&task.id).await.unwrap(), task);
            assert_eq!(runs.load(Ordering::SeqCst), n + 1);
        }
    }
}

/// No operation and no error text distinguishes a task of another owner or tenant from a missing one.
#[tokio::test(start_paused = true)]
async fn task_of_another_owner_reads_as_missing() {
    for store in stores() {
        let bench = bench(store, scripted);
        let scopes = [
            bench.client.clone(),
            bench.as_owner("bob"),
            bench.as_owner(""),
            bench.in_tenant("blue"),
            bench.as_owner("bob").in_tenant("blue"),
            bench.as_owner("").in_tenant("blue"),
        ];
        let mut ids = Vec::new();
        for client in &scopes {
            // All scopes use the same context id, which shares nothing between them.
            let waits = client.send(in_context("c-1", "ask:what")).await.unwrap().id;
            let runs = client.non_blocking().send(in_context("c-1", "work hang")).await.unwrap().id;
            let ended = client.send(in_context("c-1", "done")).await.unwrap().id;
            ids.push([waits, runs, ended]);
        }
        run_ready_tasks().await;
        let normalized = |error: Error, id: &str| (error.kind(), error.to_string().replace(id, "ID"));
        for (n, client) in scopes.iter().enumerate() {
            let listed: Vec<_> = client.states_by_id().await.into_keys().collect();
            assert_eq!(listed.len(), 3);
            assert!(ids[n].iter().all(|id| listed.contains(id)));
            let context = ListTasksRequest { context_id: "c-1".into(), ..Default::default() };
            assert_eq!(client.list(context).await.unwrap().total_size, 3);
            let foreign = ids.iter().enumerate().filter(|(owner, _)| *owner != n).flat_map(|(_, ids)| ids);
            for id in foreign.map(String::as_str).chain(["no-such-task"]) {
                for refused in [
                    client.get(id).await.map(drop),
                    client.cancel(id).await.map(drop),
                    client.subscribe(id).await.map(drop),
                    client.send(follow_up(id, "done")).await.map(drop),
                    client.send(Message { task_id: id.into(), ..in_context("c-2", "done") }).await.map(drop),
                    client.non_blocking().send(follow_up(id, "done")).await.map(drop),
                    client.stream(follow_up(id, "done")).await.map(drop),
                ] {
                    let missing = (ErrorKind::TaskNotFound, "Task not found: ID".to_owned());
                    assert_eq!(normalized(refused.unwrap_err(), id), missing);
                }
            }
        }
        // No task was changed by the rejected requests.
        for (client, [waits, runs, ended]) in scopes.iter().zip(&ids) {
            assert_eq!(client.state(waits).await, TaskState::InputRequired);
            assert_eq!(client.state(runs).await, TaskState::Working);
            assert_eq!(client.state(ended).await, TaskState::Completed);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn missing_required_fields_are_rejected() {
    let bench = bench(Arc::new(Memory::default()), scripted);
    let refused = bench.send(Message { message_id: String::new(), ..Message::user("done") }).await.unwrap_err();
    assert_eq!(refused.violations()[0].field, "message.messageId");
    let refused = bench.send(Message { parts: Vec::new(), ..Message::user("done") }).await.unwrap_err();
    assert_eq!(refused.violations()[0].field, "message.parts");
    assert_eq!(bench.get("").await.unwrap_err().violations()[0].field, "id");
    assert_eq!(bench.states_by_id().await.len(), 0);
    // A request without a request context is an internal error, never an anonymous caller.
    let request = tonic::Request::new(a2a_service::pb::v1::GetTaskRequest { id: "t".into(), ..Default::default() });
    assert_eq!(Error::from(bench.api.get_task(request).await.unwrap_err()).kind(), ErrorKind::Internal);
}

fn context_limit(bytes: usize) -> Limits {
    let mut limits = Limits::default();
    limits.context_bytes = bytes;
    limits
}

/// Name of the limit that a message was rejected at.
fn refused_at(result: Result<Task, Error>) -> String {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}");
    error.metadata("limit").unwrap().to_owned()
}

/// Sends messages with an artifact of 1000 bytes each until one is rejected. Returns the number of completed tasks.
async fn fill(bench: &Client, context: &str) -> usize {
    let message = format!("out:{}", "x".repeat(1000));
    let mut completed = 0;
    loop {
        match bench.send(in_context(context, &message)).await {
            Ok(task) if task.state() == TaskState::Completed => completed += 1,
            Ok(task) => assert!(status_text(&task).contains("(limit context_bytes)"), "{}", status_text(&task)),
            result => {
                assert_eq!(refused_at(result), "context_bytes");
                return completed;
            }
        }
        assert!(completed < 50);
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_of_all_tasks_of_a_context_are_counted() {
    for store in stores() {
        let bench = with_limits(Arc::clone(&store), context_limit(20_000), scripted);
        let completed = fill(&bench, "c-1").await;
        assert!((6..20).contains(&completed), "{completed} tasks");
        // Other contexts, owners and tenants are counted separately.
        for (client, context) in
            [(bench.client.clone(), "c-2"), (bench.as_owner("bob"), "c-1"), (bench.in_tenant("t"), "c-1")]
        {
            assert_eq!(client.send(in_context(context, "done")).await.unwrap().state(), TaskState::Completed);
        }
        // Another process gets the size from the store once it has read it.
        bench.wait_until_evicted().await;
        let other = with_limits(store, context_limit(10_000), scripted);
        drop(other.send(in_context("c-1", "ask:what")).await);
        run_ready_tasks().await;
        assert_eq!(refused_at(other.send(in_context("c-1", "done")).await), "context_bytes");
    }
}

#[tokio::test(start_paused = true)]
async fn running_tasks_of_a_context_are_counted() {
    for store in stores() {
        let bench = with_limits(store, context_limit(12_000), scripted);
        // The context id is chosen by the server, and its first task runs while other messages arrive.
        let message = format!("out:{} hang", "x".repeat(4000));
        let first = bench.non_blocking().send(Message::user(&message)).await.unwrap();
        run_ready_tasks().await;
        let second = bench.send(in_context(&first.context_id, &format!("out:{}", "x".repeat(2000)))).await.unwrap();
        assert_eq!(second.state(), TaskState::Failed);
        assert_eq!(
            status_text(&second),
            "Agent execution failed (limit context_bytes): a context has at most 12000 bytes (limits.task_bytes)"
        );
        let large = "y".repeat(4500);
        assert_eq!(refused_at(bench.send(in_context(&first.context_id, &large)).await), "context_bytes");
        assert_eq!(refused_at(bench.send(follow_up(&first.id, &large)).await), "context_bytes");
        bench.cancel(&first.id).await.unwrap();
    }
}

/// A follow-up learns the size of a context from the store before it is accepted.
#[tokio::test(start_paused = true)]
async fn follow_up_to_a_task_that_has_left_memory_is_counted() {
    for store in stores() {
        let bench = with_limits(Arc::clone(&store), context_limit(100_000), scripted);
        let asked = bench.send(in_context("c-1", "ask:what")).await.unwrap();
        bench.send(in_context("c-1", &format!("out:{}", "x".repeat(5000)))).await.unwrap();
        bench.wait_until_evicted().await;
        let other = with_limits(store, context_limit(6000), scripted);
        assert_eq!(refused_at(other.send(follow_up(&asked.id, &"y".repeat(1000))).await), "context_bytes");
        assert_eq!(other.get(&asked.id).await.unwrap().history.len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn evicted_tasks_no_longer_count_in_their_context() {
    let bench = with_limits(Arc::new(Memory::with_max_tasks(20)), context_limit(15_000), scripted);
    let completed = fill(&bench, "c-1").await;
    assert!((4..15).contains(&completed), "{completed} tasks");
    for _ in 0..20 {
        bench.send(Message::user("done")).await.unwrap();
    }
    // The size is read again before a message is rejected, at most once a second.
    assert_eq!(fill(&bench, "c-1").await, 0);
    sleep_ms(1000).await;
    let completed = fill(&bench, "c-1").await;
    assert!((4..15).contains(&completed), "{completed} tasks");
}

#[tokio::test(start_paused = true)]
async fn message_replies_do_not_count_in_their_context() {
    let bench = with_limits(Arc::new(Memory::default()), context_limit(10_000), scripted);
    let large = format!("reply:{}", "x".repeat(3000));
    for _ in 0..10 {
        drop(bench.send_payload(in_context("c-1", &large)).await.unwrap());
    }
}
