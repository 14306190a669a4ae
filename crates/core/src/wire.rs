//! The words that a client and its node exchange on the host: frames around messages.
//!
//! Bulk data never crosses the socket. A message says which bytes of which shared segment hold the answer; the descriptor of a
//! segment travels once, beside the answer to [`Request::MapSegment`]. The same messages, without leases, are the body of a
//! batch request over HTTP. The bytes are described in docs/formats/wire.md; changing one of these types changes
//! [`PROTOCOL`], and the golden bytes in `wire/tests.rs` say so.
//!
//! Read in this order: `wire/frame.rs` (magic, length, checksum), `wire/request.rs`, `wire/answer.rs`; then
//! `wire/batch.rs`, the answer over HTTP, and `wire/save.rs`, checkpoints.

use std::time::Duration;

mod answer;
mod batch;
mod bounded;
mod frame;
mod headers;
mod item_range;
mod loaded;
mod request;
mod save;

pub use answer::{
    Answer, BufferPlace, Failure, Filled, Found, Listed, ListedObject, ObjectStat, Sources, View, ViewPart,
    Welcome, WireBytes,
};
pub use batch::{
    BATCH_CHUNK_BYTES_MAX, BATCH_CONTENT_TYPE, BATCH_FRAME_BYTES_MAX, BATCH_PATH, BatchDecoder, BatchEvent,
    BatchFrame, BatchItem,
};
pub use frame::{FRAME_BYTES_MAX, FrameHeader, HEADER_BYTES, decode, encode};
pub use headers::Headers;
pub use loaded::Loaded;
pub use request::{
    BeginWrite, Condition, Durability, Fill, FinishWrite, Handle, Hello, Item, ItemRange, ListRequest,
    ObjectName, Plan, PlannedObject, Put, Request, WritePart, WrittenFrom,
};

pub use save::{
    AlarmPolicy, BeginSave, Differential, Gather, SaveFile, SaveObject, SavePart, SavePhase, SaveState,
    StagedIn,
};

/// The version of the messages. A node answers another one with `Unsupported` and says which it speaks.
pub const PROTOCOL: u16 = 3;

/// How long an item of a batch may take if the client does not say, on the socket and over HTTP.
pub const READ_TIMEOUT_DEFAULT: Duration = Duration::from_secs(300);

/// Items in one batch, at most.
pub const BATCH_ITEMS_MAX: usize = 8192;

#[cfg(test)]
mod tests;
