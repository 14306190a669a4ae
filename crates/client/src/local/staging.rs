//! Memory of the node that this process writes to, so that a put of it copies nothing.
//!
//! Life cycle: [`Local::allocate`](super::Local) → written through `&mut` → taken by a put, which unmaps it here before the node
//! reads it, or dropped, which gives it back. It belongs to the process that allocated it: a forked child shares the
//! memory, but cannot put it.
#![allow(unsafe_code, reason = "memory that is shared with the node")]

use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use forebay_core::wire::{BufferPlace, Request};
use forebay_core::{Error, Kind, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::segments::{Addresses, cannot_map, check_memfd};
use super::session::Local;

/// Writable memory for one object, in the node's staging arena.
pub(crate) struct StagingBuffer {
    start: NonNull<u8>,
    bytes: usize,
    _addresses: Addresses,
    ticket: Ticket,
}

// SAFETY: the memory belongs to this value alone; it is written through `&mut self` only.
unsafe impl Send for StagingBuffer {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for StagingBuffer {}

/// The right to use a buffer; gives it back when dropped.
pub(super) struct Ticket {
    pub(super) local: Arc<Local>,
    pub(super) buffer: u64,
    pub(super) life: u64,
    pub(super) process: u32,
    /// A put took it; the node knows what to do with it.
    pub(super) spent: bool,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.spent {
            let free = Request::Free { buffer: self.buffer };
            self.local.tell_later(free, self.life, self.process);
        }
    }
}

impl StagingBuffer {
    pub(super) fn map(memfd: &OwnedFd, place: &BufferPlace, ticket: Ticket) -> Result<Self> {
        let mapped_bytes = check_memfd(memfd, place.mapped_bytes)?;
        let bytes = usize::try_from(place.bytes).unwrap_or(usize::MAX);
        if bytes > mapped_bytes {
            let error = Error::new(
                Kind::Corrupt,
                "the node gave a buffer that is larger than its memory",
            );
            return Err(error.with("bytes", bytes).with("mapped_bytes", mapped_bytes));
        }
        let (addresses, target) = Addresses::reserve(mapped_bytes, 0)?;
        // SAFETY: the target lies inside the addresses reserved just above, which nobody uses.
        let start = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(
                target.as_ptr().cast(),
                mapped_bytes,
                access,
                MapFlags::SHARED | MapFlags::FIXED,
                memfd,
                0,
            )
        }
        .map_err(|why| cannot_map(why, mapped_bytes))?;
        // All page faults at once are much cheaper than one by one. An older kernel does not know it; then they come one by one.
        // SAFETY: the range is the mapping just made; populating changes no content.
        let _ = unsafe { rustix::mm::madvise(start, bytes.max(1), Advice::LinuxPopulateWrite) };
        Ok(Self {
            start: NonNull::new(start.cast()).expect("mmap never returns null"),
            bytes,
            _addresses: addresses,
            ticket,
        })
    }

    /// Unmaps it here; what remains is the right to put it.
    pub(super) fn into_ticket(self) -> (Ticket, u64) {
        (self.ticket, self.bytes as u64)
    }

    /// Whether it was allocated by this client.
    pub(super) fn is_of(&self, local: &Local) -> bool {
        std::ptr::eq(&*self.ticket.local, local)
    }

    /// Makes it shorter: a put writes what is left.
    pub(crate) fn truncate(&mut self, bytes: usize) {
        self.bytes = self.bytes.min(bytes);
    }
}

impl Deref for StagingBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `bytes` were checked against the mapping that `_addresses` keeps; nobody else writes to them (`Ticket`).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for StagingBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}
