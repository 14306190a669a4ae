//! The engine: what edges hold and call. This file composes; each verb has a file of its own.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::{BucketName, Clock, ObjectKey, Result};
use forebay_lake::{Lake, LakeCondition, SchedulerOptions};
use forebay_reservoir::{ObjectVersion, Reservoir, Source, TrustDomain};

use crate::bucket::{Bucket, BucketParts, Buckets};
use crate::freshness::Freshness;
use crate::{Derived, ObjectInfo, Sources};

/// The age at which cached metadata is asked for again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consistency {
    /// Never: objects of this bucket do not change.
    Immutable,
    /// Once it is older than this.
    RevalidateAfter(Duration),
    /// At every read.
    Always,
}

/// A lake and which of the promises that stores differ in it keeps (found by the self-test at start).
#[derive(Debug, Clone)]
pub struct LakeOptions {
    /// The lake.
    pub lake: Arc<dyn Lake>,
    /// `If-None-Match: *` has exactly one winner.
    pub conditional_create: bool,
    /// `If-Match` has exactly one winner.
    pub conditional_update: bool,
    /// `If-Match` on a delete removes only the object that it names.
    pub conditional_delete: bool,
    /// Limits for reading from it.
    pub scheduler: SchedulerOptions,
}

/// Promises about conditions that a lake keeps, as its self-test has found them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LakePromises {
    /// As in [`LakeOptions`].
    pub conditional_create: bool,
    /// As in [`LakeOptions`].
    pub conditional_update: bool,
    /// As in [`LakeOptions`].
    pub conditional_delete: bool,
}

/// A bucket with settings of its own.
#[derive(Debug, Clone)]
pub struct BucketOptions {
    /// The name that clients use.
    pub name: BucketName,
    /// The lake whose root is the bucket; `None` means the folder of this name in the default lake.
    pub lake: Option<LakeOptions>,
    /// The freshness of reads.
    pub consistency: Consistency,
    /// The clients that may map its bytes.
    pub domain: TrustDomain,
}

/// The parts of an engine.
#[derive(Debug)]
pub struct EngineOptions {
    /// The lake whose top-level folders are buckets.
    pub lake: LakeOptions,
    /// The freshness of reads, unless the bucket says otherwise.
    pub consistency: Consistency,
    /// Buckets with settings of their own.
    pub buckets: Vec<BucketOptions>,
    /// Objects whose metadata is kept, at most.
    pub metadata_entries_max: usize,
    /// The source of the blocks that the reservoir misses, for each bucket.
    pub sources: Arc<dyn Sources>,
    /// Kinds of objects that are computed, in the order in which they are asked; before the lake.
    pub derived: Vec<Arc<dyn Derived>>,
    /// The pages of objects.
    pub reservoir: Arc<Reservoir>,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

/// Buckets and objects of a lake, read through the reservoir, written through to the lake.
///
/// Shared by `Arc`; all methods may be called from many tasks at once.
#[derive(Debug)]
pub struct Engine {
    /// Bucket names and the lakes behind them.
    pub(crate) buckets: Arc<Buckets>,
    /// Cached metadata.
    pub(crate) freshness: Arc<Freshness>,
    /// The pages of objects.
    pub(crate) reservoir: Arc<Reservoir>,
    /// The time.
    pub(crate) clock: Arc<dyn Clock>,
}

impl Engine {
    /// Composes an engine; nothing is asked of the lake yet.
    #[must_use]
    pub fn new(options: EngineOptions) -> Arc<Self> {
        let buckets = Arc::new(Buckets::new(
            options.lake,
            options.consistency,
            options.buckets,
            BucketParts {
                sources: options.sources,
                derived: options.derived,
            },
            Arc::clone(&options.clock),
        ));
        Arc::new(Self {
            buckets,
            freshness: Arc::new(Freshness::new(
                options.metadata_entries_max,
                Arc::clone(&options.clock),
            )),
            reservoir: options.reservoir,
            clock: options.clock,
        })
    }

    /// The reservoir, for statistics and cache commands.
    #[must_use]
    pub fn reservoir(&self) -> &Arc<Reservoir> {
        &self.reservoir
    }

    /// Sets what the lake of a bucket that has its own, or the default lake, promises. `None` says that nobody
    /// knows yet: requests under a condition are then `Unavailable`, all others go to the lake.
    pub fn set_promises(&self, bucket: Option<&BucketName>, promises: Option<LakePromises>) {
        self.buckets.set_promises(bucket, promises);
    }

    /// The condition of the lake behind a bucket, as its requests find it.
    pub fn lake_condition(&self, bucket: &BucketName) -> Result<LakeCondition> {
        let bucket = self.buckets.open(bucket)?;
        Ok(bucket.handle.scheduler.admission().condition())
    }

    /// An error if nobody may write or remove this key: it is ours, or in a place of computed objects.
    pub(crate) async fn check_writable(&self, bucket: &Arc<Bucket>, key: &ObjectKey) -> Result<()> {
        if key.is_reserved() {
            return Err(reserved(key));
        }
        check_derived(bucket, key).await
    }

    /// The source of an object's blocks; looked up once for each cached metadata.
    pub(crate) fn source_of(&self, info: &ObjectInfo) -> Result<Arc<dyn Source>> {
        if let Some(source) = info.source.0.get() {
            return Ok(Arc::clone(source));
        }
        let bucket = self.buckets.open(&info.bucket)?;
        let source = bucket.source_of(&info.key, &info.version);
        Ok(Arc::clone(info.source.0.get_or_init(|| Arc::clone(source))))
    }
}

/// An error if the key lies in a place of computed objects.
pub(crate) async fn check_derived(bucket: &Bucket, key: &ObjectKey) -> Result<()> {
    for derived in bucket.derived() {
        derived.check_writable(&bucket.shared, key).await?;
    }
    Ok(())
}

/// The error for keys under `.forebay/`.
fn reserved(key: &ObjectKey) -> forebay_core::Error {
    forebay_core::Error::new(
        forebay_core::Kind::InvalidInput,
        "keys under .forebay/ are kept for forebay's own documents; choose another key",
    )
    .with("key", key)
}

impl ObjectInfo {
    /// Returns what the reservoir keys pages by.
    #[must_use]
    pub fn object_version(&self) -> ObjectVersion {
        ObjectVersion {
            bucket: self.bucket.clone(),
            key: self.key.clone(),
            version: self.version.clone(),
            bytes: self.bytes,
            domain: self.domain,
        }
    }
}
