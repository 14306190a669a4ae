//! The NVMe tier: pages in segment files that survive restart and kill -9.
//!
//! A page goes to disk as packed blocks in 4 KiB units of a segment file; an index in memory knows where each
//! block lies and its CRC32C, and a journal repeats that knowledge on disk. Every block is checked when it is
//! read, so whatever a crash, a flipped bit or a foreign hand did to the files is a miss and never an answer.
//!
//! Life cycle: `open` locks the folder, sets aside what is damaged or foreign, replays the journal and
//! serves; nothing of the data is read then. `shutdown` ends the threads and leaves a compact journal;
//! without it (kill -9) the journal is replayed as far as it is whole. Files and byte layouts:
//! docs/formats/nvme-tier.md.
//!
//! Limits: segment files, headers and journal stay inside the budget (a sixteenth is the journal's); a fixed
//! number of reads and writes is under way at a time; a full or failing disk makes the tier smaller.
//!
//! Read on: `read` and `write` are the two flows; `index` knows what lies where, `space` what is free,
//! `extent` who holds it; `journal` and `record` are the memory; `engine`, `segments` and `buffer` move the
//! bytes.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::{BlockMask, Error, Kind, Result};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tracing::{info, warn};

use crate::eviction::Eviction;
use crate::{ObjectId, ObjectVersion, PageKey};

mod buffer;
mod engine;
mod extent;
mod folder;
mod index;
mod journal;
mod read;
mod record;
mod segments;
mod space;
mod write;

use buffer::BufferPool;
use engine::{IoEngine, ThreadEngine};
use extent::Returned;
use folder::{Folder, io_error, journal_path};
use index::replay::Replay;
use index::{Change, Index};
use journal::{Ending, Journal, JournalFile, read_records};
use segments::Segments;
pub(crate) use segments::{OsIo, RawIo};
use space::UNIT_BYTES;

/// Threads for transfers.
const IO_THREADS: usize = 8;

/// Reads under way, at most; each holds a buffer of up to a page.
const READS_MAX: u32 = 32;

/// Writes under way, at most; each holds a buffer of up to a page.
const WRITES_MAX: u32 = 8;

/// The smallest budget that makes sense.
const BUDGET_BYTES_MIN: u64 = 1 << 20;

/// The journal never gets less room than this.
const JOURNAL_BYTES_MIN: u64 = 128 << 10;

/// Heap that the index takes for each byte of its records: 0.6 to 1 KB for the page of a small object, whose
/// records have about 200 bytes.
const HEAP_PER_RECORD_BYTE: u64 = 5;

/// The tier has room while at least one part in this many of it is free; more than one eviction frees.
const ROOM_SHARE: u64 = 64;

/// The folder of the tier and its budget.
#[derive(Debug, Clone)]
pub(crate) struct NvmeOptions {
    /// The folder; made if it is not there.
    pub(crate) dir: PathBuf,
    /// Bytes of segment files, their headers and the index journal together.
    pub(crate) budget_bytes: u64,
    /// Memory for the index, about; beyond it pages are evicted although there is room on the disk.
    pub(crate) index_bytes_max: u64,
}

/// Counters and gauges at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NvmeStats {
    /// Pages in the index.
    pub(crate) pages: u64,
    /// Bytes of page data.
    pub(crate) used_bytes: u64,
    /// Bytes of page data that belong to pinned objects.
    pub(crate) pinned_bytes: u64,
    /// Bytes of the index journal.
    pub(crate) journal_bytes: u64,
    /// Pages evicted.
    pub(crate) evicted_pages: u64,
    /// Blocks whose bytes did not match their checksum.
    pub(crate) corrupt_blocks: u64,
    /// Reads that the disk refused; the blocks were dropped.
    pub(crate) read_errors: u64,
    /// Writes that the disk refused, those of the journal included.
    pub(crate) write_errors: u64,
    /// Writes left out because there was no room (everything pinned or in use).
    pub(crate) skipped_writes: u64,
    /// Files set aside because they were damaged or not ours.
    pub(crate) set_aside_files: u64,
}

/// Counters since the start.
#[derive(Debug, Default)]
struct Counters {
    corrupt_blocks: AtomicU64,
    read_errors: AtomicU64,
    write_errors: AtomicU64,
    skipped_writes: AtomicU64,
    set_aside_files: AtomicU64,
}

