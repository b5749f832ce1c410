//! Conformance suite for servers: runs scenarios of the protocol on any [`A2aService`], in process or remote.
//!
//! The agent of the server has to understand a few [messages](Messages). The demo agent of this crate does; for a server of
//! your own, serve an agent that does, or change the messages.

use std::{fmt, time::Duration};

use futures_util::future::BoxFuture;
use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use tonic::Request;

use a2a_service::{
    call::{Call, IDEMPOTENCY_KEY},
    contract::BoxStream,
    error::{Error, ErrorKind},
    event::Event,
    pb::v1::{
        Artifact, CancelTaskRequest, GetTaskRequest, ListTasksRequest, Message, Part, SendMessageConfiguration,
        SendMessageRequest, SubscribeToTaskRequest, Task, TaskState, TaskStatus, a2a_service_server::A2aService,
        send_message_response, stream_response::Payload,
    },
    protocol::Version,
    sources::Ids,
};

/// Fails a case unless a condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(Stop::Failed(format!($($message)+)));
        }
    };
}

/// Messages that the agent of a server under test understands. The defaults are those of the demo agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Messages {
    /// Completes a task that has an artifact with text. `hello` by default.
    pub complete: String,
    /// Sends an artifact with text in at least two chunks, and completes the task. `/stream 3 1` by default.
    pub chunks: String,
    /// Sets a task to `WORKING` until it is canceled, for at least a minute. `/slow 120` by default.
    pub wait: String,
    /// Asks for input; any further message completes the task. `/ask Which city?` by default.
    pub ask: String,
    /// Fails a task. `/fail no such city` by default.
    pub fail: String,
}

impl Default for Messages {
    fn default() -> Self {
        Self {
            complete: "hello".to_owned(),
            chunks: "/stream 3 1".to_owned(),
            wait: "/slow 120".to_owned(),
            ask: "/ask Which city?".to_owned(),
            fail: "/fail no such city".to_owned(),
        }
    }
}

/// Conformance suite for servers, with its options.
///
/// ```
/// use a2a_conformance_suite::ConformanceSuite;
/// use a2a_service::{agent::demo::Demo, server::Server};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// // For a remote agent: `Client::connect(url).await?.service()`.
/// let agent = Server::new(Demo).into_service();
/// let report = ConformanceSuite::default().run(&*agent).await;
/// assert!(report.is_conforming(), "{report}");
/// # });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConformanceSuite {
    /// Protocol version of the calls. Cases that do not apply to 0.3 are skipped there. 1.0 by default.
    pub version: Version,
    /// Messages that the agent understands.
    pub messages: Messages,
    /// Time limit of a case. 20 s by default.
    pub case_timeout: Duration,
}

impl Default for ConformanceSuite {
    fn default() -> Self {
        Self { version: Version::V1_0, messages: Messages::default(), case_timeout: Duration::from_secs(20) }
    }
}

/// Results of the suite. Its text form has a line for each case: `ok NAME`, `FAILED NAME` or `skipped NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the server may not conform"]
pub struct Report {
    /// Results of all cases, in their order.
    pub cases: Vec<Case>,
}

/// Result of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Case {
    /// Name of the case.
    pub name: &'static str,
    /// Section of specification 1.0 that the case checks. Empty if there is none.
    pub section: &'static str,
    /// Result.
    pub result: CaseResult,
}

/// Kind of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CaseResult {
    /// The server conforms.
    Passed,
    /// The case does not apply, for this reason.
    Skipped(String),
    /// The server deviates, as described.
    Failed(String),
}

impl Report {
    /// Returns true if no case failed.
    pub fn is_conforming(&self) -> bool {
        self.failures().next().is_none()
    }

    /// Iterates over the cases that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Case> {
        self.cases.iter().filter(|case| matches!(case.result, CaseResult::Failed(_)))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Case { name, section, result } in &self.cases {
            match result {
                CaseResult::Passed => writeln!(f, "ok {name}")?,
                CaseResult::Skipped(reason) => writeln!(f, "skipped {name}: {reason}")?,
                CaseResult::Failed(detail) if section.is_empty() => writeln!(f, "FAILED {name}: {detail}")?,
                CaseResult::Failed(detail) => writeln!(f, "FAILED {name} (specification {section}): {detail}")?,
            }
        }
        Ok(())
    }
}

/// Reason for which a case ends early.
enum Stop {
    Skipped(String),
    Failed(String),
}

