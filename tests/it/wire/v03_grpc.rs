//! gRPC of protocol 0.3 (package `a2a.v1`), served on the same port as 1.0: messages, streams, errors, versions.

use a2a_service::{
    call::{self},
    error::{Error, ErrorKind},
    pb::v03::{
        self, CancelTaskRequest, CreateTaskPushNotificationConfigRequest, FilePart, GetAgentCardRequest,
        GetTaskPushNotificationConfigRequest, GetTaskRequest, Message, Part, PushNotificationConfig,
        SendMessageConfiguration, SendMessageRequest, TaskPushNotificationConfig, TaskSubscriptionRequest,
        file_part::File, part::Part as Content, send_message_response, stream_response::Payload,
    },
    protocol::Version,
    transport::{Settings, listener},
    v03::pb::a2a_service_client::A2aServiceClient,
};
use tokio_stream::StreamExt as _;
use tonic::{Code, Request, Status, transport::Channel};
use tonic_types::StatusExt as _;

use super::support::*;

fn client(url: &str) -> A2aServiceClient<Channel> {
    A2aServiceClient::new(Channel::from_shared(url.to_owned()).unwrap().connect_lazy())
}

fn message(id: &str) -> Message {
    let text = Part { part: Some(Content::Text("hi".into())), metadata: None };
    Message { message_id: id.into(), role: v03::Role::User.into(), content: vec![text], ..Message::default() }
}

fn request_of(message: Message) -> SendMessageRequest {
    SendMessageRequest { request: Some(message), ..SendMessageRequest::default() }
}

/// Parts of a status that clients of 0.3 read: code, error name at the start of the message, and reason.
fn error_parts(status: &Status) -> (Code, &str, String) {
    let reason = status.get_error_details().error_info().map(|info| info.reason.clone()).unwrap_or_default();
    (status.code(), status.message().split(':').next().unwrap(), reason)
}

#[tokio::test]
async fn requests_and_responses_are_converted() {
    let server = Server::start().await;
    let mut agent = client(&server.url);
    let mut request = Request::new(request_of(message("m")));
    request.metadata_mut().insert("x-a2a-extensions", "urn:a".parse().unwrap());
    let reply = agent.send_message(request).await.unwrap();
    assert_eq!(reply.metadata().get("x-a2a-extensions").unwrap(), "https://example.com/ext");
    assert!(reply.metadata().get("a2a-extensions").is_none());
    assert_eq!(reply.into_inner().payload, Some(send_message_response::Payload::Msg(message("m"))));
    let call = server.echo.calls.lock().pop().unwrap();
    assert_eq!(
        (call.version, call.binding, call.extensions),
        (Version::V0_3, call::Binding::Grpc, vec!["urn:a".to_owned()])
    );

    let get = GetTaskRequest { name: "tasks/a/b".into(), history_length: 2 };
    let task = agent.get_task(get).await.unwrap().into_inner();
    assert_eq!((task.id.as_str(), task.context_id.as_str()), ("a/b", " Some(2)"));
    let name = "tasks/t/pushNotificationConfigs/c".to_owned();
    let config =
        agent.get_task_push_notification_config(GetTaskPushNotificationConfigRequest { name: name.clone() }).await;
    assert_eq!(config.unwrap().into_inner().name, name);
    let push = PushNotificationConfig { url: "https://h".into(), ..Default::default() };
    let config = TaskPushNotificationConfig { name: String::new(), push_notification_config: Some(push) };
    let (parent, config_id) = ("tasks/t".to_owned(), "c".to_owned());
    let create = CreateTaskPushNotificationConfigRequest { parent, config_id, config: Some(config) };
    let config = agent.create_task_push_notification_config(create).await.unwrap().into_inner();
    assert_eq!((config.name, config.push_notification_config.unwrap().id), (name, "c".to_owned()));
}

