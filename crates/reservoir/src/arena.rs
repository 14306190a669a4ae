//! The memory of the RAM tier: segments, made as they are needed, cut into extents.
//!
//! Life cycle: the arena starts with nothing. When no hole fits it takes a new segment, as long as the budget allows;
//! a thread keeps one more ready and faulted in, so that a fill seldom pays for the first touch. Segments stay until
//! the arena goes. An [`Extent`] belongs to its holder and returns its units when it is dropped.
//!
//! Limits: segments, the one in preparation included, never exceed the budget. When the kernel gives no more memory the
//! budget shrinks to what is there.

mod fault_in;

use std::sync::Arc;

use forebay_core::BLOCK_BYTES;
use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use crate::TrustDomain;
use crate::free_space::{FreeSpace, Place, UNIT_BYTES, units_of};
use crate::segment::{ClientAccess, Segment, SegmentId};

pub(crate) use fault_in::FaultIn;

/// Size of a segment where the budget is large enough for several.
const SEGMENT_BYTES_MAX: u64 = 64 << 20;
const SEGMENT_BYTES_MIN: u64 = 1 << 20;
/// A small budget is cut into about this many segments.
const SEGMENTS_MIN: u64 = 4;
/// What is left of the budget is made a segment if it has at least this many bytes.
const LAST_SEGMENT_BYTES_MIN: u64 = BLOCK_BYTES;

/// Segments under one budget.
#[derive(Debug)]
pub(crate) struct Arena {
    segment_bytes: u64,
    state: Mutex<State>,
    /// Wakes the thread that prepares the next segment.
    prepare: Condvar,
    /// Woken whenever an extent is given back.
    pub(crate) space_freed: Notify,
}

#[derive(Debug)]
struct State {
    budget_bytes: u64,
    free: FreeSpace,
    segments: Vec<Arc<Segment>>,
    /// Bytes of all segments, also of the one that is ready or in preparation.
    held_bytes: u64,
    /// Bytes that holders of extents asked for.
    used_bytes: u64,
    next: Next,
    stopped: bool,
}

/// The segment after those in use.
#[derive(Debug)]
enum Next {
    None,
    Wanted,
    Preparing,
    Ready(Segment),
}

/// A part of a segment that belongs to its holder alone.
#[derive(Debug)]
pub(crate) struct Extent {
    arena: Arc<Arena>,
    segment: Arc<Segment>,
    place: Place,
    units: u32,
    bytes: u64,
}

