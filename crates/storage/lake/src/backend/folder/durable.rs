//! Folders that are known to survive a power loss.
//!
//! A file is durable only if every folder above it is, and the one who made a folder may not have synced it
//! yet when another writer already uses it. So a writer syncs the parent of every folder on its way, once:
//! what was synced is remembered by inode and birth time (both, because inodes are used again).

use std::collections::HashSet;
use std::os::fd::BorrowedFd;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, StatxFlags, fsync, statx};
use rustix::io::Result;

/// Number of folders that are remembered; past it all are forgotten, which costs a sync each.
const FOLDERS_MAX: usize = 100_000;

/// Inode and birth time.
type Identity = (u64, i64, u32);

#[derive(Debug, Default)]
pub(super) struct DurableFolders(Mutex<HashSet<Identity>>);

impl DurableFolders {
    /// Syncs `parent` unless `folder`'s entry in it is known to be durable.
    pub(super) fn ensure(&self, folder: BorrowedFd<'_>, parent: BorrowedFd<'_>) -> Result<()> {
        let identity = identity_of(folder);
        if identity.is_some_and(|identity| self.0.lock().contains(&identity)) {
            return Ok(());
        }
        fsync(parent)?;
        if let Some(identity) = identity {
            let mut known = self.0.lock();
            if known.len() >= FOLDERS_MAX {
                known.clear();
            }
            known.insert(identity);
        }
        Ok(())
    }

    /// Forgets a folder that is gone: a new one may get its inode within the same tick of the clock.
    pub(super) fn forget(&self, folder: BorrowedFd<'_>) {
        if let Some(identity) = identity_of(folder) {
            self.0.lock().remove(&identity);
        }
    }
}

/// `None` where the file system has no birth times: then nothing is remembered.
fn identity_of(folder: BorrowedFd<'_>) -> Option<Identity> {
    let wanted = StatxFlags::INO | StatxFlags::BTIME;
    let found = statx(folder, "", AtFlags::EMPTY_PATH, wanted).ok()?;
    let has_birth_time = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
    has_birth_time.then_some((found.stx_ino, found.stx_btime.tv_sec, found.stx_btime.tv_nsec))
}
