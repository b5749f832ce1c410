//! Semantics of protocol 0.3 that differ from 1.0: a test for each row of the table in `v03::semantics` that no codec
//! implements.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use a2a_service::{
    call::{Binding, Call},
    error::{Error, ErrorKind},
    event::{Ends, Event},
    extension::{ExtendedService, Extension},
    pb::v1::{
        AgentExtension, GetTaskPushNotificationConfigRequest, ListTaskPushNotificationConfigsRequest,
        ListTaskPushNotificationConfigsResponse, Message, SendMessageConfiguration, SendMessageRequest,
        SendMessageResponse, TaskPushNotificationConfig, TaskState, a2a_service_server::A2aService,
    },
    protocol::Version,
    service::Limits,
    store::memory::Memory,
    v03::semantics::{DEFAULT_CONFIG, V03Service},
};
use futures::StreamExt as _;
use tonic::{Request, Response, Status};

use crate::engine::support::*;

/// Client of 0.3 with the caller of the bench, over a binding.
fn v03_client(bench: &Bench, binding: Binding) -> Client {
    let api = Arc::new(V03Service::new(Arc::clone(&bench.api)));
    Client { api, call: Call { binding, version: Version::V0_3, ..bench.call.clone() }, ..bench.client.clone() }
}

/// Returns the end that each event marks.
fn ends(events: &[Event]) -> Vec<Ends> {
    events.iter().map(Event::ends).collect()
}

fn v03_code<T>(result: Result<T, Error>) -> i32 {
    result.map(drop).unwrap_err().wire_for(Version::V0_3).json_rpc
}

/// Operations that consist of several of 1.0 count once, also if they end at the first.
#[tokio::test(start_paused = true)]
async fn operation_counts_once_against_the_rate_of_calls() {
    const CALLS: u32 = 4;
    let mut limits = Limits::default();
    limits.call_rate_per_owner = CALLS;
    let bench = with_limits(Arc::new(Memory::default()), limits, scripted);
    let v03_client = v03_client(&bench, Binding::JsonRpc);
    let id = v03_client.non_blocking().send(Message::user("ask:what")).await.unwrap().id;
    let is_limited = |result: Result<_, Error>| result.is_err_and(|error| error.kind() == ErrorKind::ResourceExhausted);
    let push_config = async || {
        let request = GetTaskPushNotificationConfigRequest { task_id: id.clone(), ..Default::default() };
        let got = v03_client.api.get_task_push_notification_config(v03_client.call.clone().request(request)).await;
        got.map(drop).map_err(Error::from)
    };
    let subscribe = async || drop(v03_client.subscribe(&id).await.unwrap());
    let cancel = async || v03_client.cancel(&id).await.map(drop);
    // The first of these cancels the task, the others are rejected.
    sleep_ms(1_000).await;
    for _ in 0..CALLS {
        assert!(!is_limited(cancel().await));
    }
    assert!(is_limited(cancel().await));
    sleep_ms(1_000).await;
    for _ in 0..CALLS {
        assert!(!is_limited(push_config().await));
    }
    assert!(is_limited(push_config().await));
    // Streams of the canceled task.
    sleep_ms(1_000).await;
    for _ in 0..CALLS {
        subscribe().await;
    }
    assert!(is_limited(cancel().await));
}

#[tokio::test]
async fn history_length_of_0_returns_the_whole_history() {
    let bench = bench(Arc::new(Memory::default()), ask);
    let v03_client = v03_client(&bench, Binding::JsonRpc);
    let task = v03_client.with_history(0).send(Message::user("ask")).await.unwrap();
    assert_eq!(task.history.len(), 1);
    assert_eq!(v03_client.get_with(&task.id, 0).await.unwrap().history.len(), 1);
    assert_eq!(bench.get_with(&task.id, 0).await.unwrap().history.len(), 0);
    let all = v03_client.list(a2a_service::pb::v1::ListTasksRequest { history_length: Some(0), ..Default::default() });
    assert_eq!(all.await.unwrap().tasks[0].history.len(), 1);
    // Two messages and the question.
    let mut events = v03_client.with_history(0).stream(follow_up(&task.id, "done")).await.unwrap();
    let first = next_event(&mut events).await;
    assert_eq!(task_in(&first).history.len(), 3);
    assert_eq!(v03_client.get_with(&task.id, 1).await.unwrap().history.len(), 1);
    assert_eq!(v03_code(v03_client.get_with(&task.id, -1).await), -32602);
    assert_eq!(v03_code(v03_client.with_history(-1).send(Message::user("ask")).await), -32602);
}

