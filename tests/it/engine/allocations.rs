//! Cost of events and sends: heap allocations per event are constant, independent of the length of the log.

#![expect(clippy::print_stdout, reason = "measured figures are printed for `--nocapture`")]

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

/// Limits that commit each update when the agent pauses.
fn each() -> Limits {
    let mut limits = Limits::default();
    limits.commit_interval = Duration::ZERO;
    limits
}

/// Agent that writes one chunk per poll, as a model streams tokens.
async fn tokens(turn: Turn, out: Updates) -> Result<End, agent::Error> {
    let mut answer = out.artifact("a");
    for _ in 0..turn.text().parse()? {
        tokio::task::yield_now().await;
        answer.text("x".repeat(20)).await?;
    }
    Ok(End::Completed(None))
}

#[tokio::test]
async fn update_allocates_the_same_at_event_10_and_event_10_000() {
    let counts: Arc<Mutex<Vec<AllocationInfo>>> = Arc::default();
    let counted = Arc::clone(&counts);
    let bench = with_limits(Arc::new(Memory::default()), each(), move |_: Turn, out: Updates| {
        let counts = Arc::clone(&counted);
        async move {
            let mut answer = out.artifact("a");
            for _ in 0..10_100 {
                tokio::task::yield_now().await;
                let mut update = Box::pin(answer.text("x".repeat(20)));
                let mut all = None;
                let cost = measure(|| all = update.as_mut().now_or_never());
                all.unwrap()?;
                counts.lock().push(cost);
            }
            Ok(End::Completed(None))
        }
    });
    let mut events = bench.stream(Message::user("go")).await.unwrap();
    assert_eq!(remaining_events(&mut events).await.len(), 10_102);
    let counts = counts.lock();
    let sum = |from: usize| {
        let window = &counts[from..from + 100];
        (
            window.iter().map(|cost| cost.count_total).sum::<u64>(),
            window.iter().map(|cost| cost.bytes_total).sum::<u64>(),
        )
    };
    let (early, late) = (sum(10), sum(10_000));
    println!("allocations and bytes of 100 updates: {early:?} from event 10, {late:?} from event 10 000");
    assert_eq!(early, late);
}

/// Allocations and bytes of a stream of this many events, from agent to reader.
fn stream(store: Arc<dyn Store>, events: u64) -> (f64, f64) {
    let runtime = runtime();
    let bench = runtime.block_on(async { with_limits(store, each(), tokens) });
    let all = measure(|| {
        runtime.block_on(async {
            let mut seen = bench.stream(Message::user(events.to_string())).await.unwrap();
            assert_eq!(remaining_events(&mut seen).await.len(), usize::try_from(events).unwrap() + 2);
        });
    });
    let float = |count: u64| f64::from(u32::try_from(count).unwrap());
    (float(all.count_total), float(all.bytes_total))
}

#[test]
fn allocations_per_event_are_independent_of_log_length() {
    type Make = fn() -> Arc<dyn Store>;
    let stores: [(&str, Make, f64); 2] = [
        ("memory", || Arc::new(Memory::default()), 10.0),
        ("store with a commit lane", || Gate::opened().store(), 18.0),
    ];
    for (name, store, most) in stores {
        // Vectors double in capacity as often from 1250 to 2500 events as from 5000 to 10 000.
        let [a, b, c, d] = [1250, 2500, 5000, 10_000].map(|events| stream(store(), events));
        let (early, late) = ((b.0 - a.0) / 1250.0, (d.0 - c.0) / 5000.0);
        let (early_bytes, late_bytes) = ((b.1 - a.1) / 1250.0, (d.1 - c.1) / 5000.0);
        println!(
            "{name}: {early:.2} allocations per event at first, {late:.2} later; bytes {early_bytes:.0}, {late_bytes:.0}"
        );
        assert!(late <= early + 0.1 && late < most, "{name}: {early:.2} {late:.2}");
        assert!(late_bytes <= early_bytes * 1.02 + 8.0, "{name}: {early_bytes:.0} {late_bytes:.0}");
    }
}

#[test]
fn allocations_of_a_unary_send_are_bounded() {
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
    println!("unary send in process, including the caller: {calls} allocations, {bytes} bytes");
    assert!(calls <= 65 && bytes <= 16_000, "{calls} allocations, {bytes} bytes");
}
