//! Equivalence of the JSON dialects: JSON-RPC of 0.3, ProtoJSON of 0.3, and 1.0. A message, task, event, set of parameters or
//! push configuration in one dialect is read as its counterparts in the others; responses are compared byte for byte.

use std::sync::Arc;

use a2a_service::{
    contract::BoxStream,
    event::{Ends, Event, EventFlags, Position},
    pb::v1::{a2a_service_server::A2aService, bindings::ValidatedService, *},
    snapshot::Snapshot,
    transport::{HttpService, listener},
};
use http::header;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::support::settings;
use crate::conformance::{CheckedService, Exemption, allow_undocumented};

const MESSAGE: [&str; 3] = [
    concat!(
        r#"{"kind":"message","messageId":"m-1","contextId":"c-1","taskId":"t-1","role":"user","parts":["#,
        r#"{"kind":"text","text":"hi","metadata":{"k":1}},"#,
        r#"{"kind":"file","file":{"name":"a.txt","mimeType":"text/plain","bytes":"aGVsbG8="}},"#,
        r#"{"kind":"file","file":{"mimeType":"image/png","uri":"https://x/y.png"}},"#,
        r#"{"kind":"data","data":{"a":1}}],"#,
        r#""referenceTaskIds":["t-0"],"extensions":["urn:e"],"metadata":{}}"#,
    ),
    concat!(
        r#"{"messageId":"m-1","contextId":"c-1","taskId":"t-1","role":"ROLE_USER","content":["#,
        r#"{"text":"hi","metadata":{"k":1}},"#,
        // The bytes of the file are base64, which ProtoJSON encodes as base64 again.
        r#"{"file":{"fileWithBytes":"YUdWc2JHOD0=","mimeType":"text/plain","name":"a.txt"}},"#,
        r#"{"file":{"fileWithUri":"https://x/y.png","mimeType":"image/png"}},"#,
        r#"{"data":{"data":{"a":1}}}],"#,
        r#""metadata":{},"extensions":["urn:e"]}"#,
    ),
    concat!(
        r#"{"messageId":"m-1","contextId":"c-1","taskId":"t-1","role":"ROLE_USER","parts":["#,
        r#"{"text":"hi","metadata":{"k":1}},"#,
        r#"{"raw":"aGVsbG8=","filename":"a.txt","mediaType":"text/plain"},"#,
        r#"{"url":"https://x/y.png","mediaType":"image/png"},"#,
        r#"{"data":{"a":1}}],"#,
        r#""metadata":{},"extensions":["urn:e"],"referenceTaskIds":["t-0"]}"#,
    ),
];

const TASK: [&str; 3] = [
    concat!(
        r#"{"kind":"task","id":"t-1","contextId":"c-1","status":{"state":"input-required","#,
        r#""message":{"kind":"message","messageId":"m-2","role":"agent","parts":[{"kind":"text","text":"which?"}]},"#,
        r#""timestamp":"2025-01-01T00:00:00.000Z"},"#,
        r#""artifacts":[{"artifactId":"a-1","name":"n","description":"d","parts":[{"kind":"text","text":"x"}],"extensions":["urn:e"],"metadata":{}}],"#,
        r#""history":[{"kind":"message","messageId":"m-1","role":"user","parts":[{"kind":"text","text":"hi"}]}],"metadata":{}}"#,
    ),
    concat!(
        r#"{"id":"t-1","contextId":"c-1","status":{"state":"TASK_STATE_INPUT_REQUIRED","#,
        r#""message":{"messageId":"m-2","role":"ROLE_AGENT","content":[{"text":"which?"}]},"#,
        r#""timestamp":"2025-01-01T00:00:00.000Z"},"#,
        r#""artifacts":[{"artifactId":"a-1","name":"n","description":"d","parts":[{"text":"x"}],"metadata":{},"extensions":["urn:e"]}],"#,
        r#""history":[{"messageId":"m-1","role":"ROLE_USER","content":[{"text":"hi"}]}],"metadata":{}}"#,
    ),
    concat!(
        r#"{"id":"t-1","contextId":"c-1","status":{"state":"TASK_STATE_INPUT_REQUIRED","#,
        r#""message":{"messageId":"m-2","role":"ROLE_AGENT","parts":[{"text":"which?"}]},"#,
        r#""timestamp":"2025-01-01T00:00:00.000Z"},"#,
        r#""artifacts":[{"artifactId":"a-1","name":"n","description":"d","parts":[{"text":"x"}],"metadata":{},"extensions":["urn:e"]}],"#,
        r#""history":[{"messageId":"m-1","role":"ROLE_USER","parts":[{"text":"hi"}]}],"metadata":{}}"#,
    ),
];

