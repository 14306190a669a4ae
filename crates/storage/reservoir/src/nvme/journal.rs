//! The index journal: what makes the tier survive a restart.
//!
//! One thread owns the file. Changes are pushed to it under the index lock, so they arrive in the order in
//! which they were made; it writes what has gathered as one batch and then lets go of the extents that the
//! batch removed. Nothing is synced: a lost record is a miss, and a record whose bytes are not on disk fails
//! its checksums. When more than half of the file is garbage, and at a clean end, it is rewritten: new file,
//! fsync, rename, old file removed. The index is walked in chunks meanwhile; changes made during the walk
//! follow the walk in the new file, and applying a record twice does no harm.
//!
//! If the disk refuses the journal it is removed: the tier goes on without surviving a restart, and tries
//! again after some batches. The queue is bounded by the pages of the tier (removals) and the bounded number
//! of writes under way (additions).

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use forebay_core::{Error, Result};
use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;
use tracing::{info, warn};

use super::folder::journal_path;
use super::index::{Change, Index};
use super::record::{
    FRAME_BYTES, HEADER_BYTES, JOURNAL_MAGIC, PAYLOAD_BYTES_MAX, Record, StoreId, encode_header, frame_crc,
};
use super::segments::{RawIo, write_fully};

/// Pages encoded under one hold of the index lock.
const SNAPSHOT_PAGES: usize = 1024;

/// Batches between two tries to get a refused journal back.
const RETRY_BATCHES: u32 = 64;

/// A journal below this size is not rewritten.
const REWRITE_BYTES_MIN: u64 = 1 << 20;

/// The way in which the journal ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Rewritten and synced.
    Clean,
    /// Writes what is pending, no more.
    Abrupt,
}

/// The whole records of a journal file, in order; answers with where the first one that is not whole starts.
pub(crate) fn read_records(path: &Path, mut each: impl FnMut(Record)) -> io::Result<u64> {
    let mut input = BufReader::with_capacity(1 << 18, File::open(path)?);
    let mut valid_bytes = HEADER_BYTES as u64;
    io::copy(&mut input.by_ref().take(valid_bytes), &mut io::sink())?;
    let mut payload = vec![0; PAYLOAD_BYTES_MAX];
    loop {
        let mut frame = [0; FRAME_BYTES];
        if !read_whole(&mut input, &mut frame)? {
            return Ok(valid_bytes);
        }
        let [b0, b1, b2, b3, c0, c1, c2, c3] = frame;
        let (payload_bytes, crc) = (
            u32::from_le_bytes([b0, b1, b2, b3]),
            u32::from_le_bytes([c0, c1, c2, c3]),
        );
        let Some(payload) = payload.get_mut(..payload_bytes as usize) else {
            return Ok(valid_bytes);
        };
        if !read_whole(&mut input, payload)? || frame_crc(payload_bytes, payload) != crc {
            return Ok(valid_bytes);
        }
        let Some(record) = Record::decode(payload) else {
            return Ok(valid_bytes);
        };
        each(record);
        valid_bytes += (FRAME_BYTES + payload.len()) as u64;
    }
}

