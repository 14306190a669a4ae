//! Warm reads: large objects by wrk and by large reads, small signed ones, against nginx and SeaweedFS.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{KIB, MIB, World, make_file};
use crate::bench::load::{Load, Until};
use crate::bench::measure::{Rounds, Sample, Spread};
use crate::bench::node::{BenchNode, NodeArgs, exchange};
use crate::bench::page::Page;
use crate::bench::put;
use crate::bench::sign::{Body, Signer};
use crate::bench::stat::cpu_micros;
use crate::bench::web::{Nginx, wrk};
use crate::seaweed::{self, Seaweed};
use crate::tools::Venv;

const BUCKET: &str = "bench-bucket";
const LARGE: (usize, u64) = (8, 10 * MIB);
const SMALL: (usize, u64) = (1000, 16 * KIB);

/// A server under load.
struct Contender {
    name: &'static str,
    address: SocketAddr,
    pid: u32,
    signer: Signer,
}

pub(super) fn run(world: &World<'_>, page: &mut Page) -> Result<()> {
    let lake = world.dir.join("lake");
    for (name, (count, bytes)) in [("large", LARGE), ("small", SMALL)] {
        for number in 0..count {
            make_file(&lake.join(BUCKET).join(format!("{name}-{number}")), bytes)?;
        }
    }
    let node = BenchNode::start(&NodeArgs {
        binary: &world.binary,
        root: &world.dir.join("node"),
        lake: &format!("file://{}", lake.display()),
        ram: "1GiB",
        nvme: "0",
    })?;
    let nginx = Nginx::start(&lake, &world.dir.join("nginx"))?;
    let programs = Venv::ready(world.workspace, "programs")?;
    let peer = Seaweed::start(&programs.bin("weed"), &world.dir)?;
    let peer_address: SocketAddr = peer
        .endpoint
        .trim_start_matches("http://")
        .parse()
        .context("SeaweedFS's address")?;
    let peer_signer = Signer::new(seaweed::KEY, seaweed::SECRET, &peer_address.to_string())?;
    fill_peer(peer_address, &peer_signer)?;

    let ours = Contender {
        name: "forebay",
        address: node.s3,
        pid: node.pid(),
        signer: node.signer()?,
    };
    // nginx gets the same headers, and ignores them.
    let at_nginx = |name, address: SocketAddr| -> Result<Contender> {
        Ok(Contender {
            name,
            address,
            pid: nginx.pid(),
            signer: node.signer()?,
        })
    };
    let peer = Contender {
        name: "SeaweedFS",
        address: peer_address,
        pid: peer.pid(),
        signer: peer_signer,
    };

    by_wrk(world, page, &ours, &at_nginx("nginx", nginx.sendfile)?)?;
    let large = [
        ours,
        at_nginx("nginx, sendfile off", nginx.copying)?,
        at_nginx("nginx", nginx.sendfile)?,
        peer,
    ];
    large_reads(world, page, &large)?;
    let [ours, _, _, peer] = large;
    small_reads(
        world,
        page,
        &[ours, at_nginx("nginx, open_file_cache", nginx.cached)?, peer],
    )
}

fn fill_peer(address: SocketAddr, signer: &Signer) -> Result<()> {
    exchange(
        address,
        &signer.request("PUT", &format!("/{BUCKET}"), &[], Body::Unsigned(0))?,
    )?;
    for (name, (count, bytes)) in [("large", LARGE), ("small", SMALL)] {
        let body = put::body(usize::try_from(bytes)?);
        for number in 0..count {
            let path = format!("/{BUCKET}/{name}-{number}");
            let mut request = signer.request("PUT", &path, &[], Body::Unsigned(body.len()))?;
            request.extend_from_slice(&body);
            exchange(address, &request).with_context(|| format!("cannot fill SeaweedFS with {path}"))?;
        }
    }
    Ok(())
}

fn requests(contender: &Contender, name: &str, count: usize) -> Result<Vec<Vec<u8>>> {
    let signer = contender.signer.again()?;
    let sign = |number| signer.request("GET", &format!("/{BUCKET}/{name}-{number}"), &[], Body::None);
    (0..count).map(sign).collect()
}

fn by_wrk(world: &World<'_>, page: &mut Page, ours: &Contender, limit: &Contender) -> Result<()> {
    let both = [ours, limit];
    let rounds = Rounds::run(2, world.options.rounds, |index| {
        let contender = both[index];
        let paths = (0..LARGE.0).map(|number| {
            contender
                .signer
                .presigned("GET", &format!("/{BUCKET}/large-{number}"))
        });
        let before = cpu_micros(contender.pid);
        let paths = paths.collect::<Result<Vec<_>>>()?;
        let (bytes, seconds) = wrk(contender.address, &paths, 8, world.options.seconds, &world.dir)?;
        let gib = bytes / (1024.0 * MIB as f64);
        Ok(Sample {
            rate: bytes / seconds,
            cpu_micros: (cpu_micros(contender.pid) - before) / gib,
        })
    })?;
    let ratio = rounds.ratio(0, 1);
    let what = "warm GET, 10 MiB objects, 8 connections, blocks verified: wrk, of nginx";
    page.row(what, "≥ 0.85", ratio.shown(2), ratio.median >= 0.85);
    details(
        page,
        "10 MiB objects by wrk",
        "GB/s",
        1e9,
        "CPU ms per GiB",
        &both,
        &rounds,
    );
    Ok(())
}

