//! Lists: what is on them, in which order, and what pages do while tasks come and change.

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
    tasks.iter().map(|it| it.id.as_str()).collect()
}

/// All pages of a list, and what each of them said of the whole.
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
async fn a_list_has_what_was_asked_for() {
    for store in stores() {
        let bench = bench(store, script);
        let mut all = Vec::new();
        for n in 0..30 {
            let text = ["done", "ask:what", "reject:no", "sign:in", "fail"][n % 5];
            let context_id = format!("c-{}", n % 3);
            all.push(bench.send(Message { context_id, ..Message::user(text) }).await.unwrap());
            pass(7).await;
        }
        bench.by("bob").send(Message::user("done")).await.unwrap();
        bench.in_tenant("blue").send(Message::user("done")).await.unwrap();
        all.sort_by(|a, b| (time_of(b), &b.id).cmp(&(time_of(a), &a.id)));
        for context in ["", "c-0", "c-2", "c-9"] {
            for state in [TaskState::Unspecified, TaskState::Completed, TaskState::InputRequired, TaskState::Working] {
                for since in [None, Some(&all[0]), Some(&all[12]), Some(&all[29])] {
                    let request = ListTasksRequest {
                        context_id: context.into(),
                        status: state.into(),
                        status_timestamp_after: since.map(|it| it.status.clone().unwrap().timestamp.unwrap()),
                        ..Default::default()
                    };
                    let fits = |it: &&Task| {
                        (context.is_empty() || it.context_id == context)
                            && (state == TaskState::Unspecified || it.state() == state)
                            && since.is_none_or(|since| time_of(it) >= time_of(since))
                    };
                    let expected: Vec<_> = all.iter().filter(fits).map(|it| it.id.as_str()).collect();
                    for page_size in [None, Some(1), Some(4), Some(100)] {
                        let (tasks, totals) = pages(&bench, ListTasksRequest { page_size, ..request.clone() }).await;
                        assert_eq!(ids(&tasks), expected);
                        assert!(totals.iter().all(|it| usize::try_from(*it) == Ok(expected.len())), "{totals:?}");
                        assert_eq!(
                            totals.len(),
                            expected.len().div_ceil(page_size.map_or(50, |it| usize::try_from(it).unwrap())).max(1)
                        );
                    }
                }
            }
        }
        // As others have theirs.
        assert_eq!(bench.by("bob").listed().await.len(), 1);
        assert_eq!(bench.in_tenant("blue").listed().await.len(), 1);
        assert_eq!(bench.by("nobody").listed().await.len(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_shows_what_was_asked_for() {
    for store in stores() {
        let bench = bench(store, script);
        let ended = bench.send(Message::user("work:a out:x done:bye")).await.unwrap();
        let waits = bench.send(Message::user("work:a out:x ask:what")).await.unwrap();
        let runs = bench.hasty().send(Message::user("work:a out:x hang")).await.unwrap().id;
        settle().await;
        let runs = bench.get(&runs).await.unwrap();
        for (include_artifacts, history_length) in [(None, None), (Some(false), Some(0)), (Some(true), Some(1))] {
            let request = ListTasksRequest { include_artifacts, history_length, ..Default::default() };
            let page = bench.list(request).await.unwrap();
            for whole in [&ended, &waits, &runs] {
                let listed = page.tasks.iter().find(|it| it.id == whole.id).unwrap();
                let mut expected = whole.clone();
                if include_artifacts != Some(true) {
                    expected.artifacts.clear();
                }
                let surplus =
                    history_length.map_or(0, |it| expected.history.len().saturating_sub(usize::try_from(it).unwrap()));
                expected.history.drain(..surplus);
                assert_eq!(listed, &expected);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_that_can_not_be_is_refused() {
    let bench = bench(Arc::new(Memory::default()), script);
    for _ in 0..5 {
        bench.send(Message::user("ask:what")).await.unwrap();
    }
    let page = bench.list(ListTasksRequest { page_size: Some(2), ..Default::default() }).await.unwrap();
    let token = page.next_page_token;
    assert!(!token.is_empty());
    let of = |token: &str| ListTasksRequest { page_token: token.into(), ..Default::default() };
    let time = Some(Timestamp { seconds: 1, nanos: 0 });
    for (request, field) in [
        (ListTasksRequest { page_size: Some(0), ..Default::default() }, "pageSize"),
        (ListTasksRequest { page_size: Some(101), ..Default::default() }, "pageSize"),
        (ListTasksRequest { page_size: Some(-1), ..Default::default() }, "pageSize"),
        (ListTasksRequest { history_length: Some(-1), ..Default::default() }, "historyLength"),
        (ListTasksRequest { status: 99, ..Default::default() }, "status"),
        (of("nonsense"), "pageToken"),
        (of(&token[1..]), "pageToken"),
        (of(&format!("{token}AAAA=")), "pageToken"),
        (ListTasksRequest { context_id: "c".into(), ..of(&token) }, "pageToken"),
        (ListTasksRequest { status: TaskState::Working.into(), ..of(&token) }, "pageToken"),
        (ListTasksRequest { status_timestamp_after: time, ..of(&token) }, "pageToken"),
    ] {
        let refused = bench.list(request.clone()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidParams, "{request:?}");
        assert_eq!(refused.violations()[0].field, field, "{request:?}");
    }
    // Another size, or more of each, is the same query.
    for request in [
        ListTasksRequest { page_size: Some(100), include_artifacts: Some(true), ..of(&token) },
        ListTasksRequest { history_length: Some(0), ..of(&token) },
    ] {
        assert_eq!(bench.list(request).await.unwrap().tasks.len(), 3);
    }
    // Someone else's token shows what is one's own.
    assert_eq!(bench.by("bob").list(of(&token)).await.unwrap().tasks.len(), 0);
}

/// A thousand tasks of the same millisecond, while others come and some of them change: what did not change is on the
/// pages once.
#[tokio::test(start_paused = true)]
async fn pages_skip_nothing_and_double_nothing() {
    for store in stores() {
        let bench = bench(store, script);
        let mut still = BTreeSet::new();
        let mut changes = Vec::new();
        for n in 0..1000 {
            let id = bench.send(Message::user("ask:what")).await.unwrap().id;
            if n % 5 == 0 { changes.push(id) } else { still.extend([id]) }
        }
        let mut total = 1000;
        for step in [0, 1] {
            let (mut seen, mut token) = (BTreeMap::<String, usize>::new(), String::new());
            loop {
                let request = ListTasksRequest { page_size: Some(37), page_token: token, ..Default::default() };
                let page = bench.list(request).await.unwrap();
                assert!(page.tasks.is_sorted_by(|a, b| (time_of(a), &a.id) > (time_of(b), &b.id)));
                for it in page.tasks {
                    *seen.entry(it.id).or_default() += 1;
                }
                assert_eq!(page.total_size, total);
                if page.next_page_token.is_empty() {
                    break;
                }
                token = page.next_page_token;
                // One comes, three change; at first all in the same millisecond, then later than all the others.
                pass(step).await;
                bench.send(Message::user("ask:new")).await.unwrap();
                for _ in 0..3 {
                    if let Some(id) = changes.pop() {
                        bench.send(to(&id, "ask:again")).await.unwrap();
                    }
                }
                total += 1;
            }
            assert!(still.iter().all(|it| seen.get(it) == Some(&1)));
            assert!(seen.values().all(|it| *it == 1), "a task that changed is not shown twice");
        }
    }
}
