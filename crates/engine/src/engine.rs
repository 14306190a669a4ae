//! The engine: what edges hold and call. This file composes; each verb has a file of its own.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::{BucketName, Clock, ObjectKey, Result};
use forebay_lake::{Lake, SchedulerOptions};
use forebay_reservoir::{ObjectVersion, Reservoir, Source, TrustDomain};

use crate::bucket::{Bucket, Buckets};
use crate::freshness::Freshness;
use crate::source::LakeSource;
use crate::step_view::StepViews;
use crate::{ObjectInfo, document};

/// When cached metadata is asked for again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consistency {
    /// Never: objects of this bucket do not change.
    Immutable,
    /// When it is older than this.
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

/// A bucket with settings of its own.
#[derive(Debug, Clone)]
pub struct BucketOptions {
    /// The name that clients use.
    pub name: BucketName,
    /// The lake whose root is the bucket; `None` means the folder of this name in the default lake.
    pub lake: Option<LakeOptions>,
    /// How fresh reads are.
    pub consistency: Consistency,
    /// Who may map its bytes.
    pub domain: TrustDomain,
}

/// What an engine is made of.
#[derive(Debug)]
pub struct EngineOptions {
    /// The lake whose top-level folders are buckets.
    pub lake: LakeOptions,
    /// How fresh reads are, unless the bucket says otherwise.
    pub consistency: Consistency,
    /// Buckets with settings of their own.
    pub buckets: Vec<BucketOptions>,
    /// How many objects' metadata is kept at most.
    pub metadata_entries_max: usize,
    /// Where pages lie.
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
    /// Where pages lie.
    pub(crate) reservoir: Arc<Reservoir>,
    /// Where the reservoir's misses go.
    pub(crate) source: Arc<dyn Source>,
    /// Views of steps.
    pub(crate) views: Arc<StepViews>,
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
            Arc::clone(&options.clock),
        ));
        let views = Arc::new(StepViews::new());
        Arc::new(Self {
            source: Arc::new(LakeSource::new(Arc::clone(&buckets), Arc::clone(&views))),
            buckets,
            views,
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

    /// Metadata of one object, as fresh as the bucket demands. Cancel-safe.
    pub async fn head(&self, bucket: &BucketName, key: &ObjectKey) -> Result<ObjectInfo> {
        let bucket = self.buckets.open(bucket)?;
        let info = self.info(&bucket, key).await?;
        Ok(ObjectInfo::clone(&info))
    }

    /// Metadata, cached or asked for now.
    pub(crate) async fn info(&self, bucket: &Arc<Bucket>, key: &ObjectKey) -> Result<Arc<ObjectInfo>> {
        if let Some(info) = self.freshness.fresh(&bucket.name, key, bucket.consistency) {
            return Ok(info);
        }
        self.refresh(bucket, key).await
    }

    /// Metadata, asked for now. If the object has changed, pages of older versions are dropped.
    pub(crate) async fn refresh(&self, bucket: &Arc<Bucket>, key: &ObjectKey) -> Result<Arc<ObjectInfo>> {
        if key.is_reserved() {
            return Err(self.not_found(bucket, key).await);
        }
        let asked = self.freshness.begin_ask(&bucket.name, key);
        let Some(info) = self.ask(bucket, key).await? else {
            asked.answered(None);
            self.reservoir.forget(&bucket.name, key);
            return Err(self.not_found(bucket, key).await);
        };
        let info = Arc::new(info);
        if let Some(previous) = asked.answered(Some(&info))
            && previous.version != info.version
        {
            self.reservoir.forget_others(&info.object_version());
        }
        Ok(info)
    }

    /// What the view of a step shows under the key, else what the lake has.
    async fn ask(&self, bucket: &Arc<Bucket>, key: &ObjectKey) -> Result<Option<ObjectInfo>> {
        if let Some(shown) = self.view_info(bucket, key).await? {
            return Ok(shown);
        }
        match bucket.lake.head(key).await {
            Ok(meta) => {
                let info = document::info_from_meta(bucket, meta, self.clock.monotonic()).await?;
                Ok(Some(info))
            }
            Err(error) if error.kind() == forebay_core::Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// An error if nobody may write or remove this key: it is ours, or the view of a step.
    pub(crate) async fn check_writable(&self, bucket: &Arc<Bucket>, key: &ObjectKey) -> Result<()> {
        if key.is_reserved() {
            return Err(reserved(key));
        }
        self.refuse_view(bucket, key).await
    }

    /// Says whether it is the object or the bucket that is missing.
    async fn not_found(&self, bucket: &Bucket, key: &ObjectKey) -> forebay_core::Error {
        match self.buckets.check_exists(bucket).await {
            Ok(()) => forebay_core::Error::new(forebay_core::Kind::NotFound, "there is no such object")
                .with("bucket", &bucket.name)
                .with("key", key),
            Err(error) => error,
        }
    }
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
    /// What the reservoir keys pages by.
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
