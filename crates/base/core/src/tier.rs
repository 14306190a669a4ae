//! Tiers of the data path, and bytes counted by them: one word for every report, from the lease to the metric.

use serde::{Deserialize, Serialize};

/// The tier that a served byte came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// The RAM tier.
    Ram,
    /// The NVMe tier.
    Nvme,
    /// Another node, which was asked for it (also by those who waited for the same fetch).
    Peer,
    /// The lake, which was asked for it (also by those who waited for the same fetch).
    Lake,
}

/// Bytes by the tier they came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TierBytes {
    /// The RAM tier.
    pub ram: u64,
    /// The NVMe tier.
    pub nvme: u64,
    /// Other nodes.
    pub peer: u64,
    /// The lake.
    pub lake: u64,
    /// Of all these, bytes that had to be copied (no RAM left, too many leases, scattered pages).
    pub copied: u64,
}

impl TierBytes {
    /// Counts bytes of one tier.
    pub fn add(&mut self, tier: Tier, bytes: u64) {
        match tier {
            Tier::Ram => self.ram += bytes,
            Tier::Nvme => self.nvme += bytes,
            Tier::Peer => self.peer += bytes,
            Tier::Lake => self.lake += bytes,
        }
    }
}

impl std::ops::AddAssign for TierBytes {
    fn add_assign(&mut self, more: Self) {
        self.ram += more.ram;
        self.nvme += more.nvme;
        self.peer += more.peer;
        self.lake += more.lake;
        self.copied += more.copied;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_by_their_tier() {
        let mut bytes = TierBytes::default();
        for (tier, count) in [(Tier::Ram, 1), (Tier::Nvme, 2), (Tier::Peer, 3), (Tier::Lake, 4)] {
            bytes.add(tier, count);
        }
        let expected = TierBytes {
            ram: 1,
            nvme: 2,
            peer: 3,
            lake: 4,
            copied: 0,
        };
        assert_eq!(bytes, expected);
    }
}
