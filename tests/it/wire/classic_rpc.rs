//! The methods of classic JSON-RPC, byte for byte: what is sent, what the service of 1.0 hears of it, and what is
//! answered.

use std::sync::Arc;

use a2a_service::{
    call::{Call, Door as Way, Version},
    error::Error,
    event::{Ends, Event, Mark, Position},
    pb::{
        v1::{a2a_service_server::A2aService, bindings::Checked, send_message_response, stream_response::Payload, *},
        wkt::{Empty, Timestamp},
    },
    snapshot::Snapshot,
    transport::{Door, Settings, listener, transcode::BoxStream},
};
use http::header;
use parking_lot::Mutex;
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::support::settings;

/// Answers with what is written below, and keeps what it is asked.
#[derive(Default)]
pub(crate) struct Scripted {
    asked: Mutex<Vec<String>>,
    pub(crate) calls: Mutex<Vec<Call>>,
}

impl Scripted {
    fn note<T: Serialize>(&self, name: &str, r: &Request<T>) {
        self.asked.lock().push(format!("{name} {}", serde_json::to_string(r.get_ref()).unwrap()));
        self.calls.lock().push(Call::of(r).unwrap().clone());
    }

    /// Serves it until the test is over, and says where.
    pub(crate) async fn serve(settings: Settings) -> (String, Arc<Self>) {
        let service = Arc::new(Self::default());
        let door = Door::new(Arc::new(Checked(Arc::<Self>::clone(&service))), settings);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/rpc", listener.local_addr().unwrap());
        let connections = listener::Settings::default();
        tokio::spawn(async move { listener::serve(listener, door, &connections, &CancellationToken::new()).await });
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

/// That task.
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
    let event = |(seq, (payload, ends))| Event::new(Position { fence: 1, seq }, Mark::ending(ends), payload);
    (1..).zip(all).map(event).collect()
}

/// What the events above are, in the envelope of `id`.
fn events_json(id: &str) -> String {
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

fn config_json(id: &str) -> String {
    let authentication = r#"{"schemes":["Bearer"],"credentials":"x"}"#;
    let config = format!(r#"{{"id":"{id}","url":"https://h.example","token":"k","authentication":{authentication}}}"#);
    format!(r#"{{"taskId":"t","pushNotificationConfig":{config}}}"#)
}

#[tonic::async_trait]
impl A2aService for Scripted {
    async fn send_message(&self, r: Request<SendMessageRequest>) -> Result<Response<SendMessageResponse>, Status> {
        self.note("SendMessage", &r);
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
        self.note("SendStreamingMessage", &r);
        let mut events: Vec<_> = events().into_iter().map(Ok).collect();
        match r.into_inner().message.unwrap().text().as_str() {
            "refuse" => return Err(a2a_service::error::ErrorKind::StreamingNotSupported.error().into()),
            "fail" => events[1] = Err(Error::task_not_found("t").into()),
            // Of a kind that came after us.
            "new" => events[1] = Ok(Event::default()),
            _ => {}
        }
        Ok(Response::new(Box::pin(tokio_stream::iter(events))))
    }

    async fn get_task(&self, r: Request<GetTaskRequest>) -> Result<Response<Snapshot>, Status> {
        self.note("GetTask", &r);
        let id = r.into_inner().id;
        match super::classic_rpc_errors::kind(&id) {
            Some(kind) => Err(kind.because("why").with("taskId", "t").into()),
            None if id == "missing" => Err(Error::task_not_found(&id).into()),
            None => Ok(Response::new(task(id).into())),
        }
    }

    async fn list_tasks(&self, r: Request<ListTasksRequest>) -> Result<Response<ListTasksResponse>, Status> {
        self.note("ListTasks", &r);
        let tasks = vec![task("t".into())];
        Ok(Response::new(ListTasksResponse { tasks, page_size: 50, total_size: 1, ..Default::default() }))
    }

    async fn cancel_task(&self, r: Request<CancelTaskRequest>) -> Result<Response<Snapshot>, Status> {
        self.note("CancelTask", &r);
        Ok(Response::new(task(r.into_inner().id).into()))
    }

    async fn subscribe_to_task(
        &self,
        r: Request<SubscribeToTaskRequest>,
    ) -> Result<Response<BoxStream<Event>>, Status> {
        self.note("SubscribeToTask", &r);
        match r.into_inner().id.as_str() {
            "missing" => Err(Error::task_not_found("missing").into()),
            _ => Ok(Response::new(Box::pin(tokio_stream::iter(events().into_iter().map(Ok))))),
        }
    }

    async fn create_task_push_notification_config(
        &self,
        r: Request<TaskPushNotificationConfig>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        self.note("CreateTaskPushNotificationConfig", &r);
        Ok(Response::new(r.into_inner()))
    }

    async fn get_task_push_notification_config(
        &self,
        r: Request<GetTaskPushNotificationConfigRequest>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        self.note("GetTaskPushNotificationConfig", &r);
        let GetTaskPushNotificationConfigRequest { task_id, id, .. } = r.into_inner();
        Ok(Response::new(config(task_id, id)))
    }

    async fn get_extended_agent_card(
        &self,
        r: Request<GetExtendedAgentCardRequest>,
    ) -> Result<Response<AgentCard>, Status> {
        self.note("GetExtendedAgentCard", &r);
        Ok(Response::new(AgentCard { name: "N".into(), ..AgentCard::default() }))
    }

    /// A page for each, so that it shows whether they are all fetched.
    async fn list_task_push_notification_configs(
        &self,
        r: Request<ListTaskPushNotificationConfigsRequest>,
    ) -> Result<Response<ListTaskPushNotificationConfigsResponse>, Status> {
        self.note("ListTaskPushNotificationConfigs", &r);
        let ListTaskPushNotificationConfigsRequest { task_id, page_token, .. } = r.into_inner();
        let (id, next) = if page_token.is_empty() { ("p", "2") } else { ("q", "") };
        let (configs, next_page_token) = (vec![config(task_id, id.into())], next.to_owned());
        Ok(Response::new(ListTaskPushNotificationConfigsResponse { configs, next_page_token }))
    }

    async fn delete_task_push_notification_config(
        &self,
        r: Request<DeleteTaskPushNotificationConfigRequest>,
    ) -> Result<Response<Empty>, Status> {
        self.note("DeleteTaskPushNotificationConfig", &r);
        Ok(Response::new(Empty {}))
    }
}

pub(crate) async fn post(url: &str, body: impl Into<String>) -> reqwest::Response {
    reqwest::Client::new().post(url).body(body.into()).send().await.unwrap()
}

pub(crate) fn call(id: &str, method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
}

/// A message of 0.3, and what it is in 1.0.
pub(crate) const HI: &str = r#"{"kind":"message","messageId":"m","role":"user","parts":[{"kind":"text","text":"hi"}]}"#;
const HI_NOW: &str = r#"{"messageId":"m","role":"ROLE_USER","parts":[{"text":"hi"}]}"#;

#[tokio::test]
async fn calls() {
    let (url, service) = &Scripted::serve(settings()).await;
    let answer = r#"{"message":{"messageId":"m","role":"user","parts":[{"text":"answer"}]}}"#;
    let configuration = concat!(
        r#"{"acceptedOutputModes":["text/plain"],"blocking":false,"historyLength":5,"#,
        r#""pushNotificationConfig":{"id":"p","url":"https://h.example","authentication":{"schemes":["Bearer"]}}}"#,
    );
    let configured = format!(r#"{{"message":{HI},"configuration":{configuration},"metadata":{{"k":1}}}}"#);
    let configuration_now = concat!(
        r#"{"acceptedOutputModes":["text/plain"],"taskPushNotificationConfig":{"id":"p","url":"https://h.example","#,
        r#""authentication":{"scheme":"Bearer"}},"historyLength":5,"returnImmediately":true}"#,
    );
    let message = concat!(
        r#"{"kind":"message","messageId":"m-2","contextId":"c","role":"agent","#,
        r#""parts":[{"kind":"text","text":"hi"}]}"#,
    );
    let list = r#"{"contextId":"c","status":"input-required","pageSize":50,"includeArtifacts":true}"#;
    let push = config_json("p");
    let one = |asked: &str| vec![asked.to_owned()];
    let wanted = r#"GetTask {"id":"t"}"#;
    for (method, params, asked, result) in [
        (
            "message/send",
            &*format!(r#"{{"message":{HI}}}"#),
            one(&format!(r#"SendMessage {{"message":{HI_NOW}}}"#)),
            TASK,
        ),
        (
            "message/send",
            answer,
            one(&format!(r#"SendMessage {{"message":{}}}"#, HI_NOW.replace("hi", "answer"))),
            message,
        ),
        (
            "message/send",
            &*configured,
            one(&format!(
                r#"SendMessage {{"message":{HI_NOW},"configuration":{configuration_now},"metadata":{{"k":1}}}}"#
            )),
            TASK,
        ),
        (
            "tasks/send",
            &*format!(r#"{{"message":{HI}}}"#),
            one(&format!(r#"SendMessage {{"message":{HI_NOW}}}"#)),
            TASK,
        ),
        // A task of the client's choice, which is there or not.
        (
            "tasks/send",
            &*format!(r#"{{"id":"t","sessionId":"c","message":{HI}}}"#),
            vec![
                r#"GetTask {"id":"t","historyLength":1}"#.to_owned(),
                format!(
                    r#"SendMessage {{"message":{}}}"#,
                    HI_NOW.replace(r#""m","#, r#""m","contextId":"c","taskId":"t","#)
                ),
            ],
            TASK,
        ),
        (
            "tasks/send",
            &*format!(r#"{{"id":"missing","message":{HI}}}"#),
            vec![
                r#"GetTask {"id":"missing","historyLength":1}"#.to_owned(),
                format!(r#"SendMessage {{"message":{HI_NOW}}}"#),
            ],
            TASK,
        ),
        ("tasks/get", r#"{"id":"t","historyLength":3}"#, one(r#"GetTask {"id":"t","historyLength":3}"#), TASK),
        ("tasks/get", r#"{"id":"t","historyLength":0,"metadata":{}}"#, one(wanted), TASK),
        (
            "tasks/list",
            list,
            one(&format!("ListTasks {}", list.replace("input-required", "TASK_STATE_INPUT_REQUIRED"))),
            &*format!(r#"{{"tasks":[{TASK}],"totalSize":1,"pageSize":50,"nextPageToken":""}}"#),
        ),
        (
            "tasks/list",
            "null",
            one("ListTasks {}"),
            &*format!(r#"{{"tasks":[{TASK}],"totalSize":1,"pageSize":50,"nextPageToken":""}}"#),
        ),
        (
            "tasks/cancel",
            r#"{"id":"t","metadata":{"k":1}}"#,
            vec![wanted.to_owned(), r#"CancelTask {"id":"t","metadata":{"k":1}}"#.to_owned()],
            TASK,
        ),
        ("tasks/pushNotificationConfig/set", &push, one(&config_now("p")), &push),
        ("tasks/pushNotification/set", &push.replace("taskId", "id"), one(&config_now("p")), &push),
        // One without a name has one that 0.3 gives it.
        (
            "tasks/pushNotificationConfig/set",
            r#"{"taskId":"t","pushNotificationConfig":{"url":"u"}}"#,
            one(r#"CreateTaskPushNotificationConfig {"id":"default","taskId":"t","url":"u"}"#),
            r#"{"taskId":"t","pushNotificationConfig":{"id":"default","url":"u"}}"#,
        ),
        (
            "tasks/pushNotificationConfig/get",
            r#"{"id":"t","pushNotificationConfigId":"q"}"#,
            one(r#"GetTaskPushNotificationConfig {"taskId":"t","id":"q"}"#),
            &*config_json("q"),
        ),
        (
            "tasks/pushNotification/get",
            r#"{"id":"t"}"#,
            vec![
                r#"ListTaskPushNotificationConfigs {"taskId":"t"}"#.to_owned(),
                r#"GetTaskPushNotificationConfig {"taskId":"t","id":"p"}"#.to_owned(),
            ],
            &push,
        ),
        (
            "tasks/pushNotificationConfig/list",
            r#"{"id":"t"}"#,
            vec![
                r#"ListTaskPushNotificationConfigs {"taskId":"t"}"#.to_owned(),
                r#"ListTaskPushNotificationConfigs {"taskId":"t","pageToken":"2"}"#.to_owned(),
            ],
            &*format!("[{push},{}]", config_json("q")),
        ),
        (
            "tasks/pushNotificationConfig/delete",
            r#"{"id":"t","pushNotificationConfigId":"p"}"#,
            one(r#"DeleteTaskPushNotificationConfig {"taskId":"t","id":"p"}"#),
            "null",
        ),
    ] {
        let reply = post(url, call(r#""r-1""#, method, params)).await;
        assert_eq!(reply.status(), 200);
        assert_eq!(reply.headers()[header::CONTENT_TYPE], "application/json");
        let expected = format!(r#"{{"jsonrpc":"2.0","id":"r-1","result":{result}}}"#);
        assert_eq!(reply.text().await.unwrap(), expected, "{method} {params}");
        assert_eq!(std::mem::take(&mut *service.asked.lock()), asked, "{method} {params}");
    }
    assert!(service.calls.lock().iter().all(|it| it.version == Version::V0_3 && it.door == Way::JsonRpc));
}

/// Parameters are none, and may be missing.
#[tokio::test]
async fn the_card_of_those_who_are_known() {
    let (url, service) = &Scripted::serve(settings()).await;
    for method in ["agent/getAuthenticatedExtendedCard", "agent/authenticatedExtendedCard"] {
        let reply = post(url, format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"}}"#)).await.text().await.unwrap();
        let card = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"0.3.0","name":"N","#;
        assert!(reply.starts_with(card) && !reply.contains("supportedInterfaces"), "{reply}");
    }
    assert_eq!(*service.asked.lock(), ["GetExtendedAgentCard {}", "GetExtendedAgentCard {}"]);
}

/// That configuration, as the service is asked for it.
fn config_now(id: &str) -> String {
    let config = serde_json::to_string(&config("t".into(), id.into())).unwrap();
    format!("CreateTaskPushNotificationConfig {config}")
}

/// Every message has an id (0.3, 6.4). Before 0.2 none had, and gets one from us; an example of 0.2 has it beside.
#[tokio::test]
async fn a_message_has_an_id() {
    let (url, service) = &Scripted::serve(settings()).await;
    for params in [
        r#"{"message":{"role":"user","parts":[{"text":"hi"}]}}"#,
        r#"{"message":{"role":"user","messageId":null,"parts":[{"text":"hi"}]}}"#,
    ] {
        for method in ["tasks/send", "tasks/sendSubscribe"] {
            post(url, call("1", method, params)).await.text().await.unwrap();
            let asked = service.asked.lock().pop().unwrap();
            let id = asked.split_once(r#""messageId":""#).unwrap().1.split_once('"').unwrap().0;
            assert_eq!(id.len(), 36, "{method}: {asked}");
        }
        for method in ["message/send", "message/stream"] {
            let reply = post(url, call("1", method, params)).await.text().await.unwrap();
            let error = r#"{"code":-32602,"message":"Invalid method parameters: message.messageId: is required"}"#;
            assert_eq!(reply, format!(r#"{{"jsonrpc":"2.0","id":1,"error":{error}}}"#), "{method}");
        }
    }
    let params = r#"{"message":{"role":"user","parts":[{"text":"hi"}]},"messageId":"beside"}"#;
    post(url, call("1", "message/send", params)).await.text().await.unwrap();
    assert!(service.asked.lock().pop().unwrap().contains(r#""messageId":"beside""#));
}

#[tokio::test]
async fn what_is_active_is_told_under_its_former_name() {
    let (url, service) = &Scripted::serve(settings()).await;
    let http = reqwest::Client::new().post(url).header("x-a2a-extensions", "urn:e");
    let reply = http.body(call("1", "message/send", &format!(r#"{{"message":{HI}}}"#))).send().await.unwrap();
    assert_eq!(reply.headers()["x-a2a-extensions"], "urn:e");
    assert!(!reply.headers().contains_key("a2a-extensions"));
    assert_eq!(service.calls.lock()[0].extensions, ["urn:e"]);
}

#[tokio::test]
async fn streams() {
    let (url, service) = &Scripted::serve(settings()).await;
    let sent = format!(r#"{{"message":{HI}}}"#);
    for (method, params, id) in [
        ("message/stream", &*sent, r#""s""#),
        ("tasks/sendSubscribe", &*sent, "7"),
        ("tasks/resubscribe", r#"{"id":"t"}"#, "1.50"),
    ] {
        let reply = post(url, call(id, method, params)).await;
        assert_eq!(reply.status(), 200);
        assert_eq!(reply.headers()[header::CONTENT_TYPE], "text/event-stream");
        assert_eq!(reply.headers()[header::CACHE_CONTROL], "no-cache");
        assert_eq!(reply.text().await.unwrap(), events_json(id), "{method}");
    }
    let asked = std::mem::take(&mut *service.asked.lock());
    assert_eq!(asked[0], format!(r#"SendStreamingMessage {{"message":{HI_NOW}}}"#));
    assert_eq!(asked[2], r#"SubscribeToTask {"id":"t"}"#);
    // What is after the cursor is for the service to say.
    let http = reqwest::Client::new().post(url).header("last-event-id", "t.1.2");
    http.body(call("1", "tasks/resubscribe", r#"{"id":"t"}"#)).send().await.unwrap();
    assert_eq!(service.calls.lock().pop().unwrap().cursor.unwrap().as_str(), "t.1.2");
}

#[tokio::test]
async fn an_error_in_the_middle_is_the_last_event() {
    let (url, _) = &Scripted::serve(settings()).await;
    let stream = async |text: &str| {
        let params = format!(r#"{{"message":{}}}"#, HI.replace("hi", text));
        post(url, call("1", "message/stream", &params)).await.text().await.unwrap()
    };
    let first = events_json("1").split_inclusive("\n\n").next().unwrap().to_owned();
    let error = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"Task not found: t"}}"#;
    assert_eq!(stream("fail").await, format!("{first}event: error\ndata: {error}\n\n"));
    // One that 0.3 knows nothing of is left out.
    let others: String = events_json("1").split_inclusive("\n\n").filter(|it| !it.contains("t.1.2\n")).collect();
    assert_eq!(stream("new").await, others);
}

/// Who asked for a stream reads nothing else, unless the call could not be understood.
#[tokio::test]
async fn an_error_before_the_first_event() {
    let (url, _) = &Scripted::serve(settings()).await;
    let refused = format!(r#"{{"message":{}}}"#, HI.replace("hi", "refuse"));
    for (method, params, error) in [
        ("message/stream", &*refused, r#"{"code":-32004,"message":"This operation is not supported"}"#),
        ("tasks/resubscribe", r#"{"id":"missing"}"#, r#"{"code":-32001,"message":"Task not found: missing"}"#),
    ] {
        let reply = post(url, call("1", method, params)).await;
        assert_eq!(reply.headers()[header::CONTENT_TYPE], "text/event-stream");
        let expected = format!("event: error\ndata: {{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{error}}}\n\n");
        assert_eq!(reply.text().await.unwrap(), expected);
    }
    for (method, params) in [("message/stream", r#"{"message":7}"#), ("tasks/resubscribe", "{}")] {
        let reply = post(url, call("1", method, params)).await;
        assert_eq!(reply.headers()[header::CONTENT_TYPE], "application/json");
        assert!(reply.text().await.unwrap().contains("-32602"));
    }
}