/// An artifact chunk and the terminal status update that follows it.
const EVENTS: [[&str; 2]; 3] = [
    [
        r#"{"kind":"artifact-update","taskId":"t-1","contextId":"c-1","artifact":{"artifactId":"a-1","parts":[{"kind":"text","text":"x"}]},"append":true,"lastChunk":true,"metadata":{}}"#,
        r#"{"kind":"status-update","taskId":"t-1","contextId":"c-1","status":{"state":"canceled","timestamp":"2025-01-01T00:00:00.000Z"},"final":true,"metadata":{}}"#,
    ],
    [
        r#"{"artifactUpdate":{"taskId":"t-1","contextId":"c-1","artifact":{"artifactId":"a-1","parts":[{"text":"x"}]},"append":true,"lastChunk":true,"metadata":{}}}"#,
        r#"{"statusUpdate":{"taskId":"t-1","contextId":"c-1","status":{"state":"TASK_STATE_CANCELLED","timestamp":"2025-01-01T00:00:00.000Z"},"final":true,"metadata":{}}}"#,
    ],
    [
        r#"{"artifactUpdate":{"taskId":"t-1","contextId":"c-1","artifact":{"artifactId":"a-1","parts":[{"text":"x"}]},"append":true,"lastChunk":true,"metadata":{}}}"#,
        r#"{"statusUpdate":{"taskId":"t-1","contextId":"c-1","status":{"state":"TASK_STATE_CANCELED","timestamp":"2025-01-01T00:00:00.000Z"},"metadata":{}}}"#,
    ],
];

const CONFIGURATION: [&str; 3] = [
    r#"{"acceptedOutputModes":["text/plain"],"blocking":true,"historyLength":5,"pushNotificationConfig":{"id":"p","url":"https://h","token":"t","authentication":{"schemes":["Bearer"],"credentials":"x"}}}"#,
    r#"{"acceptedOutputModes":["text/plain"],"blocking":true,"historyLength":5,"pushNotification":{"id":"p","url":"https://h","token":"t","authentication":{"schemes":["Bearer"],"credentials":"x"}}}"#,
    r#"{"acceptedOutputModes":["text/plain"],"returnImmediately":false,"historyLength":5,"taskPushNotificationConfig":{"id":"p","url":"https://h","token":"t","authentication":{"scheme":"Bearer","credentials":"x"}}}"#,
];

const WEBHOOK: [&str; 3] = [
    r#"{"taskId":"t-1","pushNotificationConfig":{"id":"p","url":"https://h","token":"t","authentication":{"schemes":["Bearer"],"credentials":"x"}}}"#,
    r#"{"name":"tasks/t-1/pushNotificationConfigs/p","pushNotificationConfig":{"id":"p","url":"https://h","token":"t","authentication":{"schemes":["Bearer"],"credentials":"x"}}}"#,
    r#"{"id":"p","taskId":"t-1","url":"https://h","token":"t","authentication":{"scheme":"Bearer","credentials":"x"}}"#,
];