impl<E: Into<Error>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(format!("unexpected error: {}", error.into()))
    }
}

type Checked = Result<(), Stop>;
type CaseFn = for<'a> fn(&'a Run<'a>) -> BoxFuture<'a, Checked>;

/// Builds the table of cases from functions and their sections.
macro_rules! cases {
    ($($section:literal $name:ident)*) => {
        /// Names, sections and functions of the cases.
        const CASES: &[(&str, &str, CaseFn)] = &[$((stringify!($name), $section, |run| Box::pin($name(run)))),*];
    };
}

cases! {
    "3.1.1" send_returns_a_completed_task
    "3.1.3" get_returns_the_task
    "3.2.2" send_can_return_immediately
    "3.2.4" history_has_the_requested_length
    "3.4.3" follow_up_continues_its_task
    "4.1.3" failure_is_a_state_of_the_task
    "3.1.1" message_to_terminal_task_is_rejected
    "3.1.2" stream_has_the_task_and_its_events
    "3.1.6" subscription_begins_with_the_task_and_ends_with_it
    "3.1.6" subscription_to_terminal_task_is_rejected
    "3.1.5" cancel_ends_the_task
    "3.1.5" cancel_of_terminal_task_is_rejected
    "3.1.4" list_has_pages_and_filters
    "3.3.2" unknown_task_is_not_found
    "5.7" message_without_parts_is_rejected
    "" idempotency_key_identifies_a_send
}

impl ConformanceSuite {
    /// Runs all cases one after the other. Tasks that the suite creates stay on the server.
    pub async fn run(&self, agent: &dyn A2aService) -> Report {
        let mut cases = Vec::new();
        let run = Run { agent, suite: self };
        for (name, section, case) in CASES {
            let result = match timeout(self.case_timeout, case(&run)).await {
                Ok(Ok(())) => CaseResult::Passed,
                Ok(Err(Stop::Skipped(reason))) => CaseResult::Skipped(reason),
                Ok(Err(Stop::Failed(detail))) => CaseResult::Failed(detail),
                Err(_) => CaseResult::Failed(format!("not done after {:?} (case_timeout)", self.case_timeout)),
            };
            cases.push(Case { name, section, result });
        }
        Report { cases }
    }
}

/// Calls of the cases.
struct Run<'a> {
    agent: &'a dyn A2aService,
    suite: &'a ConformanceSuite,
}

fn request<T>(message: T) -> Request<T> {
    Call::default().request(message)
}

/// Message, to an existing task if `task_id` is not empty.
fn message(task_id: &str, text: &str) -> SendMessageRequest {
    let message = Message { task_id: task_id.to_owned(), message_id: Ids::default().random(), ..Message::user(text) };
    SendMessageRequest { message: Some(message), ..SendMessageRequest::default() }
}

fn configured(
    request: SendMessageRequest,
    configure: impl FnOnce(&mut SendMessageConfiguration),
) -> SendMessageRequest {
    let mut configuration = SendMessageConfiguration::default();
    configure(&mut configuration);
    SendMessageRequest { configuration: Some(configuration), ..request }
}

fn artifact_text(artifact: &Artifact) -> String {
    artifact.parts.iter().filter_map(Part::as_text).collect()
}

fn output(task: &Task) -> String {
    task.artifacts.iter().map(artifact_text).collect()
}