/// Protobuf has no unset `blocking`, so a configuration without it does not block; a missing configuration does.
#[tokio::test]
async fn send_configuration_without_blocking_returns_immediately() {
    let server = Server::start().await;
    let mut agent = client(&server.url);
    let of =
        |blocking, history_length| Some(SendMessageConfiguration { blocking, history_length, ..Default::default() });
    for (configuration, expected) in [
        (None, None),
        (of(true, 0), Some((false, None))),
        (of(false, 0), Some((true, None))),
        (of(true, 2), Some((false, Some(2)))),
        (of(false, -1), Some((true, Some(-1)))),
    ] {
        agent.send_message(SendMessageRequest { configuration, ..request_of(message("m")) }).await.unwrap();
        let sent = server.echo.sent.lock().pop().unwrap().configuration;
        assert_eq!(
            sent.map(|configuration| (configuration.return_immediately, configuration.history_length)),
            expected
        );
    }
}

#[tokio::test]
async fn files_are_decoded_with_and_without_base64() {
    let server = Server::start().await;
    let mut agent = client(&server.url);
    let of = |bytes: &[u8]| {
        let file = FilePart { file: Some(File::FileWithBytes(bytes.to_vec())), ..FilePart::default() };
        Part { part: Some(Content::File(file)), metadata: None }
    };
    for bytes in [&b"hello"[..], b"aGVsbG8="] {
        let sent = Message { content: vec![of(bytes)], ..message("m") };
        let reply = agent.send_message(request_of(sent)).await.unwrap().into_inner();
        let Some(send_message_response::Payload::Msg(reply)) = reply.payload else { panic!("{reply:?}") };
        assert_eq!(reply.content, [of(b"aGVsbG8=")]);
        let sent = server.echo.sent.lock().pop().unwrap().message.unwrap();
        assert_eq!(sent.parts[0].content, Some(a2a_service::pb::v1::part::Content::Raw(b"hello".to_vec())));
    }
}

