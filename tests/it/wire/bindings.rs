//! Requests, streams, errors and request context over each binding of 1.0, with the clients of this crate, on one port.

use std::sync::Arc;

use a2a_service::{
    call::{self, Call},
    client,
    error::{Error, ErrorKind},
    event::Event,
    pb::v1::{a2a_service_server::A2aService, *},
};
use tokio_stream::StreamExt as _;
use tonic::{Request, Status};

use super::support::*;

fn clients(url: &str) -> [(call::Binding, Arc<dyn A2aService>); 3] {
    [
        (call::Binding::Grpc, client::grpc(url).unwrap()),
        (call::Binding::Rest, client::rest(url).unwrap()),
        (call::Binding::JsonRpc, client::json_rpc(&format!("{url}/rpc")).unwrap()),
    ]
}

fn kind(status: &Status) -> ErrorKind {
    // Decoded from the wire details alone, without what the client attached to the status.
    Error::from(Status::with_details(status.code(), status.message(), status.details().to_vec().into())).kind()
}

#[tokio::test]
async fn requests_and_responses_are_equal_over_each_binding() {
    let server = Server::start().await;
    for (binding, agent) in clients(&server.url) {
        let reply = agent.send_message(Request::new(send("m"))).await.unwrap();
        assert_eq!(reply.metadata().get("a2a-extensions").unwrap(), "https://example.com/ext", "{binding:?}");
        let message = send_message_response::Payload::Message(hello("m"));
        assert_eq!(reply.into_inner().payload, Some(message), "{binding:?}");
        assert_eq!(server.echo.calls.lock().pop().unwrap().binding, binding);

        let id = "a/b ü:cancel?%".to_owned();
        let request = GetTaskRequest { id: id.clone(), tenant: "t/1".into(), history_length: Some(2) };
        let task = agent.get_task(Request::new(request)).await.unwrap().into_inner().into_task().unwrap();
        assert_eq!((task.id, task.context_id.as_str()), (id, "t/1 Some(2)"), "{binding:?}");

        let request = ListTasksRequest {
            page_size: Some(7),
            include_artifacts: Some(true),
            context_id: "a&b".into(),
            status: TaskState::Working.into(),
            ..Default::default()
        };
        let tasks = agent.list_tasks(Request::new(request)).await.unwrap().into_inner();
        assert_eq!((tasks.page_size, tasks.next_page_token.as_str()), (7, "Some(true) a&b Working"), "{binding:?}");

        let (task_id, id) = ("t".to_owned(), "c".to_owned());
        let request = GetTaskPushNotificationConfigRequest { task_id, id, tenant: String::new() };
        let config = agent.get_task_push_notification_config(Request::new(request)).await.unwrap().into_inner();
        assert_eq!((config.task_id.as_str(), config.id.as_str()), ("t", "c"));
        let (task_id, id) = ("t".to_owned(), "c".to_owned());
        let request = DeleteTaskPushNotificationConfigRequest { task_id, id, tenant: String::new() };
        agent.delete_task_push_notification_config(Request::new(request)).await.unwrap();
    }
}

#[tokio::test]
async fn streams_are_equal_over_each_binding() {
    let server = Server::start().await;
    for (binding, agent) in clients(&server.url) {
        let reply = agent.send_streaming_message(Request::new(send("m"))).await.unwrap();
        assert_eq!(reply.metadata().get("a2a-extensions").unwrap(), "https://example.com/ext", "{binding:?}");
        let events: Vec<_> = reply.into_inner().map(Result::unwrap).collect().await;
        assert_eq!(events, [event(hello("m"), 1), event(hello("m"), 2)], "{binding:?}");
        let cursors: Vec<_> = events.iter().filter_map(Event::cursor).map(ToString::to_string).collect();
        // gRPC does not carry cursors; the other bindings do.
        assert_eq!(cursors, if binding == call::Binding::Grpc { vec![] } else { vec!["t.1.1", "t.1.2"] });

        let request = SubscribeToTaskRequest { id: "x".into(), ..Default::default() };
        let events = agent.subscribe_to_task(Request::new(request)).await.unwrap().into_inner();
        let events: Vec<_> = events.map(Result::unwrap).collect().await;
        assert_eq!(events, [event(hello("x"), 1)], "{binding:?}");
    }
}