impl Run<'_> {
    async fn send(&self, sent: SendMessageRequest) -> Result<Task, Stop> {
        match self.agent.send_message(request(sent)).await?.into_inner().payload {
            Some(send_message_response::Payload::Task(task)) => Ok(task),
            other => Err(Stop::Failed(format!("the response to a send has no task: {other:?}"))),
        }
    }

    async fn get(&self, id: &str, history_length: Option<i32>) -> Result<Task, Error> {
        let get = GetTaskRequest { id: id.to_owned(), history_length, ..GetTaskRequest::default() };
        self.agent.get_task(request(get)).await?.into_inner().into_task()
    }

    async fn cancel(&self, id: &str) -> Result<Task, Error> {
        let cancel = CancelTaskRequest { id: id.to_owned(), ..CancelTaskRequest::default() };
        self.agent.cancel_task(request(cancel)).await?.into_inner().into_task()
    }

    async fn subscribe(&self, id: &str) -> Result<BoxStream<Event>, Error> {
        let subscribe = SubscribeToTaskRequest { id: id.to_owned(), ..SubscribeToTaskRequest::default() };
        Ok(self.agent.subscribe_to_task(request(subscribe)).await?.into_inner())
    }

    async fn complete(&self) -> Result<Task, Stop> {
        let task = self.send(message("", &self.suite.messages.complete)).await?;
        ensure!(task.state() == TaskState::Completed, "the task is {:?} instead of COMPLETED", task.state());
        Ok(task)
    }

    /// Starts a task that works until it is canceled.
    async fn start(&self) -> Result<Task, Stop> {
        let sent = configured(message("", &self.suite.messages.wait), |configuration| {
            configuration.return_immediately = true;
        });
        self.send(sent).await
    }

    fn is_v03(&self) -> bool {
        self.suite.version == Version::V0_3
    }

    fn skip_v03(&self, reason: &str) -> Checked {
        if self.is_v03() { Err(Stop::Skipped(reason.to_owned())) } else { Ok(()) }
    }

    /// Checks that a call fails with an error of this kind. In 0.3, any error will do unless it is `TaskNotFound`.
    fn rejected<T>(&self, what: &str, result: Result<T, Error>, kind: ErrorKind) -> Checked {
        let Err(error) = result else { return Err(Stop::Failed(format!("{what} succeeds"))) };
        let is_expected = error.wire().reason == kind.wire().reason;
        let is_lenient = self.is_v03() && kind != ErrorKind::TaskNotFound && error.kind() != ErrorKind::Unavailable;
        ensure!(
            is_expected || is_lenient,
            "{what}: {} instead of {}: {error}",
            error.wire().reason,
            kind.wire().reason
        );
        Ok(())
    }
}

/// Skips a case if an optional operation is not supported.
fn optional<T>(result: Result<T, Error>) -> Result<T, Stop> {
    use ErrorKind::{MethodNotFound, StreamingNotSupported, UnsupportedOperation};
    result.map_err(|error| {
        let is_unsupported = matches!(error.kind(), UnsupportedOperation | StreamingNotSupported | MethodNotFound);
        if is_unsupported { Stop::Skipped(error.to_string()) } else { error.into() }
    })
}

/// Reads the rest of a stream.
async fn remaining(mut events: BoxStream<Event>) -> Result<Vec<Event>, Stop> {
    let mut all = Vec::new();
    while let Some(event) = events.next().await {
        all.push(event?);
    }
    Ok(all)
}

fn state(event: &Event) -> Option<TaskState> {
    match event.payload()? {
        Payload::Task(task) => Some(task.state()),
        Payload::StatusUpdate(update) => update.status.as_ref().map(TaskStatus::state),
        Payload::Message(_) | Payload::ArtifactUpdate(_) => None,
    }
}

/// Task id of an event.
fn task_id(event: &Event) -> &str {
    match event.payload() {
        Some(Payload::Task(task)) => &task.id,
        Some(Payload::StatusUpdate(update)) => &update.task_id,
        Some(Payload::ArtifactUpdate(update)) => &update.task_id,
        Some(Payload::Message(_)) | None => "",
    }
}

/// Applies artifact chunks (4.2.2), and returns the artifacts.
fn fold(events: &[Event]) -> Vec<Artifact> {
    let mut artifacts: Vec<Artifact> = Vec::new();
    for event in events {
        match event.payload() {
            Some(Payload::Task(task)) => artifacts.clone_from(&task.artifacts),
            Some(Payload::ArtifactUpdate(update)) => {
                let Some(chunk) = &update.artifact else { continue };
                match artifacts.iter_mut().find(|artifact| artifact.artifact_id == chunk.artifact_id) {
                    Some(artifact) if update.append => artifact.parts.extend(chunk.parts.iter().cloned()),
                    Some(artifact) => artifact.clone_from(chunk),
                    None => artifacts.push(chunk.clone()),
                }
            }
            Some(Payload::StatusUpdate(_) | Payload::Message(_)) | None => {}
        }
    }
    artifacts
}

async fn send_returns_a_completed_task(run: &Run<'_>) -> Checked {
    let task = run.complete().await?;
    ensure!(!task.id.is_empty() && !task.context_id.is_empty(), "the task has no id, or no context id");
    ensure!(!output(&task).is_empty(), "the task has no artifact with text");
    let other = run.complete().await?;
    ensure!(other.id != task.id, "two messages without a task id have the same task {}", task.id);
    Ok(())
}

