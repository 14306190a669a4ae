//! The `forebay` command: one binary that is the node, and what people type to use and run it.
//!
//! One file per noun. `main` reads the arguments, calls one of them and turns its result into an exit code:
//! 0 ok, 1 failure, 2 wrong usage or configuration. Answers go to standard output, everything else to standard
//! error; `--json` makes both machine readable.
#![forbid(unsafe_code)]

mod admin_client;
mod args;
mod bucket;
mod cache;
mod config;
mod docs;
mod doctor;
mod exit;
mod jobs;
mod objects;
mod output;
mod serve;
mod status;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};
use crate::exit::{Exit, Outcome};
use crate::output::Output;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let output = Output::new(cli.json);
    match run(cli, output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(exit) => {
            output.error(&exit);
            exit.code()
        }
    }
}

fn run(cli: Cli, output: Output) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("forebay")
        .build()
        .map_err(|why| Exit::failure(anyhow::Error::new(why).context("cannot start")))?;
    runtime.block_on(async {
        match cli.command {
            Command::Serve(args) => serve::run(args, output).await,
            Command::Status(args) => status::run(&args, output).await,
            Command::Config(args) => config::run(args, output),
            Command::Bucket(args) => bucket::run(args, output).await,
            Command::Cache(args) => cache::run(args, output).await,
            Command::Jobs(args) => jobs::run(args, output).await,
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
