//! Agent that is another A2A agent: a gateway that serves an agent of either protocol version over all bindings, with its own
//! stored tasks, streams and push notifications.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::{runtime::Handle, time::timeout};
use tokio_stream::StreamExt as _;

use super::{Agent, AgentCard, End, Error, Message, Stopped, Task, Turn, Updates, waiting_message};
use crate::{
    base::{
        dependency::{Attempts, Dependency, OutboundResult},
        sources::Ids,
        trace::TraceScope,
    },
    client::{Client, EventStream, StreamEvent, is_in_unknown_state, outbound_result},
    engine::journal::LiveRef,
    protocol::{
        call::Call,
        error::{self, ErrorKind, without_sentence},
        event::resume,
        message::secret,
        pb::{
            v1::{
                AgentCapabilities, AgentExtension, Artifact, SendMessageConfiguration, SendMessageRequest,
                TaskArtifactUpdateEvent, TaskState, TaskStatus,
            },
            wkt::Struct,
        },
        rpc::brief,
    },
};

/// Member of the metadata of a status message after which events of the upstream agent may be missing.
pub const GAP: &str = "upstreamGap";

/// Time for which the end of a stream is awaited after `AUTH_REQUIRED`. If the stream goes on, the agent continues its turn by
/// itself once it is authorized (7.6.1).
const AUTH_WAIT: Duration = Duration::from_millis(100);

/// Maximum duration of the cancel of an upstream task after the end of its turn.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(10);

/// Agent that passes its messages to another A2A agent.
///
/// Each task has a task of the upstream agent. Its events are passed on, a cancel and further messages too. It is also canceled if
/// the task fails for another reason, such as a limit. After a restart, the events of a running upstream task are received again, so
/// that the task has its state and artifacts in the end.
///
/// The card has the extensions of the upstream agent, and calls name those that the caller requests. Calls to the upstream agent have
/// the [forwarded headers](Turn::forwarded_headers) of the caller. Enable
/// [`call_credentials`](crate::client::ClientBuilder::call_credentials) for a client whose callers have credentials.
///
/// ```no_run
/// use a2a_service::{adapter::Upstream, client::Client, server::Server};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let upstream = Client::connect("http://localhost:9000").await?;
/// Server::new(Upstream::new(upstream)).serve("127.0.0.1:8080").await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Upstream {
    client: Arc<RwLock<Client>>,
    dependency: Dependency,
}

debug_fields!(Upstream { client });

/// Ids of the upstream agent for a task, which are saved with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Link {
    task: String,
    context: String,
    /// Id of the last message that has reached the upstream agent.
    message: String,
}

impl Upstream {
    /// Creates the gateway of an agent. Its tasks are those of the client's credentials.
    pub fn new(client: Client) -> Self {
        let dependency =
            Dependency::new("upstream", "the upstream agent").at(client.interface().map_or("", |it| &it.url));
        // Without an interface, it is a service in this process.
        let has_interface = client.interface().is_some();
        let client = Arc::new(RwLock::new(client));
        let probed = Arc::clone(&client);
        let dependency =
            if has_interface { dependency.with_probe(false, move || probe(probed.read().clone())) } else { dependency };
        Self { client, dependency }
    }

    /// Records the result of another request to the agent, such as for its card.
    #[cfg(feature = "cli")]
    pub(crate) fn record<T>(&self, result: &Result<T, error::Error>) {
        let outcome = result.as_ref().err().map_or(OutboundResult::Ok, outbound_result);
        self.dependency.begin().fail(outcome, &result.as_ref().err().map(ToString::to_string).unwrap_or_default());
    }

    /// Replaces the client of further turns, such as by one with a newer card.
    pub fn set_client(&self, client: Client) {
        *self.client.write() = client;
    }
}

