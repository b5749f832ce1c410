//! The floors: a bare axum and a bare tonic server, which send the bytes that ours sends and do nothing else. Requests are
//! read, as a tree of JSON or as a message, and what is answered was made before.

use std::{convert::Infallible, sync::LazyLock};

use a2a_service::{
    contract::BoxStream,
    event::{Cursor, Event, Position},
    pb::v1::{
        Artifact, GetTaskRequest, Message, Part, Role, SendMessageRequest, SendMessageResponse, StreamResponse, Task,
        TaskArtifactUpdateEvent, TaskState, TaskStatus,
        a2a_service_server::{A2aService, A2aServiceServer},
        send_message_response, stream_response,
    },
    pb::wkt::Timestamp,
    snapshot::Snapshot,
};
use axum::{
    Router,
    body::Body,
    response::{IntoResponse, Response as Answer, sse, sse::Sse},
    routing::{get, post},
    serve::ListenerExt as _,
};
use bytes::Bytes;
use futures_core::Stream;
use serde_json::Value;
use tokio::net::TcpListener;
use tonic::{
    Request, Response, Status,
    transport::{Server, server::TcpIncoming},
};

use crate::{
    servers::{Asked, CHUNK, GO, LONG},
    work::PING,
};

const ID: &str = "01a1fdbd-709e-7551-9206-19b2814645fa";

async fn listen() -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{}", listener.local_addr().unwrap());
    listener
}

/// What both would else wait for is the other end's acknowledgement.
pub(crate) async fn http() {
    let listener = listen().await.tap_io(|it| it.set_nodelay(true).unwrap());
    let app = Router::new()
        .route("/rpc", post(json_rpc))
        .route("/message:send", post(rest))
        .route("/message:stream", post(rest))
        .route("/tasks/{id}", get(rest_get));
    axum::serve(listener, app).await.unwrap();
}

pub(crate) async fn grpc() {
    let incoming = TcpIncoming::from(listen().await).with_nodelay(Some(true));
    Server::builder().add_service(A2aServiceServer::new(Bare)).serve_with_incoming(incoming).await.unwrap();
}

fn task(text: &str) -> Task {
    let id = ID.to_owned();
    let message = Message {
        message_id: "b0000000-0000-4000-8000-000000000000".to_owned(),
        context_id: id.clone(),
        task_id: id.clone(),
        role: Role::User.into(),
        parts: vec![Part::text(text)],
        ..Message::default()
    };
    let artifact = Artifact {
        artifact_id: id.clone(),
        name: "echo".to_owned(),
        parts: vec![Part::text(text)],
        ..Artifact::default()
    };
    let timestamp = Some(Timestamp { seconds: 1_790_000_000, nanos: 123_000_000 });
    let status = Some(TaskStatus { state: TaskState::Completed.into(), timestamp, ..TaskStatus::default() });
    Task { id: id.clone(), context_id: id, status, artifacts: vec![artifact], history: vec![message], metadata: None }
}

fn chunk(text: &str) -> StreamResponse {
    let id = ID.to_owned();
    let artifact = Artifact { artifact_id: id.clone(), parts: vec![Part::text(text)], ..Artifact::default() };
    let update = TaskArtifactUpdateEvent {
        task_id: id.clone(),
        context_id: id,
        artifact: Some(artifact),
        append: true,
        ..TaskArtifactUpdateEvent::default()
    };
    StreamResponse { payload: Some(stream_response::Payload::ArtifactUpdate(update)) }
}

/// The text of a hundred kilobytes.
fn large() -> String {
    format!("{PING}{}", "x".repeat(100_000 - PING.len()))
}

/// How many events come, each with a chance for others between, and how long they are; if any come at all.
fn events(text: &str) -> Option<(Asked, usize, bool)> {
    let asked = Asked::of(text);
    if text == "go" {
        GO.send_replace(());
    }
    // Three more, as ours has: the task, that it works, and that it is done.
    match asked {
        Asked::Stream(chunks) => Some((asked, chunks + 3, false)),
        Asked::Burst(chunks) => Some((asked, chunks + 3, true)),
        Asked::Fan(chunks) => Some((asked, chunks + 2, false)),
        Asked::Silence => Some((asked, 1, false)),
        Asked::Echo => None,
    }
}