async fn get_returns_the_task(run: &Run<'_>) -> Checked {
    let task = run.complete().await?;
    let got = run.get(&task.id, None).await?;
    ensure!(got.id == task.id && got.context_id == task.context_id, "another task: {} {}", got.id, got.context_id);
    ensure!(got.state() == task.state(), "the state is {:?} instead of {:?}", got.state(), task.state());
    ensure!(output(&got) == output(&task), "the artifacts are `{}` instead of `{}`", output(&got), output(&task));
    Ok(())
}

async fn send_can_return_immediately(run: &Run<'_>) -> Checked {
    let task = run.start().await?;
    let state = task.state();
    ensure!(matches!(state, TaskState::Submitted | TaskState::Working), "the task is {state:?}");
    run.cancel(&task.id).await?;
    Ok(())
}

async fn history_has_the_requested_length(run: &Run<'_>) -> Checked {
    let task = run.send(message("", &run.suite.messages.ask)).await?;
    let task = run.send(message(&task.id, "Rome")).await?;
    let limited = run.get(&task.id, Some(1)).await?;
    ensure!(limited.history.len() <= 1, "{} messages exceed the length of 1", limited.history.len());
    if run.is_v03() {
        // 0 means unlimited in 0.3.
        return Ok(());
    }
    let none = run.get(&task.id, Some(0)).await?;
    ensure!(none.history.is_empty(), "{} messages exceed the length of 0", none.history.len());
    Ok(())
}

async fn follow_up_continues_its_task(run: &Run<'_>) -> Checked {
    let asked = run.send(message("", &run.suite.messages.ask)).await?;
    ensure!(asked.state() == TaskState::InputRequired, "the task is {:?} instead of INPUT_REQUIRED", asked.state());
    let done = run.send(message(&asked.id, "Rome")).await?;
    ensure!(done.id == asked.id && done.context_id == asked.context_id, "the follow-up is in another task or context");
    ensure!(done.state() == TaskState::Completed, "the task is {:?} instead of COMPLETED", done.state());
    Ok(())
}

async fn failure_is_a_state_of_the_task(run: &Run<'_>) -> Checked {
    let task = run.send(message("", &run.suite.messages.fail)).await?;
    ensure!(task.state() == TaskState::Failed, "the task is {:?} instead of FAILED", task.state());
    Ok(())
}

async fn message_to_terminal_task_is_rejected(run: &Run<'_>) -> Checked {
    let task = run.complete().await?;
    let sent = run.agent.send_message(request(message(&task.id, "more"))).await.map_err(Error::from);
    run.rejected("a message to a terminal task", sent, ErrorKind::UnsupportedOperation)
}

async fn stream_has_the_task_and_its_events(run: &Run<'_>) -> Checked {
    let sent = request(message("", &run.suite.messages.chunks));
    let events = optional(run.agent.send_streaming_message(sent).await.map_err(Error::from))?.into_inner();
    let events = remaining(events).await?;
    let Some(first) = events.first() else { return Err(Stop::Failed("the stream has no events".to_owned())) };
    ensure!(first.task().is_some() || run.is_v03(), "the first event is no task");
    let id = task_id(first);
    let foreign = events.iter().map(task_id).find(|other| *other != id);
    ensure!(foreign.is_none(), "an event has the task id `{}` instead of `{id}`", foreign.unwrap_or_default());
    let last = events.iter().rev().find_map(state);
    ensure!(last == Some(TaskState::Completed), "the last state is {last:?} instead of COMPLETED");
    let (streamed, task) = (fold(&events), run.get(id, None).await?);
    let streamed: String = streamed.iter().map(artifact_text).collect();
    ensure!(streamed == output(&task), "the chunks are `{streamed}`, but the artifacts are `{}`", output(&task));
    Ok(())
}

async fn subscription_begins_with_the_task_and_ends_with_it(run: &Run<'_>) -> Checked {
    let task = run.start().await?;
    let mut events = optional(run.subscribe(&task.id).await)?;
    if !run.is_v03() {
        let Some(first) = events.next().await.transpose()? else {
            return Err(Stop::Failed("the subscription has no events".to_owned()));
        };
        ensure!(first.task().is_some_and(|first| first.id == task.id), "the first event is not the task");
    }
    run.cancel(&task.id).await?;
    let last = remaining(events).await?.iter().rev().find_map(state);
    ensure!(last == Some(TaskState::Canceled), "the last state is {last:?} instead of CANCELED");
    Ok(())
}

