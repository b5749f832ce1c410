//! Commands that call a remote agent: `send`, `stream`, `get`, `list`, `cancel`, `subscribe`, `task`, `push` and `discover`.
//!
//! Commands, flags and output are those of the official command line, with additions.

use std::{
    fs::OpenOptions,
    io::{self, IsTerminal as _, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use clap::{ArgAction, Args, Subcommand};
use tokio_stream::StreamExt as _;

use super::{
    Usage,
    connection::{Agent, Connection, OUTPUT, SHORT, TaskOf, interruptible},
    failure::TaskFailed,
    message::MessageFlags,
    progress::Progress,
    report,
    save::{Files, Save},
    say,
    show::{self, EventLines, OutputFormat},
};
use crate::{
    client::{Client, EventStream, StreamEvent},
    protocol::{
        event::Cursor,
        pb::v1::{
            Artifact, ListTasksRequest, SendMessageConfiguration, SendMessageRequest, Task as A2aTask, TaskState,
            TaskStatus, send_message_response::Payload,
        },
    },
};

/// Heading of the flags that select what is waited for.
const TURN: &str = "Turn";

/// Heading of the flags that select tasks.
const SELECTION: &str = "Selection";

/// Heading of the flags with a push notification configuration.
const CONFIGURATION: &str = "Push notification configuration";

/// Arguments of `a2a send` and `a2a stream`.
#[derive(Debug, Args)]
pub(super) struct Send {
    /// URL of the agent or of its card.
    url: String,
    #[command(flatten)]
    message: MessageFlags,
    /// Returns at once, not at the end of the turn.
    #[arg(long, visible_alias = "no-wait", help_heading = TURN)]
    immediate: bool,
    /// Prints events as they happen.
    #[arg(long, help_heading = TURN)]
    stream: bool,
    /// Sends nothing, and continues an interrupted stream after the event with this cursor, which --verbose prints. Needs
    /// `a2a stream` or --stream.
    #[arg(long, value_name = "CURSOR", help_heading = TURN, hide_short_help = true)]
    resume: Option<String>,
    #[command(flatten)]
    exit_status: ExitStatus,
    /// Maximum number of messages of the task's history in the answer.
    #[arg(long, value_name = "N", help_heading = OUTPUT)]
    history: Option<i32>,
    #[command(flatten)]
    save: Save,
    #[command(flatten)]
    connection: Connection,
}

/// Flag of the commands that wait for the end of a turn.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct ExitStatus {
    /// Exits with 1 if the task failed, was rejected or was canceled; with `--exit-status=false`, with 0.
    #[arg(
        long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1,
        require_equals = true, action = ArgAction::Set, hide_default_value = true, hide_possible_values = true,
        help_heading = TURN
    )]
    exit_status: bool,
}

impl ExitStatus {
    /// Returns an error for a turn without success.
    pub(super) fn check(self, state: TaskState) -> anyhow::Result<()> {
        if self.exit_status && state.is_failure() { Err(TaskFailed(state).into()) } else { Ok(()) }
    }
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
    #[arg(long, value_name = "N", help_heading = OUTPUT)]
    history: Option<i32>,
    #[command(flatten)]
    save: Save,
}

/// Arguments of `a2a discover`.
#[derive(Debug, Args)]
pub(super) struct Discover {
    #[command(flatten)]
    agent: Agent,
    /// Prints the extended card, which needs credentials.
    #[arg(long, help_heading = SELECTION)]
    extended: bool,
    /// Prints the agents of a catalog: the JSON document at the URL, or that of `/.well-known/ai-catalog.json`,
    /// `/.well-known/agents.json` or `/agents` below it.
    #[arg(long, conflicts_with_all = ["extended", "output_file"], help_heading = SELECTION)]
    catalog: bool,
    /// Writes the card to this file instead, in JSON: as the agent serves it, with its signatures. The extended card in the form
    /// of 1.0.
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    output_file: Option<PathBuf>,
    /// Overwrites an existing file.
    #[arg(long, requires = "output_file", help_heading = OUTPUT, hide_short_help = true)]
    force: bool,
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
    #[arg(long, value_name = "ID", help_heading = SELECTION)]
    context: Option<String>,
    /// Tasks in this state only, such as `working`.
    #[arg(long, value_name = "STATE", value_parser = show::parse_state, help_heading = SELECTION)]
    status: Option<TaskState>,
    /// Tasks that changed at or after this time (RFC 3339).
    #[arg(long, value_name = "TIME", help_heading = SELECTION)]
    since: Option<jiff::Timestamp>,
    /// Maximum number of tasks of a page.
    #[arg(long, value_name = "N", help_heading = SELECTION)]
    limit: Option<i32>,
    /// Token of the page, from the answer with the previous one.
    #[arg(long, value_name = "TOKEN", help_heading = SELECTION)]
    page_token: Option<String>,
    /// Maximum number of messages of the history of each task.
    #[arg(long, value_name = "N", help_heading = OUTPUT)]
    history: Option<i32>,
    /// Includes artifacts.
    #[arg(long, help_heading = OUTPUT)]
    with_artifacts: bool,
    /// Reads all pages.
    #[arg(long, conflicts_with = "page_token", help_heading = SELECTION)]
    all: bool,
}

