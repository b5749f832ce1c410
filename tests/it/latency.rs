//! Latency bounds: without `TCP_NODELAY`, delayed acknowledgements would add 40 ms to each reply.
//!
//! Compares calls with the bound until one is below it. Load can only increase a latency, and with delayed acknowledgements, no call is
//! below the bound.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    bindings::{Binding, each_binding, server},
    scenarios::{next, send, stream, text},
};

const BOUND: Duration = Duration::from_millis(30);
const CALLS: usize = 100;

async fn replies_and_first_events_are_sent_without_delay(serve: Binding) {
    let agent = serve(server()).await;
    let (mut call, mut event) = (Duration::MAX, Duration::MAX);
    for _ in 0..CALLS {
        let begun = Instant::now();
        send(&*agent, text("", "hello")).await;
        call = call.min(begun.elapsed());
        let begun = Instant::now();
        next(&mut stream(&*agent, text("", "hello")).await).await;
        event = event.min(begun.elapsed());
        if call < BOUND && event < BOUND {
            return;
        }
    }
    panic!("minimum latency of a call {call:?}, of the first event of a stream {event:?}");
}

each_binding!(replies_and_first_events_are_sent_without_delay);
