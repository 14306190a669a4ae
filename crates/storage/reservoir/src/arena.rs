//! The memory of the RAM tier: segments, made as they are needed, cut into extents.
//!
//! Life cycle: the arena starts with nothing. When no hole fits it takes a new segment, as long as the budget
//! allows; a thread keeps the next few megabytes faulted in, so that a fill seldom pays for the first touch.
//! An [`Extent`] belongs to its holder and returns its units when it is dropped. A segment belongs to the
//! trust domain that took it first, for life: one that is wholly free is dropped when another domain needs
//! the budget. One that a client holds too long is abandoned: no extent of it is ever given out again, and it
//! does not count any more.
//!
//! Limits: segments, the one in preparation included, never exceed the budget. When the kernel gives no more
//! memory the budget shrinks to what is there.

mod arena_state;
mod extent;
mod fault_in;

use std::sync::Arc;

use forebay_core::{BLOCK_BYTES, PAGE_BYTES};
use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use crate::TrustDomain;
use crate::free_space::{FreeSlot, UNIT_BYTES, units_of};
use crate::segment::{ClientAccess, HUGE_PAGE_BYTES, Segment, SegmentId};

pub(crate) use arena_state::SegmentUse;
use arena_state::{ArenaState, Next};
pub(crate) use extent::Extent;
pub(crate) use fault_in::FaultIn;
use fault_in::STEP_BYTES;

/// Size of a segment where the budget is large enough for several.
const SEGMENT_BYTES_MAX: u64 = 64 << 20;
const SEGMENT_BYTES_MIN: u64 = PAGE_BYTES;
/// A small budget is cut into about this many segments.
const SEGMENTS_MIN: u64 = 4;
/// The rest of the budget becomes a segment if it has at least this many bytes.
const LAST_SEGMENT_BYTES_MIN: u64 = BLOCK_BYTES;
/// A run that finds no whole segments is made of this many pieces at most: a client maps each by itself.
const RUN_PIECES_MAX: usize = 32;
/// Units of a huge page.
const HUGE_PAGE_UNITS: u32 = (HUGE_PAGE_BYTES as u64 / UNIT_BYTES) as u32;

/// Segments under one budget.
#[derive(Debug)]
pub(crate) struct Arena {
    segment_bytes: u64,
    state: Mutex<ArenaState>,
    /// Wakes the thread that prepares the next segment.
    prepare: Condvar,
    /// Woken whenever an extent is given back.
    pub(crate) space_freed: Notify,
}

/// The layout that a run may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunShape {
    /// Together, or in whole segments if it is larger than one.
    Whole,
    /// In a few pieces of whole huge pages.
    Pieces,
}

