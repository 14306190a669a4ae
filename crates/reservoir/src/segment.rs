//! A segment: a memfd, mapped once, that holds pages.
//!
//! A memfd and not private memory, because clients on the host will map the same pages read-only: the file is sealed
//! against resizing and against new writable mappings once our own exists. The mapping is aligned to 2 MiB, so
//! that the kernel can back it with huge pages. A fresh segment costs address space only; [`Segment::fault_in`]
//! gives it memory, which is slow (first touch is ten times slower than a copy) and runs on a thread of its own.
//!
//! This module and `segment/frame.rs` are the only ones with unsafe code. The rule they share: bytes of a segment
//! are reached through an extent, which belongs to one owner, and inside it through blocks, which are written by
//! the one holder of their claim before they are published and never written again after.
#![allow(
    unsafe_code,
    reason = "mapped memory that is shared between threads and later with clients"
)]

mod frame;

use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use forebay_core::{Error, Result};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

pub(crate) use frame::{Claim, Draft, Frame};

/// Bytes of a huge page, and what mappings are aligned to.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A mapped memfd.
#[derive(Debug)]
pub(crate) struct Segment {
    /// Kept open for the clients that will map it.
    _memfd: OwnedFd,
    /// First byte, aligned to 2 MiB.
    base: NonNull<u8>,
    bytes: usize,
    /// The reserved addresses around `base`.
    reserved: NonNull<u8>,
    reserved_bytes: usize,
}

// SAFETY: the mapping lives as long as the segment and is not bound to a thread; who may touch which bytes of it
// is decided by extents and claims (see `frame.rs`).
unsafe impl Send for Segment {}
// SAFETY: as above; the segment itself has no method that reads or writes through a shared reference.
unsafe impl Sync for Segment {}

impl Segment {
    /// Makes a memfd of this size and maps it; no memory is used until bytes are touched.
    pub(crate) fn create(bytes: usize) -> Result<Self> {
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
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
        if let Err(why) = rustix::fs::fcntl_add_seals(&memfd, seals) {
            tracing::warn!(%why, "memory segment could not be sealed");
        }
        let non_null = |address| NonNull::new(address).expect("mmap never returns null").cast();
        let (base, reserved) = (non_null(base), non_null(reserved));
        Ok(Self {
            _memfd: memfd,
            base,
            bytes,
            reserved,
            reserved_bytes,
        })
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// First byte of the mapping; only `frame.rs` may follow it.
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Gives the whole segment memory, in huge pages where the kernel allows; returns how many bytes those are.
    ///
    /// Takes the segment exclusively: it writes to it.
    pub(crate) fn fault_in(&mut self) -> usize {
        let mut huge_bytes = 0;
        for start in (0..self.bytes).step_by(HUGE_PAGE_BYTES) {
            let bytes = HUGE_PAGE_BYTES.min(self.bytes - start);
            // SAFETY: `start` lies inside the mapping, which nobody else uses yet (`&mut self`).
            let chunk = unsafe { self.base.add(start) };
            // SAFETY: as above; collapsing needs one byte of the chunk to be there.
            unsafe { chunk.write_volatile(0) };
            if bytes == HUGE_PAGE_BYTES && collapse(chunk) {
                huge_bytes += bytes;
                continue;
            }
            // SAFETY: populating changes no content; the range lies inside the mapping.
            if unsafe { rustix::mm::madvise(chunk.as_ptr().cast(), bytes, Advice::LinuxPopulateWrite) }
                .is_err()
            {
                break; // An older kernel, or no memory: first touch will do it, more slowly.
            }
        }
        huge_bytes
    }
}

/// Asks the kernel to back one aligned 2 MiB chunk by a huge page now.
fn collapse(chunk: NonNull<u8>) -> bool {
    // SAFETY: collapsing keeps the content; the chunk is mapped, aligned and 2 MiB long.
    unsafe { libc::madvise(chunk.as_ptr().cast(), HUGE_PAGE_BYTES, libc::MADV_COLLAPSE) == 0 }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: extents hold the segment by `Arc`, so nothing points into the mapping any more; the reserved
        // addresses include it.
        let result = unsafe { rustix::mm::munmap(self.reserved.as_ptr().cast(), self.reserved_bytes) };
        if let Err(why) = result {
            tracing::error!(%why, "memory segment could not be unmapped");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_aligned_for_huge_pages() {
        for bytes in [64 << 10, 1 << 20, 4 << 20] {
            let segment = Segment::create(bytes).unwrap();
            assert_eq!(segment.base().as_ptr().align_offset(HUGE_PAGE_BYTES), 0);
            assert_eq!(segment.bytes(), bytes);
        }
    }

    #[test]
    fn faulting_in_covers_the_whole_segment() {
        let mut segment = Segment::create(4 << 20).unwrap();
        assert!(segment.fault_in() <= 4 << 20);
        let mut resident = vec![0u8; (4 << 20) / 4096];
        // SAFETY: the mapping and the vector have the length that is named.
        let answer = unsafe {
            libc::mincore(
                segment.base().as_ptr().cast(),
                segment.bytes(),
                resident.as_mut_ptr(),
            )
        };
        assert_eq!(answer, 0);
        assert!(resident.iter().all(|page| page & 1 == 1));
    }
}
