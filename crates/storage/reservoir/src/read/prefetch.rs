//! Bringing bytes in for readers who will come later: nothing is leased, checked or handed out.
//!
//! A loader that knows its order asks for ranges ahead of their use. What is there costs a look; what is
//! missing is fetched as read-ahead, which never goes before somebody who waits, and becomes demand as soon
//! as somebody does. Blocks are checked when they come in and again when they are handed out, so there is
//! nothing to check here.
//!
//! Limits: as a read, a window of pages at a time, and windows together half of the RAM that is not pinned.
//! Without memory it waits for pages that are on their way to NVMe, else it ends early and says how far it
//! came: bytes that cannot be kept are not worth fetching.

use std::sync::Arc;

use forebay_core::{BlockMask, ByteRange, Error, Kind, PAGE_BYTES, PageIndex, Result, Tier, TierBytes};
use tokio::time::{Instant, timeout_at};

use super::{WINDOW_BYTES_MAX, WINDOW_SHARE, WINDOWS_SHARE, wanted_blocks};
use crate::fill::{FillRequest, RoutedClaims};
use crate::index::EntryHandle;
use crate::page::{InWindow, Waited};
use crate::ram::Shortage;
use crate::reservoir::Reservoir;
use crate::{ObjectId, ObjectVersion, Priority, Source};

/// A page that is waited for.
struct Coming {
    page: InWindow,
    wanted: BlockMask,
    found: BlockMask,
}

impl Reservoir {
    /// Returns whether all bytes of a range are in RAM, where somebody will want them soon.
    #[must_use]
    pub fn is_resident(&self, id: &ObjectId, range: ByteRange) -> bool {
        let Some(pages) = self.ram.index.lease_pages(id, range) else {
            return false;
        };
        pages.iter().for_each(|page| self.ram.will_need(page));
        true
    }

    /// Brings a range into RAM as far as there is memory for it; says where what is there now came from.
    ///
    /// Errors are those of the source. Cancel-safe: fills that it started go on for the others.
    pub async fn prefetch(
        self: &Arc<Self>,
        object: &ObjectVersion,
        range: ByteRange,
        source: &Arc<dyn Source>,
    ) -> Result<TierBytes> {
        if range.end() > object.bytes {
            let error = Error::new(Kind::OutOfRange, "the range ends past the end of the object");
            return Err(error.with("range", range).with("bytes", object.bytes));
        }
        let mut tiers = TierBytes::default();
        let mut entry = self.ram.entry(object);
        let request = FillRequest::new(&entry.object, source, Priority::ReadAhead);
        let mut planned = range.start();
        while planned < range.end() {
            if entry.is_dead() {
                entry = self.ram.entry(object);
            }
            let rest = ByteRange::new(planned, range.end())?;
            let coming = self.plan_or_wait(&entry, &request, rest).await;
            let Some(last) = coming.last() else { break };
            planned = (last.page.key.page.start() + PAGE_BYTES).min(range.end());
            for page in &coming {
                if !page.arrive(range, &mut tiers).await? {
                    return Ok(tiers);
                }
            }
        }
        Ok(tiers)
    }

    /// Plans pages, and waits for memory first while pages are on their way to NVMe that make room.
    async fn plan_or_wait(&self, entry: &EntryHandle, request: &FillRequest, rest: ByteRange) -> Vec<Coming> {
        let deadline = Instant::now() + self.ram.demotion_wait_max();
        loop {
            let mut freed = std::pin::pin!(self.ram.arena.space_freed.notified());
            freed.as_mut().enable();
            let coming = self.plan_window(entry, request, rest);
            if !coming.is_empty() || !self.ram.is_room_coming() || timeout_at(deadline, freed).await.is_err()
            {
                return coming;
            }
        }
    }

    /// Plans pages from the beginning of `rest` up to a window, or as far as there is memory, and starts
    /// their fills.
    fn plan_window(&self, entry: &EntryHandle, request: &FillRequest, rest: ByteRange) -> Vec<Coming> {
        let window_bytes = WINDOW_BYTES_MAX.min(self.ram.budget_bytes() / WINDOW_SHARE);
        let unpinned_bytes = self
            .ram
            .budget_bytes()
            .saturating_sub(self.counters.pinned_ram_bytes.get());
        let end = rest.end().min(rest.start() + window_bytes.max(PAGE_BYTES));
        let mut claims = RoutedClaims::new(&self.filler, request, Priority::ReadAhead);
        let mut coming: Vec<Coming> = Vec::new();
        for number in rest.start() / PAGE_BYTES..end.div_ceil(PAGE_BYTES) {
            let Ok(number) = u32::try_from(number) else { break };
            let index = PageIndex(number);
            let wanted = wanted_blocks(index, rest);
            let page = self.ram.index.page(entry, index);
            let bytes = self.counters.window_bytes.get() + page.frame.bytes() as u64;
            if !coming.is_empty() && bytes > unpinned_bytes / WINDOWS_SHARE {
                self.ram.drop_if_empty(&page);
                break;
            }
            let found = page.frame.present();
            self.ram.will_need(&page);
            if !found.contains(wanted) {
                let control = claims.control(index.start());
                if let Some(mut claim) = page.claim(wanted, &control) {
                    if !self.ram.allocate_for(&mut claim, None, Shortage::Wait) {
                        claim.fail_no_memory();
                        self.ram.drop_if_empty(&page);
                        break;
                    }
                    claims.push(claim);
                }
                page.join_fills(wanted, &control);
            }
            let page = InWindow::new(page);
            coming.push(Coming { page, wanted, found });
        }
        claims.start();
        coming
    }
}

impl Coming {
    /// Waits until the page is there; `false` if nobody has memory for it.
    async fn arrive(&self, range: ByteRange, tiers: &mut TierBytes) -> Result<bool> {
        for block in self.wanted.blocks() {
            match self.page.wait_for(block).await {
                Waited::Ready => {}
                Waited::Abandoned(Some(error)) => return Err(error),
                Waited::NoMemory | Waited::Abandoned(None) => return Ok(false),
            }
        }
        let start = self.page.key.page.start();
        let bytes = range.end().min(start + PAGE_BYTES) - range.start().max(start);
        tiers.add(
            match () {
                () if self.found.contains(self.wanted) => Tier::Ram,
                () => self.page.filled_from(self.wanted),
            },
            bytes,
        );
        Ok(true)
    }
}
