//! The program: reads its arguments, does what they say, and ends with an exit code.

use std::process::ExitCode;

/// A request makes dozens of small allocations, and the system's allocator takes a quarter of its time for them.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    a2a_service::cli::main()
}
