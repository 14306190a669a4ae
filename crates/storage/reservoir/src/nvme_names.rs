//! The names behind the objects on NVMe, so that all versions of a key are found without looking at every
//! object.
//!
//! Filled from the store when it opens and by each demotion. What the store evicts stays here until names
//! outnumber objects two to one; then they are read anew from the store. A name too many does no harm. Pins
//! are kept here too: they are capped at three quarters of the budget, counted by whole objects.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use forebay_core::{BucketName, ObjectKey};
use parking_lot::Mutex;

use crate::nvme::NvmeStore;
use crate::{ObjectId, ObjectVersion};

/// So many names may be out of date before they are read anew.
const STALE_NAMES_MIN: usize = 1024;

/// The NVMe store with its names.
#[derive(Debug)]
pub(crate) struct NamedNvme {
    pub(crate) store: Arc<NvmeStore>,
    names: Mutex<Names>,
    pinned: Mutex<Pinned>,
    pinned_bytes_max: u64,
}

/// Pinned objects and their sizes.
#[derive(Debug, Default)]
struct Pinned {
    by_id: HashMap<ObjectId, u64>,
    bytes: u64,
}

#[derive(Debug, Default)]
struct Names {
    ids: BTreeMap<(BucketName, ObjectKey), Vec<ObjectId>>,
    count: usize,
    renew_at: usize,
}

impl Names {
    fn of(store: &NvmeStore) -> Self {
        let mut names = Self::default();
        for (object, _) in store.objects() {
            names.add(&object);
        }
        names.renew_at = 2 * names.count + STALE_NAMES_MIN;
        names
    }

    fn add(&mut self, object: &ObjectVersion) {
        let ids = self
            .ids
            .entry((object.bucket.clone(), object.key.clone()))
            .or_default();
        let id = ObjectId::of(object);
        if !ids.contains(&id) {
            ids.push(id);
            self.count += 1;
        }
    }
}

impl NamedNvme {
    /// Reads the names of what is there.
    pub(crate) fn new(store: Arc<NvmeStore>, budget_bytes: u64) -> Self {
        let names = Mutex::new(Names::of(&store));
        Self {
            store,
            names,
            pinned: Mutex::default(),
            pinned_bytes_max: budget_bytes / 4 * 3,
        }
    }

    /// Keeps an object from eviction, also pages still to come, unless the cap is reached; says whether it is
    /// pinned.
    pub(crate) fn pin(&self, object: &ObjectVersion) -> bool {
        let id = ObjectId::of(object);
        let mut pinned = self.pinned.lock();
        if pinned.by_id.contains_key(&id) {
            return true;
        }
        if pinned.bytes.saturating_add(object.bytes) > self.pinned_bytes_max {
            return false;
        }
        pinned.by_id.insert(id, object.bytes);
        pinned.bytes += object.bytes;
        self.store.set_pinned(&id, true);
        true
    }

    /// Lets an object go again; says whether it was pinned.
    pub(crate) fn unpin(&self, id: &ObjectId) -> bool {
        let mut pinned = self.pinned.lock();
        let Some(bytes) = pinned.by_id.remove(id) else {
            return false;
        };
        pinned.bytes -= bytes;
        self.store.set_pinned(id, false);
        true
    }

    /// Removes an object, pinned or not.
    pub(crate) fn remove(&self, id: &ObjectId) {
        self.unpin(id);
        self.store.remove_object(id);
    }

    /// An object is about to have pages on NVMe.
    pub(crate) fn add(&self, object: &ObjectVersion) {
        let mut names = self.names.lock();
        if names.count >= names.renew_at {
            *names = Names::of(&self.store);
        }
        names.add(object);
    }

    /// Removes every version of a key but one.
    pub(crate) fn remove_versions(&self, bucket: &BucketName, key: &ObjectKey, keep: Option<&ObjectId>) {
        let name = (bucket.clone(), key.clone());
        let mut names = self.names.lock();
        let Some(ids) = names.ids.remove(&name) else {
            return;
        };
        let (kept, gone): (Vec<_>, Vec<_>) = ids.into_iter().partition(|id| Some(id) == keep);
        names.count -= gone.len();
        if !kept.is_empty() {
            names.ids.insert(name, kept);
        }
        drop(names);
        for id in gone {
            self.remove(&id);
        }
    }

    /// Every object on NVMe under a prefix, with its bytes there.
    pub(crate) fn under(&self, bucket: &BucketName, prefix: &str) -> Vec<(Arc<ObjectVersion>, u64)> {
        let mut objects = self.store.objects();
        objects.retain(|(object, _)| object.bucket == *bucket && object.key.as_str().starts_with(prefix));
        objects
    }
}
