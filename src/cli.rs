//! Command line of the `a2a` program: `serve`, `listen`, `card`, `admin`, `token`, `config` and `openapi`, exit codes, and output to
//! stdout and stderr.

use std::{fmt, path::PathBuf, process::ExitCode};

use clap::{Arg, ArgAction, ArgMatches, FromArgMatches, Parser, Subcommand, builder::styling};
use serde_json::Value;

mod admin;
mod card;
mod listen;
#[cfg(feature = "openapi")]
mod openapi;
mod serve;
mod token;

use crate::{
    clock::{self, Millis},
    config::{self, Config, KEYS, Key},
};

/// Exit code for an invalid command line or configuration (`EX_USAGE` of sysexits).
const EX_USAGE: u8 = 64;

/// Exit code of `a2a card verify` for a card without a valid signature.
const NOT_VERIFIED: u8 = 2;

/// A2A (Agent2Agent) server: gRPC, HTTP+JSON and JSON-RPC on one port.
#[derive(Debug, Parser)]
#[command(name = "a2a", version, styles = styling::Styles::plain(), arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves an agent.
    Serve(Serve),
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
            return if error.use_stderr() { ExitCode::from(EX_USAGE) } else { ExitCode::SUCCESS };
        }
    };
    let result = match arguments.command {
        Command::Serve(arguments) => serve::run(&arguments),
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
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&error);
            if error.is::<config::Error>() {
                ExitCode::from(EX_USAGE)
            } else if error.is::<card::NotVerified>() {
                ExitCode::from(NOT_VERIFIED)
            } else {
                ExitCode::FAILURE
            }
        }
    }
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

/// Formats a time as text (RFC 3339).
fn time(millis: Millis) -> Value {
    serde_json::to_value(clock::timestamp(millis)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn command_line_definition_is_valid() {
        Arguments::command().debug_assert();
    }
}
