//! Permits to read manifests.
//!
//! A manifest takes memory before it is known whether it is any good: its bytes while they come, and several
//! times as much while it is parsed. So both have a bound for the whole node. A bucket has a share of the
//! first, so that one whose lake is slow, or whose manifests are huge, cannot keep the others waiting; the
//! second is held for as long as a processor needs, never while a lake is waited for.
//!
//! A permit goes with the work and not with who asked for it: a parse whose caller has left keeps its permit
//! to the end.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use forebay_core::{BucketName, Error, Kind, Result};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::MANIFEST_BYTES_MAX;

/// Manifests are counted in these.
const UNIT_BYTES: u64 = 1 << 20;
/// Units of manifests that are read at once for one bucket: the largest manifest, or many small ones.
const BUCKET_UNITS: u32 = (MANIFEST_BYTES_MAX / UNIT_BYTES) as u32;
/// Units for all buckets together.
const UNITS: u32 = 4 * BUCKET_UNITS;
/// Manifests that are parsed at once.
const PARSES_MAX: usize = 2;

/// The permits of a node.
#[derive(Debug)]
pub(super) struct ManifestPermits {
    units: Arc<Semaphore>,
    parses: Arc<Semaphore>,
    /// The shares of buckets whose manifests are read or waited for now.
    buckets: Mutex<HashMap<BucketName, Weak<Semaphore>>>,
}

/// A permit, until it is dropped.
pub(super) struct ManifestPermit {
    _permits: [OwnedSemaphorePermit; 2],
}

impl ManifestPermits {
    pub(super) fn new() -> Self {
        Self {
            units: Arc::new(Semaphore::new(UNITS as usize)),
            parses: Arc::new(Semaphore::new(PARSES_MAX)),
            buckets: Mutex::default(),
        }
    }

    fn share_of(&self, bucket: &BucketName) -> Arc<Semaphore> {
        let mut buckets = self.buckets.lock();
        if let Some(share) = buckets.get(bucket).and_then(Weak::upgrade) {
            return share;
        }
        buckets.retain(|_, share| share.strong_count() > 0);
        let share = Arc::new(Semaphore::new(BUCKET_UNITS as usize));
        buckets.insert(bucket.clone(), Arc::downgrade(&share));
        share
    }

    /// Waits until a manifest of so many bytes may be held.
    pub(super) async fn to_read(&self, bucket: &BucketName, bytes: u64) -> Result<ManifestPermit> {
        let units = bytes.div_ceil(UNIT_BYTES).clamp(1, BUCKET_UNITS.into()) as u32;
        // The bucket's own first: who waits there holds nothing that others need.
        let own = acquire(&self.share_of(bucket), units).await?;
        let shared = acquire(&self.units, units).await?;
        Ok(ManifestPermit {
            _permits: [own, shared],
        })
    }

    /// Waits until one more may be parsed.
    pub(super) async fn to_parse(&self) -> Result<OwnedSemaphorePermit> {
        acquire(&self.parses, 1).await
    }
}

async fn acquire(semaphore: &Arc<Semaphore>, units: u32) -> Result<OwnedSemaphorePermit> {
    let permit = Arc::clone(semaphore).acquire_many_owned(units).await;
    permit.map_err(|why| Error::new(Kind::Internal, "permits to read manifests have ended").caused_by(why))
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn bucket(number: u32) -> BucketName {
        BucketName::new(&format!("bucket-{number}")).unwrap()
    }

    #[test]
    fn a_bucket_with_the_largest_manifest_leaves_permits_to_others() {
        let (permits, slow, other) = (ManifestPermits::new(), bucket(1), bucket(2));
        let ask = |bucket, bytes| permits.to_read(bucket, bytes).now_or_never();
        let held = ask(&slow, MANIFEST_BYTES_MAX);
        assert!(held.is_some());
        assert!(ask(&slow, 1).is_none(), "the share of the bucket has an end");
        assert!(ask(&other, MANIFEST_BYTES_MAX).is_some(), "another bucket waits");
        drop(held);
        assert!(ask(&slow, 1).is_some());
    }

    #[test]
    fn all_buckets_together_have_a_bound() {
        let permits = ManifestPermits::new();
        let buckets: Vec<_> = (0..5).map(bucket).collect();
        let ask = |bucket| permits.to_read(bucket, MANIFEST_BYTES_MAX).now_or_never();
        let held: Vec<_> = buckets.iter().map(ask).collect();
        assert_eq!(held.iter().filter(|permit| permit.is_some()).count(), 4);
        let parses: Vec<_> = (0..5).map(|_| permits.to_parse().now_or_never()).collect();
        assert_eq!(
            parses.iter().filter(|permit| permit.is_some()).count(),
            PARSES_MAX
        );
    }
}
