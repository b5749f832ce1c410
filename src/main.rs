//! Entry point of the `a2a` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    a2a_service::cli::main()
}
