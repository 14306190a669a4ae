//! Where the reservoir's misses go: the lake behind the bucket.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use forebay_core::{ByteRange, Result};
use forebay_lake::FetchPriority;
use forebay_reservoir::{ObjectVersion, Priority, Source};
use futures::stream::BoxStream;

use crate::bucket::Buckets;

/// Fetches blocks through the scheduler of the bucket's lake.
#[derive(Debug)]
pub(crate) struct LakeSource {
    buckets: Arc<Buckets>,
}

impl LakeSource {
    pub(crate) fn new(buckets: Arc<Buckets>) -> Self {
        Self { buckets }
    }
}

#[async_trait]
impl Source for LakeSource {
    async fn fetch(
        &self,
        object: &ObjectVersion,
        range: ByteRange,
        priority: Priority,
    ) -> Result<BoxStream<'static, Result<Bytes>>> {
        let bucket = self.buckets.open(&object.bucket)?;
        let key = bucket.full_key(&object.key)?;
        let priority = match priority {
            Priority::Demand => FetchPriority::Demand,
            Priority::ReadAhead => FetchPriority::ReadAhead,
        };
        bucket
            .handle
            .scheduler
            .fetch(&key, &object.version, object.bytes, range, priority)
    }
}
