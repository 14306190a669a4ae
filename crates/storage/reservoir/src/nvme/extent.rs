//! Units on disk that hold blocks of a page, and who holds them.
//!
//! An extent's units go back to the allocator when its last holder drops it: the index, a running transfer,
//! or the journal, which holds a removed extent until the removal is written. A reused unit therefore never
//! has an older claim left in the journal file, and never changes under a running read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_core::{BLOCK_BYTES, BlockMask};
use parking_lot::Mutex;

use super::space::{Run, UNIT_BYTES};

/// Runs whose last holder is gone, on their way back to the allocator.
#[derive(Debug, Default)]
pub(crate) struct Returned {
    runs: Mutex<Vec<(Run, bool)>>,
}

impl Returned {
    /// The runs that came back, each with whether the disk had refused it.
    pub(crate) fn take(&self) -> Vec<(Run, bool)> {
        std::mem::take(&mut *self.runs.lock())
    }
}

/// Units on disk that hold one part of a page.
#[derive(Debug)]
pub(crate) struct Extent {
    runs: Vec<Run>,
    is_refused: AtomicBool,
    returned: Arc<Returned>,
}

impl Extent {
    /// Owns the runs.
    pub(crate) fn new(runs: Vec<Run>, returned: &Arc<Returned>) -> Arc<Self> {
        let is_refused = AtomicBool::new(false);
        Arc::new(Self {
            runs,
            is_refused,
            returned: Arc::clone(returned),
        })
    }

    /// Returns where it lies.
    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Returns how many units.
    pub(crate) fn units(&self) -> u64 {
        self.runs.iter().map(|run| run.units).sum()
    }

    /// The disk refused to hold it: the units are parked instead of freed.
    pub(crate) fn refuse(&self) {
        self.is_refused.store(true, Ordering::Relaxed);
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        let is_refused = *self.is_refused.get_mut();
        self.returned
            .runs
            .lock()
            .extend(self.runs.drain(..).map(|run| (run, is_refused)));
    }
}

/// Returns how many bytes the block has in a page of this many.
pub(crate) fn block_bytes(page_bytes: u64, block: u32) -> u64 {
    let start = u64::from(block) * BLOCK_BYTES;
    page_bytes.saturating_sub(start).min(BLOCK_BYTES)
}

/// Bytes of the blocks together.
pub(crate) fn blocks_bytes(page_bytes: u64, blocks: BlockMask) -> u64 {
    blocks.blocks().map(|block| block_bytes(page_bytes, block)).sum()
}

/// Units that the blocks take when packed. Only the last block of a page is short, so only it is rounded up.
pub(crate) fn blocks_units(page_bytes: u64, blocks: BlockMask) -> u64 {
    blocks_bytes(page_bytes, blocks).div_ceil(UNIT_BYTES)
}
