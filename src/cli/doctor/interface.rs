//! Checks of one interface of the card: the calls of a client, one after another.

use std::{cell::RefCell, collections::BTreeSet, time::Duration};

use http::{HeaderValue, Method, StatusCode, header};
use serde_json::json;
use tokio::time::{Instant, timeout_at};
use tokio_stream::StreamExt as _;
use url::Url;

use super::{Doctor, Finding, Outcome, card::FoundCard};
use crate::{
    base::{bounded_body::ResponseBody, clock::Millis, sources::Ids},
    cli::show::state,
    client::{Client, ClientBuilder, Interface, Retry},
    protocol::{
        call::{Binding, Call, VERSION},
        error::{Error, ErrorKind, chain},
        event::{Event, resume},
        json::wkt::millis,
        pb::v1::{
            AgentCard, AgentInterface, ListTasksRequest, Message, SendMessageConfiguration, SendMessageRequest,
            SubscribeToTaskRequest, Task, TaskState, send_message_response, stream_response::Payload,
        },
        version::Version,
    },
};

/// Origin of a page that no agent trusts.
const FOREIGN_ORIGIN: &str = "https://page.invalid";

/// Version of the protocol that no agent supports.
const UNKNOWN_VERSION: &str = "99.0";

/// Time between two events of the agent from which their arrival at the same moment shows a buffer in between.
const SPREAD: Duration = Duration::from_millis(500);

/// Maximum time between events that arrive at the same moment.
const SAME_MOMENT: Duration = Duration::from_millis(100);

/// Time that a task has to reach its end after a cancel.
const CANCEL: Duration = Duration::from_secs(3);

/// Maximum number of events of a stream.
const MAX_EVENTS: usize = 10_000;

/// Maximum number of messages of a listed task.
const MAX_LISTED: i32 = 10;

/// Maximum size of the response to a request of an unknown version, in bytes.
const MAX_RESPONSE: usize = 1 << 20;

/// Interface that is checked.
pub(super) struct Target<'a> {
    pub(super) declared: &'a AgentInterface,
    pub(super) found: &'a FoundCard,
    pub(super) builder: &'a ClientBuilder,
    pub(super) doctor: &'a Doctor,
}

/// Interface with a client for it.
pub(super) struct Session<'a> {
    pub(super) client: Client,
    pub(super) interface: Interface,
    pub(super) target: &'a Target<'a>,
    http: reqwest::Client,
    /// Ids of the messages that were sent, and of the task that each has made.
    sent: RefCell<Vec<(String, Option<String>)>>,
}

impl Target<'_> {
    /// The card with this interface alone.
    fn card(&self) -> AgentCard {
        AgentCard { supported_interfaces: vec![self.declared.clone()], ..self.found.card.clone() }
    }

    pub(super) fn session(&self) -> Result<Session<'_>, Error> {
        let builder = self.builder.clone().retry(Retry::never());
        let client = builder.with_card(self.card(), Some(self.found.url.as_str()))?;
        let interface = client.interface().cloned().ok_or_else(|| Error::internal("no interface"))?;
        let http = builder.diagnostic_http(&interface.url)?;
        Ok(Session { client, interface, target: self, http, sent: RefCell::default() })
    }
}

