//! Delivery of push notifications to receivers on loopback.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::bindings::{Actor, Binding};
use a2a_service::{
    A2aService,
    agent::{self, Agent, End, Turn, Updates},
    call::Call,
    client,
    error::Error,
    extension::secret,
    pb::v1::{
        AuthenticationInfo, ListTaskPushNotificationConfigsRequest, Message, Part, SendMessageConfiguration,
        SendMessageRequest, Task, TaskPushNotificationConfig, send_message_response::Payload,
    },
    push::{AllowedTarget, PushEvents, PushOptions, Resolver, V03Payload},
    server::Server,
    store::{DeliveryToken, PushQueue as _, Store, memory::Memory, sqlite},
};
use axum::{
    body::{Body, Bytes},
    extract::State,
    response::Response,
};
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::{Instant, timeout};

mod credentials;
mod keys;
mod kills;
mod outcomes;
mod secrets;
mod targets;
mod traces;
mod volume;

const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

/// Time within which a notification must arrive. Longer than a lease, which a server that was stopped may leave behind.
const SOON: Duration = Duration::from_mins(1);

/// Received notification.
#[derive(Clone, Debug)]
struct Received {
    headers: HeaderMap,
    body: Value,
    bytes: Bytes,
}

impl Received {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(|value| value.to_str().unwrap()).unwrap_or_default()
    }
}

type Respond = Arc<dyn Fn(usize, &HeaderMap) -> Response + Send + Sync>;

/// Receiver of notifications.
#[derive(Clone)]
struct Receiver {
    requests: Arc<Mutex<Vec<Received>>>,
    respond: Respond,
    addr: SocketAddr,
}

impl Receiver {
    /// Starts a receiver. `respond` gets the number of earlier requests.
    async fn start(respond: impl Fn(usize) -> Response + Send + Sync + 'static) -> Self {
        Self::answering(move |number, _| respond(number)).await
    }