impl Agent for Upstream {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Error> {
        let message = turn.messages().next().map(|message| message.message_id.clone()).unwrap_or_default();
        // With the trace and the headers of the caller.
        let (trace, headers) = (turn.trace().map(str::to_owned), turn.forwarded_headers().cloned());
        let trace_state = turn.trace_state().map(str::to_owned);
        let client = self.client.read().clone().traced(&TraceScope::current().tracing);
        let mut extensions = extensions(&client.card());
        extensions.retain(|extension| turn.extensions().contains(&extension.uri));
        let extensions = extensions.into_iter().map(|extension| extension.uri).collect();
        let attempts = Attempts::new(self.dependency.clone(), false);
        let context =
            Call { extensions, trace, trace_state, headers, attempts: Some(Arc::clone(&attempts)), ..Call::default() };
        let upstream = UpstreamTask {
            client: client.with_context(context),
            live: turn.live.clone(),
            link: Mutex::new(turn.saved::<Link>()),
            is_over: AtomicBool::new(false),
        };
        let mut relay = Relay {
            out: &out,
            upstream: &upstream,
            message,
            task_metadata: None,
            is_follow_up: false,
            ends_with_turn: false,
            has_gap: false,
            may_repeat: false,
            unnamed: turn.task().artifacts.iter().filter(|it| it.artifact_id.starts_with(UNNAMED)).count(),
            authorization: None,
        };
        let work = async {
            let link = relay.link();
            let events = match &link {
                // An earlier attempt has delivered the message of this turn.
                Some(link) if turn.attempt() > 1 && link.message == relay.message => {
                    let task = upstream.client.get(&link.task).await.map_err(failure)?;
                    if task.state().is_settled() {
                        return relay.finish(task).await;
                    }
                    relay.subscribe(&task.id).await?
                }
                _ => {
                    (relay.is_follow_up, relay.ends_with_turn) = (link.is_some(), true);
                    Some(relay.open(&turn, link.as_ref()).await.map_err(failure)?)
                }
            };
            relay.run(events).await
        };
        {
            let mut work = pin!(work);
            let mut has_told = false;
            let end = loop {
                tokio::select! {
                    end = &mut work => break Some(end),
                    () = turn.canceled() => break None,
                    () = attempts.waiting(), if !has_told => {
                        has_told = true;
                        // Fails if the turn has ended meanwhile.
                        _ = out.progress(waiting_message(&self.dependency)?).await;
                    }
                }
            };
            match end {
                // An update that fails because of a cancel can end the work before the cancel itself is seen.
                Some(end) if end.is_ok() || !turn.is_canceled() => {
                    return end.map_err(|mut error| {
                        // Its task has to be known, so that it can be found and canceled.
                        if upstream.link.lock().is_some() {
                            error.take_refusal();
                        }
                        let is_open = self.dependency.state().is_open();
                        let is_refused = is_open && error.reason() == Some("unavailable");
                        if is_refused { error.because_of("breaker_open") } else { error }
                    });
                }
                None if !turn.is_canceled() => return Err(Stopped.into()),
                // The upstream task is known with its first event, which ends the work. The grace period limits the wait.
                None if upstream.link.lock().is_none() => drop(work.await),
                _ => {}
            }
        }
        let link = upstream.link.lock().clone();
        if let Some(link) = link {
            cancel(&upstream.client, &link.task, turn.task_id()).await;
            upstream.is_over.store(true, Ordering::Relaxed);
        }
        Err(Stopped.into())
    }

    fn card(&self) -> AgentCard {
        let card = self.client.read().card();
        AgentCard {
            name: card.name.clone(),
            description: card.description.clone(),
            version: card.version.clone(),
            provider: card.provider.clone(),
            icon_url: card.icon_url.clone(),
            documentation_url: card.documentation_url.clone(),
            default_input_modes: card.default_input_modes.clone(),
            default_output_modes: card.default_output_modes.clone(),
            skills: card.skills.clone(),
            capabilities: Some(AgentCapabilities { extensions: extensions(&card), ..AgentCapabilities::default() }),
            ..AgentCard::default()
        }
    }

    fn resumable(&self) -> bool {
        true
    }

    fn dependencies(&self) -> Vec<Dependency> {
        vec![self.dependency.clone()]
    }
}

/// Reads a task that does not exist, once. Any answer shows that the agent is there.
async fn probe(client: Client) -> OutboundResult {
    let attempts = Attempts::new(Dependency::new("upstream", ""), true);
    let client = client.with_context(Call { attempts: Some(attempts), ..Call::default() });
    match client.get(&Ids::default().random()).await {
        Ok(_) => OutboundResult::Ok,
        Err(error) => outbound_result(&error),
    }
}

