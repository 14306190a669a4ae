//! The engine: one object that edges hold.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forebay_core::{BucketName, Clock, ObjectKey, Result};
use forebay_lake::{Lake, ListOptions, ListPage};

use crate::{Conditions, CopyRequest, ObjectInfo, ObjectWrite, RangeRequest, ReadAnswer, Tag, WriteReceipt, WriteRequest};

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

/// A bucket that does not lie in the default lake.
#[derive(Debug, Clone)]
pub struct BucketOptions {
    /// The name that clients use.
    pub name: BucketName,
    /// The lake whose root is the bucket; `None` means the folder of this name in the default lake.
    pub lake: Option<Arc<dyn Lake>>,
    /// How fresh reads are.
    pub consistency: Consistency,
}

/// What an engine is made of.
#[derive(Debug)]
pub struct EngineOptions {
    /// The lake whose top-level folders are buckets.
    pub lake: Arc<dyn Lake>,
    /// How fresh reads are, unless the bucket says otherwise.
    pub consistency: Consistency,
    /// Buckets with settings of their own.
    pub buckets: Vec<BucketOptions>,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

/// A bucket in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketInfo {
    /// Its name.
    pub name: BucketName,
    /// When it was made, as far as is known.
    pub created: SystemTime,
}

/// The engine. Cheap to share by `Arc`.
#[derive(Debug)]
pub struct Engine {}

#[allow(unused_variables, missing_docs, reason = "draft")]
impl Engine {
    pub async fn list_buckets(&self) -> Result<Vec<BucketInfo>> {
        todo!()
    }
    /// `AlreadyExists` if it is there.
    pub async fn create_bucket(&self, bucket: &BucketName) -> Result<()> {
        todo!()
    }
    /// `NotFound` if it is not there.
    pub async fn head_bucket(&self, bucket: &BucketName) -> Result<()> {
        todo!()
    }
    /// `Conflict` if it is not empty.
    pub async fn delete_bucket(&self, bucket: &BucketName) -> Result<()> {
        todo!()
    }
    pub async fn head(&self, bucket: &BucketName, key: &ObjectKey) -> Result<ObjectInfo> {
        todo!()
    }
    /// `PreconditionFailed` if the conditions fail, `OutOfRange` if the range lies past the end, `NotFound` …
    /// (context `bucket` only when it is the bucket that is missing, `key` too when it is the object).
    pub async fn read(&self, bucket: &BucketName, key: &ObjectKey, range: RangeRequest, conditions: &Conditions) -> Result<ReadAnswer> {
        todo!()
    }
    pub async fn write(&self, bucket: &BucketName, key: &ObjectKey, request: WriteRequest) -> Result<ObjectWrite> {
        todo!()
    }
    pub async fn delete(&self, bucket: &BucketName, key: &ObjectKey) -> Result<()> {
        todo!()
    }
    pub async fn copy(&self, request: CopyRequest) -> Result<WriteReceipt> {
        todo!()
    }
    /// One page; our own documents are left out.
    pub async fn list(&self, bucket: &BucketName, options: ListOptions) -> Result<ListPage> {
        todo!()
    }
    pub async fn set_tags(&self, bucket: &BucketName, key: &ObjectKey, tags: Vec<Tag>) -> Result<()> {
        todo!()
    }
}