/// Service that returns the task, events and push configuration above, and echoes messages.
#[derive(Default)]
struct ExampleService {
    sent: Mutex<Vec<SendMessageRequest>>,
}

#[tonic::async_trait]
impl A2aService for ExampleService {
    async fn send_message(&self, r: Request<SendMessageRequest>) -> Result<Response<SendMessageResponse>, Status> {
        let sent = r.into_inner();
        self.sent.lock().push(sent.clone());
        let payload = sent.message.map(send_message_response::Payload::Message);
        Ok(Response::new(SendMessageResponse { payload }))
    }

    async fn get_task(&self, _: Request<GetTaskRequest>) -> Result<Response<Snapshot>, Status> {
        Ok(Response::new(serde_json::from_str(TASK[2]).unwrap()))
    }

    async fn subscribe_to_task(
        &self,
        _: Request<SubscribeToTaskRequest>,
    ) -> Result<Response<BoxStream<Event>>, Status> {
        let marks = [EventFlags::NOTHING, EventFlags::ending(Ends::Task)];
        let event = |(seq, (json, mark))| {
            let message: StreamResponse = serde_json::from_str(json).unwrap();
            Ok(Event::new(Position { fence: 1, seq }, mark, message.payload.unwrap()))
        };
        let events: Vec<_> = (1..).zip(EVENTS[2].into_iter().zip(marks)).map(event).collect();
        Ok(Response::new(Box::pin(tokio_stream::iter(events))))
    }

    async fn create_task_push_notification_config(
        &self,
        r: Request<TaskPushNotificationConfig>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        Ok(Response::new(r.into_inner()))
    }

    async fn get_task_push_notification_config(
        &self,
        _: Request<GetTaskPushNotificationConfigRequest>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        Ok(Response::new(serde_json::from_str(WEBHOOK[2]).unwrap()))
    }

    async fn list_task_push_notification_configs(
        &self,
        _: Request<ListTaskPushNotificationConfigsRequest>,
    ) -> Result<Response<ListTaskPushNotificationConfigsResponse>, Status> {
        let configs = vec![serde_json::from_str(WEBHOOK[2]).unwrap()];
        Ok(Response::new(ListTaskPushNotificationConfigsResponse { configs, next_page_token: String::new() }))
    }
}

async fn serve() -> (String, Arc<ExampleService>) {
    let service = Arc::new(ExampleService::default());
    let http_service = CheckedService(HttpService::new(
        Arc::new(ValidatedService(Arc::<ExampleService>::clone(&service))),
        settings(),
    ));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let connections = listener::ListenerSettings::default();
    tokio::spawn(async move { listener::serve(listener, http_service, &connections, &CancellationToken::new()).await });
    (url, service)
}