/// An item so many times, made anew each time.
fn each<T>(asked: Asked, count: usize, make: impl Fn() -> T) -> impl Stream<Item = T> {
    async_stream::stream! {
        let mut go = GO.subscribe();
        yield make();
        match asked {
            Asked::Silence => std::future::pending().await,
            Asked::Fan(_) => go.changed().await.unwrap(),
            _ => tokio::task::yield_now().await,
        }
        for _ in 1..count {
            yield make();
            tokio::task::yield_now().await;
        }
    }
}

/// What is in an answer over JSON-RPC, and over REST.
struct Json {
    small: Bytes,
    large: Bytes,
    task: Bytes,
    short_event: String,
    long_event: String,
}

impl Json {
    fn new(wrap: fn(&str) -> String) -> Self {
        let bare = |text: &str| serde_json::to_string(&task(text)).unwrap();
        let sent = |text: &str| Bytes::from(wrap(&format!(r#"{{"task":{}}}"#, bare(text))));
        let event = |text: &str| wrap(&serde_json::to_string(&chunk(text)).unwrap());
        Self {
            small: sent(PING),
            large: sent(&large()),
            task: wrap(&bare(PING)).into(),
            short_event: event(CHUNK),
            long_event: event(&LONG),
        }
    }

    fn answer(&'static self, text: &str) -> Answer {
        let Some((asked, count, long)) = events(text) else {
            return json(if text.len() > 1000 { &self.large } else { &self.small });
        };
        let data = if long { &*self.long_event } else { &*self.short_event };
        let cursor = Cursor::new(ID, Position { fence: 1, seq: 1 }).to_string();
        let event = move || Ok::<_, Infallible>(sse::Event::default().id(&cursor).data(data));
        Sse::new(each(asked, count, event)).into_response()
    }
}

fn json(bytes: &Bytes) -> Answer {
    ([(http::header::CONTENT_TYPE, "application/json")], Body::from(bytes.clone())).into_response()
}

static RPC: LazyLock<Json> = LazyLock::new(|| Json::new(|it| format!(r#"{{"jsonrpc":"2.0","id":1,"result":{it}}}"#)));
static REST: LazyLock<Json> = LazyLock::new(|| Json::new(str::to_owned));

fn text(message: &Value) -> &str {
    message.pointer("/parts/0/text").and_then(Value::as_str).unwrap_or_default()
}

async fn json_rpc(body: Bytes) -> Answer {
    let call: Value = serde_json::from_slice(&body).unwrap();
    if call["method"] == "GetTask" {
        return json(&RPC.task);
    }
    RPC.answer(text(&call["params"]["message"]))
}

async fn rest(body: Bytes) -> Answer {
    let call: Value = serde_json::from_slice(&body).unwrap();
    REST.answer(text(&call["message"]))
}

async fn rest_get() -> Answer {
    json(&REST.task)
}

/// Tonic, and messages that were made before.
struct Bare;

#[tonic::async_trait]
impl A2aService for Bare {
    async fn send_message(&self, r: Request<SendMessageRequest>) -> Result<Response<SendMessageResponse>, Status> {
        static SMALL: LazyLock<SendMessageResponse> = LazyLock::new(|| reply(PING));
        static LARGE: LazyLock<SendMessageResponse> = LazyLock::new(|| reply(&large()));
        let text = r.get_ref().message.as_ref().unwrap().parts[0].as_text().unwrap();
        let large = text.len() > 1000;
        if text == "go" {
            GO.send_replace(());
        }
        Ok(Response::new(if large { LARGE.clone() } else { SMALL.clone() }))
    }

    async fn get_task(&self, _: Request<GetTaskRequest>) -> Result<Response<Snapshot>, Status> {
        static TASK: LazyLock<Task> = LazyLock::new(|| task(PING));
        Ok(Response::new(TASK.clone().into()))
    }

    async fn send_streaming_message(
        &self,
        r: Request<SendMessageRequest>,
    ) -> Result<Response<BoxStream<Event>>, Status> {
        let text = r.into_inner().message.unwrap().parts[0].as_text().unwrap().to_owned();
        let (asked, count, long) = events(&text).unwrap();
        let event = chunk(if long { &LONG } else { CHUNK });
        let event = move || Ok(Event::from(event.clone()));
        Ok(Response::new(Box::pin(each(asked, count, event))))
    }
}

fn reply(text: &str) -> SendMessageResponse {
    SendMessageResponse { payload: Some(send_message_response::Payload::Task(task(text))) }
}
