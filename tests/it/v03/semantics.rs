//! What 0.3 does otherwise: a test for each row of the table in `v03::semantics` that is not a codec's.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use a2a_service::{
    agent::Agent,
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
    store::memory::Memory,
    v03::semantics::{DEFAULT_CONFIG, Semantics},
};
use futures::StreamExt as _;
use tonic::{Request, Response, Status};

use crate::engine::support::*;

/// The same caller, with 0.3, by a door.
fn classic<A: Agent>(bench: &Bench<A>, binding: Binding) -> Client {
    let api = Arc::new(Semantics::new(Arc::clone(&bench.api)));
    Client { api, call: Call { binding, version: Version::V0_3, ..bench.call.clone() }, ..bench.client.clone() }
}

/// What ends with each event.
fn ends(events: &[Event]) -> Vec<Ends> {
    events.iter().map(Event::ends).collect()
}

fn classic_code<T>(result: Result<T, Error>) -> i32 {
    result.map(drop).unwrap_err().wire_for(Version::V0_3).json_rpc
}

#[tokio::test]
async fn a_history_of_0_is_all_of_it() {
    let bench = bench(Arc::new(Memory::default()), ask);
    let classic = classic(&bench, Binding::JsonRpc);
    let task = classic.with_history(0).send(Message::user("ask")).await.unwrap();
    assert_eq!(task.history.len(), 1);
    assert_eq!(classic.get_with(&task.id, 0).await.unwrap().history.len(), 1);
    assert_eq!(bench.get_with(&task.id, 0).await.unwrap().history.len(), 0);
    let all = classic.list(a2a_service::pb::v1::ListTasksRequest { history_length: Some(0), ..Default::default() });
    assert_eq!(all.await.unwrap().tasks[0].history.len(), 1);
    // Two messages by now, and the question.
    let mut events = classic.with_history(0).stream(follow_up(&task.id, "done")).await.unwrap();
    let first = next_event(&mut events).await;
    assert_eq!(task_in(&first).history.len(), 3);
    assert_eq!(classic.get_with(&task.id, 1).await.unwrap().history.len(), 1);
    assert_eq!(classic_code(classic.get_with(&task.id, -1).await), -32602);
    assert_eq!(classic_code(classic.with_history(-1).send(Message::user("ask")).await), -32602);
}

#[tokio::test]
async fn what_is_canceled_cannot_be_canceled() {
    let bench = bench(Arc::new(Memory::default()), scripted);
    let classic = classic(&bench, Binding::Rest);
    let task = classic.send(Message::user("ask:why")).await.unwrap();
    assert_eq!(classic.cancel(&task.id).await.unwrap().state(), TaskState::Canceled);
    assert_eq!(bench.cancel(&task.id).await.unwrap().state(), TaskState::Canceled, "1.0: twice is once");
    assert_eq!(classic_code(classic.cancel(&task.id).await), -32002);
    assert_eq!(classic_code(classic.cancel("nobody's").await), -32001);
    assert_eq!(classic_code(classic.as_owner("eve").cancel(&task.id).await), -32001);
}

#[tokio::test]
async fn a_message_to_what_has_ended_has_wrong_parameters() {
    let bench = bench(Arc::new(Memory::default()), scripted);
    let classic = classic(&bench, Binding::Grpc);
    let task = classic.send(Message::user("done")).await.unwrap();
    let refused = classic.send(follow_up(&task.id, "more")).await;
    assert_eq!(refused.as_ref().unwrap_err().wire().json_rpc, -32004);
    assert_eq!(classic_code(refused), -32602);
    let elsewhere = Message { context_id: "another".to_owned(), ..follow_up(&task.id, "more") };
    assert_eq!(classic_code(classic.send(elsewhere).await), -32602);
    assert_eq!(classic_code(classic.send(follow_up("nobody's", "more")).await), -32001);
}

