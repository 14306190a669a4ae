//! A copy for one lease: a segment of its own, filled front to back, that goes when the lease does.
//!
//! Made when the cache has no memory for the bytes, or when a client holds its share of the RAM already.
//! Copies come on top of the RAM budget, so they have a cap of their own: half of it, but enough for one
//! object of usual size.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_core::{Error, Kind, Result};
use parking_lot::Mutex;

use crate::TrustDomain;
use crate::free_space::UNIT_BYTES;
use crate::segment::{ClientAccess, HUGE_PAGE_BYTES, Segment, SegmentId};
use crate::stats::Counters;

/// Copies together may take one part in this many of the RAM budget, or the minimum.
const COPIES_SHARE: u64 = 2;
const COPIES_BYTES_MIN: u64 = 256 << 20;

/// All copies that leases hold.
#[derive(Debug)]
pub(crate) struct Copies {
    segments: Mutex<HashMap<SegmentId, (Arc<Segment>, TrustDomain)>>,
    bytes_max: u64,
    counters: Arc<Counters>,
}

impl Copies {
    /// None yet.
    pub(crate) fn new(ram_bytes: u64, counters: Arc<Counters>) -> Self {
        Self {
            segments: Mutex::default(),
            bytes_max: (ram_bytes / COPIES_SHARE).max(COPIES_BYTES_MIN),
            counters,
        }
    }

    /// A copy's segment and who may map it.
    pub(crate) fn segment(&self, id: SegmentId) -> Option<(Arc<Segment>, TrustDomain)> {
        self.segments.lock().get(&id).cloned()
    }

    /// Memory for a copy.
    pub(super) fn draft(self: &Arc<Self>, bytes: u64, domain: TrustDomain) -> Result<CopyDraft> {
        let segment_bytes = bytes.next_multiple_of(UNIT_BYTES);
        if segment_bytes > self.bytes_max {
            let message = "a view of this size finds no memory in this node; read it in smaller ranges or \
                           into memory of your own, or give the node more RAM";
            return Err(Error::new(Kind::NoSpace, message)
                .with("bytes", bytes)
                .with("bytes_max", self.bytes_max));
        }
        let held_bytes = &self.counters.copies_held_bytes;
        if !held_bytes.add_within(segment_bytes, self.bytes_max) {
            let message = "all memory of the node is held by views; release some, or try again later";
            return Err(Error::new(Kind::Busy, message).with("bytes", bytes));
        }
        let held = HeldBytes {
            bytes: segment_bytes,
            counters: Arc::clone(&self.counters),
        };
        let segment_bytes = usize::try_from(segment_bytes).expect("a copy fits the address space");
        let segment = Segment::create(segment_bytes, ClientAccess::Read)?;
        if segment_bytes >= HUGE_PAGE_BYTES {
            segment.fault_in(0..segment.bytes());
        }
        Ok(CopyDraft {
            copies: Arc::clone(self),
            segment,
            domain,
            written: 0,
            held,
        })
    }
}

/// Counts the bytes of a copy as held.
#[derive(Debug)]
struct HeldBytes {
    bytes: u64,
    counters: Arc<Counters>,
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.counters.copies_held_bytes.sub(self.bytes);
    }
}

/// A copy on its way.
#[derive(Debug)]
pub(super) struct CopyDraft {
    copies: Arc<Copies>,
    segment: Segment,
    domain: TrustDomain,
    written: usize,
    held: HeldBytes,
}

impl CopyDraft {
    /// Appends bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.segment.write(self.written, bytes);
        self.written += bytes.len();
    }

    /// The copy, which clients can map from now on.
    pub(super) fn finish(self) -> Copy {
        let segment = Arc::new(self.segment);
        let id = segment.id();
        self.copies.segments.lock().insert(id, (segment, self.domain));
        self.copies.counters.lease_copied_bytes.add(self.written as u64);
        Copy {
            id,
            bytes: self.written as u64,
            copies: self.copies,
            _held: self.held,
        }
    }
}

/// A copy that a lease holds.
#[derive(Debug)]
pub(super) struct Copy {
    pub(super) id: SegmentId,
    pub(super) bytes: u64,
    copies: Arc<Copies>,
    _held: HeldBytes,
}

impl Drop for Copy {
    fn drop(&mut self) {
        drop(self.copies.segments.lock().remove(&self.id)); // The lock is free before the memory is unmapped.
    }
}
