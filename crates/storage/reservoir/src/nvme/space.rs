//! The free units of the segment files: a pure allocator.
//!
//! Space is counted in units of 4 KiB and addressed as one line of units cut into segments; the first unit of
//! a segment is its header and never handed out, so no run crosses a segment border. Units below the frontier
//! were handed out at least once and are recycled first (best fit); the frontier moves only when they do not
//! suffice, so a tier that stays small stays small on disk. If no single run is large enough, a page is laid
//! over several: free space is then never too scattered to be used, which is what keeps mixed sizes cheap.
//!
//! A full or failing disk parks the runs it refused and stops the frontier; both come back when growth is
//! tried again.

use std::collections::{BTreeMap, BTreeSet};

/// Unit of allocation and alignment.
pub(crate) const UNIT_BYTES: u64 = 4096;

/// Units in a whole segment file (256 MiB), header included.
pub(crate) const SEGMENT_UNITS: u64 = 65536;

/// A page is laid over at most this many runs.
pub(crate) const RUNS_MAX: usize = 64;

/// Some units in a row, inside one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Run {
    /// Address of the first unit, counted over all segments.
    pub(crate) start: u64,
    /// Their number; at least one.
    pub(crate) units: u64,
}

impl Run {
    /// One past the last unit.
    pub(crate) const fn end(self) -> u64 {
        self.start + self.units
    }

    /// The segment it lies in.
    pub(crate) const fn segment(self) -> u64 {
        self.start / SEGMENT_UNITS
    }

    /// Offset of its first byte in the segment file.
    pub(crate) const fn offset_bytes(self) -> u64 {
        self.start % SEGMENT_UNITS * UNIT_BYTES
    }

    /// Returns whether it is a run that the allocator could have handed out below `capacity_units`.
    pub(crate) const fn is_valid(self, capacity_units: u64) -> bool {
        self.units > 0
            && self.units < SEGMENT_UNITS
            && !self.start.is_multiple_of(SEGMENT_UNITS)
            && self.start < capacity_units
            && self.end() <= capacity_units
            && (self.end() - 1) / SEGMENT_UNITS == self.segment()
    }
}

/// The free units.
#[derive(Debug)]
pub(crate) struct Space {
    capacity_units: u64,
    frontier: u64,
    by_start: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    free_units: u64,
    parked: Vec<Run>,
    growth_is_blocked: bool,
}

impl Space {
    /// All units below `capacity_units` except `taken` (valid, without overlap) are free.
    pub(crate) fn new(capacity_units: u64, mut taken: Vec<Run>) -> Self {
        let mut space = Self {
            capacity_units,
            frontier: 0,
            by_start: BTreeMap::new(),
            by_size: BTreeSet::new(),
            free_units: 0,
            parked: Vec::new(),
            growth_is_blocked: false,
        };
        taken.sort_unstable();
        for run in taken {
            space.free_up_to(run.start);
            space.frontier = run.end();
        }
        space
    }

    /// Units for page data in a space of this capacity, headers excluded.
    pub(crate) const fn data_units(capacity_units: u64) -> u64 {
        capacity_units - capacity_units.div_ceil(SEGMENT_UNITS)
    }

    /// Units handed out or parked.
    #[cfg(test)]
    pub(crate) fn taken_units(&self) -> u64 {
        Self::data_units(self.frontier) - self.free_units
    }

    /// Units that the disk would hold now if everything below the frontier were full.
    pub(crate) fn usable_units(&self) -> u64 {
        let parked: u64 = self.parked.iter().map(|run| run.units).sum();
        let end = if self.growth_is_blocked {
            self.frontier
        } else {
            self.capacity_units
        };
        Self::data_units(end) - parked
    }

    /// Units that could be handed out now.
    pub(crate) fn unused_units(&self) -> u64 {
        let beyond = if self.growth_is_blocked {
            0
        } else {
            Self::data_units(self.capacity_units) - Self::data_units(self.frontier)
        };
        self.free_units + beyond
    }