#[tokio::test]
async fn cancel_of_canceled_task_is_rejected() {
    let bench = bench(Arc::new(Memory::default()), scripted);
    let v03_client = v03_client(&bench, Binding::Rest);
    let task = v03_client.send(Message::user("ask:why")).await.unwrap();
    assert_eq!(v03_client.cancel(&task.id).await.unwrap().state(), TaskState::Canceled);
    assert_eq!(bench.cancel(&task.id).await.unwrap().state(), TaskState::Canceled, "1.0: cancel is idempotent");
    assert_eq!(v03_code(v03_client.cancel(&task.id).await), -32002);
    assert_eq!(v03_code(v03_client.cancel("unknown").await), -32001);
    assert_eq!(v03_code(v03_client.as_owner("eve").cancel(&task.id).await), -32001);
}

#[tokio::test]
async fn message_to_terminal_task_has_invalid_params() {
    let bench = bench(Arc::new(Memory::default()), scripted);
    let v03_client = v03_client(&bench, Binding::Grpc);
    let task = v03_client.send(Message::user("done")).await.unwrap();
    let refused = v03_client.send(follow_up(&task.id, "more")).await;
    assert_eq!(refused.as_ref().unwrap_err().wire().json_rpc, -32004);
    assert_eq!(v03_code(refused), -32602);
    let other_context = Message { context_id: "another".to_owned(), ..follow_up(&task.id, "more") };
    assert_eq!(v03_code(v03_client.send(other_context).await), -32602);
    assert_eq!(v03_code(v03_client.send(follow_up("unknown", "more")).await), -32001);
}

#[tokio::test]
async fn subscription_to_terminal_task_has_the_task() {
    let bench = bench(Arc::new(Memory::default()), scripted);
    let task = bench.send(Message::user("out:x done:bye")).await.unwrap();
    assert_eq!(error_kind(bench.subscribe(&task.id).await), ErrorKind::TaskEnded);
    for (binding, expected) in [
        (Binding::JsonRpc, &[Ends::Nothing, Ends::Task][..]),
        (Binding::Rest, &[Ends::Task]),
        (Binding::Grpc, &[Ends::Task]),
    ] {
        let events = remaining_events(&mut v03_client(&bench, binding).subscribe(&task.id).await.unwrap()).await;
        assert_eq!(ends(&events), expected, "{binding:?}");
        assert_eq!(*task_in(&events[0]), task);
        assert!(states(&events).iter().all(|state| *state == TaskState::Completed));
    }
}

#[tokio::test]
async fn json_rpc_error_of_a_streaming_method_is_a_stream() {
    let bench = bench(Arc::new(Memory::default()), scripted);
    let task = bench.send(Message::user("done")).await.unwrap();
    let v03_rpc_client = v03_client(&bench, Binding::JsonRpc);
    let only_error = |events: Events| async {
        let all: Vec<_> = events.collect().await;
        let [Err(status)] = &all[..] else { panic!("{all:?}") };
        Error::from(status.clone()).kind()
    };
    assert_eq!(only_error(v03_rpc_client.subscribe("unknown").await.unwrap()).await, ErrorKind::TaskNotFound);
    assert_eq!(
        only_error(v03_rpc_client.stream(follow_up(&task.id, "more")).await.unwrap()).await,
        ErrorKind::TaskEnded
    );
    // Invalid parameters are rejected without a stream.
    assert_eq!(error_kind(v03_rpc_client.stream(Message::default()).await.map(drop)), ErrorKind::InvalidParams);
    assert_eq!(
        error_kind(v03_rpc_client.with_history(-1).stream(Message::user("x")).await.map(drop)),
        ErrorKind::InvalidParams
    );
    for binding in [Binding::Rest, Binding::Grpc] {
        assert_eq!(
            error_kind(v03_client(&bench, binding).subscribe("unknown").await.map(drop)),
            ErrorKind::TaskNotFound
        );
        assert_eq!(
            error_kind(v03_client(&bench, binding).stream(follow_up(&task.id, "more")).await.map(drop)),
            ErrorKind::TaskEnded
        );
    }
}

