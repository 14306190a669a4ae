//! `forebay dataset pack`: writes a dataset anew, as shards of another format, size or order.
//!
//! Steps, each of which can be done again: plan (`pack/plan.rs`, the same every time), mark the folder, write the shards that have no record (`pack/shard.rs`),
//! index what the lake gives back and compare its SHA-256 with what was written, write `SHA256SUMS` (the commit), take the mark away. Killed anywhere, the
//! same command goes on. docs/flows/dataset-pack.md, docs/formats/dataset-pack.md.

mod convert;
mod examples;
mod labels;
mod plan;
mod record;
mod shard;
mod source;

use anyhow::anyhow;
use forebay_client::Condition;
use forebay_core::{Error, Kind, Result, format_bytes};
use forebay_dataset::manifest::{Hasher, Manifest, SUMS_FILE};
use forebay_dataset::write::{PackFormat, PackedMds, RawShard, index_json};
use forebay_loader::DatasetOptions;

use super::args::PackArgs;
use super::open::{self, Opened, Purpose, labels};
use super::{Context, parallel};
use crate::exit::{Exit, Outcome};
pub(crate) use plan::SortBy;
use plan::{Plan, PlanOptions};
use record::{Marker, RawRecord, ShardRecord, Target};
use shard::Packing;
use source::{Source, pack_format};

/// How shards are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compress {
    None,
    Gzip,
    /// At this level.
    Zstd(i32),
}

impl Compress {
    /// Reads `none`, `gzip`, `zstd` or `zstd:LEVEL`.
    pub(crate) fn parse(text: &str) -> std::result::Result<Self, String> {
        let (name, level) = match text.split_once(':') {
            Some((name, level)) => (name, Some(level)),
            None => (text, None),
        };
        match (name, level) {
            ("none", None) => Ok(Self::None),
            ("gzip", None) => Ok(Self::Gzip),
            ("zstd", None) => Ok(Self::Zstd(ZSTD_LEVEL)),
            ("zstd", Some(level)) => {
                let level = level.parse().ok().filter(|level| ZSTD_LEVELS.contains(level));
                level.map(Self::Zstd).ok_or_else(|| {
                    format!(
                        "levels of zstd are {} to {}",
                        ZSTD_LEVELS.start(),
                        ZSTD_LEVELS.end()
                    )
                })
            }
            _ => Err("there are none, gzip (tfrecord), zstd and zstd:LEVEL (mds)".to_owned()),
        }
    }
}

/// As mosaicml-streaming has it if nothing else is said.
const ZSTD_LEVEL: i32 = 3;
/// Those above take up to a gigabyte for every shard that is written.
const ZSTD_LEVELS: std::ops::RangeInclusive<i32> = 1..=19;
const MDS_INDEX: &str = "index.json";

/// What is found in the folder at the start.
enum Found {
    Nothing,
    /// This pack, unfinished.
    Unfinished,
    /// This pack, whole.
    Whole,
}

pub(crate) fn run(args: &PackArgs, context: &Context) -> Outcome {
    if args.shard_size.0 == 0 {
        return Err(Exit::usage(anyhow!("--shard-size is above 0, such as 256MiB")));
    }
    if open::is_inside(&args.target, &args.source) {
        return Err(Exit::usage(anyhow!(
            "{} lies in {}, so the new shards would become part of what is packed; choose a folder beside it",
            args.target,
            args.source
        )));
    }
    let node = args.node.node.as_deref();
    let from = Opened::open(&args.source, node, Purpose::Look, context)?;
    let options = DatasetOptions {
        format: args.source_format,
        tokens: args.tokens.clone(),
        build_threads: usize::from(args.jobs),
        labels: labels(args.labels.as_deref())?,
        ..DatasetOptions::default()
    };
    let source = Source::new(from.dataset(options, context)?, args.format)?;
    if args.labels.is_some() && source.labels.is_none() {
        return Err(Exit::usage(anyhow!(
            "--labels is for folders of raw files; the samples of {} have their labels in them",
            args.source
        )));
    }
    let format = compressed(pack_format(&source, args.format)?, args.compress)?;
    let plan = Plan::new(
        &source,
        PlanOptions {
            format,
            shard_bytes: args.shard_size.0,
            shuffle: args.shuffle,
            sort_by: args.sort_by,
        },
    )?;
    let to = Opened::open(&args.target, node, Purpose::Make, context)?;
    let folder = to.folder()?;
    let target = Target {
        client: &to.client,
        folder: &folder,
    };
    let found = find(&target, &plan, &to.shown)?;
    if matches!(found, Found::Nothing) {
        mark(&target, &plan, source.units())?;
    }
    let jobs = jobs(args, &source, plan.shards.len())?;
    let (records, written) = shards(&source, &plan, &target, jobs, context)?;
    let document = mds_document(&plan, &records)?;
    if let (Some(document), false) = (&document, matches!(found, Found::Whole)) {
        target.write(MDS_INDEX, document.as_bytes(), Condition::None)?;
    }
    // What is not as it was written must not look whole.
    check(&to, &records, context)?;
    if !matches!(found, Found::Whole) {
        commit(&target, &records, document.as_deref())?;
    }
    target.unmark()?;
    let bytes = records.iter().map(|record| record.bytes).sum();
    tell(&to.shown, &plan, source.units(), (written, bytes), context);
    Ok(())
}

