//! Requests that change something: create, write, close, rename, remove. What a mount does not do is refused with
//! the number that programs know for it, one explained log line and a count.

use std::ffi::OsStr;
use std::sync::Arc;

use fuser::{Errno, INodeNo, OpenAccMode, OpenFlags, RenameFlags, Request};
use tracing::warn;

use crate::errno::errno_of;
use crate::filesystem::MountedBucket;
use crate::handles::{Handle, StagedHandle};
use crate::inode::{Inode, Version};
use crate::options::Fsync;
use crate::staged::{Staged, Written};
use crate::tree::{Found, NAME_BYTES_MAX, is_name};
use crate::writes::{Writes, parent_of};

const RANDOM_ADVICE: &str = "objects are written from start to end; write to a local file and copy it";

impl MountedBucket {
    pub(crate) fn writes(&self) -> Result<&Writes, Errno> {
        self.0.writes.as_ref().ok_or(Errno::EROFS)
    }

    /// The key of a name that is to be made, changed or removed.
    pub(crate) fn key(&self, parent: INodeNo, name: &OsStr) -> Result<String, Errno> {
        let folder = self.folder(parent)?;
        let name = name.to_str().ok_or(Errno::EILSEQ)?;
        if name.len() > NAME_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let key = format!("{folder}{name}");
        if !is_name(name) || self.0.tree.name(&key).is_err() {
            return Err(Errno::EINVAL);
        }
        Ok(key)
    }

    /// Counts a refusal and returns its number.
    pub(crate) fn refuse(&self, what: &'static str, about: &str, advice: &str, errno: Errno) -> Errno {
        match self.writes() {
            Ok(writes) => {
                writes.refuse(&self.0.tree, what, about, advice);
                errno
            }
            Err(read_only) => read_only,
        }
    }

    /// An existing version is opened for writing: it becomes a file of its own, and the kernel is told to look at
    /// the name anew. So descriptors of the version stay what they are.
    pub(crate) fn stage_version(&self, version: &Arc<Version>) -> Errno {
        let staged = self
            .writes()
            .and_then(|writes| writes.stage(&version.key, Some(Arc::clone(version))));
        match staged {
            Ok(_) => Errno::ESTALE,
            Err(errno) => errno,
        }
    }

    /// Makes a file and opens it; returns its inode and the handle.
    pub(crate) fn create_file(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        flags: i32,
    ) -> Result<(Inode, u64), Errno> {
        let writes = self.writes()?;
        let key = self.key(parent, name)?;
        let known = match writes.staged(&key) {
            Some(staged) => Some(Found::Staged(staged)),
            None => self.found(&key)?,
        };
        let exclusive = flags & libc::O_EXCL != 0;
        let staged = match known {
            Some(_) if exclusive => return Err(Errno::EEXIST),
            Some(Found::Folder) => return Err(Errno::EISDIR),
            Some(Found::Staged(staged)) => staged,
            Some(Found::Object(version)) => writes.stage(&key, Some(version))?,
            None => writes.stage(&key, None)?,
        };
        let handle = self.open_staged(request, &staged, OpenFlags(flags))?;
        Ok((Inode::Staged(staged), handle))
    }

    pub(crate) fn found(&self, key: &str) -> Result<Option<Found>, Errno> {
        let found = self.0.tree.find(key);
        found.map_err(|error| Self::failed("lookup", key, &error))
    }

    /// Opens a file that is being written, to read or to write it.
    pub(crate) fn open_staged(
        &self,
        request: &Request,
        staged: &Arc<Staged>,
        flags: OpenFlags,
    ) -> Result<u64, Errno> {
        let is_writer = flags.acc_mode() != OpenAccMode::O_RDONLY;
        let handle = Handle::Staged(Arc::new(StagedHandle {
            staged: Arc::clone(staged),
            is_writer,
            process: process_of(request.pid()),
        }));
        let number = self.0.handles.insert(handle).ok_or(Errno::ENFILE)?;
        if is_writer {
            staged.add_writer();
        }
        Ok(number)
    }

