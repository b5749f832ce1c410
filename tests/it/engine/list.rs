//! Task lists: filters, order, projections, page tokens, and paging while tasks are added and changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use a2a_service::{
    error::ErrorKind,
    pb::{
        v1::{ListTasksRequest, Message, Task, TaskState},
        wkt::Timestamp,
    },
    store::{Store, memory::Memory},
};

use super::support::*;
use crate::gate::Gate;

fn stores() -> [Arc<dyn Store>; 2] {
    [Arc::new(Memory::default()), Gate::opened()]
}

fn time_of(task: &Task) -> (i64, i32) {
    let time = task.status.as_ref().unwrap().timestamp.as_ref().unwrap();
    (time.seconds, time.nanos)
}

fn ids(tasks: &[Task]) -> Vec<&str> {
    tasks.iter().map(|task| task.id.as_str()).collect()
}

/// Tasks of all pages, and the total size reported by each page.
async fn pages(client: &Client, request: ListTasksRequest) -> (Vec<Task>, Vec<i32>) {
    let (mut tasks, mut totals, mut token) = (Vec::new(), Vec::new(), String::new());
    loop {
        let request = ListTasksRequest { page_token: token, ..request.clone() };
        let page = client.list(request.clone()).await.unwrap();
        assert_eq!(page.page_size, request.page_size.unwrap_or(50));
        assert!(page.tasks.len() <= usize::try_from(page.page_size).unwrap());
        tasks.extend(page.tasks);
        totals.push(page.total_size);
        if page.next_page_token.is_empty() {
            return (tasks, totals);
        }
        token = page.next_page_token;
    }
}