    /// Hands out `units` in as few runs as it can; `None` if there is no room without removing something.
    pub(crate) fn allocate(&mut self, units: u64) -> Option<Vec<Run>> {
        if units == 0 || units >= SEGMENT_UNITS {
            return None;
        }
        if let Some(run) = self.take_best_fit(units) {
            return Some(vec![run]);
        }
        if let Some(run) = self.grow(units) {
            return Some(vec![run]);
        }
        self.take_scattered(units)
    }

    /// Takes runs back.
    pub(crate) fn free(&mut self, run: Run) {
        let (mut start, mut units) = (run.start, run.units);
        self.free_units += run.units;
        if let Some((&before, &before_units)) = self.by_start.range(..start).next_back()
            && before + before_units == start
        {
            self.unlink(before, before_units);
            (start, units) = (before, before_units + units);
        }
        if let Some(&after_units) = self.by_start.get(&(start + units)) {
            self.unlink(start + units, after_units);
            units += after_units;
        }
        self.link(start, units);
    }

    /// The disk refused to hold this run: it is not handed out, and the frontier stays, until growth is
    /// retried.
    pub(crate) fn park(&mut self, run: Run) {
        self.parked.push(run);
        self.growth_is_blocked = true;
    }

    /// Returns whether something is parked or the frontier is stopped.
    pub(crate) fn is_shrunk(&self) -> bool {
        self.growth_is_blocked
    }

    /// Tries again what the disk refused.
    pub(crate) fn retry_growth(&mut self) {
        self.growth_is_blocked = false;
        for run in std::mem::take(&mut self.parked) {
            self.free(run);
        }
    }

    fn take_best_fit(&mut self, units: u64) -> Option<Run> {
        let &(size, start) = self.by_size.range((units, 0)..).next()?;
        Some(self.carve(start, size, units))
    }

    /// Takes `units` from the front of a free run.
    fn carve(&mut self, start: u64, size: u64, units: u64) -> Run {
        self.unlink(start, size);
        if size > units {
            self.link(start + units, size - units);
        }
        self.free_units -= units;
        Run { start, units }
    }

    /// Moves the frontier; what is left of a segment that cannot hold the run becomes free.
    fn grow(&mut self, units: u64) -> Option<Run> {
        if self.growth_is_blocked {
            return None;
        }
        let start = self.next_fit(units);
        if start + units > self.capacity_units {
            return None;
        }
        self.free_up_to(start);
        self.frontier = start + units;
        Some(Run { start, units })
    }

    /// Returns where a run of `units` could start at or after the frontier.
    fn next_fit(&self, units: u64) -> u64 {
        let position = self.frontier % SEGMENT_UNITS;
        if position == 0 {
            self.frontier + 1
        } else if position + units <= SEGMENT_UNITS {
            self.frontier
        } else {
            self.frontier.next_multiple_of(SEGMENT_UNITS) + 1
        }
    }

    /// Makes the units between the frontier and `end` free, headers left out.
    fn free_up_to(&mut self, end: u64) {
        while self.frontier < end {
            let position = self.frontier % SEGMENT_UNITS;
            if position == 0 {
                self.frontier += 1;
                continue;
            }
            let stop = self.frontier.next_multiple_of(SEGMENT_UNITS).min(end);
            let run = Run {
                start: self.frontier,
                units: stop - self.frontier,
            };
            self.frontier = stop;
            self.free(run);
        }
    }

    /// Lays `units` over the largest free runs, after the rest of the space was made available.
    fn take_scattered(&mut self, units: u64) -> Option<Vec<Run>> {
        if !self.growth_is_blocked {
            self.free_up_to(self.capacity_units);
        }
        let mut chosen = Vec::new();
        let mut missing = units;
        for &(size, start) in self.by_size.iter().rev().take(RUNS_MAX) {
            let taken = size.min(missing);
            chosen.push((start, size, taken));
            missing -= taken;
            if missing == 0 {
                break;
            }
        }
        if missing > 0 {
            return None;
        }
        Some(
            chosen
                .into_iter()
                .map(|(start, size, taken)| self.carve(start, size, taken))
                .collect(),
        )
    }

