//! Demotion: pages that leave RAM go to NVMe.
//!
//! One task keeps a little memory free (see `ram/evict.rs`): it takes the pages that readers handed over, and
//! victims of its own choice, writes a few of them at a time and evicts each once it is written. At shutdown what is still in RAM is written too, as far as the
//! deadline allows, so that a restart begins warm.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::{BLOCKS_PER_PAGE, BlockMask, Kind};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::index::SHARDS;
use crate::nvme_names::NamedNvme;
use crate::page::Page;
use crate::ram::RamTier;

/// Pages that are written at once.
const WRITES_MAX: usize = 8;

/// Pause before victims are looked for again when there were none.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Keeps the reserve of free memory up until it is told to stop.
pub(crate) async fn demote(nvme: Arc<NamedNvme>, ram: Arc<RamTier>, stop: CancellationToken) {
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = ram.reserve_is_low() => {}
            // Every page was held the last time; nobody tells when one is not any more.
            () = tokio::time::sleep(RETRY_PAUSE), if ram.is_reserve_low() => {}
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = fill_reserve(&nvme, &ram) => {}
        }
    }
}

/// Writes and evicts victims until enough memory is free.
async fn fill_reserve(nvme: &NamedNvme, ram: &RamTier) {
    let mut writes = FuturesUnordered::new();
    let mut pending_bytes = 0;
    loop {
        while writes.len() < WRITES_MAX
            && let Some(page) = ram.demotion_victim(pending_bytes)
        {
            let bytes = page.frame.backed_bytes();
            pending_bytes += bytes;
            writes.push(demote_page(nvme, ram, page, bytes));
        }
        tokio::select! {
            biased;
            written = writes.next() => match written {
                Some(bytes) => pending_bytes -= bytes,
                None => return,
            },
            // More was handed over, and there may be a place for it.
            () = ram.reserve_is_low(), if writes.len() < WRITES_MAX => {}
        }
    }
}

/// Writes a page, then evicts it; says how many bytes it had. If blocks came in meanwhile, it stays.
async fn demote_page(nvme: &NamedNvme, ram: &RamTier, page: Arc<Page>, bytes: u64) -> u64 {
    let mut under_way = UnderWay::begin(ram);
    let present = page.frame.present();
    if write(nvme, ram, &page, present).await {
        under_way.bytes = bytes;
    }
    ram.finish_eviction(page, present);
    bytes
}

/// A demotion that counts as under way until it is dropped: until its memory is free.
struct UnderWay<'a> {
    ram: &'a RamTier,
    /// Bytes that the disk had to take.
    bytes: u64,
}

impl<'a> UnderWay<'a> {
    fn begin(ram: &'a RamTier) -> Self {
        ram.begin_demotion();
        Self { ram, bytes: 0 }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.ram.end_demotion(self.bytes);
    }
}

/// Writes blocks of a page unless they are there already, or the page was forgotten; says whether the disk
/// was asked.
async fn write(nvme: &NamedNvme, ram: &RamTier, page: &Arc<Page>, present: BlockMask) -> bool {
    let there = nvme.store.lookup(&page.key).unwrap_or_default();
    if there.contains(present) || !ram.index.has(page) {
        return false;
    }
    let mut checksums = [0; BLOCKS_PER_PAGE as usize];
    for block in present.blocks() {
        checksums[block as usize] = page.frame.checksum(block);
    }
    nvme.add(&page.object);
    match nvme
        .store
        .write(&page.object, page.key.page, present, page.flat(), checksums)
        .await
    {
        // Only what is there is pinned: an unpin looks for what is there, and would not find the rest.
        Ok(()) => {
            if ram.pins.covers(&page.object) && nvme.store.lookup(&page.key).is_some() {
                nvme.pin(&page.object);
            }
        }
        Err(error) if error.kind() == Kind::Checksum => ram.quarantine(page, page.frame.corrupt(present)),
        Err(error) => tracing::debug!(%error, "page was not written to nvme"),
    }
    true
}

/// Writes every page in RAM that is not on NVMe yet, until the deadline.
pub(crate) async fn write_all(nvme: &NamedNvme, ram: &RamTier, deadline: Instant) {
    for shard in 0..SHARDS {
        for page in ram.index.entries(shard).iter().flat_map(|entry| entry.pages()) {
            if tokio::time::timeout_at(deadline, write(nvme, ram, &page, page.frame.present()))
                .await
                .is_err()
            {
                return;
            }
        }
    }
}
