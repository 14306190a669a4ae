//! Eviction from RAM, with and without a tier below.
//!
//! Without NVMe a victim is dropped when somebody needs its memory. With NVMe a small reserve of memory is
//! kept free: when it shrinks, the demoter takes victims, writes them, and only then takes them out of the
//! index, so that a page is always found in one tier or the other. Readers who are faster than the disk use
//! the reserve up. Then what is on NVMe already goes at once; what is not is handed to the demoter, and the
//! reader waits for its memory (`demotion.rs` says how long). What is evicted and not on NVMe is lost to it,
//! which is counted.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_core::BlockMask;

use super::RamTier;
use super::demotion::{Room, Shortage};
use crate::arena::DomainClaim;
use crate::page::Page;
use crate::{PageKey, TrustDomain};

/// Victims that one search for memory hands to the demoter, at most.
const HAND_OVERS_MAX: usize = 8;

impl RamTier {
    /// Evicts something for a domain that needs memory.
    ///
    /// A domain below its share takes a segment from others; else its own pages go, and if none can, others
    /// are asked again.
    pub(super) fn make_room(&self, domain: TrustDomain, shortage: Shortage) -> Room {
        let shortage = self.shortage_now(shortage);
        [
            |ram: &Self, domain, shortage| ram.empty_segment_for(domain, DomainClaim::Share, shortage),
            Self::evict_one_of,
            |ram: &Self, domain, shortage| ram.empty_segment_for(domain, DomainClaim::Need, shortage),
        ]
        .into_iter()
        .map(|make_room| make_room(self, domain, shortage))
        .find(|room| *room != Room::Nothing)
        .unwrap_or(Room::Nothing)
    }

    /// Evicts one page of any domain, whether it is on NVMe or not.
    #[cfg(test)]
    pub(crate) fn evict_one(&self) -> Option<u64> {
        let domains: Vec<_> = self.policies.lock().keys().copied().collect();
        domains
            .into_iter()
            .find_map(|domain| match self.evict_one_of(domain, Shortage::Drop) {
                Room::Freed(bytes) => Some(bytes),
                Room::Coming | Room::Nothing => None,
            })
    }

    /// Waits only where that is worth it.
    fn shortage_now(&self, shortage: Shortage) -> Shortage {
        match &self.demotion {
            Some(demotion) if shortage == Shortage::Wait && demotion.is_worth_waiting() => Shortage::Wait,
            _ => Shortage::Drop,
        }
    }

    /// Evicts one page that nobody holds.
    fn evict_one_of(&self, domain: TrustDomain, shortage: Shortage) -> Room {
        let mut handed_over = 0;
        while handed_over < HAND_OVERS_MAX {
            if shortage == Shortage::Wait && self.is_demotion_full() {
                return Room::Coming;
            }
            let Some(page) = self.next_victim(domain) else {
                break;
            };
            match self.evict(page, shortage) {
                Room::Freed(bytes) => return Room::Freed(bytes),
                Room::Coming => handed_over += 1,
                Room::Nothing => {}
            }
        }
        match handed_over {
            0 => Room::Nothing,
            _ => Room::Coming,
        }
    }

    /// Evicts a page that the policy does not know any more, or has it written first; `Nothing` if somebody
    /// holds it.
    pub(super) fn evict(&self, page: Arc<Page>, shortage: Shortage) -> Room {
        let present = page.frame.present();
        if shortage == Shortage::Wait
            && self.is_lost(&page, present)
            && let Some(demotion) = &self.demotion
        {
            demotion.hand_over(page);
            return Room::Coming;
        }
        let bytes = page.frame.backed_bytes();
        if self.finish_eviction(page, present) {
            Room::Freed(bytes)
        } else {
            Room::Nothing
        }
    }

    /// Returns whether NVMe does not have these blocks of a page.
    fn is_lost(&self, page: &Page, blocks: BlockMask) -> bool {
        self.demotion.as_ref().is_some_and(|demotion| {
            let there = demotion.nvme.lookup(&page.key).unwrap_or_default();
            !there.contains(blocks)
        })
    }

