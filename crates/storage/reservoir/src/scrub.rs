//! The scrub: checks every block in RAM again, once per period.
//!
//! RAM that a client maps was checked when it entered; a bit that flips later is found here at the latest.
//! The period is divided over the shards of the index, so the work is spread out; after each page others get
//! a turn.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::index::SHARDS;
use crate::ram::RamTier;

/// Checks all pages, forever, until it is told to stop.
pub(crate) async fn scrub(ram: Arc<RamTier>, period: Duration, stop: CancellationToken) {
    let pause = period / SHARDS as u32;
    loop {
        for shard in 0..SHARDS {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            scrub_shard(&ram, shard, &stop).await;
        }
    }
}

async fn scrub_shard(ram: &RamTier, shard: usize, stop: &CancellationToken) {
    for entry in ram.index.entries(shard) {
        let (id, pages) = (entry.id, entry.pages());
        drop(entry);
        for page in pages {
            if stop.is_cancelled() {
                return;
            }
            let present = page.frame.present();
            let corrupt = page.frame.corrupt(present);
            ram.counters.scrubbed_blocks.add(u64::from(present.count()));
            if !corrupt.is_empty() {
                ram.quarantine(&page, corrupt);
            }
            drop(page);
            tokio::task::yield_now().await;
        }
        ram.index.sweep(&id);
    }
}
