//! Cached metadata, and when it may be believed.
//!
//! An entry is believed as long as the bucket's [`Consistency`] says. The trap is a slow `HEAD` that left before
//! a write and comes back after it: its answer is old and must not replace the new entry. So every write moves a
//! counter (one of [`STRIPES`], by key) when it begins and when it ends, well or not, and an answer counts only if
//! the counter has not moved since it was asked for. The counter's lock is held while the entry is changed, so no
//! reader ever finds an entry that a write has overtaken.
//!
//! A listing says of every object which version and how many bytes it has, but not its attributes. That is enough for whoever asks for bytes of
//! that very version, and for nobody else ([`Freshness::fresh_version`]); it is believed as long as any answer.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
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
    /// What listings said, without attributes.
    listed: quick_cache::sync::Cache<Name, Known>,
    writes: Box<[Mutex<u64>]>,
    hasher: RandomState,
    clock: Arc<dyn Clock>,
}

impl Freshness {
    pub(crate) fn new(entries_max: usize, clock: Arc<dyn Clock>) -> Self {
        Self {
            known: quick_cache::sync::Cache::new(entries_max.max(1)),
            listed: quick_cache::sync::Cache::new(entries_max.clamp(1, LISTED_MAX)),
            writes: (0..STRIPES).map(|_| Mutex::new(0)).collect(),
            hasher: RandomState::new(),
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

    /// The same for a reader that knows which version it wants, or takes any: of that version size and name are enough, the attributes
    /// may be missing.
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

    /// A read found that this version is gone; the next one asks the lake, whatever the bucket's consistency.
    pub(crate) fn outdate(&self, info: &Arc<ObjectInfo>) {
        let name = (info.bucket.clone(), info.key.clone());
        let _writes = self.counter(&name).lock();
        self.listed.remove(&name);
        if let Some(known) = self.known.get(&name)
            && known.info.version == info.version
        {
            let is_outdated = true;
            self.known.insert(name.clone(), Known { is_outdated, ..known });
        }
    }

    /// Call before asking the lake.
    pub(crate) fn begin_ask(&self, bucket: &BucketName, key: &ObjectKey) -> Ask<'_> {
        let name = (bucket.clone(), key.clone());
        let writes = *self.counter(&name).lock();
        Ask {
            freshness: self,
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
            writes: self.writes.iter().map(|writes| *writes.lock()).collect(),
        }
    }

    /// Call before writing or deleting; the entry is gone until the write is done or dropped.
    pub(crate) fn begin_write(&self, bucket: &BucketName, key: &ObjectKey) -> Write<'_> {
        let name = (bucket.clone(), key.clone());
        let mut writes = self.counter(&name).lock();
        *writes += 1;
        self.known.remove(&name);
        self.listed.remove(&name);
        Write {
            freshness: self,
            writes: *writes,
            name: name.clone(),
            has_ended: false,
        }
    }

    fn counter(&self, name: &Name) -> &Mutex<u64> {
        &self.writes[self.stripe(name)]
    }

    fn stripe(&self, name: &Name) -> usize {
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
        let stripe = self.freshness.stripe(&name);
        let writes = self.freshness.writes[stripe].lock();
        if *writes == self.writes[stripe] {
            let found = Known {
                info: Arc::new(info),
                asked_at: self.asked_at,
                is_outdated: false,
            };
            self.freshness.listed.insert(name, found);
        }
    }
}

/// A question to the lake that is under way.
pub(crate) struct Ask<'a> {
    freshness: &'a Freshness,
    name: Name,
    asked_at: Duration,
    writes: u64,
}