    /// Starts a receiver. `respond` also gets the headers.
    async fn answering(respond: impl Fn(usize, &HeaderMap) -> Response + Send + Sync + 'static) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let receiver = Self { requests: Arc::default(), respond: Arc::new(respond), addr };
        let receive = |State(receiver): State<Self>, headers: HeaderMap, bytes: Bytes| async move {
            let body = serde_json::from_slice(&bytes).unwrap();
            let mut requests = receiver.requests.lock();
            let response = (receiver.respond)(requests.len(), &headers);
            requests.push(Received { headers, body, bytes });
            response
        };
        let router = axum::Router::new().fallback(receive).with_state(receiver.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        receiver
    }

    async fn accepting() -> Self {
        Self::start(|_| status(StatusCode::NO_CONTENT)).await
    }

    fn url(&self) -> String {
        format!("http://{}/hook", self.addr)
    }

    /// Waits until the notifications fulfil a condition, and returns them.
    async fn wait(&self, is_met: impl Fn(&[Received]) -> bool) -> Vec<Received> {
        let met = async {
            loop {
                let requests = self.requests.lock().clone();
                if is_met(&requests) {
                    return requests;
                }
                pause().await;
            }
        };
        timeout(SOON, met).await.unwrap_or_else(|_| panic!("received only {:#?}", self.requests.lock()))
    }

    /// Waits for the notification of the end of a task.
    async fn wait_for_end(&self) -> Vec<Received> {
        self.wait(|all| all.iter().any(|one| state(&one.body).is_some_and(|state| state.ends_with("COMPLETED")))).await
    }
}

fn status(status: StatusCode) -> Response {
    Response::builder().status(status).body(Body::empty()).unwrap()
}

/// Sleeps between two looks at something that has no notification.
async fn pause() {
    #[expect(clippy::disallowed_methods, reason = "a receiver tells nobody what it has got")]
    tokio::time::sleep(Duration::from_millis(10)).await;
}

/// State in a notification of 1.0 or 0.3.
fn state(body: &Value) -> Option<String> {
    let places = ["/statusUpdate/status/state", "/task/status/state", "/status/state"];
    places.iter().find_map(|place| body.pointer(place)?.as_str()).map(str::to_uppercase)
}

fn options() -> PushOptions {
    PushOptions::default().allow(vec!["http://127.0.0.1".parse().unwrap()]).timeout(Duration::from_secs(2))
}

/// Agent that writes chunks of an artifact, and completes.
struct Writer;

impl Agent for Writer {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, agent::Error> {
        let chunks: usize = turn.text().parse().unwrap_or(3);
        out.working().await?;
        let mut artifact = out.artifact("text");
        for n in 0..chunks {
            artifact.text(format!("{n} ")).await?;
            out.flush().await?;
        }
        Ok(End::completed("done"))
    }
}

fn hook(url: &str) -> TaskPushNotificationConfig {
    TaskPushNotificationConfig { id: "hook".into(), url: url.into(), token: SECRET.into(), ..Default::default() }
}

pub(crate) async fn send(
    agent: &dyn A2aService,
    text: &str,
    config: TaskPushNotificationConfig,
) -> Result<Task, Error> {
    let configuration = SendMessageConfiguration { task_push_notification_config: Some(config), ..Default::default() };
    let request = SendMessageRequest {
        message: Some(Message::user(text)),
        configuration: Some(configuration),
        ..Default::default()
    };
    match agent.send_message(Call::default().request(request)).await?.into_inner().payload {
        Some(Payload::Task(task)) => Ok(task),
        other => panic!("no task: {other:?}"),
    }
}

/// Waits for the dead letter of a task, and returns its reason.
async fn dead_letter(store: &dyn Store, task: &str) -> String {
    let dead = async {
        loop {
            let page = store.deliveries(true, DeliveryToken::default(), 10).await.unwrap();
            if let Some(delivery) = page.deliveries.into_iter().find(|one| one.key.id() == task) {
                return delivery.state.dead.unwrap().reason.into();
            }
            pause().await;
        }
    };
    timeout(SOON, dead).await.unwrap()
}

#[tokio::test]
async fn notifications_of_1_0_are_the_events_in_order() {
    let receiver = Receiver::accepting().await;
    let agent = Server::new(Writer).push(true).push_options(options()).into_service();
    let task = send(&*agent, "5", hook(&receiver.url())).await.unwrap();
    let requests = receiver.wait_for_end().await;
    assert_eq!(requests[0].body["task"]["id"], *task.id, "{requests:#?}");
    let text: String = requests
        .iter()
        .filter_map(|one| one.body["artifactUpdate"]["artifact"]["parts"].as_array())
        .flatten()
        .map(|part| part["text"].as_str().unwrap())
        .collect();
    assert_eq!(text, "0 1 2 3 4 ");
    let mut ids: Vec<&str> = requests.iter().map(|one| one.header("webhook-id")).collect();
    ids.dedup();
    assert_eq!(ids.len(), requests.len(), "each has an id of its own");
    for one in &requests {
        assert_eq!(one.header("content-type"), "application/a2a+json");
        assert_eq!(one.header("a2a-delivery-id"), one.header("webhook-id"));
        assert_eq!((one.header("a2a-notification-token"), one.header("x-a2a-notification-token")), (SECRET, SECRET));
    }
}

#[tokio::test]
async fn notifications_are_signed_as_standard_webhooks() {
    use standardwebhooks::Webhook;
    let agent = Server::new(Writer).push(true).push_options(options()).into_service();
    let other = "a token without a prefix";
    for (token, webhook) in [(SECRET, Webhook::new(SECRET)), (other, Webhook::from_bytes(other.into()))] {
        let (receiver, webhook) = (Receiver::accepting().await, webhook.unwrap());
        let config = TaskPushNotificationConfig { token: token.into(), ..hook(&receiver.url()) };
        send(&*agent, "1", config).await.unwrap();
        for one in receiver.wait_for_end().await {
            webhook.verify(&one.bytes, &one.headers).unwrap();
            let tampered = [&one.bytes[..], b" "].concat();
            assert!(webhook.verify(&tampered, &one.headers).is_err());
            let mut replayed = one.headers.clone();
            replayed.insert("webhook-timestamp", "1700000000".parse().unwrap());
            assert!(webhook.verify(&one.bytes, &replayed).is_err());
        }
    }
}

#[tokio::test]
async fn credentials_are_sent_in_the_header_of_their_scheme() {
    let agent = Server::new(Writer).push(true).push_options(options()).into_service();
    for (scheme, credentials, header, value) in [
        ("Bearer", "secret", "authorization", "Bearer secret"),
        ("basic", "dTpw", "authorization", "basic dTpw"),
        ("ApiKey", "key", "x-api-key", "key"),
        ("Bearer", "", "authorization", ""),
        ("ApiKey", "", "x-api-key", ""),
    ] {
        let receiver = Receiver::accepting().await;
        let authentication = Some(AuthenticationInfo { scheme: scheme.into(), credentials: credentials.into() });
        let config = TaskPushNotificationConfig { authentication, token: String::new(), ..hook(&receiver.url()) };
        send(&*agent, "1", config).await.unwrap();
        let requests = receiver.wait_for_end().await;
        assert_eq!(requests[0].header(header), value, "{scheme}");
        assert_eq!(requests[0].headers.contains_key(header), !value.is_empty(), "{scheme}");
        assert_eq!(requests[0].header("webhook-signature"), "", "there is no secret");
    }
}

/// Chunks are joined; those that come after a failed attempt are not joined to its chunks, so that a receiver that processed
/// the failed attempt recognises the next one.
#[tokio::test]
async fn further_attempts_send_the_same_notification() {
    let receiver = Receiver::start(|number| {
        status(if number % 2 == 0 { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::NO_CONTENT })
    })
    .await;
    let agent = Server::new(Writer).push(true).push_options(options()).into_service();
    send(&*agent, "300", hook(&receiver.url())).await.unwrap();
    let all = receiver.wait_for_end().await;
    for attempts in all.chunks_exact(2) {
        assert_eq!(attempts[0].header("webhook-id"), attempts[1].header("webhook-id"));
        assert_eq!(attempts[0].bytes, attempts[1].bytes);
    }
    assert!(all.len() >= 4, "{}", all.len());
}

#[tokio::test]
async fn notifications_of_0_3_are_tasks_or_events() {
    for payload in [V03Payload::Task, V03Payload::Event] {
        let receiver = Receiver::accepting().await;
        let server = Server::new(Writer).push(true).push_options(options().v03_payload(payload));
        let url = crate::bindings::serve(server).await;
        let agent = crate::v03_client::json_rpc(&url);
        let task = send(&*agent, "2", hook(&receiver.url())).await.unwrap();
        let requests = receiver.wait_for_end().await;
        let last = &requests.last().unwrap().body;
        let kinds: Vec<&str> = requests.iter().map(|one| one.body["kind"].as_str().unwrap()).collect();
        assert!(requests.iter().all(|one| one.header("content-type") == "application/json"));
        match payload {
            V03Payload::Task => {
                assert!(kinds.iter().all(|kind| *kind == "task"), "{kinds:?}");
                assert_eq!((&last["id"], last["artifacts"].as_array().map(Vec::len)), (&Value::from(task.id), Some(1)));
            }
            V03Payload::Event => {
                assert_eq!((kinds.first(), kinds.last()), (Some(&"task"), Some(&"status-update")));
                assert!(kinds.contains(&"artifact-update"), "{kinds:?}");
                assert_eq!(last["final"], true);
            }
        }
    }
}

#[tokio::test]
async fn selected_events_are_delivered() {
    for (events, selected) in [(PushEvents::Status, "task statusUpdate"), (PushEvents::Terminal, "statusUpdate")] {
        let receiver = Receiver::accepting().await;
        let agent = Server::new(Writer).push(true).push_options(options().events(events)).into_service();
        send(&*agent, "2", hook(&receiver.url())).await.unwrap();
        let requests = receiver.wait_for_end().await;
        let mut kinds: Vec<&String> = requests.iter().flat_map(|one| one.body.as_object().unwrap().keys()).collect();
        kinds.dedup();
        assert_eq!(kinds.into_iter().cloned().collect::<Vec<_>>().join(" "), selected);
        assert!(events != PushEvents::Terminal || requests.len() == 1, "{requests:?}");
    }
}

#[tokio::test]
async fn receiver_that_fails_and_recovers_gets_everything_in_order() {
    let receiver =
        Receiver::start(|n| status(if n < 3 { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK })).await;
    let agent = Server::new(Writer).push(true).push_options(options()).into_service();
    send(&*agent, "3", hook(&receiver.url())).await.unwrap();
    let requests = receiver.wait_for_end().await;
    let first = requests[0].header("webhook-id");
    assert!(
        requests[..4].iter().all(|one| one.header("webhook-id") == first),
        "each attempt has the id of the delivery"
    );
    let seqs: Vec<u64> =
        requests[3..].iter().map(|one| one.header("webhook-id").rsplit('~').next().unwrap().parse().unwrap()).collect();
    assert!(seqs.is_sorted_by(|a, b| a < b), "{seqs:?}");
}

#[tokio::test]
async fn retry_after_is_honoured() {
    let receiver = Receiver::start(|n| match n {
        0 => Response::builder().status(429).header("retry-after", "3").body(Body::empty()).unwrap(),
        _ => status(StatusCode::OK),
    })
    .await;
    let agent = Server::new(Writer).push(true).push_options(options()).into_service();
    let start = Instant::now();
    send(&*agent, "1", hook(&receiver.url())).await.unwrap();
    receiver.wait_for_end().await;
    assert!(start.elapsed() >= Duration::from_secs(3));
}

#[tokio::test]
async fn final_answers_end_the_delivery() {
    let store = Arc::new(Memory::default());
    let shared: Arc<dyn Store> = Arc::<Memory>::clone(&store);
    let agent = Server::new(Writer).store(shared).push(true).push_options(options()).into_service();
    // A receiver that is gone loses its configuration.
    let gone = Receiver::start(|_| status(StatusCode::GONE)).await;
    let task = send(&*agent, "1", hook(&gone.url())).await.unwrap();
    let list = ListTaskPushNotificationConfigsRequest { task_id: task.id, ..Default::default() };
    let is_deleted = async {
        loop {
            let list = Call::default().request(list.clone());
            if agent.list_task_push_notification_configs(list).await.unwrap().get_ref().configs.is_empty() {
                return;
            }
            pause().await;
        }
    };
    timeout(SOON, is_deleted).await.unwrap();
    assert_eq!(gone.requests.lock().len(), 1);
    // Other errors of the client, and redirects, make it a dead letter.
    for (code, reason) in [(403, "the receiver returned 403"), (302, "redirects are not followed")] {
        let other = Receiver::accepting().await;
        let to = other.url();
        let rejecting = Receiver::start(move |_| {
            Response::builder().status(code).header("location", &to).body(Body::empty()).unwrap()
        })
        .await;
        let task = send(&*agent, "1", hook(&rejecting.url())).await.unwrap();
        let dead = dead_letter(&*store, &task.id).await;
        assert!(dead.contains(reason), "{dead}");
        assert_eq!((rejecting.requests.lock().len(), other.requests.lock().len()), (1, 0));
    }
}

/// Hanging, slow and endless receivers hold up neither the task nor other receivers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_receivers_hold_up_nothing() {
    let agent = Server::new(Writer).push(true).push_options(options()).into_service();
    let hanging = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hangs = format!("http://{}/", hanging.local_addr().unwrap());
    let slow = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let drips = format!("http://{}/", slow.local_addr().unwrap());
    tokio::spawn(async move {
        use tokio::io::AsyncWriteExt as _;
        while let Ok((mut connection, _)) = slow.accept().await {
            tokio::spawn(async move {
                for byte in b"HTTP/1.1 200 OK\r\n".iter().chain(b"x-drip: 1\r\n".iter().cycle()) {
                    if connection.write_all(&[*byte]).await.is_err() {
                        return;
                    }
                    pause().await;
                }
            });
        }
    });
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let endless = Receiver::start(move |_| {
        let counted = Arc::clone(&counted);
        let chunks = futures::stream::repeat_with(move || {
            counted.fetch_add(1 << 16, Ordering::Relaxed);
            Ok::<_, io::Error>(Bytes::from(vec![b'x'; 1 << 16]))
        });
        Response::new(Body::from_stream(futures::StreamExt::take(chunks, 1 << 14)))
    })
    .await;
    for url in [&hangs, &drips, &endless.url()] {
        for _ in 0..5 {
            send(&*agent, "3", hook(url)).await.unwrap();
        }
    }
    let good = Receiver::accepting().await;
    let start = Instant::now();
    send(&*agent, "3", hook(&good.url())).await.unwrap();
    good.wait_for_end().await;
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    // The head of the response counts; its gigabyte is not read.
    endless.wait_for_end().await;
    assert!(sent.load(Ordering::Relaxed) < 256 << 20, "{}", sent.load(Ordering::Relaxed));
}

