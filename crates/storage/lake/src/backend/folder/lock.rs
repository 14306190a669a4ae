//! Locks that hold between tasks and between processes on the same folder.
//!
//! A lock is a file with `flock`; each holder opens it anew, so it excludes threads of one process as well,
//! and the kernel lets go of it when a process dies. Keys share a fixed number of lock files. A lock is held
//! for the check and the rename of a write, never while bytes move. Lock files belong to the lake's user
//! alone: who can open one can hold it. A wait has a deadline, and only so many threads of the pool that also
//! reads may wait at once, so that a lock that nobody lets go of costs the writes of its keys and nothing
//! else.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_core::{Clock, Error, Kind, ObjectKey, Result, SystemClock, crc32c};
use rustix::fs::{FlockOperation, Mode, OFlags, fchmod, flock, fstat, openat};
use rustix::io::Errno;

use super::tree::{Tree, explain};

/// Number of keys that can be published at once; a power of two.
const KEY_LOCKS: u32 = 64;

/// The longest wait for a lock.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Threads that may wait at once, of the 512 of the pool.
const WAITING_MAX: usize = 128;

/// The first pause between two tries, and the longest.
const PAUSE_MIN: Duration = Duration::from_micros(100);
const PAUSE_MAX: Duration = Duration::from_millis(20);

const PRIVATE: u32 = 0o600;

static WAITING: AtomicUsize = AtomicUsize::new(0);

/// A held lock; let go when dropped.
#[derive(Debug)]
pub(super) struct KeyLock {
    _file: OwnedFd,
}

/// Waits for the lock that this key belongs to. Errors: `Busy` if it is not to be had in time.
pub(super) fn lock_key(tree: &Tree, key: &ObjectKey) -> Result<KeyLock> {
    lock_key_within(tree, key, WAIT_MAX)
}

fn lock_key_within(tree: &Tree, key: &ObjectKey, wait_max: Duration) -> Result<KeyLock> {
    let file = open(tree, key)?;
    if try_lock(&file)? {
        return Ok(KeyLock { _file: file });
    }
    let Some(_waiting) = Waiting::begin() else {
        return Err(busy("too many writers wait for locks of the lake's folder"));
    };
    let (clock, mut pause) = (SystemClock::new(), PAUSE_MIN);
    let began = clock.monotonic();
    while clock.monotonic().saturating_sub(began) < wait_max {
        std::thread::sleep(pause);
        if try_lock(&file)? {
            return Ok(KeyLock { _file: file });
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
    Err(busy(
        "another process does not let go of a lock of the lake's folder",
    ))
}

fn busy(message: &'static str) -> Error {
    Error::new(Kind::Busy, message).with(
        "advice",
        "see who has files of .forebay/folder/locks open (fuser)",
    )
}

/// Opens the lock file; one of an earlier version is made private.
fn open(tree: &Tree, key: &ObjectKey) -> Result<OwnedFd> {
    let locks = tree
        .private("locks")
        .map_err(|errno| explain("cannot open the folder of the lock files", errno))?;
    let name = format!("{:02x}", crc32c::crc32c(key.as_str().as_bytes()) % KEY_LOCKS);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let wrong = |errno| explain("cannot open a lock file", errno);
    let file = openat(&locks, name, flags, Mode::from_raw_mode(PRIVATE)).map_err(wrong)?;
    let mode = fstat(&file).map_err(wrong)?.st_mode & 0o777;
    if mode != PRIVATE {
        // Only its owner can do it; whoever else may open it goes on as before.
        let _ = fchmod(&file, Mode::from_raw_mode(PRIVATE));
    }
    Ok(file)
}

fn try_lock(file: &OwnedFd) -> Result<bool> {
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(explain("cannot lock a lock file", errno)),
        }
    }
}

/// A thread that waits.
struct Waiting;

impl Waiting {
    fn begin() -> Option<Self> {
        let add = |now: usize| (now < WAITING_MAX).then_some(now + 1);
        WAITING
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .ok()
            .map(|_| Self)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;

    fn tree(root: &Path) -> Tree {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Tree::new(rustix::fs::open(root, flags, Mode::empty()).unwrap()).unwrap()
    }

    fn lock_files(root: &Path) -> Vec<std::path::PathBuf> {
        let folders = walk(root);
        folders
            .into_iter()
            .filter(|path| path.parent().unwrap().ends_with("locks"))
            .collect()
    }

    fn walk(root: &Path) -> Vec<std::path::PathBuf> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(root).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                found.extend(walk(&path));
            } else {
                found.push(path);
            }
        }
        found
    }

    #[test]
    fn lock_files_are_private_also_those_of_before() {
        let folder = tempfile::tempdir().unwrap();
        let (tree, key) = (tree(folder.path()), ObjectKey::new("a").unwrap());
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        drop(lock_key(&tree, &key).unwrap());
        let files = lock_files(folder.path());
        assert_eq!(files.len(), 1);
        assert_eq!(mode(&files[0]), 0o600);
        std::fs::set_permissions(&files[0], std::fs::Permissions::from_mode(0o644)).unwrap();
        drop(lock_key(&tree, &key).unwrap());
        assert_eq!(mode(&files[0]), 0o600);
    }

    #[test]
    fn a_lock_that_is_held_for_ever_ends_the_wait() {
        let folder = tempfile::tempdir().unwrap();
        let (tree, key) = (tree(folder.path()), ObjectKey::new("a").unwrap());
        let held = lock_key(&tree, &key).unwrap();
        let waited = lock_key_within(&tree, &key, Duration::from_millis(50));
        assert_eq!(waited.unwrap_err().kind(), Kind::Busy);
        drop(held);
        assert!(lock_key_within(&tree, &key, Duration::from_millis(50)).is_ok());
    }

    #[test]
    fn a_lock_that_is_let_go_of_is_had() {
        let folder = tempfile::tempdir().unwrap();
        let (tree, key) = (tree(folder.path()), ObjectKey::new("a").unwrap());
        let held = lock_key(&tree, &key).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| lock_key(&tree, &key).map(|_| ()));
            while WAITING.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            drop(held);
            waiter.join().unwrap().unwrap();
        });
    }
}
