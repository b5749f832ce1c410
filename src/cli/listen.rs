//! `a2a listen`: receives push notifications, prints them, and runs a command for each.

use std::{
    io::{self, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use axum::{
    Router,
    body::{Body, Bytes},
    response::{IntoResponse as _, Response},
};
use http::{HeaderMap, HeaderName, Method, Request, StatusCode, header};
use serde::Serialize;
use serde_json::{Map, Value, json, value::RawValue};
use tokio::{sync::Semaphore, task::spawn_blocking};
use tokio_util::sync::CancellationToken;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use url::Url;

use self::forward::Forward;
use super::{report, say, show::OutputFormat, time};
use crate::{
    base::{clock::Clock, credential::Credential, stderr::escaped},
    cli::{
        config,
        log::{self, LogFormat},
    },
    protocol::pb::v1::{Part, stream_response::Payload},
    server::{self, Signals},
    service::push::{Receiver, VerifiedNotification},
    transport::connection::listener::{self, ListenerSettings},
};

mod forward;

/// Maximum number of connections.
const CONNECTIONS: usize = 256;

/// Time for running commands to end after the first signal, or after the last notification.
const GRACE_PERIOD: Duration = Duration::from_secs(10);

/// Time for lines to be written to stdout when the program ends.
const OUTPUT_GRACE: Duration = Duration::from_secs(1);

/// Maximum length of the text of a message or an artifact in a line, in characters.
const MAX_TEXT: usize = 200;

/// Headers that are printed in JSON. None of them is a secret.
const PRINTED_HEADERS: [&str; 5] = ["content-type", "user-agent", "a2a-delivery-id", "webhook-id", "webhook-timestamp"];

/// Header that browsers send with requests of web pages.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Arguments of `a2a listen`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Listen {
    /// Port to listen on; 0 selects a free one.
    #[arg(long, default_value_t = 9000)]
    port: u16,
    /// IP address to listen on.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST), value_name = "ADDRESS")]
    host: IpAddr,
    /// Path of the URL that receives notifications.
    #[arg(long, default_value = "/")]
    path: String,
    /// Token of the push configuration, which notifications must have or be signed with. Other users of the machine can see
    /// arguments: prefer `--token-env`.
    #[arg(long, conflicts_with = "token_env", value_parser = token)]
    token: Option<Credential>,
    /// Environment variable with the token. `--forward` does not pass it on.
    #[arg(long, value_name = "VARIABLE")]
    token_env: Option<String>,
    /// URL of the public keys of the server, `/.well-known/jwks.json`: notifications must have a token signed by one of them.
    #[arg(long, value_name = "URL")]
    jwks: Option<String>,
    /// Issuer that a signed token must have.
    #[arg(long, requires = "jwks")]
    issuer: Option<String>,
    /// Audience that a signed token must have: the origin of the registered URL.
    #[arg(long, requires = "jwks")]
    audience: Option<String>,
    /// Command to run for each notification, with the body on stdin. Words are separated by spaces; quotes and backslashes
    /// work as in a shell, and nothing is expanded: `sh -c '…'` runs a shell. If it fails, the response is 500, and the server
    /// sends the notification again.
    #[arg(long, value_name = "COMMAND")]
    forward: Option<Forward>,
    /// Maximum number of commands at the same time. Notifications of one push configuration are never concurrent.
    #[arg(long, default_value = "4", value_name = "N", value_parser = positive)]
    concurrency: usize,
    /// Output format: `json` and `jsonl` are an object on a line for each notification. `--json` is `-o json`.
    #[arg(short, long, default_value = "text", value_name = "FORMAT")]
    output: OutputFormat,
    /// Exit after this number of notifications.
    #[arg(long, value_name = "N", value_parser = positive)]
    count: Option<usize>,
    /// Accept notifications from other machines without a token and without keys.
    #[arg(long)]
    insecure: bool,
}

/// Parses the secret token of a push configuration.
fn token(text: &str) -> Result<Credential, &'static str> {
    if text.is_empty() { Err("the token must not be empty") } else { Ok(text.into()) }
}

fn positive(text: &str) -> Result<usize, String> {
    let number: usize = text.parse().map_err(|_| "not a number".to_owned())?;
    if (1..=Semaphore::MAX_PERMITS).contains(&number) { Ok(number) } else { Err("out of range".to_owned()) }
}

