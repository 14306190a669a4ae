//! The names in a folder, in the order in which their keys sort.
//!
//! A folder gives its names in no order. Those that can matter go into a heap and are taken out smallest
//! first: one pass over the folder, no full sort. A large folder is listed page by page, and every page would
//! make that pass again; so its names are sorted once and cached for the next pages, while the folder has the
//! same inode, modification and change time. Adding, removing and replacing a name changes these, but the
//! kernel's clock has ticks: names are cached only of a folder that had been left alone for longer than a
//! tick when it was read, so that any later change shows. Kept only on file systems known to keep these
//! times; a folder that is being written to is read anew for each page. Memory: `CACHED_FOLDERS_MAX` folders,
//! `CACHED_BYTES_MAX` together.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forebay_core::{Clock, SystemClock};
use parking_lot::Mutex;
use rustix::fs::{Dir, DirEntry, FileType, fstat, fstatfs};
use rustix::io::{Errno, Result};

use super::key_path::{MARKER_NAME, PRIVATE_FOLDERS};
use super::tree::stat_name;
use super::walk::Bounds;

/// Smaller folders are read faster than they are cached.
const LARGE_NAMES_MIN: usize = 1000;
const CACHED_FOLDERS_MAX: usize = 4;
const CACHED_BYTES_MAX: usize = 32 << 20;
/// Cost of a cached name besides its text.
const NAME_BYTES: usize = 40;
/// Ticks of file times are 10 ms at most.
const SETTLED_AFTER: Duration = Duration::from_millis(100);

/// File systems whose folders change their times with their content: ext2-4, xfs, btrfs, tmpfs, overlayfs,
/// f2fs, zfs, bcachefs.
const FILE_SYSTEMS: [u64; 8] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x0102_1994,
    0x794c_7630,
    0xf2f5_2010,
    0x2fc1_2fc1,
    0xca45_1a4e,
];

/// The names of a folder that are still to be listed. A folder has a `/` behind its name, the marker of the
/// folder itself is the empty name.
#[derive(Debug)]
pub(super) enum Names {
    /// Of a small folder, or one that is being written to.
    Read(BinaryHeap<Reverse<String>>),
    /// Of a large folder that is not.
    Cached {
        names: Arc<Vec<Box<str>>>,
        rest: Range<usize>,
    },
}

impl Names {
    /// The smallest name.
    pub(super) fn pop(&mut self) -> Option<String> {
        match self {
            Self::Read(names) => names.pop().map(|Reverse(name)| name),
            Self::Cached { names, rest } => rest.next().map(|index| names[index].to_string()),
        }
    }
}

/// A folder at one moment: device, inode, modification time, change time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FolderStamp {
    device: u64,
    inode: u64,
    modified: (i64, u64),
    changed: (i64, u64),
}

impl FolderStamp {
    fn of(folder: BorrowedFd<'_>) -> Result<Self> {
        let stat = fstat(folder)?;
        Ok(Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            modified: (stat.st_mtime, stat.st_mtime_nsec),
            changed: (stat.st_ctime, stat.st_ctime_nsec),
        })
    }

    /// Returns whether whatever happens to the folder from `now` on gives it other times.
    fn is_settled(&self, now: SystemTime) -> bool {
        let since_epoch =
            |(s, ns): (i64, u64)| Some(Duration::new(u64::try_from(s).ok()?, ns.try_into().ok()?));
        let changed = since_epoch(self.changed.max(self.modified));
        let now = now.duration_since(SystemTime::UNIX_EPOCH).ok();
        changed
            .zip(now)
            .is_some_and(|(changed, now)| changed + SETTLED_AFTER < now)
    }
}

#[derive(Debug)]
struct CachedFolder {
    stamp: FolderStamp,
    names: Arc<Vec<Box<str>>>,
    bytes: usize,
}

/// The large folders that were listed last, the latest first.
#[derive(Debug, Default)]
pub(super) struct NameCache(Mutex<VecDeque<CachedFolder>>);

impl NameCache {
    /// The names of a folder that can matter.
    pub(super) fn read(&self, folder: &OwnedFd, key_prefix: &str, bounds: &Bounds<'_>) -> Result<Names> {
        let stamp = FolderStamp::of(folder.as_fd())?;
        if let Some(names) = self.find(stamp) {
            let rest = wanted(&names, key_prefix, bounds);
            return Ok(Names::Cached { names, rest });
        }
        let may_keep = stamp.is_settled(SystemClock::new().wall()) && has_honest_times(folder);
        if !may_keep {
            let names = read_names(folder, key_prefix, |key, is_folder| {
                bounds.wants_name(key, is_folder)
            })?;
            return Ok(Names::Read(names.into_iter().map(Reverse).collect()));
        }
        let mut names = read_names(folder, key_prefix, |_, _| true)?;
        let bytes = names.iter().map(|name| name.len() + NAME_BYTES).sum();
        if names.len() < LARGE_NAMES_MIN
            || bytes > CACHED_BYTES_MAX
            || FolderStamp::of(folder.as_fd())? != stamp
        {
            let is_wanted =
                |name: &String| bounds.wants_name(&format!("{key_prefix}{name}"), name.ends_with('/'));
            return Ok(Names::Read(
                names.into_iter().filter(is_wanted).map(Reverse).collect(),
            ));
        }
        names.sort_unstable();
        let names = Arc::new(names.into_iter().map(String::into_boxed_str).collect());
        self.keep(CachedFolder {
            stamp,
            names: Arc::clone(&names),
            bytes,
        });
        let rest = wanted(&names, key_prefix, bounds);
        Ok(Names::Cached { names, rest })
    }

