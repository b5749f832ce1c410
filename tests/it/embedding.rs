//! Tower layers of the program around a server, and servers embedded in an axum program: readiness and drain.

use std::{
    future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use a2a_service::{
    auth::{Bearer, Token},
    client::{Client, Retry},
    error::ErrorKind,
    pb::v1::TaskState,
};
use axum::{
    Router,
    extract::Request,
    http::StatusCode,
    middleware::{self, Next},
    response::IntoResponse as _,
    routing::get,
};
use tokio::time::timeout;
use tokio_stream::StreamExt as _;

use crate::{
    bindings::{program, server},
    scenarios::{remaining, request, send, state, stream, text},
};

const TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layers_of_the_program_surround_every_binding() {
    let seen = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&seen);
    let server = server()
        .authenticator(Bearer::new(Token::new("sesame").unwrap()))
        .layer(middleware::from_fn(move |request: Request, next: Next| {
            counter.fetch_add(1, Ordering::SeqCst);
            next.run(request)
        }))
        .layer(middleware::from_fn(async |request: Request, next: Next| {
            if request.headers().contains_key("x-blocked") {
                return StatusCode::IM_A_TEAPOT.into_response();
            }
            let mut response = next.run(request).await;
            response.headers_mut().insert("x-layer", "outer".parse().unwrap());
            response
        }));
    let mut bound = server.bind("127.0.0.1:0").await.unwrap();
    let (url, grpc) = (format!("http://{}", bound.addr()), bound.add("127.0.0.1:0").await.unwrap());
    tokio::spawn(bound.run_until(future::pending()));
    let client = Client::builder().bearer("sesame").unwrap();
    let agents = [client.rest(&url), client.json_rpc(&format!("{url}/rpc")), client.grpc(&url)];
    for agent in agents.into_iter().chain([client.grpc(&format!("http://{grpc}"))]) {
        let (agent, before) = (agent.unwrap(), seen.load(Ordering::SeqCst));
        assert_eq!(send(&*agent, text("", "hello")).await.state(), TaskState::Completed);
        let events = remaining(stream(&*agent, text("", "/stream 3 1")).await).await;
        assert_eq!(events.last().and_then(state), Some(TaskState::Completed));
        assert_eq!(seen.load(Ordering::SeqCst), before + 2);
    }
    // The layers are within the request log, and around authentication.
    let before = seen.load(Ordering::SeqCst);
    let http = crate::bindings::http();
    let rejected = http.get(format!("{url}/tasks")).send().await.unwrap();
    assert_eq!((rejected.status().as_u16(), &rejected.headers()["x-layer"]), (401, &"outer".parse().unwrap()));
    assert!(rejected.headers().contains_key("x-request-id"));
    let blocked = http.get(format!("{url}/tasks")).header("x-blocked", "1").send().await.unwrap();
    assert_eq!((blocked.status().as_u16(), blocked.headers().contains_key("x-request-id")), (418, true));
    assert_eq!(seen.load(Ordering::SeqCst), before + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_server_is_drained_by_its_handle() {
    let (router, handle) = server().into_parts();
    let app = Router::new().route("/about", get(async || "An agent, and a page.")).fallback_service(router);
    let url = program(app).await;
    assert_eq!(
        crate::bindings::fetch(format!("{url}/about")).await.unwrap().text().await.unwrap(),
        "An agent, and a page."
    );
    assert!(handle.is_ready().await);
    let agent = Client::builder().retry(Retry::never()).rest(&url).unwrap();
    let mut events = agent.send_streaming_message(request(text("", "/slow 1"))).await.unwrap().into_inner();
    assert!(events.next().await.unwrap().is_ok());
    assert!(timeout(Duration::from_millis(50), handle.wait()).await.is_err());
    let (first, second) = (handle.clone(), handle.clone());
    let drains = tokio::spawn(async move { tokio::join!(first.drain(), second.drain()) });
    timeout(TIMEOUT, async {
        while handle.is_ready().await {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    assert_eq!(crate::bindings::fetch(format!("{url}/readyz")).await.unwrap().status().as_u16(), 503);
    let refused = agent.send_message(request(text("", "hello"))).await.unwrap_err();
    assert_eq!(a2a_service::error::Error::from(refused).kind(), ErrorKind::Unavailable);
    // The running turn ends in its grace period.
    assert_eq!(remaining(events).await.last().and_then(state), Some(TaskState::Completed));
    timeout(TIMEOUT, handle.wait()).await.unwrap();
    timeout(TIMEOUT, drains).await.unwrap().unwrap();
    timeout(TIMEOUT, handle.drain()).await.unwrap();
}

#[tokio::test]
async fn drain_by_its_handle_ends_a_bound_server() {
    let bound = server().bind("127.0.0.1:0").await.unwrap();
    let handle = bound.handle();
    let running = tokio::spawn(bound.run_until(future::pending()));
    assert!(handle.is_ready().await);
    handle.drain().await;
    timeout(TIMEOUT, running).await.unwrap().unwrap();
}
