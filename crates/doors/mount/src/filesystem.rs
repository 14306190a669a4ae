//! Requests of the kernel, each as one short walk: number → inode → client → answer.
//!
//! Threads of the session call these; they block while the node works. What fails is logged here, once, and becomes
//! a number (`errno.rs`).

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::counters::Counter;
use crate::handles::{Handle, OpenFolder};
use crate::inode::Inode;
use crate::probe::has_sys_admin;
use crate::shared::{CopyOrder, Shared};
use crate::xattr;
use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
    TimeOrNow, WriteFlags,
};

/// Time that attributes of a version are believed: they never change.
const VERSION_TTL: Duration = Duration::from_secs(86_400);
/// Bytes of one read, at most.
pub(crate) const READ_BYTES_MAX: u32 = 1 << 20;
/// Requests that the kernel may have under way on its own account (read-ahead).
const BACKGROUND_REQUESTS_MAX: u16 = 64;
/// Free space and names that `statfs` shows: a lake does not say.
const PRETENDED_BLOCKS: u64 = 1 << 38;
const PRETENDED_BLOCK_BYTES: u32 = 4096;

/// The file system that the kernel talks to.
pub(crate) struct MountedBucket(pub(crate) Arc<Shared>);

impl Filesystem for MountedBucket {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let offered = config.capabilities();
        let wanted = InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_ASYNC_READ;
        // What is not offered is not needed.
        let _ = config.add_capabilities(wanted & offered);
        let passes = !self.0.options.immutable
            && has_sys_admin()
            && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
            && config.set_max_stack_depth(1).is_ok();
        self.0.rule.set_passthrough(passes);
        let _ = config.set_max_write(READ_BYTES_MAX);
        let _ = config.set_max_background(BACKGROUND_REQUESTS_MAX);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.find(parent, name) {
            Ok((inode, bytes)) => {
                let number = self.0.inodes.remember(inode.clone());
                if let Some(view) = bytes {
                    self.0.recent.keep(number, view);
                }
                let attributes = self.0.attributes(number, &inode);
                let ttl = self.0.options.names_ttl;
                let attributes_ttl = if matches!(inode, Inode::Version(_)) {
                    VERSION_TTL
                } else {
                    ttl
                };
                reply.entry_with_ttls(&attributes_ttl, &ttl, &attributes, Generation(0));
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn forget(&self, _request: &Request, number: INodeNo, lookups: u64) {
        self.0.inodes.forget(number.0, lookups);
    }

    fn getattr(&self, _request: &Request, number: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.0.inodes.get(number.0) {
            Some(inode) => {
                let ttl = if matches!(inode, Inode::Version(_)) {
                    VERSION_TTL
                } else {
                    self.0.options.names_ttl
                };
                reply.attr(&ttl, &self.0.attributes(number.0, &inode));
            }
            None => reply.error(Errno::ESTALE),
        }
    }

    fn open(&self, request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if self.0.options.immutable {
            // Said once, the kernel opens and closes by itself from then on.
            return reply.error(Errno::ENOSYS);
        }
        if let Some(Inode::Staged(staged)) = self.0.inodes.get(number.0) {
            return match self.open_staged(request, &staged, flags) {
                Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO),
                Err(errno) => reply.error(errno),
            };
        }
        let version = match self.version(number) {
            Ok(version) => version,
            Err(errno) => return reply.error(errno),
        };
        if flags.acc_mode() != OpenAccMode::O_RDONLY {
            return reply.error(self.stage_version(&version));
        }
        self.0.counters.add(Counter::Opens);
        let file = match self.open_file(number.0, &version, &reply) {
            Ok(file) => Arc::new(file),
            Err(error) => {
                let errno = Self::failed("open", &version.key, &error);
                if errno == Errno::ESTALE {
                    self.0.recent.was_too_fast(&version.key);
                }
                return reply.error(errno);
            }
        };
        let Some(handle) = self.0.handles.insert(Handle::File(Arc::clone(&file))) else {
            self.0.rule.close(number.0, &version, &self.0.copies);
            return reply.error(Errno::ENFILE);
        };
        let backing = file.whole.as_ref().and_then(|whole| whole.backing.lock().clone());
        match backing {
            Some(backing) => {
                self.0.counters.add(Counter::PassthroughOpens);
                // Any other flag beside it is refused by the kernel.
                reply.opened_passthrough(FileHandle(handle), FopenFlags::empty(), &backing);
            }
            None if flags.0 & libc::O_DIRECT != 0 => {
                reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO);
            }
            None => reply.opened(FileHandle(handle), FopenFlags::FOPEN_KEEP_CACHE),
        }
    }

    fn read(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if let Some(open) = self.0.handles.staged(handle.0) {
            return match open.staged.read(offset, size.min(READ_BYTES_MAX), &self.0.tree) {
                Ok(bytes) => reply.data(&bytes),
                Err(error) => reply.error(Self::failed(
                    "read",
                    &open.staged.key().unwrap_or_default(),
                    &error,
                )),
            };
        }
        match self.read_bytes(number, handle, offset, size) {
            Ok(Some(bytes)) => reply.data(bytes.as_ref()),
            Ok(None) => reply.data(&[]),
            Err(errno) => reply.error(errno),
        }
    }

