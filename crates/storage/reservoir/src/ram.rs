//! The RAM tier: pages under a byte budget.
//!
//! Readers ask for a page, claim the blocks that are missing and have them given memory here
//! ([`RamTier::allocate_for`]). When there is none, pages that nobody holds are evicted (`ram/evict.rs`). Pinned
//! pages are kept out of the eviction policy.
//!
//! Limits: memory by the arena's budget; pinned bytes and reserved runs by a share of it each.

mod abandon;
mod demotion;
mod evict;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_core::{BlockMask, PAGE_BYTES};
use parking_lot::Mutex;

use crate::arena::{Arena, Extent, RunShape};
use crate::eviction::{EpochPolicy, Eviction};
use crate::index::{Entry, EntryHandle, Index};
use crate::nvme::NvmeStore;
use crate::page::{Page, PageClaim};
use crate::pin::Pins;
use crate::run::Run;
use crate::stats::Counters;
use crate::working_set::WorkingSets;
use crate::{ObjectId, ObjectVersion, TrustDomain};

use demotion::Demotion;
pub(crate) use demotion::{DemotionLimits, Room, Shortage};

/// Reserved runs may take one part in this many of the budget.
const RESERVED_SHARE: u64 = 4;

/// Pages in RAM.
#[derive(Debug)]
pub(crate) struct RamTier {
    pub(crate) arena: Arc<Arena>,
    pub(crate) index: Arc<Index>,
    pub(crate) pins: Pins,
    pub(crate) working_sets: Arc<WorkingSets>,
    /// Each domain has its own: what one evicts is of no use to another.
    policies: Mutex<BTreeMap<TrustDomain, Box<dyn Eviction>>>,
    budget_bytes: u64,
    demotion: Option<Demotion>,
    pub(crate) counters: Arc<Counters>,
}

