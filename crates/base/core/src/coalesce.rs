//! Joins short reads that lie close together into few long ones: pure.
//!
//! Properties: every wanted range lies in exactly one run, no run begins or ends with bytes that nobody wants,
//! and none is longer than its limit unless one wanted range alone is.

use crate::ByteRange;

/// Limits of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoalesceLimits {
    /// Bytes between two wanted ranges that are read along with them.
    pub gap_bytes_max: u64,
    /// Bytes of a joined run.
    pub run_bytes_max: u64,
}

/// Wanted ranges of one object, read at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run<K> {
    /// The object that all of them are of.
    pub key: K,
    /// The bytes that are read.
    pub range: ByteRange,
}

/// Runs for some wanted ranges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coalesced<K> {
    /// The runs, by key and then by offset.
    pub runs: Vec<Run<K>>,
    /// The number of the run that each wanted range lies in.
    pub run_of: Vec<usize>,
}

/// Joins wanted ranges of the same key whose gap is small, while the run stays within its limit. Ranges may
/// come in any order and overlap.
///
/// ```
/// use forebay_core::{ByteRange, CoalesceLimits, coalesce};
///
/// let range = |start, end| ByteRange::new(start, end).unwrap();
/// let wanted = [("a", range(60, 70)), ("b", range(0, 10)), ("a", range(0, 50))];
/// let limits = CoalesceLimits { gap_bytes_max: 10, run_bytes_max: 1000 };
/// let found = coalesce(&wanted, limits);
/// assert_eq!(found.runs[0].range, range(0, 70));
/// assert_eq!(found.run_of, [0, 1, 0]);
/// ```
#[must_use]
pub fn coalesce<K: Ord + Copy>(wanted: &[(K, ByteRange)], limits: CoalesceLimits) -> Coalesced<K> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_unstable_by_key(|at| wanted[*at]);
    let mut runs: Vec<Run<K>> = Vec::with_capacity(order.len());
    let mut run_of = vec![0; wanted.len()];
    for at in order {
        let (key, next) = wanted[at];
        match runs.last_mut() {
            Some(run) if run.key == key && joins(run.range, next, limits) => {
                run.range = run.range.cover(next);
            }
            _ => runs.push(Run { key, range: next }),
        }
        run_of[at] = runs.len() - 1;
    }
    Coalesced { runs, run_of }
}

/// Tells whether a range that does not start earlier may join a run.
fn joins(run: ByteRange, next: ByteRange, limits: CoalesceLimits) -> bool {
    let is_near = next.start() <= run.end().saturating_add(limits.gap_bytes_max);
    is_near && (run.cover(next).len() <= limits.run_bytes_max || next.end() <= run.end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ranges(wanted: &[(u8, u64, u64)]) -> Vec<(u8, ByteRange)> {
        let range = |&(key, start, bytes)| (key, ByteRange::new(start, start + bytes).unwrap());
        wanted.iter().map(range).collect()
    }

    fn any_wanted() -> impl Strategy<Value = Vec<(u8, u64, u64)>> {
        prop::collection::vec((0..3_u8, 0..100_000_u64, 1..5_000_u64), 1..60)
    }

    proptest! {
        #[test]
        fn every_wanted_range_lies_in_a_run_of_its_key(wanted in any_wanted(), gap in 0..2_000_u64, limit in 1..20_000_u64) {
            let wanted = ranges(&wanted);
            let found = coalesce(&wanted, CoalesceLimits { gap_bytes_max: gap, run_bytes_max: limit });
            prop_assert_eq!(found.run_of.len(), wanted.len());
            for (number, run) in found.runs.iter().enumerate() {
                let mine: Vec<ByteRange> = wanted
                    .iter()
                    .zip(&found.run_of)
                    .filter(|(_, run)| **run == number)
                    .map(|((key, range), _)| {
                        assert_eq!(*key, run.key);
                        *range
                    })
                    .collect();
                prop_assert!(mine.iter().all(|range| run.range.intersect(*range) == Some(*range)));
                let longest = mine.iter().map(|range| range.len()).max().unwrap();
                prop_assert!(run.range.len() <= limit.max(longest));
            }
        }

        #[test]
        fn no_run_begins_or_ends_with_bytes_nobody_wants(wanted in any_wanted(), gap in 0..2_000_u64) {
            let wanted = ranges(&wanted);
            let found = coalesce(&wanted, CoalesceLimits { gap_bytes_max: gap, run_bytes_max: u64::MAX });
            for run in &found.runs {
                let mut mine = wanted.iter().filter(|(key, _)| *key == run.key).map(|(_, range)| range);
                prop_assert!(mine.clone().any(|range| range.start() == run.range.start()));
                prop_assert!(mine.any(|range| range.end() == run.range.end()));
            }
        }
    }

    #[test]
    fn neighbours_join_up_to_the_gap_and_not_beyond() {
        let wanted = ranges(&[(0, 110, 10), (0, 0, 100), (0, 200, 10), (1, 211, 5)]);
        let limits = CoalesceLimits {
            gap_bytes_max: 10,
            run_bytes_max: 1_000,
        };
        let found = coalesce(&wanted, limits);
        let spans: Vec<(u64, u64)> = found
            .runs
            .iter()
            .map(|run| (run.range.start(), run.range.end()))
            .collect();
        assert_eq!(spans, [(0, 120), (200, 210), (211, 216)]);
        assert_eq!(found.run_of, [0, 0, 1, 2]);
    }

    #[test]
    fn nothing_wanted_is_nothing_read() {
        let limits = CoalesceLimits {
            gap_bytes_max: 1,
            run_bytes_max: 1,
        };
        assert!(coalesce::<u8>(&[], limits).runs.is_empty());
    }
}
