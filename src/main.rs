//! The program: reads its arguments, does what they say, and ends with an exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    a2a_service::cli::main()
}
