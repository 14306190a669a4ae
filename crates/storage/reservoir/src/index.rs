//! The index of pages in RAM, by object.
//!
//! Two levels: objects by id in shards, pages by number inside each object; and names by bucket and key, in
//! order, so that all versions of a key and all keys under a prefix are found. An entry lives while it has
//! pages or somebody holds an [`EntryHandle`]; one that was forgotten is dead: its holders finish their work
//! on pages that nobody else finds.
//!
//! Lock order: shard, then names, then the pages of an entry; none is held while another of its kind is
//! taken.

use std::collections::{BTreeMap, HashMap};
use std::ops::{Bound, Deref};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use forebay_core::{BucketName, ByteRange, ObjectKey, PAGE_BYTES, PageIndex};
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::page::{Page, PageLease};
use crate::run::Run;
use crate::stats::Counters;
use crate::{ObjectId, ObjectVersion, PageKey};

pub(crate) const SHARDS: usize = 64;

type Shard = HashMap<ObjectId, Arc<Entry>>;

/// All objects with pages in RAM.
#[derive(Debug)]
pub(crate) struct Index {
    shards: Box<[Mutex<Shard>]>,
    names: Mutex<BTreeMap<(BucketName, ObjectKey), Vec<ObjectId>>>,
    counters: Arc<Counters>,
}

/// One object version.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: ObjectId,
    pub(crate) object: Arc<ObjectVersion>,
    /// Set while a pin covers it.
    pub(crate) pinned: AtomicBool,
    /// Memory that a whole read reserved, while one is under way.
    pub(crate) run: Mutex<Weak<Run>>,
    pages: Mutex<Pages>,
}

#[derive(Debug, Default)]
struct Pages {
    by_index: BTreeMap<PageIndex, Arc<Page>>,
    dead: bool,
}

/// Keeps an entry in the index while somebody works with it.
#[derive(Debug)]
pub(crate) struct EntryHandle {
    index: Arc<Index>,
    entry: Option<Arc<Entry>>,
}

impl Deref for EntryHandle {
    type Target = Arc<Entry>;

    fn deref(&self) -> &Arc<Entry> {
        self.entry.as_ref().expect("the entry is taken in drop only")
    }
}

impl Drop for EntryHandle {
    fn drop(&mut self) {
        let Some(entry) = self.entry.take() else { return };
        let id = entry.id;
        drop(entry);
        self.index.sweep(&id);
    }
}