impl Listen {
    fn prints_json(&self) -> bool {
        self.output != OutputFormat::Text
    }

    /// Returns the token of the command line or of the environment variable.
    fn token(&self) -> Result<Option<Credential>, config::Error> {
        let Some(name) = &self.token_env else { return Ok(self.token.clone()) };
        let value = std::env::var(name).map_err(|_| "the variable is not set, or not UTF-8");
        let token = value.and_then(|text| token(&text));
        token.map(Some).map_err(|why| config::Error::new(format!("--token-env: {name}: {why}")))
    }

    /// Returns the receiver, and whether it verifies notifications.
    fn receiver(&self, token: Option<&Credential>) -> Result<(Receiver, bool), config::Error> {
        let mut receiver = Receiver::new();
        if let Some(token) = token {
            receiver = receiver.token(&**token.latest());
        }
        if let Some(url) = &self.jwks {
            receiver = receiver.jwks_url(url).map_err(|error| config::Error::new(format!("--jwks: {error}")))?;
        }
        if let Some(issuer) = &self.issuer {
            receiver = receiver.issuer(issuer);
        }
        if let Some(audience) = &self.audience {
            receiver = receiver.audience(audience);
        }
        if token.is_some() || self.jwks.is_some() {
            return Ok((receiver, true));
        }
        let addr = SocketAddr::new(self.host, self.port);
        if server::is_public(addr) && !self.insecure {
            return Err(config::Error::new(format!(
                "{addr} is reachable from other machines and notifications are not verified; set --token-env or --jwks, \
                 listen on 127.0.0.1 or [::1], or accept all notifications with --insecure"
            )));
        }
        Ok((receiver.unauthenticated(), false))
    }

    /// Returns the path in the form in which requests have it.
    fn path(&self) -> Result<String, config::Error> {
        let url = Url::parse("http://127.0.0.1").and_then(|base| base.join(&self.path));
        let url = url.ok().filter(|url| {
            self.path.starts_with('/')
                && url.host_str() == Some("127.0.0.1")
                && url.query().or(url.fragment()).is_none()
        });
        let path = url.map(|url| url.path().to_owned());
        path.ok_or_else(|| config::Error::new(format!("--path: `{}` is not a path such as `/hook`", self.path)))
    }

    /// Returns the startup message: the URL, and what client and server need.
    fn banner(&self, addr: SocketAddr, path: &str, token: Option<&Credential>) -> String {
        let origin = format!("http://{addr}");
        // Clients need an address of this machine, which only they know.
        let origin = if self.host.is_unspecified() { format!("http://HOST:{}", addr.port()) } else { origin };
        let mut config = json!({ "url": format!("{origin}{path}") });
        if token.is_some() {
            config["token"] = "TOKEN".into();
        }
        if self.jwks.is_some() {
            config["authentication"] = json!({ "scheme": "Bearer" });
        }
        format!(
            "listening on http://{addr}{path}\n\
             register this push configuration for a task, or with a send: {config}\n\
             the server needs push.enabled = true and push.allow = [\"{origin}\"]: \
             a2a serve --push-enabled=true --push-allow={origin}\n"
        )
    }
}

/// Receives notifications until SIGINT or SIGTERM, or until `--count` is reached. Running commands have ten seconds to end.
pub(super) fn run(arguments: &Listen) -> anyhow::Result<()> {
    let token = arguments.token()?;
    let (receiver, is_verified) = arguments.receiver(token.as_ref())?;
    let path = arguments.path()?;
    log::init(LogFormat::default(), Targets::new().with_default(Level::WARN));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let addr = SocketAddr::new(arguments.host, arguments.port);
        let context = || format!("can't listen on {addr}; set another address with --host and --port");
        let bound = listener::bind(addr).await.with_context(context)?;
        let mut signals = Signals::listen();
        let banner = arguments.banner(bound.local_addr()?, &path, token.as_ref());
        // With JSON, stdout has nothing but notifications.
        if arguments.prints_json() {
            report(&banner);
        } else {
            say(&banner)?;
        }
        let stop = CancellationToken::new();
        let webhook = Arc::new(Webhook {
            receiver,
            path,
            is_verified,
            arguments: arguments.clone(),
            commands: Semaphore::new(arguments.concurrency),
            accepted: Semaphore::new(arguments.count.unwrap_or(Semaphore::MAX_PERMITS)),
            processed: AtomicUsize::new(0),
            clock: Clock::default(),
            stop: stop.clone(),
        });
        let router = Router::new().fallback(move |request| {
            let webhook = Arc::clone(&webhook);
            async move { webhook.respond(request).await }
        });
        let mut settings = ListenerSettings::default();
        (settings.connections, settings.grace_period) = (CONNECTIONS, GRACE_PERIOD);
        // A sender that disconnects will send again, so its command is to end.
        settings.half_close = Duration::ZERO;
        let signals = async {
            signals.next().await;
            stop.cancel();
            signals.next().await;
        };
        tokio::select! {
            all_ended = listener::serve(bound, router, &settings, &stop) => {
                ensure!(all_ended, "commands did not end in time and were killed");
                Ok(())
            }
            () = signals => bail!("stopped before all commands had ended"),
        }
    });
    // Does not wait for a reader of stdout that has stopped reading.
    runtime.shutdown_timeout(OUTPUT_GRACE);
    result
}

