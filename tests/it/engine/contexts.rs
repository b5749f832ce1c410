//! Whose tasks they are, which conversation they are part of, and that nobody else learns that they are there.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use a2a_service::{
    error::{Error, ErrorKind},
    pb::v1::{ListTasksRequest, Message, TaskState},
    store::{Store, memory::Memory},
};

use super::support::*;
use crate::gate::Gate;

fn stores() -> [Arc<dyn Store>; 2] {
    [Arc::new(Memory::default()), Gate::opened()]
}

fn within(context: &str, text: &str) -> Message {
    Message { context_id: context.to_owned(), ..Message::user(text) }
}

#[tokio::test(start_paused = true)]
async fn who_names_no_context_gets_one_of_their_own() {
    let bench = bench(Arc::new(Memory::default()), script);
    let one = bench.send(Message::user("out:x ask:what")).await.unwrap();
    let two = bench.send(Message::user("ask:what")).await.unwrap();
    let anonymous = bench.by("").send(Message::user("ask:what")).await.unwrap();
    let other = bench.by("").send(Message::user("ask:what")).await.unwrap();
    let mut all = vec![one.context_id, two.context_id, anonymous.context_id, other.context_id];
    assert!(all.iter().all(|it| !it.is_empty()));
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_context_is_kept_and_its_tasks_are_apart() {
    for store in stores() {
        let bench = bench(store, script);
        let one = bench.send(within("c-1", "work:a out:x ask:what")).await.unwrap();
        let two = bench.send(within("c-1", "ask:what")).await.unwrap();
        assert_eq!((one.context_id.as_str(), two.context_id.as_str()), ("c-1", "c-1"));
        assert_ne!(one.id, two.id);
        assert_eq!((texts(&two), two.artifacts.len(), &two.metadata), (vec!["ask:what".to_owned()], 0, &None));
        assert_eq!(two.history[0].context_id, "c-1");
        let again = bench.send(Message { task_id: one.id.clone(), ..within("c-1", "ask:more") }).await.unwrap();
        assert_eq!((again.id, again.context_id.as_str()), (one.id, "c-1"));
        let listed = bench.list(ListTasksRequest { context_id: "c-1".into(), ..Default::default() }).await.unwrap();
        assert_eq!(listed.total_size, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_to_a_task_is_in_the_context_of_the_task() {
    for store in stores() {
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&runs);
        let bench = bench(store, move |turn, out| {
            counted.fetch_add(1, Ordering::SeqCst);
            script(turn, out)
        });
        let task = bench.send(within("c-1", "ask:what")).await.unwrap();
        let message = Message { task_id: task.id.clone(), ..within("c-2", "done") };
        for refused in [
            bench.send(message.clone()).await.map(drop),
            bench.hasty().send(message.clone()).await.map(drop),
            bench.stream(message.clone()).await.map(drop),
        ] {
            let refused = refused.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidParams);
            assert_eq!(refused.violations()[0].field, "message.contextId");
        }
        assert_eq!(runs.load(Ordering::SeqCst), 1);
        // A task that is not there has no context that could be another.
        let message = Message { task_id: "t-9".into(), ..message };
        assert_eq!(kind(bench.send(message).await), ErrorKind::TaskNotFound);
    }
}

#[tokio::test(start_paused = true)]
async fn what_has_ended_takes_no_message() {
    for store in stores() {
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&runs);
        let bench = bench(store, move |turn, out| {
            counted.fetch_add(1, Ordering::SeqCst);
            script(turn, out)
        });
        for (n, text) in ["done", "reject:no", "fail"].into_iter().enumerate() {
            let task = bench.send(Message::user(text)).await.unwrap();
            for refused in [
                bench.send(to(&task.id, "more")).await.map(drop),
                bench.hasty().send(to(&task.id, "more")).await.map(drop),
                bench.stream(to(&task.id, "more")).await.map(drop),
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

/// A foreign task is a missing task: by no operation, and by no word of an error, can one tell them apart.
#[tokio::test(start_paused = true)]
async fn a_foreign_task_is_a_missing_task() {
    for store in stores() {
        let bench = bench(store, script);
        let scopes = [
            bench.client.clone(),
            bench.by("bob"),
            bench.by(""),
            bench.in_tenant("blue"),
            bench.by("bob").in_tenant("blue"),
            bench.by("").in_tenant("blue"),
        ];
        let mut ids = Vec::new();
        for client in &scopes {
            // They all name the same context, which makes them share nothing.
            let waits = client.send(within("c-1", "ask:what")).await.unwrap().id;
            let runs = client.hasty().send(within("c-1", "work hang")).await.unwrap().id;
            let ended = client.send(within("c-1", "done")).await.unwrap().id;
            ids.push([waits, runs, ended]);
        }
        settle().await;
        let words = |it: Error, id: &str| (it.kind(), it.to_string().replace(id, "ID"));
        for (n, client) in scopes.iter().enumerate() {
            let listed: Vec<_> = client.listed().await.into_keys().collect();
            assert_eq!(listed.len(), 3);
            assert!(ids[n].iter().all(|it| listed.contains(it)));
            let context = ListTasksRequest { context_id: "c-1".into(), ..Default::default() };
            assert_eq!(client.list(context).await.unwrap().total_size, 3);
            let foreign = ids.iter().enumerate().filter(|it| it.0 != n).flat_map(|it| it.1);
            for id in foreign.map(String::as_str).chain(["no-such-task"]) {
                for refused in [
                    client.get(id).await.map(drop),
                    client.cancel(id).await.map(drop),
                    client.subscribe(id).await.map(drop),
                    client.send(to(id, "done")).await.map(drop),
                    client.send(Message { task_id: id.into(), ..within("c-2", "done") }).await.map(drop),
                    client.hasty().send(to(id, "done")).await.map(drop),
                    client.stream(to(id, "done")).await.map(drop),
                ] {
                    let missing = (ErrorKind::TaskNotFound, "Task not found: ID".to_owned());
                    assert_eq!(words(refused.unwrap_err(), id), missing);
                }
            }
        }
        // And nothing has happened to any of them.
        for (client, [waits, runs, ended]) in scopes.iter().zip(&ids) {
            assert_eq!(client.state(waits).await, TaskState::InputRequired);
            assert_eq!(client.state(runs).await, TaskState::Working);
            assert_eq!(client.state(ended).await, TaskState::Completed);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_has_to_have_what_it_needs() {
    let bench = bench(Arc::new(Memory::default()), script);
    let refused = bench.send(Message { message_id: String::new(), ..Message::user("done") }).await.unwrap_err();
    assert_eq!(refused.violations()[0].field, "message.messageId");
    let refused = bench.send(Message { parts: Vec::new(), ..Message::user("done") }).await.unwrap_err();
    assert_eq!(refused.violations()[0].field, "message.parts");
    assert_eq!(bench.get("").await.unwrap_err().violations()[0].field, "id");
    assert_eq!(bench.listed().await.len(), 0);
    // Nobody is anonymous by oversight.
    let request = tonic::Request::new(a2a_service::pb::v1::GetTaskRequest { id: "t".into(), ..Default::default() });
    assert_eq!(Error::from(bench.api.get_task(request).await.unwrap_err()).kind(), ErrorKind::Internal);
}
