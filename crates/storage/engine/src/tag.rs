//! Tags of objects. They lie in a document beside the object, because not every lake has tags.

use std::sync::Arc;

use forebay_core::{BucketName, Kind, ObjectKey, Result, Version};

use crate::bucket::Bucket;
use crate::engine::check_derived;
use crate::{Engine, ObjectInfo, Tag, document};

impl Engine {
    /// The tags of an object; `NotFound` if there is no such object.
    pub async fn tags(&self, bucket: &BucketName, key: &ObjectKey) -> Result<Vec<Tag>> {
        let bucket = self.buckets.open(bucket)?;
        let info = self.refresh(&bucket, key).await?;
        document::read_tags(&bucket, &info).await
    }

    /// Replaces the tags of an object; none removes them.
    pub async fn set_tags(&self, bucket: &BucketName, key: &ObjectKey, tags: Vec<Tag>) -> Result<()> {
        let bucket = self.buckets.open(bucket)?;
        check_derived(&bucket, key).await?;
        self.keep_tags(&bucket, key, None, tags).await
    }

    /// Keeps the tags of an object that has just been written, unless another writer has replaced or removed
    /// it since.
    pub(crate) async fn tag_written(
        &self,
        bucket: &Arc<Bucket>,
        key: &ObjectKey,
        version: &Version,
        tags: Vec<Tag>,
    ) -> Result<()> {
        match self.keep_tags(bucket, key, Some(version), tags).await {
            Err(error) if error.kind() == Kind::NotFound => Ok(()),
            kept => kept,
        }
    }

    /// Replaces the tags of the object that the lake has now, if it is the one that is meant, and the cached
    /// metadata that counts them. Tags are bound to the time that the lake gave the object, so it is asked
    /// for.
    async fn keep_tags(
        &self,
        bucket: &Arc<Bucket>,
        key: &ObjectKey,
        only: Option<&Version>,
        tags: Vec<Tag>,
    ) -> Result<()> {
        // Begun before the question, so that metadata which another write overtakes is not kept.
        let write = self.freshness.begin_write(&bucket.name, key);
        let mut info = ObjectInfo::clone(&*self.refresh(bucket, key).await?);
        if only.is_some_and(|version| info.version != *version) {
            return Ok(());
        }
        info.tag_count = tags.len();
        document::write_tags(bucket, &info, tags).await?;
        write.done(Some(Arc::new(info)));
        Ok(())
    }
}
