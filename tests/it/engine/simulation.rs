//! Deterministic simulation: with a seeded environment and a paused clock, two runs of a server have equal results.

use std::{sync::Arc, time::Duration};

use a2a_service::{
    agent,
    event::{Cursor, Event},
    pb::v1::{ListTasksRequest, Message},
    service::Limits,
    sources::Sources,
    store::{Retention, Store, memory::Memory},
};
use futures::StreamExt as _;
use parking_lot::Mutex;
use tokio::{runtime::Builder, task::JoinSet};

use super::support::*;
use crate::gate::Gate;

/// Scripts of concurrent sends, which end, fail, ask, are canceled, or run longer than the grace period of the drain.
const SCRIPTS: [&str; 10] = [
    "done",
    "work out:a work:b pass:7 out:c done:d",
    "pass:200 out:a",
    "ask:what",
    "auth:sign pass:30 done",
    "fail:so",
    "panic:oh",
    "reply:hi",
    "reject:no",
    "work hang",
];

/// Observations of the clients in the order in which they were made, with the time in milliseconds.
#[derive(Clone)]
struct Record(Arc<Mutex<Vec<String>>>, tokio::time::Instant);

impl Record {
    fn add(&self, client: impl std::fmt::Debug, seen: &impl std::fmt::Debug) {
        self.0.lock().push(format!("{} {client:?} {seen:?}", self.1.elapsed().as_millis()));
    }

    fn add_event(&self, client: impl std::fmt::Debug, event: &Event) {
        self.add(client, &(event.cursor().map(Cursor::to_string), event.payload()));
    }
}

fn message(client: &str, text: &str) -> Message {
    Message { message_id: format!("m-{client}"), ..Message::user(text) }
}

/// Runs clients against a server with this seed, and returns what they have observed.
fn run(seed: u64, store: fn() -> Arc<dyn Store>) -> Vec<String> {
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let sources = Sources::simulated(seed, 1_800_000_000_000);
        let bench = with_sources(store(), Limits::default(), sources, agent::from_fn(scripted));
        let mut retention = Retention::default();
        retention.interval = Duration::from_hours(1);
        bench.service.start_retention(retention);
        let record = Record(Arc::default(), tokio::time::Instant::now());
        let mut clients = JoinSet::new();
        for round in 0..20_u64 {
            for (n, script) in SCRIPTS.into_iter().enumerate() {
                let (name, record, client) = (format!("{round}-{n}"), record.clone(), bench.client.clone());
                clients.spawn(async move {
                    sleep_ms(round * 3).await;
                    if round % 2 == 0 {
                        let task = client.non_blocking().send(message(&name, script)).await;
                        record.add(&name, &task);
                        // A turn that replies with a message has a task here.
                        let id = task.unwrap().id;
                        sleep_ms(10).await;
                        record.add(&name, &client.cancel(&id).await);
                        return;
                    }
                    let mut events = client.stream(message(&name, script)).await.unwrap();
                    let mut last = None;
                    while let Ok(Some(event)) = tokio::time::timeout(Duration::from_secs(2), events.next()).await {
                        let event = event.unwrap();
                        record.add_event(&name, &event);
                        last = Some(event);
                    }
                    // There is no task after a reply.
                    let Some(resumed) = last.filter(|_| script != "reply:hi") else { return };
                    let mut events = client.resume(&task_id(&resumed), resumed.cursor()).await.unwrap();
                    let more = follow_up(&task_id(&resumed), "out:more ask:again");
                    let more = Message { message_id: format!("more-{name}"), ..more };
                    record.add(&name, &client.non_blocking().send(more).await);
                    record.add(&name, &ready_events(&mut events));
                });
            }
        }
        clients.join_all().await;
        let page = ListTasksRequest { page_size: Some(100), include_artifacts: Some(true), ..Default::default() };
        record.add("list", &bench.list(page.clone()).await);
        bench.service.drain(Duration::from_secs(1)).await;
        record.add("drained", &bench.list(page).await);
        sleep_ms(10 * 24 * 60 * 60 * 1000).await;
        std::mem::take(&mut *record.0.lock())
    })
}

#[test]
fn equal_seeds_give_equal_ids_timestamps_and_cursors() {
    let stores: [fn() -> Arc<dyn Store>; 2] = [|| Arc::new(Memory::default()), || Gate::opened()];
    for store in stores {
        let seen = run(7, store);
        assert!(seen.len() > 500, "{}", seen.len());
        for (first, second) in seen.iter().zip(run(7, store)) {
            assert_eq!(*first, second);
        }
        assert_ne!(seen, run(8, store));
    }
}
