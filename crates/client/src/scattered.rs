//! Bytes of one item where they lie, in one piece or several.
//!
//! The node keeps an object in pages, and these may lie apart. [`Scattered`] is its answer as it is. Three ways
//! lead on, by what the reader needs:
//!
//! - [`Scattered::slices`]: looks at the bytes once, in order. Costs nothing.
//! - [`Scattered::pieces`]: keeps pieces, each as a [`View`] of its own. Costs nothing but the views.
//! - [`Scattered::flat`]: one slice. Large pieces are mapped side by side, small ones are copied.

use std::ops::Range;

use forebay_core::Result;

use crate::View;
use crate::local::LeasedItem;

/// Read-only bytes of an object or a part of it, in the order in which the object has them.
pub struct Scattered(Memory);

enum Memory {
    /// In memory of the node, wherever it has them.
    Leased(Box<LeasedItem>),
    /// Together, in memory of this process; empty items as well.
    Flat(View),
}

impl Scattered {
    pub(crate) fn leased(item: LeasedItem) -> Self {
        Self(Memory::Leased(Box::new(item)))
    }

    /// Number of bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.0 {
            Memory::Leased(item) => item.bytes(),
            Memory::Flat(view) => view.len(),
        }
    }

    /// Size of the whole object.
    #[must_use]
    pub fn object_bytes(&self) -> u64 {
        match &self.0 {
            Memory::Leased(item) => item.object_bytes(),
            Memory::Flat(view) => view.object_bytes(),
        }
    }

    /// Makes one slice of them.
    ///
    /// Errors: `NoSpace` if there is no memory for a copy; an I/O error if this process cannot map more.
    pub fn flat(self) -> Result<View> {
        match self.0 {
            Memory::Leased(item) => item.flat(),
            Memory::Flat(view) => Ok(view),
        }
    }

    /// Makes a view of each piece, in order, all under one lease; none if there are no bytes.
    ///
    /// Errors: `Corrupt` if the node named bytes outside of its memory.
    pub fn pieces(self) -> Result<Vec<View>> {
        match self.0 {
            Memory::Leased(item) => item.pieces(),
            Memory::Flat(view) if view.is_empty() => Ok(Vec::new()),
            Memory::Flat(view) => Ok(vec![view]),
        }
    }

    /// Some of the bytes, as slices that follow one another.
    ///
    /// # Panics
    /// If there are not that many bytes.
    pub fn slices(&self, range: Range<usize>) -> impl Iterator<Item = &[u8]> {
        assert!(
            range.start <= range.end && range.end <= self.bytes(),
            "bytes of the item"
        );
        let (mut next, mut range) = (0, range);
        if let Memory::Leased(item) = &self.0 {
            next = item.piece_with(range.start);
        }
        std::iter::from_fn(move || {
            if range.is_empty() {
                return None;
            }
            let (first, piece) = match &self.0 {
                Memory::Leased(item) => item.piece(next),
                Memory::Flat(view) => (0, &view[..]),
            };
            let end = range.end.min(first + piece.len());
            let slice = &piece[range.start - first..end - first];
            (next, range.start) = (next + 1, end);
            Some(slice)
        })
    }
}

impl From<View> for Scattered {
    fn from(view: View) -> Self {
        Self(Memory::Flat(view))
    }
}

impl std::fmt::Debug for Scattered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scattered")
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}
