//! Builds the parts of an index: each shard is streamed once, several at a time.
//!
//! A thread takes the next shard, asks for it in ranges of [`RANGE_BYTES`], in the version that was found,
//! and pushes them through a [`ShardScan`]; so a shard that is replaced meanwhile is an error and not a
//! mixture. Threads live as long as the call. The first error stops all of them. Memory: one range per
//! thread, held by the node, and the finished parts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use forebay_client::ItemRange;
use forebay_core::{Error, Kind, Result};
use forebay_dataset::index::{ShardIndex, ShardIndexBuilder, ShardIndexOptions};
use forebay_dataset::mds::MdsHasher;
use forebay_dataset::parquet::index_file;
use forebay_dataset::scan::{ScanOptions, ShardScan};
use forebay_dataset::shard::{Format, ShardRecord};

use super::{DamagedShard, Indexing, Progress, THREADS_MAX, borrowed};
use crate::rows::tables::Table;
use crate::source::ShardObject;

/// One request for bytes of a shard.
const RANGE_BYTES: u64 = 8 << 20;

/// A built index.
pub(super) struct Built {
    /// The parts of the shards that were to be built; `None` at all others.
    pub(super) shards: Vec<Option<ShardIndex>>,
    /// Encodings of fields, where the shards say so themselves.
    pub(super) encodings: BTreeMap<String, String>,
    /// Shards that were left out: their parts have no samples.
    pub(super) damaged: Vec<DamagedShard>,
}

/// Builds the parts of the shards with these numbers.
pub(super) fn shards(indexing: &Indexing<'_>, numbers: &[usize]) -> Result<Built> {
    let build = Build {
        indexing,
        numbers,
        next: AtomicUsize::new(0),
        stopped: AtomicBool::new(false),
        bytes_done: AtomicU64::new(0),
        bytes_total: numbers.iter().map(|number| indexing.shards[*number].bytes).sum(),
        shards_done: AtomicU64::new(0),
        results: Mutex::new(Ok(indexing.shards.iter().map(|_| None).collect())),
        encodings: Mutex::default(),
        damaged: Mutex::default(),
    };
    let threads = indexing
        .options
        .build_threads
        .clamp(1, THREADS_MAX)
        .min(numbers.len());
    std::thread::scope(|scope| {
        // The calling thread is one of them.
        for _ in 1..threads {
            scope.spawn(|| build.work());
        }
        build.work();
    });
    let shards = build
        .results
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)?;
    let encodings = build.encodings.into_inner();
    let mut damaged = build.damaged.into_inner().unwrap_or_else(PoisonError::into_inner);
    damaged.sort_by(|one, other| one.shard.cmp(&other.shard));
    Ok(Built {
        shards,
        encodings: encodings.unwrap_or_else(PoisonError::into_inner),
        damaged,
    })
}

struct Build<'a> {
    indexing: &'a Indexing<'a>,
    numbers: &'a [usize],
    next: AtomicUsize,
    stopped: AtomicBool,
    bytes_done: AtomicU64,
    bytes_total: u64,
    shards_done: AtomicU64,
    results: Mutex<Result<Vec<Option<ShardIndex>>>>,
    encodings: Mutex<BTreeMap<String, String>>,
    damaged: Mutex<Vec<DamagedShard>>,
}

