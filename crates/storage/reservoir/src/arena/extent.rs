//! An extent: a part of a segment that belongs to its holder alone, until it is dropped.

use std::sync::Arc;

use forebay_core::PAGE_BYTES;

use super::Arena;
use crate::free_space::{FreeSlot, UNIT_BYTES, units_of};
use crate::segment::Segment;

/// A part of a segment that belongs to its holder alone.
#[derive(Debug)]
pub(crate) struct Extent {
    arena: Arc<Arena>,
    segment: Arc<Segment>,
    slot: FreeSlot,
    units: u32,
    bytes: u64,
}

impl Extent {
    /// Units that were lent.
    pub(super) fn new(arena: Arc<Arena>, segment: Arc<Segment>, slot: FreeSlot, bytes: u64) -> Self {
        Self {
            arena,
            segment,
            slot,
            units: units_of(bytes),
            bytes,
        }
    }

    /// The segment it lies in.
    pub(crate) fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Offset of its first byte in the segment.
    pub(crate) fn offset(&self) -> usize {
        self.slot.unit as usize * UNIT_BYTES as usize
    }

    /// Bytes that were asked for.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Cuts it into pages, the last one shorter.
    pub(super) fn into_pages(self) -> Vec<Self> {
        let mut pages = Vec::with_capacity(self.bytes.div_ceil(PAGE_BYTES) as usize);
        let mut rest = self;
        while rest.bytes > PAGE_BYTES {
            let (page, after) = rest.split(PAGE_BYTES);
            pages.push(page);
            rest = after;
        }
        pages.push(rest);
        pages
    }

    /// Cuts it in two; `first_bytes` is a multiple of a unit and less than all.
    fn split(self, first_bytes: u64) -> (Self, Self) {
        let first_units = units_of(first_bytes);
        let second = Self {
            arena: Arc::clone(&self.arena),
            segment: Arc::clone(&self.segment),
            slot: FreeSlot {
                unit: self.slot.unit + first_units,
                ..self.slot
            },
            units: self.units - first_units,
            bytes: self.bytes - first_bytes,
        };
        let mut first = self;
        first.units = first_units;
        first.bytes = first_bytes;
        (first, second)
    }

    /// Gives back what lies past `bytes`.
    pub(crate) fn truncate(self, bytes: u64) -> Self {
        let kept_units = units_of(bytes);
        if kept_units >= self.units {
            return self;
        }
        self.split(u64::from(kept_units) * UNIT_BYTES).0
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        self.arena
            .state
            .lock()
            .take_back(self.slot, self.units, self.bytes);
        self.arena.space_freed.notify_waiters();
    }
}