fn read_whole(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match input.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// The file behind the journal.
#[derive(Debug)]
pub(crate) struct JournalFile {
    dir: PathBuf,
    store: StoreId,
    raw: Arc<dyn RawIo>,
    number: u64,
    file: Option<File>,
    bytes: u64,
}

impl JournalFile {
    /// Goes on with journal `number` behind its `valid_bytes`, or without a file if there was none.
    pub(crate) fn open(
        dir: &Path,
        store: StoreId,
        raw: Arc<dyn RawIo>,
        existing: Option<(u64, u64)>,
    ) -> io::Result<Self> {
        let mut journal = Self {
            dir: dir.to_owned(),
            store,
            raw,
            number: 0,
            file: None,
            bytes: 0,
        };
        if let Some((number, valid_bytes)) = existing {
            let file = OpenOptions::new().write(true).open(journal_path(dir, number))?;
            file.set_len(valid_bytes)?;
            (journal.number, journal.file, journal.bytes) = (number, Some(file), valid_bytes);
        }
        Ok(journal)
    }

    fn append(&mut self, records: &[u8]) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        write_fully(&*self.raw, file, records, self.bytes)?;
        self.bytes += records.len() as u64;
        Ok(())
    }

    /// Writes everything live to a fresh file and removes the old one.
    fn rewrite(&mut self, index: &Mutex<Index>) -> io::Result<()> {
        let number = self.number + 1;
        let path = journal_path(&self.dir, number);
        let draft = path.with_extension("tmp");
        let written = self.write_draft(&draft, number, index).and_then(|answer| {
            fs::rename(&draft, &path)?;
            Ok(answer)
        });
        let (file, bytes) = written.inspect_err(|_| {
            // Half a draft only takes room; if it cannot be removed now, the next open does it.
            let _ = fs::remove_file(&draft);
        })?;
        if let Err(error) = File::open(&self.dir).and_then(|dir| dir.sync_all()) {
            // A rename lost by a power cut leaves no index, which is a cold start and nothing worse.
            warn!(%error, "cannot sync the folder of the nvme tier");
        }
        self.discard();
        (self.number, self.file, self.bytes) = (number, Some(file), bytes);
        Ok(())
    }

    fn write_draft(&self, draft: &Path, number: u64, index: &Mutex<Index>) -> io::Result<(File, u64)> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(draft)?;
        let mut chunk = encode_header(JOURNAL_MAGIC, self.store, number).to_vec();
        let (mut bytes, mut after) = (0, None);
        loop {
            let last = index.lock().snapshot(after, SNAPSHOT_PAGES, &mut chunk);
            write_fully(&*self.raw, &file, &chunk, bytes)?;
            bytes += chunk.len() as u64;
            chunk.clear();
            if last.is_none() {
                break;
            }
            after = last;
        }
        file.sync_all()?;
        Ok((file, bytes))
    }

    /// Removes the file: better no memory than a wrong one.
    fn discard(&mut self) {
        if self.file.take().is_some() {
            let path = journal_path(&self.dir, self.number);
            if let Err(error) = fs::remove_file(&path) {
                warn!(file = %path.display(), %error, "cannot remove an old index of the nvme tier");
            }
        }
        self.bytes = 0;
    }
}

#[derive(Debug, Default)]
struct Pending {
    change: Change,
    sequence: u64,
    ending: Option<Ending>,
}

#[derive(Debug)]
struct Shared {
    pending: Mutex<Pending>,
    work: Condvar,
    written: watch::Sender<u64>,
    bytes: AtomicU64,
    errors: AtomicU64,
}

