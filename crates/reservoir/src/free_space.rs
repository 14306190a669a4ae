//! Which parts of the segments are free: best fit over units of 4 KiB.
//!
//! One map for all segments, by place (to join neighbours) and by size (to find the smallest hole that fits).
//! Pure: it knows numbers only. Every operation is logarithmic in the number of holes.

use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a unit: no page starts or ends inside one.
pub(crate) const UNIT_BYTES: u64 = 4 << 10;

/// How many units hold this many bytes.
pub(crate) fn units_of(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).expect("a segment is smaller than 16 TiB")
}

/// A unit of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// The number of the segment.
    pub(crate) segment: u32,
    /// The unit inside it.
    pub(crate) unit: u32,
}

/// The holes of all segments.
#[derive(Debug, Default)]
pub(crate) struct FreeSpace {
    by_place: BTreeMap<Place, u32>,
    by_size: BTreeSet<(u32, Place)>,
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
    pub(crate) fn add(&mut self, place: Place, units: u32) {
        if units == 0 {
            return;
        }
        self.units += u64::from(units);
        let (mut start, mut length) = (place, units);
        let before = self
            .by_place
            .range(..place)
            .next_back()
            .map(|(place, units)| (*place, *units));
        if let Some((before, before_units)) = before
            && before.segment == place.segment
            && before.unit + before_units == place.unit
        {
            self.remove_hole(before, before_units);
            (start, length) = (before, before_units + length);
        }
        let after = Place {
            segment: place.segment,
            unit: place.unit + units,
        };
        if let Some(after_units) = self.by_place.get(&after).copied() {
            self.remove_hole(after, after_units);
            length += after_units;
        }
        self.by_place.insert(start, length);
        self.by_size.insert((length, start));
    }

    /// Takes units that lie together, from the smallest hole that has them.
    pub(crate) fn take(&mut self, units: u32) -> Option<Place> {
        let lowest = (units, Place { segment: 0, unit: 0 });
        let (hole_units, place) = *self.by_size.range(lowest..).next()?;
        self.remove_hole(place, hole_units);
        self.units -= u64::from(hole_units);
        self.add(
            Place {
                unit: place.unit + units,
                ..place
            },
            hole_units - units,
        );
        Some(place)
    }

    fn remove_hole(&mut self, place: Place, units: u32) {
        self.by_place.remove(&place);
        self.by_size.remove(&(units, place));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(segment: u32, unit: u32) -> Place {
        Place { segment, unit }
    }

    #[test]
    fn the_smallest_hole_that_fits_is_taken() {
        let mut free = FreeSpace::default();
        free.add(at(0, 0), 10);
        free.add(at(1, 0), 4);
        assert_eq!(free.take(3), Some(at(1, 0)));
        assert_eq!(free.take(5), Some(at(0, 0)));
        assert_eq!(free.take(6), None);
        assert_eq!(free.units(), 6);
    }

    #[test]
    fn holes_of_two_segments_are_never_joined() {
        let mut free = FreeSpace::default();
        free.add(at(0, 0), 4);
        free.add(at(1, 4), 4);
        free.add(at(1, 0), 4);
        assert_eq!(free.largest(), 8);
        assert_eq!(free.take(12), None);
    }

    proptest! {
        #[test]
        fn nothing_is_handed_out_twice_and_nothing_is_lost(
            steps in proptest::collection::vec((any::<bool>(), 1u32..40, any::<prop::sample::Index>()), 1..300)
        ) {
            let mut free = FreeSpace::default();
            free.add(at(0, 0), 100);
            free.add(at(1, 0), 100);
            let mut taken: Vec<(Place, u32)> = Vec::new();
            for (is_take, units, which) in steps {
                if is_take {
                    if let Some(place) = free.take(units) {
                        for (other, other_units) in &taken {
                            prop_assert!(other.segment != place.segment
                                || other.unit + other_units <= place.unit || place.unit + units <= other.unit);
                        }
                        prop_assert!(place.unit + units <= 100);
                        taken.push((place, units));
                    }
                } else if !taken.is_empty() {
                    let (place, units) = taken.swap_remove(which.index(taken.len()));
                    free.add(place, units);
                }
                let held: u32 = taken.iter().map(|(_, units)| units).sum();
                prop_assert_eq!(free.units() + u64::from(held), 200);
            }
            for (place, units) in taken {
                free.add(place, units);
            }
            prop_assert_eq!(free.largest(), 100);
        }
    }
}