    fn flush(
        &self,
        request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        if self.0.writes.is_none() {
            // Said once, the kernel stops asking: nothing is ever to be flushed.
            return reply.error(Errno::ENOSYS);
        }
        answer(self.close_staged(request, handle.0), reply);
    }

    fn release(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let handle = self.0.handles.remove(handle.0);
        if let Some(Handle::Staged(open)) = &handle {
            self.release_staged(open);
        }
        if let Some(Handle::File(file)) = handle {
            let shared = &*self.0;
            if shared.rule.close(file.number, &file.version, &shared.copies) {
                let order = CopyOrder {
                    number: file.number,
                    version: Arc::clone(&file.version),
                };
                let _ = shared.copy_orders.try_send(order);
            }
        }
        reply.ok();
    }

    fn opendir(&self, _request: &Request, number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if let Err(errno) = self.folder(number) {
            return reply.error(errno);
        }
        let open = Handle::Folder(Arc::new(OpenFolder::default()));
        match self.0.handles.insert(open) {
            Some(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            None => reply.error(Errno::ENFILE),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        self.list_names(number, handle, offset, reply);
    }

    fn readdirplus(
        &self,
        _request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.list_known(number, handle, offset, reply);
    }

    fn releasedir(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.0.handles.remove(handle.0);
        reply.ok();
    }

    fn setattr(
        &self,
        _request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let is_time = size.is_none() && (atime.is_some() || mtime.is_some());
        match self.set_attributes(number, size, mode, is_time) {
            Ok(inode) => reply.attr(&Duration::ZERO, &self.0.attributes(number.0, &inode)),
            Err(errno) => reply.error(errno),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        match self.create_file(request, parent, name, flags) {
            Ok((inode, handle)) => {
                let number = self.0.inodes.remember(inode.clone());
                let attributes = self.0.attributes(number, &inode);
                let flags = FopenFlags::FOPEN_DIRECT_IO;
                reply.created(
                    &Duration::ZERO,
                    &attributes,
                    Generation(0),
                    FileHandle(handle),
                    flags,
                );
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.write_bytes(handle.0, offset, data, flags) {
            Ok(bytes) => reply.written(bytes),
            Err(errno) => reply.error(errno),
        }
    }

    fn fsync(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _data: bool,
        reply: ReplyEmpty,
    ) {
        answer(self.fsync_staged(handle.0), reply);
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _data: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn mkdir(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        match self.make_folder(parent, name) {
            Ok(inode) => {
                let number = self.0.inodes.remember(inode.clone());
                reply.entry(&Duration::ZERO, &self.0.attributes(number, &inode), Generation(0));
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(self.remove_folder(parent, name), reply);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(self.remove_file(parent, name), reply);
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        answer(
            self.rename_entry((parent, name), (new_parent, new_name), flags),
            reply,
        );
    }

    fn symlink(&self, _request: &Request, _parent: INodeNo, name: &OsStr, _target: &Path, reply: ReplyEntry) {
        reply.error(self.refuse(
            "symbolic link",
            &name.to_string_lossy(),
            "copy the file instead",
            Errno::EPERM,
        ));
    }

    fn link(&self, _request: &Request, _number: INodeNo, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        reply.error(self.refuse(
            "hard link",
            &name.to_string_lossy(),
            "copy the file instead",
            Errno::EPERM,
        ));
    }

    fn mknod(
        &self,
        _request: &Request,
        _parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _device: u32,
        reply: ReplyEntry,
    ) {
        reply.error(self.refuse(
            "device or pipe",
            &name.to_string_lossy(),
            "make it on a local disk",
            Errno::EPERM,
        ));
    }

    fn fallocate(
        &self,
        _request: &Request,
        _number: INodeNo,
        _handle: FileHandle,
        _offset: u64,
        _length: u64,
        _mode: i32,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EOPNOTSUPP);
    }

    fn setxattr(
        &self,
        _request: &Request,
        _number: INodeNo,
        name: &OsStr,
        _value: &[u8],
        _flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let advice = "a lake keeps no attributes of files";
        reply.error(self.refuse(
            "extended attribute",
            &name.to_string_lossy(),
            advice,
            Errno::ENOTSUP,
        ));
    }

    fn removexattr(&self, _request: &Request, _number: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::ENOTSUP);
    }

    fn statfs(&self, _request: &Request, _number: INodeNo, reply: ReplyStatfs) {
        let blocks = PRETENDED_BLOCKS;
        let names = crate::tree::NAME_BYTES_MAX as u32;
        reply.statfs(
            blocks,
            blocks,
            blocks,
            0,
            0,
            PRETENDED_BLOCK_BYTES,
            names,
            PRETENDED_BLOCK_BYTES,
        );
    }

    fn getxattr(&self, _request: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let inode = self.0.inodes.get(number.0);
        let value = inode.and_then(|inode| xattr::value(&self.0, number.0, &inode, name));
        match value {
            Some(value) => xattr::answer(value.as_bytes(), size, reply),
            None => reply.error(Errno::NO_XATTR),
        }
    }

    fn listxattr(&self, _request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        match self.0.inodes.get(number.0) {
            Some(inode) => xattr::answer(&xattr::names(&inode), size, reply),
            None => reply.error(Errno::ESTALE),
        }
    }
}

fn answer(done: Result<(), Errno>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}
