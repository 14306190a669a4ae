//! Tags of objects. They lie in a document beside the object, because not every lake has tags.

use forebay_core::{BucketName, ObjectKey, Result};

use crate::{Engine, Tag, document};

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
        let info = self.refresh(&bucket, key).await?;
        document::write_tags(&bucket, &info, tags).await
    }
}