#[tokio::test]
async fn last_event_of_a_turn_is_final() {
    let server = Server::start().await;
    let mut agent = client(&server.url);
    let events = agent.send_streaming_message(request_of(message("turn"))).await.unwrap();
    let events: Vec<_> =
        events.into_inner().map(|event| event.unwrap().message().payload.clone().unwrap()).collect().await;
    let last: Vec<_> =
        events.iter().map(|event| matches!(event, Payload::StatusUpdate(update) if update.r#final)).collect();
    assert_eq!(last, [false, false, false, true]);
    assert!(matches!(&events[0], Payload::Task(task) if task.id == "t"));
    let events =
        agent.task_subscription(TaskSubscriptionRequest { name: "tasks/x".into() }).await.unwrap().into_inner();
    let events: Vec<_> = events.map(|event| event.unwrap().message().payload.clone().unwrap()).collect().await;
    assert!(matches!(&events[..], [Payload::Msg(message)] if message.message_id == "x"));
}

#[tokio::test]
async fn errors_have_v03_codes_and_names() {
    let server = Server::start().await;
    let mut agent = client(&server.url);
    for (n, kind) in ErrorKind::ALL.into_iter().enumerate() {
        let status =
            agent.get_task(GetTaskRequest { name: format!("tasks/error-{n}"), history_length: 0 }).await.unwrap_err();
        let wire = kind.wire_for(Version::V0_3);
        assert_eq!(error_parts(&status), (wire.grpc, kind.v03_name(), wire.reason.to_owned()), "{kind:?}");
        assert_eq!(status.message(), format!("{}: {}: ü: why", kind.v03_name(), wire.sentence));
    }
    let secret = agent.get_task(GetTaskRequest { name: "tasks/secret".into(), history_length: 0 }).await.unwrap_err();
    assert_eq!(secret.metadata().get("www-authenticate").unwrap(), "Bearer realm=\"a\"");
    let canceled = agent.cancel_task(CancelTaskRequest { name: "tasks/t".into() }).await.unwrap_err();
    assert_eq!(
        error_parts(&canceled),
        (Code::FailedPrecondition, "TaskNotCancelableError", "TASK_NOT_CANCELABLE".into())
    );
    let card = agent.get_agent_card(GetAgentCardRequest {}).await.unwrap_err();
    assert_eq!(card.code(), Code::Unimplemented);
    let rejected = agent.send_streaming_message(request_of(message("refuse"))).await.unwrap_err();
    assert_eq!(error_parts(&rejected).1, "UnsupportedOperationError");
    let mut events = agent.send_streaming_message(request_of(message("fail"))).await.unwrap().into_inner();
    events.next().await.unwrap().unwrap();
    assert_eq!(
        error_parts(&events.next().await.unwrap().unwrap_err()),
        (Code::NotFound, "TaskNotFoundError", "TASK_NOT_FOUND".into())
    );
}

#[tokio::test]
async fn invalid_requests_are_rejected_by_field() {
    let server = Server::start().await;
    let mut agent = client(&server.url);
    let wrong = |change: fn(&mut Message)| {
        let mut message = message("m");
        change(&mut message);
        request_of(message)
    };
    for (request, field) in [
        (SendMessageRequest::default(), "message"),
        (wrong(|message| message.message_id.clear()), "message.messageId"),
        (wrong(|message| message.role = 0), "message.role"),
        (wrong(|message| message.role = 99), "message.role"),
        (wrong(|message| message.content.clear()), "message.parts"),
        (wrong(|message| message.content.push(Part::default())), "message.parts[1]"),
    ] {
        let status = agent.send_message(request).await.unwrap_err();
        assert_eq!(error_parts(&status), (Code::InvalidArgument, "InvalidParamsError", "INVALID_PARAMS".into()));
        assert_eq!(Error::from(status).violations()[0].field, field);
    }
    for name in ["", "t", "tasks/"] {
        let status = agent.get_task(GetTaskRequest { name: name.into(), history_length: 0 }).await.unwrap_err();
        assert_eq!(error_parts(&status).1, "InvalidParamsError");
        assert_eq!(Error::from(status).violations()[0].field, "name");
    }
    assert!(server.echo.calls.lock().is_empty());

    // Errors that tonic detects.
    let http = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
    for (path, frames, code, name) in [
        ("GetTask", vec![0, 0, 0, 0, 1, 0xff], Code::InvalidArgument, "InvalidParamsError"),
        ("GetTask", vec![], Code::InvalidArgument, "InvalidRequestError"),
        ("GetTask", vec![0, 0x7f, 0xff, 0xff, 0xff], Code::ResourceExhausted, "InvalidRequestError"),
        ("SubscribeToTask", vec![0, 0, 0, 0, 0], Code::Unimplemented, "MethodNotFoundError"),
    ] {
        let request =
            http.post(format!("{}/a2a.v1.A2AService/{path}", server.url)).header("content-type", "application/grpc");
        let reply = request.body(frames.clone()).send().await.unwrap();
        let status = Status::from_header_map(reply.headers()).unwrap();
        let (found_code, found_name, reason) = error_parts(&status);
        assert_eq!((found_code, found_name), (code, name), "{path} {frames:?}: {status:?}");
        assert!(!reason.is_empty());
    }
}

#[tokio::test]
async fn unknown_version_is_rejected_and_known_versions_are_ignored() {
    let server =
        Server::with(Settings { strict_version: true, ..settings() }, listener::ListenerSettings::default()).await;
    let mut agent = client(&server.url);
    let mut get = async |version: &str| {
        let mut request = Request::new(GetTaskRequest { name: "tasks/t".into(), history_length: 0 });
        request.metadata_mut().insert("a2a-version", version.parse().unwrap());
        agent.get_task(request).await
    };
    for version in ["", "0.3", "0.2", "1.0"] {
        assert!(get(version).await.is_ok(), "{version}");
    }
    assert_eq!(error_parts(&get("9.9").await.unwrap_err()).1, "InvalidRequestError");
}

#[tokio::test]
async fn disabled_protocol_version_is_rejected() {
    let settings = Settings { protocols: [Version::V1_0].into_iter().collect(), ..settings() };
    let server = Server::with(settings, listener::ListenerSettings::default()).await;
    let status =
        client(&server.url).get_task(GetTaskRequest { name: "tasks/t".into(), history_length: 0 }).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);

    let settings = Settings { protocols: [Version::V0_3].into_iter().collect(), ..super::support::settings() };
    let server = Server::with(settings, listener::ListenerSettings::default()).await;
    client(&server.url).get_task(GetTaskRequest { name: "tasks/t".into(), history_length: 0 }).await.unwrap();
    let current = a2a_service::client::grpc(&server.url).unwrap();
    let request = a2a_service::pb::v1::GetTaskRequest { id: "t".into(), ..Default::default() };
    let status = current.get_task(Request::new(request)).await.unwrap_err();
    assert_eq!(Error::from(status).kind(), ErrorKind::VersionNotSupported);
}
