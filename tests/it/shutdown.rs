//! Graceful shutdown of the program while agents run: it exits in time, and running tasks are recovered at the next start.

use std::time::Duration;

use a2a_service::{
    call::Call,
    client,
    event::Event,
    pb::v1::{SubscribeToTaskRequest, TaskState},
};
use tokio::{task::JoinSet, time::timeout};
use tokio_stream::StreamExt as _;

use crate::{
    crash::TestBed,
    program::signal,
    scenarios::{get, request, state, status_text, task_of, text},
};

const TIMEOUT: Duration = Duration::from_secs(30);

const TASKS: usize = 10;
const STREAMS: usize = 10;

fn subscribe(id: &str) -> SubscribeToTaskRequest {
    SubscribeToTaskRequest { id: id.to_owned(), ..SubscribeToTaskRequest::default() }
}

/// Ten running tasks with ten streams each: none becomes CANCELED, and each stream can be resumed after its cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_tasks_and_streams_survive_a_shutdown() {
    let bed = TestBed::new();
    let (mut child, url) = bed.start(&[("A2A_SHUTDOWN_GRACE", "1s")]).await;
    let (rest, rpc) = (client::rest(&url).unwrap(), client::json_rpc(&format!("{url}/rpc")).unwrap());
    let mut streams = JoinSet::new();
    let mut ids = Vec::new();
    for _ in 0..TASKS {
        let mut first = rest.send_streaming_message(request(text("", "/slow 60"))).await.unwrap().into_inner();
        let event = first.next().await.unwrap().unwrap();
        let id = task_of(&event).id.clone();
        for n in 1..STREAMS {
            let agent = if n % 2 == 0 { &rest } else { &rpc };
            let mut events = agent.subscribe_to_task(request(subscribe(&id))).await.unwrap().into_inner();
            let event = events.next().await.unwrap().unwrap();
            streams.spawn(async move { (event, events) });
        }
        streams.spawn(async move { (event, first) });
        ids.push(id);
    }
    let streams = streams.join_all().await;
    assert_eq!(streams.len(), TASKS * STREAMS);
    signal(&child, "-TERM");
    let ended = timeout(Duration::from_secs(10), child.wait()).await.unwrap().unwrap();
    assert_eq!(ended.code(), Some(0));
    // Each stream is cut after the events that it had.
    let mut cut = Vec::new();
    for (first, events) in streams {
        let rest: Vec<Event> = timeout(TIMEOUT, events.map_while(Result::ok).collect()).await.unwrap();
        assert!(rest.iter().filter_map(state).all(|state| state == TaskState::Working), "{rest:?}");
        cut.push(rest.last().unwrap_or(&first).cursor().cloned().unwrap());
    }

    let (child, url) = bed.start(&[]).await;
    let agent = client::rest(&url).unwrap();
    for cursor in cut {
        let (id, _) = cursor.parts().unwrap();
        let call = Call { cursor: Some(cursor.clone()), ..Call::default() };
        let rest = agent.subscribe_to_task(call.request(subscribe(id))).await.unwrap().into_inner();
        let rest: Vec<Event> = timeout(TIMEOUT, rest.map(Result::unwrap).collect()).await.unwrap();
        assert_eq!(rest.last().and_then(state), Some(TaskState::Failed), "{rest:?}");
        assert!(
            rest.iter().filter_map(state).all(|state| state != TaskState::Submitted),
            "the stream starts from the beginning: {rest:?}"
        );
    }
    for id in ids {
        let task = get(&*agent, &id).await.unwrap();
        let reason = "The server stopped while the agent was at work on this.";
        assert_eq!((task.state(), status_text(&task).as_str()), (TaskState::Failed, reason));
    }
    drop(child);
}
