//! Baseline: a bare axum and a bare tonic server that send the same bytes as this server and do nothing else. Requests are
//! decoded, to a JSON value or a message, and replies are prepared in advance.

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
    response::{IntoResponse, Response as HttpResponse, sse, sse::Sse},
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
    servers::{CHUNK, Command, GO, LONG},
    work::PING,
};

const ID: &str = "01a1fdbd-709e-7551-9206-19b2814645fa";

async fn listen() -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("{}", listener.local_addr().unwrap());
    listener
}

/// Without `TCP_NODELAY` the server would wait for delayed acknowledgements.
pub(crate) async fn http() {
    let listener = listen().await.tap_io(|stream| stream.set_nodelay(true).unwrap());
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

/// Text of 100 kB.
fn large() -> String {
    format!("{PING}{}", "x".repeat(100_000 - PING.len()))
}

/// Command, number of events and whether they are long; `None` if the reply is not a stream.
fn events(text: &str) -> Option<(Command, usize, bool)> {
    let command = Command::of(text);
    if text == "go" {
        GO.send_replace(());
    }
    // The real server sends up to three more events: the task, WORKING and COMPLETED.
    match command {
        Command::Stream(chunks) => Some((command, chunks + 3, false)),
        Command::Burst(chunks) => Some((command, chunks + 3, true)),
        Command::Fan(chunks) => Some((command, chunks + 2, false)),
        Command::Silence => Some((command, 1, false)),
        Command::Echo => None,
    }
}

/// Stream of this many items, each created when it is sent.
fn each<T>(command: Command, count: usize, make: impl Fn() -> T) -> impl Stream<Item = T> {
    async_stream::stream! {
        let mut go = GO.subscribe();
        yield make();
        match command {
            Command::Silence => std::future::pending().await,
            Command::Fan(_) => go.changed().await.unwrap(),
            _ => tokio::task::yield_now().await,
        }
        for _ in 1..count {
            yield make();
            tokio::task::yield_now().await;
        }
    }
}

/// Prepared JSON of JSON-RPC or REST.
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

    fn reply(&'static self, text: &str) -> HttpResponse {
        let Some((command, count, long)) = events(text) else {
            return json(if text.len() > 1000 { &self.large } else { &self.small });
        };
        let data = if long { &*self.long_event } else { &*self.short_event };
        let cursor = Cursor::new(ID, Position { fence: 1, seq: 1 }).to_string();
        let event = move || Ok::<_, Infallible>(sse::Event::default().id(&cursor).data(data));
        Sse::new(each(command, count, event)).into_response()
    }
}

fn json(bytes: &Bytes) -> HttpResponse {
    ([(http::header::CONTENT_TYPE, "application/json")], Body::from(bytes.clone())).into_response()
}

static RPC: LazyLock<Json> =
    LazyLock::new(|| Json::new(|result| format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#)));
static REST: LazyLock<Json> = LazyLock::new(|| Json::new(str::to_owned));

fn text(message: &Value) -> &str {
    message.pointer("/parts/0/text").and_then(Value::as_str).unwrap_or_default()
}

async fn json_rpc(body: Bytes) -> HttpResponse {
    let call: Value = serde_json::from_slice(&body).unwrap();
    if call["method"] == "GetTask" {
        return json(&RPC.task);
    }
    RPC.reply(text(&call["params"]["message"]))
}

async fn rest(body: Bytes) -> HttpResponse {
    let call: Value = serde_json::from_slice(&body).unwrap();
    REST.reply(text(&call["message"]))
}

async fn rest_get() -> HttpResponse {
    json(&REST.task)
}

/// Tonic service with prepared messages.
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
        let (command, count, long) = events(&text).unwrap();
        let event = chunk(if long { &LONG } else { CHUNK });
        let event = move || Ok(Event::from(event.clone()));
        Ok(Response::new(Box::pin(each(command, count, event))))
    }
}

fn reply(text: &str) -> SendMessageResponse {
    SendMessageResponse { payload: Some(send_message_response::Payload::Task(task(text))) }
}
