//! The sources of the reservoir's misses: one per bucket, given by whoever composes the node.
//!
//! [`Sources`] makes the source of a bucket when the bucket is opened. [`LakeSources`] reads the bucket's lake; a
//! node with peers gives another one, whose sources fall back to the lake. Objects that are computed have a source
//! of their own (`derived.rs`).

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use forebay_core::{BucketName, ByteRange, ObjectKey, Result, Version};
use forebay_lake::{ByteStream, FetchPriority, FetchUrgency, Lake, ReadScheduler};
use forebay_reservoir::{ObjectVersion, Priority, Source, SourceBlock, SourceStream, Urgency};
use futures::StreamExt;

/// The lake of a bucket, as sources and computed objects see it. Clones share it.
#[derive(Debug, Clone)]
pub struct BucketLake {
    name: BucketName,
    lake: Arc<dyn Lake>,
    prefix: Arc<str>,
    scheduler: Arc<ReadScheduler>,
}

impl BucketLake {
    pub(crate) fn new(
        name: BucketName,
        lake: Arc<dyn Lake>,
        prefix: &str,
        scheduler: Arc<ReadScheduler>,
    ) -> Self {
        Self {
            name,
            lake,
            prefix: prefix.into(),
            scheduler,
        }
    }

    /// The name of the bucket.
    #[must_use]
    pub fn name(&self) -> &BucketName {
        &self.name
    }

    /// The lake, seen from inside the bucket.
    #[must_use]
    pub fn lake(&self) -> &Arc<dyn Lake> {
        &self.lake
    }

    /// The bytes of a range of exactly this version, in order: split, retried, within the limits of the lake.
    pub fn fetch(
        &self,
        key: &ObjectKey,
        version: &Version,
        object_bytes: u64,
        range: ByteRange,
        urgency: &Urgency,
    ) -> Result<ByteStream> {
        let key = self.full_key(key)?;
        let urgency = match urgency.now() {
            Priority::Demand => FetchUrgency::from(FetchPriority::Demand),
            Priority::ReadAhead => FetchUrgency::read_ahead_until(urgency.raised()),
        };
        self.scheduler.fetch(&key, version, object_bytes, range, urgency)
    }

    /// The key as the lake behind the bucket knows it.
    pub(crate) fn full_key(&self, key: &ObjectKey) -> Result<ObjectKey> {
        if self.prefix.is_empty() {
            Ok(key.clone())
        } else {
            ObjectKey::new(&format!("{}{key}", self.prefix))
        }
    }
}

/// Makes the source of each bucket, once, when it is opened.
pub trait Sources: Send + Sync + fmt::Debug + 'static {
    /// The source of a bucket.
    fn source_of(&self, bucket: &BucketLake) -> Arc<dyn Source>;
}

/// Sources that read the bucket's lake, and nothing else.
#[derive(Debug, Clone, Copy, Default)]
pub struct LakeSources;

impl Sources for LakeSources {
    fn source_of(&self, bucket: &BucketLake) -> Arc<dyn Source> {
        Arc::new(LakeSource::new(bucket))
    }
}

/// Reads the lake of one bucket.
#[derive(Debug, Clone)]
pub struct LakeSource {
    bucket: BucketLake,
}

impl LakeSource {
    /// A source that reads this lake.
    #[must_use]
    pub fn new(bucket: &BucketLake) -> Self {
        Self {
            bucket: bucket.clone(),
        }
    }
}

#[async_trait]
impl Source for LakeSource {
    async fn fetch(
        &self,
        object: &ObjectVersion,
        range: ByteRange,
        urgency: &Urgency,
    ) -> Result<SourceStream> {
        let body = self
            .bucket
            .fetch(&object.key, &object.version, object.bytes, range, urgency)?;
        Ok(body.map(|chunk| chunk.map(SourceBlock::from_lake)).boxed())
    }
}
