//! Codec between JSON or gRPC and a service: path, query and body decoding, errors, and the request context.

use std::{
    borrow::Cow,
    sync::{Arc, Mutex},
};

use a2a_service::{
    call::Call,
    contract::{BoxStream, Dispatch, ParamSource, Params, Reply, Status},
    error::{Error, ErrorKind},
    event::{Ends, Event, EventFlags, Position},
    pb::v1::{
        self, GetTaskRequest, ListTasksRequest, ListTasksResponse, Message, Part, Role, SendMessageRequest,
        SendMessageResponse, SubscribeToTaskRequest, Task, TaskPushNotificationConfig,
        a2a_service_server::A2aService,
        bindings::{Rpc, ServiceHandle, ValidatedService},
        part, send_message_response, stream_response,
    },
    snapshot::Snapshot,
};
use serde_json::Value;
use tonic::{Request, Response, metadata::MetadataMap};

mod remote;
mod routes;

/// Service that returns its request and records its metadata and context.
#[derive(Default)]
struct Echo {
    metadata: Mutex<MetadataMap>,
    /// Owner of the call, and the number of other request extensions.
    owner: Mutex<Option<(String, usize)>>,
}

impl Echo {
    fn record<T>(&self, request: &Request<T>) {
        *self.metadata.lock().unwrap() = request.metadata().clone();
        let owner = request.extensions().get::<Call>().map(|call| call.owner.to_string());
        *self.owner.lock().unwrap() = owner.map(|owner| (owner, request.extensions().len() - 1));
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
        self.record(&r);
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
        self.record(&r);
        let id = r.into_inner().id;
        let event = |seq, ends| {
            let payload = stream_response::Payload::Task(Task { id: id.clone(), ..Task::default() });
            Ok(Event::new(Position { fence: 1, seq }, EventFlags::ending(ends), payload))
        };
        let events = [event(1, Ends::Nothing), event(2, Ends::Task), Err(ErrorKind::Unavailable.error().into())];
        Ok(Response::new(Box::pin(tokio_stream::iter(events))))
    }
}

fn echo() -> ServiceHandle {
    ServiceHandle(Arc::new(ValidatedService(Arc::new(Echo::default()))))
}

fn message() -> Message {
    let text = Part { content: Some(part::Content::Text("hi".into())), ..Part::default() };
    Message { message_id: "m".into(), role: Role::User.into(), parts: vec![text], ..Message::default() }
}

async fn call(rpc: Rpc, source: ParamSource<'_>, path: &[(&'static str, &str)]) -> Result<Value, Error> {
    let path = path.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    match echo().call(rpc, Call::by("ada").request(Params { source, path })).await? {
        Reply::Unary(data, _) => Ok(serde_json::from_slice(&data).unwrap()),
        Reply::Stream(..) => panic!("{rpc:?} is unary"),
    }
}

fn body(json: &str) -> ParamSource<'_> {
    ParamSource::Json(Cow::Borrowed(json))
}