impl Index {
    /// An empty index.
    pub(crate) fn new(counters: Arc<Counters>) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::new(Shard::new())).collect();
        Self {
            shards,
            names: Mutex::default(),
            counters,
        }
    }

    fn shard(&self, id: &ObjectId) -> &Mutex<Shard> {
        &self.shards[usize::from(id.0[0]) % SHARDS]
    }

    /// The entry of an object; made if it is not there, pinned if `is_pinned` says so.
    pub(crate) fn entry(
        self: &Arc<Self>,
        object: &ObjectVersion,
        is_pinned: impl FnOnce() -> bool,
    ) -> EntryHandle {
        let id = ObjectId::of(object);
        let mut shard = self.shard(&id).lock();
        let entry = shard.entry(id).or_insert_with(|| {
            let name = (object.bucket.clone(), object.key.clone());
            self.names.lock().entry(name).or_default().push(id);
            Arc::new(Entry {
                id,
                object: Arc::new(object.clone()),
                pinned: AtomicBool::new(is_pinned()),
                run: Mutex::default(),
                pages: Mutex::default(),
            })
        });
        let entry = Some(Arc::clone(entry));
        drop(shard);
        EntryHandle {
            index: Arc::clone(self),
            entry,
        }
    }

    /// The entry of an object, if it has one.
    pub(crate) fn get(&self, id: &ObjectId) -> Option<Arc<Entry>> {
        self.shard(id).lock().get(id).cloned()
    }

    /// All entries of one shard.
    pub(crate) fn entries(&self, shard: usize) -> Vec<Arc<Entry>> {
        self.shards[shard].lock().values().cloned().collect()
    }

    /// Looks at all pages of one shard, under its lock.
    pub(crate) fn visit_pages(&self, shard: usize, mut visit: impl FnMut(&Page)) {
        for entry in self.shards[shard].lock().values() {
            for page in entry.pages.lock().by_index.values() {
                visit(page);
            }
        }
    }

    /// The versions of a key.
    pub(crate) fn versions(&self, bucket: &BucketName, key: &ObjectKey) -> Vec<ObjectId> {
        self.names
            .lock()
            .get(&(bucket.clone(), key.clone()))
            .cloned()
            .unwrap_or_default()
    }

    /// Leases all pages of a range, if every block of it is there.
    pub(crate) fn lease_pages(&self, id: &ObjectId, range: ByteRange) -> Option<SmallVec<[PageLease; 1]>> {
        let shard = self.shard(id).lock();
        let pages = shard.get(id)?.pages.lock();
        let mut leased = SmallVec::new();
        for index in range.pages() {
            let page = pages.by_index.get(&index)?;
            let start = range.start().saturating_sub(index.start());
            let end = (range.end() - index.start()).min(PAGE_BYTES);
            if !page.has(start, end) {
                return None;
            }
            leased.push(PageLease::new(Arc::clone(page)));
        }
        Some(leased)
    }

    /// Leases a page, if it is there.
    pub(crate) fn lease_page(&self, key: &PageKey) -> Option<PageLease> {
        let shard = self.shard(&key.object).lock();
        let page = shard.get(&key.object)?.page(key.page)?;
        Some(PageLease::new(page))
    }

    /// Every object of the bucket whose key starts with the prefix.
    pub(crate) fn under(&self, bucket: &BucketName, prefix: &str) -> Vec<ObjectId> {
        let names = self.names.lock();
        let from = match ObjectKey::new(prefix) {
            Ok(key) => Bound::Included((bucket.clone(), key)),
            // The empty prefix is no key; "\u{1}" is the first one that S3 clients can name.
            Err(_) => {
                ObjectKey::new("\u{1}").map_or(Bound::Unbounded, |key| Bound::Included((bucket.clone(), key)))
            }
        };
        let is_under =
            |name: &(BucketName, ObjectKey)| name.0 == *bucket && name.1.as_str().starts_with(prefix);
        names
            .range((from, Bound::Unbounded))
            .take_while(|(name, _)| is_under(name))
            .flat_map(|(_, ids)| ids.clone())
            .collect()
    }

    /// Takes an object out; its pages are returned, and nobody finds them any more.
    pub(crate) fn remove(&self, id: &ObjectId) -> Vec<Arc<Page>> {
        let mut shard = self.shard(id).lock();
        let Some(entry) = shard.remove(id) else {
            return Vec::new();
        };
        self.remove_name(&entry);
        drop(shard);
        let mut pages = entry.pages.lock();
        pages.dead = true;
        let removed: Vec<_> = std::mem::take(&mut pages.by_index).into_values().collect();
        self.counters.ram_pages.sub(removed.len() as u64);
        removed
    }

    /// Drops the entry if it has no pages and nobody works with it.
    pub(crate) fn sweep(&self, id: &ObjectId) {
        let mut shard = self.shard(id).lock();
        let is_idle =
            |entry: &Arc<Entry>| Arc::strong_count(entry) == 1 && entry.pages.lock().by_index.is_empty();
        if shard.get(id).is_some_and(is_idle)
            && let Some(entry) = shard.remove(id)
        {
            self.remove_name(&entry);
        }
    }

    fn remove_name(&self, entry: &Entry) {
        let name = (entry.object.bucket.clone(), entry.object.key.clone());
        let mut names = self.names.lock();
        if let Some(ids) = names.get_mut(&name) {
            ids.retain(|id| *id != entry.id);
            if ids.is_empty() {
                names.remove(&name);
            }
        }
    }

    /// The page of an entry; made without memory if it is not there. A dead entry gives pages that nobody
    /// else finds.
    pub(crate) fn page(&self, entry: &Entry, page: PageIndex) -> Arc<Page> {
        let mut pages = entry.pages.lock();
        if let Some(page) = pages.by_index.get(&page) {
            return Arc::clone(page);
        }
        let key = PageKey {
            object: entry.id,
            page,
        };
        let fresh = Arc::new(Page::new(
            key,
            Arc::clone(&entry.object),
            Arc::clone(&self.counters),
        ));
        if !pages.dead {
            pages.by_index.insert(page, Arc::clone(&fresh));
            self.counters.ram_pages.add(1);
        }
        fresh
    }

    /// Puts a page in, in place of what was there.
    pub(crate) fn put(&self, entry: &Entry, page: Arc<Page>) {
        let mut pages = entry.pages.lock();
        if !pages.dead && pages.by_index.insert(page.key.page, page).is_none() {
            self.counters.ram_pages.add(1);
        }
    }

    /// Returns whether this page, and no other in its place, is found here.
    pub(crate) fn has(&self, page: &Arc<Page>) -> bool {
        self.get(&page.key.object)
            .and_then(|entry| entry.page(page.key.page))
            .is_some_and(|found| Arc::ptr_eq(&found, page))
    }

    /// Takes a page out if it is this one and `may_go` agrees while nobody can find it.
    pub(crate) fn take(&self, page: &PageKey, may_go: impl FnOnce(&Arc<Page>) -> bool) -> Option<Arc<Page>> {
        let entry = self.get(&page.object)?;
        let mut pages = entry.pages.lock();
        if !pages.by_index.get(&page.page).is_some_and(may_go) {
            return None;
        }
        let removed = pages.by_index.remove(&page.page);
        self.counters.ram_pages.sub(1);
        removed
    }
}

