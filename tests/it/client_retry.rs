//! Client retries and stream resumption over each binding of both versions, through a proxy that cuts connections: no gap,
//! no duplicate event and no duplicate execution.

use std::{sync::Arc, time::Duration};

use a2a_service::{
    call::Call,
    client::{self, Client, Retry},
    event::{Event, resume},
    pb::v1::{SubscribeToTaskRequest, TaskState, a2a_service_server::A2aService},
};

use crate::{
    scenarios::{get, output, remaining, state, task_of},
    v03_client,
};

const TIMEOUT: Duration = Duration::from_secs(30);

/// Binding and protocol version of a client.
#[derive(Clone, Copy)]
pub(crate) enum ClientKind {
    Rest,
    JsonRpc,
    Grpc,
    V03Rest,
    V03Rpc,
    V03Grpc,
}

impl ClientKind {
    fn plain(self, url: &str) -> Arc<dyn A2aService> {
        match self {
            Self::Rest => client::rest(url).unwrap(),
            Self::JsonRpc => client::json_rpc(&format!("{url}/rpc")).unwrap(),
            Self::Grpc => client::grpc(url).unwrap(),
            Self::V03Rest => v03_client::rest(url),
            Self::V03Rpc => v03_client::json_rpc(url),
            Self::V03Grpc => v03_client::grpc(url),
        }
    }

    /// Returns a retrying client with short backoffs.
    fn client(self, url: &str) -> Arc<dyn A2aService> {
        self.retrying(url, short_backoff())
    }

    fn retrying(self, url: &str, retry: Retry) -> Arc<dyn A2aService> {
        let client = Client::builder().retry(retry);
        match self {
            Self::Rest => client.rest(url).unwrap(),
            Self::JsonRpc => client.json_rpc(&format!("{url}/rpc")).unwrap(),
            Self::Grpc => client.grpc(url).unwrap(),
            Self::V03Rest | Self::V03Rpc | Self::V03Grpc => client.around(self.plain(url)),
        }
    }
}

fn short_backoff() -> Retry {
    let mut retry = Retry::default();
    (retry.first, retry.longest) = (Duration::from_millis(1), Duration::from_millis(100));
    retry
}

/// Expands each function to one test per client kind.
macro_rules! each_client_kind {
    ($($test:ident)*) => { $(
        mod $test {
            use super::*;

            each_client_kind! { @ $test;
                rest Rest, json_rpc JsonRpc, grpc Grpc,
                v03_rest V03Rest, v03_rpc V03Rpc, v03_grpc V03Grpc
            }
        }
    )* };
    (@ $test:ident; $($name:ident $kind:ident),*) => { $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            tokio::time::timeout($crate::client_retry::TIMEOUT, super::$test(ClientKind::$kind)).await.unwrap();
        }
    )* };
}

mod sends;
mod streams;

fn is_gap(event: &Event) -> bool {
    event.payload().is_some_and(resume::is_gap)
}

fn has_cursor_metadata(event: &Event) -> bool {
    event.payload().and_then(resume::cursor).is_some()
}

/// Events of a terminal task that follow this one.
async fn events_after(agent: &dyn A2aService, event: &Event, id: &str) -> Vec<Event> {
    let call = Call { cursor: event.cursor().cloned(), ..Call::default() };
    let subscription = SubscribeToTaskRequest { id: id.to_owned(), ..SubscribeToTaskRequest::default() };
    remaining(agent.subscribe_to_task(call.request(subscription)).await.unwrap().into_inner()).await
}

/// Asserts that the stream is complete, without duplicates and without resume metadata.
async fn assert_complete(agent: &dyn A2aService, seen: &[Event]) {
    let task = task_of(&seen[0]);
    assert_eq!(events_after(agent, &seen[0], &task.id).await, seen[1..]);
    assert_eq!(seen.last().and_then(state), Some(TaskState::Completed));
    assert!(!seen.iter().any(|event| is_gap(event) || has_cursor_metadata(event)));
    assert_folds_to_task(agent, seen).await;
}

/// Asserts that the last whole task in the stream, with the events after it applied, equals the stored task.
async fn assert_folds_to_task(agent: &dyn A2aService, seen: &[Event]) {
    let last = seen.iter().rposition(|event| event.task().is_some()).unwrap();
    let mut task = task_of(&seen[last]).clone();
    seen[last + 1..].iter().filter_map(Event::payload).for_each(|payload| a2a_service::task::apply(&mut task, payload));
    let now = get(agent, &task.id).await.unwrap();
    assert_eq!((output(&task), task.state()), (output(&now), now.state()));
}
