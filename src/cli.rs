//! Command line of the `a2a` program: its commands, exit codes, and output to stdout and stderr.

use std::{
    fmt,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, bail};
use clap::{Arg, ArgAction, ArgMatches, CommandFactory as _, FromArgMatches, Parser, Subcommand, builder::styling};
use serde_json::Value;

mod admin;
mod card;
mod listen;
#[cfg(feature = "openapi")]
mod openapi;
mod remote;
mod serve;
mod show;
mod token;

use crate::{
    clock::{self, Millis},
    config::{self, Config, KEYS, Key},
    error::{Error, ErrorKind},
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

/// Exit codes of the program, other than 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    /// Any other error.
    Error,
    /// Invalid command line or configuration.
    Usage,
    /// No connection to the agent can be established, or it was lost.
    Unreachable,
    /// The agent requires other credentials.
    Authentication,
    /// The time limit of the call has passed.
    Timeout,
    /// The task failed, was rejected or was canceled, with `--exit-status`.
    TaskFailed,
}

impl Exit {
    fn of(error: &anyhow::Error) -> Self {
        if error.is::<config::Error>() || error.is::<Usage>() {
            return Self::Usage;
        }
        if error.is::<remote::TaskFailed>() {
            return Self::TaskFailed;
        }
        match error.downcast_ref::<Error>().map(Error::kind) {
            Some(ErrorKind::Unavailable) => Self::Unreachable,
            Some(ErrorKind::Unauthenticated | ErrorKind::PermissionDenied) => Self::Authentication,
            Some(ErrorKind::DeadlineExceeded) => Self::Timeout,
            _ => Self::Error,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Error => 1,
            Exit::Usage => 2,
            Exit::Unreachable => 3,
            Exit::Authentication => 4,
            Exit::Timeout => 5,
            Exit::TaskFailed => 6,
        })
    }
}

/// Argument with an invalid value.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

/// A2A (Agent2Agent) server and client: gRPC, HTTP+JSON and JSON-RPC.
#[derive(Debug, Parser)]
#[command(
    name = "a2a", version, styles = styling::Styles::plain(), arg_required_else_help = true, max_term_width = 100,
    after_long_help = EXIT_CODES
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves an agent.
    #[command(next_help_heading = "Configuration")]
    Serve(Serve),
    /// Sends a message to an agent, and prints the answer.
    Send(Box<remote::Send>),
    /// Sends a message to an agent, and prints events as they happen.
    Stream(Box<remote::Send>),
    /// Talks to an agent: each line is a message. Ctrl-C cancels the running task.
    Chat(remote::Chat),
    /// Prints what an agent can do: its card.
    Discover(remote::Discover),
    /// Prints a task or a card.
    #[command(subcommand)]
    Get(remote::Get),
    /// Prints tasks.
    #[command(subcommand)]
    List(remote::List),
    /// Cancels a task.
    Cancel(remote::TaskOf),
    /// Prints the events of a running task.
    Subscribe(remote::TaskOf),
    /// Prints, lists, cancels and watches tasks.
    #[command(subcommand)]
    Task(remote::Task),
    /// Manages the push notification configurations of a task.
    #[command(subcommand)]
    Push(remote::Push),
    /// Receives push notifications, prints them, and runs a command for each.
    Listen(listen::Listen),
    /// Signs agent cards, and verifies their signatures.
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
        /// Directory for the pages.
        directory: Option<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Prints every configuration key with its default, environment variable and flag.
    Reference,
}

#[derive(Debug, clap::Args)]
struct Serve {
    /// Configuration file. Defaults to `a2a.toml`, if that exists. [env: `A2A_CONFIG`]
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    /// Prints the effective configuration with the origin of each value, and exits.
    #[arg(long)]
    print_config: bool,
    #[command(flatten)]
    flags: Flags,
}

/// Names and values of the flags that were given. [`config::load`](crate::config::load) parses the values.
#[derive(Clone, Default)]
struct Flags(Vec<(String, String)>);

