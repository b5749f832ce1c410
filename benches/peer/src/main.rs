//! Serves the echo agent by the official Rust SDK, in memory, over each binding on one port, and says where.

use std::sync::Arc;

use a2a::{
    A2AError, Artifact, Part, StreamResponse, Task, TaskArtifactUpdateEvent, TaskState, TaskStatus, TaskStatusUpdateEvent,
    new_artifact_id,
};
use a2a_server::{AgentExecutor, DefaultRequestHandler, ExecutorContext, InMemoryTaskStore};
use axum::{Router, extract::Request, http::HeaderValue, middleware::map_request, serve::ListenerExt as _};
use futures::{StreamExt as _, stream::{self, BoxStream}};

struct Echo;

fn status(state: TaskState) -> TaskStatus {
    TaskStatus { state, message: None, timestamp: Some(chrono::Utc::now()) }
}

impl AgentExecutor for Echo {
    fn execute(&self, context: ExecutorContext) -> BoxStream<'static, Result<StreamResponse, A2AError>> {
        let (task_id, context_id) = context.task_info();
        let text = context.message.as_ref().and_then(|it| it.text()).unwrap_or_default().to_owned();
        let task = Task {
            id: task_id.clone(),
            context_id: context_id.clone(),
            status: status(TaskState::Submitted),
            artifacts: None,
            history: Some(context.message.into_iter().collect()),
            metadata: None,
        };
        let told = |state| {
            let (task_id, context_id) = (task_id.clone(), context_id.clone());
            StreamResponse::StatusUpdate(TaskStatusUpdateEvent { task_id, context_id, status: status(state), metadata: None })
        };
        let artifact = Artifact {
            artifact_id: new_artifact_id(),
            name: Some("echo".to_owned()),
            description: None,
            parts: vec![Part::text(text)],
            metadata: None,
            extensions: None,
        };
        let chunk = StreamResponse::ArtifactUpdate(TaskArtifactUpdateEvent {
            task_id: task_id.clone(),
            context_id: context_id.clone(),
            artifact,
            append: None,
            last_chunk: Some(true),
            metadata: None,
        });
        let events = [StreamResponse::Task(task), told(TaskState::Working), chunk, told(TaskState::Completed)];
        stream::iter(events.map(Ok)).boxed()
    }

    fn cancel(&self, _: ExecutorContext) -> BoxStream<'static, Result<StreamResponse, A2AError>> {
        stream::empty().boxed()
    }
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let handler = Arc::new(DefaultRequestHandler::new(Echo, InMemoryTaskStore::new()));
    let grpc = a2a_grpc::GrpcHandler::new(Arc::clone(&handler));
    let grpc = a2a_pb::proto::a2a_service_server::A2aServiceServer::new(grpc);
    let router = Router::new()
        .merge(a2a_server::rest::rest_router(Arc::clone(&handler)))
        .nest("/rpc", a2a_server::jsonrpc::jsonrpc_router(handler))
        .merge(tonic::service::Routes::new(grpc).into_axum_router())
        // It takes what says no version for 0.3, which it does not speak.
        .layer(map_request(|mut request: Request| async {
            request.headers_mut().entry("a2a-version").or_insert(HeaderValue::from_static("1.0"));
            request
        }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    let listener = listener.tap_io(|it| drop(it.set_nodelay(true)));
    axum::serve(listener, router).await
}