/// Returns the extensions of an upstream agent that callers of the gateway can use: those of tasks and messages, not those between a
/// client and its server.
fn extensions(card: &AgentCard) -> Vec<AgentExtension> {
    let declared = card.capabilities.iter().flat_map(|capabilities| &capabilities.extensions);
    declared.filter(|extension| ![resume::URI, secret::URI].contains(&&*extension.uri)).cloned().collect()
}

/// Upstream task of a turn. If the turn ends before the upstream task does, such as by a time limit or an error, the upstream task
/// is canceled.
struct UpstreamTask {
    client: Client,
    /// Task of the turn.
    live: LiveRef,
    link: Mutex<Option<Link>>,
    /// The upstream task is terminal, waits for the client, or was canceled.
    is_over: AtomicBool,
}

impl Drop for UpstreamTask {
    fn drop(&mut self) {
        let link = self.link.get_mut().take().filter(|_| !*self.is_over.get_mut());
        let (Some(link), Ok(runtime)) = (link, Handle::try_current()) else { return };
        let (client, live) = (self.client.clone(), self.live.clone());
        runtime.spawn(async move {
            // A shutdown is not a cancel: the turn that it interrupts does not end, and its next attempt needs the upstream task.
            if live.wait_until_ended().await {
                let mut log = CancelLog { id: live.key.id().to_owned(), is_done: false };
                drop(live);
                cancel(&client, &link.task, &log.id).await;
                log.is_done = true;
            }
        });
    }
}

/// Logs that a shutdown has interrupted the cancel of an upstream task.
struct CancelLog {
    /// Id of the task of the gateway.
    id: String,
    is_done: bool,
}

impl Drop for CancelLog {
    fn drop(&mut self) {
        if !self.is_done {
            tracing::warn!(task.id = self.id, "upstream task not canceled: the server has stopped");
        }
    }
}

/// Cancels the upstream task of a task, and logs a failure.
async fn cancel(client: &Client, upstream_id: &str, id: &str) {
    const ENDED: [ErrorKind; 2] = [ErrorKind::TaskNotFound, ErrorKind::TaskNotCancelable];
    let canceled = timeout(CANCEL_TIMEOUT, client.cancel(upstream_id)).await;
    match canceled.unwrap_or_else(|_| Err(ErrorKind::DeadlineExceeded.error())) {
        Ok(_) => {}
        Err(error) if ENDED.contains(&error.kind()) => {}
        Err(error) => tracing::warn!(task.id = id, error.cause = %error, "upstream task not canceled"),
    }
}

/// Beginning of the id of an artifact to which the upstream agent gives none.
const UNNAMED: &str = "unnamed-";

/// Errors after which reading the upstream task would fail too.
const PERMANENT: [ErrorKind; 4] =
    [ErrorKind::Unavailable, ErrorKind::DeadlineExceeded, ErrorKind::Unauthenticated, ErrorKind::PermissionDenied];

/// Returns the failure of a task for an error of the upstream agent. The agent's texts are for its callers; errors of the connection
/// are for the log. A response that is none of the protocol fails the call, while there is no task.
fn failure(error: error::Error) -> Error {
    const TEXTS: [(ErrorKind, &str, &str); 5] = [
        (ErrorKind::TaskNotFound, "The upstream agent has lost the task.", "agent"),
        (ErrorKind::Unavailable, "The upstream agent can't be reached.", "unavailable"),
        (ErrorKind::DeadlineExceeded, "The upstream agent did not respond in time.", "unavailable"),
        (ErrorKind::Unauthenticated, "The upstream agent requires other credentials.", "credentials"),
        (ErrorKind::PermissionDenied, "The upstream agent requires other credentials.", "credentials"),
    ];
    let kind = error.kind();
    let text = error.to_string();
    let detail = brief(without_sentence(kind, &text));
    // An agent on the Python SDK that was restarted has no other error for its tasks while it starts.
    let has_lost = kind == ErrorKind::Internal && {
        let detail = detail.to_ascii_lowercase();
        detail.starts_with("task") && detail.trim_end_matches('.').ends_with("not found")
    };
    let known_as = if has_lost { ErrorKind::TaskNotFound } else { kind };
    if let Some((_, text, reason)) = TEXTS.into_iter().find(|(known, ..)| *known == known_as) {
        return Error::public(text).caused_by(error).because_of(reason);
    }
    if kind == ErrorKind::Internal {
        let detail = if detail.is_empty() { "no reason given" } else { &detail };
        return Error::public(format!("The upstream agent failed: {detail}")).caused_by(error);
    }
    // Without the method to send a message, the upstream is no agent.
    let reason = if kind == ErrorKind::MethodNotFound { brief(&text) } else { detail };
    if !matches!(kind, ErrorKind::InvalidAgentResponse | ErrorKind::MethodNotFound) {
        return Error::public(format!("The upstream agent rejected the message: {}", brief(&text))).caused_by(error);
    }
    let refusal = ErrorKind::InvalidAgentResponse.because(format!("of the upstream agent: {reason}"));
    Error::public(format!("The upstream agent sent an invalid response: {reason}.")).caused_by(error).refusing(refusal)
}

