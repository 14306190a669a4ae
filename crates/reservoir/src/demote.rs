//! Demotion: pages that leave RAM go to NVMe.
//!
//! One task takes evicted pages from a bounded queue and writes them. The queue holds the pages, so their memory is
//! reused only after they are written; when it is full, eviction drops the page instead. At shutdown what
//! is still in RAM is written too, as far as the deadline allows, so that a restart begins warm.

use std::sync::Arc;

use forebay_core::{BLOCKS_PER_PAGE, Kind};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::index::SHARDS;
use crate::nvme_names::NamedNvme;
use crate::page::Page;
use crate::ram::RamTier;

/// The queue holds at most this many pages, and at most one part in `QUEUE_SHARE` of the RAM budget.
const QUEUE_PAGES_MAX: u64 = 64;
const QUEUE_SHARE: u64 = 16;

/// How many pages may wait for the disk.
pub(crate) fn queue_pages(ram_bytes: u64) -> usize {
    (ram_bytes / forebay_core::PAGE_BYTES / QUEUE_SHARE).clamp(1, QUEUE_PAGES_MAX) as usize
}

/// Writes evicted pages until it is told to stop.
pub(crate) async fn demote(
    nvme: Arc<NamedNvme>,
    mut queue: mpsc::Receiver<Arc<Page>>,
    stop: CancellationToken,
) {
    loop {
        let page = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            page = queue.recv() => page,
        };
        let Some(page) = page else { return };
        write(&nvme, &page).await;
    }
}

/// Writes a page unless it is there already; says whether the disk asked for patience.
async fn write(nvme: &NamedNvme, page: &Arc<Page>) -> bool {
    let present = page.frame.present();
    if nvme
        .store
        .lookup(&page.key)
        .is_some_and(|there| there.contains(present))
    {
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
        Ok(()) => false,
        Err(error) if error.kind() == Kind::Busy => true,
        Err(error) => {
            tracing::debug!(%error, "page was not written to nvme");
            false
        }
    }
}

/// Writes every page in RAM that is not on NVMe yet, until the deadline.
pub(crate) async fn write_all(nvme: &NamedNvme, ram: &RamTier, deadline: Instant) {
    for shard in 0..SHARDS {
        for page in ram.index.entries(shard).iter().flat_map(|entry| entry.pages()) {
            while !page.frame.present().is_empty() {
                let Ok(is_busy) = tokio::time::timeout_at(deadline, write(nvme, &page)).await else {
                    return;
                };
                if !is_busy {
                    break;
                }
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                if Instant::now() >= deadline {
                    return;
                }
            }
        }
    }
}
