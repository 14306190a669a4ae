//! DRAFT OF THE PUBLIC SURFACE (the owner of this crate moves each type to the file it is about).
//!
//! The reservoir knows objects by name and version, cuts them into pages, fills missing blocks once through a
//! [`Source`], keeps them in two tiers under byte budgets, and hands out leased bytes.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use forebay_core::{BucketName, ByteRange, Clock, ObjectKey, Result, Version};
use futures::stream::BoxStream;

/// One version of one object: what pages are keyed by. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectVersion {
    /// The bucket it is served under.
    pub bucket: BucketName,
    /// Its key.
    pub key: ObjectKey,
    /// Its version; a changed object has another one, so old and new bytes never mix.
    pub version: Version,
    /// Its size.
    pub bytes: u64,
}

/// How urgent a fetch is. Demand always goes before read-ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Somebody waits for these bytes.
    Demand,
    /// Nobody waits yet.
    ReadAhead,
}

/// Where missing blocks come from: the lake today, the owner peer later. Wired by whoever composes the node.
#[async_trait]
pub trait Source: Send + Sync + fmt::Debug + 'static {
    /// The bytes of `range` of exactly this version, in order. `Changed` if the object has another version now.
    async fn fetch(
        &self,
        object: &ObjectVersion,
        range: ByteRange,
        priority: Priority,
    ) -> Result<BoxStream<'static, Result<Bytes>>>;
}

/// Which tier a served byte came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// The RAM tier.
    Ram,
    /// The NVMe tier.
    Nvme,
    /// It had to be fetched from the source for this read (also for those who waited for the same fetch).
    Lake,
}

/// A piece of an object, leased: the page behind `bytes` stays untouched until the last clone of it is dropped.
#[derive(Debug, Clone)]
pub struct Piece {
    /// Offset of the first byte in the object.
    pub start: u64,
    /// Verified bytes, pointing into the RAM tier where possible (no copy).
    pub bytes: Bytes,
    /// Where they came from.
    pub tier: Tier,
}

/// The pieces of a read, in order, without gaps. An error ends the stream.
pub type PieceStream = BoxStream<'static, Result<Piece>>;

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

/// Counters and gauges at one moment, for metrics, `status` and tests.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct ReservoirStats {
    /// Bytes of page data in RAM (without free space).
    pub ram_used_bytes: u64,
    /// Memory held by segments.
    pub ram_held_bytes: u64,
    /// Pages in RAM.
    pub ram_pages: u64,
    /// Bytes of page data on NVMe.
    pub nvme_used_bytes: u64,
    /// Pages on NVMe.
    pub nvme_pages: u64,
    /// Bytes pinned.
    pub pinned_bytes: u64,
    /// Pages under lease right now.
    pub leased_pages: u64,
    /// Bytes handed out, by tier.
    pub served_ram_bytes: u64,
    /// See above.
    pub served_nvme_bytes: u64,
    /// See above.
    pub served_lake_bytes: u64,
    /// Bytes asked from the source, by demand and by read-ahead.
    pub fetched_demand_bytes: u64,
    /// See above.
    pub fetched_read_ahead_bytes: u64,
    /// Pages evicted from RAM / NVMe.
    pub evicted_ram_pages: u64,
    /// See above.
    pub evicted_nvme_pages: u64,
    /// Blocks whose checksum did not match, by tier; each was refetched and its page quarantined.
    pub corrupt_ram_blocks: u64,
    /// See above.
    pub corrupt_nvme_blocks: u64,
    /// Blocks looked at by the scrub.
    pub scrubbed_blocks: u64,
    /// NVMe writes skipped because the disk was full or failed.
    pub nvme_write_errors: u64,
    /// Files set aside because they were damaged or not ours.
    pub nvme_set_aside_files: u64,
}
