//! The segment files: made on the first write into them, opened with O_DIRECT where the file system allows.
//!
//! A file starts with one unit of header and grows as pages are written; it is never grown ahead of need.
//! Only so many files are open at a time, so a large tier does not run into the process's limit of
//! descriptors. The calls here block and are made on I/O threads or while the store opens. All reads and
//! writes go through [`RawIo`], where tests put short transfers and failing disks.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::OFlags;

use super::buffer::BufferPool;
use super::record::{SEGMENT_MAGIC, StoreId, encode_header};
use super::space::UNIT_BYTES;

/// Open segment files, at most; a file in use stays open beyond that until its last transfer is done.
const OPEN_FILES_MAX: usize = 256;

/// One positioned transfer; may move fewer bytes than asked.
pub(crate) trait RawIo: Send + Sync + fmt::Debug + 'static {
    /// `pread`.
    fn read_at(&self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        file.read_at(buffer, offset)
    }

    /// `pwrite`.
    fn write_at(&self, file: &File, buffer: &[u8], offset: u64) -> io::Result<usize> {
        file.write_at(buffer, offset)
    }
}

/// The operating system.
#[derive(Debug)]
pub(crate) struct OsIo;

impl RawIo for OsIo {}

/// Reads until the buffer is full; a file that ends before is an error.
pub(crate) fn read_fully(
    raw: &dyn RawIo,
    file: &File,
    mut buffer: &mut [u8],
    mut offset: u64,
) -> io::Result<()> {
    while !buffer.is_empty() {
        match raw.read_at(file, buffer, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => {
                buffer = &mut buffer[bytes..];
                offset += bytes as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes until everything is written.
pub(crate) fn write_fully(
    raw: &dyn RawIo,
    file: &File,
    mut buffer: &[u8],
    mut offset: u64,
) -> io::Result<()> {
    while !buffer.is_empty() {
        match raw.write_at(file, buffer, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(bytes) => {
                buffer = &buffer[bytes..];
                offset += bytes as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The path of a segment file.
pub(crate) fn segment_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("seg-{number:05}.pages"))
}

/// The open segment files of a store.
#[derive(Debug)]
pub(crate) struct Segments {
    dir: PathBuf,
    store: StoreId,
    is_direct: bool,
    raw: Arc<dyn RawIo>,
    buffers: Arc<BufferPool>,
    files: Mutex<OpenFiles>,
}

/// Files by segment number, each with when it was last used.
#[derive(Debug, Default)]
struct OpenFiles {
    files: BTreeMap<u64, (Arc<File>, u64)>,
    uses: u64,
}

impl OpenFiles {
    fn get(&mut self, number: u64) -> Option<Arc<File>> {
        self.uses += 1;
        let (file, used) = self.files.get_mut(&number)?;
        *used = self.uses;
        Some(Arc::clone(file))
    }

    fn insert(&mut self, number: u64, file: File) -> Arc<File> {
        if self.files.len() >= OPEN_FILES_MAX
            && let Some((&oldest, _)) = self.files.iter().min_by_key(|(_, (_, used))| *used)
        {
            self.files.remove(&oldest);
        }
        let file = Arc::new(file);
        self.files.insert(number, (Arc::clone(&file), self.uses));
        file
    }
}

impl Segments {
    /// Finds out whether the file system takes O_DIRECT; opens nothing yet.
    pub(crate) fn new(dir: &Path, store: StoreId, raw: Arc<dyn RawIo>, buffers: Arc<BufferPool>) -> Self {
        let is_direct = takes_direct_io(dir, &buffers);
        Self {
            dir: dir.to_owned(),
            store,
            is_direct,
            raw,
            buffers,
            files: Mutex::default(),
        }
    }

    /// Returns whether transfers go past the page cache.
    pub(crate) fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// The transfers.
    pub(crate) fn raw(&self) -> &dyn RawIo {
        &*self.raw
    }

    /// The file of a segment that has pages.
    pub(crate) fn existing(&self, number: u64) -> io::Result<Arc<File>> {
        let mut files = self.files.lock();
        if let Some(file) = files.get(number) {
            return Ok(file);
        }
        let file = self.options().open(segment_path(&self.dir, number))?;
        Ok(files.insert(number, file))
    }

    /// The file of a segment, made with its header if it is not there.
    pub(crate) fn for_write(&self, number: u64) -> io::Result<Arc<File>> {
        match self.existing(number) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.create(number),
            answer => answer,
        }
    }

    /// Writes the header under a name of its own first, so that a file of this name always has a whole one.
    fn create(&self, number: u64) -> io::Result<Arc<File>> {
        let mut files = self.files.lock();
        if let Some(file) = files.get(number) {
            return Ok(file);
        }
        let path = segment_path(&self.dir, number);
        let draft = path.with_extension("tmp");
        let file = self.options().create(true).truncate(true).open(&draft)?;
        let mut header = self.buffers.take(UNIT_BYTES as usize);
        header.as_mut_slice().fill(0);
        let fields = encode_header(SEGMENT_MAGIC, self.store, number);
        header.as_mut_slice()[..fields.len()].copy_from_slice(&fields);
        write_fully(&*self.raw, &file, header.as_ref(), 0)?;
        std::fs::rename(&draft, &path)?;
        Ok(files.insert(number, file))
    }

    fn options(&self) -> OpenOptions {
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600);
        if self.is_direct {
            options.custom_flags(OFlags::DIRECT.bits().cast_signed());
        }
        options
    }
}

/// Writes and reads two units with O_DIRECT; small transfers would hide what the file system refuses.
fn takes_direct_io(dir: &Path, buffers: &Arc<BufferPool>) -> bool {
    let path = dir.join("probe.tmp");
    let mut buffer = buffers.take(2 * UNIT_BYTES as usize);
    let mut probe = || -> io::Result<()> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(OFlags::DIRECT.bits().cast_signed())
            .open(&path)?;
        write_fully(&OsIo, &file, buffer.as_ref(), 0)?;
        read_fully(&OsIo, &file, buffer.as_mut_slice(), 0)
    };
    let answer = probe();
    // Nothing depends on it, and the next open clears it away.
    let _ = std::fs::remove_file(&path);
    match answer {
        Ok(()) => true,
        // A full disk says nothing about alignment.
        Err(error) => matches!(
            error.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_segments_than_open_files_can_all_be_used() {
        let dir = tempfile::tempdir().unwrap();
        let segments = Segments::new(dir.path(), [1; 16], Arc::new(OsIo), Arc::default());
        let count = OPEN_FILES_MAX as u64 + 20;
        for number in 0..count {
            segments.for_write(number).unwrap();
        }
        assert_eq!(segments.files.lock().files.len(), OPEN_FILES_MAX);
        for number in 0..count {
            let expected = encode_header(SEGMENT_MAGIC, [1; 16], number);
            let file = segments.existing(number).unwrap();
            let mut unit = segments.buffers.take(UNIT_BYTES as usize);
            read_fully(&OsIo, &file, unit.as_mut_slice(), 0).unwrap();
            assert_eq!(unit.as_ref()[..expected.len()], expected);
        }
        assert!(segments.existing(count).is_err());
    }
}
