//! The servers: ours with an echo agent, and the floors, which send the bytes that ours sends and do nothing else.

use std::{
    convert::Infallible,
    sync::{Arc, LazyLock},
};

use a2a_service::{
    agent::{Agent, End, Error, Turn, Updates},
    event::{Ends, Event, Mark, Position},
    pb::v1::{
        Artifact, GetTaskRequest, Message, Part, Role, SendMessageRequest, SendMessageResponse, Task,
        TaskArtifactUpdateEvent, TaskState, TaskStatus,
        a2a_service_server::{A2aService, A2aServiceServer},
        send_message_response, stream_response,
    },
    pb::wkt::Timestamp,
    server,
    store::memory::Memory,
    transport::{listener, transcode::BoxStream},
};
use axum::{Router, body::Body, response::IntoResponse, routing::post};
use bytes::Bytes;
use serde_json::Value;
use tokio::{net::TcpListener, runtime::Builder};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

/// Serves until it is killed, and says where on its first line.
pub(crate) fn run(kind: &str) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        if kind == "ours" {
            // None is dropped while it is counted what each takes.
            let store = Arc::new(Memory::with_max_tasks(10_000_000));
            let bound = server::Server::new(Echo).store(store).bind("127.0.0.1:0").await.unwrap();
            println!("{}", bound.addr());
            return bound.run_until(std::future::pending()).await;
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("{}", listener.local_addr().unwrap());
        // The same loop as ours: what is compared is what is behind it.
        let app = match kind {
            "bare-grpc" => tonic::service::Routes::new(A2aServiceServer::new(Bare)).into_axum_router(),
            _ => Router::new().fallback(post(http)),
        };
        let settings = listener::Settings::default();
        listener::serve(listener, app, &settings, &CancellationToken::new()).await;
    });
}

/// Says that it works, gives its text back in an artifact, and is done. `N` is N chunks, each in a poll of its own, as a
/// model's tokens come; `!N` is N chunks at once.
struct Echo;

impl Agent for Echo {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Error> {
        out.working().await?;
        let text = turn.text();
        let mut artifact = out.artifact("echo");
        match (text.parse::<usize>(), text.strip_prefix('!').map(str::parse::<usize>)) {
            (Ok(chunks), _) => {
                for _ in 0..chunks {
                    tokio::task::yield_now().await;
                    artifact.text(CHUNK).await?;
                }
            }
            (Err(_), Some(Ok(chunks))) => {
                for _ in 0..chunks {
                    artifact.text(LONG.as_str()).await?;
                }
            }
            _ => artifact.last().text(text).await?,
        }
        Ok(End::Completed(None))
    }
}

const CHUNK: &str = "0123456789012345678901234567890123456789012345678901234567890123";

/// Too long for two to be joined to one event.
static LONG: LazyLock<String> = LazyLock::new(|| CHUNK.repeat(9));

fn task(text: &str) -> Task {
    let id = "01a1fdbd-709e-7551-9206-19b2814645fa".to_owned();
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

fn chunk(text: &str) -> Event {
    let id = "01a1fdbd-709e-7551-9206-19b2814645fa".to_owned();
    let artifact = Artifact { artifact_id: id.clone(), parts: vec![Part::text(text)], ..Artifact::default() };
    let update = TaskArtifactUpdateEvent {
        task_id: id.clone(),
        context_id: id,
        artifact: Some(artifact),
        append: true,
        ..TaskArtifactUpdateEvent::default()
    };
    let payload = stream_response::Payload::ArtifactUpdate(update);
    Event::new(Position { fence: 1, seq: 1 }, Mark::ending(Ends::Nothing), payload)
}

/// The text of a call, and how many events it is to be answered with.
fn events(text: &str) -> Option<(usize, &'static str)> {
    let many = text.parse().ok().map(|it| (it, CHUNK));
    many.or_else(|| text.strip_prefix('!')?.parse().ok().map(|it| (it, LONG.as_str())))
}

/// The floor of JSON: reads the body to a tree, and sends what was made before.
async fn http(body: Bytes) -> axum::response::Response {
    static SMALL: LazyLock<Bytes> = LazyLock::new(|| answer(CHUNK));
    static LARGE: LazyLock<Bytes> = LazyLock::new(|| answer(&"x".repeat(100_000)));
    static SHORT_EVENT: LazyLock<Bytes> = LazyLock::new(|| event(CHUNK));
    static LONG_EVENT: LazyLock<Bytes> = LazyLock::new(|| event(&LONG));
    let call: Value = serde_json::from_slice(&body).unwrap();
    let message = call.pointer("/params/message").or_else(|| call.pointer("/message"));
    let text = message.and_then(|it| it.pointer("/parts/0/text")).and_then(Value::as_str).unwrap_or_default();
    let json = [(http::header::CONTENT_TYPE, "application/json")];
    let Some((count, chunk)) = events(text) else {
        let answer = if text.len() > 1000 { &LARGE } else { &SMALL };
        return (json, Body::from(Bytes::clone(answer))).into_response();
    };
    let frame = Bytes::clone(if chunk == CHUNK { &SHORT_EVENT } else { &LONG_EVENT });
    // Three more, as ours has: the task, that it works, and that it is done. Each in a write of its own.
    let events = async_stream::stream! {
        for _ in 0..count + 3 {
            yield Ok::<_, Infallible>(Bytes::clone(&frame));
            tokio::task::yield_now().await;
        }
    };
    ([(http::header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response()
}

fn answer(text: &str) -> Bytes {
    let task = serde_json::to_string(&task(text)).unwrap();
    format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"task":{task}}}}}"#).into()
}

fn event(text: &str) -> Bytes {
    let event = chunk(text);
    let (cursor, json) = (event.cursor().unwrap(), String::from_utf8(event.json().to_vec()).unwrap());
    format!("id: {cursor}\ndata: {{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{json}}}\n\n").into()
}

/// The floor of gRPC: tonic, and messages that were made before.
struct Bare;

#[tonic::async_trait]
impl A2aService for Bare {
    async fn send_message(&self, r: Request<SendMessageRequest>) -> Result<Response<SendMessageResponse>, Status> {
        static SMALL: LazyLock<SendMessageResponse> = LazyLock::new(|| reply(CHUNK));
        static LARGE: LazyLock<SendMessageResponse> = LazyLock::new(|| reply(&"x".repeat(100_000)));
        let large = r.get_ref().message.as_ref().unwrap().parts[0].as_text().unwrap().len() > 1000;
        Ok(Response::new(if large { LARGE.clone() } else { SMALL.clone() }))
    }

    async fn get_task(&self, _: Request<GetTaskRequest>) -> Result<Response<Task>, Status> {
        static TASK: LazyLock<Task> = LazyLock::new(|| task(CHUNK));
        Ok(Response::new(TASK.clone()))
    }

    async fn send_streaming_message(
        &self,
        r: Request<SendMessageRequest>,
    ) -> Result<Response<BoxStream<Event>>, Status> {
        let text = r.into_inner().message.unwrap().parts[0].as_text().unwrap().to_owned();
        let (count, text) = events(&text).unwrap();
        let event = chunk(text);
        event.proto();
        Ok(Response::new(Box::pin(async_stream::stream! {
            for _ in 0..count + 3 {
                yield Ok(event.clone());
                tokio::task::yield_now().await;
            }
        })))
    }
}

fn reply(text: &str) -> SendMessageResponse {
    SendMessageResponse { payload: Some(send_message_response::Payload::Task(task(text))) }
}
