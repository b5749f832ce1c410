//! Retries of sends: repeated where that is safe, and delivered once by their idempotency key.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use a2a_service::{
    agent::{Agent, End, Error as Failure, Turn, Updates},
    bytes::Bytes,
    call::Call,
    client::Client,
    error::{Error, ErrorKind},
    pb::v1::TaskState,
    server::Server,
};
use http::{Response, header};
use tokio::time::Instant;
use tokio_stream::StreamExt as _;

use super::{ClientKind, short_backoff};
use crate::{
    bindings::serve,
    proxy::{
        Cut::{Busy, Ends, ReplyLost, RequestLost},
        Proxy,
    },
    scenarios::{get, output, remaining, request, send, state, stream, task_of, text},
};

each_client_kind! {
    retried_send_is_delivered_once
    send_to_a_server_without_keys_is_not_retried
}

/// Agent that counts its turns.
#[derive(Clone, Default)]
struct TurnCounter(Arc<AtomicUsize>);

impl TurnCounter {
    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Agent for TurnCounter {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Failure> {
        self.0.fetch_add(1, Ordering::SeqCst);
        out.artifact("answer").text(turn.text()).await?;
        Ok(match turn.text() {
            "ask" => End::input_required("what?"),
            _ => End::Completed(None),
        })
    }
}

/// `Retry-After` may have a date instead of seconds (RFC 9110, 10.2.3).
#[tokio::test(start_paused = true)]
async fn date_in_retry_after_is_honored() {
    for status in [429, 503] {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let respond = move |_| {
            let response = match counted.fetch_add(1, Ordering::SeqCst) {
                0 => {
                    let time = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(20));
                    Response::builder().status(status).header(header::RETRY_AFTER, time).body(Bytes::new())
                }
                _ => Response::builder().body(r#"{"id": "1", "status": {"state": "TASK_STATE_COMPLETED"}}"#.into()),
            };
            async move { Ok(response.unwrap()) }
        };
        let agent = Client::builder().transport(respond).rest("http://agent.example").unwrap();
        let start = Instant::now();
        assert_eq!(get(&*agent, "1").await.unwrap().state(), TaskState::Completed);
        assert_eq!(count.load(Ordering::SeqCst), 2);
        // The date has no fractions of a second, and the backoff follows.
        assert!((18..22).contains(&start.elapsed().as_secs()), "{status}: {:?}", start.elapsed());
    }
}

async fn retried_send_is_delivered_once(kind: ClientKind) {
    let counter = TurnCounter::default();
    let url = serve(Server::new(counter.clone()).resume(true)).await;
    let proxy = Proxy::before(&url).await;
    let agent = kind.client(&proxy.url);
    proxy.cut([RequestLost, ReplyLost, Busy, ReplyLost]);
    let task = send(&*agent, text("", "hello")).await;
    assert_eq!((output(&task).as_str(), task.state(), counter.count()), ("hello", TaskState::Completed, 1));
    proxy.cut([Busy, ReplyLost, RequestLost, Ends(0), ReplyLost]);
    let events = remaining(stream(&*agent, text("", "there")).await).await;
    let task = get(&*agent, &task_of(&events[0]).id).await.unwrap();
    assert_eq!((output(&task).as_str(), counter.count()), ("there", 2));
    assert_eq!(events.last().and_then(state), Some(TaskState::Completed));
    // Two equal sends are two sends.
    send(&*agent, text("", "hello")).await;
    assert_eq!((counter.count(), proxy.left()), (3, 0));
    // A key that the caller sets is kept.
    let (mut tasks, message) = (Vec::new(), text("", "mine"));
    for _ in 0..2 {
        proxy.cut([ReplyLost]);
        let call = Call { idempotency_key: Some("mine".into()), ..Call::default() };
        tasks.push(agent.send_message(call.request(message.clone())).await.unwrap().into_inner());
    }
    assert_eq!((&tasks[0], counter.count()), (&tasks[1], 4));
}

async fn send_to_a_server_without_keys_is_not_retried(kind: ClientKind) {
    let counter = TurnCounter::default();
    let url = serve(Server::new(counter.clone())).await;
    let proxy = Proxy::before_plain(&url).await;
    let agent = kind.client(&proxy.url);
    for (n, cut) in [ReplyLost, RequestLost, Busy].into_iter().enumerate() {
        proxy.cut([cut, cut]);
        let sent = agent.send_message(request(text("", "hello"))).await;
        assert_eq!(Error::from(sent.unwrap_err()).kind(), ErrorKind::Unavailable, "{cut:?}");
        let status = match agent.send_streaming_message(request(text("", "hello"))).await {
            Ok(events) => events.into_inner().next().await.unwrap().unwrap_err(),
            Err(status) => status,
        };
        assert_eq!(Error::from(status).kind(), ErrorKind::Unavailable, "{cut:?}");
        assert_eq!((proxy.calls(), proxy.left()), (2 * n + 2, 0));
    }
    assert_eq!(counter.count(), 2, "requests that reached the agent");
    // The outcome of this send is unknown.
    proxy.cut([Ends(0)]);
    let mut events = stream(&*agent, text("", "hello")).await;
    assert_eq!(Error::from(events.next().await.unwrap().unwrap_err()).kind(), ErrorKind::Unavailable);
    assert!(events.next().await.is_none());
    assert_eq!((counter.count(), proxy.calls()), (3, 7));
}

/// Retried without a key, because the connection was never established.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsent_request_is_retried_without_a_key() {
    for kind in [ClientKind::Rest, ClientKind::JsonRpc, ClientKind::Grpc] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        drop(listener);
        let url = format!("http://{addr}");
        let error = Error::from(kind.plain(&url).send_message(request(text("", "hello"))).await.unwrap_err());
        assert!(error.is_unsent(), "{error:?}");
        let mut retry = short_backoff();
        (retry.keys, retry.attempts) = (false, 100);
        let (agent, counter) = (kind.retrying(&url, retry), TurnCounter::default());
        let appears = async {
            tokio::task::yield_now().await;
            let bound = Server::new(counter.clone()).bind(addr).await.unwrap();
            tokio::spawn(bound.run_until(std::future::pending()));
        };
        let (task, ()) = tokio::join!(send(&*agent, text("", "hello")), appears);
        assert_eq!((task.state(), counter.count()), (TaskState::Completed, 1));
    }
}