#[tokio::test(start_paused = true)]
async fn list_filters_by_context_state_and_time() {
    for store in stores() {
        let bench = bench(store, scripted);
        let mut all = Vec::new();
        for n in 0..30 {
            let text = ["done", "ask:what", "reject:no", "sign:in", "fail"][n % 5];
            let context_id = format!("c-{}", n % 3);
            all.push(bench.send(Message { context_id, ..Message::user(text) }).await.unwrap());
            sleep_ms(7).await;
        }
        bench.as_owner("bob").send(Message::user("done")).await.unwrap();
        bench.in_tenant("blue").send(Message::user("done")).await.unwrap();
        all.sort_by(|a, b| (time_of(b), &b.id).cmp(&(time_of(a), &a.id)));
        for context in ["", "c-0", "c-2", "c-9"] {
            for state in [TaskState::Unspecified, TaskState::Completed, TaskState::InputRequired, TaskState::Working] {
                for since in [None, Some(&all[0]), Some(&all[12]), Some(&all[29])] {
                    let request = ListTasksRequest {
                        context_id: context.into(),
                        status: state.into(),
                        status_timestamp_after: since.map(|task| task.status.clone().unwrap().timestamp.unwrap()),
                        ..Default::default()
                    };
                    let fits = |task: &&Task| {
                        (context.is_empty() || task.context_id == context)
                            && (state == TaskState::Unspecified || task.state() == state)
                            && since.is_none_or(|since| time_of(task) >= time_of(since))
                    };
                    let expected: Vec<_> = all.iter().filter(fits).map(|task| task.id.as_str()).collect();
                    for page_size in [None, Some(1), Some(4), Some(100)] {
                        let (tasks, totals) = pages(&bench, ListTasksRequest { page_size, ..request.clone() }).await;
                        assert_eq!(ids(&tasks), expected);
                        assert!(totals.iter().all(|total| usize::try_from(*total) == Ok(expected.len())), "{totals:?}");
                        assert_eq!(
                            totals.len(),
                            expected.len().div_ceil(page_size.map_or(50, |size| usize::try_from(size).unwrap())).max(1)
                        );
                    }
                }
            }
        }
        // Lists of other owners and tenants.
        assert_eq!(bench.as_owner("bob").states_by_id().await.len(), 1);
        assert_eq!(bench.in_tenant("blue").states_by_id().await.len(), 1);
        assert_eq!(bench.as_owner("nobody").states_by_id().await.len(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn list_includes_artifacts_and_history_as_requested() {
    for store in stores() {
        let bench = bench(store, scripted);
        let ended = bench.send(Message::user("work:a out:x done:bye")).await.unwrap();
        let waits = bench.send(Message::user("work:a out:x ask:what")).await.unwrap();
        let runs = bench.non_blocking().send(Message::user("work:a out:x hang")).await.unwrap().id;
        run_ready_tasks().await;
        let runs = bench.get(&runs).await.unwrap();
        for (include_artifacts, history_length) in [(None, None), (Some(false), Some(0)), (Some(true), Some(1))] {
            let request = ListTasksRequest { include_artifacts, history_length, ..Default::default() };
            let page = bench.list(request).await.unwrap();
            for whole in [&ended, &waits, &runs] {
                let listed = page.tasks.iter().find(|task| task.id == whole.id).unwrap();
                let mut expected = whole.clone();
                if include_artifacts != Some(true) {
                    expected.artifacts.clear();
                }
                let surplus = history_length
                    .map_or(0, |length| expected.history.len().saturating_sub(usize::try_from(length).unwrap()));
                expected.history.drain(..surplus);
                assert_eq!(listed, &expected);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn invalid_list_request_is_rejected() {
    let bench = bench(Arc::new(Memory::default()), scripted);
    for _ in 0..5 {
        bench.send(Message::user("ask:what")).await.unwrap();
    }
    let page = bench.list(ListTasksRequest { page_size: Some(2), ..Default::default() }).await.unwrap();
    let token = page.next_page_token;
    assert!(!token.is_empty());
    let with_token = |token: &str| ListTasksRequest { page_token: token.into(), ..Default::default() };
    let time = Some(Timestamp { seconds: 1, nanos: 0 });
    for (request, field) in [
        (ListTasksRequest { page_size: Some(0), ..Default::default() }, "pageSize"),
        (ListTasksRequest { page_size: Some(101), ..Default::default() }, "pageSize"),
        (ListTasksRequest { page_size: Some(-1), ..Default::default() }, "pageSize"),
        (ListTasksRequest { history_length: Some(-1), ..Default::default() }, "historyLength"),
        (ListTasksRequest { status: 99, ..Default::default() }, "status"),
        (with_token("nonsense"), "pageToken"),
        (with_token(&token[1..]), "pageToken"),
        (with_token(&format!("{token}AAAA=")), "pageToken"),
        (ListTasksRequest { context_id: "c".into(), ..with_token(&token) }, "pageToken"),
        (ListTasksRequest { status: TaskState::Working.into(), ..with_token(&token) }, "pageToken"),
        (ListTasksRequest { status_timestamp_after: time, ..with_token(&token) }, "pageToken"),
    ] {
        let refused = bench.list(request.clone()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidParams, "{request:?}");
        assert_eq!(refused.violations()[0].field, field, "{request:?}");
    }
    // Page size, history length and artifacts may change between pages.
    for request in [
        ListTasksRequest { page_size: Some(100), include_artifacts: Some(true), ..with_token(&token) },
        ListTasksRequest { history_length: Some(0), ..with_token(&token) },
    ] {
        assert_eq!(bench.list(request).await.unwrap().tasks.len(), 3);
    }
    // A token of another owner lists the caller's own tasks.
    assert_eq!(bench.as_owner("bob").list(with_token(&token)).await.unwrap().tasks.len(), 0);
}

/// Pages over 1000 tasks with equal timestamps, while tasks are added and changed: each unchanged task is listed once.
#[tokio::test(start_paused = true)]
async fn paging_neither_skips_nor_repeats_tasks() {
    for store in stores() {
        let bench = bench(store, scripted);
        let mut unchanged = BTreeSet::new();
        let mut changes = Vec::new();
        for n in 0..1000 {
            let id = bench.send(Message::user("ask:what")).await.unwrap().id;
            if n % 5 == 0 { changes.push(id) } else { unchanged.extend([id]) }
        }
        let mut total = 1000;
        for step in [0, 1] {
            let (mut seen, mut token) = (BTreeMap::<String, usize>::new(), String::new());
            loop {
                let request = ListTasksRequest { page_size: Some(37), page_token: token, ..Default::default() };
                let page = bench.list(request).await.unwrap();
                assert!(page.tasks.is_sorted_by(|a, b| (time_of(a), &a.id) > (time_of(b), &b.id)));
                for task in page.tasks {
                    *seen.entry(task.id).or_default() += 1;
                }
                assert_eq!(page.total_size, total);
                if page.next_page_token.is_empty() {
                    break;
                }
                token = page.next_page_token;
                // One task is added and three are changed: first in the same millisecond, then later than all others.
                sleep_ms(step).await;
                bench.send(Message::user("ask:new")).await.unwrap();
                for _ in 0..3 {
                    if let Some(id) = changes.pop() {
                        bench.send(follow_up(&id, "ask:again")).await.unwrap();
                    }
                }
                total += 1;
            }
            assert!(unchanged.iter().all(|id| seen.get(id) == Some(&1)));
            assert!(seen.values().all(|count| *count == 1), "no changed task is listed twice");
        }
    }
}
