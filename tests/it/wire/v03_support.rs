//! Service with canned responses, and their JSON in protocol 0.3: shared by the tests of JSON-RPC of 0.3.

use std::sync::Arc;

use a2a_service::{
    call::Call,
    contract::BoxStream,
    error::{Error, ErrorKind},
    event::{Ends, Event, EventFlags, Position},
    pb::{
        v1::{
            a2a_service_server::A2aService, bindings::ValidatedService, send_message_response,
            stream_response::Payload, *,
        },
        wkt::{Empty, Timestamp},
    },
    snapshot::Snapshot,
    transport::{HttpService, Settings, listener},
};
use parking_lot::Mutex;
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::support::JsonBody as _;
use crate::conformance::CheckedService;

/// Returns canned responses, and records the requests that it receives.
#[derive(Default)]
pub(crate) struct CannedService {
    pub(crate) requests: Mutex<Vec<String>>,
    pub(crate) calls: Mutex<Vec<Call>>,
}

impl CannedService {
    fn record<T: Serialize>(&self, name: &str, r: &Request<T>) {
        self.requests.lock().push(format!("{name} {}", serde_json::to_string(r.get_ref()).unwrap()));
        self.calls.lock().push(Call::of(r).unwrap().clone());
    }

    /// Serves until the end of the test, and returns the URL and the service.
    pub(crate) async fn serve(settings: Settings) -> (String, Arc<Self>) {
        let service = Arc::new(Self::default());
        let http_service =
            CheckedService(HttpService::new(Arc::new(ValidatedService(Arc::<Self>::clone(&service))), settings));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/rpc", listener.local_addr().unwrap());
        let connections = listener::ListenerSettings::default();
        tokio::spawn(
            async move { listener::serve(listener, http_service, &connections, &CancellationToken::new()).await },
        );
        (url, service)
    }
}

fn status(state: TaskState) -> TaskStatus {
    let timestamp = Some(Timestamp { seconds: 1_705_746_600, nanos: 0 });
    TaskStatus { state: state.into(), message: None, timestamp }
}

fn task(id: String) -> Task {
    Task { id, context_id: "c".into(), status: Some(status(TaskState::Working)), ..Task::default() }
}

/// `task` as JSON of 0.3.
pub(crate) const TASK: &str =
    r#"{"kind":"task","id":"t","contextId":"c","status":{"state":"working","timestamp":"2024-01-20T10:30:00.000Z"}}"#;

fn events() -> Vec<Event> {
    let (task_id, context_id) = ("t".to_owned(), "c".to_owned());
    let update = |state| TaskStatusUpdateEvent {
        task_id: task_id.clone(),
        context_id: context_id.clone(),
        status: Some(status(state)),
        metadata: None,
    };
    let artifact = Artifact { artifact_id: "a".into(), parts: vec![Part::text("line\nbreak")], ..Artifact::default() };
    let chunk = TaskArtifactUpdateEvent {
        task_id: task_id.clone(),
        context_id: context_id.clone(),
        artifact: Some(artifact),
        append: true,
        ..TaskArtifactUpdateEvent::default()
    };
    let all = [
        (Payload::Task(task("t".into())), Ends::Nothing),
        (Payload::ArtifactUpdate(chunk), Ends::Nothing),
        (Payload::StatusUpdate(update(TaskState::Working)), Ends::Nothing),
        (Payload::StatusUpdate(update(TaskState::InputRequired)), Ends::Turn),
    ];
    let event = |(seq, (payload, ends))| Event::new(Position { fence: 1, seq }, EventFlags::ending(ends), payload);
    (1..).zip(all).map(event).collect()
}

