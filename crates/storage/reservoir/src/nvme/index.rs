//! The in-memory index of the NVMe tier: pages and their extents.
//!
//! A page is made of parts, one per write, each with its own extent and disjoint live blocks: blocks that
//! come later are added without rewriting those that are there. The index is changed only together with
//! pushing the record of the change to the journal, under one lock, so both always tell the same story.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use forebay_core::{BlockMask, PageIndex, page_bytes};

use super::extent::{Extent, Returned, blocks_bytes};
use super::record::{PageRecord, Record, object_record_bytes, page_record_bytes};
use super::space::{Space, UNIT_BYTES};
use crate::eviction::Eviction;
use crate::{ObjectId, ObjectVersion, PageKey};

pub(crate) mod replay;

/// Some blocks of a page, written together.
#[derive(Debug, Clone)]
pub(crate) struct PagePart {
    /// See [`PageRecord::generation`].
    pub(crate) generation: u64,
    /// Blocks packed in the extent, in order.
    pub(crate) stored: BlockMask,
    /// Those of them that may be read.
    pub(crate) live: BlockMask,
    /// Its location.
    pub(crate) extent: Arc<Extent>,
}

impl PagePart {
    fn record_bytes(&self) -> u64 {
        page_record_bytes(self.extent.runs().len(), self.live)
    }
}

/// A page and its parts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Page {
    /// Never empty, live blocks disjoint.
    pub(crate) parts: Vec<PagePart>,
    /// CRC32C of each live block.
    pub(crate) checksums: [u32; 16],
}

impl Page {
    /// Blocks that may be read.
    pub(crate) fn live(&self) -> BlockMask {
        self.parts
            .iter()
            .fold(BlockMask::EMPTY, |mask, part| mask.union(part.live))
    }
}

#[derive(Debug)]
struct ObjectEntry {
    version: Arc<ObjectVersion>,
    pages: u64,
    used_bytes: u64,
}

/// Gauges of the index.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Totals {
    /// Bytes of live blocks.
    pub(crate) used_bytes: u64,
    /// Bytes that the records of everything live take in a fresh journal.
    pub(crate) record_bytes: u64,
    /// Pages evicted since the start.
    pub(crate) evicted_pages: u64,
}

/// The index. Removed extents and records to journal leave through `Change`.
#[derive(Debug)]
pub(crate) struct Index {
    pages: BTreeMap<PageKey, Page>,
    objects: HashMap<ObjectId, ObjectEntry>,
    pinned: HashSet<ObjectId>,
    eviction: Box<dyn Eviction>,
    /// Free units.
    pub(crate) space: Space,
    returned: Arc<Returned>,
    totals: Totals,
    generation: u64,
    /// Objects with writes under way; bounded like those.
    being_written: HashMap<ObjectId, BeingWritten>,
}

/// An object with writes under way.
#[derive(Debug, Default)]
struct BeingWritten {
    writes: u64,
    /// The generation at which the object was removed meanwhile.
    removed_at: u64,
}

/// Work that a change of the index leaves: records to append and extents to let go after they are written.
#[derive(Debug, Default)]
pub(crate) struct Change {
    /// Framed records.
    pub(crate) records: Vec<u8>,
    /// Held until the records are in the journal file.
    pub(crate) released: Vec<Arc<Extent>>,
}

impl Change {
    fn push(&mut self, record: &Record) {
        record.encode(&mut self.records);
    }
}

impl Index {
    /// An empty index that still has to learn its space.
    pub(crate) fn new(eviction: Box<dyn Eviction>, returned: Arc<Returned>) -> Self {
        Self {
            pages: BTreeMap::new(),
            objects: HashMap::new(),
            pinned: HashSet::new(),
            eviction,
            space: Space::new(0, Vec::new()),
            returned,
            totals: Totals::default(),
            generation: 0,
            being_written: HashMap::new(),
        }
    }

    /// The page, if any block of it is here.
    pub(crate) fn page(&self, key: &PageKey) -> Option<&Page> {
        self.pages.get(key)
    }

    /// The object of a page that is here.
    pub(crate) fn object(&self, id: &ObjectId) -> Option<&Arc<ObjectVersion>> {
        self.objects.get(id).map(|entry| &entry.version)
    }

