//! What the reservoir knows an object by.

use forebay_core::{BucketName, ObjectKey, Version};

/// One version of one object: what pages are keyed by. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectVersion {
    /// The bucket it is served under.
    pub bucket: BucketName,
    /// Its key.
    pub key: ObjectKey,
    /// Its version; a changed object has another one, so old and new bytes never mix.
    pub version: Version,
    /// Its size.
    pub bytes: u64,
}
