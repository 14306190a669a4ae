//! The `forebay` binary: the command of `lib.rs` as a process of its own.
#![forbid(unsafe_code)]

use std::process::ExitCode;

/// Small requests allocate a lot; this allocator costs them less and gives memory back. The Python module
/// keeps the one of its interpreter.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    ExitCode::from(forebay_cli::run(std::env::args_os()))
}