/// The journal and its thread.
#[derive(Debug)]
pub(crate) struct Journal {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Journal {
    /// Starts the thread. `reserve_bytes` is the room that old and new file may take together.
    pub(crate) fn start(file: JournalFile, index: Arc<Mutex<Index>>, reserve_bytes: u64) -> Result<Self> {
        let shared = Arc::new(Shared {
            pending: Mutex::default(),
            work: Condvar::new(),
            written: watch::Sender::new(0),
            bytes: AtomicU64::new(file.bytes),
            errors: AtomicU64::new(0),
        });
        let owner = Owner {
            file,
            index,
            reserve_bytes,
            shared: Arc::clone(&shared),
            batches_to_retry: 0,
        };
        let thread = std::thread::Builder::new()
            .name("nvme-index".to_owned())
            .spawn(move || owner.run())
            .map_err(|error| Error::io("cannot start the index thread of the nvme tier", error))?;
        Ok(Self {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Hands a change over; call it under the index lock. The answer is for [`Journal::written`].
    pub(crate) fn push(&self, mut change: Change) -> u64 {
        let mut pending = self.shared.pending.lock();
        if pending.ending.is_some() {
            return 0;
        }
        if change.records.is_empty() && change.released.is_empty() {
            return pending.sequence;
        }
        pending.change.records.append(&mut change.records);
        pending.change.released.append(&mut change.released);
        pending.sequence += 1;
        let sequence = pending.sequence;
        drop(pending);
        self.shared.work.notify_one();
        sequence
    }

    /// Waits until the change is in the file, its extents let go, or the journal has ended. Cancel-safe.
    pub(crate) async fn written(&self, sequence: u64) {
        let mut written = self.shared.written.subscribe();
        // The sender lives in `shared`, so the wait cannot fail.
        let _ = written.wait_for(|&done| done >= sequence).await;
    }

    /// Returns whether [`Journal::written`] would answer at once.
    pub(crate) fn is_written(&self, sequence: u64) -> bool {
        *self.shared.written.borrow() >= sequence
    }

    /// Bytes of the file now.
    pub(crate) fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    /// Batches and rewrites that the disk refused.
    pub(crate) fn errors(&self) -> u64 {
        self.shared.errors.load(Ordering::Relaxed)
    }

    /// Writes what is pending and ends the thread; blocks. Idempotent.
    pub(crate) fn stop(&self, ending: Ending) {
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            self.shared.pending.lock().ending = Some(ending);
            self.shared.work.notify_one();
            if thread.join().is_err() {
                tracing::error!("the index thread of the nvme tier panicked");
            }
            self.shared.written.send_replace(u64::MAX);
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.stop(Ending::Abrupt);
    }
}

/// Everything that the thread owns.
struct Owner {
    file: JournalFile,
    index: Arc<Mutex<Index>>,
    reserve_bytes: u64,
    shared: Arc<Shared>,
    batches_to_retry: u32,
}

impl Owner {
    fn run(mut self) {
        if self.file.file.is_none() {
            self.rewrite();
        }
        loop {
            let (change, sequence, ending) = self.next();
            self.write(&change.records);
            drop(change);
            self.shared.written.send_replace(sequence);
            match ending {
                None => {}
                Some(Ending::Abrupt) => return,
                Some(Ending::Clean) => return self.rewrite(),
            }
        }
    }

    fn next(&self) -> (Change, u64, Option<Ending>) {
        let mut pending = self.shared.pending.lock();
        while pending.change.records.is_empty()
            && pending.change.released.is_empty()
            && pending.ending.is_none()
        {
            self.shared.work.wait(&mut pending);
        }
        (
            std::mem::take(&mut pending.change),
            pending.sequence,
            pending.ending,
        )
    }

    /// Appends a batch and rewrites the file if it has become mostly garbage. A file that missed a batch must
    /// not be read again: it is replaced at once, or removed.
    fn write(&mut self, records: &[u8]) {
        self.batches_to_retry = self.batches_to_retry.saturating_sub(1);
        if let Err(error) = self.file.append(records) {
            self.count("append", &error);
            self.file.discard();
            self.rewrite();
        } else if self.is_rewrite_due() && self.batches_to_retry == 0 {
            self.rewrite();
        }
        if self.file.bytes > self.reserve_bytes {
            self.file.discard();
            self.rewrite();
        }
        self.shared.bytes.store(self.file.bytes, Ordering::Relaxed);
    }

    fn is_rewrite_due(&self) -> bool {
        let live_bytes = self.index.lock().totals().record_bytes;
        let bytes_max = (2 * live_bytes).max(REWRITE_BYTES_MIN.min(self.reserve_bytes / 3));
        self.file.file.is_none() || self.file.bytes > bytes_max
    }

    fn rewrite(&mut self) {
        let before_bytes = self.file.bytes;
        match self.file.rewrite(&self.index) {
            Ok(()) => {
                self.batches_to_retry = 0;
                info!(
                    before_bytes,
                    after_bytes = self.file.bytes,
                    "rewrote the index of the nvme tier"
                );
            }
            Err(error) => {
                self.batches_to_retry = RETRY_BATCHES;
                self.count("rewrite", &error);
            }
        }
        self.shared.bytes.store(self.file.bytes, Ordering::Relaxed);
    }

    fn count(&self, action: &str, error: &io::Error) {
        self.shared.errors.fetch_add(1, Ordering::Relaxed);
        warn!(action, %error, "cannot write the index of the nvme tier; it may not survive a restart");
    }
}
