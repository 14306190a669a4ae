//! A file that is being written: its bytes lie in a nameless file of this machine until the lake has them.
//!
//! Bytes come in order, as programs of this field write them: from the start, or behind what the object has. So a
//! close can upload what is there under the name that the file has by then. What comes out of order is refused and
//! the file is given up: the lake keeps the old object, never a half of the new one.
//!
//! Life cycle: made by `create` or the first open for writing → written → uploaded by close or fsync → dropped with
//! its last writer. The death of the process loses it; the lake then has the old object.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use forebay_client::PutOptions;
use forebay_core::{Clock as _, Error, Kind, Result, SystemClock};
use parking_lot::{Mutex, MutexGuard};

use crate::counters::Counter;
use crate::inode::Version;
use crate::tree::Tree;

/// Bytes of one piece of an upload, or of what an append begins with.
const PIECE_BYTES: u64 = 4 << 20;

/// A file that is being written.
#[derive(Debug)]
pub(crate) struct Staged {
    /// A number that no other has.
    pub(crate) serial: u64,
    state: Mutex<State>,
    /// One upload at a time.
    uploading: Mutex<()>,
    /// Bytes of all files that are being written.
    used: Arc<AtomicU64>,
}

#[derive(Debug)]
struct State {
    /// `None` once it was removed or replaced.
    key: Option<Box<str>>,
    /// The version that the file begins with, while its bytes are not here yet.
    base: Option<Arc<Version>>,
    file: File,
    bytes: u64,
    /// Size that was announced by a truncation upwards.
    announced: Option<u64>,
    /// The lake does not have it as it is.
    is_dirty: bool,
    /// Bytes were written since the last upload.
    has_written: bool,
    /// The lake has an object at the key.
    lake_has: bool,
    /// Why it was given up.
    failure: Option<&'static str>,
    writers: usize,
    modified: SystemTime,
    made: Instant,
}

/// Result of an attempt to write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Written {
    Done,
    /// Not behind the last byte: refused, and the file is given up.
    OutOfOrder,
    /// It was given up before.
    GivenUp,
    /// More than all files that are being written may take.
    NoRoom,
}

impl Staged {
    /// A new file, or one that begins with a version.
    pub(crate) fn new(
        serial: u64,
        key: &str,
        base: Option<Arc<Version>>,
        folder: &std::path::Path,
        used: Arc<AtomicU64>,
    ) -> Result<Self> {
        let file = tempfile::tempfile_in(folder).map_err(|why| {
            Error::io("cannot make a file for what is written", why).with("folder", folder.display())
        })?;
        let state = State {
            key: Some(key.into()),
            bytes: base.as_ref().map_or(0, |version| version.bytes),
            is_dirty: base.is_none(),
            lake_has: base.is_some(),
            base,
            file,
            announced: None,
            has_written: false,
            failure: None,
            writers: 0,
            modified: SystemClock::new().wall(),
            made: Instant::now(),
        };
        Ok(Self {
            serial,
            state: Mutex::new(state),
            uploading: Mutex::new(()),
            used,
        })
    }

    /// Size and time as `stat` shows them.
    pub(crate) fn shown(&self) -> (u64, SystemTime) {
        let state = self.state.lock();
        (state.announced.unwrap_or(0).max(state.bytes), state.modified)
    }

    pub(crate) fn key(&self) -> Option<Box<str>> {
        self.state.lock().key.clone()
    }

    /// Gives it another name, or none.
    pub(crate) fn set_key(&self, key: Option<&str>) {
        let mut state = self.state.lock();
        state.key = key.map(Into::into);
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.state.lock().is_dirty
    }

    pub(crate) fn lake_has(&self) -> bool {
        self.state.lock().lake_has
    }

    pub(crate) fn add_writer(&self) {
        self.state.lock().writers += 1;
    }

    /// Counts a writer less; true if there is none left.
    pub(crate) fn remove_writer(&self) -> bool {
        let mut state = self.state.lock();
        state.writers = state.writers.saturating_sub(1);
        state.writers == 0
    }

    /// True if nobody came to write, so that it can be dropped.
    pub(crate) fn is_abandoned(&self, age: std::time::Duration) -> bool {
        let state = self.state.lock();
        state.writers == 0 && !state.has_written && state.made.elapsed() > age
    }

    /// Writes behind the last byte; `None` says that this is what is meant.
    pub(crate) fn write(&self, offset: Option<u64>, data: &[u8], limit: u64, tree: &Tree) -> Result<Written> {
        let mut state = self.state.lock();
        if state.failure.is_some() {
            return Ok(Written::GivenUp);
        }
        if offset.is_some_and(|offset| offset != state.bytes) {
            state.failure = Some("it was written out of order");
            return Ok(Written::OutOfOrder);
        }
        if self.used.load(Ordering::Relaxed) + data.len() as u64 > limit {
            return Ok(Written::NoRoom);
        }
        self.load_base(&mut state, tree)?;
        let end = state.bytes;
        state.file.write_all_at(data, end).map_err(cannot_stage)?;
        state.bytes += data.len() as u64;
        self.used.fetch_add(data.len() as u64, Ordering::Relaxed);
        state.modified = SystemClock::new().wall();
        state.is_dirty = true;
        state.has_written = true;
        Ok(Written::Done)
    }

