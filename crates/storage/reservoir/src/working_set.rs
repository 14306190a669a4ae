//! Working sets: objects that are read in epochs, such as the shards of a dataset, each page once an epoch.
//!
//! A reader takes a guard ([`Reservoir::working_set`]). Readers of the same set name the same number and
//! share what is fetched ahead. While a guard lives, eviction keeps the pages of its objects
//! (`eviction/epoch_policy.rs`); after the last one they are pages like all others. Working sets live in
//! memory: a reader names its set again after a restart of the node.
//!
//! Limits: [`OBJECTS_MAX`] objects of all sets together; objects past that are cached as if there was no set.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::ObjectId;
use crate::reservoir::Reservoir;

/// Objects of all working sets together.
const OBJECTS_MAX: usize = 1 << 20;

/// All working sets.
#[derive(Debug, Default)]
pub(crate) struct WorkingSets {
    registry: RwLock<Registry>,
    /// Moves whenever the registry changes.
    generation: AtomicU64,
}

#[derive(Debug, Default)]
struct Registry {
    objects: HashMap<ObjectId, Mentions>,
    readers_by_set: BTreeMap<u64, Readers>,
}

/// Guards that name an object, and those among them that read all of it.
#[derive(Debug, Default)]
struct Mentions {
    guards: u32,
    dense: u32,
}

/// The readers of one working set.
#[derive(Debug, Default)]
struct Readers {
    guards: u32,
    ahead_bytes: u64,
}

impl WorkingSets {
    /// Another number than before if anything has changed.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns whether an object belongs to a working set.
    pub(crate) fn cover(&self, object: &ObjectId) -> bool {
        self.registry.read().objects.contains_key(object)
    }

    /// Returns whether all of an object will be read, in long ranges.
    pub(crate) fn cover_all_of(&self, object: &ObjectId) -> bool {
        let registry = self.registry.read();
        registry
            .objects
            .get(object)
            .is_some_and(|mentions| mentions.dense > 0)
    }

    /// Returns the bytes that readers of all working sets fetch ahead, together.
    pub(crate) fn ahead_bytes(&self) -> u64 {
        let registry = self.registry.read();
        registry
            .readers_by_set
            .values()
            .fold(0, |sum, readers| sum.saturating_add(readers.ahead_bytes))
    }

    fn change(&self, change: impl FnOnce(&mut Registry)) {
        change(&mut self.registry.write());
        self.generation.fetch_add(1, Ordering::Release);
    }
}

/// Keeps a working set until it is dropped.
#[derive(Debug)]
pub struct WorkingSetGuard {
    working_sets: Arc<WorkingSets>,
    id: u64,
    /// With whether all of them is read.
    objects: Vec<(ObjectId, bool)>,
}

impl Reservoir {
    /// Begins a working set, or joins it.
    #[must_use]
    pub fn working_set(&self, id: u64) -> WorkingSetGuard {
        WorkingSetGuard::begin(&self.ram.working_sets, id)
    }

    /// The budget of RAM.
    #[must_use]
    pub fn ram_bytes(&self) -> u64 {
        self.ram.budget_bytes()
    }
}

impl WorkingSetGuard {
    pub(crate) fn begin(working_sets: &Arc<WorkingSets>, id: u64) -> Self {
        working_sets.change(|registry| registry.readers_by_set.entry(id).or_default().guards += 1);
        Self {
            working_sets: Arc::clone(working_sets),
            id,
            objects: Vec::new(),
        }
    }

    /// Says how many bytes its readers fetch that they have not used yet, at most, and adds objects; those
    /// past the limit are left out. All of `is_dense` objects is read, in long ranges.
    pub fn add(&mut self, ahead_bytes: u64, is_dense: bool, objects: impl IntoIterator<Item = ObjectId>) {
        self.working_sets.change(|registry| {
            if let Some(readers) = registry.readers_by_set.get_mut(&self.id) {
                readers.ahead_bytes = readers.ahead_bytes.max(ahead_bytes);
            }
            for object in objects {
                let room = registry.objects.len() < OBJECTS_MAX && self.objects.len() < OBJECTS_MAX;
                if room || registry.objects.contains_key(&object) && self.objects.len() < OBJECTS_MAX {
                    let mentions = registry.objects.entry(object).or_default();
                    mentions.guards += 1;
                    mentions.dense += u32::from(is_dense);
                    self.objects.push((object, is_dense));
                }
            }
        });
    }
}

impl Drop for WorkingSetGuard {
    fn drop(&mut self) {
        self.working_sets.change(|registry| {
            for (object, is_dense) in &self.objects {
                if let Some(mentions) = registry.objects.get_mut(object) {
                    mentions.guards -= 1;
                    mentions.dense -= u32::from(*is_dense);
                    if mentions.guards == 0 {
                        registry.objects.remove(object);
                    }
                }
            }
            if let Some(readers) = registry.readers_by_set.get_mut(&self.id) {
                readers.guards -= 1;
                if readers.guards == 0 {
                    registry.readers_by_set.remove(&self.id);
                }
            }
        });
    }
}