/// Name resolution and request share the timeout of an attempt.
#[tokio::test]
async fn attempt_has_one_timeout() {
    struct Slow;

    #[async_trait::async_trait]
    impl Resolver for Slow {
        async fn resolve(&self, _: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
            #[expect(clippy::disallowed_methods, reason = "the resolver takes most of the time")]
            tokio::time::sleep(Duration::from_millis(2500)).await;
            Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))])
        }
    }

    let hanging = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = hanging.local_addr().unwrap().port();
    let allow = vec!["http://slow.example".parse().unwrap()];
    let options = PushOptions::default().allow(allow).resolver(Some(Arc::new(Slow))).timeout(Duration::from_secs(3));
    let agent = Server::new(Writer).push(true).push_options(options).into_service();
    send(&*agent, "1", hook(&format!("http://slow.example:{port}/"))).await.unwrap();
    let (mut connection, _) = timeout(SOON, hanging.accept()).await.unwrap().unwrap();
    let start = Instant::now();
    let mut request = Vec::new();
    let read = tokio::io::AsyncReadExt::read_to_end(&mut connection, &mut request);
    timeout(SOON, read).await.unwrap().unwrap();
    assert!(!request.is_empty() && start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

/// Events that were committed before the process ended are delivered after its next start.
#[tokio::test]
async fn deliveries_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a2a.db");
    let down = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = down.local_addr().unwrap();
    drop(down);
    let start = || {
        let store: Arc<dyn Store> = Arc::new(sqlite::Sqlite::open(&path, sqlite::Options::default()).unwrap());
        Server::new(Writer).store(store).push(true).push_options(options())
    };
    {
        let bound = start().bind("127.0.0.1:0").await.unwrap();
        let (url, handle) = (format!("http://{}", bound.addr()), bound.handle());
        let serving = tokio::spawn(bound.run_until(std::future::pending()));
        let agent = client::rest(&url).unwrap();
        send(&*agent, "3", hook(&format!("http://{addr}/hook"))).await.unwrap();
        handle.drain().await;
        timeout(SOON, serving).await.unwrap().unwrap();
    }
    let receiver = loop {
        // Another process may have taken the port meanwhile.
        match tokio::net::TcpListener::bind(addr).await {
            Ok(listener) => break listener,
            Err(_) => pause().await,
        }
    };
    let requests: Arc<Mutex<Vec<Value>>> = Arc::default();
    let bodies = Arc::clone(&requests);
    let receive = move |bytes: Bytes| {
        let bodies = Arc::clone(&bodies);
        async move { bodies.lock().push(serde_json::from_slice(&bytes).unwrap()) }
    };
    let router = axum::Router::new().fallback(receive);
    tokio::spawn(async move { axum::serve(receiver, router).await.unwrap() });
    let bound = start().bind("127.0.0.1:0").await.unwrap();
    tokio::spawn(bound.run_until(std::future::pending()));
    let is_complete = async {
        while !requests.lock().iter().any(|body| state(body).is_some_and(|state| state.ends_with("COMPLETED"))) {
            pause().await;
        }
    };
    timeout(SOON, is_complete).await.unwrap();
    assert!(requests.lock()[0]["task"].is_object());
}