fn load(
    world: &World<'_>,
    contenders: &[Contender],
    name: &str,
    count: usize,
    connections: usize,
    per: Per,
) -> Result<Rounds> {
    let signed = contenders
        .iter()
        .map(|one| requests(one, name, count))
        .collect::<Result<Vec<_>>>()?;
    let once = |index: usize, until: Until| {
        Load {
            address: contenders[index].address,
            requests: &signed[index],
            connections,
            until,
        }
        .run()
    };
    for (index, contender) in contenders.iter().enumerate() {
        once(index, Until::Once).with_context(|| format!("cannot warm {}", contender.name))?;
    }
    Rounds::run(contenders.len(), world.options.rounds, |index| {
        let before = cpu_micros(contenders[index].pid);
        let outcome = once(
            index,
            Until::Elapsed(Duration::from_secs_f64(world.options.seconds)),
        )?;
        let cpu = cpu_micros(contenders[index].pid) - before;
        let (units, rate) = match per {
            Per::Byte => (outcome.bytes as f64 / (1024.0 * MIB as f64), outcome.bytes as f64),
            Per::Request => (outcome.requests as f64, outcome.requests as f64),
        };
        Ok(Sample {
            rate: rate / outcome.seconds,
            cpu_micros: cpu / units,
        })
    })
}

#[derive(Clone, Copy)]
enum Per {
    Byte,
    Request,
}

fn large_reads(world: &World<'_>, page: &mut Page, contenders: &[Contender; 4]) -> Result<()> {
    let rounds = load(world, contenders, "large", LARGE.0, 8, Per::Byte)?;
    let mut row = |what, must, limit, least| {
        let ratio: Spread = rounds.ratio(0, limit);
        page.row(what, must, ratio.shown(2), ratio.median >= least);
    };
    row(
        "same, client reading 256 KiB at a time, of nginx without sendfile",
        "≥ 1.0",
        1,
        1.0,
    );
    row("same, of nginx with sendfile", "≥ 0.5", 2, 0.5);
    row("same, of the peer (SeaweedFS)", "≥ 2", 3, 2.0);
    let all: Vec<&Contender> = contenders.iter().collect();
    details(
        page,
        "10 MiB objects, reads of 256 KiB, 8 connections",
        "GB/s",
        1e9,
        "CPU ms per GiB",
        &all,
        &rounds,
    );
    Ok(())
}

fn small_reads(world: &World<'_>, page: &mut Page, contenders: &[Contender; 3]) -> Result<()> {
    let rounds = load(world, contenders, "small", SMALL.0, 32, Per::Request)?;
    let (limit, peer) = (rounds.ratio(0, 1), rounds.ratio(0, 2));
    let what = "warm GET, 16 KiB objects, signed, 32 connections, requests/s, of nginx (open_file_cache)";
    page.row(what, "≥ 0.5", limit.shown(2), limit.median >= 0.5);
    page.row(
        "same, of the peer (SeaweedFS)",
        "≥ 3",
        peer.shown(2),
        peer.median >= 3.0,
    );
    let all: Vec<&Contender> = contenders.iter().collect();
    details(
        page,
        "16 KiB objects, signed, 32 connections",
        "1000 requests/s",
        1e3,
        "CPU µs per request",
        &all,
        &rounds,
    );
    Ok(())
}

fn details(
    page: &mut Page,
    title: &str,
    rate: &str,
    scale: f64,
    cpu: &str,
    contenders: &[&Contender],
    rounds: &Rounds,
) {
    let cpu_scale = if cpu.contains("ms") { 1e3 } else { 1.0 };
    let scaled = |spread: Spread, by: f64| Spread {
        low: spread.low / by,
        median: spread.median / by,
        high: spread.high / by,
    };
    let mut lines = vec![
        format!("| server | {rate} | {cpu} |"),
        "| --- | --- | --- |".to_owned(),
    ];
    lines.extend(contenders.iter().enumerate().map(|(index, contender)| {
        let rate = scaled(rounds.rate(index), scale).shown(2);
        format!(
            "| {} | {rate} | {} |",
            contender.name,
            scaled(rounds.cpu_micros(index), cpu_scale).shown(0)
        )
    }));
    page.detail(title, lines);
}
