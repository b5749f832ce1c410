//! Checks of one interface of the card: the calls of a client, one after another.

use std::time::Duration;

use http::{HeaderValue, Method, StatusCode, header};
use serde_json::json;
use tokio::time::Instant;
use tokio_stream::StreamExt as _;

use super::{Doctor, Finding, Report, Status, card::FoundCard, push};
use crate::{
    base::bounded_body::ResponseBody,
    call::{Binding, Call, VERSION},
    client::{Client, ClientBuilder, Interface, Retry},
    clock::{Millis, millis},
    env::Ids,
    error::{Error, ErrorKind, chain},
    event::{Event, resume},
    pb::v1::{
        AgentCard, AgentInterface, CancelTaskRequest, Message, SendMessageConfiguration, SendMessageRequest,
        SubscribeToTaskRequest, Task, TaskState, send_message_response, stream_response::Payload,
    },
    protocol::Version,
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
}

impl Target<'_> {
    /// Makes the checks of the interface.
    pub(super) async fn check(&self, report: &mut Report) -> anyhow::Result<()> {
        let name = format!("{} {}", self.declared.protocol_binding, self.declared.protocol_version);
        let session = match self.session() {
            Ok(session) => session,
            Err(error) if error.kind() == ErrorKind::UnsupportedOperation => {
                if self.doctor.agent.connection().selects_interfaces() {
                    return Ok(());
                }
                report.add(
                    name,
                    Finding::skipped(format!("not known to this program, or its URL is invalid: {error}")),
                )?;
                return Ok(());
            }
            Err(error) => {
                report.add(name, Finding::failed(error.to_string(), "correct the URL of the interface on the card"))?;
                return Ok(());
            }
        };
        let named = |check: &str| format!("{name}: {check}");
        report.check(named("authentication"), session.authentication()).await?;
        if report.check(named("call"), session.call()).await? != Status::Ok {
            return Ok(());
        }
        if session.interface.binding != Binding::Grpc {
            report.check(named("version"), session.version()).await?;
            report.check(named("cors"), session.cors()).await?;
        }
        let capabilities = self.found.card.capabilities.clone().unwrap_or_default();
        if capabilities.extended_agent_card.unwrap_or_default() {
            report.check(named("extended card"), session.extended_card()).await?;
        }
        if self.doctor.no_send {
            report.add(named("send"), Finding::skipped("--no-send"))?;
            return Ok(());
        }
        let mut task = None;
        if report.check(named("send"), session.send(&mut task)).await? == Status::Failed {
            return Ok(());
        }
        if let Some(task) = &task {
            report.check(named("get"), session.get(task)).await?;
        }
        if capabilities.streaming.unwrap_or_default() {
            let mut events = Vec::new();
            if report.check(named("stream"), session.stream(&mut events)).await? != Status::Failed {
                report.check(named("resume"), session.resume(&events)).await?;
            }
        }
        report.check(named("cancel"), session.cancel()).await?;
        if capabilities.push_notifications.unwrap_or_default() {
            report.check(named("push"), push::check(&session)).await?;
        }
        Ok(())
    }

    /// The card with this interface alone.
    fn card(&self) -> AgentCard {
        AgentCard { supported_interfaces: vec![self.declared.clone()], ..self.found.card.clone() }
    }

    fn session(&self) -> Result<Session<'_>, Error> {
        let builder = self.builder.clone().retry(Retry::never());
        let client = builder.with_card(self.card(), Some(self.found.url.as_str()))?;
        let interface = client.interface().cloned().ok_or_else(|| Error::internal("no interface"))?;
        let http = builder.diagnostic_http(&interface.url)?;
        Ok(Session { client, interface, target: self, http })
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
                self.http.get(format!("{}{prefix}/tasks/{id}", url.trim_end_matches('/')))
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
    async fn authentication(&self) -> Finding {
        let card = &self.target.found.card;
        let is_required = !card.security_requirements.is_empty()
            && card.security_requirements.iter().all(|requirement| !requirement.schemes.is_empty());
        let undeclared = "declare the required credentials on the card (securitySchemes, securityRequirements)";
        let open = "reject calls without credentials, or remove the requirement from the card";
        let Some(request) = self.probe() else {
            let builder = self.target.builder.clone().retry(Retry::never()).without_credentials();
            let client = builder.with_card(self.target.card(), Some(self.target.found.url.as_str()));
            let result = match client {
                Ok(client) => client.get(&Ids::default().random()).await,
                Err(error) => Err(error),
            };
            let kind = result.map_or_else(|error| error.kind(), |_| ErrorKind::TaskNotFound);
            return match (kind, is_required) {
                (ErrorKind::Unauthenticated, true) => Finding::ok("calls without credentials get UNAUTHENTICATED"),
                (ErrorKind::Unauthenticated, false) => Finding::failed(
                    "a call without credentials gets UNAUTHENTICATED, but the card requires none",
                    undeclared,
                ),
                (ErrorKind::PermissionDenied, _) => Finding::failed(
                    "a call without credentials gets PERMISSION_DENIED",
                    "reject it with UNAUTHENTICATED, so that clients know that credentials are missing",
                ),
                (ErrorKind::TaskNotFound, true) => {
                    Finding::failed("calls without credentials are answered, but the card requires some", open)
                }
                (ErrorKind::TaskNotFound, false) => Finding::ok("no credentials are required"),
                (kind, _) => Finding::skipped(format!("no answer about credentials: {kind:?}")),
            };
        };
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) => return Finding::skipped(chain(&error)),
        };
        let has_challenge = response.headers().contains_key(header::WWW_AUTHENTICATE);
        match (response.status(), is_required) {
            (StatusCode::UNAUTHORIZED, _) if !has_challenge => Finding::failed(
                "a call without credentials gets 401 without WWW-Authenticate",
                "add WWW-Authenticate, which names the schemes (RFC 9110, 15.5.2)",
            ),
            (StatusCode::UNAUTHORIZED, true) => Finding::ok("calls without credentials get 401 with a challenge"),
            (StatusCode::UNAUTHORIZED, false) => {
                Finding::failed("a call without credentials gets 401, but the card requires none", undeclared)
            }
            (StatusCode::FORBIDDEN, _) => Finding::failed(
                "a call without credentials gets 403",
                "reject it with 401 and WWW-Authenticate, so that clients know that credentials are missing",
            ),
            (status, true) if status.is_success() || status == StatusCode::NOT_FOUND => {
                Finding::failed("calls without credentials are answered, but the card requires some", open)
            }
            (status, false) if status.is_success() || status == StatusCode::NOT_FOUND => {
                Finding::ok("no credentials are required")
            }
            (status, _) => Finding::skipped(format!("no answer about credentials: HTTP {}", status.as_u16())),
        }
    }

    /// Checks the answer to a call that changes nothing: a task that does not exist.
    async fn call(&self) -> Finding {
        let error = match self.client.get(&Ids::default().random()).await {
            Ok(task) => {
                let why = format!("a task that does not exist is answered with task {}", task.id);
                return Finding::failed(why, "answer calls for unknown tasks with TaskNotFoundError");
            }
            Err(error) => error,
        };
        let has_credentials = self.target.builder.has_credentials();
        let kind = error.kind();
        if kind == ErrorKind::TaskNotFound {
            return Finding::ok(self.interface.url.clone());
        }
        let is_rejected = matches!(kind, ErrorKind::Unauthenticated | ErrorKind::PermissionDenied);
        if is_rejected && !has_credentials {
            return Finding::skipped(
                "the agent needs credentials: give them with --token, --api-key, --auth or --header",
            );
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
        Finding::failed(error.to_string(), remedy)
    }

    /// Checks that the version that a client requests reaches the agent (3.6.2).
    async fn version(&self) -> Finding {
        let Some(request) = self.probe().filter(|_| self.interface.version == Version::V1_0) else {
            return Finding::skipped("0.3 has no version of requests");
        };
        let (client, Ok(mut request)) = request.build_split() else {
            return Finding::skipped("the URL is invalid");
        };
        request.headers_mut().extend(self.target.builder.headers().clone());
        request.headers_mut().insert(VERSION, HeaderValue::from_static(UNKNOWN_VERSION));
        let body = match client.execute(request).await {
            Ok(response) if matches!(response.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
                return Finding::skipped("of all credentials, this check sends only headers, which the agent rejects");
            }
            Ok(response) => ResponseBody::of(response, MAX_RESPONSE).all().await,
            Err(error) => return Finding::skipped(chain(&error)),
        };
        let body = match body {
            Ok(body) => String::from_utf8_lossy(&body).into_owned(),
            Err(error) => return Finding::skipped(error.to_string()),
        };
        if body.contains("VERSION_NOT_SUPPORTED") || body.contains("-32009") {
            return Finding::ok("requests of unknown versions are rejected");
        }
        Finding::failed(
            format!("a request with A2A-Version: {UNKNOWN_VERSION} is not rejected"),
            "let proxies pass A2A-Version on, and answer unknown versions with VersionNotSupportedError",
        )
    }

    /// Checks that pages of other sites can't call the agent with the credentials of their visitors.
    async fn cors(&self) -> Finding {
        let preflight = self.http.request(Method::OPTIONS, &self.interface.url);
        let preflight = preflight.header(header::ORIGIN, FOREIGN_ORIGIN);
        let preflight = preflight.header(header::ACCESS_CONTROL_REQUEST_METHOD, "POST");
        let response = match preflight.header(header::ACCESS_CONTROL_REQUEST_HEADERS, "content-type").send().await {
            Ok(response) => response,
            Err(error) => return Finding::skipped(chain(&error)),
        };
        let value = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        let origin = value(header::ACCESS_CONTROL_ALLOW_ORIGIN);
        let allows_all = origin.is_some_and(|origin| origin == "*" || origin == FOREIGN_ORIGIN);
        let with_credentials = value(header::ACCESS_CONTROL_ALLOW_CREDENTIALS) == Some("true");
        match (allows_all, with_credentials) {
            (true, true) => Finding::failed(
                "each web page may call the agent with the credentials of its visitor",
                "allow only the origins of your own pages, or no credentials",
            ),
            (true, false) => {
                Finding::warning("each web page may call the agent", "allow only the origins of your own pages")
            }
            (false, _) => Finding::ok("pages of other sites are not allowed"),
        }
    }

    async fn extended_card(&self) -> Finding {
        match self.client.extended_card().await {
            Ok(card) => Finding::ok(format!("{} skills", card.skills.len())),
            Err(error) if matches!(error.kind(), ErrorKind::Unauthenticated | ErrorKind::PermissionDenied) => {
                if self.target.builder.has_credentials() {
                    Finding::warning(error.to_string(), "give credentials that permit the extended card")
                } else {
                    Finding::ok("needs credentials")
                }
            }
            Err(error) => Finding::failed(
                error.to_string(),
                "serve the extended card, or remove capabilities.extendedAgentCard from the card",
            ),
        }
    }

    /// Message of a check, with a task that is returned at once or when it waits or ends.
    pub(super) fn message(&self, configuration: SendMessageConfiguration) -> SendMessageRequest {
        SendMessageRequest {
            message: Some(Message {
                message_id: Ids::default().random(),
                ..Message::user(&self.target.doctor.message)
            }),
            configuration: Some(configuration),
            tenant: self.interface.tenant.clone(),
            ..SendMessageRequest::default()
        }
    }

    async fn send(&self, task: &mut Option<Task>) -> Finding {
        let outcome = match self.client.send(self.message(SendMessageConfiguration::default())).await {
            Ok(outcome) => outcome,
            Err(error) => return Finding::failed(error.to_string(), "see the log of the agent"),
        };
        *task = outcome.task().cloned();
        match outcome.task() {
            None => Finding::ok("answered with a message"),
            Some(task) if task.state().is_failure() => {
                let why = format!("the task is {}: {}", state(task.state()), outcome.error().unwrap_or_default());
                Finding::warning(why, "see the log of the agent, or send another text with --message")
            }
            Some(task) => Finding::ok(format!("the task is {}", state(task.state()))),
        }
    }

    async fn get(&self, sent: &Task) -> Finding {
        let remedy = "store tasks, so that each instance of the agent has those of the others";
        match self.client.get(&sent.id).await {
            Ok(task) if task.id == sent.id && task.context_id == sent.context_id => {
                Finding::ok(format!("the task is {}", state(task.state())))
            }
            Ok(task) => Finding::failed(format!("another task is returned: {}", task.id), remedy),
            Err(error) => Finding::failed(error.to_string(), remedy),
        }
    }

    /// Checks that events arrive as they happen. `received` gets the events.
    async fn stream(&self, received: &mut Vec<Event>) -> Finding {
        let call = Call { extensions: vec![resume::URI.to_owned()], ..Call::default() };
        let request = call.request(self.message(SendMessageConfiguration::default()));
        let remedy = "answer streaming calls with events, or remove capabilities.streaming from the card";
        let mut events = match self.client.service().send_streaming_message(request).await {
            Ok(events) => events.into_inner(),
            Err(status) => return Finding::failed(Error::from(status).to_string(), remedy),
        };
        let mut times: Vec<(Instant, Option<Millis>)> = Vec::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    times.push((Instant::now(), made(&event)));
                    received.push(event);
                }
                Err(status) => return Finding::failed(Error::from(status).to_string(), remedy),
            }
            if received.len() == MAX_EVENTS {
                return Finding::warning(format!("more than {MAX_EVENTS} events"), "send another text with --message");
            }
        }
        let Some(last) = received.last() else {
            return Finding::failed("the stream has no events", remedy);
        };
        let is_complete = match last.payload() {
            Some(Payload::Message(_)) => true,
            Some(Payload::Task(task)) => task.state().is_settled(),
            Some(Payload::StatusUpdate(update)) => {
                update.status.as_ref().is_some_and(|status| status.state().is_settled())
            }
            Some(Payload::ArtifactUpdate(_)) | None => false,
        };
        if !is_complete {
            let remedy = "end a stream with the state of its task; check the timeouts of proxies";
            return Finding::failed("the stream ended before its task", remedy);
        }
        if is_buffered(&times) {
            return Finding::failed(
                "all events arrived at the same moment, although they happened one after another",
                "turn off buffering of responses in proxies, such as proxy_buffering in nginx",
            );
        }
        Finding::ok(format!("{} events", received.len()))
    }

    /// Checks that a stream can be resumed after its first event.
    async fn resume(&self, events: &[Event]) -> Finding {
        let (Some(first), Some(task)) = (events.first(), events.iter().find_map(|event| event.task_id())) else {
            return Finding::skipped("the stream has no task");
        };
        let Some(cursor) = first.cursor().cloned() else {
            return Finding::skipped(
                "events have no ids, so that an interrupted stream begins with the whole task again",
            );
        };
        if events.len() < 2 {
            return Finding::skipped("the stream has a single event");
        }
        let remedy = "let proxies pass Last-Event-ID on, and continue after the event that it names";
        let call = Call { cursor: Some(cursor), extensions: vec![resume::URI.to_owned()], ..Call::default() };
        let request = SubscribeToTaskRequest { id: task.to_owned(), tenant: self.interface.tenant.clone() };
        let mut resumed = match self.client.service().subscribe_to_task(call.request(request)).await {
            Ok(resumed) => resumed.into_inner(),
            Err(status) => {
                let why = format!("the stream is not resumed: {}", Error::from(status));
                return Finding::failed(why, remedy);
            }
        };
        for expected in &events[1..] {
            let found = match resumed.next().await {
                Some(Ok(event)) => event,
                Some(Err(status)) => return Finding::failed(Error::from(status).to_string(), remedy),
                None => return Finding::failed("the resumed stream lacks events", remedy),
            };
            if found.cursor() != expected.cursor() {
                let why = if found.payload().is_some_and(resume::is_gap)
                    || matches!(found.payload(), Some(Payload::Task(_)))
                {
                    "the resumed stream begins with the whole task again"
                } else {
                    "the resumed stream has other events"
                };
                return Finding::failed(why, remedy);
            }
        }
        Finding::ok("continues after the last event")
    }

    async fn cancel(&self) -> Finding {
        let configuration = SendMessageConfiguration { return_immediately: true, ..Default::default() };
        let sent = self.client.service().send_message(Call::default().request(self.message(configuration))).await;
        let task = match sent.map(|response| response.into_inner().payload) {
            Ok(Some(send_message_response::Payload::Task(task))) => task,
            Ok(_) => return Finding::skipped("the agent answers with a message"),
            Err(status) => return Finding::failed(Error::from(status).to_string(), "see the log of the agent"),
        };
        if task.state().is_terminal() {
            return Finding::skipped("the task ended at once");
        }
        let remedy = "stop the task, and answer with its state CANCELED or with TaskNotCancelableError";
        let request = CancelTaskRequest { id: task.id.clone(), tenant: self.interface.tenant.clone(), metadata: None };
        let canceled = self.client.service().cancel_task(Call::default().request(request)).await.map_err(Error::from);
        let canceled = match canceled.and_then(|task| task.into_inner().into_task()) {
            Ok(task) => task,
            Err(error) if error.kind() == ErrorKind::TaskNotCancelable => {
                return match self.client.get(&task.id).await {
                    Ok(task) if task.state().is_terminal() => Finding::ok("the task ended before"),
                    Ok(_) => Finding::warning(error.to_string(), remedy),
                    Err(error) => Finding::failed(error.to_string(), remedy),
                };
            }
            Err(error) => return Finding::failed(error.to_string(), remedy),
        };
        if canceled.state().is_terminal() {
            return Finding::ok(format!("the task is {}", state(canceled.state())));
        }
        let deadline = Instant::now() + CANCEL;
        let mut interval = tokio::time::interval(Duration::from_millis(200));
        while Instant::now() < deadline {
            interval.tick().await;
            if let Ok(task) = self.client.get(&task.id).await
                && task.state().is_terminal()
            {
                if task.state() == TaskState::Canceled {
                    return Finding::ok("the task is canceled a while after the cancel");
                }
                let why = format!("the cancel has no effect: the task is {}", state(task.state()));
                return Finding::failed(why, remedy);
            }
        }
        Finding::failed(format!("the task is still {}", state(canceled.state())), remedy)
    }
}

fn state(state: TaskState) -> &'static str {
    crate::cli::show::state(state)
}

/// Time at which the agent made an event, if it says so.
fn made(event: &Event) -> Option<Millis> {
    let status = match event.payload()? {
        Payload::Task(task) => task.status.as_ref(),
        Payload::StatusUpdate(update) => update.status.as_ref(),
        Payload::Message(_) | Payload::ArtifactUpdate(_) => None,
    };
    status?.timestamp.as_ref().map(millis)
}

/// Returns true if events that were made at different times arrived at the same one.
fn is_buffered(times: &[(Instant, Option<Millis>)]) -> bool {
    let mut made = times.iter().filter_map(|(at, made)| Some((*at, (*made)?)));
    let (Some(first), Some(last)) = (made.next(), made.next_back()) else { return false };
    let spread = u64::try_from(last.1 - first.1).map_or(Duration::ZERO, Duration::from_millis);
    spread >= SPREAD && last.0.duration_since(first.0) < SAME_MOMENT
}
