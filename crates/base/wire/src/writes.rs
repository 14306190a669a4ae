//! The family of writes: staging buffers, objects from one buffer, objects in parts.

use forebay_core::WriteCondition;
use serde::{Deserialize, Serialize};

use crate::{FamilyId, Headers, Message, ObjectName, bounded};

/// The family of writes.
pub const FAMILY: FamilyId = FamilyId {
    number: 3,
    version: 1,
    name: "writes",
};

/// A request of the family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// A writable buffer in the staging arena.
    Allocate {
        /// Bytes.
        bytes: u64,
    },
    /// Gives a staging buffer back unused.
    Free {
        /// Its number.
        buffer: u64,
    },
    /// Writes an object.
    Put(Put),
    /// Opens a write of an object in parts, because it is larger than staging memory or its end is not known.
    BeginWrite(BeginWrite),
    /// Adds bytes to an open write.
    WritePart(WritePart),
    /// Makes the object of an open write visible. From here on the node goes on without the client.
    FinishWrite(FinishWrite),
    /// Gives an open write up; fine if it has ended already.
    AbortWrite {
        /// Its number.
        write: u64,
    },
}

/// An answer of the family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// To everything that has nothing to say but that it is done.
    Done,
    /// To `Allocate`.
    Buffer(Buffer),
    /// To `Put` and `FinishWrite`.
    Written {
        /// The new version.
        version: String,
        /// Its size.
        bytes: u64,
    },
    /// To `BeginWrite`.
    Writing {
        /// Its number; never used twice in one incarnation of a node.
        write: u64,
        /// Bytes of one part, at most.
        part_bytes_max: u64,
    },
}

impl Message for Request {
    const FAMILY: FamilyId = FAMILY;
}

impl Message for Answer {
    const FAMILY: FamilyId = FAMILY;
}

impl crate::Request for Request {
    type Answer = Answer;
    const KINDS: &'static [&'static str] = &[
        "allocate",
        "free",
        "put",
        "begin_write",
        "write_part",
        "finish_write",
        "abort_write",
    ];
}

/// A staging buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    /// Its number, for `Put` and `Free`; also the segment to map (writable).
    pub buffer: u64,
    /// Bytes that may be used.
    pub bytes: u64,
    /// Bytes of the memfd behind it, to be mapped.
    pub mapped_bytes: u64,
}

/// Bytes of a write in a staging buffer, one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagedBytes {
    /// The staging buffer; it is the node's from now on.
    pub buffer: u64,
    /// Bytes of it that count.
    pub bytes: u64,
    /// CRC32C of them if the client knows it: the node compares.
    pub crc32c: Option<u32>,
}

/// A write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Put {
    /// The object.
    pub object: ObjectName,
    /// Its bytes.
    pub from: StagedBytes,
    /// Condition of the write.
    pub condition: WriteCondition,
    /// Content type and so on.
    pub headers: Headers,
    /// User metadata.
    #[serde(deserialize_with = "bounded::items")]
    pub metadata: Vec<(String, String)>,
}

/// A write in parts, as far as it is known before the first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BeginWrite {
    /// The object.
    pub object: ObjectName,
    /// Its size, if it is known; another one is refused at the end.
    pub bytes: Option<u64>,
    /// Condition of the write, now and at the end.
    pub condition: WriteCondition,
    /// Content type and so on.
    pub headers: Headers,
    /// User metadata.
    #[serde(deserialize_with = "bounded::items")]
    pub metadata: Vec<(String, String)>,
}

/// The next bytes of a write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WritePart {
    /// The write.
    pub write: u64,
    /// Their offset in the object: right behind what was sent before, else the write fails.
    pub offset: u64,
    /// The bytes.
    pub from: StagedBytes,
}

/// The end of a write in parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishWrite {
    /// The write.
    pub write: u64,
    /// Bytes of the object: what was sent, else nothing is written.
    pub bytes: u64,
    /// CRC32C of all of them if the client knows it: the node compares.
    pub crc32c: Option<u32>,
}
