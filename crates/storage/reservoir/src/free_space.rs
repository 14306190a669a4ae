//! The free parts of the segments: best fit over units of 4 KiB.
//!
//! One map for all segments of a trust domain, by slot (to join neighbours) and by size (to find the
//! smallest hole that fits). Pure: it knows numbers only. Every operation is logarithmic in the number of
//! holes.

use std::collections::{BTreeMap, BTreeSet};

use crate::segment::SegmentId;

/// Bytes of a unit: no page starts or ends inside one.
pub(crate) const UNIT_BYTES: u64 = 4 << 10;

/// Returns how many units hold this many bytes.
pub(crate) fn units_of(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).expect("a segment is smaller than 16 TiB")
}

/// A unit of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FreeSlot {
    /// The segment.
    pub(crate) segment: SegmentId,
    /// The unit inside it.
    pub(crate) unit: u32,
}

/// The holes of all segments.
#[derive(Debug, Default)]
pub(crate) struct FreeSpace {
    by_slot: BTreeMap<FreeSlot, u32>,
    by_size: BTreeSet<(u32, FreeSlot)>,
    units: u64,
}

impl FreeSpace {
    /// Free units in all.
    pub(crate) fn units(&self) -> u64 {
        self.units
    }

    /// Units of the largest hole.
    pub(crate) fn largest(&self) -> u32 {
        self.by_size.last().map_or(0, |(units, _)| *units)
    }

    /// Gives units back (or adds a fresh segment); joins them with free neighbours.
    pub(crate) fn add(&mut self, slot: FreeSlot, units: u32) {
        if units == 0 {
            return;
        }
        self.units += u64::from(units);
        let (mut start, mut length) = (slot, units);
        let before = self
            .by_slot
            .range(..slot)
            .next_back()
            .map(|(slot, units)| (*slot, *units));
        if let Some((before, before_units)) = before
            && before.segment == slot.segment
            && before.unit + before_units == slot.unit
        {
            self.remove_hole(before, before_units);
            (start, length) = (before, before_units + length);
        }
        let after = FreeSlot {
            segment: slot.segment,
            unit: slot.unit + units,
        };
        if let Some(after_units) = self.by_slot.get(&after).copied() {
            self.remove_hole(after, after_units);
            length += after_units;
        }
        self.by_slot.insert(start, length);
        self.by_size.insert((length, start));
    }

    /// Units of the largest hole that can be taken aligned, in multiples of the alignment.
    pub(crate) fn largest_aligned(&self, align: u32) -> u32 {
        let usable = |hole: &(u32, FreeSlot)| {
            let end = hole.1.unit + hole.0;
            end.saturating_sub(hole.1.unit.next_multiple_of(align)) / align * align
        };
        // A hole has less to give than a smaller one only if it is less than two alignments larger.
        let largest = self.largest();
        let candidates = self.by_size.iter().rev();
        candidates
            .take_while(|hole| hole.0 >= align && hole.0 + 2 * align > largest)
            .map(usable)
            .max()
            .unwrap_or(0)
    }

    /// Takes units that lie together and start at a multiple of `align`, from the smallest hole that has
    /// them.
    pub(crate) fn take(&mut self, units: u32, align: u32) -> Option<FreeSlot> {
        let first = FreeSlot {
            segment: SegmentId(0),
            unit: 0,
        };
        let fits = |hole: &&(u32, FreeSlot)| {
            let start = hole.1.unit.next_multiple_of(align);
            start + units <= hole.1.unit + hole.0
        };
        let (hole_units, hole) = *self.by_size.range((units, first)..).find(fits)?;
        let unit = hole.unit.next_multiple_of(align);
        let end = hole.unit + hole_units;
        let slot = |unit| FreeSlot { unit, ..hole };
        self.remove_hole(hole, hole_units);
        self.units -= u64::from(hole_units);
        self.add(hole, unit - hole.unit);
        self.add(slot(unit + units), end - unit - units);
        Some(slot(unit))
    }

