//! Writes to a folder lake against processes that do just what must be done: md5 + write + fsync.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::{MIB, World};
use crate::bench::measure::{Rounds, Sample};
use crate::bench::node::{BenchNode, NodeArgs, exchange};
use crate::bench::page::Page;
use crate::bench::put;
use crate::bench::sign::Body;
use crate::bench::stat::cpu_micros;
use crate::command;

const BUCKET: &str = "bench-bucket";
const WRITERS: usize = 4;
const BYTES: u64 = 64 * MIB;

pub(super) fn run(world: &World<'_>, page: &mut Page) -> Result<()> {
    let lake = world.dir.join("lake");
    fs::create_dir_all(&lake)?;
    let plain = world.dir.join("plain");
    fs::create_dir_all(&plain)?;
    let node = BenchNode::start(&NodeArgs {
        binary: &world.binary,
        root: &world.dir.join("node"),
        lake: &format!("file://{}", lake.display()),
        ram: "1GiB",
        nvme: "0",
    })?;
    node.call("PUT", &format!("/{BUCKET}"), &[])?;
    let body = put::body(usize::try_from(BYTES)?);
    let puts = |name: &str| {
        let signer = node.signer()?;
        let requests = (0..WRITERS).map(|number| {
            let path = format!("/{BUCKET}/{name}-{number}");
            signer.request("PUT", &path, &[], Body::Unsigned(body.len()))
        });
        requests.collect::<Result<Vec<_>>>()
    };
    send_all(&node, &puts("warm")?, &body)?;
    write_all(&plain)?;
    let rounds = Rounds::run(2, world.options.rounds * 2, |contender| {
        let heads = puts("put")?;
        let before = cpu_micros(node.pid());
        let start = Instant::now();
        if contender == 0 {
            send_all(&node, &heads, &body)?;
        } else {
            write_all(&plain)?;
        }
        let total = WRITERS as f64 * BYTES as f64;
        let cpu_micros = (cpu_micros(node.pid()) - before) / (total / (1024.0 * MIB as f64));
        Ok(Sample {
            rate: total / start.elapsed().as_secs_f64(),
            cpu_micros,
        })
    })?;
    let ratio = rounds.ratio(0, 1);
    let what = "4 parallel PUTs of 64 MiB, unsigned payload, folder lake, of four processes doing md5 + write + fsync";
    page.row(what, "≥ 0.7", ratio.shown(2), ratio.median >= 0.7);
    single_signed(world, page, &node, &body)?;
    let line = |name: &str, index: usize| format!("| {name} | {:.0} |", rounds.rate(index).median / 1e6);
    let cpu = format!(
        "CPU of the node: {:.0} ms per GiB.",
        rounds.cpu_micros(0).median / 1e3
    );
    let table = vec![
        "| writer | MB/s |".to_owned(),
        "| --- | --- |".to_owned(),
        line("forebay", 0),
        line("processes", 1),
        String::new(),
        cpu,
    ];
    page.detail("4 parallel writes of 64 MiB", table);
    Ok(())
}

fn single_signed(world: &World<'_>, page: &mut Page, node: &BenchNode, body: &[u8]) -> Result<()> {
    let rounds = Rounds::run(1, world.options.rounds, |_| {
        let mut request =
            node.signer()?
                .request("PUT", &format!("/{BUCKET}/single"), &[], Body::Signed(body))?;
        request.extend_from_slice(body);
        let start = Instant::now();
        exchange(node.s3, &request)?;
        Ok(Sample {
            rate: BYTES as f64 / start.elapsed().as_secs_f64(),
            cpu_micros: 0.0,
        })
    })?;
    page.note(
        "single PUT of 64 MiB, signed payload (SHA-256)",
        format!("{:.0} MB/s", rounds.rate(0).median / 1e6),
    );
    Ok(())
}

fn send_all(node: &BenchNode, heads: &[Vec<u8>], body: &[u8]) -> Result<()> {
    use std::io::Write;
    let send = |head: &[u8]| -> Result<()> {
        let mut stream = crate::bench::load::connect(node.s3)?;
        stream.write_all(head)?;
        stream.write_all(body)?;
        crate::bench::load::answer(&mut stream, &mut vec![0; 64 * 1024])?;
        Ok(())
    };
    let outcomes: Vec<Result<()>> = thread::scope(|scope| {
        let threads: Vec<_> = heads.iter().map(|head| scope.spawn(|| send(head))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<()>>| {
            thread
                .join()
                .unwrap_or_else(|_| Err(anyhow::anyhow!("a writer panicked")))
        };
        threads.into_iter().map(join).collect()
    });
    outcomes.into_iter().collect()
}

fn write_all(folder: &Path) -> Result<()> {
    let program = std::env::current_exe()?;
    let children = (0..WRITERS).map(|number| {
        let mut writer = command::clean(&program);
        writer
            .args(["bench", "writer"])
            .arg(folder.join(number.to_string()))
            .arg(BYTES.to_string());
        writer.stdout(Stdio::null()).spawn()
    });
    for child in children.collect::<Vec<_>>() {
        ensure!(child?.wait()?.success(), "a writer failed");
    }
    Ok(())
}
