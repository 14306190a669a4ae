//! Byte ranges: half open, never empty.

use std::fmt;

use crate::{Error, Kind, PAGE_BYTES, PageIndex, Result};

/// The bytes `start..end` of an object; there is at least one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ByteRange {
    start: u64,
    end: u64,
}

impl ByteRange {
    /// The bytes `start..end`; an empty or backward range is an error.
    pub fn new(start: u64, end: u64) -> Result<Self> {
        if start < end {
            return Ok(Self { start, end });
        }
        Err(Error::new(
            Kind::InvalidInput,
            format!("byte range {start}..{end} is empty"),
        ))
    }

    /// All bytes of an object, or `None` if it has none.
    #[must_use]
    pub fn whole(object_bytes: u64) -> Option<Self> {
        (object_bytes > 0).then_some(Self {
            start: 0,
            end: object_bytes,
        })
    }

    /// First byte.
    #[must_use]
    pub const fn start(self) -> u64 {
        self.start
    }

    /// One past the last byte.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.end
    }

    /// Returns how many bytes; at least one.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a range is never empty")]
    pub const fn len(self) -> u64 {
        self.end - self.start
    }

    /// Returns what both have, if anything.
    #[must_use]
    pub fn intersect(self, other: Self) -> Option<Self> {
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        (start < end).then_some(Self { start, end })
    }

    /// The smallest range that holds both.
    #[must_use]
    pub fn cover(self, other: Self) -> Self {
        Self {
            start: self.start.min(other.start),
            end: self.end.max(other.end),
        }
    }

    /// The pages that hold at least one byte of the range.
    pub fn pages(self) -> impl DoubleEndedIterator<Item = PageIndex> + ExactSizeIterator {
        let first = self.start / PAGE_BYTES;
        let last = (self.end - 1) / PAGE_BYTES;
        // An object of 2^32 pages is 4 PiB, far past S3's 5 TiB; lakes refuse larger ones before this point.
        let to_index = |page: u64| u32::try_from(page).expect("objects have fewer than 2^32 pages");
        (to_index(first)..to_index(last) + 1).map(PageIndex)
    }
}

impl fmt::Debug for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

impl fmt::Display for ByteRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_ranges_do_not_exist() {
        assert!(ByteRange::new(5, 5).is_err());
        assert!(ByteRange::new(6, 5).is_err());
        assert_eq!(ByteRange::whole(0), None);
    }

    #[test]
    fn intersection_of_neighbours_is_nothing() {
        let left = ByteRange::new(0, 5).unwrap();
        assert_eq!(left.intersect(ByteRange::new(5, 9).unwrap()), None);
        assert_eq!(
            left.cover(ByteRange::new(5, 9).unwrap()),
            ByteRange::new(0, 9).unwrap()
        );
    }
}
