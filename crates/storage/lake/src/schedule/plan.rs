//! Parts of a long read: a pure function from a range to ranges.
//!
//! [`split`] cuts a range into parts that are fetched side by side. They tile it exactly and in order.

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
    }

    #[test]
    fn a_short_range_is_one_part() {
        let range = ByteRange::new(5, 6).unwrap();
        assert_eq!(split(range, 8 << 20).collect::<Vec<_>>(), [range]);
    }
}
