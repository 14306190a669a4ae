//! The books of the arena: which segments there are, whose they are, what of them is used.
//!
//! Pure but for the segments themselves; everything happens under the arena's lock.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Weak};

use super::DomainClaim;
use super::fault_in::STEP_BYTES;
use crate::TrustDomain;
use crate::free_space::{FreeSlot, FreeSpace, UNIT_BYTES, units_of};
use crate::segment::{Segment, SegmentId};

#[derive(Debug)]
pub(super) struct ArenaState {
    pub(super) budget_bytes: u64,
    domains: BTreeMap<TrustDomain, Domain>,
    pub(super) segments: HashMap<SegmentId, OwnedSegment>,
    /// Bytes of all segments, also of the one that is ready or in preparation.
    pub(super) held_bytes: u64,
    /// Bytes that holders of extents asked for.
    pub(super) used_bytes: u64,
    /// Bytes that were ever lent: the clock by which domains are idle.
    lent_bytes: u64,
    pub(super) last_domain: TrustDomain,
    pub(super) next: Next,
    /// Segments that the thread has to fault in.
    pub(super) unprepared: Vec<Unprepared>,
    /// Segments that were given up while somebody held parts of them.
    abandoned: HashMap<SegmentId, (Weak<Segment>, TrustDomain)>,
    /// Segments that went, to be unmapped without the lock.
    pub(super) dropped: Vec<Arc<Segment>>,
    pub(super) stopped: bool,
}

/// Memory of one trust domain.
#[derive(Debug, Default)]
struct Domain {
    free: FreeSpace,
    held_bytes: u64,
    /// The time when it last took memory.
    lent_at: u64,
    /// The time when it last asked others for a share.
    asked_at: Option<u64>,
}

/// A segment that belongs to a domain.
#[derive(Debug)]
pub(super) struct OwnedSegment {
    pub(super) segment: Arc<Segment>,
    pub(super) domain: TrustDomain,
    used_units: u32,
    used_bytes: u64,
    /// Its first units, which have memory or are about to.
    ready_units: u32,
}

impl OwnedSegment {
    /// Returns what needs memory now that units up to `lent_end` are lent.
    fn stay_ahead(&mut self, lent_end: u32) -> Option<Unprepared> {
        let (all, step) = (units_of(self.segment.bytes() as u64), units_of(STEP_BYTES));
        let is_near = self.ready_units < all && self.ready_units < lent_end.saturating_add(step / 2);
        is_near.then(|| {
            let end = lent_end.saturating_add(step).min(all);
            Unprepared {
                segment: Arc::downgrade(&self.segment),
                units: std::mem::replace(&mut self.ready_units, end)..end,
            }
        })
    }
}

/// A part of a segment in use that may have no memory yet.
#[derive(Debug)]
pub(super) struct Unprepared {
    segment: Weak<Segment>,
    units: Range<u32>,
}

impl Unprepared {
    /// Gives it memory, if the segment is still there.
    pub(super) fn fault_in(&self) {
        let Some(segment) = self.segment.upgrade() else {
            return;
        };
        let byte = |unit: u32| ((u64::from(unit) * UNIT_BYTES) as usize).min(segment.bytes());
        let bytes = byte(self.units.start)..byte(self.units.end);
        let huge_bytes = segment.fault_in(bytes.clone());
        tracing::debug!(?bytes, huge_bytes, "memory segment in use faulted in");
    }
}

/// The use of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentUse {
    pub(crate) id: SegmentId,
    pub(crate) used_units: u32,
}

/// The segment after those in use.
#[derive(Debug)]
pub(super) enum Next {
    None,
    Wanted,
    Preparing,
    Ready(Segment),
}

