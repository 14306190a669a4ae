//! Writing an object: through to the lake, and into the reservoir on the way.

use std::time::SystemTime;

use bytes::Bytes;
use forebay_core::{Result, Version};
use forebay_lake::Attributes;

use crate::{ObjectChecksum, Tag};

/// What must hold for a write to happen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum WriteCondition {
    /// Nothing.
    #[default]
    None,
    /// `If-None-Match: *`.
    Absent,
    /// `If-Match`: the object has this version (`NotFound` if there is none).
    Version(Version),
}

/// A write, as far as it is known before the body.
#[derive(Debug, Clone, Default)]
pub struct WriteRequest {
    /// Content type, user metadata …
    pub attributes: Attributes,
    /// Tags.
    pub tags: Vec<Tag>,
    /// The condition.
    pub condition: WriteCondition,
    /// Exact size, if the client said so; a body of another size is refused.
    pub bytes: Option<u64>,
    /// `Content-MD5`; checked before the object becomes visible.
    pub md5: Option<[u8; 16]>,
}

/// What is known after the body.
#[derive(Debug, Clone, Default)]
pub struct Finish {
    /// Checksums to keep, already verified by the edge against the body.
    pub checksums: Vec<ObjectChecksum>,
}

/// An acknowledged write: the lake has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteReceipt {
    /// The new version.
    pub version: Version,
    /// Its size.
    pub bytes: u64,
    /// When it was written.
    pub modified: SystemTime,
}

/// A body on its way. Dropping it abandons the write.
pub struct ObjectWrite {}

impl ObjectWrite {
    /// Adds bytes; waits while the lake is slower than the caller.
    pub async fn push(&mut self, bytes: Bytes) -> Result<()> {
        let _ = bytes;
        todo!()
    }

    /// Makes the object visible, or fails and leaves the old one.
    pub async fn finish(self, finish: Finish) -> Result<WriteReceipt> {
        let _ = finish;
        todo!()
    }

    /// Gives up.
    pub async fn abort(self) {
        todo!()
    }
}