impl Arena {
    /// An arena without memory.
    pub(crate) fn new(budget_bytes: u64) -> Self {
        let share = (budget_bytes / SEGMENTS_MIN).max(1);
        let power_of_two_below = 1 << share.ilog2();
        Self {
            segment_bytes: power_of_two_below.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX),
            state: Mutex::new(ArenaState::new(budget_bytes)),
            prepare: Condvar::new(),
            space_freed: Notify::new(),
        }
    }

    /// Bytes of all segments, and bytes of them that are in use.
    pub(crate) fn held_and_used_bytes(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.held_bytes, state.used_bytes)
    }

    /// Bytes that the domain that took memory last has free or can still add.
    pub(crate) fn available_bytes(&self) -> u64 {
        self.state.lock().available_bytes()
    }

    /// The domain that took memory last.
    pub(crate) fn busiest_domain(&self) -> TrustDomain {
        self.state.lock().last_domain
    }

    /// A segment and who may map it.
    pub(crate) fn segment(&self, id: SegmentId) -> Option<(Arc<Segment>, TrustDomain)> {
        self.state.lock().segment(id)
    }

    /// Returns whether another segment is about to be there.
    pub(crate) fn is_preparing(&self) -> bool {
        matches!(self.state.lock().next, Next::Wanted | Next::Preparing)
    }

    /// Memory for `bytes`: one extent, or, when no hole is large enough and no segment can be added, several
    /// that each hold whole blocks. `None` when there is not that much.
    pub(crate) fn allocate(self: &Arc<Self>, domain: TrustDomain, bytes: u64) -> Option<Vec<Extent>> {
        self.take(domain, |state| {
            let slot = self.take_or_grow(state, domain, units_of(bytes), 1);
            match slot {
                Some(slot) => Some(vec![(slot, bytes)]),
                None => take_scattered(state, domain, bytes),
            }
        })
    }

    /// Memory for the pages of an object, one extent each, in one piece or a few; every page but the last is
    /// a full one.
    pub(crate) fn allocate_run(
        self: &Arc<Self>,
        domain: TrustDomain,
        bytes: u64,
        shape: RunShape,
    ) -> Option<Vec<Extent>> {
        let pieces = self.take(domain, |state| match shape {
            RunShape::Whole => self.take_whole(state, domain, bytes),
            RunShape::Pieces => take_pieces(state, domain, bytes),
        })?;
        Some(pieces.into_iter().flat_map(Extent::into_pages).collect())
    }

    /// Takes slots and makes extents of them; what was dropped for them goes when the lock is free.
    fn take(
        self: &Arc<Self>,
        domain: TrustDomain,
        slots: impl FnOnce(&mut ArenaState) -> Option<Vec<(FreeSlot, u64)>>,
    ) -> Option<Vec<Extent>> {
        let mut state = self.state.lock();
        let slots = slots(&mut state);
        if slots.is_some() {
            self.look_ahead(&mut state, domain);
        }
        let extents = slots.map(|slots| {
            let extent = |(slot, bytes)| Extent::new(Arc::clone(self), state.lend(slot, bytes), slot, bytes);
            slots.into_iter().map(extent).collect()
        });
        let dropped = std::mem::take(&mut state.dropped);
        if !state.unprepared.is_empty() {
            self.prepare.notify_one();
        }
        drop(state);
        drop(dropped); // Unmapping takes a while.
        extents
    }

    fn take_or_grow(
        &self,
        state: &mut ArenaState,
        domain: TrustDomain,
        units: u32,
        align: u32,
    ) -> Option<FreeSlot> {
        loop {
            if let Some(slot) = state.free(domain).take(units, align) {
                return Some(slot);
            }
            if u64::from(units) * UNIT_BYTES > self.segment_bytes || !self.grow(state, domain) {
                return None;
            }
        }
    }

    /// One slot, or whole segments; all of it, or nothing.
    fn take_whole(
        &self,
        state: &mut ArenaState,
        domain: TrustDomain,
        bytes: u64,
    ) -> Option<Vec<(FreeSlot, u64)>> {
        let mut taken = Vec::new();
        let mut missing = bytes;
        while missing > 0 {
            let piece = missing.min(self.segment_bytes);
            let Some(slot) = self.take_or_grow(state, domain, units_of(piece), alignment(piece)) else {
                state.give_back(domain, taken);
                return None;
            };
            taken.push((slot, piece));
            missing -= piece;
        }
        Some(taken)
    }

    /// Adds a segment to the domain if the budget allows: the one that is ready, or a fresh one.
    fn grow(&self, state: &mut ArenaState, domain: TrustDomain) -> bool {
        let (segment, ready_bytes) = match std::mem::replace(&mut state.next, Next::None) {
            Next::Ready(segment) => (segment, STEP_BYTES),
            other => {
                state.next = other;
                let Some(bytes) = self.reserve_segment(state, domain) else {
                    return false;
                };
                match create(bytes) {
                    Ok(segment) => (segment, 0),
                    Err(error) => {
                        state.shrink_budget(bytes, &error);
                        return false;
                    }
                }
            }
        };
        state.add_segment(Arc::new(segment), domain, ready_bytes);
        true
    }

    /// Counts one more segment as held, if the budget has room for it or a free segment of another domain can
    /// go.
    fn reserve_segment(&self, state: &mut ArenaState, domain: TrustDomain) -> Option<u64> {
        self.reserve_within_budget(state).or_else(|| {
            state.drop_free_segment(domain)?;
            self.reserve_within_budget(state)
        })
    }

    fn reserve_within_budget(&self, state: &mut ArenaState) -> Option<u64> {
        let left = state.budget_bytes.saturating_sub(state.held_bytes);
        let bytes = left.min(self.segment_bytes) / UNIT_BYTES * UNIT_BYTES;
        if bytes < LAST_SEGMENT_BYTES_MIN {
            return None;
        }
        state.held_bytes += bytes;
        Some(bytes)
    }

    /// Has the next segment prepared once little is free.
    fn look_ahead(&self, state: &mut ArenaState, domain: TrustDomain) {
        let free_bytes = state.free(domain).units() * UNIT_BYTES;
        let has_room = state.held_bytes + LAST_SEGMENT_BYTES_MIN <= state.budget_bytes;
        if free_bytes < self.segment_bytes.min(STEP_BYTES) && has_room && matches!(state.next, Next::None) {
            state.next = Next::Wanted;
            self.prepare.notify_one();
        }
    }

    /// Returns what is used of each segment that the domain may ask others to empty for it, least used first.
    pub(crate) fn segments_to_empty(&self, domain: TrustDomain, claim: DomainClaim) -> Vec<SegmentUse> {
        self.state
            .lock()
            .segments_to_empty(domain, claim, self.segment_bytes)
    }

    /// Takes segments out for good: nothing of them is given out again, and they do not count any more. How
    /// many, and their bytes.
    pub(crate) fn abandon(&self, ids: impl Iterator<Item = SegmentId>) -> (u64, u64) {
        let mut state = self.state.lock();
        let gone: Vec<_> = ids.filter_map(|id| state.abandon_segment(id)).collect();
        drop(state);
        self.space_freed.notify_waiters();
        let bytes = gone.iter().map(|segment| segment.bytes() as u64).sum();
        (gone.len() as u64, bytes)
    }
}

