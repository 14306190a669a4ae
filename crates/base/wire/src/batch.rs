//! A batch over HTTP: many items in one request, answered as one stream, in order.
//!
//! The request is a `POST` of one frame with a [`BatchRequest`] to [`BATCH_PATH`]. The answer is a
//! sequence of frames with [`BatchFrame`]: for every item either `Failed`, or `Found`, then its bytes in
//! chunks, then `End`; `Done` is the last frame. An item that breaks off ends with `Broken`, and the next
//! item follows: no short body can look whole, and one bad item does not spoil the others. A chunk's bytes
//! come raw behind its frame and have a CRC32C in it. [`BatchDecoder`] reads all this.

mod decoder;

use serde::{Deserialize, Serialize};

use crate::{Failure, FamilyId, Item, Message, TierBytes, bounded};

pub use decoder::{BatchDecoder, BatchEvent};

/// The family of batches over HTTP.
pub const FAMILY: FamilyId = FamilyId {
    number: 7,
    version: 1,
    name: "batch",
};

/// Path that a batch is posted to, at the address of the S3 endpoint.
pub const BATCH_PATH: &str = "/.forebay/v1/batch";

/// The content type of a batch and of its answer.
pub const BATCH_CONTENT_TYPE: &str = "application/vnd.forebay.batch";

/// Raw bytes behind one [`BatchFrame::Chunk`], at most.
pub const BATCH_CHUNK_BYTES_MAX: usize = 16 << 20;

/// Many items in one request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchRequest {
    /// Items to read.
    #[serde(deserialize_with = "bounded::items")]
    pub items: Vec<Item>,
    /// Longest wait for the slowest; 0 means the node's own limit.
    pub timeout_ms: u32,
}

impl Message for BatchRequest {
    const FAMILY: FamilyId = FAMILY;
}

impl Message for BatchFrame {
    const FAMILY: FamilyId = FAMILY;
}

/// A message of the answer. Its frame is no longer than [`BATCH_FRAME_BYTES_MAX`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum BatchFrame {
    /// The next item is there; chunks with `bytes` bytes together follow, then `End` or `Broken`.
    Found(BatchItem),
    /// The next item failed; nothing of it follows.
    Failed(Failure),
    /// So many raw bytes follow this frame; at least one.
    Chunk {
        /// Their number.
        bytes: u32,
        /// Their CRC32C.
        crc32c: u32,
    },
    /// The item is complete.
    End(TierBytes),
    /// The item broke off; what has come of it must not be used.
    Broken(Failure),
    /// The answer is complete.
    Done {
        /// Items in it.
        items: u32,
    },
}

/// The longest message in an answer: a failure with its context.
pub const BATCH_FRAME_BYTES_MAX: usize = 64 << 10;

/// An item that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchItem {
    /// The version that the bytes belong to.
    pub version: String,
    /// Size of the whole object.
    pub object_bytes: u64,
    /// Offset of the first byte in the object.
    pub offset: u64,
    /// Bytes that will follow.
    pub bytes: u64,
}