impl Build<'_> {
    fn work(&self) {
        while !self.stopped.load(Ordering::Relaxed) {
            let Some(number) = self.numbers.get(self.next.fetch_add(1, Ordering::Relaxed)) else {
                return;
            };
            let shard = &self.indexing.shards[*number];
            let built = match self.shard(shard) {
                Err(error) if self.may_do_without(&error) => Ok(self.without(shard, &error)),
                built => built,
            };
            let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
            match (built, results.as_mut()) {
                (Ok(shard), Ok(parts)) => parts[*number] = Some(shard),
                (Err(error), Ok(_)) => {
                    *results = Err(error);
                    self.stopped.store(true, Ordering::Relaxed);
                }
                (_, Err(_)) => {}
            }
        }
    }

    /// Returns whether a shard with this error may be left out: it is damaged, and that was asked for.
    fn may_do_without(&self, error: &Error) -> bool {
        self.indexing.options.skip_damaged && matches!(error.kind(), Kind::Corrupt | Kind::Checksum)
    }

    /// A part without samples, for a shard that is left out, which is named and counted.
    fn without(&self, shard: &ShardObject, error: &Error) -> ShardIndex {
        tracing::warn!(shard = %shard.name, %error, "a damaged shard is left out");
        let mut damaged = self.damaged.lock().unwrap_or_else(PoisonError::into_inner);
        damaged.push(DamagedShard {
            shard: shard.name.to_string(),
            reason: error.to_string(),
        });
        let name = self.indexing.base.relative(&shard.name);
        let record = ShardRecord::new(name, shard.format, shard.bytes).with_version(&shard.version);
        ShardIndexBuilder::new(ShardIndexOptions::default()).finish(record)
    }

    fn shard(&self, shard: &ShardObject) -> Result<ShardIndex> {
        let name = self.indexing.base.relative(&shard.name);
        let record = ShardRecord::new(name, shard.format, shard.bytes).with_version(&shard.version);
        if shard.format == Format::Parquet {
            let built = self.parquet(shard, record.clone())?;
            if !self.indexing.options.with_sha256 {
                self.told(shard.bytes, 1);
                return Ok(built);
            }
        }
        if self.indexing.options.borrow
            && let Some(built) = borrowed::shard(self.indexing.client, shard, record.clone())?
        {
            self.told(shard.bytes, 1);
            return Ok(built);
        }
        let mut hashes = shard.hashes.as_ref().map(MdsHasher::new);
        let options = ScanOptions {
            codec: shard.codec,
            stream_bytes: shard.stream_bytes,
            with_sha256: self.indexing.options.with_sha256,
            tokens: self.indexing.options.tokens.clone(),
            ..ScanOptions::new(shard.format)
        };
        let mut scan = ShardScan::new(record, options);
        let mut offset = 0;
        while offset < shard.bytes {
            self.check()?;
            let range = ItemRange::Range {
                offset,
                length: RANGE_BYTES.min(shard.bytes - offset),
            };
            let view = self
                .indexing
                .client
                .get(&shard.name, range, Some(&shard.version))?;
            if view.is_empty() {
                return Err(
                    Error::new(Kind::Internal, "a range of a shard came empty").with("shard", &shard.name)
                );
            }
            scan.push(&view)?;
            if let Some(hashes) = &mut hashes {
                hashes.push(&view);
            }
            offset += view.len() as u64;
            self.told(view.len() as u64, 0);
        }
        let built = scan.finish()?;
        if let Some(hashes) = hashes {
            hashes.finish()?;
        }
        self.told(0, 1);
        Ok(built)
    }

    /// Of Parquet the footer says everything.
    fn parquet(&self, shard: &ShardObject, record: ShardRecord) -> Result<ShardIndex> {
        self.check()?;
        let about = |error: Error| error.with("shard", &shard.name);
        let object = shard.name.to_wire();
        let table = Table::read(self.indexing.client, &object, Some(&shard.version), shard.bytes);
        let table = table.map_err(about)?;
        let mut encodings = self.encodings.lock().unwrap_or_else(PoisonError::into_inner);
        for leaf in table.file().leaves() {
            let encoding = leaf.encoding();
            match encodings.get(&leaf.name) {
                Some(known) if *known != encoding => {
                    let message = "a column has different types in different shards; write the shards alike";
                    let error = Error::new(Kind::InvalidInput, message).with("column", &leaf.name);
                    return Err(about(error.with("type", encoding).with("other", known)));
                }
                Some(_) => {}
                None => drop(encodings.insert(leaf.name.clone(), encoding)),
            }
        }
        drop(encodings);
        index_file(table.file(), record)
    }

    /// Returns whether to go on.
    fn check(&self) -> Result<()> {
        let interrupted = self
            .indexing
            .options
            .interrupt
            .as_ref()
            .is_some_and(|interrupt| interrupt());
        if interrupted || self.stopped.load(Ordering::Relaxed) {
            return Err(Error::new(
                Kind::Cancelled,
                "interrupted while the dataset was indexed",
            ));
        }
        Ok(())
    }

    fn told(&self, bytes: u64, shards: u64) {
        let bytes_done = self.bytes_done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let shards_done = self.shards_done.fetch_add(shards, Ordering::Relaxed) + shards;
        if let Some(progress) = self.indexing.progress {
            progress(Progress {
                bytes_done,
                bytes_total: self.bytes_total,
                shards_done,
                shards_total: self.numbers.len() as u64,
            });
        }
    }
}