/// The format with the compression that was asked for.
fn compressed(format: PackFormat, how: Compress) -> Outcome<PackFormat> {
    match (format, how) {
        (format, Compress::None) => Ok(format),
        (PackFormat::TfRecord(records), Compress::Gzip) => Ok(PackFormat::TfRecordGzip(records)),
        (PackFormat::Mds(columns), Compress::Zstd(level)) => Ok(PackFormat::MdsZstd(columns, level)),
        (PackFormat::TfRecord(_), _) => Err(Exit::usage(anyhow!(
            "TensorFlow reads TFRecord compressed with gzip; use --compress gzip"
        ))),
        (PackFormat::Mds(_), _) => Err(Exit::usage(anyhow!(
            "MDS is compressed with Zstandard; use --compress zstd or zstd:LEVEL"
        ))),
        (format, _) => Err(Exit::usage(anyhow!(
            "--compress is for --format tfrecord (gzip) and mds (zstd); {} shards are not compressed as a whole: samples could only be read from the start (Parquet compresses its columns anyway)",
            format.format().as_str()
        ))),
    }
}

/// How many shards are written at once: of compressed sources no more than what lies between the first and the last fits into memory.
fn jobs(args: &PackArgs, source: &Source, shards: usize) -> Outcome<usize> {
    let jobs = usize::from(args.jobs);
    let (compressed, kept) = (
        source.compressed_bytes()?,
        DatasetOptions::default().decoded_bytes_max,
    );
    if compressed <= kept || shards == 1 {
        return Ok(jobs);
    }
    if args.shuffle.is_some() || args.sort_by.is_some() {
        return Err(Exit::failure(anyhow!(
            "compressed shards can only be read from their start; pack them as they are first, and then the result with --shuffle or --sort-by"
        )));
    }
    let fits = kept / 2 / args.shard_size.0.max(1);
    Ok(jobs.min(usize::try_from(fits).unwrap_or(jobs)).max(1))
}

/// Whether this pack may use the folder.
fn find(target: &Target<'_>, plan: &Plan, shown: &str) -> Outcome<Found> {
    if let Some(marker) = target.marker()? {
        if marker.id == plan.id {
            return Ok(Found::Unfinished);
        }
        return Err(Exit::failure(anyhow!(
            "another pack of {} {} shards is unfinished in {shown}; finish it with its own source and options, or remove the \
             folder (forebay rm --recursive)",
            marker.shards,
            marker.format
        )));
    }
    let objects = target.objects()?;
    if objects.is_empty() {
        return Ok(Found::Nothing);
    }
    if objects.contains_key(SUMS_FILE) && target.written(&plan.id)?.len() == plan.shards.len() {
        return Ok(Found::Whole);
    }
    Err(Exit::failure(anyhow!(
        "{shown} is not empty; pack into a new folder"
    )))
}

fn mark(target: &Target<'_>, plan: &Plan, samples: u64) -> Result<()> {
    let marker = Marker {
        id: plan.id.clone(),
        format: plan.format.format().as_str().to_owned(),
        shards: plan.shards.len() as u64,
        samples,
    };
    // Somebody may have been faster; with the same pack that is no harm.
    if target.mark(&marker)? || target.marker()?.is_some_and(|other| other.id == plan.id) {
        return Ok(());
    }
    Err(Error::new(
        Kind::Conflict,
        "another pack has just begun in this folder; choose another one",
    ))
}