#[tokio::test]
async fn errors_are_equal_over_each_binding() {
    let server = Server::start().await;
    for (binding, agent) in clients(&server.url) {
        for (id, expected) in [
            ("missing", ErrorKind::TaskNotFound),
            ("limited", ErrorKind::ResourceExhausted),
            ("secret", ErrorKind::Unauthenticated),
            ("forbidden", ErrorKind::PermissionDenied),
            ("", ErrorKind::InvalidParams),
        ] {
            let request = GetTaskRequest { id: id.into(), ..Default::default() };
            let status = agent.get_task(Request::new(request)).await.unwrap_err();
            assert_eq!(status.code(), expected.wire().grpc, "{binding:?} {id}");
            let challenge = status.metadata().get("www-authenticate").map(|challenge| challenge.to_str().unwrap());
            assert_eq!(challenge, (id == "secret").then_some("Bearer realm=\"a\""), "{binding:?} {id}");
            let error = Error::from(status.clone());
            assert_eq!(error.retry_after_seconds(), (id == "limited").then_some(2), "{binding:?} {id}");
            if id == "missing" {
                assert_eq!(error.to_string(), "Task not found: missing", "{binding:?}");
            }
            assert_eq!(kind(&status), expected, "{binding:?} {id}");
        }
        let message = Message { role: 99, ..hello("m") };
        let request = SendMessageRequest { message: Some(message), ..Default::default() };
        for status in [
            agent.send_message(Request::new(request.clone())).await.map(|_| ()).unwrap_err(),
            agent.send_streaming_message(Request::new(request)).await.map(|_| ()).unwrap_err(),
        ] {
            let error = Error::from(status);
            assert_eq!((error.kind(), &*error.violations()[0].field), (ErrorKind::InvalidParams, "message.role"));
            assert!(error.to_string().contains("99 is not one of ROLE_USER, ROLE_AGENT"), "{binding:?}: {error}");
        }
        let error = agent.send_streaming_message(Request::new(send("refuse"))).await.map(|_| ()).unwrap_err();
        assert_eq!(kind(&error), ErrorKind::UnsupportedOperation, "{binding:?}");
    }
}

#[tokio::test]
async fn error_after_the_first_event_ends_the_stream() {
    let server = Server::start().await;
    for (binding, agent) in clients(&server.url) {
        let mut events = agent.send_streaming_message(Request::new(send("fail"))).await.unwrap().into_inner();
        assert_eq!(events.next().await.unwrap().unwrap(), event(hello("fail"), 1), "{binding:?}");
        let error = events.next().await.unwrap().unwrap_err();
        assert_eq!((error.message(), kind(&error)), ("Task not found: t", ErrorKind::TaskNotFound), "{binding:?}");
        assert!(events.next().await.is_none());

        let mut events = agent.send_streaming_message(Request::new(send("drain"))).await.unwrap().into_inner();
        assert!(events.next().await.unwrap().is_ok());
        let last = events.next().await.map(|event| kind(&event.unwrap_err()));
        assert_eq!(last, (binding == call::Binding::Grpc).then_some(ErrorKind::Unavailable), "{binding:?}");
    }
}

#[tokio::test]
async fn message_over_the_size_limit_is_rejected() {
    let server = Server::start().await;
    for (binding, agent) in clients(&server.url) {
        for length in [1_100_000, 3_000_000] {
            let mut request = send("m");
            request.message.as_mut().unwrap().parts[0].content = Some(part::Content::Text("x".repeat(length)));
            let error = agent.send_message(Request::new(request)).await.unwrap_err();
            assert!(error.message().contains("1048576"), "{binding:?}: {error}");
            assert_eq!(kind(&error), ErrorKind::TooLarge, "{binding:?}");
        }
        // The client is usable afterwards.
        agent.send_message(Request::new(send("m"))).await.unwrap();
    }
}

/// The client sends the fields of `Call` and no other metadata.
#[tokio::test]
async fn request_context_is_sent_without_other_metadata() {
    let server = Server::start().await;
    for (binding, agent) in clients(&server.url) {
        let call = Call {
            extensions: vec!["urn:a".into()],
            idempotency_key: Some("k".into()),
            request_id: Some("r".into()),
            deadline: Some(tokio::time::Instant::now() + std::time::Duration::from_secs(20)),
            ..Call::by("ada")
        };
        let mut request = call.request(send("m"));
        request.metadata_mut().insert("authorization", "Bearer x".parse().unwrap());
        request.metadata_mut().insert("x-request-id", "other".parse().unwrap());
        agent.send_message(request).await.unwrap();
        let call = server.echo.calls.lock().pop().unwrap();
        assert_eq!((call.binding, &*call.owner), (binding, ""));
        assert_eq!(call.extensions, ["urn:a"]);
        assert_eq!(
            (call.idempotency_key.as_deref(), call.request_id.as_deref()),
            (Some("k"), Some("r")),
            "{binding:?}"
        );
        assert!(call.time_left().is_some_and(|left| left.as_secs() < 20), "{binding:?}");
        assert!(call.peer.is_some());
    }
}
