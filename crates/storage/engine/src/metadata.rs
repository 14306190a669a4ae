//! Metadata of objects: from the cache while it may be believed, else from one `HEAD` that all readers share.

use std::sync::Arc;

use forebay_core::{BucketName, Clock, Error, Kind, ObjectKey, Result};
use forebay_reservoir::Reservoir;

use crate::bucket::{Bucket, Buckets};
use crate::freshness::{Ask, Demand};
use crate::{DerivedStat, Engine, ObjectInfo, document};

/// Everything that a `HEAD` needs to go on when the reader that began it has left.
#[derive(Clone)]
struct Asker {
    buckets: Arc<Buckets>,
    reservoir: Arc<Reservoir>,
    clock: Arc<dyn Clock>,
}

impl Engine {
    /// Metadata of one object, as fresh as the bucket demands. Cancel-safe.
    pub async fn head(&self, bucket: &BucketName, key: &ObjectKey) -> Result<ObjectInfo> {
        let bucket = self.buckets.open(bucket)?;
        let info = self.info(&bucket, key).await?;
        Ok(ObjectInfo::clone(&info))
    }

    /// Metadata of one object, asked of the lake now, however fresh the cached one is. Cancel-safe.
    pub async fn head_now(&self, bucket: &BucketName, key: &ObjectKey) -> Result<ObjectInfo> {
        let bucket = self.buckets.open(bucket)?;
        let info = self.refresh(&bucket, key).await?;
        Ok(ObjectInfo::clone(&info))
    }

    /// Metadata, cached or asked for.
    pub(crate) async fn info(&self, bucket: &Arc<Bucket>, key: &ObjectKey) -> Result<Arc<ObjectInfo>> {
        if let Some(info) = self.freshness.fresh(&bucket.name, key, bucket.consistency) {
            return Ok(info);
        }
        self.ask(bucket, key, Demand::of(bucket.consistency)).await
    }

    /// Metadata, asked for now. If the object has changed, pages of older versions are dropped.
    pub(crate) async fn refresh(&self, bucket: &Arc<Bucket>, key: &ObjectKey) -> Result<Arc<ObjectInfo>> {
        self.ask(bucket, key, Demand::Now).await
    }

    async fn ask(&self, bucket: &Arc<Bucket>, key: &ObjectKey, demand: Demand) -> Result<Arc<ObjectInfo>> {
        let asker = Asker {
            buckets: Arc::clone(&self.buckets),
            reservoir: Arc::clone(&self.reservoir),
            clock: Arc::clone(&self.clock),
        };
        if key.is_reserved() {
            return Err(asker.not_found(bucket, key).await);
        }
        let (of, named) = (Arc::clone(bucket), key.clone());
        let send = move |ask| async move { asker.ask(ask, &of, &named).await };
        self.freshness.share_head(&bucket.name, key, demand, send).await
    }
}

impl Asker {
    async fn ask(&self, ask: Ask, bucket: &Arc<Bucket>, key: &ObjectKey) -> Result<Arc<ObjectInfo>> {
        let Some(info) = self.find(bucket, key).await? else {
            ask.answered(None);
            self.reservoir.forget(&bucket.name, key);
            return Err(self.not_found(bucket, key).await);
        };
        let info = Arc::new(info);
        if let Some(previous) = ask.answered(Some(&info))
            && previous.version != info.version
        {
            self.reservoir.forget_others(&info.object_version());
        }
        Ok(info)
    }

    /// Returns the computed object under the key, else what the lake has.
    async fn find(&self, bucket: &Arc<Bucket>, key: &ObjectKey) -> Result<Option<ObjectInfo>> {
        for derived in bucket.derived() {
            match derived.stat(&bucket.shared, key).await? {
                DerivedStat::NotMine => {}
                DerivedStat::Missing => return Ok(None),
                DerivedStat::Object(object) => return Ok(Some(ObjectInfo::listed(bucket, &object))),
            }
        }
        match bucket.lake.head(key).await {
            Ok(meta) => {
                let info = document::info_from_meta(bucket, meta, self.clock.monotonic()).await?;
                Ok(Some(info))
            }
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Says whether it is the object or the bucket that is missing.
    async fn not_found(&self, bucket: &Bucket, key: &ObjectKey) -> Error {
        match self.buckets.check_exists(bucket).await {
            Ok(()) => Error::new(Kind::NotFound, "there is no such object")
                .with("bucket", &bucket.name)
                .with("key", key),
            Err(error) => error,
        }
    }
}