/// The memory that a domain in need may ask of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DomainClaim {
    /// Memory beyond the others' share, or not needed by them for long.
    Share,
    /// Anything: it has no memory of its own to free.
    Need,
}

fn create(bytes: u64) -> forebay_core::Result<Segment> {
    let bytes = usize::try_from(bytes).expect("a segment fits the address space");
    Segment::create(bytes, ClientAccess::Read)
}

/// Returns what has a huge page's size starts at one, so that a client's mapping can use it.
fn alignment(bytes: u64) -> u32 {
    if bytes >= HUGE_PAGE_BYTES as u64 {
        HUGE_PAGE_UNITS
    } else {
        1
    }
}

/// Takes whole blocks from the largest holes; all that is needed, or nothing.
fn take_scattered(state: &mut ArenaState, domain: TrustDomain, bytes: u64) -> Option<Vec<(FreeSlot, u64)>> {
    let mut taken = Vec::new();
    let mut missing = bytes;
    while missing > 0 {
        let free = state.free(domain);
        let hole_bytes = u64::from(free.largest()) * UNIT_BYTES;
        let part = if hole_bytes >= missing {
            missing
        } else {
            hole_bytes - hole_bytes % BLOCK_BYTES
        };
        let slot = if part > 0 {
            free.take(units_of(part), 1)
        } else {
            None
        };
        let Some(slot) = slot else {
            state.give_back(domain, taken);
            return None;
        };
        taken.push((slot, part));
        missing -= part;
    }
    Some(taken)
}

/// Takes whole huge pages from the largest holes, a few pieces at most; all that is needed, or nothing.
fn take_pieces(state: &mut ArenaState, domain: TrustDomain, bytes: u64) -> Option<Vec<(FreeSlot, u64)>> {
    let mut taken: Vec<(FreeSlot, u64)> = Vec::new();
    let mut missing = bytes;
    while missing > 0 {
        let free = state.free(domain);
        let hole_bytes = u64::from(free.largest_aligned(HUGE_PAGE_UNITS)) * UNIT_BYTES;
        let slot = if missing <= hole_bytes || missing < HUGE_PAGE_BYTES as u64 {
            free.take(units_of(missing), alignment(missing))
                .map(|slot| (slot, missing))
        } else if hole_bytes > 0 && taken.len() < RUN_PIECES_MAX {
            free.take(units_of(hole_bytes), HUGE_PAGE_UNITS)
                .map(|slot| (slot, hole_bytes))
        } else {
            None
        };
        let Some((slot, piece)) = slot else {
            state.give_back(domain, taken);
            return None;
        };
        taken.push((slot, piece));
        missing -= piece;
    }
    Some(taken)
}

#[cfg(test)]
mod tests;
