//! Which requests a read becomes: pure functions from ranges to ranges.
//!
//! [`split`] cuts a long range into parts that are fetched side by side; [`coalesce`] joins short neighbours
//! into one request. Neither does I/O; the properties are: parts tile the range exactly and in order, joined
//! ranges cover every wanted byte, and no request is longer than its limit unless one wanted range alone is.

use forebay_core::{ByteRange, PAGE_BYTES};

/// Cuts a range into parts of about `part_bytes`. Inner borders lie on page borders where parts are at least
/// a page long, so that a page is never filled by two requests.
///
/// Lazy, because a range may have hundreds of thousands of parts.
pub fn split(range: ByteRange, part_bytes: u64) -> impl Iterator<Item = ByteRange> + Send {
    let part_bytes = part_bytes.max(1);
    let align = if part_bytes >= PAGE_BYTES { PAGE_BYTES } else { 1 };
    let mut start = range.start();
    std::iter::from_fn(move || {
        let target = start.saturating_add(part_bytes);
        let end = if target >= range.end() {
            range.end()
        } else {
            target - target % align
        };
        let part = ByteRange::new(start, end).ok()?;
        start = end;
        Some(part)
    })
}

/// One request that serves several wanted ranges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// What to ask the lake for.
    pub range: ByteRange,
    /// Which of the wanted ranges lie in it, as positions in the input.
    pub members: Vec<usize>,
}

/// Joins wanted ranges whose gap is at most `gap_bytes_max` while the request stays within `joined_bytes_max`.
/// The result is sorted by offset; overlapping input is fine.
#[must_use]
pub fn coalesce(wanted: &[ByteRange], gap_bytes_max: u64, joined_bytes_max: u64) -> Vec<Joined> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by_key(|&position| wanted[position]);
    let mut joined: Vec<Joined> = Vec::new();
    for position in order {
        let next = wanted[position];
        match joined.last_mut() {
            Some(last)
                if next.start() <= last.range.end().saturating_add(gap_bytes_max)
                    && (last.range.cover(next).len() <= joined_bytes_max
                        || next.end() <= last.range.end()) =>
            {
                last.range = last.range.cover(next);
                last.members.push(position);
            }
            _ => joined.push(Joined {
                range: next,
                members: vec![position],
            }),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_range() -> impl Strategy<Value = ByteRange> {
        (0..1u64 << 34, 1..1u64 << 27)
            .prop_map(|(start, bytes)| ByteRange::new(start, start + bytes).unwrap())
    }

    proptest! {
        #[test]
        fn parts_tile_the_range_in_order(range in any_range(), part_bytes in 65_536..1u64 << 25) {
            let mut expected = range.start();
            for part in split(range, part_bytes) {
                prop_assert_eq!(part.start(), expected);
                prop_assert!(part.len() <= part_bytes);
                prop_assert!(part_bytes < PAGE_BYTES || part.end() == range.end() || part.end() % PAGE_BYTES == 0);
                expected = part.end();
            }
            prop_assert_eq!(expected, range.end());
        }

        #[test]
        fn every_wanted_range_lies_in_exactly_one_request(
            wanted in prop::collection::vec((0..100_000u64, 1..5_000u64), 0..60),
            gap in 0..2_000u64,
            limit in 1..20_000u64,
        ) {
            let wanted: Vec<ByteRange> =
                wanted.iter().map(|&(start, bytes)| ByteRange::new(start, start + bytes).unwrap()).collect();
            let joined = coalesce(&wanted, gap, limit);
            let mut seen = vec![0; wanted.len()];
            for request in &joined {
                let longest = request.members.iter().map(|&member| wanted[member].len()).max().unwrap();
                prop_assert!(request.range.len() <= limit.max(longest));
                for &member in &request.members {
                    seen[member] += 1;
                    prop_assert_eq!(request.range.intersect(wanted[member]), Some(wanted[member]));
                }
            }
            prop_assert!(seen.iter().all(|&count| count == 1));
        }

        #[test]
        fn no_request_begins_or_ends_with_bytes_nobody_wants(
            wanted in prop::collection::vec((0..100_000u64, 1..5_000u64), 1..60),
            gap in 0..2_000u64,
        ) {
            let wanted: Vec<ByteRange> =
                wanted.iter().map(|&(start, bytes)| ByteRange::new(start, start + bytes).unwrap()).collect();
            for request in coalesce(&wanted, gap, u64::MAX) {
                prop_assert!(request.members.iter().any(|&member| wanted[member].start() == request.range.start()));
                prop_assert!(request.members.iter().any(|&member| wanted[member].end() == request.range.end()));
            }
        }
    }

    #[test]
    fn neighbours_join_up_to_the_gap_and_not_beyond() {
        let range = |start, end| ByteRange::new(start, end).unwrap();
        let joined = coalesce(&[range(110, 120), range(0, 100), range(200, 210)], 10, 1_000);
        assert_eq!(
            joined,
            [
                Joined {
                    range: range(0, 120),
                    members: vec![1, 0]
                },
                Joined {
                    range: range(200, 210),
                    members: vec![2]
                }
            ]
        );
    }

    #[test]
    fn a_short_range_is_one_part() {
        let range = ByteRange::new(5, 6).unwrap();
        assert_eq!(split(range, 8 << 20).collect::<Vec<_>>(), [range]);
    }
}