/// Only the last event has `final`.
#[tokio::test]
async fn end_of_the_turn_is_the_last_event() {
    let bench = bench(Arc::new(Memory::default()), scripted);
    let v03_client = v03_client(&bench, Binding::JsonRpc);
    let task = v03_client.send(Message::user("ask:why")).await.unwrap();
    let mut subscribed = v03_client.subscribe(&task.id).await.unwrap();
    let mut v1_stream = bench.subscribe(&task.id).await.unwrap();
    let streamed = remaining_events(&mut v03_client.stream(follow_up(&task.id, "work ask:how")).await.unwrap()).await;
    for events in [&streamed, &remaining_events(&mut subscribed).await] {
        assert_eq!(states(events).last(), Some(&TaskState::InputRequired));
        let (last, before) = events.split_last().unwrap();
        assert_eq!(last.ends(), Ends::Turn);
        assert!(before.iter().all(|event| event.ends() == Ends::Nothing), "{events:?}");
    }
    bench.send(follow_up(&task.id, "done")).await.unwrap();
    assert_eq!(
        states(&remaining_events(&mut v1_stream).await).last(),
        Some(&TaskState::Completed),
        "1.0: lasts until the task is terminal"
    );
}

/// A message that waits for the previous turn receives the end of that turn, which does not end its stream.
#[tokio::test(start_paused = true)]
async fn end_of_an_earlier_turn_is_not_the_last_event() {
    let bench = bench(Arc::new(Memory::default()), scripted);
    let v03_client = v03_client(&bench, Binding::JsonRpc);
    let mut first = v03_client.stream(Message::user("work pass:500 ask:why")).await.unwrap();
    let id = task_id(&next_event(&mut first).await);
    let second = v03_client.stream(follow_up(&id, "work:again ask:how")).await.unwrap();
    let (first, second): (Vec<_>, Vec<_>) =
        (remaining_events(&mut first).await, second.map(Result::unwrap).collect().await);
    assert_eq!(states(&first), [TaskState::Working, TaskState::InputRequired]);
    let interruptions = states(&second).iter().filter(|state| **state == TaskState::InputRequired).count();
    assert_eq!(interruptions, 2, "{second:?}");
    for events in [first, second] {
        let (last, before) = events.split_last().unwrap();
        assert_eq!(last.ends(), Ends::Turn);
        assert!(before.iter().all(|event| event.ends() == Ends::Nothing), "{before:?}");
        assert!(events.iter().all(|event| event.cursor().is_some()), "each event has a cursor");
    }
}

/// A message reply and a terminal task end a stream, too.
#[tokio::test]
async fn message_reply_and_terminal_task_end_the_stream() {
    let bench = bench(Arc::new(Memory::default()), scripted);
    let v03_client = v03_client(&bench, Binding::JsonRpc);
    for text in ["reply:hello", "work out:x done", "reject:no", "fail:x"] {
        let events = remaining_events(&mut v03_client.stream(Message::user(text)).await.unwrap()).await;
        let (last, before) = events.split_last().unwrap();
        assert_eq!(last.ends(), Ends::Task, "{text}");
        assert!(before.iter().all(|event| event.ends() == Ends::Nothing), "{text}");
    }
}

#[tokio::test]
async fn required_extension_is_not_enforced() {
    let bench = bench(Arc::new(Memory::default()), scripted);
    let extension = AgentExtension { uri: "urn:needed".to_owned(), required: true, ..Default::default() };
    let extension: Arc<dyn Extension> = Arc::new(extension);
    let extended: Arc<dyn A2aService> = Arc::new(ExtendedService::new(Arc::clone(&bench.api), [extension]));
    let v1 = Client { api: Arc::clone(&extended), ..bench.client.clone() };
    assert_eq!(error_kind(v1.send(Message::user("done")).await), ErrorKind::ExtensionSupportRequired);
    let v03_client = Client { api: Arc::new(V03Service::new(extended)), ..bench.client.clone() };
    assert_eq!(v03_client.send(Message::user("done")).await.unwrap().state(), TaskState::Completed);
}

