//! Leasing bytes of an object for a process on the host: which version, which bytes, where they lie.
//!
//! The same decisions as for a read (`read.rs`): metadata as fresh as the bucket demands, and a restart if the object turns out to
//! have changed before the first byte. [`Engine::try_lease`] is the warm way: no wait, no task; `None` means that something has to
//! be asked for, and [`Engine::lease`] does that.

use std::sync::Arc;

use forebay_core::wire::ItemRange;
use forebay_core::{BucketName, ByteRange, Error, Kind, ObjectKey, Result, Version};
use forebay_reservoir::{Leased, LeasedTiers, ObjectId, ObjectVersion};

use crate::bucket::Bucket;
use crate::read::{RESTARTS_MAX, changing_too_fast};
use crate::{Engine, ObjectInfo};

/// What to lease.
#[derive(Debug, Clone, Copy)]
pub struct LeaseRequest<'a> {
    /// The bucket.
    pub bucket: &'a BucketName,
    /// The key.
    pub key: &'a ObjectKey,
    /// Which bytes; members of archives are for the caller to find.
    pub range: &'a ItemRange,
    /// The version that it must have; `None` takes the current one.
    pub version: Option<&'a Version>,
}

impl LeaseRequest<'_> {
    /// Which bytes of this version are meant; `Changed` if another one is wanted.
    fn range_of(&self, info: &ObjectInfo) -> Result<Option<ByteRange>> {
        match self.version {
            Some(wanted) if *wanted != info.version => Err(other_version(info, wanted)),
            _ => {
                let range = self.range.resolve(info.bytes);
                range.map_err(|error| error.with("key", &info.key))
            }
        }
    }
}

/// Bytes of one version of an object, held where they lie.
#[derive(Debug)]
pub struct ObjectLease {
    /// The version that the bytes belong to.
    pub info: Arc<ObjectInfo>,
    /// Which bytes; `None` if there are none.
    pub range: Option<ByteRange>,
    /// The hold on them; `None` if there are none.
    pub leased: Option<Leased>,
}

/// Where leased bytes may lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeasePlace {
    /// In the pages of the cache.
    Shared,
    /// In memory of their own: the holder has its share of the cache already.
    Copied,
}

impl Engine {
    /// Metadata, if it is known and may still be believed; nothing is asked for.
    #[must_use]
    pub fn known(&self, bucket: &BucketName, key: &ObjectKey) -> Option<Arc<ObjectInfo>> {
        let bucket = self.buckets.open(bucket).ok()?;
        self.freshness.fresh(&bucket.name, key, bucket.consistency)
    }

    /// Leases what is in RAM and known to be fresh, without waiting; `None` if anything is missing.
    pub fn try_lease(&self, request: LeaseRequest<'_>) -> Option<Result<ObjectLease>> {
        let bucket = match self.buckets.open(request.bucket) {
            Ok(bucket) => bucket,
            Err(error) => return Some(Err(error)),
        };
        let info =
            self.freshness
                .fresh_version(&bucket.name, request.key, bucket.consistency, request.version)?;
        // Another version than the one that is wanted: maybe what we know is old, so the lake has to say.
        if request.version.is_some_and(|version| *version != info.version) {
            return None;
        }
        self.try_lease_known(&info, request.range)
    }

    /// As [`Self::try_lease`], for an object whose metadata the caller has and believes.
    pub fn try_lease_known(&self, info: &Arc<ObjectInfo>, range: &ItemRange) -> Option<Result<ObjectLease>> {
        let range = match range.resolve(info.bytes) {
            Ok(range) => range,
            Err(error) => return Some(Err(error.with("key", &info.key))),
        };
        let leased = match range {
            Some(range) => Some(self.reservoir.try_lease_id(&info.object_id(), range)?),
            None => None,
        };
        Some(Ok(ObjectLease {
            info: Arc::clone(info),
            range,
            leased,
        }))
    }