/// `events` as a stream of JSON-RPC 0.3, in the envelope of `id`.
pub(crate) fn events_json(id: &str) -> String {
    let status = |state: &str, last: bool| {
        let status = format!(r#"{{"state":"{state}","timestamp":"2024-01-20T10:30:00.000Z"}}"#);
        format!(r#"{{"kind":"status-update","taskId":"t","contextId":"c","status":{status},"final":{last}}}"#)
    };
    let artifact = r#"{"artifactId":"a","parts":[{"kind":"text","text":"line\nbreak"}]}"#;
    let head = r#""kind":"artifact-update","taskId":"t","contextId":"c""#;
    let artifact = format!(r#"{{{head},"artifact":{artifact},"append":true,"lastChunk":false}}"#);
    let all = [TASK.to_owned(), artifact, status("working", false), status("input-required", true)];
    let event = |(seq, data): (usize, String)| {
        format!("id: t.1.{seq}\nevent: message\ndata: {{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{data}}}\n\n")
    };
    (1..).zip(all).map(event).collect()
}

fn config(task_id: String, id: String) -> TaskPushNotificationConfig {
    let authentication = Some(AuthenticationInfo { scheme: "Bearer".into(), credentials: "x".into() });
    let (url, token) = ("https://h.example".to_owned(), "k".to_owned());
    TaskPushNotificationConfig { task_id, id, url, token, authentication, tenant: String::new() }
}

pub(crate) fn config_json(id: &str) -> String {
    let authentication = r#"{"schemes":["Bearer"],"credentials":"x"}"#;
    let config = format!(r#"{{"id":"{id}","url":"https://h.example","token":"k","authentication":{authentication}}}"#);
    format!(r#"{{"taskId":"t","pushNotificationConfig":{config}}}"#)
}

/// The request in 1.0 that creates `config`.
pub(crate) fn config_now(id: &str) -> String {
    let config = serde_json::to_string(&config("t".into(), id.into())).unwrap();
    format!("CreateTaskPushNotificationConfig {config}")
}

#[tonic::async_trait]
impl A2aService for CannedService {
    async fn send_message(&self, r: Request<SendMessageRequest>) -> Result<Response<SendMessageResponse>, Status> {
        self.record("SendMessage", &r);
        let message = r.into_inner().message.unwrap();
        let payload = if message.text() == "answer" {
            let message = Message { message_id: "m-2".into(), context_id: "c".into(), ..Message::agent("hi") };
            send_message_response::Payload::Message(message)
        } else {
            send_message_response::Payload::Task(task("t".into()))
        };
        let mut response = Response::new(SendMessageResponse { payload: Some(payload) });
        response.metadata_mut().insert("a2a-extensions", "urn:e".parse().unwrap());
        Ok(response)
    }

    async fn send_streaming_message(
        &self,
        r: Request<SendMessageRequest>,
    ) -> Result<Response<BoxStream<Event>>, Status> {
        self.record("SendStreamingMessage", &r);
        let mut events: Vec<_> = events().into_iter().map(Ok).collect();
        match r.into_inner().message.unwrap().text().as_str() {
            "refuse" => return Err(ErrorKind::StreamingNotSupported.error().into()),
            "fail" => events[1] = Err(Error::task_not_found("t").into()),
            // An event of a kind that this version does not know.
            "new" => events[1] = Ok(Event::default()),
            _ => {}
        }
        Ok(Response::new(Box::pin(tokio_stream::iter(events))))
    }

    async fn get_task(&self, r: Request<GetTaskRequest>) -> Result<Response<Snapshot>, Status> {
        self.record("GetTask", &r);
        let id = r.into_inner().id;
        match super::v03_jsonrpc_errors::kind(&id) {
            Some(kind) => Err(kind.because("why").with("taskId", "t").into()),
            None if id == "missing" => Err(Error::task_not_found(&id).into()),
            None => Ok(Response::new(task(id).into())),
        }
    }

    async fn list_tasks(&self, r: Request<ListTasksRequest>) -> Result<Response<ListTasksResponse>, Status> {
        self.record("ListTasks", &r);
        let tasks = vec![task("t".into())];
        Ok(Response::new(ListTasksResponse { tasks, page_size: 50, total_size: 1, ..Default::default() }))
    }

    async fn cancel_task(&self, r: Request<CancelTaskRequest>) -> Result<Response<Snapshot>, Status> {
        self.record("CancelTask", &r);
        Ok(Response::new(task(r.into_inner().id).into()))
    }

    async fn subscribe_to_task(
        &self,
        r: Request<SubscribeToTaskRequest>,
    ) -> Result<Response<BoxStream<Event>>, Status> {
        self.record("SubscribeToTask", &r);
        match r.into_inner().id.as_str() {
            "missing" => Err(Error::task_not_found("missing").into()),
            _ => Ok(Response::new(Box::pin(tokio_stream::iter(events().into_iter().map(Ok))))),
        }
    }

    async fn create_task_push_notification_config(
        &self,
        r: Request<TaskPushNotificationConfig>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        self.record("CreateTaskPushNotificationConfig", &r);
        Ok(Response::new(r.into_inner()))
    }

    async fn get_task_push_notification_config(
        &self,
        r: Request<GetTaskPushNotificationConfigRequest>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        self.record("GetTaskPushNotificationConfig", &r);
        let GetTaskPushNotificationConfigRequest { task_id, id, .. } = r.into_inner();
        Ok(Response::new(config(task_id, id)))
    }

    async fn get_extended_agent_card(
        &self,
        r: Request<GetExtendedAgentCardRequest>,
    ) -> Result<Response<AgentCard>, Status> {
        self.record("GetExtendedAgentCard", &r);
        Ok(Response::new(AgentCard { name: "N".into(), ..AgentCard::default() }))
    }

    /// Returns one configuration per page, so that a test sees whether all pages are fetched.
    async fn list_task_push_notification_configs(
        &self,
        r: Request<ListTaskPushNotificationConfigsRequest>,
    ) -> Result<Response<ListTaskPushNotificationConfigsResponse>, Status> {
        self.record("ListTaskPushNotificationConfigs", &r);
        let ListTaskPushNotificationConfigsRequest { task_id, page_token, .. } = r.into_inner();
        let (id, next) = if page_token.is_empty() { ("p", "2") } else { ("q", "") };
        let (configs, next_page_token) = (vec![config(task_id, id.into())], next.to_owned());
        Ok(Response::new(ListTaskPushNotificationConfigsResponse { configs, next_page_token }))
    }

    async fn delete_task_push_notification_config(
        &self,
        r: Request<DeleteTaskPushNotificationConfigRequest>,
    ) -> Result<Response<Empty>, Status> {
        self.record("DeleteTaskPushNotificationConfig", &r);
        Ok(Response::new(Empty {}))
    }
}

pub(crate) async fn post(url: &str, body: impl Into<String>) -> reqwest::Response {
    crate::bindings::http().post(url).json_body(body.into()).send().await.unwrap()
}

pub(crate) fn call(id: &str, method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
}

/// A message of 0.3.
pub(crate) const HI: &str = r#"{"kind":"message","messageId":"m","role":"user","parts":[{"kind":"text","text":"hi"}]}"#;