/// Webhook that prints and forwards notifications.
struct Webhook {
    receiver: Receiver,
    path: String,
    is_verified: bool,
    arguments: Listen,
    /// Permits of running commands.
    commands: Semaphore,
    /// Permits of further notifications.
    accepted: Semaphore,
    /// Number of notifications that were processed.
    processed: AtomicUsize,
    clock: Clock,
    stop: CancellationToken,
}

impl Webhook {
    async fn respond(&self, request: Request<Body>) -> Response {
        let headers = request.headers();
        // Web pages can make a browser send requests to this machine. Other programs do not set these headers.
        if headers.contains_key(header::ORIGIN) || headers.contains_key(SEC_FETCH_SITE) {
            return (StatusCode::FORBIDDEN, "requests of web pages are rejected").into_response();
        }
        if request.uri().path() != self.path {
            return StatusCode::NOT_FOUND.into_response();
        }
        if request.method() != Method::POST {
            return (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "POST")]).into_response();
        }
        let headers = printed(headers);
        let process = |received, body| self.process(received, body, headers);
        match self.receiver.respond(request, process).await {
            Ok(status) => status.into_response(),
            Err(rejection) => {
                // The receiver logs the other failures.
                if rejection.status() != StatusCode::INTERNAL_SERVER_ERROR {
                    let status = rejection.status().as_u16();
                    tracing::warn!(status, reason = %rejection, "push notification rejected");
                }
                rejection.into_response()
            }
        }
    }

    /// Prints and forwards a notification.
    async fn process(
        &self,
        received: VerifiedNotification,
        body: Bytes,
        headers: Map<String, Value>,
    ) -> Result<(), String> {
        let arguments = &self.arguments;
        let Ok(permit) = self.accepted.try_acquire() else {
            return Err("the program exits after the notifications of --count".to_owned());
        };
        let notification = Notification::new(&received, &body, self.is_verified);
        let time = time(self.clock.millis());
        let line = if arguments.prints_json() { notification.json(time, headers)? } else { notification.line(&time) };
        self.print(line).await?;
        if let Some(forward) = &arguments.forward {
            // Fair: commands start in the order of their notifications.
            let _running = self.commands.acquire().await.map_err(|error| error.to_string())?;
            forward.run(&notification, arguments.token_env.as_deref(), arguments.prints_json()).await?;
        }
        permit.forget();
        if self.processed.fetch_add(1, Ordering::Relaxed) + 1 == arguments.count.unwrap_or(usize::MAX) {
            self.stop.cancel();
        }
        Ok(())
    }

    /// Writes to stdout. A reader of stdout that has ended is a reason to stop.
    async fn print(&self, line: String) -> Result<(), String> {
        let write = move || {
            let mut out = io::stdout().lock();
            out.write_all(line.as_bytes()).and_then(|()| out.flush())
        };
        let written = spawn_blocking(write).await.map_err(|error| error.to_string())?;
        written.map_err(|error| {
            self.stop.cancel();
            format!("stdout: {error}")
        })
    }
}

/// Returns the headers that are printed.
fn printed(headers: &HeaderMap) -> Map<String, Value> {
    let header = |name: &str| Some((name.to_owned(), headers.get(name)?.to_str().ok()?.into()));
    PRINTED_HEADERS.into_iter().filter_map(header).collect()
}