    /// Every object with its bytes.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (&Arc<ObjectVersion>, u64)> {
        self.objects
            .values()
            .map(|entry| (&entry.version, entry.used_bytes))
    }

    /// Returns how many pages.
    pub(crate) fn page_count(&self) -> u64 {
        self.pages.len() as u64
    }

    /// Gauges.
    pub(crate) fn totals(&self) -> Totals {
        self.totals
    }

    /// Bytes of pinned objects.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        self.pinned
            .iter()
            .filter_map(|id| self.objects.get(id))
            .map(|entry| entry.used_bytes)
            .sum()
    }

    /// A page was read.
    pub(crate) fn touch(&mut self, key: &PageKey) {
        self.eviction.touch(key);
    }

    /// Bytes that the records of a part and, if it is new, of its object take.
    pub(crate) fn record_bytes_of(
        &self,
        object: &ObjectVersion,
        id: &ObjectId,
        runs: usize,
        live: BlockMask,
    ) -> u64 {
        let object_bytes = if self.objects.contains_key(id) {
            0
        } else {
            object_record_bytes(object)
        };
        object_bytes + page_record_bytes(runs, live)
    }

    /// A write of the object begins; the answer is for `add`.
    pub(crate) fn begin_write(&mut self, id: ObjectId) -> u64 {
        self.being_written.entry(id).or_default().writes += 1;
        self.generation
    }

    /// A write of the object ended, whether or not it came to anything.
    pub(crate) fn end_write(&mut self, id: &ObjectId) {
        if let Some(object) = self.being_written.get_mut(id) {
            object.writes -= 1;
            if object.writes == 0 {
                self.being_written.remove(id);
            }
        }
    }

    /// Adds blocks that are on disk. Nothing happens if the object was removed since `begun`, or if all of
    /// them are here by now.
    pub(crate) fn add(
        &mut self,
        begun: u64,
        object: &Arc<ObjectVersion>,
        mut part: PageRecord,
        extent: &Arc<Extent>,
        change: &mut Change,
    ) {
        if self
            .being_written
            .get(&part.key.object)
            .is_some_and(|object| object.removed_at > begun)
        {
            return;
        }
        let present = self.pages.get(&part.key).map_or(BlockMask::EMPTY, Page::live);
        part.live = part.live.without(present);
        if part.live.is_empty() {
            return;
        }
        self.generation += 1;
        part.generation = self.generation;
        if !self.objects.contains_key(&part.key.object) {
            change.push(&Record::Object(part.key.object, Arc::clone(object)));
            self.put_object(part.key.object, Arc::clone(object));
        }
        self.put_part(&part, extent);
        self.policy_insert(&part.key);
        change.push(&Record::Page(part));
    }

    /// Makes room: evicts pages until they held `units` or records of `record_bytes`. The answer is how many
    /// units and record bytes went.
    pub(crate) fn evict(&mut self, units: u64, record_bytes: u64, change: &mut Change) -> (u64, u64) {
        let (mut gone_units, record_bytes_before) = (0, self.totals.record_bytes);
        let gone_bytes = |index: &Self| record_bytes_before - index.totals.record_bytes;
        while gone_units < units || gone_bytes(self) < record_bytes {
            let pages = &self.pages;
            let mut is_idle = |key: &PageKey| {
                pages
                    .get(key)
                    .is_none_or(|page| page.parts.iter().all(|part| Arc::strong_count(&part.extent) == 1))
            };
            let Some(key) = self.eviction.victim(&mut is_idle) else {
                break;
            };
            let Some(page) = self.pages.get(&key) else {
                continue;
            };
            gone_units += page.parts.iter().map(|part| part.extent.units()).sum::<u64>();
            self.totals.evicted_pages += 1;
            self.remove_blocks(&key, page.live(), change);
        }
        (gone_units, gone_bytes(self))
    }

    /// Forgets blocks of a page.
    pub(crate) fn remove_blocks(&mut self, key: &PageKey, blocks: BlockMask, change: &mut Change) {
        if self.take_blocks(key, blocks, &mut change.released) {
            change.push(&Record::RemoveBlocks(*key, blocks));
        }
    }

    /// Forgets every page of an object, and the writes of it that are under way.
    pub(crate) fn remove_object(&mut self, id: &ObjectId, change: &mut Change) {
        self.generation += 1;
        if let Some(object) = self.being_written.get_mut(id) {
            object.removed_at = self.generation;
        }
        if self.take_object(id, &mut change.released) {
            change.push(&Record::RemoveObject(*id));
        }
    }

    /// Keeps an object's pages from eviction, or lets them go again.
    pub(crate) fn set_pinned(&mut self, id: &ObjectId, pinned: bool) {
        let changed = if pinned {
            self.pinned.insert(*id)
        } else {
            self.pinned.remove(id)
        };
        if !changed {
            return;
        }
        for key in self.keys_of(id) {
            if pinned {
                self.eviction.remove(&key);
            } else {
                self.policy_insert(&key);
            }
        }
    }

    /// Gives units whose holders are gone back to the allocator.
    pub(crate) fn reclaim(&mut self) {
        for (run, is_refused) in self.returned.take() {
            if is_refused {
                self.space.park(run);
            } else {
                self.space.free(run);
            }
        }
    }

    /// Encodes the records of up to `pages_max` pages after `after`; answers with the last key, or `None` at
    /// the end.
    pub(crate) fn snapshot(
        &self,
        after: Option<PageKey>,
        pages_max: usize,
        out: &mut Vec<u8>,
    ) -> Option<PageKey> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = after.map_or(Unbounded, Excluded);
        let mut last = after;
        for (key, page) in self.pages.range((from, Unbounded)).take(pages_max) {
            if last.is_none_or(|last| last.object != key.object)
                && let Some(entry) = self.objects.get(&key.object)
            {
                Record::Object(key.object, Arc::clone(&entry.version)).encode(out);
            }
            for part in &page.parts {
                Record::Page(page_record(key, part, &page.checksums)).encode(out);
            }
            last = Some(*key);
        }
        if last == after { None } else { last }
    }

    fn keys_of(&self, id: &ObjectId) -> Vec<PageKey> {
        let range = PageKey {
            object: *id,
            page: PageIndex(0),
        }..=PageKey {
            object: *id,
            page: PageIndex(u32::MAX),
        };
        self.pages.range(range).map(|(key, _)| *key).collect()
    }

    fn policy_insert(&mut self, key: &PageKey) {
        if self.pinned.contains(&key.object) {
            return;
        }
        if let Some(page) = self.pages.get(key) {
            let units: u64 = page.parts.iter().map(|part| part.extent.units()).sum();
            self.eviction.insert(*key, units * UNIT_BYTES);
        }
    }

    fn put_object(&mut self, id: ObjectId, version: Arc<ObjectVersion>) {
        self.totals.record_bytes += object_record_bytes(&version);
        self.objects.insert(
            id,
            ObjectEntry {
                version,
                pages: 0,
                used_bytes: 0,
            },
        );
    }

    /// Puts a part whose live blocks are in no other part of the page.
    fn put_part(&mut self, record: &PageRecord, extent: &Arc<Extent>) {
        let Some(entry) = self.objects.get_mut(&record.key.object) else {
            return;
        };
        let used_bytes = blocks_bytes(page_bytes(entry.version.bytes, record.key.page), record.live);
        let page = self.pages.entry(record.key).or_default();
        if page.parts.is_empty() {
            entry.pages += 1;
        }
        entry.used_bytes += used_bytes;
        for block in record.live.blocks() {
            page.checksums[block as usize] = record.checksums[block as usize];
        }
        let part = PagePart {
            generation: record.generation,
            stored: record.stored,
            live: record.live,
            extent: Arc::clone(extent),
        };
        self.totals.used_bytes += used_bytes;
        self.totals.record_bytes += part.record_bytes();
        page.parts.push(part);
    }

    /// Takes blocks out of a page; the page and its object go with their last block. Whether anything was
    /// there.
    fn take_blocks(&mut self, key: &PageKey, blocks: BlockMask, released: &mut Vec<Arc<Extent>>) -> bool {
        let Some(page) = self.pages.get_mut(key) else {
            return false;
        };
        let gone = page.live().intersect(blocks);
        if gone.is_empty() {
            return false;
        }
        for part in &mut page.parts {
            self.totals.record_bytes -= part.record_bytes();
            part.live = part.live.without(gone);
        }
        let emptied = page.parts.extract_if(.., |part| part.live.is_empty());
        released.extend(emptied.map(|part| part.extent));
        self.totals.record_bytes += page.parts.iter().map(PagePart::record_bytes).sum::<u64>();
        let page_is_gone = page.parts.is_empty();
        if page_is_gone {
            self.pages.remove(key);
            self.eviction.remove(key);
        }
        self.account_removed(key, gone, page_is_gone);
        true
    }

    fn account_removed(&mut self, key: &PageKey, gone: BlockMask, page_is_gone: bool) {
        let Some(entry) = self.objects.get_mut(&key.object) else {
            return;
        };
        let used_bytes = blocks_bytes(page_bytes(entry.version.bytes, key.page), gone);
        entry.used_bytes -= used_bytes;
        self.totals.used_bytes -= used_bytes;
        if page_is_gone {
            entry.pages -= 1;
        }
        if entry.pages == 0 {
            self.totals.record_bytes -= object_record_bytes(&entry.version);
            self.objects.remove(&key.object);
        }
    }

    fn take_object(&mut self, id: &ObjectId, released: &mut Vec<Arc<Extent>>) -> bool {
        let keys = self.keys_of(id);
        for key in &keys {
            self.take_blocks(key, BlockMask(u16::MAX), released);
        }
        !keys.is_empty()
    }
}

fn page_record(key: &PageKey, part: &PagePart, checksums: &[u32; 16]) -> PageRecord {
    let mut own = [0; 16];
    for block in part.live.blocks() {
        own[block as usize] = checksums[block as usize];
    }
    PageRecord {
        key: *key,
        generation: part.generation,
        stored: part.stored,
        live: part.live,
        runs: part.extent.runs().to_vec(),
        checksums: own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eviction::S3Fifo;

    #[test]
    fn removals_are_remembered_only_for_objects_that_are_being_written() {
        let mut index = Index::new(Box::new(S3Fifo::new()), Arc::default());
        let id = |number: u8| ObjectId([number; 16]);
        index.begin_write(id(0));
        for number in 0..100 {
            index.remove_object(&id(number), &mut Change::default());
        }
        assert_eq!(index.being_written.len(), 1);
        index.end_write(&id(0));
        assert!(index.being_written.is_empty());
    }
}
