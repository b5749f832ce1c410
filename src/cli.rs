//! Command line of the `a2a` program: its commands, exit codes, and output to stdout and stderr.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anstream::AutoStream;
use anyhow::{Context as _, bail};
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use serde_json::Value;
use tracing_subscriber::filter::Targets;

mod admin;
mod card;
mod chat;
pub(crate) mod config;
mod connection;
mod debug;
mod doctor;
mod flags;
mod init;
mod listen;
pub(crate) mod log;
mod message;
#[cfg(feature = "openapi")]
mod openapi;
mod progress;
pub(crate) mod prometheus;
mod remote;
mod save;
mod serve;
mod show;
mod terminal;
mod token;
mod upstream;

use self::{
    connection::block_on,
    remote::{Get, List, Task},
    terminal::{RED, YELLOW, paint},
};
use crate::{
    base::clock::Millis,
    cli::log::LogFormat,
    protocol::error::{Error, ErrorKind},
    service::auth::audit,
};

/// Table of the exit codes in the help.
const EXIT_CODES: &str = "Exit codes:
  0  done
  1  other error
  2  invalid command line or configuration
  3  the agent cannot be reached
  4  the agent requires other credentials
  5  the time limit has passed
  6  the task failed, was rejected or was canceled (with --exit-status)";

/// Examples in the help: paragraphs, each with the names of its commands in the first line.
const EXAMPLES: &str = include_str!("cli/examples.txt");

/// Exit code of an invalid command line or configuration.
const USAGE: u8 = 2;

/// Returns the exit code of an error.
fn code_of(error: &anyhow::Error) -> u8 {
    if error.is::<config::Error>() || error.is::<Usage>() {
        return USAGE;
    }
    if error.is::<remote::TaskFailed>() {
        return 6;
    }
    if error.is::<Interrupted>() {
        // As shells report the end by SIGINT.
        return 130;
    }
    match error.downcast_ref::<Error>().map(Error::kind) {
        Some(ErrorKind::Unavailable) => 3,
        Some(ErrorKind::Unauthenticated | ErrorKind::PermissionDenied) => 4,
        Some(ErrorKind::DeadlineExceeded) => 5,
        _ => 1,
    }
}

/// Failure of a write to stdout.
#[derive(Debug, thiserror::Error)]
enum OutputError {
    /// The reader of the pipe has enough, such as `head`. Ends the program without a message.
    #[error("stdout is closed")]
    Closed,
    #[error("cannot write to stdout: {0}")]
    Failed(io::Error),
}

impl From<io::Error> for OutputError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe { Self::Closed } else { Self::Failed(error) }
    }
}

/// Argument with an invalid value.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

/// End of the program by Ctrl-C.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
struct Interrupted;

/// Returns the version of the program, with its commit if the build script found one. Debug builds have none.
fn version() -> String {
    let commit = option_env!("A2A_COMMIT").unwrap_or("debug build");
    format!("{} ({commit})", env!("CARGO_PKG_VERSION"))
}

/// A2A (Agent2Agent) server and client: gRPC, HTTP+JSON and JSON-RPC.
#[derive(Debug, Parser)]
#[command(
    name = "a2a", version = version(), styles = terminal::HELP, arg_required_else_help = true, max_term_width = 100,
    after_long_help = EXIT_CODES
)]
struct Arguments {
    /// Colors in text: `auto` on a terminal unless `NO_COLOR` is set, `always` or `never`.
    #[arg(
        long, global = true, value_enum, default_value_t, hide_default_value = true, hide_possible_values = true,
        value_name = "WHEN", help_heading = connection::OUTPUT, hide_short_help = true, display_order = 1000
    )]
    color: terminal::Color,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves an agent.
    Serve(Box<flags::Serve>),
    /// Writes a configuration file for an agent without code.
    Init(init::Init),
    /// Sends a message to an agent, and prints the answer.
    Send(Box<remote::Send>),
    /// Sends a message to an agent, and prints events as they happen.
    Stream(Box<remote::Send>),
    /// Talks to an agent: each line is a message. Ctrl-C cancels the running task.
    Chat(chat::Chat),
    /// Prints what an agent can do: its card.
    Discover(remote::Discover),
    /// Prints a task or a card.
    #[command(subcommand)]
    Get(Get),
    /// Prints tasks.
    #[command(subcommand)]
    List(List),
    /// Cancels a task.
    Cancel(connection::TaskOf),
    /// Prints the events of a running task.
    Subscribe(remote::Subscribe),
    /// Prints, lists, cancels and watches tasks.
    #[command(subcommand)]
    Task(Task),
    /// Manages the push notification configurations of a task.
    #[command(subcommand)]
    Push(remote::Push),
    /// Checks an agent as its clients see it, and says what is wrong and what to do.
    Doctor(Box<doctor::Doctor>),
    /// Receives push notifications, prints them, and runs a command for each.
    Listen(listen::Listen),
    /// Downloads, validates, signs and verifies agent cards.
    #[command(subcommand)]
    Card(card::Card),
    /// Inspects and maintains a task database.
    Admin(admin::Admin),
    /// Makes, lists and revokes tokens.
    Token(token::Token),
    /// Describes the configuration.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Prints the OpenAPI document of the HTTP+JSON binding.
    #[cfg(feature = "openapi")]
    Openapi(openapi::Openapi),
    /// Prints a script with completions for a shell.
    Completion {
        /// Shell that runs the script.
        shell: clap_complete::Shell,
    },
    /// Prints the manual page, or writes those of all commands to a directory.
    Man {
        /// Directory for the pages. Created if it does not exist.
        directory: Option<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Prints every configuration key with its default, environment variable and flag.
    Reference,
}

