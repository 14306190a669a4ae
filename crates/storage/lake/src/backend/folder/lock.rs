//! Locks that hold between tasks and between processes on the same folder.
//!
//! A lock is a file with `flock`; each holder opens it anew, so it excludes threads of one process as well,
//! and the kernel lets go of it when a process dies. Keys share a fixed number of lock files. A lock is held
//! for the check and the rename of a write, never while bytes move.

use std::os::fd::OwnedFd;

use forebay_core::{ObjectKey, Result, crc32c};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::Errno;

use super::tree::{Tree, explain};

/// Number of keys that can be published at once; a power of two.
const KEY_LOCKS: u32 = 64;

/// A held lock; let go when dropped.
#[derive(Debug)]
pub(super) struct KeyLock {
    _file: OwnedFd,
}

/// Waits for the lock that this key belongs to.
pub(super) fn lock_key(tree: &Tree, key: &ObjectKey) -> Result<KeyLock> {
    let locks = tree
        .private("locks")
        .map_err(|errno| explain("cannot open the folder of the lock files", errno))?;
    let name = format!("{:02x}", crc32c::crc32c(key.as_str().as_bytes()) % KEY_LOCKS);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(&locks, name, flags, Mode::from_raw_mode(0o666))
        .map_err(|errno| explain("cannot open a lock file", errno))?;
    loop {
        match flock(&file, FlockOperation::LockExclusive) {
            Ok(()) => return Ok(KeyLock { _file: file }),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(explain("cannot lock a lock file", errno)),
        }
    }
}
