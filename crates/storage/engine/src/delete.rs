//! Removing an object: from the lake, then from everything that is remembered about it.
//!
//! A condition is the lake's to decide, as for writes: the object is asked for now, compared, and removed by
//! the token that was seen, so that a writer in between makes the removal fail. A lake that was not seen to
//! keep such a condition is never trusted with one.

use std::sync::Arc;

use forebay_core::{BucketName, Error, Kind, ObjectKey, Result, Version};

use crate::bucket::Bucket;
use crate::read::failed_condition;
use crate::{Engine, document};

/// Tries of a removal that only needs the object to exist, while others replace it.
const REPLACED_MAX: usize = 4;

/// The condition of a removal. In every case but `None` a missing object is `NotFound`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum DeleteCondition {
    /// Nothing; removing what is not there is fine.
    #[default]
    None,
    /// `If-Match: *`: the object exists.
    Exists,
    /// `If-Match`: the object has this version.
    Version(Version),
}

impl Engine {
    /// Removes an object; removing one that is not there is fine.
    pub async fn delete(&self, bucket: &BucketName, key: &ObjectKey) -> Result<()> {
        self.delete_if(bucket, key, &DeleteCondition::None).await
    }

    /// Removes an object if the condition holds; `PreconditionFailed`, `NotFound` or, where the lake cannot
    /// decide, `Unsupported` if not.
    pub async fn delete_if(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        condition: &DeleteCondition,
    ) -> Result<()> {
        let bucket = self.buckets.existing(bucket).await?;
        self.check_writable(&bucket, key).await?;
        match condition {
            DeleteCondition::None => self.remove(&bucket, key).await,
            _ if !bucket.handle.promises()?.conditional_delete => {
                let message = "this lake does not keep If-Match on a delete, so a newer object could be lost; \
                    delete without it";
                Err(Error::new(Kind::Unsupported, message).with("lake", bucket.handle.lake.url()))
            }
            DeleteCondition::Version(version) => self.remove_seen(&bucket, key, Some(version)).await,
            DeleteCondition::Exists => self.remove_existing(&bucket, key).await,
        }
    }

    async fn remove(&self, bucket: &Arc<Bucket>, key: &ObjectKey) -> Result<()> {
        let write = self.freshness.begin_write(&bucket.name, key);
        bucket.lake.delete(key).await?;
        write.done(None);
        self.forget(bucket, key).await;
        Ok(())
    }

    /// Removes the object that is there now, if it has this version.
    async fn remove_seen(
        &self,
        bucket: &Arc<Bucket>,
        key: &ObjectKey,
        wanted: Option<&Version>,
    ) -> Result<()> {
        let info = self.refresh(bucket, key).await?;
        if wanted.is_some_and(|wanted| *wanted != info.version) {
            return Err(failed_condition(&info));
        }
        let write = self.freshness.begin_write(&bucket.name, key);
        bucket.lake.delete_if(key, &info.token).await?;
        write.done(None);
        self.forget(bucket, key).await;
        Ok(())
    }

    async fn remove_existing(&self, bucket: &Arc<Bucket>, key: &ObjectKey) -> Result<()> {
        for _ in 0..REPLACED_MAX {
            match self.remove_seen(bucket, key, None).await {
                Err(error) if matches!(error.kind(), Kind::PreconditionFailed | Kind::Conflict) => {}
                other => return other,
            }
        }
        let message = "the object is replaced as fast as it can be deleted; try again";
        Err(Error::new(Kind::Conflict, message)
            .with("bucket", &bucket.name)
            .with("key", key))
    }

    async fn forget(&self, bucket: &Arc<Bucket>, key: &ObjectKey) {
        self.reservoir.forget(&bucket.name, key);
        document::forget_beside(bucket, key).await;
    }
}