/// Returns the definition of the command line.
fn definition() -> clap::Command {
    with_examples(Arguments::command(), "a2a")
}

/// Adds examples to the help of the command with this name, and to that of its subcommands.
fn with_examples(command: clap::Command, name: &str) -> clap::Command {
    let mut paragraphs = EXAMPLES.split("\n\n").filter_map(|paragraph| paragraph.split_once(":\n"));
    let examples = paragraphs.find(|(names, _)| names.split(", ").any(|found| found == name));
    let examples = examples.map(|(_, examples)| format!("Examples:\n{}", examples.trim_end()));
    let command = match (examples, command.get_after_help(), command.get_after_long_help()) {
        (None, ..) => command,
        (Some(examples), None, None) => command.after_help(examples),
        (Some(examples), Some(_), _) => command.after_long_help(examples),
        (Some(examples), None, Some(more)) => {
            let long = format!("{examples}\n\n{more}");
            command.after_help(examples).after_long_help(long)
        }
    };
    command.mut_subcommands(|command| {
        let name = format!("{name} {}", command.get_name());
        with_examples(command, &name)
    })
}

/// Runs the program with the arguments of the process.
pub fn main() -> ExitCode {
    #[cfg(unix)]
    if let Some(code) = crate::agents::exec::guard::run(std::env::args_os().skip(1)) {
        return ExitCode::from(code);
    }
    terminal::apply_color(std::env::args_os().skip(1));
    let arguments = match definition().try_get_matches().and_then(|matches| Arguments::from_arg_matches(&matches)) {
        Ok(arguments) => arguments,
        Err(error) => {
            let printed = error.print().and_then(|()| io::stdout().flush());
            if error.use_stderr() {
                return USAGE.into();
            }
            return exit_code(printed.map_err(|error| OutputError::from(error).into()));
        }
    };
    exit_code(run(arguments))
}

/// Returns the exit code of a result, and prints its error.
fn exit_code(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Err(error) if !matches!(error.downcast_ref(), Some(OutputError::Closed)) => {
            print_error(&error);
            code_of(&error).into()
        }
        Ok(()) | Err(_) => ExitCode::SUCCESS,
    }
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    match arguments.command {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Init(arguments) => init::run(&arguments),
        Command::Send(arguments) => block_on(remote::send(&arguments, false)),
        Command::Stream(arguments) => block_on(remote::send(&arguments, true)),
        Command::Chat(arguments) => block_on(chat::run(&arguments)),
        Command::Discover(arguments) => block_on(remote::discover(&arguments)),
        Command::Get(Get::Card(arguments)) => block_on(remote::discover(&arguments)),
        Command::Get(Get::Task(arguments)) | Command::Task(Task::Get(arguments)) => {
            block_on(remote::get_task(&arguments))
        }
        Command::List(List::Tasks(arguments)) | Command::Task(Task::List(arguments)) => {
            block_on(remote::list_tasks(&arguments))
        }
        Command::Cancel(arguments) | Command::Task(Task::Cancel(arguments)) => block_on(remote::cancel(&arguments)),
        Command::Subscribe(arguments) | Command::Task(Task::Watch(arguments)) => {
            block_on(remote::subscribe(&arguments))
        }
        Command::Push(command) => block_on(remote::push(&command)),
        Command::Doctor(arguments) => block_on(doctor::run(&arguments)),
        Command::Listen(arguments) => listen::run(&arguments),
        Command::Card(command) => card::run(&command),
        Command::Admin(arguments) => admin::run(&arguments),
        Command::Token(arguments) => token::run(arguments),
        Command::Config(ConfigCommand::Reference) => Ok(say(&config::reference())?),
        #[cfg(feature = "openapi")]
        Command::Openapi(arguments) => openapi::run(&arguments),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut definition(), "a2a", &mut script);
            Ok(say(&String::from_utf8_lossy(&script))?)
        }
        Command::Man { directory } => manual(directory.as_deref()),
    }
}

