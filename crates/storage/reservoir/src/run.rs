//! A run: memory for a whole object in one piece, or in a few large ones.
//!
//! An object that is read from its first byte to its last gets a run if there is one, so that its pages lie
//! one after the other and a client on the host gets one flat view. One larger than a segment lies in whole
//! segments, which a client maps side by side; pieces start at huge pages. All readers of the object share
//! the run; each page takes its part when it is filled; parts that nobody took go back when the last reader
//! ends. Runs together are capped, because what they hold in advance cannot be evicted.

use std::sync::Arc;

use forebay_core::PageIndex;
use parking_lot::Mutex;

use crate::arena::Extent;
use crate::stats::Counters;

/// Extents for the pages of one object, side by side.
#[derive(Debug)]
pub(crate) struct Run {
    parts: Mutex<Vec<Option<Extent>>>,
    bytes: u64,
    counters: Arc<Counters>,
}

impl Run {
    /// Takes extents that lie together, one for each page; `bytes` were counted as reserved.
    pub(crate) fn new(extents: Vec<Extent>, bytes: u64, counters: Arc<Counters>) -> Self {
        Self {
            parts: Mutex::new(extents.into_iter().map(Some).collect()),
            bytes,
            counters,
        }
    }

    /// The memory for a page, once.
    pub(crate) fn take(&self, page: PageIndex) -> Option<Extent> {
        self.parts.lock().get_mut(page.0 as usize)?.take()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.counters.reserved_bytes.sub(self.bytes);
    }
}
