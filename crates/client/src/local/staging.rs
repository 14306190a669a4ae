//! Memory of the node that this process writes to, so that a put of it copies nothing.
//!
//! Life cycle: [`Local::allocate`](super::Local) → written through `&mut` → taken by a put, which unmaps it
//! here before the node reads it, or dropped, which gives it back. It belongs to the process that allocated
//! it: a forked child shares the memory, but cannot put it.
#![allow(unsafe_code, reason = "memory that is shared with the node")]

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use forebay_core::{Error, Kind, Result};
use forebay_wire::writes;
use forebay_wire::writes::Buffer;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::pool::PooledConnection;
use super::segments::{Addresses, cannot_map, check_memfd};
use super::session::Local;
use crate::wait::Wait;

/// Mappings of handed-over buffers that are kept for the next time.
const KEPT_MAX: usize = 128;

/// Writable memory for one object, in the node's staging arena.
pub(crate) struct StagingBuffer {
    bytes: usize,
    mapping: BufferMapping,
    ticket: Ticket,
}

/// A buffer of the arena, mapped for writing. Nobody may write to it without a [`Ticket`] for it.
pub(super) struct BufferMapping {
    start: NonNull<u8>,
    mapped_bytes: usize,
    _addresses: Addresses,
}

// SAFETY: addresses are not bound to a thread; who writes to them has the only `StagingBuffer` around it.
unsafe impl Send for BufferMapping {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for BufferMapping {}

/// Mappings of buffers that were handed over, by number: the node lends the same memory again, and then it is
/// in the page tables already. What the node has given back to the kernel meanwhile costs addresses only.
/// Oldest first.
#[derive(Default)]
pub(super) struct BufferMappingCache(VecDeque<(u64, BufferMapping)>);

impl BufferMappingCache {
    /// Keeps one; returns what had to make room, to be dropped after the lock is given back.
    #[must_use]
    fn keep(&mut self, buffer: u64, mapping: BufferMapping) -> Option<BufferMapping> {
        let oldest = (self.0.len() >= KEPT_MAX).then(|| self.0.pop_front()).flatten();
        self.0.push_back((buffer, mapping));
        oldest.map(|(_, mapping)| mapping)
    }

    fn take(&mut self, buffer: u64) -> Option<BufferMapping> {
        let place = self.0.iter().position(|(number, _)| *number == buffer)?;
        self.0.remove(place).map(|(_, mapping)| mapping)
    }
}

/// The right to use a buffer; gives it back when dropped.
pub(super) struct Ticket {
    pub(super) local: Arc<Local>,
    pub(super) buffer: u64,
    pub(super) incarnation: u64,
    pub(super) process: u32,
    /// A put took it; the node knows what to do with it.
    pub(super) spent: bool,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.spent {
            let free = writes::Request::Free { buffer: self.buffer };
            self.local.send_oneway_later(free, self.incarnation, self.process);
        }
    }
}

impl StagingBuffer {
    pub(super) fn map(memfd: &OwnedFd, place: &Buffer, ticket: Ticket) -> Result<Self> {
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
        // All page faults at once are much cheaper than one by one. An older kernel does not know it; then
        // they come one by one. SAFETY: the range is the mapping just made; populating changes no content.
        let _ = unsafe { rustix::mm::madvise(start, bytes.max(1), Advice::LinuxPopulateWrite) };
        let mapping = BufferMapping {
            start: NonNull::new(start.cast()).expect("mmap never returns null"),
            mapped_bytes,
            _addresses: addresses,
        };
        Ok(Self {
            bytes,
            mapping,
            ticket,
        })
    }

    /// Returns what to keep for the next time, and the right to hand it over.
    pub(super) fn into_mapping(self) -> (BufferMapping, Ticket) {
        (self.mapping, self.ticket)
    }

    /// Unmaps it here; what remains is the right to put it.
    pub(super) fn into_ticket(self) -> (Ticket, u64) {
        (self.ticket, self.bytes as u64)
    }

    /// Returns whether it was allocated by this client.
    pub(super) fn is_of(&self, local: &Local) -> bool {
        std::ptr::eq(&*self.ticket.local, local)
    }

    /// Makes it shorter: a put writes what is left.
    pub(crate) fn truncate(&mut self, bytes: usize) {
        self.bytes = self.bytes.min(bytes);
    }
}

impl Local {
    /// A buffer of the arena; mapped as it was the last time, if it was. `Busy` when the arena is full.
    pub(super) fn try_lend(
        self: &Arc<Self>,
        connection: &mut PooledConnection<'_>,
        bytes: u64,
        wait: &Wait,
    ) -> Result<StagingBuffer> {
        let (place, ticket) = self.try_allocate(connection, bytes, wait)?;
        let kept = self.state().buffer_mappings.take(place.buffer);
        if let Some(mapping) = kept.filter(|mapping| mapping.mapped_bytes as u64 >= place.bytes) {
            return Ok(StagingBuffer {
                bytes: usize::try_from(place.bytes).unwrap_or(mapping.mapped_bytes),
                mapping,
                ticket,
            });
        }
        let memfd = Self::descriptor_of(connection, &place, wait)?;
        StagingBuffer::map(&memfd, &place, ticket)
    }

    /// Keeps the mapping of a buffer that was handed over.
    pub(super) fn keep_mapping(&self, buffer: u64, mapping: BufferMapping, incarnation: u64) {
        let mut state = self.state();
        let surplus = if state.incarnation == incarnation {
            state.buffer_mappings.keep(buffer, mapping)
        } else {
            Some(mapping)
        };
        drop(state);
        drop(surplus);
    }
}

impl Deref for StagingBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `bytes` were checked against the mapping; nobody else writes to them (`Ticket`).
        unsafe { std::slice::from_raw_parts(self.mapping.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for StagingBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.start.as_ptr(), self.bytes) }
    }
}
