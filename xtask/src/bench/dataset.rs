//! `cargo xtask bench dataset`: loaders beside webdataset, mosaicml-streaming, LitData and pyarrow, and what
//! a slow lake and a small cache make of them.
//!
//! The work is done by bench/dataset.py with the release wheel in an environment of its own, on data that
//! bench/dataset_data.py makes once (about 5 GB under target/bench/dataset, left there for the next run).
//! Each group of rows names the node that it needs; groups with the same one share it.

use std::fs;
use std::path::Path;

use anyhow::Result;
use clap::Args;

use super::goals::{Bar, Figure, Goal, add_rows, figures, goal, groups, opening, shown};
use super::node::{BenchNode, NodeArgs};
use super::page::{Page, publish};
use super::script::{Script, admin_and_data};
use crate::command;
use crate::workspace::Workspace;

const PAGE: &str = "docs/benchmarks/dataset.md";

/// Options of the bench.
#[derive(Args)]
pub(crate) struct DatasetArgs {
    /// How often each A-B-B-A round is run.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Only groups whose name contains this; the page is printed, not written.
    #[arg(long)]
    only: Option<String>,
}

const GOALS: [Goal; 30] = [
    goal(
        "images",
        "forebay",
        "tar, 52 KB samples, window shuffle, CRC checked, handed over: CPU µs per sample, client and node",
        "≤ 15",
        Bar::AtMost(15.0),
    ),
    shown("images", "webdataset", "webdataset, tar, CPU µs per sample"),
    goal(
        "images",
        "webdataset by ours",
        "same, webdataset's cost by ours",
        "≥ 10",
        Bar::AtLeast(10.0),
    ),
    goal(
        "images",
        "mds by ours",
        "same, mosaicml-streaming's",
        "≥ 8",
        Bar::AtLeast(8.0),
    ),
    goal(
        "images",
        "litdata by ours",
        "same, LitData's",
        "≥ 2",
        Bar::AtLeast(2.0),
    ),
    shown("images", "parquet by ours", "same, pyarrow's (row groups)"),
    shown(
        "images",
        "forebay global",
        "tar, global shuffle, CPU µs per sample",
    ),
    goal(
        "tokens",
        "forebay",
        "tokens of 4 KB, window shuffle, packed: CPU µs per sample, client and node",
        "≤ 5",
        Bar::AtMost(5.0),
    ),
    shown("tokens", "litdata", "LitData, tokens, CPU µs per sample"),
    goal(
        "tokens",
        "litdata by ours",
        "same, LitData's cost by ours",
        "≥ 4",
        Bar::AtLeast(4.0),
    ),
    shown("tokens", "webdataset by ours", "same, webdataset's"),
    shown("tokens", "mds by ours", "same, mosaicml-streaming's"),
    shown("tokens", "parquet by ours", "same, pyarrow's (row groups)"),
    goal(
        "epoch",
        "epoch start",
        "start of an epoch over 10^9 samples in 10^5 shards, seconds",
        "≤ 0.2",
        Bar::AtMost(0.2),
    ),
    goal(
        "epoch",
        "epoch memory",
        "memory of that, MiB",
        "≤ 64",
        Bar::AtMost(64.0),
    ),
    shown(
        "epoch",
        "epoch at 50 %",
        "its middle, asked for directly, seconds",
    ),
    goal(
        "resume",
        "resume",
        "exact resume of the image epoch at 50 %, first batch, seconds",
        "≤ 0.2",
        Bar::AtMost(0.2),
    ),
    goal(
        "index",
        "index",
        "index of the tar shards with CRC32C, GB per CPU second, client and warm node",
        "≥ 1",
        Bar::AtLeast(1.0),
    ),
    shown(
        "lake",
        "first batch",
        "lake of 200 MB/s and 20 ms, cold node, window shuffle: first batch, seconds",
    ),
    goal(
        "lake",
        "first batch by ideal",
        "same, by three latencies and its bytes at that rate",
        "≤ 1.5",
        Bar::AtMost(1.5),
    ),
    goal(
        "lake",
        "steady rate",
        "rest of that epoch, by the rate of the lake",
        "≥ 0.95",
        Bar::AtLeast(0.95),
    ),
    shown(
        "lake",
        "plain rate",
        "same lake, whole objects read eight at a time, by its rate: the most there is",
    ),
    goal(
        "far",
        "first batch latencies",
        "lake of 500 ms and any rate, cold node: first batch in latencies, which is dependent requests to the lake",
        "≤ 3",
        Bar::AtMost(3.0),
    ),
    goal(
        "half",
        "half",
        "second epoch with a cache of half the data: from the cache, by (cache − prefetch) / data",
        "≥ 0.9",
        Bar::AtLeast(0.9),
    ),
    shown("half", "half share", "same, share of the data from the cache"),
    goal(
        "ranks",
        "ranks lake",
        "8 ranks on one host, cold node: lake bytes by the data",
        "≤ 1.02",
        Bar::AtMost(1.02),
    ),
    goal(
        "ranks",
        "ranks memory",
        "same, memory that the node and all ranks took, what they share counted once, by the data: one copy, what the node keeps ready, \
         and what threads and Python take in each process",
        "≤ 1.1",
        Bar::AtMost(1.1),
    ),
    shown(
        "ranks",
        "ranks cache",
        "same, shared memory alone, which is the cache",
    ),
    shown(
        "ranks",
        "ranks own",
        "same, memory of its own that a rank took, MiB",
    ),
    shown(
        "ranks",
        "ranks node",
        "same, memory of its own that the node took, MiB",
    ),
];

