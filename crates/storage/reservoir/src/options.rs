//! Limits and places of a reservoir.

use std::path::PathBuf;
use std::time::Duration;

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
    /// Bytes that read-ahead may run in front of one sequential reader, at most.
    pub read_ahead_bytes_max: u64,
    /// An object larger than this is not put into the cache by a write (reads still cache its pages).
    pub write_fill_bytes_max: u64,
    /// A fill whose source (or NVMe) gives nothing for so long ends with `Timeout`, and its readers hear so;
    /// [`ReservoirOptions::FILL_SILENCE_DEFAULT`] is above all retries of a lake that is merely slow.
    pub fill_silence_max: Duration,
}

impl ReservoirOptions {
    /// Silence of a source that a fill puts up with, unless there is a reason for another.
    pub const FILL_SILENCE_DEFAULT: Duration = Duration::from_secs(120);
}
