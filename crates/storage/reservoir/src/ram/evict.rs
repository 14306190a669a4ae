//! Eviction from RAM, with and without a tier below.
//!
//! Without NVMe a victim is dropped when somebody needs its memory. With NVMe a small reserve of memory is
//! kept free: when it shrinks, the demoter takes victims, writes them, and only then takes them out of the
//! index, so that a page is always found in one tier or the other. Readers who are faster than the disk use
//! the reserve up and then evict for themselves; what they evict and is not on NVMe is lost to it, which is
//! counted.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_core::PAGE_BYTES;
use tokio::sync::Notify;

use super::RamTier;
use crate::arena::DomainClaim;
use crate::nvme::NvmeStore;
use crate::page::Page;
use crate::{PageKey, TrustDomain};

/// The reserve is one part in this many of the budget, within limits.
const RESERVE_SHARE: u64 = 32;
const RESERVE_BYTES_MAX: u64 = 64 << 20;

/// The way down to NVMe.
#[derive(Debug)]
pub(super) struct Demotion {
    nvme: Arc<NvmeStore>,
    reserve_bytes: u64,
    low: Notify,
}

impl Demotion {
    pub(super) fn new(nvme: Arc<NvmeStore>, budget_bytes: u64) -> Self {
        let reserve_bytes = (budget_bytes / RESERVE_SHARE).clamp(2 * PAGE_BYTES, RESERVE_BYTES_MAX);
        Self {
            nvme,
            reserve_bytes: reserve_bytes.min(budget_bytes / 2),
            low: Notify::new(),
        }
    }
}

impl RamTier {
    /// Evicts something for a domain that needs memory; how many bytes came free, `None` if nothing can go.
    ///
    /// A domain below its share takes a segment from others; else its own pages go, and if none can, others
    /// are asked again.
    pub(super) fn make_room(&self, domain: TrustDomain) -> Option<u64> {
        self.empty_segment_for(domain, DomainClaim::Share)
            .or_else(|| self.evict_one_of(domain))
            .or_else(|| self.empty_segment_for(domain, DomainClaim::Need))
    }

    /// Evicts one page of any domain.
    #[cfg(test)]
    pub(crate) fn evict_one(&self) -> Option<u64> {
        let domains: Vec<_> = self.policies.lock().keys().copied().collect();
        domains.into_iter().find_map(|domain| self.evict_one_of(domain))
    }

    /// Evicts one page that nobody holds; how many bytes it had, `None` if there is no such page.
    fn evict_one_of(&self, domain: TrustDomain) -> Option<u64> {
        loop {
            let page = self.next_victim(domain)?;
            if let Some(bytes) = self.evict(page) {
                return Some(bytes);
            }
        }
    }

    /// Evicts a page that the policy does not know any more; how many bytes it had, `None` if somebody holds
    /// it.
    pub(super) fn evict(&self, page: Arc<Page>) -> Option<u64> {
        let bytes = page.frame.backed_bytes();
        let is_lost = self.demotion.as_ref().is_some_and(|demotion| {
            let there = demotion.nvme.lookup(&page.key).unwrap_or_default();
            !there.contains(page.frame.present())
        });
        if !self.finish_eviction(page) {
            return None;
        }
        self.counters.demotions_dropped.add(u64::from(is_lost));
        Some(bytes)
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

    /// Takes a victim out of the index unless somebody holds it by now; says whether it went.
    pub(crate) fn finish_eviction(&self, page: Arc<Page>) -> bool {
        let key = page.key;
        let is_unheld = |found: &Arc<Page>| {
            let is_pinned = page.pinned.load(Ordering::Acquire); // By now; it was not when it was chosen.
            Arc::ptr_eq(found, &page) && Arc::strong_count(found) == 2 && !is_pinned
        };
        let taken = self.index.take(&key, is_unheld);
        let went = taken.is_some();
        if went {
            self.counters.evicted_ram_pages.add(1);
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

    /// Waits until an allocation finds the reserve low.
    pub(crate) async fn reserve_is_low(&self) {
        match &self.demotion {
            Some(demotion) => demotion.low.notified().await,
            None => std::future::pending().await,
        }
    }

    /// A page to be written to NVMe, then evicted, unless `pending_bytes` that are on their way fill the
    /// reserve.
    pub(crate) fn demotion_victim(&self, pending_bytes: u64) -> Option<Arc<Page>> {
        let demotion = self.demotion.as_ref()?;
        if self.arena.available_bytes() + pending_bytes >= demotion.reserve_bytes {
            return None;
        }
        self.next_victim(self.arena.busiest_domain())
    }
}
