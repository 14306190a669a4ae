//! Whole segments that leave: emptied for another trust domain, or abandoned because a client holds them too
//! long.
//!
//! Both look through the whole index for the pages that lie in a segment. That is slow and rare: a domain
//! takes a segment at a time, and a lease times out after an hour.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;

use super::RamTier;
use super::demotion::{Room, Shortage};
use crate::arena::DomainClaim;
use crate::index::SHARDS;
use crate::segment::SegmentId;
use crate::{PageKey, TrustDomain};

/// The content of one segment, as the index knows it.
#[derive(Default)]
struct Content {
    pages: HashSet<PageKey>,
    units: u32,
}

impl RamTier {
    /// Evicts all pages of one segment of another domain, so that it can be dropped, or has them written
    /// first.
    pub(super) fn empty_segment_for(
        &self,
        domain: TrustDomain,
        claim: DomainClaim,
        shortage: Shortage,
    ) -> Room {
        let candidates = self.arena.segments_to_empty(domain, claim);
        if candidates.is_empty() {
            return Room::Nothing;
        }
        let mut contents = self.contents_of(&candidates.iter().map(|candidate| candidate.id).collect());
        let emptied = candidates.into_iter().find_map(|candidate| {
            let content = contents.remove(&candidate.id)?;
            // What the index does not know belongs to a lease, a write or a run: it stays, and the segment
            // with it.
            if content.units != candidate.used_units || !content.pages.iter().all(|page| self.may_go(page)) {
                return None;
            }
            let mut rooms = content.pages.iter().map(|page| self.evict_key(page, shortage));
            let emptied = rooms
                .by_ref()
                .fold((0, false), |(bytes, is_coming), room| match room {
                    Room::Freed(more) => (bytes + more, is_coming),
                    Room::Coming => (bytes, true),
                    Room::Nothing => (bytes, is_coming),
                });
            match emptied {
                (_, true) => Some(Room::Coming),
                (0, false) => None,
                (bytes, false) => Some(Room::Freed(bytes)),
            }
        });
        emptied.unwrap_or(Room::Nothing)
    }

    fn may_go(&self, key: &PageKey) -> bool {
        let Some(entry) = self.index.get(&key.object) else {
            return true;
        };
        let is_pinned = entry
            .page(key.page)
            .is_some_and(|page| page.pinned.load(Ordering::Relaxed));
        entry.is_idle(key.page) && !is_pinned
    }

    fn evict_key(&self, key: &PageKey, shortage: Shortage) -> Room {
        let entry = self.index.get(&key.object);
        let Some(page) = entry.and_then(|entry| entry.page(key.page)) else {
            return Room::Nothing;
        };
        self.exempt(&page);
        self.evict(page, shortage)
    }

    /// Gives segments up for good: nothing is written to them again, and nobody finds pages in them.
    pub(crate) fn abandon(&self, segments: &HashSet<SegmentId>) {
        let (count, bytes) = self.arena.abandon(segments.iter().copied());
        self.counters.abandoned_segments.add(count);
        self.counters.abandoned_bytes.add(bytes);
        for key in self
            .contents_of(segments)
            .into_values()
            .flat_map(|content| content.pages)
        {
            let page = self.index.get(&key.object).and_then(|entry| entry.page(key.page));
            if let Some(page) = page {
                self.expel(&page);
            }
            self.index.sweep(&key.object);
        }
    }

    /// The pages of the index that lie in these segments, at least in part.
    fn contents_of(&self, segments: &HashSet<SegmentId>) -> HashMap<SegmentId, Content> {
        let mut contents: HashMap<SegmentId, Content> = HashMap::new();
        for shard in 0..SHARDS {
            self.index.visit_pages(shard, |page| {
                page.frame.visit_memory(|segment, units| {
                    if segments.contains(&segment) {
                        let content = contents.entry(segment).or_default();
                        content.units += units;
                        content.pages.insert(page.key);
                    }
                });
            });
        }
        contents
    }
}
