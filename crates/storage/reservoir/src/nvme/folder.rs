//! The folder of the tier: its lock, its identity, and what to do with files that are not good.
//!
//! One process owns the folder, by a lock on `LOCK` that the kernel drops with the process. The file's text
//! names the store; every other file repeats that name in its header, so a file of another store is noticed.
//! A file with one of our names that is damaged or foreign is renamed, logged, and never looked at again. The
//! newest few of those are kept for whoever wants to look; they are outside the budget.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use forebay_core::{Error, Kind, Result};
use rustix::fs::FlockOperation;
use tracing::warn;

use super::record::{HEADER_BYTES, JOURNAL_MAGIC, SEGMENT_MAGIC, StoreId, check_header};
use super::segments::segment_path;
use super::space::{SEGMENT_UNITS, UNIT_BYTES};

/// Files set aside that are kept, at most.
const SET_ASIDE_FILES_MAX: usize = 8;

const LOCK_TEXT: &str = "forebay nvme tier 1 ";

/// The locked folder and what was found in it.
#[derive(Debug)]
pub(crate) struct Folder {
    /// Its location.
    pub(crate) dir: PathBuf,
    /// Holds the lock until it is dropped.
    pub(crate) lock: File,
    /// The name of the store.
    pub(crate) store: StoreId,
    /// The journal to go on with.
    pub(crate) journal: Option<u64>,
    /// Segment files with a good header, inside the capacity.
    pub(crate) segments: BTreeSet<u64>,
    /// Files set aside by this open.
    pub(crate) set_aside_files: u64,
}

/// The path of a journal.
pub(crate) fn journal_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("index-{number}.log"))
}

impl Folder {
    /// Makes and locks the folder, and sorts its files into good ones and others. Blocks.
    pub(crate) fn open(dir: &Path, capacity_units: u64) -> Result<Self> {
        fs::create_dir_all(dir)
            .map_err(|error| io_error("cannot make the folder of the nvme tier", dir, error))?;
        let mut lock = lock(dir)?;
        let known = read_store_id(&mut lock);
        let mut folder = Self {
            dir: dir.to_owned(),
            lock,
            store: known.unwrap_or_else(random_store_id),
            journal: None,
            segments: BTreeSet::new(),
            set_aside_files: 0,
        };
        let names = folder.names()?;
        folder.remove_drafts(&names);
        folder.choose_journal(&names, known)?;
        if known != Some(folder.store) {
            folder.write_store_id();
        }
        folder.check_segments(&names, capacity_units)?;
        folder.forget_old_set_aside()?;
        Ok(folder)
    }

    fn names(&self) -> Result<Vec<String>> {
        let list = || -> std::io::Result<Vec<String>> {
            let entries = fs::read_dir(&self.dir)?.collect::<std::io::Result<Vec<_>>>()?;
            Ok(entries
                .into_iter()
                .filter_map(|entry| entry.file_name().into_string().ok())
                .collect())
        };
        list().map_err(|error| io_error("cannot list the folder of the nvme tier", &self.dir, error))
    }

    fn remove_drafts(&self, names: &[String]) {
        let is_draft = |name: &str| {
            name == "probe.tmp"
                || (name.ends_with(".tmp") && (name.starts_with("seg-") || name.starts_with("index-")))
        };
        for name in names.iter().filter(|name| is_draft(name)) {
            if let Err(error) = fs::remove_file(self.dir.join(name)) {
                warn!(file = %name, %error, "cannot remove an unfinished file of the nvme tier");
            }
        }
    }

    /// Takes the newest good journal; older good ones are leftovers of a compaction.
    fn choose_journal(&mut self, names: &[String], known: Option<StoreId>) -> Result<()> {
        let number =
            |name: &String| number_of(name, "index-", ".log", |number| journal_path(&self.dir, number));
        let mut numbers: Vec<u64> = names.iter().filter_map(number).collect();
        numbers.sort_unstable_by(|a, b| b.cmp(a));
        for number in numbers {
            let path = journal_path(&self.dir, number);
            let expected = known.or(self.journal.map(|_| self.store));
            match check_file(&path, JOURNAL_MAGIC, expected, number) {
                Ok(_) if self.journal.is_some() => {
                    if let Err(error) = fs::remove_file(&path) {
                        warn!(file = %path.display(), %error, "cannot remove an old index of the nvme tier");
                    }
                }
                Ok(store) => {
                    self.store = store;
                    self.journal = Some(number);
                }
                Err(why) => self.set_aside(&path, &why)?,
            }
        }
        Ok(())
    }

    fn check_segments(&mut self, names: &[String], capacity_units: u64) -> Result<()> {
        let dir = self.dir.clone();
        let number = |name: &String| number_of(name, "seg-", ".pages", |number| segment_path(&dir, number));
        for number in names.iter().filter_map(number) {
            let path = segment_path(&self.dir, number);
            if let Err(why) = check_file(&path, SEGMENT_MAGIC, Some(self.store), number) {
                self.set_aside(&path, &why)?;
                continue;
            }
            let units_max = capacity_units
                .saturating_sub(number.saturating_mul(SEGMENT_UNITS))
                .min(SEGMENT_UNITS);
            if units_max > 1 {
                cut_file(&path, units_max * UNIT_BYTES)?;
                self.segments.insert(number);
            } else {
                fs::remove_file(&path).map_err(|error| {
                    io_error("cannot remove a segment that is past the budget", &path, error)
                })?;
            }
        }
        Ok(())
    }

