//! Who may read a manifest now.
//!
//! A manifest takes memory before it is known whether it is any good: its bytes while they come, and several times as much while it is parsed. So both have a
//! bound for the whole node. A bucket has a share of the first, so that one whose lake is slow, or whose manifests are huge, cannot keep the others waiting; the
//! second is held for as long as a processor needs, never while a lake is waited for.
//!
//! A turn goes with the work and not with who asked for it: a parse whose caller has left keeps its turn to the end.

use std::sync::Arc;

use forebay_core::{Error, Kind, Result};
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

/// The turns of a node.
#[derive(Debug)]
pub(super) struct Turns {
    units: Arc<Semaphore>,
    parses: Arc<Semaphore>,
}

/// The share of one bucket.
#[derive(Debug)]
pub(crate) struct BucketTurns(Arc<Semaphore>);

/// A turn, until it is dropped.
pub(super) struct Turn {
    _permits: [OwnedSemaphorePermit; 2],
}

impl Turns {
    pub(super) fn new() -> Self {
        Self {
            units: Arc::new(Semaphore::new(UNITS as usize)),
            parses: Arc::new(Semaphore::new(PARSES_MAX)),
        }
    }

    /// Waits until a manifest of so many bytes may be held.
    pub(super) async fn to_read(&self, bucket: &BucketTurns, bytes: u64) -> Result<Turn> {
        let units = bytes.div_ceil(UNIT_BYTES).clamp(1, BUCKET_UNITS.into()) as u32;
        // The bucket's own first: who waits there holds nothing that others need.
        let own = acquire(&bucket.0, units).await?;
        let shared = acquire(&self.units, units).await?;
        Ok(Turn {
            _permits: [own, shared],
        })
    }

    /// Waits until one more may be parsed.
    pub(super) async fn to_parse(&self) -> Result<OwnedSemaphorePermit> {
        acquire(&self.parses, 1).await
    }
}

impl Default for BucketTurns {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(BUCKET_UNITS as usize)))
    }
}

async fn acquire(semaphore: &Arc<Semaphore>, units: u32) -> Result<OwnedSemaphorePermit> {
    let permit = Arc::clone(semaphore).acquire_many_owned(units).await;
    permit.map_err(|why| Error::new(Kind::Internal, "turns to read manifests have ended").caused_by(why))
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_bucket_with_the_largest_manifest_leaves_turns_to_others() {
        let (turns, slow, other) = (Turns::new(), BucketTurns::default(), BucketTurns::default());
        let ask = |bucket, bytes| turns.to_read(bucket, bytes).now_or_never();
        let held = ask(&slow, MANIFEST_BYTES_MAX);
        assert!(held.is_some());
        assert!(ask(&slow, 1).is_none(), "the share of the bucket has an end");
        assert!(ask(&other, MANIFEST_BYTES_MAX).is_some(), "another bucket waits");
        drop(held);
        assert!(ask(&slow, 1).is_some());
    }

    #[test]
    fn all_buckets_together_have_a_bound() {
        let turns = Turns::new();
        let buckets: Vec<_> = (0..5).map(|_| BucketTurns::default()).collect();
        let ask = |bucket| turns.to_read(bucket, MANIFEST_BYTES_MAX).now_or_never();
        let held: Vec<_> = buckets.iter().map(ask).collect();
        assert_eq!(held.iter().filter(|turn| turn.is_some()).count(), 4);
        let parses: Vec<_> = (0..5).map(|_| turns.to_parse().now_or_never()).collect();
        assert_eq!(parses.iter().filter(|turn| turn.is_some()).count(), PARSES_MAX);
    }
}
