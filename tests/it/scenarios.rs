//! Scenarios that hold for every binding: functions of a service trait object, run over each binding by the macros in
//! `bindings`, and some of them also with each kind of agent without code (`agent_kinds`).

use a2a_service::{
    call::Call,
    contract::BoxStream,
    error::{Error, ErrorKind},
    event::Event,
    pb::v1::{
        GetTaskRequest, Message, SendMessageConfiguration, SendMessageRequest, SubscribeToTaskRequest, Task, TaskState,
        a2a_service_server::A2aService, send_message_response::Payload as Answer, stream_response::Payload,
    },
};
use tokio_stream::StreamExt as _;
use tonic::{Request, Status};

mod cancel;
mod errors;
mod extensions;
mod idempotency;
mod limits;
mod media_types;
mod metadata;
mod outage;
mod push;
mod resume;
mod send;
mod stream;
mod tasks;
mod v03;

pub(crate) fn request<T>(message: T) -> Request<T> {
    Call::default().request(message)
}

/// Text message, as a follow-up if `task_id` is not empty.
pub(crate) fn text(task_id: &str, text: &str) -> SendMessageRequest {
    let message = Message { task_id: task_id.into(), ..Message::user(text) };
    SendMessageRequest { message: Some(message), ..SendMessageRequest::default() }
}

pub(crate) fn configured(request: SendMessageRequest, configuration: SendMessageConfiguration) -> SendMessageRequest {
    SendMessageRequest { configuration: Some(configuration), ..request }
}

pub(crate) async fn send_payload(agent: &dyn A2aService, sent: SendMessageRequest) -> Result<Answer, Error> {
    Ok(agent.send_message(request(sent)).await?.into_inner().payload.unwrap())
}

/// Sends a message and returns the task of the reply.
pub(crate) async fn send(agent: &dyn A2aService, sent: SendMessageRequest) -> Task {
    match send_payload(agent, sent).await.unwrap() {
        Answer::Task(task) => task,
        Answer::Message(message) => panic!("reply is a message, not a task: {message:?}"),
    }
}

pub(crate) async fn stream(agent: &dyn A2aService, sent: SendMessageRequest) -> BoxStream<Event> {
    agent.send_streaming_message(request(sent)).await.unwrap().into_inner()
}

pub(crate) async fn subscribe(agent: &dyn A2aService, id: &str) -> Result<BoxStream<Event>, Error> {
    let subscription = SubscribeToTaskRequest { id: id.into(), ..SubscribeToTaskRequest::default() };
    Ok(agent.subscribe_to_task(request(subscription)).await?.into_inner())
}

pub(crate) async fn get(agent: &dyn A2aService, id: &str) -> Result<Task, Error> {
    let get = GetTaskRequest { id: id.into(), ..GetTaskRequest::default() };
    agent.get_task(request(get)).await?.into_inner().into_task()
}

pub(crate) async fn next(events: &mut BoxStream<Event>) -> Event {
    events.next().await.expect("an event before the end of the stream").unwrap()
}

pub(crate) async fn remaining(events: BoxStream<Event>) -> Vec<Event> {
    events.map(|event: Result<Event, Status>| event.unwrap()).collect().await
}

/// State that an event reports, if any.
pub(crate) fn state(event: &Event) -> Option<TaskState> {
    match event.payload()? {
        Payload::Task(task) => Some(task.state()),
        Payload::StatusUpdate(update) => update.status.as_ref().map(a2a_service::pb::v1::TaskStatus::state),
        Payload::Message(_) | Payload::ArtifactUpdate(_) => None,
    }
}

pub(crate) fn task_of(event: &Event) -> &Task {
    match event.payload() {
        Some(Payload::Task(task)) => task,
        other => panic!("expected a task event, got {other:?}"),
    }
}

/// Concatenated text of all artifacts.
pub(crate) fn output(task: &Task) -> String {
    task.artifacts.iter().flat_map(|artifact| &artifact.parts).filter_map(|part| part.as_text()).collect()
}

/// Text of the message in the task status.
pub(crate) fn status_text(task: &Task) -> String {
    task.status.as_ref().and_then(|status| status.message.as_ref()).map(Message::text).unwrap_or_default()
}

/// Asserts the kind of an error by its reason and text, which every binding preserves.
pub(crate) fn assert_error_kind(error: &Error, kind: ErrorKind) {
    assert_eq!(error.wire().reason, kind.wire().reason, "{error:?}");
    assert!(error.to_string().starts_with(kind.wire().sentence), "{error}");
}

pub(crate) fn fields(error: &Error) -> Vec<&str> {
    error.violations().iter().map(|violation| violation.field.as_str()).collect()
}
