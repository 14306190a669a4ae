//! Whole objects in memory that the kernel reads by itself (FUSE passthrough).
//!
//! A backing file has no offset, so it is one memfd an object, from its first byte to its last. It is made of huge
//! pages where the kernel has some: mapped reads are then as fast as those of a local file. Bytes come from the
//! client, which had them checked; from then on the scrub compares them with the checksums they had.
//!
//! Life cycle: [`WholeCopies::fill`] copies a version → [`WholeCopies::get`] finds it at each open → the oldest that
//! nobody has open go when the budget is full. What is handed out lives until it is closed.
#![allow(unsafe_code, reason = "memory is mapped to make huge pages of it")]

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::crc32c::crc32c;
use forebay_core::{Error, Kind, Result, format_bytes};
use fuser::BackingId;
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use tracing::{debug, warn};

use crate::counters::Counter;
use crate::inode::Version;
use crate::tree::Tree;

/// Objects from this size on are copied whole.
pub(crate) const LARGE_BYTES_MIN: u64 = 8 << 20;
/// Bytes of one read from the client.
const COPY_BYTES: u64 = 16 << 20;
/// Bytes under one checksum.
const SUM_BYTES: usize = 1 << 20;
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A whole version in memory.
pub(crate) struct WholeCopy {
    memfd: File,
    bytes: u64,
    /// CRC32C of each megabyte, as it came from the client.
    sums: Vec<u32>,
    /// The kernel's number for it, once it has one.
    pub(crate) backing: Mutex<Option<Arc<BackingId>>>,
    used: AtomicU64,
}

impl AsFd for WholeCopy {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memfd.as_fd()
    }
}

/// All whole versions of a mount, under one budget.
pub(crate) struct WholeCopies {
    copies: Mutex<HashMap<u64, Arc<WholeCopy>>>,
    /// One is filled at a time.
    filling: Mutex<()>,
    bytes_max: u64,
    clock: AtomicU64,
}

impl WholeCopies {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self {
            copies: Mutex::new(HashMap::new()),
            filling: Mutex::new(()),
            bytes_max,
            clock: AtomicU64::new(0),
        }
    }

    /// Returns whether an object of this size can be held at all.
    pub(crate) fn fits(&self, bytes: u64) -> bool {
        (LARGE_BYTES_MIN..=self.bytes_max).contains(&bytes)
    }

    /// The copy of an inode.
    pub(crate) fn get(&self, number: u64) -> Option<Arc<WholeCopy>> {
        let copies = self.copies.lock();
        let copy = copies.get(&number)?;
        copy.used
            .store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        Some(Arc::clone(copy))
    }

    /// The copy of an inode, made now if there is none. Blocks while it is read.
    ///
    /// Errors: `NoSpace` if what is open leaves no room.
    pub(crate) fn fill(&self, number: u64, version: &Version, tree: &Tree) -> Result<Arc<WholeCopy>> {
        let _one = self.filling.lock();
        if let Some(copy) = self.get(number) {
            return Ok(copy);
        }
        self.make_room(version.bytes)?;
        let copy = Arc::new(WholeCopy::read(version, tree)?);
        debug!(
            key = &*version.key,
            bytes = version.bytes,
            "copied whole for passthrough"
        );
        self.copies.lock().insert(number, Arc::clone(&copy));
        Ok(copy)
    }

    fn make_room(&self, bytes: u64) -> Result<()> {
        let mut copies = self.copies.lock();
        loop {
            let used: u64 = copies.values().map(|copy| copy.bytes).sum();
            if used + bytes <= self.bytes_max {
                return Ok(());
            }
            let idle = copies.iter().filter(|(_, copy)| Arc::strong_count(copy) == 1);
            let oldest = idle.min_by_key(|(_, copy)| copy.used.load(Ordering::Relaxed));
            let Some(oldest) = oldest.map(|(number, _)| *number) else {
                let message = "whole copies that are open leave no room for another";
                return Err(Error::new(Kind::NoSpace, message)
                    .with("used", format_bytes(used))
                    .with("limit", format_bytes(self.bytes_max)));
            };
            copies.remove(&oldest);
        }
    }

    /// Compares every copy with its checksums. One that is damaged is not handed out again; who has it open may
    /// have read the damage.
    pub(crate) fn scrub(&self, tree: &Tree) {
        let all: Vec<_> = self
            .copies
            .lock()
            .iter()
            .map(|(number, copy)| (*number, Arc::clone(copy)))
            .collect();
        for (number, copy) in all {
            if !copy.is_intact() {
                tree.counters.add(Counter::ScrubErrors);
                warn!(
                    inode = number,
                    "a whole copy in memory is damaged; new opens get another"
                );
                self.copies.lock().remove(&number);
            }
        }
    }
}

