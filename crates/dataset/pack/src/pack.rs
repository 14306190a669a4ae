//! Writes a dataset anew, as shards of another format, size or order.
//!
//! Steps, each of which can be done again: plan (`pack/plan.rs`, the same every time), mark the folder, write
//! the shards that have no record (`pack/shard.rs`), index what the lake gives back and compare its SHA-256
//! with what was written, write `SHA256SUMS` (the commit), take the mark away. Killed anywhere, the same call
//! goes on. docs/flows/dataset-pack.md, docs/formats/dataset-pack.md.

mod convert;
mod examples;
mod labels;
mod options;
mod plan;
mod record;
mod shard;
mod source;

use forebay_client::{WriteCondition, parallel};
use forebay_core::{Error, Kind, Result};
use forebay_dataset::manifest::{Hasher, Manifest, SUMS_FILE};
use forebay_dataset::shard::Format;
use forebay_dataset::write::{PackedMds, RawShard, index_json};
use forebay_loader::{Dataset, DatasetOptions};

pub use options::{Compression, PackOptions, SortBy};

use crate::folder::Folder;
use crate::work::{Stage, Work};
use plan::{Plan, PlanOptions};
use record::{Marker, PackFolder, RawRecord, ShardRecord};
use shard::Packing;
use source::{Source, pack_format};

const MDS_INDEX: &str = "index.json";

/// A pack that is planned: the shards that a dataset becomes.
pub struct Pack {
    source: Source,
    plan: Plan,
    /// Shards that are written at once.
    jobs: usize,
}

/// Result of [`Pack::write`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackReport {
    /// Identity of data and options: the same for the same pack.
    pub id: String,
    /// Format of the shards.
    pub format: Format,
    /// Samples in all shards.
    pub samples: u64,
    /// Shards of the pack.
    pub shards: u64,
    /// Shards that were written now; the others were there already.
    pub shards_written: u64,
    /// Bytes of all shards.
    pub bytes: u64,
}

/// State of the target folder at the start.
enum TargetContents {
    Nothing,
    /// This pack, unfinished.
    Unfinished,
    /// This pack, whole.
    Whole,
}

impl Pack {
    /// Cuts a dataset into shards; nothing is written.
    ///
    /// Errors: `InvalidInput` if the options do not fit, or the format cannot hold the samples.
    pub fn plan(dataset: Dataset, options: &PackOptions) -> Result<Self> {
        if options.shard_bytes == 0 {
            let message = "the size of a shard is above 0, such as 256MiB";
            return Err(Error::new(Kind::InvalidInput, message));
        }
        let source = Source::new(dataset, options.format)?;
        let format = options.compress.of(pack_format(&source, options.format)?)?;
        let plan = PlanOptions {
            format,
            shard_bytes: options.shard_bytes,
            shuffle: options.shuffle,
            sort_by: options.sort_by,
        };
        let plan = Plan::new(&source, plan)?;
        let jobs = jobs(options, &source, plan.shards.len())?;
        Ok(Self { source, plan, jobs })
    }

    /// Returns whether labels of raw files become a field.
    #[must_use]
    pub fn has_label_field(&self) -> bool {
        self.source.labels.is_some()
    }

    /// Writes the shards that are missing, compares what the lake gives back, and commits.
    ///
    /// Errors: `Conflict` if something else is in the folder, `Checksum` if the lake gives back other bytes.
    pub fn write(&self, folder: &Folder, work: &Work<'_>) -> Result<PackReport> {
        let target = PackFolder::new(folder);
        let contents = self.contents(&target)?;
        if matches!(contents, TargetContents::Nothing) {
            self.mark(&target)?;
        }
        let (records, written) = self.shards(&target, work)?;
        let document = mds_document(&self.plan, &records)?;
        if let (Some(document), false) = (&document, matches!(contents, TargetContents::Whole)) {
            folder.write(MDS_INDEX, document.as_bytes(), WriteCondition::None)?;
        }
        // What is not as it was written must not look whole.
        check(folder, &records, work)?;
        if !matches!(contents, TargetContents::Whole) {
            commit(folder, &records, document.as_deref())?;
        }
        target.unmark()?;
        Ok(PackReport {
            id: self.plan.id.clone(),
            format: self.plan.format.format(),
            samples: self.source.units(),
            shards: records.len() as u64,
            shards_written: written as u64,
            bytes: records.iter().map(|record| record.bytes).sum(),
        })
    }

    /// Returns whether this pack may use the folder.
    fn contents(&self, target: &PackFolder<'_>) -> Result<TargetContents> {
        let shown = target.folder.shown();
        if let Some(marker) = target.marker()? {
            if marker.id == self.plan.id {
                return Ok(TargetContents::Unfinished);
            }
            let message = format!(
                "another pack of {} {} shards is unfinished in {shown}; finish it with its own source and options, or pack into \
                 another folder",
                marker.shards, marker.format
            );
            return Err(Error::new(Kind::Conflict, message));
        }
        let objects = target.objects()?;
        if objects.is_empty() {
            return Ok(TargetContents::Nothing);
        }
        if objects.contains_key(SUMS_FILE) && target.written(&self.plan.id)?.len() == self.plan.shards.len() {
            return Ok(TargetContents::Whole);
        }
        let message = format!("{shown} is not empty; pack into a new folder");
        Err(Error::new(Kind::Conflict, message))
    }

