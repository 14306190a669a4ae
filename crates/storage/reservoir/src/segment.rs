//! A segment: a memfd, mapped once, that holds pages.
//!
//! A memfd and not private memory, because clients on the host map the same pages read-only: the file is
//! sealed against resizing and against new writable mappings once our own exists. One that a client writes to
//! (staging) is sealed against resizing only. The mapping is aligned to 2 MiB, so that the kernel can back it
//! with huge pages. A fresh segment costs address space only; [`Segment::fault_in`] gives it memory, which is
//! slow (first touch is ten times slower than a copy).
//!
//! This module and those below it are the only ones with unsafe code. The rule they share: bytes of a segment
//! are reached through an extent, which belongs to one owner, and inside it through blocks, which are written
//! by the one holder of their claim before they are published and never written again after. A segment
//! without extents (a copy for one lease) is written by its one owner before it is shared.
#![allow(
    unsafe_code,
    reason = "mapped memory that is shared between threads and with clients"
)]

mod frame;

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::{Error, Result};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

pub(crate) use frame::{Claim, Draft, Frame};

const SMALL_PAGE_BYTES: usize = 4 << 10;

/// Bytes of a huge page, and what mappings are aligned to.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The number of a segment. No number is used twice in one life of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentId(pub u64);

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// The access of a client to a segment that it maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientAccess {
    Read,
    Write,
}

/// A mapped memfd.
#[derive(Debug)]
pub(crate) struct Segment {
    id: SegmentId,
    /// Kept open for the clients that map it.
    memfd: OwnedFd,
    /// First byte, aligned to 2 MiB.
    base: NonNull<u8>,
    bytes: usize,
    /// The reserved addresses around `base`.
    reserved: NonNull<u8>,
    reserved_bytes: usize,
}

// SAFETY: the mapping lives as long as the segment and is not bound to a thread; who may touch which bytes of
// it is decided by extents and claims (see `frame.rs`).
unsafe impl Send for Segment {}
// SAFETY: as above; the segment itself has no method that reads or writes through a shared reference.
unsafe impl Sync for Segment {}

impl Segment {
    /// Makes a memfd of this size and maps it; no memory is used until bytes are touched.
    pub(crate) fn create(bytes: usize, access: ClientAccess) -> Result<Self> {
        let failed = |what: &str| {
            let message =
                format!("cannot {what} a memory segment; lower the RAM budget or raise the memory limit");
            move |why: rustix::io::Errno| Error::io(message, why.into()).with("bytes", bytes)
        };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memfd = rustix::fs::memfd_create("forebay-segment", flags).map_err(failed("create"))?;
        rustix::fs::ftruncate(&memfd, bytes as u64).map_err(failed("size"))?;
        let reserved_bytes = bytes + HUGE_PAGE_BYTES;
        // SAFETY: a fresh anonymous mapping at an address the kernel chooses touches nothing that exists.
        let reserved = unsafe {
            let (none, private) = (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE);
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), reserved_bytes, none, private)
        }
        .map_err(failed("reserve"))?;
        let gap = reserved.align_offset(HUGE_PAGE_BYTES);
        // SAFETY: the target lies inside the addresses reserved just above (gap < 2 MiB), which nobody uses.
        let base = unsafe {
            let (access, shared) = (
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::FIXED,
            );
            rustix::mm::mmap(reserved.byte_add(gap), bytes, access, shared, &memfd, 0)
        };
        let base = base.inspect_err(|_| {
            // SAFETY: these are the addresses reserved above; nothing points into them.
            let _ = unsafe { rustix::mm::munmap(reserved, reserved_bytes) };
        });
        let base = base.map_err(failed("map"))?;
        let non_null = |address| NonNull::new(address).expect("mmap never returns null").cast();
        let segment = Self {
            id: SegmentId(NEXT_ID.fetch_add(1, Ordering::Relaxed)),
            memfd,
            base: non_null(base),
            bytes,
            reserved: non_null(reserved),
            reserved_bytes,
        };
        // After our own mapping, because none that may write can be made later.
        rustix::fs::fcntl_add_seals(&segment.memfd, access.seals()).map_err(failed("seal"))?;
        Ok(segment)
    }

    /// Its number.
    pub(crate) fn id(&self) -> SegmentId {
        self.id
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// First byte of the mapping; only `frame.rs` may follow it.
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Writes bytes; takes the segment exclusively.
    ///
    /// # Panics
    /// If they do not fit: a mistake of this crate.
    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(
            offset <= self.bytes && bytes.len() <= self.bytes - offset,
            "the bytes fit the segment"
        );
        // SAFETY: the target lies inside the mapping, which nobody else uses (`&mut self`); a borrowed slice
        // cannot overlap it.
        unsafe {
            let target = self.base.as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len());
        }
    }

    /// The first bytes of a segment without extents; at most all of them.
    pub(crate) fn front(&self, bytes: usize) -> &[u8] {
        // SAFETY: the range lies inside the mapping, and this process writes to such a segment through `&mut`
        // only. The client of a staging buffer can write to it meanwhile, against the protocol: then the
        // bytes are garbage of its own making. They are only copied, sent and hashed, and any byte is a valid
        // `u8`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), bytes.min(self.bytes)) }
    }

    /// Gives the memory back to the kernel even while a client has it mapped; possible where clients may
    /// write.
    pub(crate) fn discard(&self) {
        use rustix::fs::FallocateFlags;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if let Err(why) = rustix::fs::fallocate(&self.memfd, flags, 0, self.bytes as u64) {
            tracing::warn!(%why, bytes = self.bytes, "memory of a staging buffer was not given back");
        }
    }

    /// Gives a part of the segment memory, in huge pages where the kernel allows; returns how many bytes
    /// those are. Changes no content, so it may run while the segment is in use. A part that begins or ends
    /// within a huge page has that one too.
    ///
    /// It goes from the end to the front, because whoever fills the segment meanwhile comes from there, and
    /// passes over what has memory already: a huge page in the place of small ones costs a copy of them.
    pub(crate) fn fault_in(&self, part: Range<usize>) -> usize {
        let mut huge_bytes = 0;
        let first = part.start / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        for start in (first..part.end.min(self.bytes)).step_by(HUGE_PAGE_BYTES).rev() {
            let bytes = HUGE_PAGE_BYTES.min(self.bytes - start);
            // SAFETY: `start` lies inside the mapping.
            let chunk = unsafe { self.base.add(start) };
            if has_memory(chunk, bytes) {
                continue;
            }
            // Collapsing needs one page of the chunk to be there.
            if bytes == HUGE_PAGE_BYTES && populate(chunk, SMALL_PAGE_BYTES) && collapse(chunk) {
                huge_bytes += bytes;
            } else if !populate(chunk, bytes) {
                break; // An older kernel, or no memory: first touch will do it, more slowly.
            }
        }
        huge_bytes
    }
}