async fn subscription_to_terminal_task_is_rejected(run: &Run<'_>) -> Checked {
    run.skip_v03("0.3 permits a subscription to a terminal task")?;
    let task = run.complete().await?;
    run.rejected("a subscription to a terminal task", run.subscribe(&task.id).await, ErrorKind::UnsupportedOperation)
}

async fn cancel_ends_the_task(run: &Run<'_>) -> Checked {
    let task = run.start().await?;
    run.cancel(&task.id).await?;
    // The cancel may be asynchronous.
    loop {
        let state = run.get(&task.id, None).await?.state();
        if state == TaskState::Canceled {
            return Ok(());
        }
        ensure!(!state.is_terminal(), "the task is {state:?} instead of CANCELED");
        #[expect(clippy::disallowed_methods, reason = "another server is polled")]
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn cancel_of_terminal_task_is_rejected(run: &Run<'_>) -> Checked {
    let task = run.complete().await?;
    run.rejected("a cancel of a terminal task", run.cancel(&task.id).await, ErrorKind::TaskNotCancelable)
}

async fn list_has_pages_and_filters(run: &Run<'_>) -> Checked {
    let first = run.complete().await?;
    let mut created = vec![first.id];
    for _ in 0..2 {
        let mut sent = message("", &run.suite.messages.complete);
        if let Some(message) = &mut sent.message {
            message.context_id.clone_from(&first.context_id);
        }
        created.push(run.send(sent).await?.id);
    }
    let context_id = first.context_id;
    let mut query = ListTasksRequest { page_size: Some(2), context_id, ..ListTasksRequest::default() };
    let mut listed = Vec::new();
    loop {
        let page = run.agent.list_tasks(request(query.clone())).await.map_err(Error::from);
        let page = if run.is_v03() { optional(page)? } else { page? }.into_inner();
        ensure!(page.tasks.len() <= 2, "a page has {} tasks instead of at most 2", page.tasks.len());
        listed.extend(page.tasks.into_iter().map(|task| task.id));
        if page.next_page_token.is_empty() || listed.len() > created.len() {
            break;
        }
        query.page_token = page.next_page_token;
    }
    created.sort_unstable();
    listed.sort_unstable();
    ensure!(listed == created, "the tasks {listed:?} are listed instead of {created:?}");
    Ok(())
}

async fn unknown_task_is_not_found(run: &Run<'_>) -> Checked {
    const UNKNOWN: &str = "no-such-task";
    run.rejected("a read of an unknown task", run.get(UNKNOWN, None).await, ErrorKind::TaskNotFound)?;
    run.rejected("a cancel of an unknown task", run.cancel(UNKNOWN).await, ErrorKind::TaskNotFound)?;
    let sent = run.agent.send_message(request(message(UNKNOWN, "hello"))).await.map_err(Error::from);
    run.rejected("a message to an unknown task", sent, ErrorKind::TaskNotFound)
}

async fn message_without_parts_is_rejected(run: &Run<'_>) -> Checked {
    let mut sent = message("", "");
    if let Some(message) = &mut sent.message {
        message.parts.clear();
    }
    let sent = run.agent.send_message(request(sent)).await.map_err(Error::from);
    run.rejected("a message without parts", sent, ErrorKind::InvalidParams)
}

async fn idempotency_key_identifies_a_send(run: &Run<'_>) -> Checked {
    let keyed = Call { idempotency_key: Some(Ids::default().random()), ..Call::default() };
    let sent = message("", &run.suite.messages.complete);
    let response = run.agent.send_message(keyed.clone().request(sent.clone())).await?;
    if !response.metadata().contains_key(IDEMPOTENCY_KEY.as_str()) {
        return Err(Stop::Skipped("the server does not return the idempotency key".to_owned()));
    }
    let repeated = run.agent.send_message(keyed.request(sent)).await?;
    let id = |response: tonic::Response<_>| match response.into_inner() {
        a2a_service::pb::v1::SendMessageResponse { payload: Some(send_message_response::Payload::Task(task)) } => {
            task.id
        }
        _ => String::new(),
    };
    let (first, second) = (id(response), id(repeated));
    ensure!(first == second, "the repeated send has the task `{second}` instead of `{first}`");
    Ok(())
}
