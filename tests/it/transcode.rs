//! Between JSON or gRPC and a service: routes, decoding, refusals, and what a call brings along.

use std::{
    borrow::Cow,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use a2a_service::{
    call::{Call, Door},
    error::{Error, ErrorKind},
    event::{Cursor, Ends, Event, Mark, Position},
    pb::{
        v1::{
            self, CancelTaskRequest, DeleteTaskPushNotificationConfigRequest, GetTaskRequest, ListTasksRequest,
            ListTasksResponse, Message, Part, Role, SendMessageRequest, SendMessageResponse, SubscribeToTaskRequest,
            Task, TaskPushNotificationConfig,
            a2a_service_client::A2aServiceClient,
            a2a_service_server::{A2aService, A2aServiceServer},
            bindings::{Bound, Checked, Rpc},
            part, send_message_response, stream_response,
        },
        v03,
    },
    snapshot::Snapshot,
    transport::transcode::{
        Binding, Body, BoxStream, HttpRule, Params, Remote, Reply, Route, Source, Status, Transport,
    },
};
use bytes::Bytes;
use futures::{StreamExt as _, future};
use serde_json::Value;
use tonic::{Request, Response, metadata::MetadataMap};
use tower_service::Service;

/// Answers with what it was asked, and keeps what came along.
#[derive(Default)]
struct Echo {
    metadata: Mutex<MetadataMap>,
    /// How many things the extensions had beside the call.
    owner: Mutex<Option<(String, usize)>>,
}

impl Echo {
    fn keep<T>(&self, request: &Request<T>) {
        *self.metadata.lock().unwrap() = request.metadata().clone();
        let owner = request.extensions().get::<Call>().map(|it| it.owner.to_string());
        *self.owner.lock().unwrap() = owner.map(|it| (it, request.extensions().len() - 1));
    }
}

#[tonic::async_trait]
impl A2aService for Echo {
    async fn send_message(&self, r: Request<SendMessageRequest>) -> Result<Response<SendMessageResponse>, Status> {
        let payload = r.into_inner().message.map(send_message_response::Payload::Message);
        let mut response = Response::new(SendMessageResponse { payload });
        response.metadata_mut().insert("a2a-extensions", "urn:a".parse().unwrap());
        Ok(response)
    }

    async fn get_task(&self, r: Request<GetTaskRequest>) -> Result<Response<Snapshot>, Status> {
        self.keep(&r);
        let GetTaskRequest { tenant, id, .. } = r.into_inner();
        match id.as_str() {
            "missing" => Err(Error::task_not_found(&id).into()),
            _ => Ok(Response::new(Task { id, context_id: tenant, ..Task::default() }.into())),
        }
    }

    async fn list_tasks(&self, r: Request<ListTasksRequest>) -> Result<Response<ListTasksResponse>, Status> {
        let request = r.into_inner();
        let next_page_token = serde_json::to_string(&request).unwrap();
        Ok(Response::new(ListTasksResponse { next_page_token, ..Default::default() }))
    }

    async fn create_task_push_notification_config(
        &self,
        r: Request<TaskPushNotificationConfig>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        Ok(Response::new(r.into_inner()))
    }

    async fn subscribe_to_task(
        &self,
        r: Request<SubscribeToTaskRequest>,
    ) -> Result<Response<BoxStream<Event>>, Status> {
        self.keep(&r);
        let id = r.into_inner().id;
        let event = |seq, ends| {
            let payload = stream_response::Payload::Task(Task { id: id.clone(), ..Task::default() });
            Ok(Event::new(Position { fence: 1, seq }, Mark::ending(ends), payload))
        };
        let events = [event(1, Ends::Nothing), event(2, Ends::Task), Err(ErrorKind::Unavailable.error().into())];
        Ok(Response::new(Box::pin(tokio_stream::iter(events))))
    }
}

fn echo() -> Bound {
    Bound(Arc::new(Checked(Arc::new(Echo::default()))))
}

fn message() -> Message {
    let text = Part { content: Some(part::Content::Text("hi".into())), ..Part::default() };
    Message { message_id: "m".into(), role: Role::User.into(), parts: vec![text], ..Message::default() }
}

/// A path that a template stands for, and the fields in it.
fn expand(template: &str) -> (Vec<String>, String) {
    let (path, action) = template.rsplit_once(':').filter(|it| !it.1.contains('}')).unwrap_or((template, ""));
    let path = path.replace("{tenant}", "acme").replace(['{', '}'], "");
    let literal = |it: &str| it.split_once('=').map_or(it, |it| it.1).replace('*', "x");
    (path.split('/').skip(1).map(literal).collect(), action.to_owned())
}

#[test]
fn every_rpc_is_where_its_rule_says() {
    fn is_there<B: Binding>(rule: HttpRule, tenant: &str) -> Option<B::Rpc> {
        let (segments, action) = expand(&format!("{tenant}{}", rule.template));
        let segments: Vec<_> = segments.iter().map(String::as_str).collect();
        B::route(rule.verb, &segments, &action).map(|it| it.rpc)
    }
    for rpc in Rpc::ALL.iter().copied() {
        assert_eq!(is_there::<Bound>(rpc.http_rule(), ""), Some(rpc));
        assert_eq!(is_there::<Bound>(rpc.http_rule(), "/{tenant}"), Some(rpc));
        assert_eq!(Rpc::from_name(rpc.name()), Some(rpc));
    }
    for rpc in v03::bindings::Rpc::ALL.iter().copied() {
        assert_eq!(is_there::<v03::bindings::Bound>(rpc.http_rule(), ""), Some(rpc));
    }
    assert!(Rpc::SubscribeToTask.is_streaming() && !Rpc::GetTask.is_streaming());
    assert_eq!(Bound::ACTIONS, ["cancel", "send", "stream", "subscribe"]);
}

#[test]
fn routes() {
    let route = |rpc, body, fields: &[(&'static str, &str)]| {
        let fields = fields.iter().map(|it| (it.0, it.1.to_owned())).collect();
        Some(Route { rpc, body, fields })
    };
    let post_subscribe =
        [Bound::route("POST", &["tasks", "7"], "subscribe"), Bound::route("GET", &["tasks", "7"], "subscribe")];
    assert_eq!(post_subscribe, [(); 2].map(|()| route(Rpc::SubscribeToTask, Body::None, &[("id", "7")])));
    assert_eq!(
        Bound::route("POST", &["acme", "tasks", "7"], "cancel"),
        route(Rpc::CancelTask, Body::Whole, &[("tenant", "acme"), ("id", "7")])
    );
    assert_eq!(
        Bound::route("DELETE", &["tasks", "7", "pushNotificationConfigs", "c"], ""),
        route(Rpc::DeleteTaskPushNotificationConfig, Body::None, &[("taskId", "7"), ("id", "c")])
    );
    for (verb, segments, action) in [
        ("PUT", &["tasks", "7"][..], ""),
        ("GET", &["tasks", "7"], "cancel"),
        ("get", &["tasks", "7"], ""),
        ("GET", &["tasks", "7", "x"], ""),
        ("GET", &[""], ""),
        ("GET", &[], ""),
    ] {
        assert_eq!(Bound::route(verb, segments, action), None, "{verb} {segments:?} {action}");
    }
    // 0.3 has names of resources, and a binding that was published with a slip of the hand.
    let old = v03::bindings::Bound::route("GET", &["v1", "tasks", "7", "pushNotificationConfigs", "c"], "").unwrap();
    assert_eq!(old.fields, [("name", "tasks/7/pushNotificationConfigs/c".to_owned())]);
    let slip = v03::bindings::Bound::route("POST", &["v1", "task", "7", "pushNotificationConfigs"], "").unwrap();
    assert_eq!((slip.rpc, slip.body), (v03::bindings::Rpc::CreateTaskPushNotificationConfig, Body::Field("config")));
    assert!(v03::bindings::Bound::route("POST", &["v1", "tasks", "7"], "subscribe").is_some());
}

async fn ask(rpc: Rpc, source: Source<'_>, path: &[(&'static str, &str)]) -> Result<Value, Error> {
    let path = path.iter().map(|it| (it.0, it.1.to_owned())).collect();
    match echo().call(rpc, Call::by("ada").request(Params { source, path })).await? {
        Reply::Unary(data, _) => Ok(serde_json::from_slice(&data).unwrap()),
        Reply::Stream(..) => panic!("{rpc:?} is unary"),
    }
}