impl clap::Args for Flags {
    fn augment_args(command: clap::Command) -> clap::Command {
        let defaults = Config::default();
        command.args(KEYS.iter().flat_map(|key| flags(key, &defaults)))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

/// Returns the flag of a key and, hidden, its former names.
fn flags(key: &Key, defaults: &Config) -> Vec<Arg> {
    let default = key.show(defaults).map(|value| format!("default: {}, ", value.trim_matches('"')));
    let help = format!("{} [{}env: {}]", key.description, default.unwrap_or_default(), key.variable());
    let arg = Arg::new(key.flag()).long(key.flag()).help(help).action(ArgAction::Set);
    let arg = arg.value_name(key.kind.trim_start_matches("secret ").to_uppercase());
    let choice = key.kind.contains('`').then(|| key.kind.split('`').skip(1).step_by(2).collect::<Vec<_>>().join("|"));
    let arg = choice.map_or(arg.clone(), |values| arg.value_name(values));
    let arg = match key.value_without_argument {
        Some(value) => arg.num_args(0..=1).require_equals(true).default_missing_value(value),
        None => arg,
    };
    let former = key.former_flags().map(|name| arg.clone().id(name.clone()).long(name).hide(true)).collect();
    [vec![arg], former].concat()
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let names = KEYS.iter().flat_map(|key| [key.flag()].into_iter().chain(key.former_flags()));
        let value = |name: String| matches.get_one::<String>(&name).cloned().map(|value| (name, value));
        Ok(Self(names.filter_map(value).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Omits the values, because they may be secret.
impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

/// Runs the program with the arguments of the process.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // A closed pipe is no failure: `a2a --help | head`.
            drop(error.print());
            return if error.use_stderr() { Exit::Usage.into() } else { ExitCode::SUCCESS };
        }
    };
    let result = match arguments.command {
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Send(arguments) => remote::send(&arguments, false),
        Command::Stream(arguments) => remote::send(&arguments, true),
        Command::Chat(arguments) => remote::chat(&arguments),
        Command::Discover(arguments) => remote::discover(&arguments),
        Command::Get(command) => remote::get(&command),
        Command::List(command) => remote::list(&command),
        Command::Cancel(arguments) => remote::cancel(&arguments),
        Command::Subscribe(arguments) => remote::subscribe(&arguments),
        Command::Task(command) => remote::task(&command),
        Command::Push(command) => remote::push(&command),
        Command::Listen(arguments) => listen::run(&arguments),
        Command::Card(command) => card::run(&command),
        Command::Admin(arguments) => admin::run(&arguments),
        Command::Token(arguments) => token::run(arguments),
        Command::Config(ConfigCommand::Reference) => {
            say(&config::reference());
            Ok(())
        }
        #[cfg(feature = "openapi")]
        Command::Openapi(arguments) => openapi::run(&arguments),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "a2a", &mut script);
            say(&String::from_utf8_lossy(&script));
            Ok(())
        }
        Command::Man { directory } => manual(directory.as_deref()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&error);
            Exit::of(&error).into()
        }
    }
}

/// Prints the manual page, or writes those of all commands to a directory.
fn manual(directory: Option<&Path>) -> anyhow::Result<()> {
    let command = Arguments::command();
    if let Some(directory) = directory {
        clap_mangen::generate_to(command, directory)?;
        return Ok(());
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    say(&String::from_utf8_lossy(&page));
    Ok(())
}

#[expect(clippy::print_stderr, reason = "the reason for a failed exit code belongs on stderr")]
fn print_error(error: &anyhow::Error) {
    eprintln!("error: {error:#}");
}

#[expect(clippy::print_stderr, reason = "stdout is reserved for results")]
fn warn(text: &str) {
    eprintln!("warning: {text}");
}

#[expect(clippy::print_stderr, reason = "stdout is reserved for results")]
fn report(text: &str) {
    eprint!("{text}");
}

/// Prints a result to stdout and flushes it, because the parent process may read the address from a pipe. Ignores a closed
/// stdout.
fn say(text: &str) {
    use std::io::Write as _;
    let mut out = std::io::stdout();
    drop(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
}

/// Reads a file of limited size.
fn read_file(path: &Path, max: usize) -> anyhow::Result<Vec<u8>> {
    use std::io::Read as _;
    let context = || path.display().to_string();
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).with_context(context)?;
    file.take(u64::try_from(max)?.saturating_add(1)).read_to_end(&mut bytes).with_context(context)?;
    if bytes.len() > max {
        bail!("{}: the file is larger than {max} bytes", path.display());
    }
    Ok(bytes)
}

/// Formats a time as text (RFC 3339).
fn time(millis: Millis) -> Value {
    serde_json::to_value(clock::timestamp(millis)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definition_is_valid() {
        Arguments::command().debug_assert();
    }
}
