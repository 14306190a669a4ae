//! Bytes by source.

use serde::{Deserialize, Serialize};

/// Bytes by the tier they came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Sources {
    /// The RAM tier.
    pub ram: u64,
    /// The NVMe tier.
    pub nvme: u64,
    /// Another node. No node has peers yet: 0.
    pub peer: u64,
    /// The lake.
    pub lake: u64,
    /// Of all these, bytes that the node had to copy (no RAM left, too many leases).
    pub copied: u64,
}
