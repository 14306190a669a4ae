//! Names of a writable mount: files that are being written and folders that only this mount has, over the lake's.
//!
//! A folder without a file exists in this mount alone. Renaming a file that is still being written gives it
//! another name and nothing else; one that the lake has is copied and then removed, through the node.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_client::PutOptions;
use forebay_core::Result;
use fuser::Errno;
use parking_lot::Mutex;
use tracing::{info, warn};

use crate::counters::Counter;
use crate::errno::errno_of;
use crate::inode::Version;
use crate::staged::Staged;
use crate::tree::{Found, Tree};

/// Largest object that a rename copies.
const RENAME_BYTES_MAX: u64 = 5_000_000_000;
/// Bytes of one piece of that copy.
const PIECE_BYTES: u64 = 16 << 20;
/// Folders that only this mount has, at most.
const FOLDERS_MAX: usize = 100_000;
/// Files that are being written, at most.
const STAGED_MAX: usize = 10_000;
/// Time after which a file that was to be opened for writing, and was not, is dropped.
const ABANDONED: Duration = Duration::from_secs(30);

/// What is being written.
pub(crate) struct Writes {
    staged: Mutex<BTreeMap<Box<str>, Arc<Staged>>>,
    folders: Mutex<BTreeSet<Box<str>>>,
    serial: AtomicU64,
    used: Arc<AtomicU64>,
    folder: PathBuf,
    pub(crate) bytes_max: u64,
    refused: Mutex<HashSet<&'static str>>,
}

impl Writes {
    pub(crate) fn new(folder: PathBuf, bytes_max: u64) -> Self {
        Self {
            staged: Mutex::default(),
            folders: Mutex::default(),
            serial: AtomicU64::new(0),
            used: Arc::default(),
            folder,
            bytes_max,
            refused: Mutex::default(),
        }
    }

    /// Counts a call that a mount does not do, and explains it once.
    pub(crate) fn refuse(&self, tree: &Tree, what: &'static str, about: &str, advice: &str) {
        tree.counters.add(Counter::Refusals);
        if self.refused.lock().insert(what) {
            warn!(what, about, advice, "refused; said once, counted always");
        }
    }

    pub(crate) fn staged(&self, key: &str) -> Option<Arc<Staged>> {
        self.staged.lock().get(key).cloned()
    }

    /// Makes a file, or takes the one that is being written at this key.
    pub(crate) fn stage(&self, key: &str, base: Option<Arc<Version>>) -> Result<Arc<Staged>, Errno> {
        let mut staged = self.staged.lock();
        if let Some(known) = staged.get(key) {
            return Ok(Arc::clone(known));
        }
        if staged.len() >= STAGED_MAX {
            warn!(files = staged.len(), "too many files are being written");
            return Err(Errno::ENFILE);
        }
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let made = Staged::new(serial, key, base, &self.folder, Arc::clone(&self.used));
        let made = made.map_err(|error| {
            warn!(key, %error, "cannot write");
            errno_of(&error)
        })?;
        let made = Arc::new(made);
        staged.insert(key.into(), Arc::clone(&made));
        Ok(made)
    }

    /// Forgets a file that is no longer written, if it is the one at its key.
    pub(crate) fn drop_staged(&self, file: &Arc<Staged>) {
        if let Some(key) = file.key() {
            let mut staged = self.staged.lock();
            if staged.get(&key).is_some_and(|known| Arc::ptr_eq(known, file)) {
                staged.remove(&key);
            }
        }
    }

    /// Forgets files that nobody came to write.
    pub(crate) fn sweep(&self) {
        self.staged
            .lock()
            .retain(|_, file| file.is_dirty() || !file.is_abandoned(ABANDONED));
    }

    /// Uploads what a lost close has left, after an unmount that found nothing open; else says what is lost.
    pub(crate) fn end(&self, tree: &Tree, nothing_is_open: bool) {
        let rest = std::mem::take(&mut *self.staged.lock());
        for (key, file) in rest {
            if !file.is_dirty() {
                continue;
            }
            if !nothing_is_open {
                warn!(key = &*key, "was still being written; the lake keeps what it had");
            } else if let Err(error) = file.upload(tree) {
                warn!(key = &*key, %error, "not uploaded");
            }
        }
    }

    /// Returns whether this mount has a folder that the lake may not have.
    pub(crate) fn has_folder(&self, prefix: &str) -> bool {
        let known = below(&self.folders.lock(), prefix);
        known || self.has_staged_below(prefix)
    }

    pub(crate) fn has_staged_below(&self, prefix: &str) -> bool {
        let staged = self.staged.lock();
        let mut from = staged.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        from.next().is_some_and(|(key, _)| key.starts_with(prefix))
    }

    /// Returns whether this mount has anything in a folder.
    pub(crate) fn has_more_below(&self, prefix: &str) -> bool {
        let folders = self.folders.lock();
        let mut from = folders.range::<str, _>((Bound::Excluded(prefix), Bound::Unbounded));
        let folder_below = from.next().is_some_and(|folder| folder.starts_with(prefix));
        drop(folders);
        folder_below || self.has_staged_below(prefix)
    }

    /// Renames a folder of which the lake has nothing.
    pub(crate) fn rename_folder(&self, from: &str, to: &str) {
        let mut folders = self.folders.lock();
        let moved: Vec<_> = folders
            .iter()
            .filter(|folder| folder.starts_with(from))
            .cloned()
            .collect();
        for folder in moved {
            folders.remove(&folder);
            folders.insert(format!("{to}{}", &folder[from.len()..]).into());
        }
        folders.insert(to.into());
        drop(folders);
        let mut staged = self.staged.lock();
        let moved: Vec<_> = staged
            .keys()
            .filter(|key| key.starts_with(from))
            .cloned()
            .collect();
        for key in moved {
            if let Some(file) = staged.remove(&key) {
                let key: Box<str> = format!("{to}{}", &key[from.len()..]).into();
                file.set_key(Some(&key));
                staged.insert(key, file);
            }
        }
    }

