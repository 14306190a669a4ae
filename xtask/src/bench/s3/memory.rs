//! Resident memory while ten times the RAM budget streams through.

use std::fs;

use anyhow::Result;

use super::{MIB, World};
use crate::bench::load::{Load, Until};
use crate::bench::node::{BenchNode, NodeArgs};
use crate::bench::page::Page;
use crate::bench::sign::Body;

const BUCKET: &str = "bench-bucket";
const BUDGET_BYTES: u64 = 256 * MIB;
const OBJECTS: u64 = 20;
const ALLOWANCE_BYTES: u64 = 256 * MIB;

pub(super) fn run(world: &World<'_>, page: &mut Page) -> Result<()> {
    let lake = world.dir.join("lake");
    fs::create_dir_all(lake.join(BUCKET))?;
    for number in 0..OBJECTS {
        // Sparse: the bytes do not matter here, and the disk stays out of it.
        fs::File::create(lake.join(BUCKET).join(format!("o{number}")))?
            .set_len(10 * BUDGET_BYTES / OBJECTS)?;
    }
    let node = BenchNode::start(&NodeArgs {
        binary: &world.binary,
        root: &world.dir.join("node"),
        lake: &format!("file://{}", lake.display()),
        ram: "256MiB",
        nvme: "1GiB",
    })?;
    let signer = node.signer()?;
    let sign = |number| signer.request("GET", &format!("/{BUCKET}/o{number}"), &[], Body::None);
    let requests = (0..OBJECTS).map(sign);
    let requests = requests.collect::<Result<Vec<_>>>()?;
    let outcome = Load {
        address: node.s3,
        requests: &requests,
        connections: 8,
        until: Until::Once,
    }
    .run()?;
    let peak = node.resident_bytes_peak()?;
    let shown = format!(
        "budget + {} MiB (peak {} MiB, {} MiB streamed by 8 readers)",
        peak.saturating_sub(BUDGET_BYTES) / MIB,
        peak / MIB,
        outcome.bytes / MIB
    );
    let what = "resident memory while streaming 10x the RAM budget (256 MiB)";
    page.row(
        what,
        "≤ budget + 256 MiB",
        shown,
        peak <= BUDGET_BYTES + ALLOWANCE_BYTES,
    );
    Ok(())
}