/// Arguments of `a2a subscribe`.
#[derive(Debug, Args)]
pub(super) struct Subscribe {
    #[command(flatten)]
    task: TaskOf,
    /// Continues after the event with this cursor, which --verbose prints. Without it, events are those from now on.
    #[arg(long, value_name = "CURSOR", help_heading = TURN)]
    resume: Option<String>,
    #[command(flatten)]
    exit_status: ExitStatus,
    #[command(flatten)]
    save: Save,
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
    Watch(Subscribe),
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
    #[arg(long, value_name = "URL", help_heading = CONFIGURATION)]
    webhook: String,
    /// Token that notifications have, so that the receiver can recognize them.
    #[arg(long, value_name = "TOKEN", help_heading = CONFIGURATION)]
    webhook_token: Option<String>,
    /// Id of the configuration. The agent chooses one by default.
    #[arg(long, help_heading = CONFIGURATION)]
    id: Option<String>,
}

/// Agent, task and configuration of a command.
#[derive(Debug, Args)]
pub(super) struct PushOf {
    #[command(flatten)]
    task: TaskOf,
    /// Id of the configuration.
    #[arg(value_name = "CONFIG")]
    config_id: String,
}

/// Runs `a2a send`, and `a2a stream` with `stream`.
pub(super) async fn send(arguments: &Send, stream: bool) -> anyhow::Result<()> {
    let Send { url, message, connection, save, .. } = arguments;
    let format = connection.output;
    let is_stream = stream || arguments.stream;
    if let Some(cursor) = &arguments.resume {
        if !is_stream {
            bail!(Usage("--resume continues a stream: use `a2a stream`, or add --stream".to_owned()));
        }
        if !message.is_empty() {
            bail!(Usage("--resume sends nothing: remove the message".to_owned()));
        }
        let why = "--resume: the cursor does not name its task; use `a2a subscribe URL TASK --resume CURSOR`";
        let foreign = || Usage(why.to_owned());
        let parsed = Cursor::from_text(cursor).ok_or_else(foreign)?;
        let (task_id, _) = parsed.parts().ok_or_else(foreign)?;
        let state = resume(url, task_id, cursor, connection, save.open()?).await?;
        return arguments.exit_status.check(state);
    }
    let request = message.request(SendMessageConfiguration {
        history_length: arguments.history,
        return_immediately: arguments.immediate,
        ..SendMessageConfiguration::default()
    })?;
    let mut files = save.open()?;
    let client = connection.connect(url, None).await?;
    if is_stream {
        let state = print_events(client.stream(request).await?, (url, connection), files, &[]).await?;
        return arguments.exit_status.check(state.unwrap_or_default());
    }
    let progress = (connection.shows_progress() && !arguments.immediate).then(Progress::start).flatten();
    let answer = match progress {
        Some(progress) => {
            let mut running = String::new();
            let sent = send_with_progress(&client, request, arguments.history, progress, &mut running);
            let sent = Box::pin(interruptible(sent)).await.map_err(anyhow::Error::from).flatten();
            if let (Err(_), false) = (&sent, running.is_empty()) {
                let command = connection.next_command(&["subscribe", url, &running], &[]);
                report(&format!("The task goes on: {command}\n"));
            }
            sent?
        }
        None => client.send(request).await.map_err(|error| connection.unfinished(error, url, ""))?.into_raw().payload,
    };
    let state = match &answer {
        Some(Payload::Task(task)) => {
            say(&show::task(task, format)?)?;
            report_cause(task.status.as_ref(), format);
            files.as_mut().map(|files| files.add_task(task)).transpose()?;
            if task.state() == TaskState::InputRequired && io::stderr().is_terminal() {
                let command = connection.next_command(&["send", url], &[("--task", &task.id)]);
                report(&format!("Answer with: {command} \"...\"\n"));
            }
            task.state()
        }
        Some(Payload::Message(message)) => {
            say(&show::message(message, format)?)?;
            files.as_mut().map(|files| files.add_message(message)).transpose()?;
            TaskState::Completed
        }
        None => TaskState::Completed,
    };
    files.map(|files| files.write(format)).transpose()?;
    arguments.exit_status.check(state)
}

