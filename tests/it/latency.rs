//! No answer waits for an acknowledgement: without `TCP_NODELAY` each would come 40 ms late.
//!
//! The quickest of many calls is held against the bound, which a busy machine can't make quicker, and which a server
//! that waits does not reach once.

use std::{sync::Arc, time::Duration};

use a2a_service::{pb::v1::a2a_service_server::A2aService, server::Server};
use tokio::time::Instant;

use crate::{
    scenarios::{next, send, stream, text},
    ways::{Actor, each_way, server},
};

const BOUND: Duration = Duration::from_millis(10);
const CALLS: usize = 20;

async fn answers_come_at_once(serve: impl AsyncFn(Server<Actor>) -> Arc<dyn A2aService>) {
    let agent = serve(server()).await;
    let (mut call, mut event) = (Duration::MAX, Duration::MAX);
    for _ in 0..CALLS {
        let begun = Instant::now();
        send(&*agent, text("", "hello")).await;
        call = call.min(begun.elapsed());
        let begun = Instant::now();
        next(&mut stream(&*agent, text("", "hello")).await).await;
        event = event.min(begun.elapsed());
    }
    assert!(call < BOUND && event < BOUND, "a call takes {call:?}, and the first event of a stream {event:?}");
}

each_way!(answers_come_at_once);