#[tokio::test]
async fn path_query_and_body_are_one_message() {
    let task = call(Rpc::GetTask, ParamSource::Query("historyLength=3&tenant=a".into()), &[("id", "7")]).await.unwrap();
    assert_eq!(task, serde_json::json!({"id": "7", "contextId": "a"}));
    // The path takes precedence, because a proxy may have authorized it.
    let task = call(Rpc::GetTask, body(r#"{"id":"6","tenant":"a"}"#), &[("tenant", "b"), ("id", "7")]).await.unwrap();
    assert_eq!(task, serde_json::json!({"id": "7", "contextId": "b"}));
    for nothing in ["", " \n", "null", "{}"] {
        assert_eq!(call(Rpc::GetTask, body(nothing), &[("id", "7")]).await.unwrap()["id"], "7");
    }
    let query = concat!(
        "contextId=c%20d&status=TASK_STATE_WORKING&page_size=20&pageToken=&includeArtifacts=true&unknown=1",
        "&lastUpdatedAfter=2025-11-09T10%3A30%3A00%2B02%3A00"
    );
    let page = call(Rpc::ListTasks, ParamSource::Query(query.into()), &[]).await.unwrap();
    assert_eq!(
        page["nextPageToken"],
        concat!(
            r#"{"contextId":"c d","status":"TASK_STATE_WORKING","pageSize":20,"#,
            r#""statusTimestampAfter":"2025-11-09T08:30:00.000Z","includeArtifacts":true}"#
        )
    );
    let page = call(
        Rpc::ListTasks,
        ParamSource::Query("status=6&pageSize=&includeArtifacts=&tenant&&statusTimestampAfter=".into()),
        &[],
    )
    .await
    .unwrap();
    assert_eq!(page["nextPageToken"], r#"{"status":"TASK_STATE_INPUT_REQUIRED"}"#);
}

#[tokio::test]
async fn decoding_error_names_the_field() {
    let long = format!(r#"{{"message":{{"role":"{}"}}}}"#, "ä".repeat(10_000));
    let cut = format!("\"{}…\" is not one of ROLE_USER, ROLE_AGENT", "ä".repeat(40));
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
            "\"ROLE_OTHER\" is not one of ROLE_USER, ROLE_AGENT",
        ),
        (
            r#"{"message":{"metadata":{"a":{"b":5}},"parts":[{"text":1}]}}"#,
            ErrorKind::InvalidParams,
            "message.parts[0].text",
            "invalid type: integer `1`, expected a string",
        ),
        (&long, ErrorKind::InvalidParams, "message.role", &cut),
    ] {
        let error = call(Rpc::SendMessage, body(json), &[]).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{json}");
        match error.violations() {
            [] => assert_eq!((field, error.to_string()), ("", format!("{}: {description}", kind.wire().sentence))),
            [one] => assert_eq!((one.field.as_str(), one.description.as_str()), (field, description)),
            many => panic!("{many:?}"),
        }
    }
    for (query, field, description) in [
        ("pageSize=x", "pageSize", "`x` is not a 32-bit integer"),
        (
            "status=nonsense",
            "status",
            "\"nonsense\" is not one of TASK_STATE_SUBMITTED, TASK_STATE_WORKING, TASK_STATE_COMPLETED, TASK_STATE_FAILED, \
             TASK_STATE_CANCELED, TASK_STATE_INPUT_REQUIRED, TASK_STATE_REJECTED, TASK_STATE_AUTH_REQUIRED",
        ),
        ("statusTimestampAfter=today", "statusTimestampAfter", "a timestamp is like 2025-11-09T10:30:00.000Z"),
    ] {
        let error = call(Rpc::ListTasks, ParamSource::Query(query.into()), &[]).await.unwrap_err();
        assert_eq!(error.violations().len(), 1, "{query}: {error}");
        assert_eq!((&*error.violations()[0].field, &*error.violations()[0].description), (field, description));
    }
    for query in ["pageSize=1&pageSize=2", "pageSize=1&page_size=2", "includeArtifacts=maybe"] {
        let error = call(Rpc::ListTasks, ParamSource::Query(query.into()), &[]).await.unwrap_err();
        assert_eq!((error.kind(), error.violations().len()), (ErrorKind::InvalidParams, 1), "{query}: {error}");
    }
}

#[tokio::test]
async fn missing_required_fields_are_named() {
    let violations = async |request: SendMessageRequest| {
        let error = Error::from(echo().send_message(Request::new(request)).await.unwrap_err());
        assert_eq!(error.kind(), ErrorKind::InvalidParams);
        let rows = error.violations().iter().map(|violation| format!("{} {}", violation.field, violation.description));
        rows.collect::<Vec<_>>()
    };
    assert_eq!(violations(SendMessageRequest::default()).await, ["message is required"]);
    let message = |change: fn(&mut Message)| {
        let mut message = message();
        change(&mut message);
        SendMessageRequest { message: Some(message), ..Default::default() }
    };
    assert_eq!(
        violations(message(|message| *message = Message::default())).await,
        ["message.messageId is required", "message.role is required", "message.parts is required"]
    );
    assert_eq!(
        violations(message(|message| message.role = 99)).await,
        ["message.role 99 is not one of ROLE_USER, ROLE_AGENT"]
    );
    assert_eq!(
        violations(message(|message| message.parts.push(Part::default()))).await,
        ["message.parts[1] must have one of text, raw, url, data"]
    );
    assert_eq!(violations(message(|message| message.parts = vec![Part::default(); 1000])).await.len(), 32);
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
    assert_eq!(violations(request).await, missing);
}

/// The future of a call is kept for as long as an agent runs, so its size is bounded.
#[test]
fn pending_call_occupies_at_most_512_bytes() {
    let handle = echo();
    let call = handle.call(Rpc::SendMessage, Request::new(Params { source: body("{}"), path: Vec::new() }));
    assert!(size_of_val(&call) <= 512, "{}", size_of_val(&call));
}
