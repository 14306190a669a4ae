//! `cargo xtask bench NAME`: measures, and writes docs/benchmarks/NAME.md.
//!
//! Everything is measured beside its limit in one run, in A-B-B-A order, and written down as ratios: seconds
//! of one machine mean nothing on another. A bench builds the release binary, and itself, before it starts,
//! so that the load generator is compiled as well as what it loads.

mod checkpoint;
mod client;
mod congestion;
mod dataset;
mod goals;
mod load;
mod measure;
mod node;
mod page;
mod put;
mod relay;
mod s3;
mod script;
mod sign;
mod stat;
mod web;

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};

use crate::command;
use crate::workspace::Workspace;

/// Benches by name.
#[derive(Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    name: Name,
}

#[derive(Subcommand)]
enum Name {
    /// The S3 endpoint: warm and cold reads, writes, memory, restart.
    S3(S3Args),
    /// The client on the host: views, copies, batches, fsspec, memory.
    Client(client::ClientArgs),
    /// Datasets: samples, tokens, start, resume, a slow lake, a small cache, many ranks; beside other
    /// libraries.
    Dataset(dataset::DatasetArgs),
    /// Checkpoints: stall, durable saves, loads, views; beside memcpy, plain files and other libraries.
    Checkpoint(checkpoint::CheckpointArgs),
    /// One writer of the yardstick for writes: md5 + write + fsync.
    #[command(hide = true)]
    Writer {
        /// Where to write.
        path: PathBuf,
        /// How much.
        bytes: u64,
    },
}

/// Options that the benches share.
#[derive(Args)]
pub(crate) struct S3Args {
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// How often each A-B-B-A round is run.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Only rows whose name contains this; the page is printed, not written.
    #[arg(long)]
    only: Option<String>,
}

/// Runs a bench; `false` if a figure misses what it must reach.
pub(crate) fn run(args: &BenchArgs) -> Result<bool> {
    match &args.name {
        // Does not look for the workspace: that takes longer than the write.
        Name::Writer { path, bytes } => put::write_and_sync(path, *bytes).map(|()| true),
        Name::S3(options) if !cfg!(debug_assertions) => s3::run(&Workspace::find()?, options),
        Name::Client(options) if !cfg!(debug_assertions) => client::run(&Workspace::find()?, options),
        Name::Dataset(options) if !cfg!(debug_assertions) => dataset::run(&Workspace::find()?, options),
        Name::Checkpoint(options) if !cfg!(debug_assertions) => checkpoint::run(&Workspace::find()?, options),
        Name::S3(_) | Name::Client(_) | Name::Dataset(_) | Name::Checkpoint(_) => {
            again_in_release(&Workspace::find()?)
        }
    }
}

/// Returns how busy the machine is now; 0 is a quiet one.
fn load_average() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').next().unwrap_or("unknown").to_owned()
}

fn again_in_release(workspace: &Workspace) -> Result<bool> {
    let mut build = command::cargo(&workspace.root);
    build.args([
        "build",
        "--release",
        "--locked",
        "--package",
        "forebay-cli",
        "--package",
        "xtask",
    ]);
    if !command::succeeds(&mut build)? {
        bail!("the release build failed");
    }
    let mut again = command::clean(workspace.target.join("release/xtask"));
    command::succeeds(again.args(std::env::args_os().skip(1)))
}