impl Arena {
    /// An arena without memory.
    pub(crate) fn new(budget_bytes: u64) -> Self {
        let share = (budget_bytes / SEGMENTS_MIN).max(1);
        let power_of_two_below = 1 << share.ilog2();
        let state = State {
            budget_bytes,
            free: FreeSpace::default(),
            segments: Vec::new(),
            held_bytes: 0,
            used_bytes: 0,
            next: Next::None,
            stopped: false,
        };
        Self {
            segment_bytes: power_of_two_below.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX),
            state: Mutex::new(state),
            prepare: Condvar::new(),
            space_freed: Notify::new(),
        }
    }

    /// The largest run that can lie together.
    pub(crate) fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    /// Bytes of all segments, and bytes of them that are in use.
    pub(crate) fn held_and_used_bytes(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.held_bytes, state.used_bytes)
    }

    /// Bytes that are free or can still be added.
    pub(crate) fn available_bytes(&self) -> u64 {
        let state = self.state.lock();
        let next_bytes = if let Next::Ready(segment) = &state.next {
            segment.bytes() as u64
        } else {
            0
        };
        state.free.units() * UNIT_BYTES + next_bytes + state.budget_bytes.saturating_sub(state.held_bytes)
    }

    /// A segment and who may map it.
    pub(crate) fn segment(&self, id: SegmentId) -> Option<(Arc<Segment>, TrustDomain)> {
        let state = self.state.lock();
        let segment = state.segments.iter().find(|segment| segment.id() == id)?;
        Some((Arc::clone(segment), TrustDomain::DEFAULT))
    }

    /// Whether another segment is about to be there.
    pub(crate) fn is_preparing(&self) -> bool {
        matches!(self.state.lock().next, Next::Wanted | Next::Preparing)
    }

    /// Memory for `bytes`: one extent, or, when no hole is large enough and no segment can be added, several that
    /// each hold whole blocks. `None` when there is not that much.
    pub(crate) fn allocate(self: &Arc<Self>, bytes: u64) -> Option<Vec<Extent>> {
        let mut state = self.state.lock();
        if let Some(extent) = self.take_or_grow(&mut state, bytes) {
            return Some(vec![extent]);
        }
        self.take_scattered(&mut state, bytes)
    }

    /// Memory for parts that lie together, one extent each; every part but the last is a multiple of a unit.
    pub(crate) fn allocate_run(self: &Arc<Self>, parts: &[u64]) -> Option<Vec<Extent>> {
        let total: u64 = parts.iter().sum();
        let mut state = self.state.lock();
        let mut rest = self.take_or_grow(&mut state, total)?;
        drop(state);
        let mut extents = Vec::with_capacity(parts.len());
        for part in &parts[..parts.len().saturating_sub(1)] {
            let (first, second) = rest.split(*part);
            extents.push(first);
            rest = second;
        }
        extents.push(rest);
        Some(extents)
    }

    fn take_or_grow(self: &Arc<Self>, state: &mut State, bytes: u64) -> Option<Extent> {
        loop {
            if let Some(extent) = self.take(state, bytes) {
                self.look_ahead(state);
                return Some(extent);
            }
            if bytes > self.segment_bytes || !self.grow(state) {
                return None;
            }
        }
    }

    fn take(self: &Arc<Self>, state: &mut State, bytes: u64) -> Option<Extent> {
        let place = state.free.take(units_of(bytes))?;
        Some(self.extent(state, place, bytes))
    }

    /// Hands out units that were taken from the free ones.
    fn extent(self: &Arc<Self>, state: &mut State, place: Place, bytes: u64) -> Extent {
        state.used_bytes += bytes;
        let segment = Arc::clone(&state.segments[place.segment as usize]);
        Extent {
            arena: Arc::clone(self),
            segment,
            place,
            units: units_of(bytes),
            bytes,
        }
    }

    /// Takes whole blocks from the largest holes; all that is needed, or nothing.
    fn take_scattered(self: &Arc<Self>, state: &mut State, bytes: u64) -> Option<Vec<Extent>> {
        let mut parts = Vec::new();
        let mut missing = bytes;
        while missing > 0 {
            let hole_bytes = u64::from(state.free.largest()) * UNIT_BYTES;
            let part = if hole_bytes >= missing {
                missing
            } else {
                hole_bytes - hole_bytes % BLOCK_BYTES
            };
            let place = if part > 0 {
                state.free.take(units_of(part))
            } else {
                None
            };
            let Some(place) = place else {
                for (place, part) in parts {
                    state.free.add(place, units_of(part)); // Nothing became free, so nobody is woken.
                }
                return None;
            };
            parts.push((place, part));
            missing -= part;
        }
        Some(
            parts
                .into_iter()
                .map(|(place, part)| self.extent(state, place, part))
                .collect(),
        )
    }

    /// Adds a segment if the budget allows: the one that is ready, or a fresh one.
    fn grow(&self, state: &mut State) -> bool {
        let segment = match std::mem::replace(&mut state.next, Next::None) {
            Next::Ready(segment) => segment,
            other => {
                state.next = other;
                let Some(bytes) = self.reserve_segment(state) else {
                    return false;
                };
                match Segment::create(
                    usize::try_from(bytes).expect("a segment fits the address space"),
                    ClientAccess::Read,
                ) {
                    Ok(segment) => segment,
                    Err(error) => {
                        shrink_budget(state, bytes, &error);
                        return false;
                    }
                }
            }
        };
        let number = u32::try_from(state.segments.len()).expect("far fewer than 2^32 segments");
        state.free.add(
            Place {
                segment: number,
                unit: 0,
            },
            units_of(segment.bytes() as u64),
        );
        state.segments.push(Arc::new(segment));
        true
    }

    /// Counts one more segment as held, if the budget has room for it.
    fn reserve_segment(&self, state: &mut State) -> Option<u64> {
        let left = state.budget_bytes.saturating_sub(state.held_bytes);
        let bytes = left.min(self.segment_bytes) / UNIT_BYTES * UNIT_BYTES;
        if bytes < LAST_SEGMENT_BYTES_MIN {
            return None;
        }
        state.held_bytes += bytes;
        Some(bytes)
    }

    /// Has the next segment prepared once less than one segment is free.
    fn look_ahead(&self, state: &mut State) {
        let free_bytes = state.free.units() * UNIT_BYTES;
        let has_room = state.held_bytes + LAST_SEGMENT_BYTES_MIN <= state.budget_bytes;
        if free_bytes < self.segment_bytes && has_room && matches!(state.next, Next::None) {
            state.next = Next::Wanted;
            self.prepare.notify_one();
        }
    }
}

/// The kernel has no more memory for us: work with what there is.
fn shrink_budget(state: &mut State, bytes: u64, error: &forebay_core::Error) {
    state.held_bytes -= bytes;
    state.budget_bytes = state.held_bytes;
    tracing::warn!(%error, budget_bytes = state.budget_bytes, "no memory for another segment, ram tier stays smaller");
}

impl Extent {
    /// The segment it lies in.
    pub(crate) fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Offset of its first byte in the segment.
    pub(crate) fn offset(&self) -> usize {
        self.place.unit as usize * UNIT_BYTES as usize
    }

    /// Bytes that were asked for.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Cuts it in two; `first_bytes` is a multiple of a unit and less than all.
    fn split(self, first_bytes: u64) -> (Self, Self) {
        let first_units = units_of(first_bytes);
        let second = Self {
            arena: Arc::clone(&self.arena),
            segment: Arc::clone(&self.segment),
            place: Place {
                unit: self.place.unit + first_units,
                ..self.place
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
        let mut state = self.arena.state.lock();
        state.free.add(self.place, self.units);
        state.used_bytes -= self.bytes;
        drop(state);
        self.arena.space_freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