    fn find(&self, stamp: FolderStamp) -> Option<Arc<Vec<Box<str>>>> {
        let mut cached = self.0.lock();
        let position = cached.iter().position(|cached| cached.stamp == stamp)?;
        let found = cached.remove(position)?;
        let names = Arc::clone(&found.names);
        cached.push_front(found);
        Some(names)
    }

    fn keep(&self, new: CachedFolder) {
        let mut cached = self.0.lock();
        cached.retain(|old| (old.stamp.device, old.stamp.inode) != (new.stamp.device, new.stamp.inode));
        cached.push_front(new);
        cached.truncate(CACHED_FOLDERS_MAX);
        while cached.iter().map(|cached| cached.bytes).sum::<usize>() > CACHED_BYTES_MAX {
            cached.pop_back();
        }
    }

    #[cfg(test)]
    pub(super) fn folders(&self) -> usize {
        self.0.lock().len()
    }
}

fn has_honest_times(folder: &OwnedFd) -> bool {
    fstatfs(folder).is_ok_and(|found| FILE_SYSTEMS.contains(&(found.f_type as u64)))
}

/// Returns which of the sorted names can matter: the same choice as [`Bounds::wants_name`], found by
/// bisection.
fn wanted(names: &[Box<str>], key_prefix: &str, bounds: &Bounds<'_>) -> Range<usize> {
    let prefix = match bounds.prefix.strip_prefix(key_prefix) {
        Some(prefix) => prefix,
        None if key_prefix.starts_with(bounds.prefix) => "",
        None => return 0..0,
    };
    let begin = names.partition_point(|name| **name < *prefix);
    let end = names.partition_point(|name| **name < *prefix || name.starts_with(prefix));
    let after = match bounds.start_after {
        Some(start) if start.starts_with(key_prefix) => {
            let start = &start[key_prefix.len()..];
            let after = names.partition_point(|name| **name <= *start);
            // The folder that the listing goes on in is no greater than the name to go on after.
            let is_inside =
                |index: &usize| names[*index].ends_with('/') && start.starts_with(&*names[*index]);
            after.checked_sub(1).filter(is_inside).unwrap_or(after)
        }
        Some(start) if start > key_prefix => names.len(),
        _ => 0,
    };
    // The root has no marker: no key is empty.
    let first = usize::from(key_prefix.is_empty() && names.first().is_some_and(|name| name.is_empty()));
    begin.max(after).max(first).min(end)..end
}

/// The names that `is_wanted` (asked with the key and whether it is a folder's), in no order.
fn read_names(
    folder: &OwnedFd,
    key_prefix: &str,
    is_wanted: impl Fn(&str, bool) -> bool,
) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let mut key = key_prefix.to_owned();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let Some((name, kind)) = describe(folder, &entry)? else {
            continue;
        };
        key.truncate(key_prefix.len());
        let is_folder = kind == FileType::Directory;
        match (name == MARKER_NAME, is_folder) {
            (true, true) => continue,
            (true, false) => {}
            (false, true) => key.extend([name, "/"]),
            (false, false) => key.push_str(name),
        }
        if !is_private(&key) && is_wanted(&key, is_folder) {
            names.push(key[key_prefix.len()..].to_owned());
        }
    }
    Ok(names)
}

/// Returns whether this is our private area.
pub(super) fn is_private(folder_prefix: &str) -> bool {
    let mut segments = folder_prefix.split('/');
    PRIVATE_FOLDERS
        .iter()
        .all(|private| segments.next() == Some(*private))
}

/// Name and type of a file or folder; `None` for what cannot be an object (links, devices, names that are not
/// UTF-8).
pub(super) fn describe<'a>(folder: &OwnedFd, entry: &'a DirEntry) -> Result<Option<(&'a str, FileType)>> {
    let Ok(name) = entry.file_name().to_str() else {
        return Ok(None);
    };
    if name == "." || name == ".." {
        return Ok(None);
    }
    let kind = match entry.file_type() {
        FileType::Unknown => match stat_name(folder.as_fd(), name) {
            Ok(stat) => FileType::from_raw_mode(stat.st_mode),
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno),
        },
        kind => kind,
    };
    Ok(matches!(kind, FileType::RegularFile | FileType::Directory).then_some((name, kind)))
}

#[cfg(test)]
mod tests;
