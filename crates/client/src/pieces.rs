//! Bytes of an object where they lie, in one piece or several.
//!
//! A [`View`] is one slice, and where the node keeps its bytes in several places, making one of them costs page faults or a copy. Who only looks at the
//! bytes once, in order, does better with pieces.

use std::ops::Range;

use crate::View;
use crate::local::Apart;

/// Read-only bytes of an object or a part of it, in the order in which the object has them.
pub struct Pieces {
    object_bytes: u64,
    memory: Memory,
}

enum Memory {
    /// In memory of the node, wherever it has them.
    Apart(Apart),
    One(View),
    None,
}

impl Pieces {
    pub(crate) fn apart(object_bytes: u64, apart: Apart) -> Self {
        Self {
            object_bytes,
            memory: Memory::Apart(apart),
        }
    }

    /// Nothing of an object.
    pub(crate) fn none(object_bytes: u64) -> Self {
        Self {
            object_bytes,
            memory: Memory::None,
        }
    }

    /// How many bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.memory {
            Memory::Apart(apart) => apart.bytes(),
            Memory::One(view) => view.len(),
            Memory::None => 0,
        }
    }

    /// Size of the whole object.
    #[must_use]
    pub fn object_bytes(&self) -> u64 {
        self.object_bytes
    }

    /// Some of the bytes, as slices that follow one another.
    ///
    /// # Panics
    /// If there are not that many bytes.
    pub fn slices(&self, range: Range<usize>) -> impl Iterator<Item = &[u8]> {
        assert!(
            range.start <= range.end && range.end <= self.bytes(),
            "bytes of the pieces"
        );
        let (mut next, mut range) = (0, range);
        if let Memory::Apart(apart) = &self.memory {
            next = apart.piece_with(range.start);
        }
        std::iter::from_fn(move || {
            if range.is_empty() {
                return None;
            }
            let (first, piece) = match &self.memory {
                Memory::Apart(apart) => apart.piece(next),
                Memory::One(view) => (0, &view[..]),
                Memory::None => return None,
            };
            let end = range.end.min(first + piece.len());
            let slice = &piece[range.start - first..end - first];
            (next, range.start) = (next + 1, end);
            Some(slice)
        })
    }
}

impl From<View> for Pieces {
    fn from(view: View) -> Self {
        Self {
            object_bytes: view.object_bytes(),
            memory: Memory::One(view),
        }
    }
}

impl std::fmt::Debug for Pieces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pieces")
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}