impl Ask<'_> {
    /// Keeps the answer unless a write came in between; returns what was known before.
    pub(crate) fn answered(self, info: Option<&Arc<ObjectInfo>>) -> Option<Arc<ObjectInfo>> {
        let known = &self.freshness.known;
        let writes = self.freshness.counter(&self.name).lock();
        let previous = known.get(&self.name).map(|known| known.info);
        if *writes != self.writes {
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
    /// The lake has acknowledged it. If another write to the key overlapped, only the lake knows which one came
    /// last, so nothing is kept.
    pub(crate) fn done(mut self, info: Option<Arc<ObjectInfo>>) {
        self.has_ended = true;
        self.end(info);
    }

    fn end(&self, info: Option<Arc<ObjectInfo>>) {
        let known = &self.freshness.known;
        let mut writes = self.freshness.counter(&self.name).lock();
        let was_alone = *writes == self.writes;
        *writes += 1;
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
mod tests {
    use std::time::SystemTime;

    use forebay_core::ManualClock;
    use forebay_lake::{Attributes, UpdateToken};

    use super::*;

    fn names() -> (BucketName, ObjectKey) {
        (BucketName::new("bucket").unwrap(), ObjectKey::new("key").unwrap())
    }

    fn info(version: &str) -> Arc<ObjectInfo> {
        let (bucket, key) = names();
        Arc::new(ObjectInfo {
            bucket,
            key,
            domain: forebay_reservoir::TrustDomain::DEFAULT,
            bytes: 1,
            version: Version::new(version),
            modified: SystemTime::UNIX_EPOCH,
            attributes: Attributes::default(),
            token: UpdateToken {
                etag: None,
                version: None,
            },
            checksums: Vec::new(),
            part_bytes: Vec::new(),
            tag_count: 0,
            id: std::sync::OnceLock::new(),
        })
    }

    const FIVE_SECONDS: Consistency = Consistency::RevalidateAfter(Duration::from_secs(5));

    #[test]
    fn an_answer_is_believed_until_it_is_too_old() {
        let clock = Arc::new(ManualClock::default());
        let freshness = Freshness::new(10, clock.clone());
        let (bucket, key) = names();
        freshness.begin_ask(&bucket, &key).answered(Some(&info("a")));
        clock.advance(Duration::from_secs(5));
        assert!(freshness.fresh(&bucket, &key, FIVE_SECONDS).is_some());
        clock.advance(Duration::from_secs(1));
        assert!(freshness.fresh(&bucket, &key, FIVE_SECONDS).is_none());
        assert!(freshness.fresh(&bucket, &key, Consistency::Immutable).is_some());
        assert!(freshness.fresh(&bucket, &key, Consistency::Always).is_none());
    }

    #[test]
    fn an_answer_that_was_asked_for_before_a_write_is_not_kept() {
        let freshness = Freshness::new(10, Arc::new(ManualClock::default()));
        let (bucket, key) = names();
        let ask = freshness.begin_ask(&bucket, &key);
        freshness.begin_write(&bucket, &key).done(Some(info("new")));
        ask.answered(Some(&info("old")));
        let known = freshness
            .fresh(&bucket, &key, FIVE_SECONDS)
            .expect("the write is known");
        assert_eq!(known.version, Version::new("new"));
    }

    #[test]
    fn a_listing_is_enough_for_its_version_until_it_is_too_old() {
        let clock = Arc::new(ManualClock::default());
        let freshness = Freshness::new(10, clock.clone());
        let (bucket, key) = names();
        let (a, b) = (Version::new("a"), Version::new("b"));
        freshness.begin_list().found(ObjectInfo::clone(&info("a")));
        let is_fresh = |wanted| {
            let found = freshness.fresh_version(&bucket, &key, FIVE_SECONDS, wanted);
            found.is_some()
        };
        assert!(is_fresh(Some(&a)) && !is_fresh(Some(&b)) && !is_fresh(None));
        assert!(freshness.fresh(&bucket, &key, FIVE_SECONDS).is_none());
        let always = freshness.fresh_version(&bucket, &key, Consistency::Always, Some(&a));
        assert!(always.is_none());
        clock.advance(Duration::from_secs(6));
        assert!(!is_fresh(Some(&a)));
    }

    #[test]
    fn a_listing_that_a_write_has_overtaken_is_not_believed() {
        let freshness = Freshness::new(10, Arc::new(ManualClock::default()));
        let (bucket, key) = names();
        let is_fresh = || {
            let found = freshness.fresh_version(&bucket, &key, FIVE_SECONDS, Some(&Version::new("old")));
            found.is_some()
        };
        let listing = freshness.begin_list();
        freshness.begin_write(&bucket, &key).done(Some(info("new")));
        listing.found(ObjectInfo::clone(&info("old")));
        assert_eq!(
            freshness
                .fresh_version(&bucket, &key, FIVE_SECONDS, None)
                .map(|info| info.version.clone()),
            Some(Version::new("new"))
        );
        freshness.begin_list().found(ObjectInfo::clone(&info("old")));
        let write = freshness.begin_write(&bucket, &key);
        freshness.begin_list().found(ObjectInfo::clone(&info("old")));
        drop(write);
        assert!(!is_fresh());
        freshness.begin_list().found(ObjectInfo::clone(&info("old")));
        assert!(is_fresh());
        freshness.outdate(&info("old"));
        assert!(!is_fresh());
    }

    #[test]
    fn of_two_writes_at_once_neither_is_believed() {
        let freshness = Freshness::new(10, Arc::new(ManualClock::default()));
        let (bucket, key) = names();
        let first = freshness.begin_write(&bucket, &key);
        let second = freshness.begin_write(&bucket, &key);
        second.done(Some(info("second")));
        first.done(Some(info("first")));
        assert!(freshness.fresh(&bucket, &key, Consistency::Immutable).is_none());
    }

    #[test]
    fn what_was_seen_during_a_write_that_failed_is_not_believed() {
        let freshness = Freshness::new(10, Arc::new(ManualClock::default()));
        let (bucket, key) = names();
        let write = freshness.begin_write(&bucket, &key);
        let late = freshness.begin_ask(&bucket, &key);
        freshness.begin_ask(&bucket, &key).answered(Some(&info("old")));
        drop(write);
        late.answered(Some(&info("old")));
        assert!(freshness.fresh(&bucket, &key, Consistency::Immutable).is_none());
    }
}