/// Receiver of the events of an upstream task, which sends them as updates of a task.
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
struct Relay<'a> {
    out: &'a Updates,
    upstream: &'a UpstreamTask,
    /// Id of the message of this turn.
    message: String,
    /// Metadata of the upstream task that was passed on.
    task_metadata: Option<Struct>,
    /// The next event is the first one after a message to an existing task. Some agents begin with the task as it was before the
    /// message.
    is_follow_up: bool,
    /// The stream ends with the upstream turn, unlike a subscription. So if it goes on after `AUTH_REQUIRED`, the turn does too.
    ends_with_turn: bool,
    /// Events are missing since the last snapshot of the task.
    has_gap: bool,
    /// A snapshot has replaced missing events. Some agents repeat events after it that it has already.
    may_repeat: bool,
    /// Number of artifacts without an id so far.
    unnamed: usize,
    /// Message of the status `AUTH_REQUIRED`, which is the last event so far and was not passed on.
    authorization: Option<Message>,
}

impl Relay<'_> {
    fn link(&self) -> Option<Link> {
        self.upstream.link.lock().clone()
    }

    /// Sends the messages of a turn, and returns the events of the upstream task.
    async fn open(&self, turn: &Turn, link: Option<&Link>) -> Result<EventStream, error::Error> {
        let mut messages = turn.messages();
        let mut message = messages.next().cloned().unwrap_or_default();
        for further in messages {
            message.parts.extend(further.parts.iter().cloned());
        }
        message.task_id = link.map(|link| link.task.clone()).unwrap_or_default();
        // A new upstream task gets the context of this one, so that tasks of a conversation share it.
        message.context_id = link.map_or_else(|| turn.context_id().to_owned(), |link| link.context.clone());
        message.reference_task_ids.clear();
        // A repeated attempt is recognized by an agent that supports keys.
        let key = format!("{}-{}", turn.task_id(), message.message_id);
        let configuration = SendMessageConfiguration {
            accepted_output_modes: turn.accepted_output_modes().to_vec(),
            // Without streams, the id of the task would be known only at the end of the turn.
            return_immediately: self.upstream.client.lacks_streams(),
            ..SendMessageConfiguration::default()
        };
        let request = SendMessageRequest {
            message: Some(message),
            configuration: Some(configuration),
            metadata: turn.metadata().cloned(),
            ..SendMessageRequest::default()
        };
        let call = Call { idempotency_key: Some(key), ..self.upstream.client.call() };
        self.upstream.client.with_context(call).stream(request).await
    }

    /// Subscribes to the upstream task. `None` if it has ended meanwhile, or the agent has no subscriptions.
    async fn subscribe(&mut self, task_id: &str) -> Result<Option<EventStream>, Error> {
        self.gap().await?;
        if self.upstream.client.lacks_streams() {
            return Ok(None);
        }
        match self.upstream.client.subscribe(task_id).await {
            Ok(events) => Ok(Some(events)),
            Err(error) if PERMANENT.contains(&error.kind()) => Err(failure(error)),
            Err(_) => Ok(None),
        }
    }

    /// Passes events on until the upstream turn ends. Without events, waits for its end.
    async fn run(&mut self, events: Option<EventStream>) -> Result<End, Error> {
        if let Some(mut events) = events {
            while let Some(event) = self.next(&mut events).await? {
                if let Some(end) = self.apply(event).await? {
                    return Ok(end);
                }
            }
        }
        if let Some(message) = self.authorization.take() {
            return Ok(End::auth_required(message));
        }
        // The stream ended before the turn.
        let Some(link) = self.link() else {
            let reason = "the stream has neither a task nor a message";
            return Err(failure(ErrorKind::InvalidAgentResponse.because(reason)));
        };
        // The turn has a time limit of its own. A state of a later version of the protocol is no end.
        let task = self.upstream.client.wait_in_unknown(&link.task, usize::MAX).await.map_err(failure)?;
        self.finish(task).await
    }

    /// Returns the next event. If the stream goes on after `AUTH_REQUIRED`, passes that on first.
    async fn next(&mut self, events: &mut EventStream) -> Result<Option<StreamEvent>, Error> {
        if self.authorization.is_some() {
            let event = timeout(AUTH_WAIT, events.next()).await;
            if matches!(event, Ok(None)) {
                return Ok(None);
            }
            if let Some(message) = self.authorization.take() {
                self.upstream.is_over.store(false, Ordering::Relaxed);
                self.out.auth_required(message).await?;
            }
            if let Ok(event) = event {
                return event.transpose().map_err(failure);
            }
        }
        match events.next().await {
            Some(Err(error)) if is_in_unknown_state(&error) => Ok(None),
            event => event.transpose().map_err(failure),
        }
    }

    async fn apply(&mut self, event: StreamEvent) -> Result<Option<End>, Error> {
        let is_first_of_follow_up = std::mem::take(&mut self.is_follow_up);
        match event {
            StreamEvent::Task(task) => {
                self.save_link(&task.id, &task.context_id).await?;
                if is_first_of_follow_up && task.state().is_interrupted() {
                    return Ok(None);
                }
                if task.state().is_settled() {
                    return self.finish(*task).await.map(Some);
                }
                let Task { status, artifacts, metadata, .. } = *task;
                self.replace_artifacts(artifacts).await?;
                self.may_repeat |= std::mem::take(&mut self.has_gap);
                let metadata = self.take_new(metadata);
                return self.status(status.as_ref(), metadata).await;
            }
            StreamEvent::Status(update) => {
                self.save_link(&update.task_id, &update.context_id).await?;
                let is_end = update.status.as_ref().is_some_and(|status| status.state().is_settled());
                if is_end
                    && (self.has_gap || self.may_repeat)
                    && let Some(link) = self.link()
                {
                    match self.upstream.client.get(&link.task).await {
                        Ok(task) if task.state().is_settled() => return self.finish(task).await.map(Some),
                        Err(error) if self.has_gap => return Err(failure(error)),
                        Ok(_) | Err(_) => {}
                    }
                }
                let end = self.status(update.status.as_ref(), passed_on(update.metadata)).await?;
                if let (Some(End::AuthRequired(message)), true) = (&end, self.ends_with_turn) {
                    self.authorization = Some(message.clone());
                    return Ok(None);
                }
                return Ok(end);
            }
            StreamEvent::Artifact(update) => {
                self.save_link(&update.task_id, &update.context_id).await?;
                self.chunk(*update).await?;
            }
            StreamEvent::Message(message) => return Ok(Some(End::reply(without_ids(*message)))),
            StreamEvent::Gap => self.gap().await?,
        }
        Ok(None)
    }

    /// Saves the ids of the upstream task, and that it has the message, before anything else of it is visible. Some agents leave
    /// them out of updates.
    async fn save_link(&self, task: &str, context: &str) -> Result<(), Error> {
        let link = Link { task: task.to_owned(), context: context.to_owned(), message: self.message.clone() };
        if task.is_empty() || self.upstream.link.lock().replace(link.clone()).as_ref() == Some(&link) {
            return Ok(());
        }
        self.out.save(&link).await
    }

    /// Marks that events of the upstream task may be missing before the next one.
    async fn gap(&mut self) -> Result<(), Error> {
        self.has_gap = true;
        let text = "The connection to the upstream agent was interrupted; updates may be missing.";
        Ok(self.out.progress(Message::agent(text).with_metadata(&json!({ GAP: true }))?).await?)
    }

    /// Returns the metadata of the upstream task if it was not passed on yet.
    fn take_new(&mut self, metadata: Option<Struct>) -> Option<Struct> {
        let new = passed_on(metadata).filter(|new| self.task_metadata.as_ref() != Some(new))?;
        self.task_metadata = Some(new.clone());
        Some(new)
    }

    /// Passes a status on. Returns the end of the turn for one that ends it. Its metadata precedes it then.
    async fn status(&self, status: Option<&TaskStatus>, metadata: Option<Struct>) -> Result<Option<End>, Error> {
        let message = status.and_then(|status| status.message.clone()).map(without_ids);
        let or = |text: &str| message.clone().unwrap_or_else(|| Message::agent(text));
        let state = status.map_or(TaskState::Unspecified, TaskStatus::state);
        self.upstream.is_over.store(state.is_settled(), Ordering::Relaxed);
        let with_metadata = metadata.map(|metadata| self.out.with_metadata(&metadata)).transpose()?;
        if state != TaskState::Working
            && let Some(out) = &with_metadata
        {
            out.working().await?;
        }
        Ok(Some(match state {
            TaskState::Unspecified | TaskState::Submitted => return Ok(None),
            TaskState::Working => {
                let out = with_metadata.as_ref().unwrap_or(self.out);
                match message {
                    Some(message) => out.progress(message).await?,
                    None => out.working().await?,
                }
                return Ok(None);
            }
            TaskState::Completed => End::Completed(message),
            TaskState::InputRequired => End::input_required(or("The agent needs input.")),
            TaskState::AuthRequired => End::auth_required(or("The agent needs an authorization.")),
            TaskState::Rejected => End::rejected(or("The agent rejected the task.")),
            TaskState::Failed => return Err(Error::public(or("The agent failed."))),
            TaskState::Canceled => return Err(Error::public(or("The upstream task was canceled."))),
        }))
    }

    /// Ends the turn with the state and the artifacts of an upstream task.
    async fn finish(&mut self, task: Task) -> Result<End, Error> {
        // Before the artifacts, of which one may exceed a limit.
        self.upstream.is_over.store(task.state().is_settled(), Ordering::Relaxed);
        let Task { status, artifacts, metadata, .. } = task;
        self.replace_artifacts(artifacts).await?;
        let metadata = self.take_new(metadata);
        let end = self.status(status.as_ref(), metadata).await?;
        end.ok_or_else(|| Error::public("The upstream agent ended the turn without a result."))
    }

    /// Sends the artifacts of a task as they are.
    async fn replace_artifacts(&mut self, artifacts: Vec<Artifact>) -> Result<(), Error> {
        self.unnamed = 0;
        for artifact in artifacts {
            self.chunk(TaskArtifactUpdateEvent { artifact: Some(artifact), ..Default::default() }).await?;
        }
        Ok(())
    }

    /// Sends a chunk of an artifact. One without an id gets that of its place among those of the task.
    async fn chunk(&mut self, mut chunk: TaskArtifactUpdateEvent) -> Result<(), Error> {
        chunk.metadata = passed_on(chunk.metadata);
        let Some(artifact) = &mut chunk.artifact else { return Ok(()) };
        if artifact.artifact_id.is_empty() {
            self.unnamed += usize::from(!chunk.append || self.unnamed == 0);
            artifact.artifact_id = format!("{UNNAMED}{}", self.unnamed);
        }
        let has_members = artifact.metadata.is_some() || !artifact.extensions.is_empty() || chunk.metadata.is_some();
        if !artifact.parts.is_empty() || (chunk.append && has_members) {
            self.out.chunk(chunk).await?;
        }
        Ok(())
    }
}

/// Returns metadata of the upstream agent without that of the stream itself.
fn passed_on(metadata: Option<Struct>) -> Option<Struct> {
    let mut metadata = metadata?;
    metadata.fields.retain(|name, _| !name.starts_with(resume::URI));
    (!metadata.fields.is_empty()).then_some(metadata)
}

/// Removes the ids of the upstream task from a message.
fn without_ids(message: Message) -> Message {
    Message { task_id: String::new(), context_id: String::new(), reference_task_ids: Vec::new(), ..message }
}
