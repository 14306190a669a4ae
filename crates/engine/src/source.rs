//! Where the reservoir's misses go: the lake behind the bucket; for the view of a step, the files that make it up.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use forebay_core::{ByteRange, Result};
use forebay_lake::{FetchPriority, FetchUrgency};
use forebay_reservoir::{ObjectVersion, Priority, Source, Urgency};
use futures::stream::BoxStream;

use crate::bucket::Buckets;
use crate::step_view::StepViews;

/// Fetches blocks through the scheduler of the bucket's lake.
#[derive(Debug)]
pub(crate) struct LakeSource {
    buckets: Arc<Buckets>,
    views: Arc<StepViews>,
}

impl LakeSource {
    pub(crate) fn new(buckets: Arc<Buckets>, views: Arc<StepViews>) -> Self {
        Self { buckets, views }
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
        let urgency = match urgency.now() {
            Priority::Demand => FetchUrgency::from(FetchPriority::Demand),
            Priority::ReadAhead => FetchUrgency::read_ahead_until(urgency.raised()),
        };
        if let Some(found) = self.views.of_version(&bucket, object).await? {
            return Ok(found.fetch(bucket, range, urgency));
        }
        let key = bucket.full_key(&object.key)?;
        bucket
            .handle
            .scheduler
            .fetch(&key, &object.version, object.bytes, range, urgency)
    }
}