/// Notification, and the members that are printed and passed to commands.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Notification<'a> {
    #[serde(rename = "verified")]
    is_verified: bool,
    delivery_id: Option<&'a str>,
    version: &'static str,
    task_id: &'a str,
    context_id: &'a str,
    /// Member of a `StreamResponse`.
    event: &'static str,
    /// State of the task, unless the notification has none.
    state: Option<&'static str>,
    /// Message or artifact.
    #[serde(skip)]
    parts: &'a [Part],
    #[serde(skip)]
    body: &'a [u8],
}

impl<'a> Notification<'a> {
    fn new(received: &'a VerifiedNotification, body: &'a [u8], is_verified: bool) -> Self {
        let payload = received.event.payload();
        let (task_id, status) = (payload.map_or("", Payload::task_id), payload.and_then(Payload::status));
        let state = status.map(|status| status.state().as_str_name());
        let message = status.and_then(|status| status.message.as_ref()).map_or(&[][..], |message| &message.parts);
        let (event, context_id, parts): (_, &str, &[Part]) = match payload {
            Some(Payload::Task(task)) => ("task", &task.context_id, message),
            Some(Payload::StatusUpdate(update)) => ("statusUpdate", &update.context_id, message),
            Some(Payload::ArtifactUpdate(update)) => {
                let parts = update.artifact.as_ref().map_or(&[][..], |artifact| &artifact.parts);
                ("artifactUpdate", &update.context_id, parts)
            }
            Some(Payload::Message(sent)) => ("message", &sent.context_id, &sent.parts),
            None => ("", "", &[]),
        };
        let (delivery_id, version) = (received.id.as_deref(), received.version.as_str());
        Self { is_verified, delivery_id, version, task_id, context_id, event, state, parts, body }
    }

    /// Formats a line of text: time, task, verification, event, state and content.
    fn line(&self, time: &str) -> String {
        let verified = if self.is_verified { "verified" } else { "not verified" };
        let mut text = format!("{time} {} {verified}: {}", self.task_id, self.event);
        if let Some(state) = self.state {
            text = format!("{text} {state}");
        }
        let mut content = self.parts.iter().map(Part::to_text).flat_map(|part| part.chars().collect::<Vec<_>>());
        let shown: String = content.by_ref().take(MAX_TEXT).collect();
        if !shown.is_empty() {
            text = format!("{text} \"{shown}{}\"", if content.next().is_some() { "…" } else { "" });
        }
        escaped(&text) + "\n"
    }

    /// Formats a line with a JSON object. The body is as it was received, except for line breaks.
    ///
    /// # Errors
    /// The body is not JSON.
    fn json(&self, time: String, headers: Map<String, Value>) -> Result<String, String> {
        // A string in JSON has no line breaks.
        let body = String::from_utf8_lossy(self.body).replace(['\n', '\r'], " ");
        let body: &RawValue = serde_json::from_str(&body).map_err(|error| error.to_string())?;
        let line = JsonLine { time, notification: self, headers, body };
        serde_json::to_string(&line).map(|line| line + "\n").map_err(|error| error.to_string())
    }
}

