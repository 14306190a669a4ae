//! A file that nobody can see yet: written, hashed and synced before a rename makes it an object.
//!
//! It lies under `.forebay/folder/tmp` on the same file system as the object will. Dropping it removes it;
//! one that a killed process left behind is removed by age when the lake is opened.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forebay_core::{Error, Kind, Result};
use md5::{Digest, Md5};
use rustix::fs::{AtFlags, Dir, FileType, fstat, unlinkat};
use rustix::io::Errno;

use super::direct::Direct;
use super::sidecar::{self, Stamp};
use super::tree::{Tree, create_file, explain, open_folder};

const AREA: &str = "tmp";

/// Age beyond which a file belongs to no running writer.
const LEFTOVER_AGE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Depth to which leftovers of aborted uploads are removed: a folder with files.
const LEFTOVER_DEPTH_MAX: usize = 2;

/// Files that are expected to get as much are written past the page cache, if their content is known before.
const DIRECT_BYTES_MIN: u64 = 8 << 20;

/// A temporary file and, unless nobody wants it, the MD5 of what was written to it.
#[derive(Debug)]
pub(super) struct Temp {
    tree: Arc<Tree>,
    folder: OwnedFd,
    name: String,
    file: File,
    md5: Option<Md5>,
    direct: Option<Direct>,
    is_published: bool,
}

impl Temp {
    /// Makes an empty one.
    pub(super) fn create(tree: &Arc<Tree>) -> Result<Self> {
        let mut temp = Self::create_empty(tree)?;
        temp.md5 = Some(Md5::new());
        Ok(temp)
    }

    /// Makes an empty one without an MD5: the caller knows what it writes, and nobody reads it soon. So many
    /// bytes are expected.
    pub(super) fn create_unhashed(tree: &Arc<Tree>, bytes_hint: Option<u64>) -> Result<Self> {
        let mut temp = Self::create_empty(tree)?;
        let large = bytes_hint.filter(|bytes| *bytes >= DIRECT_BYTES_MIN);
        temp.direct = large.map(|bytes| Direct::open(&temp.file, temp.folder.as_fd(), &temp.name, bytes));
        Ok(temp)
    }

    fn create_empty(tree: &Arc<Tree>) -> Result<Self> {
        let wrong = |errno: Errno| explain("cannot make a temporary file", errno);
        let folder = tree.private(AREA).map_err(wrong)?;
        let name = format!("{:032x}", fastrand::u128(..));
        let file = create_file(folder.as_fd(), &name).map_err(wrong)?;
        Ok(Self {
            tree: Arc::clone(tree),
            folder,
            name,
            file,
            md5: None,
            direct: None,
            is_published: false,
        })
    }

    /// Appends and hashes.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if let Some(md5) = &mut self.md5 {
            md5.update(bytes);
        }
        match &mut self.direct {
            Some(direct) => direct.write(&self.file, bytes).map_err(cannot_write),
            None => self.append(bytes),
        }
    }

    /// Appends bytes that do not belong to the MD5.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<()> {
        debug_assert!(
            self.direct.is_none(),
            "direct writes have a position of their own"
        );
        self.file.write_all(bytes).map_err(cannot_write)
    }

    /// The MD5 of what went through [`Temp::write`]; of nothing, if nobody wanted it.
    pub(super) fn md5(&self) -> [u8; 16] {
        self.md5.clone().unwrap_or_default().finalize().into()
    }

    /// Returns whether there is an MD5.
    pub(super) fn is_hashed(&self) -> bool {
        self.md5.is_some()
    }

    /// The file, to copy into.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Returns whether what is written goes to the disk at once.
    pub(super) fn is_direct(&self) -> bool {
        self.direct.as_ref().is_some_and(Direct::is_open)
    }

    /// A job that makes durable what is written until it runs; appending may go on meanwhile.
    pub(super) fn sync_so_far(&self) -> Result<impl FnOnce() -> Result<()> + Send + use<>> {
        let wrong = |error| Error::io("cannot sync an object's bytes", error);
        let file = self.file.try_clone().map_err(wrong)?;
        Ok(move || file.sync_data().map_err(wrong))
    }

    /// Makes the bytes durable and says what the file is like from now on.
    pub(super) fn seal(&mut self) -> Result<Stamp> {
        if let Some(mut direct) = self.direct.take() {
            direct.finish(&self.file).map_err(cannot_write)?;
        }
        self.file
            .sync_all()
            .map_err(|error| Error::io("cannot sync an object's bytes", error))?;
        let stat = fstat(&self.file).map_err(|errno| explain("cannot look at a temporary file", errno))?;
        Ok(Stamp::of(&stat))
    }

    /// Returns where the file lies, for the rename.
    pub(super) fn location(&self) -> (BorrowedFd<'_>, &str) {
        (self.folder.as_fd(), &self.name)
    }

    /// The file has its final name now and must stay.
    pub(super) fn published(&mut self) {
        self.is_published = true;
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        if self.is_published {
            return;
        }
        // The sidecar first: while the file is there, its inode cannot be another object's.
        if let Ok(stat) = fstat(&self.file) {
            sidecar::remove(&self.tree, stat.st_ino);
        }
        let _ = unlinkat(&self.folder, &self.name, AtFlags::empty());
    }
}