/// Service that stores push configurations and sends, and asserts that requests have version 0.3.
#[derive(Default)]
struct RecordingService {
    configs: Mutex<BTreeMap<String, TaskPushNotificationConfig>>,
    sent: Mutex<Vec<SendMessageRequest>>,
}

#[tonic::async_trait]
impl A2aService for RecordingService {
    async fn send_message(
        &self,
        request: Request<SendMessageRequest>,
    ) -> Result<Response<SendMessageResponse>, Status> {
        assert_eq!(Call::of(&request)?.version, Version::V0_3);
        self.sent.lock().unwrap().push(request.into_inner());
        Ok(Response::new(SendMessageResponse::default()))
    }

    async fn create_task_push_notification_config(
        &self,
        request: Request<TaskPushNotificationConfig>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        assert_eq!(Call::of(&request)?.version, Version::V0_3);
        let config = request.into_inner();
        self.configs.lock().unwrap().insert(config.id.clone(), config.clone());
        Ok(Response::new(config))
    }

    async fn get_task_push_notification_config(
        &self,
        request: Request<GetTaskPushNotificationConfigRequest>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        let config = self.configs.lock().unwrap().get(&request.get_ref().id).cloned();
        Ok(Response::new(config.ok_or(ErrorKind::TaskNotFound).map_err(Error::from)?))
    }

    async fn list_task_push_notification_configs(
        &self,
        request: Request<ListTaskPushNotificationConfigsRequest>,
    ) -> Result<Response<ListTaskPushNotificationConfigsResponse>, Status> {
        assert_eq!(request.get_ref().task_id, "t");
        let configs = self.configs.lock().unwrap().values().cloned().collect();
        Ok(Response::new(ListTaskPushNotificationConfigsResponse { configs, ..Default::default() }))
    }
}

#[tokio::test]
async fn push_configuration_without_an_id_has_the_default_id() {
    let recorded = Arc::new(RecordingService::default());
    let inner: Arc<RecordingService> = Arc::clone(&recorded);
    let v03_client = V03Service::new(inner);
    // With the default version, 1.0: the wrapper sets 0.3.
    let call = || Call::by("ada");
    let config = |id: &str, url: &str| TaskPushNotificationConfig {
        task_id: "t".to_owned(),
        id: id.to_owned(),
        url: url.to_owned(),
        ..Default::default()
    };
    let set = |id, url| v03_client.create_task_push_notification_config(call().request(config(id, url)));
    let get = async |id: &str| {
        let request = GetTaskPushNotificationConfigRequest { task_id: "t".into(), id: id.into(), ..Default::default() };
        let got = v03_client.get_task_push_notification_config(call().request(request)).await;
        got.map(|response| response.into_inner().url).map_err(|status| Error::from(status).kind())
    };
    assert_eq!(get("").await, Err(ErrorKind::TaskNotFound));
    set("a", "https://a.example").await.unwrap();
    assert_eq!(get("").await.as_deref(), Ok("https://a.example"), "the first configuration");
    set("t", "https://t.example").await.unwrap();
    assert_eq!(get("").await.as_deref(), Ok("https://t.example"), "the configuration with the id of the task");
    assert_eq!(set("", "https://1.example").await.unwrap().into_inner().id, DEFAULT_CONFIG);
    set("", "https://2.example").await.unwrap();
    assert_eq!(get("").await.as_deref(), Ok("https://2.example"));
    assert_eq!(get("a").await.as_deref(), Ok("https://a.example"));
    assert_eq!(recorded.configs.lock().unwrap().len(), 3, "the second configuration without an id replaces the first");

    let configuration = SendMessageConfiguration {
        task_push_notification_config: Some(config("", "https://3.example")),
        ..Default::default()
    };
    let request = SendMessageRequest { configuration: Some(configuration), ..Default::default() };
    v03_client.send_message(call().request(request)).await.unwrap();
    let configuration = recorded.sent.lock().unwrap()[0].configuration.clone().unwrap();
    assert_eq!(configuration.task_push_notification_config.unwrap().id, DEFAULT_CONFIG);
}
