//! The reservoir: both tiers and the tasks that serve them, behind one object.
//!
//! Life cycle: [`Reservoir::open`] recovers the NVMe tier and starts the tasks (fault-in thread, demoter,
//! scrub); [`Reservoir::shutdown`] ends fills, writes RAM to NVMe while there is time, and closes the disk.
//! Dropping it without shutdown stops the tasks and loses nothing but warmth.

mod contents;

use std::sync::Arc;
use std::time::Duration;

use forebay_core::Result;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::arena::FaultIn;
use crate::demote;
use crate::eviction::EpochPolicy;
use crate::fill::Filler;
use crate::lease::Copies;
use crate::nvme::{NvmeOptions, NvmeStore, OsIo, RawIo};
use crate::nvme_names::NamedNvme;
use crate::ram::{DemotionLimits, RamTier};
use crate::read::SharedFetches;
use crate::read_ahead::ReadAhead;
use crate::scrub::scrub;
use crate::stats::Counters;
use crate::working_set::WorkingSets;
use crate::{ReservoirOptions, ReservoirStats};

pub use contents::{CacheChange, Residency};

/// Read-ahead of one reader may take one part in this many of the RAM budget.
const READ_AHEAD_SHARE: u64 = 8;

/// The NVMe tier gets this long to close even when the deadline has passed.
const CLOSE_WAIT_MIN: Duration = Duration::from_secs(1);

/// Pages of objects in RAM and on NVMe, filled once, checked always. Shared by `Arc`.
#[derive(Debug)]
pub struct Reservoir {
    pub(crate) ram: Arc<RamTier>,
    pub(crate) filler: Filler,
    pub(crate) read_ahead: Mutex<ReadAhead>,
    pub(crate) shared_fetches: SharedFetches,
    pub(crate) copies: Arc<Copies>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) write_fill_bytes_max: u64,
    nvme: Option<Arc<NamedNvme>>,
    tasks: TaskTracker,
    stop: CancellationToken,
    _fault_in: FaultIn,
}

/// The index of the NVMe tier may take one part in this many of the RAM budget beside it, and never less than
/// the minimum: enough for 200,000 pages of small objects.
const NVME_INDEX_SHARE: u64 = 4;
const NVME_INDEX_BYTES_MIN: u64 = 192 << 20;

impl Reservoir {
    /// Opens both tiers; quick, and no memory is touched before it is needed.
    pub async fn open(options: ReservoirOptions) -> Result<Arc<Self>> {
        Self::open_on(Arc::new(OsIo), DemotionLimits::default(), options).await
    }

    /// Opens both tiers with NVMe on this disk.
    pub(crate) async fn open_on(
        raw: Arc<dyn RawIo>,
        limits: DemotionLimits,
        options: ReservoirOptions,
    ) -> Result<Arc<Self>> {
        let working_sets = Arc::new(WorkingSets::default());
        let nvme = match options.nvme_bytes {
            0 => None,
            budget_bytes => {
                let nvme = NvmeOptions {
                    dir: options.nvme_dir,
                    budget_bytes,
                    index_bytes_max: NVME_INDEX_BYTES_MIN.max(options.ram_bytes / NVME_INDEX_SHARE),
                };
                let eviction = EpochPolicy::new(Arc::clone(&working_sets));
                let store = NvmeStore::open_with(nvme, raw, Box::new(eviction)).await?;
                Some(Arc::new(NamedNvme::new(store, budget_bytes)))
            }
        };
        let counters = Arc::new(Counters::default());
        let store = nvme.as_ref().map(|nvme| Arc::clone(&nvme.store));
        let ram = Arc::new(RamTier::new(
            options.ram_bytes,
            store.map(|store| (store, limits)),
            working_sets,
            Arc::clone(&counters),
        ));
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        if let Some(nvme) = &nvme {
            tasks.spawn(demote::demote(Arc::clone(nvme), Arc::clone(&ram), stop.clone()));
        }
        if options.scrub_period > Duration::ZERO {
            tasks.spawn(scrub(Arc::clone(&ram), options.scrub_period, stop.clone()));
        }
        let window_bytes_max = options
            .read_ahead_bytes_max
            .min(options.ram_bytes / READ_AHEAD_SHARE);
        Ok(Arc::new(Self {
            _fault_in: FaultIn::start(Arc::clone(&ram.arena))?,
            ram,
            filler: Filler::new(
                nvme.as_ref().map(|nvme| Arc::clone(&nvme.store)),
                options.fill_silence_max,
                Arc::clone(&counters),
            ),
            read_ahead: Mutex::new(ReadAhead::new(window_bytes_max)),
            shared_fetches: SharedFetches::default(),
            copies: Arc::new(Copies::new(options.ram_bytes, Arc::clone(&counters))),
            counters,
            write_fill_bytes_max: options.write_fill_bytes_max,
            nvme,
            tasks,
            stop,
        }))
    }