#[tokio::test]
async fn a_task_that_has_ended_is_its_own_stream() {
    let bench = bench(Arc::new(Memory::default()), scripted);
    let task = bench.send(Message::user("out:x done:bye")).await.unwrap();
    assert_eq!(error_kind(bench.subscribe(&task.id).await), ErrorKind::TaskEnded);
    for (binding, expected) in [
        (Binding::JsonRpc, &[Ends::Nothing, Ends::Task][..]),
        (Binding::Rest, &[Ends::Task]),
        (Binding::Grpc, &[Ends::Task]),
    ] {
        let events = remaining_events(&mut classic(&bench, binding).subscribe(&task.id).await.unwrap()).await;
        assert_eq!(ends(&events), expected, "{binding:?}");
        assert_eq!(*task_in(&events[0]), task);
        assert!(states(&events).iter().all(|it| *it == TaskState::Completed));
    }
}

#[tokio::test]
async fn a_stream_of_json_rpc_is_one_even_if_it_is_an_error() {
    let bench = bench(Arc::new(Memory::default()), scripted);
    let task = bench.send(Message::user("done")).await.unwrap();
    let classic_rpc = classic(&bench, Binding::JsonRpc);
    let only_error = |events: Events| async {
        let all: Vec<_> = events.collect().await;
        let [Err(status)] = &all[..] else { panic!("{all:?}") };
        Error::from(status.clone()).kind()
    };
    assert_eq!(only_error(classic_rpc.subscribe("nobody's").await.unwrap()).await, ErrorKind::TaskNotFound);
    assert_eq!(only_error(classic_rpc.stream(follow_up(&task.id, "more")).await.unwrap()).await, ErrorKind::TaskEnded);
    // What can't be understood did not ask for a stream.
    assert_eq!(error_kind(classic_rpc.stream(Message::default()).await.map(drop)), ErrorKind::InvalidParams);
    assert_eq!(
        error_kind(classic_rpc.with_history(-1).stream(Message::user("x")).await.map(drop)),
        ErrorKind::InvalidParams
    );
    for binding in [Binding::Rest, Binding::Grpc] {
        assert_eq!(error_kind(classic(&bench, binding).subscribe("nobody's").await.map(drop)), ErrorKind::TaskNotFound);
        assert_eq!(
            error_kind(classic(&bench, binding).stream(follow_up(&task.id, "more")).await.map(drop)),
            ErrorKind::TaskEnded
        );
    }
}

/// `final` is said once, with the last event.
#[tokio::test]
async fn the_end_of_a_turn_is_the_last_event() {
    let bench = bench(Arc::new(Memory::default()), scripted);
    let classic = classic(&bench, Binding::JsonRpc);
    let task = classic.send(Message::user("ask:why")).await.unwrap();
    let mut subscribed = classic.subscribe(&task.id).await.unwrap();
    let mut stays = bench.subscribe(&task.id).await.unwrap();
    let streamed = remaining_events(&mut classic.stream(follow_up(&task.id, "work ask:how")).await.unwrap()).await;
    for events in [&streamed, &remaining_events(&mut subscribed).await] {
        assert_eq!(states(events).last(), Some(&TaskState::InputRequired));
        let (last, before) = events.split_last().unwrap();
        assert_eq!(last.ends(), Ends::Turn);
        assert!(before.iter().all(|it| it.ends() == Ends::Nothing), "{events:?}");
    }
    bench.send(follow_up(&task.id, "done")).await.unwrap();
    assert_eq!(
        states(&remaining_events(&mut stays).await).last(),
        Some(&TaskState::Completed),
        "1.0: stays to the end"
    );
}

/// A message that waits for the turn before its own sees that turn end, which does not end its stream.
#[tokio::test(start_paused = true)]
async fn the_end_of_an_earlier_turn_is_not_the_last_event() {
    let bench = bench(Arc::new(Memory::default()), scripted);
    let classic = classic(&bench, Binding::JsonRpc);
    let mut first = classic.stream(Message::user("work pass:500 ask:why")).await.unwrap();
    let id = task_id(&next_event(&mut first).await);
    let second = classic.stream(follow_up(&id, "work:again ask:how")).await.unwrap();
    let (first, second): (Vec<_>, Vec<_>) =
        (remaining_events(&mut first).await, second.map(Result::unwrap).collect().await);
    assert_eq!(states(&first), [TaskState::Working, TaskState::InputRequired]);
    let asked = states(&second).iter().filter(|it| **it == TaskState::InputRequired).count();
    assert_eq!(asked, 2, "{second:?}");
    for events in [first, second] {
        let (last, before) = events.split_last().unwrap();
        assert_eq!(last.ends(), Ends::Turn);
        assert!(before.iter().all(|it| it.ends() == Ends::Nothing), "{before:?}");
        assert!(events.iter().all(|it| it.cursor().is_some()), "each can be taken up after");
    }
}

