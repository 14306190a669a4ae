//! What a client asks.

use serde::{Deserialize, Serialize};

use super::loaded::Loaded;
use super::save::{BeginSave, Gather, SaveFile, SaveObject};
use super::{Headers, bounded};

/// One question. Every one has exactly one [`super::Answer`]; a connection answers in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// The first message of every connection.
    Hello(Hello),
    /// Metadata of an object.
    Stat(ObjectName),
    /// One page of a listing.
    List(ListRequest),
    /// Removes an object; fine if it is not there.
    Delete(ObjectName),
    /// Names of buckets.
    Buckets,
    /// Views of items, leased, in order, each with a result of its own.
    Read {
        /// What to read.
        #[serde(deserialize_with = "bounded::items")]
        items: Vec<Item>,
        /// How long the slowest may take; 0 means the node's own limit.
        timeout_ms: u32,
    },
    /// Copies items into a region that the client registered.
    Fill(Fill),
    /// Ends leases.
    Release {
        /// Which.
        #[serde(deserialize_with = "bounded::numbers")]
        leases: Vec<u64>,
    },
    /// Takes a share in leases of another connection or process: fork, or a pickled view. Answered by `Adopted`
    /// with those that still live.
    Adopt {
        /// The handles.
        #[serde(deserialize_with = "bounded::numbers")]
        handles: Vec<Handle>,
    },
    /// Asks for the descriptor of a segment or buffer.
    MapSegment {
        /// Its number.
        segment: u64,
    },
    /// Brings a memfd of the client (its descriptor beside the message) that [`Request::Fill`] writes to.
    Register {
        /// Bytes of the region.
        bytes: u64,
    },
    /// Forgets a region.
    Unregister {
        /// Its number.
        region: u64,
    },
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
    /// Makes an empty bucket; fine if it is there.
    CreateBucket(String),
    /// Whether the node is there and ready.
    Ping,
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
    /// Opens a save of a step.
    BeginSave(BeginSave),
    /// Gives a data file of a save.
    SaveFile(SaveFile),
    /// Gives an object of a save.
    SaveObject(SaveObject),
    /// Everything is there: from here on the node goes on without the client.
    StageSave {
        /// Which save.
        save: String,
    },
    /// How far saves are.
    SaveStates {
        /// This one; else all that the user may see.
        save: Option<String>,
        /// Waits so long for the end of the named one; 0 answers at once.
        wait_ms: u32,
    },
    /// Gives a save up; fine if it has ended already.
    AbortSave {
        /// Which.
        save: String,
    },
    /// Exchanges something with the other ranks on this host.
    Gather(Gather),
    /// Brings items into RAM, as far as there is room, without leasing them: for readers that know what they will need.
    Prepare {
        /// What will be needed.
        #[serde(deserialize_with = "bounded::items")]
        items: Vec<Item>,
        /// How long the slowest may take; 0 means the node's own limit.
        timeout_ms: u32,
    },
    /// Says which objects will be read again and again, each once in a round: the cache keeps what it has of them instead of
    /// replacing it by what comes. Answered by `Planned`; ends with `EndPlan` or with the session.
    Plan(Plan),
    /// Ends a plan of this session; fine if there is none.
    EndPlan {
        /// The reader that began it.
        reader: u64,
    },
    /// What a loader of this process did since it last said so, for metrics. Answered by `Done`.
    Loaded(Loaded),
}

/// Objects that are read in rounds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Its number, chosen by the reader: processes that read the same objects in the same order name the same one.
    pub plan: u64,
    /// Who reads by it: a number that is nobody else's in this session.
    pub reader: u64,
    /// Bytes that its readers have fetched ahead of their use, at most: so much of the cache is kept for what comes next.
    pub ahead_bytes: u64,
    /// Whether all of its objects is read, in long stretches, and not a few places of each.
    pub is_dense: bool,
    /// Some of its objects, as their versions were when the reader looked; several questions add up.
    #[serde(deserialize_with = "bounded::items")]
    pub objects: Vec<PlannedObject>,
}

/// An object of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedObject {
    /// The object.
    pub object: ObjectName,
    /// Its version.
    pub version: String,
    /// Its size.
    pub bytes: u64,
}

/// Who speaks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// A name for logs: program and process id.
    pub client: String,
    /// The session that this connection belongs to; `None` opens one, which lives as long as this connection.
    pub session: Option<[u8; 16]>,
}

/// An object by bucket and key, not yet checked.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ObjectName {
    /// Bucket.
    pub bucket: String,
    /// Key.
    pub key: String,
}

/// One thing to read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// The object.
    pub object: ObjectName,
    /// Which bytes.
    pub range: ItemRange,
    /// The version it must have; `None` takes the current one.
    pub version: Option<String>,
}

/// Which bytes of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ItemRange {
    /// All.
    Whole,
    /// `length` bytes from `offset`; cut at the end of the object, `OutOfRange` if it starts behind it.
    Range {
        /// First byte.
        offset: u64,
        /// How many.
        length: u64,
    },
    /// The last so many.
    Last(u64),
    /// The content of a member of a tar shard.
    Member(String),
}

/// Copies of items, into a registered region or a staging buffer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fill {
    /// The region.
    pub region: u64,
    /// What to read, and where in the region it goes; an item that does not fit fails with `InvalidInput`.
    #[serde(deserialize_with = "bounded::items")]
    pub items: Vec<(Item, u64)>,
    /// How long the slowest may take; 0 means the node's own limit.
    pub timeout_ms: u32,
}

/// A share of a lease, as it travels between processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handle {
    /// The node's life in which it was given; another life's handle is stale.
    pub generation: u64,
    /// The lease; numbers are never used twice in one life.
    pub lease: u64,
}

/// A page of a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListRequest {
    /// The bucket.
    pub bucket: String,
    /// Keys start with this.
    pub prefix: String,
    /// Keys that have this behind the prefix are given as one common prefix.
    pub delimiter: Option<String>,
    /// Where the last page ended.
    pub after: Option<String>,
    /// At most this many; 0 means a page of the node's choice.
    pub limit: u32,
}

/// A write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Put {
    /// The object.
    pub object: ObjectName,
    /// Its bytes.
    pub from: WrittenFrom,
    /// What must hold.
    pub condition: Condition,
    /// When it is acknowledged.
    pub durability: Durability,
    /// Content type and so on.
    pub headers: Headers,
    /// User metadata.
    #[serde(deserialize_with = "bounded::items")]
    pub metadata: Vec<(String, String)>,
}

/// Where the bytes of a write lie, one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenFrom {
    /// The staging buffer; it is the node's from now on.
    pub buffer: u64,
    /// Bytes of it that count.
    pub bytes: u64,
    /// CRC32C of them if the client knows it: the node compares.
    pub crc32c: Option<u32>,
}

/// A write in parts, as far as it is known before the first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BeginWrite {
    /// The object.
    pub object: ObjectName,
    /// Its size, if it is known; another one is refused at the end.
    pub bytes: Option<u64>,
    /// What must hold, now and at the end.
    pub condition: Condition,
    /// When it is acknowledged.
    pub durability: Durability,
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
    /// Where they go in the object: right behind what was sent before, else the write fails.
    pub offset: u64,
    /// The bytes.
    pub from: WrittenFrom,
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

/// What must hold for a write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Condition {
    /// Nothing.
    None,
    /// There is no such object yet.
    Absent,
    /// It has this version.
    Version(String),
}

/// When a write is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Durability {
    /// When the lake has it.
    Lake,
}
