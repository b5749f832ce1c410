//! Remote agents over a JSON transport or gRPC: equal service behaviour, invalid responses, cursors, and no forwarding of
//! credentials.

use std::{
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use a2a_service::{
    call::{Binding, Call},
    contract::{Dispatch, HttpRule, ParamSource, Params, Remote, Reply, Status, Transport},
    error::{Error, ErrorKind},
    event::Cursor,
    pb::v1::{
        CancelTaskRequest, DeleteTaskPushNotificationConfigRequest, GetTaskRequest, SendMessageRequest,
        SubscribeToTaskRequest,
        a2a_service_client::A2aServiceClient,
        a2a_service_server::{A2aService, A2aServiceServer},
        bindings::{Rpc, ServiceHandle},
        send_message_response, stream_response,
    },
};
use bytes::Bytes;
use futures::{StreamExt as _, future};
use serde_json::Value;
use tonic::{Request, metadata::MetadataMap};
use tower_service::Service;

use super::{Echo, body, echo, message};

/// Transport that passes JSON to a local service without HTTP.
struct Loopback(ServiceHandle);

#[tonic::async_trait]
impl Transport for Loopback {
    async fn send(&self, rpc: &'static str, rule: HttpRule, request: Request<Value>) -> Result<Reply, Status> {
        let rpc = Rpc::from_name(rpc).unwrap();
        assert_eq!(rule, rpc.http_rule());
        let request = request.map(|value| Params { source: ParamSource::Json(value.to_string().into()), path: vec![] });
        self.0.call(rpc, request).await
    }
}

/// Transport with invalid responses.
struct InvalidResponses;

#[tonic::async_trait]
impl Transport for InvalidResponses {
    async fn send(&self, rpc: &'static str, _: HttpRule, _: Request<Value>) -> Result<Reply, Status> {
        Ok(match rpc {
            "GetTask" => Reply::Stream(Box::pin(tokio_stream::empty()), MetadataMap::new()),
            "SubscribeToTask" => Reply::Unary(r#"{"task":{"id":"7"}}"#.into(), MetadataMap::new()),
            "DeleteTaskPushNotificationConfig" | "CancelTask" => Reply::Unary(Bytes::new(), MetadataMap::new()),
            _ => Reply::Unary("{\"task\":\n".into(), MetadataMap::new()),
        })
    }
}

#[tokio::test]
async fn remote_agent_behaves_as_the_local_service() {
    let remotes: [Arc<dyn A2aService>; 3] = [
        Arc::new(echo()),
        Arc::new(Remote(Loopback(echo()))),
        Arc::new(A2aServiceClient::new(A2aServiceServer::new(echo()))),
    ];
    for agent in remotes {
        let request = SendMessageRequest { message: Some(message()), ..Default::default() };
        let reply = agent.send_message(Call::by("ada").request(request)).await.unwrap();
        assert_eq!(reply.metadata().get("a2a-extensions").unwrap(), "urn:a");
        assert_eq!(reply.into_inner().payload, Some(send_message_response::Payload::Message(message())));

        let request = GetTaskRequest { id: "missing".into(), ..Default::default() };
        let error = Error::from(agent.get_task(Call::by("ada").request(request)).await.unwrap_err());
        assert_eq!((error.kind(), error.to_string()), (ErrorKind::TaskNotFound, "Task not found: missing".into()));

        let request = SubscribeToTaskRequest { id: "7".into(), ..Default::default() };
        let events = agent.subscribe_to_task(Call::by("ada").request(request)).await.unwrap().into_inner();
        let events: Vec<_> = events.collect().await;
        assert_eq!(events.len(), 3);
        for event in &events[..2] {
            let Some(stream_response::Payload::Task(task)) = event.as_ref().unwrap().payload() else {
                panic!("{event:?}")
            };
            assert_eq!(task.id, "7");
        }
        let error = Error::from(events[2].clone().unwrap_err());
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
}

#[tokio::test]
async fn invalid_response_is_an_agent_error() {
    let agent = Remote(InvalidResponses);
    let error = agent.get_task(Request::new(GetTaskRequest::default())).await.unwrap_err();
    assert_eq!(Error::from(error).kind(), ErrorKind::InvalidAgentResponse);
    let request = Request::new(SubscribeToTaskRequest::default());
    let events: Vec<_> = agent.subscribe_to_task(request).await.unwrap().into_inner().collect().await;
    assert_eq!(events.len(), 1, "a single message is a stream of one event");
    let error = agent.send_message(Request::new(SendMessageRequest::default())).await.unwrap_err();
    assert_eq!(Error::from(error).kind(), ErrorKind::InvalidAgentResponse);
    // An empty body is a valid response of this method.
    agent
        .delete_task_push_notification_config(Request::new(DeleteTaskPushNotificationConfigRequest::default()))
        .await
        .unwrap();
    assert!(agent.cancel_task(Request::new(CancelTaskRequest::default())).await.is_err());
}

/// Frames carry the cursors of their events, and the JSON transport preserves them.
#[tokio::test]
async fn frames_have_cursors() {
    let request = Call::by("ada").request(Params { source: body(r#"{"id":"7"}"#), path: Vec::new() });
    let Reply::Stream(frames, _) = echo().call(Rpc::SubscribeToTask, request).await.unwrap() else {
        panic!("no stream")
    };
    let frames: Vec<_> = frames.collect().await;
    let first = frames[0].as_ref().unwrap();
    assert_eq!(
        (first.cursor.as_ref().unwrap().as_str(), &**first.data.bytes()),
        ("7.1.1", &br#"{"task":{"id":"7"}}"#[..])
    );
    let agent = Remote(Loopback(echo()));
    let request = SubscribeToTaskRequest { id: "7".into(), ..Default::default() };
    let events = agent.subscribe_to_task(Call::by("ada").request(request)).await.unwrap().into_inner();
    let cursors: Vec<_> = events.filter_map(async |event| event.ok()?.cursor().cloned()).collect().await;
    assert_eq!(cursors.iter().map(Cursor::as_str).collect::<Vec<_>>(), ["7.1.1", "7.1.2"]);
}

/// Secrets in headers or request extensions reach neither the service nor another agent.
#[tokio::test]
async fn credentials_are_not_forwarded() {
    let service = Arc::new(Echo::default());
    let sent = Arc::new(Mutex::new(MetadataMap::new()));
    let recorded = Arc::clone(&sent);
    let interceptor = move |mut request: Request<()>| {
        *recorded.lock().unwrap() = request.metadata().clone();
        request.metadata_mut().insert("authorization", "Bearer secret".parse().unwrap());
        let call = Call { binding: Binding::Grpc, ..Call::by("ada") };
        request.extensions_mut().insert(call);
        request.extensions_mut().insert("a secret");
        Ok(request)
    };
    let handle = ServiceHandle(Arc::<Echo>::clone(&service));
    let agent = A2aServiceClient::new(A2aServiceServer::with_interceptor(handle, interceptor));
    let agent: &dyn A2aService = &agent;

    let call = Call { request_id: Some("r".into()), idempotency_key: Some("k".into()), ..Call::by("bob") };
    let mut request = call.request(GetTaskRequest { id: "7".into(), ..Default::default() });
    request.metadata_mut().insert("authorization", "Bearer other".parse().unwrap());
    agent.get_task(request).await.unwrap();

    assert!(service.metadata.lock().unwrap().is_empty());
    assert_eq!(*service.owner.lock().unwrap(), Some(("ada".to_owned(), 0)));
    let sent = sent.lock().unwrap();
    assert!(sent.get("authorization").is_none());
    assert_eq!(sent.get("x-request-id").unwrap(), "r");
    assert_eq!(sent.get("idempotency-key").unwrap(), "k");
    assert_eq!(sent.get("a2a-version").unwrap(), "1.0");
}

/// gRPC service whose response is a frame of one byte, the start of an incomplete field.
#[derive(Clone)]
struct Malformed;
impl Service<http::Request<tonic::body::Body>> for Malformed {
    type Response = http::Response<tonic::body::Body>;
    type Error = std::convert::Infallible;
    type Future = future::Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<tonic::body::Body>) -> Self::Future {
        future::ready(Ok(http::Response::new(malformed())))
    }
}

fn malformed() -> tonic::body::Body {
    tonic::body::Body::new(http_body_util::Full::from(&b"\0\0\0\0\x01\x0a"[..]))
}

#[tokio::test]
async fn malformed_protobuf_is_attributed_to_its_sender() {
    let request = http::Request::post("/lf.a2a.v1.A2AService/GetTask").header("content-type", "application/grpc");
    let response = A2aServiceServer::new(echo()).call(request.body(malformed()).unwrap()).await.unwrap();
    let error = Error::from(Status::from_header_map(response.headers()).unwrap());
    assert_eq!((error.kind(), error.wire().grpc), (ErrorKind::InvalidParams, tonic::Code::InvalidArgument));

    let agent: &dyn A2aService = &A2aServiceClient::new(Malformed);
    let error = Error::from(agent.get_task(Request::new(GetTaskRequest::default())).await.unwrap_err());
    assert_eq!(error.kind(), ErrorKind::InvalidAgentResponse, "{error}");
    let events = agent.subscribe_to_task(Request::new(SubscribeToTaskRequest::default())).await.unwrap().into_inner();
    let error = Error::from(events.collect::<Vec<_>>().await.remove(0).unwrap_err());
    assert_eq!(error.kind(), ErrorKind::InvalidAgentResponse, "{error}");
}