/// Calls a JSON-RPC method; if `target` is a path, posts `body` to it, or gets it if `body` is empty.
async fn request(url: &str, target: &str, body: &str) -> String {
    let http = crate::bindings::http();
    let request = match (target.starts_with('/'), body) {
        (true, "") => http.get(format!("{url}{target}")),
        (true, body) => http.post(format!("{url}{target}")).body(body.to_owned()),
        (false, params) => {
            let call = format!(r#"{{"jsonrpc":"2.0","id":"a","method":"{target}","params":{params}}}"#);
            http.post(format!("{url}/rpc")).body(call)
        }
    };
    request.header(header::CONTENT_TYPE, "application/json").send().await.unwrap().text().await.unwrap()
}

fn result(json: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":"a","result":{json}}}"#)
}

#[tokio::test]
async fn message_is_equal_in_all_dialects() {
    allow_undocumented(Exemption::Requests);
    let (url, service) = &serve().await;
    let [json_rpc, proto, v1] = MESSAGE.map(|message| format!(r#"{{"message":{message}}}"#));
    assert_eq!(request(url, "message/send", &json_rpc).await, result(MESSAGE[0]));
    assert_eq!(request(url, "/v1/message:send", &proto).await, proto);
    assert_eq!(request(url, "SendMessage", &v1).await, result(&v1));
    // Some clients send JSON-RPC messages to the REST endpoint.
    assert_eq!(request(url, "/v1/message:send", &json_rpc).await, proto);
    let sent = service.sent.lock();
    let expected: SendMessageRequest = serde_json::from_str(&v1).unwrap();
    let message = Message { reference_task_ids: vec![], ..expected.message.clone().unwrap() };
    let without = SendMessageRequest { message: Some(message), ..expected.clone() };
    assert_eq!(*sent, [expected.clone(), without.clone(), expected, without]);
}

#[tokio::test]
async fn send_parameters_are_equal_in_all_dialects() {
    let (url, service) = &serve().await;
    let params = |n: usize| {
        let (message, configuration) = (MESSAGE[n], CONFIGURATION[n]);
        format!(r#"{{"message":{message},"configuration":{configuration},"metadata":{{}}}}"#)
    };
    request(url, "message/send", &params(0)).await;
    request(url, "/v1/message:send", &params(1)).await;
    request(url, "/message:send", &params(2)).await;
    let sent: Vec<_> =
        service.sent.lock().iter().map(|request| (request.configuration.clone(), request.metadata.clone())).collect();
    let expected: SendMessageRequest = serde_json::from_str(&params(2)).unwrap();
    assert_eq!(sent, vec![(expected.configuration, expected.metadata); 3]);
}

#[tokio::test]
async fn task_is_equal_in_all_dialects() {
    let (url, _) = &serve().await;
    assert_eq!(request(url, "tasks/get", r#"{"id":"t-1"}"#).await, result(TASK[0]));
    assert_eq!(request(url, "/v1/tasks/t-1", "").await, TASK[1]);
    assert_eq!(request(url, "/tasks/t-1", "").await, TASK[2]);
}

#[tokio::test]
async fn events_are_equal_in_all_dialects() {
    let (url, _) = &serve().await;
    let framed = |name: &str, events: [String; 2]| {
        let [first, last] = events;
        format!("id: t-1.1.1\n{name}data: {first}\n\nid: t-1.1.2\n{name}data: {last}\n\n")
    };
    let json_rpc = framed("event: message\n", EVENTS[0].map(result));
    assert_eq!(request(url, "tasks/resubscribe", r#"{"id":"t-1"}"#).await, json_rpc);
    assert_eq!(request(url, "/v1/tasks/t-1:subscribe", "{}").await, framed("", EVENTS[1].map(str::to_owned)));
    assert_eq!(request(url, "/tasks/t-1:subscribe", "{}").await, framed("", EVENTS[2].map(str::to_owned)));
}

#[tokio::test]
async fn push_configuration_is_equal_in_all_dialects() {
    let (url, _) = &serve().await;
    let of_task = r#"{"id":"t-1"}"#;
    assert_eq!(request(url, "tasks/pushNotificationConfig/set", WEBHOOK[0]).await, result(WEBHOOK[0]));
    assert_eq!(
        request(url, "tasks/pushNotificationConfig/get", r#"{"id":"t-1","pushNotificationConfigId":"p"}"#).await,
        result(WEBHOOK[0])
    );
    assert_eq!(request(url, "tasks/pushNotificationConfig/list", of_task).await, result(&format!("[{}]", WEBHOOK[0])));
    let configs = "/v1/tasks/t-1/pushNotificationConfigs";
    assert_eq!(request(url, configs, WEBHOOK[1]).await, WEBHOOK[1]);
    assert_eq!(request(url, &format!("{configs}/p"), "").await, WEBHOOK[1]);
    assert_eq!(request(url, configs, "").await, format!(r#"{{"configs":[{}]}}"#, WEBHOOK[1]));
    assert_eq!(request(url, "/tasks/t-1/pushNotificationConfigs", WEBHOOK[2]).await, WEBHOOK[2]);
}
