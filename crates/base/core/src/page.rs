//! Pages and blocks: how an object is cut.
//!
//! A page (1 MiB, the last one shorter) is the unit of placement and eviction. A block (64 KiB of a page) is
//! the unit of fill and of checksums; a [`BlockMask`] says which blocks of a page are there.

use std::fmt;

use crate::ByteRange;

/// Bytes of a full page.
pub const PAGE_BYTES: u64 = 1 << 20;

/// Bytes of a full block.
pub const BLOCK_BYTES: u64 = 64 << 10;

/// Blocks in a full page.
pub const BLOCKS_PER_PAGE: u32 = (PAGE_BYTES / BLOCK_BYTES) as u32;

/// The number of a page inside its object, from 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageIndex(pub u32);

impl PageIndex {
    /// Offset of the page's first byte in the object.
    #[must_use]
    pub const fn start(self) -> u64 {
        self.0 as u64 * PAGE_BYTES
    }

    /// The bytes of the object that this page holds, or `None` past the end.
    #[must_use]
    pub fn range(self, object_bytes: u64) -> Option<ByteRange> {
        ByteRange::new(self.start(), (self.start() + PAGE_BYTES).min(object_bytes)).ok()
    }
}

impl fmt::Debug for PageIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Display for PageIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Returns how many pages an object of this size has.
#[must_use]
pub const fn page_count(object_bytes: u64) -> u64 {
    object_bytes.div_ceil(PAGE_BYTES)
}

/// Returns how many bytes the page has; 0 past the end of the object.
#[must_use]
pub fn page_bytes(object_bytes: u64, page: PageIndex) -> u64 {
    page.range(object_bytes).map_or(0, ByteRange::len)
}

/// Blocks of a page that are present, wanted or in flight: bit `i` is block `i`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct BlockMask(pub u16);

impl BlockMask {
    /// No block.
    pub const EMPTY: Self = Self(0);

    /// The blocks of a page of this many bytes.
    #[must_use]
    pub fn full(page_bytes: u64) -> Self {
        let blocks = page_bytes.div_ceil(BLOCK_BYTES).min(u64::from(BLOCKS_PER_PAGE));
        Self(((1u32 << blocks) - 1) as u16)
    }

    /// The blocks that hold at least one byte of `start..end`, offsets inside the page.
    #[must_use]
    pub fn covering(start: u64, end: u64) -> Self {
        if start >= end {
            return Self::EMPTY;
        }
        let below = |block: u64| (1u32 << block.min(u64::from(BLOCKS_PER_PAGE))) - 1;
        Self((below(end.div_ceil(BLOCK_BYTES)) & !below(start / BLOCK_BYTES)) as u16)
    }

    /// Blocks in either.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Blocks in both.
    #[must_use]
    pub const fn intersect(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Blocks in `self` but not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns whether every block of `other` is in `self`.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    /// Returns whether there is no block.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns how many blocks.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// The block numbers, ascending.
    pub fn blocks(self) -> impl Iterator<Item = u32> {
        (0..BLOCKS_PER_PAGE).filter(move |block| self.0 >> block & 1 == 1)
    }
}

impl fmt::Debug for BlockMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016b}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_page_has_fewer_blocks() {
        assert_eq!(BlockMask::full(0), BlockMask::EMPTY);
        assert_eq!(BlockMask::full(1).count(), 1);
        assert_eq!(BlockMask::full(BLOCK_BYTES).count(), 1);
        assert_eq!(BlockMask::full(BLOCK_BYTES + 1).count(), 2);
        assert_eq!(BlockMask::full(PAGE_BYTES).count(), BLOCKS_PER_PAGE);
    }

    #[test]
    fn covering_takes_whole_blocks() {
        assert_eq!(
            BlockMask::covering(BLOCK_BYTES - 1, BLOCK_BYTES + 1),
            BlockMask(0b11)
        );
        assert_eq!(BlockMask::covering(BLOCK_BYTES, BLOCK_BYTES + 1), BlockMask(0b10));
        assert_eq!(BlockMask::covering(0, PAGE_BYTES), BlockMask(u16::MAX));
        assert_eq!(BlockMask::covering(7, 7), BlockMask::EMPTY);
    }

    #[test]
    fn last_page_is_short() {
        assert_eq!(page_count(PAGE_BYTES + 1), 2);
        assert_eq!(page_bytes(PAGE_BYTES + 1, PageIndex(1)), 1);
        assert_eq!(PageIndex(2).range(PAGE_BYTES + 1), None);
    }
}
