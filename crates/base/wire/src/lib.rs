//! Messages that a client and its node exchange: frames around families of messages.
//!
//! Bulk data never crosses the socket. A message says which bytes of which shared segment hold the answer; the
//! descriptor of a segment travels once, beside the answer to [`session::Request::MapSegment`].
//!
//! Read in this order: `frame.rs` (magic, family, length, checksum), `family.rs` (numbers and versions), then
//! one file per family: [`session`] (hello, shared memory), [`objects`] (reads, leases, names), [`writes`],
//! [`saves`] (checkpoints), [`group`] (ranks of a host), [`loaders`] (reports), [`batch`] (many items over
//! HTTP). Each has an enum of requests and one of answers; a request that fails is answered by a [`Failure`],
//! which is a family too. The bytes are described in docs/formats/wire.md. Changing a message changes the
//! version of its family, and the golden bytes in `tests.rs` say so.
//!
//! ```
//! use forebay_wire::objects::Request;
//! use forebay_wire::{FrameHeader, HEADER_BYTES, decode, encode};
//!
//! # fn main() -> forebay_core::Result<()> {
//! let mut frame = Vec::new();
//! encode(&Request::Release { leases: vec![1, 300] }, &mut frame)?;
//! let (header, message) = frame.split_first_chunk::<HEADER_BYTES>().expect("a frame has a header");
//! let back: Request = decode(&FrameHeader::parse(header)?, message)?;
//! assert_eq!(back, Request::Release { leases: vec![1, 300] });
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

use std::time::Duration;

pub mod batch;
mod bounded;
mod failure;
mod family;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod group;
mod headers;
mod item;
pub mod loaders;
pub mod objects;
pub mod saves;
pub mod session;
#[cfg(test)]
mod tests;
pub mod writes;

pub use failure::Failure;
pub use family::{FamilyId, Message, Request};
pub use forebay_core::{ItemRange, TierBytes};
pub use frame::{FRAME_BYTES_MAX, FrameHeader, HEADER_BYTES, decode, decode_answer, decode_message, encode};
pub use headers::Headers;
pub use item::{Item, ObjectName};

/// Longest wait for an item of a batch if the client does not say, on the socket and over HTTP.
pub const READ_TIMEOUT_DEFAULT: Duration = Duration::from_secs(300);

/// Items in one batch, at most.
pub const BATCH_ITEMS_MAX: usize = 8192;

/// All families, by number. A number is never given to another family.
pub const FAMILIES: [FamilyId; 9] = [
    failure::FAMILY,
    session::FAMILY,
    objects::FAMILY,
    writes::FAMILY,
    saves::FAMILY,
    group::FAMILY,
    loaders::FAMILY,
    batch::FAMILY,
    objects::HANDLES,
];