/// Returns whether the last page of a part of a mapping, at most a huge page long, is there: then most of it
/// is, or will be in a moment.
fn has_memory(start: NonNull<u8>, bytes: usize) -> bool {
    let last = bytes.saturating_sub(1) / SMALL_PAGE_BYTES * SMALL_PAGE_BYTES;
    let mut is_there = 0u8;
    // SAFETY: the page lies in the part that the callers name of their mapping, and one byte is the answer
    // for one page.
    let answer = unsafe { libc::mincore(start.as_ptr().add(last).cast(), 1, &raw mut is_there) };
    answer == 0 && is_there & 1 == 1
}

/// Asks the kernel to give memory to a part of a mapping now.
fn populate(start: NonNull<u8>, bytes: usize) -> bool {
    // SAFETY: populating changes no content; the callers name a part of their mapping.
    unsafe { rustix::mm::madvise(start.as_ptr().cast(), bytes, Advice::LinuxPopulateWrite).is_ok() }
}

/// Asks the kernel to back one aligned 2 MiB chunk by a huge page now.
fn collapse(chunk: NonNull<u8>) -> bool {
    // SAFETY: collapsing keeps the content; the chunk is mapped, aligned and 2 MiB long.
    unsafe { libc::madvise(chunk.as_ptr().cast(), HUGE_PAGE_BYTES, libc::MADV_COLLAPSE) == 0 }
}

impl ClientAccess {
    fn seals(self) -> SealFlags {
        let size = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        match self {
            Self::Read => size | SealFlags::FUTURE_WRITE,
            Self::Write => size,
        }
    }
}

impl AsFd for Segment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memfd.as_fd()
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: extents hold the segment by `Arc`, so nothing points into the mapping any more; the
        // reserved addresses include it.
        let result = unsafe { rustix::mm::munmap(self.reserved.as_ptr().cast(), self.reserved_bytes) };
        if let Err(why) = result {
            tracing::error!(%why, "memory segment could not be unmapped");
        }
    }
}

#[cfg(test)]
impl Segment {
    /// Bytes that have memory.
    pub(crate) fn resident_bytes(&self) -> usize {
        let mut resident = vec![0u8; self.bytes.div_ceil(SMALL_PAGE_BYTES)];
        // SAFETY: the vector has one byte for each page of the mapping.
        let answer = unsafe { libc::mincore(self.base.as_ptr().cast(), self.bytes, resident.as_mut_ptr()) };
        assert_eq!(answer, 0);
        resident.iter().filter(|page| **page & 1 == 1).count() * SMALL_PAGE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_aligned_for_huge_pages() {
        for bytes in [64 << 10, 1 << 20, 4 << 20] {
            let segment = Segment::create(bytes, ClientAccess::Read).unwrap();
            assert_eq!(segment.base().as_ptr().align_offset(HUGE_PAGE_BYTES), 0);
            assert_eq!(segment.bytes(), bytes);
        }
    }

    #[test]
    fn faulting_in_covers_the_whole_segment() {
        let segment = Segment::create(4 << 20, ClientAccess::Read).unwrap();
        assert!(segment.fault_in(0..4 << 20) <= 4 << 20);
        assert_eq!(segment.resident_bytes(), 4 << 20);
    }

    #[test]
    fn faulting_in_a_part_leaves_the_rest() {
        let segment = Segment::create(8 << 20, ClientAccess::Read).unwrap();
        segment.fault_in((2 << 20) + 1..4 << 20);
        assert_eq!(segment.resident_bytes(), 2 << 20);
    }
}
