//! The walks behind requests that read: names, folders, opens, bytes.

use std::ffi::OsStr;
use std::sync::Arc;

use forebay_client::{ItemRange, View};
use forebay_core::Error;
use fuser::{Errno, FileHandle, INodeNo, ReplyOpen};
use tracing::{debug, warn};

use crate::counters::Counter;
use crate::errno::errno_of;
use crate::filesystem::{MountedBucket, READ_BYTES_MAX};
use crate::handles::Names;
use crate::inode::{Inode, Version};
use crate::mode::Mode;
use crate::open_file::{Bytes, OpenFile, SNAPSHOT_BYTES_MAX, read_unopened};
use crate::tree::{Found, is_name};

impl MountedBucket {
    /// Logs what failed and makes a number of it.
    pub(crate) fn failed(what: &str, about: &str, error: &Error) -> Errno {
        let errno = errno_of(error);
        if errno == Errno::ESTALE {
            debug!(about, %error, "{what}: another version by now");
        } else {
            warn!(about, %error, "{what} failed");
        }
        errno
    }

    pub(crate) fn folder(&self, number: INodeNo) -> Result<Arc<str>, Errno> {
        match self.0.inodes.get(number.0) {
            Some(Inode::Folder(prefix)) => Ok(prefix),
            Some(_) => Err(Errno::ENOTDIR),
            None => Err(Errno::ESTALE),
        }
    }

    pub(crate) fn version(&self, number: INodeNo) -> Result<Arc<Version>, Errno> {
        match self.0.inodes.get(number.0) {
            Some(Inode::Version(version)) => Ok(version),
            Some(Inode::Folder(_)) => Err(Errno::EISDIR),
            Some(Inode::Staged(_)) => Err(Errno::EBADF),
            None => Err(Errno::ESTALE),
        }
    }

    pub(crate) fn find(&self, parent: INodeNo, name: &OsStr) -> Result<(Inode, Option<View>), Errno> {
        self.0.counters.add(Counter::Lookups);
        let folder = self.folder(parent)?;
        let Some(name) = name.to_str() else {
            return Err(Errno::ENOENT);
        };
        if !is_name(name) {
            return Err(if name.len() > crate::tree::NAME_BYTES_MAX {
                Errno::ENAMETOOLONG
            } else {
                Errno::ENOENT
            });
        }
        if self.0.inodes.is_full() {
            warn!("the kernel knows as many names as the mount allows; raise --inodes");
            return Err(Errno::ENFILE);
        }
        let key = format!("{folder}{name}");
        let writes = self.0.writes.as_ref();
        if let Some(staged) = writes.and_then(|writes| writes.staged(&key)) {
            return Ok((Inode::Staged(staged), None));
        }
        match self.0.tree.find(&key) {
            Ok(Some(Found::Object(version))) => self.with_bytes(version),
            Ok(Some(found)) => Ok((inode_of(&key, &found), None)),
            Ok(None) if writes.is_some_and(|writes| writes.has_folder(&format!("{key}/"))) => {
                Ok((inode_of(&key, &Found::Folder), None))
            }
            Ok(None) => Err(Errno::ENOENT),
            Err(error) => Err(Self::failed("lookup", &key, &error)),
        }
    }

    /// A version as it was found, or as it is now together with its bytes if it changes faster than it is opened.
    pub(crate) fn with_bytes(&self, version: Arc<Version>) -> Result<(Inode, Option<View>), Errno> {
        let is_small = (1..=SNAPSHOT_BYTES_MAX).contains(&version.bytes);
        if !is_small || !self.0.recent.is_fast(&version.key) {
            return Ok((Inode::Version(version), None));
        }
        let name = self.0.tree.name(&version.key);
        let read = name.and_then(|name| self.0.tree.client.get(&name, ItemRange::Whole, None));
        let view = read.map_err(|error| Self::failed("lookup", &version.key, &error))?;
        let now = Version {
            key: version.key.clone(),
            etag: view.version().into(),
            bytes: view.object_bytes(),
            modified: version.modified,
        };
        Ok((Inode::Version(Arc::new(now)), Some(view)))
    }

