//! Event streams in the forms that other agents send.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use a2a_service::{
    A2aService,
    client::{Client, ClientBuilder},
    error::Error,
    pb::v1::TaskState,
};
use bytes::Bytes;
use http::{Request, Response, header};
use serde_json::{Value, json};

use super::{quick, read};

/// Returns the events of an agent that responds to each request with the next of these streams. Counts the requests.
async fn stream(
    bodies: Vec<String>,
    count: &Arc<AtomicUsize>,
    bind: impl Fn(ClientBuilder) -> Arc<dyn A2aService>,
) -> (String, TaskState) {
    let count = Arc::clone(count);
    let respond = move |_: Request<Bytes>| {
        let body = bodies.get(count.fetch_add(1, Ordering::Relaxed)).cloned().unwrap_or_default();
        async move {
            let response = Response::builder().header(header::CONTENT_TYPE, "text/event-stream");
            Ok::<_, Error>(response.body(Bytes::from(body)).unwrap())
        }
    };
    let agent = Client::from_service(bind(quick().transport(respond)));
    read(agent.stream("hello").await.unwrap()).await
}

/// The state of the task decides whether a stream is complete, not an end marker.
#[tokio::test]
async fn pings_and_end_markers_are_no_events() {
    let status =
        |state: &str| json!({ "statusUpdate": { "taskId": "t1", "contextId": "c1", "status": { "state": state } } });
    let task = json!({ "task": { "id": "t1", "contextId": "c1", "status": { "state": "TASK_STATE_WORKING" } } });
    let artifact = json!({ "artifactId": "a", "parts": [{ "text": "Hi" }] });
    let artifact = json!({ "artifactUpdate": { "taskId": "t1", "contextId": "c1", "artifact": artifact } });
    let completed = status("TASK_STATE_COMPLETED");
    let ping = "event: ping\ndata: {\"type\":\"ping\"}\n\ndata:\n\n: ping\n\nevent: heartbeat\ndata: now\n\n";
    let done = "data: [DONE]\n\n";
    let rest = |builder: ClientBuilder| builder.rest("http://agent.example").unwrap();
    let rpc = |builder: ClientBuilder| builder.json_rpc("http://agent.example").unwrap();
    for is_rpc in [false, true] {
        let event = |payload: &Value| {
            let data = if is_rpc { json!({ "jsonrpc": "2.0", "result": payload }) } else { payload.clone() };
            format!("data: {data}\n\n")
        };
        let whole = [ping, &*event(&task), ping, &event(&artifact), &event(&completed), done].concat();
        let begun = ["\u{feff}", &*event(&task), ping, done, &event(&completed)].concat();
        let resumed = ["\u{feff}", ping, &*event(&artifact), &event(&completed)].concat().replace('\n', "\r");
        for (bodies, requests) in [(vec![whole], 1), (vec![begun, resumed], 2)] {
            let count = Arc::default();
            let found = if is_rpc { stream(bodies, &count, rpc).await } else { stream(bodies, &count, rest).await };
            assert_eq!(found, ("Hi".to_owned(), TaskState::Completed), "{is_rpc}");
            assert_eq!(count.load(Ordering::Relaxed), requests, "{is_rpc}");
        }
    }
}
