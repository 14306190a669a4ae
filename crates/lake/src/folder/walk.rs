//! A walk over the folder in byte order of the keys, one open folder per level.
//!
//! The names of a folder come in no order, so all that can matter are read into a heap and taken out smallest
//! first; a page of a large folder then costs one pass over its names and no full sort. A folder sorts as its name
//! with `/` behind it, because its keys do: `a-b` < `a/b` < `a0`. What lies outside of the wanted keys is dropped
//! while reading, and whole folders are skipped.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use forebay_core::{Error, Result};
use rustix::fs::{Dir, DirEntry, FileType};
use rustix::io::Errno;

use super::key_path::{MARKER_NAME, PRIVATE_FOLDERS};
use super::tree::{Tree, explain, open_folder, stat_name};

/// Which keys are wanted: those that start with `prefix` and come after `start_after`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds<'a> {
    pub(super) prefix: &'a str,
    pub(super) start_after: Option<&'a str>,
}

impl Bounds<'_> {
    fn wants(&self, key: &str) -> bool {
        key.starts_with(self.prefix) && self.start_after.is_none_or(|start| key > start)
    }

    /// Whether a key below the folder can be wanted; `folder` ends with `/`.
    fn may_hold(&self, folder: &str) -> bool {
        let has_prefix = folder.starts_with(self.prefix) || self.prefix.starts_with(folder);
        has_prefix
            && self
                .start_after
                .is_none_or(|start| folder > start || start.starts_with(folder))
    }
}

/// What the walk found next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A plain file: its key as text, and its name in the folder that [`Walk::folder`] gives.
    File { key: String, name: String },
    /// A folder, as the prefix of its keys. Call [`Walk::descend`] to see them.
    Folder { prefix: String, name: String },
}

/// See the top of this file.
pub(super) struct Walk<'a> {
    bounds: Bounds<'a>,
    levels: Vec<Level>,
}

struct Level {
    folder: OwnedFd,
    key_prefix: String,
    names: BinaryHeap<Reverse<String>>,
}

impl<'a> Walk<'a> {
    /// Starts in the deepest folder that the prefix names.
    pub(super) fn start(tree: &Tree, bounds: Bounds<'a>) -> Result<Self> {
        let key_prefix = bounds.prefix.rsplit_once('/').map_or("", |(folders, _)| folders);
        let mut walk = Self {
            bounds,
            levels: Vec::new(),
        };
        if key_prefix.is_empty() && bounds.prefix.contains('/') {
            return Ok(walk);
        }
        let folders: Vec<&str> = key_prefix.split('/').filter(|_| !key_prefix.is_empty()).collect();
        let is_hidden = folders.starts_with(&PRIVATE_FOLDERS);
        if is_hidden
            || folders
                .iter()
                .any(|folder| matches!(*folder, "" | "." | ".." | MARKER_NAME))
        {
            return Ok(walk);
        }
        let key_prefix = if folders.is_empty() {
            String::new()
        } else {
            format!("{key_prefix}/")
        };
        match tree.open_parent(&folders) {
            Ok(folder) => walk.levels.push(read_level(folder, key_prefix, &bounds)?),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => {}
            Err(errno) => return Err(unreadable(errno, &key_prefix)),
        }
        Ok(walk)
    }

    /// The next file or folder in byte order.
    pub(super) fn next(&mut self) -> Option<Step> {
        loop {
            let level = self.levels.last_mut()?;
            let Some(Reverse(name)) = level.names.pop() else {
                self.levels.pop();
                continue;
            };
            let key = format!("{}{name}", level.key_prefix);
            return Some(match name.strip_suffix('/') {
                Some(name) => Step::Folder {
                    prefix: key,
                    name: name.to_owned(),
                },
                None if name.is_empty() => Step::File {
                    key,
                    name: MARKER_NAME.to_owned(),
                },
                None => Step::File { key, name },
            });
        }
    }

    /// The folder that the last step was found in. Only valid before the next call to [`Walk::next`].
    pub(super) fn folder(&self) -> Option<BorrowedFd<'_>> {
        self.levels.last().map(|level| level.folder.as_fd())
    }

    /// Goes into the folder of the last step. One that is gone by now has no keys.
    pub(super) fn descend(&mut self, name: &str, prefix: String) -> Result<()> {
        let Some(parent) = self.folder() else {
            return Ok(());
        };
        match open_folder(parent, name) {
            Ok(folder) => {
                let level = read_level(folder, prefix, &self.bounds)?;
                self.levels.push(level);
                Ok(())
            }
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            Err(errno) => Err(unreadable(errno, &prefix)),
        }
    }
}

fn unreadable(errno: Errno, prefix: &str) -> Error {
    explain(
        "cannot read a folder, so the listing would not be complete",
        errno,
    )
    .with("prefix", prefix)
}

/// Reads the names that can matter. Folders get a `/` behind, the marker becomes the empty name.
fn read_level(folder: OwnedFd, key_prefix: String, bounds: &Bounds<'_>) -> Result<Level> {
    let wrong = |errno| unreadable(errno, &key_prefix);
    let mut names = Vec::new();
    let mut key = key_prefix.clone();
    for entry in Dir::read_from(&folder).map_err(wrong)? {
        let entry = entry.map_err(wrong)?;
        let Some((name, kind)) = describe(&folder, &entry).map_err(wrong)? else {
            continue;
        };
        key.truncate(key_prefix.len());
        let is_wanted = match kind {
            FileType::Directory if name == MARKER_NAME => false,
            FileType::Directory => {
                key.extend([name, "/"]);
                bounds.may_hold(&key) && !is_private(&key)
            }
            _ => {
                key.push_str(if name == MARKER_NAME { "" } else { name });
                bounds.wants(&key) && !key.is_empty()
            }
        };
        if is_wanted {
            names.push(Reverse(key[key_prefix.len()..].to_owned()));
        }
    }
    Ok(Level {
        folder,
        key_prefix,
        names: BinaryHeap::from(names),
    })
}

/// Whether this is our private area.
fn is_private(folder_prefix: &str) -> bool {
    let mut segments = folder_prefix.split('/');
    PRIVATE_FOLDERS
        .iter()
        .all(|private| segments.next() == Some(*private))
}

/// Name and type of a file or folder; `None` for what cannot be an object (links, devices, names that are not UTF-8).
fn describe<'a>(folder: &OwnedFd, entry: &'a DirEntry) -> Result<Option<(&'a str, FileType)>, Errno> {
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

/// Whether any object lies below a folder; stops at the first.
pub(super) fn has_object(parent: BorrowedFd<'_>, name: &str, prefix: &str) -> Result<bool> {
    let wrong = |errno| unreadable(errno, prefix);
    let folder = match open_folder(parent, name) {
        Ok(folder) => folder,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(false),
        Err(errno) => return Err(wrong(errno)),
    };
    let mut folders = Vec::new();
    for entry in Dir::read_from(&folder).map_err(wrong)? {
        let entry = entry.map_err(wrong)?;
        match describe(&folder, &entry).map_err(wrong)? {
            Some((name, FileType::Directory)) => folders.push(name.to_owned()),
            Some(_) => return Ok(true),
            None => {}
        }
    }
    for name in folders {
        let prefix = format!("{prefix}{name}/");
        if name != MARKER_NAME && !is_private(&prefix) && has_object(folder.as_fd(), &name, &prefix)? {
            return Ok(true);
        }
    }
    Ok(false)
}
