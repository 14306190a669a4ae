//! The `forebay` binary: the command of `lib.rs` as a process of its own.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(forebay_cli::run(std::env::args_os()))
}
