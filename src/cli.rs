//! Command line of the `a2a` program: its commands, exit codes, and output to stdout and stderr.

use std::{
    ffi::OsString,
    fs,
    io::{self, IsTerminal as _, Read as _, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anstream::AutoStream;
use anyhow::{Context as _, bail};
use clap::{
    CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum as _,
    error::{ContextKind, ContextValue, ErrorKind},
};
use tracing_subscriber::filter::Targets;

mod admin;
mod card;
mod chat;
pub(crate) mod config;
mod connection;
mod debug;
mod doctor;
mod failure;
mod flags;
mod help;
mod init;
mod listen;
pub(crate) mod log;
mod message;
#[cfg(feature = "openapi")]
mod openapi;
pub(crate) mod otlp;
mod progress;
pub(crate) mod prometheus;
mod remote;
mod save;
mod serve;
mod show;
mod status;
mod terminal;
mod token;
mod upstream;

use self::{
    connection::block_on,
    failure::{EXIT_CODES, USAGE, print_error},
    remote::{Get, List, Task},
    show::OutputFormat,
    terminal::{YELLOW, paint},
};
use crate::{base::clock::Millis, cli::log::LogFormat, service::auth::audit};

/// Failure of a write to stdout.
#[derive(Debug, thiserror::Error)]
enum OutputError {
    /// The reader of the pipe has enough, such as `head`. Ends the program without a message.
    #[error("stdout is closed")]
    Closed,
    #[error("cannot write to stdout: {0}")]
    Failed(io::Error),
}

conversions! {
    OutputError:
    error: io::Error => if error.kind() == io::ErrorKind::BrokenPipe { Self::Closed } else { Self::Failed(error) };
}

/// Argument with an invalid value.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

/// Result of a check, with its exit code.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
struct Verdict {
    text: String,
    code: u8,
}

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
    name = "a2a", bin_name = "a2a", version = version(), styles = terminal::HELP, arg_required_else_help = true,
    max_term_width = 100, disable_help_subcommand = true, help_template = help::OVERVIEW, after_long_help = EXIT_CODES
)]
struct Arguments {
    /// Colors in text: `auto` on a terminal unless `NO_COLOR` is set, `always` or `never`.
    #[arg(
        long, global = true, value_enum, default_value_t, hide_default_value = true, hide_possible_values = true,
        value_name = "WHEN", help_heading = connection::OUTPUT, hide_short_help = true, display_order = 1000
    )]
    color: clap::ColorChoice,
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
    /// Prints the state of a running server: its agents and what they need, limits, store and push notifications.
    Status(Box<status::Status>),
    /// Receives push notifications, prints them, and runs a command for each.
    Listen(listen::Listen),
    /// Downloads, validates, signs and verifies agent cards.
    #[command(subcommand)]
    Card(card::Card),
    /// Inspects and maintains a task database.
    Admin(admin::Admin),
    /// Makes, rotates, lists and revokes tokens.
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
    /// Prints the help of a command, or of a topic.
    Help(help::Help),
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Prints every configuration key with its default, environment variable and flag.
    Reference,
}

/// Returns the definition of the command line.
fn definition() -> clap::Command {
    help::with_examples(Arguments::command(), "a2a")
}

/// Replaces `--json` by `--output=json` where a command has that, except for `send --json MESSAGE` of the official command line.
/// Returns the names of the command too.
fn prepared(definition: &clap::Command, arguments: &[OsString]) -> (Vec<OsString>, String) {
    let (mut command, mut path, mut has_output) = (definition, Vec::new(), false);
    let end = arguments.iter().position(|argument| argument == "--").unwrap_or(arguments.len());
    for found in &arguments[1.min(end)..end] {
        command = command.find_subcommand(found).inspect(|found| path.push(found.get_name())).unwrap_or(command);
        has_output |= command.get_arguments().any(|flag| flag.get_long() == Some("output"));
    }
    let is_message = |next: &OsString| next.to_string_lossy().trim_start().starts_with('{');
    let prepared = arguments.iter().enumerate().map(|(at, argument)| {
        let is_flag = has_output && at < end && argument == "--json" && !arguments.get(at + 1).is_some_and(is_message);
        if is_flag { "--output=json".into() } else { argument.clone() }
    });
    (prepared.collect(), path.join(" "))
}

