//! The command line. Only here, and in `main`, is anything printed.

use std::{net::SocketAddr, process::ExitCode};

use clap::{Parser, Subcommand, ValueEnum, builder::styling};
use tracing_subscriber::EnvFilter;

mod serve;

/// What went wrong was on the command line (`EX_USAGE`).
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
}

#[derive(Debug, clap::Args)]
struct Serve {
    /// The address to listen on. Port 0 picks a free one, and the first line of the output says which.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// The agent to serve.
    #[arg(long, value_enum, default_value_t = Agent::Demo)]
    agent: Agent,
}

/// The agents that come with the program.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Agent {
    /// Echoes, and provokes every state of a task on command.
    Demo,
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
    logs();
    let done = match arguments.command {
        Command::Serve(it) => serve::run(&it),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say_error(&error);
            ExitCode::FAILURE
        }
    }
}

/// Logs go to stderr, warnings and worse unless `RUST_LOG` says otherwise.
fn logs() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}

#[expect(clippy::print_stderr, reason = "it is how a program says why it ends")]
fn say_error(error: &anyhow::Error) {
    eprintln!("error: {error:#}");
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
