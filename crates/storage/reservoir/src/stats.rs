//! Counters of the reservoir.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::Tier;

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
    /// Bytes of the pages under lease right now, each page counted once.
    pub leased_bytes: u64,
    /// Bytes of copies that leases hold right now, on top of the RAM tier.
    pub copies_held_bytes: u64,
    /// Bytes that were copied for leases, because there was no memory or the client held its share.
    pub lease_copied_bytes: u64,
    /// Segments given up because a lease was held too long, and their bytes.
    pub abandoned_segments: u64,
    /// See above.
    pub abandoned_bytes: u64,
    /// Bytes handed out, by tier.
    pub served_ram_bytes: u64,
    /// See above.
    pub served_nvme_bytes: u64,
    /// See above.
    pub served_peer_bytes: u64,
    /// See above.
    pub served_lake_bytes: u64,
    /// Bytes asked from the source, by demand and by read-ahead.
    pub fetched_demand_bytes: u64,
    /// See above.
    pub fetched_read_ahead_bytes: u64,
    /// Bytes of demand that went past the cache because no memory was free.
    pub bypassed_bytes: u64,
    /// Pages evicted from RAM / NVMe.
    pub evicted_ram_pages: u64,
    /// See above.
    pub evicted_nvme_pages: u64,
    /// Pages evicted from RAM that NVMe does not have: the disk was full, refused them or was too slow.
    pub demotions_dropped: u64,
    /// Blocks whose checksum did not match, by tier; each was refetched and its page quarantined.
    pub corrupt_ram_blocks: u64,
    /// See above.
    pub corrupt_nvme_blocks: u64,
    /// Blocks that did not match the checksum that they came with from a source; none was kept.
    pub corrupt_source_blocks: u64,
    /// Fills that changed to the fallback of their source.
    pub fill_fallbacks: u64,
    /// Fills that gave a silent source up.
    pub fill_timeouts: u64,
    /// Blocks looked at by the scrub.
    pub scrubbed_blocks: u64,
    /// NVMe writes skipped because the disk was full or failed.
    pub nvme_write_errors: u64,
    /// Files set aside because they were damaged or not ours.
    pub nvme_set_aside_files: u64,
}

/// A number that many threads count.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Counts up.
    pub(crate) fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    /// Counts down (gauges only).
    pub(crate) fn sub(&self, by: u64) {
        self.0.fetch_sub(by, Ordering::Relaxed);
    }

    /// Counts up unless that would pass `max`.
    pub(crate) fn add_within(&self, by: u64, max: u64) -> bool {
        let within = |now: u64| now.checked_add(by).filter(|sum| *sum <= max);
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, within)
            .is_ok()
    }

    /// The number now.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The live numbers behind [`ReservoirStats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) ram_pages: Counter,
    pub(crate) pinned_ram_bytes: Counter,
    pub(crate) leased_pages: Counter,
    pub(crate) leased_bytes: Counter,
    pub(crate) lease_copied_bytes: Counter,
    /// Bytes of copies that leases hold.
    pub(crate) copies_held_bytes: Counter,
    pub(crate) abandoned_segments: Counter,
    pub(crate) abandoned_bytes: Counter,
    pub(crate) served_ram_bytes: Counter,
    pub(crate) served_nvme_bytes: Counter,
    pub(crate) served_peer_bytes: Counter,
    pub(crate) served_lake_bytes: Counter,
    pub(crate) fetched_demand_bytes: Counter,
    pub(crate) fetched_read_ahead_bytes: Counter,
    pub(crate) bypassed_bytes: Counter,
    pub(crate) evicted_ram_pages: Counter,
    pub(crate) demotions_dropped: Counter,
    pub(crate) corrupt_ram_blocks: Counter,
    pub(crate) corrupt_source_blocks: Counter,
    pub(crate) fill_fallbacks: Counter,
    pub(crate) fill_timeouts: Counter,
    pub(crate) scrubbed_blocks: Counter,
    /// Bytes that writes on their way hold.
    pub(crate) write_fill_bytes: Counter,
    /// Bytes that read-ahead is fetching.
    pub(crate) read_ahead_bytes: Counter,
    /// Bytes of the pages that reads have in their windows.
    pub(crate) window_bytes: Counter,
    /// Bytes in runs that whole-object reads reserved.
    pub(crate) reserved_bytes: Counter,
}

impl Counters {
    /// Counts bytes that were handed out.
    pub(crate) fn served(&self, tier: Tier, bytes: u64) {
        match tier {
            Tier::Ram => self.served_ram_bytes.add(bytes),
            Tier::Nvme => self.served_nvme_bytes.add(bytes),
            Tier::Peer => self.served_peer_bytes.add(bytes),
            Tier::Lake => self.served_lake_bytes.add(bytes),
        }
    }
}