/// The division of the budget.
#[derive(Debug, Clone, Copy)]
struct Shares {
    /// Units of all segment files, headers included.
    capacity_units: u64,
    /// For old and new journal together.
    journal_bytes: u64,
    /// Records of everything live, at most: a journal is rewritten at twice that, and the index in memory
    /// grows with them.
    record_bytes_max: u64,
}

impl Shares {
    fn of(options: &NvmeOptions) -> Self {
        let budget_bytes = options.budget_bytes;
        let journal_bytes = (budget_bytes / 16).max(JOURNAL_BYTES_MIN);
        let record_bytes_max = journal_bytes / 3 - (16 << 10);
        Self {
            capacity_units: (budget_bytes - journal_bytes) / UNIT_BYTES,
            journal_bytes,
            record_bytes_max: record_bytes_max.min(options.index_bytes_max / HEAP_PER_RECORD_BYTE),
        }
    }
}

/// Pages on NVMe.
#[derive(Debug)]
pub(crate) struct NvmeStore {
    index: Arc<Mutex<Index>>,
    returned: Arc<Returned>,
    journal: Arc<Journal>,
    engine: Arc<dyn IoEngine>,
    buffers: Arc<BufferPool>,
    read_permits: Arc<Semaphore>,
    write_permits: Arc<Semaphore>,
    /// One writer at a time makes room.
    room_turn: Semaphore,
    writes_since_refusal: AtomicU64,
    shares: Shares,
    counters: Counters,
    /// The last field, so that the folder is given free after everything else has ended.
    lock: Mutex<Option<std::fs::File>>,
}

impl NvmeStore {
    /// Opens the folder, replays its index and is ready to serve.
    #[cfg(test)]
    pub(crate) async fn open(options: NvmeOptions, eviction: Box<dyn Eviction>) -> Result<Arc<Self>> {
        Self::open_with(options, Arc::new(OsIo), eviction).await
    }

    /// Opens the folder on this disk, replays its index and is ready to serve.
    pub(crate) async fn open_with(
        options: NvmeOptions,
        raw: Arc<dyn RawIo>,
        eviction: Box<dyn Eviction>,
    ) -> Result<Arc<Self>> {
        if options.budget_bytes < BUDGET_BYTES_MIN {
            return Err(Error::new(
                Kind::InvalidInput,
                "the nvme tier needs at least 1 MiB; use 0 to switch it off",
            )
            .with("budget_bytes", options.budget_bytes));
        }
        tokio::task::spawn_blocking(move || Self::open_blocking(&options, raw, eviction))
            .await
            .map_err(|error| {
                Error::new(Kind::Internal, "opening the nvme tier was interrupted").caused_by(error)
            })?
    }

    fn open_blocking(
        options: &NvmeOptions,
        raw: Arc<dyn RawIo>,
        eviction: Box<dyn Eviction>,
    ) -> Result<Arc<Self>> {
        let shares = Shares::of(options);
        let mut folder = Folder::open(&options.dir, shares.capacity_units)?;
        let returned = Arc::new(Returned::default());
        let replay = Replay::new(
            eviction,
            &returned,
            shares.capacity_units,
            folder.segments.clone(),
        );
        let (index, journal_file) = replay_journal(&mut folder, replay, &raw)?;
        let buffers = Arc::new(BufferPool::default());
        let segments = Arc::new(Segments::new(
            &folder.dir,
            folder.store,
            raw,
            Arc::clone(&buffers),
        ));
        info!(
            dir = %folder.dir.display(),
            pages = index.page_count(),
            used_bytes = index.totals().used_bytes,
            budget_bytes = options.budget_bytes,
            direct_io = segments.is_direct(),
            "opened the nvme tier"
        );
        let index = Arc::new(Mutex::new(index));
        let counters = Counters {
            set_aside_files: folder.set_aside_files.into(),
            ..Counters::default()
        };
        Ok(Arc::new(Self {
            journal: Arc::new(Journal::start(
                journal_file,
                Arc::clone(&index),
                shares.journal_bytes,
            )?),
            index,
            returned,
            engine: Arc::new(ThreadEngine::start(&segments, IO_THREADS)?),
            buffers,
            read_permits: Arc::new(Semaphore::new(READS_MAX as usize)),
            write_permits: Arc::new(Semaphore::new(WRITES_MAX as usize)),
            room_turn: Semaphore::new(1),
            writes_since_refusal: AtomicU64::new(0),
            shares,
            counters,
            lock: Mutex::new(Some(folder.lock)),
        }))
    }

