//! `a2a chat`: a conversation with an agent, whose messages are the lines of stdin.

use std::{
    io::{self, BufRead as _, IsTerminal as _},
    path::Path,
};

use clap::Args;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;

use super::{
    Interrupted, OutputError,
    connection::{Agent, interruptible},
    message::attachment,
    remote::ExitStatus,
    show::{self, Answer, OutputFormat},
};
use crate::{
    client::{Client, Conversation, StreamEvent},
    protocol::pb::v1::{ListTasksRequest, Message, Part, Role, TaskState, part::Content},
};

/// Maximum number of tasks that `/history` prints.
const MAX_TASKS: usize = 50;

/// Text for `/help`.
const HELP: &str = "\
/attach FILE   adds a file to the next message
/history       prints the tasks of the conversation
/quit          ends the program; so does Ctrl-C or the end of the input
Any other line is a message. Ctrl-C during a turn cancels its task.
";

/// Arguments of `a2a chat`.
#[derive(Debug, Args)]
pub(super) struct Chat {
    #[command(flatten)]
    agent: Agent,
    /// Context to continue.
    #[arg(long, value_name = "ID", help_heading = "Conversation")]
    context: Option<String>,
    /// Task to continue.
    #[arg(long, value_name = "ID", help_heading = "Conversation")]
    task: Option<String>,
    #[command(flatten)]
    exit_status: ExitStatus,
}

/// Runs `a2a chat`: each line of stdin is a message. Ctrl-C cancels the task of the turn; a second one, or one between
/// turns, ends the program.
pub(super) async fn run(arguments: &Chat) -> anyhow::Result<()> {
    let is_terminal = io::stdin().is_terminal();
    let client = arguments.agent.connection.connect(&arguments.agent.url, None).await?;
    let mut conversation = client.conversation();
    if let Some(id) = &arguments.context {
        conversation = conversation.with_context(id);
    }
    if let Some(id) = &arguments.task {
        conversation = conversation.with_task(id);
    }
    if is_terminal {
        super::report(&format!("{}: type a message, or /help\n", show::safe(&client.card().name)));
    }
    let (mut lines, mut failure) = (stdin_lines(), TaskState::Completed);
    let mut attached = Vec::new();
    loop {
        if is_terminal {
            super::report("> ");
        }
        let line = tokio::select! {
            line = lines.recv() => line,
            _ = tokio::signal::ctrl_c() => None,
        };
        let line = line.unwrap_or_else(|| {
            if is_terminal {
                super::report("\n");
            }
            "/quit".to_owned()
        });
        match line.trim() {
            "" => {}
            "/quit" | "/exit" => {
                if is_terminal && !conversation.context_id().is_empty() {
                    super::report(&continuation(&arguments.agent, &conversation));
                }
                // The user of a terminal has seen the states.
                return if is_terminal { Ok(()) } else { arguments.exit_status.check(failure) };
            }
            "/help" => super::report(HELP),
            "/history" => {
                interruptible(print_history(&client, &conversation, arguments.agent.connection.output)).await??;
            }
            "/attach" => super::report("/attach needs the path of a file\n"),
            command if command.starts_with("/attach ") => {
                match attachment(Path::new(command["/attach ".len()..].trim())) {
                    Ok(part) => attached.push(part),
                    Err(error) => super::print_error(&error),
                }
            }
            text => {
                let parts = std::iter::once(Part::text(text)).chain(attached.drain(..)).collect();
                let message = Message { parts, role: Role::User.into(), ..Message::default() };
                match turn(&client, &mut conversation, message, &arguments.agent).await {
                    Ok(state) => failure = if state.is_failure() { state } else { failure },
                    // A failed call does not end the conversation, unless it is not interactive.
                    Err(error) if !is_terminal || error.is::<OutputError>() || error.is::<Interrupted>() => {
                        return Err(error);
                    }
                    Err(error) => super::print_error(&error),
                }
            }
        }
    }
}

/// Returns the command that continues a conversation.
fn continuation(Agent { url, connection }: &Agent, conversation: &Conversation) -> String {
    let (flag, id) = match conversation.task_id() {
        "" => ("--context", conversation.context_id()),
        task_id => ("--task", task_id),
    };
    format!("Continue with: {}\n", connection.next_command(&["chat", url], &[(flag, id)]))
}

/// Sends a message, and prints the answer as it arrives. Returns the last state of the task.
async fn turn(
    client: &Client,
    conversation: &mut Conversation,
    message: Message,
    Agent { url, connection }: &Agent,
) -> anyhow::Result<TaskState> {
    let format = connection.output;
    // The task is not known yet.
    let mut events = interruptible(conversation.stream(message)).await??;
    let mut task_id = conversation.task_id().to_owned();
    let (mut is_canceled, mut has_file) = (false, false);
    let (mut answer, mut state) = (Answer::default(), TaskState::Unspecified);
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            _ = tokio::signal::ctrl_c() => {
                if is_canceled || task_id.is_empty() {
                    return Err(Interrupted.into());
                }
                is_canceled = true;
                super::say(answer.chunks.end())?;
                interruptible(client.cancel(&task_id)).await??;
                continue;
            }
        };
        let event = match event {
            Some(Ok(event)) => event,
            Some(Err(error)) => {
                super::say(answer.chunks.end())?;
                return Err(error.into());
            }
            None => break,
        };
        conversation.record(&event);
        state = event.state().unwrap_or(state);
        if let StreamEvent::Task(task) = &event {
            task_id.clone_from(&task.id);
        }
        if let StreamEvent::Artifact(update) = &event {
            let mut parts = update.artifact.iter().flat_map(|artifact| &artifact.parts);
            has_file |= parts.any(|part| matches!(part.content, Some(Content::Raw(_))));
        }
        super::say(&answer.event(&event, format)?)?;
    }
    super::say(answer.chunks.end())?;
    if has_file && !task_id.is_empty() && io::stderr().is_terminal() {
        let command = connection.next_command(&["get", "task", url, &task_id], &[("--output-dir", ".")]);
        super::report(&format!("-> {command}\n"));
    }
    Ok(state)
}

async fn print_history(client: &Client, conversation: &Conversation, format: OutputFormat) -> anyhow::Result<()> {
    let request = ListTasksRequest {
        context_id: conversation.context_id().to_owned(),
        include_artifacts: Some(true),
        ..ListTasksRequest::default()
    };
    if request.context_id.is_empty() {
        return Ok(());
    }
    let mut tasks: Vec<_> = client.list(request).take(MAX_TASKS).collect::<Result<_, _>>().await?;
    if tasks.len() == MAX_TASKS {
        super::report(&format!("the latest {MAX_TASKS} tasks:\n"));
    }
    // The latest is the first one of the list, and the last one of the conversation.
    tasks.reverse();
    for task in &tasks {
        super::say(&show::task(task, format)?)?;
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
