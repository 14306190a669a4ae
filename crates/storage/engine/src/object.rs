//! The values that readers of an object see.

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use forebay_core::{BucketName, ByteRange, ObjectKey, Version};
use forebay_lake::{Attributes, ListedObject, UpdateToken};
use forebay_reservoir::{ObjectId, Source, TrustDomain};
use serde::{Deserialize, Serialize};

use crate::ObjectPieces;
use crate::bucket::Bucket;

/// A checksum that an S3 client gave with an object and gets back with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectChecksum {
    /// S3's name: `CRC32`, `CRC32C`, `CRC64NVME`, `SHA1`, `SHA256`.
    pub algorithm: String,
    /// Base64, as S3 writes it; a composite one ends with `-<parts>`.
    pub value: String,
    /// The part of the object that it covers.
    pub kind: ChecksumKind,
}

/// The part of an object that a checksum covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChecksumKind {
    /// The bytes of the object.
    FullObject,
    /// The checksums of its parts.
    Composite,
}

/// A tag of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tag {
    /// Name.
    pub key: String,
    /// Value.
    pub value: String,
}

/// Everything known about one version of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its bucket.
    pub bucket: BucketName,
    /// Its key.
    pub key: ObjectKey,
    /// The clients that may map its bytes: the bucket's domain.
    pub domain: TrustDomain,
    /// Its size.
    pub bytes: u64,
    /// Its version (ETag).
    pub version: Version,
    /// The time of the write.
    pub modified: SystemTime,
    /// Content type, user metadata …; without our own reserved entries.
    pub attributes: Attributes,
    /// For conditional updates.
    pub token: UpdateToken,
    /// Checksums given by the writer.
    pub checksums: Vec<ObjectChecksum>,
    /// Sizes of its parts if it was uploaded in parts through Forebay; else empty.
    pub part_bytes: Vec<u64>,
    /// The number of its tags.
    pub tag_count: usize,
    /// See [`Self::object_id`].
    pub(crate) id: OnceLock<ObjectId>,
    /// The source of its blocks, once it was looked up.
    pub(crate) source: SourceCell,
}

/// The source of an object's blocks; no part of what is known about the object.
#[derive(Debug, Clone, Default)]
pub(crate) struct SourceCell(pub(crate) OnceLock<Arc<dyn Source>>);

impl PartialEq for SourceCell {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for SourceCell {}

impl ObjectInfo {
    /// Returns what a listing says of an object: its version and size, without attributes.
    pub(crate) fn listed(bucket: &Bucket, object: &ListedObject) -> Self {
        Self {
            bucket: bucket.name.clone(),
            key: object.key.clone(),
            domain: bucket.domain,
            bytes: object.bytes,
            version: object.version.clone(),
            modified: object.modified,
            attributes: Attributes::default(),
            token: UpdateToken {
                etag: None,
                version: None,
            },
            checksums: Vec::new(),
            part_bytes: Vec::new(),
            tag_count: 0,
            id: OnceLock::new(),
            source: SourceCell::default(),
        }
    }

    /// Returns what the reservoir knows it by; hashed once.
    #[must_use]
    pub fn object_id(&self) -> ObjectId {
        *self.id.get_or_init(|| ObjectId::of(&self.object_version()))
    }
}

/// The bytes that a reader wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RangeRequest {
    /// All of them.
    #[default]
    Whole,
    /// From `first` to `last`, both included; `last` may lie past the end.
    Bounded {
        /// First byte.
        first: u64,
        /// Last byte.
        last: u64,
    },
    /// From here to the end.
    From(u64),
    /// The last so many.
    Last(u64),
    /// One part of a multipart object, from 1; part 1 of any other object is all of it.
    Part(u16),
}

/// The answer to a read.
#[derive(Debug)]
pub enum ReadAnswer {
    /// The caller has this version already (304).
    NotModified(Arc<ObjectInfo>),
    /// The object, first bytes at hand.
    Object(Box<ObjectRead>),
}

/// A read that has begun: the first piece has been fetched and checked, so an error from here on is rare.
pub struct ObjectRead {
    /// The version that all pieces belong to.
    pub info: Arc<ObjectInfo>,
    /// The bytes that will come; `None` for an empty object.
    pub range: Option<ByteRange>,
    /// The pieces, in order.
    pub pieces: ObjectPieces,
}

impl std::fmt::Debug for ObjectRead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectRead")
            .field("info", &self.info)
            .field("range", &self.range)
            .finish_non_exhaustive()
    }
}

/// A copy from one object to another, maybe between buckets and lakes.
#[derive(Debug, Clone)]
pub struct CopyRequest {
    /// The source object.
    pub source: (BucketName, ObjectKey),
    /// The target object.
    pub target: (BucketName, ObjectKey),
    /// New attributes; `None` keeps the source's.
    pub attributes: Option<Attributes>,
    /// New tags; `None` keeps the source's.
    pub tags: Option<Vec<Tag>>,
    /// Must hold for the source.
    pub conditions: crate::Conditions,
    /// Must hold for the target.
    pub target_condition: crate::WriteCondition,
}