/// Prints the manual page, or writes those of all commands to a directory.
fn manual(directory: Option<&Path>) -> anyhow::Result<()> {
    let command = definition();
    if let Some(directory) = directory {
        let context = || directory.display().to_string();
        fs::create_dir_all(directory).with_context(context)?;
        return clap_mangen::generate_to(command, directory).with_context(context);
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    Ok(say(&String::from_utf8_lossy(&page))?)
}

/// Prints an error, which may have text of an agent.
fn print_error(error: &anyhow::Error) {
    report_text(&format!("{} {}\n", paint(RED, "error:"), show::safe(&format!("{error:#}"))));
}

fn warn(text: &str) {
    report_text(&format!("{} {text}\n", paint(YELLOW, "warning:")));
}

/// Prints a text to stderr. Its styles are removed where colors are not wanted.
fn report_text(text: &str) {
    drop(AutoStream::auto(io::stderr()).write_all(text.as_bytes()));
}

/// Prints to stderr, because stdout is reserved for results. There is no place to report a failure.
fn report(text: &str) {
    drop(io::stderr().write_all(text.as_bytes()));
}

/// Prints a result to stdout and flushes it, because the parent process may read the address from a pipe.
fn say(text: &str) -> Result<(), OutputError> {
    let mut out = io::stdout();
    Ok(out.write_all(text.as_bytes()).and_then(|()| out.flush())?)
}

/// Prints a text to stdout. Its styles are removed where colors are not wanted.
fn say_text(text: &str) -> Result<(), OutputError> {
    let mut out = AutoStream::auto(io::stdout());
    Ok(out.write_all(text.as_bytes()).and_then(|()| out.flush())?)
}

/// Reads a file of limited size.
fn read_file(path: &Path, max: usize) -> anyhow::Result<Vec<u8>> {
    let file = fs::File::open(path).with_context(|| path.display().to_string())?;
    read_limited(file, max, &path.display().to_string())
}

/// Reads an input of limited size. Errors have its name.
fn read_limited(input: impl io::Read, max: usize, name: &str) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(u64::try_from(max)?.saturating_add(1)).read_to_end(&mut bytes).with_context(|| name.to_owned())?;
    if bytes.len() > max {
        bail!("{name}: the file is larger than {max} bytes");
    }
    Ok(bytes)
}

/// Sends warnings and the audit log to stderr, for a command of an administrator that changes or exports data.
fn start_audit_log(format: LogFormat) {
    let filter = Targets::new().with_default(tracing::Level::WARN).with_target(audit::AUDIT, tracing::Level::INFO);
    log::init(format, filter);
}

/// Logs what a command of an administrator has done, for this many tasks, tokens or push configurations of the owner or the token
/// that it names.
fn audited<'a>(operation: &str, object: impl Into<Option<&'a str>>, count: u64) {
    #[cfg(unix)]
    let user = Some(rustix::process::getuid().as_raw());
    #[cfg(not(unix))]
    let user = None;
    audit::administered(operation, object.into(), count, user);
}

/// Formats a time as text (RFC 3339).
fn time(millis: Millis) -> Value {
    serde_json::to_value(crate::protocol::pb::wkt::timestamp(millis)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definition_is_valid() {
        definition().debug_assert();
    }

    /// Every command has a help page of at most 100 columns, and examples where it has many flags, in terminals of each width.
    #[test]
    fn help_pages_are_narrow() {
        fn check(command: &mut clap::Command, width: usize) {
            let name = command.get_bin_name().unwrap_or(command.get_name()).to_owned();
            let (short, long) = (command.render_help().to_string(), command.render_long_help().to_string());
            for line in short.lines().chain(long.lines()).filter(|_| width >= 100) {
                assert!(line.chars().count() <= 100, "{name}: {line}");
            }
            let calls_agents = command.get_arguments().any(|argument| argument.get_id() == "svc_param");
            if calls_agents || long.lines().count() > 60 {
                assert!(short.contains("Examples:") && long.contains("Examples:"), "{name}: {short}");
            }
            assert!(short.lines().count() < 100 || width < 100, "{name}: {short}");
            command.get_subcommands_mut().for_each(|command| check(command, width));
        }
        // The width of the terminal, or of `COLUMNS`, does not matter.
        for width in [60, 100] {
            let mut command = definition().term_width(width);
            command.build();
            check(&mut command, width);
        }
    }
}
