//! One version of an object for one piece of work, and the restart when the object turns out to have changed.
//!
//! Metadata is believed for a while (`freshness.rs`), so work may begin on a version that the lake no longer
//! has. The lake then answers `Changed` or `NotFound`. The work is dropped, the version is no longer believed,
//! and the work starts again on the version that the lake has now. Every reader goes through here: whole reads,
//! leases, prefetches, members of archives, items of batches.
//!
//! Limits: [`RESTARTS_MAX`]; an object that changes faster than it can be read ends with `Changed`.

use std::sync::Arc;

use forebay_core::{BucketName, Error, Kind, ObjectKey, Result, Version};

use crate::bucket::Bucket;
use crate::{Engine, ObjectInfo};

/// Versions that one piece of work is tried on, at most.
const RESTARTS_MAX: usize = 3;

impl Engine {
    /// Runs `work` on the current version of an object, or on the `wanted` one; again on the next version if it
    /// ends with `Changed` or `NotFound`. Errors of `work` that are not about the version have to have another
    /// kind, or travel inside its value.
    ///
    /// Errors: `NotFound`, `Changed` (the object does not have the wanted version, or is replaced too fast), and
    /// those of `work`. Cancel-safe if `work` is.
    pub async fn with_version<T, F>(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        wanted: Option<&Version>,
        work: impl FnMut(Arc<ObjectInfo>) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let bucket = self.buckets.open(bucket)?;
        let known = self
            .freshness
            .fresh_version(&bucket.name, key, bucket.consistency, wanted);
        let info = match known {
            Some(info) => info,
            None => self.info(&bucket, key).await?,
        };
        self.restarting(&bucket, info, wanted, work).await
    }

    /// Like [`Self::with_version`], beginning with metadata that the caller has.
    pub async fn with_known_version<T, F>(
        &self,
        known: &Arc<ObjectInfo>,
        wanted: Option<&Version>,
        work: impl FnMut(Arc<ObjectInfo>) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let bucket = self.buckets.open(&known.bucket)?;
        self.restarting(&bucket, Arc::clone(known), wanted, work).await
    }

    async fn restarting<T, F>(
        &self,
        bucket: &Arc<Bucket>,
        mut info: Arc<ObjectInfo>,
        wanted: Option<&Version>,
        mut work: impl FnMut(Arc<ObjectInfo>) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let key = info.key.clone();
        if wanted.is_some_and(|wanted| *wanted != info.version) {
            info = self.refresh(bucket, &key).await?; // The metadata may be old: the lake has to say.
        }
        for _ in 0..RESTARTS_MAX {
            if let Some(wanted) = wanted.filter(|wanted| **wanted != info.version) {
                return Err(other_version(&info, wanted));
            }
            match work(Arc::clone(&info)).await {
                Err(error) if matches!(error.kind(), Kind::Changed | Kind::NotFound) => {
                    self.freshness.outdate(&info);
                    info = self.info(bucket, &key).await?;
                }
                ended => return ended,
            }
        }
        let message = "the object is replaced faster than it can be read; try again";
        Err(Error::new(Kind::Changed, message)
            .with("bucket", &bucket.name)
            .with("key", key))
    }
}

fn other_version(info: &ObjectInfo, wanted: &Version) -> Error {
    let message = "the object has another version now; read it without a version, or start again";
    Error::new(Kind::Changed, message)
        .with("bucket", &info.bucket)
        .with("key", &info.key)
        .with("version", &info.version)
        .with("wanted", wanted)
}