/// Prints where the cause of a failed task is, if its message has only an error id.
fn report_cause(status: Option<&TaskStatus>, format: OutputFormat) {
    let message = status.filter(|status| status.state().is_failure()).and_then(|status| status.message.as_ref());
    if format == OutputFormat::Text && message.is_some_and(|message| message.text().contains(": error id ")) {
        report("-> the log of the server has the cause under this id\n");
    }
}

/// Sends a message, and shows the state of its task until the turn ends. `running` is the id of the task while it runs. The agent
/// is asked for a stream, because a plain send tells nothing before its end.
async fn send_with_progress(
    client: &Client,
    request: SendMessageRequest,
    history: Option<i32>,
    mut progress: Progress,
    running: &mut String,
) -> anyhow::Result<Option<Payload>> {
    let mut events = progress.during(client.stream(request)).await?;
    let (mut task_id, mut task) = (String::new(), None);
    while let Some(event) = progress.during(events.next()).await {
        let event = event?;
        progress.record(&event);
        let is_running = event.state().is_none_or(|state| !state.is_settled());
        if let Some((_, id)) = event.ids() {
            id.clone_into(&mut task_id);
        }
        task = match event {
            StreamEvent::Message(message) => return Ok(Some(Payload::Message(*message))),
            StreamEvent::Task(found) => Some(*found),
            StreamEvent::Status(_) | StreamEvent::Artifact(_) | StreamEvent::Gap => None,
        };
        if is_running { running.clone_from(&task_id) } else { running.clear() }
    }
    if task.is_none() && !task_id.is_empty() {
        task = Some(progress.during(find_task(client, &task_id, history)).await?);
    }
    Ok(task.map(Payload::Task))
}

async fn find_task(client: &Client, id: &str, history: Option<i32>) -> anyhow::Result<A2aTask> {
    Ok(match history {
        Some(messages) => client.get_with_history(id, messages).await?,
        None => client.get(id).await?,
    })
}

/// Prints events as they arrive, and then writes the files. `known` are artifacts whose first parts were received earlier.
/// Returns the last state, if an event had one.
async fn print_events(
    mut events: EventStream,
    (url, connection): (&str, &Connection),
    mut files: Option<Files>,
    known: &[Artifact],
) -> anyhow::Result<Option<TaskState>> {
    let format = connection.output;
    let printed = async {
        let (mut state, mut task_id, mut lines) = (None, String::new(), EventLines::after(known));
        while let Some(event) = events.next().await {
            let event = match event {
                Ok(event) => event,
                Err(error) => {
                    say(lines.chunks.end())?;
                    return Err(connection.unfinished(error, url, &task_id));
                }
            };
            task_id = event.ids().map_or(task_id, |(_, id)| id.to_owned());
            state = event.state().or(state);
            files.as_mut().map(|files| files.add_event(&event)).transpose()?;
            say(&lines.event(&event, format)?)?;
            report_cause(event.status(), format);
            if let (true, Some(cursor)) = (connection.verbose, events.cursor()) {
                say(lines.chunks.end())?;
                report(&format!("cursor: {}\n", show::safe(cursor)));
            }
        }
        say(lines.chunks.end())?;
        Ok(state)
    };
    let printed = printed.await;
    // What an interrupted stream has sent is of use too.
    let written = files.map(|files| files.write(format)).transpose();
    let state = printed?;
    written?;
    Ok(state)
}

/// Prints the events after a cursor. Returns the state of the task.
async fn resume(
    url: &str,
    task_id: &str,
    cursor: &str,
    connection: &Connection,
    files: Option<Files>,
) -> anyhow::Result<TaskState> {
    let client = connection.connect(url, None).await?;
    let task = client.get_with_history(task_id, 0).await?;
    // The log of a terminal task is complete: that there are no events after the cursor is no interruption.
    let client = if task.state().is_terminal() { connection.without_retries(&client.card(), url)? } else { client };
    let events = client.subscribe_after(task_id, cursor).await?;
    let last = print_events(events, (url, connection), None, &task.artifacts).await?;
    if let Some(mut files) = files {
        // The events after the cursor have only the rest of the artifacts.
        files.add_task(&client.get_with_history(task_id, 0).await?)?;
        files.write(connection.output)?;
    }
    Ok(last.unwrap_or(task.state()))
}

/// Runs `a2a get task`.
pub(super) async fn get_task(arguments: &GetTask) -> anyhow::Result<()> {
    let GetTask { task, history, save } = arguments;
    let format = task.connection.output;
    let mut files = save.open()?;
    let client = task.connection.connect(&task.url, SHORT).await?;
    let found = find_task(&client, &task.task_id, *history).await?;
    say(&show::task(&found, format)?)?;
    files.as_mut().map(|files| files.add_task(&found)).transpose()?;
    files.map(|files| files.write(format)).transpose()?;
    Ok(())
}