    /// Keeps a folder, whatever the lake has.
    pub(crate) fn keep_folder(&self, prefix: &str) -> Result<(), Errno> {
        if prefix.is_empty() {
            return Ok(());
        }
        let mut folders = self.folders.lock();
        if folders.len() >= FOLDERS_MAX {
            return Err(Errno::ENOSPC);
        }
        folders.insert(prefix.into());
        Ok(())
    }

    pub(crate) fn forget_folder(&self, prefix: &str) {
        self.folders.lock().remove(prefix);
    }

    /// Adds what only this mount has to the names of a folder. The file that is being written hides the lake's.
    pub(crate) fn add_names(&self, prefix: &str, names: &mut BTreeMap<Box<str>, Found>) {
        let name = |key: &str| {
            let rest = key.strip_prefix(prefix)?;
            let (name, below) = rest
                .split_once('/')
                .map_or((rest, false), |(name, _)| (name, true));
            (!name.is_empty()).then(|| (Box::<str>::from(name), below))
        };
        for folder in self.folders.lock().iter() {
            if let Some((name, _)) = name(folder) {
                names.entry(name).or_insert(Found::Folder);
            }
        }
        for (key, file) in self.staged.lock().iter() {
            match name(key) {
                Some((name, true)) => {
                    names.entry(name).or_insert(Found::Folder);
                }
                Some((name, false)) => {
                    names.insert(name, Found::Staged(Arc::clone(file)));
                }
                None => {}
            }
        }
    }

    /// Removes a file.
    pub(crate) fn unlink(&self, tree: &Tree, key: &str) -> Result<(), Errno> {
        let staged = self.staged.lock().remove(key);
        let in_lake = match &staged {
            Some(file) => {
                file.set_key(None);
                file.lake_has()
            }
            None => match tree.find(key).map_err(|error| failed("unlink", key, &error))? {
                Some(Found::Folder) => return Err(Errno::EISDIR),
                Some(_) => true,
                None => return Err(Errno::ENOENT),
            },
        };
        if in_lake {
            let deleted = tree.name(key).and_then(|name| tree.client.delete(&name));
            deleted.map_err(|error| failed("unlink", key, &error))?;
        }
        self.keep_folder(parent_of(key))
    }

    /// Renames a file over whatever file is at the target.
    pub(crate) fn rename(&self, tree: &Tree, from: &str, to: &str) -> Result<(), Errno> {
        let staged = self.staged(from);
        match &staged {
            // The lake has nothing of it: another name is all.
            Some(file) if file.is_dirty() && !file.lake_has() => {}
            Some(file) if file.is_dirty() => {
                file.set_key(Some(to));
                file.upload(tree)
                    .map_err(|error| failed("rename", from, &error))?;
                self.delete(tree, from)?;
            }
            _ => self.copy_object(tree, from, to)?,
        }
        let mut files = self.staged.lock();
        if let Some(replaced) = files.remove(to) {
            replaced.set_key(None);
        }
        if let Some(file) = staged {
            files.remove(from);
            file.set_key(Some(to));
            files.insert(to.into(), file);
        }
        drop(files);
        self.keep_folder(parent_of(from))
    }

    fn copy_object(&self, tree: &Tree, from: &str, to: &str) -> Result<(), Errno> {
        let version = match tree.find(from).map_err(|error| failed("rename", from, &error))? {
            Some(Found::Object(version)) => version,
            Some(_) => return Err(Errno::EXDEV),
            None => return Err(Errno::ENOENT),
        };
        if version.bytes > RENAME_BYTES_MAX {
            self.refuse(
                tree,
                "rename of a large file",
                from,
                "tools such as mv copy it instead",
            );
            return Err(Errno::EXDEV);
        }
        copy(tree, &version, to).map_err(|error| failed("rename", from, &error))?;
        self.delete(tree, from)
    }

    fn delete(&self, tree: &Tree, key: &str) -> Result<(), Errno> {
        let deleted = tree.name(key).and_then(|name| tree.client.delete(&name));
        deleted.map_err(|error| failed("rename", key, &error))
    }
}

/// The prefix of the folder that a key lies in.
pub(crate) fn parent_of(key: &str) -> &str {
    key.rfind('/').map_or("", |slash| &key[..=slash])
}

fn below(folders: &BTreeSet<Box<str>>, prefix: &str) -> bool {
    let mut from = folders.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
    from.next().is_some_and(|folder| folder.starts_with(prefix))
}

fn copy(tree: &Tree, version: &Version, to: &str) -> Result<()> {
    let mut writer = tree
        .client
        .writer(&tree.name(to)?, PutOptions::default(), Some(version.bytes));
    let mut offset = 0;
    while offset < version.bytes {
        let length = (version.bytes - offset).min(PIECE_BYTES);
        writer.write(&tree.read(version, offset, length)?)?;
        offset += length;
    }
    writer.finish()?;
    info!(from = &*version.key, to, "renamed by copy");
    Ok(())
}

fn failed(what: &str, key: &str, error: &forebay_core::Error) -> Errno {
    warn!(key, %error, "{what} failed");
    match errno_of(error) {
        errno if errno == Errno::ESTALE => Errno::ENOENT,
        errno => errno,
    }
}