    fn link(&mut self, start: u64, units: u64) {
        self.by_start.insert(start, units);
        self.by_size.insert((units, start));
    }

    fn unlink(&mut self, start: u64, units: u64) {
        self.by_start.remove(&start);
        self.by_size.remove(&(units, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_run_touches_a_header_or_crosses_a_segment() {
        let capacity = 2 * SEGMENT_UNITS + 100;
        let mut space = Space::new(capacity, Vec::new());
        let mut taken = Vec::new();
        while let Some(runs) = space.allocate(250) {
            taken.extend(runs);
        }
        assert!(taken.iter().all(|run| run.is_valid(capacity)));
        assert!(Space::data_units(capacity) - space.taken_units() < 250);
    }

    #[test]
    fn random_churn_never_hands_out_a_unit_twice() {
        let capacity = SEGMENT_UNITS + 4000;
        let mut rng = fastrand::Rng::with_seed(7);
        let mut space = Space::new(capacity, Vec::new());
        let mut owned = vec![false; usize::try_from(capacity).unwrap()];
        let mut live: Vec<Vec<Run>> = Vec::new();
        for _ in 0..20_000 {
            match space.allocate(rng.u64(1..=256)) {
                Some(runs) => {
                    for unit in runs.iter().flat_map(|run| run.start..run.end()) {
                        assert!(!std::mem::replace(
                            &mut owned[usize::try_from(unit).unwrap()],
                            true
                        ));
                    }
                    live.push(runs);
                }
                None => {
                    for run in live.swap_remove(rng.usize(..live.len())) {
                        (run.start..run.end()).for_each(|unit| owned[usize::try_from(unit).unwrap()] = false);
                        space.free(run);
                    }
                }
            }
        }
        let expected = owned.iter().filter(|&&taken| taken).count() as u64;
        assert_eq!(space.taken_units(), expected);
        live.into_iter().flatten().for_each(|run| space.free(run));
        assert_eq!(space.taken_units(), 0);
    }

    #[test]
    fn space_rebuilt_from_what_is_taken_has_the_same_free_units() {
        let taken = vec![
            Run { start: 5, units: 3 },
            Run {
                start: SEGMENT_UNITS + 1,
                units: 7,
            },
        ];
        let mut space = Space::new(2 * SEGMENT_UNITS, taken.clone());
        assert_eq!(space.taken_units(), 10);
        for run in taken {
            space.free(run);
        }
        assert_eq!(space.taken_units(), 0);
    }

    #[test]
    fn a_refused_run_is_not_handed_out_until_growth_is_retried() {
        let mut space = Space::new(1001, Vec::new());
        let kept = space.allocate(100).unwrap()[0];
        let refused = space.allocate(100).unwrap()[0];
        space.park(refused);
        assert_eq!(space.usable_units(), 100);
        assert_eq!(space.allocate(1), None);
        space.free(kept);
        assert_eq!(space.allocate(100), Some(vec![kept]));
        space.retry_growth();
        assert_eq!(space.usable_units(), 1000);
        assert_eq!(space.allocate(100), Some(vec![refused]));
    }

    #[test]
    fn scattered_free_units_are_used() {
        let mut space = Space::new(65, Vec::new());
        let runs: Vec<Run> = (0..64).map(|_| space.allocate(1).unwrap()[0]).collect();
        runs.iter().step_by(2).for_each(|&run| space.free(run));
        assert_eq!(space.allocate(32).unwrap().len(), 32);
        assert_eq!(space.allocate(1), None);
    }
}
