//! The command line. Only here, and in `main`, is anything printed.

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand, builder::styling};

mod admin;
mod flags;
mod serve;

use self::flags::Flags;
use crate::config;

/// What went wrong was on the command line, or elsewhere in the configuration (`EX_USAGE`).
const USAGE: u8 = 64;

/// An A2A (Agent2Agent) server: gRPC, HTTP+JSON and JSON-RPC on one port.
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
    /// Looks after a file of tasks.
    Admin(admin::Admin),
    /// Says what can be configured.
    #[command(subcommand)]
    Config(About),
}

#[derive(Debug, Subcommand)]
enum About {
    /// Prints every key with its default, its variable and its flag.
    Reference,
}

#[derive(Debug, clap::Args)]
struct Serve {
    /// The configuration file. Where none is named, `a2a.toml`, if it is there. [env: `A2A_CONFIG`]
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    /// Prints what is configured, and where each value came from, and serves nothing.
    #[arg(long)]
    print_config: bool,
    #[command(flatten)]
    flags: Flags,
}

/// Runs the program on the arguments of its process.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(it) => it,
        Err(error) => {
            // A reader of the help that has gone is no failure.
            drop(error.print());
            return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    let done = match arguments.command {
        Command::Serve(it) => serve::run(&it),
        Command::Admin(it) => admin::run(&it),
        Command::Config(About::Reference) => {
            say(&config::reference());
            Ok(())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say_error(&error);
            if error.is::<config::Error>() { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
        }
    }
}

#[expect(clippy::print_stderr, reason = "it is how a program says why it ends")]
fn say_error(error: &anyhow::Error) {
    eprintln!("error: {error:#}");
}

#[expect(clippy::print_stderr, reason = "it is no result, and who reads those is not to take it for one")]
fn warn(text: &str) {
    eprintln!("warning: {text}");
}

/// A result of the program. A reader who has gone does not stop it.
fn say(text: &str) {
    use std::io::Write as _;
    let mut out = std::io::stdout();
    // Who started it may read the address from a pipe.
    drop(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }
}
