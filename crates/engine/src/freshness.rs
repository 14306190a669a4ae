//! Cached metadata, and when it may be believed.
//!
//! An entry is believed as long as the bucket's [`Consistency`] says. The trap is a slow `HEAD` that left before
//! a write and comes back after it: its answer is old and must not replace the new entry. So every write moves a
//! counter (one of [`STRIPES`], by key) when it begins and when it ends, well or not, and an answer counts only if
//! the counter has not moved since it was asked for. The counter's lock is held while the entry is changed, so no
//! reader ever finds an entry that a write has overtaken.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{BucketName, Clock, ObjectKey};
use parking_lot::Mutex;

use crate::ObjectInfo;
use crate::engine::Consistency;

/// Writes to different keys rarely share a counter; sharing only costs one more `HEAD`.
const STRIPES: usize = 1024;

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
    writes: Box<[Mutex<u64>]>,
    hasher: RandomState,
    clock: Arc<dyn Clock>,
}

impl Freshness {
    pub(crate) fn new(entries_max: usize, clock: Arc<dyn Clock>) -> Self {
        Self {
            known: quick_cache::sync::Cache::new(entries_max.max(1)),
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
        let age_max = match consistency {
            Consistency::Always => return None,
            Consistency::RevalidateAfter(age) => age,
            Consistency::Immutable => Duration::MAX,
        };
        let known = self.known.get(&(bucket.clone(), key.clone()))?;
        let age = self.clock.monotonic().saturating_sub(known.asked_at);
        (age <= age_max && !known.is_outdated).then_some(known.info)
    }

    /// A read found that this version is gone; the next one asks the lake, whatever the bucket's consistency.
    pub(crate) fn outdate(&self, info: &Arc<ObjectInfo>) {
        let name = (info.bucket.clone(), info.key.clone());
        let _writes = self.counter(&name).lock();
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

    /// Call before writing or deleting; the entry is gone until the write is done or dropped.
    pub(crate) fn begin_write(&self, bucket: &BucketName, key: &ObjectKey) -> Write<'_> {
        let name = (bucket.clone(), key.clone());
        let mut writes = self.counter(&name).lock();
        *writes += 1;
        self.known.remove(&name);
        Write {
            freshness: self,
            writes: *writes,
            name: name.clone(),
            has_ended: false,
        }
    }

    fn counter(&self, name: &Name) -> &Mutex<u64> {
        let stripe = self.hasher.hash_one(name) % STRIPES as u64;
        &self.writes[usize::try_from(stripe).expect("a stripe number is small")]
    }
}

impl std::fmt::Debug for Freshness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Freshness")
            .field("entries", &self.known.len())
            .finish_non_exhaustive()
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

    use forebay_core::{ManualClock, Version};
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