impl ArenaState {
    pub(super) fn new(budget_bytes: u64) -> Self {
        Self {
            budget_bytes,
            domains: BTreeMap::new(),
            segments: HashMap::new(),
            held_bytes: 0,
            used_bytes: 0,
            lent_bytes: 0,
            last_domain: TrustDomain::DEFAULT,
            next: Next::None,
            unprepared: Vec::new(),
            abandoned: HashMap::new(),
            dropped: Vec::new(),
            stopped: false,
        }
    }

    /// The holes of a domain.
    pub(super) fn free(&mut self, domain: TrustDomain) -> &mut FreeSpace {
        &mut self.domains.entry(domain).or_default().free
    }

    /// Bytes that the last domain has free or can still add.
    pub(super) fn available_bytes(&self) -> u64 {
        let free_units = self
            .domains
            .get(&self.last_domain)
            .map_or(0, |domain| domain.free.units());
        let next_bytes = if let Next::Ready(segment) = &self.next {
            segment.bytes() as u64
        } else {
            0
        };
        free_units * UNIT_BYTES + next_bytes + self.budget_bytes.saturating_sub(self.held_bytes)
    }

    /// A segment becomes the domain's; its bytes are counted as held already. So many of its first bytes have
    /// memory.
    pub(super) fn add_segment(&mut self, segment: Arc<Segment>, domain: TrustDomain, ready_bytes: u64) {
        let (id, bytes) = (segment.id(), segment.bytes() as u64);
        let of_domain = self.domains.entry(domain).or_default();
        of_domain.held_bytes += bytes;
        of_domain
            .free
            .add(FreeSlot { segment: id, unit: 0 }, units_of(bytes));
        let held = OwnedSegment {
            segment,
            domain,
            used_units: 0,
            used_bytes: 0,
            ready_units: units_of(ready_bytes.min(bytes)),
        };
        self.segments.insert(id, held);
    }

    /// Takes a segment out with all its holes.
    pub(super) fn remove_segment(&mut self, id: SegmentId) -> Option<Arc<Segment>> {
        let held = self.segments.remove(&id)?;
        let bytes = held.segment.bytes() as u64;
        if let Some(domain) = self.domains.get_mut(&held.domain) {
            domain.free.remove_segment(id);
            domain.held_bytes -= bytes;
        }
        self.held_bytes -= bytes;
        self.used_bytes -= held.used_bytes;
        Some(held.segment)
    }

    /// Takes a segment out for good; it can be mapped as long as somebody holds a part of it.
    pub(super) fn abandon_segment(&mut self, id: SegmentId) -> Option<Arc<Segment>> {
        let domain = self.segments.get(&id)?.domain;
        let segment = self.remove_segment(id)?;
        self.abandoned
            .retain(|_, (segment, _)| segment.strong_count() > 0);
        self.abandoned.insert(id, (Arc::downgrade(&segment), domain));
        Some(segment)
    }

    /// A segment and who may map it.
    pub(super) fn segment(&self, id: SegmentId) -> Option<(Arc<Segment>, TrustDomain)> {
        if let Some(held) = self.segments.get(&id) {
            return Some((Arc::clone(&held.segment), held.domain));
        }
        let (segment, domain) = self.abandoned.get(&id)?;
        Some((segment.upgrade()?, *domain))
    }

    /// Drops a wholly free segment of another domain; the largest part of the budget comes free that way.
    pub(super) fn drop_free_segment(&mut self, for_domain: TrustDomain) -> Option<()> {
        let is_free = |held: &&OwnedSegment| held.used_units == 0 && held.domain != for_domain;
        let largest = self
            .segments
            .values()
            .filter(is_free)
            .max_by_key(|held| held.segment.bytes())?;
        let id = largest.segment.id();
        let segment = self.remove_segment(id)?;
        self.dropped.push(segment);
        Some(())
    }

