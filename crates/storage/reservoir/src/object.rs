//! The name of an object version in the reservoir.

use forebay_core::{BucketName, ObjectKey, Version};

/// The clients that may map the memory of an object's pages. A client that maps a segment can read all of it,
/// so a segment holds pages of one domain only; whoever composes the node decides which bucket belongs to
/// which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct TrustDomain(pub u32);

impl TrustDomain {
    /// The domain of all buckets that have none of their own.
    pub const DEFAULT: Self = Self(0);
}

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
    /// The clients that may map its pages. No part of its identity: the bucket decides it.
    pub domain: TrustDomain,
}
