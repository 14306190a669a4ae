//! The family of objects: reads and their leases, metadata, listings, and hints about what will be read.

use serde::{Deserialize, Serialize};

use crate::{Failure, FamilyId, Headers, Item, Message, ObjectName, TierBytes, bounded};

/// The family of objects.
pub const FAMILY: FamilyId = FamilyId {
    number: 2,
    version: 1,
    name: "objects",
};

/// The family of handles of views, which processes hand to each other: no node reads them.
pub const HANDLES: FamilyId = FamilyId {
    number: 8,
    version: 1,
    name: "view handles",
};

/// A request of the family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Views of items, leased, in order, each with a result of its own.
    Read {
        /// Items to read.
        #[serde(deserialize_with = "bounded::items")]
        items: Vec<Item>,
        /// Longest wait for the slowest; 0 means the node's own limit.
        timeout_ms: u32,
    },
    /// Ends leases.
    Release {
        /// Their numbers.
        #[serde(deserialize_with = "bounded::numbers")]
        leases: Vec<u64>,
    },
    /// Takes a share in leases of another connection or process: fork, or a pickled view. Answered by
    /// `Adopted` with those that still live.
    Adopt {
        /// The handles.
        #[serde(deserialize_with = "bounded::numbers")]
        handles: Vec<Handle>,
    },
    /// Metadata of an object.
    Stat(ObjectName),
    /// One page of a listing.
    List(ListRequest),
    /// Removes an object; fine if it is not there.
    Delete(ObjectName),
    /// Names of buckets.
    Buckets,
    /// Makes an empty bucket; fine if it is there.
    CreateBucket(String),
    /// Brings items into RAM, as far as there is room, without leasing them: for readers that know what they
    /// will need.
    Prefetch {
        /// Items that will be needed.
        #[serde(deserialize_with = "bounded::items")]
        items: Vec<Item>,
        /// Longest wait for the slowest; 0 means the node's own limit.
        timeout_ms: u32,
    },
    /// Says which objects will be read again and again, each once in a round: the cache keeps what it has of
    /// them instead of replacing it by what comes. Answered by `WorkingSetKept`; ends with `DropWorkingSet` or
    /// with the session.
    WorkingSet(WorkingSet),
    /// Drops a working set of this session; fine if there is none.
    DropWorkingSet {
        /// The reader that began it.
        reader: u64,
    },
}

/// An answer of the family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// To everything that has nothing to say but that it is done.
    Done,
    /// To `Read`: one result for each item, in order.
    Read(Vec<Result<Found, Failure>>),
    /// To `Adopt`: for each lease, whether it still lives and is now shared.
    Adopted(Vec<bool>),
    /// To `Stat`.
    Stat(ObjectStat),
    /// To `List`.
    Listed(Listed),
    /// To `Buckets`.
    Buckets(Vec<String>),
    /// To `Prefetch`: sources of the bytes of each item, in order.
    Prefetched(Vec<Result<TierBytes, Failure>>),
    /// To `WorkingSet`.
    WorkingSetKept {
        /// The node's budget of RAM.
        ram_bytes: u64,
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
        "read", "release", "adopt", "stat", "list", "delete", "buckets", "other", "prepare", "plan", "plan",
    ];
}

/// A share of a lease, as it travels between processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handle {
    /// Incarnation of the node that gave it; another one's handle is stale.
    pub generation: u64,
    /// The lease; numbers are never used twice in one incarnation.
    pub lease: u64,
}

/// A page of a listing to ask for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListRequest {
    /// The bucket.
    pub bucket: String,
    /// Keys start with this.
    pub prefix: String,
    /// Keys that have this behind the prefix are given as one common prefix.
    pub delimiter: Option<String>,
    /// End of the last page.
    pub after: Option<String>,
    /// At most this many; 0 means a page of the node's choice.
    pub limit: u32,
}

/// Objects that are read in rounds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkingSet {
    /// Its number, chosen by the reader: processes that read the same objects in the same order name the same
    /// one.
    pub id: u64,
    /// The reader: a number that is nobody else's in this session.
    pub reader: u64,
    /// Bytes that its readers have fetched ahead of their use, at most: so much of the cache is kept for what
    /// comes next.
    pub ahead_bytes: u64,
    /// True if all of its objects is read, in long runs, and not a few ranges of each.
    pub is_dense: bool,
    /// Some of its objects, as their versions were when the reader looked; several requests add up.
    #[serde(deserialize_with = "bounded::items")]
    pub objects: Vec<WorkingSetObject>,
}

/// An object of a working set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkingSetObject {
    /// The object.
    pub object: ObjectName,
    /// Its version.
    pub version: String,
    /// Its size.
    pub bytes: u64,
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
    /// Start of the next page; `None` at the end.
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

/// Result of reading an item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The version that the bytes belong to.
    pub version: String,
    /// Size of the whole object.
    pub object_bytes: u64,
    /// Offset of the first byte in the object.
    pub offset: u64,
    /// Location of the bytes; `None` when there are none (an empty object or member).
    pub view: Option<View>,
    /// TierBytes of the bytes.
    pub sources: TierBytes,
}

/// Leased bytes in shared memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// The lease that keeps them; several items of one batch may share one.
    pub lease: u64,
    /// The locations, in order. Every one but the first starts, and every one but the last ends, at a multiple
    /// of 4096, so that a client can map them side by side.
    pub parts: Vec<ViewPart>,
}

/// A piece of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewPart {
    /// The segment; numbers are never used twice in one incarnation of a node.
    pub segment: u64,
    /// First byte.
    pub offset: u64,
    /// Length.
    pub bytes: u64,
}