fn cannot_write(error: std::io::Error) -> Error {
    Error::io("cannot write an object's bytes", error)
}

/// Moves a private folder to where the leftovers are, so that it is gone at once, and removes it.
pub(super) fn discard_folder(tree: &Tree, parent: BorrowedFd<'_>, name: &str) -> Result<()> {
    let wrong = |errno: Errno| explain("cannot remove an upload", errno);
    let tmp = tree.private(AREA).map_err(wrong)?;
    let target = format!("{:032x}", fastrand::u128(..));
    match rustix::fs::renameat(parent, name, &tmp, &target) {
        Ok(()) => {}
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(wrong(errno)),
    }
    remove_tree(tree, tmp.as_fd(), &target, LEFTOVER_DEPTH_MAX);
    Ok(())
}

/// Removes what killed writers left behind. Never fails: a leftover costs only space.
pub(super) fn remove_leftovers(tree: &Tree, now: SystemTime) {
    let Ok(Some(tmp)) = tree.private_if_made(AREA) else {
        return;
    };
    let Ok(entries) = Dir::read_from(&tmp) else { return };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().to_str() else {
            continue;
        };
        if name == "." || name == ".." {
            continue;
        }
        let Ok(stat) = super::tree::stat_name(tmp.as_fd(), name) else {
            continue;
        };
        let age = now
            .duration_since(Stamp::of(&stat).modified())
            .unwrap_or_default();
        if age > LEFTOVER_AGE_MAX {
            tracing::info!(name, "removing what a killed writer left behind");
            remove_tree(tree, tmp.as_fd(), name, LEFTOVER_DEPTH_MAX);
        }
    }
}

fn remove_tree(tree: &Tree, parent: BorrowedFd<'_>, name: &str, depth_max: usize) {
    let Ok(stat) = super::tree::stat_name(parent, name) else {
        return;
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        sidecar::remove(tree, stat.st_ino);
        let _ = unlinkat(parent, name, AtFlags::empty());
        return;
    }
    let Some(depth_max) = depth_max.checked_sub(1) else {
        return;
    };
    let Ok(folder) = open_folder(parent, name) else {
        return;
    };
    let Ok(entries) = Dir::read_from(&folder) else {
        return;
    };
    for entry in entries.flatten() {
        match entry.file_name().to_str() {
            Ok("." | "..") | Err(_) => {}
            Ok(name) => remove_tree(tree, folder.as_fd(), name, depth_max),
        }
    }
    let _ = unlinkat(parent, name, AtFlags::REMOVEDIR);
}

/// The error for a write that goes on after it has failed.
pub(super) fn broken() -> Error {
    Error::new(Kind::Cancelled, "the write has failed before; start it again")
}