    /// Counters and gauges now.
    #[must_use]
    pub fn stats(&self) -> ReservoirStats {
        let (ram_held_bytes, ram_used_bytes) = self.ram.arena.held_and_used_bytes();
        let nvme = self
            .nvme
            .as_ref()
            .map(|nvme| nvme.store.stats())
            .unwrap_or_default();
        let counters = &self.counters;
        ReservoirStats {
            ram_used_bytes,
            ram_held_bytes,
            ram_pages: counters.ram_pages.get(),
            nvme_used_bytes: nvme.used_bytes,
            nvme_pages: nvme.pages,
            pinned_bytes: counters.pinned_ram_bytes.get() + nvme.pinned_bytes,
            leased_pages: counters.leased_pages.get(),
            leased_bytes: counters.leased_bytes.get(),
            copies_held_bytes: counters.copies_held_bytes.get(),
            lease_copied_bytes: counters.lease_copied_bytes.get(),
            abandoned_segments: counters.abandoned_segments.get(),
            abandoned_bytes: counters.abandoned_bytes.get(),
            served_ram_bytes: counters.served_ram_bytes.get(),
            served_nvme_bytes: counters.served_nvme_bytes.get(),
            served_peer_bytes: counters.served_peer_bytes.get(),
            served_lake_bytes: counters.served_lake_bytes.get(),
            fetched_demand_bytes: counters.fetched_demand_bytes.get(),
            fetched_read_ahead_bytes: counters.fetched_read_ahead_bytes.get(),
            bypassed_bytes: counters.bypassed_bytes.get(),
            evicted_ram_pages: counters.evicted_ram_pages.get(),
            evicted_nvme_pages: nvme.evicted_pages,
            demotions_dropped: counters.demotions_dropped.get(),
            corrupt_ram_blocks: counters.corrupt_ram_blocks.get(),
            corrupt_nvme_blocks: nvme.corrupt_blocks,
            corrupt_source_blocks: counters.corrupt_source_blocks.get(),
            fill_fallbacks: counters.fill_fallbacks.get(),
            fill_timeouts: counters.fill_timeouts.get(),
            scrubbed_blocks: counters.scrubbed_blocks.get(),
            nvme_write_errors: nvme.write_errors,
            nvme_set_aside_files: nvme.set_aside_files,
        }
    }

    /// Ends all work: fills stop, RAM is written to NVMe as far as the deadline allows, the disk is closed.
    /// Idempotent.
    pub async fn shutdown(&self, deadline: Duration) {
        let deadline = Instant::now() + deadline;
        self.filler.shutdown().await;
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        if let Some(nvme) = &self.nvme {
            demote::write_all(nvme, &self.ram, deadline).await;
            let at_least = Instant::now() + CLOSE_WAIT_MIN;
            if tokio::time::timeout_at(deadline.max(at_least), nvme.store.shutdown())
                .await
                .is_err()
            {
                tracing::warn!("nvme tier did not close in time, it will be recovered at the next start");
            }
        }
    }
}

impl Drop for Reservoir {
    fn drop(&mut self) {
        self.filler.stop();
        self.stop.cancel();
    }
}
