//! The state of a mount: what requests, the keeper and the session share.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, SystemTime};

use forebay_client::Client;
use fuser::{FileAttr, FileType, INodeNo};

use crate::counters::Counters;
use crate::handles::Handles;
use crate::inode::{Inode, InodeTable, Version};
use crate::mode::Rule;
use crate::options::MountOptions;
use crate::recent::Recent;
use crate::tree::Tree;
use crate::whole_copy::WholeCopies;
use crate::writes::Writes;

/// Bytes of a block as `stat` counts them.
const STAT_BLOCK_BYTES: u64 = 512;

/// A version to copy whole.
pub(crate) struct CopyOrder {
    pub(crate) number: u64,
    pub(crate) version: Arc<Version>,
}

/// The state of a mount.
pub(crate) struct Shared {
    pub(crate) options: MountOptions,
    pub(crate) tree: Tree,
    pub(crate) inodes: InodeTable,
    pub(crate) handles: Handles,
    pub(crate) rule: Rule,
    pub(crate) copies: WholeCopies,
    pub(crate) recent: Recent,
    /// `None` if the mount is read-only.
    pub(crate) writes: Option<Writes>,
    pub(crate) counters: Arc<Counters>,
    /// To the thread that copies; what finds it full is copied after the next close.
    pub(crate) copy_orders: SyncSender<CopyOrder>,
}

impl Shared {
    pub(crate) fn new(client: Client, options: MountOptions, copy_orders: SyncSender<CopyOrder>) -> Self {
        let counters = Arc::new(Counters::default());
        Self {
            tree: Tree {
                client,
                bucket: options.bucket.as_str().into(),
                counters: Arc::clone(&counters),
            },
            inodes: InodeTable::new(&options.prefix, options.inodes_max),
            handles: Handles::new(options.handles_max),
            rule: Rule::new(&options),
            copies: WholeCopies::new(options.passthrough_bytes_max),
            recent: Recent::default(),
            writes: options
                .writable
                .then(|| Writes::new(options.staging_dir.clone(), options.staging_bytes_max)),
            counters,
            copy_orders,
            options,
        }
    }

    /// Attributes of an inode, as `stat` shows them.
    pub(crate) fn attributes(&self, number: u64, inode: &Inode) -> FileAttr {
        let since = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let (kind, bytes, modified) = match inode {
            Inode::Folder(_) => (FileType::Directory, 0, since(0)),
            Inode::Version(version) => (FileType::RegularFile, version.bytes, since(version.modified)),
            Inode::Staged(staged) => {
                let (bytes, modified) = staged.shown();
                (FileType::RegularFile, bytes, modified)
            }
        };
        let perm = match (kind, self.options.writable) {
            (FileType::Directory, true) => 0o755,
            (FileType::Directory, false) => 0o555,
            (_, true) => 0o644,
            (_, false) => 0o444,
        };
        FileAttr {
            ino: INodeNo(number),
            size: bytes,
            blocks: bytes.div_ceil(STAT_BLOCK_BYTES),
            atime: modified,
            mtime: modified,
            ctime: modified,
            crtime: modified,
            kind,
            perm,
            nlink: if kind == FileType::Directory { 2 } else { 1 },
            uid: self.options.owner.0,
            gid: self.options.owner.1,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}
