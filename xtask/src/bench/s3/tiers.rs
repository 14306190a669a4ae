//! A working set of 3.5x the RAM budget with room on NVMe: what later passes cost the lake, and what the disk
//! costs the first. Counted on the lake's side, behind a relay.

use std::net::SocketAddr;

use anyhow::{Context, Result};

use super::lake::put_past_the_node;
use super::{MIB, World};
use crate::bench::load::{Load, Until};
use crate::bench::node::{BenchNode, NodeArgs, exchange};
use crate::bench::page::Page;
use crate::bench::relay::Relay;
use crate::bench::sign::{Body, Signer};
use crate::seaweed::{self, Seaweed};
use crate::tools::Venv;

const LAKE: &str = "bench-lake";
const BUCKET: &str = "bench-bucket";
const RAM: &str = "512MiB";
const OBJECTS: u64 = 28;
const OBJECT_BYTES: u64 = 64 * MIB;
const SET_BYTES: u64 = OBJECTS * OBJECT_BYTES;
const READERS: usize = 8;
/// The last pass over the set; the first one fills.
const PASSES: usize = 4;

pub(super) fn run(world: &World<'_>, page: &mut Page) -> Result<()> {
    let programs = Venv::ready(world.workspace, "programs")?;
    let lake = Seaweed::start(&programs.bin("weed"), &world.dir)?;
    let address: SocketAddr = lake
        .endpoint
        .trim_start_matches("http://")
        .parse()
        .context("SeaweedFS's address")?;
    let signer = Signer::new(seaweed::KEY, seaweed::SECRET, &address.to_string())?;
    let make_lake = signer.request("PUT", &format!("/{LAKE}"), &[], Body::Unsigned(0))?;
    exchange(address, &make_lake)?;
    for number in 0..OBJECTS {
        let path = format!("/{LAKE}/{BUCKET}/o{number}");
        put_past_the_node(address, &signer, &path, OBJECT_BYTES)?;
    }
    let relay = Relay::start(address)?;
    let mut rates = [Vec::new(), Vec::new()];
    let mut later_bytes = 0;
    // A-B-B-A: without NVMe, with, with, without; each node begins with empty tiers.
    for (turn, has_nvme) in [false, true, true, false].into_iter().enumerate() {
        let node = BenchNode::start(&NodeArgs {
            binary: &world.binary,
            root: &world.dir.join(format!("node-{turn}")),
            lake: &format!(
                "s3://{LAKE}?endpoint=http://{}&region=us-east-1&style=path",
                relay.address
            ),
            ram: RAM,
            nvme: if has_nvme { "4GiB" } else { "0" },
        })?;
        rates[usize::from(has_nvme)].push(pass(&node)?);
        if has_nvme {
            let before = relay.bytes_from_lake();
            for _ in 2..=PASSES {
                pass(&node)?;
            }
            later_bytes = later_bytes.max(relay.bytes_from_lake() - before);
        }
        node.stop()?;
    }
    show(page, &rates, later_bytes);
    Ok(())
}

/// Reads the whole set once; returns bytes a second.
fn pass(node: &BenchNode) -> Result<f64> {
    let signer = node.signer()?;
    let sign = |number| signer.request("GET", &format!("/{BUCKET}/o{number}"), &[], Body::None);
    let requests = (0..OBJECTS).map(sign).collect::<Result<Vec<_>>>()?;
    let outcome = Load {
        address: node.s3,
        requests: &requests,
        connections: READERS,
        until: Until::Once,
    }
    .run()?;
    Ok(outcome.bytes as f64 / outcome.seconds)
}

fn show(page: &mut Page, rates: &[Vec<f64>; 2], later_bytes: u64) {
    let mean = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len() as f64;
    let (without, with) = (mean(&rates[0]), mean(&rates[1]));
    let share = later_bytes as f64 / SET_BYTES as f64;
    page.row(
        "passes 2 to 4 of a set of 3.5x RAM with room on NVMe, bytes from the lake",
        "≤ 0.01x of the set",
        format!("{share:.4}x ({} MiB)", later_bytes / MIB),
        share <= 0.01,
    );
    page.row(
        "first pass of the same, rate against a node without NVMe",
        "≥ 0.8",
        format!(
            "{:.2} ({:.0} and {:.0} MiB/s)",
            with / without,
            with / MIB as f64,
            without / MIB as f64
        ),
        with >= 0.8 * without,
    );
}