/// Runs `a2a discover`, `a2a get card` and `a2a card get`.
pub(super) async fn discover(arguments: &Discover) -> anyhow::Result<()> {
    let Discover { agent, extended, catalog, output_file, force } = arguments;
    let format = agent.connection.output;
    if *catalog {
        let entries = agent.connection.catalog(&agent.url).await?;
        return Ok(say(&show::catalog(&entries, format)?)?);
    }
    if let (Some(path), false) = (output_file, extended) {
        let json = agent.connection.card_document(&agent.url).await?;
        return write_card(path, &json, *force);
    }
    let client = agent.connection.connect(&agent.url, SHORT).await?;
    let card = if *extended { client.extended_card().await? } else { client.card() };
    match output_file {
        Some(path) => write_card(path, show::card(&card, OutputFormat::Json)?.as_bytes(), *force),
        None => Ok(say(&show::card(&card, format)?)?),
    }
}

fn write_card(path: &Path, json: &[u8], overwrite: bool) -> anyhow::Result<()> {
    let mut options = OpenOptions::new();
    let options = if overwrite { options.create(true).truncate(true) } else { options.create_new(true) };
    match options.write(true).open(path).and_then(|mut file| file.write_all(json)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            bail!("--output-file: {} exists; overwrite it with --force", path.display())
        }
        written => written.with_context(|| format!("--output-file: {}", path.display())),
    }
}

/// Runs `a2a list tasks`.
pub(super) async fn list_tasks(arguments: &ListTasks) -> anyhow::Result<()> {
    let format = arguments.agent.connection.output;
    let client = arguments.agent.connection.connect(&arguments.agent.url, SHORT).await?;
    let mut request = ListTasksRequest {
        context_id: arguments.context.clone().unwrap_or_default(),
        page_size: arguments.limit,
        page_token: arguments.page_token.clone().unwrap_or_default(),
        history_length: arguments.history,
        status_timestamp_after: arguments.since.map(|time| crate::protocol::pb::wkt::timestamp(time.as_millisecond())),
        include_artifacts: Some(arguments.with_artifacts),
        ..ListTasksRequest::default()
    };
    request.set_status(arguments.status.unwrap_or_default());
    let count = if arguments.all { usize::MAX } else { 1 };
    let mut is_first = request.page_token.is_empty();
    let mut pages = client.list_pages(request).take(count);
    while let Some(page) = pages.next().await {
        say(&show::page(&page?, format, is_first, arguments.all)?)?;
        is_first = false;
    }
    Ok(())
}

/// Runs `a2a cancel`.
pub(super) async fn cancel(arguments: &TaskOf) -> anyhow::Result<()> {
    let format = arguments.connection.output;
    let task = arguments.connection.connect(&arguments.url, SHORT).await?.cancel(&arguments.task_id).await?;
    Ok(say(&show::task(&task, format)?)?)
}

/// Runs `a2a subscribe`.
pub(super) async fn subscribe(arguments: &Subscribe) -> anyhow::Result<()> {
    let Subscribe { task, resume: cursor, exit_status, save } = arguments;
    let files = save.open()?;
    if let Some(cursor) = cursor {
        return exit_status.check(resume(&task.url, &task.task_id, cursor, &task.connection, files).await?);
    }
    let events = task.connection.connect(&task.url, None).await?.subscribe(&task.task_id).await?;
    exit_status.check(print_events(events, (&task.url, &task.connection), files, &[]).await?.unwrap_or_default())
}

/// Runs an `a2a push` command.
pub(super) async fn push(command: &Push) -> anyhow::Result<()> {
    let (Push::Create(CreatePush { task, .. })
    | Push::List(task)
    | Push::Get(PushOf { task, .. })
    | Push::Delete(PushOf { task, .. })) = command;
    let format = task.connection.output;
    let client = task.connection.connect(&task.url, SHORT).await?;
    let push = client.push(&task.task_id);
    let configs = match command {
        Push::Create(CreatePush { webhook, webhook_token, id, .. }) => {
            let mut config = crate::protocol::pb::v1::TaskPushNotificationConfig::from(webhook.as_str());
            config.token = webhook_token.clone().unwrap_or_default();
            config.id = id.clone().unwrap_or_default();
            vec![push.create(config).await?]
        }
        Push::List(_) => push.list().await?,
        Push::Get(PushOf { config_id, .. }) => vec![push.get(config_id).await?],
        Push::Delete(PushOf { config_id, .. }) => {
            push.delete(config_id).await?;
            return Ok(());
        }
    };
    Ok(say(&show::configs(&configs, format)?)?)
}
