//! Leasing bytes of an object for a process on the host: which version, which bytes, where they lie.
//!
//! Versions are found as for a read (`with_version.rs`). [`Engine::try_lease`] is the warm way: no wait, no
//! task; `None` means that something has to be asked for, and [`Engine::lease`] does that.

use std::sync::Arc;

use forebay_core::{BucketName, ByteRange, ItemRange, ObjectKey, Result, TierBytes, Version};
use forebay_reservoir::{Leased, ObjectId, ObjectVersion};
use parking_lot::Mutex;

use crate::{Engine, ObjectInfo};

/// The bytes to lease.
#[derive(Debug, Clone, Copy)]
pub struct LeaseRequest<'a> {
    /// The bucket.
    pub bucket: &'a BucketName,
    /// The key.
    pub key: &'a ObjectKey,
    /// The range; members of archives are for the caller to find.
    pub range: &'a ItemRange,
    /// The version that it must have; `None` takes the current one.
    pub version: Option<&'a Version>,
}

/// Bytes of one version of an object, held where they lie.
#[derive(Debug)]
pub struct ObjectLease {
    /// The version that the bytes belong to.
    pub info: Arc<ObjectInfo>,
    /// The range; `None` if there are no bytes.
    pub range: Option<ByteRange>,
    /// The hold on them; `None` if there are none.
    pub leased: Option<Leased>,
}

/// The memory that leased bytes may lie in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseMemory {
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
        let range = match resolve(range, info) {
            Ok(range) => range,
            Err(error) => return Some(Err(error)),
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

    /// Leases a range, fetching what is missing. `memory` is asked with the number of bytes before
    /// anything is fetched, and again if the object changed and the lease starts afresh.
    ///
    /// Errors: `NotFound`, `OutOfRange`, `Changed` (the object does not have the version that was asked for),
    /// `Busy`, and what the lake says. Cancel-safe: a fill that others wait for goes on.
    pub async fn lease(
        &self,
        request: LeaseRequest<'_>,
        memory: impl FnMut(u64) -> Result<LeaseMemory> + Send,
    ) -> Result<ObjectLease> {
        let memory = &Mutex::new(memory);
        self.with_version(request.bucket, request.key, request.version, |info| async move {
            self.lease_version(&info, request.range, |bytes| (*memory.lock())(bytes))
                .await
        })
        .await
    }

    /// Leases a range of this very version, fetching what is missing; `memory` as for [`Self::lease`].
    ///
    /// Errors: `OutOfRange`, `Changed` or `NotFound` (the lake has another version by now, or none), `Busy`, and
    /// what the lake says. Cancel-safe: a fill that others wait for goes on.
    pub async fn lease_version(
        &self,
        info: &Arc<ObjectInfo>,
        range: &ItemRange,
        memory: impl FnOnce(u64) -> Result<LeaseMemory> + Send,
    ) -> Result<ObjectLease> {
        let range = resolve(range, info)?;
        let leased = match range {
            None => None,
            Some(range) => Some(self.lease_range(info, range, memory(range.len())?).await?),
        };
        Ok(ObjectLease {
            info: Arc::clone(info),
            range,
            leased,
        })
    }

    /// Returns what the reservoir knows a version of an object by; nothing is asked for.
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

    /// Brings a range into RAM, as far as there is room, for whoever leases it later; says where its bytes
    /// were.
    ///
    /// Errors: as [`Self::lease`], but for `Busy`. Cancel-safe: fills go on.
    pub async fn prefetch(&self, request: LeaseRequest<'_>) -> Result<TierBytes> {
        self.with_version(request.bucket, request.key, request.version, |info| async move {
            let Some(range) = resolve(request.range, &info)? else {
                return Ok(TierBytes::default());
            };
            if self.reservoir.is_resident(&info.object_id(), range) {
                return Ok(TierBytes {
                    ram: range.len(),
                    ..TierBytes::default()
                });
            }
            let (object, source) = (info.object_version(), self.source_of(&info)?);
            self.reservoir.prefetch(&object, range, &source).await
        })
        .await
    }

    async fn lease_range(&self, info: &ObjectInfo, range: ByteRange, memory: LeaseMemory) -> Result<Leased> {
        let (object, source) = (info.object_version(), self.source_of(info)?);
        match memory {
            LeaseMemory::Shared => self.reservoir.lease(&object, range, &source).await,
            LeaseMemory::Copied => self.reservoir.lease_copy(&object, range, &source).await,
        }
    }
}

fn resolve(range: &ItemRange, info: &ObjectInfo) -> Result<Option<ByteRange>> {
    let range = range.resolve(info.bytes);
    range.map_err(|error| error.with("key", &info.key))
}
