//! Where the reservoir's misses go: the lake behind the bucket.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use forebay_core::{ByteRange, Result};
use forebay_lake::{FetchPriority, FetchUrgency};
use forebay_reservoir::{ObjectVersion, Priority, Source, Urgency};
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
        urgency: &Urgency,
    ) -> Result<BoxStream<'static, Result<Bytes>>> {
        let bucket = self.buckets.open(&object.bucket)?;
        let key = bucket.full_key(&object.key)?;
        let urgency = match urgency.now() {
            Priority::Demand => FetchPriority::Demand.into(),
            Priority::ReadAhead => FetchUrgency::read_ahead_until(urgency.raised()),
        };
        bucket
            .handle
            .scheduler
            .fetch(&key, &object.version, object.bytes, range, urgency)
    }
}
