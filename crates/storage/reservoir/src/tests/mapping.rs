//! A client's mapping of a segment.
#![allow(unsafe_code, reason = "mapped memory")]

use std::ops::Deref;
use std::os::fd::AsFd;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A segment as a client maps it: read-only, aligned to huge pages.
pub(super) struct Mapping {
    reserved: *mut std::ffi::c_void,
    start: *const u8,
    bytes: usize,
}

impl Mapping {
    pub(super) fn new(segment: &impl AsFd, bytes: u64) -> Self {
        let bytes = usize::try_from(bytes).unwrap();
        // SAFETY: fresh mappings; the second one lies inside the first.
        unsafe {
            let (none, private) = (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE);
            let reserved =
                rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes + HUGE_PAGE_BYTES, none, private)
                    .unwrap();
            let start = reserved.byte_add(reserved.align_offset(HUGE_PAGE_BYTES));
            let shared = MapFlags::SHARED | MapFlags::FIXED;
            let start = rustix::mm::mmap(start, bytes, ProtFlags::READ, shared, segment, 0).unwrap();
            Self {
                reserved,
                start: start.cast(),
                bytes,
            }
        }
    }

    /// Tries to get a writable mapping, at once and by way of a read-only one.
    pub(super) fn is_refused_for_writing(segment: &impl AsFd, bytes: u64) -> bool {
        let mapping = Self::new(segment, bytes);
        // SAFETY: a fresh mapping that is not used; the protection of our own is changed for nobody else.
        unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let direct = rustix::mm::mmap(
                std::ptr::null_mut(),
                mapping.bytes,
                access,
                MapFlags::SHARED,
                segment,
                0,
            );
            let later = rustix::mm::mprotect(
                mapping.start.cast_mut().cast(),
                mapping.bytes,
                MprotectFlags::READ | MprotectFlags::WRITE,
            );
            direct.is_err() && later.is_err()
        }
    }

    /// Bytes of it that are mapped by huge pages, once every page was read.
    pub(super) fn huge_bytes(&self) -> u64 {
        let sum: u64 = self.iter().step_by(4096).map(|byte| u64::from(*byte)).sum();
        std::hint::black_box(sum);
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let header = format!("{:x}-", self.start as usize);
        let lines = smaps.lines().skip_while(|line| !line.starts_with(&header));
        let field = lines
            .skip(1)
            .find_map(|line| line.strip_prefix("ShmemPmdMapped:"));
        let kilobytes: u64 = field.unwrap().trim().trim_end_matches(" kB").parse().unwrap();
        kilobytes << 10
    }
}

// SAFETY: memory that is only read, and not bound to a thread.
unsafe impl Send for Mapping {}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped until drop. The node does not write to leased bytes; the tests look at others only
        // to see that they do not change.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the addresses reserved in `new`, which include the mapping.
        unsafe { rustix::mm::munmap(self.reserved, self.bytes + HUGE_PAGE_BYTES).unwrap() };
    }
}
