//! Plans: objects that are read in rounds, such as the shards of a dataset, once an epoch each.
//!
//! A plan is held by those who read by it ([`Reservoir::plan`]); readers of the same one name the same number and share what
//! is fetched ahead. While a plan is held, eviction keeps what it has of its objects (`eviction/rounds.rs`); when the last
//! hold is dropped their pages are pages like all others. Plans live in memory: a reader that comes back after a
//! restart says its plan again.
//!
//! Limits: objects of all plans together; what comes past that is read as if there were no plan.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::ObjectId;
use crate::reservoir::Reservoir;

/// Objects of all plans together.
const OBJECTS_MAX: usize = 1 << 20;

/// What is planned.
#[derive(Debug, Default)]
pub(crate) struct Plans {
    book: RwLock<Book>,
    /// Moves whenever the book changes.
    generation: AtomicU64,
}

#[derive(Debug, Default)]
struct Book {
    objects: HashMap<ObjectId, Named>,
    plans: BTreeMap<u64, Readers>,
}

/// How many holds name an object, and how many of them read all of it.
#[derive(Debug, Default)]
struct Named {
    holds: u32,
    dense: u32,
}

/// Those who read by one plan.
#[derive(Debug, Default)]
struct Readers {
    holds: u32,
    ahead_bytes: u64,
}

impl Plans {
    /// Another number than before if anything has changed.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Whether an object is read in rounds.
    pub(crate) fn cover(&self, object: &ObjectId) -> bool {
        self.book.read().objects.contains_key(object)
    }

    /// Whether all of an object will be read, in long stretches.
    pub(crate) fn cover_all_of(&self, object: &ObjectId) -> bool {
        let book = self.book.read();
        book.objects.get(object).is_some_and(|named| named.dense > 0)
    }

    /// What readers of all plans fetch ahead, together.
    pub(crate) fn ahead_bytes(&self) -> u64 {
        let book = self.book.read();
        book.plans
            .values()
            .fold(0, |sum, readers| sum.saturating_add(readers.ahead_bytes))
    }

    fn change(&self, change: impl FnOnce(&mut Book)) {
        change(&mut self.book.write());
        self.generation.fetch_add(1, Ordering::Release);
    }
}

/// Keeps a plan going until it is dropped.
#[derive(Debug)]
pub struct PlanHold {
    plans: Arc<Plans>,
    plan: u64,
    /// With whether all of them is read.
    objects: Vec<(ObjectId, bool)>,
}

impl Reservoir {
    /// Begins a plan, or joins it.
    #[must_use]
    pub fn plan(&self, plan: u64) -> PlanHold {
        PlanHold::begin(&self.ram.plans, plan)
    }

    /// The budget of RAM.
    #[must_use]
    pub fn ram_bytes(&self) -> u64 {
        self.ram.budget_bytes()
    }
}

impl PlanHold {
    pub(crate) fn begin(plans: &Arc<Plans>, plan: u64) -> Self {
        plans.change(|book| book.plans.entry(plan).or_default().holds += 1);
        Self {
            plans: Arc::clone(plans),
            plan,
            objects: Vec::new(),
        }
    }

    /// Says how many bytes its readers fetch that they have not used yet, at most, and adds objects; those past the limit are left out.
    /// All of `is_dense` objects is read, in long stretches.
    pub fn add(&mut self, ahead_bytes: u64, is_dense: bool, objects: impl IntoIterator<Item = ObjectId>) {
        self.plans.change(|book| {
            if let Some(readers) = book.plans.get_mut(&self.plan) {
                readers.ahead_bytes = readers.ahead_bytes.max(ahead_bytes);
            }
            for object in objects {
                let room = book.objects.len() < OBJECTS_MAX && self.objects.len() < OBJECTS_MAX;
                if room || book.objects.contains_key(&object) && self.objects.len() < OBJECTS_MAX {
                    let named = book.objects.entry(object).or_default();
                    named.holds += 1;
                    named.dense += u32::from(is_dense);
                    self.objects.push((object, is_dense));
                }
            }
        });
    }
}

impl Drop for PlanHold {
    fn drop(&mut self) {
        self.plans.change(|book| {
            for (object, is_dense) in &self.objects {
                if let Some(named) = book.objects.get_mut(object) {
                    named.holds -= 1;
                    named.dense -= u32::from(*is_dense);
                    if named.holds == 0 {
                        book.objects.remove(object);
                    }
                }
            }
            if let Some(readers) = book.plans.get_mut(&self.plan) {
                readers.holds -= 1;
                if readers.holds == 0 {
                    book.plans.remove(&self.plan);
                }
            }
        });
    }
}