#[tokio::test]
async fn card_promises_notifications_exactly_if_they_are_delivered() {
    for offered in [false, true] {
        let url = crate::bindings::serve(Server::new(Writer).push(offered)).await;
        let card =
            crate::bindings::fetch(format!("{url}/.well-known/agent-card.json")).await.unwrap().text().await.unwrap();
        let card: Value = serde_json::from_str(&card).unwrap();
        assert_eq!(card["capabilities"]["pushNotifications"].as_bool().unwrap_or_default(), offered);
    }
}

/// Marked parts are redacted in notifications, which have whole messages.
#[tokio::test]
async fn secret_parts_are_redacted_in_notifications() {
    const WORDS: &str = "correct-horse-battery";
    for payload in [V03Payload::Task, V03Payload::Event] {
        let receiver = Receiver::accepting().await;
        let echo = agent::from_fn(|turn, out| async move {
            let is_seen = turn.messages().any(|message| message.text().contains(WORDS));
            out.artifact("seen").text(format!("{is_seen}")).await?;
            Ok(End::completed("done"))
        });
        let server = Server::new(echo).push(true).secret_parts(true).push_options(options().v03_payload(payload));
        let url = crate::bindings::serve(server).await;
        for agent in [client::rest(&url).unwrap(), crate::v03_client::json_rpc(&url)] {
            let before = receiver.requests.lock().len();
            let task_push_notification_config = Some(hook(&receiver.url()));
            let configuration = SendMessageConfiguration { task_push_notification_config, ..Default::default() };
            let request = SendMessageRequest {
                message: Some(Message::user("begin").and(secret::mark(Part::text(WORDS)))),
                configuration: Some(configuration),
                ..Default::default()
            };
            agent.send_message(Call::default().request(request)).await.unwrap();
            let is_end = |one: &Received| state(&one.body).is_some_and(|state| state.ends_with("COMPLETED"));
            let all = receiver.wait(|all| all.iter().skip(before).any(is_end)).await;
            let text = all[before..].iter().map(|one| one.body.to_string()).collect::<Vec<_>>().join("\n");
            assert!(text.contains(secret::REDACTED) && text.contains("true"), "{text}");
            assert!(!text.contains(WORDS), "{text}");
        }
    }
}

/// Results of each kind of agent without code reach the receiver.
async fn results_are_delivered(binding: Binding) {
    let receiver = Receiver::accepting().await;
    let agent = binding(Server::new(Actor::new()).push(true).push_options(options())).await;
    send(&*agent, "/stream 3 1", hook(&receiver.url())).await.unwrap();
    let bodies: String = receiver.wait_for_end().await.iter().map(|received| received.body.to_string()).collect();
    for n in 1..=3 {
        assert!(bodies.contains(&format!("chunk {n} of 3")), "{bodies}");
    }
}

mod results_of_each_kind {
    use super::Binding;

    fn test(binding: Binding) -> futures::future::LocalBoxFuture<'static, ()> {
        Box::pin(super::results_are_delivered(binding))
    }

    crate::bindings::each_kind!(2, [] []);
}