    /// Leases a range, fetching what is missing. `place` is asked with the number of bytes before
    /// anything is fetched, and again if the object changed and the lease starts afresh.
    ///
    /// Errors: `NotFound`, `OutOfRange`, `Changed` (the object does not have the version that was asked for), `Busy`, and what the lake
    /// says. Cancel-safe: a fill that others wait for goes on.
    pub async fn lease(
        &self,
        request: LeaseRequest<'_>,
        mut place: impl FnMut(u64) -> Result<LeasePlace> + Send,
    ) -> Result<ObjectLease> {
        let (bucket, mut info) = self.wanted(&request).await?;
        for _ in 0..RESTARTS_MAX {
            let Some(range) = request.range_of(&info)? else {
                return Ok(ObjectLease {
                    info,
                    range: None,
                    leased: None,
                });
            };
            match self.lease_range(&info, range, place(range.len())?).await {
                // Replaced or deleted since its metadata was cached: ask again and start afresh.
                Err(error) if matches!(error.kind(), Kind::Changed | Kind::NotFound) => {
                    info = self.refresh(&bucket, request.key).await?;
                }
                Err(error) => return Err(error),
                Ok(leased) => {
                    return Ok(ObjectLease {
                        info,
                        range: Some(range),
                        leased: Some(leased),
                    });
                }
            }
        }
        Err(changing_too_fast(&bucket, request.key))
    }

    /// What the reservoir knows a version of an object by; nothing is asked for.
    ///
    /// Errors: `NotFound` if there is no such bucket.
    pub fn object_id(
        &self,
        bucket: &BucketName,
        key: &ObjectKey,
        version: &Version,
        bytes: u64,
    ) -> Result<ObjectId> {
        let bucket = self.buckets.open(bucket)?;
        Ok(ObjectId::of(&ObjectVersion {
            bucket: bucket.name.clone(),
            key: key.clone(),
            version: version.clone(),
            bytes,
            domain: bucket.domain,
        }))
    }

    /// Brings a range into RAM, as far as there is room, for whoever leases it later; says where its bytes were.
    ///
    /// Errors: as [`Self::lease`], but for `Busy`. Cancel-safe: fills go on.
    pub async fn prepare(&self, request: LeaseRequest<'_>) -> Result<LeasedTiers> {
        let (bucket, mut info) = self.wanted(&request).await?;
        for _ in 0..RESTARTS_MAX {
            let Some(range) = request.range_of(&info)? else {
                return Ok(LeasedTiers::default());
            };
            if self.reservoir.is_prepared(&info.object_id(), range) {
                return Ok(LeasedTiers {
                    ram: range.len(),
                    ..LeasedTiers::default()
                });
            }
            let object = info.object_version();
            match self.reservoir.prepare(&object, range, &self.source).await {
                // Replaced or deleted since its metadata was cached: ask again and start afresh.
                Err(error) if matches!(error.kind(), Kind::Changed | Kind::NotFound) => {
                    info = self.refresh(&bucket, request.key).await?;
                }
                prepared => return prepared,
            }
        }
        Err(changing_too_fast(&bucket, request.key))
    }

    /// The object as it is known; asked for again if it is known with another version than is wanted.
    async fn wanted(&self, request: &LeaseRequest<'_>) -> Result<(Arc<Bucket>, Arc<ObjectInfo>)> {
        let bucket = self.buckets.open(request.bucket)?;
        let known =
            self.freshness
                .fresh_version(&bucket.name, request.key, bucket.consistency, request.version);
        let mut info = match known {
            Some(info) => info,
            None => self.refresh(&bucket, request.key).await?,
        };
        if request.version.is_some_and(|version| *version != info.version) {
            info = self.refresh(&bucket, request.key).await?;
        }
        Ok((bucket, info))
    }

    async fn lease_range(&self, info: &ObjectInfo, range: ByteRange, place: LeasePlace) -> Result<Leased> {
        let object = info.object_version();
        match place {
            LeasePlace::Shared => self.reservoir.lease(&object, range, &self.source).await,
            LeasePlace::Copied => self.reservoir.lease_copy(&object, range, &self.source).await,
        }
    }
}

fn other_version(info: &ObjectInfo, wanted: &Version) -> Error {
    let message = "the object has another version now; read it without a version, or start again";
    Error::new(Kind::Changed, message)
        .with("bucket", &info.bucket)
        .with("key", &info.key)
        .with("version", &info.version)
        .with("wanted", wanted)
}