    /// Returns which blocks of the page are there. Memory only.
    pub(crate) fn lookup(&self, key: &PageKey) -> Option<BlockMask> {
        self.index.lock().page(key).map(index::Page::live)
    }

    /// Returns whether more pages fit without another one going.
    pub(crate) fn has_room(&self) -> bool {
        let mut index = self.index.lock();
        index.reclaim();
        let (free_units, units) = (index.space.unused_units(), index.space.usable_units());
        let records_max = self.shares.record_bytes_max;
        // Eviction frees a part at a time, so a little room does not mean that there is some to spare.
        free_units >= units / ROOM_SHARE
            && index.totals().record_bytes <= records_max - records_max / ROOM_SHARE
    }

    /// Forgets every page of the object; a write of it that is under way comes to nothing.
    pub(crate) fn remove_object(&self, id: &ObjectId) {
        let mut index = self.index.lock();
        let mut change = Change::default();
        index.remove_object(id, &mut change);
        self.journal.push(change);
    }

    /// Keeps the object's pages (also those still to come) from eviction, or lets them go again. Pins are not
    /// remembered over a restart.
    pub(crate) fn set_pinned(&self, id: &ObjectId, pinned: bool) {
        self.index.lock().set_pinned(id, pinned);
    }

    /// Every object with bytes here, and how many.
    pub(crate) fn objects(&self) -> Vec<(Arc<ObjectVersion>, u64)> {
        self.index
            .lock()
            .objects()
            .map(|(object, bytes)| (Arc::clone(object), bytes))
            .collect()
    }

    /// Counters and gauges now.
    pub(crate) fn stats(&self) -> NvmeStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut index = self.index.lock();
        index.reclaim();
        NvmeStats {
            pages: index.page_count(),
            used_bytes: index.totals().used_bytes,
            pinned_bytes: index.pinned_bytes(),
            journal_bytes: self.journal.bytes(),
            evicted_pages: index.totals().evicted_pages,
            corrupt_blocks: count(&self.counters.corrupt_blocks),
            read_errors: count(&self.counters.read_errors),
            write_errors: count(&self.counters.write_errors) + self.journal.errors(),
            skipped_writes: count(&self.counters.skipped_writes),
            set_aside_files: count(&self.counters.set_aside_files),
        }
    }

    /// Waits for the writes under way, compacts the index, ends the threads and gives the folder free. Reads
    /// are misses and writes do nothing from then on. Idempotent.
    pub(crate) async fn shutdown(&self) {
        self.read_permits.close();
        // An error means that another shutdown has closed it after the last write.
        let _ = self.write_permits.acquire_many(WRITES_MAX).await;
        self.write_permits.close();
        let (engine, journal) = (Arc::clone(&self.engine), Arc::clone(&self.journal));
        let ended = tokio::task::spawn_blocking(move || {
            engine.shutdown();
            journal.stop(Ending::Clean);
        });
        if ended.await.is_err() {
            tracing::error!("shutting the nvme tier down was interrupted");
        }
        self.lock.lock().take();
    }
}

impl Drop for NvmeStore {
    fn drop(&mut self) {
        self.engine.shutdown();
        self.journal.stop(Ending::Abrupt);
    }
}

/// Replays the journal as far as it is whole. One that the disk does not give back is set aside.
fn replay_journal(
    folder: &mut Folder,
    mut replay: Replay,
    raw: &Arc<dyn RawIo>,
) -> Result<(Index, JournalFile)> {
    let mut existing = None;
    if let Some(number) = folder.journal {
        let path = journal_path(&folder.dir, number);
        let file_bytes = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
        match read_records(&path, |record| replay.apply(record)) {
            Ok(valid_bytes) => {
                if valid_bytes < file_bytes {
                    let lost_bytes = file_bytes - valid_bytes;
                    warn!(file = %path.display(), valid_bytes, lost_bytes, "the index of the nvme tier ends in a torn record");
                }
                existing = Some((number, valid_bytes));
            }
            Err(error) => folder.set_aside(&path, &error.to_string())?,
        }
    }
    let file = JournalFile::open(&folder.dir, folder.store, Arc::clone(raw), existing)
        .map_err(|error| io_error("cannot open the index of the nvme tier", &folder.dir, error))?;
    Ok((replay.finish(), file))
}

#[cfg(test)]
mod tests;