/// The node of a group: its RAM, and what is behind its lake's URL.
fn node_of(group: &str) -> (&'static str, &'static str) {
    match group {
        "lake" => ("6GiB", "?latency_ms=20&bytes_per_s=200000000"),
        "far" => ("6GiB", "?latency_ms=500"),
        "half" => ("512MiB", ""),
        _ => ("6GiB", ""),
    }
}

/// Groups that begin with a cold node, each round with another one.
fn is_cold(group: &str) -> bool {
    matches!(group, "lake" | "far" | "half" | "ranks")
}

pub(super) fn run(workspace: &Workspace, options: &DatasetArgs) -> Result<bool> {
    let load = super::load_average();
    let script = Script::ready(workspace, "dataset", "bench-dataset")?;
    let dir = workspace.target.join("bench/dataset");
    fs::create_dir_all(&dir)?;
    command::output(script.beside("dataset_data").arg(&dir))?;
    let mut page = Page::default();
    let mut node: Option<(BenchNode, (&str, &str))> = None;
    for group in groups(&GOALS) {
        if options.only.as_deref().is_some_and(|only| !group.contains(only)) {
            continue;
        }
        let found = if group == "epoch" {
            epoch_start(workspace)?
        } else {
            let wanted = node_of(group);
            if is_cold(group) {
                drop(node.take());
                add_rows(
                    &mut page,
                    &GOALS,
                    group,
                    &cold(workspace, &script, options, &dir, group)?,
                )?;
                continue;
            }
            if node.as_ref().is_none_or(|(_, had)| *had != wanted) {
                drop(node.take());
                node = Some((start(workspace, &dir, wanted)?, wanted));
            }
            let Some((node, _)) = &node else { continue };
            script.measure(group, node, options.rounds, admin_and_data(node, &dir))?
        };
        add_rows(&mut page, &GOALS, group, &found)?;
    }
    drop(node);
    let again = format!("dataset --rounds {}", options.rounds);
    let more = "20,000 images of 10 to 110 KB (mean 52 KB) in 40 shards, 50,000 token samples of 4 KB, page cache warm, one process without workers. \
                Shuffles are not equally strong: ours mixes windows of 128 MiB of 16 places or more, webdataset a buffer of 1,000, LitData chunk by chunk.";
    let text = page.text("Datasets", &opening(&again, &load, more)?);
    publish(workspace, PAGE, &text, options.only.as_deref())?;
    Ok(page.is_good())
}

fn start(workspace: &Workspace, dir: &Path, (ram, query): (&str, &str)) -> Result<BenchNode> {
    let lake = format!("file://{}{query}", dir.join("lake").display());
    BenchNode::start(&NodeArgs {
        binary: &workspace.target.join("release/forebay"),
        root: &dir.join("node"),
        lake: &lake,
        ram,
        nvme: "0",
    })
}

/// One round for each of so many cold nodes.
fn cold(
    workspace: &Workspace,
    script: &Script,
    options: &DatasetArgs,
    dir: &Path,
    group: &str,
) -> Result<Vec<Figure>> {
    let mut found: Vec<Figure> = Vec::new();
    for _ in 0..options.rounds {
        let node = start(workspace, dir, node_of(group))?;
        let round = script.measure(group, &node, 1, admin_and_data(&node, dir))?;
        if found.is_empty() {
            found = round;
        } else {
            found.iter_mut().zip(round).for_each(|(all, more)| all.join(more));
        }
    }
    Ok(found)
}

/// The order of 10^9 samples, by an example of the dataset crate.
fn epoch_start(workspace: &Workspace) -> Result<Vec<Figure>> {
    let mut cargo = command::cargo(&workspace.root);
    cargo.args([
        "run",
        "--release",
        "--locked",
        "--quiet",
        "--package",
        "forebay-dataset",
    ]);
    figures(cargo.args(["--example", "epoch_start"]))
}
