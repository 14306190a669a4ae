//! Pieces that a read hands out: leased bytes, in order.

use bytes::Bytes;
use forebay_core::Result;
use futures::stream::BoxStream;

/// The tier that a served byte came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// The RAM tier.
    Ram,
    /// The NVMe tier.
    Nvme,
    /// Another node, which was asked for it (also by those who waited for the same fetch).
    Peer,
    /// The lake, which was asked for it (also by those who waited for the same fetch).
    Lake,
}

/// A piece of an object, leased: the page behind `bytes` stays untouched until the last clone of it is
/// dropped.
#[derive(Debug, Clone)]
pub struct Piece {
    /// Offset of the first byte in the object.
    pub start: u64,
    /// Verified bytes, pointing into the RAM tier where possible (no copy).
    pub bytes: Bytes,
    /// The tier that they came from.
    pub tier: Tier,
}

/// The pieces of a read, in order, without gaps. An error ends the stream.
pub type PieceStream = BoxStream<'static, Result<Piece>>;