impl Session<'_> {
    /// Request for a task that does not exist, in the form of the binding. `None` for gRPC.
    fn probe(&self) -> Option<reqwest::RequestBuilder> {
        let Interface { binding, version, url, .. } = &self.interface;
        let id = Ids::default().random();
        let request = match binding {
            Binding::Rest => {
                let prefix = if *version == Version::V0_3 { "/v1" } else { "" };
                let mut url = Url::parse(url).ok()?;
                url.set_path(&format!("{}{prefix}/tasks/{id}", url.path().trim_end_matches('/')));
                self.http.get(url)
            }
            Binding::JsonRpc => {
                let method = if *version == Version::V0_3 { "tasks/get" } else { "GetTask" };
                let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"id": id}}).to_string();
                self.http.post(url).header(header::CONTENT_TYPE, "application/json").body(body)
            }
            Binding::Grpc | Binding::InProcess => return None,
        };
        let request = if *version == Version::V1_0 { request.header(VERSION, version.as_str()) } else { request };
        Some(request)
    }

    /// Checks that calls without credentials are rejected as the card says.
    pub(super) async fn authentication(&self) -> Outcome {
        let (kind, [rejection, challenge, denial, expected]) = if let Some(request) = self.probe() {
            let response = request.send().await.map_err(|error| Finding::skipped(chain(&error)))?;
            let kind = match response.status() {
                StatusCode::UNAUTHORIZED if !response.headers().contains_key(header::WWW_AUTHENTICATE) => {
                    let why = "a call without credentials gets 401 without WWW-Authenticate";
                    let remedy = "add WWW-Authenticate, which names the schemes (RFC 9110, 15.5.2)";
                    return Err(Finding::failed(why, remedy));
                }
                StatusCode::UNAUTHORIZED => ErrorKind::Unauthenticated,
                StatusCode::FORBIDDEN => ErrorKind::PermissionDenied,
                status if status.is_success() || status == StatusCode::NOT_FOUND => ErrorKind::TaskNotFound,
                status => {
                    let why = format!("no answer about credentials: HTTP {}", status.as_u16());
                    return Err(Finding::skipped(why));
                }
            };
            (kind, ["401", "401 with a challenge", "403", "401 and WWW-Authenticate"])
        } else {
            let builder = self.target.builder.clone().retry(Retry::never()).without_credentials();
            let result = match builder.with_card(self.target.card(), Some(self.target.found.url.as_str())) {
                Ok(client) => client.get(&Ids::default().random()).await,
                Err(error) => Err(error),
            };
            let kind = result.map_or_else(|error| error.kind(), |_| ErrorKind::TaskNotFound);
            (kind, ["UNAUTHENTICATED", "UNAUTHENTICATED", "PERMISSION_DENIED", "UNAUTHENTICATED"])
        };
        let requirements = &self.target.found.card.security_requirements;
        let is_required =
            !requirements.is_empty() && requirements.iter().all(|requirement| !requirement.schemes.is_empty());
        Ok(match (kind, is_required) {
            (ErrorKind::Unauthenticated, true) => Finding::ok(format!("calls without credentials get {challenge}")),
            (ErrorKind::Unauthenticated, false) => Finding::failed(
                format!("a call without credentials gets {rejection}, but the card requires none"),
                "declare the required credentials on the card (securitySchemes, securityRequirements)",
            ),
            (ErrorKind::PermissionDenied, _) => Finding::failed(
                format!("a call without credentials gets {denial}"),
                format!("reject it with {expected}, so that clients know that credentials are missing"),
            ),
            (ErrorKind::TaskNotFound, true) => Finding::failed(
                "calls without credentials are answered, but the card requires some",
                "reject calls without credentials, or remove the requirement from the card",
            ),
            (ErrorKind::TaskNotFound, false) => Finding::ok("no credentials are required"),
            (kind, _) => Finding::skipped(format!("no answer about credentials: {kind:?}")),
        })
    }

    /// Checks the answer to a call that changes nothing: a task that does not exist.
    pub(super) async fn call(&self) -> Outcome {
        let error = match self.client.get(&Ids::default().random()).await {
            Ok(task) => {
                let why = format!("a task that does not exist is answered with task {}", task.id);
                return Err(Finding::failed(why, "answer calls for unknown tasks with TaskNotFoundError"));
            }
            Err(error) => error,
        };
        let kind = error.kind();
        if kind == ErrorKind::TaskNotFound {
            return Ok(Finding::ok(&self.interface.url));
        }
        let is_rejected = matches!(kind, ErrorKind::Unauthenticated | ErrorKind::PermissionDenied);
        if is_rejected && !self.target.builder.has_credentials() {
            let why = "the agent needs credentials: give them with --token, --api-key, --auth or --header";
            return Err(Finding::skipped(why));
        }
        let remedy = if is_rejected {
            "give valid credentials, and check that proxies pass Authorization on"
        } else if kind == ErrorKind::VersionNotSupported {
            "serve this version of the protocol, or remove the interface from the card"
        } else if kind == ErrorKind::Unavailable {
            "correct the URL of the interface on the card, or start the server there"
        } else if matches!(kind, ErrorKind::MethodNotFound | ErrorKind::VerbNotAllowed) {
            "serve this binding at its URL, or remove the interface from the card"
        } else {
            "answer calls for unknown tasks with TaskNotFoundError, in the form of the binding"
        };
        Err(Finding::failed(error, remedy))
    }

    /// Checks that the version that a client requests reaches the agent (3.6.2).
    pub(super) async fn version(&self) -> Outcome {
        let request = self.probe().filter(|_| self.interface.version == Version::V1_0);
        let request = request.ok_or_else(|| Finding::skipped("0.3 has no version of requests"))?;
        let (client, request) = request.build_split();
        let mut request = request.map_err(|_| Finding::skipped("the URL is invalid"))?;
        request.headers_mut().extend(self.target.builder.headers().clone());
        request.headers_mut().insert(VERSION, HeaderValue::from_static(UNKNOWN_VERSION));
        let response = client.execute(request).await.map_err(|error| Finding::skipped(chain(&error)))?;
        if matches!(response.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            let why = "of all credentials, this check sends only headers, which the agent rejects";
            return Err(Finding::skipped(why));
        }
        let body = ResponseBody::of(response, MAX_RESPONSE).all().await.map_err(Finding::skipped)?;
        let body = String::from_utf8_lossy(&body);
        if body.contains("VERSION_NOT_SUPPORTED") || body.contains("-32009") {
            return Ok(Finding::ok("requests of unknown versions are rejected"));
        }
        let remedy = "let proxies pass A2A-Version on, and answer unknown versions with VersionNotSupportedError";
        Err(Finding::failed(format!("a request with A2A-Version: {UNKNOWN_VERSION} is not rejected"), remedy))
    }

    /// Checks that pages of other sites can't call the agent with the credentials of their visitors.
    pub(super) async fn cors(&self) -> Outcome {
        let preflight = self.http.request(Method::OPTIONS, &self.interface.url).header(header::ORIGIN, FOREIGN_ORIGIN);
        let preflight = preflight.header(header::ACCESS_CONTROL_REQUEST_METHOD, "POST");
        let preflight = preflight.header(header::ACCESS_CONTROL_REQUEST_HEADERS, "content-type");
        let response = preflight.send().await.map_err(|error| Finding::skipped(chain(&error)))?;
        let value = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        let origin = value(header::ACCESS_CONTROL_ALLOW_ORIGIN);
        if !origin.is_some_and(|origin| origin == "*" || origin == FOREIGN_ORIGIN) {
            return Ok(Finding::ok("pages of other sites are not allowed"));
        }
        Err(if value(header::ACCESS_CONTROL_ALLOW_CREDENTIALS) == Some("true") {
            Finding::failed(
                "each web page may call the agent with the credentials of its visitor",
                "allow only the origins of your own pages, or no credentials",
            )
        } else {
            Finding::warning("each web page may call the agent", "allow only the origins of your own pages")
        })
    }

    /// Checks that the extended card can be read.
    pub(super) async fn extended_card(&self) -> Outcome {
        let error = match self.client.extended_card().await {
            Ok(card) => return Ok(Finding::ok(format!("{} skills", card.skills.len()))),
            Err(error) => error,
        };
        let is_rejected = matches!(error.kind(), ErrorKind::Unauthenticated | ErrorKind::PermissionDenied);
        Ok(match (is_rejected, self.target.builder.has_credentials()) {
            (true, true) => Finding::warning(error, "give credentials that permit the extended card"),
            (true, false) => Finding::ok("needs credentials"),
            (false, _) => Finding::failed(
                error,
                "serve the extended card, or remove capabilities.extendedAgentCard from the card",
            ),
        })
    }

    /// Message of a check, with a task that is returned at once or when it waits or ends.
    pub(super) fn message(&self, configuration: SendMessageConfiguration) -> SendMessageRequest {
        let message_id = Ids::default().random();
        self.sent.borrow_mut().push((message_id.clone(), None));
        SendMessageRequest {
            message: Some(Message { message_id, ..Message::user(&self.target.doctor.message) }),
            configuration: Some(configuration),
            tenant: self.interface.tenant.clone(),
            ..SendMessageRequest::default()
        }
    }

    /// Records the task of the message that was sent last. The agent may name further ones, which may be of others.
    pub(super) fn record(&self, task_id: &str) {
        if let Some((_, task @ None)) = self.sent.borrow_mut().last_mut() {
            *task = Some(task_id.to_owned());
        }
    }

    /// Cancels the tasks that the checks have made, and deletes their push configurations.
    pub(super) async fn clean_up(&self, limit: Duration) -> Outcome {
        // The rest of the time is for the report.
        let deadline = Instant::now() + limit * 9 / 10;
        _ = timeout_at(deadline, self.find_tasks()).await;
        let (made, mut left) = (self.sent.take().into_iter().filter_map(|(_, task)| task), Vec::new());
        let made: BTreeSet<_> = made.collect();
        for id in &made {
            if timeout_at(deadline, self.end(id, &mut left)).await.is_err() {
                left.push(format!("task {id}, for which there was no time"));
            }
        }
        if !left.is_empty() {
            let remedy = "cancel these tasks with `a2a cancel`, or wait for the agent to end them";
            return Err(Finding::warning(format!("left at the agent: {}", left.join("; ")), remedy));
        }
        Ok(Finding::ok(format!("nothing runs; {} ended tasks stay listed", made.len())))
    }

    /// Cancels a task, and deletes its push configurations. `left` gets what remains.
    async fn end(&self, id: &str, left: &mut Vec<String>) {
        let push = self.client.push(id);
        for config in push.list().await.unwrap_or_default() {
            if let Err(error) = push.delete(&config.id).await {
                left.push(format!("the push configuration {} of task {id} ({error})", config.id));
            }
        }
        let found = match self.client.get(id).await {
            Ok(task) if !task.state().is_terminal() => self.client.cancel(id).await,
            found => found,
        };
        match found {
            Ok(task) if task.state().is_terminal() || self.end_of(id).await.is_some() => {}
            Ok(task) => left.push(format!("task {id}, which is {}", state(task.state()))),
            Err(error) if error.kind() == ErrorKind::TaskNotFound => {}
            Err(error) => left.push(format!("task {id} ({error})")),
        }
    }

    /// Finds tasks of messages whose answer was not awaited, if the agent lists tasks.
    async fn find_tasks(&self) {
        let request = ListTasksRequest { history_length: Some(MAX_LISTED), ..ListTasksRequest::default() };
        let Some(Ok(page)) = self.client.list_pages(request).next().await else { return };
        for (id, made) in self.sent.borrow_mut().iter_mut().filter(|(_, made)| made.is_none()) {
            let has_sent = |task: &&Task| task.history.iter().any(|message| message.message_id == *id);
            *made = page.tasks.iter().find(has_sent).map(|task| task.id.clone());
        }
    }

    /// Checks the answer to a message. `task` gets its task.
    pub(super) async fn send(&self, task: &mut Option<Task>) -> Outcome {
        let outcome = self.client.send(self.message(SendMessageConfiguration::default())).await;
        let outcome = outcome.map_err(|error| Finding::failed(error, "see the log of the agent"))?;
        *task = outcome.task().cloned();
        if let Some(task) = task {
            self.record(&task.id);
        }
        Ok(match outcome.task() {
            None => Finding::ok("answered with a message"),
            Some(task) if task.state().is_failure() => {
                let why = format!("the task is {}: {}", state(task.state()), outcome.error().unwrap_or_default());
                Finding::warning(why, "see the log of the agent, or send another text with --message")
            }
            Some(task) => Finding::ok(format!("the task is {}", state(task.state()))),
        })
    }

    /// Checks that a task is returned as it was sent.
    pub(super) async fn get(&self, sent: &Task) -> Outcome {
        let remedy = "store tasks, so that each instance of the agent has those of the others";
        let task = self.client.get(&sent.id).await.map_err(|error| Finding::failed(error, remedy))?;
        if task.id != sent.id || task.context_id != sent.context_id {
            return Err(Finding::failed(format!("another task is returned: {}", task.id), remedy));
        }
        Ok(Finding::ok(format!("the task is {}", state(task.state()))))
    }

    /// Checks that events arrive as they happen. `received` gets the events.
    pub(super) async fn stream(&self, received: &mut Vec<Event>) -> Outcome {
        let call = Call { extensions: vec![resume::URI.to_owned()], ..Call::default() };
        let request = call.request(self.message(SendMessageConfiguration::default()));
        let remedy = "answer streaming calls with events, or remove capabilities.streaming from the card";
        let failed = |status| Finding::failed(Error::from(status), remedy);
        let mut events = self.client.service().send_streaming_message(request).await.map_err(failed)?.into_inner();
        let mut times: Vec<(Instant, Option<Millis>)> = Vec::new();
        while let Some(event) = events.next().await {
            let event = event.map_err(failed)?;
            times.push((Instant::now(), made(&event)));
            if let Some(id) = event.task_id() {
                self.record(id);
            }
            received.push(event);
            if received.len() == MAX_EVENTS {
                let why = format!("more than {MAX_EVENTS} events");
                return Err(Finding::warning(why, "send another text with --message"));
            }
        }
        let Some(last) = received.last() else {
            return Err(Finding::failed("the stream has no events", remedy));
        };
        let status = last.payload().and_then(Payload::status);
        if last.message().is_none() && !status.is_some_and(|status| status.state().is_settled()) {
            let remedy = "end a stream with the state of its task; check the timeouts of proxies";
            return Err(Finding::failed("the stream ended before its task", remedy));
        }
        if is_buffered(&times) {
            let why = "all events arrived at the same moment, although they happened one after another";
            let remedy = "turn off buffering of responses in proxies, such as proxy_buffering in nginx";
            return Err(Finding::failed(why, remedy));
        }
        Ok(Finding::ok(format!("{} events", received.len())))
    }

    /// Checks that a stream can be resumed after its first event.
    pub(super) async fn resume(&self, events: &[Event]) -> Outcome {
        let (Some(first), Some(task)) = (events.first(), events.iter().find_map(|event| event.task_id())) else {
            return Err(Finding::skipped("the stream has no task"));
        };
        let cursor = first.cursor().cloned().ok_or_else(|| {
            Finding::skipped("events have no ids, so that an interrupted stream begins with the whole task again")
        })?;
        if events.len() < 2 {
            return Err(Finding::skipped("the stream has a single event"));
        }
        let failed = |why: String| {
            Finding::failed(why, "let proxies pass Last-Event-ID on, and continue after the event that it names")
        };
        let call = Call { cursor: Some(cursor), extensions: vec![resume::URI.to_owned()], ..Call::default() };
        let request = SubscribeToTaskRequest { id: task.to_owned(), tenant: self.interface.tenant.clone() };
        let resumed = self.client.service().subscribe_to_task(call.request(request)).await;
        let rejected = |status| failed(format!("the stream is not resumed: {}", Error::from(status)));
        let mut resumed = resumed.map_err(rejected)?.into_inner();
        for expected in &events[1..] {
            let found = resumed.next().await.ok_or_else(|| failed("the resumed stream lacks events".to_owned()))?;
            let found = found.map_err(|status| failed(Error::from(status).to_string()))?;
            if found.cursor() != expected.cursor() {
                let is_snapshot = |payload| resume::is_gap(payload) || matches!(payload, Payload::Task(_));
                let events = if found.payload().is_some_and(is_snapshot) {
                    "begins with the whole task again"
                } else {
                    "has other events"
                };
                return Err(failed(format!("the resumed stream {events}")));
            }
        }
        Ok(Finding::ok("continues after the last event"))
    }

    /// Checks that a cancel ends a task.
    pub(super) async fn cancel(&self) -> Outcome {
        let configuration = SendMessageConfiguration { return_immediately: true, ..Default::default() };
        let sent = self.client.service().send_message(Call::default().request(self.message(configuration))).await;
        let sent = sent.map_err(|status| Finding::failed(Error::from(status), "see the log of the agent"))?;
        let Some(send_message_response::Payload::Task(task)) = sent.into_inner().payload else {
            return Err(Finding::skipped("the agent answers with a message"));
        };
        self.record(&task.id);
        if task.state().is_terminal() {
            return Err(Finding::skipped("the task ended at once"));
        }
        let remedy = "stop the task, and answer with its state CANCELED or with TaskNotCancelableError";
        let failed = |error: Error| Finding::failed(error, remedy);
        let canceled = match self.client.cancel(&task.id).await {
            Err(error) if error.kind() == ErrorKind::TaskNotCancelable => {
                let task = self.client.get(&task.id).await.map_err(failed)?;
                let ended = || Finding::ok("the task ended before");
                return Ok(if task.state().is_terminal() { ended() } else { Finding::warning(error, remedy) });
            }
            canceled => canceled.map_err(failed)?,
        };
        if canceled.state().is_terminal() {
            return Ok(Finding::ok(format!("the task is {}", state(canceled.state()))));
        }
        match self.end_of(&task.id).await {
            Some(TaskState::Canceled) => Ok(Finding::ok("the task is canceled a while after the cancel")),
            Some(found) => {
                Err(Finding::failed(format!("the cancel has no effect: the task is {}", state(found)), remedy))
            }
            None => Err(Finding::failed(format!("the task is still {}", state(canceled.state())), remedy)),
        }
    }

    /// Waits for the end of a task that was canceled. Returns its terminal state.
    async fn end_of(&self, task_id: &str) -> Option<TaskState> {
        let deadline = Instant::now() + CANCEL;
        let mut interval = tokio::time::interval(Duration::from_millis(200));
        while Instant::now() < deadline {
            interval.tick().await;
            match self.client.get(task_id).await.map(|task| task.state()) {
                Ok(found) if found.is_terminal() => return Some(found),
                Ok(_) | Err(_) => {}
            }
        }
        None
    }
}

/// Time at which the agent made an event, if it says so.
fn made(event: &Event) -> Option<Millis> {
    event.payload()?.status()?.timestamp.as_ref().map(millis)
}

/// Returns true if events that were made at different times arrived at the same one.
fn is_buffered(times: &[(Instant, Option<Millis>)]) -> bool {
    let mut made = times.iter().filter_map(|(at, made)| Some((*at, (*made)?)));
    let (Some(first), Some(last)) = (made.next(), made.next_back()) else { return false };
    let spread = u64::try_from(last.1 - first.1).map_or(Duration::ZERO, Duration::from_millis);
    spread >= SPREAD && last.0.duration_since(first.0) < SAME_MOMENT
}
