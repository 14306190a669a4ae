//! Cost of reads for the lake, counted on the lake's side: SeaweedFS behind a relay that counts.

use std::net::SocketAddr;
use std::thread;

use anyhow::{Context, Result};

use super::{KIB, MIB, World};
use crate::bench::load::{Load, Until};
use crate::bench::node::{BenchNode, NodeArgs, exchange};
use crate::bench::page::Page;
use crate::bench::put;
use crate::bench::relay::Relay;
use crate::bench::sign::{Body, Signer};
use crate::seaweed::{self, Seaweed};
use crate::tools::Venv;

const LAKE: &str = "bench-lake";
const BUCKET: &str = "bench-bucket";
const READERS: usize = 64;
const SHARED_BYTES: u64 = 256 * MIB;
/// Objects are put into the lake in parts of this size.
const PART_BYTES: u64 = 64 * MIB;

pub(super) fn run(world: &World<'_>, page: &mut Page) -> Result<()> {
    let programs = Venv::ready(world.workspace, "programs")?;
    let lake = Seaweed::start(&programs.bin("weed"), &world.dir)?;
    let address: SocketAddr = lake
        .endpoint
        .trim_start_matches("http://")
        .parse()
        .context("SeaweedFS's address")?;
    let signer = Signer::new(seaweed::KEY, seaweed::SECRET, &address.to_string())?;
    exchange(
        address,
        &signer.request("PUT", &format!("/{LAKE}"), &[], Body::Unsigned(0))?,
    )?;
    let relay = Relay::start(address)?;
    let node = BenchNode::start(&NodeArgs {
        binary: &world.binary,
        root: &world.dir.join("node"),
        lake: &format!(
            "s3://{LAKE}?endpoint=http://{}&region=us-east-1&style=path",
            relay.address
        ),
        ram: "1GiB",
        nvme: "0",
    })?;
    node.call("PUT", &format!("/{BUCKET}"), &[])
        .context("cannot make a bucket")?;
    let put = |key: &str, bytes: u64| {
        put_past_the_node(address, &signer, &format!("/{LAKE}/{BUCKET}/{key}"), bytes)
    };
    put("huge", 1024 * MIB)?;
    put("shared", SHARED_BYTES)?;

    let range = |first: u64, bytes: u64| -> Result<(u64, f64)> {
        let (before, ours) = (
            relay.bytes_from_lake(),
            node.metric("forebay_lake_read_bytes_total", "")?,
        );
        let header = format!("bytes={first}-{}", first + bytes - 1);
        node.call("GET", &format!("/{BUCKET}/huge"), &[("range", &header)])?;
        Ok((
            relay.bytes_from_lake() - before,
            node.metric("forebay_lake_read_bytes_total", "")? - ours,
        ))
    };
    let (large, large_ours) = range(300 * MIB + 12_345, MIB)?;
    let (small, small_ours) = range(700 * MIB + 54_321, 52_000)?;
    let what = "1 MiB range of a cold 1 GiB object, bytes from the lake";
    let shown = |bytes: u64, ours: f64, unit: u64| {
        format!(
            "{:.2} (our own count {:.2})",
            bytes as f64 / unit as f64,
            ours / unit as f64
        )
    };
    page.row(
        what,
        "≤ 1.2 MiB",
        shown(large, large_ours, MIB) + " MiB",
        large as f64 <= 1.2 * MIB as f64,
    );
    let what = "52 KB range of the same, bytes from the lake";
    page.row(
        what,
        "≤ 192 KiB",
        shown(small, small_ours, KIB) + " KiB",
        small <= 192 * KIB,
    );
    many_readers(page, &node, &relay)
}

fn many_readers(page: &mut Page, node: &BenchNode, relay: &Relay) -> Result<()> {
    let (before, ours) = (
        relay.bytes_from_lake(),
        node.metric("forebay_lake_read_bytes_total", "")?,
    );
    let request = node
        .signer()?
        .request("GET", &format!("/{BUCKET}/shared"), &[], Body::None)?;
    let load = Load {
        address: node.s3,
        requests: &[request],
        connections: READERS,
        until: Until::EachSendsAll,
    };
    let outcome = thread::scope(|scope| scope.spawn(|| load.run()).join())
        .map_err(|_| anyhow::anyhow!("a reader panicked"))??;
    anyhow::ensure!(
        outcome.bytes == READERS as u64 * SHARED_BYTES,
        "the readers got {} bytes",
        outcome.bytes
    );
    let lake = (relay.bytes_from_lake() - before) as f64 / SHARED_BYTES as f64;
    let ours = (node.metric("forebay_lake_read_bytes_total", "")? - ours) / SHARED_BYTES as f64;
    let what = "64 readers of one cold 256 MiB object, bytes from the lake";
    page.row(
        what,
        "≤ 1.02 x object",
        format!("{lake:.4} x (our own count {ours:.4} x)"),
        lake <= 1.02,
    );
    Ok(())
}

/// Writes an object straight into SeaweedFS.
pub(super) fn put_past_the_node(address: SocketAddr, signer: &Signer, path: &str, bytes: u64) -> Result<()> {
    // One large PUT: SeaweedFS cuts it itself. Sent piece by piece, so that no copy of it lies in memory.
    use std::io::Write;
    let mut stream = crate::bench::load::connect(address)?;
    stream.write_all(&signer.request("PUT", path, &[], Body::Unsigned(usize::try_from(bytes)?))?)?;
    let piece = put::body(usize::try_from(PART_BYTES)?);
    for _ in 0..bytes / PART_BYTES {
        stream.write_all(&piece)?;
    }
    crate::bench::load::answer(&mut stream, &mut vec![0; 64 * 1024])?;
    Ok(())
}
