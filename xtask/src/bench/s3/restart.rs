//! Restart with 100,000 pages of 16 KiB on NVMe: how soon it serves, and whether it still knows them.

use std::fs;

use anyhow::{Context, Result};

use super::{KIB, World};
use crate::bench::load::{Load, Until};
use crate::bench::node::{BenchNode, NodeArgs};
use crate::bench::page::Page;
use crate::bench::put;
use crate::bench::sign::Body;

const BUCKET: &str = "bench-bucket";
/// Bytes that must be on NVMe before the restart.
const PAGES: usize = 100_000;
/// More objects than that, because some of their pages stay in RAM.
const OBJECTS: usize = 106_000;
/// A page goes to NVMe when it leaves RAM and the disk keeps up, so filling takes more than one pass.
const PASSES_MAX: usize = 10;
const PAGE_BYTES: u64 = 16 * KIB;
/// Number of them that are read to find the hit rate.
const PROBES: usize = 20_000;

pub(super) fn run(world: &World<'_>, page: &mut Page) -> Result<()> {
    let lake = world.dir.join("lake");
    fs::create_dir_all(lake.join(BUCKET))?;
    let body = put::body(usize::try_from(PAGE_BYTES)?);
    for number in 0..OBJECTS {
        fs::write(lake.join(BUCKET).join(format!("p{number:06}")), &body)?;
    }
    let url = format!("file://{}", lake.display());
    let root = world.dir.join("node");
    // RAM is small, so that nearly everything must come from NVMe.
    let args = NodeArgs {
        binary: &world.binary,
        root: &root,
        lake: &url,
        ram: "64MiB",
        nvme: "4GiB",
    };
    let node = BenchNode::start(&args)?;
    let held = fill(&node)?;
    let before = hit_rate(&node)?;
    node.stop()?;
    let node = BenchNode::start(&args)?;
    read(&node, vec![0])?;
    let seconds = node.start_seconds;
    let after = hit_rate(&node)?;
    let what = "restart with 100,000 NVMe pages of 16 KiB: serving after";
    page.row(
        what,
        "≤ 2 s",
        format!("{seconds:.2} s, {held:.0} pages on NVMe"),
        seconds <= 2.0 && held >= PAGES as f64,
    );
    let shown = format!("{:.1} % before, {:.1} % after", before * 100.0, after * 100.0);
    page.row("same, hit rate", "as before", shown, after >= before - 0.02);
    Ok(())
}

/// Reads everything until NVMe holds enough; returns how many pages it holds.
fn fill(node: &BenchNode) -> Result<f64> {
    let mut held = 0.0;
    for _ in 0..PASSES_MAX {
        read(node, (0..OBJECTS).collect()).context("cannot fill the node")?;
        held = node.metric("forebay_tier_pages", "tier=\"nvme\"")?;
        if held >= PAGES as f64 {
            break;
        }
    }
    Ok(held)
}

fn read(node: &BenchNode, numbers: Vec<usize>) -> Result<u64> {
    let signer = node.signer()?;
    let sign = |number| signer.request("GET", &format!("/{BUCKET}/p{number:06}"), &[], Body::None);
    let requests = numbers.into_iter().map(sign).collect::<Result<Vec<_>>>()?;
    Ok(Load {
        address: node.s3,
        requests: &requests,
        connections: 32.min(requests.len()),
        until: Until::Once,
    }
    .run()?
    .bytes)
}

/// The share of bytes that a scattered fifth of the pages does not cost the lake.
fn hit_rate(node: &BenchNode) -> Result<f64> {
    let before = node.metric("forebay_lake_read_bytes_total", "")?;
    let bytes = read(node, (0..PROBES).map(|probe| probe * 7919 % OBJECTS).collect())? as f64;
    Ok(1.0 - (node.metric("forebay_lake_read_bytes_total", "")? - before) / bytes)
}
