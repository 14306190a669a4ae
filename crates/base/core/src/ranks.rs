//! Ranks of a job, as people write them.

use std::collections::BTreeSet;

/// Ranks that an error names, at most.
const NAMED_RANKS_MAX: usize = 32;

/// Ranks from `0..world_size` that are not in this list, as people write them.
#[must_use]
pub fn missing_ranks(world_size: u32, there: &BTreeSet<u32>) -> String {
    let missing: Vec<u32> = (0..world_size).filter(|rank| !there.contains(rank)).collect();
    let named: Vec<String> = missing.iter().take(NAMED_RANKS_MAX).map(u32::to_string).collect();
    let more = missing.len() - named.len();
    match more {
        0 => named.join(", "),
        _ => format!("{} and {more} more", named.join(", ")),
    }
}