    /// Renames a file that cannot be used, so that it is neither read nor written again.
    pub(crate) fn set_aside(&mut self, path: &Path, why: &str) -> Result<()> {
        let numbered = |n: u32| PathBuf::from(format!("{}.set-aside-{n}", path.display()));
        let target = (0..u32::MAX)
            .map(numbered)
            .find(|target| !target.exists())
            .unwrap_or_else(|| numbered(0));
        fs::rename(path, &target).map_err(|error| {
            io_error(
                "cannot set a damaged or foreign file of the nvme tier aside; move it away",
                path,
                error,
            )
        })?;
        self.set_aside_files += 1;
        warn!(
            file = %path.display(), renamed = %target.display(), why,
            "set a file of the nvme tier aside; its pages will be fetched again"
        );
        Ok(())
    }

    fn forget_old_set_aside(&self) -> Result<()> {
        let mut files: Vec<(i64, i64, String)> = Vec::new();
        for name in self
            .names()?
            .into_iter()
            .filter(|name| name.contains(".set-aside-"))
        {
            let changed = fs::symlink_metadata(self.dir.join(&name))
                .map(|metadata| (metadata.ctime(), metadata.ctime_nsec()));
            files.extend(
                changed
                    .ok()
                    .map(|(seconds, nanoseconds)| (seconds, nanoseconds, name)),
            );
        }
        files.sort_unstable_by(|a, b| b.cmp(a));
        for (_, _, name) in files.into_iter().skip(SET_ASIDE_FILES_MAX) {
            match fs::remove_file(self.dir.join(&name)) {
                Ok(()) => {
                    warn!(file = %name, kept = SET_ASIDE_FILES_MAX, "removed an old file that was set aside");
                }
                Err(error) => warn!(file = %name, %error, "cannot remove an old file that was set aside"),
            }
        }
        Ok(())
    }

    /// Writes the name of the store into the lock file. The journal has it too, so a full disk is no reason
    /// to stop.
    fn write_store_id(&self) {
        let text = format!("{LOCK_TEXT}{}\n", hex(&self.store));
        let written = self
            .lock
            .write_all_at(text.as_bytes(), 0)
            .and_then(|()| self.lock.set_len(text.len() as u64));
        if let Err(error) = written {
            warn!(dir = %self.dir.display(), %error, "cannot write the lock file of the nvme tier");
        }
    }
}

fn lock(dir: &Path) -> Result<File> {
    let path = dir.join("LOCK");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(|error| io_error("cannot open the lock file of the nvme tier", &path, error))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::new(
            Kind::Busy,
            "the folder of the nvme tier is in use by another process; stop it or choose another --data folder",
        )
        .with("dir", dir.display())),
        Err(error) => Err(io_error("cannot lock the folder of the nvme tier", &path, error.into())),
    }
}

fn read_store_id(lock: &mut File) -> Option<StoreId> {
    let mut text = String::new();
    lock.take(1024).read_to_string(&mut text).ok()?;
    let digits = text.strip_prefix(LOCK_TEXT)?.strip_suffix('\n')?;
    let bytes = (0..digits.len() / 2)
        .map(|i| u8::from_str_radix(digits.get(2 * i..2 * i + 2)?, 16).ok())
        .collect::<Option<Vec<u8>>>()?;
    bytes.try_into().ok()
}

/// Unlike any other store's; from the seeds that the standard library draws for its hash maps.
fn random_store_id() -> StoreId {
    let draw = || {
        std::collections::hash_map::RandomState::new()
            .build_hasher()
            .finish()
            .to_le_bytes()
    };
    let mut id = [0; 16];
    let seed = blake3::hash(&[draw(), draw(), u64::from(std::process::id()).to_le_bytes()].concat());
    id.copy_from_slice(&seed.as_bytes()[..16]);
    id
}

fn check_file(path: &Path, magic: [u8; 8], store: Option<StoreId>, number: u64) -> Result<StoreId, String> {
    let mut header = Vec::new();
    let metadata = fs::symlink_metadata(path).map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("it is not an ordinary file".to_owned());
    }
    File::open(path)
        .and_then(|file| file.take(HEADER_BYTES as u64).read_to_end(&mut header))
        .map_err(|error| error.to_string())?;
    check_header(&header, magic, store, number).map_err(str::to_owned)
}

fn cut_file(path: &Path, bytes_max: u64) -> Result<()> {
    let cut = || -> std::io::Result<()> {
        let file = OpenOptions::new().write(true).open(path)?;
        if file.metadata()?.len() > bytes_max {
            file.set_len(bytes_max)
        } else {
            Ok(())
        }
    };
    cut().map_err(|error| io_error("cannot cut a segment file down to the budget", path, error))
}

/// The number in a file name, if we would write that number in the same way.
fn number_of(name: &str, prefix: &str, suffix: &str, path: impl Fn(u64) -> PathBuf) -> Option<u64> {
    let number = name.strip_prefix(prefix)?.strip_suffix(suffix)?.parse().ok()?;
    (path(number).file_name()? == name).then_some(number)
}

/// An I/O error with the path.
pub(crate) fn io_error(message: &str, path: &Path, error: std::io::Error) -> Error {
    Error::io(message, error).with("path", path.display())
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
