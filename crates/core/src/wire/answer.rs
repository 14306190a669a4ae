//! What a node answers.

use serde::{Deserialize, Serialize};

use super::Headers;
use super::save::SaveState;
use crate::{Error, Kind};

/// One answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// It failed as a whole.
    Failed(Failure),
    /// To `Hello`.
    Welcome(Welcome),
    /// To `Stat`.
    Stat(ObjectStat),
    /// To `List`.
    Listed(Listed),
    /// To `Buckets`.
    Buckets(Vec<String>),
    /// To `Read`: one result for each item, in order.
    Read(Vec<Result<Found, Failure>>),
    /// To `Fill`: bytes written for each item, in order.
    Filled(Vec<Result<Filled, Failure>>),
    /// To `Adopt`: whether each lease still lives and is now shared.
    Adopted(Vec<bool>),
    /// To `MapSegment`; the descriptor lies beside it.
    Segment {
        /// Its size.
        bytes: u64,
    },
    /// To `Register`.
    Region {
        /// Its number.
        region: u64,
    },
    /// To `Allocate`.
    Buffer(BufferPlace),
    /// To `Put` and `FinishWrite`.
    Written {
        /// The new version.
        version: String,
        /// Its size.
        bytes: u64,
    },
    /// To everything that has nothing to say but that it is done.
    Done,
    /// To `BeginWrite`.
    Writing {
        /// Its number; never used twice in one life of a node.
        write: u64,
        /// Bytes of one part, at most.
        part_bytes_max: u64,
    },
    /// To `BeginSave`.
    Saving {
        /// Its name, for everything that follows.
        save: String,
        /// The attempt.
        attempt: String,
        /// Bytes of one data file, at most.
        file_bytes_max: u64,
    },
    /// To `StageSave` and `SaveStates`.
    Saves(Vec<SaveState>),
    /// To `Gather`: what each rank gave, in order.
    Gathered(Vec<Vec<u8>>),
    /// To `Prepare`: where the bytes of each item were found, in order.
    Prepared(Vec<Result<Sources, Failure>>),
    /// To `Plan`.
    Planned {
        /// The node's budget of RAM.
        ram_bytes: u64,
    },
}

/// To `Fill`, for one item.
pub type Filled = WireBytes;

/// Bytes that were put somewhere, and where they came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireBytes {
    /// How many.
    pub bytes: u64,
    /// The version they belong to.
    pub version: String,
    /// Where they came from.
    pub sources: Sources,
}

/// An error on its way: kind, message and context survive, the source does not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// [`Kind::as_str`].
    pub kind: String,
    /// The message.
    pub message: String,
    /// Context pairs.
    pub context: Vec<(String, String)>,
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        Self {
            kind: error.kind().as_str().into(),
            message: error.message().into(),
            context: error
                .context()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let kind = Kind::ALL.into_iter().find(|kind| kind.as_str() == failure.kind);
        let error = Self::new(kind.unwrap_or(Kind::Internal), failure.message);
        failure
            .context
            .into_iter()
            .fold(error, |error, (name, value)| error.with_owned(name, value))
    }
}

/// To `Hello`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The session; further connections name it. Whoever knows it shares its leases: it is a secret of the process.
    pub session: [u8; 16],
    /// This life of the node; see [`super::Handle`].
    pub generation: u64,
    /// The node's version, for messages.
    pub node: String,
    /// `http://host:port` of its S3 front door, if it has one.
    pub s3: Option<String>,
}

/// Metadata of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectStat {
    /// Size.
    pub bytes: u64,
    /// Version (ETag).
    pub version: String,
    /// Seconds since 1970.
    pub modified: u64,
    /// Content type and so on.
    pub headers: Headers,
    /// User metadata.
    pub metadata: Vec<(String, String)>,
}

/// A page of a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Objects, by key.
    pub objects: Vec<ListedObject>,
    /// Common prefixes.
    pub prefixes: Vec<String>,
    /// Where to go on; `None` at the end.
    pub next: Option<String>,
}

/// One object of a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedObject {
    /// Key.
    pub key: String,
    /// Size.
    pub bytes: u64,
    /// Version.
    pub version: String,
    /// Seconds since 1970.
    pub modified: u64,
}

/// What was found for an item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The version that the bytes belong to.
    pub version: String,
    /// Size of the whole object.
    pub object_bytes: u64,
    /// Offset of the first byte in the object.
    pub offset: u64,
    /// Where the bytes lie; `None` when there are none (an empty object or member).
    pub view: Option<View>,
    /// Where they came from.
    pub sources: Sources,
}

/// Leased bytes in shared memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// The lease that keeps them; several items of one batch may share one.
    pub lease: u64,
    /// The places, in order. Every one but the first starts, and every one but the last ends, at a multiple of 4096, so that a client
    /// can map them side by side.
    pub parts: Vec<ViewPart>,
}

/// A piece of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewPart {
    /// The segment; numbers are never used twice in one life of a node.
    pub segment: u64,
    /// First byte.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
}

/// Bytes by where they came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Sources {
    /// The RAM tier.
    pub ram: u64,
    /// The NVMe tier.
    pub nvme: u64,
    /// Another node. No node has peers yet: 0.
    pub peer: u64,
    /// The lake.
    pub lake: u64,
    /// Of all these, bytes that the node had to copy (no RAM left, too many leases).
    pub copied: u64,
}

/// A staging buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BufferPlace {
    /// Its number, for `Put` and `Free`; also the segment to map (writable).
    pub buffer: u64,
    /// Bytes that may be used.
    pub bytes: u64,
    /// Bytes of the memfd behind it: what to map.
    pub mapped_bytes: u64,
}
