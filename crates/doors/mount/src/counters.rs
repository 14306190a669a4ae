//! Counts of what a mount did, and log lines that are written once.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Names that the kernel asked for.
    Lookups,
    /// Opens of files.
    Opens,
    /// Opens whose reads the kernel does by itself (passthrough).
    PassthroughOpens,
    /// Reads that the kernel sent here.
    Reads,
    /// Bytes that those were answered with.
    ReadBytes,
    /// Folders that were listed.
    Listings,
    /// Keys that no path can name and no listing shows.
    UnnameableKeys,
    /// Objects that were written.
    Uploads,
    /// Bytes of those.
    UploadedBytes,
    /// Uploads that failed.
    UploadErrors,
    /// Calls that a mount does not do: random writes, links and so on.
    Refusals,
    /// Copies of whole objects for passthrough in which the scrub found a damaged byte.
    ScrubErrors,
}

const COUNTERS: usize = Counter::ScrubErrors as usize + 1;

/// All counts of one mount.
#[derive(Debug, Default)]
pub struct Counters {
    counts: [AtomicU64; COUNTERS],
}

impl Counters {
    /// Returns a count.
    #[must_use]
    pub fn get(&self, counter: Counter) -> u64 {
        self.counts[counter as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, counter: Counter) {
        self.add_many(counter, 1);
    }

    pub(crate) fn add_many(&self, counter: Counter, many: u64) {
        self.counts[counter as usize].fetch_add(many, Ordering::Relaxed);
    }
}