    pub(crate) fn write_bytes(
        &self,
        handle: u64,
        offset: u64,
        data: &[u8],
        flags: OpenFlags,
    ) -> Result<u32, Errno> {
        let writes = self.writes()?;
        let open = self.0.handles.staged(handle).ok_or(Errno::EBADF)?;
        let offset = (flags.0 & libc::O_APPEND == 0).then_some(offset);
        let about = open.staged.key().unwrap_or_default();
        match open.staged.write(offset, data, writes.bytes_max, &self.0.tree) {
            Ok(Written::Done) => Ok(u32::try_from(data.len()).unwrap_or(u32::MAX)),
            Ok(Written::OutOfOrder) => {
                Err(self.refuse("write out of order", &about, RANDOM_ADVICE, Errno::EOPNOTSUPP))
            }
            Ok(Written::GivenUp) => Err(Errno::EIO),
            Ok(Written::NoRoom) => Err(Errno::ENOSPC),
            Err(error) => Err(Self::failed("write", &about, &error)),
        }
    }

    /// Sets a size, or other attributes, which are taken and ignored while a file is being written.
    pub(crate) fn set_attributes(
        &self,
        number: INodeNo,
        size: Option<u64>,
        mode: Option<u32>,
        is_time: bool,
    ) -> Result<Inode, Errno> {
        self.writes()?;
        let inode = self.0.inodes.get(number.0).ok_or(Errno::ESTALE)?;
        match (&inode, size) {
            (Inode::Staged(staged), Some(size)) => {
                let set = staged.truncate(size);
                let about = staged.key().unwrap_or_default();
                if !set.map_err(|error| Self::failed("truncate", &about, &error))? {
                    return Err(self.refuse(
                        "truncation in the middle",
                        &about,
                        RANDOM_ADVICE,
                        Errno::EOPNOTSUPP,
                    ));
                }
            }
            (Inode::Staged(_), None) => {}
            (Inode::Version(version), Some(size)) if size != version.bytes => {
                return Err(self.refuse(
                    "truncation in the middle",
                    &version.key,
                    RANDOM_ADVICE,
                    Errno::EOPNOTSUPP,
                ));
            }
            _ => {
                let shown = u32::from(self.0.attributes(number.0, &inode).perm);
                if is_time || mode.is_some_and(|mode| mode & 0o7777 != shown) {
                    let advice = "a lake keeps neither modes nor owners, and times of its own";
                    return Err(self.refuse("chmod, chown or utimes", "", advice, Errno::EPERM));
                }
            }
        }
        Ok(inode)
    }

    /// A close: uploads what was written, by the process that opened it. A child that only inherited the descriptor
    /// uploads nothing, for the file may be half written; the last close does.
    pub(crate) fn close_staged(&self, request: &Request, handle: u64) -> Result<(), Errno> {
        let Some(open) = self.0.handles.staged(handle).filter(|open| open.is_writer) else {
            return Ok(());
        };
        if !open.staged.wants_close() || process_of(request.pid()) != open.process {
            return Ok(());
        }
        self.upload(&open.staged)
    }

    pub(crate) fn fsync_staged(&self, handle: u64) -> Result<(), Errno> {
        match self.0.handles.staged(handle) {
            Some(open) if self.0.options.fsync == Fsync::Lake => self.upload(&open.staged),
            _ => Ok(()),
        }
    }

    /// The last reference to a descriptor is gone: what no close has uploaded is uploaded now.
    pub(crate) fn release_staged(&self, open: &StagedHandle) {
        if !open.is_writer || !open.staged.remove_writer() {
            return;
        }
        // Its errors have no caller any more; `upload` logs and counts them.
        let _ = self.upload(&open.staged);
        if let Ok(writes) = self.writes() {
            writes.drop_staged(&open.staged);
        }
    }