impl WholeCopy {
    fn read(version: &Version, tree: &Tree) -> Result<Self> {
        let failed = |why| Error::io("cannot make memory for a whole copy", why).with("bytes", version.bytes);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memfd: OwnedFd =
            rustix::fs::memfd_create("forebay-object", flags).map_err(|why| failed(why.into()))?;
        rustix::fs::ftruncate(&memfd, version.bytes).map_err(|why| failed(why.into()))?;
        make_huge(memfd.as_fd(), version.bytes);
        let memfd = File::from(memfd);
        let mut sums = Vec::new();
        let mut offset = 0;
        while offset < version.bytes {
            let length = (version.bytes - offset).min(COPY_BYTES);
            let view = tree.read(version, offset, length)?;
            sums.extend(view.chunks(SUM_BYTES).map(crc32c));
            memfd.write_all_at(&view, offset).map_err(failed)?;
            offset += length;
        }
        let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW;
        rustix::fs::fcntl_add_seals(&memfd, seals).map_err(|why| failed(why.into()))?;
        Ok(Self {
            memfd,
            bytes: version.bytes,
            sums,
            backing: Mutex::new(None),
            used: AtomicU64::new(0),
        })
    }

    fn is_intact(&self) -> bool {
        let mut buffer = vec![0; SUM_BYTES];
        let mut offset = 0;
        for sum in &self.sums {
            let length = (self.bytes - offset).min(SUM_BYTES as u64);
            let part = &mut buffer[..length as usize];
            if self.memfd.read_exact_at(part, offset).is_err() || crc32c(part) != *sum {
                return false;
            }
            offset += length;
        }
        true
    }
}

/// Makes huge pages of as much of a memfd as the kernel allows; the rest stays small pages, which are slower to map
/// and nothing else.
fn make_huge(memfd: BorrowedFd<'_>, bytes: u64) {
    let Ok(bytes) = usize::try_from(bytes) else {
        return;
    };
    let whole = bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if whole == 0 {
        return;
    }
    // Room to begin at a multiple of the size of a huge page.
    let room = whole + HUGE_PAGE_BYTES;
    // SAFETY: a new range of addresses, which nobody else has.
    let Ok(reserved) = (unsafe {
        rustix::mm::mmap_anonymous(
            null_mut(),
            room,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    }) else {
        return;
    };
    let start = reserved.wrapping_byte_add(reserved.align_offset(HUGE_PAGE_BYTES));
    // SAFETY: the range lies in the one above, which is ours alone and not in use.
    let mapped = unsafe {
        rustix::mm::mmap(
            start,
            whole,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED | MapFlags::FIXED,
            memfd,
            0,
        )
    };
    if mapped.is_ok() {
        for offset in (0..whole).step_by(HUGE_PAGE_BYTES) {
            let page = start.wrapping_byte_add(offset);
            // SAFETY: the page is mapped for writing, lies in the file, and nobody else has the memfd yet.
            unsafe { page.cast::<u8>().write_volatile(0) };
            // SAFETY: the range is mapped; the call changes how it is mapped, not what is in it.
            let collapsed = unsafe { libc::madvise(page, HUGE_PAGE_BYTES, libc::MADV_COLLAPSE) };
            if collapsed != 0 {
                break;
            }
        }
    }
    // SAFETY: nothing refers to the range any more.
    let _ = unsafe { rustix::mm::munmap(reserved, room) };
}
