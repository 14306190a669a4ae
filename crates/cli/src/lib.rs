//! The `forebay` command: one binary that is the node, and what people type to use and run it.
//!
//! One file per noun. [`run`] reads the arguments, calls one of them and turns its result into an exit code:
//! 0 ok, 1 failure, 2 wrong usage or configuration. Answers go to standard output, everything else to
//! standard error; `--json` makes both machine readable.
//!
//! A library, because two programs are this command: the binary that cargo builds (`main.rs`) and the script
//! of the Python package, which calls it inside the extension module. What belongs to a process (an
//! allocator, say) stays in `main.rs`.
#![forbid(unsafe_code)]

mod admin_client;
mod args;
mod blocking;
mod bucket;
mod cache;
mod ckpt;
mod cluster;
mod config;
mod dataset;
mod docs;
mod doctor;
mod embedded;
mod exit;
mod jobs;
mod mount;
mod nodes;
mod objects;
mod output;
mod serve;
mod status;

use std::ffi::OsString;

use clap::Parser;

use crate::args::{Cli, Command};
use crate::exit::{Exit, Outcome};
use crate::output::Output;

/// Runs the command that these arguments name (the first is the program itself) and returns the exit code.
///
/// Blocks until the command is done, which for `serve` is when it is told to stop.
pub fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    let args: Vec<OsString> = args.into_iter().collect();
    let program = args
        .first()
        .map_or_else(|| "forebay".into(), |first| first.to_string_lossy());
    // Called by mount(8), the arguments are its own.
    let args = match args.split_first() {
        Some((helper, rest)) if mount::fstab::names_helper(helper) => {
            let translated = mount::fstab::translated(rest.iter().cloned());
            std::iter::once(helper.clone()).chain(translated).collect()
        }
        _ => args.clone(),
    };
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(refusal) => {
            // Help and the version come this way too. Nobody is left to tell that the terminal is gone.
            let _ = refusal.print();
            return u8::try_from(refusal.exit_code()).unwrap_or(2);
        }
    };
    let output = Output::new(cli.json);
    match run_command(cli, output, &program) {
        Ok(()) => 0,
        Err(exit) => {
            output.error(&exit);
            exit.code()
        }
    }
}

fn run_command(cli: Cli, output: Output, program: &str) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("forebay")
        .build()
        .map_err(|why| Exit::failure(anyhow::Error::new(why).context("cannot start")))?;
    runtime.block_on(async {
        match cli.command {
            Command::Serve(args) => serve::run(args, output, program).await,
            Command::Status(args) => status::run(&args, output).await,
            Command::Config(args) => config::run(args, output),
            Command::Bucket(args) => bucket::run(args, output).await,
            Command::Cache(args) => cache::run(args, output).await,
            Command::Jobs(args) => jobs::run(args, output).await,
            Command::Dataset(args) => dataset::run(args, output).await,
            Command::Ckpt(args) => ckpt::run(args, output).await,
            Command::Nodes(args) => nodes::run(&args, output).await,
            Command::Cluster(args) => cluster::run(&args, output),
            Command::Mount(args) => mount::run(args, output).await,
            Command::Umount(args) => mount::unmount(&args),
            Command::Doctor(args) => doctor::run(args, output).await,
            Command::Ls(args) => objects::ls::run(args, output).await,
            Command::Cp(args) => objects::cp::run(args, output).await,
            Command::Cat(args) => objects::cat::run(args).await,
            Command::Rm(args) => objects::rm::run(args, output).await,
            Command::Stat(args) => objects::stat::run(args, output).await,
            Command::Du(args) => objects::du::run(args, output).await,
            Command::Docs(args) => docs::run(&args),
        }
    })
}
