//! Command line of the `a2a` program: `serve`, `admin` and `config`, exit codes, and output to stdout and stderr.

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand, builder::styling};

mod admin;
mod flags;
mod serve;

use self::flags::Flags;
use crate::config;

/// Exit code for an invalid command line or configuration (`EX_USAGE` of sysexits).
const EX_USAGE: u8 = 64;

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
    /// Inspects and maintains a task database.
    Admin(admin::Admin),
    /// Describes the configuration.
    #[command(subcommand)]
    Config(ConfigCommand),
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
        Command::Admin(arguments) => admin::run(&arguments),
        Command::Config(ConfigCommand::Reference) => {
            say(&config::reference());
            Ok(())
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&error);
            if error.is::<config::Error>() { ExitCode::from(EX_USAGE) } else { ExitCode::FAILURE }
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

/// Prints a result to stdout and flushes it, because the parent process may read the address from a pipe. Ignores a closed
/// stdout.
fn say(text: &str) {
    use std::io::Write as _;
    let mut out = std::io::stdout();
    drop(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
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