    /// The page that should go next. It is still in the index, but the policy does not know it any more.
    pub(crate) fn next_victim(&self, domain: TrustDomain) -> Option<Arc<Page>> {
        loop {
            let mut may_go = |key: &PageKey| {
                self.index
                    .get(&key.object)
                    .is_none_or(|entry| entry.is_idle(key.page))
            };
            let key = self.with_policy(domain, |policy| policy.victim(&mut may_go))?;
            if let Some(page) = self.index.get(&key.object).and_then(|entry| entry.page(key.page)) {
                return Some(page);
            }
        }
    }

    /// Takes a victim out of the index unless somebody holds it by now, or it has other blocks than `present`;
    /// says whether it went. Counts it if NVMe does not have it.
    pub(crate) fn finish_eviction(&self, page: Arc<Page>, present: BlockMask) -> bool {
        let key = page.key;
        let is_unheld = |found: &Arc<Page>| {
            let is_pinned = page.pinned.load(Ordering::Acquire); // By now; it was not when it was chosen.
            Arc::ptr_eq(found, &page)
                && Arc::strong_count(found) == 2
                && !is_pinned
                && page.frame.present() == present
        };
        let taken = self.index.take(&key, is_unheld);
        let went = taken.is_some();
        if went {
            self.counters.evicted_ram_pages.add(1);
            self.counters
                .demotions_dropped
                .add(u64::from(self.is_lost(&page, present)));
        } else if self
            .index
            .get(&key.object)
            .is_some_and(|entry| entry.page(key.page).is_some())
        {
            self.admit(&page);
        }
        drop((taken, page)); // Its memory is free before anyone is told so.
        self.index.sweep(&key.object);
        went
    }

    /// Tells the demoter when the reserve shrinks.
    pub(super) fn wake_demoter(&self) {
        if let Some(demotion) = &self.demotion
            && self.is_reserve_low()
        {
            demotion.low.notify_one();
        }
    }

    /// Returns whether less memory is free than the reserve.
    pub(crate) fn is_reserve_low(&self) -> bool {
        let reserve_bytes = self
            .demotion
            .as_ref()
            .map_or(0, |demotion| demotion.reserve_bytes);
        self.arena.available_bytes() < reserve_bytes
    }

    /// Waits until an allocation finds the reserve low, or a page was handed over.
    pub(crate) async fn reserve_is_low(&self) {
        match &self.demotion {
            Some(demotion) => demotion.low.notified().await,
            None => std::future::pending().await,
        }
    }

    /// A page to be written to NVMe, then evicted: one that was handed over, or else, unless `pending_bytes`
    /// that are on their way fill the reserve, a victim.
    pub(crate) fn demotion_victim(&self, pending_bytes: u64) -> Option<Arc<Page>> {
        let demotion = self.demotion.as_ref()?;
        if let Some(page) = demotion.take_waiting() {
            return Some(page);
        }
        if self.arena.available_bytes() + pending_bytes >= demotion.reserve_bytes {
            return None;
        }
        self.next_victim(self.arena.busiest_domain())
    }

    /// Tells that a demotion begins.
    pub(crate) fn begin_demotion(&self) {
        if let Some(demotion) = &self.demotion {
            demotion.begin_write();
        }
    }

    /// Tells that a demotion has ended for which the disk had to take so many bytes.
    pub(crate) fn end_demotion(&self, bytes: u64) {
        if let Some(demotion) = &self.demotion {
            demotion.end_write(bytes);
        }
    }

    /// Returns whether memory comes free soon, because pages are being written that make room.
    pub(crate) fn is_room_coming(&self) -> bool {
        self.demotion
            .as_ref()
            .is_some_and(|demotion| demotion.is_under_way() && demotion.is_worth_waiting())
    }

    /// The longest wait of one read for that.
    pub(crate) fn demotion_wait_max(&self) -> Duration {
        self.demotion
            .as_ref()
            .map_or(Duration::ZERO, |demotion| demotion.limits.wait_max)
    }

    fn is_demotion_full(&self) -> bool {
        self.demotion
            .as_ref()
            .is_some_and(super::demotion::Demotion::is_full)
    }
}
