//! How fast shards are indexed: GB per second of one core, CRC32C and grouping included, with and without
//! SHA-256; and how fast an index of a thousand million samples opens and answers.
//!
//! `cargo run --release -p forebay-dataset --example index_speed`. Shards are made in memory: 52 KB images
//! with a label in tar (headers of ustar), the same images as TFRecord, tokens of 4 KB; pushed in pieces of 1
//! MiB, as they come from a lake.
#![allow(clippy::cast_precision_loss, reason = "figures for people")]

use std::time::{Duration, Instant};

use forebay_core::{Result, crc32c};
use forebay_dataset::index::{
    Field, Index, IndexBuilder, SampleRecord, ShardIndexBuilder, ShardIndexOptions,
};
use forebay_dataset::scan::{ScanOptions, ShardScan};
use forebay_dataset::shard::{Format, ShardRecord};
use forebay_dataset::tfrecord::masked;
use forebay_dataset::tokens::{TokenType, TokenWindows};

const IMAGES: usize = 5000;
const IMAGE_BYTES: usize = 52_000;

fn header(name: &str, bytes: usize) -> [u8; 512] {
    let mut block = [0_u8; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[124..136].copy_from_slice(format!("{bytes:011o}\0").as_bytes());
    block[156] = b'0';
    block[257..263].copy_from_slice(b"ustar\0");
    block[148..156].fill(b' ');
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

fn tar(image: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for number in 0..IMAGES {
        for (ending, content) in [("jpg", image), ("cls", b"7".as_slice())] {
            out.extend(header(&format!("train/{number:08}.{ending}"), content.len()));
            out.extend(content);
            out.resize(out.len().next_multiple_of(512), 0);
        }
    }
    out.resize(out.len() + 1024, 0);
    out
}

fn tfrecord(image: &[u8]) -> Vec<u8> {
    let length = (image.len() as u64).to_le_bytes();
    let crc = |bytes: &[u8]| masked(crc32c::crc32c(bytes)).to_le_bytes();
    let record = [&length[..], &crc(&length), image, &crc(image)].concat();
    record.repeat(IMAGES)
}

fn scan(format: Format, bytes: &[u8], with_sha256: bool) -> Result<(Duration, u64, usize)> {
    let mut options = ScanOptions::new(format);
    options.with_sha256 = with_sha256;
    options.tokens = Some(TokenWindows {
        length: 2048,
        stride: 2048,
        token: Some(TokenType::U16),
    });
    let start = Instant::now();
    let mut scan = ShardScan::new(ShardRecord::new("x", format, bytes.len() as u64), options);
    for piece in bytes.chunks(1 << 20) {
        scan.push(piece)?;
    }
    let mut builder = IndexBuilder::new();
    builder.add(scan.finish()?)?;
    let index = builder.finish()?;
    let took = start.elapsed();
    let index_bytes = index.len();
    Ok((took, Index::from_bytes(index)?.len(), index_bytes))
}

/// 100,000 shards of 10,000 samples; the places of all shards are the same, so that the example needs little
/// memory.
fn open_and_ask() -> Result<()> {
    const SHARDS: u32 = 100_000;
    const SAMPLES: u64 = 10_000;
    let mut shard = ShardIndexBuilder::new(ShardIndexOptions::default());
    for number in 0..SAMPLES {
        let field = Field {
            name: "tokens",
            offset: number * 4096,
            bytes: 4096,
            crc32c: Some(7),
        };
        shard.sample(&SampleRecord::new(None, &[field]))?;
    }
    let shard = shard.finish(ShardRecord::new("x", Format::Bin, SAMPLES * 4096));
    let mut builder = IndexBuilder::new();
    for _ in 0..SHARDS {
        builder.add(shard.clone())?;
    }
    let bytes = builder.finish()?;
    let megabytes = bytes.len() as f64 / 1e6;
    let start = Instant::now();
    let index = Index::from_bytes(bytes)?;
    let opened = start.elapsed();
    let (samples, asked) = (index.len(), 1_000_000);
    let ask = |count: u64| -> Result<Duration> {
        let start = Instant::now();
        for number in 0..count {
            // A step that is prime to the number of samples goes everywhere.
            index.sample(number * 617_648_911 % samples)?;
        }
        Ok(start.elapsed())
    };
    let first = ask(asked)?;
    let again = ask(asked)?;
    let nanoseconds = |took: Duration| took.as_nanos() / u128::from(asked);
    println!(
        "index of {samples} samples, {megabytes:.0} MB: opened in {opened:.1?}, sample {} ns first, {} ns again",
        nanoseconds(first),
        nanoseconds(again)
    );
    Ok(())
}

fn main() -> Result<()> {
    open_and_ask()?;
    let image: Vec<u8> = (0..IMAGE_BYTES).map(|at| (at * at) as u8).collect();
    let shards = [
        (Format::Tar, tar(&image)),
        (Format::TfRecord, tfrecord(&image)),
        (Format::Bin, tfrecord(&image)),
        (Format::Jsonl, tfrecord(&image)),
    ];
    println!("format     sha256  GB/s  samples  index bytes/sample");
    for (format, bytes) in &shards {
        for with_sha256 in [false, true] {
            let mut runs = Vec::new();
            for _ in 0..5 {
                runs.push(scan(*format, bytes, with_sha256)?);
            }
            runs.sort_unstable();
            let (took, samples, index_bytes) = runs[2];
            let rate = bytes.len() as f64 / took.as_secs_f64() / 1e9;
            let per_sample = index_bytes as f64 / samples as f64;
            let name = format.as_str();
            println!("{name:10} {with_sha256:6} {rate:5.2} {samples:8} {per_sample:6.1}");
        }
    }
    Ok(())
}
