//! Objects that are computed: no lake has them, and everybody reads them like any other.
//!
//! An implementation says which keys of a bucket are its own, lists them, and makes their bytes when pages are
//! missing. Everything between (conditions, ranges, pages, leases, freshness) sees ordinary objects. Each is asked
//! before the lake, in the order in which whoever composed the node registered them. Its places cannot be written.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use forebay_core::{ByteRange, ObjectKey, Result, Version};
use forebay_lake::{ListOptions, ListPage, ListedObject};
use forebay_reservoir::{ObjectVersion, Source, SourceStream, Urgency};

use crate::BucketLake;

/// The answer of a derived place about a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DerivedStat {
    /// The key is none of its own: the lake is asked.
    NotMine,
    /// The key lies in it, and there is no such object.
    Missing,
    /// The object.
    Object(ListedObject),
}

/// A kind of objects that are computed.
#[async_trait]
pub trait Derived: Send + Sync + fmt::Debug + 'static {
    /// The object under a key.
    async fn stat(&self, bucket: &BucketLake, key: &ObjectKey) -> Result<DerivedStat>;

    /// A page of a listing; `None` if its prefix lies in no place of its own.
    async fn list(&self, bucket: &BucketLake, options: &ListOptions) -> Result<Option<ListPage>>;

    /// Returns whether a version is one that [`Self::stat`] or [`Self::list`] gave; decided by name alone.
    fn has_version(&self, key: &ObjectKey, version: &Version) -> bool;

    /// The bytes of a range of a version of its own, in order. `Changed` if the object has another version now.
    async fn fetch(
        &self,
        bucket: &BucketLake,
        object: &ObjectVersion,
        range: ByteRange,
        urgency: &Urgency,
    ) -> Result<SourceStream>;

    /// An error that says what to do instead, if the key lies in a place of its own.
    async fn check_writable(&self, bucket: &BucketLake, key: &ObjectKey) -> Result<()>;
}

/// One kind of computed objects in one bucket: the source of their bytes.
#[derive(Debug)]
pub(crate) struct DerivedSource {
    pub(crate) derived: Arc<dyn Derived>,
    pub(crate) bucket: BucketLake,
}

#[async_trait]
impl Source for DerivedSource {
    async fn fetch(
        &self,
        object: &ObjectVersion,
        range: ByteRange,
        urgency: &Urgency,
    ) -> Result<SourceStream> {
        self.derived.fetch(&self.bucket, object, range, urgency).await
    }
}
