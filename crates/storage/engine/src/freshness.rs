//! Cached metadata, and the time for which it is believed.
//!
//! An entry is believed as long as the bucket's [`Consistency`] says. The trap is a slow `HEAD` that left
//! before a write and comes back after it: its answer is old and must not replace the new entry. So every
//! write moves a counter (one of [`STRIPES`], by key) when it begins and when it ends, well or not, and an
//! answer counts only if the counter has not moved since it was asked for. The counter's lock is held while
//! the entry is changed, so no reader ever finds an entry that a write has overtaken.
//!
//! Readers that need a `HEAD` share it (`shared_head.rs`), under the same lock and by the same counter.
//!
//! A listing says of every object which version and how many bytes it has, but not its attributes. That is
//! enough for whoever asks for bytes of that very version, and for nobody else
//! ([`Freshness::fresh_version`]); it is believed as long as any answer.

mod shared_head;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use forebay_core::{BucketName, Clock, ObjectKey, Version};
use parking_lot::Mutex;

use crate::ObjectInfo;
use crate::engine::Consistency;

/// Writes to different keys rarely share a counter; sharing only costs one more `HEAD`.
const STRIPES: usize = 1024;

/// Objects that are known from listings only, at most.
const LISTED_MAX: usize = 1 << 16;

type Name = (BucketName, ObjectKey);

pub(crate) use shared_head::Demand;
use shared_head::HeadInFlight;

#[derive(Debug, Clone)]
struct Known {
    info: Arc<ObjectInfo>,
    asked_at: Duration,
    /// A read found that the lake has another version.
    is_outdated: bool,
}

/// The cache of metadata.
pub(crate) struct Freshness {
    known: quick_cache::sync::Cache<Name, Known>,
    /// Entries from listings, without attributes.
    listed: quick_cache::sync::Cache<Name, Known>,
    stripes: Box<[Mutex<Stripe>]>,
    hasher: RandomState,
    next_head: AtomicU64,
    clock: Arc<dyn Clock>,
}

/// The keys of one hash value: writes to them, and `HEAD`s that are under way.
#[derive(Default)]
struct Stripe {
    /// Moves when a write begins, when it ends, and when a version is found to be gone.
    writes: u64,
    heads: HashMap<Name, HeadInFlight>,
}

impl Freshness {
    pub(crate) fn new(entries_max: usize, clock: Arc<dyn Clock>) -> Self {
        Self {
            known: quick_cache::sync::Cache::new(entries_max.max(1)),
            listed: quick_cache::sync::Cache::new(entries_max.clamp(1, LISTED_MAX)),
            stripes: (0..STRIPES).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            next_head: AtomicU64::new(0),
            clock,
        }
    }

    /// The entry, if it may still be believed.
    pub(crate) fn fresh(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        consistency: Consistency,
    ) -> Option<Arc<ObjectInfo>> {
        self.believed(&self.known, bucket, key, consistency)
    }

    /// The same for a reader that knows which version it wants, or takes any: of that version size and name
    /// are enough, the attributes may be missing.
    pub(crate) fn fresh_version(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        consistency: Consistency,
        wanted: Option<&Version>,
    ) -> Option<Arc<ObjectInfo>> {
        self.fresh(bucket, key, consistency).or_else(|| {
            let listed = self.believed(&self.listed, bucket, key, consistency);
            listed.filter(|info| wanted == Some(&info.version))
        })
    }

    fn believed(
        &self,
        entries: &quick_cache::sync::Cache<Name, Known>,
        bucket: &BucketName,
        key: &ObjectKey,
        consistency: Consistency,
    ) -> Option<Arc<ObjectInfo>> {
        let age_max = match consistency {
            Consistency::Always => return None,
            Consistency::RevalidateAfter(age) => age,
            Consistency::Immutable => Duration::MAX,
        };
        let known = entries.get(&(bucket.clone(), key.clone()))?;
        let age = self.clock.monotonic().saturating_sub(known.asked_at);
        (age <= age_max && !known.is_outdated).then_some(known.info)
    }

    /// A read found that this version is gone: the next one asks the lake, whatever the bucket's consistency.
    /// The first to find it ends the `HEAD`s that were sent before, as a write does; the others join its own.
    pub(crate) fn outdate(&self, info: &Arc<ObjectInfo>) {
        let name = (info.bucket.clone(), info.key.clone());
        let mut stripe = self.stripe(&name).lock();
        let was_listed = self.listed.remove(&name).is_some();
        let known = self.known.get(&name);
        let known = known.filter(|known| known.info.version == info.version && !known.is_outdated);
        if was_listed || known.is_some() {
            stripe.writes += 1;
        }
        if let Some(known) = known {
            let is_outdated = true;
            self.known.insert(name.clone(), Known { is_outdated, ..known });
        }
    }