    fn mark(&self, target: &PackFolder<'_>) -> Result<()> {
        let marker = Marker {
            id: self.plan.id.clone(),
            format: self.plan.format.format().as_str().to_owned(),
            shards: self.plan.shards.len() as u64,
            samples: self.source.units(),
        };
        // Somebody may have been faster; with the same pack that is no harm.
        if target.mark(&marker)? || target.marker()?.is_some_and(|other| other.id == self.plan.id) {
            return Ok(());
        }
        let message = "another pack has just begun in this folder; choose another one";
        Err(Error::new(Kind::Conflict, message))
    }

    /// Writes what is missing; the records of all shards in order, and how many were written now.
    fn shards(&self, target: &PackFolder<'_>, work: &Work<'_>) -> Result<(Vec<ShardRecord>, usize)> {
        let plan = &self.plan;
        let mut done = target.written(&plan.id)?;
        let name = |number| plan.format.shard_name(number);
        let is_missing = |number| !done.contains_key(&name(number));
        let missing = plan.shards.iter().filter(|shard| is_missing(shard.number));
        let missing: Vec<_> = missing.copied().collect();
        let missing_bytes: u64 = missing.iter().map(|shard| shard.bytes).sum();
        let progress = work.stage(Stage::Packing, plan.bytes() - missing_bytes, plan.bytes());
        let packing = Packing {
            source: &self.source,
            plan,
            target,
            progress: &progress,
            work,
        };
        let client = Some(&target.folder.client);
        let written = parallel::map(client, &missing, self.jobs, |shard| packing.shard(shard))?;
        let count = written.len();
        done.extend(written.into_iter().map(|record| (record.name.clone(), record)));
        let lost = || Error::new(Kind::Internal, "a shard has no record");
        let records = plan
            .shards
            .iter()
            .map(|shard| done.remove(&name(shard.number)).ok_or_else(lost));
        Ok((records.collect::<Result<_>>()?, count))
    }
}

/// Returns how many shards are written at once: of compressed sources no more than what lies between the
/// first and the last fits into memory.
fn jobs(options: &PackOptions, source: &Source, shards: usize) -> Result<usize> {
    let (compressed, kept) = (
        source.compressed_bytes()?,
        DatasetOptions::default().decoded_bytes_max,
    );
    if compressed <= kept || shards == 1 {
        return Ok(options.jobs);
    }
    if options.shuffle.is_some() || options.sort_by.is_some() {
        let message = "compressed shards can only be read from their start; pack them as they are first, and then shuffle or sort the result";
        return Err(Error::new(Kind::Unsupported, message));
    }
    let fits = kept / 2 / options.shard_bytes.max(1);
    Ok(options
        .jobs
        .min(usize::try_from(fits).unwrap_or(options.jobs))
        .max(1))
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

fn raw(record: &RawRecord) -> Result<RawShard> {
    Ok(RawShard {
        bytes: record.bytes,
        sha256: record.sha256.parse()?,
    })
}

/// Makes the pack count: writes the manifest of the shards and of their `index.json`.
fn commit(folder: &Folder, records: &[ShardRecord], document: Option<&str>) -> Result<()> {
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
    let is_same = |found: Option<(Vec<u8>, _)>| found.is_some_and(|(found, _)| found == text.as_bytes());
    if folder.write(SUMS_FILE, text.as_bytes(), WriteCondition::Absent)? || is_same(folder.read(SUMS_FILE)?) {
        return Ok(());
    }
    let message = "the folder has another SHA256SUMS already; pack into a new folder";
    Err(Error::new(Kind::Conflict, message))
}

/// Indexes what the lake gives back, and compares it with what was written.
fn check(folder: &Folder, records: &[ShardRecord], work: &Work<'_>) -> Result<()> {
    let options = DatasetOptions {
        with_sha256: true,
        unfinished: true,
        ..DatasetOptions::default()
    };
    let dataset = work.dataset(folder, options)?;
    let message =
        "the lake does not give back what was written to it; do not use this folder; pack into another one";
    let wrong = || Error::new(Kind::Checksum, message);
    if dataset.index().shard_count() as usize != records.len() {
        let error = wrong().with("shards", dataset.index().shard_count());
        return Err(error.with("expected", records.len()));
    }
    for (shard, record) in dataset.index().head().shards().zip(records) {
        let shard = shard?;
        let (found, samples) = (shard.record(), shard.samples());
        let is_same = found
            .sha256
            .is_some_and(|sha256| hex::encode(sha256) == record.sha256);
        if found.name != record.name || !is_same || samples != record.samples {
            let error = wrong().with("shard", &record.name).with("samples", samples);
            return Err(error.with("expected", record.samples));
        }
    }
    Ok(())
}
