//! Echo service, a server for it, and JSON helpers: shared by the tests of the wire format.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use a2a_service::{
    call::Call,
    contract::BoxStream,
    error::{Error, ErrorKind},
    event::{Ends, Event, EventFlags, Position},
    pb::{
        v1::{a2a_service_server::A2aService, bindings::ValidatedService, *},
        wkt::Empty,
    },
    snapshot::Snapshot,
    transport::{HttpService, Settings, listener},
};
use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::conformance::{CheckedService, assert_no_violations};

pub(crate) const CARD: &str = r#"{"name":"echo","description":"","version":"1","supportedInterfaces":[],"capabilities":{},"defaultInputModes":[],"defaultOutputModes":[],"skills":[]}"#;

/// JSON in Latin-1, which is not valid JSON.
pub(crate) const LATIN: &[u8] = b"{\"message\":{\"messageId\":\"\xfc\"}}";

/// Bytes that are not JSON.
pub(crate) const NO_JSON: [&[u8]; 9] =
    [b"{", b"}", b"{'a':1}", br#"{"a":1,}"#, b"{} {}", b"NaN", b"\xef\xbb\xbf{}", b"message=hi", LATIN];

/// Message whose id selects the behaviour of [`Echo`].
pub(crate) fn hello(message_id: &str) -> Message {
    let text = Part { content: Some(part::Content::Text("hi".into())), ..Part::default() };
    Message { message_id: message_id.into(), role: Role::User.into(), parts: vec![text], ..Message::default() }
}

pub(crate) fn send(message_id: &str) -> SendMessageRequest {
    SendMessageRequest { message: Some(hello(message_id)), ..SendMessageRequest::default() }
}

/// `hello` as JSON.
pub(crate) fn hello_json(message_id: &str) -> String {
    format!(r#"{{"messageId":"{message_id}","role":"ROLE_USER","parts":[{{"text":"hi"}}]}}"#)
}

/// `send` as JSON.
pub(crate) fn send_json(message_id: &str) -> String {
    format!(r#"{{"message":{}}}"#, hello_json(message_id))
}

pub(crate) fn event(message: Message, seq: u64) -> Event {
    let message = Message { task_id: "t".into(), ..message };
    Event::new(Position { fence: 1, seq }, EventFlags::NOTHING, stream_response::Payload::Message(message))
}

/// `event` as JSON.
pub(crate) fn event_json(message_id: &str) -> String {
    format!(r#"{{"message":{{"messageId":"{message_id}","taskId":"t","role":"ROLE_USER","parts":[{{"text":"hi"}}]}}}}"#)
}

/// Requests with a JSON body and content type.
pub(crate) trait JsonBody {
    fn json_body(self, body: impl Into<reqwest::Body>) -> Self;
}

impl JsonBody for reqwest::RequestBuilder {
    fn json_body(self, body: impl Into<reqwest::Body>) -> Self {
        self.header(http::header::CONTENT_TYPE, "application/json").body(body)
    }
}

/// Parses the body of a response.
pub(crate) async fn json(reply: reqwest::Response) -> Value {
    serde_json::from_slice(&reply.bytes().await.unwrap()).unwrap()
}

pub(crate) type Feed = UnboundedSender<Result<Event, Status>>;

/// Service that echoes messages. The id of a message selects other behaviour: `fail` and `drain` end a stream with an
/// error, `feed` streams what the test sends to [`Echo::feed`]. The task `large` has 2000 bytes.
#[derive(Default)]
pub(crate) struct Echo {
    /// Context of each request.
    pub(crate) calls: Mutex<Vec<Call>>,
    /// Messages of non-streaming sends.
    pub(crate) sent: Mutex<Vec<SendMessageRequest>>,
    feed: Mutex<Option<UnboundedReceiver<Result<Event, Status>>>>,
}

impl Echo {
    /// Returns the sender of the events of the next stream.
    pub(crate) fn feed(&self) -> Feed {
        let (feed, items) = unbounded_channel();
        *self.feed.lock() = Some(items);
        feed
    }

    fn record<T>(&self, request: &Request<T>) {
        assert!(request.metadata().is_empty(), "{:?}", request.metadata());
        assert_eq!(request.extensions().len(), 1);
        self.calls.lock().push(Call::of(request).unwrap().clone());
    }
}

/// Returns the error that a task id stands for.
fn error_for(id: &str) -> Result<(), Error> {
    Err(match id {
        "missing" => Error::task_not_found(id),
        "limited" => ErrorKind::ResourceExhausted.error().retry_after(Duration::from_millis(1500)),
        "secret" => ErrorKind::Unauthenticated.error().challenge("Bearer realm=\"a\""),
        "forbidden" => ErrorKind::PermissionDenied.error(),
        _ => return Ok(()),
    })
}

#[tonic::async_trait]
impl A2aService for Echo {
    async fn send_message(&self, r: Request<SendMessageRequest>) -> Result<Response<SendMessageResponse>, Status> {
        self.record(&r);
        self.sent.lock().push(r.get_ref().clone());
        let payload = r.into_inner().message.map(send_message_response::Payload::Message);
        let mut response = Response::new(SendMessageResponse { payload });
        response.metadata_mut().insert("a2a-extensions", "https://example.com/ext".parse().unwrap());
        // Headers that a service must not set.
        response.metadata_mut().insert("content-length", "7".parse().unwrap());
        response.metadata_mut().insert("transfer-encoding", "gzip".parse().unwrap());
        Ok(response)
    }

    async fn send_streaming_message(
        &self,
        r: Request<SendMessageRequest>,
    ) -> Result<Response<BoxStream<Event>>, Status> {
        self.record(&r);
        let message = r.into_inner().message.unwrap();
        let events = match message.message_id.as_str() {
            "refuse" => return Err(ErrorKind::StreamingNotSupported.error().into()),
            "feed" => {
                return Ok(Response::new(Box::pin(UnboundedReceiverStream::new(self.feed.lock().take().unwrap()))));
            }
            "fail" => vec![Ok(event(message, 1)), Err(Error::task_not_found("t").into())],
            // The events of a turn, up to its end.
            "turn" => turn_events(),
            "away" => vec![Err(ErrorKind::Unavailable.error().into())],
            "drain" => vec![Ok(event(message, 1)), Err(ErrorKind::Unavailable.error().into())],
            _ => vec![Ok(event(message.clone(), 1)), Ok(event(message, 2))],
        };
        let events: BoxStream<Event> = Box::pin(tokio_stream::iter(events));
        let mut response = Response::new(events);
        response.metadata_mut().insert("a2a-extensions", "https://example.com/ext".parse().unwrap());
        Ok(response)
    }

    async fn get_task(&self, r: Request<GetTaskRequest>) -> Result<Response<Snapshot>, Status> {
        self.record(&r);
        let GetTaskRequest { id, tenant, history_length } = r.into_inner();
        if let Some(kind) =
            id.strip_prefix("error-").and_then(|number| ErrorKind::ALL.get(number.parse::<usize>().ok()?))
        {
            return Err(kind.because("ü: why").with("taskId", "t-ü").into());
        }
        error_for(&id)?;
        let context_id = if id == "large" { "c".repeat(2000) } else { format!("{tenant} {history_length:?}") };
        let status = Some(TaskStatus { state: TaskState::Submitted.into(), ..TaskStatus::default() });
        Ok(Response::new(Task { id, context_id, status, ..Task::default() }.into()))
    }

    async fn list_tasks(&self, r: Request<ListTasksRequest>) -> Result<Response<ListTasksResponse>, Status> {
        let r = r.into_inner();
        let next_page_token = format!("{:?} {} {:?}", r.include_artifacts, r.context_id, r.status());
        Ok(Response::new(ListTasksResponse { page_size: r.page_size(), next_page_token, ..Default::default() }))
    }

    async fn cancel_task(&self, r: Request<CancelTaskRequest>) -> Result<Response<Snapshot>, Status> {
        let r = r.into_inner();
        Err(ErrorKind::TaskNotCancelable.because(format!("{} {:?}", r.id, r.metadata.is_some())).into())
    }

    async fn subscribe_to_task(
        &self,
        r: Request<SubscribeToTaskRequest>,
    ) -> Result<Response<BoxStream<Event>>, Status> {
        self.record(&r);
        error_for(&r.get_ref().id)?;
        let events = [Ok(event(hello(&r.into_inner().id), 1))];
        Ok(Response::new(Box::pin(tokio_stream::iter(events))))
    }

    async fn create_task_push_notification_config(
        &self,
        r: Request<TaskPushNotificationConfig>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        self.record(&r);
        Ok(Response::new(r.into_inner()))
    }

    async fn list_task_push_notification_configs(
        &self,
        r: Request<ListTaskPushNotificationConfigsRequest>,
    ) -> Result<Response<ListTaskPushNotificationConfigsResponse>, Status> {
        let ListTaskPushNotificationConfigsRequest { task_id, page_token, .. } = r.into_inner();
        let url = "https://example.com/hook".to_owned();
        let has_some = task_id != "no webhooks";
        let config = TaskPushNotificationConfig { task_id, id: "c".into(), url, ..Default::default() };
        Ok(Response::new(ListTaskPushNotificationConfigsResponse {
            configs: has_some.then_some(config).into_iter().collect(),
            next_page_token: page_token,
        }))
    }

    async fn get_task_push_notification_config(
        &self,
        r: Request<GetTaskPushNotificationConfigRequest>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        let GetTaskPushNotificationConfigRequest { tenant, task_id, id } = r.into_inner();
        let url = "https://example.com/hook".to_owned();
        Ok(Response::new(TaskPushNotificationConfig { tenant, task_id, id, url, ..Default::default() }))
    }

    async fn delete_task_push_notification_config(
        &self,
        _: Request<DeleteTaskPushNotificationConfigRequest>,
    ) -> Result<Response<Empty>, Status> {
        Ok(Response::new(Empty {}))
    }
}

fn turn_events() -> Vec<Result<Event, Status>> {
    use stream_response::Payload;
    let (task_id, context_id) = ("t".to_owned(), "c".to_owned());
    let status = |state: TaskState| TaskStatus { state: state.into(), ..Default::default() };
    let update = |state| {
        let (task_id, context_id, status) = (task_id.clone(), context_id.clone(), Some(status(state)));
        Payload::StatusUpdate(TaskStatusUpdateEvent { task_id, context_id, status, metadata: None })
    };
    let artifact = Artifact { artifact_id: "a".into(), parts: vec![Part::text("hi")], ..Default::default() };
    let artifact = TaskArtifactUpdateEvent {
        task_id: task_id.clone(),
        context_id: context_id.clone(),
        artifact: Some(artifact),
        last_chunk: true,
        ..Default::default()
    };
    let task = Task {
        id: "t".into(),
        context_id: "c".into(),
        status: Some(status(TaskState::Submitted)),
        ..Default::default()
    };
    let events = [
        (Payload::Task(task), EventFlags::NOTHING),
        (update(TaskState::Working), EventFlags::NOTHING),
        (Payload::ArtifactUpdate(artifact), EventFlags::NOTHING),
        (update(TaskState::InputRequired), EventFlags::ending(Ends::Turn)),
    ];
    let events = events.into_iter().zip(1..);
    events.map(|((payload, mark), seq)| Ok(Event::new(Position { fence: 1, seq }, mark, payload))).collect()
}

/// Server that is aborted when dropped.
pub(crate) struct Server {
    pub(crate) url: String,
    pub(crate) addr: SocketAddr,
    pub(crate) echo: Arc<Echo>,
    pub(crate) drain: CancellationToken,
    /// Result of `listener::serve`: whether all connections ended within the grace period.
    pub(crate) served: tokio::task::JoinHandle<bool>,
}

/// Service of HTTP whose exchanges are checked against the documents.
pub(crate) type CheckedHttp = CheckedService<HttpService>;

pub(crate) fn http_service(echo: &Arc<Echo>, settings: Settings) -> CheckedHttp {
    CheckedService(HttpService::new(checked(echo), settings))
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::with(settings(), listener::ListenerSettings::default()).await
    }

    pub(crate) async fn with(settings: Settings, connections: listener::ListenerSettings) -> Self {
        let echo = Arc::new(Echo::default());
        let service = http_service(&echo, settings);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let drain = CancellationToken::new();
        let token = drain.clone();
        let served = tokio::spawn(async move { listener::serve(listener, service, &connections, &token).await });
        Self { url: format!("http://{addr}"), addr, echo, drain, served }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.served.abort();
        if !std::thread::panicking() {
            assert_no_violations();
        }
    }
}

pub(crate) fn checked(echo: &Arc<Echo>) -> Arc<dyn A2aService> {
    Arc::new(ValidatedService(Arc::<Echo>::clone(echo)))
}

pub(crate) fn settings() -> Settings {
    Settings::new(Arc::new(|_| Bytes::from_static(CARD.as_bytes())))
}