    /// Counts units that were taken from the holes as used; the segment that they lie in.
    pub(super) fn lend(&mut self, slot: FreeSlot, bytes: u64) -> Arc<Segment> {
        let held = self
            .segments
            .get_mut(&slot.segment)
            .expect("a hole lies in a segment");
        held.used_units += units_of(bytes);
        held.used_bytes += bytes;
        self.unprepared
            .extend(held.stay_ahead(slot.unit + units_of(bytes)));
        self.used_bytes += bytes;
        self.lent_bytes += bytes;
        self.last_domain = held.domain;
        if let Some(domain) = self.domains.get_mut(&held.domain) {
            domain.lent_at = self.lent_bytes;
        }
        Arc::clone(&held.segment)
    }

    /// Units come back; those of a segment that was abandoned are gone.
    pub(super) fn take_back(&mut self, slot: FreeSlot, units: u32, bytes: u64) {
        let Some(held) = self.segments.get_mut(&slot.segment) else {
            return;
        };
        held.used_units -= units;
        held.used_bytes -= bytes;
        self.used_bytes -= bytes;
        let domain = held.domain;
        self.free(domain).add(slot, units);
    }

    /// Places that were taken but not lent become holes again.
    pub(super) fn give_back(&mut self, domain: TrustDomain, taken: Vec<(FreeSlot, u64)>) {
        for (slot, bytes) in taken {
            self.free(domain).add(slot, units_of(bytes)); // Nothing became free, so nobody is woken.
        }
    }

    /// The kernel has no more memory for us: work with what there is.
    pub(super) fn shrink_budget(&mut self, bytes: u64, error: &forebay_core::Error) {
        self.held_bytes -= bytes;
        self.budget_bytes = self.held_bytes;
        tracing::warn!(%error, budget_bytes = self.budget_bytes, "no memory for another segment, ram tier stays smaller");
    }

    /// Segments of other domains that may be emptied for this one, least used first.
    ///
    /// Domains share the budget equally while all of them need it. One that has taken no memory while the
    /// whole budget was lent once over is idle: what it has may go to others, who give it back the same way
    /// when it wakes.
    pub(super) fn segments_to_empty(
        &mut self,
        domain: TrustDomain,
        claim: DomainClaim,
        segment_bytes: u64,
    ) -> Vec<SegmentUse> {
        if claim == DomainClaim::Share && !self.may_ask_again(domain, segment_bytes) {
            return Vec::new();
        }
        let held_bytes = |domain| {
            self.domains
                .get(&domain)
                .map_or(0, |domain: &Domain| domain.held_bytes)
        };
        let others = self
            .domains
            .iter()
            .filter(|(other, of_other)| **other != domain && of_other.held_bytes > 0);
        let share_bytes = self.budget_bytes / (others.clone().count() as u64 + 1);
        let is_below_share = held_bytes(domain) + segment_bytes <= share_bytes.max(segment_bytes);
        let may_ask = |of_other: &Domain| {
            let is_idle = self.lent_bytes - of_other.lent_at > self.budget_bytes;
            claim == DomainClaim::Need || is_idle || is_below_share && of_other.held_bytes > share_bytes
        };
        let asked: Vec<TrustDomain> = others
            .filter(|(_, of_other)| may_ask(of_other))
            .map(|(other, _)| *other)
            .collect();
        let mut segments: Vec<_> = self
            .segments
            .values()
            .filter(|held| held.used_units > 0 && asked.contains(&held.domain))
            .map(|held| SegmentUse {
                id: held.segment.id(),
                used_units: held.used_units,
            })
            .collect();
        segments.sort_unstable_by_key(|segment| segment.used_units);
        segments
    }

    /// Looking for segments takes long, so a domain asks for its share again only after some memory was lent.
    fn may_ask_again(&mut self, domain: TrustDomain, segment_bytes: u64) -> bool {
        if self.domains.len() < 2 {
            return false;
        }
        let now = self.lent_bytes;
        let of_domain = self.domains.entry(domain).or_default();
        let may_ask = of_domain
            .asked_at
            .is_none_or(|asked_at| now - asked_at >= segment_bytes / 8);
        if may_ask {
            of_domain.asked_at = Some(now);
        }
        may_ask
    }
}