impl RamTier {
    /// An empty tier; evicted pages go to `nvme` if it is there.
    pub(crate) fn new(
        budget_bytes: u64,
        nvme: Option<(Arc<NvmeStore>, DemotionLimits)>,
        working_sets: Arc<WorkingSets>,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            arena: Arc::new(Arena::new(budget_bytes)),
            index: Arc::new(Index::new(Arc::clone(&counters))),
            pins: Pins::default(),
            working_sets,
            policies: Mutex::default(),
            budget_bytes,
            demotion: nvme.map(|(nvme, limits)| Demotion::new(nvme, budget_bytes, limits)),
            counters,
        }
    }

    /// The budget.
    pub(crate) fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// The entry of an object, to read or fill it.
    pub(crate) fn entry(&self, object: &ObjectVersion) -> EntryHandle {
        self.index.entry(object, || self.pins.covers(object))
    }

    /// Gives memory to the claimed blocks, from the run if there is one, else by eviction. `false` if there
    /// is none to be had now.
    pub(crate) fn allocate_for(&self, claim: &mut PageClaim, run: Option<&Run>, shortage: Shortage) -> bool {
        let page = Arc::clone(claim.page());
        let claim = claim.claim_mut();
        if claim.unbacked() == BlockMask::full(page.frame.bytes() as u64)
            && let Some(extent) = run.and_then(|run| run.take(page.key.page))
        {
            claim.attach(0, extent);
        }
        self.back_whole(&page);
        let mut is_backed = true;
        while let Some((first, bytes)) = first_unbacked(&page, claim.unbacked()) {
            let Some(extents) = self.allocate(page.object.domain, bytes, shortage) else {
                is_backed = false;
                break;
            };
            let mut block = first;
            for extent in extents {
                block = claim.attach(block, extent);
            }
        }
        if !page.frame.backed().is_empty() {
            self.admit(&page); // Also when it got only part of its memory: the policy must know what is held.
        }
        is_backed
    }

    /// Gives an empty page all its memory if all of it will be read, so that it lies in one piece however it
    /// is read first: what lies in pieces has to be copied for a client that wants a view. Only while memory
    /// is free: no other page goes for bytes that nobody has asked for yet.
    fn back_whole(&self, page: &Page) {
        if !page.frame.backed().is_empty() || !self.working_sets.cover_all_of(&page.key.object) {
            return;
        }
        let bytes = page.frame.bytes() as u64;
        if let Some(extents) = self.arena.allocate(page.object.domain, bytes) {
            let mut block = 0;
            for extent in extents {
                block = page.frame.attach(BlockMask::full(bytes), block, extent);
            }
        }
    }

    /// Tells the policy about a page that has memory, or counts it as pinned.
    pub(crate) fn admit(&self, page: &Arc<Page>) {
        let is_pinned = page.pinned.load(Ordering::Relaxed)
            || self
                .index
                .get(&page.key.object)
                .is_some_and(|entry| entry.is_pinned())
                && self.pin_page(page);
        if !is_pinned {
            let (bytes, whole_bytes) = (page.frame.backed_bytes(), page.frame.bytes() as u64);
            self.with_policy(page.object.domain, |policy| {
                policy.insert_part(page.key, bytes, whole_bytes);
            });
        }
    }

    /// Does something with the policy of a domain.
    fn with_policy<T>(&self, domain: TrustDomain, act: impl FnOnce(&mut dyn Eviction) -> T) -> T {
        let mut policies = self.policies.lock();
        let policy = policies
            .entry(domain)
            .or_insert_with(|| Box::new(EpochPolicy::new(Arc::clone(&self.working_sets))));
        act(policy.as_mut())
    }

    /// Memory, by eviction if needed.
    pub(crate) fn allocate(
        &self,
        domain: TrustDomain,
        bytes: u64,
        shortage: Shortage,
    ) -> Option<Vec<Extent>> {
        if bytes > self.budget_bytes {
            return None;
        }
        loop {
            if let Some(extents) = self.arena.allocate(domain, bytes) {
                self.wake_demoter();
                return Some(extents);
            }
            if !matches!(self.make_room(domain, shortage), Room::Freed(_)) {
                return None;
            }
        }
    }

    /// Memory for the pages of an object that lies together, or in few pieces; without a tier below, by
    /// eviction of as many bytes if needed.
    pub(crate) fn allocate_run(&self, domain: TrustDomain, object_bytes: u64) -> Option<Vec<Extent>> {
        let allocate = |shape| {
            let extents = self.arena.allocate_run(domain, object_bytes, shape)?;
            self.wake_demoter();
            Some(extents)
        };
        if let Some(extents) = allocate(RunShape::Whole) {
            return Some(extents);
        }
        if self.demotion.is_none() {
            // With a tier below, what is evicted here would be lost to it, and scattered memory is good
            // enough.
            let mut evicted_bytes = 0;
            while evicted_bytes < object_bytes {
                let Room::Freed(bytes) = self.make_room(domain, Shortage::Drop) else {
                    return None;
                };
                evicted_bytes += bytes;
            }
            if let Some(extents) = allocate(RunShape::Whole) {
                return Some(extents);
            }
        }
        allocate(RunShape::Pieces)
    }

    /// A run for an object that is about to be read whole; shared with those who read it already.
    pub(crate) fn reserve_run(&self, entry: &Entry) -> Option<Arc<Run>> {
        let bytes = entry.object.bytes;
        let mut of_entry = entry.run.lock();
        if let Some(run) = of_entry.upgrade() {
            return Some(run);
        }
        if bytes <= PAGE_BYTES
            || !entry.is_empty()
            || !self
                .counters
                .reserved_bytes
                .add_within(bytes, self.budget_bytes / RESERVED_SHARE)
        {
            return None;
        }
        let Some(extents) = self.allocate_run(entry.object.domain, bytes) else {
            self.counters.reserved_bytes.sub(bytes);
            return None;
        };
        let run = Arc::new(Run::new(extents, bytes, Arc::clone(&self.counters)));
        *of_entry = Arc::downgrade(&run);
        Some(run)
    }

    /// A page was read again: it should stay longer.
    pub(crate) fn touch(&self, page: &Page) {
        self.with_policy(page.object.domain, |policy| policy.touch(&page.key));
    }

    /// A page will be read soon: it should still be there then.
    pub(crate) fn will_need(&self, page: &Page) {
        self.with_policy(page.object.domain, |policy| policy.will_need(&page.key));
    }

    /// Takes a bad page out of the index; whoever holds it keeps it, nobody else finds it.
    pub(crate) fn quarantine(&self, page: &Arc<Page>, corrupt: BlockMask) {
        self.counters.corrupt_ram_blocks.add(u64::from(corrupt.count()));
        let object = &page.object;
        tracing::warn!(bucket = %object.bucket, key = %object.key, page = %page.key.page, blocks = ?corrupt,
            "page in ram does not match its checksum, dropped");
        self.expel(page);
    }

    /// Takes a page out of the index, whoever holds it.
    pub(crate) fn expel(&self, page: &Arc<Page>) {
        if let Some(page) = self.index.take(&page.key, |found| Arc::ptr_eq(found, page)) {
            self.release(&page);
        }
    }

    /// Drops a page that got no memory, so that it does not stay in the index empty.
    pub(crate) fn drop_if_empty(&self, page: &Arc<Page>) {
        let is_unused = |found: &Arc<Page>| {
            Arc::ptr_eq(found, page) && Arc::strong_count(found) == 2 && page.frame.backed().is_empty()
        };
        drop(self.index.take(&page.key, is_unused));
    }

    /// Forgets an object; how many bytes of it were there.
    pub(crate) fn forget(&self, id: &ObjectId) -> u64 {
        let pages = self.index.remove(id);
        pages.iter().map(|page| self.release(page)).sum()
    }

    /// Forgets what was kept about a page that left the index; how many bytes it had.
    pub(crate) fn release(&self, page: &Arc<Page>) -> u64 {
        self.with_policy(page.object.domain, |policy| policy.remove(&page.key));
        page.unpin();
        let entry = self.index.get(&page.key.object);
        if let Some(successor) = entry.and_then(|entry| entry.page(page.key.page))
            && !successor.frame.backed().is_empty()
        {
            self.admit(&successor); // It came in its place meanwhile, and has the same key.
        }
        page.frame.backed_bytes()
    }

    /// Puts a page that a write filled into the index.
    pub(crate) fn insert(&self, entry: &Entry, page: &Arc<Page>) {
        self.index.put(entry, Arc::clone(page));
        self.admit(page);
    }

    /// Takes a page that is now pinned out of the policy.
    pub(crate) fn exempt(&self, page: &Page) {
        self.with_policy(page.object.domain, |policy| policy.remove(&page.key));
    }
}

/// The first run of blocks without memory: its first block and its bytes.
fn first_unbacked(page: &Page, unbacked: BlockMask) -> Option<(u32, u64)> {
    let first = unbacked.blocks().next()?;
    let run = (first..).take_while(|block| unbacked.blocks().any(|other| other == *block));
    Some((first, run.map(|block| page.frame.block_bytes(block) as u64).sum()))
}