/// A plain reply, and a task that ends, close a stream too.
#[tokio::test]
async fn other_ends_are_ends() {
    let bench = bench(Arc::new(Memory::default()), scripted);
    let classic = classic(&bench, Binding::JsonRpc);
    for text in ["reply:hello", "work out:x done", "reject:no", "fail:x"] {
        let events = remaining_events(&mut classic.stream(Message::user(text)).await.unwrap()).await;
        let (last, before) = events.split_last().unwrap();
        assert_eq!(last.ends(), Ends::Task, "{text}");
        assert!(before.iter().all(|it| it.ends() == Ends::Nothing), "{text}");
    }
}

#[tokio::test]
async fn a_required_extension_is_not_insisted_on() {
    let bench = bench(Arc::new(Memory::default()), scripted);
    let needed = AgentExtension { uri: "urn:needed".to_owned(), required: true, ..Default::default() };
    let needed: Arc<dyn Extension> = Arc::new(needed);
    let extended: Arc<dyn A2aService> = Arc::new(ExtendedService::new(Arc::clone(&bench.api), [needed]));
    let now = Client { api: Arc::clone(&extended), ..bench.client.clone() };
    assert_eq!(error_kind(now.send(Message::user("done")).await), ErrorKind::ExtensionSupportRequired);
    let classic = Client { api: Arc::new(Semantics::new(extended)), ..bench.client.clone() };
    assert_eq!(classic.send(Message::user("done")).await.unwrap().state(), TaskState::Completed);
}

/// Keeps push configurations, and says in which version it was called.
#[derive(Default)]
struct Kept {
    configs: Mutex<BTreeMap<String, TaskPushNotificationConfig>>,
    sent: Mutex<Vec<SendMessageRequest>>,
}

#[tonic::async_trait]
impl A2aService for Kept {
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
async fn a_push_configuration_without_an_id_is_the_default_one() {
    let kept = Arc::new(Kept::default());
    let inner: Arc<Kept> = Arc::clone(&kept);
    let classic = Semantics::new(inner);
    // As 1.0 has it by default: whoever comes this way speaks 0.3.
    let call = || Call::by("ada");
    let config = |id: &str, url: &str| TaskPushNotificationConfig {
        task_id: "t".to_owned(),
        id: id.to_owned(),
        url: url.to_owned(),
        ..Default::default()
    };
    let set = |id, url| classic.create_task_push_notification_config(call().request(config(id, url)));
    let get = async |id: &str| {
        let request = GetTaskPushNotificationConfigRequest { task_id: "t".into(), id: id.into(), ..Default::default() };
        let got = classic.get_task_push_notification_config(call().request(request)).await;
        got.map(|it| it.into_inner().url).map_err(|it| Error::from(it).kind())
    };
    assert_eq!(get("").await, Err(ErrorKind::TaskNotFound));
    set("a", "https://a.example").await.unwrap();
    assert_eq!(get("").await.as_deref(), Ok("https://a.example"), "the first that there is");
    set("t", "https://t.example").await.unwrap();
    assert_eq!(get("").await.as_deref(), Ok("https://t.example"), "the task's");
    assert_eq!(set("", "https://1.example").await.unwrap().into_inner().id, DEFAULT_CONFIG);
    set("", "https://2.example").await.unwrap();
    assert_eq!(get("").await.as_deref(), Ok("https://2.example"));
    assert_eq!(get("a").await.as_deref(), Ok("https://a.example"));
    assert_eq!(kept.configs.lock().unwrap().len(), 3, "the second one without an id is in place of the first");

    let configuration = SendMessageConfiguration {
        task_push_notification_config: Some(config("", "https://3.example")),
        ..Default::default()
    };
    let request = SendMessageRequest { configuration: Some(configuration), ..Default::default() };
    classic.send_message(call().request(request)).await.unwrap();
    let configuration = kept.sent.lock().unwrap()[0].configuration.clone().unwrap();
    assert_eq!(configuration.task_push_notification_config.unwrap().id, DEFAULT_CONFIG);
}
