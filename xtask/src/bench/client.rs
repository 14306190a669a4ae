//! `cargo xtask bench client`: the client on the host against memcpy, plain memory, and s3fs through our own
//! S3 edge.
//!
//! The work is done by bench/client.py with the release wheel in a virtual environment of its own, so that
//! what is measured is what an ML engineer calls. One node serves all groups from one folder lake; it is warm
//! before a group is timed.

use std::fs;

use anyhow::Result;
use clap::Args;

use super::goals::{Bar, Goal, add_rows, goal, groups, opening};
use super::node::{BenchNode, KEY, NodeArgs, SECRET};
use super::page::{Page, publish};
use super::s3::{MIB, make_file};
use super::script::Script;
use crate::workspace::Workspace;

const PAGE: &str = "docs/benchmarks/client.md";

/// Options of the bench.
#[derive(Args)]
pub(crate) struct ClientArgs {
    /// Seconds of each measurement of CPU time.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// How often each A-B-B-A round is run.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Only groups whose name contains this; the page is printed, not written.
    #[arg(long)]
    only: Option<String>,
}

/// Memory comes first: it counts what one node and eight processes gain while the object comes in.
const GOALS: [Goal; 7] = [
    goal(
        "memory",
        "memory",
        "memory of 8 processes that hold the same 1 GiB, with the node, in GiB",
        "≤ 1.1",
        Bar::AtMost(1.1),
    ),
    goal(
        "view",
        "view first",
        "mapped view of 256 MiB, get and first sum by numpy, of summing plain memory",
        "≥ 1.0",
        Bar::AtLeast(1.0),
    ),
    goal(
        "view",
        "view again",
        "same, summed again",
        "≥ 1.0",
        Bar::AtLeast(1.0),
    ),
    goal(
        "read_into",
        "read_into",
        "warm read_into of 64 MiB, of memcpy",
        "≥ 0.8",
        Bar::AtLeast(0.8),
    ),
    goal(
        "batch",
        "batch 4 KiB",
        "batch of 64 warm ranges of 4 KiB, CPU µs per item, client and node",
        "≤ 3",
        Bar::AtMost(3.0),
    ),
    goal(
        "batch",
        "batch 52 KB",
        "batch of 64 warm ranges of 52 KB as views, CPU µs per item, client and node",
        "≤ 8",
        Bar::AtMost(8.0),
    ),
    goal(
        "fsspec",
        "fsspec",
        "fsspec read of 1 GiB in reads of 4 MiB, of s3fs through our S3 edge",
        "≥ 5",
        Bar::AtLeast(5.0),
    ),
];

pub(super) fn run(workspace: &Workspace, options: &ClientArgs) -> Result<bool> {
    let load = super::load_average();
    let script = Script::ready(workspace, "client", "bench-client")?;
    let dir = workspace.target.join("bench/client");
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    for (name, bytes) in [("256mib", 256 * MIB), ("64mib", 64 * MIB), ("1gib", 1024 * MIB)] {
        make_file(&dir.join("lake/bench").join(name), bytes)?;
    }
    let lake = format!("file://{}", dir.join("lake").display());
    let node = BenchNode::start(&NodeArgs {
        binary: &workspace.target.join("release/forebay"),
        root: &dir,
        lake: &lake,
        ram: "6GiB",
        nvme: "0",
    })?;
    let mut page = Page::default();
    for group in groups(&GOALS) {
        if options.only.as_deref().is_none_or(|only| group.contains(only)) {
            let s3 = format!("http://{}", node.s3);
            let seconds = options.seconds.to_string();
            let more = [
                "--s3",
                &s3,
                "--key",
                KEY,
                "--secret",
                SECRET,
                "--seconds",
                &seconds,
            ];
            let figures = script.measure(group, &node, options.rounds, more)?;
            add_rows(&mut page, &GOALS, group, &figures)?;
        }
    }
    drop(node);
    fs::remove_dir_all(&dir)?;
    let again = format!("client --seconds {} --rounds {}", options.seconds, options.rounds);
    let more = "A ratio says how fast we are as a share of the limit.";
    let text = page.text("The client on the host", &opening(&again, &load, more)?);
    publish(workspace, PAGE, &text, options.only.as_deref())?;
    Ok(page.is_good())
}