impl Entry {
    /// Returns whether nobody but the index holds the page (or it is not there at all).
    pub(crate) fn is_idle(&self, page: PageIndex) -> bool {
        self.pages
            .lock()
            .by_index
            .get(&page)
            .is_none_or(|page| Arc::strong_count(page) == 1)
    }

    /// A page, if it is there.
    pub(crate) fn page(&self, page: PageIndex) -> Option<Arc<Page>> {
        self.pages.lock().by_index.get(&page).cloned()
    }

    /// All pages.
    pub(crate) fn pages(&self) -> Vec<Arc<Page>> {
        self.pages.lock().by_index.values().cloned().collect()
    }

    /// Returns whether it was forgotten: whoever goes on with it finds no page that others fill.
    pub(crate) fn is_dead(&self) -> bool {
        self.pages.lock().dead
    }

    /// Returns whether it has no pages.
    pub(crate) fn is_empty(&self) -> bool {
        self.pages.lock().by_index.is_empty()
    }

    /// Returns whether a pin covers it.
    pub(crate) fn is_pinned(&self) -> bool {
        self.pinned.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use forebay_core::Version;

    use super::*;

    fn object(key: &str, version: &str) -> ObjectVersion {
        let bucket = BucketName::new("bucket").unwrap();
        ObjectVersion {
            bucket,
            key: ObjectKey::new(key).unwrap(),
            version: Version::new(version),
            bytes: 10,
            domain: crate::TrustDomain::DEFAULT,
        }
    }

    fn index() -> Arc<Index> {
        Arc::new(Index::new(Arc::default()))
    }

    #[test]
    fn an_entry_without_pages_goes_with_its_last_handle() {
        let index = index();
        let first = index.entry(&object("a", "1"), || false);
        let second = index.entry(&object("a", "1"), || false);
        drop(first);
        assert!(index.get(&second.id).is_some());
        let id = second.id;
        drop(second);
        assert!(index.get(&id).is_none());
        assert!(
            index
                .versions(&object("a", "1").bucket, &object("a", "1").key)
                .is_empty()
        );
    }

    #[test]
    fn a_prefix_finds_its_keys_and_no_others() {
        let index = index();
        let handles: Vec<_> = ["a", "b/1", "b/2", "b0", "c"]
            .map(|key| index.entry(&object(key, "1"), || false))
            .into_iter()
            .collect();
        let bucket = object("a", "1").bucket;
        assert_eq!(index.under(&bucket, "b/"), [handles[1].id, handles[2].id]);
        assert_eq!(index.under(&bucket, "").len(), 5);
        assert_eq!(index.under(&BucketName::new("zzz").unwrap(), "").len(), 0);
    }

    #[test]
    fn pages_of_a_forgotten_object_are_found_by_nobody() {
        let index = index();
        let handle = index.entry(&object("a", "1"), || false);
        let page = index.page(&handle, PageIndex(0));
        assert_eq!(index.remove(&handle.id).len(), 1);
        assert!(!Arc::ptr_eq(&index.page(&handle, PageIndex(0)), &page));
        assert!(handle.is_empty());
        assert!(index.entry(&object("a", "1"), || false).is_empty());
    }
}
