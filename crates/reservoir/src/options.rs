//! Limits and places of a reservoir.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::Clock;

/// Limits and places. Every field is validated by the caller; there is no hidden default in the code below.
#[derive(Debug, Clone)]
pub struct ReservoirOptions {
    /// Budget of the RAM tier; leased, filling and faulted-in-ahead memory included.
    pub ram_bytes: u64,
    /// Budget of the NVMe tier; 0 switches it off.
    pub nvme_bytes: u64,
    /// Folder of the NVMe tier.
    pub nvme_dir: PathBuf,
    /// A block in RAM is re-checked at least this often; `Duration::ZERO` switches the scrub off.
    pub scrub_period: Duration,
    /// How far read-ahead may run in front of one sequential reader, at most.
    pub read_ahead_bytes_max: u64,
    /// An object larger than this is not put into the cache by a write (reads still cache its pages).
    pub write_fill_bytes_max: u64,
    /// The time.
    pub clock: Arc<dyn Clock>,
}