    /// Brings the bytes here that the file begins with.
    fn load_base(&self, state: &mut MutexGuard<'_, State>, tree: &Tree) -> Result<()> {
        let Some(base) = state.base.clone() else {
            return Ok(());
        };
        let mut offset = 0;
        while offset < base.bytes {
            let length = (base.bytes - offset).min(PIECE_BYTES);
            let view = tree.read(&base, offset, length)?;
            state.file.write_all_at(&view, offset).map_err(cannot_stage)?;
            offset += length;
        }
        self.used.fetch_add(base.bytes, Ordering::Relaxed);
        state.base = None;
        Ok(())
    }

    /// Sets the size: to nothing, to what it is, or upwards as an announcement. `false` for anything else.
    pub(crate) fn truncate(&self, size: u64) -> Result<bool> {
        let mut state = self.state.lock();
        if size == 0 && (state.bytes > 0 || state.announced.is_some()) {
            if state.base.take().is_none() {
                self.used.fetch_sub(state.bytes, Ordering::Relaxed);
            }
            state.file.set_len(0).map_err(cannot_stage)?;
            state.bytes = 0;
            state.announced = None;
            // A close of a descriptor that was only duplicated uploads nothing yet.
            state.is_dirty = true;
            return Ok(true);
        }
        if size < state.bytes {
            return Ok(false);
        }
        state.announced = (size > state.bytes).then_some(size);
        Ok(true)
    }

    /// Bytes as they were written so far.
    pub(crate) fn read(&self, offset: u64, size: u32, tree: &Tree) -> Result<Vec<u8>> {
        let state = self.state.lock();
        let left = state.bytes.saturating_sub(offset);
        let length = left.min(u64::from(size));
        if length == 0 {
            return Ok(Vec::new());
        }
        if let Some(base) = &state.base {
            return Ok(tree.read(base, offset, length)?.to_vec());
        }
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        state
            .file
            .read_exact_at(&mut bytes, offset)
            .map_err(cannot_stage)?;
        Ok(bytes)
    }

    /// True if a close has something to upload: bytes were written, or it was given up and the close must say so.
    pub(crate) fn wants_close(&self) -> bool {
        let state = self.state.lock();
        state.has_written || state.failure.is_some()
    }

    /// Brings it to the lake under the name that it has, if the lake does not have it. Blocks.
    ///
    /// Errors: those of the lake; `Conflict` if it was given up or is shorter than was announced.
    pub(crate) fn upload(&self, tree: &Tree) -> Result<()> {
        let _one = self.uploading.lock();
        let (key, bytes, file) = {
            let mut state = self.state.lock();
            if let Some(why) = state.failure {
                let error = Error::new(
                    Kind::Conflict,
                    format!("the file was given up: {why}; the lake keeps the old one"),
                );
                return Err(error.with("key", state.key.as_deref().unwrap_or_default()));
            }
            let Some(key) = state.key.clone() else {
                return Ok(());
            };
            if !state.is_dirty {
                return Ok(());
            }
            if let Some(announced) = state.announced.filter(|announced| *announced > state.bytes) {
                let message = "the file is shorter than was announced by a truncation; it is not uploaded";
                return Err(Error::new(Kind::Conflict, message)
                    .with("key", key)
                    .with("announced_bytes", announced)
                    .with("bytes", state.bytes));
            }
            self.load_base(&mut state, tree)?;
            let file = state.file.try_clone().map_err(cannot_stage)?;
            state.has_written = false;
            (key, state.bytes, file)
        };
        let uploaded = upload(&file, &key, bytes, tree);
        let mut state = self.state.lock();
        match uploaded {
            Ok(()) => {
                state.lake_has = true;
                // What was written meanwhile is for the next upload.
                state.is_dirty = state.has_written || state.bytes != bytes;
                tree.counters.add(Counter::Uploads);
                tree.counters.add_many(Counter::UploadedBytes, bytes);
                Ok(())
            }
            Err(error) => {
                state.has_written = true;
                tree.counters.add(Counter::UploadErrors);
                Err(error)
            }
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        let state = self.state.lock();
        if state.base.is_none() {
            self.used.fetch_sub(state.bytes, Ordering::Relaxed);
        }
    }
}

fn upload(file: &File, key: &str, bytes: u64, tree: &Tree) -> Result<()> {
    let mut writer = tree
        .client
        .writer(&tree.name(key)?, PutOptions::default(), Some(bytes));
    let mut piece = vec![0; usize::try_from(bytes.min(PIECE_BYTES)).unwrap_or(0)];
    let mut offset = 0;
    while offset < bytes {
        let length = usize::try_from((bytes - offset).min(PIECE_BYTES)).unwrap_or(0);
        file.read_exact_at(&mut piece[..length], offset)
            .map_err(cannot_stage)?;
        writer.write(&piece[..length])?;
        offset += length as u64;
    }
    writer.finish()?;
    Ok(())
}

fn cannot_stage(why: io::Error) -> Error {
    Error::io("cannot keep what is written on this machine", why)
}