    fn upload(&self, staged: &Arc<Staged>) -> Result<(), Errno> {
        staged.upload(&self.0.tree).map_err(|error| {
            let about = staged.key().unwrap_or_default();
            warn!(key = &*about, %error, "upload failed");
            match errno_of(&error) {
                errno if errno == Errno::ESTALE => Errno::EIO,
                errno => errno,
            }
        })
    }

    pub(crate) fn make_folder(&self, parent: INodeNo, name: &OsStr) -> Result<Inode, Errno> {
        let writes = self.writes()?;
        let key = self.key(parent, name)?;
        let prefix = format!("{key}/");
        if writes.staged(&key).is_some() || writes.has_folder(&prefix) || self.found(&key)?.is_some() {
            return Err(Errno::EEXIST);
        }
        writes.keep_folder(&prefix)?;
        Ok(Inode::Folder(prefix.into()))
    }

    pub(crate) fn remove_folder(&self, parent: INodeNo, name: &OsStr) -> Result<(), Errno> {
        let writes = self.writes()?;
        let key = self.key(parent, name)?;
        let prefix = format!("{key}/");
        if writes.staged(&key).is_some() {
            return Err(Errno::ENOTDIR);
        }
        let has_keys = self.0.tree.has_keys(&prefix);
        if has_keys.map_err(|error| Self::failed("rmdir", &key, &error))? || writes.has_more_below(&prefix) {
            return Err(Errno::ENOTEMPTY);
        }
        if !writes.has_folder(&prefix) && matches!(self.found(&key)?, Some(Found::Object(_))) {
            return Err(Errno::ENOTDIR);
        }
        writes.forget_folder(&prefix);
        writes.keep_folder(parent_of(&key))
    }

    pub(crate) fn remove_file(&self, parent: INodeNo, name: &OsStr) -> Result<(), Errno> {
        let key = self.key(parent, name)?;
        self.writes()?.unlink(&self.0.tree, &key)
    }

    pub(crate) fn rename_entry(
        &self,
        from: (INodeNo, &OsStr),
        to: (INodeNo, &OsStr),
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        let writes = self.writes()?;
        if !(flags - RenameFlags::RENAME_NOREPLACE).is_empty() {
            return Err(Errno::EINVAL);
        }
        let (from, to) = (self.key(from.0, from.1)?, self.key(to.0, to.1)?);
        if from == to {
            return Ok(());
        }
        let target = match writes.staged(&to) {
            Some(staged) => Some(Found::Staged(staged)),
            None if writes.has_folder(&format!("{to}/")) => Some(Found::Folder),
            None => self.found(&to)?,
        };
        if target.is_some() && flags.contains(RenameFlags::RENAME_NOREPLACE) {
            return Err(Errno::EEXIST);
        }
        let is_folder = writes.staged(&from).is_none()
            && (writes.has_folder(&format!("{from}/")) || matches!(self.found(&from)?, Some(Found::Folder)));
        match (is_folder, target) {
            (false, Some(Found::Folder)) => Err(Errno::EISDIR),
            (false, _) => writes.rename(&self.0.tree, &from, &to),
            (true, Some(Found::Object(_) | Found::Staged(_))) => Err(Errno::ENOTDIR),
            (true, _) => self.rename_folder(writes, &format!("{from}/"), &format!("{to}/")),
        }
    }

    fn rename_folder(&self, writes: &Writes, from: &str, to: &str) -> Result<(), Errno> {
        let has_keys = |prefix| {
            let found = self.0.tree.has_keys(prefix);
            found.map_err(|error| Self::failed("rename", prefix, &error))
        };
        if has_keys(from)? {
            let advice = "a lake has no folders to rename; tools such as mv copy its files instead";
            return Err(self.refuse("rename of a folder", from, advice, Errno::EXDEV));
        }
        if has_keys(to)? || writes.has_more_below(to) {
            return Err(Errno::ENOTEMPTY);
        }
        writes.rename_folder(from, to);
        Ok(())
    }
}

/// The process of a thread, as the kernel names it in a request.
fn process_of(thread: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let process = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    process
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(thread)
}
