//! Clients that come back by themselves, over each binding of both versions, before a proxy that cuts what they have: no
//! gap, nothing twice, and nothing done twice.

use std::{sync::Arc, time::Duration};

use a2a_service::{
    call::Call,
    client::{self, Client, Retry},
    event::Event,
    extension::resume,
    pb::v1::{SubscribeToTaskRequest, TaskState, a2a_service_server::A2aService},
};

use crate::{
    classic_client, classic_rpc_client,
    scenarios::{get, output, remaining, state, task_of},
};

const PATIENCE: Duration = Duration::from_secs(30);

/// A binding of a version.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    Rest,
    JsonRpc,
    Grpc,
    ClassicRest,
    ClassicRpc,
    ClassicGrpc,
}

impl Way {
    fn plain(self, url: &str) -> Arc<dyn A2aService> {
        match self {
            Self::Rest => client::rest(url).unwrap(),
            Self::JsonRpc => client::json_rpc(&format!("{url}/rpc")).unwrap(),
            Self::Grpc => client::grpc(url).unwrap(),
            Self::ClassicRest => classic_client::rest(url),
            Self::ClassicRpc => classic_rpc_client::json_rpc(url),
            Self::ClassicGrpc => classic_client::grpc(url),
        }
    }

    /// One that comes back, soon.
    fn client(self, url: &str) -> Arc<dyn A2aService> {
        self.retrying(url, soon())
    }

    fn retrying(self, url: &str, retry: Retry) -> Arc<dyn A2aService> {
        let client = Client::new().retry(retry);
        match self {
            Self::Rest => client.rest(url).unwrap(),
            Self::JsonRpc => client.json_rpc(&format!("{url}/rpc")).unwrap(),
            Self::Grpc => client.grpc(url).unwrap(),
            Self::ClassicRest | Self::ClassicRpc | Self::ClassicGrpc => client.around(self.plain(url)),
        }
    }
}

fn soon() -> Retry {
    let mut retry = Retry::default();
    (retry.first, retry.longest) = (Duration::from_millis(1), Duration::from_millis(100));
    retry
}

/// A test for each of them.
macro_rules! each_binding {
    ($($test:ident)*) => { $(
        mod $test {
            use super::*;

            each_binding! { @ $test;
                rest Rest, json_rpc JsonRpc, grpc Grpc,
                classic_rest ClassicRest, classic_rpc ClassicRpc, classic_grpc ClassicGrpc
            }
        }
    )* };
    (@ $test:ident; $($name:ident $way:ident),*) => { $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            tokio::time::timeout($crate::comes_back::PATIENCE, super::$test(Way::$way)).await.unwrap();
        }
    )* };
}

mod sends;
mod streams;

fn is_gap(event: &Event) -> bool {
    event.payload().is_some_and(resume::is_gap)
}

fn marked(event: &Event) -> bool {
    event.payload().and_then(resume::cursor).is_some()
}

/// What the log has behind an event, of a task that has ended.
async fn behind(agent: &dyn A2aService, event: &Event, id: &str) -> Vec<Event> {
    let call = Call { cursor: event.cursor().cloned(), ..Call::default() };
    let subscription = SubscribeToTaskRequest { id: id.to_owned(), ..SubscribeToTaskRequest::default() };
    remaining(agent.subscribe_to_task(call.request(subscription)).await.unwrap().into_inner()).await
}

/// Nothing is missing, nothing came twice, and nothing has marks that nobody asked for.
async fn is_whole(agent: &dyn A2aService, seen: &[Event]) {
    let task = task_of(&seen[0]);
    assert_eq!(behind(agent, &seen[0], &task.id).await, seen[1..]);
    assert_eq!(seen.last().and_then(state), Some(TaskState::Completed));
    assert!(!seen.iter().any(|it| is_gap(it) || marked(it)));
    is_folded(agent, seen).await;
}

/// The last task that was given and what came behind it are the task.
async fn is_folded(agent: &dyn A2aService, seen: &[Event]) {
    let last = seen.iter().rposition(|it| it.whole().is_some()).unwrap();
    let mut task = task_of(&seen[last]).clone();
    seen[last + 1..].iter().filter_map(Event::payload).for_each(|it| a2a_service::task::apply(&mut task, it));
    let now = get(agent, &task.id).await.unwrap();
    assert_eq!((output(&task), task.state()), (output(&now), now.state()));
}