/// Adds the command that was probably meant to an error of the command line: a part of it was left out after `path`.
fn with_hint(mut error: clap::Error, path: &str) -> clap::Error {
    let meant = [
        ("", "send URL 'Hello'"),
        ("card", "card get URL"),
        ("get", "get card URL"),
        ("list", "list tasks URL"),
        ("task", "task get URL ID"),
        ("push", "push list URL TASK"),
    ];
    let tip = if let Some((_, meant)) = meant.iter().find(|(group, _)| *group == path)
        && let Some(ContextValue::String(found)) = error.get(ContextKind::InvalidSubcommand)
        && found.contains([':', '.'])
    {
        format!("a command is missing, such as `a2a {}`", meant.replace("URL", found))
    } else if error.kind() == ErrorKind::ArgumentConflict && error.to_string().contains("'--file ") {
        "a file is sent with a text by `--attach FILE`; `--file` has a whole message in JSON".to_owned()
    } else if path == "serve" && error.kind() == ErrorKind::UnknownArgument && !error.to_string().contains("t '-") {
        "a command as the agent is one argument: `a2a serve --exec \"sh -c 'SCRIPT'\"`".to_owned()
    } else {
        return error;
    };
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    error
}

/// Runs the program with the arguments of the process.
pub fn main() -> ExitCode {
    #[cfg(unix)]
    if let Some(code) = crate::agents::exec::guard::run(std::env::args_os().skip(1)) {
        return ExitCode::from(code);
    }
    let definition = definition();
    let (arguments, path) = prepared(&definition, &std::env::args_os().collect::<Vec<_>>());
    terminal::apply_color(&arguments);
    let format = terminal::flag_value(&arguments, &["--output", "-o"]);
    if let Some(Ok(format @ (OutputFormat::Json | OutputFormat::Jsonl))) =
        format.map(|format| OutputFormat::from_str(&format, false))
    {
        _ = failure::FORMAT.set(format);
    }
    let parsed = definition.try_get_matches_from(arguments);
    let arguments = match parsed.and_then(|matches| Arguments::from_arg_matches(&matches)) {
        Ok(arguments) => arguments,
        Err(error) if error.use_stderr() => {
            failure::print_usage(&with_hint(error, &path));
            return USAGE.into();
        }
        Err(help) => {
            let printed = help.print().and_then(|()| io::stdout().flush());
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
            failure::code_of(&error).into()
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
        Command::Status(arguments) => block_on(status::run(&arguments)),
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
        Command::Help(arguments) => help::run(&arguments),
    }
}

/// Prints the manual page, or writes those of all commands to a directory.
fn manual(directory: Option<&Path>) -> anyhow::Result<()> {
    /// A flag that is not in the short help would have no description.
    fn with_descriptions(command: clap::Command) -> clap::Command {
        command.mut_args(|flag| flag.hide_short_help(false)).mut_subcommands(with_descriptions)
    }
    let command = with_descriptions(definition());
    if let Some(directory) = directory {
        let context = || directory.display().to_string();
        fs::create_dir_all(directory).with_context(context)?;
        return clap_mangen::generate_to(command, directory).with_context(context);
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    Ok(say(&String::from_utf8_lossy(&page))?)
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

/// Prints a result to stdout and flushes it, because the parent process may read the address from a pipe. Styles are removed where
/// colors are not wanted.
fn say(text: &str) -> Result<(), OutputError> {
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

/// Sends warnings to stderr, for a command of an administrator that changes or exports data. The audit log goes there too, except
/// for a terminal, where the output of the command suffices.
fn start_audit_log(format: LogFormat) {
    let is_for_people = format == LogFormat::Auto && io::stderr().is_terminal();
    let level = if is_for_people { tracing::Level::WARN } else { tracing::Level::INFO };
    let filter = Targets::new().with_default(tracing::Level::WARN).with_target(audit::AUDIT, level);
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
fn time(millis: Millis) -> String {
    let time = serde_json::to_value(crate::protocol::pb::wkt::timestamp(millis)).unwrap_or_default();
    time.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definition_is_valid() {
        definition().debug_assert();
    }
}