/// Line of the output in JSON.
#[derive(Serialize)]
struct JsonLine<'a> {
    /// Time at which the notification was received (RFC 3339).
    time: String,
    #[serde(flatten)]
    notification: &'a Notification<'a>,
    headers: Map<String, Value>,
    body: &'a RawValue,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{
        pb::v1::{Artifact, Message, Task, TaskArtifactUpdateEvent, TaskState, TaskStatus, TaskStatusUpdateEvent},
        version::Version,
    };

    fn arguments(flags: &[&str]) -> Listen {
        use clap::{Args as _, FromArgMatches as _};
        let command = Listen::augment_args(clap::Command::new("listen"));
        let matches = command.try_get_matches_from([&["listen"], flags].concat()).unwrap();
        Listen::from_arg_matches(&matches).unwrap()
    }

    #[test]
    fn unverified_notifications_of_other_machines_are_rejected() {
        let check = |flags: &[&str]| {
            let arguments = arguments(flags);
            let token = arguments.token()?;
            arguments.receiver(token.as_ref()).map(|(_, is_verified)| is_verified)
        };
        for host in ["0.0.0.0", "::", "192.168.1.2"] {
            let error = check(&["--host", host]).unwrap_err().to_string();
            assert!(error.contains("--token-env") && error.contains("--insecure"), "{error}");
            assert!(!check(&["--host", host, "--insecure"]).unwrap());
            assert!(check(&["--host", host, "--token", "t"]).unwrap());
            assert!(check(&["--host", host, "--jwks", "https://agent.example/.well-known/jwks.json"]).unwrap());
        }
        assert!(!check(&[]).unwrap());
        assert!(!check(&["--host", "::1"]).unwrap());
        let error = check(&["--token-env", "A2A_NO_SUCH_VARIABLE"]).unwrap_err().to_string();
        assert!(error.contains("A2A_NO_SUCH_VARIABLE"), "{error}");
        let error = check(&["--jwks", "ftp://agent.example"]).unwrap_err().to_string();
        assert!(error.starts_with("--jwks"), "{error}");
    }

    #[test]
    fn paths_have_the_form_of_requests() {
        for (path, expected) in
            [("/", "/"), ("/hook", "/hook"), ("/a b/", "/a%20b/"), ("/ä", "/%C3%A4"), ("/a/../b", "/b")]
        {
            assert_eq!(arguments(&["--path", path]).path().unwrap(), expected);
        }
        for path in ["", "hook", "//other.example/", "/hook?a=b", "/hook#a", "http://127.0.0.1/"] {
            assert!(arguments(&["--path", path]).path().is_err(), "{path}");
        }
    }

    #[test]
    fn banner_has_the_configuration_of_client_and_server() {
        let banner = |flags: &[&str], addr: &str, path: &str| {
            let arguments = arguments(flags);
            arguments.banner(addr.parse().unwrap(), path, arguments.token.as_ref())
        };
        let text = banner(&["--token", "secret"], "127.0.0.1:9000", "/hook");
        assert!(text.starts_with("listening on http://127.0.0.1:9000/hook\n"), "{text}");
        assert!(text.contains(r#"{"token":"TOKEN","url":"http://127.0.0.1:9000/hook"}"#), "{text}");
        assert!(text.contains(r#"push.allow = ["http://127.0.0.1:9000"]"#) && !text.contains("secret"), "{text}");
        let text = banner(&["--host", "::", "--jwks", "https://agent.example"], "[::]:1", "/");
        assert!(text.contains(r#"{"authentication":{"scheme":"Bearer"},"url":"http://HOST:1/"}"#), "{text}");
    }

    #[test]
    fn notifications_are_one_line() {
        let status = |text: &str| {
            Some(TaskStatus {
                message: Some(Message::agent(text)),
                state: TaskState::Working.into(),
                ..Default::default()
            })
        };
        let task = || "t\u{1b}[1m".to_owned();
        let artifact = Artifact { parts: vec![Part::text("a\nb"), Part::text("c")], ..Default::default() };
        let cases: [(Payload, &str); 4] = [
            (
                Payload::Task(Task { id: task(), status: status("1\u{202e}"), ..Default::default() }),
                r#"task TASK_STATE_WORKING "1\u{202e}""#,
            ),
            (
                Payload::StatusUpdate(TaskStatusUpdateEvent {
                    task_id: task(),
                    status: status(""),
                    ..Default::default()
                }),
                "statusUpdate TASK_STATE_WORKING",
            ),
            (
                Payload::ArtifactUpdate(TaskArtifactUpdateEvent {
                    task_id: task(),
                    artifact: Some(artifact),
                    ..Default::default()
                }),
                r#"artifactUpdate "a\nbc""#,
            ),
            (
                Payload::Message(Message { task_id: task(), ..Message::agent("x".repeat(1000)) }),
                &format!(r#"message "{}…""#, "x".repeat(200)),
            ),
        ];
        for (payload, expected) in cases {
            let response = crate::protocol::pb::v1::StreamResponse { payload: Some(payload) };
            let received =
                VerifiedNotification { id: Some("d".to_owned()), version: Version::V1_0, event: response.into() };
            let notification = Notification::new(&received, b"{\n\"big\": 12345678901234567890123}\r\n", true);
            assert_eq!(notification.line("now"), format!("now t\\u{{1b}}[1m verified: {expected}\n"));
            let line = notification.json("now".into(), Map::new()).unwrap();
            assert!(line.ends_with("}\n") && line.matches('\n').count() == 1, "{line}");
            assert!(line.contains(r#""body":{ "big": 12345678901234567890123}"#), "{line}");
            let line: Value = serde_json::from_str(&line).unwrap();
            assert_eq!((&line["deliveryId"], &line["taskId"]), (&json!("d"), &json!(task())));
        }
    }
}
