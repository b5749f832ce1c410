//! Entry point of the `a2a` program.

use std::process::ExitCode;

/// The allocator of glibc keeps most of what large tasks have freed.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    a2a_service::cli::main()
}
