//! Commands that call a remote agent: `send`, `stream`, `chat`, `get`, `list`, `cancel`, `subscribe`, `task`, `push` and
//! `discover`.
//!
//! Commands, flags and output are those of the official command line, with additions.

use std::{
    collections::HashMap,
    fs,
    io::{self, BufRead as _, IsTerminal as _, Read as _},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::Value;
use tokio::{runtime, sync::mpsc};
use tokio_stream::StreamExt as _;

use super::{
    Usage, read_file, say,
    show::{self, Format},
};
use crate::{
    call::Binding,
    client::{Client, Conversation, EventStream, StreamEvent},
    config,
    pb::v1::{ListTasksRequest, Message, Part, Role, SendMessageConfiguration, SendMessageRequest, TaskState},
    protocol::Version,
};

/// Maximum size of an attached file or of a message from a file, in bytes.
const MAX_FILE: usize = 64 << 20;

/// Options of all commands that call an agent: binding, version, credentials, time limit and output.
#[derive(Debug, Args)]
#[command(next_help_heading = "Connection")]
pub(super) struct Connection {
    /// Binding to use. Defaults to the first interface of the agent's card.
    #[arg(long, visible_alias = "transport", value_name = "BINDING")]
    binding: Option<BindingName>,
    /// Protocol version to use. Defaults to that of the first interface of the agent's card.
    #[arg(long, value_name = "VERSION")]
    protocol: Option<VersionName>,
    /// Bearer token. Other users of the machine can see arguments: prefer `A2A_CLIENT_TOKEN`.
    #[arg(long, env = config::CLIENT_TOKEN_VARIABLE, hide_env_values = true)]
    token: Option<String>,
    /// Value of the header `Authorization`, such as `Bearer TOKEN`. Takes precedence over `--token`.
    #[arg(long, value_name = "CREDENTIALS")]
    auth: Option<String>,
    /// Header of all requests. May be repeated.
    #[arg(long, value_name = "NAME: VALUE")]
    header: Vec<String>,
    /// Service parameter of all requests, which is a header. May be repeated.
    #[arg(long, value_name = "NAME=VALUE")]
    svc_param: Vec<String>,
    /// Sends credentials to interfaces of this origin too, if the card names it. May be repeated.
    #[arg(long, value_name = "URL")]
    trust_origin: Vec<String>,
    /// Tenant of all requests. Defaults to that of the interface.
    #[arg(long)]
    tenant: Option<String>,
    /// Time limit for a call with its retries, such as `30s`. Streams and `chat` have none unless this is given.
    #[arg(long, value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,
    /// Accepted for scripts of the official command line: gRPC without TLS. The scheme of the URL decides.
    #[arg(long, hide = true)]
    insecure: bool,
    /// PEM file with further TLS root certificates.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Output format.
    #[arg(short, long, default_value = "text")]
    output: Format,
    /// Prints the interface that is used to stderr.
    #[arg(short, long)]
    verbose: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum BindingName {
    Rest,
    Jsonrpc,
    Grpc,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum VersionName {
    #[value(name = "1.0", alias = "latest")]
    V1_0,
    #[value(name = "0.3")]
    V0_3,
}

/// Agent and options of a command.
#[derive(Debug, Args)]
pub(super) struct Agent {
    /// URL of the agent or of its card. `http://` is added for hosts of this machine, else `https://`.
    url: String,
    #[command(flatten)]
    connection: Connection,
}

/// Agent and task of a command.
#[derive(Debug, Args)]
pub(super) struct TaskOf {
    /// URL of the agent or of its card.
    url: String,
    /// Id of the task.
    task_id: String,
    #[command(flatten)]
    connection: Connection,
}

/// Arguments of `a2a send`.
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  a2a send localhost:8080 'Hello'
  a2a send localhost:8080 --stream 'Write a poem'
  echo 'Hello' | a2a send localhost:8080 -
  a2a send localhost:8080 --attach picture.png 'What is this?'
  a2a send localhost:8080 --task 42 'Yes, go on'")]
pub(super) struct Send {
    /// URL of the agent or of its card.
    url: String,
    /// Text of the message: `@FILE` reads a file, `-` reads stdin.
    message: Option<String>,
    /// Context to continue.
    #[arg(long, value_name = "ID")]
    context: Option<String>,
    /// Task to continue.
    #[arg(long, value_name = "ID")]
    task: Option<String>,
    /// File with a Message in JSON.
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["message", "json", "parts"])]
    file: Option<PathBuf>,
    /// Message in JSON.
    #[arg(long, value_name = "MESSAGE", conflicts_with_all = ["message", "parts"])]
    json: Option<String>,
    /// Array of parts in JSON.
    #[arg(long, value_name = "ARRAY", conflicts_with = "message")]
    parts: Option<String>,
    /// File to send as a part of the message. May be repeated.
    #[arg(long, value_name = "FILE")]
    attach: Vec<PathBuf>,
    /// Data to send as a part of the message: JSON, or `@FILE`. May be repeated.
    #[arg(long, value_name = "JSON")]
    data: Vec<String>,
    /// Maximum number of messages of the task's history in the answer.
    #[arg(long, value_name = "N")]
    history: Option<i32>,
    /// Returns at once, without waiting for the end of the turn.
    #[arg(long, visible_alias = "no-wait")]
    immediate: bool,
    /// Waits for the end of the turn. This is the default.
    #[arg(long, conflicts_with = "immediate")]
    wait: bool,
    /// Prints events as they happen.
    #[arg(long)]
    stream: bool,
    /// Exits with 6 if the task failed, was rejected or was canceled.
    #[arg(long)]
    exit_status: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Commands of `a2a get`.
#[derive(Debug, Subcommand)]
pub(super) enum Get {
    /// Prints a task.
    Task(GetTask),
    /// Prints the card of an agent.
    Card(Discover),
}

/// Arguments of `a2a get task`.
#[derive(Debug, Args)]
pub(super) struct GetTask {
    #[command(flatten)]
    task: TaskOf,
    /// Maximum number of messages of the history.
    #[arg(long, value_name = "N")]
    history: Option<i32>,
}

/// Arguments of `a2a discover`.
#[derive(Debug, Args)]
pub(super) struct Discover {
    #[command(flatten)]
    agent: Agent,
    /// Prints the extended card, which needs credentials.
    #[arg(long)]
    extended: bool,
}

/// Commands of `a2a list`.
#[derive(Debug, Subcommand)]
pub(super) enum List {
    /// Prints the tasks of the caller, the latest first.
    Tasks(ListTasks),
}

/// Arguments of `a2a list tasks`.
#[derive(Debug, Args)]
pub(super) struct ListTasks {
    #[command(flatten)]
    agent: Agent,
    /// Tasks of this context only.
    #[arg(long, value_name = "ID")]
    context: Option<String>,
    /// Tasks in this state only, such as `working`.
    #[arg(long, value_name = "STATE", value_parser = show::parse_state)]
    status: Option<TaskState>,
    /// Tasks that changed at or after this time (RFC 3339).
    #[arg(long, value_name = "TIME")]
    since: Option<jiff::Timestamp>,
    /// Maximum number of tasks of a page.
    #[arg(long, value_name = "N")]
    limit: Option<i32>,
    /// Token of the page, from the answer with the previous one.
    #[arg(long, value_name = "TOKEN")]
    page_token: Option<String>,
    /// Maximum number of messages of the history of each task.
    #[arg(long, value_name = "N")]
    history: Option<i32>,
    /// Includes artifacts.
    #[arg(long)]
    with_artifacts: bool,
    /// Reads all pages.
    #[arg(long, conflicts_with = "page_token")]
    all: bool,
}

/// Commands of `a2a task`.
#[derive(Debug, Subcommand)]
pub(super) enum Task {
    /// Prints a task.
    Get(GetTask),
    /// Prints the tasks of the caller, the latest first.
    List(ListTasks),
    /// Cancels a task.
    Cancel(TaskOf),
    /// Prints the events of a running task.
    #[command(alias = "subscribe")]
    Watch(TaskOf),
}

/// Commands of `a2a push`.
#[derive(Debug, Subcommand)]
pub(super) enum Push {
    /// Adds a push notification configuration to a task.
    Create(CreatePush),
    /// Prints the push notification configurations of a task.
    List(TaskOf),
    /// Prints a push notification configuration of a task.
    Get(PushOf),
    /// Deletes a push notification configuration of a task.
    Delete(PushOf),
}

/// Arguments of `a2a push create`.
#[derive(Debug, Args)]
pub(super) struct CreatePush {
    #[command(flatten)]
    task: TaskOf,
    /// URL that receives the notifications.
    #[arg(long, value_name = "URL")]
    webhook: String,
    /// Token that notifications have, so that the receiver can recognize them.
    #[arg(long, value_name = "TOKEN")]
    webhook_token: Option<String>,
    /// Id of the configuration. The agent chooses one by default.
    #[arg(long)]
    id: Option<String>,
}

/// Agent, task and configuration of a command.
#[derive(Debug, Args)]
pub(super) struct PushOf {
    #[command(flatten)]
    task: TaskOf,
    /// Id of the configuration.
    config_id: String,
}

/// Arguments of `a2a chat`.
#[derive(Debug, Args)]
pub(super) struct Chat {
    #[command(flatten)]
    agent: Agent,
    /// Context to continue.
    #[arg(long, value_name = "ID")]
    context: Option<String>,
    /// Task to continue.
    #[arg(long, value_name = "ID")]
    task: Option<String>,
}

/// A task that ended without success, for `--exit-status`.
#[derive(Debug, thiserror::Error)]
#[error("the task is {0}")]
pub(super) struct TaskFailed(&'static str);

impl Connection {
    /// Connects to the agent at a URL.
    async fn connect(&self, url: &str, limit: Option<Duration>) -> anyhow::Result<Client> {
        let mut builder = Client::builder();
        if let Some(token) = &self.token {
            builder = builder.bearer(token)?;
        }
        if let Some(credentials) = &self.auth {
            builder = builder.authorization(credentials)?;
        }
        let pair =
            |text: &str, separator| text.split_once(separator).map(|(a, b)| (a.trim().to_owned(), b.trim().to_owned()));
        for (headers, separator) in [(&self.header, ':'), (&self.svc_param, '=')] {
            for text in headers {
                let (name, value) =
                    pair(text, separator).ok_or_else(|| Usage(format!("`{text}`: expected NAME{separator}VALUE")))?;
                builder = builder.header(&name, &value)?;
            }
        }
        for origin in &self.trust_origin {
            builder = builder.trust_origin(origin)?;
        }
        if let Some(path) = &self.ca {
            let pem = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            builder = builder.roots(&pem)?;
        }
        if let Some(tenant) = &self.tenant {
            builder = builder.tenant(tenant);
        }
        if let Some(binding) = self.binding {
            builder = builder.binding(match binding {
                BindingName::Rest => Binding::Rest,
                BindingName::Jsonrpc => Binding::JsonRpc,
                BindingName::Grpc => Binding::Grpc,
            });
        }
        if let Some(version) = self.protocol {
            builder = builder.version(match version {
                VersionName::V1_0 => Version::V1_0,
                VersionName::V0_3 => Version::V0_3,
            });
        }
        if let Some(limit) = self.timeout.or(limit) {
            builder = builder.timeout(limit);
        }
        let client = builder.connect(url).await?;
        if let (true, Some(interface)) = (self.verbose, client.interface()) {
            super::report(&format!("{:?} {} at {}\n", interface.binding, interface.version.as_str(), interface.url));
        }
        Ok(client)
    }
}

/// Time limit of a call that does not wait for an agent.
const SHORT: Option<Duration> = Some(Duration::from_secs(30));

impl Agent {
    async fn connect(&self, limit: Option<Duration>) -> anyhow::Result<Client> {
        self.connection.connect(&self.url, limit).await
    }
}

impl TaskOf {
    async fn connect(&self, limit: Option<Duration>) -> anyhow::Result<Client> {
        self.connection.connect(&self.url, limit).await
    }
}

/// Runs a command on a runtime of its own.
fn block_on(command: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    runtime::Builder::new_current_thread().enable_all().build()?.block_on(command)
}

/// Runs `a2a send`, and `a2a stream` with `stream`.
pub(super) fn send(arguments: &Send, stream: bool) -> anyhow::Result<()> {
    let request = arguments.request()?;
    block_on(async {
        let client = arguments.connection.connect(&arguments.url, None).await?;
        let format = arguments.connection.output;
        let state = if stream || arguments.stream {
            print_events(client.stream(request).await?, format).await?
        } else {
            let outcome = client.send(request).await?;
            if let Some(task) = outcome.task() {
                say(&show::task(task, format)?);
            } else if let Some(message) = outcome.message() {
                say(&show::message(message, format)?);
            }
            outcome.state()
        };
        check_status(arguments.exit_status, state)
    })
}

fn check_status(is_checked: bool, state: TaskState) -> anyhow::Result<()> {
    if is_checked && state.is_failure() { Err(TaskFailed(show::state(state)).into()) } else { Ok(()) }
}

/// Prints events as they arrive. Returns the last state.
async fn print_events(mut events: EventStream, format: Format) -> anyhow::Result<TaskState> {
    let mut state = TaskState::Completed;
    // Only the first part of an artifact has to have its name.
    let mut names = HashMap::new();
    while let Some(event) = events.next().await {
        let mut event = event?;
        state = event.state().unwrap_or(state);
        if let (Format::Text, StreamEvent::Artifact(update)) = (format, &mut event)
            && let Some(artifact) = &mut update.artifact
        {
            let name = names.entry(artifact.artifact_id.clone()).or_insert_with(|| artifact.name.clone());
            artifact.name.clone_from(name);
        }
        say(&show::event(&event, format)?);
    }
    Ok(state)
}

impl Send {
    fn request(&self) -> anyhow::Result<SendMessageRequest> {
        let mut message = if let Some(path) = &self.file {
            parse_message(&read_text(path)?, &path.display().to_string())?
        } else if let Some(json) = &self.json {
            parse_message(json, "--json")?
        } else if let Some(parts) = &self.parts {
            let parts = serde_json::from_str(parts).map_err(|e| Usage(format!("--parts: {e}")))?;
            Message { parts, role: Role::User.into(), ..Message::default() }
        } else {
            let text = self.message.as_deref().map(text_argument).transpose()?;
            let parts = text.map(Part::text).into_iter().collect();
            Message { parts, role: Role::User.into(), ..Message::default() }
        };
        for path in &self.attach {
            message.parts.push(attachment(path)?);
        }
        for data in &self.data {
            let data: Value = serde_json::from_str(&text_argument(data)?).map_err(|e| Usage(format!("--data: {e}")))?;
            message.parts.push(Part::data(&data)?);
        }
        if message.parts.is_empty() {
            bail!(Usage("the message is empty: give a text, --attach, --data, --parts, --json or --file".to_owned()));
        }
        for (id, field) in [(&self.context, &mut message.context_id), (&self.task, &mut message.task_id)] {
            if let Some(id) = id {
                field.clone_from(id);
            }
        }
        let configuration = SendMessageConfiguration {
            history_length: self.history,
            return_immediately: self.immediate,
            ..SendMessageConfiguration::default()
        };
        let mut request = SendMessageRequest::from(message);
        request.configuration = Some(configuration);
        Ok(request)
    }
}

fn parse_message(json: &str, origin: &str) -> anyhow::Result<Message> {
    let mut message: Message = serde_json::from_str(json).map_err(|e| Usage(format!("{origin}: {e}")))?;
    if message.role() == Role::Unspecified {
        message.role = Role::User.into();
    }
    Ok(message)
}

/// Returns the text of an argument: itself, the contents of a file (`@FILE`), or stdin (`-`).
fn text_argument(argument: &str) -> anyhow::Result<String> {
    if argument == "-" {
        let mut text = String::new();
        io::stdin().lock().take(u64::try_from(MAX_FILE)?).read_to_string(&mut text).context("cannot read stdin")?;
        return Ok(text.trim_end_matches(['\r', '\n']).to_owned());
    }
    match argument.strip_prefix('@') {
        Some(path) => read_text(Path::new(path)),
        None => Ok(argument.to_owned()),
    }
}

fn read_text(path: &Path) -> anyhow::Result<String> {
    String::from_utf8(read_file(path, MAX_FILE)?).with_context(|| format!("{} is not UTF-8", path.display()))
}

/// Returns a file as a part, with a media type for its extension.
fn attachment(path: &Path) -> anyhow::Result<Part> {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let media_type = match extension.to_ascii_lowercase().as_str() {
        "txt" | "log" => "text/plain",
        "md" => "text/markdown",
        "html" | "htm" => "text/html",
        "csv" => "text/csv",
        "json" => "application/json",
        "pdf" => "application/pdf",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "svg" => "image/svg+xml",
        "mp3" => "audio/mpeg",
        "wav" => "audio/wav",
        "mp4" => "video/mp4",
        _ => "application/octet-stream",
    };
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(Part::bytes(read_file(path, MAX_FILE)?, media_type).named(name))
}

/// Runs an `a2a get` command.
pub(super) fn get(command: &Get) -> anyhow::Result<()> {
    match command {
        Get::Task(arguments) => get_task(arguments),
        Get::Card(arguments) => discover(arguments),
    }
}

fn get_task(arguments: &GetTask) -> anyhow::Result<()> {
    let GetTask { task, history } = arguments;
    block_on(async {
        let client = task.connect(SHORT).await?;
        let found = match history {
            Some(messages) => client.get_with_history(&task.task_id, *messages).await?,
            None => client.get(&task.task_id).await?,
        };
        say(&show::task(&found, task.connection.output)?);
        Ok(())
    })
}

/// Runs `a2a discover` and `a2a get card`.
pub(super) fn discover(arguments: &Discover) -> anyhow::Result<()> {
    let Discover { agent, extended } = arguments;
    block_on(async {
        let client = agent.connect(SHORT).await?;
        let card = if *extended { client.extended_card().await? } else { client.card() };
        say(&show::card(&card, agent.connection.output)?);
        Ok(())
    })
}

/// Runs an `a2a list` command.
pub(super) fn list(command: &List) -> anyhow::Result<()> {
    let List::Tasks(arguments) = command;
    list_tasks(arguments)
}

fn list_tasks(arguments: &ListTasks) -> anyhow::Result<()> {
    let format = arguments.agent.connection.output;
    block_on(async {
        let client = arguments.agent.connect(SHORT).await?;
        let mut request = ListTasksRequest {
            context_id: arguments.context.clone().unwrap_or_default(),
            page_size: arguments.limit,
            page_token: arguments.page_token.clone().unwrap_or_default(),
            history_length: arguments.history,
            status_timestamp_after: arguments.since.map(|time| crate::clock::timestamp(time.as_millisecond())),
            include_artifacts: Some(arguments.with_artifacts),
            ..ListTasksRequest::default()
        };
        request.set_status(arguments.status.unwrap_or_default());
        let count = if arguments.all { usize::MAX } else { 1 };
        let mut is_first = request.page_token.is_empty();
        let mut pages = client.list_pages(request).take(count);
        while let Some(page) = pages.next().await {
            say(&show::page(&page?, format, is_first)?);
            is_first = false;
        }
        Ok(())
    })
}

/// Runs `a2a cancel`.
pub(super) fn cancel(arguments: &TaskOf) -> anyhow::Result<()> {
    block_on(async {
        let task = arguments.connect(SHORT).await?.cancel(&arguments.task_id).await?;
        say(&show::task(&task, arguments.connection.output)?);
        Ok(())
    })
}

/// Runs `a2a subscribe`.
pub(super) fn subscribe(arguments: &TaskOf) -> anyhow::Result<()> {
    block_on(async {
        let events = arguments.connect(None).await?.subscribe(&arguments.task_id).await?;
        print_events(events, arguments.connection.output).await.map(drop)
    })
}

/// Runs an `a2a task` command.
pub(super) fn task(command: &Task) -> anyhow::Result<()> {
    match command {
        Task::Get(arguments) => get_task(arguments),
        Task::List(arguments) => list_tasks(arguments),
        Task::Cancel(arguments) => cancel(arguments),
        Task::Watch(arguments) => subscribe(arguments),
    }
}

/// Runs an `a2a push` command.
pub(super) fn push(command: &Push) -> anyhow::Result<()> {
    block_on(async {
        match command {
            Push::Create(CreatePush { task, webhook, webhook_token, id }) => {
                let mut config = crate::pb::v1::TaskPushNotificationConfig::from(webhook.as_str());
                config.token = webhook_token.clone().unwrap_or_default();
                config.id = id.clone().unwrap_or_default();
                let created = task.connect(SHORT).await?.push(&task.task_id).create(config).await?;
                say(&show::configs(std::slice::from_ref(&created), task.connection.output)?);
            }
            Push::List(task) => {
                let all = task.connect(SHORT).await?.push(&task.task_id).list().await?;
                say(&show::configs(&all, task.connection.output)?);
            }
            Push::Get(PushOf { task, config_id }) => {
                let found = task.connect(SHORT).await?.push(&task.task_id).get(config_id).await?;
                say(&show::configs(std::slice::from_ref(&found), task.connection.output)?);
            }
            Push::Delete(PushOf { task, config_id }) => {
                task.connect(SHORT).await?.push(&task.task_id).delete(config_id).await?;
            }
        }
        Ok(())
    })
}

/// Runs `a2a chat`: each line of stdin is a message. Ctrl-C cancels the task of the turn; a second one, or one between
/// turns, ends the program.
pub(super) fn chat(arguments: &Chat) -> anyhow::Result<()> {
    let is_terminal = io::stdin().is_terminal();
    block_on(async {
        let client = arguments.agent.connect(None).await?;
        let mut conversation = client.conversation();
        if let Some(id) = &arguments.context {
            conversation = conversation.with_context(id);
        }
        if let Some(id) = &arguments.task {
            conversation = conversation.with_task(id);
        }
        if is_terminal {
            super::report(&format!("{}: type a message, /attach FILE, /history, or /quit\n", client.card().name));
        }
        let mut lines = stdin_lines();
        let mut attached = Vec::new();
        loop {
            if is_terminal {
                super::report("> ");
            }
            let line = tokio::select! {
                line = lines.recv() => line,
                _ = tokio::signal::ctrl_c() => None,
            };
            let Some(line) = line else { return Ok(()) };
            match line.trim() {
                "" => {}
                "/quit" | "/exit" => return Ok(()),
                "/history" => print_history(&client, &conversation, arguments.agent.connection.output).await?,
                command if command.starts_with("/attach ") => {
                    match attachment(Path::new(command["/attach ".len()..].trim())) {
                        Ok(part) => attached.push(part),
                        Err(error) => super::print_error(&error),
                    }
                }
                text => {
                    let parts = std::iter::once(Part::text(text)).chain(attached.drain(..)).collect();
                    let message = Message { parts, role: Role::User.into(), ..Message::default() };
                    if let Err(error) =
                        turn(&client, &mut conversation, message, arguments.agent.connection.output).await
                    {
                        // A failed call does not end the conversation, unless it is not interactive.
                        if !is_terminal {
                            return Err(error);
                        }
                        super::print_error(&error);
                    }
                }
            }
        }
    })
}

/// Sends a message, and prints the answer as it arrives.
async fn turn(
    client: &Client,
    conversation: &mut Conversation,
    message: Message,
    format: Format,
) -> anyhow::Result<()> {
    let mut events = conversation.stream(message).await?;
    let mut task_id = conversation.task_id().to_owned();
    let mut is_canceled = false;
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            _ = tokio::signal::ctrl_c() => {
                if is_canceled || task_id.is_empty() {
                    bail!("interrupted");
                }
                is_canceled = true;
                client.cancel(&task_id).await?;
                continue;
            }
        };
        let Some(event) = event.transpose()? else { return Ok(()) };
        conversation.record(&event);
        if let StreamEvent::Task(task) = &event {
            task_id.clone_from(&task.id);
        }
        say(&show::answer(&event, format)?);
    }
}

async fn print_history(client: &Client, conversation: &Conversation, format: Format) -> anyhow::Result<()> {
    let request = ListTasksRequest {
        context_id: conversation.context_id().to_owned(),
        include_artifacts: Some(true),
        ..ListTasksRequest::default()
    };
    if request.context_id.is_empty() {
        return Ok(());
    }
    let mut tasks = client.list(request);
    while let Some(task) = tasks.next().await {
        say(&show::task(&task?, format)?);
    }
    Ok(())
}

/// Reads the lines of stdin on a thread of its own, because a read of a terminal cannot be canceled.
fn stdin_lines() -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    lines
}