/// Writes what is missing; the records of all shards in order, and how many were written now.
fn shards(
    source: &Source,
    plan: &Plan,
    target: &Target<'_>,
    jobs: usize,
    context: &Context,
) -> Result<(Vec<ShardRecord>, usize)> {
    let mut done = target.written(&plan.id)?;
    let name = |number| plan.format.shard_name(number);
    let missing: Vec<_> = plan
        .shards
        .iter()
        .filter(|shard| !done.contains_key(&name(shard.number)))
        .copied()
        .collect();
    let bar = context.output.bar(plan.bytes());
    bar.set_message("packing");
    bar.inc(plan.bytes() - missing.iter().map(|shard| shard.bytes).sum::<u64>());
    let packing = Packing {
        source,
        plan,
        target,
        bar: &bar,
        context,
    };
    let written = parallel::each(&missing, jobs, |shard| packing.shard(shard));
    bar.finish_and_clear();
    let written = written?;
    let count = written.len();
    done.extend(written.into_iter().map(|record| (record.name.clone(), record)));
    let lost = || Error::new(Kind::Internal, "a shard has no record");
    let records = plan
        .shards
        .iter()
        .map(|shard| done.remove(&name(shard.number)).ok_or_else(lost));
    Ok((records.collect::<Result<_>>()?, count))
}

/// The `index.json` of MDS.
fn mds_document(plan: &Plan, records: &[ShardRecord]) -> Result<Option<String>> {
    if plan.format.mds_columns().is_none() {
        return Ok(None);
    }
    let mut shards = Vec::new();
    for record in records {
        shards.push(PackedMds {
            name: &record.name,
            bytes: record.bytes,
            sha256: record.sha256.parse()?,
            samples: record.samples,
            raw: record.raw.as_ref().map(raw).transpose()?,
        });
    }
    Ok(Some(index_json(&plan.format, shards.into_iter())))
}

/// Makes the pack count: writes the manifest of the shards and of their `index.json`.
fn commit(target: &Target<'_>, records: &[ShardRecord], document: Option<&str>) -> Result<()> {
    let mut sums = Vec::new();
    for record in records {
        sums.push((record.name.clone(), record.sha256.parse()?));
    }
    if let Some(document) = document {
        let mut hasher = Hasher::new();
        hasher.push(document.as_bytes());
        sums.push((MDS_INDEX.to_owned(), hasher.finish()));
    }
    let text = Manifest::new(sums)?.to_text();
    if target.write(SUMS_FILE, text.as_bytes(), Condition::Absent)?
        || target
            .read(SUMS_FILE)?
            .is_some_and(|found| found == text.as_bytes())
    {
        return Ok(());
    }
    let message = "the folder has another SHA256SUMS already; pack into a new folder";
    Err(Error::new(Kind::Conflict, message))
}

fn raw(record: &RawRecord) -> Result<RawShard> {
    Ok(RawShard {
        bytes: record.bytes,
        sha256: record.sha256.parse()?,
    })
}

/// Indexes what the lake gives back, and compares it with what was written.
fn check(to: &Opened, records: &[ShardRecord], context: &Context) -> Outcome {
    let options = DatasetOptions {
        with_sha256: true,
        unfinished: true,
        ..DatasetOptions::default()
    };
    let dataset = to.dataset(options, context)?;
    let message = "the lake does not give back what was written to it; do not use this folder: remove it and pack again";
    let wrong = || Error::new(Kind::Checksum, message);
    if dataset.index().shard_count() as usize != records.len() {
        let error = wrong().with("shards", dataset.index().shard_count());
        return Err(error.with("expected", records.len()).into());
    }
    for (shard, record) in dataset.index().head().shards().zip(records) {
        let shard = shard?;
        let (found, samples) = (shard.record(), shard.samples());
        let is_same = found
            .sha256
            .is_some_and(|sha256| hex::encode(sha256) == record.sha256);
        if found.name != record.name || !is_same || samples != record.samples {
            let error = wrong().with("shard", &record.name).with("samples", samples);
            return Err(error.with("expected", record.samples).into());
        }
    }
    Ok(())
}

/// Says what is there now: how many of the shards are new, and the bytes of all.
fn tell(shown: &str, plan: &Plan, samples: u64, (written, bytes): (usize, u64), context: &Context) {
    let shards = plan.shards.len();
    context.output.data(&serde_json::json!({
        "dataset": shown, "format": plan.format.format().as_str(), "samples": samples, "shards": shards, "bytes": bytes,
        "shards_written": written, "pack": plan.id,
    }));
    let before = match shards - written {
        0 => String::new(),
        1 => " (1 was there already)".to_owned(),
        before => format!(" ({before} were there already)"),
    };
    let plural = |count: u64| if count == 1 { "" } else { "s" };
    context.output.say(format!(
        "packed {samples} sample{} into {shards} {} shard{}{before}, {}: {shown}",
        plural(samples),
        plan.format.format().as_str(),
        plural(shards as u64),
        format_bytes(bytes)
    ));
}
