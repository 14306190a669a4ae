//! `cargo xtask bench checkpoint`: saves and loads of a 2.2 GB state beside memcpy, plain files and other
//! libraries.
//!
//! The work is done by bench/checkpoint.py with the release wheel in an environment of its own; all groups
//! share one node whose lake is a folder.

use std::fs;

use anyhow::Result;
use clap::Args;

use super::goals::{Bar, Goal, add_rows, goal, groups, opening, shown};
use super::node::{BenchNode, NodeArgs};
use super::page::{Page, publish};
use super::script::{Script, admin_and_data};
use crate::workspace::Workspace;

const PAGE: &str = "docs/benchmarks/checkpoint.md";

/// Memory of the node; half of it is for what is staged.
const RAM: &str = "6GiB";

/// The last group; it has a cold node of its own, before this lake.
const RESTORE: &str = "restore";
const SLOW_LAKE: &str = "?latency_ms=20&bytes_per_s=200000000";

/// Options of the bench.
#[derive(Args)]
pub(crate) struct CheckpointArgs {
    /// How often each round is run.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Only groups whose name contains this; the page is printed, not written.
    #[arg(long)]
    only: Option<String>,
}

const GOALS: [Goal; 27] = [
    goal(
        "stall",
        "stall by memcpy",
        "stall of a save into a warm arena, by memcpy of the same tensors into warm memory with as many threads",
        "≤ 1.3",
        Bar::AtMost(1.3),
    ),
    goal(
        "stall",
        "stall by dcp save",
        "same, by a DCP save (synced)",
        "≤ 0.15",
        Bar::AtMost(0.15),
    ),
    goal(
        "stall",
        "durable by plain write",
        "durable in the lake, hashed, by plain write and fsync",
        "≤ 1.3",
        Bar::AtMost(1.3),
    ),
    shown("stall", "node cpu", "CPU of the node for that, seconds per GB"),
    shown(
        "stall",
        "dcp save by plain write",
        "DCP save, two threads, by plain write and fsync",
    ),
    goal(
        "busy",
        "stall and slow-down by dcp save",
        "stall and slow-down of steps that keep all cores busy, by a DCP save",
        "≤ 0.5",
        Bar::AtMost(0.5),
    ),
    goal(
        "busy",
        "durable by dcp save",
        "durable meanwhile, by a DCP save on idle cores",
        "≤ 3",
        Bar::AtMost(3.0),
    ),
    shown(
        "busy",
        "dcp async stall and slow-down",
        "DCP async_save, stall and slow-down of the same",
    ),
    goal(
        "load",
        "load by plain read",
        "load into tensors that are there, proved, page cache warm, by plain read",
        "≤ 1.3",
        Bar::AtMost(1.3),
    ),
    goal(
        "load",
        "dcp load by ours",
        "DCP load by ours",
        "≥ 2",
        Bar::AtLeast(2.0),
    ),
    goal(
        "views",
        "views memory",
        "4 processes that open a 0.44 GB model as mapped views: memory of all, in copies",
        "≤ 1.15",
        Bar::AtMost(1.15),
    ),
    goal(
        "views",
        "views lake bytes",
        "same, bytes from the lake, in copies",
        "≤ 1.02",
        Bar::AtMost(1.02),
    ),
    goal(
        "frozen",
        "bytes written again",
        "second save with 90 % of the bytes unchanged: written, by all",
        "≤ 0.12",
        Bar::AtMost(0.12),
    ),
    goal(
        "memory",
        "memory",
        "memory of trainer and node beyond state and arena, MiB",
        "≤ 256",
        Bar::AtMost(256.0),
    ),
    shown(
        "others",
        "torch save",
        "torch.save and fsync, by plain write and fsync",
    ),
    shown(
        "others",
        "torch load",
        "torch.load into the same tensors, by plain read",
    ),
    shown("others", "dcp save", "DCP save, by plain write and fsync"),
    shown("others", "dcp load", "DCP load, by plain read"),
    shown(
        "others",
        "safetensors save",
        "safetensors save_file and fsync, by plain write and fsync",
    ),
    shown(
        "others",
        "safetensors load",
        "safetensors load_file into the same tensors, by plain read",
    ),
    shown(
        "others",
        "torch_checkpointing save",
        "torch_checkpointing save and sync, by plain write and fsync",
    ),
    shown(
        "others",
        "torch_checkpointing load",
        "torch_checkpointing load, by plain read",
    ),
    shown("others", "state", "the state, GB"),
    shown(
        "differential",
        "differential bytes",
        "steps stored as differences, a third of all elements changed a little: written, by all",
    ),
    shown(
        "differential",
        "differential chain",
        "same, differences in a chain at most",
    ),
    shown(
        "differential",
        "differential warm",
        "same, load of the end of such a chain by that of the same state stored whole, both from the node's RAM",
    ),
    goal(
        "restore",
        "restore",
        "same, cold node before a lake of 200 MB/s and 20 ms",
        "≤ 2",
        Bar::AtMost(2.0),
    ),
];

pub(super) fn run(workspace: &Workspace, options: &CheckpointArgs) -> Result<bool> {
    let load = super::load_average();
    let script = Script::ready(workspace, "checkpoint", "torch")?;
    let dir = workspace.target.join("bench/checkpoint");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(dir.join("lake"))?;
    let start = |query: &str| {
        BenchNode::start(&NodeArgs {
            binary: &workspace.target.join("release/forebay"),
            root: &dir.join("node"),
            lake: &format!("file://{}{query}", dir.join("lake").display()),
            ram: RAM,
            nvme: "0",
        })
    };
    let mut node = start("")?;
    let mut page = Page::default();
    for group in groups(&GOALS) {
        if options.only.as_deref().is_some_and(|only| !group.contains(only)) {
            continue;
        }
        if group == RESTORE {
            drop(node);
            node = start(SLOW_LAKE)?;
        }
        let found = script.measure(group, &node, options.rounds, admin_and_data(&node, &dir))?;
        add_rows(&mut page, &GOALS, group, &found)?;
    }
    drop(node);
    let _ = fs::remove_dir_all(&dir);
    let again = format!("checkpoint --rounds {}", options.rounds);
    let more = "A state of 2.2 GB in 492 tensors (bf16 weights, fp32 moments); lake and files of peers are folders of one file system. Every save of ours changes all \
                values, is hashed (BLAKE3, CRC32C) and committed.";
    let text = page.text("Checkpoints", &opening(&again, &load, more)?);
    publish(workspace, PAGE, &text, options.only.as_deref())?;
    Ok(page.is_good())
}