    /// A `HEAD` that is sent now and that nobody shares.
    #[cfg(test)]
    fn begin_ask(self: &Arc<Self>, bucket: &BucketName, key: &ObjectKey) -> Ask {
        let name = (bucket.clone(), key.clone());
        let writes = self.stripe(&name).lock().writes;
        Ask {
            freshness: Arc::clone(self),
            asked_at: self.clock.monotonic(),
            writes,
            name,
        }
    }

    /// Call before asking the lake for a listing.
    pub(crate) fn begin_list(&self) -> Listing<'_> {
        Listing {
            freshness: self,
            asked_at: self.clock.monotonic(),
            writes: self.stripes.iter().map(|stripe| stripe.lock().writes).collect(),
        }
    }

    /// Call before writing or deleting; the entry is gone until the write is done or dropped.
    pub(crate) fn begin_write(&self, bucket: &BucketName, key: &ObjectKey) -> Write<'_> {
        let name = (bucket.clone(), key.clone());
        let mut stripe = self.stripe(&name).lock();
        stripe.writes += 1;
        self.known.remove(&name);
        self.listed.remove(&name);
        Write {
            freshness: self,
            writes: stripe.writes,
            name: name.clone(),
            has_ended: false,
        }
    }

    fn stripe(&self, name: &Name) -> &Mutex<Stripe> {
        &self.stripes[self.stripe_number(name)]
    }

    fn stripe_number(&self, name: &Name) -> usize {
        let stripe = self.hasher.hash_one(name) % STRIPES as u64;
        usize::try_from(stripe).expect("a stripe number is small")
    }
}

impl std::fmt::Debug for Freshness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Freshness")
            .field("entries", &self.known.len())
            .finish_non_exhaustive()
    }
}

/// A listing that is under way.
pub(crate) struct Listing<'a> {
    freshness: &'a Freshness,
    asked_at: Duration,
    /// Of every stripe.
    writes: Box<[u64]>,
}

impl Listing<'_> {
    /// Keeps what it says of an object, unless a write came in between.
    pub(crate) fn found(&self, info: ObjectInfo) {
        let name = (info.bucket.clone(), info.key.clone());
        let number = self.freshness.stripe_number(&name);
        let stripe = self.freshness.stripes[number].lock();
        if stripe.writes == self.writes[number] {
            let found = Known {
                info: Arc::new(info),
                asked_at: self.asked_at,
                is_outdated: false,
            };
            self.freshness.listed.insert(name, found);
        }
    }
}

/// A `HEAD` that is under way.
pub(crate) struct Ask {
    freshness: Arc<Freshness>,
    name: Name,
    asked_at: Duration,
    writes: u64,
}

impl Ask {
    /// Keeps the answer unless a write came in between; returns what was known before.
    pub(crate) fn answered(self, info: Option<&Arc<ObjectInfo>>) -> Option<Arc<ObjectInfo>> {
        let known = &self.freshness.known;
        let stripe = self.freshness.stripe(&self.name).lock();
        let previous = known.get(&self.name).map(|known| known.info);
        if stripe.writes != self.writes {
            return previous;
        }
        self.freshness.listed.remove(&self.name);
        match info {
            Some(info) => {
                let answer = Known {
                    info: Arc::clone(info),
                    asked_at: self.asked_at,
                    is_outdated: false,
                };
                known.insert(self.name.clone(), answer);
            }
            None => {
                known.remove(&self.name);
            }
        }
        previous
    }
}

/// A write that is under way. Dropping it leaves the entry unknown, because the lake may or may not have it.
pub(crate) struct Write<'a> {
    freshness: &'a Freshness,
    name: Name,
    writes: u64,
    has_ended: bool,
}

impl Write<'_> {
    /// The lake has acknowledged it. If another write to the key overlapped, only the lake knows which one
    /// came last, so nothing is kept.
    pub(crate) fn done(mut self, info: Option<Arc<ObjectInfo>>) {
        self.has_ended = true;
        self.end(info);
    }

    fn end(&self, info: Option<Arc<ObjectInfo>>) {
        let known = &self.freshness.known;
        let mut stripe = self.freshness.stripe(&self.name).lock();
        let was_alone = stripe.writes == self.writes;
        stripe.writes += 1;
        self.freshness.listed.remove(&self.name);
        match info.filter(|_| was_alone) {
            Some(info) => {
                let written = Known {
                    info,
                    asked_at: self.freshness.clock.monotonic(),
                    is_outdated: false,
                };
                known.insert(self.name.clone(), written);
            }
            None => {
                known.remove(&self.name);
            }
        }
    }
}

impl Drop for Write<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.end(None);
        }
    }
}

#[cfg(test)]
mod tests;
