//! Work per event is proportional to the event, and a call costs what it did.

#![expect(clippy::print_stdout, reason = "how much it is, is of interest where it is asked for")]

use std::{sync::Arc, time::Duration};

use a2a_service::{
    agent::{self, End, Turn, Updates},
    pb::v1::{Message, TaskState},
    service::Limits,
    store::{Store, memory::Memory},
};
use allocation_counter::{AllocationInfo, measure};
use futures::FutureExt as _;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};

use super::support::*;
use crate::gate::Gate;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// What an agent says is written at each of its pauses.
fn each() -> Limits {
    let mut limits = Limits::default();
    limits.pace = Duration::ZERO;
    limits
}

/// An event a poll, as a model's words come.
async fn tokens(turn: Turn, out: Updates) -> Result<End, agent::Error> {
    let mut answer = out.artifact("a");
    for _ in 0..turn.text().parse()? {
        tokio::task::yield_now().await;
        answer.text("x".repeat(20)).await?;
    }
    Ok(End::Completed(None))
}

#[tokio::test]
async fn an_agents_word_costs_the_same_at_any_time() {
    let counts: Arc<Mutex<Vec<AllocationInfo>>> = Arc::default();
    let counted = Arc::clone(&counts);
    let bench = limited(Arc::new(Memory::default()), each(), move |_: Turn, out: Updates| {
        let counts = Arc::clone(&counted);
        async move {
            let mut answer = out.artifact("a");
            for _ in 0..10_100 {
                tokio::task::yield_now().await;
                let mut said = Box::pin(answer.text("x".repeat(20)));
                let mut all = None;
                let cost = measure(|| all = said.as_mut().now_or_never());
                all.unwrap()?;
                counts.lock().push(cost);
            }
            Ok(End::Completed(None))
        }
    });
    let mut events = bench.stream(Message::user("go")).await.unwrap();
    assert_eq!(rest(&mut events).await.len(), 10_102);
    let counts = counts.lock();
    let sum = |from: usize| {
        let window = &counts[from..from + 100];
        (window.iter().map(|it| it.count_total).sum::<u64>(), window.iter().map(|it| it.bytes_total).sum::<u64>())
    };
    let (early, late) = (sum(10), sum(10_000));
    println!("heap calls and bytes of 100 updates: {early:?} from event 10 on, {late:?} from event 10 000 on");
    assert_eq!(early, late);
}

/// Heap calls and bytes of a stream of so many events, agent to reader.
fn stream(store: Arc<dyn Store>, events: u64) -> (f64, f64) {
    let runtime = runtime();
    let bench = runtime.block_on(async { limited(store, each(), tokens) });
    let all = measure(|| {
        runtime.block_on(async {
            let mut seen = bench.stream(Message::user(events.to_string())).await.unwrap();
            assert_eq!(rest(&mut seen).await.len(), usize::try_from(events).unwrap() + 2);
        });
    });
    let float = |it: u64| f64::from(u32::try_from(it).unwrap());
    (float(all.count_total), float(all.bytes_total))
}

#[test]
fn all_that_an_event_sets_off_costs_the_same_at_any_time() {
    type Make = fn() -> Arc<dyn Store>;
    let stores: [(&str, Make, f64); 2] = [
        ("memory", || Arc::new(Memory::default()), 10.0),
        ("a store that is asked in turn", || Gate::opened().store(), 18.0),
    ];
    for (name, store, most) in stores {
        // Lists double now and then: as often from 1250 to 2500 as from 5000 to 10 000.
        let [a, b, c, d] = [1250, 2500, 5000, 10_000].map(|it| stream(store(), it));
        let (early, late) = ((b.0 - a.0) / 1250.0, (d.0 - c.0) / 5000.0);
        let (early_bytes, late_bytes) = ((b.1 - a.1) / 1250.0, (d.1 - c.1) / 5000.0);
        println!(
            "{name}: {early:.2} heap calls an event at first, {late:.2} later; bytes {early_bytes:.0}, {late_bytes:.0}"
        );
        assert!(late <= early + 0.1 && late < most, "{name}: {early:.2} {late:.2}");
        assert!(late_bytes <= early_bytes * 1.02 + 8.0, "{name}: {early_bytes:.0} {late_bytes:.0}");
    }
}

#[test]
fn a_send_costs_so_many_heap_calls() {
    const SENDS: u64 = 200;
    let runtime = runtime();
    let bench = runtime.block_on(async {
        bench(Arc::new(Memory::default()), |turn: Turn, out: Updates| async move {
            out.artifact("echo").last().text(turn.text()).await?;
            Ok(End::Completed(None))
        })
    });
    let send = || {
        runtime.block_on(async {
            for _ in 0..SENDS {
                let task = bench.send(Message::user("hello")).await.unwrap();
                assert_eq!((task.state(), task.artifacts.len()), (TaskState::Completed, 1));
            }
        });
    };
    send();
    let cost = measure(send);
    let (calls, bytes) = (cost.count_total / SENDS, cost.bytes_total / SENDS);
    println!("a unary send in process, the caller's part included: {calls} heap calls, {bytes} bytes");
    assert!(calls <= 65 && bytes <= 16_000, "{calls} heap calls, {bytes} bytes");
}
