//! Rebuilds the index from the records of a journal, at open.
//!
//! Records are applied in order. A page record is kept only if it makes sense today: its object is known, its
//! runs lie inside the capacity and in segment files that are there, and they hold exactly its blocks. Of two
//! records that claim the same units the one of the higher generation is right and the other is dropped, as a
//! whole part: its bytes are gone. What is kept is still checked block by block on first use.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use forebay_core::{BlockMask, page_bytes};

use super::{Index, Page};
use crate::eviction::Eviction;
use crate::nvme::extent::{Extent, Returned, blocks_units};
use crate::nvme::record::{PageRecord, Record};
use crate::nvme::space::{Run, Space};
use crate::{ObjectId, ObjectVersion, PageKey};

/// The claimant of the units from some address on.
#[derive(Debug, Clone, Copy)]
struct Claim {
    end: u64,
    key: PageKey,
    generation: u64,
}

/// An index in the making.
#[derive(Debug)]
pub(crate) struct Replay {
    index: Index,
    returned: Arc<Returned>,
    known: HashMap<ObjectId, Arc<ObjectVersion>>,
    claims: BTreeMap<u64, Claim>,
    capacity_units: u64,
    segments: BTreeSet<u64>,
}

impl Replay {
    /// Starts empty; `segments` are the numbers of the segment files that are there.
    pub(crate) fn new(
        eviction: Box<dyn Eviction>,
        returned: &Arc<Returned>,
        capacity_units: u64,
        segments: BTreeSet<u64>,
    ) -> Self {
        Self {
            index: Index::new(eviction, Arc::clone(returned)),
            returned: Arc::clone(returned),
            known: HashMap::new(),
            claims: BTreeMap::new(),
            capacity_units,
            segments,
        }
    }

    /// Applies the next record.
    pub(crate) fn apply(&mut self, record: Record) {
        match record {
            Record::Object(id, object) => {
                self.known.insert(id, object);
            }
            Record::Page(page) => self.apply_page(&page),
            Record::RemoveBlocks(key, blocks) => self.remove(&key, blocks),
            Record::RemoveObject(id) => {
                for key in self.index.keys_of(&id) {
                    self.remove(&key, BlockMask(u16::MAX));
                }
            }
        }
    }

    /// The index, with its eviction order and free space.
    pub(crate) fn finish(mut self) -> Index {
        let age = |page: &Page| page.parts.iter().map(|part| part.generation).max().unwrap_or(0);
        let mut by_age: Vec<(u64, PageKey)> = self
            .index
            .pages
            .iter()
            .map(|(key, page)| (age(page), *key))
            .collect();
        by_age.sort_unstable();
        for (_, key) in by_age {
            self.index.policy_insert(&key);
        }
        let taken = self
            .claims
            .iter()
            .map(|(&start, claim)| Run {
                start,
                units: claim.end - start,
            })
            .collect();
        self.index.space = Space::new(self.capacity_units, taken);
        // Extents dropped on the way are free in the new space already.
        self.returned.take();
        self.index
    }

    fn apply_page(&mut self, record: &PageRecord) {
        self.index.generation = self.index.generation.max(record.generation);
        let Some(object) = self.known.get(&record.key.object).map(Arc::clone) else {
            return;
        };
        if !self.makes_sense(record, object.bytes) {
            return;
        }
        let overlapping = self.overlapping(&record.runs);
        if overlapping
            .iter()
            .any(|claim| claim.generation > record.generation)
        {
            return;
        }
        for claim in overlapping {
            self.remove_part(&claim.key, claim.generation);
        }
        self.remove(&record.key, record.live);
        if !self.index.objects.contains_key(&record.key.object) {
            self.index.put_object(record.key.object, object);
        }
        for run in &record.runs {
            let claim = Claim {
                end: run.end(),
                key: record.key,
                generation: record.generation,
            };
            self.claims.insert(run.start, claim);
        }
        self.index
            .put_part(record, &Extent::new(record.runs.clone(), &self.returned));
    }

    fn makes_sense(&self, record: &PageRecord, object_bytes: u64) -> bool {
        let page_bytes = page_bytes(object_bytes, record.key.page);
        let units: u64 = record.runs.iter().map(|run| run.units).sum();
        let mut sorted = record.runs.clone();
        sorted.sort_unstable();
        BlockMask::full(page_bytes).contains(record.stored)
            && units == blocks_units(page_bytes, record.stored)
            && sorted
                .iter()
                .all(|run| run.is_valid(self.capacity_units) && self.segments.contains(&run.segment()))
            && sorted.windows(2).all(|pair| pair[0].end() <= pair[1].start)
    }

    fn overlapping(&self, runs: &[Run]) -> Vec<Claim> {
        let mut found = Vec::new();
        for run in runs {
            let before = self
                .claims
                .range(..run.start)
                .next_back()
                .filter(|(_, claim)| claim.end > run.start);
            let within = self.claims.range(run.start..run.end());
            found.extend(before.into_iter().chain(within).map(|(_, claim)| *claim));
        }
        found
    }

    fn remove_part(&mut self, key: &PageKey, generation: u64) {
        let Some(page) = self.index.pages.get(key) else {
            return;
        };
        let live = page
            .parts
            .iter()
            .find(|part| part.generation == generation)
            .map(|part| part.live);
        self.remove(key, live.unwrap_or(BlockMask::EMPTY));
    }

    fn remove(&mut self, key: &PageKey, blocks: BlockMask) {
        let mut released = Vec::new();
        self.index.take_blocks(key, blocks, &mut released);
        for run in released.iter().flat_map(|extent| extent.runs()) {
            self.claims.remove(&run.start);
        }
    }
}

#[cfg(test)]
mod tests;