    /// Forgets all holes of a segment.
    pub(crate) fn remove_segment(&mut self, segment: SegmentId) {
        let whole = FreeSlot { segment, unit: 0 }..=FreeSlot {
            segment,
            unit: u32::MAX,
        };
        let holes: Vec<_> = self
            .by_slot
            .range(whole)
            .map(|(slot, units)| (*slot, *units))
            .collect();
        for (slot, units) in holes {
            self.remove_hole(slot, units);
            self.units -= u64::from(units);
        }
    }

    fn remove_hole(&mut self, slot: FreeSlot, units: u32) {
        self.by_slot.remove(&slot);
        self.by_size.remove(&(units, slot));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(segment: u64, unit: u32) -> FreeSlot {
        FreeSlot {
            segment: SegmentId(segment),
            unit,
        }
    }

    #[test]
    fn the_smallest_hole_that_fits_is_taken() {
        let mut free = FreeSpace::default();
        free.add(at(0, 0), 10);
        free.add(at(1, 0), 4);
        assert_eq!(free.take(3, 1), Some(at(1, 0)));
        assert_eq!(free.take(5, 1), Some(at(0, 0)));
        assert_eq!(free.take(6, 1), None);
        assert_eq!(free.units(), 6);
    }

    #[test]
    fn holes_of_two_segments_are_never_joined() {
        let mut free = FreeSpace::default();
        free.add(at(0, 0), 4);
        free.add(at(1, 4), 4);
        free.add(at(1, 0), 4);
        assert_eq!(free.largest(), 8);
        assert_eq!(free.take(12, 1), None);
    }

    #[test]
    fn holes_of_a_removed_segment_are_gone() {
        let mut free = FreeSpace::default();
        free.add(at(1, 0), 4);
        free.add(at(2, 0), 3);
        free.add(at(2, 5), 3);
        free.add(at(3, 0), 4);
        free.remove_segment(SegmentId(2));
        assert_eq!((free.units(), free.largest()), (8, 4));
        assert_eq!(free.take(3, 1), Some(at(1, 0)));
    }

    #[test]
    fn an_aligned_place_leaves_holes_on_both_sides() {
        let mut free = FreeSpace::default();
        free.add(at(1, 3), 20);
        free.add(at(2, 1), 7);
        assert_eq!(free.largest_aligned(8), 8);
        assert_eq!(free.take(7, 8), Some(at(1, 8)));
        assert_eq!(free.take(5, 1), Some(at(1, 3)));
        assert_eq!(free.take(8, 1), Some(at(1, 15)));
        assert_eq!(free.units(), 7);
    }

    proptest! {
        #[test]
        fn nothing_is_handed_out_twice_and_nothing_is_lost(
            steps in proptest::collection::vec((any::<bool>(), 1u32..40, 0u32..4, any::<prop::sample::Index>()), 1..300)
        ) {
            let mut free = FreeSpace::default();
            free.add(at(0, 0), 100);
            free.add(at(1, 0), 100);
            let mut taken: Vec<(FreeSlot, u32)> = Vec::new();
            for (is_take, units, align, which) in steps {
                if is_take {
                    if let Some(slot) = free.take(units, 1 << align) {
                        prop_assert!(slot.unit.is_multiple_of(1 << align));
                        for (other, other_units) in &taken {
                            prop_assert!(other.segment != slot.segment
                                || other.unit + other_units <= slot.unit || slot.unit + units <= other.unit);
                        }
                        prop_assert!(slot.unit + units <= 100);
                        taken.push((slot, units));
                    }
                } else if !taken.is_empty() {
                    let (slot, units) = taken.swap_remove(which.index(taken.len()));
                    free.add(slot, units);
                }
                let held: u32 = taken.iter().map(|(_, units)| units).sum();
                prop_assert_eq!(free.units() + u64::from(held), 200);
            }
            for (slot, units) in taken {
                free.add(slot, units);
            }
            prop_assert_eq!(free.largest(), 100);
        }
    }
}
