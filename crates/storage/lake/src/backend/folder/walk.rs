//! A walk over the folder in byte order of the keys, one open folder per level.
//!
//! `names` gives the names of a folder in order. A folder sorts as its name with `/` behind it, because its
//! keys do: `a-b` < `a/b` < `a0`. What lies outside of the wanted keys is left out, and whole folders are
//! skipped.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use forebay_core::{Error, Result};
use rustix::fs::{Dir, FileType};
use rustix::io::Errno;

use super::key_path::{MARKER_NAME, PRIVATE_FOLDERS};
use super::names::{Names, describe, is_private};
use super::tree::{Tree, explain, open_folder};

/// Wanted keys: those that start with `prefix` and come after `start_after`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds<'a> {
    pub(super) prefix: &'a str,
    pub(super) start_after: Option<&'a str>,
}

impl Bounds<'_> {
    /// Returns whether a name can matter; the key of a folder ends with `/`.
    pub(super) fn wants_name(&self, key: &str, is_folder: bool) -> bool {
        if is_folder {
            self.may_hold(key)
        } else {
            self.wants(key) && !key.is_empty()
        }
    }

    fn wants(&self, key: &str) -> bool {
        key.starts_with(self.prefix) && self.start_after.is_none_or(|start| key > start)
    }

    /// Returns whether a key below the folder can be wanted; `folder` ends with `/`.
    fn may_hold(&self, folder: &str) -> bool {
        let has_prefix = folder.starts_with(self.prefix) || self.prefix.starts_with(folder);
        has_prefix
            && self
                .start_after
                .is_none_or(|start| folder > start || start.starts_with(folder))
    }
}

/// The next file or folder of a walk.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A plain file: its key as text, and its name in the folder that [`Walk::folder`] gives.
    File { key: String, name: String },
    /// A folder, as the prefix of its keys. Call [`Walk::descend`] to see them.
    Folder { prefix: String, name: String },
}

/// See the top of this file.
pub(super) struct Walk<'a> {
    tree: &'a Tree,
    bounds: Bounds<'a>,
    levels: Vec<Level>,
}

struct Level {
    folder: OwnedFd,
    key_prefix: String,
    names: Names,
}

impl<'a> Walk<'a> {
    /// Starts in the deepest folder that the prefix names.
    pub(super) fn start(tree: &'a Tree, bounds: Bounds<'a>) -> Result<Self> {
        let key_prefix = bounds.prefix.rsplit_once('/').map_or("", |(folders, _)| folders);
        let mut walk = Self {
            tree,
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
            Ok(folder) => walk.enter(folder, key_prefix)?,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => {}
            Err(errno) => return Err(unreadable(errno, &key_prefix)),
        }
        Ok(walk)
    }

    fn enter(&mut self, folder: OwnedFd, key_prefix: String) -> Result<()> {
        let names = self.tree.names().read(&folder, &key_prefix, &self.bounds);
        let names = names.map_err(|errno| unreadable(errno, &key_prefix))?;
        self.levels.push(Level {
            folder,
            key_prefix,
            names,
        });
        Ok(())
    }

    /// The next file or folder in byte order.
    pub(super) fn next(&mut self) -> Option<Step> {
        loop {
            let level = self.levels.last_mut()?;
            let Some(name) = level.names.pop() else {
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
            Ok(folder) => self.enter(folder, prefix),
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

/// Returns whether any object lies below a folder; stops at the first.
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