    /// The names of an open folder; taken anew when somebody begins.
    pub(crate) fn names(&self, number: INodeNo, handle: FileHandle, offset: u64) -> Result<Names, Errno> {
        let prefix = self.folder(number)?;
        let open = self.0.handles.folder(handle.0).ok_or(Errno::EBADF)?;
        let mut names = open.names.lock();
        if let Some(names) = names.as_ref().filter(|_| offset > 0) {
            return Ok(Arc::clone(names));
        }
        self.0.counters.add(Counter::Listings);
        let listed = self.0.tree.list(&prefix);
        let listed = listed.map_err(|error| match Self::failed("listing", &prefix, &error) {
            // A listing has no version that could be gone: the bucket is.
            errno if errno == Errno::ESTALE => Errno::ENOENT,
            errno => errno,
        })?;
        let mut listed = listed;
        if let Some(writes) = &self.0.writes {
            writes.add_names(&prefix, &mut listed);
        }
        let listed = Arc::new(listed.into_iter().collect::<Vec<_>>());
        *names = Some(Arc::clone(&listed));
        Ok(listed)
    }

    /// Makes an open file and says how the kernel reads it.
    pub(crate) fn open_file(
        &self,
        number: u64,
        version: &Arc<Version>,
        reply: &ReplyOpen,
    ) -> Result<OpenFile, Error> {
        let shared = &*self.0;
        let copy = match shared.rule.open(number, version, &shared.copies) {
            Mode::Cached => None,
            Mode::Passthrough(copy) => Some(copy),
            Mode::CopyFirst => match shared.copies.fill(number, version, &shared.tree) {
                Ok(_) => match shared.rule.open(number, version, &shared.copies) {
                    Mode::Passthrough(copy) => Some(copy),
                    Mode::Cached => None,
                    Mode::CopyFirst => {
                        shared.rule.open_cached(number);
                        None
                    }
                },
                Err(error) if errno_of(&error) == Errno::ESTALE => return Err(error),
                Err(error) => {
                    debug!(key = &*version.key, %error, "no whole copy; read through the cache");
                    shared.rule.open_cached(number);
                    None
                }
            },
        };
        let Some(copy) = copy else {
            let opened = OpenFile::open(number, Arc::clone(version), shared);
            return opened.inspect_err(|_| {
                shared.rule.close(number, version, &shared.copies);
            });
        };
        let mut backing = copy.backing.lock();
        if backing.is_none() {
            match reply.open_backing(&*copy) {
                Ok(id) => *backing = Some(Arc::new(id)),
                Err(why) => {
                    drop(backing);
                    shared.rule.close(number, version, &shared.copies);
                    shared.rule.set_passthrough(false);
                    shared.rule.open_cached(number);
                    warn!(%why, "the kernel refuses passthrough; files are read through its cache");
                    return OpenFile::open(number, Arc::clone(version), shared);
                }
            }
        }
        drop(backing);
        Ok(OpenFile::passthrough(number, Arc::clone(version), copy))
    }

    pub(crate) fn read_bytes(
        &self,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
    ) -> Result<Option<Bytes>, Errno> {
        let shared = &*self.0;
        let size = size.min(READ_BYTES_MAX);
        let (version, read) = match shared.handles.file(handle.0) {
            Some(file) => (Arc::clone(&file.version), file.read(offset, size, &shared.tree)),
            None => {
                let version = self.version(number)?;
                let read = read_unopened(&version, offset, size, &shared.tree);
                (version, read)
            }
        };
        let bytes = read.map_err(|error| Self::failed("read", &version.key, &error))?;
        let count = bytes.as_ref().map_or(0, |bytes| bytes.as_ref().len() as u64);
        shared.rule.count_read(number.0, count);
        shared.counters.add(Counter::Reads);
        shared.counters.add_many(Counter::ReadBytes, count);
        Ok(bytes)
    }
}

/// The inode of what was found at a key.
pub(crate) fn inode_of(key: &str, found: &Found) -> Inode {
    match found {
        Found::Folder => Inode::Folder(format!("{key}/").into()),
        Found::Object(version) => Inode::Version(Arc::clone(version)),
        Found::Staged(staged) => Inode::Staged(Arc::clone(staged)),
    }
}
