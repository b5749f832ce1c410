//! Test bench of the engine tests: an in-process service, a client of it, two scripted agents and event helpers.

use std::{
    collections::BTreeMap,
    ops::Deref,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use a2a_service::{
    agent::{self, Agent, End, Turn, Updates},
    call::Call,
    clock::Clock,
    contract::BoxStream,
    error::{Error, ErrorKind},
    event::{Cursor, Ends, Event},
    pb::v1::{
        CancelTaskRequest, GetTaskRequest, ListTasksRequest, ListTasksResponse, Message, SendMessageConfiguration,
        SendMessageRequest, SubscribeToTaskRequest, Task, TaskState, a2a_service_server::A2aService,
        bindings::ValidatedService, send_message_response, stream_response::Payload,
    },
    service::{Limits, Service},
    sources::Sources,
    store::{Scope, Store, TaskKey},
};
use futures::{FutureExt as _, StreamExt as _};
use tokio::{sync::Notify, task::JoinHandle};

/// In-process service with a client of it.
pub(crate) struct Bench {
    pub(crate) service: Arc<Service>,
    pub(crate) client: Client,
}

impl Deref for Bench {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

pub(crate) fn bench<F, Fut>(store: Arc<dyn Store>, run: F) -> Bench
where
    F: Fn(Turn, Updates) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<End, agent::Error>> + Send,
{
    with_limits(store, Limits::default(), run)
}

pub(crate) fn with_limits<F, Fut>(store: Arc<dyn Store>, limits: Limits, run: F) -> Bench
where
    F: Fn(Turn, Updates) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<End, agent::Error>> + Send,
{
    with_agent(store, limits, agent::from_fn(run))
}

pub(crate) fn with_agent(store: Arc<dyn Store>, limits: Limits, agent: impl Agent) -> Bench {
    let now = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap();
    // Wall time advances with tokio's clock if a test pauses that.
    with_sources(store, limits, Sources { clock: Clock::simulated(now), ..Sources::default() }, agent)
}

pub(crate) fn with_sources(store: Arc<dyn Store>, limits: Limits, sources: Sources, agent: impl Agent) -> Bench {
    let service = Arc::new(Service::with_sources(Arc::new(agent), store, limits, sources));
    let inner: Arc<Service> = Arc::clone(&service);
    let api: Arc<dyn A2aService> = Arc::new(ValidatedService(inner));
    Bench { service, client: Client { api, call: Call::by("ada"), tenant: String::new(), config: None } }
}

impl Bench {
    /// Waits until no task is in memory.
    pub(crate) async fn wait_until_evicted(&self) {
        for n in 0..11_000 {
            if self.service.live_tasks() == 0 {
                return;
            }
            // On a multi-threaded runtime the last reference may be dropped a moment later.
            if n < 1000 { tokio::task::yield_now().await } else { sleep_ms(1).await }
        }
        panic!("{} tasks are still in memory", self.service.live_tasks());
    }
}

pub(crate) type Events = BoxStream<Event>;

/// Client of the service, with the request context, the tenant and the send configuration that it uses.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) api: Arc<dyn A2aService>,
    pub(crate) call: Call,
    pub(crate) tenant: String,
    pub(crate) config: Option<SendMessageConfiguration>,
}

impl Client {
    pub(crate) fn as_owner(&self, owner: &str) -> Self {
        Self { call: Call::by(owner), ..self.clone() }
    }

    pub(crate) fn in_tenant(&self, tenant: &str) -> Self {
        Self { tenant: tenant.to_owned(), ..self.clone() }
    }

    /// Returns a client whose requests have this deadline.
    pub(crate) fn with_deadline(&self, time: Duration) -> Self {
        let call = Call { deadline: Some(tokio::time::Instant::now() + time), ..self.call.clone() };
        Self { call, ..self.clone() }
    }

    /// Returns a client that sends with `returnImmediately`.
    pub(crate) fn non_blocking(&self) -> Self {
        let config = SendMessageConfiguration { return_immediately: true, ..Default::default() };
        Self { config: Some(config), ..self.clone() }
    }

    pub(crate) fn with_history(&self, length: impl Into<Option<i32>>) -> Self {
        let config = SendMessageConfiguration { history_length: length.into(), ..Default::default() };
        Self { config: Some(config), ..self.clone() }
    }

    fn request(&self, message: Message) -> tonic::Request<SendMessageRequest> {
        let (tenant, configuration) = (self.tenant.clone(), self.config.clone());
        self.call.clone().request(SendMessageRequest { tenant, message: Some(message), configuration, metadata: None })
    }

    pub(crate) async fn send_payload(&self, message: Message) -> Result<send_message_response::Payload, Error> {
        let answer = self.api.send_message(self.request(message)).await?;
        Ok(answer.into_inner().payload.unwrap())
    }

    /// Sends a message and returns the task of the reply.
    pub(crate) async fn send(&self, message: Message) -> Result<Task, Error> {
        match self.send_payload(message).await? {
            send_message_response::Payload::Task(task) => Ok(task),
            send_message_response::Payload::Message(message) => panic!("reply is a message, not a task: {message:?}"),
        }
    }

    /// Sends a message in a spawned task.
    pub(crate) fn spawn_send(&self, message: Message) -> JoinHandle<Result<Task, Error>> {
        let client = self.clone();
        tokio::spawn(async move { client.send(message).await })
    }

    pub(crate) async fn stream(&self, message: Message) -> Result<Events, Error> {
        Ok(self.api.send_streaming_message(self.request(message)).await?.into_inner())
    }

    pub(crate) async fn get(&self, id: &str) -> Result<Task, Error> {
        self.get_with(id, None).await
    }

    pub(crate) async fn get_with(&self, id: &str, history_length: impl Into<Option<i32>>) -> Result<Task, Error> {
        let (tenant, history_length) = (self.tenant.clone(), history_length.into());
        let request = GetTaskRequest { tenant, id: id.to_owned(), history_length };
        self.api.get_task(self.call.clone().request(request)).await?.into_inner().into_task()
    }

    pub(crate) async fn state(&self, id: &str) -> TaskState {
        self.get(id).await.unwrap().state()
    }

    pub(crate) async fn list(&self, request: ListTasksRequest) -> Result<ListTasksResponse, Error> {
        let request = ListTasksRequest { tenant: self.tenant.clone(), ..request };
        Ok(self.api.list_tasks(self.call.clone().request(request)).await?.into_inner())
    }

    /// States of all tasks, over all pages.
    pub(crate) async fn all_states(&self) -> Vec<TaskState> {
        let (mut states, mut page_token) = (Vec::new(), String::new());
        loop {
            let request = ListTasksRequest { page_token, page_size: Some(100), ..Default::default() };
            let page = self.list(request).await.unwrap();
            states.extend(page.tasks.iter().map(Task::state));
            if page.next_page_token.is_empty() {
                assert_eq!(usize::try_from(page.total_size), Ok(states.len()));
                return states;
            }
            page_token = page.next_page_token;
        }
    }

    /// States of all tasks by id; fails unless they fit on one page.
    pub(crate) async fn states_by_id(&self) -> BTreeMap<String, TaskState> {
        let page = self.list(ListTasksRequest { page_size: Some(100), ..Default::default() }).await.unwrap();
        assert_eq!(page.next_page_token, "");
        assert_eq!(usize::try_from(page.total_size), Ok(page.tasks.len()));
        page.tasks.into_iter().map(|task| (task.id.clone(), task.state())).collect()
    }

    pub(crate) async fn cancel(&self, id: &str) -> Result<Task, Error> {
        let request = CancelTaskRequest { tenant: self.tenant.clone(), id: id.to_owned(), metadata: None };
        self.api.cancel_task(self.call.clone().request(request)).await?.into_inner().into_task()
    }

    pub(crate) async fn subscribe(&self, id: &str) -> Result<Events, Error> {
        self.resume(id, None).await
    }

    pub(crate) async fn resume(&self, id: &str, cursor: Option<&Cursor>) -> Result<Events, Error> {
        let request = SubscribeToTaskRequest { tenant: self.tenant.clone(), id: id.to_owned() };
        let call = Call { cursor: cursor.cloned(), ..self.call.clone() };
        Ok(self.api.subscribe_to_task(call.request(request)).await?.into_inner())
    }

    /// Returns the log of a task, including hidden events.
    pub(crate) async fn log(&self, store: &dyn Store, id: &str) -> Vec<Event> {
        let scope = Scope { owner: Arc::clone(&self.call.owner), tenant: self.tenant.as_str().into() };
        store.events(&TaskKey::new(&Arc::new(scope), id), 0, usize::MAX >> 1, usize::MAX).await.unwrap()
    }
}

pub(crate) fn follow_up(task: &str, text: &str) -> Message {
    Message { task_id: task.to_owned(), ..Message::user(text) }
}

/// Error kind of a failed result.
pub(crate) fn error_kind<T>(result: Result<T, Error>) -> ErrorKind {
    result.map(drop).unwrap_err().kind()
}

pub(crate) async fn next_event(events: &mut Events) -> Event {
    events.next().await.unwrap().unwrap()
}

/// Events that can be read without waiting.
pub(crate) fn ready_events(events: &mut Events) -> Vec<Event> {
    std::iter::from_fn(|| events.next().now_or_never().flatten().map(Result::unwrap)).collect()
}

pub(crate) async fn remaining_events(events: &mut Events) -> Vec<Event> {
    events.map(Result::unwrap).collect().await
}

pub(crate) fn task_id(event: &Event) -> String {
    match event.payload() {
        Some(Payload::Task(payload)) => payload.id.clone(),
        Some(Payload::StatusUpdate(payload)) => payload.task_id.clone(),
        Some(Payload::ArtifactUpdate(payload)) => payload.task_id.clone(),
        Some(Payload::Message(_)) | None => panic!("event has no task id: {event:?}"),
    }
}

/// Task carried by an event; panics if the event carries something else.
pub(crate) fn task_in(event: &Event) -> &Task {
    match event.payload() {
        Some(Payload::Task(task)) => task,
        Some(_) | None => panic!("event carries no task: {event:?}"),
    }
}

/// State that an event reports, if any.
pub(crate) fn state_in(event: &Event) -> Option<TaskState> {
    match event.payload()? {
        Payload::Task(task) => Some(task.state()),
        Payload::StatusUpdate(update) => Some(update.status.as_ref()?.state()),
        Payload::Message(_) | Payload::ArtifactUpdate(_) => None,
    }
}

pub(crate) fn states(events: &[Event]) -> Vec<TaskState> {
    events.iter().filter_map(state_in).collect()
}

pub(crate) fn seqs(events: &[Event]) -> Vec<u64> {
    events.iter().map(Event::seq).collect()
}

/// Asserts that sequence numbers have no gap or duplicate, and that only the last event may end the task.
pub(crate) fn assert_dense(log: &[Event]) {
    assert_eq!(seqs(log), (1..=u64::try_from(log.len()).unwrap()).collect::<Vec<_>>());
    let ends = log.iter().position(|event| event.ends() == Ends::Task);
    assert!(ends.is_none_or(|end| end + 1 == log.len()), "an event after the end: {log:?}");
}

pub(crate) fn history_texts(task: &Task) -> Vec<String> {
    task.history.iter().map(Message::text).collect()
}

/// Yields until every task that can make progress without time passing has done so.
pub(crate) async fn run_ready_tasks() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// Sleeps. Under a paused clock, this advances the clock without waiting.
pub(crate) async fn sleep_ms(millis: u64) {
    #[expect(clippy::disallowed_methods, reason = "the clock is paused, or a test agent simulates slow work")]
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

/// Agent that asks for input on `ask`, completes on `done`, and otherwise answers and asks for more.
pub(crate) async fn ask(turn: Turn, out: Updates) -> Result<End, agent::Error> {
    out.working().await?;
    match turn.text() {
        "ask" => Ok(End::input_required("what?")),
        text => {
            out.artifact("answer").last().text(text).await?;
            Ok(if text == "done" { End::Completed(None) } else { End::input_required("more?") })
        }
    }
}

/// Agent that executes the commands in the message text, each `command` or `command:argument`, in order.
pub(crate) async fn scripted(turn: Turn, out: Updates) -> Result<End, agent::Error> {
    for word in turn.text().split_whitespace() {
        match word.split_once(':').unwrap_or((word, "")) {
            ("work", "") => out.working().await?,
            ("work", text) => out.progress(text).await?,
            ("out", text) => out.artifact("out").last().text(text).await?,
            ("pass", millis) => sleep_ms(millis.parse()?).await,
            ("auth", text) => out.auth_required(Message::agent(text)).await?,
            ("hang", _) => std::future::pending().await,
            ("fail", text) => return Err(agent::Error::internal(text)),
            ("say", text) => return Err(agent::Error::public(text)),
            ("panic", text) => panic!("{text}"),
            ("done", "") => return Ok(End::Completed(None)),
            ("done", text) => return Ok(End::completed(text)),
            ("ask", text) => return Ok(End::input_required(text)),
            ("sign", text) => return Ok(End::auth_required(text)),
            ("reject", text) => return Ok(End::rejected(text)),
            ("reply", text) => return Ok(End::reply(text)),
            (word, _) => return Err(agent::Error::public(format!("what is {word}?"))),
        }
    }
    Ok(End::Completed(None))
}

/// Bench whose agent sets WORKING, waits until it is notified, and then behaves like [`ask`].
pub(crate) fn paused_bench(store: Arc<dyn Store>) -> (Bench, Arc<Notify>) {
    let go = Arc::new(Notify::new());
    let notified = Arc::clone(&go);
    let bench = bench(store, move |turn: Turn, out: Updates| {
        let go = Arc::clone(&notified);
        async move {
            out.working().await?;
            go.notified().await;
            ask(turn, out).await
        }
    });
    (bench, go)
}

/// Text of the message in the task status.
pub(crate) fn status_text(task: &Task) -> String {
    task.status.iter().flat_map(|status| &status.message).map(Message::text).collect()
}