fn body(json: &str) -> Source<'_> {
    Source::Json(Cow::Borrowed(json.as_bytes()))
}

#[tokio::test]
async fn path_query_and_body_are_one_message() {
    let task = ask(Rpc::GetTask, Source::Query("historyLength=3&tenant=a".into()), &[("id", "7")]).await.unwrap();
    assert_eq!(task, serde_json::json!({"id": "7", "contextId": "a"}));
    // The path wins, as it is what a proxy has looked at.
    let task = ask(Rpc::GetTask, body(r#"{"id":"6","tenant":"a"}"#), &[("tenant", "b"), ("id", "7")]).await.unwrap();
    assert_eq!(task, serde_json::json!({"id": "7", "contextId": "b"}));
    for nothing in ["", " \n", "null", "{}"] {
        assert_eq!(ask(Rpc::GetTask, body(nothing), &[("id", "7")]).await.unwrap()["id"], "7");
    }
    let query = concat!(
        "contextId=c%20d&status=TASK_STATE_WORKING&page_size=20&pageToken=&includeArtifacts=true&unknown=1",
        "&lastUpdatedAfter=2025-11-09T10%3A30%3A00%2B02%3A00"
    );
    let page = ask(Rpc::ListTasks, Source::Query(query.into()), &[]).await.unwrap();
    assert_eq!(
        page["nextPageToken"],
        concat!(
            r#"{"contextId":"c d","status":"TASK_STATE_WORKING","pageSize":20,"#,
            r#""statusTimestampAfter":"2025-11-09T08:30:00.000Z","includeArtifacts":true}"#
        )
    );
    let page = ask(
        Rpc::ListTasks,
        Source::Query("status=6&pageSize=&includeArtifacts=&tenant&&statusTimestampAfter=".into()),
        &[],
    )
    .await
    .unwrap();
    assert_eq!(page["nextPageToken"], r#"{"status":"TASK_STATE_INPUT_REQUIRED"}"#);
}

#[tokio::test]
async fn a_refusal_says_where() {
    let long = format!(r#"{{"message":{{"role":"{}"}}}}"#, "ä".repeat(10_000));
    let cut = format!("`{}…", "ä".repeat(199));
    for (json, kind, field, description) in [
        ("{", ErrorKind::Parse, "", "EOF while parsing an object at line 1 column 1"),
        ("{} x", ErrorKind::Parse, "", "trailing characters at line 1 column 4"),
        (r#"{"message":5,x}"#, ErrorKind::Parse, "", "key must be a string at line 1 column 14"),
        ("[1]", ErrorKind::InvalidParams, "", "invalid type: sequence, expected a SendMessageRequest as an object"),
        ("5", ErrorKind::InvalidParams, "", "invalid type: integer `5`, expected a SendMessageRequest as an object"),
        (
            r#"{"message":{"messageId":"a","message_id":"b"}}"#,
            ErrorKind::InvalidParams,
            "message.message_id",
            "`messageId` is given twice",
        ),
        (
            r#"{"message":{"parts":[{"text":"a"},{"text":"b","raw":""}]}}"#,
            ErrorKind::InvalidParams,
            "message.parts[1]",
            "must have only one of text, raw, url, data",
        ),
        (
            r#"{"message":{"role":"ROLE_OTHER"}}"#,
            ErrorKind::InvalidParams,
            "message.role",
            "`ROLE_OTHER` is not a value of Role",
        ),
        (
            r#"{"message":{"metadata":{"a":{"b":5}},"parts":[{"text":1}]}}"#,
            ErrorKind::InvalidParams,
            "message.parts[0].text",
            "invalid type: integer `1`, expected a string",
        ),
        (&long, ErrorKind::InvalidParams, "message.role", &cut),
    ] {
        let error = ask(Rpc::SendMessage, body(json), &[]).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{json}");
        match error.violations() {
            [] => assert_eq!((field, error.to_string()), ("", format!("{}: {description}", kind.wire().sentence))),
            [one] => assert_eq!((one.field.as_str(), one.description.as_str()), (field, description)),
            many => panic!("{many:?}"),
        }
    }
    for (query, field, description) in [
        ("pageSize=x", "pageSize", "`x` is not a 32-bit integer"),
        ("status=nonsense", "status", "`nonsense` is not a value of TaskState"),
        ("statusTimestampAfter=today", "statusTimestampAfter", "a timestamp is like 2025-11-09T10:30:00.000Z"),
    ] {
        let error = ask(Rpc::ListTasks, Source::Query(query.into()), &[]).await.unwrap_err();
        assert_eq!(error.violations().len(), 1, "{query}: {error}");
        assert_eq!((&*error.violations()[0].field, &*error.violations()[0].description), (field, description));
    }
    for query in ["pageSize=1&pageSize=2", "pageSize=1&page_size=2", "includeArtifacts=maybe"] {
        let error = ask(Rpc::ListTasks, Source::Query(query.into()), &[]).await.unwrap_err();
        assert_eq!((error.kind(), error.violations().len()), (ErrorKind::InvalidParams, 1), "{query}: {error}");
    }
}

#[tokio::test]
async fn what_is_missing_is_named() {
    let refusal = async |request: SendMessageRequest| {
        let error = Error::from(echo().send_message(Request::new(request)).await.unwrap_err());
        assert_eq!(error.kind(), ErrorKind::InvalidParams);
        let rows = error.violations().iter().map(|it| format!("{} {}", it.field, it.description));
        rows.collect::<Vec<_>>()
    };
    assert_eq!(refusal(SendMessageRequest::default()).await, ["message is required"]);
    let message = |change: fn(&mut Message)| {
        let mut message = message();
        change(&mut message);
        SendMessageRequest { message: Some(message), ..Default::default() }
    };
    assert_eq!(
        refusal(message(|it| *it = Message::default())).await,
        ["message.messageId is required", "message.role is required", "message.parts is required"]
    );
    assert_eq!(refusal(message(|it| it.role = 99)).await, ["message.role 99 is not a value of Role"]);
    assert_eq!(
        refusal(message(|it| it.parts.push(Part::default()))).await,
        ["message.parts[1] must have one of text, raw, url, data"]
    );
    assert_eq!(refusal(message(|it| it.parts = vec![Part::default(); 1000])).await.len(), 32);
    let mut request = message(|_| ());
    request.configuration = Some(v1::SendMessageConfiguration {
        task_push_notification_config: Some(TaskPushNotificationConfig {
            authentication: Some(v1::AuthenticationInfo::default()),
            ..Default::default()
        }),
        ..Default::default()
    });
    let config = "configuration.taskPushNotificationConfig";
    let missing = [format!("{config}.url is required"), format!("{config}.authentication.scheme is required")];
    assert_eq!(refusal(request).await, missing);
}

/// All that holds memory while an agent works for minutes.
#[test]
fn a_waiting_call_is_small() {
    let bound = echo();
    let call = bound.call(Rpc::SendMessage, Request::new(Params { source: body("{}"), path: Vec::new() }));
    assert!(size_of_val(&call) <= 512, "{}", size_of_val(&call));
}

/// JSON out and in again, without HTTP between.
struct Loop(Bound);

#[tonic::async_trait]
impl Transport for Loop {
    async fn send(&self, rpc: &'static str, rule: HttpRule, request: Request<Value>) -> Result<Reply, Status> {
        let rpc = Rpc::from_name(rpc).unwrap();
        assert_eq!(rule, rpc.http_rule());
        let request =
            request.map(|it| Params { source: Source::Json(it.to_string().into_bytes().into()), path: vec![] });
        self.0.call(rpc, request).await
    }
}

/// Answers all calls in the wrong way.
struct Wrong;

#[tonic::async_trait]
impl Transport for Wrong {
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
async fn an_agent_elsewhere_is_the_same_service() {
    let remotes: [Arc<dyn A2aService>; 3] = [
        Arc::new(echo()),
        Arc::new(Remote(Loop(echo()))),
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
async fn an_agent_that_answers_wrongly_is_to_blame() {
    let agent = Remote(Wrong);
    let error = agent.get_task(Request::new(GetTaskRequest::default())).await.unwrap_err();
    assert_eq!(Error::from(error).kind(), ErrorKind::InvalidAgentResponse);
    let request = Request::new(SubscribeToTaskRequest::default());
    let events: Vec<_> = agent.subscribe_to_task(request).await.unwrap().into_inner().collect().await;
    assert_eq!(events.len(), 1, "one message is a stream of that");
    let error = agent.send_message(Request::new(SendMessageRequest::default())).await.unwrap_err();
    assert_eq!(Error::from(error).kind(), ErrorKind::InvalidAgentResponse);
    // To say nothing is an answer to one of these.
    agent
        .delete_task_push_notification_config(Request::new(DeleteTaskPushNotificationConfigRequest::default()))
        .await
        .unwrap();
    assert!(agent.cancel_task(Request::new(CancelTaskRequest::default())).await.is_err());
}

/// The cursor of an event goes where its stream goes, if that has a place for it.
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
    let agent = Remote(Loop(echo()));
    let request = SubscribeToTaskRequest { id: "7".into(), ..Default::default() };
    let events = agent.subscribe_to_task(Call::by("ada").request(request)).await.unwrap().into_inner();
    let cursors: Vec<_> = events.filter_map(async |it| it.ok()?.cursor().cloned()).collect().await;
    assert_eq!(cursors.iter().map(Cursor::as_str).collect::<Vec<_>>(), ["7.1.1", "7.1.2"]);
}

/// A secret in the headers or in the extensions gets neither to the service nor, from there, to another agent.
#[tokio::test]
async fn no_credential_is_passed_on() {
    let service = Arc::new(Echo::default());
    let sent = Arc::new(Mutex::new(MetadataMap::new()));
    let seen = Arc::clone(&sent);
    let edge = move |mut request: Request<()>| {
        *seen.lock().unwrap() = request.metadata().clone();
        request.metadata_mut().insert("authorization", "Bearer secret".parse().unwrap());
        let call = Call { door: Door::Grpc, ..Call::by("ada") };
        request.extensions_mut().insert(call);
        request.extensions_mut().insert("a secret");
        Ok(request)
    };
    let bound = Bound(Arc::<Echo>::clone(&service));
    let agent = A2aServiceClient::new(A2aServiceServer::with_interceptor(bound, edge));
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

/// An agent that answers with a frame of one byte, which begins a field and does not go on.
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
async fn malformed_protobuf_is_the_fault_of_whoever_wrote_it() {
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
