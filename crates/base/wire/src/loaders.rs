//! The family of loaders: what a loader tells its node about itself, for the node's metrics. It answers "why
//! did the GPU wait".

use serde::{Deserialize, Serialize};

use crate::{FamilyId, Message};

/// The family of loaders.
pub const FAMILY: FamilyId = FamilyId {
    number: 6,
    version: 1,
    name: "loaders",
};

/// A request of the family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Reports what a loader of this process did since its last report.
    Report(LoaderReport),
}

/// An answer of the family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// To `Report`.
    Done,
}

impl Message for Request {
    const FAMILY: FamilyId = FAMILY;
}

impl Message for Answer {
    const FAMILY: FamilyId = FAMILY;
}

impl crate::Request for Request {
    type Answer = Answer;
    const KINDS: &'static [&'static str] = &["loaded"];
}

/// Work and waits of loaders in some time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoaderReport {
    /// Batches that were handed over.
    pub batches: u64,
    /// Samples in them.
    pub samples: u64,
    /// Their bytes as they were read.
    pub bytes: u64,
    /// Samples that could not be used.
    pub bad_samples: u64,
    /// Time that consumers waited for the lake.
    pub wait_lake_ns: u64,
    /// The same for the cache.
    pub wait_cache_ns: u64,
    /// The same for checksums and putting together.
    pub wait_check_ns: u64,
    /// The same for decoding.
    pub wait_decode_ns: u64,
    /// Time that consumers waited although the batch was ready.
    pub hand_over_ns: u64,
    /// Time that consumers took themselves between batches.
    pub user_ns: u64,
}

impl LoaderReport {
    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            batches: self.batches.saturating_add(other.batches),
            samples: self.samples.saturating_add(other.samples),
            bytes: self.bytes.saturating_add(other.bytes),
            bad_samples: self.bad_samples.saturating_add(other.bad_samples),
            wait_lake_ns: self.wait_lake_ns.saturating_add(other.wait_lake_ns),
            wait_cache_ns: self.wait_cache_ns.saturating_add(other.wait_cache_ns),
            wait_check_ns: self.wait_check_ns.saturating_add(other.wait_check_ns),
            wait_decode_ns: self.wait_decode_ns.saturating_add(other.wait_decode_ns),
            hand_over_ns: self.hand_over_ns.saturating_add(other.hand_over_ns),
            user_ns: self.user_ns.saturating_add(other.user_ns),
        }
    }
}
